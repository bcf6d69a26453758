"""Save the arrays of a run to a folder, and compare two such runs, array by array.

    python -m mmruntime._commands.compare ORIGINAL REWRITTEN --rtol 1e-3 [--spread FOLDER] [--reference FOLDER]

prints the comparison as one JSON document. It runs in a process of its own, which imports nothing of the user's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax.numpy as jnp
import ml_dtypes
import numpy as np

Key = TypeVar("Key")

_INDEX = "run.json"
# A difference may be so many times the largest that some disturbed runs show.
_OF_SPREAD = 4
# The rewritten program may be so many times as far from float64 as the original is: one more rounding of as many parts
# makes it 1.41. Of the largest error of many, which varies more, it may be twice.
_OF_ERROR, _OF_LARGEST = 1.6, 2.0
# An original that is off by half of the array has no digit right: its rounding is all there is, as large as XLA fuses
# the operations, up to four times in either program, and its square in Adam's second moment.
_NO_DIGIT, _OF_NOISE = 0.5, 16.0
# The spacing of a float of less than 32 bits is larger.
SHORT = 1e-6
# That of bfloat16. Eight bits are for factors of products, which are added up in longer types: what these are rounded
# to says more of a program.
_COARSEST = 2.0**-7
# The end of the name of what is in an argument after the call, where the call changed it in place.
CHANGED = " after the call"


@dataclass(frozen=True)
class Leaf:
    """One leaf of the arguments or results of a run.

    Attributes:
        name: The parameter or "result", and the path in it.
        role: "argument" or "result"; of a run with disturbed arguments, "result" for how far each element of the result
            moves, and "farthest" for the result that moves most.
        array: The array; None for a value that is none.
        kind: The dtype, or the class of a value that is no array.
        where: The devices and the layout on them, or "host".
    """

    name: str
    role: str
    array: np.ndarray | None
    kind: str
    where: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape; `()` where there is no array."""
        return () if self.array is None else self.array.shape


class Recorded:
    """A run that is being written to an empty folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._index: list[dict[str, Any]] = []

    def argument(self, name: str, array: np.ndarray | None, kind: str, where: str) -> None:
        """Save an argument."""
        self._save("argument", name, array, kind, where)

    def result(self, name: str, array: np.ndarray | None, kind: str, where: str) -> None:
        """Save a result."""
        self._save("result", name, array, kind, where)

    def farthest(self, name: str, array: np.ndarray | None, kind: str, where: str) -> None:
        """Save the result that moves most where arguments are disturbed."""
        self._save("farthest", name, array, kind, where)

    def _save(self, role: str, name: str, array: np.ndarray | None, kind: str, where: str) -> None:
        entry: dict[str, Any] = {"name": name, "role": role, "kind": kind, "where": where, "array": None}
        if array is not None:
            # `np.save` writes bfloat16 and the other types of ml_dtypes as raw void data.
            entry["array"] = {"shape": array.shape, "dtype": str(array.dtype), "file": f"{len(self._index)}.bin"}
            with open(os.path.join(self._folder, entry["array"]["file"]), "wb") as file:
                file.write(array.tobytes())
        self._index.append(entry)

    def close(self) -> None:
        """Write the index; a folder without one is an incomplete run."""
        with open(os.path.join(self._folder, _INDEX), "w", encoding="utf-8") as file:
            json.dump(self._index, file)


def load(folder: str) -> list[Leaf]:
    """The arrays of a run, in order.

    Raises:
        OSError, ValueError, KeyError, TypeError: If the folder is not what `Recorded` writes.
    """
    with open(os.path.join(folder, _INDEX), encoding="utf-8") as file:
        index = json.load(file)
    if not isinstance(index, list):
        raise ValueError("its index is no list")
    return [
        Leaf(entry["name"], entry["role"], _array(folder, entry["array"]), entry["kind"], entry["where"])
        for entry in index
    ]


def _array(folder: str, entry: Mapping[str, Any] | None) -> np.ndarray | None:
    if entry is None:
        return None
    with open(os.path.join(folder, entry["file"]), "rb") as file:
        return np.frombuffer(file.read(), dtype=jnp.dtype(entry["dtype"])).reshape(entry["shape"])


def spacing(dtype: Any) -> float:
    """How far the number behind one is from one, in a float type, or in the parts of a complex one."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Tolerance:
    """How far floats may differ: `|rewritten - original| <= atol + rtol * |original|`, element by element.

    Unless a tolerance is given, floats of less than 32 bits must be equal: their rounding is as large as many a
    mistake, and is judged by how far both programs are from float64.

    By default `atol` is a share of the array's largest element, as gradients have scales of their own. That share and
    `rtol` depend on the type: 1e-11 and 1e-9 for float64, 1e-5 and 1e-4 for float32, 2 and 4 times the machine
    epsilon for shorter ones. Whole numbers, booleans and keys must be equal.

    Attributes:
        rtol: Tolerance relative to each element; None for the default.
        atol: Absolute tolerance for all arrays; None for a share of each array's largest element.
    """

    rtol: float | None = None
    atol: float | None = None

    def of(self, dtype: Any, largest: float) -> tuple[float, float]:
        """Relative and absolute tolerance for an array of a type, whose largest finite element is given."""
        if not jnp.issubdtype(dtype, jnp.inexact):
            return 0.0, 0.0
        epsilon = spacing(dtype)
        rtol, share = (1e-9, 1e-11) if epsilon < 1e-12 else (1e-4, 1e-5)
        if epsilon > SHORT:
            rtol, share = 4 * epsilon, 2 * epsilon
        return rtol if self.rtol is None else self.rtol, share * largest if self.atol is None else self.atol

    def judges(self, dtype: Any) -> bool:
        """Whether floats of a type within the tolerance are equal, so that no run in float64 is needed to say so."""
        given = self.rtol is not None or self.atol is not None
        return given or not jnp.issubdtype(dtype, jnp.inexact) or spacing(dtype) <= SHORT


@dataclass(frozen=True)
class Errors:
    """How far an array is from what float64 makes of it, in the original program and in the rewritten one.

    Attributes:
        original: The norm of the original's error relative to the norm of the array in float64, or the norm itself
            where that is zero; infinity where a value is not finite that should be.
        rewritten: That of the rewritten program.
        original_largest: The largest error of an element relative to the largest element in float64, in the original.
        rewritten_largest: That in the rewritten program.
        size: The number of elements.
        epsilon: The spacing of their type at one.
        is_zero: Whether all are zero in float64.
    """

    original: float
    rewritten: float
    original_largest: float
    rewritten_largest: float
    size: int
    epsilon: float
    is_zero: bool

    @property
    def has_digits(self) -> bool:
        """Whether the original is near to float64 at all: what is zero in exact arithmetic is not."""
        return self.original < _NO_DIGIT and not self.is_zero

    def are_near(self, shortest: float = 0.0, typical: float = 0.0) -> bool:
        """Whether the rewritten program is about as near to float64 as the original is.

        Sums in another order round to a neighbour, by a quarter of the spacing or so in all.

        Args:
            shortest: The spacing of the shortest type that the program computes in, for arrays of longer ones: of few
                elements the original may be right by luck, which many do not have.
            typical: The error of most of the original's arrays of the type, which is no sign of a mistake in one.
        """
        if not self.has_digits:
            return self.rewritten <= _OF_NOISE * self.original
        luck = (self.epsilon if self.epsilon > SHORT else max(self.epsilon, shortest)) / max(self.size, 1) ** 0.5
        allowed = _OF_ERROR * max(self.original, typical) + self.epsilon / 4 + 0.75 * luck
        largest = _OF_LARGEST * max(self.original_largest, typical) + self.epsilon + luck
        return bool(self.rewritten <= allowed and self.rewritten_largest <= largest)


def errors(
    original: np.ndarray,
    rewritten: np.ndarray,
    reference: np.ndarray,
    its_reference: np.ndarray | None = None,
    spread: np.ndarray | None = None,
) -> Errors:
    """How far an array of both programs, each in the types that it names, is from what float64 makes of it.

    Args:
        original: The array of the original program, of any shape and float type.
        rewritten: That of the rewritten program.
        reference: That of the original program in float64.
        its_reference: That of the rewritten program's computation in float64, where it computes with other random
            numbers; else `reference`.
        spread: How far each element moves if the arguments of that computation are disturbed. One that moves by half of
            its size has no digit either, as where an optimizer takes the sign of a gradient, and does not count.
    """
    its_reference = reference if its_reference is None else its_reference
    first, second = _off(original, reference), _off(rewritten, its_reference)
    # Where the original is not finite and should be, nothing can be farther off.
    counts = np.isfinite(first)
    if spread is not None:
        counts &= ~((spread >= _NO_DIGIT * np.abs(wide(its_reference))) & (second <= _OF_SPREAD * spread))
    size = np.abs(wide(reference))
    size = np.where(np.isfinite(size), size, 0.0)
    largest = float(np.max(size, initial=0.0)) or 1.0
    norm = float(np.linalg.norm(size / largest)) or 1.0

    def relative(off: np.ndarray) -> tuple[float, float]:
        kept = np.where(counts, off, 0.0) / largest
        return float(np.linalg.norm(kept)) / norm, float(np.max(kept, initial=0.0))

    (one, most), (other, others_most) = relative(first), relative(second)
    epsilon = spacing(original.dtype) + spacing(reference.dtype)
    return Errors(one, other, most, others_most, first.size, epsilon, not size.any())


def near(found: Mapping[Key, Errors], shortest: float = 0.0) -> dict[Key, bool]:
    """Whether the rewritten program is about as near to float64 as the original is, in each array of a program.

    `shortest` is the spacing of the shortest type that it computes in.
    """
    by_type: dict[float, list[float]] = {}
    for each in found.values():
        if each.has_digits:
            by_type.setdefault(each.epsilon, []).append(each.original)
    typical = {epsilon: statistics.median(known) for epsilon, known in by_type.items()}
    return {key: each.are_near(shortest, typical.get(each.epsilon, 0.0)) for key, each in found.items()}


def _off(found: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """How far each element is from the reference, infinity where it is not finite and the reference is."""
    found, reference = wide(found), wide(reference)
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.where((found == reference) | (np.isnan(found) & np.isnan(reference)), 0.0, np.abs(found - reference))
    return np.where(np.isnan(off), np.inf, off)


def wide(array: np.ndarray) -> np.ndarray:
    """An array of floats, or of complex numbers, in the longest type of its kind."""
    return array.astype(np.complex128 if jnp.issubdtype(array.dtype, jnp.complexfloating) else np.float64)


@dataclass(frozen=True)
class Row:
    """One array in both programs, and how far they are apart.

    Attributes:
        original: The leaf of the original program; None if it has none of that name.
        rewritten: The leaf of the rewritten program; None if it has none of that name.
        absolute: The largest difference; None where they cannot be compared.
        relative: The largest difference relative to the largest element of the original; None if that is zero, unless
            they are equal.
        problem: Why they count as different; None if they are equal within the tolerance.
        tolerable: Whether they are equal within the default tolerance of their type, if a tolerance alone cannot say
            so: there is a problem then.
        spread: How far the original's own values are apart where arguments are disturbed, of the elements beyond the
            tolerance; None unless that is why there is no problem.
    """

    original: Leaf | None
    rewritten: Leaf | None
    absolute: float | None
    relative: float | None
    problem: str | None
    tolerable: bool = False
    spread: float | None = None

    @property
    def comparable(self) -> bool:
        """Whether both programs have the array, in one shape and type."""
        leaves = (self.original, self.rewritten)
        return all(leaf is not None and leaf.array is not None for leaf in leaves) and (
            len({(leaf.shape, leaf.kind) for leaf in leaves if leaf is not None}) == 1
        )

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        leaf = self.original or self.rewritten
        assert leaf is not None
        return {
            "name": leaf.name,
            "role": leaf.role,
            "shape": leaf.shape,
            "type": leaf.kind,
            "absolute": self.absolute,
            "relative": self.relative,
            "original_where": self.original.where if self.original else None,
            "where": self.rewritten.where if self.rewritten else None,
            "comparable": self.comparable,
            "problem": self.problem,
            "tolerable": self.tolerable,
            **({} if self.spread is None else {"spread": self.spread}),
        }


def compare(
    original: Sequence[Leaf], rewritten: Sequence[Leaf], tolerance: Tolerance, spreads: Sequence[Leaf] = ()
) -> list[Row]:
    """A row for every array of the original program, in order, then one for every array of the rewritten one alone.

    `spreads` are how far each element of the original's results moves if its arguments are disturbed.
    """
    spread_of = {leaf.name: leaf.array for leaf in spreads if leaf.role == "result"}
    original, rewritten = _with_unchanged(original, rewritten), _with_unchanged(rewritten, original)
    others = {(leaf.role, leaf.name): leaf for leaf in rewritten}
    rows = [
        _row(leaf, others.pop((leaf.role, leaf.name), None), tolerance, spread_of.get(leaf.name)) for leaf in original
    ]
    return rows + [Row(None, leaf, None, None, "only the rewritten program has it") for leaf in others.values()]


@dataclass(frozen=True)
class Nearness:
    """Whether the rewritten program is about as near to float64 as the original is, in one array.

    Attributes:
        errors: How far both are.
        near: Whether that is about as near.
    """

    errors: Errors
    near: bool

    def as_json(self) -> dict[str, Any]:
        """As JSON values: the norms of the errors, or the largest ones if these alone tell the programs apart."""
        found = self.errors
        pair = found.original, found.rewritten
        measure = "norm"
        if not self.near and found.rewritten <= _OF_ERROR * found.original:
            pair = found.original_largest, found.rewritten_largest
            measure = "largest"
        one, other = (error if np.isfinite(error) else None for error in pair)
        return {"near": self.near, "error_measure": measure, "original_error": one, "rewritten_error": other}


def nearness(
    original: Sequence[Leaf],
    rewritten: Sequence[Leaf],
    reference: Sequence[Leaf],
    its_reference: Sequence[Leaf] = (),
    disturbed: Sequence[Leaf] = (),
    its_disturbed: Sequence[Leaf] = (),
    shortest: float = 0.0,
) -> dict[tuple[str, str], Nearness]:
    """The judgement on every float array that all of these runs have, by role and name.

    Args:
        original: The original program.
        rewritten: The rewritten one.
        reference: The original in float64.
        its_reference: What the rewritten program computes, in float64, if that has random numbers of its own.
        disturbed: The original with disturbed arguments, whose errors are the original's as well.
        its_disturbed: What the rewritten program computes, with disturbed arguments.
        shortest: The spacing of the shortest type that the programs compute in.
    """
    moved = {("result", leaf.name): leaf.array for leaf in disturbed if leaf.role == "farthest"}
    spreads = {("result", leaf.name): leaf.array for leaf in its_disturbed if leaf.role == "result"}
    after, exact, its_exact = (
        {(leaf.role, leaf.name): leaf.array for leaf in _with_unchanged(leaves, original)}
        for leaves in (rewritten, reference, its_reference or reference)
    )
    found: dict[tuple[str, str], Errors] = {}
    for leaf in _with_unchanged(original, rewritten):
        if leaf.role != "result":
            continue
        key = leaf.role, leaf.name
        arrays = [leaf.array, after.get(key), exact.get(key), its_exact.get(key)]
        if any(array is None or array.shape != leaf.shape or not _is_float(array) for array in arrays):
            continue
        one, other, long, its_long = (array for array in arrays if array is not None)
        spread = spreads.get(key)
        if spread is not None and spread.shape != leaf.shape:
            spread = None
        found[key] = errors(one, other, long, its_long, spread)
        far = moved.get(key)
        if far is not None and far.shape == leaf.shape:
            more = errors(far, other, long, its_long)
            found[key] = replace(
                found[key],
                original=max(found[key].original, more.original),
                original_largest=max(found[key].original_largest, more.original_largest),
            )
    are_near = near(found, shortest)
    return {key: Nearness(each, are_near[key]) for key, each in found.items()}


def _is_float(array: np.ndarray) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _with_unchanged(leaves: Sequence[Leaf], other: Sequence[Leaf]) -> list[Leaf]:
    """The leaves of a run. Leaves that only the other run changed in place have their values from before."""
    known = {(leaf.role, leaf.name): leaf for leaf in leaves}
    changed = [leaf.name for leaf in other if leaf.role == "result" and leaf.name.endswith(CHANGED)]
    missing = [name for name in changed if ("result", name) not in known]
    before = ((name, known.get(("argument", name.removesuffix(CHANGED)))) for name in missing)
    return [*leaves, *(replace(leaf, name=name, role="result") for name, leaf in before if leaf is not None)]


def _row(original: Leaf, rewritten: Leaf | None, tolerance: Tolerance, spread: np.ndarray | None) -> Row:
    if rewritten is None:
        return Row(original, None, None, None, "only the original program has it")
    if (original.shape, original.kind) != (rewritten.shape, rewritten.kind):
        problem = f"it became {rewritten.kind}{list(rewritten.shape)}, from {original.kind}{list(original.shape)}"
        return Row(original, rewritten, None, None, problem)
    if original.array is None or rewritten.array is None:
        return Row(original, rewritten, None, None, None)
    if original.role == "argument" or spread is None or spread.shape != original.shape:
        spread = None
    return _differences(original, rewritten, original.array, rewritten.array, tolerance, spread)


def _differences(
    original: Leaf,
    rewritten: Leaf,
    before: np.ndarray,
    after: np.ndarray,
    tolerance: Tolerance,
    spread: np.ndarray | None,
) -> Row:
    dtype = before.dtype
    if _is_float(before):
        before, after = wide(before), wide(after)
        same = (before == after) | (np.isnan(before) & np.isnan(after))
    else:
        same = before == after
        # Differences of unsigned numbers and of booleans are not numbers of their own type.
        before, after = before.astype(np.float64), after.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(same, 0.0, np.abs(after - before))
        size = np.abs(before)
        largest = float(np.max(size[np.isfinite(size)], initial=0.0))
        rtol, atol = tolerance.of(dtype, largest)
        # A tolerance relative to infinity would allow anything.
        wrong = ~same & ~(np.isfinite(size) & (apart <= atol + rtol * size))
    absolute = float(np.max(apart, initial=0.0))
    relative = 0.0 if not absolute else absolute / largest if largest else None
    problem, shown, tolerable = None, None, False
    if not wrong.any() and not tolerance.judges(dtype) and not same.all():
        wrong, tolerable = ~same, True
    if spread is not None and wrong.any() and np.all(apart[wrong] <= _OF_SPREAD * spread[wrong]):
        shown = float(np.max(spread[wrong]))
    elif wrong.any():
        first = tuple(int(index) for index in np.argwhere(wrong)[0])
        place = f" at {list(first)}" if first else ""
        limit = f" by more than {atol:.3g} + {rtol:.3g} * |original|" if rtol or atol else " and must be equal"
        problem = (
            f"{int(wrong.sum())} of {wrong.size} elements differ{'' if tolerable else limit}, the first{place}: "
            f"{before[first]!s} became {after[first]!s}"
        )
    return Row(
        original,
        rewritten,
        absolute if np.isfinite(absolute) else None,
        relative if relative is not None and np.isfinite(relative) else None,
        problem,
        tolerable and problem is not None,
        shown,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison, or `{"error": sentence}` if a folder is not what a run saves; return the exit status.

    The comparison is `{"rows": ..., "epsilon": ...}`, with the spacing of the shortest float type that there is, or of
    bfloat16 if that is longer.
    """
    parser = argparse.ArgumentParser(prog="python -m mmruntime._commands.compare", description=__doc__)
    parser.add_argument("original")
    parser.add_argument("rewritten")
    parser.add_argument("--rtol", type=float)
    parser.add_argument("--atol", type=float)
    parser.add_argument("--epsilon", type=float, default=0.0, help="the spacing of the shortest type of the steps")
    parser.add_argument("--spread", help="what the original run saved of disturbed arguments")
    parser.add_argument("--its-spread", help="what it saved of those of what the rewritten program is to compute")
    parser.add_argument("--reference", help="what the original saved in float64")
    parser.add_argument("--its-reference", help="what the rewritten program is to compute, in float64, if not that")
    options = parser.parse_args(arguments)
    runs: list[list[Leaf]] = []
    for folder in (
        options.original,
        options.rewritten,
        options.spread,
        options.its_spread,
        options.reference,
        options.its_reference,
    ):
        try:
            runs.append([] if folder is None else load(folder))
        except (OSError, ValueError, KeyError, TypeError) as error:
            json.dump({"error": f"what a program saved cannot be read: {type(error).__name__}: {error}"}, sys.stdout)
            return 2
    original, rewritten, spread, its_spread, reference, its_reference = runs
    arrays = [leaf.array for leaf in (*original, *rewritten) if leaf.array is not None]
    spacings = [options.epsilon, *(spacing(array.dtype) for array in arrays if _is_float(array))]
    epsilon = min(max(spacings), _COARSEST)
    judged = nearness(original, rewritten, reference, its_reference, spread, its_spread, epsilon)
    rows = []
    for row in compare(original, rewritten, Tolerance(options.rtol, options.atol), spread):
        found = row.as_json()
        near = judged.get((found["role"], found["name"]))
        rows.append(found if near is None else {**found, **near.as_json()})
    json.dump({"rows": rows, "epsilon": epsilon}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
