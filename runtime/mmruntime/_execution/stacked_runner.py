"""Stacks at the border of a step: one global array for the caller, a part of it on each stage for the step.

The global array is sharded over the axis of the stages, so that the shards of each stage are its part. Taking it apart
and putting it together moves no data.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._execution.host_values import unshared
from mmruntime._execution.run import RunnerAround, StepRunner, Watch
from mmruntime._execution.transfers.own_parts import is_global, own_devices, place, processes
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.layouts.shard import Shardings
from mmruntime._partition.pipeline.instructions import Program
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.stacks.cut_stacks import BorderValue, Stacks
from mmruntime._partition.stacks.find_stacks import StackCut


@dataclass(eq=False, slots=True, frozen=True)
class StackLayout:
    """A stack and its parts, as arrays.

    Attributes:
        value: The stack.
        aval: Its shape and type.
        whole: Its layout.
        parts: The layout of each part, on its stage.
        part_shape: The shape of each part.
        shards: For each part, which of this process's shards of the whole are its own.
    """

    value: BorderValue
    aval: Any
    whole: NamedSharding
    parts: tuple[NamedSharding, ...]
    part_shape: tuple[int, ...]
    shards: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(value: BorderValue, part: Any, cut: StackCut, parts: Sequence[NamedSharding], mesh: Mesh) -> StackLayout:
        """The layout of a stack whose parts have equal layouts.

        Args:
            value: The stack.
            part: The variable of its first part.
            cut: How it is cut.
            parts: The layouts of the parts.
            mesh: The mesh of all stages.
        """
        entries = [*parts[0].spec, *[None] * (len(value.shape) - len(parts[0].spec))]
        # The axis of the stages has one entry in a submesh, where it cuts nothing.
        names = [[name for name in _names(entry) if name != cut.axis] for entry in entries]
        names[cut.dim].insert(0, cut.axis)
        spec = [tuple(each) if len(each) > 1 else each[0] if each else None for each in names]
        if cut.reverse:
            devices = np.flip(mesh.devices, mesh.axis_names.index(cut.axis))
            mesh = Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)
        whole = NamedSharding(mesh, PartitionSpec(*spec), memory_kind=parts[0].memory_kind)
        own = own_devices(whole)
        return StackLayout(
            value,
            part.aval.update(shape=value.shape),
            whole,
            tuple(parts),
            cut.part_shape(value.shape),
            tuple(tuple(own.index(device) for device in own_devices(each)) for each in parts),
        )

    def take_apart(self, array: Any) -> list[Any]:
        """The parts of an array that has this layout. No data moves."""
        own = _compat.own_shards(array)
        return [
            _compat.global_array(self.part_shape, array.dtype, sharding, [own[index] for index in shards])
            for sharding, shards in zip(self.parts, self.shards, strict=True)
        ]

    def put_together(self, parts: Sequence[Any]) -> Any:
        """The array of these parts. No data moves, but for parts that are laid out otherwise on their stages."""
        own: dict[int, Any] = {}
        for part, sharding, shards in zip(parts, self.parts, self.shards, strict=True):
            if shards:
                there = part if part.sharding == sharding else jax.device_put(part, sharding)
                own.update(zip(shards, _compat.own_shards(there), strict=True))
        arrays = [own[index] for index in range(len(own))]
        return _compat.global_array(self.value.shape, parts[0].dtype, self.whole, arrays)


def _names(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


@dataclass(eq=False, slots=True, frozen=True)
class StackLayouts:
    """The layouts of the stacks among the arguments and results of a step.

    Attributes:
        stacks: What is cut.
        inputs: The layouts of stacks by their position among the arguments.
        outputs: The same among the results.
        names: The user's names for the arguments.
    """

    stacks: Stacks
    inputs: Mapping[int, StackLayout]
    outputs: Mapping[int, StackLayout]
    names: Sequence[str]

    def of_arguments(self, layouts: Sequence[NamedSharding]) -> list[NamedSharding]:
        """The layout of each argument, given those of the step on parts."""
        return [
            self.inputs[position].whole if position in self.inputs else layouts[value.position]
            for position, value in enumerate(self.stacks.inputs)
        ]

    def of_results(self, layouts: Sequence[NamedSharding]) -> list[NamedSharding]:
        """The layout of each result, given those of the step on parts."""
        return [
            self.outputs[position].whole if position in self.outputs else layouts[value.position]
            for position, value in enumerate(self.stacks.outputs)
        ]

    def moved(self, inputs: Sequence[Any]) -> list[int]:
        """Positions of the stacks that are not where the step wants them."""
        return [
            position
            for position, layout in self.inputs.items()
            if getattr(inputs[position], "sharding", None) != layout.whole
        ]

    def parts_of(self, position: int, value: Any) -> list[Any]:
        """What the step on parts takes for an argument."""
        layout = self.inputs.get(position)
        return [value] if layout is None else layout.take_apart(self._placed(position, value, layout))

    def _placed(self, position: int, value: Any, layout: StackLayout) -> Any:
        """A stack where the step reads it."""
        if getattr(value, "sharding", None) == layout.whole:
            return value
        if processes(layout.whole.mesh) == (jax.process_index(),):
            return jax.device_put(unshared([value], [layout.whole])[0], layout.whole)
        if not is_global(value):
            return place(value, layout.whole, layout.aval)
        if value.sharding.device_set == layout.whole.device_set:
            return jax.device_put(value, layout.whole)
        raise ValueError(
            f"mjit: {self.names[position]} lies on {len(value.sharding.device_set)} devices, and the step reads it "
            f"from {len(layout.whole.device_set)}, where each stage has its own layers. Restore or make it as "
            "step.abstract_args() says, or pass the same NumPy array in every process."
        )


def lay_out_stacks(
    stacks: Stacks,
    names: Sequence[str],
    step: Step,
    placement: Placement,
    program: Program,
    shardings: Shardings,
    mesh: Mesh,
) -> StackLayouts:
    """Decide the layout of each stack, by that of its first part.

    Args:
        stacks: What is cut.
        names: The user's names for the arguments.
        step: The step on parts.
        placement: Where it runs.
        program: Its instructions.
        shardings: The layout of each value.
        mesh: The mesh of all stages.
    """
    inputs: dict[int, StackLayout] = {}
    for position, value in enumerate(stacks.inputs):
        if value.cut is not None:
            variables = [step.invars[part] for part in value.positions]
            parts = [shardings[var, placement.homes[var]] for var in variables]
            inputs[position] = StackLayout.of(value, variables[0], value.cut, parts, mesh)
    carried = {result: position for position, result in step.carried.items()}
    by_part = {layout.value.position: layout for layout in inputs.values()}
    outputs: dict[int, StackLayout] = {}
    for position, value in enumerate(stacks.outputs):
        if value.cut is None:
            continue
        first = value.position
        if first in carried:
            outputs[position] = by_part[carried[first]]
            continue
        made = []
        for part in value.positions:
            slot = program.outputs[part]
            assert slot is not None, "a result that is no state is a copy, which a program makes"
            made.append(shardings[step.outvars[part], program.keys[slot][1]])
        alike = [NamedSharding(each.mesh, made[0].spec, memory_kind=made[0].memory_kind) for each in made]
        outputs[position] = StackLayout.of(value, step.outvars[first], value.cut, alike, mesh)
    return StackLayouts(stacks, inputs, outputs, names)


class StackedRunner(RunnerAround):
    """A step on parts of stacks, ready to be called on the stacks.

    Args:
        runner: The step on parts.
        layouts: The layouts of the stacks.
        donated: Positions of the arguments that the caller donates.
    """

    def __init__(self, runner: StepRunner, layouts: StackLayouts, donated: Collection[int]) -> None:
        super().__init__(runner)
        self._layouts = layouts
        self._donated = frozenset(donated)
        # The parts of results, by identity, as long as these live: the next step most likely reads them.
        self._known: dict[int, tuple[weakref.ref[Any], StackLayout, list[Any]]] = {}

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the step once; returns as soon as everything is issued."""
        moved = self._layouts.moved(inputs)
        outputs = self._wholes(self._runner(self._parts(inputs)))
        self.misplaced = self._runner.misplaced + len(moved)
        for position in self._donated.intersection(moved):
            self._delete(inputs, position)
        return outputs

    def run_watched(self, inputs: Sequence[Any], watch: Watch) -> list[Any]:
        """Run the step once, calling `watch` after each instruction."""
        return self._wholes(self._runner.run_watched(self._parts(inputs), watch))

    def _parts(self, inputs: Sequence[Any]) -> list[Any]:
        """The arguments of the step on parts; parts of an earlier result need not be made again."""
        found: list[Any] = []
        for position, value in enumerate(inputs):
            known = self._known.get(id(value))
            if known is not None and known[0]() is value and known[1] is self._layouts.inputs.get(position):
                found += known[2]
            else:
                found += self._layouts.parts_of(position, value)
        return found

    def _wholes(self, outputs: Sequence[Any]) -> list[Any]:
        """The results of the step, from those of the step on parts."""
        found: list[Any] = []
        for position, value in enumerate(self._layouts.stacks.outputs):
            layout = self._layouts.outputs.get(position)
            if layout is None:
                found.append(outputs[value.position])
                continue
            parts = [outputs[part] for part in value.positions]
            array = layout.put_together(parts)
            found.append(array)
            if all(part.sharding == sharding for part, sharding in zip(parts, layout.parts, strict=True)):
                key = id(array)
                self._known[key] = weakref.ref(array, functools.partial(self._forget, key)), layout, parts
        return found

    def _forget(self, key: int, _: Any) -> None:
        self._known.pop(key, None)

    def _delete(self, inputs: Sequence[Any], position: int) -> None:
        """Delete a donated stack that the step copied; an array that the caller passed twice stays."""
        array, layout = inputs[position], self._layouts.inputs[position]
        if not isinstance(array, jax.Array) or sum(other is array for other in inputs) > 1:
            return
        # An array of the same layout by another name was not copied.
        if not array.sharding.is_equivalent_to(layout.whole, array.ndim):
            array.delete()
