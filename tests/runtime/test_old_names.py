"""The old names that `mmrewrite modernize` takes for gone are gone from the installed JAX, and the others are there."""

from __future__ import annotations

import importlib
import warnings

import pytest

from mmrewrite.modernize.analysis.old_names import STILL_THERE
from mmrewrite.modernize.registry import ModernizeRegistry

OLD_NAMES = sorted(
    {name for codemod in ModernizeRegistry().values() for name in (*codemod.names, *codemod.moved)} | STILL_THERE
)


def exists(name: str) -> bool:
    """Whether `from home import name` works for a full name, or attributes lead there from a module."""
    parts = name.split(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cut in range(len(parts) - 1, 0, -1):
            try:
                found: object = importlib.import_module(".".join(parts[:cut]))
            except ImportError:
                continue
            try:
                for part in parts[cut:]:
                    found = getattr(found, part)
            except AttributeError:
                return False
            return True
    return False


@pytest.mark.parametrize("name", OLD_NAMES)
def test_what_is_gone_is_gone(name: str) -> None:
    assert exists(name) == (name in STILL_THERE)
