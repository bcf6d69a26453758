import json

import jax
import jax.numpy as jnp
import pytest

import mmruntime as mm


def layer(w, x):
    return jnp.tanh(x @ w)


@pytest.fixture(scope="module")
def stepped():
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"))

    def loss(weights, x):
        for index, w in enumerate(weights):
            x = mm.task(layer, task=mm.stage(index, len(weights)))(w, x)
        return jnp.mean(x * x)

    def step(weights, x):
        value, grads = mm.microbatch(jax.value_and_grad(loss), count=4, argnum=1, schedule="1f1b", reduce="mean")(
            weights, x
        )
        return jax.tree.map(lambda w, g: w - g, weights, grads), value

    compiled = mm.mjit(step, mesh=mesh, donate_argnums=0)
    return compiled, ([jnp.eye(4), jnp.eye(4)], jnp.ones((8, 4)))


def test_a_recorded_step_has_every_program_and_microbatch_in_order(stepped):
    compiled, args = stepped
    timeline = compiled.timeline(*args)
    assert not args[0][0].is_deleted()
    cells = {(span.kind, span.submesh, span.microbatch) for span in timeline.spans if span.kind}
    forward = {("F", submesh, k) for submesh in range(2) for k in range(4)}
    # The last stage runs forward and backward in one program.
    assert cells == forward | {("B", 0, k) for k in range(4)}
    ends = {(span.kind, span.submesh, span.microbatch): span.end for span in timeline.spans if span.kind}
    starts = {(span.kind, span.submesh, span.microbatch): span.start for span in timeline.spans if span.kind}
    for k in range(4):
        assert ends["F", 0, k] <= starts["F", 1, k]
        assert ends["F", 1, k] <= starts["B", 0, k]
    assert any(span.source == 0 and span.submesh == 1 for span in timeline.spans)


def test_usage_adds_up_to_the_step(stepped):
    compiled, args = stepped
    timeline = compiled.timeline(*args)
    assert [row.submesh for row in timeline.usage] == [0, 1]
    for row in timeline.usage:
        assert row.compute > 0
        assert row.compute + row.transfer + row.idle == pytest.approx(timeline.makespan)


def test_the_chrome_trace_holds_the_run_and_its_simulation(stepped, tmp_path):
    compiled, args = stepped
    timeline = compiled.timeline(*args)
    timeline.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"step (recorded)", "1f1b (simulated)"}
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"compute", "transfer", "simulated"}
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    assert "simulated with these costs" in str(timeline)


def test_measure_gives_each_stage_a_cost(stepped):
    compiled, args = stepped
    measured = compiled.measure(*args)
    ((first, last),) = measured.loops
    assert first.forward > 0
    assert first.backward_input > 0
    assert first.backward_weight == 0
    assert last.forward > 0
    assert last.backward_input == 0
    assert set(measured.once) == {0, 1}
    assert (0, 1) in measured.transfers
