"""`mm.task` called outside of steps, with all kinds of arguments, and its messages."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import mmruntime as mm

X = np.linspace(0.0, 1.0, 8, dtype=np.float32)
SUBMESH = mm.TaskMesh(devices=(4, 5, 6, 7), axis_sizes=(4,), axis_names=("x",))


def make_mesh() -> mm.MultiMesh:
    return mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))


def ids(array) -> list[int]:
    return sorted(device.id for device in array.devices())


def test_an_eager_task_runs_on_its_submesh_with_its_layouts() -> None:
    captured = jnp.full(8, 2.0)

    def scale(x, *, factor, label):
        assert label == "kept as it is"
        x = mm.with_sharding_constraint(x * factor + captured, P("batch"))
        return {"out": x, "whole": x.sum()}

    for mesh, pairs in ((SUBMESH, [("batch", "x")]), (SUBMESH.on(jax.devices()), {"batch": "x"})):
        placed = mm.task(scale, mesh=mesh, logical_axes=pairs)
        result = placed(jnp.asarray(X), factor=3.0, label="kept as it is")
        np.testing.assert_allclose(result["out"], X * 3 + 2, rtol=1e-6)
        assert ids(result["out"]) == ids(result["whole"]) == [4, 5, 6, 7]
        assert result["out"].sharding.spec == P("x")


@jax.tree_util.register_pytree_node_class
class Scaled:
    """Makes its leaf when it is asked for it, and keeps an array beside it."""

    def __init__(self, x, scale):
        self.x, self.scale = x, scale

    def tree_flatten(self):
        return (self.x * 1,), self.scale

    @classmethod
    def tree_unflatten(cls, scale, leaves):
        return cls(*leaves, scale)


def test_an_argument_of_a_class_that_makes_its_leaves() -> None:
    def double(given):
        return 2 * given.x * given.scale

    for scale in (2.0, np.ones(X.shape)):
        given = Scaled(jnp.asarray(X), scale)
        np.testing.assert_allclose(mm.task(double, mesh=SUBMESH)(given), 2 * X * scale)
        np.testing.assert_allclose(jax.jit(lambda: mm.task(double, mesh=SUBMESH)(given))(), 2 * X * scale)  # noqa: B023


@pytest.mark.parametrize("call", [lambda step: step(), jax.eval_shape, lambda step: jax.make_jaxpr(step)()])
def test_a_task_that_changes_its_arguments_in_place(call) -> None:
    """What it gets are copies, so that the change would be lost."""

    def remember(x, cache, options=None):
        cache["seen"] = cache.get("seen", 0) + x
        return x

    def extend(x, cache, options=None):
        options.append(x)
        return x

    def read(x, cache, options=None):
        cache = dict(cache, seen=x)
        return x + len(cache) + len(options)

    def step(fun, cache):
        x = jnp.asarray(X)
        return mm.task(fun, mesh=SUBMESH)(x, cache, options=[x])

    with pytest.raises(
        ValueError, match=r"Task 'remember' changes argument 1 in place \(dict, 0 leaves before, 1 after"
    ):
        call(functools.partial(step, remember, {}))
    with pytest.raises(
        ValueError, match=r"Task 'remember' changes argument 1 in place \(dict, 1 leaves before, 1 after"
    ):
        call(functools.partial(step, remember, {"seen": 1}))
    with pytest.raises(
        ValueError, match=r"Task 'extend' changes options in place \(list, .* return the new value inst"
    ):
        call(functools.partial(step, extend, {}))
    call(functools.partial(step, read, {}))


def test_an_argument_that_the_task_uses_up() -> None:
    """As `eqx.nn.State`, which cannot be read once a layer has made the next one of it."""

    @jax.tree_util.register_pytree_node_class
    class Once:
        def __init__(self, value):
            self.value = value

        def next(self):
            value, self.value = self.value, None
            return Once(value + 1)

        def tree_flatten(self):
            if self.value is None:
                raise ValueError("used up")
            return (self.value,), None

        @classmethod
        def tree_unflatten(cls, _, leaves):
            return cls(*leaves)

    found = jax.jit(lambda state: mm.task(Once.next, mesh=SUBMESH)(state))(Once(jnp.asarray(X)))
    np.testing.assert_array_equal(found.value, X + 1)


def test_eager_tasks_by_slice_need_a_mesh_in_use() -> None:
    placed = mm.task(jnp.cos, mesh_slice={"stage": 1})
    assert ids(placed(X)) == [0]
    with make_mesh():
        assert ids(placed(X)) == [4, 5, 6, 7]
        assert ids(mm.task(jnp.sin, mesh_slice={"stage": 0})(placed(X))) == [0, 1, 2, 3]
        with mm.ignore_transforms():
            assert ids(placed(X)) == [0]

    @make_mesh()
    def evaluate(x):
        return placed(x)

    assert ids(evaluate(X)) == [4, 5, 6, 7]


def test_a_submesh_that_this_machine_lacks_does_not_stop_an_eager_call() -> None:
    far = mm.TaskMesh(devices=(64, 65), axis_sizes=(2,), axis_names=("x",))
    np.testing.assert_allclose(mm.task(jnp.cos, mesh=far)(X), np.cos(X), rtol=1e-6)
    message = r"Task 'cos': TaskMesh: device id 65 is out of range, the mesh in use has 8 devices \(0..7\)"
    with make_mesh(), pytest.raises(ValueError, match=message):
        mm.task(jnp.cos, mesh=far)(X)


def test_a_flax_model_can_be_applied_eagerly_stage_by_stage() -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for index in range(2):
                dense = nn.Dense(8, use_bias=False, name=f"layer_{index}")
                x = mm.task(dense, mesh_slice={"stage": index})(x)
            return x

    x = X.reshape(1, 8)
    with make_mesh():
        params = Net().init(jax.random.key(0), x)
        out = Net().apply(params, x)
    assert ids(out) == [4, 5, 6, 7]
    np.testing.assert_allclose(out, jax.jit(Net().apply)(params, x), rtol=1e-5, atol=1e-6)


def test_eager_calls_of_several_tasks_share_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmruntime._frontend.task_call._task_was_read", False)
    traced = []

    @jax.jit
    def double(x):
        traced.append(x)
        return 2 * x

    for index in range(3):
        mm.task(double, f"layer_{index}", mesh_slice={"stage": index})(jnp.ones(4))
    assert len(traced) == 1


def test_the_wrapper_looks_like_the_function() -> None:
    def encode(x, *, train=False):
        """Encode."""
        return -x if train else x

    placed = mm.task(encode, mesh=SUBMESH)
    assert (placed.__name__, placed.__doc__) == ("encode", "Encode.")
    np.testing.assert_array_equal(jax.jit(functools.partial(placed, train=True))(X), -X)


@pytest.mark.parametrize(
    ("fun", "given", "task", "name"),
    [
        pytest.param(jnp.cos, None, mm.Task(mesh=SUBMESH), "cos", id="function"),
        pytest.param(functools.partial(jnp.add, 1.0), None, mm.Task(mesh=SUBMESH), "add", id="partial"),
        pytest.param(jnp.cos, None, mm.Task(name="own", mesh=SUBMESH), "own", id="own_name"),
        pytest.param(jnp.cos, "given", mm.Task(name="own", mesh=SUBMESH), "given", id="name_argument"),
        pytest.param(nn.Dropout(0.5, deterministic=True, name="drop"), None, mm.Task(mesh=SUBMESH), "drop", id="flax"),
    ],
)
def test_names(fun, given, task, name) -> None:
    if isinstance(fun, nn.Module):
        fun = fun.bind({})
    step = mm.mjit(lambda x: mm.task(fun, given, task=task)(x) + 1, mesh=make_mesh())
    step(X)
    assert [row.tasks for row in step.explain().programs] == [(name,)]


def test_objects_of_plain_classes_and_a_task_chosen_per_call() -> None:
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, x):
            return x * self.factor

    assert ids(mm.task(Scale(2.0), mesh=SUBMESH)(X)) == [4, 5, 6, 7]

    def choose(iteration):
        return mm.Task(mesh_slice={"stage": iteration % 2})

    def step(x):
        return [mm.task(Scale(2.0), task=choose(iteration))(x) for iteration in range(3)]

    found = mm.mjit(step, mesh=make_mesh())(X)
    assert [ids(value)[0] for value in found] == [0, 4, 0]
    for value in found:
        np.testing.assert_array_equal(value, 2 * X)


def test_numbers_and_strings_of_python_stay_what_they_are() -> None:
    def widen(x, rate, label):
        return {"x": x * rate, "rate": rate * 2, "label": label + "!", "wide": rate > 1, "none": None}

    def step(x):
        found = {"x": x, "rate": 1, "label": ""}
        for i in range(2):
            found = mm.task(widen, task=mm.stage(i, 2))(found["x"], found["rate"], found["label"])
        # A tracer could be neither a key nor a condition.
        return {f"{found['label']} {found['rate']}": found["x"] if found["wide"] and found["none"] is None else None}

    for run in (mm.mjit(step, mesh=make_mesh()), step):
        with make_mesh():
            ((key, value),) = run(X).items()
        assert key == "!! 4"
        np.testing.assert_allclose(value, 2 * X)
        assert ids(value) == [4, 5, 6, 7]


def test_earlier_arguments_are_accepted() -> None:
    grid = np.array(jax.devices()[4:]).reshape(2, 2)
    for devices in (grid, [[4, 5], [6, 7]]):
        placed = mm.task(
            lambda x: mm.with_sharding_constraint(x, P("batch")),
            devices=devices,
            device_axes=("x", "y"),
            logical_axes=(("batch", "y"),),
        )
        assert placed(X).sharding.spec == P("y")
        assert ids(placed(X)) == [4, 5, 6, 7]
    assert ids(mm.task(jnp.cos, devices=[6, 7])(X)) == [6, 7]
    assert ids(mm.task(jnp.cos, mesh=Mesh(grid, ("x", "y")))(X)) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("arguments", "fields", "error", "message"),
    [
        pytest.param((3,), {}, TypeError, r"task: expected a function to place, got 3. Write mm.task\(f", id="no_fun"),
        pytest.param(
            (nn.Dense,),
            {"mesh": SUBMESH},
            TypeError,
            r"task: Dense is a class, .* Write mm.task\(Dense\(...\), task=...\)\(x\); .* there is mm.flax.task",
            id="class",
        ),
        pytest.param(
            (jnp.cos,),
            {"configure": lambda iter: mm.Task(), "configure_args": ("iter",)},
            TypeError,
            r"task: configure= and configure_args= .* Choose it where you call: mm.task\(f, task=choose\(iter\)\)",
            id="configure",
        ),
        pytest.param(
            (jnp.cos,),
            {"task": mm.Task(), "mesh": SUBMESH},
            TypeError,
            r"task: give task= or its fields, not both \(got task=Task\(.*\) and mesh\)",
            id="task_and_fields",
        ),
        pytest.param(
            (jnp.cos,),
            {"task": {"stage": 0}},
            TypeError,
            r"task: task must be a mm.Task, got \{'stage': 0\}. Write task=mm.Task\(mesh_slice=",
            id="not_a_task",
        ),
        pytest.param(
            (jnp.cos,),
            {"logical_axis": ()},
            TypeError,
            r"task: unknown field 'logical_axis'; did you mean 'logical_axes'\? There are name, mesh,",
            id="unknown_field",
        ),
        pytest.param(
            (jnp.cos,),
            {"mesh": SUBMESH, "devices": [0]},
            ValueError,
            r"task: cannot give both mesh= and devices=; mesh= alone says both",
            id="mesh_and_devices",
        ),
        pytest.param(
            (jnp.cos,),
            {"devices": [0, 1], "device_axes": ("x", "y")},
            ValueError,
            r"task: device_axes \('x', 'y'\) has 2 names, but devices= has 1 dimensions \(2,\). Give one name per",
            id="rank",
        ),
        pytest.param(
            (jnp.cos,),
            {"devices": [0, 1], "logical_axes": (("batch", "x"),)},
            ValueError,
            r"task: logical_axes= needs names for the axes of devices=. Add device_axes=",
            id="logical_axes_without_device_axes",
        ),
        pytest.param(
            (jnp.cos,),
            {"device_axes": ("x",)},
            ValueError,
            r"task: device_axes= names the axes of devices=, which is missing. Give devices= too.",
            id="device_axes_alone",
        ),
        pytest.param(
            (jnp.cos,),
            {"mesh": SUBMESH, "device_axes": ("x",)},
            ValueError,
            r"device_axes= names the axes of devices=, which is missing. Remove it: the axes of mesh= have names.",
            id="device_axes_and_mesh",
        ),
        pytest.param(
            (jnp.cos,),
            {"mesh_slice": {"stage": 0}, "device_axes": ("x",)},
            ValueError,
            r"which is missing. Remove it: the axes of mesh_slice= have names.",
            id="device_axes_and_slice",
        ),
        pytest.param(
            (jnp.cos,),
            {"mesh_slice": {"stage": 0}, "devices": [0, 1]},
            ValueError,
            r"task: cannot give both mesh_slice= and devices=; mesh_slice= alone says both",
            id="slice_and_devices",
        ),
        pytest.param(
            (jnp.cos,),
            {"mesh": SUBMESH, "logical_axes": ("batch", "x")},
            TypeError,
            r"Task: logical_axes must be \(logical, device\) pairs of names such as .*got 'batch'",
            id="flat_pairs",
        ),
    ],
)
def test_mistakes(arguments, fields, error, message) -> None:
    with pytest.raises(error, match=message):
        mm.task(*arguments, **fields)
