"""Mesh axes over which a step cuts nothing: said once, where names say that they are to cut something."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import mmruntime as mm
from tests.runtime.helpers import normal, on

X = normal(8, 4, dtype=np.float32)
WEIGHTS = [normal(4, 4, dtype=np.float32, seed=1), normal(4, 4, dtype=np.float32, seed=2)]


def make_mesh(**names):
    return mm.MultiMesh(axis_sizes=(2, 2, 2), axis_names=("stage", "data", "model"), logical_axes=names or None)


def step_of(layer, microbatches=True):
    def loss(params, x):
        for index, w in enumerate(params):
            x = mm.task(layer, task=on(index))(w, x)
        return jnp.mean(x**2)

    def step(params, x):
        gradients = jax.grad(loss)
        if microbatches:
            gradients = mm.microbatch(gradients, argnum=1, count=2, reduce="exact")
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients(params, x))

    return step


def plain(w, x):
    return jnp.tanh(x @ w)


def named(*names):
    return lambda w, x: mm.with_sharding_constraint(plain(w, x), PartitionSpec(*names))


def mapped(w, x):
    rows = PartitionSpec("data")
    return mm.shard_map(lambda w, x: plain(w, x), in_specs=(PartitionSpec(), rows), out_specs=rows)(w, x)


def own_mesh(w, x):
    mesh = jax.make_mesh((2, 2, 2), ("stage", "data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    return jax.lax.with_sharding_constraint(plain(w, x), NamedSharding(mesh, PartitionSpec("data", "model")))


@pytest.mark.parametrize("microbatches", [True, False])
def test_names_that_no_value_has_are_said_at_the_users_line(microbatches):
    step, mesh = step_of(plain, microbatches), make_mesh(batch="data", hidden="model")
    compiled = mm.mjit(step, mesh=mesh)
    with pytest.warns(UserWarning) as found:
        result = compiled(WEIGHTS, X)
    assert [str(each.message).partition(". ")[0] for each in found] == [
        f"mjit: step cuts no value over the mesh axis {axis!r}, so its 2 devices compute the same"
        for axis in ("data", "model")
    ]
    assert {each.filename for each in found} == {__file__}
    assert "shard('batch', ...)" in str(found[0].message)
    for got, expected in zip(result, jax.jit(step)(WEIGHTS, X), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    lines = re.findall(r"(?m)^mesh axis (\w+): nothing is cut over it", str(compiled.explain()))
    assert lines == ["data", "model"]


@pytest.mark.parametrize(
    ("layer", "idle"),
    [
        (named("batch", None), ["model"]),
        (named("batch", "hidden"), []),
        (named(("batch", "hidden"), None), []),
        (mapped, []),
        (own_mesh, []),
    ],
    ids=["batch", "both", "on one dimension", "shard_map", "a mesh of the program"],
)
def test_what_a_program_names_is_cut(layer, idle):
    """Warnings are errors: the advice is followed."""
    names = {"batch": "data"} if idle else {"batch": "data", "hidden": "model"}
    compiled = mm.mjit(step_of(layer), mesh=make_mesh(**names))
    compiled(WEIGHTS, X)
    assert [axis for axis, _ in compiled.explain().idle_axes] == idle


@pytest.mark.parametrize("names", [{}, {"batch": None, "hidden": None}])
def test_a_mesh_whose_names_stand_for_no_axis_is_let_be(names):
    compiled = mm.mjit(step_of(plain), mesh=make_mesh(**names))
    compiled(WEIGHTS, X)
    assert compiled.explain().idle_axes == (("data", 2), ("model", 2))


def test_names_on_dimensions_that_are_too_small_are_told_apart():
    """The table of names says why."""
    small = mm.mjit(step_of(named("batch", None)), mesh=make_mesh(batch="data"))
    small(WEIGHTS, X[:2])
    assert ("data", 2) in small.explain().idle_axes
    assert [row.name for row in small.explain().names] == ["batch", "batch"]


def test_a_step_without_a_gradient_is_let_be():
    compiled = mm.mjit(lambda w, x: mm.task(plain, task=on(0))(w, x), mesh=make_mesh(batch="data"))
    compiled(WEIGHTS[0], X)
    assert ("data", 2) in compiled.explain().idle_axes
