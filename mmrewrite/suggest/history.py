"""That another plan is predicted faster than that of a program's hints: kept for later runs over the same sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mmrewrite.files.source_records import changed_source, keep_record, modules_of, records_of

KIND = "suggestions"


def keep_suggestion(folder: str, step: Sequence[str], sources: Mapping[str, str], sentence: str | None) -> None:
    """Keep what is to be said of a step and its arguments, in place of what the last comparison said.

    Raises:
        OSError: If the folder cannot be written.
    """
    keep_record(folder, step, {"sources": modules_of(sources), "sentence": sentence})


def kept_suggestions(folder: str, paths: Iterable[str], load: Callable[[str], bytes | None]) -> Iterator[str]:
    """What is to be said of the programs that have some files, for those whose sources are as they were."""
    said = set[str]()
    for path in paths:
        for record in records_of(folder, os.path.realpath(path)):
            sentence = record.get("sentence")
            if isinstance(sentence, str) and sentence not in said and changed_source(record["sources"], load) is None:
                said.add(sentence)
                yield sentence
