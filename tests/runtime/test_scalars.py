"""Scalars at the border of a step: on every device of the mesh, whoever computed them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime._partition.pipeline.instructions import TransferInstruction
from tests.runtime.helpers import batches, ids, layer, on, sgd, squares, stages, weights

pytestmark = pytest.mark.family

ALL = set(range(8))


def everywhere(value):
    """Whether a scalar has an equal copy on every device."""
    copies = [np.asarray(jax.random.key_data(s.data) if is_key(value) else s.data) for s in value.addressable_shards]
    return ids(value) == ALL and all((copy == copies[0]).all() for copy in copies)


def is_key(value):
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def predict(params, x):
    for index, w in enumerate(params):
        x = mm.task(layer, name=f"layer_{index}", task=on(index))(w, x)
    return x


def train_step(state, batch, key):
    def loss(params, batch):
        return squares(predict(params, batch["x"]), batch["y"])

    value, grads = mm.microbatch(jax.value_and_grad(loss), size=4, argnum=1, schedule="1f1b")(state["params"], batch)
    count = state["count"] + 1
    rate = 0.1 / count.astype(jnp.float32)
    state = {"params": sgd(state["params"], grads, rate), "count": count, "seen": state["seen"] + 8}
    return state, {"loss": value, "rate": rate, "key": jax.random.split(key)[0], "literal": 3.0}


def first_state():
    return {"params": [np.float32(w) for w in weights(4)], "count": np.int32(0), "seen": np.int32(0)}


def data(count):
    return [jax.tree.map(np.float32, batch) for batch in batches(count)]


@pytest.mark.parametrize("donate", [(), (0,)], ids=str)
def test_results_are_everywhere_and_state_stays_in_place(donate):
    step = mm.mjit(train_step, mesh=stages(4, data=2), donate_argnums=donate)
    plain, many, one = jax.jit(train_step), first_state(), first_state()
    key = plain_key = jax.random.key(1)
    for call, batch in enumerate(data(3)):
        many, results = step(many, batch, key)
        one, expected = plain(one, batch, plain_key)
        for value in (*results.values(), many["count"], many["seen"]):
            assert everywhere(value)
        assert {name: value.weak_type for name, value in results.items() if name != "key"} == {
            name: value.weak_type for name, value in expected.items() if name != "key"
        }
        assert float(results["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)
        assert float(results["rate"]) == float(expected["rate"])
        assert int(many["count"]) == call + 1
        assert int(many["seen"]) == 8 * (call + 1)
        key, plain_key = results["key"], expected["key"]
        assert (jax.random.key_data(key) == jax.random.key_data(plain_key)).all()
        if call:
            assert step.latest_plan.runner.misplaced == len(batch)
    assert ids(many["params"][2]) == {4, 5}


def test_counters_are_computed_where_they_are_needed_and_never_sent():
    step = mm.mjit(train_step, mesh=stages(4, data=2))
    step(first_state(), data(1)[0], jax.random.key(0))
    sent = {
        var
        for item in step.latest_plan.program.instructions
        if isinstance(item, TransferInstruction)
        for var in item.values
    }
    assert all(var.aval.shape for var in sent)
    rows = {row.name: row for row in step.explain().inputs}
    assert rows["state['count']"].everywhere
    assert not rows["state['params'][0]"].everywhere
    (inputs,) = [table for table in step.explain().tables if table.title == "Inputs"]
    assert {row[0]: row[1] for row in inputs.rows}["state['count']"] == "all"


def test_the_loss_can_be_used_beside_any_result():
    step = mm.mjit(train_step, mesh=stages(4, data=2))
    _, results = step(first_state(), data(1)[0], jax.random.key(0))
    doubled = jax.jit(lambda x: x * 2)(results["loss"])
    assert everywhere(doubled)
    with jax.set_mesh(stages(4, data=2)):
        assert float(jax.jit(lambda a, b: a + b)(results["loss"], results["rate"])) > 0


@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_step_that_is_one_program(size):
    mesh = mm.MultiMesh(axis_sizes=(8,), axis_names=("x",))
    on_some = mm.task(jnp.sum, task=mm.Task(mesh=mm.TaskMesh(devices=range(size), axis_sizes=(size,), axis_names="x")))
    step = mm.mjit(lambda x, n: (on_some(x), n + 1), mesh=mesh)
    total, n = step(np.arange(8.0, dtype=np.float32), np.int32(1))
    assert everywhere(total)
    assert everywhere(n)
    assert (float(total), int(n)) == (28.0, 2)
    _, n = step(np.arange(8.0, dtype=np.float32), n)
    assert int(n) == 3


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("donate", [(), (1,)], ids=str)
def test_a_scalar_that_is_handed_through_is_an_array_of_its_own(read, donate):
    task = mm.task(lambda x, n: x * n if read else x * 2, name="scaled", task=on(1))
    step = mm.mjit(lambda x, n: (task(x, n), n), mesh=stages(4, data=2), donate_argnums=donate)
    n = jnp.float32(2)
    for _ in range(2):
        out, back = step(np.ones(4, np.float32), n)
        assert everywhere(back)
        assert out.tolist() == [2.0] * 4
        if not donate:
            n.delete()
            assert float(back) == 2
        n = back


def test_any_layout_of_a_scalar_is_accepted():
    mesh = stages(4, data=2)
    task = mm.task(jnp.multiply, name="scaled", task=on(1))
    step = mm.mjit(lambda x, n: task(x, n), mesh=mesh)
    sharding = jax.sharding.NamedSharding(mesh.slice(stage=3), jax.sharding.PartitionSpec())
    for n in (2, 2.0, np.float32(2), jnp.float32(2), jax.device_put(jnp.float32(2), sharding)):
        assert step(np.ones(4, np.float32), n).tolist() == [2.0] * 4


def test_an_initialiser_gives_scalars_as_the_step_wants_them():
    step = mm.mjit(train_step, mesh=stages(4, data=2))
    step.plan(first_state(), data(1)[0], jax.random.key(0))
    state = mm.mjit(lambda: jax.tree.map(jnp.asarray, first_state()), out_like=step)()
    assert everywhere(state["count"])
    step(state, data(1)[0], jax.random.key(0))
    assert step.latest_plan.runner.misplaced == len(data(1)[0]) + 1
