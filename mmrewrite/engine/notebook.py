"""Jupyter notebooks: their code cells as one module, and the edits put back into the same JSON.

Only the text of cells that change is written. `json.dump` or `nbformat` would print the whole file anew, with other
spaces, escapes and number formats. Lines for IPython alone (`%magic`, `!command`, `?`) are masked by text of the same
length, so that all offsets stay; of magics such as `%time` that run Python, the magic alone.
See https://nbformat.readthedocs.io/en/latest/format_description.html for the format.
"""

from __future__ import annotations

import ast
import bisect
import difflib
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mmrewrite.directives.comments import CARRIER_OR_NEAR, INSIDE_COMMENT
from mmrewrite.engine.edits import apply_edits
from mmrewrite.engine.outcome import unchanged
from mmrewrite.project.facts import SourceFile
from mmrewrite.results import CompatUse, Edit, HintError, HintReference, LeftAlone, Refusal, Rewrite
from mmrewrite.source.failure import failure_of
from mmrewrite.source.text import SourceText, TooDeep, parse_quietly

SUFFIX = ".ipynb"

# Cell magics after which the rest of the cell is Python as usual.
_PYTHON_CELLS = frozenset(("time", "timeit", "capture", "prun", "memit", "mprun"))

_PYTHON = "python"
_DECODER = json.JSONDecoder()
_SCHEMA = Path(__file__).with_name("notebook.schema.json")
_SPACE = re.compile(r"[ \t\r\n]*")
_LINE_MAGIC = re.compile(r"^(\s*)([%!?][^\n]*|[\w.]+\?{1,2}\s*)$")
_LINE = re.compile(r"\bline (\d+)\b")
_CAPTURE = re.compile(r"^(\s*+[\w.,][\w., ]*+=\s*+)([%!][^\n]*)$")
_MOST_LINES_ASKED = 100
# Lines before times lines after an edit, up to which those that stay are looked for.
_MOST_COMPARED = 1_000_000
# Magics that run the Python behind them, with their options.
_RUNS_PYTHON = re.compile(r"%%?(?:time|timeit|prun|memit)(?:[ \t]+-\w+(?:[ \t]*\d+)?)*[ \t]+(?=\S)")


class NotANotebook(ValueError):
    """The file cannot be read as a notebook of format 4."""


@dataclass(frozen=True)
class _Text:
    """A string of the JSON text, with the offsets of its quotes."""

    value: str
    start: int
    end: int


@dataclass(frozen=True)
class _Cell:
    """The source of one code cell: a list of lines, or one string. `offset` is its place in the module."""

    number: int
    lines: tuple[_Text, ...]
    start: int
    end: int
    is_list: bool
    offset: int = 0

    @cached_property
    def text(self) -> str:
        return "".join(line.value for line in self.lines)

    def counted(self) -> Iterator[tuple[_Text, range]]:
        """Each string with the lines of the cell that it holds, mostly one."""
        first = 1
        for text in self.lines:
            last = first + text.value.removesuffix("\n").count("\n")
            yield text, range(first, last + 1)
            first += text.value.count("\n")


@dataclass(frozen=True, eq=False)
class Notebook:
    """One notebook file, with the positions of its code cells in it."""

    file: SourceFile
    json: str
    cells: tuple[_Cell, ...]

    @classmethod
    def read(cls, file: SourceFile) -> Notebook:
        """Find the code cells.

        Raises:
            NotANotebook: If the file is no JSON, or not a notebook of format 4.
        """
        try:
            text = file.data.decode("utf-8")
            data = json.loads(text)
            _check(data)
        except NotANotebook:
            raise
        except RecursionError:
            raise NotANotebook("not a notebook that Python can read: its JSON is nested too deeply") from None
        except (UnicodeError, ValueError) as error:
            raise NotANotebook(f"not a notebook: {error}") from None
        language = _language(data["metadata"]) if "metadata" in data else _PYTHON
        if language != _PYTHON:
            return cls(file, text, ())
        cells: list[_Cell] = []
        offset = 0
        for number, (start, _) in enumerate(_items(text, _members(text, _skip(text, 0))["cells"][0]), start=1):
            members = _members(text, start)
            if _DECODER.raw_decode(text, members["cell_type"][0])[0] != "code":
                continue
            begin, end = members["source"]
            is_list = text[begin] == "["
            places = _items(text, begin) if is_list else [(begin, end)]
            lines = tuple(_Text(_DECODER.raw_decode(text, first)[0], first, last) for first, last in places)
            found = _Cell(number, lines, begin, end, is_list, offset)
            if any("\ud800" <= letter <= "\udfff" for line in lines for letter in line.value):
                raise NotANotebook(f"cell {number} has half of a character, which no source of Python has; correct it")
            cells.append(found)
            offset += len(found.text) + 1
        return cls(file, text, tuple(cells))

    @cached_property
    def module(self) -> SourceFile:
        """The code cells, one below the other, as a module that none can import; lines for IPython are masked."""
        text = "\n".join(masked(cell.text) for cell in self.cells)
        package, dot, name = self.file.module.removesuffix(SUFFIX).rpartition(".")
        return replace(self.file, data=text.encode(), module=f"{package}{dot}<{name}>")

    def code_on(self, line: int) -> tuple[int, range] | None:
        """The cell, and the lines in it, that a line of the file holds; None if it holds no code of a cell."""
        for cell in self.cells:
            for text, lines in cell.counted():
                if self._line_of(text.start) == line:
                    return cell.number, lines
        return None

    def line_with(self, number: int, line: int) -> int | None:
        """The line of the file that holds a line of a cell; None if there is no such line of code."""
        for cell in self.cells:
            for text, lines in cell.counted():
                if cell.number == number and line in lines:
                    return self._line_of(text.start)
        return None

    def _line_of(self, offset: int) -> int:
        return bisect.bisect_left(self._json_lines, offset) + 1

    def hidden_lines(self) -> Iterator[tuple[int, int, str, bool]]:
        """Cell, line and text of each line that is masked, and whether a cell magic says what the cell is."""
        for cell in self.cells:
            is_magic = cell.text.startswith("%%")
            for number, line in _hidden(cell.text):
                yield cell.number, number, line, is_magic

    def hidden_text(self) -> Iterator[Mapping[int, str]]:
        """For each cell, its lines that are masked, by their lines in the module."""
        start = 0
        for cell in self.cells:
            hidden = {start + number: line for number, line in _hidden(cell.text)}
            if hidden:
                yield hidden
            start += cell.text.count("\n") + 1

    def back(self, result: Rewrite) -> Rewrite:
        """The result of the module as the result of the notebook: edits in its JSON, positions in its cells."""
        try:
            return self._back(result)
        except Exception as error:
            return unchanged(self.file, failure_of(error))

    def _back(self, result: Rewrite) -> Rewrite:
        edits = tuple(self._cell_edits(result.edits))
        data = apply_edits(self.json, edits).encode()
        return Rewrite(
            result.path,
            self.file.data,
            data,
            edits,
            tuple(self._placed(item) for item in result.refusals),
            tuple(self._placed(item) for item in result.errors),
            tuple(self._placed(item) for item in result.left),
            None if result.failure is None else self._in_cells(result.failure),
            tuple(self._placed(item) for item in result.compat),
        )

    def _cell_edits(self, edits: Sequence[Edit]) -> Iterator[Edit]:
        by_cell: dict[int, list[Edit]] = {}
        for edit in edits:
            by_cell.setdefault(self._cell_of(edit), []).append(edit)
        for index in sorted(by_cell):
            cell = self.cells[index]
            new = self._edited(cell, by_cell[index])
            if not cell.is_list or not cell.lines or not new:
                yield self._with_reasons(cell.start, cell.end, self._as_json(cell, new), by_cell[index])
            else:
                yield from self._line_edits(cell, new, by_cell[index])

    def _line_edits(self, cell: _Cell, new: str, edits: Sequence[Edit]) -> Iterator[Edit]:
        """The edits of a cell, `edits`, that make it `new`, in its list of lines: those that stay are left alone."""
        starts = list(itertools.accumulate((len(line.value) for line in cell.lines), initial=cell.offset))
        between, count = self._between(cell), len(cell.lines)
        raw = self._raw(cell)
        # So that what is inserted or deleted are whole lines of the file, where each line has one of its own.
        lead = between[between.rfind("\n") + 1 :] if "\n" in between else ""
        for i1, i2, lines, near in _changed_lines([line.value for line in cell.lines], starts, new, edits):
            because = [edit for edit in near if edit.start <= starts[i2] and starts[i1] <= edit.end] or near
            written = self._written(raw, lines)
            if i1 < i2 and lines:
                start, end, text = cell.lines[i1].start, cell.lines[i2 - 1].end, between.join(written)
            elif i2 < count:
                # The separator behind each line comes and goes with it.
                shifts = all(self.json.endswith(lead, 0, cell.lines[index].start) for index in (i1, i2))
                shift = len(lead) if shifts else 0
                start, end = cell.lines[i1].start - shift, cell.lines[i2].start - shift
                text = "".join(lead[:shift] + line + between.removesuffix(lead[:shift]) for line in written)
            else:
                start, end = cell.lines[i1 - 1].end, cell.lines[i2 - 1].end
                text = "".join(between + line for line in written)
            yield self._with_reasons(start, end, text, because)

    def _with_reasons(self, start: int, end: int, text: str, because: Sequence[Edit]) -> Edit:
        names = tuple(dict.fromkeys(name for edit in because for name in edit.codemods))
        hints = tuple(dict.fromkeys(self._reference(hint) for edit in because for hint in edit.hints))
        return Edit(start, end, text, names, hints)

    def _cell_of(self, edit: Edit) -> int:
        offsets = self._offsets
        index = bisect.bisect_right(offsets, edit.start) - 1
        is_import = edit.text.lstrip().startswith(("import ", "from "))
        at_start = edit.start == edit.end == offsets[index] and index > 0
        if at_start and is_import and _ends_with_import(self.cells[index - 1].text):
            # A new import below the last import of a cell belongs to that cell.
            return index - 1
        return index

    def _edited(self, cell: _Cell, edits: Sequence[Edit]) -> str:
        text, position = "", 0
        for edit in edits:
            start = min(edit.start - cell.offset, len(cell.text))
            end = min(edit.end - cell.offset, len(cell.text))
            text += cell.text[position:start]
            if edit.start - cell.offset > len(cell.text) and not text.endswith("\n"):
                text += "\n"
            text += edit.text
            position = end
        text += cell.text[position:]
        return text if cell.text.endswith("\n") else text.rstrip("\n")

    def _as_json(self, cell: _Cell, text: str) -> str:
        """The whole source of a cell, in the form that it has."""
        written = self._written(self._raw(cell), text.splitlines(keepends=True) if cell.is_list else [text])
        if not cell.is_list:
            return written[0]
        if not cell.lines:
            return f"[{', '.join(written)}]"
        opening = self.json[cell.start : cell.lines[0].start]
        closing = self.json[cell.lines[-1].end : cell.end]
        return opening + self._between(cell).join(written) + closing

    def _raw(self, cell: _Cell) -> dict[str, str]:
        """The JSON strings of the lines of a cell."""
        return {line.value: self.json[line.start : line.end] for line in cell.lines}

    def _written(self, raw: Mapping[str, str], lines: Iterable[str]) -> list[str]:
        """Lines as JSON strings, with the escapes that the notebook has."""
        return [raw.get(line) or json.dumps(line, ensure_ascii=self._is_escaped) for line in lines]

    @cached_property
    def _is_escaped(self) -> bool:
        return self.json.isascii() and "\\u" in self.json

    @cached_property
    def _offsets(self) -> list[int]:
        """Where the cells begin in the module."""
        return [cell.offset for cell in self.cells]

    @cached_property
    def _source(self) -> SourceText:
        return SourceText(self.module.data.decode(), "utf-8", False)

    @cached_property
    def _json_lines(self) -> list[int]:
        """Where the lines of the file end."""
        return [match.start() for match in re.finditer("\n", self.json)]

    def _between(self, cell: _Cell) -> str:
        """What separates the lines of a cell."""
        first, *rest = cell.lines
        return self.json[first.end : rest[0].start] if rest else f",{self.json[cell.start + 1 : first.start]}"

    def _reference(self, hint: HintReference) -> HintReference:
        number, line = self._line(hint.line)
        return replace(hint, line=line, text=f"{hint.text} (cell {number})")

    def _line(self, line: int) -> tuple[int, int]:
        """The number of the cell that holds a line of the module, and the line in that cell."""
        index = max(0, bisect.bisect_right(self._offsets, self._source.line_starts[line - 1]) - 1)
        first, _ = self._source.position(self.cells[index].offset)
        return self.cells[index].number, line - first + 1

    def _placed(self, item: Any) -> Any:
        assert isinstance(item, Refusal | LeftAlone | HintError | CompatUse)
        number, line = self._line(item.line)
        path = f"{item.path}, cell {number}"
        if isinstance(item, HintError):
            return replace(item, path=path, line=line, message=self._in_cells(item.message))
        if isinstance(item, Refusal) and item.hint is not None:
            item = replace(item, hint=self._reference(item.hint))
        return replace(item, path=path, line=line, reason=self._in_cells(item.reason))

    def _in_cells(self, message: str) -> str:
        """A message with the lines that it names counted in their cells."""
        return _LINE.sub(lambda found: self._line_in_words(int(found[1])), message)

    def _line_in_words(self, line: int) -> str:
        """A line of the module, as messages name it."""
        if not 0 < line <= len(self._source.line_starts):
            return f"line {line}"
        number, line = self._line(line)
        return f"line {line} of cell {number}"


def read_notebooks(files: Iterable[SourceFile]) -> tuple[dict[str, Notebook], dict[str, Rewrite]]:
    """The notebooks among the files, and the results of those that cannot be read as one."""
    notebooks: dict[str, Notebook] = {}
    results: dict[str, Rewrite] = {}
    for file in files:
        if file.path.endswith(SUFFIX):
            try:
                notebooks[file.path] = Notebook.read(file)
            except NotANotebook as problem:
                results[file.path] = unchanged(file, str(problem))
            except Exception as error:
                results[file.path] = unchanged(file, failure_of(error))
    return notebooks, results


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    assert found is not None
    return found.end()


def _changed_lines(
    old: Sequence[str], starts: Sequence[int], new: str, edits: Sequence[Edit]
) -> Iterator[tuple[int, int, Sequence[str], Sequence[Edit]]]:
    """The lines of a cell that edits change: first and last, what they become, and the edits around there.

    Only lines with an edit are compared, so that long cells take no longer than they are.
    """
    groups: list[tuple[int, int, list[Edit]]] = []
    last = len(old) - 1
    for edit in edits:
        first, behind = (min(bisect.bisect_right(starts, each) - 1, last) for each in (edit.start, edit.end))
        if groups and first < groups[-1][1]:
            begin, end, before = groups.pop()
            groups.append((begin, max(end, behind + 1), [*before, edit]))
        else:
            groups.append((first, behind + 1, [edit]))
    shift = -starts[0]
    for begin, end, near in groups:
        start = starts[begin] + shift
        shift += sum(len(edit.text) - (edit.end - edit.start) for edit in near)
        lines = new[start : starts[end] + shift if end < len(old) else None].splitlines(keepends=True)
        if (end - begin) * len(lines) > _MOST_COMPARED:
            yield begin, end, lines, near
            continue
        matcher = difflib.SequenceMatcher(None, old[begin:end], lines, autojunk=False)
        for kind, i1, i2, j1, j2 in matcher.get_opcodes():
            if kind != "equal":
                yield begin + i1, begin + i2, lines[j1:j2], near


_Place = tuple[int, int]


def _members(text: str, position: int) -> dict[str, _Place]:
    """Where the values of a JSON object are, which begins at a position; the last one of a name counts, as for `json`.

    The text is known to be valid JSON. What is in a value is not looked at: it may be nested as deeply as it likes.
    """
    found: dict[str, _Place] = {}
    position = _skip(text, position + 1)
    while text[position] != "}":
        name, position = _DECODER.raw_decode(text, position)
        start = _skip(text, _skip(text, position) + 1)
        _, position = _DECODER.raw_decode(text, start)
        found[name] = start, position
        position = _behind_comma(text, position)
    return found


def _items(text: str, position: int) -> Iterator[_Place]:
    """Where the items of a JSON list are, which begins at a position."""
    position = _skip(text, position + 1)
    while text[position] != "]":
        _, end = _DECODER.raw_decode(text, position)
        yield position, end
        position = _behind_comma(text, end)


def _behind_comma(text: str, position: int) -> int:
    position = _skip(text, position)
    return _skip(text, position + 1) if text[position] == "," else position


def _check(data: object) -> None:
    """Hold a document against the schema of notebooks.

    Raises:
        NotANotebook: If it is none, or of an older format.
    """
    # Only runs that read a notebook pay for this.
    import fastjsonschema

    try:
        _schema()(data)
    except fastjsonschema.JsonSchemaValueException as error:
        raise NotANotebook(
            f"not a notebook of format 4 ({error.message}); save it with a Jupyter of today first"
        ) from None


@functools.cache
def _schema() -> Callable[[object], object]:
    import fastjsonschema

    check: Callable[[object], object] = fastjsonschema.compile(
        json.loads(_SCHEMA.read_text(encoding="utf-8")), formats={}, use_default=False
    )
    return check


def _language(metadata: Mapping[str, Any]) -> str:
    """The language of the code cells, in lower case."""
    kernel, info = metadata.get("kernelspec", {}), metadata.get("language_info", {})
    return str(kernel.get("language") or info.get("name") or _PYTHON).lower()


def masked(text: str) -> str:
    """The source of a cell, of the same length, with everything masked that is not Python."""
    lines = text.split("\n")
    first = lines[0]
    if first.startswith("%%") and first[2:].split(" ")[0].strip() not in _PYTHON_CELLS:
        return "\n".join(map(_comment, lines))
    shown = [_masked_line(line) for line in lines]
    if _is_python("\n".join(shown)):
        return "\n".join(shown)
    # A line such as `% width` or `!= height` may go on with an expression. Each answer takes as long as the cell is.
    hidden = [index for index, line in enumerate(lines) if shown[index] != line]
    for index in hidden[:_MOST_LINES_ASKED]:
        if not _is_complete("\n".join(shown[:index])):
            shown[index] = lines[index]
    return "\n".join(shown if _is_python("\n".join(shown)) else map(_comment, lines))


def _is_python(text: str) -> bool:
    try:
        parse_quietly(text)
    except (SyntaxError, ValueError, TooDeep):
        return False
    return True


def _is_complete(text: str) -> bool:
    """Whether lines end no statement in its middle: in brackets, in a text of several lines or behind a backslash."""
    try:
        parse_quietly(f"{text}\n")
    except SyntaxError as error:
        said = str(error)
        return not ("never closed" in said or "unterminated" in said or text.rstrip(" ").endswith("\\"))
    except (ValueError, TooDeep):
        return True
    return True


def _hidden(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a cell that are not seen as code, with their numbers."""
    for number, (line, shown) in enumerate(zip(text.split("\n"), masked(text).split("\n"), strict=True), start=1):
        start = next((index for index, pair in enumerate(zip(line, shown, strict=True)) if pair[0] != pair[1]), None)
        if start is not None and not shown.startswith(_STATEMENT, start):
            yield number, line


# An expression and the end of a statement, in place of a magic before Python.
_STATEMENT = "0;"


def _masked_line(line: str) -> str:
    found = _CAPTURE.match(line) or _LINE_MAGIC.match(line)
    if found is None:
        return line
    before, magic = found.groups()
    runs = _RUNS_PYTHON.match(magic)
    if runs is not None and _is_python(magic[runs.end() :]):
        return before + _STATEMENT.ljust(runs.end()) + magic[runs.end() :]
    # An expression, so that a block of nothing but magics stays a block.
    return before + ("..." + _comment(magic[3:]) if len(magic) >= 3 else _comment(magic))


def _comment(line: str) -> str:
    comment = "#" + line[1:] if line else line
    # A comment in another language must not be read as a hint.
    return "#" * len(line) if CARRIER_OR_NEAR.search(comment) or INSIDE_COMMENT.search(comment) else comment


def _ends_with_import(text: str) -> bool:
    try:
        body = parse_quietly(masked(text)).body
    except (SyntaxError, ValueError, TooDeep):
        return False
    return bool(body) and isinstance(body[-1], ast.Import | ast.ImportFrom)
