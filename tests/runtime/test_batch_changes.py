"""What a loss changes of its batch is seen as after one call on the whole batch, or raises where it is read."""

import dataclasses
import functools
import operator
import textwrap

import jax
import jax.numpy as jnp
import pytest

import mmruntime as mm


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Rows:
    x: jax.Array

    def double(self):
        self.x = 2 * self.x

    @functools.cached_property
    def total(self):
        return self.x.sum()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(slots=True)
class SlottedRows:
    x: jax.Array


def scale(b):
    b["x"] = 2 * b["x"]


NAMES = {"functools": functools, "jax": jax, "jnp": jnp, "operator": operator, "scale": scale}
# What a loss does with its batch: what is taken out or moved, and what is put in.
MOVES = [
    'batch.pop("y")',
    'del batch["y"]',
    'batch["x"], batch["y"] = batch["y"], batch["x"]',
    'batch["parts"].pop(0)',
    'batch["parts"].reverse()',
    'batch["parts"].append(batch["x"])',
    'batch["new"] = batch["x"]',
    'note = lambda: batch.pop("y")\nnote()',
    'own = dict(batch)\nown["x"] = 1.0',
    'own = dict(batch)\nown["inner"].clear()',
    'batch = {**batch, "x": 1.0}',
    'batch["rows"].total',
    "pass",
]
PUTS = [
    'batch["x"] = batch["x"] * 2',
    'batch["x"] *= 2',
    'batch |= {"z": 2 * batch["x"]}',
    '(own := batch)["x"] = 2 * batch["x"]',
    'inner = batch["inner"]\ninner["z"] *= 2',
    "scale(batch)",
    "functools.partial(scale)(batch)",
    "for part in batch.values():\n    isinstance(part, list) and part.append(2 * batch['x'])",
    'operator.setitem(batch, "x", 1.0)',
    "dict.update(batch, z=2 * batch['x'])",
    'batch.setdefault("w", 2 * batch["x"])',
    'own = {**batch}\nown["inner"]["z"] = 2 * batch["x"]',
    'batch.get("parts").append(2 * batch["x"])',
    'batch["parts"][0] = 2 * batch["x"]',
    'batch["rows"].double()',
    'setattr(batch["slotted"], "x", 2 * batch["x"])',
]


def shapes_after(body, read, *, cut):
    """The shapes of what is read of the batch after the gradient."""
    names = dict(NAMES)
    returned = "return (params * rows).mean()"
    exec(f"def loss(params, batch):\n    rows = batch['x']\n{textwrap.indent(body, '    ')}\n    {returned}", names)

    def step(params, batch):
        gradient = jax.grad(names["loss"])
        if cut:
            gradient = mm.microbatch(gradient, size=2, argnum=1, reduce="exact")
        return gradient(params, batch), read(batch)

    batch = {"x": jnp.ones((8, 4)), "y": jnp.ones(8), "parts": [jnp.ones((8, 1)), jnp.ones((8, 2))]}
    batch |= {
        "inner": {"z": jnp.ones((8, 3))},
        "rows": Rows(jnp.ones((8, 5))),
        "slotted": SlottedRows(jnp.ones((8, 6))),
    }
    return jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(step, jnp.ones(()), batch)[1])


@pytest.mark.parametrize("body", MOVES)
def test_what_is_taken_out_or_moved_is_so_for_the_caller(body):
    assert shapes_after(body, lambda batch: batch, cut=True) == shapes_after(body, lambda batch: batch, cut=False)


@pytest.mark.parametrize("body", PUTS)
def test_what_is_put_in_raises_where_it_is_read(body):
    shapes_after(body, lambda batch: batch, cut=False)
    with pytest.raises(ValueError, match="loss puts another value into its batch, at "):
        shapes_after(body, lambda batch: batch, cut=True)
    assert shapes_after(body, lambda batch: batch["y"], cut=True) == (8,)


READS = [lambda x: jnp.sum(x), lambda x: x.sum(), lambda x: x * 2, lambda x: 2 @ x, lambda x: x[0], lambda x: len(x)]


@pytest.mark.parametrize("read", READS)
def test_each_way_to_read_raises(read):
    with pytest.raises(ValueError, match=r"puts another value into its batch, at \['x'\].* own = dict\(batch\)"):
        shapes_after('batch["x"] = 1.0', lambda batch: read(batch["x"]), cut=True)
