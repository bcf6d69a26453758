"""Prove functions, run them by microbatches as proved, and hold the results against those of the whole batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._exactness.lattice import Kind
from mmruntime._exactness.prove import ArgumentSpec, Proof, Verdict, prove
from mmruntime._exactness.resize import for_one_example
from mmruntime._exactness.split import split
from tests.runtime.exactness.combine import combine, microbatch_of

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
    waits: bool = False,
    of_more: int | None = None,
) -> Case:
    """Trace a function at both sizes and prove it.

    With `of_more`, microbatches are one example, and theirs is the program that is made of that for so many examples.
    """
    positions = {batch} if isinstance(batch, int) else set(batch)
    leaves, tree = jax.tree.flatten(jax.tree.map(jnp.asarray, tuple(args)))
    arguments: list[ArgumentSpec] = []
    for position, arg in enumerate(args):
        argument = ArgumentSpec(dim, hoists) if position in positions else ArgumentSpec()
        arguments += [argument] * len(jax.tree.leaves(arg))

    def flat(*values: Any) -> list[Any]:
        return jax.tree.leaves(fun(*jax.tree.unflatten(tree, values)))

    def first(value: Any, argument: ArgumentSpec) -> Any:
        return value if argument.dim is None else jnp.asarray(microbatch_of(value, argument.dim, num_microbatches, 0))

    def of_size(value: Any, argument: ArgumentSpec, size: int) -> Any:
        shape = list(value.shape)
        if argument.dim is not None:
            shape[argument.dim] = size
        return jax.ShapeDtypeStruct(shape, value.dtype)

    whole = jax.make_jaxpr(flat)(*leaves)
    if of_more is None:
        part = jax.make_jaxpr(flat)(*map(first, leaves, arguments))
    else:
        few = jax.make_jaxpr(flat)(*(of_size(*pair, of_more) for pair in zip(leaves, arguments, strict=True)))
        part = for_one_example(few, whole, (of_more, num_microbatches))
        assert part is not None
    return Case(
        flat,
        leaves,
        arguments,
        prove(part, whole, arguments, num_microbatches, as_written=as_written, waits=waits),
        as_written,
    )


def results(case: Case) -> tuple[list[Any], list[Any]]:
    """The proved results by microbatches, and those of the whole batch.

    Of a proof of the function as it is written, its own results are put together; else nothing is computed before the
    loop but what the proof says, and the body is the one that it changed.
    """
    proof, n = case.proof, case.proof.num_microbatches
    is_proved = [verdict.is_proved for verdict in proof.verdicts]
    if not any(is_proved):
        return [], []
    verdicts = tuple(verdict if verdict.is_proved else Verdict("sum") for verdict in proof.verdicts)
    whole = _compat.as_fun(proof.whole)
    before: Any
    if case.as_written:
        before, body, hoisted_as = (lambda *_: []), _compat.as_fun(proof.part), ()
        same, combined = (), tuple(range(len(verdicts)))
    else:
        parts = split(dataclasses.replace(proof, verdicts=verdicts))
        before, body, hoisted_as = _compat.as_fun(parts.before), _compat.as_fun(parts.body), parts.hoisted
        same, combined = parts.same, parts.combined
    early, expected = _compiled(lambda *values: (before(*values), whole(*values)))(*case.values)
    run = _compiled(body)
    each = []
    for index in range(n):
        own = [
            value if argument.dim is None else microbatch_of(value, argument.dim, n, index)
            for argument, value in zip(case.arguments, case.values, strict=True)
        ]
        own += [
            microbatch_of(value, one.value.dim, n, index) if one.value.kind is Kind.ROWS else value
            for one, value in zip(hoisted_as, early, strict=False)
        ]
        each.append([np.asarray(value) for value in run(*own)])
    found = dict(zip(same, early[len(hoisted_as) :], strict=True))
    every = (*verdicts, *proof.totals)
    for position, parts_of_it in zip(combined, zip(*each, strict=True), strict=True):
        found[position] = combine(every[position], parts_of_it)
    if proof.afterwards is not None:
        totals = [
            jnp.asarray(found[position], var.aval.dtype)
            for position, var in enumerate(proof.afterwards.whole_totals, start=len(verdicts))
        ]
        found.update(zip(proof.afterwards.positions, _compat.as_fun(proof.afterwards.program)(*totals), strict=True))
    known = [position for position, is_known in enumerate(is_proved) if is_known]
    return [found[position] for position in known], [expected[position] for position in known]


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Each program runs a few times, so that compiling is what takes long.
    quickly = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    if jax.__version__.startswith("0.10."):
        quickly["xla_cpu_use_fusion_emitters"] = False
    return jax.jit(function, compiler_options=quickly)


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
    for one, other in zip(*results(case), strict=True):
        is_single = np.asarray(other).dtype.itemsize < 8
        assert difference(one, other) <= (1e-6 if is_single else TOLERANCE), (one, other)
