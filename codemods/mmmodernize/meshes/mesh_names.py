"""The name by which a sharding can refer to the mesh of a context."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmmodernize.meshes.mesh_contexts import MeshContext
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding, Scope, numbered
from mmrewrite.values.classes import stores_of
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.stores import TextWrite
from mmrewrite.values.value import Function


@dataclass(frozen=True, eq=False)
class Home:
    """The statement of a module of a project that gives a global name its value."""

    facts: Facts
    binding: Binding
    project: Project

    @property
    def is_made_once(self) -> bool:
        """Whether the statement is at the top level of its module, and so neither in a loop nor in a condition."""
        return self.binding.statement in self.facts.tree.body


@dataclass(frozen=True)
class MeshName:
    """The name of the mesh of a context: a name of `scope`, or an attribute of the `self` of the class `owner`.

    `made` is the line and column behind what gives the name its value, 0 for parameters, and the last such place if it
    `is_bound_again`; then it is sure in code of the same function alone. `problem` says why the name cannot be relied
    on. Other modules may import a name that is given its value at the `home` of a mesh.
    """

    text: str
    scope: Scope | None
    made: tuple[int, int]
    owner: ast.ClassDef | None = None
    problem: str | None = None
    home: Home | None = field(default=None, compare=False)
    is_bound_again: bool = False

    def text_at(self, module: ModuleUses, node: ast.AST) -> str:
        """What the name is called at a node that it is not hidden at."""
        return self._imported_as(module, node) or self.text

    def _imported_as(self, module: ModuleUses, node: ast.AST) -> str | None:
        """The name under which another module has imported the mesh."""
        if self.home is None or module.facts is self.home.facts:
            return None
        for name, bindings in module.facts.names.scope.bindings.items():
            home = _home_of(module, bindings[0], self.home.project) if len(bindings) == 1 else None
            if home is not None and home.binding is self.home.binding:
                owner = module.scope_of(node).owner(name)
                if owner is module.facts.names.scope and _is_above(bindings[0], module, node):
                    return name
        return None

    def hidden_at(self, module: ModuleUses, node: ast.AST) -> str | None:
        """Why the name cannot be used at a node, else None."""
        if self.problem is not None:
            return self.problem
        if self.owner is not None:
            holders = [holder for holder in module.above(node) if isinstance(holder, ast.FunctionDef | ast.ClassDef)]
            if self.owner not in holders:
                return f"`{self.text}` is not there"
            method = holders[holders.index(self.owner) - 1]
            if not isinstance(method, ast.FunctionDef) or not method.args.args or method.args.args[0].arg != "self":
                return f"`{self.text}` is not there"
            made_here = method.lineno <= self.made[0] <= (method.end_lineno or method.lineno)
            return f"`{self.text}` is made below it" if made_here and _begin(node) < self.made else None
        if self._imported_as(module, node) is not None:
            return None
        scope = module.scope_of(node)
        if scope.owner(self.text) is not self.scope:
            return f"the name `{self.text}` of the mesh is not there; pass the mesh to it"
        if self.is_bound_again and scope.function is not self.scope:
            return f"`{self.text}` is given a value in several places"
        if scope.function is self.scope and _begin(node) < self.made:
            return f"the mesh `{self.text}` is made below it, on line {self.made[0]}; make it above"
        return None


def _begin(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _end(node: ast.AST | None) -> tuple[int, int]:
    return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)


def _home_of(module: ModuleUses, binding: Binding, project: Project) -> Home | None:
    """Where an imported name gets its value, if it is not imported there in turn."""
    target = module.facts.names.follow(binding.target) if binding.target is not None else None
    found = project.definition(target, module.facts) if target is not None else None
    if found is None or found[1].kind == "import" or found[1].statement is None:
        return None
    return Home(*found, project)


def _is_above(binding: Binding, module: ModuleUses, node: ast.AST) -> bool:
    """Whether a global name has its value when a node runs: it stands below, or in a function."""
    return module.scope_of(node).function.kind != "module" or _begin(node) >= _end(binding.statement)


def _set_elsewhere(flow: ValueFlow, module: ModuleUses, name: str) -> str | None:
    """Where a global name is set but by its bindings, in words for a message; None if nowhere."""
    place = next(flow.set_elsewhere(module, name, by_any_text=True), None)
    if isinstance(place, TextWrite):
        return f"`{name}` may be bound by its text, on line {place.node.lineno}"
    return f"`{name}` is set at {place.module.facts.path}:{place.node.lineno} as well" if place is not None else None


def mesh_name(context: MeshContext, flow: ValueFlow) -> MeshName:
    """The name of the mesh of a `with`."""
    module, node, project = context.module, context.node, flow.project
    scope = module.scope_of(node)
    if isinstance(node, ast.Name):
        owner = scope.owner(node.id)
        bindings = owner.bindings[node.id] if owner is not None else []
        last = _last_binding(module, context, bindings) if owner is scope.function else None
        if last is not None:
            return MeshName(node.id, owner, _end(last), is_bound_again=True)
        if owner is None or len(bindings) != 1:
            return MeshName(node.id, owner, (0, 0), problem=f"`{node.id}` is given a value in several places")
        (binding,) = bindings
        home = _home_of(module, binding, project) if binding.kind == "import" else None
        problem = _set_elsewhere(flow, module, node.id) if owner is module.facts.names.scope else None
        if problem is None and home is not None:
            problem = _set_elsewhere(flow, flow.uses_of(home.facts), home.binding.name)
        if problem is not None:
            return MeshName(node.id, owner, (0, 0), problem=problem)
        if binding.kind == "import":
            if home is None or home.binding.statement is None or not home.is_made_once:
                return MeshName(node.id, owner, _end(binding.statement))
            return MeshName(home.binding.name, home.facts.names.scope, _end(home.binding.statement), home=home)
        statement = binding.statement if binding.kind != "parameter" else None
        if statement is not None and module.facts.names.is_repeated(statement):
            return MeshName(node.id, owner, (0, 0), problem=f"`{node.id}` is given a value in a loop")
        made = (0, 0) if binding.kind == "parameter" else _end(binding.statement)
        is_global = owner is module.facts.names.scope and binding.statement is not None
        return MeshName(node.id, owner, made, home=Home(module.facts, binding, project) if is_global else None)
    if isinstance(node, ast.Attribute):
        return _attribute_name(flow, module, node)
    if context.name is not None:
        owner = scope.owner(context.name.id)
        if owner is None or len(owner.bindings[context.name.id]) != 1:
            return MeshName(
                context.name.id, owner, (0, 0), problem=f"`{context.name.id}` is given a value in several places"
            )
        return MeshName(context.name.id, owner, _end(context.name))
    name = next(name for name in numbered("mesh") if scope.is_free(name))
    return UnnamedMesh(name, scope, (context.holder.lineno, 0), holder=context.holder)


def _last_binding(module: ModuleUses, context: MeshContext, bindings: Sequence[Binding]) -> ast.stmt | None:
    """The last statement that binds a name, if all that bind it have run when a context is entered; else None."""
    statements = [binding.statement for binding in bindings if binding.kind != "parameter"]
    if len(bindings) < 2 or any(statement is None for statement in statements):
        return None
    found = [statement for statement in statements if statement is not None]
    is_over = all(_end(statement) <= _begin(context.holder) for statement in found)
    if not is_over or any(map(module.facts.names.is_repeated, found)):
        return None
    return max(found, key=_end)


@dataclass(frozen=True)
class UnnamedMesh(MeshName):
    """A mesh without a name, which gets one in place of its `with`."""

    holder: ast.stmt | None = None

    def hidden_at(self, module: ModuleUses, node: ast.AST) -> str | None:
        """Why the name cannot be used at a node: outside of the `with`, there is none."""
        if any(holder is self.holder for holder in module.above(node)):
            return None
        return f"the mesh of line {self.made[0]} has no name; make it in a statement above"


def _attribute_name(flow: ValueFlow, module: ModuleUses, node: ast.Attribute) -> MeshName:
    text = ast.unparse(node)
    owner = module.class_around(node)
    nowhere = MeshName(text, None, (0, 0), problem=f"it cannot be seen where `{text}` gets its value")
    if owner is None or not isinstance(node.value, ast.Name) or node.value.id != "self":
        return nowhere
    named, computed = stores_of(flow, (module, owner), node.attr)
    # A base that is not seen may be this class.
    others = [each for each in flow.stores.of(node.attr) if each.holder is not None and each not in named]
    unseen = [each for each in others if each.holder and not flow.bases(each.module, each.holder).is_whole]
    # What other code sets by computed names is of other objects, mostly.
    unseen += [each for each in computed if each.holder is not None]
    family = [*flow.bases(module, owner).classes, *flow.below(owner)]
    computes = any(
        isinstance(binding.node, Function)
        for home, each in family
        for binding in home.facts.names.inner[each].bindings.get(node.attr, ())
    )
    if len(named) != 1 or unseen or computes or owner not in module.above(named[0].node):
        return nowhere
    return MeshName(text, None, _end(module.statement_of(named[0].node)), owner)
