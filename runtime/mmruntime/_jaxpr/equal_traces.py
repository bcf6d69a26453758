"""Equal traces of tasks as one object, so that JAX differentiates layers that are alike once.

JAX keeps what it derives from a jaxpr (its linearization, its transpose) by the identity of the jaxpr. The layers of a
model are traced one by one and give jaxprs that are equal, yet not the same. With dropout they differ in the numbers
that they fold into their keys; these are passed instead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

from mmruntime import _compat

_Found = dict[Hashable, list[Any]]
_FOUND: ContextVar[_Found | None] = ContextVar("equal_traces", default=None)


@contextmanager
def shared() -> Iterator[None]:
    """A context in which `one_of_equal` knows the traces that it was given."""
    token = _FOUND.set({} if (found := _FOUND.get()) is None else found)
    try:
        yield
    finally:
        _FOUND.reset(token)


def is_shared() -> bool:
    """Whether `one_of_equal` would find anything."""
    return _FOUND.get() is not None


def one_of_equal(closed: Any) -> tuple[Any, list[Any]]:
    """The first of all closed jaxprs that equal this one, in a context of `shared`; without one, this one.

    Numbers that are folded into keys do not count.

    Returns:
        The jaxpr, and the numbers that it takes at the end.
    """
    known = _FOUND.get()
    if known is None:
        return closed, []
    closed, numbers = _with_folded_numbers(closed)
    jaxpr, _ = _compat.split(closed)
    key = (tuple(var.aval for var in jaxpr.invars), tuple(eqn.primitive for eqn in jaxpr.eqns))
    others = known.setdefault(key, [])
    for other in others:
        if same_trace(other, closed):
            return other, numbers
    others.append(closed)
    return closed, numbers


def _with_folded_numbers(closed: Any) -> tuple[Any, list[Any]]:
    """A jaxpr that takes the numbers that it folds into keys, and these."""
    jaxpr, consts = _compat.split(closed)
    inputs, numbers, eqns = [], [], []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "random_fold_in" and isinstance(eqn.invars[1], _compat.Literal):
            number = eqn.invars[1]
            inputs.append(_compat.new_var(number.aval))
            numbers.append(number.val)
            eqn = eqn.replace(invars=[eqn.invars[0], inputs[-1]])
        eqns.append(eqn)
    if not numbers:
        return closed, []
    return _compat.with_consts(jaxpr.replace(invars=[*jaxpr.invars, *inputs], eqns=eqns), consts), numbers


def same_trace(one: Any, other: Any) -> bool:
    """Whether two jaxprs are equal in all that computes or is said to people: operations, constants, lines, effects.

    Constants and derivative rules have to be the same objects. The names of scopes, which hold a layer's number, and of
    arguments do not count.
    """
    if one is other:
        return True
    (first, consts), (second, other_consts) = _compat.split(one), _compat.split(other)
    if len(consts) != len(other_consts) or any(a is not b for a, b in zip(consts, other_consts, strict=True)):
        return False
    twins: dict[Any, Any] = {}

    def binds(left: Sequence[Any], right: Sequence[Any]) -> bool:
        if len(left) != len(right):
            return False
        for a, b in zip(left, right, strict=True):
            if _compat.is_var(a) != _compat.is_var(b) or a.aval != b.aval:
                return False
            twins[a] = b
        return True

    def reads(left: Sequence[Any], right: Sequence[Any]) -> bool:
        return len(left) == len(right) and all(
            (twins.get(a) is b) if _compat.is_var(a) else (not _compat.is_var(b) and _same_literal(a, b))
            for a, b in zip(left, right, strict=True)
        )

    return (
        len(first.eqns) == len(second.eqns)
        and binds(first.constvars, second.constvars)
        and binds(first.invars, second.invars)
        and all(
            a.primitive is b.primitive
            and reads(a.invars, b.invars)
            and a.ctx == b.ctx
            and a.effects == b.effects
            and a.source_info.traceback == b.source_info.traceback
            and _same_value(a.params, b.params)
            and binds(a.outvars, b.outvars)
            for a, b in zip(first.eqns, second.eqns, strict=True)
        )
        and reads(first.outvars, second.outvars)
        and first.effects == second.effects
    )


def _same_literal(one: Any, other: Any) -> bool:
    return bool(one.aval == other.aval) and _same_value(one.val, other.val)


def _same_value(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if _compat.is_jaxpr(one):
        return same_trace(one, other)
    if type(one) in (tuple, list):
        return len(one) == len(other) and all(map(_same_value, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(_same_value(value, other[key]) for key, value in one.items())
    if isinstance(one, np.ndarray | np.generic | float | complex):
        # Equality of numbers is too wide: 0.0 is -0.0.
        a, b = np.asarray(one), np.asarray(other)
        return not a.dtype.hasobject and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(one, jax.Array):
        return False
    try:
        return bool(one == other)
    except (TypeError, ValueError):
        return False
