"""What annotations say of arrays of JAX: whether a value may be one, or may have one in it."""

from __future__ import annotations

import ast
from collections.abc import Callable

from mmmodernize.types.libraries import ARRAY_LIBRARIES, is_known
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding, Scope
from mmrewrite.values.annotations import parsed_annotation

_TYPING = ("typing", "typing_extensions")
_ANYTHING = frozenset(("builtins.object", *(f"{module}.Any" for module in _TYPING)))
# Forms that are what is in their brackets.
_FORMS = frozenset(
    f"{module}.{name}"
    for module in _TYPING
    for name in ("Annotated", "ClassVar", "Final", "NotRequired", "Optional", "ReadOnly", "Required", "Union")
)
# Forms of which nothing is an array, whatever is in their brackets.
_NO_VALUES = frozenset(
    f"{module}.{name}"
    for module in (*_TYPING, "builtins", "collections.abc")
    for name in ("AnyStr", "Callable", "Literal", "LiteralString", "Never", "NoReturn", "Text", "Type", "type")
)
_CONTAINERS = frozenset(f"builtins.{name}" for name in ("dict", "frozenset", "list", "set", "tuple"))
_OF_CONTAINERS = ("collections.", "queue.", "typing.", "typing_extensions.")
# Of these libraries types may be arrays; those of others only have arrays in them.
_HAVE_ARRAY_TYPES = frozenset(("chex", "jax", "jaxlib", "jaxtyping"))
_NO_ARRAYS = ("jax.Device", "jax.ShapeDtypeStruct", "jax.sharding.", "jax.tree_util.PyTreeDef")
_DEEPEST = 12


class ArrayAnnotations:
    """Reads annotations of a project, in whose classes and aliases they are written.

    Args:
        project: The project.
        uses_of: Gives the uses of names in a module.
    """

    def __init__(self, project: Project, uses_of: Callable[[Facts], ModuleUses]) -> None:
        self._project, self._uses_of = project, uses_of

    def allow(self, module: ModuleUses, annotation: ast.expr | None, *, itself: bool) -> bool:
        """Whether an annotation allows that a value is an array, or with `itself` false that it has one in it.

        One that is not seen, or that says nothing, allows it.
        """
        return annotation is None or self._allows(module, annotation, module.scope_of(annotation), itself, 0)

    def _allows(self, module: ModuleUses, node: ast.expr, scope: Scope, itself: bool, depth: int) -> bool:
        if depth > _DEEPEST:
            return True
        match node:
            case ast.Constant(value=str()):
                # A name in a text stands in no scope of its own.
                parsed = parsed_annotation(node)
                return parsed is None or self._allows(module, parsed, scope, itself, depth + 1)
            case ast.Constant():
                return False
            case ast.Name() | ast.Attribute():
                return self._allows_name(module, node, scope, itself, depth)
            case ast.Subscript(value=generic, slice=inner):
                return self._allows_generic(module, generic, inner, scope, itself, depth)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                parts = [left, right]
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                pass
            case _:
                return True
        return any(self._allows(module, each, scope, itself, depth + 1) for each in parts)

    def _allows_generic(
        self, module: ModuleUses, generic: ast.expr, inner: ast.expr, scope: Scope, itself: bool, depth: int
    ) -> bool:
        found = module.facts.names.resolve(generic, scope)
        if found in _FORMS:
            # What else is in `Annotated[...]` is no type.
            is_annotated = found.endswith(".Annotated") and isinstance(inner, ast.Tuple)
            parts = inner.elts[:1] if is_annotated and isinstance(inner, ast.Tuple) else [inner]
            return any(self._allows(module, each, scope, itself, depth + 1) for each in parts)
        if found in _NO_VALUES:
            return False
        if _is_container(found):
            return not itself and self._allows(module, inner, scope, False, depth + 1)
        if found is not None and found.startswith("jaxtyping."):
            first = inner.elts[0] if isinstance(inner, ast.Tuple) and inner.elts else inner
            return self._allows(module, first, scope, itself, depth + 1)
        return self._allows(module, generic, scope, itself, depth + 1)

    def _allows_name(self, module: ModuleUses, node: ast.expr, scope: Scope, itself: bool, depth: int) -> bool:
        found = module.facts.names.resolve(node, scope)
        if found is None:
            owner = scope.owner(node.id) if isinstance(node, ast.Name) else None
            bindings = owner.bindings[node.id] if owner is not None and isinstance(node, ast.Name) else []
            return not bindings or any(
                self._allows_binding(module, each, owner or scope, itself, depth) for each in bindings
            )
        if found in _ANYTHING:
            return True
        if found in _NO_VALUES or found.startswith(_NO_ARRAYS):
            return False
        if _is_container(found):
            # What is in it is not said.
            return not itself
        root = found.partition(".")[0]
        if root in _HAVE_ARRAY_TYPES:
            return True
        if root in ARRAY_LIBRARIES:
            return not itself
        definition = self._project.definition(found, module.facts)
        if definition is not None:
            home = self._uses_of(definition[0])
            return self._allows_binding(home, definition[1], home.facts.names.scope, itself, depth)
        return not is_known(found)

    def _allows_binding(self, module: ModuleUses, binding: Binding, scope: Scope, itself: bool, depth: int) -> bool:
        """Whether a name allows arrays that is bound to a class, or to another name of a type."""
        if isinstance(binding.node, ast.ClassDef):
            # An object is no array, and may have some in it.
            return not itself
        value = binding.value
        if isinstance(value, ast.Call):
            made = module.facts.names.resolve(value.func, scope)
            if made is not None and made.endswith(".NewType") and len(value.args) == 2:
                return self._allows(module, value.args[1], scope, itself, depth + 1)
            return True
        return value is None or self._allows(module, value, scope, itself, depth + 1)


def _is_container(found: str | None) -> bool:
    return found is not None and (found in _CONTAINERS or found.startswith(_OF_CONTAINERS))
