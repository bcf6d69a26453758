"""Equal traces of tasks as one object, so that JAX differentiates layers that are alike once.

JAX keeps what it derives from a jaxpr (its linearization, its transpose) by the identity of the jaxpr. The layers of a
model are traced one by one and give jaxprs that are equal, yet not the same. With dropout they differ in the numbers
that they fold into their keys; these are passed instead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from mmruntime import _compat
from mmruntime._jaxpr.equal import Forms

# The first trace of each form.
_Found = tuple[Forms, dict[Hashable, Any]]
_FOUND: ContextVar[_Found | None] = ContextVar("equal_traces", default=None)


@contextmanager
def shared() -> Iterator[None]:
    """A context in which `one_of_equal` knows the traces that it was given."""
    token = _FOUND.set(_FOUND.get() or (Forms(), {}))
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
    found = _FOUND.get()
    if found is None:
        return closed, []
    closed, numbers = _with_folded_numbers(closed)
    forms, known = found
    return known.setdefault(forms.of_trace(closed), closed), numbers


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
