"""Trace one step with a stage for each layer, for two sizes of microbatches, and print what the layers cost as JSON.

    python -m mmruntime._commands.suggest train:train_step train:example_arguments --path DIR

This is the other end of `mmrewrite plan --suggest`. Nothing is laid out, compiled or run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

import jax

from mmruntime import schedules
from mmruntime._commands.entry_point import (
    BadEntryPoint,
    FunctionName,
    arguments_for,
    failure,
    find_step,
    parser_for,
    print_document,
)
from mmruntime._core import progress
from mmruntime._core.layer_trial import LayerTrial, trying_layers
from mmruntime._core.multimesh import MultiMesh
from mmruntime._inspect.layer_costs import layer_costs, row_names
from mmruntime._step.mesh_function import MeshFunction
from mmruntime._step.plan import placed_step
from mmruntime._step.signature import Call


class _Seen(BaseException):
    """Leaves the call of a step with what was asked of its trace."""

    def __init__(self, found: Any) -> None:
        super().__init__("seen")
        self.found = found


def costs(entry: FunctionName, arguments: FunctionName) -> dict[str, Any]:
    """What each layer of a step costs, for one or two numbers of rows, as JSON values.

    Raises:
        BadEntryPoint: If the step cannot be imported or traced, or has no layers or no microbatches.
    """
    step = find_step(entry)
    example = arguments_for(entry, arguments)

    def tried(trial: LayerTrial, sizes: dict[str, int], take: Callable[..., Any]) -> Any:
        def look(fun: Callable[..., Any], call: Call, mesh: MultiMesh, donate: frozenset[int]) -> NoReturn:
            axes = {**dict.fromkeys(mesh.axis_names, 1), **sizes}
            other = MultiMesh(axis_sizes=tuple(axes.values()), axis_names=tuple(axes), logical_axes=mesh.logical_axes)
            other.context.registrations = list(mesh.context.registrations)
            raise _Seen(take(placed_step(fun, call, other, donate), bool(donate)))

        MeshFunction.look = look
        try:
            with trying_layers(trial):
                step.plan(*example)
        except _Seen as seen:
            return seen.found
        except Exception as error:
            raise BadEntryPoint(failure(entry, "cannot be traced", error, "see what `plan --entry` says")) from error
        finally:
            MeshFunction.look = None
        raise AssertionError("a step that was planned was looked at")

    found = LayerTrial()
    tried(found, {}, lambda *_: None)
    if len(found.layers) != 1:
        what = "reaches no hint `stages`" if not found.layers else "deals out several loops over layers"
        raise BadEntryPoint(f"{entry}: the step {what}; plans are compared for one loop over layers")
    if len(set(found.counts)) != 1 or len(set(found.batches)) != 1:
        what = "cuts several batches" if found.counts else "cuts no batch with `microbatch`"
        raise BadEntryPoint(f"{entry}: the step {what}; plans are compared for one hint `microbatch`")
    ((axis, count),), batch, today = found.layers, found.batches[0], found.counts[0]
    if count > len(jax.devices()):
        raise BadEntryPoint(f"{entry}: {count} layers need as many virtual devices; write --devices {count}")

    def taken(made: Any, donates: bool) -> dict[str, Any]:
        loops = [region for region in made.step.regions if region.loop is not None]
        layers = layer_costs(made.step, made.placement, made.segments)
        names = row_names(op for region in loops for op in region.ops)
        schedule = loops[0].loop.schedule
        return {
            "layers": [asdict(layer) for layer in layers],
            "rows": names,
            "donates": donates,
            "schedule": schedule if isinstance(schedule, str) else getattr(schedule, "name", schedules.AUTO),
        }

    counts = [each for each in range(2, batch + 1) if batch % each == 0][:2] or [1]
    traces = []
    for each in counts:
        progress.tell(f"tracing the step with {each} microbatches")
        made = tried(LayerTrial(each), {axis: count}, taken)
        traces.append({"count": each, **made})
        if len(made["layers"]) != count:
            raise BadEntryPoint(
                f"{entry}: {count} layers make {len(made['layers'])} stages; plans are compared for layers that "
                "follow each other"
            )
    rounds, placement = min(found.rounds, key=str)
    mesh = step.multimesh
    return {
        "axis": axis,
        "batch": batch,
        "today": {"axes": dict(mesh.shape), "count": today, "rounds": rounds, "placement": placement},
        "logical_axes": [list(pair) for pair in mesh.logical_axes or ()],
        "traces": traces,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the document, or `{"error": sentence, "traceback": text}`, and return the exit status."""
    return print_document(parser_for("mmruntime._commands.suggest", __doc__).parse_args(arguments), costs)


if __name__ == "__main__":
    sys.exit(main())
