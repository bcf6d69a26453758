"""Take apart: an equation with a body, over values of several submeshes, becomes one equation for each of them.

Optimizers wrap the update of all parameters in one `lax.cond` (`optax.MultiSteps`, `apply_if_finite`), or in a loop
over a tree. Whole, it would run on one submesh, and pull all parameters and their state there. Bodies are cut by where
their operands are. Values that cross from part to part, such as a global norm, cut a conditional further, into one for
each level of crossings:

    a, b = cond(p, f, g, x, y)
    ->  n = cond(p, norm of x, 0, x)
        a = cond(p, f1, g1, x, n)
        b = cond(p, f2, g2, y, n)

Loops are cut only into parts that share nothing but scalars which each part can compute by itself. Every part computes
the same equations on the same values, so results are equal bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmruntime._compat import Var, is_var
from mmruntime._partition.placement.cut_conditional import cut_cond
from mmruntime._partition.placement.cut_loop import cut_scan, cut_while
from mmruntime._partition.placement.locations import Locations, Whereabouts, arrays_of

_CUTS = {"cond": cut_cond, "while": cut_while, "scan": cut_scan}


@dataclass(frozen=True)
class EquationPart:
    """A part of an equation.

    Attributes:
        eqn: The equation that computes it.
        submesh: Where it runs; None where that is still open.
        gathers: Whether it holds work on arrays of several submeshes that could not be cut.
    """

    eqn: Any
    submesh: int | None
    gathers: bool


def take_apart(eqn: Any, locate: Callable[[Var], Whereabouts]) -> list[EquationPart] | None:
    """The equations that one with a body is cut into; None where it has only one part, or cannot be cut.

    Args:
        eqn: The equation.
        locate: Where each of its operands is.
    """
    keys = {locate(var).key for var in arrays_of(eqn.invars)} - {None}
    if len(keys) < 2:
        return None
    locations = Locations({atom: locate(atom) for atom in eqn.invars if is_var(atom)}, _CUTS)
    parts = locations.parts(eqn)
    if len(parts) == 1 and parts[0] is eqn:
        return None
    found = []
    for part in parts:
        key = locations.root(locations.where[id(part)])
        found.append(EquationPart(part, key if isinstance(key, int) else None, key in locations.gathering))
    return found
