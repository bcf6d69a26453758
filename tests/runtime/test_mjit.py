"""What `mjit` keeps between calls: state, plans, checkpoints."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm

pytestmark = pytest.mark.family


def layer(w, x):
    return mm.with_sharding_constraint(jnp.tanh(x @ w), P(None, "hidden"))


def loss_fn(params, x):
    for index, w in enumerate(params):
        x = mm.task(layer, task=mm.stage(index, len(params)))(w, x)
    return jnp.mean(x * x)


optimizer = optax.sgd(0.1, momentum=0.9)


def train_step(state, x):
    params, moments = state
    loss, grads = mm.microbatch(jax.value_and_grad(loss_fn), count=2, argnum=1, schedule="1f1b", reduce="mean")(
        params, x
    )
    updates, moments = optimizer.update(grads, moments, params)
    return (optax.apply_updates(params, updates), moments), loss


def make_mesh():
    return mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "model"), logical_axes=(("hidden", "model"),))


@pytest.mark.optimized
def test_a_checkpoint_of_stage_local_state_is_saved_and_restored_where_it_lives(tmp_path):
    params = [jnp.eye(4) * (1 + index) for index in range(2)]
    state, x = (params, optimizer.init(params)), jnp.ones((4, 4))
    step = mm.mjit(train_step, mesh=make_mesh())
    state, _ = step(state, x)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
    expected, expected_loss = step(state, x)

    again = mm.mjit(train_step, mesh=make_mesh())
    again.plan(*jax.eval_shape(lambda: (state, x)))
    target, _ = again.abstract_args()
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "state", target)
    for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.sharding == b.sharding
    found, loss = again(restored, x)
    assert again.latest_plan.runner.misplaced == 1  # the batch
    assert loss == expected_loss
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_checkpoint_is_restored_onto_another_topology(tmp_path):
    params = [jnp.eye(4) * (1 + index) for index in range(2)]
    state, x = (params, optimizer.init(params)), jnp.ones((4, 4))
    state, _ = mm.mjit(train_step, mesh=make_mesh())(state, x)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
    mesh = mm.MultiMesh(axis_sizes=(1, 4), axis_names=("stage", "model"), logical_axes=(("hidden", "model"),))
    other = mm.mjit(train_step, mesh=mesh)
    other.plan(*jax.eval_shape(lambda: (state, x)))
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "state", other.abstract_args()[0])
    for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)
    _, loss = other(restored, x)
    np.testing.assert_allclose(loss, jax.jit(train_step)(jax.device_get(state), x)[1], rtol=1e-6)


def test_a_setting_of_jax_is_part_of_the_plan():
    step = mm.mjit(lambda x: jnp.sum(x), mesh=make_mesh())
    step(np.ones(4, np.float32))
    step(np.ones(4, np.float32))
    assert step.num_plans == 1
    with jax.default_matmul_precision("float32"):
        step(np.ones(4, np.float32))
    assert step.num_plans == 2


def test_a_single_result_shaped_like_an_argument_is_not_state():
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"))

    def fun(w, x):
        x = mm.task(jnp.sin, name="sin", task=mm.Task(mesh_slice={"stage": 0}))(x)
        return mm.task(
            lambda w, x: mm.with_sharding_constraint(x @ w, P("data", None)),
            name="product",
            task=mm.Task(mesh_slice={"stage": 1}),
        )(w, x)

    step = mm.mjit(fun, mesh=mesh)
    assert step(jnp.ones((4, 4)), jnp.ones((4, 4))).sharding.spec == P("data")


def test_explain_before_a_call_says_what_to_do():
    step = mm.mjit(train_step, mesh=make_mesh())
    with pytest.raises(RuntimeError, match=r"train_step has not been called yet.*\.plan\(\*args\)"):
        step.explain()


def test_arguments_that_are_no_arrays_are_refused():
    with pytest.raises(TypeError, match=r"got 'fast' of type str as an argument.*static_argnums"):
        mm.mjit(lambda mode, x: x, mesh=make_mesh())("fast", jnp.ones(2))


def test_static_arguments_are_part_of_the_plan():
    step = mm.mjit(lambda mode, x: x * 2 if mode == "double" else x, mesh=make_mesh(), static_argnums=0)
    assert step("double", jnp.ones(2)).tolist() == [2.0, 2.0]
    assert step("single", jnp.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match=r"static arguments of .* must be hashable"):
        step(["double"], jnp.ones(2))


def test_no_mesh_is_an_error_with_the_line_to_write():
    with pytest.raises(ValueError, match=r"no mesh for train_step\. Write mm\.mjit\(train_step, mesh=mesh\)"):
        mm.mjit(train_step)


def plain_and_compiled(**options):
    params = [jnp.eye(4) * (1 + index) for index in range(2)]
    state, x = (params, optimizer.init(params)), jnp.ones((4, 4))
    return state, x, mm.mjit(train_step, mesh=make_mesh(), **options)


@pytest.mark.parametrize("in_context", [False, True])
@pytest.mark.parametrize("called_before", [False, True])
def test_without_jit_a_step_is_the_plain_function(called_before, in_context):
    state, x, step = plain_and_compiled()
    if called_before:
        state, _ = step(state, x)
    expected, expected_loss = step(state, x)
    plans, seen = step.num_plans, []

    def watched(state, x):
        seen.append(type(x))
        return train_step(state, x)

    with jax.disable_jit():
        found, loss = step(state, x)
        if in_context:
            with make_mesh():
                found, loss = mm.mjit(watched, mesh=make_mesh())(state, x)
                # Values, not tracers, as a debugger wants them.
                assert not issubclass(seen[0], jax.core.Tracer)
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    assert step.num_plans == plans
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    # What it returned goes home with the next compiled step.
    again, _ = step(found, x)
    assert [w.devices() for w in again[0]] == [w.devices() for w in expected[0]]


def test_without_jit_a_step_of_one_program_is_the_plain_function():
    step, seen = mm.mjit(lambda x: seen.append(x) or x * 2, mesh=make_mesh()), []
    for _ in range(2):
        step(jnp.ones(3))
    assert len(seen) == 1
    with jax.disable_jit():
        np.testing.assert_array_equal(step(jnp.ones(3)), 2 * np.ones(3))
        assert not isinstance(seen[1], jax.core.Tracer)
    np.testing.assert_array_equal(step(jnp.ones(3)), 2 * np.ones(3))
    assert len(seen) == 2


def test_reports_and_initialisers_work_without_jit():
    state, x, step = plain_and_compiled()
    with jax.disable_jit():
        assert len(step.plan(state, x).submeshes) == 2
        made, _ = mm.mjit(lambda: state, out_like=step)()
        step.timeline(state, x)
        step.measure(state, x)
    assert [w.devices() for w in made] == [w.devices() for w in step(state, x)[0][0]]


def test_a_step_says_what_it_is():
    state, x, step = plain_and_compiled()
    assert repr(step) == "<step train_step on MultiMesh(stage=2, model=2), not called yet>"
    step(state, x)
    assert repr(step) == "<step train_step on MultiMesh(stage=2, model=2), compiled for 1 input signature>"
    step(state, jnp.ones((8, 4)))
    assert repr(step) == "<step train_step on MultiMesh(stage=2, model=2), compiled for 2 input signatures>"


doubled = mm.mjit(lambda x: 2 * x, mesh=mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",)))
doubled.__qualname__, doubled.__module__ = "doubled", __name__


def test_copies_of_a_step_are_the_step():
    doubled(np.float32(1))
    assert copy.copy(doubled) is doubled
    assert copy.deepcopy({"step": doubled})["step"] is doubled


def test_a_step_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    nameless = mm.mjit(lambda x: x, mesh=doubled.multimesh)
    with pytest.raises(TypeError, match=r"pickle: got <step <lambda> on .*\.<lambda> is not this step\. Give it that"):
        pickle.dumps(nameless)
