"""Segment: cut the placed equations into programs that run without waiting for other submeshes.

In each region, an equation's level is how many times its inputs have crossed from one submesh to another;
the equations of one submesh and level are one program. An executable starts only when all of its arguments are there,
so two programs must not wait for each other; as every crossing raises the level, they never do. In a training loop this
gives, per stage, a forward and a backward program, and on the last stage one that does both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mmruntime._compat import Var, is_var
from mmruntime._jaxpr.effects import previous_ordered
from mmruntime._jaxpr.ir import Op, Region, Step, is_scalar
from mmruntime._partition.placement.place import Placement


@dataclass(eq=False, slots=True, frozen=True)
class Segment:
    """Equations that are compiled into one program.

    Attributes:
        region: Index of the region.
        submesh: Number of the submesh.
        level: Crossings between submeshes before it, within the region.
        ops: The equations, in program order.
        reads: Variables that it reads and does not write.
        writes: Variables that others read.
        forward: Whether it holds equations of a forward pass.
        backward: Whether it holds equations of a backward pass.
        part: "I" or "W" for the input and weight halves of a split backward pass, "R" for a forward pass that runs once
            more, else "".
        input_half: For a weight half, the input half that it belongs to.
        variant: Which of the loop's bodies it is in; behind a loop, which of the programs of its submesh.
    """

    region: int
    submesh: int
    level: int
    ops: tuple[Op, ...]
    reads: tuple[Var, ...] = ()
    writes: tuple[Var, ...] = ()
    forward: bool = False
    backward: bool = False
    part: str = ""
    input_half: Segment | None = None
    variant: int = 0

    @property
    def submesh_varies(self) -> bool:
        """Whether it holds only tasks whose submesh depends on the microbatch, so that it is no pipeline stage."""
        return any(op.submesh_varies for op in self.ops) and all(
            op.submesh_varies or op.task is None for op in self.ops
        )

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks in it, in order."""
        return tuple(dict.fromkeys(op.task.name for op in self.ops if op.task is not None and op.task.name))

    @property
    def passes(self) -> str:
        """The passes of a loop that it holds, such as "forward+backward" and "backward (weight half)"."""
        half = {"I": " (input half)", "W": " (weight half)"}.get(self.part, "")
        again = " once more" if self.part == "R" else ""
        return "+".join(["forward" + again] * self.forward + ["backward" + half] * self.backward)


@dataclass(eq=False, slots=True, frozen=True)
class Segments:
    """The programs of a step, and where each value can be read.

    Attributes:
        by_region: The segments of each region, ordered by level.
        made_on: The submeshes that compute each variable; others get it from the first.
    """

    by_region: tuple[tuple[Segment, ...], ...]
    made_on: Mapping[Var, tuple[int, ...]]

    def __iter__(self) -> Iterator[Segment]:
        return (segment for segments in self.by_region for segment in segments)

    def read_by_model(self, step: Step) -> set[Var]:
        """What tasks or microbatch loops of a step read; carried state that is not among it is an optimizer's."""
        inside = [each for each in self if each.tasks or step.regions[each.region].loop is not None]
        return {var for each in inside for var in each.reads}


def segment(step: Step, placement: Placement, by_task: Collection[int] = ()) -> Segments:
    """Cut a placed step into segments.

    Args:
        step: The step.
        placement: Where it runs.
        by_task: Regions in which neighbouring tasks of one submesh are not merged into one program.
    """
    made_on: dict[Var, tuple[int, ...]] = {}
    by_region = []
    for index, region in enumerate(step.regions):
        levels = _levels(region, placement, index in by_task)
        _sink(region, placement, levels, step.read_behind(index), index in by_task)
        groups: dict[tuple[int, int, int], list[Op]] = defaultdict(list)
        for op in region.ops:
            for where in placement.of[op]:
                groups[levels[op, where], where, op.variant].append(op)
            made_on.update(dict.fromkeys(op.writes(), placement.of[op]))
        by_region.append(
            tuple(
                Segment(index, where, level, _largest_part_first(ops), variant=variant)
                for (level, where, variant), ops in sorted(groups.items())
            )
        )
        for total, result in region.sums:
            # A sum has one accumulator, where its terms are first made.
            made_on[total] = made_on[result][:1]
    return connect(step, Segments(tuple(by_region), made_on))


def _largest_part_first(ops: list[Op]) -> tuple[Op, ...]:
    """The equations of a program, those of its parts that share no value one after the other, the largest first.

    Scalars of other stages, such as the step counts of their optimizers, are computed on every submesh. Where the
    program had them in between, equal stages would have unequal programs.
    """
    return tuple(op for each in sorted(connected(ops), key=len, reverse=True) for op in each)


def connected(ops: Sequence[Op]) -> list[tuple[Op, ...]]:
    """Equations by the parts that share no value and no order of effects, in the order in which these begin."""
    part = {op: op for op in ops}

    def root(op: Op) -> Op:
        while part[op] is not op:
            part[op] = part[part[op]]
            op = part[op]
        return op

    made: dict[Var, Op] = {}
    latest: Op | None = None
    for op in ops:
        for var in op.reads():
            if var in made:
                part[root(op)] = root(made[var])
        if op.eqn.effects:
            # These stay in order.
            if latest is not None:
                part[root(op)] = root(latest)
            latest = op
        made.update(dict.fromkeys(op.writes(), op))
    parts: dict[Op, list[Op]] = defaultdict(list)
    for op in ops:
        parts[root(op)].append(op)
    return [tuple(each) for each in parts.values()]


def _levels(region: Region, placement: Placement, by_task: bool) -> dict[tuple[Op, int], int]:
    producer = {var: op for op in region.ops for var in op.writes()}
    previous = _previous_ordered(region)
    levels: dict[tuple[Op, int], int] = {}
    # Where tasks are kept apart, the one that an equation belongs to or, outside of tasks, comes after.
    after: dict[Op, str | None] = {}
    of = placement.of
    for op in region.ops:
        sources = [producer[var] for var in op.reads() if var in producer]
        # Ordered effects wait for each other, as if each read a result of the one before.
        sources.extend(previous.get(op, ()))
        if by_task:
            latest = max(sources, key=lambda source: levels[source, of[source][0]], default=None)
            after[op] = op.task.name if op.task is not None else None if latest is None else after[latest]
        # The backward pass of a slice waits for those of the slices behind it.
        waits = region.num_slices > 1 and op.backward
        for where in of[op]:
            level = 0
            for source in sources:
                places = of[source]
                if where not in places:
                    before = levels[source, places[0]] + 1
                elif (waits and not source.backward) or (
                    by_task and None not in (after[op], after[source]) and after[op] != after[source]
                ):
                    before = levels[source, where] + 1
                else:
                    before = levels[source, where]
                level = max(level, before)
            levels[op, where] = level
    return levels


def _previous_ordered(region: Region) -> dict[Op, tuple[Op, ...]]:
    """For each equation with ordered effects, those that it comes after; each variant of a loop's body by itself."""
    variants = sorted({op.variant for op in region.ops if op.eqn.effects})
    found: dict[Op, tuple[Op, ...]] = {}
    for variant in variants:
        found |= previous_ordered([op for op in region.ops if op.variant == variant])
    return found


def _sink(
    region: Region, placement: Placement, levels: dict[tuple[Op, int], int], kept: set[Var], by_task: bool
) -> None:
    """Move equations to the program of their first reader, so that no value is held for longer than needed.

    A forward equation whose only readers are of the backward pass stays: it would drag its inputs along.
    """
    readers: dict[Var, list[Op]] = defaultdict(list)
    for op in region.ops:
        for var in op.reads():
            readers[var].append(op)
    next_ordered: dict[Op, list[Op]] = defaultdict(list)
    for op, before in _previous_ordered(region).items():
        for each in before:
            next_ordered[each].append(op)
    kept = kept | {result for _, result in region.sums}
    for op in reversed(region.ops):
        users = [user for var in op.writes() for user in readers[var]]
        if by_task and op not in placement.floating and not op.again and not _is_of_task_of(op, users):
            # Between tasks of one submesh that are kept apart, moving an equation would merge them again.
            continue
        # An equation for its effect alone has no reader to go to.
        if not users or any(var in kept for var in op.writes()):
            continue
        users.extend(next_ordered.get(op, ()))
        places = placement.of[op]
        if any(where not in places for user in users for where in placement.of[user]):
            continue
        for where in places:
            here = [(levels[user, where], user) for user in users if where in placement.of[user]]
            first = min(level for level, _ in here)
            if op in placement.floating or any(level == first and user.backward == op.backward for level, user in here):
                levels[op, where] = max(levels[op, where], first)


def _is_of_task_of(op: Op, users: Iterable[Op]) -> bool:
    """Whether all readers of an equation belong to its own task, as where the call of a task was opened."""
    return op.task is not None and all(user.task is not None and user.task.name == op.task.name for user in users)


def connect(step: Step, segments: Segments) -> Segments:
    """Fill in the variables that each segment reads and writes, and whether it is forward or backward."""
    made_on = segments.made_on
    writer: dict[tuple[Var, int], Segment] = {}
    read: dict[Segment, tuple[Var, ...]] = {}
    needed: dict[Segment, set[Var]] = defaultdict(set)
    for each in segments:
        for op in each.ops:
            for var in op.writes():
                writer[var, each.submesh] = each

    def need(var: Var, where: int) -> None:
        source = writer.get((var, where)) or writer.get((var, made_on.get(var, (where,))[0]))
        if source is not None:
            needed[source].add(var)

    for each in segments:
        own = {var for op in each.ops for var in op.writes()}
        read[each] = tuple(dict.fromkeys(var for op in each.ops for var in op.reads() if var not in own))
        for var in read[each]:
            need(var, each.submesh)
    for region in step.regions:
        for _, result in region.sums:
            need(result, made_on[result][0])
        for stacked in region.slices.values():
            for where in made_on.get(stacked, ()):
                need(stacked, where)
    for atom in step.outvars:
        if is_var(atom) and atom in made_on:
            for where in made_on[atom] if is_scalar(atom) else made_on[atom][:1]:
                need(atom, where)
    connected: dict[Segment, Segment] = {}
    for each in segments:
        backward = any(op.backward for op in each.ops)
        connected[each] = replace(
            each,
            reads=read[each],
            writes=tuple(var for op in each.ops for var in op.writes() if var in needed[each]),
            backward=backward,
            forward=not backward or any(not op.backward and op.task is not None for op in each.ops),
            # An input half comes before its weight half.
            input_half=None if each.input_half is None else connected[each.input_half],
        )
    return Segments(tuple(tuple(connected[each] for each in row) for row in segments.by_region), made_on)
