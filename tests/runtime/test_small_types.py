"""Types of less than a byte between submeshes and at the borders of programs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import normal

pytestmark = pytest.mark.family

TYPES = ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e4m3fn", "float8_e8m0fnu", "bool"]
RANGES = {"int4": (-8, 8), "uint4": (0, 16), "int2": (-2, 2), "uint2": (0, 4), "bool": (0, 2), "float8_e8m0fnu": (1, 9)}


def numbers(dtype, *shape, seed=0):
    low, high = RANGES.get(dtype, (-6, 7))
    values = np.random.default_rng(seed).integers(low, high, shape)
    return jnp.asarray(values, jnp.float32).astype(dtype)


def mesh():
    return mm.MultiMesh(axis_sizes=(4, 2), axis_names=("stage", "data"), logical_axes=[("batch", "data")])


@pytest.mark.parametrize("cut", [P("batch"), P(None, "batch"), P()], ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_they_cross_submeshes(dtype, cut):
    """The pieces of an array cut otherwise on the next submesh are moved one by one."""

    def layer(w, x, spec):
        x = mm.with_sharding_constraint(x, spec)
        return jnp.where(w > 0.5, x, jnp.flip(x, 0)), x

    def step(ws, x):
        seen = []
        for index, w in enumerate(ws):
            spec = cut if index % 2 else P("batch")
            x, y = mm.task(lambda w, x, spec=spec: layer(w, x, spec), task=mm.stage(index, 4))(w, x)
            seen.append(y)
        return x, seen

    ws, x = [normal(8, 4, seed=index) for index in range(4)], numbers(dtype, 8, 4)
    compiled = mm.mjit(step, mesh=mesh())
    if dtype.endswith("int2") and cut != P("batch"):
        with pytest.raises(NotImplementedError, match=rf"layout of u?int2\[.* at .*{Path(__file__).name}:\d+"):
            compiled(ws, x)
        return
    found, expected = compiled(ws, x), jax.jit(step)(ws, x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
    again, _ = compiled(ws, found[0])
    np.testing.assert_array_equal(
        np.asarray(again, np.float32), np.asarray(jax.jit(step)(ws, expected[0])[0], np.float32)
    )


@pytest.mark.parametrize("dtype", ["int2", "uint2"])
def test_two_bits_change_their_layout_as_bytes(dtype):
    """What the refusal advises, inside of one program and between two."""

    def step(x):
        def change(x):
            wide = mm.with_sharding_constraint(x.astype(jnp.int8), P("batch"))
            return mm.with_sharding_constraint(jnp.flip(wide, 0), P(None, "batch")).astype(x.dtype)

        return mm.task(jnp.flip, task=mm.stage(1, 4))(mm.task(change, task=mm.stage(0, 4))(x))

    def asked(x):
        return mm.with_sharding_constraint(jnp.flip(mm.with_sharding_constraint(x, P("batch")), 0), P(None, "batch"))

    x = numbers(dtype, 8, 4)
    found = mm.mjit(step, mesh=mesh())(x)
    np.testing.assert_array_equal(np.asarray(found, np.int8), np.asarray(jnp.flip(jnp.flip(x, 0)), np.int8))
    with pytest.raises(NotImplementedError, match=rf"layout of u?int2\[8,4\] at .*{Path(__file__).name}:\d+"):
        mm.mjit(asked, mesh=mm.MultiMesh(axis_sizes=(4,), axis_names=("data",), logical_axes=[("batch", "data")]))(x)


@pytest.mark.parametrize("dtype", TYPES)
def test_quantized_weights_are_state_of_their_stage(dtype):
    def step(ws, x):
        def loss(x):
            for index, w in enumerate(ws):
                x = mm.task(lambda w, x: jnp.tanh(x @ w.astype(x.dtype)), task=mm.stage(index, 4))(w, x)
            return (x**2).sum()

        value, _ = mm.microbatch(jax.value_and_grad(loss), count=2, schedule="1f1b")(x)
        return [jnp.flip(w, 0) for w in ws], value

    ws, x = [numbers(dtype, 8, 8, seed=index) for index in range(4)], normal(8, 8)
    compiled = mm.mjit(step, mesh=mesh(), donate_argnums=0)
    expected_ws, expected = ws, None
    state = jax.tree.map(jnp.copy, ws)
    for _ in range(2):
        state, value = compiled(state, x)
        expected_ws, expected = jax.jit(step)(expected_ws, x)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    for index, (a, b) in enumerate(zip(state, expected_ws, strict=True)):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
        assert a.devices() == set(jax.devices()[2 * index : 2 * index + 2])


@pytest.mark.parametrize("dtype", TYPES)
def test_they_are_arguments_of_a_step_of_one_program(dtype):
    compiled = mm.mjit(lambda x: (x, jnp.flip(x, 0)), mesh=mesh())
    x = numbers(dtype, 8, 4)
    for _ in range(3):
        same, flipped = compiled(x)
        np.testing.assert_array_equal(np.asarray(flipped, np.float32), np.asarray(x, np.float32)[::-1])
        x = same


@pytest.mark.parametrize("dtype", TYPES[:5])
def test_a_mapped_batch_of_them_is_cut_into_microbatches(dtype):
    def step(w, x):
        def apply(x):
            y = mm.task(lambda w, x: x.astype(w.dtype) @ w, mesh_slice={"stage": 0})(w, x)
            return mm.task(lambda y: (y * y).sum(1), mesh_slice={"stage": 1})(y)

        return mm.microbatch(apply, count=4, reduce="concat")(x)

    w, x = normal(4, 4), numbers(dtype, 8, 4)
    np.testing.assert_allclose(mm.mjit(step, mesh=mesh())(w, x), jax.jit(step)(w, x), rtol=1e-5)
