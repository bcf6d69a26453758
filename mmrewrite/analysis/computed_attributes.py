"""Attributes that a property computes at each access, so that reading one twice may not give the same twice."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.codemod.site import Site
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project

# Of attributes and constants these give the same each time, and do nothing else.
_READING = frozenset(
    f"builtins.{name}"
    for name in ("dict", "getattr", "int", "len", "list", "max", "min", "range", "sorted", "str", "sum", "tuple")
)


def is_computed_attribute(site: Site, name: str) -> bool:
    """Whether a class of the program has a property of this name that does more than read what the object has.

    Such a property may make its layers anew, and number the parameters of those that are made later otherwise.
    """
    return any(name in _computed_once(site.project, facts) for facts in site.project.connected(site.facts))


def _computed_once(project: Project, facts: Facts) -> frozenset[str]:
    return project.once(("computed attributes", facts.path), lambda: frozenset(_computed(facts)))


def _computed(facts: Facts) -> Iterator[str]:
    for statement, scope in facts.names.scopes.items():
        if (
            isinstance(statement, ast.FunctionDef)
            and any(facts.names.resolve(each, scope) == "builtins.property" for each in statement.decorator_list)
            and not _only_reads(facts, statement)
        ):
            yield statement.name


def _only_reads(facts: Facts, getter: ast.FunctionDef) -> bool:
    body = getter.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return False
    scope = facts.scope_of(body[0])
    nodes = list(ast.walk(body[0]))
    calls = (node for node in nodes if isinstance(node, ast.Call))
    return all(facts.names.resolve(call.func, scope) in _READING for call in calls) and not any(
        isinstance(node, ast.NamedExpr | ast.Lambda | ast.GeneratorExp) for node in nodes
    )
