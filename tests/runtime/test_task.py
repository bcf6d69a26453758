"""`Task` and `TaskMesh`: values that are checked when they are made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import mmruntime as mm

pytestmark = pytest.mark.quick

SUBMESH = mm.TaskMesh(devices=(0, 1), axis_sizes=(2,), axis_names=("x",))
X = np.linspace(0.0, 1.0, 8, dtype=np.float32)


def make_mesh() -> mm.MultiMesh:
    return mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))


def test_tasks_are_values() -> None:
    pairs = [["batch", "data"]]
    one = mm.Task(name="a", mesh_slice={"stage": 0}, logical_axes=pairs, extra_axes={"mlp": ("data", "model")})
    two = mm.Task(name="a", mesh_slice={"stage": 0}, logical_axes={"batch": "data"}, extra_axes=one.extra_axes)
    assert one == two
    assert hash(one) == hash(two)
    assert one.extra_axes == (("mlp", "data"), ("mlp", "model"))
    assert one.replace(name="b") != one
    assert pairs == [["batch", "data"]]


def test_extra_axes_come_after_logical_axes() -> None:
    def double(x):
        return mm.with_sharding_constraint(2 * x, P("a", "b"))

    def spec(logical, extra):
        task = mm.Task(name="double", mesh_slice={"stage": 0}, logical_axes=logical, extra_axes=extra)
        return mm.mjit(mm.task(double, task=task), mesh=make_mesh())(jnp.ones((4, 4))).sharding.spec

    assert spec((("b", "data"),), (("a", "data"),)) == P(None, "data")
    assert spec((("a", "data"),), (("b", "data"),)) == P("data")


def test_submeshes_are_placed_and_compared_by_value() -> None:
    placed = SUBMESH.place((6, 7))
    assert placed == mm.TaskMesh(devices=np.array([6, 7]), abstract=AbstractMesh((2,), ("x",)))
    assert placed != SUBMESH
    assert repr(placed) == "TaskMesh(x=2; devices [6, 7])"
    assert placed.abstract_mesh.axis_types == (AxisType.Auto,)
    assert [device.id for device in placed.on(jax.devices()).devices] == [6, 7]


def test_device_lists_need_not_be_contiguous_or_in_order() -> None:
    def step(x):
        for index, devices in enumerate(((0, 2, 4, 6), (7, 1, 5, 3))):
            submesh = mm.TaskMesh(devices=devices, axis_sizes=(4,), axis_names=("x",))
            x = mm.task(lambda x: mm.with_sharding_constraint(jnp.cos(x), P("x")), f"layer_{index}", mesh=submesh)(x)
        return x

    out = mm.mjit(step, mesh=make_mesh())(X)
    np.testing.assert_allclose(out, np.cos(np.cos(X)), rtol=1e-6)
    assert [shard.device.id for shard in sorted(out.addressable_shards, key=lambda s: s.index[0].start)] == [7, 1, 5, 3]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        pytest.param({"name": ""}, TypeError, r"Task: name must be a non-empty string, got ''", id="name"),
        pytest.param(
            {"name": "a", "mesh": SUBMESH, "mesh_slice": {"stage": 0}},
            ValueError,
            r"Task 'a': give mesh= or mesh_slice=, not both \(got TaskMesh\(x=2; devices \[0, 1\]\) and \{'stage': 0\}",
            id="mesh_and_slice",
        ),
        pytest.param(
            {"mesh_slice": 3},
            TypeError,
            r"Task: mesh_slice must map axis names to indices, such as .*, got 3",
            id="slice",
        ),
        pytest.param(
            {"name": "a", "logical_axes": [("batch", "x", "y")]},
            TypeError,
            r"Task 'a': logical_axes must be \(logical, device\) pairs of names such as .*got \('batch', 'x', 'y'\)",
            id="triple",
        ),
    ],
)
def test_task_mistakes(fields, error, message) -> None:
    with pytest.raises(error, match=message):
        mm.Task(**fields)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        pytest.param(
            {"devices": (0, 1)}, TypeError, r"TaskMesh: give axis_sizes= and axis_names=, or abstract=", id="axes"
        ),
        pytest.param(
            {"devices": range(3), "axis_sizes": (2, 2), "axis_names": ("x", "y")},
            ValueError,
            r"TaskMesh: 3 devices \[0, 1, 2\] do not fill axes \{'x': 2, 'y': 2\}, which need 4",
            id="count",
        ),
        pytest.param(
            {"devices": np.arange(4), "axis_sizes": (2,), "axis_names": ("x",)},
            ValueError,
            r"TaskMesh: 4 devices .* do not fill axes \{'x': 2\}, which need 2",
            id="array_count",
        ),
        pytest.param(
            {"devices": (0, 1), "axis_sizes": (2,), "axis_names": ("x", "y")},
            ValueError,
            r"TaskMesh: 1 axis sizes \(2,\) for 2 axis names \('x', 'y'\)",
            id="names",
        ),
        pytest.param(
            {"devices": (1, 1), "axis_sizes": (2,), "axis_names": ("x",)},
            ValueError,
            r"TaskMesh: a device is given twice in \[1, 1\]",
            id="twice",
        ),
    ],
)
def test_submesh_mistakes(fields, error, message) -> None:
    with pytest.raises(error, match=message):
        mm.TaskMesh(**fields)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        pytest.param(
            mm.Task(name="a", mesh_slice={"stag": 0}),
            r"Task 'a': MultiMesh.slice: no axis 'stag'; the axes are 'stage', 'data'",
            id="axis",
        ),
        pytest.param(
            mm.Task(name="a", mesh_slice={"stage": 2}),
            r"Task 'a': MultiMesh.slice: stage=2 is out of range 0..1",
            id="index",
        ),
        pytest.param(
            mm.Task(name="a", mesh=SUBMESH.place((7, 8))),
            r"Task 'a': TaskMesh: device id 8 is out of range, the mesh in use has 8 devices",
            id="device",
        ),
        pytest.param(
            mm.Task(name="a", mesh=SUBMESH, logical_axes=(("batch", "z"),)),
            r"Task 'a' maps logical axis 'batch' to device axis 'z', but its mesh has 'x'. Correct the pair",
            id="unknown_axis",
        ),
        pytest.param(
            mm.Task(name="a", mesh=SUBMESH.place((0, 1)), logical_axes=(("odd", "x"),)),
            r"Task 'a': dimension 1 of a value of shape \(8, 3\) carries \('odd',\) and would be cut into 2 shards .*"
            r"but 3 is not divisible by 2. Pad the dimension, or map the name",
            id="indivisible",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:The logical axis")
def test_what_does_not_fit_the_mesh_names_the_task(task, message) -> None:
    def double(x):
        return mm.with_sharding_constraint(2 * x, P("batch", "odd"))

    with pytest.raises(ValueError, match=message):
        mm.mjit(mm.task(double, task=task), mesh=make_mesh())(np.ones((8, 3), np.float32))
