"""Microbatches and steps in the body of a loop of JAX, or in a branch, are told at their line: each is one program."""

from __future__ import annotations

import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source

REGISTRY = Registry()

PROGRAM = """import functools

import jax
import jax.numpy as jnp

# mm: mesh(stage=2)


def loss_fn(params, x):
    for p in params:  # mm: stages
        x = x @ p
    return x.sum()


def update(params, x):
    grads = jax.grad(loss_fn)(params, x)  # mm: microbatch(size=2)
    return jax.tree.map(jnp.subtract, params, grads), None


@jax.jit  # mm: mjit
def step(params, xs):
    {body}
"""
SAFE = "compile the function that it repeats, `# mm: mjit`, and write the loop in Python"
CHOOSE = "compute the gradients in front of it, and let its branches choose between the old values and the new ones"


def refusals(body: str, program: str = PROGRAM) -> list[tuple[int, str]]:
    """Those that are no consequence of another."""
    result = rewrite_source(program.replace("{body}", body.replace("\n", "\n    ")), REGISTRY)
    assert not result.errors
    assert result.changed is not bool(result.refusals)
    return [(each.line, each.reason) for each in result.refusals if not each.is_consequence]


@pytest.mark.parametrize(
    ("body", "line", "loop", "advice"),
    [
        pytest.param("return jax.lax.scan(update, params, xs)", 22, "scan", SAFE, id="a scan"),
        pytest.param("return jax.lax.scan(f=update, init=params, xs=xs)", 22, "scan", SAFE, id="by keyword"),
        pytest.param("return jax.lax.scan(jax.checkpoint(update), params, xs)", 22, "scan", SAFE, id="a checkpoint"),
        pytest.param("return jax.lax.map(functools.partial(update, params), xs)", 22, "map", SAFE, id="a partial"),
        pytest.param(
            "return jax.lax.fori_loop(0, 2, lambda i, p: update(p, xs[i])[0], params)",
            22,
            "fori_loop",
            SAFE,
            id="lambda",
        ),
        pytest.param(
            "def turn(i, p):\n    return update(p, xs[i])[0]\n\nreturn jax.lax.fori_loop(0, 2, turn, params)",
            25,
            "fori_loop",
            SAFE,
            id="called by the body",
        ),
        pytest.param(
            "def turn(c):\n    return c[0] + 1, update(c[1], xs)[0]\n\n"
            "return jax.lax.while_loop(lambda c: c[0] < 3, turn, (0, params))",
            25,
            "while_loop",
            SAFE,
            id="a while loop",
        ),
        pytest.param(
            "return jax.lax.cond(xs[0, 0] > 0, update, lambda p, x: (p, None), params, xs)",
            22,
            "cond",
            CHOOSE,
            id="cond",
        ),
        pytest.param("return jax.lax.switch(0, [update, update], params, xs)", 22, "switch", CHOOSE, id="a switch"),
    ],
)
def test_a_program_around_microbatches_is_named(body: str, line: int, loop: str, advice: str) -> None:
    ((where, reason),) = refusals(body)
    assert where == 16
    assert reason.startswith(f"`jax.lax.{loop}` on line {line} runs these microbatches")
    assert reason.endswith(advice)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("return update(params, xs)", id="no loop"),
        pytest.param("for x in xs:\n    params, _ = update(params, x)\nreturn params", id="a loop of Python"),
        pytest.param("return jax.lax.scan(lambda c, x: (c, x), update(params, xs)[0], xs)", id="in front of a scan"),
        pytest.param("return jax.vmap(lambda s: update(params, s * xs))(jnp.ones(2))", id="vmap keeps the pipeline"),
        pytest.param("return jax.checkpoint(update)(params, xs)", id="so does a checkpoint"),
    ],
)
def test_what_leaves_the_pipeline_is_rewritten(body: str) -> None:
    assert refusals(body) == []


def test_without_tasks_the_loop_may_be_one_program() -> None:
    """The microbatches only save memory then, which they do in a scan as well."""
    program = (
        PROGRAM.replace("  # mm: stages", "")
        .replace("stage=2", "data=2")
        .replace("        x = x @ p\n", '        x = x @ p  # mm: shard("batch", None)\n')
    )
    program = program.replace("mesh(data=2)", 'mesh(data=2); axes(batch="data")')
    assert refusals("return jax.lax.scan(update, params, xs)", program) == []


def test_the_advice_works() -> None:
    program = PROGRAM.replace("def update", "@jax.jit  # mm: mjit\ndef update").replace(
        "@jax.jit  # mm: mjit\ndef step", "def step"
    )
    assert refusals("for x in xs:\n    params, _ = update(params, x)\nreturn params", program) == []
    choice = "lambda new, old: new, lambda new, old: old, new, params"
    branch = f"new, _ = update(params, xs)\nreturn jax.lax.cond(xs[0, 0] > 0, {choice})"
    assert refusals(branch) == []


def test_a_loop_of_python_in_a_body_is_refused_too() -> None:
    program = PROGRAM.replace(
        "    grads = jax.grad(loss_fn)(params, x)  # mm: microbatch(size=2)\n",
        "    grads = jax.tree.map(jnp.zeros_like, params)\n"
        "    for i in range(2):  # mm: microbatch(count=2)\n"
        "        grads = jax.tree.map(jnp.add, grads, jax.grad(loss_fn)(params, x[i]))\n",
    )
    ((where, reason),) = refusals("return jax.lax.scan(update, params, xs)", program)
    assert where == 17
    assert reason.startswith("`jax.lax.scan` on line 24 runs these microbatches")


STEP = PROGRAM.replace("def update", "@jax.jit  # mm: mjit\ndef update").replace(
    "@jax.jit  # mm: mjit\ndef step", "def run"
)
ASSIGNED = PROGRAM.replace("@jax.jit  # mm: mjit\ndef step", "step = jax.jit(update)  # mm: mjit\n\n\ndef run")


def reported(body: str, program: str) -> list[str]:
    result = rewrite_source(program.replace("{body}", body.replace("\n", "\n    ")), REGISTRY)
    assert not result.errors
    assert result.changed
    return [f"{each.line}:{each.column}: {each.reason}" for each in result.refusals]


@pytest.mark.parametrize(
    ("body", "place", "program"),
    [
        pytest.param("return jax.lax.scan(update, params, xs)", "22:12: `jax.lax.scan`", STEP, id="decorated"),
        pytest.param("return jax.lax.scan(step, params, xs)", "24:12: `jax.lax.scan`", ASSIGNED, id="assigned"),
        pytest.param(
            "return jax.lax.fori_loop(0, 2, lambda i, p: update(p, xs[i])[0], params)",
            "22:12: `jax.lax.fori_loop`",
            STEP,
            id="called by a lambda",
        ),
        pytest.param(
            "turn = lambda p, x: update(p, x)\nreturn jax.lax.scan(turn, params, xs)",
            "23:12: `jax.lax.scan`",
            STEP,
            id="called by a lambda with a name",
        ),
        pytest.param(
            "def turn(p, x):\n    return update(p, x)\n\nreturn jax.lax.scan(f=turn, init=params, xs=xs)",
            "25:12: `jax.lax.scan`",
            STEP,
            id="called by the body",
        ),
        pytest.param(
            "return jax.lax.cond(xs[0, 0] > 0, update, lambda p, x: (p, None), params, xs)",
            "22:12: `jax.lax.cond`",
            STEP,
            id="a branch",
        ),
    ],
)
def test_a_program_around_a_step_is_named(body: str, place: str, program: str) -> None:
    (found,) = reported(body, program)
    assert found.startswith(
        f"{place} is one program, so that the step for the mesh which it runs is a part of that one"
    )


@pytest.mark.parametrize("name", ["grad", "vmap", "value_and_grad", "checkpoint"])
def test_a_transformation_of_a_step_is_named(name: str) -> None:
    (found,) = reported(f"return jax.{name}(update)(params, xs)", STEP)
    assert found.startswith(f"22:12: `jax.{name}` traces through the step for the mesh that it is given")


def test_it_can_be_meant() -> None:
    meant = "return jax.grad(update)(params, xs)  # mm: ignore[compile_for_mesh]"
    assert reported(meant, STEP) == []


def test_the_advice_about_transformations_works() -> None:
    """A step may be given to a transformation in another step: its tasks are tasks of that one."""
    program = STEP.replace("def run", "@jax.jit  # mm: mjit\ndef run")
    assert reported("return jax.vmap(update, (None, 0))(params, xs)", program) == []


def test_what_a_step_has_computed_is_no_step() -> None:
    found = reported("params, _ = update(params, xs)\nreturn jax.vmap(params)(xs)", STEP)
    assert not any("traces through" in each for each in found)
    block = "if True:\n    new = update(1, 2)\n    double = jax.vmap(new)\n\n\n"
    assert reported("return params", STEP.replace("def run", f"{block}def run")) == []


def test_a_class_is_more_than_what_is_read_of_it() -> None:
    trainer = "class Trainer:\n    scale = 1\n\n    def train(self):\n        return update(1, 2)\n\n\n"
    program = STEP.replace("def run", f"{trainer}def run")
    assert reported("return jax.grad(lambda p: Trainer.scale * p.sum())(params)", program) == []


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("for x in xs:\n    params, _ = update(params, x)\nreturn params", id="a loop of Python"),
        pytest.param("return jax.grad(jnp.sum)(update(params, xs)[0])", id="a gradient of its results"),
        pytest.param("return jax.lax.scan(lambda c, x: (c, x), update(params, xs)[0], xs)[0]", id="before a scan"),
        pytest.param("return jax.lax.map(jnp.tanh, update(params, xs)[0])", id="a function of JAX"),
    ],
)
def test_a_step_outside_of_programs_is_not(body: str) -> None:
    # The values that a loop is given are computed in front of it.
    assert reported(body, STEP) == []


METHOD = """@jax.jit  # mm: mjit
    def step(self, params, x):
        return update(params, x)
"""
TRAINER = f"""class Base:
    {METHOD}

class Trainer(Base):
    def __init__(self):
        self.alias = self.step

    def turn(self, params, x):
        return self.step(params, x)

    def run(self, params, xs):
        {{body}}


class Loop:
    def __init__(self):
        self.trainer = Trainer()


TRAINER = Trainer()
"""
METHODS = f"{PROGRAM.split('@jax.jit')[0]}{TRAINER}"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("return jax.grad(self.step)(params, xs)", id="a method of a base"),
        pytest.param("return jax.lax.scan(self.turn, params, xs)", id="called by a method"),
        pytest.param("return jax.lax.scan(lambda p, x: self.turn(p, x), params, xs)", id="called by a lambda"),
        pytest.param("return jax.vmap(self.alias)(params, xs)", id="an attribute"),
        pytest.param("alias = self.turn\n    return jax.vmap(alias)(params, xs)", id="a name for it"),
        pytest.param("part = functools.partial(self.turn, x=xs)\n    return jax.vmap(part)(params)", id="a part of it"),
    ],
)
def test_a_method_is_followed(body: str) -> None:
    (found,) = reported(body, METHODS)
    assert "step for the mesh" in found


@pytest.mark.parametrize(
    "function",
    ["TRAINER.step", "TRAINER.turn", "Trainer().turn", "LOOP.trainer.turn", "lambda p, x: TRAINER.step(p, x)"],
)
def test_an_object_is_followed(function: str) -> None:
    (found,) = reported("pass", f"{METHODS}LOOP = Loop()\nfound = jax.grad({function})(1, 2)\n")
    assert "step for the mesh" in found


def test_a_method_of_a_class_that_extends_another_is_followed() -> None:
    base = "class Base:\n    def run(self, params, xs):\n        return jax.grad(self.step)(params, xs)\n\n\n"
    own = METHODS.replace("class Base:", f"{base}class Own(Base):").replace(
        "class Trainer(Base):", "class Trainer(Own):"
    )
    (found,) = reported("pass", own)
    assert "step for the mesh" in found


def test_an_annotated_argument_is_followed() -> None:
    (found,) = reported("pass", f"{METHODS}\n\ndef train(it: Trainer, xs):\n    return jax.grad(it.turn)(xs, xs)\n")
    assert "step for the mesh" in found


@pytest.mark.parametrize("function", ["self.loss", "self.params.step", "other.step", "self.loss.step"])
def test_other_methods_are_not_steps(function: str) -> None:
    loss = "    def loss(self, params, x):\n        return x.sum()\n\n    def turn"
    body = f"other = xs\n    return jax.grad({function})(params, xs)"
    assert reported(body, METHODS.replace("    def turn", loss)) == []
