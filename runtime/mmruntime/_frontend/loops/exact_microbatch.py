"""Microbatches held against the whole batch: traced at both sizes, proved, and run as a loop that adds up."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime import _check, _compat
from mmruntime._core.marks import FLOAT32
from mmruntime._core.mesh import current_platform
from mmruntime._core.warn import warn
from mmruntime._exactness.lattice import Kind, Reason
from mmruntime._exactness.messages import because, contradiction, given_summary, not_exact, summary
from mmruntime._exactness.prove import ArgumentSpec, Proof, Verdict, prove, shorter_range
from mmruntime._exactness.resize import for_one_example
from mmruntime._exactness.rules.equation import Edits
from mmruntime._exactness.split import no_derivative, reads_edits, split
from mmruntime._frontend.labels import label_of, name_trace
from mmruntime._frontend.loops.iteration_results import in_row
from mmruntime._frontend.python_state import traced_again
from mmruntime._jaxpr.canonical_forms import sharing_equal_traces
from mmruntime._jaxpr.effects import host_call_lines
from mmruntime._jaxpr.rewrite import opened_program
from mmruntime._jaxpr.wide_results import wide_results

log = logging.getLogger("mmruntime")

# A loss is the sum of a few means; each is one more proof.
_LATE_FACTORS = 3


class NotExactWarning(UserWarning):
    """It is not known how the results of microbatches make up those of the whole batch."""


@dataclass(frozen=True)
class TracedFunction:
    """A function of a batch and keys, traced for one microbatch and for the whole batch.

    Attributes:
        part: Its closed jaxpr for one microbatch.
        whole: Its closed jaxpr for the whole batch; None if it cannot be traced for that.
        failure: Why it cannot.
        arguments: What each flat argument is.
        count: The number of microbatches.
        tree: The tree of its result.
        names: What messages call each leaf of the result.
        values: Leaves of the whole batch, then of the keys.
        label: The function's name.
        resized: Makes the program for one example of that for more, where microbatches are one example; it gives None
            if that cannot be.
    """

    part: Any
    whole: Any
    failure: str
    arguments: tuple[ArgumentSpec, ...]
    count: int
    tree: Any
    names: list[str]
    values: list[Any]
    label: str
    resized: Callable[[], Any] | None = None

    def prove(
        self,
        parameters: Sequence[Any],
        *,
        as_written: bool = False,
        own_statistics: bool = False,
        own_sizes: bool = False,
        is_all: bool = False,
    ) -> Proof:
        """Prove how results of microbatches make up those of the whole batch.

        Args:
            parameters: Arrays that the function captures and that may be differentiated.
            as_written: Whether the function itself is meant, with nothing hoisted.
            own_statistics: Whether microbatches use their own statistics of examples.
            own_sizes: Whether they divide by their own size, and their results by their number, where they take a mean.
            is_all: Whether all results are put together as the proof says, so that microbatches of one example may run
                another program, which makes the results of the whole batch as well.
        """
        if self.whole is None:
            reason = Reason("", "", f"cannot be traced for the whole batch: {self.failure}")
            unknown = tuple(Verdict("unknown", reason=reason) for _ in self.names)
            return Proof(self.part, self.part, self.count, unknown, Edits(), (), ())
        prove_programs = functools.partial(
            prove,
            arguments=self.arguments,
            num_microbatches=self.count,
            as_written=as_written,
            own_statistics=own_statistics,
            own_sizes=own_sizes,
            waits=not as_written,
            parameters={id(leaf) for leaf in parameters},
        )

        def proof_of(part: Any) -> Proof:
            # What may wait until the loop is over is a whole call, or an equation outside of calls: of
            # `jnp.linalg.norm(x)`, a compiled function, only the square root may. Of gradients that may overflow,
            # all that is computed of them waits.
            waits = not as_written and _may_overflow(part)
            proof = None if waits else prove_programs(part, self.whole)
            if proof is not None and (proof.is_exact or as_written):
                return proof
            late_factors = 0 if as_written else _LATE_FACTORS
            opened = prove_programs(opened_program(part), opened_program(self.whole), late_factors=late_factors)
            return opened if proof is None or opened.is_exact else proof

        proof = proof_of(self.part)
        if proof.is_exact or not is_all or self.resized is None:
            return proof
        resized = self.resized()
        # Of what cannot be proved, the program for more examples says more plainly why.
        return proof if resized is None else proof_of(resized)

    def types(self) -> list[Any]:
        """The abstract value of each leaf of a microbatch's result."""
        return [atom.aval for atom in _compat.split(self.part)[0].outvars]


def _may_overflow(program: Any) -> bool:
    """Whether a program converts from a type of less range than float32."""
    jaxpr, _ = _compat.split(program)
    return any(shorter_range(eqn) is not None for eqn in _compat.every_equation(jaxpr.eqns))


def trace_both(
    call: Callable[[Any, Any], Any],
    batch: Any,
    keys: Any,
    dims: Sequence[int],
    count: int,
    fun: Callable[..., Any],
    given: Mapping[str, Any],
    *,
    names: Sequence[str],
    needs_whole: bool,
) -> TracedFunction:
    """Trace a function for one microbatch and for the whole batch.

    Args:
        call: The function of a batch, or a microbatch, and of keys.
        batch: A pytree of arrays, one dimension of which counts examples.
        keys: A pytree of keys.
        dims: The dimension, for each array.
        count: The number of microbatches.
        fun: The user's function.
        given: Its other arguments, by their names: it may change state of Python by them.
        names: What messages call each array, and each key.
        needs_whole: Whether it is an error if it cannot be traced for the whole batch.
    """
    label = label_of(fun)
    leaves, batch_tree = jax.tree.flatten(batch)
    key_leaves, key_tree = jax.tree.flatten(keys)
    tree: Any = None

    def flat(*values: Any) -> list[Any]:
        nonlocal tree
        own, rest = values[: len(leaves)], values[len(leaves) :]
        result = call(jax.tree.unflatten(batch_tree, own), jax.tree.unflatten(key_tree, rest))
        _check_arrays(result, label)
        # Nothing of the trace may outlast it, or `jax.checking_leaks()` takes it for the user's.
        found, tree = jax.tree.flatten(result)
        return found

    def abstract(leaf: Any, dim: int, size: int) -> Any:
        sizes = list(np.shape(leaf))
        sizes[dim] = size
        return jax.ShapeDtypeStruct(tuple(sizes), jnp.result_type(leaf))

    name_trace(flat, "microbatch", fun, names)
    rest = [jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for leaf in key_leaves]

    def at_size(size: int) -> Any:
        return trace(flat, [*(abstract(leaf, dim, size) for leaf, dim in zip(leaves, dims, strict=True)), *rest])

    whole_size = np.shape(leaves[0])[dims[0]]
    sizes = f"a microbatch of {whole_size // count} of {whole_size} examples", f"the whole batch of {whole_size}"
    written_size = (
        f" A number of examples that is written into it, as in jnp.arange({whole_size}), fits one of them at most: "
        "take it from the shape of an argument, as in jnp.arange(x.shape[0]). Pass arrays with a row for each example "
        "as arguments that argnum= cuts; select among all examples outside of the function; or give a size= or count= "
        "that it takes."
    )
    whole: Any = None
    error: Exception | None = None
    if count > 1:
        # First, as the one-device program traces it: a function that takes numbers from state of Python, such as a
        # counter or `random`, then gives the whole batch the same ones. Those that differ are taken from this trace.
        try:
            whole = at_size(whole_size)
        except Exception as raised:
            error = raised
    try:
        part_size = whole_size // count
        if whole is None:
            part = at_size(part_size)
        else:
            others = [functools.partial(at_size, size) for size in (whole_size, 2 * whole_size)]
            part = traced_again("microbatch", fun, given, lambda: at_size(part_size), others)
    except Exception as raised:
        # What is wrong with any number of examples, and not said by us, is told the number alone.
        if count > 1 and not str(raised).startswith("microbatch"):
            other = f"and can be traced for {sizes[1]}" if error is None else f"and for {sizes[1]} as well"
            advice = written_size if isinstance(raised, _OF_SHAPES) and str(raised) != str(error) else ""
            raised.add_note(f"microbatch: {label} fails in {sizes[0]}, {other}.{advice}")
        raise
    failure = ""
    if error is not None and needs_whole:
        error.add_note(
            f"microbatch: {label} fails for {sizes[1]}, for which reduce= is checked, and can be traced in {sizes[0]}."
            f"{written_size if isinstance(error, _OF_SHAPES) else ''}"
        )
        raise error
    if error is not None:
        failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    elif count == 1:
        whole = part

    def resized() -> Any:
        few = 2 if whole_size > 2 else 3

        def program_of_few() -> Any:
            try:
                return at_size(few)
            except Exception:
                # Whatever the function raises for a size that nobody asked for.
                return None

        program = traced_again("microbatch", fun, given, program_of_few)
        return None if program is None else for_one_example(program, whole, (few, whole_size))

    shown = jax.tree.unflatten(tree, range(tree.num_leaves))
    results = [f"result{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(shown)]
    arguments = (*(ArgumentSpec(dim, hoistable=True) for dim in dims), *(ArgumentSpec() for _ in rest))
    return TracedFunction(
        part,
        whole,
        failure,
        arguments,
        count,
        tree,
        results,
        [*leaves, *key_leaves],
        label,
        resized if whole is not None and count == whole_size > 1 else None,
    )


# What JAX raises where shapes do not fit.
_OF_SHAPES = (TypeError, ValueError, IndexError)


def trace(function: Callable[..., Any], shapes: Sequence[Any]) -> Any:
    """A function of flat arguments as a closed jaxpr."""
    with sharing_equal_traces():
        return jax.make_jaxpr(function)(*shapes)


def _check_arrays(result: Any, label: str) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        if not (isinstance(leaf, complex | float | int) or hasattr(leaf, "dtype") or hasattr(leaf, "__jax_array__")):
            raise TypeError(
                f"microbatch: result{jax.tree_util.keystr(path)} of {label} is {_check.shown(leaf)}, which is no array "
                "and cannot be put together from microbatches. Leave it out of the result."
            )


def check_reduce(traced: TracedFunction, proof: Proof, kinds: Sequence[str], dim: int) -> None:
    """Hold the ways in which results are put together against the proof of the function as it is written.

    Args:
        traced: The function.
        proof: What is proved of it.
        kinds: For each leaf of the result "sum", "mean", "concat", "max", "min", or "exact", which is left out.
        dim: The dimension along which "concat" joins.

    Raises:
        ValueError: If the proof says otherwise.
    """
    unknown = None
    for verdict, how, name, aval in zip(proof.verdicts, kinds, traced.names, traced.types(), strict=True):
        if how == "exact":
            continue
        problem = contradiction(verdict, how, dim % max(len(aval.shape), 1), name, traced.label)
        if problem is not None:
            raise ValueError(
                f'microbatch: {problem} Give reduce="exact", or check=False if microbatches are to differ from the '
                "whole batch."
            )
        unknown = unknown or (verdict if verdict.kind == "unknown" else None)
    if unknown is not None:
        warn(f"microbatch: nothing is proved of reduce= for {traced.label}: {because(unknown.reason)}", NotExactWarning)


def given_verdicts(traced: TracedFunction, kinds: Sequence[str], dim: int) -> list[Verdict | None]:
    """How results are put together that are not "exact", as verdicts.

    Raises:
        ValueError: If a result does not have the dimension along which it is to be joined.
        TypeError: If a result cannot be put together so.
    """
    found: list[Verdict | None] = []
    for how, name, aval in zip(kinds, traced.names, traced.types(), strict=True):
        rank, dtype = len(aval.shape), aval.dtype
        if how == "exact":
            found.append(None)
            continue
        if dtype == jax.dtypes.float0:
            raise TypeError(
                f"microbatch: {name} of {traced.label} is float0{list(aval.shape)}, as the gradient of integers is, "
                'which cannot be put together. Give reduce="exact" for it, or leave it out of the result.'
            )
        is_key = _compat.is_key(dtype)
        if is_key or (how == "sum" and dtype == np.bool_) or (how in ("max", "min") and dtype.kind == "c"):
            verb = "compared" if how in ("max", "min") else "joined" if how == "concat" else "added up"
            raise TypeError(
                f"microbatch: {name} of {traced.label} is {dtype}{list(aval.shape)}, which cannot be {verb} over "
                "microbatches. Return a number, or leave it out of the result."
            )
        if how == "concat" and not -rank <= dim < rank:
            raise ValueError(
                f'microbatch: reduce="concat" joins results along {dim=}, which {name} of shape {aval.shape} does not '
                'have. Give reduce="sum" or "mean" for it.'
            )
        if how == "mean" and not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(
                f'microbatch: reduce="mean" cannot average {name} of type {dtype}. '
                'Give reduce= as a tree, such as ("mean", {"count": "sum"}).'
            )
        if how == "concat":
            found.append(Verdict("concat", dim=dim % rank))
        else:
            found.append(Verdict("sum", power=-1) if how == "mean" else Verdict(how))
    return found


def check_exact(traced: TracedFunction, proof: Proof, kinds: Sequence[str], parameters: Sequence[Any]) -> None:
    """Raise where a result must be exact and nothing is proved about it.

    Args:
        traced: The function.
        proof: What is proved of it.
        kinds: How each result is to be put together.
        parameters: As for `TracedFunction.prove`.

    Raises:
        ValueError: With the line, the problem and what to write.
    """
    wanted = [position for position, how in enumerate(kinds) if how == "exact"]
    if all(proof.verdicts[position].is_proved for position in wanted):
        return
    loss = proof.verdicts[0]
    others = [each.reason for each in proof.verdicts if each.kind != "after" and each.reason is not None]
    if loss.kind == "after" and any(loss.reason in reason.every for reason in others):
        # Its gradients are not proved for the same reason, which is plainer there.
        proof = dataclasses.replace(proof, verdicts=(dataclasses.replace(loss, kind="mixed"), *proof.verdicts[1:]))
    verdicts = [proof.verdicts[position] for position in wanted]
    names = [traced.names[position] for position in wanted]
    with_own = traced.prove(parameters, own_statistics=True).verdicts
    further = ""
    if proof.verdicts[0].kind == "after":
        # Gradients fail at an equation that the backward pass makes; a metric would fail by itself.
        further = f"If that is a gradient of {traced.names[0]}, the cause is there: {because(loss.reason)} "
    elif _is_beside(proof.verdicts):
        further = (
            "A metric beside the loss is computed afterwards where it reads sums, and up to 1 KiB of each example. "
            "Otherwise return what it is computed from, such as an array with an entry for each example. "
        )
    elif all(with_own[position].is_proved for position in wanted):
        further = (
            'For the statistics of a batch normalisation, batch_stats="microbatch" has each microbatch use its own. '
        )
    said = not_exact(traced.label, verdicts, names)
    gap = "\n" if "\n" in said else " "
    raise ValueError(
        f'microbatch: reduce="exact" cannot be kept for {said}{gap}{further}'
        'If microbatches are to differ from the whole batch, say how with reduce="sum" or "mean", and check=False. '
        "Without mm.microbatch the stages compute the whole batch, one after the other."
    )


def _is_beside(verdicts: Sequence[Verdict]) -> bool:
    """Whether what is not proved stands beside a loss that is: the first result is the loss, or a gradient of it."""
    reason = verdicts[0].reason
    return verdicts[0].is_proved or (reason is not None and reason.is_of_other)


def check_apart(traced: TracedFunction, proof: Proof, given: Sequence[int]) -> None:
    """Raise where a result that is not proved reads what the proof of others changes in the function.

    Args:
        traced: The function.
        proof: The proof, of the function with its changes.
        given: Positions of the results that are to be put together as they are.

    Raises:
        ValueError: Naming the first such result.
    """
    for position in given:
        if reads_edits(proof, position):
            raise ValueError(
                f"microbatch: {traced.names[position]} of {traced.label} reads values that are computed on the whole "
                'batch, or scaled, for results with reduce="exact", so it would not be what microbatches give. Give '
                'reduce="exact" for all results, or for none.'
            )


def describe_given(
    traced: TracedFunction, proof: Proof, given: Sequence[Verdict | None], kinds: Sequence[str], *, is_bare: bool
) -> tuple[str, ...]:
    """What `explain()` says of the results that are put together in given ways."""
    chosen = [position for position, way in enumerate(given) if way is not None]
    dims = [way.dim for way in given if way is not None]
    of_these = dataclasses.replace(proof, verdicts=tuple(proof.verdicts[position] for position in chosen))
    names, hows = [traced.names[position] for position in chosen], [kinds[position] for position in chosen]
    return given_summary(of_these, names, hows, dims, is_bare=is_bare)


def describe_exact(
    traced: TracedFunction, loop: TracedLoop, proof: Proof, given: Sequence[Verdict | None]
) -> tuple[str, ...]:
    """What `explain()` says of the results that are put together as the proof says."""
    chosen = [position for position, way in enumerate(given) if way is None]
    of_these = dataclasses.replace(proof, verdicts=tuple(proof.verdicts[position] for position in chosen))
    return summary(of_these, [traced.names[position] for position in chosen], loop.parts.hoisted)


def log_draws(proof: Proof, label: str) -> None:
    """Say that all microbatches draw the same random numbers, if they do."""
    if proof.repeated_draws:
        log.warning(
            "microbatch: every microbatch of %s draws the same random numbers at %s, since their key is not named by "
            "rng=. Pass the key as an argument and its position as rng=, which folds the microbatch index in; or write "
            "rng=() if that is meant.",
            label,
            ", ".join(proof.repeated_draws),
        )


def log_host_calls(loop: TracedLoop, label: str) -> None:
    """Say that each microbatch calls the host, if it does: the one-device program calls it once."""
    lines = dict.fromkeys(host_call_lines(_compat.split(loop.parts.body)[0]))
    if lines and loop.count > 1:
        log.warning(
            "microbatch: the call of the host%s runs once for each of the %d microbatches of %s, with the values of "
            "that one. For those of the whole batch return them, and print or store them after the step.",
            " and".join(lines),
            loop.count,
            label,
        )


class TracedLoop:
    """A traced function as a loop that adds up: its slices, its body and what follows it.

    The loop of `accumulate_pieces` only adds. What is joined or compared instead is spread over rows, one for each
    microbatch, and what does not depend on the batch is computed before the loop.

    Args:
        traced: The function.
        proof: What changes in it.
        given: How results are put together that are not as the proof says.
        accumulate: As for `microbatch`.
    """

    def __init__(self, traced: TracedFunction, proof: Proof, given: Sequence[Verdict | None], accumulate: str) -> None:
        self.traced = traced
        self.given = given
        self.count = traced.count
        ways = tuple(way or verdict for way, verdict in zip(given, proof.verdicts, strict=True))
        self.parts = split(dataclasses.replace(proof, verdicts=ways))
        self.afterwards = proof.afterwards
        every = (*ways, *proof.totals)
        before = _compat.as_fun(self.parts.before)(*traced.values)
        self.hoisted, self.same = before[: len(self.parts.hoisted)], before[len(self.parts.hoisted) :]
        self.verdicts = [every[position] for position in self.parts.combined]
        self.program = self.parts.body
        if accumulate == FLOAT32 and self.count > 1:
            sums = [position for position, verdict in enumerate(self.verdicts) if verdict.kind == "sum"]
            self.program = wide_results(self.program, sums, current_platform())
        self.body = _compat.as_fun(self.program)

    @property
    def needs_index(self) -> bool:
        """Whether the body writes to rows."""
        return any(verdict.kind != "sum" for verdict in self.verdicts)

    def slices(self) -> list[Any]:
        """Hoisted values with an entry for each example, with a new leading dimension of microbatches."""
        pairs = zip(self.parts.hoisted, self.hoisted, strict=True)
        return [cut(value, each.value.dim, self.count) for each, value in pairs if each.value.kind is Kind.ROWS]

    def shapes(self) -> list[Any]:
        """What `once` gives."""
        body, _ = _compat.split(self.program)
        return [self._shape(verdict, atom.aval) for verdict, atom in zip(self.verdicts, body.outvars, strict=True)]

    def _shape(self, verdict: Verdict, aval: Any) -> Any:
        if verdict.kind == "sum":
            return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        dtype = np.uint8 if aval.dtype == np.bool_ else aval.dtype
        return jax.ShapeDtypeStruct((self.count, *aval.shape), dtype)

    def once(self, batch: Sequence[Any], keys: Sequence[Any], slices: Sequence[Any], index: Any) -> list[Any]:
        """What one microbatch adds, given the leaves of its arguments."""
        rows = iter(slices)
        pairs = zip(self.parts.hoisted, self.hoisted, strict=True)
        hoisted = [next(rows) if each.value.kind is Kind.ROWS else value for each, value in pairs]
        found = self.body(*batch, *keys, *hoisted)
        return [self._added(verdict, value, index) for verdict, value in zip(self.verdicts, found, strict=True)]

    def _added(self, verdict: Verdict, value: Any, index: Any) -> Any:
        if verdict.kind == "sum":
            return value
        return in_row(value, index, self.count)

    def result(self, totals: Sequence[Any]) -> Any:
        """The function's result, from the sums of what the microbatches added."""
        values = dict(zip(self.parts.same, self.same, strict=True))
        for position, verdict, total in zip(self.parts.combined, self.verdicts, totals, strict=True):
            values[position] = self._finished(verdict, total)
        if self.afterwards is not None:
            self._compute_afterwards(values)
        # What is proved has the type of the whole batch's; what is given, that of the microbatches', never a weak one.
        types = self.traced.types()
        if self.traced.whole is not None:
            whole = _compat.split(self.traced.whole)[0].outvars
            types = [atom.aval if way is None else own for atom, own, way in zip(whole, types, self.given, strict=True)]
        leaves = [
            _compat.of_type(values[position], aval) if way is None else values[position].astype(aval.dtype)
            for position, (aval, way) in enumerate(zip(types, self.given, strict=True))
        ]
        # Whatever the function computes, its rule may have examples meet.
        if self.count > 1 and (rule := _compat.own_derivative_rule(self.traced.part)):
            problem = no_derivative(rule)
            leaves = [
                _compat.without_derivative(leaf, problem) if way is None else leaf
                for leaf, way in zip(leaves, self.given, strict=True)
            ]
        return jax.tree.unflatten(self.traced.tree, leaves)

    def _compute_afterwards(self, values: dict[int, Any]) -> None:
        """Add what is computed of totals, which stand behind the results."""
        assert self.afterwards is not None
        totals = [
            _compat.of_type(values[position], var.aval)
            for position, var in enumerate(self.afterwards.whole_totals, start=len(self.given))
        ]
        found = _compat.as_fun(self.afterwards.program)(*totals)
        values.update(
            (position, value)
            for position, value in zip(self.afterwards.positions, found, strict=True)
            if self.given[position] is None
        )

    def _finished(self, verdict: Verdict, total: Any) -> Any:
        if verdict.kind == "concat":
            shape = total.shape[1:]
            pieces = (*shape[: verdict.dim], verdict.outer, shape[verdict.dim] // verdict.outer)
            split_up = jnp.reshape(total, (self.count, *pieces, *shape[verdict.dim + 1 :]))
            moved = jnp.moveaxis(split_up, 0, verdict.dim + 1)
            total = jnp.reshape(
                moved, (*shape[: verdict.dim], shape[verdict.dim] * self.count, *shape[verdict.dim + 1 :])
            )
        elif verdict.kind == "max":
            total = jnp.max(total, axis=0)
        elif verdict.kind == "min":
            total = jnp.min(total, axis=0)
        if verdict.power:
            factor = self.count ** abs(verdict.power)
            total = total * factor if verdict.power > 0 else total / jnp.asarray(factor, total.dtype)
        if verdict.rounded is not None:
            # XLA leaves out a conversion there and back.
            info: Any = jnp.finfo(verdict.rounded)  # type: ignore[no-untyped-call]
            total = jax.lax.reduce_precision(total, int(info.nexp), int(info.nmant))
        return total


def cut(leaf: Any, dim: int, count: int) -> Any:
    """An array with a new leading dimension of microbatches, cut along `dim`."""
    axis, shape = dim % np.ndim(leaf), np.shape(leaf)
    pieces = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    return jnp.moveaxis(jnp.reshape(leaf, pieces), axis, 0)
