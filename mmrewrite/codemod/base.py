"""The base class of all codemods."""

from __future__ import annotations

import ast
import functools
import keyword
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
from mmrewrite.source.brackets import bracketless_text, needs_brackets
from mmrewrite.source.libcst_parser import parse_expression
from mmrewrite.source.text import has_lines


class MeshCodemod(cst.CSTTransformer):
    """Rewrites the site of one hint, or refuses it.

    `rewrite` decides from the facts in `self.site` and registers the changes; `leave_...` methods make them, on the
    fragments that `rewrite` passed to `self.site.transform`. Match nodes by `original_node`: LibCST makes new nodes
    whenever another codemod changes the same statement, and the original ones keep their identity.

    Attributes:
        directive: The directive whose hints are its sites.
        kinds: The kinds of statement on which they are.
        takes: Other directives on the same statement, whose hints it consumes as well.
        run_after: Names of codemods that must run before it.
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
        """Whether its rewrite consumes a hint: that of its site, or one that it takes with it."""
        return hint.directive in (cls.directive, *cls.takes) and hint.kind in cls.kinds

    def rewrite(self) -> None:
        """Decide about the whole site, and register the changes.

        Raises:
            SiteRefused: Through `self.refuse`, if the site must stay as it is.
        """
        raise NotImplementedError

    @classmethod
    def review(cls, project: Project, reach: Reach, modules: Sequence[Facts]) -> Iterable[Refusal]:
        """Report places without a hint that the user should know about, once everything is decided."""
        return ()

    def refuse(self, reason: str, node: ast.expr | ast.stmt | None = None) -> NoReturn:
        """Leave the site alone and say why."""
        self.site.refuse(reason, node)

    def generated(self, function: str, *values: cst.BaseExpression | str, **keywords: str) -> cst.Call:
        """Make a call such as `mm.task(block, task=...)`, of source text or of nodes, which are used as they are."""
        arguments = [cst.Arg(value=expression(value)) for value in values]
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        arguments += [
            cst.Arg(keyword=cst.Name(name), value=expression(text), equal=equal) for name, text in keywords.items()
        ]
        return cst.Call(func=expression(function), args=arguments)


def expression(code: cst.BaseExpression | str) -> cst.BaseExpression:
    """Parse the source text of an expression; a node is returned as it is."""
    return _parsed(code) if isinstance(code, str) else code


@functools.lru_cache
def _parsed(code: str) -> cst.BaseExpression:
    """The expression of a text. Sites have the same few, and nobody changes a node."""
    if has_lines(code):
        parsed = parse_expression(bracketless_text(code)).visit(_LinesStay())
        assert isinstance(parsed, cst.BaseExpression)
        return parsed
    first, *rest = code.split(".")
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in (first, *rest)):
        return parse_expression(code)
    # Most are dotted names, for which the parser takes several times as long.
    node: cst.BaseExpression = cst.Name(first)
    for name in rest:
        node = cst.Attribute(node, cst.Name(name))
    return node


class _LinesStay(cst.CSTTransformer):
    """Keeps the columns of lines in a block, to which LibCST would add an indentation."""

    def leave_ParenthesizedWhitespace(
        self, original_node: cst.ParenthesizedWhitespace, updated_node: cst.ParenthesizedWhitespace
    ) -> cst.ParenthesizedWhitespace:
        return updated_node.with_changes(indent=False)


def enclosed(value: cst.BaseExpression) -> cst.BaseExpression:
    """A value from the brackets of a call, with some of its own where its lines need them."""
    code = cst.Module([]).code_for_node(value)
    if has_lines(code) and needs_brackets(code):
        return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return value


def has_comments(node: cst.CSTNode) -> bool:
    """Whether there are comments in the text of a node."""
    return isinstance(node, cst.Comment) or any(map(has_comments, node.children))


def behind(argument: cst.Arg, added: Sequence[cst.Arg]) -> list[cst.Arg]:
    """An argument and new ones behind it, in its layout: on its line, or one a line. What followed it follows them."""
    none = cst.SimpleWhitespace("")
    if not added or not isinstance(argument.comma, cst.Comma):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        space = argument.whitespace_after_arg
        items = [argument, *added]
        items = [each.with_changes(comma=comma, whitespace_after_arg=none) for each in items[:-1]] + items[-1:]
        items[-1] = items[-1].with_changes(whitespace_after_arg=space)
        return items
    space = argument.comma.whitespace_after
    plain = space
    if isinstance(space, cst.ParenthesizedWhitespace):
        plain = space.with_changes(
            first_line=space.first_line.with_changes(whitespace=none, comment=None), empty_lines=[]
        )
        own, space = space.with_changes(empty_lines=[]), space.with_changes(first_line=plain.first_line)
        argument = argument.with_changes(comma=argument.comma.with_changes(whitespace_after=own))
    items = [each.with_changes(comma=cst.Comma(whitespace_after=plain)) for each in added]
    items[-1] = items[-1].with_changes(comma=cst.Comma(whitespace_after=space))
    return [argument, *items]


def spaced(space: cst.BaseParenthesizableWhitespace | cst.MaybeSentinel) -> cst.BaseParenthesizableWhitespace:
    """The space after a keyword such as `return`, which may have had none because of parentheses: `return(x)`."""
    if isinstance(space, cst.BaseParenthesizableWhitespace) and not space.empty:
        return space
    return cst.SimpleWhitespace(" ")
