"""The code that leads to some nodes, found backwards: what mentions the names of what holds them, and so on.

`WideReach` goes forwards. That walks all that the code in question leads to, which often is the whole project. Where
few names lead to the nodes, it is quicker to look for these. All that leads to them is found, and some that may not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from mmmodernize.calls.reach import WideReach
from mmrewrite.project.facts import Facts
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.mentions import Mention
from mmrewrite.source.names import Scope, dotted_name
from mmrewrite.source.text import as_parsed

# Searches for a name through all modules. More of them take as long as it takes to follow all code forwards.
_MOST_SEARCHES = 64


class LeadingCode:
    """Looks for the code of a project that leads to some nodes.

    Args:
        reach: Says what a mention leads to.
        modules: The modules that may change, by path.
        everything: These, and all others that their code leads to.
        homes: Old full names and new ones, of which one may be resolved to the other.
    """

    def __init__(
        self,
        reach: WideReach,
        modules: Mapping[str, ModuleUses],
        everything: Sequence[Facts],
        homes: Mapping[str, str],
    ) -> None:
        self._reach, self._modules = reach, modules
        self._texts = {facts.path: as_parsed(facts.source.text) for facts in everything}
        self._homes = homes
        self._names: dict[ModuleUses, dict[ast.AST, set[str]]] = {}
        self._attributes: dict[ModuleUses, dict[str, list[ast.Attribute]]] = {}

    def to(self, places: Iterable[tuple[ModuleUses, Iterable[ast.AST]]]) -> Set[ast.AST] | None:
        """The nodes at some places, and all that may lead to one of them; None where that takes too long to find."""
        found: set[ast.AST] = set()
        queue: list[tuple[ModuleUses, ast.AST]] = []
        for module, nodes in places:
            for node in nodes:
                found.add(node)
                queue.append((module, node))
        searches = 0
        while queue:
            names = list(self._names_of(*queue.pop()))
            for name in names:
                searches += 1
                mentioned = self._mentioning(name) if searches <= _MOST_SEARCHES else None
                if mentioned is None:
                    return None
                names += [other for other in self._same_as(name, mentioned) if other not in names]
                for module, node in mentioned:
                    if self._is_led_to(module, node, found):
                        new = [each for each in (node, *module.above(node)) if each not in found]
                        found.update(new)
                        queue += [(module, each) for each in new]
        return found

    def _names_of(self, module: ModuleUses, node: ast.AST) -> set[str]:
        """The names by which code mentions what a statement binds."""
        if module not in self._names:
            self._names[module] = _names_by_statement(module)
        return self._names[module].get(node, set())

    def _mentioning(self, name: str) -> list[tuple[ModuleUses, ast.AST]] | None:
        """The places with a name; None if it stands in a module that may not change."""
        found: list[tuple[ModuleUses, ast.AST]] = []
        for path, text in self._texts.items():
            if name in text:
                module = self._modules.get(path)
                if module is None:
                    return None
                found += [(module, node) for node in self._in_module(module, name)]
        return found

    def _in_module(self, module: ModuleUses, name: str) -> Iterator[ast.AST]:
        yield from module.heads.get(name, ())
        if module not in self._attributes:
            attributes: dict[str, list[ast.Attribute]] = {}
            for node in module.nodes_of(ast.Attribute):
                attributes.setdefault(node.attr, []).append(node)
            self._attributes[module] = attributes
        yield from self._attributes[module].get(name, ())
        for statement in module.nodes_of(ast.Import, ast.ImportFrom):
            if any(name in (alias.asname, *alias.name.split(".")) for alias in statement.names):
                yield statement

    def _is_led_to(self, module: ModuleUses, node: ast.AST, found: Set[ast.AST]) -> bool:
        """Whether a mention leads to what was found, wherever the code around it is entered."""
        facts, reach = module.facts, self._reach
        if isinstance(node, ast.Import | ast.ImportFrom):
            return any(reached.node in found for reached in reach.of_mention(facts, Mention(statement=node), None))
        assert isinstance(node, ast.Name | ast.Attribute)
        if isinstance(node, ast.Attribute) and any(each.node in found for each in reach.members.get(node.attr, ())):
            return True
        mention = Mention(node.id) if isinstance(node, ast.Name) else Mention(dotted=dotted_name(node))
        return any(
            reached.node in found
            for owner in (None, *_owners(module, node, mention.head))
            for reached in reach.of_mention(facts, mention, owner)
        )

    def _same_as(self, name: str, mentioned: Iterable[tuple[ModuleUses, ast.AST]]) -> Iterator[str]:
        """What else a name is called: by imports, and where it moved from."""
        for _, node in mentioned:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    if alias.asname is not None and name in alias.name.split("."):
                        yield alias.asname
        yield from (old.rpartition(".")[2] for old, new in self._homes.items() if new.endswith(f".{name}"))


def _owners(module: ModuleUses, node: ast.expr, name: str | None) -> Iterator[Scope]:
    """The scopes around a node that bind a name: where code that holds the node is entered says which is asked.

    What enters a function asks its own scope for its decorators and defaults, too.
    """
    scope: Scope | None = module.scope_of(node)
    while scope is not None:
        if name in scope.bindings:
            yield scope
        scope = scope.parent
    inner = module.facts.names.inner
    for holder in module.above(node):
        if holder in inner and name in inner[holder].bindings:
            yield inner[holder]


def _names_by_statement(module: ModuleUses) -> dict[ast.AST, set[str]]:
    """The names that each statement binds, as those lead to it that reach follows."""
    names = module.facts.names
    found: dict[ast.AST, set[str]] = {}
    for scope in set(names.inner.values()):
        for name, bindings in scope.bindings.items():
            for binding in bindings:
                if binding.statement is not None:
                    found.setdefault(binding.statement, set()).add(name)
                    if scope.kind != "function":
                        found.setdefault(names.top_level(binding.statement), set()).add(name)
    for node in module.nodes_of(ast.Attribute):
        if isinstance(node.ctx, ast.Store):
            found.setdefault(module.statement_of(node), set()).add(node.attr)
    return found
