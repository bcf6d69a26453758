"""Single equations and primitives, made to order."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import core, source_info_util
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from mmruntime._compat.jaxprs import Primitive, Var, as_fun, is_var, new_var, split


def define_identity(
    name: str,
    transpose: Callable[..., Any],
    batch: Callable[..., Any],
    used: Callable[..., None] | None = None,
) -> Primitive:
    """A linear primitive that returns its operand and disappears in lowering.

    Args:
        name: The primitive's name in a jaxpr.
        transpose: `transpose(cotangent, **params)` gives the cotangent of the operand.
        batch: `batch(operand, dimension, **params)` binds it again with the batch dimension.
        used: `used(**params)` is called where it is lowered, or run outside of a program: no abstract evaluation does.
    """

    def identity(x: Any, **params: Any) -> Any:
        if used is not None:
            used(**params)
        return x

    primitive = jex.Primitive(name)
    primitive.def_impl(identity)
    primitive.def_abstract_eval(lambda x, **_: x)
    ad.deflinear2(primitive, lambda ct, _, **params: [transpose(ct, **params)])
    mlir.register_lowering(primitive, lambda _, x, **params: [identity(x, **params)])
    batching.primitive_batchers[primitive] = lambda args, dims, **params: (
        batch(args[0], dims[0], **params),
        dims[0],
    )
    return primitive


def add_eqn(left: Any, right: Any, target: Var) -> Any:
    """An equation that adds two atoms of one type."""
    template = _template(_doubled, target.aval)
    return template.replace(invars=[left, right], outvars=[target], source_info=source_info_util.current())


def _doubled(value: Any, _: None) -> Any:
    return jax.lax.add(value, value)


def scale_eqns(source: Any, n: int, power: int, target: Var) -> list[Any]:
    """Equations that multiply an atom by `n**power`, which is exact for integers if `power` is not negative."""
    aval = target.aval
    abstract = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
    number = n ** abs(power)
    # A division rounds once, the product with a rounded reciprocal twice.
    jaxpr, consts = split(jax.make_jaxpr(lambda x: x * number if power > 0 else x / number)(abstract))
    assert not consts
    env = {jaxpr.invars[0]: source, jaxpr.outvars[0]: target}
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        for var in eqn.outvars:
            env.setdefault(var, new_var(var.aval))
        invars = [env[atom] if is_var(atom) else _varying(atom, aval, eqn, eqns) for atom in eqn.invars]
        eqns.append(eqn.replace(invars=invars, outvars=[env[var] for var in eqn.outvars]))
    return eqns


def _varying(literal: Any, like: Any, template: Any, eqns: list[Any]) -> Any:
    """A number that may be combined with values that vary over devices; adds an equation if need be."""
    axes = like.manual_axis_type.varying
    if not axes:
        return literal
    target = new_var(like.update(shape=(), weak_type=literal.aval.weak_type))
    params = {"axes": tuple(sorted(axes))}
    eqns.append(template.replace(primitive=core.pvary_p, params=params, invars=[literal], outvars=[target]))
    return target


def call_without_derivative(closed: Any, invars: Sequence[Any], outvars: Sequence[Any], problem: str) -> Any:
    """An equation that calls a closed jaxpr, and cannot be differentiated: it raises a `ValueError` that says why."""
    function = as_fun(closed)

    @jax.custom_jvp
    def call(*args: Any) -> list[Any]:
        return function(*args)

    @call.defjvp
    def raise_(primals: Any, tangents: Any) -> Any:
        raise ValueError(problem)

    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in split(closed)[0].invars]
    (template,) = split(jax.make_jaxpr(call)(*avals))[0].eqns
    return template.replace(invars=list(invars), outvars=list(outvars))


def without_derivative(value: Any, problem: str) -> Any:
    """The value, which raises a `ValueError` where it is differentiated."""

    @jax.custom_jvp
    def same(value: Any) -> Any:
        return value

    @same.defjvp
    def raise_(primals: Any, tangents: Any) -> Any:
        raise ValueError(problem)

    return same(value)


def manual_axes(params: Mapping[str, Any]) -> frozenset[str]:
    """The mesh axes that a `shard_map` with these parameters divides the work over."""
    # JAX 0.10.2 renamed it; the first goes when 0.10.1 is dropped.
    return frozenset(params["manual_axes"] if "manual_axes" in params else params["newly_manual_axes"])


def _device_axes(eqn: Any, aval: Any) -> tuple[str, ...]:
    """The axes of a `shard_map` along which devices may have different values of a type."""
    manual = [axis for axis in eqn.params["mesh"].axis_names if axis in manual_axes(eqn.params)]
    if eqn.params["check_vma"]:
        manual = [axis for axis in manual if axis in aval.manual_axis_type.varying]
    return tuple(manual)


def array_aval(shape: tuple[int, ...], dtype: Any, weak_type: bool = False) -> Any:
    """The type of an array."""
    plain = jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type)
    return split(jax.make_jaxpr(lambda x: x)(plain))[0].invars[0].aval


def aval_of_devices(eqn: Any, aval: Any) -> Any:
    """The type of the array of all devices' values, along a new first dimension, of a type inside of a `shard_map`."""
    count = math.prod(dict(eqn.params["mesh"].shape)[axis] for axis in _device_axes(eqn, aval))
    return array_aval((count, *aval.shape), aval.dtype, aval.weak_type)


def reshape_eqn(source: Any, target: Var) -> Any:
    """An equation that gives an atom the shape of a variable."""
    plain = jax.ShapeDtypeStruct(source.aval.shape, source.aval.dtype)
    template = split(jax.make_jaxpr(lambda x: jax.lax.reshape(x, target.aval.shape))(plain))[0].eqns[-1]
    return template.replace(invars=[source], outvars=[target])


def with_device_inputs(eqn: Any, jaxpr: Any, arrays: Sequence[Any]) -> Any:
    """A `shard_map` with further operands, of which each device takes its own value, made as `aval_of_devices` says.

    Args:
        eqn: The equation.
        jaxpr: Its new jaxpr, whose last inputs are a device's values.
        arrays: The arrays.
    """
    count = len(jaxpr.invars) - len(arrays)
    taken, specs, eqns = [], [], []
    for var in jaxpr.invars[count:]:
        taken.append(new_var(var.aval.update(shape=(1, *var.aval.shape))))
        specs.append(PartitionSpec(_device_axes(eqn, var.aval)))
        eqns.append(reshape_eqn(taken[-1], var))
    changed = jaxpr.replace(invars=[*jaxpr.invars[:count], *taken], eqns=[*eqns, *jaxpr.eqns])
    params = eqn.params | {"jaxpr": changed, "in_specs": (*eqn.params["in_specs"], *specs)}
    return eqn.replace(invars=[*eqn.invars, *arrays], params=params)


def with_device_results(eqn: Any, jaxpr: Any, taken: Sequence[Any], made: Mapping[Any, Any]) -> Any:
    """A `shard_map` that gives arrays of what devices have inside of it, made as `aval_of_devices` says.

    Args:
        eqn: The equation.
        jaxpr: Its new jaxpr, with further inputs at the end.
        taken: What these inputs are, the same for all devices.
        made: By variable of an array, the atom inside.
    """
    results, specs, eqns = [], [], []
    for atom in made.values():
        results.append(new_var(atom.aval.update(shape=(1, *atom.aval.shape))))
        specs.append(PartitionSpec(_device_axes(eqn, atom.aval)))
        eqns.append(reshape_eqn(atom, results[-1]))
    changed = jaxpr.replace(eqns=[*jaxpr.eqns, *eqns], outvars=[*jaxpr.outvars, *results])
    params = eqn.params | {
        "jaxpr": changed,
        "in_specs": (*eqn.params["in_specs"], *[PartitionSpec()] * len(taken)),
        "out_specs": (*eqn.params["out_specs"], *specs),
    }
    return eqn.replace(invars=[*eqn.invars, *taken], outvars=[*eqn.outvars, *made], params=params)


def copy_eqn(source: Any, target: Var) -> Any:
    """An equation that copies an atom."""
    return _like(_template(_copied, target.aval), source, target)


def _copied(value: Any, _: None) -> Any:
    return jnp.array(value, copy=True)


def constraint_eqn(source: Any, target: Var, sharding: Any) -> Any:
    """An equation that gives an atom a sharding, as `jax.lax.with_sharding_constraint` does."""
    return _like(_template(_constrained, target.aval, sharding), source, target)


def _constrained(value: Any, sharding: Any) -> Any:
    return jax.lax.with_sharding_constraint(value, sharding)


def _like(template: Any, source: Any, target: Var) -> Any:
    """An equation as another one, made here."""
    return template.replace(invars=[source], outvars=[target], source_info=source_info_util.current())


def _template(function: Callable[..., Any], aval: Any, further: Hashable = None) -> Any:
    """The last equation of a function of a value of some type and something else.

    Traced, not built by hand: parameters of JAX's primitives differ between its versions. A step asks for the same ones
    again and again.
    """
    around = (core.JaxprEqnContext(), bool(jax.config.jax_enable_x64))  # type: ignore[attr-defined]
    return _traced_template(
        function, tuple(aval.shape), aval.dtype, bool(getattr(aval, "weak_type", False)), further, around
    )


@functools.lru_cache(maxsize=1024)
def _traced_template(
    function: Callable[..., Any],
    shape: tuple[int, ...],
    dtype: Any,
    weak_type: bool,
    further: Hashable,
    around: Hashable,
) -> Any:
    abstract = jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type)
    return split(jax.make_jaxpr(lambda x: function(x, further))(abstract))[0].eqns[-1]
