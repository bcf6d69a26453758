import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from mmruntime._core.mesh import auto_mesh
from mmruntime._execution.transfer import Mover, same_tiling

SPECS = [(), ("x",), (None, "x"), (("x", "y"),), ("y", "x"), (None, ("x", "y"))]


def sharding(devices, shape, spec):
    grid = np.array(jax.devices()[devices], dtype=object).reshape(shape)
    return NamedSharding(auto_mesh(grid, ("x", "y")), PartitionSpec(*spec))


@pytest.mark.parametrize("target", SPECS, ids=str)
@pytest.mark.parametrize("source", SPECS, ids=str)
def test_values_and_layout_for_every_pair_of_tilings(source, target):
    value = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    one, other = sharding(slice(0, 4), (2, 2), source), sharding(slice(4, 8), (2, 2), target)
    array = jax.device_put(value, one)
    (moved,) = Mover([one], [other], [value.shape])([array])
    np.testing.assert_array_equal(np.asarray(moved), value)
    assert moved.sharding == other
    assert not array.is_deleted()


@pytest.mark.parametrize(("first", "second"), [((4, 1), (1, 1)), ((1, 1), (2, 2)), ((2, 1), (4, 1))])
def test_submeshes_of_different_sizes(first, second):
    value = np.arange(32.0, dtype=np.float32).reshape(4, 8)
    sizes = np.prod(first), np.prod(second)
    one = sharding(slice(0, sizes[0]), first, ("x",))
    other = sharding(slice(8 - sizes[1], 8), second, (None, ("x", "y")))
    (moved,) = Mover([one], [other], [value.shape])([jax.device_put(value, one)])
    np.testing.assert_array_equal(np.asarray(moved), value)
    assert moved.sharding == other


def test_several_arrays_of_mixed_kinds_in_one_transfer():
    shapes = [(8, 8), (), (8,), (4, 2)]
    values = [np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in shapes]
    sources = [sharding(slice(0, 4), (2, 2), spec) for spec in (("x",), (), ("y",), ())]
    targets = [sharding(slice(4, 8), (2, 2), spec) for spec in (("x",), (), (), (None, "y"))]
    arrays = [jax.device_put(v, s) for v, s in zip(values, sources, strict=True)]
    for moved, value, target in zip(Mover(sources, targets, shapes)(arrays), values, targets, strict=True):
        np.testing.assert_array_equal(np.asarray(moved), value)
        assert moved.sharding == target


def test_equal_tilings_are_recognised():
    one, other = sharding(slice(0, 4), (2, 2), ("x",)), sharding(slice(4, 8), (2, 2), ("x",))
    assert same_tiling(one, other, (8, 8))
    assert not same_tiling(one, sharding(slice(4, 8), (2, 2), ("y",)), (8, 8))


def test_keys_can_be_sent():
    one, other = sharding(slice(0, 2), (2, 1), ()), sharding(slice(4, 6), (2, 1), ())
    key = jax.device_put(jax.random.key(3), one)
    (moved,) = Mover([one], [other], [()])([key])
    assert (jax.random.key_data(moved) == jax.random.key_data(jax.random.key(3))).all()
    assert jnp.issubdtype(moved.dtype, jax.dtypes.prng_key)
