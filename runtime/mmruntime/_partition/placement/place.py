"""Place: which submeshes run each equation, and where each input of the step lives.

Tasks are pinned. An equation outside of tasks joins the latest of its operands; its derivative, which would come to lie
with the stage behind it, runs where it does (see `layers_between`). Equations that depend on inputs alone
(masks, position tables, casts of weights, slices of the batch) are cloned to each submesh that reads them, unless
sending their inputs takes far more bytes than sending the result. Scalars attract no equation. What has effects or
calls the host runs on one submesh, so that it runs once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jax.sharding import Mesh, NamedSharding

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._core.multimesh import MultiMesh
from mmruntime._core.submesh import LayerCosts, task_mesh
from mmruntime._core.switches import recomputation_enabled
from mmruntime._core.task import StageSlice, Task
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.effects import runs_once
from mmruntime._jaxpr.ir import Op, Step, is_scalar, is_tiny, num_bytes, num_elements
from mmruntime._partition.placement.argument_homes import follow_arguments, may_follow
from mmruntime._partition.placement.layers_between import LayersBetween
from mmruntime._partition.placement.locations import Whereabouts, gathers
from mmruntime._partition.placement.namesakes import Namesakes, computed_after, read_before
from mmruntime._partition.placement.partial_sums import read_counts, regroup_scalars, split_loop_sums
from mmruntime._partition.placement.take_apart import take_apart
from mmruntime._partition.tracing.trace import remove_dead_code

# A result is sent, not recomputed where it is read, if its inputs are more than this many times its size.
_SEND_FACTOR = 64


@dataclass(eq=False, slots=True, frozen=True)
class Submeshes:
    """The distinct device lists of a step's tasks, numbered in order of first use."""

    meshes: tuple[Mesh, ...]

    def disjoint(self) -> bool:
        """Whether no device is in two submeshes."""
        devices = [device for mesh in self.meshes for device in mesh.devices.flat]
        return len(devices) == len(set(devices))


@dataclass(eq=False, slots=True, frozen=True)
class Placement:
    """Where everything runs.

    Attributes:
        submeshes: The submeshes.
        task_meshes: The mesh of each task, whose axes may differ from those of others on the same devices.
        of: The submeshes that run each equation, the one that others read from first.
        homes: The submesh that each input of the step lives on.
        floating: The equations that depend on inputs alone.
        near: For equations outside of tasks, the task whose results they work on or, failing that, whose operands
            they make; its logical axes hold for them.
        pulled: For carried state that lives with that of other stages, the equation that made it so.
        makers: For carried state that no task reads, the equation that makes its next value, and with that its home.
        namesakes: For carried state that nothing else places, the parameter at the same place in the tree, whose home
            it has.
        followed: The inputs that are read where the caller has them, in a step without tasks.
    """

    submeshes: Submeshes
    task_meshes: Mapping[Task, Mesh]
    of: Mapping[Op, tuple[int, ...]]
    homes: Mapping[Var, int]
    floating: frozenset[Op]
    near: Mapping[Op, Task]
    pulled: Mapping[Var, Op]
    makers: Mapping[Var, Op]
    namesakes: Mapping[Var, Var] = field(default_factory=dict)
    followed: frozenset[Var] = frozenset()

    def with_ops(self, like: Mapping[Op, Op], where: Mapping[Op, tuple[int, ...]] | None = None) -> Placement:
        """The placement with further equations, each like another one, or on the submeshes that are given for it.

        Args:
            like: For new equations, those whose place they take or that they stand beside.
            where: The submeshes of new equations, of those of `like` where they differ, and of others.
        """
        return replace(
            self,
            of={**self.of, **{new: self.of[old] for new, old in like.items()}, **(where or {})},
            near={**self.near, **{new: self.near[old] for new, old in like.items() if old in self.near}},
            floating=self.floating.union(new for new, old in like.items() if old in self.floating),
        )


def place(
    step: Step,
    multimesh: MultiMesh,
    arguments: Mapping[int, NamedSharding] | None = None,
    names: Sequence[str] = (),
) -> tuple[Step, Placement]:
    """Choose submeshes for every equation and input of a step.

    Args:
        step: The step.
        multimesh: The mesh that it is compiled for.
        arguments: Where its arguments lie, by position, which a step without tasks and loops follows.
        names: The user's names for them, by which state that nothing else places finds its parameter.

    Returns:
        The step, with sums regrouped by submesh and without equations that this leaves dead; and where it runs.
    """
    task_meshes: dict[Task, Mesh] = {}
    numbers: dict[tuple[Any, ...], int] = {}
    meshes: list[Mesh] = []
    pins: dict[Op, int] = {}
    costs = layer_costs(step)
    step = _name_rounds(step, multimesh, costs)
    for op in step.ops():
        if op.task is None:
            continue
        if op.task not in task_meshes:
            mesh = task_mesh(op.task, multimesh, costs)
            if mesh is None:
                continue
            task_meshes[op.task] = mesh
        devices = tuple(task_meshes[op.task].devices.flat)
        if devices not in numbers:
            numbers[devices] = len(meshes)
            meshes.append(task_meshes[op.task])
        pins[op] = numbers[devices]
    followed: frozenset[Var] = frozenset()
    if arguments and may_follow(step):
        step, pins, meshes = follow_arguments(step, arguments, multimesh)
        followed = frozenset(var for op in pins for var in op.reads())
    labels = dict(zip(step.invars, names, strict=True)) if names else {}
    step, placement = _Placer(step, pins, Submeshes(tuple(meshes or [multimesh.mesh])), task_meshes).run(labels)
    read = {var for op in step.ops() for var in op.reads()} if followed else frozenset()
    return step, replace(placement, followed=followed & read)


def _name_rounds(step: Step, multimesh: MultiMesh, costs: LayerCosts) -> Step:
    """The step with one task for all layers of a stage, where they are dealt out in rounds by counted costs.

    The last stage of one round may lie beside the first of the next, on one submesh; their tasks tell them apart.
    """
    named: dict[Task, Task] = {}

    def name(op: Op) -> Op:
        task = op.task
        if task is None or not isinstance(task.mesh_slice, StageSlice) or task.mesh_slice.chunks == 1:
            return op
        if task not in named:
            piece = task.mesh_slice
            position, chunk = piece.part(multimesh, costs.get((piece.count, piece.axis)))
            label = f"{piece.axis}_{position}_chunk_{chunk}"
            named[task] = task.replace(name=label, mesh_slice={piece.axis: position})
        return replace(op, task=named[task])

    regions = tuple(replace(region, ops=tuple(map(name, region.ops))) for region in step.regions)
    return replace(step, regions=regions) if named else step


def layer_costs(step: Step) -> LayerCosts:
    """Operations of each layer's forward pass, for `stage(weights="flops")`."""
    costs: dict[tuple[int, str], list[float]] = {}
    for op in step.ops():
        piece = None if op.task is None else op.task.mesh_slice
        if isinstance(piece, StageSlice) and piece.weights == "flops" and not op.backward:
            layers = costs.setdefault((piece.count, piece.axis), [0.0] * piece.count)
            layers[piece.index] += _cost.flops(op.eqn)
    return costs


def _task_homes(step: Step, pins: Mapping[Op, int]) -> dict[Var, int]:
    """The submesh of each input that the tasks of one submesh read."""
    readers: dict[Var, set[int]] = defaultdict(set)
    outer = set(step.invars)
    for op, where in pins.items():
        for var in op.reads():
            if var in outer:
                readers[var].add(where)
    return {var: next(iter(places)) for var, places in readers.items() if len(places) == 1}


class _Placer:
    """Places the equations of a step. Where one is replaced, so is `self.step`."""

    def __init__(self, step: Step, pins: dict[Op, int], submeshes: Submeshes, task_meshes: dict[Task, Mesh]) -> None:
        self.step = step
        self.pins = pins
        self.submeshes = submeshes
        self.task_meshes = task_meshes
        self.producer: dict[Var, Op] = {var: op for op in step.ops() for var in op.writes()}
        self.summed: dict[Var, Var] = {total: result for region in step.regions for total, result in region.sums}
        self.sliced: dict[Var, Var] = {
            piece: stacked for region in step.regions for piece, stacked in region.slices.items()
        }
        self.task_homes = _task_homes(step, pins)
        carried = {step.invars[position] for position in step.carried}
        self.state_homes = {var: home for var, home in self.task_homes.items() if var in carried and not is_tiny(var)}
        # Equations that work on arrays of several submeshes, by those that follow from them; see `Placement.pulled`.
        self.gathered: dict[Op, Op] = {}
        self.after_loop = False
        self.of: dict[Op, tuple[int, ...]] = {}
        # How many crossings between submeshes come before each placed equation.
        self.depth: dict[Op, int] = {}
        self.near: dict[Op, Task] = {}
        self.between = LayersBetween(self._source)

    def run(self, names: Mapping[Var, str]) -> tuple[Step, Placement]:
        self._join_operands()
        presence, homes = self._input_homes()
        floating = frozenset(op for op in self.step.ops() if op not in self.of)
        namesakes = self._follow_namesakes(presence, homes, names)
        self._clone_to_users(presence, homes, stay=namesakes)
        for var in (*self.step.invars, *self.step.constants):
            homes.setdefault(var, min(presence[var], default=0))
        pulled, makers = self._follow_carried(homes)
        placement = Placement(
            self.submeshes, self.task_meshes, self.of, homes, floating, self.near, pulled, makers, namesakes
        )
        return self.step, placement

    def _follow_namesakes(
        self, presence: dict[Var, set[int]], homes: dict[Var, int], names: Mapping[Var, str]
    ) -> dict[Var, Var]:
        """Give carried state whose next value comes from no placed one the home of its namesake among the parameters.

        Such are the moments of a target network, whose update by the optimizer is thrown away.
        """
        adrift = []
        for position, result in self.step.carried.items():
            var, atom = self.step.invars[position], self.step.outvars[result]
            is_placed = is_var(atom) and self._source(atom) in self.of
            if var in names and var not in homes and not is_placed and not is_tiny(var):
                adrift.append(var)
        if not adrift or len(self.submeshes.meshes) == 1:
            return {}
        # What the forward pass reads is a parameter, or data, whose home is where it is read.
        late = computed_after(
            self.step, lambda op, found: op.writes() if op.backward or not found.isdisjoint(op.reads()) else ()
        )
        read = read_before(self.step, lambda op: op in self.of and late.isdisjoint(op.writes()))
        finder = Namesakes(names, [var for var in self.step.invars if var in read])
        found = {var: near for var in adrift if var not in read and (near := finder.of(var))}
        known = homes
        if any(each not in homes for near in found.values() for each in near):
            # Where floating equations read a parameter is known only once they are placed.
            of, near_to = dict(self.of), dict(self.near)
            tried = defaultdict(set, {var: set(places) for var, places in presence.items()})
            self._clone_to_users(tried, homes, leave=found)
            known = {**{var: min(places) for var, places in tried.items() if places}, **homes}
            self.of, self.near = of, near_to
        namesakes = {}
        for var, near in found.items():
            places = {known.get(each) for each in near}
            home = places.pop()
            if home is not None and not places:
                namesakes[var] = near[0]
                homes[var] = self.state_homes[var] = home
        return namesakes

    def _follow_carried(self, homes: dict[Var, int]) -> tuple[dict[Var, Op], dict[Var, Op]]:
        """Carried state lives where its next value is made, so that it stays there from step to step.

        A parameter lives on the stage whose tasks read it, and what follows a namesake with that: their next value is
        sent there.

        Returns:
            For state that lives with that of other stages, the equation that pulled it there; and for state that no
            task reads, the equation that makes its next value.
        """
        pulled: dict[Var, Op] = {}
        makers: dict[Var, Op] = {}
        outvars, copies = list(self.step.outvars), []
        for position, result in self.step.carried.items():
            var, atom = self.step.invars[position], self.step.outvars[result]
            source = self._source(atom) if is_var(atom) else None
            if source is None:
                continue
            home, places = self.state_homes.get(var), self.of[source]
            # What a task returns is where it runs, even if the next step is to read it elsewhere.
            if home is not None and home not in places and source.task is None:
                copy = Op(_compat.copy_eqn(atom, _compat.new_var(atom.aval)))
                copies.append(copy)
                self.of[copy] = (home,)
                outvars[result] = copy.eqn.outvars[0]
                homes[var] = home
                continue
            if home in places and len(source.eqn.outvars) == 1:
                self.of[source] = (home, *(where for where in places if where != home))
            homes[var] = self.of[source][0]
            if home is None and source.task is None and not is_tiny(var):
                makers[var] = source
            if home is None and source in self.gathered and not is_tiny(var):
                pulled[var] = self.gathered[source]
        if copies:
            *before, last = self.step.regions
            last = replace(last, ops=(*last.ops, *copies))
            self.step = replace(self.step, regions=(*before, last), outvars=tuple(outvars))
        return pulled, makers

    def _source(self, var: Var) -> Op | None:
        """The equation that a value comes from, through loop sums and slices; None for an input."""
        while var in self.summed or var in self.sliced:
            var = self.summed.get(var) or self.sliced[var]
        return self.producer.get(var)

    def _join_operands(self) -> None:
        """Place tasks and all equations that depend on a placed one; keep sums within their submeshes."""
        depth = self.depth
        for index in range(len(self.step.regions)):
            region = self.step.regions[index]
            self.between.enter(region)
            region = replace(
                region, ops=tuple([self._join(part, depth) for op in region.ops for part in self._parts(op)])
            )
            self.after_loop = self.after_loop or region.loop is not None
            uses = read_counts(self.step)
            if region.loop is not None:
                after = self.step.regions[index + 1]
                region, after, new = split_loop_sums(region, after, self.producer, uses, self._where)
                self.step = self.step.with_region(index, region).with_region(index + 1, after)
                self.summed = {total: result for each in self.step.regions for total, result in each.sums}
            else:
                region, new = regroup_scalars(region, self.producer, uses, self._where)
                self.step = self.step.with_region(index, region)
            for op, where in new.items():
                self.producer.update(dict.fromkeys(op.writes(), op))
                self.pins[op] = where
                self.of[op] = (where,)
            for op in new:
                depth[op] = max(
                    (depth[s] for var in op.reads() if (s := self._source(var)) is not None and s in depth), default=0
                )
        self.step = remove_dead_code(self.step)
        self.of = {op: self.of[op] for op in self.step.ops() if op in self.of}

    def _parts(self, op: Op) -> list[Op]:
        """An equation with a body over values of several submeshes as one for each of them; see `take_apart`."""
        if op in self.pins or op.task is not None or not _compat.inner_jaxprs(op.eqn):
            return [op]
        if self.between.forward_of(op, [source for _, source in self._placed_sources(op)]) is not None:
            return [op]
        found = take_apart(op.eqn, self._location)
        if found is None:
            return [op]
        parts = []
        for each in found:
            part = op.with_eqn(each.eqn)
            self.producer.update(dict.fromkeys(part.writes(), part))
            if each.submesh is not None:
                part = self._mark_backward(part, self._placed_sources(part))
                self.pins[part] = each.submesh
                if each.gathers:
                    self.gathered[part] = op
            parts.append(part)
        return parts

    def _location(self, var: Var) -> Whereabouts:
        """Where a value is; inputs that no task reads, or several submeshes, may come to lie with anything."""
        source = self._source(var)
        if source is not None and source in self.depth:
            return Whereabouts(self.of[source][0], self.depth[source])
        if is_tiny(var):
            return Whereabouts(None)
        if source is None:
            var = self._input(var)
            return Whereabouts(self.task_homes.get(var, var), -1)
        inputs = [atom for atom in source.reads() if not is_tiny(atom)]
        # A cast of a parameter, say, lies with it.
        return self._location(inputs[0]) if len(inputs) == 1 else Whereabouts(source if inputs else None)

    def _stay_near(self, op: Op, other: Op) -> None:
        task = other.task or self.near.get(other)
        if task is not None:
            self.near.setdefault(op, task)

    def _where(self, op: Op) -> int | None:
        where = self.of.get(op)
        return None if where is None else where[0]

    def _join(self, op: Op, depth: dict[Op, int]) -> Op:
        """Place an equation by its task or its placed operands; marked as backward if one of those is."""
        sources = self._placed_sources(op)
        forward = None
        if op in self.pins:
            where = self.pins[op]
            if op.task is None:
                for source in (source for _, source in sources if self.of[source][0] == where):
                    self._stay_near(op, source)
        else:
            candidates = [(var, source) for var, source in sources if not is_tiny(var)]
            # The gradient of a parameter of one number may be a scalar that gets its dimensions back.
            if not candidates and all(is_tiny(var) or num_elements(var) == 1 for var in op.eqn.outvars):
                candidates = sources
            if not candidates:
                return op
            _, latest = max(candidates, key=lambda c: (depth[c[1]], num_bytes(c[0])))
            op = self._mark_backward(op, sources)
            home = self._home_of_update(op)
            if home is None:
                forward = self.between.forward_of(op, [source for _, source in sources])
            if forward is None:
                where = self.of[latest][0] if home is None else home
                self._stay_near(op, latest)
                self._note_gathering(op, where, [source for _, source in candidates])
            else:
                where = self.of[forward][0]
                self._stay_near(op, forward)
        self.of[op] = (where,)
        depth[op] = max((depth[source] + (self.of[source][0] != where) for _, source in sources), default=0)
        self.between.note(op, depth[op], forward)
        return op

    def _placed_sources(self, op: Op) -> list[tuple[Var, Op]]:
        """The values that an equation reads from placed ones, and these."""
        sources = [(var, self._source(var)) for var in op.reads()]
        return [(var, source) for var, source in sources if source is not None and source in self.depth]

    def _mark_backward(self, op: Op, sources: list[tuple[Var, Op]]) -> Op:
        """The equation, marked as backward if one that it depends on is."""
        if op.backward or not any(source.backward for _, source in sources):
            return op
        op = replace(op, backward=True)
        self.producer.update(dict.fromkeys(op.writes(), op))
        return op

    def _home_of_update(self, op: Op) -> int | None:
        """The stage of the parameter that an equation updates, element by element; None if it updates none."""
        # A batch, too, may look like state that a result of its shape carries on.
        state = [var for var in op.reads() if var in self.state_homes] if self.after_loop or op.backward else []
        if not state:
            return None
        arrays = [var for var in (*op.reads(), *op.writes()) if not is_tiny(var)]
        if any(var.aval.shape != state[0].aval.shape for var in arrays):
            return None
        return self.state_homes[state[0]]

    def _note_gathering(self, op: Op, where: int, sources: list[Op]) -> None:
        """Remember equations outside of loops that work on arrays of several submeshes, and what follows from them."""
        # The forward pass of a model may join what it likes.
        is_update = self.after_loop or op.backward
        if is_update and len({self.of[source][0] for source in sources}) > 1 and gathers(op.eqn):
            self.gathered[op] = op
            return
        for source in sources:
            if source in self.gathered and self.of[source][0] == where:
                self.gathered[op] = self.gathered[source]

    def _input_homes(self) -> tuple[dict[Var, set[int]], dict[Var, int]]:
        """The submeshes where placed equations read each input, and the one that computes most with it."""
        presence: dict[Var, set[int]] = defaultdict(set)
        weight: dict[Var, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        inputs = set(self.step.invars) | set(self.step.constants)
        for op, (where, *_) in self.of.items():
            read = inputs.intersection(op.reads())
            work = _cost.flops(op.eqn) if read else 0.0
            for var in read:
                presence[var].add(where)
                weight[var][where] += work
        # Ties go to the first in the program: of a stage and its replica, to the stage.
        return presence, {var: max(by, key=lambda m: by[m]) for var, by in weight.items()}

    def _clone_to_users(
        self,
        presence: dict[Var, set[int]],
        homes: dict[Var, int],
        *,
        stay: Collection[Var] = frozenset(),
        leave: Collection[Var] = frozenset(),
    ) -> None:
        """Place equations that depend on inputs alone, from the last to the first, so that all readers are placed.

        Args:
            presence: The submeshes that read each input, to which those of these equations are added.
            homes: The homes of inputs, as far as they are known.
            stay: Inputs that are read at their homes alone: the results of these equations are sent.
            leave: Inputs of which no equation that depends on them is placed.
        """
        users: dict[Var, set[int]] = defaultdict(set)
        reader: dict[Var, Op] = {}
        cones, latest = self._cones(), self._latest()
        results = {atom for atom in self.step.outvars if is_var(atom) and is_scalar(atom)}
        for region in reversed(self.step.regions):
            for total, result in region.sums:
                users[result] |= users[total]
            # A scalar result is needed on all devices: it joins the programs that run at that time anyway.
            running = {where for op in region.ops if op in self.of for where in self.of[op]}
            for op in reversed(region.ops):
                if op not in self.of:
                    if not cones[op].keys().isdisjoint(leave):
                        continue
                    if region.loop is None:
                        for var in results.intersection(op.writes()):
                            users[var] |= running
                    readers: set[int] = set().union(*[users[var] for var in op.writes()])
                    inputs = sorted((var for var in cones[op] if not is_tiny(var)), key=num_bytes, reverse=True)
                    largest = next((homes[var] for var in inputs if var in homes), None)
                    own = next((homes[var] for var in inputs if var in stay), None)
                    if own is not None:
                        self.of[op] = (own,)
                    elif readers:
                        self.of[op] = self._floating(op, inputs, largest, readers, presence)
                    else:
                        # Results of a loop, such as metrics made of scalars, stay with the stage that made these.
                        choices = (largest, latest.get(op)) if region.loop is None else (latest.get(op), largest)
                        self.of[op] = (next((each for each in choices if each is not None), 0),)
                    for var in op.reads():
                        if var not in self.producer and var not in self.sliced and var not in self.summed:
                            presence[var].update(self.of[op])
                    for var in op.writes():
                        if var in reader:
                            self._stay_near(op, reader[var])
                for var in op.reads():
                    users[var].update(self.of[op])
                    reader[var] = op
            for piece, stacked in region.slices.items():
                users[stacked] |= users[piece]
                if stacked not in self.producer:
                    presence[stacked].update(users[piece])

    def _floating(
        self, op: Op, inputs: list[Var], largest: int | None, readers: set[int], presence: dict[Var, set[int]]
    ) -> tuple[int, ...]:
        """The submeshes of an equation that others read.

        Args:
            op: The equation.
            inputs: The arrays among the step's inputs that it depends on, the largest first.
            largest: The home of the largest.
            readers: The submeshes that read its results.
            presence: The submeshes that read each input.
        """
        if runs_once(op.eqn):
            return (self._one_of(op, readers, largest),)
        size = sum(num_bytes(var) for var in op.writes())
        keep = set()
        for where in readers:
            missing = sum(num_bytes(var) for var in inputs if where not in presence[var])
            if not recomputation_enabled():
                break
            if missing <= _SEND_FACTOR * size or not any(not is_tiny(var) for var in op.reads()):
                keep.add(where)
        if not keep:
            keep = {largest if largest is not None else min(readers)}
        return tuple(sorted(keep))

    def _one_of(self, op: Op, readers: set[int], largest: int | None) -> int:
        """The submesh of an equation that must run once: where others are that it has to keep its order with."""
        effects = _compat.ordered_effects(op.eqn)
        if effects:
            region = next(region for region in self.step.regions if op in region.ops)
            for other in region.ops:
                if other in self.of and effects & _compat.ordered_effects(other.eqn):
                    return self.of[other][0]
        return largest if largest is not None and largest in readers else min(readers)

    def _latest(self) -> dict[Op, int]:
        """For equations that are not placed yet, the submesh of the last placed one whose scalars they depend on."""
        found: dict[Op, Op] = {}
        for op in self.step.ops():
            if op in self.of:
                continue
            sources = [source for var in op.reads() if (source := self._source(var)) is not None]
            placed = [source if source in self.of else found.get(source) for source in sources]
            last = max((each for each in placed if each is not None), key=lambda each: self.depth[each], default=None)
            if last is not None:
                found[op] = last
        return {op: self.of[source][0] for op, source in found.items()}

    def _cones(self) -> dict[Op, dict[Var, None]]:
        """The inputs of each equation that depends on nothing else, in an order that all processes have."""
        cones: dict[Op, dict[Var, None]] = {}
        for op in self.step.ops():
            if op in self.of:
                continue
            found = cones[op] = {}
            for var in op.reads():
                source = self._source(var)
                if source is None:
                    found[self._input(var)] = None
                elif source in cones:
                    found |= cones[source]
        return cones

    def _input(self, var: Var) -> Var:
        while var in self.sliced:
            var = self.sliced[var]
        return var
