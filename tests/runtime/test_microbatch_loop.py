"""`microbatch_loop`: a loop that a program has in Python, run as microbatches."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm

X = np.linspace(-1, 1, 8 * 4, dtype=np.float32).reshape(8, 4)
PARAMS = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
BATCH = {"x": X, "y": X[:, ::-1].copy()}


def loss_fn(params, rows, key):
    h = mm.task(jnp.tanh, "first", mesh_slice={"stage": 0})(rows["x"] @ params)
    h = jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h, jnp.zeros_like(h))
    return mm.task(lambda h: jnp.mean((h - rows["y"]) ** 2), "second", mesh_slice={"stage": 1})(h)


def by_slices(loop, params, batch):
    """The first gradient is the sum so far, and the loss begins as a number."""

    def accumulate(i, grads, loss):
        rows = jax.tree.map(lambda leaf: leaf[i * 2 : (i + 1) * 2], batch)
        more, g = jax.value_and_grad(loss_fn)(params, rows, jax.random.fold_in(jax.random.key(0), i))
        grads = g if grads is None else jax.tree.map(jnp.add, grads, g)
        return grads, loss + more / 4

    return loop(accumulate, range(4), None, 0.0)


@jax.jit
def scaled(total, one):
    return total + one * np.linspace(1, 2, 16, dtype=np.float32).reshape(4, 4)


@jax.jit
def add_up(total, one, kept):
    return jax.tree.map(scaled, total, one), kept


def by_rows(loop, params, batch):
    """Items are pieces of arrays and keys, and there is one sum, which jitted functions of the program add up."""
    pieces = jax.tree.map(lambda leaf: leaf.reshape(4, 2, *leaf.shape[1:]), batch)
    keys = jax.random.split(jax.random.key(1), 4)

    def accumulate(item, grads, kept):
        i, (rows, key) = item
        g = jax.grad(loss_fn)(params, {"x": rows, "y": pieces["y"][i]}, key)
        return add_up(grads, {"w": g}, kept)

    items = enumerate(zip(pieces["x"], keys, strict=True))
    return loop(accumulate, items, {"w": jnp.ones_like(params)}, jnp.ones(2))


def by_number(loop, params, batch):
    """The number of the iteration is used as one, and what is carried grows in several ways or stays."""

    def accumulate(i, grads, loss, seen, kept, worst, best, large):
        rows = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, i * 2, 2), batch)
        more, g = jax.value_and_grad(loss_fn)(params, rows, jax.random.key(2))
        grads = g if i == 0 else grads + g
        loss = loss + more * (i + 1) + 1.0
        worst, best = jnp.maximum(worst, rows["x"].max()), jnp.minimum(rows["x"].min(axis=0), best)
        return grads, loss - more, seen + 1, kept, worst, best, large | (rows["x"] > 1.5).any()

    start = jnp.ones(3), 1.0, 0, {"scale": jnp.ones(3)}, -jnp.inf, jnp.zeros(BATCH["x"].shape[1:]), False
    return loop(accumulate, range(4), *start)


def plainly(body, items, *carry):
    for item in items:
        result = body(item, *carry)
        carry = result if len(carry) > 1 else (result,)
    return carry if len(carry) > 1 else carry[0]


def piped(body, items, *carry):
    return mm.microbatch_loop(body, count=4, schedule="1f1b")(items, *carry)


def everything(loop, params, batch):
    return [program(loop, params, batch) for program in (by_slices, by_rows, by_number)]


def test_loops_are_pipelined_and_give_the_same():
    expected = jax.jit(lambda params, batch: everything(plainly, params, batch))(PARAMS, BATCH)
    mesh = mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))
    step = mm.mjit(lambda params, batch: everything(piped, params, batch), mesh=mesh)
    pairs = [
        (step(PARAMS, BATCH), expected),
        (jax.jit(lambda params, batch: by_slices(piped, params, batch))(PARAMS, BATCH), expected[0]),
        (by_rows(piped, PARAMS, BATCH), expected[1]),
    ]
    for found, plain in pairs:
        assert jax.tree.structure(found) == jax.tree.structure(plain)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)
    assert len(step.explain().loops) == 3
    said = step.explain().proofs
    assert "the loop's own results, proved" in said
    assert "the maximum over the iterations: `worst`, `large`" in said
    assert "the minimum over the iterations: `best`" in said


def in_turn(x, i, total, other):
    small, large = jnp.sin(x[0]).sum(), jnp.cos(x[0]).sum()
    return (total + large, other + small) if i % 2 else (total + small, other + large)


def in_task(x, i, total):
    h = mm.task(jnp.sin, "wave", mesh_slice={"stage": 0})(x[0])
    return total + h[i : i + 1].sum()


@pytest.mark.parametrize(
    ("body", "carry", "message"),
    [
        (lambda x, i, total: total * x[i].sum(), (1.0,), r"does more to `total` than add to it"),
        (lambda x, i, key: jax.random.split(key)[0], (jax.random.key(0),), r"does more to `key` than add to it"),
        (lambda x, i, total, last: (total + x[i].sum(), x[i]), (0.0, 0.0), r"does more to `last` than"),
        (lambda x, i, total: total + x[i].sum() if i < 2 else x[i].sum(), (0.0,), r"does more to `total` than"),
        (lambda x, i, total, other: (total + x[i].sum(), other + total), (0.0, 0.0), r"does more to `other` than"),
        (lambda x, i, total: jax.jit(jnp.multiply)(total, x[i].sum()), (1.0,), r"does more to `total` than"),
        (lambda x, i, total: total + x[i].sum() + jnp.sin(total), (0.0,), r"read what they carry \(`total`\) for more"),
        (lambda x, i, total: total + x[: i + 1].sum(), (0.0,), r"iteration 1 .* float32\[2, 4\] where the first makes"),
        (
            lambda x, i, total: total + (x[i].sum() if i else x[i].max()),
            (0.0,),
            r"iteration 1 .*`reduce_sum` where the",
        ),
        (in_turn, (0.0, 0.0), r"iteration 1 .* adds another of its values to what it carries than the first"),
        (in_task, (0.0,), r"computes `slice` with other settings than the first, in or after a task, at .*\.py"),
        (
            lambda x, i, total: jnp.append(total, x[i, 0]),
            (jnp.zeros(0),),
            r"returns `total` float32\[2\], and the first",
        ),
        (lambda x, i, total, other: total, (0.0, 0.0), r"takes 2 carried values and returned"),
    ],
)
def test_loops_that_are_no_sums_of_microbatches(body, carry, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda x: mm.microbatch_loop(functools.partial(body, x))(range(4), *carry), X)


@pytest.mark.parametrize(
    ("body", "carry", "error", "message"),
    [
        (lambda i, name: name + "x", "", TypeError, r"carries `name`, which is '', no array or number"),
        (lambda i, seen: lambda: seen, 0.0, TypeError, r"carries `seen`, which is <function .*, no array or number"),
        (lambda i, rows: [*rows, 1.0], [], ValueError, r"`rows` of .* has 2 leaves after iteration 1 and had 1 after"),
        (lambda i, n: n + jnp.asarray(X)[n : n + 1].sum(), 0, IndexError, r"`n` of .* begins as a number of Python"),
        (lambda i, n: max(n, i), 0, TypeError, r"`n` of .* begins as a number of Python"),
    ],
)
def test_values_of_python_that_are_carried(body, carry, error, message):
    with pytest.raises(error) as caught:
        jax.eval_shape(lambda x: mm.microbatch_loop(body)(range(4), carry), X)
    assert re.search(message, "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())]))


def test_the_advice_for_lists_that_grow():
    def losses_of(loop):
        def accumulate(i, losses):
            return losses + jnp.sum(X[i] ** 2) * jax.nn.one_hot(i, 4, dtype=jnp.float32)

        return jax.jit(lambda: loop(accumulate)(range(4), jnp.zeros(4)))()

    found = losses_of(mm.microbatch_loop)
    np.testing.assert_allclose(found, (X[:4] ** 2).sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize("each", [0.5, 1])
def test_numbers_of_python_that_are_added_up_keep_their_weak_type(each):
    """They leave the type of what they are multiplied with."""

    def step(x):
        total, scale = mm.microbatch_loop(lambda i, total, scale: (total + x[i], scale + each))(
            range(4), jnp.zeros(4), each * 0
        )
        return total, jnp.bfloat16(2) * scale, scale

    total, scaled, scale = jax.jit(step)(X)
    assert (scaled.dtype, scale.weak_type, total.weak_type) == (jnp.bfloat16, True, False)
    assert float(scale) == 4 * each


def test_iterations_that_differ_in_nothing():
    found = jax.jit(lambda x: mm.microbatch_loop(lambda _, total: total + x)(range(3), jnp.ones(4)))(X[0])
    np.testing.assert_allclose(found, 1 + 3 * X[0], rtol=1e-6)


def test_wrong_count_and_schedule():
    with pytest.raises(ValueError, match=r"the loop has 3 iterations, but count=4\. Write one number\."):
        mm.microbatch_loop(lambda i, total: total + i, count=4)(range(3), 0)
    with pytest.raises(ValueError, match="Unknown schedule 'fastest'"):
        mm.microbatch_loop(lambda i, total: total + i, schedule="fastest")
