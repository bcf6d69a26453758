"""Simulate a step of several processes: each issues its part, and what happens in them shares the cores that they have.

A thread of each process calls the instructions one after the other; programs on CPUs, and the threads that send and
receive, need cores too. Where there are fewer cores than that, all are slower, so that calls and transfers take time
from programs that run meanwhile. How many cores each keeps busy is measured while it runs alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmruntime._inspect.run_jobs import TimedJob, run_jobs
from mmruntime._inspect.simulate_step import ROUNDS, SimulatedStep, handed_on, summed_up
from mmruntime._partition.pipeline.instructions import Program, RunInstruction


@dataclass(frozen=True)
class Work:
    """What an instruction takes when nothing else runs.

    Attributes:
        seconds: From the end of the call in all processes that take part until its results are there.
        calling: For each of them, the time that its calling thread needs for the call.
        cores: For each of them, how many cores it keeps busy meanwhile, on average.
    """

    seconds: float
    calling: Mapping[int, float]
    cores: Mapping[int, float]


@dataclass(frozen=True)
class ProcessCosts:
    """What a step of several processes takes.

    Attributes:
        instructions: Each instruction, in the one order of issue.
        orders: The instructions that each process calls, in its own order.
        begin: How long the call of the step takes in each process up to its first instruction.
        results: How results get to all processes after the last instruction, such as a loss that one of them has.
        spread: The slots of the results that get there then.
        cores: How many cores each process has, by a name; those with one name share them.
        calls_wait: Whether the call that receives something waits for it; see `Channel.waits`.
    """

    instructions: Sequence[Work]
    orders: Mapping[int, Sequence[int]]
    begin: Mapping[int, float]
    results: Work
    spread: Collection[int]
    cores: Mapping[int, tuple[Hashable, int]]
    calls_wait: bool = False


def simulate_processes(
    program: Program,
    devices: Sequence[Collection[int]],
    owners: Sequence[Collection[int]],
    carried: Mapping[int, int],
    costs: ProcessCosts,
) -> SimulatedStep:
    """Run a step of several processes in simulated time.

    A device runs its programs in order of issue, and a link carries one transfer at a time, as in `simulate_step`.

    Args:
        program: The instructions.
        devices: The ids of the devices of each submesh.
        owners: The processes of each submesh.
        carried: Positions of inputs that are state, and of the output that is their next value.
        costs: What everything takes.
    """
    count = len(program.instructions)
    # One step alone first: the next ones take cores from it where they can start.
    one = _Steps(program, devices, owners, carried, costs, 1)
    starts, ends = one.run()
    works = [one.positions["work", 0, index] for index in range(count)]
    many = _Steps(program, devices, owners, carried, costs, ROUNDS)
    _, later = many.run()
    finished = [0.0] * ROUNDS
    for name, position in many.positions.items():
        finished[name[1]] = max(finished[name[1]], later[position])
    times = [starts[position] for position in works], [ends[position] for position in works]
    return summed_up(program, *times, max(ends), finished)


class _Steps:
    """Some steps as jobs, one after the other.

    Attributes:
        positions: Where each job is: the beginning of a step in a process, a call there, an instruction's work, the
            end of the step there, its results.
    """

    def __init__(
        self,
        program: Program,
        devices: Sequence[Collection[int]],
        owners: Sequence[Collection[int]],
        carried: Mapping[int, int],
        costs: ProcessCosts,
        rounds: int,
    ) -> None:
        self._program, self._devices, self._owners, self._costs = program, devices, owners, costs
        names: list[tuple[Any, ...]] = []
        for number in range(rounds):
            names += [("begin", number, process) for process in costs.orders]
            names += [("call", number, process, index) for process in costs.orders for index in costs.orders[process]]
            names += [("work", number, index) for index in range(len(program.instructions))]
            names += [("end", number, process) for process in costs.orders]
            names.append(("results", number))
        self.positions = {name: position for position, name in enumerate(names)}
        self._jobs: list[TimedJob] = [TimedJob(0.0, frozenset())] * len(names)
        # For each job, how many cores of which pool it keeps busy.
        self._loads: list[list[tuple[Hashable, float]]] = [[] for _ in names]
        self._free: dict[Any, int] = {}
        made: dict[int, frozenset[int]] = {}
        for number in range(rounds):
            made = handed_on(program, carried, self._step(number, made))

    def run(self) -> tuple[list[float], list[float]]:
        """When each job starts and ends."""
        sizes = dict(self._costs.cores.values())

        def slowdowns(running: Collection[int]) -> dict[int, float]:
            wanted: dict[Hashable, float] = defaultdict(float)
            for position in running:
                for pool, load in self._loads[position]:
                    wanted[pool] += load
            return {
                position: max([1.0, *(wanted[pool] / sizes[pool] for pool, load in self._loads[position] if load)])
                for position in running
            }

        return run_jobs(self._jobs, slowdowns)

    def _step(self, number: int, made: dict[int, frozenset[int]]) -> dict[int, frozenset[int]]:
        """The jobs of a step; for each slot, the jobs behind which it is there.

        Args:
            number: Which step.
            made: The same for the slots that the step before hands on.
        """
        costs, made = self._costs, dict(made)
        for process, order in costs.orders.items():
            after = {self.positions["end", number - 1, process]} if number else set()
            last = self._add(("begin", number, process), costs.begin[process], after, {process: 1.0})
            for index in order:
                name = "call", number, process, index
                after = {last}
                if self._receives(process, index):
                    after.add(self.positions["work", number, index])
                last = self._add(name, costs.instructions[index].calling[process], after, {process: 1.0})
            self._add(("end", number, process), costs.results.calling[process], {last}, {process: 1.0})
        for index, item in enumerate(self._program.instructions):
            work = costs.instructions[index]
            after = {position for slot in item.args for position in made.get(slot, ())}
            received = [process for process in work.calling if self._receives(process, index)]
            after |= {
                self.positions["call", number, process, index] for process in work.calling if process not in received
            }
            queues: Collection[Any] = (
                self._devices[item.spec.submesh] if isinstance(item, RunInstruction) else [(item.source, item.target)]
            )
            after |= {self._free[queue] for queue in queues if queue in self._free}
            position = self._add(("work", number, index), work.seconds, after, work.cores)
            self._free.update(dict.fromkeys(queues, position))
            there = [self.positions["call", number, process, index] for process in received] or [position]
            made.update(dict.fromkeys(item.results, frozenset(there)))
        after = {position for slot in costs.spread for position in made.get(slot, ())}
        after |= {self.positions["end", number, process] for process in costs.orders}
        self._add(("results", number), costs.results.seconds, after, costs.results.cores)
        return made

    def _receives(self, process: int, index: int) -> bool:
        """Whether the call of an instruction in a process waits for what others send."""
        item = self._program.instructions[index]
        if isinstance(item, RunInstruction) or not self._costs.calls_wait:
            return False
        return process in self._owners[item.target] and process not in self._owners[item.source]

    def _add(self, name: tuple[Any, ...], seconds: float, after: Collection[int], cores: Mapping[int, float]) -> int:
        position = self.positions[name]
        self._jobs[position] = TimedJob(seconds, frozenset(after))
        self._loads[position] = [(self._costs.cores[process][0], load) for process, load in cores.items()]
        return position
