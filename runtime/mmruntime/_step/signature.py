"""Signatures: what identifies a call, the names of its arguments, and which of them are carried state."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from mmruntime import _check, _compat
from mmruntime._frontend.labels import argument_name, parameters_of
from mmruntime._jaxpr.ir import Step, num_elements

_BY_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD


@dataclass(eq=False, slots=True, frozen=True)
class Call:
    """A call as array leaves, their tree, and static arguments.

    Attributes:
        leaves: Its arrays.
        tree: The tree of its arguments and keyword arguments, without the static ones.
        signatures: Shape and type of each array.
        key: Everything that the compiled step depends on.
        static_args: Positions and values of static arguments.
        static_kwargs: Names and values of static keyword arguments.
    """

    leaves: list[Any]
    tree: Any
    signatures: tuple[Any, ...]
    key: Any
    static_args: tuple[tuple[int, Any], ...]
    static_kwargs: tuple[tuple[str, Any], ...]


class Repeat:
    """Recognises calls like an earlier one, which is quicker than computing their keys.

    Args:
        tree: The tree of the earlier call.
        signatures: Shape and type of each of its arrays.
        settings: Switches, settings of JAX and registrations at that call.
    """

    def __init__(self, tree: Any, signatures: Sequence[Any], settings: Any) -> None:
        self._tree = tree
        self._signatures = signatures
        self._settings = settings
        # Abstract values of the arrays of a call that fitted, and positions of arguments that are no JAX arrays. The
        # results of an executable share one abstract value, so that comparing carried state costs next to nothing.
        self._avals: list[Any] = []
        self._host: list[int] = []

    def fits(self, leaves: Sequence[Any], tree: Any, settings: Any) -> bool:
        """Whether a call of these arrays is like the earlier one.

        Raises:
            TypeError: If an argument is neither an array nor a number.
        """
        if tree != self._tree or settings != self._settings:
            return False
        avals = [getattr(leaf, "aval", None) for leaf in leaves]
        known = self._avals == avals
        for index in self._host if known else range(len(leaves)):
            if signature(leaves[index]) != self._signatures[index]:
                return False
        if not known:
            self._avals = avals
            self._host = [index for index, aval in enumerate(avals) if aval is None]
        return True


def signature(leaf: Any) -> Any:
    """Shape, type and weak type of an argument.

    Raises:
        TypeError: If it is neither an array nor a number.
    """
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype), False
    if isinstance(leaf, bool | int | float | complex):
        # As the result of the same step will be, so that state may start as a number.
        aval = jax.typeof(leaf)
        return aval.shape, aval.dtype, getattr(aval, "weak_type", False)
    if isinstance(leaf, jax.Ref):
        raise TypeError(
            "mjit: got a jax.Ref as an argument. A ref lives on the devices of one program, and a step is several. "
            "Pass its value, ref[...], make a ref of it in the step with jax.new_ref, and return its last value."
        )
    raise TypeError(
        f"mjit: got {leaf!r} of type {type(leaf).__name__} as an argument; arguments must be arrays or numbers, in "
        "pytrees. Mark others with static_argnums= or static_argnames=."
    )


def new_to(call: Call, earlier: Iterable[Any], arguments: Sequence[str]) -> str:
    """What of a call differs from the earlier one that is most like it, in words.

    Args:
        call: The call.
        earlier: The keys of others.
        arguments: Names of the function's parameters.
    """
    names = [argument_name(path, arguments) for path, _ in paths(call.tree)]

    def differences(key: Any) -> list[str]:
        (tree, leaves, *static, (settings, registered)), (old_tree, old_leaves, *old_static, (before, old)) = (
            call.key,
            key,
        )
        found = []
        if tree != old_tree:
            found.append("the arguments differ in more than arrays, as an nnx model does after eval() or train()")
        else:
            pairs = zip(names, leaves, old_leaves, strict=True)
            found += [f"{name} is {_shown(now)}, and was {_shown(then)}" for name, now, then in pairs if now != then]
        if static != old_static:
            found.append("static arguments are others")
        if settings != before:
            changed = zip(_compat.setting_names(), settings, before, strict=False)
            found += [f"{name} is {now}, and was {then}" for name, now, then in changed if now != then]
        return [*found, "other tasks are registered"] if registered != old else found

    keys = list(earlier)
    every: list[list[str]] = []
    for key in keys:
        # Values of a user's class may refuse to be compared.
        with contextlib.suppress(Exception):
            every.append(differences(key))
    if not every:
        return "its arguments are others" if keys else "it is the first call"
    nearest = min(every, key=len)
    return "; ".join(nearest)


def _shown(leaf: Any) -> str:
    shape, dtype, weak = leaf
    return f"{'weak ' if weak else ''}{dtype}{list(shape)}"


def check_alive(
    label: str, names: Sequence[str], leaves: Sequence[Any], reads: Callable[[int], bool] | None = None
) -> None:
    """Refuse arrays that an earlier call was given to keep: with several devices, JAX 0.10 ends the process for them.

    Args:
        label: The step's name.
        names: The user's names for its arguments.
        leaves: The arguments.
        reads: Whether the step reads the argument of a position; None if it reads all of them.

    Raises:
        RuntimeError: If one that it reads has been donated or deleted.
    """
    if True not in [leaf.is_deleted() for leaf in leaves if hasattr(leaf, "is_deleted")]:
        return
    # What other processes hold is one object for many results.
    here = [(k, leaf) for k, leaf in enumerate(leaves) if isinstance(leaf, jax.Array) and leaf.is_deleted()]
    gone = [k for k, leaf in here if leaf.sharding.addressable_devices and (reads is None or reads(k))]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise RuntimeError(
            f"mjit: {names[gone[0]]} of {label}, of shape {leaves[gone[0]].shape}{more}, has been deleted, as by a "
            "call that it was donated to (donate_argnums, donate_argnames). Pass what that call returned in its place, "
            "or donate nothing that is needed again."
        )


def chosen_arguments(
    fun: Callable[..., Any], option: str, argnums: int | Sequence[int] | None, argnames: str | Iterable[str] | None
) -> tuple[list[int], list[str]]:
    """Positions and names of the arguments that `..._argnums` and `..._argnames` choose together, as in `jax.jit`.

    Args:
        fun: The function that is compiled.
        option: "static" or "donate".
        argnums: Positions; negative ones count from the end.
        argnames: Names.

    Raises:
        TypeError: If a position is no integer or a name no string.
        ValueError: If the function has no such position or name.
    """
    numbers = _listed(f"{option}_argnums", argnums, int, "the position of an argument, or several")
    names = _listed(f"{option}_argnames", argnames, str, "the name of an argument, or several")
    if not numbers and not names:
        return [], []
    parameters = parameters_of(fun)
    kinds = [parameter.kind for parameter in parameters.values()]
    ordered = [
        name for name, parameter in parameters.items() if parameter.kind in (parameter.POSITIONAL_ONLY, _BY_EITHER)
    ]
    for number in numbers:
        if inspect.Parameter.VAR_POSITIONAL not in kinds and not -len(ordered) <= number < len(ordered):
            raise ValueError(
                f"mjit: {option}_argnums has {number}, but the function takes {len(ordered)} positional arguments "
                f"({', '.join(ordered)})."
            )
        if number < 0 and inspect.Parameter.VAR_POSITIONAL in kinds:
            raise ValueError(
                f"mjit: {option}_argnums has {number}, and how many arguments there are is not known for a function "
                "with *args. Count from the front."
            )
    for name in names:
        if inspect.Parameter.VAR_KEYWORD not in kinds and name not in parameters:
            raise ValueError(
                f"mjit: {option}_argnames has {name!r}, and the function has no such argument; it has "
                f"{', '.join(parameters)}."
            )
    numbers = [number % len(ordered) if number < 0 else number for number in numbers]
    names += [ordered[number] for number in numbers if number < len(ordered)]
    numbers += [ordered.index(name) for name in names if name in ordered]
    return numbers, names


def _listed(option: str, value: Any, kind: type[Any], expected: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        items: list[Any] = [value]
    elif isinstance(value, Iterable):
        items = _check.items("mjit", option, value, expected)
    else:
        items = [value]
    if kind is int:
        return [_check.integer("mjit", option, each) for each in items]
    if not all(isinstance(each, str) for each in items):
        raise _check.wrong("mjit", option, expected, value)
    return items


def abstract_leaf(leaf: Any) -> jax.ShapeDtypeStruct:
    """An argument's shape and type, without its sharding."""
    aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def paths(tree: Any) -> list[tuple[Any, Any]]:
    """The path of each leaf of a tree."""
    return jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(tree, range(tree.num_leaves)))


def donated_leaves(tree: Any, donate: Container[int], donate_names: Container[str]) -> set[int]:
    """Positions of the leaves in the arguments that the caller gives up.

    Args:
        tree: The tree of arguments and keyword arguments.
        donate: Positions of the arguments.
        donate_names: Names of the keyword arguments.
    """

    def donated(path: Sequence[Any]) -> bool:
        kind, name = path[0].idx, path[1]
        return name.idx in donate if kind == 0 else name.key in donate_names

    return {position for position, (path, _) in enumerate(paths(tree)) if donated(path)}


def carried_state(in_tree: Any, out_tree: Any, step: Step, donated: Container[int]) -> dict[int, int]:
    """Match inputs with results of the same tree, shapes and types, in order: state that the step updates.

    A lone array is state if it is donated or if the step has other results too: a single result may just happen to
    have the shape of an argument.

    Returns:
        For the position of each such input, the position of the output that is its next value.
    """
    args = in_tree.children()[0].children()
    whole = any(arg == out_tree and arg.num_leaves > 1 for arg in args)
    items = out_tree.children() if _is_sequence(out_tree) and not whole else [out_tree]
    starts = np.cumsum([0, *[item.num_leaves for item in items]])
    carried: dict[int, int] = {}
    taken: set[int] = set()
    offset = 0
    for position, arg in enumerate(args):
        count = arg.num_leaves
        lone = count == 1 and len(items) == 1 and position not in donated
        for index, item in enumerate(items):
            begin = int(starts[index])
            same = (
                index not in taken
                and item == arg
                and count > 0
                and not lone
                and all(_same_type(step.invars[offset + k], step.outvars[begin + k]) for k in range(count))
            )
            if same and (count > 1 or num_elements(step.invars[offset]) > 1):
                taken.add(index)
                carried.update({offset + k: begin + k for k in range(count)})
                break
        offset += count
    return carried


def _is_sequence(tree: Any) -> bool:
    data = tree.node_data()
    return data is not None and data[0] in (tuple, list)


def _same_type(a: Any, b: Any) -> bool:
    return bool(a.aval.shape == b.aval.shape and a.aval.dtype == b.aval.dtype)


def function_name(fun: Any) -> str:
    """The name of a function, that of the function inside for a `functools.partial`, also where that is wrapped."""
    while isinstance(inside := getattr(fun, "__wrapped__", fun), functools.partial):
        fun = inside.func
    return getattr(fun, "__name__", type(fun).__name__)
