"""Whole values of arrays that lie on devices of several processes, in every process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._execution.transfers.channels import channel, chosen
from mmruntime._execution.transfers.crossing import Crossing
from mmruntime._execution.transfers.own_parts import in_words, is_global, processes
from mmruntime._processes.agreement import agree
from mmruntime._processes.group import MESSAGE_BITS, group_of
from mmruntime._processes.progress import progress

_ADVICE = (
    "Every process gathers the same arrays, in the same order. Of arrays on devices of one process alone, that process "
    "has the values: use jax.device_get."
)


def is_spread(array: Any) -> bool:
    """Whether an array is one that all processes speak of, and some may hold a part of it only, or nothing."""
    everywhere = tuple(range(jax.process_count()))
    return (
        len(everywhere) > 1
        and is_global(array)
        and not (array.is_fully_replicated and processes(array.sharding.mesh) == everywhere)
    )


def whole_values(label: str, arrays: Sequence[jax.Array]) -> Iterator[jax.Array]:
    """The arrays, each whole on one device of this process. Every process calls this, and takes all of them.

    They come one after another, so that no device holds more than one of them for this.

    Args:
        label: What the caller calls this, for messages.
        arrays: Arrays for which `is_spread` holds.

    Raises:
        RuntimeError: If the processes do not speak of equal arrays.
    """
    group, me = group_of(tuple(range(jax.process_count()))), jax.process_index()
    layouts: list[Any] = [array.sharding for array in arrays]
    listed = [
        f"{jax.typeof(array).str_short()}: {in_words(layout)}" for array, layout in zip(arrays, layouts, strict=True)
    ]
    agree(label, {"the arrays": "\n".join(listed)}, group, _ADVICE)
    carrier = channel(chosen())
    first: dict[int, Any] = {}
    for device in jax.devices():
        first.setdefault(device.process_index, device)
    number = 0
    for index, (array, layout) in enumerate(zip(arrays, layouts, strict=True)):
        if index % (1 << MESSAGE_BITS) == 0:
            number = group.called(label.encode())
        holders = processes(layout.mesh)
        # A process with all of it on its own devices puts it together there.
        targets = [first[process] for process in group.members]
        everywhere = NamedSharding(Mesh(np.array(targets), ("process",)), PartitionSpec())
        crossing = Crossing([layout], [everywhere], [jax.typeof(array)], carrier, me)
        carrier.connect(crossing.peers)
        (copy,) = crossing([array], number + index % (1 << MESSAGE_BITS))
        (own,) = _compat.own_shards(copy)
        with progress.waiting(f"{label} of {listed[index]}", [process for process in holders if process != me]):
            yield own.block_until_ready()
