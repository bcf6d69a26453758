"""Prove functions, run them by microbatches as proved, and hold the results against those of the whole batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime._exactness.combine import combine, microbatch_of, run_split
from mmruntime._exactness.prove import ArgumentSpec, Proof, Verdict, prove

# Of sums over a few thousand numbers of size one in float64.
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Case:
    """A function of flat arguments with its proof."""

    fun: Callable[..., list[Any]]
    values: list[Any]
    arguments: list[ArgumentSpec]
    proof: Proof
    as_written: bool

    @property
    def words(self) -> list[str]:
        return [verdict.word for verdict in self.proof.verdicts]


def case_of(
    fun: Callable[..., Any],
    args: Sequence[Any],
    batch: int | Sequence[int] = 1,
    *,
    num_microbatches: int = 3,
    dim: int = 0,
    hoists: bool = True,
    as_written: bool = False,
) -> Case:
    """Trace a function at both sizes and prove it."""
    positions = {batch} if isinstance(batch, int) else set(batch)
    leaves, tree = jax.tree.flatten(jax.tree.map(jnp.asarray, tuple(args)))
    arguments: list[ArgumentSpec] = []
    for position, arg in enumerate(args):
        argument = ArgumentSpec(dim, hoists) if position in positions else ArgumentSpec()
        arguments += [argument] * len(jax.tree.leaves(arg))

    def flat(*values: Any) -> list[Any]:
        return jax.tree.leaves(fun(*jax.tree.unflatten(tree, values)))

    def first(value: Any, argument: ArgumentSpec) -> Any:
        return value if argument.dim is None else microbatch_of(value, argument.dim, num_microbatches, 0)

    part = jax.make_jaxpr(flat)(*map(first, leaves, arguments))
    whole = jax.make_jaxpr(flat)(*leaves)
    return Case(
        flat, leaves, arguments, prove(part, whole, arguments, num_microbatches, as_written=as_written), as_written
    )


def results(case: Case) -> tuple[list[Any], list[Any]]:
    """The results by microbatches, as proved, and those of the whole batch; where nothing is proved, None."""
    known = tuple(verdict if verdict.is_proved else Verdict("sum") for verdict in case.proof.verdicts)
    proof = dataclasses.replace(case.proof, verdicts=known)

    def both(*values: Any) -> Any:
        return run_split(proof, case.arguments, values), case.fun(*values)

    return _known(case, both)


def written_results(case: Case) -> tuple[list[Any], list[Any]]:
    """The function's own results put together, of a proof of the function as it is written, and the whole batch's."""
    n = case.proof.num_microbatches

    def both(*values: Any) -> Any:
        each = []
        for index in range(n):
            pairs = zip(case.arguments, values, strict=True)
            own = [v if argument.dim is None else microbatch_of(v, argument.dim, n, index) for argument, v in pairs]
            each.append(case.fun(*own))
        combined = [
            combine(verdict, parts) if verdict.is_proved else parts[0]
            for verdict, parts in zip(case.proof.verdicts, zip(*each, strict=True), strict=True)
        ]
        return combined, case.fun(*values)

    return _known(case, both)


def _known(case: Case, both: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
    # Each program runs once, so that compiling is what takes long.
    quickly = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    found, expected = jax.jit(both, compiler_options=quickly)(*case.values)
    known = [verdict.is_proved for verdict in case.proof.verdicts]
    return [x for x, is_known in zip(found, known, strict=True) if is_known], [
        x for x, is_known in zip(expected, known, strict=True) if is_known
    ]


def difference(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest number."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind not in "fc":
        return float(not np.array_equal(found, expected))
    both = np.isnan(found) & np.isnan(expected) | (found == expected)
    gap = np.abs(np.where(both, 0, found - np.where(both, 0, expected)))
    finite = expected[np.isfinite(expected)]
    return float(np.max(gap) / max(1.0, np.max(np.abs(finite)) if finite.size else 1.0))


def assert_exact(case: Case) -> None:
    """Every proved result has the numbers of the whole batch."""
    _assert_close(*(written_results(case) if case.as_written else results(case)))


def _assert_close(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        is_single = np.asarray(other).dtype.itemsize < 8
        assert difference(one, other) <= (1e-6 if is_single else TOLERANCE), (one, other)
