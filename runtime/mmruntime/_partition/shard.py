"""Shard: logical names to mesh axes, and from those the layout of every value at every program's border.

Shardy's propagation pass runs alone on each lowered segment, which takes milliseconds; no program is
compiled just to learn shardings, and afterwards every border is explicit.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._core.logical_axes import Names, Pairs, mesh_axes, translate
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.submesh import axis_pairs
from mmruntime._core.task import Task
from mmruntime._frontend.constraint import constraint_p
from mmruntime._jaxpr.equal import form, layout, names_mesh
from mmruntime._jaxpr.ir import Op, Step, abstract
from mmruntime._partition.place import Placement
from mmruntime._partition.propagate import Found, propagate
from mmruntime._partition.segment import Segment, Segments
from mmruntime._partition.single_program import borders, whole_function


class Shardings:
    """The layout of every value on every submesh that holds it.

    Args:
        step: The step.
        placement: Where it runs.
        multimesh: The mesh that it is compiled for.
    """

    def __init__(self, step: Step, placement: Placement, multimesh: MultiMesh) -> None:
        self._step = step
        self._placement = placement
        self._multimesh = multimesh
        self._of: dict[tuple[Var, int], NamedSharding] = {}
        self._carried_input = {
            step.outvars[result]: step.invars[position]
            for position, result in step.carried.items()
            if is_var(step.outvars[result])
        }
        self._pieces = {stacked: piece for region in step.regions for piece, stacked in region.slices.items()}
        self._results = {total: result for region in step.regions for total, result in region.sums}
        self._names = _value_names(step)
        self._unknown: dict[str, None] = {}
        self._closed: dict[Segment, Any] = {}
        self._forms: dict[Segment, Hashable] = {}
        # What propagation found, for segments of one form whose arguments are known alike.
        self._found: dict[Hashable, Found] = {}
        # Names that did not cut their dimension: (task, name, dimension, shape) and why.
        self.unused_axis_names: dict[tuple[str, str, int, tuple[int, ...]], str] = {}

    def __getitem__(self, key: tuple[Var, int]) -> NamedSharding:
        """The layout of a variable on a submesh; replicated where nobody has said more."""
        var, where = key
        known = self._known(var, where)
        if known is None:
            known = self.replicated(where)
        self._of[key] = known
        return known

    def replicated(self, where: int) -> NamedSharding:
        """The layout with a full copy on each device of a submesh."""
        return NamedSharding(self._placement.submeshes.meshes[where], PartitionSpec())

    @property
    def everywhere(self) -> NamedSharding:
        """The layout with a copy on each device of the mesh."""
        return NamedSharding(self._multimesh.mesh, PartitionSpec())

    def pin(self, var: Var, where: int, sharding: NamedSharding) -> None:
        """Decide a layout from outside, before `propagate`."""
        self._of[var, where] = sharding

    def pin_names(self, var: Var, where: int, names: Sequence[Names], task: Task | None) -> None:
        """Decide the layout of an input that carries logical names, as a task on a submesh reads them."""
        mesh = self._placement.submeshes.meshes[where]
        if task is not None:
            mesh = self._placement.task_meshes.get(task, mesh)
        pairs = axis_pairs(task, mesh, self._multimesh)
        self._note_unknown(names, pairs)
        label = task.name if task is not None and task.name else "(outside of tasks)"
        spec = translate(names, var.aval.shape, pairs, mesh.shape, label)
        self._note_unused(names, var.aval.shape, pairs, spec, label)
        self.pin(var, where, NamedSharding(mesh, spec))

    def _note_unknown(self, names: Sequence[Names], pairs: Pairs) -> None:
        logical = {pair[0] for pair in pairs}
        self._unknown.update({name: None for dim in names for name in dim if name not in logical})

    def propagate_whole(self) -> None:
        """Decide the layouts at the borders of a step that is one program."""
        reads, writes = borders(self._step)
        known = [self._of.get((var, 0)) for var in reads]
        self._decide(lambda mesh: propagate(self.whole_function(), reads, writes, known, mesh), reads, writes, 0, known)
        self._warn()

    def whole_function(self) -> Callable[..., list[Any]]:
        """The function that the whole step computes, with constraints in mesh axes."""
        return whole_function(self._step, lambda op: self._in_mesh_axes(op, 0))

    def propagate(self, segments: Segments) -> None:
        """Decide the layouts at all borders of all segments.

        Loops come first: what their tasks want decides the layout of parameters, and the optimizer follows.
        """
        order = sorted(
            range(len(segments.by_region)), key=lambda index: (self._step.regions[index].loop is None, index)
        )
        for index in order:
            for segment in segments.by_region[index]:
                self._propagate(segment, segments)
        self._warn()

    def function(self, segment: Segment) -> Callable[..., list[Any]]:
        """The function that a segment computes, `reads` to `writes`, with constraints in mesh axes."""
        return _compat.as_fun(self._jaxpr(segment))

    def form(self, segment: Segment) -> Hashable:
        """What a segment computes, equal for those that do the same on submeshes of one shape."""
        if segment not in self._forms:
            mesh = self._placement.submeshes.meshes[segment.submesh]
            self._forms[segment] = form(self._jaxpr(segment), mesh)
        return self._forms[segment]

    def _jaxpr(self, segment: Segment) -> Any:
        if segment not in self._closed:
            eqns = [self._in_mesh_axes(op, segment.submesh) for op in segment.ops]
            self._closed[segment] = _compat.close(self._step.like, segment.reads, segment.writes, eqns)
        return self._closed[segment]

    def _known(self, var: Var, where: int) -> NamedSharding | None:
        known = self._of.get((var, where))
        if known is not None:
            return known
        mesh = self._placement.submeshes.meshes[where]
        if var in self._results:
            result = self._of.get((self._results[var], where))
            if result is not None:
                return result
        if var in self._pieces:
            piece = self._of.get((self._pieces[var], where))
            if piece is not None:
                return NamedSharding(mesh, PartitionSpec(None, *piece.spec))
        # Elsewhere laid out on a mesh of the same axes: keep the tiling, so that sending it is a plain copy.
        for other, candidate in enumerate(self._placement.submeshes.meshes):
            twin = self._of.get((var, other))
            if twin is not None and candidate.axis_names == mesh.axis_names and candidate.axis_sizes == mesh.axis_sizes:
                return NamedSharding(mesh, twin.spec)
        return None

    def _propagate(self, segment: Segment, segments: Segments) -> None:
        where = segment.submesh
        known = [
            self._of.get((var, where)) or self._named(var, segment) or self._sent(var, where, segments)
            for var in segment.reads
        ]

        def find(mesh: Mesh) -> Found:
            if all(given is None or given.is_fully_replicated for given in known) and not names_mesh(
                self._jaxpr(segment)
            ):
                return [None] * len(segment.reads), [None] * len(segment.writes)
            key = (self.form(segment), tuple(map(layout, known)), mesh.axis_names, mesh.axis_sizes)
            if key not in self._found:
                self._found[key] = propagate(self.function(segment), segment.reads, segment.writes, known, mesh)
            return self._found[key]

        self._decide(find, segment.reads, segment.writes, where, known)

    def _named(self, var: Var, segment: Segment) -> NamedSharding | None:
        """The layout of a value that carries logical names, as the task that reads it translates them."""
        names = self._names.get(var)
        if names is None:
            return None
        where = segment.submesh
        reader = next(op for op in segment.ops if var in op.eqn.invars)
        mesh, pairs, label = self._axes_of(reader, where)
        try:
            spec = translate(names, var.aval.shape, pairs, mesh.shape, label)
        except ValueError:
            # The names were written for another task; that they do not fit here is no mistake.
            return None
        return NamedSharding(mesh, spec)

    def _decide(
        self,
        find: Callable[[Mesh], Found],
        reads: Sequence[Var],
        writes: Sequence[Var],
        where: int,
        known: Sequence[NamedSharding | None],
    ) -> None:
        mesh = self._placement.submeshes.meshes[where]
        if mesh.size > 1 and (reads or writes):
            ins, outs = find(mesh)
        else:
            ins, outs = [None] * len(reads), [None] * len(writes)
        for var, given, found in zip(reads, known, ins, strict=True):
            self._of[var, where] = given or NamedSharding(mesh, found or PartitionSpec())
        for var, found in zip(writes, outs, strict=True):
            state = self._carried_input.get(var)
            carried = None if state is None else self._of.get((state, where))
            earlier = self._of.get((var, where))
            self._of[var, where] = carried or earlier or NamedSharding(mesh, found or PartitionSpec())

    def _sent(self, var: Var, where: int, segments: Segments) -> NamedSharding | None:
        """The layout of what comes from elsewhere, where it is decided already."""
        if var in segments.made_on or var in self._results:
            return self._known(var, where)
        return None

    def _in_mesh_axes(self, op: Op, where: int) -> Any:
        return self._rewrite(op.eqn, *self._axes_of(op, where))

    def _axes_of(self, op: Op, where: int) -> tuple[Mesh, Pairs, str]:
        """The mesh that an equation's logical names are for, the pairs that hold there, and the task's name."""
        mesh = self._placement.submeshes.meshes[where]
        task = op.task or self._placement.near.get(op)
        if task is not None:
            own = self._placement.task_meshes.get(task)
            if own is not None and tuple(own.devices.flat) == tuple(mesh.devices.flat):
                mesh = own
        label = task.name if task is not None and task.name else "(outside of tasks)"
        return mesh, axis_pairs(task, mesh, self._multimesh), label

    def _rewrite(self, eqn: Any, mesh: Mesh, pairs: Pairs, label: str) -> Any:
        if eqn.primitive is constraint_p:
            (value,) = eqn.invars
            names = eqn.params["names"]
            if eqn.params["logical"]:
                self._note_unknown(names, pairs)
                spec = translate(names, value.aval.shape, pairs, mesh.shape, label)
                self._note_unused(names, value.aval.shape, pairs, spec, label)
            else:
                spec = mesh_axes(names, mesh.shape, label)
            template = _constraint_template(abstract(value), NamedSharding(mesh, spec))
            return eqn.replace(primitive=template.primitive, params=template.params)

        def rewrite_body(jaxpr: Any) -> Any:
            eqns = [self._rewrite(inner, mesh, pairs, label) for inner in jaxpr.eqns]
            if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
                return jaxpr
            return jaxpr.replace(eqns=eqns)

        params = {key: _compat.map_jaxprs(value, rewrite_body) for key, value in eqn.params.items()}
        if all(params[key] is value for key, value in eqn.params.items()):
            return eqn
        return eqn.replace(params=params)

    def _note_unused(
        self, names: Sequence[Names], shape: Sequence[int], pairs: Pairs, spec: PartitionSpec, label: str
    ) -> None:
        """Keep the names that did not cut their dimension, for the report."""
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
                self.unused_axis_names[label, name, dim, tuple(shape)] = outcome

    def _warn(self) -> None:
        if not self._unknown:
            return
        known = {pair[0] for pair in axis_pairs(None, self._multimesh.mesh, self._multimesh)}
        for task in self._placement.task_meshes:
            known |= {pair[0] for pair in axis_pairs(task, self._placement.task_meshes[task], self._multimesh)}
        for name in self._unknown:
            if name in known:
                continue
            near = difflib.get_close_matches(name, known, n=1)
            warnings.warn(
                f"The logical axis {name!r} is in no logical_axes, so dimensions of that name are replicated"
                + (f"; did you mean {near[0]!r}?" if near else ".")
                + f" Map it to a device axis, or to None if that is what you want. Known: {sorted(known)}.",
                stacklevel=2,
            )
        self._unknown = {}


def _value_names(step: Step) -> dict[Var, tuple[Names, ...]]:
    """The logical names of values that a constraint gives, or a call whose last equation for them is one."""
    found: dict[Var, tuple[Names, ...]] = {}
    for op in step.ops():
        if _is_logical(op.eqn):
            found[op.eqn.outvars[0]] = op.eqn.params["names"]
        elif op.eqn.primitive is _compat.jit_p:
            inner, _ = _compat.split(op.eqn.params["jaxpr"])
            last = {eqn.outvars[0]: eqn.params["names"] for eqn in inner.eqns if _is_logical(eqn)}
            for outer, atom in zip(op.eqn.outvars, inner.outvars, strict=True):
                if is_var(outer) and is_var(atom) and atom in last:
                    found[outer] = last[atom]
    return found


def _is_logical(eqn: Any) -> bool:
    return eqn.primitive is constraint_p and bool(eqn.params["logical"])


def _constraint_template(value: jax.ShapeDtypeStruct, sharding: NamedSharding) -> Any:
    traced = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, sharding))(value)
    return _compat.split(traced)[0].eqns[0]
