"""Which of the functions that compile an expression may be, and its options as `mjit` takes them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mmrewrite.codemod.site import Site
from mmrewrite.source.jit_kinds import JIT, JIT_KINDS
from mmrewrite.values.flow import values_of
from mmrewrite.values.value import Value

_LAYOUTS = ("in_shardings", "out_shardings")

# These change how XLA is called, or how objects are looked through, but no value.
_WITHOUT_EFFECT = ("inline", "keep_unused", "graph", "graph_updates")


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
        return all(JIT_KINDS[kind].is_curried for kind in self.kinds)

    def options(self) -> set[str]:
        """The options that `mjit` takes for it."""
        return {option for kind in self.kinds for option in JIT_KINDS[kind].options}

    def positional(self) -> tuple[str, ...]:
        """Names of parameters besides the function that may come by position."""
        (first, *others) = {JIT_KINDS[kind].by_position for kind in self.kinds}
        return first if not others else ()


def compiler(site: Site, node: ast.expr) -> Compiler | None:
    """An expression as the function that compiles, None if it is another function.

    Refuses an expression that may be one of them or something else.
    """
    flow = values_of(site.project)

    def bound(value: Value) -> list[Value]:
        """What a `partial` binds options of."""
        given = value.partial.positional if value.partial is not None else ()
        return [each.value for each in given] if len(given) == 1 else []

    found = flow.may(
        flow.value_in(site.facts, node), lambda value: value.outside if value.outside in JIT_KINDS else None, also=bound
    )
    if not found.answers:
        return None
    others = [each for each in found.others if not bound(each)]
    others += [each.value for each in found.unknown if each.value is not None and not each.is_open]
    if others:
        other, (*known, last) = others[0], (f"`{kind.shown}`" for kind in JIT_KINDS.values() if kind.shown)
        text = f"`{other.outside}`" if other.outside is not None else "something else"
        if isinstance(other.head, ast.expr):
            text = f"`{ast.unparse(other.head)}` (line {other.line})"
        site.refuse(
            f"`{site.text(node)}` may be {text}, which is none of {', '.join(known)} and {last}; let every choice be "
            "one of them",
            node,
        )
    return Compiler(node, frozenset(found.answers), site.resolve(node) == JIT)


def curried(site: Site, maker: ast.Call) -> tuple[Compiler, Sequence[ast.keyword]] | None:
    """What compiles in `jax.jit(option=1)` or `partial(jax.jit, option=1)`, which have no step yet; the options."""
    form = site.call_form(maker)
    found = compiler(site, form.function) if not form.positional else None
    return (found, form.keywords) if found is not None and (found.is_curried or not form.is_called) else None


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
