"""Call what works for variables of Flax as dictionaries too, which they are since Flax 0.7.1.

    state, params = variables.pop("params")
    params = params.unfreeze()
    params = params.copy({"head": head})
    ->  state, params = flax.core.pop(variables, "params")
    ->  params = flax.core.unfreeze(params)
    ->  params = flax.core.copy(params, {"head": head})

`module.init` and `module.apply` gave a `FrozenDict`, whose methods a dictionary does not have, or has with another
meaning. The functions of `flax.core` do the same for both.

To check: nothing.

Refused: nothing. Reported, not edited: calls of values that the source does not show to be made by `init` or `apply` of
a module or by `flax.core`, and `pop` of a key that is no collection of Flax. They may be of another class. `pop` and
`copy` in other forms are those of a list or dictionary.
See https://flax.readthedocs.io/en/latest/guides/converting_and_upgrading/regular_dict_upgrade_guide.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.names.shared_names import FROZEN_DICTS
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.brackets import call_brackets, tokens_between
from mmrewrite.values.value import By, Value

_METHODS = ("unfreeze", "pop", "copy")
_MAKERS = frozenset(("init", "init_with_output", "apply"))
# What Flax and its users call collections of variables: `init` may be that of another library.
_COLLECTIONS = frozenset(
    ("params", "batch_stats", "cache", "intermediates", "params_axes", "losses", "state", "spectral_stats", "lora")
)
_CLASSES = FROZEN_DICTS | {"flax.core.freeze"}


class KeepFrozenDicts(ModernizeCodemod):
    """Replaces calls of methods that only a `FrozenDict` has in this form."""

    changed_in: ClassVar = {"": ("flax", "0.7.2", "changes")}

    extra_markers: ClassVar[tuple[bytes, ...]] = (b"unfreeze", b".pop(", b".copy(")
    beside: ClassVar = ()
    words: ClassVar = ("unfreeze", "pop", "copy")

    @classmethod
    def may_be_in(cls, data: bytes) -> bool:
        """Whether a file has a method that no other class has, or names Flax and one of the others."""
        return b".unfreeze" in data or (b"flax" in data and super().may_be_in(data))

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Calls of the methods in modules that import Flax, and those of `unfreeze` beside that and JAX."""
        methods = _METHODS if "flax" in module.roots else ("unfreeze",)
        if module.attributes.keys().isdisjoint(methods) or not context.flow.is_beside(module, "flax", "jax"):
            return
        for node in module.nodes_of(ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in methods:
                is_name = context.name_of(module, node.func) is not None
                is_meant = _is_of_frozen(module, node, node.func) and not _is_asked_for(module, node.func.value)
                if not is_name and is_meant:
                    yield Location(module, node)

    def rewrite(self) -> None:
        """Write one call as that of a function."""
        site, call = self.site, self.site.node
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        if not _is_collection(call) or not self._holds_variables(call.func.value):
            site.leave(
                f"if this is a dictionary of variables, it has no `FrozenDict.{call.func.attr}` since Flax 0.7.1; "
                f"call `flax.core.{call.func.attr}` with it"
            )
        start, _ = site.span(call)
        *_, dot, _ = (each for each in tokens_between(site.source, *site.span(call.func)) if each.is_code)
        function = site.spell(f"flax.core.{call.func.attr}")
        brackets, held = call_brackets(site.source, call), call.func.value
        # `(variables.pop)("params")` loses its parentheses.
        site.edit(start, site.span(call.func)[0], f"{function}(")
        is_plain = brackets.items and not brackets.comments
        site.edit(dot.start, brackets.items[0][0] if is_plain else brackets.opening + 1, ", " if brackets.items else "")
        site.meant.replace(call.func, function)
        site.meant.prepend_argument(call, held)

    def _holds_variables(self, node: ast.expr) -> bool:
        """Whether the source shows that an expression is variables of Flax, or a collection of them."""
        return self.site.context.flow.must(Value(self.site.module, node), _is_variables) is True


def _is_asked_for(module: ModuleUses, node: ast.expr) -> bool:
    """Whether a value has a method only under `if isinstance(value, FrozenDict)`, which the source says around it."""
    if not isinstance(node, ast.Name):
        return False
    inner: ast.AST = node
    while (outer := module.parents.get(inner)) is not None and not isinstance(outer, ast.FunctionDef | ast.Lambda):
        if isinstance(outer, ast.If) and inner in outer.body:
            match outer.test:
                case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=name), asked]) if name == node.id:
                    return module.full_name(asked) in FROZEN_DICTS
        inner = outer
    return False


def _is_collection(call: ast.Call) -> bool:
    """Whether a `pop` asks for a collection of variables, as far as its key is written; true of other methods."""
    key = call.args[0] if call.args else None
    is_pop = isinstance(call.func, ast.Attribute) and call.func.attr == "pop"
    return not is_pop or (isinstance(key, ast.Constant) and key.value in _COLLECTIONS)


def _is_of_frozen(module: ModuleUses, call: ast.Call, method: ast.Attribute) -> bool:
    """Whether a call is one that a dictionary does not have, or has with another result."""
    if call.keywords and method.attr != "copy":
        return False
    if method.attr == "unfreeze":
        return not call.args
    if method.attr == "pop":
        holder = module.parents.get(call)
        targets = holder.targets if isinstance(holder, ast.Assign) else []
        is_pair = len(targets) == 1 and isinstance(targets[0], ast.Tuple | ast.List) and len(targets[0].elts) == 2
        if not is_pair or len(call.args) != 1:
            return False
        # The keys of variables are names, so `pop(0)` is that of a list.
        key = call.args[0]
        return isinstance(key.value, str) if isinstance(key, ast.Constant) else not isinstance(key, ast.Starred)
    if call.keywords:
        return [keyword.arg for keyword in call.keywords] == ["add_or_replace"] and not call.args
    return len(call.args) == 1 and (isinstance(call.args[0], ast.Dict) or _is_dict_call(module, call.args[0]))


def _is_variables(value: Value) -> bool | None:
    """Whether a value is variables of Flax, or a collection of them; None where the values behind it say so."""
    head, path, names = value.head, value.path, value.module.facts.names
    start = None
    if isinstance(head, ast.arg) and head.annotation is not None:
        start = 0 if names.resolve(head.annotation, value.module.scope_of(head.annotation)) in _CLASSES else None
    elif head in _CLASSES and path and path[0].kind is By.CALL:
        start = 1
    for place, (step, after) in enumerate(pairwise(path)):
        if step.kind is By.ATTRIBUTE and step.what in _MAKERS and after.kind is By.CALL:
            start = place + 2
    is_one = start is not None and all(step.kind is not By.ATTRIBUTE or step.what in _METHODS for step in path[start:])
    return is_one or None


def _is_dict_call(module: ModuleUses, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and module.full_name(node.func) == "builtins.dict"
