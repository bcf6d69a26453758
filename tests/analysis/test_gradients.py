"""The gradient function of a hinted statement, and the calls that show its arguments."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hinted_sites import refusal_of, site_of

from mmrewrite.analysis.steps.gradients import Gradient, find_gradient, is_gradient_decorator

pytestmark = pytest.mark.quick

SCALED = (
    "`scale.value_and_grad` takes the gradient itself, and no microbatches can be put between; if it is that of a "
    "`DynamicScale`, take the gradient of the scaled loss with `jax.value_and_grad`, hint that, and give what it "
    'returns to the `DynamicScale`, as "Scale the loss" in docs/recipes.md does'
)


def gradient_of(text: str) -> Gradient:
    return find_gradient(site_of("import functools\nimport jax\n" + textwrap.dedent(text)))


def summary(text: str) -> tuple[str, set[int], bool, list[str], bool]:
    found = gradient_of(text)
    calls = [ast.unparse(call) for call in found.calls]
    return (
        ast.unparse(found.function),
        set(found.argnums),
        found.by_name,
        calls,
        found.complete,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "g = jax.grad(f)(p, b)  # mm: microbatch(size=2)",
            ("f", {0}, False, ["jax.grad(f)(p, b)"], True),
            id="made and called at once",
        ),
        pytest.param(
            "g = jax.value_and_grad(f, (0, 2), True)(p, b, s)  # mm: microbatch(size=2)",
            ("f", {0, 2}, False, ["jax.value_and_grad(f, (0, 2), True)(p, b, s)"], True),
            id="options by position",
        ),
        pytest.param(
            "g = jax.jit(jax.grad(f, argnums=1))(b, p)  # mm: microbatch(size=2)",
            ("f", {1}, False, ["jax.jit(jax.grad(f, argnums=1))(b, p)"], True),
            id="compiled before it is called",
        ),
        pytest.param(
            "g = jax.grad(f)  # mm: microbatch(size=2)\ny = g(p, b)\nz = g(p, c)",
            ("f", {0}, False, ["g(p, b)", "g(p, c)"], True),
            id="called by its name below",
        ),
        pytest.param(
            "g = jax.grad(f)  # mm: microbatch(size=2)\ny = use(g)\nz = g(p, c)",
            ("f", {0}, False, ["g(p, c)"], False),
            id="given away as well",
        ),
        pytest.param(
            "g = jax.grad(f)\ny = g(p, b)  # mm: microbatch(size=2)",
            ("f", {0}, True, ["g(p, b)"], True),
            id="a hint on the call by name",
        ),
        pytest.param(
            "g = jax.jit(jax.value_and_grad(f))\nh = g\ny = h(p, b)  # mm: microbatch(size=2)",
            ("f", {0}, True, ["h(p, b)"], True),
            id="a call through an alias and `jax.jit`",
        ),
        pytest.param(
            "g = jax.grad(f)\ny = g(p, b)  # mm: microbatch(size=2)\ng = jax.grad(h)\nz = g(q, c)",
            ("f", {0}, True, ["g(p, b)"], True),
            id="a name that has another gradient below",
        ),
        pytest.param(
            "g = jax.grad(f)\ny = g(p, b)\ng = jax.grad(h)\nz = g(q, c)  # mm: microbatch(size=2)",
            ("h", {0}, True, ["g(q, c)"], True),
            id="a name that has another gradient above",
        ),
        pytest.param(
            "g = jax.grad(f)  # mm: microbatch(size=2)\ny = g(p, b)\ng = jax.grad(h)\nz = g(q, c)",
            ("f", {0}, False, ["g(p, b)"], True),
            id="a hint where a name gets its first gradient",
        ),
        pytest.param(
            "g = jax.grad(f)\ny = g(p, b)\ng = jax.grad(h)  # mm: microbatch(size=2)\nz = g(q, c)",
            ("h", {0}, False, ["g(q, c)"], True),
            id="a hint where a name gets its second gradient",
        ),
        pytest.param(
            "g = jax.grad(f)\ny = g(p, b)  # mm: microbatch(size=2)\ng = check(g)\nz = g(q, c)",
            ("f", {0}, True, ["g(p, b)"], False),
            id="a gradient that its next value is made of",
        ),
        pytest.param(
            "for b in bs:\n    g = jax.grad(f)\n    y = g(p, b)  # mm: microbatch(size=2)\n"
            "    if done: break\n    g = jax.grad(h)\ng(q, c)",
            ("f", {0}, True, ["g(p, b)"], False),
            id="a loop that may end before the name has another value",
        ),
        pytest.param(
            "g = jax.grad(h)\nfor b in bs:\n    g(q, c)\n    g = jax.grad(f)\n"
            "    y = g(p, b)  # mm: microbatch(size=2)",
            ("f", {0}, True, ["g(p, b)"], False),
            id="a gradient that the next iteration calls",
        ),
        pytest.param(
            "try:\n    g = jax.grad(f)\n    y = g(p, b)  # mm: microbatch(size=2)\n    g = jax.grad(h)\n"
            "except Error:\n    g(q, c)\ng(r, d)",
            ("f", {0}, True, ["g(p, b)"], False),
            id="a gradient that a handler calls",
        ),
        pytest.param(
            "def later():\n    return g(q, c)\ng = jax.grad(f)\ny = g(p, b)  # mm: microbatch(size=2)\n"
            "later()\ng = jax.grad(h)\ng(q, c)",
            ("f", {0}, True, ["g(p, b)"], False),
            id="a gradient that a function calls at any time",
        ),
        pytest.param(
            "@functools.partial(jax.grad, has_aux=True)\ndef g(p, b): ...\ny = g(p, b)  # mm: microbatch(size=2)",
            ("g", {0}, True, ["g(p, b)"], True),
            id="a decorated loss",
        ),
        pytest.param(
            "import equinox as eqx\ny = eqx.filter_value_and_grad(f)(m, b)  # mm: microbatch(size=2)",
            ("f", {0}, False, ["eqx.filter_value_and_grad(f)(m, b)"], True),
            id="Equinox",
        ),
    ],
)
def test_how_a_gradient_is_made_and_called(text: str, expected: tuple[object, ...]) -> None:
    assert summary(text) == expected


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        pytest.param(
            "y = f(p, b)  # mm: microbatch(size=2)",
            3,
            "no `jax.grad(f)` or `jax.value_and_grad(f)` can be seen here; hint the statement that calls one, by name "
            "or directly",
            id="no gradient",
        ),
        pytest.param(
            "def step(p, b):\n    return jax.grad(f)(p, b)\ny = step(p, b)  # mm: microbatch(size=2)",
            5,
            "no `jax.grad(f)` or `jax.value_and_grad(f)` can be seen here, and what this calls takes one at line 4; "
            "move the hint to that statement",
            id="a function that takes a gradient",
        ),
        pytest.param(
            "g = jax.vmap(jax.grad(f), (None, 0))\ny = g(p, b)  # mm: microbatch(size=2)",
            4,
            "no `jax.grad(f)` or `jax.value_and_grad(f)` can be seen here; hint the statement that calls one, by name "
            "or directly",
            id="a gradient of each example",
        ),
        pytest.param(
            "g = functools.partial(jax.grad(f), p)\ny = g(b)  # mm: microbatch(size=2)",
            4,
            "`g` is a `partial` of the gradient function made at line 3, and what it gives by position moves the other "
            "arguments; hint that statement instead, with `argnum=` and `rng=` counted there",
            id="a gradient that has its first argument",
        ),
        pytest.param(
            "y = jax.grad(f)(p), jax.grad(g)(p)  # mm: microbatch(size=2)",
            3,
            "more than one gradient in this statement; give each a statement of its own",
            id="two gradients",
        ),
        pytest.param(
            "g = jax.grad(f)\nif p:\n    g = jax.grad(h, 1)\ny = g(p, b)  # mm: microbatch(size=2)",
            6,
            "`g` has several meanings (line 3, line 5); give this gradient function a name of its own",
            id="a name with two gradients, of other arguments",
        ),
        pytest.param(
            "g = jax.grad(f)\ng(p, b)\ng = scaled(h)\ny = g(p, b)  # mm: microbatch(size=2)",
            6,
            "no `jax.grad(f)` or `jax.value_and_grad(f)` can be seen here; hint the statement that calls one, by name "
            "or directly",
            id="a name with a gradient above and something else below",
        ),
        pytest.param(
            "def step(scale):\n    g = jax.grad(f)\n    g = scale.value_and_grad(h)\n"
            "    y = g(p, b)  # mm: microbatch(size=2)",
            6,
            SCALED,
            id="a gradient that an object takes",
        ),
        pytest.param(
            "def step(s):\n    y = s.scale.value_and_grad(h)(p, b)  # mm: microbatch(size=2)",
            4,
            SCALED.replace("`scale.", "`s.scale."),
            id="a gradient that an object takes, called at once",
        ),
        pytest.param(
            "y = jax.grad(*f)(p)  # mm: microbatch(size=2)",
            3,
            "jax.grad(*args): cannot tell what is differentiated; write its arguments out",
            id="star-args",
        ),
        pytest.param(
            "y = jax.grad(f, argnums=n)(p, b)  # mm: microbatch(size=2)",
            3,
            "`argnums` is computed, so the batch cannot be told from what is differentiated; write `argnum=` with the "
            "position of the argument that has one row per example",
            id="computed `argnums`",
        ),
    ],
)
def test_gradients_that_cannot_be_read(text: str, line: int, reason: str) -> None:
    assert refusal_of(lambda: gradient_of(text)) == (line, reason)


def test_computed_argnums_matter_not_where_the_hint_says_which_is_the_batch() -> None:
    text = "y = jax.grad(f, argnums=n)(p, b)  # mm: microbatch(size=2, argnum=1)"
    assert gradient_of(text).argnums == frozenset()


@pytest.mark.parametrize(
    ("decorator", "expected"),
    [
        ("jax.grad", True),
        ("partial(jax.value_and_grad, has_aux=True)", True),
        ("eqx.filter_grad(has_aux=True)", True),
        ("jax.jit", False),
        ("partial(jax.jit, static_argnums=0)", False),
    ],
)
def test_decorators_that_differentiate(decorator: str, expected: bool) -> None:
    site = site_of(
        "import jax\nimport equinox as eqx\nfrom functools import partial\n"
        f"# mm: task(stage=0)\n@{decorator}\ndef f(x): ...\n"
    )
    assert isinstance(site.statement, ast.FunctionDef)
    assert is_gradient_decorator(site, site.statement.decorator_list[0]) == expected
