"""The outcome of one module, the result that callers get for it, and the messages of failures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrewrite.engine.edits import apply_edits
from mmrewrite.results import CompatUse, Edit, HintError, LeftAlone, Refusal, Rewrite

if TYPE_CHECKING:
    from mmrewrite.project.facts import Facts, SourceFile, Unreadable

_BUG = (
    "this is a bug in mmrewrite ({problem}); nothing was written. Please report it with this file, the command line "
    "and the output of `mmrewrite --version`"
)


@dataclass(frozen=True)
class Outcome:
    """The decisions about one module. With a `failure` it stays as it is, whatever the edits."""

    edits: tuple[Edit, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    errors: tuple[HintError, ...] = ()
    left: tuple[LeftAlone, ...] = ()
    failure: str | None = None
    compat: tuple[CompatUse, ...] = ()


def unchanged(file: SourceFile, failure: str | None = None) -> Rewrite:
    """A file that stays as it is."""
    return Rewrite(file.path, file.data, file.data, failure=failure)


def unread(facts: Unreadable) -> Rewrite:
    """A file that could not be read."""
    return unchanged(facts.file, facts.message)


def rewritten(facts: Facts, outcome: Outcome) -> Rewrite:
    """A module after the edits of its outcome, in the file's own encoding and line endings."""
    data = facts.file.data
    if outcome.failure is not None:
        return Rewrite(facts.path, data, data, (), outcome.refusals, outcome.errors, failure=outcome.failure)
    try:
        result = facts.source.encode(apply_edits(facts.source.text, outcome.edits))
    except UnicodeEncodeError as error:
        return unchanged(facts.file, f"the result cannot be written in this file's encoding: {error}")
    return Rewrite(
        facts.path,
        data,
        result,
        outcome.edits,
        outcome.refusals,
        outcome.errors,
        outcome.left,
        compat=outcome.compat,
    )


def bug(problem: str) -> str:
    """The message for a mistake of ours."""
    return _BUG.format(problem=problem)


def is_bug(failure: str) -> bool:
    """Whether a failure is a mistake of ours, and not something about the file."""
    return failure.startswith(_BUG.partition("{")[0])


def failure_of(error: Exception) -> str:
    """The message for an exception in a codemod, with the line that raised it."""
    if isinstance(error, RecursionError):
        return "nested too deeply to be rewritten; split its longest expressions"
    import traceback

    frame = traceback.extract_tb(error.__traceback__)[-1]
    return bug(f"{type(error).__name__}: {error}, at {os.path.basename(frame.filename)}:{frame.lineno}")
