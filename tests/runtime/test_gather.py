"""Results of steps on several submeshes, gathered for code that knows none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import normal, on, stages, weights

ROOT = Path(__file__).resolve().parents[2]


def placed() -> list[jax.Array]:
    def doubled(params: list[jax.Array]) -> list[jax.Array]:
        return [mm.task(jnp.add, task=on(i))(w, w) for i, w in enumerate(params)]

    return mm.mjit(doubled, mesh=stages(2))(weights(2))


def total(params: list[jax.Array]) -> jax.Array:
    return sum(map(jnp.sum, params), jnp.zeros(()))


def test_gathered_arrays_meet() -> None:
    params = placed()
    with pytest.raises(ValueError, match=r"got arrays of several stages.*`mm.gather\(model\)`.*`# mm: mjit`"):
        _ = params[0] + params[1]
    with pytest.raises(ValueError, match=r"^`total` got arrays of several stages.*incompatible devices"):
        jax.jit(total)(params)
    tree = {"params": params, "key": jax.random.key(3), "name": "model", "step": 4, "host": np.ones(2)}
    found = mm.gather(tree)
    np.testing.assert_array_equal(found["params"][0] + found["params"][1], 2 * sum(weights(2)))
    assert not found["params"][1].committed
    assert (found["name"], found["step"]) == ("model", 4)
    assert found["host"] is tree["host"]
    assert jnp.array_equal(jax.random.key_data(found["key"]), jax.random.key_data(tree["key"]))
    # Uncommitted arrays go wherever others are.
    assert (found["params"][0] + params[1]).devices() == params[1].devices()


def test_arrays_that_no_step_has_placed_get_the_words_of_jax() -> None:
    placed()
    # Sets of devices that are no submesh of any test.
    layouts = [NamedSharding(Mesh(np.take(jax.devices(), ids), ("x",)), P()) for ids in ([0, 3, 5], [1, 2, 7])]
    elsewhere = [jax.device_put(w, layout) for w, layout in zip(weights(2), layouts, strict=True)]
    with pytest.raises(ValueError, match=r"^Received incompatible devices"):
        jax.jit(total)(elsewhere)


@pytest.mark.parametrize(
    ("count", "kind"),
    [
        pytest.param(8, jax.sharding.AxisType.Auto, id="other_devices"),
        pytest.param(4, jax.sharding.AxisType.Explicit, id="explicit_axes"),
    ],
)
def test_a_mesh_in_context_must_be_that_of_the_steps(count: int, kind: jax.sharding.AxisType) -> None:
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"))

    def summed(params: list[jax.Array]) -> jax.Array:
        return sum((mm.task(jnp.sum, task=on(i))(w) for i, w in enumerate(params)), jnp.zeros(()))

    # Of which these devices are a stage.
    mm.mjit(summed, mesh=mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data")))(weights(2))
    loss = mm.mjit(summed, mesh=mesh)(weights(2))
    other = jax.make_mesh((count,), ("data",), axis_types=(kind,), devices=jax.devices()[:count])
    message = r"`add` got an array that a step which `mm.mjit` compiled has returned.*`jax.set_mesh\(mesh\)`.* JAX: \w+"
    with jax.set_mesh(other), pytest.raises(ValueError, match=message):
        _ = jnp.zeros(()) + loss
    # What the message says to write.
    with jax.set_mesh(mesh):
        assert jnp.zeros(()) + loss == loss
    # No step of another test has these devices, or an axis of this name, by which meshes in context are told apart.
    devices = np.array([jax.devices()[index] for index in (1, 4, 6)])
    elsewhere = jax.device_put(1.0, NamedSharding(Mesh(devices, ("of_no_step",)), P()))
    with jax.set_mesh(other), pytest.raises(ValueError) as raised:
        _ = jnp.zeros(()) + elsewhere
    assert "mm.mjit" not in str(raised.value)


@pytest.mark.parametrize(
    ("function", "edits"),
    [
        pytest.param(
            "train",
            [
                ('    mesh = jax.make_mesh((2, 1), ("data", "model"))\n', ""),
                ("(2, 2)", "(2, 2, 1)"),
                ('("stage", "data")', '("stage", "data", "model")'),
            ],
            id="function",
        ),
        pytest.param(
            "train_in_a_block",
            [('jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))', "mesh")],
            id="block",
        ),
    ],
)
def test_what_is_advised_of_a_mesh_that_the_program_sets(function: str, edits: list[tuple[str, str]]) -> None:
    """In the rewritten program of a fixture, whose refusals name the lines and say what to write."""
    program = (ROOT / "fixtures/hints/compile_for_mesh/set_mesh_of_the_program/after.py").read_text()
    program = program.replace("return [step(x) for x in data]", "return sum(map(step, data), jnp.zeros(()))")
    data = [normal(4), normal(4)]
    before, after = dict[str, Any](), dict[str, Any]()
    exec(program, before)
    for old, new in edits:
        assert program.count(old) == 1
        program = program.replace(old, new)
    exec(program, after)
    # Around them, so that what they set ends with the block.
    with jax.set_mesh(jax.make_mesh((2,), ("x",))):
        with pytest.raises(ValueError, match=r"`add` got an array that a step which `mm.mjit` compiled has returned"):
            before[function](data)
        found = after[function](data)
    np.testing.assert_allclose(found, sum(np.sum(np.tanh(x)) for x in data), rtol=1e-5)


def test_a_device_may_be_given() -> None:
    device = jax.devices()[3]
    assert {each.devices().pop() for each in mm.gather(placed(), device)} == {device}
    assert jax.jit(lambda tree: mm.gather(tree))(weights(1))[0].shape == (4, 4)


def test_objects_are_copied_and_keep_what_they_share() -> None:
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Dict(a=nnx.Param(placed()[0]), b=nnx.Param(placed()[1]))
    model["c"] = model["a"]
    found = mm.gather({"model": model})["model"]
    assert found["c"] is found["a"]
    assert found["a"] is not model["a"]
    assert (found["a"] @ found["b"]).shape == (4, 4)
    assert model["b"].devices() == {jax.devices()[1]}


def test_evaluation_beside_training() -> None:
    """Another step, without hints of its own, takes the parameters where training left them."""

    def model(params: list[jax.Array], x: jax.Array) -> jax.Array:
        for i, w in enumerate(params):
            x = mm.task(lambda w, x: jnp.tanh(x @ w), task=on(i))(w, x)
        return x

    params, x = placed(), normal(3, 4)
    evaluate = mm.mjit(lambda params, x: {"error": jnp.mean(model(params, x) ** 2)}, mesh=stages(2))
    before = [w.sharding for w in params]
    found = evaluate(params, x)["error"]
    np.testing.assert_allclose(found, jnp.mean(model(mm.gather(params), x) ** 2), rtol=1e-6)
    assert [leaf.sharding for leaf in evaluate.abstract_args()[0]] == before
    norms = mm.mjit(lambda params: jnp.sqrt(sum(jnp.sum(w**2) for w in params)), mesh=stages(2))
    np.testing.assert_allclose(norms(params), jnp.sqrt(sum(jnp.sum(w**2) for w in mm.gather(params))), rtol=1e-6)


def test_an_optimizer_outside_of_steps_is_told_to_be_compiled() -> None:
    optax = pytest.importorskip("optax")
    one, other = (jax.device_put(jnp.ones(3), device) for device in jax.devices()[:2])
    step = mm.mjit(lambda p, q: (mm.task(jnp.sin, task=on(0))(p), mm.task(jnp.sin, task=on(1))(q)), mesh=stages(2))
    gradients = step(one, other)
    for optimizer in (optax.adam(0.1), optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            state = optimizer.init(gradients)
            with pytest.raises(ValueError, match=rf"at {__file__}:\d+.*must not work on a copy.*`# mm: mjit`"):
                optimizer.update(gradients, state, gradients)
            mm.mjit(optimizer.update, mesh=stages(2))(gradients, state, gradients)
