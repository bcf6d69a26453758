"""Call `check_compatible_aval` of shardings, which older JAX called `is_compatible_aval`.

    sharding.is_compatible_aval(x.shape)
    ->  sharding.check_compatible_aval(x.shape)

It raises an error where an array of the shape cannot be cut so, and returns nothing, then and now.

To check: classes of your own with a method of that name.

Refused: nothing.
See https://docs.jax.dev/en/latest/jax.sharding.html for shardings.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.results import Change

_OLD, _NEW = "is_compatible_aval", "check_compatible_aval"


class RenameShardingMethods(ModernizeCodemod):
    """Renames the attribute where it is read, in projects that define no method of that name."""

    extra_markers: ClassVar[tuple[bytes, ...]] = (_OLD.encode(),)
    beside: ClassVar = ()
    words: ClassVar = (_OLD,)

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """The attribute, in modules beside JAX."""
        is_own = any(_OLD in other.methods for other in context.modules.values())
        if is_own or not context.flow.is_beside(module, "jax"):
            return
        for node in module.attributes.get(_OLD, ()):
            if isinstance(node.ctx, ast.Load):
                yield Location(module, node, part=f"jax.sharding.Sharding.{_OLD}")

    @classmethod
    def change_of(cls, name: str) -> tuple[str, str, Change] | None:
        """The release without the old name."""
        return "jax", "0.4.29", "stops"

    def rewrite(self) -> None:
        """Replace the name."""
        assert isinstance(self.site.node, ast.Attribute)
        self.site.rename_attribute(self.site.node, _NEW)
