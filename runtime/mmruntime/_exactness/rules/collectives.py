"""Communication between devices along mesh axes, and between the entries that `jax.vmap` maps over."""

from __future__ import annotations

from mmruntime._exactness.lattice import ANY, FREE, AbstractValue, Kind
from mmruntime._exactness.rules.equation import Equation, NoRule, NotProved, repeated, rule
from mmruntime._exactness.rules.shape import shifted

# They say themselves what differs between devices.
NAMES = {
    "psum", "psum_invariant", "unreduced_psum", "pmax", "pmin", "unreduced_pmax", "unreduced_pmin", "ppermute",
    "pbroadcast", "axis_index", "platform_index", "all_gather", "all_gather_invariant", "all_gather_reduced",
    "reduce_scatter", "unreduced_reduce_scatter", "all_to_all",
}  # fmt: skip

_REDUCE_FIRST = "Reduce over the examples of each device first, or gather them."
_SUM_FIRST = "Add up what the devices have with jax.lax.psum first."


def _linear(eqn: Equation, index: int = 0) -> AbstractValue:
    value = eqn.ins[index]
    if value.kind in (Kind.MAX, Kind.MIN):
        raise NotProved(f"computes `{eqn.name}` of a maximum or minimum over examples")
    return value if value.kind in (Kind.ZERO, Kind.SUM) else eqn.plain(index)


def _axes(eqn: Equation) -> tuple[str, ...]:
    """The mesh axes, the outermost first."""
    axes = eqn.params.get("axes", eqn.params.get("axis_name"))
    found = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    return tuple(axis for axis in found if isinstance(axis, str))


def _positions(eqn: Equation) -> list[int]:
    """The dimensions that are reduced as well: `jax.vmap` puts them in the place of the axes that it names."""
    return [axis for axis in eqn.params["axes"] if isinstance(axis, int)]


def _split_over(eqn: Equation, value: AbstractValue) -> bool:
    """Whether the examples are split over any of the axes."""
    is_split = not set(value.axes).isdisjoint(_axes(eqn))
    if is_split and eqn.params.get("axis_index_groups") is not None:
        raise NoRule
    return is_split


def _reject_split(eqn: Equation, value: AbstractValue, problem: str, advice: str) -> None:
    if _split_over(eqn, value):
        raise NotProved(problem, advice)


@rule("psum", "psum_invariant", "unreduced_psum")
def psum(eqn: Equation) -> list[AbstractValue]:
    """Sums over devices."""
    values = [_linear(eqn, index) for index in range(len(eqn.ins))]
    return [_reduced(eqn, value, Kind.SUM) for value in values]


@rule("pmax", "pmin", "unreduced_pmax", "unreduced_pmin")
def pmax(eqn: Equation) -> list[AbstractValue]:
    """The largest, or smallest, over devices."""
    own = Kind.MAX if "max" in eqn.name else Kind.MIN
    values = [value if value.kind in (own, Kind.ZERO) else eqn.plain(index) for index, value in enumerate(eqn.ins)]
    if any(value.kind not in (own, Kind.FREE, Kind.ROWS, Kind.ZERO) for value in values):
        raise NotProved(f"computes `{eqn.name}` of what is reduced over examples")
    return [_reduced(eqn, value, own) for value in values]


def _reduced(eqn: Equation, value: AbstractValue, kind: Kind) -> AbstractValue:
    axes, positions = _axes(eqn), _positions(eqn)
    if value.kind is kind:
        _split_over(eqn, value)
        value = value.but(axes=tuple(axis for axis in value.axes if axis not in axes))
    else:
        problem = f"computes `{eqn.name}` of the examples of different devices"
        _reject_split(eqn, value, problem, _REDUCE_FIRST)
    if eqn.params.get("axis_index_groups") is None:
        value = value.but(varies=value.varies - set(axes))
    if value.kind is Kind.ROWS and value.dim in positions:
        return AbstractValue(kind, power=value.power, axes=value.axes, varies=value.varies)
    return shifted(value, positions)


@rule("ppermute", "pbroadcast")
def ppermute(eqn: Equation) -> AbstractValue:
    """Another device's value; zeros where none sends."""
    value = _linear(eqn)
    problem, advice = "sends to another device what depends on the examples of one", _SUM_FIRST
    _reject_split(eqn, value, problem, advice if value.kind is Kind.SUM else _REDUCE_FIRST)
    return value.but(varies=value.varies | set(_axes(eqn)))


@rule("axis_index", "platform_index")
def axis_index(eqn: Equation) -> AbstractValue:
    """The device's position along a mesh axis, or the number of its platform."""
    return FREE if eqn.name == "platform_index" else FREE.but(varies=frozenset(_axes(eqn)))


@rule("all_gather", "all_gather_invariant", "all_gather_reduced")
def all_gather(eqn: Equation) -> AbstractValue:
    """All devices' values, along a dimension of their own or behind each other."""
    value, dim, axes = _linear(eqn), eqn.params["all_gather_dimension"], _axes(eqn)
    if value.kind is Kind.ROWS and _split_over(eqn, value):
        is_in_order = value.axes[-len(axes) :] == axes and eqn.params["tiled"] and value.dim == dim
        if not (is_in_order and value.outer in (1, ANY)):
            raise NotProved(
                "gathers the examples of the devices so that they do not follow each other in their dimension",
                "Gather them with tiled=True, along their dimension.",
            )
        return value.but(axes=value.axes[: -len(axes)], varies=value.varies - set(axes))
    _reject_split(eqn, value, "gathers what each device computes of its own examples", _SUM_FIRST)
    if eqn.params.get("axis_index_groups") is None:
        value = value.but(varies=value.varies - set(axes))
    if not value.shape_grows:
        return value
    if not eqn.params["tiled"]:
        return value.at(value.dim + (value.dim >= dim))
    return repeated(value, eqn.params["axis_size"]) if value.dim == dim else value


@rule("reduce_scatter", "unreduced_reduce_scatter")
def reduce_scatter(eqn: Equation) -> AbstractValue:
    """Sums over devices; each device keeps a part of the result."""
    value, dim, axes = _linear(eqn), eqn.params["scatter_dimension"], _axes(eqn)
    if value.kind is Kind.SUM:
        _split_over(eqn, value)
        left = tuple(axis for axis in value.axes if axis not in axes)
        return value.but(axes=left, varies=value.varies | set(axes))
    _reject_split(eqn, value, f"computes `{eqn.name}` of the examples of different devices", _REDUCE_FIRST)
    value = value.but(varies=value.varies | set(axes))
    if not value.shape_grows:
        return value
    if value.dim == dim:
        raise NotProved("shares out the examples over a mesh axis")
    return value if eqn.params["tiled"] else value.at(value.dim - (value.dim > dim))


@rule("all_to_all")
def all_to_all(eqn: Equation) -> AbstractValue:
    """Parts of all devices' values."""
    value, from_dim, to_dim = _linear(eqn), eqn.params["split_axis"], eqn.params["concat_axis"]
    problem, advice = "exchanges what depends on the examples of each device", _SUM_FIRST
    _reject_split(eqn, value, problem, advice if value.kind is Kind.SUM else _REDUCE_FIRST)
    value = value.but(varies=value.varies | set(_axes(eqn)))
    if not value.shape_grows:
        return value
    if value.dim == from_dim or (eqn.params["tiled"] and value.dim == to_dim):
        raise NotProved("shares out the examples over a mesh axis")
    if eqn.params["tiled"]:
        return value
    dim = value.dim - (value.dim > from_dim)
    return value.at(dim + (dim >= to_dim))
