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
        assert len(step._plans) == 1


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
