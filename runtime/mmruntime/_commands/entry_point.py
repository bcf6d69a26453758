"""The commands that other processes run: what `--entry` and `--args` name is found, imported and called.

Whatever goes wrong is a sentence.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TextIO

ERROR = 2


class Wrong(Exception):
    """Why it does not work: a sentence with what was given and what to do."""


@dataclass(frozen=True)
class Given:
    """What `--entry` or `--args` named: `option` is which of them."""

    option: str
    text: str

    @property
    def module(self) -> str:
        """The module's part."""
        return self.text.partition(":")[0]

    @property
    def name(self) -> str:
        """The function's part."""
        return self.text.partition(":")[2]

    def __str__(self) -> str:
        return f"{self.option} {self.text}"


def find(given: Given) -> Any:
    """Import what was named.

    Raises:
        Wrong: If the module cannot be imported or has nothing of that name.
    """
    module = _imported(given)
    found: Any = module
    for part in given.name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            names = [name for name in vars(found) if not name.startswith("_")] if hasattr(found, "__dict__") else []
            near = difflib.get_close_matches(part, names, n=1)
            advice = f"did you mean `{near[0]}`?" if near else "name something at its top level"
            raise Wrong(f"{given}: `{given.module}` has no `{given.name}`; {advice}") from None
    return found


def _imported(given: Given) -> ModuleType:
    try:
        return importlib.import_module(given.module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{given.module}.".startswith(f"{error.name}."):
            raise Wrong(
                f"{given}: there is no module `{given.module}`; give the folder that it is imported from as PATH, or "
                "put that folder on PYTHONPATH"
            ) from None
        raise Wrong(failed(given, "cannot be imported", error, "install what is missing")) from error
    except (Exception, SystemExit) as error:
        advice = 'importing it must not start a run: keep that under `if __name__ == "__main__":`'
        raise Wrong(failed(given, "cannot be imported", error, advice)) from error


def arguments_for(entry: Given, arguments: Given) -> tuple[Any, ...]:
    """What the function returns that was named to make the step's positional arguments.

    Raises:
        Wrong: If it cannot be found or called, or returns something else than a tuple.
    """
    make = find(arguments)
    if not callable(make):
        raise Wrong(
            f"{arguments}: `{arguments.name}` is of type {type(make).__name__}; name a function without arguments"
        )
    try:
        made = make()
    except Exception as error:
        raise Wrong(failed(arguments, "failed", error, "it is called without arguments")) from error
    if not isinstance(made, tuple):
        raise Wrong(
            f"{arguments}: `{arguments.name}()` returned a value of type {type(made).__name__}; it must return the "
            f"tuple of the positional arguments of `{entry.name}`"
        )
    return made


def failed(given: Given, what: str, error: BaseException, advice: str) -> str:
    """One sentence about an error of the user's code: what, where, and what to do."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    outside = [frame for frame in frames if not frame.filename.startswith(os.path.dirname(__file__))]
    where = f" at {outside[-1].filename}:{outside[-1].lineno}" if outside else ""
    text = " ".join(str(error).split()) or "no message"
    return f"{given}: {what}: {type(error).__name__}: {text}{where}; {advice}"


def command(module: str, description: str | None) -> argparse.ArgumentParser:
    """The command line of `python -m module entry args`, to which the caller adds its own options."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("entry")
    parser.add_argument("args")
    parser.add_argument("--path", action="append", default=[], help="import from here first")
    return parser


def answer(options: argparse.Namespace, find_out: Callable[[Given, Given], dict[str, Any]]) -> int:
    """Print one JSON document, and return the exit status.

    Args:
        options: What `command` parsed.
        find_out: What makes the document of the entry and its arguments. When it raises `Wrong`, the document is
            `{"error": sentence, "traceback": text}`: the text begins in the user's code.
    """
    found: dict[str, Any]
    with _only_ours() as output:
        sys.path[:0] = options.path
        sys.path.append(os.getcwd())
        try:
            found, status = find_out(Given("--entry", options.entry), Given("--args", options.args)), 0
        except Wrong as problem:
            # Where it happened in the runtime, for --verbose.
            traceback.print_exc()
            found, status = {"error": str(problem), "traceback": _told(problem)}, ERROR
        json.dump(found, output)
    return status


def _only_ours() -> TextIO:
    """Standard output for the document alone: what others write to it from now on goes to standard error."""
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return output


def _told(error: BaseException) -> str:
    """The traceback as Python prints it, from the first line of the user's code on."""
    cause = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__)
    ours = os.path.dirname(__file__)
    first = next(
        (
            index
            for index, frame in enumerate(frames)
            if not frame.filename.startswith(ours) and "importlib" not in frame.filename
        ),
        None,
    )
    if first is None or cause is error:
        return ""
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[first:])]
    return "".join([*lines, *traceback.format_exception_only(cause)])
