"""From hinted source to rewritten source. Returns values; other files are read only through the loaders passed in.

Three gates, each imported when it is reached: a byte search finds the files that may hold hints, `ast` reads hints and
names, LibCST parses the statements that change. Importing LibCST costs more than the first gate does on a project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mmrewrite.directives.carrier import may_have_hints
from mmrewrite.engine.garbage import no_collection
from mmrewrite.engine.outcome import unchanged
from mmrewrite.engine.settings import HintSettings, Sources, no_file, no_importers
from mmrewrite.results import Rewrite
from mmrewrite.source.failure import with_room

if TYPE_CHECKING:
    from mmrewrite.codemod.base import MeshCodemod
    from mmrewrite.project.facts import Adopt, Importing, Loader, SourceFile


def rewrite_source(
    source: str,
    codemods: Mapping[str, type[MeshCodemod]],
    *,
    path: str = "module.py",
    settings: HintSettings | None = None,
) -> Rewrite:
    """Rewrite one module that stands alone."""
    from mmrewrite.project.facts import SourceFile

    module = path.rpartition("/")[2].removesuffix(".py")
    (result,) = rewrite_project([SourceFile(path, source.encode(), module)], codemods, settings=settings)
    return result


def rewrite_project(
    files: Sequence[SourceFile],
    codemods: Mapping[str, type[MeshCodemod]],
    *,
    load: Loader | None = None,
    adopt: Adopt | None = None,
    importing: Importing | None = None,
    starring: Sequence[SourceFile] = (),
    settings: HintSettings | None = None,
) -> tuple[Rewrite, ...]:
    """Rewrite the modules of one run together, since hints in one may need the mesh of another.

    Args:
        files: The modules that may change.
        codemods: Name and class of every codemod; the classes are loaded when the first hint is found.
        load: The bytes of a file that a name leads into, None if there is no such file.
        adopt: The file at a place that imports lead to, if it may change although it is not among `files`; it changes
            if it has logical axis names and the program that imports it has a mesh.
        importing: Called with a test of bytes when a module of the project re-exports the hint functions; gives the
            files of the project that pass and are not among `files`.
        starring: Files of the project with star imports that are not among `files`: new names hide none of theirs.
        settings: The user's options.

    Returns:
        One value for each of `files`, in their order, then those of adopted files by path. The values depend neither
        on that order nor on the number of processes.
    """
    marked = [file for file in files if may_have_hints(file.data)]
    results = {file.path: unchanged(file) for file in files}
    if marked:
        from mmrewrite.engine.decide import rewrite_marked

        sources = Sources(files, load or no_file, adopt or no_file, importing or no_importers, starring)
        with no_collection():
            results |= with_room(lambda: rewrite_marked(marked, codemods, sources, settings or HintSettings()))
    paths = [file.path for file in files]
    return tuple(results[path] for path in (*paths, *sorted(results.keys() - set(paths))))
