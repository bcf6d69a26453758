"""Orbax's handler of arrays, for those that lie on devices of some processes only.

By itself Orbax refuses arrays that lie on the devices of one process of several, as those of a pipeline's stage may,
and cannot read or write arrays of which a process has nothing. What it does for others holds for these too: every
process writes the shards that it has, and the first process puts the files together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp

from mmruntime import _compat
from mmruntime._processes.agreement import agree
from mmruntime._processes.group import group_of

_WRITES_METADATA = 0


def register() -> None:
    """From now on let Orbax save arrays from the devices where they are, and restore them to those where they shall be.

    Call it in every process, after `mm.init()` and before the first checkpoint. It replaces Orbax's handler of
    `jax.Array`, so that it holds for every `CheckpointManager` and `Checkpointer` of the program. In a program of one
    process it does nothing. Typed PRNG keys are refused: save their `jax.random.key_data`.
    """
    if jax.process_count() == 1:
        return
    ocp.type_handlers.register_type_handler(jax.Array, ArrayHandler(), override=True)


class ArrayHandler(ocp.type_handlers.ArrayHandler):  # type: ignore[misc]
    """Orbax's handler of arrays, for arrays of some processes only as well."""

    def __init__(self) -> None:
        # Without the files that the first process would write about all arrays, as it knows only its own: their
        # layouts, and what NumPy cannot say of them.
        super().__init__(enable_write_sharding_file=False)
        # Of arrays that the first process has nothing of, all that have some write the description, which is equal.
        self._elsewhere = ocp.type_handlers.ArrayHandler(primary_host=None, enable_write_sharding_file=False)

    async def serialize(self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None) -> Any:
        """See `TypeHandler.serialize`.

        Raises:
            RuntimeError: If the processes have called different steps before, so that their arrays belong to none.
            ValueError: If an array is one of typed PRNG keys.
        """
        compare_calls(values)
        given = args or [ocp.SaveArgs()] * len(values)
        mine: list[tuple[Any, Any, Any]] = []
        others: list[tuple[Any, Any, Any]] = []
        for value, info, how in zip(values, infos, given, strict=True):
            if _compat.is_key(value.dtype):
                raise ValueError(
                    f"orbax: {info.name} is an array of typed PRNG keys, which cannot be saved from several processes. "
                    "Save jax.random.key_data(...) of it, and make keys of what is restored by "
                    "jax.random.wrap_key_data."
                )
            if not value.addressable_shards:
                continue
            value = _OneOfMany(value) if value.is_fully_addressable else value
            writers = {device.process_index for device in value.sharding.device_set}
            (mine if _WRITES_METADATA in writers else others).append((value, info, how))
        futures: list[Any] = []
        for serialize, found in ((super().serialize, mine), (self._elsewhere.serialize, others)):
            if found:
                futures += await serialize(*(list(column) for column in zip(*found, strict=True)))
        return futures

    async def deserialize(self, infos: Sequence[Any], args: Sequence[Any] | None = None) -> Any:
        """See `TypeHandler.deserialize`."""
        given = args or [ocp.RestoreArgs()] * len(infos)
        absent = [
            position
            for position, how in enumerate(given)
            if isinstance(getattr(how, "sharding", None), jax.sharding.Sharding)
            and not how.sharding.addressable_devices
        ]
        present = [position for position in range(len(infos)) if position not in set(absent)]
        arrays: list[Any] = [None] * len(infos)
        if present:
            read = await super().deserialize([infos[at] for at in present], [given[at] for at in present])
            for position, array in zip(present, read, strict=True):
                arrays[position] = array
        if absent:
            saved = await self.metadata([infos[at] for at in absent])
            for position, found in zip(absent, saved, strict=True):
                how: Any = given[position]
                arrays[position] = jax.make_array_from_single_device_arrays(
                    tuple(how.global_shape or found.shape), how.sharding, [], dtype=how.dtype or found.dtype
                )
        return arrays


def compare_calls(values: Sequence[jax.Array]) -> None:
    """Before processes save arrays, compare the steps that they have called: a process may have left one out unseen.

    Args:
        values: The arrays. The processes that have parts of them compare; what all have as a whole, one may save alone.

    Raises:
        RuntimeError: If they have called different ones.
    """
    members: set[int] = set()
    for value in values:
        devices: Any = value.sharding.device_set
        found = {device.process_index for device in devices}
        if len(found) == 1 or not value.is_fully_replicated:
            members |= found
    if len(members) > 1 and jax.process_index() in members:
        agree("saving a checkpoint", {}, group_of(tuple(sorted(members))), "")


class _OneOfMany:
    """An array of one process, for code that asks whether an array is one by its class, and takes it for a local copy.

    It is one array that all processes speak of; it only happens to lie here.
    """

    def __init__(self, array: Any) -> None:
        self._array = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)
