"""`stage(weights="auto")`: the cut with which the loop's own schedule takes least time in simulation."""

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime import schedules
from mmruntime._partition.pipeline import cut_layers
from mmruntime._partition.pipeline.cut_layers import LayerWork
from mmruntime.schedules import cut


def best_cut(work, stages, times):
    """The best cut by times of stages instead of bounds."""
    return cut_layers.best_cut(work, stages, [lambda bounds, of=of: of(work.of_stages(bounds)) for of in times])


def simulated(name, stages, count):
    order = schedules.make(name, stages, count)
    return lambda works: schedules.simulate(order, [f for f, _ in works], 0, 0, backward=[b for _, b in works]).makespan


def heaviest(works):
    return max(map(sum, works))


def test_ends_count_for_the_stages_that_have_them():
    work = LayerWork(((1.0, 2.0),) * 8, behind=(3.0, 6.0))
    assert work.of_stages((0, 4, 8)) == [(4.0, 8.0), (7.0, 14.0)]
    # Eight layers and a head that is worth three: the balance is at five and a half.
    assert best_cut(work, 2, [heaviest]) in ((0, 5, 8), (0, 6, 8))
    assert best_cut(LayerWork(((1.0, 2.0),) * 8, before=(4.0, 8.0)), 2, [heaviest]) == (0, 2, 8)
    # Equally good cuts: the most even one.
    assert best_cut(LayerWork(((1.0, 2.0),) * 8), 4, [heaviest]) == (0, 2, 4, 6, 8)


@pytest.mark.parametrize("seed", range(12))
def test_no_cut_is_better_and_many_layers_come_close(seed):
    draw = random.Random(seed)
    count, stages = draw.randint(4, 9), draw.randint(2, 4)
    layers = tuple((cost, 2 * cost) for cost in (draw.choice((1.0, 1.0, 2.0, 5.0)) for _ in range(count)))
    work = LayerWork(layers, (draw.uniform(0, 3),) * 2, (draw.uniform(0, 6),) * 2)
    time = simulated(draw.choice(("1f1b", "gpipe", "zb-h1")), stages, 6)
    times = {
        bounds: time(work.of_stages(bounds))
        for inner in itertools.combinations(range(1, count), stages - 1)
        for bounds in [(0, *inner, count)]
    }
    assert times[best_cut(work, stages, [time])] == min(times.values())


def test_with_too_many_cuts_to_try_it_is_never_worse_than_balanced_layers():
    draw = random.Random(0)
    layers = tuple((cost, 2 * cost) for cost in (draw.uniform(0.5, 2) for _ in range(40)))
    work = LayerWork(layers, (2.0, 4.0), (12.0, 24.0))
    time = simulated("1f1b", 8, 16)
    asked = []

    def watched(works):
        asked.append(works)
        return time(works)

    found = best_cut(work, 8, [watched])
    balanced = cut([sum(layer) for layer in layers], 8)
    assert time(work.of_stages(found)) < 0.8 * time(work.of_stages(balanced))
    assert len(asked) < 1000


def test_further_times_decide_between_the_best_few():
    work = LayerWork(((1.0, 2.0),) * 6)
    asked = []

    def other_way_round(works):
        asked.append(works)
        return -heaviest(works)

    assert best_cut(work, 2, [heaviest, other_way_round]) != (0, 3, 6)
    assert len(asked) == 3


def layer(w, x):
    return jnp.tanh(x @ w)


def train(weights_of, head_width, schedule, count=8):
    def loss(params, batch):
        x, y = batch
        for index, w in enumerate(params["layers"]):
            x = mm.task(layer, task=mm.stage(index, 6, weights=weights_of))(w, x)
        return jnp.mean((x @ params["head"] - y) ** 2)

    def step(params, batch):
        microbatch = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=count, schedule=schedule, reduce="mean")
        value, grads = microbatch(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    rng = np.random.default_rng(0)
    params = {"layers": [rng.normal(size=(8, 8)) / 3 for _ in range(6)], "head": rng.normal(size=(8, head_width)) / 3}
    return step, params, (rng.normal(size=(16, 8)), rng.normal(size=(16, head_width)))


@pytest.mark.family
@pytest.mark.parametrize("schedule", ["1f1b", "auto"])
def test_a_heavy_head_has_fewer_layers_beside_it(schedule):
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
    homes, times = {}, {}
    for weights in ("flops", "auto"):
        step, params, batch = train(weights, 24, schedule)
        compiled = mm.mjit(step, mesh=mesh)
        (after, value), (wanted, plain) = compiled(params, batch), jax.jit(step)(params, batch)
        np.testing.assert_allclose(value, plain, rtol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), after, wanted)
        homes[weights] = [min(device.id for device in w.devices()) for w in after["layers"]]
        choice = compiled.explain().loops[0].choice
        times[weights] = None if choice is None else choice.simulation.step_time
    assert homes["flops"] == [0, 0, 0, 1, 1, 1]
    # The head is worth three layers.
    assert homes["auto"] in ([0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1])
    if schedule == "auto":
        # Both were searched for a schedule: cut and schedule together are shorter than the best one of an even cut.
        assert times["auto"] < 0.85 * times["flops"]


def test_where_nothing_is_uneven_auto_is_the_even_cut():
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))

    def chain(weights, x):
        for index, w in enumerate(weights):
            x = mm.task(layer, task=mm.stage(index, 6, weights="auto"))(w, x)
        return x

    compiled = mm.mjit(chain, mesh=mesh)
    compiled([jnp.eye(8)] * 6, jnp.ones((4, 8)))
    homes = [row.submesh for row in compiled.explain().inputs if row.name.startswith("weights")]
    assert homes == [0, 0, 0, 1, 1, 1]


@pytest.mark.family
@pytest.mark.parametrize(
    ("schedule", "options", "homes"),
    [("interleaved-1f1b", {"chunks": 2}, {0, 1}), ("zb-v", {"placement": "v"}, {0, 1})],
)
def test_rounds_are_cut_too(schedule, options, homes):
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))

    def skipping(w, x):
        # The slice hangs on no activation, and the sum is made again by the stage behind, the neighbour in a V.
        return x + layer(w[0], x)

    def loss(weights, x):
        for index, w in enumerate(weights):
            x = mm.task(skipping, task=mm.stage(index, 8, weights="auto", **options))(w, x)
        return jnp.mean(x * x)

    def step(weights, x):
        return mm.microbatch(jax.value_and_grad(loss), argnum=1, count=4, schedule=schedule, reduce="mean")(weights, x)

    weights, x = [jnp.eye(8)[None] * 0.5] * 8, jnp.ones((8, 8))
    value, grads = mm.mjit(step, mesh=mesh)(weights, x)
    np.testing.assert_allclose(value, jax.jit(step)(weights, x)[0], rtol=1e-6)
    assert {device.id for each in grads for device in each.devices()} == homes


def test_fewer_layers_than_stages_are_the_same_error():
    mesh = mm.MultiMesh(axis_sizes=(4,), axis_names=("stage",))

    def chain(x):
        return mm.task(jnp.tanh, task=mm.stage(0, 3, weights="auto"))(x)

    with pytest.raises(ValueError, match="3 layers cannot be dealt out over 4 slices of axis 'stage'"):
        mm.mjit(chain, mesh=mesh)(jnp.ones(4))


WIDE, NARROW = 64, 8


def uneven(weights_of, schedule):
    """Six layers of equal work; the first two keep eight times as much until their backward pass."""

    def wide(w, x):
        # Many cheap numbers that only a dear function makes.
        kept = jnp.exp(jnp.sin(jnp.tile(x, (1, WIDE // NARROW))))
        return jnp.tanh(x @ w) + kept[:, :NARROW] * kept[:, -NARROW:] + kept.sum(1, keepdims=True)

    def loss(params, x):
        for index, w in enumerate(params):
            task = mm.stage(index, 6, weights=weights_of)
            x = mm.task(wide if index < 2 else layer, task=task)(w, x)
        return jnp.mean(x * x)

    def step(params, x):
        microbatch = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=6, schedule=schedule, reduce="mean")
        return microbatch(params, x)

    rng = np.random.default_rng(0)
    return step, [rng.normal(size=(NARROW, NARROW)) / 3 for _ in range(6)], rng.normal(size=(12, NARROW))


def planned(weights, bound):
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
    step, params, x = uneven(weights, schedules.Auto(memory_bytes=bound, recompute=False, effort=0.05))
    report = mm.mjit(step, mesh=mesh).plan(params, x)
    homes = [row.submesh for row in report.inputs if row.name.startswith("params")]
    return report.loops[0].choice.simulation, homes


def by_hand(start):
    return [1 / start] * start + [1 / (6 - start)] * (6 - start)


def test_the_cut_counts_the_bytes_that_a_search_is_bounded_by():
    # Two layers before the cut would be the shortest, and hold more than that in the first stage.
    with pytest.raises(ValueError, match=r"One microbatch takes 1736 of the memory of submesh 0, which has 900\."):
        planned(by_hand(2), 900)
    found, homes = planned("auto", 900)
    assert homes == [0, 1, 1, 1, 1, 1]
    assert max(found.peak_bytes) <= 900


@pytest.mark.slow
@pytest.mark.parametrize("bound", [2200, 3000, 6000])
def test_no_cut_by_hand_is_shorter_within_the_bytes(bound):
    times = [planned(by_hand(start), bound)[0].step_time for start in range(1, 6)]
    assert planned("auto", bound)[0].step_time <= min(times)
