"""Which hints stand or fall together.

A step and everything it reaches is one region: rewriting the model but not the step that trains it would leave a
program that runs neither as before nor on the mesh.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from itertools import chain

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
    places: dict[tuple[str, ast.stmt], list[tuple[Facts, int, bool]]] = {}
    for facts, hint in hints:
        if not hint.record.whole_module:
            statement = facts.names.top_level(hint.statement)
            is_step = hint.record.is_step
            places.setdefault((facts.path, statement), []).append((facts, hint.start, is_step))
    for facts in modules:
        for error in facts.hints.errors:
            broken = _statement_at(facts, error.line)
            if broken is not None:
                place = facts.source.offset(broken.lineno, broken.col_offset)
                places.setdefault((facts.path, broken), []).append((facts, place, False))
    in_module: dict[str, set[tuple[str, ast.stmt]]] = {}
    for (path, statement), held in places.items():
        facts, start, _ = held[0]
        for _, other_start, _ in held:
            groups.join((path, start), (path, other_start))
        reached = _hinted(places, reach.from_node(facts, statement))
        if reached <= {(path, statement)} and any(is_step for _, _, is_step in held):
            # The step gets its model as a value, so the model may be anything that its module leads to.
            if path not in in_module:
                leading = (reach.from_node(facts, each) for each in facts.tree.body)
                in_module[path] = _hinted(places, chain.from_iterable(leading))
            reached |= in_module[path]
        for key in reached:
            groups.join((path, start), (key[0], places[key][0][1]))
    return groups.all()


def _statement_at(facts: Facts, line: int) -> ast.stmt | None:
    """The statement of the module's body that a line, or the comment on it, belongs to."""
    return next((statement for statement in facts.tree.body if line <= (statement.end_lineno or 0)), None)


def _hinted(places: Collection[tuple[str, ast.stmt]], reached: Iterable[Reached]) -> set[tuple[str, ast.stmt]]:
    keys = {(item.facts.path, item.node) for item in reached if isinstance(item.node, ast.stmt)}
    return {key for key in keys if key in places}


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
