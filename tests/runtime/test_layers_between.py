"""Layers outside of tasks, between two stages: forward and backward pass, parameters and their moments in one place."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import normal, on, stages

optax = pytest.importorskip("optax")

pytestmark = pytest.mark.usefixtures("double")

WIDTH = 4
# A part of a path such as ['stage2'].
STAGE = re.compile(r"stage(\d)")


@pytest.fixture(autouse=True)
def as_users_write():
    """Optax mixes types, and layers add their biases."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def layer(w, x):
    return x + jnp.tanh(x @ w["w"]) + w["b"]


def weights(seed, width=WIDTH):
    return {"w": normal(width, width, seed=seed) / 2, "b": normal(width, seed=seed + 50)}


def chain(between, count=3, of=None, at=lambda index: index):
    """Layers with another function, and its parameters, behind each but the last."""

    def loss(params, x):
        for index in range(count):
            stage = f"stage{at(index)}"
            x = mm.task(layer, task=on(at(index)))(params[stage]["layer"], x)
            if index < count - 1:
                x = between(params[stage]["between"], x)
        return jnp.mean(x**2)

    params = {
        f"stage{at(index)}": {"layer": weights(index), "between": weights(10 + index) if of is None else of(index)}
        for index in range(count)
    }
    del params[f"stage{at(count - 1)}"]["between"]
    return loss, params


def norm(w, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w["b"]


def scanned(w, x):
    return jax.lax.scan(lambda x, b: (jnp.sin(x @ w["w"]) + b, None), x, jnp.stack([w["b"], 2 * w["b"]]))[0]


def conditional(w, x):
    return jax.lax.cond(jnp.sum(w["b"]) > 0, lambda w, x: x @ w["w"], lambda w, x: jnp.sin(x @ w["w"]), w, x)


@jax.custom_vjp
def scaled(x, b):
    return x * b


scaled.defvjp(lambda x, b: (x * b, (x, b)), lambda kept, ct: (ct * kept[1], (ct * kept[0]).sum(0)))


def widened(w, x):
    return jnp.concatenate([x, x * w["b"]], -1) @ jnp.concatenate([w["w"], w["w"] ** 2])


def frozen(w, x):
    """Part of its input has no gradient."""
    return (jax.lax.stop_gradient(x) + w["b"]) @ w["w"] + x


BETWEEN = {
    "layer": layer,
    "norm": norm,
    "scan": scanned,
    "cond": conditional,
    "checkpoint": jax.checkpoint(layer),
    "jit": jax.jit(layer),
    "custom_vjp": lambda w, x: scaled(x, w["b"]) @ w["w"],
    "vmap": lambda w, x: jax.vmap(layer, (None, 0))(w, x),
    "concatenate": widened,
    "stop_gradient": frozen,
    "bias": lambda w, x: x + w["b"],
    "broadcast": lambda w, x: x @ w["w"] + jnp.broadcast_to(jnp.sin(w["b"]), x.shape),
    "two": lambda w, x: layer(w, norm(w, x)),
}


def trained(loss, count=2, schedule="1f1b"):
    optimizer = optax.adam(0.1)

    def step(params, state, x):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=count, schedule=schedule, reduce="mean")(
            params, x
        )
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, optimizer.init


def check(loss, params, mesh, **options):
    """Train for a step; results are those of one device, and all state lies where its path says."""
    step, init = trained(loss, **options)
    x = normal(8, WIDTH, seed=99)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = jax.jit(step)(params, init(params), x)
        got = mm.mjit(step, mesh=mesh)(params, init(params), x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), got, wanted)
    length = mesh.mesh.shape["stage"]
    each = 8 // length if mesh.mesh.size == 8 else 1
    for path, leaf in jax.tree_util.tree_leaves_with_path(got):
        found = STAGE.search(jax.tree_util.keystr(path))
        if found is not None:
            at = {device.id // each for device in leaf.devices()}
            assert at == {int(found[1])}, f"{jax.tree_util.keystr(path)} on {at}"


@pytest.mark.slow
@pytest.mark.parametrize("form", BETWEEN)
def test_it_lies_with_the_stage_before_it(form):
    loss, params = chain(BETWEEN[form])
    if form in ("norm", "bias"):
        for each in ("stage0", "stage1"):
            del params[each]["between"]["w"]
    check(loss, params, stages(3))


@pytest.mark.slow
def test_a_loop_with_two_layers_to_a_stage():
    """The same line runs on each stage, and at the border of two the derivative has two to choose from."""

    def loss(params, x):
        for index in range(4):
            own = params[f"stage{index // 2}"][index % 2]
            x = norm(own["norm"], mm.task(layer, task=on(index // 2))(own["layer"], x))
        return jnp.mean(x**2)

    params = {
        f"stage{stage}": [
            {"layer": weights(2 * stage + k), "norm": {"b": normal(WIDTH, seed=70 + 2 * stage + k)}} for k in range(2)
        ]
        for stage in range(2)
    }
    check(loss, params, stages(2))


@pytest.mark.slow
def test_skip_connections_from_every_stage():
    """What a later stage joins is cut there again, whatever comes back to the earlier one."""

    def loss(params, x):
        skipped = []
        for index in range(2):
            x = layer(
                params[f"stage{index}"]["between"], mm.task(layer, task=on(index))(params[f"stage{index}"]["a"], x)
            )
            skipped.append(x)
        for index in reversed(range(2)):
            joined = jnp.concatenate([x, skipped[index]], -1) * 0.5
            x = mm.task(lambda w, x: jnp.tanh(x @ w["w"][:, :WIDTH]), task=on(3 - index))(
                params[f"stage{3 - index}"]["a"], joined
            )
        return jnp.mean(x**2)

    params = {f"stage{k}": {"a": weights(k, WIDTH if k < 2 else 2 * WIDTH)} for k in range(4)}
    for k in range(2):
        params[f"stage{k}"]["between"] = weights(20 + k)
    check(loss, params, stages(4))


@pytest.mark.slow
def test_products_with_an_earlier_stage_stay_on_the_later_one():
    """Each factor's cotangent is made where the product is, and a gate's weights are where it is."""

    def loss(params, x):
        first = x = mm.task(layer, task=on(0))(params["stage0"], x)
        for index in (1, 2, 3):
            x = mm.task(layer, task=on(index))(params[f"stage{index}"]["layer"], x)
            x = (x * first) @ params[f"stage{index}"]["gate"]["w"]
        return jnp.mean(x**2)

    params = {f"stage{k}": {"layer": weights(k), "gate": weights(30 + k)} for k in (1, 2, 3)} | {"stage0": weights(0)}
    for k in (1, 2, 3):
        del params[f"stage{k}"]["gate"]["b"]
    check(loss, params, stages(4))


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1, 0, 1), (0, 1, 1, 0), (1, 0, 1, 0)], ids=str)
@pytest.mark.parametrize("named", [False, True])
def test_stages_that_are_visited_twice(order, named):
    """Also where the tasks of both visits have one name."""

    def loss(params, x):
        for index, stage in enumerate(order):
            own = params[f"{index} stage{stage}"]
            task = on(stage, f"visit_{index}" if named else None)
            x = norm(own["norm"], mm.task(layer, task=task)(own["layer"], x))
        return jnp.mean(x**2)

    params = {
        f"{index} stage{stage}": {"layer": weights(index), "norm": {"b": normal(WIDTH, seed=80 + index)}}
        for index, stage in enumerate(order)
    }
    check(loss, params, stages(2), schedule="gpipe")


def test_what_every_layer_of_a_decoder_reads():
    """Its cotangent is complete with the first of these, and its derivative runs with the encoder's last layer."""

    def decode(w, y, memory):
        return layer(w, y) + jnp.sin(memory @ w["w"])

    def loss(params, x):
        y = 2 * x
        for index in range(3):
            x = mm.task(layer, task=on(index))(params[f"stage{index}"]["encoder"], x)
        memory = norm(params["stage2"]["norm"], x)
        for index in range(3):
            y = mm.task(decode, task=on(index))(params[f"stage{index}"]["decoder"], y, memory)
        return jnp.mean(y**2)

    params = {f"stage{k}": {"encoder": weights(k), "decoder": weights(40 + k)} for k in range(3)}
    params["stage2"]["norm"] = {"b": normal(WIDTH, seed=90)}
    check(loss, params, stages(3))


def test_without_a_loop_of_microbatches():
    loss, params = chain(layer, count=2)

    def step(params, x):
        grads = jax.grad(loss)(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)

    x = normal(8, WIDTH, seed=99)
    got, wanted = mm.mjit(step, mesh=stages(2))(params, x), jax.jit(step)(params, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), got, wanted)
    for path, leaf in jax.tree_util.tree_leaves_with_path(got):
        (device,) = leaf.devices()
        assert device.id == int(STAGE.search(jax.tree_util.keystr(path))[1])
