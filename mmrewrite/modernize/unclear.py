"""Names with several meanings, one of which is an old name: nothing is edited there, and each use is reported."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from mmrewrite.comments import span
from mmrewrite.modernize.guards import guard_of
from mmrewrite.modernize.uses import ModuleUses, dotted_text
from mmrewrite.names import Binding, Scope, dotted_name
from mmrewrite.values import Left


def unclear_uses(module: ModuleUses, names: Collection[str]) -> Iterator[Left]:
    """Where a name is read that is bound more than once in one scope, once to one of `names`.

    Code that chooses by the version of JAX copes with both, so it is passed over. What an assignment gives is looked at
    where it is assigned.
    """
    source = module.facts.source
    for head, chain in module.chains:
        owner = module.scope_of(head).owner(head.id)
        bindings = owner.bindings[head.id] if owner is not None else []
        if owner is None or len(bindings) < 2 or any(_is_guarded(module, binding) for binding in bindings):
            continue
        if module.facts.names.resolve(head, owner) is not None:
            continue
        meanings = _meanings(module, head.id, owner, frozenset())
        for node in reversed(chain):
            rest = dotted_text(node).removeprefix(head.id)
            old = sorted({meaning + rest for meaning in meanings} & set(names))
            if old:
                lines = sorted({getattr(binding.node, "lineno", 1) for binding in bindings})
                where = f"{', '.join(map(str, lines[:-1]))} and {lines[-1]}"
                line, column = source.position(span(source, node)[0])
                because = (
                    f"`{head.id}` has several meanings, given on lines {where}, and one of them is `{old[0]}`; give "
                    "each a name of its own"
                )
                yield Left(module.facts.path, line, column, ast.unparse(node), because)
                break


def _meanings(module: ModuleUses, name: str, scope: Scope, seen: frozenset[str]) -> set[str]:
    """Full names that a name with several bindings may stand for, but for what is clear where it is assigned."""
    found: set[str] = set()
    for binding in scope.bindings[name]:
        dotted = dotted_name(binding.value) if binding.value is not None else None
        if binding.target is not None:
            found.add(module.facts.names.follow(binding.target))
        elif dotted is not None and module.facts.names.resolve_dotted(dotted, scope) is None:
            first, _, rest = dotted.partition(".")
            owner = scope.owner(first)
            if owner is not None and first not in seen:
                heads = _meanings(module, first, owner, seen | {first})
                found |= {f"{head}.{rest}" if rest else head for head in heads}
    return found


def _is_guarded(module: ModuleUses, binding: Binding) -> bool:
    return guard_of(module, binding.node) is not None
