"""Shard: the layout of every value at every program's border, and the functions that are compiled in it.

Shardy's propagation pass runs alone on each lowered segment, which takes milliseconds; no program is
compiled just to learn shardings, and afterwards every border is explicit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._core.logical_axes import Names, spec_axes
from mmruntime._core.multimesh import MultiMesh
from mmruntime._frontend.constraint import constraint_p
from mmruntime._jaxpr.canonical_forms import names_mesh
from mmruntime._jaxpr.ir import Op, Step
from mmruntime._partition.layouts.input_layouts import InputLayouts
from mmruntime._partition.layouts.mesh_axes import AxisTranslator, Unused
from mmruntime._partition.layouts.propagate import Found, PropagatedLayouts, propagate
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segment, Segments
from mmruntime._partition.programs.single_program import borders, whole_function

# A variable on a submesh.
Held = tuple[Var, int]


class Shardings:
    """The layout of every value on every submesh that holds it, and the programs' functions in mesh axes.

    Args:
        layouts: The layouts that were decided, and those that follow from them.
        everywhere: The layout with a copy on each device of the mesh.
        bodies: The jaxpr of each segment.
        whole: The function of the whole step, if it is one program.
        translator: Translates logical names into mesh axes.
        input_names: The logical axes of inputs that carry some.
    """

    def __init__(
        self,
        layouts: _Layouts,
        everywhere: NamedSharding,
        bodies: Mapping[Segment, _SegmentJaxpr],
        whole: Callable[..., list[Any]] | None,
        translator: AxisTranslator,
        input_names: Mapping[Var, PartitionSpec],
    ) -> None:
        self._layouts = layouts
        self._bodies = bodies
        self._whole = whole
        self.everywhere = everywhere
        self.unused_axis_names: Mapping[Unused, str] = dict(translator.unused)
        self.input_names = input_names
        self._translator = translator
        # One object for each layout: arrays are compared with them in every step, which is quicker by identity.
        self._seen: dict[Held, NamedSharding] = {}

    def __getitem__(self, key: Held) -> NamedSharding:
        """The layout of a variable on a submesh; replicated where nothing decides it."""
        known = self._seen.get(key)
        if known is None:
            known = self._seen[key] = self._layouts.known(*key) or self.replicated(key[1])
        return known

    def warn_of_unknown_names(self) -> None:
        """Warn of names that no task of the step maps."""
        self._translator.warn_of_unknown()

    def axes(self) -> frozenset[str]:
        """The mesh axes that cut a value at a border, or that something in a program names."""
        decided = (spec_axes(layout.spec) for layout in set(self._layouts.decided.values()))
        return frozenset(self._translator.axes).union(*decided)

    def replicated(self, where: int) -> NamedSharding:
        """The layout with a full copy on each device of a submesh."""
        return self._layouts.replicated(where)

    @property
    def is_whole(self) -> bool:
        """Whether the step is one program."""
        return self._whole is not None

    def whole_function(self) -> Callable[..., list[Any]]:
        """The function that the whole step computes, with constraints in mesh axes."""
        assert self._whole is not None, "the step is one program"
        return self._whole

    def in_mesh_axes(self, op: Op, where: int) -> Any:
        """An equation as it runs on a submesh, with constraints in mesh axes."""
        return self._translator.in_mesh_axes(op, where)

    def function(self, segment: Segment) -> Callable[..., list[Any]]:
        """The function that a segment computes, `reads` to `writes`, with constraints in mesh axes."""
        return _compat.as_traced_fun(self.body(segment))

    def body(self, segment: Segment) -> Any:
        """A segment as a closed jaxpr, `reads` to `writes`, with constraints in mesh axes."""
        return self._bodies[segment].closed

    def form(self, segment: Segment) -> Hashable:
        """The canonical form of a segment, equal for segments that do the same on submeshes of one shape."""
        return self._bodies[segment].form

    def digest(self, segment: Segment) -> str | None:
        """The digest of its canonical form; None if something in it has no content that a digest could name."""
        return self._bodies[segment].digest


def propagate_whole(step: Step, placement: Placement, multimesh: MultiMesh, inputs: InputLayouts) -> Shardings:
    """Decide the layouts at the borders of a step that is one program."""
    return _Propagation(step, placement, multimesh, inputs, PropagatedLayouts()).whole()


def propagate_segments(
    step: Step,
    placement: Placement,
    multimesh: MultiMesh,
    inputs: InputLayouts,
    segments: Segments,
    found: PropagatedLayouts,
) -> Shardings:
    """Decide the layouts at all borders of all segments.

    What is propagated is added to `found`, and not propagated again if it is there.
    """
    return _Propagation(step, placement, multimesh, inputs, found).segments(segments)


@dataclass(eq=False, frozen=True)
class _SegmentJaxpr:
    """A segment as a closed jaxpr in the axes of its submesh."""

    closed: Any
    mesh: Mesh
    known: PropagatedLayouts

    @functools.cached_property
    def form(self) -> Hashable:
        return self.known.forms.of(self.closed, self.mesh)

    @functools.cached_property
    def digest(self) -> str | None:
        return self.known.contents.of(self.form, self.mesh.devices.flat[0].platform)


class _Layouts:
    """Layouts that are decided, and layouts that follow from them."""

    def __init__(self, step: Step, placement: Placement, decided: Mapping[Held, NamedSharding]) -> None:
        self.decided = dict(decided)
        self.meshes = placement.submeshes.meshes
        self.pieces = {stacked: piece for region in step.regions for piece, stacked in region.slices.items()}
        self.results = {total: result for region in step.regions for total, result in region.sums}

    def replicated(self, where: int) -> NamedSharding:
        return NamedSharding(self.meshes[where], PartitionSpec())

    def known(self, var: Var, where: int) -> NamedSharding | None:
        """The layout of a variable on a submesh, None if nothing decides it."""
        known = self.decided.get((var, where))
        if known is not None:
            return known
        mesh = self.meshes[where]
        if var in self.results:
            result = self.decided.get((self.results[var], where))
            if result is not None:
                return result
        if var in self.pieces:
            piece = self.decided.get((self.pieces[var], where))
            if piece is not None:
                return NamedSharding(mesh, PartitionSpec(None, *piece.spec))
        # Elsewhere laid out on a mesh of the same axes: keep the tiling, so that sending it is a plain copy.
        for other, candidate in enumerate(self.meshes):
            twin = self.decided.get((var, other))
            if twin is not None and candidate.axis_names == mesh.axis_names and candidate.axis_sizes == mesh.axis_sizes:
                return NamedSharding(mesh, twin.spec)
        return None


class _Propagation:
    """Decides layouts one program after the other."""

    def __init__(
        self, step: Step, placement: Placement, multimesh: MultiMesh, inputs: InputLayouts, found: PropagatedLayouts
    ) -> None:
        self.step = step
        self.meshes = placement.submeshes.meshes
        self.everywhere = NamedSharding(multimesh.mesh, PartitionSpec())
        self.input_names = inputs.names
        self.layouts = _Layouts(step, placement, inputs.layouts)
        self.translator = AxisTranslator(placement, multimesh, inputs.unknown_names, inputs.unused_names, found.plain)
        self.carried_input = {
            step.outvars[result]: step.invars[position]
            for position, result in step.carried.items()
            if is_var(step.outvars[result])
        }
        self.names = _value_names(step)
        self.bodies: dict[Segment, _SegmentJaxpr] = {}
        self.found = found

    def whole(self) -> Shardings:
        reads, writes = borders(self.step)
        known = [self.layouts.decided.get((var, 0)) for var in reads]
        function = whole_function(self.step, lambda op: self.translator.in_mesh_axes(op, 0))
        self._decide(lambda mesh: propagate(function, reads, writes, known, mesh), reads, writes, 0, known)
        return self._shardings(function)

    def segments(self, segments: Segments) -> Shardings:
        # Loops come first: their tasks decide the layout of parameters, and the optimizer follows.
        order = sorted(range(len(segments.by_region)), key=lambda index: (self.step.regions[index].loop is None, index))
        for index in order:
            for segment in segments.by_region[index]:
                self._propagate(segment, segments)
        for segment in segments:
            self._body(segment)
        return self._shardings(None)

    def _shardings(self, whole: Callable[..., list[Any]] | None) -> Shardings:
        return Shardings(self.layouts, self.everywhere, self.bodies, whole, self.translator, self.input_names)

    def _body(self, segment: Segment) -> _SegmentJaxpr:
        if segment not in self.bodies:
            eqns = [self.translator.in_mesh_axes(op, segment.submesh) for op in segment.ops]
            closed = _compat.close(self.step.like, segment.reads, segment.writes, eqns)
            mesh = self.meshes[segment.submesh]
            self.bodies[segment] = _SegmentJaxpr(closed, mesh, self.found)
        return self.bodies[segment]

    def _propagate(self, segment: Segment, segments: Segments) -> None:
        where = segment.submesh
        known = [
            self.layouts.decided.get((var, where)) or self._named(var, segment) or self._sent(var, where, segments)
            for var in segment.reads
        ]

        def find(mesh: Mesh) -> Found:
            body = self._body(segment)
            if all(sharding is None or sharding.is_fully_replicated for sharding in known) and not names_mesh(
                body.closed
            ):
                return [None] * len(segment.reads), [None] * len(segment.writes)
            return self.found.of(body.closed, segment.reads, segment.writes, known, mesh, body.form)

        self._decide(find, segment.reads, segment.writes, where, known)

    def _named(self, var: Var, segment: Segment) -> NamedSharding | None:
        """The layout of a value that carries logical names, as the task that reads it translates them."""
        names = self.names.get(var)
        if names is None:
            return None
        reader = next(op for op in segment.ops if var in op.eqn.invars)
        return self.translator.value_layout(var, segment.submesh, names, reader)

    def _sent(self, var: Var, where: int, segments: Segments) -> NamedSharding | None:
        """The layout of a value that another program makes, where it is decided already."""
        if var in segments.made_on or var in self.layouts.results:
            return self.layouts.known(var, where)
        return None

    def _decide(
        self,
        find: Callable[[Mesh], Found],
        reads: Sequence[Var],
        writes: Sequence[Var],
        where: int,
        known: Sequence[NamedSharding | None],
    ) -> None:
        decided = self.layouts.decided
        mesh = self.meshes[where]
        if mesh.size > 1 and (reads or writes):
            ins, outs = find(mesh)
        else:
            ins, outs = [None] * len(reads), [None] * len(writes)
        for var, sharding, found in zip(reads, known, ins, strict=True):
            decided[var, where] = sharding or NamedSharding(mesh, found or PartitionSpec())
        for var, found in zip(writes, outs, strict=True):
            # The next value of carried state has the layout of the input, so that the next step need not move it.
            state = self.carried_input.get(var)
            carried = None if state is None else decided.get((state, where))
            earlier = decided.get((var, where))
            decided[var, where] = carried or earlier or NamedSharding(mesh, found or PartitionSpec())


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
    """Whether an equation is a constraint by logical names that says how all dimensions are laid out."""
    return eqn.primitive is constraint_p and bool(eqn.params["logical"]) and not eqn.params.get("mapped")
