"""Plan one step in a process of its own and print the plan as one JSON document.

    python -m mmruntime._commands.plan train:train_step train:example_arguments --path DIR --measure

This is the other end of `mmrewrite plan --entry`. Whatever the step's module prints goes to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jax

from mmruntime._commands.entry_point import (
    BadEntryPoint,
    FunctionName,
    arguments_for,
    failure,
    find_step,
    parser_for,
    print_document,
)
from mmruntime._inspect.report import LoopRow, Report
from mmruntime._inspect.timeline import Measurement
from mmruntime._step.mesh_function import MeshFunction


def plan(entry: FunctionName, arguments: FunctionName, measured: bool) -> dict[str, Any]:
    """The plan of a step as JSON values.

    Raises:
        BadEntryPoint: If the step cannot be imported, planned or measured.
    """
    step = find_step(entry)
    example = arguments_for(entry, arguments)
    try:
        report = step.plan(*example)
    except Exception as error:
        advice = f"`{entry.name}` is planned for what `{arguments.text}` returns"
        raise BadEntryPoint(failure(entry, "cannot be planned", error, advice)) from error
    measurement = _measured(step, example, arguments) if measured else None
    return document(step, report, measurement)


def _measured(step: MeshFunction[..., Any], example: tuple[Any, ...], arguments: FunctionName) -> Measurement:
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(example)):
        raise BadEntryPoint(
            f"{arguments}: `{arguments.name}()` returned shapes; --measure runs the step, so return arrays, or leave "
            "--measure out"
        )
    try:
        return step.measure(*example)
    except Exception as error:
        raise BadEntryPoint(
            failure(arguments, "cannot be measured", error, "leave --measure out to plan only")
        ) from error


def document(step: MeshFunction[..., Any], report: Report, measurement: Measurement | None) -> dict[str, Any]:
    """A report, and a measurement where there is one, as JSON values."""
    mesh = step.multimesh
    loops = [_loop(loop, measurement, index) for index, loop in enumerate(report.loops)]
    return {
        "step": report.name,
        "mesh": {"axes": dict(mesh.shape), "devices": [device.id for device in mesh.devices.flat]},
        "headlines": report.headlines,
        "proofs": report.proofs,
        "tables": [asdict(table) for table in report.tables],
        "submeshes": [asdict(row) for row in report.submeshes],
        "tasks": [asdict(row) for row in report.tasks],
        "programs": [asdict(row) for row in report.programs],
        "inputs": [asdict(row) for row in report.inputs],
        "transfers": [asdict(row) for row in report.transfers],
        "memory": [{**asdict(row), "total": row.held.total} for row in report.memory],
        "names": [asdict(row) for row in report.names],
        "runs_per_step": report.runs_per_step,
        "loops": loops,
        "measured": None
        if measurement is None
        else {
            "once": [{"submesh": where, "seconds": seconds} for where, seconds in sorted(measurement.once.items())],
            "transfers": [
                {"source": source, "target": target, "seconds": seconds}
                for (source, target), seconds in sorted(measurement.transfers.items())
            ],
        },
    }


def _loop(loop: LoopRow, measurement: Measurement | None, index: int) -> dict[str, Any]:
    order = loop.order
    costs = None
    if measurement is not None:
        stages = measurement.loops[index]
        costs = {
            "forward": [stage.forward for stage in stages],
            "backward_input": [stage.backward_input for stage in stages],
            "backward_weight": [stage.backward_weight for stage in stages],
        }
    return {
        "schedule": order.name,
        "microbatches": loop.num_microbatches,
        "submeshes": list(dict.fromkeys(loop.stages)),
        "stages": loop.stages,
        "live": loop.live,
        "order": order.to_csv(),
        "costs": costs,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the document, or `{"error": sentence, "traceback": text}`, and return the exit status."""
    parser = parser_for("mmruntime._commands.plan", __doc__)
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args(arguments)
    return print_document(options, lambda entry, arguments: plan(entry, arguments, options.measure))


if __name__ == "__main__":
    sys.exit(main())
