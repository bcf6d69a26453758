"""What a program writes of the class of a value: at a parameter, a name, an attribute, or a result."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.text import expression_in
from mmrewrite.values.classes import Definition
from mmrewrite.values.containers import paths_of_items
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.value import By, Function, Own, Path, Value

# What is written in brackets behind these is what the object itself is.
_TRANSPARENT = frozenset(
    ("Annotated", "ClassVar", "Final", "InitVar", "NotRequired", "Optional", "ReadOnly", "Required")
)
_MAPPINGS = frozenset(
    ("dict", "Dict", "DefaultDict", "defaultdict", "Mapping", "MappingProxyType", "MutableMapping", "OrderedDict")
)
_SEQUENCES = frozenset(
    (
        *(
            "list",
            "List",
            "Sequence",
            "MutableSequence",
            "set",
            "Set",
            "frozenset",
            "FrozenSet",
            "AbstractSet",
            "deque",
        ),
        *("Deque", "Iterable", "Iterator", "Generator", "Collection", "Reversible", "MutableSet"),
    )
)
_MANAGERS = frozenset(("AbstractContextManager", "ContextManager"))
_AWAITABLE = frozenset(("Awaitable", "Future", "Task"))
# Aliases and classes may name each other.
_DEEPEST = 8


def parsed_annotation(annotation: ast.expr) -> ast.expr | None:
    """An annotation, also one that is a text; None for a text that is no expression."""
    if not (isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)):
        return annotation
    return expression_in(annotation.value)


def classes_in(annotation: ast.expr | None) -> Iterator[ast.expr]:
    """The names of the classes in an annotation, without that of `None`."""
    match parsed_annotation(annotation) if annotation is not None else None:
        case ast.Constant(value=None):
            pass
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from classes_in(left)
            yield from classes_in(right)
        case ast.Subscript(value=ast.Name(id="Optional") | ast.Attribute(attr="Optional"), slice=inner):
            yield from classes_in(inner)
        case ast.Subscript(value=generic):
            yield generic
        case ast.expr() as node:
            yield node
        case _:
            pass


class Annotation(NamedTuple):
    """An annotation, and what is done to the object that it is about."""

    module: ModuleUses
    node: ast.expr
    path: Path


def annotations_of(flow: ValueFlow, value: Value) -> Iterator[Annotation]:
    """The annotations of a value, or of what it is an attribute, a part or a result of."""
    module, head, path, _ = value
    if isinstance(head, ast.arg) and head.annotation is not None:
        yield Annotation(module, head.annotation, path)
    elif isinstance(head, ast.Name):
        owner = module.scope_of(head).owner(head.id)
        bindings = owner.bindings[head.id] if owner is not None else []
        for binding in bindings:
            if isinstance(binding.statement, ast.AnnAssign):
                yield Annotation(module, binding.statement.annotation, path)
            elif len(bindings) == 1 and isinstance(binding.node, ast.arg) and binding.node.annotation is not None:
                yield Annotation(module, binding.node.annotation, path)
    elif isinstance(head, Function) and head.returns is not None:
        steps = path[1:] if path and path[0].kind is By.BOUND else path
        if steps and steps[0].kind is By.CALL:
            yield Annotation(module, head.returns, steps[1:])
    of_class, steps = _class_of(flow, value)
    if of_class is not None and steps and steps[0].kind is By.ATTRIBUTE:
        for home, definition in flow.bases(*of_class).classes:
            for found in home.annotated.get(definition, {}).get(steps[0].what, ()):
                yield Annotation(home, found, steps[1:])


def declared(flow: ValueFlow, value: Value) -> Iterator[Annotation]:
    """What annotations say of a value, or of what it is a part of: an item of `dict[str, Mesh]`.

    There is one for each class that may be meant. Where an annotation says nothing of a part, it has a path left.
    """
    for found in annotations_of(flow, value):
        argument = found.module.parents.get(found.node)
        signature = found.module.parents.get(argument) if isinstance(argument, ast.arg) else None
        if isinstance(signature, ast.arguments) and argument in (signature.vararg, signature.kwarg):
            # It is about each of them.
            for path, _ in paths_of_items(found.path):
                yield from _taken(flow, found._replace(path=path[1:]), 0)
        else:
            yield from _taken(flow, found, 0)


def _taken(flow: ValueFlow, found: Annotation, depth: int) -> Iterator[Annotation]:
    module, node, path = found
    node = module.quoted.get(node, node) if isinstance(node, ast.Constant) else node
    inner: list[Annotation] = []
    match node:
        case ast.Constant(value=None):
            return
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            inner = [Annotation(module, each, path) for each in (left, right)]
        case ast.Subscript(value=generic, slice=key):
            name = (flow.full_name(module, generic) or "").rpartition(".")[2]
            parts = key.elts if isinstance(key, ast.Tuple) else [key]
            inner = [Annotation(module, *each) for each in _parts(name, parts, path)]
        case ast.Name() | ast.Attribute():
            inner = [*_of_alias(flow, module, node, path), *_of_members(flow, module, node, path)]
        case _:
            pass
    for each in inner if depth < _DEEPEST else ():
        yield from _taken(flow, each, depth + 1)
    if not inner or depth >= _DEEPEST:
        yield Annotation(module, node, path)


def _parts(name: str, parts: Sequence[ast.expr], path: Path) -> Iterator[tuple[ast.expr, Path]]:
    """The type in an annotation's brackets for what is taken of such an object."""
    if name in _TRANSPARENT or name == "Union":
        yield from ((each, path) for each in (parts if name == "Union" else parts[:1]))
        return
    by = path[0].kind if path else None
    if (by is By.ENTERED and name in _MANAGERS) or (by is By.AWAITED and name in _AWAITABLE):
        yield parts[0], path[1:]
    elif by is By.CALL and name == "Callable":
        yield parts[-1], path[1:]
    found = [*paths_of_items(path)]
    if any(default is not None and not isinstance(default.expression, ast.Constant) for _, default in found):
        return
    for (step, *rest), _ in found:
        key = step.what.text if step.kind is By.ITEM and step.what is not None else None
        if step.kind is By.REST:
            if not rest or rest[0].kind not in (By.ITEM, By.ELEMENT):
                continue
            rest = rest[1:]
        if name in _MAPPINGS and len(parts) == 2:
            yield parts[0 if step.kind is By.ELEMENT else 1], (*rest,)
        elif name in _SEQUENCES:
            yield parts[0], (*rest,)
        elif name in ("tuple", "Tuple"):
            kinds = [each for each in parts if not (isinstance(each, ast.Constant) and each.value is ...)]
            is_placed = len(kinds) == len(parts) and isinstance(key, int) and -len(parts) <= key < len(parts)
            yield from ((each, (*rest,)) for each in ([parts[key]] if is_placed and isinstance(key, int) else kinds))


def _of_alias(flow: ValueFlow, module: ModuleUses, node: ast.expr, path: Path) -> Iterator[Annotation]:
    """What another name stands for that is no name itself: `Meshes = dict[str, Mesh]`."""
    found = flow.binding_at(module, node)
    value = getattr(found[1].statement, "value", None) if found is not None else None
    if found is not None and isinstance(value, ast.Subscript | ast.BinOp):
        yield Annotation(found[0], value, path)


def _of_members(flow: ValueFlow, module: ModuleUses, node: ast.expr, path: Path) -> Iterator[Annotation]:
    """What a class of the project declares for an attribute, a field at a place, or a method's result."""
    is_asked = bool(path) and path[0].kind in (By.ATTRIBUTE, By.ITEM)
    of_class = flow.class_at(module, node) if is_asked else None
    for home, definition in flow.bases(*of_class).classes if of_class is not None else ():
        name, rest, declared = path[0].what, path[1:], home.annotated.get(definition, {})
        if path[0].kind is By.ITEM:
            place, fields = name.text if name is not None else None, [*declared]
            name = fields[place] if isinstance(place, int) and place < len(fields) else None
        yield from (Annotation(home, each, rest) for each in declared.get(name, ()))
        for binding in home.facts.names.inner[definition].bindings.get(name, ()):
            if isinstance(binding.node, Function) and binding.node.returns is not None:
                marks = {flow.full_name(home, each) for each in binding.node.decorator_list}
                if marks & {"builtins.property", "functools.cached_property"}:
                    yield Annotation(home, binding.node.returns, rest)
                elif not marks and rest and rest[0].kind is By.CALL:
                    yield Annotation(home, binding.node.returns, rest[1:])


def class_of_annotation(flow: ValueFlow, module: ModuleUses, annotation: ast.expr) -> Definition | None:
    """The class of the project that an annotation names by itself, also as a text, else None."""
    parsed = parsed_annotation(annotation)
    return flow.class_at(module, parsed, module.scope_of(annotation)) if parsed is not None else None


def class_of(flow: ValueFlow, value: Value) -> Definition | None:
    """The class of the project that a value is an object of, also where only the annotation of a parameter says so."""
    if isinstance(value.head, ast.arg) and value.head.annotation is not None and not value.path:
        return class_of_annotation(flow, value.module, value.head.annotation)
    return (value.module, value.own_class) if value.own_class is not None else None


def _class_of(flow: ValueFlow, value: Value) -> tuple[Definition | None, Path]:
    """The class of the object with which a value begins, and what is done to that."""
    module, head, path, _ = value
    if isinstance(head, ast.arg) and head.annotation is not None:
        return class_of_annotation(flow, module, head.annotation), path
    if isinstance(head, Own):
        return (module, head.definition), path
    if isinstance(head, ast.ClassDef):
        return (module, head), path[1:] if path and path[0].kind is By.CALL else path
    return None, ()
