"""The texts that a value may be, also where a part of them is computed: names of attributes and modules.

`getattr(self, f"make_{kind}")` may be each attribute whose name begins with `make_`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from mmrewrite.values.value import Access, By, Key, Value

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow

# What stands for a part of a text that is not seen.
ANYTHING = "\0"
_MOST_TEXTS = 32
_DEEPEST = 3
# What is known of a text must be so long to say which names it may be.
_SHORTEST = 2
# Methods of texts that make texts of them, or lists of texts.
_METHODS = frozenset(
    (
        *("capitalize", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rpartition"),
        *("rsplit", "rstrip", "split", "splitlines", "strip", "title", "upper"),
    )
)
_PLACES = re.compile(r"%[a-z]|\{[^{}]*\}")


class Texts(NamedTuple):
    """The texts that a value may be, and whether it can be nothing else."""

    texts: Sequence[str]
    is_whole: bool

    def may_be(self, name: str) -> bool:
        """Whether a text may be a name."""
        return any(_pattern(text).fullmatch(name) for text in self.texts)

    def names(self, names: Iterable[str]) -> Iterator[str]:
        """The texts that are seen, and texts of the names that unseen ones may be, for names in view."""
        for text in self.texts:
            if ANYTHING in text and len(text) - text.count(ANYTHING) >= _SHORTEST:
                yield from filter(_pattern(text).fullmatch, names)
            if text != ANYTHING:
                yield text


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split(ANYTHING))), re.DOTALL)


def texts_of(flow: ValueFlow, value: Value, depth: int = 0) -> Texts:
    """The texts that a value may be."""
    found = flow.may(value, _written) if depth < _DEEPEST else None
    if found is None or len(found.answers) > _MOST_TEXTS:
        return Texts([ANYTHING], False)
    texts = {text for each in found.answers for text in _texts_in(flow, each, depth)}
    is_whole = not found.unknown and not found.others
    if not is_whole or len(texts) > _MOST_TEXTS:
        texts.add(ANYTHING)
    return Texts(sorted(texts), is_whole and not any(ANYTHING in text for text in texts))


def _written(value: Value) -> Value | None:
    """A text that is written, perhaps with parts that are computed."""
    head = value.head
    is_text = isinstance(head, ast.JoinedStr) or (isinstance(head, ast.Constant) and isinstance(head.value, str))
    is_joined = isinstance(head, ast.BinOp) and isinstance(head.op, ast.Add | ast.Mod)
    if not value.path:
        return value if is_text or is_joined else None
    is_called = [step.kind for step in value.path[:2]] == [By.ATTRIBUTE, By.CALL]
    is_read = is_called and (value.path[0].what in _METHODS or (value.path[0].what == "format" and not value.path[2:]))
    return value if is_text and is_read else None


def _texts_in(flow: ValueFlow, value: Value, depth: int) -> Iterator[str]:
    parts: list[Sequence[str]] = []
    match value.head, value.path:
        case _, [Access(By.ATTRIBUTE, str(method)), Access(By.CALL), *_] if method != "format":
            parts = [[*_computed(flow, value, depth)]]
        case ast.Constant(value=str(text)), path:
            parts = [[_PLACES.sub(ANYTHING, text) if path else text]]
        case ast.JoinedStr(values=pieces), _:
            for piece in pieces:
                inner = piece.value if isinstance(piece, ast.FormattedValue) else piece
                assert isinstance(inner, ast.expr)
                parts.append(texts_of(flow, value._replace(head=inner), depth + 1).texts)
        case ast.BinOp(left=left, op=ast.Mod()), _:
            texts = texts_of(flow, value._replace(head=left), depth + 1).texts
            parts = [[_PLACES.sub(ANYTHING, text) for text in texts]]
        case ast.BinOp(left=left, right=right), _:
            parts = [texts_of(flow, value._replace(head=each), depth + 1).texts for each in (left, right)]
        case _:
            pass
    yield from map("".join, product(*parts))


def _computed(flow: ValueFlow, value: Value, depth: int) -> Iterator[str]:
    """The texts that a method makes of those of a value, or that lie in what it makes: `path.split(".")[0]`."""
    found: list[str | Sequence[str]] = [*texts_of(flow, value._replace(path=()), depth + 1).texts]
    path = value.path
    while path:
        match path:
            case [Access(By.ATTRIBUTE, str(method)), Access(By.CALL, call), *rest] if method in _METHODS:
                given = [each.value.expression for each in call.positional]
                if call.keywords or not all(isinstance(each, ast.Constant) for each in given):
                    yield ANYTHING
                    return
                words = [each.value for each in given if isinstance(each, ast.Constant)]
                try:
                    found = [getattr(each, method)(*words) for each in found if isinstance(each, str)]
                except (TypeError, ValueError):
                    # The program would raise here.
                    return
            case [Access(By.ITEM, Key(text=int(place))), *rest]:
                found = [each[place] for each in found if -len(each) <= place < len(each)]
            case [Access(By.ITEM | By.ELEMENT), *rest]:
                found = [part for each in found for part in each]
            case [Access(By.REST), *rest]:
                pass
            case _:
                yield ANYTHING
                return
        path = tuple(rest)
    yield from (each for each in found if isinstance(each, str))
