"""Kill or stop a process of a job at random times, from its start to its exit: the others end and say why.

    python validation/process_kills.py [--kills 100] [--seed 0]

Two processes run examples/cluster/train.py, which saves checkpoints. One of them, at random, is killed with SIGKILL or
stopped with SIGSTOP, at a random time in one of four phases: in `mm.init`, before its first step, between steps, and
after the last one. The other must end with status 75 and one message which says that this process has died or is
stopped, within the limit of the watch and what a busy machine adds. Before both have left `mm.init`, nobody watches:
there it must end with an error once `initialization_timeout` is over. It may end well if all steps were done.

Every second job is started by `mmrewrite run --max-restarts 1`. That must go on from the last checkpoint and end well,
and all its losses must be those of a job that nobody disturbed, bit for bit. Ends with 1 if one is not as it must be.
Needs Linux.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from mmrewrite.launch.environment import RESTART, environments, free_port

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "cluster" / "train.py"
PROCESSES, STEPS = 2, 12
# Seconds of the watch, of `mm.init`, and what a busy machine adds to either.
WATCH, START, BUSY = 15, 20, 45
CONNECTED = "connected"
SAID = {signal.SIGKILL: "has died", signal.SIGSTOP: "is stopped|has said nothing"}


def child(folder: str) -> None:
    """The program of a process."""
    import mmruntime as mm

    mm.init(initialization_timeout=START)
    print(CONNECTED, flush=True)
    sys.argv = [str(EXAMPLE), folder, "--steps", str(STEPS)]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def variables() -> dict[str, str]:
    return {**os.environ, "MMRUNTIME_FAULT_TIMEOUT": str(WATCH), "JAX_ENABLE_X64": "1", "PYTHONUNBUFFERED": "1"}


def program(folder: Path) -> list[str]:
    return [sys.executable, __file__, "--child", str(folder / "checkpoints")]


def losses(text: str) -> dict[int, str]:
    """The losses by step, as they are printed; of a step that was repeated, the last."""
    return {int(step): loss for step, loss in re.findall(r"step (\d+) on \d+ stages: (\S+)$", text, re.M)}


class Started:
    """A job of processes without a launcher."""

    def __init__(self, folder: Path) -> None:
        self.outputs = [folder / str(index) for index in range(PROCESSES)]
        self.running = []
        told = environments(variables(), PROCESSES, 1, free_port(), 0)
        for path, environment in zip(self.outputs, told, strict=True):
            with path.open("w") as output:
                self.running.append(
                    subprocess.Popen(program(folder), env=environment, stdout=output, stderr=subprocess.STDOUT)
                )

    def text(self, index: int) -> str:
        return self.outputs[index].read_text(errors="replace")

    def pid(self, index: int) -> int | None:
        """The process, if it has not ended."""
        return self.running[index].pid if self.running[index].poll() is None else None

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


class Launched:
    """A job that is started by `mmrewrite run`, and again if it fails."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "output"
        options = ["--processes", str(PROCESSES), "--devices-per-process", "1", "--max-restarts", "1", "--"]
        with self.output.open("w") as output:
            command = [sys.executable, "-m", "mmrewrite", "run", *options, *program(folder)]
            self.launcher = subprocess.Popen(command, env=variables(), stdout=output, stderr=subprocess.STDOUT)

    def text(self, index: int) -> str:
        return "\n".join(
            line for line in self.output.read_text(errors="replace").splitlines() if line.startswith(f"[{index}]")
        )

    def pid(self, index: int) -> int | None:
        """The process of the first start."""
        children = Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children")
        with suppress(OSError):
            for pid in children.read_text().split():
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if {f"JAX_PROCESS_ID={index}".encode(), f"{RESTART}=0".encode()} <= set(environment):
                    return int(pid)
        return None

    def end(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.launcher.terminate()
            self.launcher.wait(20)
        self.launcher.kill()
        self.launcher.wait()


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether something comes about in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def phase(job: Started | Launched, index: int) -> int:
    """Where a process is: in `mm.init`, before its first step, between steps, behind the last one."""
    text = job.text(index)
    done = len(losses(text))
    return 0 if CONNECTED not in text else 1 if not done else 2 if done < STEPS else 3


PHASES = ("in mm.init", "before the first step", "between steps", "after the last step")


def disturb(job: Started | Launched, random_: random.Random, life: Sequence[float]) -> tuple[str, int, signal.Signals]:
    """Wait for a random time and send a signal; what had happened by then, to whom it was sent, and which.

    Args:
        job: The job.
        random_: What chooses.
        life: How many seconds each phase takes.
    """
    victim, number = random_.randrange(PROCESSES), random_.choice([signal.SIGKILL, signal.SIGSTOP])
    wanted = random_.randrange(len(PHASES))
    wait_for(lambda: phase(job, victim) >= wanted, 300)
    time.sleep(random_.uniform(0, life[wanted]))
    pid = job.pid(victim)
    if pid is None:
        return "over", victim, number
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    return PHASES[min(phase(job, index) for index in range(PROCESSES))], victim, number


def alone(folder: Path, random_: random.Random, life: Sequence[float]) -> tuple[str, str]:
    """A job without a launcher: when it was disturbed, and what was wrong, or nothing."""
    job = Started(folder)
    try:
        when, victim, number = disturb(job, random_, life)
        other = 1 - victim
        process = job.running[other]
        began = time.monotonic()
        try:
            status = process.wait((START if when == PHASES[0] else WATCH) + BUSY + (60 if when == "over" else 0))
        except subprocess.TimeoutExpired:
            return when, f"process {other} did not end after {number.name} to {victim}:\n{job.text(other)}"
        took, text = time.monotonic() - began, job.text(other)
        found = re.findall(r"cannot go on: (.*)", text)
        right = len(found) == 1 and re.match(f"process {victim} (?:{SAID[number]})", found[0])
        well = status == 0 and len(losses(text)) == STEPS
        if when == "over":
            wrong = not well
        elif when == PHASES[0]:
            # The last of them may have left `mm.init` without having said so.
            wrong = not (status and (status != 75 or right))
        else:
            wrong = not (status == 75 and right) and not (when == PHASES[3] and well)
        if wrong:
            return when, f"{number.name} to {victim}: {other} ended with {status} after {took:.1f} s:\n{text}"
        return when, ""
    finally:
        job.end()


def launched(folder: Path, random_: random.Random, life: Sequence[float], expected: dict[int, str]) -> tuple[str, str]:
    """A job that is started again: when it was disturbed, and what was wrong, or nothing."""
    job = Launched(folder)
    try:
        when, victim, number = disturb(job, random_, life)
        try:
            status = job.launcher.wait(START + BUSY + 3 * sum(life) + 60)
        except subprocess.TimeoutExpired:
            return when, f"the job did not end after {number.name} to {victim}:\n{job.output.read_text()}"
        found = losses(job.text(0))
        if status or found != expected:
            return when, f"{number.name} to {victim}: status {status}, losses {found}\n{job.output.read_text()}"
        return when, ""
    finally:
        job.end()


def undisturbed(folder: Path) -> tuple[list[float], dict[int, str]]:
    """How long each phase of a job is, and its losses."""
    times = [time.monotonic()]
    job = Started(folder)
    try:
        for each in range(1, len(PHASES)):
            if not wait_for(lambda each=each: phase(job, 0) >= each, 300):  # type: ignore[misc]
                raise SystemExit(f"The job without a fault is still {PHASES[each - 1]}:\n{job.text(0)}")
            times.append(time.monotonic())
        statuses = [process.wait(300) for process in job.running]
        times.append(time.monotonic())
        if any(statuses):
            raise SystemExit(f"The job without a fault ended with {statuses}:\n{job.text(0)}\n{job.text(1)}")
        return [after - before for before, after in pairwise(times)], losses(job.text(0))
    finally:
        job.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--kills", type=int, default=100, help="how many jobs are disturbed (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices (default 0)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    from importlib.metadata import version

    random_ = random.Random(options.seed)
    counts: Counter[str] = Counter()
    failures = 0
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "undisturbed")
        folder.mkdir()
        life, expected = undisturbed(folder)
        shown = ", ".join(f"{seconds:.1f} s {name}" for name, seconds in zip(PHASES, life, strict=True))
        print(f"JAX {version('jax')}; without a fault {shown}", flush=True)
        for number in range(options.kills):
            folder = Path(root, str(number))
            folder.mkdir()
            if number % 2:
                when, wrong = launched(folder, random_, life, expected)
            else:
                when, wrong = alone(folder, random_, life)
            counts[f"{'started again' if number % 2 else 'alone'}, {when}"] += 1
            if wrong:
                failures += 1
                print(f"job {number} ({when}): {wrong}", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:4} {name}")
    print(f"{options.kills} jobs, {failures} not as they must be")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
