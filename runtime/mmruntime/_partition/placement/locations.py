"""Locations: where the values of one equation's body are, and with what they come to lie together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._jaxpr.ir import Op, is_tiny, num_bytes, num_elements
from mmruntime._jaxpr.rewrite import body_of_call, inlined

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


ANYWHERE = Whereabouts(None)
# The part of what is computed from scalars alone.
SCALARS = "scalars"


class CannotCutError(Exception):
    """The body's parts depend on each other."""


# Cuts an equation: its parts and their places; none if it stays whole.
Cut = Callable[[Any, "Locations"], list[tuple[Any, Key]]]


def gathers(eqn: Any) -> bool:
    """Whether an equation, if it reads arrays of several submeshes, makes their state live together.

    An equation on arrays of one shape, such as a sum of two stages' gradients of one weight, does not; neither does one
    with an array and single numbers, such as a norm that kept its dimensions.
    """
    arrays = [var for var in arrays_of((*eqn.invars, *eqn.outvars)) if num_elements(var) > 1]
    shapes = {var.aval.shape for var in arrays}
    return len(shapes) > 1 or bool(_compat.inner_jaxprs(eqn))


def arrays_of(atoms: Iterable[Atom]) -> list[Var]:
    """The variables that are worth a place: all but scalars and the like."""
    return [atom for atom in atoms if is_var(atom) and not is_tiny(atom)]


class Locations:
    """Where values are. Values that are computed with each other come to lie together."""

    def __init__(self, of: dict[Var, Whereabouts], cuts: Mapping[str, Cut]) -> None:
        """Start from where the operands are.

        Args:
            of: Where each operand is.
            cuts: For each primitive whose equations can be cut, how.
        """
        self.of = of
        self._cuts = cuts
        # Where each equation runs, by its identity.
        self.where: dict[int, Key] = {}
        # Submeshes with work on arrays of several of them.
        self.gathering: set[Key] = set()
        # Numbers for names of places, which have to be alike in all processes; an object's identity is not.
        self.numbers = itertools.count()
        inputs = dict.fromkeys(each.key for each in of.values() if isinstance(each.key, Var | Op))
        self._inputs: dict[Key, str] = {key: f"input {number}" for number, key in enumerate(inputs)}
        self._parent: dict[Key, Key] = {}

    def name(self, key: Key) -> str:
        """The name of a place. It orders places alike in all processes."""
        return self._inputs.get(key, str(key))

    def root(self, key: Key) -> Key:
        while key in self._parent:
            key = self._parent[key]
        return key

    def at(self, atom: Atom) -> Whereabouts:
        """Where an atom is now."""
        if not is_var(atom):
            return ANYWHERE
        found = self.of.get(atom, ANYWHERE)
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
        arrays = [(self.at(var), num_bytes(var)) for var in arrays_of(eqn.invars)]
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
        key = None if key == SCALARS else self.root(key)
        every = [each for atom in eqn.invars if (each := self.at(atom)).key is not None]
        found = Whereabouts(key, max((each.depth + (each.key != key) for each in every), default=0))
        self.where[id(eqn)] = key
        self.of.update((var, found) for var in eqn.outvars if is_var(var))
        return found

    def parts(self, eqn: Any) -> list[Any]:
        """The equations that one is cut into, placed; itself if it is not cut."""
        keys = {self.at(var).key for var in arrays_of(eqn.invars)} - {None}
        if len(keys) > 1:
            call = body_of_call(eqn)
            if call is not None and not call[1]:
                opened = inlined(call[0], eqn.invars, eqn.outvars, eqn)
                return [part for each in opened for part in self.parts(each)]
            cut = self._cuts.get(eqn.primitive.name)
            if cut is not None:
                before = dict(self._parent)
                try:
                    found = cut(eqn, self)
                except CannotCutError:
                    # What was joined on the way was joined for nothing.
                    self._parent = before
                    found = []
                for part, key in found:
                    self.settle(part, key)
                if found:
                    return [part for part, _ in found]
        self.place(eqn)
        return [eqn]
