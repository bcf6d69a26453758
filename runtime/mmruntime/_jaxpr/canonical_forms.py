"""Canonical forms: two jaxprs share one only if they compute the same, each on its own submesh.

The stages of a pipeline are mostly copies of each other. Shardings are propagated and code is compiled once for each
form, so that the build time of a step grows with its distinct programs, not with its stages.

JAX keeps what it derives from a jaxpr (its linearization, its transpose) by the identity of the jaxpr. The layers of a
model are traced one by one and give jaxprs that are equal, yet not the same; here they become one object. With dropout
they differ in the numbers that they fold into their keys; these are passed instead.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, Sharding

from mmruntime import _compat
from mmruntime._compat import is_var

# Lowering reads only their body, in this parameter. Their rules are new objects in every trace, and already applied.
_BODY_ONLY = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call"}


def form(closed: Any, mesh: Mesh) -> Hashable:
    """The canonical form of a closed jaxpr: no names of variables and calls, and devices by position.

    Args:
        closed: The jaxpr.
        mesh: Where it is to run. Devices of shardings and meshes in the jaxpr are replaced by their position in it.
    """
    return Forms().of(closed, mesh)


class Forms:
    """The canonical forms of programs that have much in common, such as the stages of a step in each of its passes.

    Equations go from pass to pass, and into copies of a loop's body, with their parameters, jaxprs inside among them,
    and their literals. Each of those is looked at once for a submesh. What is equal in two forms is one object.
    """

    def __init__(self) -> None:
        self._on: dict[tuple[Any, ...], _Former] = {}
        self._parts: dict[Shared, Shared] = {}
        self._traces = _Former({}, self._parts, is_lowered=False)

    def of(self, closed: Any, mesh: Mesh) -> Hashable:
        """See `form`."""
        devices = tuple(mesh.devices.flat)
        if devices not in self._on:
            self._on[devices] = _Former({device: index for index, device in enumerate(devices)}, self._parts)
        return _shared(self._on[devices].jaxpr(closed), self._parts)

    def of_trace(self, closed: Any) -> Hashable:
        """The form of a jaxpr that JAX has yet to differentiate, and that messages speak of.

        Rules of derivatives count, which have to be the same objects, and lines. The names of scopes, which hold a
        layer's number, and of arguments do not.
        """
        return _shared(self._traces.jaxpr(closed), self._parts)


class Shared:
    """A form, or a part of several: compared by what it is, and hashed once."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Hashable) -> None:
        self.value = value
        self._hash = hash(value)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Shared) and self.value == other.value)

    def __hash__(self) -> int:
        return self._hash


def parameters(eqn: Any) -> Hashable:
    """An equation's primitive and parameters, the name of its call included; equal ones differ in operands only."""
    former = _Former({}, {})
    return eqn.primitive, former.params(eqn), former.unread_params(eqn), eqn.ctx


def layout(sharding: NamedSharding | None) -> Hashable:
    """A sharding without its devices."""
    if sharding is None:
        return None
    return sharding.mesh.axis_names, sharding.mesh.axis_sizes, sharding.spec, sharding.memory_kind


def names_mesh(closed: Any) -> bool:
    """Whether a jaxpr mentions a sharding or a mesh. If not, there is nothing to propagate."""
    return any(map(lays_out, _compat.every_equation(_compat.split(closed)[0].eqns)))


def lays_out(eqn: Any) -> bool:
    """Whether an equation's own parameters, not its bodies, have shardings or meshes."""
    return any(map(is_layout, eqn.params.values()))


def is_layout(value: Any) -> bool:
    """Whether a parameter is a sharding, a device or a mesh, or has one among its items."""
    if type(value) in (tuple, list):
        return any(map(is_layout, value))
    return isinstance(value, Sharding | jax.Device) or (isinstance(value, Mesh | AbstractMesh) and not value.empty)


class Identity:
    """Compares an object by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _shared(value: Hashable, parts: dict[Shared, Shared]) -> Shared:
    made = Shared(value)
    return parts.setdefault(made, made)


# What was made of objects, by their identity, with the objects.
_Known = dict[int, tuple[Any, Hashable]]


class _Former:
    """Makes forms of jaxprs, with devices by position. What it has made of an object it keeps, with the object."""

    def __init__(self, places: Mapping[Any, int], parts: dict[Shared, Shared], *, is_lowered: bool = True) -> None:
        self._places = places
        self._parts = parts
        # Whether lowering alone reads the jaxprs.
        self._is_lowered = is_lowered
        self._known: _Known = {}
        # Of parameters that lowering does not read as they are.
        self._lowered: _Known = {}

    def jaxpr(self, jaxpr: Any) -> Hashable:
        """The form of a jaxpr."""
        inner, consts = _compat.split(jaxpr)
        numbers: dict[Any, int] = {}

        def fresh(var: Any) -> Hashable:
            numbers[var] = len(numbers)
            return var.aval  # type: ignore[no-any-return]

        def atom(value: Any) -> Hashable:
            return numbers[value] if is_var(value) else self._once(value, self._literal, self._known)

        inputs = [fresh(var) for var in (*inner.constvars, *inner.invars)]
        eqns = [
            (
                eqn.primitive,
                tuple([atom(var) for var in eqn.invars]),
                tuple([fresh(var) for var in eqn.outvars]),
                self.params(eqn),
                eqn.ctx,
                *(() if self._is_lowered else (frozenset(eqn.effects), eqn.source_info.traceback)),
            )
            for eqn in inner.eqns
        ]
        return (
            tuple(inputs),
            tuple(map(Identity, consts)),
            tuple(eqns),
            tuple(map(atom, inner.outvars)),
            frozenset(inner.effects),
        )

    def params(self, eqn: Any) -> Hashable:
        """The form of an equation's parameters."""
        body = _BODY_ONLY.get(eqn.primitive.name) if self._is_lowered else None
        if body is not None:
            return self._once(eqn.params[body], self.jaxpr, self._known)
        if self._is_lowered and eqn.primitive in _compat.LOWERED_IN_PART:
            return self._once(eqn.params, lambda _: self._items(_compat.lowered_params(eqn)), self._lowered)
        return self._once(eqn.params, self._items, self._known)

    def unread_params(self, eqn: Any) -> Hashable:
        """The form of those parameters that `params` leaves out."""
        return tuple(map(self._value, _compat.unread_params(eqn)))

    def _once(self, value: Any, make: Callable[[Any], Hashable], known: _Known) -> Hashable:
        """The form of an object that nobody changes."""
        found = known.get(id(value))
        if found is None:
            found = known[id(value)] = (value, _shared(make(value), self._parts))
        return found[1]

    def _literal(self, literal: Any) -> Hashable:
        return self._value(np.asarray(literal.val)), literal.aval

    def _items(self, params: Mapping[str, Any]) -> Hashable:
        return tuple([(key, self._value(params[key])) for key in sorted(params)])

    def _value(self, value: Any) -> Hashable:
        if _compat.is_jaxpr(value):
            return self._once(value, self.jaxpr, self._known)
        if type(value) in (tuple, list):
            return type(value), tuple([self._value(item) for item in value])
        if isinstance(value, tuple) and any(map(_compat.is_jaxpr, value)):
            # Those of `custom_linear_solve` lie in a named tuple.
            return type(value), tuple([self._value(item) for item in value])
        if isinstance(value, Mesh):
            devices = tuple(self._places.get(device, device) for device in value.devices.flat)
            return Mesh, value.axis_names, value.axis_sizes, value.axis_types, devices
        # Those of a subclass say more than this.
        if type(value) is NamedSharding:
            return NamedSharding, self._value(value.mesh), value.spec, value.memory_kind
        if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
            # Equality of numbers is too wide: 0.0 is -0.0, and 1 is True.
            array = np.asarray(value)
            kept = array.dtype.hasobject
            return Identity(value) if kept else (type(value), array.dtype, array.shape, array.tobytes())
        if isinstance(value, jax.Array):
            return Identity(value)
        try:
            hash(value)
        except TypeError:
            return Identity(value)
        return type(value), value


# The first trace of each form.
_Found = tuple[Forms, dict[Hashable, Any]]
_FOUND: ContextVar[_Found | None] = ContextVar("equal_traces", default=None)


@contextmanager
def sharing_equal_traces() -> Iterator[None]:
    """A context in which `one_of_equal` knows the traces that it was given."""
    token = _FOUND.set(_FOUND.get() or (Forms(), {}))
    try:
        yield
    finally:
        _FOUND.reset(token)


def shares_equal_traces() -> bool:
    """Whether `one_of_equal` would find anything."""
    return _FOUND.get() is not None


def one_of_equal(closed: Any) -> tuple[Any, list[Any]]:
    """The first of all closed jaxprs that equal this one, in a context of `sharing_equal_traces`; else this one.

    Numbers that are folded into keys do not count.

    Returns:
        The jaxpr, and the numbers that it takes at the end.
    """
    found = _FOUND.get()
    if found is None:
        return closed, []
    closed, numbers = _with_folded_numbers(closed)
    forms, known = found
    return known.setdefault(forms.of_trace(closed), closed), numbers


def _with_folded_numbers(closed: Any) -> tuple[Any, list[Any]]:
    """A jaxpr that takes the numbers that it folds into keys, and these."""
    jaxpr, consts = _compat.split(closed)
    inputs, numbers, eqns = [], [], []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "random_fold_in" and isinstance(eqn.invars[1], _compat.Literal):
            number = eqn.invars[1]
            inputs.append(_compat.new_var(number.aval))
            numbers.append(number.val)
            eqn = eqn.replace(invars=[eqn.invars[0], inputs[-1]])
        eqns.append(eqn)
    if not numbers:
        return closed, []
    return _compat.with_consts(jaxpr.replace(invars=[*jaxpr.invars, *inputs], eqns=eqns), consts), numbers
