"""Tasks that `register_task` makes of named scopes."""

import jax
import jax.numpy as jnp
import pytest

import mmruntime as mm
from tests.runtime.helpers import (
    WIDTH,
    assert_close,
    batches,
    ids,
    in_stages,
    layer,
    normal,
    on,
    sgd,
    sgd_step,
    squares,
    stages,
    train,
    weights,
)

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]


def scoped(params, batch):
    x = batch["x"]
    for index in range(len(params)):
        with jax.named_scope(f"layer{index}"):
            x = layer(params[index], x)
    return squares(x, batch["y"])


def by_number(group, backprop):
    return mm.Task(mesh_slice={"stage": int(group[-1])}, name=f"{group}{'_bwd' if backprop else ''}")


@pytest.mark.parametrize("remat", [None, "layer", "whole"])
def test_registered_scopes(remat):
    def loss(params, batch):
        x = batch["x"]
        for index in range(3):
            with jax.named_scope(f"layer{index}"):
                x = (jax.checkpoint(layer) if remat == "layer" else layer)(params[index], x)
        return squares(x, batch["y"])

    if remat == "whole":
        loss = jax.checkpoint(loss)
    mesh = stages(3)
    mesh.register_task(r"(layer\d+)", callback=by_number)
    _, params = train(sgd_step(loss, schedule="1f1b"), mesh, weights(3), batches(2))
    assert [ids(w) for w in params] == [{0}, {1}, {2}]


def test_registered_tasks_and_tasks_agree():
    mesh = stages(3)
    for index in range(3):
        mesh.register_task(f"layer{index}", task=on(index))
    by_scope, _ = mm.mjit(sgd_step(scoped), mesh=mesh)(weights(3), batches(1)[0])

    def loss(params, batch):
        return squares(in_stages(params, batch["x"], 3), batch["y"])

    by_task, _ = mm.mjit(sgd_step(loss), mesh=stages(3))(weights(3), batches(1)[0])
    assert_close(by_scope, by_task, 1e-12)
    assert [ids(w) for w in by_scope] == [ids(w) for w in by_task]


@pytest.mark.parametrize("remat", [False, True], ids=["plain", "remat"])
def test_flax_module_names(remat):
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + nn.tanh(nn.Dense(WIDTH, param_dtype=jnp.float64)(nn.LayerNorm(param_dtype=jnp.float64)(x)))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            block = nn.remat(Block) if remat else Block
            for index in range(4):
                x = block(name=f"layer_{index}")(x)
            return nn.Dense(WIDTH, name="head", param_dtype=jnp.float64)(x)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        net = Net()
        params = net.init(jax.random.key(0), normal(2, WIDTH))

        def loss(params, batch):
            return squares(net.apply(params, batch["x"]), batch["y"])

        mesh = stages(4)
        mesh.register_task(r"(layer_\d+)", callback=by_number)
        _, params = train(sgd_step(loss, schedule="1f1b"), mesh, params, batches(2))
    for index in range(4):
        assert [ids(leaf) for leaf in jax.tree.leaves(params["params"][f"layer_{index}"])] == [{index}] * 4
    assert ids(params["params"]["head"]["kernel"]) == {3}


def test_flax_modules_as_tasks_with_dropout_and_batch_statistics():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.Dense(WIDTH, param_dtype=jnp.float64)(x)
            x = nn.BatchNorm(use_running_average=not train, param_dtype=jnp.float64)(x)
            return nn.Dropout(0.5)(nn.tanh(x), deterministic=not train)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=True):
            for index in range(2):
                x = mm.task(Block(name=f"layer_{index}"), task=on(index))(x, train=train)
            return x

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        net = Net()
        variables = net.init(jax.random.key(0), normal(2, WIDTH), train=False)

        def step(state, batch):
            key, used = jax.random.split(state["key"])

            def loss(params):
                out, updated = net.apply(
                    {"params": params, "batch_stats": state["stats"]},
                    batch["x"],
                    mutable=["batch_stats"],
                    rngs={"dropout": used},
                )
                return squares(out, batch["y"]), updated["batch_stats"]

            (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
            return {"params": sgd(state["params"], grads), "stats": stats, "key": key}, value

        stats = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), variables["batch_stats"])
        state = {"params": variables["params"], "stats": stats, "key": jax.random.key(1)}
        _, state = train(step, stages(2), state, batches(3), rtol=1e-11)
    for index in range(2):
        for part in ("params", "stats"):
            assert {frozenset(ids(leaf)) for leaf in jax.tree.leaves(state[part][f"layer_{index}"])} == {
                frozenset({index})
            }
