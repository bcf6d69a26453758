"""The example of `examples/gpt` over processes: bit for bit what one process computes with the same collectives.

On eight devices, four stages of two devices each: two processes have two stages each, four have one, and in eight every
stage is one of two processes.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.processes.jobs import run_all

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gpt"
SCHEDULES = ("gpipe", "1f1b", "wavefront", "zb-h1")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folders of the rewritten example, one for each schedule."""
    folder = tmp_path_factory.mktemp("built")
    for schedule in SCHEDULES:
        source = folder / "source" / schedule
        shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
        text = (source / "train.py").read_text()
        assert text.count('schedule="1f1b"') == 1
        (source / "train.py").write_text(text.replace('schedule="1f1b"', f'schedule="{schedule}"'))
    command = [sys.executable, "-m", "mmrewrite", "build", "source", "--out", "out"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    found = {path.parent.name: path.parent for path in (folder / "out").rglob("train.py")}
    return [str(found[schedule]) for schedule in SCHEDULES]


def trained(folder, built, processes):
    """The losses, and what each device has, of all processes together."""
    # One process has collectives of another kind, if nobody asks for these.
    variables = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    arguments = str(folder), str(EXAMPLE / "gospels.txt"), *built
    run_all("gpt_steps:trained", processes, 8 // processes, *arguments, timeout=1500, variables=variables)
    result = {}
    for schedule in SCHEDULES:
        arrays = result[schedule] = {}
        for process in range(processes):
            with np.load(folder / f"{schedule}-{process}.npz") as saved:
                for name in saved.files:
                    assert name not in arrays or name.startswith("loss")
                    np.testing.assert_array_equal(saved[name], arrays.setdefault(name, saved[name]))
    return result


@pytest.fixture(scope="module")
def alone(built, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("alone"), built, 1)


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_processes_compute_what_one_does_bit_for_bit(built, alone, processes, tmp_path):
    found = trained(tmp_path, built, processes)
    for schedule, arrays in alone.items():
        assert found[schedule].keys() == arrays.keys()
        assert len(arrays) > 100
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[schedule][name], array, f"{schedule}: {name}")
