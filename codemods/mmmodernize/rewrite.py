"""From old JAX code to the same program on today's JAX. Returns values; other files are read only through `load`.

The gates are those of `mmrewrite.engine.rewrite`: a byte search for the old names, then `ast` to resolve them. An edit
replaces only the characters of a name, a keyword or a bracket, so LibCST is not needed: no statement is printed anew.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from mmmodernize.names.call_gate import held_across
from mmmodernize.names.gate import has_last_part
from mmmodernize.names.name_index import passes_modules
from mmmodernize.names.reexports import TakenNames
from mmmodernize.settings import ModernizeSettings
from mmrewrite.engine.garbage import no_collection
from mmrewrite.engine.outcome import unchanged
from mmrewrite.engine.settings import no_file
from mmrewrite.results import Rewrite
from mmrewrite.source.failure import with_room

if TYPE_CHECKING:
    from mmmodernize.codemod import Codemods
    from mmrewrite.project.facts import Loader, SourceFile


# A function that returns a mesh may be called anything, so a `with` over one has no other mark. Other files may set the
# mesh: `partitioning.mesh = mesh`.
_DEPEND_ON_A_CONTEXT = (b"pjit", b"thread_resources")
_ENTER_A_CONTEXT = (b"with ", b"enter_context", b"__enter__", b"mesh")


def may_have_site(data: bytes, codemods: Codemods) -> bool:
    """Whether a file may hold a name that one of these codemods replaces; for all of ours, `names.gate` is faster."""
    return any(codemod.may_be_in(data) for codemod in codemods.values())


def may_matter(data: bytes, codemods: Codemods) -> bool:
    """Whether a file may have an old name, or may matter to one in another file: by a mesh context, or a module."""
    # In this order, since `with` stands in the licences of most files that have one, and is soon looked for.
    return _has_any(data, _ENTER_A_CONTEXT) or may_have_site(data, codemods) or passes_modules(data)


def reexports_of(files: Sequence[SourceFile], load: Loader) -> TakenNames:
    """What files take from each other by way of the project's own modules."""
    return TakenNames({file.path: file.data for file in files}, load)


def _marked(files: Sequence[SourceFile], codemods: Codemods, reexports: TakenNames) -> list[SourceFile]:
    """The files that may change, and those that matter to them.

    Such may enter a mesh context for their sites, give them a module of which they read an old name, or take a name
    from them that must then stay. Others may call a function that one of them holds with a keyword that it lost, or set
    what they have to something else.
    """
    old: set[str] = set()
    is_taking = False
    for file in files:
        if may_have_site(file.data, codemods):
            old.add(file.path)
        is_taking = is_taking or (file.path in reexports.takers and has_last_part(file.data))
    other = {file.path: file.data for file in files if file.path not in old}
    held = held_across({file.path: file.data for file in files}, other, reexports)
    if not old and not is_taking and not held:
        return []
    dependent = (file for file in files if _has_any(file.data, _DEPEND_ON_A_CONTEXT))
    matters = may_matter if any(file.path in old for file in dependent) else _passes_modules
    among = old | reexports.takers | reexports.givers | held | {*_given(files, reexports)}
    among |= {path for path, data in other.items() if path not in among and matters(data, codemods)}
    setting = [path for path, data in other.items() if path not in among and _SETS.search(data)] if old else ()
    if setting:
        among |= reexports.between(old, setting)
    return [file for file in files if file.path in among]


# A line that sets an attribute.
_STORE = rb"^[ \t]*[\w.]+\.\w+ *=[^=]"
# What some files hold, and what is done to it elsewhere that matters. Variables of nnx may come to files without that
# word: what is done to them raises today, or means something else. A mapped function may be a method that a class in
# another file overrides by one that takes gradients, and a mesh may be meant to have explicit axes.
_GIVEN = tuple(
    (re.compile(holds), re.compile(does, re.M))
    for holds, does in (
        (
            rb"nnx",
            rb"[^=<>!\s]\s*(?:[-+*/@%&|^]|<<|>>|//|\*\*)=|\.sharding\b|\bsetattr\(|\bdelattr\("
            rb"|" + _STORE,
        ),
        (rb"experimental\b.*\bshard_map\b", rb"grad|vjp|jvp|linearize|jac(?:fwd|rev|obian)|hessian"),
        (rb"\bmake_mesh\b", rb"\b(?:AxisType|reshard|explicit_axes|auto_axes|out_sharding)\b"),
    )
)


# What gives something another value that a file has: a class that derives from one there, or an attribute that is set.
_SETS = re.compile(
    rb"^[ \t]*class +\w+ *[(]|" + _STORE + rb"|\bsetattr\(|\bglobals\(\)|\bvars\(|__dict__|\bexec\(|\bpatch", re.M
)


def _given(files: Sequence[SourceFile], reexports: TakenNames) -> Iterator[str]:
    """The files that may get a value made in another file and use it in a way that matters, and the files between."""
    for holds, does in _GIVEN:
        holding = {file.path for file in files if holds.search(file.data)}
        doing = [file.path for file in files if file.path not in holding and does.search(file.data)] if holding else ()
        if doing:
            # A file that imports both may hand it on.
            yield from reexports.between(reexports.between(holding, [file.path for file in files]), doing)


def _passes_modules(data: bytes, _: Codemods) -> bool:
    return passes_modules(data)


def _has_any(data: bytes, markers: Collection[bytes]) -> bool:
    return any(marker in data for marker in markers)


def modernize_project(
    files: Sequence[SourceFile],
    codemods: Codemods,
    *,
    load: Loader | None = None,
    settings: ModernizeSettings | None = None,
    reexports: TakenNames | None = None,
) -> tuple[Rewrite, ...]:
    """Modernize the modules of one run together, since a mesh context in one may reach code in another.

    Args:
        files: The modules that may change; a path that ends in `.ipynb` is a notebook.
        codemods: Name and class of every codemod.
        load: The bytes of a file that a name leads into, None if there is no such file.
        settings: The user's options.
        reexports: What files take from each other, if that is known.

    Returns:
        One value for each file, in the order of `files`; it does not depend on that order.
    """
    load = load or no_file
    marked = _marked(files, codemods, reexports or reexports_of(files, load))
    results = {file.path: unchanged(file) for file in files}
    if marked:
        from mmmodernize.decide import modernize_files

        with no_collection():
            results |= with_room(lambda: modernize_files(marked, codemods, load, settings or ModernizeSettings()))
    return tuple(results[file.path] for file in files)
