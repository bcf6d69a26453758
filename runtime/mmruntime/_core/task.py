"""`Task`: a name, a submesh, and the meaning of logical axes there; and how layers are dealt out over stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jax.sharding import Mesh

from mmruntime import _check, _compat
from mmruntime._core import mesh as _mesh
from mmruntime._core.layer_trial import LAYER_TRIAL
from mmruntime._core.logical_axes import normalize_pairs
from mmruntime.schedules._cut import cut

if TYPE_CHECKING:
    from mmruntime._core.mesh import TaskMesh
    from mmruntime._core.multimesh import MultiMesh


@dataclass(frozen=True)
class StageSlice:
    """The slice that runs layer `index` of `count`, found once the mesh is known.

    Weights of "flops" are counted from the traced step; those of "auto" are numbers by the time it is placed.
    """

    index: int
    count: int
    axis: str
    weights: tuple[float, ...] | Literal["flops", "auto"] | None
    chunks: int = 1
    placement: Literal["v"] | None = None

    def resolve(self, mesh: MultiMesh, counted: Sequence[float] | None = None) -> dict[str, int]:
        """The slice of `mesh` that runs this layer; see `part`."""
        return {self.axis: self.part(mesh, counted)[0]}

    def part(self, mesh: MultiMesh, counted: Sequence[float] | None = None) -> tuple[int, int]:
        """The position along the axis of `mesh` that runs this layer, and the round in which it does.

        Args:
            mesh: The mesh in use.
            counted: Cost of each layer, for weights of "flops"; equal if left out.

        Raises:
            ValueError: If `mesh` has no such axis, or there are fewer layers than stages.
        """
        if self.axis not in mesh.shape:
            raise ValueError(
                f"stage: the mesh has no axis {self.axis!r}; its axes are {', '.join(map(repr, mesh.axis_names))}. "
                "Write axis= with one of them."
            )
        slices = mesh.shape[self.axis]
        parts = slices * self.chunks
        if self.count < parts:
            rounds = f" in {self.chunks} rounds" if self.chunks > 1 else ""
            raise ValueError(
                f"stage: {self.count} layers cannot be dealt out over {slices} slices of axis {self.axis!r}{rounds}. "
                f"Use a smaller axis or more layers{', or fewer chunks' if rounds else ''}."
            )
        weights = counted if isinstance(self.weights, str) else self.weights
        bounds = cut(weights or (1.0,) * self.count, parts)
        stage = next(k for k in range(parts) if self.index < bounds[k + 1])
        return self.position(stage, slices), stage // slices

    def position(self, stage: int, slices: int) -> int:
        """The position along an axis of so many slices that runs a stage, with stages numbered through all rounds."""
        chunk, position = divmod(stage, slices)
        return slices - 1 - position if self.placement == "v" and chunk % 2 else position


# Not `eq=True`: the hash that a dataclass generates would fail on the dict in `mesh_slice`.
@dataclass(frozen=True, eq=False)
class Task:
    """Where a piece of a program runs and how its arrays are laid out there.

    Give a submesh by `mesh` or by `mesh_slice`; with neither, the piece is not placed.

    Raises:
        TypeError: If a field is of another type.
        ValueError: If both `mesh` and `mesh_slice` are given, or the halves of `split_backprop` have one name.

    Attributes:
        name: Identity of the task in reports; tasks of one name are one task.
        mesh: The submesh: a `TaskMesh` (device ids relative to the mesh in use) or a `jax.sharding.Mesh`.
        logical_axes: `(logical, device)` pairs, first pair wins. Left out: the mesh's own `logical_axes`,
            and where it has none, every axis under its own name.
        mesh_slice: `{axis: index}` of the `MultiMesh` in use; a function of it is looked up when compiling.
        extra_axes: Pairs of lower priority than `logical_axes`.
        split_backprop: Suffixes of the two halves of the backward pass, `(input half, weight half)`.
        loop_dependent_mesh_slice: `iteration -> {axis: index}`, for a task inside `microbatch`.
    """

    name: str | None = None
    mesh: TaskMesh | Mesh | None = None
    logical_axes: Iterable[Sequence[str | Sequence[str] | None]] | Mapping[str, Any] | None = None
    mesh_slice: Mapping[str, int] | StageSlice | None = None
    extra_axes: Iterable[Sequence[str | Sequence[str] | None]] | Mapping[str, Any] | None = None
    split_backprop: tuple[str, str] | None = None
    loop_dependent_mesh_slice: Callable[[int], Mapping[str, int]] | None = None

    @_compat.api_boundary
    def __post_init__(self) -> None:
        if self.name is not None:
            _check.text("Task", "name", self.name)
        label = "Task" if self.name is None else f"Task {self.name!r}"
        if self.mesh is not None and not isinstance(self.mesh, _mesh.TaskMesh | Mesh):
            raise _check.wrong(label, "mesh", "a mm.TaskMesh or a jax.sharding.Mesh", self.mesh)
        if self.mesh is not None and self.mesh_slice is not None:
            raise ValueError(
                f"{label}: give mesh= or mesh_slice=, not both (got {self.mesh!r} and {self.mesh_slice!r})."
            )
        if self.mesh_slice is not None and not isinstance(self.mesh_slice, StageSlice):
            object.__setattr__(self, "mesh_slice", _check.indices(label, "mesh_slice", self.mesh_slice))
        object.__setattr__(self, "logical_axes", normalize_pairs(self.logical_axes, label))
        object.__setattr__(self, "extra_axes", normalize_pairs(self.extra_axes, label, "extra_axes"))
        if self.split_backprop is not None:
            object.__setattr__(self, "split_backprop", _suffixes(label, self.split_backprop))
        if self.loop_dependent_mesh_slice is not None:
            expected = 'a function of the iteration, such as lambda i: {"stage": i % 2}'
            _check.function(label, "loop_dependent_mesh_slice", self.loop_dependent_mesh_slice, expected)

    def replace(self, **fields: Any) -> Task:
        """This task with other fields."""
        return dataclasses.replace(self, **fields)

    def _key(self) -> tuple[Any, ...]:
        piece = self.mesh_slice
        return (
            self.name,
            self.mesh,
            self.logical_axes,
            tuple(sorted(piece.items())) if isinstance(piece, Mapping) else piece,
            self.extra_axes,
            self.split_backprop,
            self.loop_dependent_mesh_slice,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def searched_slice(task: Task) -> StageSlice | None:
    """The slice of a task, if the weights of layers are searched; None if it says itself where it runs."""
    piece = task.mesh_slice
    return piece if isinstance(piece, StageSlice) and piece.weights == "auto" else None


def _suffixes(label: str, suffixes: Any) -> tuple[str, str]:
    expected = 'a pair of suffixes, such as ("_activations", "_gradients")'
    pair = _check.items(label, "split_backprop", suffixes, expected)
    if len(pair) != 2 or not all(isinstance(suffix, str) for suffix in pair):
        raise _check.wrong(label, "split_backprop", expected, suffixes)
    first, second = pair
    if first == second:
        raise ValueError(
            f"{label}: split_backprop={suffixes!r} gives both halves of the backward pass one name. Write two "
            'suffixes, such as ("_activations", "_gradients").'
        )
    return first, second


@_compat.api_boundary
def stage(
    index: int,
    count: int,
    *,
    axis: str = "stage",
    weights: Sequence[float] | Literal["flops", "auto"] | None = None,
    chunks: int | None = None,
    placement: Literal["v"] | None = None,
) -> Task:
    """The task of layer `index` when `count` layers are dealt out over the slices of `axis`.

    Layers stay in order and every slice gets a contiguous run of them:

        bounds = cut(weights or [1] * count, num_slices)
        for slice_index in range(num_slices):
            layers[bounds[slice_index]:bounds[slice_index + 1]] run on slice_index

    With `chunks=2` there are two rounds of such slices, one after the other, as interleaved schedules have them; with
    `placement="v"` the second round goes back from the last slice to the first, as `zb-v` and its like have it.

    Args:
        index: Position of the layer, `0 <= index < count`.
        count: How many layers there are; at least the size of `axis` in each round.
        axis: Axis of the surrounding `MultiMesh` that separates the stages.
        weights: Cost of each layer, shape `(count,)`, any unit; or "flops" to count the operations of each layer's
            forward pass in the traced step; or "auto" for the cut with which the loop's schedule takes least time in
            simulation, by the operations of the layers, forward and backward, and of what comes before the first and
            behind the last, such as an embedding and a head. Equal if left out.
        chunks: How many rounds there are: one if left out, two with `placement="v"`.
        placement: "v" for rounds that go to and fro; each begins at the first slice if left out.

    Returns:
        The `Task` of that slice; equal slices of one mesh give equal tasks. Without a mesh in use the
        slice is looked up when the step is compiled for one.

    Raises:
        TypeError: If something is of another type.
        ValueError: If `index` is out of range, `weights` has another length or a negative entry, there
            are fewer layers than slices, `axis` is not in the mesh, or `placement` is unknown or has one round.
    """
    index, count = _check.integer("stage", "index", index), _check.integer("stage", "count", count, 1)
    _check.text("stage", "axis", axis)
    if not 0 <= index < count:
        raise ValueError(f"stage: {index=} must lie in 0..{count - 1} (count={count}).")
    if isinstance(weights, str):
        if weights not in ("flops", "auto"):
            raise ValueError(f'stage: weights must be numbers, one per layer, "flops" or "auto", got {weights!r}.')
    elif weights is not None:
        weights = _check.numbers("stage", "weights", weights, 'numbers, one per layer, "flops" or "auto"')
        if len(weights) != count:
            raise ValueError(
                f"stage: weights has {len(weights)} entries, but there are {count=} layers. Give one per layer."
            )
        if any(weight < 0 for weight in weights):
            raise ValueError(f"stage: weights must not be negative, got {min(weights)}.")
    if placement is not None and not (isinstance(placement, str) and placement == "v"):
        raise ValueError(f'stage: placement must be "v" or left out, got {_check.shown(placement)}.')
    rounds = _check.optional_integer("stage", "chunks", chunks, 1) or (1 if placement is None else 2)
    if placement is not None and rounds < 2:
        raise ValueError(f"stage: placement={placement!r} folds two rounds or more, got {chunks=}. Leave chunks out.")
    if (trial := LAYER_TRIAL.get()) is not None:
        trial.layers.add((axis, count))
        trial.rounds.add((rounds, placement))
        weights, rounds, placement = None, 1, None
    piece = StageSlice(index, count, axis, weights, rounds, placement)
    mesh = _mesh.current_mesh()
    if mesh is None or isinstance(weights, str):
        return Task(mesh_slice=piece)
    position, chunk = piece.part(mesh)
    name = f"{axis}_{position}" if rounds == 1 else f"{axis}_{position}_chunk_{chunk}"
    return Task(name=name, mesh_slice={axis: position})
