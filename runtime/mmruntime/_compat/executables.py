"""Compiled programs: made, kept on disk, loaded on other devices."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import logging
import pickle
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import pxla
from jax.sharding import NamedSharding

# Shardings of a program's arguments and results.
Borders = tuple[Sequence[NamedSharding], Sequence[NamedSharding]]
log = logging.getLogger("mmruntime")
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
    """The program that `pack` turned into bytes; None if this process cannot load it."""
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


def own_cache() -> Path | None:
    """Our folder in that of JAX's persistent cache; None where JAX keeps nothing on disk."""
    settings: Any = jax.config
    folder = settings.jax_compilation_cache_dir
    if not folder or "://" in folder or not settings.jax_enable_compilation_cache:
        return None
    return Path(folder) / "mmruntime"


def lowest_time_kept() -> float | None:
    """Seconds of compilation below which no program is kept on disk; None if none may be, or JAX shall decide alone.

    JAX evicts what it keeps where its size is bounded, and does not see what is ours.
    """
    settings: Any = jax.config
    if own_cache() is None:
        return None
    # Names of programs and lines of their sources, which are asked for here, are none of the content of a program.
    if settings.jax_compilation_cache_include_metadata_in_key or settings.jax_compilation_cache_max_size != -1:
        return None
    limit: float = settings.jax_persistent_cache_min_compile_time_secs
    return 0.0 if limit == _DEFAULT_MIN_COMPILE_TIME else limit
