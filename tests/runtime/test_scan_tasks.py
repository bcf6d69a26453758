"""Scans whose bodies hold tasks, such as a recurrent network of several layers: each layer on its stage."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import WIDTH, adam, adam_state, assert_close, ids, normal, on, stages

pytestmark = pytest.mark.usefixtures("double")

STEPS = 3


def cell(params, state, x):
    return jnp.tanh(x @ params["in"] + state @ params["state"] + params["bias"][None])


def weights(seed, outputs=WIDTH):
    return {
        "in": normal(WIDTH, outputs, seed=seed) / 2,
        "state": normal(outputs, outputs, seed=seed + 1) / 2,
        "bias": normal(outputs, seed=seed + 2),
    }


def sequences():
    """Examples along the second dimension."""
    return {"x": normal(STEPS, 4, WIDTH, seed=7), "y": normal(STEPS, 4, 1, seed=8)}


def by_scope(index):
    return lambda call: lambda *args: jax.named_scope(f"layer{index}")(call)(*args)


def by_task(index):
    return lambda call: mm.task(call, task=on(index, f"layer{index}"))


def recurrent(place, **options):
    """Two recurrent layers and a head of one number, in one scan over time."""

    def loss(params, batch):
        def turn(states, x):
            low = place(0)(cell)(params["low"], states["low"], x)
            high = place(1)(cell)(params["high"], states["high"], jax.nn.relu(low))
            return {"low": low, "high": high, "last": x}, place(1)(lambda w, h: h @ w["in"] + w["bias"][None])(
                params["head"], high
            )

        zeros = jnp.zeros((batch["x"].shape[1], WIDTH))
        states, out = jax.lax.scan(turn, dict.fromkeys(("low", "high", "last"), zeros), batch["x"], **options)
        return jnp.mean((out - batch["y"]) ** 2) + jnp.mean(states["low"] * states["last"])

    return loss


def train(loss, mesh, params, batch):
    """Two steps of Adam in two microbatches, held against those of one device."""

    def step(state, batch):
        grad = mm.microbatch(jax.value_and_grad(loss), argnum=1, dim=1, count=2, reduce="exact", schedule="1f1b")
        value, grads = grad(state["params"], batch)
        return adam(state, grads), value

    def plain(state, batch):
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        return adam(state, grads), value

    cut, one = mm.mjit(step, mesh=mesh), jax.jit(plain)
    many = expected = adam_state(params)
    for _ in range(2):
        (many, value), (expected, wanted) = cut(many, batch), one(expected, batch)
        assert_close((many, value), (expected, wanted), 1e-11)
    return cut, many


@pytest.mark.parametrize("options", [{}, {"reverse": True, "unroll": 2}], ids=["forward", "reverse"])
@pytest.mark.parametrize("place", [by_scope, by_task])
def test_each_layer_of_a_recurrent_network_is_on_its_stage(place, options):
    mesh = stages(2)
    if place is by_scope:
        for index in range(2):
            mesh.register_task(f"layer{index}", task=on(index, f"layer{index}"))
    params = {"low": weights(1), "high": weights(4), "head": {"in": normal(WIDTH, 1, seed=9), "bias": normal(1)}}
    step, state = train(recurrent(place, **options), mesh, params, sequences())
    for part in ("params", "mu", "nu"):
        at = {name: set().union(*map(ids, jax.tree.leaves(tree))) for name, tree in state[part].items()}
        assert at == {"low": {0}, "high": {1}, "head": {1}}
    assert {"layer0", "layer1"} <= {name for row in step.explain().tasks for name in row.tasks}


def test_a_scan_with_one_task_is_that_tasks():
    def loss(params, batch):
        def turn(state, x):
            state = by_task(1)(cell)(params, state, x)
            return state, state

        _, out = jax.lax.scan(turn, jnp.zeros((batch["x"].shape[1], WIDTH)), batch["x"])
        first = by_task(0)(lambda x: (x**2).mean())(batch["x"])
        return jnp.mean((out - batch["y"]) ** 2) + first

    _, state = train(loss, stages(2), weights(1), sequences())
    assert [ids(leaf) for leaf in jax.tree.leaves(state["params"])] == [{1}] * 3


# What they share runs on one submesh, and so do the updates of the other's parameters.
@pytest.mark.filterwarnings("ignore:mjit. state of submesh:UserWarning")
def test_tasks_that_need_each_other_from_turn_to_turn_stay_together_and_that_is_said():
    def loss(params, batch):
        def turn(state, x):
            low = by_task(0)(cell)(params["low"], state, x)
            high = by_task(1)(cell)(params["high"], state, low)
            return high, high

        _, out = jax.lax.scan(turn, jnp.zeros((batch["x"].shape[1], WIDTH)), batch["x"])
        return jnp.mean((out - batch["y"]) ** 2)

    with pytest.warns(UserWarning, match=r"the scan at .*test_scan_tasks.py.* runs as one program.*'layer0', 'layer1'"):
        train(loss, stages(2), {"low": weights(1), "high": weights(4)}, sequences())


def _loss_of_two_tasks(params, x):
    for index in range(2):
        x = by_task(index)(lambda w, x: jnp.tanh(x @ w))(params[index], x)
    return jnp.mean(x**2)


def _trained(params, x):
    grads = mm.microbatch(jax.grad(_loss_of_two_tasks), count=2, argnum=1, reduce="exact")(params, x)
    return [w - 0.1 * g for w, g in zip(params, grads, strict=True)]


# Programs with all of a step in one operation of JAX, and its name.
WHOLE = {
    "epoch": ("scan", lambda p, x: jax.lax.scan(lambda p, x: (_trained(p, x), None), p, x.reshape(2, 2, -1))[0]),
    "while": ("while", lambda p, x: jax.lax.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, _trained(s[1], x)), (0, p))),
    "branch": ("cond", lambda p, x: jax.lax.cond(x[0, 0] < 9, _trained, lambda p, x: p, p, x)),
    "forward": ("cond", lambda p, x: jax.lax.cond(x[0, 0] < 9, _loss_of_two_tasks, lambda p, x: 0.0, p, x)),
    "solver": ("custom_linear_solve", lambda p, x: jax.scipy.sparse.linalg.cg(
        lambda v: v + 0 * _loss_of_two_tasks(p, v[None]), x[0])[0]),
}  # fmt: skip


@pytest.mark.parametrize("what", WHOLE)
def test_a_loop_or_branch_of_whole_steps_is_said_to_run_on_one_submesh(what):
    operation, step = WHOLE[what]
    params, x = [normal(WIDTH, WIDTH, seed=seed) for seed in (1, 2)], normal(4, WIDTH, seed=3)
    text = rf"^mjit: the {operation} at .*test_scan_tasks.py.* one program in one place, .*'layer0', 'layer1' are in it"
    with pytest.warns(UserWarning, match=text):
        found = mm.mjit(step, mesh=stages(2))(params, x)
    assert_close(found, jax.jit(step)(params, x), 1e-12)


def test_branches_that_are_cut_into_those_of_their_stages_are_not_spoken_of():
    def step(params, x):
        def doubled(params):
            return [mm.task(lambda w: w @ w, task=on(index))(w) for index, w in enumerate(params)]

        return _loss_of_two_tasks(params, x), jax.lax.cond(x[0, 0] < 9, doubled, lambda params: params, params)

    params, x = [normal(WIDTH, WIDTH, seed=seed) for seed in (1, 2)], normal(4, WIDTH, seed=3)
    _, kept = mm.mjit(step, mesh=stages(2))(params, x)
    assert list(map(ids, kept)) == [{0}, {1}]


def random_network(seed):
    """A loss of layers that read, in each turn, slices, constants, earlier layers and states of earlier layers."""
    draw = random.Random(seed)
    count = draw.randint(2, 4)
    stage_of = sorted(draw.randrange(2) for _ in range(count - 2))
    stage_of = [0, *stage_of, 1]
    reads = [
        [draw.choice(["x", "x", "shift", *range(index), *(("state", k) for k in range(index + 1))])]
        for index in range(count)
    ]
    for index in range(1, count):
        reads[index].append(index - 1)
    kept = [draw.random() < 0.5 for _ in range(count)]

    def loss(params, batch):
        fixed = jnp.cos(params[0]["bias"])[None]

        def turn(carry, x):
            states, shift, constant = carry
            values = []

            def value(name):
                if name in ("x", "shift"):
                    return x if name == "x" else shift
                return states[name[1]] if isinstance(name, tuple) else values[name]

            for index in range(count):
                given = sum(value(name) for name in reads[index]) * constant
                values.append(by_task(stage_of[index])(cell)(params[index], states[index], given))
            return (values, x, constant), [each if keep else x for each, keep in zip(values, kept, strict=True)]

        zeros = jnp.zeros((batch["x"].shape[1], WIDTH))
        (states, _, _), out = jax.lax.scan(turn, ([zeros] * count, zeros, fixed), batch["x"])
        return sum(jnp.mean(each**2) for each in (*states, *out))

    return loss, stage_of


@pytest.mark.family
@pytest.mark.parametrize("seed", range(6))
def test_random_networks_in_scans(seed):
    loss, stage_of = random_network(seed)
    params = [weights(3 * index) for index in range(len(stage_of))]
    _, state = train(loss, stages(2), params, {"x": sequences()["x"]})
    for part in ("params", "mu", "nu"):
        for index, stage in enumerate(stage_of):
            if index:  # the first bias is read by all turns of all layers
                assert {frozenset(ids(leaf)) for leaf in jax.tree.leaves(state[part][index])} == {frozenset({stage})}


def test_scans_in_scans():
    def loss(params, batch):
        def word(states, x):
            def letter(states, x):
                low = by_task(0)(cell)(params["low"], states[0], x)
                return (low, by_task(1)(cell)(params["high"], states[1], low)), None

            return jax.lax.scan(letter, states, jnp.stack([x, -x]))[0], None

        zeros = jnp.zeros((batch["x"].shape[1], WIDTH))
        states, _ = jax.lax.scan(word, (zeros, zeros), batch["x"])
        return sum(jnp.mean(each**2) for each in states)

    params = {"low": weights(1), "high": weights(4)}
    _, state = train(loss, stages(2), params, {"x": sequences()["x"]})
    at = {name: set().union(*map(ids, jax.tree.leaves(tree))) for name, tree in state["params"].items()}
    assert at == {"low": {0}, "high": {1}}
    assert np.isfinite(state["params"]["low"]["bias"]).all()
