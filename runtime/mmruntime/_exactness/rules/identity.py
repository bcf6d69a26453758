"""Operations that say where or how a value is laid out."""

from __future__ import annotations

from mmruntime._exactness.lattice import AbstractValue
from mmruntime._exactness.rules.equation import Equation, rule


@rule("sharding_constraint", "mm_constraint", "name", "layout_constraint", "pvary", "reshard", "device_put",
      "with_memory_space_constraint", "shard_alike", "reduced_vary_cast", "reduced_vary_cast_p", "vary_unreduced_cast",
      "vary_unreduced_cast_p", "relayout")  # fmt: skip
def identity(eqn: Equation) -> list[AbstractValue]:
    """Every operand as it is."""
    return list(eqn.ins)
