"""Read the hints of one module, from comments and from calls of `mmrewrite.hints`, into `Hint` values.

A hint that cannot be read becomes a `HintError` that says what is expected. Codemods see `Hint` values only, so a new
carrier needs a new collector here and nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from mmrewrite.directives.arguments import Argument as Argument
from mmrewrite.directives.arguments import Problem, Written, arguments_of, directive_of, ignored_by, whole_number
from mmrewrite.directives.calls import HintCall, HintImport, Misused, Reexports, find_calls, strip_calls
from mmrewrite.directives.carrier import CARRIER, PACKAGE
from mmrewrite.directives.comments import Comment, Misplaced, find_comments, second_carrier, statement_of
from mmrewrite.directives.vocabulary import DIRECTIVES, FOR, IGNORE, KIND_WORDS, SWITCHES, Directive, kind_of
from mmrewrite.results import HintError, HintReference, LeftAlone
from mmrewrite.source.names import Module
from mmrewrite.source.spans import span
from mmrewrite.source.text import Columns, SourceText, parse_quietly

# Of one file; the rest is counted. A text may hold as many as it has characters.
MOST_ERRORS = 100


@dataclass(frozen=True, eq=False)
class Hint:
    """One directive and the statement that it is about.

    Attributes:
        directive: Its name.
        arguments: Its arguments, in order.
        statement: The statement.
        kind: The kind of statement, or `CALL`.
        start: Offset of the directive.
        end: Offset of its end.
        carrier_start: Offset of its carrier, the comment or call. The engine removes carriers, since one comment may
            carry several hints.
        own_line: Whether the carrier has a line of its own.
        reference: Line, column and text for messages.
        ignored: Codemods that `ignore` keeps away from it.
        call: The call in the tree that is rewritten in place, for a hint of kind `CALL` or an item of a `with`.
        implied: Whether the program says it by a constraint or an annotation, without a hint.
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
    call: ast.Call | None = None
    implied: bool = False

    @property
    def record(self) -> Directive:
        """The record of its directive in the vocabulary."""
        return DIRECTIVES[self.directive]

    def argument(self, name: str) -> Argument | None:
        """The argument called `name`, None if there is none."""
        return next((argument for argument in self.arguments if argument.name == name), None)

    @property
    def positional(self) -> tuple[Argument, ...]:
        """Arguments without a name."""
        return tuple(argument for argument in self.arguments if argument.name is None)

    @property
    def named(self) -> tuple[tuple[str, Argument], ...]:
        """(name, argument) for the arguments with a name."""
        return tuple((argument.name, argument) for argument in self.arguments if argument.name is not None)


@dataclass(frozen=True, eq=False)
class CommentHints:
    """A hint comment and its hints; `directives` are the (start, end) offsets of all its directives."""

    comment: Comment
    hints: tuple[Hint, ...]
    directives: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class CalledHint:
    """A call of `mmrewrite.hints` and its hint."""

    call: HintCall
    hint: Hint


@dataclass(eq=False)
class Collected:
    """All hints of one module.

    Attributes:
        comments: Hint comments.
        calls: Calls of `mmrewrite.hints`.
        implied: Hints that constraints and annotations of the program amount to.
        axis_names: Logical axis names of the project, by which these were found.
        switched_off: (start, end) offsets between `off` and `on`.
        ignored: Text from which `ignore` keeps codemods away, and their names.
        ignored_statements: The same for statements, by a comment on them.
        imports: Imported names for `mmrewrite.hints`.
        errors: Hints that cannot be read.
        left: Hints that stay on purpose.
    """

    comments: list[CommentHints] = field(default_factory=list)
    calls: list[CalledHint] = field(default_factory=list)
    implied: list[Hint] = field(default_factory=list)
    axis_names: frozenset[str] = frozenset()
    switched_off: list[tuple[int, int]] = field(default_factory=list)
    ignored: list[tuple[tuple[int, int], frozenset[str]]] = field(default_factory=list)
    ignored_statements: list[tuple[ast.stmt, frozenset[str]]] = field(default_factory=list)
    imports: list[HintImport] = field(default_factory=list)
    errors: list[HintError] = field(default_factory=list)
    left: list[LeftAlone] = field(default_factory=list)

    @property
    def hints(self) -> Iterator[Hint]:
        """All hints, in the order of the file."""
        found = [hint for comment in self.comments for hint in comment.hints]
        if not self.calls and not self.implied:
            return iter(found)
        found += [*self.implied, *(called.hint for called in self.calls)]
        return iter(sorted(found, key=lambda hint: hint.start))

    def is_off_at(self, offset: int) -> bool:
        """Whether hints at `offset` are switched off."""
        return any(start < offset < end for start, end in self.switched_off)

    def ignored_at(self, offset: int, statement: ast.stmt | None = None) -> frozenset[str]:
        """The codemods that are kept away from `offset`, or from a statement by the comment on it."""
        ignored = [names for (start, end), names in self.ignored if start < offset < end]
        ignored += [names for other, names in self.ignored_statements if other is statement]
        return frozenset(name for names in ignored for name in names)


def collect_hints(
    path: str,
    source: SourceText,
    names: Module,
    codemods: Collection[str],
    left: Mapping[int, str] | None = None,
    reexports: Reexports | None = None,
) -> Collected:
    """Read every hint of a module.

    Hints that are calls are removed from the tree of `names`, whose scopes must then be read again.

    Args:
        path: The file, for messages.
        source: Its text.
        names: Its scopes, which say what its names for hints are.
        codemods: The names that `ignore` may have.
        left: Offsets of calls that stay part of the program, and why.
        reexports: Hint functions that other modules of the project re-export.
    """
    return _Collector(path, source, names, codemods, left or {}, reexports or Reexports()).run()


def first_errors(errors: Iterable[HintError], number: int) -> list[HintError]:
    """The first of some errors in order, the last of which says how many more there are: they have one cause, mostly.

    `number` is how many there are in all, also of those that are not given.
    """
    first, rest = sorted(errors)[: MOST_ERRORS + 1], number - MOST_ERRORS
    if rest > 1:
        message = f"and {rest} more errors in this file; correct the first ones, and run again"
        first[-1] = replace(first[-1], message=message, fix=None, count=rest)
    return first


@dataclass(frozen=True)
class _CommentBody:
    """The text of a comment after its mark, parsed as Python; `start` is its offset in the file."""

    text: str
    start: int

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        return self.offset(node.col_offset), self.offset(node.end_col_offset or 0)

    def offset(self, column: int) -> int:
        return self.start + self.columns.characters(column)

    @cached_property
    def columns(self) -> Columns:
        return Columns(self.text)

    def written(self, statement: ast.stmt) -> Written | None:
        node = statement.value if isinstance(statement, ast.Expr) else None
        target = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Subscript) else node
        if node is None or not isinstance(target, ast.Name):
            return None
        call = node if isinstance(node, ast.Call) else ast.Call(target, [], [])
        subscript = node.slice if isinstance(node, ast.Subscript) else None
        start, end = self.span(statement)
        return Written(target.id, start, end, tuple(call.args), tuple(call.keywords), subscript, self.span)


class _Collector:
    def __init__(
        self,
        path: str,
        source: SourceText,
        names: Module,
        codemods: Collection[str],
        left: Mapping[int, str],
        reexports: Reexports,
    ) -> None:
        self.path, self.source, self.names, self.codemods, self.to_leave = path, source, names, codemods, left
        self.reexports = reexports
        self.found = Collected()
        self.problems = 0
        self.off_since: int | None = None

    def run(self) -> Collected:
        carriers: list[Comment | HintCall | Misused] = [*find_comments(self.source, self.names.tree)]
        if PACKAGE in self.source.text or self.reexports.every:
            used = find_calls(self.source, self.names, self.reexports)
            self.found.imports = used.imports
            carriers += [*used.calls, *used.misused]
            carriers.sort(key=lambda carrier: carrier.start)
            for call in used.calls:
                self.read_extent(call)
        for carrier in carriers:
            try:
                self.read(carrier)
            except Problem as problem:
                self.report(problem)
        if self.off_since is not None:
            self.found.switched_off.append((self.off_since, len(self.source.text)))
        strip_calls(self.names.tree, [called.call for called in self.found.calls], self.found.imports)
        self.check_duplicates()
        self.found.errors = first_errors(self.found.errors, self.problems)
        return self.found

    def report(self, problem: Problem) -> None:
        self.problems += 1
        if self.problems > MOST_ERRORS + 1:
            return
        line, column = self.source.position(problem.start)
        text = self.source.line(line)
        length = min(problem.length, len(text) - column + 1)
        fix = problem.fix if problem.length == length else None
        self.found.errors.append(HintError.at(self.path, line, column, problem.message, text, max(1, length), fix))

    def leave(self, start: int, text: str, because: str) -> None:
        line, column = self.source.position(start)
        self.found.left.append(LeftAlone(self.path, line, column, text, because))

    def read(self, carrier: Comment | HintCall | Misused) -> None:
        match carrier:
            case Comment():
                self.read_comment(carrier)
            case HintCall():
                self.read_call(carrier)
            case Misused():
                raise Problem(carrier.start, carrier.end - carrier.start, carrier.reason)

    def read_comment(self, comment: Comment) -> None:
        text = self.source.text[comment.body : comment.end]
        if comment.left is not None:
            self.leave(comment.start, text.strip(), comment.left)
            return
        if self.is_left_at(comment.start) and text.strip() not in SWITCHES:
            self.leave(comment.start, text.strip(), "`# mm: off`")
            return
        if not comment.exact:
            written = self.source.text[comment.start : comment.body]
            _, column = self.source.position(comment.start)
            advice = self.mistake_in(comment, text) or f"write `{CARRIER}{text.strip()}`"
            message = f"a hint begins with `{CARRIER.strip()}` and a space; {advice}"
            length = len(written.rstrip())
            if comment.own_line and self.source.line(comment.line)[: column - 1].strip():
                raise Problem(comment.start, length, f"{message} on a line of its own")
            fix = CARRIER.strip() if length < len(written) else CARRIER
            raise Problem(comment.start, length, message, fix)
        again = second_carrier(text)
        if again is not None:
            start, end = again
            message = "a second `# mm:` in one comment; put all directives behind one, with `;` in between"
            raise Problem(comment.body + start, end - start, message)
        parsed = self.parse(comment, text)
        switch = next((item for item in parsed if item.name in SWITCHES), None)
        if switch is None:
            self.keep(comment, parsed)
        elif len(parsed) > 1 or switch.length != len(switch.name) or not comment.own_line:
            raise switch.problem(f"`# mm: {switch.name}` stands alone, on a line of its own")
        else:
            self.switch(switch, "# mm: {}")

    def mistake_in(self, comment: Comment, text: str) -> str | None:
        """What is wrong with the directives of a comment besides its beginning."""
        try:
            for item in self.parse(comment, text):
                if item.name not in (*SWITCHES, IGNORE):
                    directive_of(item, _raise)
        except Problem as problem:
            return problem.message
        return None

    def parse(self, comment: Comment, text: str) -> list[Written]:
        try:
            body = parse_quietly(text).body
        except SyntaxError as error:
            column = max(0, (error.offset or 1) - 1)
            message = f"cannot read this hint: {error.msg}; a directive looks like a Python call, `task(stage=0)`"
            raise Problem(comment.body + min(column, max(0, len(text) - 1)), 1, message) from None
        if not body:
            raise Problem(comment.start, comment.body - comment.start, "a hint without a directive")
        holder = _CommentBody(text, comment.body)
        parsed = []
        for statement in body:
            item = holder.written(statement)
            if item is None:
                start, end = holder.span(statement)
                raise Problem(start, end - start, _not_a_directive(statement, text))
            parsed.append(item)
        return parsed

    def switch(self, switch: Written, form: str) -> None:
        off, on = form.format("off"), form.format("on")
        if switch.name == "off":
            if self.off_since is not None:
                raise switch.problem(f"`{off}` inside `{off}`; remove one of them")
            self.off_since = switch.start
        elif self.off_since is None:
            raise switch.problem(f"`{on}` without a `{off}` above it")
        else:
            self.found.switched_off.append((self.off_since, switch.start))
            self.off_since = None

    def is_left_at(self, offset: int) -> bool:
        return self.off_since is not None or self.found.is_off_at(offset)

    def keep(self, comment: Comment, parsed: list[Written]) -> None:
        names = [name for item in parsed if item.name == IGNORE for name in self.ignored_in(item)]
        ignored = frozenset(names) | self.found.ignored_at(comment.start)
        directives = [item for item in parsed if item.name != IGNORE]
        statement = statement_of(self.source, self.names.tree, comment)
        if isinstance(statement, Misplaced):
            raise Problem(comment.start, comment.end - comment.start, statement.reason)
        if names:
            self.found.ignored_statements.append((statement, frozenset(names)))
        hints = []
        for item in directives:
            text = self.source.text[item.start : item.end]
            place = (comment.start, comment.own_line)
            try:
                hint = self.hint(item, statement, kind_of(statement), text, place, ignored)
            except Problem as problem:
                self.report(problem)
                continue
            if hint is not None:
                hints.append(hint)
        spans = tuple((item.start, item.end) for item in parsed)
        self.found.comments.append(CommentHints(comment, tuple(hints), spans))

    def hint(
        self,
        item: Written,
        statement: ast.stmt,
        kind: str,
        text: str | None,
        carrier: tuple[int, bool],
        ignored: frozenset[str],
        call: ast.Call | None = None,
    ) -> Hint | None:
        """A hint with misspelt words replaced by what was meant; None where that is not clear."""
        directive = directive_of(item, self.report)
        if kind not in directive.kinds:
            where = directive.places
            raise item.problem(f"`{directive.name}` cannot stand on {KIND_WORDS[kind]}; it belongs to {where}")
        arguments = arguments_of(item, directive, self.source.text, self.report)
        if arguments is None:
            return None
        line, column = self.source.position(item.start)
        reference = HintReference(line, column, _canonical(directive.name, arguments) if text is None else text)
        return Hint(
            directive.name, arguments, statement, kind, item.start, item.end, *carrier, reference, ignored, call
        )

    def ignored_in(self, item: Written) -> Iterator[str]:
        if item.subscript is None:
            raise item.problem(f"name the codemods: `ignore[{min(self.codemods, default='CODEMOD')}]`")
        return ignored_by(item, self.codemods)

    def written(self, call: HintCall) -> Written:
        return Written(call.name, call.start, call.end, call.arguments, call.keywords, None, self.span)

    def read_extent(self, call: HintCall) -> None:
        """Note the text to which an `off` or `ignore` applies; a decorator also applies to those above it."""
        if call.extent is not None and call.name == "off":
            self.found.switched_off.append(call.extent)
        elif call.extent is not None and call.name == IGNORE:
            try:
                self.found.ignored.append((call.extent, frozenset(ignored_by(self.written(call), self.codemods))))
            except Problem as problem:
                self.report(problem)

    def read_call(self, call: HintCall) -> None:
        item = self.written(call)
        if call.extent is not None and call.name != "on":
            return
        if call.name in SWITCHES:
            if not call.alone:
                raise item.problem("`on` is a statement of its own, below a statement `hints.off()`")
            self.switch(item, "hints.{}()")
        elif self.is_left_at(call.start):
            self.leave(call.start, self.source.text[call.start : call.end], "`hints.off`")
        elif call.start in self.to_leave:
            self.leave(call.start, self.source.text[call.start : call.end], self.to_leave[call.start])
        else:
            self.check_loop_variable(call)
            statement, _ = span(self.source, call.statement)
            place = (statement if call.alone else call.start, call.alone)
            ignored = self.found.ignored_at(call.start)
            hint = self.hint(item, self.statement_of(call), call.kind, None, place, ignored, call.call)
            if hint is not None:
                self.found.calls.append(CalledHint(call, hint))

    def statement_of(self, call: HintCall) -> ast.stmt:
        """The statement that a call is about; below the directive that it is part of, the same as that one's."""
        above = self.found.calls[-1] if self.found.calls else None
        if above is None or call.name not in DIRECTIVES or DIRECTIVES[call.name].part_of != above.hint.directive:
            return call.statement
        between = self.source.text[above.call.end : span(self.source, call.statement)[0]].splitlines()
        is_next = all(not line.strip() or line.lstrip().startswith("#") for line in between)
        return above.hint.statement if is_next else call.statement

    def span(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        return span(self.source, node)

    def check_loop_variable(self, call: HintCall) -> None:
        """Report a hint around the iterable of a loop that reads the loop variable, which has no value there yet."""
        if call.kind != FOR or not isinstance(call.statement, ast.For | ast.AsyncFor):
            return
        bound = {node.id for node in ast.walk(call.statement.target) if isinstance(node, ast.Name)}
        for value in (*call.arguments, *(keyword.value for keyword in call.keywords)):
            for node in ast.walk(value):
                if isinstance(node, ast.Name) and node.id in bound:
                    start, end = self.span(node)
                    message = (
                        f"`{node.id}` has no value before the loop begins; write the hint on the call in the loop: "
                        f"`hints.{call.name}(layer, ...)(x)`"
                    )
                    raise Problem(start, end - start, message)

    def check_duplicates(self) -> None:
        seen: dict[tuple[ast.stmt, str], Hint] = {}
        self.check_meshes()
        self.check_names()
        for hint in self.found.hints:
            if hint.call is not None:
                # It is about its own subject, of which a statement may have several.
                continue
            length = hint.end - hint.start
            first = seen.setdefault((hint.statement, hint.directive), hint)
            if first is not hint and not hint.record.repeated:
                message = f"`{hint.directive}` is said twice about one statement; the first is on line"
                self.report(Problem(hint.start, length, f"{message} {first.reference.line}"))
        for hint in seen.values():
            on_loops = hint.record.excludes_on_loops if hint.kind == FOR else {}
            for name, message in {**hint.record.excludes, **on_loops}.items():
                other = seen.get((hint.statement, name))
                # They exclude each other, and the later one is reported.
                if other is not None and other.start < hint.start:
                    self.report(Problem(hint.start, hint.end - hint.start, message))

    def check_meshes(self) -> None:
        """Report a second mesh for the same steps."""
        first: dict[int, Hint] = {}
        for hint in self.found.hints:
            if hint.record.declares is None:
                continue
            other = first.setdefault(id(self.names.scopes[hint.statement]), hint)
            if other is not hint and other.statement is not hint.statement:
                message = (
                    f"a second `{hint.directive}(...)`, and steps could not tell which of the two is theirs; the first "
                    f"is on line {other.reference.line}. Keep one, or declare each in the function that uses it"
                )
                self.report(Problem(hint.start, hint.end - hint.start, message))

    def check_names(self) -> None:
        """Report hints that define one thing, by its name, in two ways."""
        defined: dict[tuple[str, str], Hint] = {}
        for hint in self.found.hints:
            name = hint.argument(hint.record.distinct) if hint.record.distinct is not None else None
            if name is None or not isinstance(name.value, ast.Constant):
                continue
            other = defined.setdefault((hint.directive, ast.unparse(name.value)), hint)
            mine, others = (_numbers(each) for each in (hint, other))
            if any(axis in others and others[axis] != value for axis, value in mine.items()):
                message = (
                    f"`{hint.directive}({name.text}, ...)` contradicts that of line {other.reference.line}, "
                    f"`{other.reference.text}`: one name has one place; keep one, or rename one"
                )
                self.report(Problem(hint.start, hint.end - hint.start, message))


def _raise(problem: Problem) -> None:
    raise problem


def _numbers(hint: Hint) -> dict[str, int]:
    """The arguments of a hint that are whole numbers written out, by name."""
    values = {name: whole_number(argument.value) for name, argument in hint.named}
    return {name: value for name, value in values.items() if value is not None}


def _canonical(name: str, arguments: tuple[Argument, ...]) -> str:
    """The text of a directive in a comment."""
    parts = [argument.text if argument.name is None else f"{argument.name}={argument.text}" for argument in arguments]
    return f"{name}({', '.join(parts)})" if parts else name


def _not_a_directive(statement: ast.stmt, text: str) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Tuple):
        parts = "; ".join(ast.get_source_segment(text, part) or "" for part in statement.value.elts)
        return f"between directives stands `;`, not a comma: write `{parts}`"
    return f"not a directive: write one like `task(stage=0)`; known: {', '.join(sorted(DIRECTIVES))}"
