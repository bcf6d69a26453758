"""The parts of a codemod: base class, site, fragment, imports, registry.

A hint at its site comes in, edits with the tree that they mean go out, or a refusal. `base` is what codemods extend,
`site` what they ask, `meant_tree` what the text is held to. `products` names our packages of codemods, `plugins` finds
those of others. The public names are loaded on first use (PEP 562), since commands list codemods without LibCST.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmrewrite.codemod.base import MeshCodemod as MeshCodemod
    from mmrewrite.codemod.registry import Registry as Registry
    from mmrewrite.codemod.site import Site as Site

_HOMES = {"MeshCodemod": "base", "Registry": "registry", "Site": "site"}

__all__ = ["MeshCodemod", "Registry", "Site"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
