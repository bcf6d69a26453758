"""What the names of all modules of a project say: its age, which old names are told, and which names are its own."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from functools import cached_property, lru_cache

from mmmodernize.calls.call_forms import calls_of
from mmmodernize.names.changed_meanings import CHANGED_MEANINGS
from mmmodernize.names.name_index import ROOTS, numbers, old_names, prefixes
from mmmodernize.names.part_index import new_requirements
from mmmodernize.sites.site import ModernizeContext
from mmmodernize.sites.version_guards import guard_of, is_chosen
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses, OldNameUse
from mmrewrite.source.names import root_of
from mmrewrite.values.stores import Store

# After every release.
_NEVER = (sys.maxsize,)


class ProjectAge:
    """What the names that a project uses say about its age.

    A name that went in a release was written before it, and so was a call without what it needs since then. One that
    came with a release, where nothing guards it, shows that the project runs on that already; but a module with names
    that are gone may be left over.
    """

    def __init__(self, context: ModernizeContext) -> None:
        self._modules = context.modules.values()
        self._is_upgrade = context.settings.is_upgrade
        self._older_than = {module: self._gone(module) for module in self._modules}
        self._oldest: dict[str, tuple[int, ...]] = {}
        for package, gone in (each for found in self._older_than.values() for each in found.items()):
            self._oldest[package] = min(gone, self._oldest.get(package, gone))

    def is_before(self, package: str, release: str, module: ModuleUses | None = None) -> bool:
        """Whether a module, or any of the project, was written for a release before `release`.

        It was for certain, or as an upgrade assumes.
        """
        asked = numbers(release)
        is_old = self._oldest.get(package, _NEVER) <= asked
        if module is None and is_old:
            return True
        is_left_over = module in self._older_than and self._older_than[module].get(package, _NEVER) <= asked
        return is_left_over or ((is_old or self._is_upgrade) and self._newest.get(package, (0,)) < asked)

    def _gone(self, module: ModuleUses) -> dict[str, tuple[int, ...]]:
        """The first release without a name that a module uses, or that needs more for a call, by package."""
        uses: list[tuple[str, ast.AST]] = [(use.name, use.node) for use in module.uses(old_names())]
        uses += ((item.name, item.alias) for item in module.imported if item.name in old_names())
        rows = ((old_names()[name], node) for name, node in uses)
        refused = [(row.package, row.gone_since, node) for row, node in rows if row.gone_since is not None]
        refused += (
            (asked.package, asked.since, use.node)
            for use in module.uses(new_requirements())
            for asked in new_requirements()[use.name]
            if any(call.lacks(asked.name, asked.place) for call in calls_of(module, use.node))
        )
        found: dict[str, tuple[int, ...]] = {}
        for package, release, node in refused:
            if guard_of(module, node) is None:
                gone = numbers(release)
                found[package] = min(gone, found.get(package, gone))
        return found

    @cached_property
    def _newest(self) -> Mapping[str, tuple[int, ...]]:
        """The last release that some name of the project came with, by package."""
        from mmmodernize.names.newer_index import newer_names

        found: dict[str, tuple[int, ...]] = {}
        for module in self._modules:
            for name in module.names_below(ROOTS):
                for row in filter(None, map(newer_names().get, prefixes(name))):
                    release, change = row.changes[0]
                    came = numbers(release)
                    is_new = change == "came" and came > found.get(row.package, (0,))
                    if is_new and not all(is_chosen(module, use.node) for use in module.uses((name,))):
                        found[row.package] = came
        return found


class ToldNames:
    """Old names, and names whose meaning changed, where the name itself is reported and not an argument.

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


class OwnMembers:
    """Methods, attributes that are assigned, and annotated fields of all modules of a project."""

    def __init__(self, context: ModernizeContext) -> None:
        self.names: set[str] = set()
        for module in context.modules.values():
            self.names |= module.methods.keys()
            self.names |= {node.attr for node in module.attributes_set}
            targets = (node.target for node in module.nodes_of(ast.AnnAssign))
            self.names |= {target.id for target in targets if isinstance(target, ast.Name)}


# A name is that of another, so often.
_LONGEST_WAY = 4
SET_ITSELF = "the program sets this name itself, in {}; see what it means today"


class PatchedNames:
    """Where the modules in view replace what a use leads to, or set the name that leads there.

    Those that do so for want of a name today do not count, nor a package that another module puts into `sys.modules`:
    mostly for itself, such as to build documentation.
    """

    def __init__(self, context: ModernizeContext) -> None:
        self._flow = context.flow

    def place_of(self, use: OldNameUse, module: ModuleUses) -> str | None:
        """The file and line that set what is used, or a name by which it comes there; None if nothing does."""
        head = root_of(use.node)
        place = self.set_at(use.name, module, head.id if isinstance(head, ast.Name) else "")
        for _ in range(_LONGEST_WAY):
            home = self._flow.binding_at(module, head) if isinstance(head, ast.Name) else None
            if place is not None or home is None:
                break
            # Code that is not seen sets other names than those of imports.
            module, binding = home
            place = self.set_at(use.name, module, binding.name, by_any_text=True)
            if binding.value is None:
                break
            head = root_of(binding.value)
        return place

    def set_at(self, name: str, module: ModuleUses, own: str, *, by_any_text: bool = False) -> str | None:
        """The file and line that set a name which a module uses, or its `own` name for that; None if nothing does."""
        for each in self._flow.set_elsewhere(module, own, name, by_any_text=by_any_text):
            is_package = isinstance(each, Store) and each.owner() == ""
            is_meant = each.module is module if is_package else not _is_for_a_while(each.node)
            if is_meant and not is_chosen(each.module, each.node):
                return f"{each.module.facts.path}:{each.node.lineno}"
        return None


def _is_for_a_while(node: ast.expr) -> bool:
    """Whether a place is `mock.patch` or `monkeypatch.setattr`, which is told by its text."""
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in ("object", "patch", "setattr")


def copy_of(package: str, project: Project, near: Facts) -> Facts | None:
    """The project's own package of a library's name that `near` imports, if it has modules of the library.

    A folder that only is called like a library has none.
    """

    def find() -> Facts | None:
        copy = project.own_package(package, near)
        if copy is None or copy.file.root != near.file.root:
            return None
        return copy if any(project.module(name, near) is not None for name in _modules_of(package)) else None

    return project.once(("copy", package, near.file.root), find)


@lru_cache(maxsize=16)
def _modules_of(package: str) -> frozenset[str]:
    parts = (name.split(".") for name in old_names() if name.startswith(f"{package}."))
    return frozenset(f"{package}.{each[1]}" for each in parts if len(each) > 2 and each[1].islower())
