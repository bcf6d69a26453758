"""Compile: every program of a step, ahead of time, in parallel, with its borders and donations fixed."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._execution.donation import donations
from mmruntime._execution.transfer import Mover
from mmruntime._jaxpr.equal import layout
from mmruntime._jaxpr.ir import abstract
from mmruntime._partition.instructions import Program, Run, Transfer, Work
from mmruntime._partition.shard import Shardings


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
    slots = [(tuple(var.aval.shape), var.aval.dtype, shardings[var, where]) for var, where, _ in keys]
    donated = donations(program, owned, dict(enumerate(slots)))
    works = list(dict.fromkeys(item.work for item in program.instructions if isinstance(item, Run)))
    programs = _compile_all(works, shardings, donated)
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


def _compile_all(
    works: Sequence[Work], shardings: Shardings, donated: Mapping[Work, tuple[int, ...]]
) -> dict[Work, Any]:
    """Compile each work, those that are equal but for their submesh once."""
    groups: dict[Hashable, list[Work]] = defaultdict(list)
    for work in works:
        groups[_form(work, shardings, donated[work])].append(work)
    programs: dict[Work, Any] = {}
    # Tracing and lowering hold Python's lock; compiling does not. A worker thread has no ambient mesh, which would not
    # fit the submesh. Warnings are for whoever chose to compile: they are switched off here, because the switch is
    # one for all threads. Among them are donations that XLA cannot use, which the user did not ask for.
    with warnings.catch_warnings(), ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        warnings.simplefilter("ignore")

        def start(work: Work, name: str) -> Future[Any]:
            return pool.submit(_lower(work, shardings, donated[work], name).compile)

        # The longest first, so that no processor waits for the last one.
        ordered = sorted(groups.values(), key=lambda group: -_length(group[0]))
        firsts = [(group, start(group[0], _name(group))) for group in ordered]
        rest: list[tuple[Work, Future[Any]]] = []
        for group, future in firsts:
            first, *others = group
            programs[first] = future.result()
            places = [_borders(work, shardings) for work in others]
            copies = _compat.load_elsewhere(programs[first], _borders(first, shardings), places) if others else []
            for work, copy in zip(others, copies, strict=True):
                if copy is None:
                    rest.append((work, start(work, _name([work]))))
                else:
                    programs[work] = copy
        programs |= {work: future.result() for work, future in rest}
    return programs


def _form(work: Work, shardings: Shardings, donated: tuple[int, ...]) -> Hashable:
    """What a work's program is, but for the devices that it runs on."""
    if work.kind == "whole":
        return work
    segment = work.segment
    zeros = tuple(var.aval for var in work.zeros)
    made: Hashable = zeros
    if segment is not None:
        position = {var: index for index, var in enumerate(work.reads)}
        written = {var: index for index, var in enumerate(segment.writes)}
        cut = {var: (position[stacked], layout(shardings[var, work.submesh])) for var, stacked in work.slices}
        made = (
            shardings.form(segment),
            tuple(cut.get(var) or position[var] for var in segment.reads),
            tuple(written[result] for _, result in work.sums),
            tuple(written.get(var) for var in work.writes),
            zeros,
        )
    ins, outs = _borders(work, shardings)
    return made, tuple(map(layout, ins)), tuple(map(layout, outs)), donated


def _length(work: Work) -> int:
    """How many equations a work has, those of calls included."""

    def count(eqns: Iterable[Any]) -> int:
        return sum(1 + sum(count(inner.eqns) for inner in _compat.inner_jaxprs(eqn)) for eqn in eqns)

    return 0 if work.segment is None else count(op.eqn for op in work.segment.ops)


def _borders(work: Work, shardings: Shardings) -> _compat.Borders:
    """The shardings of a work's arguments and results."""
    where = work.submesh
    ins = [shardings[var, where] for var in work.reads]
    outs = [shardings[var, where] for var in work.writes]
    return ins, outs


def _lower(work: Work, shardings: Shardings, donated: tuple[int, ...], name: str) -> Any:
    ins, outs = _borders(work, shardings)
    function = _function(work, shardings)
    function.__name__ = function.__qualname__ = name
    with _compat.no_mesh():
        return jax.jit(
            function,
            in_shardings=tuple(ins),
            out_shardings=list(outs),
            donate_argnums=donated,
            keep_unused=True,
        ).lower(*[abstract(var) for var in work.reads])


def _name(works: Sequence[Work]) -> str:
    """The name of the program of works that are equal, as profilers show it."""
    segments = [work.segment for work in works]
    tasks = [name for segment in segments if segment is not None for name in segment.tasks[:1]]
    places = [str(work.submesh) for work in works]
    return "_".join(["mm", *_ends(tasks), *_ends(places), *_ends(_kind(work) for work in works)])


def _ends(names: Iterable[str]) -> list[str]:
    """A few distinct names, or the first and the last."""
    distinct = list(dict.fromkeys(names))
    return distinct if len(distinct) < 4 else [distinct[0], "to", distinct[-1]]


def _kind(work: Work) -> str:
    segment = work.segment
    if segment is None:
        return work.kind
    passes = "forward" * segment.forward + "backward" * segment.backward
    return passes if segment.tasks else f"glue_{passes}"


def _function(work: Work, shardings: Shardings) -> Callable[..., list[Any]]:
    if work.kind == "whole":
        return shardings.whole_function()
    zeros = [var.aval for var in work.zeros]

    def start() -> list[Any]:
        return [jnp.zeros(aval.shape, aval.dtype) for aval in zeros]

    segment = work.segment
    if segment is None:
        return start
    compute = shardings.function(segment)
    written = {var: index for index, var in enumerate(segment.writes)}
    results = [written[result] for _, result in work.sums]
    kept = [written[var] for var in work.writes[len(results) : len(work.writes) - len(zeros)]]

    def run(*args: Any) -> list[Any]:
        given = dict(zip(work.reads, args, strict=True))
        for piece, stacked in work.slices:
            cut = jax.lax.dynamic_index_in_dim(given[stacked], args[-1], keepdims=False)
            given[piece] = jax.lax.with_sharding_constraint(cut, shardings[piece, work.submesh])
        values: Sequence[Any] = compute(*[given[var] for var in segment.reads])
        totals = [jax.lax.add(total, values[index]) for total, index in zip(args, results, strict=False)]
        return totals + [values[index] for index in kept] + start()

    return run
