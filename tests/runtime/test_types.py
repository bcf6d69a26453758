"""Strict type checkers find nothing in what the tool writes, and still find mistakes of those who call it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

# mm: mesh(stage=2, data=2); axes(batch="data", rows=("data",), hidden=None)
Params = list[jax.Array]
"""
PROGRAMS = {
    "decorated": """
def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    # mm: shard("batch", None)
    return jnp.tanh(x @ w)

# mm: task(stage=0)
def embed(x: jax.Array, scale: float = 1.0) -> jax.Array:
    return x * scale

def forward(params: Params, x: jax.Array) -> jax.Array:
    x = embed(x, scale=2.0)
    for w in params:  # mm: stages
        x = layer(x, w)
    return embed(x)

def loss_fn(params: Params, x: jax.Array) -> jax.Array:
    return jnp.mean(forward(params, x))

@jax.jit  # mm: mjit
def step(params: Params, x: jax.Array) -> tuple[Params, jax.Array]:
    # mm: microbatch(size=2, argnum=1, schedule="1f1b")
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    return [w - 0.1 * g for w, g in zip(params, grads, strict=True)], loss

def train(params: Params, x: jax.Array) -> tuple[Params, jax.Array]:
    return step(params, x)

params, loss = train([jnp.eye(4)] * 2, jnp.ones((8, 4)))
kept = jax.device_get(params)  # mm: gather(params)

class Trainer:
    def __init__(self, rate: float) -> None:
        self.params: Params = [jnp.eye(4) for _ in range(2)]

    @functools.partial(jax.jit, static_argnums=0)  # mm: mjit
    def step(self, params: Params, x: jax.Array) -> Params:
        def loss(params: Params) -> jax.Array:
            return forward(params, x).mean()

        grads: Params = jax.grad(loss)(params)  # mm: microbatch(count=2, argnum="x")
        return grads

    def train(self, x: jax.Array) -> None:
        self.params = self.step(self.params, x)
""",
    "called": """
def loss_fn(params: Params, x: jax.Array, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    x = x + jax.random.normal(key, x.shape)
    for i, w in enumerate(params):  # mm: stages(weights="flops")
        x = x @ w
    return x.mean(), {"largest": x.max()}

def train(params: Params, x: jax.Array, key: jax.Array, rate: float) -> tuple[Params, jax.Array]:
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    # mm: microbatch(count=2, argnum=1, rng=2, schedule="auto", memory_bytes="1GB")
    (loss, metrics), grads = grad_fn(params, x, key)
    return [w - rate * g for w, g in zip(params, grads, strict=True)], loss + metrics["largest"]

step = jax.jit(train, static_argnums=(3,), donate_argnums=(0,))  # mm: mjit

def optimize(step: Callable[[Params, jax.Array, jax.Array, float], tuple[Params, jax.Array]]) -> jax.Array:
    return step([jnp.eye(4)] * 2, jnp.ones((4, 4)), jax.random.key(0), 0.1)[1]

def trained() -> jax.Array:
    return optimize(step) + step([jnp.eye(4)] * 2, jnp.ones((4, 4)), jax.random.key(0), 0.1)[1]
""",
    "loops": """
def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)

def indexed(params: Params, x: jax.Array) -> jax.Array:
    for i in range(len(params)):  # mm: stages
        x = layer(x, params[i])
    return x

def zipped(params: Params, scales: list[float], x: jax.Array) -> Params:
    seen = []
    for w, scale in zip(params, scales, strict=True):  # mm: stages(chunks=2)
        x = layer(x, w) * scale
        seen.append(x)
    return seen

def carried(params: Params, x: jax.Array, largest: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    total = jnp.zeros(())
    largest = x.max() if largest is None else largest
    for w in params:  # mm: stages(weights=[1, 2, 3, 4])
        x = x @ w
        total = total + x.sum() + largest.sum()
        largest = jnp.maximum(largest, x.max())
    return x, total

def stacked(params: jax.Array, x: jax.Array) -> jax.Array:
    def body(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return layer(x, w), None

    x, _ = jax.lax.scan(body, x, params)  # mm: stages
    return x

def placed(params: Params, x: jax.Array) -> jax.Array:
    for i, w in enumerate(params):  # mm: task(stage=i // 2)
        x = x @ w
        x = jnp.sin(x)
    return layer(x, params[0])  # mm: task(stage=0)

def loss_fn(params: Params, x: jax.Array) -> jax.Array:
    x, total = carried(params, placed(params, indexed(params, x)))
    return stacked(jnp.stack(params), zipped(params, [1.0] * 4, x)[-1]).sum() + total

@jax.jit  # mm: mjit
def step(params: Params, batches: jax.Array) -> tuple[jax.Array, Params]:
    grads = [jnp.zeros_like(w) for w in params]
    total: jax.Array = jnp.zeros(())
    for i in range(4):  # mm: microbatch(count=4, schedule="auto", memory_bytes="1GB")
        loss, g = jax.value_and_grad(loss_fn)(params, batches[i])
        grads = [a + b for a, b in zip(grads, g, strict=True)]
        total = total + loss
    return total, grads

@jax.jit  # mm: mjit
def scanned(params: Params, batches: jax.Array) -> tuple[jax.Array, Params]:
    def body(carry: tuple[jax.Array, Params], x: jax.Array) -> tuple[tuple[jax.Array, Params], None]:
        total, grads = carry
        loss, g = jax.value_and_grad(loss_fn)(params, x)
        return (total + loss, [a + b for a, b in zip(grads, g, strict=True)]), None

    zeros = [jnp.zeros_like(w) for w in params]
    # mm: microbatch(count=4)
    (total, grads), _ = jax.lax.scan(body, (jnp.zeros(()), zeros), batches)
    return total, grads
""",
    "objects": """
# mm: register(r"h_(\\d+)", stage="int({0})")

class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(4)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:  # mm: stages
            x = layer(x)
        return x

def loss_fn(model: Model, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x))

@nnx.jit  # mm: mjit
def step(model: Model, x: jax.Array) -> jax.Array:
    # mm: microbatch(count=2, argnum=1)
    loss, grads = nnx.value_and_grad(loss_fn)(model, x)
    return jnp.asarray(loss)

def train(model: Model, x: jax.Array) -> jax.Array:
    return step(model, x)

class Scales(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:  # mm: stages
            x = jax.vmap(layer)(x)
        return x

    # mm: task(stage=1)
    def halved(self, x: jax.Array) -> jax.Array:
        return self(x) / 2

def loss_of_scales(model: Scales, x: jax.Array) -> jax.Array:
    return jnp.mean(model.halved(x))

@eqx.filter_jit  # mm: mjit
def step_of_scales(model: Scales, x: jax.Array) -> tuple[jax.Array, Scales]:
    # mm: microbatch(count=2, argnum=1)
    return eqx.filter_value_and_grad(loss_of_scales)(model, x)

def train_scales(model: Scales, x: jax.Array) -> tuple[jax.Array, Scales]:
    return step_of_scales(model, x)

# mm: task(stage=1)
class Block(nn.Module):
    width: int = 3

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.sin(x)

def width_of(block: Block) -> int:
    return block.width

@jax.jit  # mm: mjit
def evaluate(x: jax.Array) -> jax.Array:
    with jax.named_scope("h_0"):
        return x + width_of(Block(width=4))
""",
    "parallelized": """
def init() -> Params:
    return [jnp.eye(4) for _ in range(2)]

def load() -> jax.Array:
    return jnp.ones((4, 4))

# mm: parallelize(init_params=init, get_input_batch=load)
def evaluate(params: Params, x: jax.Array) -> jax.Array:
    for w in params:  # mm: stages
        x = jnp.tanh(x @ w)
    return x.mean()

def total() -> jax.Array:
    return evaluate(init(), load())
""",
}
WRITTEN = (
    "@functools.partial(mm.mjit, mesh=mesh)",
    "= mm.mjit(train, mesh=mesh",
    "like=nnx.jit",
    "like=eqx.filter_jit",
    "mm.microbatch(",
    "mm.microbatch_loop(",
    "mm.microbatch_scan(",
    "mm.stage_scan(",
    "mm.schedules.Auto(",
    "mm.with_sharding_constraint(",
    "@functools.partial(mm.task,",
    "mm.flax.task",
    "mm.parallelize(",
    "mm.gather(",
    "mm.MultiMesh(",
    "(match: str, backprop: bool) -> mm.Task:",
    "def loss(params: Params, x: jax.Array) -> jax.Array:",
    "def accumulate(i: Any, grads: Any, total: jax.Array) -> tuple[Any, jax.Array]:",
    "largest: Any",  # Where the loop begins, it is known not to be None.
)
MISTAKE = "\nstep(3)\n"


@pytest.fixture
def programs(tmp_path):
    """The rewritten programs, and one of them with a mistake of types."""
    written = ""
    for name, text in PROGRAMS.items():
        rewrite = rewrite_source(HEAD + text, Registry())
        assert rewrite.changed and not rewrite.refusals, (name, rewrite.refusals, rewrite.errors)
        after = rewrite.result.decode()
        written += after
        (tmp_path / f"{name}.py").write_text(after)
        if name == "decorated":
            (tmp_path / "mistaken.py").write_text(after + MISTAKE)
    assert [part for part in WRITTEN if part not in written] == []
    return tmp_path


def complaints(command, programs, is_complaint):
    found = subprocess.run(command, cwd=programs, capture_output=True, text=True, check=False)
    lines = [line.strip() for line in found.stdout.splitlines() if is_complaint(line)]
    assert any("mistaken.py" in line for line in lines), found.stdout + found.stderr
    return [line for line in lines if "mistaken.py" not in line]


@pytest.mark.slow
def test_mypy_is_content_with_the_rewritten_programs(programs):
    pytest.importorskip("mypy")
    options = ["strict = True", f"mypy_path = {ROOT / 'runtime'}", "untyped_calls_exclude = jax"]
    (programs / "mypy.ini").write_text("\n".join(["[mypy]", *options]))
    command = [sys.executable, "-m", "mypy", "--cache-dir", programs / "cache", *sorted(programs.glob("*.py"))]
    assert complaints(command, programs, lambda line: ": error:" in line) == []


@pytest.mark.slow
def test_pyright_is_content_with_the_rewritten_programs(programs):
    pytest.importorskip("pyright")
    (programs / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT / "runtime")]}))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", programs]
    assert complaints(command, programs, lambda line: " - error:" in line) == []
