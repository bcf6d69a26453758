"""A random key for each example: cut with the batch, so that microbatches draw what the whole batch draws."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from tests.fixture_files import source_files
from tests.runtime.helpers import assert_close, chain, normal, same, stages, weights

pytestmark = pytest.mark.usefixtures("double")

HEAD = """
import jax
import jax.numpy as jnp

# mm: mesh(stage=2)


def model(w, x, key):
    x = x * jax.random.uniform(key, x.shape, x.dtype)
    for a in w:  # mm: stages
        x = jnp.tanh(x @ a)
    return x


def loss_fn(w, x, keys):
    return jnp.mean(jax.vmap(model, in_axes=(None, 0, 0))(w, x, keys) ** 2)


"""
# With the hints that the tool advises; `tests/test_advice.py` follows its words.
STEPS = {
    "passed": """
@jax.jit  # mm: mjit
def step(w, x, key):
    keys = jax.random.split(key, len(x))
    return jax.value_and_grad(loss_fn)(w, x, keys)  # mm: microbatch(size=2, argnum=(1, 2))
""",
    "closed over": """
@jax.jit  # mm: mjit
def step(w, x, key):
    keys = jax.random.split(key, x.shape[0])

    def loss(w):
        return loss_fn(w, x, keys)

    return jax.value_and_grad(loss)(w)  # mm: microbatch(size=2, argnum=("x", "keys"))
""",
    "folded": """
@jax.jit  # mm: mjit
def step(w, x, key):
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(len(x)))
    return jax.value_and_grad(loss_fn)(w, x, keys)  # mm: microbatch(size=2, argnum=(1, 2))
""",
}


@pytest.mark.family
@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
@pytest.mark.parametrize("name", STEPS)
def test_microbatches_draw_what_the_whole_batch_draws(name, make) -> None:
    text = HEAD + STEPS[name]
    (result,) = rewrite_project(source_files({"program.py": text.encode()}), Registry())
    assert (result.refusals, result.errors) == ((), ())
    found = []
    for source in (text, result.result.decode()):
        module = types.ModuleType("program")
        exec(compile(source, "program.py", "exec"), module.__dict__)
        found.append(module.step([np.eye(4), 2 * np.eye(4)], normal(8, 4), make(3)))
    assert_close(found[1], found[0], rtol=1e-12)
    assert [leaf.device.id for leaf in found[1][1]] == [0, 1]


def step_of(loss, impl):
    """A step with a key for each example, of a generator."""

    def step(w, x):
        keys = jax.random.split(jax.random.key(3, impl=impl), len(x))
        return mm.microbatch(jax.value_and_grad(loss), size=2, argnum=(1, 2), reduce="exact")(w, x, keys)

    return step


@pytest.mark.family
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize(
    "draw", [jax.random.uniform, jax.random.permutation, jax.random.gamma], ids=lambda f: f.__name__
)
def test_generators_that_take_the_first_key_of_a_batch_draw_for_the_whole_batch(impl, draw) -> None:
    """Draws that the keys alone decide are hoisted out of the microbatches."""

    def loss(w, x, keys):
        scale = jax.vmap(lambda key: draw(key, jnp.ones(4)) if draw is not jax.random.uniform else draw(key, (4,)))(
            keys
        )
        return jnp.mean((chain(w, x) * scale) ** 2)

    same(step_of(loss, impl), stages(2), weights(2), normal(8, 4))


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_draws_by_such_a_generator_that_parameters_decide_are_refused(impl) -> None:
    def loss(w, x, keys):
        return jnp.mean(jax.vmap(jax.random.gamma)(keys, 1 + chain(w, x)[:, 0] ** 2))

    step = mm.mjit(step_of(loss, impl), mesh=stages(2))
    with pytest.raises(ValueError, match=f"a key for each example by '{impl}', which takes the first key of a batch"):
        step(weights(2), normal(8, 4))
