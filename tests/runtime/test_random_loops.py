"""Random accumulation loops: what `microbatch_loop` accepts is what the loop gives, else it is refused with a reason.

A few run with the rest of the tests; `pytest -m slow tests/runtime/test_random_loops.py` runs two thousand.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import mmruntime as mm
from tests.runtime.helpers import normal

pytestmark = pytest.mark.optimized

ROWS = 2
X = normal(4 * ROWS, 4, dtype=np.float32)
W = normal(4, 4, seed=1, dtype=np.float32)
SCALE = jnp.arange(4.0)[None]


@jax.jit
def add(total, more):
    return total + more


@jax.jit
def add_scaled(total, more):
    return add(total, more * SCALE)


# How an iteration computes another value of two that it has. The number of the iteration is a Python number.
VALUES = {
    "sum": lambda a, b, i: a + b,
    "difference": lambda a, b, i: a - b,
    "product": lambda a, b, i: a * b,
    "sine": lambda a, b, i: jnp.sin(a),
    "matrix product": lambda a, b, i: a @ W,
    "choice": lambda a, b, i: jnp.where(a > 0, a, b),
    "nested jit": lambda a, b, i: jax.jit(lambda p, q: p * q + i)(a, b),
    "rolled": lambda a, b, i: jnp.roll(a, i, 0),
    "scaled by number": lambda a, b, i: a * (i + 1),
    "branch": lambda a, b, i: jax.lax.cond(a.sum() > 0, lambda h: h * 2 + i, lambda h: h - 1, b),
    "random": lambda a, b, i: a + jax.random.normal(jax.random.fold_in(jax.random.key(1), i), a.shape),
    "constant": lambda a, b, i: a + np.full((ROWS, 4), (1.0, -1.0)[i % 2], np.float32),
    "task": lambda a, b, i: mm.task(jnp.tanh, "task", mesh_slice={"stage": 0})(a),
}
# What it does with a carried value, given one of its own and another carried value as the iteration found it.
UPDATES = {
    "add": lambda total, more, other: total + more,
    "add to": lambda total, more, other: more + total,
    "subtract": lambda total, more, other: total - more,
    "jitted add": lambda total, more, other: add(total, more),
    "jitted helpers": lambda total, more, other: add_scaled(total, more),
    "keep": lambda total, more, other: total,
    "set": lambda total, more, other: more,
    "subtract from": lambda total, more, other: more - total,
    "double": lambda total, more, other: total + total + more,
    "add other": lambda total, more, other: total + other + more,
}
SUMS = ("add", "add to", "subtract", "jitted add", "jitted helpers")
STARTS = {"zeros": jnp.zeros((ROWS, 4)), "ones": jnp.ones((ROWS, 4)), "zero": 0, "number": 1.5, "none": None}
# In which iterations the second of two operands takes the place of the first.
SWAPS = {"never": lambda i: False, "odd": lambda i: i % 2 == 1, "first": lambda i: i == 0}


def swaps():
    """Seldom anything but "never", since it is refused where it changes what is computed."""
    return st.sampled_from(("never",) * 8 + ("odd", "first"))


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop: its values as (name, first operand, second, swap), and its updates as (carried, name, value, other)."""

    count: int
    values: tuple[tuple[str, int, int, str], ...]
    starts: tuple[str, ...]
    updates: tuple[tuple[int, str, int, int, str], ...]

    def body(self, i, *carry):
        """One iteration."""
        known = [X[i * ROWS : (i + 1) * ROWS], jax.lax.dynamic_slice_in_dim(jnp.asarray(X), i * ROWS, ROWS), X[:ROWS]]
        for name, one, other, swap in self.values:
            if SWAPS[swap](i):
                one, other = other, one
            known.append(VALUES[name](known[one], known[other], i))
        found, carry = carry, list(carry)
        for index, name, one, other, swap in self.updates:
            more = known[other if SWAPS[swap](i) else one]
            if carry[index] is None:
                carry[index] = more
            else:
                carry[index] = UPDATES[name](carry[index], more, 0 if found[0] is None else found[0])
        return tuple(carry) if len(carry) > 1 else carry[0]


@st.composite
def loops(draw):
    values = draw(st.integers(0, 5))
    known = 3 + values
    carried = draw(st.integers(1, 3))
    return Loop(
        draw(st.integers(2, 4)),
        tuple(
            (
                draw(st.sampled_from(sorted(VALUES))),
                draw(st.integers(0, 2 + index)),
                draw(st.integers(0, 2 + index)),
                draw(swaps()),
            )
            for index in range(values)
        ),
        tuple(draw(st.sampled_from(sorted(STARTS))) for _ in range(carried)),
        tuple(
            (
                draw(st.integers(0, carried - 1)),
                draw(st.sampled_from((*SUMS * 3, *sorted(UPDATES)))),
                draw(st.integers(0, known - 1)),
                draw(st.integers(0, known - 1)),
                draw(swaps()),
            )
            for _ in range(draw(st.integers(1, 4)))
        ),
    )


def check(loop):
    def plain(*carry):
        for i in range(loop.count):
            carry = loop.body(i, *carry)
            carry = carry if isinstance(carry, tuple) else (carry,)
        return carry

    def piped(*carry):
        result = mm.microbatch_loop(loop.body)(range(loop.count), *carry)
        return result if isinstance(result, tuple) else (result,)

    carry = [STARTS[name] for name in loop.starts]
    try:
        found = jax.jit(lambda: piped(*carry))()
    except ValueError as error:
        event("refused")
        assert str(error).startswith("microbatch_loop: ")
        return
    event("accepted")
    expected = jax.jit(lambda: plain(*carry))()
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(loops())
def test_loops(loop):
    check(loop)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(loops())
def test_two_thousand_loops(loop):
    check(loop)
