"""State of nnx objects that a loop's function changes and no example decides, such as a count of its calls.

On the whole batch the function runs once, so that this state changes once. Every microbatch starts from what it was
before, and what it is afterwards is computed beside the loop. What examples decide, such as the running mean of a batch
normalisation, cannot be had so: with `batch_stats="microbatch"` it is a result of each microbatch, and the loop takes
their mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mmruntime import _compat
from mmruntime._frontend.nnx_objects import lost_changes
from mmruntime._jaxpr.ir import Op
from mmruntime._jaxpr.rewrite import needed, open_calls


def update_state(
    objects: Sequence[Any], traced: tuple[Any, Any], given: tuple[Any, Any], label: str
) -> Callable[[], None]:
    """Prepare to change nnx objects as one call of a function on the whole batch does.

    Args:
        objects: The objects.
        traced: The state of clones of them that a call on a batch, with keys, has changed: its closed jaxpr, and its
            shape.
        given: The whole batch, and the keys of the loop.
        label: What messages call the function.

    Returns:
        What changes the objects.

    Raises:
        ValueError: If examples or keys decide the new state.
    """
    from flax import nnx  # noqa: PLC0415  (imported by the caller already; nothing else here needs Flax)

    closed, shape = traced
    jaxpr, constants = _compat.split(closed)
    names = [".".join(map(str, path[1:])) for path, part in nnx.to_flat_state(shape) for _ in jax.tree.leaves(part)]
    eqns = [op.eqn for eqn in jaxpr.eqns for op in open_calls(Op(eqn))]
    operands = set(jaxpr.invars)
    decided = []
    for name, atom in zip(names, jaxpr.outvars, strict=True):
        if operands & needed(eqns, [atom])[1]:
            decided.append(name)
    if decided:
        raise ValueError(lost_changes(label, decided))
    kept, _ = needed(eqns, jaxpr.outvars)
    only = _compat.close(jaxpr, [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, kept)

    def update() -> None:
        leaves = _compat.as_fun(only)(*constants, *jax.tree.leaves(given))
        set_state(objects, jax.tree.unflatten(jax.tree.structure(shape), leaves))

    return update


def set_state(objects: Sequence[Any], state: Any) -> None:
    """Change nnx objects in place; None is no change."""
    if state is not None:
        from flax import nnx  # noqa: PLC0415  (imported by the caller already; nothing else here needs Flax)

        nnx.update(tuple(objects), state)


def without_state(name: str) -> str:
    """What messages call a leaf of (result, state of nnx objects), given its name in both together."""
    own, state = "result[0]", "result[1]"
    if name.startswith(state):
        # Behind it are the position of the object and the path to the variable in it.
        _, _, path = name.removeprefix(state).partition("]")
        return "the state " + ".".join(re.findall(r"\w+", path.removesuffix(".value")))
    return "result" + name.removeprefix(own)
