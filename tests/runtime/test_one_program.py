"""Repeated calls of a step of one program go straight to it, as those of `jax.jit`, and see what a first call sees."""

import contextlib
import functools
import logging
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime import _compat
from tests.runtime.helpers import assert_equal, ids, normal

X = normal(4, 4, dtype=np.float32)


@pytest.fixture
def one_device():
    return mm.MultiMesh(axis_sizes=(1,), axis_names=("data",))


@pytest.fixture
def two_devices():
    return mm.MultiMesh(axis_sizes=(2,), axis_names=("data",), devices=jax.devices()[2:4])


@pytest.fixture
def through_python(monkeypatch):
    """Calls a step: `through_python(step, *args)` gives the result, and how often that did work in Python."""

    def call(step, *args, **kwargs):
        count = 0
        run = type(step)._run

        def counted(*given):
            nonlocal count
            count += 1
            return run(step, *given)

        with monkeypatch.context() as patched:
            patched.setattr(step, "_run", counted)
            result = step(*args, **kwargs)
        return result, count

    return call


def test_repeated_calls_do_no_work_in_python(one_device, two_devices, through_python):
    table = np.arange(16, dtype=np.float32).reshape(4, 4)

    def step(state, batch, *, scale):
        """Captured arrays, keys, an input that nothing reads, and results of every kind."""
        key, now = jax.random.split(state["key"])
        w = state["w"] + scale * state["frozen"] + jnp.asarray(table) + jax.random.normal(now, (4, 4))
        return {"w": w, "frozen": state["frozen"], "key": key, "raw": state["raw"]}, (w, w, 2.0, jnp.asarray(table))

    def start():
        return {"w": X, "frozen": X, "key": jax.random.key(1), "raw": jax.random.PRNGKey(2)}

    batch = {"unread": X}
    for mesh in (one_device, two_devices):
        step_on_mesh, plain = mm.mjit(step, mesh=mesh), jax.jit(step)
        found, expected = start(), start()
        counts = []
        for number in range(6):
            scale = np.float32(number)
            result, count = through_python(step_on_mesh, found, batch, scale=scale)
            reference = plain(expected, batch, scale=scale)
            counts.append(count)
            keys = [result[0].pop("key"), reference[0].pop("key")]
            assert_equal(result, reference)
            assert_equal(*map(jax.random.key_data, keys))
            for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(reference), strict=True):
                assert one.weak_type == other.weak_type
                assert ids(one) == {device.id for device in mesh.devices.flat}
            found, expected = ({**part[0], "key": key} for part, key in zip((result, reference), keys, strict=True))
        assert counts[0] == 1
        assert counts[-1] == 0
        assert step_on_mesh.num_plans == 1


def test_an_array_that_nothing_reads_stays_where_it_is(two_devices):
    step = mm.mjit(lambda x, unread: (x + 1, unread), mesh=two_devices)
    for unread in (jax.device_put(X, jax.devices()[5]), jax.device_put(X, NamedSharding(two_devices.mesh, P("data")))):
        for _ in range(3):
            _, found = step(X, unread)
            assert found is not unread
            assert found.sharding == unread.sharding
            np.testing.assert_array_equal(found, X)


def test_what_is_handed_through_is_a_copy(one_device, through_python):
    step = mm.mjit(lambda x, y: (x, y, x + y), mesh=one_device)
    x, y = jax.device_put((X, X))
    for _ in range(3):
        (first, second, _), count = through_python(step, x, y)
        first.delete()
        second.delete()
    assert count == 0
    np.testing.assert_array_equal(step(x, y)[2], X + X)


CHANGES = {
    "default_matmul_precision": jax.default_matmul_precision("float32"),
    "default_prng_impl": jax.default_prng_impl("rbg"),
    "enable_x64": jax.enable_x64(True),
    "numpy_dtype_promotion": jax.numpy_dtype_promotion("standard"),
    "threefry_partitionable": jax.threefry_partitionable(False),
    "autoshard": mm.autoshard(False),
    "enable_fast_path": mm.enable_fast_path(False),
    "enable_recomputation": mm.enable_recomputation(False),
    "ignore_transforms": mm.ignore_transforms(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_setting_is_seen_by_a_repeated_call(change, one_device, through_python):
    step = mm.mjit(lambda x: x + 1, mesh=one_device)
    for _ in range(3):
        _, count = through_python(step, X)
    assert count == 0
    with CHANGES[change]:
        step(X)
    assert step.num_plans == 2
    step(X)
    assert step.num_plans == 2


def test_switches_for_the_whole_process_are_seen_by_a_repeated_call(one_device):
    step = mm.mjit(lambda x: x + 1, mesh=one_device)
    for _ in range(3):
        step(X)
    with mm.replicate_parameters_smaller_than_num_elements(1024):
        step(X)
    assert step.num_plans == 2


def test_registrations_are_seen_by_a_repeated_call(one_device, through_python):
    def fun(x):
        with jax.named_scope("part"):
            return x + 1

    step, task = mm.mjit(fun, mesh=one_device), mm.Task(mesh_slice={"data": 0})

    def tasks():
        step(X)
        return step.explain().programs[0].tasks

    def repeat():
        for _ in range(3):
            _, count = through_python(step, X)
        assert count == 0

    repeat()
    one_device.register_task("part", task=task)
    assert tasks() == ("part",)
    repeat()
    one_device.clear()
    assert tasks() == ()
    repeat()
    context = mm.Context()
    context.register_task("part", task=task)
    with context:
        assert tasks() == ("part",)
        repeat()
    assert tasks() == ()
    repeat()
    # Contexts that register nothing change nothing.
    with mm.Context(), one_device:
        repeat()


def test_a_repeated_call_is_recognised_by_type(one_device):
    step = mm.mjit(lambda x, rate: (x + 1, rate * 2), mesh=one_device)
    x = jax.device_put(X)
    for rate in (2.0, 3.0, 4.0):
        assert step(x, rate)[1].weak_type
    assert step.num_plans == 1
    # The same shapes and types, but this number is not weakly typed.
    for _ in range(3):
        assert not step(x, np.float32(2.0))[1].weak_type
    assert step.num_plans == 2
    assert step(x, 3.0)[1].weak_type
    assert step(X, 4.0)[1] == 8
    assert step.num_plans == 2
    with pytest.raises(TypeError, match=r"got 'two' of type str as an argument"):
        step(x, "two")
    for _ in range(3):
        assert step(X[:2], 3.0)[0].shape == (2, 4)
        assert step(X, 3.0)[0].shape == (4, 4)
    assert step.num_plans == 3
    with pytest.raises(TypeError):
        step(x)


def test_explain_is_about_the_latest_call(one_device):
    step = mm.mjit(lambda x: x + 1, mesh=one_device)
    for rows in (4, 4, 4, 2, 4, 2, 2, 2, 4):
        step(X[:rows])
        assert step.explain().inputs[0].shape == (rows, 4)


def test_static_arguments_of_a_repeated_call(one_device, through_python):
    def fun(mode, x, *, power):
        return (x * 2 if mode == "double" else x) ** power

    step = mm.mjit(fun, mesh=one_device, static_argnums=0, static_argnames="power")
    for mode, power in (("double", 1), ("double", 2), ("single", 2)):
        for _ in range(3):
            found, count = through_python(step, mode, X, power=power)
            np.testing.assert_array_equal(
                found, jax.jit(fun, static_argnums=0, static_argnames="power")(mode, X, power=power)
            )
        assert count == 0
    assert step.num_plans == 3
    with pytest.raises(TypeError, match=r"static arguments of fun must be hashable"):
        step(["double"], X, power=1)
    with pytest.raises(TypeError, match=r"static arguments of fun must be hashable"):
        step("double", X, power=[1])


def test_a_step_of_one_program_takes_arrays_from_anywhere(two_devices, caplog):
    step = mm.mjit(lambda w, x: mm.with_sharding_constraint(x, P("data", None)) @ w, mesh=two_devices)
    places = [
        None,
        jax.devices()[0],
        jax.devices()[3],
        NamedSharding(two_devices.mesh, P(None, "data")),
        NamedSharding(two_devices.mesh, P("data", None)),
    ]
    with caplog.at_level(logging.INFO, "mmruntime"):
        for _ in range(2):
            for w in places:
                for x in places:
                    found = step(*(X if place is None else jax.device_put(X, place) for place in (w, x)))
                    assert ids(found) == {2, 3}
                    np.testing.assert_array_equal(found, X @ X)
    assert step.num_plans == 1
    assert not caplog.records  # the first call was with host arrays

    step = mm.mjit(lambda w, x: mm.with_sharding_constraint(x, P("data", None)) @ w, mesh=two_devices)
    with caplog.at_level(logging.INFO, "mmruntime"):
        for _ in range(4):
            step(jax.device_put(X, jax.devices()[0]), X)
            assert step.latest_plan.runner.misplaced == 1
    (record,) = caplog.records
    assert "moved 1 of 2 input arrays" in record.getMessage()


@pytest.mark.parametrize("place", [None, 0, 2])
def test_a_step_of_one_program_gives_up_what_is_donated(place, two_devices):
    step = mm.mjit(lambda w, x: w + x, mesh=two_devices, donate_argnums=0)
    for _ in range(4):
        w = jnp.asarray(X) if place is None else jax.device_put(X, jax.devices()[place])
        for _ in range(3):
            before, w = w, step(w, X)
            assert before.is_deleted()
        np.testing.assert_array_equal(w, X + X + X + X)


def test_an_array_that_was_given_up_is_refused_by_a_repeated_call(one_device):
    step = mm.mjit(lambda w, x: w + x, mesh=one_device, donate_argnums=0)
    w = X
    for _ in range(4):
        before, w = w, step(w, X)
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        step(before, X)


def test_what_is_donated_and_handed_through_is_given_up(one_device, through_python):
    step = mm.mjit(lambda state, x: (state, (state["w"] * x).sum()), mesh=one_device, donate_argnames="state")
    state = jax.device_put({"w": X, "unread": X})
    for _ in range(4):
        before = state
        (state, _), count = through_python(step, state, X)
        assert before["w"].is_deleted()
        assert before["unread"].is_deleted()
    assert count == 0
    assert_equal(state, {"w": X, "unread": X})


def test_a_repeated_call_inside_of_a_transformation_is_an_ordinary_one(one_device, through_python):
    step = mm.mjit(lambda x: jnp.square(x).sum(), mesh=one_device)
    for _ in range(3):
        _, count = through_python(step, X)
    assert count == 0
    np.testing.assert_allclose(jax.grad(step)(X), 2 * X)
    np.testing.assert_allclose(jax.vmap(step)(X), (X * X).sum(1), rtol=1e-6)
    traced = jax.make_jaxpr(lambda y: y + step(X))(np.float32(1))
    assert "square" in str(traced)
    assert through_python(step, X)[1] == 0
    assert step.num_plans == 1


def test_a_method_is_called_repeatedly(one_device, through_python):
    class Trainer:
        scale = 2

        @functools.partial(mm.mjit, mesh=one_device, static_argnums=0)
        def step(self, x):
            return x * self.scale

    trainer = Trainer()
    for _ in range(3):
        np.testing.assert_array_equal(trainer.step(X), X * 2)
    _, count = through_python(Trainer.step, trainer, X)
    assert count == 0


def test_checks_for_nan_see_repeated_calls(one_device):
    step = mm.mjit(jnp.log, mesh=one_device)
    for _ in range(3):
        step(np.abs(X))
    with jax.debug_nans(True):
        for _ in range(3):
            step(np.abs(X))
        for _ in range(3):
            with pytest.raises(Exception, match="nan"):
                step(-np.abs(X))
    step(-np.abs(X))


def test_calls_back_into_python_happen_every_time(one_device):
    seen = []

    def fun(x):
        jax.debug.callback(lambda value: seen.append(float(value)), x.sum())
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    step = mm.mjit(fun, mesh=one_device)
    for _ in range(4):
        np.testing.assert_allclose(step(X), np.sin(X), rtol=1e-6)
    jax.effects_barrier()
    assert len(seen) == 4


def test_a_repeated_call_in_any_mesh_context(one_device, through_python):
    step = mm.mjit(lambda x: x + 1, mesh=one_device)
    for context in (contextlib.nullcontext(), one_device, jax.set_mesh(one_device.mesh)):
        with context:
            for _ in range(3):
                found, count = through_python(step, X)
                np.testing.assert_array_equal(found, X + 1)
            assert count == 0
    assert step.num_plans == 1


def test_without_the_dispatch_of_jax_calls_are_recognised_in_python(one_device, monkeypatch, through_python):
    monkeypatch.setattr(_compat.dispatch, "pxla", types.SimpleNamespace())
    step = mm.mjit(lambda x: x + 1, mesh=one_device)
    for _ in range(3):
        found, count = through_python(step, X)
        np.testing.assert_array_equal(found, X + 1)
        assert count == 1
    assert step.num_plans == 1
