"""What `mmrewrite modernize` does with its options."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

import click

from mmrewrite.cli.session import Options, Run
from mmrewrite.codemod.registry import Registry
from mmrewrite.files.select import Selection, load_file, select_files
from mmrewrite.modernize.registry import ModernizeRegistry
from mmrewrite.modernize.rewrite import may_have_old_names, modernize_project
from mmrewrite.modernize.settings import DEFAULT_TARGET, Settings
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceText

JSON_VERSION = 1


def run_modernize(options: Options, color: str, mode: str, target: str | None, form: str) -> None:
    """Modernize, print, write unless `mode` is `diff` or `check`, and exit."""
    run = _ModernizeRun(options, color, target)
    if mode == "write":
        run.write_in_place()
    if form == "json":
        click.echo(json.dumps(run.report_as_data(), indent=2))
    elif mode != "write":
        run.print_patch()
    run.report("changed" if mode == "write" else "would change")
    run.leave(changes_matter=mode == "check", found=mode == "check" and any(r.refusals for r in run.results))


class _ModernizeRun(Run):
    looked_for: ClassVar[str] = "old name"

    def __init__(self, options: Options, color: str, target: str | None) -> None:
        self.registry, self.target = ModernizeRegistry(), target
        super().__init__(options, color)

    def select(self) -> Selection:
        def wanted(data: bytes) -> bool:
            return may_have_old_names(data, self.registry)

        return select_files(self.paths, self.rules, wanted, (".py", ".ipynb"))

    def rewrite(self) -> tuple[Rewrite, ...]:
        usual = [name for name, codemod in self.registry.items() if not codemod.on_request_only]
        settings = Settings(
            self.selected(self.registry, Registry(), usual),
            parse_target(self.target or self.config.target_jax),
            self.config.width,
        )
        return modernize_project(self.selection.files, self.registry, load=load_file, settings=settings)

    def report(self, verb: str) -> None:
        if not self.options.quiet and not self.options.verbose:
            for result in self.results:
                for left in result.left:
                    self.say(f"{left.path}:{left.line}:{left.column}: `{left.text}` left alone: {left.reason}")
        super().report(verb)

    def report_as_data(self) -> dict[str, Any]:
        """Every edit, refusal and report with its position, for a program to read."""
        return {"version": JSON_VERSION, "files": [_file(result) for result in self.results if _says_anything(result)]}


def parse_target(text: str | None) -> tuple[int, ...]:
    """The numbers of a version such as `0.4.30`.

    Raises:
        click.UsageError: If it is no version of JAX.
    """
    if text is None:
        return DEFAULT_TARGET
    if not re.fullmatch(r"\d+(\.\d+){1,3}", text):
        raise click.UsageError(f"`target-jax` must be a version of JAX such as 0.10 or 0.4.30, not {text!r}.")
    return tuple(int(part) for part in text.split("."))


def _says_anything(result: Rewrite) -> bool:
    return bool(result.changed or result.refusals or result.left or result.failure)


def _file(result: Rewrite) -> dict[str, Any]:
    source = SourceText.decode(result.original) if result.edits else None
    edits = []
    for edit in result.edits:
        assert source is not None
        (start, end) = source.position(edit.start), source.position(edit.end)
        edits.append(
            {
                "codemods": list(edit.codemods),
                "line": start[0],
                "column": start[1],
                "end_line": end[0],
                "end_column": end[1],
                "old": source.text[edit.start : edit.end],
                "new": edit.text,
                "because": [{"line": hint.line, "column": hint.column, "text": hint.text} for hint in edit.hints],
            }
        )
    return {
        "path": result.path,
        "changed": result.changed,
        "failure": result.failure,
        "edits": edits,
        "refusals": [
            {
                "path": item.path,
                "line": item.line,
                "column": item.column,
                "codemod": item.codemod,
                "reason": item.reason,
            }
            for item in result.refusals
        ],
        "left": [
            {"path": item.path, "line": item.line, "column": item.column, "text": item.text, "because": item.reason}
            for item in result.left
        ],
    }
