"""Run an initialiser so that each submesh computes only the results that it holds."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from mmruntime import _check, _compat
from mmruntime._core import mesh as _mesh
from mmruntime._core.multimesh import MultiMesh
from mmruntime._execution.find_invalid import kind_of_invalid, origin_in
from mmruntime._execution.host_values import unshared
from mmruntime._execution.transfers.own_parts import devices_of, is_here, nothing_of, place, processes
from mmruntime._frontend.constraint import placed_later
from mmruntime._frontend.labels import leaf_names, name_trace
from mmruntime._partition.tracing.initializer_parts import by_part
from mmruntime._partition.tracing.refs import without_refs
from mmruntime._step.mesh_function import MeshFunction
from mmruntime._step.signature import function_name

P = ParamSpec("P")
R = TypeVar("R")

# Arrays of more elements are computed in shards: 64 MiB of float32.
_LARGE = 1 << 24


@dataclass(eq=False, slots=True, frozen=True)
class _Part:
    """The executable of one submesh, and the positions of its results."""

    everywhere: NamedSharding
    program: Any
    positions: tuple[int, ...]


class Initializer(Generic[P, R]):
    """A function whose results are laid out as a step wants its arguments: call it as the function itself.

    It is traced once per signature, and compiled once per submesh with everything left out that the submesh's
    results do not need, so no device ever holds what belongs to another submesh. The values are those of
    `jax.jit(fun)`, bit for bit: arrays of up to 2**24 elements are computed whole on each device of their
    submesh, then cut; scalars on all devices of the mesh. Larger arrays are computed in shards, which rounds alike
    except on CPUs for odd sizes.

    Args:
        fun: The initialiser.
        label: Its name, for messages.
        multimesh: The mesh of the step.
        lay_out: Adds shardings to a result (a pytree of `jax.ShapeDtypeStruct`).
    """

    def __init__(
        self,
        fun: Callable[P, R],
        label: str,
        multimesh: MultiMesh,
        lay_out: Callable[[Any], Any],
    ) -> None:
        functools.update_wrapper(self, fun)
        self._fun: Any = fun
        self._label = label
        self._multimesh = multimesh
        self._lay_out = lay_out
        self._traced: dict[Any, tuple[Any, Any]] = {}
        self._parts: dict[Any, list[_Part]] = {}

    @_compat.api_boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the initialiser on all submeshes; returns as soon as that is issued.

        Raises:
            FloatingPointError: Under `jax_debug_nans` and `jax_debug_infs`, if a result holds such a number.
        """
        if not _compat.at_top_level():
            result: R = self._fun(*args, **kwargs)
            return result
        if _compat.jit_disabled.value:
            # Its parts lie on several submeshes, so it has to be compiled.
            with jax.disable_jit(False):
                return self(*args, **kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        structs = [_struct(leaf, self._label) for leaf in leaves]
        types = tuple((each.shape, each.dtype, each.weak_type) for each in structs)
        signature = (tree, types, _compat.settings())
        if signature not in self._traced:
            self._traced[signature] = self._trace(tree, structs)
        closed, shapes = self._traced[signature]
        targets, out_tree = jax.tree.flatten(self._lay_out(shapes))
        shardings = tuple(target.sharding for target in targets)
        key = (signature, shardings)
        if key not in self._parts:
            self._parts[key] = _compile(closed, structs, shardings, self._label)
        # A global array without shards, where this process has no devices of its submesh.
        avals = [atom.aval for atom in _compat.split(closed)[0].outvars]
        results: list[Any] = [
            None if is_here(sharding.mesh) else nothing_of(aval, sharding)
            for aval, sharding in zip(avals, shardings, strict=True)
        ]
        kinds = _compat.invalid_kinds()
        # JAX would check each part, and knows nothing of the function that they are parts of.
        with _compat.without_result_checks() if kinds else contextlib.nullcontext():
            for part in self._parts[key]:
                if processes(part.everywhere.mesh) == (jax.process_index(),):
                    moved = jax.device_put(unshared(leaves, [part.everywhere] * len(leaves)), part.everywhere)
                else:
                    moved = [place(leaf, part.everywhere, jax.typeof(leaf)) for leaf in leaves]
                for position, value in zip(part.positions, part.program(*moved), strict=True):
                    results[position] = value
            for position, value in enumerate(results):
                if (kind := kind_of_invalid(value, kinds)) is not None:
                    origin = origin_in(closed, leaves, position, kinds)
                    raise FloatingPointError(f"mjit: invalid value ({kind}) encountered in {origin}, in {self._label}.")
        made: R = jax.tree.unflatten(out_tree, results)
        return made

    @property
    def programs(self) -> tuple[Any, ...]:
        """The executables that were compiled so far: for each signature one per submesh, and one for scalars."""
        return tuple(part.program for parts in self._parts.values() for part in parts)

    def _trace(self, tree: Any, structs: Sequence[Any]) -> tuple[Any, Any]:
        def flat(*leaves: Any) -> Any:
            args, kwargs = jax.tree.unflatten(tree, leaves)
            result = self._fun(*args, **kwargs)
            _check_arrays(result, self._label)
            return result

        args, kwargs = jax.tree.unflatten(tree, structs)
        name_trace(flat, "mjit", self._fun, leaf_names(self._fun, [*enumerate(args), *sorted(kwargs.items())]))
        with _compat.no_mesh(), _mesh.using(self._multimesh), placed_later():
            return jax.make_jaxpr(flat, return_shape=True)(*structs)


def _check_arrays(result: Any, label: str) -> None:
    """Refuse results that no device can hold, in the name of the function: JAX would name the wrapper around it."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(result)[0]:
        try:
            jax.typeof(leaf)
        except TypeError as error:
            place = f" at {jax.tree_util.keystr(path)} of its result" if path else ""
            raise TypeError(
                f"mjit: {label} returns {_check.shown(leaf)}{place}. With out_like= it has to return arrays or "
                "numbers, in pytrees: one of the step's arguments, or a tuple of them. Return the "
                "rest from another function."
            ) from error


def _struct(leaf: Any, label: str) -> jax.ShapeDtypeStruct:
    try:
        aval = jax.typeof(leaf)
    except TypeError as error:
        raise TypeError(
            f"mjit: got {leaf!r} of type {type(leaf).__name__} as an argument of {label}; arguments must be arrays "
            "or numbers, in pytrees. Bind others with functools.partial."
        ) from error
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _compile(closed: Any, structs: Sequence[Any], shardings: Sequence[NamedSharding], label: str) -> list[_Part]:
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, sharding in enumerate(shardings):
        groups.setdefault(tuple(devices_of(sharding)), []).append(position)
    closed = without_refs(closed) if _compat.has_refs(_compat.split(closed)[0]) else closed
    parts = by_part(closed, list(groups.values()), label)
    lowered = []
    for positions, each in zip(groups.values(), parts, strict=True):
        if not is_here(shardings[positions[0]].mesh):
            continue
        compute = _compat.as_fun(each)
        everywhere = NamedSharding(shardings[positions[0]].mesh, PartitionSpec())

        def part(
            *leaves: Any,
            compute: Callable[..., list[Any]] = compute,
            positions: Sequence[int] = tuple(positions),
            everywhere: NamedSharding = everywhere,
        ) -> list[Any]:
            results = compute(*leaves)
            return [
                _whole(value, shardings[position], everywhere)
                for position, value in zip(positions, results, strict=True)
            ]

        with _compat.no_mesh():
            program = jax.jit(
                part,
                in_shardings=everywhere,
                out_shardings=[shardings[position] for position in positions],
                keep_unused=True,
            ).lower(*structs)
        lowered.append((everywhere, program, tuple(positions)))
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        programs = list(pool.map(lambda item: item[1].compile(), lowered))
    return [
        _Part(everywhere, program, positions)
        for (everywhere, _, positions), program in zip(lowered, programs, strict=True)
    ]


def _whole(value: Any, sharding: NamedSharding, everywhere: NamedSharding) -> Any:
    """Have XLA compute a value whole and cut it afterwards, unless it is large.

    XLA for CPUs may round differently where a shard is smaller than a vector register (seen with jaxlib 0.12).
    """
    if sharding.is_fully_replicated or jnp.size(value) > _LARGE:
        return value
    # The constraints on both sides keep the cut behind the barrier, and so out of the loops that compute the value.
    whole = jax.lax.with_sharding_constraint(value, everywhere)
    return jax.lax.with_sharding_constraint(jax.lax.optimization_barrier(whole), everywhere)


def match(shapes: Any, arguments: Sequence[Any], label: str, step_label: str) -> Any:
    """Lay out a result as the arguments of a step that it is meant for.

    Args:
        shapes: The result, a pytree of `jax.ShapeDtypeStruct`: one argument, or a tuple of several.
        arguments: The step's arguments, pytrees of `jax.ShapeDtypeStruct` with shardings.
        label: Name of the initialiser, for messages.
        step_label: Name of the step.

    Returns:
        `shapes` with shardings.

    Raises:
        TypeError: If the result is None.
        ValueError: If the step has no such argument.
    """
    # None is what a missing `return` gives, whichever arguments are None.
    whole = next((argument for argument in arguments if shapes is not None and _same(argument, shapes)), None)
    if whole is not None:
        return whole
    rest = list(arguments)
    if isinstance(shapes, tuple | list) and shapes:
        targets = []
        for item in shapes:
            hit = next((index for index, argument in enumerate(rest) if _same(argument, item)), None)
            if hit is None:
                break
            targets.append(rest.pop(hit))
        else:
            # Through the tree, so that named tuples stay what they are.
            return jax.tree.unflatten(jax.tree.structure(shapes), jax.tree.leaves(targets))
    if shapes is None:
        raise TypeError(
            f"mjit: {label} returns None. With out_like= it has to return one of the arguments of {step_label}, or a "
            "tuple of them; is its `return` missing?"
        )
    listed = "\n".join(f"  argument {index}: {_describe(argument)}" for index, argument in enumerate(arguments))
    held = "" if jax.tree.leaves(shapes) else ", which holds no arrays"
    raise ValueError(
        f"mjit: out_like={step_label} has no argument like the result of {label}, {_describe(shapes)}{held}. Return "
        f"one of its arguments, or a tuple of them:\n{listed}"
    )


def _same(argument: Any, result: Any) -> bool:
    trees: list[Any] = [jax.tree.structure(argument), jax.tree.structure(result)]
    if trees[0] != trees[1]:
        return False
    pairs = zip(jax.tree.leaves(argument), jax.tree.leaves(result), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def _describe(tree: Any) -> str:
    leaves = jax.tree.leaves(tree)
    if not leaves:
        return _check.shown(tree)
    shown = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves[:4])
    number = "1 array" if len(leaves) == 1 else f"{len(leaves)} arrays"
    return f"{number} ({shown}{', ...' if len(leaves) > 4 else ''})"


def initializer(fun: Callable[P, R], step: MeshFunction[..., Any], argument: int | None = None) -> Initializer[P, R]:
    """An initialiser of a step's arguments.

    Args:
        fun: The initialiser.
        step: The step.
        argument: Which argument it makes; found by its tree, shapes and types if left out.
    """

    def lay_out(shapes: Any) -> Any:
        arguments = step.abstract_args()
        arguments = arguments if argument is None else (arguments[argument],)
        return match(shapes, arguments, function_name(fun), function_name(step))

    return Initializer(fun, function_name(fun), step.multimesh, lay_out)
