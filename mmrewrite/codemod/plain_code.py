"""The code of a tree of LibCST as the tree has it, so that it can be compared with the text that is laid out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import libcst as cst
from libcst._nodes.internal import CodegenState

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
# Their spaces are part of a value, or of a list of targets.
_AS_WRITTEN = frozenset((cst.FormattedString, cst.TemplatedString, cst.Del))


def plain_code(statement: cst.BaseStatement) -> str:
    """The code of a statement with a space wherever one may be, no line breaks, and parentheses around operations."""
    state = _PlainCode("    ", "\n")
    statement._codegen(state)
    return "".join(state.tokens)


class _PlainCode(CodegenState):
    """Ignores how the nodes are laid out."""

    def __init__(self, default_indent: str, default_newline: str) -> None:
        super().__init__(default_indent, default_newline)
        self.around: list[cst.CSTNode] = []
        self.muted = self.as_written = 0

    def before_codegen(self, node: cst.CSTNode) -> None:
        """Write a space for all of a node that is one."""
        self.around.append(node)
        kind = type(node)
        if kind in _AS_WRITTEN:
            self.as_written += 1
        if kind in _SPACE and not self.as_written:
            self.add_token(" ")
            self.muted += 1

    def after_codegen(self, node: cst.CSTNode) -> None:
        """Write again what comes behind a space."""
        kind = type(node)
        if kind in _SPACE and not self.as_written:
            self.muted -= 1
        if kind in _AS_WRITTEN:
            self.as_written -= 1
        self.around.pop()

    def add_token(self, value: str) -> None:
        """Write something that is not within a space."""
        if not self.muted:
            self.tokens.append(value)

    def add_indent_tokens(self) -> None:
        """Write indentation, which the lines within a statement do not have."""
        if not self.muted:
            super().add_indent_tokens()

    @contextmanager
    def record_syntactic_position(
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> Iterator[None]:
        """Write parentheses around an operation."""
        is_operator = type(node) in _OPERATORS and not self.as_written and not self._is_continued(node)
        if is_operator:
            self.add_token("(")
        yield
        if is_operator:
            self.add_token(")")

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
