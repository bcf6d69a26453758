"""`microbatch_loop`: run a gradient accumulation loop, written as a function of one iteration, as a pipeline."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mmruntime import _check, _compat, schedules
from mmruntime._core.marks import FLOAT32, LoopSpec
from mmruntime._core.switches import transforms_ignored
from mmruntime._frontend.labels import label_of, name_trace, positional_names
from mmruntime._frontend.loops.align_iterations import Iteration, align
from mmruntime._frontend.loops.iteration_results import extreme_of, in_row, loop_summary, whole_summary
from mmruntime._frontend.loops.microbatch import accumulate_pieces, loop_spec
from mmruntime._jaxpr.carry import Addend, CarryChange, changes, open_helpers
from mmruntime._jaxpr.rewrite import has_effects, needed


@_compat.api_boundary
def microbatch_loop(
    body: Callable[..., Any],
    *,
    count: int | None = None,
    schedule: str | schedules.Schedule | schedules.Auto | None = None,
    sync: str | None = None,
    all_gather: str | Sequence[str] | None = None,
    accumulate: str = FLOAT32,
) -> Callable[..., Any]:
    """Run an accumulating loop as a microbatch loop, whose iterations pass through the tasks as a pipeline.

        for item in items:
            carry = body(item, *carry)      # each leaf: carry + f(item), where f does not read the carry
        return carry

    Each iteration is traced with its own item, so that an item may be a Python number that slices an array. All must be
    the same computation but for numbers, arrays and bounds of slices. They may only add to the leaves of the carry, or
    take the larger or smaller of a leaf and another value; `explain()` says which leaf is which. A leaf that is None or
    `0` before the loop may become an array in the first iteration.

    Args:
        body: One iteration: from the item and the carried values to their new values, a tuple if there are several. It
            must have no side effects, such as appending to a list outside of it.
        count: The expected number of items; checked if given.
        schedule: As for `microbatch`.
        sync: As for `microbatch`.
        all_gather: As for `microbatch`.
        accumulate: As for `microbatch`, for leaves that are None or a number of Python before the loop. A leaf that is
            an array is added up in its own type, as it is written.

    Returns:
        A function of the items and the carried values that returns the carry after the last item, as `body` does.

    Raises:
        TypeError: If something is of another type.
        ValueError: If an iteration does more to the carry than add to it, or is another computation than the first, if
            there are not `count` items, or the schedule, `sync` or `accumulate` is unknown.
    """
    _check.function("microbatch_loop", "body", body, "a function of one iteration")
    count = _check.optional_integer("microbatch_loop", "count", count, 0)
    spec = loop_spec("microbatch_loop", schedule, sync, all_gather, accumulate)

    @_compat.api_boundary
    @functools.wraps(body)
    def run(items: Iterable[Any], *carry: Any) -> Any:
        each = list(items)
        if count is not None and count != len(each):
            raise ValueError(f"microbatch_loop: the loop has {len(each)} iterations, but {count=}. Write one number.")
        if transforms_ignored() or _compat.at_top_level() or not each:
            for item in each:
                carry = _as_tuple(body(item, *carry), len(carry), body)
        else:
            carry = _pipelined(body, each, carry, dataclasses.replace(spec, count=len(each)))
        return carry[0] if len(carry) == 1 else carry

    return run


def _pipelined(body: Callable[..., Any], items: Sequence[Any], carry: tuple[Any, ...], spec: LoopSpec) -> Any:
    label = label_of(body)
    first, after = _trace(body, items[0], carry)
    first_changes = _first_changes(first, carry, after)
    rest, later_changes = [], []
    for index, item in enumerate(items[1:], 1):
        traced, shapes = _trace(body, item, after)
        _check_carry(after, shapes, index, body)
        invars, outvars = _compat.split(traced)[0].invars, _compat.split(traced)[0].outvars
        rest.append(traced)
        later_changes.append(changes(_compat.split(traced)[0], invars, outvars))
    kinds = [_kind(each) for each in zip(first_changes, *later_changes, strict=True)]
    names = _names(body, after)
    for name, kind in zip(names, kinds, strict=True):
        if kind == "other":
            raise ValueError(
                f"microbatch_loop: {label} does more to {name} than add to it, or take the larger or smaller of it and "
                "another value. Microbatches cannot see what those "
                "before them left: move what is done to it out of the loop, or give each item what it needs (such as "
                "keys, split before)."
            )
    iterations = [
        _iteration(traced, each, names, label)
        for traced, each in zip((first, *rest), (first_changes, *later_changes), strict=True)
    ]
    once, pieces = align(iterations, label)
    changing = [kind for kind in kinds if kind != "same"]

    def in_rows(piece: Any, index: Any) -> list[Any]:
        pairs = zip(changing, once(piece), strict=True)
        return [in_row(value, index, len(items)) if kind in ("max", "min") else value for kind, value in pairs]

    said = loop_summary(names, kinds)
    if len(items) > 1:
        sums = [name for name, kind in zip(names, kinds, strict=True) if kind in ("sum", "set")]
        said += whole_summary(sums, [None] * len(sums))
    spec = dataclasses.replace(spec, proof=said)
    starts = _start_of(carry, after)
    # Of what begins as None or a number of Python the loop itself chooses the type.
    are_sums = [
        kind in ("sum", "set") and (before is None or isinstance(before, complex | float | int))
        for kind, before in zip(kinds, starts, strict=True)
        if kind != "same"
    ]
    added = iter(accumulate_pieces(in_rows, pieces, bool({"max", "min"} & set(changing)), spec, label, are_sums))
    leaves = []
    for kind, before, shape in zip(kinds, starts, jax.tree.leaves(after), strict=True):
        if kind == "same":
            leaves.append(before)
            continue
        total = next(added)
        is_extreme = kind in ("max", "min")
        dtype = shape.dtype if is_extreme else total.dtype
        start = None if kind == "set" else jnp.broadcast_to(jnp.asarray(before).astype(dtype), shape.shape)
        if start is None or not is_extreme:
            leaf = (total if start is None else start + total).astype(shape.dtype)
        else:
            found = extreme_of(kind, total, shape.dtype)
            leaf = jnp.maximum(start, found) if kind == "max" else jnp.minimum(start, found)
        # A number of Python that the loop adds to, as in `scale += 0.5`, keeps the type of what it is multiplied with.
        leaves.append(_compat.of_type(leaf, shape) if shape.weak_type else leaf)
    return jax.tree.unflatten(jax.tree.structure(after), leaves)


def _trace(body: Callable[..., Any], item: Any, carry: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """One iteration as a closed jaxpr of the carry's leaves, and the shapes of the carry after it."""
    leaves, tree = jax.tree.flatten(carry)
    _check_arrays(body, carry)

    def once(*leaves: Any) -> tuple[Any, ...]:
        result = _as_tuple(body(item, *jax.tree.unflatten(tree, leaves)), len(carry), body)
        _check_arrays(body, result)
        return result

    name_trace(once, "microbatch_loop", body, [name.strip("`") for name in _names(body, carry)])
    try:
        traced, shapes = jax.make_jaxpr(once, return_shape=True)(*leaves)
    except (TypeError, IndexError) as error:
        numbers = [
            name for name, leaf in zip(_names(body, carry), leaves, strict=True) if isinstance(leaf, int | float)
        ]
        if numbers and not str(error).startswith("microbatch_loop:"):
            error.add_note(
                f"microbatch_loop: {', '.join(numbers)} of {label_of(body)} begins as a number of Python, and is a "
                "traced value in the loop, which can only be added to. Where a number is needed, take it from the item "
                "of the iteration, as with `for i, ... in enumerate(...)`."
            )
        raise
    return open_helpers(traced, range(len(leaves))), shapes


def _check_arrays(body: Callable[..., Any], carry: tuple[Any, ...]) -> None:
    for name, leaf in zip(_names(body, carry), jax.tree.leaves(carry), strict=True):
        if not (isinstance(leaf, complex | float | int) or hasattr(leaf, "dtype") or hasattr(leaf, "__jax_array__")):
            raise TypeError(
                f"microbatch_loop: {label_of(body)} carries {name}, which is {_check.shown(leaf)}, no array or number. "
                "Iterations are computed apart from each other, and what they carry is added up: make such values "
                "outside of the loop, or from the item of the iteration."
            )


def _as_tuple(result: Any, count: int, body: Callable[..., Any]) -> tuple[Any, ...]:
    if count == 1:
        return (result,)
    if not isinstance(result, tuple) or len(result) != count:
        got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise ValueError(
            f"microbatch_loop: {label_of(body)} takes {count} carried values and returned {got}. Return the new "
            "value of each, in the same order."
        )
    return result


def _start_of(carry: tuple[Any, ...], after: tuple[Any, ...]) -> list[Any]:
    """The carry before the loop, leaf by leaf as after an iteration; None where there is no such leaf yet."""
    start: list[Any] = []
    for before, shapes in zip(carry, after, strict=True):
        same = _is_one_tree(before, shapes)
        start += jax.tree.leaves(before) if same else [None] * len(jax.tree.leaves(shapes))
    return start


def _first_changes(traced: Any, carry: tuple[Any, ...], after: tuple[Any, ...]) -> list[CarryChange]:
    """How the first iteration changes the carry. It may turn `None` or `0` into a tree of arrays."""
    jaxpr, _ = _compat.split(traced)
    variables = iter(jaxpr.invars)
    carried: list[Any] = []
    for before, shapes in zip(carry, after, strict=True):
        mine = [next(variables) for _ in jax.tree.leaves(before)]
        same = _is_one_tree(before, shapes)
        carried += mine if same else [None] * len(jax.tree.leaves(shapes))
    return changes(jaxpr, carried, jaxpr.outvars, widens=True)


def _is_one_tree(one: Any, other: Any) -> bool:
    structure: Any = jax.tree.structure(one)
    return bool(structure == jax.tree.structure(other))


def _check_carry(expected: tuple[Any, ...], found: tuple[Any, ...], index: int, body: Callable[..., Any]) -> None:
    def shapes(tree: tuple[Any, ...]) -> list[str]:
        leaves = zip(_names(body, tree), jax.tree.leaves(tree), strict=True)
        return [f"{name} {leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves]

    one, other = shapes(expected), shapes(found)
    if one != other or not _is_one_tree(expected, found):
        sizes = [[len(jax.tree.leaves(leaf)) for leaf in tree] for tree in (expected, found)]
        names = _names(body, tuple(range(len(expected))))
        for name, *both in zip(names, *sizes, strict=True):
            if both[0] != both[1]:
                raise ValueError(
                    f"microbatch_loop: {name} of {label_of(body)} has {both[1]} leaves after iteration {index} and had "
                    f"{both[0]} after the first. What is carried is added up, and cannot grow: begin with an array "
                    "that has a row for each iteration, and add to it, as in "
                    "`losses = losses + loss * jax.nn.one_hot(i, 4)`."
                )
        pairs = [(first, then) for first, then in zip(one, other, strict=False) if first != then]
        what = pairs or [(jax.tree.structure(expected), jax.tree.structure(found))]
        raise ValueError(
            f"microbatch_loop: iteration {index} of {label_of(body)} returns {what[0][1]}, and the first returns "
            f"{what[0][0]}. What is carried must keep its type; give it that type before the loop."
        )


def _kind(each: tuple[CarryChange, ...]) -> str:
    """How all iterations together change a leaf: "same", "sum", "set" if the first makes it, else "other"."""
    first, *rest = (change.kind for change in each)
    if first in ("same", "sum", "max", "min") and all(kind == first for kind in rest):
        return first
    return "set" if first == "set" and all(kind == "sum" for kind in rest) else "other"


def _iteration(traced: Any, found: Sequence[CarryChange], names: Sequence[str], label: str) -> Iteration:
    """The equations that compute the addends of one iteration."""
    jaxpr, consts = _compat.split(traced)
    addends: list[tuple[Addend, ...]] = [change.addends for change in found if change.kind != "same"]
    eqns, reads = needed(jaxpr.eqns, [addend.atom for each in addends for addend in each], has_effects)
    if any(var in reads for var in jaxpr.invars):
        raise ValueError(
            f"microbatch_loop: iterations of {label} read what they carry ({', '.join(names)}) for more than adding to "
            "it. Microbatches cannot see each other's sums; use the totals after the loop."
        )
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    shapes = [out.aval for out, change in zip(jaxpr.outvars, found, strict=True) if change.kind != "same"]
    return Iteration(jaxpr, eqns, values, addends, shapes)


def _names(body: Callable[..., Any], carry: tuple[Any, ...]) -> list[str]:
    """The name of each leaf of the carry in messages: the body's parameter, and the path in it."""
    parameters, names = positional_names(body)[1:], list[str]()
    for index, value in enumerate(carry):
        name = parameters[index] if index < len(parameters) else f"carried value {index}"
        names += [f"`{name}{jax.tree_util.keystr(path)}`" for path, _ in jax.tree_util.tree_leaves_with_path(value)]
    return names
