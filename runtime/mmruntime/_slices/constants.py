"""Values of a step that no input decides, such as causal masks, computed with NumPy while it is planned.

Of a mask that the batch decides in part, such as a causal mask of packed sequences, the other entries are known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime._compat import Var, is_var

# Larger arrays are not looked at, views of smaller ones aside.
_MOST_ENTRIES = 1 << 26

# Primitives that are a function of NumPy.
NUMPY: dict[str, Any] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "neg": np.negative,
    "sign": np.sign,
    "square": np.square,
    "sub": np.subtract,
}
_ENTRY_BY_ENTRY: dict[str, Any] = {
    **NUMPY,
    "and": lambda a, b: np.logical_and(a, b) if a.dtype == np.bool_ else np.bitwise_and(a, b),
    "or": lambda a, b: np.logical_or(a, b) if a.dtype == np.bool_ else np.bitwise_or(a, b),
    "xor": lambda a, b: np.logical_xor(a, b) if a.dtype == np.bool_ else np.bitwise_xor(a, b),
    "not": lambda a: np.logical_not(a) if a.dtype == np.bool_ else np.bitwise_not(a),
    "copy": np.asarray,
    "stop_gradient": np.asarray,
}


# Entries go elsewhere and are not changed.
_MOVES = frozenset(("broadcast_in_dim", "transpose", "squeeze", "slice", "reshape", "copy"))


@dataclass(frozen=True)
class PartlyKnown:
    """A value with entries that are the same whatever the inputs are.

    Attributes:
        known: A mask of these entries.
        values: The value; entries that are not known hold anything.
    """

    known: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]

    def broadcast(self, shape: tuple[int, ...]) -> PartlyKnown:
        """The value of an operand that is broadcast."""
        return PartlyKnown(np.broadcast_to(self.known, shape), np.broadcast_to(self.values, shape))


class Constants:
    """Constants by their variables.

    Args:
        captured: Arrays that the step captures.
    """

    def __init__(self, captured: Mapping[Var, Any]) -> None:
        self._captured = captured
        self._values: dict[Var, np.ndarray[Any, Any]] = {}
        self._checked: set[Var] = set()
        self._partly: dict[Var, PartlyKnown] = {}
        # What is computed in the same way has one name.
        self._names: dict[Var, Var] = {}
        self._named: dict[Any, Var] = {}

    def add(self, eqns: Iterable[Any]) -> None:
        """Evaluate the equations that read constants, or entries that are known."""
        for eqn in eqns:
            if eqn.effects or len(eqn.outvars) != 1 or not is_var(eqn.outvars[0]):
                continue
            (var,) = eqn.outvars
            name = self._name(eqn)
            if name is not var:
                # Each layer may make its own mask.
                _share(self._values, name, var)
                _share(self._partly, name, var)
                continue
            ins = [self.find(atom) for atom in eqn.invars]
            constants = [each for each in ins if each is not None]
            if len(constants) == len(ins):
                found = evaluate(eqn, constants)
                if found is not None and found.shape == var.aval.shape:
                    self._values[var] = found
                continue
            partly = self._partly_known(eqn)
            if partly is not None and partly.known.any():
                self._partly[var] = partly

    def find_partly(self, atom: Any) -> PartlyKnown | None:
        """The entries of an atom that are known: all of a constant's; None if there are none."""
        value = self.find(atom)
        if value is not None:
            return PartlyKnown(np.asarray(True), value)
        return self._partly.get(atom) if is_var(atom) else None

    def find(self, atom: Any) -> np.ndarray[Any, Any] | None:
        """The value of an atom; None if it is not known."""
        if not is_var(atom):
            value = getattr(atom, "val", None)
            return None if value is None else np.asarray(value)
        if atom in self._values or atom not in self._captured or atom in self._checked:
            return self._values.get(atom)
        self._checked.add(atom)
        value = self._captured[atom]
        has_type = getattr(value, "dtype", None) is not None
        if has_type and np.size(value) <= _MOST_ENTRIES and getattr(value, "is_fully_addressable", True):
            try:
                array = np.asarray(value)
            except TypeError:
                # A typed key.
                return None
            if _is_real(array.dtype):
                self._values[atom] = array
        return self._values.get(atom)

    def _name(self, eqn: Any) -> Var:
        """The first variable that was computed in the same way."""
        (var,) = eqn.outvars
        operands = tuple(
            self._names.get(atom, atom) if is_var(atom) else (str(atom.aval), str(atom)) for atom in eqn.invars
        )
        try:
            key = (eqn.primitive, tuple(sorted(eqn.params.items())), operands)
            self._names[var] = self._named.setdefault(key, var)
        except TypeError:
            # A parameter that cannot be hashed.
            self._names[var] = var
        return self._names[var]

    def _partly_known(self, eqn: Any) -> PartlyKnown | None:
        name, var = eqn.primitive.name, eqn.outvars[0]
        if not _is_real(var.aval.dtype) or not all(_is_real(atom.aval.dtype) for atom in eqn.invars):
            return None
        partly = [self.find_partly(atom) for atom in eqn.invars]
        if all(each is None for each in partly):
            return None
        operands = [
            found or PartlyKnown(np.asarray(False), np.zeros((), atom.aval.dtype))
            for atom, found in zip(eqn.invars, partly, strict=True)
        ]
        if name in _MOVES:
            known, values = evaluate(eqn, [operands[0].known]), evaluate(eqn, [operands[0].values])
            return None if values is None or known is None else PartlyKnown(known, values)
        return _entries_known(eqn, operands)


def _share(found: dict[Var, Any], name: Var, var: Var) -> None:
    """Give a variable what was found of the one whose name it has."""
    if name in found:
        found[var] = found[name]


# An operand's entry that decides the result's, whatever the others are as long as they are finite, and what it then is.
_ABSORBING: dict[str, tuple[Any, Any]] = {
    "add": (-np.inf, -np.inf),
    "and": (0, 0),
    "mul": (0, 0),
    "or": (True, True),
}


def _entries_known(eqn: Any, operands: Sequence[PartlyKnown]) -> PartlyKnown | None:
    """What is known of a function of the entries at one position."""
    name, aval = eqn.primitive.name, eqn.outvars[0].aval
    if name == "select_n":
        function = _selected
    elif name in _ENTRY_BY_ENTRY or name == "convert_element_type":
        absorbing = _ABSORBING.get(name)
        if (name == "or" and aval.dtype != np.bool_) or (name == "add" and not np.issubdtype(aval.dtype, np.inexact)):
            absorbing = None

        def function(known: Sequence[Any], values: Sequence[Any]) -> tuple[Any, Any]:
            found = values[0].astype(aval.dtype) if name == "convert_element_type" else _ENTRY_BY_ENTRY[name](*values)
            all_known = functools.reduce(np.logical_and, known)
            if name == "convert_element_type":
                return all_known & _fits(values[0], aval.dtype), found
            if absorbing is None:
                return all_known, found
            entry, result = absorbing
            decided = functools.reduce(np.logical_or, [k & (v == entry) for k, v in zip(known, values, strict=True)])
            return all_known | decided, np.where(decided & ~all_known, np.asarray(result, aval.dtype), found)
    else:
        return None
    entries = [each for operand in operands for each in (operand.known, operand.values)]
    known, values = (
        on_entries(lambda *each, part=part: function(each[::2], each[1::2])[part], entries, aval.shape)
        for part in (0, 1)
    )
    return None if known is None or values is None else PartlyKnown(known, values)


def _selected(known: Sequence[Any], values: Sequence[Any]) -> tuple[Any, Any]:
    """What is known of a choice: known cases that are known to be chosen, or that are alike."""
    cases = values[1:]
    which = np.where(known[0], values[0].astype(np.int32), 0)
    alike = functools.reduce(np.logical_and, [*known[1:], *(case == cases[0] for case in cases)])
    chosen = [known[0] & (which == number) & each for number, each in enumerate(known[1:])]
    return functools.reduce(np.logical_or, [alike, *chosen]), np.choose(which, cases)


def _is_real(dtype: Any) -> bool:
    """Whether values of a type are numbers that have an order, or truths."""
    return bool(dtype == np.bool_ or jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating))


def evaluate(eqn: Any, ins: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any] | None:
    """The result of an equation; None if NumPy is not known to give the same."""
    name, params, aval = eqn.primitive.name, eqn.params, eqn.outvars[0].aval
    shape = aval.shape
    if name == "iota":
        along = np.arange(shape[params["dimension"]], dtype=aval.dtype)
        return np.broadcast_to(along.reshape([-1 if d == params["dimension"] else 1 for d in range(len(shape))]), shape)
    if name == "broadcast_in_dim":
        sizes = [1] * len(shape)
        for dim, size in zip(params["broadcast_dimensions"], ins[0].shape, strict=True):
            sizes[dim] = size
        return np.broadcast_to(ins[0].reshape(sizes), shape)
    if name == "transpose":
        return np.transpose(ins[0], params["permutation"])
    if name == "squeeze":
        return ins[0].reshape(shape)
    if name == "slice":
        steps = params["strides"] or (1,) * len(shape)
        bounds = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
        return ins[0][tuple(slice(*each) for each in bounds)]
    if name == "reshape":
        return ins[0].reshape(shape) if ins[0].size <= _MOST_ENTRIES else None
    if name in ("concatenate", "pad"):
        return _joined(eqn, ins)
    if name == "convert_element_type":
        # Beyond the ends of an integer type XLA saturates and NumPy wraps round.
        if not _fits(once_each(ins[0], ()), aval.dtype).all():
            return None
        return on_entries(lambda a: a.astype(aval.dtype), ins, shape)
    if name == "select_n":

        def choose(which: Any, *cases: Any) -> Any:
            return np.choose(which.astype(np.int32), np.broadcast_arrays(*cases))

        return on_entries(choose, ins, shape)
    if name in _ENTRY_BY_ENTRY:
        return on_entries(_ENTRY_BY_ENTRY[name], ins, shape)
    return None


def _joined(eqn: Any, ins: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any] | None:
    """Arrays beside each other, or one with a number beside it."""
    shape = eqn.outvars[0].aval.shape
    config = eqn.params.get("padding_config")
    if config is None:
        parts = [np.broadcast_to(each, atom.aval.shape) for each, atom in zip(ins, eqn.invars, strict=True)]
        joins = {eqn.params["dimension"]}
    else:
        if any(low < 0 or high < 0 or interior for low, high, interior in config):
            return None
        parts = [ins[0]]
        joins = {dim for dim, each in enumerate(config) if each != (0, 0, 0)}
    # Dimensions in which all repeat themselves are joined once.
    repeats = [dim not in joins and all(part.strides[dim] == 0 for part in parts) for dim in range(len(shape))]
    parts = [part[tuple(slice(0, 1) if repeat else slice(None) for repeat in repeats)] for part in parts]
    if math.prod(1 if repeat else size for size, repeat in zip(shape, repeats, strict=True)) > _MOST_ENTRIES:
        return None
    if config is None:
        found = np.concatenate(parts, eqn.params["dimension"])
    else:
        found = np.pad(parts[0], [(low, high) for low, high, _ in config], constant_values=ins[1])
    return np.broadcast_to(found, shape)


def _fits(array: np.ndarray[Any, Any], dtype: Any) -> Any:
    """Which entries NumPy converts as XLA does: all but floats beyond the ends of an integer type."""
    if dtype.kind not in "iu" or array.dtype.kind in "iub":
        return np.True_
    ends = np.iinfo(dtype)
    return (array >= float(ends.min)) & (array < float(ends.max))


def on_entries(function: Any, ins: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """A function of the entries at one position; along dimensions in which all repeat themselves it is called once."""
    ins = [each if each.ndim == len(shape) else np.broadcast_to(each, shape) for each in ins]
    repeats = [all(each.strides[dim] == 0 or each.shape[dim] == 1 for each in ins) for dim in range(len(shape))]
    cut = tuple(slice(0, 1) if repeat else slice(None) for repeat in repeats)
    small = [each[cut] for each in ins]
    if small and small[0].size > _MOST_ENTRIES:
        return None
    with np.errstate(all="ignore"):
        return np.broadcast_to(function(*small), shape)


def once_each(array: np.ndarray[Any, Any], kept: Sequence[int]) -> np.ndarray[Any, Any]:
    """The array with one entry along dimensions in which it repeats itself, but for those in `kept`."""
    return array[
        tuple(
            slice(0, 1) if stride == 0 and dim not in kept else slice(None) for dim, stride in enumerate(array.strides)
        )
    ]
