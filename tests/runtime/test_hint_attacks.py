"""What is rewritten where something may not be the gradient: the runtime proves what it is given, whatever that is."""

from __future__ import annotations

import sys

import jax
import numpy as np
import pytest
from fixture_files import run, source_files
from test_hint_attacks import ATTACKS

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project

CALL = """
weights, rows = [jnp.eye(4), 2 * jnp.eye(4)], jnp.arange(32.0).reshape(8, 4) / 32
out = step(weights, rows)
"""
PROVED = [title for title, (_, wanted) in ATTACKS.items() if wanted is not None and title.startswith("gradient")]


@pytest.mark.parametrize("title", PROVED)
def test_what_may_be_no_gradient_gives_the_same(title, monkeypatch):
    nowhere = type(sys)("nowhere")
    nowhere.FLAG, nowhere.fake = 0, None
    monkeypatch.setitem(sys.modules, "nowhere", nowhere)
    before = ATTACKS[title].files["main.py"] + CALL.encode()
    (result,) = rewrite_project(source_files({"main.py": before}), Registry())
    for old, new in zip(jax.tree.leaves(run(before, jax)), jax.tree.leaves(run(result.result, jax)), strict=True):
        np.testing.assert_allclose(old, new, atol=1e-6)
