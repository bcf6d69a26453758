"""`mm.init`: what it sets, when that is too late, and what it says has no effect."""

import os
import socket
import subprocess
import sys

import jax
import pytest

import mmruntime as mm
from mmruntime._processes import scheduling

pytestmark = pytest.mark.family


def run(program: str, **environment: str) -> str:
    """Run a program in a fresh interpreter, without device counts in the environment."""
    clean = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env={**clean, **environment},
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_virtual_devices_after_jax_was_imported(tmp_path) -> None:
    program = (
        "import jax, mmruntime as mm\n"
        f"mm.init(cpus=4, dump={str(tmp_path)!r})\n"
        "print(len(jax.devices()), jax.devices()[0].platform, jax.distributed.is_initialized())\n"
        "mm.init(cpus=4)\n"
        "jax.jit(lambda x: x + 1)(1)\n"
    )
    flags = "--xla_force_host_platform_device_count=2"
    assert run(program, XLA_FLAGS=flags) == "4 cpu False"
    assert any(tmp_path.iterdir())


def test_options_of_a_test_are_taken_from_its_command_line() -> None:
    program = (
        "import sys, mmruntime as mm, jax\n"
        "sys.argv = ['a_test', '--cpus', '2', '--verbose', '--gpus=0', 'TaskTest.test_add']\n"
        "mm.init_test()\n"
        "print(len(jax.devices()), sys.argv)\n"
        "sys.argv = ['a_test', '--network', 'ucx', '--kthreads', '--debug', 'info']\n"
        "mm.init_test()\n"
    )
    with pytest.raises(AssertionError, match=r"UserWarning: init: debug, network, kthreads configured"):
        run(program)
    assert run(program[: program.rindex("sys.argv = ")]) == "2 ['a_test', '--verbose', 'TaskTest.test_add']"


def test_a_cache_keeps_short_programs_from_then_on(tmp_path) -> None:
    program = (
        "import jax, mmruntime as mm\n"
        "jax.jit(lambda x: x + 1)(1)\n"
        "mm.init(cache='programs')\n"
        "jax.jit(lambda x: x + 2)(1)\n"
        "print(jax.config.jax_compilation_cache_dir)\n"
    )
    home = f"import os\nos.chdir({str(tmp_path)!r})\n"
    assert run(home + program, JAX_PLATFORMS="cpu") == str(tmp_path / "programs")
    assert [path.name.split("-")[0] for path in (tmp_path / "programs").glob("*-cache")] == ["jit__lambda"]


@pytest.mark.parametrize("cache", ["", 1, True, b"programs"])
def test_a_cache_that_is_no_folder(cache) -> None:
    with pytest.raises(TypeError, match=r"init: cache must be the path of a folder, got"):
        mm.init(cache=cache)


def test_starts_distributed_when_told_to() -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    program = (
        "import mmruntime as mm, jax\n"
        f"mm.init(cpus=2, coordinator_address='localhost:{port}', num_processes=1, process_id=0)\n"
        "print(jax.distributed.is_initialized(), jax.process_count(), jax.device_count())\n"
    )
    assert run(program) == "True 1 2"


def test_says_what_has_no_effect() -> None:
    with pytest.warns(UserWarning, match=r"init: fbmem, network configured MultiMesh's own runtime and have no effect"):
        mm.init(cpus=8, fbmem=4000, network="ucx")
    with pytest.warns(UserWarning, match=r"dump_all_passes has no effect without dump="):
        mm.init(dump_all_passes=True)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        pytest.param(
            {"cpus": 4},
            RuntimeError,
            r"init: cpus=4 comes too late, JAX has started with 8 CPU devices. .*device_count=4 in the environment",
            id="cpus",
        ),
        pytest.param({"dump": "d"}, RuntimeError, r"init: dump='d' comes too late, JAX has started", id="dump"),
        pytest.param({"cpus": -1}, ValueError, r"init: cpus must be an integer, 0 or more, got -1", id="negative"),
        pytest.param({"cpus": "8"}, TypeError, r"init: cpus must be an integer, 0 or more, got '8'", id="text"),
        pytest.param({"gpus": 1.5}, TypeError, r"init: gpus must be an integer, 0 or more, got 1\.5", id="float"),
        pytest.param({"dump": 3}, TypeError, r"init: dump must be a non-empty string, got 3", id="number"),
        pytest.param(
            {"coordinator_address": "node1"},
            ValueError,
            r"init: coordinator_address must be host:port, such as node1:12345, got 'node1'",
            id="no_port",
        ),
        pytest.param(
            {"num_processes": 2, "process_id": 2},
            ValueError,
            r"init: process_id=2, but with num_processes=2 they go from 0 to 1",
            id="index",
        ),
        pytest.param(
            {"fault_timeout": -1}, ValueError, r"init: fault_timeout must be a number .* got -1", id="timeout"
        ),
        pytest.param(
            {"fault_timeout": "a"}, TypeError, r"init: fault_timeout must be a number of s.*'a'", id="seconds"
        ),
        pytest.param(
            {"distributed": "mpi"}, TypeError, r"init: distributed must be True or False, got 'mpi'", id="flag"
        ),
        pytest.param({"sched_batch": 1}, TypeError, r"init: sched_batch must be True or False, got 1", id="policy"),
    ],
)
def test_mistakes(arguments, error, message) -> None:
    jax.devices()
    with pytest.raises(error, match=message):
        mm.init(**arguments)


def test_what_is_there_already_is_accepted() -> None:
    mm.init(cpus=len(jax.devices()))
    mm.init()
    mm.init(gpus=0)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has this policy")
def test_threads_get_the_policy_of_programs_that_compute(monkeypatch) -> None:
    given = []
    threads = {"1": os.SCHED_OTHER, "2": os.SCHED_BATCH, "3": os.SCHED_FIFO, "4": None, "5": os.SCHED_OTHER}

    def policy_of(thread):
        policy = threads[str(thread or 5)]
        if policy is None:
            raise ProcessLookupError
        return policy

    def give(thread, policy, parameters):
        given.append((thread, policy, parameters.sched_priority))
        threads[str(thread)] = policy

    monkeypatch.setattr(scheduling.os, "listdir", lambda _: list(threads))
    monkeypatch.setattr(scheduling.os, "sched_getscheduler", policy_of)
    monkeypatch.setattr(scheduling.os, "sched_setscheduler", give)
    for left_alone in ({"sched_batch": False}, {}):
        monkeypatch.setenv("MMRUNTIME_SCHED_BATCH", "1" if left_alone else "0")
        mm.init(**left_alone)
        assert not given
    # The argument comes before the variable. Another policy than the default was chosen by somebody.
    mm.init(sched_batch=True)
    assert given == [(1, os.SCHED_BATCH, 0), (5, os.SCHED_BATCH, 0)]
    monkeypatch.setenv("MMRUNTIME_SCHED_BATCH", "yes")
    with pytest.raises(ValueError, match=r"init: MMRUNTIME_SCHED_BATCH must be 0 or 1, got 'yes'"):
        mm.init()


def test_a_policy_that_cannot_be_had_is_no_error(monkeypatch) -> None:
    if hasattr(os, "SCHED_BATCH"):

        def forbidden(*_):
            raise PermissionError

        monkeypatch.setattr(scheduling.os, "sched_getscheduler", lambda _: os.SCHED_OTHER)
        monkeypatch.setattr(scheduling.os, "sched_setscheduler", forbidden)
        assert not scheduling.schedule_as_batch()
        monkeypatch.delattr(os, "SCHED_BATCH")
    assert not scheduling.schedule_as_batch()
    mm.init()
