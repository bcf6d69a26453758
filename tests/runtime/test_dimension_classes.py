"""What a model axis may cut of a layer, told from its trace: pairs of products, and no dimension of another kind."""

import importlib
import sys

import pytest

from mmruntime._commands.entry_point import FunctionName
from mmruntime._commands.suggest import costs

_PROGRAM = """
import functools
import jax, jax.numpy as jnp
import mmruntime as mm

mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))
B, L, D = 4, 6, 8

def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

def attend(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

def heads(x, w, count=4):
    return (x @ w).reshape(*x.shape[:2], count, -1)

def dense(w, x):
    return x @ w

{layer}

SHAPES = {shapes}

def loss_fn(params, x):
    for i, p in enumerate(params):
        x = mm.task(layer, task=mm.stage(i, 2))(p, x)
    return jnp.mean(x ** 2)

@functools.partial(mm.mjit, mesh=mesh)
def step(params, x):
    loss, grads = mm.microbatch(jax.value_and_grad(loss_fn), count=2, argnum=1, reduce="exact")(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

def example():
    params = [{{name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in SHAPES.items()}} for _ in range(2)]
    return params, jax.ShapeDtypeStruct((2 * B, L, D), jnp.float32)
"""
_QKV = dict.fromkeys("qkv", (8, 4, 2)) | {"o": (4, 2, 8)}
# The body of a layer, the shapes of its parameters, and the expressions that make what may be cut, with what its axis
# must divide.
FORMS = {
    "mlp": ('x + jax.nn.gelu(x @ p["up"]) @ p["down"]', {"up": (8, 32), "down": (32, 8)}, {'x @ p["up"]': 32}),
    "bias": (
        'x + jnp.maximum(x @ p["up"] + p["b"][None, None], 0) @ p["down"]',
        {"up": (8, 12), "b": (12,), "down": (12, 8)},
        {'x @ p["up"]': 12},
    ),
    "gated": (
        'x + (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]',
        {"gate": (8, 16), "up": (8, 16), "down": (16, 8)},
        {'x @ p["gate"]': 16, 'x @ p["up"]': 16},
    ),
    "transposed parameters": (
        'x + jnp.tanh(x @ p["up"].T) @ p["down"].T',
        {"up": (32, 8), "down": (8, 32)},
        {'x @ p["up"].T': 32},
    ),
    "called twice": (
        'x + dense(p["down"], jnp.tanh(dense(p["up"], x)))',
        {"up": (8, 32), "down": (32, 8)},
        {"x @ w": 32},
    ),
    "attention": (
        'x + jnp.einsum("blhd,hde->ble", attend(*(jnp.einsum("bld,dhe->blhe", x, p[k]) for k in "qkv")), p["o"])',
        _QKV,
        {'jnp.einsum("bld,dhe->blhe", x, p[k])': 4},
    ),
    "heads of a flat product": (
        'x + attend(*(heads(x, p[k]) for k in "qkv")).reshape(x.shape) @ p["o"]',
        dict.fromkeys("qkvo", (8, 8)),
        {"x @ w": 4},
    ),
    "q, k and v of each head together": (
        'x + attend(*jnp.split((x @ p["qkv"]).reshape(*x.shape[:2], 4, 6), 3, -1)).reshape(x.shape) @ p["o"]',
        {"qkv": (8, 24), "o": (8, 8)},
        {'x @ p["qkv"]': 4},
    ),
    "q, k and v one after the other": (
        'x + attend(*jnp.split((x @ p["qkv"]).reshape(*x.shape[:2], 12, 2), 3, 2)).reshape(x.shape) @ p["o"]',
        {"qkv": (8, 24), "o": (8, 8)},
        {},
    ),
    "grouped queries": (
        'x + attend(heads(x, p["q"]), *(jnp.repeat(heads(x, p[k], 2), 2, 2) for k in "kv")).reshape(x.shape) @ p["o"]',
        {"q": (8, 8), "k": (8, 4), "v": (8, 4), "o": (8, 8)},
        {"x @ w": 2},
    ),
    # Of queries alone.
    "heads drawn from a table": (
        'x + attend(heads(x, p["q"]), *(heads(x, p[k], 2)[:, :, jnp.array([0, 0, 1, 1])] for k in "kv"))'
        '.reshape(x.shape) @ p["o"]',
        {"q": (8, 8), "k": (8, 4), "v": (8, 4), "o": (8, 8)},
        {"x @ w": 4},
    ),
    "norm of each head": (
        'x + attend(*(norm(heads(x, p[k])) for k in "qkv")).reshape(x.shape) @ p["o"]',
        dict.fromkeys("qkvo", (8, 8)),
        {"x @ w": 4},
    ),
    # Of values, which are not multiplied with each other.
    "one head": (
        'x + attend(*(heads(x, p[k], 1) for k in "qkv")).reshape(x.shape) @ p["o"]',
        dict.fromkeys("qkvo", (8, 8)),
        {"x @ w": 8},
    ),
    "norm over the width": ('x + norm(x @ p["up"]) @ p["down"]', {"up": (8, 32), "down": (32, 8)}, {}),
    "softmax over the width": ('x + jax.nn.softmax(x @ p["up"]) @ p["down"]', {"up": (8, 32), "down": (32, 8)}, {}),
    "sorted": ('x + jnp.sort(x @ p["up"]) @ p["down"]', {"up": (8, 32), "down": (32, 8)}, {}),
    "running sum": ('x + jnp.cumsum(x @ p["up"], -1) @ p["down"]', {"up": (8, 32), "down": (32, 8)}, {}),
    "permuted": ('x + (x @ p["up"])[..., jnp.arange(31, -1, -1)] @ p["down"]', {"up": (8, 32), "down": (32, 8)}, {}),
    "reversed": ('x + (x @ p["up"])[..., ::-1] @ p["down"]', {"up": (8, 32), "down": (32, 8)}, {}),
    "half of it": ('x + (x @ p["up"])[..., :16] @ p["down"]', {"up": (8, 32), "down": (16, 8)}, {}),
    "rolled": ('x + jnp.roll(x @ p["up"], 1, -1) @ p["down"]', {"up": (8, 32), "down": (32, 8)}, {}),
    "residual stream": ('x @ p["w"] + x', {"w": (8, 8)}, {}),
    "width that leaves": ('jnp.tanh(x @ p["up"]) @ p["down"]', {"up": (8, 8), "down": (8, 8)}, {'x @ p["up"]': 8}),
    "contracted by values": ('x + (h := x @ p["up"]) @ jnp.swapaxes(h, 1, 2) @ x', {"up": (8, 32)}, {}),
    "one parameter both ways": ('x + jnp.tanh(x @ p["w"]) @ p["w"].T', {"w": (8, 32)}, {'x @ p["w"]': 32}),
    "convolution": (
        'x + jax.lax.conv_general_dilated(x @ p["up"], p["k"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))',
        {"up": (8, 16), "k": (3, 16, 8)},
        {},
    ),
    "tokens mixed": (
        'x + jnp.swapaxes(jnp.tanh(jnp.swapaxes(x, 1, 2) @ p["up"]) @ p["down"], 1, 2)',
        {"up": (6, 12), "down": (12, 6)},
        {'jnp.swapaxes(x, 1, 2) @ p["up"]': 12},
    ),
    "experts": (
        'x + jnp.einsum("ebld,ble->bld", jnp.tanh(jnp.einsum("bld,edf->eblf", x, p["up"])) @ p["down"][:, None],'
        ' jax.nn.softmax(x @ p["router"]))',
        {"up": (4, 8, 16), "down": (4, 16, 8), "router": (8, 4)},
        {'jnp.einsum("bld,edf->eblf", x, p["up"])': 16},
    ),
    "in a scan": (
        'jax.lax.scan(lambda y, w: (y + jnp.tanh(y @ w[0]) @ w[1], None), x, (p["up"], p["down"]))[0]',
        {"up": (3, 8, 32), "down": (3, 32, 8)},
        {"y @ w[0]": 32},
    ),
    "carried by a scan": (
        'x + jax.lax.scan(lambda h, w: (jnp.tanh(h * w[None, None]), None), x @ p["up"], p["g"])[0] @ p["down"]',
        {"up": (8, 32), "g": (3, 32), "down": (32, 8)},
        {'x @ p["up"]': 32},
    ),
    "gone along by a scan": (
        'x + jnp.moveaxis(jax.lax.scan(lambda c, h: (c + h, c), 0 * x[..., 0], jnp.moveaxis(x @ p["up"], -1, 0))'
        '[1], 0, -1) @ p["down"]',
        {"up": (8, 32), "down": (32, 8)},
        {},
    ),
    "chosen by a condition": (
        'x + jax.lax.cond(p["s"] > 0, jnp.tanh, jnp.sin, x @ p["up"]) @ p["down"]',
        {"up": (8, 32), "down": (32, 8), "s": ()},
        {'x @ p["up"]': 32},
    ),
    "rematerialised": (
        'x + jax.checkpoint(lambda y: jnp.tanh(y @ p["up"]) @ p["down"])(x)',
        {"up": (8, 32), "down": (32, 8)},
        {'y @ p["up"]': 32},
    ),
    "under vmap": (
        'jax.vmap(lambda y: y + jnp.tanh(y @ p["up"]) @ p["down"])(x)',
        {"up": (8, 32), "down": (32, 8)},
        {'y @ p["up"]': 32},
    ),
    "low rank": (
        'x + jnp.tanh(x @ p["a"] @ p["b"]) @ p["down"]',
        {"a": (8, 2), "b": (2, 32), "down": (32, 8)},
        {'x @ p["a"] @ p["b"]': 32},
    ),
    "odd": ('x + jnp.tanh(x @ p["up"]) @ p["down"]', {"up": (8, 1), "down": (1, 8)}, {}),
}


@pytest.mark.family
@pytest.mark.parametrize("name", FORMS)
def test_what_may_be_cut_is_found_and_nothing_else(tmp_path, monkeypatch, name):
    body, shapes, expected = FORMS[name]
    module = f"cut_{list(FORMS).index(name)}"
    text = _PROGRAM.format(layer=f"def layer(p, x):\n    return {body}", shapes=shapes)
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop(module, None)
    importlib.import_module(module)
    document = costs(FunctionName("--entry", f"{module}:step"), FunctionName("--args", f"{module}:example"), once=True)
    lines = text.encode().splitlines()

    def code(frame):
        _, line, start, _, end = frame
        return lines[line - 1][start:end].decode()

    for layer in (0, 1):
        cuts = [cut for cut in document["cuts"] if cut["layer"] == layer]
        assert {code(frame): cut["divides"] for cut in cuts for frame in cut["made"]} == expected, layer
        for cut in cuts:
            assert 0 < cut["products"] <= 1
            assert 0 < cut["parameters"] <= 1
    assert not document["astray"]
