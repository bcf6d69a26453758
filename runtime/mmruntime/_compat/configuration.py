"""JAX's settings, and which of them a step depends on."""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax._src import config, core

# The implementation of random keys. Of all settings that change a trace it alone is not in `jax.jit`'s own cache key,
# so that our dispatch has to compare it at every call. Reading it here is cheaper than
# `jax.config.jax_default_prng_impl`, which goes through Python.
default_prng_impl: Any = config.default_prng_impl
# Read with `.value`, as above: `jax.disable_jit()` runs functions without compiling them.
jit_disabled: Any = config.disable_jit
# The same: results are checked, which JAX does without having it in `jax.jit`'s key.
debug_nans: Any = config.debug_nans
debug_infs: Any = config.debug_infs
# JAX explains misses of its own caches, and no call of a step gets to them.
explain_cache_misses: Any = config.explain_cache_misses
# What a step that is compiled does not depend on: it is traced without a mesh in context, and outside of `jax.vmap`.
_NOT_OF_STEPS = ("mesh_context_manager", "abstract_mesh_context_manager", "axis_env_state")
# In `jax.jit`'s key alone, as they say how a program is compiled; or not even there, though they change a trace, or
# what is done with results. Not every version of JAX has all of them.
_FURTHER_SETTINGS = tuple(
    name
    for name in (
        "jax_debug_infs",
        "jax_debug_nans",
        "jax_default_prng_impl",
        "jax_legacy_prng_key",
        "jax_memory_fitting_level",
        "jax_optimization_level",
        "jax_pallas_auto_assign_collective_ids",
        "jax_pallas_auto_assign_collective_ids_limit",
    )
    if hasattr(jax.config, name)
)
_read_further = operator.attrgetter(*_FURTHER_SETTINGS)


@functools.cache
def _settings_of_steps(count: int) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """The names of those of JAX's settings and contexts that steps depend on, and what takes their values out.

    Args:
        count: How many there are; a module that is imported later may add some at the end.
    """
    try:
        names: list[str] = list(config.trace_context_names())[:count]
    except (AttributeError, NotImplementedError):
        # Before jaxlib 0.10.2.
        names = _tried_names(count)
    kept = [k for k, name in enumerate(names) if name not in _NOT_OF_STEPS and k not in _not_of_steps]
    return tuple([names[position] for position in kept]), operator.itemgetter(*kept)


def _tried_names(count: int) -> list[str]:
    """The names of the values in JAX's context, found by changing each setting; numbers where none changes one."""
    names = [str(position) for position in range(count)]
    for setting in (core.axis_env_state, *jax.config._value_holders.values(), *vars(config).values()):
        if isinstance(setting, type(core.axis_env_state)):
            mark = object()
            before = setting.swap_local(mark)
            values = config.trace_context()
            setting.set_local(before)
            names = [setting.name if value is mark else name for name, value in zip(names, values, strict=False)]
    return names


def settings() -> tuple[Any, ...]:
    """JAX's settings that a step depends on, as they are now: what JAX itself has in the keys of traces, and more.

    Contexts of users, which the switches are, are among them.
    """
    # Private: there is no public name for what `jax.jit` compares.
    values = config.trace_context()
    return *_settings_of_steps(len(values))[1](values), *_read_further(jax.config)


def setting_names() -> tuple[str, ...]:
    """The names of what `settings` gives."""
    return *_settings_of_steps(len(config.trace_context()))[0], *_FURTHER_SETTINGS


def settings_by_name() -> dict[str, Any]:
    """The values of `settings` by name, but for those that differ from process to process: contexts and devices."""
    plain = bool, int, float, str, enum.Enum, type(None)
    return {
        name: value
        for name, value in zip(setting_names(), settings(), strict=True)
        if name != "user_context" and isinstance(value, plain)
    }


def error_checks() -> list[str]:
    """The settings by which functions of `jax.numpy` keep an error for `jax.experimental.error_check`."""
    names = [f"jax_error_checking_behavior_{kind}" for kind in ("nan", "divide", "oob")]
    return [name for name in names if getattr(jax.config, name, "ignore") != "ignore"]


def invalid_kinds() -> tuple[str, ...]:
    """Which numbers no result may hold as `jax_debug_nans` and `jax_debug_infs` are now: "nan", "inf"."""
    return tuple([kind for kind, setting in (("nan", debug_nans), ("inf", debug_infs)) if setting.value])


@contextmanager
def without_result_checks() -> Iterator[None]:
    """A context of this thread in which JAX checks no results of programs."""
    # Not `jax.debug_nans(False)`: where the setting is one of the process, JAX checks nothing more once that has ended.
    from jax._src import api  # noqa: PLC0415  (private: the hook that its C++ dispatch calls)

    states: tuple[Any, ...] = (debug_nans, debug_infs, api._post_hook_state)
    before = [state.swap_local(value) for state, value in zip(states, (False, False, None), strict=True)]
    try:
        yield
    finally:
        for state, value in zip(states, before, strict=True):
            state.set_local(value)


# Positions, in what `config.trace_context()` gives, of contexts that steps do not depend on.
_not_of_steps: set[int] = set()


def user_context(default: Any, *, of_steps: bool = True) -> Any:
    """A context variable that is part of `jax.jit`'s cache key.

    Args:
        default: Its value outside of any context.
        of_steps: Whether it changes what a call of a step does, so that `settings` has it.
    """
    if not of_steps:
        # JAX adds new ones at the end.
        _not_of_steps.add(len(config.trace_context()))
    return jax.make_user_context(default)
