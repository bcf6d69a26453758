"""The modules of one run, and the imports between them."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from mmrewrite.directives.collect import Hint
from mmrewrite.project.facts import Facts, Loader, SourceFile, Unreadable, read_facts
from mmrewrite.source.exported_names import ExportedNames, exported_names
from mmrewrite.source.names import Binding, member_of

Answer = TypeVar("Answer")


class Project:
    """All modules of a run; others are loaded when an import leads to them.

    `withheld` are hints that stay whatever the codemods decide. `by_name` says that the files were named one by one,
    `axes` are the logical axis names of the configuration, and `starred_in` are modules that import all names of
    others, besides those of the run. `callers` are modules without hints that import some of the run, read where a hint
    is on a call of what code elsewhere may pass. `beside` gives the text of files of the run without hints that import
    some with hints.
    """

    def __init__(
        self,
        facts: Iterable[Facts],
        load: Loader,
        codemods: Collection[str],
        *,
        by_name: bool = False,
        axes: Sequence[tuple[str, str | None]] = (),
        starred_in: Sequence[Facts] = (),
        callers: Sequence[Facts] = (),
        beside: Callable[[], Sequence[bytes]] = tuple,
    ) -> None:
        self.by_name, self.axes = by_name, tuple(axes)
        self.facts = {facts.path: facts for facts in facts}
        self._load, self._codemods, self.callers, self.beside = load, codemods, tuple(callers), beside
        self._by_place: dict[str, Facts | None] = {}
        self._held: dict[str, set[str] | None] = {}
        self._by_name: dict[tuple[str, str], Facts | None] = {}
        self._roots_by_package: dict[tuple[str, str, int], Sequence[str]] = {}
        self._roots = sorted({facts.file.root for facts in self.facts.values()})
        self._following: set[str] = set()
        self._starred: set[tuple[str, str, str]] = set()
        self._circles = 0
        self._followed: dict[tuple[str, str], str] = {}
        self._imported: dict[str, tuple[Facts, ...]] = {}
        self._connected: dict[str, tuple[Facts, ...]] = {}
        self._places_of: dict[str, frozenset[str]] = {}
        self._answers: dict[Hashable, Any] = {}
        self.withheld: set[Hint] = set()
        # Why modules could not be parsed, with their names: by place, and by root and name, as they are imported.
        self._unparsed: dict[str, str] = {}
        self._unparsed_imports: dict[tuple[str, str], str] = {}
        for item in (*callers, *starred_in, *self.facts.values()):
            self._by_place[item.file.place] = item
            self.connect(item)
        self._with_stars = [item for item in (*starred_in, *self.facts.values()) if item.names.stars]

    def module(self, name: str, near: Facts) -> Facts | None:
        """The project's module called `name`, as code in `near` imports it."""
        key = (near.file.root, name)
        if key not in self._by_name:
            self._by_name[key] = self._find_module(name, near.file.root)
        return self._by_name[key]

    def _find_module(self, name: str, near: str) -> Facts | None:
        key = (near, name)
        dots = len(name) - len(name.lstrip("."))
        name = name[dots:]
        path, package = name.replace(".", "/"), name.partition(".")[0]
        for root in self._roots_of(package, near, dots) if path else ():
            for place, is_package in ((f"{root}/{path}.py", False), (f"{root}/{path}/__init__.py", True)):
                if place not in self._by_place:
                    self._by_place[place] = self._read(place, name, is_package, root)
                if place in self._unparsed:
                    # Python imports this one, whatever stands elsewhere.
                    self._unparsed_imports[key] = self._unparsed[place]
                    return None
                found = self._by_place[place]
                if found is not None:
                    return found
        return None

    def _roots_of(self, package: str, near: str, dots: int) -> Sequence[str]:
        """The folders in which imports that begin with a package may find it: of most packages there is none."""
        key = (package, near, dots)
        if key not in self._roots_by_package:
            above = _folder_above(near, dots - 1)
            roots = above if dots else (near, *_roots_of_namespace(near, package), *self._roots)
            self._roots_by_package[key] = [each for each in roots if self._may_hold(each, package)]
        return self._roots_by_package[key]

    def _may_hold(self, root: str, package: str) -> bool:
        """Whether a folder may hold a module or a package: most full names are of what no folder of the run holds."""
        if root not in self._held:
            listed = self._load(f"{root}/")
            # Files of the run need not lie in the folder yet.
            given = (place.removeprefix(f"{root}/") for place in self._by_place if place.startswith(f"{root}/"))
            names = {place.partition("/")[0].removesuffix(".py") for place in given}
            self._held[root] = None if listed is None else names.union(listed.decode().splitlines())
        held = self._held[root]
        return held is None or package in held

    def _read(self, place: str, name: str, is_package: bool, root: str) -> Facts | None:
        data = self._load(place)
        if data is None:
            return None
        facts = read_facts(SourceFile(place, data, name, is_package, root), self._codemods)
        if isinstance(facts, Unreadable):
            if facts.unparsed:
                self._unparsed[place] = f"`{name}`: {facts.message}"
            return None
        self.connect(facts)
        return facts

    def connect(self, facts: Facts) -> None:
        """Have the names of a module resolve through its imports from other modules of the project."""
        facts.names.follow = lambda qualified: self._follow(qualified, facts)
        facts.names.star_gives = lambda star, name: self._star_gives(star, name, facts)
        facts.names.star_target = lambda star, name: self._star_target(star, name, facts)

    def _star_gives(self, star: ast.ImportFrom, name: str, near: Facts) -> bool:
        """Whether `from ... import *` may bind `name`: a module of the project must export it."""
        facts = self.star_module(star, near)
        if facts is None:
            return True
        given = self._given(facts)
        return given is None or name in given or self._is_module_of(facts, name)

    def _is_module_of(self, facts: Facts, name: str) -> bool:
        """Whether `name` is a module of a package: once anything imports it, it is an attribute that is exported."""
        listed = self._exported(facts)
        if not name or (name.startswith("_") if listed is None else listed.is_whole):
            return False
        packages = [each for each in (facts, *self._starred_by(facts)) if each.names.is_package]
        return any(self.module(f"{each.names.name}.{name}", each) is not None for each in packages)

    def _given(self, facts: Facts) -> frozenset[str] | None:
        """The names that `import *` may take from a module; None if these may be any."""
        question = ("names given by stars", facts.path)
        if question not in self._answers:
            # Modules may import all names of each other: what they give grows until nothing changes.
            modules = [facts, *(each for each in self._starred_by(facts) if each is not facts)]
            given: dict[Facts, frozenset[str] | None] = {each: frozenset() for each in modules}
            before = None
            while before != given:
                before = dict(given)
                for each in reversed(modules):
                    given[each] = self._given_once(each, given)
            self._answers |= {("names given by stars", each.path): names for each, names in given.items()}
        found: frozenset[str] | None = self._answers[question]
        return found

    def _given_once(self, facts: Facts, given: dict[Facts, frozenset[str] | None]) -> frozenset[str] | None:
        listed = self._exported(facts)
        if listed is not None and listed.is_whole:
            return listed.names
        if _may_bind_by_text(facts) or (listed is not None and "__getattr__" in facts.names.scope.bindings):
            return None
        # What `__all__` may name besides is among them.
        names = {name for name in facts.names.scope.bindings if listed is not None or not name.startswith("_")}
        for star in facts.names.stars:
            module = self.star_module(star, facts)
            inner = given[module] if module is not None else None
            if inner is None:
                return None
            names.update(name for name in inner if not name.startswith("_"))
        return frozenset(names)

    def _star_target(self, star: ast.ImportFrom, name: str, near: Facts) -> str | None:
        """The full name of what `from ... import *` binds `name` to, if it is certain to do so."""
        facts = self.star_module(star, near)
        module = near.names.home_of(star)
        listed = None if facts is None else self._exported(facts)
        if facts is None or module is None or (listed is not None and not listed.has(name)):
            return None
        bindings = facts.names.scope.bindings.get(name)
        if bindings is None:
            return self._target_by_stars(facts, name)
        return member_of(module, name) if any(_is_certain(binding, facts) for binding in bindings) else None

    def _target_by_stars(self, facts: Facts, name: str) -> str | None:
        question = ("star target", facts.path, name)
        if question in self._answers:
            known: str | None = self._answers[question]
            return known
        if question in self._starred:
            self._circles += 1
            return None
        before = self._circles
        self._starred.add(question)
        try:
            found = facts.names.resolve_dotted(name, facts.names.scope)
        finally:
            self._starred.discard(question)
        if self._circles == before:
            self._answers[question] = found
        return found

    def _exported(self, facts: Facts) -> ExportedNames | None:
        return self.once(("exported names", facts.path), lambda: exported_names(facts.names))

    def star_module(self, star: ast.ImportFrom, near: Facts) -> Facts | None:
        """The project's module that a `from ... import *` in `near` takes its names from."""
        module = near.names.home_of(star)
        return self.module(module, near) if module else None

    def is_taken_by_stars(self, facts: Facts, name: str) -> bool:
        """Whether a new name in this module may hide another, or be hidden, where `import *` binds names.

        It may be one that the module gets from others of the project, or one that is read or bound in modules that get
        all of its names. What a name of the runtime, or of a module without another name, means there, it means here.
        """
        return any(
            (self._has_by_stars(each, name) or (each is not facts and name in each.names.identifiers))
            and each.names.resolve_dotted(name, each.names.scope) not in (name, "mmruntime")
            for each in (facts, *self.starring(facts))
        )

    def _has_by_stars(self, facts: Facts, name: str) -> bool:
        names = facts.names
        # Some star imports may bind any name, and then none would be free.
        if not any(name in each.names.scope.bindings for each in self._starred_by(facts)):
            return False
        return any(names.star_gives(each, name) for each in names.stars if self.star_module(each, facts) is not None)

    def starring(self, facts: Facts) -> list[Facts]:
        """The modules that get new names of this one by `import *`, directly or through others."""
        return self.once(("starring", facts.path), lambda: self._find_starring(facts))

    def _find_starring(self, facts: Facts) -> list[Facts]:
        listed = self._exported(facts)
        if listed is not None and listed.is_whole:
            return []
        return [each for each in self._with_stars if each is not facts and facts in self._starred_by(each)]

    def _starred_by(self, facts: Facts) -> set[Facts]:
        """The modules of which a module gets all names, directly or through others."""
        return self.once(("starred by", facts.path), lambda: self._find_starred_by(facts))

    def _find_starred_by(self, facts: Facts) -> set[Facts]:
        found: set[Facts] = set()
        queue = [facts]
        while queue:
            near = queue.pop()
            for star in near.names.stars:
                module = self.star_module(star, near)
                if module is not None and module not in found:
                    found.add(module)
                    queue.append(module)
        return found

    def _follow(self, qualified: str, near: Facts) -> str:
        """The full name that a re-export resolves to: `pkg.aliases.P` may be `jax.sharding.PartitionSpec`."""
        # Modules of one root import the same things, but for what a module calls its own.
        is_own = qualified == near.names.name or qualified.startswith(f"{near.names.name}.")
        key = (near.path if is_own else near.file.root, qualified)
        if key in self._followed:
            return self._followed[key]
        if qualified in self._following:
            self._circles += 1
            return qualified
        before, is_first = self._circles, not self._following and not self._starred
        found = self._follow_once(qualified, near)
        # Modules may import a name from each other in a circle. What is found on the way is not kept, since it depends
        # on where the circle was entered.
        if is_first or self._circles == before:
            self._followed[key] = found
        return found

    def _follow_once(self, qualified: str, near: Facts) -> str:
        self._following.add(qualified)
        try:
            for module, rest in _splits(qualified):
                if module == near.names.name:
                    return qualified
                facts = self.module(module, near)
                if facts is not None:
                    found = facts.names.resolve_dotted(rest, facts.names.scope)
                    if module != facts.names.name and f"{found}".startswith(f"{facts.names.name}."):
                        # A module of a namespace package calls itself by less than its full name.
                        return qualified
                    # `.jax.tree` may be a function of a local file `jax.py`, and is not `jax.tree`.
                    is_its_own = qualified.startswith(".") and f"{found}".startswith(f"{facts.names.name}.")
                    return found if found and not is_its_own and not found.startswith("builtins.") else qualified
            return qualified
        finally:
            self._following.discard(qualified)

    def definition(self, qualified: str, near: Facts) -> tuple[Facts, Binding] | None:
        """The module and the only binding of a full name that is bound at module level, else None."""
        for module, name in _splits(qualified):
            facts = near if module == near.names.name else self.module(module, near)
            if facts is not None:
                if "." in name:
                    return None
                binding = facts.names.binding(name, facts.names.scope)
                if binding is None and facts.names.stars:
                    found = facts.names.resolve_dotted(name, facts.names.scope)
                    return self.definition(found, facts) if found not in (None, qualified) else None
                return (facts, binding) if binding is not None else None
        return None

    def holds(self, qualified: str, near: Facts) -> bool:
        """Whether a full name, as seen from `near`, is a module of the project or something in one."""
        parts, own = qualified.split("."), near.names.name
        names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        return any(name == own or self.module(name, near) is not None for name in names)

    def own_package(self, name: str, near: Facts) -> Facts | None:
        """The project's package of a name, but for one that relative imports lead to: `import jax` gives another."""
        copy = self.module(name, near)
        if copy is None or copy in self.once("relative", lambda: {*self._find_relative()}):
            return None
        return copy

    def defines(self, qualified: str, near: Facts) -> bool:
        """Whether the project itself has what a full name stands for, as a fork of a library has, or a copy of one.

        A package `jax` that has no such name is taken for one that only some of the project's files see.
        """
        package, _, own = qualified.partition(".")
        if not own or self.own_package(package, near) is None:
            return False
        if self.module(qualified, near) is not None:
            return True
        for module, name in _splits(qualified):
            facts = self.module(module, near)
            if facts is not None:
                return name.partition(".")[0] in facts.names.scope.bindings
        return False

    def _find_relative(self) -> Iterator[Facts | None]:
        """The modules that relative imports of folders without an `__init__.py` lead to."""
        for facts in self.facts.values():
            for statement in facts.names.scopes:
                for name in imported_names(statement, facts):
                    if name.startswith("."):
                        yield self.module(name, facts) or self.module(name.rpartition(".")[0], facts)

    def unparsed_import(self, facts: Facts) -> str | None:
        """Why a module cannot be parsed that this one imports, directly or through others; None if there is none."""
        known = self._unparsed_imports
        modules = self.imported_by([facts]).values() if known else ()
        imports = (
            (each, name) for each in modules for node in each.names.scopes for name in imported_names(node, each)
        )
        keys = ((each.file.root, part) for each, name in imports for part in (name, name.rpartition(".")[0]))
        return next((known[key] for key in keys if key in known), None)

    def imported(self, facts: Facts) -> Iterator[Facts]:
        """The project's modules that `facts` imports anywhere."""
        if facts.path not in self._imported:
            self._imported[facts.path] = tuple(self._find_imported(facts))
        yield from self._imported[facts.path]

    def imported_by(self, modules: Iterable[Facts]) -> dict[str, Facts]:
        """Some modules and their transitive imports, by place."""
        found: dict[str, Facts] = {}
        queue = list(modules)
        while queue:
            facts = queue.pop()
            if found.setdefault(facts.file.place, facts) is facts:
                queue.extend(other for other in self.imported(facts) if other.file.place not in found)
        return found

    def connected(self, facts: Facts) -> tuple[Facts, ...]:
        """A module, then the modules of the run that import it, and all that it or they import, transitively."""
        if facts.path not in self._connected:
            place, every = facts.file.place, self._places_of_all
            together = self._places(facts).union(*(places for _, _, places in every if place in places))
            others = [other for other, at, _ in every if at in together and other is not facts]
            self._connected[facts.path] = (facts, *others)
        return self._connected[facts.path]

    @cached_property
    def _places_of_all(self) -> Sequence[tuple[Facts, str, frozenset[str]]]:
        """The modules of the run, each with its place and the places of it and of its transitive imports."""
        return [(facts, facts.file.place, self._places(facts)) for facts in self.facts.values()]

    def once(self, question: Hashable, find: Callable[[], Answer]) -> Answer:
        """What `find` returned when the question was asked for the first time: of what the modules alone decide."""
        if question not in self._answers:
            self._answers[question] = find()
        found: Answer = self._answers[question]
        return found

    def _places(self, facts: Facts) -> frozenset[str]:
        """The places of a module and of its transitive imports, looked for once."""
        if facts.path not in self._places_of:
            self._places_of[facts.path] = frozenset(self.imported_by([facts]))
        return self._places_of[facts.path]

    def _find_imported(self, facts: Facts) -> Iterator[Facts]:
        found: dict[str, Facts] = {}
        for statement in facts.names.scopes:
            for name in imported_names(statement, facts):
                module = self.module(name, facts)
                if module is None and "." in name:
                    module = self.module(name.rpartition(".")[0], facts)
                if module is not None and module is not facts:
                    found.setdefault(module.path, module)
        yield from found.values()


def _folder_above(folder: str, count: int) -> tuple[str, ...]:
    """The folder `count` levels up, as a tuple of one; empty outside of the files of the run."""
    for _ in range(count):
        if folder in ("", ".", "/"):
            return ()
        folder = posixpath.dirname(folder) or "."
    return (folder,)


def _roots_of_namespace(folder: str, package: str) -> Iterator[str]:
    """The folders that hold a folder `package` around `folder`, which needs no `__init__.py` to be a package."""
    while folder not in ("", ".", "/"):
        parent, name = posixpath.split(folder)
        if name == package:
            yield parent or "."
        folder = parent


def _is_certain(binding: Binding, facts: Facts) -> bool:
    """Whether a statement that always runs binds a name of a module."""
    statement = binding.statement
    return binding.kind in ("function", "class", "import", "value") and (
        statement is not None and statement not in facts.names.parents
    )


def _may_bind_by_text(facts: Facts) -> bool:
    """Whether code of a module may bind names of it that are not written out, as `globals().update(...)` does."""
    used = facts.names.identifiers
    return not used.isdisjoint(("exec", "globals", "locals", "vars")) or {"setattr", "__name__"} <= used


def imported_names(node: ast.AST, facts: Facts) -> Iterator[str]:
    """The full names that an import statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = facts.names.home_of(node)
        if module is not None:
            yield from (member_of(module, alias.name) for alias in node.names)


def _splits(qualified: str) -> Iterator[tuple[str, str]]:
    """(module, rest) for every way to split a dotted name, longest module first."""
    parts = qualified.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        yield ".".join(parts[:cut]), ".".join(parts[cut:])
