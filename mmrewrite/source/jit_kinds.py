"""The functions that compile a step and that `mjit` replaces, one record for each."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from mmrewrite.source.calls import call_form
from mmrewrite.source.names import Module, Scope

_CARRIED = ("donate_argnums", "donate_argnames", "static_argnums", "static_argnames")
_MAPPED = ("axis_name", "in_axes", "out_axes", "axis_size")
_PMAP = (*_MAPPED, "static_broadcasted_argnums", "donate_argnums")


@dataclass(frozen=True)
class JitKind:
    """A function that compiles. `mmruntime._calling.choose` has what its callers pass and get.

    Attributes:
        shown: What people call it; empty of one that only `mmrewrite modernize` writes.
        options: Those that `mjit` takes of it.
        by_position: Parameters besides the function that may come by position.
        is_curried: Whether, called without a function, it gives one that takes it.
        has_rows: Whether its arrays have a row for each device.
    """

    shown: str
    options: tuple[str, ...] = _CARRIED
    by_position: tuple[str, ...] = ()
    is_curried: bool = False
    has_rows: bool = False


JIT = "jax.jit"
# By full name.
JIT_KINDS = {
    JIT: JitKind("jax.jit", (*_CARRIED, "in_shardings", "out_shardings"), is_curried=True),
    "flax.nnx.jit": JitKind("nnx.jit", is_curried=True),
    "equinox.filter_jit": JitKind("eqx.filter_jit", ("donate",), is_curried=True),
    "equinox.filter_pmap": JitKind("eqx.filter_pmap", (*_MAPPED, "donate"), is_curried=True, has_rows=True),
    "jax.pmap": JitKind("jax.pmap", _PMAP, by_position=("axis_name",), has_rows=True),
    "mmruntime.compat.pmap": JitKind("", _PMAP, by_position=("axis_name",), has_rows=True),
}


def is_jit_decorator(names: Module, decorator: ast.expr, scope: Scope) -> bool:
    """Whether a decorator compiles: `@jax.jit`, `@jax.jit(...)`, `@partial(jax.jit, ...)`, or another such function."""
    if names.resolve(decorator, scope) in JIT_KINDS:
        return True
    if not isinstance(decorator, ast.Call):
        return False
    form = call_form(names, decorator, scope)
    return not form.positional and names.resolve(form.function, scope) in JIT_KINDS


def compiled_in(call: ast.Call) -> ast.expr | None:
    """What a call of one of them compiles, by position or as `fun=`; None where it is given no function yet."""
    return next(iter((*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "fun"))), None)
