"""Modules that are read without taking the old home of a name for the new one: here, the difference is the subject."""

from __future__ import annotations

from mmrewrite.project.facts import Facts, SourceFile, Unreadable, read_facts
from mmrewrite.project.project import Project


def read_as_written(file: SourceFile) -> Facts | Unreadable:
    """The facts of a module with every name as it is written."""
    facts = read_facts(file, ())
    if isinstance(facts, Facts):
        facts.names.synonyms = {}
    return facts


class ProjectAsWritten(Project):
    """A project of such modules, those among them that imports lead to."""

    def _read(self, place: str, name: str, is_package: bool, root: str) -> Facts | None:
        facts = super()._read(place, name, is_package, root)
        if facts is not None:
            facts.names.synonyms = {}
        return facts
