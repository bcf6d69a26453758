"""What a proof says to people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mmruntime._exactness.lattice import Reason
from mmruntime._exactness.prove import Proof, Verdict
from mmruntime._exactness.rules.equation import Hoisted

# Results in one message; the rest of the list says no more.
_SHOWN = 3
# What is wrong with them.
_MOST_REASONS = 5


def not_exact(label: str, verdicts: Sequence[Verdict], names: Sequence[str]) -> str:
    """The message where results differ from those of the whole batch, or may: each reason with its results.

    Args:
        label: The function's name.
        verdicts: What is proved of the results, some of which are not.
        names: What each of them is called.
    """
    failed = [(name, verdict) for name, verdict in zip(names, verdicts, strict=True) if not verdict.is_proved]
    own = [pair for pair in failed if pair[1].reason is None or not pair[1].reason.is_of_other] or failed
    by_reason: dict[Reason | None, list[str]] = {}
    # What is known to be wrong comes before what is not known.
    for name, verdict in sorted(own, key=lambda pair: pair[1].kind != "mixed"):
        # A gradient often has another reason at the line that the loss has one at; and a call is one thing to change.
        calls = {(reason.line, reason.call) for reason in by_reason if reason is not None}
        for reason in (None,) if verdict.reason is None else verdict.reason.every:
            place = reason and (reason.line, reason.call)
            if reason in by_reason or place not in calls:
                by_reason.setdefault(reason, []).append(name)
            if reason is not None and reason.call:
                calls.add((reason.line, reason.call))
    said = [f"{listed(which)} of {label}: {because(reason)}" for reason, which in by_reason.items()]
    if len(said) == 1:
        return said[0]
    more = len(said) - _MOST_REASONS
    rest = [f"- and {more} more"] if more > 0 else []
    return "\n".join((f"{len(said)} reasons:", *(f"- {each}" for each in said[:_MOST_REASONS]), *rest))


def because(reason: Reason | None) -> str:
    """Why something is not proved: the line, what is called there, the problem and the advice, as sentences."""
    if reason is None:
        return "there is no proof."
    operation = f" (`{reason.primitive}`)" if reason.primitive and f"`{reason.primitive}`" not in reason.problem else ""
    call = f", in `{reason.call}`," if reason.call else ""
    place = f"{reason.line}{call} {reason.problem}" if reason.line else f"the function {reason.problem}"
    advice = _INSTEAD.get(reason.call, reason.advice)
    return f"{place}{operation}.{f' {advice}' if advice else ''}"


# What to write for functions that are exact in another form.
_INSTEAD = {
    "jnp.nanmean": (
        "It counts which values are not NaN, and parameters may decide that. Where the batch alone does, write "
        "jnp.mean(x, where=mask), whose count is computed once."
    )
}


def listed(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def by_text(said: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each text, with the names that it is said of; of pairs of a text and a name."""
    names: dict[str, list[str]] = {}
    for text, name in said:
        names.setdefault(text, []).append(name)
    return [f"{text}: {listed(found)}" for text, found in names.items()]


def contradiction(verdict: Verdict, how: str, dim: int, name: str, label: str) -> str | None:
    """What is wrong with putting a result together in a given way; None if nothing is, or nothing is known.

    Args:
        verdict: What is proved of the function as it is written.
        how: "sum", "mean", "concat", "max" or "min".
        dim: The dimension of the result along which "concat" joins.
        name: The result's name.
        label: The function's name.
    """
    if verdict.kind == "unknown" or gives_whole(verdict, how, dim):
        return None
    if verdict.kind == "mixed":
        return f'reduce="{how}" is not exact for {name} of {label}: {because(verdict.reason)}'
    described = _DESCRIPTIONS[verdict.word]
    return f'reduce="{how}" for {name} of {label} is not what the whole batch gives, which is {described}.'


def gives_whole(verdict: Verdict, how: str, dim: int) -> bool:
    """Whether a way to put results together gives what the whole batch gives."""
    # How far the numbers reach has nothing to do with how they are put together.
    verdict = replace(verdict, rounded=None)
    if verdict.kind == "same" and how != "concat":
        return verdict.is_zero or verdict.power == (1 if how == "sum" else 0)
    if how == "concat":
        return verdict == Verdict("concat", dim=dim)
    return verdict == (Verdict("sum", power=-1) if how == "mean" else Verdict(how))


def given_summary(
    proof: Proof, names: Sequence[str], kinds: Sequence[str], dims: Sequence[int], *, is_bare: bool
) -> tuple[str, ...]:
    """How results that are put together in given ways relate to those of the whole batch, in lines.

    Args:
        proof: The proof of the function as it is written.
        names: What each result is called.
        kinds: How each is put together.
        dims: The dimension along which "concat" joins each.
        is_bare: Whether nobody has said how, so that all are added up.
    """
    pairs = zip(proof.verdicts, kinds, dims, strict=True)
    standings = [_standing(*each, proof.num_microbatches) for each in pairs]
    head = (
        "microbatches' results added up, as no reduce= is given"
        if is_bare
        else "microbatches' results, as reduce= says"
    )
    return (head, *by_text(zip(standings, names, strict=True)))


def _standing(verdict: Verdict, how: str, dim: int, n: int) -> str:
    if gives_whole(verdict, how, dim):
        return "what the whole batch gives"
    if verdict.kind == "unknown":
        return f"not known to be what the whole batch gives, as {because(verdict.reason).rstrip('.')}"
    if verdict.kind == "mixed":
        return f"not what the whole batch gives, as {because(verdict.reason).rstrip('.')}"
    if how in ("sum", "mean") and verdict.kind in ("sum", "same"):
        # Of the sum of n values, or of n equal ones.
        power = (verdict.kind == "same") - (how == "mean") - verdict.power
        factor = f"{n**power} times" if power > 0 else f"1/{n**-power} of"
        return f"{factor} what the whole batch gives"
    return f"not what the whole batch gives, which is {_DESCRIPTIONS[verdict.word]}"


_DESCRIPTIONS = {
    "same": "what every microbatch gives",
    "sum": "the sum of what microbatches give",
    "mean": "the mean of what microbatches give",
    "concat": "what microbatches give, joined",
    "max": "the maximum of what microbatches give",
    "min": "the minimum of what microbatches give",
}


def summary(proof: Proof, names: Sequence[str], hoisted: Sequence[Hoisted]) -> tuple[str, ...]:
    """What is proved, in lines: which results are put together how, and what is computed before the loop.

    Args:
        proof: The proof.
        names: What each result is called.
        hoisted: The values that are computed on the whole batch.
    """
    lines = by_text((_COMBINED[verdict.word], name) for name, verdict in zip(names, proof.verdicts, strict=True))
    for each in hoisted:
        aval = each.whole.aval
        size = math.prod(aval.shape) * (getattr(aval.dtype, "itemsize", 8) or 8)
        place = f" at {each.line}" if each.line else ""
        lines.append(f"computed once on the whole batch: {each.primitive}{place}, {aval.str_short()}, {size:,} B")
    if proof.draws:
        lines.append(f"drawn anew for each microbatch: random numbers at {listed(proof.draws)}")
    lines += [f"each microbatch's own, not that of the whole batch: a sum at {line}" for line in proof.own_statistics]
    if proof.repeated_draws:
        lines.append(f"the same in every microbatch: random numbers at {listed(proof.repeated_draws)}")
    return ("the whole batch's results, proved", *lines)


_COMBINED = {
    "same": "computed once",
    "sum": "the sum of microbatches' results",
    "mean": "the mean of microbatches' results",
    "concat": "microbatches' results joined",
    "max": "the maximum of microbatches' results",
    "min": "the minimum of microbatches' results",
    "after": "computed once of the whole batch's sums, rows and the like",
}
