"""Which classes are modules of Flax's nnx, and which values are its variables, with an annotation of their sharding."""

from __future__ import annotations

import ast
from functools import cached_property

from mmmodernize.sites.site import ModernizeContext, SharedFlow
from mmmodernize.types.value_classes import ValueClasses
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.branches import branches
from mmrewrite.source.names import Scope, dotted_name
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.value import By, Decorated, Value

_MODULES = frozenset(f"flax.nnx.{name}" for name in ("Module", "Object", "Pytree"))
_DEEPEST = 6


def is_nnx_module(flow: ValueFlow, module: ModuleUses, node: ast.ClassDef, depth: int = 0) -> bool:
    """Whether a class may be a module of nnx whose attributes Flax sorts into data and static ones.

    Args:
        flow: The values of the project.
        module: The Python module that holds the class.
        node: The class.
        depth: How many bases were followed to it.
    """
    if depth > _DEEPEST or any(keyword.arg in (None, "pytree") for keyword in node.keywords):
        return False
    bases = [value for base in node.bases for value in flow.may(Value(module, base), _class_at).answers]
    return any(
        not isinstance(base.head, ast.ClassDef) or is_nnx_module(flow, base.module, base.head, depth + 1)
        for base in bases
    )


def _class_at(value: Value) -> Value | None:
    """The class of nnx or of the project that a value is."""
    head = value.head.definition if isinstance(value.head, Decorated) else value.head
    if isinstance(head, ast.ClassDef) and not value.path:
        return value._replace(head=head)
    return value if value.outside in _MODULES else None


VARIABLES = tuple(
    f"flax.nnx.{name}"
    for name in ("Variable", "Param", "LoRAParam", "BatchStat", "Cache", "Intermediate", "Perturbation")
)
_PARTITIONING = "flax.nnx.with_partitioning"
_OF_LAYERS = frozenset(("kernel", "bias", "scale", "embedding", "mean", "var", "lora_a", "lora_b", "count"))


class NnxVariables:
    """The variables of a project."""

    def __init__(self, context: ModernizeContext) -> None:
        self._modules = context.modules
        self._flow, self._classes = context.analysis(SharedFlow), context.analysis(ValueClasses)

    def may_be_in(self, module: ModuleUses) -> bool:
        """Whether values of a module may be variables: it imports Flax, or one that does is in the project."""
        return self._is_used or "flax" in module.roots

    @cached_property
    def _is_used(self) -> bool:
        modules = self._modules.values()
        return any("flax" in each.roots and any(each.names_below(("flax.nnx",))) for each in modules)

    def is_class(self, module: ModuleUses, node: ast.expr) -> bool:
        """Whether an expression is a class of variables: of nnx, or one of the project that derives from it."""
        found = self._flow.class_at(module, node)
        return self._flow.full_name(module, node) in VARIABLES if found is None else self._is_own(*found)

    def _is_own(self, module: ModuleUses, definition: ast.ClassDef) -> bool:
        """Whether a class of the project derives from one of nnx for variables."""
        return not set(self._flow.bases(module, definition).outside).isdisjoint(VARIABLES)

    def has(self, module: ModuleUses, node: ast.expr, *, annotated: bool = False) -> bool | None:
        """Whether a value is a variable, or one with an annotation; None if it may be one."""
        is_declared = self._classes.of(module, node) in VARIABLES
        if is_declared and not annotated:
            return True
        found = self._flow.may(Value(module, node), self.kind, by_name=True)
        kinds = {"annotated"} if annotated else {"annotated", "plain", "layer"}
        if annotated and self._partitions:
            kinds.add("layer")
        if kinds.isdisjoint(found.answers):
            is_used_so = (not annotated or self._is_annotated) and _is_used_as_one(module, node)
            return None if is_used_so or (is_declared and self._is_annotated) else False
        is_one = kinds.issuperset(found.answers) and "layer" not in found.answers
        is_sure = is_one and all(map(_is_in_place, found.others)) and not found.unknown
        return True if is_sure and self._flow.must(Value(module, node), self._is_annotated_one) is not None else None

    @cached_property
    def _is_annotated(self) -> bool:
        """Whether the program annotates some variable."""
        return self._partitions or any(
            any(word.arg == "sharding" for word in call.keywords) and self.is_class(module, call.func)
            for module in self._modules.values()
            for call in module.nodes_of(ast.Call)
        )

    @cached_property
    def _partitions(self) -> bool:
        return any(module.uses_any((_PARTITIONING,)) for module in self._modules.values())

    def _is_annotated_one(self, value: Value) -> bool | None:
        return None if self.kind(value) is None and not _is_in_place(value) else True

    def kind(self, value: Value) -> str | None:
        """Whether a value is a variable, and how it was made; None where others are behind it, or it is none."""
        steps = [step.kind for step in value.path]
        if steps == [By.CALL]:
            is_variable = value.head in VARIABLES
            if isinstance(value.head, ast.ClassDef):
                is_variable = self._is_own(value.module, value.head)
            words = {word for word, _ in value.path[0].what.keywords}
            return ("annotated" if "sharding" in words else "plain") if is_variable else None
        is_layer = isinstance(value.head, str) and value.head.startswith("flax.nnx.")
        if is_layer and steps == [By.CALL, By.ATTRIBUTE] and value.path[1].what in _OF_LAYERS:
            return "layer"
        return None


# Members of variables that few others have.
_MEMBERS = frozenset(("value", "raw_value", "get_metadata", "set_metadata"))


def _is_used_as_one(module: ModuleUses, node: ast.expr) -> bool:
    """Whether a variable's members are read of an expression in its scope, or of a name for it: `param.value.shape`."""
    text, scope = dotted_name(node), module.scope_of(node)
    if text is None:
        return False
    names = [
        name
        for name, found in scope.bindings.items()
        if any(dotted_name(each) == text for binding in found for each in branches(binding.value))
    ]
    return any(_has_members(module, each, scope) for each in (text, *names))


def _has_members(module: ModuleUses, text: str, scope: Scope) -> bool:
    first = text.partition(".")[0]
    owner = scope.owner(first)
    for head in module.heads_of(first, owner) if owner is not None else ():
        holder: ast.AST | None = head
        for _ in text.split("."):
            holder = module.parents.get(holder) if holder is not None else None
        if isinstance(holder, ast.Attribute) and holder.attr in _MEMBERS and dotted_name(holder.value) == text:
            return True
    return False


def _is_in_place(value: Value) -> bool:
    """Whether a value is what a change in place leaves, which is the object itself if that is a variable."""
    return isinstance(value.head, ast.AugAssign) and not value.path
