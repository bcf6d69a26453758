"""Time the programs of one layer on this machine's accelerator for two sizes of microbatches, and print JSON.

    python -m mmruntime._commands.calibrate train:train_step train:example_arguments --counts 8 32 --path DIR

This is the other end of `mmrewrite suggest --calibrate`. One device is enough; links are not measured.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mmruntime._commands.entry_point import BadEntryPoint, FunctionName, failure, parser_for, print_document
from mmruntime._commands.suggest import layers_of, looked_at, placed_layers
from mmruntime._core import progress
from mmruntime._core.multimesh import MultiMesh
from mmruntime._inspect.layer_times import launch_time, layer_times
from mmruntime._step.signature import Call


def calibrate(
    entry: FunctionName,
    arguments: FunctionName,
    counts: Sequence[int],
    *,
    devices: int | None = None,
    function: str | None = None,
) -> dict[str, Any]:
    """What the first device does: its kind, seconds of a launch, and of a layer's passes for each size.

    Args:
        entry: The step.
        arguments: The function of its arguments, or `-`.
        counts: How many microbatches a batch is cut into.
        devices: How many devices the program sees until it calls the step; None for all.
        function: The function that is compiled as the step, if it has another name.

    Raises:
        BadEntryPoint: If the step cannot be traced, or its layer does not run here.
    """

    def take(fun: Callable[..., Any], call: Call, mesh: MultiMesh, donate: frozenset[int]) -> dict[str, Any]:
        device = jax.devices()[0]
        axis, layers, batch, _ = layers_of(entry, fun, call, mesh, donate, device.platform)
        launch, layer, sizes = launch_time(), 0, []
        for count in counts:
            progress.tell(f"timing a layer with {count} microbatches")
            step, _, segments = placed_layers(fun, call, mesh, donate, device.platform, count, {axis: layers})
            try:
                layer, forward, backward = layer_times(step, segments, launch)
            except Exception as error:
                what = f"a layer with {batch // count} rows does not run here"
                raise BadEntryPoint(failure(entry, what, error, "leave --calibrate out")) from error
            sizes.append({"rows": batch // count, "forward": forward, "backward": backward})
        kind, platform = device.device_kind, device.platform
        return {"kind": kind, "platform": platform, "launch": launch, "layer": layer, "sizes": sizes}

    return looked_at(entry, arguments, take, devices=devices, function=function)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the document, or `{"error": sentence, "traceback": text}`, and return the exit status."""
    parser = parser_for("mmruntime._commands.calibrate", __doc__)
    parser.add_argument("--counts", type=int, nargs="+", required=True, help="how many microbatches")
    parser.add_argument("--function", help="the name of the function that is compiled as the step, if it is another")
    parser.add_argument("--devices", type=int, help="how many devices the program sees until it calls the step")
    options = parser.parse_args(arguments)
    make = functools.partial(calibrate, counts=options.counts, devices=options.devices, function=options.function)
    return print_document(options, make)


if __name__ == "__main__":
    sys.exit(main())
