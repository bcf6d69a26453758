"""Layouts of a step's inputs that are known before propagation: names in Flax boxes, and small inputs.

Flax keeps logical axis names beside a parameter: linen in a box around it (`nn.with_partitioning`,
`nn.with_logical_partitioning`), nnx in the variable's metadata. Both are pytree nodes in the arguments of a step,
and in the optimizer state that has the structure of the parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from mmruntime._compat import Var
from mmruntime._core.logical_axes import spec_names
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.switches import replicated_below
from mmruntime._core.task import Task
from mmruntime._jaxpr.ir import Step, num_elements
from mmruntime._partition.layouts.mesh_axes import AxisTranslator, Unused
from mmruntime._partition.placement.place import Placement

# flax 0.12 calls it `out_sharding` and warns about its earlier names.
_METADATA = ("out_sharding", "sharding_names", "sharding")


def boxed_names(tree: Any) -> dict[int, PartitionSpec]:
    """The logical axes of arguments that lie in Flax boxes.

    Args:
        tree: The tree structure of the arguments.

    Returns:
        For the position of each such leaf, its names.
    """
    meta, nnx = sys.modules.get("flax.core.meta"), sys.modules.get("flax.nnx")
    kinds = tuple(
        kind for module, name in ((meta, "AxisMetadata"), (nnx, "Variable")) if (kind := getattr(module, name, None))
    )
    if not kinds:
        return {}
    specs: dict[int, PartitionSpec] = {}
    numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
    for box in jax.tree.leaves(numbered, is_leaf=lambda node: isinstance(node, kinds)):
        spec = _names_of(box) if isinstance(box, kinds) else None
        leaves = jax.tree.leaves(box)
        if spec is not None and len(leaves) == 1:
            specs[leaves[0]] = spec
    return specs


def _names_of(box: Any) -> PartitionSpec | None:
    if hasattr(box, "get_partition_spec"):
        spec = box.get_partition_spec()
    else:
        metadata = box.get_metadata()
        spec = next((metadata[key] for key in _METADATA if metadata.get(key) is not None), None)
    if isinstance(spec, NamedSharding):
        spec = spec.spec
    return None if spec is None else PartitionSpec(*spec)


def _is_statistic(
    position: int, names: Mapping[int, PartitionSpec], ranks: Sequence[int], paths: Sequence[Sequence[Any]]
) -> bool:
    """Whether an input is a statistic of a parameter, with fewer dimensions, in a copy of the parameter's box.

    So are the factored second moments of Adafactor: an optimizer maps over the parameters' tree, and keeps the boxes.
    """
    end = tuple(paths[position][-2:])
    return any(
        spec == names[position] and ranks[other] >= len(tuple(spec)) and tuple(paths[other][-2:]) == end
        for other, spec in names.items()
    )


@dataclass(eq=False, slots=True, frozen=True)
class InputLayouts:
    """Layouts of inputs that propagation starts from.

    Attributes:
        layouts: Layouts of inputs, where they live and where they are read.
        names: The logical axes of inputs that carry some.
        unknown_names: Logical names that no pair in force maps, and what carries each first.
        unused_names: Logical names that did not cut their dimension, and why not.
    """

    layouts: Mapping[tuple[Var, int], NamedSharding]
    names: Mapping[Var, PartitionSpec] = field(default_factory=dict)
    unknown_names: Mapping[str, str] = field(default_factory=dict)
    unused_names: Mapping[Unused, str] = field(default_factory=dict)


def lay_out_inputs(
    step: Step,
    placement: Placement,
    multimesh: MultiMesh,
    names: Mapping[int, PartitionSpec],
    paths: Sequence[Sequence[Any]],
    labels: Sequence[str],
    arguments: Mapping[int, NamedSharding],
) -> InputLayouts:
    """The layout of the inputs that carry names, are small, or stay where the caller has them.

    Names are translated as the task does that reads the input there; where only other equations read it (the
    optimizer's), as the submesh's first task.

    Args:
        step: The step.
        placement: Where it runs.
        multimesh: The mesh that it is compiled for.
        names: Logical axes of some inputs, by position.
        paths: The path of each input in the arguments.
        labels: The user's name for each input.
        arguments: Where its arguments lie, by position, if the step follows them.

    Raises:
        ValueError: If an input has more names than dimensions, or a name maps to an axis that does not divide its
            dimension, or that the mesh does not have. The message names the input.
    """
    small = [var for var in step.invars if num_elements(var) < replicated_below()]
    if not names and not small and not arguments:
        return InputLayouts({})
    ranks = [len(var.aval.shape) for var in step.invars]
    carriers = {
        step.invars[
            position
        ]: f"{labels[position]}, of shape {tuple(step.invars[position].aval.shape)}, with the names {tuple(spec)}"
        for position, spec in names.items()
    }
    specs: dict[Var, PartitionSpec] = {}
    statistics: list[Var] = []
    for position, spec in names.items():
        var = step.invars[position]
        if len(tuple(spec)) <= ranks[position]:
            specs[var] = spec
        elif _is_statistic(position, names, ranks, paths):
            statistics.append(var)
        else:
            raise ValueError(
                f"{carriers[var]}, has more names than dimensions. Give it {ranks[position]} where the parameter is "
                f"made, one for each dimension or None. The mesh is {multimesh!r}."
            )
    read: dict[tuple[Var, int], Task | None] = {}
    first: dict[int, Task] = {}
    for op in step.ops():
        for where in placement.of[op]:
            if op.task is not None:
                first.setdefault(where, op.task)
            for var in op.reads():
                if var in specs and read.get((var, where)) is None:
                    read[var, where] = op.task
    for var in specs:
        read.setdefault((var, placement.homes[var]), None)
    translator = AxisTranslator(placement, multimesh)
    layouts: dict[tuple[Var, int], NamedSharding] = {}
    for (var, where), task in read.items():
        logical = spec_names(specs[var], len(var.aval.shape), f"the names of {carriers[var]}")
        layouts[var, where] = translator.input_layout(var, where, logical, task or first.get(where), carriers[var])
    for var in statistics:
        # Shown by `explain()`.
        for dim, entry in enumerate(names[step.invars.index(var)]):
            for name in (entry,) if isinstance(entry, str) else entry or ():
                unused = "(outside of tasks)", name, dim, tuple(var.aval.shape)
                translator.unused[unused] = "dropped: a statistic of a parameter, with fewer dimensions"
    for var in small:
        for where, mesh in enumerate(placement.submeshes.meshes):
            layouts[var, where] = NamedSharding(mesh, PartitionSpec())
    for position, sharding in arguments.items():
        var = step.invars[position]
        layouts[var, placement.homes[var]] = NamedSharding(sharding.mesh, sharding.spec)
    return InputLayouts(layouts, specs, translator.unknown, translator.unused)
