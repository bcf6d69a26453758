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
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.types.nnx import VARIABLES, NnxVariables
from mmrewrite.project.uses import ModuleUses

_TODAY = frozenset(("out_sharding", "sharding_names", "eager_sharding", "use_eager_sharding"))
# Attributes that can be set still.
_SETTABLE = frozenset(("value", "raw_value"))
_METADATA = {False: "set by `{}.set_metadata({}=...)`", True: 'deleted by `{}.del_metadata("{}")`'}
_SETTERS = frozenset(("builtins.setattr", "builtins.delattr"))
_GETTERS = frozenset(("builtins.getattr", "builtins.hasattr"))
# Methods of variables that are given the name of an annotation.
_NAMED = frozenset(("get_metadata", "has_metadata", "set_metadata", "del_metadata"))
_MEANS_ANOTHER = (
    "since Flax 0.12 `sharding` of a variable is the sharding of its array; if its annotation is meant, write "
    "`out_sharding`"
)


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
            if _keyword(call) is not None and variables.is_class(module, call.func):
                yield Location(module, call.func, uses.get(call.func))
            elif _changes(module, call) is not None and variables.has(module, call.args[0]) is not False:
                yield Location(module, call)
        for named in (*module.strings, *module.nodes_of(ast.keyword)) if not is_of_today else ():
            owner = _annotated(module, named)
            if owner is not None and variables.has(module, owner, annotated=True) is not False:
                yield Location(module, named)
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
        owner = _annotated(self.site.module, node)
        if owner is not None:
            self._check_read(owner)
            if isinstance(node, ast.keyword):
                self.site.rename_keyword(node, "out_sharding")
            else:
                self.site.replace(node, self.site.text(node).replace("sharding", "out_sharding"))
            return
        assert isinstance(node, ast.expr)
        call = self.site.module.parents.get(node)
        keyword = _keyword(call) if isinstance(call, ast.Call) and call.func is node else None
        if isinstance(call, ast.Call) and keyword is not None:
            self._rename(call, keyword)
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
        self._check_read(node.value)
        self.site.rename_attribute(node, "out_sharding")

    def _check_read(self, owner: ast.expr) -> None:
        """Leave what only may be the annotation of a variable."""
        if self.site.context.analysis(NnxVariables).has(self.site.module, owner, annotated=True) is None:
            self.site.leave(_MEANS_ANOTHER)
        self.site.needs_package("flax", "0.12", "`out_sharding`", jax="0.10")

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
    return any(
        (node.arg if isinstance(node, ast.keyword) else getattr(node, "attr", None)) in _TODAY
        for node in module.nodes_of(ast.keyword, ast.Attribute)
    )


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
        case ast.Call(func=function, args=[ast.expr(), key, *_]) if (
            module.facts.names.resolve(function, module.scope_of(function)) in _SETTERS
        ):
            text = key.value if isinstance(key, ast.Constant) else ""
            return None if text in _SETTABLE else str(text)
        case _:
            return None


def _annotated(module: ModuleUses, name: ast.AST) -> ast.expr | None:
    """What has the annotation that a text or a keyword names: `w` of `w.get_metadata()["sharding"]`."""
    if getattr(name, "value" if isinstance(name, ast.Constant) else "arg", None) != "sharding":
        return None
    match module.parents.get(name):
        case ast.Call(func=function, args=[owner, key, *_]) if (
            key is name and module.facts.names.resolve(function, module.scope_of(function)) in _GETTERS
        ):
            return owner
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _NAMED:
            return owner
        case (
            ast.Subscript(value=ast.Call(func=ast.Attribute(value=owner, attr="get_metadata")))
            | ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Attribute(value=owner, attr="get_metadata"))))
            | ast.Compare(comparators=[ast.Call(func=ast.Attribute(value=owner, attr="get_metadata"))])
        ):
            return owner
        case _:
            return None


def _is_deletion(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Del)
    return isinstance(node, ast.Call) and len(node.args) == 2


def _keyword(call: ast.Call) -> ast.keyword | None:
    return next((keyword for keyword in call.keywords if keyword.arg == "sharding"), None)
