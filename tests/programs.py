"""Random hinted programs for fuzzing: valid Python, hints that are right, wrong or misplaced, any formatting."""

from __future__ import annotations

import sys

from hypothesis import strategies as st

from mmrewrite.source.text import parse_quietly

# By the kind of statement that they may stand on.
HINTS = {
    "simple": (
        "task(stage=0)",
        'task("encoder", stage=1)',
        "microbatch(size=2)",
        'microbatch(size=2, reduce="sum", rng=None)',
        'microbatch(count=4, schedule="1f1b", argnum=1, reduce="mean", rng=None)',
        'microbatch(size=2, argnum=("x", 1), rng="key")',
        'microbatch(size=2, argnum="batch", reduce="mean")',
        'microbatch(size=2, reduce=(("mean", "concat"), "mean"), check=False)',
        'shard("batch", None)',
        'shard("batch", None); task(stage=1)',
        "mjit",
        "ignore[place_task]",
        "task(stage=0); ignore[place_task]",
    ),
    "for": (
        "stages",
        'stages(axis="stage", weights="flops")',
        "stages(weights=[1, 2, 3, 4])",
        "task(stage=i // 2)",
        "task(stage=0)",
        "microbatch(size=2)",
        "stages; ignore[stage_loop]",
    ),
    "def": (
        "task(stage=0)",
        "mjit",
        'shard(x=("batch", None), out=("batch", "mlp"))',
        "shard(params=None)",
        "mjit; task(stage=1)",
    ),
    "class": ("task(stage=1)", 'task(name="Block", stage=1)'),
    "with": ("task(stage=0)",),
    "any": (
        "mesh(stage=4, data=2)",
        'mesh(stage=2, data=1); axes(batch="data", mlp=None)',
        'register(r"h_(\\d+)", stage="int({0})")',
    ),
    "wrong": (
        'axes(batch="data")',
        'mesh(stage=2); axes(batch="data")',
        "task",
        "off",
        "on",
        "tsk(stage=0)",
        "task(stage=",
        "stages(x)",
        "shard",
        "",
        "stages",
        "task(stage=0)  # mm: task(stage=0)",
        "mesh(stage=4)  # why",
    ),
}
CARRIERS = ("# mm: ", "# mm: ", "# mm: ", "# MM: ", "#mm:", "# mm ", "# mm ; ", "## mm: ", "# # mm: ", "# mn: ")
NAMES = ("x", "params", "batch", "key", "loss_fn", "blocks", "self", "mesh", "mm", "i", "jax", "step", "größe")
IMPORTS = (
    "import jax",
    "import jax as j",
    "import jax.numpy as jnp",
    "import jax.numpy as np",
    "from jax import jit, value_and_grad as vg, lax, grad",
    "from flax import linen as nn",
    "import functools",
    "from functools import partial",
    "import optax",
    "import mmruntime as mm",
    "import mmruntime",
    "from jax.sharding import PartitionSpec as P",
    "from __future__ import annotations",
    "from . import other",
    "try:\n    import jax\nexcept ImportError:\n    jax = None",
    "from jax.numpy import *",
    "P, wsc = jax.sharding.PartitionSpec, jax.lax.with_sharding_constraint",
    "grad_of = jax.grad",
)

# Programs that real ones resemble, so that most hints meet something that they can rewrite.
SNIPPETS = (
    ["for block in blocks:  # mm: stages", "    x = block(x)"],
    ["# mm: stages", "for _ in range(4):", "    x = nn.Dense(3)(x)  # layer"],
    ["for i, p in enumerate(params):  # mm: stages", "    if x:", "        x = layer(p, x)"],
    [
        "for i in range(len(params)):  # mm: stages",
        "    h = norm(params[i], x)",
        "    # attention",
        "    x = x + attend(params[i], h)",
        "    x = x + mlp(params[i], x)",
        "    # the end of a layer",
    ],
    [
        "x = y = 0",
        "# mm: stages",
        "for p, (q, *_) in zip(",
        "    blocks,  # all",
        "    params,",
        "):",
        "    for block in p:  # mm: stages",
        "        x = block(x) + block(y)",
        "        del block",
        "    y = q(p(x)) if x else y",
    ],
    ["x, _ = jax.lax.scan(layer, x, params)  # mm: stages"],
    ['grads = jax.grad(loss_fn)(params, batch)  # mm: microbatch(size=2, reduce="mean", rng=None)'],
    [
        "def train(params, batch, key):",
        "    def loss_fn(params):",
        '        """Loss."""',
        "        return jnp.mean(model(params, batch, key))",
        "",
        '    # mm: microbatch(size=2, rng="key", reduce="mean")',
        "    return jax.value_and_grad(loss_fn)(",
        "        params,  # differentiated",
        "    )",
    ],
    ["@jax.jit  # mm: mjit", "def step(params, batch):", "    return params"],
    ["@partial(jax.jit, donate_argnums=0)", "# why", "def step(params):", "    return params"],
    ['h = encoder(x, train=True)  # mm: task(stage=0); shard("batch", None)'],
    ["# mm: task(stage=1)", "def encode(x):", "    return x"],
    ['with jax.named_scope("encoder"):  # mm: task(stage=1)', "    x = x + 1"],
    ["# mm: mesh(stage=4, data=2)"],
    ["# mm: off", "x = f(x)  # mm: task(stage=0)", "# mm: on"],
)

name = st.sampled_from(NAMES)
atom = st.one_of(
    name,
    st.sampled_from(
        ("1", "-2", "None", '"text"', "'# mm: task(stage=0)'", "r'\\d'", "b''", "...", "()", "[1, 2]", "{}")
    ),
    st.sampled_from(("f'{x}'", 'f"{f(x)!r:>{i}} {{}}"', "'''a\nb'''", "'a' 'b'", "lambda: 0", "(yield_ := 1)")),
)
# Some of it is newer than Python 3.11.
if sys.version_info >= (3, 12):
    newer_atom = st.sampled_from(
        (
            'f"{x["a"]}"',
            "f'{f(\n  1)}'",
            "f'{\n\nx  # why\n}'",
            "f'{x['# mm: task(stage=0)']}' 'b'",
            "f'{f'{x['(']!r}'}'",
        )
    )
    atom = st.one_of(atom, atom, atom, newer_atom)
callee = st.one_of(
    name,
    st.sampled_from(
        (
            "jax.grad(loss_fn)",
            "jax.value_and_grad(loss_fn, has_aux=True)",
            "jax.value_and_grad(lambda p, b: jnp.mean(p @ b))",
            "vg(loss_fn)",
            "grad(step)",
            "grad_of(loss_fn)",
            "jax.jit",
            "j.jit",
            "jit",
            "lax.scan",
            "jax.lax.fori_loop",
            "nn.scan(Block)(4)",
            "self.encoder",
            "nn.Dense(3)",
            "Block(cfg, name=f'block_{i}')",
            "blocks[i]",
            "jnp.mean",
            "optax.MultiSteps",
            "functools.reduce",
            "x.reshape",
            "with_sharding_constraint",
        )
    ),
)


def _argument(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        inner,
        inner.map(lambda value: f"batch={value}"),
        inner.map(lambda value: f"donate_argnums=({value},)"),
        st.sampled_from(("*x", "**params")),
    )


def _arguments(parts: list[str]) -> str:
    """Arguments in an order that Python takes."""
    rank = {"**": 2}
    unique: dict[str, str] = {}
    for part in parts:
        head = part.split("=", 1)[0] if "=" in part and part.split("=", 1)[0].isidentifier() else part
        unique.setdefault(head, part)
    ordered = sorted(
        unique.values(),
        key=lambda part: rank.get(part[:2], 1 if part.split("=", 1)[0].isidentifier() and "=" in part else 0),
    )
    return ", ".join(ordered)


def _call(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arguments = st.lists(_argument(inner), max_size=3).map(_arguments)
    spread = st.sampled_from(("({})", "( {} )", "(\n    {}\n)", "(  # first\n    {}  # last\n)"))
    return st.builds(lambda func, text, form: func + form.format(text), callee, arguments, spread)


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        _call(inner),
        st.builds("({}{}{})".format, inner, st.sampled_from((" + ", " @ ", "**", " and ")), inner),
        inner.map(lambda value: f"[{value} for i in range(4)]"),
        inner.map(lambda value: f"{{'a': {value}}}"),
        inner.map(lambda value: f"({value}, x)"),
        inner.map(lambda value: f"(lambda x: {value})"),
        st.builds(lambda func, value: f"{func}({value})(x)", callee, inner),
    )


expression = st.recursive(st.one_of(atom, _call(atom)), _extend, max_leaves=6)

target = st.sampled_from(("x", "x, y", "loss, grads", "(loss, aux), grads", "self.x", "x[0]", "grads", "step", "*x, y"))
iterable = st.sampled_from(
    (
        "blocks",
        "self.blocks",
        "range(4)",
        "range(1, len(params), 2)",
        "enumerate(blocks)",
        "zip(blocks, params)",
        "zip(blocks, params, strict=True)",
        "enumerate(zip(blocks, params), 1)",
        "reversed(blocks)",
        "(blocks)",
        "[Block(), Block()]",
        "params.items()",
    )
)
loop_target = st.sampled_from(("block", "i", "_", "i, block", "(i, (block, p))", "block, p", "self.i", "*x, y"))

simple = st.one_of(
    expression,
    st.builds("{} = {}".format, target, expression),
    st.builds("{}: int = {}".format, name, expression),
    st.builds("{} += {}".format, name, expression),
    expression.map(lambda value: f"return {value}"),
    st.sampled_from(("pass", "x = 1; y = f(x)", 'assert x, "mm:"', "global_ = 0", "x = \\\n    f(x)", "del x, y")),
)
decorator = st.one_of(
    st.sampled_from(
        (
            "jax.jit",
            "jax.value_and_grad",
            "functools.partial(jax.jit, static_argnums=1)",
            "partial(jax.value_and_grad, has_aux=True)",
            "nn.compact",
            "jax.checkpoint",
            "gin.configurable",
            "property",
        )
    ),
)
parameters = st.sampled_from(
    (
        "",
        "x",
        "self, x",
        "params, batch",
        "params, *, key=None",
        "x, /, y=1, *args, **kwargs",
        "params: 'P', x: int = 0",
    )
)
newer_parameters = ("[T]", "[T: int, *Ts, **P]", "[\n\nT]") if sys.version_info >= (3, 12) else ()
type_parameters = st.sampled_from(("", "", *newer_parameters))


@st.composite
def block(draw: st.DrawFn, depth: int, in_function: bool) -> list[str]:
    """Lines of a block, not indented."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        lines += draw(statement(depth, in_function))
    return lines


@st.composite
def statement(draw: st.DrawFn, depth: int, in_function: bool) -> list[str]:
    """Lines of one statement, with a hint or two, or none."""
    lines: list[str] = []
    kind = draw(st.sampled_from(("simple", "simple", "for", "def", "class", "with", "if", "while", "try", "match")))
    if draw(st.integers(0, 3)) == 0:
        return list(draw(st.sampled_from(SNIPPETS)))
    if depth <= 0 or kind == "simple":
        text = draw(simple)
        if text.startswith("return") and not in_function:
            text = "x = " + text.removeprefix("return ")
        lines = text.split("\n")
    else:
        inner_function = in_function or kind == "def"
        body = draw(block(depth - 1, inner_function if kind != "class" else False))
        header = {
            "for": lambda: f"for {draw(loop_target)} in {draw(iterable)}:",
            "def": lambda: (
                f"def {draw(st.sampled_from(('f', 'step', 'loss_fn', '__call__')))}"
                f"{draw(type_parameters)}({draw(parameters)}):"
            ),
            "class": lambda: (
                f"class {draw(st.sampled_from(('Model', 'Block')))}"
                f"{draw(type_parameters)}{draw(st.sampled_from(('', '(nn.Module)', '(nnx.Module)')))}:"
            ),
            "with": lambda: (
                f"with {draw(st.sampled_from(('jax.named_scope(x)', 'jax.named_scope(name)', 'mesh, f(x) as y')))}:"
            ),
            "if": lambda: f"if {draw(name)}:",
            "while": lambda: "while x:",
            "try": lambda: "try:",
            "match": lambda: "match x:",
        }[kind]()
        if kind in ("def", "class"):
            lines += [f"@{each}" for each in draw(st.lists(decorator, max_size=2))]
        lines.append(header)
        if kind == "match":
            lines += ["    case [1, *rest]:", *_indented(_indented(body))]
        else:
            lines += _indented(body)
        if kind == "try":
            lines += [draw(st.sampled_from(("except* ValueError:", "except (x, y):", "finally:"))), "    pass"]
        elif kind in ("for", "if", "while") and draw(st.booleans()):
            lines += ["else:", "    pass"]
    if draw(st.integers(0, 2)) == 0:
        lines = draw(hinted(lines, kind if depth > 0 else "simple"))
    return lines


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]


@st.composite
def hinted(draw: st.DrawFn, lines: list[str], kind: str) -> list[str]:
    """The lines with a hint above, at the end of the first, or, rarely, a wrong hint or one somewhere else."""
    if draw(st.integers(0, 29)) == 0:
        comment = f"{draw(st.sampled_from(CARRIERS))}{draw(st.sampled_from(HINTS['wrong']))}".rstrip()
        place = draw(st.sampled_from(("above", "first", "last", "any", "below")))
    else:
        known = [*HINTS.get(kind, ()), *HINTS.get(kind, ()), *HINTS["any"]]
        comment = f"# mm: {draw(st.sampled_from(known))}"
        place = draw(st.sampled_from(("above", "first")))
    if place == "above":
        return [comment, *draw(st.sampled_from(([], [""], ["# why"]))), *lines]
    if place == "below":
        return [*lines, comment]
    position = {"first": 0, "last": len(lines) - 1, "any": draw(st.integers(0, len(lines) - 1))}[place]
    changed = list(lines)
    if not changed[position].endswith("\\"):
        changed[position] += draw(st.sampled_from(("  ", "  # noqa  "))) + comment
    return changed


@st.composite
def programs(draw: st.DrawFn) -> str:
    """The text of a program that Python parses."""
    lines = draw(st.lists(st.sampled_from(IMPORTS), max_size=4))
    first = [line for line in lines if "__future__" in line][:1]
    text = [*draw(st.sampled_from(([], ['"""A module."""'], ["#!/usr/bin/env python", "# -*- coding: utf-8 -*-"])))]
    text += first + [line for line in lines if "__future__" not in line]
    for _ in range(draw(st.integers(1, 4))):
        text += draw(st.sampled_from(([], ["", ""], ["\f"])))
        text += draw(statement(draw(st.integers(0, 3)), False))
    unit = draw(st.sampled_from(("    ", "  ", "\t")))
    source = "\n".join(_reindented(line, unit) for each in text for line in each.split("\n"))
    source += draw(st.sampled_from(("\n", "", "\n\n")))
    newline = draw(st.sampled_from(("\n", "\n", "\r\n", "\r")))
    return source.replace("\n", newline)


def _reindented(line: str, unit: str) -> str:
    depth = (len(line) - len(line.lstrip(" "))) // 4
    return unit * depth + line[4 * depth :]


def parses(source: str) -> bool:
    """Whether a Python takes a program."""
    try:
        parse_quietly(source)
    except (SyntaxError, ValueError):
        return False
    return True
