"""Definitions that no code names, and that `modernize` decides the same where it passes them over."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest
from fixture_files import source_files, tree

from mmmodernize.calls.named_definitions import NamedDefinitions
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.facts import Facts, SourceFile, read_facts

FIXTURES = Path(__file__).parents[1] / "fixtures" / "modernize"
REGISTRY = ModernizeRegistry()

SOURCE = "def enter(f):\n    with f():\n        yield\n"

# A function that enters what may be a mesh calls what it is given, and `main` gives it the site.
GIVEN = """
import numpy as np
import jax
from jax.experimental.pjit import pjit
from jax.sharding import PartitionSpec as P

def enter(manager, function):
    with manager:
        return function()

def site():
    return pjit(lambda x: x, in_axis_resources=P("x"), out_axis_resources=None)(np.ones(8))
"""
CALLED = {
    "by its name": GIVEN + "\ndef main(manager):\n    return enter(manager, site)\n",
    "by another name": GIVEN + "\nrun = enter\n\ndef main(manager):\n    return run(manager, site)\n",
    "not at all": GIVEN + "\ndef main(manager):\n    return site()\n",
}


def facts_of(text: str, path: str = "a.py") -> Facts:
    facts = read_facts(SourceFile(path, text.encode(), path.removesuffix(".py")), ())
    assert isinstance(facts, Facts)
    return facts


@pytest.mark.parametrize(
    ("text", "other", "expected"),
    [
        (SOURCE, "", False),
        (SOURCE, "entered = enter_all = 1\n", False),
        (SOURCE + "enter(print)\n", "", True),
        (SOURCE, "from a import enter as begin\n", True),
        (SOURCE, "import a\na.enter(print)\n", True),
        (SOURCE, "# enter\n", True),
        # Python reads these letters as the plain ones.
        (SOURCE, "import a\na.\N{FULLWIDTH LATIN SMALL LETTER E}nter(print)\n", True),
        # What the module calls `begun` is bound in here.
        ("def enter(f):\n    global begun\n    def begun(): pass\n", "", True),
        ("class enter:\n    def __init__(self, f): pass\n", "", False),
        # A decorator keeps what it is given.
        ("@register\ndef enter(f): pass\n", "", True),
        ("@register('a')\nclass enter: pass\n", "", True),
        ("@register\nasync def enter(f): pass\n", "", True),
        ("@functools.singledispatch\ndef enter(f): pass\n", "", True),
        # So may a base, and a metaclass.
        ("class enter(Registered): pass\n", "", True),
        ("class enter(metaclass=Registry): pass\n", "", True),
        ("class enter(*bases): pass\n", "", True),
        ("class enter(**keywords): pass\n", "", True),
        # `module.attribute`, `with` and the like call these.
        ("def __getattr__(name): pass\n", "", True),
        ("def __enter__(self): pass\n", "", True),
        # Private members are named with their class elsewhere.
        ("def __enter(self): pass\n", "import a\na._A__enter(print)\n", True),
        ("def __enter(self): pass\n", "entered = 1\n", False),
        ("def enter(f):\n    nonlocal_ = global_ = f\n", "", False),
        ("async def enter(f): pass\n", "", False),
    ],
)
def test_definitions_that_are_named(text: str, other: str, expected: bool) -> None:
    facts = facts_of(text)
    named = NamedDefinitions([facts, facts_of(other, "b.py")])
    assert named.may_be(facts, facts.tree.body[0]) is expected


@pytest.fixture
def passed_over(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pass over definitions in the first run as well: these projects are given whole. The names of those."""
    found: list[str] = []
    may_be = NamedDefinitions.may_be

    def told(self: NamedDefinitions, facts: Facts, definition: ast.AST) -> bool:
        answer = may_be(self, facts, definition)
        found.extend([] if answer else [getattr(definition, "name", "")])
        return answer

    def everything(self: ModernizeContext) -> Sequence[Facts]:
        return [module.facts for module in self.modules.values()]

    monkeypatch.setattr(NamedDefinitions, "may_be", told)
    monkeypatch.setattr(ModernizeContext, "everything", everything)
    return found


PROJECTS = {
    "fixtures": {
        f"{path.parent.parent.name}_{path.parent.name}.py": path.read_bytes()
        for path in sorted(FIXTURES.glob("replace_mesh_context/*/before.py"))
    },
    **{path.parent.name: tree(path) for path in sorted(FIXTURES.glob("*/*/before"))},
    **{how: {"a.py": text.encode()} for how, text in CALLED.items()},
}


@pytest.mark.parametrize("project", PROJECTS)
def test_results_are_the_same_without_them(project: str, request: pytest.FixtureRequest) -> None:
    files = source_files(PROJECTS[project])
    whole = modernize_project(files, REGISTRY)
    passed_over = request.getfixturevalue("passed_over")
    assert modernize_project(files, REGISTRY) == whole
    if project == "fixtures":
        assert passed_over


@pytest.mark.parametrize("how", CALLED)
def test_a_function_reaches_what_it_is_handed(how: str, passed_over: list[str]) -> None:
    (result,) = modernize_project(source_files({"a.py": CALLED[how].encode()}), REGISTRY)
    assert (b"with compat.mesh_context(manager):" in result.result) is (how != "not at all")
    assert ("enter" in passed_over) is (how == "not at all")


def test_the_second_run_looks_through_modules_that_may_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_through: list[set[str]] = []
    start = NamedDefinitions.__init__

    def told(self: NamedDefinitions, modules: Sequence[Facts]) -> None:
        looked_through.append({facts.path for facts in modules})
        start(self, modules)

    monkeypatch.setattr(NamedDefinitions, "__init__", told)
    text = GIVEN + "\nimport helper\n\ndef main(manager):\n    return helper.run(manager, site)\n"
    # What stays has the second run look for regions again.
    text += "\ndef apart(manager, function):\n    with manager:\n        return function()\n"
    helper = b"import a\n\ndef run(manager, function):\n    return a.enter(manager, function)\n"
    (result,) = modernize_project(source_files({"a.py": text.encode()}), REGISTRY, load={"./helper.py": helper}.get)
    assert b"with compat.mesh_context(manager):" in result.result
    assert looked_through == [{"a.py", "./helper.py"}]
