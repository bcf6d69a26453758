"""Report `jax.random.KeyArray`, whose successor in annotations is `jax.Array`.

    def init(key: jax.random.KeyArray): ...
    ->  model.py:3:15: `jax.random.KeyArray` is gone since JAX 0.4.24; annotate keys with `jax.Array`

A module that names it cannot be imported. Keys are arrays like any other now: those of `jax.random.PRNGKey` hold
integers, those of `jax.random.key` have a dtype of their own. So an annotation becomes `jax.Array`; an `isinstance`
test must say which keys it means; and in a union with arrays the class is no longer needed.

Refused: every use, with its replacement.
See https://docs.jax.dev/en/latest/jep/9263-typed-keys.html
"""

from __future__ import annotations

import ast
from typing import ClassVar

from mmrewrite.modernize.codemod import ModernizeCodemod

_TESTS = ("isinstance", "issubclass")


class ReportKeyArray(ModernizeCodemod):
    """Writes nothing."""

    names: ClassVar[tuple[str, ...]] = ("jax.random.KeyArray", "jax.random.PRNGKeyArray")

    def rewrite(self) -> None:
        """Report the use."""
        if self._is_test():
            what = "to tell typed keys, write `jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)`"
        else:
            what = "annotate keys with `jax.Array`"
        self.refuse(f"`{self.use.name}` is gone since JAX 0.4.24; {what}")

    def _is_test(self) -> bool:
        """Whether this is the class in an `isinstance` test."""
        node: ast.AST = self.use.node
        holder = self.site.module.parents.get(node)
        if isinstance(holder, ast.Tuple):
            holder = self.site.module.parents.get(holder)
        return isinstance(holder, ast.Call) and isinstance(holder.func, ast.Name) and holder.func.id in _TESTS
