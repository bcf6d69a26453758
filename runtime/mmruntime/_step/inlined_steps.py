"""A step that another program or transformation runs as a part of its own: the mesh has no effect, which is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.core import Tracer

from mmruntime import _compat
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.warn import warn
from mmruntime._frontend.constraint import is_placed_later

R = TypeVar("R")


@dataclasses.dataclass(eq=False)
class _Inlined:
    """A call of a step in another program."""

    name: str
    multimesh: MultiMesh
    said: bool = False

    def say(self) -> None:
        """Warn, once for each call that is traced: JAX lowers its equation again for the gradient."""
        if not self.said:
            self.said = True
            axes = ", ".join(f"{name}={size}" for name, size in self.multimesh.shape.items())
            warn(
                "mjit: another program or a transformation, such as jax.jit, jax.lax.scan or jax.grad, runs the step "
                f"{self.name!r} as a part of its own. So it runs where its arguments are, and not on the mesh ({axes})."
                " Call the step outside of it, with a loop of Python for one of jax.lax: steps are issued without "
                "waiting for each other there too. Or compile the function around the call by mm.mjit, of whose step "
                "it is a part then; in a program with hints that is `# mm: mjit`."
            )


def _bind(operand: Any, _: int | None = None, *, step: _Inlined) -> Any:
    return _inlined_p.bind(operand, step=step)


# Where a gradient alone is asked for, nothing is left of a step but its transposed equations.
_inlined_p = _compat.define_identity("mm_inlined_step", transpose=_bind, batch=_bind, used=lambda step: step.say())


class Inliner:
    """Runs a step in a trace of another program, and has what becomes a program of that say so."""

    def __init__(self, name: str, multimesh: MultiMesh) -> None:
        self._name, self._multimesh = name, multimesh
        self._is_parallel = multimesh.devices.size > 1

    def __call__(self, fun: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """What `fun` returns. Nothing is said in another step, or where only shapes are asked for."""
        result = fun(*args, **kwargs)
        if not self._is_parallel or is_placed_later():
            return result
        inlined = _Inlined(self._name, self._multimesh)
        leaves, tree = jax.tree.flatten(result)
        position = next((index for index, leaf in enumerate(leaves) if isinstance(leaf, Tracer)), None)
        if position is None:
            # Of objects that it changes, or of nothing, no equation can tell whether it is ever run.
            inlined.say()
            return result
        leaves[position] = _bind(leaves[position], step=inlined)
        marked: R = jax.tree.unflatten(tree, leaves)
        return marked
