"""What `mmrewrite modernize` does with a project, held to what it promises about text. Nothing of the project is run.

    python validation/modernize_oracle.py --project DIR [--project DIR ...] [--imports] [--new PYTHON ...]

Each folder is copied, and the copy rewritten. Then, file by file and by other means than the tool's own:

- what parsed before parses, with `ast` and with LibCST;
- no old name is left, unless the tool reports it on that line, or reports something else in that file and the name only
  has a new home: names are followed through imports and attributes only;
- a second run changes no byte;
- the edits that `--format json` lists, made to the original by hand, give the file;
- a notebook is the same JSON but for the source of code cells;
- `--check` exits with 1 exactly when something was changed or refused.

With `--imports`, the modules that changed are imported under every `--new` Python, with stand-ins for packages that are
not installed, and so are the originals: what does not import is told with its last line.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

# Homes that are gone whole, and single names that are gone, moved or deprecated.
HOMES = ("jax.experimental.maps", "jax.experimental.pjit", "jax.experimental.shard_map", "jax.interpreters.sharded_jit")
TREES = ("all", "flatten", "leaves", "map", "multimap", "reduce", "structure", "transpose", "unflatten")
NAMES = frozenset(
    (
        "jax.experimental.PartitionSpec",
        "jax.interpreters.pxla.PartitionSpec",
        "jax.interpreters.pxla.Mesh",
        "jax.interpreters.pxla.thread_resources",
        "jax.device_put_replicated",
        "jax.device_put_sharded",
        "jax.random.KeyArray",
        "jax.random.PRNGKeyArray",
        "jax.sharding.PositionalSharding",
        "jax.sharding.GSPMDSharding",
        "jax.sharding.PmapSharding",
        "jax.sharding.OpShardingSharding",
        "jax.sharding.MeshPspecSharding",
        "jax.sharding.use_mesh",
        "jax.sharding.set_mesh",
        "jax.tree_util.tree_multimap",
        *(f"jax.tree_{name}" for name in TREES),
    )
)
MOVED = ("PartitionSpec", "Mesh")
KEYWORDS = frozenset(("in_axis_resources", "out_axis_resources", "check_rep"))


@dataclass
class Score:
    """What was found in one project."""

    changed: int = 0
    edits: int = 0
    refused: int = 0
    reported: int = 0
    compat: int = 0
    reasons: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def score(project: Path, work: Path) -> Score:
    """Rewrite a copy of a project in `work`, which is empty, and hold the result to the promises above."""
    before, after = work / "before", work / "after"
    for path in sorted((*project.rglob("*.py"), *project.rglob("*.ipynb"), *project.glob("*.toml"))):
        if path.is_file() and ".git" not in path.parts:
            for root in (before, after):
                (root / path.relative_to(project)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, root / path.relative_to(project))
    found = Score()
    checked, told = modernize(before, "--check")
    done, _ = modernize(after)
    if done == 2:
        # Files that cannot be read; the others are done.
        found.problems += [f"{file['path']}: {file['failure']}" for file in told["files"] if file["failure"]]
    files = {file["path"]: file for file in told["files"]}
    for path in sorted(path.relative_to(before) for path in before.rglob("*") if path.suffix in (".py", ".ipynb")):
        told_of = files.get(str(path), {"edits": [], "refusals": [], "left": [], "compat": []})
        found.edits += len(told_of["edits"])
        found.refused += len(told_of["refusals"])
        found.reported += len(told_of["left"])
        found.compat += len(told_of["compat"])
        found.reasons += [f"{path}:{item['line']}: {item['reason']}" for item in told_of["refusals"]]
        old, new = (before / path).read_bytes(), (after / path).read_bytes()
        found.changed += old != new
        found.problems += [f"{path}: {problem}" for problem in text_problems(path, old, new, told_of["edits"])]
    if (found.changed > 0 or found.refused > 0) is not (checked == 1) and checked != 2:
        found.problems.append(f"--check exits with {checked}")
    _, told = modernize(after, "--check")
    found.problems += [f"{file['path']}: a second run changes it" for file in told["files"] if file["changed"]]
    reported = {(file["path"], item["line"]) for file in told["files"] for item in (*file["refusals"], *file["left"])}
    speaking = {name for name, _ in reported}
    for path in sorted(after.rglob("*.py")):
        name = str(path.relative_to(after))
        for line, old_name in old_names(path.read_bytes()):
            is_moved = old_name.rpartition(".")[2] in MOVED
            if not ((name, line) in reported or (is_moved and name in speaking)):
                found.problems.append(f"{name}:{line}: `{old_name}` is left without a word")
    return found


def modernize(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON of one run in a folder."""
    path = os.pathsep.join(str(ROOT / part) for part in (".", "codemods"))
    done = subprocess.run(
        [sys.executable, "-m", "mmrewrite", "modernize", "--format", "json", *options, "."],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise SystemExit(f"modernize failed in {folder}:\n{done.stderr}")
    return done.returncode, json.loads(done.stdout)


def text_problems(path: Path, old: bytes, new: bytes, edits: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong with the text of one file."""
    if path.suffix == ".ipynb":
        if old != new:
            yield from notebook_problems(json.loads(old), json.loads(new))
        return
    if not edits and old != new:
        yield "changed without an edit that says so"
    if edits and made_by_hand(old.decode(), edits) != new.decode():
        yield "the edits listed do not give the file"
    if old != new and parsed(old) is not None:
        if parsed(new) is None:
            yield "does not parse"
        elif not parses_with_libcst(new):
            yield "LibCST does not parse it, or not to the same text"


def made_by_hand(text: str, edits: list[dict[str, Any]]) -> str:
    """A text after edits that are told by line and column, both from 1."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column - 1

    for edit in reversed(edits):
        start, end = offset(edit["line"], edit["column"]), offset(edit["end_line"], edit["end_column"])
        if text[start:end] != edit["old"]:
            return f"{edit['line']}: {edit['old']!r} is not there"
        text = text[:start] + edit["new"] + text[end:]
    return text


def parsed(data: bytes) -> ast.Module | None:
    """The tree of a text, None if this Python does not read it. What Python warns of is the project's own business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        # Python 3.11 warns of escapes by this one.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return ast.parse(data)
        except (SyntaxError, ValueError):
            return None


def parses_with_libcst(data: bytes) -> bool:
    """Whether LibCST reads the text, and prints it as it was."""
    import libcst

    try:
        return libcst.parse_module(data).bytes == data
    except libcst.ParserSyntaxError:
        return False


def notebook_problems(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """What differs between two notebooks beyond the source of code cells."""
    if {**old, "cells": None} != {**new, "cells": None} or len(old["cells"]) != len(new["cells"]):
        yield "something outside the cells changed"
        return
    for number, (one, other) in enumerate(zip(old["cells"], new["cells"], strict=True)):
        kept = ("source",) if one["cell_type"] == "code" else ()
        if {**one, **dict.fromkeys(kept)} != {**other, **dict.fromkeys(kept)}:
            yield f"cell {number} has changed in more than its source"


def old_names(data: bytes) -> Iterator[tuple[int, str]]:
    """Lines that use an old name, followed through imports and attributes alone."""
    tree = parsed(data)
    if tree is None:
        return
    known: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                full = alias.name if alias.asname else alias.name.partition(".")[0]
                known.setdefault(alias.asname or full, set()).add(full)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                known.setdefault(alias.asname or alias.name, set()).add(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            for name in _full_names(node, known):
                if name in NAMES or name.startswith(tuple(f"{home}." for home in HOMES)):
                    yield node.lineno, name
        elif isinstance(node, ast.Call):
            of_jax = any(name.startswith("jax.") for name in _full_names(node.func, known))
            for keyword in node.keywords:
                if of_jax and keyword.arg in KEYWORDS:
                    yield node.func.end_lineno or node.lineno, keyword.arg


def _full_names(node: ast.expr, known: dict[str, set[str]]) -> set[str]:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or len(known.get(node.id, ())) != 1:
        return set()
    return {".".join((full, *parts)) for full in known[node.id]}


# Importing. What follows runs in the Python that imports.


def import_modules(folder: str, names: list[str], seconds: int = 60) -> dict[str, str]:
    """The last line of the error of every module that does not import, "" for those that do; one process for each."""
    sys.path.insert(0, folder)
    # Before the stand-ins, which would also be found by what these only try to import.
    _import_what_all_need()
    sys.meta_path.append(_StandIns(folder))
    found: dict[str, str] = {}
    for name in names:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _import_and_tell(name, writing, seconds)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as pipe:
            found[name] = pipe.read()
        _, status = os.waitpid(child, 0)
        if status and not found[name]:
            found[name] = f"ended with status {status}"
    return found


def _import_what_all_need() -> None:
    import importlib

    warnings.simplefilter("ignore")
    for name in ("jax", "flax", "flax.linen", "flax.jax_utils", "flax.training.train_state", "optax"):
        importlib.import_module(name)


def _import_and_tell(name: str, writing: int, seconds: int) -> None:
    import importlib
    import signal

    signal.alarm(seconds)
    text = ""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        importlib.import_module(name)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
    os.write(writing, text.encode())
    os._exit(0)


class _StandIns:
    """Finds every module of a package that is neither installed nor part of the project."""

    def __init__(self, folder: str) -> None:
        self.own = {path.partition(".")[0] for path in os.listdir(folder)}

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """A stand-in for a package that nothing else finds."""
        import importlib.machinery

        top = name.partition(".")[0]
        if top in self.own or top in sys.stdlib_module_names or top in ("jax", "jaxlib", "flax", "optax", "numpy"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> Any:
        """A module that has every attribute, each of which can be called, inherited from and asked for more."""
        from modernize_projects.support import StandIn

        return StandIn(spec.name)

    def exec_module(self, module: object) -> None:
        """Nothing."""


def main(projects: list[str], pythons: list[str], *, imports: bool) -> int:
    """Print what was found, and return how many problems there were."""
    problems = 0
    for project in map(Path, projects):
        with tempfile.TemporaryDirectory() as folder:
            found = score(project.resolve(), Path(folder))
            print(
                f"{project}: {found.changed} files changed by {found.edits} edits, {found.refused} refused, "
                f"{found.reported} reported, {found.compat} uses of compat, {len(found.problems)} problems"
            )
            for reason in found.reasons:
                print(f"  refused  {reason}")
            for problem in found.problems:
                print(f"  PROBLEM  {problem}")
            problems += len(found.problems)
            for python in pythons if imports else ():
                tell_imports(python, Path(folder))
    return problems


def tell_imports(python: str, work: Path) -> None:
    """Import what changed, before and after, and print what does not import."""
    changed = [
        path.relative_to(work / "after")
        for path in sorted((work / "after").rglob("*.py"))
        if path.read_bytes() != (work / "before" / path.relative_to(work / "after")).read_bytes()
    ]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in changed]
    if not names:
        return
    results = {}
    for part in ("before", "after"):
        done = subprocess.run(
            [python, str(Path(__file__).resolve()), str(work / part), *names],
            env={**os.environ, "PYTHONPATH": str(ROOT / "runtime"), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"  {python}: {done.stderr.strip().splitlines()[-1]}")
            return
        results[part] = json.loads(done.stdout.splitlines()[-1])
    good = {part: sum(not error for error in found.values()) for part, found in results.items()}
    print(f"  {python}: of {len(names)} changed modules {good['before']} imported before, {good['after']} now")
    for name, error in results["after"].items():
        if error:
            print(f"    {name}: {error}")


if __name__ == "__main__":
    print(json.dumps(import_modules(sys.argv[1], sys.argv[2:])))
