"""Keep what programs do with variables of Flax nnx: annotations by `sharding=`, and changes in place.

    nnx.Param(init(key, (4, 8)), sharding=("data", "model"))
    ->  nnx.Param(init(key, (4, 8)), out_sharding=("data", "model"), eager_sharding=False)
    self.count += 1
    ->  self.count.value += 1

Before Flax 0.12 the names were kept with the variable, for `nnx.get_partition_spec`, and did nothing more. Since then a
variable with names is laid out when it is made, in the mesh of the context, and raises where there is none. The keyword
became `sharding_names` and then `out_sharding`. A variable that is changed in place raises since then; its value is
changed as before.

To check: the program was written for a Flax before 0.12.

Refused: modules that use `out_sharding`, `sharding_names` or eager sharding, since they may mean what Flax does today;
attributes that the program sets on variables or deletes, which raises since Flax 0.12; a `target-jax` before 0.10, on
which that Flax does not install.
See https://flax.readthedocs.io/en/latest/flip/4844-var-eager-sharding.html
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import ClassVar

from mmmodernize.calls.call_forms import form_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.types.nnx import COPIES, NnxVariables
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.array_libraries import VARIABLES
from mmrewrite.values.value import Value

_TODAY = frozenset(("out_sharding", "sharding_names", "eager_sharding", "use_eager_sharding"))
# Attributes that can be set still.
_SETTABLE = frozenset(("value", "raw_value"))
_METADATA = {False: "set by `{}.set_metadata({}=...)`", True: 'deleted by `{}.del_metadata("{}")`'}
_SETTERS = frozenset(("builtins.setattr", "builtins.delattr"))
_GETTERS = frozenset(("builtins.getattr", "builtins.hasattr"))
# Methods of variables that are given the name of an annotation.
_NAMED = frozenset(("get_metadata", "has_metadata", "set_metadata", "del_metadata"))
# Methods of dictionaries that are given keys.
_TAKEN = frozenset(("get", "pop", "setdefault"))
_ITEM_GETTER = "operator.itemgetter"
_MEANS_ANOTHER = (
    "since Flax 0.12 `sharding` of a variable is the sharding of its array; if its annotation is meant, write "
    "`out_sharding`"
)
_CALLED_ANOTHER = "since Flax 0.12 the annotation of a variable is `out_sharding`; write that if this names one"
_LAYS_OUT = (
    "since Flax 0.12 `sharding=` of {} is `out_sharding=`, by which the variable is laid out when it is made; write "
    "that, and `eager_sharding=False` beside it if it is to be an annotation"
)
_BY_DICTIONARY = _LAYS_OUT.format("a variable, which may be in this dictionary,")
_IF_A_CLASS = _LAYS_OUT.format("a variable, if this makes one,")


class KeepVariableAnnotations(ModernizeCodemod):
    """Renames the keyword, and switches off what is new."""

    changed_in: ClassVar = {"": ("flax", "0.12.0", "changes")}
    extra_markers: ClassVar = (b"nnx",)

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Calls that make a variable with `sharding=`, reads of that, and attributes that are set on variables."""
        variables, is_of_today = context.analysis(NnxVariables), _is_of_today(module)
        if not variables.may_be_in(module):
            return
        uses = {use.node: use for use in module.uses(VARIABLES)}
        for call in module.nodes_of(ast.Call):
            given = {each.arg: each for each in call.keywords if each.arg in ("sharding", None)}
            function = form_of(module, call).function if given else call.func
            is_named = "sharding" in given
            is_one = is_named or (
                bool(given) and variables.annotates_by_dictionary(module, given[None].value, function)
            )
            if is_one and variables.is_class(module, function) is not False:
                yield Location(module, function, uses.get(function)) if is_named else Location(module, given[None])
            if _changes(module, call) is not None and variables.has(module, call.args[0]) is not False:
                yield Location(module, call)
        for named in context.analysis(_AnnotationNames).of(module) if not is_of_today else ():
            if _is_annotation(context, module, named) is not False:
                yield Location(module, named)
        for key in variables.unseen_keys(module) if not is_of_today else ():
            if _is_annotation(context, module, key) is False:
                yield Location(module, key)
        statements = module.nodes_of(ast.AugAssign)
        changed = dict.fromkeys(target for each in statements if (target := _changed(each)) is not None)
        yield from (Location(module, node) for node in changed if variables.has(module, node) is not False)
        for node in module.nodes_of(ast.Attribute):
            if isinstance(node.ctx, ast.Load):
                is_read = node.attr == "sharding" and not is_of_today
                if is_read and variables.has(module, node.value, annotated=True) is not False:
                    yield Location(module, node)
            elif node in changed and variables.has(module, node) is not False:
                # It is a site already.
                continue
            elif _changes(module, node) is not None and variables.has(module, node.value) is not False:
                yield Location(module, node)

    def rewrite(self) -> None:
        """Rewrite one call or one read."""
        node, variables = self.site.node, self.site.context.analysis(NnxVariables)
        if isinstance(node, ast.keyword) and node.arg is None:
            self.site.leave(_BY_DICTIONARY)
        if isinstance(node, ast.keyword) or node in self.site.context.analysis(_AnnotationNames).of(self.site.module):
            self._rename_in_text(node)
            return
        assert isinstance(node, ast.expr)
        call = self.site.module.parents.get(node)
        if isinstance(call, ast.Call) and form_of(self.site.module, call).function is node:
            if variables.is_class(self.site.module, node) is None:
                self.site.leave(_IF_A_CLASS)
            self._rename(call, next(each for each in call.keywords if each.arg == "sharding"))
            return
        if call is not None and _changed(call) is node and variables.has(self.site.module, node) is not False:
            self._change_in_place(node)
            return
        changed = _changes(self.site.module, node)
        if changed is not None:
            owner = (
                node.args[0] if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Attribute) else node
            )
            advice = f"since Flax 0.12 attributes of variables are {_METADATA[_is_deletion(node)]}".format(
                self.site.text(owner), "out_sharding" if changed == "sharding" else changed or "name"
            )
            if variables.has(self.site.module, owner) is None:
                self.site.leave(f"{advice}, if this is one")
            self.refuse(advice)
        assert isinstance(node, ast.Attribute)
        if variables.has(self.site.module, node.value, annotated=True) is None:
            self.site.leave(_MEANS_ANOTHER)
        self.site.needs_package("flax", "0.12", "`out_sharding`", jax="0.10")
        self.site.rename_attribute(node, "out_sharding")

    def _rename_in_text(self, node: ast.AST) -> None:
        text = self.site.text(node)
        if not _is_annotation(self.site.context, self.site.module, node) or "sharding" not in text:
            place = _place(self.site.module, node)
            self.site.leave(_MEANS_ANOTHER if place is not None and place[0] == "variable" else _CALLED_ANOTHER)
        self.site.needs_package("flax", "0.12", "`out_sharding`", jax="0.10")
        if isinstance(node, ast.keyword):
            self.site.rename_keyword(node, "out_sharding")
        elif isinstance(node, ast.Constant):
            self.site.replace(node, text.replace("sharding", "out_sharding"))
        else:
            self.site.leave(_CALLED_ANOTHER)

    def _change_in_place(self, target: ast.expr) -> None:
        text = self.site.text(target)
        if self.site.context.analysis(NnxVariables).has(self.site.module, target) is None:
            self.site.leave(
                f"since Flax 0.12 a variable that is changed in place raises; write `{text}.value`, if this is one"
            )
        self.site.replace(target, f"{text}.value")

    def _rename(self, call: ast.Call, keyword: ast.keyword) -> None:
        if _is_of_today(self.site.module):
            self.refuse(
                "`sharding=` was an annotation alone, and is `out_sharding=` today, by which Flax lays the variable "
                "out when it is made; this module uses names of today, so write `out_sharding=`, and "
                "`eager_sharding=False` if it is to be an annotation",
                keyword,
            )
        self.site.needs_package("flax", "0.12", "`out_sharding=`", jax="0.10")
        self.site.rename_keyword(keyword, "out_sharding")
        append_argument(self.site, call, "eager_sharding=False")


def _is_of_today(module: ModuleUses) -> bool:
    """Whether code of a module uses names of today; what texts and comments say is no evidence."""
    return not _TODAY.isdisjoint(module.attributes) or any(word.arg in _TODAY for word in module.nodes_of(ast.keyword))


def _changed(statement: ast.AST) -> ast.expr | None:
    """What a statement changes in place, if that may be a variable: its value is none."""
    if not isinstance(statement, ast.AugAssign) or isinstance(statement.target, ast.Subscript):
        return None
    is_value = isinstance(statement.target, ast.Attribute) and statement.target.attr in _SETTABLE
    return None if is_value else statement.target


def _changes(module: ModuleUses, node: ast.expr) -> str | None:
    """The attribute that a node sets or deletes, "" if its name is computed; None if it is none that matters."""
    match node:
        case ast.Attribute(value=value, attr=name, ctx=ast.Store() | ast.Del()):
            is_own = isinstance(value, ast.Name) and value.id in ("self", "cls")
            return None if name in _SETTABLE or is_own else name
        case ast.Call(func=function, args=[ast.expr(), key, *_]) if module.full_name(function) in _SETTERS:
            text = key.value if isinstance(key, ast.Constant) else ""
            return None if text in _SETTABLE else str(text)
        case _:
            return None


class _AnnotationNames:
    """What may name the annotation of a variable in each module, looked for once."""

    def __init__(self, context: ModernizeContext) -> None:
        self._flow, self._found = context.flow, dict[ModuleUses, Collection[ast.AST]]()
        strings = (each for module in context.modules.values() for each in module.strings)
        self._is_text = any(each.value == "sharding" for each in strings)

    def of(self, module: ModuleUses) -> Collection[ast.AST]:
        """Texts, names for such a text where one is asked for, and keywords."""
        if module not in self._found:
            self._found[module] = dict.fromkeys(self._find(module))
        return self._found[module]

    def _find(self, module: ModuleUses) -> Iterator[ast.AST]:
        yield from (each for each in module.nodes_of(ast.Constant, ast.keyword) if _word(each) == "sharding")
        for node in module.nodes_of(ast.Name, ast.Attribute) if self._is_text else ():
            if _place(module, node) is not None and self._flow.must(Value(module, node), _is_sharding):
                yield node


def _is_sharding(value: Value) -> bool | None:
    return (isinstance(value.head, ast.Constant) and not value.path and value.head.value == "sharding") or None


def _word(node: ast.AST) -> object:
    return node.value if isinstance(node, ast.Constant) else getattr(node, "arg", None)


def _is_annotation(context: ModernizeContext, module: ModuleUses, name: ast.AST) -> bool | None:
    """Whether a text or a keyword names the annotation of a variable: `"sharding"` of `w.get_metadata()["sharding"]`.

    None if it may.
    """
    variables, place = context.analysis(NnxVariables), _place(module, name)
    if place is None:
        return False
    kind, holder = place
    if kind == "class":
        return variables.is_class(module, holder)
    return (
        variables.has(module, holder, annotated=True) if kind == "variable" else variables.are_metadata(module, holder)
    )


def _place(module: ModuleUses, name: ast.AST) -> tuple[str, ast.expr] | None:
    """What a text or a keyword names a part of: a variable, what its class makes, or its metadata."""
    holder = module.parents.get(name)
    match holder:
        case ast.Call(func=function, args=[owner, key, *_]) if key is name and module.full_name(function) in _GETTERS:
            return "variable", owner
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _NAMED:
            return "variable", owner
        case ast.Call(func=ast.Attribute(value=owner, attr=method), keywords=words) if (
            method in COPIES and name in words
        ):
            return "variable", owner
        case ast.Dict():
            match module.parents.get(holder):
                case ast.Call(func=ast.Attribute(value=owner, attr="set_metadata")):
                    return "variable", owner
                case ast.Call(func=ast.Attribute(value=owner, attr="from_metadata")):
                    return "class", owner
        case ast.Subscript(value=owner, slice=key) if key is name:
            return "metadata", owner
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[key, *_]) if key is name and method in _TAKEN:
            return "metadata", owner
        case ast.Compare(left=first, comparators=[second]):
            return "metadata", second if first is name else first
        case ast.Call(func=function) if module.full_name(function) == _ITEM_GETTER:
            called = module.parents.get(holder)
            return ("metadata", called.args[0]) if isinstance(called, ast.Call) and called.args else None
        case ast.MatchMapping() | ast.MatchValue():
            match = next(each for each in module.above(holder) if isinstance(each, ast.Match))
            return "metadata", match.subject
    return None


def _is_deletion(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Del)
    return isinstance(node, ast.Call) and len(node.args) == 2
