"""`mmrewrite run`: output by process, how a job ends, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from mmrewrite.launch.environment import environments
from mmrewrite.launch.lines import LONGEST, Lines

pytestmark = pytest.mark.skipif(os.name != "posix", reason="`mmrewrite run` needs process groups")

# Runs a job as the command does, with little patience, and ends with a line of JSON about it.
DRIVER = """
import json, os, sys
from mmrewrite.launch.environment import environments, free_port
from mmrewrite.launch.job import Job, Patience
command, count = sys.argv[2:], int(sys.argv[1])
def write(index, is_error, line):
    sys.stdout.write(f"[{index}] {line.decode()}\\n"); sys.stdout.flush()
job = Job(command, environments(os.environ, count, None, free_port(), 0), write, Patience(0.2, 2.0, 0.3, 1.5))
outcome = job.run()
print(json.dumps([outcome.status, outcome.blamed, outcome.reason, outcome.interrupted, outcome.lost]))
"""
PROGRAM = "import os, sys, time, signal, subprocess\nme = int(os.environ['JAX_PROCESS_ID'])\n"


@pytest.fixture
def program(tmp_path):
    """Writes a program, which knows its index as `me`, and returns the command that runs it."""

    def write(text: str) -> list[str]:
        path = tmp_path / "program.py"
        path.write_text(PROGRAM + textwrap.dedent(text))
        return [sys.executable, "-S", str(path)]

    return write


def run(*arguments: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mmrewrite", "run", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **environment},
    )


# Lets every process end between the two looks that the launcher takes at them.
ENDS_BETWEEN = """
from mmrewrite.launch.job import Job
look = Job._look_for_sleepers
def look_late(self, now):
    for process in self._processes:
        os.waitid(os.P_PID, process.popen.pid, os.WEXITED | os.WNOWAIT)
    look(self, now)
Job._look_for_sleepers = look_late
"""


def drive(command: list[str], count: int, driver: str = DRIVER) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", driver, str(count), *command], stdout=subprocess.PIPE, text=True)


def outcome_of(driver: subprocess.Popen[str]) -> tuple[list[str], list[object]]:
    output, _ = driver.communicate(timeout=60)
    *lines, last = output.splitlines()
    return lines, json.loads(last)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether a process has ended, within a few seconds; a zombie has."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.M):
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


def test_every_line_begins_with_its_process_and_is_whole(program):
    command = program(
        """
        for line in range(200):
            os.write(1, f"{me}:{line}:".encode()); os.write(1, b"x" * 300); os.write(1, b"\\n")
        sys.stderr.write(f"error of {me}\\n")
        sys.stdout.write("no newline")
        """
    )
    result = run("--processes", "3", "--", *command)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for process in range(3):
        ours = [line.removeprefix(f"[{process}] ") for line in lines if line.startswith(f"[{process}] ")]
        assert ours == [*(f"{process}:{line}:{'x' * 300}" for line in range(200)), "no newline"]
    assert len(lines) == 603
    assert sorted(result.stderr.splitlines()) == [f"[{process}] error of {process}" for process in range(3)]


def test_what_each_process_is_told(program):
    names = ["JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS"]
    command = program(f"print(*[os.environ.get(name) for name in {[*names, 'XLA_FLAGS']!r}])")
    flags = "--xla_force_host_platform_device_count=8 --xla_a=1"
    # Ten processes, so that their numbers are aligned.
    result = run("--processes", "10", "--devices-per-process", "2", *command, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
    assert result.stderr == "mmrewrite run: 10 processes with 2 virtual CPU devices each.\n"
    told = sorted(line.split() for line in result.stdout.replace("[ ", "[").splitlines())
    addresses = {words[1] for words in told}
    assert len(addresses) == 1 and re.fullmatch(r"127\.0\.0\.1:\d+", addresses.pop())
    assert [words[0] for words in told] == [f"[{index}]" for index in range(10)]
    assert [words[2:] for words in told] == [["10", str(index), "2", "cpu", "--xla_a=1"] for index in range(10)]


def test_gpus_are_dealt_out():
    told = environments({"JAX_PLATFORMS": "cuda,cpu"}, 2, 4, 1, 0)
    assert [each["JAX_LOCAL_DEVICE_IDS"] for each in told] == ["0,1,2,3", "4,5,6,7"]
    assert all("JAX_NUM_CPU_DEVICES" not in each for each in told)
    assert "JAX_LOCAL_DEVICE_IDS" not in environments({"JAX_PLATFORMS": "cuda"}, 2, None, 1, 0)[0]


def test_the_one_that_fails_has_the_last_word_and_its_status(program):
    command = program(
        """
        if me == 1:
            print("about to fail"); sys.exit("a bad batch")
        if me == 0:
            time.sleep(0.3); sys.exit(75)
        signal.signal(signal.SIGTERM, lambda *_: (print("told to end"), os._exit(0)))
        time.sleep(60)
        """
    )
    driver = drive(command, 3)
    lines, outcome = outcome_of(driver)
    assert "[2] told to end" in lines
    assert outcome == [1, 1, "ended with status 1", None, 0]
    result = run("--processes", "2", "--", *program("me == 1 and sys.exit('a bad batch'); time.sleep(0.5)"))
    assert result.returncode == 1
    assert result.stderr.splitlines()[-2:] == [
        "mmrewrite run: process 1 ended with status 1; the others were ended. Its last lines:",
        "[1] a bad batch",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("sys.exit(3)", [3, 0, "ended with status 3", None, 0], id="status"),
        pytest.param("os.kill(os.getpid(), 9)", [137, 0, "was killed by SIGKILL", None, 1], id="kill"),
        pytest.param("os.abort()", [134, 0, "was killed by SIGABRT", None, 1], id="abort"),
        # Status 75 is what a process says that ends because of another one.
        pytest.param("time.sleep(0.1); sys.exit(75)", [75, 0, "ended with status 75", None, 0], id="peers"),
        # Nobody but SIGKILL ends this one.
        pytest.param(
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif me == 0: time.sleep(0.2); sys.exit(4)\ntime.sleep(60)",
            [4, 0, "ended with status 4", None, 0],
            id="stubborn",
        ),
        pytest.param(
            "if me == 0: time.sleep(0.2); sys.exit(4)\nos.kill(os.getpid(), signal.SIGSTOP)",
            [4, 0, "ended with status 4", None, 0],
            id="stopped",
        ),
    ],
)
def test_how_a_job_ends_badly(program, text, expected):
    began = time.monotonic()
    _, outcome = outcome_of(drive(program(text), 2 if "if me" in text else 1))
    assert outcome == expected
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("status", [0, 3])
def test_processes_that_end_while_the_launcher_looks_at_them(program, status):
    command = program(f"print('hello'); sys.exit({status})")
    lines, outcome = outcome_of(drive(command, 2, "import os\n" + ENDS_BETWEEN + DRIVER))
    assert sorted(lines) == ["[0] hello", "[1] hello"]
    assert outcome[0] == status


def test_one_that_stays_stopped_when_the_others_have_ended(program):
    command = program("me == 1 and os.kill(os.getpid(), signal.SIGSTOP); print('awake')")
    lines, outcome = outcome_of(drive(command, 2))
    assert lines == ["[0] awake"]
    assert outcome == [147, 1, "was stopped for 2 s when others had ended", None, 0]


def test_one_that_is_stopped_for_a_while_only(program, tmp_path):
    # Stopped twice for a second, which is less than the limit each time and more than it in all.
    command = program(
        f"""
        if me == 1:
            for turn in range(2):
                open({str(tmp_path)!r} + f"/{{turn}}", "w").write(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(0.7)
            print("awake")
        """
    )
    driver = drive(command, 2)
    for turn in range(2):
        wait_for(tmp_path / str(turn))
        time.sleep(1)
        os.kill(int((tmp_path / str(turn)).read_text()), signal.SIGCONT)
    lines, outcome = outcome_of(driver)
    assert lines == ["[1] awake"]
    assert outcome == [0, None, "", None, 0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_and_their_children(program, tmp_path, number):
    started = [tmp_path / str(index) for index in range(2)]
    command = program(
        f"""
        def ignore():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "60"], preexec_fn=ignore)
        try:
            open({str(tmp_path)!r} + f"/{{me}}", "w").write(f"{{os.getpid()}} {{child.pid}}")
            time.sleep(60)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    driver = drive(command, 2)
    for path in started:
        wait_for(path)
    driver.send_signal(number)
    lines, outcome = outcome_of(driver)
    assert outcome == [128 + number, None, "", number, 0]
    assert (sorted(lines) == ["[0] interrupted", "[1] interrupted"]) == (number == signal.SIGINT)
    assert all(gone(int(pid)) for path in started for pid in path.read_text().split())


def test_ctrl_c_shows_no_tracebacks_of_children(program, tmp_path):
    command = program(
        f"""
        try:
            try:
                open({str(tmp_path)!r} + f"/{{me}}", "w").write("started")
                time.sleep(60)
            finally:
                print("saved", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            if me == 0:
                raise
            raise RuntimeError("of another kind")
        """
    )
    driver = drive(command, 2)
    for index in range(2):
        wait_for(tmp_path / str(index))
    driver.send_signal(signal.SIGINT)
    lines, outcome = outcome_of(driver)
    assert outcome == [130, None, "", signal.SIGINT, 0]
    assert [line for line in lines if line.startswith("[0]")] == ["[0] saved"]
    assert [line for line in lines if line.startswith("[1]")][-1] == "[1] RuntimeError: of another kind"
    assert not any(line.endswith("KeyboardInterrupt") for line in lines)


def test_what_a_finished_process_left_is_ended(program, tmp_path):
    text = "import time; print('from a child', flush=True); time.sleep(60)"
    command = program(
        f"""
        child = subprocess.Popen([sys.executable, "-S", "-c", {text!r}])
        open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
        time.sleep(0.3)
        """
    )
    lines, outcome = outcome_of(drive(command, 1))
    assert (lines, outcome) == (["[0] from a child"], [0, None, "", None, 0])
    assert gone(int((tmp_path / "child").read_text()))


def test_nothing_is_left_when_the_launcher_is_killed(program, tmp_path):
    command = program(
        f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
        time.sleep(60)
        """
    )
    driver = drive(command, 1)
    wait_for(tmp_path / "pids")
    driver.kill()
    driver.communicate()
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_a_reader_that_leaves_ends_the_job(program, tmp_path):
    command = program(
        f"""
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        while True: print("line"); time.sleep(0.01)
        """
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", "mmrewrite", "run", "--processes", "1", "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert launcher.stdout is not None and launcher.stderr is not None
    launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.stderr.read() == b""
    assert launcher.wait(timeout=30) == 141
    launcher.stderr.close()
    assert gone(int((tmp_path / "pid").read_text()))


def test_restarts_until_it_ends_well(program, tmp_path):
    command = program(
        f"""
        folder = {str(tmp_path)!r}
        restart = int(os.environ["MMREWRITE_RESTART"])
        done = len(os.listdir(folder))
        print(restart, os.environ["JAX_NUM_PROCESSES"])
        if me == 0 and restart == 0: os.kill(os.getpid(), 9)
        if me == 0 and restart == 1: sys.exit(7)
        """
    )
    result = run("--processes", "3", "--max-restarts", "5", "--min-processes", "1", "--", *command)
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stderr.splitlines() if "starting again" in line]
    # A process that was killed is lost; one that failed is not.
    assert said == [
        "mmrewrite run: starting again with 2 processes; 4 restarts left after this one.",
        "mmrewrite run: starting again with 2 processes; 3 restarts left after this one.",
    ]
    assert {"[0] 0 3", "[0] 1 2", "[0] 2 2", "[1] 2 2"} <= set(result.stdout.splitlines())
    result = run("--processes", "1", "--max-restarts", "1", "--min-processes", "1", "--", *program("os.abort()"))
    assert result.returncode == 134
    assert result.stderr.count("was killed by SIGABRT; it was the only one") == 2


def test_one_of_each_is_said_in_the_singular(program):
    command = ["--processes", "1", "--devices-per-process", "1", "--max-restarts", "2", "--", *program("sys.exit(7)")]
    result = run(*command, JAX_PLATFORMS="cpu")
    assert result.returncode == 7
    ended = "process 0 ended with status 7; it was the only one. It wrote nothing."
    assert [line.removeprefix("mmrewrite run: ") for line in result.stderr.splitlines()] == [
        "1 process with 1 virtual CPU device.",
        ended,
        "starting again with 1 process; 1 restart left after this one.",
        ended,
        "starting again with 1 process; 0 restarts left after this one.",
        ended,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes", "2", "--", "nothing-of-that-name"], "There is no command 'nothing-of-that-name'"),
        (["--processes", "0", "--", "true"], "Invalid value for '--processes'"),
        (["--", "true"], "Missing option '--processes'"),
        (["--processes", "2"], "Missing argument 'COMMAND"),
        (["--processes", "2", "--max-restarts", "1", "--min-processes", "3", "true"], "is more than --processes 2"),
        (["--processes", "2", "--min-processes", "1", "true"], "--min-processes is about restarts"),
    ],
)
def test_mistakes(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr


def test_the_launcher_needs_no_jax():
    text = "import sys, mmrewrite.cli.run; assert not {'jax', 'libcst', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0


def fed(*writes: tuple[float, bytes]) -> list[bytes]:
    lines = Lines()
    found = [line for now, data in writes for line in lines.feed(data, now)]
    return [*found, *lines.end()]


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ([b"a\nb", b"c\n", b"d"], [b"a", b"bc", b"d"]),
        ([b"a\r\nb\r", b"\nc"], [b"a", b"b", b"c"]),
        ([b"\n\n a \n"], [b"", b"", b" a "]),
        ([b"x" * (2 * LONGEST + 1)], [b"x" * LONGEST, b"x" * LONGEST, b"x"]),
        ([b"\r 1%\r 2%", b"\r 3%\n", b"next\n"], [b" 2%", b" 3%", b"next"]),
        ([b"\r 1%\r 2%\r    \r"], [b" 2%"]),
        ([b"\r 1%", b"\n"], [b" 1%"]),
        ([b"\xff\x00\n"], [b"\xff\x00"]),
    ],
)
def test_lines(writes, expected):
    assert fed(*[(10.0, data) for data in writes]) == expected


def test_a_progress_bar_is_shown_once_a_second():
    states = [(10 + number / 10, b"\r%3d%%" % number) for number in range(101)]
    found = fed(*states, (20.2, b"\n"))
    assert found == [b"%3d%%" % number for number in [*range(0, 100, 10), 100]]


def test_no_byte_is_lost_however_output_is_cut():
    text = b"".join(b"line %d\n" % number for number in range(50))
    for size in (1, 2, 3, 7, 64):
        pieces = [(0.0, text[start : start + size]) for start in range(0, len(text), size)]
        assert b"".join(line + b"\n" for line in fed(*pieces)) == text
