"""`parallelize`: both forms, where things come out, and its messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import assert_same_bits


def layer(w, x):
    w = mm.with_sharding_constraint(w, P("model", None))
    return jnp.einsum("bm,mh->bh", mm.with_sharding_constraint(x, P("batch", None)), w)


def make_model(mesh: mm.TaskMesh):
    pairs = (("batch", "x"), ("model", "x"))
    first = mm.task(layer, "first", mesh=mesh, logical_axes=pairs)
    second = mm.task(layer, "second", mesh=mesh.place((4, 5, 6, 7)), logical_axes=pairs)
    return lambda params, batch: second(params[1], first(params[0], batch))


MESH = mm.TaskMesh(devices=(0, 1, 2, 3), axis_sizes=(4, 1), axis_names=("x", "y"))
model = make_model(MESH)


def init_params():
    return [jnp.arange(64.0).reshape(8, 8), jax.random.normal(jax.random.key(0), (8, 8))]


def get_batch():
    return jax.random.normal(jax.random.key(1), (8, 8))


def device_ids(array) -> list[int]:
    return sorted(device.id for device in array.devices())


@pytest.mark.optimized
def test_three_results_place_parameters_and_batch_by_their_use() -> None:
    step, init, batch = mm.parallelize(model, init_params, get_batch)
    params, x = init(), batch()
    assert_same_bits((params, x), jax.jit(lambda: (init_params(), get_batch()))())
    assert [device_ids(array) for array in (*params, x)] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert [array.sharding.spec for array in (*params, x)] == [P("x"), P("x"), P("x")]
    out = step(params, x)
    assert device_ids(out) == [4, 5, 6, 7]
    np.testing.assert_allclose(out, jax.jit(model)(init_params(), get_batch()), rtol=1e-5)


def test_an_example_batch_gives_two_results_and_may_lie_anywhere() -> None:
    everywhere = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    x = jax.device_put(get_batch(), NamedSharding(everywhere, P("x")))
    step, init = mm.parallelize(model, init_params=init_params, initial_batch=x)
    out = step(init(), x)
    np.testing.assert_allclose(out, jax.jit(model)(init_params(), get_batch()), rtol=1e-5)
    assert x.sharding.device_set == set(jax.devices())


def test_with_both_the_example_decides_the_shapes_and_three_come_back() -> None:
    step, init, batch = mm.parallelize(
        model, init_params=init_params, get_input_batch=get_batch, initial_batch=np.zeros((4, 8), np.float32)
    )
    assert step.explain().inputs[-1].shape == (4, 8)
    assert step(init(), np.ones((4, 8), np.float32)).shape == (4, 8)
    with pytest.raises(ValueError, match=r"no argument like the result of get_batch, 1 array \(float32\[8, 8\]\)"):
        batch()


def test_parameters_and_batch_of_one_shape_are_not_mixed_up() -> None:
    step, init, batch = mm.parallelize(
        lambda w, x: mm.task(jnp.sin, mesh=MESH)(x) + mm.task(jnp.cos, mesh=MESH.place((4, 5, 6, 7)))(w).sum(),
        init_params=lambda: jnp.ones((8, 8)),
        get_input_batch=lambda: jnp.zeros((8, 8)),
    )
    assert (device_ids(init()), device_ids(batch())) == ([4, 5, 6, 7], [0, 1, 2, 3])
    assert step(init(), batch()).shape == (8, 8)


def test_devices_are_a_mesh_of_one_axis_else_the_mesh_in_use_is_taken() -> None:
    picked = np.array(jax.devices()[::-1]).reshape(2, 4)
    step, init = mm.parallelize(
        lambda w, x: w * x, init_params=lambda: jnp.ones(8), initial_batch=np.ones(8, np.float32), devices=picked
    )
    assert step.multimesh.shape == {"x": 8}
    assert [device.id for device in init().sharding.mesh.devices.flat] == [7, 6, 5, 4, 3, 2, 1, 0]
    with mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data")) as mesh:
        step, _ = mm.parallelize(lambda w, x: w * x, init_params=lambda: jnp.ones(8), initial_batch=1.0)
    assert step.multimesh is mesh


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        pytest.param(
            {"init_params": init_params},
            ValueError,
            r"parallelize: requires either get_input_batch \(a function that makes a batch\) or initial_batch",
            id="no_batch",
        ),
        pytest.param(
            {"initial_batch": 1.0},
            ValueError,
            r"parallelize: init_params is missing, and <lambda> takes params, batch\. Give a function",
            id="no_init_params",
        ),
        pytest.param(
            {"init_params": [jnp.ones(3)], "initial_batch": 1.0},
            TypeError,
            r"parallelize: init_params must be a function without arguments, got list. Write init_params=lambda: ...",
            id="init_params_not_callable",
        ),
        pytest.param(
            {"init_params": init_params, "get_input_batch": jnp.ones(3)},
            TypeError,
            r"parallelize: get_input_batch must be a function without arguments, got ArrayImpl",
            id="get_input_batch_not_callable",
        ),
        pytest.param(
            {"init_params": lambda key: key, "initial_batch": 1.0},
            TypeError,
            r"parallelize: init_params must be callable without arguments and return arrays; calling it failed with: .*"
            r"missing 1 required positional argument: 'key'",
            id="init_params_with_arguments",
        ),
    ],
)
def test_mistakes(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        mm.parallelize(model, **arguments)


def test_the_function_must_be_one() -> None:
    with pytest.raises(TypeError, match=r"parallelize: expected a function of \(params, batch\), got 3"):
        mm.parallelize(3, init_params=init_params, initial_batch=1.0)


def test_a_mesh_may_be_given_in_place_of_the_one_in_use() -> None:
    def double(x):
        return x * 2

    def step(params, batch):
        return mm.task(double, task=mm.Task(mesh_slice={"stage": 1}))(params @ batch)

    mesh = mm.MultiMesh(axis_sizes=(4, 2), axis_names=("stage", "model"))
    parallel, init = mm.parallelize(step, mesh=mesh, init_params=lambda: jnp.eye(4), initial_batch=jnp.ones((4, 4)))
    assert parallel.multimesh is mesh
    assert device_ids(parallel(init(), jnp.ones((4, 4)))) == [2, 3]
    given = {"init_params": lambda: jnp.eye(4), "initial_batch": jnp.ones((4, 4))}
    with pytest.raises(ValueError, match="give mesh= or devices=, not both"):
        mm.parallelize(step, mesh=mesh, devices=jax.devices(), **given)
    with pytest.raises(TypeError, match=r"mesh must be a mm\.MultiMesh, got 'x'"):
        mm.parallelize(step, mesh="x", **given)
