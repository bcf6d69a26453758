"""Which convention a step is called in: that of the function in `like=`, with the options that this function takes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mmruntime import _check
from mmruntime._calling.convention import Convention
from mmruntime._calling.filter_jit import FilterJit
from mmruntime._calling.filter_pmap import FilterPmap
from mmruntime._calling.layouts import with_layouts
from mmruntime._calling.nnx_jit import NnxJit
from mmruntime._calling.pmap import MappedRows
from mmruntime._core.multimesh import MultiMesh

# How rows lie in arguments and results.
_OF_ROWS = ("axis_name", "in_axes", "out_axes", "axis_size")
# Functions that compile, by module and name, and their options besides those of every step. These are not imported
# here: a program that names one has imported it.
_KINDS = {
    ("jax", "jit"): ("in_shardings", "out_shardings"),
    ("flax.nnx", "jit"): (),
    ("equinox", "filter_jit"): ("donate",),
    ("equinox", "filter_pmap"): ("donate", *_OF_ROWS),
    ("jax", "pmap"): (*_OF_ROWS, "static_broadcasted_argnums"),
    ("mmruntime.compat", "pmap"): (*_OF_ROWS, "static_broadcasted_argnums"),
}
_OPTIONS = frozenset(option for options in _KINDS.values() for option in options)
# Options that change how XLA is called or how objects are looked through, but no value.
_WITHOUT_EFFECT = frozenset(("inline", "keep_unused", "graph", "graph_updates"))
_DONATES = ("all", "all-except-first", "warn", "warn-except-first", "none")


def kind_of(like: Any) -> tuple[tuple[str, str], dict[str, Any]]:
    """Module and name of the function that `like=` is, and the options in it if it is a `functools.partial`.

    Raises:
        TypeError: If it is none of those known.
    """
    options: dict[str, Any] = {}
    function = jax.jit if like is None else like
    while isinstance(function, functools.partial) and not function.args:
        options = {**function.keywords, **options}
        function = function.func
    for module, name in _KINDS:
        if function is getattr(sys.modules.get(module), name, None):
            return (module, name), options
    expected = (
        "jax.jit, nnx.jit, eqx.filter_jit, eqx.filter_pmap or jax.pmap, or a functools.partial of one with options"
    )
    raise _check.wrong("mjit", "like", expected, like)


def is_option(name: str) -> bool:
    """Whether some function that compiles takes an option of this name, besides those of every step."""
    return name in _OPTIONS


def merged(kind: tuple[str, str], given: dict[str, Any], inside: dict[str, Any]) -> dict[str, Any]:
    """The options of a step and those in the partial of `like=`.

    Raises:
        TypeError: If the function does not take an option, or an option is in both.
    """
    both = sorted(given.keys() & inside.keys())
    if both:
        raise TypeError(f"mjit: {', '.join(both)} is given, and is in the functools.partial of like= too.")
    options = {**inside, **given}
    common = {"donate_argnums", "donate_argnames", "static_argnums", "static_argnames", *_WITHOUT_EFFECT}
    name = ".".join(kind)
    for option, value in options.items():
        if option not in common and option not in _KINDS[kind]:
            if kind == ("flax.nnx", "jit") and option in ("in_shardings", "out_shardings"):
                if value is not None:
                    raise TypeError(
                        f"mjit: {option}= of nnx.jit is not supported: the tasks lay out the state of objects. Leave "
                        "it out, and name the axes of parameters where they are made, with nnx.with_partitioning."
                    )
                continue
            known = ", ".join((*sorted(common - _WITHOUT_EFFECT), *_KINDS[kind]))
            raise TypeError(f"mjit: {option}= is no option of a step like {name}; there are {known}.")
    return options


def convention_for(
    kind: tuple[str, str],
    fun: Callable[..., Any],
    mesh: MultiMesh,
    options: dict[str, Any],
    static: Sequence[int],
) -> Convention:
    """The convention of a step.

    Args:
        kind: From `kind_of`.
        fun: The function.
        mesh: The mesh of the step.
        options: From `merged`.
        static: Positions of static arguments.
    """
    of_rows = {name: options[name] for name in _OF_ROWS if name in options}
    match kind:
        case ("flax.nnx", "jit"):
            return NnxJit(fun)
        case ("equinox", "filter_jit"):
            return FilterJit(fun)
        case ("equinox", "filter_pmap"):
            return FilterPmap(fun, mesh, **of_rows)
        case (("jax" | "mmruntime.compat"), "pmap"):
            return MappedRows(fun, mesh, static=tuple(static), **of_rows)
        case ("jax", "jit"):
            ins, outs = options.get("in_shardings"), options.get("out_shardings")
            is_plain = ins is None and outs is None
            return Convention(fun if is_plain else with_layouts(fun, mesh, ins, outs, frozenset(static)))
    raise AssertionError(f"no convention for {'.'.join(kind)}")


def donated_positions(donate: Any, count: int | None, label: str) -> tuple[int, ...]:
    """The positions that `donate=` of Equinox means, of a function of `count` arguments.

    Raises:
        ValueError: If it is none of Equinox's words, or the number of arguments varies.
    """
    if donate not in _DONATES:
        raise ValueError(f"mjit: donate must be one of {', '.join(map(repr, _DONATES))}, got {_check.shown(donate)}.")
    if donate == "none":
        return ()
    if count is None:
        raise ValueError(
            f"mjit: donate={donate!r} needs a known number of arguments, and {label} takes *args. Write "
            "donate_argnums= with positions."
        )
    return tuple(range(1 if donate.endswith("except-first") else 0, count))
