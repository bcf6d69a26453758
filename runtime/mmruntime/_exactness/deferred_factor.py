"""A factor that is known only after the loop, such as one over a count that parameters decide, put off until then.

The gradient of `jnp.nanmean(loss)` is one over the number of losses that are numbers, times what the backward pass
makes of them. That number is known when all microbatches have run. But the backward pass is linear in it: each
microbatch runs it with a number of the same magnitude, and what they make together is multiplied by the quotient of the
two. Where that meets what does not depend on the factor, such as the gradient of another term of the loss, both are
carried on by themselves and added up at the end. A backward pass in float16 or float8 is left as it is: its range is
what the factor has to fit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._core.marks import accumulator_type
from mmruntime._exactness.lattice import AbstractValue, Kind
from mmruntime._exactness.rules.equation import shape_of
from mmruntime._jaxpr.primitives import linear_in
from mmruntime._jaxpr.rewrite import CALLS, trace_equations

# How a value depends on the factor: not at all; it is zero, so in every way; it is the factor times what does not; it
# is the sum of such a product and of what does not; else.
_FREE, _ZERO, _LINEAR, _AFFINE, _OTHER = range(5)


def put_off(part: Any, whole: Any, env: Mapping[Any, AbstractValue], after: Collection[int]) -> tuple[Any, Any] | None:
    """Both programs with one factor put off, None if none can be.

    Args:
        part: The closed jaxpr for one microbatch.
        whole: The one for the whole batch, with the same equations.
        env: What is known of the variables of `part`.
        after: The equations that run after the loop.
    """
    jaxpr, consts = _compat.split(part)
    other, whole_consts = _compat.split(whole)
    for factor in _factors(jaxpr, env, after):
        readers = {
            (index, position)
            for index, eqn in enumerate(jaxpr.eqns)
            if index not in after
            for position, atom in enumerate(eqn.invars)
            if atom is factor
        }
        degrees = _Degrees(jaxpr, readers, is_outermost=True)
        kinds = [degrees.of(atom) for atom in jaxpr.outvars]
        if degrees.acts or _OTHER in kinds or {_LINEAR, _AFFINE}.isdisjoint(kinds):
            continue
        # Of the magnitude of one over what is averaged, so that cotangents are about as large as without this.
        size = max(math.prod(shape_of(var)) for index, _ in readers for var in other.eqns[index].outvars)
        stand_in = 2.0 ** -round(math.log2(max(size, 1)))
        twins = {
            one: two
            for eqn, twin in zip(jaxpr.eqns, other.eqns, strict=True)
            for one, two in zip(eqn.outvars, twin.outvars, strict=True)
        }
        whole_degrees = _Degrees(other, readers, is_outermost=True)
        return (
            _compat.with_consts(_Multiplied(jaxpr, factor, degrees, stand_in).jaxpr, consts),
            _compat.with_consts(_Multiplied(other, twins[factor], whole_degrees, stand_in).jaxpr, whole_consts),
        )
    return None


def _factors(jaxpr: Any, env: Mapping[Any, AbstractValue], after: Collection[int]) -> list[Any]:
    """The numbers that the loop reads and that are known only after it. Those that no sum depends on come first."""
    read = dict.fromkeys(
        atom
        for index, eqn in enumerate(jaxpr.eqns)
        if index not in after
        for atom in eqn.invars
        if _compat.is_var(atom) and not shape_of(atom) and jnp.issubdtype(atom.aval.dtype, jnp.floating)
        if not _is_narrow(atom)
    )
    return [var for kind in (Kind.AFTER, Kind.SUM) for var in read if env[var].kind is kind]


class _Multiplied:
    """An open jaxpr with a number in the factor's place, and its results multiplied by what that leaves out.

    Args:
        jaxpr: The jaxpr.
        factor: The variable.
        degrees: How its variables depend on it.
        stand_in: The number.
    """

    def __init__(self, jaxpr: Any, factor: Any, degrees: _Degrees, stand_in: float) -> None:
        self.eqns: list[Any] = []
        # Of a sum, what the factor is in and what it is not in.
        self.terms: dict[Any, tuple[Any, Any]] = {}
        number = _compat.Literal(np.asarray(stand_in, factor.aval.dtype)[()], factor.aval)
        for index, eqn in enumerate(jaxpr.eqns):
            invars = [number if (index, k) in degrees.readers else atom for k, atom in enumerate(eqn.invars)]
            instead = eqn.replace(invars=invars)
            if any(degrees.of(var) == _AFFINE for var in eqn.outvars):
                self._two_terms(instead, degrees.of_operands(index, eqn))
            else:
                self.eqns.append(instead)

        def together(factor: Any, value: Any, *rest: Any) -> Any:
            wide = accumulator_type(value.dtype)
            product = value.astype(wide) * (factor.astype(wide) / stand_in)
            return functools.reduce(_compat.add_any_p.bind, (each.astype(wide) for each in rest), product).astype(
                value.dtype
            )

        producers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
        outvars = list(jaxpr.outvars)
        for position, atom in enumerate(outvars):
            degree = degrees.of(atom)
            if degree in (_LINEAR, _AFFINE):
                terms = self.terms[atom] if degree == _AFFINE else (atom,)
                outvars[position] = self._computed(together, [factor, *terms], atom.aval, producers[atom])
        self.jaxpr = jaxpr.replace(eqns=self.eqns, outvars=outvars)

    def _two_terms(self, eqn: Any, ins: Sequence[int]) -> None:
        """Add an equation twice, for what the factor is in and for what it is not in."""
        (group,) = [group for group in linear_in(eqn) if _degree_in(ins, group) == _AFFINE]
        found = []
        for term, absent in ((0, _FREE), (1, _LINEAR)):
            invars = list(eqn.invars)
            for k in group:
                if ins[k] == _AFFINE:
                    invars[k] = self.terms[invars[k]][term]
                elif ins[k] == absent:
                    aval = invars[k].aval
                    invars[k] = self._computed(lambda aval=aval: jnp.zeros(aval.shape, aval.dtype), [], aval)
            found.append([_compat.new_var(var.aval) for var in eqn.outvars])
            self.eqns.append(eqn.replace(invars=invars, outvars=found[-1]))
        self.terms.update(zip(eqn.outvars, zip(*found, strict=True), strict=True))

    def _computed(self, function: Callable[..., Any], atoms: Sequence[Any], aval: Any, like: Any = None) -> Any:
        target, eqns = trace_equations(function, atoms, _compat.new_var(aval))
        self.eqns += [eqn if like is None else eqn.replace(source_info=like.source_info) for eqn in eqns]
        return target


class _Degrees:
    """How the variables of an open jaxpr depend on the factor.

    Args:
        jaxpr: The jaxpr.
        readers: The operands that are the factor itself, by equation and position.
        given: How its arguments depend on it; not at all if left out.
        is_outermost: Whether its sums may be carried on as two terms.

    Attributes:
        acts: Whether an equation that depends on it does more than compute, such as print.
    """

    def __init__(
        self,
        jaxpr: Any,
        readers: Collection[tuple[int, int]] = (),
        given: Sequence[int] | None = None,
        *,
        is_outermost: bool = False,
    ) -> None:
        self.readers = readers
        self._found: dict[Any, int] = dict(zip(jaxpr.invars, given or [_FREE] * len(jaxpr.invars), strict=True))
        self.acts = False
        for index, eqn in enumerate(jaxpr.eqns):
            ins = self.of_operands(index, eqn)
            self.acts = self.acts or (_compat.acts(eqn) and not {_FREE, _ZERO}.issuperset(ins))
            found = _results(eqn, ins)
            # Terms of a loss meet as cotangents, which JAX adds up in a way of its own. What a program subtracts, such
            # as a mean from its values, it has to subtract before it is rounded.
            may_meet = is_outermost and (_AFFINE in ins or eqn.primitive is _compat.add_any_p)
            for var, degree in zip(eqn.outvars, found, strict=True):
                is_lost = (degree == _AFFINE and not may_meet) or (degree in (_LINEAR, _AFFINE) and _is_narrow(var))
                self._found[var] = _OTHER if is_lost else degree

    def of(self, atom: Any) -> int:
        """How an atom depends on it."""
        if _compat.is_var(atom):
            return self._found.get(atom, _FREE)
        is_zero = not np.shape(atom.val) and not np.any(np.asarray(atom.val))
        return _ZERO if is_zero else _FREE

    def of_operands(self, index: int, eqn: Any) -> list[int]:
        """How the operands of an equation of the jaxpr depend on it."""
        return [_LINEAR if (index, k) in self.readers else self.of(atom) for k, atom in enumerate(eqn.invars)]


def _is_narrow(var: Any) -> bool:
    """Whether a float has a range of fewer powers of two than float32.

    Loss scales keep cotangents in the range of float16. They may be in the factor, and are not in the stand-in.
    """
    finfo: Any = jnp.finfo
    dtype = var.aval.dtype
    return bool(jnp.issubdtype(dtype, jnp.floating) and finfo(dtype).minexp > finfo(jnp.float32).minexp)


def _results(eqn: Any, ins: Sequence[int]) -> list[int]:
    """How the results of an equation depend on the factor, of how its operands do."""
    count, name = len(eqn.outvars), eqn.primitive.name
    if _OTHER in ins:
        return [_OTHER] * count
    if not eqn.outvars:
        return []
    depends = _LINEAR in ins or _AFFINE in ins
    if depends and _compat.inner_jaxprs(eqn):
        return [_OTHER] * count if _AFFINE in ins else _inner_results(eqn, name, ins)
    if jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact):
        for group in linear_in(eqn):
            found = _degree_in(ins, group)
            if found in (_ZERO, _LINEAR, _AFFINE):
                return [found] * count
    return [_OTHER if depends else _FREE] * count


def _degree_in(ins: Sequence[int], group: Sequence[int]) -> int:
    """How the result of an equation that is linear in a group of operands depends on the factor."""
    own, others = {ins[k] for k in group}, {each for k, each in enumerate(ins) if k not in group}
    if _LINEAR in others or _AFFINE in others:
        return _OTHER
    if own <= {_ZERO, _FREE}:
        return _ZERO if own == {_ZERO} else _FREE
    return _LINEAR if own <= {_ZERO, _LINEAR} else _AFFINE


def _inner_results(eqn: Any, name: str, ins: Sequence[int]) -> list[int]:
    params = eqn.params
    if name in CALLS and not name.startswith("custom_"):
        return _body_results(params[CALLS[name]], ins)
    if name == "cond":
        if ins[0] == _LINEAR:
            return [_OTHER] * len(eqn.outvars)
        found = [_body_results(branch, ins[1:]) for branch in params["branches"]]
        return [_joined(each) for each in zip(*found, strict=True)]
    if name == "scan":
        num_consts, num_carry = _compat.scan_counts(eqn)
        carry, rest = list(ins[num_consts : num_consts + num_carry]), ins[num_consts + num_carry :]
        while True:
            outs = _body_results(params["jaxpr"], [*ins[:num_consts], *carry, *rest])
            joined = [_joined(each) for each in zip(carry, outs[:num_carry], strict=True)]
            if joined == carry:
                return [*carry, *outs[num_carry:]]
            carry = joined
    return [_OTHER] * len(eqn.outvars)


def _body_results(body: Any, ins: Sequence[int]) -> list[int]:
    jaxpr, _ = _compat.split(body)
    return list(map(_Degrees(jaxpr, given=ins).of, jaxpr.outvars))


def _joined(each: Sequence[int]) -> int:
    """How a value depends on the factor that is one of several."""
    found = set(each) - {_ZERO} or {_ZERO}
    return found.pop() if len(found) == 1 else _OTHER
