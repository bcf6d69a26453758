"""Attributes and items that code of the project computes at each access: to read one twice may not give the same."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mmrewrite.codemod.site import Site
from mmrewrite.project.facts import Facts
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import call_form
from mmrewrite.source.jit_kinds import is_jit_decorator
from mmrewrite.source.names import Scope
from mmrewrite.values.annotations import annotations_of, classes_in
from mmrewrite.values.classes import Definition
from mmrewrite.values.flow import ValueFlow, values_of
from mmrewrite.values.operators import special_methods
from mmrewrite.values.value import Decorated, Display, Own, Passed, Value

# Literals and what is made by writing it out.
_DISPLAYS = (
    ast.Constant | ast.Dict | ast.DictComp | ast.GeneratorExp | ast.JoinedStr | ast.Lambda | ast.List | ast.ListComp
    | ast.Set | ast.SetComp | ast.Tuple
)  # fmt: skip
_ITERATION = ("__iter__", "__next__", "__getitem__", "__len__", "__length_hint__")
_EXTREMES = (*_ITERATION, "__gt__", "__lt__", "__call__")
_OF_BUILTINS = {
    "builtins.len": ("__len__",),
    "builtins.range": ("__index__",),
    "builtins.max": _EXTREMES,
    "builtins.min": _EXTREMES,
}
# Types that may be those of any object.
_ANY = frozenset(("builtins.object", *(f"typing.{name}" for name in ("Any", "Annotated", "Self", "Union"))))
# Their modules keep attributes in a way of their own: copies in each `apply`, state that transformations see, or none.
_MODULES_OF = ("equinox.", "flax.", "haiku.", "jax.", "penzai.")

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
    owner: ast.ClassDef
    only_reads: bool
    reads: frozenset[str]


class _ObjectClasses(NamedTuple):
    """The classes of the project that an expression may be an object of, and whether it may be of another."""

    found: Sequence[Definition]
    is_open: bool


def is_computed_attribute(site: Site, node: ast.Attribute) -> bool:
    """Whether an attribute may be a property that does more than read what the object has.

    Such a property may make its layers anew, and number the parameters of those that are made later otherwise. Where
    the object's class is not seen, a property of any class of the program counts.
    """
    project, flow = site.project, values_of(site.project)

    def properties() -> Iterator[_Property]:
        for facts in project.connected(site.facts):
            yield from project.once(("properties", facts), functools.partial(_properties, flow, facts))

    computed = project.once(("computed attributes", site.facts.path), lambda: _computed([*properties()]))
    owners = {each.owner for each in computed if each.name == node.attr}
    if _is_looked_up(flow, flow.value_in(site.facts, node.value), node.attr):
        return True
    if not owners:
        return False
    classes = _classes_of(site, node.value)
    for module, definition in classes.found:
        own = [each for _, each in flow.bases(module, definition).classes]
        # Where it sets none, another class may be mixed in with it, and have the property.
        if not any(_sets(each, node.attr) for each in own) or not owners.isdisjoint(own):
            return True
    return classes.is_open


def _is_looked_up(flow: ValueFlow, owner: Value, name: str) -> bool:
    """Whether an attribute of what may be a module of the project is what its `__getattr__` gives."""
    modules = flow.may(owner, lambda value: value.module if isinstance(value.head, ast.Module) else None).answers
    names = [each.facts.names.scope.bindings for each in modules]
    return any("__getattr__" in each and name not in each for each in names)


def runs_code(site: Site, node: ast.expr) -> bool:
    """Whether an operator, a subscript or a call of a builtin may run methods that do more than read.

    Where the class of an operand is not seen, methods of any class of the program count that change something.
    """
    return any(runs_code_on(site, operand, *methods) for operand, methods in _operands(site, node))


def runs_code_on(site: Site, operand: ast.expr, *methods: str) -> bool:
    """Whether some special methods of one operand may do more than read."""
    flow = values_of(site.project)
    for method in methods:
        defining = [
            (module, owner, binding.node)
            for module, owner, binding in flow.stores.in_classes(method)
            if isinstance(binding.node, ast.FunctionDef) and _is_near(site, (module, owner))
        ]
        if not defining:
            continue
        classes = _classes_of(site, operand)
        own = {each for found in classes.found for _, each in flow.bases(*found).classes}
        for module, owner, function in defining:
            if owner in own and not _property(module.facts, owner, method, function).only_reads:
                return True
            if classes.is_open and _changes(function) and not _is_of_a_library(flow, (module, owner)):
                return True
    return False


def _is_near(site: Site, owner: Definition) -> bool:
    """Whether a class is one of the program of a site: its module imports the site's, or is imported by it."""

    def near() -> set[str]:
        project = site.project
        return {each.path for each in (*project.connected(site.facts), *project.imported_by([site.facts]).values())}

    return owner[0].facts.path in site.project.once(("program", site.facts.path), near)


def _operands(site: Site, node: ast.expr) -> Iterator[tuple[ast.expr, Sequence[str]]]:
    """The operands of an expression that can be read twice, with the special methods that reading runs on each."""
    match node:
        case ast.BinOp() | ast.UnaryOp():
            yield from special_methods(node)
        case ast.Subscript(value=value, slice=key):
            yield value, ("__getitem__", "__missing__", "__class_getitem__")
            yield key, ("__hash__", "__eq__", "__index__")
        case ast.Attribute(value=value):
            yield value, ("__getattribute__", "__getattr__")
        case ast.Call(func=function, args=arguments):
            yield from ((each, _OF_BUILTINS[site.resolve(function) or ""]) for each in arguments)
        case _:
            pass


def _classes_of(site: Site, node: ast.expr) -> _ObjectClasses:
    """The classes of the project that an expression may be an object of: by its making, or by an annotation."""
    flow = values_of(site.project)
    found = flow.may(flow.value_in(site.facts, node), lambda value: _kind_of(flow, value))
    classes = {each: None for kind in found.answers for each in kind}
    is_open = any(not isinstance(each.head, str | Display) for each in found.others)
    return _ObjectClasses([*classes], is_open or any(not each.is_open for each in found.unknown))


def _kind_of(flow: ValueFlow, value: Value) -> tuple[Definition, ...] | None:
    """The classes that a value is an object of, none if of no class of the project; None where it is followed."""
    module, head, path, _ = value
    if value.is_made and isinstance(head, ast.ClassDef):
        return ((module, head),)
    if isinstance(head, Own) and not path:
        family = ((module, head.definition), *flow.below(head.definition))
        return tuple(meta for each in family for meta in flow.bases(*each).metaclasses) if head.is_class else family
    if isinstance(head, ast.ClassDef) and not path:
        return tuple(flow.bases(module, head).metaclasses)
    if isinstance(head, _DISPLAYS | ast.FunctionDef | ast.AsyncFunctionDef) and not path:
        return ()
    if isinstance(head, Passed | ast.arg):
        argument = head.parameter if isinstance(head, Passed) else head
        named = _annotated(flow, module, argument.annotation) if not path else None
        return () if named is None and _is_rebuilt(module.facts, module.parents[module.parents[argument]]) else named
    for found in annotations_of(flow, value) if isinstance(head, Own | ast.ClassDef) else ():
        named = _annotated(flow, found.module, found.node) if not found.path else None
        if named is not None:
            return named
    return None


def _annotated(flow: ValueFlow, module: ModuleUses, annotation: ast.expr | None) -> tuple[Definition, ...] | None:
    """The classes that an annotation names, none if those of a library; None if it may be anything."""
    if annotation is None:
        return None
    scope, found = module.scope_of(annotation), list[Definition]()
    for node in classes_in(annotation):
        own = flow.class_at(module, node, scope)
        name = module.facts.names.resolve(node, scope)
        if own is not None:
            found += [own, *flow.below(own[1])]
        elif name is None or name in _ANY or flow.project.holds(name, module.facts):
            return None
    return tuple(found)


def _is_rebuilt(facts: Facts, function: ast.AST) -> bool:
    """Whether what a function is given has been taken apart and put together by JAX, which compiles it."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    scope = facts.names.scopes[function]
    compiling = (each for each in function.decorator_list if is_jit_decorator(facts.names, each, scope))
    return any(not _has_static(facts, each, scope) for each in compiling)


def _has_static(facts: Facts, node: ast.expr, scope: Scope) -> bool:
    """Whether a call that compiles leaves some arguments as they are, or may."""
    given = call_form(facts.names, node, scope).keywords if isinstance(node, ast.Call) else ()
    return any(each.arg is None or each.arg.startswith("static") for each in given)


def _is_of_a_library(flow: ValueFlow, owner: Definition) -> bool:
    """Whether a class extends a module of Flax or the like."""
    return any(name.startswith(_MODULES_OF) for name in flow.bases(*owner).outside)


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


def _properties(flow: ValueFlow, facts: Facts) -> list[_Property]:
    """The properties of classes of a module, and what is one by another descriptor, also where it is set later."""
    module, properties = flow.uses_of(facts), list[_Property]()
    for statement, scope in facts.names.scopes.items():
        match scope.node, statement:
            case ast.ClassDef() as owner, ast.FunctionDef(name=name) if statement.decorator_list:
                properties += _of_descriptor(flow, owner, name, Value(module, Decorated(statement, 0)))
            case ast.ClassDef() as owner, ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as made):
                properties += _of_descriptor(flow, owner, name, Value(module, made))
            case _:
                pass
    for name, store in flow.stores.in_module(module):
        found, source = flow.class_at(module, store.target), flow.source_of(store)
        if found is not None and isinstance(source, ast.Call):
            properties += _of_descriptor(flow, found[1], name, Value(module, source))
    return properties


def _of_descriptor(flow: ValueFlow, owner: ast.ClassDef, name: str, value: Value) -> Iterator[_Property]:
    """The properties that what a class holds may be: by `property`, or by a class of the project with `__get__`."""

    def getter(value: Value) -> Value | None:
        if value.outside == "builtins.property()":
            return value.path[0].what.at(0, "fget") or value
        if not (value.is_made and isinstance(value.head, ast.ClassDef)):
            return None
        methods = flow.bases(value.module, value.head).classes
        found = ((home, each) for home, definition in methods for each in definition.body)
        return next((Value(*each) for each in found if getattr(each[1], "name", "") == "__get__"), None)

    for found in flow.may(value, getter).answers:
        function = flow.must(found, lambda each: each if isinstance(each.head, ast.FunctionDef | ast.Lambda) else None)
        if function is not None and isinstance(function.head, ast.FunctionDef | ast.Lambda) and not function.path:
            yield _property(function.module.facts, owner, name, function.head)
        else:
            yield _Property(name, owner, only_reads=False, reads=frozenset())


def _property(facts: Facts, owner: ast.ClassDef, name: str, getter: ast.FunctionDef | ast.Lambda) -> _Property:
    scope = facts.names.inner[getter]
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
                only_reads &= facts.names.resolve(function, scope) in _READING
            case ast.Attribute(value=holder, attr=attribute, ctx=ast.Load()):
                if not (isinstance(holder, ast.Name) and holder.id == "self" and _sets(owner, attribute)):
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
