"""Functions that are made in one place, handed to a class of the project there, and called by its methods.

    class Step:
        def __init__(self, function, mesh):
            self.function, self.mesh = function, mesh
        def __call__(self, x):
            with self.mesh:
                return self.function(x)

    step = Step(pjit(f, ...), mesh)

Only what is seen entirely counts: every use of the class, of the parameter and of the attribute.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import stars_of
from mmrewrite.source.spans import blocks_of
from mmrewrite.values.flow import ValueFlow

Place = tuple[ModuleUses, ast.expr]


@dataclass(frozen=True)
class _InitParameter:
    """A parameter of the `__init__` of a class."""

    module: ModuleUses
    owner: ast.ClassDef
    method: ast.FunctionDef
    name: str


class HandedFunctions:
    """Follows functions from where they are made to where they are called, and back."""

    def __init__(self, flow: ValueFlow) -> None:
        self._flow = flow
        self._calls: dict[ast.ClassDef, list[tuple[ModuleUses, ast.Call]] | None] = {}

    def calls_of(self, module: ModuleUses, made: ast.expr) -> Sequence[tuple[ModuleUses, ast.Call]] | None:
        """Every call of the function that an expression makes, by the class that it is handed to; None if not seen."""
        handed = self._places_handed(module, made)
        if handed is None or any(self.value_at(module, place) is not made for place in handed):
            return None
        calls: list[tuple[ModuleUses, ast.Call]] = []
        for value in handed:
            parameter = self._taken_by(module, value)
            found = self._attribute_calls(parameter) if parameter is not None else None
            if found is None:
                return None
            calls += [call for call in found if call not in calls]
        return calls or None

    def attribute_beside(self, module: ModuleUses, made: ast.expr, place: Place) -> ast.expr | None:
        """What is handed along with a function, and kept in the attribute of `self` that a place of the class reads.

        None where the attribute may have another value there, or the argument where the function is made.
        """
        other, node = place
        handed = self._handed_along(module, made)
        if handed is None or not isinstance(node, ast.Attribute) or not _is_self(node.value):
            return None
        call, parameter = handed
        if parameter.module is not other or parameter.owner not in other.above(node):
            return None
        source = self._kept_in(parameter, node.attr)
        argument = _argument(_InitParameter(other, parameter.owner, parameter.method, source), call) if source else None
        return argument if argument is not None and self._is_same_at(module, argument, made) else None

    def _places_handed(self, module: ModuleUses, made: ast.expr) -> list[ast.expr] | None:
        """Where a function stands that an expression makes: there, or wherever its name is read.

        None where it is assigned to more than a name.
        """
        statement = module.parents.get(made)
        if not isinstance(statement, ast.Assign):
            return [made]
        if len(statement.targets) > 1 or not isinstance(statement.targets[0], ast.Name):
            return None
        name = statement.targets[0].id
        heads = module.heads_of(name, module.scope_of(statement.targets[0]).owner(name))
        return [head for head in heads if statement not in module.above(head)]

    def _handed_along(self, module: ModuleUses, made: ast.expr) -> tuple[ast.Call, _InitParameter] | None:
        """The one call of a class that takes a function, where nothing runs in between."""
        values = self._places_handed(module, made)
        if values is None or len(values) != 1:
            return None
        statement = module.statement_of(made)
        parameter = self._taken_by(module, values[0])
        last = module.statement_of(values[0])
        call = next((holder for holder in module.above(values[0]) if isinstance(holder, ast.Call)), None)
        is_next = last is statement or any(
            statement in block and block[block.index(statement) + 1 :][:1] == [last]
            for block in blocks_of(module.parents[statement])
        )
        return (call, parameter) if parameter is not None and call is not None and is_next else None

    def _kept_in(self, parameter: _InitParameter, attribute: str) -> str | None:
        """The parameter whose value an attribute of the class has, if nothing else is stored there."""
        if self._calls_of(parameter.module, parameter.owner) is None:
            return None
        found: list[ast.expr] = []
        for module in self._flow.modules:
            for node in module.attributes.get(attribute, ()):
                if isinstance(node.ctx, ast.Load):
                    continue
                if _is_self(node.value) and parameter.owner not in module.above(node):
                    # The class has no subclasses, so this is another object.
                    continue
                statement = module.parents[node]
                if not isinstance(statement, ast.Assign) or statement not in parameter.method.body:
                    return None
                found.append(statement.value)
        methods = [part.name for part in parameter.owner.body if isinstance(part, ast.FunctionDef)]
        if len(found) != 1 or not isinstance(found[0], ast.Name) or attribute in methods:
            return None
        scope = parameter.module.scope_of(found[0])
        owner = scope.owner(found[0].id)
        bindings = owner.bindings[found[0].id] if owner is not None and owner is scope.function else []
        return found[0].id if [binding.kind for binding in bindings] == ["parameter"] else None

    def _is_same_at(self, module: ModuleUses, argument: ast.expr, made: ast.expr) -> bool:
        """Whether an argument is the same where the function is made, in the statement before or in this one."""
        if isinstance(argument, ast.Attribute):
            return _is_self(argument.value)
        if not isinstance(argument, ast.Name):
            return False
        owner = module.scope_of(argument).owner(argument.id)
        bindings = owner.bindings[argument.id] if owner is not None else []
        if owner is None or len(bindings) != 1 or module.scope_of(made).owner(argument.id) is not owner:
            return False
        (binding,) = bindings
        return binding.kind == "parameter" or (
            binding.statement is not None and (binding.statement.end_lineno or 0) < made.lineno
        )

    def value_at(self, module: ModuleUses, node: ast.expr) -> ast.expr | None:
        """The value of a local name at a place of its function, None if it may be another."""
        if not isinstance(node, ast.Name):
            return node
        scope = module.scope_of(node)
        owner = scope.owner(node.id)
        if owner is None or owner is not scope.function or owner.kind != "function":
            return None
        made = [binding for binding in owner.bindings[node.id] if binding.kind != "parameter"]
        if len(made) != 1 or made[0].value is None or not isinstance(made[0].statement, ast.Assign):
            return None
        # A parameter of that name has another value above the statement only, if that runs always.
        body = getattr(owner.node, "body", [])
        is_above = (made[0].statement.end_lineno or 0) < node.lineno
        return made[0].value if is_above and made[0].statement in body else None

    def _taken_by(self, module: ModuleUses, value: ast.expr) -> _InitParameter | None:
        """The parameter of a class that an argument is passed for."""
        holder = module.parents.get(value)
        call = module.parents.get(holder) if isinstance(holder, ast.keyword) else holder
        if not isinstance(call, ast.Call) or call.func is value:
            return None
        found = self._flow.class_at(module, call.func)
        if found is None:
            return None
        method = _initializer(found[1])
        if method is None:
            return None
        for argument in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs):
            parameter = _InitParameter(*found, method, argument.arg)
            if _argument(parameter, call) is value:
                return parameter
        return None

    def _calls_of(self, module: ModuleUses, owner: ast.ClassDef) -> list[tuple[ModuleUses, ast.Call]] | None:
        """Every call of a class, None where it is used otherwise, but in annotations."""
        if owner not in self._calls:
            self._calls[owner] = self._find_calls(module, owner)
        return self._calls[owner]

    def _find_calls(self, module: ModuleUses, owner: ast.ClassDef) -> list[tuple[ModuleUses, ast.Call]] | None:
        if module.parents.get(owner) is not module.facts.tree or owner.decorator_list:
            return None
        calls = []
        for other in (each for each in self._flow.modules if owner.name in each.words):
            if any(
                item.name == owner.name and item.asname not in (None, owner.name)
                for node in other.nodes_of(ast.ImportFrom)
                for item in node.names
            ):
                return None
            for node in other.nodes_of(ast.Name, ast.Attribute):
                if (node.id if isinstance(node, ast.Name) else node.attr) != owner.name:
                    continue
                found = self._flow.class_at(other, node)
                if other.in_annotation(node) or (found is not None and found[1] is not owner):
                    continue
                call = other.call_at(node)
                if found is None or call is None:
                    return None
                calls.append((other, call))
        return calls

    def _attribute_calls(self, parameter: _InitParameter) -> list[tuple[ModuleUses, ast.Call]] | None:
        """Every call of the attribute that a parameter is kept in, None where either is used otherwise."""
        module, calls = parameter.module, self._calls_of(parameter.module, parameter.owner)
        inside = (node for node in ast.walk(parameter.method) if isinstance(node, ast.Name))
        uses = [node for node in inside if node.id == parameter.name]
        statement = module.parents.get(uses[0]) if len(uses) == 1 else None
        if calls is None or not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
            return None
        target = statement.targets[0]
        if not isinstance(target, ast.Attribute) or not _is_self(target.value):
            return None
        found = []
        for other in self._flow.modules:
            for node in other.attributes.get(target.attr, ()):
                if node is target:
                    continue
                call = call_with(other, node)
                if call is None or not _is_self(node.value) or parameter.owner not in other.above(node):
                    return None
                found.append((other, call))
        return found


def _initializer(owner: ast.ClassDef) -> ast.FunctionDef | None:
    found = [part for part in owner.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    return found[0] if len(found) == 1 and not found[0].decorator_list else None


def _argument(parameter: _InitParameter, call: ast.Call) -> ast.expr | None:
    """What a call of the class passes for a parameter, None if that is not seen."""
    arguments = parameter.method.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)][1:]
    if stars_of(call):
        return None
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    return dict(zip(names, call.args, strict=False)).get(parameter.name, by_name.get(parameter.name))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def call_with(module: ModuleUses, value: ast.expr) -> ast.Call | None:
    """The call of a function, or of its `lower`, that `value` stands in as the function; None for other uses."""
    holder = module.parents[value]
    return module.call_at(holder if isinstance(holder, ast.Attribute) and holder.attr == "lower" else value)
