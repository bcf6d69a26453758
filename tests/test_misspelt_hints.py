"""A misspelt hint is taken for what was meant: nothing is written, and what else is wrong is said in the same run."""

from __future__ import annotations

import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source

REGISTRY = Registry()

# The loss is given a random key, which the hint does not name, and is refused at the line of that.
PROGRAM = """import jax

# mm: mesh(stage=2)
steps = 10


def loss_fn(params, x, key):
    x = x + jax.random.normal(key, x.shape)
    for p in params:  # mm: stages(axis="stage")
        x = x @ p
    return x.sum()


@jax.jit  # mm: mjit
def step(params, x, key):
    return jax.grad(loss_fn)(params, x, key)  # mm: microbatch(size=2, schedule="1f1b")
"""
REFUSED = (16, "`key` looks like a random key")


def said(text: str) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Errors and refusals that are no consequence, by line; nothing may be written."""
    result = rewrite_source(text, REGISTRY)
    assert not (result.errors and result.changed)
    refusals = [(each.line, each.reason.split(", and ")[0]) for each in result.refusals if not each.is_consequence]
    return [(each.line, each.message) for each in result.errors], refusals


@pytest.mark.parametrize(
    ("right", "wrong", "line", "meant"),
    [
        pytest.param("# mm: mesh(", "# mm: mehs(", 3, "mesh", id="a mesh"),
        pytest.param("# mm: stages", "# mm: stagse", 9, "stages", id="layers"),
        pytest.param("# mm: mjit", "# mm: mjti", 14, "mjit", id="a step"),
        pytest.param("# mm: microbatch", "# mm: microbatches", 16, "microbatch", id="a gradient"),
        pytest.param("schedule=", "schedul=", 16, "schedule", id="an argument"),
        pytest.param('"1f1b"', '"1f1c"', 16, "1f1b", id="a value"),
        pytest.param("size=2", "batch_size=2", 16, "size", id="a longer name of an argument"),
        pytest.param('axis="stage"', 'axsi="stage"', 9, "axis", id="an argument of layers"),
    ],
)
def test_a_misspelt_word_hides_nothing_else(right: str, wrong: str, line: int, meant: str) -> None:
    assert said(PROGRAM) == ([], [REFUSED])
    errors, refusals = said(PROGRAM.replace(right, wrong))
    assert [where for where, _ in errors] == [line]
    assert errors[0][1].endswith(f"did you mean `{meant}`?")
    assert refusals == [REFUSED]


def test_all_words_of_a_hint_are_checked_in_one_run() -> None:
    text = PROGRAM.replace("microbatch(size=2, ", "microbatches(szie=0, ").replace('"1f1b"', '"1f1c", rgn=1')
    errors, _ = said(text)
    assert [message.partition("; ")[0] for _, message in errors] == [
        "unknown directive `microbatches`",
        "`microbatch` has no argument `szie`",
        "a microbatch of 0 examples is none",
        "there is no schedule '1f1c'",
        "`microbatch` has no argument `rgn`",
    ]


@pytest.mark.parametrize("hint", ['microbatch(xyz=1, schedule="1f1c")', "microbatch(*sizes, xyz=1)"])
def test_no_requirement_follows_from_a_word_that_means_nothing(hint: str) -> None:
    """What is missing may be what the word was to say."""
    errors, _ = said(PROGRAM.replace('microbatch(size=2, schedule="1f1b")', hint))
    assert len(errors) == 2
    assert not any("count" in message.partition("; known")[0] for _, message in errors)
