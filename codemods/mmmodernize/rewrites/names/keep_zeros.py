"""Keep the zeros of `jnp.empty`, which may hold anything today.

    scores = jnp.empty((8, 4))
    ->  scores = jnp.zeros((8, 4))

Until JAX 0.11 `jnp.empty` and `jnp.empty_like` gave zeros on every platform. Since then they give what is in memory,
where the platform can. A program that relied on the zeros still runs, and is wrong.

To check: where every element is written before it is read, the old text was as good, and may stay.

Refused: nothing.
See https://docs.jax.dev/en/latest/_autosummary/jax.numpy.empty.html
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses

_HERE = re.compile(rb"\bempty(?:_like)?\b")


class KeepZeros(ModernizeCodemod):
    """Writes the functions that promise zeros; their parameters are the same but for the name of the first."""

    moved: ClassVar = {"jax.numpy.empty": "jax.numpy.zeros", "jax.numpy.empty_like": "jax.numpy.zeros_like"}
    beside: ClassVar = ()
    changed_in: ClassVar = {"": ("jax", "0.11.0", "changes")}

    @classmethod
    def may_be_in(cls, data: bytes) -> bool:
        """Many files have the word. One that does not name JAX has no site."""
        return b"jax" in data and _HERE.search(data) is not None

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Uses that are written with their module, and calls under any name whose keyword changes."""
        for use in module.uses(cls.moved):
            if use.is_direct and (isinstance(use.node, ast.Attribute) or _prototype(module, use.node) is not None):
                yield Location(module, use.node, use)

    def rewrite(self) -> None:
        """Replace the name, and the keyword of `empty_like`."""
        keyword = _prototype(self.site.module, self.use.node)
        if keyword is not None:
            self.site.rename_keyword(keyword, "a")
        if isinstance(self.use.node, ast.Attribute):
            super().rewrite()


def _prototype(module: ModuleUses, function: ast.expr) -> ast.keyword | None:
    call = module.call_at(function)
    keywords = call.keywords if call is not None else ()
    return next((keyword for keyword in keywords if keyword.arg == "prototype"), None)
