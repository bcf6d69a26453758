"""What code leads to, where definitions lead to no assignment of their own: no less than where they lead to all."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import pytest
from test_leading_code import PROJECTS, project_of

from mmmodernize.calls.components import combined
from mmmodernize.calls.reach import OutsideReach, WideReach
from mmrewrite.project.reach import Reached
from mmrewrite.project.uses import ModuleUses


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
