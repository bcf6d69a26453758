"""Cut loops over values of several submeshes into one for each place, which share nothing but scalars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mmruntime import _compat
from mmruntime._compat import Atom, Var, is_var
from mmruntime._jaxpr.effects import runs_once
from mmruntime._jaxpr.ir import is_tiny
from mmruntime._jaxpr.rewrite import fresh, needed, part_of_scan
from mmruntime._partition.placement.locations import ANYWHERE, CannotCutError, Key, Locations, Whereabouts


def cut_while(eqn: Any, locations: Locations) -> list[tuple[Any, Key]]:
    params = eqn.params
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    cond, cond_consts = _compat.split(params["cond_jaxpr"])
    body, body_consts = _compat.split(params["body_jaxpr"])
    cond_operands, body_operands = eqn.invars[:num_cond], eqn.invars[num_cond : num_cond + num_body]
    carried = eqn.invars[num_cond + num_body :]
    if cond_consts or body_consts or eqn.effects or _compat.ordered_effects(eqn):
        raise CannotCutError
    loop = _Loop.of(body, num_body, len(carried), [*body_operands, *carried], locations)
    read = {var for each in cond.eqns for var in each.invars if is_var(var)} | {v for v in cond.outvars if is_var(v)}
    tested = [position for position, var in enumerate(cond.invars[num_cond:]) if var in read]
    if any(not is_tiny(var) for var in cond.invars if var in read) or any(
        loop.carry_keys[position] is not None for position in tested
    ):
        raise CannotCutError
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


def cut_scan(eqn: Any, locations: Locations) -> list[tuple[Any, Key]]:
    body, body_consts = _compat.split(eqn.params["jaxpr"])
    if body_consts or eqn.effects:
        raise CannotCutError
    num_consts, num_carry = _compat.scan_counts(eqn)
    loop = _Loop.of(body, num_consts, num_carry, eqn.invars, locations)
    sliced = set(loop.invars[num_consts + num_carry :])
    outer = dict(zip(loop.invars, eqn.invars, strict=True))
    parts: list[tuple[Any, Key]] = []
    for key in loop.places():
        eqns, _, carries = loop.part(key, ())
        ends = [(loop.outs[i], eqn.outvars[i] if loop.carry_keys[i] == key else _copy_of(eqn, i)) for i in carries]
        stacked = range(num_carry, len(loop.outs))
        ends += [(loop.outs[i], eqn.outvars[i]) for i in stacked if loop.out_keys[i] == key]
        own = [loop.invars[num_consts + i] for i in carries]
        scan, _ = part_of_scan(eqn, eqns, own, ends, (), outer, sliced)
        parts.extend((part, key) for part in scan)
    return parts


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
    def of(body: Any, num_consts: int, num_carry: int, operands: Sequence[Atom], locations: Locations) -> _Loop:
        """Cut a body.

        Raises:
            CannotCutError: If its parts depend on each other.
        """
        invars, eqns, outs = fresh(body)
        if any(runs_once(each) for each in eqns):
            raise CannotCutError
        number = next(locations.numbers)
        for position, (var, operand) in enumerate(zip(invars, operands, strict=True)):
            found = locations.at(operand)
            if found.key is None and not is_tiny(operand):
                # An array of no particular place, of which all slices have to come from one.
                found = Whereabouts(("argument", position, number))
            # Scalars that some submesh made, also one for each iteration, are sent to each part before the loop.
            locations.of[var] = ANYWHERE if is_tiny(var) else Whereabouts(found.key)
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
                raise CannotCutError
            keys[index] = carry_keys[index]
        at = []
        for each in parts:
            read = {locations.at(atom).key for atom in each.invars} - {None}
            own = next((locations.at(var).key for var in each.outvars if is_var(var)), None)
            if len(read) > 1 or (own is not None and read - {own}):
                raise CannotCutError
            at.append(own if own is not None else next(iter(read), None))
        # Values that scalars of one place make are there, even if they could be anywhere.
        made = {var: key for each, key in zip(parts, at, strict=True) for var in each.outvars if is_var(var)}
        for each, key in zip(parts, at, strict=True):
            if {made[atom] for atom in each.invars if is_var(atom) and made.get(atom) is not None} - {key}:
                raise CannotCutError
        keys = [
            key if key is not None else made.get(out) if is_var(out) else None
            for key, out in zip(keys, outs, strict=True)
        ]
        if any(keys[index] != carry_keys[index] for index in range(num_carry)):
            raise CannotCutError
        return _Loop(invars, parts, outs, num_consts, carry_keys, keys, at)

    def places(self) -> list[Key]:
        """The places of its parts; None is that of the scalars which every part computes."""
        found = list(dict.fromkeys(self.out_keys))
        if len([key for key in found if key is not None]) < 2:
            raise CannotCutError
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
            eqns, live = needed(self.eqns, outs)
            read = {position[var] for var in live if var in position}
            num_carry = len(self.carry_keys)
            more = {i - self.num_consts for i in read if self.num_consts <= i < self.num_consts + num_carry}
            if more <= carries:
                consts = sorted(index for index in read if index < self.num_consts)
                return eqns, consts, sorted(carries)
            carries |= more

    def _gives(self, index: int, key: Key, carries: set[int]) -> bool:
        return index in carries if index < len(self.carry_keys) else self.out_keys[index] == key
