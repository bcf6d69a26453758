"""Constraints inside of `jax.vmap`: what means the examples is told where it cuts something else; others hold there."""

import inspect
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime._core.mesh import using
from mmruntime._partition.layouts.mapped_constraints import warn_of_mapped_constraints
from mmruntime._partition.tracing.trace import trace
from tests.runtime.helpers import assert_close, normal

# The sequence is as long as a microbatch, and as there are members of the ensemble: sizes tell nothing.
EXAMPLES, LENGTH, WIDTH = 8, 4, 8
PAIRS = (("batch", "data"), ("cells", "data"), ("hidden", "model"), ("sequence", "data"), ("examples", None))
MESH = mm.MultiMesh(axis_sizes=(2, 2, 2), axis_names=("stage", "data", "model"), logical_axes=PAIRS)


def constrain(x, names):
    return x if names is None else mm.with_sharding_constraint(x, P(*names))


def layer(w, x, names):
    h = constrain(jnp.tanh(x @ w), names)
    return x + jax.nn.softmax(h @ h.T / WIDTH, axis=-1) @ h @ w.T


def in_scan(w, x, names):
    return jax.lax.scan(lambda x, _: (layer(w, x, names), None), x, None, length=2)[0]


def in_calls(w, x, names):
    return jax.jit(jax.checkpoint(lambda x: jax.lax.cond(x.sum() > 0, lambda: layer(w, x, names), lambda: x)))(x)


def over_the_sequence(w, x, names):
    """A vmap in the vmap, as Equinox has for each dense layer; the constraint is between them."""
    h = constrain(jax.vmap(lambda row: jnp.tanh(row @ w))(x), names)
    return x + jnp.einsum("sd,td,te->se", h, h, h)


def of_tokens(w, x, names):
    return layer(w, w[jnp.clip(x[:, 0], 0, WIDTH - 1).astype(jnp.int32)], names)


def normalized(w, x, names):
    return layer(w, (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1), names)


def behind_what_is_not_known(w, x, names):
    return layer(w, jnp.abs(jnp.fft.fft(x)), names)


def loss_of(form, names, before=None, after=None):
    def model(ws, x):
        for stage, w in enumerate(ws):
            x = mm.task(lambda w, x: form(w, x, names), task=mm.stage(stage, 2))(w, x)
        return x

    def loss(ws, x):
        y = jax.vmap(model, in_axes=(None, 0))(ws, constrain(x, before))
        return jnp.mean(constrain(y, after) ** 2)

    return loss


def gradients(loss, count):
    grad = jax.grad(loss)
    return mm.microbatch(grad, argnum=1, count=count, reduce="exact") if count else grad


def told_of(loss, ws, x, count=2):
    """What a step that updates weights is warned of, before anything is compiled."""
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (*ws, x)]
    with using(MESH):
        step, _ = trace(lambda *leaves: gradients(loss, count)(list(leaves[:-1]), leaves[-1]), shapes, ())
    step = replace(step, carried={position: position for position in range(len(ws))})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_mapped_constraints(step, MESH)
    return [str(each.message) for each in caught]


def report_of(loss, ws, x, count=2):
    """The report of a step that computes what plain JAX does."""
    compiled = mm.mjit(gradients(loss, count), mesh=MESH)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="mjit: .* cuts no value")
        warnings.filterwarnings("ignore", message="mjit: the constraint at")
        assert_close(compiled(ws, x), jax.jit(jax.grad(loss))(ws, x), 1e-4)
    return compiled.explain()


def arguments():
    return [normal(WIDTH, WIDTH, seed=seed) / WIDTH for seed in range(2)], normal(EXAMPLES, LENGTH, WIDTH)


def number_of_collectives(report):
    return sum(row.found.count * row.runs for row in report.collectives)


@pytest.mark.parametrize(
    ("form", "names", "count"),
    [
        (layer, ("batch", None), None),
        (layer, ("batch", None), 2),
        (layer, ("batch", "hidden"), 2),
        (in_scan, ("batch", None), 2),
        (in_calls, ("batch", None), 2),
        (over_the_sequence, ("batch", None), None),
        (of_tokens, ("batch", None), 2),
        (normalized, ("batch", None), 2),
    ],
)
def test_a_constraint_that_means_the_examples_is_told_with_its_line(form, names, count):
    (text,) = told_of(loss_of(form, names), *arguments(), count)
    line = inspect.getsourcelines(constrain)[1] + 1
    assert text.startswith(f"mjit: the constraint at {__file__}:{line} is inside of a jax.vmap over examples, ")
    assert "'batch' cuts its dimension 0, of size 4, and not the examples." in text
    assert "(the hint shard('batch', ...)) on what the jax.vmap gets or returns, outside of it" in text


def test_sizes_will_do_behind_an_operation_that_is_not_known():
    ws, x = arguments()
    loss = loss_of(behind_what_is_not_known, ("batch", None))
    assert told_of(loss, ws, x) == []
    (text,) = told_of(loss, ws, normal(EXAMPLES, 6, WIDTH))
    assert "'batch' cuts its dimension 0, of size 6, and not the examples." in text


def test_a_name_that_examples_have_elsewhere_means_them():
    assert told_of(loss_of(layer, ("cells", None)), *arguments()) == []
    assert len(told_of(loss_of(layer, ("cells", None), after=("cells", None, None)), *arguments())) == 1


@pytest.mark.parametrize(
    "names", [(None, "hidden"), ("sequence", None), ("sequence", "hidden"), ("examples", None), None]
)
def test_other_names_are_no_mistake(names):
    assert told_of(loss_of(layer, names), *arguments()) == []


@pytest.mark.parametrize("count", [None, 2])
def test_a_batch_in_a_vmap_over_members_of_an_ensemble_is_one(count):
    def loss(ws, x):
        def member(ws):
            y = x
            for stage, w in enumerate(ws):
                y = mm.task(lambda w, y: constrain(jnp.tanh(y @ w), ("batch", None)), task=mm.stage(stage, 2))(w, y)
            return y

        return jnp.mean(jax.vmap(member)(ws) ** 2)

    ws = [normal(LENGTH, WIDTH, WIDTH, seed=seed) / WIDTH for seed in range(2)]
    assert told_of(loss, ws, normal(EXAMPLES, WIDTH), count) == []


def test_the_advice_cuts_the_examples_and_a_constraint_inside_leaves_them_so():
    """As one of JAX does: it says nothing of the dimension that the vmap has put in."""
    wrong = report_of(loss_of(layer, ("batch", None)), *arguments())
    for inside, around in ((None, "before"), (None, "after"), ((None, None), "before")):
        loss = loss_of(layer, inside, **{around: ("batch", None, None)})
        assert told_of(loss, *arguments()) == []
        right = report_of(loss, *arguments())
        assert "data" not in dict(right.idle_axes)
        # No more than the sum of the gradients of each stage.
        assert number_of_collectives(right) <= 2 < number_of_collectives(wrong)


def test_a_step_is_warned_where_it_is_compiled():
    with pytest.warns(UserWarning, match="is inside of a jax.vmap over examples"):
        mm.mjit(gradients(loss_of(layer, ("batch", "hidden")), 2), mesh=MESH).plan(*arguments())
