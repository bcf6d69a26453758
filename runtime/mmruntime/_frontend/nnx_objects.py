"""Flax nnx objects among the arguments of a traced function: find them, and clone them into its trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import jax


def is_stateful(value: Any) -> bool:
    """Whether a value is an nnx object, which calls may change in place."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Pytree | nnx.Variable)


def stateful_leaves(tree: Any) -> tuple[Any, ...]:
    """The nnx objects in a tree."""
    if "flax.nnx" not in sys.modules:
        return ()
    return tuple(leaf for leaf in jax.tree.leaves(tree, is_leaf=is_stateful) if is_stateful(leaf))


def has_stateful(tree: Any) -> bool:
    """Whether a tree holds nnx objects."""
    return bool(stateful_leaves(tree))


def is_trace_error(error: Exception) -> bool:
    """Whether nnx refused to change an object in another trace than it was made in."""
    errors = sys.modules.get("flax.errors")
    return errors is not None and isinstance(error, errors.TraceContextError)


def with_other_arrays(objects: tuple[Any, ...], function: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Copies of nnx objects, with `function` of their arrays. What the objects share, the copies share."""
    from flax import nnx  # noqa: PLC0415  (imported by the caller already; nothing else here needs Flax)

    graph, state = nnx.split(objects)
    copies: Any = nnx.merge(graph, jax.tree.map(function, state))
    return tuple(copies)


def made_anew(tree: Any, label: str, may_count: Sequence[Any] = ()) -> tuple[Any, Callable[[], Callable[[], Any]]]:
    """The tree with its nnx objects cloned in the current trace.

    nnx refuses to change an object in another trace than it was made in; nnx's own transformations clone likewise.

    Args:
        tree: Arguments of a function, of any kind.
        label: What messages call the function.
        may_count: The objects of the tree whose random streams (`nnx.RngStream`) may advance.

    Returns:
        The tree, and a function that begins to watch the clones. It gives a function to call after the traced one,
        which returns the state of the clones that was changed, in the order of `stateful_leaves`, None if none was. It
        raises a ValueError if there are new variables, or random streams that may not advance did.
    """
    if not has_stateful(tree):
        return tree, lambda: lambda: None
    from flax import nnx  # noqa: PLC0415  (imported by the caller already; nothing else here needs Flax)

    placed, structure = jax.tree.flatten_with_path(tree, is_leaf=is_stateful)
    leaves = [leaf for _, leaf in placed]
    objects = [leaf for leaf in leaves if is_stateful(leaf)]
    places = [jax.tree_util.keystr(place) for place, leaf in placed if is_stateful(leaf)]
    # In one call, because objects may share variables.
    copies = nnx.clone(tuple(objects))
    rest = iter(copies)
    copied = jax.tree.unflatten(structure, [next(rest) if is_stateful(leaf) else leaf for leaf in leaves])
    counting = [copy for leaf, copy in zip(objects, copies, strict=True) if any(leaf is each for each in may_count)]
    counts = {id(node) for copy in counting for _, node in nnx.iter_graph(copy) if isinstance(node, nnx.RngCount)}
    kept = {path for path, node in nnx.iter_graph(copies) if isinstance(node, nnx.Variable) and id(node) not in counts}

    def values() -> dict[Any, Any]:
        return {path: variable for path, variable in nnx.to_flat_state(nnx.state(copies)) if path in kept}

    def watch() -> Callable[[], Any]:
        before = {path: jax.tree.leaves(variable) for path, variable in values().items()}

        def changed() -> Any:
            found = [
                (path, variable)
                for path, variable in values().items()
                if path not in before
                or any(a is not b for a, b in zip_longest(before[path], jax.tree.leaves(variable)))
            ]
            streams = [path for path, each in found if path in before and isinstance(each, nnx.RngState)]
            if streams:
                at = [places[int(path[0])] for path in streams]
                raise ValueError(unnamed_streams(label, [".".join(map(str, path[1:])) for path in streams], at))
            lost = [path for path, _ in found if path not in before]
            if lost:
                raise ValueError(lost_changes(label, [".".join(map(str, path[1:])) for path in lost]))
            return nnx.from_flat_state(found) if found else None

        return changed

    return copied, watch


def unnamed_streams(label: str, names: Sequence[str], places: Sequence[str]) -> str:
    """The message about random streams of nnx objects that nothing says how to cut.

    `places` are those of the objects among (positional arguments, keyword arguments), as `jax.tree_util.keystr` has it.
    """
    kinds, arguments = zip(*(place.replace("]", "").split("[")[1:3] for place in places), strict=True)
    wanted = ", ".join(dict.fromkeys(arguments))
    write = f"Write rng={f'({wanted})' if ',' in wanted else wanted}."
    if "1" in kinds:
        write = "Pass it by position, and name that: microbatch(..., rng=0)."
    return (
        f"microbatch: {label} draws from random streams of argument {wanted}, such as {names[0]}, and nothing says how "
        f"each microbatch gets numbers of its own. {write}"
    )


def lost_changes(label: str, names: Sequence[str]) -> str:
    """The message about state that each microbatch would change in its own way."""
    return (
        f"microbatch: {label} changes {', '.join(names)} of an nnx object among its arguments in every microbatch, and "
        "these changes would be lost. Use a normalisation without running statistics, or have each microbatch use its "
        'own statistics, of which batch_stats="microbatch" averages what they leave behind. For dropout, name the '
        "argument that holds the random streams by its position: microbatch(..., rng=0)."
    )
