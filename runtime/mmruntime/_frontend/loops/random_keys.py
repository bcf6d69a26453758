"""The keys of a microbatch loop: the arguments that `rng=` names, and how each microbatch gets keys of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime import _check, _compat
from mmruntime._frontend.nnx_objects import is_trace_error, stateful_leaves
from mmruntime._jaxpr.rewrite import needed


class LoopKeys:
    """The arguments of a loop that are PRNG keys, or nnx objects (`nnx.Rngs`, a model) that hold random streams.

    A stream gives the key `fold_in(key, count)` and counts on. Each microbatch has streams with the same counts and
    keys of its own.

    Args:
        arguments: The arguments of the loop's function.
        positions: Those that `rng=` names.

    Raises:
        TypeError: If an argument is no key and holds none.
    """

    def __init__(self, arguments: Sequence[Any], positions: Sequence[int]) -> None:
        self.positions = tuple(positions)
        self.objects = {at: found for at in positions if (found := stateful_leaves(arguments[at]))}
        # What is folded, for each position: the argument itself, or the keys in it.
        self.given = [_stream_keys(self.objects[at]) if at in self.objects else arguments[at] for at in positions]
        for at, given in zip(positions, self.given, strict=True):
            _check_keys(at, arguments[at], given)
        self._advances = False

    def folded(self, index: Any) -> list[Any]:
        """The keys of a microbatch."""
        own: list[Any] = jax.tree.map(lambda key: _fold_in(key, index), self.given, is_leaf=_is_key)
        return own

    def place(self, arguments: list[Any], own: Sequence[Any]) -> None:
        """Put the keys of a microbatch in their arguments; nnx objects stay as they are until they are cloned."""
        for at, key in zip(self.positions, own, strict=True):
            if at not in self.objects:
                arguments[at] = key

    def call(
        self,
        fun: Callable[[], Any],
        clones: Sequence[Any],
        own: Sequence[Any],
        watch: Callable[[], Callable[[], Any]],
        label: str,
    ) -> tuple[Any, list[list[Any]], Any]:
        """Call a function whose arguments have the keys of a microbatch, also in their nnx objects.

        Args:
            fun: The function, with its arguments.
            clones: Its arguments, in which nnx objects may be changed.
            own: The keys; none where each argument keeps its own.
            watch: Starts to watch the clones for other changes, and gives what returns these after the call.
            label: What messages call the function.

        Returns:
            The result, the counts of the streams after it, and what `watch` found.

        Raises:
            TypeError: If the function draws from an nnx object under a transformation that does not carry it.
        """
        for at, keys in zip(self.positions, own, strict=False):
            if at in self.objects:
                _set(stateful_leaves(clones[at]), "RngKey", keys)
        before = [_stream_counts(stateful_leaves(clones[at])) for at in self.objects]
        changed = watch()
        try:
            result = fun()
        except Exception as error:
            if not self.objects or not is_trace_error(error):
                raise
            line = f" at {where}" if (where := _compat.raised_at(error)) else ""
            raise TypeError(
                f"microbatch: {label} draws from the nnx object at rng={next(iter(self.objects))}{line}, in a trace "
                "that Flax does not let change it: jax.grad does not carry nnx objects. Use nnx.grad or "
                "nnx.value_and_grad; or pass a key, as in fun(..., rngs.dropout()), and make nnx.Rngs(dropout=key) of "
                "it inside the function."
            ) from error
        state = changed()
        after = [_stream_counts(stateful_leaves(clones[at])) for at in self.objects]
        self._advances = self._advances or any(
            old is not new
            for one, other in zip(before, after, strict=True)
            for old, new in zip(one, other, strict=True)
        )
        return result, after, state

    def advance(self, counts: Callable[[], tuple[Any, Any]], batch: Any) -> None:
        """Advance the streams of the loop's own arguments as one call on the whole batch does.

        A function that leaves its arguments alone, such as `jax.grad(loss)`, advances nothing.

        Args:
            counts: Gives the closed jaxpr of the counts after a call on a batch, with keys, and its shape.
            batch: The whole batch.
        """
        if not self._advances:
            return
        traced, _ = counts()
        jaxpr, constants = _compat.split(traced)
        eqns, _ = needed(jaxpr.eqns, jaxpr.outvars)
        only = _compat.close(jaxpr, [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, eqns)
        found = iter(_compat.as_fun(only)(*constants, *jax.tree.leaves((batch, self.given))))
        for value in self.objects.values():
            _set(value, "RngCount", [next(found) for _ in _stream_counts(value)])


def _is_key(value: Any) -> bool:
    return value is not None and not isinstance(value, dict | list | tuple)


def _fold_in(key: Any, index: Any) -> Any:
    if not _compat.is_key(jnp.result_type(key)) or not np.ndim(key):
        return jax.random.fold_in(key, index)
    # Streams that were split hold arrays of keys.
    folded = jax.vmap(lambda each: jax.random.fold_in(each, index))(jnp.ravel(key))
    return jnp.reshape(folded, np.shape(key))


def _check_keys(position: int, argument: Any, given: Any) -> None:
    expected = f"microbatch: rng={position} must be the position of a PRNG key, such as jax.random.key(0)"
    leaves = jax.tree.leaves(given, is_leaf=_is_key)
    for leaf in leaves:
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not (_compat.is_key(dtype) or dtype == np.uint32):
            raise TypeError(f"{expected}, but the argument there is {_check.shown(leaf)}.")
    if not leaves:
        raise TypeError(
            f"{expected}, or of an nnx object with random streams, such as nnx.Rngs(0), but the "
            f"{type(argument).__name__} there has none."
        )


def _stream_keys(value: Any) -> list[Any]:
    return _state_leaves(value, "RngKey")


def _stream_counts(value: Any) -> list[Any]:
    return _state_leaves(value, "RngCount")


def _state_leaves(value: Any, kind: str) -> list[Any]:
    """The values of the variables of one kind, in an order that clones keep."""
    from flax import nnx  # noqa: PLC0415  (imported by the caller already; nothing else here needs Flax)

    return jax.tree.leaves(nnx.state(value, getattr(nnx, kind)))


def _set(value: Any, kind: str, leaves: Sequence[Any]) -> None:
    from flax import nnx  # noqa: PLC0415

    nnx.update(value, jax.tree.unflatten(jax.tree.structure(nnx.state(value, getattr(nnx, kind))), leaves))
