"""Check our own output before it is written: it compiles, the rest is kept, and a second run changes nothing."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mmrewrite.engine.edits import undo_edits
from mmrewrite.project.facts import TOO_LARGE, Facts, SourceFile, Unreadable
from mmrewrite.results import Rewrite
from mmrewrite.source.failure import bug
from mmrewrite.source.text import SourceText
from mmrewrite.tracking import Track, untracked


@dataclass(frozen=True)
class SecondRun:
    """How an engine runs over its own output, and its words in messages.

    `read` parses one file; `rewrite` gives the result of each module, by path, and may leave out those without anything
    to rewrite. `verb` is what the engine did to a file, `edited` what it edits. By bytes alone, `has_work` tells
    whether there may be anything to rewrite in a result; where there is in none, they need not be read.
    """

    read: Callable[[SourceFile], Facts | Unreadable]
    rewrite: Callable[[Sequence[Facts]], Mapping[str, Rewrite]]
    verb: str
    edited: str
    has_work: Callable[[SourceFile], bool] = lambda file: True


def self_check(
    results: Mapping[str, Rewrite], modules: Sequence[Facts], run: SecondRun, track: Track = untracked
) -> dict[str, Rewrite]:
    """The results, where one that breaks a promise is a failure and leaves its file alone.

    Args:
        results: What became of each file, by path.
        modules: The modules that were read, before the rewrite; all of them are in `results`.
        run: The engine that made the results.
        track: Shows how many modules are read again.
    """
    checked, again = dict(results), list[Facts]()
    files = {
        facts.path: replace(facts.file, data=results[facts.path].result)
        for facts in modules
        if results[facts.path].changed
    }
    has_work = any(map(run.has_work, files.values()))
    for facts in track("Checking", modules, len(modules)):
        result = results[facts.path]
        if not result.changed:
            again.append(facts)
            continue
        file = files[facts.path]
        second = run.read(file) if has_work or not _compiles(file) else None
        if isinstance(second, Unreadable):
            is_ours = second.message != TOO_LARGE
            said = bug(f"the {run.verb} file does not parse: {second.message}") if is_ours else second.message
            checked[facts.path] = _failed(result, said)
            second = facts
        elif second is not None and (problem := _why_not_compiled(second)) and not _why_not_compiled(facts):
            checked[facts.path] = _failed(result, bug(f"the {run.verb} file does not compile: {problem}"))
        elif undo_edits(SourceText.decode(result.result).text, result.edits, facts.source.text) != facts.source.text:
            checked[facts.path] = _failed(result, bug(f"text outside the edited {run.edited} changed"))
        again.append(second or facts)
    if has_work and any(result.changed for result in checked.values()):
        for path, second_result in run.rewrite(again).items():
            if checked[path].changed and second_result.failure is not None:
                checked[path] = _failed(checked[path], bug("a second run over the result fails"))
            elif checked[path].changed and second_result.changed:
                checked[path] = _failed(checked[path], bug("a second run would change the file again"))
    return checked


def _compiles(file: SourceFile) -> bool:
    """Whether a file compiles, for whatever reason it may not."""
    try:
        _compile(SourceText.decode(file.data).text, file.path)
    except Exception:
        return False
    return True


def _why_not_compiled(facts: Facts) -> str | None:
    """Why a file that parses does not compile, such as a `nonlocal` name that no function around it has; else None."""
    try:
        _compile(facts.tree, facts.path)
    except (SyntaxError, ValueError) as error:
        return str(error)
    return None


def _compile(program: str | ast.Module, path: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Cells of a notebook may wait.
        compile(program, path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _failed(result: Rewrite, failure: str) -> Rewrite:
    return Rewrite(result.path, result.original, result.original, refusals=result.refusals, failure=failure)
