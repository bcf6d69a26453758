"""`stage_scan`: cut a scan over stacked layers into one shorter scan per stage."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax

from mmruntime import _check, _compat
from mmruntime._core import mesh as _mesh
from mmruntime._core.switches import transforms_ignored
from mmruntime._core.task import Task, stage
from mmruntime._frontend import task_call as _call
from mmruntime._frontend.loops.find_scan import Scan, replace_scan
from mmruntime._frontend.stateful_calls import writes_state
from mmruntime.schedules import cut

P = ParamSpec("P")
R = TypeVar("R")


@_compat.api_boundary
def stage_scan(fun: Callable[P, R], *, axis: str = "stage", weights: Sequence[float] | None = None) -> Callable[P, R]:
    """Deal the iterations of the scan in `fun` out over the slices of `axis`.

        bounds = cut(weights or [1] * length, num_slices)
        for slice_index in range(num_slices):
            carry = scan(body, carry, layers[bounds[slice_index]:bounds[slice_index + 1]])   # runs on slice_index

    `fun` is `jax.lax.scan` itself, or a function whose trace holds one scan, such as a Flax module under `nn.scan`.
    The stacked parameters stay one array, so their names and shapes do not change. In a step that `mjit` compiles, the
    array is sharded over `axis`: each stage has its own layers and their optimizer state, and updates them. That takes
    a number of layers that the slices divide, without `weights`; else the stack lies on one submesh, which a warning
    says, and each stage is sent its slice once a step.

    Without a mesh in use, outside of any trace, and while a Flax module is initialised, `fun` is called unchanged.

    Args:
        fun: The function; its trace has exactly one scan outside of other loops and branches.
        axis: Axis of the surrounding `MultiMesh` that separates the stages.
        weights: Cost of each layer, shape `(length,)`, any unit. Equal if left out.

    Returns:
        The function, with the same signature.

    Raises:
        TypeError: If something is of another type.
        ValueError: If there is not exactly one scan, it has fewer iterations than `axis` has slices, `axis` is not in
            the mesh, or `weights` has another length.
    """

    _check.function("stage_scan", "fun", fun, "jax.lax.scan or a function that makes one scan")
    _check.text("stage_scan", "axis", axis)
    if weights is not None:
        weights = _check.numbers("stage_scan", "weights", weights, "numbers, one per layer")

    @_compat.api_boundary
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        mesh = _mesh.current_mesh()
        plain = mesh is None or transforms_ignored() or _compat.at_top_level()
        if plain or writes_state(fun, args, kwargs):
            return fun(*args, **kwargs)
        return replace_scan(fun, args, kwargs, functools.partial(_by_stages, axis=axis, weights=weights), "stage_scan")

    return functools.update_wrapper(call, fun, updated=())


def _by_stages(scan: Scan, operands: list[Any], axis: str, weights: Sequence[float] | None) -> list[Any]:
    consts, carry, slices = scan.operands(operands)
    # The task of the first layer; it checks axis, number of layers and weights against the mesh.
    tasks: list[Task] = [stage(index, scan.length, axis=axis, weights=weights) for index in range(scan.length)]
    mesh = _mesh.current_mesh()
    assert mesh is not None
    bounds = cut(weights or (1.0,) * scan.length, mesh.shape[axis])
    stacked: list[list[Any]] = []
    for start, stop in itertools.pairwise(bounds):
        # A reversed scan reads its layers from the end; the first stage still runs first.
        low, high = (scan.length - stop, scan.length - start) if scan.reverse else (start, stop)
        parts = [jax.lax.slice_in_dim(leaf, low, high) for leaf in slices]

        def run(consts: Any, carry: Any, parts: Any, length: int = stop - start) -> Any:
            return scan.run(consts, carry, parts, length)

        carry, results = _call.pure_task(run, tasks[start])(consts, carry, parts)
        stacked.append(results)
    if scan.reverse:
        stacked.reverse()
    return [*carry, *(jax.lax.concatenate(parts, 0) for parts in zip(*stacked, strict=True))]
