"""Attributes and items that code of the project computes at each access: to read one twice may not give the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.analysis.objects.object_classes import FoundClass, ObjectClasses
from mmrewrite.analysis.objects.special_methods import operands
from mmrewrite.codemod.site import Site
from mmrewrite.project.facts import Facts

# Of attributes and constants these give the same each time, and do nothing else.
_READING = frozenset(
    f"builtins.{name}"
    for name in (
        "abs", "all", "any", "bool", "dict", "float", "getattr", "hasattr", "int", "isinstance", "len", "list", "max",
        "min", "range", "round", "set", "sorted", "str", "sum", "tuple",
    )
)  # fmt: skip
_READING_METHODS = frozenset(("get", "items", "keys", "values"))
# They can be read once, run later, or run code when they are entered.
_NOT_READING = (
    ast.AsyncFunctionDef | ast.Await | ast.ClassDef | ast.FunctionDef | ast.GeneratorExp | ast.Global | ast.Lambda
    | ast.Nonlocal | ast.With | ast.AsyncWith | ast.Yield | ast.YieldFrom
)  # fmt: skip


# Methods that change a collection, where they are of one.
_CHANGING_METHODS = frozenset(
    (
        "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove",
        "setdefault", "update", "__setattr__", "__setitem__",
    )
)  # fmt: skip


@dataclass(frozen=True)
class _Property:
    """A property of a class: whether all of its code only reads, and the attributes of others that it reads."""

    name: str
    owner: FoundClass
    only_reads: bool
    reads: frozenset[str]


def is_computed_attribute(site: Site, node: ast.Attribute) -> bool:
    """Whether an attribute may be a property that does more than read what the object has.

    Such a property may make its layers anew, and number the parameters of those that are made later otherwise. Where
    the object's class is not seen, a property of any class of the program counts.
    """
    question = ("computed attributes", site.facts.path)
    computed = site.project.once(question, lambda: _computed(list(_properties(site.project.connected(site.facts)))))
    owners = [each.owner for each in computed if each.name == node.attr]
    if not owners:
        return False
    classes = ObjectClasses(site.project)
    found = classes.of(node.value, site.facts, site.scope)
    if found is None:
        return True
    own = [definition for _, definition in classes.with_bases(*found)]
    if not any(_sets(definition, node.attr) for definition in own):
        # Another class may be mixed in with it, and have the property.
        return True
    return any(
        definition in own or any(found[1] is base for _, base in classes.with_bases(facts, definition))
        for facts, definition in owners
    )


def runs_code(site: Site, node: ast.expr) -> bool:
    """Whether an operator, a subscript or a call of a builtin may run methods that do more than read.

    Where the class of an operand is not seen, methods of any class of the program count that change something.
    """
    called = site.resolve(node.func) if isinstance(node, ast.Call) else None
    pairs = [(operand, methods) for operand, methods in operands(node, called) if isinstance(methods, tuple)]
    return any(runs_code_on(site, operand, *methods) for operand, methods in pairs)


def runs_code_on(site: Site, operand: ast.expr, *methods: str) -> bool:
    """Whether some special methods of one operand may do more than read."""
    classes = ObjectClasses(site.project)
    for method in methods:
        if not classes.is_defined(site.facts, method):
            continue
        found = classes.of(operand, site.facts, site.scope)
        if found is not None:
            own = [*classes.with_bases(*found), *classes.extended(*found, method)]
            if any(not _method(each, part).only_reads for each in own for part in _named(each, method)):
                return True
        elif any(
            _changes(part) for each in classes.defining(site.facts, method) for part in _named(each, method)
        ) and classes.may_be_of_the_project(operand, site.facts, site.scope):
            return True
    return False


def _named(owner: FoundClass, name: str) -> Iterator[ast.FunctionDef]:
    return (part for part in owner[1].body if isinstance(part, ast.FunctionDef) and part.name == name)


def _method(owner: FoundClass, function: ast.FunctionDef) -> _Property:
    return _property(function.name, owner, function)


def _changes(function: ast.FunctionDef) -> bool:
    """Whether a function visibly changes what it has not made."""
    for node in ast.walk(function):
        match node:
            case ast.Global() | ast.Nonlocal():
                return True
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                return True
            case ast.Call(func=ast.Attribute(attr=attribute)) if attribute in _CHANGING_METHODS:
                return True
            case ast.Call(func=ast.Name(id="next" | "setattr" | "delattr")):
                return True
    return False


def _computed(properties: Sequence[_Property]) -> tuple[_Property, ...]:
    """The properties that do more than read, or read one that does."""
    computed = [each for each in properties if not each.only_reads]
    rest = [each for each in properties if each.only_reads]
    count = -1
    while count != len(computed):
        count, names = len(computed), {each.name for each in computed}
        computed += [each for each in rest if each.reads & names]
        rest = [each for each in rest if not each.reads & names]
    return tuple(computed)


def _properties(modules: Sequence[Facts]) -> Iterator[_Property]:
    for facts in modules:
        for statement, scope in facts.names.scopes.items():
            if not isinstance(scope.node, ast.ClassDef):
                continue
            owner = (facts, scope.node)
            match statement:
                case ast.FunctionDef() if any(
                    facts.names.resolve(each, scope) == "builtins.property" for each in statement.decorator_list
                ):
                    yield _property(statement.name, owner, statement)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=maker, args=[getter, *_])) if (
                    facts.names.resolve(maker, scope) == "builtins.property"
                ):
                    binding = facts.names.binding(getter.id, scope) if isinstance(getter, ast.Name) else None
                    function = binding.node if binding is not None else getter
                    if isinstance(function, ast.FunctionDef | ast.Lambda):
                        yield _property(name, owner, function)
                    else:
                        yield _Property(name, owner, only_reads=False, reads=frozenset())


def _property(name: str, owner: FoundClass, getter: ast.FunctionDef | ast.Lambda) -> _Property:
    scope = owner[0].names.inner[getter]
    stack: list[ast.AST] = [getter.body] if isinstance(getter, ast.Lambda) else [*getter.body]
    reads: set[str] = set()
    only_reads = True
    while stack:
        node = stack.pop()
        match node:
            case ast.Raise():
                # Nothing is read after it.
                continue
            case ast.Call(func=ast.Attribute(attr=attribute)) if attribute in _READING_METHODS:
                pass
            case ast.Call(func=function):
                only_reads &= owner[0].names.resolve(function, scope) in _READING
            case ast.Attribute(value=holder, attr=attribute, ctx=ast.Load()):
                if not (isinstance(holder, ast.Name) and holder.id == "self" and _sets(owner[1], attribute)):
                    reads.add(attribute)
            case ast.Attribute() | ast.Subscript(ctx=ast.Store() | ast.Del()):
                only_reads = False
            case _:
                only_reads &= not isinstance(node, _NOT_READING)
        stack.extend(ast.iter_child_nodes(node))
    return _Property(name, owner, only_reads, frozenset(reads))


def _sets(definition: ast.ClassDef, name: str) -> bool:
    """Whether a class has a field of a name, or its methods set one."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name)
        for node in ast.walk(definition)
    )
