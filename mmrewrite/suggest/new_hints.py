"""Suggest the hints of a program without any: where they belong, which plan pays, and the patch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmrewrite.files.patch import patch_of
from mmrewrite.files.select import RewrittenProgram
from mmrewrite.suggest.comparison import (
    NotTraced,
    Suggested,
    SuggestedHints,
    Wanted,
    compared,
    computed,
    row_name_of,
    time_layer,
    trace_layers,
)
from mmrewrite.suggest.costs import name_divides
from mmrewrite.suggest.hint_texts import mesh_hint, microbatch_arguments, stages_hint
from mmrewrite.suggest.hint_trials import HintedProject, HintTrial, NewHint
from mmrewrite.suggest.places import CUT, DATA, MODEL, CompiledPlace, HintPlaces, NoPlace, find_steps, places
from mmrewrite.suggest.savings import again_line
from mmrewrite.suggest.shard_places import ShardPlace, shard_places, uncut_sentences
from mmrewrite.tracking import Phase, Tell

# How often hints that cut layers are tried, where some are wrong.
_MOST_TRACES = 3

_OWN_MESH = (
    "the program sets a mesh of its own by `jax.set_mesh`; where code outside of the step computes with its results, "
    "set that of the steps, `jax.set_mesh(mesh)`"
)

# A script has called no step by that name; perhaps that of another file.
_NOT_CALLED = "the module ended without calling"

# A layout of the program's own names an axis that the mesh of its steps has not.
_NO_AXIS = re.compile(r"\bhas no axis '(\w+)'")

_KEYS = re.compile(r"nothing says how each microbatch gets numbers of its own\. Write rng=(\d+|\([\d, ]+\))\.")


def suggest_hints(
    wanted: Wanted, program: RewrittenProgram, project: HintedProject, top: str, phase: Phase
) -> Suggested:
    """The plans of a program without hints, and the hints of the best if that is worth stages.

    Args:
        wanted: The step and the devices.
        program: The run.
        project: The files, to write hints into.
        top: The folder that the paths of the patch are relative to.
        phase: What each of the slow parts is shown by while it lasts.

    Raises:
        NoPlace: If no hint may stand anywhere.
        NotRun: If the program cannot be built, imported or traced.
    """
    steps = find_steps(project, wanted.entry, anywhere=wanted.runs)
    with phase(f"{wanted.entry}: where hints belong") as tell:
        # A script may call a step by that name of another file.
        first = itertools.islice(steps, None if wanted.runs else 1)
        wanted, step, seen = _computed(wanted, first, program, project, tell)
    name, operations, gradients, left_out = seen
    # A script may compile a function under another name.
    wanted = replace(wanted, function=name) if wanted.runs else wanted
    problems: list[str] = []
    for found, rows in _or_left_out(places(project, step, operations, gradients), left_out):
        document: Mapping[str, Any] | None = None
        left = [*rows, None]
        while left:
            named = left.pop(0)
            tried = replace(found, rows=named)
            try:
                with phase(f"{wanted.entry}: what its layers cost") as tell:
                    trial = project.tried(tried.to_trace())
                    document = trace_layers(wanted, _with(program, trial), tell, project.files)
            except NotTraced as problem:
                # Without the hints the step was traced, so they are what is in the way.
                where = f"{found.candidate.path}:{found.candidate.line}"
                said = str(problem).partition(": cannot be traced: ")[2].rpartition("; ")[0] or str(problem)
                with_keys = _with_keys(found, said)
                if with_keys is not None and project.tried(with_keys.to_trace()).accepted:
                    found = with_keys
                    left.insert(0, named)
                    continue
                problems.append(f"{where}: with `stages` there and `microbatch` at {_place(found)}: {said}")
                continue
            if row_name_of(document) is not None or named is None:
                break
        if document is not None:
            # Where the model is that of one example, a value that layers hand on has no rows.
            kept = tried if row_name_of(document) is not None else replace(tried, rows=None)

            def trace_once(trial: HintTrial) -> Mapping[str, Any]:
                with phase(f"{wanted.entry}: what a model axis may cut") as tell:
                    return trace_layers(wanted, _with(program, trial), tell, project.files, "--once")

            document, kept = _with_shards(wanted, project, kept, document, trace_once)
            timed = None
            if wanted.calibrates:
                with phase(f"{wanted.entry}: how long a layer takes here") as tell:
                    trial = project.tried(kept.to_trace())
                    timed = time_layer(wanted, _with(program, trial), int(document["batch"]), tell, project.files)
            suggested = compared(wanted, document, timed)
            suggested = replace(
                suggested,
                places=kept,
                again=again_line(project.text(kept.candidate.path).text),
                today=None,
                paths=tuple(program.paths),
                logical_axes={name: axis for name, axis in suggested.logical_axes.items() if axis != MODEL},
                model_names=(CUT,) if kept.shards else (),
                uncut=tuple(uncut_sentences(project, document["cuts"])),
            )
            return _with_hints(suggested, kept, project, top, [_OWN_MESH] if document["own_mesh"] else [])
    raise NoPlace("\n".join(("the layers are found, and cannot be traced as stages", *dict.fromkeys(problems))))


def _computed(
    wanted: Wanted,
    steps: Iterator[CompiledPlace],
    program: RewrittenProgram,
    project: HintedProject,
    tell: Tell,
) -> tuple[Wanted, CompiledPlace, Any]:
    """The first step that a program gets to, with as many devices as it needs for that, and what it computes."""
    problems: list[NotTraced] = []
    for found in steps:
        step = found
        # A program without hints has been run on one device, if it is not written for several.
        left = list(dict.fromkeys((wanted.seen, wanted.devices or 1)))
        while left:
            own = replace(wanted, seen=left[0])
            try:
                return own, step, computed(own, _with(program, step.trial), project.files, tell)
            except NotTraced as problem:
                missing = _NO_AXIS.search(str(problem))
                if missing is not None and missing[1] not in step.own_axes:
                    step = step.with_axis(project, missing[1])
                    continue
                problems.append(problem)
                left = left[1:] if _NOT_CALLED not in str(problem) else []
        if _NOT_CALLED not in str(problems[-1]):
            break
    raise problems[0]


def _with(program: RewrittenProgram, trial: HintTrial) -> RewrittenProgram:
    return replace(program, results=trial.results)


def _or_left_out(
    found: Iterator[tuple[HintPlaces, tuple[NewHint, ...]]], left_out: str | None
) -> Iterator[tuple[HintPlaces, tuple[NewHint, ...]]]:
    """Places, or why there is none: first of all a file that was left out."""
    try:
        yield from found
    except NoPlace as problem:
        first, *others = str(problem).splitlines()
        raise NoPlace("\n".join([first, *filter(None, [left_out]), *others])) from None


def _with_shards(
    wanted: Wanted,
    project: HintedProject,
    found: HintPlaces,
    document: Mapping[str, Any],
    trace_once: Callable[[HintTrial], Mapping[str, Any]],
) -> tuple[Mapping[str, Any], HintPlaces]:
    """The document and the places with hints that cut layers; each cuts in the trace what it is to cut."""
    if wanted.fixed.model == 1 or wanted.devices == 1:
        return document, found
    wrong: set[ShardPlace] = set()

    def is_accepted(place: ShardPlace) -> bool:
        return place not in wrong and project.tried(found.to_trace([place])).accepted

    for _ in range(_MOST_TRACES):
        shards = shard_places(project, document["cuts"], is_accepted)
        trial = project.tried(found.to_trace(shards))
        if not shards or not trial.accepted:
            break
        try:
            shown = trace_once(trial)
        except NotTraced:
            break
        names = name_divides(shown)
        astray = {place for number, place in enumerate(shards) if f"{CUT}{number}" not in names}
        if not astray:
            sized = (replace(each, divides=names[f"{CUT}{number}"]) for number, each in enumerate(shards))
            seen = {key: shown[key] for key in ("cuts", "astray", "logical_axes", "today")}
            return {**document, **seen}, replace(found, shards=tuple(sized))
        wrong |= astray
    return document, found


def _with_keys(found: HintPlaces, problem: str) -> HintPlaces | None:
    """The places with the `rng` that the runtime asks for: the trace sees what draws numbers."""
    keys = _KEYS.search(problem)
    if keys is None or "rng=" in found.gradient.text:
        return None
    text = ", ".join(filter(None, (found.gradient.text, f"rng={keys[1]}")))
    batch = f"{found.batch.rstrip('.')}; random streams: argument {keys[1].strip('()')}, each microbatch its own"
    return replace(found, gradient=replace(found.gradient, text=text), batch=batch)


def _place(found: HintPlaces) -> str:
    return f"{found.gradient.path}:{found.gradient.line}"


def _with_hints(
    suggested: Suggested, found: HintPlaces, project: HintedProject, top: str, own: Sequence[str]
) -> Suggested:
    best = suggested.found.best
    if suggested.found.verdict != "pipeline" or best is None:
        return suggested
    choice = best.choice
    count, schedule = microbatch_arguments(choice)
    with_data = choice.data > 1
    logical = {name: axis for name, axis in suggested.logical_axes.items() if with_data and name not in found.own_axes}
    wide = {DATA: with_data, MODEL: choice.model > 1}
    logical |= {name: None for name in found.own_axes if not wide.get(name)}
    mesh = mesh_hint(replace(suggested, logical_axes=logical), choice)
    hints = found.hints(mesh, count, schedule, stages_hint(choice), data=with_data, model=choice.model)
    trial = project.tried(hints)
    if not trial.accepted:
        raise NoPlace("\n".join(("the codemods refuse the plan's own sizes", *trial.refused)))
    remarks = *own, *(f"{each.path}:{each.line}: {each.reason}" for each in trial.remarks)
    written = SuggestedHints(
        replace(found, remarks=remarks), hints, trial.comments, trial.results, patch_of(trial.comments, top)
    )
    return replace(suggested, hints=written, places=written.places)
