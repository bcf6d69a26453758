"""What a program writes into its NumPy arrays after a call is not seen by the step, as with `jax.jit`."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime._execution.host_values import own, unshared
from mmruntime._execution.transfers.own_parts import place
from mmruntime._execution.transfers.transfer import DevicePutTransport
from tests.runtime.helpers import assert_close, assert_equal, chain, layer, normal, on_a_boundary, stages, weights

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize(
    ("shape", "spec"), [((), P()), ((3,), P()), ((3,), P("x")), ((512, 256), P()), ((512, 256), P("x"))]
)
def test_arrays_are_read_when_they_are_put(shape, spec) -> None:
    devices = jax.devices()[2:3] if shape == (3,) else jax.devices()[2:4]
    layout = NamedSharding(jax.sharding.Mesh(np.asarray(devices), ("x",)), spec)
    value = on_a_boundary(shape)
    value[...] = 1
    aval = jax.ShapeDtypeStruct(shape, value.dtype)
    placed = place(value, layout, aval)
    value[...] = 2
    assert_equal(placed, np.ones(shape))
    value[...] = 1
    for give in (DevicePutTransport().put, DevicePutTransport().copy):
        (put,) = give([value], [layout])
        value[...] = 2
        assert_equal(put, np.ones(shape))
        value[...] = 1


def test_a_copy_has_the_values_of_its_array() -> None:
    layout = NamedSharding(jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("x",)), P())
    for array in (
        normal(4, 3)[::2].T,
        np.zeros((0, 2)),
        np.full((), 3.0),
        np.ones(5, jnp.bfloat16),
        np.arange(6).reshape(2, 3)[:, ::-1],
    ):
        copy = own(array, layout)
        assert copy.dtype == array.dtype
        assert not copy.size or copy.ctypes.data % 64 == 0
        assert not np.shares_memory(copy, array)
        assert_equal(copy, array)
    numbers = [3, 2.5, np.float32(1), jnp.ones(3)]
    assert all(one is other for one, other in zip(unshared(numbers, [layout] * 4), numbers, strict=True))


@pytest.mark.parametrize("spec", [P(), P("x")])
def test_an_array_of_another_type_is_copied_once(spec) -> None:
    layout = NamedSharding(jax.sharding.Mesh(np.asarray(jax.devices()[2:4]), ("x",)), spec)
    value = np.arange(2**18, dtype=np.float64).reshape(512, 512)
    aval = jax.ShapeDtypeStruct(value.shape, jnp.float32)
    expected = value.astype(np.float32)
    place(value, layout, aval)
    tracemalloc.start()
    placed = place(value, layout, aval)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # NumPy tells `tracemalloc` what it allocates; what XLA copies to further devices is not counted.
    assert most < 1.5 * expected.nbytes
    value[...] = 0
    assert placed.dtype == jnp.float32
    assert_equal(placed, expected)


def test_a_batch_of_another_type_is_read_when_the_step_is_called() -> None:
    with jax.enable_x64(False):
        params = [jnp.asarray(w, jnp.float32) for w in weights(2)]
        batch = np.random.default_rng(0).normal(size=(64, 4))
        compiled = mm.mjit(chain, mesh=stages(2))
        expected = compiled(params, batch)
        kept = jax.tree.map(np.array, expected)
        for _ in range(5):
            refilled = batch.copy()
            found = compiled(params, refilled)
            refilled[...] = 0
            jax.tree.map(np.testing.assert_array_equal, found, kept)


def test_arrays_are_refilled_once_the_loss_was_read() -> None:
    """`jax.jit` is done with its arguments then, whereas the stages still compute their gradients."""

    def step(params, x):
        grad = jax.value_and_grad(lambda params, x: (chain(params, x) ** 2).mean())
        return mm.microbatch(grad, size=64, argnum=1, reduce="exact")(params, x)

    given = weights(4, 128), normal(512, 128)
    _, expected = jax.jit(step)(*given)
    compiled = mm.mjit(step, mesh=stages(4))
    arguments = jax.tree.map(lambda array: on_a_boundary(array.shape), given)
    for _ in range(3):
        jax.tree.map(np.copyto, arguments, given)
        loss, grads = compiled(*arguments)
        float(loss)
        for array in jax.tree.leaves(arguments):
            array[...] = 5
        assert_close(grads, expected, 1e-12)


def test_other_devices_of_one_program_still_read_a_batch_whose_loss_is_there() -> None:
    def step(w, x):
        x = mm.with_sharding_constraint(x, P("x"))
        y = x
        for _ in range(6):
            y = jnp.tanh(y @ w)
        return (x @ w).sum(), y * x

    given = normal(256, 256) / 16, normal(4096, 256)
    _, expected = jax.jit(step)(*given)
    compiled = mm.mjit(step, mesh=mm.MultiMesh(axis_sizes=(4,), axis_names=("x",)))
    x = on_a_boundary(given[1].shape)
    for _ in range(6):
        np.copyto(x, given[1])
        loss, found = compiled(given[0], x)
        float(loss)
        x[...] = 5
        assert_close(found, expected, 1e-12)


def test_captured_arrays_keep_their_values() -> None:
    scale, shift = np.full((8, 4), 2.0), np.ones((8, 4))

    def step(params, x):
        return chain(params, x) * scale + shift, shift

    arguments = weights(2), normal(8, 4)
    expected = jax.tree.map(np.array, jax.jit(step)(*arguments))
    compiled = mm.mjit(step, mesh=stages(2))
    for _ in range(2):
        assert_close(compiled(*arguments), expected, 1e-12)
        scale[...] = 7
        shift[...] = 7


def test_arguments_that_are_results_are_arrays_of_their_own() -> None:
    x, y = on_a_boundary((256, 4)), on_a_boundary((256, 4))
    x[...] = y[...] = 1
    _, same = mm.mjit(lambda params, x, y: (chain(params, x), y), mesh=stages(2))(weights(2), x, y)
    y[...] = 2
    assert_equal(same, np.ones((256, 4)))


def test_stacks_of_layers_are_read_when_the_step_is_called() -> None:
    def step(stack, x):
        def one(x, w):
            return layer(w, x), None

        return mm.stage_scan(jax.lax.scan, axis="stage")(one, x, stack)[0]

    stack, x = on_a_boundary((4, 128, 128)), normal(8192, 128)
    stack[...] = np.stack(weights(4, 128))
    expected = np.array(jax.jit(step)(stack, x))
    found = mm.mjit(step, mesh=stages(2))(stack, x)
    stack[...] = 5
    assert_close(found, expected, 1e-12)
