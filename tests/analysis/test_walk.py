"""The nodes that are walked: all that Python's own walk finds, but for operators and contexts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mmrewrite.source.functions import own_expressions
from mmrewrite.source.names import read_names
from mmrewrite.source.spans import first_line, on_line
from mmrewrite.source.walk import children

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]


def expected(node: ast.AST) -> list[ast.AST]:
    parts = [value for name, value in ast.iter_fields(node) if name not in ("ctx", "op", "ops")]
    flat = [item for part in parts for item in (part if isinstance(part, list) else [part])]
    return [item for item in flat if isinstance(item, ast.AST)]


def test_children_are_those_of_ast() -> None:
    texts = [(ROOT / "mmrewrite" / "source" / name).read_text(encoding="utf-8") for name in ("names.py", "text.py")]
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


def test_calls_of_statements_are_their_own() -> None:
    texts = [(ROOT / "mmrewrite" / "source" / name).read_text(encoding="utf-8") for name in ("names.py", "text.py")]
    texts.append(
        "@d(0)\nclass C(b(1), k=b(2)):\n    @d(3)\n    def f(self, a: t(4) = e(5), *, c=e(6)) -> t(7):\n"
        "        return lambda x=g(8): [h(i(9)) for x in j(10) if k(11) for y in l(12)], f'{m(13)}{n(14):{o(15)}}'\n"
        "try: a(16)[b(17)] = c(18)\nexcept d(19) as e: x: t(20) = f(21)\nfinally: del g(22).h\n"
        "match a(23):\n    case C(x=1) if b(24): c(25)\n    case _ if (d := e(26)): pass\n"
        "with a(27) as b(28).c, d(29): e(30)\nfor a(31).b in c(32): d(33)\nelse: e(34)\nf(35)(g(36)).h += i(37)(38)\n"
    )
    for text in texts:
        names = read_names(ast.parse(text), "m", is_package=False)
        for statement in names.scopes:
            found = [node for node in own_expressions(statement) if isinstance(node, ast.Call)]
            assert set(names.calls.get(statement, ())) == set(found), ast.dump(statement)
            assert len(names.calls.get(statement, ())) == len(found)


def test_statements_on_a_line() -> None:
    text = "a = 1; b = 2\n\n@d\n@d\ndef f():\n    pass\nc = (\n    3\n); e = (\n    4\n)\n"
    tree = ast.parse(text)
    for line in range(15):
        on = [each for each in tree.body if first_line(each) <= line <= (each.end_lineno or 0)]
        assert list(on_line(tree.body, line)) == on
