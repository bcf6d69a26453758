"""Digests of canonical forms: the same in every process, and another for another program."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from mmruntime._jaxpr.digest import digest
from mmruntime._jaxpr.equal import form

SHAPE = jax.ShapeDtypeStruct((4, 4), jnp.float32)


def mesh(axis="x"):
    return jax.make_mesh((1,), (axis,), (AxisType.Auto,), devices=jax.devices()[:1])


def digest_of(function, *shapes):
    return digest(form(jax.make_jaxpr(function)(*(shapes or (SHAPE,))), mesh()))


def constrained(axis, spec):
    return lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh(axis), spec))


def looped(x):
    return jax.lax.scan(lambda c, _: (jnp.take(c, jnp.arange(4), axis=0) @ c, None), x, None, length=3)[0]


PROGRAMS = {
    "sin": jnp.sin,
    "cos": jnp.cos,
    "twice": lambda x: jnp.sin(jnp.sin(x)),
    "times zero": lambda x: x * 0.0,
    "times minus zero": lambda x: x * -0.0,
    "sum over rows": lambda x: x.sum(0),
    "sum over columns": lambda x: x.sum(1),
    "first operand": lambda x: jnp.sin(x) - x,
    "second operand": lambda x: x - jnp.sin(x),
    "cut over x": constrained("x", P("x")),
    "cut over x, by columns": constrained("x", P(None, "x")),
    "cut over y": constrained("y", P("y")),
    "loop": looped,
    "called": lambda x: jax.jit(jnp.sin)(x) + jax.nn.relu(x),
}


def test_another_program_has_another_digest():
    found = [digest_of(program) for program in PROGRAMS.values()]
    assert None not in found
    assert len(set(found)) == len(PROGRAMS)
    wide = jax.ShapeDtypeStruct((4, 4), jnp.bfloat16)
    weak = jax.ShapeDtypeStruct((4, 4), jnp.float32, weak_type=True)
    assert len({digest_of(jnp.sin), digest_of(jnp.sin, wide), digest_of(jnp.sin, weak)}) == 3


def test_the_same_program_has_the_same_digest_in_every_process():
    source = (
        "from tests.runtime.test_digest import PROGRAMS, digest_of\n"
        "print(*[digest_of(program) for program in PROGRAMS.values()])"
    )
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=300)
    assert run.stdout.split() == [digest_of(program) for program in PROGRAMS.values()]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: jax.pure_callback(np.sin, SHAPE, x),
        lambda x: jnp.asarray(np.eye(4, dtype=np.float32)) @ x,
    ],
    ids=["a function of the host", "an array"],
)
def test_a_program_with_something_opaque_has_none(program):
    assert digest_of(program) is None
