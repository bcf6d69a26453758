"""What each layer of a step costs for one microbatch, from a trace in which every layer is a stage of its own.

What stands before the first layer counts for that, what stands behind the last one for that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Var
from mmruntime._frontend.constraint import constraint_p
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.ir import Op, Step, num_bytes
from mmruntime._partition.layouts.dimension_classes import Frame, ValuePlace, dimension_classes
from mmruntime._partition.pipeline.loop_schedule import activation_bytes
from mmruntime._partition.pipeline.pipeline_stages import Stage, dependencies, pipeline_stages
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segment, Segments
from mmruntime._partition.programs.split_backward import halves_of

# Products, and what reads or writes all of its operands; everything else is taken to be fused with these.
_PRODUCTS = ("dot_general", "conv_general_dilated")
_MOVING = (*_PRODUCTS, "gather", "scatter", "scatter-add", "reduce_sum", "reduce_max", "sort", "cumsum")


@dataclass
class PassCost:
    """One pass of a layer: operations, those of products by type, and bytes of operands and results."""

    flops: float = 0.0
    products: dict[str, float] = field(default_factory=dict)
    moved: float = 0.0

    def add(self, eqn: Any, times: float = 1.0, *, whole: bool = True) -> None:
        """Count an equation that runs so many times, with what is inside of it."""
        if whole:
            self.flops += _cost.flops(eqn) * times
        inner = _compat.inner_jaxprs(eqn)
        name = eqn.primitive.name
        if inner:
            again = times * (eqn.params.get("length", 1) if eqn.primitive is _compat.scan_p else 1)
            for jaxpr in inner[:1] if name == "cond" else inner:
                for each in jaxpr.eqns:
                    self.add(each, again, whole=False)
            return
        if name in _PRODUCTS:
            kind = str(eqn.invars[0].aval.dtype)
            self.products[kind] = self.products.get(kind, 0.0) + _cost.flops(eqn) * times
        if name in _MOVING:
            self.moved += times * sum(num_bytes(atom) for atom in (*eqn.invars, *eqn.outvars))


@dataclass
class LayerCost:
    """One layer, for one microbatch, on all devices of its stage together.

    Attributes:
        forward: Its forward pass.
        inputs: The input half of its backward pass.
        weights: The weight half.
        kept: Bytes from its forward to its whole backward; 0 for the last, whose passes are one program.
        late: Bytes that the input half leaves for the weight half.
        parameters: Bytes of carried state that tasks or loops read.
        optimizer_state: Bytes of other carried state.
        inputs_held: Bytes of what else the step is given.
        gradients: Bytes of what the loop adds up.
        sent: Bytes to other layers, by their numbers, in the forward pass.
        sent_back: The same in the backward pass.
    """

    forward: PassCost = field(default_factory=PassCost)
    inputs: PassCost = field(default_factory=PassCost)
    weights: PassCost = field(default_factory=PassCost)
    kept: float = 0.0
    late: float = 0.0
    parameters: float = 0.0
    optimizer_state: float = 0.0
    inputs_held: float = 0.0
    gradients: float = 0.0
    sent: dict[int, float] = field(default_factory=dict)
    sent_back: dict[int, float] = field(default_factory=dict)


def layer_costs(step: Step, placement: Placement, segments: Segments) -> list[LayerCost]:
    """The costs of each stage of the loop that has most to do, in order.

    Raises:
        ValueError: If no stage stands in a microbatch loop.
    """
    index = _largest_loop(step)
    region = step.regions[index]
    first = [each for each in segments.by_region[index] if each.variant == 0]
    stages, others, number = _numbered(first, segments)
    found = [LayerCost() for _ in stages]
    programs = [(each, at) for at, stage in enumerate(stages) for each in _programs(stage)]
    programs += [(each, number[each.submesh]) for each in others if each.submesh in number]
    for each, at in programs:
        for half in halves_of(each, region, segments) if each.backward else [each]:
            for op in half.ops:
                _pass_of(found[at], op, half.part).add(op.eqn)
    kept, _ = activation_bytes(stages, region, segments, split=False)
    _, late = activation_bytes(stages, region, segments, split=True)
    for cost, whole, left in zip(found, kept, late, strict=True):
        cost.kept, cost.late = whole, left
    _add_state(found, step, placement, segments, number)
    for total, _ in region.sums:
        for where in segments.made_on.get(total, ()):
            if where in number:
                found[number[where]].gradients += num_bytes(total)
    _add_edges(found, region.ops, first, segments, number)
    return found


def middle_layer(step: Step, segments: Segments) -> tuple[int, list[Segment], frozenset[Var]]:
    """A layer between others if there are three: its number, the programs of its passes, and what is summed of these.

    Raises:
        ValueError: If no stage stands in a microbatch loop.
    """
    index = _largest_loop(step)
    first = [each for each in segments.by_region[index] if each.variant == 0]
    stages, _, _ = _numbered(first, segments)
    # The passes of the last one are one program.
    number = (len(stages) - 1) // 2
    return number, list(_programs(stages[number])), frozenset(result for _, result in step.regions[index].sums)


def _largest_loop(step: Step) -> int:
    loops = [index for index, region in enumerate(step.regions) if region.loop is not None]
    if not loops:
        raise ValueError("no layer stands in a microbatch loop")
    return max(loops, key=lambda each: sum(_cost.flops(op.eqn) for op in step.regions[each].ops))


def _numbered(first: list[Segment], segments: Segments) -> tuple[Sequence[Stage], Sequence[Segment], dict[int, int]]:
    """The stages of a loop, its other programs, and the number of each stage by its submesh."""
    stages, others = pipeline_stages(first, dependencies(first, segments.made_on))
    return stages, others, {stage.forward.submesh: position for position, stage in enumerate(stages)}


@dataclass
class LayerCut:
    """A dimension class of one layer, which a mesh axis may cut.

    Attributes:
        layer: The layer.
        divides: The number that the size of the axis must divide.
        products: The share of the operations of the layer's products that have it.
        parameters: The share of the bytes of its parameters.
        kept: The share of the bytes of what it keeps for the backward pass.
        names: The logical names that constraints give it.
        places: Where the program makes it, as of `DimensionClass`.
        made: The innermost expressions that make it.
    """

    layer: int
    divides: int
    products: float
    parameters: float
    kept: float
    names: list[str]
    places: list[tuple[ValuePlace, ...]]
    made: list[Frame]


def layer_cuts(step: Step, placement: Placement, segments: Segments) -> tuple[list[LayerCut], list[str]]:
    """The dimension classes of each layer, in order, and the logical names of what is none.

    Raises:
        ValueError: If no stage stands in a microbatch loop.
    """
    index = _largest_loop(step)
    ops = step.regions[index].ops
    first = [each for each in segments.by_region[index] if each.variant == 0]
    _, _, number = _numbered(first, segments)

    def layer_of(op: Op) -> int:
        return next((number[where] for where in placement.of[op] if where in number), -1)

    found = dimension_classes(step, index, layer_of)
    of_layer: dict[int, set[Var]] = defaultdict(set)
    kept: dict[int, set[Var]] = defaultdict(set)
    carried = (var for position, var in enumerate(step.invars) if position in step.carried and var.aval.shape)
    read = {var for op in ops for var in op.reads()}
    later = {var for op in ops if op.backward for var in op.reads()}
    for var in carried:
        where = placement.homes.get(var)
        if where in number and var in read:
            of_layer[number[where]].add(var)
    for op in ops:
        if not op.backward:
            kept[layer_of(op)].update(later.intersection(op.writes()))
    cuts = [
        LayerCut(
            layer,
            each.divides,
            products / found.flops[layer],
            _share(each.values, of_layer[layer]),
            _share(each.values, kept[layer]),
            sorted(each.names),
            each.places,
            each.made,
        )
        for each in found.classes
        for layer, products in each.flops.items()
        if products
    ]
    return sorted(cuts, key=lambda each: (each.layer, -each.products)), sorted(found.astray)


def _share(part: set[Var], whole: set[Var]) -> float:
    size = sum(map(num_bytes, whole))
    return sum(map(num_bytes, part & whole)) / size if size else 0.0


def row_names(ops: Iterable[Op], rows: int) -> list[str]:
    """The logical names that constraints of a loop give the rows of a microbatch, where these come first.

    Args:
        ops: The equations of the loop.
        rows: How many rows a microbatch has. A name that is given a first dimension of another size is none of rows.
    """
    sizes: dict[str, set[int]] = {}
    for eqn in _compat.every_equation(op.eqn for op in ops):
        if eqn.primitive is constraint_p and eqn.params["names"]:
            leading = eqn.params["names"][0]
            for name in leading if isinstance(leading, tuple) else (leading,):
                if isinstance(name, str):
                    sizes.setdefault(name, set()).add(eqn.invars[0].aval.shape[0])
    return sorted(name for name, seen in sizes.items() if seen == {rows})


def _programs(stage: Any) -> Sequence[Any]:
    return (stage.forward, *stage.backward, *stage.weights)


def _pass_of(cost: LayerCost, op: Op, part: str) -> PassCost:
    if part == "W":
        return cost.weights
    return cost.inputs if op.backward else cost.forward


def _add_state(
    found: list[LayerCost], step: Step, placement: Placement, segments: Segments, number: dict[int, int]
) -> None:
    read = segments.read_by_model(step)
    for position, var in enumerate(step.invars):
        where = placement.homes.get(var)
        if where is None or where not in number or not var.aval.shape:
            continue
        cost = found[number[where]]
        if position not in step.carried:
            cost.inputs_held += num_bytes(var)
        elif var in read:
            cost.parameters += num_bytes(var)
        else:
            cost.optimizer_state += num_bytes(var)


def _add_edges(
    found: list[LayerCost], ops: Sequence[Op], programs: Sequence[Any], segments: Segments, number: dict[int, int]
) -> None:
    made = {var: op.backward for op in ops for var in op.writes()}
    sizes: dict[tuple[int, int, bool], dict[Var, int]] = defaultdict(dict)
    for each in programs:
        for var in each.reads:
            places = segments.made_on.get(var, ())
            if var in made and places and each.submesh not in places and places[0] in number and each.submesh in number:
                sizes[number[places[0]], number[each.submesh], made[var]][var] = num_bytes(var)
    for (source, target, backward), values in sizes.items():
        sent = found[source].sent_back if backward else found[source].sent
        sent[target] = sent.get(target, 0.0) + sum(values.values())
