"""Where the arguments of a step without tasks lie: it computes with each of them there.

An optimizer's update or a metric that a program compiles apart from its step has no task that says where it runs. Its
arguments do: a step with tasks has put them on its submeshes, and no device has the memory for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard, cast

from jax.sharding import Mesh, NamedSharding

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.warn import warn
from mmruntime._jaxpr.ir import Op, Step, is_tiny
from mmruntime._jaxpr.rewrite import renamed


def argument_homes(step: Step, leaves: Sequence[Any], multimesh: MultiMesh) -> dict[int, NamedSharding]:
    """The layouts of the arguments that lie on devices of a mesh, by position; none unless they lie on several stages.

    An argument without a `NamedSharding`, that is whole on all devices of the mesh, or tiny, may be used anywhere.

    Args:
        step: The step, as it was traced.
        leaves: Its arguments: arrays, numbers, or `jax.ShapeDtypeStruct`s in their place.
        multimesh: The mesh.
    """
    if not _lie_apart(leaves, multimesh):
        return {}
    everywhere = set(multimesh.mesh.devices.flat)
    found: dict[int, NamedSharding] = {}
    parts: set[tuple[Any, ...]] = set()
    for position, (var, leaf) in enumerate(zip(step.invars, leaves, strict=True)):
        sharding = getattr(leaf, "sharding", None)
        if not _is_on_mesh(sharding) or is_tiny(var):
            continue
        devices = _devices(sharding)
        is_part = everywhere > set(devices)
        if is_part:
            parts.add(devices)
        if is_part or (everywhere == set(devices) and not sharding.is_fully_replicated):
            found[position] = sharding
    return found if len(parts) > 1 else {}


def _lie_apart(leaves: Sequence[Any], multimesh: MultiMesh) -> bool:
    """Whether arguments, tiny ones included, lie on several parts of the mesh.

    It is asked at each call, so of each layout once: many arguments have few.
    """
    layouts = {getattr(leaf, "sharding", None) for leaf in leaves}
    if len(layouts) == 1:
        return False
    everywhere = set(multimesh.mesh.devices.flat)
    devices = {_devices(each) for each in layouts if _is_on_mesh(each)}
    return sum(everywhere > set(each) for each in devices) > 1


def warn_of_copies(
    name: str, step: Step, leaves: Sequence[Any], leaf_names: Sequence[str], multimesh: MultiMesh
) -> None:
    """Warn of arrays that lie on several parts of the mesh, each of which a step not placed after them copies.

    Args:
        name: The name of the step.
        step: A step without tasks and without loops, as it was traced.
        leaves: Its arguments.
        leaf_names: The user's names for them.
        multimesh: The mesh.
    """
    everywhere = set(multimesh.mesh.devices.flat)
    named = [(label, var, leaf) for label, var, leaf in zip(leaf_names, step.invars, leaves, strict=True)]
    named += [(f"a captured {var.aval.str_short()}", var, value) for var, value in step.constants.items()]
    lying = [
        (label, frozenset(leaf.sharding.device_set))
        for label, var, leaf in named
        if getattr(leaf, "committed", False) and leaf.sharding.device_set < everywhere and not is_tiny(var)
    ]
    if len({devices for _, devices in lying}) > 1:
        labels = [label for label, _ in lying]
        shown = ", ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else "")
        warn(
            f"mjit: {name} has no tasks, and gives every device a copy of what lies on several stages: {shown}. It "
            "computes where its arguments lie if they have a NamedSharding: pass captured arrays as arguments, and "
            "place arguments with `jax.device_put(x, NamedSharding(mesh, spec))`."
        )


def may_follow(step: Step) -> bool:
    """Whether a step goes by where its arguments lie, as it has no tasks and no loops that say where it runs."""
    return all(op.task is None for op in step.ops()) and all(region.loop is None for region in step.regions)


def follow_arguments(
    step: Step, homes: Mapping[int, NamedSharding], multimesh: MultiMesh
) -> tuple[Step, dict[Op, int], list[Mesh]]:
    """Read each argument where it lies.

    Args:
        step: A step without tasks and without loops.
        homes: The layouts of arguments, by position.
        multimesh: The mesh, whose order of devices is that of the submeshes.

    Returns:
        The step, in which equations that copy these arguments come first; the submesh of each of those; and the
        submeshes.
    """
    order = {device: number for number, device in enumerate(multimesh.mesh.devices.flat)}
    meshes = {_devices(sharding): cast(Mesh, sharding.mesh) for sharding in homes.values()}
    numbers = {
        devices: number
        for number, devices in enumerate(sorted(meshes, key=lambda each: [order[device] for device in each]))
    }
    pins: dict[Op, int] = {}
    copies: dict[Var, Var] = {}
    for position, sharding in homes.items():
        var = step.invars[position]
        copies[var] = _compat.new_var(var.aval)
        pins[Op(_compat.copy_eqn(var, copies[var]))] = numbers[_devices(sharding)]
    (region,) = step.regions
    ops = [op.with_eqn(renamed(op.eqn, copies, {})) for op in region.ops]
    return step.with_regions([replace(region, ops=(*pins, *ops))]), pins, [meshes[devices] for devices in numbers]


def _is_on_mesh(sharding: Any) -> TypeGuard[NamedSharding]:
    return isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)


def _devices(sharding: NamedSharding) -> tuple[Any, ...]:
    return tuple(cast(Mesh, sharding.mesh).devices.flat)
