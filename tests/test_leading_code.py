"""Code that leads to some nodes, found backwards: no less than what leads there forwards, and the same decisions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from fixture_files import source_files, tree

from mmmodernize.calls import leading_code
from mmmodernize.calls.leading_code import LeadingCode
from mmmodernize.calls.reach import WideReach
from mmmodernize.meshes import mesh_regions
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.facts import Facts, read_facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses

FIXTURES = Path(__file__).parents[1] / "fixtures" / "modernize"
REGISTRY = ModernizeRegistry()

# `target` stands in `home.py`; each project leads there from `start` in `main.py`, or does not.
HOME = "def target():\n    return 1\n"
LEADING = {
    "by its name": {"main.py": "from home import target\n\ndef start():\n    return target()\n"},
    "by a module": {"main.py": "import home\n\ndef start():\n    return home.target()\n"},
    "by a module of another name": {"main.py": "import home as h\n\ndef start():\n    return h.target()\n"},
    "by an import of another name": {"main.py": "from home import target as t\n\ndef start():\n    return t()\n"},
    "by an import inside": {"main.py": "def start():\n    from home import target\n"},
    "by a module between": {
        "between.py": "from home import target as t\n",
        "main.py": "import between\n\ndef start():\n    return between.t()\n",
    },
    "by two names in turn": {
        "between.py": "from home import target as t\n",
        "more.py": "from between import t as u\n",
        "main.py": "from more import u as v\n\ndef start():\n    return v()\n",
    },
    "by a function between": {
        "between.py": "import home\n\ndef middle():\n    return home.target()\n",
        "main.py": "import between\n\ndef start():\n    return between.middle()\n",
    },
    "by a value": {"main.py": "import home\n\nvalue = home.target\n\ndef start():\n    return value()\n"},
    "by a table": {"main.py": "import home\n\ntable = {'a': home.target}\n\ndef start():\n    return table['a']()\n"},
    "by an attribute": {
        "main.py": "import home\n\nclass A:\n    def __init__(self):\n        self.run = home.target\n\n"
        "def start(a):\n    return a.run()\n"
    },
    "by a method": {
        "main.py": "import home\n\nclass A:\n    def run(self):\n        return home.target()\n\n"
        "def start(a):\n    return a.run()\n"
    },
    "by a star": {"main.py": "from home import *\n\ndef start():\n    return target()\n"},
    "by a star of another name": {
        "between.py": "from home import target as t\n",
        "main.py": "from between import *\n\ndef start():\n    return t()\n",
    },
    "by a star of a module": {
        "between.py": "import home\n",
        "main.py": "from between import *\n\ndef start():\n    return home.target()\n",
    },
    "by what a class assigns": {
        "main.py": "import home\n\nclass A:\n    run = staticmethod(home.target)\n\ndef start(a):\n    return a.run()\n"
    },
    "by what a class imports": {
        "main.py": "class A:\n    from home import target as run\n\ndef start(a):\n    return a.run()\n"
    },
    "by a method under a condition": {
        "main.py": "import home\n\nclass A:\n    if True:\n        def run(self):\n            return home.target()\n\n"
        "def start(a):\n    return a.run()\n"
    },
    "by an async method": {
        "main.py": "import home\n\nclass A:\n    async def run(self):\n        return home.target()\n\n"
        "def start(a):\n    return a.run()\n"
    },
    "by a class in a class": {
        "main.py": "import home\n\nclass A:\n    class B:\n        def __init__(self):\n            home.target()\n\n"
        "def start(a):\n    return a.B()\n"
    },
    "by a default, in the scope of its function": {
        "main.py": "def start(f=home.target):\n    import home\n    return f()\n"
    },
    "by a block of the module": {
        "main.py": "if True:\n    from home import target as t\n    other = t\n\ndef start():\n    return other()\n"
    },
    "by a circle": {
        "main.py": "import home\n\ndef start(n):\n    return again(n)\n\n"
        "def again(n):\n    home.target()\n    start(n)\n"
    },
}
APART = {
    "not at all": {"main.py": "def start():\n    return 1\n"},
    "to another of that name": {"main.py": "def target():\n    return 2\n\ndef start():\n    return target()\n"},
}


def project_of(files: Mapping[str, bytes]) -> tuple[Project, dict[str, ModuleUses]]:
    read = [read_facts(file, ()) for file in source_files(files)]
    facts = [each for each in read if isinstance(each, Facts)]
    project = Project(facts, {}.get, ())
    for each in facts:
        each.names.synonyms = {}
    return project, {each.path: ModuleUses(each) for each in facts}


def leading_to(files: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether `start` of `main.py` leads to `target` of `home.py`: backwards, and forwards."""
    project, modules = project_of({"home.py": HOME.encode(), **{path: text.encode() for path, text in files.items()}})
    reach = WideReach(project, modules)
    target = modules["home.py"].facts.tree.body[0]
    home, main = modules["home.py"], modules["main.py"]
    start = next(node for node in main.nodes_of(ast.FunctionDef) if node.name == "start")
    everything = [module.facts for module in modules.values()]
    found = LeadingCode(reach, modules, everything, {}).to([(home, [target])])
    assert found is not None
    reach.visit([(main, [start])])
    return start in found, bool(reach.leading({target: 1})(start))


@pytest.mark.parametrize("how", LEADING)
def test_code_that_leads_to_a_node(how: str) -> None:
    assert leading_to(LEADING[how]) == (True, True)


@pytest.mark.parametrize("how", APART)
def test_code_that_does_not(how: str) -> None:
    assert leading_to(APART[how]) == (False, False)


PROJECTS = {
    "fixtures": {
        f"{path.parent.parent.name}_{path.parent.name}.py": path.read_bytes()
        for path in sorted(FIXTURES.glob("*/*/before.py"))
    },
    **{path.parent.name: tree(path) for path in sorted(FIXTURES.glob("*/*/before"))},
}


@pytest.mark.parametrize("project", PROJECTS)
def test_whatever_leads_to_a_function_is_found(project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading_code, "_MOST_SEARCHES", 1 << 60)
    found, modules = project_of(PROJECTS[project])
    reach = WideReach(found, modules)
    code = LeadingCode(reach, modules, [module.facts for module in modules.values()], {})
    statements = [(module, node) for module in modules.values() for node in module.nodes if isinstance(node, ast.stmt)]
    reach.visit((module, [node]) for module, node in statements)
    functions = [(module, node) for module, node in statements if isinstance(node, ast.FunctionDef)]
    # Each search looks through all files.
    for module, function in functions[:: 1 + len(functions) // 4]:
        leading = reach.leading({function: 1})
        backwards = code.to([(module, [function])])
        assert backwards is not None
        assert {node for _, node in statements if leading(node)} <= backwards


def test_a_module_that_may_not_change_is_not_searched() -> None:
    _, modules = project_of({"home.py": HOME.encode()})
    _, others = project_of({"other.py": b"import home\n\nhome.target()\n"})
    everything = [*(module.facts for module in modules.values()), *(module.facts for module in others.values())]
    code = LeadingCode(WideReach(_, modules), modules, everything, {})
    assert code.to([(modules["home.py"], modules["home.py"].facts.tree.body)]) is None


# What may be a mesh is entered around `run`; whether that leads to `site` is asked again for the result.
ASKED = """
import jax
from jax.experimental.pjit import pjit
from jax.sharding import PartitionSpec as P
from jax.interpreters import pxla

def site():
    return {argument}

TABLE = {{"pxla": pxla.thread_resources}}

def run(manager):
    with manager:
        return {called}
"""


@pytest.mark.parametrize("called", ["site()", "TABLE", "1"])
def test_decisions_are_those_of_the_search_forwards(called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ASKED.format(argument="pjit(lambda x: x, in_axis_resources=P('x'), out_axis_resources=None)", called=called)
    files = source_files({"a.py": text.encode()})
    asked: list[bool] = []

    def everything(self: ModernizeContext) -> Sequence[Facts]:
        return [module.facts for module in self.modules.values()]

    def told(self: LeadingCode, places: Iterable[tuple[ModuleUses, Iterable[ast.AST]]]) -> object:
        found = to(self, places)
        asked.append(found is not None)
        return found

    to = LeadingCode.to
    monkeypatch.setattr(ModernizeContext, "everything", everything)
    monkeypatch.setattr(LeadingCode, "to", told)
    backwards = modernize_project(files, REGISTRY)
    assert asked and all(asked)
    monkeypatch.setattr(mesh_regions.LeadingCode, "to", lambda self, places: None)
    assert modernize_project(files, REGISTRY) == backwards
    assert (b"compat.mesh_context(manager)" in backwards[0].result) is (called != "1")
