"""Sites that one mesh context reaches: they are rewritten together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrewrite.modernize.engine import Codemods
from mmrewrite.modernize.site import Context

if TYPE_CHECKING:
    from mmrewrite.modernize.run import Decision


class Regions:
    """Groups the sites of regional codemods."""

    def __init__(self, context: Context, codemods: Codemods) -> None:
        self.context, self.codemods = context, codemods

    def together(self, decisions: Sequence[Decision]) -> list[Decision]:
        """The decisions, with those refused that share a region with one that stays."""
        return list(decisions)
