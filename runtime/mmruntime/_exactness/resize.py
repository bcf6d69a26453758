"""The program for one example, from those for more of them.

JAX does other operations where a dimension has one entry: it leaves dimensions out, and adds them. So the trace of a
function for one example can seldom be lined up with that for the whole batch, whereas those for two examples and for
the whole batch can. What is different between these, shapes and numbers, grows with the number of examples: from two
such programs comes one for any number. Nothing is taken on trust here: the result is held against the whole batch as
any other program is (`mmruntime._exactness.prove`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeGuard

import numpy as np

from mmruntime import _compat
from mmruntime._exactness.rules.equation import LOOSE
from mmruntime._exactness.sizes import power_between, same_literal, same_program, same_value


class _NotResized(Exception):
    """Two programs differ in more than what grows with the number of examples."""


def for_one_example(few: Any, whole: Any, sizes: tuple[int, int]) -> Any:
    """The program for one example.

    Args:
        few: The closed jaxpr of a function for some examples.
        whole: The closed jaxpr for another number of them.
        sizes: The two numbers.

    Returns:
        A closed jaxpr; None where the two differ in more than what grows with the number, or where what comes of them
        is no program.
    """
    try:
        resized = _Resizer(*sizes).jaxpr(few, whole)
    except _NotResized:
        return None
    return resized if _compat.is_well_typed(resized) else None


class _Resizer:
    def __init__(self, few: int, whole: int) -> None:
        self.few, self.whole = few, whole
        # Layers that are alike share their jaxprs, and so do these; the given ones are kept, as their ids are the keys.
        self.known: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def jaxpr(self, few: Any, whole: Any) -> Any:
        """A jaxpr, open or closed as the given ones are."""
        key = id(few), id(whole)
        if key not in self.known:
            self.known[key] = few, whole, self._jaxpr(few, whole)
        return self.known[key][2]

    def _jaxpr(self, few: Any, whole: Any) -> Any:
        (one, consts), (other, other_consts) = _compat.split(few), _compat.split(whole)
        if not same_program(one, other) or not same_value(consts, other_consts):
            raise _NotResized
        env: dict[Any, Any] = {}

        def made(atoms: Sequence[Any], twins: Sequence[Any]) -> list[Any]:
            for atom, twin in zip(atoms, twins, strict=True):
                # A result that nobody reads stays one.
                env[atom] = type(atom)(self._type(atom.aval, twin.aval))
            return [env[atom] for atom in atoms]

        def read(atom: Any, twin: Any) -> Any:
            return self._literal(atom, twin) if isinstance(atom, _compat.Literal) else env[atom]

        constvars, invars = made(one.constvars, other.constvars), made(one.invars, other.invars)
        eqns = []
        for eqn, twin in zip(one.eqns, other.eqns, strict=True):
            if eqn.params.keys() != twin.params.keys():
                raise _NotResized
            operands = [read(*pair) for pair in zip(eqn.invars, twin.invars, strict=True)]
            # What differentiates a call, and other things that say nothing about values, are made anew by each trace.
            loose = LOOSE.get(eqn.primitive.name, frozenset())
            params = {
                name: self._param(value, twin.params[name], is_loose=name in loose)
                for name, value in eqn.params.items()
            }
            eqns.append(eqn.replace(invars=operands, outvars=made(eqn.outvars, twin.outvars), params=params))
        outvars = [read(*pair) for pair in zip(one.outvars, other.outvars, strict=True)]
        resized = one.replace(constvars=constvars, invars=invars, outvars=outvars, eqns=eqns)
        return _compat.with_consts(resized, consts) if hasattr(few, "consts") else resized

    def _type(self, few: Any, whole: Any) -> Any:
        shapes = getattr(few, "shape", ()), getattr(whole, "shape", ())
        if shapes[0] == shapes[1]:
            return few
        return few.update(shape=tuple(self._number(*pair) for pair in zip(*shapes, strict=True)))

    def _param(self, few: Any, whole: Any, *, is_loose: bool = False) -> Any:
        if _compat.is_jaxpr(few) and _compat.is_jaxpr(whole):
            return self.jaxpr(few, whole)
        if same_value(few, whole):
            return few
        if isinstance(few, tuple | list) and type(few) is type(whole) and len(few) == len(whole):
            items = [self._param(*pair) for pair in zip(few, whole, strict=True)]
            return type(few)(*items) if hasattr(few, "_fields") else type(few)(items)
        if _is_number(few) and _is_number(whole):
            return self._number(few, whole)
        if is_loose:
            return few
        raise _NotResized

    def _number(self, few: int, whole: int) -> int:
        """A number that grows by as much with each example."""
        growth, rest = divmod(int(whole) - int(few), self.whole - self.few)
        found = int(few) - growth * (self.few - 1)
        if rest or found < 0:
            raise _NotResized
        return found

    def _literal(self, few: Any, whole: Any) -> Any:
        """A number that is multiplied by a power of the number of examples; any other is that of the whole batch."""
        if same_literal(few, whole):
            return few
        if np.shape(few.val) or np.shape(whole.val):
            raise _NotResized
        power = power_between(few.val, whole.val, Fraction(self.whole, self.few))
        if power is None:
            return whole
        found = Fraction(float(few.val)) / Fraction(self.few) ** power
        dtype = few.aval.dtype
        is_one = dtype.kind == "f" or found.denominator == 1
        return _compat.Literal(dtype.type(float(found)), few.aval) if is_one else whole


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
