"""Whether a public project that was modernized does what it did: what a driver calls of it, on old and new JAX.

    python validation/modernize_oracle.py --project DIR --driver FILE --old PYTHON [--mid PYTHON] [--new PYTHON ...]

A driver is a program of ours that imports the project's modules, calls them with small sizes, and ends in `out = ...`.
It may stand in for data, tokenizers, logging and the network (`modernize_projects/support.py`), and for nothing that
computes. It runs in a copy of DIR as it is, under the old JAX, and in one that this checkout has modernized, under each
new one, in that folder and with it in front of `sys.path`.

At its top level a driver says, as literals:

    COMMIT = "0123abc"               the commit of the project that it is for; DIR, if a checkout, must be at it
    PART = "src"                     the folder of DIR that is copied and rewritten, instead of all
    JAX = "mid"                      which environment is the old one; "old" if not said
    SELECT = ("replace_pmap",)       codemods that run by name only, after the others
    EDITS = (("a.py", "x", "y"),)    text replaced in the project before anything else, so in both: sizes, and what JAX
                                     or other libraries dropped that `modernize` is not about
    BY_HAND = (("a.py", "x", "y"),)  text replaced after the rewrite, in the rewritten copy only: what refusals advise
    EXPECTED = (("out['a']", "value", "why"),)
                                     where a difference ("value", "lies", "dtype", "shape") is no fault of the rewrite

Every text of EDITS and BY_HAND must occur. Differences that are expected are counted, and told with their reason.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import modernize_oracle
import modernize_project


@dataclass(frozen=True)
class Driver:
    """What a driver says about itself."""

    path: Path
    COMMIT: str = ""
    PART: str = "."
    JAX: str = "old"
    SELECT: tuple[str, ...] = ()
    EDITS: tuple[tuple[str, str, str], ...] = ()
    BY_HAND: tuple[tuple[str, str, str], ...] = ()
    EXPECTED: tuple[tuple[str, str, str], ...] = ()


def read_driver(path: Path) -> Driver:
    """The literals at the top level of a driver, which is not run for them: this Python may lack what it imports."""
    said: dict[str, Any] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            name = node.targets[0].id
            if name in Driver.__dataclass_fields__:
                said[name] = ast.literal_eval(node.value)
    if said.get("JAX", "old") not in ("old", "mid"):
        raise SystemExit(f"{path}: JAX is {said['JAX']!r}; it can be 'old' or 'mid'.")
    return Driver(path=path.resolve(), **said)


def commit_of(project: Path) -> str | None:
    """The commit that a folder is a checkout of; None where it is none."""
    if not (project / ".git").exists():
        return None
    done = subprocess.run(["git", "-C", str(project), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def replace_texts(folder: Path, edits: tuple[tuple[str, str, str], ...]) -> None:
    """Replace texts in the files of a copy, each wherever it occurs in its file."""
    for name, old, new in edits:
        text = (folder / name).read_text(encoding="utf-8")
        if old not in text:
            raise SystemExit(f"{name} holds no {old!r}, which the driver replaces; is this another commit?")
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")


def copies(project: Path, driver: Driver, work: Path) -> list[dict[str, Any]]:
    """Make `before` and `after` in `work`; what `modernize` said of the files of the second."""
    found = commit_of(project)
    if found and not found.startswith(driver.COMMIT):
        raise SystemExit(f"{project} is at {found}; {driver.path.name} was written for {driver.COMMIT}.")
    source = project / driver.PART
    if not source.is_dir():
        raise SystemExit(f"{source} is no folder; give the project's root, whose commit is {driver.COMMIT}.")
    before, after = work / "before", work / "after"
    if before.exists() or after.exists():
        raise SystemExit(f"{work} holds copies already; give --keep an empty folder.")
    shutil.copytree(source, before, ignore=shutil.ignore_patterns(".git"))
    replace_texts(before, driver.EDITS)
    shutil.copytree(before, after)
    files: list[dict[str, Any]] = []
    by_name = [word for name in driver.SELECT for word in ("--select", name)]
    for options in ([], by_name) if by_name else ([],):
        files += modernize_project.modernize(after, *options)[1]["files"]
    for file in files:
        if file["failure"]:
            print(f"  not read  {file['path']}: {file['failure']}")
    replace_texts(after, driver.BY_HAND)
    return files


def is_expected(difference: str, place: str, kind: str, why: str) -> bool:
    """Whether an entry of EXPECTED is about a difference."""
    return difference.startswith(place) and f": {kind} " in difference


def count_arrays(described: dict[str, Any]) -> int:
    """How many arrays there are in a description."""
    if "values" in described:
        return 1
    (inner,) = described.values()
    entries = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
    return sum(map(count_arrays, entries))


def main(options: argparse.Namespace) -> int:
    """Run the driver before and after; print what differs, and return 1 when something does that it does not expect."""
    driver = read_driver(options.driver)
    old_python = options.mid if driver.JAX == "mid" else options.old
    if old_python is None:
        raise SystemExit(f"{driver.path.name} needs --{driver.JAX}.")
    with tempfile.TemporaryDirectory() as folder:
        work = options.keep.resolve() if options.keep else Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        files = copies(Path(options.project[0]).resolve(), driver, work)
        changed = len({file["path"] for file in files if file["changed"]})
        edits, refused = (sum(len(file[key]) for file in files) for key in ("edits", "refusals"))
        print(
            f"{driver.path.stem}: {changed} files changed by {edits} edits, {refused} refused, "
            f"{len(driver.EDITS)} texts replaced in both, {len(driver.BY_HAND)} by hand in what was rewritten",
            flush=True,
        )
        run = {"verbose": options.verbose}
        old, error = modernize_oracle.run_in(old_python, driver.path, strict=False, project=work / "before", **run)
        if old is None:
            print(f"  does not run as it was: {error}")
            return 1
        return max(
            tell(
                driver,
                python,
                old,
                *modernize_oracle.run_in(python, driver.path, strict=True, project=work / "after", **run),
            )
            for python in options.new or [sys.executable]
        )


def tell(driver: Driver, python: str, old: dict[str, Any], new: dict[str, Any] | None, error: str | None) -> int:
    """Print how one run compares with the old one; 1 where it failed or differs in a place that was not expected."""
    if new is None:
        print(f"  {old['jax']} -> {python}: does not run: {error}", flush=True)
        return 1
    expected: Counter[tuple[str, str, str]] = Counter()
    unexpected: list[str] = []
    for difference in modernize_oracle.differences(old["out"], new["out"]):
        entry = next(
            (entry for entry in driver.EXPECTED if difference.startswith(entry[0]) and f": {entry[1]} " in difference),
            None,
        )
        if entry is None:
            unexpected.append(difference)
        else:
            expected[entry] += 1
    verdict = f"{len(unexpected)} differences" if unexpected else "same"
    print(f"  {old['jax']} -> {new['jax']}: {count_arrays(old['out'])} arrays, {verdict}", flush=True)
    for difference in unexpected:
        print(f"    {difference}")
    for (place, kind, why), count in expected.items():
        print(f"    {place}: {count} x {kind}, as expected: {why}")
    return 1 if unexpected else 0
