"""Write the comment hints of a program as calls of `mmrewrite.hints`, for tests that compare the two carriers.

Every hint takes the usual place of its call: a decorator, an item of a `with`, a line of its own, around a loop's
iterable, around a value or around a callee. Which callee is meant is chosen by how it is written, not by what it does,
so that nothing is shared with the codemods. A program for which that is wrong has a `before_hints.py` of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mmrewrite.directives.comments import Comment, Misplaced, find_comments, statement_of
from mmrewrite.directives.vocabulary import CLASS, DEF, DIRECTIVES, kind_of
from mmrewrite.source.spans import first_line, span
from mmrewrite.source.text import SourceText

_IMPORT = "from mmrewrite import hints"
# Calls that are the subject themselves: what they return is no result of the hinted function.
_MAKERS = re.compile(r"(.*\.)?(\w*grad|vg|scan|fori_loop)")
_CLOSING = re.compile(r"(?:\s|#.*)*\)")


class NoCallForm(Exception):
    """A program whose hints this module cannot write as calls."""


def with_calls(data: bytes) -> bytes:
    """The program with every `# mm:` comment replaced by calls, and with their import.

    Raises:
        NoCallForm: If a comment is about no statement, or has a directive that calls cannot express.
    """
    source = SourceText.decode(data)
    return source.encode(_Writer(source, ast.parse(source.text)).run())


class _Writer:
    def __init__(self, source: SourceText, tree: ast.Module) -> None:
        self.source, self.tree = source, tree
        # (start, end, text); of several at one place the first is written first.
        self.edits: list[tuple[int, int, str]] = []

    def run(self) -> str:
        for comment in find_comments(self.source, self.tree):
            statement = statement_of(self.source, self.tree, comment)
            if isinstance(statement, Misplaced):
                raise NoCallForm(statement.reason)
            self.remove(comment)
            self.carry(comment, statement)
        self.add_import()
        text, position = "", 0
        for start, end, new in sorted(self.edits, key=lambda edit: edit[:2]):
            text += self.source.text[position:start] + new
            position = end
        return text + self.source.text[position:]

    def remove(self, comment: Comment) -> None:
        text = self.source.text
        if comment.own_line:
            start = self.source.line_starts[comment.line - 1]
            self.edits.append((start, self.source.line_end(comment.line), ""))
        else:
            start = comment.start
            self.edits.append((len(text[:start].rstrip(" \t")), comment.end, ""))

    def carry(self, comment: Comment, statement: ast.stmt) -> None:
        kind = kind_of(statement)
        head = self.source.line_starts[first_line(statement) - 1]
        around = []
        for name, arguments in _directives(self.source.text[comment.body : comment.end]):
            if name not in DIRECTIVES:
                raise NoCallForm(name)
            if DIRECTIVES[name].whole_module:
                start = self.source.line_starts[comment.line - 1] if comment.own_line else head
                self.add_line(start, f"hints.{name}({arguments})")
            elif kind in (DEF, CLASS):
                self.add_line(head, f"@hints.{name}({arguments})" if arguments else f"@hints.{name}")
            elif isinstance(statement, ast.With | ast.AsyncWith):
                last = statement.items[-1]
                _, end = span(self.source, last.optional_vars or last.context_expr)
                self.edits.append((end, end, f", hints.{name}({arguments})"))
            else:
                around.append((name, arguments, self.subject(statement, name)))
        # A later directive is about the value of the earlier one, so its call goes around it.
        for name, _, (start, _) in reversed(around):
            self.edits.append((start, start, f"hints.{name}("))
        for _, arguments, (_, end) in around:
            self.edits.append((end, end, f", {arguments})" if arguments else ")"))

    def add_line(self, start: int, line: str) -> None:
        text = self.source.text[start:]
        indent = text[: len(text) - len(text.lstrip(" \t"))]
        self.edits.append((start, start, f"{indent}{line}{self.source.newline}"))

    def subject(self, statement: ast.stmt, directive: str) -> tuple[int, int]:
        """Offsets of what the call of a directive goes around."""
        if isinstance(statement, ast.For | ast.AsyncFor) and directive in ("stages", "microbatch"):
            return self.enclosed(statement.iter)
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.expr):
            raise NoCallForm(f"{directive} on {ast.unparse(statement)}")
        if directive == "task" or (directive == "microbatch" and not _is_maker(value)):
            return self.enclosed(_callee(value))
        if isinstance(value, ast.Tuple) and not self.source.text.startswith("(", span(self.source, value)[0]):
            raise NoCallForm("a hint on several values")
        return self.enclosed(value)

    def enclosed(self, node: ast.expr) -> tuple[int, int]:
        """Offsets of an expression with the parentheses around it, which `ast` drops."""
        start, end = span(self.source, node)
        text = self.source.text
        while (before := re.search(r"(?<![\w)\]])\(\s*$", text[:start])) and (after := _CLOSING.match(text, end)):
            start, end = before.start(), after.end()
        return start, end

    def add_import(self) -> None:
        head = self.tree.body[:1]
        if not (head and isinstance(head[0], ast.Expr) and isinstance(head[0].value, ast.Constant)):
            head = []
        position = len(head)
        while position < len(self.tree.body) and isinstance(self.tree.body[position], ast.Import | ast.ImportFrom):
            position += 1
        if position == 0:
            blank = 3 if kind_of(self.tree.body[0]) in (DEF, CLASS) else 2
            start = self.source.line_starts[1] if "coding" in self.source.line(1) else 0
            self.edits.insert(0, (start, start, f"{_IMPORT}{self.source.newline * blank}"))
        else:
            end = self.source.line_end(self.tree.body[position - 1].end_lineno or 1)
            self.edits.insert(0, (end, end, f"{self.source.newline}{_IMPORT}{self.source.newline}"))


def _directives(body: str) -> Iterator[tuple[str, str]]:
    """(name, arguments as text) of each directive of a comment."""
    for statement in ast.parse(body).body:
        node = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(node, ast.Name):
            yield node.id, ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            known = DIRECTIVES.get(node.func.id)
            # As a call, the first positional argument is the subject.
            named = known.parameters[0].name if known and known.parameters and known.positional else None
            arguments = [ast.get_source_segment(body, value) or "" for value in node.args]
            if named and arguments:
                arguments[0] = f"{named}={arguments[0]}"
            keywords = [(each.arg, ast.get_source_segment(body, each.value)) for each in node.keywords]
            yield node.func.id, ", ".join([*arguments, *(f"{name}={value}" for name, value in keywords)])
        else:
            raise NoCallForm(body)


def _is_maker(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _MAKERS.fullmatch(ast.unparse(value.func)) is not None


def _callee(value: ast.expr) -> ast.expr:
    """The callee of the outermost call that is of a local name, of an attribute of `self`, or of a call's result; else
    that of the value."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            root = node.func
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            is_own = isinstance(root, ast.Name) and (root is node.func or root.id == "self")
            if is_own or isinstance(node.func, ast.Call):
                return node.func
    if isinstance(value, ast.Call):
        return value.func
    raise NoCallForm(ast.unparse(value))
