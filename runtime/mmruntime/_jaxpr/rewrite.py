"""Rewriting: which equations are needed, and equations on other variables.

Equations of JAX and those of a step (`Op`) go through the same functions. `inline` opens calls, and `trace_equations`
makes new equations of a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mmruntime._compat import Var, is_var
from mmruntime._jaxpr.ir import Op

_Item = TypeVar("_Item")


def needed(
    items: Sequence[_Item], wanted: Iterable[Any], keep: Callable[[_Item], Any] | None = None
) -> tuple[list[_Item], set[Var]]:
    """The equations that some atoms come from, in order, and all variables that they or the atoms read.

    Args:
        items: Equations, or those of a step.
        wanted: The atoms.
        keep: Whether to keep an equation whatever reads it, as for its effects.
    """
    reads: set[Var] = {atom for atom in wanted if is_var(atom)}
    kept: list[_Item] = []
    for item in reversed(items):
        eqn: Any = item.eqn if isinstance(item, Op) else item
        if (keep is not None and keep(item)) or any(is_var(var) and var in reads for var in eqn.outvars):
            kept.append(item)
            reads.update(atom for atom in eqn.invars if is_var(atom))
    return kept[::-1], reads


def has_effects(item: Any) -> bool:
    """Whether an equation does more than compute its results."""
    return bool((item.eqn if isinstance(item, Op) else item).effects)


def renamed(eqn: Any, reads: Mapping[Any, Any], writes: Mapping[Any, Any]) -> Any:
    """An equation with other variables in the place of those that it reads and writes; the same object if none is."""
    ins = [reads.get(atom, atom) if is_var(atom) else atom for atom in eqn.invars]
    outs = [writes.get(var, var) if is_var(var) else var for var in eqn.outvars]
    is_same = all(a is b for a, b in zip((*ins, *outs), (*eqn.invars, *eqn.outvars), strict=True))
    return eqn if is_same else eqn.replace(invars=ins, outvars=outs)
