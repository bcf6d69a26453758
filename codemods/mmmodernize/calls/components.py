"""Reachability in a graph, asked for many nodes at once."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from mmrewrite.project.reach import Reached


class Components:
    """The strongly connected components of a graph, found while it is walked.

    Nodes that lead to each other are one component. Tarjan's algorithm (https://doi.org/10.1137/0201010) finishes a
    component after all that it leads to, so each leads to components of smaller numbers only, and questions about any
    number of nodes are answered by one pass over the components. A question is a bit, and its answer a bit of a mask.
    """

    def __init__(self, direct: Callable[[Reached], Collection[Reached]]) -> None:
        self._direct = direct
        self._component: dict[ast.AST, int] = {}
        self._leads: list[set[int]] = []
        self._numbers: dict[ast.AST, int] = {}
        self._others: dict[ast.AST, Collection[Reached]] = {}

    @property
    def nodes(self) -> Collection[ast.AST]:
        """The nodes that were visited."""
        return self._component.keys()

    def visit(self, start: Reached) -> None:
        """Walk a node and all that it leads to."""
        if start.node in self._component:
            return
        component, numbers = self._component, self._numbers
        lowest: dict[ast.AST, int] = {}
        open_nodes: list[Reached] = []
        work: list[tuple[Reached, Iterator[Reached]]] = []

        def enter(reached: Reached) -> None:
            node, others = reached.node, self._direct(reached)
            numbers[node] = lowest[node] = len(numbers)
            open_nodes.append(reached)
            self._others[node] = others
            work.append((reached, iter(others)))

        enter(start)
        while work:
            reached, others = work[-1]
            node = reached.node
            for other in others:
                below = other.node
                if below in component:
                    continue
                if below not in numbers:
                    enter(other)
                    break
                if numbers[below] < lowest[node]:
                    lowest[node] = numbers[below]
            else:
                work.pop()
                if work:
                    above = work[-1][0].node
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == numbers[node]:
                    self._finish(open_nodes, node)

    def _finish(self, open_nodes: list[Reached], first: ast.AST) -> None:
        """Close the component that begins with `first`."""
        number, members = len(self._leads), list[Reached]()
        while not members or members[-1].node is not first:
            members.append(open_nodes.pop())
            self._component[members[-1].node] = number
        leads = {self._component[other.node] for member in members for other in self._others.pop(member.node)}
        self._leads.append(leads - {number})

    def below(self, marks: Mapping[ast.AST, int]) -> Callable[[ast.AST], int]:
        """For each node, the marks of all that it leads to, and its own."""

        def masks_below() -> list[int]:
            masks = self._own(marks)
            for number, leads in enumerate(self._leads):
                for other in leads:
                    masks[number] |= masks[other]
            return masks

        return self._lookup(masks_below, marks)

    def above(self, marks: Mapping[ast.AST, int]) -> Callable[[ast.AST], int]:
        """For each node, the marks of all that leads to it, and its own."""

        def masks_above() -> list[int]:
            masks = self._own(marks)
            for number in range(len(self._leads) - 1, -1, -1):
                if masks[number]:
                    for other in self._leads[number]:
                        masks[other] |= masks[number]
            return masks

        return self._lookup(masks_above, marks)

    def _own(self, marks: Mapping[ast.AST, int]) -> list[int]:
        masks = [0] * len(self._leads)
        for node, mark in marks.items():
            if node in self._component:
                masks[self._component[node]] |= mark
        return masks

    def _lookup(self, compute: Callable[[], list[int]], marks: Mapping[ast.AST, int]) -> Callable[[ast.AST], int]:
        masks = compute()

        def of(node: ast.AST) -> int:
            nonlocal masks
            number = self._component.get(node)
            if number is None:
                return marks.get(node, 0)
            if number >= len(masks):
                # It was walked meanwhile.
                masks = compute()
            return masks[number]

        return of


def marks_of(groups: Iterable[Iterable[ast.AST]]) -> dict[ast.AST, int]:
    """Bit 0 for the nodes of the first group, and so on."""
    marks: dict[ast.AST, int] = {}
    for number, nodes in enumerate(groups):
        for node in nodes:
            marks[node] = marks.get(node, 0) | 1 << number
    return marks


def combined(masks: Callable[[ast.AST], int], nodes: Iterable[ast.AST]) -> int:
    """The marks of several nodes together."""
    return functools.reduce(operator.or_, map(masks, nodes), 0)


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, from the lowest."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
