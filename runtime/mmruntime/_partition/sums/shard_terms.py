"""Shard terms: a sum over a dimension that mesh axes cut, as one term for each of its shards.

Where examples are cut over devices, the gradient of a weight is a contraction over them: each device computes the term
of its own examples, and an all-reduce adds the terms up. What comes between the contraction and an accumulator is
linear, so that it may be done to each term, and the terms be added up later. A value in terms has a new leading
dimension with one entry for each shard, which the same axes cut:

    dot_general(x, dy)       ->  vmap(dot_general)(x in shards, dy in shards)
    transpose(g), g / count  ->  vmap of the same
    g + h                    ->  the sum of their terms; a value without terms is the first one, beside zeros

This is how a contraction is computed anyway, so that nothing needs to be known about the user's function.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._core.logical_axes import entry_names, spec_axes
from mmruntime._jaxpr.ir import abstract
from mmruntime._jaxpr.primitives import factors, is_constraint, linear_in
from mmruntime._jaxpr.rewrite import inlined, run_scan
from mmruntime._partition.layouts.propagate import PropagatedLayouts
from mmruntime._partition.tracing.own_meshes import border_shardings

Axes = tuple[str, ...]
Spec = PartitionSpec | None

# Add up over dimensions of their operands.
_CONTRACTIONS = frozenset(("reduce_sum", "dot_general", "conv_general_dilated", "scatter-add"))
# They are linear, but no rule says how their terms are laid out.
_NOT_IN_TERMS = frozenset(("conj", "conv_general_dilated", "dynamic_update_slice", "reduce_precision", "scatter-add"))
# The axes of a carried value of a loop, before they are known.
_ANY: Axes = ("*",)


@dataclass(frozen=True)
class LaidOutBody:
    """Equations and what is known about the layout of their values.

    Attributes:
        like: An open jaxpr, to make others of.
        eqns: The equations.
        laid_out: The same equations, with constraints in mesh axes.
        specs: The layouts of the variables that they read from outside; None where nothing decides one.
        mesh: Where they run.
        widens: Axes over which a value may be in terms that a constraint cuts over the same axes; each term is as large
            as the value.
        known: Layouts that were found before; bodies that are alike share them.
    """

    like: Any
    eqns: Sequence[Any]
    laid_out: Sequence[Any]
    specs: Mapping[Var, Spec]
    mesh: Mesh
    widens: Collection[str] = ()
    known: PropagatedLayouts = field(default_factory=PropagatedLayouts)


class ShardTerms:
    """Which variables of a body can be given in terms, and the equations that do so.

    Args:
        body: The equations.
        wanted: Variables to give in terms, where possible. Outside of the body nothing else reads them.
        outside: Other variables that are read outside of the body.
        given: Variables that the equations read in terms, and their axes.
        specs: Layouts of operands, if they are known from another try.

    Attributes:
        axes: The variables that can be given in terms, and the axes over which each is cut.
        sums: Equations behind the other wanted variables that add up over axes.
    """

    def __init__(
        self,
        body: LaidOutBody,
        wanted: Collection[Var],
        outside: Collection[Var],
        given: Mapping[Var, Axes] | None = None,
        specs: Mapping[Var, Spec] | None = None,
    ) -> None:
        self.body = body
        self.wanted = set(wanted)
        self.given = dict(given or {})
        self.reads = Counter(var for eqn in body.eqns for var in eqn.invars if is_var(var))
        self.reads.update(outside)
        self.specs = _operand_specs(body, wanted) if specs is None else specs
        cuts = [_cut(eqn, [self._spec(atom) for atom in eqn.invars], body.mesh) for eqn in body.eqns]
        self._cuts = {index: cut for index, cut in enumerate(cuts) if cut is not None}
        self._calls: dict[int, _CallInTerms] = {}
        self._tried: dict[Any, _CallInTerms] = {}
        self.axes: dict[Var, Axes] = {}
        barred: set[Var] = set()
        while misfits := self._settle(barred):
            barred |= misfits

    @property
    def sums(self) -> list[Any]:
        """Equations that add up over axes, behind those wanted variables that are not in terms."""
        made = {var: index for index, eqn in enumerate(self.body.eqns) for var in eqn.outvars if is_var(var)}
        found: dict[int, list[Any]] = {}
        reached = [var for var in self.wanted if var not in self.axes and var in made]
        while reached:
            index = made[reached.pop()]
            eqn = self.body.eqns[index]
            if index in found:
                continue
            found[index] = []
            if index in self._cuts or self._adds_up(eqn):
                found[index] = [eqn]
            elif _bodies(eqn) is not None:
                positions = tuple(position for position, var in enumerate(eqn.outvars) if is_var(var))
                call = _CallInTerms.of(eqn, self.body.laid_out[index], positions, {}, self.body, self.specs)
                found[index] = call.found.sums if not call.axes else [eqn]
            else:
                reached += [var for var in _linear_operands(eqn) if is_var(var) and var in made]
        return [eqn for index in sorted(found) for eqn in found[index]]

    def _spec(self, atom: Atom) -> Spec:
        return self.specs.get(atom) if is_var(atom) else None

    def _asked(self, barred: Collection[Var]) -> set[Var]:
        """Variables that may be in terms because all that read them take terms."""
        asked: set[Var] = set()
        takers = Counter[Var]()
        for index, eqn in reversed(list(enumerate(self.body.eqns))):
            outs = [var for var in eqn.outvars if is_var(var) and self._is_asked(var, takers, barred)]
            if _bodies(eqn) is None and len(outs) < sum(map(is_var, eqn.outvars)):
                continue
            asked.update(outs)
            if outs and eqn.primitive is _compat.jit_p:
                # Whether it takes them is seen when its body is tried.
                takers.update(var for var in eqn.invars if is_var(var))
            elif outs and index not in self._cuts:
                takers.update(var for var in _linear_operands(eqn) if is_var(var))
            elif outs and (added := self._cuts[index].added) is not None and is_var(eqn.invars[added]):
                takers[eqn.invars[added]] += 1
        return asked | {var for var in self.given if self._is_asked(var, takers, barred)}

    def _is_asked(self, var: Var, takers: Counter[Var], barred: Collection[Var]) -> bool:
        return var not in barred and takers[var] == self.reads[var] and (var in self.wanted or takers[var] > 0)

    def _settle(self, barred: Collection[Var]) -> set[Var]:
        """Decide the axes of each variable, from the first equation to the last.

        Returns:
            Variables that cannot be in terms after all, as an equation that reads them does not give terms.
        """
        asked = self._asked(barred)
        self.axes = {var: axes for var, axes in self.given.items() if var in asked}
        for index, eqn in enumerate(self.body.eqns):
            outs = [var for var in eqn.outvars if is_var(var) and var in asked]
            if not outs:
                continue
            bodies = _bodies(eqn)
            if bodies is not None:
                positions = tuple(position for position, var in enumerate(eqn.outvars) if var in asked)
                given = {k: self.axes[var] for k, var in enumerate(eqn.invars) if is_var(var) and var in self.axes}
                key = (index, positions, tuple(given.items()))
                if key not in self._tried:
                    laid_out = self.body.laid_out[index]
                    self._tried[key] = _CallInTerms.of(eqn, laid_out, positions, given, self.body, self.specs)
                call = self._calls[index] = self._tried[key]
                if call.untaken:
                    return {eqn.invars[position] for position in call.untaken}
                self.axes.update((eqn.outvars[position], axes) for position, axes in call.axes.items())
                continue
            operands = {atom for atom in eqn.invars if is_var(atom) and atom in self.axes}
            axes = self._axes_of_result(index, eqn)
            if axes is not None:
                self.axes.update(dict.fromkeys(outs, axes))
            elif operands:
                return operands
        return set()

    def _axes_of_result(self, index: int, eqn: Any) -> Axes | None:
        """The axes of an equation's result; None if it cannot be given in terms."""
        found = [self.axes[atom] if is_var(atom) and atom in self.axes else None for atom in eqn.invars]
        if index in self._cuts:
            cut = self._cuts[index]
            whole = all(axes is None for position, axes in enumerate(found) if position != cut.added)
            added = None if cut.added is None else found[cut.added]
            return cut.axes if whole and added in (None, _ANY, cut.axes) else None
        operands = {position for position, axes in enumerate(found) if axes is not None}
        # In one operand of a product, or in several of a sum.
        linear = any(operands and operands <= {*group} for group in _groups(eqn))
        known = {axes for axes in found if axes not in (None, _ANY)}
        if not linear or len(known) > 1:
            return None
        axes = next(iter(known), _ANY)
        if is_constraint(eqn.primitive.name) and set(axes) & set(self._constrained(index)) - set(self.body.widens):
            return None
        return axes

    def _constrained(self, index: int) -> Iterator[str]:
        """The axes of a constraint."""
        sharding = self.body.laid_out[index].params.get("sharding")
        yield from spec_axes(sharding.spec) if isinstance(sharding, NamedSharding) else ()

    def _adds_up(self, eqn: Any) -> bool:
        """Whether an axis cuts an operand and not the result, as far as layouts are known."""
        axes = {name for atom in eqn.invars for name in spec_axes(self._spec(atom) or ())}
        left = {name for var in eqn.outvars for name in spec_axes(self._spec(var) or ())}
        return any(self.body.mesh.shape.get(name, 1) > 1 for name in axes - left)

    def rewritten(self, order: Iterable[int] | None = None) -> tuple[list[list[Any]], dict[Var, Var]]:
        """The body with all of `axes` in terms.

        Args:
            order: The indices of the equations in the order in which they will stand: an operand that several share is
                cut with the first of them. As they are in the body, if left out.

        Returns:
            For each equation those that take its place; and the variables that take the place of others.
        """
        terms = {
            var: _compat.new_var(_aval((self._count(axes), *var.aval.shape), var.aval.dtype))
            for var, axes in self.axes.items()
        }
        result = [[eqn] for eqn in self.body.eqns]
        shards: dict[Any, Var] = {}
        for index in range(len(result)) if order is None else order:
            (eqn,) = result[index]
            if not any(var in terms for var in eqn.outvars):
                continue
            if index in self._calls:
                result[index] = self._calls[index].rewritten(terms)
            else:
                result[index] = self._equation(index, eqn, terms, shards)
        return result, terms

    def _count(self, axes: Axes) -> int:
        return math.prod(self.body.mesh.shape[axis] for axis in axes)

    def _equation(self, index: int, eqn: Any, terms: Mapping[Var, Var], shards: dict[Any, Var]) -> list[Any]:
        """The equations that give an equation's results in terms; adds the operands that they cut to `shards`."""
        made = [var for var in eqn.outvars if var in terms]
        axes = self.axes[made[0]]
        outvars = [terms.get(var, var) if is_var(var) else var for var in eqn.outvars]
        if is_constraint(eqn.primitive.name):
            spec = self._spec_of_terms(index, axes)
            return _traced(lambda value: [self._laid_out(value, spec)], [terms[eqn.invars[0]]], outvars, eqn)
        cut = self._cuts.get(index)
        # What is added to terms is the first of them; factors stay as they are.
        together = next((group for group in _groups(eqn) if len(group) > 1), ()) if cut is None else ()
        operands: list[Atom] = []
        mapped: list[int | None] = []
        before: list[Any] = []
        for position, atom in enumerate(eqn.invars):
            prepare: Callable[[Any], Any] | None = None
            key: Any = None
            if is_var(atom) and atom in terms:
                atom = terms[atom]
            elif cut is not None and cut.dims[position]:
                dims, sizes = cut.dims[position], cut.sizes
                key, prepare = (id(atom), dims, axes), functools.partial(_in_shards, dims=dims, sizes=sizes)
            elif position in together or (cut is not None and position == cut.added):
                key, prepare = (id(atom), axes), functools.partial(_as_first, count=self._count(axes))
            else:
                operands.append(atom)
                mapped.append(None)
                continue
            if prepare is not None:
                if key not in shards:
                    new, shards[key] = self._prepared(prepare, atom, axes, eqn)
                    before += new
                atom = shards[key]
            operands.append(atom)
            mapped.append(0)

        if eqn.primitive.name == "conv_general_dilated" and cut is not None:
            # In one program for all shards it would be a convolution of groups of features, which XLA gathers.
            return [*before, *self._by_hand(eqn, operands, outvars, axes)]

        def compute(*values: Any) -> list[Any]:
            results = jax.vmap(lambda *each: eqn.primitive.bind(*each, **eqn.params), in_axes=tuple(mapped))(*values)
            results = results if eqn.primitive.multiple_results else [results]
            return results if cut is None else [self._laid_out(each, _leading(axes, each.ndim)) for each in results]

        return [*before, *_traced(compute, operands, outvars, eqn)]

    def _by_hand(self, eqn: Any, operands: Sequence[Atom], outvars: Sequence[Any], axes: Axes) -> list[Any]:
        """The equations that compute each term on its own shard, of operands in shards."""

        def one(*values: Any) -> Any:
            return eqn.primitive.bind(*[value[0] for value in values], **eqn.params)[None]

        def compute(*values: Any) -> list[Any]:
            specs = tuple(PartitionSpec(axes) for _ in values)
            mapped = jax.shard_map(
                one, mesh=self.body.mesh, in_specs=specs, out_specs=PartitionSpec(axes), axis_names=set(axes)
            )
            return [mapped(*values)]

        return _traced(compute, operands, outvars, eqn)

    def _prepared(self, prepare: Callable[[Any], Any], atom: Atom, axes: Axes, eqn: Any) -> tuple[list[Any], Var]:
        """The equations that cut an operand, or extend it, and their result."""

        def compute(value: Any) -> list[Any]:
            result = prepare(value)
            return [self._laid_out(result, _leading(axes, result.ndim))]

        shape = jax.eval_shape(compute, abstract(atom))[0]
        target = _compat.new_var(_aval(tuple(shape.shape), shape.dtype))
        return _traced(compute, [atom], [target], eqn), target

    def _laid_out(self, value: Any, spec: PartitionSpec) -> Any:
        return jax.lax.with_sharding_constraint(value, NamedSharding(self.body.mesh, spec))

    def _spec_of_terms(self, index: int, axes: Axes) -> PartitionSpec:
        """What a constraint says about each term, but for the axes that cut the terms."""
        sharding = self.body.laid_out[index].params["sharding"]
        rank = len(self.body.eqns[index].outvars[0].aval.shape)
        entries = [*sharding.spec, *[None] * (rank - len(sharding.spec))]
        free = self.body.laid_out[index].params.get("unconstrained_dims", ())
        kept: list[Any] = []
        for dim, entry in enumerate(entries):
            rest = tuple(name for name in entry_names(entry) if name not in axes and name in self.body.mesh.shape)
            is_free = dim in free or entry is PartitionSpec.UNCONSTRAINED
            kept.append(PartitionSpec.UNCONSTRAINED if is_free else rest or None)
        return PartitionSpec(axes, *kept)


@dataclass(frozen=True)
class _ShardCut:
    """How a contraction is cut into shards.

    Attributes:
        axes: The axes that cut it.
        dims: For each operand the dimensions that are cut, outermost axes first; none for one that is taken whole.
        sizes: The number of shards along each of these dimensions.
        added: The operand that is added to the sum, if any.
    """

    axes: Axes
    dims: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    added: int | None = None


def _cut(eqn: Any, specs: Sequence[Spec], mesh: Mesh) -> _ShardCut | None:
    """How an equation adds up over dimensions that mesh axes cut; None if it does not, or in another way."""
    name = eqn.primitive.name
    if name not in _CONTRACTIONS:
        return None
    added = 0 if name == "scatter-add" else None
    together = [each.ins for each in factors(eqn) if not each.outs]
    sizes: list[int] = []
    axes: list[str] = []
    dims: list[list[int]] = [[] for _ in specs]
    for each in together:
        entries = {_cutting(specs[position], dim, mesh) for position, dim in each.items()} - {()}
        if not entries:
            continue
        if len(entries) > 1:
            return None
        (entry,) = entries
        count = math.prod(mesh.shape[axis] for axis in entry)
        axes += entry
        sizes.append(count)
        for position, dim in each.items():
            if eqn.invars[position].aval.shape[dim] % count:
                return None
            dims[position].append(dim)
    if not axes or len(set(axes)) < len(axes):
        return None
    # An axis that cuts what is summed and, in the other operand, what is not: XLA moves one of them first.
    for spec, own in zip(specs, dims, strict=True):
        for dim in range(len(spec or ())):
            if dim not in own and set(_cutting(spec, dim, mesh)) & set(axes):
                return None
    return _ShardCut(tuple(axes), tuple(map(tuple, dims)), tuple(sizes), added)


def _cutting(spec: Spec, dim: int, mesh: Mesh) -> Axes:
    """The axes of more than one device that cut a dimension."""
    names = entry_names(spec[dim]) if spec is not None and dim < len(spec) else ()
    return tuple(name for name in names if mesh.shape[name] > 1)


def _linear_operands(eqn: Any) -> Sequence[Atom]:
    """The operands that an equation may take in terms."""
    return [eqn.invars[position] for group in _groups(eqn) for position in group]


def _groups(eqn: Any) -> list[tuple[int, ...]]:
    """Operands in which an equation is linear together, if it may take them in terms."""
    name = eqn.primitive.name
    if name in _NOT_IN_TERMS:
        return []
    if name == "pad":
        return [(0,)] if _is_zero(eqn.invars[1]) else []
    # To integers they round.
    is_exact = name not in ("convert_element_type", "div") or jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    return linear_in(eqn) if is_exact else []


def _is_zero(atom: Atom) -> bool:
    return not is_var(atom) and not np.any(np.asarray(atom.val))


def _operand_specs(body: LaidOutBody, wanted: Collection[Var]) -> dict[Var, Spec]:
    """Layouts around all equations between wanted variables and the contractions that they come from."""
    specs = dict(body.specs)
    if body.mesh.size == 1:
        return specs
    reached = set(wanted)
    asked: dict[Var, None] = {}
    may_add_up = False
    for eqn in reversed(body.eqns):
        if reached.isdisjoint(eqn.outvars):
            continue
        may_add_up = may_add_up or eqn.primitive.name in _CONTRACTIONS or _bodies(eqn) is not None
        asked.update(dict.fromkeys(var for var in (*eqn.invars, *eqn.outvars) if is_var(var)))
        takes = eqn.invars if eqn.primitive is _compat.jit_p else (*_linear_operands(eqn), *eqn.invars[:1])
        reached.update(atom for atom in takes if is_var(atom))
    inner = [var for var in asked if var not in specs]
    if not inner or not may_add_up:
        return specs
    invars = list(specs)
    closed = _compat.close(body.like, invars, inner, body.laid_out)
    known = [None if (spec := specs[var]) is None else NamedSharding(body.mesh, spec) for var in invars]
    ins, outs = body.known.of(closed, invars, inner, known, body.mesh)
    specs.update(zip(inner, outs, strict=True))
    specs.update((var, found) for var, found in zip(invars, ins, strict=True) if specs[var] is None)
    return specs


def _bodies(eqn: Any) -> Any:
    """The jaxpr that a call computes once, or a scan for each slice; None for any other equation."""
    name = eqn.primitive.name
    if eqn.effects or name not in (_compat.jit_p.name, _compat.remat_p.name, _compat.scan_p.name):
        return None
    inner, consts = _compat.split(eqn.params["jaxpr"])
    if consts or inner.constvars or any(each is not None for each in border_shardings(eqn)[1]):
        return None
    return inner


@dataclass(frozen=True)
class _CallInTerms:
    """An equation with a body, some of whose results are given in terms.

    Attributes:
        eqn: The equation.
        inner: Its body.
        axes: The axes of these results, by position.
        found: What is in terms in the body.
        carried: Of a scan, how many constants come first, and how many values are carried.
        untaken: Positions of operands that are in terms and cannot be.
    """

    eqn: Any
    inner: Any
    axes: Mapping[int, Axes]
    found: ShardTerms
    carried: tuple[int, int]
    untaken: Collection[int]

    @staticmethod
    def of(
        eqn: Any,
        laid_out: Any,
        wanted: Sequence[int],
        taken: Mapping[int, Axes],
        around: LaidOutBody,
        specs: Mapping[Var, Spec],
    ) -> _CallInTerms:
        """The call with these operands in terms, and as many of the wanted results in terms as can be."""
        inner, laid = _bodies(eqn), _bodies(laid_out)
        is_scan = eqn.primitive is _compat.scan_p
        num_consts, num_carry = _compat.scan_counts(eqn) if is_scan else (0, 0)
        inner_specs: dict[Var, Spec] = {}
        for position, (var, atom) in enumerate(zip(inner.invars, eqn.invars, strict=True)):
            spec = specs.get(atom) if is_var(atom) else None
            carry = position - num_consts
            if is_scan and carry >= num_carry:
                # A slice of each layer; a stack that is itself cut over devices is gathered first.
                spec = None if spec is None else PartitionSpec(*spec[1:])
            elif is_scan and carry >= 0 and not spec and is_var(eqn.outvars[carry]):
                spec = specs.get(eqn.outvars[carry])
            inner_specs[var] = spec
        body = replace(around, like=inner, eqns=inner.eqns, laid_out=laid.eqns, specs=inner_specs)
        carries = inner.invars[num_consts : num_consts + num_carry]
        known: Mapping[Var, Spec] | None = None
        kept = dict.fromkeys(wanted, _ANY)
        while True:
            outs = inner.outvars
            outside = [atom for position, atom in enumerate(outs) if position not in kept and is_var(atom)]
            given = {carries[position]: axes for position, axes in kept.items() if position < num_carry}
            given |= {inner.invars[position]: axes for position, axes in taken.items()}
            found = ShardTerms(body, [outs[p] for p in kept if is_var(outs[p])], outside, given, known)
            known = found.specs
            fit = {}
            for position in kept:
                axes = found.axes.get(outs[position], _ANY) if is_var(outs[position]) else _ANY
                is_taken = position >= num_carry or carries[position] in found.axes
                if axes != _ANY and is_taken:
                    fit[position] = axes
            if fit == kept or not fit:
                untaken = [position for position in taken if inner.invars[position] not in found.axes]
                return _CallInTerms(eqn, inner, fit, found, (num_consts, num_carry), untaken)
            kept = fit

    def rewritten(self, outer: Mapping[Var, Var]) -> list[Any]:
        """The equations that take the place of the call, given the variables that take the place of its results."""
        eqns, terms = self.found.rewritten()
        flat = [new for each in eqns for new in each]
        outs = [terms[atom] if position in self.axes else atom for position, atom in enumerate(self.inner.outvars)]
        outvars = [outer.get(var, var) if is_var(var) else var for var in self.eqn.outvars]
        invars = [terms.get(var, var) for var in self.inner.invars]
        operands = [outer.get(atom, atom) if is_var(atom) else atom for atom in self.eqn.invars]
        if self.eqn.primitive is not _compat.scan_p:
            body = _compat.map_jaxprs(
                self.eqn.params["jaxpr"], lambda inner: inner.replace(invars=invars, eqns=flat, outvars=outs)
            )
            params = {**self.eqn.params, "jaxpr": body}
            return [self.eqn.replace(invars=operands, params=params, outvars=outvars)]
        num_consts, num_carry = self.carried
        first_slice = num_consts + num_carry
        compute = _compat.as_fun(_compat.close(self.inner, invars, outs, flat))
        params = self.eqn.params
        counts = {p: self.found._count(axes) for p, axes in self.axes.items() if p < num_carry}

        options = {name: params[name] for name in ("length", "reverse", "unroll")}

        def scan(*args: Any) -> list[Any]:
            first = list(args[num_consts:first_slice])
            for position, count in counts.items():
                first[position] = _as_first(first[position], count)
            carry, stacks = run_scan(compute, args[:num_consts], first, args[first_slice:], **options)
            for position in self.axes:
                if position >= num_carry:
                    # Layers come first, shards behind them.
                    stacks[position - num_carry] = jnp.moveaxis(stacks[position - num_carry], 0, 1)
            return [*carry, *stacks]

        return _traced(scan, self.eqn.invars, outvars, self.eqn)


def reduced(terms: Var, total: Var, layout: NamedSharding | None) -> list[Any]:
    """Equations that add up the terms of a value, which is to have a layout, if any."""

    def add_up(value: Any) -> list[Any]:
        summed = jax.lax.reduce(value, np.zeros((), value.dtype), jax.lax.add, (0,)).astype(total.aval.dtype)
        return [summed if layout is None else jax.lax.with_sharding_constraint(summed, layout)]

    return _traced(add_up, [terms], [total], None)


_aval = functools.lru_cache(maxsize=1024)(_compat.array_aval)


def _leading(axes: Axes, rank: int) -> PartitionSpec:
    """The layout of terms: the leading dimension over the axes, the others as XLA will have them."""
    return PartitionSpec(axes, *[PartitionSpec.UNCONSTRAINED] * (rank - 1))


def _in_shards(value: Any, dims: Sequence[int], sizes: Sequence[int]) -> Any:
    """An array with these dimensions cut into so many shards each, in one new leading dimension."""
    shape: list[int] = []
    front: list[int] = []
    for dim, size in enumerate(value.shape):
        if dim in dims:
            count = sizes[dims.index(dim)]
            front.append(len(shape))
            shape += [count, size // count]
        else:
            shape.append(size)
    order = [front[sorted(dims).index(dim)] for dim in dims]
    cut = jnp.moveaxis(value.reshape(shape), order, range(len(order)))
    return cut.reshape(-1, *cut.shape[len(order) :])


def _as_first(value: Any, count: int) -> Any:
    """A value as the first of so many terms, beside zeros."""
    value = jnp.asarray(value)
    number = jax.lax.broadcasted_iota(jnp.int32, (count, *[1] * value.ndim), 0)
    return jnp.where(number == 0, value[None], jnp.zeros((), value.dtype))


def _traced(
    compute: Callable[..., list[Any]], operands: Sequence[Atom], outvars: Sequence[Any], like: Any
) -> list[Any]:
    """The equations of a function, in the place of another equation."""
    with _compat.no_mesh():
        inner, consts = _compat.split(jax.make_jaxpr(compute)(*map(abstract, operands)))
    assert not consts, "all that it reads is an operand"
    if like is None:
        like = inner.eqns[0]
    eqns = inlined(inner, operands, outvars, like)
    return [eqn.replace(source_info=like.source_info) for eqn in eqns]
