"""Report what functions and classes lost while they stayed, and write it anew where that is exact.

    compiled.compiler_ir()
    nnx.scan(f, state_axes=axes)
    optax.rmsprop(1e-3, 0.9, 1e-8, 0.0, True)
    x.device_buffer
    jnp.where(x > 0, x=x, y=0)
    ->  train.py:1:1: `compiler_ir` of `jax.stages.Compiled` is gone since JAX 0.4.16; ...
    ->  train.py:2:13: `state_axes=` of `flax.nnx.scan` is gone since Flax 0.9.0; ...
    ->  train.py:3:1: since optax 0.2.4, argument 5 of `optax.rmsprop` is `eps_in_sqrt` and no more `centered`; ...
    ->  x.addressable_data(0)
    ->  jnp.where(x > 0, x, 0)

The index of keywords, members, places and flags is read from the wheels, as that of names is. Of members, those are
reported whose object the source shows to be of the class, and, as notes, those of a name that nothing has today. An
argument that is passed by its name alone today gets its name, and one that is passed by position alone loses it where
it stands in its place. Calls by position that mean something else are reported in projects that use names that were
gone in that release, and by `--upgrade-to`.

To check: notes, which may be about objects of other classes.

Refused: every other keyword and member that is gone. Calls by position whose meaning has changed are left and reported.
See https://docs.jax.dev/en/latest/changelog.html
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator

from mmrewrite.modernize.advice import BY_POSITION, SUCCESSORS
from mmrewrite.modernize.analysis.old_names import PARTIALS
from mmrewrite.modernize.analysis.own_members import OwnMembers
from mmrewrite.modernize.analysis.project_age import ProjectAge
from mmrewrite.modernize.analysis.renamed_keywords import OLD_KEYWORDS as RENAMED_KEYWORDS
from mmrewrite.modernize.analysis.value_classes import class_of
from mmrewrite.modernize.codemod import ModernizeCodemod
from mmrewrite.modernize.edits.arguments import name_argument
from mmrewrite.modernize.gate import uses_any
from mmrewrite.modernize.name_index import PACKAGES, TITLES
from mmrewrite.modernize.part_index import (
    ChangedPlaces,
    changed_places,
    old_keywords,
    old_members,
    only_members,
    part_words,
)
from mmrewrite.modernize.site import Location, ModernizeContext
from mmrewrite.modernize.uses import ModuleUses, OldNameUse
from mmrewrite.results import Change

# Other codemods rewrite the keywords of these.
_OF_OTHERS = frozenset(
    (
        "jax.make_mesh",
        "jax.experimental.pjit.pjit",
        "jax.experimental.shard_map.shard_map",
        "jax.experimental.layout.Layout",
        "flax.nnx.Optimizer",
    )
)
_MEMBERS_OF_OTHERS = frozenset(("is_compatible_aval", "input_layouts", "output_layouts", "device_local_layout"))


class ReportOldParts(ModernizeCodemod):
    """Renames what has a successor, and reports the rest."""

    @classmethod
    def may_be_in(cls, data: bytes) -> bool:
        """They are parts of the index."""
        return uses_any(data, PACKAGES, part_words())

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """Old keywords, calls by position that mean something else, and old members."""
        age, own = context.analysis(ProjectAge), context.analysis(OwnMembers).names
        for use in module.uses({**old_keywords(), **changed_places()}):
            call, positional = _call(module, use.node)
            if call is None or use.name in _OF_OTHERS:
                continue
            old = old_keywords().get(use.name, {})
            for keyword in call.keywords:
                if keyword.arg in old and keyword.arg not in RENAMED_KEYWORDS.get(use.name, ()):
                    yield Location(module, keyword, use, f"{use.name}.{keyword.arg}")
            change = _change(use, positional)
            # Calls by position that raise are old; others may be written for today.
            if change is not None and (change.now is None or age.is_before(change.package, change.since)):
                yield Location(module, use.node, use)
        packages = {item.name.partition(".")[0] for item in module.imported}
        for node in module.nodes_of(ast.Attribute):
            if isinstance(node.ctx, ast.Load):
                found = _owner(module, node, packages, own)
                if found is not None:
                    yield Location(module, node, part=f"{found[0]}.{node.attr}")

    @classmethod
    def change_of(cls, name: str) -> tuple[str, str, Change] | None:
        """A keyword or a member stops working where it is gone; arguments by position may mean something else."""
        owner, _, last = name.rpartition(".")
        part = old_keywords().get(owner, {}).get(last) or old_members().get(owner, {}).get(last)
        if part is not None:
            return part.package, part.since, "stops"
        place = next(iter(changed_places().get(name, ())), None)
        return (place.package, place.since, "stops" if place.now is None else "changes") if place is not None else None

    def rewrite(self) -> None:
        """Rewrite or report one use."""
        site, node = self.site, self.site.node
        if isinstance(node, ast.keyword):
            assert node.arg is not None
            part = old_keywords()[self.use.name][node.arg]
            if _is_in_its_place(site.module, self.use, node):
                site.edit(site.span(node)[0], site.span(node.value)[0], "")
                return
            self.refuse(f"`{node.arg}=` of `{self.use.name}` {part.told(self.use.name)}", node)
        if site.use is None:
            assert isinstance(node, ast.Attribute)
            self._rewrite_member(node)
            return
        call, positional = _call(site.module, self.use.node)
        change = _change(self.use, positional)
        assert call is not None
        assert change is not None
        if change.now is None and site.call is call:
            for index in range(change.first, positional):
                name_argument(site, call, index, change.was[index])
            return
        self._tell_place(change)

    def _tell_place(self, change: ChangedPlaces) -> None:
        title, name = TITLES[change.package], self.use.name
        if change.now is None:
            names = ", ".join(change.was[change.first :])
            self.refuse(f"since {title} {change.since}, `{name}` takes {names} by name alone; write the names")
        was, now = change.was[change.first], change.now[change.first]
        self.site.leave(
            f"since {title} {change.since}, argument {change.first + 1} of `{name}` is `{now}` and no more `{was}`; "
            f"from there on, pass arguments by name"
        )

    def _rewrite_member(self, node: ast.Attribute) -> None:
        site = self.site
        packages = {item.name.partition(".")[0] for item in site.module.imported}
        found = _owner(site.module, node, packages, site.context.analysis(OwnMembers).names)
        assert found is not None
        owner, is_certain = found
        if not is_certain:
            part = only_members()[node.attr][owner]
            site.leave(f"if this is a `{owner}`: `{node.attr}` {part.told(owner)}")
        new = SUCCESSORS.get(f"{owner}.{node.attr}")
        if new is None:
            self.refuse(f"`{node.attr}` of `{owner}` {old_members()[owner][node.attr].told(owner)}")
        _, end = site.span(node)
        site.edit(end - len(node.attr), end, new)


def _call(module: ModuleUses, function: ast.expr) -> tuple[ast.Call | None, int]:
    """The call of a function, or the partial of it, and how many arguments are passed by position."""
    call = module.parents.get(function)
    if not isinstance(call, ast.Call) or any(isinstance(each, ast.Starred) for each in call.args):
        return (call, 0) if isinstance(call, ast.Call) and call.func is function else (None, 0)
    if call.func is function:
        return call, len(call.args)
    is_partial = (
        call.args[:1] == [function] and module.facts.names.resolve(call.func, module.scope_of(call)) in PARTIALS
    )
    return (call, len(call.args) - 1) if is_partial else (None, 0)


def _is_in_its_place(module: ModuleUses, use: OldNameUse, keyword: ast.keyword) -> bool:
    """Whether a keyword of a call stands where its value is passed by position: then its name alone has to go."""
    call = module.parents[keyword]
    assert isinstance(call, ast.Call)
    order = BY_POSITION.get(use.name, ())
    if call.func is not use.node or any(isinstance(argument, ast.Starred) for argument in call.args):
        return False
    named = [each.arg for each in call.keywords]
    count = call.keywords.index(keyword) + 1
    return list(order[len(call.args) : len(call.args) + count]) == named[:count]


def _change(use: OldNameUse, positional: int) -> ChangedPlaces | None:
    """The change that a call by position meets."""
    changes = changed_places().get(use.name, ())
    return next((each for each in changes if each.first < positional <= len(each.was)), None)


def _owner(
    module: ModuleUses, node: ast.Attribute, packages: Collection[str], own: Collection[str]
) -> tuple[str, bool] | None:
    """The class that a member belonged to, and whether the source shows that the object is one; None if it is none."""
    names = _names()
    if node.attr not in names or node.attr in _MEMBERS_OF_OTHERS or node.attr in module.methods:
        return None
    if module.facts.names.resolve(node, module.scope_of(node)) is not None:
        return None
    owner = class_of(module, node.value)
    if owner is not None:
        return (owner, True) if node.attr in old_members().get(owner, {}) else None
    others = only_members().get(node.attr, {})
    first = next((owner for owner, part in others.items() if part.package.partition(".")[0] in packages), None)
    return (first, False) if first is not None and node.attr not in own else None


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(name for members in old_members().values() for name in members)
