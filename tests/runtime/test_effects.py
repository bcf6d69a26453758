"""Callbacks and refs: run once, where and in the order that `jax.jit` runs them, or refused with the line."""

import dataclasses
import functools
import re
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.experimental import io_callback
from jax.sharding import PartitionSpec

import mmruntime as mm
from tests.runtime.helpers import assert_close, normal, on, stages

pytestmark = pytest.mark.family

NUMBER = jax.ShapeDtypeStruct((), jnp.float32)


class Log:
    """A host that remembers its calls, and answers each with how many of its kind there were."""

    def __init__(self):
        self.calls = []

    def add(self, label, *values):
        self.calls.append((label, *[round(float(np.sum(value)), 3) for value in values]))
        ordered = "ordered" in label
        return np.float32(sum(("ordered" in call[0]) is ordered for call in self.calls))

    def tell(self, label, *values, ordered=False):
        """A call for its effect alone."""
        io_callback(lambda *v: (self.add(label, *v), None)[1], None, *values, ordered=ordered)

    def ask(self, label, *values, ordered=False):
        """A call whose answer depends on the calls before it."""
        return io_callback(functools.partial(self.add, label), NUMBER, *values, ordered=ordered)

    def take(self):
        jax.effects_barrier()
        calls, self.calls = self.calls, []
        return calls


def run(fun, log, *args):
    """The result, the ordered calls in order, and how often there was each other one."""
    result = jax.block_until_ready(fun(*args))
    calls = log.take()
    return result, [call for call in calls if "ordered" in call[0]], Counter(calls)


def agree(fun, log, *args, mesh=None):
    """Run under plain `jax.jit` and on a mesh: the same values, calls and order."""
    expected, in_order, counted = run(jax.jit(fun), log, *args)
    assert counted
    found, found_in_order, found_counted = run(mm.mjit(fun, mesh=mesh or stages(2)), log, *args)
    assert_close(found, expected, 1e-5)
    assert found_in_order == in_order
    assert found_counted == counted


def laid_out(count, model):
    """Stages of several devices, over which the logical name "rows" cuts arrays."""
    return mm.MultiMesh(axis_sizes=(count, model), axis_names=("stage", "model"), logical_axes=[("rows", "model")])


def two_readers(log, ordered, task_mark=""):
    """Two stages read what one call outside of them gives."""

    def step(x):
        r = log.ask(f"shared{task_mark}", ordered=ordered)
        a = mm.task(lambda x, r: jnp.sin(x) * r, task=on(0))(x, r)
        return mm.task(lambda a, r: jnp.cos(a) + r, task=on(1))(a, r)

    return step


@pytest.mark.parametrize("axes", [{}, {"model": 4}], ids=["one device", "four devices"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_call_that_two_stages_read_runs_once(axes, ordered, recompute):
    log = Log()
    with mm.enable_recomputation(recompute):
        agree(two_readers(log, ordered, " ordered" * ordered), log, normal(8), mesh=stages(2, **axes))


def test_a_pure_callback_that_two_stages_read_runs_once():
    log = Log()

    def step(x):
        r = jax.pure_callback(lambda v: np.asarray(v) * log.add("pure"), jax.typeof(x), x)
        a = mm.task(lambda x, r: x + r, task=on(0))(x, r)
        return mm.task(lambda a, r: a * r, task=on(1))(a, r)

    agree(step, log, normal(8, dtype=np.float32))


def test_ordered_calls_of_several_stages_keep_the_order_of_the_program():
    log = Log()

    def step(x):
        def told(label):
            return lambda x: x * log.ask(f"{label} ordered", x, ordered=True)

        late = mm.task(told("first, on the last stage"), task=on(3))(x)
        early = mm.task(told("second, on the first stage"), task=on(0))(x)
        log.tell("outside ordered", early, ordered=True)
        again = mm.task(told("third"), task=on(2))(x) + mm.task(told("fourth"), task=on(1, "other"))(x)
        return late, early, again

    agree(step, log, normal(8, dtype=np.float32), mesh=stages(4))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "dualpipe"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("where", ["outside", "first", "last", "both"])
def test_calls_in_a_microbatch_loop(schedule, ordered, where):
    log = Log()

    def loss(params, x):
        for index, w in enumerate(params):
            told = where == "both" or where == ("first", "last")[index]

            def piece(w, x, told=told, index=index):
                y = jnp.tanh(x * w)
                if told:
                    log.tell(f"stage {index}" + " ordered" * ordered, jax.lax.stop_gradient(y), ordered=ordered)
                return y

            x = mm.task(piece, task=on(index))(w, x)
        r = log.ask("outside" + " ordered" * ordered, ordered=ordered) if where == "outside" else 1
        # Unordered calls of microbatches that enter at both ends are answered in another order.
        return (x**2).sum() * (jnp.minimum(r, 1) if schedule == "dualpipe" else r)

    def step(params, x):
        return mm.microbatch(jax.value_and_grad(loss), argnum=1, count=4, schedule=schedule)(params, x)

    args = [np.float32(0.5), np.float32(2)], normal(8, dtype=np.float32)
    # Two bodies, each with half of the microbatches; or two stages, which work on several microbatches at a time.
    if ordered and (schedule == "dualpipe" or where == "both"):
        line = rf"{Path(__file__).name}:\d+:\d+ \(\w+"
        with pytest.raises(ValueError, match=f"^microbatch: the ordered effect at .*{line}.* not run in the order"):
            mm.mjit(step, mesh=stages(2))(*args)
        assert log.take() == []
    else:
        agree(step, log, *args)


@pytest.mark.parametrize("on_stages", [False, True])
def test_ordered_calls_of_programs_whose_layouts_are_propagated(on_stages):
    """JAX gives programs with ordered effects an argument and a result more, a token for each kind of effect."""
    log = Log()

    def piece(x):
        log.tell("ordered, sharded", x, ordered=True)
        return mm.with_sharding_constraint(jnp.sin(x), PartitionSpec("rows"))

    def step(x):
        x = mm.task(piece, task=on(0))(x) if on_stages else piece(x)
        x = mm.task(jnp.cos, task=on(1))(x) if on_stages else jnp.cos(x)
        log.tell("ordered, outside", x, ordered=True)
        return x

    agree(step, log, normal(8, dtype=np.float32), mesh=laid_out(2, 4))


def test_prints_that_jax_cannot_order_over_several_devices_are_refused():
    def step(x):
        y = mm.task(jnp.sin, task=on(0))(x)
        jax.debug.print("{}", y.sum(), ordered=True)
        return mm.task(jnp.cos, task=on(1))(y)

    with pytest.raises(ValueError, match=rf"ordered effect at .*{Path(__file__).name}:\d+.* would run on 4 devices"):
        mm.mjit(step, mesh=stages(2, model=4))(normal(8))
    assert_close(mm.mjit(step, mesh=stages(2))(normal(8)), jax.jit(step)(normal(8)), 1e-5)


# Refs.


def over_stages(x):
    ref = jax.new_ref(x)
    for index, fun in enumerate((jnp.sin, jnp.cos)):
        ref[...] = mm.task(fun, task=on(index))(ref[...])
        ref[index] += 1
    return ref[...]


def beside_tasks(x):
    ref = jax.new_ref(jnp.zeros(8))
    ref[...] = x * 10
    y = mm.task(jnp.cos, task=on(1))(mm.task(jnp.sin, task=on(0))(x))
    ref[...] = ref[...] + 1
    return y, ref[...]


def passed_to_tasks(x):
    ref = jax.new_ref(x)

    def write(ref):
        ref[...] = jnp.sin(ref[...])
        return ref[0]

    first = mm.task(write, task=on(0))(ref)

    def body(c, _):
        ref[...] += c
        return c + ref[0], None

    last, _ = jax.lax.scan(body, first, None, length=3)
    jax.lax.cond(last > 0, lambda: ref.__setitem__(0, 7.0), lambda: None)
    return mm.task(lambda ref: ref[...] * 2, task=on(1))(ref), last, jax.freeze(ref)


def in_a_nested_jit(x):
    @jax.jit
    def inner(x):
        ref = jax.new_ref(x)
        ref[...] = mm.task(jnp.sin, task=on(0))(ref[...])
        return mm.task(jnp.cos, task=on(1))(ref[...])

    return inner(x)


def in_the_body_of_a_loop(x):
    def body(x):
        ref = jax.new_ref(x)
        ref[...] = mm.task(jnp.sin, task=on(0))(ref[...])
        ref[0] = 4.0
        ref[...] = mm.task(jnp.cos, task=on(1))(ref[...])
        return ref[...].sum()

    return mm.microbatch(body, count=2)(x)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("fun", [over_stages, beside_tasks, passed_to_tasks, in_a_nested_jit, in_the_body_of_a_loop])
def test_refs_made_in_a_step_are_exact_on_any_stages(fun, fast):
    x = normal(8, dtype=np.float32)
    with mm.enable_fast_path(fast):
        assert_close(mm.mjit(fun, mesh=stages(2))(x), jax.jit(fun)(x), 1e-6)


def test_refs_from_outside_are_refused_with_the_line():
    outer = jax.new_ref(jnp.zeros(8))

    def uses_outer(x):
        outer[...] += x
        return mm.task(jnp.sin, task=on(0))(x)

    def loop_uses(x):
        count = jax.new_ref(0.0)

        def body(x):
            count[...] += 1
            return mm.task(jnp.sum, task=on(0))(x)

        return mm.microbatch(body, count=2)(x), count[...]

    here = rf"at .*{Path(__file__).name}:\d+"
    with pytest.raises(ValueError, match=rf"jax\.Ref {here}.* made outside of it.*jax\.new_ref"):
        mm.mjit(uses_outer, mesh=stages(2))(normal(8))
    with pytest.raises(ValueError, match=rf"jax\.Ref {here}.* outside of the loop"):
        mm.mjit(loop_uses, mesh=stages(2))(normal(8))
    with pytest.raises(TypeError, match=r"got a jax\.Ref as an argument.* Pass its value, ref\[\.\.\.\]"):
        mm.mjit(lambda ref: ref[...], mesh=stages(2))(outer)
    assert float(outer[...].sum()) == 0


# Initialisers.


@pytest.fixture
def step():
    def fun(params, x):
        for index, w in enumerate(params):
            x = mm.task(jnp.dot, task=on(index))(x, w)
        return params, x.sum()

    compiled = mm.mjit(fun, mesh=stages(2))
    compiled.plan([jnp.ones((4, 4))] * 2, jnp.ones((4, 4)))
    return compiled


def test_an_initialiser_runs_each_call_once(step):
    log, shape = Log(), jax.ShapeDtypeStruct((4, 4), jnp.float32)

    def init(seed):
        log.tell("seed", seed)
        load = functools.partial(io_callback, lambda: np.full((4, 4), log.add("load")), shape)
        return [load(), jax.jit(load)()]

    params = mm.mjit(init, out_like=step)(jnp.float32(3))
    assert Counter(log.take()) == {("seed", 3.0): 1, ("load",): 2}
    assert [len(w.devices()) for w in params] == [1, 1]
    assert params[0].devices() != params[1].devices()


def test_an_initialiser_that_would_repeat_or_reorder_a_call_is_refused(step):
    log, shape = Log(), jax.ShapeDtypeStruct((4, 4), jnp.float32)

    def shared():
        w = io_callback(lambda: np.full((4, 4), log.add("load")), shape)
        return [w, w]

    def ordered():
        return [io_callback(lambda: np.full((4, 4), log.add("load")), shape, ordered=True) for _ in range(2)]

    here = rf"at .*{Path(__file__).name}:\d+"
    with pytest.raises(ValueError, match=rf"shared calls the host {here}.* 2 times instead of once.* as an argument"):
        mm.mjit(shared, out_like=step)()
    with pytest.raises(ValueError, match=rf"ordered effect of ordered {here}.* another submesh"):
        mm.mjit(ordered, out_like=step)()
    assert log.take() == []


# Random programs.


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of the model on a stage or outside of all tasks, with an effect in it or behind it."""

    stage: int | None
    effect: str
    inside: bool


EFFECTS = ("none", "tell", "ask", "tell ordered", "ask ordered", "debug", "pure", "write", "own ref")


@st.composite
def programs(draw):
    pieces = tuple(
        Piece(draw(st.sampled_from((0, 1, 2, 3, None))), draw(st.sampled_from(EFFECTS)), draw(st.booleans()))
        for _ in range(draw(st.integers(1, 5)))
    )
    schedule = draw(st.sampled_from(("gpipe", "1f1b", "zb-h1")))
    # With two devices for each stage, layouts are propagated.
    return pieces, draw(st.sampled_from((None, 2, 4))), schedule, draw(st.booleans())


def effect(kind, label, x, log, ref):
    """One effect that reads an activation; the activation after it."""
    label, ordered = f"{label} {kind}", "ordered" in kind
    value = jax.lax.stop_gradient(x)
    if kind.startswith("tell"):
        log.tell(label, value, ordered=ordered)
    elif kind.startswith("ask"):
        answer = log.ask(label, value, ordered=ordered)
        # The numbers of unordered calls depend on their order, which is free.
        return x * answer if ordered else x
    elif kind == "debug":
        jax.debug.callback(lambda v: (log.add(label, v), None)[1], value)
    elif kind == "pure":
        return x * jax.pure_callback(lambda v: np.float32(1 + 0 * log.add(label, v)), NUMBER, value)
    elif kind == "write" and ref is not None:
        ref[...] += value.sum()
        return x * ref[...]
    elif kind == "own ref":
        own = jax.new_ref(value)
        own[0] = 2.0
        return x * own[...].sum()
    return x


def random_step(program, log):
    pieces, count, schedule, wide = program

    def loss(params, x):
        # Around a microbatch loop, iterations on several submeshes would write it.
        ref = jax.new_ref(jnp.float32(1))
        for index, piece in enumerate(pieces):

            def body(w, x, piece=piece, index=index):
                y = jnp.tanh(x * w)
                y = mm.with_sharding_constraint(y, PartitionSpec("rows")) if wide else y
                return effect(piece.effect, index, y, log, None) if piece.inside else y

            fun = body if piece.stage is None else mm.task(body, f"piece{index}", mesh_slice={"stage": piece.stage})
            x = fun(params[index], x)
            if not piece.inside:
                x = effect(piece.effect, index, x, log, ref)
        return jnp.sum(x**2)

    def step(params, x):
        fun = loss if count is None else mm.microbatch(loss, argnum=1, count=count, schedule=schedule)
        return fun(params, x)

    return step


def check_random(program):
    log = Log()
    step = random_step(program, log)
    args = [np.float32(0.5 + index) for index in range(len(program[0]))], normal(8, dtype=np.float32)
    expected, in_order, counted = run(jax.jit(step), log, *args)
    compiled = mm.mjit(step, mesh=laid_out(4, 2) if program[3] else stages(4))
    try:
        found, found_in_order, found_counted = run(compiled, log, *args)
    except ValueError as error:
        assert re.search(rf"the ordered effect at .*{Path(__file__).name}:\d+", str(error)), error
        assert log.take() == [], "refused before anything runs"
        ordered = [piece for piece in program[0] if "ordered" in piece.effect]
        assert len({piece.stage for piece in ordered}) > 1 or len(ordered) > 1, "one effect is in order by itself"
        assert program[1] is not None, "outside of loops every order can be kept"
        return
    assert_close(found, expected, 1e-5)
    assert found_in_order == in_order
    assert found_counted == counted


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_effects(program):
    check_random(program)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_four_hundred_random_effects(program):
    check_random(program)
