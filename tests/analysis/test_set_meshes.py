"""Where JAX refuses, under a mesh of the program's own, to compute with what steps return: told where it is in view."""

from __future__ import annotations

import re

import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source

PROGRAM = """\
import jax
import jax.numpy as jnp
from jax import make_mesh
from jax.sharding import AxisType, Mesh
# mm: mesh(stage=2, data=2)
@jax.jit  # mm: mjit
def step(x):
    return x, layer(x)  # mm: task(stage=0)
def layer(x):
    return x
def norm(x):
    x, loss = step(x)
    return jnp.mean(loss)
rows = make_mesh((4,), ("d",))
def train(data, total, devices):
"""
EXPLICIT = 'jax.make_mesh((4,), ("d",))'
COMPUTES = "    x, loss = step(data)\n    total = total + loss\n"


def block(mesh: str, code: str = COMPUTES, enter: str = "jax.set_mesh") -> str:
    return f"    with {enter}({mesh}):\n" + re.sub("^", "    ", code, flags=re.MULTILINE).rstrip(" ")


TOLD = {
    "block": block(EXPLICIT),
    "use_mesh": block(EXPLICIT, enter="jax.sharding.use_mesh"),
    "named": block("rows"),
    "said": block('jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))'),
    "statement": f"    jax.set_mesh(rows)\n{COMPUTES}",
    "in a loop": block(EXPLICIT, "    for x in data:\n        total += step(x)\n"),
    "function of JAX": block(EXPLICIT, "    loss = step(data)\n    print(jnp.sqrt(loss))\n"),
    "called": block(EXPLICIT, "    norm(data)\n"),
    "item": block(EXPLICIT, "    both = step(data)\n    total = total + both[1]\n"),
    "another name": block(EXPLICIT, "    x, loss = step(data)\n    last = loss\n    total = total + last\n"),
    "made by a call": "    run = jax.jit(layer)  # mm: mjit\n" + block(EXPLICIT, "    total = total + run(data)\n"),
}
NOT_TOLD = {
    "automatic": block('jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))'),
    "mesh of devices": block('Mesh(devices, ("d",))'),
    "unknown": block("devices"),
    "reads": block(EXPLICIT, "    x, loss = step(data)\n    print(float(loss), x.shape)\n"),
    "gathered": block(EXPLICIT, COMPUTES.rstrip("\n") + "  # mm: gather(loss)\n"),
    "left": block(EXPLICIT, COMPUTES.rstrip("\n") + "  # mm: ignore[compile_for_mesh]\n"),
    "behind the block": block(EXPLICIT, "    pass\n") + COMPUTES,
    "mesh inside": block(EXPLICIT, block("devices", COMPUTES)),
    "other function": block(EXPLICIT, "    x, loss = layer(data)\n    total = total + loss\n"),
    "circle": block(EXPLICIT, "    loss = last\n    last = loss\n    total = total + last\n"),
    "shape": block(EXPLICIT, "    x, loss = step(data)\n    total = total + loss.ndim\n"),
    "bound twice": block(EXPLICIT, "    loss = step(data)\n    loss = float(loss)\n    total = total + loss\n"),
}


def told(code: str) -> list[str]:
    result = rewrite_source(PROGRAM + code, Registry())
    assert not result.errors and result.failure is None
    return [each.reason for each in result.refusals if "explicit axes" in each.reason]


@pytest.mark.parametrize("name", TOLD)
def test_told(name: str) -> None:
    (reason,) = told(TOLD[name])
    assert "write `# mm: gather(" in reason


@pytest.mark.parametrize("name", NOT_TOLD)
def test_no_false_alarm(name: str) -> None:
    assert told(NOT_TOLD[name]) == []
