"""Every schedule runs, and gives the numbers of the plain step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime import schedules
from tests.runtime.helpers import stages

pytestmark = pytest.mark.family

MICROBATCHES = 4


def layer(w, x):
    return x + jnp.tanh(x @ w[0]) @ w[1]


def make_step(placement, remat=False, **options):
    call = jax.checkpoint(layer) if remat else layer

    def loss(weights, x):
        for index, w in enumerate(weights):
            task = mm.Task(mesh_slice={"stage": placement[index]})
            x = mm.task(call, name=f"layer_{index}", task=task)(w, x)
        return jnp.mean(x * x)

    def step(weights, x):
        value, grads = mm.microbatch(jax.value_and_grad(loss), count=MICROBATCHES, argnum=1, reduce="mean", **options)(
            weights, x
        )
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    return step


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    weights = [
        tuple(jnp.asarray(rng.normal(size=shape) * 0.3, jnp.float32) for shape in ((4, 8), (8, 4))) for _ in range(4)
    ]
    return weights, jnp.asarray(rng.normal(size=(2 * MICROBATCHES, 4)), jnp.float32)


def run(placement, inputs, **options):
    mesh = mm.MultiMesh(axis_sizes=(max(placement) + 1,), axis_names=("stage",))
    compiled = mm.mjit(make_step(placement, **options), mesh=mesh)
    return jax.tree.leaves(compiled(*inputs)), compiled.explain()


LINE, ROUND, VEE = (0, 1, 2, 3), (0, 1, 0, 1), (0, 1, 1, 0)
WHOLE = [("gpipe", LINE), ("1f1b", LINE), ("wavefront", LINE)]
LOOPED = [("gpipe", ROUND), ("1f1b", ROUND), ("interleaved-1f1b", ROUND), ("looped-bfs", ROUND)]
SPLIT = [("zb-h1", LINE), ("zb-h2", LINE), ("zero-bubble-h2", LINE), ("zb-h1", ROUND), ("dualpipe", LINE)]
FOLDED = [("zb-v", VEE), ("v-half", VEE), ("v-min", VEE), ("dualpipe-v", VEE)]


@pytest.fixture(scope="module")
def oracle(inputs):
    return jax.tree.leaves(jax.jit(make_step(LINE))(*inputs))


@pytest.mark.optimized
@pytest.mark.parametrize(
    "family", [pytest.param(WHOLE, marks=pytest.mark.slow, id="line"), pytest.param(LOOPED, id="looped")]
)
def test_schedules_of_the_same_programs_agree_bitwise(family, inputs, oracle):
    results = [run(placement, inputs, schedule=name)[0] for name, placement in family]
    for result in results[1:]:
        for a, b in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(results[0], oracle, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("name", "placement"), SPLIT + FOLDED, ids=str)
def test_schedules_that_split_the_backward_pass(name, placement, inputs, oracle):
    result, report = run(placement, inputs, schedule=name)
    for a, b in zip(result, oracle, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    kinds = [row.kind for row in report.programs]
    homes = [report.loops[0].order.homes_of(stage) for stage in range(len(placement))]
    assert sum("weight half" in kind for kind in kinds) == sum(map(len, homes))
    assert report.loops[0].stages == placement


@pytest.mark.parametrize("num_stages", [2, 3])
def test_dualpipe_runs_each_stage_on_two_submeshes_for_half_of_the_microbatches(num_stages, inputs):
    """The middle one of an odd number stays where it is; parameters and optimizer live with the first half."""
    weights, x = inputs
    placement = tuple(range(num_stages))
    result, report = run(placement, (weights[:num_stages], x), schedule="dualpipe")
    expected = jax.tree.leaves(jax.jit(make_step(placement))(weights[:num_stages], x))
    for a, b in zip(result, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    runs = {(row.tasks, row.submesh): row.runs for row in report.programs if "forward" in row.kind}
    back = num_stages - 1
    assert runs[("layer_0",), 0] == runs[("layer_0_on_1" if back == 1 else "layer_0_on_2",), back] == MICROBATCHES // 2
    assert [row.submesh for row in report.inputs if row.carried] == [k for k in placement for _ in range(2)]


def test_dualpipe_needs_one_stage_on_each_submesh(inputs):
    with pytest.raises(ValueError, match=r"dualpipe needs one stage on each submesh, such as \(0, 1\); got \(0, 1, 0"):
        run(ROUND, inputs, schedule="dualpipe")


def test_dualpipe_leaves_no_choice_of_submesh_to_tasks(inputs):
    def loss(weights, x):
        roaming = mm.Task(name="first", loop_dependent_mesh_slice=lambda k: {"stage": k % 2})
        x = mm.task(layer, task=roaming)(weights[0], x)
        return jnp.mean(mm.task(layer, task=mm.Task(name="last", mesh_slice={"stage": 1}))(weights[1], x))

    def step(weights, x):
        return mm.microbatch(jax.grad(loss), count=MICROBATCHES, argnum=1, schedule="dualpipe")(weights, x)

    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
    with pytest.raises(ValueError, match="dualpipe chooses the submesh of each microbatch, and so do tasks with"):
        mm.mjit(step, mesh=mesh).plan(*inputs)


def test_every_named_schedule_is_run_here():
    assert {name for name, _ in WHOLE + LOOPED + SPLIT + FOLDED} == set(schedules.names())


def test_a_rematerialised_backward_pass_is_split_and_no_work_is_done_twice(inputs, oracle):
    split, report = run(LINE, inputs, schedule="zb-h1", remat=True)
    for a, b in zip(split, oracle, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    whole = run(LINE, inputs, schedule="1f1b", remat=True)[1]

    def work(report):
        return sum(row.flops for row in report.programs if "backward" in row.kind)

    assert work(report) == pytest.approx(work(whole), rel=0.02)


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "auto"},
        {"schedule": schedules.make("zb-h2", 2, MICROBATCHES)},
        {"custom_schedule": [["layer_0"] * 4 + ["layer_0_bwd"] * 4, [f"1{k}{i}" for i in range(4) for k in "FB"]]},
    ],
    ids=["auto", "value", "custom"],
)
def test_schedules_that_users_give(options, inputs, oracle):
    result, _ = run((0, 0, 1, 1), inputs, **options)
    for a, b in zip(result, oracle, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_the_report_says_what_was_searched_for_and_why(inputs, oracle):
    """More memory than 1f1b needs, and a bound in bytes that 1f1b does not meet."""
    result, report = run((0, 0, 1, 1), inputs, schedule=schedules.Auto(memory=4))
    for a, b in zip(result, oracle, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    (loop,) = report.loops
    assert loop.choice.memory == (4, 4)
    text = str(report)
    assert "auto chose " in text
    assert "Memory may be 4, 4." in text
    assert all(other.name in text for other in loop.choice.considered)


@pytest.mark.parametrize(
    ("split", "bound", "peaks"),
    [
        # Residuals of the two layers of a submesh; the last one's backward is part of its forward program.
        (False, 300, (192, 0)),
        # In halves a microbatch keeps more, 352 and 384: weight halves read inputs and activations of both products,
        # and cotangents of their results. Two with whole backward passes keep no more than that, and are done sooner.
        (True, 500, (384, 0)),
        # Halves are done sooner still, where there is room for two of them.
        (True, 800, (704, 768)),
    ],
)
def test_a_bound_in_bytes_counts_what_is_kept(split, bound, peaks, inputs):
    """There is no room for another microbatch."""
    _, report = run((0, 0, 1, 1), inputs, schedule=schedules.Auto(memory_bytes=bound, split=split, recompute=False))
    assert report.loops[0].choice.simulation.peak_bytes == peaks


def test_measured_times_can_be_searched_under(inputs):
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
    measured = mm.mjit(make_step((0, 0, 1, 1), schedule="1f1b"), mesh=mesh).measure(*inputs)
    wish = measured.auto(memory=3)
    first, last = measured.loops[0]
    assert wish.forward == (first.forward, last.forward)
    assert wish.backward_input == wish.backward_weight == (first.backward_input / 2, 0)
    assert wish.latency == max(measured.transfers.values())
    assert wish.memory == 3
    with pytest.raises(ValueError, match=r"there is no microbatch loop 1; the step has 1\."):
        measured.auto(1)


@pytest.mark.parametrize("placement", [LINE, (0, 1), (3, 0, 2)])
def test_an_interleaved_schedule_of_one_stage_each_is_refused(placement, inputs):
    weights, batch = inputs
    inputs = weights[: len(placement)], batch
    message = (
        rf"interleaved-1f1b takes turns .* one stage on each of {len(placement)} submeshes, where it would be 1f1b\. "
        r'Write schedule="1f1b"; or deal the layers out in two rounds, with chunks=2'
    )
    with pytest.raises(ValueError, match=message):
        run(placement, inputs, schedule="interleaved-1f1b")
    run(placement, inputs, schedule="1f1b")


def test_an_interleaved_schedule_runs_as_its_refusal_advises(inputs, oracle):
    results, report = run(ROUND, inputs, schedule="interleaved-1f1b")
    assert report.loops[0].stages == ROUND
    for a, b in zip(results, oracle, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_a_schedule_for_another_number_of_microbatches_is_refused(inputs):
    with pytest.raises(ValueError, match=r"'gpipe' is for 8 microbatches, but the batch is cut into 4\. Make it for 4"):
        run((0, 0, 1, 1), inputs, schedule=schedules.make("gpipe", 2, 8))


def test_a_schedule_for_other_stages_is_refused(inputs):
    with pytest.raises(ValueError, match=r"stages on submeshes \(0, 1, 2\), but the tasks make stages on"):
        run((0, 0, 1, 1), inputs, schedule=schedules.make("gpipe", 3, MICROBATCHES))


FIRST, LAST = ["layer_0"] * 4 + ["layer_0_bwd"] * 4, ["layer_2", "layer_2_bwd"] * 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["layer_9"] * 4, ["layer_2"] * 4], r"There is no task 'layer_9'\..*The tasks are layer_0, .*\n.*\[layer_9\]"),
        ([FIRST[1:], LAST], r"Task 'layer_0' has 3 microbatches, but there are 4\. Name it once for each"),
        ([FIRST, [(i // 2, "layer_2") for i in range(8)]], r"1F0 appears twice\. Keep one\.\n.*\n.*\[1F0\]"),
        ([FIRST, LAST[:6]], r"Task 'layer_2' has 3 microbatches, but there are 4.*\n.*\n.*\[layer_2\]"),
        ([FIRST, LAST[::-1]], r"on submesh 1, 1B0 comes before 1F0, which it needs\. Move 1F0 before 1B0"),
        ([FIRST + LAST], r"puts stage 1 on submesh 1, but there are 1 rows .*Write one row for each submesh"),
        ([FIRST, FIRST], r"Task 'layer_0' has 8 microbatches, but there are 4"),
    ],
    ids=["unknown", "count", "twice", "missing", "order", "one_row", "wrong_row"],
)
def test_custom_schedules_that_cannot_run_show_the_cell(rows, message, inputs):
    step = mm.mjit(make_step((0, 0, 1, 1), custom_schedule=rows), mesh=stages(2))
    with pytest.raises(ValueError, match=message):
        step.plan(*inputs)


def test_an_unknown_schedule_is_refused_when_the_loop_is_written():
    with pytest.raises(ValueError, match=r"Unknown schedule '1f2b'\. Did you mean '1f1b'"):
        mm.microbatch(jnp.sum, size=1, schedule="1f2b")


def test_the_expected_stages_are_checked_and_tasks_cut_to_make_them(inputs, oracle):
    for options, expected in (({"num_stages": 2}, (0, 1)), ({"num_stages": 4, "interleave": 2}, (0, 0, 1, 1))):
        result, report = run((0, 0, 1, 1), inputs, **options)
        assert report.loops[0].stages == expected
        assert report.loops[0].order.name == "gpipe"
        for a, b in zip(result, oracle, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match=r"num_stages=3, but the tasks make 2 stages, on submeshes \(0, 1\)"):
        run((0, 0, 1, 1), inputs, num_stages=3)
    with pytest.raises(
        ValueError, match=r"interleave=3 stages on each submesh, but the tasks make stages on submeshes"
    ):
        run((0, 0, 1, 1), inputs, interleave=3)
