"""Results of short floats, kept in float32 without rounding each: a sum of them is rounded once.

A gradient in bfloat16 is a contraction over examples, which hardware sums in float32 and then rounds. Where the
gradients of microbatches are added up, each would be rounded, which one device does not do. So the last contraction
gives float32 itself, and what comes behind it, such as a transposition, passes that on:

    transpose(dot_general(x, dy))  ->  transpose(dot_general(x, dy, preferred_element_type=float32))

Megatron-LM's `gradient_accumulation_fusion` does the same for its linear layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._core.marks import accumulator_type
from mmruntime._jaxpr.primitives import MOVES
from mmruntime._jaxpr.rewrite import trace_equations

# Pass on float32 from these operands on; all of them together, so that the others are converted.
_PASSES = {
    # Those of several results do not.
    **dict.fromkeys(MOVES - {"split", "unstack"}, 0),
    **dict.fromkeys(("add", "add_any", "convert_element_type", "div", "mul", "name", "neg", "sub"), 0),
    **dict.fromkeys(("mm_constraint", "sharding_constraint"), 0),
    "select_n": 1,
}


def wide_results(closed: Any, positions: Collection[int], platform: str) -> Any:
    """A closed jaxpr that gives some results in float32, not rounded where it gives them in, or makes them of, less.

    Args:
        closed: The jaxpr.
        positions: The results; those that are neither float32 nor shorter floats stay as they are.
        platform: Where it will run, as `jax.default_backend()` names it.

    Returns:
        The jaxpr; the same object if nothing changes.
    """
    return _wide(closed, frozenset(positions), platform, {})


_Known = dict[tuple[int, frozenset[int]], tuple[Any, Any]]


def _wide(closed: Any, positions: frozenset[int], platform: str, known: _Known) -> Any:
    # Layers that are alike share their jaxprs, and are to share them afterwards.
    key = id(closed), positions
    if key not in known:
        known[key] = closed, _Widening(closed, positions, platform, known).result()
    return known[key][1]


class _Widening:
    def __init__(self, closed: Any, positions: frozenset[int], platform: str, known: _Known) -> None:
        self.closed, self.positions, self.platform, self.known = closed, positions, platform, known
        self.jaxpr, self.consts = _compat.split(closed)
        self.wide: dict[Var, Atom] = {}
        self.eqns: list[Any] = []

    def result(self) -> Any:
        asked = self._asked()
        for eqn in self.jaxpr.eqns:
            outs = [position for position, var in enumerate(eqn.outvars) if is_var(var) and var in asked]
            if not (outs and self._is_widened(eqn, outs)):
                self.eqns.append(eqn)
        outvars = [
            self._as_wide(atom, None) if position in self.positions and _may_widen(atom) else atom
            for position, atom in enumerate(self.jaxpr.outvars)
        ]
        if all(new is old for new, old in zip(outvars, self.jaxpr.outvars, strict=True)):
            return self.closed
        jaxpr = self.jaxpr.replace(eqns=self.eqns, outvars=outvars, debug_info=self.jaxpr.debug_info)
        return _compat.with_consts(jaxpr, self.consts) if hasattr(self.closed, "consts") else jaxpr

    def _asked(self) -> set[Var]:
        """The variables that are read in float32 alone, if they can be had in it."""
        reads = Counter(atom for eqn in self.jaxpr.eqns for atom in eqn.invars if is_var(atom))
        reads.update(atom for atom in self.jaxpr.outvars if is_var(atom))
        takers = Counter(
            atom
            for position, atom in enumerate(self.jaxpr.outvars)
            if is_var(atom) and position in self.positions and _may_widen(atom)
        )
        asked: set[Var] = set()
        for eqn in reversed(self.jaxpr.eqns):
            outs = [var for var in eqn.outvars if is_var(var) and takers[var] and takers[var] == reads[var]]
            asked.update(outs)
            if outs:
                passed = eqn.invars[_PASSES.get(eqn.primitive.name, len(eqn.invars)) :]
                takers.update(atom for atom in passed if is_var(atom) and _may_widen(atom))
        return asked

    def _is_widened(self, eqn: Any, outs: Sequence[int]) -> bool:
        """Whether the equation is replaced by one that gives these results in float32."""
        name = eqn.primitive.name
        if name in (_compat.jit_p.name, _compat.remat_p.name, _compat.scan_p.name):
            return self._is_call_widened(eqn, outs)
        if len(eqn.outvars) != 1:
            return False
        (out,) = eqn.outvars
        if name == "convert_element_type" and is_var(eqn.invars[0]):
            source = self.wide.get(eqn.invars[0], eqn.invars[0])
            if _is_short(out) and not _may_widen(source):
                return False
            if source is eqn.invars[0] and not _is_short(out):
                return False
            self.wide[out] = source if source.aval.dtype == jnp.float32 else self._as_wide(source, eqn)
            return True
        first = _PASSES.get(name)
        is_changed = _is_short(out) or any(atom in self.wide for atom in eqn.invars if is_var(atom))
        if not is_changed:
            return False
        params = eqn.params
        if first is not None:
            operands = [
                atom if position < first or not _may_widen(atom) else self._as_wide(atom, eqn)
                for position, atom in enumerate(eqn.invars)
            ]
        elif "preferred_element_type" in params and not isinstance(
            params.get("precision"), jax.lax.DotAlgorithm | jax.lax.DotAlgorithmPreset
        ):
            # XLA's CPU compiler (0.10, 0.12) takes a product of bfloat16 in float32, and has no kernel for it if it
            # is transposed. None that it has is faster than that of float32.
            on_cpu = self.platform == "cpu"
            operands = [self._as_wide(atom, eqn) if on_cpu and _is_short(atom) else atom for atom in eqn.invars]
            params = {**params, "preferred_element_type": jnp.dtype(jnp.float32)}
        elif name == "reduce_sum":
            operands = [self._as_wide(eqn.invars[0], eqn)]
        elif name == "scatter-add":
            operands = [self._as_wide(atom, eqn) if _is_short(atom) else atom for atom in eqn.invars]
        else:
            return False

        def compute(*values: Any) -> Any:
            if name == "scatter-add":
                # One of its parameters is an addition of the old type.
                own = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
                return jax.lax.scatter_add(*values, **{key: params[key] for key in own})
            return eqn.primitive.bind(*values, **params)

        self.wide[out] = self._traced(compute, operands, eqn)
        return True

    def _is_call_widened(self, eqn: Any, outs: Sequence[int]) -> bool:
        if eqn.primitive is _compat.scan_p:
            # What is carried is added up in its own type.
            outs = [position for position in outs if position >= _compat.scan_counts(eqn)[1]]
        body = _wide(eqn.params["jaxpr"], frozenset(outs), self.platform, self.known)
        if body is eqn.params["jaxpr"]:
            return False
        outvars = list(eqn.outvars)
        made = _compat.split(body)[0].outvars
        for position in outs:
            old, atom = eqn.outvars[position], made[position]
            if atom.aval.dtype != old.aval.dtype:
                aval = _compat.array_aval(old.aval.shape, atom.aval.dtype)
                outvars[position] = self.wide[old] = _compat.new_var(aval)
        self.eqns.append(eqn.replace(outvars=outvars, params={**eqn.params, "jaxpr": body}))
        return True

    def _as_wide(self, atom: Atom, like: Any) -> Atom:
        """An atom in float32; `like` is the equation that reads it."""
        if is_var(atom) and atom in self.wide:
            return self.wide[atom]
        if atom.aval.dtype == jnp.float32:
            return atom
        return self._traced(lambda value: jax.lax.convert_element_type(value, jnp.float32), [atom], like)

    def _traced(self, compute: Callable[..., Any], operands: Sequence[Atom], like: Any) -> Var:
        out, eqns = trace_equations(compute, operands)
        if like is not None:
            eqns = [each.replace(source_info=like.source_info, ctx=like.ctx) for each in eqns]
        self.eqns += eqns
        return out


def _is_short(atom: Atom) -> bool:
    return bool(accumulator_type(atom.aval.dtype) != atom.aval.dtype)


def _may_widen(atom: Atom) -> bool:
    return bool(atom.aval.dtype == jnp.float32) or _is_short(atom)
