"""The collectives in a compiled program, read from its HLO text: what moves between devices of a submesh, and why."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax

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
_SUMS = ("all-reduce", "reduce-scatter")
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_JAX = os.path.dirname(os.path.abspath(jax.__file__))


@dataclass(frozen=True)
class Collective:
    """Equal collectives of a program.

    Attributes:
        kind: What it does, as XLA names it.
        size: Bytes of its result on each device.
        line: The line of the program that it comes from; None if XLA does not say.
        why: What asks for it: a sum over a sharded dimension, a constraint, or nothing but a change of layout.
        count: How many there are.
    """

    kind: str
    size: int
    line: str | None
    why: str
    count: int


def collectives(text: str) -> list[Collective]:
    """The collectives of an optimized HLO module, those that are alike counted together, in order."""
    frames = _Frames(text)
    found: Counter[tuple[str, int, str | None, str]] = Counter()
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        operation = _OPERATION.search(line)
        frame = _FRAME_ID.search(line)
        where = frames.line(int(frame[1])) if frame else None
        size = _size(match["shape"], match["kind"], bool(match["start"]))
        found[match["kind"], size, where, _why(match["kind"], operation and operation["name"])] += 1
    return [Collective(*key, count) for key, count in found.items()]


def _why(kind: str, operation: str | None) -> str:
    last = (operation or "").rpartition("/")[2]
    if "constraint" in last:
        return "a constraint"
    if kind in _SUMS and last:
        return f"the sum in {last}, over a sharded dimension"
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

    def line(self, frame: int) -> str | None:
        """The innermost place on a stack that is the user's, as `file:line`; if there is none, that of a library."""
        places = list(self._places_of(frame))
        return next((place for place in places if "site-packages" not in place), next(iter(places), None))

    def _places_of(self, frame: int) -> Iterator[str]:
        """The places on a stack that are in neither JAX nor this package, from within."""
        for place in self._stack(frame):
            _, fields = self._places.get(place, (None, {}))
            file, _ = self._files.get(fields.get("file_name_id", 0), (None, {}))
            if file is not None and not file.startswith((_HERE, _JAX)):
                yield f"{file}:{fields.get('line', 0)}"

    def _stack(self, frame: int) -> Iterator[int]:
        seen: set[int] = set()
        while frame in self._frames and frame not in seen:
            seen.add(frame)
            _, fields = self._frames[frame]
            yield fields.get("file_location_id", 0)
            frame = fields.get("parent_frame_id", 0)
