"""What functions and their arguments are called in messages and marks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from mmruntime import _compat


def label_of(fun: Any) -> str:
    """The name of a function; of what a transformation makes, that of the function which it was given."""
    fun = innermost(fun)
    return getattr(fun, "__name__", type(fun).__name__)


def innermost(fun: Any) -> Any:
    """The function in what transformations and `functools.partial` make."""
    while True:
        # The transformations of Flax's nnx give theirs their own name, and hold what they were given in a variable.
        is_nnx = getattr(fun, "__module__", None) == "flax.nnx.transforms.autodiff"
        if isinstance(fun, functools.partial):
            fun = fun.func
        elif (inner := inspect.unwrap(fun)) is not fun:
            fun = inner
        elif is_nnx and (given := _given(fun)) is not None:
            fun = given
        else:
            return fun


def _given(fun: Any) -> Any:
    if not inspect.isfunction(fun) or fun.__closure__ is None or "f" not in fun.__code__.co_freevars:
        return None
    given = fun.__closure__[fun.__code__.co_freevars.index("f")].cell_contents
    return given if callable(given) else None


def parameters_of(fun: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function, as far as Python can tell: some built-in ones have no signature."""
    try:
        return inspect.signature(fun).parameters
    except ValueError:
        anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return {name: inspect.Parameter(name, kind) for name, kind in zip(("args", "kwargs"), anything, strict=True)}


def argument_name(path: Sequence[Any], arguments: Sequence[str]) -> str:
    """The user's name for an input: the argument, and the path within it."""
    kind, place, *rest = path
    if kind.idx == 1:
        name = str(place.key)
    else:
        name = arguments[place.idx] if place.idx < len(arguments) else f"args[{place.idx}]"
    return f"{name}{jax.tree_util.keystr(tuple(rest))}"


def positional_names(fun: Callable[..., Any], *, required: bool = False) -> tuple[str, ...]:
    """The names of a function's positional parameters, or of those without a default, but for what `*args` takes."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [each for each in parameters_of(fun).values() if each.kind in kinds]
    return tuple(each.name for each in found if not required or each.default is each.empty)


def place_names(fun: Callable[..., Any], places: Iterable[int | str]) -> list[str]:
    """The user's names for arguments of a function, given by their positions or keywords."""
    # The transformations of Flax's nnx take any arguments.
    parameters = positional_names(fun) or positional_names(innermost(fun))
    return [
        place if isinstance(place, str) else parameters[place] if place < len(parameters) else f"args[{place}]"
        for place in places
    ]


def leaf_names(fun: Callable[..., Any], values: Sequence[tuple[int | str, Any]]) -> list[str]:
    """The user's name for each leaf of some arguments of a function, given with their positions or keywords."""
    return [
        f"{name}{jax.tree_util.keystr(path)}"
        for name, (_, value) in zip(place_names(fun, [place for place, _ in values]), values, strict=True)
        for path, _ in jax.tree_util.tree_leaves_with_path(value)
    ]


def name_trace(function: Any, what: str, fun: Any, names: Sequence[str]) -> None:
    """Have JAX speak of the user's `fun`, and of its arguments by these names, where `what` traces `function`."""
    inner = innermost(fun)
    if not hasattr(inner, "__code__"):
        # Of an object, such as a module, that can be called.
        inner = inspect.unwrap(type(inner).__call__)
    _compat.name_trace(function, what, label_of(fun), getattr(inner, "__code__", None), names)
