"""What the tool asks of this package: see `mmrewrite.codemod.products`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmmodernize.registry import ModernizeRegistry
    from mmrewrite.project.facts import Loader, SourceFile
    from mmrewrite.results import Rewrite


def registry() -> ModernizeRegistry:
    """The codemods for old names."""
    from mmmodernize.registry import ModernizeRegistry

    return ModernizeRegistry()


def may_have_old_names(data: bytes) -> bool:
    """Whether a codemod of ours may have a site in a file with these bytes."""
    from mmmodernize.names.gate import may_have_old_names

    return may_have_old_names(data)


def may_matter_together(files: Mapping[str, bytes], load: Callable[[str], bytes | None]) -> bool:
    """Whether files, by path, may have a site by what they import from each other, where none has one alone."""
    from mmmodernize.names.call_gate import held_across
    from mmmodernize.names.gate import has_last_part
    from mmmodernize.names.reexports import TakenNames

    taken = TakenNames({path: data for path, data in files.items() if b"import" in data}, load)
    return any(has_last_part(files[path]) for path in taken.takers) or bool(held_across(files, files, taken))


def rewrite(
    files: Sequence[SourceFile],
    codemods: Mapping[str, Any],
    *,
    load: Loader,
    selected: Collection[str] | None,
    target: tuple[int, ...] | None = None,
) -> tuple[Rewrite, ...]:
    """The result of each file, by the codemods that are selected, for this JAX or newer."""
    from mmmodernize.rewrite import modernize_project
    from mmmodernize.settings import DEFAULT_TARGET, ModernizeSettings

    chosen = None if selected is None else frozenset(selected)
    settings = ModernizeSettings(selected=chosen, target=target or DEFAULT_TARGET)
    return modernize_project(files, codemods, load=load, settings=settings)


def run(
    options: Mapping[str, Any], *, mode: str, target_jax: str | None, upgrade_to: Sequence[str], explain_compat: bool
) -> None:
    """Run the command: modernize as `mode` says (`write`, `diff` or `check`), print, and exit."""
    from mmmodernize.command import report_upgrade, run_modernize
    from mmrewrite.cli.source_options import SourceOptions

    if upgrade_to and mode == "check":
        report_upgrade(SourceOptions(**options), upgrade_to, target_jax)
    run_modernize(SourceOptions(**options), mode, target_jax, upgrade_to, explain_compat)


if TYPE_CHECKING:
    from mmmodernize import product
    from mmrewrite.codemod.products import OldNames

    _IS_ONE: OldNames = product
