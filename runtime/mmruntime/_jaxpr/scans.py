"""Scans with other bodies than those that the program wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from mmruntime import _compat
from mmruntime._compat import Atom
from mmruntime._jaxpr.ir import abstract


def trace_scan(
    eqn: Any, compute: Callable[..., list[Any]], operands: Sequence[Atom], num_consts: int, num_carry: int
) -> tuple[Any, list[Any]]:
    """Trace a scan that runs as another does: as often, in the same order, as far unrolled.

    Args:
        eqn: The other scan.
        compute: The body: a function of constants, carried values and slices, which returns carried values, then what
            is stacked.
        operands: What the scan is given, in the order of the body's arguments.
        num_consts: How many of these are constants.
        num_carry: How many are carried.

    Returns:
        The open jaxpr, a function of the operands that returns carried values, then stacks; and the arrays that it
        captured.
    """
    first_slice = num_consts + num_carry

    def scan(*args: Any) -> list[Any]:
        def once(carry: Any, piece: Any) -> tuple[Any, Any]:
            out = compute(*args[:num_consts], *carry, *piece)
            return out[:num_carry], out[num_carry:]

        carry, stacks = jax.lax.scan(
            once,
            list(args[num_consts:first_slice]),
            list(args[first_slice:]),
            length=eqn.params["length"],
            reverse=eqn.params["reverse"],
            unroll=eqn.params["unroll"],
        )
        return [*carry, *stacks]

    return _compat.split(jax.make_jaxpr(scan)(*map(abstract, operands)))
