"""State that lives away from its stage: which, how large, and because of which line."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from mmruntime import _compat
from mmruntime._jaxpr.ir import Op, Step, num_bytes
from mmruntime._partition.place import Placement


@dataclass(frozen=True)
class PulledState:
    """Parameters or optimizer state of several stages that one equation put on one submesh.

    Attributes:
        names: The user's names for them.
        size: How many bytes they have together.
        submesh: Where they live.
        line: The line of the equation, and the user's line that led to it; empty if it is not known.
        operation: The name of its primitive.
    """

    names: tuple[str, ...]
    size: int
    submesh: int
    line: str
    operation: str

    def __str__(self) -> str:
        shown = ", ".join(self.names[:4]) + (f" and {len(self.names) - 4} more" if len(self.names) > 4 else "")
        where = f" at {self.line}" if self.line else ""
        return (
            f"state of several stages lives on submesh {self.submesh}, {self.size:,} bytes: {shown}. It is pulled "
            f"there by {self.operation!r}{where}, which works on arrays of several submeshes at once. Update each "
            "parameter by itself, with nothing but scalars in common, for state to live on its stage."
        )


def pulled_state(step: Step, placement: Placement, names: Sequence[str]) -> tuple[PulledState, ...]:
    """The carried state that lives away from its stage, by the equation that pulled it there.

    Args:
        step: The step.
        placement: Where it runs.
        names: The user's names for the step's inputs.
    """
    groups: dict[tuple[Op, int], list[int]] = {}
    for position, var in enumerate(step.invars):
        if var in placement.pulled:
            groups.setdefault((placement.pulled[var], placement.homes[var]), []).append(position)
    return tuple(
        PulledState(
            tuple(names[position] for position in positions),
            sum(num_bytes(step.invars[position]) for position in positions),
            where,
            _compat.source_lines_outside_packages(op.eqn),
            op.eqn.primitive.name,
        )
        for (op, where), positions in groups.items()
    )


def warn_of_pulled_state(step: Step, placement: Placement, names: Sequence[str]) -> None:
    """Warn of state that lives away from its stage."""
    for each in pulled_state(step, placement, names):
        warnings.warn(f"mjit: {each}", stacklevel=2)
