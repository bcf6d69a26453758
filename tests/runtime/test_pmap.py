"""`mmruntime.compat.pmap` is what `jax.pmap` was: placement, donation, what it is called from, and its messages.

The fixtures of `replace_pmap` compare its values with those of an old JAX.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from mmruntime import compat

DEVICES = jax.devices()
ROWS = np.arange(32, dtype=np.float32).reshape(8, 4)


def add(x, y=1.0):
    """The sum."""
    return x + y


@pytest.fixture(scope="module")
def mapped():
    return compat.pmap(add, "rows", in_axes=(0, None))


def devices_of(x):
    return [shard.device for shard in sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)]


def test_it_is_the_function_of_one_row(mapped):
    assert (mapped.__name__, mapped.__doc__, mapped.__wrapped__) == ("add", "The sum.", add)
    assert repr(mapped).startswith("<pmap of <function add at ")
    out = mapped(ROWS, 2.0)
    np.testing.assert_array_equal(out, ROWS + 2)
    assert out.sharding.spec == P("rows")
    assert devices_of(out) == DEVICES
    assert devices_of(compat.pmap(add)(ROWS[:3])) == DEVICES[:3]


def test_the_number_of_devices_is_that_of_the_rows_of_each_call(mapped):
    assert [mapped(ROWS[:count], 0.0).sharding.num_devices for count in (1, 5, 8)] == [1, 5, 8]
    assert {1, 5, 8} <= set(mapped._compiled)
    before = {size: compiled.run._cache_size() for size, compiled in mapped._compiled.items()}
    mapped(ROWS[:5], 3.0)
    assert {size: compiled.run._cache_size() for size, compiled in mapped._compiled.items()} == before


def test_rows_of_another_mesh_with_the_same_devices_do_not_compile_it_again(mapped):
    first = mapped(ROWS, 1.0)
    count = mapped._compiled[8].run._cache_size()
    copies = compat.device_put_sharded(list(ROWS), DEVICES)
    np.testing.assert_array_equal(mapped(copies, 1.0), first)
    np.testing.assert_array_equal(mapped(first, 1.0), first + 1)
    assert mapped._compiled[8].run._cache_size() == count


def test_donated_rows_are_given_up_and_moved_ones_are_not():
    double = compat.pmap(lambda x: 2 * x, donate_argnums=0)
    here = compat.device_put_sharded(list(ROWS), DEVICES)
    elsewhere = [jax.device_put(ROWS, DEVICES[2]), jnp.asarray(ROWS), jax.device_put(ROWS, DEVICES[0])]
    for x in (here, *elsewhere):
        np.testing.assert_array_equal(double(x), 2 * ROWS)
    assert here.is_deleted()
    assert not any(x.is_deleted() for x in elsewhere)
    # What all devices get may lie on one of them already, and rows may partly lie where they should.
    shared = jax.device_put(ROWS[0], DEVICES[0])
    swapped = jax.device_put(ROWS, NamedSharding(Mesh([DEVICES[0], *DEVICES[:0:-1]], "a"), P("a")))
    total = compat.pmap(lambda x, y: x + y, in_axes=(None, 0), donate_argnums=(0, 1))(shared, swapped)
    np.testing.assert_array_equal(total, ROWS[0] + ROWS)
    np.testing.assert_array_equal(shared, ROWS[0])
    np.testing.assert_array_equal(swapped, ROWS)
    by_name = compat.device_put_sharded(list(ROWS), DEVICES)
    double_named = compat.pmap(lambda x: 2 * x, donate_argnums=0)
    np.testing.assert_array_equal(double_named(x=by_name), 2 * ROWS)
    assert not by_name.is_deleted()


def test_it_does_not_ask_for_the_mesh_in_context(mapped):
    mesh = Mesh(np.array(DEVICES[:4]).reshape(2, 2), ("a", "b"))
    with jax.set_mesh(mesh):
        assert mapped(ROWS, 1.0).sharding.num_devices == 8
        assert mapped.lower(ROWS, 1.0).compile()(ROWS, 1.0).sharding.num_devices == 8
    with compat.mesh_context(mesh):
        assert mapped(ROWS, 1.0).sharding.num_devices == 8


def test_it_can_be_transformed(mapped):
    np.testing.assert_array_equal(jax.jit(lambda x: mapped(x, 1.0) * 2)(ROWS), 2 * ROWS + 2)
    np.testing.assert_array_equal(jax.vmap(mapped, (0, None))(np.stack([ROWS, -ROWS]), 1.0)[1], 1 - ROWS)
    assert jax.eval_shape(mapped, ROWS, 1.0).shape == (8, 4)
    total = compat.pmap(lambda w, x: jax.lax.psum(jnp.sin(w * x), "i"), "i", in_axes=(None, 0))
    gradient = jax.grad(lambda w: total(w, ROWS)[:, 1].sum())(0.5)
    np.testing.assert_allclose(gradient, 8 * np.sum(ROWS[:, 1] * np.cos(0.5 * ROWS[:, 1])), rtol=1e-4)


def test_it_lowers_shapes_too(mapped):
    lowered = mapped.lower(jax.ShapeDtypeStruct((8, 4), "float32"), 1.0)
    np.testing.assert_array_equal(lowered.compile()(ROWS, 1.0), ROWS + 1)
    assert "jit_add" in lowered.as_text()


def test_without_jit_it_runs_as_well():
    with jax.disable_jit():
        np.testing.assert_array_equal(compat.pmap(lambda x: jax.lax.psum(x, "i"), "i")(ROWS)[3], ROWS.sum(0))


def test_keys_are_rows():
    keys = jax.random.split(jax.random.key(0), 8)
    drawn, same = compat.pmap(lambda key: (jax.random.normal(key), key))(keys)
    np.testing.assert_array_equal(drawn, jax.vmap(jax.random.normal)(keys))
    np.testing.assert_array_equal(jax.random.key_data(same), jax.random.key_data(keys))
    assert devices_of(same) == DEVICES


def test_rows_in_two_other_orders():
    total = compat.pmap(lambda x: x.sum(), in_axes=1)
    expected = ROWS.sum(1)
    grid = Mesh(np.array(DEVICES).reshape(2, 4), ("a", "b"))
    for sharding in (NamedSharding(grid, P("b", "a")), NamedSharding(Mesh(DEVICES[::-1], "a"), P(None, "a"))):
        np.testing.assert_allclose(total(jax.device_put(ROWS.T, sharding)), expected)


def nested(x):
    return compat.pmap(add, "inner")(x)


MISUSES = {
    "sizes": (
        lambda: compat.pmap(add)({"a": ROWS}, y=ROWS[:4]),
        r"pmap of add: mapped arguments need one size along their mapped axes, got\n"
        r"  8 along axis 0 of args\[0\]\['a'\], of shape \(8, 4\)\n"
        r"  4 along axis 0 of kwargs\['y'\], of shape \(4, 4\)\n"
        r"Give each a row for every device, or None in in_axes",
    ),
    "rank": (lambda: compat.pmap(add)(ROWS, 1.0), r"no axis 0 in args\[1\], of shape \(\)"),
    "rank_first": (lambda: compat.pmap(add, in_axes=1)(ROWS[0]), r"no axis 1 in args\[0\], of shape \(4,\)"),
    "rank_after_static": (
        lambda: compat.pmap(lambda n, x, y: x, static_broadcasted_argnums=0)(2, ROWS, 1.0),
        r"8 along axis 0 of args\[1\], of shape \(8, 4\)\n  no axis 0 in args\[2\], of shape",
    ),
    "nothing_mapped": (lambda: compat.pmap(add, in_axes=None)(1.0), "no argument is mapped, .* in_axes is None"),
    "too_many": (lambda: compat.pmap(add)(np.ones(9)), "9 rows need as many devices, and this process has 8"),
    "no_rows": (lambda: compat.pmap(add)(np.ones(0)), "0 rows need as many devices"),
    "in_axes": (
        lambda: compat.pmap(add, in_axes=(0, 0))(ROWS),
        r"in_axes=\(0, 0\) does not fit the arguments .* one for each of the 1 that are not static.*\n +in_axes\n",
    ),
    "out_axes": (
        lambda: compat.pmap(add, out_axes=(0, 0))(ROWS),
        r"out_axes=\(0, 0\) does not fit its result.*\n +out_axes\n",
    ),
    "static": (
        lambda: compat.pmap(add, static_broadcasted_argnums=1)(ROWS, y=2),
        r"static arguments are given by position, at \(1,\), and the call has 1 there",
    ),
    "nested": (
        lambda: compat.pmap(nested, "outer")(ROWS),
        "pmap of add is called by a function that is mapped itself, over 'outer'. JAX maps once",
    ),
    "negative_position": (lambda: compat.pmap(add, donate_argnums=-1), "donate_argnums=-1 are positions"),
    "positions": (lambda: compat.pmap(add, static_broadcasted_argnums=("x",)), "are positions of arguments"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_what_is_wrong_is_said(name):
    call, message = MISUSES[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()


@pytest.mark.parametrize("axes", [-1, 0.5, True, (0, "x"), {"a": np.int32(0)}], ids=repr)
@pytest.mark.parametrize("word", ["in_axes", "out_axes"])
def test_axes_are_numbers(word, axes):
    with pytest.raises(TypeError, match=f"pmap: {word}=.* each is an axis counted from 0, or None"):
        compat.pmap(add, **{word: axes})


def test_it_takes_a_function():
    with pytest.raises(TypeError, match="pmap takes a function, got 3"):
        compat.pmap(3)
