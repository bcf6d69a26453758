"""Find where the hints of a program without any belong: traces rank the statements, the codemods decide."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmrewrite.directives.vocabulary import DIRECTIVES
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceText, parse_quietly
from mmrewrite.suggest.candidates import (
    HintSite,
    LayerCandidate,
    LineOperations,
    compiled_at,
    imported_as,
    is_in_loop,
    layer_candidates,
    mapped_sites,
    parameter_hints,
    row_hints,
    sites,
    statements_at,
    step_sites,
    top_line,
)
from mmrewrite.suggest.hint_trials import HintedProject, HintTrial, NewHint
from mmrewrite.suggest.shard_places import ShardPlace

STAGE, DATA, MODEL = "stage", "data", "model"
ROWS, CUT = "batch", "hidden"
_MOST_ACCEPTED, _MOST_TRIED, _MOST_NAMED = 3, 24, 3
# The hint that a refusal advises to write.
_BETTER = re.compile(r"write `(microbatch\([^`]*\))`")
# Functions that the codemod of `microbatch` writes.
_MICROBATCH = DIRECTIVES["microbatch"].runtime
_ANOTHER_STEP = "plain `jax.jit` would inline"
# What a statement is refused for that gives something the name of the step, and compiles nothing.
_NO_JIT = "`mjit` replaces `jax.jit`, and there is none"


class NoPlace(Exception):
    """Why a hint may stand nowhere, as a sentence or several lines."""


@dataclass(frozen=True)
class HintPlaces:
    """Where the hints of a program belong.

    Attributes:
        mesh: Above which statement the mesh is made.
        steps: The compiled steps.
        gradient: The statement of the gradient, with the arguments of its `microbatch` besides number and schedule.
        layers: The statement that runs all layers.
        rows: The statement whose value has the rows of a batch, for a data axis; None if there is none.
        candidate: What the trace says of the layers.
        batch: What is said of the gradient's arguments.
        remarks: What the codemods say of other places, a sentence each.
        shards: Where a model axis cuts layers.
        own_axes: Axes of meshes of the program's own, by which its layouts name dimensions.
    """

    mesh: NewHint
    steps: tuple[NewHint, ...]
    gradient: NewHint
    layers: NewHint
    rows: NewHint | None
    candidate: LayerCandidate
    batch: str
    remarks: tuple[str, ...]
    shards: tuple[ShardPlace, ...] = ()
    own_axes: tuple[str, ...] = ()

    def hints(
        self, mesh: str, count: str, schedule: str, stages: str, *, data: bool, model: int = 1
    ) -> tuple[NewHint, ...]:
        """The hints with the texts of a plan.

        Args:
            mesh: The mesh and its axes.
            count: The number of microbatches, as an argument.
            schedule: The schedule, as arguments; empty for the default.
            stages: `stages` with its arguments.
            data: Whether rows are cut over a data axis.
            model: The devices of the model axis.
        """
        arguments = ", ".join(filter(None, (count, self.gradient.text, schedule)))
        return (
            replace(self.mesh, text=mesh),
            *self.steps,
            replace(self.gradient, text=f"microbatch({arguments})"),
            replace(self.layers, text=stages),
            *([self.rows] if data and self.rows is not None else []),
            *(
                each.hint(CUT, ROWS if data else None)
                for each in self.shards
                if model > 1 and each.divides % model == 0
            ),
        )

    def to_trace(self, shards: Sequence[ShardPlace] = ()) -> tuple[NewHint, ...]:
        """The hints with which costs are traced, perhaps with some that cut layers: sizes do not matter there."""
        data = self.rows is not None
        axes = [STAGE, *([DATA] if data else []), *([MODEL] if shards else [])]
        names = [f"{name}=None" for name in self.own_axes if name not in axes]
        names += [f'{ROWS}="{DATA}"'] if data else []
        names += [f'{CUT}{number}="{MODEL}"' for number in range(len(shards))]
        mesh = f"mesh({', '.join(f'{axis}=1' for axis in axes)})" + (f"; axes({', '.join(names)})" if names else "")
        hints = self.hints(mesh, "count=1", "", "stages", data=data)
        return *hints, *(each.hint(f"{CUT}{k}", ROWS if data else None) for k, each in enumerate(shards))


@dataclass(frozen=True)
class CompiledPlace:
    """The compiled step: its file, its hints, which the program runs with, and axes of meshes of the program's own."""

    path: str
    hints: tuple[NewHint, ...]
    trial: HintTrial
    own_axes: tuple[str, ...] = ()

    def with_axis(self, project: HintedProject, name: str) -> CompiledPlace:
        """The step where layouts name an axis of a mesh of the program's own."""
        own = (*self.own_axes, name)
        axes = ", ".join(f"{each}=None" for each in own)
        mesh, *others = self.hints
        hints = replace(mesh, text=f"mesh({STAGE}=1); axes({axes})"), *others
        return replace(self, hints=hints, trial=project.tried(hints), own_axes=own)


def find_steps(project: HintedProject, entry: str, *, anywhere: bool = False) -> Iterator[CompiledPlace]:
    """The step of an entry, on a mesh of one device; with `anywhere`, the steps of other files after it.

    Raises:
        NoPlace: If nothing compiles it, or the codemod refuses each place.
    """
    module, _, name = entry.partition(":")
    own = _file_of(project, module)
    refused: list[str] = []
    left, seen, is_found = [(own, name)], set[str](), False
    if anywhere:
        # A script may call a method of what it imports, where gradients are taken rather than where they are not.
        files = sorted(
            project.files.values(), key=lambda each: (b"grad(" not in each.data, each.path.count("/"), each.path)
        )
        left += [(each.path, name) for each in files]
    while left:
        path, there = left.pop(0)
        if path in seen:
            continue
        seen.add(path)
        source = project.text(path)
        for site in step_sites(source, there.rpartition(".")[2]):
            mesh = NewHint(path, top_line(source, site.line), f"mesh({STAGE}=1)")
            hints = mesh, _at(path, site, "mjit")
            trial = project.tried(hints)
            if trial.accepted:
                is_found = True
                yield CompiledPlace(path, hints, trial)
            refused += (each for each in trial.refused if _NO_JIT not in each)
        if path == own or not anywhere:
            origins = list(imported_as(source, there))
            given = [(file, part) for origin, part in origins if (file := _find_file(project, origin)) is not None]
            if origins and not given and not is_found:
                _file_of(project, origins[-1][0])
            left[:0] = given
    last = name.rpartition(".")[2]
    if refused and not is_found:
        raise NoPlace("\n".join((f"the step `{last}` cannot be compiled for a mesh", *refused[:_MOST_NAMED])))
    if not is_found:
        raise NoPlace(
            f"{own}: no statement compiles `{last}`; write `@jax.jit` above the function that takes the gradient, and "
            "name that in --entry"
        )


def _at(path: str, site: HintSite, text: str) -> NewHint:
    return NewHint(path, site.line, text, site.around)


def _file_of(project: HintedProject, module: str) -> str:
    found = _find_file(project, module)
    if found is None:
        raise NoPlace(f"none of the files given is the module `{module}`; give its file or folder as PATH")
    return found


def _find_file(project: HintedProject, module: str) -> str | None:
    place = module.replace(".", "/")
    tails = (f"/{place}.py", f"/{place}/__init__.py")
    fitting = [path for path in project.files if f"/{path}".endswith(tails)]
    return min(fitting, key=lambda path: (path.count("/"), path), default=None)


def places(
    project: HintedProject,
    step: CompiledPlace,
    operations: Sequence[LineOperations],
    gradients: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[HintPlaces, tuple[NewHint, ...]]]:
    """Where the hints belong, the likeliest place of the layers first, and hints that may name the rows of a batch.

    Args:
        project: The files.
        step: The compiled step.
        operations: What the step computes on which lines of these files.
        gradients: The calls of gradients, with their lines in these files.

    Raises:
        NoPlace: If there is no gradient or nothing that may be cut, or the codemods refuse all places.
    """
    gradient, text, said, batch = _gradient(project, step, gradients)
    hints = (*step.hints, replace(gradient, text=text))
    files = sorted({path for each in operations for path, _ in each.lines if path in project.files})
    loops, others = layer_candidates({path: project.text(path) for path in files}, operations)
    refused: list[str] = []
    accepted = 0
    for candidate in [*loops, *others][:_MOST_TRIED]:
        source = project.text(candidate.path)
        tried = [_at(candidate.path, site, "stages") for site in sites(source, candidate.statement, "stages")]
        layers = next((each for each in tried if project.tried((*hints, each)).accepted), None)
        if layers is None:
            where = f"{candidate.path}:{candidate.line}: {candidate.share:.0%} of the operations"
            reasons = [reason for each in tried[:1] for reason in project.tried((*hints, each)).refused[:1]]
            refused += [f"{where}: {_sentence(reason)}" for reason in reasons]
            continue
        accepted += 1
        found = HintPlaces(
            step.hints[0],
            step.hints[1:],
            replace(gradient, text=_own(text)),
            layers,
            None,
            candidate,
            said,
            (),
            own_axes=step.own_axes,
        )
        yield _with_the_rest(project, found, operations, batch)
        if accepted == _MOST_ACCEPTED:
            return
    if not accepted:
        raise NoPlace("\n".join(("nothing that this step computes can be cut into stages", *refused[:_MOST_NAMED])))


def _sentence(reason: str) -> str:
    """A refusal without its place, which is said already."""
    return reason.partition(": ")[2]


def _own(text: str) -> str:
    """The arguments of a `microbatch` behind its number."""
    return text.removeprefix("microbatch(count=1").removesuffix(")").removeprefix(", ")


def _gradient(
    project: HintedProject, step: CompiledPlace, gradients: Sequence[Mapping[str, Any]]
) -> tuple[NewHint, str, str, frozenset[object]]:
    """The place of the gradient, its hint, what is said of it, and the batch among its arguments."""
    if not gradients:
        raise NoPlace(
            f"{step.path}:{step.hints[-1].line}: the step takes no gradient by `jax.grad`, `jax.value_and_grad` or "
            "those of Flax nnx and Equinox, and microbatches are of a gradient"
        )
    refused: list[str] = []
    for call, (path, line) in ((each, place) for each in gradients for place in dict.fromkeys(each["places"])):
        source = project.text(path)
        for statement in statements_at(source, line):
            if is_in_loop(source, statement):
                refused.append(
                    f"{path}:{line}: a loop of the step takes this gradient again and again; take it once, of the "
                    "whole batch, of which microbatches are made"
                )
                continue
            for site in sites(source, statement, "microbatch"):
                place = _at(path, site, "")
                found = _microbatch(project, step, place, call)
                if not isinstance(found, tuple):
                    refused += found
                    continue
                return place, *found
    raise NoPlace("\n".join(("the batch cannot be cut into microbatches", *dict.fromkeys(refused))))


def _microbatch(
    project: HintedProject, step: CompiledPlace, place: NewHint, call: Mapping[str, Any]
) -> tuple[str, str, frozenset[object]] | list[str]:
    """The hint at a place of a recorded gradient, what is said of it, and the batch; or why there is none."""
    bare = replace(place, text="microbatch(count=1)")
    trial = project.tried((*step.hints, bare))
    known = _arguments(trial.results, place.path) if trial.accepted else None
    wanted, said = _recorded(call, known)
    if known is not None and (wanted is None or wanted == known):
        return bare.text, said, frozenset() if wanted is None else wanted[0]
    if wanted is None:
        better = next((match[1] for each in trial.refused if (match := _BETTER.search(each))), None)
        if better is not None and project.tried((*step.hints, replace(place, text=better))).accepted:
            return better, "batch: what the loss closes over", frozenset()
        return list(trial.refused)
    text = f"microbatch(count=1{_written(wanted, known)})"
    trial = project.tried((*step.hints, replace(place, text=text)))
    return (text, said, wanted[0]) if trial.accepted else list(trial.refused)


def _arguments(results: Sequence[Rewrite], path: str) -> tuple[frozenset[object], frozenset[object]] | None:
    """The batch and the keys of the one `microbatch` that the codemod has written."""
    (result,) = (each for each in results if each.path == path)
    for node in ast.walk(parse_quietly(SourceText.decode(result.result).text)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) in _MICROBATCH:
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            return _names(given.get("argnum")), _names(given.get("rng"))
    return None


def _names(value: ast.expr | None) -> frozenset[object]:
    if value is None:
        return frozenset()
    try:
        found = ast.literal_eval(value)
    except ValueError:
        return frozenset()
    return frozenset() if found is None else frozenset(found if isinstance(found, tuple) else (found,))


def _recorded(
    call: Mapping[str, Any], known: tuple[frozenset[object], frozenset[object]] | None
) -> tuple[tuple[frozenset[object], frozenset[object]] | None, str]:
    """The batch and the keys as the recorded call shows them, None if it shows no batch; and what is said of them."""
    count = int(call["count"])
    arguments = {(int(name) if name.isdigit() else name): each for name, each in call["arguments"].items()}
    rows = {name: int(each["rows"]) for name, each in arguments.items() if each["rows"] is not None}
    keys = frozenset(name for name, each in arguments.items() if each["key"])
    if known is not None:
        # A batch that the loss closes over is behind all that the call has.
        batch = {name % count if isinstance(name, int) and name < 0 and count else name for name in known[0]}
        if any(isinstance(name, int) and name >= count for name in batch):
            return None, "the batch is a value that the loss closes over"
        chosen = {rows[name] for name in batch if name in rows}
        size = chosen.pop() if len(chosen) == 1 and batch <= rows.keys() else None
    else:
        size = None
    if size is None:
        if not rows:
            return None, ""
        size = next(iter(rows.values()))
    same = frozenset(name for name, each in rows.items() if each == size)
    said = f"batch: {_listed(same)} ({size} rows)"
    said += f", key: {_listed(keys)}" if keys else ""
    others = {name: each for name, each in rows.items() if each != size}
    if others:
        said += f"; is {_listed(frozenset(others))} ({', '.join(map(str, others.values()))} rows) the same for all?"
    return (same, keys), said


def _listed(names: frozenset[object]) -> str:
    ordered = sorted(names, key=str)
    return f"argument{'s' if len(ordered) > 1 else ''} {', '.join(map(str, ordered))}"


def _written(
    wanted: tuple[frozenset[object], frozenset[object]], known: tuple[frozenset[object], frozenset[object]] | None
) -> str:
    batch, keys = wanted
    text = "" if known is not None and known[0] == batch else f", argnum={_value(batch)}"
    if known is not None and known[1] == keys:
        return text
    return f"{text}, rng={_value(keys)}" if keys or known is not None else text


def _value(names: frozenset[object]) -> str:
    ordered = [f'"{name}"' if isinstance(name, str) else str(name) for name in sorted(names, key=str)]
    return "None" if not ordered else ordered[0] if len(ordered) == 1 else f"({', '.join(ordered)})"


def _with_the_rest(
    project: HintedProject, found: HintPlaces, operations: Sequence[LineOperations], batch: frozenset[object]
) -> tuple[HintPlaces, tuple[NewHint, ...]]:
    """The places with other steps that need the mesh and what is said besides, and hints that may name the rows."""
    trial = project.tried(found.to_trace())
    while True:
        others = {
            (each.path, each.line)
            for each in trial.remarks
            if _ANOTHER_STEP in each.reason and each.path in project.files
        }
        new = [
            _at(path, site, "mjit") for path, line in sorted(others) for site in compiled_at(project.text(path), line)
        ]
        wider = [each for step in new if step not in found.steps for each in _with_step(project, found, step)]
        added = next((each for each in wider if project.tried(each.to_trace()).accepted), None)
        if added is None:
            break
        found = added
        trial = project.tried(found.to_trace())
    remarks = tuple(f"{each.path}:{each.line}: {each.reason}" for each in trial.remarks)
    path, statement = found.candidate.path, found.candidate.statement
    rows = [_at(path, site, text) for site, text in row_hints(project.text(path), statement, ROWS)]
    files = sorted({path for each in operations for path, _ in each.lines if path in project.files})
    lines = {place for each in operations for place in each.lines}
    for path in files:
        mapped = mapped_sites(project.text(path))
        rows += [_at(path, site, f'shard("{ROWS}")') for site in mapped if (path, site.line) in lines]
    own = project.text(found.gradient.path)
    for statement_of_gradient in statements_at(own, found.gradient.line):
        hints = parameter_hints(own, statement_of_gradient, batch, ROWS)
        rows += [_at(found.gradient.path, site, text) for site, text in hints]
    may = tuple(each for each in dict.fromkeys(rows) if project.tried(replace(found, rows=each).to_trace()).accepted)
    return replace(found, remarks=remarks), may


def _with_step(project: HintedProject, found: HintPlaces, step: NewHint) -> Iterator[HintPlaces]:
    """The places with another step, the mesh above all of its file or in that of the step."""
    steps = (*found.steps, step)
    if step.path != found.mesh.path:
        yield replace(found, steps=steps)
    own = [each.line for each in (found.mesh, *steps) if each.path == step.path]
    line = min(top_line(project.text(step.path), each) for each in own)
    yield replace(found, mesh=replace(found.mesh, path=step.path, line=line), steps=steps)
