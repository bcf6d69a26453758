"""Trace the layers of a rewritten step in a process of its own, and compare plans for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrewrite.files.select import Rules
from mmrewrite.mirror.child_process import NotRun, check_named, check_runtime, environment, mirrored, run_module
from mmrewrite.mirror.limits import USUAL, ProgramLimits
from mmrewrite.results import Rewrite
from mmrewrite.suggest.costs import read_layers
from mmrewrite.suggest.devices import Accelerator
from mmrewrite.suggest.model import CostModel, PlanChoice, Priced
from mmrewrite.suggest.search import ComparedPlans, find_plans, named
from mmrewrite.tracking import Tell, untold

# Each layer gets a virtual device of its own; more than these cost nothing.
_VIRTUAL = 256


@dataclass(frozen=True)
class Wanted:
    """What to compare plans of: the step and the function of its arguments, as `module:function`, and the devices.

    `devices` is how many; None for as many as the program's mesh has.
    """

    entry: str
    arguments: str
    device: Accelerator
    devices: int | None
    limits: ProgramLimits = USUAL


@dataclass(frozen=True)
class Suggested:
    """The plans of a step, compared.

    Attributes:
        wanted: What was asked.
        devices: How many accelerators.
        batch: Rows of a batch.
        layers: How many layers there are.
        axis: The axis of stages.
        data_axis: The axis that rows are cut over, by name; None if no constraint names the rows.
        row_name: The logical name of the rows.
        logical_axes: The device axes of each logical axis today, as `axes` has them; None is "whole".
        held: The other axes, which stay as they are.
        today: The program's own plan, priced on its own mesh; None if it has a schedule that is not one of the named.
        today_devices: The devices of that mesh.
        found: The plans.
    """

    wanted: Wanted
    devices: int
    batch: int
    layers: int
    axis: str
    data_axis: str | None
    row_name: str | None
    logical_axes: Mapping[str, Any]
    held: Mapping[str, int]
    today: Priced | None
    today_devices: int
    found: ComparedPlans


def suggest(
    wanted: Wanted, paths: Sequence[str], rules: Rules, results: Iterable[Rewrite], tell: Tell = untold
) -> Suggested:
    """Compare plans for a rewritten program.

    Raises:
        NotRun: If it cannot be built, imported or traced, or nothing divides the devices.
    """
    check_named(entry=wanted.entry, args=wanted.arguments)
    check_runtime("--suggest")
    with mirrored(paths, rules, results) as mirror:
        modules = [text.partition(":")[0] for text in (wanted.entry, wanted.arguments)]
        roots = [root for module in modules if (root := mirror.root(module)) is not None]
        what = f"--entry {wanted.entry}: the process that traces it"
        document, details = run_module(
            "_commands.suggest",
            [wanted.entry, wanted.arguments],
            roots,
            environment(_VIRTUAL),
            what,
            wanted.limits,
            tell,
        )
        if "error" in document:
            raise NotRun(mirror.named(str(document["error"])), details)
    return _compared(wanted, document)


def _compared(wanted: Wanted, document: Mapping[str, Any]) -> Suggested:
    layers, batch, today = read_layers(document), int(document["batch"]), document["today"]
    axes: dict[str, int] = dict(today["axes"])
    pairs = [(str(name), device) for name, device in document["logical_axes"]]
    rows = document["traces"][0]["rows"]
    row_name = rows[0] if rows else None
    cut = next((str(device) for name, device in pairs if name == row_name and device in axes), None)
    data_axis = None if row_name is None else cut or "data"
    held = {name: size for name, size in axes.items() if name not in (document["axis"], data_axis) and size > 1}
    width = 1
    for size in held.values():
        width *= size
    own = width * axes.get(document["axis"], 1) * axes.get(data_axis or "", 1)
    devices = wanted.devices or own
    if devices % width:
        kept = ", ".join(f"{name}={size}" for name, size in held.items())
        raise NotRun(f"--devices {devices}: the axes {kept} stay as they are, and do not divide that; give a multiple")
    model = CostModel(layers, batch, wanted.device, donates=document["traces"][0]["donates"])
    found = find_plans(model, devices, width, data=data_axis is not None)
    chunks, stages = int(today["rounds"]), axes.get(document["axis"], 1)
    schedule = document["traces"][0]["schedule"]
    made = None if schedule == "auto" else named(schedule, stages, int(today["count"]), chunks)
    priced = None
    if made is not None and stages * chunks <= len(layers):
        choice = PlanChoice(stages, axes.get(data_axis or "", 1), width, int(today["count"]), schedule, chunks)
        priced = model.price(choice, made)
    return Suggested(
        wanted,
        devices,
        batch,
        len(layers),
        document["axis"],
        data_axis,
        row_name,
        dict(pairs),
        held,
        priced,
        own,
        found,
    )
