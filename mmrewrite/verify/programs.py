"""Run one function in both programs, and judge what they return: the comparison is made in a process of neither."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrewrite.files.walk import shown
from mmrewrite.launch.watchman import temporary_folder
from mmrewrite.mirror.child_process import ONE_DEVICE_FALLBACK, Mirror, NotRun, environment, run_module
from mmrewrite.mirror.limits import ProgramLimits
from mmrewrite.project.verify_entries import Entry
from mmrewrite.tracking import Phase
from mmrewrite.verify.before import Before
from mmrewrite.verify.judge import DISTURBED, Key, Precision, ProgramFailed, Reference, judged, most_runs
from mmrewrite.verify.judge import Status as Status


@dataclass(frozen=True)
class Checked:
    """The comparison of one function.

    Attributes:
        entry: The function, and the one that returns its arguments.
        status: The verdict.
        where: The devices on which the two programs ran, as a sentence.
        rows: For each argument and result, the row that `mmruntime._commands.compare` reports. If it differs, also:
            as "float64" or "float32" its difference in that precision, if a run in it was needed; as "spread" how far
            the original moves alone, if that is why it may; as "original_error" and "rewritten_error" how far both
            programs are from float64, by the "error_measure"; as "rounding" whether all this shows it to be rounding
            alone; as "tolerated" that nothing could be shown, and its type allows as much.
        notes: Remarks about what was compared.
        warnings: What the rewritten program has warned of, with its lines.
        plan: The plan that its step ran by, as `plan` has it, if that is wanted.
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
    warnings: tuple[str, ...] = ()
    plan: Mapping[str, Any] | None = None


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
        before: What the original is, if that is not the source; None if it is.
        planned: Whether the plan that a rewritten step runs by is wanted too.
    """

    devices: int | None
    rtol: float | None
    atol: float | None
    limits: ProgramLimits
    own: tuple[str, ...]
    before: Before | None = None
    planned: bool = False


_NOTHING = (
    "there is nothing to compare: the function returns no array and changes none of its arguments; return what it "
    "computes"
)

_CACHE = "JAX_COMPILATION_CACHE_DIR"


def check_programs(entry: Entry, mirror: Mirror, settings: ProgramSettings, phase: Phase) -> Checked:
    """Run a function in both programs and compare its arguments and results.

    Args:
        entry: The function, in a module of the mirror.
        mirror: The rewritten program.
        settings: How to run and compare.
        phase: What each run is shown by while it lasts.
    """
    with temporary_folder("mmrewrite-verify-") as folder:
        runs = ProgramRuns(entry, mirror, settings, phase, folder)
        try:
            first = runs.original()
            runs.check_original(first)
            second = runs.rewritten(planned=settings.planned)
            found = judged(runs, first, second)
        except ProgramFailed as failed:
            return Checked(entry, failed.status, "", problem=failed.problem, details=failed.details)
    if not any(row["role"] == "result" and (row["comparable"] or row["problem"]) for row in found.rows):
        return Checked(entry, "not run", "", problem=_NOTHING)
    status: Status = "different" if any(row["problem"] for row in found.rows) else "equal"
    real = settings.devices is None
    kind = second.document["platform"] if real else "virtual"
    where = (
        f"the original{f' as of {settings.before.revision}' if settings.before is not None else ''} on "
        f"{'the first device' if real else '1 device'}, the rewritten program on "
        f"{second.document['devices']} {kind} devices"
    )
    notes = (*_remarks(entry, second.document), *found.notes)
    warnings = tuple(map(mirror.told, second.document.get("warnings", ())))
    plan = second.document.get("plan")
    return Checked(entry, status, where, found.rows, notes, reference=found.reference, warnings=warnings, plan=plan)


@dataclass(frozen=True)
class ProgramRun:
    """The document that a program printed, and the folder with the arrays that it saved."""

    document: Mapping[str, Any]
    folder: str


@dataclass(frozen=True)
class Compared:
    """Two runs compared.

    Attributes:
        rows: A row for each argument and result, by role and name.
        epsilon: The spacing at one of the shortest float type among them and what the programs compute in.
    """

    rows: Mapping[Key, Mapping[str, Any]]
    epsilon: float


class ProgramRuns:
    """The two programs of one function, each run as often as it is needed."""

    def __init__(self, entry: Entry, mirror: Mirror, settings: ProgramSettings, phase: Phase, folder: str) -> None:
        self._entry, self._mirror, self.settings, self._phase, self._folder = entry, mirror, settings, phase, folder
        self._count = 0
        names = [text.partition(":")[0] for text in (entry.step, entry.arguments)]
        self._originals = [root for root in map(mirror.source_root, names) if root is not None]
        # The mirror goes first; modules outside of it, such as one beside a script, are the original's.
        self._rewritten = [root for root in map(mirror.root, names) if root is not None] + self._originals
        if settings.before is not None:
            self._originals = settings.before.roots(self._originals)

    def original(self, precision: Precision | None = None, saved: ProgramRun | None = None) -> ProgramRun:
        """The original program, on one device; with the arguments of an earlier run of it, if that is given."""
        told, variables = self._of_original, self._environment_of_original()
        fails = "the original program fails by itself: "
        return self._run("original", self._originals, variables, precision, saved, told=told, fails=fails)

    def _environment_of_original(self) -> dict[str, str]:
        variables = environment(None if self.settings.devices is None else 1)
        # A revision may be of a program that was rewritten before, and changed by hand since.
        return variables if self.settings.before is None else variables | {ONE_DEVICE_FALLBACK: "1"}

    def _of_original(self, text: str) -> str:
        return text if self.settings.before is None else self.settings.before.named(text)

    def check_original(self, run: ProgramRun) -> None:
        """Check that the original was what a revision has, where it is not the source.

        Raises:
            ProgramFailed: If it has imported a file as it is now, or none of those that differ.
        """
        before, imported = self.settings.before, run.document.get("imported", ())
        if before is None:
            return
        if (path := before.loaded_now(imported)) is not None:
            raise ProgramFailed(
                "not run",
                f"the original has imported {shown(path)} as it is now, not as of {before.revision}; import it "
                "from the folders of the program, not by a path of this machine",
                "",
            )
        if not before.reaches(imported):
            raise ProgramFailed(
                "not run",
                f"the original imports no file that differs from {before.revision}; name the step that does, or "
                "another revision",
                "",
            )

    def rewritten(
        self,
        precision: Precision | None = None,
        saved: ProgramRun | None = None,
        *,
        on_one_device: bool = False,
        planned: bool = False,
    ) -> ProgramRun:
        """The rewritten program on its mesh, or as plain JAX on one device."""
        how = " on one device" if on_one_device else ""
        options = ["--on-one-device"] * on_one_device + ["--plan"] * planned
        roots, told, variables = self._rewritten, self._mirror.told, environment(self.settings.devices)
        # Without its mesh it may lack what it needs, as the axes of a `shard_map`: no mistake of the rewrite.
        status: Status = "not run" if on_one_device else "broken"
        return self._run("rewritten", roots, variables, precision, saved, how, options, status=status, told=told)

    def disturbed(
        self,
        precision: Precision | None = None,
        saved: ProgramRun | None = None,
        *,
        epsilon: float | None = None,
        on_one_device: bool = False,
    ) -> ProgramRun:
        """The original program, or the rewritten one on one device, with arguments changed in their last place.

        With `epsilon` they are changed as if they were rounded once more to the type with that spacing, and the program
        rounds wherever it says so: XLA leaves that out inside of one program, and a step in several cannot.
        """
        roots, count = self._rewritten if on_one_device else self._originals, self.settings.devices
        program, how = ("rewritten", " on one device, disturbed") if on_one_device else ("original", ", disturbed")
        variables = environment(count) if on_one_device else self._environment_of_original()
        options = ["--count", str(DISTURBED), *(["--on-one-device"] if on_one_device else [])]
        if epsilon is not None:
            options += ["--epsilon", str(epsilon)]
            flags = f"{variables.get('XLA_FLAGS', '')} --xla_allow_excess_precision=false"
            variables = {**variables, "XLA_FLAGS": flags.strip()}
        return self._run(program, roots, variables, precision, saved, how, options, "_commands.disturb")

    def _run(
        self,
        program: str,
        roots: Sequence[str],
        variables: Mapping[str, str],
        precision: Precision | None,
        saved: ProgramRun | None,
        how: str = "",
        options: Sequence[str] = (),
        module: str = "_commands.verify",
        *,
        status: Status = "not run",
        told: Callable[[str], str] = str,
        fails: str = "",
    ) -> ProgramRun:
        """Run a program; if it does not get to its end, the function has the `status`, in messages as they are `told`.

        An error of the program's own is told after what `fails`.
        """
        folder = tempfile.mkdtemp(dir=self._folder)
        self._count += 1
        shown = f"{self._count}/{max(self._count, most_runs(self.settings.own))} {program}{how}"
        name = f"{self._entry.step}: the {program} program{how}"
        # One hash seed: code that iterates over a set of strings must not make the two programs differ.
        variables = {**self._compiled_quickly(variables), "PYTHONHASHSEED": "0"}
        if precision is not None:
            bits, kept = precision.bits, precision.kept
            variables["JAX_ENABLE_X64"] = "1" if bits == 64 else "0"
            options = [*options, "--bits", str(bits), *([] if kept is None else ["--kept", kept])]
            options += ["--throughout"] if precision.throughout else []
            options += ["--saved", saved.folder] if saved is not None else []
            shown, name = f"{shown} in float{bits}", f"{name} in {precision}"
        arguments = [self._entry.step, self._entry.arguments, "--save", folder, *options]
        try:
            with self._phase(shown) as tell:
                document, _ = run_module(module, arguments, roots, variables, name, self.settings.limits, tell)
        except NotRun as problem:
            raise ProgramFailed(status, told(str(problem)), told(problem.details)) from None
        if "error" in document:
            raise ProgramFailed(status, told(f"{fails}{document['error']}"), told(document["traceback"]))
        return ProgramRun(document, folder)

    def _compiled_quickly(self, variables: Mapping[str, str]) -> dict[str, str]:
        """With variables by which runs compile in little time, as each program runs once or a few times.

        What one run has compiled, such as the operations that make the arguments, the others take from a folder.
        """
        found: dict[str, str] = {}
        if _CACHE not in variables:
            found = {f"JAX_PERSISTENT_CACHE_MIN_{bound}": "-1" for bound in ("COMPILE_TIME_SECS", "ENTRY_SIZE_BYTES")}
            found[_CACHE] = os.path.join(self._folder, "compiled")
        if self.settings.devices is not None:
            # Those of LLVM: without them it takes half of the time.
            found["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        return {**found, **variables}

    def compared(
        self,
        before: ProgramRun,
        after: ProgramRun,
        *,
        spread: ProgramRun | None = None,
        its_spread: ProgramRun | None = None,
        reference: ProgramRun | None = None,
        its_reference: ProgramRun | None = None,
        shortest: float = 0.0,
    ) -> Compared:
        """Two runs, by a process that imports nothing of theirs.

        Args:
            before: The one that is right.
            after: The other.
            spread: The first with disturbed arguments.
            its_spread: What the second is to compute, with disturbed arguments.
            reference: The first in float64, by which the rows have errors.
            its_reference: What the second is to compute, in float64, if it has random numbers of its own.
            shortest: The spacing of the shortest type that the programs compute in.
        """
        given = {
            "--rtol": self.settings.rtol,
            "--atol": self.settings.atol,
            "--spread": spread and spread.folder,
            "--its-spread": its_spread and its_spread.folder,
            "--reference": reference and reference.folder,
            "--its-reference": its_reference and its_reference.folder,
            "--epsilon": shortest or None,
        }
        options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
        name = f"{self._entry.step}: the comparison"
        variables = environment(1)
        with self._phase("comparison"):
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
                raise ProgramFailed("not run", str(problem), problem.details) from None
        if "error" in document:
            raise ProgramFailed("broken", str(document["error"]), "")
        homes = after.document.get("homes", {})
        rows = ({**row, "where": homes.get(row["name"], row["where"])} for row in document["rows"])
        return Compared({(row["role"], row["name"]): row for row in rows}, float(document["epsilon"]))


def _remarks(entry: Entry, document: Mapping[str, Any]) -> Iterator[str]:
    if not document["compiled_for_a_mesh"]:
        name = entry.step.partition(":")[2]
        yield (
            f"`{name}` is not compiled for a mesh, so its tasks ran one by one or as part of plain `jax.jit`; "
            "name the step that has the hint `mjit` to verify the pipeline"
        )
    for place, argument in document["like_arguments"].items():
        yield f"{place} has the paths, shapes and types of {argument}: its gradients, or its new value"
