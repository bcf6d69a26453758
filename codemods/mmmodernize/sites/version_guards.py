"""Code that chooses by the version of JAX or its libraries. It handles old and new names already, and is left alone."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence

from mmmodernize.names.name_index import TITLES, last_releases, numbers, old_names, prefixes, release_before
from mmmodernize.names.private_index import private_name
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import root_of

_CAUGHT = frozenset(("ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"))
_PROBES = frozenset(("builtins.hasattr", "builtins.getattr"))


def guard_of(module: ModuleUses, node: ast.AST, change: tuple[str, str] | None = None) -> str | None:
    """The `try` or `if` that guards a node against another JAX, in words for a message, else None.

    None guards a use that is never reached, since the import of its name raises before. `change` is the package and the
    release with which a name means something else: the branch that is taken from there on means that.
    """
    guard = _guard_around(module, node, change)
    return None if guard is not None and _fails_before(module, node) else guard


def is_chosen(module: ModuleUses, node: ast.AST) -> bool:
    """Whether a node stands in a branch of a choice by the version, whichever, or in a `try` that copes with one."""
    if _guard_around(module, node, None) is not None:
        return True
    holders = (holder for holder in module.above(node) if isinstance(holder, ast.If | ast.IfExp))
    return any(_asked(module, holder.test) is not None for holder in holders)


def _fails_before(module: ModuleUses, node: ast.AST) -> bool:
    """Whether a name comes by one import, which nothing guards, from what is gone."""
    node = root_of(node)
    if not isinstance(node, ast.Name):
        return False
    binding = module.facts.names.binding(node.id, module.scope_of(node))
    if binding is None or binding.target is None or binding.statement is None:
        return False
    known = (old_names().get(each) for each in prefixes(binding.target))
    is_gone = any(name is not None and name.is_gone for name in known) or private_name(binding.target) is not None
    is_import = isinstance(binding.statement, ast.Import | ast.ImportFrom)
    return is_gone and is_import and _guard_around(module, binding.statement, None) is None


def _guard_around(module: ModuleUses, node: ast.AST, change: tuple[str, str] | None) -> str | None:
    inner = node
    for holder in module.above(node):
        if isinstance(holder, ast.Try) and inner in (*holder.body, *holder.orelse, *holder.handlers):
            if any(_catches_missing(handler) for handler in holder.handlers) and _is_shim(holder):
                return f"the `try` of line {holder.lineno} already copes with another JAX"
        elif isinstance(holder, ast.If | ast.IfExp):
            branches = holder.body if isinstance(holder.body, list) else [holder.body]
            others = holder.orelse if isinstance(holder.orelse, list) else [holder.orelse]
            asked = _asked(module, holder.test) if inner in (*branches, *others) else None
            is_taken = inner in branches
            if asked is not None and (
                _takes(module, holder.test) is not is_taken
                or (change is not None and _takes(module, holder.test, change) is not is_taken)
            ):
                return f"the `if` of line {holder.lineno} already chooses by the version of {asked}"
        inner = holder
    return None


def _catches_missing(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id in _CAUGHT) for kind in kinds)


def _is_shim(statement: ast.Try) -> bool:
    """Whether a `try` is only about names: its body imports and assigns, and runs nothing else."""
    return all(isinstance(part, ast.Import | ast.ImportFrom | ast.Assign | ast.Pass) for part in statement.body)


# What the packages are called, with that of JAX's binaries.
_TITLES = {**{package.partition(".")[0]: title for package, title in TITLES.items()}, "jaxlib": "JAX"}
_VERSION = re.compile(rf"({'|'.join(_TITLES)})\.(?:checkpoint\.)?(?:__version|version)")


# Whose last release, in the index, programs of today run on. What is asked about that release decides nothing.
_TODAY = {"jax": "jax", "jaxlib": "jax", "flax": "flax"}
_ORDER = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}


def _takes(module: ModuleUses, test: ast.expr, change: tuple[str, str] | None = None) -> bool | None:
    """Whether a condition about a version alone holds today, or held just before a change; None if it is not said."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    scope, order = module.scope_of(test), _ORDER.get(type(test.ops[0]))
    left, right = test.left, test.comparators[0]
    asked = left.args[0] if isinstance(left, ast.Call) and len(left.args) == 1 and not left.keywords else left
    name = module.facts.names.resolve(asked, scope) if isinstance(asked, ast.Name | ast.Attribute) else None
    package, _, member = (name or "").partition(".")
    is_version = member == "__version_info__" if asked is left else member in ("__version__", "version.__version__")
    bound = _release(right)
    if order is None or not is_version or package not in _TODAY or bound is None:
        return None
    if change is not None and change[0] == _TODAY[package]:
        return bool(order(release_before(*change), bound))
    today = numbers(last_releases()[_TODAY[package]])[:2]
    return None if bound[:2] == today else bool(order(today, bound))


def _release(node: ast.expr) -> tuple[int, ...] | None:
    """A release that is written: `(0, 4, 26)`, or `Version("0.4.26")`."""
    texts: Sequence[object] = ()
    if isinstance(node, ast.Tuple):
        texts = [each.value if isinstance(each, ast.Constant) else None for each in node.elts]
    elif isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
        texts = str(node.args[0].value).split(".")
    numbers = [int(f"{each}") for each in texts if f"{each}".isdigit()]
    return tuple(numbers) if len(numbers) == len(texts) and len(numbers) > 1 else None


def _asked(module: ModuleUses, test: ast.expr) -> str | None:
    """The package for the version of which a condition asks, or for a name of which."""
    scope = module.scope_of(test)
    for node in ast.walk(test):
        found = ""
        if isinstance(node, ast.Attribute | ast.Name):
            match = _VERSION.match(module.facts.names.resolve(node, scope) or "")
            found = match[1] if match is not None else ""
        if isinstance(node, ast.Call) and module.facts.names.resolve(node.func, scope) in _PROBES and node.args:
            found = (module.facts.names.resolve(node.args[0], scope) or "").partition(".")[0]
        if found in _TITLES:
            return _TITLES[found]
    return None
