"""What was found, in lines, as values for JSON, and as Markdown: of a program with hints and of one without."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mmrewrite.directives.sizes import format_size
from mmrewrite.suggest.calibration import Calibration
from mmrewrite.suggest.comparison import Suggested
from mmrewrite.suggest.hint_texts import mesh_axes, mesh_hint, microbatch_arguments, stages_hint
from mmrewrite.suggest.model import TEMPORARY, TEMPORARY_OF_BOTH, PlanChoice, Priced
from mmrewrite.suggest.savings import RECOMPUTE, STATE
from mmrewrite.suggest.search import ERROR, SAME, Plain

_ROWS = 6
# What to change, by the largest part of what a device holds.
_SMALLER = "more devices, an optimizer with less state, or another axis that cuts parameters"
_LARGEST = {"activations": "more microbatches or `jax.checkpoint`", "temporary": "more microbatches"}
_UNSEEN = "slices of the sequence, experts, parameters cut over data within a stage"


def values(suggested: Suggested) -> dict[str, Any]:
    """All of it, for programs."""
    found, hints, device = suggested.found, suggested.hints, suggested.wanted.device
    return {
        "verdict": found.verdict,
        "summary": verdict_sentence(suggested),
        "predicted": True,
        "verified": None if hints is None else hints.verified,
        "devices": suggested.devices,
        "device": device.name,
        "batch": suggested.batch,
        "layers": suggested.layers,
        "held": dict(suggested.held),
        "best": _row(found.best),
        "hints": None if found.best is None else _hints(suggested, found.best.choice),
        "places": None
        if hints is None
        else [
            {"path": each.path, "line": each.line, "hint": each.text, "around": each.around} for each in hints.written
        ],
        "patch": None if hints is None else hints.patch.decode(errors="replace"),
        "today": _row(suggested.today),
        "plain": None if found.plain is None else {"kind": found.plain.kind, **asdict(found.plain)},
        "alternatives": [_row(each) for each in found.others],
        "room": device.room,
        "needs_devices": found.needs,
        "assumed": {
            "source": device.source,
            "network": device.network,
            "flops": dict(device.flops),
            "memory": device.memory,
            "bandwidth": device.bandwidth,
            "links": [asdict(each) for each in device.links],
            "efficiency": device.efficiency,
            "reserve": device.reserve,
            "launch": device.launch,
        },
        "calibration": None
        if (timed := suggested.calibration) is None
        else asdict(timed) | {"error": timed.error, "left": timed.left},
        "remarks": [] if hints is None else list(hints.places.remarks),
        "uncut": list(suggested.uncut),
        "savings": [{"kind": each.kind, "plan": _row(each.best)} for each in suggested.savings],
    }


def _row(priced: Priced | None) -> dict[str, Any] | None:
    return None if priced is None else asdict(priced)


def faster_plan(suggested: Suggested) -> str | None:
    """That a plan for the devices of the program's mesh is faster by more than the model's error; None if none is."""
    best, today, wanted = suggested.found.best, suggested.today, suggested.wanted
    if best is None or today is None or suggested.devices != suggested.today_devices:
        return None
    gain = 1 - best.seconds / today.seconds
    if gain <= ERROR:
        return None
    return (
        f"`{wanted.entry}`: another plan is predicted {gain:.0%} faster on {suggested.devices} {wanted.device.name}: "
        f"{plan_words(suggested, best.choice)}; `mmrewrite plan --suggest {wanted.device.name} --entry {wanted.entry} "
        f"--args {wanted.arguments}` has its hints"
    )


def as_text(suggested: Suggested) -> str:
    """The report as lines: what to choose, why, and what is assumed."""
    return "\n".join(_lines(suggested)) + "\n"


def as_markdown(suggested: Suggested) -> str:
    """A comment: the verdict as a heading, the patch, and why, the other plans and what is assumed, as blocks."""
    (verdict, *rest) = _lines(suggested, patch=False)
    patch = _patch(suggested)
    parts = [f"### mmrewrite suggest: {verdict}"]
    parts += [f"```diff\n{patch}```"] if patch else []
    body = "\n".join(rest).strip("\n")
    return "\n\n".join([*parts, f"```text\n{body}\n```"]) + "\n"


def as_patch(suggested: Suggested) -> bytes:
    """What `git apply` takes; nothing where no hints are worth writing."""
    return b"" if suggested.hints is None else suggested.hints.patch


def _patch(suggested: Suggested) -> str:
    return as_patch(suggested).decode(errors="replace")


def _lines(suggested: Suggested, *, patch: bool = True) -> Iterator[str]:
    found, device, hints = suggested.found, suggested.wanted.device, suggested.hints
    best, plain, today = found.best, found.plain, suggested.today
    yield verdict_sentence(suggested)
    if best is not None and (hints is not None or suggested.places is None):
        yield from _sizes(suggested, best)
    if found.verdict in ("one", "plain") and plain is not None and plain.devices > 1:
        yield from _with_plain_jit(suggested, plain)
    if hints is not None and patch:
        yield from _patch(suggested).splitlines()
    elif best is not None and suggested.places is None:
        yield f"The best pipeline on {suggested.devices} devices: {plan_words(suggested, best.choice)}, {_price(best)}"
        yield "What to change in its hints: `count` takes the place of `size`, and their other arguments stay"
        yield from (f"  # mm: {hint}" for hint in _hints(suggested, best.choice))
    yield ""
    yield from _reasons(suggested)
    if best is None and plain is None and not found.others:
        return
    rows: list[tuple[str, float, float]] = []
    if today is not None:
        label = f"today, {suggested.today_devices} devices: {plan_words(suggested, today.choice)}"
        rows.append((label, today.seconds, today.memory))
    if plain is not None:
        rows.append((_plain(plain), plain.seconds, plain.memory))
    for each in ([best] if best is not None else []) + list(found.others[: _ROWS - (best is not None)]):
        rows.append((plan_words(suggested, each.choice), each.seconds, each.memory))
    width = max(60, *(len(label) for label, _, _ in rows))
    beside = "  beside the best pipeline" if best is not None else ""
    yield f"{'Plans':{width + 2}}  {'step':>8}  {'memory':>10}{beside}"
    for label, seconds, memory in rows:
        yield _entry(f"{label:{width}}", seconds, memory, device.room, best)
    yield "Closer than 10 % is a tie. Times are predicted, not measured: no accelerator has confirmed them."
    yield ""
    yield from _savings(suggested)
    yield from _assumed(suggested)
    if hints is not None:
        wanted = suggested.wanted
        where = " ".join(suggested.paths)
        arguments = "MODULE:FUNCTION (it returns the arguments of a step)" if wanted.runs else wanted.arguments
        checks = f"; mmrewrite verify {where} --entry {wanted.entry} --args {arguments}"
        apply = "" if hints.is_written else "--apply, or --format patch | git apply; "
        yield f"Next: {apply}mmrewrite diff {where}{checks}"


def _savings(suggested: Suggested) -> Iterator[str]:
    """What a line of the user's would make possible, where memory decides."""
    names = {RECOMPUTE: "each layer computed again in its backward pass", STATE: "optimizer state cut over data"}
    for each in suggested.savings:
        plan = f"{plan_words(suggested, each.best.choice)}, {_price(each.best)}"
        yield f"Memory decides. With {names[each.kind]}: {plan}. Write this, and run the command again:"
        if each.kind == RECOMPUTE:
            yield f"  {suggested.again} in place of layer(x)"
        else:
            yield '  state = jax.tree.map(lambda a: hints.shard(a, "state") if a.ndim else a, state), behind the update'
            yield f'  and state="{suggested.data_axis}" in axes(...)'
        yield ""


def _sizes(suggested: Suggested, best: Priced) -> Iterator[str]:
    room = f"{_bytes(best.memory)} of {_bytes(suggested.wanted.device.room)}"
    alone = f" One device would need {_bytes(suggested.alone)} at least." if suggested.alone else ""
    yield f"The fullest device holds {room}.{alone}"


def _reasons(suggested: Suggested) -> Iterator[str]:
    places, best, written = suggested.places, suggested.found.best, suggested.hints
    if places is None:
        return
    candidate = places.candidate
    yield "Why"
    share = f"{candidate.share:.0%} of the operations"
    yield f"  {candidate.path}:{candidate.line}  {suggested.layers} layers, {share}"
    said = f"{places.batch}. Proved: microbatches give the results of the whole batch"
    yield f"  {places.gradient.path}:{places.gradient.line}  {said}"
    if best is not None and written is not None:
        other = suggested.against
        beside = "" if other is None else f"; {other.choice.schedule} {_seconds(other.idle)} in {_bytes(other.memory)}"
        if best.choice.schedule == "1f1b":
            beside = ""
        yield f"  {best.choice.schedule}  {_seconds(best.idle)} idle in {_bytes(best.memory)}{beside}"
        if (chunks := best.choice.chunks) > 1:
            yield f"  chunks={chunks}  each device has {chunks} runs of layers, and waits less at both ends of a step"
        parts = (
            f"{_seconds(best.busy)} busiest stage",
            f"{_seconds(best.seconds - best.busy - best.summed - best.update)} in which it waits",
            *([f"{_seconds(best.summed)} sums of gradients"] if best.summed else []),
            f"{_seconds(best.update)} update",
        )
        yield f"  step  {' + '.join(parts)}"
    if written is not None and written.verified is not None:
        yield f"  verified  {written.verified}"
    for remark in places.remarks:
        yield f"  besides  {remark}"
    yield ""


def _with_plain_jit(suggested: Suggested, plain: Plain) -> Iterator[str]:
    """A plan without stages, as it is written with JAX alone."""
    is_hybrid = 1 < plain.shards < plain.data
    data = {"data": plain.data // plain.shards, "shard": plain.shards} if is_hybrid else {"data": plain.data}
    sizes = {name: size for name, size in {**data, "model": plain.model}.items() if size > 1}
    axes = ", ".join(f'"{name}"' for name in sizes)
    comma = "," if len(sizes) == 1 else ""
    yield f"  mesh = jax.make_mesh(({', '.join(map(str, sizes.values()))}{comma}), ({axes}{comma}))"
    rows = '("data", "shard")' if is_hybrid else '"data"'
    if plain.data > 1:
        yield f"  batch = jax.device_put(batch, NamedSharding(mesh, P({rows})))"
    cut = ', and P("model") on that of what the lines below cut' if plain.model > 1 else ""
    if plain.shards > 1:
        axis = "shard" if is_hybrid else "data"
        yield f'  state: NamedSharding(mesh, P("{axis}")) on the dimension of each array that this axis divides{cut}'
    elif plain.model > 1:
        yield '  state: NamedSharding(mesh, P("model")) on the dimension that the lines below cut, P() for the rest'
    else:
        yield "  state = jax.device_put(state, NamedSharding(mesh, P()))"
    for each in suggested.places.shards if suggested.places is not None and plain.model > 1 else ():
        if each.divides % plain.model == 0:
            names = {"cut": '"model"', "rows": rows if plain.data > 1 else "None", "": "None"}
            spec = ", ".join(names[dim] for dim in each.dims)
            yield f"  {each.site.path}:{each.site.line}: jax.lax.with_sharding_constraint(..., P({spec}))"
    if plain.count > 1:
        yield f"  gradients: jax.lax.scan over {plain.count} pieces of the batch, added up"


def verdict_sentence(suggested: Suggested) -> str:
    """What to choose, or why nothing can be chosen, in a sentence."""
    found = suggested.found
    if found.verdict == "nothing":
        return _nothing(suggested)
    if found.verdict == "pipeline":
        assert found.best is not None
        faster = "" if found.plain is None else f"; without stages {_seconds(found.plain.seconds)}"
        is_asked = found.plain is not None and found.plain.seconds < found.best.seconds
        head = "The pipeline that you ask for" if is_asked else "Pipeline it"
        return (
            f"{head}: {plan_words(suggested, found.best.choice)}. About {_seconds(found.best.seconds)} a step "
            f"(predicted, not measured){faster}."
        )
    assert found.plain is not None
    best = "" if found.best is None else f"; the best pipeline {_seconds(found.best.seconds)}"
    what = "One device will do" if found.verdict == "one" else f"{_plain(found.plain)} is simpler and no slower"
    return f"{what}: about {_seconds(found.plain.seconds)} a step (predicted, not measured){best}."


def _fitting(suggested: Suggested) -> str:
    """What to give instead of sizes that no mesh of a plan has."""
    fixed = suggested.wanted.fixed
    held = math.prod(suggested.held.values())
    product = held * math.prod(each for each in (fixed.stages, fixed.data, fixed.model) if each is not None)
    if fixed.model is not None and suggested.model_axis is None:
        return "no dimension of a layer that a model axis may cut has a place for a hint; leave --model out"
    if fixed.stages is not None and not 1 < fixed.stages <= suggested.layers:
        return f"give from 2 to {suggested.layers} stages"
    if suggested.devices % product:
        return f"{product} does not divide {suggested.devices}; give --devices {product}, or other sizes"
    if suggested.data_axis is None:
        return "no value is seen to have the rows of a batch, so all devices are stages; give as many as stages"
    return "give a number of devices and a --batch that divide each other"


def _nothing(suggested: Suggested) -> str:
    found, room = suggested.found, suggested.wanted.device.room
    fixed = suggested.wanted.fixed.said()
    least = min(found.others, key=lambda each: each.memory, default=None)
    if least is None:
        beside = f" with {fixed}" if fixed else ""
        return (
            f"No pipeline of {suggested.layers} layers and {suggested.batch} rows has a mesh of {suggested.devices} "
            f"devices{beside}; {_fitting(suggested)}."
        )
    parts = dict(least.parts or {})
    largest = max(parts, key=lambda each: parts[each])
    advice = _LARGEST.get(largest, _SMALLER)
    enough = f"; it would fit {found.needs} devices" if found.needs is not None else f"; {advice} would help"
    return (
        f"Nothing fits {suggested.devices} devices with {_bytes(room)} each: the least that a plan needs is "
        f"{_bytes(least.memory)} a device, of which {_bytes(parts[largest])} are {largest}{enough}."
    )


def _assumed(suggested: Suggested) -> Iterator[str]:
    device = suggested.wanted.device
    yield "Assumed, with the option that changes it"
    speeds = ", ".join(f"{speed / 1e12:.3g} {name}" for name, speed in device.flops.items())
    given = f"; given: {', '.join(sorted(device.changed))}" if device.changed else ""
    yield f"  {device.name}: {speeds} TFLOP/s (--flops), {device.source}{given}"
    if suggested.unknown_types:
        yield f"  products of {', '.join(suggested.unknown_types)}: no figure, taken to run as those of float32"
    room = f"{_bytes(device.memory)} less {device.reserve:.0%} (--memory; reserve in --cluster)"
    speed = f"{device.bandwidth / 1e12:.3g} TB/s of memory (--bandwidth)"
    yield f"  x {device.efficiency:g} (--efficiency); {speed}; {room}"
    if suggested.calibration is not None:
        yield from _calibration(suggested.calibration, device.name)
    if device.is_measured:
        yield "  As a file for --cluster:"
        yield from (f"    {line}" for line in device.as_toml().splitlines())
    near, far = device.links[0], device.links[-1]
    yield (
        f"  {near.bandwidth / 1e9:.3g} and {far.bandwidth / 1e9:.3g} GB/s within and between groups of {near.devices} "
        f"(--near, --far, --per-host)"
    )
    yield f"  links: {device.network}"
    latencies = f"{near.latency * 1e6:.3g} and {far.latency * 1e6:.3g} us for a message there (latency in --cluster)"
    yield f"  {latencies}; {device.launch * 1e6:.0f} us to issue a program (--launch)"
    yield (
        f"  XLA's temporary bytes: {TEMPORARY} of what a stage keeps, {TEMPORARY_OF_BOTH} on the last, as seen on CPU "
        "devices"
    )
    for name, size in suggested.held.items():
        yield f"  {name}={size} stays: its devices compute equal shares, and are taken to hold all of a stage each"
    if suggested.data_axis is None:
        yield "Not looked at: a data axis, as no `shard` hint names the rows of a batch"
    for sentence in suggested.uncut:
        yield f"Not cut: {sentence}"
    yield f"Not looked at: {_UNSEEN}"


def _calibration(timed: Calibration, name: str) -> Iterator[str]:
    """What a layer's programs took, and how far off the model was."""
    yield f"  a layer, forward and backward, on {timed.kind}; by published figures of {timed.record} the model was"
    for each in timed.sizes:
        rows = "1 row" if each.rows == 1 else f"{each.rows} rows"
        off = f"{each.predicted / each.measured - 1:+.0%} off"
        yield f"    {rows}: {_seconds(each.measured)} measured, {_seconds(each.predicted)} predicted, {off}"
    if not timed.is_used:
        what = "this machine has no accelerator" if timed.record == "cpu" else "this machine has an accelerator"
        yield f"    Not used: {what}, so that says nothing of {name}"
    elif timed.left > SAME:
        yield f"    With the speeds above it is still {timed.left:.0%} off"


def plan_words(suggested: Suggested, choice: PlanChoice) -> str:
    """A plan in a few words: its mesh, microbatches and schedule."""
    rounds = "" if choice.chunks == 1 else f" ({choice.chunks} chunks)"
    return f"{mesh_axes(suggested, choice)}, {_microbatches(choice.count)}, {choice.schedule}{rounds}"


def _hints(suggested: Suggested, choice: PlanChoice) -> list[str]:
    """The arguments to write into the hints that are there; others of these hints stay."""
    return [
        mesh_hint(suggested, choice),
        f"microbatch({', '.join(microbatch_arguments(choice))})",
        stages_hint(choice),
    ]


def _microbatches(count: int) -> str:
    return "1 microbatch" if count == 1 else f"{count} microbatches"


def _plain(plain: Plain) -> str:
    over = "one device" if plain.devices == 1 else f"data={plain.data // plain.shards}"
    if plain.shards > 1:
        over = f"FSDP over {plain.shards}" if plain.shards == plain.data else f"{over}, FSDP over {plain.shards}"
    if plain.model > 1:
        over = f"model={plain.model}" if plain.data == 1 else f"{over}, model={plain.model}"
    added = f", gradients of {_microbatches(plain.count)} added up" if plain.count > 1 else ""
    return f"{over}, plain jax.jit{added}"


def _price(priced: Priced) -> str:
    return f"{_seconds(priced.seconds)} a step, {_seconds(priced.idle)} of it idle, {_bytes(priced.memory)}"


def _entry(label: str, seconds: float, memory: float, room: float, best: Priced | None) -> str:
    if memory > room:
        return f"  {label}  {_seconds(seconds):>8}  {_bytes(memory):>10}  does not fit"
    beside = "" if best is None or seconds == best.seconds else f"  {seconds / best.seconds - 1:+.0%}"
    return f"  {label}  {_seconds(seconds):>8}  {_bytes(memory):>10}{beside}"


def _bytes(size: float) -> str:
    return format_size(int(size))


def _seconds(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}" if seconds / size < 100 else f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e6:.0f} us"
