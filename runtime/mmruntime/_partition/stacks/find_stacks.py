"""Find stacks: arrays of all layers, of which each stage's tasks read their own part, and what is cut with them.

A stack of `n` layers is read in slices, `slice(w, 0, n // 2)` by a task of the first stage and so on. Where the layers
of each stage are one of as many equal parts as there are stages, in order, the stack is cut into these parts. Gradients
and optimizer state are tied to it, equation by equation, and are cut with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.submesh import task_mesh
from mmruntime._core.task import Task
from mmruntime._jaxpr.ir import Op, Step, at_line, is_tiny, num_elements
from mmruntime._jaxpr.primitives import Factor, factors
from mmruntime._partition.placement.namesakes import Namesakes, computed_after, read_before
from mmruntime._partition.placement.place import layer_costs

# The primitive by whose equations tasks read their layers.
READS_LAYERS = "slice"
# How many equations, such as casts and reshapes, may lie between a layer's slice and the task that reads it.
_REACH = 8


@dataclass(frozen=True)
class StackCut:
    """How a stack is cut: dimension `dim` into `count` equal parts, one for each slice of the mesh axis `axis`.

    With `reverse` the last slice has the first part, as for a scan that runs over its layers from the end.
    """

    axis: str
    dim: int
    count: int
    reverse: bool = False

    def stage(self, part: int) -> int:
        """The slice of the axis that has a part."""
        return self.count - 1 - part if self.reverse else part

    def along(self, dim: int) -> StackCut:
        """The cut of another value, whose dimension `dim` is the one of the layers."""
        return replace(self, dim=dim)

    def size(self, shape: tuple[int, ...]) -> int:
        """The size of each part of an array in the dimension that is cut."""
        return shape[self.dim] // self.count

    def part_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of each part of an array."""
        return (*shape[: self.dim], self.size(shape), *shape[self.dim + 1 :])

    def fits(self, var: Atom) -> bool:
        """Whether a value can be cut so."""
        shape = var.aval.shape
        if self.dim >= len(shape) or shape[self.dim] % self.count or not shape[self.dim]:
            return False
        return num_elements(var) > 0


@dataclass(frozen=True)
class WholeStack:
    """A stack that cannot be cut, and lies on one submesh.

    Attributes:
        positions: The inputs of the step that it consists of: a parameter, and what is cut along with it.
        counts: How many of its layers each stage has, in the order of the stages.
        axis: The axis of the stages.
        line: Where the user's code reads a layer, as " at file:line"; empty if that is not known.
    """

    positions: tuple[int, ...]
    counts: tuple[int, ...]
    axis: str
    line: str


@dataclass(frozen=True)
class StackCuts:
    """The stacks to cut in a step.

    Attributes:
        of: The cut of each variable, where its equation allows it.
        tasks: A task of each stage, by the axis and its index there.
        whole: Stacks that cannot be cut.
    """

    of: Mapping[Var, StackCut] = field(default_factory=dict)
    tasks: Mapping[tuple[str, int], Task] = field(default_factory=dict)
    whole: tuple[WholeStack, ...] = ()


@dataclass(frozen=True)
class _LayerSlice:
    """Layers `low:high` of dimension `dim`, which a task reads or makes."""

    dim: int
    low: int
    high: int
    task: Task
    op: Op


def find_stacks(step: Step, multimesh: MultiMesh, names: Sequence[str] = ()) -> StackCuts:
    """Find the stacks of a step.

    Args:
        step: The step.
        multimesh: The mesh that it is compiled for.
        names: The user's names for its inputs, by which state that is tied to no parameter finds its own.
    """
    finder = _LayerSlices(step, multimesh)
    read = {var: pieces for var, pieces in finder.read().items() if pieces}
    if not read:
        return StackCuts()
    cuts: dict[Var, StackCut] = {}
    tasks: dict[tuple[str, int], Task] = {}
    uneven: dict[Var, tuple[str, list[set[int]], Op]] = {}
    for var, pieces in read.items():
        for axis, stages in finder.stages.items():
            layers = finder.layers(pieces, stages)
            if layers is None:
                continue
            forwards = StackCut(axis, pieces[0].dim, len(stages))
            cut = next((each for each in (forwards, replace(forwards, reverse=True)) if _fits(each, layers, var)), None)
            if cut is not None:
                cuts[var] = cut
                tasks.update({(axis, stages[finder.devices(piece.task)]): piece.task for piece in pieces})
            else:
                uneven[var] = axis, layers, pieces[0].op
            break
    spread = _Spread(step)
    shapes = {(var.aval.shape, cut.dim): cut for var, cut in cuts.items()}
    cuts.update(finder.made(shapes))
    whole = tuple(_whole_stacks(step, spread, uneven, read))
    found = spread.along(cuts)
    return StackCuts(spread.along({**found, **_as_namesakes(step, found, names)}), tasks, whole)


def _as_namesakes(step: Step, cuts: Mapping[Var, StackCut], names: Sequence[str]) -> dict[Var, StackCut]:
    """Cuts for state that no task reads: the cut of the parameter at the same place in the tree.

    Such are the moments of a target network, whose update by the optimizer is thrown away.
    """
    reached = computed_after(step, lambda op, found: op.writes() if op.task is not None else _reached(op.eqn, found))
    read = read_before(step, lambda op: op.task is not None)
    state = [step.invars[position] for position, result in step.carried.items() if step.outvars[result] not in reached]
    state = [var for var in state if var not in cuts and var not in read] if names else []
    if not state:
        return {}
    finder = Namesakes(dict(zip(step.invars, names, strict=True)), [var for var in step.invars if var in read])
    found = {}
    for var in state:
        near = {_along_the_last(cuts.get(each), each, var) for each in finder.of(var)}
        cut = near.pop() if len(near) == 1 else None
        if cut is not None and cut.fits(var):
            found[var] = cut
    return found


def _reached(eqn: Any, arrays: Collection[Var]) -> set[Var]:
    """The results of an equation that depend on some arrays; in a conditional, through any branch."""
    if eqn.primitive is not _compat.cond_p:
        # A scalar of tasks, such as the norm of all gradients, has no layers.
        return (
            set(eqn.outvars)
            if any(each in arrays for each in eqn.invars if is_var(each) and not is_tiny(each))
            else set()
        )
    found = set()
    for branch in eqn.params["branches"]:
        jaxpr, _ = _compat.split(branch)
        inner = {own for own, each in zip(jaxpr.invars, eqn.invars[1:], strict=True) if is_var(each) and each in arrays}
        for each in jaxpr.eqns:
            inner |= _reached(each, inner)
        found |= {out for out, own in zip(eqn.outvars, jaxpr.outvars, strict=True) if is_var(own) and own in inner}
    return found


def _along_the_last(cut: StackCut | None, parameter: Var, state: Var) -> StackCut | None:
    """The cut of a parameter for state whose last dimensions are the parameter's; None if they are not."""
    first = state.aval.ndim - parameter.aval.ndim
    is_alike = first >= 0 and state.aval.shape[first:] == parameter.aval.shape
    return cut.along(cut.dim + first) if cut is not None and is_alike else None


def _fits(cut: StackCut, layers: list[set[int]], var: Var) -> bool:
    """Whether each stage has the layers of its part."""
    size = cut.size(var.aval.shape)
    parts = [set(range(part * size, (part + 1) * size)) for part in range(cut.count)]
    return all(layers[cut.stage(part)] == parts[part] for part in range(cut.count)) and cut.fits(var)


def _whole_stacks(
    step: Step,
    spread: _Spread,
    uneven: Mapping[Var, tuple[str, list[set[int]], Op]],
    read: Mapping[Var, list[_LayerSlice]],
) -> Iterator[WholeStack]:
    """The stacks among the inputs that cannot be cut, grouped by how they are dealt out."""
    groups: dict[tuple[Any, ...], list[Var]] = defaultdict(list)
    for var, (axis, layers, op) in uneven.items():
        groups[axis, tuple(map(len, layers)), at_line(op.eqn)].append(var)
    for (axis, counts, line), variables in groups.items():
        # Along the dimension of layers, whatever the number of parts.
        along = spread.along({var: StackCut(axis, read[var][0].dim, 1) for var in variables})
        positions = tuple(position for position, var in enumerate(step.invars) if var in along)
        if positions:
            yield WholeStack(positions, counts, axis, line)


class _LayerSlices:
    """Slices of values that tasks read, and values that are put together from what tasks make."""

    def __init__(self, step: Step, multimesh: MultiMesh) -> None:
        self._step = step
        self._multimesh = multimesh
        self._costs = layer_costs(step)
        self._devices: dict[Task, tuple[Any, ...] | None] = {}
        self._readers: dict[Var, list[Op]] = defaultdict(list)
        self._writer: dict[Var, Op] = {}
        for op in step.ops():
            for var in set(op.reads()):
                self._readers[var].append(op)
            self._writer.update(dict.fromkeys(op.writes(), op))
        # For each axis of several slices, the index of the slice that is on a list of devices.
        self.stages: dict[str, dict[tuple[Any, ...] | None, int]] = {
            axis: {tuple(multimesh.slice(**{axis: index}).devices.flat): index for index in range(size)}
            for axis, size in multimesh.shape.items()
            if size > 1
        }

    def devices(self, task: Task) -> tuple[Any, ...] | None:
        """The devices of a task, None if it has no submesh."""
        if task not in self._devices:
            mesh = task_mesh(task, self._multimesh, self._costs)
            self._devices[task] = None if mesh is None else tuple(mesh.devices.flat)
        return self._devices[task]

    def layers(self, pieces: list[_LayerSlice], stages: Mapping[Any, int]) -> list[set[int]] | None:
        """The layers that each stage has; None if they are not dealt out over this axis.

        What several stages read, such as a mask of the batch, is no stack.
        """
        if len({piece.dim for piece in pieces}) > 1:
            return None
        layers: list[set[int]] = [set() for _ in stages]
        for piece in pieces:
            where = stages.get(self.devices(piece.task))
            if where is None:
                return None
            layers[where].update(range(piece.low, piece.high))
        is_dealt_out = sum(map(len, layers)) == len(set().union(*layers))
        return layers if is_dealt_out and sum(map(bool, layers)) > 1 else None

    def read(self) -> dict[Var, list[_LayerSlice]]:
        """The slices of each variable that tasks read."""
        found: dict[Var, list[_LayerSlice]] = defaultdict(list)
        for op in self._step.ops():
            if op.eqn.primitive.name != READS_LAYERS or op.task is not None or not is_var(op.eqn.invars[0]):
                continue
            var, dims = op.eqn.invars[0], _cut_dimensions(op.eqn)
            if len(dims) == 1:
                low, high = (int(op.eqn.params[key][dims[0]]) for key in ("start_indices", "limit_indices"))
                found[var] += [_LayerSlice(dims[0], low, high, task, op) for task in self._tasks(op, self._after)]
        return found

    def made(self, shapes: Mapping[tuple[tuple[int, ...], int], StackCut]) -> dict[Var, StackCut]:
        """Gradients and other results in the shape of a stack; each stage's tasks make a part.

        Args:
            shapes: The cut of the stacks that are read, by their shapes and dimensions.
        """
        found: dict[Var, StackCut] = {}
        for op in self._step.ops():
            name = op.eqn.primitive.name
            if name not in ("pad", "concatenate") or op.task is not None or not is_var(op.eqn.outvars[0]):
                continue
            out = op.eqn.outvars[0]
            dims = [op.eqn.params["dimension"]] if name == "concatenate" else _cut_dimensions(op.eqn)
            cut = shapes.get((out.aval.shape, dims[0])) if len(dims) == 1 else None
            if cut is not None and any(True for _ in self._tasks(op, self._before)):
                found[out] = cut
        return found

    def _tasks(self, op: Op, neighbours: Callable[[Op], Iterator[Op]]) -> Iterator[Task]:
        """The tasks with a submesh that are reached from an equation through equations that only recast a value."""
        seen, ends = {op}, [op]
        for _ in range(_REACH):
            ends = [other for end in ends for other in neighbours(end) if other not in seen]
            seen.update(ends)
            for end in ends:
                if end.task is not None and self.devices(end.task) is not None:
                    yield end.task
            ends = [end for end in ends if end.task is None and len(set(end.reads())) == 1]
            if not ends:
                return

    def _after(self, op: Op) -> Iterator[Op]:
        return (reader for var in op.writes() for reader in self._readers[var])

    def _before(self, op: Op) -> Iterator[Op]:
        return (self._writer[var] for var in op.reads() if var in self._writer)


def _cut_dimensions(eqn: Any) -> list[int]:
    """The dimensions that a slice or a pad changes the size of; none where it leaves out every other entry."""
    if any(stride != 1 for stride in eqn.params.get("strides") or ()):
        return []
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return [dim for dim, size in enumerate(before) if size != after[dim]]


class _Spread:
    """Which dimensions of a step's variables run along with each other; see `ties`."""

    def __init__(self, step: Step) -> None:
        # Equations by their variables, and variables that are the same value at another place.
        self._eqns: dict[Var, list[Any]] = defaultdict(list)
        self._same: dict[Var, list[Var]] = defaultdict(list)
        for op in step.ops():
            if op.task is None:
                self._add(op.eqn)
        for region in step.regions:
            for total, result in region.sums:
                self._equate(total, result)
        for position, index in step.carried.items():
            self._equate(step.invars[position], step.outvars[index])

    def along(self, cuts: Mapping[Var, StackCut]) -> dict[Var, StackCut]:
        """The cuts of all variables that are tied to some; a variable that is tied to several has that of the first."""
        found = dict(cuts)
        ends = list(cuts)
        while ends:
            var = ends.pop()
            cut = found[var]
            near = [(other, cut.dim) for other in self._same[var]]
            for eqn in self._eqns[var]:
                for tie in ties(eqn):
                    pairs = tied(eqn, tie)
                    if (var, cut.dim) in pairs:
                        near += pairs
            for other, dim in near:
                new = cut.along(dim)
                if other not in found and new.fits(other):
                    found[other] = new
                    ends.append(other)
        return found

    def _add(self, eqn: Any) -> None:
        if eqn.primitive is _compat.cond_p:
            for branch in eqn.params["branches"]:
                jaxpr, _ = _compat.split(branch)
                for pair in (
                    *zip(eqn.invars[1:], jaxpr.invars, strict=True),
                    *zip(eqn.outvars, jaxpr.outvars, strict=True),
                ):
                    self._equate(*pair)
                for inner in jaxpr.eqns:
                    self._add(inner)
            return
        for atom in {atom for atom in (*eqn.invars, *eqn.outvars) if is_var(atom)}:
            self._eqns[atom].append(eqn)

    def _equate(self, one: Atom, other: Atom) -> None:
        if is_var(one) and is_var(other):
            self._same[one].append(other)
            self._same[other].append(one)


# Primitives whose parameters hold what is not known of a part.
_NOT_IN_PARTS = frozenset(
    ("conv_general_dilated", "gather", "random_bits", "rev", "scatter", "scatter-add", "split", "top_k")
)


def ties(eqn: Any) -> list[Factor]:
    """The factors of an equation that all its operands have; none for equations that are not known.

    Where another one is cut, some operand is needed whole in every part.
    """
    if eqn.primitive.name in _NOT_IN_PARTS:
        return []
    # A dimension that is repeated depends on nothing.
    operands = {k for k, atom in enumerate(eqn.invars) if atom.aval.shape}
    return [each for each in factors(eqn) if each.outs and (not each.ins or each.ins.keys() == operands)]


def local_params(eqn: Any, tie: Factor, count: int) -> dict[str, Any]:
    """The parameters of an equation on one of `count` equal parts of the tied dimensions."""
    params = dict(eqn.params)
    for key in ("shape", "new_sizes", "limit_indices"):
        if eqn.primitive.name in ("broadcast_in_dim", "reshape", "slice") and key in params:
            sizes = list(params[key])
            sizes[tie.outs[0]] //= count
            params[key] = tuple(sizes)
    return params


def tied(eqn: Any, tie: Factor) -> list[tuple[Any, int]]:
    """The variables of an equation that a tie holds together, each with its dimension."""
    pairs = [(eqn.invars[index], dim) for index, dim in tie.ins.items()]
    pairs += [(eqn.outvars[index], dim) for index, dim in tie.outs.items()]
    return [(atom, dim) for atom, dim in pairs if is_var(atom)]
