"""Whether MultiMesh's own tests and notebooks do with `mmruntime` what their documents say.

    python validation/multimesh_suite.py --project DIR [--new PYTHON ...] [NAME ...]

DIR is a checkout of MultiMesh (nv-legate/multimesh-jax), of either generation: `tests/python`, `docs/notebooks`. It is
copied, and the copy rewritten by this checkout's `mmrewrite modernize`, without an edit by hand. Then, under every
`--new` Python (default: this one), on virtual CPU devices, or for the NAMEs given alone, such as `jax_task_test`:

- each test module runs with `--cpus` 1, 2, 4 and 8. No case may fail but those in `KNOWN`, with the reason there;
- the code cells of each notebook run in order. The losses, shapes, specs and devices that they print are held to those
  that MultiMesh's documents show (`SHOWN`), losses to 1e-5 of their value.

The exit status is 1 when anything differs, or when a notebook or a module is not known here.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COUNTS = (1, 2, 4, 8)
# Cases that fail, wherever they do not skip themselves.
KNOWN = {
    "test_microbatch_lb": "uses a name that its module does not import",
    "test_auto_shard_multiple_axes": "reads layout objects of MultiMesh's plugin",
    "test_mesh_wrapper": "lacks a sharding rule, for which JAX's partitioner asks today",
}
MODULES = ("jax_auto_task_test", "jax_microbatch_test", "jax_task_test")

_ROWS = tuple(f"on {device}" for device in range(8))
_STATE = ("()", "P()", "(4,)", "on 0,1,2,3", "(16, 4)", *_ROWS[:4], "(4,)", "on 4,5,6,7", "(4, 4)", *_ROWS[4:])
_BY_HAND = ("(8, 8)", "P('x')", "(8, 8)", "P('x')", "(8, 8)", "P('x')", *_ROWS)
_WHOLE = ("(8, 8)", "P()", "(8, 8)", "P()", "(8, 8)", "P()", "on 0,1,2,3,4,5,6,7")
_BY_TASK = ("(8, 8)", "P('x')", "(8, 8)", "P('x')", "(8, 8)", "P(None, 'x')", *_ROWS)
# What the documents show, in order; of `flax-mpmd`, the loss of May 2025, whose JAX drew the numbers of today.
SHOWN: dict[str, tuple[str | float, ...]] = {
    "hello-world": ("ones", "on 0", "on 0,1", "on 1"),
    "spmd-autosharding": (*_BY_HAND, *_WHOLE, *_BY_TASK),
    "mpmd-autosharding": (*_ROWS[:4], *_ROWS[4:], *_ROWS[:4], *_ROWS),
    "mpmd-multimesh": ("on 0,2", "on 1,3", "on 4,6", "on 5,7"),
    "implicit-flax-tasks": (6.547683, *_STATE, *_STATE),
    "implicit-flax-tasks-old": (6.547683, *_STATE, *_STATE),
    "flax-mpmd": (64.85133, *_STATE),
}
_SHOWN = re.compile(
    r"Loss = +(?P<loss>[\d.]+)|^(?P<shape>\([\d, ]*\))|\bspec=\w+\((?P<spec>[^)]*)\)"
    r"|(?:CPU|MULTIMESH) (?P<on>[\d,]+)|^\{(?P<devices>CpuDevice[^}]*)\}|^Array\((?P<array>[^)]*)\)",
    re.MULTILINE,
)


def shown(text: str) -> Iterator[str | float]:
    """Losses, shapes, specs and devices in what a notebook printed, in order."""
    for found in _SHOWN.finditer(re.sub(r"\x1b\[[0-9;]*m", "", text)):
        kind, value = found.lastgroup, found[found.lastgroup or 0]
        if kind == "loss":
            yield float(value)
        elif kind == "spec":
            # Names that end in `None` mean the same without it.
            yield "P(" + re.sub(r"(,\s*None)*,?\s*$", "", value) + ")"
        elif kind == "devices":
            yield "on " + ",".join(sorted(re.findall(r"id=(\d+)", value)))
        elif kind == "array":
            numbers = [float(number) for number in re.findall(r"\d\.\d*", value)]
            yield "ones" if len(numbers) == 8 and all(abs(number - 1) < 1e-6 for number in numbers) else value
        else:
            yield value if kind == "shape" else f"{kind} {value}"


def run_cells(path: Path) -> None:
    """Run the code cells of a notebook in one namespace; what a cell ends in is printed as a notebook shows it."""
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
            if value is not None:
                print(value if isinstance(value, dict | list) else repr(value))


def child(path: Path) -> None:
    """Run a notebook, and print what it showed as JSON."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        run_cells(path)
    print(json.dumps(list(shown(said.getvalue()))))


def run(python: str, arguments: Sequence[str], folder: Path, devices: int) -> subprocess.CompletedProcess[str]:
    """Run a Python on CPU devices, with the runtime of this checkout."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "runtime"),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    return subprocess.run(
        [python, "-W", "ignore", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def try_notebook(python: str, path: Path) -> bool:
    """Run a notebook, tell how it compares, and return whether it shows what the documents show."""
    done = run(python, [str(Path(__file__).resolve()), "--child", str(path)], path.parent, 8)
    if done.returncode:
        print(f"  {path.stem}: does not run: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        return False
    found, wanted = json.loads(done.stdout.splitlines()[-1]), SHOWN.get(path.stem)
    if wanted is None:
        print(f"  {path.stem}: runs, but what it should show is not known: {found}")
        return False
    same = len(found) == len(wanted) and all(map(is_same, found, wanted))
    losses = ", ".join(str(value) for value in found if isinstance(value, float))
    print(f"  {path.stem}: {'the same' if same else 'differs'}{f', loss {losses}' if losses else ''}")
    if not same:
        print(f"    shows {found}\n    expected {list(wanted)}")
    return same


def is_same(one: str | float, other: str | float) -> bool:
    """Whether two shown values are the same."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-5 * abs(other)
    return one == other


def try_module(python: str, path: Path) -> bool:
    """Run a test module on every number of devices, tell what its cases do, and return whether all is well."""
    outcomes: dict[str, set[str]] = {}
    for count in COUNTS:
        done = run(python, [path.name, "--cpus", str(count)], path.parent, count)
        for outcome, name in re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] \w+\.(test_\w+)", done.stderr, re.MULTILINE):
            outcomes.setdefault(name, set()).add(outcome)
    failed = [name for name in outcomes if "FAILED" in outcomes[name]]
    passed = [name for name in outcomes if "OK" in outcomes[name] and name not in failed]
    print(f"  {path.stem}: {len(passed)} of {len(outcomes)} cases pass, {len(failed)} fail, the others skip themselves")
    for name in failed:
        print(f"    {name} {KNOWN.get(name, 'should not fail')}")
    return bool(passed) and all(name in KNOWN for name in failed)


def main() -> int:
    """Rewrite a copy, and run what it has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--project", type=Path, help="a checkout of MultiMesh")
    parser.add_argument("--new", action="append", help="Python to run it with; may be given several times")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="test modules and notebooks; all, if none is given")
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return 0
    if options.project is None:
        parser.error("--project is needed")
    well = True
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "multimesh"
        shutil.copytree(options.project, copy, ignore=shutil.ignore_patterns(".git"))
        path = os.pathsep.join(str(ROOT / part) for part in (".", "codemods"))
        rewritten = [sys.executable, "-m", "mmrewrite", "modernize", str(copy)]
        if subprocess.run(rewritten, env={**os.environ, "PYTHONPATH": path}, capture_output=True).returncode == 2:
            raise SystemExit("a file cannot be read")
        modules = [copy / "tests" / "python" / f"{name}.py" for name in MODULES]
        notebooks = sorted((copy / "docs" / "notebooks").glob("*.ipynb"))
        for given in options.new or [sys.executable]:
            # A path is one from here, and not from the folder that it runs in.
            python = os.path.abspath(given) if os.sep in given else given
            print(python, flush=True)
            for each in (*modules, *notebooks):
                if not options.names or each.stem in options.names:
                    well &= (try_notebook if each.suffix == ".ipynb" else try_module)(python, each)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
