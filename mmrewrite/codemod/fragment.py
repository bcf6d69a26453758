"""The smallest part of a module that LibCST has to parse: one simple statement, or the header of a compound one.

LibCST parses much more slowly than `ast`, so only the statements that change are parsed. A fragment keeps its original
tree, in which codemods look nodes up. One visit runs all codemods in order: each gets the original node, and what the
codemods before it made of that.
"""

from __future__ import annotations

import ast
import bisect
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Generic

import libcst as cst
from libcst._nodes.internal import CodegenState

from mmrewrite.codemod.layout import fit_statement, indentation, own_span, unwrap, wrap
from mmrewrite.results import HintReference
from mmrewrite.source.alignment import aligned
from mmrewrite.source.libcst_parser import parse_module
from mmrewrite.source.line_breaking import longest_line
from mmrewrite.source.text import SourceText, has_lines

# What means something else in another expression if it has no parentheses.
_OPERATORS = {
    cst.Await,
    cst.BinaryOperation,
    cst.BooleanOperation,
    cst.Comparison,
    cst.GeneratorExp,
    cst.IfExp,
    cst.Lambda,
    cst.NamedExpr,
    cst.Tuple,
    cst.UnaryOperation,
    cst.Yield,
}
_SPACE = frozenset((cst.SimpleWhitespace, cst.ParenthesizedWhitespace, cst.Comment))
# Fields with space alone, which no codemod has to do with, and one that is none.
_NO_CODE = ("whitespace", "leading_lines", "trailing_whitespace", "__slots__")
# Their spaces are part of a value, or of a list of targets.
_AS_WRITTEN = frozenset((cst.FormattedString, getattr(cst, "TemplatedString", cst.FormattedString), cst.Del))
# All of these, and what holds others of its kind.
_MATTERS = _SPACE | _AS_WRITTEN | {cst.BooleanOperation}

_ADVICE = "write the statement more plainly"


class NotReproduced(ValueError):
    """LibCST cannot read a statement, or would not print it as it was."""


@dataclass(frozen=True)
class Cut:
    """Characters of a comment, call or import that are replaced by `text` when its hints are consumed.

    With `spacing` they are blank lines, which stay if something is inserted at one of their ends.
    """

    start: int
    end: int
    text: str
    hints: tuple[HintReference, ...]
    codemods: tuple[str, ...]
    spacing: bool = False


@dataclass(eq=False)
class Fragment:
    """One statement's own text in a file, and the codemods that will transform it.

    `code` is its text after the cuts inside, as a module that Python can parse: with `is_inner`, for several lines with
    an `indent`, in the block of an `if`. `longest` is the length of its longest line, which it may keep after the
    rewrite. `is_whole` says that this text is the statement as it stands: no cut is inside, and no block. Once it
    is rendered, `meant` is what it says then in plain code; `tree` and `codemods` are let go, as a file may have many.
    """

    statement: ast.stmt
    start: int
    end: int
    code: str
    tree: cst.Module
    indent: str
    is_inner: bool
    header: bool
    longest: int
    is_whole: bool
    codemods: list[cst.CSTTransformer] = field(default_factory=list)
    hints: list[HintReference] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    calls: list[cst.Call] | None = None
    meant: str | None = None

    @classmethod
    def parse(cls, source: SourceText, statement: ast.stmt, cuts: Sequence[Cut]) -> Fragment:
        """Parse the own text of `statement`, after the cuts inside it.

        Raises:
            NotReproduced: If LibCST cannot read it, or does not print exactly what it read.
        """
        start, end, header = own_span(source, statement)
        text = without_cuts(source, start, end, cuts)
        indent = indentation(source, statement)
        is_inner = bool(indent) and has_lines(text)
        code = wrap(text, indent if is_inner else "", source.newline, header)
        try:
            tree = parse_module(code)
        except cst.ParserSyntaxError:
            raise NotReproduced(f"LibCST cannot read this statement, though Python can; {_ADVICE}") from None
        if _code(tree) != code:
            if source.newline == "\r":
                reason = "LibCST reads no lines that end in a carriage return alone; save the file with line feeds"
            else:
                reason = f"LibCST does not print this statement as it stands; {_ADVICE}"
            raise NotReproduced(reason)
        longest = longest_line(wrap(text, indent, source.newline, header))
        is_whole = not header and text == source.text[start:end]
        return cls(statement, start, end, code, tree, indent, is_inner, header, longest, is_whole)

    @property
    def node(self) -> cst.BaseStatement:
        """The statement in the original tree."""
        return _inner(self.tree)

    def call(self, wanted: ast.Call) -> cst.Call:
        """The node of the original tree for the call that `ast` has as `wanted`.

        LibCST has positions only after a metadata pass over the tree, so calls are matched by their order in the text.

        Raises:
            NotReproduced: If the calls that LibCST sees are not those that `ast` has.
        """
        if self.header:
            raise NotReproduced("a call in the head of a block stays as it is")
        positions = [node for node in nodes_in_order(self.statement) if isinstance(node, ast.Call)]
        if self.calls is None:
            self.calls = list(_calls(self.node)) if len(positions) == 1 else _in_order(self.node, cst.Call)
        if len(self.calls) != len(positions):
            raise NotReproduced("the calls of this statement are not where `ast` has them")
        return self.calls[positions.index(wanted)]

    def lambda_node(self, wanted: ast.Lambda) -> cst.Lambda:
        """The node of the original tree for the `lambda` that `ast` has as `wanted`, found as calls are.

        Raises:
            NotReproduced: If the lambdas that LibCST sees are not those that `ast` has.
        """
        if self.header:
            raise NotReproduced("a `lambda` in the head of a block stays as it is")
        positions = [node for node in nodes_in_order(self.statement) if isinstance(node, ast.Lambda)]
        found = _in_order(self.node, cst.Lambda)
        if len(found) != len(positions):
            raise NotReproduced("the lambdas of this statement are not where `ast` has them")
        return found[positions.index(wanted)]

    def keep_only(self, hints: Collection[HintReference]) -> None:
        """Drop the codemods of other hints."""
        kept = [each for each in zip(self.codemods, self.hints, self.names, strict=True) if each[1] in hints]
        if len(kept) < len(self.codemods):
            self.codemods = [codemod for codemod, _, _ in kept]
            self.hints = [hint for _, hint, _ in kept]
            self.names = [name for _, _, name in kept]

    def render(self, runtime: str, width: int, unit: str, newline: str) -> str:
        """The text of the statement after every codemod, within `width` columns if its calls can be broken so."""
        try:
            changed = self.node.visit(_InTurn(self.codemods))
        except cst.CSTValidationError:
            # `return[f][0](x)` needs no space after `return`, but the name that replaces the list does.
            changed = self.node.visit(_InTurn(self.codemods, parenthesize=True))
        assert isinstance(changed, cst.BaseStatement)
        width = max(width, self.longest)
        code, self.meant = _two_codes(_replace(self.tree, changed), changed, "" if self.is_inner else self.indent)
        self.tree, self.calls, self.codemods = cst.Module([]), None, []
        # Its last line ends, and so does the `if` around it.
        if self.code.count("\n") > 1 + self.is_inner:
            code = aligned(self.code, code)
        text = unwrap(code, self.indent, self.header)
        return fit_statement(text, self.indent, runtime, width, unit, newline, header=self.header)


def cuts_inside(cuts: Sequence[Cut], start: int, end: int) -> Iterator[Cut]:
    """The cuts between two offsets; `cuts` are in the order of the text."""
    first = bisect.bisect_left(cuts, start, key=lambda cut: cut.start)
    started = itertools.takewhile(lambda cut: cut.start <= end, itertools.islice(cuts, first, None))
    return (cut for cut in started if cut.end <= end)


def without_cuts(source: SourceText, start: int, end: int, cuts: Sequence[Cut]) -> str:
    """The text from `start` to `end` after the cuts inside."""
    text, position = "", start
    for cut in cuts_inside(cuts, start, end):
        text += source.text[position : cut.start] + cut.text
        position = cut.end
    return text + source.text[position:end]


def nodes_in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a tree as LibCST visits them: in the order of their text, outer ones first."""
    yield node
    children = list(ast.iter_child_nodes(node))
    if not isinstance(node, ast.JoinedStr | ast.FormattedValue):
        # Before Python 3.12 (PEP 701) positions inside an f-string are wrong; its fields are in the order of the text.
        children.sort(key=_position)
    for child in children:
        yield from nodes_in_order(child)


def _position(node: ast.AST) -> tuple[int, int]:
    line, column = getattr(node, "lineno", None), getattr(node, "col_offset", None)
    if line is not None and column is not None:
        return line, column
    return min((_position(child) for child in ast.iter_child_nodes(node)), default=(0, 0))


def _inner(tree: cst.Module) -> cst.BaseStatement:
    statement = tree.body[0]
    if isinstance(statement, cst.If) and isinstance(statement.test, cst.Integer):
        block = statement.body.body[0]
        assert isinstance(block, cst.BaseStatement)
        return block
    assert isinstance(statement, cst.BaseStatement)
    return statement


def _replace(tree: cst.Module, statement: cst.BaseStatement) -> cst.Module:
    holder = tree.body[0]
    if isinstance(holder, cst.If) and isinstance(holder.test, cst.Integer):
        assert isinstance(holder.body, cst.IndentedBlock)
        statement = holder.with_changes(body=holder.body.with_changes(body=[statement]))
    return tree.with_changes(body=[statement])


def _calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    """The calls in a node in any order."""
    if isinstance(node, cst.Call):
        yield node
    for child in _children(node):
        yield from _calls(child)


def _children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes right below one in any order, but for space, for a tenth of what a visitor costs."""
    for name in _fields(type(node)):
        value = getattr(node, name)
        # `isinstance` takes long, since nodes have an abstract class.
        if hasattr(value, "_codegen"):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if hasattr(item, "_codegen"))


@functools.cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(name for name in kind.__dataclass_fields__ if not name.startswith(_NO_CODE))


def _in_order(node: cst.CSTNode, kind: type[cst.CSTNodeT]) -> list[cst.CSTNodeT]:
    """The nodes of a kind in the order of their text, outer ones first."""
    finder = _OfAKind(kind)
    node.visit(finder)
    return finder.found


class _OfAKind(cst.CSTVisitor, Generic[cst.CSTNodeT]):
    def __init__(self, kind: type[cst.CSTNodeT]) -> None:
        super().__init__()
        self.kind = kind
        self.found: list[cst.CSTNodeT] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, self.kind):
            self.found.append(node)
        return True


class _InTurn(cst.CSTTransformer):
    """All codemods leave a node before the visit goes on to the next. An expression keeps its parentheses.

    With `parenthesize`, an expression gets some if it begins or ends with a word and the old one did not: it may touch
    a keyword without a space between.
    """

    def __init__(self, codemods: Iterable[cst.CSTTransformer], *, parenthesize: bool = False) -> None:
        super().__init__()
        self.codemods = tuple(codemods)
        self.parenthesize = parenthesize
        self._leaving: dict[type[cst.CSTNode], list[cst.CSTTransformer]] = {}
        self._left: dict[int, bool] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        # LibCST makes all anew that is visited.
        return self._is_left(node)

    def _is_left(self, node: cst.CSTNode) -> bool:
        """Whether a codemod does anything with a node, or one in it."""
        # A node has a slow hash, and as long as its tree a number of its own.
        found = self._left.get(id(node))
        if found is None:
            found = bool(self._of_kind(type(node))) or any(map(self._is_left, _children(node)))
            self._left[id(node)] = found
        return found

    def _of_kind(self, kind: type[cst.CSTNode]) -> list[cst.CSTTransformer]:
        """The codemods that do anything with nodes of a kind: most have one kind."""
        if kind not in self._leaving:
            self._leaving[kind] = [codemod for codemod in self.codemods if _leaves(type(codemod), kind.__name__)]
        return self._leaving[kind]

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        pass

    def on_leave_attribute(self, original_node: cst.CSTNode, attribute: str) -> None:
        pass

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        for codemod in self._of_kind(type(original_node)):
            left = codemod.on_leave(original_node, updated_node)
            assert isinstance(left, cst.CSTNode)
            updated_node = left if left is updated_node else self._in_place_of(updated_node, left)
        return updated_node

    def _in_place_of(self, old: cst.CSTNode, new: cst.CSTNodeT) -> cst.CSTNodeT:
        if not isinstance(old, cst.BaseExpression) or not isinstance(new, cst.BaseExpression) or new.lpar:
            return new
        if old.lpar and not _holds(new, old):
            return new.with_changes(lpar=old.lpar, rpar=old.rpar)
        if self.parenthesize and _word_ends(new) != _word_ends(old):
            return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return new


@functools.cache
def _leaves(codemod: type[cst.CSTTransformer], kind: str) -> bool:
    """Whether a codemod does anything with nodes of a kind."""
    inherited = cst.CSTTransformer
    names = ("on_leave", f"leave_{kind}")
    return any(getattr(codemod, name, None) is not getattr(inherited, name, None) for name in names)


def _holds(node: cst.CSTNode, wanted: cst.CSTNode) -> bool:
    return node is wanted or any(_holds(child, wanted) for child in _children(node))


def _word_ends(node: cst.CSTNode) -> tuple[bool, bool]:
    """Whether the text of a node begins, and whether it ends, with a character of a word."""
    code = cst.Module([]).code_for_node(node)
    return f"a{code[0]}".isidentifier(), f"a{code[-1]}".isidentifier()


def _code(tree: cst.Module) -> str:
    """The code of a module, as LibCST prints it."""
    state = _CodeState(tree.default_indent, tree.default_newline)
    tree._codegen(state)
    return "".join(state.tokens)


def _two_codes(tree: cst.Module, statement: cst.BaseStatement, indent: str) -> tuple[str, str]:
    """The code of a module with an indentation before each statement, and the plain code of its only one.

    Plain code has a space wherever one may be, no line breaks, and parentheses around operations.
    """
    state = _TwoCodes(tree, statement, indent)
    tree._codegen(state)
    return "".join(state.tokens), "".join(state.plain)


_NOTHING = nullcontext()


class _CodeState(CodegenState):
    """Prints nodes, without LibCST's note of the place of each, which takes as long."""

    def record_syntactic_position(  # type: ignore[override]
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> AbstractContextManager[None]:
        """Do nothing around a node."""
        return _NOTHING


class _TwoCodes(_CodeState):
    """Prints a module, and its statement once more, without how the nodes are laid out."""

    def __init__(self, tree: cst.Module, statement: cst.BaseStatement, indent: str) -> None:
        super().__init__(tree.default_indent, tree.default_newline)
        self.increase_indent(indent)
        self.plain: list[str] = []
        self.around: list[cst.CSTNode] = []
        self.statement, self.levels = statement, 0
        # What is around the statement is not printed.
        self.muted, self.as_written = 1, 0

    def before_codegen(self, node: cst.CSTNode) -> None:
        """Write a space for all of a node that is one."""
        kind = type(node)
        if node is self.statement:
            self.muted, self.levels = 0, len(self.indent_tokens)
        elif kind not in _MATTERS:
            return
        elif kind in _AS_WRITTEN:
            self.as_written += 1
        elif kind in _SPACE and not self.as_written:
            self._add_plain(" ")
            self.muted += 1
        elif kind is cst.BooleanOperation:
            self.around.append(node)

    def after_codegen(self, node: cst.CSTNode) -> None:
        """Write again what comes behind a space."""
        kind = type(node)
        if node is self.statement:
            self.muted = 1
        elif kind not in _MATTERS:
            return
        elif kind in _AS_WRITTEN:
            self.as_written -= 1
        elif kind in _SPACE and not self.as_written:
            self.muted -= 1
        elif kind is cst.BooleanOperation:
            self.around.pop()

    def add_token(self, value: str) -> None:
        """Write something, in plain code if it is not within a space."""
        self.tokens.append(value)
        self._add_plain(value)

    def _add_plain(self, value: str) -> None:
        if not self.muted:
            self.plain.append(value)

    def add_indent_tokens(self) -> None:
        """Write indentation: in plain code that within the statement, and none where its lines are broken."""
        super().add_indent_tokens()
        if not self.muted:
            self.plain += self.indent_tokens[self.levels :]

    def record_syntactic_position(  # type: ignore[override]
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> AbstractContextManager[None]:
        """Write parentheses around an operation."""
        is_operator = type(node) in _OPERATORS and not self.as_written and not self._is_continued(node)
        return self._parentheses() if is_operator else _NOTHING

    @contextmanager
    def _parentheses(self) -> Iterator[None]:
        self._add_plain("(")
        yield
        self._add_plain(")")

    def _is_continued(self, node: cst.CSTNode) -> bool:
        """Whether a node is the beginning of `a and b and c`, which is one operation."""
        holder = self.around[-2] if len(self.around) > 1 else None
        return (
            isinstance(node, cst.BooleanOperation)
            and isinstance(holder, cst.BooleanOperation)
            and holder.left is node
            and not node.lpar
            and type(holder.operator) is type(node.operator)
        )
