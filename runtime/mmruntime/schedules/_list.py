"""List scheduling: run the pipeline in simulated time and let a policy pick among what is ready."""

import heapq
from collections.abc import Sequence

from ._action import Action


def one_forward_one_backward(
    placement: Sequence[int], num_submeshes: int, num_microbatches: int
) -> tuple[tuple[Action, ...], ...]:
    """Classic 1F1B (arXiv:1806.03377, arXiv:2104.04473) for any placement, by event-driven list scheduling.

    A free submesh takes a backward if one is ready, of the latest stage; otherwise a forward, also of the latest
    stage, as long as its stage holds fewer activations than stages remain to the end (itself included). On one stage
    for each submesh this is the textbook order: submesh s warms up with `num_stages - s` forwards. A forward takes
    one unit of time and a backward two.

    It cannot deadlock: the oldest unfinished microbatch is never held back by the bound, since no younger one is
    ahead of it.
    """
    num_stages = len(placement)
    stages_of: list[list[int]] = [[] for _ in range(num_submeshes)]
    for stage in range(num_stages - 1, -1, -1):
        stages_of[placement[stage]].append(stage)
    arrived_forward = [num_microbatches] + [0] * (num_stages - 1)
    arrived_backward = [0] * num_stages
    done_forward = [0] * num_stages
    done_backward = [0] * num_stages
    rows: list[list[Action]] = [[] for _ in range(num_submeshes)]
    busy = [False] * num_submeshes
    # (end of the action, order of starting, submesh, is it a forward, its stage)
    running: list[tuple[int, int, int, bool, int]] = []

    def start(submesh: int, now: int) -> None:
        for stage in stages_of[submesh]:
            if done_backward[stage] < min(arrived_backward[stage], done_forward[stage]):
                rows[submesh].append(Action("B", stage, done_backward[stage]))
                heapq.heappush(running, (now + 2, len(running), submesh, False, stage))
                busy[submesh] = True
                return
        for stage in stages_of[submesh]:
            held = done_forward[stage] - done_backward[stage]
            if done_forward[stage] < arrived_forward[stage] and held < num_stages - stage:
                rows[submesh].append(Action("F", stage, done_forward[stage]))
                heapq.heappush(running, (now + 1, len(running), submesh, True, stage))
                busy[submesh] = True
                return

    for submesh in range(num_submeshes):
        start(submesh, 0)
    while running:
        now = running[0][0]
        while running and running[0][0] == now:
            _, _, submesh, is_forward, stage = heapq.heappop(running)
            busy[submesh] = False
            if is_forward:
                done_forward[stage] += 1
                if stage + 1 < num_stages:
                    arrived_forward[stage + 1] += 1
                else:
                    arrived_backward[stage] += 1
            else:
                done_backward[stage] += 1
                if stage:
                    arrived_backward[stage - 1] += 1
        for submesh in range(num_submeshes):
            if not busy[submesh]:
                start(submesh, now)
    return tuple(map(tuple, rows))
