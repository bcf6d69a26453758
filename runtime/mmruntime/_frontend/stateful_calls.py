"""Which calls keep something of what they compute, so that an inner jit would leak its tracers or lose the change."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from mmruntime import _compat
from mmruntime._frontend.nnx_objects import has_stateful, is_stateful


def writes_state(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call stores tracers in `fun` itself or in its arguments, which an inner jit would leak or lose.

    A Flax linen module that is being initialised, or applied with mutable collections, and every nnx
    object do so; so does whatever runs inside a Haiku transform, which keeps its random keys and states
    there. They are marked by a name scope instead.
    """
    if _inside_haiku_transform():
        return True
    owner = _owner(fun)
    if _is_linen(owner):
        scope = owner.scope
        return scope is not None and bool(scope.root.mutable)
    return is_stateful(owner) or has_stateful((args, kwargs))


def reaches_state(fun: Any, *, eager: bool) -> bool:
    """Whether a function of the user's may store tracers in objects that it was not given.

    A function that a linen module calls may make parameters of that module, and set up others, which keep the arrays of
    their `setup`. So may a function that closes over nnx objects, or reads them from its module.

    Args:
        fun: What is called.
        eager: Whether the call is outside of every trace. There a function of a linen module runs on its submesh like
            any other, as its parameters may be nowhere else, unless they are being made.
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
        # What Haiku raises outside of every transform; it has no function that tells.
        return False
    return True


def _holds_stateful(value: Any) -> bool:
    try:
        return has_stateful(value)
    except (TypeError, ValueError):
        # A dictionary whose keys have no order is no tree.
        return False


def _closed_over(fun: Any, seen: set[int]) -> Iterator[Any]:
    """What a function reads besides its arguments, of the functions around it and of its module; and so do those."""
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
                # A name that has no value yet.
                continue
    for value in values:
        if callable(value) and not is_stateful(value):
            yield from _closed_over(value, seen)
        elif value is not None:
            yield value
