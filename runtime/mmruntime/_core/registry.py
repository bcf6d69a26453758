"""Tasks by scope name: registrations, and the contexts that hold them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from mmruntime import _check, _compat
from mmruntime._core.switches import transforms_ignored
from mmruntime._core.task import Task


class TaskCallback(Protocol):
    """Chooses the task of a matched scope: `callback(match_group, backprop) -> Task`."""

    def __call__(self, match_group: str, backprop: bool, /) -> Task:
        """The task of the scope whose name gave `match_group`."""
        ...


@dataclass(frozen=True)
class Registration:
    """One `register_task` call."""

    matcher: str
    pattern: re.Pattern[str]
    choose: TaskCallback

    def find(self, scope: str) -> str | None:
        """The capture group's text where the pattern matches a scope path such as `Net/layer_1`.

        Raises:
            ValueError: If the pattern matches and its group is empty.
        """
        match = self.pattern.search(scope)
        if match is None:
            return None
        group = match.group(1)
        if not group:
            raise ValueError(
                f"register_task: {self.matcher!r} matches the scope {scope!r} with nothing in its capture group, which "
                "names the task. Let the group match at least one character, as in (layer_\\d+)."
            )
        return group

    def overlaps(self, other: Registration, scope: str) -> bool:
        """Whether this one matches only part of a name in a scope path that the other one matches as well."""
        match = self.pattern.search(scope)
        if match is None or other.pattern.search(scope) is None:
            return False
        return any(
            "/" not in (scope[edge - 1], scope[edge]) for edge in (match.start(), match.end()) if 0 < edge < len(scope)
        )


def _compile(matcher: str) -> re.Pattern[str]:
    if "(" not in matcher:
        # A bare name means whole path components: `layer_1` is not `layer_10`.
        return re.compile(rf"(?:^|/)({matcher})(?=/|$)")
    pattern = re.compile(matcher)
    if pattern.groups != 1:
        raise ValueError(
            f"register_task: {matcher!r} has {pattern.groups} capture groups; it must have exactly one, the part of "
            "the scope name that the callback gets. Write the others as (?:...)."
        )
    return pattern


def make_registration(matcher: str, callback: TaskCallback | None, task: Task | None) -> Registration:
    """The registration of a `register_task` call, checked and compiled.

    Raises:
        TypeError: If neither a task nor a callback was given, or the task is not a `Task`.
        ValueError: If the pattern is not a regular expression with at most one capture group, or the task has neither a
            submesh nor logical axes.
    """
    if not isinstance(matcher, str) or not matcher:
        raise TypeError(f"register_task: the matcher must be a scope name or a regular expression, got {matcher!r}.")
    if callback is not None:
        _check.function(f"register_task({matcher!r})", "callback", callback, "a function of (match_group, backprop)")
    if task is None and callback is None:
        raise TypeError(f"register_task({matcher!r}): give task=mm.Task(...) or callback=..., got neither.")
    if task is not None and not isinstance(task, Task):
        raise _check.wrong(f"register_task({matcher!r})", "task", "a mm.Task", task)
    if task is not None and task == Task(name=task.name):
        raise ValueError(
            f"register_task({matcher!r}): {task} has neither a submesh nor logical axes. Give it mesh_slice= or "
            "mesh=, or logical_axes= for a scope that runs on the whole mesh."
        )
    try:
        pattern = _compile(matcher)
    except re.error as error:
        raise ValueError(f"register_task: {matcher!r} is not a regular expression: {error}.") from error
    if task is not None:
        named = task if task.name is not None else task.replace(name=matcher)
        return Registration(matcher, pattern, lambda match_group, backprop: named)
    assert callback is not None
    chosen = callback

    def choose(match_group: str, backprop: bool, /) -> Task:
        result = chosen(match_group, backprop)
        if not isinstance(result, Task):
            raise ValueError(
                f"The callback of register_task({matcher!r}) returned {result!r} for {match_group!r}; "
                "it must return a mm.Task."
            )
        return result if result.name is not None else result.replace(name=match_group)

    return Registration(matcher, pattern, choose)


class _Changes:
    """Counts changes of registrations and contexts entered or left. While the count stays, so do the registrations."""

    def __init__(self) -> None:
        self.count = 0


changes = _Changes()


class Context:
    """Holds registrations; inside `with context:` they apply to the steps that are traced there."""

    def __init__(self) -> None:
        self.registrations: list[Registration] = []

    @_compat.api_boundary
    def register_task(self, matcher: str, *, callback: TaskCallback | None = None, task: Task | None = None) -> None:
        """Make every scope whose name matches a task.

        Flax module names and `jax.named_scope` names are matched, as paths such as `Net/layer_1`.

        Args:
            matcher: A bare name, which matches whole path components, or a regular expression with one
                capture group, searched for anywhere in the path.
            callback: Called with the captured text and whether the equation is of the backward pass.
            task: The task of every match; wins over `callback`.

        Raises:
            TypeError: If neither is given.
            ValueError: If the pattern is not a regular expression with exactly one capture group, or `task` has neither
                a submesh nor logical axes.
        """
        registration = make_registration(matcher, callback, task)
        self.registrations = [known for known in self.registrations if known.matcher != matcher]
        self.registrations.append(registration)
        changes.count += 1

    def clear(self) -> None:
        """Forget all registrations of this context."""
        self.registrations = []
        changes.count += 1

    def __enter__(self) -> Self:
        _STACK.append(self)
        changes.count += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _STACK.remove(self)
        changes.count += 1


_MODULE = Context()
_STACK: list[Context] = [_MODULE]


@_compat.api_boundary
def register_task(matcher: str, *, callback: TaskCallback | None = None, task: Task | None = None) -> None:
    """Make every scope whose name matches a task, in the innermost context.

    See `Context.register_task` for the arguments and errors. Outside of any context the registration
    holds for the whole process, until `clear_tasks()`.
    """
    _STACK[-1].register_task(matcher, callback=callback, task=task)


def clear_tasks() -> None:
    """Forget every registration that is in force."""
    for context in _STACK:
        context.clear()


@contextlib.contextmanager
def tasks(configurable: Callable[[], Callable[[], object]] | None = None) -> Iterator[None]:
    """Registrations for a while: clears them, runs `configurable()()`, and clears them at the end.

    Args:
        configurable: Returns a function without arguments that registers tasks. If left out, nothing is cleared.

    Raises:
        TypeError: If it is no such function.
    """
    if configurable is None:
        yield
        return
    _check.function("tasks", "configurable", configurable, "a function that returns one that registers tasks")
    clear_tasks()
    try:
        register = configurable()
        _check.function("tasks", "the result of configurable()", register, "a function that registers tasks")
        register()
        yield
    finally:
        clear_tasks()


def registrations(own: Context | None) -> tuple[Registration, ...]:
    """The registrations in force for a step, in the order they are tried: innermost context first.

    Args:
        own: The context of the mesh that the step is compiled for; tried before those entered.
    """
    return () if transforms_ignored() else registered(own)


def registered(own: Context | None) -> tuple[Registration, ...]:
    """As `registrations`, whether or not `ignore_transforms` is in force."""
    found = [] if own is None else [*own.registrations]
    for context in reversed(_STACK):
        if context is not own and context.registrations:
            found += context.registrations
    return tuple(found)
