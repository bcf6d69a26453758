"""The facts of one module: its text, tree, names, hints and meshes."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mmrewrite.directives.arguments import whole_number
from mmrewrite.directives.calls import Reexports
from mmrewrite.directives.carrier import PACKAGE, has_carrier
from mmrewrite.directives.collect import Collected, Hint, collect_hints
from mmrewrite.directives.vocabulary import Role
from mmrewrite.source.failure import failure_of
from mmrewrite.source.file import SourceFile as SourceFile
from mmrewrite.source.mentions import Mentions
from mmrewrite.source.names import Module, Scope, numbered, read_names
from mmrewrite.source.spans import parse_program
from mmrewrite.source.text import SourceError, SourceText, TooDeep

RUNTIME = "mmruntime"

# The bytes of the file at a place, None if there is none. Of a folder, whose place ends in `/`, the names that may be
# imported from it, one a line; None if nothing is known of it.
Loader = Callable[[str], bytes | None]

# The file at a place that may change though it is not among the files of the run, None if it may not.
Adopt = Callable[[str], "SourceFile | None"]

# The files beside those of the run whose bytes pass a test.
Importing = Callable[[Callable[[bytes], bool]], "Iterable[SourceFile]"]

_TOO_DEEP = "nested too deeply to be read; split its longest expressions"
# A module of so many words and signs takes some two gigabytes, and one of fewer bytes has not so many.
_MOST_PARTS, _FEW_BYTES = 2_000_000, 1 << 20
# A hint takes as much as so many of them.
_PARTS_OF_HINT = 10
TOO_LARGE = f"more than {_MOST_PARTS:,} names, values and signs in one module; split it into several"
# Comments, strings with their brackets for fields, words and signs.
_PARTS = re.compile(
    rb'#[^\r\n]*|"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*(?:"""|\Z)|"[^"\\\r\n]*(?:\\.[^"\\\r\n]*)*"?'
    rb"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*(?:'''|\Z)|'[^'\\\r\n]*(?:\\.[^'\\\r\n]*)*'?|\w+|[^\w\s]",
    re.DOTALL,
)

# An import of our package, also over lines that end in a backslash.
_CONTINUED = re.compile(r"\\\r?\n")
_IMPORT = re.compile(r"\b(?:from|import)\b")
_OURS = re.compile(rf"\b{PACKAGE}\b")


@dataclass(frozen=True, eq=False)
class Mesh:
    """A mesh of a module: one that it makes, or that its `mesh(...)` hint will make.

    `axes` are the names of its axes, None where an expression computes them; `sizes` are those sizes that are written
    out as numbers.
    """

    name: str
    scope: Scope
    statement: ast.stmt
    hint: Hint | None
    axes: tuple[str, ...] | None
    sizes: Mapping[str, int]


@dataclass(eq=False)
class Facts:
    """All that is known about one module before any codemod decides anything."""

    file: SourceFile
    source: SourceText
    tree: ast.Module
    names: Module
    hints: Collected
    meshes: tuple[Mesh, ...] = ()

    @property
    def path(self) -> str:
        """The path as the user knows it."""
        return self.file.path

    @cached_property
    def mentions(self) -> Mentions:
        """What each statement mentions: names, attributes and imports."""
        return Mentions(self.tree)

    def scope_of(self, statement: ast.stmt) -> Scope:
        """The scope in which `statement` runs."""
        return self.names.scopes[statement]


@dataclass(frozen=True)
class Unreadable:
    """A file that cannot be read, and why; a newer Python may read one that is `unparsed`."""

    file: SourceFile
    message: str
    unparsed: bool = False


def read_facts(
    file: SourceFile,
    codemods: Collection[str],
    left: Mapping[int, str] | None = None,
    reexports: Reexports | None = None,
) -> Facts | Unreadable:
    """Parse one file with `ast` and collect its names and hints.

    Hints that are calls are removed from the tree, so that it is the program's own.

    Args:
        file: The file.
        codemods: The names that `ignore` may have.
        left: Hints that are calls and stay part of the program: their offset, and why.
        reexports: Hint functions that other modules of the project re-export.
    """
    if len(file.data) > _FEW_BYTES and _is_too_large(file.data):
        return Unreadable(file, TOO_LARGE)
    try:
        source = SourceText.decode(file.data)
        tree = parse_program(source.text)
    except SourceError as error:
        return Unreadable(file, str(error))
    except SyntaxError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        where = f"line {error.lineno or 1}, column {error.offset or 1}"
        message = (
            f"Python {version} cannot parse this file: {error.msg} ({where}); if a newer Python can, run mmrewrite "
            "with that one"
        )
        return Unreadable(file, message, unparsed=True)
    except TooDeep:
        return Unreadable(file, _TOO_DEEP)
    except ValueError as error:
        return Unreadable(file, f"cannot be parsed: {error}")
    except Exception as error:
        return Unreadable(file, failure_of(error))
    try:
        names = read_names(tree, file.module, file.is_package)
        names.follow = (reexports or Reexports()).meaning
        hints = collect_hints(file.path, source, names, codemods, left, reexports)
        if hints.calls:
            # The calls have left the tree, and the names that only they used with them.
            names = read_names(tree, file.module, file.is_package)
            names.follow = (reexports or Reexports()).meaning
        facts = Facts(file, source, tree, names, hints)
        facts.meshes = tuple(_meshes(facts))
    except TooDeep:
        return Unreadable(file, _TOO_DEEP)
    except Exception as error:
        # One file's trouble is no reason to lose the others.
        return Unreadable(file, failure_of(error))
    return facts


def _is_too_large(data: bytes) -> bool:
    """Whether the tree of a module, and what is asked of it, would take more memory than a run should."""
    left = _MOST_PARTS
    for match in _PARTS.finditer(data):
        part = match.group()
        left -= 1 + part.count(b"{") if part[:1] != b"#" else _PARTS_OF_HINT * (b"mm:" in part)
        if left < 0:
            return True
    return False


def has_mark(file: SourceFile) -> bool:
    """Whether a file that passed the byte search may hold a hint."""
    return has_carrier(file.data) or _may_import(file.data)


def _may_import(data: bytes) -> bool:
    """Whether our package is named behind an `import` or a `from`, up to the end of the line or a comment."""
    if PACKAGE.encode() not in data:
        return False
    # Latin-1 decodes any bytes, and the patterns are ASCII.
    text = _CONTINUED.sub(" ", data.decode("latin-1"))
    for part in text.replace("#", "\n").split("\n"):
        found = _IMPORT.search(part) if PACKAGE in part else None
        if found is not None and _OURS.search(part, found.end()) is not None:
            return True
    return False


def _meshes(facts: Facts) -> Iterator[Mesh]:
    taken: set[tuple[int, str]] = set()
    for hint in facts.hints.hints:
        declared = hint.record.declares
        if declared is None:
            continue
        scope = facts.scope_of(hint.statement)
        hidden = _hiding(facts, scope)
        name = next(
            name
            for name in numbered(declared)
            if scope.is_free(name) and name not in hidden and (id(scope), name) not in taken
        )
        taken.add((id(scope), name))
        sizes = {axis: whole_number(argument.value) for axis, argument in hint.named}
        known = {axis: size for axis, size in sizes.items() if size is not None}
        yield Mesh(name, scope, hint.statement, hint, tuple(sizes), known)
    if RUNTIME not in facts.source.text:
        return
    for statement, scope in facts.names.scopes.items():
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        if facts.names.resolve(statement.value.func, scope) == f"{RUNTIME}.MultiMesh":
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    axes = _axis_names(statement.value)
                    yield Mesh(target.id, scope, statement, None, axes, _sizes(statement.value, axes or ()))


def _hiding(facts: Facts, scope: Scope) -> set[str]:
    """Local names of the functions between `scope` and a step, which would hide a mesh of that name from the step."""
    found: set[str] = set()
    for hint in facts.hints.hints:
        chain = list(facts.scope_of(hint.statement).chain()) if hint.record.role is Role.COMPILE else []
        if scope in chain:
            found.update(name for inner in chain[: chain.index(scope)] for name in inner.bindings)
    return found


def _axis_names(call: ast.Call) -> tuple[str, ...] | None:
    for keyword in call.keywords:
        if keyword.arg == "axis_names" and isinstance(keyword.value, ast.Tuple | ast.List):
            names = [item.value for item in keyword.value.elts if isinstance(item, ast.Constant)]
            if len(names) == len(keyword.value.elts):
                return tuple(str(name) for name in names)
    return None


def _sizes(call: ast.Call, axes: Sequence[str]) -> dict[str, int]:
    for keyword in call.keywords:
        if keyword.arg == "axis_sizes" and isinstance(keyword.value, ast.Tuple | ast.List):
            sizes = [whole_number(item) for item in keyword.value.elts]
            if len(sizes) == len(axes):
                return {axis: size for axis, size in zip(axes, sizes, strict=True) if size is not None}
    return {}
