"""The collectives in a compiled program, read from its HLO text: what moves between devices of a submesh, and why."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmruntime import _compat
from mmruntime._jaxpr.ir import num_bytes

# The one form of an instruction: `%name = f32[8,16]{1,0} all-reduce(...)`, or a tuple of shapes. What is started and
# done apart is one collective, counted where it starts.
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?\S+ = (?P<shape>\(.*?\)|\S+) "
    r"(?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)"
    r"(?P<start>-start)?\("
)
_SHAPE = re.compile(r"\b(?P<kind>[a-z]+?)(?P<bits>\d+)?(?:e\d+m\d+\w*)?\[(?P<sizes>[\d,]*)\]")
_OPERATION = re.compile(r'op_name="(?P<name>[^"]*)"')
_FRAME_ID = re.compile(r"stack_frame_id=(\d+)")
_NUMBERED = re.compile(r"^(\d+) (?:\"(.*)\"|\{(.*)\})$")
_FIELD = re.compile(r"(\w+)=(\d+)")
_WORD = re.compile(r"[\w-]+")
_GROUP = re.compile(r"(?P<around>(?:.*?/)?)\((?P<parts>.*)\)$")
_SUMS = ("all-reduce", "reduce-scatter")


@dataclass(frozen=True)
class Collective:
    """Equal collectives of a program.

    Attributes:
        kind: What it does, as XLA names it.
        size: Bytes of its result on each device.
        line: The line of the user's program that it comes from; None if that is not known.
        why: What asks for it: a sum over a sharded dimension, a constraint, or nothing but a change of layout.
        count: How many there are.
    """

    kind: str
    size: int
    line: str | None
    why: str
    count: int


@dataclass(frozen=True)
class MadeEquation:
    """An equation of a program, as far as XLA's text of the program speaks of it.

    Attributes:
        name: Its scopes and its primitive, as XLA names an operation.
        place: The line that made it, which may be a library's.
        line: The line of the user's program that led to it; empty if that is not known.
        sizes: The bytes of its results, on all devices together.
    """

    name: str
    place: str
    line: str
    sizes: tuple[int, ...]


def made_equations(eqns: Sequence[Any]) -> list[MadeEquation]:
    """The equations of a program, at any depth."""
    return [
        MadeEquation(
            name, _compat.innermost_line(eqn), _compat.own_line(eqn), tuple(num_bytes(var) for var in eqn.outvars)
        )
        for name, eqn in _compat.named_operations(eqns)
    ]


def collectives(text: str, made: Sequence[MadeEquation], num_devices: int) -> list[Collective]:
    """The collectives of an optimized HLO module in order, with equal ones counted together.

    Args:
        text: The module.
        made: The equations that it computes.
        num_devices: On how many devices.
    """
    frames = _Frames(text)
    found: Counter[tuple[str, int, str | None, str]] = Counter()
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        operation = _OPERATION.search(line)
        frame = _FRAME_ID.search(line)
        names = _combined(operation["name"]) if operation else []
        places = set(frames.places(int(frame[1]))) if frame else set()
        size = _size(match["shape"], match["kind"], bool(match["start"]))
        # What a sum gives is not cut over the devices that it is over.
        most = num_devices // 2 if match["kind"] == "all-reduce" else num_devices
        lines = {line for name in names for line in _lines(name, places, size, made, most)}
        where = next(iter(lines)) or None if len(lines) == 1 else None
        found[match["kind"], size, where, _why(match["kind"], names)] += 1
    return [Collective(*key, count) for key, count in found.items()]


def _combined(name: str) -> list[str]:
    """The names of the operations that XLA combined into one: `f/(g/add:mul)` is `f/g/add` and `f/mul`."""
    group = _GROUP.match(name)
    if group is None:
        return [name]
    parts, depth = [""], 0
    for letter in group["parts"]:
        depth += (letter == "(") - (letter == ")")
        if letter == ":" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [group["around"] + part for part in parts]


def _lines(name: str, places: set[str], size: int, made: Sequence[MadeEquation], most: int) -> set[str]:
    """The user's lines of the equations that may be an operation, with a result in at most so many parts.

    XLA knows an operation's name, and the line that made it where that is in a call.
    """
    known = {each.name for each in made if f"/{name}".endswith(f"/{each.name}")}
    longest = max(known, key=len, default="")
    near = [each for each in made if (each.name == longest if known else _word(each.name) == _word(name))]
    near = [each for each in near if each.place in places] or near
    near = [each for each in near if any(_may_be(own, size, most) for own in each.sizes)] or near
    return {each.line for each in near}


def _may_be(whole: int, size: int, most: int) -> bool:
    """Whether a result may have so many bytes on each device."""
    return size > 0 and whole % size == 0 and 1 <= whole // size <= most


def _word(name: str) -> str:
    """The primitive in the name of an operation, without the transformations around it."""
    return next(iter(_WORD.findall(name)[-1:]), "")


def _why(kind: str, names: Sequence[str]) -> str:
    words = list(dict.fromkeys(filter(None, map(_word, names))))
    if any("constraint" in word for word in words):
        return "a constraint"
    if kind in _SUMS and words:
        return f"the sum in {' and '.join(words)}, over a sharded dimension"
    return "nobody asked for it: a value changes its layout"


def _size(shape: str, kind: str, is_start: bool) -> int:
    """Bytes of a result, all values of a tuple together: XLA makes one collective of several values of a kind."""
    sizes = []
    for match in _SHAPE.finditer(shape):
        bits = 8 if match["kind"] == "pred" else int(match["bits"] or 8)
        sizes.append(math.prod(int(size) for size in match["sizes"].split(",") if size) * bits // 8)
    if is_start and kind == "collective-permute":
        # (operand, result, two of the runtime's own)
        return sum(sizes[1:2])
    # What starts another one than a sum gives its operands, too, in front of its results.
    return sum(sizes[len(sizes) // 2 :] if is_start and kind not in _SUMS else sizes)


class _Frames:
    """The tables of files, places and stack frames at the head of an HLO module."""

    def __init__(self, text: str) -> None:
        tables: dict[str, dict[int, tuple[str | None, Mapping[str, int]]]] = {}
        rows: dict[int, tuple[str | None, Mapping[str, int]]] | None = None
        for line in text.splitlines():
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                rows = tables.setdefault(line, {})
            elif rows is not None and (match := _NUMBERED.match(line)):
                rows[int(match[1])] = (match[2], {name: int(value) for name, value in _FIELD.findall(match[3] or "")})
            elif line.startswith(("%", "ENTRY")):
                break
        self._files, self._places, self._frames = (
            tables.get(name, {}) for name in ("FileNames", "FileLocations", "StackFrames")
        )

    def places(self, frame: int) -> Iterator[str]:
        """The places on a stack, as `file:line`, from within."""
        for place in self._stack(frame):
            _, fields = self._places.get(place, (None, {}))
            file, _ = self._files.get(fields.get("file_name_id", 0), (None, {}))
            if file is not None:
                yield f"{file}:{fields.get('line', 0)}"

    def _stack(self, frame: int) -> Iterator[int]:
        seen: set[int] = set()
        while frame in self._frames and frame not in seen:
            seen.add(frame)
            _, fields = self._frames[frame]
            yield fields.get("file_location_id", 0)
            frame = fields.get("parent_frame_id", 0)
