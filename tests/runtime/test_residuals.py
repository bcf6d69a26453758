"""What forward programs keep for backward ones: as little as can be, and the same gradients."""

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime._partition.programs.residuals import cheapest_to_keep, recompute_residuals
from mmruntime._partition.programs.segment import segment
from mmruntime._step import plan
from tests.runtime.helpers import normal


class TestCut:
    def test_a_chain_is_kept_where_it_is_smallest(self):
        made_of = {"wide": ["narrow"], "narrow": ["given"], "given": None}.__getitem__
        assert cheapest_to_keep(["wide"], made_of, {"wide": 8, "narrow": 2, "given": 4}.__getitem__) == {"narrow"}

    def test_of_equal_costs_the_least_is_made_again(self):
        made_of = {"read": ["given"], "given": None}.__getitem__
        assert cheapest_to_keep(["read"], made_of, lambda _: 1) == {"read"}

    def test_constants_and_what_is_there_anyway_cost_nothing(self):
        made_of = {"mask": [], "sum": ["mask", "there"], "there": None}.__getitem__
        assert cheapest_to_keep(["sum"], made_of, {"mask": 3, "sum": 3, "there": 0}.__getitem__) == {"there"}

    def test_what_is_read_twice_is_kept_once(self):
        made_of = {"a": ["x"], "b": ["x"], "x": None}.__getitem__
        assert cheapest_to_keep(["a", "b"], made_of, lambda _: 5) == {"x"}

    def test_costs_of_many_gibibytes(self):
        made_of = {"a": ["x"], "x": None}.__getitem__
        assert cheapest_to_keep(["a"], made_of, {"a": 1 << 40, "x": 1 << 39}.__getitem__) == {"x"}

    @pytest.mark.parametrize("seed", range(20))
    def test_nothing_is_cheaper(self, seed):
        rng = random.Random(seed)
        size = 9
        operands = {
            n: None if n < 2 or rng.random() < 0.2 else rng.sample(range(n), rng.randint(0, min(n, 2)))
            for n in range(size)
        }
        costs = [rng.randint(0, 9) for _ in range(size)]
        read = rng.sample(range(size), 3)

        def can_be_made(value, kept):
            found = operands[value]
            return value in kept or (found is not None and all(can_be_made(each, kept) for each in found))

        kept = cheapest_to_keep(read, operands.__getitem__, costs.__getitem__)
        assert all(can_be_made(value, kept) for value in read)
        best = min(
            sum(costs[value] for value in each)
            for count in range(size + 1)
            for each in itertools.combinations(range(size), count)
            if all(can_be_made(value, each) for value in read)
        )
        assert sum(costs[value] for value in kept) == best


WIDTH, STAGES = 8, 2


def block(w, x):
    """A layer whose derivative reads many values that follow from few."""
    mean = x.mean(-1, keepdims=True)
    scaled = (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-3) * w["scale"]
    inner = scaled @ w["up"]
    gate = jnp.where(inner > 0, inner * 3.0 - 1.0, 0.25 * inner**3)
    return x + (gate * jnp.tanh(inner)) @ w["down"]


def make_step(grad_of):
    def train(ws, batch):
        grads = mm.microbatch(grad_of, argnum=1, count=2, schedule="1f1b", reduce="mean")(ws, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads)

    return train


def loss(ws, x):
    for stage, w in enumerate(ws):
        x = mm.task(block, name=f"stage_{stage}", task=mm.Task(mesh_slice={"stage": stage}))(w, x)
    return jnp.mean(x**2)


def weights():
    shapes = {"scale": (1, WIDTH), "up": (WIDTH, 3 * WIDTH), "down": (3 * WIDTH, WIDTH)}
    return [
        {name: normal(*shape, seed=10 * stage + n) for n, (name, shape) in enumerate(shapes.items())}
        for stage in range(STAGES)
    ]


@pytest.fixture
def residuals(monkeypatch):
    """Names and shapes of the residuals of the first forward program, before and after, for each plan."""
    found = []

    def of_first(step, placement):
        programs = [each for each in segment(step, placement) if each.submesh == 0 and each.tasks]
        (forward,) = [each for each in programs if not each.backward]
        (backward,) = [each for each in programs if each.backward]
        return [var.aval for var in forward.writes if var in backward.reads]

    def all_are_read(step, placement):
        readers = {}
        for op in step.ops():
            for var in op.reads():
                readers.setdefault(var, set()).update(placement.of[op])
        for op in step.ops():
            read = set().union(*(readers.get(var, ()) for var in op.writes()))
            assert not read or len(placement.of[op]) == 1 or read >= {*placement.of[op]}

    def watched(step, placement, segments):
        after = recompute_residuals(step, placement, segments)
        all_are_read(*after)
        found.append((of_first(step, placement), of_first(*after)))
        return after

    monkeypatch.setattr(plan, "recompute_residuals", watched)
    return found


def test_few_values_are_kept_and_gradients_are_the_same(residuals):
    train, x = make_step(jax.grad(loss)), normal(8, WIDTH, seed=99)
    mesh = mm.MultiMesh(axis_sizes=(STAGES, 2), axis_names=("stage", "data"))
    got = mm.mjit(train, mesh=mesh)(weights(), x)
    with mm.enable_recomputation(False):
        wanted = mm.mjit(train, mesh=mesh)(weights(), x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, wanted)
    (before, after), (all_kept, still_kept) = residuals
    assert len(all_kept) == len(still_kept) == len(before)
    assert 2 * len(after) < len(before)
    assert 2 * sum(aval.size for aval in after) < sum(aval.size for aval in before)


@pytest.mark.usefixtures("double")
def test_what_the_next_stage_reads_too_is_sent_as_before(residuals):
    def doubled(ws, x):
        def first(w, x):
            inner = x @ w["up"]
            return inner * 2.0, jnp.sin(inner * 2.0) @ w["down"]

        a, b = mm.task(first, name="first", task=mm.Task(mesh_slice={"stage": 0}))(ws[0], x)
        last = mm.task(
            lambda w, a, b: jnp.mean((a @ w["down"] * b) ** 2), name="last", task=mm.Task(mesh_slice={"stage": 1})
        )
        return last(ws[1], a, b)

    train, x = make_step(jax.grad(doubled)), normal(8, WIDTH, seed=98)
    mesh = mm.MultiMesh(axis_sizes=(STAGES,), axis_names=("stage",))
    got = mm.mjit(train, mesh=mesh)(weights(), x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, train(weights(), x))
    assert residuals


def test_what_is_rounded_is_kept_as_it_was_rounded(residuals):
    """XLA leaves out a conversion to fewer bits and back where it sees both."""

    def rounded(w, x):
        inner = ((x @ w["up"]) * 3.0).astype(jnp.bfloat16)
        return x + (inner.astype(jnp.float32) ** 2) @ w["down"]

    def of_rounded(ws, x):
        for stage, w in enumerate(ws):
            x = mm.task(rounded, name=f"stage_{stage}", task=mm.Task(mesh_slice={"stage": stage}))(w, x)
        return jnp.mean(x**2)

    train, x = make_step(jax.grad(of_rounded)), normal(8, WIDTH, seed=97)
    step = mm.mjit(train, mesh=mm.MultiMesh(axis_sizes=(STAGES,), axis_names=("stage",)))
    step.plan(weights(), x)
    ((_, after),) = residuals
    assert [str(aval.dtype) for aval in after if aval.shape == (4, 3 * WIDTH)] == ["bfloat16"]


def test_an_argument_of_a_task_that_only_the_last_one_uses(residuals):
    """An opened task drops it; what made it is then read by one of the submeshes that it ran on."""

    def shifted(ws, x, key):
        noise = jax.random.normal(key, (STAGES, WIDTH))
        for stage, w in enumerate(ws):
            uses = stage == STAGES - 1
            inner = jax.jit(lambda w, x, noise, uses=uses: block(w, x + noise if uses else x))
            name = f"stage_{stage}"
            x = mm.task(inner, name=name, task=mm.Task(mesh_slice={"stage": stage}))(w, x, noise[stage, None])
        return jnp.mean(x**2)

    def train(ws, x, key):
        return mm.microbatch(jax.grad(shifted), argnum=1, count=2, schedule="1f1b", reduce="mean")(ws, x, key)

    step = mm.mjit(train, mesh=mm.MultiMesh(axis_sizes=(STAGES,), axis_names=("stage",)))
    step.plan(weights(), normal(8, WIDTH, seed=96), jax.random.key(0))
    assert residuals
