"""Real processes that find each other, started by `mmrewrite run` and by hand."""

import os
import socket
import subprocess
import sys

PROGRAM = """
import os, sys
import mmruntime as mm

if sys.argv[1:] == ["own"]:
    import jax
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"], int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
    )
    mm.init()
elif sys.argv[1:] == ["mesh"]:
    # A program as `mmrewrite` writes it.
    mm.MultiMesh(axis_sizes=(4,), axis_names=("x",))
else:
    # Written for one process; the launcher knows better.
    mm.init(cpus=8)
mm.init()
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
rows = jax.make_array_from_callback((8,), NamedSharding(mesh, P("x")), lambda index: np.arange(8.0)[index])
total = jax.jit(lambda rows: rows.sum())(rows)
threads = os.environ.get("PJRT_NPROC", "")

def is_batch(thread):
    try:
        return os.sched_getscheduler(int(thread)) == os.SCHED_BATCH
    except ProcessLookupError:  # it has ended
        return True

batch = not hasattr(os, "SCHED_BATCH") or all(map(is_batch, os.listdir("/proc/self/task")))
enough = threads.isdigit() and int(threads) >= 4
print("job", jax.process_count(), jax.local_device_count(), float(total), enough, "batch" if batch else "other")
"""


def run(tmp_path, *arguments):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "mmrewrite", "run", "--processes", "2", "--devices-per-process", "2", "--"]
    result = subprocess.run(
        [*command, sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return sorted(line for line in result.stdout.splitlines() if "job" in line)


def test_a_rewritten_program_joins_its_processes_by_itself(tmp_path):
    """It is the same for one process and several: nothing of `mm.init` stands in it."""
    assert run(tmp_path, "mesh") == ["[0] job 2 2 28.0 True batch", "[1] job 2 2 28.0 True batch"]


def test_processes_of_our_launcher(tmp_path):
    assert run(tmp_path) == ["[0] job 2 2 28.0 True batch", "[1] job 2 2 28.0 True batch"]


def test_after_the_users_own_initialize(tmp_path):
    # What it chose for the CPU stays; the scheduling policy is set for the threads that it has started, too.
    assert run(tmp_path, "own") == ["[0] job 2 2 28.0 False batch", "[1] job 2 2 28.0 False batch"]


def test_a_process_that_does_not_come():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    program = f"import mmruntime as mm; mm.init(coordinator_address={address!r}, num_processes=2, process_id=0, "
    program += "initialization_timeout=1)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False, env={**os.environ}
    )
    assert result.returncode != 0
    expected = f"init: process 0 of 2 (mm.init) still waits for all processes to reach {address}. Do all of them run"
    assert expected in result.stderr, result.stderr
