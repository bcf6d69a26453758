"""MultiMesh's public names take what its documents say, and raise where they say so."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime._core.auto_layout import AUTO

X = np.arange(8, dtype=np.float32)


def grid(*shape: int) -> np.ndarray:
    return np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)


# The parameters in MultiMesh's documents, in their order.
DOCUMENTED = {
    "MultiMesh": "axis_sizes axis_names devices global_mesh",
    "TaskMesh": "devices axis_sizes axis_names abstract",
    "Task": "name mesh logical_axes mesh_slice extra_axes split_backprop loop_dependent_mesh_slice",
    "autoshard": "autoshard",
    "context": "autoshard enable_recomputation enable_fast_path ignore_transforms",
    "enable_fast_path": "enable context_value",
    "enable_recomputation": "enable context_value",
    "ignore_transforms": "ignore",
    "microbatch": "fun dim size argnum interleave num_stages schedule unrolling arg_shardings custom_schedule",
    "mjit": "mesh devices in_shardings out_shardings",
    "parallelize": "fun init_params get_input_batch initial_batch devices",
    "register_task": "matcher callback task",
    "shard_map": "fun mesh out_specs in_specs",
    "task": "fun name task mesh logical_axes mesh_slice extra_axes split_backprop loop_dependent_mesh_slice",
    "tasks": "configurable",
    "with_sharding_constraint": "x axis_resources",
    "flax.parallelize_step": "model optimizer mesh global_batch local_batch replicate_inputs",
    "flax.task": "model name task mesh logical_axes",
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_signatures_show_the_documented_names_in_their_order(name) -> None:
    owner, _, attribute = name.rpartition(".")
    parameters = inspect.signature(getattr(mm.flax if owner else mm, attribute)).parameters
    named = [key for key, each in parameters.items() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    # `mjit` takes the options of the function that it stands for.
    assert name == "mjit" or not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    documented = DOCUMENTED[name].split()
    assert [key for key in named if key in documented] == documented


def test_a_mesh_has_the_shape_of_its_devices() -> None:
    mesh = mm.MultiMesh(devices=grid(2, 2, 2), axis_names=("stage", "data", "model"))
    assert dict(mesh.shape) == {"stage": 2, "data": 2, "model": 2}
    assert mesh.global_mesh == Mesh(grid(2, 2, 2), ("stage", "data", "model"))
    assert mm.MultiMesh(devices=jax.devices()[:2], axis_names="x").axis_sizes == (2,)
    assert mm.MultiMesh(devices=grid(8), axis_sizes=(4, 2), axis_names=("x", "y")).axis_sizes == (4, 2)
    with pytest.raises(ValueError, match=r"devices= is an array of shape \(4, 2\), and axis_sizes= is \(2, 4\)"):
        mm.MultiMesh(devices=grid(4, 2), axis_sizes=(2, 4), axis_names=("x", "y"))
    with pytest.raises(ValueError, match=r"2 axis sizes \(4, 2\) for 1 axis names"):
        mm.MultiMesh(devices=grid(4, 2), axis_names=("x",))


def test_a_global_mesh_makes_the_rest_ignored() -> None:
    wrapped = Mesh(grid(4, 2), ("x", "y"))
    mesh = mm.MultiMesh(global_mesh=wrapped, axis_sizes=(8,), axis_names=("z",), devices=jax.devices()[:3])
    assert mesh.global_mesh == wrapped


def test_slices() -> None:
    mesh = mm.MultiMesh(devices=grid(8)[::-1].reshape(4, 2), axis_names=("stage", "x"))
    assert mesh.single_slice_ids(stage=1) == [5, 4]
    assert mesh.single_slice_devices(stage=1).shape == (1, 2)
    with mesh:
        assert mm.slice_global_mesh(stage=1).devices.ravel().tolist() == [2, 3]


def test_a_slice_may_name_an_axis_that_the_task_maps() -> None:
    mesh = mm.MultiMesh(devices=grid(2, 2), axis_names=("w", "x"))
    task = mm.Task(mesh_slice={"stage": 1}, logical_axes=(("stage", "w"), ("batch", "x")))
    step = mm.mjit(mm.task(lambda x: mm.with_sharding_constraint(2 * x, P("batch")), task=task), mesh=mesh)
    out = step(X)
    assert {device.id for device in out.devices()} == {2, 3}
    assert out.sharding.spec == P("x")
    unknown = mm.Task(mesh_slice={"stage": 1}, logical_axes=(("batch", "x"),))
    with pytest.raises(ValueError, match="no axis 'stage'; the axes are 'w', 'x'"):
        mm.mjit(mm.task(jnp.sin, task=unknown), mesh=mesh)(X)


def test_switches_take_their_documented_keywords() -> None:
    with mm.autoshard(autoshard=True), mm.enable_fast_path(enable=False, context_value=[True]):
        pass
    with mm.enable_recomputation(False, [True]):
        pass
    mm.register_task("layer", task=mm.Task(mesh_slice={"stage": 0}))
    with mm.tasks(), pytest.raises(ValueError, match=r"layer.*no axis 'stage'"):
        mm.mjit(jax.named_call(jnp.sin, name="layer"), mesh=mm.MultiMesh(devices=grid(2), axis_names="x"))(X)
    mm.clear_tasks()


@pytest.mark.parametrize("devices", [grid(4), grid(2, 2), [0, 1, 2, 3], jax.devices()[:4]], ids=str)
def test_devices_without_names_for_their_axes_replicate(devices) -> None:
    def constrained(x):
        return mm.with_sharding_constraint(2 * x, P("x"))

    out = mm.mjit(mm.task(constrained, devices=devices), devices=jax.devices())(X)
    assert out.sharding.spec == P()
    assert {device.id for device in out.devices()} == {0, 1, 2, 3}


def test_flax_tasks_need_a_submesh() -> None:
    class Doubled(nn.Module):
        @nn.compact
        def __call__(self, x):
            return mm.with_sharding_constraint(2 * x, P("x"))

    doubled = mm.flax.task(Doubled, devices=grid(2, 2))()
    out = mm.mjit(lambda x: doubled.apply(doubled.init(jax.random.key(0), x), x), devices=jax.devices())(X)
    assert {device.id for device in out.devices()} == {0, 1, 2, 3}
    with pytest.raises(ValueError, match=r"give the submesh of Doubled as one of mesh=, devices=.*without any"):
        mm.flax.task(Doubled, logical_axes=(("batch", "x"),))
    with pytest.raises(ValueError, match=r"give the submesh of Doubled as one of .*; got none\."):
        mm.flax.task(Doubled)
    with pytest.raises(ValueError, match=r"logical_axes= needs names for the axes of devices="):
        mm.flax.task(Doubled, devices=grid(2), logical_axes=(("batch", "x"),))
    with pytest.raises(ValueError, match="cannot give both mesh= and devices="):
        mm.flax.task(Doubled, devices=grid(2), mesh=Mesh(grid(2), ("x",)))


def test_parallelize_a_function_of_parameters_or_of_a_batch_alone() -> None:
    step, init = mm.parallelize(lambda w: 2 * w, init_params=lambda: jnp.ones(8))
    assert step(init()).sum() == 16
    step, init, batch = mm.parallelize(lambda x, scale=3: scale * x, get_input_batch=lambda: jnp.ones(8))
    assert init is None
    assert step(batch()).sum() == 24
    step, init = mm.parallelize(lambda x: x + 1, initial_batch=X)
    assert init is None
    np.testing.assert_array_equal(step(X), X + 1)


def test_parallelize_says_what_is_missing() -> None:
    def model(weights, batch):
        return weights * batch

    with pytest.raises(ValueError, match=r"init_params is missing, and model takes weights, batch\. Give"):
        mm.parallelize(model, get_input_batch=lambda: X)
    with pytest.raises(ValueError, match=r"requires either get_input_batch .*, and model takes weights, batch\."):
        mm.parallelize(model, init_params=lambda: X)
    with pytest.raises(ValueError, match="init_params is missing"):
        mm.parallelize(jnp.sin)


# Steps ahead of their calls.


def pipeline(weights, x, power=1):
    first = mm.TaskMesh(devices=(0, 1), axis_sizes=(2,), axis_names=("x",))
    names = (("batch", "x"),)
    x = mm.task(lambda w, x: mm.with_sharding_constraint(x, P("batch")) * w, mesh=first, logical_axes=names)(weights, x)
    return mm.task(lambda x: {"out": x**power}, mesh=first.place((2, 3)), logical_axes=names)(x)


def test_lower_and_compile_as_jax_has_them() -> None:
    step = mm.mjit(pipeline, devices=jax.devices()[:4], static_argnames="power")
    compiled = step.lower(jnp.float32(2), jax.typeof(jnp.asarray(X)), power=2).compile()
    (weights, x), keywords = compiled.input_shardings
    assert keywords == {}
    assert x == NamedSharding(Mesh(grid(2), ("x",)), P("x"))
    assert len(weights.device_set) == 4
    out = compiled(2.0, X)
    np.testing.assert_array_equal(out["out"], (2 * X) ** 2)
    assert compiled.output_shardings["out"].is_equivalent_to(out["out"].sharding, 1)
    assert compiled.explain().programs == step.explain().programs
    assert step.num_plans == 1
    np.testing.assert_array_equal(step(jnp.float32(2), X, power=2)["out"], out["out"])
    assert step.num_plans == 1


def test_a_compiled_step_takes_what_it_was_compiled_for() -> None:
    step = mm.mjit(pipeline, devices=jax.devices()[:4], static_argnums=2)
    compiled = step.lower(2.0, jax.ShapeDtypeStruct((8,), jnp.float32), 3).compile()
    np.testing.assert_array_equal(compiled(2.0, X)["out"], (2 * X) ** 3)
    with pytest.raises(TypeError, match=r"compiled for x of shape \(8,\) and type float32, got \(4,\) and"):
        compiled(2.0, X[:4])
    with pytest.raises(TypeError, match="compiled for arguments of the tree"):
        compiled(2.0, (X, X))
    with pytest.raises(TypeError, match="cannot be transformed"):
        jax.jit(compiled)(2.0, X)


def test_lower_of_a_step_of_objects() -> None:
    from flax import nnx

    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    step = mm.mjit(lambda model, x: model(x), devices=jax.devices()[:2], like=nnx.jit)
    np.testing.assert_allclose(step.lower(model, X).compile()(model, X), model(X), rtol=1e-6)


def test_mjit_takes_the_mesh_of_its_layouts() -> None:
    mesh = Mesh(grid(4, 1), ("batch", "model"))
    for options in ({"out_shardings": AUTO(mesh)}, {"in_shardings": (None, NamedSharding(mesh, P("batch")))}):
        step = mm.mjit(lambda w, x: w * x, **options)
        assert step.multimesh.global_mesh == mesh
        np.testing.assert_array_equal(step(2.0, X), 2 * X)
    with pytest.raises(TypeError, match=r"AUTO: mesh must be a mm\.MultiMesh or a jax\.sharding\.Mesh, got 'x'"):
        AUTO("x")
    with pytest.raises(ValueError, match="no mesh for"):
        mm.mjit(jnp.sin)


def test_layouts_of_a_step_are_logical_names_for_tasks_with_axes_of_their_own() -> None:
    mesh = mm.MultiMesh(devices=grid(4, 1), axis_names=("batch", "model"))
    layout = NamedSharding(mesh, P("batch"))
    step = mm.mjit(pipeline, mesh=mesh, in_shardings=(None, layout), out_shardings=AUTO(mesh))
    out = step(2.0, X)
    np.testing.assert_array_equal(out["out"], 2 * X)
    (_, x), _ = step.lower(2.0, X).compile().input_shardings
    assert x == NamedSharding(Mesh(grid(2), ("x",)), P("x"))


# Names.


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (mm, "microbach", "did you mean 'microbatch'"),
        (mm, "taskmesh", "did you mean 'TaskMesh'"),
        (mm, "Multimesh", "did you mean 'MultiMesh'"),
        (mm, "parallelize_step", r"it is in mmruntime\.flax: write mm\.flax\.parallelize_step"),
        (mm.flax, "paralelize_step", "did you mean 'parallelize_step'"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_unknown_names_get_the_known_ones(owner, name, message) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(owner, name)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(
    "row", [["first", "firts"], [(0, "first"), (1, "firts")], ["firts", "firts"]], ids=["one", "numbered", "all"]
)
def test_an_unknown_task_in_a_schedule_gets_the_known_ones(stages, row) -> None:
    mesh = mm.MultiMesh(axis_sizes=(stages,), axis_names=("stage",))

    def forward(x):
        x = mm.task(jnp.sin, "first", mesh_slice={"stage": 0})(x)
        return mm.task(jnp.cos, "last", mesh_slice={"stage": stages - 1})(x).sum()

    step = mm.mjit(mm.microbatch(forward, size=4, custom_schedule=[row, ["last", "last"]]), mesh=mesh)
    with pytest.raises(ValueError, match=r"There is no task 'firts'\. Did you mean 'first'\? The tasks are first, "):
        step(X)
