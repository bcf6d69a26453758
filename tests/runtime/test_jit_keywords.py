"""What `mjit` is told as `jax.jit` is: static and donated arguments by position and name, and methods."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm


def double(x):
    return x * 2


def scaled(x, n, *, power=1, flag=False):
    y = mm.task(double, task=mm.Task(mesh_slice={"stage": 0}))(x)
    y = mm.task(double, task=mm.Task(mesh_slice={"stage": 1}))(y)
    return (y * n) ** power if flag else y


@pytest.fixture
def mesh():
    return mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1, "static_argnames": ("power", "flag")},
        {"static_argnums": (-1,), "static_argnames": ["power", "flag"]},
        {"static_argnames": iter(("n", "power", "flag"))},
    ],
)
def test_static_arguments_are_known_while_tracing(mesh, options):
    step = mm.mjit(scaled, mesh=mesh, **options)
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(step(x, 3, flag=True, power=2), scaled(x, 3, flag=True, power=2))
    np.testing.assert_array_equal(step(x, n=2, flag=True), scaled(x, 2, flag=True))
    np.testing.assert_array_equal(step(x, 5), scaled(x, 5))


def test_none_is_nothing(mesh):
    step = mm.mjit(double, mesh=mesh, static_argnums=None, static_argnames=None, donate_argnums=None)
    np.testing.assert_array_equal(step(jnp.ones(3)), 2 * np.ones(3))


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ({"donate_argnums": 0}, False),
        ({"donate_argnums": -2}, False),
        ({"donate_argnums": (0,)}, True),
        ({"donate_argnames": "state"}, False),
        ({"donate_argnames": ("state",)}, True),
    ],
)
def test_donated_arguments_are_given_up_by_position_and_by_name(mesh, options, keyword):
    def train(state, x):
        y = mm.task(double, task=mm.Task(mesh_slice={"stage": 0}))(state)
        return mm.task(lambda y, x: y + x, name="add", task=mm.Task(mesh_slice={"stage": 0}))(y, x)

    step = mm.mjit(train, mesh=mesh, **options)
    x = jnp.ones((8, 8))
    state = step(x + 1, x)
    kept = jnp.copy(x)
    again = step(state=state, x=kept) if keyword else step(state, kept)
    assert state.is_deleted()
    assert not kept.is_deleted()
    np.testing.assert_array_equal(again, np.full((8, 8), 11.0))


class Trainer:
    def __init__(self, rate):
        self.rate = rate
        self.step = mm.mjit(self.update, mesh=mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",)), donate_argnums=0)

    def update(self, state):
        return mm.task(double, task=mm.Task(mesh_slice={"stage": 1}))(state) * self.rate


def test_a_bound_method(mesh):
    trainer = Trainer(3.0)
    np.testing.assert_array_equal(trainer.step(jnp.ones(4)), np.full(4, 6.0))


def test_a_method_that_is_compiled_in_its_class(mesh):
    class Model:
        def __init__(self, rate):
            self.rate = rate

        @functools.partial(mm.mjit, mesh=mesh, static_argnums=0)
        def update(self, state):
            return mm.task(double, task=mm.Task(mesh_slice={"stage": 1}))(state) * self.rate

        @staticmethod
        @functools.partial(mm.mjit, mesh=mesh)
        def plain(state):
            return double(state)

    one, other = Model(3.0), Model(5.0)
    np.testing.assert_array_equal(one.update(jnp.ones(4)), np.full(4, 6.0))
    np.testing.assert_array_equal(other.update(jnp.ones(4)), np.full(4, 10.0))
    np.testing.assert_array_equal(Model.update(one, jnp.ones(4)), np.full(4, 6.0))
    np.testing.assert_array_equal(one.plain(jnp.ones(4)), np.full(4, 2.0))
    assert "update" in str(one.update.explain())


def test_a_partial_keeps_its_function_s_name(mesh):
    step = mm.mjit(functools.partial(scaled, flag=True), mesh=mesh, static_argnames=("n", "power"))
    np.testing.assert_array_equal(step(jnp.ones(2), n=3), np.full(2, 12.0))
    assert step.explain().name == "scaled"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"static_argnums": 2}, r"static_argnums has 2, but the function takes 2 positional arguments \(x, n\)"),
        ({"donate_argnums": (-3,)}, "donate_argnums has -3, but the function takes 2"),
        ({"static_argnames": "m"}, "static_argnames has 'm', and the function has no such argument; it has x, n"),
    ],
)
def test_arguments_that_are_not_there(mesh, options, message):
    with pytest.raises(ValueError, match=message):
        mm.mjit(scaled, mesh=mesh, **options)


def test_from_the_end_of_any_number_of_arguments(mesh):
    def many(*args):
        return args[0]

    with pytest.raises(ValueError, match=r"with \*args\. Count from the front"):
        mm.mjit(many, mesh=mesh, donate_argnums=-1)
    step = mm.mjit(many, mesh=mesh, static_argnums=1)
    np.testing.assert_array_equal(step(jnp.ones(2), "text"), np.ones(2))


@pytest.mark.parametrize("option", ["static_argnums", "static_argnames"])
def test_static_arguments_that_are_equal_and_of_other_types_are_traced_apart(mesh, option):
    def named(x, kind=1):
        return x * {int: 2.0, bool: 3.0, float: 5.0}[type(kind)]

    chosen = {option: 1 if option == "static_argnums" else "kind"}
    step, plain = mm.mjit(named, mesh=mesh, **chosen), jax.jit(named, **chosen)
    for kind in (1, True, 1.0, True, 1):
        args, kwargs = ((kind,), {}) if option == "static_argnums" else ((), {"kind": kind})
        x = jnp.ones(2, jnp.float32)
        np.testing.assert_array_equal(step(x, *args, **kwargs), plain(x, *args, **kwargs))
    assert step.num_plans == 3
