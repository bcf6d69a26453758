"""Parts of an initialiser: for each submesh the equations that its results need, with each effect in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmruntime import _compat
from mmruntime._jaxpr.effects import effect_line, runs_once
from mmruntime._jaxpr.ir import Op
from mmruntime._jaxpr.rewrite import needed, open_calls


def by_part(closed: Any, groups: Sequence[Sequence[int]], label: str) -> list[Any]:
    """The closed jaxpr that computes the results of each group.

    Args:
        closed: The initialiser, without mutable arrays.
        groups: Positions of the results that each submesh holds.
        label: Its name, for messages.

    Raises:
        ValueError: If several groups need what an equation gives that must run once, or ordered effects belong to
            several groups.
    """
    jaxpr, consts = _compat.split(closed)
    ops = [Op(eqn) for eqn in jaxpr.eqns]
    if any(runs_once(op.eqn) for op in ops):
        ops = [opened for op in ops for opened in open_calls(op)]
    kept = [{*needed(ops, [jaxpr.outvars[position] for position in group])[0]} for group in groups]
    owner = _owners(ops, kept, label)
    parts = []
    for number, group in enumerate(groups):
        outvars = [jaxpr.outvars[position] for position in group]
        mine = {op for op, part in owner.items() if part == number}
        own, _ = needed(ops, outvars, mine.__contains__)
        part = jaxpr.replace(
            eqns=[op.eqn for op in own],
            outvars=outvars,
            effects=frozenset[Any]().union(*[op.eqn.effects for op in own]),
        )
        parts.append(_compat.with_consts(part, consts))
    return parts


def _owners(ops: Sequence[Op], kept: Sequence[set[Op]], label: str) -> dict[Op, int]:
    """The group of each equation that must run once."""
    owner: dict[Op, int] = {}
    ordered: dict[Any, int] = {}
    advice = "Call it before, and pass its result as an argument (functools.partial)."
    for op in ops:
        if not runs_once(op.eqn):
            continue
        users = [number for number, needed in enumerate(kept) if op in needed]
        if len(users) > 1:
            raise ValueError(
                f"mjit: {label} calls the host{effect_line(op.eqn)} for results on {len(users)} submeshes, each of "
                f"which computes its own part, so the call would run {len(users)} times instead of once. {advice}"
            )
        effects = _compat.ordered_effects(op.eqn)
        before = next((ordered[effect] for effect in effects if effect in ordered), None)
        part = users[0] if users else before if before is not None else 0
        if before is not None and part != before:
            raise ValueError(
                f"mjit: the ordered effect of {label}{effect_line(op.eqn)} is on another submesh than the one before "
                f"it, and initialisers of several submeshes run at the same time. {advice}"
            )
        if op.eqn.effects or users:
            owner[op] = part
        ordered.update(dict.fromkeys(effects, part))
    return owner
