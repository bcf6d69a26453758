"""The part of a program that some of its values come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mmruntime import _compat


def needed(eqns: Sequence[Any], wanted: Iterable[Any], *, keep_effects: bool) -> tuple[list[Any], set[Any]]:
    """The equations that atoms come from, in order, and all variables that they or the atoms read."""
    reads = {atom for atom in wanted if _compat.is_var(atom)}
    kept = []
    for eqn in reversed(eqns):
        used = [_compat.is_var(var) and var in reads for var in eqn.outvars]
        if not any(used) and not (keep_effects and _compat.acts(eqn)):
            continue
        kept.append(eqn)
        reads.update(atom for atom in eqn.invars if _compat.is_var(atom))
    return kept[::-1], reads
