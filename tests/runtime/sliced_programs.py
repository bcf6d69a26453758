"""A tiny decoder in the parts that tests of sequence slices put together, and its results in slices."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime._compat import as_fun, close, is_var
from mmruntime._partition.tracing.trace import trace
from mmruntime._slices.body import slice_loops
from tests.runtime.helpers import normal

EXAMPLES, LENGTH, WIDTH, WORDS = 4, 6, 4, 5


def parameters():
    sizes = {
        "embed": (WORDS, WIDTH), "place": (LENGTH + 2, WIDTH), "q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH),
        "v": (WIDTH, WIDTH), "up": (WIDTH, WIDTH), "out": (WIDTH, WORDS), "mix": (LENGTH, LENGTH),
    }  # fmt: skip
    return {name: 0.5 * normal(*size, seed=number) for number, (name, size) in enumerate(sizes.items())}


def data():
    rng = np.random.default_rng(7)
    ids = rng.integers(0, WORDS, (EXAMPLES, LENGTH + 1), np.int32)
    return {
        "x": ids[:, :-1],
        "y": ids[:, 1:],
        "ids": ids,
        "weight": rng.integers(0, 2, (EXAMPLES, LENGTH)).astype(parameters()["q"].dtype),
    }


def lower(length=LENGTH, below=0):
    return jnp.tril(jnp.ones((length, length), bool), below)


def masked(scores, shown=None, low=-1e30):
    return jnp.where(lower(scores.shape[-1]) if shown is None else shown, scores, low)


def attention(p, x, mask=masked):
    scores = jnp.einsum("btd,bsd->bts", x @ p["q"], x @ p["k"])
    return x + jnp.einsum("bts,bsd->btd", jax.nn.softmax(mask(scores), -1), x @ p["v"])


def embedded(p, ids):
    return p["embed"][ids] + p["place"][: ids.shape[1]]


def losses(p, x, y):
    logp = jax.nn.log_softmax(jnp.tanh(x @ p["up"]) @ p["out"])
    return -jnp.take_along_axis(logp, y[..., None], -1)[..., 0]


def model(mask=masked, before=lambda x, p: x, after=lambda x, p: x):
    """A loss of a model with one layer of attention."""

    def loss(p, batch):
        x = after(attention(p, before(embedded(p, batch["x"]), p), mask), p)
        return losses(p, x, batch["y"]).mean()

    return loss


def distances():
    return np.arange(LENGTH)[:, None] - np.arange(LENGTH)


def looped(loss, slices, count=2, of=jax.value_and_grad):
    return mm.microbatch(of(loss), count=count, argnum=1, slices=slices)


def evaluate(step, args):
    """The results of a step, of which each slice computes what it may."""
    env = dict(zip(step.invars, jax.tree.leaves(args), strict=True)) | dict(step.constants)

    def read(atom):
        return env[atom] if is_var(atom) else atom.val

    for region in step.regions:
        variant = {var: op for op in region.ops for var in op.writes()}
        for op in region.ops if region.num_slices > 1 else ():
            for var in op.reads():
                other = variant.get(var)
                if other is not None and op.backward:
                    assert not other.backward or other.variant >= op.variant
                elif other is not None:
                    assert other.variant <= op.variant and not other.backward
        written = {var for op in region.ops for var in op.writes()}
        reads = tuple(dict.fromkeys(var for op in region.ops for var in op.reads() if var not in written))
        body = as_fun(close(step.like, reads, tuple(written), [op.eqn for op in region.ops]))
        env.update({total: jnp.zeros(total.aval.shape, total.aval.dtype) for total, _ in region.sums})
        for number in range(1 if region.loop is None else region.loop.count):
            env.update({piece: env[stacked][number] for piece, stacked in region.slices.items()})
            env.update(zip(written, body(*map(read, reads)), strict=True))
            for total, result in region.sums:
                env[total] = env[total] + env[result]
    return [read(atom) for atom in step.outvars]


def in_slices(loss, slices, args=None, of=jax.value_and_grad):
    """The results of a loss and its gradient, or what else `of` makes of it, in slices, and of the same loop without.

    Raises:
        ValueError: If slices cannot be kept, or numbers are not what they must be.
    """
    args = (parameters(), data()) if args is None else args
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(args)]
    tree = jax.tree.structure(args)
    step, _ = trace(lambda *leaves: looped(loss, slices, of=of)(*jax.tree.unflatten(tree, leaves)), shapes, [])
    sliced = slice_loops(step)
    found, expected = jax.jit(lambda args: (evaluate(sliced, args), jax.tree.leaves(looped(loss, 1, of=of)(*args))))(
        args
    )
    for wrong in sliced.premises:
        number = int(found.pop(len(expected)))
        if number:
            raise ValueError(wrong[number - 1])
    return found, expected


def exact_or_told(loss, slices, args, tolerance=1e-9, of=jax.value_and_grad):
    """Where slices compute something else than the whole sequence, what is told of it, with its line; empty if nowhere.

    What is no number without slices must not be one with them.
    """
    try:
        found, expected = in_slices(loss, slices, args, of)
    except ValueError as error:
        assert re.search(rf"slices={slices} (cannot be kept|differs from the whole sequence) at .*\.py:\d+", str(error))
        return str(error)
    if not all(np.isfinite(np.asarray(each, float)).all() for each in expected):
        assert not all(np.isfinite(np.asarray(each, float)).all() for each in found)
        return ""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one, float), np.asarray(other, float), rtol=tolerance, atol=tolerance)
    return ""


def agree(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6)


def of_the_night(names, by_day):
    return [name if name in by_day else pytest.param(name, marks=pytest.mark.slow) for name in names]
