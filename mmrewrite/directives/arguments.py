"""Check the name and the arguments of one directive, from any carrier, against its record in the vocabulary."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from mmrewrite.directives.vocabulary import DIRECTIVES, IGNORE, SWITCHES, Directive, Parameter, closest, nearest
from mmrewrite.source.text import quoted

# Choices of a parameter that a message lists in full.
_FEW = 6


class Problem(Exception):
    """A mistake in a hint, the characters under which the message puts its caret, and what to write there instead."""

    def __init__(self, start: int, length: int, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.start, self.length, self.message, self.fix = start, length, message, fix


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument of a directive: its name or None, its source text, its parsed value, and its offset."""

    name: str | None
    text: str
    value: ast.expr
    start: int


@dataclass(frozen=True, eq=False)
class Written:
    """A directive in the source, from `start` to `end`, before it is checked.

    `arguments` are its positional arguments, `subscript` the content of square brackets, None without them. `span`
    gives the offsets of its parts.
    """

    name: str
    start: int
    end: int
    arguments: tuple[ast.expr, ...]
    keywords: tuple[ast.keyword, ...]
    subscript: ast.expr | None
    span: Callable[[ast.expr | ast.keyword], tuple[int, int]]

    @property
    def length(self) -> int:
        """Number of characters."""
        return self.end - self.start

    def problem(self, message: str) -> Problem:
        """A mistake that concerns the directive as a whole."""
        return Problem(self.start, self.length, message)


def whole_number(node: ast.expr | None) -> int | None:
    """The value of a whole number that is written out, with or without a sign; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = whole_number(node.operand)
        return None if value is None else -value
    # Not `isinstance`: True is an `int` to Python, but no whole number to a reader.
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def directive_of(written: Written, report: Callable[[Problem], None]) -> Directive:
    """The record of a directive; a misspelt name is reported, and the record is that of the one that was meant.

    Raises:
        Problem: If it is not clear which was meant, or it has square brackets.
    """
    if written.name not in DIRECTIVES:
        known = [*DIRECTIVES, *SWITCHES, IGNORE]
        message = f"unknown directive `{written.name}`{nearest(written.name, known)}"
        meant = closest(written.name, known)
        problem = Problem(written.start, len(written.name), message, meant)
        if meant not in DIRECTIVES:
            raise problem
        report(problem)
        written = replace(written, name=meant)
    directive = DIRECTIVES[written.name]
    if written.subscript is not None:
        raise written.problem(f"`{directive.name}` takes arguments in parentheses: `{directive.example}`")
    return directive


def arguments_of(
    written: Written, directive: Directive, text: str, report: Callable[[Problem], None]
) -> tuple[Argument, ...] | None:
    """The arguments of a directive, None if it is not clear what is meant; `text` is the text of the file.

    What the record does not allow is reported. A misspelt word stands for the one that was meant, so that all else that
    is wrong with the statement can be said in the same run.
    """
    reader = _ArgumentReader(written, directive, text, report)
    arguments = reader.run()
    if not reader.is_clear:
        return None
    try:
        _check_together(written, directive, arguments)
    except Problem as problem:
        report(problem)
        return None
    return arguments


def ignored_by(written: Written, codemods: Collection[str]) -> Iterator[str]:
    """The codemods that an `ignore` names.

    Raises:
        Problem: If it names no codemod, or an unknown one.
    """
    named = list(written.arguments)
    if written.subscript is not None:
        named = written.subscript.elts if isinstance(written.subscript, ast.Tuple) else [written.subscript]
    if not named:
        # Where old names alone are looked for, no codemods are known.
        example = min(codemods, default="CODEMOD")
        form = f'hints.ignore("{example}")' if written.subscript is None else f"ignore[{example}]"
        raise written.problem(f"name the codemods: `{form}`")
    for node in named:
        name = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
        if not isinstance(name, str) or name not in codemods:
            word = name if isinstance(name, str) else ast.unparse(node)
            start, end = written.span(node)
            close = closest(word, codemods)
            fix = close if close is None or isinstance(node, ast.Name) else quoted(close)
            raise Problem(start, end - start, f"unknown codemod `{word}`{nearest(word, codemods)}", fix)
        yield name


def _enclosed(text: str, value: ast.expr) -> str:
    """The text of an argument as it can stand in a display; its own brackets are not in the span of an expression."""
    return f"({text})" if isinstance(value, ast.NamedExpr | ast.Yield | ast.YieldFrom) else text


class _ArgumentReader:
    """Reads the arguments of one directive; `is_clear` says whether what is wrong with them leaves no doubt."""

    def __init__(self, written: Written, directive: Directive, text: str, report: Callable[[Problem], None]) -> None:
        self.written, self.directive, self.text, self.report = written, directive, text, report
        self.is_clear = True
        self.present: set[str | None] = set()

    def run(self) -> tuple[Argument, ...]:
        """All arguments that can be read."""
        found: list[Argument] = []
        for index, value in enumerate(self.written.arguments):
            try:
                found.append(self.positional(index, value))
            except Problem as problem:
                self.is_clear = False
                self.report(problem)
        for keyword in self.written.keywords:
            try:
                found.append(self.keyword(keyword))
            except Problem as problem:
                self.is_clear = False
                self.report(problem)
        return tuple(found)

    def positional(self, index: int, value: ast.expr) -> Argument:
        start, end = self.written.span(value)
        length = end - start
        if isinstance(value, ast.Starred):
            raise Problem(start, length, "no `*` in a hint: write the arguments out")
        directive = self.directive
        if directive.positional is not None and index >= directive.positional:
            raise Problem(start, length, f"`{directive.name}` takes this by name: `{directive.example}`")
        named = directive.parameters[index].name if directive.positional and directive.parameters else None
        parameter = directive.parameter(named) if named else directive.more
        if named and parameter:
            return self.argument(parameter, named, value)
        self.present.add(named)
        return Argument(named, _enclosed(self.text[start:end], value), value, start)

    def keyword(self, keyword: ast.keyword) -> Argument:
        start, end = self.written.span(keyword.value)
        if keyword.arg is None:
            raise Problem(start, end - start, "no `**` in a hint: write the arguments out")
        directive, name = self.directive, keyword.arg
        name_start, _ = self.written.span(keyword)
        parameter = directive.parameter(name)
        if parameter is None:
            others = [
                each
                for each in directive.parameters
                if each.name not in self.present and _mistake(directive, each, each.name, keyword.value) is None
            ]
            known = [each.name for each in others or directive.parameters]
            meant = _closest_name(name, known) if name not in DIRECTIVES else None
            message = f"`{directive.name}` has no argument `{name}`{_instead(name, known, meant)}"
            problem = Problem(name_start, len(name), message, meant)
            parameter = next((each for each in others if each.name == meant), None)
            if parameter is None or meant is None:
                raise problem
            self.report(problem)
            name = meant
        if name in self.present:
            raise Problem(name_start, len(keyword.arg), f"`{name}` is given twice")
        return self.argument(parameter, name, keyword.value)

    def argument(self, parameter: Parameter, name: str, value: ast.expr) -> Argument:
        """An argument, with a misspelt choice replaced by the one that was meant."""
        self.present.add(name)
        start, end = self.written.span(value)
        text = self.text[start:end]
        mistake = _mistake(self.directive, parameter, name, value)
        if mistake is None:
            return Argument(name, _enclosed(text, value), value, start)
        leaf, message = mistake
        leaf_start, leaf_end = self.written.span(leaf)
        fix = _fix_of(leaf, parameter)
        problem = Problem(leaf_start, leaf_end - leaf_start, message, fix)
        if fix is None or leaf is not value:
            raise problem
        self.report(problem)
        return Argument(name, fix, ast.Constant(ast.literal_eval(fix)), start)


def _closest_name(name: str, known: Sequence[str]) -> str | None:
    """The argument that a name comes near to, or has as its last word: `batch_size` is a `size`."""
    close = closest(name, known)
    last = name.rpartition("_")[2]
    return close if close is not None or last not in known else last


def _instead(name: str, known: Sequence[str], meant: str | None) -> str:
    """What to write for an argument that a directive does not have, as the end of a message."""
    if name in DIRECTIVES:
        return f"; `{name}` is a hint of its own: `{DIRECTIVES[name].example}`"
    owners = [f"`{each.name}`" for each in DIRECTIVES.values() if any(one.name == name for one in each.parameters)]
    if owners and meant is None:
        return f"; it is an argument of {' and of '.join(owners)}"
    return nearest(name, known) if meant is None else f"; did you mean `{meant}`?"


def _mistake(directive: Directive, parameter: Parameter, name: str, value: ast.expr) -> tuple[ast.expr, str] | None:
    """The literal, in a value or a tree of them, that a parameter does not take, and why."""
    for leaf in _leaves(value) if parameter.is_tree else (value,):
        problem = _problem_of(leaf, directive, parameter, name)
        if problem is not None:
            return leaf, problem
    return None


def _leaves(value: ast.expr) -> Iterator[ast.expr]:
    """The expressions in a tree of tuples, lists and dicts."""
    match value:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Dict(values=items):
            for item in items:
                yield from _leaves(item)
        case _:
            yield value


def _problem_of(value: ast.expr, directive: Directive, parameter: Parameter, name: str) -> str | None:
    """What is wrong with a literal; None for an expression, which may be anything."""
    # In `ast`, `-1` is a minus and a constant.
    inner = value.operand if isinstance(value, ast.UnaryOp) else value
    if not isinstance(inner, ast.Constant) or not parameter.literals:
        return None
    # Not `isinstance`: True is an `int` to Python, but no whole number to a reader.
    if type(inner.value) not in parameter.literals:
        return f"`{directive.name}({name}={ast.unparse(value)})`: `{name}` must be {parameter.words}"
    if parameter.reads is not None and isinstance(inner.value, str):
        try:
            parameter.reads(inner.value)
        except ValueError as error:
            return f"`{name}`: {error}"
    choices = parameter.choices
    if not choices or inner.value in choices:
        return None
    word = str(inner.value)
    if len(choices) > _FEW:
        return f"there is no {name} {ast.unparse(value)}{nearest(word.lower(), choices)}"
    close = nearest(word, choices) if len(word) > 2 else ""
    suggestion = close if close.startswith("; did") else ""
    *first, last = (f'"{choice}"' for choice in choices)
    listed = f"{', '.join(first)} or {last}" if first else last
    return f"`{name}` must be {listed}, not {ast.unparse(value)}{suggestion}"


def _fix_of(value: ast.expr, parameter: Parameter) -> str | None:
    """The choice that a string comes near to, as a literal."""
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
        return None
    close = closest(value.value.lower(), parameter.choices)
    return None if close is None else quoted(close)


def _check_together(written: Written, directive: Directive, arguments: tuple[Argument, ...]) -> None:
    names = frozenset(argument.name for argument in arguments)
    for requirement in directive.requirements:
        if not requirement.holds(names):
            raise written.problem(requirement.message.format(directive))
    for argument in arguments:
        parameter = directive.parameter(argument.name) if argument.name else None
        value = whole_number(argument.value)
        if parameter and parameter.minimum is not None and value is not None and value < parameter.minimum:
            message = parameter.too_small.format(name=argument.name, value=value)
            raise Problem(argument.start, len(argument.text), message)
