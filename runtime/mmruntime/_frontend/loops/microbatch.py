"""`microbatch`: run a function on pieces of the batch and add up what it returns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime import _check, _compat, schedules
from mmruntime._core.layer_trial import LAYER_TRIAL
from mmruntime._core.marks import FLOAT32, LOOPS, PARAMETER, LoopSpec, Rows
from mmruntime._core.mesh import current_platform
from mmruntime._core.switches import transforms_ignored
from mmruntime._exactness.prove import Proof, Verdict
from mmruntime._exactness.rules.equation import Edits
from mmruntime._exactness.split import reads_edits
from mmruntime._frontend.constraint import check_specs, constrain
from mmruntime._frontend.labels import label_of, leaf_names, place_names
from mmruntime._frontend.loops.batch_changes import BatchChanges
from mmruntime._frontend.loops.exact_microbatch import (
    TracedFunction,
    TracedLoop,
    check_apart,
    check_exact,
    check_reduce,
    cut,
    describe_exact,
    describe_given,
    given_verdicts,
    log_draws,
    log_host_calls,
    trace_both,
)
from mmruntime._frontend.loops.object_state import set_state, update_state, without_state
from mmruntime._frontend.loops.random_keys import LoopKeys
from mmruntime._frontend.nnx_objects import made_anew, stateful_leaves
from mmruntime._frontend.python_state import traced_again
from mmruntime._jaxpr.wide_results import wide_results

R = TypeVar("R")


@_compat.api_boundary
def microbatch(
    fun: Callable[..., R],
    dim: int | Sequence[int] = 0,
    size: int | None = None,
    argnum: int | Sequence[int] = 0,
    interleave: int | None = None,
    num_stages: int | None = None,
    schedule: str | schedules.Schedule | schedules.Auto | None = None,
    unrolling: int | None = None,
    arg_shardings: Any = None,
    custom_schedule: Any = None,
    *,
    count: int | None = None,
    reduce: Any = None,
    rng: int | Sequence[int] | None = None,
    check: bool = True,
    batch_stats: str | None = None,
    sync: str | None = None,
    all_gather: str | Sequence[str] | None = None,
    slices: int | None = None,
    accumulate: str = FLOAT32,
) -> Callable[..., R]:
    """Call `fun` once per microbatch and accumulate its results.

        total = zeros
        for index in range(num_microbatches):
            total += fun(*args with args[argnum] replaced by its microbatch `index`)

    Under plain `jax.jit` it is this loop. In a step that `mjit` or `parallelize` compiles, the microbatches
    go through the tasks in `fun` as a pipeline, in the order that `schedule` gives.

    Args:
        fun: Usually `jax.value_and_grad(loss)`; every result must be an array that can be added up.
        dim: The example dimension of every leaf of the sliced argument; may be negative. For several arguments, one
            number for all of them, or one for each.
        size: Examples per microbatch. Give this or `count`.
        argnum: Position of the argument to slice, a pytree whose leaves have one size along `dim`; or positions of
            several such arguments, which are sliced alike. Negative ones count from the last positional argument.
        interleave: How many stages each submesh has; checked against the tasks.
        num_stages: How many pipeline stages there are; checked against the tasks. Neighbouring tasks of one submesh are
            one stage, unless these numbers only fit with each task as a stage of its own.
        schedule: A name from `mmruntime.schedules.names()`, "auto" to search for the best order within the memory of
            1f1b, a `mmruntime.schedules.Auto` to say how to search, or a `mmruntime.schedules.Schedule`; `gpipe` if
            left out, as in MultiMesh. `explain()` shows the chosen schedule and the reasons.
        unrolling: No effect: the loop is always unrolled. MultiMesh has this argument.
        arg_shardings: Logical names of the full sliced argument, as for `with_sharding_constraint`.
        custom_schedule: Rows of task names per submesh, or of (microbatch, task name), or any other order that
            `mmruntime.schedules.custom` takes as rows. The name of a task is its forward pass; `<name>_bwd` is its
            backward pass.
        count: Number of microbatches.
        reduce: "exact" for the results of the function on the whole batch: the traced program proves how those of
            microbatches make them up, and an error names the line where examples meet in another way. What the batch
            alone decides, such as the number of tokens, is computed once on the whole batch.
            Or "sum" (if left out), "mean" (the sum divided by the number of microbatches), "concat" (for results with
            one entry per example along `dim`, that of the first argument, which are joined in order), "max", "min", or
            a pytree of all these that is a prefix of the result. What is given is held against the proof, and raises
            where that says otherwise.
        rng: Position (or positions) of PRNG keys among the arguments, counted as `argnum`. The microbatch's index is
            folded into each key (`jax.random.fold_in`); without `rng` every microbatch gets the same key. An nnx
            object, such as an `nnx.Rngs` or a model with dropout, stands for the keys of its random streams. Their
            counts advance as in one call of `fun` on the whole batch. `()` says that one key for all microbatches is
            meant where random numbers are drawn from keys that are not named: it is not logged then.
        check: Whether a `reduce` that is given and not "exact" is held against the proof as well.
        batch_stats: "microbatch" for `reduce="exact"` of a function with batch normalisation: where a sum or mean over
            examples would have to be that of the whole batch, each microbatch uses its own, and results that come of it
            are averaged, as by accumulating gradients on one device. `explain()` names the lines.
        sync: When devices of a submesh that share parameters add up their gradients, where a mesh axis cuts the
            examples: "step" for once, behind the loop (if left out), or "microbatch" for in each microbatch.
        all_gather: A mesh axis, or several. Parameters that it cuts are gathered once per step, in front of the loop,
            and their gradients added up and scattered once behind it; each device then holds them whole meanwhile. If
            left out, each program of a stage gathers what it reads, and scatters its gradients.
        slices: Slices of the sequence, the dimension behind the examples, into which each microbatch is cut for the
            pipeline (Seq1F1B). A slice passes through the stages like a microbatch of its own and reads keys and values
            of the slices before it, so the pipeline fills and drains in 1/slices of the time and holds less. The traced
            program proves that no position needs those behind it, or an error names the line. With `schedule` "gpipe",
            "1f1b" or "zb-h1" and one stage on each submesh, or "interleaved-1f1b" and several. Without a pipeline it
            has no effect.
        accumulate: The type in which results of floats shorter than float32 are added up: "float32", with one
            conversion behind the loop, or "parameter" for their own type, which takes half of the memory and loses
            what is small beside the sum: after 256 equal terms a sum of bfloat16 stops growing.

    Returns:
        A function with the signature of `fun`.

    Raises:
        ValueError: If the batch is not divisible, sizes differ between leaves, the schedule is unknown or without rows,
            `fun` changes state of Python around it, or state of an nnx object among its arguments that examples or keys
            decide, an entry of `reduce`, `sync` or `accumulate` is unknown, `all_gather` is given beside
            `sync="microbatch"`, `batch_stats` is not "microbatch" or `reduce` not "exact" beside it, or results are not
            those of the whole batch. When the step is compiled, if the mesh lacks such an axis.
        TypeError: If neither or both of `size` and `count` are given, an option is of another type, or a result cannot
            be put together.
    """
    _check.function("microbatch", "fun", fun, "a function, such as jax.value_and_grad(loss)")
    if (size is None) == (count is None):
        raise TypeError(
            f"microbatch: give size= (examples per microbatch) or count= (how many), got {size=}, {count=}."
        )
    sliced = _positions("argnum", argnum)
    # One argument is given itself, several as a tuple.
    is_one = not isinstance(argnum, Iterable)
    dims = _dims(dim, sliced, is_one=is_one)
    size = _check.optional_integer("microbatch", "size", size, 1)
    count = _check.optional_integer("microbatch", "count", count, 1)
    interleave = _check.optional_integer("microbatch", "interleave", interleave, 1)
    num_stages = _check.optional_integer("microbatch", "num_stages", num_stages, 1)
    _check.optional_integer("microbatch", "unrolling", unrolling)
    rows = _checked_rows(schedule, custom_schedule)
    spec = dataclasses.replace(
        loop_spec("microbatch", schedule if rows is None else None, sync, all_gather, accumulate),
        count=count or 0,
        custom=rows,
        num_stages=num_stages,
        interleave=interleave,
        slices=_check.optional_integer("microbatch", "slices", slices, 1) or 1,
        sequence_dim=dims[0] + 1,
    )
    if spec.slices > 1 and (dims[0] < 0 or len(set(dims)) > 1):
        raise ValueError(
            f"microbatch: slices={slices} cuts the dimension behind that of the examples, so dim must be 0 or more, "
            f"and one number for all arguments; got {dim=}."
        )
    keys = () if rng is None else _positions("rng", rng)
    check = _check.flag("microbatch", "check", check)
    reduction = _Reduction(reduce, check, batch_stats, dims[0], log_draws=rng is None or bool(keys))
    check_specs(arg_shardings, "microbatch: arg_shardings")
    request = _MicrobatchRequest(
        fun, label_of(fun), sliced, is_one, dims, size, count, keys, arg_shardings, reduction, spec
    )

    @_compat.api_boundary
    @functools.wraps(fun)
    def accumulated(*args: Any, **kwargs: Any) -> R:
        if transforms_ignored():
            return fun(*args, **kwargs)
        result: R = _MicrobatchCall(request, args, kwargs).result()
        return result

    return accumulated


@dataclass(frozen=True, eq=False)
class _MicrobatchRequest:
    """What `microbatch` was asked for: its arguments, checked. `spec` has no count yet where the size is given."""

    fun: Callable[..., Any]
    label: str
    sliced: tuple[int, ...]
    is_one: bool
    dims: tuple[int, ...]
    size: int | None
    count: int | None
    keys: tuple[int, ...]
    arg_shardings: Any
    reduction: _Reduction
    spec: LoopSpec


class _MicrobatchCall:
    """A call of a function of microbatches: its batch in pieces, and its other arguments."""

    def __init__(self, request: _MicrobatchRequest, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.request, self.kwargs = request, kwargs
        for position in request.sliced:
            if not -len(args) <= position < len(args):
                raise TypeError(
                    f"microbatch: argnum={position} is the argument to slice, but {request.label} was called with "
                    f"{len(args)} positional arguments. Pass it by position."
                )
        self.sliced = _from_front("argnum", request.sliced, args)
        for key in request.keys:
            if not -len(args) <= key < len(args) or key % len(args) in self.sliced:
                raise TypeError(f"microbatch: rng={key} must be the position of another positional argument.")
        positions = _from_front("rng", request.keys, args)
        batch = args[self.sliced[0]] if request.is_one else tuple(args[position] for position in self.sliced)
        if request.arg_shardings is not None:
            batch = constrain(batch, request.arg_shardings, "microbatch: arg_shardings")
        self.batch = batch
        self.batch_changes = BatchChanges(request.label, [args[position] for position in self.sliced])
        parts = self._parts(batch)
        self.dims = [one for one, part in zip(request.dims, parts, strict=True) for _ in jax.tree.leaves(part)]
        argnum = self.sliced[0] if request.is_one else self.sliced
        self.pieces, self.count = _slice(batch, argnum, self.dims, request.size, request.count, request.label)
        self.rest = [None if position in self.sliced else arg for position, arg in enumerate(args)]
        self.keys = LoopKeys(args, positions)
        # Arguments that are no keys themselves, by their names; what is cut is None among them.
        others = {at: arg for at, arg in enumerate(self.rest) if at not in positions or at in self.keys.objects}
        self.others = dict(zip(place_names(request.fun, others), others.values(), strict=True)) | kwargs
        self.parameters = jax.tree.leaves((list(others.values()), kwargs))
        traced = [*zip(self.sliced, parts, strict=True), *zip(positions, self.keys.given, strict=True)]
        self.names = leaf_names(request.fun, traced)
        # Whether the function has changed state of nnx objects, besides the counts of random streams.
        self.changes = False

    def _parts(self, batch: Any) -> tuple[Any, ...]:
        return (batch,) if self.request.is_one else batch

    def function(self, batch: Any, own_keys: Any) -> tuple[Any, list[list[Any]], Any]:
        """The result on a batch, with keys; the counts of random streams after it, and other state that it changes."""
        arguments = list(self.rest)
        for position, part in zip(self.sliced, self._parts(batch), strict=True):
            arguments[position] = part
        self.keys.place(arguments, own_keys)
        streams = [each for found in self.keys.objects.values() for each in found]
        fun, label = self.request.fun, self.request.label
        (arguments, keywords), watch = made_anew((arguments, self.kwargs), label, streams)
        with self.batch_changes.watch([arguments[position] for position in self.sliced]):
            found = self.keys.call(lambda: fun(*arguments, **keywords), arguments, own_keys, watch, label)
        self.changes = self.changes or found[2] is not None
        return found

    def again(self, part: int) -> Any:
        """A part of what `function` gives for the whole batch, traced once more, as a jaxpr and its shape."""
        trace = jax.make_jaxpr(lambda *each: self.function(*each)[part], return_shape=True)
        return traced_again("microbatch", self.request.fun, self.others, lambda: trace(self.batch, self.keys.given))

    def result(self) -> Any:
        """What the microbatches give together; state of nnx objects is changed as by one call on the whole batch."""
        request, reduction = self.request, self.request.reduction
        objects = stateful_leaves((self.rest, self.kwargs))

        def call(batch: Any, own_keys: Any) -> Any:
            # With statistics of its own, what a microbatch makes of the state of nnx objects is a result like others.
            found = self.function(batch, own_keys)
            return (found[0], found[2]) if reduction.own_statistics else found[0]

        traced = trace_both(
            call,
            self.batch,
            self.keys.given,
            self.dims,
            self.count,
            request.fun,
            self.others,
            names=self.names,
            needs_whole=reduction.needs_whole,
        )
        if reduction.own_statistics:
            traced = dataclasses.replace(traced, names=[without_state(name) for name in traced.names])
        update = None
        if self.changes and not reduction.own_statistics:
            update = update_state(objects, self.again(2), (self.batch, self.keys.given), request.label)
        loop, said = reduction.loop(traced, self.parameters, request.spec.accumulate)
        spec = dataclasses.replace(request.spec, count=self.count, proof=said)
        result = _run(loop, self.pieces, self.keys.folded if self.keys.positions else None, spec, request.label)
        self.keys.advance(lambda: self.again(1), self.batch)
        if update is not None:
            update()
        if reduction.own_statistics:
            result, state = result
            set_state(objects, state)
        self.batch_changes.apply()
        return result


class _Reduction:
    """How the results of microbatches are put together, and what of that is held against the proof.

    The arguments are those of `microbatch`; `dim` is the dimension of examples, along which "concat" joins.
    """

    def __init__(self, reduce: Any, check: bool, batch_stats: Any, dim: int, *, log_draws: bool) -> None:
        self.is_bare, self.how = reduce is None, "sum" if reduce is None else reduce
        self.check, self.dim, self.log_draws = check, dim, log_draws
        self.kinds = jax.tree.leaves(self.how, is_leaf=lambda kind: kind is None)
        for kind in self.kinds:
            if not isinstance(kind, str) or kind not in _KINDS:
                raise ValueError(
                    'microbatch: reduce must be "exact", "sum", "mean", "concat", "max" or "min" (or a prefix tree of '
                    f"these), got {_check.shown(kind)}."
                )
        is_known = isinstance(batch_stats, str) and batch_stats == "microbatch"
        if batch_stats is not None and (not is_known or set(self.kinds) != {"exact"}):
            raise ValueError(
                'microbatch: batch_stats="microbatch" goes with reduce="exact", got '
                f"batch_stats={_check.shown(batch_stats)} and reduce={_check.shown(self.how)}."
            )
        self.own_statistics = batch_stats is not None
        self.is_checked = check and not self.is_bare
        self.needs_whole = "exact" in self.kinds or self.is_checked

    def loop(
        self, traced: TracedFunction, parameters: Sequence[Any], accumulate: str
    ) -> tuple[TracedLoop, tuple[str, ...]]:
        """The loop that gives the results, and what `explain()` says of them.

        Args:
            traced: The function.
            parameters: Arrays that it captures and that may be differentiated.
            accumulate: As for `microbatch`.

        Raises:
            ValueError: If results are not those of the whole batch.
            TypeError: If one cannot be put together.
        """
        hows = _kinds_of_leaves((self.how, "exact") if self.own_statistics else self.how, traced.tree)
        given = given_verdicts(traced, hows, self.dim)
        positions = [position for position, way in enumerate(given) if way is not None]
        written = traced.prove(parameters, as_written=True) if positions else None
        said: tuple[str, ...] = ()
        if written is not None:
            if self.is_checked and traced.count > 1:
                check_reduce(traced, written, hows, self.dim)
            said = describe_given(traced, written, given, hows, is_bare=self.is_bare)
        is_as_given = written is not None and len(positions) == len(given)
        if written is not None and is_as_given:
            proof, given = self._as_given(traced, written, given, parameters)
        else:
            proof, given = self._as_proved(traced, written, given, hows, parameters)
            if self.log_draws:
                log_draws(proof, traced.label)
        loop = TracedLoop(traced, proof, given, accumulate)
        log_host_calls(loop, traced.label)
        return loop, said if is_as_given else (*describe_exact(traced, loop, proof, given), *said)

    def _as_given(
        self, traced: TracedFunction, written: Proof, given: Ways, parameters: Sequence[Any]
    ) -> tuple[Proof, Ways]:
        """The proof of a function all of whose results are put together as the caller says."""
        has_range = "mean" in self.kinds or any(verdict.rounded is not None for verdict in written.verdicts)
        if self.check and has_range and written.is_exact:
            # A mean that is divided by the whole batch's size at once has the whole batch's cotangents.
            exact = traced.prove(parameters)
            if exact.is_exact:
                return exact, [None] * len(given)
        return dataclasses.replace(written, edits=Edits()), given

    def _as_proved(
        self,
        traced: TracedFunction,
        written: Proof | None,
        given: Ways,
        hows: Sequence[str],
        parameters: Sequence[Any],
    ) -> tuple[Proof, Ways]:
        """The proof of a function with results that are "exact", and the ways that are still as the caller says."""
        positions = [position for position, way in enumerate(given) if way is not None]
        own = self.own_statistics
        proof = traced.prove(parameters, own_statistics=own, is_all=not positions)
        check_exact(traced, proof, hows, parameters)
        # What the proof of the function as it is written agrees with is exact in any way.
        agreed = {p for p in positions if self.check and written is not None and written.verdicts[p].is_proved}
        apart = [p for p in positions if p not in agreed or not proof.verdicts[p].is_proved]
        if any(reads_edits(proof, position) for position in apart):
            proof = traced.prove(parameters, own_statistics=own, own_sizes=True)
            check_exact(traced, proof, hows, parameters)
            check_apart(traced, proof, apart)
        return proof, [way if position in apart else None for position, way in enumerate(given)]


# How results are put together as the caller says; None as the proof says.
Ways = list[Verdict | None]

_KINDS = ("exact", "sum", "mean", "concat", "max", "min")


def _run(loop: TracedLoop, pieces: Any, keys: Callable[[Any], Any] | None, spec: LoopSpec, label: str) -> Any:
    """Run a traced function as a microbatch loop."""

    def once(piece: Any, index: Any) -> list[Any]:
        batch, slices = piece
        own_keys = [] if keys is None else jax.tree.leaves(keys(index))
        return loop.once(jax.tree.leaves(batch), own_keys, slices, index)

    needs_index = keys is not None or loop.needs_index
    totals = accumulate_pieces(once, (pieces, loop.slices()), needs_index, spec, label, shapes=loop.shapes())
    return loop.result(totals)


def _kinds_of_leaves(how: Any, tree: Any) -> list[str]:
    """The kind of every leaf of a result."""
    # A result may hold None, which is no leaf.
    result = jax.tree.unflatten(tree, range(tree.num_leaves))
    spread = _over_prefix(lambda kind, subtree: jax.tree.map(lambda _: kind, subtree), how, result)
    return jax.tree.leaves(spread)


_INSTEAD_OF_ROWS = "Pass what has no row for each example as an argument of its own, and leave that out of argnum."


def _slice(
    batch: Any, argnum: int | Sequence[int], dims: Sequence[int], size: int | None, count: int | None, label: str
) -> tuple[Any, int]:
    """The batch with a new leading dimension of microbatches, and how many there are.

    With several positions in `argnum` the batch is a tuple of these arguments. There is one of `dims` for each leaf.
    """
    sizes: dict[str, int] = {}
    along = f"dim={dims[0]}" if len(set(dims)) == 1 else "the dimensions of dim="
    for (path, leaf), dim in zip(jax.tree_util.tree_leaves_with_path(batch), dims, strict=True):
        position, inside = (argnum, path) if isinstance(argnum, int) else (argnum[path[0].idx], path[1:])
        name = f"argument {position}{jax.tree_util.keystr(inside)}"
        if not hasattr(leaf, "shape") and not isinstance(leaf, (bool, int, float, complex)):
            raise TypeError(
                f"microbatch: {argnum=} says that {name} of {label} is cut into microbatches, and it is no array: "
                f"{_check.shown(leaf)}. Leave it out of argnum."
            )
        rank = np.ndim(leaf)
        if not -rank <= dim < rank:
            raise ValueError(
                f"microbatch: {dim=} is out of range for {name} of {label}, whose shape is {np.shape(leaf)}. "
                f"{_INSTEAD_OF_ROWS if inside else 'Leave out of argnum what has no row for each example.'}"
            )
        sizes[name] = np.shape(leaf)[dim]
    if not sizes:
        raise ValueError(f"microbatch: the argument to slice of {label} has no arrays.")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in sizes.items())
        raise ValueError(
            f"microbatch: what is sliced of {label} differs in size along {along}: {listed}. {_INSTEAD_OF_ROWS}"
        )
    (length,) = set(sizes.values())
    if length == 0:
        raise ValueError(f"microbatch: the batch of {label} has no examples: its size along {along} is 0.")
    what, each = ("size", size) if size is not None else ("count", count)
    assert each is not None
    if length % each or length < each:
        raise ValueError(
            f"microbatch: a batch of {length} examples along {along} cannot be cut evenly by {what}={each} in {label}. "
            f"Choose a divisor of {length}, or pad the batch."
        )
    num = length // each if size is not None else each
    if (trial := LAYER_TRIAL.get()) is not None:
        trial.counts.append(num)
        trial.batches.append(length)
        num = trial.count or num
    leaves, tree = jax.tree.flatten(batch)
    return jax.tree.unflatten(tree, [cut(leaf, dim, num) for leaf, dim in zip(leaves, dims, strict=True)]), num


def accumulate_pieces(
    once: Callable[[Any, Any], R],
    pieces: Any,
    needs_index: bool,
    spec: LoopSpec,
    label: str,
    are_sums: Sequence[bool] = (),
    shapes: Any = None,
) -> R:
    """Sum `once(piece, index)` over the leading dimension of `pieces`, leaf by leaf, in a marked microbatch loop.

    Args:
        once: The loop body. `index` is the number of the microbatch, None if it is not needed.
        pieces: A pytree of arrays of shape `(num_microbatches, ...)`.
        needs_index: Whether `once` uses the index. It gets one, too, if there are no pieces.
        spec: How the loop runs.
        label: Name of the loop in messages and marks.
        are_sums: Whether each leaf of what `once` gives is to be added up in float32 where it is a shorter float: not
            what only one microbatch gives, in a row of its own, nor what the user adds up in a type of their own.
        shapes: What `once` gives, a pytree of shapes and types, if that is known; it is added up as it is.

    Returns:
        The sums, in the types in which they are added up.

    Raises:
        TypeError: If a result is a bool or a key, which cannot be added up.
    """
    needs_index = needs_index or not jax.tree.leaves(pieces)
    index = jnp.arange(spec.count, dtype=jnp.uint32) if needs_index else None
    first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (pieces, index))
    body_of_it = once
    if shapes is None:
        # The zeros need the shapes of the results. The body of the scan evaluates this trace, so that the user's
        # function is traced once.
        traced, shapes = jax.make_jaxpr(once, return_shape=True)(*first)
        tree = jax.tree.structure(shapes)
        if spec.accumulate == FLOAT32 and spec.count > 1:
            sums = [position for position, is_sum in enumerate(are_sums) if is_sum]
            traced = wide_results(traced, sums, current_platform())
            shapes = jax.tree.unflatten(tree, [atom.aval for atom in _compat.split(traced)[0].outvars])
        compute = _compat.as_fun(traced)

        def evaluated(piece: Any, index: Any) -> R:
            result: R = jax.tree.unflatten(tree, compute(*jax.tree.leaves((piece, index))))
            return result

        body_of_it = evaluated

    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        if _compat.is_key(leaf.dtype) or leaf.dtype == np.bool_:
            raise TypeError(
                f"microbatch: result{jax.tree_util.keystr(path)} of {label} is {leaf.dtype}{list(leaf.shape)}, which "
                "cannot be added up over microbatches. Return a number, or leave it out of the result."
            )
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    spec = dataclasses.replace(spec, num_batch_operands=len(jax.tree.leaves(first)))

    # The partitioner recognises this form: one scan, whose new carry is `add(carry, result)` leaf by leaf.
    def loop(zeros: Any, pieces: Any) -> Any:
        def body(total: Any, piece: Any) -> tuple[Any, None]:
            return jax.tree.map(jax.lax.add, total, body_of_it(*piece)), None

        return jax.lax.scan(body, zeros, pieces)[0]

    loop.__name__ = loop.__qualname__ = LOOPS.name(spec, label)
    result: R = jax.jit(loop)(zeros, (pieces, index))
    return result


def _checked_rows(schedule: Any, custom_schedule: Any) -> Rows | None:
    """The rows of a custom schedule; None if there are none."""
    is_custom = isinstance(schedule, str) and schedule == "custom"
    if custom_schedule is not None:
        if schedule is not None and not is_custom:
            raise ValueError(
                f"microbatch: custom_schedule= goes with schedule='custom' or none, got {_check.shown(schedule)}."
            )
        return _rows(custom_schedule)
    if is_custom:
        raise ValueError(
            "microbatch: schedule='custom' needs custom_schedule=, the rows of the order, one per submesh. Or name one "
            f"of {', '.join(schedules.names())}."
        )
    return None


def _rows(custom_schedule: Any) -> Rows:
    expected = "rows of task names, or of (microbatch, task name), one row for each submesh"
    if isinstance(custom_schedule, schedules.Schedule | schedules.Auto):
        raise _check.wrong(
            "microbatch", "custom_schedule", f"{expected} (schedule= takes such a value)", custom_schedule
        )

    def check(cell: Any) -> Any:
        if isinstance(cell, str | schedules.Action):
            return cell
        pair = _check.items("microbatch", "a cell of custom_schedule", cell, expected)
        if len(pair) != 2 or not isinstance(pair[1], str):
            raise _check.wrong("microbatch", "a cell of custom_schedule", expected, cell)
        return _check.integer("microbatch", "a microbatch in custom_schedule", pair[0]), pair[1]

    rows = _check.items("microbatch", "custom_schedule", custom_schedule, expected)
    return tuple(tuple(map(check, _check.items("microbatch", "custom_schedule", row, expected))) for row in rows)


def _positions(name: str, value: Any) -> tuple[int, ...]:
    """Positions of arguments: one number, or several."""
    several = isinstance(value, Iterable)
    positions = (
        _check.items("microbatch", name, value, "the position of an argument, or several") if several else [value]
    )
    return tuple(_check.integer("microbatch", name, position) for position in positions)


def _from_front(name: str, positions: Sequence[int], args: Sequence[Any]) -> tuple[int, ...]:
    """Positions of arguments, counted from the first one."""
    found = tuple(position % len(args) for position in positions)
    if len(set(found)) < len(found):
        raise ValueError(f"microbatch: {name}={tuple(positions)} names one of {len(args)} arguments twice.")
    return found


def _dims(dim: Any, sliced: Sequence[int], *, is_one: bool) -> tuple[int, ...]:
    """The dimension of examples of each argument that is sliced."""
    if not isinstance(dim, Iterable):
        return (_check.integer("microbatch", "dim", dim),) * max(len(sliced), 1)
    given = _check.items("microbatch", "dim", dim, "a dimension, or one for each argument that argnum= names")
    if is_one or len(given) != len(sliced):
        many = "one argument" if is_one else f"{len(sliced)} arguments"
        raise ValueError(
            f"microbatch: dim={dim} has a dimension for each of {len(given)} arguments, and argnum= names {many}. Give "
            "one number, or one for each argument."
        )
    return tuple(_check.integer("microbatch", "dim", each) for each in given)


def loop_spec(what: str, schedule: Any, sync: Any, all_gather: Any, accumulate: Any) -> LoopSpec:
    """How a loop runs, whose count is not known yet, from arguments that loops of all kinds take.

    Raises:
        ValueError: If the schedule, `sync` or `accumulate` is none of its values, or they contradict each other.
        TypeError: If the schedule is of another type, or `all_gather` is neither a name nor several.
    """
    if isinstance(schedule, str):
        try:
            schedules.make(schedule, 1, 1)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None
    elif not isinstance(schedule, schedules.Schedule | schedules.Auto | None):
        expected = "a name of mmruntime.schedules.names(), a schedules.Schedule or a schedules.Auto"
        raise _check.wrong(what, "schedule", expected, schedule)
    sync = "step" if sync is None else sync
    if not isinstance(sync, str) or sync not in ("step", "microbatch"):
        raise ValueError(
            f'{what}: sync must be "step" (gradients are added up over devices once per step) or "microbatch" (in each '
            f"one), got {_check.shown(sync)}."
        )
    axes = (all_gather,) if isinstance(all_gather, str) else () if all_gather is None else all_gather
    if not isinstance(axes, list | tuple) or not all(isinstance(axis, str) and axis for axis in axes):
        raise _check.wrong(what, "all_gather", "the name of a mesh axis, or several", all_gather)
    if axes and sync != "step":
        raise ValueError(
            f'{what}: all_gather= keeps parameters and gradients whole until the loop ends, and sync="microbatch" adds '
            "gradients up in each microbatch. Leave one of them out."
        )
    if not isinstance(accumulate, str) or accumulate not in (FLOAT32, PARAMETER):
        raise ValueError(
            f'{what}: accumulate must be "float32" (shorter floats are added up in float32) or "parameter" (in their '
            f"own type), got {_check.shown(accumulate)}."
        )
    chosen = schedules.DEFAULT if schedule is None else schedule
    return LoopSpec(0, schedule=chosen, all_gather=tuple(axes), sync=sync, accumulate=accumulate)


def _over_prefix(function: Callable[[Any, Any], Any], how: Any, tree: R) -> R:
    """`function(kind, subtree)` for every leaf of `how`, which is a prefix of `tree`."""
    try:
        result: R = jax.tree.map(function, how, tree)
    except ValueError as error:
        if str(error).startswith("microbatch"):
            raise
        raise ValueError(
            f"microbatch: reduce={how!r} is not a prefix of the result's tree {jax.tree.structure(tree)}."
        ) from error
    return result
