"""Names that may be an old one or something else. Their uses are reported, not edited."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

from mmmodernize.calls.call_forms import keywords_of
from mmmodernize.modules.held_modules import HeldModules, HeldModulesInView
from mmmodernize.modules.passed_modules import PassedModules, star_origins
from mmmodernize.modules.project_names import OwnMembers, ToldNames, copy_of
from mmmodernize.names.name_index import ROOTS, TITLES, prefixes, row_around
from mmmodernize.names.name_index import old_names as index
from mmmodernize.names.old_keywords import lost_keywords
from mmmodernize.sites.decision import left_at, refusal_of
from mmmodernize.sites.site import ModernizeContext
from mmmodernize.sites.version_guards import guard_of
from mmmodernize.types.array_functions import TOLD
from mmrewrite.project.uses import ModuleUses
from mmrewrite.results import LeftAlone, Refusal
from mmrewrite.source.branches import branches
from mmrewrite.source.names import Binding, Scope, dotted_name
from mmrewrite.values.value import By, Value

_MAY_BE_NAMES = (ast.Name, ast.Attribute, ast.IfExp, ast.BoolOp)
# What dotted names lead to.
_NAMES = (*_MAY_BE_NAMES, ast.NamedExpr, ast.Module, ast.ClassDef, str)


def names_by_star(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone | Refusal]:
    """Uses of old names that come by `from jax import *`, here or in a module of the project, and of gone modules."""
    names = context.analysis(ToldNames).names
    stars: dict[str, str] = {}
    for star in module.facts.names.stars:
        where = f"`from {'.' * star.level}{star.module or ''} import *` on line {star.lineno}"
        stars |= dict.fromkeys(star_origins(module.facts, star, context.project, frozenset()), where)
        known = row_around(star.module) if star.module and not star.level else None
        if known is not None and known.is_gone and guard_of(module, star) is None:
            reason = f"`{known.name}` {known.history}, so this import fails; {known.advice}"
            text = module.facts.source.line(star.lineno).strip()
            yield refusal_of(left_at(module, star, reason, known.name, text), "report_old_names")
    for head, chain in module.chains if stars else ():
        if module.scope_of(head).owner(head.id) is not None:
            continue
        for node in reversed(chain):
            found = next((origin for origin in stars if f"{origin}.{dotted_name(node)}" in names), None)
            if found is not None:
                yield left_at(module, node, f"it comes by {stars[found]}; import it by name")
                break
    yield from _of_modules_with_stars(module, context)


def _of_modules_with_stars(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone]:
    """Old names that a module of the project gives without naming them, as it has `from jax import *`."""
    names = context.analysis(ToldNames).names
    given: dict[str, str] = {}
    imported = {item.name for item in module.imported}
    for name in imported | {name.rpartition(".")[0] for name in imported}:
        inner = context.project.module(name, module.facts) if name.partition(".")[0] not in TITLES else None
        for star in inner.names.stars if inner is not None else ():
            for origin in star_origins(inner, star, context.project, frozenset()) if inner is not None else ():
                if origin.partition(".")[0] in TITLES:
                    given |= {name + old.removeprefix(origin): old for old in names if old.startswith(f"{origin}.")}
    if not given:
        return
    places: dict[ast.AST, str] = {item.alias: given[item.name] for item in module.imported if item.name in given}
    places |= {use.node: given[use.name] for use in module.uses(given)}
    for node, name in places.items():
        if guard_of(module, node) is None:
            reason = f"it is `{name}`, which a module of the project gives by `import *`; import it by name"
            yield left_at(module, node, reason)


def unclear_uses(module: ModuleUses, names: Collection[str]) -> Iterator[LeftAlone | Refusal]:
    """Uses of a name with several bindings, one of them to one of `names`, or that an `import *` may rebind.

    Code that chooses by the version of JAX handles both meanings and is not reported. Neither is an alias: the
    assignment that makes it is. A `try` around `import jax.numpy` only asks whether there is a JAX.
    """
    old_names = frozenset(names)
    known: dict[tuple[Scope, str], set[str]] = {}
    lost: dict[tuple[Scope, str], Mapping[str, str]] = {}
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
            meant = set() if is_clear else _meanings(module, head.id, owner, frozenset())
            is_guarded = bool(meant) and any(_is_guarded(module, binding, old_names) for binding in bindings)
            known[owner, head.id] = set() if is_guarded else meant
            lost[owner, head.id] = _lost_by(module, bindings) if is_guarded else {}
        meanings = known[owner, head.id]
        if lost[owner, head.id]:
            yield from _calls_with(module, head, lost[owner, head.id])
        for node in reversed(chain) if meanings else ():
            rest = (dotted_name(node) or "").removeprefix(head.id)
            old = sorted({meaning + rest for meaning in meanings} & old_names)
            if old:
                yield left_at(module, node, _why(module, head.id, bindings, old[0]))
                break


def _lost_by(module: ModuleUses, bindings: Collection[Binding]) -> Mapping[str, str]:
    """The keywords of a name that is chosen by the version of JAX which today's has not, each with whose it is."""
    if all(guard_of(module, each.node) is None for each in bindings):
        return {}
    meant = sorted({module.facts.names.follow(each.target) for each in bindings if each.target is not None})
    return {keyword: name for name in meant for keyword in lost_keywords().get(name, ())}


def _calls_with(module: ModuleUses, function: ast.expr, lost: Mapping[str, str]) -> Iterator[Refusal]:
    """Keywords in calls of a function that has them in some releases of JAX alone."""
    for keyword in keywords_of(module, function):
        if keyword.arg is not None and keyword.arg in lost and guard_of(module, keyword) is None:
            reason = (
                f"`{ast.unparse(function)}` is chosen by the version of JAX, and `{keyword.arg}=` is a keyword of "
                f"`{lost[keyword.arg]}` that today's function has not; give it where that is chosen"
            )
            left = left_at(module, keyword, reason, lost[keyword.arg], f"{keyword.arg}=")
            yield refusal_of(left, "report_old_parts")


def _may_be_unclear(module: ModuleUses) -> set[str]:
    """The names that are neither plain values nor imported once, as most names of a module are."""
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
    """The full names that a name with several bindings may stand for, without the one in its own assignment."""
    found: set[str] = set()
    for binding in scope.bindings[name]:
        if binding.target is not None:
            found.add(module.facts.names.follow(binding.target))
            continue
        for value in branches(binding.value):
            dotted, reader = dotted_name(value), module.scope_of(value)
            full = None if dotted is None else module.facts.names.resolve_dotted(dotted, reader)
            if full is not None and value is not binding.value and guard_of(module, value) is None:
                # Of `xp = jnp if on_device else np` either; a name that is old itself is a site where it is written.
                found |= {full} - index().keys()
            elif full is None and dotted is not None:
                first, _, rest = dotted.partition(".")
                owner = reader.owner(first)
                if owner is not None and first not in seen:
                    heads = _meanings(module, first, owner, seen | {first})
                    found |= {f"{head}.{rest}" if rest else head for head in heads}
    return found


def _is_guarded(module: ModuleUses, binding: Binding, old_names: Collection[str]) -> bool:
    """Whether a binding to an old name, or to what was its home, copes with another JAX."""
    if binding.target is None:
        may_cope = not isinstance(binding.value, ast.Constant)
    else:
        may_cope = any(name in old_names for name in prefixes(binding.target))
    return may_cope and guard_of(module, binding.node) is not None


def lacking_in_copies(module: ModuleUses, context: ModernizeContext) -> Iterator[Refusal]:
    """Old names of a library that the project's own copy of it has not."""
    facts, project = module.facts, context.project
    copies = {package: copy_of(package, project, facts) for package in ROOTS}
    if not any(copies.values()):
        return
    places: list[tuple[ast.expr | ast.alias, str | None]] = [(item.alias, item.name) for item in module.all_imported]
    places += [(node, module.full_name(node)) for _, chain in module.chains for node in chain]
    for node, name in places:
        copy = copies.get((name or "").partition(".")[0])
        if name is None or copy is None or name not in index() or project.defines(name, facts):
            continue
        home, _, own = name.rpartition(".")
        reason = f"the project's own `{home}` ({copy.path}) has no `{own}`; use what it has"
        yield refusal_of(left_at(module, node, reason, name), "report_old_names")


def members_of_passed(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone]:
    """Attributes of values that may be modules, by how the project passes these on."""
    passed, rests = context.analysis(PassedModules), context.analysis(_RestsOfNames).homes
    named = (part for name in module.attributes.keys() & rests.keys() for part in module.attributes[name])
    # Each with all that is read of it.
    wholes = {_whole(module, part) for part in named}
    for node in (each for each in module.nodes_of(ast.Attribute) if each in wholes and isinstance(each.ctx, ast.Load)):
        chain: list[ast.Attribute] = [node]
        while isinstance(chain[-1].value, ast.Attribute):
            chain.append(chain[-1].value)
        resolved = module.full_name(node)
        if resolved is not None and not context.project.holds(resolved, module.facts):
            continue
        found = _read_of_held(module, context, chain)
        if found is None and (resolved is None or _may_be_any(module, context, node)):
            found = _read_of_any(chain, passed.places, context.owners, context.analysis(OwnMembers).names)
        if found is not None and guard_of(module, node) is None:
            name, home, place, part = found
            reason = f"it may be `{name}`, as `{home}` is passed on as a value at {place}; see what it means today"
            yield left_at(module, part, reason)


def _whole(module: ModuleUses, part: ast.Attribute) -> ast.Attribute:
    holder: ast.AST = part
    while isinstance(holder, ast.Attribute):
        part, holder = holder, module.parents[holder]
    return part


def members_of_reexported(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone | Refusal]:
    """Old names that are read of a module which a name may stand for by way of other modules of the project."""
    told, reexported = context.analysis(ToldNames), context.analysis(_NamedModules)
    chosen = context.analysis(_ChosenNames).names
    for use in module.uses(chosen):
        yield from _calls_with(module, use.node, chosen[use.name])
    yield from _looked_up_by_project(module, context)
    for node in module.nodes_of(ast.Attribute):
        if node.attr not in told.last_parts or not isinstance(node.ctx, ast.Load):
            continue
        resolved = module.full_name(node)
        if resolved is not None and not context.project.holds(resolved, module.facts):
            continue
        old = sorted({f"{home}.{node.attr}" for home in reexported.of(module, node.value)} & told.names)
        if old and guard_of(module, node) is None:
            reason = f"it may be `{old[0]}`, by way of the project's modules; import it by one name from one place"
            yield left_at(module, node, reason)


def _looked_up_by_project(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone]:
    """Old names that an import takes from a module of the project whose `__getattr__` looks them up."""
    told = context.analysis(ToldNames)
    for item in module.imported:
        home, _, own = item.name.rpartition(".")
        facts = context.project.module(home, module.facts) if home and own in told.last_parts else None
        if facts is None or own in facts.names.scope.bindings or guard_of(module, item.statement) is not None:
            continue
        held = context.analysis(HeldModules).looked_up(facts)
        old = sorted({f"{each}.{own}" for each in held} & told.names)
        if old:
            reason = f"it may be `{old[0]}`, which `{home}` looks up; import it by name from where it is today"
            yield left_at(module, item.alias, reason)


class _NamedModules:
    """The modules that dotted names may stand for by way of the project's modules, by whichever of several bindings.

    Where one binding decides, names are resolved.
    """

    def __init__(self, context: ModernizeContext) -> None:
        self._flow, self._homes = context.flow, context.analysis(PassedModules).homes

    def of(self, module: ModuleUses, node: ast.expr) -> Collection[str]:
        """Full names of the modules that an expression may be, as far as names lead."""
        return self._flow.may(Value(module, node), self._test).answers if dotted_name(node) is not None else ()

    def _test(self, value: Value) -> str | None:
        if not isinstance(value.head, _NAMES) or any(step.kind is not By.ATTRIBUTE for step in value.path):
            return ""
        return value.outside if value.outside in self._homes else None


class _ChosenNames:
    """The names that a project chooses by the version of JAX, with the keywords that today's function has not."""

    def __init__(self, context: ModernizeContext) -> None:
        self.names: dict[str, Mapping[str, str]] = {}
        for module in context.modules.values():
            for name, bindings in module.facts.names.scope.bindings.items():
                lost = _lost_by(module, bindings) if len(bindings) > 1 else {}
                if lost:
                    self.names[f"{module.facts.names.name}.{name}"] = lost


# Names that modules had and that arrays, or functions with rules for derivatives, have as members, such as
# `jax.dtypes.dtype`. Where no name says of what they are read, it is of these.
_OF_VALUES = TOLD | {"defjvp", "defvjp", "prod", "reshape"}


class _RestsOfNames:
    """What follows after a module in each old name, with the modules: `tree_util.tree_map` after `jax`."""

    def __init__(self, context: ModernizeContext) -> None:
        self.homes = _rests(context.analysis(ToldNames).names, context.analysis(PassedModules).homes)


@lru_cache(maxsize=4)
def _rests(names: frozenset[str], modules: frozenset[str]) -> Mapping[str, set[str]]:
    homes: dict[str, set[str]] = {}
    for name in names:
        parts = name.split(".")
        if parts[-1] in _OF_VALUES:
            continue
        for length in range(1, len(parts)):
            home = ".".join(parts[:length])
            if home in modules:
                homes.setdefault(".".join(parts[length:]), set()).add(home)
    return homes


def _parts(chain: list[ast.Attribute]) -> Iterator[tuple[ast.expr, str, ast.Attribute]]:
    """The ways to read a chain of attributes as a value and what is read of it, the longest first."""
    for place, part in enumerate(chain):
        rest = ""
        for node in chain[place:]:
            rest = f"{node.attr}.{rest}" if rest else node.attr
            yield node.value, rest, part


def _read_of_held(
    module: ModuleUses, context: ModernizeContext, chain: list[ast.Attribute]
) -> tuple[str, str, str, ast.Attribute] | None:
    """The old name that is read of a value, as assignments and calls show: the name, its module and its place."""
    rests, loose = context.analysis(_RestsOfNames).homes, context.analysis(PassedModules).loose
    for value, rest, part in _parts(chain):
        is_possible = not loose.isdisjoint(rests.get(rest, ()))
        # Members that the project has itself are read of many values.
        is_own = part.attr in context.analysis(OwnMembers).names
        values = context.analysis(HeldModulesInView if is_own else HeldModules)
        held = values.of(module, value) if is_possible else {}
        home = min(rests.get(rest, set()).intersection(held), default=None)
        if home is not None:
            return f"{home}.{rest}", home, held[home], part
    return None


def _read_of_any(
    chain: list[ast.Attribute], places: Mapping[str, str], names: Collection[str], own: Collection[str]
) -> tuple[str, str, str, ast.Attribute] | None:
    """The old name that an attribute of an unknown value may be, unless the project has attributes of that name."""
    for _, rest, part in _parts(chain):
        for home, place in places.items():
            if f"{home}.{rest}" in names:
                return (f"{home}.{rest}", home, place, part) if part.attr not in own else None
    return None


def _may_be_any(module: ModuleUses, context: ModernizeContext, node: ast.Attribute) -> bool:
    """Whether a name of the project says nothing of an attribute: it is one of a class or of an object of it."""
    dotted = dotted_name(node)
    head = dotted.partition(".")[0] if dotted is not None else ""
    binding = module.facts.names.binding(head, module.scope_of(node))
    if binding is None:
        return False
    found = context.project.definition(binding.target, module.facts) if binding.target is not None else None
    return "class" in (binding.kind, found[1].kind if found is not None else "")
