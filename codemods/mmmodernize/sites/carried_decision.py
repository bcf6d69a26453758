"""Decisions on their way from a worker process, which knows the same trees, by the places of nodes in their module."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from mmmodernize.sites.decision import Decision
from mmmodernize.sites.site import Location
from mmrewrite.project.uses import ModuleUses, OldNameUse
from mmrewrite.results import Refusal
from mmrewrite.source.names import root_of


@dataclass(frozen=True)
class CarriedDecision:
    """A decision without its trees: `node` and the first part of `use` are places among the nodes of the module."""

    codemod: str
    node: int
    use: tuple[int, str, str | None] | None
    part: str
    reason_left: str | None
    refusal: Refusal | None


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
    return Decision(location, decision.codemod, decision.reason_left, decision.refusal)
