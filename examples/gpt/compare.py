"""Rewrite this example, run it on eight virtual devices, and compare it with one device.

    python examples/gpt/compare.py

Prints the rewrite as a diff, where every task and every array went, the losses of both runs side by side, and the
largest difference. The exit status is 1 when the two runs differ by more than rounding explains.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmrewrite.cli.terminal.progress import StatusLine

HERE = Path(__file__).resolve().parent
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
# One for all that is run, so that no silence between two of them is longer than within.
STATUS = StatusLine()


@dataclass(frozen=True)
class Run:
    """What `record.py` wrote down about one run."""

    losses: np.ndarray
    arrays: Mapping[str, np.ndarray]
    notes: Mapping[str, Any]
    seconds: float


def mmrewrite(*arguments: str) -> str:
    """Run the command-line tool and return what it prints."""
    command = [sys.executable, "-m", "mmrewrite", *arguments]
    with STATUS.phase(f"mmrewrite {arguments[0]}"):
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"mmrewrite {arguments[0]} failed:\n{finished.stdout}{finished.stderr}")
    return finished.stdout


def find_script(folder: Path, name: str) -> Path:
    """The one file called `name` below the folder that `mmrewrite build` wrote."""
    found = sorted(folder.rglob(name))
    if len(found) != 1:
        raise SystemExit(f"Expected one {name} under {folder}, found {len(found)}.")
    return found[0]


def run(script: Path, arguments: Sequence[str], *, devices: int) -> Run:
    """Run a `record.py` in a process of its own, on virtual CPU devices; what it says is shown meanwhile."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"]),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        start = time.perf_counter()
        command, said = [sys.executable, str(script), "--record", str(path), *arguments], []
        with (
            STATUS.phase("original program" if devices == 1 else "rewritten program") as tell,
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as process,
        ):
            tell("importing JAX and making the model")
            for line in process.stdout or ():
                said.append(line)
                # The seconds are those of this line.
                tell(re.sub(r"^mmruntime: | \(\d+ s\)$", "", line.strip()))
        seconds = time.perf_counter() - start
        if process.returncode:
            raise SystemExit(f"{script} failed:\n{''.join(said)}")
        with np.load(path) as saved:
            arrays = {name: saved[name] for name in saved.files}
    notes = json.loads(str(arrays.pop("notes")))
    del arrays["accuracy"]
    return Run(arrays.pop("loss"), arrays, notes, seconds)


def largest_difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two arrays, relative to the largest value of the first; infinite for NaN or inf."""
    if one.shape != other.shape:
        raise SystemExit(f"Shapes differ: {one.shape} and {other.shape}.")
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return float("inf")
    difference = np.max(np.abs(one.astype(np.float64) - other), initial=0.0)
    return float(difference / max(np.max(np.abs(one), initial=0.0), np.finfo(np.float64).tiny))


def largest_differences(one: Run, other: Run) -> dict[str, tuple[float, str]]:
    """For the losses, the parameters and the optimizer state: the largest difference and the array that has it."""
    if one.arrays.keys() != other.arrays.keys():
        raise SystemExit(f"The two runs hold different arrays: {sorted(one.arrays.keys() ^ other.arrays.keys())}.")
    result = {"loss": (largest_difference(one.losses, other.losses), "")}
    for kind in ("params", "opt_state"):
        names = [name for name in one.arrays if name.startswith(kind + "/")]
        if names:  # plain SGD has no state
            result[kind] = max((largest_difference(one.arrays[name], other.arrays[name]), name) for name in names)
    return result


def devices(arrays: Iterable[Mapping[str, Any]]) -> str:
    return " and ".join(sorted({",".join(map(str, where["devices"])) for where in arrays})) or "-"


def size(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def placement_table(notes: Mapping[str, Any]) -> str:
    """One line for each parameter: its devices, the piece that each of them holds, and where the optimizer state is.

    Layers that are alike and live on the same devices share a line.
    """
    placement = notes["placement"]
    layers: dict[tuple[str, ...], list[str]] = {}
    for path, where in placement.items():
        kind, name = path.split("/", 1)
        if kind != "params":
            continue
        state = [other for other_path, other in placement.items() if other_path.endswith(f"u/{name}")]
        layer = re.match(r"blocks_(\d+)/", name)
        row = (devices([where]), size(where["shape"]), size(where["shard"]), devices(state))
        layers.setdefault((re.sub(r"blocks_\d+", "blocks_*", name), *row), []).append(layer[1] if layer else "")
    rows = [
        (",".join(numbers).join(name.split("*")) if "*" in name else name, *row)
        for (name, *row), numbers in layers.items()
    ]
    rows.sort(key=lambda row: [int(device) for device in re.findall(r"\d+", row[1])])
    return table([("parameter", "devices", "shape", "on each device", "optimizer state on"), *rows])


def compare(options: argparse.Namespace, rest: Sequence[str], out: Path) -> int:
    print("== The rewrite: mmrewrite diff\n")
    print(mmrewrite("diff", str(HERE)))
    mmrewrite("build", str(HERE), "--out", str(out))
    print(f"== Built: {find_script(out, 'train.py')}\n")

    dtype = "float64" if options.float64 else "float32"
    arguments = [f"--dtype={dtype}", f"--steps={options.steps}", f"--text={HERE / 'gospels.txt'}", *rest]
    one = run(HERE / "record.py", ["--microbatched", *arguments], devices=1)
    many = run(find_script(out, "record.py"), arguments, devices=options.devices)

    print("== Tasks: train_step.explain()\n")
    # Where the inputs went is told by the next table, from the arrays themselves.
    sections = many.notes["explain"].split("\n\n")
    print("\n\n".join(section for section in sections if not section.startswith("Inputs")))
    print("\n== Where each parameter and its optimizer state went: array.devices()\n")
    print(placement_table(many.notes))

    print(f"\n== Losses, {dtype}: one device (microbatched alike) and {many.notes['devices']} devices\n")
    print(f"{'step':>4}  {'one device':>16}  {'rewritten':>16}  {'difference':>10}")
    for step, (left, right) in enumerate(zip(one.losses, many.losses, strict=True), 1):
        print(f"{step:4d}  {left:16.12f}  {right:16.12f}  {abs(left - right):10.1e}")
    print()
    for title, each in (("one device", one), ("rewritten", many)):
        seconds = each.notes["seconds"]
        print(f"{title}: {each.seconds:.1f} s in all, first step {seconds[0]:.1f} s, last step {seconds[-1]:.2f} s")

    tolerance = TOLERANCE[dtype]
    print(f"\n== Largest difference, relative to the largest value of its array (tolerance {tolerance:.0e})\n")
    differences = largest_differences(one, many)
    for kind, (difference, name) in differences.items():
        print(f"{kind:<9}  {difference:.1e}  {name}".rstrip())
    # The second moments are squares of gradients: they carry twice the gradients' rounding and are shown, not judged.
    same = all(differences[kind][0] <= tolerance for kind in ("loss", "params"))
    print("\nThe two runs agree." if same else "\nThe two runs DIFFER.")
    return 0 if same else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Other options are those of train.py, for example --dropout 0 or --optimizer sgd.",
        allow_abbrev=False,
    )
    parser.add_argument("--steps", type=int, default=10, help="training steps of either run (default 10)")
    parser.add_argument("--float64", action="store_true", help="train in double precision")
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices (default 8)")
    parser.add_argument("--out", type=Path, help="folder for the rewritten package (default: a temporary one)")
    options, rest = parser.parse_known_args()
    if options.out:
        return compare(options, rest, options.out)
    with tempfile.TemporaryDirectory(prefix="mmrewrite-") as folder:
        return compare(options, rest, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
