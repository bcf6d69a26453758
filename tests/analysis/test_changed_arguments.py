"""Losses that change their batch, which later code reads or does not."""

from __future__ import annotations

import textwrap

import pytest
from hinted_sites import site_of

from mmrewrite.analysis.steps.changed_arguments import ChangedArgument, changed_argument
from mmrewrite.analysis.steps.gradients import find_gradient

pytestmark = pytest.mark.quick

HEAD = """\
import jax, functools, operator
import equinox as eqx
import jax.numpy as jnp
from flax import nnx
def scale(b):
    b["x"] = b["x"] * 2
def scaled(b):
    b = dict(b)
    b["x"] = b["x"] * 2
    return b
class Rows:
    def normalize(self):
        self.x = 1
"""

# What a loss does with its batch.
CHANGES = [
    'batch["x"] = batch["x"] * 2',
    "batch.append(batch[0])",
    'del batch["x"]',
    'batch["x"] *= 2',
    'batch |= {"a": 1}',
    "batch += [1]",
    'own = batch\nown["x"] = 1',
    '(own := batch)["x"] = 1',
    'inner = batch["a"]\ninner["x"] = 1',
    "scale(batch)",
    "scale(b=batch)",
    "functools.partial(scale)(batch)",
    'def f(b):\n    b.pop("x")\nf(batch)',
    "for part in batch.values():\n    part.append(1)",
    "[b.append(1) for b in batch]",
    'setattr(batch, "x", 1)',
    'operator.setitem(batch, "x", 1)',
    "dict.update(batch, a=1)",
    "batch.update(a=1)",
    'y = batch.pop("y")',
    'batch.setdefault("z", 1)',
    "batch.x = 1",
    'batch["a"]["b"] = 1',
    'own = dict(batch)\nown["a"]["b"] = 1',
    'own = {**batch}\nown["a"].append(1)',
    'own = batch if params is not None else {}\nown["x"] = 1',
    'a, b = batch, 1\na["x"] = 1',
    'batch["x"], y = 1, 2',
    'batch.get("a").append(1)',
    'with open(1) as f:\n    batch["x"] = 1',
    'note = lambda: batch.pop("y")\nnote()',
    'if params is not None:\n    batch = dict(batch)\nbatch["x"] = 1',
    "batch.normalize()",
]
NO_CHANGES = [
    'own = dict(batch)\nown["x"] = 1',
    'batch = dict(batch)\nbatch["x"] = 1',
    "batch = scaled(batch)",
    'batch = {**batch, "x": 1}',
    'batch = jax.tree.map(jnp.asarray, batch)\nbatch["x"] = 1',
    'x = batch["x"] + 1\nx += 1',
    'x = batch["x"].at[0].add(1)',
    'y = batch["x"].sort()',
    'params["w"] = 1',
    'x = jnp.append(batch["x"], 1)',
    'own = batch["x"] * 1\nown["a"] = 1',
    "y = {k: v for k, v in batch.items()}",
    'def f(b):\n    return b["x"]\nf(batch)',
]


def found(text: str) -> ChangedArgument | None:
    site = site_of(HEAD + textwrap.dedent(text))
    return changed_argument(site, find_gradient(site), ())


def step(
    body: str, below: str = "jnp.sum(batch['x'])", above: str = "pass", call: str = "jax.grad(loss)(params, batch)"
) -> str:
    return f"""
@jax.jit
def step(params, batch):
    {above}
    def loss(params, batch):
{textwrap.indent(body, "        ")}
        return jnp.mean(batch["x"] @ params)
    grads = {call}  # mm: microbatch(size=2, argnum=1)
    return grads, {below}
"""


@pytest.mark.parametrize("body", CHANGES)
def test_a_batch_that_is_changed_and_read(body: str) -> None:
    assert found(step(body)) is not None
    assert found(step(body, below="params")) is None


@pytest.mark.parametrize("body", NO_CHANGES)
def test_a_batch_that_is_not_changed(body: str) -> None:
    assert found(step(body)) is None


# What is read above, below and in the statement.
READ = {
    "below": {"below": "len(batch)"},
    "by another name": {"below": "own['x']", "above": "own = batch"},
    "in a tuple": {"below": "len(pair)", "above": "pair = (batch, 1)"},
    "by a lambda above": {"below": "seen()", "above": "seen = lambda: len(batch)"},
    "in the same statement": {"below": "1", "call": "(jax.grad(loss)(params, batch), len(batch))"},
    "of a partial": {"below": "len(batch)", "call": "jax.grad(functools.partial(loss))(params, batch)"},
    "of a lambda": {"below": "len(batch)", "call": "jax.grad(lambda p, b: loss(p, b))(params, batch)"},
    "of Equinox": {"below": "len(batch)", "call": "eqx.filter_grad(loss)(params, batch)"},
    "by keyword": {"below": "len(batch)", "call": "jax.grad(loss)(params, batch=batch)"},
}
UNREAD = {
    "nowhere": {"below": "1"},
    "above": {"below": "1", "above": "n = len(batch)"},
    "of a copy": {"below": "len(batch)", "call": "jax.grad(loss)(params, dict(batch))"},
    "of a display": {"below": "len(batch)", "call": "jax.grad(loss)(params, {**batch})"},
    "of what nnx builds anew": {"below": "len(batch)", "call": "nnx.grad(loss)(params, batch)"},
}


@pytest.mark.parametrize("what", [*READ, *UNREAD])
def test_where_it_is_read(what: str) -> None:
    assert (found(step('labels = batch.pop("y")', **(READ | UNREAD)[what])) is not None) == (what in READ)


# Programs around a step, and whether they read what its loss changes.
PROGRAMS = {
    "compiled by a call": (
        """
        def step(params, batch):
            def loss(params, batch):
                y = batch.pop("y")
                return 0
            return jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
        step = jax.jit(step)
        def main(p, b):
            g = step(p, b)
            return len(b)
        """,
        False,
    ),
    "kept by an object": (
        """
        class Trainer:
            def step(self, params, batch):
                def loss(params, batch):
                    y = batch.pop("y")
                    return 0
                self.batch = batch
                return jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
        """,
        True,
    ),
    "caller": (
        """
        def step(params, batch):
            def loss(params, batch):
                y = batch.pop("y")
                return 0
            return jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
        def main(p, b):
            g = step(p, b)
            return len(b)
        """,
        True,
    ),
    "caller none": (
        """
        def step(params, batch):
            def loss(params, batch):
                y = batch.pop("y")
                return 0
            return jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
        def main(p, b):
            g = step(p, b)
            return g
        """,
        False,
    ),
    "loop": (
        """
        def step(params, batch):
            def loss(params, batch):
                y = batch.pop("y")
                return 0
            for _ in range(3):
                n = len(batch)
                g = jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
            return g
        """,
        True,
    ),
    "loop own": (
        """
        def step(params, batches):
            def loss(params, batch):
                y = batch.pop("y")
                return 0
            for batch in batches:
                n = len(batch)
                g = jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
            return g
        """,
        False,
    ),
    "method": (
        """
        class T:
            def loss(self, params, batch):
                batch["x"] = 1
                return 0
            @jax.jit
            def step(self, params, batch):
                g = jax.grad(self.loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
                return g, batch["x"]
        """,
        True,
    ),
    "self.batch": (
        """
        class T:
            def step(self, params):
                def loss(params, batch):
                    batch["x"] = 1
                    return 0
                return jax.grad(loss)(params, self.batch)  # mm: microbatch(size=2, argnum=1)
        """,
        True,
    ),
    "partial": (
        """
        def loss(cfg, params, batch):
            batch["x"] = 1
            return 0
        @jax.jit
        def step(params, batch):
            g = jax.grad(functools.partial(loss, 1))(params, batch)  # mm: microbatch(size=2, argnum=1)
            return g, batch["x"]
        """,
        True,
    ),
    "partial name": (
        """
        def loss(cfg, params, batch):
            batch["x"] = 1
            return 0
        @jax.jit
        def step(params, batch):
            f = functools.partial(loss, 1)
            g = jax.grad(f)(params, batch)  # mm: microbatch(size=2, argnum=1)
            return g, batch["x"]
        """,
        True,
    ),
    "by name": (
        """
        def loss(params, batch):
            batch["x"] = 1
            return 0
        @jax.jit
        def step(params, batch):
            f = jax.grad(loss)
            g = f(params, batch)  # mm: microbatch(size=2, argnum=1)
            return g, batch["x"]
        """,
        True,
    ),
    "argnums": (
        """
        def loss(params, batch):
            params["x"] = 1
            return 0
        @jax.jit
        def step(params, batch):
            g = jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
            return g, params["x"]
        """,
        False,
    ),
    "lambda": (
        """
        @jax.jit
        def step(params, batch):
            g = jax.grad(lambda p, b: b.pop("y").sum())(params, batch)  # mm: microbatch(size=2)
            return g, batch
        """,
        True,
    ),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_programs(what: str) -> None:
    text, is_read = PROGRAMS[what]
    assert (found(text) is not None) == is_read


@pytest.mark.parametrize(
    ("change", "copy"),
    [
        ("batch['x'] = 1", "dict(batch)"),
        ("batch.append(1)", "list(batch)"),
        ("batch[0] = 1", "list(batch)"),
        ("batch['a']['x'] = 1", "jax.tree.map(lambda leaf: leaf, batch)"),
        ("scale(batch)", "dict(batch)"),
        ("scale(batch['a'])", "jax.tree.map(lambda leaf: leaf, batch)"),
    ],
)
def test_the_copy_that_is_advised(change: str, copy: str) -> None:
    told = found(step(change))
    assert told is not None
    assert told.copy == copy
    assert found(step(f"batch = {copy}\n{change}")) is None


def test_the_line_of_a_helper_in_another_module_names_that() -> None:
    text = """
import jax
import state
@jax.jit
def step(params, batch):
    def loss(params, batch):
        state.helper(batch)
        return batch @ params
    return jax.grad(loss)(params, batch), batch  # mm: microbatch(size=2)
"""
    site = site_of(text, state="def helper(value):\n    value.append(1)\n")
    told = changed_argument(site, find_gradient(site), ())
    assert told is not None
    assert told.described(site.facts) == "changes its argument `batch` on line 2 of state.py, which line 9 reads"
