"""Call one function with arguments that are changed in their last place, and save how far its results move.

    python -m mmruntime._commands.disturb train:train_step train:example_arguments --path DIR --save NEW --count 16

`mmrewrite verify` asks for it where two programs differ in every precision, as updates that take the sign of a gradient
do whose exact value is zero: what rounding moves as far in the original alone is no mistake of the other. It asks as
well where the original is nearer to float64 than the other, which it may be by luck: other arguments have other luck.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mmruntime import _compat
from mmruntime._commands.compare import SHORT, Recorded, spacing, wide
from mmruntime._commands.entry_point import BadEntryPoint, FunctionName, called_with, failure, print_document
from mmruntime._commands.verify import (
    AS_IT_IS,
    RunSettings,
    record_call,
    run_parser,
    settings_of,
    step_and_arguments,
    tree_with_bits,
)
from mmruntime._core import progress


class _FloatResults:
    """The float results of a call."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[np.ndarray, str, str]] = {}

    def argument(self, name: str, array: np.ndarray | None, kind: str, where: str) -> None:
        """Leave out an argument: both programs are given the same."""

    def result(self, name: str, array: np.ndarray | None, kind: str, where: str) -> None:
        """Keep a result."""
        if array is not None and jnp.issubdtype(array.dtype, jnp.inexact):
            self.found[name] = wide(array), kind, where


def run(
    entry: FunctionName,
    arguments: FunctionName,
    folder: str,
    count: int,
    settings: RunSettings = AS_IT_IS,
    *,
    epsilon: float | None = None,
) -> dict[str, Any]:
    """Save, in the place of each float result of a function, how far each of its elements moves, and what moves most.

    Args:
        entry: The function.
        arguments: The function that returns its arguments.
        folder: An empty folder.
        count: How often it is called with disturbed arguments.
        settings: How it is called; floats of the arguments are widened first.
        epsilon: The spacing of the shortest type that the step computes in, for arguments that are changed as if they
            were rounded to it once more; None for changes of the last place of every float.

    Raises:
        BadEntryPoint: If the function cannot be imported or fails.
    """

    def results(generator: np.random.Generator | None) -> dict[str, tuple[np.ndarray, str, str]]:
        # Anew for each call, which may donate them or change them in place.
        step, given, names = step_and_arguments(entry, arguments, settings.saved)
        given = given if settings.bits is None else tree_with_bits(given, settings.bits, settings.kept)
        if generator is not None:
            given = jax.tree.map(lambda leaf: disturbed(leaf, generator, epsilon), given)
        found = _FloatResults()
        try:
            record_call(step, names, given, found, on_one_device=settings.on_one_device)
        except Exception as error:
            advice = f"{called_with(arguments)}, changed in its last place"
            raise BadEntryPoint(failure(entry, "failed", error, advice)) from error
        return found.found

    base = results(None)
    spreads = {name: np.zeros(array.shape) for name, (array, _, _) in base.items()}
    farthest = {name: (0.0, array) for name, (array, _, _) in base.items()}
    one_more = progress.counted("running the step", count, "run")
    for number in range(count):
        moved = results(np.random.default_rng(number))
        one_more()
        for name, spread in spreads.items():
            if name in moved and moved[name][0].shape == spread.shape:
                with np.errstate(invalid="ignore", over="ignore"):
                    apart = np.abs(moved[name][0] - base[name][0])
                    np.fmax(spread, apart, out=spread)
                    norm = float(np.linalg.norm(apart))
                if norm > farthest[name][0]:
                    farthest[name] = norm, moved[name][0]
    record = Recorded(folder)
    for name, (_, kind, where) in base.items():
        record.result(name, spreads[name], kind, where)
        record.farthest(name, farthest[name][1], kind, where)
    record.close()
    return {"count": count}


def disturbed(leaf: Any, generator: np.random.Generator, epsilon: float | None = None) -> Any:
    """A leaf whose floats, or parts of complex numbers, are each changed by at most one unit in the last place.

    With `epsilon` it is, of floats of 32 bits or more, the last place of the type with that spacing, and a twelfth of
    the floats changes: by as much, in all, as if each were rounded once more.
    """
    if not isinstance(leaf, jax.Array | np.ndarray) or _compat.is_key(leaf.dtype):
        return leaf
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    unit = spacing(leaf.dtype)
    if epsilon is not None and unit <= SHORT:
        unit = max(unit, epsilon)
    steps = generator.integers(-1, 2, leaf.shape).astype(np.float64) * unit
    if epsilon is not None:
        # Of few floats, one or two: none at all would show nothing.
        steps *= generator.random(leaf.shape) < max(1 / 8, 2 / max(leaf.size, 1))
    changed = (np.asarray(leaf) * (1 + steps)).astype(leaf.dtype)
    return jax.device_put(changed, leaf.sharding) if isinstance(leaf, jax.Array) else changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the document, or `{"error": sentence, "traceback": text}`, and return the exit status."""
    parser = run_parser("mmruntime._commands.disturb", __doc__, (64,))
    parser.add_argument("--count", type=int, required=True, help="how often it is called with disturbed arguments")
    parser.add_argument("--epsilon", type=float, help="change arguments as if they were rounded to this once more")
    options = parser.parse_args(arguments)
    settings = settings_of(options)
    made = functools.partial(run, folder=options.save, count=options.count, settings=settings, epsilon=options.epsilon)
    return print_document(options, made)


if __name__ == "__main__":
    sys.exit(main())
