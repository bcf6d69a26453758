"""`LiftedFunction`: a compiled step that is called in another convention than that of `jax.jit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mmruntime import _compat
from mmruntime._calling.convention import Convention
from mmruntime._core.multimesh import MultiMesh
from mmruntime._step.ahead_of_time import LoweredStep
from mmruntime._step.mesh_function import MeshFunction

if TYPE_CHECKING:
    from mmruntime._inspect.report import Report
    from mmruntime._inspect.timeline import Measurement, Timeline

P = ParamSpec("P")
R = TypeVar("R")


class LiftedFunction(MeshFunction[P, R]):
    """A step of objects, of arrays and other values, or of rows for each device.

    `explain`, `latest_plan` and `abstract_args` speak of the function of arrays that it becomes.
    """

    def __init__(
        self,
        convention: Convention,
        multimesh: MultiMesh,
        donate: Sequence[int],
        donate_names: Sequence[str],
        static: Sequence[int],
        static_names: Sequence[str],
    ) -> None:
        super().__init__(convention.arrays, multimesh, donate, donate_names, static, static_names)
        self._convention = convention

    @_compat.api_boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step, as `MeshFunction` does."""
        if not _compat.at_top_level():
            inlined: R = self._inline(self._convention.user, args, kwargs)
            return inlined
        result: R = self._convention.call(super().__call__, args, kwargs)
        return result

    @_compat.api_boundary
    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Report:
        """Trace, place and compile for these arguments without running."""
        made: Report = self._convention.inspect(super().plan, args, kwargs)
        return made

    @_compat.api_boundary
    def lower(self, *args: P.args, **kwargs: P.kwargs) -> LoweredStep[R]:
        """The step for these arguments, ahead of its calls."""

        def lowered(*args: Any, **kwargs: Any) -> LoweredStep[R]:
            return self._lowered(self._convention.call, args, kwargs)

        made: LoweredStep[R] = self._convention.inspect(lowered, args, kwargs)
        return made

    @_compat.api_boundary
    def timeline(self, *args: P.args, **kwargs: P.kwargs) -> Timeline:
        """Run the step on copies of these arguments, watched, without changing objects among them."""
        made: Timeline = self._convention.inspect(super().timeline, args, kwargs)
        return made

    @_compat.api_boundary
    def measure(self, *args: P.args, **kwargs: P.kwargs) -> Measurement:
        """Time each program of the step alone on these arguments, without changing objects among them."""
        made: Measurement = self._convention.inspect(super().measure, args, kwargs)
        return made
