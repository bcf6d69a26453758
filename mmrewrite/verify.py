"""The measured proof of a rewrite: run the original on one device and the result on many, and compare all arrays."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmrewrite.files.select import Rules, Selection, load_file, select_files
from mmrewrite.mirror.child_process import Mirror, NotRun, check_named, check_runtime, environment, mirrored, run_module
from mmrewrite.mirror.limits import USUAL, ProgramLimits
from mmrewrite.plan.read_placement import devices_needed, may_place, read_regions
from mmrewrite.project.facts import Facts, has_mark, read_facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach, holds
from mmrewrite.project.reexported_hints import read_hinted
from mmrewrite.project.verify_entries import Entry, hinted_entries
from mmrewrite.results import HintReference, Rewrite

Status = Literal["equal", "different", "broken", "not rewritten", "not run"]

# A hint by the path of its file.
_HintPlace = tuple[str, HintReference]


class NotVerified(Exception):
    """Why there is nothing to verify, as a sentence."""


@dataclass(frozen=True)
class VerifyRequest:
    """What to verify, and on which devices.

    Attributes:
        step: The function to call, as `module:function`; None for those with a `verify` hint.
        arguments: The function that returns its arguments, as `module:function`; None with `step`.
        devices: Number of virtual devices; None for as many as the meshes need.
        real: Whether to use the machine's own devices instead.
        rtol: Relative tolerance; None for the default of each type.
        atol: Absolute tolerance; None for the default of each type.
        limits: Bounds of each program's time, memory and output.
    """

    step: str | None
    arguments: str | None
    devices: int | None
    real: bool
    rtol: float | None
    atol: float | None
    limits: ProgramLimits = USUAL


@dataclass(frozen=True)
class Checked:
    """The comparison of one function.

    Attributes:
        entry: The function, and the one that returns its arguments.
        status: The verdict.
        where: The devices on which the two programs ran, as a sentence.
        rows: For each argument and result, the row that `mmruntime._commands.verify` reports.
        notes: Remarks about what was compared.
        problem: Why the function could not be compared, or how the rewritten program failed.
        details: The traceback that belongs to `problem`.
    """

    entry: Entry
    status: Status
    where: str
    rows: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    problem: str | None = None
    details: str = ""


@dataclass(frozen=True)
class Verified:
    """The whole proof.

    Attributes:
        checks: One for each function.
        patch: The SHA-256 of the output of `mmrewrite diff`, by which a reviewer knows what the proof is about.
        files: Path, and SHA-256 before and after, of each file that changes.
        not_covered: What the proof leaves open, a sentence each.
    """

    checks: tuple[Checked, ...]
    patch: str
    files: tuple[Mapping[str, str], ...]
    not_covered: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether any function is not proved to compute the same."""
        return any(check.status in ("different", "broken", "not rewritten") for check in self.checks)

    @property
    def incomplete(self) -> bool:
        """Whether any function could not be run."""
        return any(check.status == "not run" for check in self.checks)


def verify(
    paths: Sequence[str],
    rules: Rules,
    selection: Selection,
    results: Sequence[Rewrite],
    codemods: Collection[str],
    patch: bytes,
    request: VerifyRequest,
) -> Verified:
    """Call every requested function in both programs, and compare arguments and results.

    Args:
        paths: The files and folders of the run.
        rules: The files that the run ignores.
        selection: The files with hints.
        results: The rewrites of these files.
        codemods: The names of codemods, which hints may mention.
        patch: The output of `mmrewrite diff` for the same paths.
        request: The functions to call, the devices and the tolerances.

    Raises:
        NotVerified: If there is no function to call, or no file would change.
        NotRun: If this Python lacks JAX, or the rewritten program cannot be built.
    """
    read, _ = read_hinted(
        [file for file in selection.files if has_mark(file)],
        lambda wanted: selection.importing(wanted, rules),
        lambda file, reexports: read_facts(file, tuple(codemods), reexports=reexports),
    )
    modules = [facts for facts in read if isinstance(facts, Facts)]
    entries = _entries(modules, request)
    if not any(result.changed for result in results):
        raise NotVerified(
            "none of these files would change, so there is no rewritten program to compare with; `verify` goes before "
            "`apply`, and hints that are refused are listed below"
        )
    check_runtime("verify")
    devices = None
    if not request.real:
        regions = read_regions(select_files(paths, rules, may_place).files, results, load_file, tuple(codemods))
        devices = request.devices or devices_needed(regions)
    coverage = _Coverage(modules, results, codemods)
    checks = []
    with mirrored(paths, rules, results) as mirror:
        for entry in entries:
            checks.append(_check(entry, mirror, coverage, devices, request))
    files = tuple(
        {"path": result.path, "before": _hash(result.original), "after": _hash(result.result)}
        for result in results
        if result.changed
    )
    return Verified(tuple(checks), _hash(patch), files, tuple(_not_covered(checks, coverage, devices, results)))


def _entries(modules: Sequence[Facts], request: VerifyRequest) -> list[Entry]:
    if request.step is not None and request.arguments is not None:
        check_named(entry=request.step, args=request.arguments)
        return [Entry(request.step, request.arguments, "--entry")]
    entries = list(hinted_entries(modules))
    if not entries:
        raise NotVerified(
            "no function to call: write `# mm: verify(args=make_example_args)` on the step, or give --entry "
            "module:function and --args module:function"
        )
    return entries


def _check(entry: Entry, mirror: Mirror, coverage: _Coverage, devices: int | None, request: VerifyRequest) -> Checked:
    names = [text.partition(":")[0] for text in (entry.step, entry.arguments)]
    rewritten = [root for root in map(mirror.root, names) if root is not None]
    original = [root for root in map(mirror.source_root, names) if root is not None]
    if mirror.root(names[0]) is None:
        sentence = f"none of the files given is the module `{names[0]}`; give its file or folder as PATH"
        return Checked(entry, "not run", "", problem=sentence)
    if not coverage.is_rewritten(entry):
        return Checked(entry, "not rewritten", "")
    with tempfile.TemporaryDirectory(prefix="mmrewrite-verify-") as folder, tempfile.TemporaryDirectory() as other:
        try:
            alone = environment(None if request.real else 1)
            first = _call(entry, ["--save", folder], original, alone, "the original program", request.limits)
        except NotRun as problem:
            return Checked(entry, "not run", "", problem=str(problem), details=problem.details)
        if "error" in first:
            sentence = f"the original program fails by itself: {first['error']}"
            return Checked(entry, "not run", "", problem=sentence, details=first["traceback"])
        options = ["--save", other, "--against", folder]
        options += [] if request.rtol is None else ["--rtol", str(request.rtol)]
        options += [] if request.atol is None else ["--atol", str(request.atol)]
        try:
            # The mirror goes first; modules outside of it, such as one beside a script, are the original's.
            second = _call(
                entry, options, [*rewritten, *original], environment(devices), "the rewritten program", request.limits
            )
        except NotRun as problem:
            return Checked(
                entry, "broken", "", problem=mirror.named(str(problem)), details=mirror.named(problem.details)
            )
    if "error" in second:
        sentence, details = (mirror.named(second[key]) for key in ("error", "traceback"))
        return Checked(entry, "broken", "", problem=sentence, details=details)
    rows = tuple(second["rows"])
    status: Status = "different" if any(row["problem"] for row in rows) else "equal"
    kind = second["platform"] if request.real else "virtual"
    where = (
        f"the original on {'the first device' if request.real else '1 device'}, the rewritten program on "
        f"{second['devices']} {kind} devices"
    )
    return Checked(entry, status, where, rows, tuple(_notes(entry, second)))


def _call(
    entry: Entry,
    options: Sequence[str],
    roots: Sequence[str],
    variables: Mapping[str, str],
    program: str,
    limits: ProgramLimits,
) -> dict[str, Any]:
    # One hash seed: code that iterates over a set of strings must not make the two programs differ.
    seeded = {**variables, "PYTHONHASHSEED": "0"}
    document, _ = run_module(
        "_commands.verify", [entry.step, entry.arguments, *options], roots, seeded, f"{entry.step}: {program}", limits
    )
    return document


def _notes(entry: Entry, document: Mapping[str, Any]) -> Iterator[str]:
    if not document["compiled_for_a_mesh"]:
        name = entry.step.partition(":")[2]
        yield (
            f"`{name}` is not compiled for a mesh, so its tasks ran one by one or as part of plain `jax.jit`; "
            "name the step that has the hint `mjit` to verify the pipeline"
        )
    for place, argument in document["like_arguments"].items():
        yield f"{place} has the paths, shapes and types of {argument}: its gradients, or its new value"


class _Coverage:
    """The rewritten hints that each function reaches."""

    def __init__(self, modules: Sequence[Facts], results: Sequence[Rewrite], codemods: Collection[str]) -> None:
        self._modules = modules
        self._project = Project(modules, load_file, tuple(codemods))
        self._reach = Reach(self._project)
        self._directives = {
            (facts.path, hint.reference): hint.record for facts in modules for hint in facts.hints.hints
        }
        edited = {(result.path, hint) for result in results for edit in result.edits for hint in edit.hints}
        self.rewritten: frozenset[_HintPlace] = frozenset(
            place for place in edited if place in self._directives and self._directives[place].changes_statement
        )

    def of(self, entry: Entry) -> frozenset[_HintPlace]:
        """The rewritten hints that a function reaches; an over-approximation."""
        module, _, name = entry.step.partition(":")
        facts = next((facts for facts in self._modules if facts.names.name == module), None)
        if facts is None and self._modules:
            facts = self._project.module(module, self._modules[0])
        if facts is None:
            return frozenset()
        found = self._inside(facts, self._starts(facts, name.partition(".")[0]))
        if not any(self._directives[place].places_code for place in found):
            # The step takes its model as an argument: any code that its module reaches may be that model.
            for other in (facts, *self._project.imported(facts)):
                found |= self._inside(other, other.tree.body)
        return found & self.rewritten

    def is_rewritten(self, entry: Entry) -> bool:
        """Whether a function reaches anything that is rewritten."""
        # A registered task matches a scope by its name in the trace, which no analysis of the source can follow.
        registered = any(directive.places_scopes for directive in self._directives.values())
        return bool(self.of(entry)) or registered

    def _starts(self, facts: Facts, name: str) -> list[Any]:
        bindings = facts.names.scope.bindings.get(name, ())
        starts = [facts.names.top_level(found.statement) for found in bindings if found.statement is not None]
        for binding in bindings:
            elsewhere = self._project.definition(binding.target, facts) if binding.target else None
            if elsewhere is not None and elsewhere[1].statement is not None:
                starts.append(elsewhere[1].statement)
        return starts

    def _inside(self, facts: Facts, starts: Sequence[Any]) -> frozenset[_HintPlace]:
        reached = [item for start in starts for item in self._reach.from_node(facts, start)]
        return frozenset(
            (other.path, hint.reference)
            for other in self._modules
            for hint in other.hints.hints
            if any(holds(item, other, hint.statement) for item in reached)
        )


def _not_covered(
    checks: Sequence[Checked], coverage: _Coverage, devices: int | None, results: Sequence[Rewrite]
) -> Iterator[str]:
    proved = frozenset[_HintPlace]().union(*(coverage.of(check.entry) for check in checks if check.status == "equal"))
    for path, hint in sorted(coverage.rewritten - proved):
        yield f"{path}:{hint.line}: `{hint.text}` is rewritten, and no function proved equal reaches it"
    refused = sum(len(result.refusals) for result in results)
    left = sum(len(result.left) for result in results)
    if refused or left:
        yield f"hints that are not rewritten: {refused} refused, {left} left alone on purpose"
    yield "other arguments: each function was called once, with one set of arguments"
    yield "time and memory, and side effects"
    yield "several processes" if devices is None else "real devices, and several processes"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
