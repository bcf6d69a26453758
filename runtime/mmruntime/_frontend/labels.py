"""What functions are called in messages and marks."""

from __future__ import annotations

import inspect
from typing import Any


def label_of(fun: Any) -> str:
    """The name of a function; of what a transformation makes, that of the function which it was given."""
    fun = inspect.unwrap(fun)
    # Those of Flax's nnx give it their own name, and hold what they were given in a variable.
    while getattr(fun, "__module__", None) == "flax.nnx.transforms.autodiff" and (given := _given(fun)) is not None:
        fun = inspect.unwrap(given)
    return getattr(fun, "__name__", type(fun).__name__)


def _given(fun: Any) -> Any:
    if not inspect.isfunction(fun) or fun.__closure__ is None or "f" not in fun.__code__.co_freevars:
        return None
    given = fun.__closure__[fun.__code__.co_freevars.index("f")].cell_contents
    return given if callable(given) else None
