"""How long the programs of one layer take on the first device, each alone: no mesh is needed, and no step is run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mmruntime import _compat
from mmruntime._inspect.layer_costs import middle_layer
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.programs.segment import Segment, Segments

_REPEATS, _LEAST_SECONDS, _ISSUED = 5, 0.3, 100
# Bytes that caches may hold, and how many sets of arrays there are at most beside the first.
_CACHED, _MOST_SETS = 2**27, 63


def layer_times(step: Step, segments: Segments, launch: float) -> tuple[int, float, float]:
    """The number of a layer between others, and seconds of its forward pass and of its backward pass.

    Args:
        step: A step in which each layer is a stage of its own.
        segments: Its programs.
        launch: Seconds to issue a program, which are left out.

    Raises:
        ValueError: If no stage stands in a microbatch loop.
    """
    number, passes, totals = middle_layer(step, segments)
    times = {True: 0.0, False: 0.0}
    for each in passes:
        times[each.backward] += max(_seconds(step, each, totals) - launch, 1e-9)
    return number, times[False], times[True]


def _seconds(step: Step, program: Segment, totals: Collection[Any]) -> float:
    """Seconds of a program, which adds its gradients to those of other microbatches."""
    compute = _compat.as_fun(_compat.close(step.like, program.reads, program.writes, [op.eqn for op in program.ops]))
    summed = [position for position, var in enumerate(program.writes) if var in totals]

    def run(sums: Sequence[jax.Array], *operands: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        values = compute(*operands)
        added = [total + values[position] for total, position in zip(sums, summed, strict=True)]
        return added, [value for position, value in enumerate(values) if position not in summed]

    compiled = jax.jit(run, donate_argnums=0)

    def arrays() -> tuple[list[jax.Array], list[jax.Array]]:
        return [_filled(program.writes[at].aval) for at in summed], [_filled(var.aval) for var in program.reads]

    # In a step other layers run in between, and no cache still has what this one reads.
    first = arrays()
    size = sum(array.nbytes for group in first for array in group)
    sets = [first, *(arrays() for _ in range(min(_CACHED // max(size, 1), _MOST_SETS)))]
    turn = itertools.cycle(range(len(sets)))

    def again() -> Any:
        number = next(turn)
        sums, operands = sets[number]
        sums, values = compiled(sums, *operands)
        sets[number] = sums, operands
        return sums, values

    return _shortest(again)


def _filled(aval: Any) -> jax.Array:
    """An array of a type, with numbers that stay finite in any layer."""
    if _compat.is_key(aval.dtype):
        data = jnp.zeros((*aval.shape, *_compat.key_shape(aval.dtype)), jnp.uint32)
        keys: jax.Array = jax.random.wrap_key_data(data, impl=_compat.key_name(aval.dtype))
        return keys
    return jnp.full(aval.shape, 0.01 if jnp.issubdtype(aval.dtype, jnp.inexact) else 0, aval.dtype)


def launch_time() -> float:
    """Seconds to issue a program, of many that are issued one after the other."""
    add = jax.jit(lambda x: x + 1)
    value = add(jnp.zeros(()))

    def issued() -> Any:
        found = value
        for _ in range(_ISSUED):
            found = add(found)
        return found

    return _shortest(issued) / _ISSUED


def _shortest(run: Callable[[], Any]) -> float:
    """Seconds of the shortest of some runs; the first one compiles."""
    jax.block_until_ready(run())
    times: list[float] = []
    while len(times) < _REPEATS or sum(times) < _LEAST_SECONDS:
        begun = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begun)
    return min(times)
