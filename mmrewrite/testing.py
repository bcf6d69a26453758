"""Fixtures for codemods, other packages' included: what is rewritten, what is refused, and that it is stable.

A case is a folder with `before.py`, with `after.py` if something changes, and with `case.toml` for messages. For
programs of several modules it has folders `before` and `after`. Keys of `case.toml`:

    refusals = ["5:1: more than one call could be the task"]   # line, column, and the beginning of the reason
    errors = []                                                # the same, of hints that cannot be read
    left = []                                                  # the same, of what is left alone on purpose
    select = ["my_codemod"]                                    # by default all that run unasked
    target = "0.10"                                            # for `modernize`: the oldest JAX

With pytest:

    @pytest.mark.parametrize("case", cases("fixtures/my_codemod"), ids=str)
    def test_case(case):
        check_case(case, engine="modernize")
"""

from __future__ import annotations

import ast
import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mmrewrite.codemod.products import old_names
from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.engine.settings import HintSettings
from mmrewrite.project.facts import SourceFile
from mmrewrite.results import Rewrite

Engine = Literal["hints", "modernize"]

_KEYS = ("refusals", "errors", "left", "select", "target")


def cases(folder: str | Path) -> list[Path]:
    """The folders of the cases at and below a folder, in order."""
    found = {path.parent for name in ("before.py", "before") for path in Path(folder).rglob(name)}
    return sorted(path for path in found if "before" not in path.parts[len(Path(folder).parts) :])


def check_case(case: str | Path, *, engine: Engine = "hints", codemods: Mapping[str, Any] | None = None) -> None:
    """Check one case: its text and its messages, that the result parses, and that a second run changes nothing.

    Args:
        case: The folder.
        engine: Which engine rewrites it.
        codemods: Name and class of every codemod; by default all that are installed.

    Raises:
        AssertionError: If the result is another, with the difference.
        ValueError: If the case has no program, or `case.toml` an unknown key.
    """
    case = Path(case)
    before, after = _program(case, "before"), _program(case, "after")
    if not before:
        raise ValueError(f"{case}: no before.py, and no modules in a folder `before`")
    told = _told(case)
    results = _rewrite(before, told, engine, codemods)
    for path, result in results.items():
        if result.failure is not None:
            raise AssertionError(f"{case}: {path}: {result.failure}")
        ast.parse(result.result)
        _same(case, path, after.get(path, before[path]), result.result)
    for key, reason in (("refusals", "reason"), ("errors", "message"), ("left", "reason")):
        found = [
            _line(item, getattr(item, reason), len(before)) for each in results.values() for item in getattr(each, key)
        ]
        _same_messages(case, key, told.get(key, []), found)
    again = _rewrite({path: result.result for path, result in results.items()}, told, engine, codemods)
    for path, result in again.items():
        if result.changed:
            raise AssertionError(f"{case}: {path}: a second run would change it again")


def _program(case: Path, name: str) -> dict[str, bytes]:
    if (case / name).is_dir():
        return {
            path.relative_to(case / name).as_posix(): path.read_bytes() for path in sorted((case / name).rglob("*.py"))
        }
    single = case / f"{name}.py"
    return {"before.py": single.read_bytes()} if single.is_file() else {}


def _told(case: Path) -> dict[str, Any]:
    settings = case / "case.toml"
    told: dict[str, Any] = tomllib.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    unknown = [key for key in told if key not in _KEYS]
    if unknown:
        raise ValueError(f"{settings}: unknown key `{unknown[0]}`; known: {', '.join(_KEYS)}")
    return told


def _rewrite(
    program: Mapping[str, bytes], told: Mapping[str, Any], engine: Engine, codemods: Mapping[str, Any] | None
) -> dict[str, Rewrite]:
    files = [_file(path, data) for path, data in program.items()]
    load = {f"./{path}": data for path, data in program.items()}.get
    selected = frozenset(told["select"]) if "select" in told else None
    if engine == "hints":
        settings = HintSettings(selected=selected)
        results = rewrite_project(files, Registry() if codemods is None else codemods, load=load, settings=settings)
    else:
        product = old_names()
        target = tuple(int(part) for part in told["target"].split(".")) if "target" in told else None
        codemods = product.registry() if codemods is None else codemods
        results = product.rewrite(files, codemods, load=load, selected=selected, target=target)
    return {result.path: result for result in results}


def _file(path: str, data: bytes) -> SourceFile:
    parts = path.removesuffix(".py").split("/")
    is_package = parts[-1] == "__init__"
    return SourceFile(path, data, ".".join(parts[:-1] if is_package else parts), is_package)


def _line(item: Any, message: str, count: int) -> str:
    where = f"{item.path}:" if count > 1 else ""
    return f"{where}{item.line}:{item.column}: {message}"


def _same(case: Path, path: str, expected: bytes, found: bytes) -> None:
    if expected == found:
        return
    old, new = (data.decode("utf-8", errors="replace").splitlines() for data in (expected, found))
    lines = difflib.unified_diff(old, new, "expected", "found", lineterm="")
    raise AssertionError(os.linesep.join([f"{case}: {path}:", *lines]))


def _same_messages(case: Path, key: str, expected: Sequence[str], found: Sequence[str]) -> None:
    if len(expected) != len(found) or not all(map(str.startswith, found, expected)):
        raise AssertionError("\n".join([f"{case}: {key}: expected", *expected, "found", *found]))
