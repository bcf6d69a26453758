"""Compile functions with tasks by `compat.multimesh_jit` instead of `jax.jit`, in programs for MultiMesh.

    step = jax.jit(train_step, in_shardings=(AUTO(mesh), None))
    ->  step = compat.multimesh_jit(train_step, in_shardings=(compat.AUTO(mesh), None))

MultiMesh is a plugin of JAX, under which every `jax.jit` puts tasks on their submeshes. Here `jax.jit` inlines them. So
where the function has tasks, as far as the module shows, or a layout is `AUTO`, or MultiMesh is the backend, it is
compiled for the mesh in use when it is called. `AUTO`, which JAX had in `jax.experimental.pjit`, is in `compat` too.

To check: functions of other modules that `jax.jit` compiles; those with tasks want `mm.mjit`. They are reported, and so
is `pjit` of a function with tasks.

Refused: `AUTO` in a `pjit`.
See https://nv-legate.github.io/multimesh-jax/ for MultiMesh.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.calls.call_forms import given_to
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.meshes.multimesh_uses import MARKERS, PACKAGES, WORDS, imports_of, is_carried, spelled_compat
from mmmodernize.names.shared_names import PJIT
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Scope

_JIT = "jax.jit"
_AUTO = "jax.experimental.pjit.AUTO"
_BACKENDS = ("multimesh", "legate")
# What makes a task of a function, or of a part of it.
_MARKS = frozenset(f"{owner}.{name}" for owner in PACKAGES for name in ("task", "microbatch", "flax.task", "shard_map"))
# Packages whose functions have none by themselves.
_WITHOUT_TASKS = sys.stdlib_module_names | {
    *("absl", "chex", "einops", "flax", "jax", "jax_plugins", "legate", "multimesh", "numpy", "optax", "orbax", "scipy")
}
_NO_AUTO = "JAX has no such layout any more; leave it out, and give the mesh to `mm.mjit(f, mesh=mesh)`"
_LATE = "the mesh is the one in use when it is called; where there is one mesh, write `mm.mjit(f, mesh=mesh)`"
_SCOPES = frozenset(("jax.named_scope", "jax.named_call"))


class ReplaceMultimeshJit(ModernizeCodemod):
    """Replaces names; arguments stay, but for the backend."""

    extra_markers: ClassVar[tuple[bytes, ...]] = MARKERS
    beside: ClassVar = ()
    words: ClassVar = WORDS

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """`AUTO`, and each `jax.jit` of a function that has tasks or is out of view."""
        if next(imports_of(module), None) is None:
            return
        for use in module.uses((_JIT, _AUTO)):
            if use.is_direct and (use.name == _AUTO or _has_tasks(module, use.node) is not False):
                yield Location(module, use.node, use)
        for use in module.uses(PJIT):
            if use.is_direct and _has_tasks(module, use.node):
                yield Location(module, use.node)

    def rewrite(self) -> None:
        """Replace the name."""
        if not is_carried(self.site.module):
            self.site.leave("this module keeps MultiMesh")
        if self.site.use is None:
            self.site.leave("tasks are inlined under `pjit`; to run each on its submesh, write `mm.mjit(f, mesh=mesh)`")
        if self.use.name == _AUTO and any(map(self._is_pjit, self.site.module.above(self.site.node))):
            self.refuse("`AUTO` is gone from `pjit`; write `mm.mjit(f, mesh=mesh)`, which needs no layouts")
        if self.use.name == _AUTO:
            self.site.replace(self.use.node, spelled_compat(self.site, "AUTO", _NO_AUTO))
            return
        if _has_tasks(self.site.module, self.use.node) is None:
            self.site.leave(
                "`jax.jit` of a function that is not in view; if it has tasks, write `mm.mjit(f, mesh=mesh)`, since "
                "plain `jax.jit` inlines them"
            )
        self.site.replace(self.use.node, spelled_compat(self.site, "multimesh_jit", _LATE))

    def _is_pjit(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and self.site.resolve(node.func) in PJIT


def _has_tasks(module: ModuleUses, node: ast.expr) -> bool | None:
    """Whether what a `jax.jit` compiles has tasks; None where the module does not show it."""
    call = module.parents.get(node)
    if isinstance(call, ast.Call):
        arguments = [*call.args, *(word.value for word in call.keywords)]
        parts = [part for each in arguments for part in ast.walk(each) if isinstance(part, ast.Name)]
        backends = (word.value for word in call.keywords if word.arg == "backend")
        if any(isinstance(each, ast.Constant) and each.value in _BACKENDS for each in backends) or any(
            module.full_name(part) == _AUTO for part in parts
        ):
            return True
    given = given_to(module, node)
    return _marked(module, given, {}) if given is not None else None


def _marked(module: ModuleUses, node: ast.AST, seen: dict[ast.AST, bool | None]) -> bool | None:
    """Whether a function or an expression reaches a mark, through names of the module; None if one is out of view."""
    if node in seen:
        return seen[node]
    seen[node] = False
    found: bool | None = False
    body = node.body if isinstance(node, ast.FunctionDef) else [node]
    for part in (part for statement in body for part in ast.walk(statement)):
        if not isinstance(part, ast.Name | ast.Attribute) or isinstance(part.ctx, ast.Store):
            continue
        scope = module.scope_of(part)
        name = module.facts.names.resolve(part, scope)
        if name in _MARKS or (name in _SCOPES and _registers(module)):
            return True
        inner = _reached(module, part.id, scope, seen) if isinstance(part, ast.Name) else False
        if inner:
            return True
        found = found if inner is False else None
    seen[node] = found
    return found


def _reached(module: ModuleUses, name: str, scope: Scope, seen: dict[ast.AST, bool | None]) -> bool | None:
    """Whether anything that a name is bound to reaches a mark; None if some is out of view."""
    owner = scope.owner(name)
    found: bool | None = False
    for binding in owner.bindings[name] if owner is not None else ():
        target = binding.node if isinstance(binding.node, ast.FunctionDef) else binding.value
        if binding.kind == "import":
            inner = False if (binding.target or "").partition(".")[0] in _WITHOUT_TASKS else None
        elif target is None or binding.kind == "parameter":
            continue
        else:
            inner = _marked(module, target, seen)
        if inner:
            return True
        found = found if inner is False else None
    return found


def _registers(module: ModuleUses) -> bool:
    """Whether a module registers tasks by name, so that named scopes are tasks."""
    return any(_last(node) == "register_task" for node in module.nodes_of(ast.Attribute, ast.Name))


def _last(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id
