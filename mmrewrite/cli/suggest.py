"""`mmrewrite suggest`, and `plan --suggest`: options about devices, and what becomes of the answer."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from mmrewrite.cli.config import ConfigError, read_config, read_toml
from mmrewrite.cli.session import CHANGES, Session
from mmrewrite.cli.source_options import SourceOptions
from mmrewrite.cli.terminal.output import say
from mmrewrite.codemod.registry import Registry
from mmrewrite.files.cache_folder import cache_folder
from mmrewrite.files.patch import patch_of
from mmrewrite.mirror.child_process import NotRun
from mmrewrite.source.file import SourceFile
from mmrewrite.suggest.comparison import Suggested, Wanted, suggest
from mmrewrite.suggest.devices import Accelerator, find_device, read_cluster
from mmrewrite.suggest.hint_trials import HintedProject
from mmrewrite.suggest.history import KIND, keep_suggestion
from mmrewrite.suggest.new_hints import suggest_hints
from mmrewrite.suggest.output import faster_plan, verdict_sentence
from mmrewrite.suggest.places import NoPlace

# Options that stand in place of a value of a device's record.
_VALUES = ("memory", "flops", "bandwidth", "near", "far", "host", "efficiency", "launch")


def device_of(options: dict[str, Any], *, needed: bool) -> tuple[Accelerator, int | None]:
    """The accelerator in the options, which are taken out, and the number of devices; None where the mesh has it.

    Raises:
        click.UsageError: If an option cannot be read, or is missing and needed.
    """
    name, devices, cluster = options.pop("device"), options.pop("devices"), options.pop("cluster", None)
    given = {key: value for key in _VALUES if (value := options.pop(key, None)) is not None}
    if (name is None) == (cluster is None):
        raise click.UsageError("Give --device, the kind of accelerator, or --cluster, a file about it and its links.")
    try:
        record, count = (find_device(name), None) if cluster is None else read_cluster(read_toml(Path(cluster)))
        record = record.with_given(given)
    except ConfigError as problem:
        raise click.UsageError(f"{problem}.") from None
    except ValueError as problem:
        where = "" if cluster is None else f"{cluster}: "
        raise click.UsageError(f"{where}{problem}.") from None
    if needed and devices is None and count is None:
        raise click.UsageError("How many accelerators? Give --devices N, or `devices` in the file of --cluster.")
    return record, devices or count


def configured(options: dict[str, Any]) -> Mapping[str, Any]:
    """What `suggest` is about by the configuration, which also says for what devices if the options do not.

    Raises:
        click.UsageError: If the configuration cannot be read.
    """
    named = options.get("config")
    try:
        config = read_config(Path.cwd(), Path(named) if named else None)
    except ConfigError as error:
        raise click.UsageError(f"{error}.") from None
    if options["cluster"] is None:
        options["devices"] = options["devices"] or config.suggest.get("devices")
    if options["device"] is None and options["cluster"] is None:
        options["device"] = config.suggest.get("device")
        cluster = config.suggest.get("cluster")
        options["cluster"] = None if cluster is None else str(config.folder / cluster)
    return config.suggest


def compare_plans(wanted: Wanted, options: Mapping[str, Any]) -> NoReturn:
    """`plan --suggest`: plans of a program with hints."""
    if options["output_format"] not in ("text", "json"):
        raise click.UsageError("--suggest has the formats text and json.")
    session = Session(SourceOptions(**options))
    with _failing(session), session.progress.phase(f"plan --suggest: {wanted.entry}") as tell:
        suggested = suggest(wanted, session.program, tell)
    folder = cache_folder(KIND) if session.caches else None
    if folder is not None:
        # A cache that cannot be written is none.
        with contextlib.suppress(OSError):
            step = wanted.entry, wanted.arguments
            keep_suggestion(folder, step, suggested.sources, faster_plan(suggested))
    _show(session, suggested)
    session.print_messages("would change")
    session.exit(found=suggested.found.verdict == "nothing")


def suggest_and_show(wanted: Wanted, options: Mapping[str, Any], *, applies: bool, checks: bool) -> NoReturn:
    """`suggest`: the hints of a program without any."""
    session = Session(SourceOptions(**options))
    hinted = next((each for each in session.results if each.changed or each.refusals or each.failed), None)
    if hinted is not None:
        session.fail(
            f"{hinted.path} has hints already, and `mmrewrite plan --suggest {wanted.device.name}` compares plans for "
            "those; give the files of a program without any"
        )
    project = HintedProject(_files(session), session.rewritten)
    with _failing(session):
        suggested = suggest_hints(wanted, session.program, project, session.top, session.progress.phase)
        is_good = True
        if checks and suggested.hints is not None:
            is_good, verified = _checked(session, suggested, project)
            suggested = dataclasses.replace(suggested, hints=dataclasses.replace(suggested.hints, verified=verified))
    if applies and suggested.hints is not None and is_good:
        session.results = suggested.hints.comments
        session.write_in_place()
        suggested = dataclasses.replace(suggested, hints=dataclasses.replace(suggested.hints, is_written=True))
    _show(session, suggested)
    session.print_problems()
    fits = suggested.found.verdict != "nothing"
    if suggested.hints is None and session.options.output_format == "patch":
        session.say(verdict_sentence(suggested))
    if applies and suggested.hints is None:
        why = ": no pipeline is worth it; --stages N asks for one all the same" if fits else ""
        session.say(f"nothing was written{why}")
    elif applies:
        files = "1 file" if session.written == 1 else f"{session.written} files"
        session.say(f"{files} changed" if is_good else "nothing was written: the check has failed")
    session.exit(found=not (fits and is_good))


def _files(session: Session) -> dict[str, SourceFile]:
    """All modules of the run."""
    adopted = (session.selection.adopt(path, session.rules) for path, _ in session.selection.looked_at.values())
    return {file.path: file for file in adopted if file is not None and file.path.endswith(".py")}


def _show(session: Session, suggested: Suggested) -> None:
    session.show("suggest", suggested)


@contextlib.contextmanager
def _failing(session: Session) -> Iterator[None]:
    """Say in a sentence what is in the way, and end the process."""
    try:
        yield
    except NoPlace as problem:
        say(f"No pipeline: {problem}")
        sys.exit(CHANGES)
    except NotRun as problem:
        if session.options.verbose and problem.details:
            say(problem.details)
        session.fail(str(problem))


def _checked(session: Session, suggested: Suggested, project: HintedProject) -> tuple[bool, str]:
    """Whether the program with its hints computes the same on virtual devices and fits, and what to say of it."""
    from mmrewrite.plan.fit import fit
    from mmrewrite.verify.verify import NotVerified, VerifyRequest, verify

    hints, wanted, codemods = suggested.hints, suggested.wanted, tuple(Registry())
    assert hints is not None
    files = tuple(dataclasses.replace(project.files[each.path], data=each.result) for each in hints.comments)
    selection = dataclasses.replace(session.selection, files=files)
    request = VerifyRequest(
        wanted.entry, wanted.arguments, suggested.devices, False, None, None, wanted.limits, planned=True
    )
    try:
        verified = verify(
            dataclasses.replace(session.program, results=hints.results),
            selection,
            codemods,
            patch_of(hints.results, session.top),
            request,
            session.progress.phase,
        )
    except NotVerified as problem:
        raise NotRun(str(problem)) from None
    (check,) = verified.checks
    if check.status != "equal":
        return False, f"not so: `verify` finds it {check.status}{f', {check.problem}' if check.problem else ''}"
    assert check.plan is not None, "an entry of `suggest` is a step"
    fitting = fit(check.plan, int(wanted.device.room))
    return fitting.fits, f"computes the same on {suggested.devices} virtual devices; {fitting.sentences[0]}"
