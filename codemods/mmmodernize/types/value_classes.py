"""The class of JAX or its libraries that a value has, where the source shows it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from mmmodernize.sites.site import ModernizeContext
from mmmodernize.types.array_functions import LAX_OF_TREES
from mmrewrite.project.uses import ModuleUses
from mmrewrite.values.annotations import Annotation, declared
from mmrewrite.values.value import Access, By, Path, Value

ARRAY, WRAPPED, PMAPPED = "jax.Array", "jax.stages.Wrapped", "jax.pmap"
ARRAY_NAMES = frozenset((ARRAY, "jax.numpy.ndarray", "chex.Array", "jax.typing.ArrayLike"))
_MAKE_ARRAYS = ("jax.numpy.", "jax.random.", "jax.nn.", "jax.lax.")
# Functions of these modules whose result is no array.
_NO_ARRAYS = LAX_OF_TREES | {
    "jax.lax.top_k",
    *(
        f"jax.numpy.{name}"
        for name in (
            *("array_split", "broadcast_shapes", "can_cast", "dsplit", "dtype", "finfo", "frompyfunc", "gradient"),
            *("hsplit", "iinfo", "issubdtype", "load", "meshgrid", "ndim", "nonzero", "printoptions"),
            *("promote_types", "result_type", "save", "shape", "size", "split", "unique", "unravel_index"),
            *("vectorize", "vsplit", "where"),
        )
    ),
}
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
_PACKAGES = frozenset(("jax", "flax", "optax", "chex", "orbax"))


class ValueClasses:
    """The classes of values, as codemods that edit by them need them: of all that a value may be, one class."""

    def __init__(self, context: ModernizeContext) -> None:
        self._flow = context.flow

    def of(self, module: ModuleUses, node: ast.expr) -> str | None:
        """The full name of the class of an expression, None if the source does not show it.

        `jax.pmap` stands for the class of mapped functions, and `PMAP_RESULT` for that of what they return.
        """
        return self.of_value(Value(module, node))

    def may_be_mapped(self, module: ModuleUses, node: ast.expr) -> bool:
        """Whether the source shows that an expression may be what `jax.pmap` returns, or an item of it."""
        return bool(self._flow.may(Value(module, node), _is_mapped).answers)

    def of_value(self, value: Value) -> str | None:
        """The full name of the class of a value."""
        return self._flow.must(value, self.class_of)

    def are_given(self, module: ModuleUses, call: ast.Call, package: str) -> bool:
        """Whether the first argument of a call is an object of a class of a package, or of the project."""
        if not call.args:
            return False
        first = call.args[0]
        if isinstance(first, ast.Name) and first.id == "self":
            return True
        is_made = self._flow.must(Value(module, first), lambda value: value.is_made or None)
        return bool(is_made) or (self.of(module, first) or "").startswith(f"{package}.")

    def class_of(self, value: Value) -> str | None:
        """The class of a value where it ends, or where an annotation says so."""
        head, path = value.head, value.path
        found = {_after(self._annotated(module, node), rest) for module, node, rest in self._declared(value)}
        if len(found) == 1 and None not in found:
            return found.pop()
        if not isinstance(head, str) or not path or path[0].kind is not By.CALL:
            return None
        own, rest = head.rpartition(".")[2], path[1:]
        if own[:1].isupper() and head.partition(".")[0] in _PACKAGES:
            # Whatever it holds comes to, as that of a `FrozenDict` does.
            return _after(head, rest)
        if self._flow.behind(value):
            return None
        if head in _JITS:
            if not path[0].what.positional and rest and rest[0].kind is By.CALL:
                # `jax.jit(static_argnums=0)(f)`
                rest = rest[1:]
            return _after(_JITS[head], rest)
        if head.startswith(_MAKE_ARRAYS) and own[:1].islower() and head.count(".") == 2 and head not in _NO_ARRAYS:
            return _after(ARRAY, rest)
        return None

    def _declared(self, value: Value) -> Iterator[Annotation]:
        """What annotations say of a value: of one that is followed, only that it is of one of these packages."""
        head = value.head
        if (
            isinstance(head, ast.Name)
            and value.module.facts.names.binding(head.id, value.module.scope_of(head)) is None
        ):
            return
        for found in declared(self._flow, value):
            name = self._flow.full_name(found.module, found.node) or ""
            if isinstance(head, ast.arg) or name.partition(".")[0] in _PACKAGES:
                yield found

    def _annotated(self, module: ModuleUses, annotation: ast.expr) -> str | None:
        name = self._flow.full_name(module, annotation)
        return ARRAY if name in ARRAY_NAMES else name


def _is_mapped(value: Value) -> bool | None:
    steps = [step.kind for step in value.path]
    is_result = value.head == PMAPPED and steps[:2] == [By.CALL, By.CALL]
    return (is_result and not {By.CALL, By.ATTRIBUTE}.intersection(steps[2:])) or None


_JITS = {"jax.jit": WRAPPED, "jax.experimental.pjit.pjit": WRAPPED, "jax.pmap": PMAPPED}


def _after(name: str | None, path: Path) -> str | None:
    """The class of what is made of an object of a class."""
    while path and name is not None:
        match path:
            case [Access(By.ATTRIBUTE, str(method)), Access(By.CALL), *rest] if (
                name,
                method,
            ) in _OF_METHODS:
                name = _OF_METHODS[name, method]
            case [Access(By.ATTRIBUTE, str(member)), *rest]:
                name = _OF_MEMBERS.get((name, member))
            case [Access(By.CALL), *rest]:
                name = _OF_CALLS.get(name)
            case _:
                return None
        path = tuple(rest)
    return name
