"""A step whose tasks all have one device list: one program, as `jax.jit` would make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._jaxpr.ir import Op, Region, Step, is_tiny
from mmruntime._partition.placement.place import Placement


def borders(step: Step) -> tuple[tuple[Var, ...], tuple[Var, ...]]:
    """Variables that the whole step reads (used captured arrays, then used inputs), and its computed outputs."""
    outer = (*step.constants, *step.invars)
    used: set[Var] = set()
    for region in step.regions:
        used.update(region.slices.values(), *(op.reads() for op in region.ops))
    outputs = (atom for atom in step.outvars if is_var(atom) and atom not in outer)
    return tuple(var for var in outer if var in used), tuple(dict.fromkeys(outputs))


def compute_results(step: Step, placement: Placement) -> tuple[Step, Placement]:
    """Make the program compute every result that it can, as `jax.jit` does, so that its results are the step's.

    Results that are an input, a captured array, a number or an earlier result become copies, which cost nothing where
    the input is donated. An array that no equation reads stays out of the program, unless it is tiny or there is only
    one device: its caller's layout is kept.

    Returns:
        The step, with the copies at its end, and where it runs.
    """
    (mesh,) = placement.submeshes.meshes
    read = {var for op in step.ops() for var in op.reads()}
    read |= {stacked for region in step.regions for stacked in region.slices.values()}
    left_out = {var for var in step.invars if var not in read and not is_tiny(var) and mesh.size > 1}
    taken = {*step.invars, *step.constants} - left_out
    copies = []
    outvars = list(step.outvars)
    for index, atom in enumerate(step.outvars):
        if is_var(atom) and atom not in taken:
            if atom not in left_out:
                taken.add(atom)
            continue
        copy = _compat.new_var(atom.aval)
        copies.append(Op(_compat.copy_eqn(atom, copy)))
        outvars[index] = copy
    if not copies:
        return step, placement
    *before, last = step.regions
    regions = (*before, replace(last, ops=(*last.ops, *copies)))
    of = {**placement.of, **dict.fromkeys(copies, (0,))}
    return replace(step, regions=regions, outvars=tuple(outvars)), replace(placement, of=of)


def whole_function(step: Step, in_mesh_axes: Callable[[Op], Any]) -> Callable[..., list[Any]]:
    """The function that the step computes, `reads` to `writes` of `borders`; microbatch loops are scans.

    Args:
        step: The step.
        in_mesh_axes: Gives an equation with its constraints in mesh axes.
    """
    reads, writes = borders(step)
    pieces = [
        (region, _Block(step, region, in_mesh_axes, step.read_behind(index) | {result for _, result in region.sums}))
        for index, region in enumerate(step.regions)
    ]

    def run(*args: Any) -> list[Any]:
        env: dict[Var, Any] = dict(zip(reads, args, strict=True))
        for region, block in pieces:
            if region.loop is None:
                env.update(block(env))
            else:
                env.update(_scan(region, block, env))
        return [env[var] for var in writes]

    return run


class _Block:
    """The equations of a region as a function of the variables from before it."""

    def __init__(self, step: Step, region: Region, in_mesh_axes: Callable[[Op], Any], needed: set[Var]) -> None:
        written = {var for op in region.ops for var in op.writes()}
        self.reads = tuple(dict.fromkeys(var for op in region.ops for var in op.reads() if var not in written))
        self.writes = tuple(var for op in region.ops for var in op.writes() if var in needed)
        eqns = [in_mesh_axes(op) for op in region.ops]
        self._function = _compat.as_fun(_compat.close(step.like, self.reads, self.writes, eqns))

    def __call__(self, env: dict[Var, Any]) -> dict[Var, Any]:
        values = self._function(*[env[var] for var in self.reads])
        return dict(zip(self.writes, values, strict=True))


def _scan(region: Region, block: _Block, env: dict[Var, Any]) -> dict[Var, Any]:
    stacks = [env[stacked] for stacked in region.slices.values()]
    zeros = [jnp.zeros(total.aval.shape, total.aval.dtype) for total, _ in region.sums]

    def body(totals: list[Any], slices: list[Any]) -> tuple[list[Any], None]:
        inside = {**env, **dict(zip(region.slices, slices, strict=True))}
        values = block(inside)
        # A result that does not depend on the microbatch is computed before the loop.
        known = {**inside, **values}
        added = [known[result].astype(total.aval.dtype) for total, result in region.sums]
        return [jax.lax.add(total, value) for total, value in zip(totals, added, strict=True)], None

    assert region.loop is not None
    totals, _ = jax.lax.scan(body, zeros, stacks, length=region.loop.count)
    return {total: value for (total, _), value in zip(region.sums, totals, strict=True)}
