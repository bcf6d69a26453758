"""The decision about one site."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mmmodernize.sites.site import Location
from mmrewrite.results import HintReference, LeftAlone, Refusal

LEFT_WITH_REGION = "left as it is, because what one mesh context reaches is rewritten together"


@dataclass(frozen=True, eq=False)
class Decision:
    """A site, the codemod that owns it, and what stops it: guarded, not selected, or refused."""

    location: Location
    codemod: str
    reason_left: str | None = None
    refusal: Refusal | None = None

    @property
    def stays(self) -> bool:
        """Whether nothing is written at this site."""
        return self.reason_left is not None or self.refusal is not None

    @property
    def is_left_with_region(self) -> bool:
        """Whether the site stays only because others of its region do."""
        return self.refusal is not None and self.refusal.reason.startswith(LEFT_WITH_REGION)

    @property
    def left(self) -> LeftAlone | None:
        """The site as one that is left alone on purpose, None if it is not."""
        if self.refusal is not None or self.reason_left is None:
            return None
        line, column = self.location.position
        name = self.location.reference.name
        return LeftAlone(self.location.path, line, column, self.location.text.splitlines()[0], self.reason_left, name)

    def refused(self, reason: str) -> Decision:
        """The decision to leave the site alone because of another one, with a sentence for the user."""
        line, column = self.location.position
        refusal = Refusal(
            self.location.path, line, column, reason, self.codemod, self.location.reference, is_consequence=True
        )
        return replace(self, refusal=refusal)


def refusal_of(left: LeftAlone, codemod: str) -> Refusal:
    """The refusal of what would only be told of, if it did not fail today."""
    reference = HintReference(left.line, left.column, left.text, left.name)
    return Refusal(left.path, left.line, left.column, left.reason, codemod, reference)
