"""Where the parts of stacks come to lie: each on its stage, laid out as the others; and what is said if not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jax.sharding import NamedSharding

from mmruntime._compat import Var
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.warn import warn
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.layouts.shard import Held, Shardings
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.stacks.cut_stacks import Stacks
from mmruntime._partition.stacks.find_stacks import WholeStack


def astray_stacks(stacks: Stacks, step: Step, placement: Placement, multimesh: MultiMesh) -> set[int]:
    """Positions of the stacked arguments with a part that does not lie on its stage."""
    astray = set()
    for position, value in enumerate(stacks.inputs):
        if value.cut is None:
            continue
        for index, part in enumerate(value.positions):
            stage = tuple(multimesh.slice(**{value.cut.axis: value.cut.stage(index)}).devices.flat)
            mesh = placement.submeshes.meshes[placement.homes[step.invars[part]]]
            if tuple(mesh.devices.flat) != stage:
                astray.add(position)
    return astray


def parts_laid_out_alike(
    stacks: Stacks, step: Step, placement: Placement, shardings: Shardings
) -> dict[Held, NamedSharding]:
    """Layouts for the parts of stacks whose parts differ in theirs: all that of the first.

    One array has one layout, so that its parts cannot differ.
    """
    found: dict[Held, NamedSharding] = {}
    for value in stacks.inputs:
        held = _held(value.positions, step, placement) if value.cut is not None else []
        specs = [shardings[each].spec for each in held]
        if any(spec != specs[0] for spec in specs):
            found.update((each, NamedSharding(shardings[each].mesh, specs[0])) for each in held)
    return found


def _held(positions: Sequence[int], step: Step, placement: Placement) -> list[tuple[Var, int]]:
    return [(step.invars[position], placement.homes[step.invars[position]]) for position in positions]


def warn_of_whole_stacks(whole: Sequence[WholeStack], names: Sequence[str], values: Sequence[Any]) -> None:
    """Warn of stacks of layers that lie on one submesh."""
    for message in _messages(whole, names, values):
        warn(f"mjit: {message}")


def _messages(whole: Sequence[WholeStack], names: Sequence[str], values: Sequence[Any]) -> Iterator[str]:
    for each in whole:
        size = sum(_num_bytes(values[position]) for position in each.positions)
        shown = ", ".join(names[position] for position in each.positions[:4])
        more = f" and {len(each.positions) - 4} more" if len(each.positions) > 4 else ""
        start = f"stacks of layers lie whole on one submesh, {size:,} bytes: {shown}{more}. "
        if not each.axis:
            yield start + (
                "Their next value is not made stage by stage. Update each layer by itself, with nothing but sums over "
                "layers in common, for its state to live on its stage."
            )
            continue
        dealt = ", ".join(map(str, each.counts))
        yield start + (
            f"The slices of {each.axis!r} run {dealt} of their layers{each.line}, and one array can only be cut into "
            f"equal parts, in order. Use a number of layers that {len(each.counts)} divides, without weights= or "
            "chunks=; or keep each layer's parameters by themselves, and write a loop over them."
        )


def _num_bytes(value: Any) -> int:
    return int(np.prod(np.shape(value), dtype=np.int64)) * int(getattr(np.dtype(value.dtype), "itemsize", 8))
