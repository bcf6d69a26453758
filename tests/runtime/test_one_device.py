"""A program whose mesh is too large, run as the one-device program where that is asked for."""

import copy
import logging
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

import mmruntime as mm
from mmruntime._core import one_device, switches


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    monkeypatch.delenv(one_device.VARIABLE, raising=False)
    yield
    mm.init()
    one_device._Fallback.is_told = False
    switches._IGNORED.set_global(False)


@pytest.fixture
def mesh(monkeypatch):
    """A mesh of 32 devices, of which there are 8."""
    monkeypatch.setenv(one_device.VARIABLE, "1")
    return large()


def large():
    return mm.MultiMesh(
        axis_sizes=(16, 2), axis_names=("stage", "model"), logical_axes=(("hidden", "model"), ("batch", None))
    )


WEIGHTS = jnp.linspace(-1, 1, 20 * 4 * 4).reshape(20, 4, 4)
X = jnp.linspace(0, 1, 8 * 4).reshape(8, 4)


def layer(x, w):
    return jnp.tanh(x @ w)


def plain(params, x):
    for w in params:
        x = layer(x, w)
    return x


def by_stage(params, x):
    for i, w in enumerate(params):
        x = mm.task(layer, task=mm.stage(i, len(params), axis="stage"))(x, w)
    return x


def in_two_rounds(params, x):
    half = len(params) // 2
    for i, w in enumerate(params[:half]):
        x = mm.task(layer, task=mm.stage(i, half, axis="stage", weights="flops"))(x, w)
    for w in params[half:]:
        x = mm.task(layer, name="last", mesh_slice={"stage": 15})(x, w)
    return x


def by_submesh(params, x):
    for i, w in enumerate(params):
        x = mm.task(layer, mesh=mm.slice_global_mesh(stage=i % 16))(x, w)
    return x


def by_ids(params, x):
    for i, w in enumerate(params):
        x = mm.task(layer, mesh=mm.TaskMesh(devices=[2 * (i % 16)], axis_sizes=(1,), axis_names=("x",)))(x, w)
    return x


def by_scan(params, x):
    return mm.stage_scan(jax.lax.scan, axis="stage")(lambda x, w: (layer(x, w), None), x, params)[0]


def constrained(params, x):
    for w in params:
        x = mm.with_sharding_constraint(layer(x, w), PartitionSpec("batch", "hidden"))
        x = mm.with_sharding_constraint(x, PartitionSpec(None, "model"))
    return x


def scoped(params, x):
    for i, w in enumerate(params):
        with jax.named_scope(f"layer_{i}"):
            x = layer(x, w)
    return x


@pytest.mark.parametrize(
    "model",
    [by_stage, in_two_rounds, by_submesh, by_ids, by_scan, constrained, scoped],
    ids=lambda model: model.__name__,
)
def test_steps_are_those_of_one_device(model, mesh):
    mesh.register_task("layer_.*", task=mm.Task(mesh_slice={"stage": 3}))

    def loss(params, x):
        return (model(params, x) ** 2).mean()

    def step(params, x):
        value, grads = mm.microbatch(
            jax.value_and_grad(loss), dim=0, size=2, argnum=1, schedule="zb-h1", reduce="exact"
        )(params, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    found = mm.mjit(step, mesh=mesh, donate_argnums=0)(WEIGHTS.copy(), X)
    value, grads = jax.jit(jax.value_and_grad(lambda params, x: (plain(params, x) ** 2).mean()))(WEIGHTS, X)
    np.testing.assert_allclose(found[0], value, rtol=1e-6)
    np.testing.assert_allclose(found[1], WEIGHTS - 0.1 * grads, rtol=1e-5, atol=1e-7)
    assert found[1].devices() == {jax.devices()[0]}


def test_random_keys_are_those_of_the_whole_batch(mesh):
    def loss(w, x, key):
        return ((x @ w) * jax.random.bernoulli(key, 0.5, (x.shape[0], 4)).astype(x.dtype)).mean()

    def step(w, x, key):
        return mm.microbatch(jax.grad(loss), dim=0, size=2, argnum=1, rng=2, reduce="exact")(w, x, key)

    key = jax.random.key(0)
    np.testing.assert_allclose(
        mm.mjit(step, mesh=mesh)(WEIGHTS[0], X, key), jax.grad(loss)(WEIGHTS[0], X, key), rtol=1e-6
    )


def test_what_is_around_a_step_works_as_well(mesh):
    assert mesh.axis_names == ("stage", "model") and mesh.size == 1
    assert mesh.single_slice_ids(stage=15, model=1) == [jax.devices()[0].id]
    with pytest.raises(ValueError, match=r"stage=16 is out of range 0\.\.15"):
        mesh.slice(stage=16)
    assert copy.copy(mesh).slice(stage=15).size == 1
    step = mm.mjit(lambda params, x: by_stage(params, x).sum(), mesh=mesh)
    assert "1 submeshes, 1 programs" in str(step.plan(WEIGHTS, X))
    made = mm.mjit(lambda: WEIGHTS * 1, out_like=step)()
    assert step(made, jax.device_put(X, NamedSharding(mesh, PartitionSpec("stage")))) == plain(WEIGHTS, X).sum()
    np.testing.assert_array_equal(mm.gather(made), WEIGHTS)
    with mesh:
        np.testing.assert_allclose(by_stage(WEIGHTS, X), plain(WEIGHTS, X), rtol=1e-5)
    assert mm.mjit(lambda x: x * 2, devices=jax.devices()[:2])(jnp.ones(2)).sum() == 4


def test_models_of_nnx_and_steps_of_pmap(mesh):
    class Model(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Linear(4, 4, rngs=nnx.Rngs(i)) for i in range(16)])

        def __call__(self, x):
            for i, each in enumerate(self.layers):
                x = mm.task(each, task=mm.stage(i, 16, axis="stage"))(x)
            return x

    def step(model, x):
        grads = nnx.grad(lambda model, x: (model(x) ** 2).mean())(model, x)
        nnx.update(model, jax.tree.map(lambda p, g: p - g, nnx.state(model, nnx.Param), grads))

    one, other = Model(), Model()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        mm.mjit(step, mesh=mesh, like=nnx.jit)(one, X)
        nnx.jit(step)(other, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), nnx.state(one), nnx.state(other))
    mean = mm.mjit(lambda x: jax.lax.pmean(x, "model"), mesh=mesh, like=jax.pmap, axis_name="model")
    np.testing.assert_allclose(mean(X), np.broadcast_to(X.mean(0), X.shape), rtol=1e-6)


def test_it_is_said_once_and_never_done_unasked(caplog):
    refused = (
        r"stage=16 x model=2 needs 32 devices, and has 8.*; to run it as the one-device program, set "
        r"MMRUNTIME_ONE_DEVICE_FALLBACK=1 or write mm.init\(one_device_fallback=True\)"
    )
    with caplog.at_level(logging.WARNING, "mmruntime"):
        with pytest.raises(ValueError, match=refused):
            large()
        mm.init(one_device_fallback=False)
        with pytest.raises(ValueError, match=refused):
            large()
        mm.init(one_device_fallback=True)
        mm.MultiMesh(axis_sizes=(8,), axis_names=("stage",))
        assert not caplog.messages and not switches.transforms_ignored()
        large(), large()
    assert caplog.messages == [
        "mmruntime: MultiMesh: stage=16 x model=2 needs 32 devices, and has 8: this runs as the one-device "
        "program, as mm.init(one_device_fallback=True) asks."
    ]
    with mm.ignore_transforms(False):
        assert not switches.transforms_ignored()
    assert switches.transforms_ignored()


def test_the_variable_goes_before_the_argument(monkeypatch):
    monkeypatch.setenv(one_device.VARIABLE, "0")
    mm.init(one_device_fallback=True)
    with pytest.raises(ValueError, match="needs 32 devices"):
        large()
    monkeypatch.setenv(one_device.VARIABLE, "yes")
    with pytest.raises(ValueError, match="MMRUNTIME_ONE_DEVICE_FALLBACK must be 0 or 1, got 'yes'"):
        mm.init()
    with pytest.raises(ValueError, match="must be 0 or 1"):
        large()
    monkeypatch.delenv(one_device.VARIABLE)
    with pytest.raises(TypeError, match="one_device_fallback"):
        mm.init(one_device_fallback=1)


@pytest.mark.slow
def test_the_example_runs_on_one_device_after_apply(tmp_path):
    """The rewritten package, and the one that it came from, on a machine with one device: every loss is the same."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    example, built = os.path.join(root, "examples", "gpt"), tmp_path / "built"
    subprocess.run(
        [sys.executable, "-m", "mmrewrite", "build", example, "--out", built], check=True, capture_output=True
    )
    environment = {**os.environ, "XLA_FLAGS": "", one_device.VARIABLE: "1", "JAX_NUMPY_RANK_PROMOTION": "allow"}
    environment |= {"JAX_NUMPY_DTYPE_PROMOTION": "standard"}

    def train(folder):
        command = [sys.executable, os.path.join(folder, "train.py"), "--steps", "2"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    one, other = train(example), train(built)
    assert one.stderr == "" and re.findall("(?m)^mmruntime: .*needs 8 devices, and there is 1", other.stderr)
    assert len(re.findall("loss", one.stdout)) == 3
    assert [line.split()[:6] for line in other.stdout.splitlines()] == [
        line.split()[:6] for line in one.stdout.splitlines()
    ]
