"""The call chains around `xmap`, which stay: the code that reaches one, and the code that only such code reaches."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mmmodernize.calls.components import bits, combined, marks_of
from mmmodernize.calls.wide_reach import NarrowReach
from mmmodernize.names.shared_names import XMAPS
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.sites.version_guards import guard_of
from mmrewrite.project.uses import ModuleUses, OldNameUse

if TYPE_CHECKING:
    from mmmodernize.sites.decision import Decision

# A function, a method, or a statement of a module or class body that is neither.
_Unit = tuple[ModuleUses, ast.stmt]


class XmapChains:
    """The units of a project that belong to the call chain of an `xmap`, each with the place of one."""

    def __init__(self, context: ModernizeContext) -> None:
        self._places: dict[ast.stmt, str] = {}
        xmaps = dict(_xmaps(context))
        if not xmaps:
            return
        reach = NarrowReach(context.project, context.modules)
        units = [unit for module in context.modules.values() for unit in _units(module)]
        reach.visit((module, [statement]) for module, statement in units)
        places = [f"{module.facts.path}:{node.lineno}" for node, (module, _) in xmaps.items()]
        holders = [{node, *module.above(node)} for node, (module, _) in xmaps.items()]
        leading = reach.leading(marks_of(holders))
        for _, statement in units:
            for number in bits(leading(statement)):
                self._places.setdefault(statement, places[number])
        sources = [unit for unit in units if any(unit[1] in above for above in holders)]
        led = reach.led_from([[(module, [statement])] for module, statement in sources])
        below: dict[ast.stmt, str] = {}
        for module, statement in units:
            # The last source decides, as each overwrites what those before it have said.
            for number in bits(combined(led, (statement, *module.above(statement)))):
                below[statement] = self._places[sources[number][1]]
        inside = self._places.keys() | below.keys()
        others = reach.led_from([[(module, [statement]) for module, statement in units if statement not in inside]])
        for module, statement in units:
            if statement in below and not combined(others, (statement, *module.above(statement))):
                self._places.setdefault(statement, below[statement])

    def of(self, location: Location) -> str | None:
        """The place of an `xmap` to whose call chain a site belongs, else None."""
        for holder in (location.node, *location.module.above(location.node)):
            if isinstance(holder, ast.stmt) and holder in self._places:
                return self._places[holder]
        return None


def has_xmaps(context: ModernizeContext) -> bool:
    """Whether a project has the call chain of any `xmap`."""
    return next(_xmaps(context), None) is not None


def _xmaps(context: ModernizeContext) -> Iterator[tuple[ast.expr, tuple[ModuleUses, OldNameUse]]]:
    for module in context.modules.values():
        for use in module.uses(XMAPS):
            if guard_of(module, use.node) is None:
                yield use.node, (module, use)


def leave_chains(decisions: Sequence[Decision], context: ModernizeContext) -> list[Decision]:
    """The decisions, where sites in the call chain of an `xmap` are refused."""
    if all(decision.stays for decision in decisions):
        return list(decisions)
    chains = context.analysis(XmapChains)
    found = []
    for decision in decisions:
        cause = None if decision.stays else chains.of(decision.location)
        reason = f"it belongs to the call chain of the `xmap` in {cause}, which has no replacement"
        found.append(decision if cause is None else decision.refused(f"left as it is, because {reason}"))
    return found


def _units(module: ModuleUses) -> Iterator[_Unit]:
    for statement in module.facts.tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        inner = statement.body if isinstance(statement, ast.ClassDef) else [statement]
        for part in inner:
            yield module, part
