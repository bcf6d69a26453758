"""The example of docs/cluster.md: killed, started again with what is left, and gone on with on other devices."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "cluster" / "train.py"
# Runs the example; one process is killed right after a certain step of the first start.
KILLED = """
import builtins, os, runpy, signal, sys
say, (path, victim, at) = print, sys.argv[1:4]
def print(text, **options):
    say(text, **options)
    if text.startswith(f"step {at} ") and os.environ["MMREWRITE_RESTART"] == "0":
        if os.environ["JAX_PROCESS_ID"] == victim:
            os.kill(os.getpid(), signal.SIGKILL)
builtins.print = print
sys.argv = [path, *sys.argv[4:]]
runpy.run_path(path, run_name="__main__")
"""


def run(*command):
    drop = ("JAX_NUMPY_DTYPE_PROMOTION", "JAX_NUMPY_RANK_PROMOTION")
    environment = {key: value for key, value in os.environ.items() if key not in drop}
    # One device, but where the launcher says how many.
    flags = environment.pop("XLA_FLAGS", "").split()
    environment["XLA_FLAGS"] = " ".join(flag for flag in flags if "device_count" not in flag)
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**environment, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def losses(output):
    """The stages and the losses that process 0 prints, by step; the last, where a step was repeated."""
    found = re.findall(r"^(?:\[0\] )?step (\d+) on (\d+) stages: (\S+)$", output, re.M)
    return {int(step): (int(stages), float(loss)) for step, stages, loss in found}


def launch(processes, devices, *command):
    options = ["--processes", str(processes), "--devices-per-process", str(devices)]
    return run(sys.executable, "-m", "mmrewrite", "run", *options, *command)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The losses of one device, without a break."""
    folder = tmp_path_factory.mktemp("straight")
    return losses(run(sys.executable, str(EXAMPLE), str(folder), "--steps", "8"))


@pytest.mark.slow
def test_a_killed_process_is_done_without(tmp_path, straight):
    """Two processes, then one with half of the devices and stages, then one device."""
    command = [sys.executable, "-c", KILLED, str(EXAMPLE), "1", "4", str(tmp_path), "--steps", "6"]
    output = launch(2, 2, "--max-restarts", "1", "--min-processes", "1", "--", *command)
    found = losses(output)
    assert found[2][0] == 4 and found[6][0] == 2
    # Not every save is complete when a process is killed; what is, is gone on from.
    assert "step 1 on 2 stages" not in output
    found |= losses(run(sys.executable, str(EXAMPLE), str(tmp_path), "--steps", "8"))
    assert found[8][0] == 1
    assert {step: loss for step, (_, loss) in found.items()} == pytest.approx(
        {step: loss for step, (_, loss) in straight.items()}, rel=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "devices", "stages"), [(1, 4, 4), (2, 2, 2), (4, 1, 4), (4, 1, 2), (2, 1, 1), (1, 1, 1)]
)
def test_any_devices_go_on_from_any_checkpoint(tmp_path, straight, processes, devices, stages):
    """From one device, and back to it; what went on twice on the same devices is the same bit for bit."""
    run(sys.executable, str(EXAMPLE), str(tmp_path / "0"), "--steps", "2")
    command = ["--", sys.executable, str(EXAMPLE), "--stages", str(stages)]
    found = {}
    subprocess.run(["cp", "-r", tmp_path / "0", tmp_path / "1"], check=True)
    whole = losses(launch(processes, devices, *command, str(tmp_path / "0"), "--steps", "6"))
    for steps in ("4", "6"):
        found |= losses(launch(processes, devices, *command, str(tmp_path / "1"), "--steps", steps))
    assert found == whole
    found |= losses(run(sys.executable, str(EXAMPLE), str(tmp_path / "1"), "--steps", "8"))
    expected = {step: loss for step, (_, loss) in straight.items() if step > 2}
    assert {step: loss for step, (_, loss) in found.items()} == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3, 5])
@pytest.mark.parametrize("victim", ["0", "1"])
def test_killed_at_any_step(tmp_path, straight, victim, at):
    command = [sys.executable, "-c", KILLED, str(EXAMPLE), victim, str(at), str(tmp_path), "--steps", "8"]
    found = losses(launch(2, 2, "--max-restarts", "1", "--", *command))
    assert {step: loss for step, (_, loss) in found.items()} == pytest.approx(
        {step: loss for step, (_, loss) in straight.items()}, rel=1e-12
    )
