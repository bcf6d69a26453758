"""The packages of codemods that come with the tool, and what the tool asks of the one for old names.

Nothing else of the tool names them. Packages of others are found by entry points (see `plugins`); to read our own from
there as well would take longer than all the rest of a short run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import Any, Protocol

    from mmrewrite.codemod.registry import Codemods
    from mmrewrite.project.facts import Loader, SourceFile
    from mmrewrite.results import Rewrite

    class OldNames(Protocol):
        """What the module `product` of a package for old names has. None of it imports more than it needs."""

        def registry(self) -> Codemods[Any]:
            """The codemods for old names."""

        def may_have_old_names(self, data: bytes) -> bool:
            """Whether a codemod of ours may have a site in a file with these bytes."""

        def may_matter_together(self, files: Mapping[str, bytes], load: Callable[[str], bytes | None]) -> bool:
            """Whether files, by path, may have a site by what they import from each other, where none has one alone."""

        def rewrite(
            self,
            files: Sequence[SourceFile],
            codemods: Mapping[str, Any],
            *,
            load: Loader,
            selected: Collection[str] | None,
            target: tuple[int, ...] | None = None,
        ) -> tuple[Rewrite, ...]:
            """The result of each file, by the codemods that are selected, for this JAX or newer."""

        def run(
            self,
            options: Mapping[str, Any],
            *,
            mode: str,
            target_jax: str | None,
            upgrade_to: Sequence[str],
            explain_compat: bool,
        ) -> None:
            """Run the command: modernize as `mode` says (`write`, `diff` or `check`), print, and exit."""


HINTS, OLD_NAMES = "mmcodemods", "mmmodernize"


def old_names() -> OldNames:
    """What the tool asks of the package for old names."""
    return cast("OldNames", importlib.import_module(f"{OLD_NAMES}.product"))


def registries() -> Iterator[Codemods[Any]]:
    """The codemods for hints, then those for old names."""
    from mmrewrite.codemod.registry import Registry

    yield Registry()
    yield old_names().registry()
