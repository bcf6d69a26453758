"""Names that may be an old one or something else. Their uses are reported, not edited."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from mmrewrite.modernize.name_index import old_names as index
from mmrewrite.modernize.uses import ModuleUses, dotted_text
from mmrewrite.modernize.version_guards import guard_of
from mmrewrite.results import LeftAlone
from mmrewrite.source.names import Binding, Scope, dotted_name
from mmrewrite.source.spans import span

_MAY_BE_NAMES = (ast.Name, ast.Attribute, ast.IfExp, ast.BoolOp)


def names_by_star(module: ModuleUses, names: Collection[str]) -> Iterator[LeftAlone]:
    """Uses of `names` that come by `from jax import *`, and such imports of modules that are gone."""
    source = module.facts.source
    stars = {star.module: star for star in module.facts.names.stars if not star.level and star.module}
    for origin, star in stars.items():
        known = index().get(origin or "")
        if known is not None and known.is_gone and guard_of(module, star) is None:
            line, column = source.position(span(source, star)[0])
            reason = f"`{origin}` {known.history}, so this import fails; {known.advice}"
            yield LeftAlone(module.facts.path, line, column, source.line(line).strip(), reason)
    for head, chain in module.chains if stars else ():
        if module.scope_of(head).owner(head.id) is not None:
            continue
        for node in reversed(chain):
            found = next((origin for origin in stars if f"{origin}.{dotted_text(node)}" in names), None)
            if found is not None:
                line, column = source.position(span(source, node)[0])
                reason = f"it comes by `from {found} import *` on line {stars[found].lineno}; import it by name"
                yield LeftAlone(module.facts.path, line, column, ast.unparse(node), reason)
                break


def unclear_uses(module: ModuleUses, names: Collection[str]) -> Iterator[LeftAlone]:
    """Uses of a name with several bindings, one of them to one of `names`, or that an `import *` may rebind.

    Code that chooses by the version of JAX handles both meanings and is not reported. Neither is an alias: the
    assignment that makes it is. A `try` around `import jax.numpy` only asks whether there is a JAX.
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
            is_left = is_clear or any(_is_guarded(module, binding, old_names) for binding in bindings)
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
        and any(each.target is not None or isinstance(each.value, _MAY_BE_NAMES) for each in bindings)
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
    lines_are = "lines" if len(lines) > 1 else "line"
    meanings = f"`{name}` has several meanings, given on {lines_are} {where}, and one of them is `{old}`"
    return f"{meanings}; give each a name of its own"


def _meanings(module: ModuleUses, name: str, scope: Scope, seen: frozenset[str]) -> set[str]:
    """Full names that a name with several bindings may stand for, but for those that its assignment already names."""
    found: set[str] = set()
    for binding in scope.bindings[name]:
        if binding.target is not None:
            found.add(module.facts.names.follow(binding.target))
            continue
        for value in _branches(binding.value):
            dotted = dotted_name(value)
            full = None if dotted is None else module.facts.names.resolve_dotted(dotted, scope)
            if full is not None and value is not binding.value and guard_of(module, value) is None:
                # Of `xp = jnp if on_device else np` either; a name that is old itself is a site where it is written.
                found |= {full} - index().keys()
            elif full is None and dotted is not None:
                first, _, rest = dotted.partition(".")
                owner = scope.owner(first)
                if owner is not None and first not in seen:
                    heads = _meanings(module, first, owner, seen | {first})
                    found |= {f"{head}.{rest}" if rest else head for head in heads}
    return found


def _branches(value: ast.AST | None) -> Iterator[ast.expr]:
    """The expressions that a value may be: both sides of a choice, else itself."""
    if isinstance(value, ast.IfExp):
        yield from _branches(value.body)
        yield from _branches(value.orelse)
    elif isinstance(value, ast.BoolOp):
        for each in value.values:
            yield from _branches(each)
    elif isinstance(value, ast.expr):
        yield value


def _is_guarded(module: ModuleUses, binding: Binding, old_names: Collection[str]) -> bool:
    """Whether a binding to an old name, or to what was its home, copes with another JAX."""
    if guard_of(module, binding.node) is None:
        return False
    if binding.target is None:
        return not isinstance(binding.value, ast.Constant)
    return any(name in old_names for name in _and_above(binding.target))


def _and_above(name: str) -> Iterator[str]:
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name
