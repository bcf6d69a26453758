"""The functions that compile a step, which options each takes, and which of them an expression may be."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.codemod.site import Site
from mmrewrite.source.functions import COMPILERS, JIT
from mmrewrite.source.names import Scope

_PARTIAL = "functools.partial"

CARRIED = ("donate_argnums", "donate_argnames", "static_argnums", "static_argnames")
_LAYOUTS = ("in_shardings", "out_shardings")
_MAPPED = ("axis_name", "in_axes", "out_axes", "axis_size", "static_broadcasted_argnums", "donate_argnums")

# The options that `mjit` takes of each.
_OPTIONS = {
    JIT: (*CARRIED, *_LAYOUTS),
    "flax.nnx.jit": CARRIED,
    "equinox.filter_jit": ("donate",),
    "equinox.filter_pmap": ("axis_name", "in_axes", "out_axes", "axis_size", "donate"),
    "jax.pmap": _MAPPED,
    "mmruntime.compat.pmap": _MAPPED,
}
# These change how XLA is called, or how objects are looked through, but no value.
_WITHOUT_EFFECT = ("inline", "keep_unused", "graph", "graph_updates")
# Parameters besides the function that may come by position.
_BY_POSITION = {"jax.pmap": ("axis_name",), "mmruntime.compat.pmap": ("axis_name",)}
# Those that, called without a function, give one that takes it.
_CURRIED = frozenset((JIT, "flax.nnx.jit", "equinox.filter_jit", "equinox.filter_pmap"))

# Aliases may form a circle.
_DEPTH = 6


@dataclass(frozen=True, eq=False)
class Compiler:
    """An expression for a function that compiles, such as `jax.jit`, `nnx.jit` or a name for one of several.

    Attributes:
        node: The expression.
        kinds: Full names of the functions that it may be.
        is_plain_jit: Whether it is `jax.jit`, without options of its own.
    """

    node: ast.expr
    kinds: frozenset[str]
    is_plain_jit: bool

    @property
    def is_curried(self) -> bool:
        """Whether `f(option=1)(step)` compiles, too."""
        return self.kinds <= _CURRIED

    def options(self) -> set[str]:
        """The options that `mjit` takes for it."""
        return {option for kind in self.kinds for option in _OPTIONS[kind]}

    def positional(self) -> tuple[str, ...]:
        """Names of parameters besides the function that may come by position."""
        (first, *others) = {_BY_POSITION.get(kind, ()) for kind in self.kinds}
        return first if not others else ()


def compiler(site: Site, node: ast.expr, scope: Scope | None = None) -> Compiler | None:
    """An expression as the function that compiles, None if it is another function.

    Refuses an expression that may be one of them or something else.
    """
    found = _kinds(site, node, scope or site.scope, _DEPTH)
    known = {kind for kind, _ in found if kind is not None}
    if not known:
        return None
    for kind, other in found:
        if kind is None:
            site.refuse(
                f"`{site.text(node)}` may be `{site.text(other)}` (line {other.lineno}), which is none of "
                "`jax.jit`, `nnx.jit`, `eqx.filter_jit`, `eqx.filter_pmap` and `jax.pmap`; let every choice be one of "
                "them",
                node,
            )
    return Compiler(node, frozenset(known), site.resolve(node, scope) == JIT)


def carried(site: Site, used: Compiler, keywords: Sequence[ast.keyword], place: ast.expr) -> dict[str, str]:
    """The options of a function that compiles as `mjit` takes them, as source text; refuses others with an effect."""
    name = site.text(used.node)
    found: dict[str, str] = {}
    if not used.is_plain_jit:
        found["like"] = name
    allowed = used.options()
    for keyword in keywords:
        option = keyword.arg
        if option is None:
            site.refuse(f"`**` hides the arguments of `{name}`; write them out", place)
        if option in _WITHOUT_EFFECT or (option in _LAYOUTS and _says_nothing(keyword.value)):
            continue
        if option in allowed:
            found[option] = site.text(keyword.value)
        elif option in _LAYOUTS:
            site.refuse(
                f"`{option}=` of `{name}` lays out arguments that are taken apart here; remove it, and write "
                "`shard(...)` hints where a layout matters",
                place,
            )
        else:
            site.refuse(
                f"`mjit` has no `{option}=`: the mesh says which devices, and each task is compiled alone; remove it",
                place,
            )
    return found


def _kinds(site: Site, node: ast.expr, scope: Scope, depth: int) -> list[tuple[str | None, ast.expr]]:
    """What an expression may be: full names of functions that compile, None for anything else; and where."""
    if depth == 0:
        return [(None, node)]
    resolved = site.resolve(node, scope)
    if resolved in COMPILERS:
        return [(resolved, node)]
    if isinstance(node, ast.Call) and site.resolve(node.func, scope) == _PARTIAL and len(node.args) == 1:
        return _kinds(site, node.args[0], scope, depth - 1)
    choices = list(_choices(node, scope))
    if not choices:
        return [(None, node)]
    return [found for choice, owner in choices for found in _kinds(site, choice, owner, depth - 1)]


def _choices(node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """The values that an expression may have, and the scope of each; none if they cannot be seen."""
    if isinstance(node, ast.IfExp):
        yield node.body, scope
        yield node.orelse, scope
    elif isinstance(node, ast.Subscript) and (table := _table(node.value, scope)) is not None:
        for value in table.values:
            yield value, scope
    elif isinstance(node, ast.Name) and (owner := scope.owner(node.id)) is not None:
        values = [binding.value for binding in owner.bindings[node.id]]
        seen = [value for value in values if value is not None]
        if len(seen) == len(values):
            yield from ((value, owner) for value in seen)


def _table(node: ast.expr, scope: Scope) -> ast.Dict | None:
    if isinstance(node, ast.Name) and (owner := scope.owner(node.id)) is not None:
        values = [binding.value for binding in owner.bindings[node.id]]
        return values[0] if len(values) == 1 and isinstance(values[0], ast.Dict) else None
    return node if isinstance(node, ast.Dict) else None


def _says_nothing(value: ast.expr) -> bool:
    """Whether a layout is `None` throughout."""
    if isinstance(value, ast.Tuple | ast.List):
        return all(_says_nothing(item) for item in value.elts)
    return isinstance(value, ast.Constant) and value.value is None


def names_in(decorators: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """Expressions in decorators that may name a function: the decorator, what it calls, and that call's arguments."""
    for decorator in decorators:
        yield decorator
        if isinstance(decorator, ast.Call):
            yield decorator.func
            yield from decorator.args
