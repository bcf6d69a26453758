"""Import `mmruntime` instead of MultiMesh, under any of the names that it has had.

    import multimesh.jax as mm
    ->  import mmruntime as mm

`legate.jax` is the older name of MultiMesh, which has `init` and `init_test` in `jax_plugins.multimesh` or
`jax_plugins.legate`. Names and arguments are the same, also those of the earlier `task(f, devices=...,
device_axes=...)`, so uses stay as they are. The switches `enable_task_fusion` and `only_fuse_loop_tasks` become
`contextlib.nullcontext()`: here, neighbouring tasks of one submesh always are one program.

MultiMesh's `init` also puts its own functions in the place of `jax.lax.with_sharding_constraint` and of
`jax.experimental.shard_map.shard_map`, and `mmruntime` does not. So the former becomes `with_sharding_constraint` of
`mmruntime` in modules that import MultiMesh, and the latter its `shard_map` where no mesh is given.

To check: the program's own documents and scripts, which may name the old package; gradients that are taken inside of a
function for `shard_map` (see `replace_shard_map`).

Refused: names that `mmruntime` does not have, and star imports; all imports of the module stay then. At its own place:
`task(..., configure=...)`.
See https://nv-legate.github.io/multimesh-jax/ for MultiMesh.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.import_names import one_line, parts_that_go
from mmmodernize.edits.statements import remove_statement
from mmmodernize.meshes.multimesh_uses import (
    MARKERS,
    OLD_SHARD_MAP,
    PACKAGES,
    RUNTIME,
    SWITCHES,
    WORDS,
    imports_of,
    is_without_mesh,
    owner_of,
    spelled,
    unknown_name,
    used_in,
)
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.brackets import tokens_between
from mmrewrite.source.names import dotted_name

_HOME_OF_CONSTRAINT = "jax.lax"
_REPLACED_BY_INIT = f"{_HOME_OF_CONSTRAINT}.with_sharding_constraint"
_SWITCHES = tuple(f"{owner}.{name}" for owner in PACKAGES for name in sorted(SWITCHES))
_TASKS = tuple(f"{owner}.task" for owner in PACKAGES)


class RenameMultimesh(ModernizeCodemod):
    """Edits the import statements, and whole names where `import multimesh.jax` binds no alias."""

    extra_markers: ClassVar[tuple[bytes, ...]] = MARKERS
    beside: ClassVar = ()
    words: ClassVar = WORDS

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Import statements of MultiMesh, its gone switches, and uses of the function of JAX that `init` replaces."""
        imports = list(imports_of(module))
        if not imports:
            return
        yield from (Location(module, node) for node in imports)
        for use in module.uses((*_SWITCHES, *_TASKS)):
            call = module.call_at(use.node)
            if use.name in _SWITCHES or any(word.arg == "configure" for word in (call.keywords if call else ())):
                yield Location(module, use.node, use)
        for use in module.uses((OLD_SHARD_MAP,)):
            if use.is_direct and is_without_mesh(module, use.node):
                yield Location(module, use.node, use)
        for use in module.uses((_REPLACED_BY_INIT,)):
            statement = _import_of(module, use.node)
            if statement is not None:
                yield Location(module, statement)
            elif use.is_direct:
                yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Check all names of the module first, so that all of its imports change or none."""
        for place in imports_of(self.site.module):
            self._check_import(place)
        for node, name in used_in(self.site.module):
            self._check_known(node, name)
        statement = self.site.node
        if self.site.use is not None:
            self._rewrite_use(self.site.use.name, self.site.use.node)
        elif isinstance(statement, ast.ImportFrom):
            self._rename_from(statement)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                if owner_of(alias.name):
                    self._rename_module(alias)

    def _rewrite_use(self, name: str, node: ast.expr) -> None:
        call = self.site.module.call_at(node)
        if name in _SWITCHES:
            if call is None:
                self.refuse("this switch has no effect in `mmruntime`; call it in a `with`, or remove it", node)
            self.site.replace(call, f"{self.site.spell('contextlib.nullcontext')}()")
        elif name in _TASKS:
            self.refuse("`task` has no `configure=`; choose the task first and give it as `task=`", call)
        elif name == OLD_SHARD_MAP:
            assert isinstance(call, ast.Call)
            for word in call.keywords:
                if word.arg == "auto":
                    self.refuse("`auto=` names axes that stay automatic; write `axis_names=` with the others", word)
                if word.arg == "check_rep":
                    self.site.rename_keyword(word, "check_vma")
            self.site.replace(node, spelled(self.site, "shard_map"))
        else:
            self.site.replace(node, spelled(self.site, "with_sharding_constraint"))

    def _check_import(self, statement: ast.AST) -> None:
        if not isinstance(statement, ast.ImportFrom):
            return
        for alias in statement.names:
            name = f"{statement.module}.{alias.name}"
            if alias.name == "*":
                self.refuse("`import *` hides which names are used; write them out", statement)
            if owner_of(name) is None or (owner_of(statement.module or "") is None and len(statement.names) > 1):
                self.refuse("import MultiMesh in a statement of its own", statement)
            self._check_known(statement, name)

    def _check_known(self, node: ast.AST, name: str) -> None:
        unknown = unknown_name(name)
        if unknown is not None:
            home, _, last = unknown.rpartition(".")
            self.refuse(f"`{home}` has no `{last}`; remove it, or keep MultiMesh for this module", node)

    def _rename_from(self, statement: ast.ImportFrom) -> None:
        assert statement.module is not None
        owner = _HOME_OF_CONSTRAINT if statement.module == _HOME_OF_CONSTRAINT else owner_of(statement.module)
        if owner is None:
            # `from multimesh import jax as mm`
            (alias,) = statement.names
            self.site.replace(statement, f"import {RUNTIME} as {alias.asname or alias.name}")
            return
        home = RUNTIME + statement.module.removeprefix(owner)
        gone = {alias for alias in statement.names if f"{statement.module}.{alias.name}" in _SWITCHES}
        if len(gone) == len(statement.names):
            remove_statement(self.site, statement)
            return
        parts = parts_that_go(self.site.source, statement, gone).removed if gone else ()
        for alias in gone:
            self.site.meant.remove(alias)
        self.site.meant.set(statement, module=home)
        if parts is None:
            line = one_line(self.site.source, statement, gone)
            self.site.edit(*self.site.span(statement), line.replace(statement.module, home, 1))
            return
        for begin, stop in parts:
            self.site.edit(begin, stop, "")
        found = tokens_between(self.site.source, *self.site.span(statement))
        word = next(index for index, token in enumerate(found) if token.text == "import")
        self.site.edit(found[1].start, found[word - 1].end, home)

    def _rename_module(self, alias: ast.alias) -> None:
        owner = owner_of(alias.name)
        assert owner is not None
        new = RUNTIME + alias.name.removeprefix(owner)
        found = tokens_between(self.site.source, *self.site.span(alias))
        end = next((found[index - 1].end for index, token in enumerate(found) if token.text == "as"), found[-1].end)
        self.site.edit(found[0].start, end, new)
        self.site.meant.set(alias, name=new)
        if alias.asname is None:
            for node, name in used_in(self.site.module):
                inner: ast.expr = node
                while dotted_name(inner) != owner and isinstance(inner, ast.Attribute):
                    inner = inner.value
                if dotted_name(inner) == owner and name not in _SWITCHES:
                    self.site.replace(inner, RUNTIME)


def _import_of(module: ModuleUses, node: ast.expr) -> ast.ImportFrom | None:
    """The statement that imports a name of `jax.lax`, and no other."""
    if not isinstance(node, ast.Name):
        return None
    binding = module.facts.names.binding(node.id, module.scope_of(node))
    statement = binding.node if binding is not None else None
    return statement if isinstance(statement, ast.ImportFrom) and len(statement.names) == 1 else None
