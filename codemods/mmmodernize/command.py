"""`mmrewrite modernize`: a session that replaces old names of JAX, in place unless told otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn

import click

from mmmodernize.names.name_index import TITLES, numbers
from mmmodernize.names.newer_index import Lacking
from mmmodernize.names.private_index import is_gone
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import may_matter, modernize_project, reexports_of
from mmmodernize.settings import DEFAULT_TARGET, ModernizeSettings
from mmmodernize.upgrade import Newer, told_change, upgrade_of
from mmrewrite.cli.cache import Watched, cached
from mmrewrite.cli.config import VERSION
from mmrewrite.cli.next_steps import after_writing
from mmrewrite.cli.reports import formats_of
from mmrewrite.cli.reports._review import paragraphs
from mmrewrite.cli.session import Session
from mmrewrite.cli.source_options import SourceOptions
from mmrewrite.cli.terminal import style
from mmrewrite.codemod.registry import Registry
from mmrewrite.files.select import Selection, select_files
from mmrewrite.files.walk import SUFFIXES
from mmrewrite.results import Change, LeftAlone, Refusal, Rewrite

if TYPE_CHECKING:
    from mmmodernize.doubts.newer_uses import NewerUses

# The name of the report among those of commands.
_UPGRADE = "modernize --upgrade-to"


def run_modernize(
    options: SourceOptions, mode: str, target: str | None, upgrade_to: Sequence[str], explain_compat: bool
) -> None:
    """Modernize, write unless `mode` is `diff` or `check`, print, and exit."""
    if mode == "write" and options.since is not None:
        raise click.UsageError("--since is about reports; give --diff or --check as well.")
    session = _ModernizeSession(options, target, dict(map(_wanted_release, upgrade_to)))
    if mode == "write" and session.reads_stdin:
        session.write_to_stdout()
    if mode == "write":
        session.write_in_place()
    session.show_rewrites("modernize", shows_patch=mode != "write")
    if mode == "write":
        session.print_messages("changed", session.written)
        session.print_next(after_writing(session))
    else:
        session.print_messages("would change")
    if explain_compat:
        session.print_compat()
    session.exit(changes_matter=mode == "check", found=mode == "check" and session.refused)


def report_upgrade(options: SourceOptions, wanted: Sequence[str], target: str | None) -> NoReturn:
    """Print what an upgrade to releases needs, and exit: with 1 if it needs anything."""
    formats = formats_of(_UPGRADE)
    if options.output_format not in formats:
        raise click.UsageError(f"With --upgrade-to, --format is one of {', '.join(formats)}.")
    releases = dict(map(_wanted_release, wanted))
    session = _UpgradeSession(options, target, releases)

    def changed_in(codemod: str, name: str) -> tuple[str, str, Change] | None:
        return session.registry[codemod].change_of(name)

    command = " ".join(("mmrewrite modernize", *(f"--upgrade-to {each}" for each in wanted)))
    command += "" if target is None else f" --target-jax {target}"
    found = upgrade_of(session.results, releases, changed_in, session.reported_newer(), command)
    session.show(_UPGRADE, found)
    session.print_problems()
    session.exit(found=bool(found.needed) or found.lacks_any)


def _wanted_release(text: str) -> tuple[str, str]:
    """The package and the release in `0.11.0`, which is JAX, or `flax==0.12.0`.

    Raises:
        click.UsageError: If `text` has neither form, or the index does not know the package.
    """
    package, _, release = text.replace("==", "=").rpartition("=")
    if not VERSION.fullmatch(release):
        raise click.UsageError(f"`--upgrade-to` must be a release such as 0.11.0 or flax==0.12.0, not {text!r}.")
    name = package.strip().lower().replace("-", ".").replace("_", ".") or "jax"
    name = "orbax.checkpoint" if name == "orbax" else name
    if name not in TITLES:
        known = ", ".join(each.replace(".", "-") for each in TITLES)
        raise click.UsageError(f"`--upgrade-to` knows releases of {known}, not of {package!r}.")
    return name, release


class _ModernizeSession(Session):
    noun: ClassVar[str] = "old name"
    has_plan: ClassVar[bool] = False

    def __init__(self, options: SourceOptions, target: str | None, upgrade_to: Mapping[str, str]) -> None:
        self.registry, self.target, self.upgrade_to = ModernizeRegistry(), target, upgrade_to
        super().__init__(options)

    def select(self) -> Selection:
        """All modules and notebooks: which of them may matter is asked once it is known that there are no results."""
        return select_files(self.paths, self.rules, lambda _: True, SUFFIXES, self.progress.track)

    def rewrite(self) -> tuple[Rewrite, ...]:
        # A generator, since most runs need it not and it loads every codemod.
        default = (name for name, codemod in self.registry.items() if not codemod.on_request_only)
        settings = ModernizeSettings(
            selected=self.selected(self.registry, Registry(), default),
            width=self.config.width,
            jobs=self.options.jobs,
            ignored=self.ignored(self.registry, Registry()),
            target=self._oldest_jax(),
            is_upgrade=bool(self.upgrade_to),
            releases=tuple(sorted(self.upgrade_to.items())),
            track=self.progress.track,
        )
        watched = self.watched = Watched(self.selection, self.rules)

        def compute() -> tuple[Rewrite, ...]:
            reexports = reexports_of(self.selection.files, watched.load)
            found = modernize_project(
                self.selection.files, self.registry, load=watched.load, settings=settings, reexports=reexports
            )
            among = reexports.takers | reexports.givers
            return tuple(
                result
                for result in found
                if self.reads_stdin
                or result.changed
                or result.refusals
                or result.left
                or result.path in among
                or may_matter(result.original, self.registry)
            )

        return cached("modernize", settings, watched, compute, enabled=self.caches)

    def _oldest_jax(self) -> tuple[int, ...]:
        """The oldest JAX that the result must run on: an upgrade may lead to an older one than is asked for."""
        target = parse_target(self.target or self.config.target_jax)
        return min(target, numbers(self.upgrade_to["jax"])) if "jax" in self.upgrade_to else target

    def print_findings(self) -> None:
        """Each reason once with its places, the worst first, also of names left alone: nobody marked these."""
        if self.options.verbose:
            super().print_findings()
            return
        refusals = [each for result in self.results for each in result.refusals if not each.is_consequence]
        self._print_paragraphs((self._rank(each), each.place, "", each.reason) for each in refusals)
        self.print_consequences()
        left = [each for result in self.results for each in result.left]
        self._print_paragraphs(
            (_rank_of_left(each), each.place, each.text, f" left alone: {each.reason}") for each in left
        )

    def _rank(self, refusal: Refusal) -> int:
        """The place of a refusal in the order of reports: first what means something else without a word."""
        name = refusal.hint.name if refusal.hint is not None else ""
        change = self.registry[refusal.codemod].change_of(name)
        kind = change[2] if change is not None else "stops" if is_gone(name) else "unknown"
        return _WORST_FIRST.index(kind)

    def _print_paragraphs(self, found: Iterable[tuple[int, str, str, str]]) -> None:
        for each in paragraphs(found):
            others = f"\n  {style.one_line(each.others)}" if each.others else ""
            self.say(f"{style.place(each.place)}: {style.doubt(each.sentence)}{others}")

    def print_compat(self) -> None:
        """What keeps each use of `mmruntime.compat` from plain JAX, on standard error."""
        uses = [use for result in self.results for use in result.compat]
        for use in uses:
            self._say_at(
                f"{use.path}:{use.line}:{use.column}", f"`{use.text}` becomes `compat.{use.function}`: {use.reason}"
            )
        if not uses:
            self.say("no use of mmruntime.compat")


# What a release makes of a name, in the order of reports: first what means something else without a word.
_WORST_FIRST = ("changes", "stops", "unknown", "comes", "warns")


def _rank_of_left(left: LeftAlone) -> int:
    """The place of what is left in the order of reports: last what is settled."""
    return len(_WORST_FIRST) if left.is_settled else _WORST_FIRST.index(told_change(left.reason, fails=False)[2])


class _UpgradeSession(_ModernizeSession):
    """One that also looks for names that are newer than the upgrade."""

    newer: Mapping[str, NewerUses]

    def rewrite(self) -> tuple[Rewrite, ...]:
        """What becomes of each file, with those that use newer names."""
        # Upgrades alone need the names.
        from mmmodernize.doubts.newer_uses import uses_of_newer

        results = super().rewrite()
        takers = reexports_of(self.selection.files, self.watched.load).takers
        found = uses_of_newer(self.selection.files, self.watched.load, Lacking.of(self.upgrade_to), takers)
        self.newer = {uses.missing.path: uses for uses in found}
        others = {path: dataclasses.replace(uses.missing, left=()) for path, uses in self.newer.items()}
        return tuple((others | {result.path: result for result in results}).values())

    def reported_newer(self) -> Newer:
        """The uses of names that are newer in the files that are reported."""
        found = [self.newer[result.path] for result in self.results if result.path in self.newer]
        guarded = tuple(item for uses in found if uses.guarded is not None for item in uses.guarded.left)
        return Newer(Lacking.of(self.upgrade_to), tuple(item for uses in found for item in uses.missing.left), guarded)


def parse_target(text: str | None) -> tuple[int, ...]:
    """A version such as `0.4.30` as numbers.

    Raises:
        click.UsageError: If `text` has not the form of a version.
    """
    if text is None:
        return DEFAULT_TARGET
    if not VERSION.fullmatch(text):
        raise click.UsageError(f"`target-jax` must be a version of JAX such as 0.10 or 0.4.30, not {text!r}.")
    return tuple(int(part) for part in text.split("."))
