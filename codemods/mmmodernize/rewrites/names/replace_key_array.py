"""Annotate keys and arrays with `jax.Array` instead of `jax.random.KeyArray` and `xla.DeviceArray`.

    def init(key: jax.random.KeyArray) -> xla.DeviceArray: ...
    Init = Callable[[jax.random.KeyArray, tuple], Array]
    ->  def init(key: jax.Array) -> jax.Array: ...
    ->  Init = Callable[[jax.Array, tuple], Array]

Keys are arrays like any other now, and all arrays are of one class, so `jax.Array` is exact in annotations, also in
strings, in `typing.cast`, `TypeVar` and their like, and for a name that is used for these alone, such as
`Key = jax.random.KeyArray`.

To check: nothing; annotations are not run.

Refused: other uses. Keys of `jax.random.PRNGKey` hold integers, those of `jax.random.key` have a dtype of their own, so
an `isinstance` test must say which keys it means; and a `DeviceArray` was no tracer.
See https://docs.jax.dev/en/latest/jep/9263-typed-keys.html
"""

from __future__ import annotations

import ast
from typing import ClassVar

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.names.name_index import old_names
from mmmodernize.sites.site import OldNameSite
from mmrewrite.project.uses import ModuleUses

_KEYS = ("jax.random.KeyArray", "jax.random.PRNGKeyArray")
_ARRAYS = (
    *("jax.xla.DeviceArray", "jax.interpreters.xla.DeviceArray", "jax.interpreters.pxla.ShardedDeviceArray"),
    *("jaxlib.xla_extension.DeviceArray", "jax.lib.xla_extension.DeviceArray", "jax.lib.xla_client.DeviceArray"),
)
_TESTS = ("isinstance", "issubclass", "assertIsInstance", "assertNotIsInstance")
# Functions that take types, and which of their arguments are types by position.
_TAKE_TYPES = {
    f"{home}.{name}": places
    for home in ("typing", "typing_extensions")
    for name, places in {
        "cast": slice(1),
        "NamedTuple": slice(1, 2),
        "NewType": slice(1, 2),
        "TypeAliasType": slice(1, 2),
        "TypedDict": slice(1, 2),
        "TypeVar": slice(1, None),
    }.items()
}
_GENERIC = ("typing.", "typing_extensions.", "collections.", "jaxtyping.")
_GENERIC_BUILTINS = frozenset(f"builtins.{name}" for name in ("dict", "frozenset", "list", "set", "tuple", "type"))
_DISPLAYS = (ast.Tuple, ast.List, ast.Dict)


class ReplaceKeyArray(ModernizeCodemod):
    """Replaces the name in annotations and in what is used for them."""

    names: ClassVar[tuple[str, ...]] = (*_KEYS, *_ARRAYS)

    def __init__(self, site: OldNameSite) -> None:
        super().__init__(site)
        # Aliases, each looked at once: one may stand in its own type, as in `Tree = Union[Key, List["Tree"]]`.
        self._aliases: set[ast.expr] = set()

    def rewrite(self) -> None:
        """Replace the name, or report the use."""
        name = self.use.name
        if not self._is_type(self.site.module, self.use.node):
            is_key, is_test = name in _KEYS, self._is_test()
            if is_key and is_test:
                what = "to tell typed keys, write `jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)`"
            elif is_test:
                what = "write `isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)`"
            else:
                what = f"annotate {'keys' if is_key else 'arrays'} with `jax.Array`"
            row = old_names().get(name)
            history = "is gone since JAX 0.4.24" if is_key else row.history if row else "is gone since JAX 0.4.11"
            self.refuse(f"`{name}` {history}; {what}")
        if self.use.is_direct:
            self.site.replace(self.use.node, self.site.spell("jax.Array"))

    def _is_type(self, module: ModuleUses, node: ast.expr) -> bool:
        """Whether an expression only says which type something has."""
        if module.in_annotation(node):
            return True
        is_inside, holder = False, module.parents.get(node)
        while isinstance(holder, ast.expr):
            if isinstance(holder, _DISPLAYS):
                is_inside = True
            elif isinstance(holder, ast.Subscript) and holder.slice is node and _is_generic(module, holder.value):
                is_inside = False
            elif is_inside or not (isinstance(holder, ast.BinOp) and isinstance(holder.op, ast.BitOr)):
                break
            node, holder = holder, module.parents.get(holder)
        name = holder.arg if isinstance(holder, ast.keyword) else None
        call = module.parents[holder] if isinstance(holder, ast.keyword) else holder
        if isinstance(call, ast.Call):
            taken = _TAKE_TYPES.get(module.full_name(call.func) or "")
            return taken is not None and (name in ("bound", "default", "typ") or node in call.args[taken])
        if is_inside:
            return False
        if isinstance(holder, ast.ClassDef):
            return isinstance(node, ast.Subscript) and node in holder.bases
        if isinstance(holder, ast.Assign) and holder.value is node and len(holder.targets) == 1:
            return self._is_alias_of_type(module, holder.targets[0])
        if isinstance(holder, ast.AnnAssign) and holder.value is node:
            return self._is_alias_of_type(module, holder.target)
        return False

    def _is_alias_of_type(self, module: ModuleUses, target: ast.expr) -> bool:
        """Whether a name of a module or a function is used as a type alone, wherever it is imported."""
        owner = module.scope_of(target).owner(target.id) if isinstance(target, ast.Name) else None
        if owner is None or not isinstance(target, ast.Name) or owner.kind not in ("module", "function"):
            return False
        if target in self._aliases:
            return True
        self._aliases.add(target)
        others = (
            self._uses_elsewhere(module, f"{module.facts.names.name}.{target.id}") if owner.kind == "module" else []
        )
        return all(
            self._is_type(*use) for use in [*((module, head) for head in module.heads_of(target.id, owner)), *others]
        )

    def _uses_elsewhere(self, module: ModuleUses, full: str) -> list[tuple[ModuleUses, ast.expr]]:
        return [
            (other, use.node)
            for other in self.site.context.modules.values()
            for use in (*other.uses((full,)), *other.uses(self.names))
            if other is not module and use.written in (full, None)
        ]

    def _is_test(self) -> bool:
        """Whether this is the class in an `isinstance` test."""
        node: ast.AST = self.use.node
        holder = self.site.module.parents.get(node)
        if isinstance(holder, ast.Tuple):
            holder = self.site.module.parents.get(holder)
        called = holder.func if isinstance(holder, ast.Call) else None
        return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)) in _TESTS


def _is_generic(module: ModuleUses, node: ast.expr) -> bool:
    """Whether a type is written by a subscript: of Python's own, or of a class or a type of the program."""
    scope = module.scope_of(node)
    name = module.facts.names.resolve(node, scope) or ""
    if name.startswith(_GENERIC) or name in _GENERIC_BUILTINS:
        return True
    binding = module.facts.names.binding(node.id, scope) if isinstance(node, ast.Name) else None
    if binding is None or binding.kind == "class":
        return binding is not None
    # `Pair = Tuple[T, T]`, and then `Pair[KeyArray]`.
    return isinstance(binding.value, ast.Subscript) and _is_generic(module, binding.value.value)
