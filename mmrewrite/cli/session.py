"""One look at the sources: configuration, files, rewrites, messages, and the exit status."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import click

from mmrewrite.cli.cache import Watched, cached
from mmrewrite.cli.config import (
    Config,
    ConfigError,
    UnknownCodemod,
    find_config,
    ignored_codemods,
    read_config,
    selected_codemods,
    separated,
)
from mmrewrite.cli.options import ENTRY_AND_ARGS
from mmrewrite.cli.replay import Replay
from mmrewrite.cli.reports import DEFAULT_FORMAT, NotShown, render
from mmrewrite.cli.reports._rewrite_report import RewriteReport
from mmrewrite.cli.source_options import SourceOptions
from mmrewrite.cli.terminal import style
from mmrewrite.cli.terminal.output import encoded, print_output, say
from mmrewrite.cli.terminal.progress import StatusLine
from mmrewrite.cli.terminal.style import colors_patch
from mmrewrite.codemod.products import old_names
from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.engine.settings import HintSettings
from mmrewrite.engine.workers import WorkerDied
from mmrewrite.files.select import (
    BadPattern,
    RewrittenProgram,
    Rules,
    Selection,
    select_files,
    source_file,
)
from mmrewrite.files.walk import SUFFIXES, load_file, read_file, read_stream, shown
from mmrewrite.results import HintError, Rewrite, counted
from mmrewrite.source.file import SourceFile
from mmrewrite.tracking import Tell, untold

if TYPE_CHECKING:
    from mmrewrite.mirror.build import StaleMirror
    from mmrewrite.plan.plan import Planned, PlanRequest

NOTHING, CHANGES, ERROR = 0, 1, 2

STDIN = "-"
# Of errors in hints, which are some lines each; more are counted.
_MOST_ERRORS = 100
# Formats of changes that show the plan as well.
_SHOWING_PLANS = ("markdown", "html")
# The command whose JSON `--evidence` takes.
_EVIDENCE_COMMAND = "verify"
# How files begin that a report may replace.
_BEGINNINGS = {"html": b"<!doctype html", "svg": b"<svg"}


class Session:
    """The sources that a command reads and what becomes of them.

    Everything that a person reads besides the command's output goes to standard error, whatever the format.
    """

    noun: ClassVar[str] = "hint"
    has_plan: ClassVar[bool] = True
    watched: Watched

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.progress = StatusLine(quiet=options.quiet)
        self.unwritten: list[tuple[str, str]] = []
        self.unreported = 0
        try:
            self.config: Config = read_config(Path.cwd(), Path(options.config) if options.config else None)
            if "" in options.paths:
                # A variable of a shell that is not set, for instance. The current folder may be another thing.
                raise click.UsageError("A PATH is empty; leave it out, or name a file or folder.")
            self._check_stdin()
            self._check_codemods()
            self._check_entry()
            self.paths = options.paths or self._included() or (".",)
            self.rules = Rules(self.config.folder, self.config.exclude)
            with self.progress.erased_at_end():
                self.selection: Selection = self._select()
                results = self._rewrite()
        except UnknownCodemod as error:
            if error.name in separated((*options.select, *options.ignore)):
                raise click.UsageError(str(error)) from None
            _stop(f"{self._config_path}: {error}")
        except (ConfigError, BadPattern) as error:
            _stop(str(error))
        # What becomes of all files, of which --since reports some.
        self._all = tuple(results)
        self.results: tuple[Rewrite, ...] = self._reported(results)
        context = click.get_current_context(silent=True)
        replay = context.find_root().obj if context is not None else None
        if isinstance(replay, Replay) and self.watched.is_kept:
            replay.asked = self.watched.asked

    def _included(self) -> tuple[str, ...]:
        return tuple(str(self.config.folder / path) for path in self.config.include)

    def _check_stdin(self) -> None:
        if STDIN in self.options.paths and not self._takes_stdin():
            raise click.UsageError("`-` is for diff, check, apply and modernize; a file of that name is ./-.")
        if (STDIN in self.options.paths) != (self.options.stdin_filename is not None):
            raise click.UsageError(
                "`-` and --stdin-filename go together: the buffer, and the file whose content it is. "
                "A file that is called so is ./-."
            )
        name = self.options.stdin_filename
        if name is not None and (not name or os.path.isdir(name)):
            what = f"{name} is a folder" if name else "--stdin-filename has an empty name"
            raise click.UsageError(f"{what}; give the file whose content `-` is.")
        if self.reads_stdin and self.options.since is not None:
            raise click.UsageError("--since compares files on the disk; leave it out with standard input.")
        if self.reads_stdin and len(self.options.paths) > 1:
            raise click.UsageError("`-` stands alone; give other files to another run.")

    def _takes_stdin(self) -> bool:
        context = click.get_current_context(silent=True)
        return context is None or any(each.name == "stdin_filename" for each in context.command.params)

    def _check_codemods(self) -> None:
        for option, names in (("--select", self.options.select), ("--ignore", self.options.ignore)):
            # A variable of a shell that is not set, for instance. Silence would mean all codemods.
            if any(not separated((name,)) for name in names):
                raise click.UsageError(f"{option} names no codemod; leave it out, or name one.")

    def _check_entry(self) -> None:
        if (self.options.entry is None) != (self.options.arguments is None):
            raise click.UsageError(ENTRY_AND_ARGS)
        if self.options.entry is not None and self.options.output_format not in _SHOWING_PLANS:
            raise click.UsageError(f"--entry is for --format {' and '.join(_SHOWING_PLANS)}, which show the plan.")
        if self.options.evidence is not None and self.options.output_format not in _SHOWING_PLANS:
            raise click.UsageError(f"--evidence is for --format {' and '.join(_SHOWING_PLANS)}, which show it.")

    @property
    def reads_stdin(self) -> bool:
        """Whether the one file of the run is standard input."""
        return self.options.stdin_filename is not None

    def _select(self) -> Selection:
        if self.options.stdin_filename is None:
            return self._saying_who_names(self.select())
        name = self.options.stdin_filename
        if sys.stdin is None:
            raise click.UsageError("Standard input is closed, so there is nothing to read for `-`.")
        try:
            file = source_file(name, read_stream(sys.stdin.buffer))
        except OSError as error:
            raise click.UsageError(f"Standard input cannot be read: {error.strerror or error}.") from None
        self.paths = (name,)
        return Selection((file,), {os.path.realpath(name): (name, True)}, ())

    def _saying_who_names(self, selection: Selection) -> Selection:
        """Missing files with the configuration that names them, as the user has not just written them."""
        if self.options.paths or not self.config.include:
            return selection
        names = f"; `include` in {shown(str(self._config_path))} names it"
        included = {shown(path) for path in self._included()}
        unreadable = tuple(
            (path, reason + names if path in included else reason) for path, reason in selection.unreadable
        )
        return replace(selection, unreadable=unreadable)

    @property
    def _config_path(self) -> Path | None:
        return Path(self.options.config) if self.options.config else find_config(Path.cwd())

    def _rewrite(self) -> tuple[Rewrite, ...]:
        try:
            return self.rewrite()
        except WorkerDied as error:
            _stop(str(error))

    def _reported(self, results: Sequence[Rewrite]) -> tuple[Rewrite, ...]:
        """The results to report. With --since, only files that differ from the revision."""
        if self.options.since is None:
            return tuple(results)
        from mmrewrite.files.revisions import NoRevision, changed_since

        try:
            changed = changed_since(self.options.since, [result.path for result in results])
        except NoRevision as problem:
            _stop(str(problem))
        kept = tuple(result for result in results if os.path.realpath(result.path) in changed)
        paths = {result.path for result in kept}
        self.unreported = sum(result.changed and result.path not in paths for result in results)
        places = {each.cause for result in kept for each in result.refusals if each.cause is not None}
        causes = (_causes(result, places) for result in results if result.path not in paths)
        return tuple(sorted([*kept, *filter(None, causes)], key=lambda result: result.path)) if places else kept

    def select(self) -> Selection:
        """The files that may change."""
        return select_files(self.paths, self.rules, suffixes=SUFFIXES, track=self.progress.track)

    def rewrite(self) -> tuple[Rewrite, ...]:
        """The rewrites of the selected files, in path order."""
        settings = self.hint_settings()
        watched = self.watched = Watched(self.selection, self.rules)

        def compute() -> tuple[Rewrite, ...]:
            return rewrite_project(
                self.selection.files,
                Registry(),
                load=watched.load,
                adopt=watched.adopt,
                importing=watched.importing,
                starring=self.selection.starring,
                settings=settings,
            )

        results = cached("hints", settings, watched, compute, enabled=self.caches)
        return tuple(sorted(results, key=lambda result: result.path))

    def rewritten(self, files: Sequence[SourceFile]) -> tuple[Rewrite, ...]:
        """The rewrites of files of the run as they are here, whatever they are on the disk."""
        watched = Watched(replace(self.selection, files=tuple(files)), self.rules)
        return rewrite_project(
            files,
            Registry(),
            load=watched.load,
            adopt=watched.adopt,
            importing=watched.importing,
            settings=self.hint_settings(),
        )

    def hint_settings(self) -> HintSettings:
        """The settings of the engine for hints, as the command line and the configuration give them."""
        registry, others = Registry(), old_names().registry()
        return HintSettings(
            selected=self.selected(registry, others, registry),
            width=self.config.width,
            ignored=self.ignored(registry, others),
            axes=self.config.axes,
            jobs=self.options.jobs,
            jaxtyping=self.config.jaxtyping,
            by_name=not self.reads_stdin and any(map(os.path.isfile, self.paths)),
            track=self.progress.track,
        )

    def add_unread(self, unread: Iterable[tuple[str, str]]) -> None:
        """Report files that could not be read, unless that is known: files without hints are copied as well."""
        known = dict(self.selection.unreadable)
        new = [(path, reason) for path, reason in unread if path not in known]
        self.selection = replace(self.selection, unreadable=tuple(sorted([*known.items(), *new])))

    @property
    def caches(self) -> bool:
        """Whether results are kept for the next run. Results for a buffer are not."""
        return not self.options.no_cache and not self.reads_stdin

    def selected(
        self, registry: Collection[str], others: Collection[str], default: Iterable[str]
    ) -> frozenset[str] | None:
        """The codemods that may run, as `selected_codemods` gives them for the command line and the configuration."""
        select = separated(self.options.select) or self.config.select
        ignore = (*separated(self.options.ignore), *self.config.ignore)
        return selected_codemods(select, ignore, registry, others, default)

    def ignored(self, registry: Collection[str], others: Collection[str]) -> Mapping[str, frozenset[str]]:
        """The codemods that must not write into a file, for each file of the run with `per-file-ignores`."""
        paths = [path for path, _ in self.selection.looked_at.values()]
        return ignored_codemods(self.config, paths, registry, others)

    @property
    def program(self) -> RewrittenProgram:
        """The files of the run, and the results for those that are reported."""
        return RewrittenProgram(self.paths, self.rules, self.results)

    @property
    def changed(self) -> list[Rewrite]:
        """The results with something to write."""
        return [result for result in self.results if result.changed]

    @property
    def written(self) -> int:
        """How many files were written, once that was tried."""
        return len(self.changed) - len(self.unwritten)

    @property
    def top(self) -> str:
        """The folder that git takes paths in a patch to be relative to: the nearest with `.git`, else the current."""
        here = Path.cwd()
        return str(next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here))

    def show(self, command: str, result: object) -> None:
        """Print the command's result in the format of `--format`."""
        try:
            output = render(command, self.options.output_format, result)
        except NotShown as problem:
            self.fail(str(problem))
        print_output(output, self.options.output_format)

    def show_rewrites(self, command: str, *, shows_patch: bool, mirror: StaleMirror | None = None) -> None:
        """Print the rewrites in the format of `--format`, and what `build` would change in a mirror."""
        report = RewriteReport(
            command,
            self.results,
            self.top,
            shows_patch,
            colors_patch(),
            self.noun,
            self.selection.unreadable,
            tuple(self.unwritten),
            mirror.problems if mirror is not None else (),
            mirror.changes if mirror is not None else (),
            self.plan if self.has_plan else None,
            self._evidence(),
            self.suggestions() if self.has_plan and self.options.output_format in _SHOWING_PLANS else (),
        )
        self.show(command, report)

    def plan(self) -> Planned:
        """The plan of the rewritten program: as far as the source shows it, and with --entry from a trace.

        Raises:
            NotShown: If the step cannot be traced.
        """
        from mmrewrite.mirror.limits import program_limits
        from mmrewrite.plan.plan import NotPlanned, PlanRequest

        limits = program_limits(self.options.time_limit, self.options.memory_limit, self.options.output_limit)
        request = PlanRequest(None, self.options.entry, self.options.arguments, None, False, limits)
        try:
            with self.progress.phase(f"plan: {self.options.entry}" if self.options.entry else "plan") as tell:
                planned = self._planned(request, tell)
        except NotPlanned as problem:
            raise NotShown(str(problem)) from None
        self.keep_trace(planned)
        return planned

    def _planned(self, request: PlanRequest, tell: Tell = untold) -> Planned:
        """The plan of all that the files that are reported are a part of."""
        from mmrewrite.plan.plan import make_plan

        about = None if self.options.since is None else {result.path for result in self.results}
        return make_plan(replace(self.program, results=self._all), tuple(Registry()), request, about, tell)

    def _hanging(self) -> Iterator[str]:
        """The meshes and steps in unreported files that reported files depend on."""
        from mmrewrite.plan.plan import PlanRequest
        from mmrewrite.plan.stages import STEPS, UNREACHED

        reported = {result.path for result in self.changed}
        for section in self._planned(PlanRequest(None, None, None, None, False)).sections:
            own, others = section.files & reported, section.files - reported
            steps = [
                f"`{row[1]}` of {row[0]}" for table in section.tables if table.title == STEPS for row in table.rows
            ]
            if own and others and section.title != UNREACHED:
                stands = f", in the {'steps' if len(steps) > 1 else 'step'} {', '.join(steps)}" if steps else ""
                yield f"{', '.join(map(style.one_line, sorted(own)))}: runs on {style.one_line(section.title)}{stands}"

    def suggestions(self) -> tuple[str, ...]:
        """What `plan --suggest` found of the programs of this run, where their sources are still as they were."""
        from mmrewrite.files.cache_folder import cache_folder
        from mmrewrite.suggest.history import KIND, kept_suggestions

        folder = cache_folder(KIND) if self.caches else None
        paths = [result.path for result in self.results]
        return () if folder is None or not os.path.isdir(folder) else tuple(kept_suggestions(folder, paths, load_file))

    def keep_trace(self, planned: Planned) -> None:
        """Keep what a trace says about bytes, for hovers of the language server."""
        from mmrewrite.files.cache_folder import cache_folder
        from mmrewrite.plan.traced_bytes import KIND, keep

        folder = cache_folder(KIND) if self.caches else None
        if folder is not None and planned.bytes is not None:
            # A cache that cannot be written is none.
            with contextlib.suppress(OSError):
                keep(folder, planned.bytes)

    def _evidence(self) -> Mapping[str, Any] | None:
        if self.options.evidence is None:
            return None
        evidence: object = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            evidence = json.loads(read_file(self.options.evidence))
        if not isinstance(evidence, dict) or evidence.get("command") != _EVIDENCE_COMMAND:
            self.fail(f"{self.options.evidence}: not the output of `mmrewrite verify --format json`")
        return evidence

    def write_report(self, command: str, output_format: str, result: object, path: str) -> None:
        """Write the command's result to a file, replacing it whole; exit if that is impossible."""
        from mmrewrite.files.write import write_new

        try:
            output = render(command, output_format, result)
        except NotShown as problem:
            self.fail(str(problem))
        self.check_report(output_format, path)
        data = output if isinstance(output, bytes) else encoded(output)
        real = os.path.realpath(path)
        try:
            if os.path.lexists(real) and not os.path.isfile(real):
                # A pipe or a device, such as /dev/stdout: what replaced it would be a file. A pipe that nobody reads is
                # an error, and not waited for.
                handle = os.open(real, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
                os.set_blocking(handle, True)
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
            else:
                write_new(real, data)
        except OSError as error:
            self.fail(f"{path}: not written: {error.strerror or error}")

    def check_report(self, output_format: str, path: str) -> None:
        """Exit if a report may not be written to a file, as one may already say before the work."""
        real = os.path.realpath(path)
        if not path:
            self.fail(f"--{output_format} has an empty name; name a file")
        if os.path.isdir(real):
            self.fail(f"{path} is a folder; name a file in it")
        if not os.path.isdir(os.path.dirname(real)):
            self.fail(f"{path}: there is no folder {os.path.dirname(real)}; make it first")
        begin = _BEGINNINGS[output_format]
        if os.path.isfile(real) and (load_file(real) or b"")[: len(begin)].lower() not in (begin, b""):
            kind = output_format.upper()
            self.fail(f"{path} is there already, and holds no {kind}; give another name, or move it away")

    def write_in_place(self) -> None:
        """Replace every changed file; one that cannot be written does not stop the others."""
        from mmrewrite.cli.terminal.interrupts import deferred_interrupts
        from mmrewrite.files.write import NotWritten, remove_left_behind, replace_file

        with deferred_interrupts() as interrupted, self.progress.erased_at_end():
            changed = self.changed
            for number, result in enumerate(self.progress.track("Writing", changed, len(changed))):
                if interrupted():
                    done = f"{number - len(self.unwritten)} of {counted(len(changed), 'file')}"
                    raise KeyboardInterrupt(f"{done} written, each of them whole; run again for the others")
                try:
                    replace_file(result.path, result.original, result.result, self.paths)
                except NotWritten as problem:
                    self.unwritten.append((result.path, str(problem)))
        for folder in sorted({os.path.dirname(path) for path in self.selection.looked_at}):
            for sentence in remove_left_behind(folder):
                self.say(sentence)

    def write_to_stdout(self) -> NoReturn:
        """End the process with the result of standard input on standard output; with nothing if it has errors."""
        if self.options.output_format != DEFAULT_FORMAT:
            raise click.UsageError("With standard input the result itself is printed; leave out --format, or use diff.")
        self.print_messages("changed")
        if not any(result.failed for result in self.results):
            click.echo(self.results[0].result, nl=False)
        self.exit()

    def print_problems(self) -> None:
        """What could not be read, handled or written, on standard error."""
        for path, message in self.selection.unreadable:
            self._say_at(path, style.error(message))
        errors = [error for result in self.results for error in result.errors]
        shown, more = set(map(id, errors[:_MOST_ERRORS])), errors[_MOST_ERRORS:]
        for result in self.results:
            if result.failure is not None:
                self._say_at(result.path, style.error(result.failure))
            for error in result.errors:
                if id(error) in shown:
                    self._say_error(error)
        if more:
            number = sum(error.count for error in more)
            advice = (
                "the JSON has them: --format json" if number == len(more) else "correct the first ones, and run again"
            )
            self.say(f"and {counted(number, 'more error')} in hints; {advice}")
        for path, message in self.unwritten:
            self._say_at(path, style.error(f"not written: {message}"))
        for sentence in self.rules.problems:
            self.say(sentence)

    def print_messages(self, verb: str, number: int | None = None) -> None:
        """Errors, refusals and a summary, on standard error.

        Args:
            verb: What the files did: "changed".
            number: How many did; by default those that have something to write.
        """
        self.print_problems()
        if self.options.quiet:
            return
        self.print_findings()
        for line in self._summary(verb, len(self.changed) if number is None else number):
            self.say(line)

    def print_next(self, steps: Iterable[str]) -> None:
        """What to run next, unless a program reads what is printed."""
        if not self.options.quiet and self.options.output_format == DEFAULT_FORMAT:
            for step in steps:
                self.say(step)

    def print_findings(self) -> None:
        """Refusals; with --verbose, the reasons of what was rewritten as well."""
        for result in self.results:
            self._print_refusals(result)
        if not self.options.verbose:
            self.print_consequences()
        for result in self.results:
            if self.options.verbose:
                self._print_reasons(result)

    def print_details(self, result: Rewrite) -> None:
        """What --verbose says of one file."""
        self._print_refusals(result)
        self._print_reasons(result)

    def _print_refusals(self, result: Rewrite) -> None:
        for refusal in result.refusals:
            if not refusal.is_consequence or self.options.verbose:
                self._say_at(refusal.place, f"{style.doubt(refusal.reason)} {style.name(f'[{refusal.codemod}]')}")

    def print_consequences(self) -> None:
        """One line for all that stays because of something else."""
        places = [
            f"{refusal.path}:{refusal.line}"
            for result in self.results
            for refusal in result.refusals
            if refusal.is_consequence
        ]
        if places:
            more = "" if len(places) <= 8 else f" and {len(places) - 8} more"
            stays = "stays" if len(places) == 1 else "stay"
            self.say(
                f"because of this, {counted(len(places), self.noun)} {stays} as well: "
                f"{', '.join(map(style.one_line, places[:8]))}{more} "
                "(-v says why each does)"
            )

    def _print_reasons(self, result: Rewrite) -> None:
        # A hint that is rewritten in several places is one reason.
        for codemods, hints in dict.fromkeys((edit.codemods, edit.hints) for edit in result.edits):
            places = "; ".join(f"line {hint.line}: {hint.text}" for hint in hints)
            self.say(f"{style.one_line(result.path)}: {', '.join(codemods)}, because of {places}")
        self.print_left_alone(result)

    def print_left_alone(self, result: Rewrite) -> None:
        """The hints, or old names, that were left alone on purpose."""
        for left in result.left:
            self._say_at(left.place, f"`{left.text}` left alone: {left.reason}")

    def _summary(self, verb: str, number: int) -> Iterator[str]:
        """A line of counts, and one of what was passed over; none when nothing happened and nobody watches."""
        if self.selection.passed_over:
            folders = ", ".join(f"{style.one_line(path)} ({marker})" for path, marker in self.selection.passed_over)
            yield f"{counted(len(self.selection.passed_over), 'folder')} passed over: {folders}; name one to read it"
        if self.unreported:
            others = "other file would change, and is" if self.unreported == 1 else "other files would change, and are"
            yield f"{self.unreported} {others} as in {self.options.since}"
            yield from self._hanging() if self.has_plan else ()
        refusals = sum(len(result.refusals) for result in self.results)
        errors = sum(error.count for result in self.results for error in result.errors)
        errors += sum(result.failure is not None for result in self.results)
        errors += len(self.unwritten) + len(self.selection.unreadable)
        left = sum(len(result.left) for result in self.results)
        parts = [f"{counted(number, 'file')} {verb}"]
        parts += [style.doubt(counted(refusals, "refusal"))] if refusals else []
        parts += [style.error(counted(errors, "error"))] if errors else []
        parts += [f"{counted(left, self.noun)} left alone on purpose"] if left else []
        if self.changed or refusals or errors or left or sys.stderr.isatty():
            yield ", ".join(parts)

    def say(self, text: str) -> None:
        """One message, on standard error."""
        say(text)

    def _say_at(self, place: str, text: str) -> None:
        self.say(f"{style.place(place)}: {text}")

    def _say_error(self, error: HintError) -> None:
        place = f"{error.path}:{error.line}:{error.column}"
        message, _, rest = str(error).removeprefix(f"{place}: ").partition("\n")
        source, _, carets = rest.rpartition("\n")
        self._say_at(place, f"{style.error(message)}\n{source}\n{style.error(carets)}")

    def exit(self, changes_matter: bool = False, found: bool = False, incomplete: bool = False) -> NoReturn:
        """End the process: 2 for errors, 1 for findings, else 0.

        Args:
            changes_matter: Whether a file that would change is a finding.
            found: Whether the command has a finding of its own.
            incomplete: Whether the command could not do all of its work, which is an error.
        """
        if incomplete or self.selection.unreadable or self.unwritten or any(result.failed for result in self.results):
            sys.exit(ERROR)
        refused = self.options.strict and self.refused
        sys.exit(CHANGES if found or refused or (changes_matter and self.changed) else NOTHING)

    @property
    def refused(self) -> bool:
        """Whether anything was refused."""
        return any(result.refusals for result in self.results)

    def fail(self, message: str) -> NoReturn:
        """End the process with an error of the command itself, after the messages about the sources."""
        self.print_messages("would change")
        _stop(message)


def _causes(result: Rewrite, places: Collection[tuple[str, int | None]]) -> Rewrite | None:
    """The refusals and errors of an unchanged file that keep others back from some places; None if there are none."""
    refusals = tuple(each for each in result.refusals if (each.path, each.line) in places)
    stays = result.failed and (result.path, None) in places
    if not refusals and not stays:
        return None
    return Rewrite(
        *(result.path, result.original, result.original),
        refusals=refusals,
        errors=result.errors if stays else (),
        failure=result.failure if stays else None,
    )


def _stop(message: str) -> NoReturn:
    say(f"{style.error('Error')}: {message}")
    sys.exit(ERROR)
