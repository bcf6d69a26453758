"""Each question that hints ask about a value, in each form of Python: what holds it is rewritten, or told at its line.

The forms are those of `value_forms.txt` and `value_given.txt`. In place of `ask(value)` stands what a question is
about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from fixture_files import source_files
from test_value_questions import UNKNOWN, asked
from test_values import FORMS, GIVEN

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.source.text import SourceText

REGISTRY = Registry()
HEAD = """import jax.numpy as jnp
import optax
from flax import linen as nn
from mmrewrite import hints
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
# mm: mesh(stage=2)
def forward(params, value):
    for w in params:  # mm: stages
        value = jnp.tanh(value @ w)
    return value
def loss(params, value, noise=None):
    return (forward(params, value) ** 2).mean()
class Model(nn.Module):
    @nn.compact
    def __call__(self, value):
        for w in [nn.Dense(2), nn.Dense(2)]:  # mm: stages
            value = w(value)
        return value
def start(params, value):
    return jax.jit(forward)(params, value)  # mm: mjit
"""
STEP = "@jax.jit  # mm: mjit\ndef compiled(params, value):\n    return "
MICROBATCH = "# mm: microbatch(size=2, argnum=1)\n"


class Question(NamedTuple):
    """The value, what is done with it, and what one of the edits there must have; None if it must be told.

    With `at_value` it may be told where the value is made, too.
    """

    value: str
    use: str
    edit: str | None = None
    at_value: bool = False


QUESTIONS = {
    "gradient function": Question(
        "jax.value_and_grad(loss)", f"{MICROBATCH}value, grads = ({{}})(params, batch)", "mm.microbatch("
    ),
    "maker of a gradient function": Question(
        "jax.grad", f"{MICROBATCH}grads = ({{}})(loss)(params, batch)", "mm.microbatch("
    ),
    "loss": Question("loss", f"{MICROBATCH}grads = jax.grad({{}})(params, batch)", "mm.microbatch("),
    "compiler": Question("jax.jit", "compiled = ({})(forward)  # mm: mjit", "mm.mjit("),
    "key": Question("jax.random.key(0)", f"{MICROBATCH}grads = jax.grad(loss)(params, batch, {{}})"),
    "key by keyword": Question("jax.random.key(0)", f"{MICROBATCH}grads = jax.grad(loss)(params, batch, noise={{}})"),
    "compiler of another step": Question("jax.jit", "compiled = ({})(lambda params, value: forward(params, value))"),
    "step for one device": Question("forward", "compiled = jax.jit({})"),
    "step that calls another": Question("forward", "compiled = jax.jit(lambda params, value: ({})(params, value))"),
    "model of a step": Question("Model()", "compiled = jax.jit(lambda params, value: ({}).apply(params, value))"),
    "methods of a compiled step": Question("hints.mjit(jax.jit(forward))", "({}).lower(params, batch)", at_value=True),
    "optimizer": Question(
        "optax.MultiSteps(tx, 4)",
        f"{MICROBATCH}grads = ({{}}).update(jax.grad(loss)(params, batch), state)",
    ),
    "mesh": Question(
        "Mesh(devices, ('data',))",
        f"{STEP}jax.lax.with_sharding_constraint(forward(params, value), NamedSharding({{}}, P('data')))",
    ),
    "sharding": Question(
        "NamedSharding(Mesh(devices, ('data',)), P('data'))",
        f"{STEP}jax.lax.with_sharding_constraint(forward(params, value), {{}})",
    ),
    "spec": Question("P('data')", f"{STEP}jax.lax.with_sharding_constraint(forward(params, value), {{}})"),
    "device": Question("jax.devices()[0]", f"{STEP}jax.device_put(forward(params, value), {{}})"),
    "layers": Question("[nn.Dense(2), nn.Dense(2)]", "# mm: stages\nfor w in {}:\n    value = w(value)", "mm.stage("),
    "layer": Question("nn.Dense(2)", "# mm: task(stage=0)\nvalue = ({})(batch)", "mm.task("),
    "chain of layers": Question(
        "nn.Sequential([nn.Dense(2), nn.Dense(2)])", "# mm: stages\nvalue = ({})(batch)", "mm.stage_sequential("
    ),
}


def silent_forms(question: Question, forms: Mapping[str, str] = FORMS | GIVEN) -> set[str]:
    """The forms in which nothing is rewritten or told where the question stands."""
    found = set()
    for name, form in forms.items():
        sources, places = asked(HEAD, question.value, question.use, form, at_value=question.at_value)
        load = {f"./{path}": data for path, data in sources.items()}
        results = rewrite_project(source_files(sources), REGISTRY, load=load.get)
        assert [each.failure for each in results if each.failure is not None] == [], name
        told = {
            (each.path, item.line)
            for each in results
            for item in (*each.refusals, *each.errors)
            if item in each.errors or not item.is_consequence
        }
        edited = {
            (each.path, line)
            for each in results
            for edit in each.edits
            if question.edit is not None and question.edit in edit.text
            for line in _lines(SourceText.decode(each.original), edit.start, edit.end)
        }
        wanted = {(path, line) for path, lines in places.items() for line in lines}
        if wanted.isdisjoint(told | edited):
            found.add(name)
    return found


def _lines(source: SourceText, start: int, end: int) -> range:
    return range(source.position(start)[0], source.position(end)[0] + 1)


NOTHING_TO_TELL = {
    # The program may enter a mesh of its own, in which a spec means what it meant.
    "spec": {"with", "__enter__", "__aenter__", "apply async", "pool starmap", "submit args"},
    # What is compiled gives no functions.
    "methods of a compiled step": {"jit"},
}


@pytest.mark.family(8)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_value_is_rewritten_or_told_in_each_form(question: str) -> None:
    assert silent_forms(QUESTIONS[question]) == NOTHING_TO_TELL.get(question, set())


def test_what_is_unknown_says_the_same_through_code_out_of_view() -> None:
    itself, through = UNKNOWN
    for name, question in QUESTIONS.items():
        assert len(silent_forms(question, {"itself": itself, "through": through})) != 1, name
