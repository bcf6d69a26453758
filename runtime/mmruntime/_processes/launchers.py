"""Which processes a launcher has started, read from the environment variables that it set.

Pure functions of a mapping, so every launcher is tested without one. JAX's own detection reads fewer forms: it takes
the wrong host from `rack[1-2]node[3-4]`, needs `mpirun` of Open MPI 4, and asks Kubernetes' API for the number of pods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

Environment = Mapping[str, str]

ADDRESS = "JAX_COORDINATOR_ADDRESS"
PORT = "JAX_COORDINATOR_PORT"
NUM_PROCESSES = "JAX_NUM_PROCESSES"
PROCESS_ID = "JAX_PROCESS_ID"
# Set by `mmrewrite run` only.
NUM_DEVICES = "MMREWRITE_DEVICES_PER_PROCESS"
RESTART = "MMREWRITE_RESTART"

# Where nobody has chosen a port, every process must arrive at the same one: one of the last 4096, by the job's number,
# as JAX does it.
_PORTS = 4096
_FIRST_PORT = 65536 - _PORTS
# The ports that JAX itself uses there.
_KUBERNETES_PORT = 55527
_TPU_PORT = 8482


@dataclass(frozen=True)
class Launched:
    """What is known of the processes of a job; None for what is not given.

    Attributes:
        launcher: Who started them, for messages.
        coordinator_address: `host:port` of process 0.
        num_processes: How many there are.
        process_id: The index of this one.
        local_device_ids: The GPUs of this process, if the launcher put several processes on one machine.
        advice: How to say what is missing.
    """

    launcher: str
    coordinator_address: str | None
    num_processes: int | None
    process_id: int | None
    local_device_ids: tuple[int, ...] | None = None
    advice: str = ""

    def missing(self) -> tuple[str, ...]:
        """The names of the arguments that nobody has said."""
        names = ("coordinator_address", "num_processes", "process_id")
        return tuple(name for name in names if getattr(self, name) is None)

    def completed(self, found: Launched) -> Launched:
        """What is given here, completed by what a launcher has set."""
        said = {name: value for name, value in vars(self).items() if value not in (None, ())}
        return replace(found, **{**said, "launcher": found.launcher, "advice": found.advice})


def find_launched(environment: Environment) -> Launched | None:
    """The job that this process is one of; None if it was started alone.

    The variables `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` come first. What they leave open
    is read from the first of these that has started several processes: Open MPI, Slurm, MPICH and Intel MPI, Cloud TPU
    with Kubernetes, an indexed job of Kubernetes.

    Args:
        environment: The environment variables.

    Raises:
        ValueError: If a variable does not have the form that its launcher gives it, or two contradict each other.
    """
    # Open MPI before Slurm: within an allocation of Slurm, `mpirun` starts its daemons by `srun`, whose variables are
    # then not about this process.
    found = next(filter(None, (read(environment) for read in _LAUNCHERS)), None)
    named = Launched(
        f"{ADDRESS}, {NUM_PROCESSES} and {PROCESS_ID}",
        _address(environment, ADDRESS),
        _integer(environment, NUM_PROCESSES, 1),
        _integer(environment, PROCESS_ID, 0),
        advice=f"Set {ADDRESS}=host:port, {NUM_PROCESSES} and {PROCESS_ID} in every process.",
    )
    if len(named.missing()) == 3:
        return _checked(found)
    return _checked(named if found is None else named.completed(found))


def first_host(hosts: str) -> str:
    """The first host of a list in Slurm's notation, such as `rack[1-2]node[07-12,20],login`.

    Raises:
        ValueError: If the list is not in that notation.
    """
    return next(each_host(hosts))


def each_host(hosts: str) -> Iterator[str]:
    """The hosts of a list in Slurm's notation, in order; numbers keep their leading zeros.

    Raises:
        ValueError: If the list is not in that notation.
    """
    names = re.findall(r"(?:[^,\[\]]+|\[[^\[\]]*\])+", hosts)
    if not names or ",".join(names) != hosts:
        raise ValueError(f"{hosts!r} is no list of hosts as Slurm writes them, such as node[1-4,7],login.")
    for name in names:
        yield from _expand(name, hosts)


def _expand(name: str, hosts: str) -> Iterator[str]:
    before, bracket, rest = name.partition("[")
    if not bracket:
        yield name
        return
    inside, _, after = rest.partition("]")
    for part in inside.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{hosts!r} is no list of hosts: {part!r} is neither a number nor a range such as 1-4.")
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            for end in _expand(after, hosts) if after else ("",):
                yield f"{before}{number:0{len(match[1])}d}{end}"


def local_devices(environment: Environment, local_id: int | None, local_count: int | None) -> tuple[int, ...] | None:
    """The GPUs of one of several processes on a machine, as equal shares of those that it may see.

    Args:
        environment: The environment variables.
        local_id: The index of the process on its machine.
        local_count: How many there are on that machine.

    Returns:
        Positions among the visible GPUs. None, which is for all of them, if the process is alone on its machine, or the
        launcher has given it GPUs of its own.
    """
    if local_id is None or local_count is None or local_count < 2:
        return None
    visible = environment.get("CUDA_VISIBLE_DEVICES") or environment.get("ROCR_VISIBLE_DEVICES")
    if visible is None:
        # As JAX does: one GPU for each process. Without GPUs it means nothing.
        return (local_id,)
    share, rest = divmod(len(visible.split(",")), local_count)
    if share == 0 or rest:
        return None
    return tuple(range(local_id * share, (local_id + 1) * share))


def _open_mpi(environment: Environment) -> Launched | None:
    count = _integer(environment, "OMPI_COMM_WORLD_SIZE", 1)
    if count is None or count < 2:
        return None
    local_count = _integer(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)
    # Open MPI 4 gives the addresses of `mpirun` and 4096 times the number of the job; version 5 its host and process.
    daemon = environment.get("OMPI_MCA_orte_hnp_uri") or environment.get("PMIX_NAMESPACE") or ""
    number = re.match(r"(\d+)\.", daemon)
    process = re.search(r"-(\d+)@", daemon)
    port = _port(environment, int(number[1]) // 4096 if number else int(process[1]) if process else 0)
    if local_count == count:
        host: str | None = "127.0.0.1"
    else:
        uri = re.search(r"tcp://([^,:;]+)|tcp6://\[([^,\]]+)", daemon) or re.match(r"prterun-(.+)-\d+@", daemon)
        host = next(filter(None, uri.groups()), None) if uri else None
    return Launched(
        "Open MPI",
        None if host is None else _join(host, port),
        count,
        _integer(environment, "OMPI_COMM_WORLD_RANK", 0),
        local_devices(environment, _integer(environment, "OMPI_COMM_WORLD_LOCAL_RANK", 0), local_count),
        f"Start it as mpirun -x {ADDRESS}=HOST:PORT ..., with the host of rank 0.",
    )


def _slurm(environment: Environment) -> Launched | None:
    # A shell of `salloc` has SLURM_NTASKS, but is no task of a step.
    count = _integer(environment, "SLURM_STEP_NUM_TASKS", 1)
    if count is None or count < 2:
        return None
    hosts = environment.get("SLURM_STEP_NODELIST")
    job = _integer(environment, "SLURM_JOB_ID", 0)
    step = _integer(environment, "SLURM_STEP_ID", 0)
    return Launched(
        "Slurm",
        None if hosts is None else _join(_first(hosts), _port(environment, (job or 0) + (step or 0))),
        count,
        _integer(environment, "SLURM_PROCID", 0),
        # With GPUs for each task, Slurm shows each task its own ones only.
        None
        if "SLURM_GPUS_PER_TASK" in environment
        else local_devices(environment, _integer(environment, "SLURM_LOCALID", 0), _tasks_here(environment)),
        "Start the program by srun.",
    )


def _first(hosts: str) -> str:
    try:
        return first_host(hosts)
    except ValueError as problem:
        raise ValueError(f"SLURM_STEP_NODELIST={problem}") from None


def _tasks_here(environment: Environment) -> int | None:
    """How many tasks of the step are on this machine. `2(x3),1` is 2 on each of the first three, and 1 on the next."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    node = _integer(environment, "SLURM_NODEID", 0) or 0
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        node -= int(times or 1)
        if node < 0:
            return int(count)
    return None


def _hydra(environment: Environment) -> Launched | None:
    count = _integer(environment, "PMI_SIZE", 1)
    # Slurm's own PMI sets it as well.
    if count is None or count < 2 or "SLURM_STEP_NUM_TASKS" in environment:
        return None
    local_count = _integer(environment, "MPI_LOCALNRANKS", 1)
    here = _join("127.0.0.1", _port(environment, 0)) if local_count == count else None
    return Launched(
        "MPICH or Intel MPI",
        here,
        count,
        _integer(environment, "PMI_RANK", 0),
        local_devices(environment, _integer(environment, "MPI_LOCALRANKID", 0), local_count),
        f"Start it as mpiexec -genv {ADDRESS} HOST:PORT ..., with the host of rank 0.",
    )


def _cloud_tpu(environment: Environment) -> Launched | None:
    variable = "TPU_PROCESS_ADDRESSES" if "TPU_PROCESS_ADDRESSES" in environment else "TPU_WORKER_HOSTNAMES"
    workers = [each for each in environment.get(variable, "").split(",") if each]
    slices = _integer(environment, "MEGASCALE_NUM_SLICES", 1) or 1
    if not workers or len(workers) * slices < 2:
        return None
    # With several slices, this is the first worker of the first one.
    first = environment.get("MEGASCALE_COORDINATOR_ADDRESS") or workers[0]
    worker = _integer(environment, "TPU_WORKER_ID", 0)
    number = _integer(environment, "MEGASCALE_SLICE_ID", 0) if slices > 1 else 0
    if worker is not None and worker >= len(workers):
        raise ValueError(f"TPU_WORKER_ID={worker}, but {variable} names {len(workers)} workers.")
    return Launched(
        "Cloud TPU",
        _join(_host(first), _port(environment, None, _TPU_PORT)),
        len(workers) * slices,
        None if worker is None or number is None else number * len(workers) + worker,
        advice="TPU_WORKER_ID and, with several slices, MEGASCALE_SLICE_ID say which process this is.",
    )


def _kubernetes(environment: Environment) -> Launched | None:
    if "KUBERNETES_SERVICE_HOST" not in environment or "JOB_COMPLETION_INDEX" not in environment:
        return None
    # A pod of such a job knows its index, but neither how many there are nor the domain of their names.
    return Launched(
        "Kubernetes",
        None,
        None,
        _integer(environment, "JOB_COMPLETION_INDEX", 0),
        advice=(
            f"Write both into the pods' `env`: {NUM_PROCESSES} as the job's `completions`, and {ADDRESS} as "
            f"JOB-0.SERVICE:{_KUBERNETES_PORT} for the headless service in `subdomain`. If the pods do not work "
            "together, write mm.init(distributed=False)."
        ),
    )


_LAUNCHERS: tuple[Callable[[Environment], Launched | None], ...] = (_open_mpi, _slurm, _hydra, _cloud_tpu, _kubernetes)


def _checked(found: Launched | None) -> Launched | None:
    if (
        found is not None
        and found.num_processes is not None
        and found.process_id is not None
        and found.process_id >= found.num_processes
    ):
        raise ValueError(
            f"{found.launcher}: this is process {found.process_id}, but there are {found.num_processes}, with indices "
            f"from 0 to {found.num_processes - 1}."
        )
    return found


def _integer(environment: Environment, name: str, least: int) -> int | None:
    text = environment.get(name)
    if text is None or not text.strip():
        return None
    if not re.fullmatch(r"\d+", text.strip()) or int(text) < least:
        raise ValueError(f"{name} must be an integer, {least} or more, got {text!r}.")
    return int(text)


def _address(environment: Environment, name: str) -> str | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    match = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::(\d+))?", text)
    if match is None or (match[2] is not None and not 0 < int(match[2]) < 65536):
        raise ValueError(f"{name} must be host:port, such as node1:12345 or [fe80::1]:12345, got {text!r}.")
    port = int(match[2]) if match[2] else _integer(environment, PORT, 1)
    if port is None:
        raise ValueError(f"{name}={text!r} has no port: write {text}:12345, with a port that is free there.")
    return f"{match[1]}:{port}"


def _host(address: str) -> str:
    """The host of `host:port` or of `host`; IPv6 addresses in brackets."""
    match = re.match(r"\[[^\]]+\]|[^:]+", address)
    return match[0] if match else address


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _port(environment: Environment, number: int | None, default: int = _FIRST_PORT) -> int:
    """The port that was asked for; else one by the number of a job, or the default."""
    chosen = _integer(environment, PORT, 1)
    if chosen is not None:
        return chosen
    return default if number is None else _FIRST_PORT + number % _PORTS
