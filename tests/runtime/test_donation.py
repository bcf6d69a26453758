"""What happens to arguments: donated, static, handed through, fed back, read by callbacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import (
    assert_close,
    batches,
    chain,
    ids,
    layer,
    on,
    sgd,
    squares,
    stages,
    train,
    weights,
)

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.optimized]


def test_donation_of_one_argument():
    step = mm.mjit(lambda x: mm.task(lambda x: x * 2, task=on(0))(x), mesh=stages(2), donate_argnums=0)
    mesh = stages(2).slice(stage=0)
    x = jax.device_put(np.arange(4.0), NamedSharding(mesh, P()))
    assert_close(step(x), jnp.arange(4.0) * 2, 0)
    assert x.is_deleted()


def test_what_an_earlier_call_was_given_is_refused_by_name():
    """JAX 0.10 ends the process where it lies on several devices."""

    def fun(state, x):
        state = {"w": [mm.task(lambda w, x: w * x, task=on(k))(w, x) for k, w in enumerate(state["w"])]}
        return state, state["w"][1].sum()

    step = mm.mjit(fun, mesh=stages(2, model=2), donate_argnums=0)
    first, _ = step({"w": [np.ones((4, 4)), np.ones((4, 4))]}, 2.0)
    second, total = step(first, 2.0)
    compiled = step.lower(second, 2.0).compile()
    for call in (step, compiled, step.timeline, step.measure):
        with pytest.raises(
            RuntimeError, match=r"state\['w'\]\[0\] of fun, of shape \(4, 4\) and 1 more, has been deleted"
        ):
            call(first, 2.0)
    with pytest.raises(RuntimeError, match=r"x of fun, of shape .*donate_argnums, donate_argnames"):
        gone = jnp.float64(2)
        gone.delete()
        step(second, gone)
    # Nothing was done with the rest.
    assert float(total) == 64
    assert float(step(second, 2.0)[1]) == 128


@pytest.mark.parametrize("count", [1, 2], ids=["one program", "two stages"])
def test_a_deleted_array_that_nothing_reads_is_taken_as_by_jit(count):
    def fun(x, unread, through, number):
        if count == 1:
            return 2 * x, through
        return mm.task(lambda x: 2 * x, task=on(1))(mm.task(lambda x: 1 * x, task=on(0))(x)), through

    def gone(*shape):
        array = jnp.ones(shape)
        array.delete()
        return array

    x, step = jnp.arange(4.0), mm.mjit(fun, mesh=stages(count, model=2))
    for _ in range(3):
        found, _ = step(x, gone(3), x, gone())
        assert_close(found, 2 * x, 0)
    assert_close(step.lower(x, x, x, 2.0).compile()(x, gone(4), x, gone())[0], 2 * x, 0)
    with pytest.raises(RuntimeError, match=r"through of fun, of shape \(4,\), has been deleted"):
        step(x, x, gone(4), 2.0)


def test_donation_of_several_arguments_with_an_output_that_is_an_input():
    def fun(a, b, c):
        first = mm.task(lambda a, b: a + b, task=on(0))(a, b)
        return first, b, mm.task(lambda c, f: c * f, task=on(1))(c, first), a

    step = mm.mjit(fun, mesh=stages(2), donate_argnums=(0, 2))
    values = [np.arange(4.0) + k for k in range(3)]
    home = [NamedSharding(stages(2).slice(stage=stage), P()) for stage in (0, 0, 1)]
    a, b, c = jax.device_put(values, home)
    found = step(a, b, c)
    assert_close(found, jax.jit(fun)(*values), 0)
    # `a` is handed back and `b` was not donated.
    assert not b.is_deleted()
    assert_close(b, jnp.asarray(values[1]), 0)
    assert c.is_deleted()


@pytest.mark.parametrize("donated", [(), (0,), (0, 1)], ids=str)
def test_donation_of_sharded_arguments(donated):
    def fun(x, y):
        return mm.task(lambda x, y: (x + y, x - y), task=on(0))(x, y), mm.task(jnp.cos, task=on(1))(x)

    mesh = stages(2, data=2)
    layout = NamedSharding(mesh.slice(stage=0), P("data"))
    step = mm.mjit(fun, mesh=mesh, donate_argnums=donated)
    expected = jax.jit(fun)(np.arange(4.0), np.ones(4))
    for _ in range(2):
        x, y = jax.device_put((np.arange(4.0), np.ones(4)), layout)
        assert_close(step(x, y), expected, 1e-12)
        for position, array in enumerate((x, y)):
            if position not in donated:
                assert_close(array, jnp.asarray((np.arange(4.0), np.ones(4))[position]), 0)


def test_three_traced_steps_with_donation_in_closed_form():
    """y = a * b * x with sgd on the sum: every step is known by hand."""

    def step(params, x):
        def loss(params):
            hidden = mm.task(lambda a, x: a * x, task=on(0))(params["a"], x)
            return mm.task(lambda b, h: (b * h).sum(), task=on(1))(params["b"], hidden)

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads, 0.1), value

    compiled = mm.mjit(step, mesh=stages(2), donate_argnums=0)
    x = np.arange(3.0)
    a, b = np.full(3, 2.0), np.full(3, 3.0)
    params = {"a": jnp.asarray(a), "b": jnp.asarray(b)}
    for _ in range(3):
        params, value = compiled(params, x)
        assert abs(float(value) - float((a * b * x).sum())) < 1e-12
        a, b = a - 0.1 * b * x, b - 0.1 * a * x
        assert_close(params, {"a": jnp.asarray(a), "b": jnp.asarray(b)}, 1e-12)
    assert [ids(params["a"]), ids(params["b"])] == [{0}, {1}]


def test_state_whose_entries_share_an_array_can_be_donated():
    """A step that resets an average to the parameters returns one value several times."""

    def step(state, x):
        w = mm.task(lambda a, b, c, x: a - 0.1 * x + 0.1 * b - 0.2 * c, task=on(0))(
            state["w"], state["fast"], state["slow"], x
        )
        v = mm.task(lambda v, w: v - 0.1 * w, task=on(1))(state["v"], w)
        return {"w": w, "fast": w, "slow": w, "v": v, "start": state["start"], "zero": jnp.zeros(4)}, x.sum()

    state = {name: np.ones(4) for name in ("w", "fast", "slow", "v", "start", "zero")}
    train(step, stages(2), state, [np.arange(4.0)] * 3, donate_argnums=0)


def test_input_that_is_handed_through_is_the_callers_and_the_result_another_array():
    def fun(state, x):
        y = mm.task(lambda a, x: a + x, task=on(0))(state["a"], x)
        return {"a": x, "b": mm.task(lambda b, y: b + y, task=on(1))(state["b"], y)}, x

    step = mm.mjit(fun, mesh=stages(2), donate_argnums=0)
    x = jax.device_put(np.arange(4.0), NamedSharding(stages(2).slice(stage=0), P()))
    state = {"a": np.ones(4), "b": np.ones(4)}
    for _ in range(3):
        state, same_x = step(state, x)
    assert not x.is_deleted()
    assert not same_x.is_deleted()
    # b grows by a + x, where a is 1 at first and x afterwards.
    assert_close(state["b"], jnp.asarray(2 + 5 * np.arange(4.0)), 1e-12)
    assert_close(x, jnp.arange(4.0), 0)


def test_constants_and_literals_given_back_survive_donation():
    constant = jnp.arange(4.0)

    def step(state, x):
        used = mm.task(lambda a, c, x: a * c + x, task=on(0))(state["a"], state["c"] + constant, x)
        more = mm.task(lambda b, x: b + x, task=on(1))(state["b"], used)
        return {"a": constant, "b": more, "c": jnp.zeros(4), "n": 0.0 * 0}, used

    state = {"a": np.ones(4), "b": np.ones(4), "c": np.ones(4), "n": 1.0}
    train(step, stages(2), state, [np.arange(4.0)] * 4, donate_argnums=0)
    assert_close(constant, jnp.arange(4.0), 0)


def test_donation_by_name_and_static_arguments():
    def fun(state, x, *, times, extra):
        for _ in range(times):
            state = mm.task(lambda s, x: s + x, task=on(0))(state, x)
        return state, mm.task(lambda s, e: s * e, task=on(1))(state, extra)

    step = mm.mjit(fun, mesh=stages(2), donate_argnames="state", static_argnames="times")
    for times in (1, 3, 1):
        state = jax.device_put(np.zeros(3), NamedSharding(stages(2).slice(stage=0), P()))
        found = step(state, np.ones(3), times=times, extra=np.full(3, 2.0))
        assert_close(found, (jnp.full(3, float(times)), jnp.full(3, 2.0 * times)), 0)
    assert step.num_plans == 2


def test_state_may_start_as_numbers():
    def step(state, x):
        w = mm.task(lambda w, r, x: w - r * x, task=on(1))(state["w"], state["rate"], x)
        return {"n": state["n"] + 1, "rate": state["rate"] * 0.5, "w": w}, w.sum()

    train(step, stages(2), {"n": 0, "rate": 1.0, "w": np.ones(4)}, [np.arange(4.0)] * 3)


def test_state_passed_by_keyword_stays_in_place():
    def step(*, state, batch):
        value, grads = mm.microbatch(
            jax.value_and_grad(lambda p, b: squares(chain(p, b["x"]), b["y"])), argnum=1, count=2
        )(state, batch)
        return sgd(state, grads), value

    compiled = mm.mjit(step, mesh=stages(2), donate_argnames="state")
    state = weights(2)
    for batch in batches(3):
        state, _ = compiled(state=state, batch=batch)
    assert compiled.latest_plan.runner.misplaced == 2
    assert compiled.num_plans == 1


def test_callbacks_inside_and_outside_of_tasks():
    seen = []

    def note(x):
        jax.debug.callback(lambda value: seen.append(float(value)), x.sum())

    def noisy(w, x):
        note(x)
        return layer(w, x)

    def loss(params, batch):
        x = batch["x"]
        for index, w in enumerate(params):
            x = mm.task(noisy, task=on(index))(w, x)
        note(x)
        return squares(x, batch["y"])

    def step(params, batch):
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=4, schedule="1f1b")(params, batch)
        note(value)
        return sgd(params, grads), value

    noted = []
    for compiled in (mm.mjit(step, mesh=stages(2)), jax.jit(step)):
        seen.clear()
        compiled(weights(2), batches(1)[0])
        jax.effects_barrier()
        noted.append(sorted(seen))
    assert len(noted[0]) == 13
    # The thread that calls back may not know that this one computes in double precision.
    np.testing.assert_allclose(noted[0], noted[1], rtol=1e-6)
