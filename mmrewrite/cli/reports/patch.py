"""A patch that `git apply` takes, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrewrite.suggest.comparison import Suggested


def _suggest(suggested: Suggested) -> bytes:
    from mmrewrite.suggest.output import as_patch

    return as_patch(suggested)


RENDERERS = {"suggest": _suggest}
