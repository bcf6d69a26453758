"""What the placement table says decided about each input: the task, the names, the constraint, with their lines."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import on

SIZE = 8


def first(params, x):
    h = x @ params["up"]
    h = mm.with_sharding_constraint(jax.nn.relu(h), P("batch", "mlp"))
    return h @ params["down"] + params["bias"][None]


def second(params, x):
    return x @ params["whole"]


def loss(params, x):
    x = mm.task(first, task=on(0, "first"))(params["a"], x)
    return mm.task(second, task=on(1, "second"))(params["b"], x).mean()


def update(params, momentum, x):
    grads = jax.grad(loss)(params, x)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum


def line_of(function, text):
    lines, start = inspect.getsourcelines(function)
    return f"{__file__}:{start + next(index for index, line in enumerate(lines) if text in line)}"


def rows_for(constrained):
    pairs = (("mlp", "model" if constrained else None), ("batch", None))
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "model"), logical_axes=pairs)
    square = np.ones((SIZE, SIZE), np.float32)
    params = {"a": {"up": square, "down": square, "bias": square[0]}, "b": {"whole": square}}
    report = mm.mjit(update, mesh=mesh).plan(params, params, square)
    return {row.name: row for row in report.inputs}, report


@pytest.fixture(scope="module")
def constrained():
    return rows_for(True)


def test_the_task_that_reads_a_parameter_places_it(constrained):
    rows, _ = constrained
    placed = {row.reason.placed_by for name, row in rows.items() if name.startswith("params['a']")}
    assert placed == {f"task first at {line_of(loss, 'task(first')}"}
    assert rows["params['b']['whole']"].reason.placed_by == f"task second at {line_of(loss, 'task(second')}"


def test_what_nothing_else_places_is_with_the_parameter_of_its_place():
    def step(params, moments, x):
        return params, jax.tree.map(lambda m: 0.9 * m, moments), loss(params, x)

    square = np.ones((SIZE, SIZE), np.float32)
    params = {"a": {"up": square, "down": square, "bias": square[0]}, "b": {"whole": square}}
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
    report = mm.mjit(step, mesh=mesh).plan(params, ({"mu": params},), square)
    rows = {row.name: row for row in report.inputs}
    for name, stage in (("['a']['up']", 0), ("['b']['whole']", 1)):
        moment = rows[f"moments[0]['mu']{name}"]
        assert moment.submesh == stage
        assert moment.reason.placed_by == f"params{name}, at the same place in its tree"


def test_state_that_no_task_reads_is_placed_by_what_makes_its_next_value(constrained):
    rows, _ = constrained
    assert rows["momentum['b']['whole']"].reason.placed_by == f"its next value at {line_of(update, '0.9 * m')}"


@pytest.mark.parametrize("name", ["params['a']['up']", "params['a']['down']", "momentum['a']['up']"])
def test_a_constraint_cuts_what_is_computed_with_it(constrained, name):
    rows, _ = constrained
    assert "model" in rows[name].spec
    assert rows[name].reason.laid_out_by == f"the constraint at {line_of(first, 'P(')}"


def test_what_nothing_cuts_has_no_line(constrained):
    rows, _ = constrained
    whole = {name for name, row in rows.items() if row.spec in ("P()", "-")}
    assert whole >= {"params['b']['whole']", "x"}
    assert {rows[name].reason.laid_out_by for name in whole} == {"-"}


def test_without_the_constraint_nothing_is_cut():
    rows, _ = rows_for(False)
    assert {row.reason.laid_out_by for row in rows.values()} == {"-"}


def test_a_step_that_is_one_program_says_the_same():
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("model",), logical_axes=(("mlp", "model"), ("batch", None)))
    square = np.ones((SIZE, SIZE), np.float32)
    params = {"up": square, "down": square, "bias": square[0]}
    rows = {row.name: row.reason for row in mm.mjit(first, mesh=mesh).plan(params, square).inputs}
    assert rows["params['up']"].laid_out_by == f"the constraint at {line_of(first, 'P(')}"
    assert rows["params['up']"].placed_by == f"dot_general at {line_of(first, 'up')}"


def test_names_of_a_parameter_decide_for_it_and_for_what_is_computed_with_it():
    meta = pytest.importorskip("flax.core.meta")
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "model"), logical_axes=(("mlp", "model"),))

    def step(params, bias, x):
        h = mm.task(lambda p, b, v: v @ p["w"].value + b[None], task=on(0))(params, bias, x)
        return mm.task(jnp.sum, task=on(1))(h)

    params = {"w": meta.Partitioned(np.ones((SIZE, SIZE), np.float32), (None, "mlp"))}
    rows = mm.mjit(step, mesh=mesh).plan(params, np.ones(SIZE, np.float32), np.ones((SIZE, SIZE), np.float32)).inputs
    named, bias = rows[0].reason, rows[1].reason
    assert (named.logical, named.laid_out_by) == ((None, "mlp"), "its names")
    assert (bias.logical, bias.laid_out_by) == (None, f"the names of {rows[0].name}")


def test_the_table_has_both(constrained):
    _, report = constrained
    (table,) = [table for table in report.tables if table.title == "Inputs"]
    assert table.head[3] == "logical axes"
    assert table.head[-2:] == ("on its submesh because of", "laid out because of")
    assert any(row[-1].startswith("the constraint at ") for row in table.rows)
