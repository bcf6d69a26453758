"""Compile: every program of a step, ahead of time, in parallel, with its borders and donations fixed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._program import Program, Run, Transfer, Work, donations
from mmruntime._shard import Shardings, abstract
from mmruntime._transfer import Mover


@dataclass(eq=False, slots=True, frozen=True)
class Compiled:
    """The executables of a program.

    Attributes:
        programs: The executable of each piece of work.
        movers: The transfer of each transfer instruction, shared between equal ones.
        donated: Positions of the arguments that each executable overwrites.
    """

    programs: dict[Work, Any]
    movers: dict[Transfer, Mover]
    donated: dict[Work, tuple[int, ...]]


def compile_program(program: Program, shardings: Shardings, owned: Iterable[int]) -> Compiled:
    """Compile all work of a program and plan its transfers.

    Args:
        program: The instructions.
        shardings: The layout of each value.
        owned: Slots whose arrays may be overwritten once nobody reads them.
    """
    keys = program.keys
    layout = [(tuple(var.aval.shape), var.aval.dtype, shardings[var, where]) for var, where, _ in keys]
    donated = donations(program, owned, dict(enumerate(layout)))
    works = list(dict.fromkeys(item.work for item in program.instructions if isinstance(item, Run)))
    # Tracing and lowering hold Python's lock; compiling does not.
    lowered = [_lower(work, shardings, donated[work]) for work in works]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        programs = dict(zip(works, pool.map(_compile, lowered), strict=True))
    movers: dict[Transfer, Mover] = {}
    shared: dict[tuple[int, int, tuple[Var, ...]], Mover] = {}
    for item in program.instructions:
        if not isinstance(item, Transfer):
            continue
        key = (item.source, item.target, tuple(item.values))
        if key not in shared:
            shared[key] = Mover(
                [shardings[var, item.source] for var in item.values],
                [shardings[var, item.target] for var in item.values],
                [tuple(var.aval.shape) for var in item.values],
            )
        movers[item] = shared[key]
    return Compiled(programs, movers, donated)


def _compile(lowered: Any) -> Any:
    # A worker thread has no ambient mesh, which would not fit the submesh.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lowered.compile()


def _lower(work: Work, shardings: Shardings, donated: tuple[int, ...]) -> Any:
    where = work.submesh
    ins = [shardings[var, where] for var in work.reads]
    outs: list[NamedSharding] = [shardings[var, where] for var in work.writes]
    if work.kind == "start":
        num_totals = len(outs) - len(work.sums)
        outs = outs[:num_totals] + [sharding for sharding in outs[num_totals:] for _ in range(work.count)]
    function = _function(work, shardings)
    function.__name__ = function.__qualname__ = _name(work)
    with _compat.no_mesh(), warnings.catch_warnings():
        # A donation that XLA cannot use is no news to the user: they did not ask for it.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        return jax.jit(
            function,
            in_shardings=tuple(ins),
            out_shardings=list(outs),
            donate_argnums=donated,
            keep_unused=True,
        ).lower(*[abstract(var) for var in work.reads])


def _name(work: Work) -> str:
    segment = work.segment
    if segment is None:
        return f"mm_{work.kind}_{work.submesh}"
    passes = "forward" * segment.forward + "backward" * segment.backward
    return f"mm_{'_'.join(segment.tasks[:1]) or 'glue'}_{work.submesh}_{passes}_{segment.level}"


def _start(work: Work) -> Callable[..., list[Any]]:
    """Zeros for the sums of a loop, then the slices of its batch."""
    totals = [var.aval for var in work.writes[: len(work.writes) - len(work.sums)]]
    position = {var: index for index, var in enumerate(work.reads)}
    picks = [position[stacked] for _, stacked in work.sums]

    def start(*stacks: Any) -> list[Any]:
        zeros = [jnp.zeros(aval.shape, aval.dtype) for aval in totals]
        return zeros + [stacks[pick][k] for pick in picks for k in range(work.count)]

    return start


def _function(work: Work, shardings: Shardings) -> Callable[..., list[Any]]:
    if work.kind == "start":
        return _start(work)
    if work.kind == "whole":
        return shardings.whole_function()
    segment = work.segment
    assert segment is not None
    compute = shardings.function(segment)
    written = {var: index for index, var in enumerate(segment.writes)}
    results = [written[result] for _, result in work.sums]
    kept = [written[var] for var in work.writes[len(results) :]]

    def run(*args: Any) -> list[Any]:
        values: Sequence[Any] = compute(*args[len(results) :])
        totals = [jax.lax.add(total, values[index]) for total, index in zip(args, results, strict=False)]
        return totals + [values[index] for index in kept]

    return run
