"""The nodes that are walked: all that Python's own walk finds, but for operators and contexts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mmrewrite.source.walk import children

pytestmark = pytest.mark.python

ROOT = Path(__file__).parents[2]


def expected(node: ast.AST) -> list[ast.AST]:
    parts = [value for name, value in ast.iter_fields(node) if name not in ("ctx", "op", "ops")]
    flat = [item for part in parts for item in (part if isinstance(part, list) else [part])]
    return [item for item in flat if isinstance(item, ast.AST)]


def test_children_are_those_of_ast() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "mmrewrite" / "source").glob("*.py")]
    texts.append(
        "async def f(a, /, b: int = 1, *c, d=2, **e) -> int:\n"
        "    global g\n    del a\n    async with a as h, b: pass\n    async for i in c: await i\n"
        "    return {**e, 1: 2}, {x async for x in y if z}, lambda *k: (yield), f'{b!r:>{d}}', a[1:2, ::3], 1j\n"
        "try: import a.b as c\nexcept* (A, B) as e: raise e from None\nfinally: assert a, b\n"
        "match a:\n    case {'k': [1, *r], **rest} | C(x, y=None) as whole if (n := 1): pass\n    case _: pass\n"
    )
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            assert list(children(node)) == expected(node), ast.dump(node)


def test_also_those_of_newer_pythons() -> None:
    for text in ("type X[T: int, *Ts, **P] = list[T]\n", "def f[T](x: T): pass\n", "class C[T]: pass\n"):
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            assert list(children(node)) == expected(node), ast.dump(node)
