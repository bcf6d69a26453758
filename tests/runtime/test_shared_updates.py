"""What updates of several stages have in common is compiled once, and computes the same."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from mmruntime._execution.compile import _form
from mmruntime._partition.programs import shared_updates
from tests.runtime.helpers import adam, adam_state, assert_close, normal, on, sample, stages

pytestmark = [pytest.mark.usefixtures("free_promotion"), pytest.mark.optimized]

WIDTH = 8
WORDS = 12


def parameters(depths, *, first="embed", last="head"):
    """Layers for each stage, and what the first and the last have as well; their names sort before or behind layers."""
    rng = iter(range(1, 100))

    def layer():
        return {"w": normal(WIDTH, WIDTH, seed=next(rng)), "b": normal(WIDTH, seed=next(rng))}

    params = [{"layers": [layer() for _ in range(depth)]} for depth in depths]
    params[0][first] = normal(WORDS, WIDTH, seed=50)
    # Of the shape of a layer's, so that the two can be taken for each other.
    params[-1][last] = normal(WIDTH, WIDTH, seed=51)
    return params


def batch(examples=8):
    rng = np.random.default_rng(0)
    return {"x": rng.integers(0, WORDS, (examples, 3)), "y": normal(examples, 3, WIDTH)}


def stage(params, x):
    for name in set(params) & {"embed", "zone"}:
        x = params[name][x]
    for layer in params["layers"]:
        x = x + jnp.tanh(x @ layer["w"] + layer["b"])
    for name in set(params) & {"head", "out"}:
        x = x @ params[name]
    return x


def loss(params, batch):
    x = batch["x"]
    for index, each in enumerate(params):
        x = mm.task(stage, task=on(index))(each, x)
    return jnp.mean((x - batch["y"]) ** 2)


def gradients(params, batch, schedule="1f1b"):
    return mm.microbatch(jax.value_and_grad(loss), argnum=1, count=4, schedule=schedule, reduce="mean")(params, batch)


def by_hand(state, batch):
    value, grads = gradients(state["params"], batch)
    return adam(state, grads), value


def with_optax(optimizer):
    def step(state, batch):
        value, grads = gradients(state["params"], batch)
        updates, inner = optimizer.update(grads, state["inner"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "inner": inner}, value

    return step


def updates(step):
    """The programs behind the loop, by submesh."""
    plan = step.latest_plan
    found = {}
    for spec in plan.compiled.programs:
        if spec.segment is not None and spec.segment.region == len(plan.step.regions) - 1:
            found.setdefault(spec.submesh, []).append(spec)
    return found


def by_form(step):
    """The programs behind the loop, those together that are compiled once."""
    plan, found = step.latest_plan, {}
    for spec in (spec for row in updates(step).values() for spec in row):
        form = _form(spec, plan.shardings, plan.compiled.donated[spec], plan.shardings.form)
        found.setdefault(form, []).append(spec)
    return list(found.values())


def forms(step):
    """How many different programs behind the loop there are to compile."""
    return len(by_form(step))


def both(monkeypatch, fun, mesh, state, batch, **options):
    """The step with shared updates, and with those of each stage in one program; results differ by rounding alone."""
    found = []
    for fewest in (1, 1 << 30):
        monkeypatch.setattr(shared_updates, "_FEWEST", fewest)
        step = mm.mjit(fun, mesh=mesh, **options)
        first = step(jax.tree.map(jnp.array, state), batch)
        assert_close(first, jax.jit(fun)(state, batch), 1e-4)
        found.append((step, [first[1], *step(first[0], batch)]))
    (shared, results), (whole, others) = found
    # XLA joins products and sums to one operation in other places where a program has other parts.
    assert_close(results, others, 1e-5)
    return shared, whole


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("names", [("embed", "head"), ("zone", "out"), ("embed", "out"), ("zone", "head")])
def test_layers_of_all_stages_are_updated_by_one_program(monkeypatch, devices, names):
    params = parameters([1, 1, 1, 1], first=names[0], last=names[1])
    shared, whole = both(monkeypatch, by_hand, stages(4, data=devices), adam_state(params), batch())
    # That of the layers, of the embedding, and of the head, with the mean of the losses.
    assert forms(shared) == forms(whole) == 3
    assert [len(updates(shared)[where]) for where in range(4)] == [2, 1, 1, 2]
    sizes = [len(spec.segment.ops) for row in updates(shared).values() for spec in row]
    assert sum(sorted(sizes)[:2]) < max(sizes)


@pytest.mark.parametrize("devices", [1, 2])
def test_two_stages_that_differ_share_their_layers(monkeypatch, devices):
    shared, whole = both(monkeypatch, by_hand, stages(2, data=devices), adam_state(parameters([2, 2])), batch())
    assert (forms(shared), forms(whole)) == (3, 2)


def test_stages_of_unequal_depth_share_what_the_shallowest_has(monkeypatch):
    shared, _ = both(monkeypatch, by_hand, stages(4), adam_state(parameters([3, 2, 2, 1])), batch())
    assert [spec.submesh for spec in max(by_form(shared), key=len)] == [0, 1, 2, 3]


OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adamw": optax.adamw(1e-2),
    "clipped": optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)),
    "warmed up": optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)),
    "masked": optax.adamw(1e-2, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params)),
    "noisy": optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.adam(1e-2)),
    "lamb": optax.lamb(1e-2),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=4),
    "finite": optax.apply_if_finite(optax.adam(1e-2), 3),
    "every second": optax.MultiSteps(optax.adam(1e-2), 2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_computes_the_same(monkeypatch, name):
    params = parameters([1, 2, 1])
    state = {"params": params, "inner": OPTIMIZERS[name].init(params)}
    both(monkeypatch, with_optax(OPTIMIZERS[name]), stages(3), state, batch())


def test_donated_state_is_overwritten_by_both_programs(monkeypatch):
    state = adam_state(parameters([1, 1, 1]))
    shared, _ = both(monkeypatch, by_hand, stages(3), state, batch(), donate_argnums=0)
    donated = shared.latest_plan.compiled.donated
    assert all(donated[spec] for row in updates(shared).values() for spec in row if len(spec.segment.ops) > 4)


def test_parameters_cut_over_devices_stay_so(monkeypatch):
    def sharded(state, batch):
        params = [
            each
            | {
                "layers": [
                    {"w": mm.with_sharding_constraint(p["w"], P(None, "data")), "b": p["b"]} for p in each["layers"]
                ]
            }
            for each in state["params"]
        ]
        value, grads = gradients(params, batch)
        return adam(state, grads), value

    shared, _ = both(monkeypatch, sharded, stages(3, data=2), adam_state(parameters([1, 1, 1])), batch())
    assert forms(shared) == 3


@pytest.mark.slow
@sample(6)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=4))
def test_any_depths_compute_the_same(depths):
    with pytest.MonkeyPatch.context() as patch:
        both(patch, by_hand, stages(len(depths)), adam_state(parameters(depths)), batch())


def test_programs_too_long_to_compare_are_left_as_they_are(monkeypatch):
    monkeypatch.setattr(shared_updates, "_MOST_STEPS", 0)
    step = mm.mjit(by_hand, mesh=stages(2))
    step(adam_state(parameters([1, 1])), batch())
    assert [len(row) for row in updates(step).values()] == [1, 1]
