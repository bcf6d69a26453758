"""Find the only `scan` in a function's trace, and run the function with another loop in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
from jax.core import Tracer

from mmruntime import _compat
from mmruntime._frontend.operands import by_operands
from mmruntime._jaxpr.rewrite import run_scan

R = TypeVar("R")


@dataclass(frozen=True)
class Scan:
    """The parameters of a `scan` equation.

    Attributes:
        body: Closed jaxpr, `body(*consts, *carry, *slices)` to the new carry and then one slice of each stacked result.
            The operands of the equation come in the same order, with a leading dimension of `length` on the sliced
            ones.
        num_consts: How many operands are the same in all iterations.
        num_carry: How many values are carried.
        length: How many iterations there are.
        reverse: Whether it runs from the last slice to the first.
        unroll: As in `jax.lax.scan`.
    """

    body: Any
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: int | bool

    @classmethod
    def of(cls, eqn: Any) -> Scan:
        """Read an equation."""
        params = eqn.params
        return cls(params["jaxpr"], *_compat.scan_counts(eqn), params["length"], params["reverse"], params["unroll"])

    def operands(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The operands of the equation as constants, carry and sliced arrays."""
        first, second = self.num_consts, self.num_consts + self.num_carry
        return list(values[:first]), list(values[first:second]), list(values[second:])

    def run(self, consts: Sequence[Any], carry: Sequence[Any], slices: Sequence[Any], length: int) -> Any:
        """Run the scan with `length` iterations: the last carry, and the stacked results."""
        options = {"length": length, "reverse": self.reverse, "unroll": self.unroll}
        return run_scan(_compat.as_fun(self.body), consts, carry, slices, **options)


def replace_scan(
    fun: Callable[..., R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    replace: Callable[[Scan, list[Any]], list[Any]],
    what: str,
) -> R:
    """Call `fun` with `replace(scan, operands)` in place of the only scan in its trace.

    The trace is evaluated equation by equation, so everything around the scan stays as it was.

    Raises:
        ValueError: If the trace of `fun` has no scan outside of other loops and branches, or more than one.
    """
    inner, values = by_operands(fun, args, kwargs, Tracer, what)
    closed, shapes = jax.make_jaxpr(inner, return_shape=True)(*values)
    jaxpr, consts = _compat.split(closed)
    found = list(_scans_in(jaxpr))
    if len(found) != 1:
        name = getattr(fun, "__name__", type(fun).__name__)
        raise ValueError(
            f"{what}: expected one scan in {name}, found {len(found)}. Wrap the call of `jax.lax.scan` itself, or "
            "write the layers as a Python loop."
        )
    results = _evaluate(jaxpr, consts, values, found[0], replace)
    result: R = jax.tree.unflatten(jax.tree.structure(shapes), results)
    return result


def only_scan(closed: Any) -> Any:
    """The only scan equation of a trace; None if there is none, or more than one."""
    found = list(_scans_in(_compat.split(closed)[0]))
    return found[0] if len(found) == 1 else None


def _scans_in(jaxpr: Any) -> Any:
    for eqn in jaxpr.eqns:
        if eqn.primitive is _compat.scan_p:
            yield eqn
        elif eqn.primitive is _compat.jit_p:
            for inner in _compat.inner_jaxprs(eqn):
                yield from _scans_in(inner)


def _evaluate(
    jaxpr: Any,
    consts: Sequence[Any],
    values: Sequence[Any],
    scan_eqn: Any,
    replace: Callable[[Scan, list[Any]], list[Any]],
) -> list[Any]:
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *values), strict=True))

    def read(atom: Any) -> Any:
        return known[atom] if _compat.is_var(atom) else atom.val

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        if eqn is scan_eqn:
            results = replace(Scan.of(eqn), operands)
        elif eqn.primitive is _compat.jit_p and any(
            each is scan_eqn for inner in _compat.inner_jaxprs(eqn) for each in _scans_in(inner)
        ):
            inner, inner_consts = _compat.split(eqn.params["jaxpr"])
            results = _evaluate(inner, inner_consts, operands, scan_eqn, replace)
        else:
            variables = list(dict.fromkeys(atom for atom in eqn.invars if _compat.is_var(atom)))
            piece = _compat.close(jaxpr, variables, eqn.outvars, [eqn])
            results = _compat.as_fun(piece)(*[known[variable] for variable in variables])
        known |= dict(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]
