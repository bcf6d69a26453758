import json
import threading
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime._inspect import record


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
    # The last stage runs forward and backward in one program.
    assert cells == {(kind, submesh, k) for kind, submesh in (("F", 0), ("FB", 1), ("B", 0)) for k in range(4)}
    ends = {(span.kind, span.submesh, span.microbatch): span.end for span in timeline.spans if span.kind}
    starts = {(span.kind, span.submesh, span.microbatch): span.start for span in timeline.spans if span.kind}
    for k in range(4):
        assert ends["F", 0, k] <= starts["FB", 1, k]
        assert ends["FB", 1, k] <= starts["B", 0, k]
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


SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_of_a_recorded_step_has_every_program_and_transfer(stepped):
    compiled, args = stepped
    timeline = compiled.timeline(*args)
    root = ElementTree.fromstring(timeline.svg(width=1000))
    tips = [each.text for each in root.iter(f"{SVG}title")]
    assert len(tips) == len(timeline.spans)
    assert sum("forward and whole backward, microbatch 3" in tip for tip in tips) == 1
    words = {each.text for each in root.iter(f"{SVG}text")}
    assert {"submesh 0", "submesh 1", "live", "forward", "whole backward", "receiving", "idle", "ms"} <= words
    assert "backward, weight half" not in words
    # The first submesh holds two microbatches, the last one what it works on.
    assert [each.text for each in root.iter(f"{SVG}text") if "peak" in each.text] == ["peak 2", "peak 1"]


def test_programs_that_were_seen_for_an_instant_hold_activations(stepped):
    """On a busy machine the ends of a transfer and of the program behind it may be seen at once."""
    compiled, args = stepped
    timeline = compiled.timeline(*args)
    instant = tuple(replace(span, start=span.end) if span.submesh == 1 else span for span in timeline.spans)
    root = ElementTree.fromstring(replace(timeline, spans=instant).svg(width=1000))
    assert [each.text for each in root.iter(f"{SVG}text") if "peak" in each.text][1] == "peak 1"


def test_the_page_of_a_recorded_step_needs_nothing_else_and_has_the_simulation_on_the_same_scale(stepped):
    compiled, args = stepped
    timeline = compiled.timeline(*args)
    page = timeline.html()
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<h1>Timeline of step</h1>" in page
    assert "<h2>Simulated: 1f1b</h2>" in page
    assert all(f"{row.idle * 1e3:.2f} ms" in page for row in timeline.usage)
    recorded, simulated = (part for part in page.split("<svg ") if "Timeline of" not in part and "timeline of" in part)
    assert recorded.count("<line") == simulated.count("<line")


def test_a_timeline_is_saved_by_the_ending_of_the_name(stepped, tmp_path):
    compiled, args = stepped
    timeline = compiled.timeline(*args)
    timeline.save(tmp_path / "run.svg")
    timeline.save(tmp_path / "run.html")
    timeline.save(tmp_path / "run.txt")
    assert (tmp_path / "run.svg").read_text() == timeline.svg()
    assert (tmp_path / "run.html").read_text() == timeline.html()
    assert (tmp_path / "run.txt").read_text() == f"{timeline}\n"
    with pytest.raises(
        ValueError, match=r"cannot tell from .*run\.png' what to write\. Choose .* \.json, \.svg, \.html"
    ):
        timeline.save(tmp_path / "run.png")


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
    found = measured.simulated
    assert 0 < max(found.busy.values()) <= found.makespan
    assert measured.apart.makespan > 0
    # Something runs or is issued at any time.
    assert found.makespan <= sum(end - start for start, end in zip(found.starts, found.ends, strict=True)) + 1e-9


def test_submeshes_of_several_devices_are_not_taken_to_share_cores():
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"))
    step = mm.mjit(lambda x: mm.task(jnp.sin, task=mm.Task(mesh_slice={"stage": 1}))(x), mesh=mesh)
    measured = step.measure(jnp.ones(4))
    assert measured.simulated is measured.apart


def test_what_programs_lose_to_each_other_is_measured_with_the_settings_of_the_caller():
    """Several threads run the step, in which settings of a context manager do not hold."""
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))

    def draw(key, w, x, factor):
        x = mm.task(jnp.dot, task=mm.stage(0, 2))(x, w) * jax.random.uniform(key)
        return mm.task(layer, task=mm.stage(1, 2))(w, x) * factor

    step = mm.mjit(draw, mesh=mesh)
    with jax.enable_x64(True):
        args = jax.random.key(0), np.eye(4), np.ones((4, 4)), 2.5
        assert step(*args).dtype == "float64"
        measured = step.measure(*args)
    assert measured.simulated is not measured.apart
    assert measured.simulated.makespan > 0


def test_a_failure_is_raised_and_no_thread_stays(monkeypatch):
    class Failing:
        def devices(self):
            return {"device"}

        def block_until_ready(self):
            raise RuntimeError("a program has failed")

    monkeypatch.setattr(record, "_probe", lambda values: Failing())

    class Runner:
        def __init__(self, error):
            self.error = error

        def run_watched(self, inputs, watch):
            for index in range(3):
                watch(index, [], [], 0.0)
            if self.error:
                raise ValueError("in the middle of issuing")

    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="a program has failed"):
        record._watched(Runner(error=False), [])
    with pytest.raises(ValueError, match="in the middle"):
        record._watched(Runner(error=True), [])
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert set(threading.enumerate()) <= before
