"""`validation/score_programs.py` and `run_case.py`: cases from clones, and programs whose steps are recorded."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from scripts import load_script

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["%pip install x\n", "width = 64"]},
        {"cell_type": "code", "source": ["raise SystemExit"]},
        {"cell_type": "code", "source": ["@jax.jit\n", "def step(x):\n", "    return x"]},
    ]
}
TOLD = {
    "title": "a notebook",
    "repository": "owner/name",
    "commit": "HEAD",
    "without": [2],
    "files": {"a.ipynb": "train.py"},
    "sizes": [["64", "8"]],
    "hints": [
        {"line": "width = 8", "at": "above", "comment": "mesh(stage=2)"},
        {"line": "def step(x):", "at": "decorator", "comment": "mjit"},
        {"line": "return x", "comment": "task(stage=0)"},
    ],
    "score": {"step": "step", "layers": r"x\[([0-9])\]"},
}
PROGRAM = """
import jax
import jax.numpy as jnp


def loss(w, x):
    return jnp.mean(x @ w) ** 2


@jax.jit
def step(w, x):
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - gradient, value


w = jnp.ones(2)
while True:
    w, value = step(w, jnp.arange(8.0).reshape(4, 2))
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("validation/score_programs.py")


@pytest.fixture
def clones(tmp_path: Path) -> Path:
    folder = tmp_path / "clones" / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "a.ipynb").write_text(json.dumps(NOTEBOOK))
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "a"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    return tmp_path / "clones"


def test_a_case_is_the_code_of_a_notebook_with_hints(script: ModuleType, clones: Path, tmp_path: Path) -> None:
    script.build(TOLD, tmp_path / "case", clones)
    expected = (
        "# mm: mesh(stage=2)\nwidth = 8\n\n@jax.jit  # mm: mjit\ndef step(x):\n    return x  # mm: task(stage=0)\n"
    )
    assert (tmp_path / "case" / "train.py").read_text() == expected
    told = tomllib.loads((tmp_path / "case" / "score.toml").read_text())
    assert told == {"title": "a notebook", "expect": "rewritten", **TOLD["score"]}
    with pytest.raises(ValueError, match="no '65' in its sources"):
        script.build({**TOLD, "sizes": [["65", "8"]]}, tmp_path / "case", clones)
    with pytest.raises(ValueError, match="no line 'return y'"):
        script.build({**TOLD, "hints": [{"line": "return y", "comment": "mjit"}]}, tmp_path / "case", clones)


def test_every_program_has_at_most_five_hints(script: ModuleType) -> None:
    for path in script.PROGRAMS.glob("*.toml"):
        cases = script.variants(path.stem, tomllib.loads(path.read_text()))
        assert all(1 < len(told["hints"]) <= 5 for _, told in cases), path.stem
        assert all({"program", "step", "state", "layers", "stages"} <= told["score"].keys() for _, told in cases)


@pytest.mark.family
@pytest.mark.parametrize("count", [1, 2])
def test_a_program_runs_until_its_step_was_called_often_enough(tmp_path: Path, count: int) -> None:
    np = pytest.importorskip("numpy")
    pytest.importorskip("jax")
    (tmp_path / "program.py").write_text(PROGRAM)
    case = {"program": "program", "step": "step", "steps": 2, "compile": "any"}
    if count > 1:
        case["microbatches"] = {"count": count, "batch": [1]}
    (tmp_path / "case.json").write_text(json.dumps(case))
    command = [sys.executable, str(ROOT / "validation" / "run_case.py"), "case.json", "out"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with np.load(tmp_path / "out.npz") as found:
        w, value, first, first_value = (found[f"[{position}]"] for position in range(4))
    x = np.arange(8.0).reshape(4, 2)
    weights, values = [np.ones(2)], []
    for _ in range(2):
        means = [part.mean(0) for part in np.split(x, count)]
        values.append(np.mean([(mean @ weights[-1]) ** 2 for mean in means]))
        weights.append(weights[-1] - np.mean([2 * (mean @ weights[-1]) * mean for mean in means], 0))
    np.testing.assert_allclose([value, first_value], values[::-1], rtol=1e-5)
    np.testing.assert_allclose([w, first], weights[:0:-1], rtol=1e-5)
