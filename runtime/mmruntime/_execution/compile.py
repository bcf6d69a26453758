"""Compile: every program of a step, ahead of time and in parallel, with its layouts and donations."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._compat import is_var
from mmruntime._core import progress
from mmruntime._execution.program_cache import KeptPrograms, read_program, write_program
from mmruntime._execution.transfers.own_parts import processes
from mmruntime._execution.transfers.parcels import LARGEST_WITNESS
from mmruntime._execution.transfers.transfer import DevicePutTransport, Send, TransferSpec, Transport
from mmruntime._jaxpr.canonical_forms import layout
from mmruntime._jaxpr.ir import Step, abstract
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import Program, ProgramSpec, TransferInstruction
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segment


@dataclass(eq=False, slots=True, frozen=True)
class Compiled:
    """The executables of a program.

    Attributes:
        programs: The executable of each program that this process takes part in.
        sends: The function that issues each transfer instruction that it takes part in.
        donated: Positions of the arguments that each executable overwrites.
        transport: How arrays move that no program computes.
    """

    programs: dict[ProgramSpec, Any]
    sends: dict[TransferInstruction, Send]
    donated: dict[ProgramSpec, tuple[int, ...]]
    transport: Transport


def compile_program(
    program: Program, shardings: Shardings, owned: Iterable[int] | None, transport: Transport | None = None
) -> Compiled:
    """Compile all that a program runs and plan its transfers.

    Args:
        program: The instructions.
        shardings: The layout of each value.
        owned: Slots whose arrays may be overwritten once nobody reads them; None if no program overwrites anything.
        transport: How arrays move; within this process if left out.
    """
    keys = program.keys
    slots = [(tuple(var.aval.shape), var.aval.dtype, shardings[var, where]) for var, where, _ in keys]
    # What comes from another process tells the watch that it has come. Where it is small, it stays for that.
    owners = {where: processes(shardings.replicated(where).mesh) for where in dict.fromkeys(key[1] for key in keys)}
    watched = {
        slot
        for item in program.transfers
        if len({*owners[item.source], *owners[item.target]}) > 1
        for slot in item.results
        if _shard_bytes(*slots[slot]) <= LARGEST_WITNESS
    }
    runs = program.runs
    if owned is None:
        donated: dict[ProgramSpec, tuple[int, ...]] = dict.fromkeys((item.spec for item in runs), ())
    else:
        donated = donations(program, set(owned) - watched, dict(enumerate(slots)))
    transport = DevicePutTransport() if transport is None else transport
    here: dict[int, bool] = {}
    for _, where, _ in keys:
        if where not in here:
            here[where] = transport.takes_part(shardings.replicated(where).mesh)
    specs = [spec for spec in dict.fromkeys(item.spec for item in runs) if here.get(spec.submesh, True)]
    programs = _compile_all(specs, shardings, donated)
    return Compiled(programs, _bind_transfers(program, shardings, transport, here, donated), donated, transport)


def _shard_bytes(shape: tuple[int, ...], dtype: Any, layout: Any) -> int:
    return int(np.prod(layout.shard_shape(shape), dtype=np.int64) * dtype.itemsize)


def _bind_transfers(
    program: Program,
    shardings: Shardings,
    transport: Transport,
    here: Mapping[int, bool],
    donated: Mapping[ProgramSpec, tuple[int, ...]],
) -> dict[TransferInstruction, Send]:
    overwritten = {item.args[position] for item in program.runs for position in donated[item.spec]}
    # The caller has these, or will, and may delete them.
    shared = {slot for slot in program.outputs if slot is not None}
    shared |= {place[0] for place in program.inputs if place is not None}
    shared |= {slot for places in (*program.constants.values(), *program.scalars.values()) for slot, _ in places}
    lost = overwritten | shared
    specs: dict[Hashable, TransferSpec] = {}
    sends: dict[TransferInstruction, Send] = {}
    for item in program.transfers:
        if not (here[item.source] or here[item.target]):
            continue
        # The transfers of one value's microbatches have one spec.
        intact, kept = [tuple([slot not in lost for slot in found]) for found in (item.args, item.results)]
        key = (item.source, item.target, tuple(item.values), intact, kept)
        if key not in specs:
            specs[key] = TransferSpec(
                tuple(var.aval for var in item.values),
                tuple(shardings[var, item.source] for var in item.values),
                tuple(shardings[var, item.target] for var in item.values),
                intact,
                kept,
            )
        sends[item] = transport.bind(specs[key])
    return sends


def _compile_all(
    specs: Sequence[ProgramSpec], shardings: Shardings, donated: Mapping[ProgramSpec, tuple[int, ...]]
) -> dict[ProgramSpec, Any]:
    """Compile each program once; programs that differ in their submesh alone share it."""
    groups: dict[Hashable, list[ProgramSpec]] = defaultdict(list)
    for spec in specs:
        groups[_form(spec, shardings, donated[spec], shardings.form)].append(spec)
    programs: dict[ProgramSpec, Any] = {}
    lowest, folder = _compat.lowest_time_kept(), _compat.own_cache()
    kept = None if lowest is None or folder is None else KeptPrograms(folder)
    # XLA compiles without the GIL, so threads are enough; tracing and lowering hold it and stay in this one. A worker
    # thread has no ambient mesh, which JAX would compare with the submesh and refuse. Warnings are switched off out
    # here because Python's filters are global to all threads. The one that matters is JAX's about donations that XLA
    # cannot use: these donations are ours, not the user's.
    with warnings.catch_warnings(), ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        warnings.simplefilter("ignore")

        def start(spec: ProgramSpec, name: str, path: Path | None) -> Future[Any]:
            lowered = _lower(spec, shardings, donated[spec], name)
            return pool.submit(_compile, lowered, path, _borders(spec, shardings), lowest or 0.0)

        # The longest first (the LPT rule of list scheduling), so that no core ends with a long one alone.
        ordered = sorted(groups.values(), key=lambda group: -_length(group[0]))
        one_more = progress.counted("compiling", len(ordered), "program")
        firsts: list[tuple[list[ProgramSpec], Path | None, Future[Any]]] = []
        for group in ordered:
            first, borders = group[0], _borders(group[0], shardings)
            path = None if kept is None else _path(first, shardings, donated[first], _name(group), kept)
            if path is not None and path.is_file():
                firsts.append((group, path, pool.submit(read_program, path, borders)))
            else:
                firsts.append((group, path, start(first, _name(group), path)))
            firsts[-1][2].add_done_callback(lambda _: one_more())
        rest: list[tuple[ProgramSpec, Future[Any]]] = []
        for group, path, future in firsts:
            first, *others = group
            # What is kept but cannot be loaded is compiled after all.
            compiled = future.result() or start(first, _name(group), path).result()
            programs[first] = compiled.executable
            places = [_borders(spec, shardings) for spec in others]
            copies = _compat.load_elsewhere(compiled, _borders(first, shardings), places) if others else []
            for spec, copy in zip(others, copies, strict=True):
                if copy is None:
                    rest.append((spec, start(spec, _name([spec]), None)))
                else:
                    programs[spec] = copy
        programs |= {spec: future.result().executable for spec, future in rest}
    return programs


def _compile(lowered: Any, path: Path | None, borders: _compat.Borders, lowest: float) -> _compat.CompiledProgram:
    """Compile a lowered program, and keep it if it has a path and takes as long as JAX keeps programs from."""
    started = time.perf_counter()
    compiled = _compat.compile_lowered(lowered)
    if path is not None and time.perf_counter() - started >= lowest:
        write_program(path, compiled, borders)
    return compiled


def _path(
    spec: ProgramSpec, shardings: Shardings, donated: tuple[int, ...], name: str, kept: KeptPrograms
) -> Path | None:
    """The file that keeps a program, by all that `_lower` reads; None if it is not kept."""
    # The function of a whole step has no form.
    if spec.kind == "whole":
        return None
    if spec.segment is not None and shardings.digest(spec.segment) is None:
        return None
    types = [tuple(var.aval for var in variables) for variables in (spec.reads, spec.writes)]
    form = _form(spec, shardings, donated, shardings.digest)
    return kept.path_of((name, spec.kind, form, tuple(types)), _borders(spec, shardings))


def _form(
    spec: ProgramSpec,
    shardings: Shardings,
    donated: tuple[int, ...],
    body: Callable[[Segment], Hashable],
) -> Hashable:
    """What a program computes and how its borders are laid out, but for the devices that it runs on.

    Args:
        spec: The program.
        shardings: The layout of each value.
        donated: Positions of the arguments that it overwrites.
        body: Says what a segment computes.
    """
    if spec.kind == "whole":
        return spec
    segment = spec.segment
    zeros = tuple(var.aval for var in spec.zeros)
    made: Hashable = zeros
    if segment is not None:
        position = {var: index for index, var in enumerate(spec.reads)}
        written = {var: index for index, var in enumerate(segment.writes)}
        cut = {var: (position[stacked], layout(shardings[var, spec.submesh])) for var, stacked in spec.slices}
        made = (
            body(segment),
            tuple(cut.get(var) or position[var] for var in segment.reads),
            tuple((written[result], total.aval.dtype) for total, result in spec.sums),
            tuple(written.get(var) for var in spec.writes),
            zeros,
        )
    ins, outs = _borders(spec, shardings)
    return made, tuple(map(layout, ins)), tuple(map(layout, outs)), donated


def _length(spec: ProgramSpec) -> int:
    """How many equations a program has, those inside of calls included: a guess at how long XLA compiles it."""
    ops = () if spec.segment is None else spec.segment.ops
    return sum(1 for _ in _compat.every_equation(op.eqn for op in ops))


def _borders(spec: ProgramSpec, shardings: Shardings) -> _compat.Borders:
    """The shardings of a program's arguments and results."""
    where = spec.submesh
    ins = [shardings[var, where] for var in spec.reads]
    outs = [shardings[var, where] for var in spec.writes]
    return ins, outs


def _lower(spec: ProgramSpec, shardings: Shardings, donated: tuple[int, ...], name: str) -> Any:
    ins, outs = _borders(spec, shardings)
    function = _function(spec, shardings)
    function.__name__ = function.__qualname__ = name
    with _compat.no_mesh():
        return jax.jit(
            function,
            in_shardings=tuple(ins),
            out_shardings=list(outs),
            donate_argnums=donated,
            # Else JAX drops arguments that the program does not use, and their positions shift.
            keep_unused=True,
        ).lower(*[abstract(var) for var in spec.reads])


def _name(specs: Sequence[ProgramSpec]) -> str:
    """The name that profilers show for a program which serves equal specs."""
    segments = [spec.segment for spec in specs]
    tasks = [name for segment in segments if segment is not None for name in segment.tasks[:1]]
    places = [str(spec.submesh) for spec in specs]
    return "_".join(["mm", *_ends(tasks), *_ends(places), *_ends(_kind(spec) for spec in specs)])


def _ends(names: Iterable[str]) -> list[str]:
    """The distinct names, or the first and the last where there are many."""
    distinct = list(dict.fromkeys(names))
    return distinct if len(distinct) < 4 else [distinct[0], "to", distinct[-1]]


def _kind(spec: ProgramSpec) -> str:
    segment = spec.segment
    if segment is None:
        return spec.kind
    passes = "forward" * segment.forward + "backward" * segment.backward
    return passes if segment.tasks else f"glue_{passes}"


def _function(spec: ProgramSpec, shardings: Shardings) -> Callable[..., list[Any]]:
    if spec.kind == "whole":
        return shardings.whole_function()
    zeros = [var.aval for var in spec.zeros]

    def start() -> list[Any]:
        return [jnp.zeros(aval.shape, aval.dtype) for aval in zeros]

    segment = spec.segment
    if segment is None:
        return start
    compute = shardings.function(segment)
    written = {var: index for index, var in enumerate(segment.writes)}
    results = [written[result] for _, result in spec.sums]
    kept = [written[var] for var in spec.writes[len(results) : len(spec.writes) - len(zeros)]]

    def run(*args: Any) -> list[Any]:
        values_of = dict(zip(spec.reads, args, strict=True))
        for piece, stacked in spec.slices:
            cut = jax.lax.dynamic_index_in_dim(values_of[stacked], args[-1], keepdims=False)
            # XLA chooses layouts inside of a program; the segment was planned for this one.
            values_of[piece] = jax.lax.with_sharding_constraint(cut, shardings[piece, spec.submesh])
        values: Sequence[Any] = compute(*[values_of[var] for var in segment.reads])
        # The totals are the first arguments and donated, so that XLA adds in place.
        pairs = zip(args, results, strict=False)
        totals = [jax.lax.add(total, values[index].astype(total.dtype)) for total, index in pairs]
        return totals + [values[index] for index in kept] + start()

    return run


def donations(
    program: Program, owned: Iterable[int], shape_of: Mapping[int, Hashable]
) -> dict[ProgramSpec, tuple[int, ...]]:
    """Which arguments each program may overwrite.

    An argument is donated if, in every run of the program, the runtime owns it, no later instruction reads it, and a
    result of the same shape, type and layout can take its memory. XLA aliases nothing else: donating more would delete
    arrays without saving memory (https://docs.jax.dev/en/latest/buffer_donation.html).

    Args:
        program: The instructions.
        owned: Slots whose arrays the runtime made or the user donated; see `owned_slots`.
        shape_of: Shape, type and layout of each slot.

    Returns:
        Positions of the donated arguments.
    """
    ours = set(owned)
    state = {place[0] for place in program.inputs if place is not None}
    candidates: dict[ProgramSpec, set[int]] = {}
    for instruction in program.runs:
        sums = range(len(instruction.spec.sums))
        ending = set(instruction.frees)
        fit = {
            position
            for position, slot in enumerate(instruction.args)
            if position in sums or (slot in ours and slot in ending and instruction.args.count(slot) == 1)
        }
        candidates[instruction.spec] = candidates.get(instruction.spec, fit) & fit
    result = {}
    for instruction in program.runs:
        if instruction.spec in result:
            continue
        room = Counter(shape_of[slot] for slot in instruction.results)
        chosen = []
        num_sums = len(instruction.spec.sums)
        # Sums are added to in place; then donated state is updated in place, rather than written over a temporary.
        order = sorted(candidates[instruction.spec], key=lambda p: (p >= num_sums, instruction.args[p] not in state, p))
        for position in order:
            shape = shape_of[instruction.args[position]]
            if room[shape] > 0:
                room[shape] -= 1
                chosen.append(position)
        result[instruction.spec] = tuple(sorted(chosen))
    return result


def owned_slots(step: Step, placement: Placement, program: Program, donated: Container[int]) -> set[int]:
    """Slots whose arrays the runtime may overwrite: those that it made, and inputs that the user donated."""
    sent: set[int] = set()
    if not placement.submeshes.disjoint():
        # `jax.device_put` to the device that holds a shard returns the same buffer, so arrays of overlapping submeshes
        # may share memory: arguments that are loaded to several, and what is sent. Where arguments are read as the
        # caller has them, no two of them do.
        if not placement.followed:
            return set()
        sent.update(slot for item in program.transfers for slot in (*item.args, *item.results))
    inputs = {place[0]: position for position, place in enumerate(program.inputs) if place is not None}
    constants = {slot for places in program.constants.values() for slot, _ in places}
    # A scalar's slots are shards of one array of the caller's; see `scalars.ScalarPart`.
    constants |= {slot for var in step.invars for slot, _ in program.scalars.get(var, ())}
    constants |= {slot for slot, _, _ in program.numbers}
    returned = {atom for atom in step.outvars if is_var(atom)}
    return {
        slot
        for slot in range(program.num_slots)
        if slot not in constants
        and slot not in sent
        and (slot not in inputs or (inputs[slot] in donated and step.invars[inputs[slot]] not in returned))
    }
