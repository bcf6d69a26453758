"""Which arguments of a call a parameter gets."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.functions import with_defaults
from mmrewrite.values.value import (
    ANY_ITEM,
    ELEMENT,
    CallArguments,
    CallFrame,
    Display,
    Function,
    GivenValue,
    Unknown,
    Value,
    item,
)

Callable = Function | ast.Lambda


def of_parameter(
    module: ModuleUses, function: Callable, parameter: ast.arg, call: CallArguments, outer: CallFrame | None
) -> Iterator[Value | Unknown]:
    """The arguments of a call that a parameter of its function may be, else its default."""
    arguments = function.args
    in_order = [*arguments.posonlyargs, *arguments.args]
    if parameter is arguments.vararg:
        yield Value(module, _rest(call, len(in_order)), (), None)
        return
    if parameter is arguments.kwarg:
        yield Value(module, _others(call, [*arguments.args, *arguments.kwonlyargs]), (), None)
        return
    place = in_order.index(parameter) if parameter in in_order else None
    is_certain = False
    for each in _placed(call, place):
        is_certain |= each[1]
        yield each[0]
    if not is_certain and parameter not in arguments.posonlyargs:
        for name, value in call.keywords:
            if name == parameter.arg:
                is_certain = True
                yield value
            elif name is None:
                yield value.done(item(parameter.arg))
    if not is_certain:
        default = default_of(function, parameter)
        if default is not None:
            yield Value(module, default, (), outer)
        elif not call.keywords and not any(each.is_starred for each in call.positional):
            yield Unknown(f"a call passes nothing for `{parameter.arg}`", Value(module, parameter))


def _placed(call: CallArguments, place: int | None) -> Iterator[tuple[Value, bool]]:
    """What a call passes by position, with whether that is certain."""
    if place is None:
        return
    is_shifted = False
    for index, each in enumerate(call.positional[: place + 1]):
        if each.is_starred:
            is_last = all(not other.is_starred for other in call.positional[index + 1 : place + 1])
            # How many places an earlier one takes is not seen.
            yield each.value.done(item(place - index) if is_last and not is_shifted else ELEMENT), False
            is_shifted = True
            if is_last:
                yield from ((other.value, False) for other in call.positional[index + 1 :] if not other.is_starred)
                return
        elif index == place:
            yield each.value, True


def default_of(function: Callable, parameter: ast.arg) -> ast.expr | None:
    """The default of a parameter."""
    return next((default for each, default in with_defaults(function.args) if each is parameter), None)


def _rest(call: CallArguments, count: int) -> Display:
    given = call.positional
    stars = [index for index, each in enumerate(given) if each.is_starred]
    if stars and stars[0] < count:
        # How many of them are left for others is not seen.
        return Display(
            [(None, each.value, each.is_starred) for each in given[stars[0] :]], is_mapping=False, is_loose=True
        )
    return Display([(None, each.value, each.is_starred) for each in given[count:]], is_mapping=False)


def _others(call: CallArguments, named: list[ast.arg]) -> Display:
    taken = {each.arg for each in named}
    return Display([(name, value, name is None) for name, value in call.keywords if name not in taken], is_mapping=True)


def joined(first: CallArguments, second: CallArguments) -> CallArguments:
    """The arguments of two calls after one another, as of `partial(f, a)(b)`; later keywords hide earlier ones."""
    later = {name for name, _ in second.keywords if name is not None}
    keywords = [*((name, value) for name, value in first.keywords if name not in later), *second.keywords]
    return CallArguments([*first.positional, *second.positional], keywords, second.node)


def without_first(call: CallArguments) -> CallArguments:
    """The arguments of a call but for the first, which `partial` takes."""
    if not call.positional or call.positional[0].is_starred:
        return call
    return CallArguments(call.positional[1:], call.keywords, call.node)


def given(call: CallArguments) -> Iterator[Value]:
    """All values that a call is given, or elements of which it is given."""
    for each in call.positional:
        yield each.value.done(ELEMENT) if each.is_starred else each.value
    for name, value in call.keywords:
        yield value if name is not None else value.done(ANY_ITEM)


def with_first(value: Value, call: CallArguments) -> CallArguments:
    """The arguments of a call of a method, with its object."""
    return CallArguments([GivenValue(value), *call.positional], call.keywords, call.node)


def parameter_of(definition: Callable, call: ast.Call, argument: ast.expr, *, is_bound: bool = False) -> str | None:
    """The name of the parameter that an argument of a call is passed for, None if that is not seen."""
    keyword = next((each for each in call.keywords if each.value is argument), None)
    arguments = definition.args
    if keyword is not None:
        named = {each.arg for each in (*arguments.args, *arguments.kwonlyargs)}
        return keyword.arg if keyword.arg in named else None
    if argument not in call.args or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    in_order = [*arguments.posonlyargs, *arguments.args]
    place = call.args.index(argument) + is_bound
    return in_order[place].arg if place < len(in_order) else None
