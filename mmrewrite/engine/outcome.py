"""The outcome of one module, and the result for callers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrewrite.engine.edits import apply_edits
from mmrewrite.results import CompatUse, Edit, HintError, LeftAlone, Refusal, Rewrite
from mmrewrite.source.failure import failure_of

if TYPE_CHECKING:
    from mmrewrite.project.facts import Facts, SourceFile, Unreadable


@dataclass(frozen=True)
class Outcome:
    """The decisions about one module. With a `failure` it stays as it is, whatever the edits."""

    edits: tuple[Edit, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    errors: tuple[HintError, ...] = ()
    left: tuple[LeftAlone, ...] = ()
    failure: str | None = None
    compat: tuple[CompatUse, ...] = ()


def outcomes_apart(
    modules: Sequence[Facts], decide: Callable[[Sequence[Facts]], dict[str, Outcome]]
) -> dict[str, Outcome]:
    """The outcomes of modules that are decided together, without those on which that fails.

    One file's trouble is no reason to lose the others, which are decided as if it were not given.
    """
    from mmrewrite.engine.workers import WorkerDied

    def message(these: Sequence[Facts], found: dict[str, Outcome]) -> str | None:
        try:
            found |= decide(these)
        except WorkerDied:
            raise
        except Exception as error:
            return failure_of(error)
        return None

    found: dict[str, Outcome] = {}
    problem = message(modules, found)
    if problem is None:
        return found
    alone = {facts.path: message([facts], {}) for facts in modules} if len(modules) > 1 else {}
    failed = {path: said for path, said in alone.items() if said is not None}
    rest = [facts for facts in modules if facts.path not in failed]
    if failed and rest:
        problem = message(rest, found)
        rest = [] if problem is None else rest
    return (
        found
        | {facts.path: Outcome(failure=problem) for facts in rest}
        | {path: Outcome(failure=said) for path, said in failed.items()}
    )


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
