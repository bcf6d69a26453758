"""Run one function in both programs, and judge what they return: the comparison is made in a process of neither."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from mmrewrite.launch.watchman import temporary_folder
from mmrewrite.mirror.child_process import Mirror, NotRun, environment, run_module
from mmrewrite.mirror.limits import ProgramLimits
from mmrewrite.project.verify_entries import Entry

Status = Literal["equal", "different", "broken", "not rewritten", "not run"]
Reference = Literal["original", "microbatched"]
Phase = Callable[[str], AbstractContextManager[None]]

_DOUBLE = ("float64", "complex128")
_SINGLE = ("float32", "complex64")
# Rounding shrinks with the machine epsilon, by 2e-9 from float32 to float64, and a mistake does not. Between them lies
# what amplifies rounding, such as Adam's division by the size of a gradient.
_SHRINKS = 1e-5
# Runs of disturbed arguments: an element that is one of two values by chance is the same in all of them, and another in
# the other program, once in 2**16 cases.
_DISTURBED = 16


@dataclass(frozen=True)
class Checked:
    """The comparison of one function.

    Attributes:
        entry: The function, and the one that returns its arguments.
        status: The verdict.
        where: The devices on which the two programs ran, as a sentence.
        rows: For each argument and result, the row that `mmruntime._commands.compare` reports, and if a run in another
            precision was needed, its difference as "float64" or "float32", and as "rounding" whether that shows it to
            be rounding alone.
        notes: Remarks about what was compared.
        problem: Why the function could not be compared, or how the rewritten program failed.
        details: The traceback that belongs to `problem`.
        reference: What the results were compared with: those of the original, or those of the same microbatches with
            the same random numbers on one device.
    """

    entry: Entry
    status: Status
    where: str
    rows: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    problem: str | None = None
    details: str = ""
    reference: Reference = "original"


@dataclass(frozen=True)
class ProgramSettings:
    """How programs are run and compared.

    Attributes:
        devices: Number of virtual devices of the rewritten program; None for the machine's own, in both.
        rtol: Relative tolerance; None for the default of each type.
        atol: Absolute tolerance; None for the default of each array.
        limits: Bounds of each process.
        own: The things that each microbatch has of its own, such as random numbers, so that the whole batch gives other
            values.
    """

    devices: int | None
    rtol: float | None
    atol: float | None
    limits: ProgramLimits
    own: tuple[str, ...]


_NOTHING = (
    "there is nothing to compare: the function returns no array and changes none of its arguments; return what it "
    "computes"
)


def check_programs(entry: Entry, mirror: Mirror, settings: ProgramSettings, phase: Phase) -> Checked:
    """Run a function in both programs and compare its arguments and results.

    Args:
        entry: The function, in a module of the mirror.
        mirror: The rewritten program.
        settings: How to run and compare.
        phase: What each run is shown by while it lasts.
    """
    with temporary_folder("mmrewrite-verify-") as folder:
        runs = _ProgramRuns(entry, mirror, settings, phase, folder)
        try:
            first, second = runs.original(), runs.rewritten()
            rows, notes, reference = _judged(runs, first, second)
        except _ProgramFailed as failed:
            return Checked(entry, failed.status, "", problem=failed.problem, details=failed.details)
    if not any(row["role"] == "result" and (row["comparable"] or row["problem"]) for row in rows):
        return Checked(entry, "not run", "", problem=_NOTHING)
    status: Status = "different" if any(row["problem"] for row in rows) else "equal"
    real = settings.devices is None
    kind = second.document["platform"] if real else "virtual"
    where = (
        f"the original on {'the first device' if real else '1 device'}, the rewritten program on "
        f"{second.document['devices']} {kind} devices"
    )
    notes = (*_remarks(entry, second.document), *notes)
    return Checked(entry, status, where, rows, notes, reference=reference)


@dataclass(frozen=True)
class _ProgramRun:
    """What a program said, and the folder with what it saved."""

    document: Mapping[str, Any]
    folder: str


class _ProgramFailed(Exception):
    """A program that did not get to its end."""

    def __init__(self, status: Status, problem: str, details: str) -> None:
        super().__init__(problem)
        self.status: Status = status
        self.problem, self.details = problem, details


class _ProgramRuns:
    """The two programs of one function, each run as often as it is needed."""

    def __init__(self, entry: Entry, mirror: Mirror, settings: ProgramSettings, phase: Phase, folder: str) -> None:
        self._entry, self._mirror, self.settings, self._phase, self._folder = entry, mirror, settings, phase, folder
        names = [text.partition(":")[0] for text in (entry.step, entry.arguments)]
        self._originals = [root for root in map(mirror.source_root, names) if root is not None]
        # The mirror goes first; modules outside of it, such as one beside a script, are the original's.
        self._rewritten = [root for root in map(mirror.root, names) if root is not None] + self._originals

    def original(self, *, bits: int | None = None, kept: str | None = None, throughout: bool = False) -> _ProgramRun:
        """The original program, on one device."""
        variables = environment(None if self.settings.devices is None else 1)
        try:
            run = self._run("the original program", self._originals, variables, bits, kept, throughout)
        except NotRun as problem:
            raise _ProgramFailed("not run", str(problem), problem.details) from None
        if "error" in run.document:
            sentence = f"the original program fails by itself: {run.document['error']}"
            raise _ProgramFailed("not run", sentence, run.document["traceback"])
        return run

    def rewritten(
        self,
        *,
        bits: int | None = None,
        kept: str | None = None,
        throughout: bool = False,
        on_one_device: bool = False,
    ) -> _ProgramRun:
        """The rewritten program on its mesh, or as plain JAX on one device."""
        named = self._mirror.named
        what = "the rewritten program on one device" if on_one_device else "the rewritten program"
        options = ["--on-one-device"] if on_one_device else []
        try:
            variables = environment(self.settings.devices)
            run = self._run(what, self._rewritten, variables, bits, kept, throughout, options)
        except NotRun as problem:
            raise _ProgramFailed("broken", named(str(problem)), named(problem.details)) from None
        if "error" in run.document:
            raise _ProgramFailed("broken", named(run.document["error"]), named(run.document["traceback"]))
        return run

    def disturbed(self, *, on_one_device: bool = False) -> _ProgramRun:
        """The original program, or the rewritten one on one device, with arguments changed in their last place."""
        roots, count = self._rewritten if on_one_device else self._originals, self.settings.devices
        what = f"{'the rewritten program on one device' if on_one_device else 'the original program'}, disturbed"
        variables = environment(count if on_one_device else None if count is None else 1)
        options = ["--count", str(_DISTURBED), *(["--on-one-device"] if on_one_device else [])]
        try:
            run = self._run(what, roots, variables, None, None, False, options, "_commands.disturb")
        except NotRun as problem:
            raise _ProgramFailed("not run", str(problem), problem.details) from None
        if "error" in run.document:
            raise _ProgramFailed("not run", run.document["error"], run.document["traceback"])
        return run

    def _run(
        self,
        what: str,
        roots: Sequence[str],
        variables: Mapping[str, str],
        bits: int | None,
        kept: str | None,
        throughout: bool,
        options: Sequence[str] = (),
        module: str = "_commands.verify",
    ) -> _ProgramRun:
        folder = tempfile.mkdtemp(dir=self._folder)
        # One hash seed: code that iterates over a set of strings must not make the two programs differ.
        variables = {**variables, "PYTHONHASHSEED": "0"}
        if bits is not None:
            variables["JAX_ENABLE_X64"] = "1" if bits == 64 else "0"
            options = [*options, "--bits", str(bits), *([] if kept is None else ["--kept", kept])]
            options += ["--throughout"] if throughout else []
            what = f"{what} in {_precision(bits, throughout)}"
        arguments = [self._entry.step, self._entry.arguments, "--save", folder, *options]
        name = f"{self._entry.step}: {what}"
        with self._phase(name):
            document, _ = run_module(module, arguments, roots, variables, name, self.settings.limits)
        return _ProgramRun(document, folder)

    def compared(
        self, before: _ProgramRun, after: _ProgramRun, spread: _ProgramRun | None = None
    ) -> tuple[Mapping[str, Any], ...]:
        """A row for each argument and result of two runs, made by a process that imports nothing of theirs."""
        options = [] if self.settings.rtol is None else ["--rtol", str(self.settings.rtol)]
        options += [] if self.settings.atol is None else ["--atol", str(self.settings.atol)]
        options += [] if spread is None else ["--spread", spread.folder]
        name = f"{self._entry.step}: the comparison"
        variables = environment(1)
        with self._phase(name):
            try:
                document, _ = run_module(
                    "_commands.compare",
                    [before.folder, after.folder, *options],
                    (),
                    variables,
                    name,
                    self.settings.limits,
                )
            except NotRun as problem:
                raise _ProgramFailed("not run", str(problem), problem.details) from None
        if "error" in document:
            raise _ProgramFailed("broken", str(document["error"]), "")
        homes = after.document.get("homes", {})
        return tuple({**row, "where": homes.get(row["name"], row["where"])} for row in document["rows"])


def _judged(
    runs: _ProgramRuns, first: _ProgramRun, second: _ProgramRun
) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...], Reference]:
    """The rows of the comparison, remarks about it, and what the results were compared with."""
    rows = runs.compared(first, second)
    reference: Reference = "original"
    reference_run = first
    notes: tuple[str, ...] = ()
    if runs.settings.own and any(_differs(row) and row["role"] == "result" for row in rows):
        reference_run = runs.rewritten(on_one_device=True)
        plain = runs.compared(reference_run, second)
        same = {(row["role"], row["name"]): row for row in plain}
        # Names, shapes, types and arguments stay those of the comparison with the original.
        rows = tuple(
            same.get((row["role"], row["name"]), row) if _differs(row) and row["role"] == "result" else row
            for row in rows
        )
        reference = "microbatched"
        notes = (
            f"microbatches have {' and '.join(runs.settings.own)} of their own, so values are compared with those of "
            "the same microbatches, with the same random numbers, on one device, operation by operation",
        )
    for bits, throughout in ((64, False), (64, True), (32, False)):
        if not _is_needed(rows, bits, throughout):
            continue
        precision = _precision(bits, throughout)
        try:
            # First the run that compiles all there is, and so is the one to find what takes no other type.
            after = runs.rewritten(bits=bits, throughout=throughout)
            kept = after.document.get("kept")
            before = (
                runs.rewritten(bits=bits, kept=kept, throughout=throughout, on_one_device=True)
                if reference == "microbatched"
                else runs.original(bits=bits, kept=kept, throughout=throughout)
            )
            other = runs.compared(before, after)
        except _ProgramFailed as failed:
            what = f"no run in {precision}, which would tell rounding from a mistake: {failed.problem}"
            notes = (*notes, what)
            continue
        if kept is not None:
            notes = (*notes, f"`{kept}` is as given in the run in {precision} too: the step takes no other type there")
        rows = tuple(_told_apart(rows, other, bits, precision))
    if any(map(_differs, rows)) and all(_is_float(row) for row in rows if row["problem"]):
        try:
            spread = runs.disturbed(on_one_device=reference == "microbatched")
            rows = tuple(_within_spread(rows, runs.compared(reference_run, second, spread)))
            ran = "the same microbatches on one device" if reference == "microbatched" else "the original"
            notes = (
                *notes,
                f"{ran} ran {_DISTURBED} times with arguments changed in their last place: what moves there as far as "
                "it differs here is rounding",
            )
        except _ProgramFailed as failed:
            notes = (*notes, f"no run of disturbed arguments, which may show rounding as well: {failed.problem}")
    return rows, notes, reference


def _within_spread(
    rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """The rows, where what the original differs by alone, if its arguments are disturbed, is rounding."""
    found = {(row["role"], row["name"]): row for row in others}
    for row in rows:
        spread = found.get((row["role"], row["name"]), {}).get("spread")
        yield (
            row if spread is None or not _differs(row) else {**row, "problem": None, "rounding": True, "spread": spread}
        )


def _precision(bits: int, throughout: bool) -> str:
    return f"float{bits}{' throughout' if throughout else ''}"


def _is_needed(rows: Sequence[Mapping[str, Any]], bits: int, throughout: bool) -> bool:
    """Whether a run in another precision may settle what differs by now."""
    unsettled = [row for row in rows if _differs(row) and _is_float(row)]
    if bits == 32:
        # What comes of float64 is rounded to less in a run in float32, where a mistake stays what it is.
        return bool(unsettled) and any(row["type"] in _DOUBLE and row["where"] != "host" for row in rows)
    if throughout and any(row["problem"] and row not in unsettled for row in rows):
        # Then the verdict is known.
        return False
    # What is float64 already is not seen more closely.
    return any(row["type"] not in _DOUBLE for row in unsettled)


def _differs(row: Mapping[str, Any]) -> bool:
    """Whether an array that both programs have, in one shape and type, has other values."""
    return bool(row["problem"]) and bool(row["comparable"])


def _is_float(row: Mapping[str, Any]) -> bool:
    return "float" in row["type"] or "complex" in row["type"]


def _told_apart(
    rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], bits: int, precision: str
) -> Iterator[Mapping[str, Any]]:
    """The rows, with what differs by rounding alone told from what is another value, by a run in another precision."""
    found = {(row["role"], row["name"]): row for row in others}
    types = _DOUBLE if bits == 64 else _SINGLE
    key = f"float{bits}"
    for row in rows:
        other = found.get((row["role"], row["name"]))
        if not _differs(row) or not _is_float(row) or other is None or not other["comparable"]:
            yield row
            continue
        coarse, fine = (row, other) if bits == 64 else (other, row)
        small, large = fine["absolute"], coarse["absolute"]
        # A mistake is as large in both, whatever type the result is put into in the end.
        if small is not None and small <= _SHRINKS * (large or 0.0):
            problem = None
        elif key in row:
            # Told already, of a run in which fewer types were wider.
            yield row
            continue
        elif other["type"] not in types:
            nothing = f"the run in {precision} makes it {other['type']} as well, so it tells nothing"
            yield {**row, "problem": f"{row['problem']}; {nothing}"}
            continue
        else:
            difference = "infinity or NaN" if other["absolute"] is None else f"{other['absolute']:.2g}"
            problem = f"{row['problem']}; in {precision} the largest difference is {difference}"
        yield {**row, "problem": problem, key: other["absolute"], "rounding": problem is None}


def _remarks(entry: Entry, document: Mapping[str, Any]) -> Iterator[str]:
    if not document["compiled_for_a_mesh"]:
        name = entry.step.partition(":")[2]
        yield (
            f"`{name}` is not compiled for a mesh, so its tasks ran one by one or as part of plain `jax.jit`; "
            "name the step that has the hint `mjit` to verify the pipeline"
        )
    for place, argument in document["like_arguments"].items():
        yield f"{place} has the paths, shapes and types of {argument}: its gradients, or its new value"
