"""The modules of the packages that a name may stand for by way of the project's modules, whichever of them it is.

Where one binding decides, names are resolved (`Project`). Here a name may have several, come by `import *`, or be an
attribute of a class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mmrewrite.modernize.analysis.passed_modules import PassedModules
from mmrewrite.modernize.site import ModernizeContext
from mmrewrite.project.facts import Facts
from mmrewrite.source.names import Scope, dotted_name


class ReexportedModules:
    """What dotted names of the project's modules may stand for."""

    def __init__(self, context: ModernizeContext) -> None:
        self._project, self._homes = context.project, context.analysis(PassedModules).homes
        self._known: dict[tuple[str, str], frozenset[str]] = {}
        self._asked: set[tuple[str, str]] = set()

    def of(self, node: ast.expr, scope: Scope, facts: Facts) -> frozenset[str]:
        """Full names of the modules that an expression may be, as far as names lead."""
        dotted = dotted_name(node)
        if dotted is None:
            return frozenset()
        owner = scope.owner(dotted.partition(".")[0])
        if owner is None or owner is facts.names.scope:
            return self._at_top(dotted, facts)
        return frozenset(self._in_scope(dotted, owner, facts))

    def _at_top(self, dotted: str, facts: Facts) -> frozenset[str]:
        """The same for a name of a module itself."""
        key = (facts.path, dotted)
        if key in self._asked:
            # Modules import each other in a circle: what one gives by way of itself it gives anyway.
            return self._known.get(key, frozenset())
        self._asked.add(key)
        found = set(self._in_scope(dotted, facts.names.scope, facts))
        for star in facts.names.stars:
            inner = self._project.star_module(star, facts)
            if inner is not None:
                found |= self._at_top(dotted, inner)
            elif star.module is not None and not star.level:
                found |= {f"{star.module}.{dotted}"} & self._homes
        own = facts.names.name
        if facts.names.is_package:
            # A module of a package is an attribute of it once anything imports it.
            found |= set(self._meant(f"{own}.{dotted}", facts, is_own=True))
        self._known[key] = frozenset(found)
        return self._known[key]

    def _in_scope(self, dotted: str, scope: Scope, facts: Facts) -> Iterator[str]:
        head, _, rest = dotted.partition(".")
        for binding in scope.bindings.get(head, ()):
            if binding.target is not None:
                yield from self._meant(f"{binding.target}.{rest}" if rest else binding.target, facts)
            elif binding.kind == "class" and rest:
                inner = facts.names.inner.get(binding.node)
                if inner is not None:
                    yield from self._in_scope(rest, inner, facts)
            elif binding.value is not None:
                for value in ast.walk(binding.value) if _is_choice(binding.value) else (binding.value,):
                    name = dotted_name(value) if isinstance(value, ast.expr) else None
                    if name is not None and name.partition(".")[0] != head:
                        holder = scope.owner(name.partition(".")[0]) or scope
                        yield from self._again(f"{name}.{rest}" if rest else name, holder, facts)

    def _again(self, dotted: str, scope: Scope, facts: Facts) -> Iterator[str]:
        if scope is facts.names.scope:
            yield from self._at_top(dotted, facts)
        else:
            yield from self._in_scope(dotted, scope, facts)

    def _meant(self, name: str, facts: Facts, *, is_own: bool = False) -> Iterator[str]:
        """What a full name may stand for: it is a module of a package, or lies in one of the project's."""
        if name in self._homes:
            yield name
            return
        parts = name.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            inner = self._project.module(".".join(parts[:cut]), facts)
            if inner is not None and not (is_own and inner is facts):
                yield from self._at_top(".".join(parts[cut:]), inner)
                return


def _is_choice(value: ast.expr) -> bool:
    return isinstance(value, ast.IfExp | ast.BoolOp)
