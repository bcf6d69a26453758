"""What is nested too deeply for LibCST's parser, which would end the process, does not get there."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import HINTED, OLD, PIPELINE, put, run

from mmrewrite.source.failure import failure_of, has_room, with_room
from mmrewrite.source.libcst_parser import deepest, parse_expression, parse_module, parse_statement
from mmrewrite.source.text import TooDeep, parse_quietly

ROOT = Path(__file__).parent.parent
# What comes first, again and again, in the middle, again and again, and last.
FORMS: dict[str, tuple[str, str, str, str, str]] = {
    "parentheses": ("x = ", "(", "1", ")", "\n"),
    "unclosed": ("x = ", "(", "1", "", "\n"),
    "lists": ("x = ", "[", "1", "]", "\n"),
    "dictionaries": ("x = ", "{1:", "1", "}", "\n"),
    "later elements": ("x = ", "[1, 2, ", "1", ", 3]", "\n"),
    "calls": ("x = ", "f(", "1", ")", "\n"),
    "over lines": ("x = ", "(\n", "1", ")\n", "\n"),
    "signs": ("x = ", "-", "1", "", "\n"),
    "nots": ("x = ", "not ", "1", "", "\n"),
    "lambdas": ("x = ", "lambda: ", "1", "", "\n"),
    "conditions": ("x = ", "1 if 1 else ", "1", "", "\n"),
    "sums": ("x = ", "1 + ", "1", "", "\n"),
    "sums with comments": ("x = (1", " +  # )\n 1", "", "", ")\n"),
    "sums over lines": ("x = 1", " + \\\n 1", "", "", "\n"),
    "ands": ("x = ", "1 and ", "1", "", "\n"),
    "attributes": ("x = a", ".a", "", "", "\n"),
    "calls of calls": ("x = a", "(0, 1)", "", "", "\n"),
    "strings beside each other": ("x = ", '"a" ', "", "", "\n"),
    "fields in fields": ('x = f"', "{1:", "1", "}", '"\n'),
    "strings in strings": ("x = ", 'f"{', "1", '}"', "\n"),
    "elifs": ("if 1:\n    pass\n", "elif 1:\n    pass\n", "", "", "\n"),
    "elifs with more in them": ("if 1:\n  1\n", "elif 1:\n  if 1:\n    1\n  else:\n    1\n", "", "", "\n"),
    "patterns": ("match x:\n    case ", "[", "1", "]", ":\n        pass\n"),
    "imports": ("import a", ".a", "", "", "\n"),
}


def repeated(name: str, count: int) -> str:
    """A form, so many levels deep."""
    if name == "blocks":
        return "".join(f"{' ' * depth}if 1:\n" for depth in range(count)) + f"{' ' * count}pass\n"
    before, first, middle, second, after = FORMS[name]
    return f"{before}{first * count}{middle}{second * count}{after}"


FLAT = {
    "statements": "a = b(1, c.d)\n" * 5000,
    "elements": f"x = [{'-a.b(1), ' * 5000}]\n",
    "semicolons": "a = 1; " * 5000,
    "keywords": f"x = dict({'a=1, ' * 5000})\n",
    "text": f'x = """{"( [ {" * 5000}"""\n',
    "comments": "# ((((((((\n" * 5000,
    "blocks": "def f():\n    if 1:\n        if 2:\n            return 3\n    elif 4:\n        pass\n" * 1000,
}


@pytest.mark.parametrize("name", [*FORMS, "blocks"])
def test_what_is_deep_is_found(name: str) -> None:
    deep = repeated(name, 700)
    assert deepest(deep) >= 700
    assert deepest(repeated(name, 20)) < 200
    long = deep + "y = 1\n" * 1000
    for parse in (parse_module, parse_expression, parse_statement):
        with pytest.raises(RecursionError):
            parse(long)


@pytest.mark.parametrize("name", FLAT)
def test_what_is_flat_is_read(name: str) -> None:
    assert deepest(FLAT[name]) < 50
    assert parse_module(FLAT[name]).code == FLAT[name]


@pytest.mark.usefixtures("folder")
def test_one_file_costs_one_file() -> None:
    """Brackets that Python itself refuses to read, and LibCST, which is asked next, would not survive."""
    put("deep.py", HINTED + repeated("parentheses", 3000))
    put("good.py", HINTED)
    done = subprocess.run(
        [sys.executable, "-m", "mmrewrite", "diff", "--no-cache"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "+++ b/good.py" in done.stdout
    assert "deep.py: Python" in done.stderr and "too many nested parentheses" in done.stderr


STEP = """

def first(w):
    return w


@jax.jit  # mm: mjit
def step(w, x):
    w = first(w)  # mm: task(stage=0)
    return jax.grad({})(w, x)  # mm: microbatch(count=2)
"""
MESH = "import jax\nfrom flax import linen as nn\n\n# mm: mesh(stage=2)\n\n\n"
# Programs of which an analysis of ours calls itself more often than Python's own stack has room for.
LONG = {
    "a chain of calls": MESH
    + "".join(f"def f{i}(w, x):\n    return f{i + 1}(w, x)\n\n\n" for i in range(300))
    + "def f300(w, x):\n    return (w * x).sum()\n"
    + STEP.format("f0"),
    "one name, again and again": MESH
    + "def g(x):\n    return x + 1\n\n\ndef loss(w, x):\n    x = x * w\n"
    + "    x = g(x)\n" * 200
    + "    return x.sum()\n"
    + STEP.format("loss"),
    "a sum": f"{MESH}def loss(w, x):\n    return (w{' + x' * 250}).sum()\n{STEP.format('loss')}",
    "classes that extend each other": MESH
    + "class C0(nn.Module):\n    def __call__(self, x):\n        return x\n\n\n"
    + "".join(f"class C{i}(C{i - 1}):\n    pass\n\n\n" for i in range(1, 400))
    + "def loss(w, x):\n    return C399().apply(w, x).sum()\n"
    + STEP.format("loss"),
    "methods of one object": MESH
    + "class Model(nn.Module):\n    def setup(self):\n"
    + "        self.encoder = Encoder()\n        self.output = [nn.relu]\n\n"
    + "    def __call__(self, x):\n"
    + "".join(f"        x = self.layer{i}(x)\n" for i in range(8))
    + "        return x\n\n    def make(self, x):\n        loss = self.get_loss()\n\n"
    + "        def train_step(state, batch):\n"
    + "            def loss_fn(params):\n                return loss(params, batch)\n\n"
    + "            # mm: microbatch(count=2)\n            return jax.value_and_grad(loss_fn)(state.params)\n\n"
    + "    def init(self, batch):\n        return self.to_input(batch)\n",
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", LONG)
def test_what_is_long_is_rewritten(name: str) -> None:
    put("long.py", LONG[name])
    for command in (["diff"], ["modernize", "--diff"]):
        result = run(*command, "--no-cache")
        assert result.exit_code == 0, result.stderr
        assert ("+++ b/long.py" in result.stdout) == (command == ["diff"]), result.stderr


class TestWhoseFaultItIs:
    """A crash is ours, and costs the file that it is about."""

    def test_a_text_that_is_too_deep(self) -> None:
        with pytest.raises(TooDeep):
            parse_quietly("-" * 100_000 + "1")
        assert "split its longest expressions" in failure_of(TooDeep())

    def test_our_own_recursion(self) -> None:
        def count(depth: int) -> int:
            return 0 if depth == 0 else 1 + count(depth - 1)

        assert with_room(lambda: count(5000)) == 5000
        with pytest.raises(RecursionError):
            failure_of(RecursionError())

        def endless() -> str:
            try:
                return str(count(-1))
            except Exception as error:
                return failure_of(error)

        assert with_room(endless).startswith("this is a bug in mmrewrite (RecursionError")
        assert not has_room()

    @pytest.mark.usefixtures("folder")
    @pytest.mark.parametrize("error", [KeyError, RecursionError, ValueError, SyntaxError])
    @pytest.mark.parametrize(
        "place",
        [
            "mmrewrite.project.reach.Reach.from_node",
            "mmrewrite.project.facts.collect_hints",
            "mmrewrite.engine.draft.draft_module",
            "mmrewrite.engine.regions.find_regions",
            "mmmodernize.decide._decide_together",
            "mmrewrite.project.uses.ModuleUses.__init__",
        ],
    )
    def test_a_bug_costs_one_file(self, place: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("good", "bad"):
            put(f"{name}.py", PIPELINE + OLD.partition("\n")[2])
        home, _, name = place.rpartition(".")
        holder = pkgutil.resolve_name(home)
        real = getattr(holder, name)

        def fails(*arguments: Any, **words: Any) -> Any:
            if any(getattr(each, "path", each) == "bad.py" for each in _flat(arguments)):
                raise error("a mistake of ours")
            return real(*arguments, **words)

        # Without the names that a module makes when they are asked for.
        for module in [each for each in sys.modules.values() if vars(each).get(name) is real]:
            monkeypatch.setattr(module, name, fails)
        monkeypatch.setattr(holder, name, fails)
        for command in (["diff"], ["modernize", "--diff"]):
            # Of what both ask, the old names show it: hints may need no uses of names.
            if ("modernize" in place or "ModuleUses" in place) == (command[0] == "modernize"):
                result = run(*command, "--no-cache", "--jobs", "1")
                assert result.exit_code == 2
                assert "+++ b/good.py" in result.stdout
                assert "bad.py: this is a bug in mmrewrite" in result.stderr


def _flat(values: Any) -> Iterator[Any]:
    """The arguments of a call, those in lists among them."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value
            yield getattr(value, "facts", None)
            yield getattr(value, "location", None)


def test_nobody_else_asks_libcst() -> None:
    """LibCST's own command gets what LibCST has parsed before."""
    found = {
        str(path.relative_to(ROOT))
        for folder in ("mmrewrite", "codemods")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith("parse_") and ast.unparse(node.value) == "cst"
    }
    assert found == {"mmrewrite/source/libcst_parser.py", "mmrewrite/cli/libcst_tool.py"}
