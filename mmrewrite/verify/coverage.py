"""Which rewritten places of a program a function reaches, so that they are proved with it.

Before `apply` these are hints. Afterwards hints are gone, and calls of the runtime stand there that the revision lacks.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrewrite.directives.vocabulary import DIRECTIVES, Directive
from mmrewrite.files.select import source_file
from mmrewrite.files.walk import load_file
from mmrewrite.mirror.lines_before import LinesBefore
from mmrewrite.project.facts import RUNTIME, Facts, read_facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import holds, reach_of
from mmrewrite.project.verify_entries import Entry
from mmrewrite.results import HintReference, Rewrite
from mmrewrite.source.names import root_of
from mmrewrite.source.walk import walk
from mmrewrite.verify.before import own_of_calls

# Hints with which microbatches compute, as the user asks, with other values than the whole batch, and what these are.
RANDOM, STATISTICS = "random numbers", "batch statistics"
_OWN = {
    RANDOM: re.compile(r"\A(?>.*?\bmicrobatch\().*\brng\s*+=\s*+(?!None\b|\(\s*\))", re.DOTALL),
    STATISTICS: re.compile(r"\A(?>.*?\bmicrobatch\().*\bbatch_stats\s*+=\s*+(?!None\b)", re.DOTALL),
}
_OF_KEYWORDS = {"rng": RANDOM, "batch_stats": STATISTICS}
# The hints whose rewrites call a function of the runtime; `mm.task` is called as its hint is.
_OF_CALLS = {name: record for record in reversed(DIRECTIVES.values()) for name in (*record.runtime, record.name)}

# Parts of a statement that hold others, each of which is looked at by itself.
_WITH_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)

# A hint, or a call, by the path of its file.
HintPlace = tuple[str, HintReference]


@dataclass(frozen=True)
class _PlacedMark:
    """The statement that a hint is about, or in which a call of the runtime stands that takes the place of a hint."""

    facts: Facts
    statement: ast.stmt
    record: Directive


class Coverage:
    """The rewritten places that each function reaches.

    Attributes:
        rewritten: All of them.
    """

    def __init__(
        self,
        modules: Sequence[Facts],
        marks: Mapping[HintPlace, _PlacedMark],
        rewritten: Iterable[HintPlace],
        keywords: Iterable[str],
        codemods: Collection[str],
    ) -> None:
        self._modules, self._marks = modules, marks
        self._project = Project(modules, load_file, tuple(codemods))
        self._reach = reach_of(self._project)
        self._calls = {_OF_KEYWORDS[name] for name in keywords if name in _OF_KEYWORDS}
        self.rewritten = frozenset(
            place for place in rewritten if place in marks and marks[place].record.changes_statement
        )

    @classmethod
    def of_hints(cls, modules: Sequence[Facts], results: Sequence[Rewrite], codemods: Collection[str]) -> Coverage:
        """The hints of some modules that are rewritten."""
        marks = {
            (facts.path, hint.reference): _PlacedMark(facts, hint.statement, hint.record)
            for facts in modules
            for hint in facts.hints.hints
        }
        edited = ((result.path, hint) for result in results for edit in result.edits for hint in edit.hints)
        return cls(modules, marks, edited, (), codemods)

    @classmethod
    def of_calls(cls, changed: Sequence[Rewrite], results: Sequence[Rewrite], codemods: Collection[str]) -> Coverage:
        """The calls of the runtime in what became of a revision, on lines that the revision lacks.

        Args:
            changed: The files that differ from it: what it has, and what there will be now.
            results: The rewrites of the hints that are left, by which calls are told at lines of the files as they are.
            codemods: The names of codemods, which hints may mention.
        """
        left = {os.path.realpath(result.path): LinesBefore(result) for result in results if result.changed}
        modules, marks = [], dict[HintPlace, _PlacedMark]()
        for rewrite in changed:
            facts = read_facts(source_file(rewrite.path, rewrite.result), tuple(codemods))
            if isinstance(facts, Facts):
                modules.append(facts)
                lines = left.get(os.path.realpath(rewrite.path))
                new = _new_lines(rewrite)
                for node, mark in _calls(facts, new):
                    line = next(iter(lines.of(node.lineno)), node.lineno) if lines is not None else node.lineno
                    reference = HintReference(line, node.col_offset + 1, ast.unparse(node))
                    marks[rewrite.path, reference] = mark
        return cls(modules, marks, marks, own_of_calls(rewrite.result for rewrite in changed), codemods)

    def of(self, entry: Entry) -> frozenset[HintPlace]:
        """The rewritten hints that a function reaches; an over-approximation."""
        module, _, name = entry.step.partition(":")
        facts = next((facts for facts in self._modules if facts.names.name == module), None)
        if facts is None and self._modules:
            facts = self._project.module(module, self._modules[0])
        if facts is None:
            return frozenset()
        found = self._inside(facts, self._starts(facts, name.partition(".")[0]))
        if not any(self._marks[place].record.places_code for place in found):
            # The step takes its model as an argument: any code that its module reaches may be that model. Other steps
            # and what stands beside them are not.
            for other in (facts, *self._project.imported(facts)):
                inside = self._inside(other, other.tree.body)
                found |= {place for place in inside if self._marks[place].record.stands_in_models}
        return found & self.rewritten

    def own(self, entry: Entry) -> tuple[str, ...]:
        """What the microbatches that a function reaches have of their own."""
        hints = [hint.text for _, hint in self.of(entry)]
        return tuple(what for what, pattern in _OWN.items() if what in self._calls or any(map(pattern.search, hints)))

    def is_rewritten(self, entry: Entry) -> bool:
        """Whether a function reaches anything that is rewritten."""
        # A registered task matches a scope by its name in the trace, which no analysis of the source can follow.
        registered = any(mark.record.places_scopes for mark in self._marks.values())
        return bool(self.of(entry)) or registered

    def _starts(self, facts: Facts, name: str) -> list[Any]:
        bindings = facts.names.scope.bindings.get(name, ())
        starts = [facts.names.top_level(found.statement) for found in bindings if found.statement is not None]
        for binding in bindings:
            elsewhere = self._project.definition(binding.target, facts) if binding.target else None
            if elsewhere is not None and elsewhere[1].statement is not None:
                starts.append(elsewhere[1].statement)
        return starts

    def _inside(self, facts: Facts, starts: Sequence[Any]) -> frozenset[HintPlace]:
        reached = [item for start in starts for item in self._reach.from_node(facts, start)]
        return frozenset(
            place
            for place, mark in self._marks.items()
            if any(holds(item, mark.facts, mark.statement) for item in reached)
        )


def _new_lines(rewrite: Rewrite) -> set[int]:
    """The lines of a result, from 1, that its original lacks."""
    before, after = (data.split(b"\n") for data in (rewrite.original, rewrite.result))
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return {line + 1 for tag, _, _, start, end in blocks if tag != "equal" for line in range(start, end)}


def _lines_of(part: ast.AST) -> Iterator[int]:
    for node in walk(part):
        if isinstance(node, ast.expr):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _calls(facts: Facts, lines: set[int]) -> Iterator[tuple[ast.expr, _PlacedMark]]:
    """What names a function of the runtime in expressions on some lines: of each the first."""
    for statement in facts.names.scopes:
        for part in ast.iter_child_nodes(statement):
            if isinstance(part, _WITH_STATEMENTS) or lines.isdisjoint(_lines_of(part)):
                continue
            for node in walk(part):
                if not isinstance(node, ast.Name | ast.Attribute):
                    continue
                name = facts.names.resolve(node, facts.names.read_in.get(root_of(node), facts.names.scope))
                if name is not None and name.startswith(f"{RUNTIME}.") and name.rpartition(".")[2] in _OF_CALLS:
                    record = _OF_CALLS[name.rpartition(".")[2]]
                    about = _named_scope(facts, part) if record.places_scopes else statement
                    if about is not None:
                        yield node, _PlacedMark(facts, about, DIRECTIVES["task"] if record.places_scopes else record)
                    break


def _named_scope(facts: Facts, registration: ast.AST) -> ast.stmt | None:
    """The `with` of the scope that a task is registered for by name; None if it is none of the module."""
    named = ast.dump(registration.args[0]) if isinstance(registration, ast.Call) and registration.args else None
    blocks = (each for each in facts.names.scopes if isinstance(each, ast.With | ast.AsyncWith))
    return next(
        (each for each in blocks for item in each.items for node in walk(item) if ast.dump(node) == named), None
    )
