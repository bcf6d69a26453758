"""Jaxprs and equations: what they hold, how they are made, changed and called."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax._src import core, effects, sharding_impls
from jax._src.core import internal_mutable_array_effect, trace_state_clean
from jax._src.state.types import AbstractRef, RefEffect
from jax.core import Tracer
from jax.extend import core as jex
from jax.extend.core import primitives

if TYPE_CHECKING:

    class Var:
        """A variable of a jaxpr; JAX's own class does not say that its abstract value has a shape."""

        aval: Any

else:
    Var = jex.Var
_VAR = jex.Var
Literal = jex.Literal
Jaxpr = jex.Jaxpr
ClosedJaxpr = jex.ClosedJaxpr
Primitive = jex.Primitive
# An operand of an equation: a variable or a literal.
Atom = Any
jit_p = primitives.jit_p
scan_p = primitives.scan_p
cond_p = primitives.cond_p
remat_p = primitives.remat_p
# Parameters by which equations are named, differentiated and batched: in a program that is lowered, all that is done.
_UNREAD: Mapping[Any, tuple[str, ...]] = {
    jit_p: ("name",),
    remat_p: ("policy",),
    primitives.reduce_p: ("computation",),
}
LOWERED_IN_PART = frozenset([scan_p, *_UNREAD])
# What `jax.jit` has for an argument whose sharding nobody has given.
UNSPECIFIED: Any = sharding_impls.UNSPECIFIED  # type: ignore[attr-defined]
add_any_p = primitives.add_jaxvals_p
add_p = primitives.add_p
sub_p = primitives.sub_p


def split(jaxpr: Any) -> tuple[Any, list[Any]]:
    """The open jaxpr and its constants. JAX 0.12 merged `Jaxpr` and `ClosedJaxpr`, which 0.10 has as two classes."""
    if hasattr(jaxpr, "consts"):
        return jaxpr.jaxpr, list(jaxpr.consts)
    return jaxpr, []


def is_var(atom: Atom) -> bool:
    """Whether an atom names a value (literals and dropped results do not)."""
    # Passes ask this half a million times for a step. The only subclass is that of dropped results.
    return type(atom) is _VAR


def new_var(aval: Any) -> Var:
    """A fresh variable of the given abstract value."""
    fresh: Any = jex.Var(aval)
    var: Var = fresh
    return var


def close(like: Any, invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]) -> Any:
    """A closed jaxpr without constants.

    Args:
        like: Any open jaxpr; the other fields are taken from it, as they differ between versions of JAX.
        invars: Its input variables.
        outvars: Its results.
        eqns: Its equations, in order.
    """
    every = frozenset[Any]().union(*[eqn.effects for eqn in eqns]) if eqns else frozenset[Any]()
    jaxpr = like.replace(
        constvars=[],
        invars=list(invars),
        outvars=list(outvars),
        eqns=list(eqns),
        effects=every,
    )
    return jex.ClosedJaxpr(jaxpr, [])


def with_consts(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """An open jaxpr closed over values for its constants."""
    return jex.ClosedJaxpr(jaxpr, list(consts))


def scan_counts(eqn: Any) -> tuple[int, int]:
    """How many constants and carried values a scan equation has. JAX 0.12 stores them as trees instead of counts."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()
    return len(consts), len(carry)


def lowered_params(eqn: Any) -> Mapping[str, Any]:
    """An equation's parameters as far as lowering reads them, for a primitive of `LOWERED_IN_PART`.

    Of the trees of a scan in JAX 0.12 it reads how many values each of their groups has: the operands are a flat list.
    """
    if eqn.primitive is scan_p:
        return {
            key: [len(group) for group in value.unpack()] if key in ("ft_in", "ft_out") else value
            for key, value in eqn.params.items()
        }
    unread = _UNREAD[eqn.primitive]
    return {key: value for key, value in eqn.params.items() if key not in unread}


def unread_params(eqn: Any) -> list[Any]:
    """The parameters of an equation that lowering does not read at all."""
    return [eqn.params[key] for key in _UNREAD.get(eqn.primitive, ()) if key in eqn.params]


def as_fun(closed: Any) -> Callable[..., list[Any]]:
    """The function that evaluates a closed jaxpr on flat arguments."""
    function: Callable[..., list[Any]] = jex.jaxpr_as_fun(closed)
    return function


def as_traced_fun(closed: Any) -> Callable[..., list[Any]]:
    """The function that evaluates a closed jaxpr on traced arguments: its equations are copied, not traced again."""
    jaxpr, consts = split(closed)
    if consts or not jaxpr.eqns:
        return as_fun(closed)
    # Private: `jax.jit` takes no jaxpr.
    like: Any = jax.jit(lambda: (), inline=True).trace()
    params = _for_more_inputs(like._params | {"jaxpr": closed}, len(jaxpr.invars))
    for name, default in (("out_shardings", UNSPECIFIED), ("out_layouts", None)):
        if name in params:
            params[name] = (default,) * len(jaxpr.outvars)

    def function(*args: Any) -> list[Any]:
        return jit_p.bind(*args, **params)  # type: ignore[no-any-return]

    return function


def call_of_trace(
    function: Callable[..., list[Any]], operands: Sequence[Any], exchange: Callable[[Any], tuple[Any, Sequence[Any]]]
) -> list[Any]:
    """What `jax.jit(function)(*operands)` is while tracing, with another jaxpr for that of the function.

    Args:
        function: A function of arrays.
        operands: Its arguments, one of them traced.
        exchange: Takes the function's closed jaxpr, whose first inputs are traced values that it captured, and gives
            one that computes the same, and what that takes at the end besides.
    """
    # Private: `jax.jit` takes no jaxpr, and a function that evaluates one would be traced, into a new one.
    traced: Any = jax.jit(function).trace(*operands)
    closed, further = exchange(traced.jaxpr)
    params = _for_more_inputs(traced._params | {"jaxpr": closed}, len(further))
    results: list[Any] = jit_p.bind(*traced._consts, *operands, *further, **params)
    return results


def is_well_typed(closed: Any) -> bool:
    """Whether each equation of a closed jaxpr gives what its operands and parameters make of it."""
    try:
        core.check_jaxpr(split(closed)[0])
    except Exception:
        # Whatever the rule of an operation raises for operands that it cannot take.
        return False
    return True


# Passes look through the parameters of all equations of a step some ten times, and a union is made anew each time.
_JAXPRS: Any = (jex.Jaxpr, jex.ClosedJaxpr)
_SEQUENCES = (tuple, list)


def is_jaxpr(value: Any) -> bool:
    """Whether an equation's parameter is a jaxpr, open or closed."""
    return isinstance(value, _JAXPRS)


def map_jaxprs(value: Any, function: Callable[[Any], Any]) -> Any:
    """An equation's parameter with `function` applied to the open jaxprs in it; the same object if none changes."""
    if is_jaxpr(value):
        inner, consts = split(value)
        changed = function(inner)
        if changed is inner:
            return value
        return jex.ClosedJaxpr(changed, consts) if hasattr(value, "consts") else changed
    if type(value) in _SEQUENCES:
        mapped = [map_jaxprs(item, function) for item in value]
        if all(new is old for new, old in zip(mapped, value, strict=True)):
            return value
        return type(value)(mapped)
    return value


def map_params(params: Mapping[str, Any], function: Callable[[Any], Any]) -> Mapping[str, Any]:
    """An equation's parameters with `function` applied to the open jaxprs in them; the same object if none changes."""
    changed: dict[str, Any] = {}
    for key, value in params.items():
        mapped = map_jaxprs(value, function)
        if mapped is not value:
            changed[key] = mapped
    return {**params, **changed} if changed else params


def at_top_level() -> bool:
    """Whether no JAX transformation is tracing right now."""
    return bool(trace_state_clean())


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The open jaxprs in an equation's parameters."""
    found: list[Any] = []
    for value in eqn.params.values():
        if isinstance(value, _SEQUENCES):
            found.extend([split(item)[0] for item in value if isinstance(item, _JAXPRS)])
        elif isinstance(value, _JAXPRS):
            found.append(split(value)[0])
    return found


def with_eqns(jaxpr: Any, eqns: Sequence[Any]) -> Any:
    """An open jaxpr with other equations; the same object if they are its own."""
    is_same = len(eqns) == len(jaxpr.eqns) and all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True))
    return jaxpr if is_same else jaxpr.replace(eqns=eqns)


def every_equation(eqns: Iterable[Any]) -> Iterator[Any]:
    """Equations, each followed by those in its bodies, at any depth."""
    for eqn in eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from every_equation(inner.eqns)


def ordered_effects(eqn: Any) -> frozenset[Any]:
    """The effects of an equation that JAX keeps in program order, such as those of `io_callback(ordered=True)`."""
    return frozenset(effect for effect in eqn.effects if effects.ordered_effects.contains(effect))


def one_device_only(effect: Any) -> bool:
    """Whether JAX refuses to compile an ordered effect for several devices, as that of `debug.print(ordered=True)`."""
    return not effects.shardable_ordered_effects.contains(effect)


def is_ref(atom: Atom) -> bool:
    """Whether an atom is a mutable array (`jax.new_ref`)."""
    return isinstance(atom.aval, AbstractRef)


def has_refs(jaxpr: Any) -> bool:
    """Whether an open jaxpr makes, reads or writes a mutable array, at any depth."""
    return any(isinstance(effect, RefEffect) or effect is internal_mutable_array_effect for effect in jaxpr.effects)


def without_ref_effects(found: Iterable[Any]) -> frozenset[Any]:
    """Effects without the one that stands for mutable arrays made inside."""
    return frozenset(effect for effect in found if effect is not internal_mutable_array_effect)


def discharge_refs(closed: Any) -> Any:
    """A closed jaxpr whose mutable arrays are values, which its equations hand on to each other.

    It is what JAX itself does before it lowers a program with such arrays. None of them may be an input or a constant.
    """
    from jax._src.state import discharge  # noqa: PLC0415  (private: JAX has no public function for it)

    return discharge.discharge_state(closed)


def acts(eqn: Any) -> bool:
    """Whether an equation does more than compute its results; naming a mesh axis is an effect to JAX alone."""
    return any(not isinstance(effect, core.NamedAxisEffect) for effect in eqn.effects)


def is_tracer(value: Any) -> bool:
    """Whether a value is only known while tracing."""
    return isinstance(value, Tracer)


def own_derivative_rule(jaxpr: Any) -> str:
    """The first function in a jaxpr with a derivative rule that is none of JAX's, as "name at file:line"; else ""."""
    for eqn in every_equation(split(jaxpr)[0].eqns):
        if eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
            where = str(split(eqn.params["call_jaxpr"])[0].debug_info.func_src_info)
            if os.path.dirname(jax.__file__) + os.sep not in where:
                return where
    return ""


def with_extra_inputs(eqn: Any, extra: Sequence[Any]) -> Any:
    """A call with more arguments at the end, whose parameters say for each argument how it is given."""
    if not extra or eqn.primitive is not jit_p:
        return eqn.replace(invars=[*eqn.invars, *extra])
    return eqn.replace(invars=[*eqn.invars, *extra], params=_for_more_inputs(eqn.params, len(extra)))


def _for_more_inputs(params: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Parameters of a `jax.jit` with more arguments at the end."""
    changed = dict(params)
    for name, default in (("in_shardings", UNSPECIFIED), ("in_layouts", None), ("donated_invars", False)):
        if name in changed:
            changed[name] = (*changed[name], *[default] * count)
    return changed


def needed_part(eqn: Any, used: Sequence[bool]) -> Any:
    """An equation without the parts of its inner jaxprs that only unused results need; None if nothing is used."""
    from jax._src.interpreters import partial_eval  # noqa: PLC0415  (private: JAX has no public dead code removal)

    rule: Any = partial_eval.dce_rules.get(eqn.primitive)
    if rule is None or all(used):
        return eqn
    # Since JAX 0.12 the second of three arguments says which references are read afterwards.
    takes_live_inputs = len(inspect.signature(rule).parameters) > 2
    return rule(list(used), *([[True] * len(eqn.invars)] if takes_live_inputs else []), eqn)[1]
