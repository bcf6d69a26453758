"""The names, attributes and imports of a module, by the statement that holds them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from mmrewrite.source.names import dotted_name
from mmrewrite.source.walk import children, walk

_OWN = ("self", "cls")
# The fields of a mention of an attribute.
_Key = tuple[str | None, str | None, ast.ClassDef | None, bool]


@dataclass(frozen=True, eq=False)
class Mention:
    """Something that a module mentions, in one place or many. Equal mentions are one value.

    Attributes:
        name: A name that is read.
        dotted: The text of a chain of attributes on a name, such as `a.b.c`.
        member: The name of an attribute that is read, whatever it is an attribute of.
        owner: The class around `self.member`; None for attributes of anything else, and outside of classes.
        is_own: Whether this is `self.member` or `cls.member`.
        statement: An import.
    """

    name: str | None = None
    dotted: str | None = None
    member: str | None = None
    owner: ast.ClassDef | None = None
    is_own: bool = False
    statement: ast.Import | ast.ImportFrom | None = None

    @cached_property
    def head(self) -> str | None:
        """The name that it begins with, if it begins with one."""
        return self.dotted.partition(".")[0] if self.dotted is not None else self.name


class Mentions:
    """What a module mentions, collected once: the mentions in a statement are one slice of a list."""

    def __init__(self, tree: ast.Module) -> None:
        self._all: list[Mention] = []
        self._spans: dict[ast.AST, tuple[int, int]] = {}
        self._at: dict[ast.AST, Mention] = {}
        self._known: dict[_Key, Mention] = {}
        self._names: dict[str, Mention] = {}
        self._collect(tree, None)

    def _collect(self, holder: ast.AST, owner: ast.ClassDef | None) -> None:
        """Collect the mentions in a statement, those of statements in it among them."""
        start = len(self._all)
        mention = self._mention(holder, owner)
        if mention is not None:
            self._all.append(mention)
            self._at[holder] = mention
        if isinstance(holder, ast.ClassDef):
            owner = holder
        nodes = list(children(holder))
        for node in nodes:
            # Most nodes are constants and names, which hold no others.
            kind = type(node)
            if kind is ast.Constant:
                continue
            if kind is ast.Name or kind is ast.Attribute:
                mention = self._mention(node, owner)
                if mention is not None:
                    self._all.append(mention)
                    self._at[node] = mention
                if kind is ast.Name:
                    continue
            elif isinstance(node, ast.stmt):
                self._collect(node, owner)
                continue
            nodes += children(node)
        self._spans[holder] = (start, len(self._all))

    def at(self, node: ast.AST) -> Mention | None:
        """What a node of the tree mentions by itself."""
        return self._at.get(node)

    def inside(self, node: ast.AST) -> Iterable[Mention]:
        """What a node and all that is in it mention, each once, outer nodes first."""
        span = self._spans.get(node)
        return dict.fromkeys(self._all[slice(*span)]) if span is not None else self.of(walk(node))

    def of(self, nodes: Iterable[ast.AST]) -> Iterable[Mention]:
        """What some nodes mention by themselves, each once."""
        # An annotation in a string is no part of the tree.
        found = ((self._at.get(node) or self._mention(node, None)) for node in nodes)
        return dict.fromkeys(mention for mention in found if mention is not None)

    def _mention(self, node: ast.AST, owner: ast.ClassDef | None) -> Mention | None:
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                return None
            found = self._names.get(node.id)
            if found is None:
                found = self._names[node.id] = Mention(node.id)
            return found
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in _OWN
            member = node.attr if isinstance(node.ctx, ast.Load) else None
            key: _Key = (dotted_name(node), member, owner if is_own else None, is_own)
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = Mention(None, *key)
            return found
        return Mention(statement=node) if isinstance(node, ast.Import | ast.ImportFrom) else None
