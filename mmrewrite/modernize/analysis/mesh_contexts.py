"""The mesh contexts of a module: `with mesh:` in all its forms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mmrewrite.modernize.uses import ModuleUses
from mmrewrite.source.names import Binding, Scope, dotted_name

OLD_MESHES = {
    "jax.experimental.maps.Mesh": "jax.sharding.Mesh",
    "jax.experimental.maps.mesh": "jax.sharding.Mesh",
    "jax.interpreters.pxla.Mesh": "jax.sharding.Mesh",
    "jax.experimental.global_device_array.Mesh": "jax.sharding.Mesh",
    "jax.experimental.sharding.Mesh": "jax.sharding.Mesh",
    "jax._src.mesh.Mesh": "jax.sharding.Mesh",
}
MESHES = frozenset((*OLD_MESHES, "jax.sharding.Mesh", "jax.make_mesh", "jax.Mesh", "mmruntime.compat.make_mesh"))
ENVIRONMENTS = frozenset(
    f"{module}.thread_resources"
    for module in ("jax.experimental.maps", "jax.interpreters.pxla", "jax._src.mesh", "jax._src.maps")
)
RESOURCE_ENVS = frozenset(
    f"{module}.ResourceEnv" for module in ("jax.experimental.maps", "jax.interpreters.pxla", "jax._src.mesh")
)

_HAVE_MULTIMESH = frozenset(("mmruntime", "multimesh", "legate"))

WITH, ENTERED, DECORATOR, ENVIRONMENT = "with", "entered", "decorator", "environment"
# `mesh(function)`: a decorator that is called.
CALLED = "called"
# By hand: `mesh.__enter__()` and `mesh.__exit__(...)`.
STATEMENT, LEFT = "statement", "left"


@dataclass(frozen=True, eq=False)
class MeshContext:
    """One place where a mesh is put in context, or taken out of it by hand.

    `node` is the expression of the mesh, `holder` the statement that enters it, `item` its item in a `with`. `body` is
    the code that runs in the context, as far as it can be seen.
    """

    module: ModuleUses
    kind: str
    node: ast.expr
    holder: ast.stmt
    body: tuple[ast.AST, ...]
    item: ast.withitem | None = None
    is_conditional: bool = False

    @property
    def name(self) -> ast.Name | None:
        """The name that `as` gives the mesh."""
        target = self.item.optional_vars if self.item is not None else None
        return target if isinstance(target, ast.Name) else None


def find_contexts(module: ModuleUses) -> Iterator[MeshContext]:
    """Every place in a module where a mesh is put in context.

    A `MultiMesh` is still entered by `with mesh:`, so modules that may have one are left alone.
    """
    roots = {item.name.partition(".")[0] for item in module.imported if not _is_compat(item.name)}
    if roots & _HAVE_MULTIMESH or "jax" not in roots:
        return
    for node in module.nodes:
        if isinstance(node, ast.With):
            for item in node.items:
                for mesh in _meshes_of(module, item.context_expr):
                    conditional = mesh is not item.context_expr
                    yield MeshContext(module, WITH, mesh, node, tuple(node.body), item, conditional)
        elif isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if is_mesh(module, decorator):
                    yield MeshContext(module, DECORATOR, decorator, node, (node,))
        elif isinstance(node, ast.Call) and _takes_a_function(node) and _certainly_is_mesh(module, node.func):
            yield MeshContext(module, CALLED, node.func, module.statement_of(node), (node.args[0],))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            holder = module.statement_of(node)
            if node.func.attr == "enter_context" and len(node.args) == 1:
                for mesh in _meshes_of(module, node.args[0]):
                    yield MeshContext(module, ENTERED, mesh, holder, _rest_of(module, holder))
            elif node.func.attr == "__enter__" and is_mesh(module, node.func.value):
                yield MeshContext(module, STATEMENT, node.func.value, holder, _rest_of(module, holder))
            elif node.func.attr == "__exit__" and is_mesh(module, node.func.value):
                yield MeshContext(module, LEFT, node.func.value, holder, ())
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            if target.attr == "env" and _names(module, target.value) in ENVIRONMENTS:
                yield MeshContext(module, ENVIRONMENT, node.value, node, _rest_of(module, node))


def _is_compat(name: str) -> bool:
    """Whether an import is one that `modernize` has written, which says nothing about a `MultiMesh`."""
    return name == "mmruntime.compat" or name.startswith("mmruntime.compat.")


def _meshes_of(module: ModuleUses, node: ast.expr) -> Iterator[ast.expr]:
    """The meshes that a context manager may be, such as `mesh` in `mesh if several else nullcontext()`."""
    if isinstance(node, ast.IfExp):
        yield from _meshes_of(module, node.body)
        yield from _meshes_of(module, node.orelse)
    elif is_mesh(module, node):
        yield node


def _rest_of(module: ModuleUses, statement: ast.stmt) -> tuple[ast.stmt, ...]:
    """The statements below a statement in its block."""
    holder = module.parents[statement]
    for part in ("body", "orelse", "finalbody"):
        block = getattr(holder, part, None)
        if isinstance(block, list) and statement in block:
            return tuple(block[block.index(statement) + 1 :])
    return ()


def _names(module: ModuleUses, node: ast.expr) -> str | None:
    return module.facts.names.resolve(node, module.scope_of(node))


def is_mesh(module: ModuleUses, node: ast.expr) -> bool:
    """Whether an expression is a mesh: it makes one, or is a name that stands for one.

    A name without a value in view (a parameter, an attribute) counts if it ends with "mesh".
    """
    return _is_mesh(module, node, 0)


def _is_mesh(module: ModuleUses, node: ast.expr, depth: int) -> bool:
    if isinstance(node, ast.Call):
        return _names(module, node.func) in MESHES
    if isinstance(node, ast.BoolOp):
        return all(_is_mesh(module, value, depth) for value in node.values)
    if isinstance(node, ast.Attribute):
        dotted = dotted_name(node)
        found = module.facts.names.resolve(node, module.scope_of(node)) if dotted else None
        return _is_called_mesh(node.attr) and not (found or "").startswith(("jax.", "builtins."))
    if not isinstance(node, ast.Name) or depth > 4:
        return False
    scope = module.scope_of(node)
    owner = scope.owner(node.id)
    if owner is None:
        return False
    kinds = [_binding_is_mesh(module, binding, owner, depth) for binding in owner.bindings[node.id]]
    return True in kinds or (_is_called_mesh(node.id) and False not in kinds)


def _takes_a_function(call: ast.Call) -> bool:
    return len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)


def _certainly_is_mesh(module: ModuleUses, node: ast.expr) -> bool:
    """Whether an expression certainly is a mesh; a name like `make_mesh` proves nothing."""
    if isinstance(node, ast.Call):
        return _names(module, node.func) in MESHES
    if isinstance(node, ast.Attribute):
        values = _values_of_own(module, node)
        return bool(values) and all(value is not None and _certainly_is_mesh(module, value) for value in values)
    owner = module.scope_of(node).owner(node.id) if isinstance(node, ast.Name) else None
    bindings = owner.bindings[node.id] if owner is not None and isinstance(node, ast.Name) else []
    return bool(bindings) and all(
        isinstance(binding.value, ast.Call) and _names(module, binding.value.func) in MESHES for binding in bindings
    )


def _values_of_own(module: ModuleUses, node: ast.Attribute) -> list[ast.expr | None]:
    """The values that a class assigns to its attribute `self.name`; None for one that cannot be seen."""
    holder = next((holder for holder in module.above(node) if isinstance(holder, ast.ClassDef)), None)
    if holder is None or not isinstance(node.value, ast.Name) or node.value.id != "self":
        return []
    found: list[ast.expr | None] = []
    for other in ast.walk(holder):
        if isinstance(other, ast.Attribute) and isinstance(other.ctx, ast.Store) and other.attr == node.attr:
            statement = module.statement_of(other)
            is_plain = isinstance(statement, ast.Assign) and statement.targets == [other]
            found.append(statement.value if isinstance(statement, ast.Assign) and is_plain else None)
    return found


def _binding_is_mesh(module: ModuleUses, binding: Binding, scope: Scope, depth: int) -> bool | None:
    """Whether a binding is to a mesh; None if nothing shows."""
    if binding.kind == "import":
        found = module.facts.names.resolve_dotted(binding.name, scope) or ""
        return None if not found.startswith(("jax.", "numpy")) else False
    if binding.kind in ("function", "class"):
        return False
    value = binding.value
    if value is None:
        holder = binding.statement
        if isinstance(holder, ast.With):
            for item in holder.items:
                if item.optional_vars is binding.node:
                    return _is_mesh(module, item.context_expr, depth + 1) or None
        return None
    if isinstance(value, ast.Call):
        made = _names(module, value.func)
        if made in MESHES:
            return True
        return False if made is not None and made.startswith(("jax.", "numpy.", "builtins.", "contextlib.")) else None
    if isinstance(value, ast.Name | ast.Attribute):
        return _is_mesh(module, value, depth + 1) or None
    if isinstance(value, ast.Constant) and value.value is not None:
        return False
    return None


def _is_called_mesh(name: str) -> bool:
    return name.lower().strip("_").endswith("mesh")
