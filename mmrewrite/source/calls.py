"""Calls in normal form: a function with all that it is given, also by `functools.partial`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmrewrite.source.names import Module, Scope

# What these are given first is called later, with their other arguments before those of the call.
PARTIALS = frozenset(("functools.partial", "functools.partialmethod", "jax.tree_util.Partial"))


@dataclass(frozen=True, eq=False)
class CallForm:
    """A function with its arguments, those that a `partial` binds before those of the call.

    Attributes:
        call: The call that is read, or the `partial`.
        function: The function, behind every `partial`.
        positional: What it is given by position.
        keywords: What it is given by name; `**` has none.
        is_called: Whether it is called here, rather than kept with these arguments.
    """

    call: ast.Call
    function: ast.expr
    positional: Sequence[ast.expr]
    keywords: Sequence[ast.keyword]
    is_called: bool

    @property
    def stars(self) -> frozenset[str]:
        """Which of `*` and `**` hide arguments."""
        return _stars(self.positional, self.keywords)

    @property
    def count(self) -> int:
        """How many arguments are given by position, as far as they are written out."""
        return 0 if "*" in self.stars else len(self.positional)

    @property
    def is_whole(self) -> bool:
        """Whether all arguments are seen, and no others can follow."""
        return self.is_called and not self.stars

    def lacks(self, name: str, place: int | None) -> bool:
        """Whether an argument is surely not given, by name or in its place; None if it has no place."""
        is_placed = place is not None and self.count > place
        return self.is_whole and not is_placed and self.keyword(name) is None

    def after(self, partial: CallForm) -> CallForm:
        """This call as one of the function of a `partial` that is kept in between."""
        positional, keywords = (*partial.positional, *self.positional), (*partial.keywords, *self.keywords)
        return replace(self, function=partial.function, positional=positional, keywords=keywords)

    def keyword(self, name: str) -> ast.keyword | None:
        """The argument of a name, the last one if a call replaces it."""
        return next((each for each in reversed(self.keywords) if each.arg == name), None)


def stars_of(call: ast.Call) -> frozenset[str]:
    """Which of `*` and `**` hide arguments of a call as it is written."""
    return _stars(call.args, call.keywords)


def _stars(positional: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> frozenset[str]:
    found = ["*"] if any(isinstance(each, ast.Starred) for each in positional) else []
    return frozenset((*found, "**") if any(each.arg is None for each in keywords) else found)


def call_form(names: Module, call: ast.Call, scope: Scope) -> CallForm:
    """The normal form of a call: `partial(f, 1)(2)` is `f(1, 2)`, and `partial(f, 1)` is `f(1)` that is not called."""
    bound = _is_partial(names, call, scope)
    if not bound and not isinstance(call.func, ast.Call):
        return CallForm(call, call.func, call.args, call.keywords, is_called=True)
    given: list[tuple[Sequence[ast.expr], Sequence[ast.keyword]]] = []
    function: ast.expr = call
    if not bound:
        given, function = [(call.args, call.keywords)], call.func
    while isinstance(function, ast.Call) and _is_partial(names, function, scope):
        given.append((function.args[1:], function.keywords))
        function = function.args[0]
    given.reverse()
    positional = [each for args, _ in given for each in args]
    keywords = [each for _, words in given for each in words]
    return CallForm(call, function, positional, keywords, is_called=not bound)


def _is_partial(names: Module, call: ast.Call, scope: Scope) -> bool:
    is_given = bool(call.args) and not isinstance(call.args[0], ast.Starred)
    return is_given and names.resolve(call.func, scope) in PARTIALS
