"""The uses of names in one module, and the tree around each of them."""

from __future__ import annotations

import ast
import copy
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

from mmrewrite.project.facts import Facts
from mmrewrite.source.names import Binding, Scope, dotted_name
from mmrewrite.source.spans import span
from mmrewrite.source.text import expression_in
from mmrewrite.source.walk import children, walk

if TYPE_CHECKING:
    from mmrewrite.project.project import Project

_Node = TypeVar("_Node", bound=ast.AST)
_Other = TypeVar("_Other", bound=ast.AST)
# Where types stand that no code evaluates. Not every Python has a class for each.
_TYPES: dict[type[ast.AST], tuple[str, ...]] = {
    ast.AnnAssign: ("annotation",),
    ast.AsyncFunctionDef: ("returns",),
    ast.FunctionDef: ("returns",),
    ast.arg: ("annotation",),
}
if sys.version_info >= (3, 12):
    _TYPES |= {ast.ParamSpec: ("default_value",), ast.TypeAlias: ("value",)}
    _TYPES |= {ast.TypeVar: ("bound", "default_value"), ast.TypeVarTuple: ("default_value",)}


@dataclass(frozen=True, eq=False)
class OldNameUse:
    """An expression that stands for an old name, such as the `pjit.pjit` of `pjit.pjit(f)`.

    `written` is its full name before assignments and the project's own modules are followed. If that differs from
    `name`, this is an alias, and the old name is written where the alias is made.
    """

    node: ast.expr
    name: str
    written: str | None
    scope: Scope
    statement: ast.stmt

    @property
    def is_direct(self) -> bool:
        """Whether the old name itself is written here."""
        return self.written == self.name


@dataclass(frozen=True, eq=False)
class ImportedName:
    """One name of an import statement, which binds `local` to `name`."""

    alias: ast.alias
    statement: ast.Import | ast.ImportFrom
    name: str
    local: str


# A dotted name: how many names are read above it, its first name, all of it.
_Place = tuple[int, ast.Name, ast.expr]


class _Meaning(NamedTuple):
    """A dotted name that a module reads, whose first name one scope binds, and all its places."""

    dotted: str
    places: Sequence[_Place]


@dataclass(eq=False)
class ModuleUses:
    """The names of a module and the tree around every node.

    `nodes` are all nodes in the order of `ast.walk`, but for those of operators and of `ctx`, and then those of
    annotations in strings, which are `quoted`. `defines` tells which names of libraries the project defines itself: no
    use of one is a use of the library's. `project` is the one that they and their imports are of.
    """

    facts: Facts
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    nodes: list[ast.AST] = field(default_factory=list)
    defines: Callable[[str], bool] = field(default=lambda name: False)
    project: Project | None = None

    def __post_init__(self) -> None:
        self._scopes: dict[ast.AST, Scope] = {}
        self._owned: dict[str, dict[Scope | None, list[ast.Name]]] = {}
        self._full_names: dict[ast.expr, str | None] = {}
        self._of_kinds: dict[tuple[type[ast.AST], ...], list[ast.AST]] = {}
        nodes, parents = self.nodes, self.parents
        nodes.append(self.facts.tree)
        for node in nodes:
            below = children(node)
            nodes += below
            for child in below:
                parents[child] = node
        self.quoted: dict[ast.Constant, ast.expr] = {}
        typed = [node for node in self.nodes if type(node) in _TYPES]
        strings = list(self._strings_among([part for node in typed for part in _types_at(node)]))
        for string in strings:
            expression = self._unquoted(string)
            if expression is not None:
                self.quoted[string] = expression
                self.parents[expression] = string
                for node in walk(expression):
                    self.nodes.append(node)
                    self.parents |= dict.fromkeys(children(node), node)
                # As in `"Optional['Key']"`.
                strings += self._strings_among([expression])

    def look_ahead(self) -> None:
        """Find what `uses` asks of the tree alone, before names are resolved."""
        _ = self._dotted_names

    def unresolved(self) -> ModuleUses:
        """The module for a run in which its imports may lead elsewhere: all that its tree says is shared."""
        other = copy.copy(self)
        other._full_names = {}
        for resolved in ("_meanings", "imported", "roots"):
            other.__dict__.pop(resolved, None)
        return other

    @overload
    def nodes_of(self, kind: type[_Node], /) -> Sequence[_Node]: ...
    @overload
    def nodes_of(self, kind: type[_Node], other: type[_Other], /) -> Sequence[_Node | _Other]: ...
    @overload
    def nodes_of(self, *kinds: type[ast.AST]) -> Sequence[ast.AST]: ...
    def nodes_of(self, *kinds: type[ast.AST]) -> Sequence[ast.AST]:
        """The nodes of some kinds, in the order of `nodes`. Most analyses look for few, and there are many nodes."""
        found = self._of_kinds.get(kinds)
        if found is None:
            places = sorted(place for kind in kinds for place in self._places.get(kind, ()))
            found = self._of_kinds[kinds] = [self.nodes[place] for place in places]
        return found

    @cached_property
    def _places(self) -> dict[type[ast.AST], list[int]]:
        """Where the nodes of each kind stand among `nodes`."""
        found: dict[type[ast.AST], list[int]] = defaultdict(list)
        for place, node in enumerate(self.nodes):
            found[type(node)].append(place)
        return found

    def _strings_among(self, queue: list[ast.AST]) -> Iterator[ast.Constant]:
        """The strings that stand for types in some annotations."""
        while queue:
            node = queue.pop()
            if isinstance(node, ast.Constant):
                if isinstance(node.value, str):
                    yield node
            elif isinstance(node, ast.Subscript) and self._holds_no_types(node.value):
                queue.append(node.value)
            else:
                queue += ast.iter_child_nodes(node)

    def _holds_no_types(self, generic: ast.expr) -> bool:
        """Whether the strings in `generic[...]` are no types, as in `Literal["a"]` and `Float[Array, "batch"]`."""
        found = self.facts.names.resolve(generic, self.scope_of(generic)) or ""
        return found.startswith("jaxtyping.") or found.endswith((".Literal", ".Annotated"))

    def _unquoted(self, string: ast.Constant) -> ast.expr | None:
        """The expression in a string, at its place in the source; None if it cannot be located there."""
        source = self.facts.source
        start, end = span(source, string)
        text, value = source.text[start:end], str(string.value)
        if "\n" in text or "\\" in text or text[1:-1] != value:
            return None
        expression = expression_in(value)
        for node in ast.walk(expression) if expression is not None else ():
            if isinstance(node, ast.expr | ast.keyword):
                node.lineno = node.end_lineno = string.lineno
                node.col_offset += string.col_offset + 1
                node.end_col_offset = (node.end_col_offset or 0) + string.col_offset + 1
        return expression

    @cached_property
    def words(self) -> frozenset[str]:
        """The names that code of the module uses, of whatever: what texts and comments say is not among them."""
        return frozenset(
            (
                *(node.id for node in self.nodes_of(ast.Name)),
                *self.attributes,
                *(node.arg for node in self.nodes_of(ast.keyword) if node.arg is not None),
                *(part for node in self.nodes_of(ast.alias) for part in node.name.split(".")),
                *(part for node in self.nodes_of(ast.ImportFrom) if node.module for part in node.module.split(".")),
            )
        )

    def in_annotation(self, node: ast.AST) -> bool:
        """Whether a node is part of an annotation, or of a type that stands for itself."""
        inner = node
        for holder in self.above(node):
            if type(holder) in _TYPES and inner in _types_at(holder):
                return True
            if isinstance(holder, ast.stmt):
                return False
            inner = holder
        return False

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that hold `node`, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def class_around(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class that holds a node."""
        return next((holder for holder in self.above(node) if isinstance(holder, ast.ClassDef)), None)

    def call_at(self, function: ast.AST) -> ast.Call | None:
        """The call whose function is a node, None where the node stands for anything else."""
        holder = self.parents.get(function)
        return holder if isinstance(holder, ast.Call) and holder.func is function else None

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that `node` is part of."""
        if isinstance(node, ast.stmt):
            return node
        return next(holder for holder in self.above(node) if isinstance(holder, ast.stmt))

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which an expression is evaluated."""
        names = self.facts.names
        found = names.read_in.get(node) or self._scopes.get(node)
        if found is None:
            holder = node
            below = part = node
            while not isinstance(holder, ast.stmt):
                below, part, holder = part, holder, self.parents[holder]
                is_scope = holder in names.inner and not isinstance(holder, ast.stmt)
                if is_scope and not _is_evaluated_outside(holder, part, below):
                    found = names.inner[holder]
                    break
            else:
                is_generic = holder in names.generic and part is not holder and _is_among_types(holder, part, below)
                found = names.generic[holder] if is_generic else names.scopes[holder]
            self._scopes[node] = found
        return found

    def full_name(self, node: ast.expr) -> str | None:
        """The full name of an expression, such as `jax.jit`, where one binding decides."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        if node not in self._full_names:
            self._full_names[node] = self.facts.names.resolve(node, self.scope_of(node))
        return self._full_names[node]

    @cached_property
    def imported(self) -> tuple[ImportedName, ...]:
        """Every name that an import statement binds, but for names of libraries that the project defines itself."""
        return tuple(item for item in self.all_imported if not self.defines(item.name))

    @cached_property
    def all_imported(self) -> tuple[ImportedName, ...]:
        """Every name that an import statement binds."""
        found: list[ImportedName] = []
        # Many statements share a scope.
        for holder in dict.fromkeys(self.facts.names.scopes.values()):
            for bindings in holder.bindings.values():
                for binding in bindings:
                    if binding.kind == "import" and isinstance(binding.node, ast.Import | ast.ImportFrom):
                        found += _imported(binding.node, binding)
        unique = {(id(item.alias), item.local): item for item in found}
        return tuple(sorted(unique.values(), key=lambda item: (item.alias.lineno, item.alias.col_offset)))

    @cached_property
    def roots(self) -> frozenset[str]:
        """The packages that import statements name."""
        return frozenset(item.name.partition(".")[0] for item in self.imported)

    @cached_property
    def methods(self) -> dict[str, list[ast.FunctionDef]]:
        """The methods of all classes of the module, by name."""
        found: dict[str, list[ast.FunctionDef]] = {}
        for node in self.nodes_of(ast.FunctionDef):
            if isinstance(self.parents.get(node), ast.ClassDef):
                found.setdefault(node.name, []).append(node)
        return found

    @cached_property
    def attributes(self) -> Mapping[str, Sequence[ast.Attribute]]:
        """The places where an attribute of a name is read, set or deleted."""
        found: dict[str, list[ast.Attribute]] = {}
        for node in self.nodes_of(ast.Attribute):
            found.setdefault(node.attr, []).append(node)
        return found

    @cached_property
    def attributes_set(self) -> Sequence[ast.Attribute]:
        """The places where an attribute is set."""
        return [node for node in self.nodes_of(ast.Attribute) if isinstance(node.ctx, ast.Store)]

    @cached_property
    def annotated(self) -> Mapping[ast.AST, Mapping[str, Sequence[ast.expr]]]:
        """The annotations of attributes in each class: in its body, and where its methods set them."""
        found: dict[ast.AST, dict[str, list[ast.expr]]] = defaultdict(lambda: defaultdict(list))
        for node in self.nodes_of(ast.AnnAssign):
            own, _, name = (dotted_name(node.target) or "").rpartition(".")
            holders = self.above(node) if own == "self" else [self.parents[node]] if not own else ()
            for holder in holders:
                found[holder][name].append(node.annotation)
        return found

    @cached_property
    def called(self) -> frozenset[str]:
        """The names that are called."""
        calls = (node.func for node in self.nodes_of(ast.Call))
        return frozenset(function.id for function in calls if isinstance(function, ast.Name))

    @cached_property
    def names_read(self) -> tuple[ast.Name, ...]:
        """Every name that is read."""
        return tuple([node for node in self.nodes_of(ast.Name) if isinstance(node.ctx, ast.Load)])

    @cached_property
    def chains(self) -> tuple[tuple[ast.Name, tuple[ast.expr, ...]], ...]:
        """Every name that is read, with the chain of attributes on it: for `a.b.c` the nodes `a`, `a.b` and `a.b.c`."""
        found: list[tuple[ast.Name, tuple[ast.expr, ...]]] = []
        for node in self.names_read:
            chain: list[ast.expr] = [node]
            holder = self.parents.get(node)
            while isinstance(holder, ast.Attribute):
                chain.append(holder)
                holder = self.parents.get(holder)
            found.append((node, tuple(chain)))
        return tuple(found)

    @cached_property
    def heads(self) -> Mapping[str, Sequence[ast.Name]]:
        """The names that are read, with each of their places."""
        found: dict[str, list[ast.Name]] = defaultdict(list)
        for head in self.names_read:
            found[head.id].append(head)
        return found

    def heads_of(self, name: str, scope: Scope | None) -> Sequence[ast.Name]:
        """The places where a name is read that a scope binds."""
        owned = self._owned.get(name)
        if owned is None:
            owned = self._owned[name] = {}
            for head in self.heads.get(name, ()):
                owned.setdefault(self.scope_of(head).owner(name), []).append(head)
        return owned.get(scope, ())

    @cached_property
    def own_values(self) -> Mapping[tuple[ast.AST, str], Sequence[ast.expr | None]]:
        """The values that a class, or one in it, assigns to an attribute; None for one that cannot be seen."""
        found: dict[tuple[ast.AST, str], list[ast.expr | None]] = defaultdict(list)
        for node in self.attributes_set:
            statement = self.statement_of(node)
            is_plain = isinstance(statement, ast.Assign) and statement.targets == [node]
            value = statement.value if isinstance(statement, ast.Assign) and is_plain else None
            for holder in self.above(node):
                if isinstance(holder, ast.ClassDef):
                    found[holder, node.attr].append(value)
        return found

    @cached_property
    def strings(self) -> tuple[ast.Constant, ...]:
        """Every string that is written."""
        return tuple([node for node in self.nodes_of(ast.Constant) if isinstance(node.value, str)])

    @cached_property
    def _dotted_names(self) -> Mapping[tuple[Scope, str], Mapping[str, Sequence[_Place]]]:
        """The names that are read, by the scope that binds each, as it decides for all; for each what follows it.

        Names that stand for no module, function or class are left out, as parameters and loop variables do. Those that
        a star import may bind are of the module.
        """
        found: dict[tuple[Scope, str], dict[str, list[_Place]]] = {}
        # By the scope that reads a name. Many of them share what binds it.
        known: dict[tuple[Scope, str], dict[str, list[_Place]] | None] = {}
        names, parents = self.facts.names, self.parents
        for position, head in enumerate(self.names_read):
            # Names in annotations that are strings are not collected with the scopes.
            scope = names.read_in.get(head) or self.scope_of(head)
            key = (scope, head.id)
            if key not in known:
                owner = scope.owner(head.id) or (names.scope if names.stars else None)
                is_plain = owner is None or any(_is_plain(each, owner) for each in owner.bindings.get(head.id, ()))
                known[key] = None if owner is None or is_plain else found.setdefault((owner, head.id), {})
            dotted = known[key]
            if dotted is not None:
                dotted.setdefault("", []).append((position, head, head))
                rest, holder = "", parents.get(head)
                while isinstance(holder, ast.Attribute):
                    rest = f"{rest}.{holder.attr}" if rest else holder.attr
                    dotted.setdefault(rest, []).append((position, head, holder))
                    holder = parents.get(holder)
        return found

    @cached_property
    def _meanings(self) -> dict[str, list[_Meaning]]:
        """The dotted names with each full name."""
        found: dict[str, list[_Meaning]] = defaultdict(list)
        names = self.facts.names
        for (owner, head), dotted in self._dotted_names.items():
            first = names.first_of(head, owner)
            if first is not None:
                for rest, places in dotted.items():
                    name = names.full_name(first, rest)
                    if name is not None and not self.defines(name):
                        found[name].append(_Meaning(f"{head}.{rest}" if rest else head, places))
        return found

    def names_below(self, prefixes: Collection[str]) -> list[str]:
        """Full names that the module uses and that are, or lie in, one of `prefixes`."""
        # Most names are of packages that no prefix is of.
        roots = {prefix.partition(".")[0] for prefix in prefixes}
        return [
            name
            for name in self._meanings
            if name.partition(".")[0] in roots
            and any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
        ]

    def among(self, names: Collection[str]) -> Collection[str]:
        """Those of some names for which an expression stands."""
        # A module has few of the names that are asked for, and often more names than those.
        if isinstance(names, frozenset):
            return names.intersection(self._meanings)
        wanted = names.keys() if isinstance(names, Mapping) else names if isinstance(names, Set) else set(names)
        return self._meanings.keys() & wanted

    def uses_any(self, names: Iterable[str]) -> bool:
        """Whether an expression stands for one of `names`."""
        return not self._meanings.keys().isdisjoint(names)

    def uses(self, names: Collection[str]) -> Iterator[OldNameUse]:
        """Expressions that stand for one of `names`; of two in one chain of attributes the longer."""
        longest: dict[int, tuple[str, str, _Place]] = {}
        for name in self.among(names):
            for meaning in self._meanings[name]:
                for place in meaning.places:
                    other = longest.get(place[0])
                    if other is None or len(meaning.dotted) > len(other[1]):
                        longest[place[0]] = name, meaning.dotted, place
        for _, (name, dotted, (_, head, node)) in sorted(longest.items()):
            scope = self.scope_of(head)
            owner = scope.owner(head.id)
            # `import jax` and `import jax.experimental.pjit` bind one name to one thing.
            targets = {binding.target for binding in (owner.bindings[head.id] if owner is not None else ())}
            target = targets.pop() if len(targets) == 1 else None
            target = self.facts.names.given_by_star(head.id) if owner is None else target
            written = target + dotted.removeprefix(head.id) if target is not None else None
            if written != name and isinstance(node, ast.Attribute):
                # `tree = jax.tree_util`, then `tree.tree_map`, or `utils.jax.tree_map`: only a module of another
                # package comes by another name.
                prefixes = accumulate(dotted.split(".")[:-1], "{}.{}".format)
                modules = (self.facts.names.resolve_dotted(prefix, scope) for prefix in prefixes)
                is_prefix = any(name.startswith(f"{module}.") and module not in names for module in modules)
                written = name if is_prefix else written
            yield OldNameUse(node, name, written, scope, self.statement_of(head))


def _types_at(node: ast.AST) -> list[ast.AST]:
    """The types that a node holds."""
    found = [getattr(node, name, None) for name in _TYPES.get(type(node), ())]
    return [part for part in found if part is not None]


def _is_plain(binding: Binding, scope: Scope) -> bool:
    """Whether a binding gives a name no full name, whatever else binds it."""
    if binding.target is not None:
        return False
    if binding.kind in ("function", "class"):
        return scope.kind != "module"
    return not isinstance(binding.value, ast.Name | ast.Attribute)


def _is_evaluated_outside(holder: ast.AST, part: ast.AST, below: ast.AST) -> bool:
    """Whether a part of a lambda or a comprehension is no code of it: a default, and what it first goes through."""
    if isinstance(holder, ast.Lambda):
        return isinstance(part, ast.arguments) and not isinstance(below, ast.arg)
    generators: list[ast.comprehension] = getattr(holder, "generators", [])
    return generators[:1] == [part] and below is generators[0].iter


def _is_among_types(holder: ast.stmt, part: ast.AST, below: ast.AST) -> bool:
    """Whether a part of a generic statement sees its type parameters: decorators and defaults do not."""
    if isinstance(part, ast.arguments):
        return isinstance(below, ast.arg)
    return part not in getattr(holder, "decorator_list", ())


def _imported(statement: ast.Import | ast.ImportFrom, binding: Binding) -> Iterator[ImportedName]:
    for alias in statement.names:
        local = alias.asname or (alias.name.partition(".")[0] if isinstance(statement, ast.Import) else alias.name)
        if local == binding.name and binding.target is not None:
            name = alias.name if isinstance(statement, ast.Import) else binding.target
            yield ImportedName(alias, statement, name, local)


def group_by_name(codemods: Mapping[str, Collection[str]], last: Collection[str] = ()) -> dict[str, str]:
    """The codemod for each old name; those in `last` take what no other does.

    Raises:
        ValueError: If two codemods claim one name.
    """
    owners: dict[str, str] = {}
    for codemod, names in sorted(codemods.items(), key=lambda item: item[0] in last):
        for name in names:
            if name in owners and codemod in last:
                continue
            if name in owners:
                raise ValueError(f"{name} is replaced by {owners[name]} and by {codemod}; one of them must give it up.")
            owners[name] = codemod
    return owners
