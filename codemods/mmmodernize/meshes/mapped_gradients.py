"""Gradients and collectives in a function that runs on every device of a mesh, as far as the source shows.

They decide whether `jax.shard_map` computes the same as the old function: with `check_vma=True`, its default, the
gradient of a replicated value is summed over the devices.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mmmodernize.calls.call_forms import form_of
from mmrewrite.codemod.array_methods import ARRAY_METHODS
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import dotted_name

DIFFERENTIATE = frozenset(
    f"{home}.{name}"
    for home, names in (
        ("jax", ("grad", "value_and_grad", "vjp", "jvp", "linearize", "jacfwd", "jacrev", "jacobian", "hessian")),
        ("flax.linen", ("grad", "value_and_grad", "vjp", "jvp")),
        ("flax.nnx", ("grad", "value_and_grad")),
        ("haiku", ("grad", "value_and_grad")),
        ("equinox", ("filter_grad", "filter_value_and_grad", "filter_vjp", "filter_jvp")),
    )
    for name in names
)
COLLECTIVES = frozenset(
    f"jax.lax.{name}"
    for name in (
        *("psum", "pmean", "pmax", "pmin", "all_gather", "all_to_all", "ppermute", "pshuffle", "psum_scatter"),
        *("pswapaxes", "pbroadcast", "pcast"),
    )
)
CONTROL_FLOW = frozenset(f"jax.lax.{name}" for name in ("scan", "fori_loop", "while_loop", "cond", "switch", "map"))

PMAP = "jax.pmap"

# Methods of containers and of Flax modules, which do not differentiate.
_METHODS = frozenset(
    (
        *("append", "apply", "copy", "extend", "format", "get", "items", "join", "keys", "pop", "replace", "update"),
        "values",
    )
)


@dataclass(eq=False)
class Mapped:
    """The findings in a function and in all that it calls, transitively.

    `differentiated` are the functions that it takes gradients of; `unseen` are calls whose code is not to be found;
    `pmaps` are the places where `jax.pmap` is named by what it does or by what made a function that it calls.
    """

    differentiated: list[tuple[ModuleUses, ast.expr]] = field(default_factory=list)
    collectives: list[str] = field(default_factory=list)
    control_flow: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    pmaps: list[tuple[ModuleUses, ast.expr]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Code:
    """A function, and the places where `jax.pmap` wraps it."""

    module: ModuleUses
    node: ast.AST
    pmaps: tuple[tuple[ModuleUses, ast.expr], ...] = ()


class MappedFunctions:
    """Follows functions through the project. `modules` are the uses of names in each module, by path."""

    def __init__(self, project: Project, modules: dict[str, ModuleUses]) -> None:
        self._project, self._modules = project, modules

    def of(self, module: ModuleUses, function: ast.AST) -> Mapped:
        """The findings in a function: a definition, or an expression that stands for one."""
        found = Mapped()
        start = _Code(module, function)
        if isinstance(function, ast.expr) and not isinstance(function, ast.Lambda):
            code = self._code(module, function)
            if code is None:
                found.unseen.append(f"`{ast.unparse(function)}`")
                return found
            start = code
        found.pmaps += start.pmaps
        seen: set[ast.AST] = set()
        queue = [start]
        while queue:
            code = queue.pop()
            if code.node not in seen:
                seen.add(code.node)
                queue += self._look(code, found)
        return found

    def _look(self, code: _Code, found: Mapped) -> Iterator[_Code]:
        for node in _body(code.node):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                name = self._name(code.module, node)
                if name in COLLECTIVES:
                    found.collectives.append(name)
                elif name in CONTROL_FLOW:
                    found.control_flow.append(name)
                elif name == PMAP:
                    found.pmaps.append((code.module, node))
                elif name in DIFFERENTIATE:
                    call = code.module.call_at(node)
                    if call is not None and call.args:
                        found.differentiated.append((code.module, call.args[0]))
                    else:
                        found.unseen.append(f"`{ast.unparse(node)}`")
                else:
                    reached = self._code(code.module, node)
                    if reached is not None:
                        found.pmaps += reached.pmaps
                        yield reached
            if isinstance(node, ast.Call) and not self._is_seen(code.module, node.func):
                found.unseen.append(f"`{ast.unparse(node.func)}`")

    def _is_seen(self, module: ModuleUses, function: ast.expr) -> bool:
        """Whether the code of a called function is in the project, or is that of a library."""
        if isinstance(function, ast.Call | ast.Lambda):
            return True
        if isinstance(function, ast.Attribute) and function.attr in ARRAY_METHODS | _METHODS:
            return True
        if self._code(module, function) is not None:
            return True
        name = self._name(module, function)
        if name is None:
            # A method of an indexed value, such as `x.at[0].set(1)`.
            return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Subscript | ast.Constant)
        return self._project.definition(name, module.facts) is None and not name.startswith(
            f"{module.facts.names.name}."
        )

    def _name(self, module: ModuleUses, node: ast.expr) -> str | None:
        dotted = dotted_name(node)
        return module.facts.names.resolve_dotted(dotted, module.scope_of(node)) if dotted else None

    def _code(self, module: ModuleUses, node: ast.expr, depth: int = 8) -> _Code | None:
        """The definition that an expression stands for, None where there is none in the project."""
        if depth == 0:
            return None
        if isinstance(node, ast.Lambda):
            return _Code(module, node)
        if isinstance(node, ast.Call):
            given = self._wrapped_in(module, node)
            code = self._code(module, given, depth - 1) if given is not None else None
            if self._name(module, node.func) == PMAP:
                code = code or _Code(module, node)
                return replace(code, pmaps=(*code.pmaps, (module, node.func)))
            return code
        dotted = dotted_name(node)
        if dotted is None:
            return None
        first, _, rest = dotted.partition(".")
        scope = module.scope_of(node)
        if rest and first in ("self", "cls"):
            return self._method(module, node, rest)
        binding = module.facts.names.binding(first, scope)
        if binding is not None and not rest:
            if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef):
                return self._defined_by(module, binding.node)
            if binding.value is not None:
                return self._code(module, binding.value, depth - 1)
        name = module.facts.names.resolve_dotted(dotted, scope)
        return None if name is None else self._defined(module.facts, name, depth)

    def _defined(self, near: Facts, name: str, depth: int) -> _Code | None:
        found = self._project.definition(name, near)
        if found is None:
            return None
        facts, binding = found
        module = self._modules.get(facts.path)
        if module is None:
            module = self._modules[facts.path] = ModuleUses(facts)
        if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._defined_by(module, binding.node)
        if binding.value is not None:
            return self._code(module, binding.value, depth - 1)
        return None

    def _method(self, module: ModuleUses, node: ast.expr, name: str) -> _Code | None:
        owner = module.class_around(node)
        for statement in owner.body if owner else ():
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return self._defined_by(module, statement)
        return None

    def _defined_by(self, module: ModuleUses, function: ast.FunctionDef | ast.AsyncFunctionDef) -> _Code:
        named = (node for decorator in function.decorator_list for node in ast.walk(decorator))
        pmaps = [
            (module, node)
            for node in named
            if isinstance(node, ast.Name | ast.Attribute) and self._name(module, node) == PMAP
        ]
        return _Code(module, function, tuple(pmaps))

    def _wrapped_in(self, module: ModuleUses, call: ast.Call) -> ast.expr | None:
        """The function of which a call returns another form, None if it does not."""
        form, name = form_of(module, call), self._name(module, call.func) or ""
        if not form.is_called:
            return form.function
        is_other = name.startswith(("jax.", "mmruntime.compat.")) and name not in DIFFERENTIATE
        return next(iter(call.args), None) if is_other else None


def _body(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a function is called; its decorators, defaults and annotations do not."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for statement in node.body:
            yield from ast.walk(statement)
    elif isinstance(node, ast.Lambda):
        yield from ast.walk(node.body)
    else:
        yield from ast.walk(node)
