"""The decision about one site, also on its way from a worker process, which knows the same trees."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmmodernize.sites.site import Location, span_of
from mmrewrite.project.uses import ModuleUses, OldNameUse
from mmrewrite.results import HintReference, LeftAlone, Refusal
from mmrewrite.source.names import root_of

LEFT_WITH_REGION = "left as it is, because what one mesh context reaches is rewritten together"


@dataclass(frozen=True, eq=False)
class Decision:
    """A site, the codemod that owns it, and what stops it: guarded, not selected, or refused."""

    location: Location
    codemod: str
    reason_left: str | None = None
    refusal: Refusal | None = None
    is_settled: bool = False

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
        text = self.location.text.splitlines()[0]
        return LeftAlone(self.location.path, line, column, text, self.reason_left, name, self.is_settled)

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


@dataclass(frozen=True)
class CarriedDecision:
    """A decision without its trees: `node` and the first part of `use` are places among the nodes of the module."""

    codemod: str
    node: int
    use: tuple[int, str, str | None] | None
    part: str
    reason_left: str | None
    refusal: Refusal | None
    is_settled: bool


def carried(decisions: Sequence[Decision], module: ModuleUses) -> tuple[CarriedDecision, ...]:
    """Decisions about sites of one module, so that they can be pickled."""
    places = {node: place for place, node in enumerate(module.nodes)} if decisions else {}
    return tuple(
        CarriedDecision(
            decision.codemod,
            places[decision.location.node],
            None if use is None else (places[use.node], use.name, use.written),
            decision.location.part,
            decision.reason_left,
            decision.refusal,
            decision.is_settled,
        )
        for decision in decisions
        for use in (decision.location.use,)
    )


def restored(decision: CarriedDecision, module: ModuleUses) -> Decision:
    """The decision about the same site of the same module in this process."""
    use = None
    if decision.use is not None:
        place, name, written = decision.use
        node = module.nodes[place]
        assert isinstance(node, ast.expr)
        head = root_of(node)
        use = OldNameUse(node, name, written, module.scope_of(head), module.statement_of(head))
    location = Location(module, module.nodes[decision.node], use, decision.part)
    return Decision(location, decision.codemod, decision.reason_left, decision.refusal, decision.is_settled)
