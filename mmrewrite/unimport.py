"""What goes away of the imports of `mmrewrite.hints` when the hints do."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from mmrewrite.calls import HintCall, Removal
from mmrewrite.comments import span
from mmrewrite.piece import begins_its_line
from mmrewrite.project import Facts
from mmrewrite.source import SourceText


def removed_imports(facts: Facts, consumed: Sequence[HintCall]) -> Iterator[Removal]:
    """The parts of imports that nothing uses once the `consumed` calls are gone."""
    functions = [call.function for call in consumed]
    together: dict[ast.stmt, tuple[ast.alias, ...]] = {}
    unused: dict[ast.stmt, list[ast.alias]] = {}
    for found in facts.hints.imports:
        if found.uses and all(any(start <= use < end for start, end in functions) for use in found.uses):
            together[found.statement] = found.together
            unused.setdefault(found.statement, []).append(found.alias)
    whole: list[tuple[int, int]] = []
    for statement, aliases in sorted(unused.items(), key=lambda item: item[0].lineno):
        if len(aliases) < len(together[statement]):
            yield from _names(facts.source, together[statement], aliases)
            continue
        removal = _statement(facts, statement)
        yield removal
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        if (removal.start, removal.end) == (facts.source.line_starts[first - 1], facts.source.line_end(last)):
            # Imports below each other go away as one.
            above = whole.pop()[0] if whole and whole[-1][1] == first - 1 else first
            whole.append((above, last))
    for first, last in whole:
        yield from _spacing(facts.source, first, last)


def _names(source: SourceText, aliases: Sequence[ast.alias], unused: Collection[ast.alias]) -> Iterator[Removal]:
    """Names of an import that keeps others."""
    kept = [index for index, alias in enumerate(aliases) if alias not in unused]
    for index, alias in enumerate(aliases):
        if alias in unused:
            start, end = span(source, alias)
            if index < kept[-1]:
                yield Removal(start, span(source, aliases[index + 1])[0])
            else:
                yield Removal(span(source, aliases[index - 1])[1], end)


def _statement(facts: Facts, statement: ast.stmt) -> Removal:
    source = facts.source
    start, end = span(source, statement)
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    rest = source.text[end : source.line_end(last)]
    if facts.names.is_only(statement):
        return Removal(start, end, "pass")
    if not begins_its_line(source, statement):
        return Removal(source.text.rindex(";", 0, start), end)
    if rest.lstrip().startswith(";"):
        rest = rest.lstrip()[1:]
        return Removal(start, source.line_end(last) - len(rest.lstrip(" \t")))
    if rest.strip():
        return Removal(start, end + len(rest) - len(rest.lstrip()))
    return Removal(source.line_starts[first - 1], source.line_end(last))


def _spacing(source: SourceText, first: int, last: int) -> Iterator[Removal]:
    """Blank lines on one side of an import that stood alone between blank lines."""
    count = len(source.line_starts)
    above = first
    while above > 1 and not source.line(above - 1).strip():
        above -= 1
    below = last
    while below < count and not source.line(below + 1).strip():
        below += 1
    if below > last and 1 < above < first:
        yield Removal(source.line_starts[above - 1], source.line_starts[first - 1], spacing=True)
    elif below > last and above == 1:
        yield Removal(source.line_end(last), source.line_end(below), spacing=True)
