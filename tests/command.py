"""The command in this process, and small files for it, in the folder of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from mmrewrite.cli.commands import cli

HINTED = "def f(x):\n    return x\n\n\ny = f(1)  # mm: task(stage=0)\n"
REFUSED = "def f(x):\n    return x\n\n\ny = f(1) + f(2)  # mm: task(stage=0)\n"
OLD = "import jax\nx = jax.tree_map(len, [])\n"
PIPELINE = """\
import jax

# mm: mesh(stage=2)


def model(params, x):
    for w in params:  # mm: stages
        x = x @ w
    return x.mean()


@jax.jit  # mm: mjit
def step(params, x):
    return jax.grad(model)(params, x)  # mm: microbatch(count=4)
"""


def run(*arguments: str, stdin: str | bytes | None = None, **options: Any) -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin, catch_exceptions=False, **options)


def put(path: str, text: str | bytes) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file
