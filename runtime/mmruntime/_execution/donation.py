"""Donate: which arguments each program may overwrite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping

from mmruntime._compat import is_var
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.pipeline.instructions import Program, ProgramSpec, RunInstruction, TransferInstruction
from mmruntime._partition.placement.place import Placement


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
    for instruction in program.instructions:
        if not isinstance(instruction, RunInstruction):
            continue
        sums = range(len(instruction.spec.sums))
        ending = set(instruction.frees)
        fit = {
            position
            for position, slot in enumerate(instruction.args)
            if position in sums or (slot in ours and slot in ending and instruction.args.count(slot) == 1)
        }
        candidates[instruction.spec] = candidates.get(instruction.spec, fit) & fit
    result = {}
    for instruction in program.instructions:
        if not isinstance(instruction, RunInstruction) or instruction.spec in result:
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
        sends = [item for item in program.instructions if isinstance(item, TransferInstruction)]
        sent.update(slot for item in sends for slot in (*item.args, *item.results))
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
