"""Plan: the pipeline of passes, from a function and the types of its arguments to a runner."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import NamedSharding

from mmruntime import _compat
from mmruntime._core import progress
from mmruntime._core.mesh import using
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.registry import registrations
from mmruntime._core.switches import fast_path_enabled
from mmruntime._core.task import searched_slice
from mmruntime._execution.compile import Compiled, compile_program, owned_slots
from mmruntime._execution.run import Runner, StepRunner, WholeRunner, outputs_of
from mmruntime._execution.stacked_runner import StackedRunner, StackLayouts, lay_out_stacks
from mmruntime._execution.transfers.own_parts import processes
from mmruntime._frontend.constraint import may_be_mapped
from mmruntime._frontend.labels import argument_name, name_trace
from mmruntime._jaxpr.ir import Step, is_scalar, tasks_of
from mmruntime._partition.layouts.all_gather import all_gather_parameters
from mmruntime._partition.layouts.idle_axes import warn_of_idle_axes
from mmruntime._partition.layouts.input_layouts import boxed_names, lay_out_inputs
from mmruntime._partition.layouts.mapped_constraints import warn_of_mapped_constraints
from mmruntime._partition.layouts.packed_types import PACKED, check_packed_types
from mmruntime._partition.layouts.shard import Shardings, propagate_whole
from mmruntime._partition.layouts.stack_homes import astray_stacks, parts_laid_out_alike, warn_of_whole_stacks
from mmruntime._partition.pipeline.cut_layers import cut_layers
from mmruntime._partition.pipeline.effect_order import check_effects
from mmruntime._partition.pipeline.instructions import Program, build, build_whole
from mmruntime._partition.pipeline.layer_bytes import Trial, programs_of
from mmruntime._partition.pipeline.loop_schedule import check_custom_schedules, schedule_loops
from mmruntime._partition.placement.argument_homes import argument_homes, may_follow, warn_of_copies
from mmruntime._partition.placement.place import Placement, place
from mmruntime._partition.placement.pulled_state import warn_of_pulled_state
from mmruntime._partition.placement.tasks_inside import warn_of_tasks_inside
from mmruntime._partition.placement.variants import expand_replicas, expand_variants
from mmruntime._partition.programs.residuals import recompute_residuals
from mmruntime._partition.programs.segment import Segments
from mmruntime._partition.programs.shared_updates import share_updates
from mmruntime._partition.programs.single_program import compute_results
from mmruntime._partition.stacks.cut_stacks import Stacks, cut_stacks
from mmruntime._partition.sums.delay_sums import DelayedSums, delay_sums, split_by_program
from mmruntime._partition.sums.pack_sums import pack_sums
from mmruntime._partition.tracing.trace import trace
from mmruntime._step.outside_of_steps import explain_errors_about
from mmruntime._step.signature import (
    Call,
    abstract_leaf,
    carried_state,
    donated_leaves,
    function_name,
    paths,
)
from mmruntime._step.step_state import StepState

# More objects than Python freezes as it starts: 375 in Python 3.12, none in others. A program that freezes what it has
# imported freezes many times as many.
_FROZEN_BY_PYTHON = 1000


@dataclass(eq=False, slots=True, frozen=True)
class Plan:
    """All that was decided about a step for one input signature.

    Attributes:
        step: The traced step, as the passes left it.
        placement: Where it runs.
        segments: Its programs.
        shardings: The layout of every value.
        program: Its instructions.
        compiled: Their executables.
        runner: Runs them.
        in_tree: The tree of the arguments, without the static ones.
        out_tree: The tree of the results.
        names: The user's names for the inputs; for a stack, one for each of its parts.
        stacks: How stacks of layers are laid out; they are in parts in all of the above.
        delayed: What each loop adds up over devices, by its region.
        anywhere: Whether it has no tasks or loops, and did not find its arguments on several stages.
    """

    step: Step
    placement: Placement
    segments: Segments
    shardings: Shardings
    program: Program
    compiled: Compiled
    runner: StepRunner
    in_tree: Any
    out_tree: Any
    names: tuple[str, ...]
    stacks: StackLayouts
    delayed: Mapping[int, DelayedSums]
    anywhere: bool

    def reads(self, position: int) -> bool:
        """Whether the step reads an argument, or hands it on: `jax.jit` takes others even if they are deleted."""
        value = self.stacks.stacks.inputs[position]
        if value.cut is not None:
            return True
        var, home = self.step.invars[value.position], self.program.inputs[value.position]
        # Over several processes a scalar that nothing reads may tell one call from another.
        told = is_scalar(var) and self.runner.group is not None
        return home is not None or told or bool(self.program.scalars.get(var)) or var in self.step.outvars

    def input_layouts(self) -> list[NamedSharding]:
        """The layout that the step wants each of its arguments in."""
        layouts = []
        for var, home in zip(self.step.invars, self.program.inputs, strict=True):
            where = self.placement.homes[var] if home is None else home[1]
            layouts.append(self.shardings.everywhere if is_scalar(var) else self.shardings[var, where])
        return self.stacks.of_arguments(layouts)

    def output_layouts(self) -> list[NamedSharding]:
        """The layout of each of its results."""
        outputs = outputs_of(self.step, self.program, self.shardings)
        return self.stacks.of_results([each.sharding for each in outputs])


def make_plan(
    fun: Callable[..., Any],
    call: Call,
    multimesh: MultiMesh,
    *,
    donate: Container[int] = (),
    donate_names: Container[str] = (),
    arguments: Sequence[str] = (),
    to_run: bool = False,
    again: str = "",
) -> Plan:
    """Trace, place and compile a step for one input signature.

    Every pass returns what it decides and changes none of its arguments.

    Args:
        fun: The step.
        call: Its arguments, or `jax.ShapeDtypeStruct`s in their place.
        multimesh: The mesh to compile for.
        donate: Positions of the arguments that the caller gives up.
        donate_names: Names of those that are passed as keywords.
        arguments: Names of the function's parameters, for reports.
        to_run: Whether the plan is to be run at once, so that other processes that take part make it now, too.
        again: Where the step was planned before, what is new, for those who watch it compile.

    Raises:
        RuntimeError: If other processes have made another plan.
    """
    # A mesh that the caller has set with `jax.set_mesh` would end up in the trace, and does not fit the submeshes.
    label = function_name(fun)
    with (
        _compat.no_mesh(),
        _without_garbage_collection(),
        progress.long_call(label, f", again as {again}" if again else "", shows=jax.process_index() == 0),
    ):
        # The step: flat equations, each with its task; loops opened, one body for each placement of a microbatch.
        progress.tell("tracing")
        places = [path for path, _ in paths(call.tree)]
        leaf_names = tuple(argument_name(path, arguments) for path in places)
        traced, out_tree = _trace(fun, call, multimesh, leaf_names)
        traced = replace(traced, carried=carried_state(call.tree, out_tree, traced, donate))

        # Where it runs; stacks of layers in parts, each on its stage.
        progress.tell("cutting it into programs")
        homes = argument_homes(traced, call.leaves, multimesh)
        cut = _with_cut_layers(traced, multimesh)
        anywhere = not homes and may_follow(cut)
        step, stacks, placement = _place_parts(cut, multimesh, homes, leaf_names)
        followed = {k: homes[k] for k, var in enumerate(step.invars) if var in placement.followed}
        names = stacks.part_names(leaf_names)
        members = processes(multimesh.mesh)
        alone = members == (jax.process_index(),)
        if to_run:
            explain_errors_about(multimesh.mesh, placement.submeshes.meshes)
        whole = len(placement.submeshes.meshes) == 1 and fast_path_enabled()
        if whole:
            check_custom_schedules(step)
            step, placement = compute_results(step, placement)
        boxes = stacks.of_parts(boxed_names(call.tree))
        inputs = lay_out_inputs(step, placement, multimesh, boxes, stacks.of_inputs(places), names, followed)

        # Which programs it is, how their arguments and results are laid out, and in which order they are issued.
        placed = StepState(multimesh, whole, step, placement, inputs, stacks)
        state = placed
        for is_for, run in PASSES:
            state = run(state) if is_for(state) else state
        step, placement, segments = state.step, state.placement, state.segments
        if whole:
            shardings = propagate_whole(step, placement, multimesh, inputs)
            program = build_whole(step)
        else:
            shardings = state.shardings
            program = build(step, placement, segments, state.schedules)
        if any(op.eqn.effects for op in step.ops()):
            check_effects(step, placement, program)
        if not PACKED.isdisjoint(map(str, step.types())):
            check_packed_types(step, placement, segments, shardings)

        # What is worth a warning, of the step as it was placed: further passes leave less of what the user wrote.
        if may_be_mapped():
            warn_of_mapped_constraints(traced, multimesh)
        if anywhere:
            warn_of_copies(label, cut, call.leaves, leaf_names, multimesh)
        if stacks.whole:
            warn_of_whole_stacks(stacks.whole, leaf_names, call.leaves)
        if placed.placement.pulled or placed.placement.makers:
            warn_of_pulled_state(placed.step, placed.placement, names)
        if with_bodies := [op for op in placed.step.ops() if op.task is None and _compat.inner_jaxprs(op.eqn)]:
            warn_of_tasks_inside(with_bodies, placed.placement, multimesh, registrations(multimesh.context))
        shardings.warn_of_unknown_names()
        if multimesh.logical_axes:
            warn_of_idle_axes(label, step, placement, shardings, multimesh)

        # Executables.
        # What is checked may have to be computed once more, so that nothing is overwritten.
        kinds = _compat.invalid_kinds()
        donated_values = set[int]() if kinds else donated_leaves(call.tree, donate, donate_names)
        donated = set(stacks.of_parts(dict.fromkeys(donated_values)))
        layouts = StackLayouts(stacks, {}, {}, leaf_names)
        if stacks.any:
            layouts = lay_out_stacks(stacks, leaf_names, step, placement, program, shardings, multimesh.mesh)
        owned = None if kinds else owned_slots(step, placement, program, donated)
        runner: StepRunner
        if alone:
            compiled = compile_program(program, shardings, owned)
            runner = (WholeRunner if whole and not kinds else Runner)(step, program, compiled, shardings, donated)
        else:
            from mmruntime._step.several_processes import runner_across  # noqa: PLC0415  (most steps run in one)

            parts = (
                [part for k, leaf in enumerate(call.leaves) for part in layouts.parts_of(k, leaf)] if to_run else None
            )
            compiled, runner = runner_across(
                label, names, members, step, placement, program, shardings, donated, owned, parts
            )
        if step.premises:
            from mmruntime._execution.premise_runner import PremiseRunner  # noqa: PLC0415  (few steps have any)

            runner = PremiseRunner(runner, step.premises, waits=bool(kinds))
        if kinds:
            from mmruntime._execution.checked_runner import CheckedRunner  # noqa: PLC0415  (few are checked)

            results = {
                part: f"result{jax.tree_util.keystr(path)}"
                for value, (path, _) in zip(stacks.outputs, paths(out_tree), strict=True)
                for part in value.positions
            }
            listed = [results[position] for position in range(len(results))]
            runner = CheckedRunner(runner, label, names, listed, step, program, shardings, kinds)
        if stacks.any:
            runner = StackedRunner(runner, layouts, donated_values)
        return Plan(
            step,
            placement,
            segments,
            shardings,
            program,
            compiled,
            runner,
            call.tree,
            out_tree,
            names,
            layouts,
            state.delayed,
            anywhere,
        )


def traced_step(fun: Callable[..., Any], call: Call, multimesh: MultiMesh, donate: Container[int] = ()) -> Step:
    """A step traced for one input signature, and nothing more.

    Args:
        fun: The step.
        call: Its arguments, or `jax.ShapeDtypeStruct`s in their place.
        multimesh: The mesh that its tasks name.
        donate: Positions of the arguments that the caller gives up.
    """
    with _compat.no_mesh(), _without_garbage_collection():
        traced, out_tree = _trace(fun, call, multimesh, _names(call))
        return replace(traced, carried=carried_state(call.tree, out_tree, traced, donate))


def placed_step(fun: Callable[..., Any], call: Call, multimesh: MultiMesh, donate: Container[int] = ()) -> Trial:
    """The step of `traced_step`, placed on the mesh, and its programs: nothing is laid out or compiled."""
    traced = traced_step(fun, call, multimesh, donate)
    with _compat.no_mesh(), _without_garbage_collection():
        step, _, placement = _place_parts(_with_cut_layers(traced, multimesh), multimesh, {}, _names(call))
        return programs_of(step, placement)


def _names(call: Call) -> list[str]:
    return [argument_name(path, ()) for path, _ in paths(call.tree)]


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect no cycles meanwhile: a plan is many objects that stay, which each collection would visit again.

    At the end its cycles are collected, and what stays is made old at once. As young objects that many would have
    Python visit all objects of the process, old ones among them, in the first step.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            gc.collect(0)
            # What the program has frozen, with all that it had imported, stays so.
            if gc.get_freeze_count() < _FROZEN_BY_PYTHON:
                gc.freeze()
                gc.unfreeze()


def _with_cut_layers(step: Step, multimesh: MultiMesh) -> Step:
    """The step with one cut of its layers chosen, in the place of the search for it."""
    is_asked = any(searched_slice(task) is not None for task in tasks_of(step.ops()))
    return cut_layers(step, multimesh) if is_asked else step


def _place_parts(
    step: Step, multimesh: MultiMesh, homes: Mapping[int, NamedSharding], names: Sequence[str]
) -> tuple[Step, Stacks, Placement]:
    """Cut the stacks of a step and place it. A stack with a part that would lie off its stage is left whole."""
    left: set[int] = set()
    while True:
        parts, stacks = cut_stacks(step, multimesh, left, names)
        varies = any(task.loop_dependent_mesh_slice is not None for task in tasks_of(parts.ops()))
        whole = expand_variants(parts, multimesh) if varies else parts
        if any(region.loop is not None and region.loop.may_replicate for region in whole.regions):
            whole = expand_replicas(whole, multimesh)
        parts = _sliced(whole)
        part_names = stacks.part_names(names)
        parts, placement = place(parts, multimesh, homes, part_names)
        if len(placement.submeshes.meshes) == 1 and any(region.num_slices > 1 for region in parts.regions):
            # There is no pipeline that slices would keep busy.
            parts, placement = place(whole, multimesh, names=part_names)
        astray = astray_stacks(stacks, parts, placement, multimesh) if stacks.any else set[int]()
        if not astray:
            # What one equation has pulled to its place is said of that equation.
            found = {position: parts.invars[stacks.inputs[position].position] for position in left}
            unsaid = [position for position, var in found.items() if var not in placement.pulled]
            return parts, stacks.left_whole(unsaid), placement
        left |= astray


def _sliced(step: Step) -> Step:
    """The step with the microbatches of its loops cut into slices of the sequence, where it asks for that."""
    if not any(region.loop is not None and region.loop.slices > 1 for region in step.regions):
        return step
    # Few steps do, and the rules of all primitives take a while to import.
    from mmruntime._slices.body import slice_loops  # noqa: PLC0415

    return slice_loops(step)


def _in_parts(state: StepState) -> bool:
    """Whether the step is several programs; in one, XLA itself makes cheap values again and orders what is computed."""
    return not state.whole


def _of_loop_in_parts(state: StepState) -> bool:
    """Whether it is several programs, some of them of a loop."""
    return not state.whole and state.has_loops


def _of_loop_on_several_devices(state: StepState) -> bool:
    """Whether there is something that devices of a submesh add up, or gather, in each microbatch of a loop."""
    return state.has_loops and state.cuts_values


def _of_stacks(state: StepState) -> bool:
    """Whether the step is several programs and has stacks, with a part for each stage."""
    return not state.whole and state.stacks.any


def _delay(state: StepState) -> StepState:
    step, placement, delayed = delay_sums(
        state.step, state.placement, state.segments, state.shardings, state.propagated
    )
    return state.changed(step, placement, delayed=delayed)


def _schedule(state: StepState) -> StepState:
    programs, schedules = schedule_loops(state.step, state.placement, state.segments)
    return state.changed(programs=programs, schedules=schedules)


def _lay_out_alike(state: StepState) -> StepState:
    alike = parts_laid_out_alike(state.stacks, state.step, state.placement, state.shardings)
    return state.changed(inputs=replace(state.inputs, layouts={**state.inputs.layouts, **alike})) if alike else state


# In order: for which steps, and what is done. A pass gives the next state, the same one where there is nothing to do.
# Reading `segments` cuts the step into programs, reading `shardings` lays them out: see `step_state`.
PASSES: tuple[tuple[Callable[[StepState], bool], Callable[[StepState], StepState]], ...] = (
    (_in_parts, lambda at: at.changed(*recompute_residuals(at.step, at.placement, at.segments))),
    (_of_loop_on_several_devices, lambda at: at.changed(*split_by_program(at.step, at.placement, at.segments))),
    (_of_loop_on_several_devices, lambda at: at.changed(*all_gather_parameters(at.step, at.placement, at.shardings))),
    (_of_loop_on_several_devices, _delay),
    (_of_loop_in_parts, lambda at: at.changed(*share_updates(at.step, at.placement, at.segments))),
    (
        _of_loop_in_parts,
        lambda at: at.changed(*pack_sums(at.step, at.placement, at.segments, at.shardings if at.cuts_values else None)),
    ),
    (_in_parts, _schedule),
    (_of_stacks, _lay_out_alike),
)


def _trace(fun: Callable[..., Any], call: Call, multimesh: MultiMesh, names: Sequence[str]) -> tuple[Step, Any]:
    """The step as a function of its array leaves, traced; and the tree of its results."""

    def flat(*leaves: Any) -> Any:
        args, kwargs = jax.tree.unflatten(call.tree, leaves)
        args = list(args)
        for position, value in call.static_args:
            args[position] = value
        return fun(*args, **kwargs, **dict(call.static_kwargs))

    name_trace(flat, "mjit", fun, names)
    with using(multimesh):
        return trace(flat, [abstract_leaf(leaf) for leaf in call.leaves], registrations(multimesh.context))
