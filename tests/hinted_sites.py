"""The sites of hints in a module that is given as text, for tests of the analyses that codemods ask."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable

import pytest

from mmrewrite.codemod.refusal import SiteRefused
from mmrewrite.codemod.registry import Registry
from mmrewrite.codemod.site import Draft, Site
from mmrewrite.project.facts import Facts, SourceFile, read_facts
from mmrewrite.project.project import Project

_CODEMODS = tuple(Registry())


def facts_of(text: str, module: str = "module") -> Facts:
    """What is known about a module with this text; common indentation goes."""
    data = textwrap.dedent(text).encode()
    facts = read_facts(SourceFile(f"{module.replace('.', '/')}.py", data, module), _CODEMODS)
    assert isinstance(facts, Facts), facts
    assert not facts.hints.errors, facts.hints.errors
    return facts


def site_of(text: str, **others: str) -> Site:
    """The site of the first hint of a module that can import `others`, by their names."""
    facts = facts_of(text)
    project = Project([facts, *(facts_of(other, name) for name, other in others.items())], lambda _: None, ())
    hint = next(facts.hints.hints)
    return Site(Draft(facts, project, (), "    ", 100, ()), hint, "codemod")


def loop_in(tree: ast.AST) -> ast.For:
    """The first `for` loop of the text."""
    return next(node for node in ast.walk(tree) if isinstance(node, ast.For))


def statement_on(facts: Facts, mark: str) -> ast.stmt:
    """The innermost statement on the line that has `mark` in it."""
    line = next(number for number, text in enumerate(facts.source.text.splitlines(), 1) if mark in text)
    found = [node for node in facts.names.scopes if node.lineno <= line <= (node.end_lineno or line)]
    return max(found, key=lambda node: node.lineno)


def refusal_of(function: Callable[[], object]) -> tuple[int, str]:
    """Line and reason of the refusal that a function ends in."""
    with pytest.raises(SiteRefused) as refused:
        function()
    return refused.value.line, refused.value.reason
