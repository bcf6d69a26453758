"""What the tool costs, as ratios to what cannot be avoided: reading the files, and LibCST's own parse.

    python benchmarks/tool_speed.py [FOLDER] [--jax]

FOLDER is a tree of Python files, by default the standard library's. All times are CPU time, the least of several runs,
but for the gain of several cores, which is by the clock. The goal stands beside each figure, and the exit status is 1
if one is missed. `--jax` modernizes a copy of the installed JAX as well, which takes minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import libcst as cst

from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.carrier import may_have_hints
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.files.select import Rules, select_files
from mmrewrite.files.walk import walk
from mmrewrite.project.facts import SourceFile

RUNS = 5
STARTS = 10
FILES = 1000
# By how much all cores must be faster than one, by the clock.
CORES_GAIN = 1.6
JAX_ROUNDS = 2
# How many times as much one loss of 200 may cost as one of 25.
GROWTH = 1.5
missed: list[str] = []

HINTED = '''
class Model_{number}(nn.Module):
  """A model with {lines} lines of its own and three hints."""

  def setup(self):
    self.blocks = [Block() for _ in range(4)]

{filler}
  def __call__(self, x):
    x = self.embed(x)  # mm: task(stage=0)
    for block in self.blocks:  # mm: stages
      x = block(x, deterministic=True)
    return self.head(x)  # mm: shard("batch", None, "vocabulary")
'''

FILLER = """  def helper_{number}(self, first, second):
    result = jnp.einsum('bqhd,bkhd->bhqk', first, second) / jnp.sqrt(first.shape[-1])
    if self.config.scale is not None and result.ndim > {number}:
      result = jnp.where(result > 0, result * self.config.scale, -result)
    return [item for item in (result, first, second) if item is not None]
"""

# A model, and a step whose loss calls one that it is given: it may be any of the file.
LOSS = """
class Model{number}:
    def __init__(self, blocks):
        self.blocks = blocks

    def __call__(self, params, x):
        for block in self.blocks:  # mm: stages
            x = block(x * params)
        return x


def make_{number}(model, tx):
    def loss_fn(params, x, y):
        logits = model(params, x)
        return jnp.mean((logits - y) ** 2)

    @jax.jit  # mm: mjit
    def train(params, opt, x, y):
        grads = jax.grad(loss_fn)(params, x, y)  # mm: microbatch(size=2, argnum=(1, 2))
        updates, opt = tx.update(grads, opt)
        return optax.apply_updates(params, updates), opt

    return train
"""


def cpu(run: Callable[[], object]) -> float:
    """CPU seconds of one call, the least of several."""
    least = float("inf")
    for _ in range(RUNS):
        start = time.process_time()
        run()
        least = min(least, time.process_time() - start)
    return least


def hinted_module(definitions: int, helpers: int) -> str:
    parts = ["import jax.numpy as jnp\nfrom flax import linen as nn\n"]
    for number in range(definitions):
        filler = "\n".join(FILLER.format(number=index) for index in range(helpers))
        parts.append(HINTED.format(number=number, lines=helpers * 5, filler=filler))
    return "\n".join(parts)


def losses_module(count: int) -> str:
    head = "import jax\nimport jax.numpy as jnp\nimport optax\n\n# mm: mesh(stage=4)\n"
    return head + "".join(LOSS.format(number=number) for number in range(count))


def read_and_search(paths: list[str]) -> int:
    return sum(may_have_hints(Path(path).read_bytes()) for path in paths)


def row(what: str, seconds: float, against: float, goal: float | None = None) -> None:
    """Print a figure as a multiple of `against`, and note if it is above its goal, another multiple."""
    verdict = ""
    if goal is not None:
        verdict = f"goal {goal:.1f} x{'' if seconds <= goal * against else ', MISSED'}"
        missed.extend([what] if seconds > goal * against else [])
    print(f"{what:<58} {1000 * seconds:9.1f} ms {seconds / against:7.2f} x   {verdict}", flush=True)


def of_child(
    *arguments: str, cwd: str | None = None, runs: int = STARTS, variables: Mapping[str, str] | None = None
) -> float:
    """CPU seconds of a process and its children, the least of several runs."""
    least = float("inf")
    # Installed packages are compiled, and so is what a run has left, where it may.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= variables or {}
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, cwd=cwd, env=environment)
        assert done.returncode in (0, 1), done.stderr.decode()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        least = min(least, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return least


def unhinted(folder: str) -> None:
    paths = [path for path in walk(folder) if path.endswith(".py")]
    size = sum(Path(path).stat().st_size for path in paths)
    print(f"{folder}: {len(paths)} files, {size / 1e6:.1f} MB")
    plain = cpu(lambda: read_and_search(paths))
    row("read and search every file", plain, plain)
    row("select_files, the same and walk", cpu(lambda: select_files([folder], Rules(Path(folder)))), plain, 2)


def hinted() -> None:
    registry = Registry()
    dict(registry)
    for name, definitions, helpers in (("every definition small", 40, 1), ("hints in large definitions", 4, 40)):
        text = hinted_module(definitions, helpers)
        lines = text.count("\n")
        parse = cpu(lambda text=text: cst.parse_module(text))
        print(f"\n{name}: {lines} lines, {definitions * 3} hints, {1e6 * parse / lines:.0f} us a line to parse")
        row("libcst.parse_module of the whole file", parse, parse)
        source = SourceFile("module.py", text.encode(), "module")
        row(
            "rewrite, checks included",
            cpu(lambda source=source: rewrite_project([source], registry)),
            parse,
            3,
        )
        # Comments that are not like hints: those that are cost a look at each.
        string = SourceFile("module.py", text.replace("# mm: ", "# at: ").encode() + b"X = '# mm: off'\n", "module")
        row("the marker in a string only", cpu(lambda s=string: rewrite_project([s], registry)), parse, 0.2)


def dense() -> None:
    """Files full of hints, and files that import each other."""
    registry = Registry()
    print("\nmany hints in a file, as a multiple of P, LibCST's parse of it")
    for definitions in (17, 34, 67, 134):
        text = hinted_module(definitions, 1)
        parse = cpu(lambda text=text: cst.parse_module(text))
        source = SourceFile("module.py", text.encode(), "module")
        row(f"{3 * definitions} hints", cpu(lambda source=source: rewrite_project([source], registry)), parse, 3)
    print("\nlosses in a file, each with a model that may be any of the file's; 1 x is P")
    few = 0.0
    for count in (25, 50, 100, 200):
        text = losses_module(count)
        parse = cpu(lambda text=text: cst.parse_module(text))
        source = SourceFile("module.py", text.encode(), "module")
        (rewrite,) = rewrite_project([source], registry)
        assert len(rewrite.edits) >= count and not rewrite.refusals and not rewrite.failed
        seconds = cpu(lambda source=source: rewrite_project([source], registry))
        # Linear: each loss costs as much among many as among few.
        row(f"{count} losses, {3 * count} hints", seconds, parse, GROWTH * few if few else None)
        few = few or seconds / parse
    print("\nhinted files that import each other, each as a multiple of P")
    for count in (8, 16, 32, 64):
        texts = [
            "".join(f"from package import module_{(number + step) % count} as other_{step}\n" for step in (1, 2, 3))
            + hinted_module(1, 4)
            for number in range(count)
        ]
        files = [
            SourceFile(f"package/module_{number}.py", text.encode(), f"package.module_{number}")
            for number, text in enumerate(texts)
        ]
        parse = cpu(lambda texts=texts: [cst.parse_module(text) for text in texts])
        row(f"{count} files", cpu(lambda files=files: rewrite_project(files, registry)), parse, 3)


def starts() -> None:
    bare = of_child("-c", "pass")
    print("\nstart-up, as a multiple of S")
    row("S: python -c pass", bare, bare)
    row("mmrewrite --version", of_child("-m", "mmrewrite", "--version"), bare, 5)
    row("mmrewrite --help", of_child("-m", "mmrewrite", "--help"), bare, 5)
    row("mmrewrite codemods", of_child("-m", "mmrewrite", "codemods"), bare)
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "source")
        os.mkdir(source)
        Path(source, "module.py").write_text(hinted_module(1, 4))
        cache = {"MMREWRITE_CACHE_DIR": os.path.join(folder, "cache")}
        for command in (("diff",), ("modernize", "--check")):
            of_child("-m", "mmrewrite", *command, cwd=source, runs=1, variables=cache)
            again = of_child("-m", "mmrewrite", *command, cwd=source, variables=cache)
            row(f"mmrewrite {' '.join(command)}, for the second time", again, bare, 6)
        plain = os.path.join(folder, "plain")
        os.mkdir(plain)
        for number in range(FILES):
            Path(plain, f"module_{number}.py").write_text(FILLER.format(number=number).replace("\n  ", "\n").strip())
        paths = [os.path.join(plain, name) for name in os.listdir(plain)]
        read = cpu(lambda: read_and_search(paths))
        allowed = bare + 2 * read + 0.020
        print(f"\n{FILES} files without hints and old names; 1 x is S + 2 R + 20 ms")
        for command in (("diff",), ("modernize", "--check")):
            row(
                f"mmrewrite {' '.join(command)}",
                of_child("-m", "mmrewrite", *command, cwd=plain, variables=cache),
                allowed,
                1,
            )


def timed(*arguments: str, cwd: str) -> tuple[float, float]:
    """Seconds by the clock, and CPU seconds, of one process and its children."""
    start, seconds = time.perf_counter(), of_child(*arguments, cwd=cwd, runs=1)
    return time.perf_counter() - start, seconds


def installed_jax() -> None:
    spec = importlib.util.find_spec("jax")
    assert spec is not None and spec.origin is not None
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(os.path.dirname(spec.origin), os.path.join(folder, "jax"))
        command = ("-m", "mmrewrite", "modernize", "--check", "--no-cache", "-q")
        # One after the other, so that both see the machine in one state.
        rounds = [(timed(*command, "--jobs", "1", cwd=folder), timed(*command, cwd=folder)) for _ in range(JAX_ROUNDS)]
        alone, together = (min(times[which][0] for times in rounds) for which in (0, 1))
        print("\nall of the installed JAX; 1 x is a second of CPU")
        row("mmrewrite modernize --check, --jobs 1", min(one[1] for one, _ in rounds), 1.0)
        row("the same with all cores, the default", min(every[1] for _, every in rounds), 1.0, 25)
        cores = os.cpu_count() or 1
        what = f"by the clock: one process against {cores} cores"
        is_missed = cores > 1 and alone < CORES_GAIN * together
        missed.extend([what] if is_missed else [])
        verdict = f"goal at least {CORES_GAIN} x{', MISSED' if is_missed else ''}" if cores > 1 else ""
        print(f"{what:<58} {alone:5.1f} s, {together:5.1f} s {alone / together:5.2f} x   {verdict}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure what the tool costs.")
    parser.add_argument("folder", nargs="?", default=sysconfig.get_paths()["stdlib"])
    parser.add_argument("--jax", action="store_true", help="modernize a copy of the installed JAX, too")
    arguments = parser.parse_args()
    starts()
    dense()
    hinted()
    unhinted(arguments.folder)
    if arguments.jax:
        installed_jax()
    for what in missed:
        print(f"missed: {what}")
    sys.exit(bool(missed))
