"""Modules of JAX and its libraries that a program passes on as values, as in `self.jax = jax` and `f(jax.numpy)`.

No chain of names leads from there to what is read of them elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.modernize.site import ModernizeContext
from mmrewrite.modernize.uses import ModuleUses

# Calls that keep nothing of a module that they are given.
_ASK_ONLY = frozenset(
    (
        *(f"builtins.{name}" for name in ("delattr", "dir", "getattr", "hasattr", "id", "print", "repr", "setattr")),
        *(f"unittest.mock.{name}" for name in ("patch.object", "patch.multiple")),
        "importlib.reload",
    )
)


class PassedModules:
    """The modules with old names that are passed on as values.

    Attributes:
        homes: Every module of JAX and its libraries that had an old name.
        places: Those that are passed on, with the first place of each.
    """

    def __init__(self, context: ModernizeContext) -> None:
        parts = (name.split(".") for name in context.owners)
        homes = {".".join(each[:length]) for each in parts for length in range(1, len(each))}
        # Classes hold members, and are bases and annotations.
        self.homes = frozenset(home for home in homes if home.rpartition(".")[2].islower())
        self.places: dict[str, str] = {}
        for module in context.modules.values():
            for name, node in self._passed(module):
                self.places.setdefault(name, f"{module.facts.path}:{node.lineno}")

    def _passed(self, module: ModuleUses) -> Iterator[tuple[str, ast.expr]]:
        for use in module.uses(self.homes):
            if not isinstance(module.parents[use.node], ast.Attribute) and not _is_followed(module, use.node):
                yield use.name, use.node
        for node in module.nodes_of(ast.Call, ast.Subscript):
            name = module_by_name(module, node)
            if name in self.homes:
                yield name, node


def _is_followed(module: ModuleUses, node: ast.expr) -> bool:
    """Whether names lead on from a module that is used here, or nothing of it is kept."""
    holder = module.parents[node]
    if isinstance(holder, ast.Call):
        function = module.facts.names.resolve(holder.func, module.scope_of(holder)) or ""
        return node in holder.args and function in _ASK_ONLY
    if isinstance(holder, ast.Assign):
        is_plain = all(isinstance(target, ast.Name) for target in holder.targets)
        return is_plain and module.facts.names.scopes[holder].kind != "class"
    return isinstance(holder, ast.Compare | ast.Expr | ast.NamedExpr)


def module_by_name(module: ModuleUses, node: ast.expr) -> str | None:
    """The full name of what `importlib.import_module("jax")`, `sys.modules["jax"]` and the like give, else None."""
    scope = module.scope_of(node)
    if isinstance(node, ast.Subscript):
        is_table = module.facts.names.resolve(node.value, scope) == "sys.modules"
        return _text(node.slice) if is_table else None
    if not isinstance(node, ast.Call) or not node.args:
        return None
    function, name = module.facts.names.resolve(node.func, scope), _text(node.args[0])
    if function == "builtins.getattr" and len(node.args) > 1 and (own := _text(node.args[1])) is not None:
        home = module.facts.names.resolve(node.args[0], scope) or module_by_name(module, node.args[0])
        return f"{home}.{own}" if home is not None else None
    if name is None:
        return None
    if function == "importlib.import_module":
        given = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "package")]
        package = _text(given[0]) if given else None
        return f"{package}{name}" if name.startswith(".") and package is not None else name
    if function == "builtins.__import__":
        is_inner = len(node.args) > 3 or any(keyword.arg == "fromlist" for keyword in node.keywords)
        return name if is_inner else name.partition(".")[0]
    return None


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
