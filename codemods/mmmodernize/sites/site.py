"""The site of one old name: the facts from which a codemod decides, and the edits that it registers."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NoReturn, TypeVar

from mmmodernize.names.name_index import TITLES, numbers
from mmmodernize.names.newer_index import Lacking
from mmmodernize.settings import ModernizeSettings
from mmrewrite.codemod.imports import Imports
from mmrewrite.codemod.meant_tree import MeantTree
from mmrewrite.codemod.refusal import SiteRefused
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses, OldNameUse
from mmrewrite.results import CompatUse, Edit, HintReference
from mmrewrite.source.brackets import call_brackets, expression_text, tokens_between
from mmrewrite.source.names import Scope, dotted_name
from mmrewrite.source.spans import span
from mmrewrite.values.flow import ValueFlow

_Analysis = TypeVar("_Analysis")

# Below every line: code in a function sees all names of the module, wherever they are bound.
EVERYWHERE = 1 << 60

# Longer texts are no names.
_LONGEST_NAME = 200

# Names that are imported by themselves, since they would make lines long in full, and their aliases.
_IMPORTED_BY_NAME = {
    "jax.sharding.Mesh": ("Mesh",),
    "jax.sharding.NamedSharding": ("NamedSharding",),
    "jax.sharding.PartitionSpec": ("P", "PartitionSpec"),
}

# What to do about a release that is too old for what is written.
_RAISE = "raise it, or keep the old name"


@lru_cache(maxsize=2)
def _below_each(names: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """The names that are each name and each part of the beginning of one, or lie in it."""
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:length]), []).append(name)
    return found


class SiteLeft(Exception):
    """Why a site stays that runs on today's JAX as it is, in words for a message."""


@dataclass(frozen=True, eq=False)
class Location:
    """A node of a module that is a site.

    Attributes:
        module: The module.
        node: The node.
        use: The use of an old name that it is, or that it belongs to, if there is one.
        part: What else results call it: `owner.member`, or a flag.
    """

    module: ModuleUses
    node: ast.AST
    use: OldNameUse | None = None
    part: str = ""

    @property
    def path(self) -> str:
        """The path of the module as the user knows it."""
        return self.module.facts.path

    @property
    def span(self) -> tuple[int, int]:
        """Offsets of the first character of the node and of the one after its last."""
        return span_of(self.module, self.node)

    @property
    def position(self) -> tuple[int, int]:
        """Line and column of the node, from 1."""
        return self.module.facts.source.position(self.span[0])

    @property
    def text(self) -> str:
        """The source of the node, as it stands."""
        return self.module.facts.source.text[slice(*self.span)]

    @property
    def reference(self) -> HintReference:
        """The site as results name it: an expression in full, a statement by its line."""
        line, column = self.position
        text = self.text if isinstance(self.node, ast.expr) else self.module.facts.source.line(line).strip()
        return HintReference(line, column, text, self.part or (self.use.name if self.use is not None else ""))


@dataclass(eq=False)
class ModernizeContext:
    """The facts and settings that all sites of one run share.

    Attributes:
        project: The modules and the imports between them.
        modules: The uses of names in each module that may change, by path.
        settings: The user's options.
        owners: The codemod that replaces each old name.
        active: The codemods that may write.
        moved: New homes of the names that these move.
        lacking: The names that the releases which an upgrade leads to do not have.
        hidden: Of each notebook the lines that are not read as Python, by cell and line.
        flow: The values of the modules.
    """

    project: Project
    modules: Mapping[str, ModuleUses]
    settings: ModernizeSettings
    owners: Mapping[str, str]
    active: Collection[str]
    moved: Mapping[str, str]
    lacking: Lacking
    hidden: Mapping[str, Sequence[Mapping[int, str]]] = field(default_factory=dict)
    flow: ValueFlow = field(init=False)
    _analyses: dict[type[Any], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Whoever asks the project for its values gets these.
        self.flow = self.project.once("values", lambda: ValueFlow(self.project, self.modules))

    def mentions(self, word: str) -> bool:
        """Whether a module that may change, or one that it imports, has a word in its text."""

        def find() -> bool:
            given = [module.facts for module in self.modules.values()]
            return any(word in each.source.text for each in given) or any(
                word in each.source.text for each in self.project.imported_by(given).values()
            )

        return self.project.once(("mentions", word), find)

    def name_of(self, module: ModuleUses, node: ast.expr) -> str | None:
        """The full name of what is out of the project or defined in it; what else of that has a name is a value."""
        name, project, facts = module.full_name(node), self.project, module.facts
        is_value = name is not None and project.holds(name, facts) and project.definition(name, facts) is None
        return None if is_value else name

    @cached_property
    def _below(self) -> Mapping[str, Sequence[str]]:
        return _below_each(tuple(self.owners))

    def importing(self, name: str) -> Sequence[tuple[ModuleUses, str]]:
        """The modules that import a name, each with the module that it is imported from; for `*`, all star imports."""
        return self._importing.get(name, ())

    @cached_property
    def _importing(self) -> Mapping[str, Sequence[tuple[ModuleUses, str]]]:
        found: dict[str, list[tuple[ModuleUses, str]]] = {}
        for module in self.modules.values():
            for item in module.imported:
                home, _, name = item.name.rpartition(".")
                found.setdefault(name, []).append((module, home))
            names = module.facts.names
            for star in names.stars:
                source = names.home_of(star)
                if source is not None:
                    found.setdefault("*", []).append((module, source))
        return found

    def reading(self, name: str) -> Sequence[tuple[ModuleUses, ast.expr]]:
        """The expressions whose attributes code reads, as by `getattr`, each with its module."""
        return self._reading.get(name, ())

    @cached_property
    def _reading(self) -> Mapping[str, Sequence[tuple[ModuleUses, ast.expr]]]:
        found: dict[str, list[tuple[ModuleUses, ast.expr]]] = {}
        for module in self.modules.values():
            for node in module.nodes_of(ast.Attribute, ast.Call):
                if isinstance(node, ast.Attribute):
                    found.setdefault(node.attr, []).append((module, node.value))
                elif len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                    # `getattr(compat, "xp")` and the like.
                    found.setdefault(str(node.args[1].value), []).append((module, node.args[0]))
        return found

    def saying(self, name: str) -> Sequence[tuple[ModuleUses, str]]:
        """The strings that are a name, or a dotted name with it as in `mock.patch("compat.xp")`, with their modules."""
        return self._saying.get(name, ())

    @cached_property
    def _saying(self) -> Mapping[str, Sequence[tuple[ModuleUses, str]]]:
        found: dict[str, list[tuple[ModuleUses, str]]] = {}
        for module in self.modules.values():
            for text in {str(node.value) for node in module.strings}:
                parts = text.replace(":", ".").split(".") if len(text) < _LONGEST_NAME else ()
                for part in dict.fromkeys(parts) if all(map(str.isidentifier, parts)) else ():
                    found.setdefault(part, []).append((module, text))
        return found

    def look_ahead(self) -> None:
        """Read all modules for what these tables hold, before other processes are to share them."""
        _ = self._below, self._importing, self._reading, self._saying

    def old_names_below(self, name: str) -> Sequence[str]:
        """The old names that are `name`, or lie in it."""
        return self._below.get(name, ())

    def analysis(self, kind: type[_Analysis]) -> _Analysis:
        """An analysis of the whole project, made once, on first use. `kind` is called with this context."""
        if kind not in self._analyses:
            self._analyses[kind] = kind(self)  # type: ignore[call-arg]
        found: _Analysis = self._analyses[kind]
        return found


@dataclass(eq=False)
class ModuleDraft:
    """The edits to one module, as codemods register them, and the local names that these use.

    `kept` are the old names of which a use stays, and so the import. `compat` are the uses of `mmruntime.compat`.
    `reached` are full names that edits write as attributes of a module, each with the length of that module's name.
    """

    module: ModuleUses
    edits: list[Edit] = field(default_factory=list)
    spelled: set[str] = field(default_factory=set)
    kept: frozenset[str] = frozenset()
    compat: list[CompatUse] = field(default_factory=list)
    reached: set[tuple[int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.imports = Imports(self.module.facts)
        self.meant = MeantTree()


class OldNameSite:
    """The place of one old name. A codemod decides from its facts alone."""

    def __init__(self, location: Location, draft: ModuleDraft, context: ModernizeContext, codemod: str) -> None:
        self.location, self.draft, self.context, self.codemod = location, draft, context, codemod
        self.module, self.node, self.use = location.module, location.node, location.use
        self.facts, self.source = self.module.facts, self.module.facts.source
        self.statement = self.module.statement_of(self.node)
        self.scope = self.module.scope_of(self.node)

    # Facts

    @property
    def target(self) -> tuple[int, ...]:
        """The oldest JAX that the result must run on, as three numbers."""
        return (*self.context.settings.target, 0, 0, 0)[:3]

    @property
    def call(self) -> ast.Call | None:
        """The call whose function is this use, None if the name is used as a value."""
        return self.module.call_at(self.node)

    @property
    def is_written_here(self) -> bool:
        """Whether the name comes from an import, rather than from an assignment, whose right side is a site itself."""
        assert self.use is not None
        if self.use.is_direct:
            return True
        found = self.context.project.definition(self.use.written or "", self.facts)
        return found is not None and found[1].kind == "import"

    def resolve(self, node: ast.expr, scope: Scope | None = None) -> str | None:
        """Full name of an expression, such as `jax.jit`, else None."""
        return self.facts.names.resolve(node, scope or self.module.scope_of(node))

    def text(self, node: ast.AST) -> str:
        """The source of a node; that of an expression can be written in brackets."""
        start, end = self.span(node)
        text = self.source.text[start:end]
        return expression_text(text) if isinstance(node, ast.expr) else text

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Offsets of a node's first character and of the one after its last."""
        return span_of(self.module, node)

    # Refusals

    def refuse(self, reason: str, node: ast.AST | None = None) -> NoReturn:
        """Leave the whole site alone and give the user the reason, a sentence.

        Raises:
            SiteRefused: Always.
        """
        place = node if isinstance(node, ast.expr | ast.stmt | ast.keyword) else self.node
        line, column = self.source.position(self.span(place)[0])
        raise SiteRefused(reason, line, column)

    def leave(self, reason: str) -> NoReturn:
        """Leave a site that works alone, and tell the user what there is to know about it.

        Raises:
            SiteLeft: Always.
        """
        raise SiteLeft(reason)

    def needs(self, version: str, what: str) -> None:
        """Refuse unless every JAX that the result must run on has `what`, which came with `version`."""
        if self.target < numbers(version)[:3]:
            wanted = dict(self.context.settings.releases).get("jax")
            if wanted is not None and numbers(wanted)[:3] == self.target:
                self.needs_package("jax", version, what)
            shown = ".".join(str(part) for part in self.context.settings.target)
            self.refuse(f"{what} needs JAX {version}, and `target-jax` is {shown}; {_RAISE}")

    def needs_package(self, package: str, version: str, what: str, jax: str | None = None) -> None:
        """Refuse unless the releases of a package that the result must run on have `what`.

        Args:
            package: The package, such as `flax`.
            version: The release with which it came.
            what: What it is, in words for a message.
            jax: The JAX which that release needs, asked for where no upgrade names the package.
        """
        wanted = dict(self.context.settings.releases).get(package)
        if wanted is None and jax is not None:
            self.needs(jax, f"{what} of {TITLES[package]} {version}")
        if wanted is not None and numbers(wanted) < numbers(version):
            title = TITLES[package]
            self.refuse(f"{what} needs {title} {version}, and the upgrade leads to {title} {wanted}; {_RAISE}")

    # Edits

    def spell(self, qualified: str) -> str:
        """The text for `qualified`, such as `jax.tree.map`, in this place. An import is added if there is none.

        A name that begins with `mmruntime.compat.` is a helper of the runtime.
        """
        lacking = self.context.lacking.of_name(qualified)
        if lacking is not None:
            row, release = lacking
            self.needs_package(row.package, release, f"`{qualified}`")
        imports = self.draft.imports
        # What stands below a function, a lambda or a call is not bound yet if the function runs before.
        line, column = self.statement.lineno, self.statement.col_offset
        parts = qualified.split(".")
        found = imports.existing(qualified, self.scope, line, column) or self._moved_name(qualified, line, column)
        if found is not None:
            self.draft.spelled.add(found.partition(".")[0])
            return found
        if qualified in _IMPORTED_BY_NAME:
            self._refuse_below_star()
            return imports.member(qualified.rpartition(".")[0], parts[-1], _IMPORTED_BY_NAME[qualified])
        for length in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:length])
            found = imports.existing(module, self.scope, line, column) or self._own_module(module)
            if found is not None:
                self.draft.spelled.add(found.partition(".")[0])
                self.draft.reached.add((length - found.count("."), qualified))
                return ".".join((found, *parts[length:]))
        self._refuse_below_star()
        if qualified.startswith("mmruntime.compat."):
            return f"{imports.member('mmruntime', 'compat', ('compat', 'mm_compat'))}.{parts[-1]}"
        module = imports.module(parts[0], parts[0], self.scope, line)
        return ".".join((module, *parts[1:]))

    def _refuse_below_star(self) -> None:
        """Refuse a new name that an `import *` further below may give another meaning."""
        names, line = self.facts.names, self.statement.lineno
        star = next((each for each in names.stars if each.lineno > line and names.star_gives(each, "")), None)
        if star is not None:
            self.refuse(
                f"what is written here needs an import, and `{ast.unparse(star)}` on line {star.lineno} may give its "
                "name another meaning; import by name what is needed from there"
            )

    def spell_compat(self, function: str, because: str) -> str:
        """The text for a function of `mmruntime.compat`, and a note of what would make plain JAX exact here.

        It refuses a target that the runtime does not install on.

        Args:
            function: The function.
            because: Why no text of plain JAX is exact, and what to change for one, in words for a message.
        """
        self.needs("0.10", "`mmruntime.compat`")
        self.note_compat(function, because)
        return self.spell(f"mmruntime.compat.{function}")

    def note_compat(self, function: str, because: str) -> None:
        """Note that this site uses a function of `mmruntime.compat`, as `spell_compat` does."""
        line, column = self.location.position
        text = self.location.reference.text
        self.draft.compat.append(CompatUse(self.location.path, line, column, text, function, because))

    def _own_module(self, qualified: str) -> str | None:
        """The name of a module as the use itself has it: it is bound where the use runs, wherever the import stands.

        What other modules of the project pass on is not a name to write: they may change as well.
        """
        node = self.node
        while isinstance(node, ast.Attribute):
            node = node.value
            text = dotted_name(node)
            if text is not None and self._is_imported_as(text, qualified):
                return text
        return None

    def _is_imported_as(self, text: str, qualified: str) -> bool:
        """Whether imports of this module, and nothing else, make a dotted name mean `qualified`."""
        head, _, rest = text.partition(".")
        owner = self.scope.owner(head)
        targets = {binding.target for binding in owner.bindings[head]} if owner is not None else set()
        return bool(targets) and all((f"{target}.{rest}" if rest else target) == qualified for target in targets)

    def _moved_name(self, qualified: str, line: int, column: int) -> str | None:
        """A name that will mean `qualified` once its import is edited to the new home."""
        kept = self.draft.kept
        for old in (old for old, new in self.context.moved.items() if new == qualified and old not in kept):
            found = self.draft.imports.existing(old, self.scope, line, column)
            binding = self.facts.names.binding(found, self.scope) if found is not None else None
            if binding is not None and isinstance(binding.node, ast.ImportFrom):
                return found
        return None

    @property
    def meant(self) -> MeantTree:
        """What the edits mean. Whoever makes one by `edit` says that here."""
        return self.draft.meant

    def replace(self, node: ast.AST, text: str) -> None:
        """Replace a node by `text`."""
        if self.text(node) != text:
            self.edit(*self.span(node), text)
            self.meant.replace(node, text)

    def edit(self, start: int, end: int, text: str) -> None:
        """Replace the characters from `start` to `end` by `text`."""
        self.draft.edits.append(Edit(start, end, text, (self.codemod,), (self.location.reference,)))

    def wrap(self, node: ast.AST, before: str, after: str) -> None:
        """Insert text before and behind a node."""
        start, end = self.span(node)
        self.edit(start, start, before)
        self.edit(end, end, after)
        self.meant.wrap(node, before, after)

    def drop_brackets(self, call: ast.Call) -> None:
        """Leave of a call without arguments what it calls."""
        (start, end), function = self.span(call), call.func
        opening = call_brackets(self.source, call).opening
        above = [each for each in tokens_between(self.source, start, opening) if each.is_code or each.is_comment][-1]
        self.edit(opening if above.is_comment else above.end, end, "")
        self.meant.change(call, "function alone", lambda _: [function])

    def rename_keyword(self, keyword: ast.keyword, name: str) -> None:
        """Change the name of a keyword argument and keep its value."""
        self._check_free(keyword, name)
        first = tokens_between(self.source, *self.span(keyword))[0]
        self.edit(first.start, first.end, name)
        self.meant.set(keyword, arg=name)

    def replace_keyword(self, keyword: ast.keyword, name: str, value: str) -> None:
        """Write another keyword argument in the place of one."""
        self._check_free(keyword, name)
        self.replace(keyword, f"{name}={value}")

    def _check_free(self, keyword: ast.keyword, name: str) -> None:
        """Refuse a keyword that the call has already, as that of another release."""
        call = self.module.parents[keyword]
        if isinstance(call, ast.Call) and any(each.arg == name and each is not keyword for each in call.keywords):
            self.refuse(f"`{keyword.arg}=` is `{name}=` today, which this call has as well; leave one of them", keyword)

    def rename_attribute(self, node: ast.Attribute, text: str) -> None:
        """Change the name of an attribute, such as `items` or `items()`, and keep the value that has it."""
        last = tokens_between(self.source, *self.span(node))[-1]
        self.edit(last.start, last.end, text)
        self.meant.replace_around(node, node.value, "", f".{text}")


def span_of(module: ModuleUses, node: ast.AST) -> tuple[int, int]:
    """Offsets of the first character of a node of a module and of the one after its last."""
    assert isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.alias | ast.arg | ast.pattern)
    return span(module.facts.source, node)  # type: ignore[arg-type]
