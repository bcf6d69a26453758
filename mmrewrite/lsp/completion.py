"""What may be written next in a hint comment: directives, their arguments, and names of axes and schedules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mmrewrite.directives.carrier import CARRIER
from mmrewrite.directives.comments import CARRIER_OR_NEAR
from mmrewrite.directives.vocabulary import DIRECTIVES, IGNORE, SWITCHES, Directive, Parameter, Role

# A directive with its arguments, as far as they are typed. Nothing in it is matched twice, as a line may be long.
_CALL = re.compile(r"[ \t]*+(\w++)[ \t]*+([(\[])(.*)", re.DOTALL)
_WORD = re.compile(r"[ \t]*+(\w*)")
_VALUE = re.compile(r"[ \t]*+(\w++)[ \t]*+=[ \t]*+([\"']?[\w.-]*)")
_POSITIONAL = re.compile(r"[ \t]*+([\"'][\w.-]*)")
# Where a program says what its axes are called, as far as that is written out.
_DECLARED = re.compile(r"\b(?:(mesh)|axes)\(([^()\n]{0,2000}+)")
_AXIS_NAMES = re.compile(r"\baxis_names=\(([^()\n]{0,2000}+)")
_KEYWORD = re.compile(r"(?<!\w)(\w++)[ \t]*+=(?!=)")
_QUOTED = re.compile(r"[\"'](\w++)[\"']")
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "\"'"


@dataclass(frozen=True)
class AxisNames:
    """The names of axes in some programs: those of meshes, and logical ones."""

    mesh: tuple[str, ...] = ()
    logical: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offer:
    """Something to write in place of the last `replaced` characters before the cursor."""

    text: str
    kind: Literal["directive", "argument", "value"]
    about: str
    replaced: int


def axis_names(texts: Iterable[str], configured: Iterable[str] = ()) -> AxisNames:
    """The names of axes that some texts declare, and those of a configuration."""
    mesh: dict[str, None] = {}
    logical = dict.fromkeys(configured)
    for text in texts:
        for declared in _DECLARED.finditer(text):
            names = mesh if declared[1] else logical
            names.update(dict.fromkeys(_KEYWORD.findall(declared[2])))
        for listed in _AXIS_NAMES.finditer(text):
            mesh.update(dict.fromkeys(_QUOTED.findall(listed[1])))
    return AxisNames(tuple(mesh), tuple(logical))


def offers(before: str, axes: AxisNames, codemods: Sequence[str]) -> tuple[Offer, ...]:
    """What may come next on a line whose text before the cursor is given; nothing outside of hint comments."""
    start = max((match.end() for match in CARRIER_OR_NEAR.finditer(before)), default=None)
    if start is None:
        # Nothing follows yet, without which it does not look like a hint.
        start = len(before) if before.rstrip().endswith(CARRIER.strip()) else None
    if start is None:
        return ()
    *_, directive = _parts(before[start:], ";")
    call = _CALL.fullmatch(directive)
    if call is None:
        word = _WORD.fullmatch(directive)
        return () if word is None else tuple(_directives(word[1]))
    name, opening, arguments = call.groups()
    *_, argument = _parts(arguments, ",")
    if name == IGNORE and opening == "[":
        word = _WORD.fullmatch(argument)
        return () if word is None else tuple(_beginning(word[1], codemods, "value", "a codemod"))
    if name not in DIRECTIVES or opening != "(" or not _is_open(arguments):
        return ()
    return tuple(_in_call(DIRECTIVES[name], argument, axes))


def _in_call(directive: Directive, argument: str, axes: AxisNames) -> Iterator[Offer]:
    value, positional, word = (each.fullmatch(argument) for each in (_VALUE, _POSITIONAL, _WORD))
    if value is not None:
        parameter = directive.parameter(value[1])
        if parameter is not None:
            yield from _quoted(value[2], _choices(directive, parameter, axes), parameter.words)
    elif positional is not None:
        yield from _quoted(positional[1], _positional(directive, axes), "an axis")
    elif word is not None:
        known = {f"{each.name}=": each.words for each in directive.parameters}
        if directive.more is not None:
            names = axes.logical if directive.role is Role.AXES else axes.mesh if directive.role is Role.PLACE else ()
            known |= {f"{name}=": directive.more.words for name in names}
        for name, about in known.items():
            yield from _beginning(word[1], [name], "argument", about)
        if directive.role is Role.LAYOUT:
            yield from _beginning(word[1], [f'"{name}"' for name in _positional(directive, axes)], "value", "an axis")


def _positional(directive: Directive, axes: AxisNames) -> Sequence[str]:
    if directive.role is Role.LAYOUT:
        return (*axes.logical, *(name for name in axes.mesh if name not in axes.logical))
    return axes.mesh if directive.deals_layers else ()


def _choices(directive: Directive, parameter: Parameter, axes: AxisNames) -> Sequence[str]:
    """The values that an argument may have, as far as there is a list of them."""
    if directive.role is Role.AXES or parameter.name == "axis":
        return axes.mesh
    return parameter.choices


def _directives(word: str) -> Iterator[Offer]:
    for name, directive in DIRECTIVES.items():
        yield from _beginning(word, [name], "directive", f"{directive.role.value}: {directive.example}")
    yield from _beginning(word, (*SWITCHES, IGNORE), "directive", "leaves hints alone")


def _quoted(typed: str, names: Sequence[str], about: str) -> Iterator[Offer]:
    quote = typed[:1] if typed.startswith(tuple(_QUOTES)) else '"'
    for name in names:
        if name.startswith(typed.lstrip(_QUOTES)):
            yield Offer(f"{quote}{name}{quote}", "value", about, len(typed))


def _beginning(
    word: str, names: Sequence[str], kind: Literal["directive", "argument", "value"], about: str
) -> Iterator[Offer]:
    for name in names:
        if name.lstrip(_QUOTES).startswith(word):
            yield Offer(name, kind, about, len(word))


def _depths(text: str) -> Iterator[tuple[int, str, int]]:
    """The letters of a text outside of strings, each with its place and the number of open brackets behind it."""
    depth, quote = 0, ""
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES:
            quote = letter
        else:
            depth += (letter in _OPENING) - (letter in _CLOSING)
            yield index, letter, depth


def _parts(text: str, separator: str) -> list[str]:
    """A text cut at a separator, but not within brackets and strings."""
    parts, start, least = list[str](), 0, 0
    for index, letter, depth in _depths(text):
        # What closes more than was open closes nothing.
        least = min(least, depth)
        if letter == separator and depth == least:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


def _is_open(arguments: str) -> bool:
    """Whether the bracket before some arguments is not closed by them."""
    return all(depth >= 0 for _, _, depth in _depths(arguments))
