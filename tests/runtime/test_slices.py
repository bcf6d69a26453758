"""Sequence slices: exact where they are accepted, refused at the line where they would not be."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmruntime import schedules
from mmruntime.schedules._slices import check_slices
from tests.runtime.helpers import normal, stages
from tests.runtime.sliced_programs import (
    EXAMPLES,
    LENGTH,
    WIDTH,
    WORDS,
    agree,
    attention,
    data,
    distances,
    embedded,
    exact_or_told,
    in_slices,
    losses,
    lower,
    masked,
    model,
    of_the_night,
    parameters,
)

pytestmark = pytest.mark.usefixtures("free_promotion")


def heads(p, batch):
    x = embedded(p, batch["x"])
    q, k, v = ((x @ p[name]).reshape(*x.shape[:2], 2, -1) for name in "qkv")
    k, v = (jnp.repeat(each[:, :, :1], 2, axis=2) for each in (k, v))
    weights = jax.nn.softmax(masked(jnp.einsum("bqhd,bkhd->bhqk", q, k)), -1)
    return losses(p, jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape), batch["y"]).mean()


def flat(p, batch):
    x = attention(p, embedded(p, batch["x"]))
    logits = (x @ p["out"]).reshape(-1, WORDS)
    labels = jax.nn.one_hot(batch["y"].reshape(-1), WORDS)
    return -(jax.nn.log_softmax(logits) * labels).sum(-1).mean()


def shifted(p, batch):
    return losses(p, attention(p, embedded(p, batch["ids"]))[:, :-1], batch["ids"][:, 1:]).mean()


def inputs_and_targets(p, batch):
    ids = batch["ids"]
    return losses(p, attention(p, embedded(p, ids[:, :-1])), ids[:, 1:]).mean()


def weighted(p, batch):
    each = losses(p, attention(p, embedded(p, batch["x"])), batch["y"])
    return (each * batch["weight"]).sum() / EXAMPLES


def penalty(p, batch):
    return model()(p, batch) + 0.1 * sum((leaf**2).sum() for leaf in p.values())


def turned(x, p):
    angles = np.arange(LENGTH)[:, None] / 10.0 ** np.arange(WIDTH // 2)
    one, other = jnp.split(x, 2, -1)
    return jnp.concatenate([one * np.cos(angles) - other * np.sin(angles), one * np.sin(angles) + other], -1)


ACCEPTED = {
    "causal": model(),
    "minus infinity": model(lambda s: masked(s, low=-jnp.inf)),
    "least number": model(lambda s: masked(s, low=jnp.finfo(s.dtype).min)),
    "positions compared": model(lambda s: masked(s, jnp.arange(LENGTH)[:, None] >= jnp.arange(LENGTH))),
    "added": model(lambda s: s + jnp.where(lower(), 0, -1e9)),
    "as in GPT-2": model(lambda s: s * lower() - 1e10 * (1 - lower())),
    "a window": model(lambda s: masked(s, lower() & ~lower(below=-3))),
    "a captured mask": model(lambda s: masked(s, np.tril(np.ones((LENGTH, LENGTH), bool)))),
    "distances added": model(lambda s: masked(s - 0.1 * distances())),
    "two masks": model(lambda s: masked(masked(s), lower(below=0) & (distances() < 4))),
    "heads that share keys": heads,
    "a flat loss": flat,
    "a shifted loss": shifted,
    "inputs and targets in one": inputs_and_targets,
    "weights of positions": weighted,
    "a penalty": penalty,
    "turned by position": model(before=turned),
    "normalised features": model(before=lambda x, p: (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1)),
    "two layers": model(after=lambda x, p: attention(p, x)),
    "of the positions before": model(lambda s: masked(s, lower(below=-1) | np.eye(LENGTH, dtype=bool))),
    "no attention": lambda p, batch: losses(p, embedded(p, batch["x"]), batch["y"]).mean(),
    "called with jit": model(after=lambda x, p: jax.jit(jnp.tanh)(x)),
}


def rnn(x, p):
    def step(state, now):
        state = jnp.tanh(state @ p["up"] + now)
        return state, state

    return jax.lax.scan(step, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))[1].swapaxes(0, 1)


def smoothed(x, p):
    return jax.lax.conv_general_dilated(
        x, jnp.ones((3, WIDTH, WIDTH), x.dtype), (1,), "SAME", dimension_numbers=("NTC", "TIO", "NTC")
    )


def padded(p, batch):
    visible = batch["weight"][:, None, :] > 0
    return losses(p, attention(p, embedded(p, batch["x"]), lambda s: masked(masked(s), visible)), batch["y"]).mean()


def padded_before(p, batch):
    visible = batch["weight"][:, None, :] > 0
    return losses(p, attention(p, embedded(p, batch["x"]), lambda s: masked(masked(s, visible))), batch["y"]).mean()


def bias_of_data(p, batch):
    bias = (1 - batch["weight"])[:, None, :] * -1e9
    return losses(p, attention(p, embedded(p, batch["x"]), lambda s: masked(s + bias)), batch["y"]).mean()


def perplexity(p, batch):
    return jnp.log(model()(p, batch))


# What each refusal says; the line is that of the words in quotes.
REFUSED = {
    "every position": (model(lambda s: s), "behind it"),
    "the wrong way": (model(lambda s: masked(s, lower().T)), "no causal"),
    "one position ahead": (model(lambda s: masked(s, lower(below=1))), "behind it"),
    "a block of each": (model(lambda s: masked(s, distances() // 1 > -2)), "behind it"),
    "nothing in the first row": (model(lambda s: masked(s, lower(below=-1))), "it sees no position"),
    "not low enough": (model(lambda s: masked(s, low=-1e4)), "behind it"),
    "padding as well": (padded, "it sees no position"),
    "padding before": (padded_before, "it sees no position"),
    "scores that may be minus infinity": (model(lambda s: masked(jnp.log(jax.nn.relu(s)))), "it sees no position"),
    "padding as a bias": (bias_of_data, "it sees no position"),
    "weights of parameters": (model(lambda s: masked(s, lower()) * 0 + s), "behind it"),
    "the mean of positions": (model(before=lambda x, p: x - x.mean(1, keepdims=True)), "sum over all positions"),
    "statistics of positions": (model(before=lambda x, p: x / (1 + x.var((0, 1)))), "sum over all positions"),
    "the largest position": (model(before=lambda x, p: x - x.max(1, keepdims=True)), "maximum over all"),
    "a running sum": (model(before=lambda x, p: jnp.cumsum(x, 1)), "along the sequence"),
    "a running sum from the end": (model(before=lambda x, p: jax.lax.cumsum(x, 1, reverse=True)), "along"),
    "turned round": (model(before=lambda x, p: x[:, ::-1]), "along the sequence"),
    "sorted": (model(before=lambda x, p: jnp.sort(x, 1)), "along the sequence"),
    "rolled": (model(before=lambda x, p: jnp.roll(x, 1, 1)), "slices"),
    "neighbours": (model(before=lambda x, p: x + jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]), "several slices"),
    "the next position": (model(before=lambda x, p: x + jnp.pad(x, ((0, 0), (0, 1), (0, 0)))[:, 1:]), "several slices"),
    "mixed positions": (model(before=lambda x, p: jnp.einsum("btd,ts->bsd", x, p["mix"])), "slices"),
    "mixed causally": (model(before=lambda x, p: jnp.tanh(jnp.einsum("btd,ts->bsd", x, p["mix"]))), "sl"),
    "a convolution": (model(before=smoothed), "not known"),
    "a recurrence": (model(before=rnn), "not known"),
    "positions picked": (model(before=lambda x, p: x[:, jnp.asarray([1, 0, 2, 3, 5, 4])]), "by their number"),
    "every other position": (model(before=lambda x, p: jnp.repeat(x[:, ::2], 2, 1)), "several slices come together"),
    "the first position": (model(before=lambda x, p: x - x[:, :1]), "slices"),
    "a spectrum": (model(before=lambda x, p: jnp.fft.fft(x, axis=1).real), "not known"),
    "a loss of the loss": (perplexity, "sum over all positions"),
}  # fmt: skip


@pytest.mark.parametrize("name", of_the_night(ACCEPTED, ("as in GPT-2",)))
def test_accepted_programs_give_the_results_of_the_whole_sequence(name):
    agree(*in_slices(ACCEPTED[name], 3))


@pytest.mark.parametrize("name", of_the_night(REFUSED, ("every position", "padding as well", "a running sum")))
def test_programs_whose_positions_need_later_ones_are_told_at_their_line(name):
    loss, reason = REFUSED[name]
    assert reason in exact_or_told(loss, 3, (parameters(), data()))


def piecewise(rng, x, p):
    """A step of a random model: mostly of each position alone or causal, at times not."""
    length = x.shape[1]
    shown = lower(length, int(rng.integers(-1, 2)) if rng.random() < 0.2 else 0)
    if rng.random() < 0.3:
        shown = shown & ~lower(length, -int(rng.integers(2, 4)))
    low = rng.choice([-1e30, -1e9, -np.inf, -1e4] if rng.random() < 0.2 else [-1e30, -np.inf])

    def attend(x):
        eye = rng.random() < 0.5
        scores = jnp.einsum("btd,bsd->bts", x @ p["q"], x @ (p["k"] if eye else p["q"]))
        scores = jnp.where(shown, scores, low) if rng.random() < 0.7 else scores + jnp.where(shown, 0.0, low)
        if rng.random() < 0.3:
            scores = scores.swapaxes(1, 2)
            return x + jnp.einsum("bst,bsd->btd", jax.nn.softmax(scores, 1), x @ p["v"])
        return x + jax.nn.softmax(scores, -1) @ (x @ p["v"])

    def reversed_rows(x):
        return x[:, ::-1]

    choices = [
        attend,
        attend,
        lambda x: jnp.tanh(x @ p["up"]),
        lambda x: x.reshape(-1, WIDTH).reshape(x.shape) * p["place"][: x.shape[1]],
        lambda x: jnp.stack([x, x * 2], 2).sum(2),
        lambda x: jnp.where(x > 0, x, 0.1 * x),
        lambda x: x.transpose(2, 1, 0).transpose(2, 1, 0) - x.max(-1, keepdims=True),
        lambda x: jnp.concatenate([x[..., 2:], x[..., :2]], -1),
    ]
    odd = [
        reversed_rows,
        lambda x: x - x.mean(1, keepdims=True),
        lambda x: jnp.cumsum(x, 1),
        lambda x: jnp.concatenate([x[:, 1:], x[:, :1]], 1),
        lambda x: jnp.einsum("btd,ts->bsd", x, p["mix"]),
        lambda x: x * jax.nn.softmax(x, 1),
    ]
    return (odd if rng.random() < 0.06 else choices)[int(rng.integers(6))](x)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(24))
def test_random_programs_are_exact_or_told(number):
    def loss(p, batch):
        rng = np.random.default_rng(number)
        x = embedded(p, batch["x"])
        for _ in range(int(rng.integers(2, 5))):
            x = piecewise(rng, x, p)
        each = losses(p, x, batch["y"])
        return (each * batch["weight"] if rng.random() < 0.5 else each).mean()

    exact_or_told(loss, 2 + number % 3, (parameters(), data()), 1e-4)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches", "slices"), [(1, 2, 2), (2, 3, 4), (4, 2, 3), (3, 1, 5)])
def test_orders_of_slices_have_the_published_idle_time_and_activations(name, stages, microbatches, slices):
    order = schedules.sliced(name, stages, microbatches, slices)
    order.validate()
    check_slices(order)
    run = schedules.simulate(order, 1 / slices, 1 / slices, 1 / slices)
    assert run.makespan - max(run.busy) == pytest.approx((stages - 1) * 3 / slices)
    units = microbatches * slices
    held = [units if name == "gpipe" else min(stages - stage + slices - 1, units) for stage in range(stages)]
    assert list(run.live) == held


@pytest.mark.parametrize(("stages", "microbatches", "slices"), [(2, 3, 4), (4, 2, 3), (8, 16, 4)])
def test_zero_bubble_orders_of_slices_have_a_third_of_the_idle_time(stages, microbatches, slices):
    order = schedules.sliced("zb-h1", stages, microbatches, slices)
    order.validate()
    check_slices(order)
    run = schedules.simulate(order, 1 / slices, 1 / slices, 1 / slices)
    assert run.makespan - max(run.busy) == pytest.approx((stages - 1) / slices)
    assert list(run.live) == [stages + slices - 1] * stages


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize(("stages", "microbatches", "slices"), [(2, 3, 4), (4, 2, 3), (3, 1, 5), (4, 8, 2), (8, 1, 2)])
def test_interleaved_orders_of_slices_have_a_share_of_the_idle_time(stages, microbatches, slices, chunks):
    order = schedules.sliced("interleaved-1f1b", stages, microbatches, slices, chunks)
    order.validate()
    check_slices(order)
    run = schedules.simulate(order, 1 / slices, 1 / slices, 1 / slices)
    idle = run.makespan - max(run.busy)
    if microbatches * slices >= stages:
        assert idle == pytest.approx((stages - 1) * 3 / slices / chunks)
    else:
        assert idle < (stages - 1) * 3 / slices


def test_orders_that_break_the_order_of_slices_are_refused():
    for name in ("1f1b", "zb-h1"):
        with pytest.raises(ValueError, match="from the last to the first"):
            check_slices(dataclasses.replace(schedules.make(name, 2, 4), slices=2))
    with pytest.raises(ValueError, match="has no order for slices"):
        schedules.sliced("zb-h2", 2, 4, 2)
    with pytest.raises(ValueError, match="one stage on each submesh"):
        schedules.sliced("zb-h1", 2, 4, 2, 2)
    with pytest.raises(ValueError, match="round-robin"):
        schedules.sliced("interleaved-1f1b", 2, 4, 2, placement=(0, 1, 1, 0))
    again = (schedules.Action("R", 0, 1), *schedules.sliced("gpipe", 1, 1, 2).rows[0])
    with pytest.raises(ValueError, match=r"jax\.checkpoint"):
        check_slices(dataclasses.replace(schedules.sliced("gpipe", 1, 1, 2), rows=(again,)))
    with pytest.raises(ValueError, match="at least 1"):
        schedules.sliced("1f1b", 2, 0, 2)


def of_tasks(layer=attention, chunks=1):
    def loss(p, batch):
        x = embedded(p, batch["x"])
        for number in range(2 * chunks):
            stage = mm.stage(number, 2 * chunks, axis="stage", chunks=chunks)
            x = mm.task(layer, task=stage)(p["layers"][number], x)
        return losses(p, x, batch["y"]).mean()

    return loss


tasks = of_tasks()


def deep_parameters():
    layers = [{name: scale * leaf for name, leaf in parameters().items()} for scale in (1, 1.1, 0.9, 1)]
    return parameters() | {"layers": layers}


def pipelined(loss, slices, schedule, mesh=None):
    def step(p, batch):
        gradient = jax.value_and_grad(loss)
        return mm.microbatch(gradient, count=2, argnum=1, schedule=schedule, slices=slices, reduce="exact")(p, batch)

    return mm.mjit(step, mesh=mesh or stages(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "loss", "chunks"),
    [
        ("gpipe", tasks, 1),
        ("1f1b", tasks, 1),
        (schedules.sliced("1f1b", 2, 2, 3), tasks, 1),
        ("1f1b", of_tasks(jax.checkpoint(attention)), 1),
        ("zb-h1", tasks, 1),
        ("zb-h1", of_tasks(jax.checkpoint(attention)), 1),
        ("interleaved-1f1b", of_tasks(chunks=2), 2),
    ],
)
def test_pipelines_of_slices_give_the_results_of_one_device(schedule, loss, chunks):
    step = pipelined(loss, 3, schedule)
    args = deep_parameters(), data()
    agree(jax.tree.leaves(step(*args)), jax.tree.leaves(jax.value_and_grad(loss)(*args)))
    report = step.explain()
    (loop,) = report.loops
    assert (loop.num_microbatches, loop.slices) == (2, 3)
    if not loop.order.splits_backward:
        assert list(loop.live) == [chunks * live for live in schedules.simulate(loop.order).live]
    assert "each in 3 slices" in str(report)
    assert "slices of its 6 positions" in str(report)


@pytest.mark.slow
@pytest.mark.parametrize("embedding", [True, False])
def test_slices_add_up_over_devices_once_per_step(embedding):
    mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"), logical_axes=(("batch", "data"),))

    def cut(p, x):
        return attention(p, mm.with_sharding_constraint(x, jax.P("batch", None, None)))

    def loss(p, batch):
        # Without an embedding, the first layer has gradients of its weights alone, which share an operand.
        x = embedded(p, batch["x"]) if embedding else batch["h"]
        for stage in range(2):
            x = mm.task(cut, task=mm.stage(stage, 2, axis="stage"))(p["layers"][stage], x)
        return losses(p, x, batch["y"]).mean()

    batch = data()
    args = deep_parameters(), batch | {"h": normal(*batch["x"].shape, WIDTH, seed=20)}
    agree(jax.tree.leaves(pipelined(loss, 2, "1f1b", mesh)(*args)), jax.tree.leaves(jax.value_and_grad(loss)(*args)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "message"),
    [("zb-h2", "no order for slices"), ("auto", "not with a search"), (schedules.make("1f1b", 2, 6), "in 1 slices")],
)
def test_schedules_without_an_order_of_slices_are_refused(schedule, message):
    with pytest.raises(ValueError, match=message):
        pipelined(tasks, 3, schedule).lower(deep_parameters(), data())


def padded_tasks(p, batch):
    def layer(weights, x):
        shown = lower() & (batch["weight"] > 0)[:, None]
        return attention(weights, x, lambda s: masked(s, shown))

    return of_tasks(layer)(p, batch)


def test_steps_raise_where_a_row_sees_nothing():
    """At once in the first call, and in the call behind a later one, whose results are no numbers."""
    args = deep_parameters(), data()
    shown, hidden = (args[1] | {"weight": np.full_like(args[1]["weight"], number)} for number in (1, 0))
    step = pipelined(padded_tasks, 3, "1f1b")
    for _ in range(2):
        assert np.isfinite(step(args[0], shown)[0])
    value, gradients = step(args[0], hidden)
    assert np.isnan(value) and np.isnan(gradients["embed"]).all()
    message = r"slices=3 differs from the whole sequence at .*\.py:\d+.* sees no position.* call before"
    with pytest.raises(ValueError, match=message):
        step(args[0], shown)
    assert np.isfinite(step(args[0], shown)[0])
    with pytest.raises(ValueError, match=r"sees no position.* of later positions\.\s"):
        pipelined(padded_tasks, 3, "1f1b")(args[0], hidden)


@pytest.mark.slow
def test_one_submesh_computes_microbatches_whole():
    step = pipelined(lambda p, batch: model()(p, batch), 3, "1f1b", stages(1))
    step.lower(parameters(), data())
    with pytest.raises(ValueError, match="cannot be kept at"):
        pipelined(REFUSED["every position"][0], 3, "1f1b", stages(1)).lower(parameters(), data())


def test_arguments_of_slices_are_checked():
    with pytest.raises(ValueError, match="dim must be 0 or more"):
        mm.microbatch(jax.grad(model()), dim=-1, count=2, slices=2)
    with pytest.raises(ValueError, match="slices"):
        mm.microbatch(jax.grad(model()), count=2, slices=0)
    with pytest.raises(ValueError, match="found no dimension to cut"):
        in_slices(lambda p, batch: (p["q"] * batch["z"].sum()).sum(), 3, (parameters(), {"z": np.ones(4, np.float32)}))
