"""The switches: what each does, when it is decided, and that it is restored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime import _contexts

STATES = {
    mm.autoshard: _contexts.autoshard_enabled,
    mm.enable_fast_path: _contexts.fast_path_enabled,
    mm.enable_recomputation: _contexts.recomputation_enabled,
    mm.ignore_transforms: _contexts.transforms_ignored,
}


def make_mesh() -> mm.MultiMesh:
    return mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))


def two_stages(x):
    """Two named tasks and a constraint; the mask is cheap and used by both."""
    mask = jnp.arange(8.0) > 3.0
    for index in range(2):

        def layer(x, mask):
            return mm.with_sharding_constraint(jnp.where(mask, jnp.cos(x), x), P("data"))

        x = mm.task(layer, f"layer_{index}", mesh_slice={"stage": index})(x, mask)
    return x


X = np.linspace(0.0, 1.0, 8, dtype=np.float32)


@pytest.mark.parametrize("switch", STATES, ids=lambda switch: switch.__name__)
def test_switches_nest_and_are_restored_on_exceptions(switch) -> None:
    state = STATES[switch]
    before = state()
    with switch(not before):
        assert state() is not before
        with switch(None):
            assert state() is not before
        with pytest.raises(RuntimeError, match="inside"), switch(before):
            assert state() is before
            raise RuntimeError("inside")
        assert state() is not before
    assert state() is before


def test_context_sets_what_is_given_and_leaves_the_rest() -> None:
    with mm.context(autoshard=False, ignore_transforms=True):
        assert [state() for state in STATES.values()] == [False, True, True, True]
        with mm.context(enable_recomputation=False, enable_fast_path=False, autoshard=True):
            assert [state() for state in STATES.values()] == [True, False, False, True]
    assert [state() for state in STATES.values()] == [True, True, True, False]


@pytest.mark.parametrize("switch", STATES, ids=lambda switch: switch.__name__)
def test_switches_take_flags_only(switch) -> None:
    with pytest.raises(TypeError, match=rf"{switch.__name__}: expected True, False or None \(no change\), got 1."):
        switch(1).__enter__()


def test_ignored_transforms_give_the_one_device_program_decided_at_the_call() -> None:
    mesh = make_mesh()
    mesh.register_task("extra", task=mm.Task(mesh_slice={"stage": 1}))

    @jax.named_scope("extra")
    def extra(x):
        return x + 1

    step = mm.mjit(lambda x: extra(two_stages(x)), mesh=mesh)
    expected = np.asarray(jax.jit(lambda x: extra(two_stages(x)))(X))
    placed = step(X)
    assert placed.devices() == set(mesh.devices[1])
    with mm.ignore_transforms():
        ignored = step(X)
        assert ignored.devices() == set(mesh.devices.flat)
        assert ignored.sharding.spec == P()
        with mm.ignore_transforms(False):
            assert step(X).devices() == set(mesh.devices[1])
    assert step(X).devices() == set(mesh.devices[1])
    for out in (placed, ignored):
        np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_ignored_transforms_are_seen_by_plain_jit_without_clearing_caches() -> None:
    calls = []

    @jax.jit
    def step(x):
        calls.append(1)
        return mm.microbatch(lambda x: x.sum(), size=2)(x) if len(calls) else x

    step(X)
    with mm.ignore_transforms():
        step(X)
    step(X)
    assert len(calls) == 2


def test_without_autoshard_constraints_have_no_effect() -> None:
    step = mm.mjit(two_stages, mesh=make_mesh())
    assert step(X).sharding.spec == P("data")
    with mm.autoshard(False):
        assert step(X).sharding.spec == P()
    assert step(X).sharding.spec == P("data")


def test_recomputation_decides_whether_cheap_values_are_sent() -> None:
    step = mm.mjit(two_stages, mesh=make_mesh())
    expected = np.asarray(step(X))
    arrays = [sum(row.arrays for row in step.explain().transfers)]
    with mm.enable_recomputation(False):
        np.testing.assert_array_equal(step(X), expected)
        arrays.append(sum(row.arrays for row in step.explain().transfers))
    assert arrays == [1, 2]


def test_fast_path_decides_whether_one_submesh_is_one_program() -> None:
    def step(x):
        return mm.microbatch(mm.task(lambda x: (x * x).sum(), mesh_slice={"stage": 0}), size=2)(x)

    compiled = mm.mjit(step, mesh=make_mesh())

    def instructions() -> int:
        return len(compiled._latest.program.instructions)

    fast = compiled(X)
    assert instructions() == 1
    with mm.enable_fast_path(False):
        slow = compiled(X)
        assert instructions() > 4
    np.testing.assert_allclose(fast, slow, rtol=1e-6)


def test_small_inputs_are_replicated() -> None:
    mesh = make_mesh()

    def step(small, large):
        return mm.task(
            lambda small, large: (
                mm.with_sharding_constraint(small, P("data")),
                mm.with_sharding_constraint(large, P("data")),
            ),
            mesh_slice={"stage": 0},
        )(small, large)

    compiled = mm.mjit(step, mesh=mesh)

    def specs() -> list[str]:
        compiled(X[:4], X)
        return [row.spec for row in compiled.explain().inputs]

    assert specs() == ["P('data',)", "P('data',)"]
    with mm.replicate_parameters_smaller_than_num_elements(8):
        assert specs() == ["P()", "P('data',)"]
    assert specs() == ["P('data',)", "P('data',)"]
    with pytest.raises(RuntimeError), mm.replicate_parameters_smaller_than_num_elements(9):
        assert specs() == ["P()", "P()"]
        raise RuntimeError
    mm.replicate_parameters_smaller_than_num_elements(8)
    assert specs() == ["P()", "P('data',)"]
    mm.replicate_parameters_smaller_than_num_elements(0)
    assert specs() == ["P('data',)", "P('data',)"]


def test_replication_needs_a_count() -> None:
    with pytest.raises(ValueError, match="expected a number of elements, 0 or more, got -1"):
        mm.replicate_parameters_smaller_than_num_elements(-1)
