"""Lines of the program that made an equation, a value or an error, and the names that the program has for them."""

from __future__ import annotations

import functools
import itertools
import os
import traceback
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import core, source_info_util

from mmruntime._compat.jaxprs import inner_jaxprs, jit_p, split

# Where a step is called and traced, and where Python's own modules lie.
_STEP = os.path.join(os.path.dirname(os.path.dirname(__file__)), "_step", "")
_PYTHON = (os.path.join(os.path.dirname(os.__file__), ""), "<frozen ")


def scopes(eqn: Any) -> list[tuple[str, bool]]:
    """The name stack of an equation, outermost first: (name, whether it is a transformation)."""
    return [(entry.name, type(entry).__name__ == "Transform") for entry in eqn.source_info.name_stack.stack]


def named_operations(eqns: Iterable[Any], around: Any = None) -> Iterator[tuple[str, Any]]:
    """Equations, at any depth, each behind the name that XLA has for its operations: its scopes and its primitive."""
    around = source_info_util.new_name_stack() if around is None else around
    for eqn in eqns:
        scopes = around + eqn.source_info.name_stack
        yield "/".join(filter(None, (str(scopes), eqn.primitive.name))), eqn
        within = scopes.extend(f"jit({eqn.params['name']})") if eqn.primitive is jit_p else scopes
        for inner in inner_jaxprs(eqn):
            yield from named_operations(inner.eqns, within)


def current_scopes() -> list[tuple[str, bool]]:
    """The current name stack of the trace, outermost first: (name, whether it is a transformation)."""
    stack = source_info_util.current_name_stack().stack
    return [(entry.name, type(entry).__name__ == "Transform") for entry in stack]


def source_lines(eqn: Any) -> str:
    """The user's line that made an equation, as `file:line (function)`; empty if there is none."""
    return str(source_info_util.summarize(eqn.source_info))


def source_lines_outside_packages(eqn: Any) -> str:
    """As `source_lines`, followed by the line of the user's own code where that is inside of an installed package."""
    lines = source_lines(eqn)
    frames = list(source_info_util.user_frames(eqn.source_info.traceback))
    own = next((each for each in frames if "site-packages" not in each.file_name), None)
    if own is None or not frames or own is frames[0]:
        return lines
    return f"{lines}, called at {own.file_name}:{own.start_line} ({own.function_name})"


def own_line(eqn: Any) -> str:
    """The line of the user's own code that led to an equation, as `file:line`; empty if there is none.

    It is one of the step: what calls that has led to all of its equations.
    """
    code, instructions = eqn.source_info.traceback.raw_frames() if eqn.source_info.traceback else ([], [])
    for each, instruction in zip(code, instructions, strict=True):
        name = each.co_filename
        if name.startswith(_STEP):
            break
        if source_info_util.is_user_filename(name) and not is_of_a_library(name) and not name.startswith(_PYTHON):
            return f"{name}:{source_info_util.raw_frame_to_frame(each, instruction).start_line}"
    return ""


def innermost_line(eqn: Any) -> str:
    """The line that made an equation, be it of an installed library, as `file:line`; empty if it is not known."""
    frame = next(iter(source_info_util.user_frames(eqn.source_info.traceback)), None)
    return "" if frame is None else f"{frame.file_name}:{frame.start_line}"


def own_frames(eqn: Any) -> tuple[tuple[str, int, int, int, int], ...]:
    """Files, lines and columns of the calls that led to an equation, outside of JAX, from where to where.

    An equation of a derivative has those of the equation that it is the derivative of.
    """
    frames = source_info_util.user_frames(eqn.source_info.traceback)
    return tuple((f.file_name, f.start_line, f.start_column, f.end_line, f.end_column) for f in frames)


def is_call_of_library(eqn: Any) -> bool:
    """Whether an equation calls a compiled function of an installed library. JAX may give it the lines of another call.

    JAX traces such a function once, and has the lines of the first call in all of its equations.
    """
    info = getattr(split(eqn.params["jaxpr"])[0], "debug_info", None) if eqn.primitive is jit_p else None
    return info is not None and is_of_a_library(str(info.func_src_info))


def raised_at(error: BaseException) -> str:
    """Where the user's own program raised an error, as `file:line (function)`; empty if that is not known.

    Chosen as `user_line` does.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)[::-1]
        if source_info_util.is_user_filename(frame.filename)
    ]
    found = next((frame for frame in frames if not is_of_a_library(frame.filename)), frames[0] if frames else None)
    return "" if found is None else f"{found.filename}:{found.lineno} ({found.name})"


def name_trace(function: Any, what: str, label: str, code: types.CodeType | None, arguments: Sequence[str]) -> None:
    """Have JAX, where it traces a function of ours, speak of another one and of its arguments.

    Args:
        function: Ours, of flat arguments.
        what: What it is traced for.
        label: The other one's name.
        code: Its code, if it has any.
        arguments: What to call each argument of `function`.
    """
    where = f" at {code.co_filename}:{code.co_firstlineno}" if code is not None else ""
    # Private: `jax.jit` reads both from the function that it is given, whose own arguments are none of the user's.
    info = core.DebugInfo(what, f"{label}{where}", tuple(arguments), core.initial_result_paths)
    function.__fun_debug_info__ = info


def user_line(eqn: Any) -> str:
    """Where the user's own program calls an equation, as `file:line (function)`; empty if that is not known.

    Of the frames outside of JAX, the innermost that is in no installed library; without one, the innermost.
    """
    return _user_line(eqn.source_info)


def _user_line(info: Any) -> str:
    frames = list(source_info_util.user_frames(info.traceback))
    found = next((frame for frame in frames if not is_of_a_library(frame.file_name)), None)
    if found is None and not frames:
        return ""
    found = found or frames[0]
    return f"{found.file_name}:{found.start_line} ({found.function_name})"


# Where the functions are that people call, by the folder or file of JAX's that they are made in.
_PUBLIC: Mapping[str, tuple[str, ...]] = {
    "numpy": ("jnp", "jnp.linalg", "jnp.fft"),
    "lax": ("jax.lax", "jax.lax.linalg"),
    "nn": ("jax.nn",),
    "ops": ("jax.nn", "jax.ops"),
    "random": ("jax.random",),
    "random.py": ("jax.random",),
    "scipy": ("jax.scipy.special", "jax.scipy.linalg", "jax.scipy.stats", "jax.scipy.signal"),
}


def called_function(eqn: Any) -> str:
    """The public function of JAX whose call in the program of somebody else made an equation, such as `jnp.std`.

    Empty for operators, and where it is not known.
    """
    frames = eqn.source_info.traceback.frames if eqn.source_info.traceback is not None else []
    inner = list(itertools.takewhile(lambda frame: not source_info_util.is_user_filename(frame.file_name), frames))
    if len(inner) == len(frames):
        return ""
    private = os.path.join(os.path.dirname(jax.__file__), "_src", "")
    calls = [
        (frame.file_name.removeprefix(private).split(os.sep)[0], frame.function_name.rpartition(".")[2])
        for frame in reversed(inner)
    ]
    if eqn.primitive is jit_p:
        # A function of theirs that is compiled has no frame of its own.
        calls += [(place, eqn.params["name"]) for place in _PUBLIC]
    for place, name in calls:
        if name.startswith("_operator_") or name == "_getitem":
            return ""
        for module in _PUBLIC.get(place, ()):
            # A method, as of `x.std()`, is the function with an underscore.
            found = functools.reduce(
                lambda at, part: getattr(at, part, None), module.split(".")[1:], _ROOTS[module[:3]]
            )
            if callable(getattr(found, name.lstrip("_"), None)):
                return f"{module}.{name.lstrip('_')}"
    return ""


_ROOTS: Mapping[str, Any] = {"jnp": jnp, "jax": jax}


def is_of_a_library(file_name: str) -> bool:
    """Whether a file is of an installed package, by where it lies."""
    return any(f"{os.sep}{folder}{os.sep}" in file_name for folder in ("site-packages", "dist-packages"))


def made_at(tracer: Any) -> str:
    """Where a value that is only known while tracing was made, as of `user_line`."""
    info = getattr(tracer, "_line_info", None)
    return "" if info is None else _user_line(info)
