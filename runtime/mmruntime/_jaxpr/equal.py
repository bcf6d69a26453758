"""Canonical forms: two jaxprs share one only if they compute the same, each on its own submesh.

The stages of a pipeline are mostly copies of each other. Shardings are propagated and code is compiled once for each
form, so that the build time of a step grows with its distinct programs, not with its stages.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, Sharding

from mmruntime import _compat
from mmruntime._compat import is_var

# Lowering reads only their body. Their differentiation rules are new objects in every trace, and already applied.
_BODY_ONLY = ("custom_jvp_call", "custom_vjp_call")


def form(closed: Any, mesh: Mesh) -> Hashable:
    """The canonical form of a closed jaxpr: no names of variables and calls, and devices by position.

    Args:
        closed: The jaxpr.
        mesh: Where it is to run. Devices of shardings and meshes in the jaxpr are replaced by their position in it.
    """
    places = {device: index for index, device in enumerate(mesh.devices.flat)}
    return _jaxpr(closed, places)


def parameters(eqn: Any) -> Hashable:
    """An equation's primitive and parameters, the name of its call included; equal ones differ in operands only."""
    return eqn.primitive, _params(eqn, {}), eqn.params.get("name"), eqn.ctx


def layout(sharding: NamedSharding | None) -> Hashable:
    """A sharding without its devices."""
    if sharding is None:
        return None
    return sharding.mesh.axis_names, sharding.mesh.axis_sizes, sharding.spec, sharding.memory_kind


def names_mesh(closed: Any) -> bool:
    """Whether a jaxpr mentions a sharding or a mesh. If not, there is nothing to propagate."""

    def mentions(value: Any) -> bool:
        if _compat.is_jaxpr(value):
            return names_mesh(value)
        if type(value) in (tuple, list):
            return any(map(mentions, value))
        return isinstance(value, Sharding) or (isinstance(value, Mesh | AbstractMesh) and not value.empty)

    return any(mentions(value) for eqn in _compat.split(closed)[0].eqns for value in eqn.params.values())


class _Identity:
    """Compares an object by identity."""

    __slots__ = ("_object",)

    def __init__(self, value: Any) -> None:
        self._object = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._object is other._object

    def __hash__(self) -> int:
        return id(self._object)


def _jaxpr(jaxpr: Any, places: Mapping[Any, int]) -> Hashable:
    inner, consts = _compat.split(jaxpr)
    numbers: dict[Any, int] = {}

    def fresh(var: Any) -> Hashable:
        numbers[var] = len(numbers)
        return var.aval  # type: ignore[no-any-return]

    def atom(value: Any) -> Hashable:
        return numbers[value] if is_var(value) else (_value(np.asarray(value.val), places), value.aval)

    inputs = [fresh(var) for var in (*inner.constvars, *inner.invars)]
    eqns = [
        (
            eqn.primitive,
            tuple(map(atom, eqn.invars)),
            tuple(map(fresh, eqn.outvars)),
            _params(eqn, places),
            eqn.ctx,
        )
        for eqn in inner.eqns
    ]
    return (
        tuple(inputs),
        tuple(map(_Identity, consts)),
        tuple(eqns),
        tuple(map(atom, inner.outvars)),
        frozenset(inner.effects),
    )


def _params(eqn: Any, places: Mapping[Any, int]) -> Hashable:
    params = eqn.params
    if eqn.primitive is _compat.jit_p:
        params = {key: value for key, value in params.items() if key != "name"}
    elif eqn.primitive.name in _BODY_ONLY:
        params = {"call_jaxpr": params["call_jaxpr"]}
    return tuple((key, _value(params[key], places)) for key in sorted(params))


def _value(value: Any, places: Mapping[Any, int]) -> Hashable:
    if _compat.is_jaxpr(value):
        return _jaxpr(value, places)
    if type(value) in (tuple, list):
        return type(value), tuple(_value(item, places) for item in value)
    if isinstance(value, Mesh):
        devices = tuple(places.get(device, device) for device in value.devices.flat)
        return Mesh, value.axis_names, value.axis_sizes, value.axis_types, devices
    # Those of a subclass say more than this.
    if type(value) is NamedSharding:
        return NamedSharding, _value(value.mesh, places), value.spec, value.memory_kind
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        # Equality of numbers is too wide: 0.0 is -0.0, and 1 is True.
        array = np.asarray(value)
        return _Identity(value) if array.dtype.hasobject else (type(value), array.dtype, array.shape, array.tobytes())
    if isinstance(value, jax.Array):
        return _Identity(value)
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return type(value), value
