"""Keep imports in isort's order where they were in it: what moves or is new goes to its place, or into a statement."""

from __future__ import annotations

from collections.abc import Sequence

from mmrewrite.codemod.layout import hanging_unit
from mmrewrite.engine.edits import apply_edits
from mmrewrite.project.facts import Facts
from mmrewrite.results import Edit
from mmrewrite.source.import_order import ImportLines, arranged, import_groups, joined
from mmrewrite.source.spans import kept_program
from mmrewrite.source.text import SourceText


def with_sorted_imports(facts: Facts, edits: Sequence[Edit], width: int) -> tuple[Edit, ...]:
    """The edits. Those in a sorted group of imports become one that keeps it sorted."""
    source, edits = facts.source, tuple(edits)
    old = list(import_groups(facts.tree, source))
    if not any(_touches(edit, group.start, group.end) for edit in edits for group in old):
        return edits
    text = apply_edits(source.text, edits)
    new = SourceText(text, source.encoding, has_bom=False)
    try:
        groups = list(import_groups(kept_program(text), new))
    except SyntaxError:
        # Then the comparison of the trees fails.
        return edits
    unit, newline = hanging_unit(facts), source.newline
    for group in reversed(groups):
        inside, start, end = _edits_of(edits, group)
        if not inside or any(edit.end > end or edit.start < start for edit in inside):
            continue
        was = [each for each in old if each.start < end and start < each.end]
        if not was:
            continue
        if all(arranged(each.text, width, unit, newline) == each.text for each in was):
            made = arranged(group.text, width, unit, newline)
        else:
            made = joined(group.text, "".join(each.text for each in was), width, unit, newline)
        if made is None or made == group.text:
            continue
        rest = [edit for edit in edits if edit not in inside]
        codemods = dict.fromkeys(name for edit in inside for name in edit.codemods)
        hints = dict.fromkeys(hint for edit in inside for hint in edit.hints)
        around = apply_edits(source.text, inside, start, end)
        whole = Edit(start, end, around.replace(group.text, made, 1), tuple(codemods), tuple(hints))
        edits = tuple(sorted([*rest, whole], key=lambda edit: (edit.start, edit.end)))
    return edits


def _touches(edit: Edit, start: int, end: int) -> bool:
    return edit.start <= end and start <= edit.end


def _edits_of(edits: Sequence[Edit], group: ImportLines) -> tuple[list[Edit], int, int]:
    """The edits that make a group of the new text, and the part of the old text that it was made of."""
    inside, shift, start, end = list[Edit](), 0, None, 0
    for edit in edits:
        begin, stop = edit.start + shift, edit.start + shift + len(edit.text)
        if stop >= group.start and begin <= group.end:
            start = min(edit.start, group.start - shift) if start is None else start
            inside.append(edit)
        shift += len(edit.text) - (edit.end - edit.start)
        if begin <= group.end:
            end = max(edit.end, group.end - shift)
    return inside, start or 0, end
