"""Report `jax.random.KeyArray`, for which an annotation says `jax.Array` today.

    def init(key: jax.random.KeyArray): ...
    ->  model.py:3:15: `jax.random.KeyArray` is gone since JAX 0.4.24; annotate keys with `jax.Array`

A module that names it does not even import. Keys are arrays like any other now: those of `jax.random.PRNGKey` hold
integers, those of `jax.random.key` have a dtype of their own. So an annotation becomes `jax.Array`, while a test for
the class must say which keys it means, and in a union with arrays it is not needed any more.

Refused: every use, with what to write.
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
        """One sentence for each use."""
        if self._is_test():
            what = "to tell typed keys, write `jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)`"
        else:
            what = "annotate keys with `jax.Array`"
        self.refuse(f"`{self.use.name}` is gone since JAX 0.4.24; {what}")

    def _is_test(self) -> bool:
        """Whether the class is what an object is tested for."""
        node: ast.AST = self.use.node
        holder = self.site.module.parents.get(node)
        if isinstance(holder, ast.Tuple):
            holder = self.site.module.parents.get(holder)
        return isinstance(holder, ast.Call) and isinstance(holder.func, ast.Name) and holder.func.id in _TESTS
