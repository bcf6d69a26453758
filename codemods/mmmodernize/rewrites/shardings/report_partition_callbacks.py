"""Report `custom_partitioning` with callbacks for propagation instead of a sharding rule.

    f.def_partition(partition=partition, infer_sharding_from_operands=infer)
    ->  rules.py:9:1: JAX's partitioner asks for `sharding_rule=` ...

JAX propagates shardings by Shardy today, which takes a rule such as `"i j -> i j"` and calls no function. Without one,
the first call of the function raises.

To check: each report; nothing is written.

Refused: every `def_partition` with such a callback and without `sharding_rule=`, in modules beside JAX.
See https://docs.jax.dev/en/latest/jax.experimental.custom_partitioning.html for rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses

_CALLBACKS = frozenset(("infer_sharding_from_operands", "propagate_user_sharding"))


class ReportPartitionCallbacks(ModernizeCodemod):
    """Writes nothing."""

    changed_in: ClassVar = {"": ("jax", "0.7.0", "stops")}
    extra_markers: ClassVar[tuple[bytes, ...]] = (b"def_partition",)
    beside: ClassVar = ()
    words: ClassVar = ("def_partition",)

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Calls of `def_partition` with a callback and without a rule."""
        if not context.flow.is_beside(module, "jax"):
            return
        for node in module.nodes_of(ast.Call):
            if not isinstance(node.func, ast.Attribute):
                continue
            words = {word.arg for word in node.keywords}
            # The first argument by position is `partition`, and callbacks come next.
            has_callback = bool(words & _CALLBACKS) or len(node.args) > 1
            if node.func.attr == "def_partition" and has_callback and not words & {"sharding_rule", None}:
                yield Location(module, node)

    def rewrite(self) -> None:
        """Report the call."""
        self.refuse(
            "JAX's partitioner, Shardy, calls no function to propagate shardings, and the first call raises without "
            '`sharding_rule=`; add one, such as `sharding_rule="i j -> i j"`'
        )
