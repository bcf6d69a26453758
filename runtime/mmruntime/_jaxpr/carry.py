"""The sums in a loop body: which leaves of the carry an iteration only adds to, or compares, found in its jaxpr."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._core.marks import is_marked
from mmruntime._jaxpr.rewrite import inlined

_ADDITIONS = (_compat.add_p, _compat.add_any_p)


@dataclass(frozen=True)
class Addend:
    """An atom that is added, or subtracted where `sign` is -1."""

    atom: Any
    sign: int = 1


@dataclass(frozen=True)
class CarryChange:
    """How an iteration changes one leaf of the carry.

    Attributes:
        kind: "same" if it does not change, "sum" if only `addends` are added to it, "max" or "min" if it is the larger
            or smaller of itself and another value, "set" if it does not depend on the carry, "other" for all else.
        addends: For "sum", the atoms that are added; for "max" and "min" the other value; for "set", the new value.
    """

    kind: Literal["same", "sum", "max", "min", "set", "other"]
    addends: tuple[Addend, ...] = ()


def changes(jaxpr: Any, carried: Sequence[Any], outvars: Sequence[Any], *, widens: bool = False) -> list[CarryChange]:
    """How an iteration changes each leaf of its carry.

    Args:
        jaxpr: An open jaxpr, the body of a loop.
        carried: Its input variables for the carry; None where the carry has no such leaf yet.
        outvars: The atoms that it returns for them, in the same order.
        widens: Whether a carried value may change its dtype, and a scalar its shape, before something is added, as
            `0` does in `0 + x`. That loses nothing in a first iteration only.
    """
    grown: dict[Any, tuple[int, tuple[Addend, ...]]] = {
        var: (index, ()) for index, var in enumerate(carried) if var is not None
    }
    compared: dict[Any, tuple[int, CarryChange]] = {}
    for eqn in jaxpr.eqns:
        growing = [atom for atom in eqn.invars if _compat.is_var(atom) and atom in grown]
        if len(growing) != 1 or len(eqn.outvars) != 1 or not _compat.is_var(eqn.outvars[0]):
            continue
        (before,) = growing
        index, addends = grown[before]
        if eqn.primitive in _ADDITIONS:
            others = [atom for atom in eqn.invars if atom is not before]
            grown[eqn.outvars[0]] = index, (*addends, *map(Addend, others))
        elif eqn.primitive is _compat.sub_p and eqn.invars[0] is before:
            grown[eqn.outvars[0]] = index, (*addends, Addend(eqn.invars[1], -1))
        elif not addends and (extreme := _extreme(eqn)) is not None:
            (other,) = (atom for atom in eqn.invars if atom is not before)
            compared[eqn.outvars[0]] = index, CarryChange(extreme, (Addend(other),))
        elif _is_renamed(eqn) or (widens and not addends and _is_widened(eqn)):
            grown[eqn.outvars[0]] = index, addends
    tainted = computed_from(jaxpr, {var for var in carried if var is not None})
    found = []
    for index, (before, after) in enumerate(zip(carried, outvars, strict=True)):
        owner, addends = grown.get(after, (None, ())) if _compat.is_var(after) else (None, ())
        comparison = compared.get(after) if _compat.is_var(after) else None
        if comparison is not None and comparison[0] == index:
            found.append(comparison[1])
        elif before is not None and owner == index:
            same = not addends and before.aval.shape == after.aval.shape and before.aval.dtype == after.aval.dtype
            found.append(CarryChange("same") if same else CarryChange("sum" if addends else "other", addends))
        else:
            found.append(
                CarryChange("other" if _compat.is_var(after) and after in tainted else "set", (Addend(after),))
            )
    return found


def computed_from(jaxpr: Any, variables: set[Any]) -> set[Any]:
    """The variables of a jaxpr that some of them have a part in, these included."""
    found = set(variables)
    for eqn in jaxpr.eqns:
        if any(_compat.is_var(atom) and atom in found for atom in eqn.invars):
            found.update(var for var in eqn.outvars if _compat.is_var(var))
    return found


def open_helpers(closed: Any, carried: Collection[int]) -> Any:
    """Inline the calls of jitted functions that read the carry, which are the inputs of a jaxpr at `carried`.

    A jitted helper, such as `@jax.jit def accumulate(a, b)`, is one `pjit` equation in a trace, which hides its sum.
    Tasks and microbatch loops stay calls, and so do calls that do not read the carry.
    """
    jaxpr, consts = _compat.split(closed)
    constvars, values = list(jaxpr.constvars), list(consts)
    tainted = {jaxpr.invars[position] for position in carried}
    waiting, eqns = list(reversed(jaxpr.eqns)), []
    while waiting:
        eqn = waiting.pop()
        if not any(_compat.is_var(atom) and atom in tainted for atom in eqn.invars):
            eqns.append(eqn)
        elif eqn.primitive is _compat.jit_p and not is_marked(eqn.params["name"]):
            inner, inner_consts = _compat.split(eqn.params["jaxpr"])
            fresh = [_compat.new_var(var.aval) for var in inner.constvars]
            constvars += fresh
            values += inner_consts
            body = inner.replace(constvars=[], invars=[*inner.constvars, *inner.invars])
            waiting += reversed(inlined(body, [*fresh, *eqn.invars], eqn.outvars, eqn))
        else:
            eqns.append(eqn)
            tainted.update(var for var in eqn.outvars if _compat.is_var(var))
    return _compat.with_consts(jaxpr.replace(constvars=constvars, eqns=eqns), values)


def _extreme(eqn: Any) -> Literal["max", "min"] | None:
    """Whether an equation takes the larger or the smaller of its operands; of booleans, any or all."""
    name, is_bool = eqn.primitive.name, eqn.outvars[0].aval.dtype == np.bool_
    if name == "max" or (name == "or" and is_bool):
        return "max"
    return "min" if name == "min" or (name == "and" and is_bool) else None


def _is_renamed(eqn: Any) -> bool:
    """Whether an equation copies a value, or changes only whether its type is weak."""
    is_renaming: bool = eqn.primitive.name in ("convert_element_type", "copy")
    return is_renaming and bool(eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype)


def _is_widened(eqn: Any) -> bool:
    name, (source, *_) = eqn.primitive.name, eqn.invars
    if name == "convert_element_type":
        return not jnp.issubdtype(source.aval.dtype, jnp.inexact) or jnp.issubdtype(
            eqn.outvars[0].aval.dtype, jnp.inexact
        )
    return name == "broadcast_in_dim" and not source.aval.shape
