"""What a call runs: the functions behind what is called, with `partial` taken apart and decorators applied."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.functions import results_of
from mmrewrite.values.library import RUN_MORE
from mmrewrite.values.value import By, CallArguments, Function, Unknown, Value

# Texts and containers, which run nothing of the program where they are gone through.
_PLAIN = (
    *(ast.Tuple, ast.List, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp),
    *(ast.JoinedStr, ast.Constant),
)


class Callees(NamedTuple):
    """What may run: functions and classes of the project, calls of libraries, and what is unknown.

    `passed` are the expressions that the way back led through.
    """

    definitions: list[Value]
    outside: list[Value]
    unknown: list[Unknown]
    passed: list[ast.AST]


def callees(flow: ValueFlow, value: Value, is_harmless: Callable[[Value], bool] = lambda _: False) -> Callees:
    """What runs where a value is called, gone through or entered, as its last step says.

    `is_harmless` says of which values it is known that nothing of the program runs.
    """
    found = Callees([], [], [], [])

    def test(value: Value) -> str | None:
        if isinstance(value.head, ast.AST):
            found.passed.append(value.head)
        return "plain" if is_harmless(value) else _kind_of(flow, value)

    for kind, each in flow.walk(value, test):
        if isinstance(each, Unknown):
            found.unknown.append(each)
        elif kind == "definition":
            found.definitions.append(each)
        elif kind == "outside":
            found.outside.append(each)
        elif kind is None and each.path and not _is_none(each):
            found.unknown.append(Unknown("what is called cannot be seen", each))
    return found


def given_functions(call: CallArguments) -> Iterator[Value]:
    """The arguments of a call that may be functions as they are written."""
    for value in (*(each.value for each in call.positional), *(value for _, value in call.keywords)):
        if not isinstance(value.head, ast.Constant | ast.JoinedStr | ast.BinOp | ast.Compare | ast.UnaryOp):
            yield value


def _kind_of(flow: ValueFlow, value: Value) -> str | None:
    head, path = value.head, value.path
    if not path:
        return None
    first = path[0].kind
    if isinstance(head, Function | ast.Lambda):
        # What it gives is called, gone through or entered in its turn, but for a generator, which runs only then.
        is_it = len(path) == 1 or isinstance(head, ast.AsyncFunctionDef) or results_of(head).is_generator
        return "definition" if first is By.CALL and is_it else None
    if isinstance(head, ast.ClassDef):
        return "definition" if first is By.CALL and len(path) == 1 else None
    if isinstance(head, str):
        # What `operator.add` gives may be anything, but it runs what `a + b` does; JAX runs code of its own besides.
        is_operator = head.startswith("operator.") and all(isinstance(each, Unknown) for each in flow.behind(value))
        return None if flow.behind(value) and not (is_operator or head in RUN_MORE) else "outside"
    if isinstance(head, _PLAIN) and first in (By.ELEMENT, By.REST) and len(path) == 1:
        return "plain"
    if isinstance(head, _PLAIN) and first is By.ATTRIBUTE:
        # A method of a text or a container, whatever is in it.
        is_method = [step.kind for step in path] == [By.ATTRIBUTE, By.CALL]
        return "plain" if is_method or not flow.behind(value) else None
    if (
        isinstance(head, ast.BinOp)
        and isinstance(head.op, ast.Div)
        and isinstance(head.right, ast.Constant | ast.JoinedStr)
    ):
        # Only paths are divided by texts.
        return "plain"
    return None


def _is_none(value: Value) -> bool:
    return isinstance(value.head, ast.Constant) and value.head.value is None
