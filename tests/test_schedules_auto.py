"""The search for the best order, the lower bound, and properties of all orders under random costs."""

import dataclasses
import math
import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmruntime.schedules import Auto, auto, lower_bound, make, names, simulate
from mmruntime.schedules._catalog import suits
from mmruntime.schedules._costs import Costs
from mmruntime.schedules._memory import peak
from mmruntime.schedules._search.list_scheduling import PipelineModel, Policy, list_schedule
from mmruntime.schedules._search.local_search import improve
from mmruntime.schedules._timing import TimedSchedule

# Enough to see every part of the search work.
QUICK = 0.05

cost = st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(0.01, 10))


@st.composite
def pipelines(draw, most_stages: int = 6, most_microbatches: int = 8):
    """Keyword arguments of `auto` with any placement, costs and latency."""
    submeshes = draw(st.integers(1, 4))
    placement = draw(
        st.one_of(
            st.just(tuple(range(submeshes))),
            st.just((*range(submeshes), *reversed(range(submeshes)))),
            st.just((*range(submeshes),) * 2),
            st.lists(st.integers(0, submeshes - 1), min_size=1, max_size=most_stages).map(tuple),
        )
    )
    costs = st.lists(cost, min_size=len(placement), max_size=len(placement))
    return {
        "num_stages": submeshes,
        "num_microbatches": draw(st.integers(1, most_microbatches)),
        "placement": placement,
        "forward": draw(costs),
        "backward_input": draw(costs),
        "backward_weight": draw(costs),
        "latency": draw(st.sampled_from([0.0, 0.3])),
    }


def simulated(schedule, pipeline, **options):
    costs = {key: pipeline[key] for key in ("forward", "backward_input", "backward_weight", "latency")}
    return simulate(schedule, **costs, **options)


def named_ones(pipeline, split=True):
    for name in names():
        if suits(name, pipeline["placement"]):
            sizes = pipeline["num_stages"], pipeline["num_microbatches"]
            schedule = make(name, *sizes, placement=pipeline["placement"])
            if not schedule.replicas and (split or not schedule.splits_backward):
                yield schedule


def assert_runs(schedule):
    schedule.validate()
    assert max(Counter(action for row in schedule.rows for action in row).values()) == 1


# The middle stages alone take longer than the whole of the bound from the first one.
LONG_MIDDLE = {
    "num_stages": 2,
    "num_microbatches": 2,
    "placement": (0, 1, 0, 1),
    "forward": [0.0, 0.0, 1.0, 0.0],
    "backward_input": [0.0, 1.0, 1.0, 0.0],
    "backward_weight": [0.0] * 4,
    "latency": 0.0,
}


@given(pipelines())
@example(LONG_MIDDLE)
@settings(deadline=None)
def test_every_named_schedule_keeps_its_promises(pipeline):
    """Each action once, dependencies in order, no deadlock, and no shorter than the lower bound."""
    barrier = lower_bound(**pipeline)
    steady = lower_bound(**pipeline, barrier=False)
    whole = lower_bound(**pipeline, split=False)
    assert steady <= barrier * (1 + 1e-9)
    for schedule in named_ones(pipeline):
        assert_runs(schedule)
        simulation = simulated(schedule, pipeline)
        assert simulation.makespan >= barrier * (1 - 1e-9)
        assert simulation.steady >= steady * (1 - 1e-9)
        assert simulation.steady <= simulation.makespan * (1 + 1e-9)
        if not schedule.splits_backward:
            assert simulation.makespan >= whole * (1 - 1e-9)
        assert lower_bound(**pipeline, memory=simulation.live) <= simulation.makespan * (1 + 1e-9)


@given(pipelines(), st.lists(st.tuples(cost, st.floats(0, 1)), min_size=8, max_size=8), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_lower_bound_holds_for_memory_in_bytes(pipeline, sizes, barrier):
    """Whatever part of its activations a stage's weight half needs."""
    whole = [size for size, _ in sizes][: len(pipeline["placement"])]
    kept = [size * part for size, part in sizes][: len(whole)]
    given_bytes = {"activation_bytes": whole, "weight_activation_bytes": kept}
    for schedule in named_ones(pipeline):
        simulation = simulated(schedule, pipeline, barrier=barrier, **given_bytes)
        bound = lower_bound(**pipeline, **given_bytes, memory=simulation.peak_bytes, barrier=barrier)
        assert bound <= simulation.step_time * (1 + 1e-9)


@pytest.mark.slow
@given(pipelines(), st.lists(st.floats(0, 1), min_size=8, max_size=8), st.booleans(), st.floats(0, 6))
@settings(max_examples=20, deadline=None)
def test_forwards_once_more_keep_the_memory_and_their_lower_bound(pipeline, shares, barrier, extra):
    """Whatever part of its activations a forward keeps that runs once more."""
    placement = pipeline["placement"]
    given_bytes = {"activation_bytes": [1.0] * len(placement), "input_bytes": shares[: len(placement)]}
    memory = [max(1.0, placement.count(submesh) + extra) for submesh in range(pipeline["num_stages"])]
    choice = auto(**pipeline, **given_bytes, memory=memory, barrier=barrier, effort=QUICK)
    assert_runs(choice.schedule)
    simulation = choice.simulation
    assert simulation == simulated(choice.schedule, pipeline, barrier=barrier, **given_bytes)
    assert all(held <= most + 1e-9 for held, most in zip(simulation.peak_bytes, memory, strict=True))
    assert choice.lower_bound <= simulation.step_time * (1 + 1e-9)
    for schedule in named_ones(pipeline):
        rival = simulated(schedule, pipeline, barrier=barrier, **given_bytes)
        if all(held <= most + 1e-9 for held, most in zip(rival.peak_bytes, memory, strict=True)):
            assert simulation.step_time <= rival.step_time * (1 + 1e-9)


@given(pipelines(), st.booleans(), st.booleans(), st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_auto_is_never_beaten_by_a_named_schedule_in_the_same_memory(pipeline, split, barrier, extra):
    placement = pipeline["placement"]
    unit = pipeline["num_stages"] / len(placement)
    memory = [(placement.count(submesh) + extra) * unit for submesh in range(pipeline["num_stages"])]
    choice = auto(**pipeline, memory=memory, split=split, barrier=barrier, effort=QUICK)
    assert_runs(choice.schedule)
    choice.schedule.validate(live_bound=memory)
    assert choice.schedule.placement == placement
    assert split or not choice.schedule.splits_backward
    assert choice.simulation == simulated(choice.schedule, pipeline, barrier=barrier)
    time = choice.simulation.step_time
    assert choice.lower_bound <= time * (1 + 1e-9)
    assert choice.lower_bound == lower_bound(**pipeline, memory=memory, split=split, barrier=barrier)
    for schedule in named_ones(pipeline, split):
        rival = simulated(schedule, pipeline, barrier=barrier)
        if all(live <= bound + 1e-9 for live, bound in zip(rival.live, memory, strict=True)):
            assert time <= rival.step_time * (1 + 1e-9)


@given(pipelines(), st.data())
@settings(deadline=None)
def test_list_schedules_never_get_stuck(pipeline, data):
    placement = pipeline["placement"]
    whole = data.draw(st.lists(st.integers(1, 3), min_size=len(placement), max_size=len(placement)))
    kept = [data.draw(st.integers(0, size)) for size in whole]
    inputs = [data.draw(st.integers(0, size)) for size in whole]
    down = [a + b for a, b in zip(pipeline["backward_input"], pipeline["backward_weight"], strict=True)]
    tables = PipelineModel(
        placement=placement,
        num_submeshes=pipeline["num_stages"],
        num_microbatches=pipeline["num_microbatches"],
        costs=Costs(
            tuple(pipeline["forward"]),
            tuple(down),
            tuple(pipeline["backward_input"]),
            tuple(pipeline["backward_weight"]),
        ),
        latency=(pipeline["latency"],) * len(placement),
        whole=tuple(whole),
        kept=tuple(kept),
        inputs=tuple(inputs),
        memory=(0.0,) * pipeline["num_stages"],
    )
    again = ()
    if data.draw(st.booleans()):
        options = ["never", "when full", "at first", "always"]
        again = (*(data.draw(st.sampled_from(options)) for _ in placement[1:]), "never")
    memory = [least + data.draw(st.integers(0, 4)) for least in tables.least_memory(again)]
    tables = dataclasses.replace(tables, memory=tuple(memory))
    policy = Policy(
        split=data.draw(st.booleans()),
        caps=tuple(data.draw(st.lists(st.integers(1, 9), min_size=len(placement), max_size=len(placement)))),
        prefer=data.draw(st.sampled_from(["backward", "forward", "alternate"])),
        forward_pick=data.draw(st.sampled_from(["low", "high", "old"])),
        backward_pick=data.draw(st.sampled_from(["low", "high", "old"])),
        weight_slack=data.draw(st.sampled_from([0.0, 0.5, math.inf])),
        recompute=again,
    )
    rows = list_schedule(tables, policy)
    schedule = type(make("gpipe", 1, 1))("x", rows, placement, len(placement), pipeline["num_microbatches"])
    assert_runs(schedule)
    assert all(peak(row, whole, kept, inputs) <= most for row, most in zip(rows, memory, strict=True))


@given(pipelines(), st.sampled_from(["gpipe", "1f1b", "zb-h1", "wavefront"]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_moving_actions_only_shortens_the_step(pipeline, name, barrier):
    placement = pipeline["placement"]
    schedule = make(name, pipeline["num_stages"], pipeline["num_microbatches"], placement=placement)
    before = simulated(schedule, pipeline, barrier=barrier)
    costs = (tuple(pipeline["forward"]), tuple(pipeline["backward_input"]), tuple(pipeline["backward_weight"]))
    whole = tuple(a + b for a, b in zip(costs[1], costs[2], strict=True))
    timed = TimedSchedule(
        schedule.rows,
        schedule.homes,
        schedule.num_microbatches,
        Costs(costs[0], whole, costs[1], costs[2]),
        latency=pipeline["latency"],
    )
    unit = (pipeline["num_stages"] / len(placement),) * len(placement)
    rows, time = improve(timed, unit, unit, unit, before.live, tries=100, bound=0.0, barrier=barrier)
    after = type(schedule)("x", rows, placement, len(placement), schedule.num_microbatches)
    after.validate(live_bound=before.live)
    assert simulated(after, pipeline, barrier=barrier).step_time == pytest.approx(time)
    assert time <= before.step_time * (1 + 1e-9)


def test_moving_actions_shortens_steps_without_a_barrier():
    choice = auto(4, 8, **uneven(0, 4), memory=4, barrier=False, effort=0.5)
    assert "improved" in choice.origin
    assert choice.simulation.steady < min(other.time for other in choice.considered if other.fits)


@pytest.mark.parametrize(
    ("sizes", "options", "shortest"),
    [((4, 8), {"memory": 4}, 27), ((8, 32), {"memory": 8}, 103), ((8, 32), {}, 103), ((4, 8), {"split": False}, 33)],
)
def test_the_lower_bound_is_reached_where_stages_are_equal(sizes, options, shortest):
    """Before the first backward comes back no submesh can run more forwards than it may hold."""
    assert lower_bound(*sizes, **options) == pytest.approx(shortest)


# Table 5 of arXiv:2401.10241: milliseconds of a forward, both halves and a transfer, and the bubble of ZB-2p in the
# memory of two 1F1B pipelines.
@pytest.mark.parametrize(
    ("sizes", "costs", "kept", "bubble"),
    [
        ((8, 24), (18.522, 18.086, 9.337, 0.601), 32 / 87.333, 0.0433),
        ((16, 48), (11.347, 11.248, 8.132, 0.377), 32 / 74, 0.0066),
    ],
)
def test_the_bubble_is_at_most_the_published_one(sizes, costs, kept, bubble):
    forward, inputs, weights, latency = costs
    choice = auto(
        *sizes,
        forward=forward,
        backward_input=inputs,
        backward_weight=weights,
        latency=latency,
        barrier=False,
        memory=2 * sizes[0],
        activation_bytes=1,
        weight_activation_bytes=kept,
    )
    work = sizes[1] * (forward + inputs + weights)
    assert 1 - work / choice.simulation.step_time <= bubble + 5e-5
    if sizes == (8, 24):
        # The last microbatch is back too late, whatever the order: this one is optimal.
        assert choice.lower_bound == pytest.approx(choice.simulation.step_time, rel=1e-4)


def uneven(seed: int, stages: int) -> dict[str, list[float]]:
    numbers = random.Random(seed)
    return {
        kind: [numbers.uniform(0.5, 1.5) for _ in range(stages)]
        for kind in ("forward", "backward_input", "backward_weight")
    }


@pytest.mark.parametrize("seed", range(4))
def test_beats_1f1b_on_uneven_stages_in_its_memory(seed):
    costs = uneven(seed, 4)
    classic = simulate(make("1f1b", 4, 12), **costs)
    choice = auto(4, 12, **costs, memory=4, effort=0.3)
    assert choice.simulation.makespan < classic.makespan


def test_beats_1f1b_without_splitting_where_more_memory_helps():
    """A slow first stage wants more microbatches in flight than 1F1B has."""
    costs = {"forward": [1, 3, 1, 1], "backward_input": [1, 1, 3, 1], "backward_weight": [0, 1, 1, 2]}
    classic = simulate(make("1f1b", 4, 12), **costs, latency=0.5)
    choice = auto(4, 12, **costs, latency=0.5, split=False, effort=0.3)
    assert not choice.schedule.splits_backward
    assert choice.simulation.makespan < classic.makespan


def test_finds_the_best_order_for_equal_stages():
    assert auto(4, 8, memory=4, effort=0.3).simulation.makespan == 27
    assert auto(4, 8, memory=7, barrier=False, effort=0.3).simulation.step_time == 24
    assert auto(4, 8, 2, memory=4, effort=0.3).simulation.makespan == 25.5


def test_works_below_the_memory_of_every_named_schedule():
    choice = auto(4, 8, memory=1, effort=QUICK)
    assert choice.simulation.live == (1, 1, 1, 1)
    assert not any(other.fits for other in choice.considered)
    assert "No named one fits the memory." in choice.report


def test_memory_in_bytes():
    choice = auto(4, 8, memory=150, activation_bytes=34, weight_activation_bytes=32, effort=QUICK)
    assert max(choice.simulation.peak_bytes) <= 150
    assert choice.simulation.makespan == 27


def test_forwards_run_once_more_where_memory_is_short():
    """At half of the memory of 1F1B with activations ten times as large as inputs."""
    given_bytes = {"activation_bytes": 10, "weight_activation_bytes": 6, "memory": 20, "effort": QUICK}
    short, long = auto(4, 12, **given_bytes, input_bytes=1), auto(4, 12, **given_bytes)
    assert long.simulation.step_time > 60
    assert short.simulation.step_time <= 52
    assert max(short.simulation.peak_bytes) <= 20
    again = Counter(stage for stage, _ in short.schedule.recomputed)
    # The last stage goes back at once, and never holds more than one.
    assert set(again) == {0, 1, 2}
    told = ", ".join(f"{again[stage]} of 12 of stage {stage}" for stage in sorted(again))
    assert f"Forwards that run once more, to hold less: {told}." in short.reasons
    # In what 1F1B holds they need not.
    assert not auto(4, 12, **given_bytes | {"memory": 40}, input_bytes=1).schedule.recomputed


@pytest.mark.slow
def test_named_orders_that_do_not_fit_run_forwards_once_more():
    """1F1B in just enough for the inputs of its microbatches and the rest of one activation."""
    sizes = {"activation_bytes": 10, "input_bytes": 1, "memory": 13, "split": False, "effort": QUICK}
    choice = auto(4, 8, **sizes)
    once = simulate(make("1f1b", 4, 8), activation_bytes=10)
    assert max(once.peak_bytes) == 40
    assert max(choice.simulation.peak_bytes) <= 13
    # At worst each microbatch's forward runs once more, right before its backward.
    assert choice.simulation.makespan <= once.makespan * 4 / 3


def test_is_the_same_every_time():
    assert auto(3, 9, **uneven(5, 3), effort=QUICK) == auto(3, 9, **uneven(5, 3), effort=QUICK)


def test_two_chunks_try_both_placements():
    choice = auto(2, 4, 2, effort=QUICK)
    assert {"zb-v", "interleaved-1f1b"} <= {other.name for other in choice.considered}
    assert {other.placement for other in choice.considered} == {(0, 1, 0, 1), (0, 1, 1, 0)}
    assert "zb-v                    12.5  memory 2, V" in choice.report
    assert "memory 4, round-robin" in choice.report
    assert auto(2, 4, 3, effort=QUICK).schedule.placement == (0, 1, 0, 1, 0, 1)


def test_report():
    lines = auto(4, 8, memory=4, effort=QUICK).report.splitlines()
    assert lines[:5] == [
        "auto chose the order of zb-h1.",
        "Time per step 27, idle 11.11%, live activations 4, 4, 4, 4.",
        "Memory may be 4, 4, 4, 4.",
        "No order is shorter than 27: this one cannot be beaten.",
        "The best named one that fits, zb-h1, takes as long.",
    ]
    assert "  zb-h1                     27  memory 4" in lines
    assert "  zb-h2                     27  memory 7, too much" in lines
    uneven_report = auto(4, 8, **uneven(1, 4), memory=4, effort=0.3).report
    assert "auto chose a list schedule: " in uneven_report
    assert "microbatches in flight by stage" in uneven_report
    assert "The best named one that fits, zb-h1, takes " in uneven_report


def test_make_gives_the_schedule():
    schedule = make("auto", 4, 8, memory=4, effort=QUICK)
    assert schedule == auto(4, 8, memory=4, effort=QUICK).schedule
    assert schedule.name == "auto"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"memory": 0.5}, r"One microbatch takes 1 of the memory of submesh 0, which has 0.5. Allow more"),
        ({"memory": [1, 2, 3]}, r"memory gives 3 numbers for 2 submeshes"),
        ({"forward": [1]}, r"forward gives 1 costs for 2 stages"),
        ({"latency": -1}, r"latency must be at least 0"),
        ({"chunks": 0}, r"chunks must be a whole number of at least 1; got 0"),
        ({"effort": 0}, r"effort must be above 0; got 0"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(ValueError, match=text):
        auto(2, 4, **options)


def chosen(wish: Auto, **counted):
    equal = {"forward": [1.0] * 4, "backward_input": [1.0] * 4, "backward_weight": [1.0] * 4}
    return wish.choose(4, 8, (0, 1, 2, 3), **{**equal, "activation_bytes": [100.0, 50.0, 50.0, 0.0], **counted})


def test_a_search_for_later_keeps_the_memory_of_1f1b_unless_told_otherwise():
    assert chosen(Auto(effort=QUICK)).memory == (4, 4, 4, 4)
    assert chosen(Auto(memory=6, effort=QUICK)).memory == (6, 6, 6, 6)
    assert chosen(Auto(memory=[2, 3, 4, 5], effort=QUICK)).memory == (2, 3, 4, 5)
    assert chosen(Auto(memory=None, effort=QUICK)).memory == (math.inf,) * 4
    assert Auto().memory_bound(4, 8) == 4
    assert Auto(memory_bytes=250).memory_bound(4, 8) == 250
    tight = chosen(Auto(memory=2, effort=QUICK))
    assert max(tight.simulation.live) <= 2
    assert tight.simulation.makespan > chosen(Auto(effort=QUICK)).simulation.makespan


def test_a_search_for_later_counts_bytes():
    choice = chosen(Auto(memory_bytes=250, effort=QUICK))
    assert choice.memory == (250,) * 4
    assert choice.simulation.peak_bytes is not None
    assert max(choice.simulation.peak_bytes) <= 250
    # 250 bytes are two microbatches on the first submesh.
    assert choice.simulation.live[0] == 2


def test_a_search_for_later_prefers_times_of_its_own_to_counted_ones():
    wish = Auto(forward=[1, 1, 1, 3], backward_input=[1] * 4, backward_weight=[1] * 4, latency=0.5, effort=QUICK)
    assert chosen(wish).simulation.busy == (24, 24, 24, 40)
    assert not chosen(Auto(split=False, effort=QUICK)).schedule.splits_backward
    assert chosen(Auto(barrier=False, memory=8, effort=QUICK)).simulation.step_time == 24


def test_a_search_for_later_can_be_a_key():
    assert hash(Auto(memory=[1, 2])) == hash(Auto(memory=(1.0, 2.0)))
    assert Auto(memory=[1, 2]) == Auto(memory=(1.0, 2.0))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"memory": "zb-h1"}, "memory must be a number, one for each submesh, '1f1b' or None; got 'zb-h1'"),
        ({"memory": 4, "memory_bytes": 100}, "give memory= or memory_bytes=, not both; got 4, 100"),
        ({"forward": [1, 2]}, "forward, backward_input, backward_weight and latency go together"),
        ({"latency": 1.0}, "forward, backward_input, backward_weight and latency go together"),
    ],
)
def test_a_search_for_later_that_makes_no_sense(options, text):
    with pytest.raises(ValueError, match=text.replace("|", "[|]")):
        Auto(**options)
