"""Each question about a value in each form of Python: what holds the value is rewritten, or told at its line.

The forms are those of `value_forms.txt`. In place of `ask(value)` stands what a question is about.
"""

from __future__ import annotations

import re

import pytest
from fixture_files import source_files
from test_values import FORMS

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceText

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
        "nnx.Optimizer(model, tx, wrt=nnx.Param)",
        "({}).update(grads)",
    ),
    "variable": ("from flax import nnx\n", "nnx.Param(1)", "({}).tag = 1"),
    "annotation of a variable": ("from flax import nnx\n", "nnx.Param(1, sharding=('a',))", "({}).sharding"),
    "sharding": ("from jax import sharding\n", "sharding.PositionalSharding(devices)", "({}).reshape(4, 2)"),
    "specs": (
        "from jax.sharding import PartitionSpec as P\nfrom jax.experimental.pjit import pjit\n",
        "P('d')",
        "pjit(f, in_axis_resources={}, out_axis_resources=None)",
    ),
    "function of pjit": (
        "from jax.sharding import PartitionSpec as P\nfrom jax.experimental.pjit import pjit\n",
        "pjit(lambda x: x, in_axis_resources=P('d'), out_axis_resources=None)",
        "({}).clear_cache()",
    ),
}


# Questions whose edits stand where the value is made.
AT_VALUE = {"optimizer", "sharding", "function of pjit"}


def asked(
    head: str, value: str, use: str, form: str, *, at_value: bool = False
) -> tuple[dict[str, bytes], dict[str, set[int]]]:
    """The files of a form with a question in it, and the lines of each where the answer must stand."""
    parts = re.split(r"^# file (.*)\n", form, flags=re.MULTILINE)
    files = dict(zip(parts[1::2], parts[2::2], strict=True)) or {"main.py": form}
    sources: dict[str, bytes] = {}
    places: dict[str, set[int]] = {}
    for path, text in files.items():
        lines = ["import jax", *head.splitlines()]
        places[path] = set()
        for line in text.splitlines():
            if re.search(r"\bV\b", line):
                places[path].update([len(lines) + 1] if at_value else [])
                line = re.sub(r"\bV\b", lambda _: value, line)
            found = re.search(r"ask\((.*)\)$", line)
            if found is None:
                lines.append(line)
                continue
            indent = line[: len(line) - len(line.lstrip())]
            if not line.lstrip().startswith("ask("):
                indent = f"{indent}    "
                lines.append(line[: found.start()].rstrip())
            lines += [f"{indent}{part}" for part in use.format(found.group(1)).splitlines()]
            places[path].update(range(len(lines) - len(use.splitlines()) + 1, len(lines) + 1))
        sources[path] = "\n".join([*lines, ""]).encode()
    return sources, places


def is_told(result: Rewrite, lines: set[int]) -> bool:
    """Whether some line is changed, or has a note."""
    position = SourceText.decode(result.original).position
    told = {position(edit.start)[0] for edit in result.edits}
    told |= {each.line for each in result.refusals} | {each.line for each in result.left}
    return not lines.isdisjoint(told)


@pytest.mark.family(8)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_value_is_rewritten_or_told_in_each_form(question: str) -> None:
    silent = set()
    for name, form in FORMS.items():
        sources, places = asked(*QUESTIONS[question], form, at_value=question in AT_VALUE)
        load = {f"./{path}": data for path, data in sources.items()}
        found = modernize_project(source_files(sources), REGISTRY, load=load.get)
        assert [each.failure for each in found if each.failure is not None] == [], name
        if not any(is_told(each, places[each.path]) for each in found):
            silent.add(name)
    assert not silent


# A parameter that other code passes, itself and as code out of view gives it.
UNKNOWN = ("def f(p):\n    ask(p)\n", "import plugin\ndef f(p):\n    ask(plugin.made(p))\n")


def test_what_is_unknown_says_the_same_through_code_out_of_view() -> None:
    for question in QUESTIONS:
        told = []
        for form in UNKNOWN:
            sources, places = asked(*QUESTIONS[question], form, at_value=question in AT_VALUE)
            (found,) = modernize_project(source_files(sources), REGISTRY, load=lambda _: None)
            told.append(is_told(found, places["main.py"]))
        assert told[0] == told[1], question
