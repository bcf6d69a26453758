"""What the drivers in this folder share. It runs in the old Python as well: nothing here may need more than 3.10."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

import jax
import numpy as np


class StandIn(ModuleType):
    """A module for a package that is not needed: its attributes can be called, inherited from and asked for more."""

    __path__: ClassVar[list[str]] = []
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name[:1].isupper() else mock.MagicMock(name=name)
        setattr(self, name, value)
        return value


def stand_in(name: str, **attributes: Any) -> ModuleType:
    """Put a module `name`, and what it lies in, where `import` looks first; with the attributes given.

    For data, tokenizers, logging and the network alone: what a driver stands in for does not run.
    """
    parent, _, last = name.rpartition(".")
    if parent and parent not in sys.modules:
        stand_in(parent)
    module = sys.modules[name] = StandIn(name)
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


def arrays_of(functions: Iterable[Callable[[], Any]]) -> dict[str, dict[str, Any]]:
    """Call functions that return nothing of interest; what arrays each had in its local variables at its end.

    A function that raises has the name of the exception instead, and its traceback goes to standard error.
    """
    found = {}
    for function in functions:
        arrays: dict[str, Any] = {}

        def note(frame: Any, event: str, result: Any, function: Any = function, arrays: Any = arrays) -> None:
            if event == "return" and frame.f_code is function.__code__:
                arrays.update({name: value for name, value in frame.f_locals.items() if isinstance(value, jax.Array)})
                if isinstance(result, jax.Array):
                    arrays["return"] = result

        np.random.seed(0)
        sys.setprofile(note)
        try:
            function()
        except Exception as error:
            sys.setprofile(None)
            traceback.print_exc()
            arrays["error"] = type(error).__name__
        finally:
            sys.setprofile(None)
        found[function.__name__] = arrays
    return found
