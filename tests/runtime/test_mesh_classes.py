"""What users hold are the classes of `jax.sharding`: in, out, and as contexts around a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm

X = np.linspace(0.0, 1.0, 8, dtype=np.float32)
EXPLICIT = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
AUTO = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


def two_stages(x):
    for index in range(2):
        x = mm.task(
            lambda x: mm.with_sharding_constraint(jnp.cos(x), P("data")), f"layer_{index}", mesh_slice={"stage": index}
        )(x)
    return x


def make_mesh() -> mm.MultiMesh:
    return mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))


def check(out, mesh) -> None:
    np.testing.assert_allclose(out, np.cos(np.cos(X)), rtol=1e-6)
    assert type(out.sharding) is NamedSharding
    assert type(out.sharding.mesh) is Mesh
    assert out.sharding.spec == P("data")
    assert out.devices() == set(mesh.devices[1])


@pytest.mark.parametrize(
    "sharding",
    [
        pytest.param(None, id="host"),
        pytest.param(SingleDeviceSharding(jax.devices()[5]), id="single_device"),
        pytest.param(NamedSharding(AUTO, P("x")), id="auto"),
        pytest.param(NamedSharding(EXPLICIT, P("x")), id="explicit"),
        pytest.param(NamedSharding(EXPLICIT, P()), id="explicit_replicated"),
        pytest.param(NamedSharding(make_mesh().slice(stage=0), P("data")), id="at_home"),
    ],
)
def test_arguments_may_be_laid_out_in_any_way(sharding) -> None:
    mesh = make_mesh()
    step = mm.mjit(two_stages, mesh=mesh)
    x = X if sharding is None else jax.device_put(X, sharding)
    check(step(x), mesh)
    if sharding is not None:
        step.plan(jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=sharding))
        assert step.num_plans == 1


@pytest.mark.parametrize("ambient", [EXPLICIT, AUTO], ids=["explicit", "auto"])
def test_a_mesh_in_context_does_not_enter_a_step(ambient) -> None:
    mesh = make_mesh()
    with jax.set_mesh(ambient):
        x = jax.device_put(X, NamedSharding(ambient, P("x"))) + 0
        check(mm.mjit(two_stages, mesh=mesh)(x), mesh)
        assert jax.sharding.get_mesh() == ambient


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=["explicit", "auto"])
def test_a_mesh_of_jax_is_accepted_and_its_axes_become_auto(kind) -> None:
    mesh = jax.make_mesh((2, 4), ("stage", "data"), axis_types=(kind,) * 2)
    for given in (mesh, mm.MultiMesh(global_mesh=mesh)):
        out = mm.mjit(two_stages, mesh=given)(X)
        check(out, mesh)
        assert out.sharding.mesh.axis_types == (AxisType.Auto,) * 2


def test_results_can_be_used_by_plain_jax() -> None:
    mesh = make_mesh()
    out = mm.mjit(two_stages, mesh=mesh)(X)
    assert jax.jit(jnp.sin)(out).sharding.spec == P("data")
    gathered = jax.device_put(out, NamedSharding(mesh.mesh, P(("stage", "data"))))
    np.testing.assert_allclose(gathered, np.cos(np.cos(X)), rtol=1e-6)
    jax.debug.visualize_array_sharding(out)


def test_sharding_constraints_take_named_shardings_by_their_spec() -> None:
    mesh = make_mesh()

    def step(x):
        return mm.task(
            lambda x: mm.with_sharding_constraint(x * 2, NamedSharding(mesh.mesh, P("data"))), mesh_slice={"stage": 1}
        )(x)

    assert mm.mjit(step, mesh=mesh)(X).sharding.spec == P("data")


def test_a_multimesh_stands_where_jax_wants_a_mesh() -> None:
    mesh = make_mesh()
    assert isinstance(mesh, Mesh)
    assert (mesh.size, dict(mesh.shape), mesh.axis_names) == (8, {"stage": 2, "data": 4}, ("stage", "data"))
    sharding = NamedSharding(mesh, P("data"))
    x = jax.device_put(X, sharding)
    assert x.devices() == set(mesh.devices.flat)
    assert jax.jit(lambda x: x + 1, out_shardings=sharding)(x).sharding.spec == P("data")
    mapped = jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
    assert jax.jit(mapped)(x).shape == (2,)
    with jax.set_mesh(mesh):
        assert jax.jit(lambda x: jax.lax.with_sharding_constraint(x, P("stage")))(X).sharding.spec == P("stage")
    check(mm.mjit(two_stages, mesh=mesh)(x), mesh)


def test_equal_multimeshes_do_not_share_registrations() -> None:
    one, two = make_mesh(), make_mesh()
    one.register_task("layer", task=mm.Task(mesh_slice={"stage": 1}))
    assert len(one.registrations) == 1
    assert two.registrations == ()
    assert str(one) == repr(one) == "MultiMesh(stage=2, data=4)"


def test_too_few_devices_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    message = "needs 11 devices.*give each of the 2 processes 6, by XLA_FLAGS=.*=6 or `mmrewrite run .*-process 6`"
    with pytest.raises(ValueError, match=message):
        mm.MultiMesh(axis_sizes=(11,), axis_names=("stage",))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        pytest.param({}, TypeError, r"MultiMesh: give axis_names= with axis_sizes= or with devices=", id="nothing"),
        pytest.param(
            {"axis_sizes": (3, 4), "axis_names": ("stage", "data")},
            ValueError,
            r"MultiMesh: stage=3 x data=4 needs 12 devices, and has 8. .*device_count=12 before JAX is imported",
            id="devices",
        ),
        pytest.param(
            {"axis_sizes": (2,), "axis_names": ("stage", "data")},
            ValueError,
            r"MultiMesh: 1 axis sizes \(2,\) for 2 axis names",
            id="names",
        ),
        pytest.param(
            {"axis_sizes": (2, 0), "axis_names": ("stage", "data")},
            ValueError,
            r"MultiMesh: axis sizes must be positive integers, got \(2, 0\)",
            id="zero",
        ),
        pytest.param(
            {"axis_sizes": (2,), "axis_names": ("stage",), "logical_axes": (("batch", "data"),)},
            ValueError,
            r"MultiMesh: logical_axes maps 'batch' to device axis 'data', but the mesh has 'stage'",
            id="pairs",
        ),
    ],
)
def test_mesh_mistakes(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        mm.MultiMesh(**arguments)


def test_a_step_needs_a_mesh() -> None:
    with pytest.raises(ValueError, match=r"mjit: no mesh for two_stages. Write mm.mjit\(two_stages, mesh=mesh\)"):
        mm.mjit(two_stages)
    with pytest.raises(TypeError, match=r"mjit: mesh must be a mm.MultiMesh or a jax.sharding.Mesh, got 3"):
        mm.mjit(two_stages, mesh=3)
    with pytest.raises(ValueError, match=r"slice_global_mesh\(stage=1\): no MultiMesh is in use"):
        mm.slice_global_mesh(stage=1)
