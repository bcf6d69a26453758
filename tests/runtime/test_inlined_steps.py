"""A step that another program or a transformation makes a part of its own says that the mesh has no effect."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import mmruntime as mm
from tests.runtime.helpers import assert_close, stages

X = jnp.arange(3.0)
SAID = re.escape("runs the step 'step' as a part of its own. So it runs where its arguments are, and not on the mesh")


def make(mesh=None):
    @functools.partial(mm.mjit, mesh=mesh or stages(2))
    def step(p, x):
        for i in range(2):
            p = mm.task(lambda p, x: p * x, task=mm.stage(i, 2, axis="stage"))(p, x)
        return p.sum()

    return step


USES = {
    "jit": lambda step: jax.jit(step)(X, X),
    "compiled ahead": lambda step: jax.jit(step).lower(X, X),
    "a gradient": lambda step: jax.grad(step)(X, X),
    # The program of this one has nothing of the step but its transposed equations.
    "a compiled gradient": lambda step: jax.jit(jax.grad(step))(X, X),
    "derivatives": lambda step: jax.jvp(step, (X, X), (X, X)),
    "two derivatives": lambda step: jax.hessian(step)(X, X),
    "rows": lambda step: jax.vmap(step)(X[:, None], X[:, None]),
    "a loop": lambda step: jax.lax.scan(lambda c, x: (c, step(c, x)), X, X[:, None]),
    "a loop with a counter": lambda step: jax.lax.fori_loop(0, 2, lambda i, c: c + step(c, X), X),
    "a loop with a condition": lambda step: jax.lax.while_loop(lambda c: c[0] < 0, lambda c: c + step(c, X), X),
    "a map": lambda step: jax.lax.map(functools.partial(step, X), X[:, None]),
    "a branch": lambda step: jax.lax.cond(X[0] > 1, step, lambda p, x: p.sum(), X, X),
    "one of several branches": lambda step: jax.lax.switch(0, [step, lambda p, x: p.sum()], X, X),
    "a pullback": lambda step: jax.vjp(step, X, X)[1](jnp.ones(())),
    "a Jacobian": lambda step: jax.jacrev(step)(X, X),
    "a method": lambda step: jax.jit(types.SimpleNamespace(step=step).step)(X, X),
    "a partial": lambda step: jax.grad(functools.partial(step, X))(X),
    "a checkpoint": lambda step: jax.checkpoint(step)(X, X),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_runs_a_step_inside_is_told_once(use):
    step = make()
    with pytest.warns(UserWarning, match=SAID) as found:
        use(step)
    assert [each.filename for each in found] == [__file__]


def test_every_place_is_told():
    step = make()
    with pytest.warns(UserWarning, match=SAID) as found:
        jax.jit(lambda: step(X, X))()
        jax.jit(lambda: step(X, X))()
    assert len({each.lineno for each in found}) == 2


def test_a_step_that_was_called_before_says_it_too():
    step = make()
    step(X, X)
    step(X, X)
    with pytest.warns(UserWarning, match=SAID):
        jax.jit(step)(X, X)


def test_a_step_of_one_program_says_it_too():
    """Its calls are dispatched by JAX, which comes back to Python for tracers alone."""
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("data",))

    @functools.partial(mm.mjit, mesh=mesh)
    def step(p):
        return p * 2

    step(step(X))
    with pytest.warns(UserWarning, match=rf"{SAID} \(data=2\)"):
        jax.jit(step)(X)


def test_a_step_of_objects_says_it_too():
    @functools.partial(mm.mjit, mesh=stages(2), like=nnx.jit)
    def step(model, x):
        model.scale[...] = model.scale[...] * x.sum()

    class Scale(nnx.Module):
        def __init__(self):
            self.scale = nnx.Param(jnp.ones(3))

    with pytest.warns(UserWarning, match=SAID):
        nnx.jit(step)(Scale(), X)


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda step: step(X, X), id="itself"),
        pytest.param(lambda step: jax.eval_shape(step, X, X), id="shapes"),
        pytest.param(lambda step: jax.make_jaxpr(step)(X, X), id="a trace"),
        pytest.param(lambda step: mm.mjit(lambda p: step(p, p) + 1, mesh=stages(2))(X), id="a step"),
        pytest.param(lambda step: mm.mjit(jax.grad(step), mesh=stages(2))(X, X), id="a gradient in a step"),
    ],
)
def test_nothing_is_said_of_a_part_of_a_step_nor_of_shapes(use):
    use(make())


def test_nothing_is_said_of_one_device():
    mesh = mm.MultiMesh(axis_sizes=(1,), axis_names=("stage",))
    jax.jit(mm.mjit(lambda p: p * 2, mesh=mesh))(X)


W = (jnp.ones((3, 3)), jnp.ones((3, 3)))
ROWS = jnp.ones((4, 3))


def update(params, x=ROWS):
    def loss(params, x):
        for i, w in enumerate(params):
            x = mm.task(lambda w, x: jnp.tanh(x @ w), task=mm.stage(i, 2, axis="stage"))(w, x)
        return x.mean()

    gradients = mm.microbatch(jax.grad(loss), count=2, argnum=1, reduce="exact")(params, x)
    return jax.tree.map(jnp.subtract, params, gradients)


# Loops and branches around microbatches of stages: each is one program, which keeps the numbers and has no pipeline.
AROUND = {
    "scan": lambda params: jax.lax.scan(lambda c, _: (update(c), None), params, jnp.arange(2))[0],
    "fori_loop": lambda params: jax.lax.fori_loop(0, 2, lambda i, c: update(c), params),
    "while_loop": lambda params: jax.lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, update(c[1])), (0, params)
    )[1],
    "map": lambda params: jax.lax.map(lambda s: update(jax.tree.map(lambda p: s * p, params)), jnp.ones(2)),
    "cond": lambda params: jax.lax.cond(params[0][0, 0] > 0, update, lambda p: p, params),
    "switch": lambda params: jax.lax.switch(0, [update, lambda p: p], params),
}


@pytest.mark.parametrize("around", AROUND)
def test_what_runs_microbatches_of_stages_inside_is_told_with_its_line(around):
    line = rf"the (scan|while|cond) at {re.escape(__file__)}:\d+.* runs as one program in one place"
    with pytest.warns(UserWarning, match=line):
        found = mm.mjit(AROUND[around], mesh=stages(2))(W)
    expected = jax.jit(AROUND[around])(W)
    assert_close(found, expected, rtol=1e-5)
