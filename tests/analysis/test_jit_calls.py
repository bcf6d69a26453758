"""The forms in which a program compiles a function."""

from __future__ import annotations

import ast

import pytest
from hinted_sites import refusal_of, site_of

from mmrewrite.analysis.jit_calls import carried, jit_call, jit_decorator

HEAD = "import functools\nimport jax\nimport equinox as eqx\nfrom flax import nnx\n"


@pytest.mark.parametrize(
    ("text", "function", "keywords"),
    [
        pytest.param("s = jax.jit(f, donate_argnums=0)  # mm: mjit", "f", ["donate_argnums"], id="a call"),
        pytest.param("s = jax.jit(inline=True)(f)  # mm: mjit", "f", ["inline"], id="options first"),
        pytest.param(
            "s = functools.partial(jax.jit, static_argnums=1)(f)  # mm: mjit", "f", ["static_argnums"], id="a partial"
        ),
        pytest.param("s = jax.jit(jax.grad(f))  # mm: mjit", "jax.grad(f)", [], id="of an expression"),
        pytest.param("y = jax.jit(f)(x)  # mm: mjit", "f", [], id="called at once"),
    ],
)
def test_calls_that_compile(text: str, function: str, keywords: list[str]) -> None:
    found = jit_call(site_of(f"{HEAD}{text}\n"), "mjit")
    assert (ast.unparse(found.function), [keyword.arg for keyword in found.keywords]) == (function, keywords)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            "s = g(f)  # mm: mjit",
            "`mjit` replaces `jax.jit`, and there is none here; hint the statement that calls `jax.jit`",
            id="none",
        ),
        pytest.param(
            "s = jax.jit(f), jax.jit(g)  # mm: mjit",
            "more than one `jax.jit` in this statement; give each a statement of its own",
            id="two",
        ),
        pytest.param(
            "s = jax.jit(*f)  # mm: mjit", "`*` hides what `jax.jit` compiles; pass it by position", id="star"
        ),
        pytest.param(
            "s = jax.jit(f, None)  # mm: mjit",
            "this `jax.jit` is given more than a function by position; name its other arguments",
            id="options by position",
        ),
        pytest.param(
            "s = jax.grad(jax.jit(f))  # mm: mjit",
            "`jax.grad` of a compiled step is not cut into tasks; put `jax.jit` around `jax.grad(...)`",
            id="within a transformation",
        ),
        pytest.param(
            "s = jax.jit(f)  # mm: mjit\ns.lower(x)",
            "`s.lower` is used, and a step that is compiled for a mesh has none: it is many programs; remove that use, "
            "or call `.plan(...)` in its place once the program is rewritten",
            id="lowered by its name",
        ),
        pytest.param(
            "for x in xs:\n    y = jax.jit(f)(x)  # mm: mjit",
            "a step that is compiled where it is called is planned anew in each iteration; write `step = jax.jit(f)` "
            "above the loop, and hint that",
            id="in a loop",
        ),
        pytest.param(
            "s = eqx.filter_jit(f)  # mm: mjit",
            "`eqx.filter_jit` looks at each call for what is an array; split the model with "
            "`eqx.partition(model, eqx.is_array)`, compile a function of the arrays with `jax.jit`, and hint that",
            id="another library's",
        ),
    ],
)
def test_statements_that_are_refused(text: str, reason: str) -> None:
    assert refusal_of(lambda: jit_call(site_of(f"{HEAD}{text}\n"), "mjit"))[1] == reason


@pytest.mark.parametrize(
    ("decorators", "position"),
    [
        pytest.param(["jax.jit"], 0, id="by its name"),
        pytest.param(["other", "jax.jit(inline=True)"], 1, id="with options, below another"),
        pytest.param(["functools.partial(jax.jit, static_argnums=0)"], 0, id="a partial"),
        pytest.param(["jax.checkpoint"], None, id="none"),
    ],
)
def test_decorators_that_compile(decorators: list[str], position: int | None) -> None:
    lines = "\n".join(f"@{decorator}" for decorator in decorators)
    site = site_of(f"{HEAD}# mm: mjit\n{lines}\ndef f(x):\n    return x\n")
    assert isinstance(site.statement, ast.FunctionDef)
    assert jit_decorator(site, site.statement) == position


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("donate_argnums=(0, 1)", {"donate_argnums": "(0, 1)"}),
        ("static_argnames='x', inline=True, keep_unused=True", {"static_argnames": "'x'"}),
        ("in_shardings=None, out_shardings=(None, [None])", {}),
    ],
)
def test_options_that_a_compiled_step_has_too(options: str, expected: dict[str, str]) -> None:
    site = site_of(f"{HEAD}s = jax.jit(f, {options})  # mm: mjit\n")
    jit = jit_call(site, "mjit")
    assert carried(site, jit.keywords, jit.call) == expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("**o", "`**` hides the arguments of `jax.jit`; write them out"),
        (
            "device=d",
            "`mjit` has no `device=`: the mesh says which devices, and each task is compiled alone; remove it",
        ),
        (
            "in_shardings=(None, s)",
            "`in_shardings=` lays arrays out over one mesh, and here the mesh and the tasks decide that; remove it, "
            "and write `shard(...)` hints where a layout matters",
        ),
    ],
)
def test_options_that_say_more(options: str, reason: str) -> None:
    site = site_of(f"{HEAD}s = jax.jit(f, {options})  # mm: mjit\n")
    jit = jit_call(site, "mjit")
    assert refusal_of(lambda: carried(site, jit.keywords, jit.call))[1] == reason
