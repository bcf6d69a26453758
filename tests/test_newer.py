"""Source that is newer than the Python that runs the tool: the same result on every Python."""

from __future__ import annotations

import ast

import pytest

from mmrewrite.engine import rewrite_source
from mmrewrite.newer import parse_any
from mmrewrite.registry import Registry

BEFORE = """\
import jax
import jax.numpy as jnp

# mm: mesh(stage=4)
type Array[
    T
] = jax.Array


def encode[T: jax.Array, *U](x: T, names=()) -> T:
    try:
        y = jnp.tanh(x)
    except ValueError, TypeError:
        y = x
    return y


class Model[T]:
    def __call__(self, x, a):
        y = encode(x)  # mm: task(stage=0)
        z = f'é {a['b']} {
            i:{y}}'
        for block in self.blocks:  # mm: stages(axis="stage")
            y = block(y)
        return y, t"{i}", z
"""


def test_a_hinted_module() -> None:
    result = rewrite_source(BEFORE, Registry())
    assert not (result.failure or result.errors or result.refusals)
    after = result.result.decode()
    changed = sorted(set(after.splitlines()) - set(BEFORE.splitlines()))
    assert changed == [
        '            y = mm.task(block, task=mm.stage(layer, len(self.blocks), axis="stage"))(y)',
        "        for layer, block in enumerate(self.blocks):",
        '        y = mm.task(encode, task=mm.Task(name="encode", mesh_slice={"stage": 0}))(x)',
        "import mmruntime as mm",
        'mesh = mm.MultiMesh(axis_sizes=(4,), axis_names=("stage",))',
    ]
    # `i`, which only the strings read, is no name for the loop's index.
    assert len(after.splitlines()) == len(BEFORE.splitlines()) + 1


@pytest.mark.parametrize(
    "syntax",
    [
        "try:\n    x\nexcept A, B:\n    pass\n",
        "try:\n    x\nexcept* A, b.C:\n    pass\n",
        "def f[T: int, **P](x: T) -> T: return x\n",
        "class A[\n    T,  # one\n    *U,\n](B): pass\n",
        "def f[T = int](x): pass\n",
        "type X = int\n",
        "type X[T] = list[T]\n",
        "x = f'{a['b']} {f'{1}'}'\n",
        "x = f'{\n    a\n}' 'rest'\n",
        'x = f"""{a["b"]}\n{c}"""\n',
        "x = rt'\\d {a!r:>{w}}'\n",
    ],
)
def test_positions_are_those_of_the_source(syntax: str) -> None:
    last = "é = g(h)\n"
    tree = parse_any(syntax + last)
    assert len(tree.body) == 2
    assert ast.dump(tree.body[1]) == ast.dump(ast.parse(last).body[0])
    assert tree.body[1].lineno == syntax.count("\n") + 1
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Attribute):
            assert ast.get_source_segment(syntax + last, node) == ast.unparse(node)


@pytest.mark.parametrize("text", ["x = (\n", "print 'old'\n", "f'{a['\n"])
def test_what_nobody_can_parse(text: str) -> None:
    with pytest.raises(SyntaxError):
        parse_any(text)
