"""`mm.flax.task` over module classes, in both forms, for linen and nnx."""

import functools
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import mmruntime as mm

pytestmark = pytest.mark.family

STAGE_1 = mm.Task(mesh_slice={"stage": 1})


@pytest.fixture(scope="module", autouse=True)
def promotion_of_libraries():
    """Flax and Optax are not written for strict promotion."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def make_mesh() -> mm.MultiMesh:
    return mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))


class Block(nn.Module):
    """Statistics, randomness, a flag, and a submodule as a field."""

    width: int = 4
    inner: nn.Module | None = None

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        y = nn.BatchNorm(use_running_average=not train)(nn.Dense(self.width)(x))
        if self.inner is not None:
            y = self.inner(y)
        return x + nn.Dropout(0.5, deterministic=not train)(nn.relu(y))


@functools.partial(mm.flax.task, task=STAGE_1, keep_paths=True)
class PlacedBlock(Block):
    """As the tool writes it."""


class Net(nn.Module):
    kind: type[nn.Module]

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = self.kind(inner=nn.Dense(4), name="layer_0")(x, train=train)
        return self.kind()(x, train=train)


def paths(tree) -> set[str]:
    return {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(tree)}


RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
X = np.linspace(-1.0, 1.0, 16, dtype=np.float32).reshape(4, 4)


def run(kind: type[nn.Module]):
    """Variables, a training call with new statistics, and a call without training, under plain `jax.jit`."""
    model = Net(kind)
    variables = jax.jit(model.init)(RNGS, X)

    @jax.jit
    def train(variables, key):
        return model.apply(variables, X, train=True, rngs={"dropout": key}, mutable=["batch_stats"])

    return variables, train(variables, jax.random.key(2)), jax.jit(model.apply)(variables, X)


@pytest.fixture(scope="module")
def plain():
    return run(Block)


def test_keep_paths_gives_the_variables_and_values_of_plain_flax(plain) -> None:
    placed = run(mm.flax.task(Block, task=STAGE_1, keep_paths=True))
    assert jax.tree.structure(placed) == jax.tree.structure(plain)
    jax.tree.map(np.testing.assert_array_equal, placed, plain)


def test_documented_form_keeps_all_variables_under_mod(plain) -> None:
    variables, (out, changed), _ = run(mm.flax.task(Block, task=STAGE_1))
    assert paths(variables["params"]) == {
        f"{layer}/mod/params/{name}"
        for layer, names in {
            "layer_0": [
                "Dense_0/kernel",
                "Dense_0/bias",
                "BatchNorm_0/scale",
                "BatchNorm_0/bias",
                "inner/kernel",
                "inner/bias",
            ],
            "Task[Block]_0": ["Dense_0/kernel", "Dense_0/bias", "BatchNorm_0/scale", "BatchNorm_0/bias"],
        }.items()
        for name in names
    }
    assert paths(changed["batch_stats"]) == paths(variables["batch_stats"])
    assert out.shape == plain[1][0].shape


def test_documented_form_computes_what_the_module_computes_on_the_same_variables() -> None:
    model = mm.flax.task(Block, task=STAGE_1)(inner=nn.Dense(4))
    variables = jax.jit(model.init)(RNGS, X)
    inner = {"params": variables["params"]["mod"]["params"], "batch_stats": variables["batch_stats"]["mod"]}
    reference = Block(inner=nn.Dense(4))
    np.testing.assert_array_equal(jax.jit(model.apply)(variables, X), jax.jit(reference.apply)(inner, X))

    def train(model, variables):
        return model.apply(variables, X, train=True, rngs={"dropout": jax.random.key(5)}, mutable=["batch_stats"])[1]

    changed = jax.jit(functools.partial(train, model))(variables)
    expected = jax.jit(functools.partial(train, reference))(inner)
    jax.tree.map(np.testing.assert_array_equal, changed["batch_stats"]["mod"], expected["batch_stats"])
    assert not np.array_equal(
        changed["batch_stats"]["mod"]["BatchNorm_0"]["mean"], variables["batch_stats"]["mod"]["BatchNorm_0"]["mean"]
    )


# The tables in the docstrings of MultiMesh, of a task and of a plain module.
TASK_TABLE = """\
Task[Dense] Summary
┏━━━━━━┳━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
┃ path ┃ module      ┃ inputs        ┃ outputs        ┃ params                               ┃
┡━━━━━━╇━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┩
│      │ Task[Dense] │ float32[16,9] │ float32[16,16] │ mod:                                 │
│      │             │               │                │   params:                            │
│      │             │               │                │     bias: float32[16]                │
│      │             │               │                │     kernel: float32[9,16] P(x, None) │
│      │             │               │                │                                      │
│      │             │               │                │ 160 (640 B)                          │
├──────┼─────────────┼───────────────┼────────────────┼──────────────────────────────────────┤
│      │             │               │          Total │ 160 (640 B)                          │
└──────┴─────────────┴───────────────┴────────────────┴──────────────────────────────────────┘

Total Parameters: 160 (640 B)
"""
PLAIN_TABLE = """\
Dense Summary
┏━━━━━━┳━━━━━━━━┳━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
┃ path ┃ module ┃ inputs        ┃ outputs        ┃ params                                ┃
┡━━━━━━╇━━━━━━━━╇━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┩
│      │ Dense  │ float32[16,9] │ float32[16,16] │ bias: float32[16]                     │
│      │        │               │                │ kernel: float32[9,16] P(batch, model) │
│      │        │               │                │                                       │
│      │        │               │                │ 160 (640 B)                           │
├──────┼────────┼───────────────┼────────────────┼───────────────────────────────────────┤
│      │        │               │          Total │ 160 (640 B)                           │
└──────┴────────┴───────────────┴────────────────┴───────────────────────────────────────┘

Total Parameters: 160 (640 B)
"""


@pytest.mark.parametrize("is_task", [True, False], ids=["task", "plain"])
def test_tabulate_is_the_documented_table(is_task, monkeypatch) -> None:
    """Character for character, but for colors and for where the lines above and below the box stand.

    Rich centres these in the width of the box and fills them with blanks. The documents show them elsewhere: 40 and 32
    blanks before the titles, where no rule gives both (the middle of the boxes would be at 37 and 38).
    """
    monkeypatch.setenv("COLUMNS", "120")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    if is_task:
        model = mm.flax.task(nn.Dense, mesh=mesh)(features=16, kernel_init=mm.flax.shard_axes("x", None))
    else:
        model = nn.Dense(features=16, kernel_init=mm.flax.shard_axes("batch", "model"))
    table = re.sub(r"\x1b\[[0-9;]*m", "", model.tabulate(jax.random.key(0), jnp.ones((16, 9))))
    title, *box, empty, total = (TASK_TABLE if is_task else PLAIN_TABLE).splitlines()
    width = len(box[0])
    around = [f"{' ' * ((width - len(line)) // 2)}{line}".ljust(width) for line in (title, empty, total)]
    assert table.strip("\n").split("\n") == [around[0], *box, *around[1:]]


def test_class_decorator_keeps_name_and_can_be_pickled_subclassed_and_rematerialised() -> None:
    assert PlacedBlock.__name__ == "PlacedBlock"
    assert pickle.loads(pickle.dumps(PlacedBlock(width=3))) == PlacedBlock(width=3)

    class Wider(PlacedBlock):
        def __call__(self, x: jax.Array) -> jax.Array:
            return 2 * super().__call__(x)

    variables = jax.jit(Wider().init)(RNGS, X)
    expected = 2 * jax.jit(Block().apply)(variables, X)
    np.testing.assert_array_equal(jax.jit(Wider().apply)(variables, X), expected)
    remat = nn.remat(PlacedBlock)()
    np.testing.assert_array_equal(2 * jax.jit(remat.apply)(variables, X), expected)


def test_tasks_of_a_class_run_on_their_submesh() -> None:
    mesh = make_mesh()

    class Two(nn.Module):
        @nn.compact
        def __call__(self, x):
            for index in range(2):
                x = mm.flax.task(nn.Dense, task=mm.Task(mesh_slice={"stage": index}), keep_paths=True)(
                    4, name=f"layer_{index}"
                )(x)
            return (x * x).sum()

    model = Two()
    params = jax.jit(model.init)(RNGS, X)
    assert paths(params) == {f"params/layer_{i}/{name}" for i in range(2) for name in ("kernel", "bias")}
    step = mm.mjit(jax.value_and_grad(model.apply), mesh=mesh)
    loss, grads = step(params, X)
    np.testing.assert_allclose(loss, jax.jit(model.apply)(params, X), rtol=1e-6)
    for index in range(2):
        kernel = grads["params"][f"layer_{index}"]["kernel"]
        assert kernel.devices() == set(mesh.devices[index])
    assert [row.tasks for row in step.explain().programs][:2] == [("layer_0",), ("layer_1",)]


def test_nnx_modules_and_optimizers_are_tasks() -> None:
    mesh = make_mesh()

    @functools.partial(mm.flax.task, task=STAGE_1)
    class Layer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.dense = nnx.Linear(4, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)

        def __call__(self, x):
            return self.norm(self.dense(x))

    def train(graph, state, x):
        model, optimizer = nnx.merge(graph, state)
        grads = nnx.grad(lambda model: (model(x) ** 2).sum())(model)
        mm.task(optimizer.update, "update", task=STAGE_1)(model, grads)
        return nnx.state((model, optimizer))

    model = Layer(nnx.Rngs(0))
    graph, state = nnx.split((model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)))
    expected = jax.jit(train, static_argnums=0)(graph, state, X)
    placed = mm.mjit(train, mesh=mesh, static_argnums=0)(graph, state, X)
    assert jax.tree.structure(placed) == jax.tree.structure(expected)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), placed, expected)
    assert not np.array_equal(placed[0]["norm"]["mean"].get_value(), state[0]["norm"]["mean"].get_value())
    assert placed[0]["dense"]["kernel"].get_value().devices() == set(mesh.devices[1])


def test_functions_that_change_nnx_objects_of_theirs_are_tasks() -> None:
    class Layers(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.dense = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
            self.norm, self.dropout = nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x, place):
            def one(x, i):
                return self.norm(self.dropout(self.dense[i](x)))

            for i in range(2):
                x = place(functools.partial(one, i=i), i)(x)
            return x

    def train(graph, state, x, placed):
        def place(fun, i):
            return mm.task(fun, task=mm.stage(i, 2)) if placed else fun

        model = nnx.merge(graph, state)
        grads = nnx.grad(lambda model: (model(x, place) ** 2).sum())(model)
        return nnx.state(model, nnx.filterlib.Not(nnx.RngKey)), grads

    graph, state = nnx.split(Layers(nnx.Rngs(0)))
    expected = jax.jit(train, static_argnums=(0, 3))(graph, state, X, False)
    step = mm.mjit(train, mesh=make_mesh(), static_argnums=(0, 3))
    placed = step(graph, state, X, True)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), placed, expected)
    assert {"stage_0", "stage_1"} <= {task for row in step.explain().programs for task in row.tasks}


def test_functions_that_linen_modules_call_make_parameters_and_set_up_modules() -> None:
    class Table(nn.Module):
        def setup(self):
            self.angles = jnp.arange(4.0)

        def __call__(self, x):
            return jnp.cos(self.angles) * x

    class Model(nn.Module):
        placed: bool
        shared: bool = True

        @nn.compact
        def __call__(self, x):
            table = Table() if self.shared else jnp.cos

            def one(x, i):
                self.sow("intermediates", "seen", x.sum())
                return nn.Dense(4)(table(x)) * self.param(f"scale_{i}", nn.initializers.ones, (4,))

            for i in range(2):
                x = mm.task(one, task=mm.stage(i, 2))(x, i) if self.placed else one(x, i)
            return x

    def outputs(placed, params, x):
        return Model(placed).apply({"params": params}, x, mutable=["intermediates"]), Model(placed).apply(
            {"params": params}, x
        )

    params = {placed: jax.jit(Model(placed).init)(jax.random.key(0), X)["params"] for placed in (False, True)}
    jax.tree.map(np.testing.assert_array_equal, params[True], params[False])
    expected = jax.jit(functools.partial(outputs, False))(params[False], X)
    placed = mm.mjit(functools.partial(outputs, True), mesh=make_mesh())(params[True], X)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), placed, expected)
    # Outside of every trace a function of a module runs on its submesh, where its parameters are.
    with make_mesh() as mesh:
        assert Model(True, shared=False).apply({"params": params[True]}, X).devices() == set(mesh.devices[1].flat)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(
            lambda: mm.flax.task(nn.Dense(4), task=STAGE_1),
            r"flax.task: expected a Flax module class, got a Dense object. For a module object or a function, write mm",
            id="module_object",
        ),
        pytest.param(
            lambda: mm.flax.task(int, task=STAGE_1),
            r"flax.task: expected a Flax module class, got <class 'int'>",
            id="other_class",
        ),
        pytest.param(
            lambda: mm.flax.task(nn.Dense, task=STAGE_1, logical_axes=()),
            r"flax.task: give task= or its fields, not both \(got task=Task\(.*\) and logical_axes\)",
            id="task_and_fields",
        ),
        pytest.param(
            lambda: mm.flax.task(nn.Dense, meshslice={"stage": 0}),
            r"flax.task: unknown field 'meshslice'; did you mean 'mesh_slice'\? There are name, mesh, ",
            id="unknown_field",
        ),
        pytest.param(
            lambda: mm.flax.shard_axes("data", 1),
            r"shard_axes: an axis name must be a string, several strings or None, got 1",
            id="axis_number",
        ),
    ],
)
def test_mistakes(call, message) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_other_methods_need_keep_paths() -> None:
    class Coder(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(4)

        def __call__(self, x):
            return self.encode(x)

        def encode(self, x):
            return self.dense(x)

    class Compact(nn.Module):
        @nn.compact
        def encode(self, x):
            return nn.Dense(4)(x)

        def __call__(self, x):
            return self.encode(x)

    for kind in (Coder, Compact):
        model = mm.flax.task(kind, task=STAGE_1)()
        variables = jax.jit(model.init)(RNGS, X)
        kept = mm.flax.task(kind, task=STAGE_1, keep_paths=True)()
        inner = {"params": variables["params"]["mod"]["params"]}
        np.testing.assert_array_equal(
            jax.jit(model.apply)(variables, X), jax.jit(functools.partial(kept.apply, method="encode"))(inner, X)
        )
    with pytest.raises(TypeError, match=r"Task\[Compact\].encode: in this form only __call__ is a task. Pass keep_pat"):
        model.apply(variables, X, method="encode")


def test_microbatches_of_an_nnx_module_that_must_not_change() -> None:
    class Dropped(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.dense, self.dropout = nnx.Linear(3, 2, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.dense(x))

    def loss(model, x):
        return jnp.mean(model(x) ** 2)

    def cut(model, x):
        return mm.microbatch(nnx.value_and_grad(loss), size=2, argnum=1, reduce="mean")(model, x)

    x, model = jnp.arange(12.0).reshape(4, 3) / 12, Dropped(nnx.Rngs(0))
    plain = nnx.value_and_grad(loss)(model.dense, x)
    for found in (cut(model.dense, x), nnx.jit(cut)(model.dense, x)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), plain, found)
    with pytest.raises(ValueError, match=r"streams of argument 0, such as dropout.rngs.count, .* Write rng=0\."):
        cut(model, x)
    assert int(model.dropout.rngs.count[...]) == 0


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_state_that_no_example_decides_changes_once(compiled) -> None:
    class Counting(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.dense, self.calls = nnx.Linear(3, 2, rngs=rngs), nnx.Variable(jnp.array(3))
            self.slow = nnx.Variable(jnp.ones((3, 2)))

        def __call__(self, x):
            self.calls[...] += 1
            self.slow[...] = 0.9 * self.slow[...] + 0.1 * self.dense.kernel[...]
            return self.dense(x) @ self.slow[...].T / self.calls[...]

    def step(model, x, cut):
        grad = nnx.value_and_grad(lambda model, x: jnp.mean(model(x) ** 2))
        return (mm.microbatch(grad, size=2, argnum=1, reduce="exact") if cut else grad)(model, x)

    x, (many, one) = jnp.arange(12.0).reshape(4, 3) / 12, (Counting(nnx.Rngs(0)) for _ in range(2))
    run = nnx.jit(step, static_argnums=2) if compiled else step
    for _ in range(2):
        found, expected = run(many, x, True), run(one, x, False)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), nnx.state(many), nnx.state(one))
    assert int(many.calls[...]) == 5


def test_state_that_examples_decide_is_named_with_what_no_example_decides_left_out() -> None:
    class Averaging(nnx.Module):
        def __init__(self) -> None:
            self.calls, self.mean = nnx.Variable(jnp.array(0)), nnx.Variable(jnp.zeros(3))

        def __call__(self, x):
            self.calls[...] += 1
            self.mean[...] = jnp.mean(x, 0)
            return x * self.mean[...]

    model = Averaging()
    grad = nnx.value_and_grad(lambda model, x: jnp.mean(model(x)))
    with pytest.raises(ValueError, match="changes mean of an nnx object among its arguments in every microbatch"):
        mm.microbatch(grad, size=2, argnum=1, reduce="exact")(model, jnp.ones((4, 3)))
    assert int(model.calls[...]) == 0


def test_the_streams_in_a_model_are_the_keys_of_a_loop() -> None:
    class Twice(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.dense = nnx.Linear(3, 2, rngs=rngs)
            # One stream for two layers.
            self.first = self.second = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.second(self.dense(self.first(x)))

    def loss(model, x):
        return jnp.mean(model(x) ** 2)

    def step(graph, state, x):
        model = nnx.merge(graph, state)
        loss_of_it, grads = mm.microbatch(nnx.value_and_grad(loss), size=2, argnum=1, rng=0, reduce="exact")(model, x)
        return loss_of_it, nnx.to_pure_dict(grads), model.first.rngs.count[...]

    x = jnp.arange(12.0).reshape(4, 3) / 12
    graph, state = nnx.split(Twice(nnx.Rngs(0)))
    by_hand = []
    for index in range(2):
        model = nnx.clone(nnx.merge(graph, state))
        model.first.rngs.key[...] = jax.random.fold_in(model.first.rngs.key[...], index)
        by_hand.append(jax.tree.map(lambda v: v / 2, nnx.value_and_grad(loss)(model, x[2 * index : 2 * index + 2])))
    expected = jax.tree.map(lambda a, b: a + b, *by_hand)
    for compiled in (jax.jit(step, static_argnums=0), mm.mjit(step, mesh=make_mesh(), static_argnums=0)):
        value, grads, count = compiled(graph, state, x)
        np.testing.assert_allclose(value, expected[0], rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), grads, nnx.to_pure_dict(expected[1]))
        assert int(count) == int(model.first.rngs.count[...]) == 2 + int(state["first"]["rngs"]["count"][...])
