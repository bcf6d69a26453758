"""What iterations of a loop that a program has itself leave: rows to compare, and how `explain()` names each leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mmruntime._exactness.messages import because, by_text
from mmruntime._exactness.prove import Verdict

_PHRASES = {
    "sum": "added up",
    "set": "added up, from the first iteration on",
    "max": "the maximum over the iterations",
    "min": "the minimum over the iterations",
    "counter": "counted",
    "same": "unchanged",
}


def in_row(value: Any, index: Any, count: int) -> Any:
    """A value in row `index` of zeros, so that adding up joins the rows; booleans as numbers, which can be added."""
    value = value.astype(np.uint8) if value.dtype == np.bool_ else value
    return jnp.zeros((count, *np.shape(value)), value.dtype).at[index].set(value)


def extreme_of(kind: str, rows: Any, dtype: Any) -> Any:
    """The largest ("max") or smallest ("min") of rows."""
    return (jnp.max if kind == "max" else jnp.min)(rows, axis=0).astype(dtype)


def loop_summary(names: Sequence[str], kinds: Sequence[str]) -> tuple[str, ...]:
    """What is proved of the leaves of a loop's carry, in lines."""
    said = ((_PHRASES[kind], name) for name, kind in zip(names, kinds, strict=True))
    return ("the loop's own results, proved", *by_text(said))


def whole_summary(names: Sequence[str], verdicts: Sequence[Verdict | None]) -> tuple[str, ...]:
    """What is known of sums over iterations beside one iteration on all their pieces together, in lines."""
    return tuple(by_text((_standing(verdict), name) for name, verdict in zip(names, verdicts, strict=True)))


def _standing(verdict: Verdict | None) -> str:
    if verdict is None or verdict.kind == "unknown":
        why = "" if verdict is None else f", as {because(verdict.reason).rstrip('.')}"
        return f"not known to be what one pass over the whole batch gives{why}"
    if verdict.kind in ("sum", "same"):
        return "what one pass over the whole batch gives, but for a constant factor"
    why = f", as {because(verdict.reason).rstrip('.')}" if verdict.reason else ""
    return f"not what one pass over the whole batch gives{why}"
