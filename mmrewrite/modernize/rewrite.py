"""From old JAX code to the same on today's JAX. Returns values; reads no file that it was not given a loader for.

The gates are those of `mmrewrite.engine.rewrite`: a byte search for the old names, `ast` for what they stand for. An
edit replaces the characters of a name, a keyword or a bracket, so nothing else of a statement has to be printed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrewrite.engine.outcome import unchanged
from mmrewrite.engine.settings import no_file
from mmrewrite.modernize.settings import ModernizeSettings
from mmrewrite.results import Rewrite

if TYPE_CHECKING:
    from mmrewrite.modernize.codemod import Codemods
    from mmrewrite.project.facts import Loader, SourceFile


def may_have_old_names(data: bytes, codemods: Codemods) -> bool:
    """The first gate: whether a file can hold anything that a codemod replaces."""
    return any(marker in data for codemod in codemods.values() for marker in codemod.markers())


def modernize_project(
    files: Sequence[SourceFile],
    codemods: Codemods,
    *,
    load: Loader | None = None,
    settings: ModernizeSettings | None = None,
) -> tuple[Rewrite, ...]:
    """Modernize the modules of one run together, since a mesh context in one may reach code in another.

    Args:
        files: The modules that may change; a path that ends in `.ipynb` is a notebook.
        codemods: Name and class of every codemod.
        load: Bytes of a file that a name leads into, None where there is no such file.
        settings: What the user asked for.

    Returns:
        One value for each file, in the order of `files`; it does not depend on that order.
    """
    wanted = [file for file in files if may_have_old_names(file.data, codemods)]
    results = {file.path: unchanged(file) for file in files}
    if wanted:
        from mmrewrite.modernize.decide import modernize_files

        results |= modernize_files(wanted, codemods, load or no_file, settings or ModernizeSettings())
    return tuple(results[file.path] for file in files)
