"""`microbatch_scan`: run a program's own gradient accumulation scan as a pipelined microbatch loop."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax.numpy as jnp
import numpy as np

from mmruntime import _check, _compat, schedules
from mmruntime._core.marks import FLOAT32, LoopSpec
from mmruntime._core.switches import transforms_ignored
from mmruntime._frontend.labels import label_of
from mmruntime._frontend.loops.find_scan import Scan, replace_scan
from mmruntime._frontend.loops.iteration_results import extreme_of, in_row, loop_summary, whole_summary
from mmruntime._frontend.loops.microbatch import accumulate_pieces, loop_spec
from mmruntime._frontend.loops.whole_batch import iteration_on_all, verdicts_of_sums
from mmruntime._jaxpr.carry import Addend, changes, open_helpers
from mmruntime._jaxpr.rewrite import has_effects, needed

P = ParamSpec("P")
R = TypeVar("R")


@_compat.api_boundary
def microbatch_scan(
    fun: Callable[P, R],
    *,
    count: int | None = None,
    schedule: str | schedules.Schedule | schedules.Auto | None = None,
    sync: str | None = None,
    all_gather: str | Sequence[str] | None = None,
    accumulate: str = FLOAT32,
) -> Callable[P, R]:
    """Run the accumulating scan in `fun` as a microbatch loop, whose iterations pass through the tasks as a pipeline.

        for index in range(count):
            carry = carry + f(index, microbatches[index])      # leaf by leaf; f does not read the carry

    `fun` is `jax.lax.scan` or `jax.lax.fori_loop`, or a function whose trace holds one such loop. In the traced body
    each leaf of the carry must be a sum, to which a value is added that does not depend on the sums; the larger or
    smaller of itself and such a value; a counter, to which a constant is added; or unchanged. Stacked results stay
    stacked. `explain()` says which leaf is which, and of sums over the pieces of a batch that `jax.lax.scan` is given
    whether one pass over the whole batch gives the same, but for a constant factor.

    Args:
        fun: The function; its trace has exactly one scan outside of other loops and branches.
        count: The expected number of iterations; checked if given.
        schedule: As for `microbatch`.
        sync: As for `microbatch`.
        all_gather: As for `microbatch`.
        accumulate: As for `microbatch`, for sums that the loop does not have itself: of the gradient of weights that
            several stages share, and of devices' shares of examples. The carry is added up in its own type.

    Returns:
        The function, with the same signature.

    Raises:
        TypeError: If something is of another type.
        ValueError: If there is not exactly one scan, a leaf of its carry is none of these, the number of iterations is
            not `count`, the body of a `jax.lax.scan` changes state of Python around it, or the schedule, `sync` or
            `accumulate` is unknown.
    """
    _check.function("microbatch_scan", "fun", fun, "jax.lax.scan or a function that makes one loop")
    count = _check.optional_integer("microbatch_scan", "count", count, 1)
    spec = loop_spec("microbatch_scan", schedule, sync, all_gather, accumulate)

    @_compat.api_boundary
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if transforms_ignored() or _compat.at_top_level():
            return fun(*args, **kwargs)
        # It is traced after the scan itself, as the one-device program traces that alone: a body that takes numbers
        # from state of Python gives it the first ones.
        whole = functools.partial(iteration_on_all, fun, args, kwargs)
        replace = functools.partial(_as_microbatches, count=count, spec=spec, label=label_of(fun), whole=whole)
        return replace_scan(fun, args, kwargs, replace, "microbatch_scan")

    return functools.update_wrapper(call, fun, updated=())


def _as_microbatches(
    scan: Scan, operands: list[Any], count: int | None, spec: LoopSpec, label: str, whole: Callable[[], Any]
) -> list[Any]:
    if count is not None and count != scan.length:
        raise ValueError(f"microbatch_scan: the loop has {scan.length} iterations, but {count=}. Write one number.")
    consts, start, slices = scan.operands(operands)
    carried = range(scan.num_consts, scan.num_consts + scan.num_carry)
    scan = dataclasses.replace(scan, body=open_helpers(scan.body, carried))
    kinds = _kinds(scan, label)
    compute = _compat.as_fun(scan.body)
    sums = [position for position, kind in enumerate(kinds) if kind == "sum"]
    extremes = [position for position, kind in enumerate(kinds) if kind in ("max", "min")]
    order = np.arange(scan.length, dtype=np.int32)
    positions = jnp.asarray(order[::-1].copy() if scan.reverse else order)
    steps = {position: kind for position, kind in enumerate(kinds) if not isinstance(kind, str)}
    counters = {
        position: start[position] + jnp.arange(scan.length, dtype=start[position].dtype) * step
        for position, step in steps.items()
    }
    in_order = [jnp.flip(leaf, 0) for leaf in slices] if scan.reverse else slices

    def once(piece: Any, _: Any) -> Any:
        position, counted, sliced = piece
        carry = [
            counted[index] if index in counted else jnp.zeros_like(value) if index in sums else value
            for index, value in enumerate(start)
        ]
        out = compute(*consts, *carry, *sliced)
        stacked = [
            jnp.zeros((scan.length, *np.shape(leaf)), leaf.dtype).at[position].set(leaf) for leaf in out[len(kinds) :]
        ]
        # What the carry was before the loop is compared in each iteration, which changes nothing.
        compared = [in_row(out[index], position, scan.length) for index in extremes]
        return [out[index] for index in sums], compared, stacked

    names = [f"leaf {position} of the carry" for position in range(len(kinds))]
    said = loop_summary(names, [kind if isinstance(kind, str) else "counter" for kind in kinds])
    if sums and scan.length > 1:
        on_all = whole()
        known = [None] * len(sums) if on_all is None else verdicts_of_sums(scan, on_all, sums)
        said += whole_summary([names[position] for position in sums], known)
    spec = dataclasses.replace(spec, count=scan.length, proof=said)
    added, compared, stacked = accumulate_pieces(once, (positions, counters, in_order), False, spec, label)
    totals = dict(zip(sums, added, strict=True))
    outs = _compat.split(scan.body)[0].outvars
    rows = {
        index: extreme_of(kinds[index], each, outs[index].aval.dtype)
        for index, each in zip(extremes, compared, strict=True)
    }
    end = rows | {index: value + scan.length * steps[index] for index, value in enumerate(start) if index in steps}
    carry = [value + totals[index] if index in totals else end.get(index, value) for index, value in enumerate(start)]
    return [*carry, *stacked]


def _kinds(scan: Scan, label: str) -> list[Any]:
    """The kind of each leaf of the carry: "sum", "same", or the constant that a counter grows by."""
    body, _ = _compat.split(scan.body)
    carried = body.invars[scan.num_consts : scan.num_consts + scan.num_carry]
    found = changes(body, carried, body.outvars[: scan.num_carry])
    kinds: list[Any] = []
    for index, (before, change) in enumerate(zip(carried, found, strict=True)):
        if change.kind not in ("same", "sum", "max", "min"):
            raise ValueError(
                f"microbatch_scan: leaf {index} of the carry of {label} ({before.aval.str_short()}) is not a sum: an "
                "iteration may add to it, or take the larger or smaller of it and another value, and nothing else. "
                "Move what it does to the carry out of the loop, or give the loop what it reads (such as keys, split "
                "before) as a sliced operand."
            )
        kinds.append((_step(change.addends) if change.kind == "sum" else None) or change.kind)
    addends = [addend.atom for change in found for addend in change.addends]
    _, reads = needed(body.eqns, [*addends, *body.outvars[scan.num_carry :]], has_effects)
    for index, (before, kind) in enumerate(zip(carried, kinds, strict=True)):
        if kind in ("sum", "max", "min") and before in reads:
            verb = "to which they add" if kind == "sum" else f"of which they take the {kind}imum"
            raise ValueError(
                f"microbatch_scan: iterations of {label} read leaf {index} of the carry ({before.aval.str_short()}), "
                f"{verb}. Microbatches cannot see each other's sums; use the total after the loop."
            )
    return kinds


def _step(addends: Sequence[Addend]) -> Any:
    """The constant that a counter grows by; None if the leaf is no counter."""
    if len(addends) != 1 or _compat.is_var(addends[0].atom):
        return None
    (step,) = addends
    return step.sign * step.atom.val if jnp.issubdtype(step.atom.aval.dtype, jnp.integer) else None
