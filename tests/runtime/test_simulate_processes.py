"""Steps of several processes in simulated time: calls, programs and transfers, and the cores that they share."""

import random

import pytest

from mmruntime._inspect.measure_processes import pools
from mmruntime._inspect.simulate_processes import ProcessCosts, Work, simulate_processes
from mmruntime._inspect.simulate_step import simulate_step
from tests.runtime.test_simulate_step import program, run, transfer

# Two submeshes of one device in a process each.
DEVICES, OWNERS = [(0,), (1,)], [(0,), (1,)]
APART = {0: ("a", 1), 1: ("b", 1)}
NOTHING = Work(0.0, {0: 0.0, 1: 0.0}, {})


def works(instructions, seconds, *, calling=0.0, sending=0.0):
    """What instructions take: programs keep a core busy, transfers so much of one at both ends."""
    found = []
    for item, cost in zip(instructions, seconds, strict=True):
        if hasattr(item, "spec"):
            found.append(Work(cost, {item.spec.submesh: calling}, {item.spec.submesh: 1.0}))
        else:
            ends = item.source, item.target
            found.append(Work(cost, dict.fromkeys(ends, calling), dict.fromkeys(ends, sending)))
    return found


def simulated(instructions, costs, *, inputs=(), outputs=(), orders=None, cores=None, **options):
    orders = orders or {process: [at for at, work in enumerate(costs) if process in work.calling] for process in (0, 1)}
    given = {"begin": {0: 0.0, 1: 0.0}, "results": NOTHING, "spread": (), **options}
    found = ProcessCosts(costs, orders, cores=cores or APART, **given)
    carried = dict(enumerate(range(len(outputs))))
    return simulate_processes(program(instructions, inputs, outputs), DEVICES, OWNERS, carried, found)


STEP = [run(0, [0], [1]), transfer(0, 1, [1], [2]), run(1, [2], [3]), transfer(1, 0, [3], [4]), run(0, [4], [5])]


def test_programs_and_transfers_follow_each_other():
    found = simulated(STEP, works(STEP, [1.0, 0.5, 2.0, 0.5, 1.0]))
    assert found.starts == (0.0, 1.0, 1.5, 3.5, 4.0)
    assert found.makespan == 5.0
    assert found.busy == {0: 2.0, 1: 2.0}
    # A device runs its programs in order, so the next step begins behind the last one.
    assert found.step_time == pytest.approx(5.0)
    # Nothing is handed on: the next step's first program runs while the second process works.
    assert simulated(STEP[:3], works(STEP[:3], [1.0, 0.5, 2.0])).step_time == pytest.approx(2.0)


def test_state_that_is_handed_on_holds_the_next_step_back():
    found = simulated(STEP, works(STEP, [1.0, 0.5, 2.0, 0.5, 1.0]), inputs=[0], outputs=[5])
    assert found.step_time == found.makespan == pytest.approx(5.0)


def test_calls_take_time_from_programs_of_their_own_process_alone():
    made = [run(0, [], [0]), run(0, [], [1]), run(1, [], [2])]
    costs = [Work(4.0, {0: 1.0}, {0: 1.0}), Work(1.0, {0: 1.0}, {0: 1.0}), Work(4.0, {1: 1.0}, {1: 1.0})]
    found = simulated(made, costs)
    # The second call runs beside the first program, each at half its rate.
    assert found.starts == (1.0, 6.0, 1.0)
    assert found.ends == (6.0, 7.0, 5.0)
    # With two cores each, calls cost nothing but the first one.
    assert simulated(made, costs, cores={0: ("a", 2), 1: ("b", 2)}).makespan == 6.0


def test_a_transfer_takes_time_from_programs_at_both_ends_and_is_itself_slower():
    made = [run(0, [], [0]), transfer(0, 1, [0], [1]), run(0, [], [2]), run(1, [], [3])]
    found = simulated(made, works(made, [1.0, 2.0, 4.0, 8.0], sending=0.5))
    # From 1 on all three run at two thirds of their rate, until the transfer is there.
    assert found.ends == pytest.approx((1.0, 4.0, 6.0, 9.0))
    assert simulated(made, works(made, [1.0, 2.0, 4.0, 8.0])).ends == (1.0, 3.0, 5.0, 8.0)


def test_processes_that_may_use_the_same_cores_slow_each_other_down():
    made = [run(0, [], [0]), run(1, [], [1])]
    costs = works(made, [1.0, 3.0])
    assert simulated(made, costs).makespan == 3.0
    assert simulated(made, costs, cores={0: ("a", 1), 1: ("a", 1)}).ends == (2.0, 4.0)
    assert simulated(made, costs, cores={0: ("a", 2), 1: ("a", 2)}).ends == (1.0, 3.0)
    # A program that keeps two cores busy by itself.
    wide = [Work(1.0, {0: 0.0}, {0: 2.0}), Work(1.0, {1: 0.0}, {1: 1.0})]
    assert simulated(made, wide, cores={0: ("a", 2), 1: ("a", 2)}).ends == (1.5, 1.5)


def test_the_start_of_a_step_and_the_way_of_its_results_count():
    made = [run(0, [], [0]), run(1, [], [1])]
    costs = works(made, [2.0, 1.0])
    results = Work(0.5, {0: 0.25, 1: 0.25}, {0: 0.0, 1: 0.0})
    found = simulated(made, costs, begin={0: 1.0, 1: 0.5}, results=results, cores={0: ("a", 2), 1: ("b", 2)})
    assert found.starts == (1.0, 0.5)
    # What is to be spread is not waited for unless it is said to be.
    assert found.makespan == 3.0
    found = simulated(
        made, costs, begin={0: 1.0, 1: 0.5}, results=results, spread=[0], cores={0: ("a", 2), 1: ("b", 2)}
    )
    assert found.makespan == 3.5


def test_a_call_that_waits_for_what_is_sent_holds_up_what_is_called_after_it():
    made = [run(0, [], [0]), transfer(0, 1, [0], [1]), run(1, [], [2]), run(1, [1], [3])]
    costs = works(made, [4.0, 1.0, 2.0, 1.0])
    assert simulated(made, costs).starts == (0.0, 4.0, 0.0, 5.0)
    assert simulated(made, costs, calls_wait=True).starts == (0.0, 4.0, 5.0, 7.0)
    # The receiving call is made late.
    late = {0: [0, 1], 1: [2, 1, 3]}
    assert simulated(made, costs, calls_wait=True, orders=late).starts == (0.0, 4.0, 0.0, 5.0)


@pytest.mark.parametrize("seed", range(5))
def test_processes_with_enough_cores_are_devices_that_share_nothing(seed):
    draw = random.Random(seed)
    made, seconds, held = [], [], {0: [0], 1: [1]}
    for number in range(2, 40):
        where = draw.randrange(2)
        if draw.random() < 0.3:
            made.append(transfer(where, 1 - where, [draw.choice(held[where])], [number]))
            held[1 - where].append(number)
        else:
            made.append(run(where, [draw.choice(held[where])], [number]))
            held[where].append(number)
        seconds.append(draw.uniform(0.5, 2))
    inputs, outputs = [0, 1], [held[0][-1], held[1][-1]]
    carried = {0: 0, 1: 1}
    wanted = simulate_step(program(made, inputs, outputs), [{0}, {1}], carried, seconds)
    costs = works(made, seconds, sending=0.3)
    found = simulated(made, costs, inputs=inputs, outputs=outputs, cores={0: ("a", 9), 1: ("b", 9)})
    assert found.starts == pytest.approx(wanted.starts)
    assert found.ends == pytest.approx(wanted.ends)
    assert found.makespan == pytest.approx(wanted.makespan)
    assert found.step_time == pytest.approx(wanted.step_time)


@pytest.mark.parametrize("seed", range(5))
def test_all_work_on_one_core_takes_as_long_as_all_of_it_together(seed):
    draw = random.Random(seed)
    made = [run(draw.randrange(2), [], [number]) for number in range(12)]
    seconds = [draw.uniform(0.5, 2) for _ in made]
    costs = works(made, seconds, calling=0.125)
    found = simulated(made, costs, cores={0: ("a", 1), 1: ("a", 1)})
    assert found.makespan == pytest.approx(sum(seconds) + 12 * 0.125)


def test_cores_are_shared_by_processes_of_a_host_that_may_use_the_same():
    found = pools(
        {
            0: ("here", frozenset({0})),
            1: ("here", frozenset({1})),
            2: ("here", frozenset({2, 3})),
            3: ("here", frozenset({3, 4})),
            4: ("there", frozenset({0})),
        }
    )
    assert found[2] == found[3]
    assert [found[process][1] for process in range(5)] == [1, 1, 3, 3, 1]
    assert len({found[process][0] for process in range(5)}) == 4
