"""Simulated time: a schedule as integer tables, and the loop that runs it.

`auto` times some ten thousand orders, so `TimedSchedule.run` is written for speed: flat lists, local names, no calls.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from mmruntime.schedules._action import Action
from mmruntime.schedules._costs import Costs

# Most steps to simulate until the time per step repeats; a handful is enough for every named schedule.
_MOST_STEPS = 64


class TimedRun(NamedTuple):
    """One step in simulated time.

    Attributes:
        starts: Start of each action, at the action's index.
        ends: End of each action.
        finish: End of each row; None on deadlock.
    """

    starts: list[float]
    ends: list[float]
    finish: list[float] | None


class TimedSchedule:
    """Rows of actions as indices into tables of their inputs, outputs and costs.

    Every action waits for at most one value from another stage: a forward for its input, a backward for its cotangent.
    Every such value has a slot; an action has the slot that it reads and the slot that it fills.

    Attributes:
        rows: Indices of actions in issue order; local search reorders them between runs.
        actions: The action of each index.
        lasts: Duration of each action.
    """

    def __init__(
        self,
        rows: Iterable[Iterable[Action]],
        homes: Sequence[int],
        num_microbatches: int,
        costs: Costs,
        *,
        latency: float = 0.0,
        transfers: Sequence[float] | None = None,
        fused: frozenset[Action] = frozenset(),
        fused_costs: Sequence[float] | None = None,
        fused_at_once: bool = True,
    ) -> None:
        """Make the tables.

        Args:
            rows: Actions of each submesh.
            homes: Submesh of each stage and microbatch, at `stage * num_microbatches + microbatch`.
            num_microbatches: Number of microbatches.
            costs: Time of each action.
            latency: Time from the end of an action, or of its transfer, to the arrival.
            transfers: For each stage, how long the link is busy with its output, or its output's cotangent.
            fused: Actions that start a fused pair.
            fused_costs: Time of a fused pair, for the stage of its first action; the sum of both if left out.
            fused_at_once: Whether a pair starts when both inputs are there and gives both outputs at its end.
        """
        count, stages = num_microbatches, len(homes) // num_microbatches
        # Besides the values that stages exchange: one slot that is always full, for actions that wait for none, and one
        # that is never read, for actions without an output.
        always, nowhere = 2 * stages * count, 2 * stages * count + 1
        self._num_slots = 2 * stages * count + 2
        self._full = [*range(count), *range((2 * stages - 1) * count, 2 * stages * count), always]
        self._latency = latency
        self.rows: list[list[int]] = []
        self.actions: list[Action] = []
        self.lasts: list[float] = []
        self._needs: list[int] = []
        self._fills: list[int] = []
        # Link of the transfer after an action (-1 if the value stays where it is), and how long it is busy.
        self._links: list[int] = []
        self._sends: list[float] = []
        self._pairs: list[bool] = []
        link_of: dict[tuple[int, int], int] = {}
        busy = [0.0] * stages if transfers is None else transfers
        down_costs = {"B": costs.backward, "I": costs.backward_input}
        for submesh, row in enumerate(rows):
            first = len(self.actions)
            for action in row:
                kind, stage, microbatch = action.kind, action.stage, action.microbatch
                need, fill, target = always, nowhere, -1
                if kind == "F":
                    need, last = stage * count + microbatch, costs.forward[stage]
                    if stage + 1 < stages:
                        target = stage + 1
                        fill = target * count + microbatch
                elif kind == "W":
                    last = costs.backward_weight[stage]
                elif kind == "R":
                    last = costs.forward[stage]
                else:
                    need, last = (stages + stage) * count + microbatch, down_costs[kind][stage]
                    if stage:
                        target = stage - 1
                        fill = (stages + target) * count + microbatch
                link, send = -1, 0.0
                if target >= 0 and (there := homes[target * count + microbatch]) != submesh:
                    link = link_of.setdefault((submesh, there), len(link_of))
                    # A cotangent is as large as the value it belongs to, the earlier stage's output.
                    send = busy[min(stage, target)]
                self.actions.append(action)
                self.lasts.append(last)
                self._needs.append(need)
                self._fills.append(fill)
                self._links.append(link)
                self._sends.append(send)
                self._pairs.append(False)
            self.rows.append(list(range(first, len(self.actions))))
        for index, action in enumerate(self.actions if fused else ()):
            if action in fused:
                # If outputs leave as they are computed, a pair differs from two actions only in its time.
                self._pairs[index] = fused_at_once
                pair = self.lasts[index] + self.lasts[index + 1]
                scale = fused_costs[action.stage] / pair if fused_costs is not None and pair else 1.0
                self.lasts[index] *= scale
                self.lasts[index + 1] *= scale
        self._num_links = len(link_of)

    @cached_property
    def _makers(self) -> dict[int, int]:
        """The action that fills each slot; searches ask for it."""
        return {slot: index for index, slot in enumerate(self._fills)}

    def producer(self, index: int) -> int:
        """Index of the action that makes the input of this one, -1 if there is none."""
        return self._makers.get(self._needs[index], -1)

    def run(self, ready: Sequence[float] | None = None) -> TimedRun:
        """Run every action as early as it can; row r may start at `ready[r]` (0 if left out)."""
        # A hot loop: calls and attributes in it would cost the search more than its length costs a reader.
        needs, fills, lasts, links, sends = self._needs, self._fills, self.lasts, self._links, self._sends
        pairs, rows, latency = self._pairs, self.rows, self._latency
        clocks = list(ready) if ready is not None else [0.0] * len(rows)
        arrival = [-1.0] * self._num_slots
        for slot in self._full:
            arrival[slot] = 0.0
        link_free = [0.0] * self._num_links
        done = [0] * len(rows)
        starts, ends = [0.0] * len(lasts), [0.0] * len(lasts)
        waiting: dict[int, int] = {}
        todo = list(range(len(rows)))
        while todo:
            number = todo.pop()
            row = rows[number]
            clock = clocks[number]
            position, length = done[number], len(row)
            while position < length:
                index = row[position]
                slot = needs[index]
                arrived = arrival[slot]
                if arrived < 0.0:
                    waiting[slot] = number
                    break
                if arrived > clock:
                    clock = arrived
                if pairs[index]:
                    # It starts with its partner, and its output leaves when both are done.
                    partner = row[position + 1]
                    slot = needs[partner]
                    arrived = arrival[slot]
                    if arrived < 0.0:
                        waiting[slot] = number
                        break
                    if arrived > clock:
                        clock = arrived
                    out = clock + lasts[index] + lasts[partner]
                else:
                    out = clock + lasts[index]
                starts[index] = clock
                clock += lasts[index]
                ends[index] = clock
                slot = fills[index]
                link = links[index]
                if link >= 0:
                    if sends[index]:
                        if link_free[link] > out:
                            out = link_free[link]
                        out += sends[index]
                        link_free[link] = out
                    out += latency
                arrival[slot] = out
                if slot in waiting:
                    todo.append(waiting.pop(slot))
                position += 1
            done[number] = position
            clocks[number] = clock
        return TimedRun(starts, ends, clocks if not waiting else None)

    def steady(self, step: Sequence[float]) -> float:
        """Time per step, over many steps, if submeshes do not wait for each other between steps.

        Args:
            step: End of each row in the first step.
        """
        return self.settle(step)[0]

    def settle(self, step: Sequence[float]) -> tuple[float, list[float]]:
        """Time per step as in `steady`, and the start of each row in a late step.

        Steps are simulated one after the other until the end of every row moves on by the same amount over one or
        several steps. That amount is then exact: the system is linear in max-plus algebra, so it is periodic from there
        on (Baccelli et al. 1992, Synchronization and Linearity, section 3.7).

        Args:
            step: End of each row in the first step.
        """
        history = [list(step)]
        while len(history) < _MOST_STEPS:
            finish = self.run(history[-1]).finish
            assert finish is not None, "rows that ran once run again"
            history.append(finish)
            for back in range(1, len(history)):
                moves = [now - then for now, then in zip(finish, history[-1 - back], strict=True)]
                if max(moves) - min(moves) <= 1e-9 * max(finish):
                    return max(moves) / back, history[-2]
        half = _MOST_STEPS // 2
        return (max(history[-1]) - max(history[half - 1])) / (_MOST_STEPS - half), history[-2]
