"""Scalars at the border of a step are replicated over the whole mesh: losses, learning rates, step counters.

JAX refuses to compute with arrays on different devices, so a loss on the last submesh alone could not be added to one
on the first. A replicated array has one shard per device: a program on a submesh reads the shards of its own devices,
and a result is assembled from the shards of the submeshes that computed it. Only devices outside of these are sent a
copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, SingleDeviceSharding

from mmruntime import _compat
from mmruntime._execution.transfers.own_parts import devices_of, own_devices


def same_devices(one: NamedSharding, other: NamedSharding) -> bool:
    """Whether two layouts are on the same devices in the same order."""
    return devices_of(one) == devices_of(other)


class ScalarPart:
    """The shards of scalars on one submesh, as arrays of that submesh; no data moves. Planned once, called every step.

    Args:
        aval: Shape and type of the scalars.
        everywhere: The layout that they have: replicated over the mesh.
        sharding: The layout on the submesh, replicated as well.
    """

    def __init__(self, aval: Any, everywhere: NamedSharding, sharding: NamedSharding) -> None:
        held = own_devices(everywhere)
        self.sharding = sharding
        self._positions = [held.index(device) for device in own_devices(sharding)]
        self._assemble = scalar_assembler(aval, sharding)

    def __call__(self, array: Any) -> Any:
        """The part of a scalar."""
        shards = _compat.own_shards(array)
        return self._assemble([shards[position] for position in self._positions])


@dataclass(eq=False, slots=True, frozen=True)
class _Recipe:
    """How one scalar result is assembled.

    Attributes:
        index: Its index among the step's outputs.
        copies: For each device of the mesh: a slot, the number of its shard, and whether that shard is sent there, or
            is there already.
        assemble: Makes an array of the copies.
    """

    index: int
    copies: tuple[tuple[int, int, bool], ...]
    assemble: Callable[[Sequence[Any]], Any]


class Spreader:
    """Puts scalar results on all devices of a mesh, all of this process: planned once, called every step.

    Args:
        everywhere: The layout of the results: replicated over the mesh.
        results: For each result its index among the step's outputs, its abstract value, and the slots that hold it
            with their layouts.
    """

    def __init__(
        self,
        everywhere: NamedSharding,
        results: Sequence[tuple[int, Any, Sequence[tuple[int, NamedSharding]]]],
    ) -> None:
        self._recipes: list[_Recipe] = []
        targets: list[SingleDeviceSharding] = []
        sends_keys = False
        for index, aval, places in results:
            holders: dict[Any, tuple[int, int]] = {}
            for slot, sharding in places:
                for number, device in enumerate(devices_of(sharding)):
                    holders.setdefault(device, (slot, number))
            first = (places[0][0], 0)
            copies = [(*holders.get(device, first), device not in holders) for device in devices_of(everywhere)]
            missing = [device for device in devices_of(everywhere) if device not in holders]
            sends_keys = sends_keys or (bool(missing) and _compat.is_key(aval.dtype))
            targets += [SingleDeviceSharding(device) for device in missing]
            self._recipes.append(_Recipe(index, tuple(copies), scalar_assembler(aval, everywhere)))
        # One batched call, if any. From one device to one device it never waits for the value.
        self._copy = _compat.copier(targets, keys=sends_keys) if targets else None

    def __call__(self, slots: Sequence[Any], give: Callable[[int, Any], None]) -> None:
        """Call `give(index, array)` for each result; returns as soon as all copies are issued."""
        shards: dict[int, Sequence[Any]] = {}
        sent = []
        for recipe in self._recipes:
            for slot, number, is_sent in recipe.copies:
                if slot not in shards:
                    shards[slot] = _compat.own_shards(slots[slot])
                if is_sent:
                    sent.append(shards[slot][number])
        arrived = iter(() if self._copy is None else self._copy(sent))
        for recipe in self._recipes:
            copies = [next(arrived) if is_sent else shards[slot][number] for slot, number, is_sent in recipe.copies]
            give(recipe.index, recipe.assemble(copies))


def scalar_assembler(aval: Any, sharding: NamedSharding) -> Callable[[Sequence[Any]], Any]:
    """A function that makes scalars of this type of their shards, one for each own device of a replicated layout."""
    return _compat.assembler((), aval.dtype, sharding, weak=bool(getattr(aval, "weak_type", False)))
