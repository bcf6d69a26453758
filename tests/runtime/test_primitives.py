"""The page of primitives against JAX itself: what it says of factors and of sums is so, for random numbers."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from mmruntime._jaxpr.primitives import ENTRY_BY_ENTRY, MOVES, factors, linear_in

pytestmark = pytest.mark.usefixtures("double", "free_promotion")


def numbers(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).uniform(0.1, 0.9, shape)


A, B = numbers(4, 3, 2), numbers(4, 3, 2, seed=1)
INDICES = np.array([[[1], [0]], [[2], [1]], [[0], [0]], [[2], [2]]])
IMAGE, KERNEL = numbers(2, 3, 6), numbers(4, 3, 3)
FORMS = {
    "transpose": (lambda x: lax.transpose(x, (2, 0, 1)), A),
    "broadcast": (lambda x: lax.broadcast_in_dim(x, (4, 5, 3, 2), (0, 2, 3)), A),
    "broadcast of one entry": (lambda x: lax.broadcast_in_dim(x, (4, 3), (0, 1)), A[:, :1, 0]),
    "reshape": (lambda x: lax.reshape(x, (4, 6)), A),
    "reshape apart": (lambda x: lax.reshape(x, (2, 2, 3, 2)), A),
    "squeeze": (lambda x: lax.squeeze(x, (1,)), A[:, :1]),
    "expand": (lambda x: lax.expand_dims(x, (1,)), A),
    "slice": (lambda x: lax.slice(x, (1, 0, 0), (3, 3, 2)), A),
    "reverse": (lambda x: lax.rev(x, (1,)), A),
    "concatenate": (lambda x, y: lax.concatenate([x, y], 1), A, B),
    "stack": (lambda x, y: jnp.stack([x, y], 1), A, B),
    "split": (lambda x: lax.split(x, (1, 3), 0), A),
    "pad": (lambda x, y: lax.pad(x, y, [(0, 0, 0), (1, 2, 0), (0, 0, 1)]), A, np.array(2.0)),
    "sum": (lambda x: lax.reduce_sum_p.bind(x, axes=(1,), **REDUCTION), A),
    "maximum": (lambda x: jnp.max(x, (0, 2)), A),
    "argmax": (lambda x: jnp.argmax(x, 1), A),
    "running sum": (lambda x: lax.cumsum(x, 1), A),
    "running maximum": (lambda x: lax.cummax(x, 2), A),
    "sort": (lambda x: lax.sort(x, dimension=1), A),
    "sort of two": (lambda x, y: lax.sort((x, y), dimension=1, num_keys=1), A, B),
    "largest": (lambda x: lax.top_k(x, 2), A),
    "dot": (lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (2,)))), A, numbers(5, 2, 4)),
    "matrices": (lambda x, y: x @ y, A[0], A[0].T),
    "contraction of two": (lambda x, y: lax.dot_general(x, y, (((0, 2), (0, 2)), ((), ()))), A, B),
    "convolution": (lambda x, y: lax.conv(x, y, (1,), "SAME"), IMAGE, KERNEL),
    "gather": (lambda x: jnp.take(x, jnp.asarray([2, 0, 1, 1]), 0), A),
    "gather along": (lambda x, i: jnp.take_along_axis(x, i, 1), A, INDICES[:, :, [0, 0]]),
    "scatter": (lambda x, y: x.at[jnp.asarray([2, 0])].set(y), A, B[:2]),
    "scatter and add": (lambda x, y: x.at[jnp.asarray([2, 0, 2])].add(y), A, B[:3]),
    "scatter along": (lambda x, y: jax.vmap(lambda a, b: a.at[jnp.asarray([1, 1])].add(b))(x, y), A, B[:, :2]),
    "part": (lambda x: lax.dynamic_slice(x, (1, 0, 0), (2, 3, 2)), A),
    "update": (lambda x, y: lax.dynamic_update_slice(x, y, (1, 0, 0)), A, B[:2]),
    "choice": (lambda x, y: lax.select_n(np.tile([True, False], (4, 3, 1)), x, y), A, B),
    "choice of all": (lambda x, y: lax.select(jnp.asarray(True), x, y), A, B),
    "clamp": (lambda x: lax.clamp(0.2, x, 0.5), A),
    "conversion": (lambda x: lax.convert_element_type(x, jnp.float32), A),
    "precision": (lambda x: lax.reduce_precision(x, 11, 52), A),
    "copy": (jnp.copy, A),
}
REDUCTION = {} if "out_sharding" not in str(jax.make_jaxpr(jnp.sum)(A)) else {"out_sharding": None}
FORMS |= {"one for all": (lax.sub, A, B[:, :1])}
FORMS |= {name: (getattr(lax, name), A) for name in ("neg", "exp", "tanh", "abs", "square", "is_finite")}
FORMS |= {name: (getattr(lax, name), A, B) for name in ("add", "sub", "mul", "div", "max", "atan2", "lt", "nextafter")}


@functools.cache
def equations():
    """Each equation of the forms, with the values of its operands."""
    listed = []
    for name, (function, *operands) in FORMS.items():
        closed = jax.make_jaxpr(function)(*operands)
        found = []
        run(closed, [jnp.asarray(x) for x in operands], found)
        listed += [(name, *each) for each in found]
    return listed


def run(closed, operands, found):
    """The results of a jaxpr; its equations, those of calls too, are added to `found`."""
    jaxpr = closed.jaxpr
    env = dict(zip((*jaxpr.invars, *jaxpr.constvars), (*operands, *closed.consts), strict=True))
    for eqn in jaxpr.eqns:
        values = [read(env, atom) for atom in eqn.invars]
        if "jaxpr" in eqn.params:
            made = run(eqn.params["jaxpr"], values, found)
        else:
            found.append((eqn, values))
            made = results(eqn, values)
        env |= dict(zip(eqn.outvars, made, strict=True))
    return [read(env, atom) for atom in jaxpr.outvars]


def read(env, atom):
    return jnp.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else env[atom]


def results(eqn, values):
    found = eqn.primitive.bind(*values, **eqn.params)
    return list(found) if eqn.primitive.multiple_results else [found]


def local(eqn, factor):
    """The parameters for one entry of a factor."""
    params, name = dict(eqn.params), eqn.primitive.name
    for key in ("shape", "new_sizes", "limit_indices"):
        if name in ("broadcast_in_dim", "reshape", "slice") and key in params:
            sizes = list(params[key])
            sizes[factor.outs[0]] = 1
            params[key] = tuple(sizes)
    if name == "gather" and 0 in factor.ins and 1 not in factor.ins:
        sizes = list(params["slice_sizes"])
        sizes[factor.ins[0]] = 1
        params["slice_sizes"] = tuple(sizes)
    return params


def parts_of(eqn, factor, values):
    """The results of an equation for one entry of a factor after the other."""
    shapes = [values[k].shape[dim] for k, dim in factor.ins.items()]
    count = shapes[0] if shapes else eqn.outvars[0].aval.shape[factor.outs[0]]
    params, parts = local(eqn, factor), []
    for number in range(count):
        cut = [
            lax.slice_in_dim(x, number, number + 1, axis=factor.ins[k]) if k in factor.ins else x
            for k, x in enumerate(values)
        ]
        if eqn.primitive.name == "scatter-add" and not factor.outs and number:
            cut[0] = jnp.zeros_like(cut[0])
        found = eqn.primitive.bind(*cut, **params)
        parts.append(list(found) if eqn.primitive.multiple_results else [found])
    return parts


def test_factors_are_those_of_jax():
    """A primitive on one entry of a factor gives one entry of its results, or what adds up or compares to them."""
    seen, every = set(), [*equations()]
    of_equations = [factors(eqn) for _, eqn, _ in every]

    @jax.jit  # one program for all
    def computed(inputs):
        return [
            (results(eqn, values), [parts_of(eqn, factor, values) for factor in listed])
            for (_, eqn, _), listed, values in zip(every, of_equations, inputs, strict=True)
        ]

    found = computed([values for _, _, values in every])
    for (form, eqn, _), listed, (whole, of_factors) in zip(every, of_equations, found, strict=True):
        name = eqn.primitive.name
        for factor, parts in zip(listed, of_factors, strict=True):
            for k, (expected, *each) in enumerate(zip(whole, *parts, strict=True)):
                seen.add((name, bool(factor.outs)))
                if factor.outs:
                    np.testing.assert_allclose(np.concatenate(each, factor.outs[k]), expected, err_msg=form)
                elif name in ("reduce_sum", "dot_general", "conv_general_dilated", "scatter-add"):
                    np.testing.assert_allclose(np.sum(each, 0), expected, rtol=1e-12, err_msg=form)
                elif name == "reduce_max":
                    np.testing.assert_allclose(np.max(each, 0), expected, err_msg=form)
        if name not in ("dynamic_slice", "dynamic_update_slice", "reshape", "iota"):
            assert listed or not whole[0].ndim, f"{name} has no factors"
    assert {("dot_general", False), ("gather", True), ("scatter-add", False), ("scatter-add", True)} <= seen


def test_equations_are_linear_in_what_the_page_says():
    seen = set()
    for form, eqn, values in equations():
        for group in linear_in(eqn):
            if not all(jnp.issubdtype(values[k].dtype, jnp.floating) for k in group):
                continue
            seen.add(eqn.primitive.name)
            other = [numbers(*x.shape, seed=7).astype(x.dtype) if k in group else x for k, x in enumerate(values)]
            added = [2 * x + y if k in group else x for k, (x, y) in enumerate(zip(values, other, strict=True))]
            for one, two, both in zip(*(results(eqn, each) for each in (values, other, added)), strict=True):
                np.testing.assert_allclose(2 * one + two, both, rtol=1e-6, err_msg=form)
    assert {"mul", "dot_general", "select_n", "scatter-add", "pad", "dynamic_update_slice", "gather"} <= seen


def test_the_page_says_linear_of_all_that_is():
    """What is linear in its only operand, and on the page at all, is said to be."""
    for form, eqn, values in equations():
        if len(values) != 1 or not jnp.issubdtype(values[0].dtype, jnp.floating):
            continue
        other = numbers(*values[0].shape, seed=7)
        each = [results(eqn, [x])[0] for x in (values[0], other, 3 * other - 2 * values[0])]
        if jnp.issubdtype(each[0].dtype, jnp.floating):
            is_linear = np.allclose(3 * each[1] - 2 * each[0], each[2], atol=1e-6)
            assert is_linear == (linear_in(eqn) == [(0,)]), form


def test_moves_compute_nothing():
    for form, eqn, values in equations():
        if eqn.primitive.name not in MOVES:
            continue
        given = set(itertools.chain.from_iterable(np.asarray(x).ravel().tolist() for x in values))
        for each in results(eqn, values):
            # `pad` puts its second operand in between.
            assert set(np.asarray(each).ravel().tolist()) <= given, form


def test_entries_are_functions_of_entries_at_their_position():
    for form, eqn, values in equations():
        if eqn.primitive.name in ENTRY_BY_ENTRY and values[0].shape == A.shape:
            one = [x[:1, :1, :1] if x.ndim == A.ndim else x for x in values]
            np.testing.assert_allclose(results(eqn, one)[0], results(eqn, values)[0][:1, :1, :1], err_msg=form)
