"""The functions that compile a step, which options each takes, and which of them an expression may be."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.codemod.site import Site
from mmrewrite.source.functions import COMPILERS, JIT
from mmrewrite.source.names import Scope
from mmrewrite.values.flow import values_of
from mmrewrite.values.library import PARTIALS
from mmrewrite.values.value import CallArguments, Value

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
    flow = values_of(site.project)

    def bound(value: Value) -> list[Value]:
        """What a `partial` binds options of."""
        call = value.path[0].what if value.head in PARTIALS and len(value.path) == 1 else None
        if not isinstance(call, CallArguments) or len(call.positional) != 1:
            return []
        return [call.positional[0].value]

    found = flow.may(
        flow.value_in(site.facts, node), lambda value: value.outside if value.outside in COMPILERS else None, also=bound
    )
    if not found.answers:
        return None
    others = [each for each in found.others if not bound(each)]
    others += [each.value for each in found.unknown if each.value is not None and not each.is_open]
    if others:
        other = others[0]
        text = f"`{other.outside}`" if other.outside is not None else "something else"
        if isinstance(other.head, ast.expr):
            text = f"`{ast.unparse(other.head)}` (line {other.line})"
        site.refuse(
            f"`{site.text(node)}` may be {text}, which is none of `jax.jit`, `nnx.jit`, "
            "`eqx.filter_jit`, `eqx.filter_pmap` and `jax.pmap`; let every choice be one of them",
            node,
        )
    return Compiler(node, frozenset(found.answers), site.resolve(node, scope) == JIT)


def curried(site: Site, maker: ast.expr) -> Compiler | None:
    """The function that compiles of `jax.jit(option=1)` or `partial(jax.jit, option=1)`, which have no step yet."""
    if not isinstance(maker, ast.Call):
        return None
    is_partial = site.resolve(maker.func) == "functools.partial" and len(maker.args) == 1
    found = compiler(site, maker.args[0] if is_partial else maker.func)
    return found if found is not None and (is_partial or (found.is_curried and not maker.args)) else None


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
