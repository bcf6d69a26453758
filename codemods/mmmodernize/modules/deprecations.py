"""The names that are told wherever they are used: those that are old, and those that mean something else today."""

from __future__ import annotations

from functools import lru_cache

from mmmodernize.modules.project_age import ProjectAge
from mmmodernize.names.changed_meanings import CHANGED_MEANINGS
from mmmodernize.names.name_index import ROOTS
from mmmodernize.sites.site import ModernizeContext


class ToldNames:
    """Old names, and of names of another meaning those that are told for themselves and not for an argument.

    What programs of today use as much is told in projects that are older than the change.

    Attributes:
        names: The full names.
        last_parts: Their last parts, one of which stands wherever one is used.
    """

    def __init__(self, context: ModernizeContext) -> None:
        age = context.analysis(ProjectAge)
        rows = [row for row in CHANGED_MEANINGS if not row.keyword and not row.arguments]
        met = [row for row in rows if not row.is_common or age.is_before(row.package, row.release)]
        names, last_parts = _with_last_parts((*context.owners, *(name for row in met for name in row.names)))
        # A project may be a fork of one of these packages, or hold a copy of it.
        modules = {module.facts.names.name.partition(".")[0]: module for module in context.modules.values()}
        copies = [(f"{package}.", modules[package]) for package in ROOTS if package in modules]
        own = {
            name for beginning, copy in copies for name in names if name.startswith(beginning) and copy.defines(name)
        }
        self.names, self.last_parts = (names - own if own else names), last_parts


@lru_cache(maxsize=4)
def _with_last_parts(names: tuple[str, ...]) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(names), frozenset(name.rpartition(".")[2] for name in names)
