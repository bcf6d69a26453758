"""`compat.multimesh_jit` and the test case of MultiMesh: programs and test suites that were written for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime import compat
from mmruntime.test_util import MultiMeshJaxTestCase

X = np.arange(8, dtype=np.float32)
FIRST = mm.TaskMesh(devices=(0, 1), axis_sizes=(2,), axis_names=("x",))


def scaled(w, x):
    return mm.with_sharding_constraint(w * x, P("batch"))


def model(w, x):
    return mm.task(jnp.sin, mesh=FIRST.place((2, 3)))(mm.task(scaled, mesh=FIRST, logical_axes=(("batch", "x"),))(w, x))


def unconstrained(w, x):
    return mm.task(jnp.sin, mesh=FIRST.place((2, 3)))(mm.task(jnp.multiply, mesh=FIRST)(w, x))


def ids(array) -> set[int]:
    return {device.id for device in array.devices()}


def test_tasks_run_on_their_submeshes() -> None:
    step = compat.multimesh_jit(model, backend="multimesh")
    out = step(2.0, X)
    np.testing.assert_allclose(out, np.sin(2 * X), rtol=1e-6)
    assert ids(out) == {2, 3}
    assert repr(step).startswith("<multimesh_jit of <function model")
    with mm.ignore_transforms():
        assert len(ids(compat.multimesh_jit(unconstrained)(2.0, X))) == 1


def test_the_mesh_is_the_one_in_use_at_the_time_of_a_call() -> None:
    step = compat.multimesh_jit(lambda x: mm.task(jnp.sin, mesh=FIRST)(x))
    assert ids(step(X)) == {0, 1}
    with mm.MultiMesh(devices=jax.devices()[::-1], axis_names=("x",)):
        assert ids(step(X)) == {6, 7}


def test_layouts_that_are_given_and_those_that_are_found() -> None:
    mesh = Mesh(np.array(jax.devices()), ("x",))
    rows = NamedSharding(mesh, P("x"))
    step = compat.multimesh_jit(model, in_shardings=(compat.AUTO(mesh), rows), out_shardings=rows)
    compiled = step.lower(2.0, jax.ShapeDtypeStruct((8,), np.float32)).compile()
    (_, x), _ = compiled.input_shardings
    assert x == compiled.output_shardings == rows
    found = compat.multimesh_jit(model, out_shardings=compat.AUTO(mesh)).lower(2.0, X).compile()
    assert found.input_shardings[0][1] == NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), P("x"))
    for function in (step, compiled):
        out = function(2.0, jax.device_put(X, rows))
        np.testing.assert_allclose(out, np.sin(2 * X), rtol=1e-6)
        assert out.sharding == rows


class Case(MultiMeshJaxTestCase):
    __test__ = False

    def test_same(self) -> None:
        rows = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), P("x"))
        gradient = jax.value_and_grad(lambda w, x: unconstrained(w, x).sum())
        self._test_against_reference(gradient, lambda: (2.0, jnp.asarray(X)), rtol=1e-5)
        self._test_against_reference(
            unconstrained, lambda: (jnp.float32(2), jnp.asarray(X)), arg_shardings=(None, rows), donate_argnums=(1,)
        )

    def test_other(self) -> None:
        self.assertAllClose({"a": X}, {"a": X + 1})


def test_the_test_case_compares_with_plain_jax() -> None:
    Case("test_same").test_same()
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        Case("test_other").test_other()
