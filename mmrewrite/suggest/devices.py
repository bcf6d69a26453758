"""Records of accelerators, from `devices.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from mmrewrite.directives.vocabulary import closest

# Parts of peaks and of memory that programs get, seconds to issue a program and for a message: assumed, not measured.
EFFICIENCY, RESERVE, LAUNCH, NEAR_LATENCY, FAR_LATENCY = 0.55, 0.06, 60e-6, 10e-6, 20e-6
_KINDS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}


@dataclass(frozen=True)
class Accelerator:
    """One accelerator.

    Attributes:
        name: Its name.
        source: Where the figures are published.
        flops: Operations per second of dense products, by type.
        memory: Bytes.
        bandwidth: Bytes per second of its memory.
        near: Bytes per second to others of its host, in one direction.
        far: The same to other hosts.
        host: How many share the near link.
    """

    name: str
    source: str
    flops: Mapping[str, float]
    memory: float
    bandwidth: float
    near: float
    far: float
    host: int

    @property
    def room(self) -> float:
        """Bytes that a step may use."""
        return self.memory * (1 - RESERVE)

    def speed(self, dtype: str) -> float:
        """Operations per second that products of a type are taken to run at."""
        return self.flops[_KINDS.get(dtype, "f32")] * EFFICIENCY

    def link(self, devices: int) -> tuple[float, float]:
        """Bytes per second and latency among so many neighbouring devices."""
        return (self.near, NEAR_LATENCY) if devices <= self.host else (self.far, FAR_LATENCY)


def find_device(name: str) -> Accelerator:
    """The record of a name.

    Raises:
        ValueError: If there is none, with the nearest.
    """
    records = tomllib.loads(resources.files("mmrewrite.suggest").joinpath("devices.toml").read_text("utf-8"))
    if name not in records:
        near = closest(name.lower(), records)
        advice = "" if near is None else f"did you mean {near}? "
        raise ValueError(f"no device is called {name}; {advice}There are: {', '.join(records)}")
    return Accelerator(name, **records[name])
