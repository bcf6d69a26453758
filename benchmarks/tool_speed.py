"""What the tool costs, as ratios to what cannot be avoided: reading the files, and LibCST's own parse.

    python benchmarks/tool_speed.py [FOLDER]

FOLDER is a tree of Python files, by default the standard library's. All times are CPU time, the least of several
runs; of starts, the mean.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import libcst as cst

from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.carrier import may_have_hints
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.files.select import Rules, select_files, walk
from mmrewrite.project.facts import SourceFile

RUNS = 5
STARTS = 20

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


def read_and_search(paths: list[str]) -> int:
    return sum(may_have_hints(Path(path).read_bytes()) for path in paths)


def row(what: str, seconds: float, against: float, target: str) -> None:
    print(f"{what:<58} {1000 * seconds:9.1f} ms {seconds / against:7.2f} x   {target}")


def unhinted(folder: str) -> None:
    paths = [path for path in walk(folder) if path.endswith(".py")]
    size = sum(Path(path).stat().st_size for path in paths)
    print(f"{folder}: {len(paths)} files, {size / 1e6:.1f} MB")
    plain = cpu(lambda: read_and_search(paths))
    row("read and search every file", plain, plain, "")
    row(
        "select_files, the same and walk", cpu(lambda: select_files([folder], Rules(Path(folder)))), plain, "target 2 x"
    )


def hinted() -> None:
    registry = Registry()
    dict(registry)
    for name, definitions, helpers in (("every definition small", 40, 1), ("hints in large definitions", 4, 40)):
        text = hinted_module(definitions, helpers)
        lines = text.count("\n")
        parse = cpu(lambda text=text: cst.parse_module(text))
        print(f"\n{name}: {lines} lines, {definitions * 3} hints, {1e6 * parse / lines:.0f} us a line to parse")
        row("libcst.parse_module of the whole file", parse, parse, "")
        source = SourceFile("module.py", text.encode(), "module")
        row(
            "rewrite, checks included",
            cpu(lambda source=source: rewrite_project([source], registry)),
            parse,
            "target 2 x",
        )
        # Comments that are not like hints: those that are cost a look at each.
        string = SourceFile("module.py", text.replace("# mm: ", "# at: ").encode() + b"X = '# mm: off'\n", "module")
        row("the marker in a string only", cpu(lambda s=string: rewrite_project([s], registry)), parse, "target 0.2 x")


def starts() -> None:
    def of_child(*arguments: str) -> float:
        # Some kernels count the time of children in ticks of 10 ms, which is what one start takes.
        before = os.times()
        for _ in range(STARTS):
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        return used / STARTS

    bare = of_child("-c", "pass")
    print("\nstart-up")
    row("python -c pass", bare, bare, "")
    row("mmrewrite --version", of_child("-m", "mmrewrite", "--version"), bare, "target 5 x")
    row("mmrewrite codemods", of_child("-m", "mmrewrite", "codemods"), bare, "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure what the tool costs.")
    parser.add_argument("folder", nargs="?", default=sysconfig.get_paths()["stdlib"])
    unhinted(parser.parse_args().folder)
    hinted()
    starts()
