"""The modules of the packages that a name may stand for by way of the project's modules, whichever of them it is.

Where one binding decides, names are resolved (`Project`). Here a name may have several, come by `import *`, or be an
attribute of a class.
"""

from __future__ import annotations

import ast
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from mmmodernize.modules.passed_modules import PassedModules
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.facts import Facts
from mmrewrite.source.branches import branches
from mmrewrite.source.names import Scope, dotted_name

# `a = b.x if flag else b.y` beside `b = a.z` makes names without end. Of what one binding is, so many are looked at,
# the short ones first: no module lies so deep in its package that it comes later.
_MOST_OF_ONE = 64


@dataclass(frozen=True)
class _Name:
    """A dotted name, and the scope in which its first part is bound."""

    dotted: str
    scope: Scope
    facts: Facts


class ReexportedModules:
    """What dotted names of the project's modules may stand for."""

    def __init__(self, context: ModernizeContext) -> None:
        self._project, self._homes = context.project, context.analysis(PassedModules).homes
        self._known: dict[_Name, frozenset[str]] = {}

    def of(self, node: ast.expr, scope: Scope, facts: Facts) -> frozenset[str]:
        """Full names of the modules that an expression may be, as far as names lead."""
        dotted = dotted_name(node)
        if dotted is None:
            return frozenset()
        start = _Name(dotted, scope.owner(dotted.partition(".")[0]) or facts.names.scope, facts)
        if start not in self._known:
            self._known[start] = frozenset(self._reached(start))
        return self._known[start]

    def _reached(self, start: _Name) -> Iterator[str]:
        """The modules that a name leads to; names may lead to each other in a circle, as modules import each other."""
        seen, waiting, count = {start}, deque([start]), Counter[tuple[str, Scope]]()
        while waiting:
            for found in self._next(waiting.popleft()):
                if isinstance(found, str):
                    yield found
                elif found not in seen:
                    seen.add(found)
                    bound = found.dotted.partition(".")[0], found.scope
                    count[bound] += 1
                    if count[bound] <= _MOST_OF_ONE:
                        waiting.append(found)

    def _next(self, name: _Name) -> Iterator[_Name | str]:
        """The names that one leads to by a single binding, and the modules of packages that it is."""
        dotted, scope, facts = name.dotted, name.scope, name.facts
        head, _, rest = dotted.partition(".")
        for binding in scope.bindings.get(head, ()):
            if binding.target is not None:
                yield from self._meant(_joined(binding.target, rest), facts)
            elif binding.kind == "class" and rest:
                inner = facts.names.inner.get(binding.node)
                if inner is not None:
                    yield _Name(rest, inner, facts)
            elif binding.value is not None:
                for value in branches(binding.value):
                    given = dotted_name(value)
                    if given is not None:
                        holder = scope.owner(given.partition(".")[0]) or facts.names.scope
                        yield _Name(_joined(given, rest), holder, facts)
        if scope is not facts.names.scope:
            return
        for star in facts.names.stars:
            module = self._project.star_module(star, facts)
            if module is not None:
                yield _Name(dotted, module.names.scope, module)
            elif star.module is not None and not star.level:
                yield from {f"{star.module}.{dotted}"} & self._homes
        if facts.names.is_package:
            # A module of a package is an attribute of it once anything imports it.
            yield from self._meant(f"{facts.names.name}.{dotted}", facts, is_own=True)

    def _meant(self, name: str, facts: Facts, *, is_own: bool = False) -> Iterator[_Name | str]:
        """What a full name may stand for: it is a module of a package, or lies in one of the project's."""
        if name in self._homes:
            yield name
            return
        parts = name.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            inner = self._project.module(".".join(parts[:cut]), facts)
            if inner is not None and not (is_own and inner is facts):
                yield _Name(".".join(parts[cut:]), inner.names.scope, inner)
                return


def _joined(name: str, rest: str) -> str:
    return f"{name}.{rest}" if rest else name
