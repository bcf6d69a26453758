"""Random training steps of tasks, loops and transformations, against plain `jax.jit` of the same step.

A few run with the rest of the tests; `pytest -m slow tests/runtime/test_random_steps.py` runs three hundred.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime import schedules
from mmruntime.schedules._catalog import NAMED_SCHEDULES
from tests.runtime.helpers import adam, adam_state, assert_close, batches, normal, sample, sgd, stages, weights

NUM_STAGES = 4
NUM_WEIGHTS = 3
# Those that take stages in any order, any number of times.
SCHEDULES = ("gpipe", "1f1b", "wavefront", "zb-h1", "zb-h2", "zero-bubble-h2", "looped-bfs")


@jax.custom_vjp
def doubled(x, w):
    """Its gradient in `x` is not that of what it computes, so a derivation of another one would show."""
    return jnp.sin(x) @ w


doubled.defvjp(
    lambda x, w: (doubled(x, w), (x, w)),
    lambda saved, g: (2 * (g @ saved[1].T) * jnp.cos(saved[0]), jnp.sin(saved[0]).T @ g),
)


def over_stack(w, x, skip, key):
    return jax.lax.scan(lambda h, v: (jnp.tanh(h @ v), h.sum()), x, jnp.stack([w, w.T, w / 2]))[0]


def by_sign(w, x, skip, key):
    return jax.lax.cond(skip.sum() > 0, lambda h: jnp.tanh(h @ w), lambda h: h * 2, x)


def split_hidden(w, x, skip, key):
    return jnp.tanh(mm.with_sharding_constraint(x @ w, P(None, "hidden"))) @ w.T


# What a piece computes of its weight, the activation before it, an earlier one, and a key.
BODIES = {
    "dense": lambda w, x, skip, key: jnp.tanh(x @ w),
    "skip": lambda w, x, skip, key: x + jnp.tanh(skip @ w),
    "product": lambda w, x, skip, key: jnp.tanh(x @ w) * skip,
    "stopped": lambda w, x, skip, key: x @ w + jax.lax.stop_gradient(skip),
    "dropout": lambda w, x, skip, key: jnp.where(jax.random.bernoulli(key, 0.7, x.shape), x @ w, 0),
    "normalized": lambda w, x, skip, key: ((x - x.mean(-1, keepdims=True)) / (1 + x.std(-1, keepdims=True))) @ w,
    "vmapped": lambda w, x, skip, key: jax.vmap(lambda row: jnp.tanh(row @ w) + row)(x),
    "nested jit": lambda w, x, skip, key: jax.jit(lambda a, b: a @ b + a)(jnp.sin(x), w),
    "own gradient": lambda w, x, skip, key: doubled(x, w),
    "repeated": lambda w, x, skip, key: jax.lax.fori_loop(0, 2, lambda i, h: jnp.sin(h) + i, x) @ w,
    "scan": over_stack,
    "cond": by_sign,
    "sharded": split_hidden,
}
WRAPPERS = {
    "plain": (lambda f: f, lambda f: f),
    "checkpoint inside": (jax.checkpoint, lambda f: f),
    "checkpoint around": (lambda f: f, jax.checkpoint),
    "jit inside": (jax.jit, lambda f: f),
}


@dataclasses.dataclass(frozen=True)
class Piece:
    """One piece of the model, on a stage or outside of all tasks."""

    body: str
    weight: int
    skip: int
    stage: int | None
    wrapper: str
    shares_name: bool


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step."""

    pieces: tuple[Piece, ...]
    count: int | None
    schedule: str
    reduce: str
    optimizer: str
    has_aux: bool
    aux_in_loss: bool
    remat: bool
    donate: bool
    frozen: bool
    results: str


@st.composite
def steps(draw):
    pieces = tuple(
        Piece(
            draw(st.sampled_from(sorted(BODIES))),
            draw(st.integers(0, NUM_WEIGHTS - 1)),
            draw(st.integers(0, index)),
            draw(st.sampled_from((*range(NUM_STAGES), None))),
            draw(st.sampled_from(sorted(WRAPPERS))),
            draw(st.booleans()),
        )
        for index in range(draw(st.integers(1, 6)))
    )
    return Step(
        pieces,
        draw(st.sampled_from((None, 1, 2, 4))),
        draw(st.sampled_from(SCHEDULES)),
        draw(st.sampled_from(("mean", "sum"))),
        draw(st.sampled_from(("sgd", "adam", "clipped"))),
        *[draw(st.booleans()) for _ in range(5)],
        draw(st.sampled_from(("loss", "gradients", "inputs"))),
    )


def train_step(one):
    """The step as a function of the state, a batch and a key."""

    def model(params, x, key):
        kept = [x]
        for index, piece in enumerate(one.pieces):
            inside, around = WRAPPERS[piece.wrapper]
            fun = inside(functools.partial(BODIES[piece.body]))
            if piece.stage is not None:
                name = "shared" if piece.shares_name else f"piece{index}"
                fun = mm.task(fun, name, mesh_slice={"stage": piece.stage}, logical_axes=(("hidden", "model"),))
            fold = jax.random.fold_in(key, index)
            kept.append(around(fun)(params[f"w{piece.weight}"], kept[-1], kept[piece.skip], fold))
        return kept

    def loss_fn(trained, frozen, batch, key):
        kept = model({**trained, **frozen}, batch["x"], key)
        combine = jnp.mean if one.reduce == "mean" else jnp.sum
        loss, extra = combine((kept[-1] - batch["y"]) ** 2), combine(jnp.tanh(kept[len(kept) // 2]))
        if one.aux_in_loss:
            loss = loss + extra / 10
        return (loss, {"extra": extra}) if one.has_aux else loss

    def step(state, batch, key):
        kept = ("w1", "w2") if one.frozen else ()
        trained, frozen = (
            {name: w for name, w in state["params"].items() if (name in kept) is is_frozen}
            for is_frozen in (False, True)
        )
        fun = jax.value_and_grad(jax.checkpoint(loss_fn) if one.remat else loss_fn, has_aux=one.has_aux)
        if one.count is not None:
            fun = mm.microbatch(
                fun, argnum=2, rng=3, count=one.count, schedule=one.schedule, reduce=one.reduce, check=False
            )
        value, grads = fun(trained, frozen, batch, key)
        grads = {**jax.tree.map(jnp.zeros_like, state["params"]), **grads}
        if one.optimizer == "clipped":
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: g / jnp.maximum(1, norm), grads)
        new = adam(state, grads) if one.optimizer == "adam" else {**state, "params": sgd(state["params"], grads)}
        results = {"loss": value, "gradients": (value, grads, 1.0), "inputs": (value, batch["x"], state["count"])}
        return new, results[one.results]

    return step


def compare(one):
    """Two calls of the step, the second with what the first gave, on a mesh and under plain `jax.jit`."""
    fun = train_step(one)
    params = {"unused": normal(3)}
    params |= {f"w{index}": w for index, w in enumerate(weights(NUM_WEIGHTS))}
    plain, step = jax.jit(fun), mm.mjit(fun, mesh=stages(NUM_STAGES, model=2), donate_argnums=(0,) * one.donate)
    expected, found = adam_state(params), jax.tree.map(jnp.asarray, adam_state(params))
    for index, batch in enumerate(batches(2)):
        expected, plainly = plain(expected, batch, jax.random.key(index))
        found, piped = step(found, batch, jax.random.key(index))
        assert_close(piped, plainly, 1e-10)
        assert_close(found, expected, 1e-10)
    return step


@pytest.mark.optimized
@sample(4)
@given(steps())
def test_steps(one):
    with jax.enable_x64(True):
        compare(one)


@pytest.mark.slow
@pytest.mark.optimized
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps())
def test_three_hundred_steps(one):
    with jax.enable_x64(True):
        compare(one)


def placement_of(name, submeshes=NUM_STAGES):
    """Stages on submeshes as a schedule wants them; two on each where it takes any number."""
    rule = NAMED_SCHEDULES[name].placements
    return rule.pattern(submeshes, 2) or rule.pattern(submeshes, rule.chunks)


@st.composite
def scheduled_steps(draw, submeshes):
    """Steps with the stages of a named schedule, and random pieces outside of tasks before, between and after them."""
    one, name = draw(steps()), draw(st.sampled_from(schedules.names()))
    glue = st.lists(st.sampled_from(sorted(BODIES)), max_size=1)
    pieces = []
    for stage in (*placement_of(name, submeshes), None):
        for body in draw(glue):
            pieces.append(Piece(body, 0, draw(st.integers(0, len(pieces))), None, "plain", False))
        if stage is not None:
            # Each stage reads the one before it; what skips stages is read outside of tasks.
            body = draw(st.sampled_from(("dense", "vmapped", "nested jit", "scan", "cond", "dropout")))
            weight, skip = draw(st.integers(0, NUM_WEIGHTS - 1)), len(pieces)
            wrapper = draw(st.sampled_from(sorted(WRAPPERS)))
            pieces.append(Piece(body, weight, skip, stage, wrapper, False))
    return dataclasses.replace(
        one, pieces=tuple(pieces), count=draw(st.sampled_from((4, 8))), schedule=name, has_aux=True
    )


def check_scheduled(one, submeshes):
    compiled = compare(one)
    (loop,) = compiled.explain().loops
    assert len(loop.stages) == len(placement_of(one.schedule, submeshes)), "nothing but tasks makes stages"


@pytest.mark.slow
@pytest.mark.optimized
@sample(2)
@given(scheduled_steps(submeshes=2))
def test_every_schedule_takes_any_program_on_its_stages(one):
    with jax.enable_x64(True):
        check_scheduled(one, submeshes=2)


@pytest.mark.slow
@pytest.mark.optimized
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(scheduled_steps(submeshes=NUM_STAGES))
def test_every_schedule_takes_a_hundred_programs(one):
    with jax.enable_x64(True):
        check_scheduled(one, submeshes=NUM_STAGES)


@pytest.mark.family
@pytest.mark.parametrize("num_metrics", [3, 40])
@pytest.mark.parametrize("schedule", schedules.names())
def test_metrics_and_results_of_each_example_are_no_stages(schedule, num_metrics):
    placement = placement_of(schedule, submeshes=2)

    def loss(params, x):
        for index, (w, stage) in enumerate(zip(params, placement, strict=True)):
            x = mm.task(lambda w, x: jnp.tanh(x @ w), f"layer{index}", mesh_slice={"stage": stage})(w, x)
        loss = (x**2).mean()
        return loss, (jnp.stack([loss * k for k in range(num_metrics)]), (x**2).mean(-1))

    step = mm.mjit(
        mm.microbatch(
            jax.value_and_grad(loss, has_aux=True),
            count=8,
            argnum=1,
            schedule=schedule,
            reduce=(("mean", ("mean", "concat")), "mean"),
            check=False,
        ),
        mesh=stages(NUM_STAGES),
    )
    (loop,) = step.plan(weights(len(placement)), normal(8, 4)).loops
    assert len(loop.stages) == len(placement)
