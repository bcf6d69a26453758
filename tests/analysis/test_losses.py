"""The function that is differentiated, and what its names and calls say."""

from __future__ import annotations

import ast

import pytest
from hinted_sites import facts_of, site_of

from mmrewrite.analysis.steps.losses import (
    batch_norms,
    changes_collections,
    find_function,
    keeps_values,
    keys_closed_over,
    keys_of_the_module,
    looks_like_key,
    names_one_key,
)
from mmrewrite.values.flow import values_of

pytestmark = pytest.mark.quick

HINT = "\n\nwanted(f)  # mm: task(stage=0)\n"


def found(text: str, **others: str) -> list[str] | None:
    """Parameters of the function that the argument of `wanted` stands for."""
    site = site_of(text + HINT, **others)
    call = next(site.calls(site.statement))
    function = find_function(site, values_of(site.project).value_in(site.facts, call.args[0]))
    return None if function is None else function.parameters


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        pytest.param("def f(a, /, b, *c, d, **e): ...", ["a", "b", "c", "d", "e"], id="a `def`"),
        pytest.param("f = lambda a, b: a", ["a", "b"], id="a name for a `lambda`"),
        pytest.param("def g(a): ...\nf = g", ["a"], id="an alias"),
        pytest.param("import functools\ndef g(a, b): ...\nf = functools.partial(g, b=1)", ["a", "b"], id="a partial"),
        pytest.param("from other import f", ["x", "y"], id="a function of another module"),
        pytest.param("from other import g as f", ["x", "y"], id="an alias in another module"),
        pytest.param("def f(a): ...\ndef f(a, b): ...", ["a", "b"], id="a name that is defined again"),
        pytest.param("def f(a): ...\nif x:\n    def f(a, b): ...", None, id="a name with two definitions"),
        pytest.param("from elsewhere import f", None, id="a module that cannot be seen"),
        pytest.param("f = g(1)", None, id="the result of a call"),
        pytest.param(
            "import haiku as hk\ndef g(x): ...\nf = hk.transform(g).apply", ["params", "rng", "x"], id="Haiku's `apply`"
        ),
        pytest.param(
            "import haiku as hk\ndef g(x): ...\nt = hk.without_apply_rng(hk.transform(g))\nf = t.apply",
            ["params", "x"],
            id="Haiku's `apply` without a key",
        ),
        pytest.param("import functools\ndef g(a, b): ...\nf = functools.partial(g, 1)", ["b"], id="a bound argument"),
        pytest.param("class A:\n    def g(self, a): ...\nf = A().g", ["a"], id="a method of an object"),
    ],
)
def test_where_a_function_is_defined(text: str, parameters: list[str] | None) -> None:
    assert found(text, other="def f(x, y): ...\ng = f\n") == parameters


@pytest.mark.parametrize(
    ("name", "is_key", "is_one"),
    [
        ("rng", True, True),
        ("key", True, True),
        ("rngs", True, True),
        ("dropout_key", True, True),
        ("keys", True, False),
        ("key2", True, True),
        ("subkey", True, True),
        ("prng_key", True, True),
        ("RNG", True, True),
        ("keyword", False, False),
        ("monkey_patch", False, False),
        ("params", False, False),
        ("string", False, False),
    ],
)
def test_names_of_random_keys(name: str, is_key: bool, is_one: bool) -> None:
    assert (looks_like_key(name), names_one_key(name)) == (is_key, is_one)


KEYS = """
import jax

module_key = jax.random.key(0)
config_key = "name"


def outer(dropout_key, x):
    def loss(params, rng):
        return params + jax.random.normal(rng) + use(dropout_key, module_key, config_key, x)

    return loss  # mm: task(stage=0)
"""


def test_keys_that_a_loss_takes_from_around_it() -> None:
    site = site_of(KEYS)
    assert isinstance(site.statement, ast.Return) and site.statement.value is not None
    loss = find_function(site, values_of(site.project).value_in(site.facts, site.statement.value))
    assert loss is not None
    assert keys_closed_over(site, loss) == ["dropout_key"]
    assert keys_of_the_module(site, loss) == ["module_key"]


@pytest.mark.parametrize(
    ("call", "changes"),
    [
        ('m.apply(v, x, mutable=["batch_stats"])', True),
        ("m.apply(v, x, mutable=names)", True),
        ("m.apply(v, x, mutable=True)", True),
        ("m.apply(v, x, mutable=False)", False),
        ("m.apply(v, x, mutable=[])", False),
        ('m.apply(v, x, mutable=["intermediates"])', False),
        ('m.apply(v, x, mutable="intermediates")', False),
        ('m.apply(v, x, mutable=["intermediates", "batch_stats"])', True),
        ('m.apply(v, x, mutable=["losses"])', True),
        ('m.apply({"params": p}, x, mutable=["losses"])', False),
        ('m.apply({"params": p, "losses": l}, x, mutable=["losses"])', True),
        ('m.apply({"params": p, **v}, x, mutable=["losses"])', True),
        ('m.apply({"params": p}, x, mutable=["batch_stats"])', True),
        ("m.apply({name: p}, x, mutable=['losses'])", True),
        ('m.apply({"params": p}, x, mutable=[name])', True),
        ("m.apply(v, x)", False),
    ],
)
def test_calls_that_return_changed_collections(call: str, changes: bool) -> None:
    assert (changes_collections(ast.walk(ast.parse(call))) is not None) == changes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("nn.BatchNorm(use_running_average=False)(x)", 1, id="statistics of the batch"),
        pytest.param("nn.BatchNorm()(x, use_running_average=train)", 1, id="it depends on a value"),
        pytest.param("nn.BatchNorm(use_running_average=True)(x)", 0, id="running averages"),
        pytest.param("partial(nn.BatchNorm, use_running_average=True)", 0, id="running averages by a partial"),
        pytest.param("nnx.BatchNorm(4, use_running_average=True, rngs=r)", 1, id="of nnx, which may be switched"),
        pytest.param("nn.LayerNorm()(x)", 0, id="another normalisation"),
    ],
)
def test_batch_norms_that_see_the_batch(text: str, count: int) -> None:
    facts = facts_of(f"from functools import partial\nfrom flax import linen as nn, nnx\n{text}\n")
    assert len(batch_norms(facts, facts.tree, facts.names.scope)) == count


@pytest.mark.parametrize(
    ("decorator", "kept"),
    [
        ("jax.jit", True),
        ("jax.checkpoint", True),
        ("jax.remat", True),
        ("partial(jax.jit, static_argnums=0)", True),
        ("jax.vmap", False),
        ("mine", False),
    ],
)
def test_decorators_that_keep_what_a_function_returns(decorator: str, kept: bool) -> None:
    facts = facts_of(f"import jax\nfrom functools import partial\n@{decorator}\ndef f(x): ...\n")
    function = facts.tree.body[-1]
    assert isinstance(function, ast.FunctionDef)
    assert keeps_values(facts, function.decorator_list[0], facts.names.scope) == kept
