"""The benchmark for GPUs on CPU devices, so that its code is known to run where there is a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def run(*arguments):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    command = [sys.executable, str(GPU), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)


def test_without_a_gpu_it_says_so():
    found = run()
    assert found.returncode == 2
    assert found.stdout.splitlines()[-1].startswith("No GPU: nothing was measured.")


@pytest.mark.slow
def test_it_runs_on_cpu_devices(tmp_path):
    small = ("--model", "perceptron", "--width", "8", "--batch", "16", "--layers", "1", "--repeats", "2")
    found = run("--cpu", "--profile", str(tmp_path), *small)
    assert found.returncode == 0, found.stdout + found.stderr
    goals = [line for line in found.stdout.splitlines() if " goal " in line]
    assert len(goals) == 8
    assert all(line.endswith("ok") for line in goals)
    assert {path.name for path in tmp_path.iterdir()} == {"one", "pipeline-0", "pipeline-1"}


def test_a_missed_goal_is_one():
    sys.path.insert(0, str(GPU.parent))
    try:
        import gpu
    finally:
        sys.path.remove(str(GPU.parent))
    assert gpu.Figure("wall", 1.0, 1.01).holds
    assert not gpu.Figure("wall", 1.02, 1.01).holds
    assert str(gpu.Figure("wall", 1.02, 1.01)).endswith("goal 1.01  MISSED")
    # What the platform does not tell is no goal reached, but for a figure without a goal.
    assert not gpu.Figure("memory", None, 0.1).holds
    assert gpu.Figure("memory", None).holds
