"""The rewrite of hinted programs: read, decide, draft, check.

The public names are loaded when they are used, since the command line starts without LibCST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmrewrite.engine.rewrite import rewrite_project as rewrite_project
    from mmrewrite.engine.rewrite import rewrite_source as rewrite_source
    from mmrewrite.engine.settings import Settings as Settings

__all__ = ["Settings", "rewrite_project", "rewrite_source"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from mmrewrite.engine import rewrite

        return getattr(rewrite, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
