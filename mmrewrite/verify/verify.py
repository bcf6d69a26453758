"""The measured proof of a rewrite: run the original on one device and the result on many, and compare all arrays."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from mmrewrite.files.cache_folder import hash_of
from mmrewrite.files.patch import file_patch
from mmrewrite.files.select import RewrittenProgram, Selection, select_files
from mmrewrite.files.walk import load_file
from mmrewrite.mirror.child_process import Mirror, check_named, check_runtime, mirrored
from mmrewrite.mirror.limits import USUAL, ProgramLimits
from mmrewrite.plan.read_placement import devices_needed, may_place, read_regions, too_few_devices
from mmrewrite.project.facts import Facts, has_mark, read_facts
from mmrewrite.project.hinted_files import read_hinted
from mmrewrite.project.verify_entries import Entry, hinted_entries
from mmrewrite.results import Rewrite
from mmrewrite.tracking import Phase, Tell
from mmrewrite.verify.before import Before, original_of
from mmrewrite.verify.coverage import RANDOM, STATISTICS, Coverage, HintPlace
from mmrewrite.verify.programs import Checked as Checked
from mmrewrite.verify.programs import ProgramSettings, check_programs
from mmrewrite.verify.programs import Status as Status


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
        since: The revision that the original is; None if it is the source.
        planned: Whether the plans that rewritten steps run by are wanted too.
    """

    step: str | None
    arguments: str | None
    devices: int | None
    real: bool
    rtol: float | None
    atol: float | None
    limits: ProgramLimits = USUAL
    since: str | None = None
    planned: bool = False


@dataclass(frozen=True)
class Verified:
    """The whole proof.

    Attributes:
        checks: One for each function.
        patch: The SHA-256 of the output of `mmrewrite diff`, by which a reviewer knows what the proof is about; with
            `since`, of the patch from that revision to the rewritten program.
        files: Path, and SHA-256 before and after, of each file that changes.
        not_covered: What the proof leaves open, a sentence each.
        unreached: The rewritten hints, or with `since` calls of the runtime that the revision lacks, that no function
            proved equal reaches, as `path:line`.
        since: The revision that the original is; None if it is the source.
    """

    checks: tuple[Checked, ...]
    patch: str
    files: tuple[Mapping[str, str], ...]
    not_covered: tuple[str, ...]
    unreached: tuple[str, ...] = ()
    since: str | None = None

    @property
    def holds(self) -> bool:
        """Whether anything is proved of the patch."""
        return any(check.status == "equal" for check in self.checks)

    @property
    def failed(self) -> bool:
        """Whether any function is not proved to compute the same."""
        return any(check.status in ("different", "broken", "not rewritten") for check in self.checks)

    @property
    def incomplete(self) -> bool:
        """Whether any function could not be run."""
        return any(check.status == "not run" for check in self.checks)


def verify(
    program: RewrittenProgram,
    selection: Selection,
    codemods: Collection[str],
    patch: bytes,
    request: VerifyRequest,
    phase: Phase,
) -> Verified:
    """Call every requested function in both programs, and compare arguments and results.

    Args:
        program: The files of the run, and the rewrites of those with hints.
        selection: The files with hints.
        codemods: The names of codemods, which hints may mention.
        patch: The output of `mmrewrite diff` for the same paths.
        request: The functions to call, the devices and the tolerances.
        phase: What each run of a program is shown by while it lasts.

    Raises:
        NotVerified: If there is no function to call, or no file would change.
        NotRun: If this Python lacks JAX, or the rewritten program cannot be built.
    """
    results = program.results
    read, _ = read_hinted(
        [file for file in selection.files if has_mark(file)],
        lambda wanted: selection.importing(wanted, program.rules),
        lambda file, reexports: read_facts(file, tuple(codemods), reexports=reexports),
    )
    modules = [facts for facts in read if isinstance(facts, Facts)]
    if request.since is None and not any(result.changed for result in results):
        refused = any(result.refusals or result.failed for result in results)
        instead = "after `apply`, give the revision before it: --since HEAD~1"
        why = "write what the messages above ask for" if refused else instead
        raise NotVerified(f"none of these files would change, so there is no rewritten program to compare with; {why}")
    entries = [] if request.since is not None else _entries(modules, request)
    check_runtime("verify")
    devices = None
    if not request.real:
        sources = select_files(program.paths, program.rules, may_place).files
        regions = read_regions(sources, results, load_file, tuple(codemods))
        few = too_few_devices(request.devices, regions)
        if few is not None:
            raise NotVerified(few)
        devices = request.devices or devices_needed(regions)
    checks = []
    changed = [result for result in results if result.changed]
    with contextlib.ExitStack() as held:
        mirror, before = held.enter_context(mirrored(program)), None
        if request.since is None:
            coverage = Coverage.of_hints(modules, results, codemods)
        else:
            modules_of = {os.path.realpath(path): path for path in mirror.sources.values() if path.endswith(".py")}
            before = held.enter_context(original_of(request.since, list(modules_of)))
            entries = _entries(modules, request, before.entries(codemods))
            changed = _rewrites_since(before, results, modules_of)
            patch = b"".join(file_patch(rewrite, before.name(os.path.realpath(rewrite.path))) for rewrite in changed)
            coverage = Coverage.of_calls(changed, results, codemods)
        for number, entry in enumerate(entries, start=1):
            shown = functools.partial(_numbered, phase, entry, number, len(entries))
            checks.append(_check(entry, mirror, coverage, devices, request, shown, before))
    files = tuple(
        {"path": result.path, "before": hash_of(result.original), "after": hash_of(result.result)} for result in changed
    )
    proved = frozenset[HintPlace]().union(*(coverage.of(check.entry) for check in checks if check.status == "equal"))
    unreached = sorted(coverage.rewritten - proved)
    not_covered = tuple(_not_covered(checks, coverage, unreached, devices, results))
    places = tuple(f"{path}:{hint.line}" for path, hint in unreached)
    return Verified(tuple(checks), hash_of(patch), files, not_covered, places, request.since)


def _rewrites_since(before: Before, results: Sequence[Rewrite], paths: Mapping[str, str]) -> list[Rewrite]:
    """The files that differ from a revision, as if what stands there were rewritten into what there will be now."""
    now = {os.path.realpath(result.path): result.result for result in results}
    return [
        Rewrite(paths[path], before.data(path), now[path] if path in now else load_file(path) or b"")
        for path in before.changed
    ]


def _numbered(phase: Phase, entry: Entry, number: int, count: int, what: str, /) -> AbstractContextManager[Tell]:
    step = entry.step.partition(":")[2]
    return phase(f"{step} ({number} of {count}), {what}" if count > 1 else what)


def _entries(modules: Sequence[Facts], request: VerifyRequest, others: Sequence[Entry] = ()) -> list[Entry]:
    """The functions to call: those that the request names, else those with hints, else `others`."""
    if request.step is not None and request.arguments is not None:
        check_named(entry=request.step, args=request.arguments)
        return [Entry(request.step, request.arguments, "--entry")]
    entries = list(hinted_entries(modules)) or list(others)
    if not entries:
        raise NotVerified(
            "no function to call: write `# mm: verify(args=make_example_args)` on the step, or give --entry "
            "module:function and --args module:function"
        )
    return entries


def _check(
    entry: Entry,
    mirror: Mirror,
    coverage: Coverage,
    devices: int | None,
    request: VerifyRequest,
    phase: Phase,
    before: Before | None,
) -> Checked:
    module = entry.step.partition(":")[0]
    if mirror.root(module) is None:
        sentence = f"none of the files given is the module `{module}`; give its file or folder as PATH"
        return Checked(entry, "not run", "", problem=sentence)
    if before is None and not coverage.is_rewritten(entry):
        return Checked(entry, "not rewritten", "")
    own = coverage.own(entry)
    settings = ProgramSettings(devices, request.rtol, request.atol, request.limits, own, before, request.planned)
    return check_programs(entry, mirror, settings, phase)


def _not_covered(
    checks: Sequence[Checked],
    coverage: Coverage,
    unreached: Sequence[HintPlace],
    devices: int | None,
    results: Sequence[Rewrite],
) -> Iterator[str]:
    for path, hint in unreached:
        yield f"{path}:{hint.line}: `{hint.text}` is rewritten, and no function found equal uses it"
    if unreached and any(check.status == "equal" for check in checks):
        yield "to have that compared too, name a step that uses it: by --entry, or by a hint `verify(args=FUNCTION)`"
    refusals = [refusal for result in results for refusal in result.refusals]
    refused = sum(refusal.hint is not None for refusal in refusals)
    left = sum(len(result.left) for result in results)
    if refused or left:
        yield f"hints that are not rewritten: {refused} refused, {left} left alone on purpose"
    if len(refusals) > refused:
        yield f"refusals besides those of hints, which `mmrewrite diff` lists: {len(refusals) - refused}"
    own = {what for check in checks if check.reference == "microbatched" for what in coverage.own(check.entry)}
    if RANDOM in own:
        yield (
            "the random numbers of the whole batch: microbatches draw others, of the same distribution. Whether the "
            'results of microbatches are combined as they should be is proved by `reduce="exact"` before a step runs'
        )
    if STATISTICS in own:
        yield 'the statistics of the whole batch: `batch_stats="microbatch"` has each microbatch use its own'
    yield "other arguments: each function was called once, with one set of arguments"
    yield "time and memory, and side effects"
    yield "several processes" if devices is None else "real devices, and several processes"
