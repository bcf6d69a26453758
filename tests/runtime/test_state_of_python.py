"""State of Python that functions of a step read, or change, while they are traced."""

import functools
import itertools
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import layer, normal, on, same, stages, weights

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]

# What makes a function that gives other numbers each time it is called.
SOURCES = {
    "counter": lambda: itertools.count(2).__next__,
    "random": lambda: random.Random(1).random,
    "array": lambda: functools.partial(np.random.default_rng(1).normal, size=(1, 4)),
}


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("where", ["loss", "layer", "step"])
@pytest.mark.parametrize("source", SOURCES)
def test_numbers_are_those_of_one_device_or_refused(source, where, microbatches) -> None:
    def make():
        value = SOURCES[source]()

        def here(place):
            return value() if place == where else 1.0

        def loss(params, x):
            for index, w in enumerate(params):
                x = mm.task(lambda w, x: layer(w, x) * here("layer"), task=on(index), name=f"layer_{index}")(w, x)
            return ((x * here("loss")) ** 2).mean()

        def step(params, x):
            x = x * here("step")
            grad = mm.microbatch(jax.value_and_grad(loss), count=microbatches, argnum=1, reduce="exact")
            return grad(params, x) if microbatches > 1 else jax.value_and_grad(loss)(params, x)

        return step

    def plain(params, x):
        """One trace of the whole batch."""
        value = SOURCES[source]()

        def here(place):
            return value() if place == where else 1.0

        def loss(params, x):
            for w in params:
                x = layer(w, x) * here("layer")
            return ((x * here("loss")) ** 2).mean()

        return jax.value_and_grad(loss)(params, x * here("step"))

    params, x = weights(2), normal(8, 4)
    if microbatches > 1 and where != "step":
        # The loss is traced once more, and draws once more.
        with pytest.raises(
            ValueError, match=rf"loss changes `value` at {__file__}:\d+, .* Draw from it in front of loss"
        ):
            mm.mjit(make(), mesh=stages(2))(params, x)
        return
    expected = jax.jit(plain)(params, x)
    found = mm.mjit(make(), mesh=stages(2))(params, x)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-12), found, expected)


class Keys:
    """Random keys, each another one."""

    def __init__(self):
        self.key = jax.random.key(0)

    def __call__(self):
        self.key, key = jax.random.split(self.key)
        return key


@pytest.mark.parametrize("microbatched", [False, True])
@pytest.mark.parametrize("holder", ["object", "list"])
def test_what_a_task_keeps_in_an_object_for_others_is_refused_at_its_line(holder, microbatched) -> None:
    def loss(params, x):
        keys, seen = Keys(), []

        def drops(w, x):
            return layer(w, x) * jax.random.uniform(keys(), x.shape, x.dtype)

        def tells(w, x):
            seen.append((x**2).mean())
            return layer(w, x)

        for index, w in enumerate(params):
            x = mm.task(drops if holder == "object" else tells, task=on(index), name=f"layer_{index}")(w, x)
        return (x**2).mean() + sum(seen)

    grad = jax.value_and_grad(loss)
    if microbatched:
        grad = mm.microbatch(grad, size=2, argnum=1, reduce="exact", rng=())
    step = mm.mjit(grad, mesh=stages(2))
    with pytest.raises(ValueError, match=r"eturn (it|the value) from (it|the task), and pass it on") as caught:
        step(weights(2), normal(8, 4))
    made, read = (
        (r"Keys\.__call__", r"test_what_.*\.loss") if holder == "object" else (r".*\.tells", r"test_what_.*\.loss")
    )
    assert re.search(rf"test_state_of_python\.py:\d+ \({made}\)", str(caught.value))
    assert re.search(rf"test_state_of_python\.py:\d+(:\d+)? \({read}\)", str(caught.value))


def test_keys_that_are_made_outside_of_tasks_are_passed_on() -> None:
    def step(params, x):
        keys = Keys()
        for index, w in enumerate(params):
            drops = mm.task(
                lambda w, x, key: layer(w, x) * jax.random.uniform(key, x.shape, x.dtype),
                task=on(index),
                name=f"layer_{index}",
            )
            x = drops(w, x, keys())
        return jnp.sum(x)

    same(step, stages(2), weights(2), normal(8, 4))
