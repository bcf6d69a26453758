"""What the batch alone decides inside of branches, computed once on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.runtime.exactness.checking import assert_exact, case_of

pytestmark = [pytest.mark.quick, pytest.mark.family]

RNG = np.random.default_rng(0)
W = RNG.normal(size=(4, 3))
BATCH = {"x": RNG.normal(size=(12, 4)), "mask": (RNG.random(12) > 0.4).astype(float), "weight": RNG.random(12)}


def errors(w: Any, batch: Any) -> Any:
    return (jnp.tanh(batch["x"] @ w) ** 2).sum(-1)


def masked(w: Any, batch: Any) -> Any:
    return (errors(w, batch) * batch["mask"]).sum() / batch["mask"].sum()


def weighted(w: Any, batch: Any) -> Any:
    return (errors(w, batch) * jax.nn.softmax(batch["weight"])).sum()


def doubled(w: Any, batch: Any) -> Any:
    total = jax.jit(lambda mask: mask.sum() + 2.0)(batch["mask"])
    return 2 * (errors(w, batch) * batch["mask"]).sum() / total


def without_end(mask: Any) -> Any:
    return lax.while_loop(lambda state: state[0] > 0, lambda state: (state[0], jnp.sin(state[1])), (1.0, mask))[1]


def endless(w: Any, batch: Any) -> Any:
    mask = without_end(batch["mask"])
    return (errors(w, batch) * mask).sum() / mask.sum()


def endless_when_compiled(w: Any, batch: Any) -> Any:
    mask = jax.jit(without_end)(batch["mask"])
    return (errors(w, batch) * mask).sum() / mask.sum()


def normed(w: Any, batch: Any) -> Any:
    return errors(w, batch).sum() / jnp.sqrt(errors(w, batch).sum())


def is_positive(w: Any, batch: Any) -> Any:
    return w[0, 0] > 0


def is_long(w: Any, batch: Any) -> Any:
    return batch["mask"].sum() > 4


def either(which: Callable[..., Any], *branches: Callable[..., Any]) -> Callable[..., Any]:
    return lambda w, batch: lax.cond(which(w, batch), *branches, w, batch)


def one_of(*branches: Callable[..., Any]) -> Callable[..., Any]:
    return lambda w, batch: lax.switch((jnp.abs(w[0, 0]) * 10).astype(int) % len(branches), branches, w, batch)


def zero(w: Any, batch: Any) -> Any:
    return jnp.zeros(())


CASES: dict[str, Callable[..., Any]] = {
    "one branch": either(is_positive, masked, zero),
    "the other branch": either(is_positive, zero, masked),
    "both, of different values": either(is_positive, masked, weighted),
    "both, of one value": either(is_positive, masked, lambda w, batch: 2 * masked(w, batch)),
    "decided by the batch": either(is_long, masked, weighted),
    "three": one_of(masked, weighted, doubled),
    "a branch in a branch": either(is_positive, zero, either(is_long, doubled, weighted)),
    "in a compiled function": lambda w, batch: jax.jit(either(is_positive, masked, weighted))(w, batch),
    "twice": lambda w, batch: (
        either(is_positive, masked, zero)(w, batch)
        + either(is_positive, masked, zero)(w, batch | {"mask": batch["weight"]})
    ),
    "rematerialized": lambda w, batch: jax.checkpoint(either(is_positive, masked, weighted))(w, batch),
}  # fmt: skip


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, sign: int) -> None:
    case = case_of(jax.value_and_grad(CASES[name]), (sign * W, BATCH))
    assert case.words == ["sum", "sum"], case.proof.verdicts
    assert_exact(case)


@pytest.mark.parametrize("branch", [endless, endless_when_compiled])
def test_a_loop_in_a_branch_stays_there(branch: Callable[..., Any]) -> None:
    # The branch is never taken, and would never end.
    case = case_of(either(lambda w, batch: w[0, 0] > 1e9, branch, masked), (W, BATCH))
    (verdict,) = case.proof.verdicts
    assert verdict.kind == "mixed"
    assert verdict.reason is not None
    assert f"{__file__}:" in verdict.reason.line


def test_nothing_is_hoisted_of_parameters() -> None:
    case = case_of(either(is_positive, normed, masked), (W, BATCH))
    assert case.words == ["mixed"]
    case = case_of(either(is_positive, masked, zero), (W, BATCH), as_written=True)
    assert case.words == ["mixed"]
    case = case_of(either(is_positive, masked, zero), (W, BATCH), hoists=False)
    assert case.words == ["mixed"]
