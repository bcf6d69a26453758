"""Two forms of Python in one: what a program of `value_forms.txt` hands to `ask` is the value, `V`, of another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mmrewrite.source.walk import walk

_ASK = re.compile(r"^( *)((?:.*: )?)ask\((.*)\)$", re.MULTILINE)
# What means something else inside of a function, and files of their own.
_NEEDS_MODULE = re.compile(r"\bglobal |\bnonlocal |import \*|globals\(\)|locals\(\)|sys\.modules|__name__")
_INDENT = " " * 4


def composed(first: str, second: str) -> str | None:
    """A program that takes the value through the first form, and what that gives through the second.

    None if they do not go together: where the second has several files, say.
    """
    asked = [*_ASK.finditer(first)]
    if len(asked) != 1 or "# file" in second:
        return None
    (match,) = asked
    indent, lead, expression = match.groups()
    is_inside = bool(indent or lead)
    if is_inside and _NEEDS_MODULE.search(second):
        return None
    taken = {name for part in re.split(r"^# file .*\n", first, flags=re.MULTILINE) for name in _bound(part)}
    for name in taken & {*_bound(second)}:
        second = re.sub(rf"\b{name}\b", f"{name}_2", second) if not name.startswith("__") else second
    read = {node.id for node in walk(ast.parse(expression)) if isinstance(node, ast.Name)}
    is_plain = re.fullmatch(r"[\w.]+(\([^()]*\))?", expression) is not None
    if is_inside or not read.isdisjoint(_bound(second)) or re.search(r"\bawait |\byield |:=", expression):
        # There the expression may mean something else.
        text = f"value_1 = {expression}\n" + re.sub(r"\bV\b", "value_1", second)
    else:
        text = re.sub(r"\bV\b", lambda _: expression if is_plain else f"({expression})", second)
    inner = indent + (_INDENT if lead else "")
    lines = [inner + line if line else line for line in text.splitlines()]
    begin = f"{indent}{lead.rstrip()}\n" if lead else ""
    return first[: match.start()] + begin + "\n".join(lines) + first[match.end() :]


def _bound(code: str) -> Iterator[str]:
    """The names that code binds, but for those of methods, which are read of objects, and imports."""
    for node in walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.Module(body=body) | ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
                kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
                yield from (each.name for each in body if isinstance(each, kinds))
            case _:
                pass
