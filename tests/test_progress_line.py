"""The line on a terminal that says how far a run is."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from command import HINTED, OLD, put, run

from mmrewrite.cli.terminal import progress
from mmrewrite.cli.terminal.progress import StatusLine
from mmrewrite.mirror.limits import ProgramLimits, run_within

pytestmark = pytest.mark.usefixtures("folder")

ERASE = "\r\x1b[K"
# The command with a line from its beginning on; the arguments follow.
AT_ONCE = (
    "import mmrewrite.cli.terminal.progress as p; p._AFTER = p._EVERY = 0; "
    "from mmrewrite.cli.commands import cli; cli()"
)
MAIN = "from mmrewrite.__main__ import main; main()"


class Terminal(io.StringIO):
    """Standard error at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error, where the line appears at once."""
    found = Terminal()
    # Not sys.stderr itself, which pytest puts back before the test begins.
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=found))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("_AFTER", "_EVERY", "_LOG_AFTER", "_LOG_EVERY"):
        monkeypatch.setattr(progress, name, 0)
    monkeypatch.delenv(progress.VARIABLE)
    return found


def test_a_bar_says_how_much_is_done(terminal: Terminal) -> None:
    line = StatusLine()
    with line.erased_at_end():
        assert list(line.track("Reading", "abcd", 4)) == list("abcd")
    *states, last, end = terminal.getvalue().split("\r")
    assert end == "\x1b[K"
    assert last.startswith("Reading [==================>     ] 3/4 0 s")
    assert all(len(state.removesuffix("\x1b[K")) < 80 for state in states)


def test_a_count_where_nobody_knows_how_many(terminal: Terminal) -> None:
    line = StatusLine()
    assert len(list(line.track("Reading files", range(1_235), None))) == 1_235
    assert "Reading files 1,234 0 s" in terminal.getvalue()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers of POSIX")
def test_one_item_may_take_long(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_AFTER", 0.05)
    monkeypatch.setattr(progress, "_EVERY", 0.05)
    line = StatusLine()
    handler = signal.getsignal(signal.SIGALRM)
    with line.erased_at_end():
        for _ in line.track("Rewriting", ["one"], 1):
            time.sleep(0.5)
    states = [state for state in terminal.getvalue().split("\r") if state.startswith("Rewriting [>")]
    assert 3 <= len(states) <= 11
    assert terminal.getvalue().endswith(ERASE)
    assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_nothing_within_the_first_second(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_AFTER", 1e6)
    line = StatusLine()
    with line.erased_at_end(), line.phase("verify"):
        assert list(line.track("Reading", "abcd", 4)) == list("abcd")
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("width", ["20", "40"])
def test_it_stays_on_one_line(width: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    line = StatusLine()
    list(line.track("A long name of something that is done", "ab", 2))
    states = terminal.getvalue().replace("\x1b[K", "").split("\r")
    assert states[-1].endswith("... 0 s") and all(len(state) < int(width) for state in states)


@pytest.mark.parametrize("where", ["quiet", "switched off"])
def test_nobody_who_did_not_ask_sees_it(where: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "switched off":
        monkeypatch.setenv(progress.VARIABLE, "0")
    line = StatusLine(quiet=where == "quiet")
    with line.erased_at_end(), line.phase("verify"):
        list(line.track("Reading", "ab", 2))
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("where", ["dumb", "no terminal"])
def test_a_log_has_a_line_now_and_then(where: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test: nothing in three seconds, then a line every five."""
    monkeypatch.undo()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=terminal))
    monkeypatch.delenv(progress.VARIABLE)
    monkeypatch.setenv("TERM", where)
    if where == "no terminal":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    now = 0.0
    line = StatusLine(clock=lambda: now)
    for number in line.track("Rewriting", range(100), 100):
        now = number + 1.0
    said = terminal.getvalue().splitlines()
    assert said[:3] == [
        "mmrewrite: Rewriting 3/100 (3 s)",
        "mmrewrite: Rewriting 8/100 (8 s)",
        "mmrewrite: Rewriting 13/100 (13 s)",
    ]
    assert [int(each.split()[2].split("/")[0]) for each in said] == [*range(3, 100, 5)]
    # What comes between two counts is not silent either.
    now = 200.0
    line._draw_state()
    assert terminal.getvalue().splitlines()[-1] == "mmrewrite: Rewriting 100/100 (200 s)"


def test_a_phase_says_what_is_done_of_it(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with StatusLine().phase("the program") as tell:
        for text in ("importing train", "compiling"):
            tell(text)
            seen = len(terminal.getvalue())
            while f": {text} (" not in terminal.getvalue()[seen:]:
                time.sleep(0.01)
    assert "mmrewrite: the program: compiling (0 s)\n" in terminal.getvalue() and "\x1b" not in terminal.getvalue()


@pytest.mark.skipif(os.name != "posix", reason="pipes are handed on by number")
def test_what_a_slow_child_says_is_handed_on_while_it_runs() -> None:
    says = (
        "import os, sys, time; end = int(sys.argv[-1]); os.write(end, b'one\\ntwo\\nthr')\n"
        "time.sleep(0.5); os.write(end, b'ee\\n' + b'x' * 200_000)\ntime.sleep(0.5)"
    )
    heard: list[tuple[str, float]] = []
    began = time.monotonic()
    ended = run_within(
        [sys.executable, "-c", says], os.environ, ProgramLimits(), lambda text: heard.append((text, time.monotonic()))
    )
    # A pipe that is full does not stop the child, which may be told so by an error.
    assert [text for text, _ in heard] == ["two", "three"] and time.monotonic() - began < 60
    assert heard[1][1] - heard[0][1] > 0.2 and ended.ended is None
    assert "--progress" not in run_within(["echo"], os.environ, ProgramLimits()).stdout


def test_an_error_leaves_no_trace(terminal: Terminal) -> None:
    line = StatusLine()
    with pytest.raises(KeyboardInterrupt), line.erased_at_end():
        for item in line.track("Reading", "ab", 2):
            if item == "b":
                raise KeyboardInterrupt
    assert terminal.getvalue().endswith(ERASE)


def test_a_bar_that_moves_while_nobody_knows_how_long(terminal: Terminal) -> None:
    states = [progress._moving_bar(state) for state in range(40)]
    assert {len(state) for state in states} == {8} and all(state.count("=") == 2 for state in states)
    assert len(set(states)) == 4 and states[0] == states[6]


def test_a_phase_fits_a_terminal_with_its_time_and_that_in_all(terminal: Terminal) -> None:
    """What runs longest, and which run of a program it is, are read off a line of 80 columns."""
    now = 0.0
    line = StatusLine(clock=lambda: now)
    with line.phase("1/7 original"):
        now = 1.0
        while " 1 s\x1b" not in terminal.getvalue():
            time.sleep(0.01)
    now = 1000.0
    with line.phase("4/7 rewritten in float64") as tell:
        tell("compiling, 10 of 12 done")
        now = 1370.0
        while "1370 s in all" not in terminal.getvalue():
            time.sleep(0.01)
    said = "4/7 rewritten in float64: compiling, 10 of 12 done 370 s, 1370 s in all"
    last = terminal.getvalue().split("\r")[-2].removesuffix("\x1b[K")
    assert last.endswith(f"] {said}") and len(last) < 80


def test_commands_without_a_run_over_files_have_a_line_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    @contextlib.contextmanager
    def phase(self: StatusLine, text: str) -> Iterator[None]:
        seen.append(text)
        yield

    monkeypatch.setattr(StatusLine, "phase", phase)
    put("a.py", "import mmruntime as mm\n")
    assert run("explain", "a.py:1").exit_code == run("init", "--print").exit_code == 0
    assert seen == ["a.py: looking through its revisions", "looking at the repository"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("diff",), ("Reading files 1", "Reading hints [", "Rewriting [", "Checking [", "1/2")),
        (("apply",), ("Writing [", "1/2")),
        (("build", "--out", "made"), ("Mirroring [", "Writing [", "1/2")),
        (("check", "--out", "made"), ("Mirroring [",)),
        (("modernize",), ("Reading [", "Deciding [", "Rewriting [", "Checking [", "Writing [")),
    ],
)
def test_each_step_of_a_run_has_a_bar(command: tuple[str, ...], shown: tuple[str, ...]) -> None:
    for name in "ab":
        put(f"src/{name}.py", OLD if "modernize" in command else HINTED)
    status, seen = at_terminal([sys.executable, "-c", AT_ONCE, *command, "src", "--no-cache"])
    assert status == (1 if command[0] == "check" else 0)
    assert not [text for text in shown if text not in seen]
    # What is printed comes below a line that is gone.
    assert seen.rindex(ERASE) > max(seen.rindex(text) for text in shown)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_ctrl_c_takes_the_bar_away() -> None:
    for number in range(30):
        put(f"src/a{number}.py", HINTED)
    status, seen = at_terminal([sys.executable, "-c", AT_ONCE, "apply", "src", "--no-cache"], until="Rewriting [")
    assert status == 130
    assert "Interrupted: " in seen[seen.rindex(ERASE) :] and "Traceback" not in seen
    assert not [file for file in os.listdir("src") if not file.endswith(".py")]


def at_terminal(command: list[str], until: str | None = None) -> tuple[int, str]:
    """The status and all that a command writes to a terminal on standard error; Ctrl-C once it wrote `until`."""
    main, side = os.openpty()
    environment = os.environ | {
        progress.VARIABLE: "1",
        "TERM": "xterm",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=side, env=environment) as process:
        os.close(side)
        seen = b""
        while True:
            try:
                data = os.read(main, 1024)
            except OSError:  # Linux says so at the end.
                break
            seen += data
            if until is not None and until.encode() in seen:
                process.send_signal(signal.SIGINT)
                until = None
            if not data:
                break
        os.close(main)
    return process.returncode, seen.decode()


def test_the_lines_of_a_log_are_not_printed_again(tmp_path: os.PathLike[str]) -> None:
    put("src/a.py", HINTED)
    at_once = f"import mmrewrite.cli.terminal.progress as p; p._LOG_AFTER = p._LOG_EVERY = 0; {MAIN}"
    environment = os.environ | {
        progress.VARIABLE: "1",
        "MMREWRITE_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    first, again = (
        subprocess.run(
            [sys.executable, "-c", at_once, "diff", "src"], env=environment, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    )
    said = [line for line in first.stderr.splitlines() if not line.startswith("mmrewrite: ")]
    assert first.stdout == again.stdout and len(said) < len(first.stderr.splitlines())
    assert again.stderr.splitlines() == said == ["1 file would change"]
