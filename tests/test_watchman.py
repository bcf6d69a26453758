"""What a killed process has started and made goes with it, and nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mmrewrite.launch.watchman import Watchman, temporary_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs process groups")


def killed(program: str, *arguments: str) -> str:
    """What a program printed that kills itself; its watchman has ended as well, since it holds the output too."""
    head = "import os, sys\nfrom mmrewrite.launch.watchman import Watchman, temporary_folder\n"
    command = [sys.executable, "-c", f"{head}{program}\nos.kill(os.getpid(), 9)", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    return done.stdout


def test_a_folder_is_removed_after_the_block(tmp_path: Path) -> None:
    with temporary_folder("made-") as folder:
        (Path(folder) / "file").touch()
    assert not os.path.exists(folder)


def test_a_folder_of_a_killed_process_is_removed_but_no_link_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    program = (
        "with temporary_folder('a\\nb ') as folder:\n"
        "    os.symlink(sys.argv[1], f'{folder}/link')\n"
        "    open(f'{folder}/file', 'w').close()\n"
        "    print(ascii(folder), flush=True)\n"
        "    os.kill(os.getpid(), 9)"
    )
    folder = killed(program, str(tmp_path))
    assert "a\\nb " in folder
    assert not os.path.exists(eval(folder))
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("ending", "is_ended"), [("", True), ("watchman.group_ended(int(sys.argv[1]))", False), ("watchman.close()", False)]
)
def test_groups_of_a_killed_process(ending: str, is_ended: bool) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as group:
        killed(f"watchman = Watchman()\nwatchman.group_started(int(sys.argv[1]))\n{ending}", str(group.pid))
        if not is_ended:
            assert group.poll() is None
            group.terminate()
        assert group.wait(20) == -(signal.SIGKILL if is_ended else signal.SIGTERM)


def test_a_run_goes_on_without_its_watchman() -> None:
    watchman = Watchman()
    watchman._process.kill()
    watchman._process.wait()
    watchman.group_started(os.getpid())
    watchman.close()
