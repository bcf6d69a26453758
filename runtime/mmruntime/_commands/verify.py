"""Call one function in a process of its own, save its arguments and results, and compare with an earlier run.

    python -m mmruntime._commands.verify train:train_step train:example_arguments --path DIR --save NEW
    python -m mmruntime._commands.verify ... --path MIRROR --save NEWER --against NEW

This is the other end of `mmrewrite verify`: the first run is the original program on one device, the second one the
rewritten program on all of them. Whatever the function's module prints goes to standard error.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from mmruntime._commands.compare import Recorded, Tolerance, compare, load
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


def run(entry: FunctionName, arguments: FunctionName, folder: str) -> dict[str, Any]:
    """Call the function once and save its arguments and results in `folder`.

    Returns:
        Which devices it ran on, and where its arguments belong, as JSON values.

    Raises:
        BadEntryPoint: If the function cannot be imported or fails.
    """
    random.seed(_SEED)
    np.random.seed(_SEED)
    step = find(entry)
    if not callable(step):
        raise BadEntryPoint(f"{entry}: `{entry.name}` is of type {type(step).__name__}; name a function")
    example = arguments_for(entry, arguments)
    names = _names(step, len(example))
    record = Recorded(folder)
    # Before the call: a donated argument is deleted by it.
    for name, argument in zip(names, example, strict=True):
        _record(record.argument, name, argument)
    try:
        result = jax.block_until_ready(step(*example))
    except Exception as error:
        raise BadEntryPoint(
            failure(entry, "failed", error, f"it was called with what `{arguments.text}` returns")
        ) from error
    _record(record.result, "result", result)
    record.close()
    is_step = isinstance(step, MeshFunction)
    return {
        "compiled_for_a_mesh": is_step,
        "devices": jax.device_count(),
        "platform": jax.default_backend(),
        "homes": _homes(step, names) if isinstance(step, MeshFunction) else {},
        "like_arguments": _like(result, dict(zip(names, example, strict=True))),
    }


def _names(step: Any, count: int) -> list[str]:
    """The names of the function's first `count` positional parameters, made up where it does not tell."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    names = [parameter.name for parameter in parameters if parameter.kind in _BY_POSITION]
    return names[:count] + [f"argument {position}" for position in range(len(names), count)]


def _record(keep: Any, name: str, tree: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        place = f"{name}{jax.tree_util.keystr(path)}"
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            keep(place, np.asarray(jax.random.key_data(leaf)), str(leaf.dtype), _where(leaf.sharding))
        elif isinstance(leaf, jax.Array):
            keep(place, np.asarray(leaf), str(leaf.dtype), _where(leaf.sharding))
        elif isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
            keep(place, np.asarray(leaf), str(np.asarray(leaf).dtype), "host")
        else:
            keep(place, None, f"{type(leaf).__module__}.{type(leaf).__qualname__}", "host")


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
    parser.add_argument("--against", help="the folder of an earlier run")
    parser.add_argument("--rtol", type=float)
    parser.add_argument("--atol", type=float)
    options = parser.parse_args(arguments)

    def call_and_compare(entry: FunctionName, arguments: FunctionName) -> dict[str, Any]:
        document = run(entry, arguments, options.save)
        if options.against:
            rows = compare(load(options.against), load(options.save), Tolerance(options.rtol, options.atol))
            document["rows"] = [row.as_json(document["homes"]) for row in rows]
        return document

    return print_document(options, call_and_compare)


if __name__ == "__main__":
    sys.exit(main())
