"""Ways to hold layers and to run through them: rewritten, exact and each layer on its stage, or refused with advice."""

import re
import sys
import textwrap
import types

import jax
import numpy as np
import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from tests.fixture_files import source_files
from tests.runtime.helpers import assert_close, normal

pytestmark = [pytest.mark.usefixtures("double"), pytest.mark.family]
for library in ("equinox", "haiku"):
    pytest.importorskip(library)

PROGRAM = """
import functools

import jax
import jax.numpy as jnp
import numpy as np

# mm: mesh(stage=2)
{model}


def loss_fn(params, batch):
    return jnp.mean((forward(params, batch["x"]) - batch["y"]) ** 2)


@jax.jit  # mm: mjit
def step(params, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)  # mm: microbatch(count=2)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss
"""
LINEN = """
from flax import linen as nn


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + nn.Dense(4, param_dtype=jnp.float64)(jnp.tanh(x))


class Carried(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return Block()(x), None


class Model(nn.Module):
{body}


def init(key, x):
    return Model().init(key, x)


def forward(params, x):
    return Model().apply(params, x)
"""
NNX = """
from flax import nnx


class Block(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(4, 4, param_dtype=jnp.float64, rngs=rngs)

    def __call__(self, x):
        return x + self.dense(jnp.tanh(x))


class Model(nnx.Module):
{body}


graph, _ = nnx.split(Model(nnx.Rngs(0)))


def init(key, x):
    return nnx.split(Model(nnx.Rngs(0)))[1]


def forward(params, x):
    return nnx.merge(graph, params)(x)
"""
HAIKU = """
import haiku as hk


class Block(hk.Module):
    def __call__(self, x):
        return x + hk.Linear(4)(jnp.tanh(x))


def model(x):
{body}


transformed = hk.without_apply_rng(hk.transform(model))


def init(key, x):
    return transformed.init(key, x)


def forward(params, x):
    return transformed.apply(params, x)
"""
EQUINOX = """
import equinox as eqx


class Block(eqx.Module):
    dense: eqx.nn.Linear

    def __init__(self, key):
        self.dense = eqx.nn.Linear(4, 4, key=key, dtype=jnp.float64)

    def __call__(self, x):
        return x + jax.vmap(self.dense)(jnp.tanh(x))


def make(key):
    keys = jax.random.split(key, 4)
    return {held}


static = eqx.partition(make(jax.random.key(0)), eqx.is_array)[1]


def init(key, x):
    return eqx.filter(make(key), eqx.is_array)


def forward(params, x):
    layers = eqx.combine(params, static)
{body}
    return x
"""
PLAIN = """
def layer(w, x):
    return x + jnp.tanh(x @ w)


def init(key, x):
    weights = [np.asarray(jax.random.normal(each, (4, 4), jnp.float64)) / 2 for each in jax.random.split(key, 4)]
    return {held}


def forward(params, x):
{body}
"""


def linen(body):
    return LINEN.format(body=textwrap.indent(textwrap.dedent(body).strip("\n"), "    "))


def nnx(body):
    return NNX.format(body=textwrap.indent(textwrap.dedent(body).strip("\n"), "    "))


def haiku(body):
    return HAIKU.format(body=textwrap.indent(textwrap.dedent(body).strip("\n"), "    "))


def equinox(held, body):
    return EQUINOX.format(held=held, body=textwrap.indent(textwrap.dedent(body).strip("\n"), "    "))


def plain(held, body):
    return PLAIN.format(held=held, body=textwrap.indent(textwrap.dedent(body).strip("\n"), "    "))


SETUP = """
def setup(self):
    self.blocks = {held}

def __call__(self, x):
{loop}
    return x
"""


def setup(held, loop):
    return linen(SETUP.format(held=held, loop=textwrap.indent(textwrap.dedent(loop).strip("\n"), "    ")))


FORMS = {
    "linen list": setup("[Block() for _ in range(4)]", "for block in self.blocks:  # mm: stages\n    x = block(x)"),
    "linen tuple": setup("tuple(Block() for _ in range(4))", "for b in self.blocks:  # mm: stages\n    x = b(x)"),
    "linen dict": setup(
        "{f'layer{i}': Block() for i in range(4)}",
        "items = list(self.blocks.items())\nfor name, block in items:  # mm: stages\n    x = block(x)",
    ),
    "linen dict, items": setup(
        "{f'layer{i}': Block() for i in range(4)}",
        "for name, block in self.blocks.items():  # mm: stages\n    x = block(x)",
    ),
    "linen dict by name": setup(
        "{f'layer{i}': Block() for i in range(4)}",
        "for i in range(4):  # mm: stages\n    x = self.blocks[f'layer{i}'](x)",
    ),
    "linen Sequential": setup(
        "nn.Sequential([Block() for _ in range(4)])",
        "for block in self.blocks.layers:  # mm: stages\n    x = block(x)",
    ),
    "linen Sequential, called": setup("nn.Sequential([Block() for _ in range(4)])", "x = self.blocks(x)  # mm: stages"),
    "linen Sequential, compact": linen("""
        @nn.compact
        def __call__(self, x):
            return nn.Sequential([Block() for _ in range(4)])(x)  # mm: stages
    """),
    "linen setattr": linen("""
        def setup(self):
            for i in range(4):
                setattr(self, f"layer_{i}", Block())

        def __call__(self, x):
            for i in range(4):  # mm: stages
                x = getattr(self, f"layer_{i}")(x)
            return x
    """),
    "linen compact": linen("""
        @nn.compact
        def __call__(self, x):
            for i in range(4):  # mm: stages
                x = Block(name=f"layer_{i}")(x)
            return x
    """),
    "linen appends to a list": linen("""
        @nn.compact
        def __call__(self, x):
            hidden = []
            for i in range(4):  # mm: stages
                x = Block()(x)
                hidden.append(x)
            return x + sum(hidden)
    """),
    "linen fills a dict": linen("""
        @nn.compact
        def __call__(self, x):
            hidden = {}
            for i in range(4):  # mm: stages
                x = Block()(x)
                hidden[i] = 2 * x
            return x + hidden[1] + hidden[3]
    """),
    "linen scan": linen("""
        @nn.compact
        def __call__(self, x):
            scanned = nn.scan(Carried, variable_axes={"params": 0}, split_rngs={"params": True}, length=4)
            x, _ = scanned()(x, None)  # mm: stages
            return x
    """),
    "linen shared": setup("[Block()] * 4", "for block in self.blocks:  # mm: stages\n    x = block(x)"),
    "linen encoder and decoder": linen("""
        @nn.compact
        def __call__(self, x):
            seen = x
            for i in range(2):  # mm: stages
                seen = Block(name=f"encoder_{i}")(seen)
            for i in range(2):  # mm: stages
                x = Block(name=f"decoder_{i}")(x) + seen
            return x
    """),
    "nnx List": nnx("""
        def __init__(self, rngs):
            self.blocks = nnx.List([Block(rngs) for _ in range(4)])

        def __call__(self, x):
            for block in self.blocks:  # mm: stages
                x = block(x)
            return x
    """),
    "nnx Sequential": nnx("""
        def __init__(self, rngs):
            self.blocks = nnx.Sequential(*[Block(rngs) for _ in range(4)])

        def __call__(self, x):
            for block in self.blocks.layers:  # mm: stages
                x = block(x)
            return x
    """),
    "nnx Sequential, called": nnx("""
        def __init__(self, rngs):
            self.blocks = nnx.Sequential(*[Block(rngs) for _ in range(4)])

        def __call__(self, x):
            return self.blocks(x)  # mm: stages
    """),
    "nnx setattr": nnx("""
        def __init__(self, rngs):
            for i in range(4):
                setattr(self, f"layer_{i}", Block(rngs))

        def __call__(self, x):
            for i in range(4):  # mm: stages
                x = getattr(self, f"layer_{i}")(x)
            return x
    """),
    "haiku list": haiku("""
        blocks = [Block() for _ in range(4)]
        for block in blocks:  # mm: stages
            x = block(x)
        return x
    """),
    "haiku list in the loop": haiku(
        "for block in [Block() for _ in range(4)]:  # mm: stages\n    x = block(x)\nreturn x"
    ),
    "haiku Sequential": haiku("""
        blocks = hk.Sequential([Block() for _ in range(4)])
        for block in blocks.layers:  # mm: stages
            x = block(x)
        return x
    """),
    "haiku Sequential, called": haiku("return hk.Sequential([Block() for _ in range(4)])(x)  # mm: stages"),
    "equinox list": equinox("[Block(each) for each in keys]", "for layer in layers:  # mm: stages\n    x = layer(x)"),
    "equinox Sequential": equinox(
        "eqx.nn.Sequential([eqx.nn.Lambda(Block(each)) for each in keys])",
        "for layer in layers.layers:  # mm: stages\n    x = layer(x)",
    ),
    "equinox Sequential, called": equinox(
        "[eqx.nn.Lambda(Block(each)) for each in keys]",
        "chain = eqx.nn.Sequential(layers)\nx = chain(x)  # mm: stages",
    ),
    "equinox scan": equinox(
        "eqx.filter_vmap(Block)(keys)",
        """
        arrays, rest = eqx.partition(layers, eqx.is_array)

        def body(x, layer):
            return eqx.combine(layer, rest)(x), None

        x, _ = jax.lax.scan(body, x, arrays)  # mm: stages
        """,
    ),
    "nnx scan": nnx("""
        def __init__(self, rngs):
            self.blocks = nnx.split_rngs(splits=4)(nnx.vmap(Block))(rngs)

        def __call__(self, x):
            state = nnx.state(self.blocks)
            graph = nnx.graphdef(self.blocks)
            x, _ = jax.lax.scan(lambda x, own: (nnx.merge(graph, own)(x), None), x, state)  # mm: stages
            return x
    """),
    "nnx scan, decorated": nnx("""
        def __init__(self, rngs):
            self.blocks = nnx.split_rngs(splits=4)(nnx.vmap(Block))(rngs)

        def __call__(self, x):
            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            def run(x, block):
                return block(x)

            x = run(x, self.blocks)  # mm: stages
            return x
    """),
    "nnx scan, called": nnx("""
        def __init__(self, rngs):
            self.blocks = nnx.split_rngs(splits=4)(nnx.vmap(Block))(rngs)

        def __call__(self, x):
            scanned = nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return scanned(x, self.blocks)  # mm: stages
    """),
    "plain list": plain("weights", "for w in params:  # mm: stages\n    x = layer(w, x)\nreturn x"),
    "plain tuple, zip": plain(
        "tuple(weights)",
        "for w, scale in zip(params, (1.0, 2.0, 3.0, 4.0)):  # mm: stages\n    x = layer(w, x * scale)\nreturn x",
    ),
    "plain dict, sorted": plain(
        "{f'layer_{i}': w for i, w in enumerate(weights)}",
        "names = sorted(params)\nfor name in names:  # mm: stages\n    x = layer(params[name], x)\nreturn x",
    ),
    "plain caches, two calls": plain(
        "weights",
        """
        caches, new = {i: (1 + i) * x for i in range(4)}, {}
        losses = []
        for i, w in enumerate(params):  # mm: stages
            y = layer(w, x + caches[i])
            new[f"layer_{i}"] = (x, y)
            x = layer(w, y)
            losses.append(jnp.mean(x**2, axis=1))
        return x + new["layer_1"][1] + sum(losses)[:, None]
        """,
    ),
    "plain towers, two loops": plain(
        "{'a': weights[:2], 'b': weights[2:]}",
        """
        a, b = x, 2 * x
        for w in params["a"]:  # mm: stages
            a = layer(w, a)
        for w in params["b"]:  # mm: stages
            b = layer(w, b)
        return a * b
        """,
    ),
    "plain skips, two loops": plain(
        "weights",
        """
        skips = []
        for w in params[:2]:  # mm: stages
            x = layer(w, x)
            skips.append(x)
        for w in params[2:]:  # mm: stages
            x = layer(w, x + skips.pop())
        return x
        """,
    ),
    "plain caches by entry": plain(
        "weights",
        """
        def attend(w, x, cache):
            cache = cache + x
            return layer(w, cache), cache

        caches = [jnp.zeros_like(x) for _ in range(4)]
        for i, w in enumerate(params):  # mm: stages
            x, caches[i] = attend(w, x, caches[i])
        return x + caches[0]
        """,
    ),
    "plain auxiliary losses": plain(
        "weights",
        """
        def both(w, x):
            y = layer(w, x)
            return y, (y**2).mean(axis=-1)

        total = 0.0
        for w in params:  # mm: stages
            x, loss = both(w, x)
            total += loss
        return x + total[:, None]
        """,
    ),
    "plain sorted in the loop": plain(
        "{f'layer_{i}': w for i, w in enumerate(weights)}",
        "for name in sorted(params):  # mm: stages\n    x = layer(params[name], x)\nreturn x",
    ),
    "plain two lists, reversed": plain(
        "(weights[2:], weights[:2])",
        "for w in reversed(list([*params[0], *params[1]])):  # mm: stages\n    x = layer(w, x)\nreturn x",
    ),
    "plain scan": plain(
        "np.stack(weights)",
        "x, _ = jax.lax.scan(lambda x, w: (layer(w, x), None), x, params)  # mm: stages\nreturn x",
    ),
    "plain stack by index": plain(
        "np.stack(weights)", "for i in range(4):  # mm: stages\n    x = layer(params[i], x)\nreturn x"
    ),
    "plain stack, two calls": plain(
        "np.stack(weights)",
        "for i in range(4):  # mm: stages\n    x = layer(params[i], x)\n    x = jnp.tanh(x)\nreturn x",
    ),
}
# The message, too. `FORMS` has what it says to write.
REFUSED = {
    "map in the loop": (
        plain("weights", "for w in map(jnp.asarray, params):  # mm: stages\n    x = layer(w, x)\nreturn x"),
        r"cannot tell how many layers .* assign `list\(...\)` of it to a name above the loop",
    ),
    "reduce": (
        plain("weights", "x = functools.reduce(lambda x, w: layer(w, x), params, x)  # mm: stages\nreturn x"),
        "hides the call of the layer; write `for block in blocks: x = block",
    ),
    "Sequential made elsewhere": (
        plain("weights", "x = held.blocks(x)  # mm: stages\nreturn x"),
        "a `Sequential` that this class or function makes",
    ),
    "filled by the layer": (
        plain(
            "weights",
            "seen = []\nfor w in params:  # mm: stages\n    x = layer(w, x, seen)\n    seen.append(x)\nreturn x",
        ),
        "seen",
    ),
}
SHARED = ("linen shared",)
STACKED = (
    "linen scan",
    "equinox scan",
    "nnx scan",
    "nnx scan, decorated",
    "nnx scan, called",
    "plain scan",
    "plain stack by index",
    "plain stack, two calls",
)


def rewritten(model):
    (result,) = rewrite_project(source_files({"program.py": PROGRAM.format(model=model).encode()}), Registry())
    return result


def run(text):
    module = types.ModuleType("program")
    sys.modules["program"] = module
    try:
        exec(compile(text, "program.py", "exec"), module.__dict__)
    finally:
        del sys.modules["program"]
    return module


@pytest.mark.parametrize("form", FORMS)
def test_form(form):
    result = rewritten(FORMS[form])
    assert not result.refusals
    assert not result.errors
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        one, many = run(PROGRAM.format(model=FORMS[form])), run(result.result.decode())
        x = normal(4, 4)
        batch = {"x": x, "y": np.tanh(x)}
        # Each program has classes of its own, and with them trees.
        found, expected = (each.step(each.init(jax.random.key(0), x), batch) for each in (many, one))
        assert_close(jax.tree.leaves(found), jax.tree.leaves(expected), rtol=1e-12)
    places = [[shard.device.id for shard in leaf.addressable_shards] for leaf in jax.tree.leaves(found[0])]
    if form in STACKED:
        assert places == [[0, 1]] * len(places)
    elif form in SHARED:
        assert [len(each) for each in places] == [1] * len(places)
    else:
        loops = 2 if "decoder" in form or "two loops" in form else 1
        half = len(places) // loops // 2
        expected = ([[0]] * half + [[1]] * half) * loops
        assert places == (expected[::-1] if "reversed" in form else expected)


@pytest.mark.parametrize("form", REFUSED)
def test_refused_with_advice(form):
    model, advice = REFUSED[form]
    result = rewritten(model)
    assert not result.changed
    assert any(re.search(advice, str(each)) for each in (*result.refusals, *result.errors))
