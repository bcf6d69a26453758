"""The page about hints: what it shows as comments and what it shows as calls becomes what it shows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mmrewrite import hints
from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.vocabulary import DIRECTIVES, IGNORE, SWITCHES
from mmrewrite.engine.rewrite import rewrite_source

PAGE = Path(__file__).resolve().parents[1] / "docs" / "hints.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PRELUDE = """import functools

import jax
import jax.numpy as jnp
import mmruntime as mm
from flax import linen as nn
from jax.sharding import PartitionSpec as P

# An example shows no imports: other code reads all of them, so that none goes with its last reader.
READ = functools, jax, nn, P


def loss_fn(params, batch):
    return jnp.mean(batch @ params)


"""
MESH = 'mesh = mm.MultiMesh(axis_sizes=(4, 2), axis_names=("stage", "data"))\n'


def examples() -> list[tuple[list[str], str]]:
    """What stands before each result, and the result."""
    found: list[tuple[list[str], str]] = []
    before: list[str] = []
    for block in BLOCKS:
        if "# mm: " in block or "hints." in block:
            before.append(block)
        else:
            found.append((before, block))
            before = []
    assert not before
    return found


@pytest.mark.parametrize(("sources", "after"), examples())
def test_what_the_page_shows(sources: list[str], after: str) -> None:
    assert sources
    for source in sources:
        prelude = PRELUDE if "mesh(" in source else PRELUDE + MESH
        imports = prelude.replace("PartitionSpec as P\n", "PartitionSpec as P\n\nfrom mmrewrite import hints\n")
        # A comment needs a statement below it.
        below = "" if ast.parse(source).body else "x = 1\n"
        before = (imports if "hints." in source else prelude) + source + below
        result = rewrite_source(before, Registry())
        assert not result.errors
        assert squeezed(result.result.decode()) == squeezed(prelude + after + below)


def squeezed(text: str) -> list[str]:
    """Lines in one layout, as the page has the formatter's, and the registration of a task where the page has it."""
    lines = [line for line in ast.unparse(ast.parse(text)).splitlines() if line.strip()]
    return sorted(lines, key=lambda line: not line.startswith("mesh.register_task"))


def test_every_directive_has_a_section() -> None:
    heads = {word for head in re.findall(r"^## (.*)$", TEXT, re.MULTILINE) for word in head.split(", ")}
    assert {*DIRECTIVES, *SWITCHES, IGNORE} <= heads


def test_every_function_is_named() -> None:
    assert all(f"hints.{name}" in TEXT or f"`{name}" in TEXT for name in hints.__all__)


def test_calls_on_the_page_run_without_effect() -> None:
    for block in BLOCKS:
        calls = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
        for call in calls:
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "hints":
                assert hasattr(hints, call.func.attr)
