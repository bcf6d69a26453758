"""Cut conditionals over values of several submeshes into one for each place and level of crossings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._jaxpr.effects import runs_once
from mmruntime._jaxpr.ir import is_tiny
from mmruntime._jaxpr.rewrite import fresh, has_effects, needed, trace_equations
from mmruntime._partition.placement.locations import SCALARS, CannotCutError, Key, Locations


@dataclass(eq=False)
class _Branch:
    """A branch of a conditional, cut.

    Attributes:
        invars: Its arguments.
        eqns: Its equations, in order, without those that nothing needs.
        outs: Its results.
        keys: Where each equation runs; None for those that run wherever they are read.
        levels: For each equation and place, the number of crossings before it.
    """

    invars: list[Var]
    eqns: list[Any]
    outs: list[Any]
    keys: dict[int, Key] = field(default_factory=dict)
    levels: dict[tuple[int, Key], int] = field(default_factory=dict)
    producer: dict[Var, int] = field(default_factory=dict)

    def level(self, atom: Atom, key: Key) -> int:
        """The first level at which a place can read a value."""
        number = self.producer.get(atom) if is_var(atom) else None
        if number is None:
            return 0
        if (number, key) in self.levels:
            return self.levels[number, key]
        return min(level for (other, _), level in self.levels.items() if other == number) + 1

    def made_at(self, var: Var, key: Key) -> tuple[int, Key]:
        """The level and the place from which a place reads a value that an equation gives."""
        number = self.producer[var]
        if (number, key) in self.levels:
            return self.levels[number, key], key
        own = next(each for other, each in self.levels if other == number)
        return self.levels[number, own], own


def cut_cond(eqn: Any, locations: Locations) -> list[tuple[Any, Key]]:
    """The conditionals that one is cut into, each with its place; none if it is not cut."""
    predicate, *operands = eqn.invars
    branches = []
    for closed in eqn.params["branches"]:
        inner, consts = _compat.split(closed)
        if consts:
            raise CannotCutError
        invars, eqns, outs = fresh(inner)
        for var, operand in zip(invars, operands, strict=True):
            locations.of[var] = locations.at(operand)
        eqns = [part for each in needed(eqns, outs, has_effects)[0] for part in locations.parts(each)]
        branches.append(_Branch(invars, eqns, outs))
    # Each result is in one place, whatever the branch.
    number = next(locations.numbers)
    out_keys: list[Key] = []
    for position, var in enumerate(eqn.outvars):
        found = [locations.at(branch.outs[position]) for branch in branches]
        # Where most branches have it; among two submeshes the one that needs fewer crossings.
        key: Key = None
        if not is_tiny(var):
            for each in found:
                if not isinstance(each.key, int):
                    key = locations.join(key, each.key)
        known = [each for each in found if isinstance(each.key, int) or (is_tiny(var) and each.key is not None)]
        if known:
            count = Counter(each.key for each in known)
            best = max(known, key=lambda each: (count[each.key], -each.depth)).key
            key = best if is_tiny(var) else locations.join(best, key)
        # What is computed from scalars alone is a part for itself: every submesh can run it.
        out_keys.append(key if key is not None else SCALARS if is_tiny(var) else ("result", position, number))
    out_keys = [locations.root(key) for key in out_keys]
    if len(set(out_keys)) == 1 and not any(_crosses(branch, locations) for branch in branches):
        return []
    for branch in branches:
        _find_levels(branch, out_keys, locations)
    last = [
        max(branch.level(branch.outs[position], key) for branch in branches) for position, key in enumerate(out_keys)
    ]
    for branch in branches:
        _sink(branch, out_keys, last)
    return _chunks(eqn, predicate, operands, branches, out_keys, last, locations.name)


def _crosses(branch: _Branch, locations: Locations) -> bool:
    return len({locations.at(var).key for each in branch.eqns for var in each.outvars} - {None}) > 1


def _find_levels(branch: _Branch, out_keys: Sequence[Key], locations: Locations) -> None:
    """Decide where each equation of a branch runs, and at which level."""
    branch.producer = {var: number for number, each in enumerate(branch.eqns) for var in each.outvars if is_var(var)}
    readers: dict[Var, set[Key]] = defaultdict(set)
    for atom, key in zip(branch.outs, out_keys, strict=True):
        if is_var(atom):
            readers[atom].add(key)
    places: dict[int, list[Key]] = {}
    ordered: Key = None
    for number in reversed(range(len(branch.eqns))):
        each = branch.eqns[number]
        keys = [locations.at(var).key for var in each.outvars if is_var(var)]
        key = keys[0] if keys else locations.place(each).key
        if runs_once(each) and key is None:
            key = min(set().union(*[readers[var] for var in each.outvars]) or {out_keys[0]}, key=locations.name)
        if _compat.ordered_effects(each):
            # Ordered effects stay in one part, where they keep their order.
            ordered = key = key if ordered is None else ordered
        found = (
            [key] if key is not None else sorted(set().union(*[readers[v] for v in each.outvars]), key=locations.name)
        )
        places[number] = found
        for atom in each.invars:
            if is_var(atom):
                readers[atom].update(found)
    before = 0
    for number, each in enumerate(branch.eqns):
        for key in places[number]:
            level = max((branch.level(atom, key) for atom in each.invars), default=0)
            if _compat.ordered_effects(each):
                before = level = max(level, before)
            branch.levels[number, key] = level


def _sink(branch: _Branch, out_keys: Sequence[Key], last: Sequence[int]) -> None:
    """Move equations to the level of their first reader, so that fewer values are kept between levels."""
    users: dict[tuple[Var, Key], list[int]] = defaultdict(list)
    for atom, key, level in zip(branch.outs, out_keys, last, strict=True):
        if is_var(atom):
            users[atom, key].append(level)
    for number in reversed(range(len(branch.eqns))):
        each = branch.eqns[number]
        for key in [key for other, key in branch.levels if other == number]:
            mine = [level for var in each.outvars if is_var(var) for level in users[var, key]]
            sent = any(
                (var, other) in users and (number, other) not in branch.levels
                for var in each.outvars
                if is_var(var)
                for other in {other for _, other in branch.levels} | set(out_keys)
            )
            if mine and not sent and not each.effects:
                branch.levels[number, key] = max(branch.levels[number, key], min(mine))
            for atom in each.invars:
                if is_var(atom):
                    users[atom, key].append(branch.levels[number, key])


def _chunks(
    eqn: Any,
    predicate: Atom,
    operands: Sequence[Atom],
    branches: Sequence[_Branch],
    out_keys: Sequence[Key],
    last: Sequence[int],
    name: Callable[[Key], str],
) -> list[tuple[Any, Key]]:
    """One conditional for each level and place."""
    chunks = {(level, key) for branch in branches for (_, key), level in branch.levels.items()}
    chunks |= set(zip(last, out_keys, strict=True))
    order = sorted(chunks, key=lambda chunk: (chunk[0], name(chunk[1])))
    # The values of each branch that each chunk reads from another one.
    reads: list[dict[tuple[int, Key], dict[Var, tuple[int, Key]]]] = []
    for branch in branches:
        mine: dict[tuple[int, Key], dict[Var, tuple[int, Key]]] = defaultdict(dict)

        def need(atom: Atom, chunk: tuple[int, Key], branch: _Branch = branch, mine: Any = mine) -> None:
            if is_var(atom) and atom in branch.producer:
                source = branch.made_at(atom, chunk[1])
                if source != chunk:
                    mine[chunk][atom] = source

        for (number, key), level in branch.levels.items():
            for atom in branch.eqns[number].invars:
                need(atom, (level, key))
        for atom, key, level in zip(branch.outs, out_keys, last, strict=True):
            need(atom, (level, key))
        reads.append(mine)
    sent: dict[tuple[int, Var, tuple[int, Key]], Var] = {}
    for number, mine in enumerate(reads):
        for wanted in mine.values():
            for var, source in wanted.items():
                if jnp.issubdtype(var.aval.dtype, jax.dtypes.extended):
                    raise CannotCutError
                sent.setdefault((number, var, source), _compat.new_var(var.aval))
    return [
        (part, chunk[1])
        for chunk in order
        if (part := _chunk(eqn, predicate, operands, branches, out_keys, last, chunk, reads, sent)) is not None
    ]


def _chunk(
    eqn: Any,
    predicate: Atom,
    operands: Sequence[Atom],
    branches: Sequence[_Branch],
    out_keys: Sequence[Key],
    last: Sequence[int],
    chunk: tuple[int, Key],
    reads: Sequence[Any],
    sent: Any,
) -> Any:
    """The conditional of one chunk."""
    results = [position for position, key in enumerate(out_keys) if (last[position], key) == chunk]
    results = [position for position in results if is_var(eqn.outvars[position])]
    given = [item for item in sent if item[2] == chunk]
    if not results and not given and not any(_has_effects(branch, chunk) for branch in branches):
        return None
    # The arguments: operands of the whole conditional by position, then values of other chunks.
    positions: set[int] = set()
    taken: dict[tuple[int, Var], Var] = {}
    for number, branch in enumerate(branches):
        place = {var: position for position, var in enumerate(branch.invars)}
        mine = [branch.eqns[index] for (index, key), level in branch.levels.items() if (level, key) == chunk]
        atoms = [atom for each in mine for atom in each.invars] + [branch.outs[position] for position in results]
        positions.update(place[atom] for atom in atoms if is_var(atom) and atom in place)
        for var, source in reads[number].get(chunk, {}).items():
            taken[number, var] = sent[number, var, source]
    closed = []
    kept = sorted(positions)
    for number, branch in enumerate(branches):
        invars = [branch.invars[position] for position in kept]
        invars += [var if other == number else _compat.new_var(var.aval) for other, var in taken]
        eqns = [
            branch.eqns[index] for index in range(len(branch.eqns)) if branch.levels.get((index, chunk[1])) == chunk[0]
        ]
        outs = [branch.outs[position] for position in results]
        for other, var, _ in given:
            if other == number:
                outs.append(var)
            else:
                zeros, out = _zeros(var.aval)
                eqns.extend(zeros)
                outs.append(out)
        closed.append(_compat.close(_compat.split(eqn.params["branches"][number])[0], invars, outs, eqns))
    effects = frozenset[Any]().union(*[_compat.split(each)[0].effects for each in closed])
    return eqn.replace(
        invars=[predicate, *(operands[position] for position in kept), *taken.values()],
        outvars=[*(eqn.outvars[position] for position in results), *(sent[item] for item in given)],
        params={**eqn.params, "branches": tuple(closed)},
        effects=effects,
    )


def _has_effects(branch: _Branch, chunk: tuple[int, Key]) -> bool:
    return any(branch.eqns[number].effects for (number, key), level in branch.levels.items() if (level, key) == chunk)


def _zeros(aval: Any) -> tuple[list[Any], Atom]:
    """Equations that make an array of zeros, in the place of a value of a branch that is not taken."""
    out, eqns = trace_equations(lambda: jnp.zeros(aval.shape, aval.dtype), [])
    return eqns, out
