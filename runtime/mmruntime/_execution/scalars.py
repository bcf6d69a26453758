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
from mmruntime._execution.transfer import Transport


def same_devices(one: NamedSharding, other: NamedSharding) -> bool:
    """Whether two layouts are on the same devices in the same order."""
    meshes: list[Any] = [one.mesh, other.mesh]
    return tuple(meshes[0].devices.flat) == tuple(meshes[1].devices.flat)


def part(array: Any, sharding: NamedSharding) -> Any:
    """The shards of a replicated array on one submesh, as an array of that submesh; no data moves."""
    copies = {shard.device: shard.data for shard in array.addressable_shards}
    devices: Any = sharding.mesh.devices
    own = [copies[device] for device in devices.flat if device in copies]
    return _compat.replicate(own, sharding)


@dataclass(eq=False, slots=True, frozen=True)
class _Recipe:
    """How one scalar result is assembled.

    Attributes:
        index: Its index among the step's outputs.
        copies: For each device of the mesh: a slot, the number of its shard, and the device if that shard is sent
            there, None if it is there already.
    """

    index: int
    copies: tuple[tuple[int, int, Any], ...]


class Spreader:
    """Puts scalar results on all devices of a mesh: planned once, called every step.

    Args:
        everywhere: The layout of the results: replicated over the mesh.
        results: For each result its index among the step's outputs, and the slots that hold it with their layouts.
        transport: How copies get to the devices of submeshes that hold none.
    """

    def __init__(
        self,
        everywhere: NamedSharding,
        results: Sequence[tuple[int, Sequence[tuple[int, NamedSharding]]]],
        transport: Transport,
    ) -> None:
        self._everywhere = everywhere
        self._put = transport.put
        self._recipes: list[_Recipe] = []
        self._targets: list[SingleDeviceSharding] = []
        devices: Any = everywhere.mesh.devices
        for index, places in results:
            holders: dict[Any, tuple[int, int]] = {}
            for slot, sharding in places:
                own: Any = sharding.mesh.devices
                for number, device in enumerate(own.flat):
                    holders.setdefault(device, (slot, number))
            first = (places[0][0], 0)
            copies = []
            for device in devices.flat:
                holder = holders.get(device)
                copies.append((*(holder or first), None if holder else device))
                if holder is None:
                    self._targets.append(SingleDeviceSharding(device))
            self._recipes.append(_Recipe(index, tuple(copies)))

    def __call__(self, slots: Sequence[Any], give: Callable[[int, Any], None]) -> None:
        """Call `give(index, array)` for each result; returns as soon as all copies are issued."""
        shards: dict[int, list[Any]] = {}
        sent = []
        for recipe in self._recipes:
            for slot, number, device in recipe.copies:
                if slot not in shards:
                    shards[slot] = [shard.data for shard in slots[slot].addressable_shards]
                if device is not None:
                    sent.append(shards[slot][number])
        # One batched call. From one device to one device `jax.device_put` never waits for the value.
        arrived = iter(self._put(sent, self._targets) if sent else ())
        for recipe in self._recipes:
            copies = [
                shards[slot][number] if device is None else next(arrived) for slot, number, device in recipe.copies
            ]
            give(recipe.index, _compat.replicate(copies, self._everywhere))
