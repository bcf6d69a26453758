"""Judge what both programs return: which differences are rounding, and how that is known.

Two things tell rounding from a mistake. In float64 it vanishes; and in the types that the program names, the rewritten
program is about as near to float64 as the original is. The first finds what is computed wrong, however small, and the
second what only short types make wrong, such as a sum in bfloat16 that stops growing.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from mmrewrite.verify.programs import ProgramRun, ProgramRuns

Status = Literal["equal", "different", "broken", "not rewritten", "not run"]
Reference = Literal["original", "microbatched"]
# Role and name of an array.
Key = tuple[str, str]

# How often the original runs with disturbed arguments: an element that is one of two values by chance is the same in
# all of them, and another in the other program, once in 2**16 cases.
DISTURBED = 16

_DOUBLE = ("float64", "complex128")
_SINGLE = ("float32", "complex64")
# Rounding shrinks with the machine epsilon, by 2e-9 from float32 to float64, and a mistake does not. Between them lies
# what amplifies rounding, such as Adam's division by the size of a gradient.
_SHRINKS = 1e-5
# What comes of types of less than 32 bits, whose spacing at one is larger than this, need not shrink as far: a part of
# the state may stay float32.
_SHORT = 1e-6
_AS_FLOAT32 = 1e-5
# An error of most arrays that rounding does not explain.
_OTHER_VALUES = 0.25


class ProgramFailed(Exception):
    """A program that did not get to its end."""

    def __init__(self, status: Status, problem: str, details: str) -> None:
        super().__init__(problem)
        self.status: Status = status
        self.problem, self.details = problem, details


@dataclass(frozen=True)
class Judged:
    """What was found.

    Attributes:
        rows: For each argument and result, the row that `mmruntime._commands.compare` reports. Where it differs, more
            says why it counts as equal or not: see `mmrewrite.verify.programs.Checked`.
        notes: Remarks about what was compared.
        reference: What the results were compared with.
    """

    rows: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    reference: Reference


def judged(runs: ProgramRuns, first: ProgramRun, second: ProgramRun) -> Judged:
    """Compare the original's first run with the rewritten program's, and run both again as far as it takes to judge.

    Raises:
        ProgramFailed: If one that has to run does not get to its end.
    """
    judgement = _Judgement(runs, first, second)
    judgement.take_the_same_microbatches()
    judgement.run_in_other_precisions()
    judgement.disturb()
    judgement.hold_to_float64()
    judgement.leave_to_tolerance()
    rows = ({key: value for key, value in row.items() if key not in _INTERNAL} for row in judgement.rows.values())
    return Judged(tuple(rows), tuple(judgement.notes), judgement.reference)


_INTERNAL = ("tolerable", "near")


@dataclass(frozen=True)
class Precision:
    """The type in which a program computes, where it differs from the one that it names.

    Attributes:
        bits: Those of each float.
        throughout: Whether the types that the program names are others too.
        kept: What stays as given, because the step takes no other type there.
    """

    bits: int
    throughout: bool
    kept: str | None = None

    def __str__(self) -> str:
        return f"float{self.bits}{' throughout' if self.throughout else ''}"


@dataclass(frozen=True)
class _Wide:
    """Both programs in float64."""

    before: ProgramRun
    after: ProgramRun
    precision: Precision


class _Judgement:
    """The rows of a comparison, and what is known of them by now."""

    def __init__(self, runs: ProgramRuns, first: ProgramRun, second: ProgramRun) -> None:
        self._runs, self._first, self._second = runs, first, second
        self._shortest = float(second.document.get("epsilon", 0.0))
        found = runs.compared(first, second, shortest=self._shortest)
        self._shortest = found.epsilon
        self.rows = {key: dict(row) for key, row in found.rows.items()}
        self.notes: list[str] = []
        self.reference: Reference = "original"
        # What results are compared with.
        self._base = first
        self._wide: _Wide | None = None
        # The original with disturbed arguments, in its own types.
        self._disturbed: ProgramRun | None = None
        # Floats that need more than a tolerance; and which of them are the same in float64, or are not.
        self._open = {key for key, row in self.rows.items() if _differs(row) and _is_float(row)}
        self._same: set[Key] = set()
        self._other: set[Key] = set()
        self._problems = {key: row["problem"] for key, row in self.rows.items()}

    @property
    def _is_short(self) -> bool:
        """Whether the programs compute in types of less than 32 bits."""
        return self._shortest > _SHORT

    def take_the_same_microbatches(self) -> None:
        """Where microbatches have random numbers of their own, compare with the same microbatches on one device."""
        own = self._runs.settings.own
        if not own or not any(_differs(row) and row["role"] == "result" for row in self.rows.values()):
            return
        self._base = self._runs.rewritten(on_one_device=True)
        same = self._runs.compared(self._base, self._second).rows
        # Names, shapes, types and arguments stay those of the comparison with the original.
        for key, row in self.rows.items():
            if _differs(row) and row["role"] == "result" and key in same:
                self.rows[key] = dict(same[key])
                self._problems[key] = same[key]["problem"]
                # Of short types both may have the same mistake.
                if not _differs(same[key]) and not self._is_short:
                    self._open.discard(key)
        self.reference = "microbatched"
        self.notes.append(
            f"microbatches have {' and '.join(own)} of their own, so values are compared with those of the same "
            "microbatches, with the same random numbers, on one device"
        )

    def run_in_other_precisions(self) -> None:
        """Tell what vanishes in float64 from what does not."""
        double = ((64, True), (64, False)) if self._is_short else ((64, False), (64, True))
        for bits, throughout in (*double, (32, False)):
            precision = Precision(bits, throughout)
            if not self._is_needed(precision):
                continue
            try:
                # First the run that compiles all there is, and so is the one to find what takes no other type.
                after = self._runs.rewritten(precision, self._second)
                precision = replace(precision, kept=after.document.get("kept"))
                if self.reference == "microbatched":
                    before = self._runs.rewritten(precision, self._second, on_one_device=True)
                else:
                    before = self._runs.original(precision, self._first)
                others = self._runs.compared(before, after).rows
            except ProgramFailed as failed:
                what = f"no run in {precision}, which would tell rounding from a mistake: {failed.problem}"
                self.notes.append(what)
                continue
            if precision.kept is not None:
                self.notes.append(
                    f"`{precision.kept}` is as given in the run in {precision} too: the step takes no other type there"
                )
            if bits == 64:
                self._wide = _Wide(before, after, precision)
            for key in self._unsettled():
                self._tell_apart(key, others.get(key), precision)

    def _unsettled(self) -> list[Key]:
        return [key for key in self.rows if key in self._open - self._same]

    def _is_known(self) -> bool:
        """Whether the programs differ in more than floats, so that nothing else is left to find out."""
        return any(row["problem"] and key not in self._open for key, row in self.rows.items())

    def _is_needed(self, precision: Precision) -> bool:
        """Whether a run in another precision may settle what is open."""
        unsettled = [self.rows[key] for key in self._unsettled()]
        if precision.bits == 32:
            # What comes of float64 is rounded to less in a run in float32, where a mistake stays what it is.
            double = any(row["type"] in _DOUBLE and row["where"] != "host" for row in self.rows.values())
            return bool(unsettled) and double
        if self._wide is not None and self._is_short:
            return False
        if precision.throughout and self._is_known():
            return False
        # What is float64 already is not seen more closely.
        return any(row["type"] not in _DOUBLE for row in unsettled)

    def _tell_apart(self, key: Key, other: Mapping[str, Any] | None, precision: Precision) -> None:
        """Tell an array that differs by rounding from one that has another value, by a run in another precision."""
        row, bits = self.rows[key], precision.bits
        name = f"float{bits}"
        if other is None or not other["comparable"]:
            return
        coarse, fine = (row, other) if bits == 64 else (other, row)
        small, large = fine["absolute"], coarse["absolute"]
        as_float32 = bits == 64 and self._is_short and other["relative"] is not None
        # A mistake is as large in both, whatever type the result is put into in the end.
        if small is not None and (
            small <= _SHRINKS * (large or 0.0) or (as_float32 and other["relative"] <= _AS_FLOAT32)
        ):
            self._same.add(key)
            self._other.discard(key)
            row |= {"problem": None, name: other["absolute"], "rounding": True}
        elif name in row:
            # Told already, of a run in which fewer types were wider.
            return
        elif other["type"] not in (_DOUBLE if bits == 64 else _SINGLE):
            row["problem"] = _joined(
                row["problem"], f"the run in {precision} makes it {other['type']} as well, so it tells nothing"
            )
        else:
            self._other.add(key)
            difference = "infinity or NaN" if other["absolute"] is None else f"{other['absolute']:.2g}"
            problem = _joined(row["problem"], f"in {precision} the largest difference is {difference}")
            row |= {"problem": problem, name: other["absolute"], "rounding": False}

    def disturb(self) -> None:
        """Excuse what moves as far in the original alone if its arguments are disturbed.

        Of short types, whose last place may be as large as a mistake, that is so in float64.
        """
        left = [key for key in self._unsettled() if key in self._other or not self.rows[key].get("tolerable")]
        if not left or self._is_known():
            return
        on_one_device = self.reference == "microbatched"
        wide = self._wide if self._is_short else None
        try:
            if wide is not None:
                saved = self._second if on_one_device else self._first
                spread = self._runs.disturbed(wide.precision, saved, on_one_device=on_one_device)
                found = self._runs.compared(wide.before, wide.after, spread=spread).rows
            else:
                spread = self._disturbed = self._runs.disturbed(on_one_device=on_one_device)
                found = self._runs.compared(self._base, self._second, spread=spread).rows
        except ProgramFailed as failed:
            self.notes.append(f"no run of disturbed arguments, which may show rounding as well: {failed.problem}")
            return
        for key in left:
            moved = found.get(key, {}).get("spread")
            if moved is not None:
                self._same.add(key)
                self._other.discard(key)
                self.rows[key] |= {"problem": None, "rounding": True, "spread": moved}
        ran = "the same microbatches on one device" if on_one_device else "the original"
        self.notes.append(
            f"{ran} ran {DISTURBED} times{' in float64' if wide is not None else ''} with arguments changed in their "
            "last place: what moves there as far as it differs here is rounding"
        )

    def hold_to_float64(self) -> None:
        """Find what is farther from float64 in the rewritten program than in the original."""
        keys = [
            key
            for key, row in self.rows.items()
            if key in self._open
            and row["type"] not in _DOUBLE
            and (key in self._same or (row.get("tolerable", False) and key not in self._other))
        ]
        wide = self._wide
        if not keys or wide is None:
            return
        if self._is_short and not (
            wide.precision.throughout and float(wide.after.document.get("epsilon", 0.0)) <= _SHORT
        ):
            self.notes.append(
                "not all is float64 in the run in float64, so how far the two programs are from it is not known"
            )
            return
        try:
            found = self._nearness(wide, keys)
        except ProgramFailed as failed:
            self.notes.append(f"how far the two programs are from float64 is not known: {failed.problem}")
            return
        known = [found[key]["original_error"] or 0.0 for key in keys if "near" in found.get(key, {})]
        if known and statistics.median(known) > _OTHER_VALUES:
            self.notes.append(
                "in float64 the original has other values, so how far the two programs are from it says little: arrays "
                "that are made outside of the arguments, or branches on rounded values, may be why"
            )
        for key in keys:
            row, judgement = self.rows[key], found.get(key, {})
            if "near" not in judgement:
                continue
            error = {name: judgement[name] for name in ("error_measure", "original_error", "rewritten_error")}
            problem = None
            if not judgement["near"]:
                does = "overflows" if error["rewritten_error"] is None else "rounds more"
                agree = f"both agree in float64, and the rewritten program {does}: " if key in self._same else ""
                problem = _joined(self._problems[key], f"{agree}{error_text(error)}")
            row |= error | {"problem": problem, "rounding": problem is None}

    def _nearness(self, wide: _Wide, keys: list[Key]) -> Mapping[Key, Mapping[str, Any]]:
        """The rows with the errors of both programs."""
        runs, base, reference, its_reference = self._runs, self._base, wide.before, None
        if self._is_short and self.reference == "microbatched":
            # The same microbatches on one device may have the same mistake. The original has other random numbers, so
            # each is held to its own run in float64.
            base, its_reference = self._first, wide.before
            reference = runs.original(wide.precision, self._first)
        asked: dict[Key, str] = {}
        for spread, its_spread in self._disturbances(base, its_reference is not None):
            found = runs.compared(
                base,
                self._second,
                spread=spread,
                its_spread=its_spread,
                reference=reference,
                its_reference=its_reference,
                shortest=self._shortest,
            ).rows
            far = [key for key in keys if not found.get(key, {}).get("near", True)]
            if spread is None:
                asked = {key: error_text(found[key]) for key in far}
            if not far:
                break
        if asked:
            (_, name), error = next(iter(asked.items()))
            self.notes.append(
                f"{name}{f' and {len(asked) - 1} more are' if len(asked) > 1 else ' is'} farther from float64 than in "
                f"the original ({error}). The original may be near it by luck: in {DISTURBED} more runs of it, with "
                f"arguments rounded once more, its error is {'not as large' if far else 'as large'}"
            )
        return found

    def _disturbances(self, base: ProgramRun, draws: bool) -> Iterator[tuple[ProgramRun | None, ProgramRun | None]]:
        """Runs with disturbed arguments, as far as they are asked for: of the original, and of what is computed."""
        yield None, None
        epsilon = self._shortest if self._is_short else None
        spread = self._disturbed or self._runs.disturbed(epsilon=epsilon, on_one_device=base is not self._first)
        yield spread, None if draws else spread
        if draws:
            yield spread, self._runs.disturbed(epsilon=epsilon, on_one_device=True)

    def leave_to_tolerance(self) -> None:
        """Where nothing could be run in float64, what short types allow is all that is known."""
        left = [
            key
            for key, row in self.rows.items()
            if key in self._open - self._other and not row.get("rounding", False) and "original_error" not in row
        ]
        tolerated = [key for key in left if self.rows[key].get("tolerable") or not self.rows[key]["problem"]]
        for key in tolerated:
            self.rows[key] |= {"problem": None, "tolerated": True}
        if tolerated:
            self.notes.append(
                "nothing but the tolerance says that arrays of short types are equal, and a mistake may be as small"
            )


def most_runs(own: Collection[str]) -> int:
    """How many runs it takes at most, if each gets to its end and the program is not in float64 by itself.

    Both, in two ways in float64, and the original disturbed; where microbatches have something of their `own`, also
    these on one device, and in short types the original in float64, and both of them disturbed.
    """
    return 9 if own else 7


def error_text(row: Mapping[str, Any]) -> str:
    """How far an array is from float64 in both programs."""
    numbers = [row[f"{program}_error"] for program in ("original", "rewritten")]
    one, other = ("infinity or NaN" if number is None else f"{number:.2g}" for number in numbers)
    return f"{'largest ' * (row['error_measure'] == 'largest')}error against float64: original {one}, rewritten {other}"


def _joined(problem: str | None, more: str) -> str:
    return f"{problem}; {more}" if problem else more


def _differs(row: Mapping[str, Any]) -> bool:
    """Whether an array that both programs have, in one shape and type, has other values."""
    return bool(row["problem"]) and bool(row["comparable"])


def _is_float(row: Mapping[str, Any]) -> bool:
    return "float" in row["type"] or "complex" in row["type"]
