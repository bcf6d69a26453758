"""Break calls that grew beyond the line length, as the hint engine does with the calls that it writes."""

from __future__ import annotations

import ast
import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.codemod.layout import fit_statement, hanging_unit, indentation, own_span, unwrap, wrap
from mmrewrite.engine.edits import apply_edits
from mmrewrite.project.uses import ModuleUses
from mmrewrite.results import Edit
from mmrewrite.source.alignment import Change, aligned
from mmrewrite.source.line_breaking import longest_line
from mmrewrite.source.spans import begins_its_line
from mmrewrite.source.text import SourceText, has_lines

# Comments that linters take for no part of a line.
_UNCOUNTED = re.compile(r" *#\s*(noqa|(type|pylint|pyright|ruff|isort|flake8):|nosec)[^\r\n]*")


@dataclass(frozen=True)
class _Grown:
    """A statement that edits `first` to `last` (exclusive) change; its own text is from `start` to `end`."""

    first: int
    last: int
    statement: ast.stmt
    start: int
    end: int
    is_header: bool


def break_grown_calls(edits: Sequence[Edit], module: ModuleUses, width: int) -> tuple[Edit, ...]:
    """The edits. Those in a statement with a line beyond `width` become one that breaks its calls.

    A statement may keep a line as long as its longest was. Calls that are broken already keep their breaks.
    """
    if not edits:
        return ()
    source, found, position = module.facts.source, list[Edit](), 0
    unit = hanging_unit(module.facts)
    for grown in _by_statement(edits, module):
        inside = edits[grown.first : grown.last]
        old = source.text[grown.start : grown.end]
        new = apply_edits(source.text, inside, grown.start, grown.end)
        own = indentation(source, grown.statement)
        limit = max(width, _longest(own + old))
        indent = _indent(source, edits, grown)
        broken = new
        if indent == own and source.newline in new:
            was, now = (wrap(text, own, source.newline, grown.is_header) for text in (old, new))
            before = len(wrap("", own, source.newline, header=False)) - len(source.newline)
            changes = _changes(inside, before - grown.start)
            broken = unwrap(aligned(was, now, changes), own, grown.is_header)
        room = limit
        if not has_lines(broken):
            # What is behind it, of what linters count.
            behind = source.text[grown.end : source.line_end(source.position(grown.end)[0])]
            behind = _UNCOUNTED.sub("", behind).rstrip()
            room = max(limit, _longest(own + old + behind)) - len(behind)
        if _longest(indent + broken) > room:
            broken = fit_statement(broken, indent, None, room, unit, source.newline, header=grown.is_header)
        if broken != new:
            found += [*edits[position : grown.first], _merged(inside, grown.start, old, broken)]
            position = grown.last
    return (*found, *edits[position:])


def _longest(text: str) -> int:
    """The columns of the longest line, as linters count them."""
    return longest_line(_UNCOUNTED.sub("", text))


def _changes(edits: Sequence[Edit], shift: int) -> list[Change]:
    """What edits replace, `shift` characters farther."""
    found, grown = [], 0
    for edit in edits:
        begin = edit.start + shift
        found.append((begin, edit.end + shift, begin + grown, begin + grown + len(edit.text)))
        grown += len(edit.text) - (edit.end - edit.start)
    return found


def _by_statement(edits: Sequence[Edit], module: ModuleUses) -> Iterator[_Grown]:
    """The statements that edits change, in order, but for those that an edit overlaps only in part."""
    source = module.facts.source
    spans = {
        (start, end): (statement, is_header)
        for statement in _edited(edits, module)
        if begins_its_line(source, statement)
        for start, end, is_header in [own_span(source, statement)]
    }
    for (start, end), (statement, is_header) in sorted(spans.items(), key=lambda item: item[0]):
        # Edits are in order and do not overlap.
        numbers = range(bisect_right(edits, start, key=_end), bisect_left(edits, end, key=_start))
        if numbers and all(start <= edits[n].start and edits[n].end <= end for n in numbers):
            yield _Grown(numbers[0], numbers[-1] + 1, statement, start, end, is_header)


def _start(edit: Edit) -> int:
    return edit.start


def _end(edit: Edit) -> int:
    return edit.end


def _edited(edits: Sequence[Edit], module: ModuleUses) -> Iterator[ast.stmt]:
    """The statements on whose lines an edit is."""
    source = module.facts.source
    places = [(source.position(edit.start)[0], source.position(edit.end)[0]) for edit in edits]
    lines = sorted({line for first, last in places for line in range(first, last + 1)})
    queue: list[ast.AST] = [module.facts.tree]
    for node in queue:
        if isinstance(node, ast.stmt):
            body: list[ast.stmt] = getattr(node, "body", [])
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            whole = node.end_lineno or node.lineno
            if not _is_any_in(lines, first, whole):
                continue
            # Of a `match`, the statements in its cases are laid out, each by itself.
            is_laid_out = not isinstance(node, ast.Match)
            if is_laid_out and _is_any_in(lines, first, body[0].lineno if body else whole):
                yield node
        queue += [child for child in ast.iter_child_nodes(node) if isinstance(child, _HOLD_STATEMENTS)]


_HOLD_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


def _is_any_in(numbers: Sequence[int], first: int, last: int) -> bool:
    """Whether one of some numbers, which are in order, lies between two, both counted."""
    return bisect_left(numbers, first) < bisect_right(numbers, last)


def _indent(source: SourceText, edits: Sequence[Edit], grown: _Grown) -> str:
    """The indentation of a statement after the edits, one of which may move its line to the left."""
    begin = source.line_starts[source.position(grown.start)[0] - 1]
    near = edits[bisect_left(edits, begin, key=_start) : bisect_right(edits, grown.start, key=_end)]
    before = [edit for edit in near if begin <= edit.start and edit.end <= grown.start and not edit.text]
    return apply_edits(source.text, before, begin, grown.start)


def _merged(edits: Sequence[Edit], start: int, old: str, new: str) -> Edit:
    """One edit for several, without the prefix and the suffix that stay."""
    head = _shared(old, new)
    tail = _shared(old[head:][::-1], new[head:][::-1])
    codemods = dict.fromkeys(name for edit in edits for name in edit.codemods)
    hints = dict.fromkeys(hint for edit in edits for hint in edit.hints)
    return Edit(start + head, start + len(old) - tail, new[head : len(new) - tail], tuple(codemods), tuple(hints))


def _shared(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
