"""Checks of user arguments. Every message has the function, the argument, what it must be, and what it is."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

_LONGEST = 100


def shown(value: Any) -> str:
    """A value in a message: its `repr`, truncated where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... (of type {type(value).__name__})"


def wrong(what: str, name: str, expected: str, value: Any) -> TypeError:
    """The error for a value of the wrong type.

    Args:
        what: The function or class that the user called.
        name: The parameter.
        expected: What the value must be; may add what to write.
        value: The value.
    """
    return TypeError(f"{what}: {name} must be {expected}, got {shown(value)}.")


def unknown(what: str, kind: str, name: str, known: Sequence[str]) -> TypeError:
    """The error for an unknown keyword argument, with the closest known one.

    Args:
        what: The function or class that the user called.
        kind: The word for its keyword arguments: "option", or "field" of a task.
        name: The keyword.
        known: All known keywords.
    """
    near = nearest(name, known)
    guess = f"; did you mean {near!r}?" if near else "."
    return TypeError(f"{what}: unknown {kind} {name!r}{guess} There are {', '.join(known)}.")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelled one most likely stands for, whatever its case; None if it is like none."""
    by_fold = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(name.casefold(), by_fold, n=1)
    return by_fold[near[0]] if near else None


def integer(what: str, name: str, value: Any, least: int | None = None) -> int:
    """A Python, NumPy or JAX integer as an `int`; a bool is none.

    Raises:
        TypeError: If it is no integer.
        ValueError: If it is less than `least`.
    """
    kind = "an integer" if least is None else "a positive integer" if least == 1 else f"an integer, {least} or more"
    if isinstance(value, bool | np.bool_):
        raise wrong(what, name, kind, value)
    try:
        number = operator.index(value)
    except TypeError:
        raise wrong(what, name, kind, value) from None
    if least is not None and number < least:
        raise ValueError(f"{what}: {name} must be {kind}, got {number}.")
    return number


def optional_integer(what: str, name: str, value: Any, least: int | None = None) -> int | None:
    """As `integer`, or None."""
    return None if value is None else integer(what, name, value, least)


def flag(what: str, name: str, value: Any) -> bool:
    """A bool.

    Raises:
        TypeError: If it is no bool.
    """
    if not isinstance(value, bool):
        raise wrong(what, name, "True or False", value)
    return value


def switch(what: str, variable: str, environment: Mapping[str, str]) -> bool | None:
    """What an environment variable says that is 0 or 1; None if it is not set, or empty.

    Raises:
        ValueError: If it is neither.
    """
    text = environment.get(variable, "").strip()
    if text not in ("", "0", "1"):
        raise ValueError(f"{what}: {variable} must be 0 or 1, got {text!r}.")
    return text == "1" if text else None


def text(what: str, name: str, value: Any) -> str:
    """A non-empty string.

    Raises:
        TypeError: If it is no string, or empty.
    """
    if not isinstance(value, str) or not value:
        raise wrong(what, name, "a non-empty string", value)
    return value


def function(what: str, name: str, value: Any, expected: str = "a function") -> None:
    """Check that a value is callable.

    Raises:
        TypeError: If it is not.
    """
    if not callable(value):
        raise wrong(what, name, expected, value)


def items(what: str, name: str, value: Any, expected: str) -> list[Any]:
    """The items of an iterable that is no string, mapping or set.

    Raises:
        TypeError: If it is something else.
    """
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | Set):
        try:
            return list(value)
        except TypeError:  # An array without dimensions.
            pass
    raise wrong(what, name, expected, value)


def numbers(what: str, name: str, value: Any, expected: str) -> tuple[float, ...]:
    """A sequence of real numbers.

    Raises:
        TypeError: If it is something else.
    """
    entries = items(what, name, value, expected)
    if any(isinstance(each, str | bytes) for each in entries):
        raise wrong(what, name, expected, value)
    try:
        return tuple(float(each) for each in entries)
    except (TypeError, ValueError):
        raise wrong(what, name, expected, value) from None


def axes(what: str, sizes: Any, names: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Sizes and names of a mesh's axes.

    Raises:
        TypeError: If the sizes are no integers or the names no strings.
        ValueError: If their numbers differ, a size is not positive, or a name occurs twice.
    """
    expected = "a sequence of positive integers, one per axis"
    raw_sizes = tuple(items(what, "axis_sizes", sizes, expected))
    named = axis_names(what, "axis_names", names)
    try:
        checked = tuple(integer(what, "axis_sizes", size) for size in raw_sizes)
    except TypeError:
        raise wrong(what, "axis_sizes", expected, raw_sizes) from None
    if len(checked) != len(named):
        raise ValueError(f"{what}: {len(checked)} axis sizes {checked} for {len(named)} axis names {named}.")
    if any(size < 1 for size in checked):
        raise ValueError(f"{what}: axis sizes must be positive integers, got {checked}.")
    return checked, named


def axis_names(what: str, name: str, value: Any) -> tuple[str, ...]:
    """Names of a mesh's axes; a string is one name, as for `jax.sharding.Mesh`.

    Raises:
        TypeError: If they are no sequence of strings.
        ValueError: If a name occurs twice.
    """
    expected = 'a sequence of names such as ("stage", "data")'
    names = (value,) if isinstance(value, str) else tuple(items(what, name, value, expected))
    if not all(isinstance(axis, str) and axis for axis in names):
        raise wrong(what, name, expected, value)
    if len(set(names)) != len(names):
        raise ValueError(f"{what}: an axis name is given twice in {names}.")
    return names


def indices(what: str, name: str, value: Any) -> dict[str, int]:
    """A mapping of axis names to indices.

    Raises:
        TypeError: If it is something else.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f'{what}: {name} must map axis names to indices, such as {{"stage": 0}}, got {shown(value)}.')
    for axis in value:
        text(what, f"an axis of {name}", axis)
    return {axis: integer(what, f"{name}[{axis!r}]", index) for axis, index in value.items()}
