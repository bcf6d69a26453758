"""Import `mmruntime` instead of MultiMesh, under any of the names that it has had.

    import multimesh.jax as mm
    ->  import mmruntime as mm

`legate.jax` is the older name of MultiMesh, which has `init` and `init_test` in `jax_plugins.multimesh` or
`jax_plugins.legate`. Names and arguments are the same, also those of the earlier `task(f, devices=...,
device_axes=...)`, so uses stay as they are.

MultiMesh's `init` also puts its own function in the place of `jax.lax.with_sharding_constraint`, and `mmruntime` does
not. So that name becomes `with_sharding_constraint` of `mmruntime` in modules that import MultiMesh.

To check: the program's own documents and scripts, which may name the old package.

Refused: names that `mmruntime` does not have, `register_task` with the arguments of its first version,
`task(..., configure=...)`, and star imports; all imports of the module stay then.
See https://nv-legate.github.io/multimesh-jax/ for MultiMesh.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.modernize.site import EVERYWHERE, Location, ModernizeContext
from mmrewrite.modernize.uses import ModuleUses, dotted_text

_RUNTIME = "mmruntime"
_PACKAGES = ("multimesh.jax", "legate.jax")
_PLUGINS = ("jax_plugins.multimesh", "jax_plugins.legate")
_NAMES = frozenset(
    (
        *("Context", "MultiMesh", "Task", "TaskMesh", "autoshard", "clear_tasks", "context", "custom_partitioning"),
        *(
            "enable_fast_path",
            "enable_recomputation",
            "flax",
            "ignore_transforms",
            "init",
            "init_test",
            "microbatch",
            "mjit",
        ),
        *("parallelize", "register_task", "replicate_parameters_smaller_than_num_elements", "shard_map"),
        *("slice_global_mesh", "task", "tasks", "with_sharding_constraint"),
    )
)
_FLAX_NAMES = frozenset(("parallelize_step", "shard_axes", "task", "with_sharding_constraint"))
_OLD_KEYWORDS = frozenset(("devices", "dims", "device_axes", "logical_axes", "loop_submesh_size"))
_HOME_OF_CONSTRAINT = "jax.lax"
_REPLACED_BY_INIT = f"{_HOME_OF_CONSTRAINT}.with_sharding_constraint"
_FROM = re.compile(r"from\s+(\S+)\s+import\b")


class RenameMultimesh(ModernizeCodemod):
    """Edits the import statements, and whole names where `import multimesh.jax` binds no alias."""

    extra_markers: ClassVar[tuple[bytes, ...]] = (b"multimesh", b"legate")

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Import statements of MultiMesh, and uses of the function of JAX that its `init` replaces."""
        imports = list(_multimesh_imports(module))
        yield from (Location(module, node) for node in imports)
        for use in module.uses((_REPLACED_BY_INIT,)) if imports else ():
            statement = _import_of(module, use.node)
            if statement is not None:
                yield Location(module, statement)
            elif use.is_direct:
                yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Check all names of the module first, so that all of its imports change or none."""
        for place in _multimesh_imports(self.site.module):
            self._check_import(place)
        for node, name in _used(self.site.module):
            self._check_use(node, name)
        if self.site.use is not None:
            self._rename_constraint(self.site.use.node)
            return
        statement = self.site.node
        if isinstance(statement, ast.ImportFrom):
            self._rename_from(statement)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                if _owner(alias.name):
                    self._rename_module(alias)

    def _rename_constraint(self, node: ast.expr) -> None:
        self.site.replace(node, self._spelled("with_sharding_constraint"))

    def _spelled(self, name: str) -> str:
        """A name of `mmruntime`, through an import of MultiMesh that becomes one of it, if there is one."""
        existing = self.site.draft.imports.existing
        is_module = self.site.scope.function.kind == "module"
        line, column = (self.site.statement.lineno, self.site.statement.col_offset) if is_module else (EVERYWHERE, 0)
        for owner in _PACKAGES:
            for full, rest in ((f"{owner}.{name}", ""), (owner, f".{name}")):
                found = existing(full, self.site.scope, line, column)
                if found is not None:
                    return found + rest
        for place in _multimesh_imports(self.site.module):
            whole = isinstance(place, ast.Import) and place in self.site.facts.tree.body
            if whole and any(alias.name in _PACKAGES and alias.asname is None for alias in place.names):
                return f"{_RUNTIME}.{name}"
        return self.site.spell(f"{_RUNTIME}.{name}")

    def _check_import(self, statement: ast.AST) -> None:
        if not isinstance(statement, ast.ImportFrom):
            return
        for alias in statement.names:
            name = f"{statement.module}.{alias.name}"
            if alias.name == "*":
                self.refuse("`import *` hides which names are used; write them out", statement)
            if _owner(name) is None or (_owner(statement.module or "") is None and len(statement.names) > 1):
                self.refuse("import MultiMesh in a statement of its own", statement)
            self._check_known(statement, name)

    def _check_use(self, node: ast.expr, name: str) -> None:
        self._check_known(node, name)
        call = self.site.module.parents.get(node)
        if not isinstance(call, ast.Call) or call.func is not node:
            return
        keywords = {keyword.arg for keyword in call.keywords}
        if name.endswith(".jax.register_task") and keywords & _OLD_KEYWORDS:
            self.refuse(
                "`register_task` takes `task=mm.Task(mesh=mm.TaskMesh(devices=..., axis_sizes=..., axis_names=...), "
                "logical_axes=...)`, and a `callback` that returns such a task",
                call,
            )
        if name.endswith(".jax.task") and "configure" in keywords:
            self.refuse("`task` has no `configure=`; choose the task first and give it as `task=`", call)

    def _check_known(self, node: ast.AST, name: str) -> None:
        owner = _owner(name)
        rest = name.removeprefix(owner or "").lstrip(".").split(".")
        known = {"init", "init_test"} if owner in _PLUGINS else _NAMES
        if rest[0] and rest[0] not in known:
            self.refuse(f"`mmruntime` has no `{rest[0]}`; remove it, or keep MultiMesh for this module", node)
        if rest[0] == "flax" and len(rest) > 1 and rest[1] not in _FLAX_NAMES:
            self.refuse(f"`mmruntime.flax` has no `{rest[1]}`; remove it, or keep MultiMesh for this module", node)

    def _rename_from(self, statement: ast.ImportFrom) -> None:
        assert statement.module is not None
        owner = _HOME_OF_CONSTRAINT if statement.module == _HOME_OF_CONSTRAINT else _owner(statement.module)
        if owner is None:
            # `from multimesh import jax as mm`
            (alias,) = statement.names
            self.site.replace(statement, f"import {_RUNTIME} as {alias.asname or alias.name}")
            return
        start, _ = self.site.span(statement)
        found = _FROM.match(self.site.source.text, start)
        assert found is not None
        self.site.edit(found.start(1), found.end(1), _RUNTIME + statement.module.removeprefix(owner))

    def _rename_module(self, alias: ast.alias) -> None:
        owner = _owner(alias.name)
        assert owner is not None
        start, _ = self.site.span(alias)
        self.site.edit(start, start + len(alias.name), _RUNTIME + alias.name.removeprefix(owner))
        if alias.asname is None:
            for node, _ in _used(self.site.module):
                inner: ast.expr = node
                while dotted_text(inner) != owner and isinstance(inner, ast.Attribute):
                    inner = inner.value
                if dotted_text(inner) == owner:
                    self.site.replace(inner, _RUNTIME)


def _multimesh_imports(module: ModuleUses) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements of a module that import MultiMesh."""
    for node in module.nodes:
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level):
            home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            if any(_owner(f"{home}{alias.name}") for alias in node.names):
                yield node


def _import_of(module: ModuleUses, node: ast.expr) -> ast.ImportFrom | None:
    """The statement that imports a name of `jax.lax`, and no other."""
    if not isinstance(node, ast.Name):
        return None
    binding = module.facts.names.binding(node.id, module.scope_of(node))
    statement = binding.node if binding is not None else None
    return statement if isinstance(statement, ast.ImportFrom) and len(statement.names) == 1 else None


def _owner(name: str) -> str | None:
    """The module of MultiMesh that a full name is, or belongs to."""
    return next((owner for owner in (*_PACKAGES, *_PLUGINS) if f"{name}.".startswith(f"{owner}.")), None)


def _used(module: ModuleUses) -> Iterator[tuple[ast.expr, str]]:
    """Expressions that stand for something in MultiMesh, with its full name."""
    for head, chain in module.chains:
        scope = module.scope_of(head)
        if scope.owner(head.id) is None:
            continue
        for node in reversed(chain):
            name = module.facts.names.resolve_dotted(dotted_text(node), scope)
            if name is not None and _owner(name) is not None:
                yield node, name
                break
