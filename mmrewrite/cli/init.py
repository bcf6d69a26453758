"""`mmrewrite init`: a section of configuration to begin with, made from what the repository holds."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mmrewrite.cli.config import TOOL, ConfigError, read_toml
from mmrewrite.cli.reports._messages import Initialized
from mmrewrite.files.walk import OWN_FILE, PYPROJECT, SUFFIXES, load_file, read_file, walk
from mmrewrite.files.write import NotWritten, replace_file, write_new

_USES_JAX = re.compile(rb"^[ \t]*(?:import|from)[ \t]+(?:jax|flax|equinox|haiku|optax)\b", re.MULTILINE)
_NAMES = re.compile(
    rb"(?:with_logical_partitioning|with_logical_constraint|logical_axis_rules|with_partitioning)\b[^\n]*", re.MULTILINE
)
_NAME = re.compile(rb"""["']([A-Za-z_]\w*)["']""")
_JAX_FLOOR = re.compile(r"jax(?:\[[^\]]*\])?\s*>=\s*(\d+(?:\.\d+)+)")
_TESTS = ("test", "tests")


class NotInitialized(Exception):
    """Why no section was written, as a sentence."""


def initialize(folder: str) -> Initialized:
    """Write the section into pyproject.toml, or into a new mmrewrite.toml if there is none.

    Raises:
        NotInitialized: If there is a section already, or the file cannot be read or written.
    """
    text, name = section(folder)
    if name == OWN_FILE and os.path.lexists(os.path.join(folder, OWN_FILE)):
        raise NotInitialized(f"{OWN_FILE} is there already; edit it, or remove it first")
    if name == PYPROJECT and TOOL in _tools(_project(folder)):
        raise NotInitialized(f"{PYPROJECT} has a section [tool.{TOOL}] already; edit that")
    path = os.path.abspath(os.path.join(folder, name))
    try:
        if name == OWN_FILE:
            write_new(path, text.encode())
        else:
            original = read_file(path)
            newline = b"\r\n" if b"\r\n" in original else b"\n"
            gap = b"" if not original else newline if original.endswith(b"\n") else 2 * newline
            addition = text.encode().replace(b"\n", newline)
            _check_still_reads(original + gap + addition)
            replace_file(path, original, original + gap + addition, [os.path.dirname(path)])
    except NotWritten as problem:
        raise NotInitialized(f"{name}: not written: {problem}") from None
    except OSError as error:
        raise NotInitialized(f"{name}: not written: {error.strerror or error}") from None
    return Initialized(name, text, is_written=True)


def _check_still_reads(data: bytes) -> None:
    """Where a project writes `tool = {...}`, TOML takes no `[tool.mmrewrite]` beside it."""
    try:
        tomllib.loads(data.decode("utf-8-sig"))
    except ValueError as error:
        raise NotInitialized(
            f"{PYPROJECT}: takes no section at its end ({error}); write `mmrewrite init --print > {OWN_FILE}`"
        ) from None


def said(initialized: Initialized) -> str:
    """What was written, as a sentence."""
    if initialized.file == PYPROJECT:
        return f"{PYPROJECT}: [tool.{TOOL}] added; every key is explained there"
    return f"{initialized.file}: written"


def section(folder: str) -> tuple[str, str]:
    """The section, and the name of the file that it belongs into, whether or not there is one already.

    Raises:
        NotInitialized: If pyproject.toml cannot be read.
    """
    content = _project(folder)
    has_own = os.path.lexists(os.path.join(folder, OWN_FILE))
    in_project = content is not None and not has_own
    dependencies = list(_strings((content or {}).get("project")))
    found = _Found(folder, dependencies)
    head, prefix = (f"[tool.{TOOL}]", f"tool.{TOOL}.") if in_project else ("", "")
    return "\n".join(_lines(found, head, prefix)) + "\n", PYPROJECT if in_project else OWN_FILE


def _project(folder: str) -> dict[str, Any] | None:
    """What pyproject.toml holds; None where there is none."""
    path = os.path.join(folder, PYPROJECT)
    if not os.path.lexists(path):
        return None
    try:
        return read_toml(Path(path))
    except ConfigError as error:
        raise NotInitialized(str(error)) from None


def _tools(content: dict[str, Any] | None) -> dict[str, Any]:
    tools = (content or {}).get("tool")
    return tools if isinstance(tools, dict) else {}


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


class _Found:
    """What the repository says: where JAX is used, which tests there are, which axis names, which JAX."""

    def __init__(self, folder: str, dependencies: Iterable[str]) -> None:
        tops: Counter[str] = Counter()
        names: Counter[str] = Counter()
        for path in walk(folder):
            data = load_file(path) if path.endswith(SUFFIXES) else None
            if data is None or not (_USES_JAX.search(data) or (path.endswith(".ipynb") and b"jax" in data)):
                continue
            top = os.path.relpath(path, folder).replace(os.sep, "/").split("/")[0]
            if not _is_text(top):
                raise NotInitialized(f"{top!r} uses JAX, and its name is no UTF-8, as names in TOML are; rename it")
            tops[top] += 1
            for line in _NAMES.findall(data):
                names.update(name.decode() for name in _NAME.findall(line))
        self.tests = sorted(top for top in tops if top in _TESTS)
        self.include = sorted(top for top in tops if top not in _TESTS)
        self.names = sorted(names)
        floors = [match[1] for text in dependencies if (match := _JAX_FLOOR.match(text.strip()))]
        self.floor = floors[0] if floors else None


def _is_text(name: str) -> bool:
    """Whether a name of a file is text in the encoding of the platform."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _lines(found: _Found, head: str, prefix: str) -> Iterator[str]:
    if head:
        yield head
    yield "# What `mmrewrite` reads when no PATH is given: where this repository uses JAX."
    yield f"include = {_array(found.include)}" if found.include else '# include = ["src"]'
    yield "# Never read, unless named outright. Patterns as in .gitignore; what git ignores is ignored anyway."
    yield f"exclude = {_array(f'/{name}/' for name in found.tests)}" if found.tests else '# exclude = ["/tests/"]'
    yield "# Where `mmrewrite build` writes the rewritten copy. It must not lie in what it copies."
    yield '# out = "build/mmrewrite"'
    yield "# Codemods to run or not to run; all by default. `mmrewrite codemods` lists them."
    yield "# select = []"
    yield "# ignore = []"
    yield "# The oldest JAX that modernized code must run on."
    yield f'target-jax = "{found.floor}"' if found.floor else '# target-jax = "0.10"'
    yield '# Whether annotations such as Float[Array, "batch embed"] say how the values of tasks are laid out.'
    yield "# jaxtyping = false"
    yield ""
    yield "# The device axis of each logical axis, or false for replicated, for meshes without an `axes(...)` hint."
    yield f"# [{prefix}axes]"
    for name in found.names or ["batch", "embed"]:
        yield f'# {name} = "data"' if name == "batch" else f"# {name} = false"
    yield ""
    yield '# Codemods that must not write into some files; "all" is every codemod.'
    yield f"# [{prefix}per-file-ignores]"
    yield '# "experiments/**" = ["all"]'
    yield ""
    yield "# What `mmrewrite suggest` is about, on the command line and in editors."
    yield f"# [{prefix}suggest]"
    yield '# entry = "train:train_step"'
    yield '# args = "train:example_arguments"'
    yield '# device = "h100"'
    yield "# devices = 8"


def _array(items: Iterable[str]) -> str:
    """Strings as TOML writes them: as JSON does, but for one character."""
    return f"[{', '.join(json.dumps(item, ensure_ascii=False) for item in items)}]".replace("\x7f", "\\u007f")
