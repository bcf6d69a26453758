"""Trace one step without placing or running it, and print as JSON what tells where hints belong, or what layers cost.

    python -m mmruntime._commands.suggest train:train_step train:example_arguments --path DIR [--operations | --once]

This is the other end of `mmrewrite suggest` and of `mmrewrite plan --suggest`. For costs, every layer is a stage of its
own, and batches are cut into two sizes of microbatches. Nothing is laid out, compiled or run, but with `-` in place of
the function of arguments: then the module itself is run until it calls the step.
"""

from __future__ import annotations

import functools
import math
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import jax

from mmruntime import schedules
from mmruntime._commands.entry_point import (
    BadEntryPoint,
    FunctionName,
    arguments_for,
    called_with,
    failure,
    find_step,
    parser_for,
    print_document,
)
from mmruntime._commands.gradient_calls import recorded_gradients
from mmruntime._compat.processes import hide_devices_behind
from mmruntime._core import progress
from mmruntime._core.layer_trial import LayerTrial, trying_layers
from mmruntime._core.multimesh import MultiMesh
from mmruntime._inspect.layer_costs import layer_costs, layer_cuts, row_names
from mmruntime._inspect.operations import operation_groups
from mmruntime._step.mesh_function import MeshFunction
from mmruntime._step.plan import placed_step, traced_step
from mmruntime._step.signature import Call, function_name

RUN = "-"


class _Seen(BaseException):
    """Leaves the call of a step with what was found of it, or with what was wrong."""

    def __init__(self, found: Any) -> None:
        super().__init__("seen")
        self.found = found


class _NoMicrobatches(BadEntryPoint):
    """A step cuts no batch."""


def looked_at(
    entry: FunctionName,
    arguments: FunctionName,
    take: Callable[..., dict[str, Any]],
    *,
    alone: bool = False,
    devices: int | None = None,
    function: str | None = None,
) -> dict[str, Any]:
    """What `take` returns for the step's function, call, mesh and donated arguments, within a call of the step.

    With `alone`, the step is the only one of a module that is run, whatever its name; else its function has the name of
    the entry, or is `function`. With `devices`, the program sees so many until then, as it makes meshes and batches of
    their number.

    Raises:
        BadEntryPoint: If the step cannot be imported, called or traced.
    """
    name = function or entry.name.rpartition(".")[2]
    called = "the module called it" if arguments.text == RUN else called_with(arguments)
    show = None if devices is None else hide_devices_behind(devices)

    def look(fun: Callable[..., Any], call: Call, mesh: MultiMesh, donate: frozenset[int]) -> None:
        if arguments.text == RUN and not alone and function_name(fun) != name:
            return
        if show is not None:
            show()
        try:
            found: Any = take(fun, call, mesh, donate)
        except Exception as error:
            # The program may catch it.
            found = error
        if isinstance(found, _NoMicrobatches) and arguments.text == RUN:
            # Another step by the same name, such as the loss of a gradient that is compiled.
            return
        raise _Seen(found)

    try:
        if arguments.text == RUN:
            MeshFunction.look = look
            _run(entry)
            raise BadEntryPoint(f"{entry}: the module ended without calling `{name}`; give --args, or another entry")
        step, example = find_step(entry), arguments_for(entry, arguments)
        MeshFunction.look = look
        step.plan(*example)
    except _Seen as seen:
        if isinstance(seen.found, BadEntryPoint):
            raise seen.found from None
        if isinstance(seen.found, Exception):
            raise BadEntryPoint(failure(entry, "cannot be traced", seen.found, called)) from seen.found
        found: dict[str, Any] = seen.found
        return found
    except BadEntryPoint:
        raise
    except Exception as error:
        raise BadEntryPoint(failure(entry, "cannot be called", error, called)) from error
    finally:
        MeshFunction.look = None
    raise AssertionError("a step that was planned was looked at")


def _run(entry: FunctionName) -> None:
    arguments, sys.argv = sys.argv, [entry.module]
    try:
        runpy.run_module(entry.module, run_name="__main__", alter_sys=True)
    except (Exception, SystemExit) as error:
        advice = "run it as `python` would, or give --args"
        raise BadEntryPoint(failure(entry, "its module cannot be run", error, advice)) from error
    finally:
        sys.argv = arguments


def operations(entry: FunctionName, arguments: FunctionName, *, devices: int | None = None) -> dict[str, Any]:
    """What a step without places computes on which lines, and its calls of gradients, as JSON values.

    Raises:
        BadEntryPoint: If the step cannot be imported, called or traced.
    """
    with recorded_gradients() as calls:

        def take(fun: Callable[..., Any], call: Call, mesh: MultiMesh, donate: frozenset[int]) -> dict[str, Any]:
            calls.clear()
            step = traced_step(fun, call, mesh, donate)
            groups = [asdict(group) for group in operation_groups(step.ops())]
            return {"name": function_name(fun), "groups": groups, "gradients": list(calls)}

        return looked_at(entry, arguments, take, alone=True, devices=devices)


def costs(
    entry: FunctionName,
    arguments: FunctionName,
    *,
    platform: str = "gpu",
    once: bool = False,
    devices: int | None = None,
    function: str | None = None,
) -> dict[str, Any]:
    """What each layer of a step costs, for two numbers of rows if there are, as JSON values.

    Args:
        entry: The step.
        arguments: The function of its arguments, or `-`.
        platform: The accelerators, as `jax.default_backend()` would name them; they are not needed.
        once: Whether it is traced for one number of rows, for what does not depend on that.
        devices: How many devices the program sees until it calls the step; None for all.
        function: The function that is compiled as the step, if it has another name.

    Raises:
        BadEntryPoint: If the step cannot be imported or traced, or has no layers or no microbatches.
    """

    def take(fun: Callable[..., Any], call: Call, mesh: MultiMesh, donate: frozenset[int]) -> dict[str, Any]:
        return _costs(entry, fun, call, mesh, donate, platform, 1 if once else 2)

    return looked_at(entry, arguments, take, devices=devices, function=function)


def layers_of(
    entry: FunctionName, fun: Callable[..., Any], call: Call, mesh: MultiMesh, donate: frozenset[int], platform: str
) -> tuple[str, int, int, LayerTrial]:
    """The axis over which a step deals out layers, how many, the rows of its batch, and what a trial has found.

    Raises:
        BadEntryPoint: If it has no layers or no microbatches, or several kinds of them.
    """
    found = LayerTrial(platform)
    with trying_layers(found):
        traced_step(fun, call, _other_mesh(mesh, {}), donate)
    if len(found.layers) != 1:
        what = "reaches no hint `stages`" if not found.layers else "deals out several loops over layers"
        raise BadEntryPoint(f"{entry}: the step {what}; plans are compared for one loop over layers")
    if len(set(found.counts)) != 1 or len(set(found.batches)) != 1:
        kind, what = (
            (BadEntryPoint, "cuts several batches")
            if found.counts
            else (_NoMicrobatches, "cuts no batch with `microbatch`")
        )
        raise kind(f"{entry}: the step {what}; plans are compared for one hint `microbatch`")
    ((axis, count),) = found.layers
    if count > len(jax.devices("cpu")):
        raise BadEntryPoint(f"{entry}: {count} layers need as many virtual devices; write --devices {count}")
    return axis, count, found.batches[0], found


def placed_layers(
    fun: Callable[..., Any],
    call: Call,
    mesh: MultiMesh,
    donate: frozenset[int],
    platform: str,
    count: int,
    sizes: dict[str, int],
) -> tuple[Any, Any, Any]:
    """A step with so many microbatches, its place on a mesh with axes of these sizes, one for others, and programs."""
    with trying_layers(LayerTrial(platform, count)):
        made = placed_step(fun, call, _other_mesh(mesh, sizes), donate)
    return made.step, made.placement, made.segments


def _other_mesh(mesh: MultiMesh, sizes: dict[str, int]) -> MultiMesh:
    """A mesh of virtual devices with the axes of another, of these sizes, one for others."""
    axes = {**dict.fromkeys(mesh.axis_names, 1), **sizes}
    made = MultiMesh(
        axis_sizes=tuple(axes.values()),
        axis_names=tuple(axes),
        devices=jax.devices("cpu")[: math.prod(axes.values())],
        logical_axes=mesh.logical_axes,
    )
    made.context.registrations = list(mesh.context.registrations)
    return made


def _costs(
    entry: FunctionName,
    fun: Callable[..., Any],
    call: Call,
    mesh: MultiMesh,
    donate: frozenset[int],
    platform: str,
    most: int,
) -> dict[str, Any]:
    axis, count, batch, found = layers_of(entry, fun, call, mesh, donate, platform)
    counts = [each for each in range(2, batch + 1) if batch % each == 0][:most] or [1]
    traces = []
    for each in counts:
        progress.tell(f"tracing the step with {each} microbatches")
        made = step, _, _ = placed_layers(fun, call, mesh, donate, platform, each, {axis: count})
        loops = [region for region in step.regions if region.loop is not None]
        layers = layer_costs(*made)
        if len(layers) != count:
            raise BadEntryPoint(
                f"{entry}: {count} layers make {len(layers)} stages; plans are compared for layers that follow each "
                "other"
            )
        schedule = loops[0].loop.schedule
        traces.append(
            {
                "count": each,
                "layers": [asdict(layer) for layer in layers],
                "rows": row_names((op for region in loops for op in region.ops), batch // each),
                "donates": bool(donate),
                "schedule": schedule if isinstance(schedule, str) else getattr(schedule, "name", schedules.AUTO),
            }
        )
    cuts, astray = layer_cuts(*made)
    rounds, placement = min(found.rounds, key=str)
    return {
        "axis": axis,
        "own_mesh": not jax.sharding.get_abstract_mesh().empty,
        "batch": batch,
        "today": {"axes": dict(mesh.shape), "count": found.counts[0], "rounds": rounds, "placement": placement},
        "logical_axes": [list(pair) for pair in mesh.logical_axes or ()],
        "cuts": [asdict(cut) for cut in cuts],
        "astray": astray,
        "traces": traces,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the document, or `{"error": sentence, "traceback": text}`, and return the exit status."""
    parser = parser_for("mmruntime._commands.suggest", __doc__)
    parser.add_argument("--operations", action="store_true", help="what is computed on which lines, not what it costs")
    parser.add_argument("--once", action="store_true", help="costs of one number of rows alone")
    parser.add_argument("--platform", default="gpu", help="gpu, tpu or cpu: what the step would run on")
    parser.add_argument("--devices", type=int, help="how many devices the program sees until it calls the step")
    parser.add_argument("--function", help="the name of the function that is compiled as the step, if it is another")
    options = parser.parse_args(arguments)
    priced = functools.partial(costs, platform=options.platform, once=options.once, function=options.function)
    look = operations if options.operations else priced
    return print_document(options, functools.partial(look, devices=options.devices))


if __name__ == "__main__":
    sys.exit(main())
