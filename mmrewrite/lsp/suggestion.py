"""`mmrewrite suggest` for an editor: run in a process of its own, and its hints as edits of the open files."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from mmrewrite.results import Rewrite
from mmrewrite.suggest.hint_trials import NewHint, with_hints

# What to write where the configuration does not say what to trace.
MISSING = (
    'write into pyproject.toml, below [tool.mmrewrite.suggest]: entry = "MODULE:{step}", args = "MODULE:FUNCTION" '
    '(or run = true, for a script), device = "h100" and devices = 8'
)


class NotSuggested(Exception):
    """Why there is no suggestion, or that no hints are worth writing, as a sentence."""


class SuggestionProcess:
    """One run of the command at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, folder: str) -> Mapping[str, Any]:
        """What the command answers about the step of the configuration.

        Raises:
            NotSuggested: If it finds no pipeline, or one is being looked for.
        """
        if self._process is not None:
            raise NotSuggested("a pipeline is being looked for already; it will be shown once it is found")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "mmrewrite", "suggest", "--format", "json"),
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await self._process.communicate()
        except OSError as problem:
            raise NotSuggested(str(problem)) from None
        finally:
            self._process = None
        said = err.decode(errors="replace").strip()
        try:
            document: Mapping[str, Any] = json.loads(out)
        except ValueError:
            raise NotSuggested(said or "the process that looks for a pipeline was ended") from None
        if document["places"] is None:
            raise NotSuggested(document["summary"])
        return document

    def close(self) -> None:
        """End the command."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


def suggested_hints(document: Mapping[str, Any], files: Mapping[str, bytes]) -> list[Rewrite]:
    """Files with the hints that the command answered."""
    hints = [
        NewHint(each["path"], each["line"], each["hint"], None if each["around"] is None else tuple(each["around"]))
        for each in document["places"]
    ]
    return [with_hints(path, data, hints) for path, data in files.items()]
