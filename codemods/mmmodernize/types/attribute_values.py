"""The values that a project gives the attributes of its objects, by the name of the attribute."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mmmodernize.types.libraries import library_name
from mmrewrite.project.uses import ModuleUses


@dataclass(frozen=True, eq=False)
class AttributeValue:
    """One way in which an attribute gets a value.

    Attributes:
        module: The module in which it does.
        value: The expression of the value; of a property its definition; None where it is not seen.
        is_part: Whether the attribute gets a part of the value.
        declared: The annotation of the attribute in a class, if that is all that is known.
        holder: The class of whose objects it is, as `self` or the class says; None where that is not seen.
    """

    module: ModuleUses
    value: ast.expr | ast.FunctionDef | None = None
    is_part: bool = False
    declared: ast.expr | None = None
    holder: ast.ClassDef | None = None


class AttributeValues:
    """The values of attributes in some modules."""

    def __init__(self, modules: Mapping[int, ModuleUses]) -> None:
        self._modules = modules

    @property
    def modules(self) -> Iterable[ModuleUses]:
        """The modules in which attributes are looked for."""
        return self._modules.values()

    def of(self, name: str) -> Sequence[AttributeValue]:
        """What is given to attributes of a name where that is written."""
        return self._found[0].get(name, ())

    @property
    def of_computed_names(self) -> Sequence[AttributeValue]:
        """What is given to attributes whose names only a run knows."""
        return self._found[1]

    def read(self, name: str) -> Sequence[tuple[ModuleUses, ast.Attribute]]:
        """The places where an attribute of a name is read."""
        return self._reads.get(name, ())

    @cached_property
    def _reads(self) -> Mapping[str, Sequence[tuple[ModuleUses, ast.Attribute]]]:
        found: dict[str, list[tuple[ModuleUses, ast.Attribute]]] = defaultdict(list)
        for module in self._modules.values():
            for node in module.nodes_of(ast.Attribute):
                if isinstance(node.ctx, ast.Load):
                    found[node.attr].append((module, node))
        return found

    @cached_property
    def _found(self) -> tuple[Mapping[str, Sequence[AttributeValue]], Sequence[AttributeValue]]:
        named: dict[str, list[AttributeValue]] = defaultdict(list)
        computed: list[AttributeValue] = []
        for module in self._modules.values():
            for name, value in _values_in(module):
                if name is None:
                    computed.append(value)
                else:
                    named[name].append(value)
        return named, computed


def _values_in(module: ModuleUses) -> Iterator[tuple[str | None, AttributeValue]]:
    for node in module.nodes_of(ast.Attribute):
        if isinstance(node.ctx, ast.Store):
            value, is_part = _stored(module, node)
            statement = module.parents[node]
            declared = statement.annotation if isinstance(statement, ast.AnnAssign) and value is None else None
            yield node.attr, AttributeValue(module, value, is_part, declared, _class_of_own(module, node.value))
    for definition in module.nodes_of(ast.ClassDef):
        yield from _of_class(module, definition)
    for call in module.nodes_of(ast.Call):
        yield from _set_by_call(module, call)
    for entry in module.nodes_of(ast.Subscript):
        if isinstance(entry.ctx, ast.Store) and _is_dictionary(module, entry.value):
            value, is_part = _stored(module, entry)
            yield _text(entry.slice), AttributeValue(module, value, is_part, holder=_class_of_own(module, entry.value))


def _of_class(module: ModuleUses, definition: ast.ClassDef) -> Iterator[tuple[str, AttributeValue]]:
    """What a class declares and assigns, and its properties."""
    for name, bindings in module.facts.names.inner[definition].bindings.items():
        for binding in bindings:
            statement = binding.statement
            if isinstance(statement, ast.AnnAssign):
                # Its value is given to objects as well, by what the class is called with.
                yield name, AttributeValue(module, declared=statement.annotation, holder=definition)
            elif isinstance(binding.node, ast.FunctionDef):
                if binding.node.decorator_list:
                    yield name, AttributeValue(module, binding.node, holder=definition)
            elif binding.kind not in ("class", "function"):
                yield name, AttributeValue(module, binding.value, holder=definition)


def _set_by_call(module: ModuleUses, call: ast.Call) -> Iterator[tuple[str | None, AttributeValue]]:
    """The attributes that `setattr`, `__setattr__` and `__dict__.update` set."""
    function, args = call.func, call.args
    if isinstance(function, ast.Attribute) and function.attr == "update" and _is_dictionary(module, function.value):
        for argument in args:
            yield None, AttributeValue(module, argument, is_part=True, holder=_class_of_own(module, function.value))
        for keyword in call.keywords:
            holder = _class_of_own(module, function.value)
            yield keyword.arg, AttributeValue(module, keyword.value, keyword.arg is None, holder=holder)
        return
    is_method = isinstance(function, ast.Attribute) and function.attr == "__setattr__"
    if not is_method and library_name(module, function) != "builtins.setattr":
        return
    match args:
        case [target, name, value]:
            yield _text(name), AttributeValue(module, value, holder=_class_of_own(module, target))
        case [name, value] if isinstance(function, ast.Attribute):
            yield _text(name), AttributeValue(module, value, holder=_class_of_own(module, function.value))
        case _:
            # Its arguments are hidden.
            yield None, AttributeValue(module)


def _stored(module: ModuleUses, target: ast.Attribute | ast.Subscript) -> tuple[ast.expr | None, bool]:
    """The value that a target gets, and whether it gets a part of it."""
    node: ast.AST = target
    is_part = False
    for holder in module.above(target):
        match holder:
            case ast.Assign(value=value) | ast.AugAssign(value=value):
                return value, is_part
            case ast.AnnAssign(value=value):
                return value, False
            case ast.For(iter=value) | ast.AsyncFor(iter=value) | ast.comprehension(iter=value):
                return value, True
            case ast.Tuple() | ast.List() | ast.Starred():
                paired = _paired(module, holder, node)
                if paired is not None:
                    return paired, False
                is_part = True
            case ast.withitem(context_expr=value):
                return value, True
            case _:
                return None, True
        node = holder
    return None, True


def _paired(module: ModuleUses, targets: ast.AST, target: ast.AST) -> ast.expr | None:
    """The value of one of several targets, where as many values are written: `self.a, self.b = 1, x`."""
    statement = module.parents.get(targets)
    if not isinstance(statement, ast.Assign) or not isinstance(targets, ast.Tuple | ast.List):
        return None
    value = statement.value
    if not isinstance(value, ast.Tuple | ast.List) or len(value.elts) != len(targets.elts):
        return None
    if any(isinstance(each, ast.Starred) for each in (*value.elts, *targets.elts)):
        return None
    return value.elts[targets.elts.index(target)] if isinstance(target, ast.expr) else None


def _is_dictionary(module: ModuleUses, node: ast.expr) -> bool:
    """Whether this is the dictionary of the attributes of an object."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__dict__"
    return isinstance(node, ast.Call) and library_name(module, node.func) == "builtins.vars"


def _class_of_own(module: ModuleUses, node: ast.expr) -> ast.ClassDef | None:
    """The class around, if this is `self`, or its dictionary."""
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        node = node.value
    if isinstance(node, ast.Call) and len(node.args) == 1:
        (node,) = node.args
    is_own = isinstance(node, ast.Name) and node.id in ("self", "cls")
    return class_around(module, node) if is_own else None


def class_around(module: ModuleUses, node: ast.AST) -> ast.ClassDef | None:
    """The innermost class around a node."""
    return next((holder for holder in module.above(node) if isinstance(holder, ast.ClassDef)), None)


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
