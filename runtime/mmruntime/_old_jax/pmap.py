"""`pmap` as it was: a function on as many devices as its mapped arguments have rows, wherever the rows lie."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat

# The default name of the mapped axis.
_UNNAMED = "pmap"


def _is_none(node: Any) -> bool:
    return node is None


def _spread(axes: Any, tree: Any) -> tuple[int | None, ...]:
    """One axis for each leaf of `tree`; raises ValueError unless `axes` is a prefix of it."""
    # `jax.tree` would take `None` for an empty tree.
    numbers = jax.tree.map(lambda axis: -1 if axis is None else axis, axes, is_leaf=_is_none)
    return tuple(None if axis < 0 else axis for axis in jax.tree.leaves(jax.tree.broadcast(numbers, tree)))


@dataclass(frozen=True)
class _Layout:
    """For each leaf of the dynamic arguments, the axis that it is mapped over and whether it is donated."""

    axes: tuple[int | None, ...]
    donated: tuple[bool, ...]


@dataclass(frozen=True)
class _Arguments:
    """The dynamic (not static) arguments of one call as leaves, and the size of their mapped axes."""

    tree: Any
    leaves: list[Any]
    layout: _Layout
    size: int


@dataclass(frozen=True)
class _CompiledMap:
    """The compiled function for one number of devices, and the layouts of its arguments in this process."""

    run: Any
    mesh: Mesh
    shardings: dict[int | None, NamedSharding]
    out_specs: Any


class Pmap:
    """A function mapped over devices. Their number is the number of rows of the arguments, call by call."""

    def __init__(
        self,
        function: Callable[..., Any],
        axis_name: Any,
        axes: tuple[Any, Any],
        static: tuple[int, ...],
        donated: tuple[int, ...],
    ) -> None:
        functools.update_wrapper(self, function)
        self._function, self._axis_name = function, _UNNAMED if axis_name is None else axis_name
        self._in_axes, self._out_axes = axes
        self._static, self._donated = static, donated
        self._label = getattr(function, "__name__", None) or repr(function)
        self._layouts: dict[Any, _Layout] = {}
        self._compiled: dict[int, _CompiledMap] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of all devices, stacked along `out_axes`."""
        compiled, args, kwargs = self._prepare(args, kwargs)
        with _outside_of_meshes():
            out = compiled.run(*args, **kwargs)
            if jax.process_count() > 1:
                out = multihost_utils.global_array_to_host_local_array(out, compiled.mesh, compiled.out_specs)
        return out

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<pmap of {self._function!r}>"

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The function lowered for arguments, as `jax.jit` has it."""
        compiled, args, kwargs = self._prepare(args, kwargs)
        with _outside_of_meshes():
            lowered: jax.stages.Lowered = compiled.run.lower(*args, **kwargs)
        return lowered

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_CompiledMap, Any, Any]:
        """The compiled function for a call, and the arguments on its devices."""
        if outer := jax.sharding.get_abstract_mesh().manual_axes:
            raise ValueError(
                f"pmap of {self._label} is called by a function that is mapped itself, over "
                f"{', '.join(map(repr, outer))}. JAX maps once: write one `jax.shard_map` over a mesh with an axis for "
                "each of the two."
            )
        if self._static and max(self._static) >= len(args):
            raise ValueError(
                f"pmap of {self._label}: static arguments are given by position, at {self._static}, and the call has "
                f"{len(args)} there."
            )
        arguments = self._arguments(args, kwargs)
        compiled = self._compiled.get(arguments.size)
        if compiled is None:
            compiled = self._compiled[arguments.size] = self._compile(arguments.size)
        if not self._place(arguments, compiled):
            return compiled, args, kwargs
        dynamic, kwargs = jax.tree.unflatten(arguments.tree, arguments.leaves)
        return compiled, self._with_static(dynamic, args), kwargs

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
        dynamic = self._dynamic(args), kwargs
        leaves, tree = jax.tree.flatten(dynamic)
        if tree not in self._layouts:
            self._layouts[tree] = self._layout(len(args), dynamic)
        layout = self._layouts[tree]
        size = -1
        for leaf, axis in zip(leaves, layout.axes, strict=True):
            if axis is None:
                continue
            shape = _shape(leaf)
            if len(shape) <= axis or shape[axis] != size >= 0:
                self._refuse_sizes(dynamic, layout.axes)
            size = shape[axis]
        if size < 0:
            raise ValueError(
                f"pmap of {self._label}: no argument is mapped, so there is no number of devices. in_axes is "
                f"{self._in_axes!r}; give an axis for at least one array."
            )
        return _Arguments(tree, leaves, layout, size)

    def _layout(self, count: int, arguments: tuple[Sequence[Any], dict[str, Any]]) -> _Layout:
        """The layout of a call with `count` arguments by position. Those by name are mapped over their first axis."""
        prefix = self._in_axes
        if self._static and isinstance(prefix, tuple):
            prefix = tuple(axis for index, axis in enumerate(prefix) if index not in self._static)
        try:
            axes = (*_spread(prefix, arguments[0]), *_spread(0, arguments[1]))
        except ValueError as error:
            raise ValueError(
                f"pmap of {self._label}: in_axes={self._in_axes!r} does not fit the arguments that are given by "
                "position; give one axis, or a tuple with one for each of the "
                f"{len(arguments[0])} that are not static. " + _named(error, "in_axes")
            ) from None
        donated = self._dynamic([index in self._donated for index in range(count)])
        counts = [len(jax.tree.leaves(argument)) for argument in arguments[0]]
        flags = [flag for flag, number in zip(donated, counts, strict=True) for _ in range(number)]
        return _Layout(axes, (*flags, *[False] * (len(axes) - len(flags))))

    def _refuse_sizes(self, arguments: Any, axes: tuple[int | None, ...]) -> None:
        dynamic, kwargs = arguments
        positions = self._dynamic(range(len(dynamic) + len(self._static)))
        named = {"args": dict(zip(positions, dynamic, strict=True)), "kwargs": kwargs}
        leaves = [
            (word + jax.tree_util.keystr(path), leaf)
            for word, tree in named.items()
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        ]
        found = []
        for (place, leaf), axis in zip(leaves, axes, strict=True):
            if axis is not None:
                shape = _shape(leaf)
                size = f"{shape[axis]} along axis {axis} of" if axis < len(shape) else f"no axis {axis} in"
                found.append(f"  {size} {place}, of shape {shape}")
        raise ValueError(
            f"pmap of {self._label}: mapped arguments need one size along their mapped axes, got\n"
            + "\n".join(found)
            + "\nGive each a row for every device, or None in in_axes where all devices get the same."
        )

    def _compile(self, size: int) -> _CompiledMap:
        mesh = Mesh(np.asarray(self._devices(size), dtype=object), (self._axis_name,), axis_types=(AxisType.Auto,))

        def spec(axis: int | None) -> PartitionSpec:
            return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, self._axis_name)

        def mapped(*args: Any, **kwargs: Any) -> Any:
            arguments = self._arguments(args, kwargs)

            def rows(*leaves: Any) -> Any:
                held = [
                    leaf if axis is None else jax.lax.squeeze(leaf, [axis])
                    for leaf, axis in zip(leaves, arguments.layout.axes, strict=True)
                ]
                dynamic, named = jax.tree.unflatten(arguments.tree, held)
                return self._stack(self._function(*self._with_static(dynamic, args), **named))

            # With `check_vma` a gradient taken inside would be summed over the devices; `pmap` gave each device the
            # gradient of its own loss.
            on_devices = jax.shard_map(
                rows,
                mesh=mesh,
                in_specs=tuple(spec(axis) for axis in arguments.layout.axes),
                out_specs=out_specs,
                check_vma=False,
            )
            return on_devices(*arguments.leaves)

        out_specs = jax.tree.map(spec, self._out_axes, is_leaf=_is_none)
        mapped.__name__ = mapped.__qualname__ = self._label
        run = jax.jit(mapped, static_argnums=self._static, donate_argnums=self._donated)
        axes = (None, 0, *jax.tree.leaves(self._in_axes))
        return _CompiledMap(run, mesh, {axis: NamedSharding(mesh.local_mesh, spec(axis)) for axis in axes}, out_specs)

    def _devices(self, size: int) -> Sequence[Any]:
        """The devices for arguments of `size` rows: of this process, or of all where there are several."""
        here: Sequence[Any] = jax.local_devices()
        if not 0 < size <= len(here):
            raise ValueError(
                f"pmap of {self._label}: {size} rows need as many devices, and this process has {len(here)}. Give each "
                "device one row, which may hold several to map over inside with `jax.vmap`."
            )
        if jax.process_count() == 1:
            return here[:size]
        if size < len(here):
            raise ValueError(
                f"pmap of {self._label}: with several processes each gives one row for every device of its own, here "
                f"{len(here)}, got {size}."
            )
        # The rows of one process are contiguous on the axis.
        return sorted(jax.devices(), key=lambda device: device.process_index)

    def _stack(self, out: Any) -> Any:
        """The results of one device, with a dimension of size 1 for joining the results of all devices."""
        try:
            axes = _spread(self._out_axes, out)
        except ValueError as error:
            raise ValueError(
                f"pmap of {self._label}: out_axes={self._out_axes!r} does not fit its result; give one axis, or a tree "
                f"of them that its own begins with. {_named(error, 'out_axes')}"
            ) from None
        leaves, tree = jax.tree.flatten(out)
        joined = [
            leaf if axis is None else jax.lax.expand_dims(leaf, [axis]) for leaf, axis in zip(leaves, axes, strict=True)
        ]
        return jax.tree.unflatten(tree, joined)

    def _place(self, arguments: _Arguments, compiled: _CompiledMap) -> bool:
        """Put leaves on the devices, in place. Returns whether any moved; tracers cannot be moved."""
        leaves, axes = arguments.leaves, arguments.layout.axes
        moved: list[int] = []
        for index, (leaf, axis) in enumerate(zip(leaves, axes, strict=True)):
            if isinstance(leaf, Tracer):
                return False
            if isinstance(leaf, jax.Array):
                sharding = compiled.shardings[axis]
                if leaf.sharding != sharding:
                    moved.append(index)
                    if arguments.layout.donated[index] and _may_share(leaf, axis, sharding):
                        leaves[index] = jnp.copy(leaf)
            elif isinstance(leaf, np.ndarray):
                moved.append(index)
        if moved:
            shardings = [compiled.shardings[axes[index]] for index in moved]
            placed = jax.device_put([leaves[index] for index in moved], shardings)
            for index, leaf in zip(moved, placed, strict=True):
                leaves[index] = leaf
        if jax.process_count() == 1:
            return bool(moved)
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, jax.Array):
                spec = compiled.shardings[axes[index]].spec
                leaves[index] = multihost_utils.host_local_array_to_global_array(leaf, compiled.mesh, spec)
        return True

    def _dynamic(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments that are not static, of those given by position."""
        return tuple(arg for index, arg in enumerate(args) if index not in self._static)

    def _with_static(self, dynamic: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """`dynamic` with the static arguments inserted at their positions in `args`."""
        rest = iter(dynamic)
        return [arg if index in self._static else next(rest) for index, arg in enumerate(args)]


def _may_share(leaf: jax.Array, axis: int | None, sharding: NamedSharding) -> bool:
    """Whether an array may keep some of the user's buffers when it moves, so that donating it deletes the original.

    `jax.device_put` reuses shards that are on their device already. An array that does not move at all is not meant:
    its buffers are what the user donates.
    """
    if leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return False
    return axis is None or leaf.sharding.num_devices > 1


def _named(error: ValueError, word: str) -> str:
    """JAX's message about a tree prefix, with the user's name for it."""
    return str(error).replace("broadcast_prefix prefix_tree", word)


def _shape(leaf: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = leaf.shape if hasattr(leaf, "shape") else np.shape(leaf)
    return shape


def _outside_of_meshes() -> AbstractContextManager[Any]:
    """A context without the mesh of `jax.set_mesh`, which `pmap` ignored."""
    if jax.sharding.get_abstract_mesh().empty or not _compat.at_top_level():
        return nullcontext()
    return _compat.no_mesh()


def _positions(word: str, positions: int | Iterable[int]) -> tuple[int, ...]:
    found = (positions,) if isinstance(positions, int) else tuple(positions)
    if any(type(position) is not int or position < 0 for position in found):
        raise ValueError(f"pmap: {word}={positions!r} are positions of arguments, counted from 0.")
    return found


def _check_axes(word: str, axes: Any) -> None:
    for axis in jax.tree.leaves(axes):
        if type(axis) is not int or axis < 0:
            raise TypeError(
                f"pmap: {word}={axes!r} holds {axis!r}; each is an axis counted from 0, or None for what is the same "
                "on all devices."
            )


@_compat.api_boundary
def pmap(
    fun: Callable[..., Any],
    axis_name: Any = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    donate_argnums: int | Iterable[int] = (),
) -> Pmap:
    """Run `fun` on one device for each row of its mapped arguments: what `jax.pmap` was.

    With one argument of shape `(n, ...)` and `devices = jax.local_devices()[:n]` it is

        mesh = jax.sharding.Mesh(devices, (axis_name,))
        on_row = lambda x: jax.lax.expand_dims(fun(jax.lax.squeeze(x, [0])), [0])
        jax.jit(jax.shard_map(on_row, mesh=mesh, in_specs=P(axis_name), out_specs=P(axis_name), check_vma=False))

    Today's `jax.pmap` is the same, except that it refuses arrays on other devices. Here they are moved, as by the old
    one, unless JAX is tracing the call. Results are ordinary sharded arrays: of a result `x`, `x[0]` is on all devices,
    and not on the first alone as it was.

    Args:
        fun: A function of one row of each mapped argument. Collectives inside use `axis_name`.
        axis_name: The name of the mapped axis.
        in_axes: The axis that an argument is mapped over, counted from 0, or None for an argument that all devices get
            whole: one for all arguments, or a tuple that is a tree prefix of the positional ones. Keyword arguments are
            mapped over their first axis.
        out_axes: The axis along which results are joined, a tree prefix of the result. None returns the result of the
            first device, which must be equal on all.
        static_broadcasted_argnums: Positions of arguments that are no arrays; `fun` is compiled for each of their
            values.
        donate_argnums: Positions of arguments whose memory may be reused.

    Returns:
        A function with `lower`. With several processes each calls it with rows of its own, one for each of its devices.

    Raises:
        TypeError: If `fun` is no function, or an axis is neither a number from 0 on nor None.
        ValueError: If positions are negative; when called, if no argument is mapped, the mapped axes differ in size or
            have more rows than there are devices, axes do not fit the arguments, or it is inside of another mapped
            function.
    """
    if not callable(fun):
        raise TypeError(f"pmap takes a function, got {fun!r}.")
    _check_axes("in_axes", in_axes)
    _check_axes("out_axes", out_axes)
    static = _positions("static_broadcasted_argnums", static_broadcasted_argnums)
    donated = _positions("donate_argnums", donate_argnums)
    return Pmap(fun, axis_name, (in_axes, out_axes), static, donated)
