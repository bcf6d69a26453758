"""A step for one signature, ahead of its calls: what `step.lower(...)` and `.compile()` return."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
from jax.core import ShapedArray

from mmruntime import _compat
from mmruntime._core.warn import warn
from mmruntime._execution.find_invalid import kind_of_invalid
from mmruntime._step.plan import Plan
from mmruntime._step.signature import Call, check_alive, signature

if TYPE_CHECKING:
    from mmruntime._inspect.report import Report

R = TypeVar("R")

# Calls a function of arrays as its user would call the function that it was made of.
CallAs = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class LoweredStep(Generic[R]):
    """A step for one signature; its `compile` gives what runs it, as that of `jax.stages.Lowered` does.

    It is compiled already: what a step is traced to, and where that runs, is decided together.
    """

    def __init__(self, compiled: CompiledStep[R]) -> None:
        self._compiled = compiled

    def compile(self) -> CompiledStep[R]:
        """The step for that signature, to be called."""
        return self._compiled


class CompiledStep(Generic[R]):
    """A step that is compiled for one signature: call it as the step, without its static arguments.

    As `jax.stages.Compiled`, it takes arguments of these shapes and types only.

    Args:
        name: Name of the step, for messages.
        call: The arguments that it was compiled for.
        plan: The plan for them.
        report: Reports on a plan.
        call_as: Calls the compiled function of arrays.
        is_to_follow: Whether a plan was made for arguments in one place and these lie on several stages.
    """

    def __init__(
        self,
        name: str,
        call: Call,
        plan: Plan,
        report: Callable[[Plan], Report],
        call_as: CallAs,
        is_to_follow: Callable[[Plan, Sequence[Any]], bool],
    ) -> None:
        self._name = name
        self._call = call
        self._plan = plan
        self._report = report
        self._call_as = call_as
        self._is_to_follow = is_to_follow
        self._has_warned = False
        self._static = frozenset(position for position, _ in call.static_args)
        # Arguments of these positions are gone, so those after them have moved up.
        self._count = len(call.tree.children()[0].children())

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Run the step. Returns as soon as all of its programs are issued.

        Raises:
            TypeError: If the arguments have another tree, other shapes or types than the step was compiled for, or the
                call is inside of another transformation.
            FloatingPointError: Under `jax_debug_nans` and `jax_debug_infs`, if a result holds such a number.
        """
        try:
            result: R = self._call_as(self._run, args, kwargs)
        except Exception as error:
            # As `_compat.api_boundary` does, without another call in each step.
            _compat.leave_out_frames(error)
            raise
        return result

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if not _compat.at_top_level():
            raise TypeError(
                f"{self._name}: a step that was compiled ahead of its calls cannot be transformed; call the step."
            )
        if len(args) == self._count - len(self._static):
            given = iter(args)
            args = tuple([None if k in self._static else next(given) for k in range(self._count)])
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != self._call.tree:
            raise TypeError(
                f"{self._name}: it was compiled for arguments of the tree {self._call.tree}, got {tree}. Static "
                "arguments are left out here. Lower the step for these arguments, or call the step itself."
            )
        for name, leaf, (shape, dtype, _) in zip(self._plan.stacks.names, leaves, self._call.signatures, strict=True):
            got_shape, got_dtype, _ = signature(leaf)
            if (got_shape, got_dtype) != (shape, dtype):
                raise TypeError(
                    f"{self._name}: it was compiled for {name} of shape {shape} and type {dtype}, got {got_shape} and "
                    f"{got_dtype}. Lower the step for these arguments, or call the step, which compiles for each."
                )
        if not self._has_warned and self._is_to_follow(self._plan, leaves):
            self._has_warned = True
            warn(
                f"{self._name}: it was compiled for arguments in one place, and gives every device a copy of these, "
                "which lie on several stages. Lower the step for the arrays, or for jax.ShapeDtypeStructs with their "
                "`sharding`: then it computes where they lie."
            )
        check_alive(self._name, self._plan.stacks.names, leaves, self._plan.reads)
        kinds = _compat.invalid_kinds()
        if not kinds:
            return jax.tree.unflatten(self._plan.out_tree, self._plan.runner(leaves))
        with _compat.without_result_checks():
            result = jax.tree.unflatten(self._plan.out_tree, self._plan.runner(leaves))
        for path, leaf in jax.tree.leaves_with_path(result):
            if (kind := kind_of_invalid(leaf, kinds)) is not None:
                raise FloatingPointError(
                    f"mjit: invalid value ({kind}) in result{jax.tree_util.keystr(path)} of {self._name}, which was "
                    f"compiled ahead of its calls and without jax_debug_{kind}s. Call the step itself, or compile it "
                    "under that setting, to learn the line."
                )
        return result

    @property
    def input_shardings(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The layouts that the step wants its arguments in, in their trees: of positional and of keyword arguments.

        Arguments in other layouts are moved. Static arguments are left out.
        """
        args, kwargs = jax.tree.unflatten(self._call.tree, self._plan.input_layouts())
        return tuple([arg for position, arg in enumerate(args) if position not in self._static]), kwargs

    @property
    def output_shardings(self) -> Any:
        """The layouts of the results, in their tree."""
        return jax.tree.unflatten(self._plan.out_tree, self._plan.output_layouts())

    def explain(self) -> Report:
        """What runs where."""
        return self._report(self._plan)


def abstracted(args: tuple[Any, ...], kwargs: dict[str, Any], static: Collection[Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments with a `jax.ShapeDtypeStruct` for whatever is no array and has a shape and a type.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
        static: Positions and names of static arguments, which stay.
    """

    def over(key: int | str, value: Any) -> Any:
        return value if key in static else jax.tree.map(_abstract, value)

    positional = tuple([over(position, arg) for position, arg in enumerate(args)])
    return positional, {name: over(name, value) for name, value in kwargs.items()}


def _abstract(leaf: Any) -> Any:
    if isinstance(leaf, ShapedArray):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    return leaf
