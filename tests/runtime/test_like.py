"""`mjit(init, out_like=step)`: each submesh computes its own part of an initialiser."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

import mmruntime as mm
from tests.runtime.helpers import assert_same_bits

pytestmark = pytest.mark.family

X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)


@pytest.fixture(scope="module", autouse=True)
def promotion_of_libraries():
    """Flax and Optax are not written for strict promotion."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        for index in range(2):
            dense = nn.Dense(8, kernel_init=nn.with_partitioning(nn.initializers.normal(0.1), (None, "data")))
            x = mm.task(dense, f"layer_{index}", mesh_slice={"stage": index})(x)
        return (x * x).mean()


class State(NamedTuple):
    params: dict
    opt: tuple
    step: jax.Array


model, optimizer = Net(), optax.adam(1e-2)


def make_state(key) -> State:
    params = model.init(key, X)
    return State(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def train(state: State, x):
    loss, grads = jax.value_and_grad(model.apply)(state.params, x)
    updates, opt = optimizer.update(grads, state.opt)
    return State(optax.apply_updates(state.params, updates), opt, state.step + 1), loss


@pytest.fixture(scope="module")
def step():
    mesh = mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))
    step = mm.mjit(train, mesh=mesh)
    step.plan(jax.eval_shape(make_state, jax.random.key(0)), X)
    return step


@pytest.mark.optimized
def test_results_are_bit_equal_and_at_home(step) -> None:
    state = mm.mjit(make_state, out_like=step)(jax.random.key(0))
    expected = jax.jit(make_state)(jax.random.key(0))
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    assert_same_bits(state, expected)
    wanted, _ = step.abstract_args()
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, wanted)
    for index in range(2):
        kernel = state.opt[0].mu["params"][f"Dense_{index}"]["kernel"].value
        assert kernel.sharding.spec == P(None, "data")
        assert kernel.devices() == set(step.multimesh.devices[index])
    step(state, X)
    assert step.latest_plan.runner.misplaced == 1  # the batch, which was on the host


def test_each_submesh_draws_its_own_random_numbers_only(step) -> None:
    init = mm.mjit(make_state, out_like=step)
    init(jax.random.key(1))
    whole = jax.jit(make_state).lower(jax.random.key(1)).compile()
    flops = [program.cost_analysis().get("flops", 0.0) for program in init.programs]
    assert len(flops) == 3  # the scalars, on all devices, are a part of their own
    assert max(flops) < 0.6 * whole.cost_analysis()["flops"]


def test_one_argument_or_several(step) -> None:
    state, x = mm.mjit(lambda key: (make_state(key), jax.random.normal(key, (4, 8))), out_like=step)(jax.random.key(0))
    assert isinstance(state, State)
    assert x.devices() == set(step.multimesh.devices[0])
    (x,) = mm.mjit(lambda: [jnp.zeros((4, 8))], out_like=step)()
    assert x.devices() == set(step.multimesh.devices[0])
    state = mm.mjit(functools.partial(make_state, key=jax.random.key(3)), out_like=step)()
    assert isinstance(state, State)


def test_inside_another_trace_it_is_the_function_itself(step) -> None:
    init = mm.mjit(make_state, out_like=step)
    assert jax.tree.leaves(jax.eval_shape(init, jax.random.key(0)))[0].shape == (8,)


def test_a_step_without_shapes_says_how_to_get_them() -> None:
    step = mm.mjit(train, mesh=mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data")))
    message = r"train has not been called yet, so the layout of its arguments is not known. Call train.plan\(\*args\)"
    with pytest.raises(RuntimeError, match=message):
        mm.mjit(make_state, out_like=step)(jax.random.key(0))


def test_a_result_that_is_no_argument_lists_what_there_is(step) -> None:
    message = (
        r"mjit: out_like=train has no argument like the result of ones, 1 array \(float32\[3\]\). Return one of its "
        r"arguments, or a tuple of them:\n  argument 0: 14 arrays \(.*\)\n  argument 1: 1 array \(float32\[4, 8\]\)"
    )

    def ones():
        return jnp.ones(3)

    with pytest.raises(ValueError, match=message):
        mm.mjit(ones, out_like=step)()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"mesh": "given", "donate_argnums": 0},
            r"mjit: out_like= allows no other options, got mesh, donate_argnums\.",
            id="other_options",
        ),
        pytest.param({"out_like": train}, r"mjit: out_like must be a step, .* got function", id="not_a_step"),
    ],
)
def test_mistakes(step, options, message) -> None:
    with pytest.raises(TypeError, match=message):
        mm.mjit(make_state, **{"out_like": step, **options})


@pytest.mark.parametrize(
    ("result", "what"),
    [
        pytest.param("adam", r"'adam'\.", id="text"),
        pytest.param({"name": "adam", "x": 1.0}, r"'adam' at \['name'\] of its result\.", id="text_in_a_dictionary"),
        pytest.param((1.0, nn.Dense), r".*Dense.* at \[1\] of its result\.", id="object"),
        pytest.param(jnp.tanh, r".* PjitFunction\.|.*tanh.*\.", id="function"),
    ],
)
def test_a_result_that_is_no_array_is_named_with_its_function(step, result, what) -> None:
    def make():
        return result

    expected = rf"^mjit: make returns ({what}) With out_like= it has to return arrays or numbers, in pytrees: "
    with pytest.raises(TypeError, match=expected):
        mm.mjit(make, out_like=step)()


def test_an_initialiser_without_return_is_asked_for_it(step) -> None:
    def make():
        make_state(jax.random.key(0))

    with pytest.raises(
        TypeError, match=r"^mjit: make returns None\. .* arguments of train, .* is its `return` missing"
    ):
        mm.mjit(make, out_like=step)()


@pytest.mark.parametrize(
    ("result", "shown"), [({}, r"\{\}"), ({"a": None}, r"\{'a': None\}"), ((), r"\(\)"), ([None], r"\[None\]")]
)
def test_a_result_without_arrays_is_shown_with_what_to_return(step, result, shown) -> None:
    def make():
        return result

    expected = (
        rf"^mjit: out_like=train has no argument like the result of make, {shown}, which holds no arrays\. Return one "
        r"of its arguments, or a tuple of them:\n  argument 0: \d+ arrays \(.*\)\n  argument 1: 1 array "
        r"\(float32\[4, 8\]\)(?:\n|$)"
    )
    with pytest.raises(ValueError, match=expected):
        mm.mjit(make, out_like=step)()


def test_optimizer_state_without_arrays_is_made_beside_parameters() -> None:
    """That of plain SGD holds none: it is an argument like others."""
    sgd = optax.sgd(0.1)

    def make(key):
        params = model.init(key, X)
        return params, sgd.init(params)

    def descend(params, opt, x):
        updates, opt = sgd.update(jax.grad(model.apply)(params, x), opt)
        return optax.apply_updates(params, updates), opt

    mesh = mm.MultiMesh(axis_sizes=(2, 4), axis_names=("stage", "data"))
    step = mm.mjit(descend, mesh=mesh)
    key = jax.random.key(0)
    params, opt = jax.jit(make)(key)
    step(params, opt, X)
    made, state = mm.mjit(make, out_like=step)(key)
    assert state == opt
    assert_same_bits(made, params)
    mm.mjit(lambda: sgd.init(params), out_like=step)()


def test_arguments_must_be_arrays(step) -> None:
    with pytest.raises(TypeError, match=r"got 'x' of type str as an argument of make_state; arguments must be arrays"):
        mm.mjit(make_state, out_like=step)("x")
