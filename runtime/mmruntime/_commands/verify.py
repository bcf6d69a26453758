"""Call one function in a process of its own, and save its arguments and results.

    python -m mmruntime._commands.verify train:train_step train:example_arguments --path DIR --save NEW

This is the other end of `mmrewrite verify`, which runs the original program on one device and the rewritten one on all
of them, and has `mmruntime._commands.compare` compare what they saved. Whatever the function's module prints goes to
standard error.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from mmruntime._commands.compare import CHANGED, Recorded, load, spacing
from mmruntime._commands.entry_point import (
    BadEntryPoint,
    FunctionName,
    arguments_for,
    failure,
    find,
    parser_for,
    print_document,
)
from mmruntime._step.mesh_function import MeshFunction

_SEED = 0
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def run(
    entry: FunctionName,
    arguments: FunctionName,
    folder: str,
    *,
    bits: int | None = None,
    kept: str | None = None,
    throughout: bool = False,
    saved: str | None = None,
    on_one_device: bool = False,
) -> dict[str, Any]:
    """Call the function once and save its arguments and results in `folder`.

    Args:
        entry: The function.
        arguments: The function that returns its arguments.
        folder: An empty folder.
        bits: 64 or 32 for floats of the arguments, and for each part of complex numbers; None leaves them as they are.
        kept: The attribute below which they are left as they are; if None and the function refuses `bits` bits
            everywhere, the one with the fewest floats below it with which it does not.
        throughout: Whether shorter floats that the program names, as `jnp.bfloat16` or "bfloat16", are float64 as well.
        saved: The folder of an earlier run, whose arguments are taken: what makes them may make others in float64.
        on_one_device: Whether a compiled step runs as the function that it is, operation by operation: with its
            microbatches and their random numbers, and without a mesh.

    Returns:
        Which devices it ran on, where its arguments belong, and the spacing at one of the shortest float that steps for
        a mesh compute in, as JSON values.

    Raises:
        BadEntryPoint: If the function cannot be imported or fails.
    """
    make = maker_of(entry, arguments, saved, bits=bits, throughout=throughout)
    step, given, names = make()
    MeshFunction.watch = plans = []

    def call(example: Sequence[Any]) -> Any:
        record = Recorded(folder)
        result = record_call(step, names, example, record, on_one_device=on_one_device)
        record.close()
        return result

    try:
        example, kept, result = _called(call, given, bits, kept)
    except Exception as error:
        raise BadEntryPoint(
            failure(entry, "failed", error, f"it was called with what `{arguments.text}` returns")
        ) from error
    finally:
        MeshFunction.watch = None
    types = {dtype for plan in plans for dtype in plan.step.float_types()}
    return {
        "kept": kept,
        "epsilon": max(map(spacing, types), default=0.0),
        # A function that makes steps and calls them shows as much as one of these would.
        "compiled_for_a_mesh": isinstance(step, MeshFunction) or bool(plans),
        "devices": jax.device_count(),
        "platform": jax.default_backend(),
        "homes": _homes(step, names) if isinstance(step, MeshFunction) and not on_one_device else {},
        "like_arguments": _like(result, dict(zip(names, example, strict=True))),
    }


Made = tuple[Any, tuple[Any, ...], list[str]]


def maker_of(
    entry: FunctionName, arguments: FunctionName, saved: str | None, *, bits: int | None, throughout: bool
) -> Callable[[], Made]:
    """What makes the function, its arguments, with the same seeds each time, and their names.

    Args:
        entry: The function.
        arguments: The function that returns its arguments.
        saved: The folder of a run whose arguments are taken for those that it returns; None for none.
        bits: 64 in a process with `JAX_ENABLE_X64`, where random numbers are drawn as without, unless these arguments
            say that the program uses it by itself.
        throughout: Whether shorter floats that the program names are float64.

    Raises:
        BadEntryPoint: Where it is called: if there is no such function, or no arguments can be made.
    """
    # Before names of types mean others.
    leaves = [leaf for leaf in load(saved) if leaf.role == "argument"] if saved is not None else []
    known = {leaf.name: leaf.array for leaf in leaves}
    if bits == 64 and not any(leaf.kind == "float64" and leaf.where != "host" for leaf in leaves):
        _draw_as_float32()
    if throughout:
        _widen_types()

    def make() -> Made:
        random.seed(_SEED)
        np.random.seed(_SEED)
        step = find(entry)
        if not callable(step):
            raise BadEntryPoint(f"{entry}: `{entry.name}` is of type {type(step).__name__}; name a function")
        given = arguments_for(entry, arguments)
        names = names_of(step, len(given))
        return step, tuple(_as_saved(name, tree, known) for name, tree in zip(names, given, strict=True)), names

    return make


def _as_saved(name: str, tree: Any, known: Mapping[str, np.ndarray | None]) -> Any:
    """An argument with the arrays that another run has saved."""

    def leaf_of(path: tuple[Any, ...], leaf: Any) -> Any:
        array = known.get(f"{name}{jax.tree_util.keystr(path)}")
        if array is None or not isinstance(leaf, jax.Array | np.ndarray | np.generic) or leaf.shape != array.shape:
            return leaf
        if not isinstance(leaf, jax.Array):
            return array.copy() if isinstance(leaf, np.ndarray) else array[()]
        return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jax.device_put(array, leaf.sharding)

    return jax.tree_util.tree_map_with_path(leaf_of, tree) if known else tree


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
    with jax.disable_jit() if on_one_device else contextlib.nullcontext():
        result = jax.block_until_ready(step(*example))
    _record(record.result, "result", result)
    for name, argument, leaves in zip(names, example, before, strict=True):
        _record_changes(record.result, name, leaves, argument)
    return result


def _widen_types() -> None:
    """Make every shorter float or complex type of `jax.numpy`, and its name in text, the longest.

    It is done before the program is imported. Models in mixed precision name the types that they compute in, whatever
    their arguments are. JAX itself does not read these names.
    """
    for name, value in list(vars(jnp).items()):
        if isinstance(value, type(jnp.float32)) and jnp.issubdtype(value, jnp.inexact):
            setattr(jnp, name, jnp.complex128 if jnp.issubdtype(value, jnp.complexfloating) else jnp.float64)
    # NumPy looks up names such as "bfloat16" here.
    for name, value in list(np.sctypeDict.items()):
        longest = np.complex128 if jnp.issubdtype(value, jnp.complexfloating) else np.float64
        if jnp.issubdtype(value, jnp.inexact) and np.dtype(value).itemsize < np.dtype(longest).itemsize:
            np.sctypeDict[name] = longest


def _draw_as_float32() -> None:
    """Make the functions of `jax.random` draw in float64 what they draw without `JAX_ENABLE_X64`.

    It has them draw in float64 and int64 unless a type is named, which are other numbers.
    """
    for name in ("uniform", "normal", "truncated_normal", "gumbel", "exponential", "laplace", "randint"):
        setattr(jax.random, name, _drawing(getattr(jax.random, name), "int32" if name == "randint" else "float32"))
    for name, position in (("bernoulli", "p"), ("categorical", "logits")):
        setattr(jax.random, name, _drawing_by(getattr(jax.random, name), position))


def _drawing(draw: Callable[..., Any], dtype: str) -> Callable[..., Any]:
    signature = inspect.signature(draw)

    @functools.wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        asked = bound.arguments.get("dtype")
        if asked is not None and np.dtype(asked).itemsize < 8:
            return draw(*args, **kwargs)
        bound.arguments["dtype"] = jnp.dtype(dtype)
        found = draw(*bound.args, **bound.kwargs)
        return found.astype(jnp.float64) if jnp.issubdtype(found.dtype, jnp.floating) else found

    return drawn


def _drawing_by(draw: Callable[..., Any], name: str) -> Callable[..., Any]:
    signature = inspect.signature(draw)

    @functools.wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        bound.arguments[name] = jnp.asarray(bound.arguments[name], "float32")
        return draw(*bound.args, **bound.kwargs)

    return drawn


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
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic) or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    kinds = (
        (jnp.complexfloating, {64: np.complex128, 32: np.complex64}),
        (jnp.floating, {64: np.float64, 32: np.float32}),
    )
    for kind, types in kinds:
        if jnp.issubdtype(leaf.dtype, kind):
            return leaf if leaf.dtype == types[bits] else leaf.astype(types[bits])
    return leaf


def names_of(step: Any, count: int) -> list[str]:
    """The names of the function's first `count` positional parameters, made up where it does not tell."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    names = [parameter.name for parameter in parameters if parameter.kind in _BY_POSITION]
    return names[:count] + [f"argument {position}" for position in range(len(names), count)]


def _record(keep: Any, name: str, tree: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        _record_leaf(keep, f"{name}{jax.tree_util.keystr(path)}", leaf)


def _record_leaf(keep: Any, place: str, leaf: Any) -> None:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the document, or `{"error": sentence, "traceback": text}`, and return the exit status."""
    parser = parser_for("mmruntime._commands.verify", __doc__)
    parser.add_argument("--save", required=True, help="an empty folder")
    parser.add_argument("--bits", type=int, choices=(32, 64), help="make floats of the arguments float32 or float64")
    parser.add_argument("--kept", help="the attribute below which floats stay what they are")
    parser.add_argument("--throughout", action="store_true", help="make shorter floats of `jax.numpy` float64, too")
    parser.add_argument("--saved", help="the folder of a run whose arguments are taken")
    parser.add_argument("--on-one-device", action="store_true", help="run a compiled step as the function that it is")
    options = parser.parse_args(arguments)
    return print_document(
        options,
        lambda entry, arguments: run(
            entry,
            arguments,
            options.save,
            bits=options.bits,
            kept=options.kept,
            throughout=options.throughout,
            saved=options.saved,
            on_one_device=options.on_one_device,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
