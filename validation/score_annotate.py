"""Score a folder of hinted programs: is each rewritten or refused as expected, and are the numbers the same?

    python validation/score_annotate.py FOLDER [--only NAME] [--markdown]

Each folder in FOLDER is one case: hinted Python files and a `score.toml` with

    title = "what it is"
    expect = "rewritten"            # or "refused": nothing changes, a refusal matches `refusal`, `check --strict` fails
                                    # or "raises": the rewritten step raises what matches `refusal`, the original runs
    refusal = "a regular expression"
    run = "run"                     # optional: a module of the case that runs it
    tolerance = 1e-4                # optional: of the scale of each array
    state = 2                       # how many of the first arguments are the state of training
    layers = "block_([0-9]+)"       # in the path of an array of that state: its layer; without a group, a stack of all
    stages = [0, 0, 1, 1]           # the stage of each layer

A case in which a hint is neither rewritten, nor refused, nor reported has failed.

The module that `run` names has `make()`, which returns the arguments, `step(*arguments)`, the hinted step, and
`reference(*arguments)`, the same on one device: on the whole batch, or microbatch by microbatch with the keys of each
where random numbers are drawn. Both return a tuple that begins with the next state, parameters and what the optimizer
keeps, so that `STEPS` steps can be taken. The rewritten copy runs `step` on eight virtual devices, and the original
runs `reference` on one. Results are compared leaf by leaf, by path: types and shapes are the same, and values to the
tolerance. Every array of the state that belongs to a layer, of parameters and of optimizer state alike, must lie on the
devices of that layer's stage and on no other: of `n` stages, stage k has the k-th of `n` equal runs of the devices.

A difference is divided by the scale of its array: its largest entry, or `FLOOR` of the largest entry of its element of
the tuple, where that is more. A gradient that is zero in exact arithmetic, such as that of the bias of attention keys,
is rounding in both runs, and no measure of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from accounting import folder_without_outcome  # noqa: E402

FLOOR = 1e-4  # with the default tolerance, what hides behind it is 1e-8 of the largest gradient: below float32
STEPS = 3
DEVICES = 8
RUNNER = """
import importlib, json, sys
import jax, numpy as np
module = importlib.import_module(sys.argv[1])
arguments, count = module.make(), int(sys.argv[4])
for _ in range(int(sys.argv[5]) if count else 1):
    result = getattr(module, sys.argv[2])(*arguments)
    arguments = (*result[:count], *arguments[count:])
leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(result)]
def rows(shard, leaf):
    return [list(part.indices(size)[:2]) for part, size in zip(shard.index, leaf.shape)]
shards = {path: [[each.device.id, rows(each, leaf)] for each in getattr(leaf, "addressable_shards", ())]
          for path, leaf in leaves}
with open(sys.argv[3] + ".json", "w") as file:
    json.dump({"shards": shards}, file)
def values(leaf):
    typed = isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if typed else leaf)
np.savez(sys.argv[3], **{path: values(leaf) for path, leaf in leaves})
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
            largest, places, equal = compare(case, copy, told, Path(scratch))
        if found == "rewritten" and expected == "raises":
            original = run(case, told, "reference", 1, Path(scratch))
            raised = run(copy, told, "step", DEVICES, Path(scratch))
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


def compare(case: Path, copy: Path, told: dict[str, Any], scratch: Path) -> tuple[str, str, bool]:
    """Largest difference relative to the scale of its array, what is wrong with the places, and whether all is well."""
    missing = [key for key in ("state", "layers", "stages") if key not in told]
    if missing:
        return "", f"score.toml does not say {', '.join(missing)}", False
    results, shards = {}, {}
    for folder, name, devices in ((case, "reference", 1), (copy, "step", DEVICES)):
        error = run(folder, told, name, devices, scratch)
        if error:
            return error[:120], "", False
        with np.load(scratch / f"{name}.npz") as arrays:
            results[name] = dict(arrays)
        shards[name] = json.loads((scratch / f"{name}.json").read_text())["shards"]
    one, many = results["reference"], results["step"]
    other = unlike(one, many)
    if other:
        return other, "", False
    differences = relative(one, many)
    worst = max(differences, key=differences.__getitem__)
    equal = differences[worst] <= told.get("tolerance", 1e-4)
    wrong = misplaced(shards["step"], told["state"], told["layers"], told["stages"])
    places = wrong[0] if wrong else "on their stages"
    return f"{differences[worst]:.1e}" + ("" if equal else f" at {worst}"), places, equal and not wrong


def unlike(one: dict[str, np.ndarray], many: dict[str, np.ndarray]) -> str:
    """What differs in names, types and shapes; empty if nothing does."""
    if one.keys() != many.keys():
        return f"other names: {sorted(one.keys() ^ many.keys())[:3]}"
    for name, array in one.items():
        if (array.dtype, array.shape) != (many[name].dtype, many[name].shape):
            found, expected = (f"{each.dtype}{list(each.shape)}" for each in (many[name], array))
            return f"{name} is {found} for {expected}"
    return ""


def misplaced(shards: dict[str, Any], state: int, layers: str, stages: list[int]) -> list[str]:
    """The arrays of layers that are not on their stage, and parts of the state that have none.

    Args:
        shards: For each array of the results its device and rows in each dimension, shard by shard.
        state: How many of the first results are state.
        layers: Finds an array's layer in its path; without a group, stacks of all layers, along their first dimension.
        stages: The stage of each layer.
    """
    pattern, run_length, wrong = re.compile(layers), DEVICES // (max(stages) + 1), []
    seen: set[tuple[str, int]] = set()
    elements = [f"[{position}]" for position in range(state)]
    for path, pieces in shards.items():
        match = pattern.search(path)
        where = element(path) + "]"
        # Counters and the like are on all devices.
        if match is None or where not in elements or not pieces or not pieces[0][1]:
            continue
        found: dict[int, set[int]] = {}
        for device, rows in pieces:
            for layer in [int(match[1])] if pattern.groups else range(*rows[0]):
                found.setdefault(layer, set()).add(device // run_length)
        seen.update((where, layer) for layer in found)
        for layer, at in sorted(found.items()):
            if layer >= len(stages):
                wrong.append(f"{path}: layer {layer} of {len(stages)}")
            elif at != {stages[layer]}:
                wrong.append(f"{path}: layer {layer} on stage {', '.join(map(str, sorted(at)))}, not {stages[layer]}")
    unseen = [layer for layer in range(len(stages)) if ("[0]", layer) not in seen]
    return wrong + [f"no array of layer {layer} in [0]" for layer in unseen]


def run(folder: Path, told: dict[str, Any], name: str, devices: int, scratch: Path) -> str:
    """Call a function of a case's module and save what it returns as `name` in `scratch`; its error, empty if none."""
    arguments = [told["run"], name, str(scratch / name), str(told.get("state", 0)), str(STEPS)]
    command = [sys.executable, "-c", RUNNER, *arguments]
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
