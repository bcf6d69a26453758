"""Mark the lists of modules that Flax took for data by itself.

    self.layers = [nnx.Linear(8, 8, rngs=rngs) for _ in range(4)]
    ->  self.layers = nnx.data([nnx.Linear(8, 8, rngs=rngs) for _ in range(4)])

Before Flax 0.12 every list, tuple and dictionary that a module holds was looked through for variables. Since then one
is static unless it is marked, and raises where it holds variables, modules or arrays. `nnx.data` leaves the value as it
is, and so the paths in the state. So it is of the other trees of arrays, such as the state that `optax` makes.

An attribute that is `None` at first is static too, and raises where data is assigned to it later:

    self.cache = None
    ->  self.cache = nnx.data(None)

A field of a dataclass says so in its annotation:

    layers: list[nnx.Linear]
    ->  layers: nnx.Data[list[nnx.Linear]]

A container is marked if the class is a module and the source shows that the container holds modules or variables: as it
is written, by `append`, through a name, or as the result or the argument of a function.

To check: nothing else; where Flax finds another container with data it raises, and names the attribute.

Refused: an attribute that is another constant at first, and data later; a container that comes as a part of something,
as in `self.count, self.layers = make()`. A container whose items are made by functions that cannot be seen, and an
object of a class that is a tree, are left alone and reported.
See https://flax.readthedocs.io/en/latest/guides/pytree.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.types.nnx import is_nnx_module, is_out_of_view
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.annotations import class_of, parsed_annotation
from mmrewrite.values.flow import FoundValues, ValueFlow
from mmrewrite.values.stores import Store
from mmrewrite.values.targets import of_target
from mmrewrite.values.value import ANY_ITEM, Access, By, Own, Value, attribute, item

_NNX = "flax.nnx."
_CONTAINERS = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp, ast.GeneratorExp)
# Functions that make a container of the items of another.
_COPIES = frozenset(f"builtins.{name}()" for name in ("dict", "list", "reversed", "sorted", "tuple"))
_ITEMS = ([By.ITEM], [By.ELEMENT], [By.REST])
# What containers are called in annotations.
_HOLDERS = frozenset(("dict", "list", "mapping", "sequence", "tuple"))
# Functions that make arrays, which Flax takes for data as well.
_ARRAYS = ("jax.numpy.", "jax.random.", "jax.nn.", "numpy.random.")
# fmt: off
_ARRAYS_OF_NUMPY = frozenset(
    f"numpy.{name}"
    for name in (
        "arange", "array", "asarray", "ascontiguousarray", "asfortranarray", "concatenate", "copy", "empty",
        "empty_like", "eye", "full", "full_like", "geomspace", "identity", "linspace", "load", "logspace", "ones",
        "ones_like", "pad", "reshape", "stack", "tile", "tri", "tril", "triu", "zeros", "zeros_like",
    )
)
# fmt: on
# What is marked, or no list any more.
_MARKS = ("flax.nnx.data", "flax.nnx.static", "flax.nnx.List", "flax.nnx.Dict")
_DATACLASSES = frozenset(("dataclasses.dataclass", "flax.nnx.dataclass"))
# What makes trees of arrays or variables, and what may.
_TREES = frozenset(("flax.nnx.state()", "flax.nnx.to_pure_dict()", "jax.numpy.split()", "jax.numpy.array_split()"))
_MAY_BE_TREES = frozenset(
    (
        *("flax.nnx.split()", "flax.training.train_state.TrainState.create()", "jax.tree_util.Partial()"),
        "collections.namedtuple()()",
        *(f"jax.{name}()" for name in ("tree.map", "tree_map", "tree_util.tree_map")),
    )
)
# Decorators and bases of classes whose objects are trees.
_NODES = frozenset(
    (
        *("flax.struct.dataclass", "flax.struct.PyTreeNode", "chex.dataclass", "typing.NamedTuple"),
        *(f"jax.tree_util.register_{name}" for name in ("dataclass", "pytree_node_class")),
        "flax.training.train_state.TrainState",
    )
)
_LINEN = "flax.linen.Module"
# Containers may hold others, so deep.
_DEEPEST = 3


class KeepDataAttributes(ModernizeCodemod):
    """Wraps what is assigned to attributes of a module."""

    changed_in: ClassVar = {"": ("flax", "0.12.0", "stops")}
    extra_markers: ClassVar = (b"nnx",)
    in_project: ClassVar = "nnx"

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Containers that methods of modules assign to attributes."""
        for name, store in context.flow.stores.in_module(module):
            constant = _constant_at_first(context, name, store)
            if constant is not None:
                yield Location(module, constant)
            place = _assigned(context, name, store)
            holds = _holds(context, name, store) if place is not None else False
            # Of what only may be a module, many attributes are other lists.
            if place is not None and (holds or (holds is None and _is_of_module(context, name, store))):
                yield Location(module, place)
        for definition in module.nodes_of(ast.ClassDef):
            for annotation in _fields_with_data(context, module, definition):
                yield Location(module, annotation)

    def rewrite(self) -> None:
        """Wrap one container."""
        site = self.site
        assert isinstance(site.node, ast.expr)
        holder = site.module.parents[site.node]
        if isinstance(holder, ast.AnnAssign) and holder.annotation is site.node:
            site.needs_package("flax", "0.11", "`nnx.Data`", jax="0.10")
            site.wrap(site.node, f"{site.spell('flax.nnx.Data')}[", "]")
            return
        if isinstance(site.node, ast.Constant):
            if site.node.value is not None:
                text = site.text(site.node)
                self.refuse(
                    f"since Flax 0.12 an attribute that is `{text}` at first is static, and raises where data is "
                    f"assigned to it later; write `nnx.data({text})`, which is traced then, or use two attributes"
                )
            self._mark()
            return
        kinds = [
            _is_of_module(site.context, name, store) and _holds(site.context, name, store)
            for name, store in site.context.flow.stores.in_module(site.module)
            if _assigned(site.context, name, store) is site.node
        ]
        if True in kinds and isinstance(site.node, ast.Attribute) and isinstance(site.node.ctx, ast.Store):
            text = site.text(site.node)
            self.refuse(
                f"since Flax 0.12 a list with variables, modules or arrays is marked, or raises; take `{text}` to a "
                f"name here, and write `{text} = nnx.data(...)` with that below"
            )
        if True not in kinds:
            site.leave(
                "since Flax 0.12 a list, or another tree, with variables, modules or arrays is written `nnx.data(...)`"
            )
        self._mark()

    def _mark(self) -> None:
        site = self.site
        site.needs_package("flax", "0.11", "`nnx.data`", jax="0.10")
        # A tuple may stand without parentheses.
        call = ast.parse(f"f({site.text(site.node)}\n)", mode="eval").body
        is_bare = isinstance(call, ast.Call) and len(call.args) != 1 and isinstance(site.node, ast.Tuple)
        before, after = ("((", "))") if is_bare else ("(", ")")
        site.wrap(site.node, f"{site.spell('flax.nnx.data')}{before}", after)


def _assigned(context: ModernizeContext, name: str, store: Store) -> ast.expr | None:
    """What a method of a module assigns to an attribute of `self`, None if that is declared or a constant.

    Of a part of something, as in `self.count, self.layers = make()`, it is the attribute.
    """
    value = _assigned_to(context, name, store)
    if value is None and isinstance(store.node, ast.Attribute) and _is_of_module(context, name, store) is not False:
        taken = of_target(store.module, store.node)
        return store.node if taken is not None and taken.path else None
    is_marked = isinstance(value, ast.Call) and store.module.full_name(value.func) in _MARKS
    return None if isinstance(value, ast.Constant) or is_marked else value


def _assigned_to(context: ModernizeContext, name: str, store: Store) -> ast.expr | None:
    """What a method of a module assigns to an attribute of `self`, also a constant; None if that is declared."""
    is_one = _is_of_module(context, name, store)
    return context.flow.source_of(store) if is_one is not False else None


def _is_of_module(context: ModernizeContext, name: str, store: Store) -> bool | None:
    """Whether a place sets an attribute of a module that is not declared as data or static; None if it may."""
    owner, module, is_certain = context.analysis(_Owners).of(store)
    is_one = owner is not None and is_nnx_module(context.flow, module, owner)
    if owner is None or is_one is False:
        return False
    is_one = is_one if is_certain else None
    flow = context.flow
    fields = (part for part in owner.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name))
    is_declared = any(ast.unparse(part.target) == name and _says_itself(flow, module, part) for part in fields)
    return False if is_declared else is_one


def _says_itself(flow: ValueFlow, module: ModuleUses, field: ast.AnnAssign) -> bool:
    """Whether a field says itself what it is, as `layers: nnx.Data[list]` does."""
    parsed = parsed_annotation(field.annotation)
    declared = parsed.value if isinstance(parsed, ast.Subscript) else parsed
    name = module.facts.names.resolve(declared, module.scope_of(field)) if declared is not None else None
    return (name or "").startswith((_NNX, "typing.ClassVar", "dataclasses.InitVar"))


def _fields_with_data(context: ModernizeContext, module: ModuleUses, definition: ast.ClassDef) -> Iterator[ast.expr]:
    """The annotations of the fields of a dataclass that is a module which are given containers with variables."""
    flow = context.flow
    marks = (each.func if isinstance(each, ast.Call) else each for each in definition.decorator_list)
    if not any(module.full_name(each) in _DATACLASSES for each in marks) or not is_nnx_module(flow, module, definition):
        return
    family = [(module, definition), *flow.below(definition)]
    for part in definition.body:
        if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
            continue
        path = (attribute(part.target.id),)
        values = [Value(home, Own(each, is_class=False), path) for home, each in family]
        given = [each for each in values if flow.may(each, lambda value: _is_container(flow, value)).answers]
        holds = any(True in _kinds(context, each.done(ANY_ITEM), 0) for each in given)
        if (holds or _has_modules(flow, module, part.annotation)) and not _says_itself(flow, module, part):
            yield part.annotation


_Owner = tuple[ast.ClassDef | None, ModuleUses, bool]


class _Owners:
    """The class whose attribute each place sets, and whether that is certain: that around the method, or of the object.

    Of an object that only may be of a class, where a container is set that is written there.
    """

    def __init__(self, context: ModernizeContext) -> None:
        self._flow, self._found = context.flow, dict[Store, _Owner]()

    def of(self, store: Store) -> _Owner:
        if store not in self._found:
            self._found[store] = self._find(store)
        return self._found[store]

    def _find(self, store: Store) -> _Owner:
        if store.holder is not None or (isinstance(store.target, ast.Name) and store.target.id in ("self", "cls")):
            return store.holder, store.module, True
        flow, target = self._flow, Value(store.module, store.target)
        made = flow.must(target, self._class_of)
        is_written = made is None and isinstance(flow.source_of(store), _CONTAINERS)
        may_be = flow.may(target, self._class_of).answers if is_written else ()
        found = made or next((each for each in may_be if is_nnx_module(flow, *each)), None)
        return (found[1], found[0], made is not None) if found is not None else (None, store.module, False)

    def _class_of(self, value: Value) -> tuple[ModuleUses, ast.ClassDef] | None:
        return class_of(self._flow, value)


def _constant_at_first(context: ModernizeContext, name: str, store: Store) -> ast.Constant | None:
    """What an attribute of a module is at first, if that is a constant, and it is data later."""
    flow, module, value = context.flow, store.module, _assigned_to(context, name, store)
    if not isinstance(value, ast.Constant) or store.holder is None or not _is_of_module(context, name, store):
        return None
    family = [*flow.bases(module, store.holder).classes, *flow.below(store.holder)]
    for other in flow.stores.of(name):
        is_own = context.analysis(_Owners).of(other)[0] in [each for _, each in family]
        data = (other.value or flow.source_of(other)) if is_own else None
        if data is None or isinstance(data, ast.Constant) or not _may_follow(module, store.node, other):
            continue
        if True in _data_kinds(context, Value(other.module, data)):
            return value
    return None


def _data_kinds(context: ModernizeContext, value: Value) -> set[bool | None]:
    """Whether a value is a module or a variable, for certain or not, with arrays among them."""
    found: FoundValues[bool] = context.flow.may(value, lambda _: None)
    made = [each for each in found.others if isinstance(each.head, str) and _makes_arrays(each.head)]
    return {*_kinds(context, value, _DEEPEST), *(True for each in made if each.path)}


def _may_follow(module: ModuleUses, first: ast.AST, store: Store) -> bool:
    """Whether a place may set something after another on the same object: not in the other branch of a choice."""
    second = store.node
    above, others = [first, *module.above(first)], [second, *store.module.above(second)]
    function, other = next(filter(_is_function, above)), next(filter(_is_function, others))
    if function is not other:
        # An object is made before anything else is done to it.
        return getattr(other, "name", "") != "__init__"
    shared = next(each for each in above if each in others)
    if isinstance(shared, ast.If | ast.Match):
        one, two = above[above.index(shared) - 1], others[others.index(shared) - 1]
        blocks = [shared.body, shared.orelse] if isinstance(shared, ast.If) else [[case] for case in shared.cases]
        if not any(one in block and two in block for block in blocks):
            return False
    return getattr(second, "lineno", 0) >= getattr(first, "lineno", 0)


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module)


def _holds(context: ModernizeContext, name: str, store: Store) -> bool | None:
    """Whether a container holds modules or variables; None if some item is made by a function out of view."""
    flow = context.flow
    start = next((each for each in flow.stored(store, (), None) if isinstance(each, Value)), None)
    if start is not None and flow.may(start.done(ANY_ITEM), lambda each: _is_declared(flow, each)).answers:
        return True
    trees = flow.may(start, lambda each: _tree(flow, each)).answers if start is not None else []
    if start is not None and trees:
        return flow.must(start, lambda each: _tree(flow, each)) or None
    if start is None or not flow.may(start, lambda each: _is_container(flow, each)).answers:
        return False
    owner, home, _ = context.analysis(_Owners).of(store)
    assert owner is not None
    attributes = Value(home, Own(owner, is_class=False), (attribute(name), ANY_ITEM))
    kinds = {kind for each in (start.done(ANY_ITEM), attributes) for kind in _kinds(context, each, 0)}
    return True if True in kinds else None if None in kinds else False


def _tree(flow: ValueFlow, value: Value) -> bool | None:
    """Whether a value is a tree of arrays or variables that a library makes; False for one that may hold some."""
    head, made = value.head, value.outside or ""
    is_of_transformation = made.startswith("optax.") and made.endswith("().init()")
    # What `init` gives is a dictionary of trees.
    is_of_linen = made.startswith("flax.linen.") and made.removesuffix("[]").endswith("().init()")
    # The first that `split` gives is the definition, which is static.
    is_state = made == "flax.nnx.split()[]" and value.path[1] != item(0)
    if is_of_transformation or is_of_linen or is_state or made in _TREES:
        return True
    if not isinstance(head, ast.ClassDef):
        return False if made in _MAY_BE_TREES else None
    steps = [step for step in value.path if step.kind is not By.BOUND]
    bases = {*flow.bases(value.module, head).outside}
    match steps:
        case [Access(By.CALL), Access(By.ATTRIBUTE, "init"), Access(By.CALL), *parts] if _LINEN in bases:
            return True if all(each.kind is By.ITEM for each in parts) else None
        case [Access(By.CALL)]:
            marks = (each.func if isinstance(each, ast.Call) else each for each in head.decorator_list)
            names = {flow.full_name(value.module, each) for each in (*marks, *head.bases)} | bases
            return None if names.isdisjoint(_NODES) else False
        case _:
            return None


def _is_declared(flow: ValueFlow, value: Value) -> bool | None:
    """Whether a value is an item of a parameter of modules by annotation, as `list[nnx.Linear]`, or that of `*`."""
    if not isinstance(value.head, ast.arg) or [step.kind for step in value.path] not in _ITEMS:
        return None
    annotation, above = value.head.annotation, value.module.parents[value.head]
    is_rest = isinstance(above, ast.arguments) and value.head is above.vararg
    return (annotation is not None and _has_modules(flow, value.module, annotation, is_rest)) or None


def _has_modules(flow: ValueFlow, module: ModuleUses, annotation: ast.expr, is_rest: bool = False) -> bool:
    """Whether something is a container of modules by its annotation, or `is_rest` says that it is in one."""
    parsed, scope = parsed_annotation(annotation), module.scope_of(annotation)
    if parsed is None:
        return False
    types = [each for each in ast.walk(parsed) if isinstance(each, ast.Name | ast.Attribute)]
    names = [module.facts.names.resolve(each, scope) or "" for each in types]
    words = {ast.unparse(each).rpartition(".")[2].lower() for each in types}
    if "callable" in words or (not is_rest and words.isdisjoint(_HOLDERS)):
        return False
    found = [flow.class_at(module, each, scope) for each in types]
    return any(each is not None and is_nnx_module(flow, *each) for each in found) or any(map(_is_class_of_nnx, names))


def _makes_arrays(name: str) -> bool:
    return name.startswith(_ARRAYS) or name in _ARRAYS_OF_NUMPY


def _is_class_of_nnx(name: str) -> bool:
    return name.startswith(_NNX) and name.rpartition(".")[2][:1].isupper()


def _is_container(flow: ValueFlow, value: Value) -> bool | None:
    """Whether a value is a container that the source shows, None where the values behind it say so."""
    if isinstance(value.head, _CONTAINERS) and not value.path:
        return True
    if isinstance(value.head, ast.BinOp) and not value.path:
        parts = (Value(value.module, each, (), value.frame) for each in (value.head.left, value.head.right))
        return any(isinstance(each.head, _CONTAINERS) for each in parts) or None
    return True if value.outside in _COPIES else None


def _kinds(context: ModernizeContext, items: Value, depth: int) -> Iterator[bool | None]:
    """Whether items are modules or variables; None for an array, and for what a function out of view makes."""
    flow = context.flow
    found = flow.may(items, lambda value: value if _is_container(flow, value) else None)
    for inner in found.answers if depth < _DEEPEST else ():
        yield from _kinds(context, inner.done(ANY_ITEM), depth + 1)
    for value in found.others:
        head, kinds = value.head, [step.kind for step in value.path]
        if isinstance(head, str) and By.CALL in kinds:
            is_one = kinds == [By.CALL] and _is_class_of_nnx(head)
            yield True if is_one else None if _makes_arrays(head) or is_out_of_view(value) else False
        elif isinstance(head, ast.ClassDef) and kinds == [By.CALL]:
            yield is_nnx_module(flow, value.module, head)
        elif By.CALL in kinds:
            # Of a table that is filled elsewhere.
            yield None
    for each in found.unknown:
        if each.value is not None and any(step.kind is By.CALL for step in each.value.path) and not each.is_open:
            yield None
