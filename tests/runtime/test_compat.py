"""`mmruntime.compat` does what old JAX did."""

import copy
import itertools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from mmruntime import compat

DEVICES = jax.devices()


def index_map(sharding, shape):
    """For each device id, the start and stop of its part in every dimension."""
    return {
        device.id: [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
        for device, index in sharding.devices_indices_map(tuple(shape)).items()
    }


def blocks(ids, shape):
    """What a grid of device sets says: block (i, j, ...) of the array is on every device of cell (i, j, ...)."""
    found = {}
    for cell, devices in np.ndenumerate(ids):
        spans = [
            (at * size // parts, (at + 1) * size // parts)
            for at, size, parts in zip(cell, shape, ids.shape, strict=True)
        ]
        found |= dict.fromkeys(devices, spans)
    return found


def grid_of_sets(order):
    ids = np.empty(len(order), object)
    ids[:] = [frozenset((device,)) for device in order]
    return ids


def united(ids, axis, keepdims):
    """Union of the sets along an axis, by NumPy's own reduction."""
    return np.frompyfunc(frozenset.union, 2, 1).reduce(ids, axis=axis, keepdims=keepdims)


def factorizations(size):
    return [
        shape
        for n in (1, 2, 3)
        for shape in itertools.product(range(1, size + 1), repeat=n)
        if math.prod(shape) == size
    ]


@st.composite
def chains(draw):
    """A device order, a PositionalSharding after some steps, and the grid of sets after the same steps."""
    order = draw(st.permutations(range(draw(st.sampled_from((6, 8))))))
    sharding = compat.PositionalSharding([DEVICES[index] for index in order])
    ids = grid_of_sets(order)
    for _ in range(draw(st.integers(0, 4))):
        step = draw(st.sampled_from(("reshape", "transpose", "replicate")))
        if step == "reshape":
            shape = draw(st.sampled_from(factorizations(ids.size)))
            sharding, ids = sharding.reshape(shape), ids.reshape(shape)
        elif step == "transpose":
            axes = draw(st.permutations(range(ids.ndim)))
            sharding, ids = sharding.transpose(*axes), ids.transpose(*axes)
        elif ids.ndim:
            axis, keepdims = draw(st.integers(-ids.ndim, ids.ndim - 1)), draw(st.booleans()) or ids.ndim == 1
            sharding, ids = sharding.replicate(axis, keepdims), united(ids, axis, keepdims)
    return sharding, ids


@settings(max_examples=150, deadline=None, derandomize=True)
@given(chains())
def test_a_chain_of_positional_sharding_puts_every_block_where_its_grid_says(chain):
    sharding, ids = chain
    assert sharding.shape == ids.shape
    assert sharding.ndim == ids.ndim
    shape = [2 * parts for parts in ids.shape]
    assert index_map(sharding, shape) == blocks(ids, shape)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(chains(), st.integers(0, 4))
def test_a_grid_takes_arrays_of_lower_rank_by_its_last_axes(chain, rank):
    """As in JAX 0.4.13: axes are dropped in front, where they have size 1; a grid of one cell is for any rank."""
    sharding, ids = chain
    whole = ids.size == 1
    shape = (24,) * rank if whole else [2 * parts for parts in ([1] * rank + list(ids.shape))[len(ids.shape) :]]
    x = np.zeros(shape, np.float32)
    if not whole and (rank > ids.ndim or math.prod(ids.shape[: ids.ndim - rank]) > 1):
        with pytest.raises(ValueError, match=r"is for arrays of rank"):
            jax.device_put(x, sharding)
        return
    kept = ids.reshape((1,) * rank if whole else ids.shape[ids.ndim - rank :])
    placed = jax.device_put(x, sharding)
    assert index_map(placed.sharding, shape) == blocks(kept, shape)
    assert {shard.device.id: shard.data.shape for shard in placed.addressable_shards} == {
        device: tuple(stop - start for start, stop in spans) for device, spans in blocks(kept, shape).items()
    }


def test_jax_takes_a_grid_for_arrays_of_lower_rank_wherever_it_takes_one():
    grid = compat.PositionalSharding(DEVICES).reshape(4, 2).replicate(0)
    x = np.arange(8, dtype=np.float32)
    expected = blocks(grid_of_sets(range(8)).reshape(4, 2).T, (8, 8))
    expected = {device: spans[:1] for device, spans in expected.items()}
    y = jax.device_put(x, grid)

    def constrained(x):
        return jax.lax.with_sharding_constraint(x**2, grid)

    both = jax.jit(lambda tree: tree, in_shardings=grid, out_shardings=grid)({"w": np.ones((8, 8), np.float32), "b": x})
    for placed in (
        y,
        y + 1,
        both["b"],
        jax.jit(constrained)(x),
        jax.jit(jax.grad(lambda x: constrained(x).sum()))(y),
        jnp.zeros(8, device=grid),
        jax.make_array_from_callback((8,), grid, lambda index: x[index]),
    ):
        assert index_map(placed.sharding, (8,)) == expected
    assert both["w"].sharding.is_equivalent_to(grid, 2)
    np.testing.assert_array_equal(np.asarray(y), x)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_constraint_under_vmap_leaves_the_mapped_axis_whole(axis):
    grid = compat.PositionalSharding(DEVICES)

    def constrained(x):
        return jax.lax.with_sharding_constraint(2 * x, grid)

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    shape = (8, 1) if axis else (1, 8)
    for mapped in (jax.vmap(constrained, axis, axis), jax.jit(jax.vmap(constrained, axis, axis))):
        y = mapped(x)
        assert index_map(y.sharding, x.shape) == blocks(grid_of_sets(range(8)).reshape(shape), x.shape)
        np.testing.assert_array_equal(np.asarray(y), 2 * x)


def test_positional_sharding_is_a_named_sharding_for_jax():
    sharding = compat.PositionalSharding(DEVICES).reshape(4, 2)
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), sharding)
    y = jax.jit(
        lambda x: jax.lax.with_sharding_constraint(jnp.sin(x), sharding.replicate(0)), out_shardings=sharding.T.T
    )(x)
    assert y.sharding.is_equivalent_to(sharding, 2)
    assert isinstance(sharding, NamedSharding)
    assert sharding == copy.copy(sharding)
    assert hash(sharding) == hash(copy.copy(sharding))
    assert copy.copy(sharding).T.shape == (2, 4)
    assert set(sharding.mesh.axis_types) == {AxisType.Auto}


def test_chains_of_one_device_list_go_together():
    grid = compat.PositionalSharding(DEVICES).reshape(4, 2)
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    left = jax.device_put(x, grid)
    for other in (grid.T, grid.T.reshape(8, 1), grid.replicate(), grid.replicate(1, keepdims=False).reshape(1, 4)):
        np.testing.assert_array_equal(np.asarray(left + jax.device_put(x, other)), 2 * x)


def test_reshape_across_the_boundaries_of_a_transposed_grid_reorders_the_devices():
    grid = compat.PositionalSharding(DEVICES[:6]).reshape(2, 3).T.reshape(2, 3)
    ids = grid_of_sets(range(6)).reshape(2, 3).T.reshape(2, 3)
    assert index_map(grid, (4, 6)) == blocks(ids, (4, 6))


def test_positional_sharding_refuses_what_it_refused():
    grid = compat.PositionalSharding(DEVICES).reshape(4, 2)
    with pytest.raises(ValueError, match="shape \\(4, 2\\) is for arrays of rank 2"):
        jax.device_put(np.zeros((8,)), grid)
    with pytest.raises(ValueError, match="shape \\(4, 2\\) is for arrays of rank 2"):
        jax.device_put(np.zeros((8, 8, 8)), grid)
    jax.device_put(np.zeros((3, 3, 3), np.float32), grid.replicate())
    with pytest.raises(ValueError, match="reshape"):
        grid.reshape(3, 2)
    with pytest.raises(ValueError, match="has no axis 2"):
        grid.replicate(2)
    with pytest.raises(ValueError, match="each of the 2 axes once"):
        grid.transpose(0, 0)
    with pytest.raises(ValueError, match="at least one device"):
        compat.PositionalSharding([])


def test_an_array_of_devices_is_a_grid_already():
    grid = compat.PositionalSharding(np.array(DEVICES).reshape(2, 4), memory_kind="device")
    assert grid.shape == (2, 4)
    assert grid.reshape(-1).shape == (8,)
    assert grid.reshape((4, -1)).transpose((1, 0)).shape == (2, 4)
    assert grid.replicate((0, 1), keepdims=False).shape == ()
    assert grid.T.memory_kind == "device"


def test_replicate_none_in_a_tree_that_is_built_at_run_time():
    specs = {"w": P("x"), "b": None, "rest": (None, P(None, "x"))}
    assert compat.replicate_none(specs) == {"w": P("x"), "b": P(), "rest": (P(), P(None, "x"))}
    assert compat.replicate_none(None) == P()
    mesh = Mesh(np.array(DEVICES), ("x",))
    placed = compat.replicate_none((None, NamedSharding(mesh, P("x"))), mesh)
    assert placed == (NamedSharding(mesh, P()), NamedSharding(mesh, P("x")))
    params = {"w": np.ones(8, np.float32), "b": np.ones(3, np.float32)}
    f = jax.jit(lambda p: p, in_shardings=(compat.replicate_none({"w": P("x"), "b": None}),), out_shardings=P())
    with jax.set_mesh(mesh):
        assert f(params)["w"].is_fully_replicated


def test_replicate_none_accepts_none_where_the_argument_has_none():
    mesh = Mesh(np.array(DEVICES), ("x",))
    f = jax.jit(lambda p: p, in_shardings=(compat.replicate_none({"w": P("x"), "b": None}, mesh),))
    assert f({"w": np.ones(8, np.float32), "b": None})["b"] is None


def seen_in_jit():
    found = []
    jax.jit(lambda x: (found.append(compat.current_mesh()), x)[1])(1.0)
    return found[0]


def test_current_mesh_inside_and_outside_jit():
    mesh = Mesh(np.array(DEVICES).reshape(4, 2), ("x", "y"))
    assert compat.current_mesh().empty
    assert compat.current_mesh().devices.shape == ()
    with jax.set_mesh(mesh):
        assert compat.current_mesh() == mesh == seen_in_jit()
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        assert seen_in_jit() == mesh.abstract_mesh
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning), mesh:
        assert compat.current_mesh() == mesh
    assert compat.current_mesh().empty


def test_device_put_replicated_has_a_row_per_device():
    x = compat.device_put_replicated({"a": np.arange(3, dtype=np.float32), "b": 1.0}, DEVICES[:4])
    assert x["a"].shape == (4, 3)
    assert x["b"].shape == (4,)
    assert {shard.device.id: shard.data.shape for shard in x["a"].addressable_shards} == dict.fromkeys(range(4), (1, 3))
    with pytest.raises(ValueError, match="at least one device"):
        compat.device_put_replicated(1.0, [])


def test_device_put_sharded_stacks():
    rows = [{"a": np.full(2, index, np.int32)} for index in range(3)]
    order = [DEVICES[2], DEVICES[5], DEVICES[0]]
    x = compat.device_put_sharded(rows, order)["a"]
    np.testing.assert_array_equal(np.asarray(x), [[0, 0], [1, 1], [2, 2]])
    assert index_map(x.sharding, x.shape) == {2: [(0, 1), (0, 2)], 5: [(1, 2), (0, 2)], 0: [(2, 3), (0, 2)]}
    assert jax.pmap(lambda row: row + 1, devices=order)(x).shape == (3, 2)
    with pytest.raises(ValueError, match="2 shards for 3 devices"):
        compat.device_put_sharded(rows[:2], order)
    with pytest.raises(ValueError, match="agree in shape and type"):
        compat.device_put_sharded([np.ones(2, np.float32), np.ones(3, np.float32)], order[:2])
    with pytest.raises(ValueError, match="takes a sequence"):
        compat.device_put_sharded(np.ones((3, 2)), order)


def test_device_put_sharded_takes_typed_keys():
    keys = compat.device_put_sharded(list(jax.random.split(jax.random.key(0), 8)), DEVICES)
    assert keys.shape == (8,)


def test_pmap_sharding_deals_out_one_dimension():
    assert index_map(compat.pmap_sharding((8, 2)), (8, 2)) == {n: [(n, n + 1), (0, 2)] for n in range(8)}
    assert index_map(compat.pmap_sharding((3, 4), 1), (3, 4)) == {n: [(0, 3), (n, n + 1)] for n in range(4)}
    assert index_map(compat.pmap_sharding((3, 4), -1, DEVICES[4:]), (3, 4))[4] == [(0, 3), (0, 1)]
    assert compat.pmap_sharding((3,), None, DEVICES).is_fully_replicated
    with pytest.raises(ValueError, match=r"8 indices in dimension 0 .* got 4"):
        compat.pmap_sharding((8, 2), 0, DEVICES[:4])
    with pytest.raises(ValueError, match="or the `devices` to replicate on"):
        compat.pmap_sharding((8, 2), None)


def test_tree_map_leaves_none_alone_whatever_stands_against_it():
    tree, other = {"a": 1, "b": None}, {"a": 2, "b": (3, 4)}
    assert compat.tree_map(lambda x, y: x + y, tree, other) == {"a": 3, "b": None}
    assert compat.tree_map(lambda x, y: y, {"a": 1}, {"a": None}) == {"a": None}
    assert compat.tree_map(lambda x: x is None, tree, is_leaf=lambda x: x is None) == {"a": False, "b": True}
    with pytest.raises(ValueError, match="None"):
        jax.tree.map(lambda x, y: x + y, tree, other)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (((4, 2), ("x", "y")), {}),
        (((n for n in (4, 2)), P("x", "y")), {"devices": DEVICES}),
        (([8], "xy"), {}),
        ((), {"axis_names": ("x",), "axis_sizes": (8,)}),
        (((2,),), {"axis_names": ["x"]}),
    ],
)
def test_make_mesh_has_auto_axes(arguments, options):
    mesh = compat.make_mesh(*arguments, **options)
    assert mesh.axis_types == (AxisType.Auto,) * mesh.devices.ndim


def test_make_mesh_takes_what_jax_takes():
    mesh = compat.make_mesh((2, 2), ("x", "y"), (AxisType.Explicit, AxisType.Auto), devices=DEVICES[4:])
    assert mesh.axis_types == (AxisType.Explicit, AxisType.Auto)
    assert mesh == jax.make_mesh((2, 2), ("x", "y"), (AxisType.Explicit, AxisType.Auto), devices=DEVICES[4:])
    with pytest.raises(TypeError, match="no names of the axes given"):
        compat.make_mesh((8,))
    with pytest.raises(TypeError, match="no sizes of the axes given"):
        compat.make_mesh(axis_names="x")
    with pytest.raises(ValueError, match="both were given"):
        compat.make_mesh((8,), "x", axis_sizes=(8,))


def test_shard_map_keeps_the_gradient_of_each_shard():
    mesh = Mesh(np.array(DEVICES).reshape(4, 2), ("x", "y"))
    x, w = jnp.arange(32.0).reshape(8, 4), jnp.ones(4)

    def gradient(w, x):
        return jax.lax.psum(jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w), ("x", "y"))

    expected = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)
    for options in ({}, {"check_rep": True}, {"check_rep": False, "auto": frozenset()}):
        mapped = compat.shard_map(gradient, mesh, (P(), P(("x", "y"))), P(), **options)
        np.testing.assert_allclose(mapped(w, x), expected, rtol=1e-5)


@pytest.mark.parametrize("auto", [{"z"}, {"x", "y"}])
def test_shard_map_needs_axes_of_the_mesh(auto):
    mesh = Mesh(np.array(DEVICES).reshape(4, 2), ("x", "y"))
    with pytest.raises(ValueError, match="give some of these, not all"):
        compat.shard_map(lambda x: x, mesh, P(), P(), auto=auto)
