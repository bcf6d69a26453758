"""Effects: which equations do more than compute their results, so that they run once and in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mmruntime import _compat
from mmruntime._jaxpr.ir import Op, at_line


def runs_once(eqn: Any) -> bool:
    """Whether an equation must not run more often than the program says: it has effects or calls the host.

    `jax.pure_callback` has no effect in JAX's sense. Its function may still count its calls, or take long.
    """
    return bool(eqn.effects) or any(each.primitive.name == "pure_callback" for each in _compat.every_equation([eqn]))


# JAX's equations that call functions of the host.
_HOST_CALLS = frozenset(("debug_callback", "debug_print", "io_callback", "pure_callback"))


def host_call_lines(jaxpr: Any) -> Iterator[str]:
    """Where the user wrote each call of the host, at whatever depth; see `at_line`."""
    return (at_line(eqn) for eqn in _compat.every_equation(jaxpr.eqns) if eqn.primitive.name in _HOST_CALLS)


def previous_ordered(ops: Sequence[Op]) -> dict[Op, tuple[Op, ...]]:
    """For each equation with ordered effects, the last one before it with each of these.

    Args:
        ops: The equations of one variant of a region, in program order.
    """
    last: dict[Any, Op] = {}
    previous = {}
    for op in ops:
        found = _compat.ordered_effects(op.eqn) if op.eqn.effects else ()
        if found:
            previous[op] = tuple(dict.fromkeys(last[effect] for effect in found if effect in last))
            last.update(dict.fromkeys(found, op))
    return previous


def effect_line(eqn: Any) -> str:
    """Where the user wrote an effect, at whatever depth of the equation; see `at_line`."""
    for inner in _compat.inner_jaxprs(eqn):
        for each in inner.eqns:
            if runs_once(each):
                return effect_line(each) or at_line(eqn)
    return at_line(eqn)
