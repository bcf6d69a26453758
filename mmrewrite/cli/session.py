"""One look at the sources: configuration, files, rewrites, messages, and the exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, NoReturn

import click

from mmrewrite.cli.config import Config, ConfigError, read_config
from mmrewrite.cli.options import SourceOptions
from mmrewrite.cli.reports import NotShown, RewriteReport, render
from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.vocabulary import nearest
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.engine.settings import HintSettings
from mmrewrite.files.select import Rules, Selection, load_file, select_files
from mmrewrite.modernize.registry import ModernizeRegistry
from mmrewrite.results import Rewrite

NOTHING, CHANGES, ERROR = 0, 1, 2


class Session:
    """The sources that a command reads and what becomes of them.

    Everything that a person reads besides the command's output goes to standard error, whatever the format.
    """

    looked_for: ClassVar[str] = "hint"

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.color = {"always": True, "never": False}.get(options.color)
        self.unwritten: list[str] = []
        try:
            self.config: Config = read_config(Path.cwd(), Path(options.config) if options.config else None)
        except ConfigError as error:
            _stop(str(error))
        self.paths = options.paths or tuple(str(self.config.folder / path) for path in self.config.include) or (".",)
        self.rules = Rules(self.config.folder, self.config.exclude)
        self.selection: Selection = self.select()
        self.results: tuple[Rewrite, ...] = self.rewrite()

    def select(self) -> Selection:
        """The files that may change."""
        return select_files(self.paths, self.rules, suffixes=(".py", ".ipynb"))

    def rewrite(self) -> tuple[Rewrite, ...]:
        """The rewrites of the selected files, in path order."""
        registry = Registry()
        settings = HintSettings(
            selected=self.selected(registry, ModernizeRegistry(), registry),
            width=self.config.width,
            axes=self.config.axes,
            jobs=self.options.jobs,
            jaxtyping=self.config.jaxtyping,
        )
        results = rewrite_project(
            self.selection.files,
            registry,
            load=load_file,
            adopt=lambda place: self.selection.adopt(place, self.rules),
            importing=lambda wanted: self.selection.importing(wanted, self.rules),
            settings=settings,
        )
        return tuple(sorted(results, key=lambda result: result.path))

    def selected(
        self, registry: Collection[str], others: Collection[str], default: Iterable[str]
    ) -> frozenset[str] | None:
        """The codemods of `registry` that may run, None for the default ones.

        Args:
            registry: The codemods of this command.
            others: Codemods of the other command; `select` and `ignore` in the configuration may name them too.
            default: The codemods that run when none is selected, less those that are ignored.

        Raises:
            click.UsageError: If `select` or `ignore` names a codemod that does not exist.
        """
        selected = self.options.select or self.config.select
        ignored = (*self.options.ignore, *self.config.ignore)
        for name in (*selected, *ignored):
            if name not in registry and name not in others:
                raise click.UsageError(f"There is no codemod `{name}`{nearest(name, [*registry, *others])}")
        own_selected = [name for name in selected if name in registry]
        own_ignored = [name for name in ignored if name in registry]
        if not own_selected and not own_ignored:
            return None
        return frozenset(own_selected or default) - frozenset(own_ignored)

    @property
    def changed(self) -> list[Rewrite]:
        """The results with something to write."""
        return [result for result in self.results if result.changed]

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
        click.echo(output, nl=False, color=self.color)

    def show_rewrites(self, command: str, *, shows_patch: bool) -> None:
        """Print the rewrites in the format of `--format`."""
        color = self.color if self.color is not None else sys.stdout.isatty()
        self.show(command, RewriteReport(self.results, self.top, shows_patch, color))

    def write_report(self, command: str, output_format: str, result: object, path: str) -> None:
        """Write the command's result to a file, replacing it whole; exit if that is impossible."""
        from mmrewrite.files.write import write_new

        try:
            output = render(command, output_format, result)
        except NotShown as problem:
            self.fail(str(problem))
        absolute = os.path.abspath(path)
        folder = os.path.dirname(absolute)
        if not os.path.isdir(folder):
            self.fail(f"{path}: there is no folder {folder}; make it first")
        if os.path.isdir(path):
            self.fail(f"{path} is a folder; name a file in it")
        try:
            write_new(absolute, output if isinstance(output, bytes) else output.encode())
        except OSError as error:
            self.fail(f"{path}: not written: {error.strerror or error}")

    def write_in_place(self) -> None:
        """Replace every changed file; one that cannot be written does not stop the others."""
        from mmrewrite.files.write import NotWritten, replace_file

        for result in self.changed:
            try:
                replace_file(result.path, result.original, result.result, self.paths)
            except NotWritten as problem:
                self.unwritten.append(f"{result.path}: not written: {problem}")

    def print_messages(self, verb: str) -> None:
        """Errors, refusals and a summary, on standard error. `verb` says what the files did: "changed"."""
        for path, message in self.selection.unreadable:
            self.say(f"{path}: {message}")
        for result in self.results:
            if result.failure is not None:
                self.say(f"{result.path}: {result.failure}")
            for error in result.errors:
                self.say(str(error))
        for message in self.unwritten:
            self.say(message)
        if self.options.quiet:
            return
        for result in self.results:
            for refusal in result.refusals:
                self.say(str(refusal))
            if self.options.verbose:
                self._print_reasons(result)
        for line in self._summary(verb):
            self.say(line)

    def _print_reasons(self, result: Rewrite) -> None:
        for edit in result.edits:
            hints = "; ".join(f"line {hint.line}: {hint.text}" for hint in edit.hints)
            self.say(f"{result.path}: {', '.join(edit.codemods)}, because of {hints}")
        self.print_left_alone(result)

    def print_left_alone(self, result: Rewrite) -> None:
        """The hints, or old names, that were left alone on purpose."""
        for left in result.left:
            self.say(f"{left.path}:{left.line}:{left.column}: `{left.text}` left alone: {left.reason}")

    def _summary(self, verb: str) -> Iterator[str]:
        """One line of counts; none when nothing happened and nobody watches."""
        refusals = sum(len(result.refusals) for result in self.results)
        errors = sum(len(result.errors) + (result.failure is not None) for result in self.results)
        left = sum(len(result.left) for result in self.results)
        parts = [f"{_count(len(self.changed), 'file')} {verb}"]
        parts += [_count(refusals, "refusal")] if refusals else []
        parts += [_count(errors, "error")] if errors else []
        parts += [f"{_count(left, self.looked_for)} left alone on purpose"] if left else []
        if self.changed or refusals or errors or left or sys.stderr.isatty():
            yield ", ".join(parts)

    def say(self, text: str) -> None:
        """One message, on standard error."""
        click.echo(text, err=True, color=self.color)

    def exit(self, changes_matter: bool = False, found: bool = False, incomplete: bool = False) -> NoReturn:
        """End the process: 2 for errors, 1 for findings, else 0.

        Args:
            changes_matter: Whether a file that would change is a finding.
            found: Whether the command has a finding of its own.
            incomplete: Whether the command could not do all of its work, which is an error.
        """
        if incomplete or self.selection.unreadable or self.unwritten or any(result.failed for result in self.results):
            sys.exit(ERROR)
        refused = self.options.strict and any(result.refusals for result in self.results)
        sys.exit(CHANGES if found or refused or (changes_matter and self.changed) else NOTHING)

    def fail(self, message: str) -> NoReturn:
        """End the process with an error of the command itself, after the messages about the sources."""
        self.print_messages("would change")
        _stop(message)


def _stop(message: str) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(ERROR)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
