"""Rewriting: which equations are needed, and equations on other variables.

Equations of JAX and those of a step (`Op`) go through the same functions. `inline` opens calls; `trace_equations` and
`trace_scan` make new equations of a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._jaxpr.inline import inlined
from mmruntime._jaxpr.ir import Op, abstract

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


def trace_equations(
    function: Callable[..., Any], operands: Sequence[Atom], out: Var | None = None
) -> tuple[Var, list[Any]]:
    """The variable of a function's one result, and its equations.

    Args:
        function: What to trace; it captures no arrays.
        operands: Its arguments.
        out: The variable; a new one if left out.
    """
    traced, captured = _compat.split(jax.make_jaxpr(function)(*map(abstract, operands)))
    assert not captured, "what is traced reads its operands only"
    out = _compat.new_var(traced.outvars[0].aval) if out is None else out
    return out, inlined(traced, operands, [out], None)


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
    first = num_consts + num_carry
    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}

    def scan(*args: Any) -> list[Any]:
        carry, stacks = run_scan(compute, args[:num_consts], args[num_consts:first], args[first:], **options)
        return [*carry, *stacks]

    return _compat.split(jax.make_jaxpr(scan)(*map(abstract, operands)))


def run_scan(
    compute: Callable[..., list[Any]],
    consts: Sequence[Any],
    carry: Sequence[Any],
    slices: Sequence[Any],
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    """The last carry of a scan, and its stacked results.

    Args:
        compute: The body, as for `trace_scan`.
        consts: What it is given in each turn.
        carry: The first carry.
        slices: The arrays that it goes along.
        **options: Those of `jax.lax.scan`.
    """

    def once(carry: Any, piece: Any) -> tuple[Any, Any]:
        out = compute(*consts, *carry, *piece)
        return out[: len(carry)], out[len(carry) :]

    last, stacks = jax.lax.scan(once, list(carry), list(slices), **options)
    return list(last), list(stacks)
