"""Random programs: whatever is proved of them is so in numbers."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import pytest

from tests.runtime.exactness.checking import assert_exact, case_of
from tests.runtime.exactness.random_programs import Program

# With everything that may be hoisted, with nothing, and the function as it is written.
MODES = [{"hoists": True}, {"hoists": False}, {"as_written": True}]
# With functions of totals, and of a few numbers of each example, computed after the loop.
WAITING = {"hoists": False, "waits": True}


def check(seed: int, mode: dict[str, Any], *, compiled: bool = False, sharded: bool = False) -> list[str]:
    """Hold what is proved of a random program, or of its gradients, against numbers; the words that were proved."""
    program = Program(seed, compiled=compiled, sharded=sharded)
    fun = program.run if seed % 3 else program.value_and_grad
    try:
        case = case_of(fun, (program.params, program.batch), num_microbatches=program.n, **mode)
    except (ValueError, NotImplementedError) as error:
        # Of loops without a known end, and of `pmax`.
        assert "Reverse-mode differentiation does not work" in str(error) or "rule for 'pm" in str(error)
        return []
    assert_exact(case)
    return case.words


@pytest.mark.parametrize("first", [0, 41])
def test_verdicts_are_never_wrong(first: int) -> None:
    words = [word for seed in range(first, first + 8) for word in check(seed, MODES[seed % 3])]
    # The programs are not all alike.
    assert {"same", "sum", "mean", "concat", "max", "mixed"} <= set(words)


@pytest.mark.slow
def test_verdicts_are_never_wrong_where_calls_share_what_was_traced() -> None:
    words = [word for seed in range(6) for word in check(seed, MODES[0], compiled=True)]
    assert {"same", "concat", "mixed"} <= set(words)


def test_verdicts_are_never_wrong_on_shards() -> None:
    words = [word for seed in range(6) for word in check(seed, MODES[seed % 3], sharded=True)]
    assert {"sum", "concat", "mixed"} <= set(words)


def test_verdicts_are_never_wrong_where_what_is_computed_of_totals_waits() -> None:
    words = [word for seed in range(12) for word in check(seed, WAITING)]
    assert {"after", "concat", "same"} <= set(words)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 3000, 25))
def test_verdicts_are_never_wrong_at_length(first: int) -> None:
    for seed, mode in itertools.product(range(first, first + 25), [*MODES, WAITING]):
        check(seed, mode)
    for seed in range(first, first + 25):
        check(seed, MODES[0], compiled=True)
        check(seed, MODES[seed % 3], sharded=True)
    jax.clear_caches()
