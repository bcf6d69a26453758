"""What the tests over all fixtures share: how a case is read, given to the engine, and run."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite.project.facts import SourceFile
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceText

FIXTURES = Path(__file__).parents[1] / "fixtures"


def hint_cases(file: str) -> list[Path]:
    """The folders of the cases with hints that hold `file`: those of each codemod, and the general ones."""
    patterns = ("hints/*/*", "formats/*", "hint_errors/*", "no_hints/*")
    return sorted(path.parent for pattern in patterns for path in FIXTURES.glob(f"{pattern}/{file}"))


def tree(folder: Path) -> dict[str, bytes]:
    """Every module below a folder, by its path there."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.py"))}


def source_files(files: dict[str, bytes]) -> list[SourceFile]:
    """Files as a project's, with the module names that their paths give them."""
    sources = []
    for path, data in files.items():
        parts = path.rpartition(".")[0].split("/")
        is_package = parts[-1] == "__init__"
        sources.append(SourceFile(path, data, ".".join(parts[:-1] if is_package else parts), is_package))
    return sources


def modernize_text(text: str) -> Rewrite:
    """What `mmrewrite modernize` makes of a file by itself."""
    (result,) = modernize_project(source_files({"a.py": text.encode()}), ModernizeRegistry(), load=lambda path: None)
    assert result.failure is None
    return result


def told_lines(result: Rewrite) -> set[int]:
    """The lines of a module that are reported, or of which something is replaced."""
    source = SourceText.decode(result.original)
    replaced = {source.position(edit.start)[0] for edit in result.edits if edit.end > edit.start}
    return replaced | {item.line for item in (*result.refusals, *result.left)}


def run(data: bytes, jax: Any) -> Any:
    """`out` of a program, run as a module of its own with JAX's own strictness."""
    namespace: dict[str, Any] = {"__name__": "fixture"}
    with contextlib.ExitStack() as stack:
        stack.callback(sys.modules.pop, "fixture", None)
        stack.enter_context(jax.numpy_rank_promotion("allow"))
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        sys.modules["fixture"] = type(sys)("fixture")
        exec(compile(data, "fixture.py", "exec"), namespace)
    return namespace["out"]
