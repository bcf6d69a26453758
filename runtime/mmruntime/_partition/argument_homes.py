"""Where the arguments of a step without tasks lie: it computes with each of them there.

An optimizer's update or a metric that a program compiles apart from its step has no task that says where it runs. Its
arguments do: a step with tasks has put them on its submeshes, and no device has the memory for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from jax.sharding import Mesh, NamedSharding

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._core.multimesh import MultiMesh
from mmruntime._jaxpr.ir import Op, Step, is_tiny


def argument_homes(step: Step, leaves: Sequence[Any], multimesh: MultiMesh) -> dict[int, NamedSharding]:
    """The layouts of the arguments that lie on devices of a mesh, by position; none unless they lie on several stages.

    An argument that nothing binds to its devices, that is whole on all devices of the mesh, or tiny, may be used
    anywhere.

    Args:
        step: The step, as it was traced.
        leaves: Its arguments: arrays, numbers, or `jax.ShapeDtypeStruct`s in their place.
        multimesh: The mesh.
    """
    everywhere = set(multimesh.mesh.devices.flat)
    found: dict[int, NamedSharding] = {}
    parts: set[tuple[Any, ...]] = set()
    for position, (var, leaf) in enumerate(zip(step.invars, leaves, strict=True)):
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh) or is_tiny(var):
            continue
        devices = _devices(sharding)
        is_part = everywhere > set(devices)
        if is_part:
            parts.add(devices)
        if is_part or (everywhere == set(devices) and not sharding.is_fully_replicated):
            found[position] = sharding
    return found if len(parts) > 1 else {}


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
    ops = [op.with_eqn(_reading(op.eqn, copies)) for op in region.ops]
    return step.with_regions([replace(region, ops=(*pins, *ops))]), pins, [meshes[devices] for devices in numbers]


def _reading(eqn: Any, instead: Mapping[Var, Var]) -> Any:
    return eqn.replace(invars=[instead.get(atom, atom) if is_var(atom) else atom for atom in eqn.invars])


def _devices(sharding: NamedSharding) -> tuple[Any, ...]:
    return tuple(cast(Mesh, sharding.mesh).devices.flat)
