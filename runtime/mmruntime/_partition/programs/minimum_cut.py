"""Minimum cut: which values to keep, so that all that is read can be made of them at the least cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import TypeVar

Value = TypeVar("Value", bound=Hashable)


def cheapest_to_keep(
    read: Collection[Value],
    made_of: Callable[[Value], Iterable[Value] | None],
    cost: Callable[[Value], int],
) -> set[Value]:
    """The values to keep: of those that cost the least together, the ones from which the least is made again.

    A minimum cut of a network in which each value is an edge of its cost.

    Args:
        read: The values that must be kept or made again.
        made_of: The values that one can be made of, none for a constant; None if it cannot be made again.
        cost: What it costs to keep a value, an integer of at least 0.
    """
    operands: dict[Value, tuple[Value, ...] | None] = {}
    waiting = list(read)
    while waiting:
        value = waiting.pop()
        if value not in operands:
            found = made_of(value)
            operands[value] = None if found is None else tuple(found)
            waiting.extend(operands[value] or ())
    # Nodes: the source, the sink, and for each value where it comes in and where it goes out.
    come = {value: 2 + 2 * n for n, value in enumerate(operands)}
    go = {value: node + 1 for value, node in come.items()}
    edges = {(come[value], go[value]): cost(value) for value in operands}
    uncut = sum(edges.values()) + 1
    for value, found in operands.items():
        edges.update({(0, come[value]): uncut} if found is None else {(go[each], come[value]): uncut for each in found})
    edges.update({(go[value], 1): uncut for value in read})
    needed = _sink_side(edges, 2 + 2 * len(operands))
    return {value for value in operands if go[value] in needed and come[value] not in needed}


def _sink_side(edges: Mapping[tuple[int, int], int], size: int) -> set[int]:
    """The nodes on the side of the sink, node 1, of the minimum cut that is nearest to it; the source is node 0.

    Dinitz's algorithm (Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation",
    1970), in plain Python: to import SciPy's takes longer than the cuts of a step.
    """
    # The edges of each node, back edges among them: edge `n ^ 1` is the back edge of edge `n`.
    of: list[list[int]] = [[] for _ in range(size)]
    ends: list[int] = []
    left: list[int] = []
    for (start, end), capacity in edges.items():
        of[start].append(len(ends))
        of[end].append(len(ends) + 1)
        ends += (end, start)
        left += (capacity, 0)
    while True:
        levels = [-1] * size
        levels[0] = 0
        queue = [0]
        for node in queue:
            for edge in of[node]:
                if left[edge] and levels[ends[edge]] < 0:
                    levels[ends[edge]] = levels[node] + 1
                    queue.append(ends[edge])
        if levels[1] < 0:
            break
        untried = [each[:] for each in of]
        path: list[int] = []
        while True:
            node = ends[path[-1]] if path else 0
            if node == 1:
                flow = min(left[edge] for edge in path)
                for edge in path:
                    left[edge] -= flow
                    left[edge ^ 1] += flow
                # On from the first edge that is full.
                del path[next(n for n, edge in enumerate(path) if not left[edge]) :]
                continue
            edges_on = untried[node]
            while edges_on and not (left[edges_on[-1]] and levels[ends[edges_on[-1]]] == levels[node] + 1):
                edges_on.pop()
            if edges_on:
                path.append(edges_on[-1])
            elif path:
                # A dead end: its edge is not tried again.
                levels[node] = -1
                path.pop()
            else:
                break
    side = [1]
    seen = {1}
    for node in side:
        for edge in of[node]:
            if left[edge ^ 1] and ends[edge] not in seen:
                seen.add(ends[edge])
                side.append(ends[edge])
    return seen
