"""Each question about a value in each form of Python: what holds the value is rewritten, or told at its line.

The forms are those of `value_forms.txt`. In place of `ask(value)` stands what a question is about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from fixture_files import source_files
from test_values import FORMS

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite.results import Rewrite

REGISTRY = ModernizeRegistry()
# What begins the program, the value, and what is done with it.
QUESTIONS = {
    "module of JAX": ("", "jax", "({}).tree_map(f, x)"),
    "function that lost a keyword": ("import jax.numpy as jnp\n", "jnp.clip", "({})(x, a_min=0)"),
    "relative path": (
        "import orbax.checkpoint as ocp\n",
        '"ckpt/a"',
        "ocp.PyTreeCheckpointer().save({}, state)",
    ),
    "list of modules": (
        "from flax import nnx\n",
        "[nnx.Linear(2, 2, rngs=rngs)]",
        "def made(this={}):\n    return this\n"
        "class Q(nnx.Module):\n    def __init__(self):\n        self.layers = made()",
    ),
    "mesh": (
        "from jax.sharding import Mesh, PartitionSpec as P\nfrom jax.experimental.pjit import pjit\n"
        "step = pjit(lambda x: x, in_axis_resources=P('d'), out_axis_resources=P('d'))\n",
        "Mesh(devices, ('d',))",
        "with {}:\n    step(x)",
    ),
    "compiled program": ("", "jax.jit(step).lower(1).compile()", "({}).input_layouts()"),
    "array": ("import jax.numpy as jnp\n", "jnp.ones(3)", "({}).device()"),
    "optimizer": (
        "from flax import nnx\n",
        "nnx.Optimizer(model, tx)",
        "({}).update(grads)",
    ),
}


def results(question: str, form: str) -> Sequence[Rewrite]:
    head, value, use = QUESTIONS[question]
    parts = re.split(r"^# file (.*)\n", form, flags=re.MULTILINE)
    files = dict(zip(parts[1::2], parts[2::2], strict=True)) or {"main.py": form}
    sources = {}
    for path, text in files.items():
        lines = []
        for line in re.sub(r"\bV\b", lambda _: value, text).splitlines():
            asked = re.search(r"ask\((.*)\)$", line)
            if asked is None:
                lines.append(line)
                continue
            indent = line[: len(line) - len(line.lstrip())]
            if not line.lstrip().startswith("ask("):
                indent = f"{indent}    "
                lines.append(line[: asked.start()].rstrip())
            lines += [f"{indent}{part}" for part in use.format(asked.group(1)).splitlines()]
        sources[path] = ("import jax\n" + head + "\n".join(lines) + "\n").encode()
    load = {f"./{path}": data for path, data in sources.items()}
    return modernize_project(source_files(sources), REGISTRY, load=load.get)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_value_is_rewritten_or_told_in_each_form(question: str) -> None:
    silent = set()
    for name, form in FORMS.items():
        found = results(question, form)
        assert [each.failure for each in found if each.failure is not None] == [], name
        if not any(each.edits or each.refusals or each.left for each in found):
            silent.add(name)
    assert silent == set()
