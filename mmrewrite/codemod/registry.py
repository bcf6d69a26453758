"""Find the codemods: every public module of a package and its folders is one, and its file name is its name.

Those of other packages come by entry points: see `mmrewrite.codemod.plugins`.
"""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from mmrewrite.codemod.plugins import DIRECTIVE_RECORDS, HINTS, BadPlugin, Plugin, plugins
from mmrewrite.codemod.products import HINTS as HINTS_PACKAGE

if TYPE_CHECKING:
    from mmrewrite.codemod.base import MeshCodemod

_Codemod = TypeVar("_Codemod")


class Codemods(Mapping[str, type[_Codemod]]):
    """Name and class of every codemod. Names come from the folder alone; a class is imported when it is looked up.

    Whatever looks up or lists codemods raises `BadPlugin` if one of another package is not what it should be.
    """

    def __init__(self, package: str, base: Callable[[], type[_Codemod]], group: str) -> None:
        self._package, self._base, self._group = package, base, group
        self._classes: dict[str, type[_Codemod]] = {}

    @cached_property
    def _own(self) -> dict[str, str]:
        """The modules of our codemods, by name."""
        return dict(_public_modules(self._package, importlib.import_module(self._package).__path__))

    @cached_property
    def others(self) -> Mapping[str, Plugin]:
        """The codemods of other packages."""
        found = plugins(self._group)
        for name in found.keys() & self._own.keys():
            raise BadPlugin(
                f"the package {found[name].package} has a codemod `{name}`, and so has mmrewrite; its author must "
                "rename it"
            )
        return found

    @cached_property
    def _names(self) -> list[str]:
        return sorted([*self._own, *self.others])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> type[_Codemod]:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._classes:
            self._classes[name] = self._load(name)
        return self._classes[name]

    def _load(self, name: str) -> type[_Codemod]:
        base = self._base()
        if name in self.others:
            plugin = self.others[name]
            codemod = plugin.load()
            if not (isinstance(codemod, type) and issubclass(codemod, base)):
                raise BadPlugin(f"{plugin.value} of the package {plugin.package} is no subclass of {base.__name__}")
            return codemod
        module = importlib.import_module(self._own[name])
        classes = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
        ]
        if len(classes) != 1:
            raise ValueError(f"{module.__name__} must hold one codemod class, it holds {len(classes)}.")
        return classes[0]

    def page(self, name: str) -> str:
        """The docstring of a codemod's module, read without importing it."""
        module = self.others[name].module if name in self.others else self._own.get(name, "")
        try:
            spec = find_spec(module) if module else None
        except ImportError:
            spec = None
        if spec is None or spec.origin is None:
            if name in self.others:
                self.others[name].load()
            raise KeyError(name)
        with open(spec.origin, encoding="utf-8") as file:
            return ast.get_docstring(ast.parse(file.read())) or ""

    def summary(self, name: str) -> str:
        """The first line of a codemod's docstring."""
        return self.page(name).partition("\n")[0]


def _public_modules(package: str, path: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The names of the public modules in a package and its folders, each with its dotted name."""
    for module in pkgutil.iter_modules(path):
        dotted = f"{package}.{module.name}"
        if module.ispkg:
            yield from _public_modules(dotted, [os.path.join(folder, module.name) for folder in path])
        elif not module.name.startswith("_"):
            yield module.name, dotted


class Registry(Codemods["MeshCodemod"]):
    """The codemods that rewrite hints."""

    def __init__(self, package: str = HINTS_PACKAGE) -> None:
        super().__init__(package, _mesh_codemod, HINTS)

    @cached_property
    def _names(self) -> list[str]:
        # Hints with a directive of another package are read once its codemods are known.
        _add_directives()
        return sorted([*self._own, *self.others])


def _mesh_codemod() -> type[MeshCodemod]:
    from mmrewrite.codemod.base import MeshCodemod

    return MeshCodemod


def _add_directives() -> None:
    from mmrewrite.directives.vocabulary import DIRECTIVES, Directive

    for name, plugin in plugins(DIRECTIVE_RECORDS).items():
        record = plugin.load()
        if not isinstance(record, Directive) or record.name != name:
            raise BadPlugin(f"{plugin.value} of the package {plugin.package} is no Directive with the name `{name}`")
        if DIRECTIVES.setdefault(name, record) != record:
            raise BadPlugin(
                f"the package {plugin.package} has a directive `{name}`, and so has mmrewrite; its author must rename "
                "it"
            )
