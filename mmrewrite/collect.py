"""Read the hints of one module into `Hint` values, whatever carried them; today the carrier is the comment.

What cannot be read becomes a `HintError` that says what is expected. Codemods see `Hint` values only, so a further
carrier is a further collector here.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from mmrewrite.comments import Comment, Misplaced, find_comments, statement_of
from mmrewrite.source import SourceText, parse_quietly
from mmrewrite.values import HintError, HintReference, Left
from mmrewrite.vocabulary import DIRECTIVES, IGNORE, KIND_WORDS, SWITCHES, Directive, Parameter, kind_of, nearest


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument of a directive: its name if it has one, its text, and where it stands."""

    name: str | None
    text: str
    value: ast.expr
    start: int


@dataclass(frozen=True, eq=False)
class Hint:
    """One directive and the statement that it is about.

    `carrier_start` is the offset of what carried it. Removing the carrier is the engine's work, since one comment may
    carry several hints.
    """

    directive: str
    arguments: tuple[Argument, ...]
    statement: ast.stmt
    kind: str
    start: int
    end: int
    carrier_start: int
    own_line: bool
    reference: HintReference
    ignored: frozenset[str] = frozenset()

    def argument(self, name: str) -> Argument | None:
        """The argument called `name`, None if it was not given."""
        return next((argument for argument in self.arguments if argument.name == name), None)

    @property
    def positional(self) -> tuple[Argument, ...]:
        """Arguments without a name."""
        return tuple(argument for argument in self.arguments if argument.name is None)

    @property
    def named(self) -> tuple[tuple[str, Argument], ...]:
        """Arguments with a name, and that name."""
        return tuple((argument.name, argument) for argument in self.arguments if argument.name is not None)


@dataclass(frozen=True, eq=False)
class CommentHints:
    """A hint comment and what it says; `directives` are (start, end) offsets of all of them, switches included."""

    comment: Comment
    hints: tuple[Hint, ...]
    directives: tuple[tuple[int, int], ...]


@dataclass(eq=False)
class Collected:
    """Everything the carriers of one module say."""

    comments: list[CommentHints] = field(default_factory=list)
    errors: list[HintError] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    @property
    def hints(self) -> Iterator[Hint]:
        """All hints, in the order of the file."""
        for comment in self.comments:
            yield from comment.hints


def collect_hints(path: str, source: SourceText, tree: ast.Module, codemods: Collection[str]) -> Collected:
    """Read every hint comment of a module. `codemods` are the names that `ignore[...]` may hold."""
    return _Collector(path, source, tree, codemods).run()


class _Problem(Exception):
    def __init__(self, start: int, length: int, message: str) -> None:
        super().__init__(message)
        self.start, self.length, self.message = start, length, message


@dataclass(frozen=True)
class _Body:
    """The text of a comment after its mark, parsed as Python; `start` is its offset in the file."""

    text: str
    start: int

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self.offset(node.col_offset), self.offset(node.end_col_offset or 0)

    def offset(self, column: int) -> int:
        return self.start + len(self.text.encode()[:column].decode(errors="replace"))


@dataclass(frozen=True)
class _Parsed:
    node: ast.expr
    start: int
    end: int
    body: _Body

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def name(self) -> str | None:
        target = self.node
        if isinstance(target, ast.Call):
            target = target.func
        elif isinstance(target, ast.Subscript):
            target = target.value
        return target.id if isinstance(target, ast.Name) else None


class _Collector:
    def __init__(self, path: str, source: SourceText, tree: ast.Module, codemods: Collection[str]) -> None:
        self.path, self.source, self.tree, self.codemods = path, source, tree, codemods
        self.found = Collected()
        self.off_since: Comment | None = None

    def run(self) -> Collected:
        for comment in find_comments(self.source, self.tree):
            try:
                self.read(comment)
            except _Problem as problem:
                self.report(problem)
        self.check_duplicates()
        return self.found

    def report(self, problem: _Problem) -> None:
        line, column = self.source.position(problem.start)
        text = self.source.line(line)
        length = min(problem.length, len(text) - column + 1)
        self.found.errors.append(HintError(self.path, line, column, problem.message, text, max(1, length)))

    def read(self, comment: Comment) -> None:
        text = self.source.text[comment.body : comment.end]
        if self.off_since is not None and text.strip() not in SWITCHES:
            line, column = self.source.position(comment.start)
            self.found.left.append(Left(self.path, line, column, text.strip(), "`# mm: off`"))
            return
        if not comment.exact:
            word = text.partition("(")[0].strip()
            if word in DIRECTIVES or word in SWITCHES:
                raise _Problem(
                    comment.start, comment.body - comment.start, "a hint begins with `# mm: `, spaced like that"
                )
            return
        parsed = self.parse(comment, text)
        switch = next((item for item in parsed if item.name in SWITCHES), None)
        if switch is not None:
            self.switch(comment, parsed, switch)
        else:
            self.keep(comment, parsed)

    def parse(self, comment: Comment, text: str) -> list[_Parsed]:
        try:
            body = parse_quietly(text).body
        except SyntaxError as error:
            column = max(0, (error.offset or 1) - 1)
            message = f"cannot read this hint: {error.msg}; a directive looks like a Python call, `task(stage=0)`"
            raise _Problem(comment.body + min(column, max(0, len(text) - 1)), 1, message) from None
        if not body:
            raise _Problem(comment.start, comment.body - comment.start, "a hint without a directive")
        holder = _Body(text, comment.body)
        parsed = []
        for statement in body:
            start, end = holder.span(statement)
            node = statement.value if isinstance(statement, ast.Expr) else None
            item = _Parsed(node, start, end, holder) if isinstance(node, ast.Call | ast.Name | ast.Subscript) else None
            if item is None or item.name is None:
                known = f"known: {', '.join(sorted(DIRECTIVES))}"
                raise _Problem(start, end - start, f"not a directive: write one like `task(stage=0)`; {known}")
            parsed.append(item)
        return parsed

    def switch(self, comment: Comment, parsed: list[_Parsed], switch: _Parsed) -> None:
        length = switch.end - switch.start
        if len(parsed) > 1 or not isinstance(switch.node, ast.Name) or not comment.own_line:
            raise _Problem(switch.start, length, f"`# mm: {switch.name}` stands alone, on a line of its own")
        if switch.name == "off":
            if self.off_since is not None:
                raise _Problem(switch.start, length, "`# mm: off` inside `# mm: off`; remove one of them")
            self.off_since = comment
        elif self.off_since is None:
            raise _Problem(switch.start, length, "`# mm: on` without a `# mm: off` above it")
        else:
            self.off_since = None

    def keep(self, comment: Comment, parsed: list[_Parsed]) -> None:
        ignored = frozenset(name for item in parsed for name in self.ignored(item))
        directives = [(item, self.directive(item)) for item in parsed if item.name != IGNORE]
        statement = statement_of(self.source, self.tree, comment)
        if isinstance(statement, Misplaced):
            raise _Problem(comment.start, comment.end - comment.start, statement.reason)
        hints = []
        for item, directive in directives:
            kind = kind_of(statement)
            if kind not in directive.kinds:
                where = " or ".join(KIND_WORDS[kind] for kind in KIND_WORDS if kind in directive.kinds)
                raise _Problem(
                    item.start,
                    item.length,
                    f"`{directive.name}` cannot stand on {KIND_WORDS[kind]}; it belongs to {where}",
                )
            arguments = self.arguments(item, directive)
            self.check_together(item, directive, arguments)
            line, column = self.source.position(item.start)
            reference = HintReference(line, column, self.source.text[item.start : item.end])
            hints.append(
                Hint(
                    directive.name,
                    arguments,
                    statement,
                    kind,
                    item.start,
                    item.end,
                    comment.start,
                    comment.own_line,
                    reference,
                    ignored,
                )
            )
        spans = tuple((item.start, item.end) for item in parsed)
        self.found.comments.append(CommentHints(comment, tuple(hints), spans))

    def ignored(self, item: _Parsed) -> Iterator[str]:
        if item.name != IGNORE:
            return
        node = item.node
        if not isinstance(node, ast.Subscript):
            raise _Problem(item.start, item.length, "name the codemods: `ignore[place_task]`")
        names = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for name in names:
            if not isinstance(name, ast.Name) or name.id not in self.codemods:
                word = ast.unparse(name)
                raise _Problem(item.start, item.length, f"unknown codemod `{word}`{nearest(word, self.codemods)}")
            yield name.id

    def directive(self, item: _Parsed) -> Directive:
        name = item.name or ""
        if name not in DIRECTIVES:
            hint = nearest(name, [*DIRECTIVES, *SWITCHES, IGNORE])
            raise _Problem(item.start, len(name), f"unknown directive `{name}`{hint}")
        if isinstance(item.node, ast.Subscript):
            example = DIRECTIVES[name].example
            raise _Problem(item.start, item.length, f"`{name}` takes arguments in parentheses: `{example}`")
        return DIRECTIVES[name]

    def arguments(self, item: _Parsed, directive: Directive) -> tuple[Argument, ...]:
        if not isinstance(item.node, ast.Call):
            return ()
        arguments: list[Argument] = []
        for index, value in enumerate(item.node.args):
            start, end = item.body.span(value)
            length = end - start
            if isinstance(value, ast.Starred):
                raise _Problem(start, length, "no `*` in a hint: write the arguments out")
            if directive.positional is not None and index >= directive.positional:
                raise _Problem(start, length, f"`{directive.name}` takes this by name: `{directive.example}`")
            named = directive.parameters[index].name if directive.positional and directive.parameters else None
            parameter = directive.parameter(named) if named else directive.more
            if named and parameter:
                self.check_literal(directive, parameter, named, value, start, length)
            arguments.append(Argument(named, self.source.text[start:end], value, start))
        for keyword in item.node.keywords:
            start, end = item.body.span(keyword.value)
            if keyword.arg is None:
                raise _Problem(start, end - start, "no `**` in a hint: write the arguments out")
            name_start = item.body.offset(keyword.col_offset)
            parameter = directive.parameter(keyword.arg)
            if parameter is None:
                known = [parameter.name for parameter in directive.parameters]
                message = f"`{directive.name}` has no argument `{keyword.arg}`{nearest(keyword.arg, known)}"
                raise _Problem(name_start, len(keyword.arg), message)
            if any(argument.name == keyword.arg for argument in arguments):
                raise _Problem(name_start, len(keyword.arg), f"`{keyword.arg}` is given twice")
            self.check_literal(directive, parameter, keyword.arg, keyword.value, start, end - start)
            arguments.append(Argument(keyword.arg, self.source.text[start:end], keyword.value, start))
        return tuple(arguments)

    def check_literal(
        self, directive: Directive, parameter: Parameter, name: str, value: ast.expr, start: int, length: int
    ) -> None:
        inner = value.operand if isinstance(value, ast.UnaryOp) else value
        if not isinstance(inner, ast.Constant) or not parameter.literals:
            return
        if type(inner.value) not in parameter.literals:
            got = ast.unparse(value)
            raise _Problem(start, length, f"`{directive.name}({name}={got})`: `{name}` must be {parameter.words}")
        if parameter.choices and inner.value not in parameter.choices:
            word = str(inner.value)
            choices = " or ".join(f'"{choice}"' for choice in parameter.choices)
            close = nearest(word, parameter.choices) if len(word) > 2 else ""
            suggestion = close if close.startswith("; did") else ""
            raise _Problem(start, length, f"`{name}` must be {choices}, not {ast.unparse(value)}{suggestion}")

    def check_together(self, item: _Parsed, directive: Directive, arguments: tuple[Argument, ...]) -> None:
        names = {argument.name for argument in arguments}
        length = item.length
        if directive.name in ("mesh", "axes", "shard") and not arguments:
            raise _Problem(item.start, length, f"`{directive.name}` says nothing; write `{directive.example}`")
        if directive.name in ("task", "register") and names <= {"name", "regex"}:
            raise _Problem(
                item.start,
                length,
                f"`{directive.name}` does not say where; write an axis and a slice of it: `{directive.example}`",
            )
        if directive.name == "register" and "regex" not in names:
            raise _Problem(item.start, length, f"`register` does not say which scopes; write `{directive.example}`")
        if directive.name == "microbatch":
            if {"size", "count"} <= names:
                raise _Problem(item.start, length, "`size=` and `count=` contradict each other; keep one")
            if not {"size", "count"} & names:
                raise _Problem(
                    item.start, length, "`microbatch` needs `size=` (examples in one) or `count=` (how many)"
                )
        if directive.name == "mesh":
            for name, argument in ((argument.name, argument) for argument in arguments):
                value = argument.value
                if isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value < 1:
                    raise _Problem(
                        argument.start,
                        len(argument.text),
                        f"axis `{name}` has {value.value} slices; it needs one or more",
                    )

    def check_duplicates(self) -> None:
        seen: dict[tuple[ast.stmt, str], Hint] = {}
        for hint in self.found.hints:
            length = hint.end - hint.start
            first = seen.setdefault((hint.statement, hint.directive), hint)
            if first is not hint and not DIRECTIVES[hint.directive].repeated:
                message = f"`{hint.directive}` is said twice about one statement; the first is on line"
                self.report(_Problem(hint.start, length, f"{message} {first.reference.line}"))
            other = seen.get((hint.statement, "task" if hint.directive == "stages" else "stages"))
            if other is not None and hint.directive in ("task", "stages") and other is not hint:
                message = "`task` and `stages` about one loop contradict each other; keep one"
                self.report(_Problem(hint.start, length, message))
