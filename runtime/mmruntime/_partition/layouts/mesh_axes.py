"""Mesh axes: the logical names in a step, translated as the task at that place means them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._core.logical_axes import Names, Pairs, mesh_axes, spec_axes, translate
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.submesh import axis_pairs
from mmruntime._core.switches import transforms_ignored
from mmruntime._core.task import Task
from mmruntime._core.warn import warn
from mmruntime._frontend.constraint import constraint_p
from mmruntime._jaxpr.canonical_forms import lays_out
from mmruntime._jaxpr.ir import Op
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.tracing.own_meshes import named_axes, onto_submesh

# A task, a logical name, a dimension and the shape of the value: where the name did not cut the dimension.
Unused = tuple[str, str, int, tuple[int, ...]]

# Parameters of equations, by their identity, and whether nothing in them speaks of names, axes or devices. Equations go
# with them from pass to pass, and into copies of a loop's body.
Plain = dict[int, tuple[Mapping[str, Any], bool]]

_OUTSIDE = "(outside of tasks)"


class AxisTranslator:
    """Translates logical names into mesh axes, and collects the names that have no effect.

    Args:
        placement: Where the step runs.
        multimesh: The mesh that it is compiled for.
        unknown: Unknown names that were met before, and where.
        unused: Unused names that were met before.
        plain: Parameters of equations that name nothing, as far as that is known; see `Plain`.

    Attributes:
        axes: The mesh axes that constraints, shardings and meshes in the translated equations name.
        unknown: Names that no pair in force maps, in order of first use, and what carries each first.
        unused: Names that did not cut their dimension, and why not.
    """

    def __init__(
        self,
        placement: Placement,
        multimesh: MultiMesh,
        unknown: Mapping[str, str] | None = None,
        unused: Mapping[Unused, str] | None = None,
        plain: Plain | None = None,
    ) -> None:
        self._placement = placement
        self._multimesh = multimesh
        self._plain: Plain = {} if plain is None else plain
        # What holds for the equations of a task on a submesh, by the identity of the task, which is kept.
        self._known: dict[tuple[int, int], tuple[Task | None, tuple[Mesh, Pairs, str]]] = {}
        self.axes: set[str] = set()
        self.unknown: dict[str, str] = dict(unknown or {})
        self.unused: dict[Unused, str] = dict(unused or {})

    def input_layout(
        self, var: Var, where: int, names: Sequence[Names], task: Task | None, carrier: str
    ) -> NamedSharding:
        """The layout of an input that carries logical names, as a task on a submesh reads them.

        Args:
            var: The input.
            where: The submesh.
            names: Its names.
            task: The task that reads it there.
            carrier: The user's name for the input, with its shape and names, for messages.

        Raises:
            ValueError: If a name maps to an axis that does not divide its dimension, or that the mesh does not have.
        """
        mesh = self._placement.submeshes.meshes[where]
        if task is not None:
            mesh = self._placement.task_meshes.get(task, mesh)
        pairs = axis_pairs(task, mesh, self._multimesh)
        self._note_unknown(names, pairs, lambda: carrier)
        label = _label(task)
        try:
            spec = translate(names, var.aval.shape, pairs, mesh.shape, label)
        except ValueError as error:
            raise ValueError(f"{error} The value is {carrier}; the mesh is {self._multimesh!r}.") from None
        self._note_unused(names, var.aval.shape, pairs, spec, label)
        return NamedSharding(mesh, spec)

    def value_layout(self, var: Var, where: int, names: Sequence[Names], reader: Op) -> NamedSharding | None:
        """The layout of a value that carries logical names, as the equation that reads it translates them."""
        mesh, pairs, label = self._axes_of(reader, where)
        try:
            spec = translate(names, var.aval.shape, pairs, mesh.shape, label)
        except ValueError:
            # The names were written for another task; that they do not fit here is no mistake.
            return None
        return NamedSharding(mesh, spec)

    def in_mesh_axes(self, op: Op, where: int) -> Any:
        """An equation with the constraints in it, at any depth, as JAX's own over mesh axes.

        Raises:
            ValueError: If the mesh does not have an axis that a name maps to, or it does not divide the dimension.
        """
        return self._rewrite(op.eqn, *self._axes_of(op, where))

    def _axes_of(self, op: Op, where: int) -> tuple[Mesh, Pairs, str]:
        """The mesh that an equation's logical names are for, the pairs that hold there, and the task's name."""
        task = op.task or self._placement.near.get(op)
        key = id(task), where
        if key not in self._known:
            mesh = self._placement.submeshes.meshes[where]
            own = None if task is None else self._placement.task_meshes.get(task)
            if own is not None and tuple(own.devices.flat) == tuple(mesh.devices.flat):
                mesh = own
            self._known[key] = task, (mesh, axis_pairs(task, mesh, self._multimesh), _label(task))
        return self._known[key][1]

    def _names_nothing(self, eqn: Any) -> bool:
        """Whether nothing in an equation, at any depth, speaks of names, axes or devices."""
        if eqn.primitive is constraint_p:
            return False
        if id(eqn.params) not in self._plain:
            plain = [not lays_out(eqn)]

            def look(jaxpr: Any) -> Any:
                plain.extend(map(self._names_nothing, jaxpr.eqns))
                return jaxpr

            # Whatever `_rewrite` would look into.
            _compat.map_params(eqn.params, look)
            self._plain[id(eqn.params)] = eqn.params, all(plain)
        return self._plain[id(eqn.params)][1]

    def _rewrite(self, eqn: Any, mesh: Mesh, pairs: Pairs, label: str) -> Any:
        if self._names_nothing(eqn):
            return eqn
        if eqn.primitive is constraint_p:
            (value,) = eqn.invars
            names = eqn.params["names"]
            logical = eqn.params["logical"]
            if logical is None and any(name not in mesh.shape for carried in names for name in carried):
                spec = translate(names, value.aval.shape, pairs, mesh.shape, label)
            elif logical:
                # One device holds everything whole, so a misspelt name changes nothing there.
                if mesh.size > 1:
                    self._note_unknown(names, pairs, lambda: f"the constraint at {_compat.source_lines(eqn)}")
                spec = translate(names, value.aval.shape, pairs, mesh.shape, label)
                self._note_unused(names, value.aval.shape, pairs, spec, label)
            else:
                # The names that tasks map are not known where tasks are ignored.
                if mesh.size > 1 and not transforms_ignored():
                    others = [tuple(name for name in carried if name not in mesh.shape) for carried in names]
                    self._note_unknown(others, pairs, lambda: f"the constraint at {_compat.source_lines(eqn)}")
                spec = mesh_axes(names, mesh.shape)
            if mapped := eqn.params.get("mapped", ()):
                entries = [*spec, *[None] * (len(names) - len(spec))]
                spec = PartitionSpec(
                    *[PartitionSpec.UNCONSTRAINED if dim in mapped else entry for dim, entry in enumerate(entries)]
                )
            self.axes |= spec_axes(spec)
            template = _compat.constraint_eqn(value, eqn.outvars[0], NamedSharding(mesh, spec))
            return eqn.replace(primitive=template.primitive, params=template.params)
        if lays_out(eqn):
            eqn = self._onto_submesh(eqn, mesh, pairs, label)
            self.axes |= named_axes(eqn)

        def rewrite_body(jaxpr: Any) -> Any:
            return _compat.with_eqns(jaxpr, [self._rewrite(inner, mesh, pairs, label) for inner in jaxpr.eqns])

        params = _compat.map_params(eqn.params, rewrite_body)
        return eqn if params is eqn.params else eqn.replace(params=params)

    def _onto_submesh(self, eqn: Any, mesh: Mesh, pairs: Pairs, label: str) -> Any:
        def carry_over(names: Sequence[Names], shape: Sequence[int], own: Collection[str]) -> PartitionSpec:
            every = (*[(name, name) for name in own], *[pair for pair in pairs if pair[0] not in own])
            spec = translate(names, shape, every, mesh.shape, label)
            self._note_unused(names, shape, every, spec, label)
            return spec

        task = None if label == _OUTSIDE else label
        return onto_submesh(eqn, mesh, self._multimesh, task, {pair[0] for pair in pairs}, carry_over)

    def _note_unknown(self, names: Sequence[Names], pairs: Pairs, carrier: Callable[[], str]) -> None:
        logical = {pair[0] for pair in pairs}
        for name in (name for dim in names for name in dim if name not in logical):
            if name not in self.unknown:
                self.unknown[name] = carrier()

    def _note_unused(
        self, names: Sequence[Names], shape: Sequence[int], pairs: Pairs, spec: PartitionSpec, label: str
    ) -> None:
        entries = [*spec, *[None] * (len(names) - len(spec))]
        for dim, (carried, entry) in enumerate(zip(names, entries, strict=True)):
            used = (entry,) if isinstance(entry, str) else tuple(entry or ())
            for name in carried:
                axes = [device for logical, device in pairs if logical == name]
                if not axes:
                    outcome = "unknown, so replicated"
                elif any(device is not None for device in axes) and not set(axes) & set(used):
                    outcome = f"dropped: {', '.join(str(axis) for axis in axes)} is taken or larger than the dimension"
                else:
                    continue
                self.unused[label, name, dim, tuple(shape)] = outcome

    def warn_of_unknown(self) -> None:
        """Warn of the unknown names that no task of the step maps either."""
        if not self.unknown:
            return
        known = {pair[0] for pair in axis_pairs(None, self._multimesh.mesh, self._multimesh)}
        for task, mesh in self._placement.task_meshes.items():
            known |= {pair[0] for pair in axis_pairs(task, mesh, self._multimesh)}
        for name, carrier in self.unknown.items():
            if name in known:
                continue
            near = difflib.get_close_matches(name, known, n=1)
            warn(
                f"The logical axis {name!r} is in no logical_axes, so dimensions of that name are replicated"
                + (f"; did you mean {near[0]!r}?" if near else ".")
                + f" Map it to a device axis, or to None if that is what you want. Known: {sorted(known)}. First on "
                f"{carrier}; the mesh is {self._multimesh!r}."
            )


def _label(task: Task | None) -> str:
    return task.name if task is not None and task.name else _OUTSIDE
