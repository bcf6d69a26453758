"""Annotate keys with `jax.Array` instead of `jax.random.KeyArray`.

    def init(key: jax.random.KeyArray): ...
    ->  def init(key: jax.Array): ...

Keys are arrays like any other now, so `jax.Array` is exact in annotations, also in strings, in `typing.cast`, and for a
name that is used for these alone, such as `Key = jax.random.KeyArray`.

To check: nothing; annotations are not run.

Refused: other uses. Keys of `jax.random.PRNGKey` hold integers, those of `jax.random.key` have a dtype of their own, so
an `isinstance` test must say which keys it means.
See https://docs.jax.dev/en/latest/jep/9263-typed-keys.html
"""

from __future__ import annotations

import ast
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmrewrite.project.uses import ModuleUses

_TESTS = ("isinstance", "issubclass")
_CASTS = frozenset(("typing.cast", "typing_extensions.cast"))
_UNIONS = frozenset(
    ("typing.Union", "typing.Optional", "typing.Sequence", "typing.Tuple", "builtins.tuple", "typing.List")
)


class ReplaceKeyArray(ModernizeCodemod):
    """Replaces the name in annotations and in what is used for them."""

    names: ClassVar[tuple[str, ...]] = ("jax.random.KeyArray", "jax.random.PRNGKeyArray")

    def rewrite(self) -> None:
        """Replace the name, or report the use."""
        if not self._is_type(self.site.module, self.use.node):
            if self._is_test():
                what = "to tell typed keys, write `jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)`"
            else:
                what = "annotate keys with `jax.Array`"
            self.refuse(f"`{self.use.name}` is gone since JAX 0.4.24; {what}")
        if self.use.is_direct:
            self.site.replace(self.use.node, self.site.spell("jax.Array"))

    def _is_type(self, module: ModuleUses, node: ast.expr) -> bool:
        """Whether an expression only says which type something has."""
        if module.in_annotation(node):
            return True
        holder = module.parents.get(node)
        names, scope = module.facts.names, module.scope_of(node)
        if isinstance(holder, ast.Call):
            return holder.args[:1] == [node] and names.resolve(holder.func, scope) in _CASTS
        if isinstance(holder, ast.Tuple) and isinstance(module.parents.get(holder), ast.Subscript):
            node, holder = holder, module.parents[holder]
        if isinstance(holder, ast.Subscript) and names.resolve(holder.value, scope) in _UNIONS:
            return self._is_type(module, holder)
        if isinstance(holder, ast.BinOp) and isinstance(holder.op, ast.BitOr):
            return self._is_type(module, holder)
        if isinstance(holder, ast.Assign) and holder.value is node and len(holder.targets) == 1:
            return self._is_alias_of_type(module, holder.targets[0])
        return False

    def _is_alias_of_type(self, module: ModuleUses, target: ast.expr) -> bool:
        """Whether a name at module level is used as a type alone, wherever it is imported."""
        if not isinstance(target, ast.Name) or module.scope_of(target).kind != "module":
            return False
        full = f"{module.facts.names.name}.{target.id}"
        others = [
            (other, use.node)
            for other in self.site.context.modules.values()
            for use in (*other.uses((full,)), *other.uses(self.names))
            if other is not module and use.written in (full, None)
        ]
        own = [(module, use) for use in module.heads.get(target.id, ())]
        return all(self._is_type(other, use) for other, use in [*own, *others])

    def _is_test(self) -> bool:
        """Whether this is the class in an `isinstance` test."""
        node: ast.AST = self.use.node
        holder = self.site.module.parents.get(node)
        if isinstance(holder, ast.Tuple):
            holder = self.site.module.parents.get(holder)
        return isinstance(holder, ast.Call) and isinstance(holder.func, ast.Name) and holder.func.id in _TESTS
