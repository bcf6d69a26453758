import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime._core.logical_axes import normalize_pairs, spec_names, translate

pytestmark = pytest.mark.quick

MESH = {"x": 2, "y": 4}


def test_first_pair_wins_a_device_axis():
    names = spec_names(P("batch", "model"), 2)
    assert translate(names, (8, 8), (("batch", "x"), ("model", "x")), MESH, "t") == P("x")
    assert translate(names, (8, 8), (("model", "x"), ("batch", "x")), MESH, "t") == P(None, "x")


def test_one_name_may_take_two_axes_in_mesh_order():
    names = spec_names(P("batch"), 1)
    assert translate(names, (8,), (("batch", "y"), ("batch", "x")), MESH, "t") == P(("x", "y"))


def test_several_names_on_one_dimension():
    names = spec_names(P(("batch", "model"), "seq"), 2)
    assert translate(names, (8, 8), (("batch", "x"), ("model", "y")), MESH, "t") == P(("x", "y"))


def test_a_dimension_smaller_than_its_shards_is_passed_over_for_the_next():
    names = spec_names(P("heads", "heads"), 2)
    assert translate(names, (2, 8), (("heads", "y"),), MESH, "t") == P(None, "y")


def test_none_means_replicated_on_purpose():
    assert translate(spec_names(P("embed"), 1), (8,), (("embed", None), ("embed", "x")), MESH, "t") == P("x")


def test_indivisible_dimension_names_the_task_and_the_numbers():
    with pytest.raises(ValueError, match=r"Task 'mlp': dimension 0 .* cut into 4 shards .* 6 is not divisible by 4"):
        translate(spec_names(P("a"), 1), (6,), (("a", "y"),), MESH, "mlp")


def test_unknown_device_axis_lists_the_mesh():
    with pytest.raises(
        ValueError, match=r"Task 'mlp' maps logical axis 'a' to device axis 'z', but its mesh has 'x', 'y'"
    ):
        translate(spec_names(P("a"), 1), (8,), (("a", "z"),), MESH, "mlp")


def test_spec_longer_than_the_rank():
    with pytest.raises(ValueError, match="names 2 dimensions, but the value has 1"):
        spec_names(P("a", "b"), 1)


def test_pairs_may_be_a_mapping():
    assert normalize_pairs({"batch": ("x", "y"), "embed": None}, "t") == (
        ("batch", "x"),
        ("batch", "y"),
        ("embed", None),
    )


def test_pairs_must_be_pairs():
    with pytest.raises(TypeError, match=r"must be \(logical, device\) pairs"):
        normalize_pairs(["batch"], "Task 'a'")


def test_an_unknown_logical_name_is_replicated_with_one_warning_and_the_report_has_what_was_dropped():
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"), logical_axes=(("batch", "data"),))

    def step(x):
        for index in range(2):
            x = mm.task(
                lambda v: mm.with_sharding_constraint(v * 2, P("bacth", "batch")),
                name=f"t{index}",
                task=mm.Task(mesh_slice={"stage": index}),
            )(x)
        return x

    compiled = mm.mjit(step, mesh=mesh)
    with pytest.warns(UserWarning, match="'bacth' is in no logical_axes.*did you mean 'batch'") as caught:
        out = compiled(jnp.ones((4, 1)))
    assert len(caught) == 1
    assert out.sharding.is_fully_replicated
    dropped = {(row.task, row.name, row.dimension): row.outcome for row in compiled.explain().names}
    assert set(dropped) == {(task, *name) for task in ("t0", "t1") for name in (("bacth", 0), ("batch", 1))}
    assert dropped["t0", "batch", 1] == "dropped: data is taken or larger than the dimension"


def test_names_cross_from_task_to_task_and_each_translates_them():
    mesh = mm.MultiMesh(axis_sizes=(2, 2, 2), axis_names=("stage", "a", "b"))

    def first(x):
        return mm.with_sharding_constraint(jnp.sin(x), P("rows"))

    def second(x):
        return mm.with_sharding_constraint(jnp.cos(x), P("rows"))

    def step(x):
        x = mm.task(first, task=mm.Task(mesh_slice={"stage": 0}, logical_axes=(("rows", "a"),)))(x)
        y = mm.task(second, task=mm.Task(mesh_slice={"stage": 1}, logical_axes=(("rows", "b"),)))(x)
        return x, y

    x, y = mm.mjit(step, mesh=mesh)(jnp.arange(8.0))
    assert x.sharding.spec == P("a")
    assert y.sharding.spec == P("b")
    assert {d.id for d in x.devices()} == {0, 1, 2, 3}
    assert {d.id for d in y.devices()} == {4, 5, 6, 7}


def test_a_constraint_is_an_identity_under_plain_jit_grad_and_vmap():
    def f(x):
        return jnp.sum(mm.with_sharding_constraint(x, P("rows", None)) ** 2)

    x = jnp.arange(6.0).reshape(2, 3)
    assert jax.jit(f)(x) == 55.0
    assert (jax.grad(f)(x) == 2 * x).all()
    assert jax.vmap(f)(jnp.stack([x, x])).shape == (2,)


def test_constraint_specs_must_be_specs():
    with pytest.raises(TypeError, match="expected a PartitionSpec of logical axis names, got 3"):
        mm.with_sharding_constraint(jnp.ones(2), 3)
    with pytest.raises(ValueError, match="are not a prefix of the value's tree"):
        mm.with_sharding_constraint({"a": jnp.ones(2)}, {"b": P("x")})
