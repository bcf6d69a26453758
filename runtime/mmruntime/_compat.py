"""The only module that touches JAX's private parts or asks which JAX this is.

Everything here exists, under one of the spellings below, from JAX 0.10 to 0.12.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import inspect
import itertools
import logging
import math
import operator
import os
import pickle
import re
import sys
import threading
import traceback
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import config, core, effects, literals, sharding_impls, source_info_util, traceback_util
from jax._src import mesh as mesh_lib
from jax._src.core import (
    internal_mutable_array_effect,
    trace_state_clean,  # no public successor of `jax.core.trace_state_clean`
)
from jax._src.interpreters import pxla
from jax._src.state.types import AbstractRef, RefEffect
from jax.core import ShapedArray, Tracer
from jax.experimental import layout
from jax.extend import core as jex
from jax.extend.core import primitives
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

if TYPE_CHECKING:

    class Var:
        """A variable of a jaxpr; JAX's own class does not say that its abstract value has a shape."""

        aval: Any

else:
    Var = jex.Var
_VAR = jex.Var
Literal = jex.Literal
Jaxpr = jex.Jaxpr
ClosedJaxpr = jex.ClosedJaxpr
Primitive = jex.Primitive
# An operand of an equation: a variable or a literal.
Atom = Any

# Shardings of a program's arguments and results.
Borders = tuple[Sequence[NamedSharding], Sequence[NamedSharding]]

log = logging.getLogger("mmruntime")

F = TypeVar("F", bound=Callable[..., Any])

# Hide our own frames from JAX, so that messages, profiles and tracebacks show the user's lines.
source_info_util.register_exclusion(os.path.join(os.path.dirname(__file__), ""))
traceback_util.register_exclusion(os.path.join(os.path.dirname(__file__), ""))
# Where a step is called and traced, and where Python's own modules lie.
_STEP = os.path.join(os.path.dirname(__file__), "_step", "")
_PYTHON = (os.path.join(os.path.dirname(os.__file__), ""), "<frozen ")

jit_p = primitives.jit_p
scan_p = primitives.scan_p
cond_p = primitives.cond_p
remat_p = primitives.remat_p
# Parameters by which equations are named, differentiated and batched: in a program that is lowered, all that is done.
_UNREAD: Mapping[Any, tuple[str, ...]] = {
    jit_p: ("name",),
    remat_p: ("policy",),
    primitives.reduce_p: ("computation",),
}
LOWERED_IN_PART = frozenset([scan_p, *_UNREAD])
# What `jax.jit` has for an argument whose sharding nobody has given.
UNSPECIFIED: Any = sharding_impls.UNSPECIFIED  # type: ignore[attr-defined]
add_any_p = primitives.add_jaxvals_p
add_p = primitives.add_p
sub_p = primitives.sub_p


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
    names: list[str] = list(config.trace_context_names())[:count]
    kept = [k for k, name in enumerate(names) if name not in _NOT_OF_STEPS and k not in _not_of_steps]
    return tuple([names[position] for position in kept]), operator.itemgetter(*kept)


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
    """The same with their names, but for those that differ from process to process, such as contexts and devices."""
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


def reword_mixed_devices(reword: Callable[[str, str, list[frozenset[int]], bool], str]) -> None:
    """Have `reword` say what JAX's error about arrays on several sets of devices says.

    Args:
        reword: Takes JAX's message, the name of the function that got the arrays, the ids of each set of devices that
            has some, and whether the mesh in JAX's context has others.
    """
    from jax._src import stages  # noqa: PLC0415  (private: JAX has no hook for its messages)

    name = "_device_assignment_mismatch_error"
    worded = getattr(stages, name, None)
    if worded is None:
        return

    def message(*args: Any, **kwargs: Any) -> str:
        text: str = worded(*args, **kwargs)
        try:
            function, fails = args[:2]
            of_context = [fail.m_type.name == "CONTEXT_DEVICES" for fail in fails]
            devices = [frozenset(f.device_ids) for f, is_mesh in zip(fails, of_context, strict=True) if not is_mesh]
        except (AttributeError, TypeError, ValueError):
            # Another JAX calls it otherwise: its own words will do.
            return text
        return reword(text, f"`{function}`", devices, any(of_context))

    setattr(stages, name, message)


def reword_mixed_meshes(reword: Callable[[str, str, Sequence[AbstractMesh]], str]) -> None:
    """Have `reword` say what JAX's error about arrays of another mesh than that of its context says.

    Args:
        reword: Takes JAX's message, the name of the primitive, and the meshes of its arrays.
    """
    name = "check_avals_context_mesh"
    worded = getattr(core, name, None)
    if worded is None:
        return

    def check(avals: Any, primitive: Any, *args: Any, **kwargs: Any) -> None:
        try:
            worded(avals, primitive, *args, **kwargs)
        except ValueError as error:
            meshes = [each.sharding.mesh for each in avals if hasattr(each, "sharding")]
            text = reword(str(error), f"`{primitive}`", meshes)
            if text == str(error):
                raise
            raise ValueError(text) from None

    setattr(core, name, check)


def reword_fetches(reword: Callable[[str, frozenset[int]], str]) -> None:
    """Have `reword` say what JAX's error says where a process asks for values that lie in other processes.

    Args:
        reword: Takes JAX's message and the ids of the array's devices.
    """
    from jax._src.array import ArrayImpl  # noqa: PLC0415  (private: JAX has no hook for its messages)

    worded = getattr(ArrayImpl, "_value", None)
    if not isinstance(worded, property) or worded.fget is None:
        return
    get = worded.fget

    def value(array: Any) -> Any:
        try:
            return get(array)
        except RuntimeError as error:
            if "non-addressable" not in str(error):
                raise
            devices = frozenset(device.id for device in array.sharding.device_set)
            text = reword(str(error), devices)
            if text == str(error):
                raise
            raise RuntimeError(text) from None

    setattr(ArrayImpl, "_value", property(value))  # noqa: B010  (mypy knows the attribute as read-only)


def at_top_level() -> bool:
    """Whether no JAX transformation is tracing right now."""
    return bool(trace_state_clean())


def backends_started() -> bool:
    """Whether JAX has initialised its backends, after which the number of devices is fixed."""
    from jax._src import xla_bridge  # noqa: PLC0415  (private: asking a public function would start them)

    return bool(xla_bridge.backends_are_initialized())


def platform_started() -> str | None:
    """The platform that JAX runs on by default; None if it has not started.

    It does not wait, as the public functions do, for a thread that is starting it, which may wait for other processes.
    """
    from jax._src import xla_bridge  # noqa: PLC0415  (private: the public functions take a lock)

    backend = getattr(xla_bridge, "_default_backend", None)
    return None if backend is None else str(backend.platform)


class KeyValueClient(Protocol):
    """The part of JAX's distributed client that keeps texts for all processes. Its errors are `JaxRuntimeError`s."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Set a text; an error ("ALREADY_EXISTS") if there is one and it may not be overwritten."""

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """Wait for a text; an error ("DEADLINE_EXCEEDED") if it does not come in time."""
        ...

    def key_value_try_get(self, key: str) -> str:
        """A text; an error ("NOT_FOUND") if there is none."""
        ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """All keys that begin with `key`, and their texts."""
        ...

    def key_value_delete(self, key: str) -> None:
        """Forget a key, and all that begin with it and a slash."""

    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int, process_ids: Sequence[int] | None = None) -> None:
        """Wait until all processes have called it with this name."""


def key_value_client() -> KeyValueClient | None:
    """The client of `jax.distributed`; None if it was not initialised."""
    from jax._src.distributed import global_state  # noqa: PLC0415  (private: there is no public way to the store)

    client: KeyValueClient | None = global_state.client
    return client


def process_index_and_count() -> tuple[int, int]:
    """The index of this process and how many there are, without starting the backends as `jax.process_index` does."""
    from jax._src.distributed import global_state  # noqa: PLC0415  (private: see above)

    return (global_state.process_id, global_state.num_processes) if global_state.client is not None else (0, 1)


def coordinator_address() -> str | None:
    """The `host:port` of the coordinator; None if `jax.distributed` was not initialised."""
    from jax._src.distributed import global_state  # noqa: PLC0415  (private: it has no public name)

    address: str | None = global_state.coordinator_address
    return address


def let_gloo_listen_on(host: str) -> None:
    """Have gloo, JAX's collectives between CPUs of several processes, listen on an address of this host.

    By itself it takes the address that the host's name stands for, which on Debian is one of the loopback device. JAX
    has no setting for it. To be called before the backends are started; a JAX without these parts keeps its own choice.
    """
    try:
        # Private: `jax.extend.backend` has no public way to give arguments to a backend.
        from jax._src import distributed, xla_bridge  # noqa: PLC0415
        from jax._src.lib import _jax  # type: ignore[attr-defined]  # noqa: PLC0415

        make_collectives: Callable[..., Any] = _jax.make_gloo_tcp_collectives
        make_client: Callable[..., Any] = xla_bridge.make_cpu_client
        register: Callable[..., None] = xla_bridge.register_backend_factory
    except (ImportError, AttributeError) as error:
        log.debug("gloo listens where the host's name says: %s", error)
        return

    def client() -> Any:
        chosen: Any = jax.config
        joined = distributed.global_state.client
        if joined is None or chosen.jax_cpu_collectives_implementation != "gloo":
            return make_client()
        return make_client(make_collectives(distributed_client=joined, hostname=host))

    register("cpu", client, priority=0, fail_quietly=False)


def split(jaxpr: Any) -> tuple[Any, list[Any]]:
    """The open jaxpr and its constants. JAX 0.12 merged `Jaxpr` and `ClosedJaxpr`, which 0.10 has as two classes."""
    if hasattr(jaxpr, "consts"):
        return jaxpr.jaxpr, list(jaxpr.consts)
    return jaxpr, []


def is_var(atom: Atom) -> bool:
    """Whether an atom names a value (literals and dropped results do not)."""
    # Passes ask this half a million times for a step. The only subclass is that of dropped results.
    return type(atom) is _VAR


def new_var(aval: Any) -> Var:
    """A fresh variable of the given abstract value."""
    fresh: Any = jex.Var(aval)
    var: Var = fresh
    return var


def close(like: Any, invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]) -> Any:
    """A closed jaxpr without constants.

    Args:
        like: Any open jaxpr; the other fields are taken from it, as they differ between versions of JAX.
        invars: Its input variables.
        outvars: Its results.
        eqns: Its equations, in order.
    """
    every = frozenset[Any]().union(*[eqn.effects for eqn in eqns]) if eqns else frozenset[Any]()
    jaxpr = like.replace(
        constvars=[],
        invars=list(invars),
        outvars=list(outvars),
        eqns=list(eqns),
        effects=every,
    )
    return jex.ClosedJaxpr(jaxpr, [])


def with_consts(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """An open jaxpr closed over values for its constants."""
    return jex.ClosedJaxpr(jaxpr, list(consts))


def scan_counts(eqn: Any) -> tuple[int, int]:
    """How many constants and carried values a scan equation has. JAX 0.12 stores them as trees instead of counts."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()
    return len(consts), len(carry)


def lowered_params(eqn: Any) -> Mapping[str, Any]:
    """An equation's parameters as far as lowering reads them, for a primitive of `LOWERED_IN_PART`.

    Of the trees of a scan in JAX 0.12 it reads how many values each of their groups has: the operands are a flat list.
    """
    if eqn.primitive is scan_p:
        return {
            key: [len(group) for group in value.unpack()] if key in ("ft_in", "ft_out") else value
            for key, value in eqn.params.items()
        }
    unread = _UNREAD[eqn.primitive]
    return {key: value for key, value in eqn.params.items() if key not in unread}


def unread_params(eqn: Any) -> list[Any]:
    """The parameters of an equation that lowering does not read at all."""
    return [eqn.params[key] for key in _UNREAD.get(eqn.primitive, ()) if key in eqn.params]


def as_fun(closed: Any) -> Callable[..., list[Any]]:
    """The function that evaluates a closed jaxpr on flat arguments."""
    function: Callable[..., list[Any]] = jex.jaxpr_as_fun(closed)
    return function


def as_traced_fun(closed: Any) -> Callable[..., list[Any]]:
    """The same for arguments that are being traced: the equations are copied into the trace, not traced again."""
    jaxpr, consts = split(closed)
    if consts or not jaxpr.eqns:
        return as_fun(closed)
    # Private: `jax.jit` takes no jaxpr.
    like: Any = jax.jit(lambda: (), inline=True).trace()
    params = _for_more_inputs(like._params | {"jaxpr": closed}, len(jaxpr.invars))
    for name, default in (("out_shardings", UNSPECIFIED), ("out_layouts", None)):
        if name in params:
            params[name] = (default,) * len(jaxpr.outvars)

    def function(*args: Any) -> list[Any]:
        return jit_p.bind(*args, **params)  # type: ignore[no-any-return]

    return function


def call_of_trace(
    function: Callable[..., list[Any]], operands: Sequence[Any], exchange: Callable[[Any], tuple[Any, Sequence[Any]]]
) -> list[Any]:
    """What `jax.jit(function)(*operands)` is while tracing, with another jaxpr for that of the function.

    Args:
        function: A function of arrays.
        operands: Its arguments, one of them traced.
        exchange: Takes the function's closed jaxpr, whose first inputs are traced values that it captured, and gives
            one that computes the same, and what that takes at the end besides.
    """
    # Private: `jax.jit` takes no jaxpr, and a function that evaluates one would be traced, into a new one.
    traced: Any = jax.jit(function).trace(*operands)
    closed, further = exchange(traced.jaxpr)
    params = _for_more_inputs(traced._params | {"jaxpr": closed}, len(further))
    results: list[Any] = jit_p.bind(*traced._consts, *operands, *further, **params)
    return results


def is_well_typed(closed: Any) -> bool:
    """Whether each equation of a closed jaxpr gives what its operands and parameters make of it."""
    try:
        core.check_jaxpr(split(closed)[0])
    except Exception:
        # Whatever the rule of an operation raises for operands that it cannot take.
        return False
    return True


# Passes look through the parameters of all equations of a step some ten times, and a union is made anew each time.
_JAXPRS: Any = (jex.Jaxpr, jex.ClosedJaxpr)
_SEQUENCES = (tuple, list)


def is_jaxpr(value: Any) -> bool:
    """Whether an equation's parameter is a jaxpr, open or closed."""
    return isinstance(value, _JAXPRS)


def map_jaxprs(value: Any, function: Callable[[Any], Any]) -> Any:
    """An equation's parameter with `function` applied to the open jaxprs in it; the same object if none changes."""
    if is_jaxpr(value):
        inner, consts = split(value)
        changed = function(inner)
        if changed is inner:
            return value
        return jex.ClosedJaxpr(changed, consts) if hasattr(value, "consts") else changed
    if type(value) in _SEQUENCES:
        mapped = [map_jaxprs(item, function) for item in value]
        if all(new is old for new, old in zip(mapped, value, strict=True)):
            return value
        return type(value)(mapped)
    return value


def map_params(params: Mapping[str, Any], function: Callable[[Any], Any]) -> Mapping[str, Any]:
    """An equation's parameters with `function` applied to the open jaxprs in them; the same object if none changes."""
    changed: dict[str, Any] = {}
    for key, value in params.items():
        mapped = map_jaxprs(value, function)
        if mapped is not value:
            changed[key] = mapped
    return {**params, **changed} if changed else params


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The open jaxprs in an equation's parameters."""
    found: list[Any] = []
    for value in eqn.params.values():
        if isinstance(value, _SEQUENCES):
            found.extend([split(item)[0] for item in value if isinstance(item, _JAXPRS)])
        elif isinstance(value, _JAXPRS):
            found.append(split(value)[0])
    return found


def scopes(eqn: Any) -> list[tuple[str, bool]]:
    """The name stack of an equation, outermost first: (name, whether it is a transformation)."""
    return [(entry.name, type(entry).__name__ == "Transform") for entry in eqn.source_info.name_stack.stack]


def named_operations(eqns: Iterable[Any], around: Any = None) -> Iterator[tuple[str, Any]]:
    """Equations, at any depth, each behind the name that XLA has for its operations: its scopes and its primitive."""
    around = source_info_util.new_name_stack() if around is None else around
    for eqn in eqns:
        scopes = around + eqn.source_info.name_stack
        yield "/".join(filter(None, (str(scopes), eqn.primitive.name))), eqn
        within = scopes.extend(f"jit({eqn.params['name']})") if eqn.primitive is jit_p else scopes
        for inner in inner_jaxprs(eqn):
            yield from named_operations(inner.eqns, within)


def current_scopes() -> list[tuple[str, bool]]:
    """The current name stack of the trace, outermost first: (name, whether it is a transformation)."""
    stack = source_info_util.current_name_stack().stack
    return [(entry.name, type(entry).__name__ == "Transform") for entry in stack]


def source_lines(eqn: Any) -> str:
    """The user's line that made an equation, as `file:line (function)`; empty if there is none."""
    return str(source_info_util.summarize(eqn.source_info))


def source_lines_outside_packages(eqn: Any) -> str:
    """As `source_lines`, followed by the line of the user's own code where that is inside of an installed package."""
    lines = source_lines(eqn)
    frames = list(source_info_util.user_frames(eqn.source_info.traceback))
    own = next((each for each in frames if "site-packages" not in each.file_name), None)
    if own is None or not frames or own is frames[0]:
        return lines
    return f"{lines}, called at {own.file_name}:{own.start_line} ({own.function_name})"


def own_line(eqn: Any) -> str:
    """The line of the user's own code that led to an equation, as `file:line`; empty if there is none.

    It is one of the step: what calls that has led to all of its equations.
    """
    code, instructions = eqn.source_info.traceback.raw_frames() if eqn.source_info.traceback else ([], [])
    for each, instruction in zip(code, instructions, strict=True):
        name = each.co_filename
        if name.startswith(_STEP):
            break
        if source_info_util.is_user_filename(name) and not is_of_a_library(name) and not name.startswith(_PYTHON):
            return f"{name}:{source_info_util.raw_frame_to_frame(each, instruction).start_line}"
    return ""


def innermost_line(eqn: Any) -> str:
    """The line that made an equation, be it of an installed library, as `file:line`; empty if it is not known."""
    frame = next(iter(source_info_util.user_frames(eqn.source_info.traceback)), None)
    return "" if frame is None else f"{frame.file_name}:{frame.start_line}"


def own_frames(eqn: Any) -> tuple[tuple[str, int, int], ...]:
    """Files, lines and columns of the calls that led to an equation, outside of JAX.

    An equation of a derivative has those of the equation that it is the derivative of.
    """
    frames = source_info_util.user_frames(eqn.source_info.traceback)
    return tuple((each.file_name, each.start_line, each.start_column) for each in frames)


def ordered_effects(eqn: Any) -> frozenset[Any]:
    """The effects of an equation that JAX keeps in program order, such as those of `io_callback(ordered=True)`."""
    return frozenset(effect for effect in eqn.effects if effects.ordered_effects.contains(effect))


def one_device_only(effect: Any) -> bool:
    """Whether JAX refuses to compile an ordered effect for several devices, as that of `debug.print(ordered=True)`."""
    return not effects.shardable_ordered_effects.contains(effect)


def is_ref(atom: Atom) -> bool:
    """Whether an atom is a mutable array (`jax.new_ref`)."""
    return isinstance(atom.aval, AbstractRef)


def has_refs(jaxpr: Any) -> bool:
    """Whether an open jaxpr makes, reads or writes a mutable array, at any depth."""
    return any(isinstance(effect, RefEffect) or effect is internal_mutable_array_effect for effect in jaxpr.effects)


def without_ref_effects(found: Iterable[Any]) -> frozenset[Any]:
    """Effects without the one that stands for mutable arrays made inside."""
    return frozenset(effect for effect in found if effect is not internal_mutable_array_effect)


def discharge_refs(closed: Any) -> Any:
    """A closed jaxpr whose mutable arrays are values, which its equations hand on to each other.

    It is what JAX itself does before it lowers a program with such arrays. None of them may be an input or a constant.
    """
    from jax._src.state import discharge  # noqa: PLC0415  (private: JAX has no public function for it)

    return discharge.discharge_state(closed)


def raised_at(error: BaseException) -> str:
    """Where the user's own program raised an error, as `file:line (function)`; empty if that is not known.

    Chosen as `user_line` does.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)[::-1]
        if source_info_util.is_user_filename(frame.filename)
    ]
    found = next((frame for frame in frames if not is_of_a_library(frame.filename)), frames[0] if frames else None)
    return "" if found is None else f"{found.filename}:{found.lineno} ({found.name})"


def api_boundary(function: F) -> F:
    """A public function whose errors leave out the frames of JAX and of this library, as those of JAX's own do."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            leave_out_frames(error)
            raise

    return cast(F, call)


def leave_out_frames(error: BaseException) -> None:
    """Leave the frames of JAX and of this library out of an error, as `jax_traceback_filtering` says.

    What calls it raises the error again, by a bare `raise`, which adds no frame.
    """
    # Private: JAX offers neither its filter, nor what "auto" means here, to others.
    mode = traceback_util._filtering_mode()
    if mode == "off" or traceback_util._is_under_reraiser(error):
        return
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    for link in links:
        if mode == "tracebackhide":
            traceback_util._add_tracebackhide_to_hidden_frames(link.__traceback__)
        elif link.__traceback__ is not None:
            link.__traceback__ = traceback_util.filter_traceback(link.__traceback__)
    note = f"--------------------\n{traceback_util._simplified_tb_msg}"
    if mode != "tracebackhide":
        # JAX's own functions inside have said it before what is said of the error since.
        notes = getattr(error, "__notes__", [])
        if note in notes:
            notes.remove(note)
        error.add_note(note)


def name_trace(function: Any, what: str, label: str, code: types.CodeType | None, arguments: Sequence[str]) -> None:
    """Have JAX, where it traces a function of ours, speak of another one and of its arguments.

    Args:
        function: Ours, of flat arguments.
        what: What it is traced for.
        label: The other one's name.
        code: Its code, if it has any.
        arguments: What to call each argument of `function`.
    """
    where = f" at {code.co_filename}:{code.co_firstlineno}" if code is not None else ""
    # Private: `jax.jit` reads both from the function that it is given, whose own arguments are none of the user's.
    info = core.DebugInfo(what, f"{label}{where}", tuple(arguments), core.initial_result_paths)
    function.__fun_debug_info__ = info


def user_line(eqn: Any) -> str:
    """Where the user's own program calls an equation, as `file:line (function)`; empty if that is not known.

    Of the frames outside of JAX, the innermost that is in no installed library; without one, the innermost.
    """
    return _user_line(eqn.source_info)


def _user_line(info: Any) -> str:
    frames = list(source_info_util.user_frames(info.traceback))
    found = next((frame for frame in frames if not is_of_a_library(frame.file_name)), None)
    if found is None and not frames:
        return ""
    found = found or frames[0]
    return f"{found.file_name}:{found.start_line} ({found.function_name})"


# Where the functions are that people call, by the folder or file of JAX's that they are made in.
_PUBLIC: Mapping[str, tuple[str, ...]] = {
    "numpy": ("jnp", "jnp.linalg", "jnp.fft"),
    "lax": ("jax.lax", "jax.lax.linalg"),
    "nn": ("jax.nn",),
    "ops": ("jax.nn", "jax.ops"),
    "random": ("jax.random",),
    "random.py": ("jax.random",),
    "scipy": ("jax.scipy.special", "jax.scipy.linalg", "jax.scipy.stats", "jax.scipy.signal"),
}


def called_function(eqn: Any) -> str:
    """The public function of JAX whose call in the program of somebody else made an equation, such as `jnp.std`.

    Empty for operators, and where it is not known.
    """
    frames = eqn.source_info.traceback.frames if eqn.source_info.traceback is not None else []
    inner = list(itertools.takewhile(lambda frame: not source_info_util.is_user_filename(frame.file_name), frames))
    if len(inner) == len(frames):
        return ""
    private = os.path.join(os.path.dirname(jax.__file__), "_src", "")
    calls = [
        (frame.file_name.removeprefix(private).split(os.sep)[0], frame.function_name.rpartition(".")[2])
        for frame in reversed(inner)
    ]
    if eqn.primitive is jit_p:
        # A function of theirs that is compiled has no frame of its own.
        calls += [(place, eqn.params["name"]) for place in _PUBLIC]
    for place, name in calls:
        if name.startswith("_operator_") or name == "_getitem":
            return ""
        for module in _PUBLIC.get(place, ()):
            # A method, as of `x.std()`, is the function with an underscore.
            found = functools.reduce(
                lambda at, part: getattr(at, part, None), module.split(".")[1:], _ROOTS[module[:3]]
            )
            if callable(getattr(found, name.lstrip("_"), None)):
                return f"{module}.{name.lstrip('_')}"
    return ""


_ROOTS: Mapping[str, Any] = {"jnp": jnp, "jax": jax}


def is_of_a_library(file_name: str) -> bool:
    """Whether a file is of an installed package, by where it lies."""
    return any(f"{os.sep}{folder}{os.sep}" in file_name for folder in ("site-packages", "dist-packages"))


def of_type(value: Any, aval: Any) -> Any:
    """A value as an array of the type of an abstract value, weak or not."""
    from jax._src.lax import lax  # noqa: PLC0415  (private: the public function makes the type a strong one)

    return lax._convert_element_type(value, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False)))


def acts(eqn: Any) -> bool:
    """Whether an equation does more than compute its results; naming a mesh axis is an effect to JAX alone."""
    return any(not isinstance(effect, core.NamedAxisEffect) for effect in eqn.effects)


def is_tracer(value: Any) -> bool:
    """Whether a value is only known while tracing."""
    return isinstance(value, Tracer)


def made_at(tracer: Any) -> str:
    """Where a value that is only known while tracing was made, as of `user_line`."""
    info = getattr(tracer, "_line_info", None)
    return "" if info is None else _user_line(info)


def running_linen_module() -> Any:
    """The Flax linen module whose method is running, None outside of any.

    Flax has no public query for it; its own `flax.linen.partitioning` reads the same private stack.
    """
    linen = sys.modules.get("flax.linen.module")
    return None if linen is None else linen._context.module_stack[-1]


def ambient_mesh() -> jax.sharding.Mesh:
    """The mesh of `jax.set_mesh`, or an empty one; works while tracing, too."""
    from jax._src import mesh  # noqa: PLC0415  (private: `jax.sharding.get_mesh` raises while tracing)

    found: jax.sharding.Mesh = mesh.get_concrete_mesh()
    return found


def resource_mesh() -> jax.sharding.Mesh:
    """The mesh of a `with mesh:` block, or an empty one."""
    from jax._src import mesh  # noqa: PLC0415  (private: no public way to ask for it)

    found: jax.sharding.Mesh = mesh.thread_resources.env.physical_mesh
    return found


def mesh_in_context() -> Any:
    """The mesh that a `PartitionSpec` is for, of `jax.set_mesh` or of a `with mesh:` block; or an empty one."""
    abstract = jax.sharding.get_abstract_mesh()
    return resource_mesh() if abstract.empty else abstract


@contextmanager
def as_resource(mesh: jax.sharding.Mesh) -> Iterator[None]:
    """Do what `with mesh:` does in this thread, without its deprecation warning.

    `warnings.catch_warnings` would be no help: it changes the filters of all threads.
    """
    from jax._src import config  # noqa: PLC0415  (private: the public `Mesh.__enter__` warns)
    from jax._src.mesh import thread_resources  # noqa: PLC0415

    def publish() -> None:
        thread_resources.env = thread_resources.stack[-1]
        meshes = (env.physical_mesh for env in thread_resources.stack)
        config.mesh_context_manager.set_local(tuple(mesh for mesh in meshes if not mesh.empty))

    thread_resources.stack.append(thread_resources.stack[-1].with_mesh(mesh))
    publish()
    try:
        yield
    finally:
        thread_resources.stack.pop()
        publish()


@contextmanager
def compiled_for(mesh: jax.sharding.Mesh) -> Iterator[None]:
    """A context in which `jax.jit` runs on a mesh, whatever devices its arguments are on.

    As `jax.set_mesh`, which raises an error while tracing.
    """
    from jax._src.sharding_impls import _internal_use_concrete_mesh  # noqa: PLC0415  (private: `set_mesh` raises)

    with _internal_use_concrete_mesh(mesh), jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield


def no_mesh_while_tracing() -> AbstractContextManager[None]:
    """A context without an ambient mesh, as `no_mesh`, whose `jax.set_mesh` raises an error while tracing."""
    from jax._src.mesh import empty_concrete_mesh  # noqa: PLC0415  (private: no public one)

    return compiled_for(empty_concrete_mesh)


def global_array(shape: Sequence[int], dtype: Any, sharding: Any, shards: Sequence[Any], *, weak: bool = False) -> Any:
    """A global array of the shards that this process holds; there may be none.

    Args:
        shape: Its shape.
        dtype: Its type.
        sharding: Its layout.
        shards: One for each device of this process, in the order of the layout's devices.
        weak: Whether the type is a weak one.
    """
    if not weak:
        return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(shards), dtype=dtype)
    from jax._src.array import ArrayImpl  # noqa: PLC0415  (private: the public function makes the type a strong one)

    return ArrayImpl(ShapedArray(tuple(shape), dtype, weak_type=True), sharding, list(shards), committed=True)


def assembler(shape: Sequence[int], dtype: Any, sharding: Any, *, weak: bool = False) -> Callable[[Sequence[Any]], Any]:
    """`global_array` for many arrays of one kind: a function of the shards, which checks those of the first array only.

    Args:
        shape: The shape of the arrays.
        dtype: Their type.
        sharding: Their layout.
        weak: Whether the type is a weak one.
    """
    from jax._src.array import ArrayImpl  # noqa: PLC0415  (private: the public function checks every array)

    avals: list[Any] = []

    def assemble(shards: Sequence[Any]) -> Any:
        if avals:
            return ArrayImpl(avals[0], sharding, list(shards), committed=True, _skip_checks=True)
        array = global_array(shape, dtype, sharding, shards, weak=weak)
        # Arrays of PRNG keys are of another class.
        if type(array) is ArrayImpl:
            avals.append(array.aval)
        return array

    return assemble


def host_placer(shape: Sequence[int], dtype: Any, sharding: Any, *, weak: bool = False) -> Callable[[Any], Any] | None:
    """A function that lays out values of the host, each process its own shards; it checks and compares nothing.

    `jax.device_put` to devices of other processes compares the value among all processes, and costs several times as
    much on those of this one.

    Args:
        shape: The shape of the values.
        dtype: Their type; none of PRNG keys.
        sharding: Their layout, on some device of this process.
        weak: Whether the type is a weak one.

    Returns:
        The function, of a NumPy array of this shape and type; None if this JAX does not have the parts for it.
    """
    try:
        from jax._src.lib import xla_client  # type: ignore[attr-defined]  # noqa: PLC0415

        put: Any = xla_client.batched_device_put
        devices = list(sharding._internal_device_list.addressable_device_list)
        explicit: Any = config.explicit_device_put_scope
    except (ImportError, AttributeError):
        return None
    indices = sharding.devices_indices_map(tuple(shape))
    boxes = [indices[device] for device in devices]
    aval = jax.typeof(jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding, weak_type=weak))

    def place(value: Any) -> Any:
        with explicit():
            return put(aval, sharding, [value[box] for box in boxes], devices, True)

    return place


def own_shards(array: Any) -> Sequence[Any]:
    """The shards of an array in this process, in the order of its layout's devices, as arrays of one device each.

    The public `addressable_shards` makes an object for each, with its index in the array, at every access.
    """
    shards: Sequence[Any] | None = getattr(array, "_arrays", None)
    return [shard.data for shard in array.addressable_shards] if shards is None else shards


def copier(
    shardings: Sequence[Any], *, keys: bool = False, twins: bool = False
) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that copies arrays, each shard to the device in its place of another layout. It waits for no value.

    It does what `jax.device_put` does in the end, without the checks before it, which cost several times as much.

    Args:
        shardings: The layout of each copy, which cuts it as that of the array does; all of devices of this process.
        keys: Whether there may be arrays of PRNG keys among them, which `jax.device_put` alone takes.
        twins: Whether a copy is an array of its own also on the device that the array is on. Else that is given back.

    Returns:
        The function. It takes as many arrays.
    """
    layouts = list(shardings)

    def checked(arrays: Sequence[Any]) -> list[Any]:
        return jax.device_put(list(arrays), layouts, may_alias=not twins)  # type: ignore[no-any-return]

    if keys:
        return checked
    try:
        # Private: only `jax.device_put` is public.
        from jax._src.lib import xla_client  # type: ignore[attr-defined]  # noqa: PLC0415

        devices = [layout._internal_device_list.addressable_device_list for layout in layouts]
        kinds = xla_client.ArrayCopySemantics
        semantics = [kinds.ALWAYS_COPY if twins else kinds.REUSE_INPUT] * len(layouts)
        copy: Any = xla_client.batched_copy_array_to_devices_with_sharding
        explicit: Any = config.explicit_device_put_scope
    except (ImportError, AttributeError):
        return checked

    def copies(arrays: Sequence[Any]) -> list[Any]:
        for array in arrays:
            # XLA would read freed memory; `jax.device_put` says that the array was deleted.
            if array.is_deleted():
                return checked(arrays)
        # `jax.transfer_guard` lets through what was asked for.
        with explicit():
            return copy(arrays, devices, layouts, semantics)  # type: ignore[no-any-return]

    return copies


def offerer(server: Any) -> Callable[[int, Sequence[Any]], Any]:
    """`await_pull` of a transfer server for lists of arrays, which need not be flattened as trees."""
    offer: Callable[[int, Sequence[Any]], Any] = getattr(server, "_await_pull_flat", server.await_pull)
    return offer


def puller(connection: Any, structs: list[Any], client: Any) -> Callable[[int], list[Any]]:
    """`pull` of a connection to a transfer server for one list of structs, which need not be flattened for each call.

    Args:
        connection: The connection.
        structs: Shape, type and layout of each array.
        client: The client of the devices in the layouts.

    Returns:
        The function, of the number of the message.
    """
    pull = getattr(connection, "_pull_flat", None)
    if pull is None:
        return lambda number: connection.pull(number, structs)
    return lambda number: pull(number, client, structs)


def key_name(dtype: Any) -> str:
    """What a type of PRNG keys is called in `jax.random.wrap_key_data`."""
    name: str = dtype._impl.name
    return name


def key_shape(dtype: Any) -> tuple[int, ...]:
    """The shape of the data of one PRNG key of a type."""
    shape: tuple[int, ...] = dtype._impl.key_shape
    return tuple(shape)


def no_mesh() -> AbstractContextManager[Any]:
    """A context without an ambient mesh: under one, JAX refuses to compile for devices outside of it."""
    return jax.set_mesh(None)


def dispatcher(
    name: str,
    run: Callable[..., tuple[Any, Any]],
    static: Sequence[int],
    static_names: Sequence[str],
) -> Callable[..., Any] | None:
    """A function whose repeated calls run in C++, without any Python, like those of a function of `jax.jit`.

    A call is repeated if all of `jax.jit`'s cache key is equal: trees, shapes, types, weak types, shardings, static
    arguments, settings, contexts, and the transformation that is tracing.

    Args:
        name: The name in profiles.
        run: Called with the arguments of a call with a new key. Returns its result, and the `shortcut` that runs
            repeated calls from then on, or None if they shall come to `run` again.
        static: Positions of the static arguments.
        static_names: Names of the static keyword arguments.

    Returns:
        The function; None if this JAX does not have the parts for it.
    """
    try:
        # Private: what `jax.jit` itself is made of; it has no public hook for programs that were compiled ahead.
        from jax._src import tree_util  # noqa: PLC0415
        from jax._src.lib import _jax  # type: ignore[attr-defined]  # noqa: PLC0415

        dispatch: Callable[..., Any] = _jax.pjit(
            name,
            None,
            # The third value says whether to drop this key from the cache.
            lambda *args, **kwargs: (*run(*args, **kwargs), False),
            list(static),
            list(static_names),
            pxla.JitGlobalCppCacheKeys(),
            tree_util.dispatch_registry,
            pxla.cc_shard_arg,
        )
    except (ImportError, AttributeError, TypeError) as error:
        log.debug("Repeated calls of %s are recognised in Python: %s", name, error)
        return None
    return dispatch


def shortcut(
    compiled: Any, constants: Sequence[Any], read: Sequence[bool], out_tree: Any, outputs: Sequence[Any]
) -> Any:
    """The data with which a `dispatcher` runs a compiled program in C++.

    Args:
        compiled: The result of `lower(...).compile()`. Its flat arguments are the constants and then the inputs that it
            reads.
        constants: Captured arrays, the first arguments of every run.
        read: For each flat input of the call, whether it is an argument of the program.
        out_tree: The tree of the call's results.
        outputs: The results of a run.

    Returns:
        None if only Python can run it, as a program with host callbacks.
    """
    try:
        from jax._src import pjit  # noqa: PLC0415  (private: what `jax.jit` gives its own dispatch)

        executable = compiled._executable
        if executable.unsafe_call.has_host_callbacks:
            return None
        # `_get_fastpath_data` only counts the inputs. The bit vector then drops those that the program does not read.
        data = pjit._get_fastpath_data(executable, out_tree, list(read), list(outputs), (), [], None, list(constants))
        return None if data is None else data._replace(kept_var_bitvec=[*[True] * len(constants), *read])
    except (ImportError, AttributeError, TypeError) as error:
        log.debug("Repeated calls are run in Python: %s", error)
        return None


# Seconds below which JAX keeps no program in its persistent cache, unless it is told otherwise.
_DEFAULT_MIN_COMPILE_TIME = 1.0
# Set in a thread by JAX's persistent cache, which calls listeners in the thread that compiles.
_cache_hits = threading.local()


def _note_cache_hit(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _cache_hits.seen = True


jax.monitoring.register_event_listener(_note_cache_hit)


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A program that was compiled, or came out of JAX's persistent cache.

    Attributes:
        executable: The result of `lower(...).compile()`.
        cached: What it was lowered to, if it came out of the cache; None if XLA compiled it now.
        serialized: The bytes that it was loaded from, if these are at hand.
    """

    executable: Any
    cached: Any = None
    serialized: bytes | None = None


@functools.cache
def versions() -> str:
    """The versions that a compiled step depends on, in words."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib", "numpy"))


def deadlocks_far_ahead(platform: str) -> bool:
    """Whether many programs in flight on overlapping sets of devices may wait for each other forever.

    XLA's CPU client of JAX 0.10 lets 32 programs in flight on a device and runs their collectives on one pool of
    threads. A launch that blocks on one device while others of its devices are free leaves the collectives of both
    sets without a thread.
    """
    return platform == "cpu" and jax.__version_info__ < (0, 12)


# What may hold a thread until another device or the host has done something, by opcode. Nobody knows of custom calls.
_WAITS = re.compile(
    r" (?:all-|ragged-all-|reduce-scatter|collective-|send|recv|infeed|outfeed|custom-call|async-)[\w-]*\("
)


def may_wait(executable: Any) -> bool:
    """Whether a compiled program may wait inside of it for its other devices or for the host.

    Args:
        executable: The result of `lower(...).compile()`.
    """
    try:
        modules = executable.runtime_executable().hlo_modules()
    except (AttributeError, NotImplementedError, jax.errors.JaxRuntimeError):
        return True
    return not modules or any(_WAITS.search(module.to_string()) for module in modules)


def leave_threads(context: Any) -> None:
    """Let MLIR use this context on one thread only, whose others would spin for longer than they work.

    Only where JAX makes a context for each lowering. Since 0.11 the next lowerings of the thread may share it: without
    its locks, a module that is compiled in another thread while this one lowers ends the process.
    """
    if jax.__version_info__ < (0, 11):
        context.enable_multithreading(False)


def _cache_of_short_programs() -> contextlib.AbstractContextManager[Any]:
    """A context in which JAX also keeps programs on disk that compile in less than a second.

    A pipeline is many such programs. Where the user has asked for another limit than JAX's own, that one holds.
    """
    settings: Any = jax.config
    if settings.jax_persistent_cache_min_compile_time_secs != _DEFAULT_MIN_COMPILE_TIME:
        return contextlib.nullcontext()
    try:
        from jax._src import config  # noqa: PLC0415  (private: a setting of this thread alone)

        context: contextlib.AbstractContextManager[Any] = config.persistent_cache_min_compile_time_secs(0.0)
    except (ImportError, AttributeError, TypeError) as error:
        log.debug("Programs that compile quickly are not kept: %s", error)
        return contextlib.nullcontext()
    return context


def compile_lowered(lowered: Any) -> CompiledProgram:
    """Compile a lowered program, and note whether JAX found it in its persistent cache."""
    _cache_hits.seen = False
    with _cache_of_short_programs():
        executable = lowered.compile()
    _forget_packing(executable._executable)
    return CompiledProgram(executable, lowered if _cache_hits.seen else None)


def _forget_packing(executable: Any) -> None:
    """Let an executable take arrays of int4 and other types of less than a byte, as those of plain `jax.jit` do.

    XLA says of an argument how many bits an element has and of an array nothing, so that JAX's check of arguments sees
    two layouts where there is one. Only programs that are compiled ahead of time have this check.
    """
    layouts = getattr(executable, "_xla_in_layouts", None) or ()
    if any(getattr(layout, "sub_byte_element_size_in_bits", 0) for layout in layouts):
        executable._xla_in_layouts = [
            None if getattr(layout, "sub_byte_element_size_in_bits", 0) else layout for layout in layouts
        ]


def _serialize(program: CompiledProgram, unloaded: Any) -> bytes | None:
    """The bytes of a program's executable, from which it can be loaded again; None if there are none."""
    backend = unloaded.backend
    if program.serialized is not None:
        return program.serialized
    if program.cached is None:
        serialized: bytes = backend.serialize_executable(unloaded.xla_executable)
        return serialized
    # An executable of XLA's CPU backend that was itself deserialized has lost its object code: serialized again, it
    # loads and then fails when it runs ("Function ... not found"). The bytes in the cache have it.
    from jax._src import compilation_cache, config  # noqa: PLC0415  (private: the cache on disk has no public reads)

    lowering = program.cached._lowering
    devices = np.empty(len(unloaded.device_list), dtype=object)
    devices[:] = list(unloaded.device_list)
    options = pxla.create_compile_options(
        lowering.stablehlo(),
        lowering.compile_args["tuple_args"],
        (False,) * len(unloaded.input_shardings),
        (False,) * len(unloaded.output_shardings),
        backend,
        devices,
        dict(lowering._compiler_options_kvs),
    )
    if config.remove_custom_partitioning_ptr_from_cache_key.value:
        return None
    key = compilation_cache.get_cache_key(lowering.stablehlo(), devices, options, backend)
    cache = compilation_cache._get_cache(backend)
    entry = None if cache is None else cache.get(key)
    if entry is None:
        log.debug("JAX's persistent cache has lost %s", key)
        return None
    stored: bytes = compilation_cache.extract_executable_and_time(compilation_cache.decompress_executable(entry))[0]
    return stored


def load_elsewhere(program: CompiledProgram, borders: Borders, elsewhere: Sequence[Borders]) -> list[Any]:
    """A compiled program on other devices, without compiling it again.

    An executable runs on any list of devices of the same kind, which JAX's own compilation cache on disk relies on. The
    public `jax.experimental.serialize_executable` accepts only the devices that a program was compiled for.

    Args:
        program: The program.
        borders: The shardings of its arguments and results.
        elsewhere: For each copy, the same shardings on its devices.

    Returns:
        A compiled program for each of `elsewhere`. All are None where JAX cannot copy the program: it has host
        callbacks, its platform compiles for a position in the topology (TPU), or devices belong to other processes.
    """
    compiled = program.executable
    unloaded = getattr(compiled._executable, "_unloaded_executable", None)
    if unloaded is None or not _can_move(compiled, unloaded, borders):
        return [None] * len(elsewhere)
    backend = unloaded.backend
    meshes: list[Any] = [(*ins, *outs)[0].mesh for ins, outs in (borders, *elsewhere)]
    places = [list(mesh.devices.flat) for mesh in meshes]
    if any(device.process_index != backend.process_index() for devices in places for device in devices):
        return [None] * len(elsewhere)
    try:
        serialized = _serialize(program, unloaded)
        if serialized is None:
            return [None] * len(elsewhere)
        copies = []
        for place, devices in zip(elsewhere, places[1:], strict=True):
            executable = _load(unloaded, serialized, place, type(unloaded.device_list)(tuple(devices)))
            copies.append(jax.stages.Compiled(executable, [], compiled.args_info, compiled.out_tree))
    except (jax.errors.JaxRuntimeError, NotImplementedError, ImportError, AttributeError, TypeError) as error:
        log.debug("Cannot copy a compiled program to other devices, so it is compiled for each: %s", error)
        return [None] * len(elsewhere)
    return copies


def _load(unloaded: Any, serialized: bytes, borders: Borders, device_list: Any) -> Any:
    """The executable of a serialized program on some devices; `unloaded` says all else about it."""
    from jax._src import compiler  # noqa: PLC0415  (private: no public way to name the devices of a loaded program)

    backend = unloaded.backend
    places = np.array([[device.id for device in device_list]])
    options = compiler.get_compile_options(1, len(device_list), places, backend=backend)
    loaded = backend.deserialize_executable(serialized, device_list, options)
    ins, outs = borders
    copy = dataclasses.replace(
        unloaded, xla_executable=loaded, device_list=device_list, input_shardings=ins, output_shardings=outs
    )
    executable = copy.load()
    _forget_packing(executable)
    return executable


# What an executable is loaded with anew. What its arguments are called is in errors alone, and a closure of JAX's.
_OF_THE_PROCESS = ("xla_executable", "device_list", "backend", "input_shardings", "output_shardings", "all_args_info")


def pack(program: CompiledProgram, borders: Borders) -> tuple[bytes, bytes] | None:
    """A compiled program as bytes: what `unpack` needs to know about it, and its executable.

    `jax.experimental.serialize_executable` is the public way; what it makes of an executable that came out of JAX's
    cache cannot be run (see `_serialize`).

    Args:
        program: The program.
        borders: The shardings of its arguments and results.

    Returns:
        None where a program cannot be loaded by another process, for the reasons of `load_elsewhere`.
    """
    compiled = program.executable
    unloaded = getattr(compiled._executable, "_unloaded_executable", None)
    if unloaded is None or not _can_move(compiled, unloaded, borders) or unloaded.keepalive:
        return None
    try:
        serialized = _serialize(program, unloaded)
        if serialized is None:
            return None
        fields = {field.name: getattr(unloaded, field.name) for field in dataclasses.fields(unloaded)}
        kept = {name: value for name, value in fields.items() if name not in _OF_THE_PROCESS}
        about = (type(unloaded), kept, jax.tree.leaves(compiled.args_info), compiled._no_kwargs)
        return pickle.dumps(about), serialized
    except (
        jax.errors.JaxRuntimeError,
        NotImplementedError,
        ImportError,
        AttributeError,
        TypeError,
        ValueError,
        pickle.PickleError,
    ) as error:
        log.debug("Cannot serialize a compiled program: %s", error)
        return None


def unpack(about: bytes, serialized: bytes, borders: Borders) -> CompiledProgram | None:
    """A program of which `pack` made bytes; None if this process cannot load it."""
    ins, outs = borders
    # What the bytes say was written by another process: whatever it is, the program can be compiled instead.
    try:
        kind, kept, args_info, no_kwargs = pickle.loads(about)
        device_list = (*ins, *outs)[0]._internal_device_list
        client = device_list[0].client
        absent = dict.fromkeys(_OF_THE_PROCESS)
        unloaded = kind(**absent | kept | {"backend": client, "device_list": device_list})
        executable = _load(unloaded, serialized, borders, device_list)
        in_tree = jax.tree.structure(((0,) * len(ins), {}))
        out_tree = jax.tree.structure([0] * len(outs))
        info = jax.tree.unflatten(in_tree, args_info)
        compiled = jax.stages.Compiled(executable, [], info, out_tree, no_kwargs=no_kwargs)
    except Exception as error:
        log.debug("Cannot load a kept program, so it is compiled: %s", error)
        return None
    return CompiledProgram(compiled, serialized=serialized)


def _can_move(compiled: Any, unloaded: Any, borders: Borders) -> bool:
    ins, outs = borders
    return (
        unloaded.backend.platform in ("cpu", "gpu")
        and list(unloaded.input_shardings) == list(ins)
        and list(unloaded.output_shardings) == list(outs)
        and len(ins) + len(outs) > 0
        and not unloaded.host_callbacks
        and not unloaded.ordered_effects
        and not unloaded.unordered_effects
        and unloaded.mut is None
        and unloaded.pgle_profiler is None
        and not compiled._params.const_args
    )


def define_identity(
    name: str,
    transpose: Callable[..., Any],
    batch: Callable[..., Any],
    used: Callable[..., None] | None = None,
) -> Primitive:
    """A linear primitive that returns its operand and disappears in lowering.

    Args:
        name: The primitive's name in a jaxpr.
        transpose: `transpose(cotangent, **params)` gives the cotangent of the operand.
        batch: `batch(operand, dimension, **params)` binds it again with the batch dimension.
        used: `used(**params)` is called where it is lowered, or run outside of a program: no abstract evaluation does.
    """

    def identity(x: Any, **params: Any) -> Any:
        if used is not None:
            used(**params)
        return x

    primitive = jex.Primitive(name)
    primitive.def_impl(identity)
    primitive.def_abstract_eval(lambda x, **_: x)
    ad.deflinear2(primitive, lambda ct, _, **params: [transpose(ct, **params)])
    mlir.register_lowering(primitive, lambda _, x, **params: [identity(x, **params)])
    batching.primitive_batchers[primitive] = lambda args, dims, **params: (
        batch(args[0], dims[0], **params),
        dims[0],
    )
    return primitive


def add_eqn(left: Any, right: Any, target: Var) -> Any:
    """An equation that adds two atoms of one type."""
    template = _template(_doubled, target.aval)
    return template.replace(invars=[left, right], outvars=[target], source_info=source_info_util.current())


def _doubled(value: Any, _: None) -> Any:
    return jax.lax.add(value, value)


def scale_eqns(source: Any, n: int, power: int, target: Var) -> list[Any]:
    """Equations that multiply an atom by `n**power`, which is exact for integers if `power` is not negative."""
    aval = target.aval
    abstract = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
    number = n ** abs(power)
    # A division rounds once, the product with a rounded reciprocal twice.
    jaxpr, consts = split(jax.make_jaxpr(lambda x: x * number if power > 0 else x / number)(abstract))
    assert not consts
    env = {jaxpr.invars[0]: source, jaxpr.outvars[0]: target}
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        for var in eqn.outvars:
            env.setdefault(var, new_var(var.aval))
        invars = [env[atom] if is_var(atom) else _varying(atom, aval, eqn, eqns) for atom in eqn.invars]
        eqns.append(eqn.replace(invars=invars, outvars=[env[var] for var in eqn.outvars]))
    return eqns


def _varying(literal: Any, like: Any, template: Any, eqns: list[Any]) -> Any:
    """A number that may be combined with a type of which devices have different values; adds an equation if need be."""
    axes = like.manual_axis_type.varying
    if not axes:
        return literal
    target = new_var(like.update(shape=(), weak_type=literal.aval.weak_type))
    params = {"axes": tuple(sorted(axes))}
    eqns.append(template.replace(primitive=core.pvary_p, params=params, invars=[literal], outvars=[target]))
    return target


def call_without_derivative(closed: Any, invars: Sequence[Any], outvars: Sequence[Any], problem: str) -> Any:
    """An equation that calls a closed jaxpr, and cannot be differentiated: it raises a `ValueError` that says why."""
    function = as_fun(closed)

    @jax.custom_jvp
    def call(*args: Any) -> list[Any]:
        return function(*args)

    @call.defjvp
    def raise_(primals: Any, tangents: Any) -> Any:
        raise ValueError(problem)

    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in split(closed)[0].invars]
    (template,) = split(jax.make_jaxpr(call)(*avals))[0].eqns
    return template.replace(invars=list(invars), outvars=list(outvars))


def own_derivative_rule(jaxpr: Any) -> str:
    """The first function in a jaxpr with a derivative rule that is none of JAX's, as "name at file:line"; else ""."""
    seen: set[int] = set()

    def find(inner: Any) -> str:
        if id(inner) in seen:
            return ""
        seen.add(id(inner))
        for eqn in inner.eqns:
            if eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
                where = str(split(eqn.params["call_jaxpr"])[0].debug_info.func_src_info)
                if os.path.dirname(jax.__file__) + os.sep not in where:
                    return where
            if found := next(filter(None, map(find, inner_jaxprs(eqn))), ""):
                return found
        return ""

    return find(split(jaxpr)[0])


def without_derivative(value: Any, problem: str) -> Any:
    """The value, which raises a `ValueError` where it is differentiated."""

    @jax.custom_jvp
    def same(value: Any) -> Any:
        return value

    @same.defjvp
    def raise_(primals: Any, tangents: Any) -> Any:
        raise ValueError(problem)

    return same(value)


def with_extra_inputs(eqn: Any, extra: Sequence[Any]) -> Any:
    """A call with more arguments at the end, whose parameters say for each argument how it is given."""
    if not extra or eqn.primitive is not jit_p:
        return eqn.replace(invars=[*eqn.invars, *extra])
    return eqn.replace(invars=[*eqn.invars, *extra], params=_for_more_inputs(eqn.params, len(extra)))


def _for_more_inputs(params: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Parameters of a `jax.jit` with more arguments at the end."""
    changed = dict(params)
    for name, default in (("in_shardings", UNSPECIFIED), ("in_layouts", None), ("donated_invars", False)):
        if name in changed:
            changed[name] = (*changed[name], *[default] * count)
    return changed


def manual_axes(params: Mapping[str, Any]) -> frozenset[str]:
    """The mesh axes that a `shard_map` with these parameters divides the work over."""
    # JAX 0.10.2 renamed it; the first goes when 0.10.1 is dropped.
    return frozenset(params["manual_axes"] if "manual_axes" in params else params["newly_manual_axes"])


def _device_axes(eqn: Any, aval: Any) -> tuple[str, ...]:
    """The axes of a `shard_map` along which devices may have different values of a type."""
    manual = [axis for axis in eqn.params["mesh"].axis_names if axis in manual_axes(eqn.params)]
    if eqn.params["check_vma"]:
        manual = [axis for axis in manual if axis in aval.manual_axis_type.varying]
    return tuple(manual)


def array_aval(shape: tuple[int, ...], dtype: Any, weak_type: bool = False) -> Any:
    """The type of an array."""
    plain = jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type)
    return split(jax.make_jaxpr(lambda x: x)(plain))[0].invars[0].aval


def aval_of_devices(eqn: Any, aval: Any) -> Any:
    """The type of the array of all devices' values, along a new first dimension, of a type inside of a `shard_map`."""
    count = math.prod(dict(eqn.params["mesh"].shape)[axis] for axis in _device_axes(eqn, aval))
    return array_aval((count, *aval.shape), aval.dtype, aval.weak_type)


def reshape_eqn(source: Any, target: Var) -> Any:
    """An equation that gives an atom the shape of a variable."""
    plain = jax.ShapeDtypeStruct(source.aval.shape, source.aval.dtype)
    template = split(jax.make_jaxpr(lambda x: jax.lax.reshape(x, target.aval.shape))(plain))[0].eqns[-1]
    return template.replace(invars=[source], outvars=[target])


def with_device_inputs(eqn: Any, jaxpr: Any, arrays: Sequence[Any]) -> Any:
    """A `shard_map` of which each device takes its value of further arrays, made as `aval_of_devices` says.

    Args:
        eqn: The equation.
        jaxpr: Its new jaxpr, whose last inputs are a device's values.
        arrays: The arrays.
    """
    count = len(jaxpr.invars) - len(arrays)
    taken, specs, eqns = [], [], []
    for var in jaxpr.invars[count:]:
        taken.append(new_var(var.aval.update(shape=(1, *var.aval.shape))))
        specs.append(PartitionSpec(_device_axes(eqn, var.aval)))
        eqns.append(reshape_eqn(taken[-1], var))
    changed = jaxpr.replace(invars=[*jaxpr.invars[:count], *taken], eqns=[*eqns, *jaxpr.eqns])
    params = eqn.params | {"jaxpr": changed, "in_specs": (*eqn.params["in_specs"], *specs)}
    return eqn.replace(invars=[*eqn.invars, *arrays], params=params)


def with_device_results(eqn: Any, jaxpr: Any, taken: Sequence[Any], made: Mapping[Any, Any]) -> Any:
    """A `shard_map` that gives arrays of what devices have inside of it, made as `aval_of_devices` says.

    Args:
        eqn: The equation.
        jaxpr: Its new jaxpr, with further inputs at the end.
        taken: What these inputs are, the same for all devices.
        made: By variable of an array, the atom inside.
    """
    results, specs, eqns = [], [], []
    for atom in made.values():
        results.append(new_var(atom.aval.update(shape=(1, *atom.aval.shape))))
        specs.append(PartitionSpec(_device_axes(eqn, atom.aval)))
        eqns.append(reshape_eqn(atom, results[-1]))
    changed = jaxpr.replace(eqns=[*jaxpr.eqns, *eqns], outvars=[*jaxpr.outvars, *results])
    params = eqn.params | {
        "jaxpr": changed,
        "in_specs": (*eqn.params["in_specs"], *[PartitionSpec()] * len(taken)),
        "out_specs": (*eqn.params["out_specs"], *specs),
    }
    return eqn.replace(invars=[*eqn.invars, *taken], outvars=[*eqn.outvars, *made], params=params)


def needed_part(eqn: Any, used: Sequence[bool]) -> Any:
    """An equation without the parts of its inner jaxprs that only unused results need; None if nothing is used."""
    from jax._src.interpreters import partial_eval  # noqa: PLC0415  (private: JAX has no public dead code removal)

    rule: Any = partial_eval.dce_rules.get(eqn.primitive)
    if rule is None or all(used):
        return eqn
    # Since JAX 0.12 the second of three arguments says which references are read afterwards.
    takes_live_inputs = len(inspect.signature(rule).parameters) > 2
    return rule(list(used), *([[True] * len(eqn.invars)] if takes_live_inputs else []), eqn)[1]


def copy_eqn(source: Any, target: Var) -> Any:
    """An equation that copies an atom."""
    return _like(_template(_copied, target.aval), source, target)


def _copied(value: Any, _: None) -> Any:
    return jnp.array(value, copy=True)


def constraint_eqn(source: Any, target: Var, sharding: Any) -> Any:
    """An equation that gives an atom a sharding, as `jax.lax.with_sharding_constraint` does."""
    return _like(_template(_constrained, target.aval, sharding), source, target)


def _constrained(value: Any, sharding: Any) -> Any:
    return jax.lax.with_sharding_constraint(value, sharding)


def _like(template: Any, source: Any, target: Var) -> Any:
    """An equation as another one, made here."""
    return template.replace(invars=[source], outvars=[target], source_info=source_info_util.current())


def _template(function: Callable[..., Any], aval: Any, further: Hashable = None) -> Any:
    """The last equation of a function of a value of some type and something else.

    Traced, not built by hand: parameters of JAX's primitives differ between its versions. A step asks for the same ones
    again and again.
    """
    around = (core.JaxprEqnContext(), bool(jax.config.jax_enable_x64))  # type: ignore[attr-defined]
    return _traced_template(
        function, tuple(aval.shape), aval.dtype, bool(getattr(aval, "weak_type", False)), further, around
    )


@functools.lru_cache(maxsize=1024)
def _traced_template(
    function: Callable[..., Any],
    shape: tuple[int, ...],
    dtype: Any,
    weak_type: bool,
    further: Hashable,
    around: Hashable,
) -> Any:
    abstract = jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type)
    return split(jax.make_jaxpr(lambda x: function(x, further))(abstract))[0].eqns[-1]


class ShardingByRank(NamedSharding):
    """A `NamedSharding` that stands for another one on arrays of some ranks, given by `for_rank`.

    In JAX only shardings that are no `NamedSharding` may depend on the rank. Results of computations on arrays with
    such a sharding have one of the same class, which `like` makes.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        as_named = pxla._orig_out_sharding_handlers[NamedSharding]

        def recover(found: Any, aval: Any, given: ShardingByRank) -> NamedSharding:
            tiles = found._to_xla_hlo_sharding(aval.ndim if aval is not None else 0)
            rank = None
            if not tiles.is_replicated():
                rank = len(tiles.tile_assignment_dimensions()) - tiles.replicate_on_last_tile_dim()
            return given.like(as_named(found, aval, given), rank)

        # JAX looks handlers of result shardings up by the exact class, so that subclasses need an entry of their own.
        pxla._orig_out_sharding_handlers[cls] = recover

    def like(self, found: NamedSharding, rank: int | None) -> NamedSharding:
        """The sharding of this class that lays arrays of `rank` dimensions out as `found`; `None` if it replicates."""
        raise NotImplementedError

    def for_rank(self, rank: int) -> NamedSharding | None:
        """The sharding of arrays of `rank` dimensions; None where it is this one."""
        raise NotImplementedError

    def _to_xla_hlo_sharding(self, num_dimensions: int) -> Any:
        other = self.for_rank(num_dimensions)
        if other is None:
            return super()._to_xla_hlo_sharding(num_dimensions)
        return other._to_xla_hlo_sharding(num_dimensions)

    def _to_sdy_sharding(self, num_dimensions: int, *args: Any, **kwargs: Any) -> Any:
        other = self.for_rank(num_dimensions)
        if other is None:
            return super()._to_sdy_sharding(num_dimensions, *args, **kwargs)
        return other._to_sdy_sharding(num_dimensions, *args, **kwargs)


def content(value: Any) -> tuple[Any, ...] | None:
    """All that a value of JAX's is, as values that name it in any process; None for a type that is not known here."""
    known = _content_attributes().get(type(value))
    if known is not None:
        return tuple((name, getattr(value, name, "unset")) for name in known)
    if any(value is single for single in _singletons()):
        return (type(value).__name__,)
    if isinstance(value, jax.Array):
        # Those of keys have an implementation, and numbers besides.
        return None
    # Implementations of random keys, and their types. Nobody can register another one under these names.
    impl = getattr(value, "_impl", value)
    name = getattr(impl, "name", None)
    if type(name) is str and name in ("threefry2x32", "rbg", "unsafe_rbg"):
        registered = getattr(sys.modules.get(type(value).__module__), "prngs", {})
        if registered.get(name) is impl:
            return ("keys", name)
    return None


@functools.cache
def _content_attributes() -> dict[type, tuple[str, ...]]:
    """The attributes that say all of a value, by its exact type; the slots where a type has nothing else."""
    found: dict[type, tuple[str, ...]] = {
        jax.sharding.AbstractMesh: ("axis_names", "axis_sizes", "axis_types", "abstract_device"),
        NamedSharding: ("mesh", "spec", "memory_kind", "_logical_device_ids"),
        mesh_lib.AbstractDevice: ("device_kind", "num_cores", "platform"),
        layout.Layout: ("major_to_minor", "tiling", "sub_byte_element_size_in_bits"),
        core.NamedAxisEffect: ("name",),
        jax.lax.RaggedDotDimensionNumbers: (
            "dot_dimension_numbers",
            "lhs_ragged_dimensions",
            "rhs_group_dimensions",
        ),
    }
    # The second is what a weak type is without its weakness, once somebody has asked. The third has, in JAX 0.10.1, the
    # values of the others once more, beside the settings that they are of.
    unread = ("__weakref__", "_stripped_weak_type", "configs")
    for kind in (ShapedArray, PartitionSpec, core.JaxprEqnContext, core.ManualAxisType):
        found[kind] = tuple(name for name in kind.__slots__ if name not in unread)
    return found


@functools.cache
def _singletons() -> tuple[Any, ...]:
    automatic = getattr(jax.typeof(np.float32(0)), "layout", None)
    return (UNSPECIFIED, PartitionSpec.UNCONSTRAINED, *([] if automatic is None else [automatic]))


def is_host_array(value: Any) -> bool:
    """Whether a constant of a jaxpr is numbers that lowering writes into the program."""
    return type(value) in (np.ndarray, literals.TypedNdArray) and not value.dtype.hasobject


# Modules whose primitives reach code that no jaxpr shows: functions of the host, of libraries, of other compilers.
_FOREIGN = ("callback", "ffi", "debugging", "custom_partitioning", "pallas", "mosaic", "triton", "tpu_custom_call")


def primitive_content(primitive: Any, platform: str) -> tuple[str, ...] | None:
    """Where a primitive is defined; None if that, or a rule by which it is lowered, is neither JAX's nor ours."""
    home = _homes().get(primitive)
    if home is None:
        return None
    platforms = ("cuda", "rocm") if platform == "gpu" else (platform,)
    tables = [mlir._lowerings, *[mlir._platform_specific_lowerings.get(each, {}) for each in platforms]]
    rules = [table[primitive].rule for table in tables if primitive in table]
    return (primitive.name, home) if rules and all(_is_known_code(rule, set()) for rule in rules) else None


@functools.cache
def _homes() -> dict[Any, str]:
    """The module that defines each primitive."""
    modules = [
        (name, module) for name, module in list(sys.modules.items()) if name.partition(".")[0] in ("jax", "mmruntime")
    ]
    found: dict[Any, str] = {}
    for name, module in sorted(modules):
        for value in list(vars(module).values()):
            if isinstance(value, Primitive):
                found.setdefault(value, name)
    return found


def _is_known_code(rule: Any, seen: set[int]) -> bool:
    """Whether a rule is JAX's or ours, with all functions that it holds; `lower_fun` wraps those of anybody."""
    if id(rule) in seen:
        return True
    seen.add(id(rule))
    if isinstance(rule, functools.partial):
        return all(_is_known_code(each, seen) for each in (rule.func, *rule.args, *rule.keywords.values()))
    if not callable(rule):
        return True
    module = getattr(rule, "__module__", None) or ""
    names = module.split(".")
    if names[0] not in ("builtins", "jax", "jaxlib", "mmruntime") or any(
        name.lstrip("_") in _FOREIGN for name in names
    ):
        return False
    held: list[Any] = [getattr(rule, "__wrapped__", None), *(getattr(rule, "__defaults__", None) or ())]
    for cell in getattr(rule, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            held.append(cell.cell_contents)
    return all(_is_known_code(each, seen) for each in held)


# Of JAX's settings, those that say what is kept, logged and shown, and not what is compiled.
_NOT_OF_PROGRAMS = ("jax_compilation_cache_", "jax_persistent_cache_", "jax_log", "jax_traceback_filtering")


def compilation_settings() -> tuple[Any, ...]:
    """All that decides beside a program how JAX lowers it: settings, also those of this thread, and its context."""
    values: Mapping[str, Any] = jax.config.values
    read = [(name, value) for name, value in sorted(values.items()) if not name.startswith(_NOT_OF_PROGRAMS)]
    return (*read, core.JaxprEqnContext())


def device_content(devices: Sequence[Any]) -> str:
    """A digest of the devices that a program is compiled for, their platform, and all that XLA knows of both."""
    from jax._src import cache_key  # noqa: PLC0415  (private: what JAX's own cache distinguishes has no public name)

    client = devices[0].client
    found = hashlib.sha256()
    cache_key._hash_accelerator_config(found, np.array(devices))
    cache_key._hash_platform(found, client)
    found.update(repr(cache_key.custom_hook()).encode())
    places = [(device.id, device.process_index, device.device_kind) for device in devices]
    found.update(repr((places, client.process_index(), [device.id for device in client.devices()])).encode())
    return found.hexdigest()


def lowest_time_kept() -> float | None:
    """Seconds of compilation below which no program is kept on disk; None if none may be, or JAX shall decide alone.

    JAX evicts what it keeps where its size is bounded, and does not see what is ours.
    """
    settings: Any = jax.config
    folder = settings.jax_compilation_cache_dir
    if not folder or "://" in folder or not settings.jax_enable_compilation_cache:
        return None
    # Names of programs and lines of their sources, which are asked for here, are none of the content of a program.
    if settings.jax_compilation_cache_include_metadata_in_key or settings.jax_compilation_cache_max_size != -1:
        return None
    limit: float = settings.jax_persistent_cache_min_compile_time_secs
    return 0.0 if limit == _DEFAULT_MIN_COMPILE_TIME else limit
