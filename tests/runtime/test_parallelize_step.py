"""`mm.flax.parallelize_step`, and MultiMesh's two Flax tutorials (explicit tasks, and an unmodified model)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import assert_equal, assert_same_bits, on_a_boundary

pytestmark = pytest.mark.family

PAIRS = (("batch", "x"), ("data", "x"), ("model", "y"))
TASK_MESH = mm.TaskMesh(devices=(0, 1, 2, 3), axis_sizes=(4, 1), axis_names=("x", "y"))
X = np.arange(16.0, dtype=np.float32)


@pytest.fixture(scope="module", autouse=True)
def promotion_of_libraries():
    """Flax and Optax are not written for strict promotion."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(autouse=True)
def no_registrations():
    yield
    mm.clear_tasks()


def make_mesh() -> mm.MultiMesh:
    return mm.MultiMesh(axis_sizes=(8, 1), axis_names=("x", "y"))


class MLPBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = mm.with_sharding_constraint(x, P("batch"))
        return nn.relu(nn.Dense(4, kernel_init=mm.flax.shard_axes("data", "model"))(x))


class TaskPipeline(nn.Module):
    """With explicit tasks; `keep_paths` decides where parameters are found."""

    keep_paths: bool = False

    @nn.compact
    def __call__(self, x):
        for index in range(2):
            submesh = TASK_MESH.place(range(4 * index, 4 * index + 4))
            block = mm.flax.task(MLPBlock, mesh=submesh, logical_axes=PAIRS, keep_paths=self.keep_paths)
            x = block(name=f"layer_{index}")(x)
        return (x * x).sum()


class Pipeline(nn.Module):
    """Without: plain Flax."""

    @nn.compact
    def __call__(self, x):
        for index in range(2):
            x = MLPBlock(name=f"layer_{index}")(x)
        return (x * x).sum()


def check_placement(state) -> None:
    """The five arrays of the tutorial's state: four of parameters, and TrainState's step."""
    arrays = jax.tree.leaves(state)
    assert sorted(array.shape for array in arrays) == [(), (4,), (4,), (4, 4), (16, 4)]
    for array in arrays:
        if array.ndim == 0:
            assert array.sharding.is_fully_replicated
            continue
        layer = 0 if array.shape == (16, 4) else 1
        if array.ndim == 2:
            assert sorted(device.id for device in array.devices()) == list(range(4 * layer, 4 * layer + 4))
            rows = array.shape[0] // 4
            for shard in array.addressable_shards:
                block = shard.device.id % 4
                assert shard.index[0] == slice(rows * block, rows * (block + 1))
        else:
            assert array.sharding.is_fully_replicated
    biases = {frozenset(device.id for device in array.devices()) for array in arrays if array.shape == (4,)}
    assert biases == {frozenset(range(4)), frozenset(range(4, 8))}


def reference(model: nn.Module, params):
    """One step of SGD on one device."""
    loss, grads = jax.jit(jax.value_and_grad(model.apply))(params, X)
    return loss, jax.tree.map(lambda p, g: p - 0.02 * g, params, grads)


@pytest.mark.optimized
@pytest.mark.parametrize("keep_paths", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_explicit_tasks(keep_paths) -> None:
    mesh = make_mesh()
    model = TaskPipeline(keep_paths)
    step, state, returned, prepare_batch = mm.flax.parallelize_step(model, optax.sgd(0.02), mesh, local_batch=X)
    assert returned is mesh
    check_placement(state)
    params = jax.device_get(state.params)
    assert_same_bits(params, jax.jit(model.init)(jax.random.key(42), X))
    expected_loss, expected = reference(model, params)
    loss, new = step(state, prepare_batch(X))
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), new.params, expected)
    check_placement(new)
    assert int(new.step) == 1
    assert step(new, prepare_batch(X))[0] != loss
    assert step.latest_plan.runner.misplaced == 0


def register_each() -> None:
    mm.register_task("layer_0", task=mm.Task(mesh=TASK_MESH, logical_axes=PAIRS))
    mm.register_task("layer_1", task=mm.Task(mesh=TASK_MESH.place((4, 5, 6, 7)), logical_axes=PAIRS))


def register_by_pattern() -> None:
    def choose(name: str, backprop: bool) -> mm.Task:
        first = 4 * int(name.split("_")[1])
        submesh = mm.TaskMesh(devices=range(first, first + 4), axis_sizes=(4, 1), axis_names=("x", "y"))
        return mm.Task(mesh=submesh, logical_axes=PAIRS)

    mm.register_task(r"(layer_\d+)", callback=choose)


@pytest.mark.optimized
def test_unmodified_model_with_registered_scopes() -> None:
    model = Pipeline()
    expected_params = jax.jit(model.init)(jax.random.key(42), X)
    expected_loss, expected = reference(model, expected_params)
    for register in (register_each, register_by_pattern):
        mm.clear_tasks()
        register()
        step, state, _, prepare_batch = mm.flax.parallelize_step(model, optax.sgd(0.02), make_mesh(), local_batch=X)
        assert jax.tree.structure(state.params) == jax.tree.structure(expected_params)
        assert_same_bits(state.params, expected_params)
        check_placement(state)
        loss, new = step(state, prepare_batch(X))
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), new.params, expected)
        check_placement(new)


def test_global_batch_gives_three_results_and_the_default_mesh() -> None:
    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x).sum()

    x = jax.device_put(X, jax.devices()[3])
    step, state, mesh = mm.flax.parallelize_step(Plain(), optax.sgd(0.02), None, x, replicate_inputs=False)
    assert mesh.shape == {"x": 8}
    loss, _ = step(state, x)
    np.testing.assert_allclose(loss, reference(Plain(), jax.device_get(state.params))[0], rtol=1e-5)


class Statistics(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False)(x).sum()


class Vector(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


@pytest.mark.parametrize(
    ("model", "batches", "error", "message"),
    [
        pytest.param(Pipeline(), {}, ValueError, r"as either global_batch= \(of all.*got neither", id="no_batch"),
        pytest.param(
            Pipeline(), {"global_batch": X, "local_batch": X}, ValueError, r"local_batch= .*got both", id="two_batches"
        ),
        pytest.param(len, {"local_batch": X}, TypeError, r"expected a flax.linen module, got builtin", id="not_linen"),
        pytest.param(
            Vector(),
            {"local_batch": X},
            TypeError,
            r"Vector must return its loss, a scalar, but returned an array of shape \(4,\). Reduce it",
            id="not_a_scalar",
        ),
        pytest.param(
            Statistics(),
            {"local_batch": X},
            ValueError,
            r"the model has collections batch_stats besides params, whose updates this step would lose",
            id="collections",
        ),
    ],
)
def test_mistakes(model, batches, error, message) -> None:
    with pytest.raises(error, match=message):
        mm.flax.parallelize_step(model, optax.sgd(0.1), make_mesh(), **batches)


def test_prepare_batch_takes_batches_like_the_example() -> None:
    class Sum(nn.Module):
        @nn.compact
        def __call__(self, batch):
            return (nn.Dense(2)(batch["x"]) * batch["weight"]).mean()

    batch = {"x": np.ones((6, 2), np.float32), "weight": np.float32(0.5)}
    step, state, _, prepare_batch = mm.flax.parallelize_step(Sum(), optax.sgd(0.1), make_mesh(), local_batch=batch)
    x = on_a_boundary((6, 2), np.float32)
    x[...] = 1
    prepared = prepare_batch(batch | {"x": x})
    x[...] = 5
    assert_equal(prepared["x"], batch["x"])
    assert {key: jnp.shape(value) for key, value in prepared.items()} == {"x": (6, 2), "weight": ()}
    assert step(state, prepared)[0].shape == ()
    with pytest.raises(ValueError, match=r"prepare_batch: expected a batch of the tree .*'weight'.*, got .*'x'"):
        prepare_batch({"x": batch["x"]})


def test_a_batch_that_the_step_cannot_cut() -> None:
    class Cut(nn.Module):
        @nn.compact
        def __call__(self, batch):
            return mm.with_sharding_constraint(nn.Dense(2)(mm.with_sharding_constraint(batch, P("x"))), P()).mean()

    mesh = make_mesh()
    _, _, _, prepare_batch = mm.flax.parallelize_step(
        Cut(), optax.sgd(0.1), mesh, local_batch=X, replicate_inputs=False
    )
    with pytest.raises(
        ValueError, match=r"prepare_batch: batch has the shape .*cannot cut evenly\. Give batches of the"
    ):
        prepare_batch(X[:-1])
