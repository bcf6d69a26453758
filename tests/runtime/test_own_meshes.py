"""Meshes that a program made itself, in a step for another mesh: translated where the axes match, else an error."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import normal, weights

pytestmark = pytest.mark.family

WIDTH = 8
LAYERS = 2
X = normal(16, WIDTH)


def own(*names, sizes=(8,)):
    return Mesh(np.array(jax.devices()).reshape(sizes), names)


DATA = own("data")
SAME = Mesh(np.array(jax.devices()[:2]), ("model",))
BOTH = own("stage", "model", sizes=(4, 2))


def mesh(**options):
    return mm.MultiMesh(axis_sizes=(4, 2), axis_names=("stage", "model"), **options)


def laid_out(sharding):
    return lambda x: jax.lax.with_sharding_constraint(x, sharding)


def in_scan(function):
    return lambda x: jax.lax.scan(lambda carry, _: (function(carry) * 1.5, None), x, None, length=2)[0]


def in_cond(function):
    return lambda x: jax.lax.cond(x.sum() > 1e9, lambda x: x, lambda x: function(x) * 2.0, x)


def in_jit(function):
    return lambda x: jax.jit(lambda x: function(x) + 1.0)(x) * 2.0


def in_remat(function):
    return jax.checkpoint(lambda x: jnp.sin(function(x)))


def in_context(x):
    with pytest.warns(DeprecationWarning), BOTH:
        return jax.lax.with_sharding_constraint(x, P(None, "model"))


def logical(x):
    return nn.with_logical_constraint(x, ("batch", None), rules=(("batch", "model"),), mesh=SAME)


def step_of(function):
    """A step with the function before, inside and behind tasks, and in its loop."""

    def loss(ws, x):
        x = function(x)
        for i, w in enumerate(ws):
            x = mm.task(lambda w, x: function(jnp.tanh(x @ w)), task=mm.Task(f"layer{i}", mesh_slice={"stage": i}))(
                w, x
            )
        return (function(x) ** 2).mean()

    def step(ws, x):
        value, grads = mm.microbatch(
            jax.value_and_grad(loss), count=4, argnum=1, schedule="1f1b", reduce="mean", check=False
        )(ws, x)
        return value, [w - 0.1 * function(g) for w, g in zip(ws, grads, strict=True)]

    return step


@functools.cache
def by_jit(plain, layers=LAYERS):
    """What plain `jax.jit` makes of a step; many functions here compute the same."""
    return jax.jit(step_of(plain))(weights(layers, WIDTH), X)


def same_as_jit(function, plain, layers=LAYERS):
    step = mm.mjit(step_of(function), mesh=mesh())
    value, new = step(weights(layers, WIDTH), X)
    expected, expected_new = by_jit(plain, layers)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for w, e in zip(new, expected_new, strict=True):
        np.testing.assert_allclose(w, e, rtol=1e-5, atol=1e-6)
    return step


CONSTRAINTS = {
    "replicated": laid_out(NamedSharding(DATA, P())),
    "same_axis": laid_out(NamedSharding(BOTH, P("model"))),
    "sliced_axis": laid_out(NamedSharding(BOTH, P("stage", "model"))),
    "two_axes_on_one_dimension": laid_out(NamedSharding(BOTH, P(("stage", "model")))),
    "mesh_of_two": laid_out(NamedSharding(SAME, P(None, "model"))),
    "unconstrained": laid_out(NamedSharding(BOTH, P(P.UNCONSTRAINED, "model"))),
    "axis_of_one": laid_out(NamedSharding(own("data", "one", sizes=(8, 1)), P("one"))),
    "device_put": lambda x: jax.device_put(x, NamedSharding(BOTH, P("model"))),
    "device_put_of_a_tree": lambda x: jax.device_put({"x": x}, NamedSharding(BOTH, P("model")))["x"],
    "device_put_nowhere": jax.device_put,
    "jit": lambda x: jax.jit(
        jnp.sin, in_shardings=NamedSharding(BOTH, P("model")), out_shardings=NamedSharding(BOTH, P())
    )(x),
    "asarray": lambda x: x + jnp.asarray(np.ones((1, WIDTH), np.float32), device=NamedSharding(BOTH, P(None, "model"))),
    "linen": logical,
    "in_context": in_context,
}
AROUND = {"scan": in_scan, "cond": in_cond, "jit": in_jit, "remat": in_remat}


def identity(x):
    return x


def plus_one(x):
    return x + 1


@functools.cache
def plainly(around, plain):
    """One function for each of what computes the same, so that it is compiled once."""
    return plain if around is None else AROUND[around](plain)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_constraint_over_an_own_mesh_moves_to_each_submesh(name):
    same_as_jit(CONSTRAINTS[name], {"jit": jnp.sin, "asarray": plus_one}.get(name, identity))


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", ["sliced_axis", "device_put", "jit", "in_context"])
def test_it_may_stand_in_any_body(around, name):
    same_as_jit(AROUND[around](CONSTRAINTS[name]), plainly(around, {"jit": jnp.sin}.get(name, identity)))


def test_the_layout_is_that_of_the_constraint():
    def step(x):
        task = mm.Task(name="first", mesh_slice={"stage": 1})
        return mm.task(laid_out(NamedSharding(BOTH, P(None, ("stage", "model")))), task=task)(x)

    y = mm.mjit(step, mesh=mesh())(X)
    assert y.sharding.spec == P(None, "model")
    assert y.devices() == set(jax.devices()[2:4])


def test_a_step_of_one_program_takes_any_mesh_of_its_devices():
    def step(x):
        return laid_out(NamedSharding(DATA, P("data")))(x) @ laid_out(NamedSharding(DATA, P(None, "data")))(x.T)

    np.testing.assert_allclose(mm.mjit(step, mesh=mesh())(X), X @ X.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("around", [None, "scan", "cond"])
@pytest.mark.parametrize(
    ("spec", "other", "why"),
    [
        (
            P("data"),
            DATA,
            r"\(data=8\).* has no axis 'data'\. .* axes\(data=\"model\"\) .*\('data', 'model'\) in logical_axes=",
        ),
        (P(None, ("data",)), DATA, r"lays a value out by P\(None, 'data'\) over .* has no axis 'data'\."),
        (P("model"), own("model"), r"\(model=8\).* has 'model' in size 2\."),
    ],
)
def test_an_axis_that_the_submesh_does_not_have_is_an_error(spec, other, why, around):
    function = laid_out(NamedSharding(other, spec))
    named = mesh(logical_axes=[("batch", "model")])
    step = mm.mjit(step_of(function if around is None else AROUND[around](function)), mesh=named)
    with pytest.raises(ValueError, match=why) as raised:
        step(weights(LAYERS, WIDTH), X)
    assert re.search(r"with_sharding_constraint at .*test_own_meshes\.py:\d+", str(raised.value))
    assert "the submesh (stage=1, model=2) of MultiMesh(stage=4, model=2)" in str(raised.value)


FOUR = Mesh(np.array(jax.devices()[:4]), ("devices",))
MAPPED = {
    "constraint": laid_out(NamedSharding(FOUR, P("devices"))),
    "in_scan": in_scan(laid_out(NamedSharding(FOUR, P("devices")))),
    "size_of_the_axis": laid_out(NamedSharding(Mesh(np.array(jax.devices()[:2]), ("devices",)), P("devices"))),
    "beside_an_own_axis": laid_out(NamedSharding(own("devices", "model", sizes=(4, 2)), P("devices", "model"))),
    "on_one_dimension": laid_out(NamedSharding(own("devices", "odd", sizes=(4, 2)), P(("devices", "odd")))),
    "unconstrained": laid_out(NamedSharding(FOUR, P(P.UNCONSTRAINED, "devices"))),
    "another_size": laid_out(NamedSharding(own("model"), P("model"))),
    "device_put": lambda x: jax.device_put(x, NamedSharding(FOUR, P("devices"))),
    "jit": lambda x: jax.jit(jnp.sin, in_shardings=NamedSharding(FOUR, P("devices")))(x),
}
PAIRS = [("devices", "model"), ("odd", None), ("model", "model")]


@pytest.mark.parametrize("name", MAPPED)
def test_the_axes_of_an_own_mesh_are_those_that_logical_axes_say(name):
    """As the message for an unknown axis says."""
    step = mm.mjit(step_of(MAPPED[name]), mesh=mesh(logical_axes=PAIRS))
    value, _ = step(weights(LAYERS, WIDTH), X)
    plain = {"jit": jnp.sin, "in_scan": plainly("scan", identity)}.get(name, identity)
    np.testing.assert_allclose(value, by_jit(plain)[0], rtol=1e-6)
    assert step.explain().idle_axes == ()


def test_a_mapped_axis_that_does_not_divide_its_dimension_is_an_error_with_the_line():
    def step(x):
        constrained = laid_out(NamedSharding(own("devices"), P("devices")))
        return mm.task(constrained, task=mm.Task(name="first", mesh_slice={"stage": 1}))(x)

    with pytest.raises(ValueError, match=r"^with_sharding_constraint at .*\.py:\d+.*: Task 'first': .* 3 is not divis"):
        mm.mjit(step, mesh=mesh(logical_axes=PAIRS))(X[:3])


@pytest.mark.parametrize("place", [lambda: jax.devices()[0], lambda: SingleDeviceSharding(jax.devices()[0])])
@pytest.mark.parametrize("around", [None, "scan"])
def test_a_device_is_an_error_that_names_it(place, around):
    def function(x):
        return jax.device_put(x, place())

    with pytest.raises(
        ValueError, match=r"jax\.device_put at .*:\d+ .* puts a value on .*0, but .* Leave the device out"
    ):
        mm.mjit(step_of(function if around is None else AROUND[around](function)), mesh=mesh())(
            weights(LAYERS, WIDTH), X
        )


def mapped(mesh, axis):
    return jax.shard_map(
        lambda x: x - jax.lax.pmean(x.mean(1, keepdims=True), axis),
        mesh=mesh,
        in_specs=P(None, axis),
        out_specs=P(None, axis),
    )


@pytest.mark.parametrize("around", [None, "scan", "cond", "jit"])
def test_a_shard_map_over_the_same_axes_moves(around):
    function = mapped(SAME, "model") if around is None else AROUND[around](mapped(SAME, "model"))
    same_as_jit(function, plainly(around, lambda x: x - x.mean(1, keepdims=True)))


def test_a_shard_map_over_other_axes_is_an_error():
    with pytest.raises(
        ValueError, match=r"shard_map at .*:\d+ .*\(data=8\).*Write mm\.shard_map\(\.\.\.\) without mesh="
    ):
        mm.mjit(step_of(mapped(DATA, "data")), mesh=mesh())(weights(LAYERS, WIDTH), X)


def test_the_advice_for_shard_map_works():
    def centered(x):
        return mm.shard_map(
            lambda x: x - jax.lax.pmean(x.mean(0, keepdims=True), "model"), in_specs=P("model"), out_specs=P("model")
        )(x)

    def step(x):
        return mm.task(centered, task=mm.Task(name="a", mesh_slice={"stage": 1}))(x)

    np.testing.assert_allclose(mm.mjit(step, mesh=mesh())(X), X - X.mean(0, keepdims=True), rtol=1e-5, atol=1e-6)


def test_stages_with_own_meshes_are_still_compiled_once():
    step = same_as_jit(CONSTRAINTS["sliced_axis"], identity, layers=4)
    names = {program.as_text()[:80] for program in step.latest_plan.compiled.programs.values()}
    assert len(names) < len(step.latest_plan.compiled.programs)


@pytest.mark.parametrize("around", [None, "scan", "jit"])
def test_a_spec_without_a_mesh_is_an_error_with_advice_that_works(around):
    def constrained(x):
        return jax.lax.with_sharding_constraint(x, P("batch"))

    function = constrained if around is None else AROUND[around](constrained)
    advice = (
        r"at .*test_own_meshes\.py:\d+ \(constrained\) .* write mm\.with_sharding_constraint\(x, P\(\.\.\.\)\) there"
    )
    for context in (jax.set_mesh(None), jax.set_mesh(BOTH)):
        with context, pytest.raises(RuntimeError, match=advice):
            mm.mjit(step_of(function), mesh=mesh())(weights(LAYERS, WIDTH), X)
