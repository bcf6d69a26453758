"""Sites that may run without a mesh in context, and that a program expects to do something else then.

Specs raise without a mesh in context, so most code that has them runs in one. These do not need one: a constraint
whose error a `try` catches, and a `pjit` of which all specs are `None`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property

from mmrewrite.modernize.analysis.components import bits, combined
from mmrewrite.modernize.analysis.partition_specs import Specs, kind_of, parts_of
from mmrewrite.modernize.analysis.reach import OutsideReach
from mmrewrite.modernize.uses import ModuleUses

# Old versions of JAX raised `ValueError` or `RuntimeError` for a spec without a mesh.
_CATCH_IT = frozenset(f"builtins.{name}" for name in ("BaseException", "Exception", "RuntimeError", "ValueError"))
_CATCH_MORE = frozenset(f"builtins.{name}" for name in ("BaseException", "Exception", "RuntimeError"))
_SUPPRESS = frozenset(("contextlib.suppress", "pytest.raises"))
_ASSERT = frozenset(("assertRaises", "assertRaisesRegex"))


class MeshlessCalls:
    """Searches for such sites. `inside` are the statements that run in a mesh context."""

    def __init__(self, modules: Mapping[str, ModuleUses], reach: OutsideReach, inside: Collection[ast.AST]) -> None:
        self._modules, self._reach, self._inside = modules, reach, inside

    def why(self, module: ModuleUses, node: ast.AST, specs: Specs | None) -> str | None:
        """Why a site may run without a mesh in context, in words for a message, else None.

        Args:
            module: The module of the site.
            node: The site.
            specs: The specs of a `pjit`.
        """
        places, led = self._catching
        for number in bits(combined(led, (node, *module.above(node)))):
            return f"may run without a mesh, and {places[number]} catches the error of that"
        has_none = specs is not None and specs.values and all(_may_be_none(module, spec) for spec in specs.values)
        if has_none and not self._is_called_inside(module, node):
            return "may have no spec but `None`, so that it may run without a mesh"
        return None

    def takes_a_value_error(self, module: ModuleUses, node: ast.AST) -> str | None:
        """A place that catches the `ValueError` of a site without a mesh, and would not catch a `RuntimeError`."""
        places, led = self._catching_values
        return next((places[number] for number in bits(combined(led, (node, *module.above(node))))), None)

    @cached_property
    def _catching(self) -> tuple[list[str], Callable[[ast.AST], int]]:
        """The places that catch the error of a missing mesh, and which of them lead to a node outside of contexts."""
        return self._led_from(_catches, _may_be_the_error)

    @cached_property
    def _catching_values(self) -> tuple[list[str], Callable[[ast.AST], int]]:
        """The same, of places that catch a `ValueError` and no `RuntimeError`."""

        def takes(module: ModuleUses, handler: ast.ExceptHandler) -> bool:
            kinds = _kinds_of(handler)
            return _catches(module, handler) and bool(kinds) and not any(_takes_more(module, kind) for kind in kinds)

        return self._led_from(
            takes, lambda module, kind: _may_be_the_error(module, kind) and not _takes_more(module, kind)
        )

    def _led_from(
        self,
        catches: Callable[[ModuleUses, ast.ExceptHandler], bool],
        is_error: Callable[[ModuleUses, ast.expr], bool],
    ) -> tuple[list[str], Callable[[ast.AST], int]]:
        guarded = [
            (module, *found) for module in self._modules.values() for found in self._guarded(module, catches, is_error)
        ]
        places = [f"{module.facts.path}:{line}" for module, line, _ in guarded]
        return places, self._reach.led_from([[(module, nodes)] for module, _, nodes in guarded])

    def _guarded(
        self,
        module: ModuleUses,
        catches: Callable[[ModuleUses, ast.ExceptHandler], bool],
        is_error: Callable[[ModuleUses, ast.expr], bool],
    ) -> Iterator[tuple[int, list[ast.stmt]]]:
        for node in module.nodes_of(ast.Try, ast.With):
            if isinstance(node, ast.Try):
                is_caught = any(catches(module, handler) for handler in node.handlers)
            else:
                is_caught = any(_suppresses(module, item.context_expr, is_error) for item in node.items)
            if is_caught and not self._is_inside(module, node.body[0]):
                yield node.lineno, [each for each in node.body if not isinstance(each, ast.Import | ast.ImportFrom)]

    def _is_inside(self, module: ModuleUses, node: ast.AST) -> bool:
        return node in self._inside or any(holder in self._inside for holder in module.above(node))

    def _is_called_inside(self, module: ModuleUses, node: ast.AST) -> bool:
        """Whether every use of a compiled function stands in a mesh context."""
        statement = module.statement_of(node)
        if self._is_inside(module, statement):
            return True
        if isinstance(statement, ast.FunctionDef):
            name, scope = statement.name, module.facts.names.scopes[statement]
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, scope = statement.targets[0].id, module.scope_of(statement)
        else:
            return False
        uses = [head for head in module.heads.get(name, ()) if module.scope_of(head).owner(name) is scope]
        full = f"{module.facts.names.name}.{name}"
        elsewhere = [
            (other, use.node) for other in self._modules.values() if other is not module for use in other.uses((full,))
        ]
        return all(self._is_inside(other, use) for other, use in [*((module, use) for use in uses), *elsewhere])


def _may_be_none(module: ModuleUses, spec: ast.expr, seen: tuple[str, ...] = ()) -> bool:
    """Whether a tree of specs may hold `None` alone: no spec is seen in it."""
    kind = kind_of(module, spec)
    if kind == "tree":
        return all(_may_be_none(module, part, seen) for part in parts_of(spec))
    if kind == "unknown" and isinstance(spec, ast.Name) and spec.id not in seen:
        binding = module.facts.names.binding(spec.id, module.scope_of(spec))
        value = binding.value if binding is not None else None
        return value is None or _may_be_none(module, value, (*seen, spec.id))
    return kind in ("none", "unknown")


def _catches(module: ModuleUses, handler: ast.ExceptHandler) -> bool:
    """Whether a handler may swallow the error of a spec without a mesh."""
    if isinstance(handler.body[-1], ast.Raise):
        return False
    return handler.type is None or any(_may_be_the_error(module, kind) for kind in _kinds_of(handler))


def _kinds_of(handler: ast.ExceptHandler) -> list[ast.expr]:
    if isinstance(handler.type, ast.Tuple):
        return handler.type.elts
    return [] if handler.type is None else [handler.type]


def _takes_more(module: ModuleUses, kind: ast.expr) -> bool:
    return module.facts.names.resolve(kind, module.scope_of(kind)) in _CATCH_MORE


def _may_be_the_error(module: ModuleUses, kind: ast.expr) -> bool:
    found = module.facts.names.resolve(kind, module.scope_of(kind))
    return found in _CATCH_IT or (found is None and isinstance(kind, ast.Name))


def _suppresses(module: ModuleUses, item: ast.expr, is_error: Callable[[ModuleUses, ast.expr], bool]) -> bool:
    if not isinstance(item, ast.Call):
        return False
    found = module.facts.names.resolve(item.func, module.scope_of(item))
    is_assertion = isinstance(item.func, ast.Attribute) and item.func.attr in _ASSERT
    return (found in _SUPPRESS or is_assertion) and any(is_error(module, kind) for kind in item.args)
