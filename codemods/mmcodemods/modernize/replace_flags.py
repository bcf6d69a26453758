"""Remove settings of flags that are gone, where JAX does today what they ask for.

    jax.config.update("jax_array", True)
    jax.config.update("jax_spmd_mode", "allow_all")
    ->
    ->  jax.config.update("jax_spmd_mode", "allow_all")  reported

Setting a flag that is gone raises. It is gone since its last default is how JAX works; a statement that sets it to that
is removed. The index has the flags and their defaults.

To check: nothing.

Refused: other values, and reads. Reported: names of gone flags in the environment, which do nothing.
See https://docs.jax.dev/en/latest/config_options.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.modernize.edits.statements import remove_statement
from mmrewrite.modernize.name_index import TITLES
from mmrewrite.modernize.part_index import old_flags
from mmrewrite.modernize.site import Location, ModernizeContext
from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.results import Change


class ReplaceFlags(ModernizeCodemod):
    """Removes statements, and reports the other uses of a flag."""

    extra_markers: ClassVar[tuple[bytes, ...]] = (b"jax_", b"JAX_", b"flax_", b"FLAX_")

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Strings and attributes of configurations that name a flag."""
        for node in module.strings:
            if str(node.value).lower().removeprefix("--") in old_flags() and not _is_docstring(module, node):
                yield Location(module, node, part=str(node.value).lower().removeprefix("--"))
        for other in module.nodes_of(ast.Attribute):
            if other.attr in old_flags():
                home = module.facts.names.resolve(other.value, module.scope_of(other))
                if home in ("jax.config", "jax.config.config", "flax.config"):
                    yield Location(module, other, part=other.attr)

    @classmethod
    def change_of(cls, name: str) -> tuple[str, str, Change] | None:
        """A flag stops working where it is gone."""
        part = old_flags().get(name)
        return (part.package, part.since, "stops") if part is not None else None

    def rewrite(self) -> None:
        """Remove one statement, or report the use."""
        site, node = self.site, self.site.node
        if isinstance(node, ast.Attribute):
            assignment = site.module.parents[node]
            is_set = isinstance(assignment, ast.Assign) and assignment.targets == [node]
            self._settle(node.attr, assignment.value if isinstance(assignment, ast.Assign) and is_set else None)
            return
        assert isinstance(node, ast.Constant)
        text = str(node.value)
        if text.isupper():
            part = old_flags()[text.lower()]
            site.leave(f"`{text}` does nothing since {TITLES[part.package]} {part.since}, where this flag went")
        call = site.module.parents.get(node)
        is_update = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "update"
            and len(call.args) == 2
            and call.args[0] is node
        )
        self._settle(text.removeprefix("--"), call.args[1] if isinstance(call, ast.Call) and is_update else None)

    def _settle(self, flag: str, value: ast.expr | None) -> None:
        """Remove the statement that gives a flag its last default; refuse others."""
        part = old_flags()[flag]
        statement = self.site.statement
        is_alone = isinstance(statement, ast.Assign) or (
            isinstance(statement, ast.Expr) and self.site.module.parents.get(value) is statement.value
            if value is not None
            else False
        )
        if value is None or not is_alone:
            self.refuse(f"`{flag}` {part.told('')}")
        if not isinstance(value, ast.Constant) or str(value.value) != part.default:
            self.refuse(f"`{flag}` {part.told('')}; {TITLES[part.package]} works as with `{part.default}`")
        remove_statement(self.site, statement)


def _is_docstring(module: ModuleUses, node: ast.Constant) -> bool:
    return isinstance(module.parents.get(node), ast.Expr)
