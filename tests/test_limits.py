"""Programs of the user are run within bounds, and nothing that they have started is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmrewrite.mirror.child_process import NotRun, environment, run_module
from mmrewrite.mirror.limits import EndedProgram, ProgramLimits, program_limits, run_within


def run(program: str, limits: ProgramLimits) -> EndedProgram:
    return run_within([sys.executable, "-c", program], os.environ, limits)


def test_a_program_within_them() -> None:
    found = run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)", ProgramLimits())
    assert (found.status, found.stdout.strip(), found.stderr.strip(), found.ended) == (3, "out", "err", None)


def test_standard_input_is_empty() -> None:
    assert (
        run("print(repr(input()) if 0 else repr(__import__('sys').stdin.read()))", ProgramLimits()).stdout.strip()
        == "''"
    )


@pytest.mark.parametrize("devices", [None, 2])
def test_programs_do_not_look_for_other_processes(monkeypatch: pytest.MonkeyPatch, devices: int | None) -> None:
    """Those of the job that this command is run in would never come."""
    for name, value in (("JAX_COORDINATOR_ADDRESS", "far:1"), ("JAX_NUM_PROCESSES", "4"), ("JAX_PROCESS_ID", "3")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    kept = environment(devices)
    assert kept["JAX_ENABLE_X64"] == "1"
    assert not {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"} & kept.keys()


def test_time() -> None:
    found = run("import time; print('begun', flush=True); time.sleep(60)", ProgramLimits(seconds=1))
    assert (found.ended, found.stdout.strip()) == ("it ran for more than 1 s", "begun")


def test_output() -> None:
    found = run("import sys\nwhile True: sys.stderr.write('x' * 10000)", ProgramLimits(seconds=60, output=100_000))
    assert (found.ended, len(found.stderr)) == ("it wrote more than 0.1 MB", 100_000)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_memory() -> None:
    found = run(
        "x = bytearray(300_000_000)\nimport time; time.sleep(60)", ProgramLimits(seconds=60, memory=200_000_000)
    )
    assert found.ended == "it took more than 0.2 GB of memory"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_memory_of_what_it_has_started() -> None:
    child = "x = bytearray(150_000_000); import time; time.sleep(60)"
    start = f"import subprocess, sys; both = [subprocess.Popen([sys.executable, '-c', {child!r}]) for _ in 'ab']"
    found = run(f"{start}\nimport time; time.sleep(60)", ProgramLimits(seconds=60, memory=250_000_000))
    assert found.ended == "it took more than 0.25 GB of memory"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_memory_that_forks_share_counts_once() -> None:
    program = "x = bytearray(b'x') * 150_000_000\nimport os, time\nfor _ in 'abc': os.fork()\ntime.sleep(2)"
    assert run(program, ProgramLimits(seconds=60, memory=400_000_000)).ended is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_memory_is_bounded_by_default() -> None:
    memory = program_limits(1, None, 1).memory
    assert memory is not None
    assert 10**8 < memory < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert program_limits(1, 2, 1).memory == 2 * 10**9


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX")
def test_what_it_has_started_ends_with_it(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time; time.sleep(3); open({str(mark)!r}, 'w')"
    run(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])", ProgramLimits())
    # Its end is all that could write the mark, and it is dead before `run` returns.
    time.sleep(3.5)
    assert not mark.exists()


def test_the_message_names_the_options() -> None:
    with pytest.raises(NotRun, match=r"the program was ended: it ran for more than 0.001 s; --time-limit, "):
        run_module(
            "_commands.verify", ["a:b", "a:c"], [], dict(os.environ), "the program", ProgramLimits(seconds=0.001)
        )


@pytest.mark.skipif(os.name != "posix", reason="POSIX has these signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_program_and_its_files_go_with_a_run_that_is_told_to_end(tmp_path: Path, name: str) -> None:
    program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'x').write(str(os.getpid())); time.sleep(60)"
    # A terminal's `nohup` has it ignored, by all that it starts.
    run = (
        "import os, signal, sys, tempfile\n"
        f"signal.signal(signal.{name}, signal.SIG_DFL)\n"
        "from mmrewrite.mirror.limits import USUAL, run_within\n"
        "with tempfile.TemporaryDirectory(dir=sys.argv[2]):\n"
        "    run_within([sys.executable, '-c', sys.argv[1]], os.environ, USUAL)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", run, program, str(tmp_path)], env=environment) as parent:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert parent.poll() is None
            time.sleep(0.05)
        number = getattr(signal, name)
        parent.send_signal(number)
        assert parent.wait(20) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert [path.name for path in tmp_path.iterdir()] == ["pid"]
