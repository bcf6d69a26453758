"""What code leads to, where definitions lead to no assignment of their own: no less than where they lead to all."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from fixture_files import modernize_text, source_files, tree

from mmmodernize.calls.components import combined
from mmmodernize.calls.wide_reach import OutsideReach, WideReach
from mmrewrite.project.facts import Facts, read_facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reached
from mmrewrite.project.uses import ModuleUses

FIXTURES = Path(__file__).parents[1] / "fixtures" / "modernize"

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


@pytest.mark.parametrize("how", LEADING | APART)
def test_code_leads_to_a_node(how: str) -> None:
    """Whether `start` of `main.py` leads to `target` of `home.py`."""
    files = {"home.py": HOME, **(LEADING | APART)[how]}
    project, modules = project_of({path: text.encode() for path, text in files.items()})
    reach = WideReach(project, modules)
    target, main = modules["home.py"].facts.tree.body[0], modules["main.py"]
    start = next(node for node in main.nodes_of(ast.FunctionDef) if node.name == "start")
    reach.visit([(main, [start])])
    assert bool(reach.leading({target: 1})(start)) is (how in LEADING)


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


@pytest.mark.parametrize("how", CALLED)
def test_a_function_reaches_what_it_is_handed(how: str) -> None:
    result = modernize_text(CALLED[how])
    assert (b"with compat.mesh_context(manager):" in result.result) is (how != "not at all")


PROJECTS = {
    "fixtures": {
        f"{path.parent.parent.name}_{path.parent.name}.py": path.read_bytes()
        for path in sorted(FIXTURES.glob("*/*/before.py"))
    },
    **{path.parent.name: tree(path) for path in sorted(FIXTURES.glob("*/*/before"))},
}


class WholeReach(WideReach):
    """Definitions lead to their own assignments as well."""

    def _names_in(self, reached: Reached) -> Iterable[Reached]:
        return self._mentioned_in(reached)


@pytest.mark.parametrize("project", PROJECTS)
def test_assignments_of_their_own_lead_definitions_no_further(project: str) -> None:
    found, modules = project_of(PROJECTS[project])
    reach, whole = WideReach(found, modules), WholeReach(found, modules)
    starts = [(module, node) for module in modules.values() for node in module.nodes if isinstance(node, ast.stmt)]
    # A question is about nodes with all that hold them, as a site may stand in an assignment.
    sites = [(module, node) for module, node in starts if isinstance(node, ast.Assign | ast.Expr | ast.Return)][::5]
    marks: dict[ast.AST, int] = {}
    for number, (module, node) in enumerate(sites):
        for holder in (node, *module.above(node)):
            marks[holder] = marks.get(holder, 0) | 1 << number
    for each in (reach, whole):
        each.visit((module, [node]) for module, node in starts)
    assert [reach.leading(marks)(node) for _, node in starts] == [whole.leading(marks)(node) for _, node in starts]
    units = [[start] for start in starts[::7]]
    led, led_by_all = (each.led_from([[(module, [node])] for [(module, node)] in units]) for each in (reach, whole))
    for module, node in sites:
        holders = (node, *module.above(node))
        assert combined(led, holders) == combined(led_by_all, holders)


# A function that is made in a context and called behind it.
CALLED_OUTSIDE = """
def site():
    return 1


def step(mesh):
    with mesh:
        run = lambda: site()
    return run()
"""


def test_what_a_context_assigns_may_run_outside_of_it() -> None:
    found, modules = project_of({"main.py": CALLED_OUTSIDE.encode()})
    (module,) = modules.values()
    site, step = _functions(module)
    (context,) = module.nodes_of(ast.With)
    outside = OutsideReach(WideReach(found, modules), [(module, context.body)])
    outside.visit([(module, [step])])
    assert outside.leading({site: 1})(step)


def _functions(module: ModuleUses) -> list[ast.FunctionDef]:
    return [node for node in module.facts.tree.body if isinstance(node, ast.FunctionDef)]
