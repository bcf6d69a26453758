"""Which modules of JAX and its libraries a value may be, where no chain of names leads to them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import ClassVar

from mmmodernize.modules.passed_modules import ASK_ONLY, PassedModules
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.facts import Facts
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.walk import walk
from mmrewrite.values.arguments import given
from mmrewrite.values.value import By, Function, Unknown, Value

_LOOKS_UP = ("__getattr__", "__getattribute__")


class HeldModules:
    """Asks where values come from; each is asked for once.

    A call of what is not in view may give what it is given.
    """

    may_give_what_is_given: ClassVar = True

    def __init__(self, context: ModernizeContext) -> None:
        self._context, self._flow = context, context.flow
        self._homes = self._asked_for(context.analysis(PassedModules))

    def _asked_for(self, passed: PassedModules) -> Set[str]:
        """The full names to which values are followed."""
        return passed.homes

    def of(self, module: ModuleUses, node: ast.expr) -> Mapping[str, str]:
        """The modules that an expression may be, each with the nearest file and line where it is named."""
        return self._flow.may(Value(module, node), self._test, by_name=True, also=self._also).places

    def look_ahead(self) -> None:
        """Look ahead for what every worker process would otherwise find for itself, if anything asks for it."""
        if self._context.analysis(PassedModules).loose:
            self._flow.stores.look_ahead()

    def looked_up(self, facts: Facts) -> Collection[str]:
        """The modules in which the `__getattr__` of a module of the project looks names up."""
        module = self._flow.uses_of(facts)
        return {name for value in _looked_up_in(facts.names.tree.body) for name in self.of(module, value)}

    def _looked_up_by(self, value: Value) -> Iterator[Value]:
        """Where the `__getattr__` of a module or of an object looks names up: they may be read of that as well."""
        places: Sequence[tuple[ModuleUses, ast.Module | ast.ClassDef]] = ()
        if isinstance(value.head, ast.Module) and not value.path:
            places = [(value.module, value.head)]
        if value.own_class is not None:
            places = self._flow.bases(value.module, value.own_class).classes
        for module, node in places:
            yield from (Value(module, each) for each in _looked_up_in(node.body))

    def _test(self, value: Value) -> str | None:
        """The module that a value is; one may be imported by its name in a function that is given it."""
        head = value.head
        name = head.value if isinstance(head, ast.Constant) and not value.path else value.outside
        return name if isinstance(name, str) and name in self._homes else None

    def _also(self, value: Value) -> Iterator[Value]:
        """What else a value may be: where it looks names up, and what a call of something out of view is given."""
        yield from self._looked_up_by(value)
        calls = [place for place, step in enumerate(value.path) if step.kind is not By.ATTRIBUTE][:1]
        may_give = self.may_give_what_is_given or value.bound is not None
        if not calls or not may_give or value.head in ASK_ONLY:
            return
        (place,) = calls
        # What an object was made of is no attribute of it.
        is_read = any(step.kind is By.ATTRIBUTE for step in value.path[place + 1 :])
        is_call = value.path[place].kind is By.CALL and not is_read
        if is_call and all(isinstance(each, Unknown) for each in self._flow.behind(value)):
            yield from given(value.path[place].what)


class HeldModulesInView(HeldModules):
    """The same, but for calls of what is not in view."""

    may_give_what_is_given = False


def _looked_up_in(body: Iterable[ast.stmt]) -> Iterator[ast.expr]:
    """Where the `__getattr__` of a module or of a class looks names up."""
    for statement in body:
        if isinstance(statement, Function) and statement.name in _LOOKS_UP:
            for node in walk(statement):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                    yield from node.args[:1]
                elif isinstance(node, ast.Attribute) and node.attr == "__dict__":
                    yield node.value
