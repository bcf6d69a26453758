"""The names that classes and objects of a project have themselves, and its own copies of libraries."""

from __future__ import annotations

import ast
from functools import lru_cache

from mmmodernize.names.name_index import old_names
from mmmodernize.sites.site import ModernizeContext
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project


class OwnMembers:
    """Methods, attributes that are assigned, and annotated fields of all modules of a project."""

    def __init__(self, context: ModernizeContext) -> None:
        self.names: set[str] = set()
        for module in context.modules.values():
            self.names |= module.methods.keys()
            self.names |= {node.attr for node in module.nodes_of(ast.Attribute) if isinstance(node.ctx, ast.Store)}
            targets = (node.target for node in module.nodes_of(ast.AnnAssign))
            self.names |= {target.id for target in targets if isinstance(target, ast.Name)}


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
