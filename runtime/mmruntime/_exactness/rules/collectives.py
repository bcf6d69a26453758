"""Communication between devices, over mesh axes that do not count examples."""

from __future__ import annotations

from mmruntime._exactness.lattice import FREE, AbstractValue, Kind
from mmruntime._exactness.rules.equation import Equation, NotProved, repeated, rule
from mmruntime._exactness.rules.shape import shifted


def _linear(eqn: Equation, index: int = 0) -> AbstractValue:
    value = eqn.ins[index]
    if value.kind in (Kind.MAX, Kind.MIN):
        raise NotProved(f"computes `{eqn.name}` of a maximum or minimum over examples")
    return value if value.kind in (Kind.ZERO, Kind.SUM) else eqn.plain(index)


def _positions(eqn: Equation) -> list[int]:
    """The dimensions that are reduced as well: `jax.vmap` puts them in the place of the axes that it names."""
    return [axis for axis in eqn.params["axes"] if isinstance(axis, int)]


@rule("psum", "psum_invariant", "unreduced_psum")
def psum(eqn: Equation) -> list[AbstractValue]:
    """Sums over devices."""
    positions = _positions(eqn)
    values = [_linear(eqn, index) for index in range(len(eqn.ins))]
    return [_reduced(value, positions, Kind.SUM) for value in values]


def _reduced(value: AbstractValue, positions: list[int], kind: Kind) -> AbstractValue:
    if value.kind is Kind.ROWS and value.dim in positions:
        return AbstractValue(kind, power=value.power)
    return shifted(value, positions)


@rule("pmax", "pmin", "unreduced_pmax", "unreduced_pmin")
def pmax(eqn: Equation) -> list[AbstractValue]:
    """The largest, or smallest, over devices."""
    own, positions = (Kind.MAX if "max" in eqn.name else Kind.MIN), _positions(eqn)
    values = [value if value.kind in (own, Kind.ZERO) else eqn.plain(index) for index, value in enumerate(eqn.ins)]
    if any(value.kind not in (own, Kind.FREE, Kind.ROWS, Kind.ZERO) for value in values):
        raise NotProved(f"computes `{eqn.name}` of what is reduced over examples")
    return [_reduced(value, positions, own) for value in values]


@rule("ppermute", "pbroadcast")
def ppermute(eqn: Equation) -> AbstractValue:
    """Another device's value; zeros where none sends."""
    return _linear(eqn)


@rule("axis_index", "platform_index")
def axis_index(eqn: Equation) -> AbstractValue:
    """The device's position along a mesh axis, or the number of its platform."""
    return FREE


@rule("all_gather", "all_gather_invariant", "all_gather_reduced")
def all_gather(eqn: Equation) -> AbstractValue:
    """All devices' values, along a dimension of their own or behind each other."""
    value, dim = _linear(eqn), eqn.params["all_gather_dimension"]
    if not value.shape_grows:
        return value
    if not eqn.params["tiled"]:
        return value.at(value.dim + (value.dim >= dim))
    return repeated(value, eqn.params["axis_size"]) if value.dim == dim else value


@rule("reduce_scatter", "unreduced_reduce_scatter")
def reduce_scatter(eqn: Equation) -> AbstractValue:
    """Sums over devices, of which each keeps a part."""
    value, dim = _linear(eqn), eqn.params["scatter_dimension"]
    if not value.shape_grows:
        return value
    if value.dim == dim:
        raise NotProved("shares out the examples over a mesh axis")
    return value if eqn.params["tiled"] else value.at(value.dim - (value.dim > dim))


@rule("all_to_all")
def all_to_all(eqn: Equation) -> AbstractValue:
    """Parts of all devices' values."""
    value, from_dim, to_dim = _linear(eqn), eqn.params["split_axis"], eqn.params["concat_axis"]
    if not value.shape_grows:
        return value
    if value.dim == from_dim or (eqn.params["tiled"] and value.dim == to_dim):
        raise NotProved("shares out the examples over a mesh axis")
    if eqn.params["tiled"]:
        return value
    dim = value.dim - (value.dim > from_dim)
    return value.at(dim + (dim >= to_dim))
