"""Dimension classes: which dimensions of a loop's forward pass a mesh axis may cut, though nothing names them.

A class holds the dimensions that run along together. An axis may cut it, as tensor parallelism does, if products with
parameters make it and others contract it, nothing else goes along it, and no value that enters or leaves a layer has
it: then each device computes its part of what lies between, from its part of the parameters, and one sum follows.

    x @ up -> gelu -> @ down        the dimension between the two products: the width of an MLP, the heads of attention
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Var, is_var
from mmruntime._frontend.constraint import constraint_p
from mmruntime._jaxpr import flops as _cost
from mmruntime._jaxpr.ir import Op, Step
from mmruntime._jaxpr.primitives import factors, leading
from mmruntime._jaxpr.rewrite import body_of_call, inlined
from mmruntime._partition.layouts.mapped_constraints import bodies

Dim = tuple[Var, int]
Frame = tuple[str, int, int, int, int]
# They make dimensions of their own, whatever they are given.
_MAKERS = ("iota", "random_bits")


@dataclass(frozen=True)
class ValuePlace:
    """Where a program has a value that has a class among its dimensions.

    Attributes:
        frame: The expression: its file, and from which line and column to which.
        dims: Of each dimension that the value has in the trace "cut", "rows" or "".
        mapped: How many `jax.vmap` are around, each of which the program sees one dimension less for.
    """

    frame: Frame
    dims: tuple[str, ...]
    mapped: int


@dataclass
class DimensionClass:
    """Dimensions that a mesh axis may cut, of one layer, or of several that read the same values.

    Attributes:
        divides: The number that the size of the axis must divide.
        values: The variables of the step that have one of the dimensions.
        flops: Operations of the products that have it, by layer.
        names: The logical names that constraints give it.
        places: Where the program makes it: for each product that does, the innermost expression that is one value, and
            those around it that have the class, too.
        made: The innermost expressions that make it, be they one value or not.
    """

    divides: int
    values: set[Var]
    flops: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    names: set[str] = field(default_factory=set)
    places: list[tuple[ValuePlace, ...]] = field(default_factory=list)
    made: list[Frame] = field(default_factory=list)


@dataclass(frozen=True)
class FoundClasses:
    """What a loop's forward pass shows.

    Attributes:
        classes: The classes that may be cut, those with most operations first; none share a value.
        flops: Operations of all products, by layer.
        astray: Logical names of dimensions that are of no such class.
    """

    classes: list[DimensionClass]
    flops: dict[int, float]
    astray: set[str]


@dataclass(frozen=True, eq=False)
class _ForwardEquation:
    eqn: Any
    callers: tuple[Any, ...]
    layer: int
    # The equations that it stands among: those of the step, or of one body of a loop.
    among: int
    times: float

    @functools.cached_property
    def chain(self) -> tuple[Frame, ...]:
        """The expressions of the program that led to it, outside of libraries, the innermost first."""
        levels = [self.eqn, *self.callers]
        own = max((k for k, each in enumerate(self.callers, 1) if _compat.is_call_of_library(each)), default=0)
        frames = (frame for each in levels[own:] for frame in _compat.own_frames(each))
        return tuple(frame for frame in frames if not _compat.is_of_a_library(frame[0]))


def dimension_classes(step: Step, index: int, layer_of: Callable[[Op], int]) -> FoundClasses:
    """The classes of the forward pass of a loop.

    Args:
        step: The placed step.
        index: The loop's region.
        layer_of: The layer that an equation of the loop is of.
    """
    return _Classes(step, index, layer_of).found()


class _Classes:
    def __init__(self, step: Step, index: int, layer_of: Callable[[Op], int]) -> None:
        region = step.regions[index]
        self._above: dict[Dim, Dim] = {}
        self._bad: set[Dim] = set()
        self._equations: list[_ForwardEquation] = []
        self._varies = set(region.slices)
        self._bodies = 0
        forward = [op for op in region.ops if not op.backward and not op.again and op.variant == 0]
        for before in step.regions[:index]:
            for op in before.ops:
                self._follow(op.eqn, op.callers, -1, 0, 1.0)
        layers = {var: layer_of(op) for op in forward for var in op.writes()}
        for op in forward:
            self._follow(op.eqn, op.callers, layer_of(op), 0, 1.0)
        # What enters the loop or leaves it or a layer is whole.
        leaving = {var for _, var in region.sums} | step.read_behind(index)
        crossing = {
            var for op in forward for var in op.reads() if layers.get(var, layer_of(op)) != layer_of(op)
        } | leaving.intersection(layers)
        for var in (*region.slices, *crossing):
            if var in self._varies:
                self._spoil((var, dim) for dim in range(len(var.aval.shape)))
        self._rows = {self._find((var, 0)) for var in region.slices if var.aval.shape}

    def _find(self, dim: Dim) -> Dim:
        path = []
        while (above := self._above.get(dim, dim)) != dim:
            path.append(dim)
            dim = above
        for each in path:
            self._above[each] = dim
        return dim

    def _tie(self, dims: Iterable[Dim]) -> None:
        first, *others = (self._find(dim) for dim in dims)
        for other in others:
            if other != first:
                self._above[other] = first

    def _spoil(self, dims: Iterable[Dim]) -> None:
        self._bad.update(dims)

    def _follow(self, eqn: Any, callers: tuple[Any, ...], layer: int, among: int, times: float) -> None:
        call = body_of_call(eqn)
        if call is not None:
            inner, _ = call
            for each in inlined(inner, eqn.invars, eqn.outvars, eqn):
                self._follow(each, (eqn, *callers), layer, among, times)
            return
        varying = [is_var(atom) and atom in self._varies for atom in eqn.invars]
        if any(varying):
            self._varies.update(var for var in eqn.outvars if is_var(var))
        self._equations.append(_ForwardEquation(eqn, callers, layer, among, times))
        if eqn.primitive in (_compat.scan_p, _compat.cond_p):
            self._follow_bodies(eqn, callers, layer, times)
        else:
            self._tie_factors(eqn)

    def _follow_bodies(self, eqn: Any, callers: tuple[Any, ...], layer: int, times: float) -> None:
        if eqn.primitive is _compat.scan_p:
            first, carried = _compat.scan_counts(eqn)
            times *= eqn.params["length"]
            for before, after in zip(eqn.invars[first : first + carried], eqn.outvars, strict=False):
                if is_var(before) and is_var(after):
                    self._tie_all(before, after, 0)
                    self._varies.update({before, after} if before in self._varies or after in self._varies else ())
        for eqns, operands, results in bodies(eqn):
            self._bodies += 1
            among = self._bodies
            for outer, inner, shift in operands:
                if is_var(outer):
                    self._varies.update([inner] if outer in self._varies else [])
                    self._tie_all(inner, outer, shift)
            for each in eqns:
                self._follow(each, callers, layer, among, times)
            for inner, outer, shift in results:
                if is_var(outer) and is_var(inner):
                    self._tie_all(inner, outer, shift)

    def _tie_all(self, inner: Var, outer: Var, shift: int) -> None:
        """Tie the dimensions of a value to the last ones of another; its further dimensions, in front, stay whole."""
        self._spoil((outer, dim) for dim in range(shift))
        for dim in range(len(inner.aval.shape)):
            self._tie([(inner, dim), (outer, dim + shift)])

    def _tie_factors(self, eqn: Any) -> None:
        covered: set[Dim] = set()
        for each in (*factors(eqn), *leading(eqn)):
            dims = [(eqn.invars[k], dim) for k, dim in each.ins.items()] + [
                (eqn.outvars[k], dim) for k, dim in each.outs.items()
            ]
            dims = [dim for dim in dims if is_var(dim[0])]
            if each.outs or eqn.primitive.name == "dot_general":
                covered.update(dims)
                if dims:
                    self._tie(dims)
        values = [atom for atom in eqn.invars if is_var(atom)]
        if eqn.primitive.name not in _MAKERS:
            values += [var for var in eqn.outvars if is_var(var)]
        self._spoil((var, dim) for var in values for dim in range(len(var.aval.shape)) if (var, dim) not in covered)

    def found(self) -> FoundClasses:
        """The classes, their operations, names and places."""
        made, contracted, flops = self._products()
        bad = {self._find(dim) for dim in self._bad if dim[0].aval.shape[dim[1]] > 1}
        dims: dict[Dim, list[Dim]] = defaultdict(list)
        for dim in {*self._above, *self._above.values()}:
            dims[self._find(dim)].append(dim)
        candidates = {}
        for root in made:
            divides = math.gcd(*(size for var, k in dims[root] if (size := var.aval.shape[k]) > 1))
            if root in contracted and root not in bad and divides > 1:
                candidates[root] = DimensionClass(divides, {var for var, _ in dims[root]})
        total: dict[int, float] = defaultdict(float)
        for each, operations in flops:
            total[each.layer] += operations
            for root in {self._find(dim) for dim in _dims(each.eqn)} & candidates.keys():
                candidates[root].flops[each.layer] += operations
        chosen: dict[Dim, DimensionClass] = {}
        taken: set[Var] = set()
        for root, found in sorted(candidates.items(), key=lambda each: -sum(each[1].flops.values())):
            if taken.isdisjoint(found.values):
                taken |= found.values
                chosen[root] = found
        astray = self._name(chosen)
        self._place(chosen, made)
        return FoundClasses(list(chosen.values()), dict(total), astray)

    def _products(self) -> tuple[dict[Dim, list[_ForwardEquation]], set[Dim], list[tuple[_ForwardEquation, float]]]:
        """The products that make each class, the classes that some contract, and all products with their operations."""
        made: dict[Dim, list[_ForwardEquation]] = defaultdict(list)
        contracted: set[Dim] = set()
        flops = []
        for each in self._equations:
            eqn = each.eqn
            if eqn.primitive.name != "dot_general" or each.layer < 0:
                continue
            flops.append((each, _cost.flops(eqn) * each.times))
            varying = [is_var(atom) and atom in self._varies for atom in eqn.invars]
            with_parameter = sum(varying) == 1
            for factor in factors(eqn):
                dims = [(eqn.invars[k], dim) for k, dim in factor.ins.items() if is_var(eqn.invars[k])]
                if not factor.outs and with_parameter:
                    contracted.update(map(self._find, dims))
                elif not factor.outs:
                    # Of two values, as in the scores of attention: a sum would have to follow at once.
                    self._spoil(dims)
                elif dims and len(factor.ins) == 1 and with_parameter and not varying[next(iter(factor.ins))]:
                    made[self._find(dims[0])].append(each)
        return made, contracted, flops

    def _name(self, chosen: dict[Dim, DimensionClass]) -> set[str]:
        """Note the logical names that constraints give dimensions."""
        astray = set()
        for each in self._equations:
            if each.eqn.primitive is not constraint_p or each.layer < 0:
                continue
            (var,) = each.eqn.outvars
            for dim, names in enumerate(each.eqn.params["names"]):
                for name in names if isinstance(names, tuple) else (names,):
                    found = chosen.get(self._find((var, dim)))
                    if found is not None and name is not None:
                        found.names.add(name)
                    elif name is not None:
                        astray.add(name)
        return astray

    def _place(self, chosen: dict[Dim, DimensionClass], made: dict[Dim, list[_ForwardEquation]]) -> None:
        readers: dict[Var, list[_ForwardEquation]] = defaultdict(list)
        for each in self._equations:
            for atom in each.eqn.invars:
                if is_var(atom):
                    readers[atom].append(each)
        for root, found in chosen.items():
            places = (tuple(self._places_of(each, root, readers)) for each in dict.fromkeys(made[root]))
            found.places += [each for each in dict.fromkeys(places) if each]
            found.made += dict.fromkeys(each.chain[0] for each in made[root] if each.chain)

    def _places_of(
        self, made: _ForwardEquation, root: Dim, readers: dict[Var, list[_ForwardEquation]]
    ) -> Iterator[ValuePlace]:
        """The innermost expression of the program that makes a product, and those around it, if they have the class."""
        chain, values = made.chain, list(made.eqn.outvars)
        mapped = sum(name == "vmap" for name, is_transform in _compat.scopes(made.eqn) if is_transform)
        while chain:
            value = _value_of(values, chain, made.among, readers)
            dims = () if value is None else tuple(self._said((value, dim), root) for dim in range(value.aval.ndim))
            if value is None or dims.count("cut") != 1:
                return
            yield ValuePlace(chain[0], dims, mapped)
            around = {each.chain for each in readers[value] if each.among == made.among}
            if len(around) != 1 or not _is_around((following := around.pop()), chain):
                return
            values, chain = [value], following

    def _said(self, dim: Dim, root: Dim) -> str:
        found = self._find(dim)
        return "cut" if found == root else "rows" if found in self._rows else ""


def _dims(eqn: Any) -> Iterator[Dim]:
    atoms: Sequence[Any] = (*eqn.invars, *eqn.outvars)
    return ((atom, dim) for atom in atoms if is_var(atom) for dim in range(len(atom.aval.shape)))


def _value_of(
    values: list[Var], chain: tuple[Frame, ...], among: int, readers: dict[Var, list[_ForwardEquation]]
) -> Var | None:
    """The one value that leaves an expression among those that follow from some values; None if there are several."""
    left, seen, leaving = list(values), set[Var](), set[Var]()
    while left:
        var = left.pop()
        if not is_var(var) or var in seen:
            continue
        seen.add(var)
        inside = [each for each in readers[var] if each.among == among and each.chain == chain]
        if len(inside) < len(readers[var]):
            leaving.add(var)
        for each in inside:
            left += each.eqn.outvars
    return leaving.pop() if len(leaving) == 1 else None


def _is_around(outer: tuple[Frame, ...], inner: tuple[Frame, ...]) -> bool:
    """Whether an expression holds another one of the same call."""
    if not outer or outer[1:] != inner[1:] or outer[0] == inner[0]:
        return False
    (file, *place), (own, *within) = outer[0], inner[0]
    return file == own and place[:2] <= within[:2] and within[2:] <= place[2:]
