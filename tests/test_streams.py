"""Where the output goes: closed streams, pipes that nobody reads any more, a full disk. And runs that end badly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import HINTED, put

from mmrewrite.files.cache_folder import VARIABLE

FULL = Path("/dev/full")
MMREWRITE = f"{sys.executable} -m mmrewrite"


@pytest.fixture(autouse=True)
def hinted(folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with a hint, and a cache elsewhere."""
    monkeypatch.setenv(VARIABLE, str(tmp_path_factory.mktemp("cache")))
    put("a.py", HINTED)


def shell(line: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    return done


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize(
    ("closed", "prints", "says"),
    [(">&-", False, True), ("2>&-", True, False), (">&- 2>&-", False, False), ("<&-", True, True)],
)
def test_closed_streams(closed: str, prints: bool, says: bool) -> None:
    # The second run prints what the first has kept.
    for _ in range(2):
        done = shell(f"{MMREWRITE} check {closed}")
        assert done.returncode == 1
        assert ("+++ b/a.py" in done.stdout, "1 file would change" in done.stderr) == (prints, says)
    assert shell(f"{MMREWRITE} apply {closed}").returncode == 0
    assert "mm.task(" in Path("a.py").read_text()
    assert sorted(os.listdir()) == ["a.py"]


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize("command", ["diff --stdin-filename a.py -", "lsp"])
def test_standard_input_that_is_closed(command: str) -> None:
    """It is not taken for an empty one, which an editor would put in place of its buffer."""
    if command == "lsp":
        pytest.importorskip("pygls")
    done = shell(f"{MMREWRITE} {command} <&-")
    assert (done.returncode, done.stdout) == (2, "") and "is closed" in done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["diff", "diff --no-cache", "diff --format json", "codemods", "--version", "-h"])
def test_a_full_disk(command: str) -> None:
    for _ in range(2):
        done = shell(f"{MMREWRITE} {command} > {FULL}")
        assert (done.returncode, done.stderr) == (2, "Error: No space left on device; the run is not complete\n")
    # Nobody can be told, and the status is not that of findings.
    assert shell(f"{MMREWRITE} check >{FULL} 2>{FULL}").returncode == 2


@pytest.mark.skipif(os.name != "posix", reason="needs pipes of POSIX")
@pytest.mark.parametrize("options", [[], ["--no-cache"], ["--format=json"]])
def test_nobody_reads_any_more(options: list[str]) -> None:
    command = [sys.executable, "-m", "mmrewrite", "diff", *options]
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait() == 128 + signal.SIGPIPE
    # What was not printed is not kept for the next run.
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "1 file would change" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="no folder in use can be removed elsewhere")
@pytest.mark.parametrize("command", ["diff", "check a.py", "apply", "init", "modernize"])
def test_a_folder_that_is_gone(command: str) -> None:
    done = shell(f"mkdir gone && cd gone && rmdir ../gone && {MMREWRITE} {command}")
    assert done.returncode == 2 and done.stdout == ""
    assert "Error: the current folder is gone; change to one that is there" in done.stderr


def test_a_configuration_that_is_nested_too_deeply() -> None:
    put("pyproject.toml", f"[tool.other]\nx = {'[' * 5000}{']' * 5000}\n")
    put("a.py", "x = 1\n")
    done = shell(f"{MMREWRITE} diff")
    assert done.returncode == 2 and done.stderr.endswith("pyproject.toml: nested too deeply to be read\n")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("ZeroDivisionError('x')", "Error: this is a bug in mmrewrite. Please report it with the lines above"),
        ("MemoryError()", "Error: there is not enough memory; name fewer files"),
        ("PermissionError(13, 'Permission denied', 'b')", "Error: b: Permission denied; the run is not complete"),
        ("BrokenPipeError(32, 'Broken pipe')", "Error: Broken pipe; the run is not complete"),
    ],
)
def test_what_no_command_foresees_is_an_error_and_no_finding(error: str, said: str) -> None:
    program = (
        "import sys, mmrewrite.__main__, mmrewrite.cli.session as session\n"
        f"def fail(*_): raise {error}\n"
        "session.Session.__init__ = fail\n"
        "sys.argv = ['mmrewrite', 'check']\n"
        "mmrewrite.__main__.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(said)
    assert ("Traceback" in done.stderr) == ("ZeroDivision" in error)
