"""Layers that are alike are traced inside, differentiated and proved once."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime import _compat
from mmruntime._frontend import task_call
from mmruntime._frontend.loops.exact_microbatch import trace
from mmruntime._jaxpr.canonical_forms import Forms, one_of_equal, sharing_equal_traces
from tests.runtime.helpers import normal, on, weights

X = np.ones((2, 4), np.float32)
TABLE = jnp.ones((2, 4))


def same_trace(*traces: Any) -> bool:
    forms = Forms()
    return len({forms.of_trace(each) for each in traces}) == 1


def test_one_line_in_a_loop_gives_one_trace() -> None:
    def layer(k: float) -> Any:
        return lambda x: jnp.tanh(jax.jit(lambda y: y * k)(x) @ jnp.ones((4, 4))) + TABLE

    with sharing_equal_traces():
        found = [one_of_equal(jax.make_jaxpr(layer(k))(X)) for k in (2.0, 2.0, 3.0)]
    (one, _), (other, _), (third, _) = found
    assert one is other
    assert third is not one
    assert all(numbers == [] for _, numbers in found)
    assert one_of_equal(one) == (one, [])


def test_numbers_that_are_folded_into_keys_are_passed() -> None:
    def layer(number: int, scale: float) -> Any:
        def fun(x: Any, key: Any) -> Any:
            return jnp.where(jax.random.bernoulli(jax.random.fold_in(key, number), 0.5, x.shape), x, 0.0) * scale

        return fun

    key = jax.random.key(0)
    with sharing_equal_traces():
        traced = [jax.make_jaxpr(layer(*each))(X, key) for each in ((3, 1.0), (4, 1.0), (4, 2.0))]
        (one, first), (other, second), (third, _) = [one_of_equal(each) for each in traced]
    assert one is other
    assert third is not one
    assert [[int(number) for number in numbers] for numbers in (first, second)] == [[3], [4]]
    for number, numbers in ((3, first), (4, second)):
        (result,) = jax.extend.core.jaxpr_as_fun(one)(X, key, *numbers)
        np.testing.assert_array_equal(result, layer(number, 1.0)(X, key))


def test_layers_with_dropout_are_differentiated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # No code asks which task it is traced for, so what JAX keeps serves all.
    monkeypatch.setattr(task_call, "_task_was_read", False)
    seen: list[int] = []

    def loss(ws: Any, x: Any, key: Any) -> Any:
        def layer(w: Any, x: Any, key: Any) -> Any:
            return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), jnp.tanh(x @ w), 0.0)

        for index, w in enumerate(ws):
            x = mm.task(lambda w, x, key, i=index: layer(w, x, jax.random.fold_in(key, i)), f"layer_{index}")(w, x, key)
        return (x**2).mean()

    def gradient(ws: Any, x: Any, key: Any) -> Any:
        return mm.microbatch(jax.grad(loss), size=1, argnum=1, rng=2, reduce="exact")(ws, x, key)

    def forward(closed: Any) -> None:
        for eqn in _compat.split(closed)[0].eqns:
            if eqn.primitive.name == "jit" and "layer_" in str(eqn.params["name"]):
                seen.append(id(eqn.params["jaxpr"]))
            for inner in _compat.inner_jaxprs(eqn):
                forward(inner)

    ws = [jnp.full((4, 4), 0.1 * (index + 1)) for index in range(4)]
    forward(jax.make_jaxpr(gradient)(ws, X, jax.random.key(0)))
    # Forwards and backwards: the first layer, which has no gradient to pass on, and one program for all others.
    assert len(seen) == 8
    assert len(set(seen)) == 4
    found = mm.mjit(gradient, mesh=mm.MultiMesh(axis_sizes=(1, 8), axis_names=("stage", "data")))(
        ws, X, jax.random.key(0)
    )
    for one, other in zip(found, gradient(ws, X, jax.random.key(0)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x, zero: x + zero, (0.0, -0.0)),
        (lambda x, one: jax.lax.pow(x, jnp.asarray(one, x.dtype)), (1.0, 2.0)),
        (lambda x, axis: x.sum(axis=axis, keepdims=True), (0, 1)),
        (lambda x, dtype: x.astype(dtype), (jnp.int32, jnp.uint32)),
        (lambda x, table: x + table, (TABLE, TABLE + 0)),
        (lambda x, at: jax.lax.cond(x[0, 0] > 0, jnp.sin, at, x), (jnp.sin, jnp.cos)),
        (lambda x, first: (x, x * 2) if first else (x * 2, x), (True, False)),
    ],
    ids=["zero", "literal", "parameter", "type", "constant", "branch", "order"],
)
def test_other_computations_have_traces_of_their_own(one: Any, other: tuple[Any, Any]) -> None:
    found = [jax.make_jaxpr(lambda x, given=given: one(x, given))(X) for given in other]
    assert not same_trace(*found)
    again = [jax.make_jaxpr(lambda x, given=given: one(x, given))(X) for given in (other[0], other[0])]
    assert same_trace(*again)


def test_a_line_and_a_derivative_of_its_own_are_kept() -> None:
    def with_derivative(scale: float) -> Any:
        @jax.custom_jvp
        def f(x: Any) -> Any:
            return x

        f.defjvp(lambda primals, tangents: (primals[0], scale * tangents[0]))
        return f

    assert not same_trace(*[jax.make_jaxpr(with_derivative(scale))(X) for scale in (1.0, 2.0)])
    # Messages name lines.
    assert not same_trace(jax.make_jaxpr(lambda x: x * 2)(X), jax.make_jaxpr(lambda x: x * 2)(X))


def test_layers_that_are_alike_are_differentiated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # A program that has asked which task it is in, as other tests do, keeps its layers apart from then on.
    monkeypatch.setattr(task_call, "_task_was_read", False)
    traced = []

    @jax.jit
    def inside(x: Any) -> Any:
        # That microbatches trace it once more is not to be seen here.
        if len(x) == 8:
            traced.append(x.shape)
        return jnp.tanh(x)

    def loss(ws: Any, x: Any) -> Any:
        for index, w in enumerate(ws):
            x = mm.task(lambda w, x: inside(x @ w), task=on(index))(w, x)
        return x.mean()

    ws, x = weights(4), normal(8, 4)
    found = trace(jax.value_and_grad(loss), (ws, x))
    calls = [eqn for eqn in _compat.split(found)[0].eqns if eqn.params.get("name", "").startswith("mm_task")]
    assert len({eqn.params["name"] for eqn in calls}) == len(ws)
    # The first of four is not differentiated by its input, and others differ in that alone.
    assert len({id(eqn.params["jaxpr"]) for eqn in calls}) <= len(calls) // 2
    assert traced == [(8, 4)]
    step = mm.mjit(
        lambda ws, x: mm.microbatch(jax.value_and_grad(loss), count=4, argnum=1, reduce="exact")(ws, x),
        mesh=mm.MultiMesh(axis_sizes=(4,), axis_names=("stage",)),
    )
    for one, other in zip(jax.tree.leaves(step(ws, x)), jax.tree.leaves(jax.value_and_grad(loss)(ws, x)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_thread_has_keys_of_its_own() -> None:
    """Another thread may find out, in the midst of a trace, that it depends on the task."""
    keys = [task_call._AnyTask(on(index)) for index in range(2)]
    thread = threading.Thread(target=lambda: keys.append(task_call._AnyTask(on(0))))
    thread.start()
    thread.join()
    assert keys[0] == keys[1]
    assert keys[2] not in keys[:2]
