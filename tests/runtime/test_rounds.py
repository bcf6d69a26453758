"""Layers that are dealt out in several rounds, for interleaved and V-shaped schedules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import WIDTH, normal, stages, weights

pytestmark = pytest.mark.family


@pytest.mark.parametrize(
    ("schedule", "options", "placement"),
    [
        ("interleaved-1f1b", {"chunks": 2}, (0, 1, 0, 1)),
        ("looped-bfs", {"chunks": 2, "weights": "flops"}, (0, 1, 0, 1)),
        ("zb-v", {"placement": "v"}, (0, 1, 1, 0)),
        ("zb-v", {"placement": "v", "weights": [1, 1, 1, 1, 3]}, (0, 1, 1, 0)),
        ("dualpipe-v", {"placement": "v", "weights": "flops"}, (0, 1, 1, 0)),
    ],
)
def test_layers_in_rounds(schedule, options, placement):
    params, batch = weights(5), normal(4, WIDTH)

    def loss(params, x):
        for i, w in enumerate(params):
            x = mm.task(lambda w, x: jnp.tanh(x @ w), task=mm.stage(i, len(params), **options))(w, x)
        return (x**2).mean()

    gradient = mm.microbatch(jax.grad(loss), argnum=1, count=2, reduce="exact", schedule=schedule)
    step = mm.mjit(gradient, mesh=stages(2))
    expected = jax.jit(jax.grad(loss))(params, batch)
    for found, wanted in zip(step(params, batch), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    (loop,) = step.explain().loops
    assert loop.stages == placement


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"chunks": 3},
            r"stage: 5 layers cannot be dealt out over 2 slices of axis 'stage' in 3 rounds",
        ),
        ({"placement": "w"}, r'stage: placement must be "v" or left out, got'),
        ({"placement": "v", "chunks": 1}, r"stage: placement='v' folds two rounds or more, got chunks=1"),
        ({"chunks": 0}, r"stage: chunks must be"),
    ],
)
def test_rounds_that_do_not_fit(options, message):
    with stages(2), pytest.raises(ValueError, match=message):
        mm.stage(0, 5, **options)


@pytest.mark.parametrize(
    ("schedule", "hint"),
    [("zb-v", 'hint stages\\(placement="v"\\)'), ("interleaved-1f1b", "hint stages\\(chunks=2\\)")],
)
def test_a_schedule_that_needs_other_rounds_says_so(schedule, hint):
    def loss(params, x):
        for i, w in enumerate(params):
            x = mm.task(lambda w, x: jnp.tanh(x @ w), task=mm.stage(i, len(params)))(w, x)
        return (x**2).mean()

    step = mm.mjit(mm.microbatch(jax.grad(loss), argnum=1, count=2, schedule=schedule), mesh=stages(2))
    with pytest.raises(ValueError, match=hint):
        step(weights(4), normal(4, WIDTH))
