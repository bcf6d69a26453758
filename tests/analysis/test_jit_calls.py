"""The forms in which a program compiles a function."""

from __future__ import annotations

import ast

import pytest
from hinted_sites import refusal_of, site_of

from mmrewrite.analysis.steps.compilers import carried
from mmrewrite.analysis.steps.jit_calls import jit_call, jit_decorator
from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source

pytestmark = pytest.mark.quick

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
        pytest.param("s = nnx.jit(graph=True)(f)  # mm: mjit", "f", ["graph"], id="of another library"),
        pytest.param("s = jax.pmap(f, 'i')  # mm: mjit", "f", ["axis_name"], id="an option by position"),
        pytest.param("c = nnx.jit\ns = c(f)  # mm: mjit", "f", [], id="by an alias"),
        pytest.param("s = jax.jit(inline=True, fun=f)  # mm: mjit", "f", ["inline"], id="by name"),
        pytest.param("s = jax.jit(inline=True)(fun=f)  # mm: mjit", "f", ["inline"], id="by name, options first"),
    ],
)
def test_calls_that_compile(text: str, function: str, keywords: list[str]) -> None:
    found = jit_call(site_of(f"{HEAD}{text}\n"), "mjit")
    assert (ast.unparse(found.function), [keyword.arg for keyword in found.keywords]) == (function, keywords)


@pytest.mark.parametrize(
    "call", ["jax.jit(donate_argnums=0, fun=f)", "jax.jit(fun=f, donate_argnums=0)", "jax.jit(donate_argnums=0)(fun=f)"]
)
def test_a_function_that_is_given_by_name_is_first(call: str) -> None:
    text = f"{HEAD}# mm: mesh(stage=2)\ns = {call}  # mm: mjit\ny = s(1)  # mm: task(stage=0)\n"
    assert "s = mm.mjit(f, mesh=mesh, donate_argnums=0)\n" in rewrite_source(text, Registry()).result.decode()


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
            "import haiku as hk\ns = hk.jit(f)  # mm: mjit",
            "`hk.jit` carries Haiku's state along; apply `hk.transform` to the whole step, compile what it gives with "
            "`jax.jit`, and hint that",
            id="another library's",
        ),
        pytest.param(
            "c = jax.jit if x else lambda f: f\ns = c(f)  # mm: mjit",
            "`c` may be `lambda f: f` (line 5), which is none of `jax.jit`, `nnx.jit`, `eqx.filter_jit`, "
            "`eqx.filter_pmap` and `jax.pmap`; let every choice be one of them",
            id="a choice that does not compile",
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
        pytest.param(["eqx.filter_jit(donate='all')"], 0, id="of another library"),
        pytest.param(["jax.checkpoint"], None, id="none"),
    ],
)
def test_decorators_that_compile(decorators: list[str], position: int | None) -> None:
    lines = "\n".join(f"@{decorator}" for decorator in decorators)
    site = site_of(f"{HEAD}# mm: mjit\n{lines}\ndef f(x):\n    return x\n")
    assert isinstance(site.statement, ast.FunctionDef)
    found = jit_decorator(site, site.statement)
    assert (found and found[0]) == position


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("donate_argnums=(0, 1)", {"donate_argnums": "(0, 1)"}),
        ("static_argnames='x', inline=True, keep_unused=True", {"static_argnames": "'x'"}),
        ("in_shardings=None, out_shardings=(None, [None])", {}),
        ("in_shardings=(None, s)", {"in_shardings": "(None, s)"}),
    ],
)
def test_options_that_a_compiled_step_has_too(options: str, expected: dict[str, str]) -> None:
    site = site_of(f"{HEAD}s = jax.jit(f, {options})  # mm: mjit\n")
    jit = jit_call(site, "mjit")
    assert carried(site, jit.compiler, jit.keywords, jit.call) == expected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("**o", "`**` hides the arguments of `jax.jit`; write them out"),
        (
            "device=d",
            "`mjit` has no `device=`: the mesh says which devices, and each task is compiled alone; remove it",
        ),
    ],
)
def test_options_that_say_more(options: str, reason: str) -> None:
    site = site_of(f"{HEAD}s = jax.jit(f, {options})  # mm: mjit\n")
    jit = jit_call(site, "mjit")
    assert refusal_of(lambda: carried(site, jit.compiler, jit.keywords, jit.call))[1] == reason


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("nnx.jit(f, donate_argnums=0, graph=True)", {"like": "nnx.jit", "donate_argnums": "0"}),
        ("eqx.filter_jit(f, donate='all')", {"like": "eqx.filter_jit", "donate": "'all'"}),
        ("jax.pmap(f, 'i', in_axes=1)", {"like": "jax.pmap", "axis_name": "'i'", "in_axes": "1"}),
        ("(nnx.jit if x else jax.jit)(f)", {"like": "nnx.jit if x else jax.jit"}),
        ("{'a': nnx.jit, 'b': jax.jit}[k](f)", {"like": "{'a': nnx.jit, 'b': jax.jit}[k]"}),
        ("functools.partial(jax.pmap, axis_name='i')(f)", {"like": "jax.pmap", "axis_name": "'i'"}),
    ],
)
def test_other_functions_that_compile(call: str, expected: dict[str, str]) -> None:
    site = site_of(f"{HEAD}s = {call}  # mm: mjit\n")
    jit = jit_call(site, "mjit")
    assert carried(site, jit.compiler, jit.keywords, jit.call) == expected


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("nnx.jit(f, in_shardings=s)", "`in_shardings=` of `nnx.jit` lays out arguments that are taken apart here; "),
        ("jax.pmap(f, devices=d)", "`mjit` has no `devices=`: the mesh says which devices, "),
        ("eqx.filter_jit(f, **o)", "`**` hides the arguments of `eqx.filter_jit`; write them out"),
        ("eqx.filter_jit(*f)", "`*` hides what `eqx.filter_jit` compiles; pass it by position"),
    ],
)
def test_what_other_functions_say_more(call: str, reason: str) -> None:
    site = site_of(f"{HEAD}s = {call}  # mm: mjit\n")

    def options() -> None:
        jit = jit_call(site, "mjit")
        carried(site, jit.compiler, jit.keywords, jit.call)

    assert refusal_of(options)[1].startswith(reason)
