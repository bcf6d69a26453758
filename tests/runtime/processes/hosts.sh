# Runs a command on two hosts that share nothing but a cable, without being root: each has its own network, name,
# processes, and a file of hosts in which its own name is an address of the loopback device, as on Debian.
#
#     sh hosts.sh FOLDER CUT COMMAND...
#
# The output of host N is FOLDER/N, its exit status FOLDER/status-N. In the command, RANK stands for N. With CUT the
# cable is pulled once host 1 prints "fault".
set -e
if [ -z "$MM_INSIDE" ]; then
    MM_INSIDE=1 exec unshare --user --map-root-user --net --mount --pid --fork --kill-child --mount-proc sh "$0" "$@"
fi
folder=$1 cut=$2
shift 2
mount -t tmpfs none /run
for n in 0 1; do
    ip netns add host$n
    printf '127.0.0.1 localhost\n127.0.1.1 host%s\n10.9.0.%s host%s\n' $n $((2 - n)) $((1 - n)) >"$folder/hosts-$n"
done
ip link add cable0 netns host0 type veth peer name cable1 netns host1
for n in 0 1; do
    ip -n host$n addr add 10.9.0.$((n + 1))/24 dev cable$n
    ip -n host$n link set cable$n up
    ip -n host$n link set lo up
    ip -n host$n route add default via 10.9.0.$((2 - n))
done
for n in 0 1; do
    : >"$folder/$n"
    (
        set +e
        # The shell stays, as signals to the first process of a name space of processes are not what they are elsewhere.
        ip netns exec host$n unshare --mount --uts --pid --fork --kill-child --mount-proc sh -c '
            n=$1 hosts=$2; shift 2
            hostname host$n; mount --bind "$hosts" /etc/hosts
            JAX_PROCESS_ID=$n JAX_NUM_PROCESSES=2 JAX_COORDINATOR_ADDRESS=host0:50000 "$@"; exit $?
        ' sh $n "$folder/hosts-$n" "$@" >"$folder/$n" 2>&1
        echo $? >"$folder/status-$n"
    ) &
done
if [ "$cut" = cut ]; then
    while ! grep -q fault "$folder/1" && kill -0 $!; do sleep 0.1; done
    ip -n host0 link set cable0 down
fi
wait
