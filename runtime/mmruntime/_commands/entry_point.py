"""Import and call the functions that `--entry` and `--args` name, and print one JSON document about them.

Every failure of the user's code becomes one sentence.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TextIO

from mmruntime import _compat
from mmruntime._core import progress
from mmruntime._frontend.labels import positional_names
from mmruntime._step.mesh_function import MeshFunction

ERROR = 2
_RUNTIME = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


class BadEntryPoint(Exception):
    """A named function cannot be used. The message is one sentence: the name, the reason, and what to do."""


@dataclass(frozen=True)
class FunctionName:
    """A function as `module:function`, and the option that named it: `--entry` or `--args`."""

    option: str
    text: str

    @property
    def module(self) -> str:
        """The module."""
        return self.text.partition(":")[0]

    @property
    def name(self) -> str:
        """The function, with dots where it is an attribute of something else."""
        return self.text.partition(":")[2]

    def __str__(self) -> str:
        return f"{self.option} {self.text}"


_AT_TOP_LEVEL = (
    "name something at its top level, which for a step that a function makes may be one that you write: it makes the "
    "step, calls it, and returns its results"
)


def find(named: FunctionName, missing: Callable[[], str] = lambda: _AT_TOP_LEVEL) -> Any:
    """Import a function; `missing` says what to write where the module has none, and none with a name like it.

    Raises:
        BadEntryPoint: If the module cannot be imported or has nothing of that name.
    """
    module = _imported(named)
    found: Any = module
    for part in named.name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            names = [name for name in vars(found) if not name.startswith("_")] if hasattr(found, "__dict__") else []
            near = difflib.get_close_matches(part, names, n=1)
            advice = f"did you mean `{near[0]}`?" if near else missing()
            raise BadEntryPoint(f"{named}: `{named.module}` has no `{named.name}`; {advice}") from None
    return found


def find_step(entry: FunctionName) -> MeshFunction[..., Any]:
    """The compiled step that an entry names.

    Raises:
        BadEntryPoint: If it cannot be imported, or is no compiled step.
    """
    step = find(entry)
    if not isinstance(step, MeshFunction):
        raise BadEntryPoint(
            f"{entry}: `{entry.name}` is of type {type(step).__name__}, not a step that mmruntime.mjit compiled; "
            "name the function that has the hint `mjit`, and see whether that hint was refused"
        )
    return step


def _imported(named: FunctionName) -> ModuleType:
    progress.tell(f"importing {named.module}")
    try:
        return importlib.import_module(named.module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{named.module}.".startswith(f"{error.name}."):
            raise BadEntryPoint(
                f"{named}: there is no module `{named.module}`; give the folder that it is imported from as PATH, or "
                "put that folder on PYTHONPATH"
            ) from None
        raise BadEntryPoint(failure(named, "cannot be imported", error, "install what is missing")) from error
    except (Exception, SystemExit) as error:
        advice = 'importing it must not start a run: keep that under `if __name__ == "__main__":`'
        raise BadEntryPoint(failure(named, "cannot be imported", error, advice)) from error


def arguments_for(entry: FunctionName, arguments: FunctionName) -> tuple[Any, ...]:
    """The positional arguments of the step `entry`: the result of calling `arguments`.

    Raises:
        BadEntryPoint: If it cannot be found or called, or returns something else than a tuple.
    """
    make = find(arguments, lambda: _example_of(entry, arguments))
    if not callable(make):
        raise BadEntryPoint(
            f"{arguments}: `{arguments.name}` is of type {type(make).__name__}; name a function without arguments"
        )
    progress.tell(f"making the arguments, by {arguments.name}")
    try:
        made = make()
    except Exception as error:
        raise BadEntryPoint(failure(arguments, "failed", error, "it is called without arguments")) from error
    if not isinstance(made, tuple):
        raise BadEntryPoint(
            f"{arguments}: `{arguments.name}()` returned a value of type {type(made).__name__}; it must return the "
            f"tuple of the positional arguments of `{entry.name}`"
        )
    return made


def _example_of(entry: FunctionName, arguments: FunctionName) -> str:
    """What to write where there is no function that returns the arguments of the step `entry`."""
    try:
        names = positional_names(find(entry), required=True)
    except (BadEntryPoint, TypeError):
        names = ()
    module = importlib.import_module(arguments.module)
    tail = "/__init__.py" if hasattr(module, "__path__") else ".py"
    returned = f"{', '.join(names)}{',' * (len(names) == 1)}" if names else "..."
    return (
        f"write in {arguments.module.replace('.', '/')}{tail}: `def {arguments.name}(): return {returned}`, what "
        f"`{entry.name}({', '.join(names) or '...'})` takes"
    )


def failure(named: FunctionName, what: str, error: BaseException, advice: str) -> str:
    """One sentence about an exception from the user's code: what failed, with which error, where, and what to do."""
    # Python's import machinery and this folder are on every such stack, and say nothing to the user.
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    outside = [frame for frame in frames if not frame.filename.startswith(os.path.dirname(__file__))]
    # A library raises where the program has called it.
    own = [frame for frame in outside if not _compat.is_of_a_library(frame.filename)] or outside
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    text = " ".join(str(error).split()) or "no message"
    return f"{named}: {what}: {type(error).__name__}: {text}{where}; {advice}"


def called_with(arguments: FunctionName) -> str:
    """What a sentence about a failed call adds."""
    return f"it was called with what `{arguments.text}` returns"


def parser_for(module: str, description: str | None) -> argparse.ArgumentParser:
    """The command line of `python -m module entry args`, to which the caller adds its own options."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("entry")
    parser.add_argument("args")
    parser.add_argument("--path", action="append", default=[], help="import from here first")
    parser.add_argument("--progress", type=int, help="the end of a pipe, for lines that say what is being done")
    return parser


def print_document(options: argparse.Namespace, make: Callable[[FunctionName, FunctionName], dict[str, Any]]) -> int:
    """Print one JSON document, and return the exit status.

    Args:
        options: The parsed command line of `parser_for`.
        make: Makes the document from the step and the function that makes its arguments. Where it raises
            `BadEntryPoint`, the document is `{"error": sentence, "traceback": text}`, with a text that begins at the
            first line of the user's code. Its "warnings" are what Python and the runtime's log warn of meanwhile.
    """
    document: dict[str, Any]
    if options.progress is not None:
        progress.write_to(options.progress)
    with _reserved_stdout() as output:
        sys.path[:0] = options.path
        sys.path.append(os.getcwd())
        with _collected_warnings() as warned:
            try:
                document, status = make(FunctionName("--entry", options.entry), FunctionName("--args", options.args)), 0
            except BadEntryPoint as problem:
                # The whole stack, the runtime's frames included, goes to standard error for --verbose.
                traceback.print_exc()
                document, status = {"error": str(problem), "traceback": _user_traceback(problem)}, ERROR
        json.dump({**document, "warnings": list(dict.fromkeys(warned))}, output)
    return status


@contextlib.contextmanager
def _collected_warnings() -> Iterator[list[str]]:
    """A list of the warnings that are shown meanwhile, Python's with their lines, and those of the runtime's log."""
    found: list[str] = []

    class WarningHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(" ".join(record.getMessage().split()))
            if logging.lastResort is not None and not logging.getLogger().handlers:
                logging.lastResort.handle(record)

    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if file is None:
                kind = "" if category is UserWarning else f"{category.__name__}: "
                # What calls the step is ourselves, which is no line of the user's.
                place = "" if filename.startswith(_RUNTIME) else f"{filename}:{lineno}: "
                found.append(f"{place}{kind}{' '.join(str(message).split())}")
            shown(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        log, collector = logging.getLogger("mmruntime"), WarningHandler(logging.WARNING)
        log.addHandler(collector)
        try:
            yield found
        finally:
            log.removeHandler(collector)


def _reserved_stdout() -> TextIO:
    """Standard output, reserved for the document: later prints of the user's program go to standard error."""
    sys.stdout.flush()
    # On the level of file descriptors, as XLA and other native libraries print past `sys.stdout`.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return output


def _user_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, from the first line of the user's code on; empty without such a line."""
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
