"""`mmrewrite modernize`: a session that replaces old names of JAX, in place unless told otherwise."""

from __future__ import annotations

import re
from typing import ClassVar

import click

from mmrewrite.cli.options import SourceOptions
from mmrewrite.cli.session import Session
from mmrewrite.codemod.registry import Registry
from mmrewrite.files.select import Selection, load_file, select_files
from mmrewrite.modernize.registry import ModernizeRegistry
from mmrewrite.modernize.rewrite import may_matter, modernize_project
from mmrewrite.modernize.settings import DEFAULT_TARGET, ModernizeSettings
from mmrewrite.results import Rewrite


def run_modernize(options: SourceOptions, mode: str, target: str | None) -> None:
    """Modernize, write unless `mode` is `diff` or `check`, print, and exit."""
    session = _ModernizeSession(options, target)
    if mode == "write":
        session.write_in_place()
    session.show_rewrites("modernize", shows_patch=mode != "write")
    session.print_messages("changed" if mode == "write" else "would change")
    refused = any(result.refusals for result in session.results)
    session.exit(changes_matter=mode == "check", found=mode == "check" and refused)


class _ModernizeSession(Session):
    looked_for: ClassVar[str] = "old name"

    def __init__(self, options: SourceOptions, target: str | None) -> None:
        self.registry, self.target = ModernizeRegistry(), target
        super().__init__(options)

    def select(self) -> Selection:
        """Modules and notebooks in which an old name may occur, or a `with` over a mesh."""
        return select_files(self.paths, self.rules, lambda data: may_matter(data, self.registry), (".py", ".ipynb"))

    def rewrite(self) -> tuple[Rewrite, ...]:
        default = [name for name, codemod in self.registry.items() if not codemod.on_request_only]
        settings = ModernizeSettings(
            selected=self.selected(self.registry, Registry(), default),
            width=self.config.width,
            target=parse_target(self.target or self.config.target_jax),
        )
        return modernize_project(self.selection.files, self.registry, load=load_file, settings=settings)

    def print_messages(self, verb: str) -> None:
        """The same, and always the names left alone: nobody marked them, so the user does not know of them yet."""
        if not self.options.quiet and not self.options.verbose:
            for result in self.results:
                self.print_left_alone(result)
        super().print_messages(verb)


def parse_target(text: str | None) -> tuple[int, ...]:
    """A version such as `0.4.30` as numbers.

    Raises:
        click.UsageError: If `text` has not the form of a version.
    """
    if text is None:
        return DEFAULT_TARGET
    if not re.fullmatch(r"\d+(\.\d+){1,3}", text):
        raise click.UsageError(f"`target-jax` must be a version of JAX such as 0.10 or 0.4.30, not {text!r}.")
    return tuple(int(part) for part in text.split("."))
