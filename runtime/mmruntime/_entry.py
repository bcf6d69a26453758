"""Plan one step in a process of its own and print what was found as one JSON document.

    python -m mmruntime._entry train:train_step train:example_arguments --path DIR --measure

This is the other end of `mmrewrite plan --entry`. Whatever the step's module prints goes to standard error.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, TextIO

import jax

from mmruntime._mjit import MeshFunction
from mmruntime._report import LoopRow, Report
from mmruntime._timeline import Measurement

ERROR = 2


class Wrong(Exception):
    """Why there is no plan: a sentence with what was given and what to do."""


@dataclass(frozen=True)
class Given:
    """What `--entry` or `--args` named: `option` is which of them."""

    option: str
    text: str

    @property
    def module(self) -> str:
        """The module's part."""
        return self.text.partition(":")[0]

    @property
    def name(self) -> str:
        """The function's part."""
        return self.text.partition(":")[2]

    def __str__(self) -> str:
        return f"{self.option} {self.text}"


def find(given: Given) -> Any:
    """Import what was named.

    Raises:
        Wrong: If the module cannot be imported or has nothing of that name.
    """
    module = _imported(given)
    found: Any = module
    for part in given.name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            names = [name for name in vars(found) if not name.startswith("_")] if hasattr(found, "__dict__") else []
            near = difflib.get_close_matches(part, names, n=1)
            advice = f"did you mean `{near[0]}`?" if near else "name something at its top level"
            raise Wrong(f"{given}: `{given.module}` has no `{given.name}`; {advice}") from None
    return found


def _imported(given: Given) -> ModuleType:
    try:
        return importlib.import_module(given.module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{given.module}.".startswith(f"{error.name}."):
            raise Wrong(
                f"{given}: there is no module `{given.module}`; give the folder that it is imported from as PATH, or "
                "put that folder on PYTHONPATH"
            ) from None
        raise Wrong(_failed(given, "cannot be imported", error, "install what is missing")) from error
    except (Exception, SystemExit) as error:
        advice = 'importing it must not start a run: keep that under `if __name__ == "__main__":`'
        raise Wrong(_failed(given, "cannot be imported", error, advice)) from error


def plan(entry: Given, arguments: Given, measured: bool) -> dict[str, Any]:
    """The plan of a step as JSON values.

    Raises:
        Wrong: If it cannot be made.
    """
    step = find(entry)
    if not isinstance(step, MeshFunction):
        raise Wrong(
            f"{entry}: `{entry.name}` is of type {type(step).__name__}, not a step that mmruntime.mjit compiled; "
            "name the function that has the hint `mjit`, and see whether that hint was refused"
        )
    make = find(arguments)
    if not callable(make):
        raise Wrong(
            f"{arguments}: `{arguments.name}` is of type {type(make).__name__}; name a function without arguments"
        )
    try:
        given = make()
    except Exception as error:
        raise Wrong(_failed(arguments, "failed", error, "it is called without arguments")) from error
    if not isinstance(given, tuple):
        raise Wrong(
            f"{arguments}: `{arguments.name}()` returned a value of type {type(given).__name__}; it must return the "
            f"tuple of the positional arguments of `{entry.name}`"
        )
    try:
        report = step.plan(*given)
    except Exception as error:
        advice = f"`{entry.name}` is planned for what `{arguments.text}` returns"
        raise Wrong(_failed(entry, "cannot be planned", error, advice)) from error
    measurement = _measured(step, given, arguments) if measured else None
    return document(step, report, measurement)


def _measured(step: MeshFunction[..., Any], given: tuple[Any, ...], arguments: Given) -> Measurement:
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(given)):
        raise Wrong(
            f"{arguments}: `{arguments.name}()` returned shapes; --measure runs the step, so return arrays, or leave "
            "--measure out"
        )
    try:
        return step.measure(*given)
    except Exception as error:
        raise Wrong(_failed(arguments, "cannot be measured", error, "leave --measure out to plan only")) from error


def document(step: MeshFunction[..., Any], report: Report, measurement: Measurement | None) -> dict[str, Any]:
    """Everything that was found, as JSON values."""
    mesh = step.multimesh
    loops = [_loop(loop, measurement, index) for index, loop in enumerate(report.loops)]
    return {
        "step": report.name,
        "mesh": {"axes": dict(mesh.shape), "devices": [device.id for device in mesh.devices.flat]},
        "headlines": report.headlines,
        "tables": [asdict(table) for table in report.tables],
        "submeshes": [asdict(row) for row in report.submeshes],
        "tasks": [asdict(row) for row in report.tasks],
        "programs": [asdict(row) for row in report.programs],
        "inputs": [asdict(row) for row in report.inputs],
        "transfers": [asdict(row) for row in report.transfers],
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


def _failed(given: Given, what: str, error: BaseException, advice: str) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    outside = [frame for frame in frames if not frame.filename.startswith(os.path.dirname(__file__))]
    where = f" at {outside[-1].filename}:{outside[-1].lineno}" if outside else ""
    text = " ".join(str(error).split()) or "no message"
    return f"{given}: {what}: {type(error).__name__}: {text}{where}; {advice}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the document, or `{"error": sentence}`, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mmruntime._entry", description=__doc__)
    parser.add_argument("entry")
    parser.add_argument("args")
    parser.add_argument("--path", action="append", default=[], help="import from here first")
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args(arguments)
    with _only_ours() as output:
        sys.path[:0] = options.path
        sys.path.append(os.getcwd())
        try:
            found = plan(Given("--entry", options.entry), Given("--args", options.args), options.measure)
            status = 0
        except Wrong as problem:
            traceback.print_exc()
            found, status = {"error": str(problem)}, ERROR
        json.dump(found, output)
    return status


def _only_ours() -> TextIO:
    """Standard output for the document alone: what others write to it from now on goes to standard error."""
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return output


if __name__ == "__main__":
    sys.exit(main())
