"""Programs that pass something off as what a hint asks for: each is refused with a sentence, or rewritten rightly.

They are in `hint_attacks.txt`, by what they pass off. What is rewritten says so, with text of the result: there the
attack only looks like one, or the runtime proves what it is given.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from fixture_files import source_files
from test_values import programs

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.source.jit_kinds import JIT_KINDS

pytestmark = pytest.mark.quick

REGISTRY = Registry()
HEAD = """import functools
import typing
from unittest import mock
import flax
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn, nnx
from nowhere import FLAG, fake
# mm: mesh(stage=2)
def forward(params, value):
    for w in params:  # mm: stages
        value = jnp.tanh(value @ w)
    return value
def loss(params, value):
    return (forward(params, value) ** 2).mean()
def noisy(params, value, noise):
    return loss(params, value + jax.random.normal(noise, value.shape))
def other(params, value):
    return value
def run(function, *arguments):
    return function(*arguments)
class Dense:
    def __call__(self, x):
        return jnp.tanh(x)
main = jax.jit(forward)  # mm: mjit
root = jax.random.key(0)
"""
LINES = HEAD.count("\n")


class Attack(NamedTuple):
    files: dict[str, bytes]
    wanted: str | None


def attack(title: str, code: str) -> Attack:
    """The files of a program, and what its result must have; None if it must be refused."""
    first, *others = re.split(r"^# file (.*)\n", code, flags=re.MULTILINE)
    files = {"main.py": HEAD + first, **dict(zip(others[::2], others[1::2], strict=True))}
    wanted = title.partition(" -> ")[2] or None
    return Attack({path: text.encode() for path, text in files.items()}, wanted)


ATTACKS = {title: attack(title, code) for title, code in programs("hint_attacks.txt").items()}


def test_each_function_that_compiles_has_a_word_that_files_are_searched_for() -> None:
    assert all("jit" in name or "pmap" in name for name in JIT_KINDS)


@pytest.mark.parametrize("title", ATTACKS)
def test_what_looks_like_it_is_refused_or_rewritten_rightly(title: str) -> None:
    files, wanted = ATTACKS[title]
    load = {f"./{path}": data for path, data in files.items()}
    results = rewrite_project(source_files(files), REGISTRY, load=load.get)
    assert [each.failure for each in results if each.failure is not None] == []
    told = [
        (each.line, each.reason)
        for result in results
        for each in result.refusals
        if not each.is_consequence and (each.line > LINES or result.path != "main.py" or "on line" in each.reason)
    ]
    told += [(each.line, each.message) for result in results for each in result.errors]
    _, _, own = results[0].result.decode().partition("root = jax.random.key(0)\n")
    if wanted is None:
        # A step for one device is told beside steps that are rewritten.
        assert "mm." not in own or title.startswith("step")
        assert told
        assert all("; " in reason or ": " in reason for _, reason in told), told
    else:
        assert wanted in own
        assert told == []
