"""The plans predicted to beat those of a program's hints, remembered for later runs over unchanged sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mmrewrite.files.source_records import changed_source, keep_record, modules_of, records_of

KIND = "suggestions"


def keep_suggestion(folder: str, step: Sequence[str], sources: Mapping[str, str], sentence: str | None) -> None:
    """Record the sentence about a step and its arguments, in the place of the last comparison's.

    Raises:
        OSError: If the folder cannot be written.
    """
    keep_record(folder, step, {"sources": modules_of(sources), "sentence": sentence})


def kept_suggestions(folder: str, paths: Iterable[str], load: Callable[[str], bytes | None]) -> Iterator[str]:
    """The recorded sentences about programs with some of these files, where the sources are unchanged."""
    said = set[str]()
    for path in paths:
        for record in records_of(folder, os.path.realpath(path)):
            sentence = record.get("sentence")
            if isinstance(sentence, str) and sentence not in said and changed_source(record["sources"], load) is None:
                said.add(sentence)
                yield sentence
