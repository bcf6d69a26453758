"""Score a folder of hinted programs: is each rewritten or refused as expected, and are the numbers the same?

    python validation/score_annotate.py FOLDER [--only NAME] [--markdown]

Each folder in FOLDER is one case: hinted Python files and a `score.toml` with

    title = "what it is"
    expect = "rewritten"            # or "refused": nothing changes, a refusal matches `refusal`, `check --strict` fails
                                    # or "raises": the rewritten step raises what matches `refusal`, the original runs
    refusal = "a regular expression"
    run = "run"                     # optional: a module of the case that runs it
    tolerance = 1e-4                # optional: of the scale of each array
    state = 2                       # how many of the first arguments are the state of training, or a list of which
    layers = "block_([0-9]+)"       # in the path of an array of that state: its layer; without a group, a stack of all;
                                    # or a list of expressions, one for each layer
    stages = [0, 0, 1, 1]           # the stage of each layer
    slices = 2                      # optional: how many stages there are, if some have no layer

A case in which a hint is neither rewritten, nor refused, nor reported has failed.

The module that `run` names has `make()`, which returns the arguments, `step(*arguments)`, the hinted step, and
`reference(*arguments)`, the same on one device: on the whole batch, or microbatch by microbatch with the keys of each
where random numbers are drawn. Both return a tuple that begins with the next state, parameters and what the optimizer
keeps, so that `STEPS` steps can be taken. The rewritten copy runs `step` on eight virtual devices, and the original
runs `reference` on one. Results are compared leaf by leaf, by path: types and shapes are the same, and values to the
tolerance. Every array of the state that belongs to a layer, of parameters and of optimizer state alike, must lie on the
devices of that layer's stage and on no other: of `n` stages, stage k has the k-th of `n` equal runs of the devices.

Instead of `run`, a case may have programs as they are, which make their own model, data and step:

    program = "train"               # a module, run as a script
    step = "update"                 # the function that it compiles, whose results are compared after one step and three
    start = "main()"                # optional: what to run after the module
    stand_ins = ["tensorflow"]      # optional: modules in whose place there are mocks; `prepare.py` may say more
    float64 = true                  # optional: in double precision, `jnp.float32` included
    microbatches = { count = 2, batch = [1], rng = 2, auxiliary = "mean" }  # optional: how the original takes its batch
    rounding = "key'..'bias"        # optional: not compared, as their gradients are nothing but rounding
    reference = [["was", "is"]]     # optional: text of the program that is another one in the original's run

Here `state` counts the Flax objects that the step is given, then its results. See `run_case.py`.

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

RUNNER = Path(__file__).with_name("run_case.py")
PROGRAM_KEYS = ("program", "step", "start", "float64", "stand_ins", "microbatches")
FLOOR = 1e-4  # with the default tolerance, what hides behind it is 1e-8 of the largest gradient: below float32
STEPS = 3
DEVICES = 8


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
        if found == expected == "rewritten" and ("run" in told or "program" in told):
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
    original = case
    if "reference" in told:
        original = Path(shutil.copytree(case, scratch / "original"))
        program = original / f"{told['program']}.py"
        for was, becomes in told["reference"]:
            program.write_text(program.read_text().replace(was, becomes))
    for folder, name, devices in ((original, "reference", 1), (copy, "step", DEVICES)):
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
    if "rounding" in told:
        differences = {name: found for name, found in differences.items() if not re.search(told["rounding"], name)}
    worst = max(differences, key=differences.__getitem__)
    equal = differences[worst] <= told.get("tolerance", 1e-4)
    wrong = misplaced(shards["step"], told["state"], told["layers"], told["stages"], told.get("slices"))
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


def misplaced(
    shards: dict[str, Any],
    state: int | list[int],
    layers: str | list[str],
    stages: list[int],
    slices: int | None = None,
) -> list[str]:
    """The arrays of layers that are not on their stage, and parts of the state that have none.

    Args:
        shards: For each array of the results its device and rows in each dimension, shard by shard.
        state: How many of the first results are state, or which are.
        layers: Finds an array's layer in its path; without a group, stacks of all layers, along their first dimension;
            or what finds each layer.
        stages: The stage of each layer.
        slices: How many stages there are; one more than the last of `stages` if left out.
    """
    patterns = [re.compile(each) for each in ([layers] if isinstance(layers, str) else layers)]
    run_length, wrong = DEVICES // (slices or max(stages) + 1), []
    seen: set[tuple[str, int]] = set()
    elements = [f"[{position}]" for position in (range(state) if isinstance(state, int) else state)]
    for path, pieces in shards.items():
        matches = [(number, match) for number, each in enumerate(patterns) if (match := each.search(path))]
        where = element(path) + "]"
        # Counters and the like are on all devices.
        if not matches or where not in elements or not pieces or not pieces[0][1]:
            continue
        number, match = matches[0]
        found: dict[int, set[int]] = {}
        for device, rows in pieces:
            one = [number] if not isinstance(layers, str) else [int(match[1])] if match.re.groups else None
            for layer in range(*rows[0]) if one is None else one:
                found.setdefault(layer, set()).add(device // run_length)
        seen.update((where, layer) for layer in found)
        for layer, at in sorted(found.items()):
            if layer >= len(stages):
                wrong.append(f"{path}: layer {layer} of {len(stages)}")
            elif at != {stages[layer]}:
                wrong.append(f"{path}: layer {layer} on stage {', '.join(map(str, sorted(at)))}, not {stages[layer]}")
    unseen = [layer for layer in range(len(stages)) if (elements[0], layer) not in seen]
    return wrong + [f"no array of layer {layer} in {elements[0]}" for layer in unseen]


def run(folder: Path, told: dict[str, Any], name: str, devices: int, scratch: Path) -> str:
    """Call a function of a case's module and save what it returns as `name` in `scratch`; its error, empty if none."""
    if "program" in told:
        case = {key: told[key] for key in PROGRAM_KEYS if key in told}
        case |= {"compile": "mm.mjit" if name == "step" else "any"}
    else:
        case = {"module": told["run"], "function": name, "state": told.get("state", 0)}
    (scratch / f"{name}.case").write_text(json.dumps({**case, "steps": STEPS}))
    command = [sys.executable, str(RUNNER), str(scratch / f"{name}.case"), str(scratch / name)]
    done = subprocess.run(
        command, cwd=folder, env=environment(devices, folder), capture_output=True, text=True, check=False
    )
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def relative(one: dict[str, np.ndarray], many: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference of each array of two runs, divided by its scale; not-a-number counts as infinite."""
    # Booleans as numbers, which can be subtracted.
    one, many = ({name: array * 1 for name, array in arrays.items()} for arrays in (one, many))
    sizes = {name: float(np.abs(array).max(initial=0)) for name, array in one.items()}
    wholes: dict[str, float] = {}
    for name, size in sizes.items():
        if np.issubdtype(one[name].dtype, np.inexact):  # random keys and tokens are large numbers
            wholes[element(name)] = max(wholes.get(element(name), 0), size)
    differences = {}
    for name, array in one.items():
        # Infinities that are the same differ by nothing.
        apart = array != many[name]
        difference = float(np.abs(array[apart] - many[name][apart]).max(initial=0))
        scale = max(sizes[name], FLOOR * wholes.get(element(name), 0), 1e-30)
        differences[name] = difference / scale if np.isfinite(difference) else float("inf")
    return differences


def element(name: str) -> str:
    """The element of the result's tuple that an array belongs to: `[1]` of `[1]['params']['kernel']`."""
    return name.partition("]")[0]


def environment(devices: int | None = None, folder: Path | None = None) -> dict[str, str]:
    """Variables of a process that finds the packages, and the case before them."""
    paths = [str(ROOT), str(ROOT / "codemods"), str(ROOT / "runtime")]
    paths = [*([str(folder)] if folder else []), *paths, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if devices is not None:
        variables |= {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
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
