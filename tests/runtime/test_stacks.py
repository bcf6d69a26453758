"""Layers that are stacked in one array: each stage has its own, with its optimizer state, and callers see one array."""

import functools
import re
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime._step.plan import make_plan
from mmruntime._step.several_processes import fingerprint
from tests.runtime.helpers import assert_close, assert_equal, normal, stages

optax = pytest.importorskip("optax")

pytestmark = [pytest.mark.usefixtures("double", "free_promotion"), pytest.mark.family]
WIDTH = 4


def layer(x, p):
    return jnp.tanh(x @ p["w"] + p["b"]), None


def scanned(scan):
    return lambda layers, x: scan(layer, x, layers)[0]


def looped(place):
    """A loop over a stack, one index at a time."""

    def model(layers, x):
        count = len(layers["b"])
        for index in range(count):
            own = {name: leaf[index] for name, leaf in layers.items()}
            x = place(lambda x, p: layer(x, p)[0], index, count)(x, own)
        return x

    return model


PLAIN = scanned(jax.lax.scan)
STAGED = scanned(mm.stage_scan(jax.lax.scan))
LOOPED = looped(lambda call, index, count: mm.task(call, task=mm.stage(index, count)))


def parameters(count=4, width=WIDTH):
    return {"b": normal(count, width, seed=1) / 4, "w": normal(count, width, width, seed=2) / width**0.5}


def batch(width=WIDTH):
    return {"x": normal(8, width, seed=3), "y": normal(8, width, seed=4)}


def trainer(model, optimizer, **microbatch):
    def loss(params, batch):
        return jnp.mean((model(params, batch["x"]) - batch["y"]) ** 2)

    def step(params, state, batch):
        grad = jax.value_and_grad(loss)
        if microbatch:
            grad = mm.microbatch(grad, argnum=1, reduce="exact", **microbatch)
        value, grads = grad(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def train(model, optimizer, mesh, params, steps=3, **microbatch):
    """Train on the mesh and, with the plain scan, on one device; compare every result of every step."""
    step = mm.mjit(trainer(model, optimizer, **(microbatch or {"count": 2})), mesh=mesh)
    plain = jax.jit(trainer(PLAIN, optimizer))
    many = one = params, optimizer.init(params)
    data = batch(params["w"].shape[1])
    for _ in range(steps):
        *many, value = step(*many, data)
        *one, expected = plain(*one, data)
        assert_close((many, value), (one, expected), rtol=1e-12)
    assert steps == 1 or step.latest_plan.runner.misplaced == len(data)
    assert step.num_plans == 1
    return step, many


def bytes_of(tree):
    """The bytes that each device holds of a tree."""
    found = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            found[shard.device.id] = found.get(shard.device.id, 0) + shard.data.nbytes
    return found


def astray(tree, count, axis=0):
    """The paths of the stacks of which a layer is not on its stage, of `count` stages of one device each."""
    wrong = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if leaf.ndim < 2:
            continue
        size = leaf.shape[axis] // count
        at = {shard.index[axis].indices(leaf.shape[axis])[:2]: shard.device.id for shard in leaf.addressable_shards}
        if at != {(k * size, (k + 1) * size): k for k in range(count)}:
            wrong.append(jax.tree_util.keystr(path))
    return wrong


OPTIMIZERS = {
    "adam": lambda: optax.adam(0.01),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.01)),
    "every second step": lambda: optax.MultiSteps(optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.01)), 2),
    "if finite": lambda: optax.apply_if_finite(optax.adamw(0.01), 3),
    "factored": lambda: optax.adafactor(0.01, min_dim_size_to_factor=2),
    "by layer norms": lambda: optax.lamb(0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_stage_updates_its_layers(name):
    _, state = train(STAGED, OPTIMIZERS[name](), stages(2), parameters())
    assert astray(state, 2) == []


def with_a_target(optimizer):
    """A step whose target follows the parameters, as a function of whether its layers are staged; and its arguments."""

    def apart(is_staged, params, x):
        outputs = {k: (STAGED if is_staged else PLAIN)(each, x) for k, each in params.items()}
        return jnp.mean((outputs["net"] - jax.lax.stop_gradient(outputs["target"])) ** 2)

    def step(is_staged, params, state, last, x):
        grads = jax.grad(functools.partial(apart, is_staged))(params, x)
        updates, state = optimizer.update(grads, state, params)
        new = optax.apply_updates(params, updates)
        last = jax.tree.map(lambda a, g: jnp.concatenate([a[1:], g[None]]), last, grads)
        target = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, params["target"], new["net"])
        return {**new, "target": target}, state, last

    params = {"net": parameters(), "target": parameters()}
    last = jax.tree.map(lambda leaf: jnp.zeros((3, *leaf.shape)), params)
    return step, (params, optimizer.init(params), last, batch()["x"])


@pytest.mark.parametrize("name", ["adam", "every second step", "the last gradients"])
def test_state_whose_update_is_thrown_away_is_with_its_layers(name):
    step, arguments = with_a_target(optax.identity() if name == "the last gradients" else OPTIMIZERS[name]())
    found = mm.mjit(functools.partial(step, True), mesh=stages(2))(*arguments)
    assert_close(found, jax.jit(functools.partial(step, False))(*arguments), rtol=1e-9)
    assert astray(found[:2], 2) == []
    assert astray(found[2], 2, axis=1) == []


def test_every_process_makes_the_same_plan():
    """The identity of a variable or an equation, which differs from trace to trace, decides nothing."""
    found = set()
    for _ in range(3):
        step, arguments = with_a_target(OPTIMIZERS["every second step"]())
        function, mesh = functools.partial(step, True), stages(2)
        made = make_plan(function, mm.mjit(function, mesh=mesh)._split(arguments, {}), mesh)
        parts = fingerprint("", made.names, made.step, made.placement, made.shardings, made.program, "")
        found.add(tuple(parts.values()))
    assert len(found) == 1


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_one_index_at_a_time(schedule):
    _, state = train(LOOPED, OPTIMIZERS["clipped"](), stages(2), parameters(), count=4, schedule=schedule)
    assert astray(state, 2) == []


def test_a_device_holds_its_share():
    params = parameters(24, 8)
    step, state = train(STAGED, optax.adam(0.01), stages(4), params, steps=2)
    share = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 4
    assert max(bytes_of(state).values()) <= 1.02 * share
    assert "params['w'][6:12]" in str(step.explain())


def test_callers_see_one_array_and_pass_any():
    mesh, params = stages(2, data=2), parameters()
    optimizer = optax.adam(0.01)
    step = mm.mjit(trainer(STAGED, optimizer, count=2), mesh=mesh)
    state = optimizer.init(params)
    first = step(params, state, batch())
    assert jax.tree.structure(first[:2]) == jax.tree.structure((params, state))
    assert first[0]["w"].shape == (4, WIDTH, WIDTH)
    # As NumPy arrays, on one device, where the step has put them, and as it says that it wants them.
    expected = step(*first[:2], batch())
    wanted = jax.tree.map(lambda leaf: leaf.sharding, step.abstract_args()[:2])
    assert jax.tree.map(lambda leaf: leaf.sharding, tuple(first[:2])) == wanted
    host = jax.tree.map(np.asarray, first[:2])
    for given in (host, mm.gather(first[:2]), jax.device_put(host, wanted)):
        assert_equal(step(*given, batch()), expected)
    assert step.timeline(*first[:2], batch()).spans


def test_donated_stacks_are_given_up():
    params = jax.tree.map(jnp.asarray, parameters())
    step = mm.mjit(trainer(STAGED, optax.sgd(0.1), count=2), mesh=stages(2), donate_argnums=(0, 1))
    first, state, _ = step(params, optax.sgd(0.1).init(params), batch())
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params)), "moved, and so copied"
    second, _, _ = step(first, state, batch())
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first)), "updated in place"
    live = len(jax.live_arrays())
    for _ in range(3):
        second, _, _ = step(second, state, batch())
    assert len(jax.live_arrays()) == live, "parts of results go with them"
    kept = mm.mjit(trainer(STAGED, optax.sgd(0.1), count=2), mesh=stages(2))
    third, _, _ = kept(second, state, batch())
    assert_equal(kept(second, state, batch())[0], third)


def test_gradients_and_evaluation():
    mesh, params, data = stages(2), parameters(), batch()

    def gradients(params, batch):
        return jax.grad(lambda p: jnp.mean((STAGED(p, batch["x"]) - batch["y"]) ** 2))(params)

    def plain_gradients(params, batch):
        return jax.grad(lambda p: jnp.mean((PLAIN(p, batch["x"]) - batch["y"]) ** 2))(params)

    step = mm.mjit(gradients, mesh=mesh)
    grads = step(params, data)
    assert_close(grads, jax.jit(plain_gradients)(params, data), rtol=1e-12)
    assert astray(grads, 2) == []
    _, (trained, _) = train(STAGED, optax.sgd(0.1), mesh, params, steps=1)
    evaluate = mm.mjit(lambda p, x: STAGED(p, x), mesh=mesh)
    found = evaluate(trained, data["x"])
    assert evaluate.latest_plan.runner.misplaced == 1, "only the batch"
    host = jax.tree.map(np.asarray, trained)
    assert_close(found, jax.jit(PLAIN)(host, data["x"]), rtol=1e-12)
    # A step that knows nothing of the layers takes the stacks as well.
    norm = mm.mjit(lambda p: optax.tree.norm(p), mesh=mesh)(trained)
    assert_close(norm, jax.jit(optax.tree.norm)(host), rtol=1e-12)


def test_a_scan_from_the_end():
    def model(scan):
        return lambda layers, x: scan(layer, x, layers, reverse=True)[0]

    mesh, params, data = stages(2), parameters(), batch()
    optimizer = optax.adam(0.01)
    step = mm.mjit(trainer(model(mm.stage_scan(jax.lax.scan)), optimizer, count=2), mesh=mesh)
    plain = jax.jit(trainer(model(jax.lax.scan), optimizer))
    many = one = params, optimizer.init(params)
    for _ in range(2):
        *many, _ = step(*many, data)
        *one, _ = plain(*one, data)
    assert_close(many, one, rtol=1e-12)
    layers = {shard.index[0].start: shard.device.id for shard in many[0]["w"].addressable_shards}
    assert layers == {0: 1, 2: 0}


def test_stacked_results_stay_on_their_stages():
    """State of each layer, such as a cache: read by slices, written by slices."""

    def step(scan):
        def body(x, slot):
            y = jnp.tanh(x * slot.mean() + 1)
            return y, slot + y

        return lambda cache, x: scan(body, x, cache)[::-1]

    cache, x = normal(4, 2, 3), normal(2, 3, seed=1)
    compiled = mm.mjit(step(mm.stage_scan(jax.lax.scan)), mesh=stages(2))
    found = compiled(cache, x)
    assert_close(found, jax.jit(step(jax.lax.scan))(cache, x), rtol=1e-12)
    assert astray(found[0], 2) == []


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        kernel = nn.with_logical_partitioning(nn.initializers.normal(0.3), ("embed", "mlp"))
        return x + nn.Dense(WIDTH, kernel_init=kernel, param_dtype=x.dtype)(nn.tanh(x)), None


def stacked_model(axis, wrap=lambda scanned: scanned):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            stack = nn.scan(
                nn.remat(Block),
                variable_axes={"params": axis},
                split_rngs={"params": True},
                length=4,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            x, _ = wrap(stack(name="blocks"))(x, None)
            return nn.Dense(WIDTH, name="out", param_dtype=x.dtype)(x)

    return Model()


@pytest.mark.parametrize("axis", [0, 1])
def test_flax_scan_initialiser_and_checkpoint(axis, tmp_path):
    """`nn.scan` with logical names: parameters are made on their stages, trained there, saved and restored there."""
    ocp = pytest.importorskip("orbax.checkpoint")
    mesh = mm.MultiMesh(
        axis_sizes=(2, 2),
        axis_names=("stage", "model"),
        logical_axes=(("mlp", "model"), ("embed", None), ("layers", None)),
    )
    plain, staged, data = stacked_model(axis), stacked_model(axis, mm.stage_scan), batch()
    optimizer = optax.adam(0.01)

    def init():
        params = plain.init(jax.random.key(0), data["x"])
        return params, optimizer.init(params)

    step = mm.mjit(trainer(staged.apply, optimizer, count=2), mesh=mesh)
    shapes = jax.eval_shape(init)
    step.plan(*shapes, jax.eval_shape(lambda: data))
    many, one = mm.mjit(init, out_like=step)(), jax.jit(init)()
    assert_equal(many, one)
    kernel = nn.unbox(many[0])["params"]["blocks"]["Dense_0"]["kernel"]
    assert kernel.sharding.spec == (P("stage", None, "model"), P(None, "stage", "model"))[axis]
    single = jax.jit(trainer(plain.apply, optimizer))
    for _ in range(2):
        *many, _ = step(*many, data)
        assert step.latest_plan.runner.misplaced == len(data)
        *one, _ = single(*one, data)
    assert_close(many, one, rtol=1e-12)
    assert jax.tree.map(jnp.shape, many) == jax.tree.map(lambda leaf: leaf.shape, list(shapes))

    with ocp.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", many)
        saver.wait_until_finished()
        restored = saver.restore(tmp_path / "state", list(step.abstract_args()[:2]))
    assert_equal(restored, many)
    following = step(*restored, data)
    assert step.latest_plan.runner.misplaced == len(data)
    assert_equal(following, step(*many, data))


@pytest.mark.parametrize(("count", "options", "dealt"), [(5, {}, "2, 3"), (4, {"weights": (1, 1, 1, 9)}, "3, 1")])
def test_uneven_stacks_are_said_to_stay_whole(count, options, dealt):
    model = scanned(mm.stage_scan(jax.lax.scan, **options))
    with pytest.warns(UserWarning, match=re.escape(f"'stage' run {dealt} of their layers at ")) as warned:
        train(model, optax.adam(0.01), stages(2), parameters(count), steps=1)
    (text,) = [str(each.message) for each in warned]
    assert "params['b'], params['w'], state[0].mu['b'], state[0].mu['w'] and 2 more" in text


@pytest.mark.parametrize("with_state", [False, True])
def test_an_update_that_mixes_layers_is_exact(with_state):
    """It runs in one place; parameters stay on their stages, and state that this pulls along is named."""

    def make(model):
        def step(params, state, batch):
            grads = jax.grad(lambda p: jnp.mean((model(p, batch["x"]) - batch["y"]) ** 2))(params)
            state = jax.tree.map(lambda s, g: jnp.cumsum(s + g, axis=0), state, grads)
            return jax.tree.map(lambda p, s: p - s, params, state), state if with_state else grads

        return step

    params, data = parameters(), batch()
    state = jax.tree.map(np.zeros_like, params)
    step = mm.mjit(make(STAGED), mesh=stages(2))
    with pytest.warns(UserWarning, match="lives on submesh 0, .* pulled there by") if with_state else nullcontext():
        found = step(params, state, data)
    assert_close(found, jax.jit(make(PLAIN))(params, state, data), rtol=1e-12)
    assert astray(found[0], 2) == []
