"""`shard_map`, and what operations do on each device where examples are split over mesh axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mmruntime import _compat
from mmruntime._exactness.lattice import ANY, AbstractValue, Kind, Reason, Shards
from mmruntime._exactness.rules.equation import Equation, NoRule, NotProved, Place, rule

Layout = tuple[tuple[tuple[str, int], ...], ...]

_TOTALS = (Kind.SUM, Kind.MAX, Kind.MIN)
_ADDITIONS = ("add", "sub", "add_any")


@rule("shard_map", loose=("jaxpr",))
def shard_map(eqn: Equation) -> list[AbstractValue]:
    """What the function of shards gives: on each device both programs are compared as elsewhere."""
    sizes = dict(eqn.params["mesh"].shape)
    manual = _compat.manual_axes(eqn.params)
    ins = []
    eqn.replace_positions()
    for index, spec in enumerate(eqn.params["in_specs"]):
        value, layout = eqn.ins[index], _layout(spec, sizes, len(eqn.shape(index)))
        if value.kind is Kind.FREE and value.axes:
            raise NoRule
        ins.append(_on_device(value, layout))
    part, whole = eqn.params["jaxpr"], eqn.whole_params["jaxpr"]
    outs = eqn.run("jaxpr", part, whole, ins, hoists=eqn.may_hoist, place=Place.SHARDS)
    results = []
    for index, (value, spec) in enumerate(zip(outs, eqn.params["out_specs"], strict=True)):
        layout = _layout(spec, sizes, len(eqn.out_shape(index)))
        results.append(_put_together(value, layout, manual))
    return results


def _layout(spec: Any, sizes: dict[str, int], rank: int) -> Layout:
    """The mesh axes that each dimension is split over, without axes of one device."""
    entries = [*spec, *[None] * (rank - len(spec))]
    axes = [entry if isinstance(entry, tuple) else () if entry is None else (entry,) for entry in entries]
    return tuple(tuple((axis, sizes[axis]) for axis in each if sizes[axis] > 1) for each in axes)


def _names(entry: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(axis for axis, _ in entry)


def _mentioned(layout: Layout) -> frozenset[str]:
    return frozenset(axis for entry in layout for axis in _names(entry))


def _on_device(value: AbstractValue, layout: Layout) -> AbstractValue:
    """An operand as each device sees it."""
    shards = value.shards
    if shards is not None:
        is_alike = all(dim in shards.alike for dim, entry in enumerate(layout) if entry)
        if shards.layout == layout or (shards.alike and is_alike):
            return shards.value.but(hoistable=value.hoistable)
    value = value.but(shards=None)
    varies = value.varies | _mentioned(layout)
    if not value.is_proved or value.kind is Kind.ZERO:
        return value
    if value.kind is not Kind.ROWS:
        return value.but(varies=varies)
    entry = layout[value.dim]
    if value.outer == ANY:
        return value.but(varies=varies - set(_names(entry)))
    # The outermost axes may share out what examples follow each other in, and the others the examples.
    for count in range(len(entry) + 1):
        outer = math.prod(size for _, size in entry[:count])
        if outer == value.outer and count < len(entry):
            axes = _names(entry[count:])
            return value.but(outer=1, axes=(*value.axes, *axes), varies=varies - set(axes))
    total = math.prod(size for _, size in entry)
    if value.outer % total == 0:
        return value.but(outer=value.outer // total, varies=varies)
    return _mixed(value, "shares out over mesh axes several examples that follow each other more than once")


def _put_together(value: AbstractValue, layout: Layout, manual: frozenset[str]) -> AbstractValue:
    """The array that the devices' values make up."""
    if not value.is_proved:
        return value
    found = _whole(value, layout, manual)
    return found.but(shards=Shards(value, layout)) if any(layout) else found


def _whole(value: AbstractValue, layout: Layout, manual: frozenset[str]) -> AbstractValue:
    mentioned, own = _mentioned(layout), manual.intersection(value.axes)
    outside = value.but(varies=value.varies - manual)
    if not own <= mentioned:
        if value.kind in _TOTALS:
            which = "jax.lax.psum" if value.kind is Kind.SUM else f"jax.lax.p{value.kind.value}"
            return _mixed(
                value,
                "returns from `shard_map` what one device reduces over its examples, as if all had the same: "
                f"out_specs do not have {listed(own)}",
                f"Reduce it over them with {which} in the function.",
            )
        return _mixed(value, "returns from `shard_map` the examples of one device as if all had the same")
    if value.kind in (Kind.INDEX, Kind.COLUMNS):
        return _mixed(value, "returns from `shard_map` the examples' positions on each device")
    if value.kind in _TOTALS and own:
        return _mixed(
            value,
            "returns from `shard_map` what each device reduces over its examples, an entry for each",
            "Reduce it over the devices in the function, or right after it.",
        )
    if value.kind is not Kind.ROWS:
        return outside
    entry = layout[value.dim]
    if not own:
        names = set(_names(entry))
        count = math.prod(size for _, size in entry)
        if count == 1 or (value.outer == ANY and not names & value.varies):
            return outside
        return outside.but(outer=max(value.outer, 1) * count)
    split = [axis for axis in value.axes if axis in own]
    is_inner = _names(entry)[len(entry) - len(split) :] == tuple(split) and value.axes[-len(split) :] == tuple(split)
    if value.outer in (1, ANY) and is_inner and not (mentioned - set(_names(entry))) & own:
        outer = math.prod(size for _, size in entry[: len(entry) - len(split)])
        return outside.but(outer=outer, axes=value.axes[: -len(split)])
    return _mixed(value, "returns from `shard_map` the examples of the devices in another order than they were in")


def listed(axes: frozenset[str]) -> str:
    """Mesh axes for people."""
    return ", ".join(f"`{axis}`" for axis in sorted(axes))


def _mixed(value: AbstractValue, problem: str, advice: str = "") -> AbstractValue:
    return AbstractValue(Kind.MIXED, hoistable=value.hoistable, reason=Reason("", "", problem, advice))


def alike_dimensions(eqn: Equation) -> tuple[int, ...]:
    """The dimensions along which a result repeats one entry, where it does not depend on examples."""
    value = eqn.ins[0] if eqn.ins else None
    if value is None or value.kind is not Kind.FREE or value.axes or eqn.grown():
        return ()
    if eqn.name == "broadcast_in_dim":
        dims = eqn.params["broadcast_dimensions"]
        return tuple(dim for dim in range(len(eqn.out_shape())) if dim not in dims)
    is_scaled = eqn.name in ("mul", "div") and eqn.shape(1) == () and eqn.ins[1].kind is Kind.FREE
    return value.shards.alike if is_scaled and value.shards is not None else ()


def reduced_at_once(eqn: Equation) -> AbstractValue | None:
    """A reduction over devices of what each has reduced over its examples, as one reduction; None if it is none."""
    kinds = {"reduce_sum": Kind.SUM, "reduce_max": Kind.MAX, "reduce_min": Kind.MIN}
    if eqn.name not in kinds or eqn.ins[0].is_proved:
        return None
    shards = eqn.ins[0].shards
    if shards is None or shards.value.kind is not kinds[eqn.name]:
        return None
    reduced = {axis for dim in eqn.params["axes"] for axis in _names(shards.layout[dim])}
    if not reduced.issuperset(shards.value.axes):
        return None
    return shards.value.but(axes=(), varies=frozenset())


def check_devices(eqn: Equation) -> None:
    """Check that operands whose examples are split over mesh axes meet only what is the same all along these.

    Raises:
        NotProved: If they meet something else.
    """
    axes = {axis for value in eqn.ins for axis in value.axes}
    if not axes:
        return
    split = {value.axes for value in eqn.ins if value.axes and value.kind not in _TOTALS}
    is_whole = [value.kind is Kind.ROWS and not value.axes and value.outer != ANY for value in eqn.ins]
    if len(split) > 1 or (split and any(is_whole)):
        raise NotProved("combines the examples of a device with other examples")
    if eqn.name in _ADDITIONS and any(value.kind is Kind.SUM for value in eqn.ins):
        return
    if any(value.varies & axes for value in eqn.ins if value.kind not in _TOTALS):
        raise NotProved(
            "computes with the examples of a device and what depends on its position in the mesh",
            "In a microbatch an example lies on another device than in the whole batch.",
        )


def on_devices(ins: Sequence[AbstractValue], found: AbstractValue, *, is_draw: bool) -> AbstractValue:
    """A result with the mesh axes that its examples are split over, and those along which it varies.

    Args:
        ins: The operands.
        found: The result, as if there was one device.
        is_draw: Whether the operation draws random numbers, which are as good on one device as on another.
    """
    split = next((value.axes for value in ins if value.axes and value.kind not in _TOTALS), ())
    axes = split or tuple(sorted({axis for value in ins for axis in value.axes}))
    varies = frozenset[str]().union(*(value.varies for value in ins)) if ins else frozenset[str]()
    if found.kind is Kind.ZERO or not found.is_proved:
        return found
    if is_draw and found.shape_grows:
        return found.but(axes=split, varies=frozenset())
    if found.kind is Kind.FREE:
        is_inside = any(value.kind is Kind.FREE and value.axes for value in ins)
        return found.but(axes=axes if is_inside else (), varies=varies - set(axes))
    return found.but(axes=axes, varies=varies - set(axes) if split else varies)


def joined_on_devices(one: AbstractValue, other: AbstractValue, found: AbstractValue) -> AbstractValue | None:
    """What two values have in common on devices, None if nothing.

    Args:
        one: The first value.
        other: The second value.
        found: What they have in common as if there was one device.
    """
    shards = one.shards if one.shards == other.shards else None
    varies = one.varies | other.varies
    if not found.is_proved:
        return found.but(shards=shards)
    if found.kind in _TOTALS:
        axes = tuple(sorted({*one.axes, *other.axes}))
        return found.but(axes=axes, varies=varies, shards=shards)
    # Rows that are alike, zeros and what is free are so on every device.
    split = {each.axes for each in (one, other) if each.axes or (each.kind is Kind.ROWS and each.outer != ANY)}
    (axes,) = split if len(split) == 1 else ((),)
    if len(split) > 1 or varies.intersection(axes):
        return None
    return found.but(axes=axes, varies=varies, shards=shards)


def decided_on_devices(
    which: AbstractValue, ins: Sequence[AbstractValue], outs: Sequence[AbstractValue]
) -> list[AbstractValue]:
    """Results of a branch, or of a loop, that a value decides on.

    Raises:
        NotProved: If devices decide for themselves, and their examples are in what is computed.
    """
    if which.axes:
        raise NoRule
    if not which.varies:
        return list(outs)
    if any(which.varies.intersection(value.axes) for value in (*ins, *outs)):
        raise NotProved(
            "computes with the examples of a device where its position in the mesh decides what is computed",
            "In a microbatch an example lies on another device than in the whole batch.",
        )
    return [value.but(varies=value.varies | which.varies) if value.is_proved else value for value in outs]
