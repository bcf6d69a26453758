"""Run: issue a program's instructions, in order, from one thread, without waiting for any of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from mmruntime import _compat
from mmruntime._compat import is_var
from mmruntime._execution.compile import Compiled
from mmruntime._execution.scalars import Spreader, part, same_devices
from mmruntime._jaxpr.ir import Step, is_scalar
from mmruntime._partition.instructions import Program, RunInstruction
from mmruntime._partition.shard import Shardings


class Runner:
    """A compiled step, ready to be called on flat inputs.

    Args:
        step: The step.
        program: Its instructions.
        compiled: Their executables.
        shardings: The layout of each value.
        donated: Positions of the inputs that the caller gives up.
    """

    def __init__(
        self,
        step: Step,
        program: Program,
        compiled: Compiled,
        shardings: Shardings,
        donated: Collection[int] = (),
    ) -> None:
        self._num_slots = program.num_slots
        # The one program of a whole step puts numpy arrays and numbers where they go by itself, which is cheaper.
        self._takes_host_values = program.whole
        self._code: list[tuple[bool, Any, list[int], list[int], list[int]]] = []
        for item in program.instructions:
            is_run = isinstance(item, RunInstruction)
            call = compiled.programs[item.spec] if isinstance(item, RunInstruction) else compiled.movers[item]
            self._code.append((is_run, call, item.args, item.results, item.frees))
        self._everywhere = everywhere = shardings.everywhere
        self._inputs = [
            (position, place[0], shardings[var, place[1]])
            for position, (var, place) in enumerate(zip(step.invars, program.inputs, strict=True))
            if place is not None and not is_scalar(var)
        ]
        self._scalars = [
            (position, [(slot, shardings[var, where]) for slot, where in program.scalars[var]])
            for position, var in enumerate(step.invars)
            if program.scalars.get(var)
        ]
        self._constants = [
            (slot, jax.device_put(step.constants[var], shardings[var, where]))
            for var, places in program.constants.items()
            for slot, where in places
        ]
        self._constants += [
            (slot, jax.device_put(np.uint32(number), shardings.replicated(where)))
            for slot, where, number in program.numbers
        ]
        positions = {var: position for position, var in enumerate(step.invars)}
        carried = {result: position for position, result in step.carried.items()}
        # As in jax.jit every result is an array of its own, so that the caller may donate or delete it. Only what the
        # caller gave up, a donated input, is handed through as it is.
        self._copied: list[int] = []
        seen: set[Any] = set()
        for index, atom in enumerate(step.outvars):
            if not is_var(atom) or atom in seen or atom in step.constants:
                self._copied.append(index)
                continue
            seen.add(atom)
            # The copies of a scalar that was read are the caller's even if it is donated.
            if atom in positions and (positions[atom] not in donated or is_scalar(atom)):
                self._copied.append(index)
        # An output is a slot, an input handed through, or a value known beforehand.
        self._outputs: list[tuple[int | None, int | None, Any]] = []
        spread: list[tuple[int, list[tuple[int, NamedSharding]]]] = []
        for index, (atom, slot) in enumerate(zip(step.outvars, program.outputs, strict=True)):
            if is_var(atom) and program.scalars.get(atom):
                places = [(slot, shardings[atom, where]) for slot, where in program.scalars[atom]]
                whole = [slot for slot, sharding in places if same_devices(sharding, everywhere)]
                self._outputs.append((whole[0] if whole else places[0][0], None, None))
                if not whole:
                    spread.append((index, places))
                continue
            if slot is not None:
                self._outputs.append((slot, None, None))
                continue
            if is_var(atom) and atom in positions and (place := program.inputs[positions[atom]]) is not None:
                self._outputs.append((place[0], None, None))
                continue
            home = program.inputs[carried[index]] if index in carried else None
            sharding = shardings.replicated(0) if home is None else shardings[step.invars[carried[index]], home[1]]
            if is_scalar(atom):
                sharding = everywhere
            if is_var(atom) and atom in positions:
                self._outputs.append((None, positions[atom], sharding))
                continue
            value = step.constants[atom] if is_var(atom) else np.asarray(atom.val, atom.aval.dtype)
            self._outputs.append((None, None, jax.device_put(value, sharding)))
        self._spread = Spreader(everywhere, spread) if spread else None
        self._given_up = _given_up(step, program, donated)
        # Positions of the arrays that the latest call had to move.
        self._moved: list[int] = []
        self.misplaced = 0

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the step once; returns as soon as everything is issued."""
        slots = self._load(inputs)
        for is_run, call, args, results, frees in self._code:
            operands = [slots[slot] for slot in args]
            values = call(*operands) if is_run else call(operands)
            del operands
            for slot, value in zip(results, values, strict=True):
                slots[slot] = value
            for slot in frees:
                slots[slot] = None
        outputs = self._collect(slots, inputs)
        if self._moved and self._given_up:
            self._delete_moved(inputs)
        return outputs

    def run_watched(self, inputs: Sequence[Any], watch: Callable[[int, Sequence[Any], float], None]) -> list[Any]:
        """Run the step once and call `watch(instruction index, results, time of issue)` after each instruction.

        Kept apart from `__call__`, which is the hot loop.
        """
        slots = self._load(inputs)
        for index, (is_run, call, args, results, frees) in enumerate(self._code):
            operands = [slots[slot] for slot in args]
            issued = time.perf_counter()
            values = call(*operands) if is_run else call(operands)
            del operands
            watch(index, values, issued)
            for slot, value in zip(results, values, strict=True):
                slots[slot] = value
            for slot in frees:
                slots[slot] = None
        return self._collect(slots, inputs)

    def _load(self, inputs: Sequence[Any]) -> list[Any]:
        """The slots with the inputs and captured arrays in them, each where it is wanted."""
        slots: list[Any] = [None] * self._num_slots
        late: list[int] = []
        moved: list[int] = []
        arrays: list[Any] = []
        targets: list[Any] = []
        for position, slot, sharding in self._inputs:
            value = inputs[position]
            placed = getattr(value, "sharding", None)
            if placed == sharding or (placed is None and self._takes_host_values):
                slots[slot] = value
            else:
                late.append(slot)
                arrays.append(value)
                targets.append(sharding)
                moved.append(position)
        misplaced = len(late)
        self._moved = moved
        for position, places in self._scalars:
            value = inputs[position]
            placed = getattr(value, "sharding", None)
            if (len(places) == 1 and placed == places[0][1]) or (placed is None and self._takes_host_values):
                slots[places[0][0]] = value
            elif placed == self._everywhere:
                for slot, sharding in places:
                    slots[slot] = part(value, sharding)
            else:
                misplaced += 1
                for slot, sharding in places:
                    late.append(slot)
                    arrays.append(value)
                    targets.append(sharding)
        self.misplaced = misplaced
        if late:
            for slot, value in zip(late, jax.device_put(arrays, targets), strict=True):
                slots[slot] = value
        for slot, value in self._constants:
            slots[slot] = value
        return slots

    def _collect(self, slots: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        outputs = [
            slots[slot] if slot is not None else known if position is None else inputs[position]
            for slot, position, known in self._outputs
        ]
        if self._spread is not None:
            self._spread(slots, outputs.__setitem__)
        if self._copied:
            values = [outputs[index] for index in self._copied]
            layouts = [self._layout(index, value) for index, value in zip(self._copied, values, strict=True)]
            for index, value in zip(self._copied, jax.device_put(values, layouts, may_alias=False), strict=True):
                outputs[index] = value
        return outputs

    def _delete_moved(self, inputs: Sequence[Any]) -> None:
        """Delete the caller's donated arrays of which the step took copies, once everything that reads them is issued.

        An array that the caller passed twice stays.
        """
        for position in self._given_up.intersection(self._moved):
            array = inputs[position]
            if isinstance(array, jax.Array) and sum(other is array for other in inputs) == 1:
                array.delete()

    def _layout(self, index: int, value: Any) -> Any:
        """How a copied result is laid out: an input that nothing reads may be a number, or anywhere."""
        _, position, wanted = self._outputs[index]
        if position is not None and (not np.shape(value) or not isinstance(value, jax.Array)):
            return wanted
        return value.sharding


def _given_up(step: Step, program: Program, donated: Collection[int]) -> frozenset[int]:
    """Positions of the inputs that `jax.jit` would delete: donated, read, and as large as a result that is left.

    Scalars stay, as their copies are the caller's; and what is handed through may share its memory with the result.
    """
    room = Counter((var.aval.shape, var.aval.dtype) for var in step.outvars)
    handed_through = {atom for atom in step.outvars if is_var(atom)}
    found = set()
    for position in sorted(donated):
        var = step.invars[position]
        kind = (var.aval.shape, var.aval.dtype)
        if room[kind] > 0 and program.inputs[position] is not None:
            room[kind] -= 1
            if not is_scalar(var) and var not in handed_through:
                found.add(position)
    return frozenset(found)


class WholeRunner(Runner):
    """A step that is one program. Repeated calls of it need no Python: see `shortcut`.

    The arguments are those of `Runner`.
    """

    def __init__(
        self,
        step: Step,
        program: Program,
        compiled: Compiled,
        shardings: Shardings,
        donated: Collection[int] = (),
    ) -> None:
        super().__init__(step, program, compiled, shardings, donated)
        ((_, self._call, _, results, _),) = self._code
        self._wanted = [
            (position, shardings[var, place[1]])
            for position, (var, place) in enumerate(zip(step.invars, program.inputs, strict=True))
            if place is not None
        ]
        self._all_read = len(self._wanted) == len(step.invars)
        # Layouts of arguments that need not be moved, compared with those of the next call.
        self._fitting: list[Any] = []
        self._captured = [value for _, value in self._constants]
        self._read = [place is not None for place in program.inputs]
        # Whether the outputs are what the program gives, in order.
        self._gives_outputs = [slot for slot, _, _ in self._outputs] == results
        self._gives_outputs &= not self._copied and self._spread is None

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the step once; returns as soon as it is issued."""
        operands = inputs if self._all_read else [inputs[position] for position, _ in self._wanted]
        if not self._runs_as_is(operands):
            return super().__call__(inputs)
        self.misplaced = 0
        values: list[Any] = self._call(*self._captured, *operands)
        return values

    def shortcut(self, inputs: Sequence[Any], outputs: Sequence[Any], out_tree: Any) -> Any:
        """How `_compat.dispatcher` runs calls like one that was just run; None if `__call__` does more than that.

        Args:
            inputs: What it was called with.
            outputs: What it gave.
            out_tree: The tree of that.
        """
        if not self._runs_as_is([inputs[position] for position, _ in self._wanted]):
            return None
        return _compat.shortcut(self._call, self._captured, self._read, out_tree, outputs)

    def _runs_as_is(self, operands: Sequence[Any]) -> bool:
        """Whether arguments need not be moved, and what the program makes of them is what the caller gets."""
        if not self._gives_outputs:
            return False
        layouts = [getattr(value, "sharding", None) for value in operands]
        if layouts != self._fitting:
            for value, placed, (_, wanted) in zip(operands, layouts, self._wanted, strict=True):
                if placed is not None and not placed.is_equivalent_to(wanted, value.ndim):
                    return False
            self._fitting = layouts
        return True
