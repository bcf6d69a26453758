"""Mark the lists of modules that Flax took for data by itself.

    self.layers = [nnx.Linear(8, 8, rngs=rngs) for _ in range(4)]
    ->  self.layers = nnx.data([nnx.Linear(8, 8, rngs=rngs) for _ in range(4)])

Before Flax 0.12 every list, tuple and dictionary that a module holds was looked through for variables. Since then one
is static unless it is marked, and raises where it holds variables, modules or arrays. `nnx.data` leaves the value as it
is, and so the paths in the state.

A container is marked if the class is a module and the source shows that the container holds modules or variables: as it
is written, by `append`, or through a local name.

To check: nothing else; where Flax finds another container with data it raises, and names the attribute.

Refused: nothing. A container whose items are made by functions that cannot be seen is left alone and reported.
See https://flax.readthedocs.io/en/latest/guides/pytree.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar, TypeGuard

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.types.nnx_modules import is_nnx_module
from mmrewrite.project.uses import ModuleUses

_NNX = "flax.nnx."
_CONTAINERS = ast.List | ast.Tuple | ast.Dict | ast.ListComp | ast.DictComp | ast.GeneratorExp
# Functions that make a container of the items of another.
_COPIES = frozenset(f"builtins.{name}" for name in ("dict", "list", "reversed", "sorted", "tuple"))
# Functions that make arrays, which Flax takes for data as well.
_ARRAYS = ("jax.numpy.", "jax.random.")
_ADD = ("append", "extend", "insert")
_DEEPEST = 6


class KeepDataAttributes(ModernizeCodemod):
    """Wraps what is assigned to attributes of a module."""

    changed_in: ClassVar = {"": ("flax", "0.12.0", "stops")}

    @classmethod
    def markers(cls) -> tuple[bytes, ...]:
        """A file without nnx has no site."""
        return (b"nnx",)

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Containers that methods of modules assign to attributes."""
        for node in module.nodes_of(ast.ClassDef):
            if is_nnx_module(module.facts, node, context.project):
                for value in _assigned(node):
                    if _holds(module, node, value, context) is not False:
                        yield Location(module, value)

    def rewrite(self) -> None:
        """Wrap one container."""
        site = self.site
        owner = next(holder for holder in site.module.above(site.node) if isinstance(holder, ast.ClassDef))
        assert isinstance(site.node, ast.expr)
        if _holds(site.module, owner, site.node, site.context) is None:
            site.leave("since Flax 0.12 a list with variables, modules or arrays is written `nnx.data([...])`")
        site.needs_package("flax", "0.11", "`nnx.data`", jax="0.10")
        site.wrap(site.node, f"{site.spell('flax.nnx.data')}(", ")")


def _assigned(owner: ast.ClassDef) -> Iterator[ast.expr]:
    """What methods of a class assign to attributes of `self` and may be a container."""
    annotated = {part.target.id for part in owner.body if isinstance(part, ast.AnnAssign) and _is_name(part.target)}
    for node in ast.walk(owner):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        own = [each for each in targets if _is_own(each)]
        if own and len(own) == len(targets) and not any(_attribute(each) in annotated for each in own):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            if not isinstance(node.value, ast.Constant):
                yield node.value


def _holds(module: ModuleUses, owner: ast.ClassDef, value: ast.expr, context: ModernizeContext) -> bool | None:
    """Whether a container holds modules or variables; None if some item is made by a function out of view."""
    made = _container_of(module, value) if _is_name(value) else value
    if made is None or not _is_container(module, made):
        return False
    items = [*_items(module, made), *(_added(module, value) if _is_name(value) else ())]
    holder = module.parents[value]
    targets = holder.targets if isinstance(holder, ast.Assign) else [getattr(holder, "target", None)]
    items += [item for target in targets for item in _appended(module, owner, _attribute(target))]
    kinds = {_kind(module, owner, item, context, 0) for item in items}
    return True if True in kinds else None if None in kinds else False


def _is_container(module: ModuleUses, value: ast.expr) -> bool:
    """Whether an expression makes a container that the source shows: a display, a copy, a sum of these."""
    if isinstance(value, ast.BinOp):
        return any(_is_container(module, each) for each in (value.left, value.right))
    return isinstance(value, _CONTAINERS) or _is_copy(module, value)


def _is_copy(module: ModuleUses, value: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(value, ast.Call) and module.facts.names.resolve(value.func, module.scope_of(value)) in _COPIES


def _is_name(node: ast.AST | None) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and _is_name(node.value) and node.value.id == "self"


def _attribute(node: ast.AST | None) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


def _attribute_of(module: ModuleUses, value: ast.expr) -> str:
    """The attribute that a value is assigned to, as `_assigned` gives it."""
    holder = module.parents[value]
    return _attribute(holder.targets[0] if isinstance(holder, ast.Assign) else getattr(holder, "target", None))


def _items(module: ModuleUses, container: ast.expr) -> Iterator[ast.expr]:
    """The items of a container as it is written, also those of containers in it."""
    items: list[ast.expr | None] = []
    match container:
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            items = [each.value if isinstance(each, ast.Starred) else each for each in elements]
        case ast.Dict(values=values):
            items = [*values]
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.DictComp(value=element):
            items = [element]
        case ast.BinOp(left=left, right=right):
            items = [left, right]
        case ast.Call(args=arguments, keywords=keywords):
            items = [*arguments, *(keyword.value for keyword in keywords)]
    for item in items:
        if item is not None and _is_container(module, item):
            yield from _items(module, item)
        elif item is not None:
            yield item


def _appended(module: ModuleUses, owner: ast.ClassDef, attribute: str) -> Iterator[ast.expr]:
    """What methods of a class put into a container: `self.layers.append(x)`, `self.layers[key] = x`, `+= [x]`."""
    for node in ast.walk(owner):
        place: ast.expr | None = None
        added: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADD and node.args:
            place, added = node.func.value, node.args[-1]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            place, added = node.targets[0].value, node.value
        elif isinstance(node, ast.AugAssign):
            place, added = node.target, node.value
        if place is not None and added is not None and _is_own(place) and _attribute(place) == attribute:
            yield from _items(module, added) if _is_container(module, added) else [added]


def _container_of(module: ModuleUses, name: ast.Name) -> ast.expr | None:
    """The value that a local name is bound to, once, else None."""
    scope = module.scope_of(name)
    binding = module.facts.names.binding(name.id, scope)
    return binding.value if binding is not None and scope.owner(name.id) is scope else None


def _added(module: ModuleUses, name: ast.Name) -> Iterator[ast.expr]:
    """What a function puts into a container of its own: `layers.append(x)`."""
    scope = module.scope_of(name)
    for head, chain in module.chains:
        if head.id == name.id and module.scope_of(head) is scope and isinstance(chain[-1], ast.Attribute):
            call = module.parents.get(chain[-1])
            if isinstance(call, ast.Call) and call.func is chain[-1] and chain[-1].attr in _ADD and call.args:
                added = call.args[-1]
                yield from _items(module, added) if _is_container(module, added) else [added]


def _kind(
    module: ModuleUses, owner: ast.ClassDef, item: ast.expr, context: ModernizeContext, depth: int
) -> bool | None:
    """Whether an item is a module or a variable; None if it is an array, or a function out of view makes it."""
    facts = module.facts
    if depth > _DEEPEST:
        return None
    if _is_name(item):
        binding = facts.names.binding(item.id, module.scope_of(item))
        value = binding.value if binding is not None else None
        return _kind(module, owner, value, context, depth + 1) if value is not None else False
    if _is_own(item):
        values = [value for value in _assigned(owner) if _attribute_of(module, value) == _attribute(item)]
        kinds = {_kind(module, owner, value, context, depth + 1) for value in values}
        return True if True in kinds else None if None in kinds else False
    if isinstance(item, ast.IfExp):
        kinds = {_kind(module, owner, each, context, depth + 1) for each in (item.body, item.orelse)}
        return True if True in kinds else None if None in kinds else False
    if not isinstance(item, ast.Call):
        return False
    name = facts.names.resolve(item.func, module.scope_of(item.func))
    if name is None:
        return None if isinstance(item.func, ast.Name | ast.Attribute) else False
    if name.startswith(_NNX):
        return name.rpartition(".")[2][:1].isupper()
    if name.startswith(_ARRAYS):
        return None
    found = context.project.definition(name, facts)
    if found is not None and isinstance(found[1].node, ast.ClassDef):
        return is_nnx_module(found[0], found[1].node, context.project)
    if found is not None and isinstance(found[1].node, ast.FunctionDef):
        return None
    return False
