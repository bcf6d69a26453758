"""A comparison of plans as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mmrewrite.directives.sizes import format_size
from mmrewrite.suggest.devices import EFFICIENCY, LAUNCH, RESERVE
from mmrewrite.suggest.model import PlanChoice, Priced
from mmrewrite.suggest.search import Plain, named
from mmrewrite.suggest.traced import Suggested

_ROWS = 6


def as_json(suggested: Suggested) -> str:
    """All of it, for programs."""
    found = suggested.found
    document = {
        "verdict": found.verdict,
        "predicted": True,
        "devices": suggested.devices,
        "device": suggested.wanted.device.name,
        "batch": suggested.batch,
        "layers": suggested.layers,
        "held": dict(suggested.held),
        "best": _row(found.best),
        "hints": None if found.best is None else _hints(suggested, found.best.choice),
        "today": _row(suggested.today),
        "plain": None if found.plain is None else asdict(found.plain),
        "alternatives": [_row(each) for each in found.others],
        "room": suggested.wanted.device.room,
    }
    return json.dumps(document, indent=2) + "\n"


def _row(priced: Priced | None) -> dict[str, Any] | None:
    return None if priced is None else asdict(priced)


def as_text(suggested: Suggested) -> str:
    """What to choose, why, and what is assumed, in lines."""
    return "\n".join(_lines(suggested)) + "\n"


def _lines(suggested: Suggested) -> Iterator[str]:
    found, device = suggested.found, suggested.wanted.device
    best, plain, today = found.best, found.plain, suggested.today
    yield _verdict(suggested)
    if best is not None:
        yield f"The best pipeline on {suggested.devices} devices: {_named(suggested, best.choice)}, {_price(best)}"
        yield "What to change in its hints: `count` takes the place of `size`, and their other arguments stay"
        yield from (f"  # mm: {hint}" for hint in _hints(suggested, best.choice))
    yield ""
    yield f"{'Plans':52}  {'step':>8}  {'memory':>10}"
    if today is not None:
        label = f"today, {suggested.today_devices} devices: {_named(suggested, today.choice)}"
        yield _entry(label, today.seconds, today.memory, device.room)
    if plain is not None:
        yield _entry(_plain(plain), plain.seconds, plain.memory, device.room)
    for each in ([best] if best is not None else []) + list(found.others[: _ROWS - (best is not None)]):
        yield _entry(_named(suggested, each.choice), each.seconds, each.memory, device.room)
    yield "Closer than 10 % is a tie. Times are predicted, not measured: no accelerator has confirmed them."
    yield ""
    yield "Assumed"
    speeds = ", ".join(f"{speed / 1e12:.3g} {name}" for name, speed in device.flops.items())
    yield f"  {device.name}: {speeds} TFLOP/s, {device.source}"
    room = f"{format_size(int(device.memory))} less {RESERVE:.0%}"
    yield f"  x {EFFICIENCY}; {device.bandwidth / 1e12:.3g} TB/s of memory; {room}"
    yield (
        f"  {device.near / 1e9:.3g} and {device.far / 1e9:.3g} GB/s in and between hosts of {device.host}; "
        f"{LAUNCH * 1e6:.0f} us to issue a program"
    )
    yield "  XLA's temporary bytes: 1.1 of what a stage keeps, 1.9 on the last, as seen on CPU devices"
    for name, size in suggested.held.items():
        yield f"  {name}={size} stays: its devices compute equal shares, and are taken to hold all of a stage each"
    if suggested.data_axis is None:
        yield "Not looked at: a data axis, as no `shard` hint names the rows of a batch"
    yield "Not looked at: jax.checkpoint, slices of the sequence, experts, optimizer state over a data axis"


def _verdict(suggested: Suggested) -> str:
    found = suggested.found
    if found.verdict == "nothing":
        least = min(found.others, key=lambda each: each.memory, default=None)
        needs = "" if least is None else f": the least that a plan needs is {format_size(int(least.memory))} a device"
        return (
            f"Nothing fits {suggested.devices} devices with {format_size(int(suggested.wanted.device.room))} each"
            f"{needs}; give more devices, or more rows to cut."
        )
    if found.verdict == "pipeline":
        assert found.best is not None
        faster = "" if found.plain is None else f"; without stages {_seconds(found.plain.seconds)}"
        return (
            f"Pipeline it: {_named(suggested, found.best.choice)}. About {_seconds(found.best.seconds)} a step"
            f" (predicted, not measured){faster}."
        )
    assert found.plain is not None
    what = "One device will do" if found.verdict == "one" else f"{_plain(found.plain)} is simpler and no slower"
    return f"{what}: about {_seconds(found.plain.seconds)} a step (predicted, not measured)."


def _named(suggested: Suggested, choice: PlanChoice) -> str:
    mesh = _mesh(suggested, choice)
    rounds = "" if choice.chunks == 1 else f" ({choice.chunks} chunks)"
    return f"{mesh}, {_microbatches(choice.count)}, {choice.schedule}{rounds}"


def _microbatches(count: int) -> str:
    return "1 microbatch" if count == 1 else f"{count} microbatches"


def _mesh(suggested: Suggested, choice: PlanChoice) -> str:
    axes = {suggested.axis: choice.stages}
    if suggested.data_axis is not None and choice.data > 1:
        axes[suggested.data_axis] = choice.data
    return ", ".join(f"{name}={size}" for name, size in (axes | dict(suggested.held)).items())


def _hints(suggested: Suggested, choice: PlanChoice) -> list[str]:
    """The arguments to write into the hints that are there; others of these hints stay."""
    arguments = []
    if choice.chunks > 1:
        arguments.append('placement="v"' if _is_v(choice) else f"chunks={choice.chunks}")
    if choice.by_cost:
        arguments.append('weights="auto"')
    stages = f"stages({', '.join(arguments)})" if arguments else "stages"
    return [
        f"mesh({_mesh(suggested, choice)}){_axes(suggested, choice)}",
        f'microbatch(count={choice.count}, schedule="{choice.schedule}")',
        stages,
    ]


def _axes(suggested: Suggested, choice: PlanChoice) -> str:
    """The whole `axes` of the mesh hint: today's, with the rows of a batch over the data axis if there is one."""
    pairs = dict(suggested.logical_axes)
    if suggested.row_name is not None and (choice.data > 1 or pairs.get(suggested.row_name) is not None):
        pairs[suggested.row_name] = suggested.data_axis if choice.data > 1 else None
    written = ", ".join(f"{name}={_device_axes(device)}" for name, device in pairs.items())
    return f"; axes({written})" if written else ""


def _device_axes(device: Any) -> str:
    if isinstance(device, list):
        return f"({', '.join(map(_device_axes, device))}{',' if len(device) == 1 else ''})"
    return "None" if device is None else f'"{device}"'


def _is_v(choice: PlanChoice) -> bool:
    made = named(choice.schedule, choice.stages, choice.count, choice.chunks)
    return made is not None and choice.chunks == 2 and made.placement[choice.stages] == choice.stages - 1


def _plain(plain: Plain) -> str:
    over = {"one device": "one device", "data": f"data={plain.devices}", "fsdp": f"FSDP over {plain.devices}"}
    return f"{over[plain.kind]}, plain jax.jit, gradients of {_microbatches(plain.count)}"


def _price(priced: Priced) -> str:
    return f"{_seconds(priced.seconds)} a step, {_seconds(priced.idle)} of it idle, {format_size(int(priced.memory))}"


def _entry(label: str, seconds: float, memory: float, room: float) -> str:
    fits = "" if memory <= room else "  does not fit"
    return f"  {label:50}  {_seconds(seconds):>8}  {format_size(int(memory)):>10}{fits}"


def _seconds(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}" if seconds / size < 100 else f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e6:.0f} us"
