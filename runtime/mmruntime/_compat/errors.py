"""JAX's error messages, in words that fit a step on several submeshes, and without frames of libraries."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from jax._src import core, traceback_util
from jax.sharding import AbstractMesh

F = TypeVar("F", bound=Callable[..., Any])


def reword_mixed_devices(reword: Callable[[str, str, list[frozenset[int]], bool], str]) -> None:
    """Have `reword` say what JAX's error about arrays on several sets of devices says.

    Args:
        reword: Takes JAX's message, the name of the function that got the arrays, the ids of each set of devices that
            has some, and whether the mesh in JAX's context has others.
    """
    from jax._src import stages  # noqa: PLC0415  (private: JAX has no hook for its messages)

    name = "_device_assignment_mismatch_error"
    worded = getattr(stages, name, None)
    if worded is None:
        return

    def message(*args: Any, **kwargs: Any) -> str:
        text: str = worded(*args, **kwargs)
        try:
            function, fails = args[:2]
            of_context = [fail.m_type.name == "CONTEXT_DEVICES" for fail in fails]
            devices = [frozenset(f.device_ids) for f, is_mesh in zip(fails, of_context, strict=True) if not is_mesh]
        except (AttributeError, TypeError, ValueError):
            # Another JAX calls it otherwise: its own words will do.
            return text
        return reword(text, f"`{function}`", devices, any(of_context))

    setattr(stages, name, message)


def reword_mixed_meshes(reword: Callable[[str, str, Sequence[AbstractMesh]], str]) -> None:
    """Have `reword` say what JAX's error about arrays of another mesh than that of its context says.

    Args:
        reword: Takes JAX's message, the name of the primitive, and the meshes of its arrays.
    """
    name = "check_avals_context_mesh"
    worded = getattr(core, name, None)
    if worded is None:
        return

    def check(avals: Any, primitive: Any, *args: Any, **kwargs: Any) -> None:
        try:
            worded(avals, primitive, *args, **kwargs)
        except ValueError as error:
            meshes = [each.sharding.mesh for each in avals if hasattr(each, "sharding")]
            text = reword(str(error), f"`{primitive}`", meshes)
            if text == str(error):
                raise
            raise ValueError(text) from None

    setattr(core, name, check)


def reword_fetches(reword: Callable[[str, frozenset[int]], str]) -> None:
    """Have `reword` say what JAX's error says where a process asks for values that lie in other processes.

    Args:
        reword: Takes JAX's message and the ids of the array's devices.
    """
    from jax._src.array import ArrayImpl  # noqa: PLC0415  (private: JAX has no hook for its messages)

    worded = getattr(ArrayImpl, "_value", None)
    if not isinstance(worded, property) or worded.fget is None:
        return
    get = worded.fget

    def value(array: Any) -> Any:
        try:
            return get(array)
        except RuntimeError as error:
            if "non-addressable" not in str(error):
                raise
            devices = frozenset(device.id for device in array.sharding.device_set)
            text = reword(str(error), devices)
            if text == str(error):
                raise
            raise RuntimeError(text) from None

    setattr(ArrayImpl, "_value", property(value))  # noqa: B010  (mypy knows the attribute as read-only)


def api_boundary(function: F) -> F:
    """A public function whose errors leave out the frames of JAX and of this library, as those of JAX's own do."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            leave_out_frames(error)
            raise

    return cast(F, call)


def leave_out_frames(error: BaseException) -> None:
    """Leave the frames of JAX and of this library out of an error, as `jax_traceback_filtering` says.

    What calls it raises the error again, by a bare `raise`, which adds no frame.
    """
    # Private: JAX offers neither its filter, nor what "auto" means here, to others.
    mode = traceback_util._filtering_mode()
    if mode == "off" or traceback_util._is_under_reraiser(error):
        return
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    for link in links:
        if mode == "tracebackhide":
            traceback_util._add_tracebackhide_to_hidden_frames(link.__traceback__)
        elif link.__traceback__ is not None:
            link.__traceback__ = traceback_util.filter_traceback(link.__traceback__)
    note = f"--------------------\n{traceback_util._simplified_tb_msg}"
    if mode != "tracebackhide":
        # JAX's own functions inside have said it before what is said of the error since.
        notes = getattr(error, "__notes__", [])
        if note in notes:
            notes.remove(note)
        error.add_note(note)
