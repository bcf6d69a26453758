"""Which classes are modules of Flax's nnx, and which values are its variables, with an annotation of their sharding."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

from mmmodernize.calls.call_forms import form_of
from mmmodernize.sites.site import ModernizeContext
from mmmodernize.types.libraries import is_known
from mmmodernize.types.value_classes import ValueClasses
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.branches import branches
from mmrewrite.source.names import Scope, dotted_name
from mmrewrite.values.array_libraries import VARIABLES
from mmrewrite.values.flow import FoundValues, ValueFlow
from mmrewrite.values.value import By, Decorated, Value, attribute, item

# Classes of nnx that are neither modules nor variables.
_OTHERS = frozenset(
    (
        *("All", "Any", "Carry", "DiffState", "Everything", "FlatState", "GraphDef", "GraphState", "Not", "Nothing"),
        *(
            "OfType",
            "PathContains",
            "State",
            "StateAxes",
            "StateSharding",
            "VariableMetadata",
            "VariableState",
            "WithTag",
        ),
    )
)
_DEEPEST = 6
# A class of the project, or of a library.
_OF_VARIABLES = (ast.ClassDef, str)


def is_nnx_module(flow: ValueFlow, module: ModuleUses, node: ast.ClassDef, depth: int = 0) -> bool | None:
    """Whether a class is a module of nnx whose attributes Flax sorts into data and static ones; None if it may be one.

    Args:
        flow: The values of the project.
        module: The Python module that holds the class.
        node: The class.
        depth: How many bases were followed to it.
    """
    if depth > _DEEPEST:
        return None
    said = [each.value for each in node.keywords if each.arg in (None, "pytree")]
    if said:
        is_one = said[0].value if isinstance(said[0], ast.Constant) else None
        if not is_one:
            return False if is_one is False else None
    found = [flow.may(Value(module, base), _class_at) for base in node.bases]
    kinds = {
        not isinstance(base.head, ast.ClassDef) or is_nnx_module(flow, base.module, base.head, depth + 1)
        for each in found
        for base in each.answers
    }
    is_hidden = any(each.unknown or any(map(is_out_of_view, each.others)) for each in found)
    return True in kinds or (None if None in kinds or is_hidden else False)


def is_out_of_view(value: Value) -> bool:
    """Whether a value is of code that is neither in the project nor in a known library."""
    return isinstance(value.head, str) and not is_known(value.head)


def _class_at(value: Value) -> Value | None:
    """The class of nnx or of the project that a value is."""
    head = value.head.definition if isinstance(value.head, Decorated) else value.head
    if isinstance(head, ast.ClassDef) and not value.path:
        return value._replace(head=head)
    return value if is_module_of_nnx(value.outside or "") else None


def is_module_of_nnx(name: str) -> bool:
    """Whether a full name is that of a class of nnx whose objects are modules."""
    own = name.rpartition(".")[2]
    return name.startswith("flax.nnx.") and own[:1].isupper() and own not in _OTHERS and name not in VARIABLES


_PARTITIONING = "flax.nnx.with_partitioning"
_OF_LAYERS = frozenset(("kernel", "bias", "scale", "embedding", "mean", "var", "lora_a", "lora_b", "count"))


class NnxVariables:
    """The variables of a project."""

    def __init__(self, context: ModernizeContext) -> None:
        self._context, self._modules = context, context.modules
        self._flow, self._classes = context.flow, context.analysis(ValueClasses)

    def may_be_in(self, module: ModuleUses) -> bool:
        """Whether values of a module may be variables: it imports Flax, or one that does is in the project."""
        return self._is_used or "flax" in module.roots

    @cached_property
    def _is_used(self) -> bool:
        modules = self._modules.values()
        return any("flax" in each.roots and any(each.names_below(("flax.nnx",))) for each in modules)

    @property
    def _is_named(self) -> bool:
        """Whether code in view names nnx: only then a value is seen to be a variable, or an object of a module."""
        return self._context.mentions("nnx")

    def is_class(self, module: ModuleUses, node: ast.expr) -> bool | None:
        """Whether an expression is a class of variables: of nnx, or one of the project that derives from it.

        None if it may be one.
        """
        value = Value(module, node)
        if self._flow.must(value, self._is_class):
            return True
        found = self._flow.may(value, self._is_class)
        return None if found.answers or any(not each.is_open for each in found.unknown) else False

    def _is_class(self, value: Value) -> bool | None:
        if isinstance(value.head, ast.ClassDef) and not value.path:
            return self._is_own(value.module, value.head) or None
        return value.outside in VARIABLES or None

    def annotates_by_dictionary(self, module: ModuleUses, given: ast.expr, function: ast.expr) -> bool:
        """Whether `sharding` may be in what is given by `**` to what may be a class of variables, one of both seen."""
        if not self._is_named:
            return False
        found = self._in_dictionary(module, given)
        if found.answers or not found.unknown or not self._is_key:
            return bool(found.answers)
        return bool(self._flow.may(Value(module, function), self._is_class).answers)

    def unseen_keys(self, module: ModuleUses) -> Iterator[ast.AST]:
        """The entries named `sharding`, where one may come unseen to what may be a class of variables.

        They are told in place of the calls: of most that is called by `**`, neither is in view, and it makes none.
        """
        keys = self._keys_in(module) if self._is_named and self._gives_unseen else ()
        # Most functions of a program that have a parameter of that name make no variable.
        return (each for each in keys if not isinstance(each, ast.keyword) or _makes_a_dict(module, each))

    @cached_property
    def _gives_unseen(self) -> bool:
        given = (
            (module, word.value, form_of(module, call).function)
            for module in self._modules.values()
            for call in module.nodes_of(ast.Call)
            for word in call.keywords
            if word.arg is None
        )
        return self._is_key and any(
            self._in_dictionary(module, words).unknown
            and self.is_class(module, function) is not False
            # That is told at the call.
            and not self.annotates_by_dictionary(module, words, function)
            for module, words, function in given
        )

    def _in_dictionary(self, module: ModuleUses, given: ast.expr) -> FoundValues[bool]:
        """Where an entry named `sharding` of a dictionary may come from."""
        step = item("sharding")
        return self._flow.may(Value(module, given).done(step), lambda value: value.path[-1:] != (step,) or None)

    @cached_property
    def _is_key(self) -> bool:
        """Whether the program has such an entry."""
        return any(True for module in self._modules.values() for _ in self._keys_in(module))

    def _keys_in(self, module: ModuleUses) -> Iterator[ast.AST]:
        """The keys of dictionaries, and the keywords that the project passes to its own, that are named so."""
        for node in module.strings:
            if node.value == "sharding" and isinstance(module.parents[node], ast.Dict):
                yield node
        for word in module.nodes_of(ast.keyword):
            if word.arg == "sharding" and self._takes_any(module, module.parents[word]):
                yield word

    def _takes_any(self, module: ModuleUses, call: ast.AST) -> bool:
        """Whether a call makes a dictionary, or may lead to a function of the project."""
        name = self._flow.full_name(module, call.func) if isinstance(call, ast.Call) else "."
        is_outside = name is not None and not self._flow.project.holds(name, module.facts)
        return not is_outside or name == "builtins.dict"

    def _is_own(self, module: ModuleUses, definition: ast.ClassDef) -> bool:
        """Whether a class of the project derives from one of nnx for variables."""
        return not set(self._flow.bases(module, definition).outside).isdisjoint(VARIABLES)

    def has(self, module: ModuleUses, node: ast.expr, *, annotated: bool = False) -> bool | None:
        """Whether a value is a variable, or one with an annotation; None if it may be one."""
        return self._has(Value(module, node), annotated=annotated)

    def is_certain(self, value: Value) -> bool:
        """Whether a value is a variable for certain: of most, that is seen to be wrong sooner than what else it is."""
        return bool(self._flow.must(value, self._may_be_certain)) and self._has(value, annotated=False) is True

    def _may_be_certain(self, value: Value) -> bool | None:
        return True if self._is_annotated_one(value) or self._classes.class_of(value) in VARIABLES else None

    def are_metadata(self, module: ModuleUses, node: ast.expr) -> bool | None:
        """Whether a value is the dictionary, or a part of one, that `get_metadata()` of an annotated variable gives.

        None if it may be one.
        """

        def test(value: Value) -> str | None:
            for count, pair in enumerate(pairwise(value.path)):
                if pair[0] == _GET_METADATA and pair[1].kind is By.CALL:
                    owner = value._replace(path=value.path[:count])
                    return {True: "yes", False: "no", None: "perhaps"}[self._has(owner, annotated=True, is_used=True)]
            return None

        value = Value(module, node).done(item("sharding"))
        if {"yes", "perhaps"}.isdisjoint(self._flow.may(value, test, by_name=True).answers):
            return False
        return True if self._flow.must(value, test) == "yes" else None

    def _has(self, value: Value, *, annotated: bool, is_used: bool = False) -> bool | None:
        """The same of any value; `is_used` says that a member of variables is read of it."""
        is_declared = self._classes.of_value(value) in VARIABLES
        if is_declared and not annotated:
            return True
        found = self._flow.may(value, self.kind, by_name=True) if self._is_named else None
        kinds = {"annotated"} if annotated else {"annotated", "plain", "layer"}
        if annotated and self._partitions:
            kinds.add("layer")
        if found is None or kinds.isdisjoint(found.answers):
            is_used_so = (not annotated or self._is_annotated) and (is_used or _is_used_as_one(value))
            return None if is_used_so or (is_declared and self._is_annotated) else False
        is_one = kinds.issuperset(found.answers) and "layer" not in found.answers
        is_sure = is_one and all(map(_is_in_place, found.others)) and not found.unknown
        return True if is_sure and self._flow.must(value, self._is_annotated_one) is not None else None

    @cached_property
    def _is_annotated(self) -> bool:
        """Whether the program annotates some variable."""
        return self._partitions or any(
            word.arg == "sharding"
            and isinstance(call := module.parents[word], ast.Call)
            and self.is_class(module, call.func)
            for module in self._modules.values()
            for word in module.nodes_of(ast.keyword)
        )

    @cached_property
    def _partitions(self) -> bool:
        return any(module.uses_any((_PARTITIONING,)) for module in self._modules.values())

    def _is_annotated_one(self, value: Value) -> bool | None:
        return None if self.kind(value) is None and not _is_in_place(value) else True

    def kind(self, value: Value) -> str | None:
        """Whether a value is a variable, and how it was made; None where others are behind it, or it is none."""
        path = value.path
        if not path or not isinstance(value.head, _OF_VARIABLES):
            return None
        while len(path) > 2 and path[-2] in _COPIES and path[-1].kind is By.CALL:
            path = path[:-2]
        steps = [step.kind for step in path]
        if steps == [By.CALL]:
            is_variable = value.head in VARIABLES
            if isinstance(value.head, ast.ClassDef):
                is_variable = self._is_own(value.module, value.head)
            if not is_variable:
                return None
            calls = (step.what for step in value.path if step.kind is By.CALL)
            return "annotated" if any(word == "sharding" for call in calls for word, _ in call.keywords) else "plain"
        is_layer = isinstance(value.head, str) and value.head.startswith("flax.nnx.")
        if is_layer and steps == [By.CALL, By.ATTRIBUTE] and path[1].what in _OF_LAYERS:
            return "layer"
        return None


def _makes_a_dict(module: ModuleUses, word: ast.keyword) -> bool:
    call = module.parents[word]
    return isinstance(call, ast.Call) and module.full_name(call.func) == "builtins.dict"


# Members of variables that few others have.
_MEMBERS = frozenset(("value", "raw_value", "get_metadata", "set_metadata"))
_GET_METADATA = attribute("get_metadata")
# Methods of variables that give another variable with the same annotations, but for those that they are given.
COPIES = frozenset(("copy", "replace"))
_COPIES = frozenset(map(attribute, COPIES))


def _is_used_as_one(value: Value) -> bool:
    """Whether a variable's members are read of an expression in its scope, or of a name for it: `param.value.shape`."""
    module, node = value.module, value.expression
    text = dotted_name(node) if node is not None else None
    if node is None or text is None:
        return False
    scope = module.scope_of(node)
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
