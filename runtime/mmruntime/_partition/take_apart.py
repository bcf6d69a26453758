"""Take apart: an equation with a body, over values of several submeshes, becomes one equation for each of them.

Optimizers wrap the update of all parameters in one `lax.cond` (`optax.MultiSteps`, `apply_if_finite`), or in a loop
over a tree. Whole, it would run on one submesh, and pull all parameters and their state there. Bodies are cut by where
their operands are. Values that cross from part to part, such as a global norm, cut a conditional further, into one for
each level of crossings:

    a, b = cond(p, f, g, x, y)
    ->  n = cond(p, norm of x, 0, x)
        a = cond(p, f1, g1, x, n)
        b = cond(p, f2, g2, y, n)

Loops are cut only into parts that share nothing but scalars which each part can compute by itself. Every part computes
the same equations on the same values, so results are equal bit by bit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._jaxpr.effects import runs_once
from mmruntime._jaxpr.inline import inlined
from mmruntime._jaxpr.ir import abstract, is_tiny, num_bytes

# Where a value is: the number of a submesh, or any other object for values that lie together somewhere; None for values
# that can be computed anywhere, such as scalars made of scalars.
Key = Hashable


@dataclass(frozen=True)
class Whereabouts:
    """Where a value is.

    Attributes:
        key: The submesh, or what the value lies together with; None for anywhere.
        depth: How many crossings between submeshes come before it.
    """

    key: Key
    depth: int = 0


_ANYWHERE = Whereabouts(None)
# The part of what is computed from scalars alone.
_SCALARS = "scalars"


class _CannotCutError(Exception):
    """The body's parts depend on each other."""


@dataclass(frozen=True)
class EquationPart:
    """A part of an equation.

    Attributes:
        eqn: The equation that computes it.
        submesh: Where it runs; None where that is still open.
        gathers: Whether it holds work on arrays of several submeshes that could not be cut.
    """

    eqn: Any
    submesh: int | None
    gathers: bool


def gathers(eqn: Any) -> bool:
    """Whether an equation, if it reads arrays of several submeshes, makes their state live together.

    An equation on arrays of one shape, such as a sum of two stages' gradients of one weight, does not.
    """
    shapes = {var.aval.shape for var in _arrays((*eqn.invars, *eqn.outvars))}
    return len(shapes) > 1 or any(True for _ in _compat.inner_jaxprs(eqn))


def take_apart(eqn: Any, locate: Callable[[Var], Whereabouts]) -> list[EquationPart] | None:
    """The equations that one with a body is cut into; None where it has only one part, or cannot be cut.

    Args:
        eqn: The equation.
        locate: Where each of its operands is.
    """
    if not any(True for _ in _compat.inner_jaxprs(eqn)):
        return None
    keys = {locate(var).key for var in _arrays(eqn.invars)} - {None}
    if len(keys) < 2:
        return None
    locations = _Locations({atom: locate(atom) for atom in eqn.invars if is_var(atom)})
    parts = locations.parts(eqn)
    if len(parts) == 1 and parts[0] is eqn:
        return None
    found = []
    for part in parts:
        key = locations.root(locations.where[id(part)])
        found.append(EquationPart(part, key if isinstance(key, int) else None, key in locations.gathering))
    return found


def _arrays(atoms: Iterable[Atom]) -> list[Var]:
    return [atom for atom in atoms if is_var(atom) and not is_tiny(atom)]


def _body_of_call(eqn: Any) -> tuple[Any, list[Any]] | None:
    """The body of an equation that computes its one inner jaxpr and no more; derivatives were taken before."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        body = eqn.params.get(name)
        if body is None or not _compat.is_jaxpr(body) or eqn.primitive is _compat.scan_p:
            continue
        inner, consts = _compat.split(body)
        fits = len(inner.invars) == len(eqn.invars) and len(inner.outvars) == len(eqn.outvars)
        known = ("jit", "pjit", "closed_call", "eval_jaxpr", "core_call", "checkpoint", "remat2", "remat")
        if fits and (eqn.primitive.name in known or eqn.primitive.name.startswith("custom_")):
            return inner, consts
    return None


def _fresh(jaxpr: Any) -> tuple[list[Var], list[Any], list[Any]]:
    """The arguments, equations and results of an open jaxpr, in variables of their own.

    JAX keeps traces, so that one jaxpr object may be the body of several equations.
    """
    env: dict[Var, Var] = {var: _compat.new_var(var.aval) for var in jaxpr.invars}
    eqns = []
    for eqn in jaxpr.eqns:
        for var in eqn.outvars:
            if is_var(var):
                env[var] = _compat.new_var(var.aval)
        eqns.append(
            eqn.replace(
                invars=[env[atom] if is_var(atom) else atom for atom in eqn.invars],
                outvars=[env[var] if is_var(var) else var for var in eqn.outvars],
            )
        )
    return (
        [env[var] for var in jaxpr.invars],
        eqns,
        [env[atom] if is_var(atom) else atom for atom in jaxpr.outvars],
    )


class _Locations:
    """Where values are. Values that are computed with each other come to lie together."""

    def __init__(self, of: dict[Var, Whereabouts]) -> None:
        self.of = of
        # Where each equation runs, by its identity.
        self.where: dict[int, Key] = {}
        # Submeshes with work on arrays of several of them.
        self.gathering: set[Key] = set()
        self._parent: dict[Key, Key] = {}

    def root(self, key: Key) -> Key:
        while key in self._parent:
            key = self._parent[key]
        return key

    def at(self, atom: Atom) -> Whereabouts:
        """Where an atom is now."""
        if not is_var(atom):
            return _ANYWHERE
        found = self.of.get(atom, _ANYWHERE)
        return Whereabouts(self.root(found.key), found.depth)

    def join(self, one: Key, other: Key) -> Key:
        """Let two places be one, if they are not two submeshes; the first of them or the submesh."""
        one, other = self.root(one), self.root(other)
        if one == other or other is None:
            return one
        if one is None:
            return other
        if isinstance(other, int):
            if isinstance(one, int):
                return one
            one, other = other, one
        self._parent[other] = one
        return one

    def place(self, eqn: Any) -> Whereabouts:
        """Where an equation runs: with the latest of its arrays, else of its scalars; its results are there."""
        arrays = [(self.at(var), num_bytes(var)) for var in _arrays(eqn.invars)]
        arrays = [(each, size) for each, size in arrays if each.key is not None]
        every = [each for atom in eqn.invars if (each := self.at(atom)).key is not None]
        if arrays:
            submeshes = [(each, size) for each, size in arrays if isinstance(each.key, int)]
            key = max(submeshes or arrays, key=lambda item: (item[0].depth, item[1]))[0].key
            if len({each.key for each, _ in submeshes}) > 1 and gathers(eqn):
                self.gathering.add(key)
            for each, _ in arrays:
                key = self.join(key, each.key)
        elif every and all(is_tiny(var) for var in eqn.outvars):
            key = max(every, key=lambda each: each.depth).key
        else:
            key = None
        return self.settle(eqn, key)

    def settle(self, eqn: Any, key: Key) -> Whereabouts:
        """Have an equation run in a place."""
        key = None if key == _SCALARS else self.root(key)
        every = [each for atom in eqn.invars if (each := self.at(atom)).key is not None]
        found = Whereabouts(key, max((each.depth + (each.key != key) for each in every), default=0))
        self.where[id(eqn)] = key
        self.of.update((var, found) for var in eqn.outvars if is_var(var))
        return found

    def parts(self, eqn: Any) -> list[Any]:
        """The equations that one is cut into, placed; itself if it is not cut."""
        keys = {self.at(var).key for var in _arrays(eqn.invars)} - {None}
        if len(keys) > 1:
            call = _body_of_call(eqn)
            if call is not None and not call[1]:
                opened = inlined(call[0], eqn.invars, eqn.outvars, eqn)
                return [part for each in opened for part in self.parts(each)]
            cut = {"cond": _cut_cond, "while": _cut_while, "scan": _cut_scan}.get(eqn.primitive.name)
            if cut is not None:
                before = dict(self._parent)
                try:
                    found = cut(eqn, self)
                except _CannotCutError:
                    # What was joined on the way was joined for nothing.
                    self._parent = before
                    found = []
                for part, key in found:
                    self.settle(part, key)
                if found:
                    return [part for part, _ in found]
        self.place(eqn)
        return [eqn]


# Conditionals.


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


def _cut_cond(eqn: Any, locations: _Locations) -> list[tuple[Any, Key]]:
    """The conditionals that one is cut into, each with its place; none if it is not cut."""
    predicate, *operands = eqn.invars
    branches = []
    for closed in eqn.params["branches"]:
        inner, consts = _compat.split(closed)
        if consts:
            raise _CannotCutError
        invars, eqns, outs = _fresh(inner)
        for var, operand in zip(invars, operands, strict=True):
            locations.of[var] = locations.at(operand)
        eqns = [part for each in _without_dead_code(eqns, outs) for part in locations.parts(each)]
        branches.append(_Branch(invars, eqns, outs))
    # Each result is in one place, whatever the branch.
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
        out_keys.append(key if key is not None else _SCALARS if is_tiny(var) else ("result", position, id(eqn)))
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
    return _chunks(eqn, predicate, operands, branches, out_keys, last)


def _without_dead_code(eqns: Sequence[Any], outs: Iterable[Atom]) -> list[Any]:
    live = {atom for atom in outs if is_var(atom)}
    kept = []
    for eqn in reversed(eqns):
        if eqn.effects or any(var in live for var in eqn.outvars):
            kept.append(eqn)
            live.update(atom for atom in eqn.invars if is_var(atom))
    return kept[::-1]


def _crosses(branch: _Branch, locations: _Locations) -> bool:
    return len({locations.at(var).key for each in branch.eqns for var in each.outvars} - {None}) > 1


def _find_levels(branch: _Branch, out_keys: Sequence[Key], locations: _Locations) -> None:
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
            key = min(set().union(*[readers[var] for var in each.outvars]) or {out_keys[0]}, key=str)
        if _compat.ordered_effects(each):
            # Ordered effects stay in one part, where they keep their order.
            ordered = key = key if ordered is None else ordered
        found = [key] if key is not None else sorted(set().union(*[readers[v] for v in each.outvars]), key=str)
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
) -> list[tuple[Any, Key]]:
    """One conditional for each level and place."""
    chunks = {(level, key) for branch in branches for (_, key), level in branch.levels.items()}
    chunks |= set(zip(last, out_keys, strict=True))
    order = sorted(chunks, key=lambda chunk: (chunk[0], str(chunk[1])))
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
                    raise _CannotCutError
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
    traced, _ = _compat.split(jax.make_jaxpr(lambda: jnp.zeros(aval.shape, aval.dtype))())
    _, eqns, outs = _fresh(traced)
    return eqns, outs[0]


# Loops.


def _cut_while(eqn: Any, locations: _Locations) -> list[tuple[Any, Key]]:
    params = eqn.params
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    cond, cond_consts = _compat.split(params["cond_jaxpr"])
    body, body_consts = _compat.split(params["body_jaxpr"])
    cond_operands, body_operands = eqn.invars[:num_cond], eqn.invars[num_cond : num_cond + num_body]
    carried = eqn.invars[num_cond + num_body :]
    if cond_consts or body_consts or eqn.effects or _compat.ordered_effects(eqn):
        raise _CannotCutError
    loop = _Loop.of(body, num_body, len(carried), [*body_operands, *carried], locations)
    read = {var for each in cond.eqns for var in each.invars if is_var(var)} | {v for v in cond.outvars if is_var(v)}
    tested = [position for position, var in enumerate(cond.invars[num_cond:]) if var in read]
    if any(not is_tiny(var) for var in cond.invars if var in read) or any(
        loop.carry_keys[position] is not None for position in tested
    ):
        raise _CannotCutError
    parts = []
    for key in loop.places():
        eqns, consts, carries = loop.part(key, tested)
        invars = [*(loop.invars[index] for index in consts), *(loop.invars[num_body + index] for index in carries)]
        outs = [loop.outs[index] for index in carries]
        cond_invars = [*cond.invars[:num_cond], *(cond.invars[num_cond + index] for index in carries)]
        outvars = [eqn.outvars[index] if loop.carry_keys[index] == key else _copy_of(eqn, index) for index in carries]
        part = eqn.replace(
            invars=[*cond_operands, *(body_operands[i] for i in consts), *(carried[i] for i in carries)],
            outvars=outvars,
            params={
                **params,
                "body_nconsts": len(consts),
                "cond_jaxpr": _compat.close(cond, cond_invars, cond.outvars, cond.eqns),
                "body_jaxpr": _compat.close(body, invars, outs, eqns),
            },
        )
        parts.append((part, key))
    return parts


def _copy_of(eqn: Any, position: int) -> Var:
    """A variable for a scalar that a part computes for itself; another part gives the loop's own result."""
    return _compat.new_var(eqn.outvars[position].aval)


def _cut_scan(eqn: Any, locations: _Locations) -> list[tuple[Any, Key]]:
    body, body_consts = _compat.split(eqn.params["jaxpr"])
    if body_consts or eqn.effects:
        raise _CannotCutError
    num_consts, num_carry = _compat.scan_counts(eqn)
    loop = _Loop.of(body, num_consts, num_carry, eqn.invars, locations)
    parts: list[tuple[Any, Key]] = []
    for key in loop.places():
        eqns, consts, carries = loop.part(key, ())
        ys = [index for index in range(num_carry, len(loop.outs)) if loop.out_keys[index] == key]
        first = num_consts + num_carry
        read = {atom for each in eqns for atom in each.invars if is_var(atom)}
        read |= {loop.outs[index] for index in (*carries, *ys) if is_var(loop.outs[index])}
        slices = [index for index in range(first, len(loop.invars)) if loop.invars[index] in read]
        inner = [*consts, *(num_consts + index for index in carries), *slices]
        compute = _compat.as_fun(
            _compat.close(
                body, [loop.invars[index] for index in inner], [loop.outs[index] for index in (*carries, *ys)], eqns
            )
        )
        parts.extend((part, key) for part in _scan(eqn, compute, loop, key, inner, len(consts), carries, ys))
    return parts


def _scan(
    eqn: Any,
    compute: Callable[..., list[Any]],
    loop: _Loop,
    key: Key,
    inner: Sequence[int],
    num_consts: int,
    carries: Sequence[int],
    ys: Sequence[int],
) -> list[Any]:
    params = eqn.params
    split = num_consts + len(carries)

    def scan(*args: Any) -> list[Any]:
        def once(carry: Any, piece: Any) -> tuple[Any, Any]:
            out = compute(*args[:num_consts], *carry, *piece)
            return out[: len(carries)], out[len(carries) :]

        carry, stacks = jax.lax.scan(
            once,
            list(args[num_consts:split]),
            list(args[split:]),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*carry, *stacks]

    operands = [eqn.invars[index] for index in inner]
    traced, captured = _compat.split(jax.make_jaxpr(scan)(*map(abstract, operands)))
    if captured:
        raise _CannotCutError
    outvars = [eqn.outvars[i] if loop.carry_keys[i] == key else _copy_of(eqn, i) for i in carries]
    return inlined(traced, operands, [*outvars, *(eqn.outvars[index] for index in ys)], eqn)


@dataclass(eq=False)
class _Loop:
    """The body of a loop, cut.

    Attributes:
        invars: The body's arguments: constants, carried values, slices.
        eqns: Its equations.
        outs: Its results: carried values, then stacked ones.
        carry_keys: Where each carried value is; None for scalars that every part computes for itself.
        out_keys: The same for each result.
        at: Where each equation runs.
    """

    invars: list[Var]
    eqns: list[Any]
    outs: list[Any]
    num_consts: int
    carry_keys: list[Key]
    out_keys: list[Key]
    at: list[Key]

    @staticmethod
    def of(body: Any, num_consts: int, num_carry: int, operands: Sequence[Atom], locations: _Locations) -> _Loop:
        """Cut a body.

        Raises:
            _CannotCutError: If its parts depend on each other.
        """
        invars, eqns, outs = _fresh(body)
        if any(runs_once(each) for each in eqns):
            raise _CannotCutError
        for position, (var, operand) in enumerate(zip(invars, operands, strict=True)):
            found = locations.at(operand)
            if found.key is None and not is_tiny(operand):
                # An array of no particular place, of which all slices have to come from one.
                found = Whereabouts(("argument", position, id(body)))
            # Scalars that some submesh made, also one for each iteration, are sent to each part before the loop.
            locations.of[var] = _ANYWHERE if is_tiny(var) else Whereabouts(found.key)
        carried = invars[num_consts : num_consts + num_carry]
        parts = eqns
        # Scalars that are computed from arrays are where these are, in the next iteration too.
        for _ in range(num_carry + 1):
            parts = [part for each in eqns for part in locations.parts(each)]
            before = [locations.at(var).key for var in carried]
            for var, out in zip(carried, outs, strict=False):
                one, other = locations.at(var), locations.at(out)
                if other.key is not None:
                    locations.of[var] = Whereabouts(locations.join(one.key, other.key) if one.key else other.key)
            if [locations.at(var).key for var in carried] == before:
                break
        keys = [locations.at(out).key for out in outs]
        carry_keys = [locations.at(var).key for var in carried]
        for index in range(num_carry):
            if keys[index] is not None and keys[index] != carry_keys[index]:
                raise _CannotCutError
            keys[index] = carry_keys[index]
        at = []
        for each in parts:
            read = {locations.at(atom).key for atom in each.invars} - {None}
            own = next((locations.at(var).key for var in each.outvars if is_var(var)), None)
            if len(read) > 1 or (own is not None and read - {own}):
                raise _CannotCutError
            at.append(own if own is not None else next(iter(read), None))
        # Values that scalars of one place make are there, even if they could be anywhere.
        made = {var: key for each, key in zip(parts, at, strict=True) for var in each.outvars if is_var(var)}
        for each, key in zip(parts, at, strict=True):
            if {made[atom] for atom in each.invars if is_var(atom) and made.get(atom) is not None} - {key}:
                raise _CannotCutError
        keys = [
            key if key is not None else made.get(out) if is_var(out) else None
            for key, out in zip(keys, outs, strict=True)
        ]
        if any(keys[index] != carry_keys[index] for index in range(num_carry)):
            raise _CannotCutError
        return _Loop(invars, parts, outs, num_consts, carry_keys, keys, at)

    def places(self) -> list[Key]:
        """The places of its parts; None is that of the scalars which every part computes."""
        found = list(dict.fromkeys(self.out_keys))
        if len([key for key in found if key is not None]) < 2:
            raise _CannotCutError
        return found

    def part(self, key: Key, tested: Iterable[int]) -> tuple[list[Any], list[int], list[int]]:
        """The equations of a part, the constants that it reads, and the values that it carries.

        Args:
            key: Its place.
            tested: Carried values that the loop's condition reads.
        """
        carries = {index for index, other in enumerate(self.carry_keys) if other == key} | set(tested)
        position = {var: index for index, var in enumerate(self.invars)}
        while True:
            stacked = range(len(self.carry_keys), len(self.outs))
            outs = [self.outs[index] for index in (*sorted(carries), *stacked) if self._gives(index, key, carries)]
            live = {atom for atom in outs if is_var(atom)}
            eqns = []
            for each in reversed(self.eqns):
                if any(var in live for var in each.outvars):
                    eqns.append(each)
                    live.update(atom for atom in each.invars if is_var(atom))
            read = {position[var] for var in live if var in position}
            num_carry = len(self.carry_keys)
            more = {i - self.num_consts for i in read if self.num_consts <= i < self.num_consts + num_carry}
            if more <= carries:
                consts = sorted(index for index in read if index < self.num_consts)
                return eqns[::-1], consts, sorted(carries)
            carries |= more

    def _gives(self, index: int, key: Key, carries: set[int]) -> bool:
        return index in carries if index < len(self.carry_keys) else self.out_keys[index] == key
