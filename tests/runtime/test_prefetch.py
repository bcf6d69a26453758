"""Batches that an iterator has put on devices ahead: rows of `flax.jax_utils`, and arrays of a program's own queue."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import jax_utils

import mmruntime as mm
from tests.runtime.helpers import assert_close, stages

BATCHES = [np.random.default_rng(seed).normal(size=(2, 4, 3)) for seed in range(3)]


def loss(weights, x):
    for index, weight in enumerate(weights):
        task = mm.stage(index, len(weights), axis="stage")
        x = mm.task(lambda weight, x: jnp.tanh(x @ weight), task=task)(weight, x)
    return jnp.mean(x**2)


def weights():
    return [jnp.eye(3) / 2, jnp.eye(3)]


def update(weights, grads):
    return [weight - grad for weight, grad in zip(weights, grads, strict=True)]


def by_rows(weights, rows):
    grads = mm.microbatch(jax.grad(loss), argnum=1, count=2, reduce="exact")(weights, rows)
    return update(weights, jax.lax.pmean(grads, "devices"))


def accumulating(weights, parts):
    def add(total, part):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, part)), None

    total, _ = mm.microbatch_scan(jax.lax.scan, schedule="1f1b")(add, jax.tree.map(jnp.zeros_like, weights), parts)
    return update(weights, [grad / len(parts) for grad in total])


def ahead(batches):
    queue = collections.deque()
    for batch in batches:
        queue.append(jax.device_put(batch, jax.devices()[0]))
        if len(queue) == 2:
            yield queue.popleft()
    yield from queue


@pytest.fixture(scope="module")
def expected():
    found = weights()
    for batch in BATCHES:
        found = update(found, jax.grad(loss)(found, batch.reshape(-1, 3)))
    return found


def test_rows_that_flax_prefetches(expected) -> None:
    devices = jax.devices()[:2]
    step = mm.mjit(by_rows, mesh=stages(2, data=2), like=jax.pmap, axis_name="devices")
    found = jax_utils.replicate(weights(), devices)
    for rows in jax_utils.prefetch_to_device(iter(BATCHES), 2, devices):
        found = step(found, rows)
    assert [each.shape for each in found] == [(2, 3, 3)] * 2
    assert_close(jax_utils.unreplicate(found), expected, rtol=1e-5)


def test_accumulated_parts_that_a_queue_holds_on_one_device(expected) -> None:
    step, found = mm.mjit(accumulating, mesh=stages(2)), weights()
    for parts in ahead(BATCHES):
        found = step(found, parts)
    assert_close(found, expected, rtol=1e-5)
