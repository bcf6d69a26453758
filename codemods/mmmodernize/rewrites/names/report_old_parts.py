"""Report what functions and classes lost while they stayed, and write it anew where that is exact.

    compiled.compiler_ir()
    nnx.scan(f, state_axes=axes)
    optax.rmsprop(1e-3, 0.9, 1e-8, 0.0, True)
    nn.LSTMCell()
    x.device_buffer
    jnp.where(x > 0, x=x, y=0)
    ->  train.py:1:1: `compiler_ir` of `jax.stages.Compiled` is gone since JAX 0.4.16; ...
    ->  train.py:2:13: `state_axes=` of `flax.nnx.scan` is gone since Flax 0.9.0; ...
    ->  train.py:3:1: since optax 0.2.4, argument 5 of `optax.rmsprop` is `eps_in_sqrt` and no more `centered`; ...
    ->  train.py:4:1: since Flax 0.7.0, `flax.linen.LSTMCell` needs `features`; pass it
    ->  x.addressable_data(0)
    ->  jnp.where(x > 0, x, 0)

The index of keywords, members, places and flags is read from the wheels, as that of names is. Of members, those are
reported whose object the source shows to be of the class, and, as notes, those of a name that nothing has today. An
argument that is passed by its name alone today gets its name, and one that is passed by position alone loses it where
it stands in its place. Calls by position that mean something else are reported in projects that use names that were
gone in that release, and by `--upgrade-to`; so are calls without a parameter whose default is another since then. Calls
of methods are read where the source shows the class of the object.

To check: notes, which may be about objects of other classes.

Refused: every other keyword and member that is gone, arguments by position that are not taken any more, and calls
without an argument that is needed today. Calls by position or by default whose meaning has changed are left and
reported.
See https://docs.jax.dev/en/latest/changelog.html
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from mmmodernize.calls.call_forms import calls_of
from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.edits.arguments import make_positional, name_argument
from mmmodernize.modules.project_names import OwnMembers, ProjectAge
from mmmodernize.names.advice import BY_POSITION, SUCCESSORS
from mmmodernize.names.gate import uses_any
from mmmodernize.names.name_index import PACKAGES, TITLES, old_names
from mmmodernize.names.old_keywords import OLD_KEYWORDS as RENAMED_KEYWORDS
from mmmodernize.names.part_index import (
    ChangedDefault,
    ChangedPlaces,
    NewRequirement,
    changed_defaults,
    changed_places,
    methods_of_classes,
    new_requirements,
    old_keywords,
    old_members,
    only_members,
    part_words,
)
from mmmodernize.sites.site import Location, ModernizeContext
from mmmodernize.types.value_classes import ValueClasses
from mmrewrite.project.uses import ModuleUses, OldNameUse
from mmrewrite.results import Change
from mmrewrite.source.calls import CallForm, stars_of

# Other codemods rewrite the keywords of these.
_OF_OTHERS = frozenset(
    (
        *("jax.make_mesh", "jax.experimental.pjit.pjit", "jax.experimental.shard_map.shard_map"),
        *("jax.experimental.layout.Layout", "flax.nnx.Optimizer", "flax.nnx.training.optimizer.Optimizer"),
    )
)
# What took its arguments in another order in still older releases.
_SEVERAL_ORDERS = frozenset(("jax.jit",))
_MEMBERS_OF_OTHERS = frozenset(("is_compatible_aval", "input_layouts", "output_layouts", "device_local_layout"))
_OF_OTHERS_OBJECTS = frozenset(("flax.nnx.Optimizer.model", "flax.nnx.training.optimizer.Optimizer.model"))


class ReportOldParts(ModernizeCodemod):
    """Renames what has a successor, and reports the rest."""

    @classmethod
    def may_be_in(cls, data: bytes) -> bool:
        """They are parts of the index."""
        return uses_any(data, PACKAGES, part_words())

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Old keywords, calls that mean something else or lack an argument, and old members."""
        age, objects = context.analysis(ProjectAge), context.analysis(_Objects)
        for use in module.uses(_functions()):
            for found in _calls_by_name(module, use) if use.name not in _OF_OTHERS else ():
                for keyword in _old_keywords(use.name, found):
                    yield Location(module, keyword, use, f"{use.name}.{keyword.arg}")
                if _is_changed(module, use.name, found, age):
                    yield Location(module, use.node, use)
            if _other_defaults(module, use.node, use.name, age):
                yield Location(module, use.node, use)
        for call in module.nodes_of(ast.Call):
            name, is_certain = objects.method(module, call)
            if name is not None:
                (found,) = calls_of(module, call.func)
                keywords = list(_old_keywords(name, found))
                for keyword in keywords if is_certain else ():
                    yield Location(module, keyword, part=f"{name}.{keyword.arg}")
                is_other = is_certain and _other_defaults(module, call.func, name, age)
                if _is_changed(module, name, found, age) or is_other or (keywords and not is_certain):
                    yield Location(module, call.func, part=name)
        for node in module.nodes_of(ast.Attribute):
            if isinstance(node.ctx, ast.Load):
                member = objects.member(module, node)
                if member is not None:
                    yield Location(module, node, part=f"{member[0]}.{node.attr}")

    @classmethod
    def change_of(cls, name: str) -> tuple[str, str, Change] | None:
        """A keyword or a member stops working where it is gone; arguments by position may mean something else."""
        owner, _, last = name.rpartition(".")
        part = old_keywords().get(owner, {}).get(last) or old_members().get(owner, {}).get(last)
        if part is not None:
            return part.package, part.since, "stops"
        asked = next(iter(new_requirements().get(name, ())), None)
        if asked is not None:
            return asked.package, asked.since, "stops"
        place = next(iter(changed_places().get(name, ())), None)
        if place is not None:
            return place.package, place.since, "stops" if place.now is None else "changes"
        default = next(iter(changed_defaults().get(name, ())), None)
        return (default.package, default.since, "changes") if default is not None else None

    def rewrite(self) -> None:
        """Rewrite or report one use."""
        site, node = self.site, self.site.node
        if isinstance(node, ast.keyword):
            self._rewrite_keyword(node)
            return
        assert isinstance(node, ast.expr)
        name, is_certain = self._name
        if name is None:
            assert isinstance(node, ast.Attribute)
            self._rewrite_member(node)
            return
        age = site.context.analysis(ProjectAge)
        if not is_certain:
            told = self.change_of(name)
            since = f"since {TITLES[told[0]]} {told[1]}, " if told is not None else ""
            owner, _, own = name.rpartition(".")
            site.leave(f"if this is a `{owner}`: {since}`{own}` takes other arguments; see what it takes today")
        for found in _calls_by_name(site.module, self.use) if site.use is not None else calls_of(site.module, node):
            self._check_requirements(name, found)
            change = _change(name, found)
            if change is not None and change.now is None:
                self._name_arguments(name, change, found)
            elif change is not None and _is_told(site.module, change, found, age):
                self._tell_place(name, change, found)
        others = _other_defaults(site.module, node, name, age)
        if others:
            self._tell_defaults(name, others)

    @property
    def _name(self) -> tuple[str | None, bool]:
        """What is called: the use, or a method of an object, and whether it is for certain; None for a member alone."""
        if self.site.use is not None:
            return self.use.name, True
        return self._objects.method(self.site.module, self.site.module.parents.get(self.site.node))

    @property
    def _objects(self) -> _Objects:
        return self.site.context.analysis(_Objects)

    def _rewrite_keyword(self, keyword: ast.keyword) -> None:
        site, arg = self.site, keyword.arg
        called = site.module.parents[keyword]
        owner = self.use.name if site.use is not None else self._objects.method(site.module, called)[0]
        assert owner is not None
        assert arg is not None
        if site.use is not None and self.use.is_direct and _is_in_its_place(site.module, self.use, keyword):
            make_positional(site, keyword)
            return
        self.refuse(f"`{arg}=` of `{owner}` {old_keywords()[owner][arg].told(owner)}", keyword)

    def _name_arguments(self, name: str, change: ChangedPlaces, found: CallForm) -> None:
        """Name the arguments that may only be passed by name today, if the call is an old one."""
        named = dict(zip(found.positional[change.first :], change.was[change.first :], strict=False))
        # What an alias stands for may be moved, and this call with it.
        is_written = self.site.use is None or self.use.is_direct
        is_whole = is_written and self.site.call is found.call and found.is_whole
        is_here = is_whole and all(each in found.call.args for each in named)
        if is_here and name not in _SEVERAL_ORDERS and old_keywords().get(name, {}).keys().isdisjoint(named.values()):
            for argument, keyword in named.items():
                name_argument(self.site, found.call, found.call.args.index(argument), keyword)
            return
        title, names = TITLES[change.package], ", ".join(change.was[change.first :])
        self.refuse(
            f"since {title} {change.since}, `{name}` takes {change.first or 'no'} arguments by position, and no more "
            f"{names} there; write the names of those that it still has"
        )

    def _check_requirements(self, name: str, found: CallForm) -> None:
        for asked in _missing(name, found):
            title = TITLES[asked.package]
            self.refuse(f"since {title} {asked.since}, `{name}` needs `{asked.name}`; pass it", found.call)

    def _tell_place(self, name: str, change: ChangedPlaces, found: CallForm) -> None:
        assert change.now is not None
        if change.raises(found.count):
            title, names = TITLES[change.package], ", ".join(f"`{each}`" for each in change.now)
            self.refuse(
                f"since {title} {change.since}, `{name}` takes no arguments by position but {names}; write the names "
                f"of those that it has besides",
                found.call,
            )
        title, was, now = TITLES[change.package], change.was[change.first], change.now[change.first]
        self.site.leave(
            f"since {title} {change.since}, argument {change.first + 1} of `{name}` is `{now}` and no more `{was}`; "
            f"from there on, pass arguments by name"
        )

    def _tell_defaults(self, name: str, changes: Collection[ChangedDefault]) -> None:
        each = [
            f"`{one.name}=` of `{name}` is `{one.now}` where it is not given, since {TITLES[one.package]} {one.since}, "
            f"and was `{one.was}`"
            for one in changes
        ]
        self.site.leave(f"{'; '.join(each)}; pass it")

    def _rewrite_member(self, node: ast.Attribute) -> None:
        site = self.site
        found = self._objects.member(site.module, node)
        assert found is not None
        owner, is_certain = found
        if not is_certain:
            part = old_members()[owner][node.attr]
            if part.is_only:
                site.leave(f"if this is a `{owner}`: `{node.attr}` {part.told(owner)}")
            site.leave(f"`{node.attr}` of `{owner}` {part.told(owner)}; an object may have one from elsewhere")
        new = SUCCESSORS.get(f"{owner}.{node.attr}")
        if new is None:
            self.refuse(f"`{node.attr}` of `{owner}` {old_members()[owner][node.attr].told(owner)}")
        site.rename_attribute(node, new)


@functools.cache
def _functions() -> Mapping[str, None]:
    """What is called with other arguments today."""
    return dict.fromkeys((*old_keywords(), *changed_places(), *new_requirements(), *changed_defaults()))


@functools.cache
def _methods() -> Mapping[str, Collection[str]]:
    """The methods that are called with other arguments today, by their own names."""
    found: dict[str, list[str]] = {}
    for name in filter(_is_method, _functions()):
        found.setdefault(name.rpartition(".")[2], []).append(name)
    return found


def _calls_by_name(module: ModuleUses, use: OldNameUse) -> Iterator[CallForm]:
    """The calls of what a name stands for; a method that is called by its class is given the object first."""
    skip = int(_is_method(use.name) and use.name not in methods_of_classes())
    return (replace(each, positional=each.positional[skip:]) for each in calls_of(module, use.node))


def _is_method(name: str) -> bool:
    return name.rpartition(".")[0].rpartition(".")[2][:1].isupper()


# So many letters of a name, with a bar, make it one that other classes hardly have.
_TELLING = 16


class _Objects:
    """Whose methods and members a project uses, by the classes of its objects.

    An object may come to a file that does not import its package.
    """

    def __init__(self, context: ModernizeContext) -> None:
        self._packages = frozenset[str]().union(*(module.roots for module in context.modules.values()))
        self._own, self._classes = context.analysis(OwnMembers).names, context.analysis(ValueClasses)
        self._project, self._name_of = context.project, context.name_of

    def method(self, module: ModuleUses, call: ast.AST | None) -> tuple[str | None, bool]:
        """The full name of a method that is called with other arguments today, if a call is one; whether it is certain.

        It is if the source shows the class. Of other objects, a method is one that no library and not the project
        itself has under the name.
        """
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return None, False
        attr = call.func.attr
        if attr not in _methods() or self._name_of(module, call.func) is not None:
            return None, False
        owner = self._classes.of(module, call.func.value)
        if owner in _OF_OTHERS or (owner is not None and self._project.defines(owner, module.facts)):
            return None, False
        if owner is not None:
            name = f"{owner}.{attr}"
            return (name if name in _functions() else None), True
        if "_" not in attr or len(attr) < _TELLING or attr in self._own or attr in module.methods:
            return None, False
        possible = (name for name in _methods()[attr] if name.partition(".")[0] in self._packages)
        return min(possible, key=lambda name: (name.count("."), name), default=None), False

    def member(self, module: ModuleUses, node: ast.Attribute) -> tuple[str, bool] | None:
        """The class that a member belonged to, and whether the source shows that of the object; None if it is none."""
        names = _names()
        if node.attr not in names or node.attr in _MEMBERS_OF_OTHERS or node.attr in module.methods:
            return None
        full = self._name_of(module, node)
        if full is not None:
            # Of the class itself, as `ad.Zero.from_value(x)`.
            home = full.rpartition(".")[0]
            return (home, True) if node.attr in old_members().get(home, {}) and full not in old_names() else None
        owner = self._classes.of(module, node.value)
        if f"{owner}.{node.attr}" in _OF_OTHERS_OBJECTS or self._project.defines(owner or "", module.facts):
            return None
        part = old_members().get(owner or "", {}).get(node.attr)
        if owner is not None and part is not None:
            return owner, not part.may_be_there
        others = only_members().get(node.attr, {})
        possible = (owner for owner, part in others.items() if part.package.partition(".")[0] in self._packages)
        first = min(possible, key=lambda owner: (owner.count("."), owner), default=None)
        return (first, False) if first is not None and node.attr not in self._own else None


def _old_keywords(name: str, found: CallForm) -> Iterator[ast.keyword]:
    """The keywords of a call that are gone, but for those that another codemod renames."""
    old, others = old_keywords().get(name, {}), RENAMED_KEYWORDS.get(name, ())
    yield from (keyword for keyword in found.call.keywords if keyword.arg in old and keyword.arg not in others)


def _is_changed(module: ModuleUses, name: str, found: CallForm, age: ProjectAge) -> bool:
    """Whether a call lacks an argument, or gives one by position that is not taken so any more or means another."""
    change = _change(name, found)
    return any(_missing(name, found)) or (change is not None and _is_told(module, change, found, age))


def _is_told(module: ModuleUses, change: ChangedPlaces, found: CallForm, age: ProjectAge) -> bool:
    """Whether a call is old for certain: it raises today. Others may have been written for today."""
    return change.raises(found.count) or age.is_before(change.package, change.since, module)


def _other_defaults(module: ModuleUses, function: ast.expr, name: str, age: ProjectAge) -> Sequence[ChangedDefault]:
    """The parameters that a function is not given, and that are something else today than in an old project."""
    changes = [each for each in changed_defaults().get(name, ()) if age.is_before(each.package, each.since, module)]
    if not changes:
        return ()
    if function in getattr(module.parents.get(function), "decorator_list", ()):
        return changes
    calls = list(calls_of(module, function))
    return [each for each in changes if any(found.lacks(each.name, each.place) for found in calls)]


def _is_in_its_place(module: ModuleUses, use: OldNameUse, keyword: ast.keyword) -> bool:
    """Whether a keyword of a call stands where its value is passed by position: then its name alone has to go."""
    call = module.parents[keyword]
    assert isinstance(call, ast.Call)
    order = BY_POSITION.get(use.name, ())
    if call.func is not use.node or "*" in stars_of(call):
        return False
    named = [each.arg for each in call.keywords]
    count = call.keywords.index(keyword) + 1
    return list(order[len(call.args) : len(call.args) + count]) == named[:count]


def _change(name: str, found: CallForm) -> ChangedPlaces | None:
    """The change that a call by position meets."""
    changes = changed_places().get(name, ())
    return next((each for each in changes if each.first < found.count <= len(each.was)), None)


def _missing(name: str, found: CallForm) -> Iterator[NewRequirement]:
    """The parameters of today that a call does not give."""
    return (asked for asked in new_requirements().get(name, ()) if found.lacks(asked.name, asked.place))


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(name for members in old_members().values() for name in members)
