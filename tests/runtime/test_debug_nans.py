"""`jax_debug_nans` and `jax_debug_infs`: a step raises where `jax.jit` does, and names the origin."""

import contextlib
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mmruntime as mm
from tests.runtime.helpers import stages

# In the example of this number stage 1 makes an invalid value: in the third microbatch of four.
EXAMPLE = 5
X = np.ones((8, 2), np.float32)
X[EXAMPLE] = 2.0


def parameters(last: float) -> list[np.ndarray]:
    return [np.ones((2, 2), np.float32), np.full((2, 2), last, np.float32)]


GOOD, BAD = parameters(0.1), parameters(-1.35)


def log(w, x):
    return jnp.log(x @ w + 6)  # line of log


def root(w, x):
    return jnp.sqrt(jnp.maximum(x @ w + 6, 0))  # line of root


def rematerialised(w, x):
    return jax.checkpoint(log)(w, x)


def scanned(w, x):
    return jax.lax.scan(lambda x, w: (jnp.log(x @ w + 6), None), x, w[None])[0]  # line of scanned


def chosen(w, x):
    return jax.lax.cond(w.sum() < 0, lambda x: jnp.log(x @ w + 6), lambda x: x, x)  # line of chosen


def repeated(w, x):
    def body(state):
        return state[0] + 1, jnp.log(state[1] @ w + 6)  # line of repeated

    return jax.lax.while_loop(lambda state: state[0] < 1, body, (0, x))[1]


@jax.custom_vjp
def doubled(x):
    return x * 2


doubled.defvjp(lambda x: (x * 2, x), lambda x, g: (g * jnp.log(x),))


def custom(w, x):
    return doubled(x @ w + 6)  # line of custom


def masked(w, x):
    y = x @ w + 6
    return jnp.where(y > 0, jax.lax.stop_gradient(jnp.log(y)), y)


def partly_masked(w, x):
    y = x @ w + 6
    other = jnp.log(y)
    return jnp.where(y > 0, other, jnp.arccosh(jnp.where(y > 0, 2.0, y)))  # line of partly_masked


def infinite(w, x):
    return (100 * (x @ w)).astype(jnp.float16).astype(x.dtype)  # line of infinite


def attention(w, x):
    scores = jnp.where(jnp.tril(jnp.ones((len(x), len(x)), bool)), x @ x.T, -jnp.inf)
    return jax.nn.softmax(scores) @ (x @ w)


def line_of(layer) -> int:
    """The line that says so, with its number."""
    lines = Path(__file__).read_text().splitlines()
    return next((k for k, line in enumerate(lines, 1) if line.endswith(f"# line of {layer.__name__}")), 0)


def loss_of(layer):
    def loss(params, x):
        for index, w in enumerate(params):
            x = mm.task(layer, task=mm.stage(index, 2, axis="stage"))(w, x)
        return (x**2).mean()

    return loss


ONE = stages(1)


@contextlib.contextmanager
def debugging(kind: str):
    with getattr(jax, f"debug_{kind}s")(True):
        yield


def message(call, *args) -> str:
    try:
        jax.block_until_ready(call(*args))
    except FloatingPointError as error:
        return str(error)
    return ""


# A parameter for which a layer's result or gradient is invalid; of what kind that is, by which primitive, and whether
# that is in the backward pass. None where it is masked out again.
FORMS = {
    log: (-1.35, "nan", "log", ""),
    root: (-1.0, "nan", "mul", ", of gradients"),
    rematerialised: (-1.35, "nan", "log", ""),
    scanned: (-1.35, "nan", "log", ""),
    chosen: (-2.0, "nan", "log", ""),
    custom: (-1.35, "nan", "log", ", of gradients"),
    partly_masked: (-4.0, "nan", ".*", ""),
    masked: (-1.35, "nan", "", None),
    infinite: (-1.35, "inf", "convert_element_type", ""),
    attention: (-1.35, "inf", "", None),
}


@pytest.mark.family(4)
@pytest.mark.parametrize("layer", FORMS, ids=lambda layer: layer.__name__)
def test_a_step_raises_where_jax_does_and_names_the_first_equation(layer, capsys) -> None:
    last, kind, primitive, gradients = FORMS[layer]
    bad = parameters(last)
    fun = jax.value_and_grad(loss_of(layer))
    step = mm.mjit(fun, mesh=ONE)
    for _ in range(2):
        step(bad, X)
    with debugging(kind):
        assert message(jax.jit(fun), GOOD, X) == message(step, GOOD, X) == ""
        for _ in range(2):
            found = message(step, bad, X)
            assert bool(found) == bool(message(jax.jit(fun), bad, X)) == (gradients is not None)
            if gradients is not None:
                line = rf"{re.escape(__file__)}:{line_of(log if layer is rematerialised else layer)}"
                assert re.match(
                    rf"mjit: invalid value \({kind}\) encountered in {primitive} at {line}(:\d+)? \(.*\){gradients}, "
                    r"in task 'stage_0'\. It is in result.* of loss\.$",
                    found,
                )
    step(bad, X)
    capsys.readouterr()


def test_a_loop_of_while_is_followed() -> None:
    step = mm.mjit(lambda params, x: loss_of(repeated)(params, x), mesh=stages(2))
    with jax.debug_nans(True):
        assert f":{line_of(repeated)}" in message(step, BAD, X)


def accumulated(loss, how, schedule):
    def microbatch(params, x):
        return mm.microbatch(jax.value_and_grad(loss), size=2, argnum=1, schedule=schedule, reduce="exact")(params, x)

    def body(params):
        def add(rows, total):
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(params, rows))

        return add

    def loop(params, x):
        zeros = jax.tree.map(jnp.zeros_like, (jnp.zeros(()), params))
        return mm.microbatch_loop(body(params), schedule=schedule)(x.reshape(4, 2, 2), zeros)

    def scan(params, x):
        def run(rows):
            zeros = jax.tree.map(jnp.zeros_like, (jnp.zeros(()), params))
            return jax.lax.scan(lambda total, rows: (body(params)(rows, total), None), zeros, rows)[0]

        return mm.microbatch_scan(run, schedule=schedule)(x.reshape(4, 2, 2))

    return {"microbatch": microbatch, "loop": loop, "scan": scan, "none": jax.value_and_grad(loss)}[how]


@pytest.mark.family(5)
@pytest.mark.parametrize("donate", [(), (0,)], ids=["keep", "donate"])
@pytest.mark.parametrize(
    ("how", "schedule", "mesh"),
    [
        ("none", None, stages(2)),
        ("microbatch", "1f1b", stages(2)),
        ("microbatch", "zb-h1", stages(2, data=2)),
        ("microbatch", "gpipe", ONE),
        ("loop", "1f1b", stages(2)),
        ("scan", "1f1b", stages(2)),
    ],
    ids=str,
)
def test_every_carrier_names_task_microbatch_and_line(how, schedule, mesh, donate) -> None:
    grad = accumulated(loss_of(log), how, schedule)

    def step(params, x):
        loss, grads = grad(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    compiled = mm.mjit(step, mesh=mesh, donate_argnums=donate)

    def new(params):
        return jax.tree.map(jnp.array, params)

    for _ in range(2):
        assert np.isnan(compiled(new(BAD), X)[1])
    with jax.debug_nans(True):
        assert message(compiled, new(GOOD), X) == ""
        for _ in range(2):
            found = message(compiled, new(BAD), X)
            assert f"encountered in log at {__file__}:{line_of(log)}" in found
            assert f"in task 'stage_{mesh.shape['stage'] - 1}'" in found
            assert ("in microbatch 2 of 4, counted from 0" in found) == (how != "none")
    assert np.isnan(compiled(new(BAD), X)[1])
    assert compiled.num_plans == 2


def test_what_no_equation_made_is_named() -> None:
    holder = np.full((2, 2), np.nan, np.float32)
    nans = [holder, GOOD[1]]
    cases = {
        r"the argument params\[0\]\. It is in result of fun\.": (lambda params, x: loss_of(log)(params, x), nans),
        r"the argument params\[0\]\. It is in result\[0\]\[0\] of fun": (
            lambda params, x: (params, loss_of(log)(GOOD, x)),
            nans,
        ),
        r"a value that the step captures\. It is in result of fun": (
            lambda params, x: loss_of(log)(params, x @ holder),
            GOOD,
        ),
        r"the sum over microbatches, in microbatch 3 of 4": (
            lambda params, x: mm.microbatch(
                lambda x: x.sum(dtype=x.dtype), size=2, reduce="sum", accumulate="parameter"
            )(x),
            GOOD,
        ),
    }
    for mesh in (ONE, stages(2)):
        for expected, (fun, params) in cases.items():
            fun.__name__ = "fun"
            x = np.full((8, 2), 5000.0, np.float16) if "sum" in expected else X
            kind = "inf" if "sum" in expected else "nan"
            with debugging(kind):
                assert re.search(expected, message(mm.mjit(fun, mesh=mesh), params, x)), expected


def test_stacks_initialisers_and_steps_compiled_ahead() -> None:
    def fun(params, x):
        def run(x, params):
            return jax.lax.scan(lambda x, w: (log(w, x), None), x, params)[0]

        return (mm.stage_scan(run, axis="stage")(x, params) ** 2).mean()

    step = mm.mjit(jax.value_and_grad(fun), mesh=stages(2))
    good, bad = np.stack(GOOD), np.stack(BAD)
    ahead = step.lower(good, X).compile()
    step(good, X)
    init = mm.mjit(lambda scale: jnp.log(scale * jnp.ones((2, 2, 2))), out_like=step)
    init(-1.0)
    with jax.debug_nans(True):
        assert message(init, 1.0) == message(ahead, good, X) == message(step, good, X) == ""
        assert f"encountered in log at {__file__}:{line_of(log)}" in message(step, bad, X)
        assert re.search(r"encountered in log at .*test_debug_nans.py:\d+.*, in <lambda>", message(init, -1.0))
        assert "compiled ahead of its calls and without jax_debug_nans" in message(ahead, bad, X)
        assert "encountered in log at" in message(step.lower(good, X).compile(), bad, X)
        with pytest.raises(FloatingPointError, match="encountered in log at"):
            step.timeline(bad, X)
    ahead(bad, X)


def test_the_checks_of_jax_itself_stay_as_they_are(capsys) -> None:
    """A context of JAX, which would say the same, turns its checks off for good where they are on for the process."""
    step, other = mm.mjit(jax.value_and_grad(loss_of(log)), mesh=stages(2)), jax.jit(jnp.log)
    before = jax.config.jax_debug_nans
    try:
        jax.config.update("jax_debug_nans", True)
        assert message(step, GOOD, X) == ""
        assert message(step, BAD, X)
        assert message(other, -1.0)
    finally:
        jax.config.update("jax_debug_nans", before)
    assert np.isnan(step(BAD, X)[0])
    capsys.readouterr()
