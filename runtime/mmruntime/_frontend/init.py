"""`init`: MultiMesh's start-up call, most of whose arguments have no counterpart in stock JAX."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from mmruntime import _check, _compat
from mmruntime._core.one_device import allow_one_device
from mmruntime._core.progress import show_progress
from mmruntime._core.warn import warn
from mmruntime._processes.scheduling import wants_batch
from mmruntime._processes.start import ProcessArguments, start_processes
from mmruntime._processes.transports import VARIABLE, check_transport

# Arguments that configured MultiMesh's own runtime, and their defaults there.
_WITHOUT_EFFECT = {
    "disable_gc": None,
    "fbmem": 8000,
    "sysmem": 4000,
    "zcmem": 32,
    "debug": None,
    "network": "none",
    "kthreads": False,
    "profile": False,
    "realm_argv": None,
}


@_compat.api_boundary
def init(
    disable_gc: bool | None = None,
    cpus: int | None = None,
    gpus: int | None = None,
    fbmem: int = 8000,
    sysmem: int = 4000,
    zcmem: int = 32,
    debug: str | None = None,
    network: str = "none",
    kthreads: bool = False,
    profile: bool = False,
    distributed: bool | None = None,
    dump: str | None = None,
    dump_all_passes: bool = False,
    realm_argv: Sequence[str] | None = None,
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    cluster_detection_method: str | None = None,
    initialization_timeout: int = 300,
    coordinator_bind_address: str | None = None,
    fault_timeout: float | None = None,
    transport: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    sched_batch: bool | None = None,
    progress: bool | None = None,
    one_device_fallback: bool | None = None,
) -> None:
    """Set up devices and processes. A program for the devices of one process does not need it.

    Several processes find each other by the arguments here, by what their launcher has set (`mmrewrite run`, Slurm,
    Open MPI, MPICH, an indexed job of Kubernetes, Cloud TPU), or have done so: after `jax.distributed.initialize`
    nothing is started again.

    Call it before JAX is first used; `import jax` may come earlier. Where a program does not, and `JAX_NUM_PROCESSES`
    says that there are several processes, as under `mmrewrite run`, its first mesh does what `mm.init()` does.

    No function of JAX is replaced: for logical names use `mm.with_sharding_constraint`, not
    `jax.lax.with_sharding_constraint`.

    Args:
        disable_gc: No effect.
        cpus: Number of virtual CPU devices of this process; without `gpus`, JAX then uses the CPU only. Under
            `mmrewrite run --devices-per-process K` it is K, whatever is written here.
        gpus: With 0, JAX uses the CPU only; another number of GPUs is not enforced.
        fbmem: No effect, like `sysmem`, `zcmem`, `debug`, `network`, `kthreads`, `profile` and `realm_argv`: JAX
            manages memory, transports and profiles (`jax.profiler`) itself.
        sysmem: No effect.
        zcmem: No effect.
        debug: No effect.
        network: No effect.
        kthreads: No effect.
        profile: No effect.
        distributed: Whether to start `jax.distributed`. If left out, it is started when a coordinator is given, or a
            launcher has started several processes. On Cloud TPU machines without Kubernetes, say True.
        dump: Folder for XLA's dumps of what it compiles.
        dump_all_passes: Whether the dumps show every pass.
        realm_argv: No effect.
        coordinator_address: `host:port` of process 0. What is left out here and in the next two is read from
            `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`, or else from what the launcher set.
        num_processes: How many processes there are.
        process_id: The index of this one.
        local_device_ids: The GPUs of this process, among those of its machine.
        cluster_detection_method: Have JAX find out the arguments above that are left out, in this way; see
            `jax.distributed.initialize`.
        initialization_timeout: How long to wait for the other processes, in seconds.
        coordinator_bind_address: The address that process 0 listens on, if not the coordinator's.
        fault_timeout: Seconds within which the other processes end when one has died, stopped, failed or left; 15, or
            what `MMRUNTIME_FAULT_TIMEOUT` says. With 0 nothing watches them.
        transport: What carries arrays between processes: "transfer" (`jax.experimental.transfer`), "sockets" (TCP
            connections of our own), "collectives" (programs on both sides, by NCCL or gloo), or "auto", the best for
            the platform. If left out, what `MMRUNTIME_TRANSPORT` says, or "auto". `explain()` names it.
        cache: Folder that keeps compiled programs for the next start: JAX's persistent compilation cache, for all
            programs, also for those that compile in less than a second; its folder `mmruntime` keeps those of steps
            so that an unchanged one need not be lowered either. Whoever can write to it can run code in your program:
            trust it as you trust the program. Delete it to clear it. If left out, JAX's own settings hold.
        sched_batch: Where JAX is told to use the CPU only (`cpus`, `gpus=0`, `JAX_PLATFORMS=cpu`), whether the threads
            of this process, and all that they start, get Linux's scheduling policy SCHED_BATCH: a woken thread does
            not preempt the one that woke it. Steps are faster where devices outnumber cores, but those of several
            processes are slower where other programs keep all cores busy. If left out, what `MMRUNTIME_SCHED_BATCH`
            says, 0 or 1, or yes. On other systems, and where a sandbox forbids it, nothing happens.
        progress: Whether the first call of a step that takes more than three seconds says on standard error what it is
            doing: a line that is written over on a terminal, one every five seconds elsewhere. If left out, what
            `MMRUNTIME_PROGRESS` says, 0 or 1, or yes.
        one_device_fallback: Whether a program whose mesh needs more devices than there are runs as the one-device
            program, as inside `mm.ignore_transforms()`, and says so in one line; else that is an error.
            `MMRUNTIME_ONE_DEVICE_FALLBACK`, 0 or 1, goes before what is written here: whoever starts the program knows
            the machine. No, if both are left out. Not for several processes.

    Raises:
        RuntimeError: If JAX was used before, so that `cpus`, `gpus` or `dump` would come too late.
        TypeError: If something is of another type.
        ValueError: If `cpus`, `gpus` or `fault_timeout` is negative, there is no such transport, or what the launcher
            or a variable has set is malformed or not enough.

    Warns:
        UserWarning: If arguments without effect are given; it names them.
    """
    given_idle = {name: value for name, value in locals().items() if name in _WITHOUT_EFFECT}
    idle = [name for name, value in given_idle.items() if value != _WITHOUT_EFFECT[name]]
    if idle:
        warn(
            f"init: {', '.join(idle)} configured MultiMesh's own runtime and have no effect here: JAX manages memory, "
            "networks and threads itself. Leave them out."
        )
    cpus = _check.optional_integer("init", "cpus", cpus, 0)
    gpus = _check.optional_integer("init", "gpus", gpus, 0)
    if dump is not None:
        _check.text("init", "dump", dump)
    _check.flag("init", "dump_all_passes", dump_all_passes)
    choices = {"sched_batch": sched_batch, "progress": progress, "one_device_fallback": one_device_fallback}
    for name, choice in choices.items():
        if choice is not None:
            _check.flag("init", name, choice)
    allow_one_device(one_device_fallback)
    batch = wants_batch(sched_batch, os.environ)
    show_progress(progress)
    arguments = ProcessArguments(
        distributed,
        coordinator_address,
        num_processes,
        process_id,
        local_device_ids,
        cluster_detection_method,
        initialization_timeout,
        coordinator_bind_address,
        fault_timeout,
    ).checked()
    if transport is not None:
        os.environ[VARIABLE] = check_transport("init: transport", _check.text("init", "transport", transport))
    if cache is not None:
        _set_cache(cache)
    _set_dump(dump, dump_all_passes)
    start_processes(arguments, os.environ, cpus=cpus, gpus=gpus, batch=batch)


@_compat.api_boundary
def init_test() -> None:
    """`init` with what the command line of a test says, as MultiMesh's own tests are run.

    The options are `--cpus N`, `--gpus N`, `--network NAME`, `--debug LEVEL`, `--kthreads`, `--dump` (to the folder
    `dump`) and `--dump-all-passes`. They are taken out of `sys.argv`, so that a test runner sees the rest.

    Raises:
        SystemExit: If an option has no number where it needs one.
        RuntimeError: If JAX was used before.

    Warns:
        UserWarning: If options without effect are given; it names them.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--cpus", type=int)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--network", default="none")
    parser.add_argument("--debug", choices=["info", "debug", "spew"])
    for switch in ("--kthreads", "--dump", "--dump-all-passes"):
        parser.add_argument(switch, action="store_true")
    found, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    options = vars(found)
    init(**{**options, "dump": "dump" if options["dump"] else None})


def _set_cache(cache: str | os.PathLike[str]) -> None:
    if not isinstance(cache, str | os.PathLike) or not os.fspath(cache):
        raise _check.wrong("init", "cache", "the path of a folder", cache)
    # A relative path would be another folder after `os.chdir`; `gs://...` and the like are JAX's to read.
    folder = os.fspath(cache)
    folder = folder if "://" in folder else os.path.abspath(os.path.expanduser(folder))
    # JAX decides once whether it has a cache, when it first compiles.
    reset_cache()
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _set_dump(dump: str | None, dump_all_passes: bool) -> None:
    if dump is None:
        if dump_all_passes:
            warn("init: dump_all_passes has no effect without dump=.")
        return
    if _compat.backends_started():
        raise RuntimeError(
            f"init: dump={dump!r} comes too late, JAX has started. Call mm.init first, or set XLA_FLAGS=--xla_dump_to="
            f"{dump} in the environment."
        )
    flags = [f"--xla_dump_to={dump}", *(["--xla_dump_hlo_pass_re=.*"] if dump_all_passes else [])]
    os.environ["XLA_FLAGS"] = " ".join([*filter(None, [os.environ.get("XLA_FLAGS")]), *flags])
