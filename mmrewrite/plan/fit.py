"""Whether a traced step fits the memory of its devices, and what to change where it does not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_UNITS = {"B": 1} | {
    f"{prefix}{letters}": base**power
    for letters, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(("K", "M", "G", "T"), start=1)
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")

# What to change, by the largest part of what a device holds.
_MORE_DEVICES = (
    "give the mesh more stages, or another device axis that `axes` shards parameters over, "
    "and an optimizer with less state"
)
_SMALLER = "cut the batch into more microbatches, or give the layers `jax.checkpoint`"
_ADVICE = {
    "parameters": _MORE_DEVICES,
    "optimizer_state": _MORE_DEVICES,
    "gradients": _MORE_DEVICES,
    "inputs": "give the mesh a device axis that `axes` shards the batch over, or feed a smaller batch",
    "activations": _SMALLER,
    "received": _SMALLER,
    "results": "donate the state (`donate_argnums` of `jax.jit`), so that its next values take its place",
    "temporary": _SMALLER,
}


def parse_size(text: str) -> int:
    """A number of bytes such as `80GiB`, `16 GB` or `512MiB`.

    Raises:
        ValueError: If the text is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    unit = next((size for name, size in _UNITS.items() if found and name.lower() == found[2].lower()), None)
    if found is None or unit is None or not float(found[1]):
        raise ValueError(f"{text!r} is no size; write a number and a unit, such as 80GiB or 512MB")
    return int(float(found[1]) * unit)


@dataclass(frozen=True)
class Fit:
    """Whether a step fits.

    Attributes:
        limit: Bytes of each device.
        fits: Whether each device has room for what it holds when it holds most.
        sentences: What was found, and what to change.
    """

    limit: int
    fits: bool
    sentences: tuple[str, ...]


def fit(traced: Mapping[str, Any], limit: int) -> Fit:
    """Compare the memory of each submesh's devices with that of the devices.

    Args:
        traced: The runtime's document about the step.
        limit: Bytes of each device.
    """
    rows = sorted(traced["memory"], key=lambda row: -row["total"])
    over = [row for row in rows if row["total"] > limit]
    if not over:
        first = rows[0]
        sentence = f"fits: each device of submesh {_named(first)} needs most, {_size(first['total'])} of {_size(limit)}"
        return Fit(limit, True, (sentence,))
    return Fit(limit, False, tuple(sentence for row in over for sentence in _over(row, traced, limit)))


def _over(row: Mapping[str, Any], traced: Mapping[str, Any], limit: int) -> Iterator[str]:
    held: Mapping[str, int] = row["held"]
    largest = max(held, key=lambda kind: held[kind])
    yield (
        f"does not fit: each device of submesh {_named(row)} needs {_size(row['total'])} of {_size(limit)}, of which "
        f"{_size(held[largest])} are {largest.replace('_', ' ')}, while this runs: {row['running']}"
    )
    advice = _ADVICE[largest]
    crowded = [loop for loop in traced["loops"] if max(loop["live"]) > len(set(loop["submeshes"]))]
    if largest in ("activations", "received") and crowded:
        schedule, most, stages = crowded[0]["schedule"], max(crowded[0]["live"]), len(set(crowded[0]["submeshes"]))
        advice = (
            f'write `schedule="1f1b"` in the hint `microbatch`: it has at most {stages} microbatches in flight, and '
            f"{schedule} has {most}; or {advice}"
        )
    yield f"to change: {advice}"


def _named(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, row["submeshes"]))


def _size(size: int) -> str:
    """Bytes in the largest binary unit of which there is at least one."""
    unit = next((name for name in ("TiB", "GiB", "MiB", "KiB") if size >= _UNITS[name]), "B")
    return f"{size / _UNITS[unit]:.1f} {unit}" if unit != "B" else f"{size} B"
