"""Find the codemods: every public module of `mmcodemods` is one, and its file name is its name."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mmrewrite.codemod.base import MeshCodemod

PACKAGE = "mmcodemods"

_Codemod = TypeVar("_Codemod")


class Codemods(Mapping[str, type[_Codemod]]):
    """Name and class of every codemod. Names come from the folder alone; a class is imported when it is looked up."""

    def __init__(self, package: str, base: Callable[[], type[_Codemod]]) -> None:
        self._package, self._base = package, base
        path = importlib.import_module(package).__path__
        found = [module.name for module in pkgutil.iter_modules(path) if not module.ispkg]
        self._names = sorted(name for name in found if not name.startswith("_"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> type[_Codemod]:
        if name not in self._names:
            raise KeyError(name)
        base = self._base()
        module = importlib.import_module(f"{self._package}.{name}")
        classes = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
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


class Registry(Codemods["MeshCodemod"]):
    """The codemods that rewrite hints."""

    def __init__(self, package: str = PACKAGE) -> None:
        super().__init__(package, _mesh_codemod)


def _mesh_codemod() -> type[MeshCodemod]:
    from mmrewrite.codemod.base import MeshCodemod

    return MeshCodemod
