"""How arrays move: the `Transport` that a compiled step sends through, and the one within a process.

The runner and the compiler know the interface only. A transport plans each transfer once, when the step is compiled;
what it returns is all that the hot loop calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding

from mmruntime import _compat
from mmruntime._execution.host_values import unshared
from mmruntime._execution.transfers.own_parts import is_cut_by_host, place

# Issues one transfer of a step: arrays on the source submesh in, their counterparts on the target submesh out.
Send = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class TransferSpec:
    """A planned transfer: what moves from one submesh to another, without the values.

    Attributes:
        avals: Abstract value (shape and dtype) of each array.
        sources: Layout of each on the submesh that sends it.
        targets: Layout of each on the submesh that receives it.
        intact: Whether each stays as it is until it has arrived: no program overwrites it, and the caller, who may
            delete it, does not have it. None does if left out.
        kept: Whether each stays as it is where it has arrived. None does if left out.
    """

    avals: tuple[Any, ...]
    sources: tuple[NamedSharding, ...]
    targets: tuple[NamedSharding, ...]
    intact: tuple[bool, ...] = ()
    kept: tuple[bool, ...] = ()


class Transport(Protocol):
    """Moves arrays for one compiled step.

    Nothing here may wait for the values: the runner issues the whole step before the first program has finished.
    """

    def takes_part(self, mesh: Any, /) -> bool:
        """Whether this process runs the programs of a submesh, all of them or with other processes."""
        ...

    def bind(self, transfer: TransferSpec, /) -> Send:
        """Plan a transfer; returns the function that issues it.

        Called for each transfer instruction that this process takes part in, in the order in which a step issues them.
        Transfers that are equal (those of different microbatches) may share one function.

        The function leaves its arguments intact and may be given arrays that are not computed yet. The arrays may be
        donated to a program as soon as it returns.
        """
        ...

    def put(self, values: Sequence[Any], shardings: Sequence[Sharding], /) -> Sequence[Any]:
        """Place values at the border of a step: arguments and captured arrays.

        Args:
            values: Arrays of any layout, NumPy arrays and numbers.
            shardings: The layout that each shall have. A value that has it already may be returned as it is. Nothing
                that the caller writes into an array of the host later may be seen; see `host_values`.
        """
        ...

    def copy(self, arrays: Sequence[Any], shardings: Sequence[Sharding], /) -> Sequence[Any]:
        """Copies with memory of their own: results that the caller may donate or delete."""
        ...


class DevicePutTransport:
    """Moves arrays by `jax.device_put`: all devices belong to this process."""

    def __init__(self) -> None:
        self._movers: dict[TransferSpec, _Mover] = {}

    def takes_part(self, mesh: Any, /) -> bool:
        """See `Transport.takes_part`."""
        return True

    def bind(self, transfer: TransferSpec, /) -> Send:
        """See `Transport.bind`. Equal transfers share a function."""
        if transfer not in self._movers:
            self._movers[transfer] = _Mover(transfer)
        return self._movers[transfer]

    def put(self, values: Sequence[Any], shardings: Sequence[Sharding], /) -> list[Any]:
        """See `Transport.put`."""
        placed: list[Any] = [
            place(np.asarray(value), layout, jax.typeof(value))
            if isinstance(layout, NamedSharding) and is_cut_by_host(value, layout)
            else None
            for value, layout in zip(values, shardings, strict=True)
        ]
        rest = [position for position, value in enumerate(placed) if value is None]
        layouts = [shardings[position] for position in rest]
        if rest:
            moved = jax.device_put(unshared([values[position] for position in rest], layouts), layouts)
            for position, value in zip(rest, moved, strict=True):
                placed[position] = value
        return placed

    def copy(self, arrays: Sequence[Any], shardings: Sequence[Sharding], /) -> list[Any]:
        """See `Transport.copy`."""
        return jax.device_put(unshared(arrays, shardings), shardings, may_alias=False)  # type: ignore[no-any-return]


def same_tiling(source: Any, target: Any, shape: tuple[int, ...]) -> bool:
    """Whether two shardings cut an array of this shape alike, device by device in order."""
    return list(source.devices_indices_map(shape).values()) == list(target.devices_indices_map(shape).values())


class _Mover:
    """One planned transfer within a process.

    `jax.device_put` is asynchronous only where every target shard is a shard of the source. Otherwise JAX fetches the
    whole array to the host (`shard_sharded_device_array_slow_path` in `jax/_src/array.py`), which blocks until the
    producer is done. Such arrays are moved in pieces: sliced where they are, copied device to device, and
    joined where they go.
    """

    def __init__(self, transfer: TransferSpec) -> None:
        shapes = [tuple(aval.shape) for aval in transfer.avals]
        layouts = list(zip(transfer.sources, transfer.targets, shapes, strict=True))
        same = [same_tiling(*layout) for layout in layouts]
        # An array without elements has no pieces to cut.
        plain = [alike or 0 in shape for alike, shape in zip(same, shapes, strict=True)]
        self._plain = [i for i, is_plain in enumerate(plain) if is_plain]
        self._pieces = [i for i, is_plain in enumerate(plain) if not is_plain]
        self._targets = [transfer.targets[i] for i in self._plain]
        self._copy: Callable[[Sequence[Any]], list[Any]] | None = None
        if all(same[i] and not _compat.is_key(transfer.avals[i].dtype) for i in self._plain):
            self._copy = _compat.copier(self._targets)
        if self._pieces:
            # Seldom, and what puts arrays together serves transfers between processes above all.
            from mmruntime._execution.transfers.crossing import rebuilding  # noqa: PLC0415

            self._by_pieces = rebuilding([layouts[i] for i in self._pieces], [transfer.avals[i] for i in self._pieces])

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Issue the transfer; returns at once."""
        if not self._pieces:
            return self._put(arrays)
        moved: list[Any] = [None] * len(arrays)
        if self._plain:
            for i, array in zip(self._plain, self._put([arrays[i] for i in self._plain]), strict=True):
                moved[i] = array
        # `jax.jit` refuses arrays on devices outside of the caller's ambient mesh, and these programs run anywhere.
        with _compat.no_mesh():
            by_pieces = self._by_pieces([arrays[i] for i in self._pieces])
        for i, array in zip(self._pieces, by_pieces, strict=True):
            moved[i] = array
        return moved

    def _put(self, arrays: Sequence[Any]) -> list[Any]:
        if self._copy is not None:
            return self._copy(arrays)
        return jax.device_put(list(arrays), self._targets)  # type: ignore[no-any-return]
