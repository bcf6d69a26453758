"""What one module says: its text, tree, names, hints and meshes."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from mmrewrite.directives.calls import PACKAGE, Handed
from mmrewrite.directives.collect import Collected, Hint, collect_hints
from mmrewrite.directives.comments import MARK
from mmrewrite.source.mentions import Mentions
from mmrewrite.source.names import Module, Scope, numbered, read_names
from mmrewrite.source.newer_syntax import parse_any
from mmrewrite.source.text import SourceError, SourceText

RUNTIME = "mmruntime"

Loader = Callable[[str], bytes | None]

Adopt = Callable[[str], "SourceFile | None"]

# Called with a test of bytes: the files of a run that were not given and pass it.
Importing = Callable[[Callable[[bytes], bool]], "Iterable[SourceFile]"]

_IMPORT = re.compile(rf"\b(?:from|import)\b(?:[^#\n]|\\\r?\n)*\b{PACKAGE}\b")


@dataclass(frozen=True)
class SourceFile:
    """One file to look at. `root` is the folder from which `module` is imported; both use `/`."""

    path: str
    data: bytes
    module: str = ""
    is_package: bool = False
    root: str = "."


@dataclass(frozen=True, eq=False)
class Mesh:
    """A mesh that a module has, or will have once its hint is rewritten."""

    name: str
    scope: Scope
    statement: ast.stmt
    hint: Hint | None
    axes: tuple[str, ...] | None


@dataclass(eq=False)
class Facts:
    """What is known about one module before anything is decided."""

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
        """The names, attributes and imports of each statement."""
        return Mentions(self.tree)

    def scope_of(self, statement: ast.stmt) -> Scope:
        """The scope in which `statement` runs."""
        return self.names.scopes[statement]


@dataclass(frozen=True)
class Unreadable:
    """A file that could not be looked at, and why."""

    file: SourceFile
    message: str


def read_facts(
    file: SourceFile,
    codemods: Collection[str],
    left: Mapping[int, str] | None = None,
    handed: Handed | None = None,
) -> Facts | Unreadable:
    """Parse one file with `ast` and collect its names and hints.

    The tree is that of the program without the hints that are calls. `left` says which of these are to stay, by their
    offset, and why; `handed` are names under which other modules hand hints on.
    """
    try:
        source = SourceText.decode(file.data)
        tree = parse_any(source.text)
        names = read_names(tree, file.module, file.is_package)
        names.follow = (handed or Handed()).meaning
        hints = collect_hints(file.path, source, names, codemods, left, handed)
        if hints.calls:
            names = read_names(tree, file.module, file.is_package)
            names.follow = (handed or Handed()).meaning
    except SourceError as error:
        return Unreadable(file, str(error))
    except SyntaxError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        where = f"line {error.lineno or 1}, column {error.offset or 1}"
        message = (
            f"Python {version} cannot parse this file: {error.msg} ({where}); run mmrewrite with a Python that can"
        )
        return Unreadable(file, message)
    except RecursionError:
        return Unreadable(file, "nested too deeply to be read; split its longest expressions")
    except ValueError as error:
        return Unreadable(file, f"cannot be parsed: {error}")
    facts = Facts(file, source, tree, names, hints)
    facts.meshes = tuple(_meshes(facts))
    return facts


def has_mark(file: SourceFile) -> bool:
    """Whether a file that passed the byte search may hold a hint, decodable or not."""
    text = file.data.decode("latin-1")
    return MARK.search(text) is not None or _IMPORT.search(text) is not None


def place_of(file: SourceFile) -> str:
    """Where a file is imported from: its root and its module's name as a path."""
    path = file.module.replace(".", "/")
    return f"{file.root}/{path}/__init__.py" if file.is_package else f"{file.root}/{path}.py"


def _meshes(facts: Facts) -> Iterator[Mesh]:
    taken: set[tuple[int, str]] = set()
    for hint in facts.hints.hints:
        declared = hint.record.declares
        if declared is None:
            continue
        scope = facts.scope_of(hint.statement)
        name = next(name for name in numbered(declared) if scope.is_free(name) and (id(scope), name) not in taken)
        taken.add((id(scope), name))
        yield Mesh(name, scope, hint.statement, hint, tuple(axis for axis, _ in hint.named))
    if RUNTIME not in facts.source.text:
        return
    for statement, scope in facts.names.scopes.items():
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        if facts.names.resolve(statement.value.func, scope) == f"{RUNTIME}.MultiMesh":
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield Mesh(target.id, scope, statement, None, _axis_names(statement.value))


def _axis_names(call: ast.Call) -> tuple[str, ...] | None:
    for keyword in call.keywords:
        if keyword.arg == "axis_names" and isinstance(keyword.value, ast.Tuple | ast.List):
            names = [item.value for item in keyword.value.elts if isinstance(item, ast.Constant)]
            if len(names) == len(keyword.value.elts):
                return tuple(str(name) for name in names)
    return None
