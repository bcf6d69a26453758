"""Which hints stand or fall together.

A step and everything it reaches is one region: rewriting the model but not the step that trains it would leave a
program that runs neither as before nor on the mesh.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mmrewrite.directives.collect import Hint
from mmrewrite.project.facts import Facts
from mmrewrite.project.reach import Reach, Reached

HintKey = tuple[str, int]


def find_regions(
    modules: Iterable[Facts], reach: Reach, hints: Iterable[tuple[Facts, Hint]]
) -> list[frozenset[HintKey]]:
    """Groups of hints, by path and offset, that are rewritten together or not at all.

    A hint that cannot be read belongs to a group too, by the offset of the definition around it.
    """
    groups = _Groups()
    places: dict[_HintedStatement, list[tuple[Facts, int, bool]]] = {}
    for facts, hint in hints:
        if not hint.record.whole_module:
            statement = facts.names.top_level(hint.statement)
            is_step = hint.record.is_step
            places.setdefault(_HintedStatement(facts.path, statement), []).append((facts, hint.start, is_step))
    for facts in modules:
        for error in facts.hints.errors:
            broken = _statement_at(facts, error.line)
            if broken is not None:
                offset = facts.source.offset(broken.lineno, broken.col_offset)
                places.setdefault(_HintedStatement(facts.path, broken), []).append((facts, offset, False))
    leading = _Leading(reach, {place: held[0][0] for place, held in places.items()})
    first = {place: (place.path, held[0][1]) for place, held in places.items()}
    for place, held in places.items():
        for _, start, _ in held:
            groups.join(first[place], (place.path, start))
        if any(is_step for _, _, is_step in held) and not leading.leads_on(place):
            # The step gets its model as a value, so the model may be anything that its module leads to.
            for other in leading.in_module(held[0][0]):
                groups.join(first[place], first[other])
    for one, other in leading.together:
        groups.join(first[one], first[other])
    return groups.all()


class _HintedStatement(NamedTuple):
    """A statement of a module's body that has hints."""

    path: str
    statement: ast.stmt


class _Leading:
    """Which places lead to each other, each node and what it leads to looked at once.

    Attributes:
        together: Pairs of places that both lead to a third, or one to the other; by chains they connect all such.
    """

    def __init__(self, reach: Reach, places: Mapping[_HintedStatement, Facts]) -> None:
        self._reach = reach
        self._modules: dict[str, list[_HintedStatement]] = {}
        self._place_of: dict[ast.AST, _HintedStatement] = {place.statement: place for place in places}
        before: dict[ast.AST, list[ast.AST]] = {place.statement: [] for place in places}
        queue = [Reached(facts, place.statement) for place, facts in places.items()]
        followed: set[ast.AST] = {*before}
        while queue:
            reached = queue.pop()
            for each in reach.direct(reached):
                before.setdefault(each.node, []).append(reached.node)
                # What is inside of another leads to nothing that the other does not lead to.
                if each.node not in followed and not _is_inside(each, reached.node):
                    followed.add(each.node)
                    queue.append(each)
        # For each node that leads to a place, one of these, and the nodes after it that do.
        led_to, self._after = {**self._place_of}, defaultdict[ast.AST, list[ast.AST]](list)
        self.together: list[tuple[_HintedStatement, _HintedStatement]] = []
        nodes = [*led_to]
        for node in nodes:
            for other in before[node]:
                if other not in led_to:
                    led_to[other] = led_to[node]
                    nodes.append(other)
                elif led_to[other] != led_to[node]:
                    self.together.append((led_to[other], led_to[node]))
                self._after[other].append(node)

    def leads_on(self, place: _HintedStatement) -> bool:
        """Whether a place leads to another."""
        seen: set[ast.AST] = {place.statement}
        queue = [*self._after[place.statement]]
        while queue:
            node = queue.pop()
            if node not in seen:
                if node in self._place_of:
                    return True
                seen.add(node)
                queue += self._after[node]
        return False

    def in_module(self, facts: Facts) -> Sequence[_HintedStatement]:
        """All places that a module leads to."""
        if facts.path not in self._modules:
            seen = set[ast.AST]()
            found = (each for statement in facts.tree.body for each in self._reach.from_node(facts, statement, seen))
            places = (self._place_of.get(each.node) for each in found)
            self._modules[facts.path] = [place for place in places if place is not None]
        return self._modules[facts.path]


def _statement_at(facts: Facts, line: int) -> ast.stmt | None:
    """The statement of the module's body that a line, or the comment on it, belongs to."""
    return next((statement for statement in facts.tree.body if line <= (statement.end_lineno or 0)), None)


def _is_inside(reached: Reached, node: ast.AST) -> bool:
    around = reached.facts.names.around(reached.node) if isinstance(reached.node, ast.stmt) else ()
    return any(holder is node for holder in around)


class _Groups:
    def __init__(self) -> None:
        self._parent: dict[HintKey, HintKey] = {}

    def _find(self, key: HintKey) -> HintKey:
        self._parent.setdefault(key, key)
        while self._parent[key] != key:
            self._parent[key] = self._parent[self._parent[key]]
            key = self._parent[key]
        return key

    def join(self, first: HintKey, second: HintKey) -> None:
        one, other = sorted((self._find(first), self._find(second)))
        self._parent[other] = one

    def all(self) -> list[frozenset[HintKey]]:
        found: dict[HintKey, set[HintKey]] = {}
        for key in self._parent:
            found.setdefault(self._find(key), set()).add(key)
        return [frozenset(found[key]) for key in sorted(found)]
