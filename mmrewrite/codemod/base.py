"""The base class of all codemods."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import ClassVar, NoReturn

import libcst as cst

from mmrewrite.codemod.site import Site
from mmrewrite.directives.collect import Hint
from mmrewrite.directives.vocabulary import STATEMENT
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach
from mmrewrite.results import Refusal


class MeshCodemod(cst.CSTTransformer):
    """Rewrites the site of one hint, or refuses it.

    `rewrite` decides, from the facts in `self.site`, and asks for the changes; `leave_...` methods make them, on the
    pieces that `rewrite` handed to `self.site.transform`. Nodes are compared by `original_node`, so that it does not
    matter what other codemods do to the same statement.

    `directive` and `kinds` say which hints are its sites, `takes` which other directives are used up with them.
    """

    directive: ClassVar[str]
    kinds: ClassVar[frozenset[str]] = frozenset((STATEMENT,))
    takes: ClassVar[tuple[str, ...]] = ()
    run_after: ClassVar[tuple[str, ...]] = ()

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        self.hint = site.hint

    @classmethod
    def consumes(cls, hint: Hint) -> bool:
        """Whether a rewrite uses a hint up: its own, or one that it takes with it."""
        return hint.directive in (cls.directive, *cls.takes) and hint.kind in cls.kinds

    def rewrite(self) -> None:
        """Decide about the whole site. Raises through `self.refuse` when it must stay as it is."""
        raise NotImplementedError

    @classmethod
    def review(cls, project: Project, reach: Reach, modules: Sequence[Facts]) -> Iterable[Refusal]:
        """Places without a hint that the user should know about, once everything is decided."""
        return ()

    def refuse(self, reason: str, node: ast.expr | ast.stmt | None = None) -> NoReturn:
        """Leave the site alone and say why."""
        self.site.refuse(reason, node)

    def generated(self, function: str, *values: cst.BaseExpression | str, **keywords: str) -> cst.Call:
        """A call such as `mm.task(block, task=...)`; text is parsed, nodes are taken as they are."""
        arguments = [cst.Arg(value=expression(value)) for value in values]
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        arguments += [
            cst.Arg(keyword=cst.Name(name), value=expression(text), equal=equal) for name, text in keywords.items()
        ]
        return cst.Call(func=expression(function), args=arguments)


def expression(code: cst.BaseExpression | str) -> cst.BaseExpression:
    """A node for a piece of source text."""
    return cst.parse_expression(code) if isinstance(code, str) else code


def spaced(space: cst.BaseParenthesizableWhitespace | cst.MaybeSentinel) -> cst.BaseParenthesizableWhitespace:
    """The space after a word such as `return`, which parentheses may have made unnecessary: `return(x)`."""
    if isinstance(space, cst.BaseParenthesizableWhitespace) and not space.empty:
        return space
    return cst.SimpleWhitespace(" ")
