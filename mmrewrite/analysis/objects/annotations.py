"""The annotations of a function that the tool writes, where the code around it has them: strict type checkers ask."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from mmrewrite.codemod.site import Site
from mmrewrite.source.names import Scope, all_arguments

# A value is often known not to be None where the new function is called, which the new function does not know.
_UNIONS = ("typing.Optional", "typing.Union")


def is_annotated(site: Site) -> bool:
    """Whether the function around a site is annotated throughout; at module level, whether all functions are."""
    function = site.function()
    functions = [function] if function is not None else ast.walk(site.facts.tree)
    return all(
        is_fully_annotated(node) for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def is_fully_annotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether each parameter and the result has an annotation; `self` and `cls` need none."""
    arguments = [each for each in all_arguments(function.args) if each.arg not in ("self", "cls")]
    by_init = function.name == "__init__" and bool(arguments)
    return all(each.annotation for each in arguments) and (by_init or function.returns is not None)


def annotation_of(site: Site, name: str, scope: Scope | None = None) -> str:
    """What a name is declared as, for a function that is made where it is seen; else `Any`."""
    scope = scope or site.scope
    owner = scope.owner(name)
    found = _declared(owner, name) if owner is not None else None
    if found is None or not _means_the_same(site, found, scope):
        return site.any_type
    # The head of a function has room for one line, and none for comments.
    return site.text(found) if found.lineno == found.end_lineno else ast.unparse(found)


def result_of(site: Site, names: Sequence[str]) -> str:
    """The annotation of a function that returns these names, as one or as a tuple."""
    found = [annotation_of(site, name) for name in names]
    return found[0] if len(found) == 1 else f"tuple[{', '.join(found)}]"


def _declared(owner: Scope, name: str) -> ast.expr | None:
    for binding in owner.bindings[name]:
        if isinstance(binding.statement, ast.AnnAssign):
            return binding.statement.annotation
    if isinstance(owner.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return next((each.annotation for each in all_arguments(owner.node.args) if each.arg == name), None)
    return None


def _means_the_same(site: Site, annotation: ast.expr, scope: Scope) -> bool:
    """Whether an annotation says in the new function what it says where it stands, for every value."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                quoted = ast.parse(node.value, mode="eval").body
            except SyntaxError:
                return False
            if not _means_the_same(site, quoted, scope):
                return False
        if isinstance(node, ast.BinOp) or (isinstance(node, ast.expr) and site.resolve(node) in _UNIONS):
            return False
        owner = scope.owner(node.id) if isinstance(node, ast.Name) else None
        if owner is not None and owner.kind != "module":
            return False
    return True
