"""What a step computes on which lines of a program: equations that are alike, with the calls that led to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mmruntime import _compat
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.ir import Op


@dataclass
class OperationGroup:
    """Equations of one primitive, for the same shapes, made by the same calls.

    Attributes:
        lines: Files and lines of these calls.
        flops: Operations of each.
        count: How many there are.
        length: For a scan, how often its body runs; else 1.
        backward: Whether they are part of a backward pass.
    """

    lines: list[tuple[str, int]]
    flops: float
    count: int
    length: int
    backward: bool


def operation_groups(ops: Iterable[Op]) -> list[OperationGroup]:
    """The equations of a step in groups; a loop that Python runs is what makes several alike."""
    found: dict[object, OperationGroup] = {}
    for op in ops:
        # Of a body that is traced once and called from two places, both have made it.
        frames = [*_compat.own_frames(op.eqn), *(frame for call in op.callers for frame in _compat.own_frames(call))]
        shapes = tuple(getattr(atom.aval, "shape", None) for atom in (*op.eqn.invars, *op.eqn.outvars))
        key = op.eqn.primitive.name, shapes, tuple(frames), op.backward
        group = found.get(key)
        if group is None:
            lines = list(dict.fromkeys(frame[:2] for frame in frames))
            length = int(op.eqn.params.get("length", 1)) if op.eqn.primitive is _compat.scan_p else 1
            group = found[key] = OperationGroup(lines, _cost.flops(op.eqn), 0, length, op.backward)
        group.count += 1
    return list(found.values())
