"""The mesh contexts of a module: `with mesh:` in all its forms."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from mmmodernize.meshes.mesh_values import MeshValues, is_used_as_another
from mmmodernize.names.shared_names import ENVIRONMENTS, MESHES, SET_A_MESH
from mmmodernize.sites.site import ModernizeContext
from mmmodernize.types.libraries import is_known
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.branches import sides
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.uses import UsePlace, uses_of

_ENTERED = frozenset((*SET_A_MESH, "mmruntime.compat.mesh_context"))
_ENTERED_WORDS = frozenset(name.rpartition(".")[2] for name in _ENTERED)
# What puts a mesh in context by a call.
_ENTER = ("__enter__", "enter_context")
_HAVE_MULTIMESH = frozenset(("mmruntime", "multimesh", "legate"))

WITH, ENTERED, DECORATOR, ENVIRONMENT = "with", "entered", "decorator", "environment"
# `mesh(function)`: a decorator that is called.
CALLED = "called"
# By hand: `mesh.__enter__()` and `mesh.__exit__(...)`.
STATEMENT, LEFT = "statement", "left"


@dataclass(frozen=True, eq=False)
class MeshContext:
    """One place where a mesh is put in context, or taken out of it by hand.

    Attributes:
        module: The module that holds it.
        kind: How the mesh is entered.
        node: The expression of the mesh.
        holder: The statement that enters it.
        body: The code that runs in the context, as far as it can be seen.
        item: Its item in a `with`.
        is_conditional: Whether another context may be entered instead.
        is_sure: Whether `node` is seen to be a mesh, rather than something that may be one.
        outlasts: Whether the context may still be there when the function that enters it has returned or yields.
    """

    module: ModuleUses
    kind: str
    node: ast.expr
    holder: ast.stmt
    body: tuple[ast.AST, ...]
    item: ast.withitem | None = None
    is_conditional: bool = False
    is_sure: bool = True
    outlasts: bool = False

    @property
    def name(self) -> ast.Name | None:
        """The name that `as` gives the mesh."""
        target = self.item.optional_vars if self.item is not None else None
        return target if isinstance(target, ast.Name) else None

    @property
    def is_computed(self) -> bool:
        """Whether the mesh is what an expression gives that is no name, so that it has one only by `as`."""
        return not isinstance(self.node, ast.Name | ast.Attribute)

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.module.facts.path}:{self.node.lineno}"

    @property
    def doubt(self) -> str:
        """What to write where this only may be a mesh, for messages."""
        node, (shown, *more) = self.node, ast.unparse(self.node).splitlines()
        shown = f"{shown} ..." if more else shown
        owner = self.module.scope_of(node).owner(node.id) if isinstance(node, ast.Name) else None
        kinds = {each.kind for each in owner.bindings[shown]} if owner is not None else set()
        if kinds == {"parameter"}:
            advice = f"annotate the parameter `{shown}`"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            advice = f"annotate `{shown}` where it is set"
        elif kinds and "import" not in kinds:
            advice = f"annotate `{shown}` where it is assigned"
        else:
            advice = f"enter a name that has an annotation, `entered: Class = {shown}`,"
        return (
            f"`{shown}` may be a mesh; {advice} with its class, such as `jax.sharding.Mesh`, "
            "or with `contextlib.AbstractContextManager[None]`, which is no mesh"
        )


class MeshContexts:
    """The mesh contexts of each module of a project, looked for once."""

    def __init__(self, context: ModernizeContext) -> None:
        self._modules = context.modules
        self.values = MeshValues(context.flow)
        self._todays = _TodaysContexts(context.flow)
        self._found: dict[ModuleUses, tuple[MeshContext, ...]] = {}

    def of(self, module: ModuleUses) -> tuple[MeshContext, ...]:
        """Every place in a module where a mesh is put in context, or may be."""
        if module not in self._found:
            # A `MultiMesh` is still entered by `with mesh:`, so modules that may have one are left alone.
            is_left = _may_have_multimesh(module)
            self._found[module] = () if is_left else tuple(_find_contexts(module, self.values))
        return self._found[module]

    @cached_property
    def are_there(self) -> bool:
        """Whether any module has one."""
        return any(map(self.of, self._modules.values()))

    def of_today(self, module: ModuleUses) -> Iterator[MeshContext]:
        """Every place in a module where one is entered as today's JAX has it, or as `modernize` writes it."""
        text = module.facts.source.text
        if module.uses_any(_ENTERED) or any(word in text for word in _ENTERED_WORDS):
            yield from _find_contexts(module, self._todays)

    def of_others(self, module: ModuleUses) -> Iterator[MeshContext]:
        """Those of today, and every place of a module with `MultiMesh` where one, or a mesh, is put in context."""
        yield from self.of_today(module)
        if _may_have_multimesh(module):
            yield from _find_contexts(module, self.values)

    @cached_property
    def hidden(self) -> str | None:
        """A place that may put another mesh in context in a way that is not followed, for messages, else None."""
        flow = self.values.flow
        for module in self._modules.values():
            read = [node for word in _ENTER for node in module.attributes.get(word, ()) if not _is_call(module, node)]
            for node in (*read, *(text for text in module.strings if text.value in _ENTER)):
                return f"{module.facts.path}:{node.lineno} may enter one by hand; write `with mesh:` there"
        uses = [(module, use.node) for module in self._modules.values() for use in module.uses(MESHES)]
        made = [(module, call) for module, node in uses if (call := module.call_at(node)) is not None]
        called = {context.node for module in self._modules.values() for context in self.of(module)}
        for module, mesh in made if len(made) > 1 else ():
            used = uses_of(flow, module, mesh)
            calls = [each.node or mesh for each in used.calls if each.node is None or each.node.func not in called]
            given = [call for place, _ in used.escapes if (call := call_out_of_view(flow, place)) is not None]
            for call in (*calls, *given):
                path = next(each.facts.path for each in self._modules.values() if call in each.parents)
                return f"the mesh at {path}:{call.lineno} is given away, and may be entered; write `with mesh:` there"
        return None


def call_out_of_view(flow: ValueFlow, place: UsePlace) -> ast.Call | None:
    """The call that gives what stands at a place to a library that may do anything with it, else None."""
    holder = place.module.parents.get(place.node)
    while isinstance(holder, ast.keyword | ast.Starred):
        holder = place.module.parents.get(holder)
    name = flow.full_name(place.module, holder.func) if isinstance(holder, ast.Call) else None
    is_own = name is None or flow.project.holds(name, place.module.facts)
    return holder if isinstance(holder, ast.Call) and not is_own and not is_known(name or "") else None


def _is_call(module: ModuleUses, function: ast.Attribute) -> bool:
    """Whether a read of a method that enters a mesh is a call in which the mesh is seen."""
    call = module.call_at(function)
    if call is None or call.keywords:
        return False
    # Of a class it would be `ExitStack.enter_context(stack, mesh)`.
    return len(call.args) == (function.attr != "__enter__") and not any(
        isinstance(each, ast.Starred) for each in call.args
    )


class _TodaysContexts(MeshValues):
    """Takes what `compat.mesh_context(mesh)` and `jax.set_mesh(mesh)` give for what is entered, in place of meshes."""

    def is_mesh(self, module: ModuleUses, node: ast.expr, *, is_sure: bool = False) -> bool:
        """Whether an expression is such a call."""
        return isinstance(node, ast.Call) and self.flow.full_name(module, node.func) in _ENTERED

    def is_certain(self, module: ModuleUses, node: ast.expr) -> bool:
        """The same: what is entered is never called a mesh by its name alone."""
        return self.is_mesh(module, node)


def _find_contexts(module: ModuleUses, values: MeshValues) -> Iterator[MeshContext]:
    """Every place in a module where a mesh is put in context, or may be."""
    for node in module.nodes_of(ast.With, ast.FunctionDef, ast.ClassDef, ast.Call, ast.Assign):
        if isinstance(node, ast.With):
            for item in node.items:
                for mesh, is_sure in _meshes_of(module, item.context_expr, values):
                    if is_sure or not is_used_as_another(module, item, node.body):
                        is_alternative = mesh is not item.context_expr
                        body = tuple(node.body)
                        outlasts = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in run_now(body))
                        yield MeshContext(
                            module, WITH, mesh, node, body, item, is_alternative, is_sure, outlasts=outlasts
                        )
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                if values.is_mesh(module, decorator, is_sure=True):
                    yield MeshContext(module, DECORATOR, decorator, node, (node,))
        elif isinstance(node, ast.Call) and _takes_a_function(node) and values.is_certain(module, node.func):
            yield MeshContext(module, CALLED, node.func, module.statement_of(node), (node.args[0],))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from _entered_by_call(module, node, node.func, values)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            if target.attr == "env" and module.facts.names.resolve(target.value, module.scope_of(node)) in ENVIRONMENTS:
                outlasts = module.scope_of(node).kind != "module"
                yield MeshContext(module, ENVIRONMENT, node.value, node, rest_of(module, node), outlasts=outlasts)


def _entered_by_call(
    module: ModuleUses, call: ast.Call, function: ast.Attribute, values: MeshValues
) -> Iterator[MeshContext]:
    """The contexts of `stack.enter_context(mesh)`, `mesh.__enter__()` and `mesh.__exit__(...)`."""
    holder = module.statement_of(call)
    if function.attr == "enter_context" and len(call.args) == 1:
        for mesh, is_sure in _meshes_of(module, call.args[0], values):
            around = _with_of_stack(module, function.value)
            body = rest_of(module, holder) if around is None else (*around.body,)
            yield MeshContext(module, ENTERED, mesh, holder, body, is_sure=is_sure, outlasts=around is None)
    elif function.attr in ("__enter__", "__exit__") and not _is_super(function.value):
        is_mesh = values.is_mesh(module, function.value)
        if is_mesh is False:
            return
        if function.attr == "__exit__":
            yield MeshContext(module, LEFT, function.value, holder, (), is_sure=bool(is_mesh))
            return
        outlasts = module.scope_of(call).kind != "module"
        body = rest_of(module, holder)
        yield MeshContext(module, STATEMENT, function.value, holder, body, is_sure=bool(is_mesh), outlasts=outlasts)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _may_have_multimesh(module: ModuleUses) -> bool:
    return any(item.name.partition(".")[0] in _HAVE_MULTIMESH for item in module.imported if not _is_compat(item.name))


def _is_compat(name: str) -> bool:
    """Whether an import is one that `modernize` has written, which says nothing about a `MultiMesh`."""
    return name == "mmruntime.compat" or name.startswith("mmruntime.compat.")


def _meshes_of(module: ModuleUses, node: ast.expr, values: MeshValues) -> Iterator[tuple[ast.expr, bool]]:
    """The meshes that a context manager may be, such as `mesh` in `mesh if several else nullcontext()`.

    With each comes whether it certainly is one.
    """
    both = sides(node)
    for side in both:
        yield from _meshes_of(module, side, values)
    is_mesh = values.is_mesh(module, node) if not both else False
    if is_mesh is not False:
        yield node, bool(is_mesh)


def _with_of_stack(module: ModuleUses, stack: ast.expr) -> ast.With | None:
    """The `with ExitStack() as stack:` around the use of a stack, None where the stack may outlive its block."""
    if not isinstance(stack, ast.Name):
        return None
    for holder in module.above(stack):
        if isinstance(holder, ast.With) and any(
            isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == stack.id for item in holder.items
        ):
            return holder
        if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
    return None


def rest_of(module: ModuleUses, statement: ast.stmt) -> tuple[ast.stmt, ...]:
    """The statements that run after a statement in the function around it; all of them in a loop."""
    found: list[ast.stmt] = []
    node: ast.AST = statement
    for holder in module.above(statement):
        if isinstance(holder, ast.For | ast.AsyncFor | ast.While):
            found += holder.body
        for part in ("body", "orelse", "handlers", "finalbody"):
            block = getattr(holder, part, None)
            if isinstance(block, list) and node in block:
                found += block[block.index(node) + 1 :]
        if isinstance(holder, ast.Try):
            found += holder.finalbody
        if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            break
        node = holder
    return tuple(dict.fromkeys(found))


def run_now(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Everything that runs when `nodes` do: not the bodies of functions that they define."""
    queue = list(nodes)
    while queue:
        node = queue.pop(0)
        if isinstance(node, ast.Lambda):
            continue
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            queue += (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults))
        else:
            queue += ast.iter_child_nodes(node)


def _takes_a_function(call: ast.Call) -> bool:
    is_one = len(call.args) == 1 and not call.keywords
    return is_one and isinstance(call.args[0], ast.Name | ast.Attribute | ast.Lambda | ast.Call)
