"""Whether a traced step fits the memory of its devices, and what to change where it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmrewrite.directives.sizes import format_size

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
        needs = f"{format_size(rows[0]['total'])} of {format_size(limit)}"
        return Fit(limit, True, (f"fits: each device of submesh {_named(rows[0])} needs most, {needs}",))
    return Fit(limit, False, tuple(sentence for row in over for sentence in _over(row, traced, limit)))


def _over(row: Mapping[str, Any], traced: Mapping[str, Any], limit: int) -> Iterator[str]:
    held: Mapping[str, int] = row["held"]
    largest = max(held, key=lambda kind: held[kind])
    yield (
        f"does not fit: each device of submesh {_named(row)} needs {format_size(row['total'])} of "
        f"{format_size(limit)}, of which {format_size(held[largest])} are {largest.replace('_', ' ')}, "
        f"while this runs: {row['running']}"
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
