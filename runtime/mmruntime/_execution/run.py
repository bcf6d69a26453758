"""Run: issue a program's instructions, in order, from one thread, without waiting for any of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding

from mmruntime import _compat
from mmruntime._compat import is_var
from mmruntime._execution.compile import Compiled
from mmruntime._execution.host_values import is_shared, on_cpu, own, unshared
from mmruntime._execution.scalars import ScalarPart, Spreader, same_devices
from mmruntime._execution.throttle import throttled
from mmruntime._execution.transfers.own_parts import place
from mmruntime._execution.transfers.transfer import Transport
from mmruntime._jaxpr.ir import Step, is_scalar
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import Program, RunInstruction
from mmruntime._processes.group import Group

# Called after each instruction with its index, its operands, its results, and when it was issued.
Watch = Callable[[int, Sequence[Any], Sequence[Any], float], None]


class StepRunner(Protocol):
    """A compiled step, ready to be called on flat inputs.

    Attributes:
        misplaced: How many inputs the latest call had to move.
        group: The processes that run the step; None if this one does alone.
        calls_wait: Whether the call of a transfer waits for what another process sends.
    """

    misplaced: int
    group: Group | None
    calls_wait: bool

    def __call__(self, inputs: Sequence[Any], /) -> list[Any]:
        """Run the step once; returns as soon as everything is issued."""
        ...

    def run_watched(self, inputs: Sequence[Any], watch: Watch, /) -> list[Any]:
        """Run the step once, calling `watch` after each instruction issued here."""
        ...


class RunnerAround:
    """A runner that does something to the arguments or results of another one."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self.misplaced = 0
        self.group: Group | None = runner.group
        self.calls_wait = runner.calls_wait


class Runner:
    """A compiled step, ready to be called on flat inputs.

    Args:
        step: The step.
        program: Its instructions.
        compiled: Their executables.
        shardings: The layout of each value.
        donated: Positions of the inputs that the caller donates.
    """

    def __init__(
        self,
        step: Step,
        program: Program,
        compiled: Compiled,
        shardings: Shardings,
        donated: Collection[int] = (),
    ) -> None:
        self.group: Group | None = None
        self.calls_wait = False
        self._num_slots = program.num_slots
        # The executable of a whole step places NumPy arrays and numbers by itself, which is cheaper.
        self._takes_host_values = program.whole
        self._code: list[tuple[bool, Any, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = []
        limited = throttled(program, compiled, shardings)
        for item in program.instructions:
            is_run = isinstance(item, RunInstruction)
            if isinstance(item, RunInstruction):
                call = limited.get(item) or compiled.programs[item.spec]
            else:
                call = compiled.sends[item]
            self._code.append((is_run, call, item.args, item.results, item.frees))
        self._transport = compiled.transport
        self._everywhere = shardings.everywhere
        self._loads = _plan_loads(step, program, shardings, compiled.transport)
        self._results = _plan_results(step, program, shardings, compiled.transport, donated)
        self._deletable = deletable(step, program, donated)
        # Positions of the arrays that the latest call had to move.
        self._moved: list[int] = []
        self.misplaced = 0

    # `__call__`, `_load` and `_collect` are the hot path, run for every instruction, argument and result of every step.
    # They are long on purpose: a Python call would cost more than the lines that it replaces.

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the step once; returns as soon as everything is issued."""
        slots = self._load(inputs)
        for is_run, call, args, results, frees in self._code:
            operands = [slots[slot] for slot in args]
            values = call(*operands) if is_run else call(operands)
            # An array is freed with its last reference, which `operands` would hold until the next instruction.
            del operands
            for slot, value in zip(results, values, strict=True):
                slots[slot] = value
            for slot in frees:
                slots[slot] = None
        outputs = self._collect(slots, inputs)
        if self._moved and self._deletable:
            delete_moved(inputs, self._deletable.intersection(self._moved))
        return outputs

    def run_watched(self, inputs: Sequence[Any], watch: Watch) -> list[Any]:
        """Run the step once and call `watch` after each instruction.

        Kept apart from `__call__`, which is the hot loop.
        """
        slots = self._load(inputs)
        for index, (is_run, call, args, results, frees) in enumerate(self._code):
            operands = [slots[slot] for slot in args]
            issued = time.perf_counter()
            values = call(*operands) if is_run else call(operands)
            watch(index, operands, values, issued)
            del operands
            for slot, value in zip(results, values, strict=True):
                slots[slot] = value
            for slot in frees:
                slots[slot] = None
        return self._collect(slots, inputs)

    def _load(self, inputs: Sequence[Any]) -> list[Any]:
        """The slots at the start of a step: inputs and captured arrays, each where its programs read it."""
        loads = self._loads
        slots: list[Any] = [None] * self._num_slots
        late: list[int] = []
        moved: list[int] = []
        arrays: list[Any] = []
        targets: list[Any] = []
        for position, slot, sharding, aval in loads.arrays:
            value = inputs[position]
            placed = getattr(value, "sharding", None)
            if placed == sharding or (placed is None and self._takes_host_values):
                slots[slot] = value
                continue
            moved.append(position)
            if placed is None:
                # `jax.device_put` of a NumPy array costs several times as much.
                slots[slot] = place(value, sharding, aval)
            else:
                late.append(slot)
                arrays.append(value)
                targets.append(sharding)
        misplaced = len(moved)
        self._moved = moved
        for position, aval, places in loads.scalars:
            value = inputs[position]
            placed = getattr(value, "sharding", None)
            if (len(places) == 1 and placed == places[0][1].sharding) or (placed is None and self._takes_host_values):
                slots[places[0][0]] = value
            elif placed == self._everywhere:
                for slot, part in places:
                    slots[slot] = part(value)
            elif placed is None:
                misplaced += 1
                for slot, part in places:
                    slots[slot] = place(value, part.sharding, aval)
            else:
                misplaced += 1
                for slot, part in places:
                    late.append(slot)
                    arrays.append(value)
                    targets.append(part.sharding)
        self.misplaced = misplaced
        if late:
            for slot, value in zip(late, self._transport.put(arrays, targets), strict=True):
                slots[slot] = value
        for slot, value in loads.constants:
            slots[slot] = value
        return slots

    def _collect(self, slots: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """The step's results, once all instructions are issued."""
        results = self._results
        outputs = [
            slots[slot] if slot is not None else known if position is None else inputs[position]
            for slot, position, known in results.sources
        ]
        if results.spread is not None:
            results.spread(slots, outputs.__setitem__)
        if results.copied:
            values = [outputs[index] for index in results.copied]
            layouts = [self._layout(index, value) for index, value in zip(results.copied, values, strict=True)]
            for index, value in zip(results.copied, self._transport.copy(values, layouts), strict=True):
                outputs[index] = value
        return outputs

    def _layout(self, index: int, value: Any) -> Any:
        """The layout of a copied result. An input that no program reads may be a number, or lie anywhere."""
        _, position, sharding = self._results.sources[index]
        if position is not None and (not np.shape(value) or not isinstance(value, jax.Array)):
            return sharding
        return value.sharding


@dataclass(eq=False, slots=True, frozen=True)
class _Loads:
    """How slots are filled before the first instruction.

    Attributes:
        arrays: For each input array that is read: its position, its slot, its layout there, and its shape and type.
        scalars: For each scalar input that is read: its position, its type, and all its slots with what goes there.
        constants: Slots of captured arrays and microbatch numbers, and the arrays.
    """

    arrays: list[tuple[int, int, NamedSharding, Any]]
    scalars: list[tuple[int, Any, list[tuple[int, ScalarPart]]]]
    constants: list[tuple[int, Any]]


def _plan_loads(step: Step, program: Program, shardings: Shardings, transport: Transport) -> _Loads:
    arrays = [
        (position, home[0], shardings[var, home[1]], var.aval)
        for position, (var, home) in enumerate(zip(step.invars, program.inputs, strict=True))
        if home is not None and not is_scalar(var)
    ]
    scalars = [
        (
            position,
            var.aval,
            [
                (slot, ScalarPart(var.aval, shardings.everywhere, shardings[var, where]))
                for slot, where in program.scalars[var]
            ],
        )
        for position, var in enumerate(step.invars)
        if program.scalars.get(var)
    ]
    captured = [
        (slot, step.constants[var], shardings[var, where])
        for var, places in program.constants.items()
        for slot, where in places
    ]
    captured += [(slot, np.uint32(number), shardings.replicated(where)) for slot, where, number in program.numbers]
    placed = transport.put([value for _, value, _ in captured], [sharding for _, _, sharding in captured])
    constants = [(slot, array) for (slot, _, _), array in zip(captured, placed, strict=True)]
    return _Loads(arrays, scalars, constants)


@dataclass(eq=False, slots=True, frozen=True)
class _Results:
    """How the outputs of a step are put together after its last instruction.

    Attributes:
        sources: For each output its slot; or the position of the input that it is, and the layout for values that have
            none; or None twice and the array, known beforehand. The scalar results of `spread` are replaced.
        copied: Outputs that are copied, so that each is an array of its own.
        spread: Puts scalar results on all devices; None if there are none, or they are there already.
    """

    sources: list[tuple[int | None, int | None, Any]]
    copied: list[int]
    spread: Spreader | None


def _plan_results(
    step: Step, program: Program, shardings: Shardings, transport: Transport, donated: Collection[int]
) -> _Results:
    sources: list[tuple[int | None, int | None, Any]] = []
    scattered: list[tuple[int, Any, Any]] = []
    for index, output in enumerate(outputs_of(step, program, shardings)):
        if output.kind == "slot":
            sources.append((output.source, None, None))
        elif output.kind == "spread":
            sources.append((output.source[0][0], None, None))
            scattered.append((index, output.aval, output.source))
        elif output.kind == "input":
            sources.append((None, output.source, output.sharding))
        else:
            # A number that the function returns: code after the step may compute with it in another type.
            is_weak = getattr(output.aval, "weak_type", False)
            value = _compat.of_type(output.source, output.aval) if is_weak else output.source
            sources.append((None, None, transport.put([value], [output.sharding])[0]))
    spread = Spreader(shardings.everywhere, scattered) if scattered else None
    return _Results(sources, copied_outputs(step, donated), spread)


@dataclass(eq=False, slots=True, frozen=True)
class Output:
    """An output of a step, and where it comes from.

    Attributes:
        kind: "slot", "input", "known" beforehand, or a scalar to "spread" over all devices.
        source: The slot; the position of the input; the value; or the slots and layouts where a scalar is.
        aval: Its shape and type.
        sharding: Its layout, as a runner returns it. An input that no program reads stays where it is.
    """

    kind: Literal["slot", "input", "known", "spread"]
    source: Any
    aval: Any
    sharding: NamedSharding


def outputs_of(step: Step, program: Program, shardings: Shardings) -> list[Output]:
    """The outputs of a step, in order."""
    everywhere = shardings.everywhere
    positions = {var: position for position, var in enumerate(step.invars)}
    carried = {result: position for position, result in step.carried.items()}

    def of(index: int, atom: Any, slot: int | None) -> Output:
        position = positions.get(atom) if is_var(atom) else None
        home = None if position is None else program.inputs[position]
        if is_var(atom) and program.scalars.get(atom):
            places = tuple((slot, shardings[atom, where]) for slot, where in program.scalars[atom])
            complete = [slot for slot, sharding in places if same_devices(sharding, everywhere)]
            if complete:
                return Output("slot", complete[0], atom.aval, everywhere)
            return Output("spread", places, atom.aval, everywhere)
        found = slot if slot is not None or home is None else home[0]
        if found is not None:
            var, where, _ = program.keys[found]
            return Output("slot", found, var.aval, shardings[var, where])
        # No program computes it: it lies where the next step reads it, if that is known.
        state = carried.get(index)
        read = None if state is None else program.inputs[state]
        sharding = everywhere if is_scalar(atom) else shardings.replicated(0)
        if state is not None and read is not None and not is_scalar(atom):
            sharding = shardings[step.invars[state], read[1]]
        if position is not None:
            return Output("input", position, atom.aval, sharding)
        value = step.constants[atom] if is_var(atom) else np.asarray(atom.val, atom.aval.dtype)
        return Output("known", value, atom.aval, sharding)

    return [of(index, *each) for index, each in enumerate(zip(step.outvars, program.outputs, strict=True))]


def copied_outputs(step: Step, donated: Collection[int]) -> list[int]:
    """The outputs that are copied: inputs, captured arrays, literals, and what is an output before.

    As in `jax.jit` every result is an array of its own, so that the caller may donate or delete it. Only an input that
    the caller donated is returned as it is.
    """
    positions = {var: position for position, var in enumerate(step.invars)}
    copied: list[int] = []
    seen: set[Any] = set()
    for index, atom in enumerate(step.outvars):
        if not is_var(atom) or atom in seen or atom in step.constants:
            copied.append(index)
            continue
        seen.add(atom)
        # The shards of a scalar are the caller's even if it is donated: programs read them in place.
        if atom in positions and (positions[atom] not in donated or is_scalar(atom)):
            copied.append(index)
    return copied


def deletable(step: Step, program: Program, donated: Collection[int]) -> frozenset[int]:
    """Positions of the inputs that `jax.jit` would delete: donated, read, and as large as a result that has no donor.

    Scalars stay, as their shards are the caller's; and an input that is an output may share its memory with the result.
    """
    room = Counter((var.aval.shape, var.aval.dtype) for var in step.outvars)
    returned = {atom for atom in step.outvars if is_var(atom)}
    found = set()
    for position in sorted(donated):
        var = step.invars[position]
        kind = (var.aval.shape, var.aval.dtype)
        if room[kind] > 0 and program.inputs[position] is not None:
            room[kind] -= 1
            if not is_scalar(var) and var not in returned:
                found.add(position)
    return frozenset(found)


def delete_moved(inputs: Sequence[Any], positions: Iterable[int]) -> None:
    """Delete the caller's donated arrays that the step copied, once everything that reads them is issued.

    The caller counts on that memory, which XLA frees by itself only where the array is a program's own argument.
    An array that the caller passed twice stays.
    """
    for position in positions:
        array = inputs[position]
        if isinstance(array, jax.Array) and sum(other is array for other in inputs) == 1:
            array.delete()


class WholeRunner(Runner):
    """A step that is one program. Repeated calls of it need no Python: see `shortcut`.

    The arguments are those of `Runner`.

    Attributes:
        copies_host_arrays: Whether a call copies arrays of NumPy before the program reads them.
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
        # The inputs that the program reads: position and layout of each.
        self._reads = [
            (position, shardings[var, home[1]])
            for position, (var, home) in enumerate(zip(step.invars, program.inputs, strict=True))
            if home is not None
        ]
        self._all_read = len(self._reads) == len(step.invars)
        # Layouts of arguments that need not be moved. Comparing them with those of the next call is cheap.
        self._fitting: list[Any] = []
        self._captured = [value for _, value in self._loads.constants]
        self._is_read = [home is not None for home in program.inputs]
        # Devices that have done their part do not wait for those that still read an array of the host.
        self.copies_host_arrays = shardings.everywhere.num_devices > 1 and on_cpu(shardings.everywhere)
        # Whether the step's outputs are the program's results, in order.
        plan = self._results
        self._gives_outputs = tuple(slot for slot, _, _ in plan.sources) == results
        self._gives_outputs &= not plan.copied and plan.spread is None

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the step once; returns as soon as it is issued."""
        if self.copies_host_arrays:
            inputs = unshared(inputs, [self._everywhere] * len(inputs))
        operands = inputs if self._all_read else [inputs[position] for position, _ in self._reads]
        if not self._runs_as_is(operands):
            return super().__call__(inputs)
        self.misplaced = 0
        values: list[Any] = self._call(*self._captured, *operands)
        return values

    def with_own_arrays(self, leaves: Sequence[Any]) -> list[Any]:
        """Inputs with copies of those that are arrays of NumPy."""
        return [own(leaf, self._everywhere) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]

    def shortcut(self, inputs: Sequence[Any], outputs: Sequence[Any], out_tree: Any, *, are_own: bool = False) -> Any:
        """How `_compat.dispatcher` runs calls like one that was just run; None if `__call__` does more than that.

        Args:
            inputs: The flat inputs of that call.
            outputs: Its flat outputs.
            out_tree: The tree of the outputs.
            are_own: Whether arrays of the host are `with_own_arrays`, in this call and in those that repeat it.
        """
        operands = [inputs[position] for position, _ in self._reads]
        if not self._runs_as_is(operands):
            return None
        if self.copies_host_arrays and not are_own and any(map(is_shared, operands)):
            return None
        return _compat.shortcut(self._call, self._captured, self._is_read, out_tree, outputs)

    def _runs_as_is(self, operands: Sequence[Any]) -> bool:
        """Whether a call is the program's call: no argument has to be moved, no result to be copied."""
        if not self._gives_outputs:
            return False
        layouts = [getattr(value, "sharding", None) for value in operands]
        if layouts != self._fitting:
            for value, placed, (_, sharding) in zip(operands, layouts, self._reads, strict=True):
                if placed is not None and not placed.is_equivalent_to(sharding, value.ndim):
                    return False
            self._fitting = layouts
        return True
