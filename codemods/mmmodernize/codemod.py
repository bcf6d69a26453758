"""The base class of the codemods that modernize."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, ClassVar, NoReturn

from mmmodernize.names.gate import once_in
from mmrewrite.project.uses import ModuleUses, OldNameUse
from mmrewrite.results import Change

if TYPE_CHECKING:
    from mmmodernize.sites.site import Location, ModernizeContext, OldNameSite


class ModernizeCodemod:
    """Replaces the uses of some old names, or refuses them.

    `rewrite` decides about one site and registers its edits. It runs once to decide and once to draft, so it must be a
    function of its site.

    Attributes:
        names: The full names whose uses are its sites.
        moved: New homes of names that are otherwise the same: the engine edits the import, and uses keep their alias.
        regional: Whether its sites are rewritten together with all that the same mesh context reaches, or not at all.
        on_request_only: Whether it runs only when it is selected by name.
        extra_markers: Bytes of files that may hold a site although they hold none of the names.
        beside: Full names other than `names` and `moved`. A module that uses none of them all, and has none of `words`
            in its text, has no site. None where that is not so.
        words: Parts of the text of a module that may have a site although it uses none of the names.
        in_project: Part of the text of some module of the project, or of one that it imports; else there is no site.
        takes_the_rest: Whether it gives up those of its names that another codemod has.
        changed_in: For text that is no old name: the package, the release, and what that release made of it. It
            "changes" its meaning, "warns" or "stops" working. By the full name that is used, "" for every other.
    """

    names: ClassVar[tuple[str, ...]] = ()
    moved: ClassVar[Mapping[str, str]] = {}
    regional: ClassVar[bool] = False
    on_request_only: ClassVar[bool] = False
    extra_markers: ClassVar[tuple[bytes, ...]] = ()
    beside: ClassVar[Collection[str] | None] = None
    words: ClassVar[Collection[str]] = ()
    in_project: ClassVar[str] = ""
    takes_the_rest: ClassVar[bool] = False
    changed_in: ClassVar[Mapping[str, tuple[str, str, Change]]] = {}

    def __init__(self, site: OldNameSite) -> None:
        self.site = site

    @classmethod
    def markers(cls) -> tuple[bytes, ...]:
        """Byte strings; a file with none of them has no site."""
        names = {name.rpartition(".")[2].encode() for name in (*cls.names, *cls.moved)}
        return (*sorted(names), *cls.extra_markers)

    @classmethod
    @cache
    def _known_markers(cls) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Those that are parts of words, and the others."""
        known = cls.markers()
        in_words = [each for each in known if each.replace(b"_", b"a").isalnum()]
        return in_words, [each for each in known if each not in in_words]

    @classmethod
    @cache
    def _known_names(cls) -> frozenset[str]:
        return frozenset((*cls.names, *cls.moved))

    @classmethod
    def may_be_in(cls, data: bytes) -> bool:
        """The first gate: whether a file with these bytes can have a site."""
        in_words, others = cls._known_markers()
        once = once_in(data)
        return any(marker in once for marker in in_words) or any(marker in data for marker in others)

    @classmethod
    def may_be_at(cls, module: ModuleUses, context: ModernizeContext) -> bool:
        """The second gate: whether a module, whose names are resolved, can have a site."""
        if cls.in_project and not context.mentions(cls.in_project):
            return False
        if cls.beside is None or module.uses_any(cls._known_names()) or module.uses_any(cls.beside):
            return True
        text = module.facts.source.text
        return any(word in text for word in cls.words)

    @classmethod
    def homes(cls, target: tuple[int, ...]) -> Mapping[str, str]:
        """The names of `moved` that may be written if the result must run on JAX `target`."""
        return cls.moved

    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        """The sites in one module: uses of `names`, and of moved names that no edit of an import replaces."""
        from mmmodernize.sites.site import Location

        for use in module.uses(cls._known_names()):
            is_written = isinstance(use.node, ast.Attribute) or use.name not in context.moved
            if use.name in cls.names or (use.is_direct and is_written):
                yield Location(module, use.node, use)

    @classmethod
    def change_of(cls, name: str) -> tuple[str, str, Change] | None:
        """The package, the release, and what that release made of a name whose use is a site; None if nothing is known.

        By default that is what `changed_in` says.
        """
        return cls.changed_in.get(name, cls.changed_in.get(""))

    def rewrite(self) -> None:
        """Decide about the whole site, and register its edits.

        Raises:
            SiteRefused: Through `self.refuse`, if the site must stay as it is.
        """
        use = self.site.use
        if use is None or use.name not in self.moved:
            raise NotImplementedError
        self.site.replace(use.node, self.spelled(self.moved[use.name]))

    def rewrite_left(self) -> None:
        """Register what is exact although the site is left as it is, because others of its region are."""

    def spelled(self, new: str) -> str:
        """The text for the new home of a moved name in this place."""
        return self.site.spell(new)

    def refuse(self, reason: str, node: ast.AST | None = None) -> NoReturn:
        """Leave the site alone and say why."""
        self.site.refuse(reason, node)

    @property
    def use(self) -> OldNameUse:
        """The use that this site is."""
        assert self.site.use is not None
        return self.site.use


Codemods = Mapping[str, "type[ModernizeCodemod]"]
