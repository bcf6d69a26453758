"""Forward passes that run once more (R), so that less is held meanwhile."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime._partition.pipeline.instructions import RunInstruction
from mmruntime.schedules import Action, Auto, make, simulate

COUNT, WIDTH = 6, 16


def layer(w, x):
    return x + jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]) @ w[2]


def train(schedule, call=layer):
    def loss(weights, x):
        for index, w in enumerate(weights):
            x = mm.task(call, name=f"layer_{index}", task=mm.Task(mesh_slice={"stage": index}))(w, x)
        return jnp.mean(x * x)

    def step(weights, x):
        run = mm.microbatch(jax.value_and_grad(loss), count=COUNT, argnum=1, reduce="mean", schedule=schedule)
        value, grads = run(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    return step


def make_step(schedule, call=layer):
    return mm.mjit(train(schedule, call), mesh=mm.MultiMesh(axis_sizes=(3,), axis_names=("stage",)))


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    weights = [
        tuple(jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) * 0.3, jnp.float32) for _ in range(3)) for _ in range(3)
    ]
    return weights, jnp.asarray(rng.normal(size=(4 * COUNT, WIDTH)), jnp.float32)


def again(schedule, stages, odd_only=False):
    """The schedule with forwards once more, right before their backward passes."""
    rows = []
    for row in schedule.rows:
        found = []
        for action in row:
            if action.kind in "BI" and action.stage in stages and (action.microbatch % 2 or not odd_only):
                found.append(Action("R", action.stage, action.microbatch))
            found.append(action)
        rows.append(tuple(found))
    return dataclasses.replace(schedule, rows=tuple(rows), name="again")


@pytest.fixture(scope="module")
def oracle(inputs):
    return jax.tree.leaves(jax.jit(train("1f1b"))(*inputs))


def held(program, submesh):
    """The most bytes of one microbatch each that a submesh holds between programs, once a program read or made them."""
    live, most = set(), 0
    for item in program.instructions:
        is_run = isinstance(item, RunInstruction)
        if is_run and item.spec.submesh == submesh:
            live.update((*item.args, *item.results))
        live.difference_update(item.frees)
        # A program's results for other submeshes are sent right behind it.
        if not is_run:
            keys = [program.keys[slot] for slot in live]
            avals = [var.aval for var, where, microbatch in keys if where == submesh and microbatch is not None]
            most = max(most, sum(aval.size * aval.dtype.itemsize for aval in avals if aval.ndim))
    return most


@pytest.mark.parametrize("name", [pytest.param("1f1b", marks=pytest.mark.slow), "zb-h1"])
def test_results_are_the_same_and_less_is_held(name, inputs, oracle):
    """Some microbatches of one stage, all of another; the backward pass whole or in halves."""
    schedule = again(again(make(name, 3, COUNT), {0}), {1}, odd_only=True)
    step = make_step(schedule)
    result = jax.tree.leaves(step(*inputs))
    for a, b in zip(result, oracle, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    report = step.explain()
    rows = {(row.submesh, row.kind): row.runs for row in report.programs if "once more" in row.kind}
    assert rows == {(0, "forward once more"): COUNT, (1, "forward once more"): COUNT // 2}
    assert report.loops[0].live[0] == 1
    if name == "1f1b":
        # A stage holds what two `tanh` gave and its input, which the first stage cuts out of the batch.
        unit = 4 * WIDTH * 4
        sizes = {"activation_bytes": (2 * unit, 3 * unit, 0), "input_bytes": (0, unit, 0)}
        peaks = simulate(schedule, **sizes).peak_bytes
        assert [held(step.latest_plan.program, submesh) for submesh in (0, 1)] == [*peaks[:2]] == [2 * unit, 6 * unit]
    timeline = step.timeline(*inputs)
    spans = [span.microbatch for span in timeline.spans if span.kind == "R" and span.stage == (0, 0)]
    assert spans == list(range(COUNT))
    assert "forward once more" in timeline.html()


def test_auto_runs_forwards_once_more_within_bytes(inputs, oracle):
    """In six arrays of the width of a layer."""
    unit = 4 * WIDTH * 4
    step = make_step(Auto(memory_bytes=6 * unit, effort=0.05))
    for a, b in zip(jax.tree.leaves(step(*inputs)), oracle, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    report = step.explain()
    choice = report.loops[0].choice
    assert {stage for stage, _ in choice.schedule.recomputed} == {0, 1}
    assert "Forwards that run once more, to hold less: 6 of 6 of stage 0, 3 of 6 of stage 1." in str(report)
    assert max(choice.simulation.peak_bytes) <= 6 * unit
    for submesh, peak in enumerate(choice.simulation.peak_bytes):
        assert held(step.latest_plan.program, submesh) <= peak


@pytest.mark.slow
def test_rematerialised_layers_count_with_what_they_keep(inputs, oracle):
    """Their input: what the input half makes again for the weight half is no residual of a whole backward pass."""
    unit = 4 * WIDTH * 4
    step = make_step(Auto(memory_bytes=3 * unit, effort=0.05), jax.checkpoint(layer))
    for a, b in zip(jax.tree.leaves(step(*inputs)), oracle, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    (loop,) = step.explain().loops
    assert loop.live == (3, 2, 1)
    assert not loop.choice.schedule.recomputed
    assert max(loop.choice.simulation.peak_bytes) <= 3 * unit
    program = step.latest_plan.program
    assert all(held(program, submesh) <= 3 * unit for submesh in (0, 1))


@pytest.mark.slow
def test_auto_runs_no_forward_once_more_where_it_is_told_so(inputs):
    """The step is a fifth longer then."""
    times = []
    for recompute in (True, False):
        step = make_step(Auto(memory_bytes=24 * WIDTH * 4, effort=0.05, recompute=recompute))
        choice = step.plan(*inputs).loops[0].choice
        assert bool(choice.schedule.recomputed) == recompute
        times.append(choice.simulation.step_time)
    assert times[0] < 0.85 * times[1]


def shouting(w, x):
    jax.debug.callback(lambda: None)
    return layer(w, x)


@pytest.mark.parametrize(
    ("stage", "call", "why"),
    [
        (2, layer, "its forward and backward passes are one program"),
        pytest.param(
            0,
            shouting,
            "its forward pass has effects, such as a callback, which would happen twice",
            marks=pytest.mark.slow,
        ),
        (1, lambda w, x: x @ w[0], "its backward pass reads nothing that its forward pass makes for it alone"),
    ],
    ids=["last stage", "callback", "nothing to gain"],
)
def test_stages_that_may_not_run_again(stage, call, why, inputs):
    step = make_step(again(make("1f1b", 3, COUNT), {stage}), call)
    with pytest.raises(ValueError, match=rf"runs the forward pass of stage {stage} again \(R\), but {why}. Leave"):
        step(*inputs)
