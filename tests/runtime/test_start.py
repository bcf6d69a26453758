"""What the first call of a step costs beside XLA: what Python collects, imports and traces for it."""

import dataclasses
import gc
import subprocess
import sys
import textwrap
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime import _compat
from mmruntime._frontend.task_call import _AnyTask
from mmruntime._jaxpr.flops import flops
from mmruntime._jaxpr.ir import Op
from tests.runtime.helpers import on, stages

X = jax.ShapeDtypeStruct((4,), jnp.float32)


class Node:
    """An object that may be part of a cycle."""


def planned(node=None):
    """A step that was planned; while it is traced, a cycle is made that nothing else holds."""

    def fun(x):
        if node is not None:
            made = Node()
            made.itself = made
            node.append(weakref.ref(made))
        return mm.task(jnp.sin, task=on(1))(mm.task(jnp.cos, task=on(0))(x))

    step = mm.mjit(fun, mesh=stages(2))
    step.plan(X)
    return step


@pytest.fixture(autouse=True)
def collecting():
    """Garbage is collected, and nothing is frozen after the test."""
    assert gc.isenabled()
    yield
    gc.enable()
    gc.unfreeze()


def is_old(value):
    return any(each is value for each in gc.get_objects(generation=2))


def test_a_plan_is_old_as_soon_as_it_is_made():
    gc.unfreeze()
    assert is_old(planned().latest_plan)


def test_cycles_of_a_trace_are_collected_with_the_plan():
    node = []
    planned(node)
    assert node
    assert all(made() is None for made in node)


def test_nothing_is_collected_where_the_program_does_not_collect():
    gc.disable()
    node = []
    step = planned(node)
    assert not gc.isenabled()
    assert all(made() is not None for made in node)
    assert not is_old(step.latest_plan)


def test_what_the_program_has_frozen_stays_frozen():
    gc.freeze()
    count = gc.get_freeze_count()
    planned()
    # Objects may still be freed by their counts.
    assert gc.get_freeze_count() > count / 2


def test_a_step_that_runs_imports_neither_reports_nor_slices():
    program = """
        import sys
        import jax
        import jax.numpy as jnp
        import mmruntime as mm

        mesh = mm.MultiMesh(axis_sizes=(1,), axis_names=("stage",))
        step = mm.mjit(mm.task(jnp.sin, task=mm.Task(mesh_slice={"stage": 0})), mesh=mesh)
        step(jnp.ones(3))
        print(sorted(name for name in sys.modules if name.startswith(("mmruntime._inspect.", "mmruntime._slices."))))
        assert "programs" in str(step.explain())
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0] == "[]"


def test_copies_of_one_type_are_traced_once_in_each_setting(monkeypatch):
    traced = []
    make_jaxpr = jax.make_jaxpr
    monkeypatch.setattr(jax, "make_jaxpr", lambda *args: traced.append(args) or make_jaxpr(*args))
    _compat.equations._traced_template.cache_clear()

    def copy(dtype):
        aval = jax.typeof(np.zeros((3, 5), dtype))
        source, target = _compat.new_var(aval), _compat.new_var(aval)
        eqn = _compat.copy_eqn(source, target)
        assert eqn.invars == [source]
        assert eqn.outvars == [target]
        return eqn

    eqns = [copy(dtype) for dtype in (np.float32, np.float32, np.int32, np.int32)]
    assert len(traced) == 2
    with jax.enable_x64(True):
        wide = [copy(np.float64) for _ in range(2)]
    assert len(traced) == 3
    assert {eqn.primitive for eqn in (*eqns, *wide)} == {eqns[0].primitive}


def test_keys_of_jit_caches_are_compared_without_code_of_ours():
    keys = [_AnyTask(on(0)), _AnyTask(on(1))]
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(_AnyTask, on(0)).result()
    assert keys[0] == keys[1]
    assert hash(keys[0]) == hash(keys[1])
    assert elsewhere not in keys
    assert [key.task for key in (*keys, elsewhere)] == [on(0), on(1), on(0)]
    assert (_AnyTask.__eq__, _AnyTask.__hash__) == (tuple.__eq__, tuple.__hash__)
    assert not any(key == other for key in keys for other in (None, on(0), on(1)))


def test_another_equation_has_all_marks_of_the_one_before():
    names = [field.name for field in dataclasses.fields(Op) if field.init]
    op = Op(**{name: object() for name in names})
    other = op.with_eqn("another")
    assert other.eqn == "another"
    assert [getattr(other, name) for name in names[1:]] == [getattr(op, name) for name in names[1:]]


def test_the_work_of_a_layer_is_counted_once(monkeypatch):
    eqn = jax.make_jaxpr(jax.jit(lambda x: jnp.sin(x) @ x))(np.ones((4, 4), np.float32)).eqns[0]
    assert flops(eqn) == 16 + 2 * 4 * 16
    asked = []
    inner_jaxprs = _compat.inner_jaxprs
    monkeypatch.setattr(_compat, "inner_jaxprs", lambda each: asked.append(each) or inner_jaxprs(each))
    assert flops(eqn) == 16 + 2 * 4 * 16
    assert asked == [eqn]
