"""Record the calls of gradient functions while a step is traced: their lines, and the shapes of their arguments."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp

# Functions that make gradient functions, by module, and the option that says which arguments are differentiated.
_MAKERS = {
    "jax": (("grad", "value_and_grad"), "argnums"),
    "flax.nnx": (("grad", "value_and_grad"), "argnums"),
    "equinox": (("filter_grad", "filter_value_and_grad"), ""),
    "haiku": (("grad", "value_and_grad"), "argnums"),
}


_LIBRARIES = ("site-packages", "dist-packages", os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@contextlib.contextmanager
def recorded_gradients() -> Iterator[list[dict[str, Any]]]:
    """A list of the calls of gradients meanwhile, of functions that are made meanwhile.

    A call has its "places", file and line of the call and of where its function was made, the positions that are
    "differentiated", and for each other argument, by position or name, the "rows" that all of its arrays have, None if
    they differ, and whether each of them is a "key".
    """
    calls: list[dict[str, Any]] = []
    active: list[FrameType] = []
    with contextlib.ExitStack() as stack:
        for module, (names, option) in _MAKERS.items():
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                continue
            library = importlib.import_module(module)
            for name in names:
                original = getattr(library, name)
                setattr(library, name, _recording(original, option, calls, active))
                stack.callback(setattr, library, name, original)
        yield calls


def _recording(
    make: Callable[..., Any], option: str, calls: list[dict[str, Any]], active: list[FrameType]
) -> Callable[..., Any]:
    @functools.wraps(make)
    def recording(*args: Any, **kwargs: Any) -> Any:
        made, frame = make(*args, **kwargs), _own_frame(sys._getframe(1))
        places = [] if frame is None else [(frame.f_code.co_filename, frame.f_lineno)]
        if not args and "fun" not in kwargs and "f" not in kwargs:
            # A decorator with options.
            return lambda function: _recorded(made(function), places, kwargs, option, calls, active)
        options = {option: args[1], **kwargs} if option and len(args) > 1 else kwargs
        return _recorded(made, places, options, option, calls, active)

    return recording


def _recorded(
    gradient: Callable[..., Any],
    places: list[tuple[str, int]],
    options: dict[str, Any],
    option: str,
    calls: list[dict[str, Any]],
    active: list[FrameType],
) -> Callable[..., Any]:
    chosen = options.get(option, 0)
    # A position, or what says of an object which of its parts are meant.
    given = chosen if isinstance(chosen, tuple | list) else (chosen,)
    positions = [getattr(each, "argnum", each) for each in given]

    @functools.wraps(gradient)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        frame = _own_frame(sys._getframe(1))
        if frame is None or frame in active:
            # A library's own, or the one inside of it.
            return gradient(*args, **kwargs)
        differentiated = [position % len(args) for position in positions if isinstance(position, int) and args]
        others = {str(k): _argument(each) for k, each in enumerate(args) if k not in differentiated}
        calls.append(
            {
                "places": [(frame.f_code.co_filename, frame.f_lineno), *places],
                "count": len(args),
                "differentiated": differentiated,
                "arguments": {**others, **{name: _argument(each) for name, each in kwargs.items()}},
            }
        )
        active.append(frame)
        try:
            return gradient(*args, **kwargs)
        finally:
            active.pop()

    return recorded


def _own_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame outside of installed packages and of this one."""
    while frame is not None and any(part in frame.f_code.co_filename for part in _LIBRARIES):
        frame = frame.f_back
    return frame


def _argument(value: Any) -> dict[str, Any]:
    leaves = [leaf for leaf in jax.tree.leaves(value) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
    rows = {leaf.shape[0] if leaf.shape else None for leaf in leaves}
    keys = bool(leaves) and all(map(_is_key, leaves))
    return {"rows": rows.pop() if len(rows) == 1 and not keys else None, "key": keys}


def _is_key(leaf: Any) -> bool:
    """Whether an array is one random key, of the new kind or as two words."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return bool(leaf.shape == ())
    return bool(leaf.dtype == jnp.uint32 and leaf.shape == (2,))
