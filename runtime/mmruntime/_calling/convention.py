"""`Convention`: a step that takes other things than arrays, as a function of arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax

# The keyword argument that carries what a call holds besides arrays.
STATIC = "__static__"


class Convention:
    """How callers and a function of arrays understand each other.

    This one changes nothing: it is that of `jax.jit`.

    Attributes:
        arrays: The function of arrays, which is traced. Its signature is that of the user's function.
        user: The function as callers know it, for calls inside another trace.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.arrays = self.user = fun

    def call(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`run`, which takes and gives what `arrays` does, called as callers call it."""
        return run(*args, **kwargs)

    def inspect(self, report: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`report`, which takes what `arrays` does and gives something else, called as callers call it."""
        return report(*args, **kwargs)


@dataclass(frozen=True)
class Static:
    """A value in a pytree without leaves: part of the structure, so that other values are other signatures."""

    value: Hashable


jax.tree_util.register_pytree_node(Static, lambda node: ((), node.value), lambda value, _: Static(value))


def is_static(node: Any) -> bool:
    """Whether a node of a pytree is a `Static`."""
    return isinstance(node, Static)
