"""Score a folder of hinted programs: is each rewritten or refused as expected, and are the numbers the same?

    python validation/score_annotate.py FOLDER [--only NAME] [--markdown]

Each folder in FOLDER is one case: hinted Python files and a `score.toml` with

    title = "what it is"
    expect = "rewritten"            # or "refused": nothing changes, a refusal matches `refusal`, `check --strict` fails
                                    # or "raises": the rewritten step raises what matches `refusal`, the original runs
    refusal = "a regular expression"
    run = "run"                     # optional: a module of the case that runs it
    tolerance = 1e-4                # optional: of the scale of each array

A case in which a hint is neither rewritten, nor refused, nor reported has failed.

The module that `run` names has `make()`, which returns the arguments, `step(*arguments)`, the hinted step, and
`reference(*arguments)`, the same on one device: on the whole batch, or microbatch by microbatch with the keys of each
where random numbers are drawn. The rewritten copy runs `step` on eight
virtual devices, and the original runs `reference` on one. Both return a tuple, such as (loss, gradients), which is
compared leaf by leaf, by path.

A difference is divided by the scale of its array: its largest entry, or `FLOOR` of the largest entry of its element of
the tuple, where that is more. A gradient that is zero in exact arithmetic, such as that of the bias of attention keys,
is rounding in both runs, and no measure of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from accounting import folder_without_outcome  # noqa: E402

FLOOR = 1e-4  # with the default tolerance, what hides behind it is 1e-8 of the largest gradient: below float32
RUNNER = """
import importlib, sys
import jax, numpy as np
module = importlib.import_module(sys.argv[1])
result = getattr(module, sys.argv[2])(*module.make())
leaves = jax.tree_util.tree_leaves_with_path(result)
places = {tuple(sorted(device.id for device in leaf.devices())) for _, leaf in leaves}
named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
np.savez(sys.argv[3], places=np.array(len(places)), **named)
"""


@dataclass(frozen=True)
class Score:
    """What became of one case."""

    title: str
    expected: str
    found: str
    refusals: int
    largest: str
    places: str
    passed: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="name of one case")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    options = parser.parse_args()
    cases = sorted(path.parent for path in options.folder.glob("*/score.toml"))
    scores = []
    for case in cases:
        if options.only in (None, case.name):
            scores.append(score(case))
            print(f"{case.name}: {'ok' if scores[-1].passed else 'WRONG'}", file=sys.stderr, flush=True)
    show(scores, options.markdown)
    return 0 if scores and all(score.passed for score in scores) else 1


def score(case: Path) -> Score:
    """Rewrite a copy of a case, and run it if it says how."""
    told = tomllib.loads((case / "score.toml").read_text())
    expected = told["expect"]
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "rewritten"
        shutil.copytree(case, copy)
        applied = tool("apply", "--color", "never", str(copy))
        again = tool("diff", "--color", "never", str(copy))
        changed = {
            path for path in copy.rglob("*.py") if path.read_bytes() != (case / path.relative_to(copy)).read_bytes()
        }
        messages = [line for line in applied.stderr.splitlines() if re.search(r"\[\w+\]$", line)]
        found = "error" if applied.returncode == 2 else "rewritten" if changed else "refused"
        largest, places, equal = "", "", True
        if found == expected == "rewritten" and "run" in told:
            largest, places, equal = compare(case, copy, told["run"], told.get("tolerance", 1e-4), Path(scratch))
        if found == "rewritten" and expected == "raises":
            original = run(case, told["run"], "reference", 1, Path(scratch))
            raised = run(copy, told["run"], "step", 8, Path(scratch))
            found = "raises" if raised and not original else found
            largest, messages = (original or raised)[:120], [raised]
        wanted = re.compile(told.get("refusal", ""))
        explained = expected == "rewritten" or any(wanted.search(line) for line in messages)
        stable = again.returncode != 2 and not again.stdout
        if not stable:
            found += ", not stable"
        if silent := folder_without_outcome(case):
            found += f", without a word on {silent[0]}"
        if not explained:
            found += ", for another reason"
        if found == "refused" and tool("check", "--strict", str(copy)).returncode != 1:
            found += ", and `check --strict` passes"
        passed = found == expected and equal
        return Score(told["title"], expected, found, len(messages), largest, places, passed)


def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [sys.executable, "-m", "mmrewrite", *arguments], capture_output=True, text=True, env=environment(), check=False
    )


def compare(case: Path, copy: Path, module: str, tolerance: float, scratch: Path) -> tuple[str, str, bool]:
    """Largest difference relative to the scale of its array, number of places, and whether all is well."""
    results = {}
    for folder, name, devices in ((case, "reference", 1), (copy, "step", 8)):
        error = run(folder, module, name, devices, scratch)
        if error:
            return error[:120], "", False
        with np.load(scratch / f"{name}.npz") as arrays:
            results[name] = dict(arrays)
    one, many = results["reference"], results["step"]
    places = int(many.pop("places"))
    one.pop("places")
    if one.keys() != many.keys():
        return f"other names: {sorted(one.keys() ^ many.keys())[:3]}", str(places), False
    differences = relative(one, many)
    worst = max(differences, key=differences.__getitem__)
    equal = differences[worst] <= tolerance
    return f"{differences[worst]:.1e}" + ("" if equal else f" at {worst}"), str(places), equal and places > 1


def run(folder: Path, module: str, name: str, devices: int, scratch: Path) -> str:
    """Call a function of a case's module and save what it returns as `name` in `scratch`; its error, empty if none."""
    command = [sys.executable, "-c", RUNNER, module, name, str(scratch / f"{name}.npz")]
    done = subprocess.run(
        command, cwd=folder, env=environment(devices, folder), capture_output=True, text=True, check=False
    )
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def relative(one: dict[str, np.ndarray], many: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference of each array of two runs, divided by its scale; not-a-number counts as infinite."""
    sizes = {name: float(np.abs(array).max(initial=0)) for name, array in one.items()}
    wholes: dict[str, float] = {}
    for name, size in sizes.items():
        whole = element(name)
        wholes[whole] = max(wholes.get(whole, 0), size)
    differences = {}
    for name, array in one.items():
        difference = float(np.abs(array - many[name]).max(initial=0))
        scale = max(sizes[name], FLOOR * wholes[element(name)], 1e-30)
        differences[name] = difference / scale if np.isfinite(difference) else float("inf")
    return differences


def element(name: str) -> str:
    """The element of the result's tuple that an array belongs to: `[1]` of `[1]['params']['kernel']`."""
    return name.partition("]")[0]


def environment(devices: int | None = None, folder: Path | None = None) -> dict[str, str]:
    """Variables of a process that finds the packages, and the case before them."""
    paths = [str(ROOT), str(ROOT / "codemods"), str(ROOT / "runtime")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *paths] if folder else paths)}
    if devices is not None:
        variables |= {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "JAX_TRACEBACK_FILTERING": "off",  # so that the last line of an error is the error
        }
    return variables


def show(scores: list[Score], markdown: bool) -> None:
    """Print the table."""
    rows = [("case", "expected", "found", "refusals", "largest difference", "places", "")]
    for each in scores:
        verdict = "ok" if each.passed else "WRONG"
        rows.append((each.title, each.expected, each.found, str(each.refusals), each.largest, each.places, verdict))
    if markdown:
        rows.insert(1, ("---",) * len(rows[0]))
        print("\n".join(f"| {' | '.join(row)} |" for row in rows))
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
