"""What `register_task` and `microbatch` say about mistakes, by the text: what was given and what to write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import layer, normal, on, stages, weights


def chosen(group, backprop):
    return on(0)


@pytest.mark.parametrize(
    ("matcher", "fields", "error", "message"),
    [
        (
            "layer_0",
            {},
            TypeError,
            r"register_task\('layer_0'\): give task=mm\.Task\(\.\.\.\) or callback=.*got neither",
        ),
        ("layer_0", {"task": 3}, TypeError, r"register_task\('layer_0'\): task must be a mm\.Task, got 3"),
        (3, {"callback": chosen}, TypeError, r"matcher must be a scope name or a regular expression, got 3"),
        ("layer_(", {"callback": chosen}, ValueError, r"'layer_\(' is not a regular expression: "),
        (
            r"(layer)_(\d+)",
            {"callback": chosen},
            ValueError,
            r"has 2 capture groups; it must have exactly one, .*Write the others as \(\?:\.\.\.\)",
        ),
    ],
    ids=["neither", "no_task", "no_text", "no_expression", "groups"],
)
def test_registrations(matcher, fields, error, message):
    for register in (mm.register_task, mm.Context().register_task, stages(2).register_task):
        with pytest.raises(error, match=message):
            register(matcher, **fields)


def scoped(x):
    for index in range(2):
        with jax.named_scope(f"layer_{index}"):
            x = jnp.cos(x)
    return x


def test_callbacks_must_return_tasks():
    mesh = stages(2)
    mesh.register_task(r"layer_(\d)", callback=lambda number, backprop: {"stage": int(number)})
    message = (
        r"callback of register_task\('layer_\(\\\\d\)'\) returned \{'stage': 0\} for '0'; it must return a mm\.Task"
    )
    with pytest.raises(ValueError, match=message):
        mm.mjit(scoped, mesh=mesh)(jnp.zeros(2))


def test_tasks_of_one_name_must_be_one_task():
    mesh = stages(2)
    mesh.register_task(r"layer_(\d)", callback=lambda number, backprop: on(int(number), "layer"))
    with pytest.raises(ValueError, match=r"have the name 'layer' but differ: .*different names or the same submesh"):
        mm.mjit(scoped, mesh=mesh)(jnp.zeros(2))


def total(w, x):
    return (layer(w, x) ** 2).sum()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, r"give size= \(examples per microbatch\) or count= \(how many\), got size=None, count=None"),
        ({"size": 2, "count": 4}, TypeError, r"give size= .* or count= .*, got size=2, count=4"),
        (
            {"count": 2, "schedule": "1f1b", "custom_schedule": [["total"]]},
            ValueError,
            r"custom_schedule= goes with schedule='custom' or none, got '1f1b'",
        ),
        ({"count": 2, "schedule": "custom"}, ValueError, r"schedule='custom' needs custom_schedule=, the rows of the"),
        ({"count": 2, "rng": 1}, TypeError, r"rng=1 must be the position of another positional argument"),
        ({"count": 2, "reduce": "max"}, ValueError, r'reduce must be "sum", "mean" or "concat" .*, got \'max\''),
        (
            {"count": 2, "reduce": ("sum", "sum")},
            ValueError,
            r"reduce=\('sum', 'sum'\) is not a prefix of the result's",
        ),
    ],
    ids=["neither", "both", "two_schedules", "no_rows", "rng", "reduce", "no_prefix"],
)
def test_microbatch_options(options, error, message):
    with pytest.raises(error, match=f"microbatch: {message}"):
        mm.microbatch(total, argnum=1, **options)(weights(1)[0], normal(4, 4))


@pytest.mark.parametrize(
    ("fun", "batch", "error", "message"),
    [
        (
            lambda b: b["x"].sum(),
            {"x": np.ones((4, 2)), "y": np.ones(6)},
            ValueError,
            r"the leaves of the sliced argument differ in size along dim=0: batch\['x'\]: 4, batch\['y'\]: 6",
        ),
        (lambda b: 1.0, {}, ValueError, r"the argument to slice of <lambda> has no arrays"),
        (lambda b: (b > 0).any(), np.ones(4), TypeError, r"of <lambda> is bool\[\], which cannot be added up over"),
        (
            lambda b: {"key": jax.random.key(0)},
            np.ones(4),
            TypeError,
            r"result\['key'\] of <lambda> is key<fry>\[\], which cannot be added up",
        ),
    ],
    ids=["sizes", "nothing", "bool", "key"],
)
def test_microbatch_arguments_and_results(fun, batch, error, message):
    for call in (mm.microbatch(fun, count=2), mm.mjit(mm.microbatch(fun, count=2), mesh=stages(2))):
        with pytest.raises(error, match=message):
            call(batch)


def test_integers_have_no_mean():
    counted = mm.microbatch(lambda b: {"n": jnp.int32(b.shape[0])}, count=2, reduce="mean")
    with pytest.raises(
        TypeError, match=r'reduce="mean" cannot average result\[\'n\'\] of type int32\. Give reduce= as a'
    ):
        counted(np.ones(4))
