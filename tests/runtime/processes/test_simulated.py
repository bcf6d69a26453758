"""Random schedules on random submeshes of random processes: nobody waits for ever, and every value comes once."""

import random

import pytest

from mmruntime._execution.shares import Share, receive_late, shares
from mmruntime._partition.pipeline.instructions import TransferInstruction
from tests.runtime.processes.simulated import World, random_case

TRANSPORTS = ("transfer", "sockets", "collectives")


def hold(seed: int) -> None:
    """Run a random step to its end in a random order of events, and compare every value."""
    rng = random.Random(seed)
    case = random_case(rng)
    transport = rng.choice(TRANSPORTS)
    world = World(case, rng, transport, one_at_a_time=rng.random() < 0.5)
    world.run()
    assert world.ended, f"seed {seed}: {transport} hangs: {case.text}"
    expected = world.expected()
    for process in world.processes:
        places = {
            (call, slot)
            for call in range(1, world.calls + 1)
            for item in case.instructions
            for where in [getattr(item, "target", None)]
            for slot in item.results
            if process.me in case.owners[item.spec.submesh if where is None else where]
        }
        got = {slot: value for slot, value in process.values.items() if value[0] != "input" or slot[1] in world.made}
        assert set(got) == places, f"seed {seed}: {case.text}"
        assert all(expected[slot] == value for slot, value in got.items()), f"seed {seed}: {case.text}"


@pytest.mark.parametrize("seed", range(60))
def test_values_arrive_once_and_nothing_hangs(seed):
    hold(seed)


def test_what_only_comes_in_is_received_when_it_is_read():
    moved = 0
    for seed in range(100):
        case = random_case(random.Random(seed))
        for me in range(case.num_processes):
            own = shares(case.instructions, case.owners, me)
            late = receive_late(own, case.instructions, case.owners, me)
            assert sorted(late) == own
            received = {
                index
                for index, share in own
                if share is Share.CROSS and me not in case.owners[case.instructions[index].source]
            }
            others = [index for index, _ in late if index not in received]
            assert others == sorted(others), "sends and programs keep the one order"
            order = [index for index, _ in late]
            for place, index in enumerate(order):
                if index in received:
                    slots = set(case.instructions[index].results)
                    readers = [at for at in others if slots.intersection(case.instructions[at].args)]
                    behind = [at for at in order[place:] if at not in received][:1]
                    assert behind == readers[:1], f"seed {seed}, process {me}: {case.text}"
            moved += late != own
    assert moved > 20


@pytest.mark.slow
def test_values_arrive_once_and_nothing_hangs_in_thousands():
    for seed in range(1000, 6000):
        hold(seed)


def test_a_process_that_skips_a_call_gives_and_gets_nothing():
    crossed = 0
    for seed in range(100):
        rng = random.Random(seed)
        case = random_case(rng)
        world = World(case, rng, "transfer", skips=rng.randrange(case.num_processes))
        world.run()
        for item in case.instructions:
            messages = world.plans.get((item.source, item.target), ()) if isinstance(item, TransferInstruction) else ()
            for message in messages:
                if world.skips in (message.source, message.target):
                    crossed += 1
                    assert not world.ended
                    assert all((message.target, (call, item.results[0])) not in world.filled for call in (1, 2))
    assert crossed > 100


def test_the_simulation_finds_another_order():
    """Two processes that issue programs of both in different orders wait for each other, or compute something else."""
    found = 0
    for seed in range(200):
        rng = random.Random(seed)
        case = random_case(rng)
        world = World(case, rng, "collectives", calls=1, one_at_a_time=True)
        for process in world.processes:
            joint = [at for at, (_, share) in enumerate(process.code) if share in (Share.RUN_TOGETHER, Share.CROSS)]
            if len(joint) > 3:
                one, other = joint[0], joint[-1]
                process.code[one], process.code[other] = process.code[other], process.code[one]
                break
        else:
            continue
        world.run()
        found += not world.ended
    assert found > 10
