"""Which results are averages over the batch: what they come of is divided by a number that the batch's size decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmruntime import _compat
from mmruntime._exactness.rules.equation import Edits, Hoisted


def averages(closed: Any, edits: Edits, positions: Iterable[int]) -> set[int]:
    """The results that such a number of the whole batch's program is in the way of.

    Args:
        closed: A microbatch's program, open or closed.
        edits: What the proof changes in it.
        positions: The results in question.
    """
    if edits.is_empty:
        return set()
    jaxpr, _ = _compat.split(closed)
    return {position for position in positions if _is_average(jaxpr, edits, jaxpr.outvars[position])}


def _is_average(jaxpr: Any, edits: Edits, result: Any) -> bool:
    wanted = {result} if _compat.is_var(result) else set()
    for index, eqn in reversed(list(enumerate(jaxpr.eqns))):
        # What is computed before the loop is read from there.
        used = [position for position, var in enumerate(eqn.outvars) if var in wanted and var not in edits.hoisted]
        if not used:
            continue
        own = [edits.operands.get((index, position)) for position in range(len(eqn.invars))]
        if any(isinstance(edit, Hoisted) and edit.is_size for edit in own) or _is_inside(
            eqn, edits.inner.get(index, {}), used
        ):
            return True
        pairs = zip(eqn.invars, own, strict=True)
        wanted.update(atom for atom, edit in pairs if _compat.is_var(atom) and not isinstance(edit, Hoisted))
    return False


def _is_inside(eqn: Any, inner: Mapping[Any, Edits], used: Sequence[int]) -> bool:
    """Whether such a number is in a body of an equation, before results that are used, where these are its results."""
    for key, edits in inner.items():
        name, *which = key if isinstance(key, tuple) else (key,)
        body = eqn.params[name][which[0]] if which else eqn.params[name]
        count = len(_compat.split(body)[0].outvars)
        if averages(body, edits, used if count == len(eqn.outvars) else range(count)):
            return True
    return False
