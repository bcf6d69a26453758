"""A masked language model with MultiSteps around adamw: with hints alone it is a pipeline with the same numbers."""

import runpy
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("flax")
pytest.importorskip("optax")

pytestmark = pytest.mark.slow

# `tests/test_fixtures.py` holds the second program to be what the first is rewritten to.
FIXTURE = Path(__file__).parents[2] / "fixtures" / "hints" / "microbatch_grad" / "masked_language_model"


def test_it_is_exact() -> None:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        plain, rewritten = (runpy.run_path(str(FIXTURE / name)) for name in ("before.py", "after.py"))
    named = jax.tree_util.tree_leaves_with_path(plain["out"])
    for (path, expected), found in zip(named, jax.tree.leaves(rewritten["out"]), strict=True):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)
    said = str(rewritten["train_step"].explain())
    assert "the whole batch's results, proved" in said
    assert "computed once on the whole batch: reduce_sum" in said
    tokens = [int(metrics["tokens"]) for metrics in rewritten["out"][0]]
    assert len(set(tokens)) > 1
    assert {device.id for leaf in jax.tree.leaves(rewritten["out"][1]) for device in leaf.devices()} == {0, 1, 2, 3}
