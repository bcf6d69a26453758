"""Find the codemods: every public module of `mmcodemods` is one, and its file name is its name."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrewrite.codemod import MeshCodemod

PACKAGE = "mmcodemods"


class Registry(Mapping[str, "type[MeshCodemod]"]):
    """Name and class of every codemod. Names cost a look into a folder; a class is imported when it is asked for."""

    def __init__(self, package: str = PACKAGE) -> None:
        self._package = package
        path = importlib.import_module(package).__path__
        self._names = sorted(found.name for found in pkgutil.iter_modules(path) if not found.name.startswith("_"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> type[MeshCodemod]:
        if name not in self._names:
            raise KeyError(name)
        from mmrewrite.codemod import MeshCodemod

        module = importlib.import_module(f"{self._package}.{name}")
        classes = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, MeshCodemod) and value.__module__ == module.__name__
        ]
        if len(classes) != 1:
            raise ValueError(f"{module.__name__} must hold one codemod class, it holds {len(classes)}.")
        return classes[0]

    def page(self, name: str) -> str:
        """The docstring of a codemod, read without importing it."""
        spec = find_spec(f"{self._package}.{name}")
        if spec is None or spec.origin is None:
            raise KeyError(name)
        with open(spec.origin, encoding="utf-8") as file:
            return ast.get_docstring(ast.parse(file.read())) or ""

    def summary(self, name: str) -> str:
        """The first line of a codemod's docstring."""
        return self.page(name).partition("\n")[0]
