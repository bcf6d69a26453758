"""What a text may be that a program puts together of parts, as a regular expression."""

from __future__ import annotations

import ast
import re
import string

from mmmodernize.modules.passed_modules import text_of
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.branches import branches

_ANY = ".*"
_DEEPEST = 6
_PERCENT = re.compile(r"%(?:\(\w*\))?[-#0 +]*+(?:\*|\d++)?(?:\.(?:\*|\d++))?[hlL]?([a-zA-Z%])")
_DOLLAR = re.compile(r"\$(?:\$|\w+|\{\w+\})")


def text_pattern(module: ModuleUses, node: ast.expr | None, depth: int = 0) -> str:
    """A pattern that matches whatever text an expression may be; `.*` for each part that is not seen."""
    if depth > _DEEPEST or node is None:
        return _ANY

    def inner(part: ast.expr | None) -> str:
        return text_pattern(module, part, depth + 1)

    sides = [*branches(node)]
    if sides != [node]:
        return f"(?:{'|'.join(map(inner, sides))})"
    match node:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.Constant(value=value):
            return re.escape(str(value))
        case ast.JoinedStr(values=parts):
            return "".join(map(inner, parts))
        case ast.FormattedValue(value=value, conversion=conversion, format_spec=None) if conversion in (-1, ord("s")):
            return inner(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return inner(left) + inner(right)
        case ast.BinOp(left=template, op=ast.Mod()):
            return _filled(text_of(module, template), _PERCENT)
        case ast.Name(id=name):
            binding = module.facts.names.binding(name, module.scope_of(node))
            return inner(binding.value) if binding is not None and binding.value is not None else _ANY
        case ast.Call():
            return _of_call(module, node, depth)
        case _:
            return _ANY


def _of_call(module: ModuleUses, call: ast.Call, depth: int) -> str:
    def inner(part: ast.expr) -> str:
        return text_pattern(module, part, depth + 1)

    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="str"), attr="format"), args=[template, *_]):
            return _of_format(text_of(module, template))
        case ast.Call(func=ast.Attribute(value=template, attr="format" | "format_map")):
            return _of_format(text_of(module, template))
        case ast.Call(func=ast.Attribute(attr="substitute" | "safe_substitute", value=ast.Call(args=[template, *_]))):
            return _filled(text_of(module, template), _DOLLAR)
        case ast.Call(
            func=ast.Attribute(value=between, attr="join"), args=[ast.List(elts=parts) | ast.Tuple(elts=parts)]
        ):
            return inner(between).join(map(inner, parts))
        case ast.Call(func=ast.Attribute(value=first, attr="__add__"), args=[second]):
            return inner(first) + inner(second)
        case ast.Call(func=ast.Name(id="str"), args=[value]):
            return inner(value)
        case _:
            return _ANY


def _filled(text: str | None, places: re.Pattern[str]) -> str:
    """A text with places to fill, as a pattern."""
    if text is None:
        return _ANY
    found, end = "", 0
    for place in places.finditer(text):
        is_literal = place[0] in ("%%", "$$")
        found += re.escape(text[end : place.start()]) + (re.escape(place[0][0]) if is_literal else _ANY)
        end = place.end()
    return found + re.escape(text[end:])


def _of_format(text: str | None) -> str:
    if text is None:
        return _ANY
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError:
        return _ANY
    return "".join(re.escape(before) + ("" if field is None else _ANY) for before, field, _, _ in parts)


# With more parts that are not seen between those that are, and choices among these, all of the text counts as not seen.
_MOST_UNSEEN = 4


def says_part(pattern: str) -> re.Pattern[str] | None:
    """A pattern that is ready to match whole texts in linear time, None where no part of the text is seen."""
    if not re.search(r"\w", pattern.replace("(?:", "")):
        return None
    first, *rest = re.split(r"(?:\.\*)+", pattern)
    if "(?:" in pattern:
        return re.compile(_ANY.join((first, *rest)), re.DOTALL) if len(rest) <= _MOST_UNSEEN else None
    # The first place of each part will do, wherever the next ones are. Else each would be tried with all of the others.
    found = [f"(?>.*?{part})" for part in rest[:-1]]
    return re.compile("".join([first, *found, *(f"{_ANY}{part}" for part in rest[-1:])]), re.DOTALL)
