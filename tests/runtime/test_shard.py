"""Layouts at the borders of programs."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import layer, normal, same
from tests.runtime.test_scenarios import blocks, columns, rows


def test_sharded_intermediate():
    """The constraint stands on a value between two tasks."""
    first = mm.TaskMesh(devices=range(4), axis_sizes=(4, 1), axis_names=("x", "y"))
    second = mm.TaskMesh(devices=range(4, 8), axis_sizes=(1, 4), axis_names=("x", "y"))

    def fun(a, b, x):
        y = mm.task(layer, mesh=first, logical_axes=[("rows", "x")], name="one")(a, x)
        y = mm.with_sharding_constraint(y, P("rows", "columns"))
        return mm.task(lambda w, y: jnp.sin(y) * w, mesh=second, logical_axes=[("columns", "y")], name="two")(b, y)

    step, found = same(fun, mm.MultiMesh(axis_sizes=(8,), axis_names=("d",)), normal(8, 8), normal(8, 8), normal(8, 8))
    assert blocks(found.sharding, (8, 8)) == columns([4, 5, 6, 7])
    (made,) = [r.output_shardings for w, r in step.latest_plan.compiled.programs.items() if w.submesh == 0]
    assert blocks(jax.tree.leaves(made)[0], (8, 8)) == rows([0, 1, 2, 3])
