"""`mjit`: compile a step for a mesh whose tasks run on submeshes."""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax
from jax.sharding import Mesh

from mmruntime import _check, _compat
from mmruntime._compat import default_prng_impl, is_var
from mmruntime._core import mesh as _mesh
from mmruntime._core.multimesh import MultiMesh, device_list
from mmruntime._core.registry import Registration, changes, registered, registrations
from mmruntime._core.switches import fast_path_enabled, jax_settings, switches
from mmruntime._execution.compile import Compiled, compile_program
from mmruntime._execution.processes import check_runs_here, runs_here
from mmruntime._execution.run import Runner, WholeRunner
from mmruntime._inspect.record import measure, record
from mmruntime._inspect.report import Report, report
from mmruntime._inspect.timeline import Measurement, Timeline
from mmruntime._jaxpr.ir import Step, is_scalar
from mmruntime._partition.input_layouts import boxed_names, lay_out_inputs
from mmruntime._partition.instructions import Program, build, build_whole
from mmruntime._partition.loop_schedule import schedule_loops
from mmruntime._partition.place import Placement, place
from mmruntime._partition.segment import Segments, segment
from mmruntime._partition.shard import Shardings
from mmruntime._partition.single_program import compute_results
from mmruntime._partition.trace import trace
from mmruntime._partition.variants import expand_replicas, expand_variants
from mmruntime._step.initializer import Initializer, match
from mmruntime._step.signature import (
    Call,
    Repeat,
    abstract,
    argument_name,
    carried_state,
    chosen_arguments,
    parameters_of,
    paths,
    signature,
)

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("mmruntime")


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


class MeshFunction(Generic[P, R]):
    """A function that `mjit` compiles for a mesh: call it as the function itself.

    It is traced once per input signature (tree structure, shapes, types, static arguments).
    """

    def __init__(
        self,
        fun: Callable[P, R],
        multimesh: MultiMesh,
        donate: Sequence[int],
        donate_names: Sequence[str],
        static: Sequence[int],
        static_names: Sequence[str],
    ) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._multimesh = multimesh
        self._donate = frozenset(donate)
        self._donate_names = frozenset(donate_names)
        self._static = frozenset(static)
        self._static_names = frozenset(static_names)
        self._arguments = tuple(parameters_of(fun))
        self._plans: dict[Any, Plan] = {}
        self._dispatchers: dict[Plan, Callable[..., Any] | None] = {}
        self._latest: Plan | None = None
        self._repeat: Repeat | None = None
        # If the latest plan is one program, what recognises a repeated call, and what has to hold besides.
        self._direct: Callable[..., Any] | None = None
        self._changes = 0
        self._registered: tuple[Registration, ...] = ()
        self._prng_impl: Any = None

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """The method, bound, where a class has this as an attribute; `obj.step.explain()` reaches the step."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step. Returns as soon as all of its programs are issued."""
        if (
            self._direct is not None
            and (self._changes == changes.count or self._same_registrations())
            and self._prng_impl == default_prng_impl.value
        ):
            try:
                return self._direct(*args, **kwargs)  # type: ignore[no-any-return]
            except ValueError:
                # Static arguments that are not hashable are reported in words of our own.
                self._split(args, kwargs)
                raise
        if not _compat.at_top_level():
            # Inside another transformation the marked program is an ordinary one.
            result: R = self._fun(*args, **kwargs)
            return result
        plan, _, outputs = self._run(args, kwargs)
        return jax.tree.unflatten(plan.out_tree, outputs)  # type: ignore[no-any-return]

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Plan, list[Any], list[Any]]:
        """Run the step; its plan, and the flat inputs and outputs."""
        if self._repeat is not None and self._latest is not None:
            plan = self._latest
            leaves, tree = jax.tree.flatten((args, kwargs))
            if self._repeat.fits(leaves, tree, self._settings()):
                return plan, leaves, plan.runner(leaves)
        call = self._split(args, kwargs)
        plan = self._plan_of(call, to_run=True)
        first = self._latest is not plan
        self._use(plan, call)
        outputs = plan.runner(call.leaves)
        if first and plan.runner.misplaced:
            log.info(
                "%s: moved %d of %d input arrays to their submeshes; pass the outputs back in and they stay there.",
                _label(self._fun),
                plan.runner.misplaced,
                len(call.leaves),
            )
        return plan, call.leaves, outputs

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Report:
        """Trace, place and compile for these arguments (or `jax.ShapeDtypeStruct`s) without running."""
        call = self._split(args, kwargs)
        plan = self._plan_of(call)
        self._use(plan, call)
        return self._report(plan)

    def abstract_args(self) -> tuple[Any, ...]:
        """The positional arguments as `jax.ShapeDtypeStruct`s with the shardings that the step wants them in.

        For the signature that was last called or planned. Static arguments are None. A checkpoint can be
        restored into these, and `mjit(init, out_like=step)` gives its results in them.

        Raises:
            RuntimeError: If the step was neither called nor planned yet.
        """
        plan = self._latest
        if plan is None:
            raise RuntimeError(
                f"{_label(self._fun)} has not been called yet, so the layout of its arguments is not known. Call "
                f"{_label(self._fun)}.plan(*args) first, with example arguments or jax.ShapeDtypeStructs."
            )
        structs = []
        for var, home in zip(plan.step.invars, plan.program.inputs, strict=True):
            where = plan.placement.homes[var] if home is None else home[1]
            sharding = plan.shardings.everywhere if is_scalar(var) else plan.shardings[var, where]
            structs.append(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, sharding=sharding))
        args, _ = jax.tree.unflatten(plan.in_tree, structs)
        return tuple(args)

    def explain(self) -> Report:
        """What runs where, for the signature that was last called or planned: a value that prints as tables.

        Raises:
            RuntimeError: If the step was neither called nor planned yet.
        """
        plan = self._latest
        if plan is None:
            raise RuntimeError(
                f"explain: {_label(self._fun)} has not been called yet, so its shapes are not known. Call it, or "
                "`.plan(*args)` with example arguments or jax.ShapeDtypeStructs."
            )
        return self._report(plan)

    def timeline(self, *args: P.args, **kwargs: P.kwargs) -> Timeline:
        """Run the step on these arguments, watched: when each program and transfer ran, beside the simulation.

        The arguments are copied first, so donated ones stay usable; the step's results are dropped.
        """
        call = self._split(args, kwargs)
        plan = self._plan_of(call, to_run=True)
        return record(_label(self._fun), plan.runner, plan.program, call.leaves)

    def measure(self, *args: P.args, **kwargs: P.kwargs) -> Measurement:
        """Time each program of the step alone on these arguments: the shortest of its runs in a few steps."""
        call = self._split(args, kwargs)
        plan = self._plan_of(call, to_run=True)
        return measure(plan.runner, plan.program, call.leaves)

    def _use(self, plan: Plan, call: Call) -> None:
        """Make a plan the latest, which the next call may repeat."""
        self._latest = plan
        runs_here = self._runs_here(plan)
        once = call.static_args or call.static_kwargs or not runs_here
        self._repeat = None if once else Repeat(call.tree, call.signatures, self._settings())
        if plan not in self._dispatchers:
            self._dispatchers[plan] = self._dispatcher(plan)
        self._direct = self._dispatchers[plan] if runs_here else None
        self._changes, self._registered = changes.count, registered(self._context)
        self._prng_impl = default_prng_impl.value

    def _same_registrations(self) -> bool:
        """Whether contexts were only entered and left since the latest plan was chosen."""
        now = changes.count
        same = registered(self._context) == self._registered
        if same:
            self._changes = now
        return same

    def _dispatcher(self, plan: Plan) -> Callable[..., Any] | None:
        """What runs calls like those that the plan's one program ran without any work in Python."""
        runner = plan.runner
        if not isinstance(runner, WholeRunner):
            return None

        def run(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            if not _compat.at_top_level():
                return self._fun(*args, **kwargs), None
            used, inputs, outputs = self._run(args, kwargs)
            # Only calls of the latest plan may pass by here, or `explain` would not know which it is.
            shortcut = runner.shortcut(inputs, outputs, plan.out_tree) if used is plan else None
            return jax.tree.unflatten(used.out_tree, outputs), shortcut

        return _compat.dispatcher(_label(self._fun), run, sorted(self._static), sorted(self._static_names))

    def _settings(self) -> Hashable:
        """What a plan depends on besides the arguments."""
        return switches(), jax_settings(), registrations(self._context)

    def _plan_of(self, call: Call, *, to_run: bool = False) -> Plan:
        plan = self._plans.get(call.key)
        if plan is None:
            plan = self._plans[call.key] = self._make(call, to_run)
        elif to_run:
            check_runs_here(_label(self._fun), self._multimesh.mesh, plan.placement, whole=plan.program.whole)
        return plan

    def _runs_here(self, plan: Plan) -> bool:
        return runs_here(self._multimesh.mesh, plan.placement, whole=plan.program.whole)

    def _report(self, plan: Plan) -> Report:
        return report(
            _label(self._fun),
            plan.step,
            plan.placement,
            plan.segments,
            plan.shardings,
            plan.program,
            plan.compiled,
            plan.names,
        )

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        static_args = tuple((i, args[i]) for i in sorted(self._static) if i < len(args))
        static_kwargs = tuple((k, kwargs[k]) for k in sorted(self._static_names) if k in kwargs)
        dynamic = tuple(None if i in self._static else arg for i, arg in enumerate(args))
        dynamic_kwargs = {key: value for key, value in kwargs.items() if key not in self._static_names}
        leaves, tree = jax.tree.flatten((dynamic, dynamic_kwargs))
        signatures = tuple([signature(leaf) for leaf in leaves])
        key = (tree, signatures, static_args, static_kwargs, self._settings())
        try:
            hash((static_args, static_kwargs))
        except TypeError as error:
            raise TypeError(f"mjit: static arguments of {_label(self._fun)} must be hashable: {error}.") from error
        return Call(leaves, tree, signatures, key, static_args, static_kwargs)

    @property
    def multimesh(self) -> MultiMesh:
        """The mesh that the step is compiled for."""
        return self._multimesh

    @property
    def _context(self) -> Any:
        return self._multimesh.context

    def _make(self, call: Call, to_run: bool) -> Plan:
        with _compat.no_mesh():
            return self._plan(call, to_run)

    def _plan(self, call: Call, to_run: bool) -> Plan:
        fun: Callable[..., R] = self._fun

        def flat(*leaves: Any) -> Any:
            args, kwargs = jax.tree.unflatten(call.tree, leaves)
            args = list(args)
            for position, value in call.static_args:
                args[position] = value
            return fun(*args, **kwargs, **dict(call.static_kwargs))

        structs = [abstract(leaf) for leaf in call.leaves]
        with _mesh.using(self._multimesh):
            step, out_tree = trace(flat, structs, registrations(self._context))
        step.carried = carried_state(call.tree, out_tree, step, self._donate)
        expand_variants(step, self._multimesh)
        expand_replicas(step, self._multimesh)
        placement = place(step, self._multimesh)
        whole = len(placement.submeshes.meshes) == 1 and fast_path_enabled()
        if to_run:
            check_runs_here(_label(fun), self._multimesh.mesh, placement, whole=whole)
        if whole:
            compute_results(step, placement)
        segments = segment(step, placement)
        shardings = Shardings(step, placement, self._multimesh)
        lay_out_inputs(step, placement, shardings, boxed_names(call.tree))
        if whole:
            shardings.propagate_whole()
            program = build_whole(step)
        else:
            segments, loop_schedules = schedule_loops(step, placement, segments)
            shardings.propagate(segments)
            program = build(step, placement, segments, loop_schedules)
        donated = self._donated(call.tree)
        compiled = compile_program(program, shardings, _owned(step, placement, program, donated))
        kind = WholeRunner if program.whole else Runner
        runner = kind(step, program, compiled, shardings, donated)
        names = tuple(argument_name(path, self._arguments) for path, _ in paths(call.tree))
        return Plan(step, placement, segments, shardings, program, compiled, runner, call.tree, out_tree, names)

    def _donated(self, tree: Any) -> set[int]:
        """Positions of the inputs that the user gives up."""
        return {position for position, (path, _) in enumerate(paths(tree)) if self._is_donated(path)}

    def _is_donated(self, path: Sequence[Any]) -> bool:
        kind, name = path[0].idx, path[1]
        return name.idx in self._donate if kind == 0 else name.key in self._donate_names


def _owned(step: Step, placement: Placement, program: Program, donated: Container[int]) -> set[int]:
    """Slots whose arrays are the runtime's to overwrite: what it made, and what the user donated."""
    if not placement.submeshes.disjoint():
        # A copy within one device is no copy: arrays of overlapping submeshes may share memory.
        return set()
    inputs = {place[0]: position for position, place in enumerate(program.inputs) if place is not None}
    constants = {slot for places in program.constants.values() for slot, _ in places}
    # The copies of a scalar belong to one array of the caller's.
    constants |= {slot for var in step.invars for slot, _ in program.scalars.get(var, ())}
    constants |= {slot for slot, _, _ in program.numbers}
    handed_through = {atom for atom in step.outvars if is_var(atom)}
    return {
        slot
        for slot in range(program.num_slots)
        if slot not in constants
        and (slot not in inputs or (inputs[slot] in donated and step.invars[inputs[slot]] not in handed_through))
    }


def _label(fun: Any) -> str:
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__name__", type(fun).__name__)


@overload
def mjit(
    fun: Callable[P, R],
    *,
    mesh: MultiMesh | Mesh | None = None,
    devices: Sequence[Any] | None = None,
    donate_argnums: int | Sequence[int] | None = (),
    donate_argnames: str | Iterable[str] | None = (),
    static_argnums: int | Sequence[int] | None = (),
    static_argnames: str | Iterable[str] | None = (),
    out_like: None = None,
) -> MeshFunction[P, R]: ...


@overload
def mjit(fun: Callable[P, R], *, out_like: MeshFunction[..., Any]) -> Initializer[P, R]: ...


def mjit(
    fun: Callable[P, R],
    *,
    mesh: MultiMesh | Mesh | None = None,
    devices: Sequence[Any] | None = None,
    donate_argnums: int | Sequence[int] | None = (),
    donate_argnames: str | Iterable[str] | None = (),
    static_argnums: int | Sequence[int] | None = (),
    static_argnames: str | Iterable[str] | None = (),
    out_like: MeshFunction[..., Any] | None = None,
    **options: Any,
) -> MeshFunction[P, R] | Initializer[P, R]:
    """Compile a step for a mesh: each of its tasks becomes programs on the task's own submesh.

    Values, gradients and results are those of `jax.jit(fun)`, up to the rounding of reordered sums.

    Args:
        fun: The step.
        mesh: The mesh; the one in use (`with mesh:`) if left out.
        devices: Devices to use as a mesh of one axis, instead of `mesh`.
        donate_argnums: Positions of arguments whose memory may be reused, as in `jax.jit`; -1 is the last.
        donate_argnames: The same by name. A name and its position mean the same argument.
        static_argnums: Positions of hashable arguments that the trace may depend on; -1 is the last.
        static_argnames: The same by name.
        out_like: A step that was called or planned. `fun` is then an initialiser: what it returns is one of the
            step's arguments, or a tuple of them (found by tree, shapes and types), and comes out where the
            step wants it, bit-equal to `jax.jit(fun)`. Each submesh computes only its own part. Goes alone:
            the mesh is the step's, and other arguments are bound with `functools.partial`.
        **options: Refused with what to write instead, as `in_shardings` of `jax.jit` is.

    Returns:
        The compiled step; `.explain()` tells what runs where.

    Raises:
        NotImplementedError: When called, if a step with tasks on several submeshes has devices of several processes.
        ValueError: If there is no mesh, or `fun` has no argument of such a position or name. When called: if the step
            of `out_like` has no argument like the result.
        TypeError: If `mesh` is neither a `MultiMesh` nor a `jax.sharding.Mesh`, `out_like` is no step, something else
            is of another type, or there are further options.
        RuntimeError: When called, if the step of `out_like` was neither called nor planned.
    """
    _check.function("mjit", "fun", fun)
    for name in options:
        raise _not_taken(name, _label(fun))
    if out_like is not None:
        if not isinstance(out_like, MeshFunction):
            raise TypeError(
                f"mjit: out_like must be a step, the result of mm.mjit(...), got {type(out_like).__name__}. For "
                "layouts of your own use jax.jit(init, out_shardings=...)."
            )
        others = {
            "mesh": mesh,
            "devices": devices,
            "donate_argnums": donate_argnums,
            "donate_argnames": donate_argnames,
            "static_argnums": static_argnums,
            "static_argnames": static_argnames,
        }
        given = [
            name for name, value in others.items() if value is not None and not (isinstance(value, tuple) and not value)
        ]
        if given:
            raise TypeError(
                f"mjit: out_like= goes alone, got {', '.join(given)} as well. The mesh is the step's; bind what is "
                "static with functools.partial."
            )
        return initializer(fun, out_like)
    if mesh is not None and devices is not None:
        raise ValueError("mjit: give mesh= or devices=, not both; a mesh has its devices.")
    if devices is not None:
        flat = device_list("mjit", devices)
        mesh = MultiMesh(axis_sizes=(len(flat),), axis_names=("x",), devices=flat)
    if mesh is None:
        mesh = _mesh.current_mesh()
    if mesh is None:
        raise ValueError(
            f"mjit: no mesh for {_label(fun)}. Write mm.mjit({_label(fun)}, mesh=mesh), or call it inside `with mesh:`."
        )
    if isinstance(mesh, Mesh) and not isinstance(mesh, MultiMesh):
        mesh = MultiMesh(global_mesh=mesh)
    if not isinstance(mesh, MultiMesh):
        raise _check.wrong("mjit", "mesh", "a mm.MultiMesh or a jax.sharding.Mesh", mesh)
    donate, donate_names = chosen_arguments(fun, "donate", donate_argnums, donate_argnames)
    static, static_names = chosen_arguments(fun, "static", static_argnums, static_argnames)
    return MeshFunction(fun, mesh, donate, donate_names, static, static_names)


# What `jax.jit` takes and a step does not, with what to write instead.
_LAYOUTS = (
    "is not taken: a task lays out what it reads and makes. Name the axes of a value in {label}, "
    'mm.with_sharding_constraint(x, P("batch")), and map the names with logical_axes= of the mesh or the task'
)
_INSTEAD = {
    "in_shardings": _LAYOUTS
    + "; arguments may come in any layout, and after {label}.plan(*args) abstract_args() tells the one that they keep.",
    "out_shardings": _LAYOUTS + "; jax.device_put(result, sharding) moves a result afterwards.",
    "keep_unused": "is not taken: every argument of a step is kept. Leave it out.",
    "inline": "is not taken: a step inside of another is always inlined. Leave it out.",
    "backend": "is not taken: the devices are those of the mesh. Give mesh=, or devices=.",
    "device": "is not taken: the devices are those of the mesh. Give mesh=, or devices=.",
    "compiler_options": "is not taken; set XLA_FLAGS in the environment.",
}


def _not_taken(name: str, label: str) -> TypeError:
    if name in _INSTEAD:
        return TypeError(f"mjit: {name}= {_INSTEAD[name].format(label=label)}")
    known = [each for each in inspect.signature(mjit).parameters if each not in ("fun", "options")]
    return _check.unknown("mjit", "option", name, known)


def initializer(fun: Callable[P, R], step: MeshFunction[..., Any], argument: int | None = None) -> Initializer[P, R]:
    """An initialiser of a step's arguments.

    Args:
        fun: The initialiser.
        step: The step.
        argument: Which argument it makes; found by its tree, shapes and types if left out.
    """

    def wanted(shapes: Any) -> Any:
        arguments = step.abstract_args()
        arguments = arguments if argument is None else (arguments[argument],)
        return match(shapes, arguments, _label(fun), _label(step))

    return Initializer(fun, _label(fun), step.multimesh, wanted)
