"""Which results are averages over the batch: what they come of is divided by a number that the batch's size decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmruntime import _compat
from mmruntime._exactness.rules.equation import Edits, Hoisted


def averages(closed: Any, edits: Edits) -> set[int]:
    """The positions of the results that such a number of the whole batch's program is in the way of.

    Args:
        closed: A microbatch's program, open or closed.
        edits: What the proof changes in it.
    """
    if edits.is_empty:
        return set()
    jaxpr, _ = _compat.split(closed)
    found: set[Any] = set()
    for index, eqn in enumerate(jaxpr.eqns):
        own = [edits.operands.get((index, position)) for position in range(len(eqn.invars))]
        is_size = any(isinstance(edit, Hoisted) and edit.is_size for edit in own)
        # What is computed before the loop is read from there.
        read = [atom for atom, edit in zip(eqn.invars, own, strict=True) if not isinstance(edit, Hoisted)]
        if is_size or any(_compat.is_var(atom) and atom in found for atom in read):
            found.update(eqn.outvars)
        else:
            found.update(eqn.outvars[position] for position in _inside(eqn, edits.inner.get(index, {})))
        found -= edits.hoisted.keys()
    return {position for position, atom in enumerate(jaxpr.outvars) if _compat.is_var(atom) and atom in found}


def _inside(eqn: Any, inner: Mapping[Any, Edits]) -> set[int]:
    """The results of an equation that such a number in one of its bodies is in the way of; all, if they are others."""
    found: set[int] = set()
    for key, edits in inner.items():
        name, *which = key if isinstance(key, tuple) else (key,)
        body = eqn.params[name][which[0]] if which else eqn.params[name]
        positions = averages(body, edits)
        is_same = len(_compat.split(body)[0].outvars) == len(eqn.outvars)
        found |= positions if is_same or not positions else set(range(len(eqn.outvars)))
    return found
