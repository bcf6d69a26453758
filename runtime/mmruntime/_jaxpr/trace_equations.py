"""Equations of a function on given variables, for passes that add some of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from mmruntime import _compat
from mmruntime._compat import Atom, Var
from mmruntime._jaxpr.inline import inlined
from mmruntime._jaxpr.ir import abstract


def trace_equations(function: Callable[..., Any], operands: Sequence[Atom]) -> tuple[Var, list[Any]]:
    """The variable of a function's one result, and its equations.

    Args:
        function: What to trace; it captures no arrays.
        operands: Its arguments.
    """
    traced, captured = _compat.split(jax.make_jaxpr(function)(*map(abstract, operands)))
    assert not captured, "what is traced reads its operands only"
    out = _compat.new_var(traced.outvars[0].aval)
    # Without equations the result is a number, as of `jnp.zeros(())`, or an operand.
    return out, inlined(traced, operands, [out], next(iter(traced.eqns), None))
