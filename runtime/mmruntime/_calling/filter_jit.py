"""The convention of `equinox.filter_jit`: arrays are traced, everything else is part of the signature."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mmruntime._calling.convention import STATIC, Convention, Static, is_static

# As `equinox.is_array`.
_ARRAYS = (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)


class FilterJit(Convention):
    """A step whose arguments and results mix arrays with functions, numbers and strings.

    A call with another such value, or another structure, is traced anew.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        super().__init__(fun)

        @functools.wraps(fun)
        def arrays(*args: Any, **kwargs: Any) -> Any:
            static = kwargs.pop(STATIC).value
            args, kwargs = _joined((args, kwargs), static)
            result, kept = _parted(fun(*args, **kwargs))
            # A tuple stays one, so that state among its items is recognised.
            items = result if type(result) is tuple else (result,)
            return *items, Static((type(result) is tuple, kept))

        self.arrays = arrays

    def call(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`run` with the arrays of the call; the results with what is no array put back."""
        *items, static = self.inspect(run, args, kwargs)
        is_tuple, kept = static.value
        return _joined(tuple(items) if is_tuple else items[0], kept)

    def inspect(self, report: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`report` with the arrays of the call."""
        (args, kwargs), kept = _parted((args, kwargs))
        static = Static(kept)
        try:
            hash(static)
        except TypeError as error:
            values = ", ".join(sorted({type(value).__name__ for value in kept if not _is_hashable(value)}))
            raise TypeError(
                f"mjit: got {values} among the arguments. What is no array becomes part of the compiled step, as under "
                "eqx.filter_jit, so it must be hashable."
            ) from error
        return report(*args, **kwargs, **{STATIC: static})


def _parted(tree: Any) -> tuple[Any, tuple[Any, ...]]:
    """The tree with its other leaves taken out, and these."""
    kept: list[Any] = []

    def part(leaf: Any) -> Any:
        if isinstance(leaf, _ARRAYS):
            return leaf
        kept.append(leaf)
        return _HOLE

    return jax.tree.map(part, tree), tuple(kept)


def _joined(tree: Any, kept: tuple[Any, ...]) -> Any:
    rest = iter(kept)
    return jax.tree.map(lambda node: next(rest) if is_static(node) else node, tree, is_leaf=is_static)


_HOLE = Static(None)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
