"""Calls with side effects on modules: an inner `jax.jit` would leak their tracers or lose their changes."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from mmruntime import _compat
from mmruntime._frontend.nnx_objects import has_stateful, is_stateful


def writes_state(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call may store tracers in `fun` itself or in its arguments.

    So does a Flax linen module that is being initialised or applied with mutable collections, every nnx object, and any
    call inside a Haiku transform, which holds random keys and state. Such calls are marked by a name scope instead of
    an inner `jax.jit`.
    """
    if _inside_haiku_transform():
        return True
    owner = _owner(fun)
    if _is_linen(owner):
        scope = owner.scope
        return scope is not None and bool(scope.root.mutable)
    return is_stateful(owner) or has_stateful((args, kwargs))


def reaches_state(fun: Any, *, eager: bool) -> bool:
    """Whether a function may store tracers in objects that are not its arguments.

    A function that a linen module calls may make parameters of that module and set up submodules, which store the
    arrays of their `setup`. A function that closes over nnx objects, or reads them as globals, may change them.

    Args:
        fun: The function.
        eager: Whether the call is outside of any trace. There a function that a linen module calls runs on its submesh
            unless parameters are being made, since its parameters may live nowhere else.
    """
    module = _compat.running_linen_module()
    if module is not None and module.scope is not None and not _is_linen(_owner(fun)):
        return not eager or bool(module.scope.root.mutable)
    return "flax.nnx" in sys.modules and any(map(_holds_stateful, _closed_over(fun, set())))


def _owner(fun: Any) -> Any:
    return getattr(fun, "__self__", fun)


def _is_linen(value: Any) -> bool:
    linen = sys.modules.get("flax.linen")
    return linen is not None and isinstance(value, linen.Module)


def _inside_haiku_transform() -> bool:
    haiku = sys.modules.get("haiku")
    if haiku is None:
        return False
    try:
        haiku.running_init()
    except ValueError:
        # Haiku has no public query for this; outside of any transform it raises.
        return False
    return True


def _holds_stateful(value: Any) -> bool:
    try:
        return has_stateful(value)
    except (TypeError, ValueError):
        # `jax.tree` sorts the keys of dictionaries, which fails for keys of mixed types.
        return False


def _closed_over(fun: Any, seen: set[int]) -> Iterator[Any]:
    """The closed-over and global values that a function uses, directly or through each other."""
    if id(fun) in seen:
        return
    seen.add(id(fun))
    values: list[Any] = [getattr(fun, "__wrapped__", None)]
    if isinstance(fun, functools.partial):
        values += [fun.func, *fun.args, *fun.keywords.values()]
    elif isinstance(fun, types.MethodType):
        values += [fun.__self__, fun.__func__]
    elif isinstance(fun, types.FunctionType):
        values += [fun.__globals__[name] for name in fun.__code__.co_names if name in fun.__globals__]
        for cell in fun.__closure__ or ():
            try:
                values.append(cell.cell_contents)
            except ValueError:
                # A closed-over name without a value yet.
                continue
    for value in values:
        if callable(value) and not is_stateful(value):
            yield from _closed_over(value, seen)
        elif value is not None:
            yield value
