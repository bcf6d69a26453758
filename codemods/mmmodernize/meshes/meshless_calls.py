"""Sites that may run without a mesh in context, and that a program expects to do something else then.

Specs raise without a mesh in context, so most code that has them runs in one. These do not need one: a constraint
whose error a `try` catches, and a `pjit` of which all specs are `None`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mmmodernize.calls.components import bits, combined
from mmmodernize.calls.wide_reach import OutsideReach
from mmmodernize.meshes.mesh_members import Member
from mmmodernize.meshes.partition_specs import kind_of, parts_of
from mmrewrite.project.uses import ModuleUses

# Old versions of JAX raised `ValueError` or `RuntimeError` for a spec without a mesh.
_CATCH_IT = frozenset(f"builtins.{name}" for name in ("BaseException", "Exception", "RuntimeError", "ValueError"))
_CATCH_MORE = frozenset(f"builtins.{name}" for name in ("BaseException", "Exception", "RuntimeError"))
_SUPPRESS = "contextlib.suppress"
_RAISES = "pytest.raises"
_ASSERT = frozenset(("assertRaises", "assertRaisesRegex"))
_EXPECT_FAILURE = "pytest.mark.xfail"


@dataclass(frozen=True)
class _Caught:
    """Exceptions of the classes `kinds`, or all if there are none, that `handler` catches, or else a call."""

    kinds: Sequence[ast.expr]
    handler: ast.ExceptHandler | None = None

    @property
    def is_swallowed(self) -> bool:
        """Whether the code around may see no exception."""
        return self._last_raise is None

    @property
    def is_used(self) -> bool:
        """Whether the code around may see anything but the exception itself."""
        raised = self._last_raise
        if raised is None or raised.exc is None or self.handler is None:
            return raised is None
        return not isinstance(raised.exc, ast.Name) or raised.exc.id != self.handler.name

    @property
    def is_told_apart(self) -> bool:
        """Whether the handler asks which exception it has."""
        nodes = list(ast.walk(self.handler)) if self.handler is not None else []
        tests = [node.test for node in nodes if isinstance(node, ast.If | ast.IfExp)]
        tests += [node.subject for node in nodes if isinstance(node, ast.Match)]
        return any(
            isinstance(node, ast.Name) and self.handler is not None and node.id == self.handler.name
            for test in tests
            for node in ast.walk(test)
        )

    @property
    def _last_raise(self) -> ast.Raise | None:
        """The `raise` that a handler ends in, if there is no other way out of it."""
        last = self.handler.body[-1] if self.handler is not None else None
        if self.handler is None or not isinstance(last, ast.Raise):
            return None
        is_left = any(isinstance(node, ast.Return | ast.Break | ast.Continue) for node in ast.walk(self.handler))
        return None if is_left else last


class MeshlessCalls:
    """Searches for such sites. `inside` are the statements that run in a mesh context."""

    def __init__(self, modules: Mapping[str, ModuleUses], reach: OutsideReach, inside: Collection[ast.AST]) -> None:
        self._modules, self._reach, self._inside = modules, reach, inside

    def why(self, member: Member) -> str | None:
        """Why a site may run without a mesh in context, in words for a message, else None."""
        places, led = self._catching
        for number in bits(combined(led, member.holders)):
            return f"may run without a mesh, and {places[number]} catches the error of that"
        # A constraint by `None` needs a mesh as well.
        specs = member.specs.values if member.specs is not None and member.kind == "pjit" else ()
        has_none = bool(specs) and all(_may_be_none(member.module, spec) for spec in specs)
        if has_none and not self._is_called_inside(member.module, member.node):
            return "may have no spec but `None`, so that it may run without a mesh"
        return None

    def takes_a_value_error(self, member: Member) -> str | None:
        """A place that catches the `ValueError` of a site without a mesh, and would not catch a `RuntimeError`."""
        places, led = self._catching_values
        return next((places[number] for number in bits(combined(led, member.holders))), None)

    @cached_property
    def _catching(self) -> tuple[list[str], Callable[[ast.AST], int]]:
        """The places that catch the error of a missing mesh, and which of them lead to a node outside of contexts."""
        return self._led_from(lambda module, caught: caught.is_swallowed and _catch_it(module, caught.kinds))

    @cached_property
    def _catching_values(self) -> tuple[list[str], Callable[[ast.AST], int]]:
        """The places that tell a `ValueError` from a `RuntimeError`, and which of them lead to a node."""

        def takes(module: ModuleUses, caught: _Caught) -> bool:
            if not caught.is_used or not _catch_it(module, caught.kinds):
                return False
            return caught.is_told_apart or (bool(caught.kinds) and not _catch_more(module, caught.kinds))

        return self._led_from(takes)

    def _led_from(self, catches: Callable[[ModuleUses, _Caught], bool]) -> tuple[list[str], Callable[[ast.AST], int]]:
        guarded = [
            (module, line, nodes)
            for module, line, nodes, caught in self._guarded
            if any(catches(module, each) for each in caught)
        ]
        places = [f"{module.facts.path}:{line}" for module, line, _ in guarded]
        return places, self._reach.led_from([[(module, nodes)] for module, _, nodes in guarded])

    @cached_property
    def _guarded(self) -> Sequence[tuple[ModuleUses, int, list[ast.AST], list[_Caught]]]:
        """The code that runs where exceptions are caught, with its line, and what is caught there."""
        return [(module, *each) for module in self._modules.values() for each in self._find_guarded(module)]

    def _find_guarded(self, module: ModuleUses) -> Iterator[tuple[int, list[ast.AST], list[_Caught]]]:
        for node in module.nodes_of(ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Call):
            body: list[ast.AST] = []
            caught: list[_Caught] = []
            if isinstance(node, ast.Try | ast.TryStar):
                body = [each for each in node.body if not isinstance(each, ast.Import | ast.ImportFrom)]
                caught = [_Caught(_kinds_in(each.type), each) for each in node.handlers]
            elif isinstance(node, ast.With | ast.AsyncWith):
                body += node.body
                caught = [each for item in node.items for each in _suppressed(module, item.context_expr)]
            elif isinstance(node, ast.Call):
                caught = _suppressed(module, node)
                # `pytest.raises(ValueError, function, argument)`, and `@pytest.mark.xfail(raises=ValueError)`
                holder = module.parents.get(node)
                if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    body += holder.body
                else:
                    body += node.args[1:]
            if caught and body and not self._is_inside(module, body[0]):
                yield module.statement_of(node).lineno, body, caught

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
        full = f"{module.facts.names.name}.{name}"
        elsewhere = [
            (other, use.node) for other in self._modules.values() if other is not module for use in other.uses((full,))
        ]
        return all(
            self._is_inside(other, use)
            for other, use in [*((module, use) for use in module.heads_of(name, scope)), *elsewhere]
        )


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


def _kinds_in(caught: ast.expr | None) -> list[ast.expr]:
    """The exceptions that a handler names; none if it catches all."""
    if isinstance(caught, ast.Tuple):
        return caught.elts
    return [] if caught is None else [caught]


def _suppressed(module: ModuleUses, item: ast.expr) -> list[_Caught]:
    """The exceptions that a call is given to suppress or to wait for."""
    if not isinstance(item, ast.Call):
        return []
    found = module.full_name(item.func)
    if found == _SUPPRESS:
        given = item.args
    elif found == _EXPECT_FAILURE:
        given = [keyword.value for keyword in item.keywords if keyword.arg == "raises"]
    elif found == _RAISES or (isinstance(item.func, ast.Attribute) and item.func.attr in _ASSERT):
        # The other arguments are a function and its arguments, or say what the message is like; `**` may hold it.
        by_name = [keyword.value for keyword in item.keywords if keyword.arg in ("expected_exception", None)]
        given = item.args[:1] or by_name
        if not given and found == _RAISES:
            return [_Caught(())]
    else:
        return []
    return [_Caught(_kinds_in(each)) for each in given]


def _catch_it(module: ModuleUses, kinds: Sequence[ast.expr]) -> bool:
    """Whether what catches these kinds may catch the error of a spec without a mesh."""
    found = [module.full_name(kind) for kind in kinds]
    unseen = (ast.Name, ast.Attribute, ast.Starred)
    return not kinds or any(
        name in _CATCH_IT or (name is None and isinstance(kind, unseen))
        for name, kind in zip(found, kinds, strict=True)
    )


def _catch_more(module: ModuleUses, kinds: Sequence[ast.expr]) -> bool:
    """Whether what catches these kinds catches a `RuntimeError`."""
    return any(module.full_name(kind) in _CATCH_MORE for kind in kinds)
