"""What is decided about one site."""

from __future__ import annotations

from dataclasses import dataclass

from mmrewrite.modernize.site import Location
from mmrewrite.results import Refusal

DRAWN = "left as it is, because what one mesh context reaches is rewritten together"


@dataclass(frozen=True, eq=False)
class Decision:
    """A site, the codemod that owns it, and what stops it: guarded, not selected, or refused."""

    place: Location
    codemod: str
    left: str | None = None
    refusal: Refusal | None = None

    @property
    def stays(self) -> bool:
        """Whether nothing is written at this site."""
        return self.left is not None or self.refusal is not None
