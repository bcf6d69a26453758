import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import batches, on, sgd, squares, stages, train, weights
from tests.runtime.helpers import layer as named_layer

pytestmark = pytest.mark.family

STAGES = 4


def layer(w, x):
    return x + jnp.tanh(x @ w)


def embed(table, ids):
    return jnp.take(table, ids, axis=0)


def score(table, x, ids):
    logits = x @ table.T
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, None], axis=1))


def roaming(name):
    return mm.Task(name=name, loop_dependent_mesh_slice=lambda k: {"stage": k % STAGES})


def make_step(schedule):
    def loss(params, ids):
        x = mm.task(embed, task=roaming("embed"))(params["table"], ids)
        for index, w in enumerate(params["layers"]):
            x = mm.task(layer, name=f"layer_{index}", task=mm.Task(mesh_slice={"stage": index}))(w, x)
        return mm.task(score, task=roaming("score"))(params["table"], x, ids)

    def step(params, ids):
        value, grads = mm.microbatch(jax.value_and_grad(loss), size=2, argnum=1, schedule=schedule, reduce="mean")(
            params, ids
        )
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_each_microbatch_runs_where_its_number_says(schedule):
    rng = np.random.default_rng(0)
    params = {
        "table": jnp.asarray(rng.normal(size=(11, 4)), jnp.float32),
        "layers": [jnp.asarray(rng.normal(size=(4, 4)) * 0.3, jnp.float32) for _ in range(STAGES)],
    }
    ids = jnp.asarray(rng.integers(0, 11, 16), jnp.int32)
    mesh = mm.MultiMesh(axis_sizes=(STAGES,), axis_names=("stage",))
    step = make_step(schedule)
    compiled = mm.mjit(step, mesh=mesh)
    ours, oracle = (params, None), (params, None)
    for _ in range(2):
        ours, oracle = compiled(ours[0], ids), jax.jit(step)(oracle[0], ids)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(oracle), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    rows = compiled.explain().programs
    for part in ("embed", "score"):
        homes = {row.submesh for row in rows for task in row.tasks if task.startswith(part)}
        assert homes == set(range(STAGES))
    assert compiled.explain().loops[0].stages == tuple(range(STAGES))


def test_one_choice_for_all_microbatches_is_an_ordinary_task():
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
    task = mm.Task(name="square", loop_dependent_mesh_slice=lambda k: {"stage": 1})

    def step(x):
        return mm.microbatch(mm.task(lambda v: jnp.sum(v * v), task=task), size=2)(x)

    compiled = mm.mjit(step, mesh=mesh)
    assert compiled(jnp.arange(8.0)) == 140.0
    assert {row.submesh for row in compiled.explain().programs if row.tasks} == {0}


def test_slices_of_other_sizes_are_refused():
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"))
    task = mm.Task(name="uneven", loop_dependent_mesh_slice=lambda k: {"stage": k} if k else {"stage": 0, "data": 0})
    with pytest.raises(
        ValueError, match=r"'uneven': loop_dependent_mesh_slice\(1\) gives .* with 2 devices, but .* has 1"
    ):
        mm.mjit(lambda x: mm.microbatch(mm.task(jnp.sum, task=task), count=2)(x), mesh=mesh)(jnp.ones(4))


@pytest.mark.parametrize(
    ("choose", "error", "message"),
    [
        (lambda k: k, TypeError, r"loop_dependent_mesh_slice\(0\) must map axis names to indices, such as .*, got 0"),
        (
            lambda k: {"stage": k / 2},
            TypeError,
            r"loop_dependent_mesh_slice\(0\)\['stage'\] must be an integer, got 0\.0",
        ),
        (
            lambda k: {"stag": k},
            ValueError,
            r"\(0\) gives \{'stag': 0\}: MultiMesh\.slice: no axis 'stag'; the axes are",
        ),
        (lambda k: {"stage": k + 1}, ValueError, r"\(1\) gives \{'stage': 2\}: .* stage=2 is out of range 0\.\.1"),
    ],
    ids=["number", "float", "axis", "range"],
)
def test_the_function_must_give_slices_of_the_mesh(choose, error, message):
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
    task = mm.Task(name="odd", loop_dependent_mesh_slice=choose)
    with pytest.raises(error, match=f"Task 'odd': .*{message}"):
        mm.mjit(lambda x: mm.microbatch(mm.task(jnp.sum, task=task), count=2)(x), mesh=mesh)(jnp.ones(4))


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.usefixtures("double")
def test_task_whose_submesh_depends_on_the_iteration(count):
    """The head is spread over the stages: microbatch i runs it on stage i % 2."""
    spread = mm.Task(name="head", mesh_slice={"stage": 0}, loop_dependent_mesh_slice=lambda i: {"stage": i % 2})

    def step(params, batch):
        def loss(params, batch):
            x = mm.task(named_layer, task=on(0))(params[0], batch["x"])
            x = mm.task(named_layer, task=on(1))(params[1], x)
            return squares(mm.task(named_layer, task=spread)(params[2], x), batch["y"])

        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=count, schedule="1f1b")(params, batch)
        return sgd(params, grads), value

    compiled, _ = train(step, stages(2), weights(3), batches(2))
    where = {row.submesh for row in compiled.explain().programs if any(task.startswith("head") for task in row.tasks)}
    assert where == ({0} if count == 1 else {0, 1})
