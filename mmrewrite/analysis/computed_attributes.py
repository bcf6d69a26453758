"""Attributes that a property computes at each access, so that reading one twice may not give the same twice."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.analysis.object_classes import FoundClass, ObjectClasses
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
