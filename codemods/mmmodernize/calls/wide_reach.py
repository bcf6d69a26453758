"""The definitions that code leads to, where an attribute may be any method or field of its name in the project."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from mmmodernize.calls.components import Components, bits, combined, marks_of
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reach, Reached, Several
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.mentions import Mention
from mmrewrite.source.names import Scope, dotted_name
from mmrewrite.source.walk import children

# Nodes of one module.
Unit = tuple[ModuleUses, Sequence[ast.AST]]

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class WideReach(Reach):
    """Over-approximates further: `trainer.step(x)` leads to every method `step` and every `self.step = ...`.

    Functions and classes lead to no assignment of their own. What such an assignment mentions, the definition around it
    mentions as well, in the same scope; and of most projects these are nine in ten nodes.
    """

    # Bindings are left out one by one.
    has_shared = False

    def __init__(self, project: Project, modules: Mapping[str, ModuleUses]) -> None:
        super().__init__(project)
        self.project = project
        self._by_facts = {id(module.facts): module for module in modules.values()}
        self.members: dict[str, list[Reached]] = {}
        self._members: dict[str, Reached] = {}
        # What each mention leads to, by the scope that binds its first name.
        self._known: dict[tuple[Mention, Scope | None], tuple[Reached, ...]] = {}
        self._targets: dict[Mention, frozenset[ast.AST]] = {}
        self._components = Components(self.direct)
        # The nodes of modules that may not change.
        self._others: dict[ast.AST, Facts] = {}
        for module in modules.values():
            for name, statement in _members_in(module):
                self.members.setdefault(name, []).append(Reached(module.facts, statement))

    def _names_in(self, reached: Reached) -> Iterable[Reached]:
        found = self._mentioned_in(reached)
        names = reached.facts.names
        inner = names.inner.get(reached.node)
        if inner is None:
            return found
        return [other for other in found if not _is_assigned_in(other.node, inner, names.scopes)]

    def _mentioned_in(self, reached: Reached) -> list[Reached]:
        """All that the names in a node lead to."""
        scope, known = self._scope(reached), self._known
        # Most attributes are those of a few names.
        owners: dict[str | None, Scope | None] = {None: None}
        names: list[Reached] = []
        for mention in self._mentions(reached):
            head = mention.head
            if head not in owners:
                owners[head] = scope.owner(head or "")
            # What binds the name decides, and many scopes see that.
            key = (mention, owners[head])
            found = known.get(key)
            if found is None:
                found = known[key] = tuple(self.of_mention(reached.facts, mention, key[1]))
            names += found
        return names

    def of_mention(self, facts: Facts, mention: Mention, owner: Scope | None) -> Iterator[Reached]:
        """What a mention leads to, where a scope binds its first name; what no scope binds may be of a star import."""
        scope = facts.names.scope if owner is None and facts.names.stars else owner
        if scope is not None and mention.name is not None:
            yield from self._of_name(facts, mention.name, scope)
        if scope is not None and mention.dotted is not None:
            yield from self._of_attribute(facts, mention.dotted, scope)
        if mention.member is not None:
            yield from self._members_of(facts, mention)
        if mention.statement is not None:
            yield from self._of_import(facts, mention.statement)

    def _mentions(self, reached: Reached) -> Iterable[Mention]:
        """What is mentioned where names are followed."""
        return reached.facts.mentions.inside(reached.node)

    def _members_of(self, facts: Facts, mention: Mention) -> Iterable[Reached]:
        name = mention.member or ""
        found = self.members.get(name, ())
        if len(found) < 2:
            return found
        if name not in self._members:
            self._members[name] = Reached(found[0].facts, Several(found))
        return (self._members[name],)

    def unit(self, units: Iterable[Unit]) -> Unit:
        """Several units as one: a node that leads to all of theirs."""
        units = tuple(units)
        several = Several(Reached(module.facts, node) for module, nodes in units for node in nodes)
        return units[0][0], (several,)

    def direct(self, reached: Reached) -> tuple[Reached, ...]:
        """The nodes that a node leads to, without repetition."""
        found = self._direct.get(reached.node)
        if found is not None:
            return found
        if id(reached.facts) not in self._by_facts and not isinstance(reached.node, Several):
            self._others[reached.node] = reached.facts
        return super().direct(reached)

    def visit(self, units: Iterable[Unit]) -> None:
        """Walk nodes and all that they lead to, so that `leading` and `led` know of them."""
        for module, nodes in units:
            for node in nodes:
                # Units of one project overlap much.
                if node not in self._components.nodes:
                    self._components.visit(Reached(module.facts, node))

    def targets(self, module: ModuleUses, expression: ast.expr) -> Collection[ast.AST]:
        """What an expression leads to, visited. Chains of attributes with one text in a module share it."""
        key = module.facts.mentions.at(expression) if dotted_name(expression) is not None else None
        found = self._targets.get(key) if key is not None else None
        if found is None:
            self.visit([(module, [expression])])
            found = frozenset(reached.node for reached in self.direct(Reached(module.facts, expression)))
            if key is not None:
                self._targets[key] = found
        return found

    def leading(self, marks: Mapping[ast.AST, int]) -> Callable[[ast.AST], int]:
        """For each node that was visited, the marks of all that it leads to, and its own."""
        return self._components.below(marks)

    def led(self, marks: Mapping[ast.AST, int]) -> Callable[[ast.AST], int]:
        """For each node that was visited, the marks of all that leads to it, and its own."""
        return self._components.above(marks)

    def led_from(self, units: Sequence[Iterable[Unit]]) -> Callable[[ast.AST], int]:
        """For each node, which of `units` lead to it: bit 0 for the first, and so on."""
        groups = [[*group] for group in units]
        for group in groups:
            self.visit(group)
        return self.led(marks_of([node for _, nodes in group for node in nodes] for group in groups))

    def not_given(self, module: ModuleUses, nodes: Iterable[ast.AST]) -> list[Facts]:
        """Modules that `nodes` lead to and that are not among those that may change."""
        nodes = tuple(nodes)
        self.visit([(module, nodes)])
        others = {facts.path: facts for facts in self._others.values()}
        paths = sorted(others)
        leading = self.leading({node: 1 << paths.index(facts.path) for node, facts in self._others.items()})
        return [others[paths[number]] for number in bits(combined(leading, nodes))]


class NarrowReach(WideReach):
    """Over-approximates less: `self.step` leads to the `step` of its own class; other attributes only by full name."""

    def _members_of(self, facts: Facts, mention: Mention) -> Iterable[Reached]:
        if not mention.is_own:
            return ()
        module = self._by_facts.get(id(facts))
        found = self.members.get(mention.member or "", ())
        if module is None:
            return found
        own = [other for other in found if other.facts is facts and mention.owner is module.class_around(other.node)]
        return own or found


class OutsideReach(WideReach):
    """Stops at some nodes, such as the statements of `with mesh:`. Others lead to the same nodes as in `whole`.

    What names and members lead to is taken from there, too, where it was found once.
    """

    def __init__(self, whole: WideReach, inside: Iterable[Unit]) -> None:
        super().__init__(whole.project, {})
        self.members, self._by_facts, self._known = whole.members, whole._by_facts, whole._known
        self._members = whole._members
        units = [(module, node) for module, nodes in inside for node in nodes]
        self._whole, self._inside = whole, {node for _, node in units}
        self._different = {holder for module, node in units for holder in module.above(node)}

    def direct(self, reached: Reached) -> tuple[Reached, ...]:
        """The nodes that the names in a node lead to, without repetition."""
        return super().direct(reached) if reached.node in self._different else self._whole.direct(reached)

    def _names_in(self, reached: Reached) -> Iterable[Reached]:
        # An assignment of its own may stand in another part, and bind a function that this one calls.
        return self._mentioned_in(reached)

    def _mentions(self, reached: Reached) -> Iterable[Mention]:
        return reached.facts.mentions.of(self._nodes_of(reached))

    def _nodes_of(self, reached: Reached) -> Iterator[ast.AST]:
        """The part of a node that is gone into."""
        queue = [reached.node]
        while queue:
            node = queue.pop()
            yield node
            queue += [child for child in children(node) if child not in self._inside]


def _members_in(module: ModuleUses) -> Iterator[tuple[str, ast.stmt]]:
    """The names by which attributes may lead to the statements of a module."""
    for node in module.attributes_set:
        statement = module.statement_of(node)
        if not isinstance(statement, ast.For | ast.With):
            yield node.attr, statement
    for definition in module.nodes_of(ast.ClassDef):
        # Methods, and what a class assigns, as in `run = staticmethod(step)`.
        for name, bindings in module.facts.names.inner[definition].bindings.items():
            for binding in bindings:
                is_value = binding.value is not None and not isinstance(binding.value, ast.Constant)
                if binding.statement is not None and (is_value or binding.kind in ("function", "class", "import")):
                    yield name, binding.statement


def _is_assigned_in(node: ast.AST, scope: Scope, scopes: Mapping[ast.stmt, Scope]) -> bool:
    """Whether a node is a statement of a scope that defines no function and no class."""
    return isinstance(node, ast.stmt) and not isinstance(node, _DEFINITIONS) and scopes.get(node) is scope
