"""Which local names of a step may be the batch."""

from __future__ import annotations

import ast

import pytest
from hinted_sites import site_of

from mmrewrite.analysis.steps.step_data import StepData

pytestmark = pytest.mark.quick

HEAD = "import functools\nimport jax\nfrom typing import Callable\n"


@pytest.mark.parametrize(
    ("parameters", "around", "expected"),
    [
        pytest.param("state, x, scale: float, n: int = 3", "", {"x"}, id="plain types and defaults"),
        pytest.param("state, x, f: Callable[..., int], name='a'", "", {"x"}, id="functions and words"),
        pytest.param("state, x, y=None", "", {"x", "y"}, id="a default that says nothing"),
        pytest.param("state, cfg, x", "s = jax.jit(step, static_argnums=1)", {"x"}, id="static by position"),
        pytest.param("state, x, cfg", "s = jax.jit(step, static_argnames=('cfg',))", {"x"}, id="static by name"),
        pytest.param("state, x, cfg", "s = jax.pmap(step, static_broadcasted_argnums=(-1,))", {"x"}, id="of a pmap"),
        pytest.param("state, x, cfg", "s = functools.partial(step, cfg=3)", {"x"}, id="bound by name"),
        pytest.param("cfg, state, x", "s = functools.partial(step, 3)", {"x"}, id="bound by position"),
        pytest.param("state, x, m", "s = functools.partial(jax.jit, static_argnums=0)(f)", {"x", "m"}, id="of another"),
    ],
)
def test_parameters(parameters: str, around: str, expected: set[str]) -> None:
    text = f"{HEAD}def step({parameters}):\n    return jax.grad(f)(state.params)  # mm: microbatch(size=2)\n{around}\n"
    data = data_of(text)
    names = {each.split(":")[0].split("=")[0].strip() for each in parameters.split(", ") if "]" not in each}
    assert {name for name in names if data.may_be_batch(ast.Name(name))} == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("x, y = batch", {"x", "y"}, id="unpacked"),
        pytest.param("x, y = (batch.get(k) for k in names)", {"x", "y"}, id="from a generator"),
        pytest.param("x = batch['x']\n    y = (x > 0) * x", {"x", "y"}, id="made of the batch"),
        pytest.param("lr = schedule(state.step)\n    x = batch", {"x"}, id="made of the state"),
        pytest.param("graph, rest = split(state)\n    x = batch", {"x"}, id="the other part of the state"),
        pytest.param("x = 2 * n\n    y = x + batch", {"y"}, id="made of settings only"),
        pytest.param("for x in batch:\n        pass", {"x"}, id="from a loop"),
        pytest.param("x = predict(state, batch)", {"x"}, id="made of the batch by the state"),
    ],
)
def test_local_names(body: str, expected: set[str]) -> None:
    text = (
        f"{HEAD}def step(state, batch, n: int):\n    {body}\n"
        "    return jax.grad(f)(state.params)  # mm: microbatch(size=2)\n"
    )
    data = data_of(text)
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert {name for name in names & {"x", "y", "lr", "graph", "rest"} if data.may_be_batch(ast.Name(name))} == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("g = {call}\n    state = state.apply(g)", {"x", "y"}, id="afterwards"),
        pytest.param("state = state.apply({call})", {"x", "y"}, id="by the same statement"),
        pytest.param(
            "for i in xs:\n        (l, m), g = {call}\n        state = join(g, i)", {"x", "y"}, id="in a loop"
        ),
        pytest.param("state = join(state, x)\n    g = {call}", {"y"}, id="by an argument"),
    ],
)
def test_a_state_that_is_updated_does_not_hold_the_batch(body: str, expected: set[str]) -> None:
    call = "jax.grad(f)(state.params, x, y)"
    text = (
        f"{HEAD}def step(state, xs, x, y):\n    {body.format(call=call)}  # mm: microbatch(size=2)\n    return state\n"
    )
    data = data_of(text)
    assert {name for name in ("x", "y") if data.may_be_batch(ast.Name(name))} == expected
    assert not data.may_be_batch(ast.parse("state.apply_fn", mode="eval").body)


def data_of(text: str) -> StepData:
    """Of a step whose gradient is in `state.params`."""
    site = site_of(text)
    call = next(
        node
        for node in ast.walk(site.facts.tree)
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.args[0]) == "state.params"
    )
    return StepData(site, call, call.args[:1])
