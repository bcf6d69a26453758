"""Minimum cut: which values to keep, so that all that is read can be made of them at the least cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import TypeVar

Value = TypeVar("Value", bound=Hashable)

# What all capacities together may come to: SciPy counts in 32 bits.
_ALL = 1 << 29


def cheapest_to_keep(
    read: Collection[Value],
    made_of: Callable[[Value], Iterable[Value] | None],
    cost: Callable[[Value], int],
) -> set[Value]:
    """The values to keep: of those that cost the least together, the ones from which the least is made again.

    A minimum cut of a network in which each value is an edge of its cost. Sums of more than 2**29 are rounded.

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
    costs = {value: cost(value) for value in operands}
    unit = max(1, -(-sum(costs.values()) // _ALL))
    edges = {(come[value], go[value]): -(-costs[value] // unit) for value in operands}
    uncut = sum(edges.values()) + 1
    for value, found in operands.items():
        edges.update({(0, come[value]): uncut} if found is None else {(go[each], come[value]): uncut for each in found})
    edges.update({(go[value], 1): uncut for value in read})
    needed = _sink_side(edges)
    return {value for value in operands if go[value] in needed and come[value] not in needed}


def _sink_side(edges: Mapping[tuple[int, int], int]) -> set[int]:
    """The nodes on the side of the sink, node 1, of the minimum cut that is nearest to it; the source is node 0."""
    # Imported where it is used, since it takes a tenth of a second. JAX has it anyway.
    from scipy.sparse import csr_array  # noqa: PLC0415
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # noqa: PLC0415

    size = 1 + max(map(max, edges))
    capacities = csr_array(([*edges.values()], tuple(zip(*edges, strict=True))), shape=(size, size), dtype="int32")
    left = capacities - maximum_flow(capacities, 0, 1).flow
    left.eliminate_zeros()
    return set(breadth_first_order(left.T, 1, return_predecessors=False).tolist())
