"""Trace the layers of a rewritten step in a process of its own, and compare plans for it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmrewrite.files.select import RewrittenProgram
from mmrewrite.files.walk import read_file
from mmrewrite.mirror.child_process import Mirror, NotRun, check_named, check_runtime, environment, mirrored, run_module
from mmrewrite.mirror.limits import USUAL, ProgramLimits
from mmrewrite.results import Rewrite
from mmrewrite.source.file import SourceFile
from mmrewrite.source.spans import span
from mmrewrite.source.text import SourceText, parse_quietly
from mmrewrite.suggest.calibration import Calibration, calibrated, sizes_to_time
from mmrewrite.suggest.candidates import LineOperations
from mmrewrite.suggest.costs import name_divides, read_layers
from mmrewrite.suggest.devices import Accelerator
from mmrewrite.suggest.hint_trials import NewHint
from mmrewrite.suggest.model import CostModel, PlanChoice, Priced
from mmrewrite.suggest.places import HintPlaces
from mmrewrite.suggest.savings import Saving, savings
from mmrewrite.suggest.search import FREE, ComparedPlans, FixedChoices, find_plans, named
from mmrewrite.tracking import Tell, untold

# Each layer gets a virtual device of its own; more than these cost nothing.
_VIRTUAL = 256
# In place of the function of arguments: the module is run, as a script, until it calls the step.
RUN = "-"


@dataclass(frozen=True)
class Wanted:
    """What to compare plans of.

    Attributes:
        entry: The step, as `module:function`.
        arguments: The function of its arguments, or `RUN`.
        device: The accelerator.
        devices: How many; None for as many as the program's mesh has.
        limits: Bounds of the process that traces.
        batch: Rows of a batch; None for those of the arguments.
        fixed: What a plan must have.
        calibrates: Whether to time a layer's programs on this machine's accelerator, in place of published figures.
        seen: How many devices a program without hints sees until it calls its step.
        function: The name of the function that a script compiles as its step, if that is another.
    """

    entry: str
    arguments: str
    device: Accelerator
    devices: int | None
    limits: ProgramLimits = USUAL
    batch: int | None = None
    fixed: FixedChoices = FREE
    calibrates: bool = False
    seen: int = 1
    function: str | None = None

    @property
    def runs(self) -> bool:
        """Whether the module is run for the arguments of its step."""
        return self.arguments == RUN


@dataclass(frozen=True)
class SuggestedHints:
    """Hints to write into a program without any.

    Attributes:
        places: Where they belong.
        written: The hints of the plan.
        comments: The files with them.
        results: The rewrites of these.
        patch: The comments as a patch.
        verified: What a check has found; None if there was none.
        is_written: Whether the files have them already.
    """

    places: HintPlaces
    written: tuple[NewHint, ...]
    comments: tuple[Rewrite, ...]
    results: tuple[Rewrite, ...]
    patch: bytes = b""
    verified: str | None = None
    is_written: bool = False


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
        alone: Bytes that one device would need at least.
        against: The best plan's mesh with 1F1B, if that is another schedule.
        unknown_types: Types of products for which the device has no figure.
        places: Where the hints of a program without any belong; None for one that has some.
        hints: These hints, if they are worth writing.
        paths: The files and folders of the run.
        model_axis: The axis that layers are cut over within; None if there is nothing to cut, or no name for it.
        model_names: The logical names of what is cut.
        uncut: What could be cut, had it a place for a hint: a sentence each.
        sources: The hash of each file of the program that was traced.
        savings: Plans that pay once the user has written a line which saves memory.
        again: How a layer is called so that it is computed again.
        calibration: What was measured on this machine; None if nothing was.
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
    alone: float = 0.0
    against: Priced | None = None
    unknown_types: tuple[str, ...] = ()
    places: HintPlaces | None = None
    hints: SuggestedHints | None = None
    paths: tuple[str, ...] = ()
    model_axis: str | None = None
    model_names: tuple[str, ...] = ()
    uncut: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    savings: tuple[Saving, ...] = ()
    again: str = "jax.checkpoint(layer)(x)"
    calibration: Calibration | None = None


# Folders of packages that are installed, perhaps in an environment within the project.
_LIBRARIES = frozenset(("site-packages", "dist-packages"))


class NotTraced(NotRun):
    """The rewritten program raised, in a sentence."""


def trace_layers(
    wanted: Wanted,
    program: RewrittenProgram,
    tell: Tell = untold,
    files: Mapping[str, SourceFile] | None = None,
    *flags: str,
) -> dict[str, Any]:
    """The runtime's document about the layers of a rewritten program.

    Frames of cuts are expressions of `files`, if there are any, and messages speak of lines of these.

    Raises:
        NotRun: If it cannot be built, imported or traced.
    """
    with _ready(wanted, program) as mirror:
        # XLA has no fast products of short floats on CPUs, where the runtime makes others.
        platform = "cpu" if wanted.device.name == "cpu" else "gpu"
        document = _document(wanted, mirror, tell, files or {}, "--platform", platform, *flags)
        document["sources"] = dict(mirror.hashes)
        own = _OwnLines(mirror, files or {})
        for cut in document["cuts"]:
            made = ([own.expression(each) for each in places] for places in cut["places"])
            cut["places"] = [places for each in made if (places := [place for place in each if place is not None])]
            cut["made"] = [place for each in cut["made"] if (place := own.expression({"frame": each})) is not None]
        return document


def suggest(wanted: Wanted, program: RewrittenProgram, tell: Tell = untold) -> Suggested:
    """Compare plans for a rewritten program.

    Raises:
        NotRun: If it cannot be built, imported or traced, or nothing divides the devices.
    """
    return compared(wanted, trace_layers(wanted, program, tell))


def time_layer(
    wanted: Wanted,
    program: RewrittenProgram,
    batch: int,
    tell: Tell = untold,
    files: Mapping[str, SourceFile] | None = None,
) -> dict[str, Any]:
    """The runtime's document about the times of a layer of a rewritten program, for a batch of so many rows.

    Raises:
        NotRun: If it cannot be built, imported, traced or run.
    """
    with _ready(wanted, program) as mirror:
        counts = map(str, sizes_to_time(batch, wanted.devices or 1))
        platforms = os.environ.get("JAX_PLATFORMS")
        # Stages are virtual devices, beside the accelerator.
        beside = {} if platforms is None else {"JAX_PLATFORMS": ",".join(dict.fromkeys([*platforms.split(","), "cpu"]))}
        own = {name: value for name, value in environment(_VIRTUAL).items() if name != "JAX_PLATFORMS"} | beside
        return _document(wanted, mirror, tell, files or {}, "--counts", *counts, module="calibrate", variables=own)


def computed(
    wanted: Wanted,
    program: RewrittenProgram,
    files: Mapping[str, SourceFile],
    tell: Tell,
) -> tuple[str, list[LineOperations], list[dict[str, Any]], str | None]:
    """The step's own name, what it computes, and its calls of gradients, on which lines of which `files`.

    The last is a sentence on a file of the project that is not among these, and computes most of the step.

    Raises:
        NotRun: If it cannot be built, imported or traced.
    """
    with _ready(wanted, program) as mirror:
        document = _document(wanted, mirror, tell, files, "--operations")
        own = _OwnLines(mirror, files)
        operations = [
            LineOperations(
                frozenset(filter(None, (own(file, line) for file, line in group["lines"]))),
                group["flops"],
                group["count"],
                group["length"],
                group["backward"],
            )
            for group in document["groups"]
        ]
        gradients = [
            {**call, "places": places}
            for call in document["gradients"]
            if (places := [place for each in call["places"] if (place := own(*each)) is not None])
        ]
        return str(document["name"]), operations, gradients, _left_out(mirror, files, document["groups"])


def _left_out(mirror: Mirror, files: Mapping[str, SourceFile], groups: Sequence[Mapping[str, Any]]) -> str | None:
    """A sentence on the file of the project, not among those given, that computes most of a step; None if none does."""
    copies = {os.path.join(mirror.folder, place): source for place, source in mirror.sources.items()}
    given = {os.path.realpath(path) for path in files}
    shares: Counter[str] = Counter()
    for group in groups:
        made = (os.path.realpath(file) for file, _ in group["lines"])
        for source in {os.path.realpath(copies.get(path, path)) for path in made} - given:
            path = os.path.relpath(source)
            if not path.startswith(os.pardir) and _LIBRARIES.isdisjoint(path.split(os.sep)):
                shares[path] += group["flops"] * group["count"]
    total = sum(group["flops"] * group["count"] for group in groups)
    path, share = max(shares.items(), key=lambda each: each[1], default=("", 0.0))
    if 2 * share < total or not share:
        return None
    return f"{path}: {share / total:.0%} of the operations, and not among the files given; give it too, or `.` for all"


class _OwnLines:
    """Maps lines of rewritten copies to lines of the originals."""

    def __init__(self, mirror: Mirror, files: Mapping[str, SourceFile]) -> None:
        self._files = files
        self._lines = {
            os.path.join(mirror.folder, place): (source, _lines(files[source].data, read_file(copy)))
            for place, source in mirror.sources.items()
            if source in files and os.path.isfile(copy := os.path.join(mirror.folder, place))
        }

    def __call__(self, file: str, line: int) -> tuple[str, int] | None:
        """File and line of an original."""
        source, lines = self._lines.get(os.path.realpath(file), ("", {}))
        return (source, lines[line]) if line in lines else None

    def expression(self, place: Mapping[str, Any]) -> dict[str, Any] | None:
        """The expression of an original that a place of a copy is of, if it is clear which."""
        file, line, column, end_line, end_column = place["frame"]
        source, lines = self._lines.get(os.path.realpath(file), ("", {}))
        if line not in lines:
            return None
        ending = [
            node
            for node in _expressions(read_file(file))
            if (node.end_lineno, node.end_col_offset) == (end_line, end_column)
        ]
        # Of a method's call over several lines Python says where its name begins.
        node = next((each for each in ending if (each.lineno, each.col_offset) == (line, column)), None)
        node = node or next((each for each in ending if isinstance(each, ast.Call)), None)
        if node is None:
            return None
        same = ast.dump(node)
        alike = [each for each in _expressions(self._files[source].data) if ast.dump(each) == same]
        there = [each for each in alike if each.lineno == lines.get(node.lineno)]
        there = [each for each in there if each.col_offset == node.col_offset] or there or alike
        if len(there) != 1:
            return None
        text = SourceText.decode(self._files[source].data)
        around = span(text, there[0])
        return {**place, "path": source, "around": around, "text": text.text[slice(*around)]}

    def in_text(self, text: str) -> str:
        """A message with places in copies replaced by places in originals."""
        for copy, (source, lines) in self._lines.items():
            for line in dict.fromkeys(re.findall(rf"{re.escape(copy)}:(\d+)", text)):
                text = re.sub(rf"{re.escape(copy)}:{line}\b", f"{source}:{lines.get(int(line), line)}", text)
        return text


@functools.lru_cache(maxsize=64)
def _expressions(data: bytes) -> list[ast.expr]:
    tree = parse_quietly(SourceText.decode(data).text)
    return [node for node in ast.walk(tree) if isinstance(node, ast.expr)]


def _lines(original: bytes, rewritten: bytes) -> dict[int, int]:
    """For each line of a rewritten copy, the line of the original."""
    before, after = original.splitlines(), rewritten.splitlines()
    found = {}
    for kind, start, end, first, last in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for offset in range(last - first if kind != "delete" else 0):
            found[first + offset + 1] = min(start + offset, max(end - 1, start)) + 1
    return found


@contextlib.contextmanager
def _ready(wanted: Wanted, program: RewrittenProgram) -> Iterator[Mirror]:
    check_named(entry=wanted.entry)
    if wanted.arguments != RUN:
        check_named(args=wanted.arguments)
    check_runtime("a suggestion")
    with mirrored(program) as mirror:
        yield mirror


def _document(
    wanted: Wanted,
    mirror: Mirror,
    tell: Tell,
    files: Mapping[str, SourceFile],
    *flags: str,
    module: str = "suggest",
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    named = [text.partition(":")[0] for text in (wanted.entry, wanted.arguments)]
    roots = [root for each in named if (root := mirror.root(each)) is not None]
    what = f"--entry {wanted.entry}: the process that {'traces it' if module == 'suggest' else 'times a layer'}"
    arguments = [wanted.entry, wanted.arguments, *flags, *(["--devices", str(wanted.seen)] if files else [])]
    arguments += [] if wanted.function is None else ["--function", wanted.function]
    document, details = run_module(
        f"_commands.{module}", arguments, roots, variables or environment(_VIRTUAL), what, wanted.limits, tell
    )
    if "error" in document:
        raise NotTraced(mirror.named(_OwnLines(mirror, files).in_text(str(document["error"]))), details)
    return document


def row_name_of(document: Mapping[str, Any]) -> str | None:
    """The logical name of the rows of a microbatch, if constraints give them one."""
    first, *others = (trace["rows"] for trace in document["traces"])
    return next((each for each in first if all(each in rows for rows in others)), None)


def compared(wanted: Wanted, document: Mapping[str, Any], timed: Mapping[str, Any] | None = None) -> Suggested:
    """The plans of a step whose layers were traced, by figures of its device or by what `time_layer` has found.

    Raises:
        NotRun: If nothing divides the devices.
    """
    rows_seen, today = int(document["batch"]), document["today"]
    batch = wanted.batch or rows_seen
    axes: dict[str, int] = dict(today["axes"])
    pairs = [(str(name), device) for name, device in document["logical_axes"]]
    row_name = row_name_of(document)
    cut = next((str(device) for name, device in pairs if name == row_name and device in axes), None)
    data_axis = None if row_name is None else cut or "data"
    model_axis, model_names = model_axis_of(document, (document["axis"], data_axis))
    taken = (document["axis"], data_axis, model_axis)
    held = {name: size for name, size in axes.items() if name not in taken and size > 1}
    width = math.prod(held.values())
    own = math.prod(axes.values())
    devices = wanted.devices or own
    if devices % width:
        kept = ", ".join(f"{name}={size}" for name, size in held.items())
        raise NotRun(f"--devices {devices}: the axes {kept} stay as they are, and do not divide that; give a multiple")
    layers = read_layers(document, model_names)
    # What the step is given is taken to grow with the rows; captured arrays do not, and are small.
    layers = [replace(layer, inputs=layer.inputs * batch / rows_seen) for layer in layers]
    calibration = None
    if timed is not None:
        device, calibration = calibrated(layers, batch, wanted.device, timed)
        wanted = replace(wanted, device=device)
    model = CostModel(layers, batch, wanted.device, donates=document["traces"][0]["donates"])
    found = find_plans(model, devices, width, data=data_axis is not None, fixed=wanted.fixed)
    chunks, stages = int(today["rounds"]), axes.get(document["axis"], 1)
    schedule = document["traces"][0]["schedule"]
    made = None if schedule == "auto" else named(schedule, stages, int(today["count"]), chunks)
    priced = None
    if made is not None and stages * chunks <= len(layers):
        data, cut_by = (axes.get(axis or "", 1) for axis in (data_axis, model_axis))
        choice = PlanChoice(stages, data, width, int(today["count"]), schedule, chunks, model=cut_by)
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
        min(model.plain(1, count)[1] for count in range(1, batch + 1) if batch % count == 0),
        _against(model, found.best),
        tuple(model.unknown_types()),
        model_axis=model_axis,
        model_names=tuple(model_names),
        sources=document["sources"],
        savings=savings(model, devices, width, found, data=data_axis is not None, fixed=wanted.fixed),
        calibration=calibration,
    )


def model_axis_of(document: Mapping[str, Any], others: Collection[str | None]) -> tuple[str | None, dict[str, int]]:
    """The axis that cuts may be made over, and the names of these with what its size must divide.

    None where the axis is also that of a name which is no cut, or its size today divides none.
    """
    pairs = {str(name): device for name, device in document["logical_axes"]}
    names = {name: size for name, size in name_divides(document).items() if name in pairs}
    axes = [pairs[name] for name in names if pairs[name] is not None]
    axis = axes[0] if axes else "model"
    if not names or not isinstance(axis, str) or axis in others or any(each != axis for each in axes):
        return None, {}
    is_shared = any(device == axis and name not in names for name, device in pairs.items())
    today = document["today"]["axes"].get(axis, 1)
    return (None, {}) if is_shared or any(size % today for size in names.values()) else (axis, names)


def _against(model: CostModel, best: Priced | None) -> Priced | None:
    """The mesh of a plan with its number of microbatches and 1F1B."""
    if best is None or best.choice.schedule == "1f1b":
        return None
    made = named("1f1b", best.choice.stages, best.choice.count, 1)
    choice = replace(best.choice, schedule="1f1b", chunks=1, memory_bytes=None)
    return None if made is None else model.price(choice, made)
