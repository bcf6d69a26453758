"""The old names that `mmrewrite modernize` takes for gone are gone from the installed JAX, and the others are there."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings

import pytest

from mmmodernize.names.name_index import last_releases, old_names, once_modules
from mmmodernize.names.private_index import private_names
from mmmodernize.names.shared_names import STILL_THERE
from mmmodernize.registry import ModernizeRegistry

# Those of these codemods come from the index, or are there and have changed.
OTHERS = ("move_names", "report_old_names")
OLD_NAMES = sorted(
    {
        name
        for label, codemod in ModernizeRegistry().items()
        if label not in OTHERS
        for name in (*codemod.names, *codemod.moved)
    }
    | STILL_THERE
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


@pytest.mark.parametrize("name", sorted(once_modules()))
def test_once_modules_are_objects_today(name: str) -> None:
    home, _, own = name.rpartition(".")
    assert hasattr(importlib.import_module(home), own)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)


@pytest.mark.parametrize(("package", "distribution"), [(each, each.replace(".", "-")) for each in last_releases()])
def test_the_index_is_right_about_the_last_release(package: str, distribution: str) -> None:
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")
    if installed != last_releases()[package]:
        pytest.skip(f"{distribution} {installed} is not the last release in the index")
    rows = [row for row in old_names().values() if row.package == package]
    assert [row.name for row in rows if row.changes[-1][1] == "gone" and exists(row.name)] == []
    assert [row.name for row in rows if row.changes[-1][1] in ("warns", "there") and not exists(row.name)] == []
    private = [row for row in private_names().values() if row.package == package]
    assert [row.name for row in private if exists(row.name)] == []
