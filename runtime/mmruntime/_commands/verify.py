"""Call one function in a process of its own, and save its arguments and results.

    python -m mmruntime._commands.verify train:train_step train:example_arguments --path DIR --save NEW

This is the other end of `mmrewrite verify`, which runs the original program on one device and the rewritten one on all
of them, and has `mmruntime._commands.compare` compare what they saved. Whatever the function's module prints goes to
standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from mmruntime import _compat
from mmruntime._commands.compare import CHANGED, Recorded, load, spacing
from mmruntime._commands.entry_point import (
    BadEntryPoint,
    FunctionName,
    arguments_for,
    called_with,
    failure,
    find,
    parser_for,
    print_document,
)
from mmruntime._commands.plan import document
from mmruntime._core import progress
from mmruntime._frontend.labels import positional_names
from mmruntime._step.mesh_function import MeshFunction

_SEED = 0


# The arrays of a run's arguments, by name and path.
Saved = Mapping[str, np.ndarray | None]


@dataclass(frozen=True)
class RunSettings:
    """How a run calls its function, and with which arguments.

    Attributes:
        bits: 64 or 32 for floats of the arguments, and for each part of complex numbers; None leaves them as they are.
        kept: The attribute below which they are left as they are; if None and the function refuses `bits` bits
            everywhere, the one with the fewest floats below it with which it does not.
        saved: The arrays of an earlier run's arguments, which are taken.
        on_one_device: Whether steps are compiled by `jax.jit`: with their microbatches and random numbers, and without
            a mesh.
    """

    bits: int | None = None
    kept: str | None = None
    saved: Saved = field(default_factory=dict)
    on_one_device: bool = False


AS_IT_IS = RunSettings()


def run(
    entry: FunctionName,
    arguments: FunctionName,
    folder: str,
    settings: RunSettings = AS_IT_IS,
    *,
    planned: bool = False,
) -> dict[str, Any]:
    """Call the function once and save its arguments and results in `folder`.

    Args:
        entry: The function.
        arguments: The function that returns its arguments.
        folder: An empty folder.
        settings: How it is called.
        planned: Whether the plan that a compiled step runs by is wanted too, as `plan` has it.

    Returns:
        Which devices it ran on, where its arguments belong, and the spacing at one of the shortest float that steps for
        a mesh compute in, as JSON values.

    Raises:
        BadEntryPoint: If the function cannot be imported or fails.
    """
    step, given, names = step_and_arguments(entry, arguments, settings.saved)
    plans: list[Any] = []
    MeshFunction.watch = plans

    def call(example: Sequence[Any]) -> Any:
        record = Recorded(folder)
        result = record_call(step, names, example, record, on_one_device=settings.on_one_device)
        record.close()
        return result

    try:
        # What is traced and compiled for it is what runs then.
        is_step = isinstance(step, MeshFunction) and planned
        plan = document(step, step.plan(*given), None) if is_step else None
        example, kept, result = _called(call, given, settings.bits, settings.kept)
    except Exception as error:
        raise BadEntryPoint(failure(entry, "failed", error, called_with(arguments))) from error
    finally:
        MeshFunction.watch = None
    types = {each for made in plans for each in made.step.types() if jnp.issubdtype(each, jnp.inexact)}
    return {
        "plan": plan,
        "kept": kept,
        "epsilon": max(map(spacing, types), default=0.0),
        # A function that makes steps and calls them shows as much as one of these would.
        "compiled_for_a_mesh": isinstance(step, MeshFunction) or bool(plans),
        "imported": list(_imported()),
        "devices": jax.device_count(),
        "platform": jax.default_backend(),
        "homes": _homes(step, names) if isinstance(step, MeshFunction) and not settings.on_one_device else {},
        "like_arguments": _like(result, dict(zip(names, example, strict=True))),
    }


def _imported() -> Iterator[str]:
    """The real paths of the modules that were imported from outside of Python's own folders."""
    installed = tuple(os.path.join(os.path.realpath(path), "") for path in {sys.prefix, sys.base_prefix})
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and not os.path.realpath(path).startswith(installed):
            yield os.path.realpath(path)


def prepare(saved: str | None, *, bits: int | None, throughout: bool) -> Saved:
    """Make names of types and random numbers what a run in another precision needs; the arguments of an earlier run.

    It changes JAX for the whole process, and so goes before the program is imported.

    Args:
        saved: The folder of the earlier run of the same program, in its own types.
        bits: 64 in a process with `JAX_ENABLE_X64`, where random numbers are drawn as without, unless these arguments
            say that the program uses it by itself.
        throughout: Whether shorter floats that the program names, as `jnp.bfloat16` or "bfloat16", are float64 as well.
    """
    # Before names of types mean others.
    leaves = [] if saved is None else [leaf for leaf in load(saved) if leaf.role == "argument"]
    if bits == 64 and not any(leaf.kind == "float64" and leaf.where != "host" for leaf in leaves):
        _draw_as_float32()
    if throughout:
        _widen_types()
    return {leaf.name: leaf.array for leaf in leaves}


def step_and_arguments(
    entry: FunctionName, arguments: FunctionName, saved: Saved
) -> tuple[Any, tuple[Any, ...], list[str]]:
    """The function, its arguments, which are made with the same seeds each time, and their names.

    Of arguments that are `saved`, the arrays are those: what makes them may make others in float64.

    Raises:
        BadEntryPoint: If there is no such function, or no arguments can be made.
    """
    random.seed(_SEED)
    np.random.seed(_SEED)
    step = find(entry)
    if not callable(step):
        raise BadEntryPoint(f"{entry}: `{entry.name}` is of type {type(step).__name__}; name a function")
    given = arguments_for(entry, arguments)
    # Made up where it does not tell, alike in both programs.
    known = positional_names(step)[: len(given)]
    names = [*known, *(f"argument {position}" for position in range(len(known), len(given)))]
    return step, tuple(_as_saved(name, tree, saved) for name, tree in zip(names, given, strict=True)), names


def _as_saved(name: str, tree: Any, saved: Saved) -> Any:
    """An argument with the arrays that another run has saved."""

    def leaf_of(path: tuple[Any, ...], leaf: Any) -> Any:
        array = saved.get(f"{name}{jax.tree_util.keystr(path)}")
        if array is None or not isinstance(leaf, jax.Array | np.ndarray | np.generic) or leaf.shape != array.shape:
            return leaf
        if not isinstance(leaf, jax.Array):
            return array.copy() if isinstance(leaf, np.ndarray) else array[()]
        return leaf if _compat.is_key(leaf.dtype) else jax.device_put(array, leaf.sharding)

    return jax.tree_util.tree_map_with_path(leaf_of, tree) if saved else tree


class Recorder(Protocol):
    """Takes what `record_call` comes upon: name, array, type and place of each."""

    def argument(self, name: str, array: np.ndarray | None, kind: str, where: str) -> None:
        """Take an argument."""

    def result(self, name: str, array: np.ndarray | None, kind: str, where: str) -> None:
        """Take a result, or what is in an argument after the call."""


def record_call(
    step: Any, names: Sequence[str], example: Sequence[Any], record: Recorder, *, on_one_device: bool
) -> Any:
    """Call a step, and record its arguments, its results, and what it changes in its arguments."""
    # Before the call: a donated argument is deleted by it.
    for name, argument in zip(names, example, strict=True):
        _record(record.argument, name, argument)
    before = [_leaves(argument) for argument in example]
    progress.tell("running the step")
    MeshFunction.plain = on_one_device
    try:
        result = jax.block_until_ready(step(*example))
    finally:
        MeshFunction.plain = False
    _record(record.result, "result", result)
    for name, argument, leaves in zip(names, example, before, strict=True):
        _record_changes(record.result, name, leaves, argument)
    return result


def _widen_types() -> None:
    """Make every shorter float or complex type of `jax.numpy`, and its name in text, the longest.

    It is done before the program is imported. Models in mixed precision name the types that they compute in, whatever
    their arguments are. JAX itself does not read these names, but for one function.
    """
    for name, value in list(vars(jnp).items()):
        if isinstance(value, type(jnp.float32)) and jnp.issubdtype(value, jnp.inexact):
            setattr(jnp, name, jnp.complex128 if jnp.issubdtype(value, jnp.complexfloating) else jnp.float64)
    # NumPy looks up names such as "bfloat16" here.
    for name, value in list(np.sctypeDict.items()):
        longest = np.complex128 if jnp.issubdtype(value, jnp.complexfloating) else np.float64
        if jnp.issubdtype(value, jnp.inexact) and np.dtype(value).itemsize < np.dtype(longest).itemsize:
            np.sctypeDict[name] = longest
    _compat.widen_attention()


def _draw_as_float32() -> None:
    """Make the functions of `jax.random` draw in float64 what they draw without `JAX_ENABLE_X64`.

    With it they draw other numbers, since what they draw has 64 bits unless a type is named. It is done before the
    program is imported.
    """
    for name, draw in list(vars(jax.random).items()):
        is_of_keys = "key" in name.lower() or name in ("split", "fold_in", "clone")
        if callable(draw) and not isinstance(draw, type) and not name.startswith("_") and not is_of_keys:
            setattr(jax.random, name, _drawing(draw))


def _drawing(draw: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax.tree.map(_narrow, (args, kwargs))
        with jax.enable_x64(False):
            found = draw(*args, **kwargs)
        return jax.tree.map(lambda leaf: leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf, found)

    return drawn


# Types and not their names, which may come to mean others.
_NARROW = {"float64": np.float32, "complex128": np.complex64, "int64": np.int32, "uint64": np.uint32}


def _narrow(value: Any) -> Any:
    """An array, or a type, with 32 bits in the place of 64."""
    narrow = _NARROW.get(str(getattr(value, "dtype", "")))
    if narrow is None:
        return value
    return value.astype(narrow) if hasattr(value, "astype") else np.dtype(narrow)


def _called(
    call: Callable[[Sequence[Any]], Any], given: Sequence[Any], bits: int | None, kept: str | None
) -> tuple[Sequence[Any], str | None, Any]:
    """The arguments with floats of so many bits, the attribute below which they are as given, and the result.

    Optimizers may name the type of a part of their state, as that of the gradients that `optax.MultiSteps` adds up, and
    then no other type gets through their branches and loops.
    """
    if bits is None:
        return given, None, call(given)
    example = tree_with_bits(given, bits, kept)
    try:
        return example, kept, call(example)
    except TypeError:
        for name in _attributes(given) if kept is None else ():
            example = tree_with_bits(given, bits, name)
            with contextlib.suppress(Exception):
                return example, name, call(example)
        raise


def _attributes(tree: Any) -> Iterator[str]:
    """The names of attributes with floats below them, those with the fewest first."""
    counts: Counter[str] = Counter()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if with_bits(leaf, 32) is not leaf or with_bits(leaf, 64) is not leaf:
            counts.update({key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)})
    yield from sorted(counts, key=lambda name: counts[name])


def tree_with_bits(tree: Any, bits: int, kept: str | None) -> Any:
    """A tree whose floats have so many bits, but for those below attributes of one name."""

    def leaf_of(path: tuple[Any, ...], leaf: Any) -> Any:
        is_kept = any(isinstance(key, jax.tree_util.GetAttrKey) and key.name == kept for key in path)
        return leaf if is_kept else with_bits(leaf, bits)

    return jax.tree_util.tree_map_with_path(leaf_of, tree)


def with_bits(leaf: Any, bits: int) -> Any:
    """A leaf whose numbers have so many bits, 64 or 32, if they are floats, or the parts of complex numbers."""
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic) or _compat.is_key(leaf.dtype):
        return leaf
    kinds = (
        (jnp.complexfloating, {64: np.complex128, 32: np.complex64}),
        (jnp.floating, {64: np.float64, 32: np.float32}),
    )
    for kind, types in kinds:
        if jnp.issubdtype(leaf.dtype, kind):
            return leaf if leaf.dtype == types[bits] else leaf.astype(types[bits])
    return leaf


def _record(keep: Any, name: str, tree: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        _record_leaf(keep, f"{name}{jax.tree_util.keystr(path)}", leaf)


def _record_leaf(keep: Any, place: str, leaf: Any) -> None:
    if isinstance(leaf, jax.Array) and _compat.is_key(leaf.dtype):
        keep(place, np.asarray(jax.random.key_data(leaf)), str(leaf.dtype), _where(leaf.sharding))
    elif isinstance(leaf, jax.Array):
        keep(place, np.asarray(leaf), str(leaf.dtype), _where(leaf.sharding))
    elif isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
        keep(place, np.asarray(leaf), str(np.asarray(leaf).dtype), "host")
    else:
        keep(place, None, f"{type(leaf).__module__}.{type(leaf).__qualname__}", "host")


def _leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by path; NumPy's arrays as copies, since a call may write into them."""
    return {
        jax.tree_util.keystr(path): leaf.copy() if isinstance(leaf, np.ndarray) else leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _record_changes(keep: Any, name: str, before: dict[str, Any], tree: Any) -> None:
    """Record what a call changed in an argument in place, as steps of nnx change their models and optimizers."""
    after = _leaves(tree)
    for path, leaf in after.items():
        if path not in before or _is_changed(before[path], leaf):
            _record_leaf(keep, f"{name}{path}{CHANGED}", leaf)
    for path in before.keys() - after.keys():
        keep(f"{name}{path}{CHANGED}", None, "nothing", "host")


def _is_changed(before: Any, after: Any) -> bool:
    if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        return (before.shape, before.dtype) != (after.shape, after.dtype) or before.tobytes() != after.tobytes()
    if isinstance(before, bool | int | float | complex):
        return type(before) is not type(after) or before != after
    return before is not after


def _where(sharding: jax.sharding.Sharding) -> str:
    """The devices of an array, and its layout on them where there are several."""
    found: set[Any] = sharding.device_set
    devices = sorted(device.id for device in found)
    text = f"device {devices[0]}" if len(devices) == 1 else f"devices {_ranges(devices)}"
    if len(devices) == 1:
        return text
    if sharding.is_fully_replicated:
        return f"{text}, replicated"
    return f"{text}, {sharding.spec}" if isinstance(sharding, NamedSharding) else text


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3, 6` for 0, 1, 2, 3 and 6."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _homes(step: MeshFunction[..., Any], names: Sequence[str]) -> dict[str, str]:
    """The devices and layout that a step keeps each argument in, by the argument's name and path."""
    found = {}
    for name, argument in zip(names, step.abstract_args(), strict=True):
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            found[f"{name}{jax.tree_util.keystr(path)}"] = _where(leaf.sharding)
    return found


def _like(result: Any, arguments: dict[str, Any]) -> dict[str, str]:
    """Results that have the tree, shapes and types of an argument: its gradients, or its next value."""
    known = {name: _shapes(argument) for name, argument in arguments.items()}
    items = {"result": result}
    if isinstance(result, tuple | list):
        items |= {f"result[{index}]": item for index, item in enumerate(result)}
    found = {}
    for place, item in items.items():
        shapes = _shapes(item)
        name = next((name for name, other in known.items() if other == shapes and len(shapes) > 1), None)
        if name is not None:
            found[place] = name
    return found


def _shapes(tree: Any) -> list[tuple[str, tuple[int, ...], str]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        (jax.tree_util.keystr(path), np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for path, leaf in leaves
    ]


def run_parser(module: str, description: str | None, bits: Sequence[int]) -> argparse.ArgumentParser:
    """Parser of what the commands are told that call a function and save what comes of it."""
    parser = parser_for(module, description)
    floats = " or ".join(f"float{count}" for count in bits)
    parser.add_argument("--save", required=True, help="an empty folder")
    parser.add_argument("--bits", type=int, choices=bits, help=f"make floats of the arguments {floats}")
    parser.add_argument("--kept", help="the attribute below which floats stay what they are")
    parser.add_argument("--throughout", action="store_true", help="make shorter floats of `jax.numpy` float64, too")
    parser.add_argument("--saved", help="the folder of a run whose arguments are taken")
    parser.add_argument("--on-one-device", action="store_true", help="compile steps by `jax.jit`, without a mesh")
    return parser


def settings_of(options: argparse.Namespace) -> RunSettings:
    """What the command line of `run_parser` says, once this process is prepared for it."""
    saved = prepare(options.saved, bits=options.bits, throughout=options.throughout)
    return RunSettings(options.bits, options.kept, saved, options.on_one_device)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the document, or `{"error": sentence, "traceback": text}`, and return the exit status."""
    parser = run_parser("mmruntime._commands.verify", __doc__, (32, 64))
    parser.add_argument("--plan", action="store_true", help="print the plan that a compiled step runs by, too")
    options = parser.parse_args(arguments)
    made = functools.partial(run, folder=options.save, settings=settings_of(options), planned=options.plan)
    return print_document(options, made)


if __name__ == "__main__":
    sys.exit(main())
