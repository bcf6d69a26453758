"""The rewrite of hinted programs: read, decide, draft, check.

Files and codemods come in, a `Rewrite` for each file goes out; nothing is printed. `decide` decides by region, `draft`
runs the codemods on a module, `self_check` compares the result with what was meant. Notebooks are modules by way of
`notebook`. Hints that stand or fall together are `regions`; imports that go with hints are `hint_imports`, and stay in
order by `sorted_imports`; no comment is lost by `comment_places`; several processes are `workers`. The public names are
loaded on first use (PEP 562), since the command line starts without LibCST.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmrewrite.engine.rewrite import rewrite_project as rewrite_project
    from mmrewrite.engine.rewrite import rewrite_source as rewrite_source
    from mmrewrite.engine.settings import HintSettings as HintSettings

_HOMES = {"HintSettings": "settings", "rewrite_project": "rewrite", "rewrite_source": "rewrite"}

__all__ = ["HintSettings", "rewrite_project", "rewrite_source"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
