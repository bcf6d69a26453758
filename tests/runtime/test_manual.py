"""`shard_map` and `custom_partitioning` inside of tasks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm

pytestmark = pytest.mark.family

X = np.linspace(0.0, 1.0, 8, dtype=np.float32)


def make_mesh() -> mm.MultiMesh:
    return mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))


def centred(x):
    """The values minus their mean, shard by shard."""

    def shard(x):
        return x - jax.lax.pmean(x.mean(keepdims=True), "data")

    return mm.shard_map(shard, in_specs=P("data"), out_specs=P("data"))(x)


def test_each_task_maps_over_its_own_submesh_and_is_differentiated() -> None:
    mesh = make_mesh()

    def loss(x):
        for index in range(2):
            x = mm.task(lambda x: jnp.sin(centred(x)), f"layer_{index}", mesh_slice={"stage": index})(x)
        return (x * x).sum(), x

    def plain(x):
        for _ in range(2):
            x = jnp.sin(x - x.mean())
        return (x * x).sum(), x

    (value, out), grad = mm.mjit(jax.value_and_grad(loss, has_aux=True), mesh=mesh)(X)
    (expected, _), expected_grad = jax.value_and_grad(plain, has_aux=True)(X)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(grad, expected_grad, rtol=1e-4, atol=1e-6)
    assert out.devices() == set(mesh.devices[1])


def test_a_jitted_helper_is_traced_for_each_submesh(monkeypatch: pytest.MonkeyPatch) -> None:
    # Up to the first helper nothing depends on the task.
    monkeypatch.setattr("mmruntime._frontend.task_call._task_was_read", False)
    mesh = make_mesh()
    helper = jax.jit(centred)

    def loss(x):
        for index in (0, 1, 0):
            x = mm.task(lambda x: helper(jnp.cos(x)) + 1, f"layer_{index}", mesh_slice={"stage": index})(x)
        return (x**2).sum()

    def plain(x):
        for _ in range(3):
            x = jnp.cos(x) - jnp.cos(x).mean() + 1
        return (x**2).sum()

    for found, expected in zip(
        mm.mjit(jax.value_and_grad(loss), mesh=mesh)(X), jax.value_and_grad(plain)(X), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_registered_scopes_give_the_submesh_too() -> None:
    mesh = make_mesh()
    mesh.register_task(r"(layer_\d)", callback=lambda name, _: mm.Task(mesh_slice={"stage": int(name[-1])}))

    def step(x):
        for index in range(2):
            with jax.named_scope(f"layer_{index}"):
                x = centred(x) + 1
        return x

    out = mm.mjit(step, mesh=mesh)(X)
    np.testing.assert_allclose(out, X - X.mean() + 1, rtol=1e-5)
    assert out.devices() == set(mesh.devices[1])


@pytest.mark.parametrize("kind", ["multimesh", "mesh", "task_mesh"])
def test_a_mesh_that_is_given_is_used(kind) -> None:
    whole = mm.MultiMesh(axis_sizes=(8,), axis_names=("data",))
    given = {
        "multimesh": whole,
        "mesh": whole.mesh,
        "task_mesh": mm.TaskMesh(devices=range(8), axis_sizes=(8,), axis_names=("data",)),
    }[kind]
    mapped = mm.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=given, in_specs=P("data"), out_specs=P())
    np.testing.assert_allclose(jax.jit(mapped)(X), X.sum(keepdims=True), rtol=1e-6)
    with jax.set_mesh(whole.mesh):
        mapped = mm.shard_map(lambda x: jax.lax.psum(x, "data"), in_specs=P("data"), out_specs=P())
        np.testing.assert_allclose(jax.jit(mapped)(X), X.sum(keepdims=True), rtol=1e-6)


def test_a_step_without_tasks_maps_over_the_whole_mesh() -> None:
    mesh = make_mesh()
    np.testing.assert_allclose(mm.mjit(centred, mesh=mesh)(X), X - X.mean(), rtol=1e-5, atol=1e-7)


def test_an_eager_task_maps_over_its_submesh() -> None:
    with make_mesh() as mesh:
        out = mm.task(centred, mesh_slice={"stage": 1})(X)
    np.testing.assert_allclose(out, X - X.mean(), rtol=1e-5, atol=1e-7)
    assert out.devices() == set(mesh.devices[1])


def test_eager_tasks_that_share_a_compiled_function_map_over_their_own_submeshes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mmruntime._frontend.task_call._task_was_read", False)
    helper = jax.jit(lambda x: centred(x))
    with make_mesh() as mesh:
        outs = [mm.task(helper, f"layer_{index}", mesh_slice={"stage": index})(X) for index in (0, 1, 0)]
    for out, index in zip(outs, (0, 1, 0), strict=True):
        np.testing.assert_allclose(out, X - X.mean(), rtol=1e-5, atol=1e-7)
        assert out.devices() == set(mesh.devices[index])


def test_without_a_mesh_it_says_where_it_can_be_called() -> None:
    with pytest.raises(ValueError, match=r"shard_map: no mesh for shard. Call it inside a task that has a submesh"):
        jax.jit(centred)(X)


def test_custom_partitioning_sees_the_submesh() -> None:
    mesh = make_mesh()
    seen = []

    @mm.custom_partitioning
    def double(x):
        return 2 * x

    def partition(mesh, arg_shapes, result_shape):
        seen.append(dict(mesh.shape))
        sharding = arg_shapes[0].sharding
        return mesh, lambda x: x + x, sharding, (sharding,)

    double.def_partition(
        partition=partition,
        sharding_rule="i -> i",
        infer_sharding_from_operands=lambda mesh, arg_shapes, result_shape: arg_shapes[0].sharding,
    )

    def step(x):
        for index in range(2):
            x = mm.task(
                lambda x: double(mm.with_sharding_constraint(x, P("data"))),
                f"layer_{index}",
                mesh_slice={"stage": index},
            )(x)
        return x

    np.testing.assert_array_equal(mm.mjit(step, mesh=mesh)(X), 4 * X)
    assert seen == [{"stage": 1, "data": 4}] * 2


def step_on_shards(size):
    """A step whose microbatches are split over the submesh of each task."""

    def layer(w, x):
        return mm.shard_map(lambda w, x: x + jnp.tanh(x @ w), in_specs=(P(), P("data")), out_specs=P("data"))(w, x)

    def last(w, x, keep):
        def shard(w, x, keep):
            return jax.lax.psum((jnp.tanh(x @ w).sum(-1) * keep).sum(), "data") / jax.lax.psum(keep.sum(), "data")

        return mm.shard_map(shard, in_specs=(P(), P("data"), P("data")), out_specs=P())(w, x, keep)

    def loss(ws, batch):
        x = mm.task(layer, "first", task=mm.stage(0, 2))(ws[0], batch["x"])
        return mm.task(last, "last", task=mm.stage(1, 2))(ws[1], x, batch["keep"])

    return mm.microbatch(jax.value_and_grad(loss), size=size, argnum=1, reduce="exact")


def batch_of_rows(dtype=np.float64):
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(16, 6)).astype(dtype), "keep": (rng.random(16) > 0.4).astype(dtype)}
    return list(rng.normal(size=(2, 6, 6)).astype(dtype)), batch


def test_microbatches_on_shards_are_exact() -> None:
    def plain(ws, batch):
        x = batch["x"] + jnp.tanh(batch["x"] @ ws[0])
        return (jnp.tanh(x @ ws[1]).sum(-1) * batch["keep"]).sum() / batch["keep"].sum()

    with jax.enable_x64(True):
        arguments = batch_of_rows()
        step = mm.mjit(step_on_shards(4), mesh=make_mesh())
        found, expected = step(*arguments), jax.value_and_grad(plain)(*arguments)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
        assert any("psum" in line or "reduce_sum" in line for line in step.explain().proofs)


def test_microbatches_that_shards_do_not_divide_are_an_error() -> None:
    with pytest.raises(ValueError, match="evenly divisible") as error:
        mm.mjit(step_on_shards(2), mesh=make_mesh())(*batch_of_rows(np.float32))
    notes = "\n".join(error.value.__notes__)
    assert "fails in a microbatch of 2 of" in notes
    assert notes.count("give a size= or count= that it takes") == 1
