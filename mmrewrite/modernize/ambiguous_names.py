"""Names that may be an old one or something else. Their uses are reported, not edited."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from mmrewrite.modernize.uses import ModuleUses, dotted_text
from mmrewrite.modernize.version_guards import guard_of
from mmrewrite.results import LeftAlone
from mmrewrite.source.names import Binding, Scope, dotted_name
from mmrewrite.source.spans import span


def unclear_uses(module: ModuleUses, names: Collection[str]) -> Iterator[LeftAlone]:
    """Uses of a name with several bindings, one of them to one of `names`, or that an `import *` may rebind.

    Code that chooses by the version of JAX handles both meanings and is not reported. Neither is an alias: the
    assignment that makes it is.
    """
    source = module.facts.source
    old_names = frozenset(names)
    known: dict[tuple[Scope, str], set[str]] = {}
    candidates = _may_be_unclear(module)
    for head, chain in module.chains:
        if head.id not in candidates:
            continue
        owner = module.scope_of(head).owner(head.id)
        if owner is None:
            continue
        bindings = owner.bindings[head.id]
        if (owner, head.id) not in known:
            is_clear = module.facts.names.resolve(head, owner) is not None
            is_left = is_clear or any(_is_guarded(module, binding) for binding in bindings)
            known[owner, head.id] = set() if is_left else _meanings(module, head.id, owner, frozenset())
        meanings = known[owner, head.id]
        for node in reversed(chain) if meanings else ():
            rest = dotted_text(node).removeprefix(head.id)
            old = sorted({meaning + rest for meaning in meanings} & old_names)
            if old:
                line, column = source.position(span(source, node)[0])
                because = _why(module, head.id, bindings, old[0])
                yield LeftAlone(module.facts.path, line, column, ast.unparse(node), because)
                break


def _may_be_unclear(module: ModuleUses) -> set[str]:
    """Names but for those that hold plain values or are imported once: most of the names that a module reads."""
    has_stars = bool(module.facts.names.stars)
    return {
        name
        for scope in module.facts.names.inner.values()
        for name, bindings in scope.bindings.items()
        if (has_stars or len(bindings) > 1 or bindings[0].target is None)
        and any(each.target is not None or isinstance(each.value, ast.Name | ast.Attribute) for each in bindings)
    }


def _why(module: ModuleUses, name: str, bindings: Collection[Binding], old: str) -> str:
    lines = sorted({getattr(binding.node, "lineno", 1) for binding in bindings})
    if len(lines) == 1:
        star = next((star for star in module.facts.names.stars if star.lineno >= lines[0]), None)
        if star is not None:
            origin = f"{'.' * star.level}{star.module or ''}"
            return (
                f"it is `{old}` unless `from {origin} import *` on line {star.lineno} gives `{name}` another meaning; "
                f"import `{name}` below that, or from there what is needed by name"
            )
    where = " and ".join(filter(None, (", ".join(map(str, lines[:-1])), str(lines[-1]))))
    meanings = f"`{name}` has several meanings, given on lines {where}, and one of them is `{old}`"
    return f"{meanings}; give each a name of its own"


def _meanings(module: ModuleUses, name: str, scope: Scope, seen: frozenset[str]) -> set[str]:
    """Full names that a name with several bindings may stand for, but for those that its assignment already names."""
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
