"""Microbatches of one example, whose program is made of that for more: what is proved of it is so in numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mmruntime import _compat
from mmruntime._exactness.resize import for_one_example
from tests.runtime.exactness import test_losses as plain
from tests.runtime.exactness import test_more_losses as more
from tests.runtime.exactness.checking import Case, assert_exact, case_of
from tests.runtime.exactness.random_programs import Program

# These capture arrays of the batch's size, take pairs of neighbours, of which one example has none, take the one in
# the middle, or multiply as often as there are examples.
_NOT_RESIZED = {"constants_of_the_batch_size", "pairs_of_neighbours", "median", "unknown_product_of_all"}
_EXAMPLES = 6
# Arguments are made in the test, in double precision.
_TABLES = [
    (plain.LOSSES, lambda: (plain.params_of(), plain.batch_of(_EXAMPLES))),
    (more.LOSSES, lambda: (more.PARAMS, more.BATCH)),
]
_PROVED = [
    pytest.param(expected, arguments, id=name, marks=() if number % 8 == 0 else pytest.mark.slow)
    for losses, arguments in _TABLES
    for number, (name, expected) in enumerate(losses.proved.items())
    if name not in _NOT_RESIZED
]
_UNPROVED = [
    pytest.param(loss, arguments, id=name, marks=() if number % 8 == 0 else pytest.mark.slow)
    for losses, arguments in _TABLES
    for number, (name, loss) in enumerate(losses.unproved.items())
    if name not in _NOT_RESIZED
]


def _case(loss: Any, arguments: Any) -> Case:
    params, batch = arguments()
    rows = len(jax.tree.leaves(batch)[0])
    return case_of(jax.value_and_grad(loss), (params, batch), num_microbatches=rows, of_more=2)


@pytest.mark.parametrize(("expected", "arguments"), _PROVED)
def test_what_is_proved_for_more_examples_is_proved_for_one(expected: Any, arguments: Any) -> None:
    case = _case(expected.loss, arguments)
    assert case.proof.is_exact, [verdict.reason for verdict in case.proof.verdicts]
    assert case.words[0] == expected.word
    assert_exact(case)


@pytest.mark.parametrize(("loss", "arguments"), _UNPROVED)
def test_what_is_not_proved_for_more_examples_is_not_proved_for_one(loss: Any, arguments: Any) -> None:
    case = _case(loss, arguments)
    assert not case.proof.is_exact
    assert_exact(case)


def _check(seed: int) -> list[str]:
    program = Program(seed)
    fun = program.run if seed % 3 else program.value_and_grad
    rows = program.n * program.b
    try:
        case = case_of(fun, (program.params, program.batch), num_microbatches=rows, of_more=2 + seed % 2)
    except (AssertionError, TypeError, ValueError):
        # It does something else for two examples than for all of them, or cannot be traced for two.
        return []
    assert_exact(case)
    return case.words


def test_verdicts_are_never_wrong() -> None:
    words = [word for seed in range(30, 39) for word in _check(seed)]
    assert {"same", "sum", "mean", "concat", "max", "mixed"} <= set(words)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(8, 1000, 31))
def test_verdicts_are_never_wrong_at_length(first: int) -> None:
    for seed in range(first, first + 31):
        _check(seed)


def _traced(function: Any, size: int) -> Any:
    return jax.make_jaxpr(function)(jax.ShapeDtypeStruct((size, 3), np.dtype(float)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.tanh(x) if len(x) > 2 else x,
        lambda x: x * np.arange(len(x))[:, None],
        lambda x: jnp.concatenate([x] * len(x)),
        lambda x: (
            jnp.broadcast_to(x.sum(axis=0), (6 - len(x), 3)) if len(x) < 6 else jnp.zeros((20, 3)) + x.sum(axis=0)
        ),
    ],
    ids=["another operation", "an array of its own size", "a number of operands", "a square"],
)
def test_programs_that_differ_in_more_than_sizes_have_none_for_one_example(function: Any) -> None:
    assert for_one_example(_traced(function, 2), _traced(function, 6), (2, 6)) is None


def test_numbers_and_shapes_are_those_of_one_example() -> None:
    def function(x: Any) -> Any:
        return jnp.reshape(x, (-1,)).sum() / x.shape[0] + x.shape[0] ** 0.5, jnp.concatenate([x, x, x[:, :1] * x])

    found = for_one_example(_traced(function, 2), _traced(function, 5), (2, 5))
    x = jnp.arange(3.0)[None]
    total, joined = _compat.as_fun(found)(x)
    # The root is no power of the number, so it stays that of the whole batch.
    np.testing.assert_allclose(total, x.sum() + np.sqrt(5))
    np.testing.assert_array_equal(joined, jnp.concatenate([x, x, x[:, :1] * x]))
