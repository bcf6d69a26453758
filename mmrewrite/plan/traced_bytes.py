"""The bytes of a traced step, at the lines of its sources: kept for editors, and tied by hash to these sources."""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mmrewrite.directives.sizes import format_size
from mmrewrite.files.source_records import changed_source, keep_record, modules_of, records_of
from mmrewrite.mirror.lines_before import LinesBefore
from mmrewrite.results import Rewrite, counted

KIND = "traces"
_PLACE = re.compile(r"^(?>.*? at )(.+?)(?: as rewritten)?:(\d+)$")


@dataclass(frozen=True)
class SubmeshBytes:
    """Bytes on each device of a submesh: of parameters and other state, and the most of live activations."""

    number: int
    devices: tuple[int, ...]
    state: int
    activations: int


@dataclass(frozen=True)
class PlacedBytes:
    """Arrays among a step's inputs that one line put on a submesh, and their bytes on each device together."""

    path: str
    line: int
    submesh: int
    arrays: int
    size: int


@dataclass(frozen=True)
class TracedBytes:
    """What a trace says about bytes.

    Attributes:
        step: The step, as `module:function`.
        arguments: The function that returned its arguments.
        sources: The hash of each module of the program, by its real path.
        submeshes: The bytes on each submesh.
        placed: The inputs by the line that placed them; lines are those of the sources.
        transfers: How many transfers between submeshes a step issues.
        transferred: Their bytes together.
    """

    step: str
    arguments: str
    sources: Mapping[str, str]
    submeshes: tuple[SubmeshBytes, ...]
    placed: tuple[PlacedBytes, ...]
    transfers: int
    transferred: int

    def at(self, path: str, line: int) -> Iterator[str]:
        """Sentences about a line with a hint: what it places, and the submeshes of that, else all of them."""
        own = [each for each in self.placed if (each.path, each.line) == (path, line)]
        for each in own:
            yield (
                f"places {counted(each.arrays, 'array')} of the step's inputs on submesh {each.submesh}, "
                f"{format_size(each.size)} on each device"
            )
        wanted = {each.submesh for each in own}
        for submesh in self.submeshes:
            if not wanted or submesh.number in wanted:
                yield (
                    f"submesh {submesh.number}, devices {', '.join(map(str, submesh.devices))}: on each device "
                    f"{format_size(submesh.state)} of parameters and other state, and at most "
                    f"{format_size(submesh.activations)} of activations"
                )
        yield f"transfers between submeshes in a step: {self.transfers}, {format_size(self.transferred)} in all"

    def changed_source(self, load: Callable[[str], bytes | None]) -> str | None:
        """The first module of the program whose bytes are others now, None if all are the same."""
        return changed_source(self.sources, load)


def traced_bytes(
    step: str, arguments: str, document: Mapping[str, Any], sources: Mapping[str, str], results: Iterable[Rewrite]
) -> TracedBytes:
    """What a trace says about bytes.

    Args:
        step: The step.
        arguments: The function that returned its arguments.
        document: The runtime's document.
        sources: The hash of each source of the traced program, by its path.
        results: The rewrites of these sources.
    """
    lines = {result.path: LinesBefore(result) for result in results if result.changed}
    placed: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for row in document["inputs"]:
        found = _PLACE.search(row["reason"]["placed_by"])
        if found is None or row["submesh"] is None:
            continue
        path, line = found[1], int(found[2])
        for source_line in lines[path].of(line) if path in lines else (line,):
            placed[os.path.realpath(path), source_line, row["submesh"]].append(row["device_bytes"])
    return TracedBytes(
        step,
        arguments,
        modules_of(sources),
        tuple(
            SubmeshBytes(row["number"], tuple(row["devices"]), row["state_bytes"], row["activation_bytes"])
            for row in document["submeshes"]
        ),
        tuple(PlacedBytes(*place, len(sizes), sum(sizes)) for place, sizes in placed.items()),
        sum(row["runs"] for row in document["transfers"]),
        sum(row["size"] * row["runs"] for row in document["transfers"]),
    )


def keep(folder: str, traced: TracedBytes) -> None:
    """Keep a trace in a folder, in place of the last one of the same step of the same files.

    Raises:
        OSError: If the folder cannot be written.
    """
    keep_record(folder, (traced.step, traced.arguments), asdict(traced))


def traces_of(folder: str, path: str) -> Iterator[TracedBytes]:
    """The traces in a folder of programs that have a file, the newest first. What cannot be read is passed over."""
    for record in records_of(folder, path):
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            yield _read(record)


def _read(content: Any) -> TracedBytes:
    return TracedBytes(
        str(content["step"]),
        str(content["arguments"]),
        {str(path): str(known) for path, known in content["sources"].items()},
        tuple(
            SubmeshBytes(
                int(row["number"]), tuple(map(int, row["devices"])), int(row["state"]), int(row["activations"])
            )
            for row in content["submeshes"]
        ),
        tuple(
            PlacedBytes(str(row["path"]), int(row["line"]), int(row["submesh"]), int(row["arrays"]), int(row["size"]))
            for row in content["placed"]
        ),
        int(content["transfers"]),
        int(content["transferred"]),
    )
