"""Small accumulators are joined: fewer arguments and results, the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime._partition.pipeline.instructions import RunInstruction
from mmruntime._partition.sums import pack_sums
from tests.runtime.helpers import assert_close, assert_equal, normal, on, sgd, stages

pytestmark = [pytest.mark.usefixtures("free_promotion"), pytest.mark.optimized]

WIDTH = 8


def parameters():
    def layer(seed):
        return {"w": normal(WIDTH, WIDTH, seed=seed), "b": normal(WIDTH, seed=seed), "scale": normal(WIDTH, seed=seed)}

    return {"embed": normal(12, WIDTH), "layers": [[layer(1), layer(2)], [layer(3), layer(4)]]}


def batch(examples=8):
    rng = np.random.default_rng(0)
    return {"x": rng.integers(0, 12, (examples, 4)), "y": normal(examples, 4, WIDTH)}


def layers(params, x):
    for p in params:
        x = x + jnp.tanh(x @ p["w"] + p["b"]) * p["scale"]
    return x


def loss(params, batch):
    x = mm.task(lambda e, p, x: layers(p, e[x]), task=on(0))(params["embed"], params["layers"][0], batch["x"])
    return jnp.mean((mm.task(layers, task=on(1))(params["layers"][1], x) - batch["y"]) ** 2)


def train(schedule="1f1b", loss=loss, **options):
    def step(params, batch):
        gradient = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=4, schedule=schedule, **options)
        value, grads = gradient(params, batch)
        return sgd(params, grads), value

    return step


def both(monkeypatch, fun, mesh, *args, **options):
    """The step with accumulators as they are joined, and with each of its own; their results are the same bits."""
    found = []
    for largest in (pack_sums.LARGEST, 0):
        monkeypatch.setattr(pack_sums, "LARGEST", largest)
        step = mm.mjit(fun, mesh=mesh, **options)
        results = step(*args)
        assert_close(results, jax.jit(fun)(*args), 1e-5)
        found.append((step, results))
    (joined, results), (apart, others) = found
    assert_equal(results, others)
    return joined, apart


def sums(step):
    """How many accumulators the loops of a step have."""
    return sum(len(region.sums) for region in step.latest_plan.step.regions)


def borders(step):
    """How many arguments and results the programs of a step have in all."""
    program = step.latest_plan.program
    return sum(len(i.args) + len(i.results) for i in program.instructions if isinstance(i, RunInstruction))


@pytest.mark.family(16)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "dualpipe"])
def test_the_same_bits_with_fewer_arguments(monkeypatch, schedule, devices):
    joined, apart = both(monkeypatch, train(schedule), stages(2, model=devices), parameters(), batch())
    if schedule == "dualpipe":
        # Each stage runs on both submeshes, and one of them sends what it has added up to the other.
        assert sums(joined) == sums(apart)
    else:
        # One of each stage; beside them the embedding, whose gradient XLA scatters into the accumulator, and the loss.
        assert sums(apart) == 14
        assert sums(joined) == 4
        assert borders(joined) < 0.8 * borders(apart)


def test_only_gradients_that_the_optimizer_reads_on_the_same_stage_are_joined(monkeypatch):
    def returned(params, batch):
        grads = mm.microbatch(jax.grad(loss), argnum=1, count=4)(params, batch)
        return grads, sgd(params, grads)

    def elsewhere(params, batch):
        grads = mm.microbatch(jax.grad(loss), argnum=1, count=4)(params, batch)
        return mm.task(lambda g, p: jax.tree.map(lambda g, p: p - 0.1 * g, g, p), task=on(1))(
            grads["layers"][0], params["layers"][1]
        )

    for fun in (returned, elsewhere):
        joined, apart = both(monkeypatch, fun, stages(2), parameters(), batch())
        assert sums(joined) == sums(apart)
        monkeypatch.undo()


def test_large_and_cut_accumulators_stay_what_they_are(monkeypatch):
    def cut(params, batch):
        rows = jax.tree.map(lambda w: mm.with_sharding_constraint(w, P("rows")), params)
        return loss(rows, batch)

    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "model"), logical_axes=[("rows", "model")])
    joined, apart = both(monkeypatch, train(loss=cut), mesh, parameters(), batch())
    assert sums(joined) == sums(apart)
    monkeypatch.setattr(pack_sums, "LARGEST", 4 * WIDTH)
    step = mm.mjit(train(), mesh=stages(2))
    step(parameters(), batch())
    # The biases and scales of each stage.
    assert sums(step) == sums(apart) - 2 * 3


def test_each_type_has_an_accumulator_of_its_own(monkeypatch):
    params = parameters()
    params["layers"] = [[{**p, "b": p["b"].astype(jnp.bfloat16)} for p in stage] for stage in params["layers"]]

    def mixed(params, batch):
        wide = [[{**p, "b": p["b"].astype(p["w"].dtype)} for p in stage] for stage in params["layers"]]
        return loss({**params, "layers": wide}, batch)

    def through_tasks(params, batch):
        def body(p, x):
            return layers([{**each, "b": each["b"].astype(x.dtype)} for each in p], x)

        x = mm.task(lambda e, p, x: body(p, e[x]), task=on(0))(params["embed"], params["layers"][0], batch["x"])
        return jnp.mean((mm.task(body, task=on(1))(params["layers"][1], x) - batch["y"]) ** 2)

    def joined_and_apart(**options):
        monkeypatch.setattr(pack_sums, "LARGEST", 0)
        apart = mm.mjit(train(loss=through_tasks, **options), mesh=stages(2))
        expected = apart(params, batch())
        monkeypatch.undo()
        joined = mm.mjit(train(loss=through_tasks, **options), mesh=stages(2))
        assert_equal(joined(params, batch()), expected)
        return joined, expected

    joined, expected = joined_and_apart(accumulate="parameter")
    # Two of each stage, the embedding and the loss.
    assert sums(joined) == 6
    found = mm.mjit(train(loss=mixed), mesh=stages(2))(params, batch())
    assert_close(jax.tree.map(jnp.float32, found), jax.tree.map(jnp.float32, expected), 2e-2)
    # In float32 those of bfloat16 are joined with the others.
    assert sums(joined_and_apart()[0]) == 4


def test_donated_state_and_its_memory(monkeypatch):
    joined, apart = both(monkeypatch, train(), stages(2), parameters(), batch(), donate_argnums=0)
    for one, other in zip(joined.explain().memory, apart.explain().memory, strict=True):
        assert one.held.gradients == other.held.gradients
        assert one.held.activations == other.held.activations
        # While the joined terms are made they exist twice.
        assert one.held.total <= other.held.total + one.held.gradients
