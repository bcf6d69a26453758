"""Report code that asks for the memory kind of a sharding, which is another one on CPUs today.

    if x.sharding.memory_kind == "unpinned_host":
    ->  offload.py:3:4: on CPUs ...

The memory of a CPU was called `"unpinned_host"` and is called `"device"` today, as that of GPUs and TPUs always was.

To check: each report; nothing is written.

Refused: nothing; what runs on GPUs or TPUs alone means what it did.
See https://docs.jax.dev/en/latest/notebooks/host-offloading.html for memory kinds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses

_KIND = "unpinned_host"


class ReportMemoryKinds(ModernizeCodemod):
    """Writes nothing."""

    extra_markers: ClassVar[tuple[bytes, ...]] = (b".memory_kind", _KIND.encode())
    beside: ClassVar = ()
    words: ClassVar = ("memory_kind", _KIND)

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """The attribute where it is read, and the old name of the kind, in modules beside JAX."""
        if not context.flow.is_beside(module, "jax"):
            return
        for node in module.nodes_of(ast.Attribute, ast.Constant):
            is_read = isinstance(node, ast.Attribute) and node.attr == "memory_kind" and isinstance(node.ctx, ast.Load)
            if is_read or (isinstance(node, ast.Constant) and node.value == _KIND):
                yield Location(module, node)

    def rewrite(self) -> None:
        """Report the place."""
        self.site.leave(
            f'on CPUs, the memory kind of arrays was "{_KIND}" and is "device" today, as it always was on GPUs and TPUs'
        )
