"""Records of accelerators, from `devices.toml`, from the command line and from a file about a cluster."""

from __future__ import annotations

import dataclasses
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from mmrewrite.directives.sizes import parse_size
from mmrewrite.directives.vocabulary import closest

_KINDS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
_FLOPS = re.compile(r"([\d.]+(?:e\d+)?)\s*([KMGTP]?)(?:FLOPS?|FLOP/s)?", re.IGNORECASE)
_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_TIME = re.compile(r"([\d.]+(?:e-?\d+)?)\s*(s|ms|us)")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True)
class NetworkLink:
    """What so many neighbouring devices are linked by: bytes per second of one device in one direction, and seconds."""

    devices: int
    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Accelerator:
    """One accelerator, and how several are linked.

    Attributes:
        name: Its name.
        source: Where the figures are published.
        flops: Operations per second of dense products, by type.
        memory: Bytes.
        bandwidth: Bytes per second of its memory.
        links: From the innermost outwards; what more devices are linked by than the last says is the last, too.
        efficiency: Part of its peak that products run at.
        reserve: Part of its memory that programs do not get.
        launch: Seconds to issue a program.
        network: Where the figures of the links are published.
        changed: What was given in place of the record, by name.
        overlaps: Whether products hide what memory moves for them; if not, the times of both add up.
        is_measured: Whether the speeds of products, memory and launches are those of this machine.
    """

    name: str
    source: str
    flops: Mapping[str, float]
    memory: float
    bandwidth: float
    links: tuple[NetworkLink, ...]
    # Assumed, not measured.
    efficiency: float = 0.55
    reserve: float = 0.06
    launch: float = 60e-6
    network: str = ""
    changed: frozenset[str] = field(default=frozenset())
    overlaps: bool = True
    is_measured: bool = False

    @property
    def room(self) -> float:
        """Bytes that a step may use."""
        return self.memory * (1 - self.reserve)

    def speed(self, dtype: str) -> float:
        """Operations per second that products of a type are taken to run at."""
        return self.flops.get(_KINDS.get(dtype, ""), self.flops["f32"]) * self.efficiency

    def knows(self, dtype: str) -> bool:
        """Whether there is a figure for products of a type; others are taken to run as those of float32."""
        return _KINDS.get(dtype) in self.flops

    def link(self, devices: int) -> NetworkLink:
        """What so many neighbouring devices are linked by."""
        return next((each for each in self.links if devices <= each.devices), self.links[-1])

    def measured(self, found: Mapping[str, Any], products: float, memory: float) -> Accelerator:
        """The record with what was measured: times as fast products and memory, and launches; no parts of a peak."""
        return dataclasses.replace(
            self,
            source=f"measured on {found['kind']}: a layer's programs, and launches; not links",
            flops={kind: speed * self.efficiency * products for kind, speed in self.flops.items()},
            efficiency=1.0,
            bandwidth=self.bandwidth * memory,
            launch=found["launch"],
            # What grows with the rows, and what does not.
            overlaps=False,
            is_measured=True,
        )

    def as_toml(self) -> str:
        """The record as a file for `--cluster`."""
        flops = ", ".join(f"{kind} = {speed:.3g}" for kind, speed in self.flops.items())
        lines = [
            f"# {self.source}",
            "[device]",
            f'name = "{self.name}"',
            f"flops = {{ {flops} }}",
            f"efficiency = {self.efficiency:g}",
        ]
        lines += [] if self.overlaps else ["overlaps = false"]
        lines += [f"memory = {self.memory:.6g}", f"bandwidth = {self.bandwidth:.3g}"]
        for link in self.links:
            lines += ["[[links]]", f"devices = {link.devices}", f"bandwidth = {link.bandwidth:.3g}"]
            lines += [f"latency = {link.latency:.3g}"]
        return "\n".join([*lines, "[host]", f"launch = {self.launch:.3g}"])

    def with_given(self, given: Mapping[str, Any]) -> Accelerator:
        """The record with other values: `memory`, `flops`, `bandwidth`, `near`, `far` and so on, as texts or numbers.

        Raises:
            ValueError: If a value cannot be read, or there is no such value.
        """
        record = self
        for name, value in given.items():
            record = dataclasses.replace(record._with(name, value), changed=record.changed | {name})
        return record

    def _with(self, name: str, value: Any) -> Accelerator:
        links = list(self.links)
        match name:
            case "memory":
                return dataclasses.replace(self, memory=_rate(name, value))
            case "bandwidth":
                return dataclasses.replace(self, bandwidth=_rate(name, value))
            case "efficiency":
                return dataclasses.replace(self, efficiency=_part(name, _positive(name, value)))
            case "reserve":
                return dataclasses.replace(self, reserve=_part(name, value))
            case "overlaps" if isinstance(value, bool):
                return dataclasses.replace(self, overlaps=value)
            case "launch":
                return dataclasses.replace(self, launch=_seconds(name, value))
            case "flops" if isinstance(value, dict):
                known = {kind: _flops(each) for kind, each in value.items()}
                if missing := known.keys() - self.flops.keys():
                    raise ValueError(f"flops has no type {min(missing)}; there are {', '.join(self.flops)}")
                return dataclasses.replace(self, flops={**self.flops, **known})
            case "flops":
                return dataclasses.replace(self, flops=dict.fromkeys(self.flops, _flops(value)))
            case "near":
                links[0] = dataclasses.replace(links[0], bandwidth=_rate(name, value))
            case "far":
                links[-1] = dataclasses.replace(links[-1], bandwidth=_rate(name, value))
            case "host":
                links[0] = dataclasses.replace(links[0], devices=_whole(name, value))
            case _:
                raise ValueError(f"a device has no {name}")
        return dataclasses.replace(self, links=tuple(links))


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
    record = records[name]
    links = NetworkLink(record["host"], record["near"], 10e-6), NetworkLink(2**30, record["far"], 20e-6)
    figures = record["source"], record["flops"], record["memory"], record["bandwidth"]
    return Accelerator(name, *figures, links, network=record["network"])


def read_cluster(content: Mapping[str, Any]) -> tuple[Accelerator, int | None]:
    """The accelerator of a cluster's TOML, and how many there are, None if it does not say.

    Raises:
        ValueError: If it is no such file, in a sentence.
    """
    for name in content:
        if name not in ("devices", "device", "links", "host"):
            raise ValueError(f"there is no {name} in a cluster; there are devices, [device], [[links]] and [host]")
    device, host, links = content.get("device", {}), content.get("host", {}), content.get("links", [])
    if not (isinstance(device, dict) and isinstance(host, dict) and isinstance(links, list)):
        raise ValueError("[device] and [host] are tables, and [[links]] are several")
    given = {**device, **host}
    if not isinstance(given.get("name"), str):
        raise ValueError('[device] needs a name, such as name = "h100"')
    record = find_device(given.pop("name")).with_given(given)
    if links:
        read = []
        for link in links:
            if not isinstance(link, dict) or link.keys() != {"devices", "bandwidth", "latency"}:
                raise ValueError("each of [[links]] has devices, bandwidth and latency")
            rate, wait = _rate("bandwidth", link["bandwidth"]), _seconds("latency", link["latency"])
            read.append(NetworkLink(_whole("devices", link["devices"]), rate, wait))
        links = tuple(sorted(read, key=lambda each: each.devices))
        record = dataclasses.replace(record, links=links, network="links of --cluster")
    return record, None if "devices" not in content else _whole("devices", content["devices"])


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is a whole number, not {value!r}")
    return value


def _part(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(f"{name} is a part of one, not {value!r}")
    return float(value)


def _rate(name: str, value: object) -> float:
    """Bytes, or bytes per second, as a number or as `450GB/s`."""
    found = float(parse_size(value.removesuffix("/s"))) if isinstance(value, str) else value
    return _positive(name, found)


def _flops(value: object) -> float:
    if isinstance(value, str):
        match = _FLOPS.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is no number of operations per second; write 989TFLOP/s or 989e12")
        return _positive("flops", float(match[1]) * 10 ** _PREFIXES[match[2].upper()])
    return _positive("flops", value)


def _seconds(name: str, value: object) -> float:
    if isinstance(value, str):
        match = _TIME.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is no time; write 60us, 1ms or 0.5s")
        return _positive(name, float(match[1]) * _UNITS[match[2]])
    return _positive(name, value)


def _positive(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} is a positive number, not {value!r}")
    return float(value)
