"""Steps that another function than `jax.jit` compiled: `mjit(like=...)`, its options, layouts of arguments."""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mmruntime as mm
from mmrewrite.source.jit_kinds import JIT_KINDS
from mmruntime._calling.choose import _KINDS, convention_for
from tests.runtime.helpers import normal, on, stages, weights

nnx = pytest.importorskip("flax.nnx")
eqx = pytest.importorskip("equinox")

pytestmark = pytest.mark.family


def test_the_tool_rewrites_the_functions_that_the_runtime_knows() -> None:
    """Each with the options that `mjit` takes of it, and a convention of its own."""
    carried = {"donate_argnums", "donate_argnames", "static_argnums", "static_argnames"}
    assert {".".join(kind): {*options} - carried for kind, options in _KINDS.items()} == {
        name: {*kind.options} - carried for name, kind in JIT_KINDS.items()
    }
    for kind in _KINDS:
        convention_for(kind, lambda x: x, stages(2), {}, ())


class Tied(nnx.Module):
    """Two layers with one kernel, on two submeshes, and dropout between them."""

    def __init__(self, rngs: Any) -> None:
        self.first = nnx.Linear(4, 4, rngs=rngs)
        self.second = self.first
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = mm.task(self.first, task=on(0))(x)
        return mm.task(self.second, task=on(1))(self.dropout(x))


def test_objects_are_changed_as_under_nnx_jit() -> None:
    def step(objects: dict[str, Any], x: Any, *, calls: Any) -> Any:
        model, count = objects["model"], objects["count"]
        loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        model.first.kernel[...] -= 0.1 * grads["first"]["kernel"][...]
        count[...] += 1
        calls.last = nnx.Variable(loss)
        return loss, objects["model"], {"new": nnx.Param(x)}

    results = []
    for compile_step in (nnx.jit, functools.partial(mm.mjit, mesh=stages(2), like=nnx.jit)):
        model, count, calls = Tied(nnx.Rngs(0)), nnx.Variable(jnp.zeros(())), nnx.Module()
        kernel, compiled = model.first.kernel, compile_step(step)
        for _ in range(3):
            loss, same, made = compiled({"model": model, "count": count}, normal(2, 4), calls=calls)
            assert same is model
            assert model.second is model.first
            assert model.first.kernel is kernel
            assert calls.last[...] == loss
        assert type(made["new"]) is nnx.Param
        results.append([loss, count[...], nnx.to_pure_dict(nnx.state((model, calls), nnx.Not(nnx.RngKey)))])
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), *results)
    # The second call has one variable more, which the first one added.
    assert compiled.num_plans == 2


def test_looking_at_a_step_of_objects_changes_none() -> None:
    def step(model: Any, x: Any) -> Any:
        model.first.kernel[...] = model.first.kernel[...] + model(x).sum()

    model = Tied(nnx.Rngs(0))
    before = np.asarray(model.first.kernel[...])
    compiled = mm.mjit(step, mesh=stages(2), like=nnx.jit, donate_argnums=0)
    assert "stage_1" in str(compiled.plan(model, normal(2, 4)))
    compiled.measure(model, normal(2, 4))
    np.testing.assert_array_equal(model.first.kernel[...], before)
    layout = compiled.abstract_args()[0]["first"]["kernel"].get_value()
    assert compiled(model, normal(2, 4)) is None
    assert model.first.kernel[...].sharding == layout.sharding
    with jax.disable_jit():
        compiled(model, normal(2, 4))


def test_what_is_no_array_is_static_under_filter_jit() -> None:
    traced: list[Any] = []

    def step(x: Any, activation: Any, *, power: int, name: str) -> Any:
        traced.append(power)
        return {name: mm.task(activation, task=on(1))(x) ** power, "power": power, "by": activation}

    x = normal(4)
    compiled = mm.mjit(step, mesh=stages(2), like=eqx.filter_jit)
    for power in (2, 2, 3):
        found = compiled(x, jnp.sin, power=power, name="y")
        assert (found["power"], found["by"]) == (power, jnp.sin)
        np.testing.assert_allclose(found["y"], np.sin(x) ** power, rtol=1e-6)
    assert traced == [2, 3]
    with pytest.raises(TypeError, match=r"got set among the arguments.*must be hashable"):
        compiled(x, {1}, power=1, name="y")


def test_arrays_are_donated_as_equinox_says() -> None:
    def step(params: list[Any], state: list[Any]) -> Any:
        return [mm.task(jnp.add, task=on(i))(w, state[i]) for i, w in enumerate(params)]

    compiled = mm.mjit(step, mesh=stages(2), like=eqx.filter_jit, donate="all-except-first")
    params = compiled([jnp.ones(64), jnp.ones(64)], [jnp.ones(64), jnp.ones(64)])
    state = compiled(params, [jnp.ones(64), jnp.ones(64)])
    again = compiled(params, state)
    assert all(each.is_deleted() for each in state)
    assert not any(each.is_deleted() for each in (*params, *again))
    with pytest.raises(ValueError, match=r"mjit: donate must be one of 'all', 'all-except-first'"):
        mm.mjit(step, mesh=stages(2), like=eqx.filter_jit, donate="first")
    with pytest.raises(ValueError, match=r"known number of arguments, and varied takes \*args"):
        mm.mjit(varied, mesh=stages(2), like=eqx.filter_jit, donate="all")


def varied(*args: Any) -> Any:
    return args


def test_rows_of_devices() -> None:
    """Keys for each row, a static argument, an argument without rows, and rows that are not the first dimension."""

    def step(params: Any, key: Any, scale: float, x: Any) -> Any:
        def loss(params: Any, x: Any) -> Any:
            for i, w in enumerate(params):
                x = mm.task(lambda w, x: jnp.tanh(x @ w), task=on(i))(w, x)
            return (x**2).mean()

        found, grads = mm.microbatch(jax.value_and_grad(loss), count=2, argnum=1, reduce="exact")(params, x)
        noise = scale * jax.random.uniform(key)
        rank = jax.lax.axis_index("rows").astype(noise.dtype)
        return jax.lax.pmean(grads, "rows"), (jax.lax.all_gather(found, "rows") + noise + rank, found)

    options: dict[str, Any] = {
        "axis_name": "rows",
        "in_axes": (None, 0, None, 1),
        "out_axes": (0, (1, 0)),
        "static_broadcasted_argnums": 2,
        # A position that the function has not.
        "donate_argnums": (7,),
    }
    args = (weights(2), jax.random.split(jax.random.key(0), 4), 0.5, normal(8, 4, 4))
    expected = jax.pmap(step, **options)(*args)
    for like in (jax.pmap, functools.partial(jax.pmap, **options)):
        given = options if like is jax.pmap else {}
        compiled = mm.mjit(functools.partial(step), mesh=stages(2, rows=2), like=like, **given)
        assert repr(compiled).startswith("<step step on ")
        found = compiled(*args)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), found, expected)
        assert compiled.abstract_args()[3].sharding.spec == PartitionSpec(None, "rows")
        assert found[0][1].sharding.device_set == set(jax.devices()[2:4])
        # A metric of each row is on a device of its own, as readers of shards expect.
        assert [shard.data.shape for shard in found[1][1].addressable_shards] == [(1,)] * 4


def test_rows_of_the_arrays_of_a_module() -> None:
    """Equinox chooses for each leaf whether it has rows; what is no array is static, among the results too."""

    class Model(eqx.Module):
        layers: list[Any]
        activation: Any

        def __call__(self, x: Any) -> Any:
            for i, w in enumerate(self.layers):
                x = mm.task(lambda w, x: self.activation(x @ w), task=on(i))(w, x)
            return x

    def step(model: Any, x: Any, name: str) -> Any:
        def loss(model: Any, x: Any) -> Any:
            return jnp.mean(model(x) ** 2)

        found, grads = mm.microbatch(eqx.filter_value_and_grad(loss), count=2, argnum=1, reduce="exact")(model, x)
        grads = jax.lax.pmean(grads, "rows")
        return eqx.apply_updates(model, jax.tree.map(lambda g: -g, grads)), found, name

    model, x = Model(weights(2), jnp.tanh), normal(8, 4, 4)
    whole = {"in_axes": (None, eqx.if_array(1), None), "out_axes": (None, 0, None)}
    rows = {"in_axes": {"x": 1}}
    stacked = Model([jnp.stack([w] * 4) for w in weights(2)], jnp.tanh)
    for axes, given in ((whole, model), (rows, stacked)):
        expected = eqx.filter_pmap(step, axis_name="rows", **axes)(given, x, "name")
        for like in (eqx.filter_pmap, functools.partial(eqx.filter_pmap, axis_name="rows", **axes)):
            options = {"axis_name": "rows", **axes} if like is eqx.filter_pmap else {}
            compiled = mm.mjit(step, mesh=stages(2, rows=2), like=like, **options)
            found = compiled(given, x, "name")
            assert found[2] == expected[2] == "name"
            for one, other in zip(eqx.filter(found, eqx.is_array)[0].layers, expected[0].layers, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
            assert found[0].layers[1].sharding.device_set == set(jax.devices()[2:4])


def test_layouts_of_arguments_and_results() -> None:
    own = Mesh(np.array(jax.devices()[:4]).reshape(4, 1), ("data", "model"))
    by_example = NamedSharding(own, PartitionSpec("data"))

    def step(params: list[Any], n: int, x: Any) -> Any:
        for i, w in enumerate(params):
            x = mm.task(lambda w, x: jnp.tanh(x @ w), task=on(i))(w, x)
        return x[:, :3], [w.T[:2] * n for w in params]

    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"), logical_axes=(("hidden", "data"),))
    compiled = mm.mjit(
        step,
        mesh=mesh,
        static_argnums=1,
        in_shardings=[NamedSharding(own, PartitionSpec(None, "model")), by_example],
        out_shardings=(by_example, [None, PartitionSpec(None, "hidden")]),
    )
    params, x = weights(2), normal(8, 4)
    y, doubled = compiled(params, 2, jax.device_put(x, by_example))
    np.testing.assert_allclose(y, jax.jit(step, static_argnums=1)(params, 2, x)[0], rtol=1e-5)
    assert y.sharding.spec == PartitionSpec("data")
    assert y.sharding.device_set == set(jax.devices()[2:4])
    assert doubled[1].sharding.spec == PartitionSpec(None, "data")
    assert compiled.abstract_args()[2].sharding.spec == PartitionSpec("data")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"like": jnp.sin},
            r"like must be jax\.jit, nnx\.jit, eqx\.filter_jit, eqx\.filter_pmap or jax\.pmap, or a functools\.partial",
        ),
        ({"like": nnx.jit, "axis_name": "x"}, r"axis_name= is no option of a step like flax\.nnx\.jit; there are"),
        ({"like": nnx.jit, "in_shardings": PartitionSpec()}, r"in_shardings= of nnx\.jit is not supported: .*state of"),
        ({"axis_name": "x"}, r"axis_name= is no option of a step like jax\.jit"),
        (
            {"like": functools.partial(jax.jit, static_argnums=0), "static_argnums": 0},
            r"static_argnums is given, and is in the functools\.partial of like= too",
        ),
        ({"like": functools.partial(jax.pmap, devices=[])}, r"devices= is no option of a step like jax\.pmap"),
        (
            {"out_shardings": jax.devices()[0]},
            r"out_shardings is .*; expected None, a PartitionSpec or a NamedSharding",
        ),
        (
            {"in_shardings": (PartitionSpec("model"),)},
            r"in_shardings\[0\] is .*'model'.*, and the mesh of the step has no axis 'model'; it has stage=2\. Say in "
            r"logical_axes= .*axes\(model=\.\.\.\)",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_does_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^mjit: {message}"):
        mm.mjit(varied, mesh=stages(2), **options)


def test_layouts_that_are_no_prefix() -> None:
    compiled = mm.mjit(varied, mesh=stages(2), in_shardings=([None, None],))
    with pytest.raises(ValueError, match=r"^mjit: in_shardings does not fit the arguments: "):
        compiled([1.0, 2.0, 3.0])


def test_the_runtime_needs_none_of_these_libraries() -> None:
    names = [name for name in sys.modules if name.startswith("mmruntime._calling")]
    for name in names:
        assert not {"nnx", "equinox", "flax"} & vars(sys.modules[name]).keys()
