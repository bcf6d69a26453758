"""Run the commands of docs/tutorial.md as they are printed there, to a merged diff, and say how long each is silent.

    python tools/run_tutorial.py linen nnx equinox

Each track runs in an empty folder with an empty environment, beside a copy of this checkout called `mmrewrite`. Needs
bash, git, Python with pip, and a package index. The exit status is 1 if a command fails, or the end is not what the
page says.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
TITLES = {"linen": "Flax linen", "nnx": "Flax nnx", "equinox": "Equinox"}
PROGRAM = "train.py"
# The page names this in its text, where the program is saved.
RUN = f"python {PROGRAM}"
# Ahead of the output of each command.
_MARK = "@@ command: "
_OURS = ("MMREWRITE_", "MMRUNTIME_", "JAX_", "XLA_", "PYTHON", "VIRTUAL_ENV", "GIT_")


def program(track: str) -> str:
    """The program of a track, as the page shows it."""
    shown = re.search(
        rf"<summary>{TITLES[track]}</summary>.*?^```python\n(.*?)^```$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert shown is not None, track
    return shown[1]


def commands(track: str) -> list[str]:
    """The lines of the page's blocks of commands, in order; of the two ways to install, that of the track."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    install = [line for line in lines if line.startswith("pip install")]
    other = [line for line in install if ("equinox" in line) != (track == "equinox")]
    lines = [line for line in lines if line not in other]
    # The program is run before the first command that names it.
    first = next(number for number, line in enumerate(lines) if PROGRAM in line)
    return [*lines[:first], RUN, *lines[first:]]


@dataclass
class Ran:
    """A command: what it wrote, how many seconds it took, and the longest time in which it wrote nothing."""

    command: str
    output: str = ""
    seconds: float = 0.0
    silence: float = 0.0


def run(track: str, folder: Path) -> Iterator[Ran]:
    """Run the commands of a track in one shell; each as soon as it has ended.

    Raises:
        SystemExit: If one fails.
    """
    folder.mkdir()
    # What the page says in words: save the program.
    (folder / "saved").write_text(program(track), encoding="utf-8")
    lines = commands(track)
    script = ["set -e", f"mv saved ../{track}.py"]
    for line in lines:
        script += [f"cp ../{track}.py {PROGRAM}"] if line == RUN else []
        script += [f"echo; echo {shlex.quote(_MARK + line)}", line]
    own = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    who = {f"GIT_{role}_{part}": "tutorial@localhost" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    environment = own | who | {"MMREWRITE_CACHE_DIR": str(folder.parent / "cache"), "GIT_CONFIG_GLOBAL": os.devnull}
    with subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        ran, began, last = None, time.monotonic(), time.monotonic()
        for line in process.stdout:
            now = time.monotonic()
            if ran is not None:
                ran.silence, ran.seconds = max(ran.silence, now - last), now - began
            last = now
            if line.startswith(_MARK):
                if ran is not None:
                    yield ran
                ran, began = Ran(line.removeprefix(_MARK).strip()), now
            elif ran is not None:
                ran.output += line
    assert ran is not None
    ran.silence, ran.seconds = max(ran.silence, time.monotonic() - last), time.monotonic() - began
    yield ran
    if process.returncode:
        raise SystemExit(f"{track}: `{ran.command}` failed with status {process.returncode}:\n{ran.output}")


def check(track: str, folder: Path, every: list[Ran]) -> None:
    """Hold the end to what the page says.

    Raises:
        SystemExit: If it is another.
    """
    output = {ran.command: ran.output for ran in every}
    before, after = (re.findall(r"loss ([\d.]+)", output[name]) for name in (RUN, every[-2].command))
    merged = subprocess.run(["git", "show", f"main:{PROGRAM}"], cwd=folder, capture_output=True, text=True, check=True)
    (verified,) = (text for name, text in output.items() if name.startswith("mmrewrite verify"))
    verdict = verified.strip().splitlines()[-1]
    wrong = {
        "the verdict is not `equal`": not re.search(r"\bequal( but for rounding)?$", verdict) or "NOT" in verdict,
        "the losses are not those of before": len(before) != 20
        or any(abs(float(one) - float(other)) > 1e-3 for one, other in zip(before, after, strict=True)),
        "main has no rewritten program": "import mmruntime as mm" not in merged.stdout or "# mm:" in merged.stdout,
    }
    for what, is_wrong in wrong.items():
        if is_wrong:
            raise SystemExit(f"{track}: {what}: {verdict}; {before}; {after}\n{merged.stdout}")


def main(tracks: list[str]) -> int:
    """Run tracks, all if none is named."""
    with tempfile.TemporaryDirectory() as work:
        checkout = Path(work, "mmrewrite")
        left_out = [f"--exclude=./{name}" for name in (".venv", ".git", ".*_cache", ".hypothesis")]
        checkout.mkdir()
        packed = subprocess.Popen(["tar", "-C", ROOT, *left_out, "-cf", "-", "."], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-C", checkout, "-xf", "-"], stdin=packed.stdout, check=True)
        for track in tracks or list(TITLES):
            folder, every = Path(work, track), []
            print(f"{track}: docs/tutorial.md as it is printed\n  seconds  longest silence  command", flush=True)
            for ran in run(track, folder):
                every.append(ran)
                print(f"  {ran.seconds:7.1f}  {ran.silence:15.1f}  {ran.command}", flush=True)
            check(track, folder, every)
            seconds = sum(ran.seconds for ran in every)
            later = [ran for ran in every if not ran.command.startswith("pip install")]
            print(f"  {seconds:7.1f}  {max(ran.silence for ran in later):15.1f}  in all; silence without installation")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
