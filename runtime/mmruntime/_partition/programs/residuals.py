"""Residuals: what forward programs keep for backward ones, as few bytes as a minimum cut finds.

JAX's reverse mode keeps every value that an equation of the backward pass reads. Within one program XLA makes the cheap
ones again; from one program to another each of them is an array, which lives as long as its microbatch is in flight.
Here the backward program makes those again that cheap equations make of others. Which values are kept is a minimum cut
between what is dear to make and what is read (He and Yu, "Transcending Runtime-Memory Tradeoffs in Checkpointing by
being Fusion Aware", MLSys 2023, which is also how torch.compile keeps activations).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import jax.numpy as jnp

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._core.switches import recomputation_enabled
from mmruntime._frontend.constraint import constraint_p
from mmruntime._jaxpr.ir import Op, Region, Step, num_bytes
from mmruntime._jaxpr.primitives import MOVES
from mmruntime._jaxpr.rewrite import open_calls, renamed
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segment, Segments
from mmruntime._partition.tracing.trace import remove_dead_code

# One pass over the entries, and no function that takes longer than to load them: no division, not `exp`, not `tanh`.
_CHEAP_NAMES = """
    abs add add_any and clamp complex conj eq ge gt imag iota is_finite le lt max min mul ne neg not one_minus_square or
    real select_n sign square sub xor
"""
_CHEAP = frozenset(_CHEAP_NAMES.split()) | MOVES
# An array that is kept costs as much as so many bytes: its result and its argument take a microsecond each.
_ARRAY = 1 << 14


def recompute_residuals(step: Step, placement: Placement, segments: Segments) -> tuple[Step, Placement]:
    """The step whose backward programs make cheap residuals again, and where it runs.

    Values are made by the same equations as before. Within `enable_recomputation(False)` the step stays as it is.
    """
    if not recomputation_enabled() or not any(op.backward for op in step.ops()):
        return step, placement
    fixed = {*placement.floating, *placement.makers.values(), *placement.pulled.values()}
    # Those that several submeshes run belong to several programs, of which each would have other residuals.
    fixed |= {op for op in step.ops() if len(placement.of[op]) > 1}
    elsewhere = step.border()
    readers: dict[Var, list[Segment]] = defaultdict(list)
    for each in segments:
        for var in each.reads:
            readers[var].append(each)
    like: dict[Op, Op] = {}
    for index, region in enumerate(step.regions):
        edits: dict[Op, list[Op]] = {}
        for forward in segments.by_region[index]:
            if forward.backward:
                continue
            found = _Residuals(forward, region, readers, elsewhere, fixed).edits()
            like.update((new, op) for op, ops in found.items() for new in ops)
            edits |= found
        if edits:
            ops = [new for op in region.ops for new in edits.get(op, [op])]
            step = step.with_region(index, replace(region, ops=tuple(ops)))
    if not like:
        return step, placement
    step, placement = remove_dead_code(step), placement.with_ops(like)
    return step, replace(placement, of=_where_still_read(step, placement.of))


def _where_still_read(step: Step, of: Mapping[Op, tuple[int, ...]]) -> dict[Op, tuple[int, ...]]:
    """The submeshes of each equation, without those where nothing reads its results any more.

    A task that is opened drops the arguments that it did not use, such as the key of a dropout of rate zero.
    """
    found = {op: of[op] for op in step.ops()}
    border = step.border()
    readers: dict[Var, set[int]] = defaultdict(set)
    for op in [op for region in reversed(step.regions) for op in reversed(region.ops)]:
        places = found[op]
        if len(places) > 1 and border.isdisjoint(op.writes()):
            read = set().union(*(readers[var] for var in op.writes()))
            # Those that do not have it themselves get it from the first.
            kept = tuple(where for where in places if where in read or (where == places[0] and read.difference(places)))
            found[op] = kept or places
        for var in op.reads():
            readers[var].update(found[op])
    return found


@dataclass(eq=False)
class _Residuals:
    """The residuals of one forward program.

    Attributes:
        forward: The program.
        region: Its region.
        readers: The programs that read each variable.
        elsewhere: Variables that are read by more than programs.
        fixed: Equations that must stay what they are.
    """

    forward: Segment
    region: Region
    readers: Mapping[Var, Sequence[Segment]]
    elsewhere: Collection[Var]
    fixed: Collection[Op]
    opened: dict[Op, list[Op]] = field(default_factory=dict)
    maker: dict[Var, Op] = field(default_factory=dict)

    def edits(self) -> dict[Op, list[Op]]:
        """For each equation that changes, what takes its place."""
        residuals = [var for var in self.forward.writes if self._is_residual(var)]
        if not residuals:
            return {}
        asked = {var for op in self.forward.ops if op in self.fixed for var in op.reads()}
        for op in self.forward.ops:
            may_open = op not in self.fixed and not op.submesh_varies and not op.eqn.effects
            self.opened[op] = [replace(each, call=op.eqn) for each in open_calls(op)] if may_open else [op]
            if may_open:
                cheap = [each for each in self.opened[op] if _is_cheap(each)]
                self.maker.update((var, each) for each in cheap for var in each.writes() if var not in asked)
        kept = cheapest_to_keep(
            residuals, lambda var: self.maker[var].reads() if var in self.maker else None, self._cost
        )
        again = [var for var in residuals if var not in kept]
        return self._edits(again, kept) if again else {}

    def _is_residual(self, var: Var) -> bool:
        """Whether only backward programs of this submesh read a value."""
        return var not in self.elsewhere and all(self._is_its_backward(each) for each in self.readers[var])

    def _is_its_backward(self, other: Segment) -> bool:
        mine = (self.forward.region, self.forward.submesh, self.forward.variant)
        return other.backward and (other.region, other.submesh, other.variant) == mine

    def _cost(self, var: Var) -> int:
        """What keeping a value costs, in bytes; nothing where a backward program has it anyway."""
        is_there = any(map(self._is_its_backward, self.readers.get(var, ())))
        if is_there and var not in self.forward.writes:
            return 0
        is_of_loop = var in self.maker or var in self._made_in_loop
        return num_bytes(var) + _ARRAY if is_of_loop else _ARRAY // 2

    @functools.cached_property
    def _made_in_loop(self) -> set[Var]:
        return {*self.region.slices, *(var for op in self.region.ops for var in op.writes())}

    def _edits(self, again: Sequence[Var], kept: Collection[Var]) -> dict[Op, list[Op]]:
        # In the forward program these have other names from now on.
        forward = {var: _compat.new_var(var.aval) for var in again}
        wanted: set[Var] = set(again)
        flat = [(op, each) for op, opened in self.opened.items() for each in opened]
        made_again: set[Op] = set()
        for _, each in reversed(flat):
            if any(var in wanted and var in self.maker for var in each.writes()):
                made_again.add(each)
                wanted.update(var for var in each.reads() if var not in kept)
        names: dict[Var, Var] = {}
        result: dict[Op, list[Op]] = {}
        for op, opened in self.opened.items():
            own = {var for each in opened for var in each.writes()}
            inner = own.difference(op.writes())
            is_open = not own.isdisjoint(forward) or not inner.isdisjoint(kept) or not made_again.isdisjoint(opened)
            ops: list[Op] = []
            for each in opened if is_open else [op]:
                ops.append(each.with_eqn(renamed(each.eqn, forward, forward)))
                if each in made_again:
                    fresh = {var: var if var in forward else _compat.new_var(var.aval) for var in each.writes()}
                    ops.append(replace(each, eqn=renamed(each.eqn, names, fresh), backward=True, again=True))
                    names |= {var: fresh[var] for var in each.writes() if var not in kept}
            if [*map(id, ops)] != [id(op)]:
                result[op] = ops
        return result


def _is_cheap(op: Op) -> bool:
    if op.eqn.primitive.name == "convert_element_type":
        # Where XLA sees a value rounded and widened again, it may leave out both: the backward pass would have another
        # value than the forward pass.
        before, after = op.eqn.invars[0].aval.dtype, op.eqn.outvars[0].aval.dtype
        if not (jnp.issubdtype(before, jnp.inexact) and jnp.issubdtype(after, jnp.inexact)):
            return True
        finfo: Any = jnp.finfo
        return bool(finfo(after).nmant >= finfo(before).nmant and finfo(after).nexp >= finfo(before).nexp)
    if op.eqn.primitive.name == "integer_pow":
        return bool(op.eqn.params["y"] >= 0)
    return op.eqn.primitive.name in _CHEAP or op.eqn.primitive is constraint_p


Value = TypeVar("Value", bound=Hashable)


def cheapest_to_keep(
    read: Collection[Value],
    made_of: Callable[[Value], Iterable[Value] | None],
    cost: Callable[[Value], int],
) -> set[Value]:
    """The values to keep: the cheapest set, and among equals the one that leaves the least to recompute.

    A minimum cut of a network in which each value is an edge of its cost.

    Args:
        read: The values that must be kept or made again.
        made_of: The values that one can be made of, none for a constant; None if it cannot be made again.
        cost: What it costs to keep a value, an integer of at least 0.
    """
    operands: dict[Value, tuple[Value, ...] | None] = {}
    waiting = list(read)
    while waiting:
        value = waiting.pop()
        if value not in operands:
            found = made_of(value)
            operands[value] = None if found is None else tuple(found)
            waiting.extend(operands[value] or ())
    # Nodes: the source, the sink, and for each value where it comes in and where it goes out.
    come = {value: 2 + 2 * n for n, value in enumerate(operands)}
    go = {value: node + 1 for value, node in come.items()}
    edges = {(come[value], go[value]): cost(value) for value in operands}
    uncut = sum(edges.values()) + 1
    for value, found in operands.items():
        edges.update({(0, come[value]): uncut} if found is None else {(go[each], come[value]): uncut for each in found})
    edges.update({(go[value], 1): uncut for value in read})
    needed = _sink_side(edges, 2 + 2 * len(operands))
    return {value for value in operands if go[value] in needed and come[value] not in needed}


def _sink_side(edges: Mapping[tuple[int, int], int], size: int) -> set[int]:
    """The nodes on the side of the sink, node 1, of the minimum cut that is nearest to it; the source is node 0.

    Dinitz's algorithm (Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation",
    1970), in plain Python: to import SciPy's takes longer than the cuts of a step.
    """
    # The edges of each node, back edges among them: edge `n ^ 1` is the back edge of edge `n`.
    of: list[list[int]] = [[] for _ in range(size)]
    ends: list[int] = []
    left: list[int] = []
    for (start, end), capacity in edges.items():
        of[start].append(len(ends))
        of[end].append(len(ends) + 1)
        ends += (end, start)
        left += (capacity, 0)
    while True:
        levels = [-1] * size
        levels[0] = 0
        queue = [0]
        for node in queue:
            for edge in of[node]:
                if left[edge] and levels[ends[edge]] < 0:
                    levels[ends[edge]] = levels[node] + 1
                    queue.append(ends[edge])
        if levels[1] < 0:
            break
        untried = [each[:] for each in of]
        path: list[int] = []
        while True:
            node = ends[path[-1]] if path else 0
            if node == 1:
                flow = min(left[edge] for edge in path)
                for edge in path:
                    left[edge] -= flow
                    left[edge ^ 1] += flow
                # On from the first edge that is full.
                del path[next(n for n, edge in enumerate(path) if not left[edge]) :]
                continue
            edges_on = untried[node]
            while edges_on and not (left[edges_on[-1]] and levels[ends[edges_on[-1]]] == levels[node] + 1):
                edges_on.pop()
            if edges_on:
                path.append(edges_on[-1])
            elif path:
                # A dead end: its edge is not tried again.
                levels[node] = -1
                path.pop()
            else:
                break
    side = [1]
    seen = {1}
    for node in side:
        for edge in of[node]:
            if left[edge ^ 1] and ends[edge] not in seen:
                seen.add(ends[edge])
                side.append(ends[edge])
    return seen
