"""Compares the cost model with timed runs of a layer, and fits figures of a device so that they agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrewrite.suggest.costs import Layer
from mmrewrite.suggest.devices import Accelerator, find_device
from mmrewrite.suggest.model import CostModel

# Products or memory are taken to be so many times as fast as those of the record at most, or as slow.
_MOST = 1e4
_STEPS = 60


@dataclass(frozen=True)
class TimedSize:
    """Seconds of one layer's passes for so many rows: as published figures predict them, as measured, as fitted."""

    rows: int
    predicted: float
    measured: float
    fitted: float


@dataclass(frozen=True)
class Calibration:
    """What was measured, and how far off the model was.

    Attributes:
        kind: The accelerator that it was measured on.
        record: The published figures that it is held against.
        sizes: The passes of one layer, the smaller microbatch first.
        is_used: Whether the plans were compared with what was measured: not if that is another kind of device.
    """

    kind: str
    record: str
    sizes: tuple[TimedSize, ...]
    is_used: bool

    @property
    def error(self) -> float:
        """How far off the published figures were at most, as a part of what was measured."""
        return max(abs(each.predicted / each.measured - 1) for each in self.sizes)

    @property
    def left(self) -> float:
        """How far off the model still is at most with the figures that were fitted."""
        return max(abs(each.fitted / each.measured - 1) for each in self.sizes)


def sizes_to_time(batch: int, devices: int) -> list[int]:
    """Into how many microbatches a batch is cut for two sizes to time, the smaller size first.

    The smaller is what a device gets where each of as many stages gets four microbatches, the larger 16 times that.
    """
    divisors = [each for each in range(1, batch + 1) if batch % each == 0]
    many = max(each for each in divisors if each <= max(4 * devices, 1))
    few = max((each for each in divisors if 16 * each <= many), default=1)
    return sorted({many, few}, reverse=True)


def calibrated(
    layers: Sequence[Layer], batch: int, device: Accelerator, found: Mapping[str, Any]
) -> tuple[Accelerator, Calibration]:
    """The device with the speeds that give the times of a layer's programs, and what these are beside its record.

    Products of all types keep their ratios, and so do links, memory and its reserve stay.

    Args:
        layers: The layers of the step.
        batch: Rows of a batch.
        device: The record.
        found: The document of `mmruntime._commands.calibrate`.
    """
    is_cpu = found["platform"] == "cpu"
    is_used = is_cpu == (device.name == "cpu")
    record = device if is_used else find_device("cpu") if is_cpu else device

    def passes(rows: int, tried: Accelerator) -> float:
        model = CostModel(layers, batch, tried, donates=True)
        return sum(model.passes(rows, 1)[int(found["layer"])])

    rows = [each["rows"] for each in found["sizes"]]
    measured = [each["forward"] + each["backward"] for each in found["sizes"]]
    fitted = _fitted(lambda at, tried: passes(rows[at], tried), measured, record, found)
    sizes = tuple(
        TimedSize(each, passes(each, record), took, passes(each, fitted))
        for each, took in zip(rows, measured, strict=True)
    )
    return fitted if is_used else device, Calibration(found["kind"], record.name, sizes, is_used)


def _fitted(
    seconds: Callable[[int, Accelerator], float],
    measured: Sequence[float],
    record: Accelerator,
    found: Mapping[str, Any],
) -> Accelerator:
    """The record with speeds of products and of memory by which both sizes take what was measured."""

    def tried(ratio: float, speed: float = 1.0) -> Accelerator:
        return record.measured(found, products=speed * ratio, memory=speed)

    def growth(ratio: float) -> float:
        return seconds(-1, tried(ratio)) / seconds(0, tried(ratio))

    # The slower products are beside memory, the more a larger microbatch takes.
    low, high = 1 / _MOST, _MOST
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if growth(middle) > measured[-1] / measured[0] else (low, middle)
    ratio = math.sqrt(low * high)
    # The rest is the same for both; where no ratio gives their growth, they share what is left.
    off = [seconds(at, tried(ratio)) / took for at, took in enumerate(measured)]
    return tried(ratio, math.sqrt(off[0] * off[-1]))
