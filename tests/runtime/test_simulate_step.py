"""Instructions in simulated time: schedules as in their own simulation, and what schedules know nothing of."""

import random

import pytest

from mmruntime import schedules
from mmruntime._inspect.run_jobs import SharedCores, TimedJob, run_jobs
from mmruntime._inspect.simulate_step import simulate_step
from mmruntime._partition.pipeline.instructions import Program, ProgramSpec, RunInstruction, TransferInstruction


def run(submesh, args, results):
    return RunInstruction(ProgramSpec("segment", submesh, (), ()), None, tuple(args), tuple(results))


def transfer(source, target, args, results):
    return TransferInstruction(source, target, (), None, tuple(args), tuple(results))


def program(instructions, inputs=(), outputs=()):
    places = tuple((slot, 0) for slot in inputs)
    return Program(0, tuple(instructions), places, {}, (), tuple(outputs), (), (), {})


def simulated(instructions, seconds, devices=((0,), (1,)), *, inputs=(), outputs=(), **options):
    carried = dict(enumerate(range(len(outputs))))
    made = program(instructions, inputs, outputs)
    return simulate_step(made, [set(ids) for ids in devices], carried, seconds, **options)


def instructions_of(schedule, costs):
    """A schedule as instructions in an order that its rows allow, and what each costs."""
    last = schedule.num_stages - 1
    slots, made, seconds = {}, [], []

    def slot(*key):
        return slots.setdefault(key, len(slots))

    for event in schedules.simulate(schedule, *costs).timeline:
        kind, stage, k = event.action.kind, event.action.stage, event.action.microbatch
        if kind == "F":
            args = [slot("x", stage, k)] if stage else []
            results = [slot("kept", stage, k), slot("x", stage + 1, k)]
        elif kind == "W":
            args, results = [slot("half", stage, k)], [slot("grad", stage, k)]
        else:
            args = [slot("kept", stage, k), *([slot("ct", stage, k)] if stage < last else [])]
            results = [slot("ct", stage - 1, k), slot("half", stage, k)]
        made.append(run(event.submesh, args, results))
        seconds.append(event.end - event.start)
    return made, seconds


@pytest.mark.parametrize(
    ("name", "chunks"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("zb-h1", 1), ("zb-v", 2), ("v-half", 2)],
)
@pytest.mark.parametrize(("stages", "count"), [(2, 4), (4, 8)])
def test_a_schedule_takes_as_long_as_its_own_simulation_says(name, chunks, stages, count):
    draw = random.Random(f"{name} {stages}")
    schedule = schedules.make(name, stages, count, chunks)
    costs = [[draw.uniform(0.5, 2) for _ in range(schedule.num_stages)] for _ in range(3)]
    wanted = schedules.simulate(schedule, *costs)
    made, seconds = instructions_of(schedule, costs)
    found = simulated(made, seconds, [(each,) for each in range(stages)])
    assert found.makespan == pytest.approx(wanted.makespan)
    assert found.busy == pytest.approx(dict(enumerate(wanted.busy)))
    assert max(found.busy.values()) <= found.step_time + 1e-9
    assert found.step_time <= found.makespan + 1e-9


def test_work_outside_of_loops_and_transfers_count():
    made = [run(0, [0], [1]), transfer(0, 1, [1], [2]), run(1, [2], [3])]
    found = simulated(made, [1.0, 0.5, 2.0])
    assert found.starts == (0.0, 1.0, 1.5)
    assert found.ends == (1.0, 1.5, 3.5)
    assert found.makespan == 3.5
    # Nothing that is handed on holds the next step back, so the slower submesh alone decides.
    assert found.step_time == pytest.approx(2.0)


def test_state_that_is_handed_on_holds_the_next_step_back():
    made = [run(0, [0], [1]), transfer(0, 1, [1], [2]), run(1, [2], [3]), transfer(1, 0, [3], [4])]
    found = simulated(made, [1.0, 0.5, 2.0, 0.5], inputs=[0], outputs=[4])
    assert found.step_time == found.makespan == pytest.approx(4.0)


def test_a_link_carries_one_transfer_at_a_time_and_devices_compute_meanwhile():
    made = [
        run(0, [], [0]),
        transfer(0, 1, [0], [1]),
        transfer(0, 1, [0], [2]),
        transfer(1, 0, [9], [3]),
        run(0, [], [4]),
    ]
    found = simulated(made, [1.0, 2.0, 2.0, 2.0, 5.0])
    assert found.starts == (0.0, 1.0, 3.0, 0.0, 1.0)


def test_submeshes_that_share_a_device_take_turns():
    made = [run(0, [], [0]), run(1, [], [1]), run(2, [], [2])]
    found = simulated(made, [1.0, 2.0, 4.0], [(0, 1), (1, 2), (3,)])
    assert found.starts == (0.0, 1.0, 0.0)
    assert found.busy == {0: 1.0, 1: 2.0, 2: 4.0}


def sharing(slowdown, count, *, places=2, counts=(1, 2)):
    return SharedCores(places, counts, [(1.0, *slowdown)] * count)


def test_programs_that_run_at_once_slow_each_other_down_for_as_long_as_both_run():
    made = [run(0, [], [0]), run(1, [], [1])]
    found = simulated(made, [1.0, 3.0], cores=sharing([2.0], 2))
    # Until 2 both run at half their rate; the longer one has 2 of 3 seconds left then.
    assert found.ends == (2.0, 4.0)
    assert found.makespan == 4.0
    assert found.busy == {0: 2.0, 1: 4.0}
    assert simulated(made, [1.0, 3.0], cores=sharing([1.5], 2)).ends == (1.5, 3.5)


def test_programs_of_one_device_that_shares_cores_run_at_once_where_there_are_places():
    made = [run(0, [], [0]), run(0, [], [1]), run(0, [], [2])]
    assert simulated(made, [1.0, 1.0, 1.0], cores=sharing([1.0], 3)).ends == (1.0, 1.0, 2.0)
    assert simulated(made, [1.0, 1.0, 1.0], cores=sharing([1.0], 3, places=1)).ends == (1.0, 2.0, 3.0)
    # Beyond what was measured the line goes on: three take three times as long.
    assert simulated(made, [1.0, 1.0, 1.0], cores=sharing([2.0], 3, places=3)).ends == (3.0, 3.0, 3.0)
    assert simulated(made, [1.0] * 3, cores=sharing([1.0, 3.0], 3, places=3, counts=(1, 2, 4))).ends == (2.0,) * 3


def test_transfers_need_no_place_and_lose_nothing():
    made = [run(0, [], [0]), run(1, [], [1]), transfer(0, 1, [0], [2]), transfer(0, 1, [0], [3])]
    found = simulated(made, [1.0, 3.0, 0.5, 0.5], cores=sharing([1.0], 4))
    assert found.ends == (1.0, 3.0, 1.5, 2.0)


@pytest.mark.parametrize("cores", [None, sharing([1.0], 4, places=4)])
def test_nothing_starts_before_it_is_issued(cores):
    made = [run(0, [0], [1]), transfer(0, 1, [1], [2]), run(1, [2], [3]), run(0, [], [4])]
    found = simulated(made, [1.0, 0.5, 2.0, 1.0], issue=[0.25, 2.0, 0.25, 0.25], cores=cores)
    assert found.starts == (0.0, 1.0, 2.25, 2.5)
    assert found.makespan == 4.25


@pytest.mark.parametrize("seed", range(5))
def test_shared_cores_without_loss_are_devices_apart_and_a_full_loss_is_one_core(seed):
    """The programs of each device wait for each other, so a device is a queue in both simulations."""
    draw = random.Random(seed)
    made, seconds, last = [], [], {}
    for number in range(12):
        where = draw.randrange(2)
        args = [slot for slot in (last.get(where), draw.choice([*last.values(), None])) if slot is not None]
        made.append(run(where, args, [number]))
        seconds.append(draw.uniform(0.5, 2))
        last[where] = number
    apart = simulated(made, seconds)
    without = simulated(made, seconds, cores=sharing([1.0], 12))
    assert without.starts == pytest.approx(apart.starts)
    assert without.ends == pytest.approx(apart.ends)
    assert simulated(made, seconds, cores=sharing([2.0], 12)).makespan == pytest.approx(sum(seconds))


def test_jobs_that_wait_for_each_other_are_not_taken_for_done():
    jobs = [TimedJob(1.0, frozenset()), TimedJob(1.0, frozenset([2])), TimedJob(1.0, frozenset([0, 1]))]
    with pytest.raises(AssertionError, match="jobs wait for each other"):
        run_jobs(jobs, lambda running: dict.fromkeys(running, 1.0))
