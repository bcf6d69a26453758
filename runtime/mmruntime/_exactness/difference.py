"""Where the programs for a microbatch and for the whole batch differ: the result, the line and the operation."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mmruntime import _compat
from mmruntime._exactness.lattice import Reason
from mmruntime._exactness.rules.equation import line_of
from mmruntime._exactness.sizes import same_equation, same_program
from mmruntime._jaxpr.rewrite import needed

# Operations that JAX leaves out where they would take all entries.
_TAKES = {"slice", "dynamic_slice", "gather"}
# Functions that people call for that.
_TAKING = {*_TAKES, "slice_in_dim", "dynamic_slice_in_dim", "index_in_dim", "take", "take_along_axis", "compress"}
# How many equations are looked at to see which of the two programs does more.
_AHEAD = 100

_INCOMPARABLE = "so that the two programs cannot be compared"


def differences(part: Any, whole: Any, *, has_one_example: bool) -> list[Reason]:
    """Why each result of two open jaxprs cannot be compared.

    Args:
        part: The program for a microbatch.
        whole: The program for the whole batch.
        has_one_example: Whether a microbatch is one example.
    """
    found = []
    for position in range(len(part.outvars)):
        one, other = _alone(part, position), _alone(whole, position)
        if len(part.outvars) > 1 and same_program(one, other):
            found.append(
                Reason("", "", f"computes something else by other operations, {_INCOMPARABLE}", is_of_other=True)
            )
        else:
            found.append(_difference(one, other, has_one_example=has_one_example))
    if all(reason.is_of_other for reason in found):
        # What no result needs differs.
        found = [_difference(part, whole, has_one_example=has_one_example)] * len(found)
    return found


def _alone(jaxpr: Any, position: int) -> Any:
    """A program with one result, and what that needs."""
    wanted = [jaxpr.outvars[position]]
    return jaxpr.replace(eqns=needed(jaxpr.eqns, wanted)[0], outvars=wanted)


def _difference(part: Any, whole: Any, *, has_one_example: bool) -> Reason:
    begin = _number_alike(part, whole)
    ones, others = part.eqns[begin : begin + _AHEAD], whole.eqns[begin : begin + _AHEAD]
    if ones and others and ones[0].primitive is others[0].primitive:
        for inner, twin in zip(_compat.inner_jaxprs(ones[0]), _compat.inner_jaxprs(others[0]), strict=False):
            if not same_program(inner, twin):
                found = _difference(inner, twin, has_one_example=has_one_example)
                call = _compat.called_function(ones[0])
                return found if found.line else replace(found, line=line_of(ones[0]), call=call)
    matcher = difflib.SequenceMatcher(None, _names(ones), _names(others), autojunk=False)
    problem = "does other operations for another batch size"
    eqn = (ones or part.eqns[-1:] or [None])[0]
    for tag, one, _, other, _ in matcher.get_opcodes():
        if tag == "insert":
            eqn = others[other]
            problem = f"does `{eqn.primitive.name}` for the whole batch and not for a microbatch"
            break
        if tag in ("delete", "replace"):
            eqn = ones[one]
            problem = f"does `{eqn.primitive.name}` for a microbatch and not for the whole batch"
            break
    name, line = ("", "") if eqn is None else (eqn.primitive.name, line_of(eqn))
    advice = "Let the number of examples not decide which operations are done."
    call = "" if eqn is None else _compat.called_function(eqn)
    if name in _TAKES and call and call.rpartition(".")[2] not in _TAKING:
        advice = (
            f"{call} takes other steps for another number of examples: return what it is computed of, and compute it "
            "outside of the microbatched function."
        )
    elif name in _TAKES:
        advice = (
            "JAX leaves it out where it takes all examples. Return them all, and take them, or compute with them, "
            "outside of the microbatched function."
        )
    elif has_one_example:
        advice = (
            "JAX does other operations where a dimension has one entry, and each microbatch is one example: give it "
            "two or more, by a smaller count= or a larger size=."
        )
    return Reason(name, line, f"{problem}, {_INCOMPARABLE}", advice, call=call)


def _number_alike(part: Any, whole: Any) -> int:
    """How many equations at the beginning are the same."""
    twin: dict[Any, Any] = {}
    twin.update(zip((*part.constvars, *part.invars), (*whole.constvars, *whole.invars), strict=False))
    for index, (eqn, other) in enumerate(zip(part.eqns, whole.eqns, strict=False)):
        if not same_equation(eqn, other, twin):
            return index
    return min(len(part.eqns), len(whole.eqns))


def _names(eqns: Sequence[Any]) -> list[str]:
    return [eqn.primitive.name for eqn in eqns]
