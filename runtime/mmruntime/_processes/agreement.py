"""Agreement: before processes run something together they compare what it is, and say what differs.

Each tells the exchange of one digest for each part, and reads those of one process, whatever their number. Texts are
sent only where digests differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import jax

from mmruntime._processes.exchange import Exchange
from mmruntime._processes.group import Group
from mmruntime._processes.progress import CallRecord, progress

# How long the others may take to come to the same point, such as the end of their compilations. Faults are found long
# before, by the watch.
PATIENCE_S = 3600.0
# Longest text of a value in a message.
_SHOWN = 300
# Parts that are shown with their values; what comes later often follows from them.
_MOST_SHOWN = 3
# A part of every agreement: a call that one process has left out may differ in nothing else.
_HISTORY = "the calls of steps that they have made together before"
_SAME_CALLS = "Each process must make the same calls in the same order, and one has left one out or made one more."
# So is what they are about to do: where that differs, nothing else of it can be compared.
_MEETING = "what they have come to"
_SAME_MEETING = (
    "Each process must make the same calls in the same order, with arguments of the same shapes and types, and with "
    "the same static arguments and settings."
)


def agree(label: str, parts: Mapping[str, str], group: Group, advice: str, *, why: str = "") -> None:
    """Wait until the other processes are here, and compare the steps that they have called with the given ones.

    Args:
        label: What is about to happen, for messages.
        parts: What must be equal, by the name of each part.
        group: The processes.
        advice: What to do if they differ.
        why: Why this process compares that now, in words for messages; not compared.

    Raises:
        RuntimeError: In all of them, if they differ; it names the parts with the values of two processes.
    """
    parts = {_HISTORY: group.history, _MEETING: label, **parts}
    group.agreements += 1
    key = f"agree/{group.key}/{group.agreements}"
    me, first = jax.process_index(), group.members[0]
    others = [process for process in group.members if process != me]
    exchange = Exchange()
    digests = {name: hashlib.blake2b(text.encode(), digest_size=12).hexdigest() for name, text in parts.items()}
    coming = CallRecord(group.key, group.calls + 1, f"{label}{why}", "", agreements=group.agreements)
    with progress.waiting(f"the other processes to come to {label}{why}", others, coming):
        if me == first:
            exchange.put(f"{key}/first", json.dumps(digests))
        else:
            theirs = json.loads(exchange.get(f"{key}/first", PATIENCE_S))
            if differ := [name for name in {**theirs, **digests} if theirs.get(name) != digests.get(name)]:
                exchange.put(f"{key}/differ/{me}", json.dumps(differ))
        exchange.meet(f"{key}/compared", PATIENCE_S, group.members)
        found = exchange.folder(f"{key}/differ")
        if not found:
            # All have left the agreement before.
            if me == first:
                exchange.drop(f"agree/{group.key}/{group.agreements - 1}")
            return
        other = min(map(int, found))
        names = json.loads(found[str(other)])
        if me in (first, other):
            shown = {**parts, _MEETING: f"{label}{why}"}
            exchange.put(f"{key}/text/{me}", json.dumps({name: shown.get(name, "") for name in names}))
        texts = [json.loads(exchange.get(f"{key}/text/{process}", PATIENCE_S)) for process in (first, other)]
    more = sorted(int(process) for process in found if int(process) != other)
    raise RuntimeError(disagreement(label, (first, other), names, texts[0], texts[1], more, advice))


def disagreement(
    label: str,
    processes: tuple[int, int],
    names: Sequence[str],
    one: Mapping[str, str],
    other: Mapping[str, str],
    more: Sequence[int],
    advice: str,
) -> str:
    """The message about processes that differ.

    Args:
        label: What they are about to do.
        processes: The two that are compared.
        names: The parts in which they differ.
        one: The texts of those parts in the first process.
        other: The same in the second one.
        more: Further processes that differ from the first.
        advice: What to do.
    """
    lines = [f"mjit: processes {processes[0]} and {processes[1]} do not agree on {label}. They differ in:"]
    if _MEETING in names:
        names = [name for name in (_HISTORY, _MEETING) if name in names]
        advice = _SAME_MEETING
    for name in names[:_MOST_SHOWN]:
        left, right = _first_difference(one.get(name, ""), other.get(name, ""))
        lines += [f"  {name}:", f"    process {processes[0]}: {left}", f"    process {processes[1]}: {right}"]
    if _HISTORY in names and _MEETING not in names:
        advice = f"{_SAME_CALLS} {advice}".rstrip()
    if names[_MOST_SHOWN:]:
        lines.append(f"  and in {', '.join(names[_MOST_SHOWN:])}")
    if more:
        shown = ", ".join(map(str, more[:8])) + (", ..." if len(more) > 8 else "")
        lines.append(f"  Process {processes[0]} differs from {shown} as well.")
    return "\n".join([*lines, advice])


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What is not as it was, in words to put behind the name of it: the first line that differs; empty if none does.

    Args:
        before: What was compared the last time, by the name of each part.
        now: What is compared now.
    """
    for name, text in now.items():
        if name in before and before[name] != text:
            old, new = _first_difference(before[name], text)
            return f" (not as before in {name}: now {new}, then {old})"
    return ""


def _first_difference(one: str, other: str) -> tuple[str, str]:
    """The first line that differs, of each text."""
    for left, right in zip_longest(one.splitlines(), other.splitlines()):
        if left != right:
            return _shown(left), _shown(right)
    return _shown(one), _shown(other)


def _shown(line: str | None) -> str:
    if not line:
        return "(nothing)"
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def meet(what: str, group: Group) -> None:
    """Wait until all processes of a group have come here, as often as they have agreed so far.

    Args:
        what: What they wait for each other to do, for messages.
        group: The processes.
    """
    me = jax.process_index()
    others = [process for process in group.members if process != me]
    with progress.waiting(f"the other processes to {what}", others):
        Exchange().meet(f"met/{group.key}/{group.agreements}", PATIENCE_S, group.members)
