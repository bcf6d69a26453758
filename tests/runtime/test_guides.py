"""The programs of the tutorial and the recipes run, and those of the tutorial learn what they learn on one device."""

import importlib.util
import io
import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import jax
import numpy as np
import pytest
from scripts import load_script

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DOCS = EXAMPLES.parent / "docs"
RECIPES = sorted(path for path in (EXAMPLES / "recipes").glob("*.py") if path.stem != "pipeline")


@pytest.fixture(autouse=True)
def settings():
    # Optax and Flax are not written for strict promotion.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def losses(text: str) -> list[float]:
    """What `main` of a program prints, with half of its layers and three steps."""
    for more, fewer in (("range(20)", "range(3)"), ("= 32, 8, 64", "= 32, 4, 64")):
        assert more in text
        text = text.replace(more, fewer)
    names = {"__name__": "train"}
    exec(compile(text, "train.py", "exec"), names)
    with redirect_stdout(io.StringIO()) as printed:
        names["main"]()
    found = [float(line.rpartition("loss")[2]) for line in printed.getvalue().splitlines()]
    assert len(found) == 3
    return found


@pytest.mark.family
@pytest.mark.parametrize("track", ["linen", "nnx", "equinox"])
def test_the_program_of_the_tutorial_learns_the_same_after_rewriting(track):
    path = EXAMPLES / "tutorial" / track / "train.py"
    before = path.read_text(encoding="utf-8")
    rewrite = rewrite_source(before, Registry())
    assert rewrite.changed and not rewrite.refusals
    np.testing.assert_allclose(losses(rewrite.result.decode()), losses(before), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("track", ["linen", "nnx", "equinox"])
def test_the_hints_of_the_tutorial_are_those_that_its_command_writes(track, tmp_path):
    (command,) = re.findall(
        r"^mmrewrite (suggest .*)$", (DOCS / "tutorial.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    hinted = (EXAMPLES / "tutorial" / track / "train.py").read_text(encoding="utf-8")
    program = tmp_path / "train.py"
    program.write_text(load_script("tools/make_pages.py").HINT.sub("", hinted), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_NUMPY_")}
    started = [sys.executable, "-m", "mmrewrite", *command.split()]
    subprocess.run(started, cwd=tmp_path, check=True, capture_output=True, env=environment)
    assert program.read_text(encoding="utf-8") == hinted


@pytest.fixture
def recipes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES / "recipes"))
    monkeypatch.setattr(sys, "argv", ["recipe"])
    yield
    sys.modules.pop("pipeline", None)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_recipe_runs(recipe, recipes, capsys):
    if recipe.stem == "checkpoint" and importlib.util.find_spec("orbax") is None:
        pytest.skip("needs orbax-checkpoint")
    runpy.run_path(str(recipe), run_name="__main__")
    assert capsys.readouterr().out
    if recipe.stem == "checkpoint":
        runpy.run_path(str(recipe), run_name="__main__")
        assert "step 3" in capsys.readouterr().out
