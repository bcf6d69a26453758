"""Split one dimension over devices with a `NamedSharding` instead of a `PmapSharding`.

    jax.sharding.PmapSharding.default((8, 2), sharded_dim=0)
    ->  compat.pmap_sharding((8, 2), sharded_dim=0)

Every device holds the same indices as before. The number of devices follows from the shape, so the runtime makes the
mesh, and `.devices` of such a sharding becomes `.mesh.devices`.

To check: code that reads the class of the sharding.

Refused: `PmapSharding(devices, spec)`, and `isinstance` tests for the class, which no array has any more;
`.sharding_spec`, and `.sharding.devices` of an array, which may be one of `jax.pmap`; a `target-jax` before 0.10, on
which the runtime does not install.
See https://docs.jax.dev/en/latest/migrate_pmap.html for what became of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.value import Value

_CLASS = "jax.sharding.PmapSharding"
_DEFAULT = f"{_CLASS}.default"


_MADE = frozenset((f"{_DEFAULT}()", "mmruntime.compat.pmap_sharding()"))
_NO_MESH = "its devices form no mesh that has a name; write a `NamedSharding` of a mesh of these devices"
_GONE = frozenset(("devices", "sharding_spec"))


class ReplacePmapSharding(ModernizeCodemod):
    """Replaces `PmapSharding.default` by the runtime's helper, and attributes of what it gives."""

    names: ClassVar[tuple[str, ...]] = (_CLASS, _DEFAULT)
    extra_markers: ClassVar[tuple[bytes, ...]] = (b"pmap_sharding", b"sharding_spec", b".sharding.devices")
    beside: ClassVar = ()
    words: ClassVar = _GONE

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Uses of the class, and its attributes on values that are or may be such shardings."""
        yield from super().find(module, context)
        for node in module.nodes_of(ast.Attribute):
            is_sharding = isinstance(node.value, ast.Attribute) and node.value.attr == "sharding"
            if node.attr in _GONE and (is_sharding or _is_made(context, module, node.value)):
                yield Location(module, node)

    def rewrite(self) -> None:
        """Replace the name; the helper takes the same arguments."""
        node = self.site.node
        if self.site.use is None:
            assert isinstance(node, ast.Attribute)
            self._rewrite_attribute(node)
            return
        if self.use.name == _CLASS:
            self.refuse(
                "`PmapSharding` is gone, and `jax.pmap` gives a `NamedSharding` today; compare index maps "
                "(`sharding.devices_indices_map(shape)`) instead of classes"
            )
        if self.use.is_direct or (self.use.written or "").endswith(".default"):
            self.site.replace(self.use.node, self.site.spell_compat("pmap_sharding", _NO_MESH))

    def _rewrite_attribute(self, node: ast.Attribute) -> None:
        if node.attr == "sharding_spec":
            self.refuse(
                "a `NamedSharding`, which stands for `PmapSharding` today, has no `sharding_spec`; ask its `spec` and "
                "`mesh`, or `sharding.devices_indices_map(shape)`"
            )
        if not _is_made(self.site.context, self.site.module, node.value):
            self.refuse(
                "arrays of `jax.pmap` have a `NamedSharding` today, whose devices are `sharding.mesh.devices`; write "
                "that where the array is one of these"
            )
        self.site.wrap(node.value, "", ".mesh")


def _is_made(context: ModernizeContext, module: ModuleUses, value: ast.expr) -> bool:
    """Whether a value is what `PmapSharding.default` gives, as far as the source shows."""
    flow = context.flow
    return flow.must(Value(module, value), lambda each: each.outside in _MADE or None) is True
