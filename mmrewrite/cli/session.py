"""One look at the sources: settings, rewrites, messages, and the exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NoReturn

import click

from mmrewrite.cli.config import Config, ConfigError, read_config
from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.vocabulary import nearest
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.engine.settings import Settings
from mmrewrite.files.select import Rules, Selection, load_file, select_files
from mmrewrite.modernize.registry import ModernizeRegistry
from mmrewrite.results import Rewrite

NOTHING, CHANGES, ERROR = 0, 1, 2


@dataclass(frozen=True)
class Options:
    """What every command that reads sources can be told."""

    paths: tuple[str, ...]
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    jobs: int
    strict: bool
    quiet: bool
    verbose: bool
    config: str | None


class Run:
    """One look at the sources, and what is printed about it."""

    looked_for: ClassVar[str] = "hint"

    def __init__(self, options: Options, color: str) -> None:
        self.options = options
        self.color = {"always": True, "never": False}.get(color)
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
        return select_files(self.paths, self.rules)

    def rewrite(self) -> tuple[Rewrite, ...]:
        """What becomes of them."""
        registry = Registry()
        settings = Settings(
            self.selected(registry, ModernizeRegistry(), registry),
            self.config.axes,
            self.options.jobs,
            self.config.width,
            self.config.jaxtyping,
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
        self, registry: Collection[str], others: Collection[str], usual: Iterable[str]
    ) -> frozenset[str] | None:
        """The codemods of `registry` that may run, None for those that run unasked: names of `others` say nothing.

        `usual` are the ones from which `--ignore` takes away when nothing is selected.
        """
        named = self.options.select or self.config.select
        ignored = (*self.options.ignore, *self.config.ignore)
        for name in (*named, *ignored):
            if name not in registry and name not in others:
                raise click.UsageError(f"There is no codemod `{name}`{nearest(name, [*registry, *others])}")
        own = [name for name in named if name in registry]
        taken = [name for name in ignored if name in registry]
        if not own and not taken:
            return None
        return frozenset(own or usual) - frozenset(taken)

    @property
    def changed(self) -> list[Rewrite]:
        """Files with something to write."""
        return [result for result in self.results if result.changed]

    def patch(self) -> bytes:
        """What would change, for git."""
        from mmrewrite.files.patch import file_patch

        top = _top_of_tree()
        paths = (os.path.relpath(result.path, top).replace(os.sep, "/") for result in self.changed)
        return b"".join(file_patch(result, path) for result, path in zip(self.changed, paths, strict=True))

    def print_patch(self) -> None:
        """The patch, on standard output, as bytes."""
        data = self.patch()
        if self.color or (self.color is None and sys.stdout.isatty()):
            click.echo(_colored(data), nl=False, color=True)
        else:
            sys.stdout.buffer.write(data)
        sys.stdout.flush()

    def write_in_place(self) -> None:
        """Replace every changed file; one that cannot be written does not stop the others."""
        from mmrewrite.files.write import NotWritten, replace_file

        for result in self.changed:
            try:
                replace_file(result.path, result.original, result.result, self.paths)
            except NotWritten as problem:
                self.unwritten.append(f"{result.path}: not written: {problem}")

    def report(self, verb: str) -> None:
        """What was refused, what is wrong, and a summary, on standard error."""
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
                self._explain(result)
        for line in self._summary(verb):
            self.say(line)

    def _explain(self, result: Rewrite) -> None:
        for edit in result.edits:
            hints = "; ".join(f"line {hint.line}: {hint.text}" for hint in edit.hints)
            self.say(f"{result.path}: {', '.join(edit.codemods)}, because of {hints}")
        for left in result.left:
            self.say(f"{left.path}:{left.line}:{left.column}: `{left.text}` left alone: {left.reason}")

    def _summary(self, verb: str) -> Iterable[str]:
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

    def leave(self, changes_matter: bool = False, found: bool = False, incomplete: bool = False) -> NoReturn:
        """Exit: 2 for errors, 1 for what was asked about, else 0."""
        if incomplete or self.selection.unreadable or self.unwritten or any(result.failed for result in self.results):
            sys.exit(ERROR)
        refused = self.options.strict and any(result.refusals for result in self.results)
        sys.exit(CHANGES if found or refused or (changes_matter and self.changed) else NOTHING)

    def fail(self, message: str) -> NoReturn:
        """Exit with an error of our own command, after the report."""
        self.report("would change")
        _stop(message)


def _stop(message: str) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(ERROR)


def _top_of_tree() -> str:
    """The folder that git takes paths in a patch to be relative to."""
    here = Path.cwd()
    return str(next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here))


def _colored(data: bytes) -> str:
    colors = {"+": "green", "-": "red", "@": "cyan"}
    lines = data.decode(errors="replace").splitlines(keepends=True)
    heads = ("diff ", "--- ", "+++ ")
    return "".join(
        click.style(line, bold=True) if line.startswith(heads) else click.style(line, fg=colors.get(line[:1]))
        for line in lines
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
