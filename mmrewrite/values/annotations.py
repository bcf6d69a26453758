"""What a program writes of the class of a value: at a parameter, a name, an attribute, or a result."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.annotations import parsed_annotation
from mmrewrite.source.names import dotted_name
from mmrewrite.values.classes import Definition
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.value import By, Function, Own, Path, Value


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
    elif isinstance(head, Function) and path and path[0].kind is By.CALL and head.returns is not None:
        yield Annotation(module, head.returns, path[1:])
    of_class, steps = _class_of(flow, value)
    if of_class is not None and steps and steps[0].kind is By.ATTRIBUTE:
        for home, definition in flow.bases(*of_class).classes:
            for found in _declared_by(definition).get(steps[0].what, ()):
                yield Annotation(home, found, steps[1:])


def class_of_annotation(flow: ValueFlow, module: ModuleUses, annotation: ast.expr) -> Definition | None:
    """The class of the project that an annotation names by itself, also as a text, else None."""
    parsed = parsed_annotation(annotation)
    return flow.class_at(module, parsed, module.scope_of(annotation)) if parsed is not None else None


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


@lru_cache(maxsize=4096)
def _declared_by(definition: ast.ClassDef) -> Mapping[str, Sequence[ast.expr]]:
    """The annotations of attributes in a class: in its body, and where its methods set them."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.AnnAssign):
            own, _, name = (dotted_name(node.target) or "").rpartition(".")
            if own == "self" or (not own and node in definition.body):
                found.setdefault(name, []).append(node.annotation)
    return found
