"""What `--entry` and `--args` name: found, imported and called, with a sentence for whatever goes wrong."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
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


def only_ours() -> TextIO:
    """Standard output for the document alone: what others write to it from now on goes to standard error."""
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return output
