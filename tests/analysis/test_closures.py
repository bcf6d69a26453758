"""What a loss closes over, and whether it could be an argument."""

from __future__ import annotations

import pytest
from hinted_sites import site_of

from mmrewrite.analysis.steps.closures import Closed, cannot_be_given, closed_over, is_used_elsewhere
from mmrewrite.analysis.steps.gradients import find_gradient
from mmrewrite.analysis.steps.losses import find_function

pytestmark = pytest.mark.quick

SCALE = "scale = 2\n"


def program(loss: str, step: str = "    return jax.grad(loss)(params)  # mm: microbatch(size=2)\n") -> str:
    return f"import functools\nimport jax\n{SCALE}def step(params, batch, model, rng):\n{loss}{step}"


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        pytest.param("    def loss(p):\n        return p - batch\n", [Closed("batch", False, True)], id="a value"),
        pytest.param("    def loss(p):\n        return batch['x'] - p\n", [Closed("batch", False, True)], id="an item"),
        pytest.param("    def loss(p):\n        return model(p)\n", [Closed("model", False, False)], id="only called"),
        pytest.param(
            "    def loss(p):\n        return model.apply(p)\n", [Closed("model", False, False)], id="only its method"
        ),
        pytest.param(
            "    def loss(p):\n        return model(p) + use(model)\n",
            [Closed("model", False, True)],
            id="called and used as a value",
        ),
        pytest.param("    def loss(p):\n        return use(rng)\n", [Closed("rng", True, True)], id="a key"),
        pytest.param("    def loss(p):\n        return p * scale\n", [], id="a name of the module"),
        pytest.param("    def loss(p, batch):\n        return p - batch\n", [], id="a parameter of its own"),
        pytest.param(
            "    def g(x): ...\n    def loss(p):\n        return g(p)\n", [], id="a function of the surrounding one"
        ),
        pytest.param(
            "    def loss(p):\n        return rng + batch\n",
            [Closed("rng", True, True), Closed("batch", False, True)],
            id="in order of first use",
        ),
    ],
)
def test_values_of_the_surrounding_function(loss: str, expected: list[Closed]) -> None:
    site = site_of(program(loss))
    gradient = find_gradient(site)
    found = find_function(site, gradient.loss)
    assert found is not None
    assert closed_over(site, found) == expected


CALLED = "    return jax.grad(loss)(params)  # mm: microbatch(size=2)\n"


@pytest.mark.parametrize(
    ("loss", "step", "expected"),
    [
        pytest.param("    def loss(p):\n        return p - batch\n", CALLED, None, id="called once, right here"),
        pytest.param(
            "    loss = lambda p: p - batch\n",
            CALLED,
            None,
            id="a `lambda` with a name",
        ),
        pytest.param(
            "", "    return jax.grad(lambda p: p - batch)(params)  # mm: microbatch(size=2)\n", None, id="a `lambda`"
        ),
        pytest.param(
            "    async def loss(p):\n        return p - batch\n", CALLED, "the loss is an `async def`", id="async"
        ),
        pytest.param(
            "    def loss(p, c=1):\n        return p - batch\n",
            CALLED,
            "the loss has `*args` or defaults, after which no parameter can go",
            id="a default",
        ),
        pytest.param(
            "    def loss(p):\n        return p - batch\n",
            "    g = jax.grad(loss)  # mm: microbatch(size=2)\n    return g(params), g(params)\n",
            "not every call of this gradient can be seen",
            id="two calls",
        ),
        pytest.param(
            "    def loss(p):\n        return p - batch\n",
            "    return jax.grad(loss)(*params)  # mm: microbatch(size=2)\n",
            "star-args hide the arguments of the gradient",
            id="star-args",
        ),
        pytest.param(
            "    def loss(p):\n        return p - batch\n",
            "    return jax.grad(loss)(p=params)  # mm: microbatch(size=2)\n",
            "the gradient is not called with each parameter of the loss by position",
            id="a keyword",
        ),
        pytest.param(
            "    @functools.cache\n    def loss(p):\n        return p - batch\n",
            CALLED,
            "`@functools.cache` may look at the parameters of the loss",
            id="a decorator of unknown effect",
        ),
        pytest.param(
            "    @jax.checkpoint\n    def loss(p):\n        return p - batch\n",
            CALLED,
            None,
            id="a transparent decorator",
        ),
        pytest.param(
            "    def loss(p):\n        return p - batch\n",
            "    print(loss(params))\n" + CALLED,
            None,
            id="used elsewhere, where a default has the same value",
        ),
        pytest.param(
            "    def loss(p):\n        return p - batch\n",
            "    batch = batch + 1\n    print(loss(params))\n" + CALLED,
            "`loss` is used elsewhere, too, and `batch` changes below it",
            id="used elsewhere, with a value that changes",
        ),
    ],
)
def test_why_a_value_cannot_be_an_argument(loss: str, step: str, expected: str | None) -> None:
    site = site_of(program(loss, step))
    gradient = find_gradient(site)
    found = find_function(site, gradient.loss)
    assert found is not None
    assert cannot_be_given(site, gradient, found, ["batch"]) == expected


@pytest.mark.parametrize("loss", ["    def loss(p):\n        return p - batch\n", "    loss = lambda p: p - batch\n"])
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(CALLED, False, id="in the gradient alone"),
        pytest.param(
            "    g = jax.grad(loss)\n    return g(params)  # mm: microbatch(size=2)\n", False, id="made above"
        ),
        pytest.param(f"    loss(params)\n{CALLED}", True, id="called"),
        pytest.param(f"    f = loss\n{CALLED.replace('loss', 'f')}", True, id="by another name"),
        pytest.param(f"    f = loss\n    f(params)\n{CALLED.replace('loss', 'f')}", True, id="called by another name"),
    ],
)
def test_uses_besides_the_gradient(loss: str, step: str, expected: bool) -> None:
    site = site_of(program(loss, step))
    gradient = find_gradient(site)
    found = find_function(site, gradient.loss)
    assert found is not None
    assert is_used_elsewhere(site, gradient, found) is expected
