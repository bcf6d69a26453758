"""The decision about one site."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from mmmodernize.sites.site import Location, span_of
from mmrewrite.project.uses import ModuleUses
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


def left_at(module: ModuleUses, node: ast.AST, reason: str, name: str = "", text: str | None = None) -> LeftAlone:
    """A node that is told of and stays, with its source or another text for it."""
    line, column = module.facts.source.position(span_of(module, node)[0])
    return LeftAlone(module.facts.path, line, column, ast.unparse(node) if text is None else text, reason, name)


def refusal_of(left: LeftAlone, codemod: str) -> Refusal:
    """The refusal of what would only be told of, if it did not fail today."""
    reference = HintReference(left.line, left.column, left.text, left.name)
    return Refusal(left.path, left.line, left.column, left.reason, codemod, reference)
