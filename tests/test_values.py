"""What values may be, and what they certainly are: forms of Python, programs that pass something else off, circles.

The programs are in `value_forms.txt` and `value_more_forms.txt`, each of which hands a mesh, `V`, to `ask` in another
form, in `value_attacks.txt`, of which none certainly does, in `value_certain.txt`, and in `value_given.txt`, of which
libraries out of view are given it. All questions are asked in the forms of the first.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from pathlib import Path

import pytest
from compositions import composed

from mmrewrite.project.facts import Facts, SourceFile, read_facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.flow import MOST_VALUES, ValueFlow
from mmrewrite.values.uses import calls_of
from mmrewrite.values.value import Access, By, Unknown, Value, attribute, item

pytestmark = pytest.mark.quick

HERE = Path(__file__).parent
MESH = "jax.sharding.Mesh(1, 2)"


def programs(name: str) -> dict[str, str]:
    text = (HERE / name).read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in re.split(r"^---", text, flags=re.MULTILINE)[1:]]
    return {title.strip() or f"{place}: {code.splitlines()[-1]}": code for place, (title, _, code) in enumerate(parts)}


FORMS, MORE_FORMS, ATTACKS, CERTAIN, GIVEN = (
    programs(f"value_{name}.txt") for name in ("forms", "more_forms", "attacks", "certain", "given")
)
GENERICS = {
    "generic function": "def f[T](m: T) -> T:\n    return m\nask(f(V))\n",
    "generic class": "class Box[T]:\n    def __init__(self, m: T):\n        self.m = m\nask(Box[int](V).m)\n",
}


def named(path: str) -> tuple[str, bool]:
    """The full name of a module, and whether it is a package."""
    name = path.removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__"), name.endswith(".__init__")


def read(code: str) -> tuple[ValueFlow, Value]:
    """The values of a program, and that of what `ask` is given. A line `# file name.py` begins another file."""
    code = re.sub(r"\b[MV]\b", MESH, code)
    parts = re.split(r"^# file (.*)\n", code, flags=re.MULTILINE)
    files = dict(zip(parts[1::2], parts[2::2], strict=True)) or {"main.py": code}
    facts = [
        read_facts(SourceFile(path, f"import jax\n{text}".encode(), *named(path), "."), ())
        for path, text in files.items()
    ]
    modules = {each.path: ModuleUses(each) for each in facts if isinstance(each, Facts)}
    assert len(modules) == len(files)
    flow = ValueFlow(Project([each.facts for each in modules.values()], lambda _: None, ()), modules)
    return flow, next(
        Value(module, node.args[0])
        for module in modules.values()
        for node in module.nodes_of(ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "ask"
    )


def is_mesh(value: Value) -> bool | None:
    return True if value.outside == "jax.sharding.Mesh()" else None


@pytest.mark.parametrize("code", (FORMS | MORE_FORMS).values(), ids=FORMS | MORE_FORMS)
def test_a_form_is_seen(code: str) -> None:
    flow, value = read(code)
    assert flow.may(value, is_mesh).answers


@pytest.mark.parametrize("code", GIVEN.values(), ids=GIVEN)
def test_what_a_library_is_given_it_may_give(code: str) -> None:
    flow, value = read(code)
    assert flow.may(value, is_mesh).answers
    assert flow.must(value, is_mesh) is None
    assert not flow.may(value.done(attribute("devices")), is_mesh).answers


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
@pytest.mark.parametrize("code", GENERICS.values(), ids=GENERICS)
def test_a_form_of_newer_syntax_is_seen(code: str) -> None:
    flow, value = read(code)
    assert flow.may(value, is_mesh).answers


@pytest.mark.parametrize("code", ATTACKS.values(), ids=ATTACKS)
def test_what_may_be_something_else_is_not_believed(code: str) -> None:
    flow, value = read(code)
    assert flow.must(value, is_mesh) is None
    found = flow.may(value, is_mesh)
    # An unknown value has a reason, and circles add nothing.
    assert all(each.reason for each in found.unknown)
    assert len(found.others) < MOST_VALUES


@pytest.mark.parametrize("text", ["[one][0]", "one if one else 0", "unbound", "one.make()"])
def test_code_in_a_text_that_is_no_name_is_unknown(text: str) -> None:
    flow, value = read(f"one = V\nask(eval({text!r}))\n")
    assert any(not each.is_open for each in flow.may(value, is_mesh).unknown)


@pytest.mark.parametrize("code", (FORMS | MORE_FORMS | CERTAIN).values(), ids=FORMS | MORE_FORMS | CERTAIN)
def test_a_part_of_a_value_is_not_taken_for_the_value(code: str) -> None:
    """No form loses what is done to a value afterwards."""
    flow, value = read(code)
    for step in (attribute("devices"), item(0), Access(By.CALL, flow.no_arguments)):
        assert not flow.may(value.done(step), is_mesh).answers


@pytest.mark.parametrize("code", CERTAIN.values(), ids=CERTAIN)
def test_what_is_certain_is_believed(code: str) -> None:
    flow, value = read(code)
    assert flow.must(value, is_mesh) is True


# Texts that methods make of others.
TEXTS = (
    '"a.part".split(".")[-1]',
    '"A.PART".lower().rpartition(".")[2]',
    'f"{len(n)}.part".rsplit(".", 1)[1]',
    '"part:other".partition(":")[0]',
    '" xart ".strip().replace("x", "p")',
    '"a_part".removeprefix("a_")',
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_a_method_makes_is_read(text: str) -> None:
    flow, value = read(f"class Box:\n    part = V\nask(getattr(Box, {text}))\n")
    assert flow.must(value, is_mesh) is True


@pytest.mark.parametrize("text", ['"a".split("")[0]', '"part".replace("p")', '"a.b".split(n)[1]', '"p".center(3)'])
def test_a_text_that_is_not_seen_is_no_name(text: str) -> None:
    flow, value = read(f"class Box:\n    part = V\nask(getattr(Box, {text}))\n")
    assert flow.must(value, is_mesh) is None


def pairs(first: dict[str, str], second: dict[str, str], count: int) -> list[tuple[str, str]]:
    """Some programs of two forms each, by their names."""
    chosen = random.Random(39)
    found: dict[tuple[str, str], str | None] = {}
    while len(found) < count:
        pair = chosen.choice([*first]), chosen.choice([*second])
        found[pair] = composed(first[pair[0]], second[pair[1]])
    return [pair for pair, code in found.items() if code is not None]


def test_a_form_within_a_form_is_seen() -> None:
    every = FORMS | MORE_FORMS
    unseen = []
    for pair in pairs(every, every, 600):
        flow, value = read(composed(*(every[name] for name in pair)) or "")
        found = flow.may(value, is_mesh)
        unseen += [pair] if not found.answers and all(each.is_open for each in found.unknown) else []
    assert unseen == []


def test_what_may_be_something_else_is_not_believed_behind_a_form() -> None:
    believed = []
    for attack, form in pairs(ATTACKS, FORMS, 400):
        flow, value = read(composed(ATTACKS[attack], FORMS[form]) or "")
        believed += [(attack, form)] if flow.must(value, is_mesh) else []
    assert believed == []


# What leads from one to the next, with the begin and the end of a chain.
LINKS = {
    "names": ("x0 = V", "x{n} = x{m}", "x{m}"),
    "calls": ("def x0(): return V", "def x{n}(): return x{m}()", "x{m}()"),
    "parameters": ("def x0(v): return v", "def x{n}(v): return x{m}(v)", "x{m}(V)"),
    "attributes": ("class A: pass\na = A()\na.x0 = V", "a.x{n} = a.x{m}", "a.x{m}"),
    "bases": ("class x0:\n    mesh = V", "class x{n}(x{m}): pass", "x{m}().mesh"),
    "partials": ("import functools\ndef x0(*a): return V", "x{n} = functools.partial(x{m}, 1)", "x{m}()"),
    "computed names": ("class A: x = 'x'\nx0 = 'x'", "x{n} = getattr(A, x{m})", "getattr(A, x{m})"),
    "trees": ("x0 = [V]", "x{n} = jax.tree.map(lambda v: v, x{m})", "x{m}[0]"),
    "containers": ("x0 = [V]", "x{n} = list(x{m})", "x{m}[0]"),
}


@pytest.mark.parametrize("kind", LINKS)
def test_long_chains_and_circles_come_to_an_end(kind: str) -> None:
    begin, link, end = LINKS[kind]
    count = 10_000 if kind == "names" else 1_000
    places = range(1, count)
    chain = [begin, *(link.format(n=n, m=n - 1) for n in places), f"ask({end.format(m=count - 1)})"]
    circle = [begin, *(link.format(n=n, m=n % (count - 1) + 1) for n in places), f"ask({end.format(m=1)})"]
    for lines in (chain, circle):
        flow, value = read("\n".join(lines))
        found = flow.may(value, is_mesh)
        assert found.answers or found.unknown
        assert flow.must(value, is_mesh) in (None, True)


def test_too_many_values_are_unknown() -> None:
    lines = [f"x{n} = [x{n + 1}, x{n + 2}][k]" for n in range(MOST_VALUES)]
    flow, value = read("\n".join([*lines, "ask(x0)"]))
    assert flow.must(value, is_mesh) is None
    assert flow.may(value, is_mesh).unknown[-1].reason == "too many values may be it"


CALLS = (
    ("def f(a): pass\nf(1)", 1, False),
    ("from functools import partial\ndef f(a, b): pass\npartial(f, 1)(2)", 1, False),
    ("def f(a): pass\ng = f\ng(1)", 1, False),
    ("def f(a): pass\njax.jit(f)(1)", 1, False),
    ("def f(a): pass\ndef run(g): g(1)\nrun(f)", 1, False),
    ("def f(a): pass\nclass A:\n    def __init__(self, g):\n        self.g = g\n", 0, False),
    ("def f(a): pass\ndef make():\n    return f\nmake()(1)", 1, False),
    ("def f(a): pass\nlibrary.register(f)", 0, True),
    ("def f(a): pass\ntable = {'f': f}\ntable['f'](1)", 1, False),
    ("def f(a): pass\nlist(map(f, [1]))", 1, False),
    ("class A:\n    def f(self, a): pass\n    g = f\nA().g(1)", 1, False),
    ("class A:\n    def f(self, a): pass\nA().f(1)", 1, False),
)


@pytest.mark.parametrize(("code", "count", "escapes"), CALLS, ids=[code for code, _, _ in CALLS])
def test_the_calls_of_a_function_are_found(code: str, count: int, escapes: bool) -> None:
    flow, _ = read(f"{code}\nask(1)")
    (module,) = flow.modules
    function = next(node for node in module.nodes_of(ast.FunctionDef) if node.name == "f")
    calls, reason = calls_of(flow, module, function)
    assert len(calls) == count
    assert (reason is not None) is escapes


def test_an_unknown_says_what_was_known() -> None:
    flow, value = read("def f(trainer):\n    ask(trainer.mesh)\n")
    (first, *_) = flow.may(value, is_mesh).unknown
    assert isinstance(first, Unknown)
    assert first.reason == "`trainer` may be passed by other code"
    assert first.value is not None
    assert isinstance(first.value.head, ast.arg)
