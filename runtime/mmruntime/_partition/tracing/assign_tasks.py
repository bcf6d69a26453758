"""The task of an equation, from marks and from the scopes that it was traced in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mmruntime import _compat
from mmruntime._core.marks import TASKS
from mmruntime._core.registry import Registration
from mmruntime._core.task import Task
from mmruntime._core.warn import warn
from mmruntime._jaxpr.ir import at_line

# Name of the scope that JAX puts around the recomputation of a rematerialised body.
_REMAT_SCOPE = "rematted_computation"


class TaskFinder:
    """Finds an equation's task.

    Marks of `task()` come first, the outermost one. Else registrations are tried in order, each against the
    scope paths of the equation, and the first that matches anywhere wins.

    Args:
        registrations: The registrations in force, in the order in which they are tried.
    """

    def __init__(self, registrations: Sequence[Registration]) -> None:
        self._registrations = registrations
        self._tasks: dict[tuple[tuple[str, ...], bool], Task | None] = {}
        self.names: dict[str, Task] = {}
        self._warned: set[tuple[str, str]] = set()
        self._whole_scans: set[str] = set()

    def find(self, eqn: Any) -> tuple[Task | None, bool]:
        """The task of an equation, None if it has none, and whether it is of the backward pass.

        Raises:
            ValueError: If two different tasks have one name.
        """
        stack = _compat.scopes(eqn)
        backward = any(transform and name == "transpose" for name, transform in stack)
        for name, transform in stack:
            if not transform and (task := TASKS.find(name)) is not None:
                return task, backward
        if eqn.primitive is _compat.jit_p and (task := TASKS.find(eqn.params["name"])) is not None:
            return task, backward
        if not self._registrations:
            return None, backward
        if eqn.primitive is _compat.remat_p:
            inside = {self._lookup((path,), backward) for path in _body_paths(eqn, stack)} - {None}
            if inside:
                # Around several tasks it belongs to none of them, and is opened.
                return inside.pop() if len(inside) == 1 else None, backward
        return self._lookup(_paths(stack), backward), backward

    def _lookup(self, paths: tuple[str, ...], backward: bool) -> Task | None:
        key = (paths, backward)
        if key not in self._tasks:
            self._tasks[key] = self._match(paths, backward)
        return self._tasks[key]

    def _match(self, paths: tuple[str, ...], backward: bool) -> Task | None:
        for registration in self._registrations:
            for path in paths:
                group = registration.find(path)
                if group is None:
                    continue
                self._warn_of_others(registration, path)
                task = registration.choose(group, backward)
                assert task.name is not None
                known = self.names.setdefault(task.name, task)
                if known != task:
                    raise ValueError(
                        f"Two registered tasks have the name {task.name!r} but differ: {known} and {task}. Tasks of "
                        "one name are one task; give them different names or the same submesh."
                    )
                return task
        return None

    def _warn_of_others(self, taken: Registration, path: str) -> None:
        for other in self._registrations:
            both = taken.matcher, other.matcher
            if other is not taken and both not in self._warned and taken.overlaps(other, path):
                self._warned.add(both)
                warn(
                    f"register_task: {taken.matcher!r} matches part of a name in the scope {path!r}, which "
                    f"{other.matcher!r} matches as well but comes after. Write a bare name, which matches whole names "
                    "only, or end the expression with (?=/|$)."
                )

    def may_be_inside(self, jaxpr: Any) -> bool:
        """Whether a jaxpr may hold an equation of a task: for registrations that takes the scopes around it, too."""
        return bool(self._registrations) or self.inside(jaxpr, lambda eqn: False)

    def warn_of_circle(self, eqn: Any, tasks: Sequence[Task]) -> None:
        """Say that a scan stays whole, once for it and the scan of its backward pass."""
        if at_line(eqn) in self._whole_scans:
            return
        self._whole_scans.add(at_line(eqn))
        names = ", ".join(sorted({repr(task.name) for task in tasks}))
        warn(
            f"mjit: the scan{at_line(eqn)} runs as one program on one submesh, with all parameters that it reads, "
            f"though the tasks {names} are in its body: each turn of one needs what another makes in the turn before, "
            "or the body has effects. If a turn is a step of training, compile that by mm.mjit, and write the loop in "
            "Python; in a model, put all of them on one stage, or the tasks around scans of their own."
        )

    def inside(self, jaxpr: Any, test: Callable[[Any], bool]) -> bool:
        """Whether a jaxpr holds, at any depth, an equation that is a task's or that passes a test."""
        return any(test(eqn) or self.find(eqn)[0] is not None for eqn in _compat.every_equation(jaxpr.eqns))


def _runs(stack: list[tuple[str, bool]]) -> list[list[str]]:
    """The names of a stack, cut where a transformation stands between them."""
    runs: list[list[str]] = [[]]
    for name, transform in stack:
        if transform:
            if runs[-1]:
                runs.append([])
        elif name != _REMAT_SCOPE:
            runs[-1].append(name)
    return [run for run in runs if run]


def _paths(stack: list[tuple[str, bool]]) -> tuple[str, ...]:
    """The scope paths by which a registration may match an equation.

    Transformations cut the stack into runs. After rematerialisation the path occurs twice,
    `transpose(jvp(Net))/jvp(Net/layer_0)`: the last run is the most precise, and all of them together are
    tried at the end.
    """
    runs = _runs(stack)
    paths = ["/".join(run) for run in reversed(runs)]
    if len(runs) > 1:
        paths.append("/".join(name for run in runs for name in run))
    return tuple(dict.fromkeys(paths))


def _body_paths(eqn: Any, stack: list[tuple[str, bool]]) -> tuple[str, ...]:
    """The scope paths within a rematerialised body: `nn.remat` keeps the module's own name for there."""
    runs = _runs(stack)
    base = runs[-1] if runs else []
    paths = []
    for inner in _compat.split(eqn.params["jaxpr"])[0].eqns:
        names = [name for name, transform in _compat.scopes(inner) if not transform and name != _REMAT_SCOPE]
        if names:
            paths.append("/".join([*base, *names]))
    return tuple(dict.fromkeys(paths))
