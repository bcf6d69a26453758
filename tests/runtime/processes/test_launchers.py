"""What each launcher sets, and which job is read from it; what is half given or wrong, and the message."""

import pytest

from mmruntime._processes.launchers import Launched, each_host, find_launched, first_host, local_devices
from mmruntime._processes.start import ProcessArguments, fault_timeout, start_processes


def job(environment):
    """Address, count, index and GPUs of what was found."""
    found = find_launched(environment)
    assert found is not None
    return found.coordinator_address, found.num_processes, found.process_id, found.local_device_ids


SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}
OPEN_MPI_4 = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
OPEN_MPI_5 = {
    "PMIX_NAMESPACE": "prterun-login-node-3271840@1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
HYDRA = {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3", "HOSTNAME": "train-3"}
TPU = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t-0.t,t-1.t"}
SLICES = {
    **TPU,
    "MEGASCALE_NUM_SLICES": "3",
    "MEGASCALE_SLICE_ID": "2",
    "MEGASCALE_COORDINATOR_ADDRESS": "first-0.svc:8080",
}
NAMED = {"JAX_COORDINATOR_ADDRESS": "node1:99", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param(NAMED, ("node1:99", 4, 2, None), id="named"),
        pytest.param({**NAMED, "JAX_COORDINATOR_ADDRESS": "[fe80::1]:7"}, ("[fe80::1]:7", 4, 2, None), id="ipv6"),
        pytest.param({**NAMED, "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, ("node1:99", 1, 0, None), id="alone"),
        pytest.param(SLURM, ("gpu07:61586", 8, 5, (1,)), id="slurm"),
        pytest.param({**SLURM, "JAX_COORDINATOR_PORT": "5555"}, ("gpu07:5555", 8, 5, (1,)), id="slurm_port"),
        pytest.param({**SLURM, "SLURM_GPUS_PER_TASK": "1"}, ("gpu07:61586", 8, 5, None), id="slurm_own_gpus"),
        pytest.param(
            {**SLURM, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, ("gpu07:61586", 8, 5, (2, 3)), id="slurm_shared_gpus"
        ),
        pytest.param({**SLURM, "CUDA_VISIBLE_DEVICES": "6"}, ("gpu07:61586", 8, 5, None), id="slurm_one_visible"),
        pytest.param(
            {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1(x8)"}, ("gpu07:61586", 8, 5, None), id="slurm_task_per_node"
        ),
        pytest.param({**SLURM, **NAMED}, ("node1:99", 4, 2, (1,)), id="named_before_slurm"),
        pytest.param(
            {**SLURM, "JAX_COORDINATOR_ADDRESS": "node1:99"}, ("node1:99", 8, 5, (1,)), id="slurm_other_address"
        ),
        pytest.param(OPEN_MPI_4, ("10.96.0.1:62624", 4, 3, (1,)), id="open_mpi_4"),
        pytest.param(
            {**OPEN_MPI_4, "OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp6://[fe80::b9b,2620::2]:43370"},
            ("[fe80::b9b]:62880", 4, 3, (1,)),
            id="open_mpi_ipv6",
        ),
        pytest.param(OPEN_MPI_5, ("login-node:64672", 4, 0, (0,)), id="open_mpi_5"),
        pytest.param(
            {**OPEN_MPI_5, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, ("127.0.0.1:64672", 4, 0, (0,)), id="open_mpi_one_host"
        ),
        pytest.param({**SLURM, **OPEN_MPI_4}, ("10.96.0.1:62624", 4, 3, (1,)), id="mpirun_in_slurm"),
        pytest.param(HYDRA, ("127.0.0.1:61440", 2, 1, (1,)), id="mpich"),
        pytest.param({**SLURM, "PMI_SIZE": "8", "PMI_RANK": "5"}, ("gpu07:61586", 8, 5, (1,)), id="pmi_of_slurm"),
        pytest.param(
            {**POD, "JAX_COORDINATOR_ADDRESS": "train-0.svc:1234", "JAX_NUM_PROCESSES": "4"},
            ("train-0.svc:1234", 4, 3, None),
            id="kubernetes",
        ),
        pytest.param(TPU, ("t-0.t:8482", 2, 1, None), id="tpu"),
        pytest.param({**TPU, "TPU_PROCESS_ADDRESSES": "a:1,b:1,c:1"}, ("a:8482", 3, 1, None), id="tpu_addresses"),
        pytest.param(SLICES, ("first-0.svc:8482", 6, 5, None), id="tpu_slices"),
    ],
)
def test_jobs(environment, expected):
    assert job(environment) == expected


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, id="mpi_alone"),
        pytest.param({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, id="slurm_shell"),
        pytest.param({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, id="slurm_one_task"),
        pytest.param({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, id="pod_of_no_job"),
        pytest.param({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}, id="one_tpu_host"),
        pytest.param({"JAX_COORDINATOR_ADDRESS": "", "JAX_NUM_PROCESSES": " "}, id="empty"),
    ],
)
def test_started_alone(environment):
    assert find_launched(environment) is None
    start_processes(ProcessArguments(), dict(environment))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        pytest.param(
            {"JAX_COORDINATOR_ADDRESS": "node1:99"},
            r"init: started by JAX_COORD.*: num_processes and process_id must be known, besides coord\w+='node1:99'\. "
            r"Set JAX_COORDINATOR_ADDRESS=host:port, JAX_NUM_PROCESSES and JAX_PROCESS_ID in every",
            id="address_alone",
        ),
        pytest.param(
            {**NAMED, "JAX_COORDINATOR_ADDRESS": "node1"},
            r"JAX_COORDINATOR_ADDRESS='node1' has no port: write node1:12345",
            id="no_port",
        ),
        pytest.param(
            {**NAMED, "JAX_COORDINATOR_ADDRESS": "http://node1:99"},
            r"JAX_COORDINATOR_ADDRESS must be host:port.* got 'http://node1:99'",
            id="url",
        ),
        pytest.param({**NAMED, "JAX_COORDINATOR_ADDRESS": "node1:99999"}, r"must be host:port", id="large_port"),
        pytest.param({**NAMED, "JAX_PROCESS_ID": "4"}, r"this is process 4, but there are 4, with indices", id="index"),
        pytest.param({**NAMED, "JAX_PROCESS_ID": "-1"}, r"JAX_PROCESS_ID must be an integer, 0 or more", id="negative"),
        pytest.param({**NAMED, "JAX_NUM_PROCESSES": "two"}, r"JAX_NUM_PROCESSES must be an integer, 1", id="word"),
        pytest.param(
            {key: value for key, value in SLURM.items() if key != "SLURM_PROCID"},
            r"init: started by Slurm: process_id must be known, besides coordinator_address='gpu07:61586', "
            r"num_processes=8\. Start the program by srun",
            id="slurm_half",
        ),
        pytest.param(
            {**SLURM, "SLURM_STEP_NODELIST": "gpu[8-"}, r"SLURM_STEP_NODELIST='gpu\[8-' is no list of hosts", id="list"
        ),
        pytest.param(
            {**SLURM, "SLURM_STEP_NODELIST": "gpu[9-8]"}, r"'9-8' is neither a number nor a range", id="backward"
        ),
        pytest.param(
            {**OPEN_MPI_5, "PMIX_NAMESPACE": "?"},
            r"started by Open MPI: coordinator_address must be known.*mpirun -x JAX_COORDINATOR_ADDRESS=HOST:PORT",
            id="open_mpi_without_host",
        ),
        pytest.param(
            {**HYDRA, "MPI_LOCALNRANKS": "1"}, r"MPICH or Intel MPI: coordinator_address must be known", id="mpich"
        ),
        pytest.param(
            POD,
            r"started by Kubernetes: coordinator_address and num_processes must be known, besides process_id=3\. Write "
            r"both into the pods' `env`: JAX_NUM_PROCESSES as .*`completions`.*mm\.init\(distributed=False\)",
            id="pod",
        ),
        pytest.param({**TPU, "TPU_WORKER_ID": "2"}, r"TPU_WORKER_ID=2, but TPU_WORKER_HOSTNAMES names 2", id="worker"),
        pytest.param(
            {key: value for key, value in SLICES.items() if key != "MEGASCALE_SLICE_ID"},
            r"started by Cloud TPU: process_id must be known.*MEGASCALE_SLICE_ID",
            id="slices_half",
        ),
    ],
)
def test_half_given_or_wrong(environment, message):
    with pytest.raises(ValueError, match=message):
        start_processes(ProcessArguments(), dict(environment))
    start_processes(ProcessArguments(distributed=False), dict(environment))


def test_arguments_alone_are_not_enough():
    with pytest.raises(ValueError, match=r"init: started by mm\.init: process_id must be known, besides .*n:1.*Give"):
        start_processes(ProcessArguments(coordinator_address="n:1", num_processes=2), {})


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("node001", ["node001"]),
        ("node001,host2", ["node001", "host2"]),
        ("node[001-003],host2", ["node001", "node002", "node003", "host2"]),
        ("node[001,007-008,10]", ["node001", "node007", "node008", "node10"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("rack[1-2]node[3-4]-ib", ["rack1node3-ib", "rack1node4-ib", "rack2node3-ib", "rack2node4-ib"]),
        ("a-b.c[0-1].example.org", ["a-b.c0.example.org", "a-b.c1.example.org"]),
    ],
)
def test_lists_of_hosts(hosts, expected):
    assert list(each_host(hosts)) == expected
    assert first_host(hosts) == expected[0]


@pytest.mark.parametrize("hosts", ["", ",", "a,", "a[", "a]", "a[]", "a[x]", "a[1-]", "a[[1]]", "a,,b", "a[2-1]"])
def test_what_is_no_list_of_hosts(hosts):
    with pytest.raises(ValueError, match="is no list of hosts"):
        list(each_host(hosts))


def test_lists_of_many_hosts_cost_one():
    assert first_host("n[0-99999][0-99999][0-99999]") == "n000"


@pytest.mark.parametrize(
    ("visible", "local_id", "count", "expected"),
    [
        (None, 1, 4, (1,)),
        ("0,1,2,3", 1, 2, (2, 3)),
        ("GPU-a,GPU-b", 1, 2, (1,)),
        ("0,1,2", 1, 2, None),
        ("5", 1, 2, None),
        ("0,1", 0, 1, None),
        ("0,1", None, 2, None),
    ],
)
def test_shares_of_gpus(visible, local_id, count, expected):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert local_devices(environment, local_id, count) == expected


def test_every_process_finds_the_same_address():
    tasks = [{**SLURM, "SLURM_PROCID": str(task), "SLURM_NODEID": str(task // 4)} for task in range(8)]
    found = [find_launched(environment) for environment in tasks]
    assert {each.coordinator_address for each in found} == {"gpu07:61586"}
    assert [each.process_id for each in found] == list(range(8))
    assert isinstance(found[0], Launched)


def test_the_limit_for_faults():
    assert fault_timeout(None, {}) == 15
    assert fault_timeout(None, {"MMRUNTIME_FAULT_TIMEOUT": "2.5"}) == 2.5
    assert fault_timeout(3, {"MMRUNTIME_FAULT_TIMEOUT": "2.5"}) == 3
    with pytest.raises(ValueError, match=r"MMRUNTIME_FAULT_TIMEOUT must be a number of seconds, 0 or more, got '5s'"):
        fault_timeout(None, {"MMRUNTIME_FAULT_TIMEOUT": "5s"})
