"""Meshes that the program made itself: its constraints over them, as constraints over the submesh that computes there.

A layout never changes a value, so a constraint moves to any submesh that has its axes, or other axes that the logical
axes in force give for them. What computes by axis, as `jax.shard_map`, moves to a submesh with the same axes only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from mmruntime import _compat
from mmruntime._core.logical_axes import Names, spec_axes, spec_names
from mmruntime._core.multimesh import MultiMesh
from mmruntime._jaxpr.canonical_forms import is_layout

# How messages call the equations that lay values out.
_NAMES = {"sharding_constraint": "with_sharding_constraint", "device_put": "jax.device_put"}


# The spec over a submesh of names and the shape of a value, where the names of the collection are its own axes.
ToSubmesh = Callable[[Sequence[Names], Sequence[int], Collection[str]], PartitionSpec]


def onto_submesh(
    eqn: Any, mesh: Mesh, multimesh: MultiMesh, task: str | None, known: Collection[str], translate: ToSubmesh
) -> Any:
    """An equation with the shardings and meshes of its own parameters, not its bodies, translated to a submesh.

    Args:
        eqn: The equation, for which `lays_out` holds.
        mesh: The submesh that runs it.
        multimesh: The mesh of the step, of which `mesh` may be a slice.
        task: The name of the task, or None outside of tasks, for messages.
        known: The logical names that the task maps to axes of the submesh or to none.
        translate: Translates these.

    Raises:
        ValueError: If a sharding names an axis that is not known and that the submesh does not have, or has in another
            size, or that does not divide its dimension; if it is of single devices; or if a `shard_map` is over other
            axes.
    """
    params = eqn.params
    change = _SubmeshTranslation(eqn, mesh, multimesh, task, known, translate)
    changed = {key: change.parameter(key, value) for key, value in params.items()}
    return eqn if all(changed[key] is params[key] for key in params) else eqn.replace(params=changed)


def named_axes(eqn: Any) -> frozenset[str]:
    """The mesh axes that an equation names: in its shardings, or all axes of its mesh, as of a `shard_map`."""

    def names(value: Any) -> Iterator[str]:
        if type(value) in (tuple, list):
            for each in value:
                yield from names(each)
        elif isinstance(value, NamedSharding):
            yield from spec_axes(value.spec)
        elif isinstance(value, Mesh | AbstractMesh):
            yield from value.axis_names

    return frozenset(name for value in eqn.params.values() for name in names(value))


def border_shardings(eqn: Any) -> tuple[list[Sharding | None], list[Sharding | None]]:
    """The `in_shardings` and `out_shardings` of a call of `jax.jit`; None where the user gave none."""
    ins, outs = (eqn.params.get(key, ()) for key in ("in_shardings", "out_shardings"))
    return [_given(each) for each in ins], [_given(each) for each in outs]


def _given(sharding: Any) -> Sharding | None:
    return sharding if isinstance(sharding, Sharding) else None


class _SubmeshTranslation:
    """The translation of one equation's parameters."""

    def __init__(
        self,
        eqn: Any,
        mesh: Mesh,
        multimesh: MultiMesh,
        task: str | None,
        known: Collection[str],
        translate: ToSubmesh,
    ) -> None:
        self.eqn = eqn
        self.known = known
        self.translate = translate
        self.mesh = mesh
        self.devices = tuple(mesh.devices.flat)
        self.multimesh = multimesh
        self.runner = "this code outside of tasks" if task is None else f"task {task!r}"

    def parameter(self, key: str, value: Any, position: int = 0) -> Any:
        if type(value) in (tuple, list):
            items = [self.parameter(key, item, number) for number, item in enumerate(value)]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else type(value)(items)
        # Where a `device_put` comes from is a remark for its transpose.
        if key == "srcs":
            return None if is_layout(value) else value
        if isinstance(value, NamedSharding):
            atoms = self.eqn.invars if key.startswith("in_") else self.eqn.outvars
            return self.named(value, atoms[position].aval.shape if position < len(atoms) else None)
        if isinstance(value, Sharding | jax.Device):
            return self.other(value)
        if isinstance(value, Mesh) and not value.empty and self.eqn.primitive.name == "shard_map":
            return self.manual(value)
        return value

    def named(self, sharding: NamedSharding, shape: tuple[int, ...] | None) -> NamedSharding:
        mesh: Any = sharding.mesh
        if isinstance(mesh, AbstractMesh):
            manual = any(kind == AxisType.Manual for kind in mesh.axis_types)
            if mesh.empty or manual or mesh.shape == self.mesh.shape:
                return sharding
        elif tuple(mesh.devices.flat) == self.devices:
            # JAX takes any mesh of the right devices.
            return sharding
        entries = [self.entry(entry, sharding) for entry in sharding.spec]
        names = spec_axes(entries)
        own = {name for name in names if self.has(name, sharding.mesh.shape[name])}
        if own != names:
            wrong = next((name for name in sorted(names - own) if shape is None or name not in self.known), None)
            if wrong is not None or shape is None:
                raise ValueError(self.no_axis(str(wrong), sharding))
            entries = self.carried_over(entries, shape, own)
        target = self.mesh.abstract_mesh if isinstance(mesh, AbstractMesh) else self.mesh
        return NamedSharding(target, PartitionSpec(*entries), memory_kind=sharding.memory_kind)

    def entry(self, entry: Any, sharding: NamedSharding) -> Any:
        if entry is None or entry is PartitionSpec.UNCONSTRAINED:
            return entry
        names = (entry,) if isinstance(entry, str) else tuple(entry)
        # An axis of one device cuts nothing.
        kept = tuple(name for name in names if sharding.mesh.shape[name] > 1)
        return None if not kept else kept[0] if len(kept) == 1 else kept

    def has(self, name: str, size: int) -> bool:
        """Whether the submesh has an axis in a size. A slice of the mesh has its sliced axes in size 1."""
        return name in self.mesh.shape and size in (self.mesh.shape[name], self.multimesh.shape.get(name))

    def carried_over(self, entries: Sequence[Any], shape: tuple[int, ...], own: Collection[str]) -> list[Any]:
        try:
            spec = self.translate(spec_names(entries, len(shape)), shape, own)
        except ValueError as error:
            raise ValueError(f"{self.where()}: {error}") from None
        found = [*spec, *[None] * (len(entries) - len(spec))]
        return [old if old is PartitionSpec.UNCONSTRAINED else new for old, new in zip(entries, found, strict=True)]

    def no_axis(self, name: str, sharding: NamedSharding) -> str:
        has = f"has {name!r} in size {self.mesh.shape[name]}" if name in self.mesh.shape else f"has no axis {name!r}"
        hint = f'the hint axes({name}="{self.suggested()}")' if name.isidentifier() else "the hint axes(...)"
        return (
            f"{self.where()} lays a value out by {_shown(sharding.spec)} over a mesh of the program, "
            f"{_axes(sharding.mesh)}, but {self.runner} runs on {self.here()}, which {has}. Say which of its axes "
            f"{name!r} is, by {hint} beside mesh(...), or by ({name!r}, {self.suggested()!r}) in logical_axes= of the "
            f"MultiMesh or the task; None in its place is replicated."
        )

    def other(self, value: Any) -> Any:
        devices = (value,) if isinstance(value, jax.Device) else tuple(sorted(value.device_set, key=lambda d: d.id))
        if devices == self.devices:
            return value
        raise ValueError(
            f"{self.where()} puts a value on {', '.join(map(str, devices))}, but {self.runner} runs on {self.here()}. "
            "Leave the device out: in a step the tasks say where values are. Outside of steps jax.device_put takes any "
            "device."
        )

    def manual(self, mesh: Mesh) -> Mesh:
        """The mesh of a `shard_map`: its axes on the devices of the submesh, if those are the same axes."""
        if tuple(mesh.devices.flat) == self.devices:
            return mesh
        cut = [(name, size) for name, size in mesh.shape.items() if size > 1]
        if dict(cut) != {name: size for name, size in self.mesh.shape.items() if size > 1}:
            raise ValueError(
                f"{self.where()} runs over a mesh of the program, {_axes(mesh)}, but {self.runner} runs on "
                f"{self.here()}. Write mm.shard_map(...) without mesh=, with the axes of the submesh in in_specs, "
                "out_specs and the body; or place the task on a submesh with the axes of that mesh."
            )
        order = [name for name, size in self.mesh.shape.items() if size > 1]
        devices = np.squeeze(self.mesh.devices).transpose([order.index(name) for name, _ in cut])
        return Mesh(devices.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types)

    def where(self) -> str:
        name = self.eqn.primitive.name
        if self.eqn.primitive is _compat.jit_p:
            what = f"jax.jit of {self.eqn.params['name']}, by its in_shardings or out_shardings,"
        else:
            what = str(_NAMES.get(name, name))
        line = _compat.source_lines(self.eqn)
        return f"{what} at {line}" if line else what

    def here(self) -> str:
        whole = "" if self.mesh.shape == self.multimesh.shape else f" of {self.multimesh!r}"
        return f"the submesh {_axes(self.mesh)}{whole}" if whole else f"the mesh {_axes(self.mesh)}"

    def suggested(self) -> str:
        name: str = max(self.mesh.shape.items(), key=lambda axis: axis[1])[0]
        return name


def _axes(mesh: Any) -> str:
    return "(" + ", ".join(f"{name}={size}" for name, size in mesh.shape.items()) + ")"


def _shown(spec: PartitionSpec) -> str:
    return f"P({', '.join(map(repr, spec))})"
