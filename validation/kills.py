"""Kill `apply`, `modernize` and `build` at random moments: nothing may be lost, and the next run must complete.

    python validation/kills.py [--kills 500] [--seed 0]

Half of the kills fall anywhere in a run, half into its writing. After each, every source must be as it was or as it is
meant to become, and what is the user's must be untouched; then the same command must succeed, give what it gives
without a kill, and leave no temporary file. Needs POSIX. Ends with 1 if anything was lost.

A run is a fork of this process, in which the tool is imported already: most of the time of a run is imports, and a kill
there shows nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from click.testing import CliRunner

from mmrewrite.cli.commands import cli

FILES = 15
HINTED = "def f(x):\n    return x\n\n\ny{number} = f({number})  # mm: task(stage=0)\n"
OLD = "import jax\n\nx{number} = jax.tree_map(len, [{number}])\n"
COMMANDS = {"apply": ["apply", "pkg"], "modernize": ["modernize", "pkg"], "build": ["build", "pkg", "--out", "gen"]}

Tree = dict[str, bytes]


def make(folder: Path, command: str, variant: int) -> None:
    """A project, which for `build` has a mirror of another state of it."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "pkg" / "sub").mkdir(parents=True)
    (folder / "gen").mkdir()
    (folder / "gen" / "precious.txt").write_text("not ours\n")
    (folder / "pkg" / ".mmrewrite-notes").write_text("not ours either\n")
    write_sources(folder, command, variant)


def write_sources(folder: Path, command: str, variant: int) -> None:
    text = OLD if command == "modernize" else HINTED
    for number in range(FILES):
        place = folder / "pkg" / ("sub" if number % 2 else ".") / f"m{number}.py"
        place.write_text(text.format(number=number + 1000 * variant) + "z = 1\n" * (number * 20))
    for package in ("pkg", "pkg/sub"):
        (folder / package / "__init__.py").write_text("")


def tree(folder: Path) -> Tree:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def start(folder: Path, command: str) -> int:
    """Run a command in a fork, in a session of its own; its output is in `log` beside the project."""
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        os.setsid()
        os.chdir(folder)
        log = os.open(folder.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        cli(COMMANDS[command], prog_name="mmrewrite", standalone_mode=True)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(status)


def finish(folder: Path, command: str) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(start(folder, command), 0)[1])
    if status:
        log = (folder.parent / "log").read_text()
        raise SystemExit(f"LOST: {command} after a kill ended with {status}:\n{log}")


def has_ended(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def writes(folder: Path, known: set[str]) -> bool:
    """Whether the run has begun to write."""
    return any(
        entry.name.startswith(".mmrewrite-") and entry.name not in known for entry in os.scandir(folder / "pkg")
    ) or ((folder / "gen" / "pkg").exists())


def kill_once(folder: Path, command: str, chance: random.Random, length: float) -> bool:
    """Start a command and kill it; False if it was faster."""
    known = {".mmrewrite-notes"}
    process = start(folder, command)
    begin = time.monotonic()
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0, length))
    else:
        while not has_ended(process) and not writes(folder, known) and time.monotonic() - begin < 10 * length:
            time.sleep(0.0005)
        time.sleep(chance.uniform(0, 0.2 * length))
    killed = not has_ended(process)
    if killed:
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return killed


def check(found: Tree, before: Tree, after: Tree, what: str) -> None:
    for path, data in before.items():
        if path not in found:
            # Files of the mirror go when their source is gone.
            if path in after or not path.startswith("gen/pkg/"):
                raise SystemExit(f"LOST: {what}: {path} is gone")
        elif found[path] not in (data, after.get(path)) and path != "gen/mmrewrite-manifest.json":
            raise SystemExit(f"LOST: {what}: {path} is neither as before nor as after")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "project"
        lengths, goals = {}, {}
        # What a run imports is imported before the first fork.
        for command in ("modernize", "apply"):
            make(folder, command, 1)
            preview = {"apply": ["diff", "pkg"], "modernize": ["modernize", "--diff", "pkg"]}[command]
            os.chdir(folder)
            CliRunner().invoke(cli, preview, catch_exceptions=False)
            os.chdir(place)
        for module in ("files.write", "files.exchange", "mirror.build"):
            importlib.import_module(f"mmrewrite.{module}")
        for command in COMMANDS:
            make(folder, command, 1)
            begin = time.monotonic()
            finish(folder, command)
            lengths[command], goals[command] = time.monotonic() - begin, tree(folder)
        kills = dict.fromkeys(COMMANDS, 0)
        halfway = dict.fromkeys(COMMANDS, 0)
        while sum(kills.values()) < options.kills:
            command = min(kills, key=lambda name: kills[name])
            make(folder, command, 1)
            if command == "build" and chance.random() < 0.5:
                write_sources(folder, command, 2)
                (folder / "pkg" / "gone.py").write_text("x = 1\n")
                finish(folder, command)
                write_sources(folder, command, 1)
                (folder / "pkg" / "gone.py").unlink()
            before = tree(folder)
            # Sometimes the second run is killed as well.
            for _ in range(chance.choice((1, 1, 2))):
                kills[command] += kill_once(folder, command, chance, lengths[command])
            found = tree(folder)
            check(found, before, goals[command], command)
            halfway[command] += found not in (before, goals[command])
            finish(folder, command)
            if tree(folder) != goals[command]:
                different = sorted(tree(folder).items() ^ goals[command].items())
                raise SystemExit(f"LOST: {command}: the next run gave other files: {[path for path, _ in different]}")
            if sum(kills.values()) % 50 == 0:
                print(f"{sum(kills.values())} kills", flush=True)
    for command, number in kills.items():
        print(f"{command}: {number} kills, {halfway[command]} programs found halfway, nothing lost, all completed")


if __name__ == "__main__":
    main()
