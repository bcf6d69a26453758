"""One file of a run, before anything is known about what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class SourceFile:
    """One file to read. `root` is the folder from which `module` is imported; `path` and `root` use `/`."""

    path: str
    data: bytes
    module: str = ""
    is_package: bool = False
    root: str = "."

    @cached_property
    def place(self) -> str:
        """The path under which imports find the file: its root, then its module's name with `/`."""
        path = self.module.replace(".", "/")
        return f"{self.root}/{path}/__init__.py" if self.is_package else f"{self.root}/{path}.py"


def may_import_all(data: bytes) -> bool:
    """Whether a file may have a `from ... import *`, as formatters write it."""
    return b"import *" in data
