"""Values of a step that no input decides, such as causal masks, computed with NumPy while it is planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mmruntime._compat import Var, is_var

# Larger arrays are not looked at, views of smaller ones aside.
_MOST_ENTRIES = 1 << 26

_ENTRY_BY_ENTRY: dict[str, Any] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": lambda a, b: np.logical_and(a, b) if a.dtype == np.bool_ else np.bitwise_and(a, b),
    "or": lambda a, b: np.logical_or(a, b) if a.dtype == np.bool_ else np.bitwise_or(a, b),
    "xor": lambda a, b: np.logical_xor(a, b) if a.dtype == np.bool_ else np.bitwise_xor(a, b),
    "not": lambda a: np.logical_not(a) if a.dtype == np.bool_ else np.bitwise_not(a),
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
    "copy": np.asarray,
    "copy_p": np.asarray,
    "stop_gradient": np.asarray,
}


class Constants:
    """Constants by their variables.

    Args:
        captured: Arrays that the step captures.
    """

    def __init__(self, captured: Mapping[Var, Any]) -> None:
        self._captured = captured
        self._values: dict[Var, np.ndarray[Any, Any]] = {}
        self._checked: set[Var] = set()

    def add(self, eqns: Iterable[Any]) -> None:
        """Evaluate the equations that read nothing but constants."""
        for eqn in eqns:
            if eqn.effects or len(eqn.outvars) != 1 or not is_var(eqn.outvars[0]):
                continue
            ins = []
            for atom in eqn.invars:
                value = self.find(atom)
                if value is None:
                    break
                ins.append(value)
            else:
                found = evaluate(eqn, ins)
                if found is not None and found.shape == eqn.outvars[0].aval.shape:
                    self._values[eqn.outvars[0]] = found

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
            if array.dtype.kind in "biuf":
                self._values[atom] = array
        return self._values.get(atom)


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
    if name in ("squeeze", "expand_dims"):
        return ins[0].reshape(shape)
    if name == "slice":
        steps = params["strides"] or (1,) * len(shape)
        bounds = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
        return ins[0][tuple(slice(*each) for each in bounds)]
    if name == "reshape":
        return ins[0].reshape(shape) if ins[0].size <= _MOST_ENTRIES else None
    if name == "convert_element_type":
        return _on_entries(lambda a: a.astype(aval.dtype), ins, shape)
    if name == "select_n":

        def choose(which: Any, *cases: Any) -> Any:
            return np.choose(which.astype(np.int32), np.broadcast_arrays(*cases))

        return _on_entries(choose, ins, shape)
    if name in _ENTRY_BY_ENTRY:
        return _on_entries(_ENTRY_BY_ENTRY[name], ins, shape)
    return None


def _on_entries(function: Any, ins: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
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
