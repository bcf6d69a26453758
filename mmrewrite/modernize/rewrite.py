"""From old JAX code to the same program on today's JAX. Returns values; other files are read only through `load`.

The gates are those of `mmrewrite.engine.rewrite`: a byte search for the old names, then `ast` to resolve them. An edit
replaces only the characters of a name, a keyword or a bracket, so LibCST is not needed: no statement is printed anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from mmrewrite.engine.collection import no_collection
from mmrewrite.engine.outcome import unchanged
from mmrewrite.engine.settings import no_file
from mmrewrite.modernize.name_index import passes_modules
from mmrewrite.modernize.settings import ModernizeSettings
from mmrewrite.results import Rewrite

if TYPE_CHECKING:
    from mmrewrite.modernize.codemod import Codemods
    from mmrewrite.project.facts import Loader, SourceFile


# A function that returns a mesh may be called anything, so a `with` over one has no other mark.
_DEPEND_ON_A_CONTEXT = (b"pjit", b"thread_resources")
_ENTER_A_CONTEXT = (b"with ", b"enter_context", b"__enter__")


def may_have_old_names(data: bytes, codemods: Codemods) -> bool:
    """The first gate: whether a file can hold a name that a codemod replaces."""
    return any(codemod.may_be_in(data) for codemod in codemods.values())


def may_matter(data: bytes, codemods: Codemods) -> bool:
    """Whether a file may have an old name, or may matter to one in another file: by a mesh context, or a module."""
    # In this order, since `with` stands in the licences of most files that have one, and is soon looked for.
    return _has_any(data, _ENTER_A_CONTEXT) or may_have_old_names(data, codemods) or passes_modules(data)


def _marked(files: Sequence[SourceFile], codemods: Codemods) -> list[SourceFile]:
    """The files that may change, and those that matter to them.

    Such may enter a mesh context for their sites, or give them a module of which they read an old name.
    """
    dependent = (file for file in files if _has_any(file.data, _DEPEND_ON_A_CONTEXT))
    if any(may_have_old_names(file.data, codemods) for file in dependent):
        return [file for file in files if may_matter(file.data, codemods)]
    marked = [may_have_old_names(file.data, codemods) for file in files]
    is_any = any(marked)
    return [
        file
        for file, is_marked in zip(files, marked, strict=True)
        if is_marked or (is_any and passes_modules(file.data))
    ]


def _has_any(data: bytes, markers: Collection[bytes]) -> bool:
    return any(marker in data for marker in markers)


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
        load: The bytes of a file that a name leads into, None if there is no such file.
        settings: The user's options.

    Returns:
        One value for each file, in the order of `files`; it does not depend on that order.
    """
    marked = _marked(files, codemods)
    results = {file.path: unchanged(file) for file in files}
    if marked:
        from mmrewrite.modernize.decide import modernize_files

        with no_collection():
            results |= modernize_files(marked, codemods, load or no_file, settings or ModernizeSettings())
    return tuple(results[file.path] for file in files)
