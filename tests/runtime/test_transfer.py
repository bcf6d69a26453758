"""Moving arrays: by `jax.device_put` between all kinds of layouts, and by another transport in its place."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import mmruntime as mm
from mmruntime._core.mesh import auto_mesh
from mmruntime._execution.compile import compile_program
from mmruntime._execution.run import Runner
from mmruntime._execution.transfers.own_parts import is_cut_by_host
from mmruntime._execution.transfers.pieces import pieces_of
from mmruntime._execution.transfers.transfer import DevicePutTransport, TransferSpec, same_tiling
from tests.runtime.helpers import WIDTH, adam_state, adam_step, assert_equal, batches, four_layers, stages, weights

pytestmark = [pytest.mark.quick, pytest.mark.family]

SPECS = [(), ("x",), (None, "x"), (("x", "y"),), ("y", "x"), (None, ("x", "y"))]


def sharding(devices, shape, spec):
    grid = np.array(jax.devices()[devices], dtype=object).reshape(shape)
    return NamedSharding(auto_mesh(grid, ("x", "y")), PartitionSpec(*spec))


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, np.bool_])
@pytest.mark.parametrize("spec", SPECS[1:])
def test_an_array_of_one_device_is_cut_by_the_host(spec, dtype, monkeypatch):
    """JAX would lower, compile and load a program that cuts it, one for each shape."""
    target = sharding(slice(4, 8), (2, 2), spec)
    array = jax.device_put((np.arange(32).reshape(4, 8) % 5).astype(dtype), jax.devices()[1])
    expected = jax.device_put(array, target)
    jax.block_until_ready(array)
    monkeypatch.setattr(type(array), "_multi_slice", None)
    (found,) = DevicePutTransport().put([array], [target])
    assert_equal(found, np.asarray(expected))
    assert (found.sharding, found.dtype, found.committed) == (target, expected.dtype, True)
    # The caller may donate or delete its own.
    array.delete()
    assert_equal(found, np.asarray(expected))


def test_the_host_cuts_nothing_that_it_would_wait_for_or_that_is_in_one_piece(monkeypatch):
    cut, whole = sharding(slice(4, 8), (2, 2), ("x",)), sharding(slice(4, 8), (2, 2), ())
    array = jax.block_until_ready(jnp.ones((4, 8)))
    assert is_cut_by_host(array, cut)
    assert not is_cut_by_host(array, whole)
    assert not is_cut_by_host(np.ones((4, 8)), cut)
    assert not is_cut_by_host(jax.random.split(jax.random.key(0), 4), cut)
    assert not is_cut_by_host(jax.device_put(array, sharding(slice(4), (2, 2), ("x",))), cut)
    monkeypatch.setattr(type(array), "is_ready", lambda _: False)
    assert not is_cut_by_host(array, cut)


class HostTransport:
    """Moves arrays through the host's memory, and counts what it is asked for."""

    def __init__(self):
        self.bound = []
        self.sent = []

    def takes_part(self, mesh, /):
        return True

    def bind(self, transfer, /):
        number = len(self.bound)
        self.bound.append(transfer)

        def issue(arrays):
            self.sent.append(number)
            assert [array.sharding for array in arrays] == list(transfer.sources)
            assert [(array.shape, array.dtype) for array in arrays] == [(a.shape, a.dtype) for a in transfer.avals]
            return self.put(arrays, transfer.targets)

        return issue

    def put(self, values, shardings, /):
        return [self.put_one(value, layout) for value, layout in zip(values, shardings, strict=True)]

    def put_one(self, value, layout):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = np.array(jax.random.key_data(value))
            return jax.device_put(jax.random.wrap_key_data(data, impl=jax.random.key_impl(value)), layout)
        return jax.device_put(np.array(value), layout)

    copy = put


@pytest.fixture(params=[DevicePutTransport, HostTransport])
def send(request):
    """A function that moves arrays to other layouts, as a compiled step does."""

    def move(arrays, targets):
        avals, sources = tuple(map(jax.typeof, arrays)), tuple(array.sharding for array in arrays)
        return request.param().bind(TransferSpec(avals, sources, tuple(targets)))(arrays)

    return move


@pytest.mark.parametrize("target", SPECS, ids=str)
@pytest.mark.parametrize("source", SPECS, ids=str)
def test_values_and_layout_for_every_pair_of_tilings(source, target, send):
    value = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    one, other = sharding(slice(0, 4), (2, 2), source), sharding(slice(4, 8), (2, 2), target)
    array = jax.device_put(value, one)
    (moved,) = send([array], [other])
    np.testing.assert_array_equal(np.asarray(moved), value)
    assert moved.sharding == other
    assert not array.is_deleted()


@pytest.mark.parametrize(("first", "second"), [((4, 1), (1, 1)), ((1, 1), (2, 2)), ((2, 1), (4, 1))])
def test_submeshes_of_different_sizes(first, second, send):
    value = np.arange(32.0, dtype=np.float32).reshape(4, 8)
    sizes = np.prod(first), np.prod(second)
    one = sharding(slice(0, sizes[0]), first, ("x",))
    other = sharding(slice(8 - sizes[1], 8), second, (None, ("x", "y")))
    (moved,) = send([jax.device_put(value, one)], [other])
    np.testing.assert_array_equal(np.asarray(moved), value)
    assert moved.sharding == other


def test_several_arrays_of_mixed_kinds_in_one_transfer(send):
    shapes = [(8, 8), (), (8,), (4, 2)]
    values = [np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in shapes]
    sources = [sharding(slice(0, 4), (2, 2), spec) for spec in (("x",), (), ("y",), ())]
    targets = [sharding(slice(4, 8), (2, 2), spec) for spec in (("x",), (), (), (None, "y"))]
    arrays = [jax.device_put(v, s) for v, s in zip(values, sources, strict=True)]
    for moved, value, target in zip(send(arrays, targets), values, targets, strict=True):
        np.testing.assert_array_equal(np.asarray(moved), value)
        assert moved.sharding == target


def test_arrays_without_elements_can_be_sent(send):
    one, other = sharding(slice(0, 4), (2, 2), ("x",)), sharding(slice(4, 8), (2, 2), (None, "y"))
    (moved,) = send([jax.device_put(np.zeros((4, 0), np.float32), one)], [other])
    assert (moved.shape, moved.sharding) == ((4, 0), other)


def test_equal_tilings_are_recognised():
    one, other = sharding(slice(0, 4), (2, 2), ("x",)), sharding(slice(4, 8), (2, 2), ("x",))
    assert same_tiling(one, other, (8, 8))
    assert not same_tiling(one, sharding(slice(4, 8), (2, 2), ("y",)), (8, 8))


def test_pieces_make_up_each_shard_of_the_target():
    rng = random.Random(0)
    for _ in range(300):
        shape = tuple(rng.choice([0, 8, 16, 24]) for _ in range(rng.randrange(4)))
        layouts = []
        for _ in range(2):
            size = rng.choice([(1, 1), (2, 1), (2, 2), (4, 2)])
            grid = np.array(rng.sample(jax.devices(), size[0] * size[1]), dtype=object).reshape(size)
            spec = rng.choice([spec for spec in SPECS if len(spec) <= len(shape)])
            layouts.append(NamedSharding(auto_mesh(grid, ("x", "y")), PartitionSpec(*spec)))
        value = np.arange(int(np.prod(shape))).reshape(shape)
        source, target = ({d: value[i] for d, i in each.devices_indices_map(shape).items()} for each in layouts)
        found = pieces_of(*layouts, shape)
        assert [device for device, _, _ in found.rows] == list(target)
        for device, numbers, grid in found.rows:
            parts = []
            for holder, box in (found.cuts[number] for number in numbers):
                shard = source[holder]
                parts.append(shard if box is None else shard[tuple(slice(low, high) for low, high in box)])
            for axis in reversed(range(len(grid))):
                step = max(grid[axis], 1)
                parts = [np.concatenate(parts[at : at + step], axis) for at in range(0, len(parts), step)]
            assert len(parts) == (value.size > 0)
            if parts:
                np.testing.assert_array_equal(parts[0], target[device])


def test_keys_can_be_sent(send):
    one, other = sharding(slice(0, 2), (2, 1), ()), sharding(slice(4, 6), (2, 1), ())
    key = jax.device_put(jax.random.key(3), one)
    (moved,) = send([key], [other])
    assert (jax.random.key_data(moved) == jax.random.key_data(jax.random.key(3))).all()
    assert jnp.issubdtype(moved.dtype, jax.dtypes.prng_key)


@pytest.mark.parametrize("spec", [("x",), ("y",)], ids=["the same tiling", "another tiling"])
def test_what_was_deleted_is_said_and_a_transfer_is_no_implicit_one(spec):
    one, other = sharding(slice(0, 4), (2, 2), ("x",)), sharding(slice(4, 8), (2, 2), spec)
    array = jax.device_put(np.ones((4, 4), np.float32), one)
    send = DevicePutTransport().bind(TransferSpec((jax.typeof(array),), (one,), (other,)))
    with jax.transfer_guard("disallow"):
        send([array])
    array.delete()
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        send([array])


def test_equal_transfers_share_a_plan():
    one, other = sharding(slice(0, 4), (2, 2), ("x",)), sharding(slice(4, 8), (2, 2), ())
    spec = TransferSpec((jax.typeof(np.zeros((4, 4), np.float32)),), (one,), (other,))
    transport = DevicePutTransport()
    assert transport.bind(spec) is transport.bind(TransferSpec(spec.avals, (one,), (other,)))
    assert transport.bind(spec) is not transport.bind(TransferSpec(spec.avals, (one,), (one,)))


@pytest.mark.optimized
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_another_transport_gives_the_same_bits(schedule):
    step = mm.mjit(adam_step(four_layers, schedule=schedule), mesh=stages(4, data=2))
    state = adam_state(weights(4, WIDTH))
    inputs = [jax.tree.leaves((state, batch)) for batch in batches(2)]
    expected = step(state, batches(1)[0])
    plan = step.latest_plan
    transport = HostTransport()
    compiled = compile_program(plan.program, plan.shardings, (), transport)
    runner = Runner(plan.step, plan.program, compiled, plan.shardings)
    # Each transfer is bound once, in order of issue, and issued once a step in that order.
    transfers = [item for item in plan.program.instructions if item in compiled.sends]
    assert len(transport.bound) == len(transfers) > 0
    assert_equal(runner(inputs[0]), jax.tree.leaves(expected))
    assert transport.sent == list(range(len(transfers)))
    assert_equal(runner(inputs[1]), plan.runner(inputs[1]))
    assert transport.sent == 2 * list(range(len(transfers)))
