"""Constraints inside of a `jax.vmap` over examples, where no value has the examples as a dimension.

jax.vmap(model)(x)       # a constraint P("batch", None) in the model cuts the sequence of each example
->  constrain x, or what the vmap returns
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._core.logical_axes import Names
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.submesh import axis_pairs
from mmruntime._core.task import Task
from mmruntime._core.warn import warn
from mmruntime._frontend.constraint import constraint_p
from mmruntime._jaxpr.ir import Step, is_tiny
from mmruntime._jaxpr.primitives import ENTRY_BY_ENTRY, Factor, factors
from mmruntime._jaxpr.rewrite import body_of_call, fresh

# What people call the dimension of examples.
_OF_EXAMPLES = re.compile(r"batch|example|sample|^(b|n|data|dp|rows?)$", re.IGNORECASE)


@dataclass(frozen=True)
class _Constraint:
    """A constraint by logical names, and which dimensions of its value hold examples."""

    eqn: Any
    task: Task | None
    line: str
    examples: frozenset[int]

    @property
    def names(self) -> tuple[Names, ...]:
        names: tuple[Names, ...] = self.eqn.params["names"]
        return names

    @property
    def is_per_example(self) -> bool:
        """Whether a `jax.vmap` over examples is around it."""
        return not self.examples.isdisjoint(self.eqn.params.get("mapped", ()))


def warn_of_mapped_constraints(step: Step, multimesh: MultiMesh) -> None:
    """Warn of constraints that mean the examples, in a `jax.vmap` over these, where they cut something else.

    Names of other dimensions, such as those of features, mean there what they mean elsewhere.

    Args:
        step: The step, as it was traced.
        multimesh: The mesh that it is compiled for.
    """
    constraints = list(_constraints(step))
    of_examples = {name for each in constraints for dim in each.examples for name in each.names[dim]}
    said: set[tuple[str, str]] = set()
    for each in constraints:
        if not each.is_per_example:
            continue
        cutting = {
            logical
            for logical, device in axis_pairs(each.task, multimesh.mesh, multimesh)
            if device is not None and multimesh.shape.get(device, 1) > 1
        }
        for dim, carried in enumerate(each.names):
            for name in cutting.intersection(carried):
                means_examples = name in of_examples or _OF_EXAMPLES.search(name) is not None
                if dim in each.examples or not means_examples or (each.line, name) in said:
                    continue
                said.add((each.line, name))
                inner = dim - sum(mapped < dim for mapped in each.eqn.params["mapped"])
                size = each.eqn.outvars[0].aval.shape[dim]
                warn(
                    f"mjit: the constraint{f' at {each.line}' if each.line else ''} is inside of a jax.vmap over "
                    f"examples, where a value is that of one example: {name!r} cuts its dimension {inner}, of size "
                    f"{size}, and not the examples. Put the constraint (the hint shard({name!r}, ...)) on what the "
                    "jax.vmap gets or returns, outside of it, where the examples are a dimension."
                )


def _constraints(step: Step) -> Iterator[_Constraint]:
    """The constraints of a step's forward pass by logical names, at any depth."""
    state = {step.invars[position] for position in step.carried}
    data = [var for var in step.invars if var not in state]
    for region in step.regions:
        if region.loop is not None:
            data += region.slices
    data = [var for var in data if not is_tiny(var)]
    sizes = {var.aval.shape[0] for var in data}
    examples = _Examples({(var, 0) for var in data})
    for op in step.ops():
        for eqn in examples.follow(op.eqn):
            if not op.backward:
                line = next((found for each in (eqn, op.eqn, *op.callers) if (found := _compat.own_line(each))), "")
                (value,) = eqn.outvars
                dims = {dim for dim in range(value.aval.ndim) if (value, dim) in examples.dims}
                # Behind an operation that is not known, sizes have to do.
                dims = dims or {dim for dim, size in enumerate(value.aval.shape) if size in sizes}
                yield _Constraint(eqn, op.task, line, frozenset(dims))


class _Examples:
    """Which dimensions of values hold examples, as far as that can be followed."""

    def __init__(self, dims: set[tuple[Var, int]]) -> None:
        self.dims = dims

    def follow(self, eqn: Any) -> list[Any]:
        """Follow an equation, and what is inside of it; the constraints in it by logical names."""
        for each in (*factors(eqn), *_of_equal_size(eqn)):
            pairs = [(eqn.invars[index], dim) for index, dim in each.ins.items() if is_var(eqn.invars[index])]
            if any(pair in self.dims for pair in pairs):
                self.dims.update((eqn.outvars[index], dim) for index, dim in each.outs.items())
        if eqn.primitive is constraint_p:
            return [eqn] if eqn.params["logical"] else []
        found = []
        for eqns, operands, results in bodies(eqn):
            for atom, var, shift in operands:
                self._hand_on(atom, var, -shift)
            found += [each for own in eqns for each in self.follow(own)]
            for atom, var, shift in results:
                self._hand_on(atom, var, shift)
        return found

    def _hand_on(self, source: Atom, target: Atom, shift: int) -> None:
        if is_var(source) and is_var(target):
            dims = [dim for dim in range(source.aval.ndim) if (source, dim) in self.dims]
            self.dims.update((target, dim + shift) for dim in dims if dim + shift >= 0)


# Pairs of values of which one becomes the other, and how many dimensions the one outside has in front.
_Pairs = list[tuple[Atom, Atom, int]]


def bodies(eqn: Any) -> Iterator[tuple[list[Any], _Pairs, _Pairs]]:
    """The equations of each body of an equation, in variables of their own, with what they are given and give.

    Of what a loop goes along, the values outside have one dimension more in front; a body is gone through once.
    """
    if eqn.primitive is _compat.cond_p:
        for branch in eqn.params["branches"]:
            args, eqns, outs = fresh(_compat.split(branch)[0])
            yield eqns, _pairs(eqn.invars[1:], args), _pairs(outs, eqn.outvars)
    elif eqn.primitive is _compat.scan_p:
        args, eqns, outs = fresh(_compat.split(eqn.params["jaxpr"])[0])
        num_consts, num_carry = _compat.scan_counts(eqn)
        first = num_consts + num_carry
        operands = _pairs(eqn.invars[:first], args) + _pairs(eqn.invars[first:], args[first:], 1)
        yield (
            eqns,
            operands,
            _pairs(outs, eqn.outvars[:num_carry]) + _pairs(outs[num_carry:], eqn.outvars[num_carry:], 1),
        )
    elif (call := body_of_call(eqn)) is not None:
        args, eqns, outs = fresh(call[0])
        yield eqns, _pairs(eqn.invars, args), _pairs(outs, eqn.outvars)


def _pairs(sources: Any, targets: Any, shift: int = 0) -> _Pairs:
    return [(source, target, shift) for source, target in zip(sources, targets, strict=False)]


def _of_equal_size(eqn: Any) -> Iterator[Factor]:
    """Dimensions of operands that are dimensions of the result, but do not run along with it entry by entry."""
    name = eqn.primitive.name
    if name in ENTRY_BY_ENTRY or name in ("dynamic_slice", "dynamic_update_slice", "rev", "split"):
        # Some broadcast dimensions of size one.
        for position, result in enumerate(eqn.outvars):
            for index, atom in enumerate(eqn.invars):
                if atom.aval.ndim == result.aval.ndim:
                    for dim, size in enumerate(atom.aval.shape):
                        if size == result.aval.shape[dim]:
                            yield Factor({index: dim}, {position: dim})
