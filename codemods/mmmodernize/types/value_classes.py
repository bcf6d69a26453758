"""Of which class of JAX or its libraries a value is, where the source shows it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Scope

ARRAY, WRAPPED, PMAPPED = "jax.Array", "jax.stages.Wrapped", "jax.pmap"
_ARRAY_NAMES = frozenset((ARRAY, "jax.numpy.ndarray", "chex.Array", "jax.typing.ArrayLike"))
_MAKE_ARRAYS = ("jax.numpy.", "jax.random.", "jax.nn.", "jax.lax.")
# Functions of these modules whose result is no array.
_NO_ARRAYS = frozenset(
    (
        *(
            f"jax.numpy.{name}"
            for name in ("broadcast_shapes", "can_cast", "dtype", "finfo", "iinfo", "issubdtype", "ndim")
        ),
        *(
            f"jax.numpy.{name}"
            for name in ("shape", "size", "split", "array_split", "unique", "where", "nonzero", "save")
        ),
        *(
            f"jax.numpy.{name}"
            for name in ("hsplit", "vsplit", "dsplit", "meshgrid", "vectorize", "result_type", "load")
        ),
        *(f"jax.numpy.{name}" for name in ("promote_types", "printoptions", "frompyfunc", "unravel_index", "gradient")),
        *(f"jax.lax.{name}" for name in ("scan", "map", "cond", "switch", "while_loop", "fori_loop", "psum", "pmean")),
        *(f"jax.lax.{name}" for name in ("top_k", "all_gather", "ppermute", "associative_scan", "stop_gradient")),
    )
)
_OF_METHODS: Mapping[tuple[str, str], str] = {
    (WRAPPED, "lower"): "jax.stages.Lowered",
    (WRAPPED, "trace"): "jax.stages.Traced",
    (PMAPPED, "lower"): "jax.stages.Lowered",
    ("jax.stages.Traced", "lower"): "jax.stages.Lowered",
    ("jax.stages.Lowered", "compile"): "jax.stages.Compiled",
}
_OF_MEMBERS: Mapping[tuple[str, str], str] = {
    (ARRAY, name): ARRAY for name in ("T", "mT", "real", "imag", "device_buffer")
}
# What a call of such a value gives.
_OF_CALLS = {PMAPPED: "jax.pmap()"}
PMAP_RESULT = _OF_CALLS[PMAPPED]
_DEEPEST = 8


def class_of(module: ModuleUses, node: ast.expr, scope: Scope | None = None, depth: int = 0) -> str | None:
    """The full name of the class of an expression, None if the source does not show it.

    `jax.pmap` stands for the class of mapped functions, and `PMAP_RESULT` for that of what they return.
    """
    scope = scope or module.scope_of(node)
    if depth > _DEEPEST:
        return None
    if isinstance(node, ast.Name):
        return _of_name(module, node, scope, depth)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return _of_own_attribute(module, node, depth)
    if isinstance(node, ast.Attribute) and module.facts.names.resolve(node, scope) is None:
        owner = class_of(module, node.value, None, depth + 1)
        return _OF_MEMBERS.get((owner, node.attr)) if owner is not None else None
    if not isinstance(node, ast.Call):
        return None
    name = module.facts.names.resolve(node.func, scope)
    if name is not None:
        return _of_result(module, node, name)
    if isinstance(node.func, ast.Attribute):
        owner = class_of(module, node.func.value, None, depth + 1)
        return _OF_METHODS.get((owner, node.func.attr)) if owner is not None else None
    made = class_of(module, node.func, None, depth + 1)
    return _OF_CALLS.get(made) if made is not None else None


def gives_object(module: ModuleUses, call: ast.Call, package: str) -> bool:
    """Whether the first argument of a call is shown to be an object of a class of a package, or of one made here."""
    if not call.args:
        return False
    first = call.args[0]
    if isinstance(first, ast.Name) and first.id == "self":
        return True
    return (class_of(module, first) or "").startswith(f"{package}.") or _is_made_here(module, first)


def _is_made_here(module: ModuleUses, node: ast.expr) -> bool:
    """Whether a value is made by a class of the module."""
    if isinstance(node, ast.Name):
        binding = module.facts.names.binding(node.id, module.scope_of(node))
        node = binding.value if binding is not None and binding.value is not None else node
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    binding = module.facts.names.binding(node.func.id, module.scope_of(node.func))
    return binding is not None and isinstance(binding.node, ast.ClassDef)


def _of_result(module: ModuleUses, call: ast.Call, name: str) -> str | None:
    own = name.rpartition(".")[2]
    if name in ("jax.jit", "jax.experimental.pjit.pjit"):
        return WRAPPED
    if name == "jax.pmap":
        return PMAPPED
    if name.startswith(_MAKE_ARRAYS) and own[:1].islower() and name.count(".") == 2 and name not in _NO_ARRAYS:
        return ARRAY
    if own[:1].isupper() and name.partition(".")[0] in ("jax", "flax", "optax", "chex", "orbax"):
        return name
    made = class_of(module, call.func, None, 1) if isinstance(call.func, ast.Name) else None
    return _OF_CALLS.get(made) if made is not None else None


def _of_name(module: ModuleUses, node: ast.Name, scope: Scope, depth: int) -> str | None:
    """The class of what a name is bound to, if that is once."""
    binding = module.facts.names.binding(node.id, scope)
    if binding is None:
        return None
    if binding.value is not None:
        return class_of(module, binding.value, None, depth + 1)
    if isinstance(binding.node, ast.arg) and binding.node.annotation is not None:
        return _annotated(module, binding.node.annotation)
    if isinstance(binding.node, ast.FunctionDef):
        for decorator in binding.node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = module.facts.names.resolve(called, module.scope_of(binding.node))
            if name == "functools.partial" and isinstance(decorator, ast.Call) and decorator.args:
                name = module.facts.names.resolve(decorator.args[0], module.scope_of(binding.node))
            if name in ("jax.pmap", "jax.jit"):
                return PMAPPED if name == "jax.pmap" else WRAPPED
    return None


def _annotated(module: ModuleUses, annotation: ast.expr) -> str | None:
    if not isinstance(annotation, ast.Name | ast.Attribute):
        return None
    name = module.facts.names.resolve(annotation, module.scope_of(annotation))
    return ARRAY if name in _ARRAY_NAMES else name


def _of_own_attribute(module: ModuleUses, node: ast.Attribute, depth: int) -> str | None:
    """The class of `self.name`, if methods of the class assign it once."""
    owner = next((holder for holder in module.above(node) if isinstance(holder, ast.ClassDef)), None)
    if owner is None or (owner, node.attr) not in module.own_values:
        return None
    stores = [
        other
        for other in module.nodes_of(ast.Attribute)
        if other.attr == node.attr and not isinstance(other.ctx, ast.Load)
    ]
    if len(stores) != 1 or owner not in module.above(stores[0]):
        return None
    statement = module.parents[stores[0]]
    is_own = isinstance(stores[0].value, ast.Name) and stores[0].value.id == "self"
    if not is_own or not isinstance(statement, ast.Assign):
        return None
    return class_of(module, statement.value, None, depth + 1)
