"""`stage_sequential`: deal the layers of a `Sequential` out over the stages, called as it is."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

from mmruntime import _check, _compat
from mmruntime._core.mesh import current_mesh
from mmruntime._core.switches import transforms_ignored
from mmruntime._core.task import Task, stage
from mmruntime._frontend import task_call as _call

P = ParamSpec("P")
R = TypeVar("R")


@_compat.api_boundary
def stage_sequential(
    module: Callable[P, R],
    *,
    axis: str = "stage",
    weights: Sequence[float] | Literal["flops", "auto"] | None = None,
    chunks: int | None = None,
    placement: Literal["v"] | None = None,
) -> Callable[P, R]:
    """Call a `Sequential` with each of its layers as the task of its stage.

        for i, layer in enumerate(module.layers):
            x = mm.task(layer, task=mm.stage(i, len(module.layers), axis=axis))(x)

    `module` is called by its own class, so that what the first layer is given, tuples between layers, keys and names
    of parameters are those of `flax.linen`, `flax.nnx`, `haiku` or `equinox.nn`. Functions among the layers count as
    layers. Without a mesh in use `module` is called unchanged.

    Args:
        module: A `Sequential`, or another module that calls the callables in its attribute `layers` one by one.
        axis: Axis of the surrounding `MultiMesh` that separates the stages.
        weights: Cost of each layer, shape `(len(module.layers),)`, any unit, "flops" or "auto"; see `stage`.
        chunks: How many rounds of stages there are; see `stage`.
        placement: "v" for rounds that go to and fro; see `stage`.

    Returns:
        A function with the signature of `module`.

    Raises:
        TypeError: If something is of another type, or `module` has no `layers`.
        ValueError: If `placement` is unknown. Calls raise what `stage` raises, such as for fewer layers than slices.
    """
    layers: Any = getattr(module, "layers", None)
    if not callable(module) or isinstance(layers, str | bytes) or not hasattr(layers, "__len__"):
        expected = "a Sequential, whose attribute `layers` holds its layers (write others as a loop, with `mm.stage`)"
        raise _check.wrong("stage_sequential", "module", expected, module)
    _check.text("stage_sequential", "axis", axis)
    if weights is not None and not (isinstance(weights, str) and weights in ("flops", "auto")):
        weights = _check.numbers("stage_sequential", "weights", weights, 'numbers, one per layer, "flops" or "auto"')
    chunks = _check.optional_integer("stage_sequential", "chunks", chunks, 1)
    if placement is not None and not (isinstance(placement, str) and placement == "v"):
        raise ValueError(f'stage_sequential: placement must be "v" or left out, got {_check.shown(placement)}.')
    count = len(layers)

    def task_of(index: int) -> Task:
        return stage(index, count, axis=axis, weights=weights, chunks=chunks, placement=placement)

    @_compat.api_boundary
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if current_mesh() is None or transforms_ignored():
            return module(*args, **kwargs)
        linen = sys.modules.get("flax.linen")
        if linen is not None and isinstance(module, linen.Module):
            with linen.intercept_methods(functools.partial(_as_task, module, task_of)):
                result: R = module(*args, **kwargs)
            return result
        # Layers with state of Equinox are told from others by their class, so these stay as they are.
        placed = [
            layer if _is_stateful_layer(layer) else _call.task(layer, task=task_of(index))
            for index, layer in enumerate(layers)
        ]
        # The user's object does not change: it may be shared, frozen, or of another level of tracing.
        copy: Callable[P, R] = object.__new__(type(module))
        vars(copy).update({**vars(module), "layers": placed})
        return copy(*args, **kwargs)

    return functools.update_wrapper(call, module, assigned=(), updated=())


def _as_task(module: Any, task_of: Callable[[int], Task], call: Any, args: Any, kwargs: Any, context: Any) -> Any:
    """Have the call of a layer of a Flax linen module be a task; other calls stay what they are."""
    index = next((index for index, each in enumerate(module.layers) if each is context.module), None)
    if index is None or context.method_name != "__call__":
        return call(*args, **kwargs)
    return _call.task(call, task=task_of(index))(*args, **kwargs)


def _is_stateful_layer(layer: Any) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(layer, equinox.nn.StatefulLayer) and bool(layer.is_stateful())
