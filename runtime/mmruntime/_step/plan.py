"""Plan: the pipeline of passes, from a function and the types of its arguments to a runner."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from mmruntime import _compat
from mmruntime._core import mesh as _mesh
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.registry import registrations
from mmruntime._core.switches import fast_path_enabled
from mmruntime._execution.compile import Compiled, compile_program
from mmruntime._execution.donation import owned_slots
from mmruntime._execution.processes import check_runs_here
from mmruntime._execution.run import Runner, WholeRunner
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.input_layouts import boxed_names, lay_out_inputs
from mmruntime._partition.instructions import Program, build, build_whole
from mmruntime._partition.loop_schedule import schedule_loops
from mmruntime._partition.place import Placement, place
from mmruntime._partition.segment import Segments, segment
from mmruntime._partition.shard import Shardings
from mmruntime._partition.single_program import compute_results
from mmruntime._partition.trace import trace
from mmruntime._partition.variants import expand_replicas, expand_variants
from mmruntime._step.signature import (
    Call,
    abstract_leaf,
    argument_name,
    carried_state,
    donated_leaves,
    function_name,
    paths,
)


@dataclass(eq=False, slots=True, frozen=True)
class Plan:
    """All that was decided about a step for one input signature."""

    step: Step
    placement: Placement
    segments: Segments
    shardings: Shardings
    program: Program
    compiled: Compiled
    runner: Runner
    in_tree: Any
    out_tree: Any
    names: tuple[str, ...]


def make_plan(
    fun: Callable[..., Any],
    call: Call,
    multimesh: MultiMesh,
    *,
    donate: Container[int] = (),
    donate_names: Container[str] = (),
    arguments: Sequence[str] = (),
    to_run: bool = False,
) -> Plan:
    """Trace, place and compile a step for one input signature.

    Args:
        fun: The step.
        call: Its arguments, or `jax.ShapeDtypeStruct`s in their place.
        multimesh: The mesh to compile for.
        donate: Positions of the arguments that the caller gives up.
        donate_names: Names of those that are given up as keywords.
        arguments: Names of the function's parameters, for reports.
        to_run: Whether the plan is to be run in this process, so that devices of other processes are refused.
    """

    def flat(*leaves: Any) -> Any:
        args, kwargs = jax.tree.unflatten(call.tree, leaves)
        args = list(args)
        for position, value in call.static_args:
            args[position] = value
        return fun(*args, **kwargs, **dict(call.static_kwargs))

    with _compat.no_mesh():
        structs = [abstract_leaf(leaf) for leaf in call.leaves]
        with _mesh.using(multimesh):
            step, out_tree = trace(flat, structs, registrations(multimesh.context))
        step = replace(step, carried=carried_state(call.tree, out_tree, step, donate))
        step = expand_variants(step, multimesh)
        step = expand_replicas(step, multimesh)
        step, placement = place(step, multimesh)
        whole = len(placement.submeshes.meshes) == 1 and fast_path_enabled()
        if to_run:
            check_runs_here(function_name(fun), multimesh.mesh, placement, whole=whole)
        if whole:
            step, placement = compute_results(step, placement)
        segments = segment(step, placement)
        shardings = Shardings(step, placement, multimesh)
        lay_out_inputs(step, placement, shardings, boxed_names(call.tree))
        if whole:
            shardings.propagate_whole()
            program = build_whole(step)
        else:
            segments, loop_schedules = schedule_loops(step, placement, segments)
            shardings.propagate(segments)
            program = build(step, placement, segments, loop_schedules)
        donated = donated_leaves(call.tree, donate, donate_names)
        compiled = compile_program(program, shardings, owned_slots(step, placement, program, donated))
        kind = WholeRunner if program.whole else Runner
        runner = kind(step, program, compiled, shardings, donated)
        names = tuple(argument_name(path, arguments) for path, _ in paths(call.tree))
        return Plan(step, placement, segments, shardings, program, compiled, runner, call.tree, out_tree, names)
