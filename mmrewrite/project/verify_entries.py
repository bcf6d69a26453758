"""The functions that `verify` hints name, in a form that another process can import."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mmrewrite.directives.collect import Hint
from mmrewrite.directives.vocabulary import Role, nearest
from mmrewrite.project.facts import Facts
from mmrewrite.source.names import dotted_name


class NoEntry(ValueError):
    """Why the function of a hint cannot be imported and called."""


@dataclass(frozen=True)
class Entry:
    """A function and the function that makes its arguments, as `module:function`; `place` is the hint's line."""

    step: str
    arguments: str
    place: str


def entry_of(facts: Facts, hint: Hint) -> Entry:
    """The entry that a `verify` hint names.

    Raises:
        NoEntry: If its function is not at module level, or `args=` is not a name of the module.
    """
    statement = hint.statement
    if statement not in facts.tree.body:
        raise NoEntry("`verify` calls a function by its name in the module; write the hint on one at module level")
    name = _bound_name(statement)
    if name is None:
        raise NoEntry("`verify` belongs to a `def`, or to a statement that gives one name to a function")
    argument = hint.argument("args")
    dotted = dotted_name(argument.value) if argument is not None else None
    if argument is None or dotted is None:
        raise NoEntry(
            "`args=` names a function without arguments that returns the tuple of the step's; give it a name, and "
            "write that: `verify(args=make_example_args)`"
        )
    known = facts.names.scope.bindings
    if dotted.partition(".")[0] not in known:
        close = nearest(dotted.partition(".")[0], known)
        advice = close if close.startswith("; did") else "; define or import it there"
        raise NoEntry(f"`{dotted}` is no name of this module{advice}")
    place = f"{facts.path}:{hint.reference.line}"
    return Entry(f"{facts.names.name}:{name}", f"{facts.names.name}:{dotted}", place)


def hinted_entries(modules: Iterable[Facts]) -> Iterator[Entry]:
    """The entries of all correct `verify` hints, in the order of the files."""
    for facts in modules:
        for hint in facts.hints.hints:
            if hint.record.role is Role.PROOF:
                try:
                    yield entry_of(facts, hint)
                except NoEntry:
                    # The run has refused it and said why.
                    continue


def _bound_name(statement: ast.stmt) -> str | None:
    match statement:
        case ast.FunctionDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None
