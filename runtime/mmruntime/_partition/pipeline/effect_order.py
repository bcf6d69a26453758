"""Effect order: prove that effects run as often and in the order that `jax.jit` runs them, or refuse the step.

JAX chains programs with ordered effects by tokens, in the order in which they are issued, on whatever devices
(https://docs.jax.dev/en/latest/jep/10657-sequencing-effects.html). So the order of issue is the order of the effects.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from mmruntime import _compat
from mmruntime._jaxpr.effects import effect_line
from mmruntime._jaxpr.ir import Op, Step
from mmruntime._partition.pipeline.instructions import Program, RunInstruction
from mmruntime._partition.placement.place import Placement


def check_effects(step: Step, placement: Placement, program: Program) -> None:
    """Check the effects of a step against its instructions.

    Raises:
        ValueError: If ordered effects would run in another order than in the traced program, or JAX cannot order
            them over several devices.
    """
    effects = {op: _compat.ordered_effects(op.eqn) for op in step.ops() if op.eqn.effects}
    for op, ordered in effects.items():
        sizes = [placement.submeshes.meshes[where].size for where in placement.of[op]]
        if max(sizes) > 1 and any(map(_compat.one_device_only, ordered)):
            raise ValueError(
                f"mjit: the ordered effect{effect_line(op.eqn)} would run on {max(sizes)} devices, over which JAX "
                "keeps no order. Leave ordered=True out, or write jax.experimental.io_callback(..., ordered=True)."
            )
    if not program.whole:
        _check_runs(step, effects, program)


def _check_runs(step: Step, effects: dict[Op, frozenset[Any]], program: Program) -> None:
    position = {op: number for number, op in enumerate(step.ops()) if op in effects}
    region_of = {op: index for index, region in enumerate(step.regions) for op in region.ops if op in effects}
    runs: Counter[Op] = Counter()
    # For each effect, the latest run: its region, its microbatch, its place in the program, and its equation.
    latest: dict[Any, tuple[tuple[int, int, int], Op]] = {}
    for item in program.instructions:
        if not isinstance(item, RunInstruction) or item.spec.segment is None:
            continue
        for op in item.spec.segment.ops:
            if not op.eqn.effects:
                continue
            assert op in effects, "equations with effects are never taken apart after placement"
            runs[op] += 1
            when = (region_of[op], -1 if item.microbatch is None else item.microbatch, position[op])
            for effect in effects[op]:
                before = latest.get(effect)
                if before is not None and before[0] > when:
                    raise ValueError(_out_of_order(before[1], op))
                latest[effect] = (when, op)
    for op, index in region_of.items():
        expected = len(step.regions[index].microbatches(op.variant))
        assert runs[op] == expected, f"an effect{effect_line(op.eqn)} runs {runs[op]} times instead of {expected}"


def _out_of_order(first: Op, second: Op) -> str:
    lines = effect_line(second.eqn)
    other = f", and the one{effect_line(first.eqn)}," if first is not second and effect_line(first.eqn) != lines else ""
    return (
        f"microbatch: the ordered effect{lines}{other} would not run in the order of jax.jit, one microbatch after the "
        "other, because the pipeline works on several at a time. Keep the ordered effects of the loop in one task, "
        "return what they need and call them after the loop, or leave ordered=True out."
    )
