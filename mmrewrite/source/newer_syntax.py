"""Parse modules whose syntax is newer than the Python that runs the tool.

LibCST brings its own parser and knows newer syntax. Each piece of it is replaced by older syntax of the same length,
so that `ast` can parse the module and every position in its tree is one of the source. The tree then gets what that
syntax could not say: type parameters, `type` statements and the text of strings.
"""

from __future__ import annotations

import ast
import bisect
import copy
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mmrewrite.source.libcst_parser import parse_module
from mmrewrite.source.spans import with_sign_lines
from mmrewrite.source.text import SourceText, TooDeep, parse_quietly
from mmrewrite.source.walk import walk

if TYPE_CHECKING:
    import libcst as cst

    Span = Callable[[cst.CSTNode], tuple[int, int]]


class TypeParameter(ast.AST):
    """A type parameter (PEP 695), with its default (PEP 696): `ast.TypeVar` and its like, on every Python."""

    _fields: ClassVar[tuple[str, ...]] = ("name", "bound", "default_value")
    _attributes: ClassVar[tuple[str, ...]] = ("lineno", "col_offset", "end_lineno", "end_col_offset")
    name: str
    bound: ast.expr | None
    default_value: ast.expr | None
    lineno: int
    col_offset: int
    end_lineno: int
    end_col_offset: int


class TypeAlias(ast.stmt):
    """A `type` statement (PEP 695): `ast.TypeAlias`, on every Python."""

    _fields: ClassVar[tuple[str, ...]] = ("name", "type_params", "value")
    name: ast.expr
    value: ast.expr


_Node = TypeVar("_Node", ast.Constant, TypeParameter)

# Each ends where newer syntax may begin: `except` without brackets, a `type` statement, a generic definition, and, with
# its quote, a string with expressions in it.
_CAUGHT = re.compile(r"^[ \t\f]*+(?=except\b[^:\n,]*+(?:(?<=\\)\n[^:\n,]*+){0,9},)", re.MULTILINE)
_ALIAS = re.compile(r"(?:^|[;:])[ \t\f]*+(?=type[\s\\]++\w++[\s\\]*+[\[=])", re.MULTILINE)
_GENERIC = re.compile(r"\b(?=(?:def|class)[\s\\]+\w+[\s\\]*\[)")
_FORMATTED = re.compile(r"['\"](?:(?<=\b[ft]['\"])|(?<=\b[ft]r['\"])|(?<=\br[ft]['\"]))", re.IGNORECASE)
# Type parameters are in the brackets of the parameters, or of the bases, if there are any behind them.
_OPENED = re.compile(r"[\s\\]*+\(")
# Python reports these errors, and a plain "invalid syntax", where it comes upon them.
_WHERE_FOUND = ("invalid character", "invalid decimal literal", "unterminated string literal", "unexpected indent")


def parse_any(text: str) -> ast.Module:
    """`ast.parse`, extended to syntax that only LibCST can parse.

    `except A, B:` (PEP 758) is read as `except A| B:`. Generic functions and classes have `type_params`, as in
    Python 3.12, and `type X = int` is a `TypeAlias`. An f-string that this Python cannot parse (PEP 701) and any
    t-string (PEP 750) become an f-string of the expressions in it and of the text between them, as it is written.

    Raises:
        SyntaxError: If neither can parse it; the error of this Python.
    """
    try:
        return with_sign_lines(parse_quietly(text), text)
    except SyntaxError as error:
        older = _as_older(text)
        if older is None:
            raise
        try:
            tree = parse_quietly(older.text)
        except SyntaxError:
            raise error from None
        source = SourceText(text, "utf-8", False)
        _restore_columns(tree, SourceText(older.text, "utf-8", False), source)
        if not _restore_strings(tree, source, older.strings):
            raise
        _restore_types(tree, source, older)
        return with_sign_lines(tree, text)


def tokens(program: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a program, in which a string that this Python cannot read is a pair of brackets."""
    try:
        parse_quietly(program)
    except SyntaxError:
        older = _as_older(program)
        program = program if older is None else older.text
    return tokenize.generate_tokens(io.StringIO(program, newline="").readline)


def without_newer_nodes(tree: ast.Module) -> ast.Module:
    """The tree as this Python can compile it: `type` statements are assignments, and type parameters are left out."""
    if not any(isinstance(node, TypeAlias | TypeParameter) for node in walk(tree)):
        return tree
    older = copy.deepcopy(tree)
    nodes = list(ast.walk(older))
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            _set_parameters(node, [])
        for block in (value for _, value in ast.iter_fields(node) if isinstance(value, list)):
            block[:] = [_as_assignment(item) if isinstance(item, TypeAlias) else item for item in block]
    return older


def _as_assignment(alias: TypeAlias) -> ast.Assign:
    return ast.copy_location(ast.Assign([alias.name], alias.value), alias)


def newer_comments(text: str) -> list[tuple[int, int]] | None:
    """Offsets of the comments between and in adjacent strings; None if this Python can parse them itself."""
    if _is_readable(text):
        return None
    import libcst as cst

    module = parse_module(f"(\n{text}\n)")
    span = _spans(module, module.code)
    return sorted((start - 2, end - 2) for start, end in (span(node) for node in _nodes(module, cst.Comment)))


@dataclass(frozen=True)
class _ParameterPlaces:
    """A type parameter: its name, and the offsets of that, of its bound and of its default."""

    name: str
    place: tuple[int, int]
    bound: tuple[int, int] | None
    default: tuple[int, int] | None


@dataclass(frozen=True)
class _Older:
    """The text in older syntax, and what it does not say.

    Attributes:
        text: The text.
        strings: The offsets of strings that became tuples of their expressions, each with those of the text in it.
        parameters: The type parameters of functions and classes, by the offset of the name of these.
        aliases: Those of `type` statements, by the offset of the statement.
    """

    text: str = ""
    strings: dict[tuple[int, int], tuple[tuple[int, int], ...]] = field(default_factory=dict)
    parameters: dict[int, tuple[_ParameterPlaces, ...]] = field(default_factory=dict)
    aliases: dict[int, tuple[_ParameterPlaces, ...]] = field(default_factory=dict)


def _newer_forms(text: str) -> Iterator[re.Match[str]]:
    """Where newer syntax may begin first, for each of its forms."""
    found = (
        _CAUGHT.search(text) if "except" in text else None,
        _ALIAS.search(text) if "type" in text else None,
        _GENERIC.search(text) if "[" in text else None,
        _FORMATTED.search(text),
    )
    return (match for match in found if match is not None)


def _is_wrong_before(text: str) -> bool:
    """Whether a text is wrong on a line before any that may have newer syntax, as prose is that quotes some.

    Strings that are read as code are prose for the most part, and LibCST takes longer to say so.
    """
    first = min((match.end() for match in _newer_forms(text)), default=0)
    before = text[: text.rfind("\n", 0, first) + 1]
    try:
        # What lacks a statement after it is wrong on that one's line.
        parse_quietly(f"{before}pass\n")
    except SyntaxError as error:
        is_found = error.msg == "invalid syntax" or error.msg.startswith(_WHERE_FOUND)
        return is_found and error.lineno is not None and error.lineno <= before.count("\n")
    return False


def _as_older(text: str) -> _Older | None:
    if next(_newer_forms(text), None) is None or _is_wrong_before(text):
        return None
    import libcst as cst

    try:
        module = parse_module(text)
    except (cst.ParserSyntaxError, cst.CSTLogicError, cst.CSTValidationError, TooDeep):
        return None
    if module.code != text:
        # Then LibCST's positions are not those of the text.
        return None
    found = _Older()
    older = list(text)
    for start, end, new in _replacements(module, text, _spans(module, text), found):
        older[start:end] = new
    return replace(found, text="".join(older))


def _spans(module: cst.Module, text: str) -> Span:
    """A function from a node of the module to its offsets.

    LibCST counts bytes of UTF-8, offsets count characters.
    """
    from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

    places = MetadataWrapper(module, unsafe_skip_copy=True).resolve(ByteSpanPositionProvider)
    data = text.encode()

    def span(node: cst.CSTNode) -> tuple[int, int]:
        place = places[node]
        start = len(data[: place.start].decode())
        return start, start + len(data[place.start : place.start + place.length].decode())

    return span


def _replacements(node: cst.CSTNode, text: str, span: Span, older: _Older) -> Iterator[tuple[int, int, str]]:
    """(start, end, older text) for newer syntax in a tree, outer nodes first; what that leaves out goes to `older`."""
    import libcst as cst

    match node:
        case cst.ExceptHandler() | cst.ExceptStarHandler() if isinstance(node.type, cst.Tuple) and not node.type.lpar:
            for element in node.type.elements:
                if isinstance(element.comma, cst.Comma):
                    start, _ = span(element.comma)
                    yield start, start + 1, "|"
        case cst.FunctionDef() | cst.ClassDef() if node.type_parameters is not None:
            older.parameters[span(node.name)[0]] = tuple(_parameters(node.type_parameters, span))
        case cst.TypeParameters():
            start, end = span(node)
            opened = _OPENED.match(text, end)
            if opened is not None:
                yield start, opened.end(), f"({_blank(text[start + 1 : opened.end()])}"
            else:
                yield start, end, f"({_blank(text[start + 1 : end - 1])})"
            return
        case cst.TypeAlias():
            start, _ = span(node)
            first, last = span(node.name)
            older.aliases[start] = tuple(_parameters(node.type_parameters, span))
            if node.type_parameters is None:
                yield start, last, text[first:last] + re.sub(r"[^\\\r\n]", " ", text[start + last - first : last])
            else:
                end = span(node.type_parameters)[1]
                yield start, first, f"({_blank(text[start + 1 : first])}"
                yield last, end, f"{_blank(text[last : end - 1])})"
            yield from _replacements(node.value, text, span, older)
            return
        case cst.FormattedString() | cst.TemplatedString() | cst.ConcatenatedString():
            start, end = span(node)
            if not _is_readable(text[start:end]):
                older.strings[start, end] = tuple(_texts(node, span))
                yield start, end, _tuple_of_expressions(node, text, span)
                for each in _fields(node):
                    yield from _replacements(each.expression, text, span, older)
                return
    for child in node.children:
        yield from _replacements(child, text, span, older)


def _parameters(node: cst.TypeParameters | None, span: Span) -> Iterator[_ParameterPlaces]:
    import libcst as cst

    for each in node.params if node is not None else ():
        bound = each.param.bound if isinstance(each.param, cst.TypeVar) else None
        yield _ParameterPlaces(
            each.param.name.value,
            span(each.param.name),
            _whole(bound, span) if bound is not None else None,
            _whole(each.default, span) if each.default is not None else None,
        )


def _whole(expression: cst.BaseExpression, span: Span) -> tuple[int, int]:
    """The offsets of an expression with the brackets around it."""
    first = span(expression.lpar[0])[0] if expression.lpar else span(expression)[0]
    return first, span(expression.rpar[-1])[1] if expression.rpar else span(expression)[1]


def _blank(text: str) -> str:
    """As many spaces, on the same lines."""
    return re.sub(r"[^\r\n]", " ", text)


def _is_readable(text: str) -> bool:
    try:
        parse_quietly(f"(\n{text}\n)")
    except (SyntaxError, ValueError):
        return False
    return True


def _tuple_of_expressions(node: cst.CSTNode, text: str, span: Span) -> str:
    """A tuple of a string's expressions, each at its place; all other characters become brackets, commas and spaces."""
    import libcst as cst

    start, end = span(node)
    plain = list(_blank(text[start:end]))
    plain[0], plain[-1] = "(", ")"
    fields = list(_fields(node))
    for position, each in enumerate(fields):
        opening, closing = span(each)
        expression = each.expression
        first, last = _whole(expression, span)
        if isinstance(expression, cst.Tuple) and not expression.lpar:
            comma = expression.elements[-1].comma
            last = span(comma)[0] if isinstance(comma, cst.Comma) else last
        plain[first - start : last - start] = text[first:last]
        if position:
            plain[opening - start] = ","
        if position == len(fields) - 1:
            plain[closing - 1 - start] = ","
    return "".join(plain)


def _fields(node: cst.CSTNode) -> Iterator[cst.FormattedStringExpression | cst.TemplatedStringExpression]:
    """The replacement fields of a string in the order of the text, with those in format specifications."""
    import libcst as cst

    match node:
        case cst.ConcatenatedString():
            yield from _fields(node.left)
            yield from _fields(node.right)
        case cst.FormattedString() | cst.TemplatedString():
            for part in node.parts:
                yield from _fields(part)
        case cst.FormattedStringExpression() | cst.TemplatedStringExpression():
            yield node
            for part in node.format_spec or ():
                yield from _fields(part)


def _texts(node: cst.CSTNode, span: Span) -> Iterator[tuple[int, int]]:
    """The offsets of the text in a string, in its order, with that which `{x=}` shows."""
    import libcst as cst

    match node:
        case cst.ConcatenatedString():
            yield from _texts(node.left, span)
            yield from _texts(node.right, span)
        case cst.SimpleString() | cst.FormattedStringText() | cst.TemplatedStringText():
            yield span(node)
        case cst.FormattedString() | cst.TemplatedString():
            for part in node.parts:
                yield from _texts(part, span)
        case cst.FormattedStringExpression() | cst.TemplatedStringExpression():
            if node.equal is not None:
                yield span(node)[0] + 1, span(node.equal)[1]
            for part in node.format_spec or ():
                yield from _texts(part, span)


def _nodes(node: cst.CSTNode, kind: type[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    if isinstance(node, kind):
        yield node
    for child in node.children:
        yield from _nodes(child, kind)


def _restore_columns(tree: ast.Module, older: SourceText, source: SourceText) -> None:
    """Count columns in bytes of the source again: a replaced character may have had more bytes than its replacement."""

    def restored(line: int, column: int) -> int:
        if source.line(line).isascii():
            return column
        characters = len(older.line(line).encode()[:column].decode())
        return len(source.line(line)[:characters].encode())

    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.arg | ast.alias | ast.excepthandler | ast.pattern):
            node.col_offset = restored(node.lineno, node.col_offset)
            if node.end_lineno is not None and node.end_col_offset is not None:
                node.end_col_offset = restored(node.end_lineno, node.end_col_offset)


def _restore_strings(
    tree: ast.Module, source: SourceText, strings: Mapping[tuple[int, int], Sequence[tuple[int, int]]]
) -> bool:
    """Turn the tuples at `strings` back into f-strings; whether all were found."""
    found = 0
    # Inner strings first, since an outer one is built from its parts.
    for node in reversed(list(ast.walk(tree))):
        for name, value in ast.iter_fields(node):
            items = value if isinstance(value, list) else [value]
            for index, item in enumerate(items):
                if not isinstance(item, ast.Tuple) or _offsets(source, item) not in strings:
                    continue
                found += 1
                values = [ast.copy_location(ast.FormattedValue(value=each, conversion=-1), each) for each in item.elts]
                texts = [_constant(source, place) for place in strings[_offsets(source, item)]]
                parts = sorted((*texts, *values), key=lambda part: (part.lineno, part.col_offset))
                text = ast.copy_location(ast.JoinedStr(values=list[ast.expr](parts)), item)
                if isinstance(value, list):
                    value[index] = text
                else:
                    setattr(node, name, text)
    return found == len(strings)


def _constant(source: SourceText, place: tuple[int, int]) -> ast.Constant:
    return _placed(ast.Constant(source.text[slice(*place)]), source, place)


def _restore_types(tree: ast.Module, source: SourceText, older: _Older) -> None:
    """Give functions and classes their type parameters, and put `type` statements in the places of assignments."""
    nodes = list(ast.walk(tree))
    generic = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    by_offset = sorted((source.offset(node.lineno, node.col_offset), index) for index, node in enumerate(generic))
    for place, parameters in older.parameters.items():
        # Nothing else is defined between the first word of a definition and its name.
        _, index = by_offset[bisect.bisect(by_offset, (place,)) - 1]
        _set_parameters(generic[index], [_type_parameter(source, each) for each in parameters])
    for node in nodes if older.aliases else ():
        for block in (value for _, value in ast.iter_fields(node) if isinstance(value, list)):
            for index, item in enumerate(block):
                begin = source.offset(item.lineno, item.col_offset) if isinstance(item, ast.Assign) else None
                if begin in older.aliases:
                    alias = ast.copy_location(TypeAlias(), item)
                    alias.name, alias.value = item.targets[0], item.value
                    _set_parameters(alias, [_type_parameter(source, each) for each in older.aliases[begin]])
                    block[index] = alias


def _set_parameters(node: Any, parameters: list[TypeParameter]) -> None:
    # The nodes of Python 3.11 declare no such attribute.
    node.type_params = parameters


def _type_parameter(source: SourceText, parameter: _ParameterPlaces) -> TypeParameter:
    node = TypeParameter()
    node.name = parameter.name
    node.bound = _expression(source, parameter.bound)
    node.default_value = _expression(source, parameter.default)
    return _placed(node, source, parameter.place)


def _expression(source: SourceText, place: tuple[int, int] | None) -> ast.expr | None:
    """The expression at some offsets, parsed by itself."""
    if place is None:
        return None
    (statement,) = parse_any(f"(\n{source.text[slice(*place)]}\n)").body
    assert isinstance(statement, ast.Expr)
    line, column = source.position(place[0])
    first = len(source.line(line)[: column - 1].encode())
    for node in ast.walk(statement.value):
        if isinstance(node, ast.expr | ast.arg | ast.keyword):
            end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
            node.col_offset += first if node.lineno == 2 else 0
            node.end_col_offset = end_column + (first if end_line == 2 else 0)
            node.lineno += line - 2
            node.end_lineno = end_line + line - 2
    return statement.value


def _placed(node: _Node, source: SourceText, place: tuple[int, int]) -> _Node:
    """A new node, at some offsets."""
    (line, column), (end_line, end_column) = (source.position(offset) for offset in place)
    node.lineno, node.col_offset = line, len(source.line(line)[: column - 1].encode())
    node.end_lineno, node.end_col_offset = end_line, len(source.line(end_line)[: end_column - 1].encode())
    return node


def _offsets(source: SourceText, node: ast.expr) -> tuple[int, int]:
    return (
        source.offset(node.lineno, node.col_offset),
        source.offset(node.end_lineno or node.lineno, node.end_col_offset or 0),
    )
