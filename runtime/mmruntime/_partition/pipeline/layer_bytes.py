"""Layer bytes: what each layer of a loop holds until its backward pass, before layers are cut into stages.

Which values are kept depends on where programs begin and end, so a trial cut is placed, and its residuals are counted
as those of the final one. What a layer keeps hardly depends on which of its neighbours share its stage: values at a
border between stages are counted where they are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mmruntime._compat import Var
from mmruntime._core.multimesh import MultiMesh
from mmruntime._jaxpr.ir import Op, Step, num_bytes
from mmruntime._partition.placement.place import Placement, place
from mmruntime._partition.placement.variants import expand_replicas, expand_variants
from mmruntime._partition.programs.residuals import recompute_residuals
from mmruntime._partition.programs.segment import Segments, segment
from mmruntime._partition.programs.split_backward import halves_of
from mmruntime._partition.stacks.cut_stacks import cut_stacks


@dataclass(frozen=True)
class LayerBytes:
    """Values of one microbatch that the layers of a loop make or read.

    Attributes:
        kept: For each layer, those of the forward pass that its backward pass reads.
        late: What its weight half reads if backward passes run in halves.
        read: Those of the forward pass that its own forward pass reads.
        made: Those that its forward pass makes.
    """

    kept: tuple[frozenset[Var], ...]
    late: tuple[frozenset[Var], ...]
    read: tuple[frozenset[Var], ...]
    made: tuple[frozenset[Var], ...]

    def of_stages(self, bounds: Sequence[int]) -> StageBytes:
        """What each stage holds, where stage k has the layers from bound k to k + 1."""
        whole, late, inputs = [], [], []
        for start, end in itertools.pairwise(bounds):
            kept, weights, read, made = (
                frozenset[Var]().union(*each[start:end]) for each in (self.kept, self.late, self.read, self.made)
            )
            # The last stage runs forward and backward in one program, and holds nothing in between.
            whole.append(_bytes_of(kept) if end < len(self.kept) else 0.0)
            late.append(_bytes_of(weights))
            inputs.append(_bytes_of(read - made))
        return StageBytes(whole, late, inputs)


@dataclass(frozen=True)
class StageBytes:
    """Bytes of one microbatch that each stage holds, on all its devices together.

    Attributes:
        whole: From the forward pass until a whole backward pass.
        late: From the input half of a backward pass until its weight half.
        inputs: Until the forward pass runs again.
    """

    whole: list[float]
    late: list[float]
    inputs: list[float]


@dataclass(frozen=True)
class Trial:
    """A step as the passes behind the cut of layers leave it, up to its programs."""

    step: Step
    placement: Placement
    segments: Segments


def trial(step: Step, multimesh: MultiMesh) -> Trial:
    """Place a step whose layers are cut in some way, and choose what it keeps."""
    parts, _ = cut_stacks(step, multimesh, set())
    return programs_of(*place(expand_replicas(expand_variants(parts, multimesh), multimesh), multimesh))


def programs_of(step: Step, placement: Placement) -> Trial:
    """The programs of a placed step, with the values to keep already chosen."""
    segments = segment(step, placement)
    after = recompute_residuals(step, placement, segments)
    return Trial(*after, segments if after == (step, placement) else segment(*after))


def layer_bytes(made: Trial, index: int, layer_of: Callable[[Op], int | None], count: int) -> LayerBytes:
    """The bytes that the layers of a loop hold, with the values between them.

    Args:
        made: The step.
        index: The loop's region.
        layer_of: The number of the layer that an equation belongs to; None if to none.
        count: The number of layers.
    """
    region = made.step.regions[index]
    ops = [op for op in region.ops if not op.variant]
    forward = {var for op in ops if not op.backward for var in op.writes()}
    residuals = forward.union(region.slices)
    kept, late, read, own = ([set[Var]() for _ in range(count)] for _ in range(4))
    # The layer that an equation of each direction follows; the backward pass begins with the loss, behind the last one.
    ahead, back = 0, count - 1
    for op in ops:
        layer = layer_of(op)
        if not op.backward:
            ahead = ahead if layer is None else layer
            read[ahead].update(forward.intersection(op.reads()))
            own[ahead].update(op.writes())
        elif op.again:
            # It stands behind the equation of the forward pass that it repeats.
            kept[ahead if layer is None else layer].update(residuals.intersection(op.reads()))
        else:
            back = back if layer is None else layer
            kept[back].update(residuals.intersection(op.reads()))
    for program in made.segments.by_region[index]:
        if program.variant or not program.backward:
            continue
        for half in halves_of(program, region, made.segments):
            if half.part != "W" or half.input_half is None:
                continue
            there = residuals.union(*(op.writes() for op in half.input_half.ops))
            layer = None
            for op in half.ops:
                found = layer_of(op)
                layer = layer if found is None else found
                late[count - 1 if layer is None else layer].update(there.intersection(op.reads()))
    return LayerBytes(*(tuple(map(frozenset, each)) for each in (kept, late, read, own)))


def _bytes_of(values: Iterable[Var]) -> float:
    return float(sum(num_bytes(var) for var in values))
