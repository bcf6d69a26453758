"""`MeshFunction`: a compiled step, with a plan for each input signature that it was called with."""

from __future__ import annotations

import functools
import logging
import sys
import types
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar

import jax
import numpy as np

from mmruntime import _compat
from mmruntime._compat import debug_infs, debug_nans, default_prng_impl, explain_cache_misses, jit_disabled
from mmruntime._core.mesh import outside_of_meshes
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.registry import Registration, changes, registered, registrations
from mmruntime._execution.run import WholeRunner
from mmruntime._frontend.labels import argument_name, positional_names
from mmruntime._partition.placement.argument_homes import argument_homes, warn_of_copies
from mmruntime._step.ahead_of_time import CallAs, CompiledStep, LoweredStep, abstracted
from mmruntime._step.inlined_steps import Inliner
from mmruntime._step.plan import Plan, make_plan
from mmruntime._step.signature import (
    Call,
    Repeat,
    check_alive,
    function_name,
    new_to,
    paths,
    signature,
)

if TYPE_CHECKING:
    # Whoever asks about a step imports these; a step that only runs starts without.
    from mmruntime._inspect.report import Report
    from mmruntime._inspect.timeline import Measurement, Timeline

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("mmruntime")


class MeshFunction(Generic[P, R]):
    """A function that `mjit` compiles for a mesh: call it as the function itself.

    It is traced once per input signature (tree structure, shapes, types, static arguments).
    """

    # `verify` puts a list here, for the plans that all steps of the process make: what it calls may make its own.
    watch: ClassVar[list[Plan] | None] = None
    # `verify` sets this for a run without meshes: steps are then compiled by `jax.jit`, with their microbatches.
    plain: ClassVar[bool] = False
    # What looks at a step without compiling it comes before `make_plan`, and leaves by an exception of its own.
    look: ClassVar[Callable[[Callable[..., Any], Call, MultiMesh, frozenset[int]], None] | None] = None

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
        self._name = function_name(fun)
        self._multimesh = multimesh
        # Inside another transformation the function runs as it is: the marks do nothing there.
        self._inline = Inliner(self._name, multimesh)
        self._donate = frozenset(donate)
        self._donate_names = frozenset(donate_names)
        self._static = frozenset(static)
        self._static_names = frozenset(static_names)
        self._arguments = positional_names(fun)
        self._plans: dict[Any, Plan] = {}
        self._dispatchers: dict[Plan, Callable[..., Any] | None] = {}
        # The layouts of arguments for which it is known whether a plan copies what lies on several stages.
        self._asked: dict[Plan, set[frozenset[Any]]] = {}
        self._latest: Plan | None = None
        self._repeat: Repeat | None = None
        # If the latest plan is one program: JAX's C++ dispatch of repeated calls, and the state it does not compare.
        self._direct: Callable[..., Any] | None = None
        self._changes = 0
        self._registered: tuple[Registration, ...] = ()
        self._prng_impl: Any = None

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """The method, bound, where a class has this as an attribute; `obj.step.explain()` reaches the step."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step. Returns as soon as all of its programs are issued.

        Under `jax.disable_jit()` it is the function itself, on one device.
        """
        try:
            if jit_disabled.value or MeshFunction.plain:
                return self._without_mesh(args, kwargs)
            if (
                self._direct is not None
                and (self._changes == changes.count or self._same_registrations())
                and self._prng_impl == default_prng_impl.value
                and not (debug_nans.value or debug_infs.value)
            ):
                try:
                    return self._direct(*args, **kwargs)  # type: ignore[no-any-return]
                except ValueError:
                    # Let `_split` raise our message about static arguments that are not hashable.
                    self._split(args, kwargs)
                    raise
            if not _compat.at_top_level():
                return self._inline(self._fun, args, kwargs)
            plan, _, outputs = self._run(args, kwargs)
            return jax.tree.unflatten(plan.out_tree, outputs)  # type: ignore[no-any-return]
        except Exception as error:
            # As `_compat.api_boundary` does, without another call in each step.
            _compat.leave_out_frames(error)
            raise

    def _without_mesh(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """What the function gives by itself; on one device if its arrays are on several submeshes."""
        arrays = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, jax.Array)]
        if _compat.at_top_level() and len({array.sharding for array in arrays if array.committed}) > 1:
            first = self._multimesh.devices.flat[0]
            args, kwargs = jax.tree.map(
                lambda leaf: jax.device_put(leaf, first) if isinstance(leaf, jax.Array) else leaf, (args, kwargs)
            )
        with outside_of_meshes():
            return (self._fun if jit_disabled.value else self._jitted)(*args, **kwargs)

    @functools.cached_property
    def _jitted(self) -> Callable[..., R]:
        return jax.jit(self._fun, static_argnums=sorted(self._static), static_argnames=sorted(self._static_names))

    def __repr__(self) -> str:
        calls = f"compiled for {len(self._plans)} input signatures" if self._plans else "not called yet"
        if len(self._plans) == 1:
            calls = calls.removesuffix("s")
        return f"<step {self._name} on {self._multimesh!r}, {calls}>"

    def __copy__(self) -> MeshFunction[P, R]:
        """The step itself, as with a function: a copy of what holds it calls the same programs."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> MeshFunction[P, R]:
        """The step itself, as with a function."""
        return self

    def __reduce__(self) -> str:
        """Pickled by its name, as a function is: programs and devices belong to this process.

        Raises:
            TypeError: If it cannot be found by that name.
        """
        name = str(getattr(self, "__qualname__", self._name))
        found: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not self:
            raise TypeError(
                f"pickle: got {self!r}. A step is pickled by its name, as a function is, and {self.__module__}.{name} "
                "is not this step. Give it that name, as a decorator does, or pickle the function and call mjit where "
                "it is loaded."
            )
        return name

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Plan, list[Any], list[Any]]:
        """Run the step; its plan, and the flat inputs and outputs."""
        if self._repeat is not None and self._latest is not None:
            plan = self._latest
            leaves, tree = jax.tree.flatten((args, kwargs))
            if self._repeat.fits(leaves, tree, self._settings()) and not self._is_to_follow(plan, leaves):
                check_alive(self._name, plan.stacks.names, leaves, plan.reads)
                self._warn_of_copies(plan, leaves)
                return plan, leaves, plan.runner(leaves)
        call = self._split(args, kwargs)
        plan = self._plan_of(call, to_run=True)
        first = self._latest is not plan
        self._use(plan, call)
        check_alive(self._name, plan.stacks.names, call.leaves, plan.reads)
        self._warn_of_copies(plan, call.leaves)
        outputs = plan.runner(call.leaves)
        if first and plan.runner.misplaced:
            log.info(
                "%s: moved %d of %d input arrays to their submeshes; pass the outputs back in and they stay there.",
                self._name,
                plan.runner.misplaced,
                len(call.leaves),
            )
        return plan, call.leaves, outputs

    @_compat.api_boundary
    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Report:
        """Trace, place and compile for these arguments (or `jax.ShapeDtypeStruct`s) without running."""
        with jax.disable_jit(False):
            call = self._split(args, kwargs)
            plan = self._plan_of(call)
            self._use(plan, call)
            return self._report(plan)

    @_compat.api_boundary
    def lower(self, *args: P.args, **kwargs: P.kwargs) -> LoweredStep[R]:
        """The step for these arguments, ahead of its calls, as `jax.jit(f).lower(...)`: `.compile()` is what to call.

        Instead of arrays, arguments may be `jax.ShapeDtypeStruct`s or abstract values such as `jax.typeof(x)`.

        Raises:
            TypeError: If an argument is neither an array nor abstract, or a static argument is not hashable.
        """
        return self._lowered(_direct, args, kwargs)

    def _lowered(self, call_as: CallAs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LoweredStep[R]:
        args, kwargs = abstracted(args, kwargs, self._static | self._static_names)
        with jax.disable_jit(False):
            call = self._split(args, kwargs)
            plan = self._plan_of(call)
            self._use(plan, call)
        return LoweredStep(CompiledStep(self._name, call, plan, self._report, call_as, self._is_to_follow))

    @_compat.api_boundary
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
                f"{self._name} has not been called yet, so the layout of its arguments is not known. Call "
                f"{self._name}.plan(*args) first, with example arguments or jax.ShapeDtypeStructs."
            )
        structs = [
            jax.ShapeDtypeStruct(value.shape, plan.step.invars[value.position].aval.dtype, sharding=sharding)
            for value, sharding in zip(plan.stacks.stacks.inputs, plan.input_layouts(), strict=True)
        ]
        args, _ = jax.tree.unflatten(plan.in_tree, structs)
        return tuple(args)

    @_compat.api_boundary
    def explain(self) -> Report:
        """What runs where, for the signature that was last called or planned: a value that prints as tables.

        Raises:
            RuntimeError: If the step was neither called nor planned yet.
        """
        plan = self._latest
        if plan is None:
            raise RuntimeError(
                f"explain: {self._name} has not been called yet, so its shapes are not known. Call it, or "
                "`.plan(*args)` with example arguments or jax.ShapeDtypeStructs."
            )
        return self._report(plan)

    @_compat.api_boundary
    def timeline(self, *args: P.args, **kwargs: P.kwargs) -> Timeline:
        """Run the step on these arguments, watched: when each program and transfer ran, beside the simulation.

        The arguments are copied first, so donated ones stay usable; the step's results are dropped.
        """
        from mmruntime._inspect.record import record  # noqa: PLC0415  (see above)

        with jax.disable_jit(False):
            call = self._split(args, kwargs)
            plan = self._plan_of(call, to_run=True)
            check_alive(self._name, plan.stacks.names, call.leaves)
            return record(self._name, plan.runner, plan.program, call.leaves)

    @_compat.api_boundary
    def measure(self, *args: P.args, **kwargs: P.kwargs) -> Measurement:
        """Time each program of the step alone on these arguments: the shortest of its runs in a few steps.

        On CPU devices, which share cores, also while others of the step run: as many threads as there are devices,
        eight at most, run it at once then, each on a copy of the arguments. Over several processes all of them call
        this, and the CPU time of each is measured as well.
        """
        from mmruntime._inspect.measure import measure  # noqa: PLC0415  (see above)

        with jax.disable_jit(False):
            call = self._split(args, kwargs)
            plan = self._plan_of(call, to_run=True)
            meshes = plan.placement.submeshes.meshes
            check_alive(self._name, plan.stacks.names, call.leaves)
            return measure(plan.runner, plan.program, call.leaves, meshes, plan.step.carried)

    def _use(self, plan: Plan, call: Call) -> None:
        """Make a plan the latest, which the next call may repeat."""
        self._latest = plan
        # `Repeat` does not compare values of static arguments.
        once = call.static_args or call.static_kwargs
        self._repeat = None if once else Repeat(call.tree, call.signatures, self._settings())
        if plan not in self._dispatchers:
            self._dispatchers[plan] = self._dispatcher(plan)
        self._direct = self._dispatchers[plan]
        self._changes, self._registered = changes.count, registered(self._context)
        self._prng_impl = default_prng_impl.value

    def _same_registrations(self) -> bool:
        """Whether the registrations in force equal those of the latest plan, although contexts were entered or left."""
        now = changes.count
        same = registered(self._context) == self._registered
        if same:
            self._changes = now
        return same

    def _dispatcher(self, plan: Plan) -> Callable[..., Any] | None:
        """A function that repeats calls of the plan's one program without any work in Python; None for other plans."""
        runner = plan.runner
        if not isinstance(runner, WholeRunner):
            return None

        def run(args: tuple[Any, ...], kwargs: dict[str, Any], *, are_own: bool) -> tuple[Any, Any]:
            if not _compat.at_top_level():
                return self._inline(self._fun, args, kwargs), None
            used, inputs, outputs = self._run(args, kwargs)
            # Calls of other plans must not bypass Python, or `explain` would not know which plan was called last.
            shortcut = runner.shortcut(inputs, outputs, plan.out_tree, are_own=are_own) if used is plan else None
            return jax.tree.unflatten(used.out_tree, outputs), shortcut

        dispatcher = functools.partial(
            _compat.dispatcher, self._name, static=sorted(self._static), static_names=sorted(self._static_names)
        )
        repeat_own = None
        if runner.copies_host_arrays:
            repeat_own = dispatcher(run=lambda *args, **kwargs: run(args, kwargs, are_own=True))

        def copy_and_run(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            if repeat_own is not None and _compat.at_top_level():
                leaves, tree = jax.tree.flatten((args, kwargs))
                if any(isinstance(leaf, np.ndarray) for leaf in leaves):
                    args, kwargs = jax.tree.unflatten(tree, runner.with_own_arrays(leaves))
                    return repeat_own(*args, **kwargs), None
            return run(args, kwargs, are_own=False)

        return dispatcher(run=copy_and_run)

    def _settings(self) -> Hashable:
        """Everything that a plan depends on besides the arguments."""
        return _compat.settings(), registrations(self._context)

    def _plan_of(self, call: Call, *, to_run: bool = False) -> Plan:
        if MeshFunction.look is not None:
            MeshFunction.look(self._fun, call, self._multimesh, self._donate)
        plan = self._plans.get(call.key)
        if plan is not None and self._is_to_follow(plan, call.leaves):
            self._plans.pop(call.key, None)
            self._dispatchers.pop(plan, None)
            self._asked.pop(plan, None)
            if plan is self._latest:
                self._repeat = self._direct = None
            plan = None
        if plan is None:
            new = new_to(call, self._plans, self._arguments)
            if explain_cache_misses.value:
                log.warning("%s is planned anew: %s.", self._name, new)
            plan = self._plans[call.key] = make_plan(
                self._fun,
                call,
                self._multimesh,
                donate=self._donate,
                donate_names=self._donate_names,
                arguments=self._arguments,
                to_run=to_run,
                again=new.partition("; ")[0] if self._plans else "",
            )
            if MeshFunction.watch is not None:
                MeshFunction.watch.append(plan)
            if plan.anywhere:
                self._asked[plan] = {_layouts(call.leaves)}
        return plan

    def _is_to_follow(self, plan: Plan, leaves: Sequence[Any]) -> bool:
        """Whether arguments lie on several stages now, and the plan was made when they did not."""
        return plan.anywhere and bool(argument_homes(plan.step, leaves, self._multimesh))

    def _warn_of_copies(self, plan: Plan, leaves: Sequence[Any]) -> None:
        """Warn where arguments lie on several stages, and did not when the plan was made, which warns by itself.

        Calls that the C++ dispatch repeats have layouts that were asked about.
        """
        if not plan.anywhere:
            return
        layouts, asked = _layouts(leaves), self._asked[plan]
        if layouts not in asked:
            asked.add(layouts)
            names = [argument_name(path, self._arguments) for path, _ in paths(plan.in_tree)]
            warn_of_copies(self._name, plan.step, leaves, names, self._multimesh)

    def _report(self, plan: Plan) -> Report:
        from mmruntime._inspect.report import report  # noqa: PLC0415  (see above)

        return report(
            self._name,
            plan.step,
            plan.placement,
            plan.segments,
            plan.shardings,
            plan.program,
            plan.compiled,
            plan.names,
            tuple(plan.delayed.values()),
        )

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        static_args = tuple((i, args[i]) for i in sorted(self._static) if i < len(args))
        static_kwargs = tuple((k, kwargs[k]) for k in sorted(self._static_names) if k in kwargs)
        dynamic = tuple(None if i in self._static else arg for i, arg in enumerate(args))
        dynamic_kwargs = {key: value for key, value in kwargs.items() if key not in self._static_names}
        leaves, tree = jax.tree.flatten((dynamic, dynamic_kwargs))
        signatures = tuple([signature(leaf) for leaf in leaves])
        # Python takes 1, 1.0 and True for the same key; `jax.jit` does not, and the function may ask which it is.
        kinds = tuple(type(value) for _, value in (*static_args, *static_kwargs))
        key = (tree, signatures, static_args, static_kwargs, kinds, self._settings())
        try:
            hash((static_args, static_kwargs))
        except TypeError as error:
            raise TypeError(f"mjit: static arguments of {self._name} must be hashable: {error}.") from error
        return Call(leaves, tree, signatures, key, static_args, static_kwargs)

    @property
    def num_plans(self) -> int:
        """How many input signatures the step was compiled for: one, unless shapes, types or settings vary."""
        return len(self._plans)

    @property
    def latest_plan(self) -> Plan:
        """All that was decided for the signature that was last called or planned; `explain()` sums it up.

        For tools and tests: unlike the fields of a `Report`, its parts may change in any version.

        Raises:
            RuntimeError: If the step was neither called nor planned yet.
        """
        if self._latest is None:
            raise RuntimeError(f"latest_plan: {self._name} has not been called or planned yet.")
        return self._latest

    @property
    def multimesh(self) -> MultiMesh:
        """The mesh that the step is compiled for."""
        return self._multimesh

    @property
    def _context(self) -> Any:
        return self._multimesh.context


def _layouts(leaves: Sequence[Any]) -> frozenset[Any]:
    """Where arrays lie; those that are not committed may go anywhere."""
    return frozenset((getattr(leaf, "sharding", None), getattr(leaf, "committed", False)) for leaf in leaves)


def _direct(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return run(*args, **kwargs)
