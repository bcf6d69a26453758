"""The call of each iteration that is the layer."""

from __future__ import annotations

import ast

import pytest
from hinted_sites import loop_in, refusal_of, site_of

from mmrewrite.analysis.loops.layer_calls import callee_name, layer_call, refuse_carried_containers

pytestmark = pytest.mark.quick

HEAD = "import jax\nimport jax.numpy as jnp\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("x = layer(x)", "layer(x)", id="the loop variable is called"),
        pytest.param("x = layer.apply(params, x)", "layer.apply(params, x)", id="its method is called"),
        pytest.param("x = block(layer, x)", "block(layer, x)", id="it is an argument"),
        pytest.param("x = block(layer, norm(x))", "block(layer, norm(x))", id="of the calls, that with the variable"),
        pytest.param("x = x + layer(norm(x))", "layer(norm(x))", id="in an expression"),
        pytest.param("p = layer.params\n    x = block(p, x)", "block(p, x)", id="a name made from the loop variable"),
        pytest.param("x = jnp.tanh(layer(x))", "layer(x)", id="functions of libraries are no layers"),
        pytest.param("x = layer(x)\n    log(i)", "layer(x)", id="beside a call whose result is dropped"),
        pytest.param("x = Block(cfg)(x)", "Block(cfg)(x)", id="a module that is made and called"),
        pytest.param("f = Block(layer)\n    x = f(x)", "f(x)", id="a module that is made above its call"),
        pytest.param("f = Block(c)\n    x, _ = f(x, layer)", "f(x, layer)", id="a module that is given the variable"),
        pytest.param("f = Block(c)\n    x = f(x)", "f(x)", id="a module that has nothing of the variable"),
        pytest.param("f = Block(c)\n    x = f(x)\n    x = f(x)", None, id="a module that is called twice"),
        pytest.param("f = Block(layer)\n    g = Block(layer)\n    x = g(f(x))", None, id="two modules that are called"),
        pytest.param("f = Block(layer)\n    x = f(x) + f.size", None, id="a module of which an attribute is read"),
        pytest.param("f = Block(x)\n    x = f(c)", None, id="an object that is made of what the layers carry on"),
        pytest.param("f = Block(x, layer)\n    x = f(x)", None, id="an object that is made of that and the variable"),
        pytest.param("f = Block(x.shape[-1], layer)\n    x = f(x)", "f(x)", id="a module that is made for a width"),
        pytest.param("f = build(layer)\n    x = f(x)", None, id="a function that makes a function"),
        pytest.param("if c:\n        x = layer(x)", "layer(x)", id="in a branch"),
        pytest.param("x = layer(x)\n    x = layer(x)", None, id="two calls of the variable"),
        pytest.param("x = x + layer", None, id="no call"),
        pytest.param("x = f(x)\n    x = g(x)", None, id="two calls without the variable"),
        pytest.param("w = layer(c)\n    x = x @ w", None, id="it reads nothing that the layers carry on"),
        pytest.param("x = x + self.param(layer)", None, id="a Flax parameter"),
        pytest.param("if layer(x):\n        x = x + 1", None, id="in the head of a statement"),
    ],
)
def test_the_call_of_one_iteration(body: str, expected: str | None) -> None:
    loop = f"  for layer in layers:  # mm: stages\n    {body}\n"
    text = f"{HEAD}class Block: ...\ndef forward(layers, x, params, c):\n{loop}  return x\n"
    site = site_of(text)
    found = layer_call(site, loop_in(site.facts.tree))
    assert (None if found is None else ast.unparse(found.call)) == expected


@pytest.mark.parametrize(
    ("body", "shared"),
    [
        pytest.param("x = layer(x, cache)\n    cache.append(x)", "cache", id="a list that grows and is given"),
        pytest.param("x = layer(x, c=cache)\n    cache[0] = x", "cache", id="an item that is set and all are given"),
        pytest.param("x = layer(x)\n    cache.append(x)", None, id="a list beside the layers"),
        pytest.param("x, cache[0] = layer(x, cache[0])", None, id="an item that is given and set"),
        pytest.param("x = fill(layer, cache)", "cache", id="a callee that fills its parameter"),
        pytest.param("x = layer(x)\n    c = []\n    c.append(x)", None, id="a list of one layer"),
        pytest.param("x = jnp.append(layer(x), x)", None, id="a function of a library that is called `append`"),
    ],
)
def test_containers_that_layers_share(body: str, shared: str | None) -> None:
    text = (
        f"{HEAD}def fill(layer, store):\n  store['x'] = layer\n  return 1\n"
        f"def forward(layers, x, cache):\n  for layer in layers:  # mm: stages\n    {body}\n  return x\n"
    )
    site = site_of(text)
    loop = loop_in(site.facts.tree)
    layer = layer_call(site, loop)
    assert layer is not None
    if shared is None:
        refuse_carried_containers(site, loop, layer)
    else:
        line, reason = refusal_of(lambda: refuse_carried_containers(site, loop, layer))
        assert line == loop.lineno
        assert reason.startswith(f"the layers share `{shared}`, which ")


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("encoder", "encoder"),
        ("self.encoder", "encoder"),
        ("self.blocks[0]", "blocks"),
        ("Block(cfg)", "Block"),
        ("jax.vmap(encode)", "encode"),
        ("partial(self.encode, 1)", "encode"),
        ("nn.remat(Block)(cfg)", "Block"),
        ("(lambda x: x)", "task"),
    ],
)
def test_the_name_of_a_task(expression: str, name: str) -> None:
    assert callee_name(ast.parse(expression, mode="eval").body) == name
