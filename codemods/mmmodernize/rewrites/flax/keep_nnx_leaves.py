"""Keep modules and variables of Flax nnx leaves of trees, and report variables that are hashed or compared.

    jax.tree.map(lambda layer: layer.features, layers)
    ->  jax.tree.map(lambda layer: layer.features, layers, is_leaf=lambda node: isinstance(node, nnx.Pytree))

Before Flax 0.11 modules and variables were leaves. Since then they are trees, and functions of `jax.tree` go on to the
arrays in them. Since Flax 0.12 variables have no hash, and `==` compares their values.

To check: the program was written for a Flax before that.

Refused: variables as keys of dictionaries, in sets, and as arguments of functions that `functools.lru_cache` wraps,
which raise. Reported, not edited: trees with modules or variables where nothing shows that the program is of an older
Flax, or with `is_leaf` already; `==` of two variables, and what looks for one in a list.
See https://flax.readthedocs.io/en/latest/guides/pytree.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import append_argument
from mmmodernize.modules.project_names import ProjectAge
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.types.nnx import NnxVariables, is_nnx_module
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import stars_of
from mmrewrite.values.annotations import class_of
from mmrewrite.values.containers import parts_of
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.value import ELEMENT, By, Function, Path, Value, item

# Functions of trees, each with the place of its tree.
_OF_TREES = {
    f"jax.{home}{name}": place
    for home, own in (("tree.", ""), ("tree_util.", "tree_"), ("", "tree_"))
    for place, names in enumerate(
        (
            ("all", "flatten", "flatten_with_path", "leaves", "leaves_with_path", "structure"),
            ("map", "map_with_path", "multimap", "reduce"),
        )
    )
    for name in (f"{own}{each}" for each in names)
}
_STATES = frozenset(f"flax.nnx.{name}" for name in ("GraphDef", "State", "VariableState"))
_CLASSES = {"module": "flax.nnx.Pytree", "variable": "flax.nnx.Variable"}
_MAY_HASH = (ast.Dict, ast.DictComp, ast.Set, ast.SetComp, ast.Call, ast.Compare, ast.Subscript)
# What is hashed of the first argument of a method of dictionaries and sets, or compared by one of lists, and of a
# function: all, its elements, or the keys of its pairs.
_OF_METHODS: Mapping[str, Path] = {
    **dict.fromkeys(("add", "count", "discard", "get", "index", "pop", "remove", "setdefault"), ()),
    **dict.fromkeys(("difference", "intersection", "symmetric_difference", "union", "update"), (ELEMENT,)),
}
_OF_FUNCTIONS: Mapping[str, Path] = {
    "builtins.hash": (),
    **dict.fromkeys((f"builtins.{name}" for name in ("dict.fromkeys", "frozenset", "set")), (ELEMENT,)),
    **dict.fromkeys(("collections.Counter", "collections.OrderedDict.fromkeys"), (ELEMENT,)),
    **dict.fromkeys(("builtins.dict", "collections.OrderedDict"), (ELEMENT, item(0))),
}
# A variable by its form.
_MAY_BE_ONE = (ast.Attribute, ast.Call, ast.Name, ast.Subscript)
_CACHES = ("functools.cache", "functools.lru_cache")
_MAKE_HASHING = frozenset(
    ("builtins.dict()", "builtins.set()", "collections.defaultdict()", "collections.OrderedDict()")
)
_HASHED = "since Flax 0.12 a variable has no hash; use its path in the state, or `id(...)` of it"
_COMPARED = (
    "since Flax 0.12 `==` of variables compares their values, element by element, as `in` and `index` of a list do; "
    "write `is` for the same one"
)
_COMPARING_METHODS = frozenset(("count", "index", "remove"))


class KeepNnxLeaves(ModernizeCodemod):
    """Says what is a leaf, where trees hold modules or variables."""

    changed_in: ClassVar = {"": ("flax", "0.11.0", "changes")}
    extra_markers: ClassVar = (b"nnx",)
    in_project: ClassVar = "nnx"

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Calls of functions of trees with modules or variables, and what hashes or compares variables."""
        variables = context.analysis(NnxVariables)
        if not variables.may_be_in(module):
            return
        for use in module.uses(_OF_TREES):
            call = module.call_at(use.node)
            is_open = call is not None and not _says_what_is_a_leaf(module, call)
            if call is not None and is_open and _leaves_in(context, module, call, _OF_TREES[use.name]):
                yield Location(module, call, part=use.name)
        flow = context.flow
        for node in module.nodes_of(*_MAY_HASH):
            holder, given = _hashed(module, node)
            hashed = [place for place, value in given if variables.is_certain(value)]
            if hashed and (holder is None or flow.may(flow.at(module, holder), _hashes).answers):
                yield from (Location(module, each) for each in hashed)
            elif hashed and _compares(node) and flow.may(flow.at(module, holder or hashed[0]), _is_list).answers:
                yield Location(module, node)
            is_equal = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq)
            compared = (node.left, node.comparators[0]) if isinstance(node, ast.Compare) and is_equal else ()
            if compared and all(variables.is_certain(Value(module, each)) for each in compared):
                yield Location(module, node)
        for value in context.analysis(_CachedCalls).arguments:
            if value.module is module and isinstance(value.head, ast.expr) and variables.is_certain(value):
                yield Location(module, value.head)

    def rewrite(self) -> None:
        """Say what is a leaf, or report the place."""
        site = self.site
        if _compares(site.node):
            site.leave(_COMPARED)
        place = _OF_TREES.get(site.resolve(site.node.func) or "") if isinstance(site.node, ast.Call) else None
        if place is None or not isinstance(site.node, ast.Call):
            self.refuse(_HASHED)
        call, kinds = site.node, sorted(_leaves_in(site.context, site.module, site.node, place))
        names = [site.spell(_CLASSES[kind]) for kind in kinds]
        classes = names[0] if len(names) == 1 else f"({', '.join(names)})"
        leaf = f"is_leaf=lambda node: isinstance(node, {classes})"
        age = site.context.analysis(ProjectAge)
        is_told = (
            bool(stars_of(call)) or len(call.args) > 2 + place or "is_leaf" in {word.arg for word in call.keywords}
        )
        if is_told or not age.is_before("flax", "0.11.0", site.module):
            shown = " and ".join(f"a {kind}" for kind in kinds)
            site.leave(f"since Flax 0.11 {shown} is a tree and no leaf; write `{leaf}` if one is meant")
        site.needs_package("flax", "0.11", "`nnx.Pytree`", jax="0.10")
        append_argument(site, call, leaf)


def _says_what_is_a_leaf(module: ModuleUses, call: ast.Call) -> bool:
    """Whether `is_leaf` of a call asks for classes of Flax."""
    asked = [part for word in call.keywords if word.arg == "is_leaf" for part in ast.walk(word.value)]
    names = (module.full_name(each) for each in asked if isinstance(each, ast.expr))
    return any(name is not None and name.startswith("flax.") for name in names)


def _leaves_in(context: ModernizeContext, module: ModuleUses, call: ast.Call, place: int) -> set[str]:
    """Whether the trees of a call are seen to hold modules or variables."""
    flow, variables = context.flow, context.analysis(NnxVariables)

    def kind(value: Value) -> str | None:
        head, path = value.head, value.path
        if variables.kind(value) is not None:
            return "variable"
        of_class = class_of(flow, value)
        if of_class is not None:
            return "module" if is_nnx_module(flow, *of_class) else None
        is_made = isinstance(head, str) and head.startswith("flax.nnx.") and [step.kind for step in path] == [By.CALL]
        is_object = is_made and f"{head}".rpartition(".")[2][:1].isupper() and head not in _STATES
        return "module" if is_object else None

    trees = call.args[place:] if place else call.args[:1]
    return {each for tree in trees for each in flow.may(Value(module, tree), kind, also=parts_of).answers}


def _hashes(value: Value) -> bool | None:
    """Whether a value is a dictionary or a set, as it is made."""
    is_display = isinstance(value.head, ast.Dict | ast.DictComp | ast.Set | ast.SetComp) and not value.path
    return is_display or value.outside in _MAKE_HASHING or None


def _compares(node: ast.AST) -> bool:
    """Whether a node compares by `==`, if it hashes nothing."""
    method = node.func if isinstance(node, ast.Call) else None
    is_asked = isinstance(method, ast.Attribute) and method.attr in _COMPARING_METHODS
    return isinstance(node, ast.Compare) or is_asked


def _is_list(value: Value) -> bool | None:
    """Whether a value is a list or a tuple, as it is made."""
    is_display = isinstance(value.head, ast.List | ast.ListComp | ast.Tuple) and not value.path
    return is_display or value.outside in ("builtins.list()", "builtins.tuple()") or None


_Hashed = tuple[ast.expr | None, Sequence[tuple[ast.expr, Value]]]


def _hashed(module: ModuleUses, node: ast.AST) -> _Hashed:
    """What must be a dictionary or a set for a node to hash something, and what is hashed, each with its value."""
    holder: ast.expr | None = None
    found: Sequence[ast.expr] = ()
    path: Path | None = ()
    match node:
        case ast.Call(func=function, args=[key, *_]):
            path = _OF_FUNCTIONS.get(module.full_name(function) or "")
            if path is None and isinstance(function, ast.Attribute):
                holder, path = function.value, _OF_METHODS.get(function.attr)
            if isinstance(key, ast.List | ast.Tuple | ast.Set) and path == (ELEMENT,):
                found, path = key.elts, ()
            elif path is not None:
                found = [key]
        case (
            ast.Subscript(value=asked, slice=key)
            | ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[asked])
        ):
            holder, found = asked, [key]
        case ast.Dict(keys=keys):
            found = [key for key in keys if key is not None]
        case ast.Set(elts=found):
            pass
        case ast.DictComp(key=key) | ast.SetComp(elt=key):
            found = [key]
        case _:
            pass
    may_be_one = [each for each in found if path or isinstance(each, _MAY_BE_ONE)]
    return holder, [(each, Value(module, each).done(*path or ())) for each in may_be_one]


class _CachedCalls:
    """The arguments of calls of functions that keep their results, and hash the arguments for that.

    Attributes:
        arguments: Those in view.
    """

    def __init__(self, context: ModernizeContext) -> None:
        flow = context.flow
        calls = (call for each in _cached(flow, context) for call in flow.calls_of(*each)[0])
        self.arguments = [
            value
            for call in calls
            for value in (*(each.value for each in call.positional), *(value for _, value in call.keywords))
        ]


def _cached(flow: ValueFlow, context: ModernizeContext) -> Iterator[tuple[ModuleUses, ast.AST]]:
    """The functions of a project that keep their results."""
    for module in context.modules.values():
        for use in module.uses(_CACHES):
            call = module.call_at(use.node)
            holder = module.parents[call or use.node]
            if isinstance(holder, Function):
                yield module, holder
            # `lru_cache(f)`, or `lru_cache(maxsize=8)(f)`.
            for given in (each.args[0] for each in (call, holder) if isinstance(each, ast.Call) and each.args):
                found = (module, given) if isinstance(given, ast.Lambda) else flow.function_at(module, given)
                if found is not None:
                    yield found
