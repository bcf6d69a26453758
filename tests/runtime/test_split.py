"""Backward passes in two halves: what each holds, for scans over layers too."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime import _compat
from tests.runtime.helpers import on, sgd, squares, stages

pytestmark = pytest.mark.family

LAYERS, WIDTH, HIDDEN, STAGES, MICROBATCHES = 3, 4, 8, 2, 4


def layer(w, x):
    return x + jnp.tanh(x @ w[0]) @ w[1]


def over_layers(body):
    return lambda w, x: jax.lax.scan(lambda x, w: (body(w, x), None), x, w)[0]


def with_shared_weight(w, x):
    return jax.lax.scan(lambda x, v: (layer((w[0][0], v), x), None), x, w[1])[0]


def nested(w, x):
    def twice(x, w):
        return jax.lax.scan(lambda x, _: (layer(w, x), None), x, None, length=2)[0], None

    return jax.lax.scan(twice, x, w)[0]


def backwards(w, x):
    return jax.lax.scan(lambda x, w: (layer(w, x), None), x, w, reverse=True, unroll=2)[0]


def with_results_of_each_layer(w, x):
    x, each = jax.lax.scan(lambda x, w: (layer(w, x), jnp.sin(x) * w[0][0, 0]), x, w)
    return x + each.sum(0)


def unscanned(w, x):
    for index in range(LAYERS):
        x = layer((w[0][index], w[1][index]), x)
    return x


# Each block, and how often it runs each layer's two products forward and again for rematerialisation.
BLOCKS = {
    "unscanned": (unscanned, 1, 0),
    "scan": (over_layers(layer), 1, 0),
    "checkpointed_layers": (over_layers(jax.checkpoint(layer)), 1, 0.5),
    "checkpointed_block": (jax.checkpoint(over_layers(layer)), 1, 1),
    "checkpointed_block_and_layers": (jax.checkpoint(over_layers(jax.checkpoint(layer))), 1, 1.5),
    "policy": (over_layers(jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)), 1, 0),
    "shared_weight": (with_shared_weight, 1, 0),
    "nested": (nested, 2, 0),
    "reversed_and_unrolled": (backwards, 1, 0),
    "results_of_each_layer": (with_results_of_each_layer, 1, 0),
}


def products(eqns) -> int:
    """How often the equations multiply matrices, those of loops as often as they run."""
    count = 0
    for eqn in eqns:
        times = eqn.params["length"] if eqn.primitive is _compat.scan_p else 1
        count += eqn.primitive.name == "dot_general"
        count += times * sum(products(inner.eqns) for inner in _compat.inner_jaxprs(eqn))
    return count


def products_by_part(step) -> dict[str, list[int]]:
    """Of each half, "I" or "W", the products of each stage; under "" those of other programs that have any."""
    parts = {"I": [], "W": [], "": []}
    for segment in step.latest_plan.segments:
        count = products([op.eqn for op in segment.ops])
        if count or segment.part:
            parts[segment.part].append(count)
    return parts


def make_step(block):
    def loss(params, batch):
        x = batch["x"]
        for index in range(STAGES):
            x = mm.task(block, task=on(index))(params[index], x)
        return squares(x, batch["y"])

    def step(params, batch):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=MICROBATCHES, schedule="zb-h1")(
            params, batch
        )
        return sgd(params, grads, 0.01), value

    return step


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) * 0.3, jnp.float32)

    params = [(normal(LAYERS, WIDTH, HIDDEN), normal(LAYERS, HIDDEN, WIDTH)) for _ in range(STAGES)]
    return params, {"x": normal(2 * MICROBATCHES, WIDTH), "y": normal(2 * MICROBATCHES, WIDTH)}


def assert_equals_plain_jit(step, inputs):
    compiled = mm.mjit(step, mesh=stages(STAGES))
    found, expected = jax.tree.leaves(compiled(*inputs)), jax.tree.leaves(jax.jit(step)(*inputs))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    return compiled


@pytest.mark.parametrize("name", BLOCKS)
def test_weight_halves_hold_the_products_of_weight_gradients_and_nothing_is_done_twice(name, inputs):
    block, runs, again = BLOCKS[name]
    compiled = assert_equals_plain_jit(make_step(block), inputs)
    once = 2 * LAYERS * runs
    parts = products_by_part(compiled)
    assert parts["W"] == [once] * STAGES
    # The last stage has its forward pass in the same program as the input half. Nobody asks for the cotangent of the
    # first stage's input; a scan makes it with the others.
    unasked = name == "unscanned"
    assert sorted(parts["I"]) == [once * (1 + again) - unasked, once * (2 + again)]
    assert parts[""] == [once] * (STAGES - 1)


def test_layers_without_parameters_of_their_own_have_no_weight_half(inputs):
    """A scan that hands cotangents on and makes no gradient stays whole, in the input half."""

    def block(w, x):
        x = layer((w[0][0], w[1][0]), x)
        return jax.lax.scan(lambda x, _: (jnp.sin(x @ jnp.ones((WIDTH, WIDTH))), None), x, None, length=LAYERS)[0]

    parts = products_by_part(assert_equals_plain_jit(make_step(block), inputs))
    assert parts["W"] == [2] * STAGES
    assert sorted(parts["I"]) == [1 + LAYERS, 2 * (2 + LAYERS)]


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(HIDDEN)(nn.LayerNorm()(x)))), None


@pytest.mark.family(2)
@pytest.mark.parametrize("remat", [False, True])
def test_layers_of_flax_scan(remat, inputs):
    scanned = nn.scan(
        nn.remat(Layer, prevent_cse=False) if remat else Layer,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=LAYERS,
    )()

    def block(variables, x):
        return scanned.apply(variables, x, None)[0]

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        params = [scanned.init(jax.random.key(index), inputs[1]["x"], None) for index in range(STAGES)]
        compiled = assert_equals_plain_jit(make_step(block), (params, inputs[1]))
    parts = products_by_part(compiled)
    assert parts["W"] == [2 * LAYERS] * STAGES
    # Rematerialised: the first product only, since the backward pass does not need what the second one gives.
    assert min(parts["I"]) == (3 if remat else 2) * LAYERS
