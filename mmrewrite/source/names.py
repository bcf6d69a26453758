"""The scopes of one module, and the full name that each name in them resolves to, from `ast` alone.

Imports and aliases are followed, also aliases by tuples: `P, jit = jax.sharding.PartitionSpec, jax.jit`. A name that is
bound to two different things in one scope stays unresolved, and so does one that a later `from ... import *` may
rebind. Star imports of the standard library are taken to rebind nothing.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, takewhile
from typing import Any

from mmrewrite.source.spans import blocks_of
from mmrewrite.source.walk import children

# JAX and Flax export these objects under several names; each resolves to the one that the codemods match.
SYNONYMS = {
    "jax.P": "jax.sharding.PartitionSpec",
    "jax.NamedSharding": "jax.sharding.NamedSharding",
    "jax.reshard": "jax.sharding.reshard",
    "jax.experimental.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.experimental.pjit.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.interpreters.pxla.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.remat": "jax.checkpoint",
    "jax.ad_checkpoint.checkpoint": "jax.checkpoint",
    "flax.linen.checkpoint": "flax.linen.remat",
    "flax.linen.module.Module": "flax.linen.Module",
}

# The kind of the scope around a generic function or class, or a generic `type` statement (PEP 695).
TYPE_PARAMETERS = "type parameters"

_BUILTINS = frozenset(dir(builtins))

# What binds its names whenever it runs.
_BINDS_SURELY = (
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Block = Function | ast.ClassDef | ast.For | ast.AsyncFor | ast.With | ast.AsyncWith | ast.If | ast.While | ast.Try


@dataclass(frozen=True, eq=False)
class Binding:
    """One statement or parameter that binds a name: `value` is what it assigns, `target` the full name it imports."""

    name: str
    kind: str
    node: ast.AST
    statement: ast.stmt | None
    value: ast.expr | None = None
    target: str | None = None


@dataclass(eq=False)
class Scope:
    """The scope of a module, class, function, lambda or comprehension, or of the type parameters of a statement.

    `loads` are the names that its own code reads, `outer` those that it declares `global` or `nonlocal`, and `globals`
    the first of these.
    """

    kind: str
    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    loads: set[str] = field(default_factory=set)
    outer: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)
    children: list[Scope] = field(default_factory=list)

    def chain(self) -> Iterator[Scope]:
        """The scopes in which Python looks up a name used here."""
        yield self
        scope = self.parent
        while scope is not None:
            # Functions do not see the names of a class around them, but type parameters do:
            # https://docs.python.org/3/reference/executionmodel.html#resolution-of-names
            if scope.kind != "class" or (self.kind == TYPE_PARAMETERS and scope is self.parent):
                yield scope
            scope = scope.parent

    def owner(self, name: str) -> Scope | None:
        """The scope that binds `name` for code in this one."""
        # The most frequent question of all, so `chain` is written out.
        if name in self.bindings:
            return self
        if name in self.globals:
            return self.module_with(name)
        scope = self.parent
        if self.kind == TYPE_PARAMETERS and scope is not None and name in scope.bindings:
            return scope
        while scope is not None:
            if name in scope.bindings and scope.kind != "class":
                return scope
            if name in scope.globals and scope.kind != "class":
                return self.module_with(name)
            scope = scope.parent
        return None

    def module_with(self, name: str) -> Scope | None:
        """The scope of the module, if it binds `name`."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope if name in scope.bindings else None

    @property
    def function(self) -> Scope:
        """The nearest enclosing function, else the module."""
        scope = self
        while scope.kind not in ("function", "module") and scope.parent is not None:
            scope = scope.parent
        return scope

    def is_free(self, name: str) -> bool:
        """Whether `name` is neither bound nor read in this scope, so that a new binding of it captures nothing."""
        return name not in self.bindings and name not in self.outer and not self._uses(name)

    def is_unused(self, name: str) -> bool:
        """Whether no code in this scope or below reads `name`."""
        return not self._uses(name)

    def _uses(self, name: str) -> bool:
        if name in self.loads or name in self.outer:
            return True
        return any(name not in child.bindings and child._uses(name) for child in self.children)


@dataclass(eq=False)
class Module:
    """The scopes of one module.

    Attributes:
        tree: The parsed module.
        scope: The scope of the module itself.
        scopes: The scope in which each statement runs.
        parents: The statement around each nested statement.
        inner: The scope that a function, class, lambda or comprehension opens.
        generic: The scope of the type parameters that a statement has.
        calls: The calls of each statement that has some, without those of the statements inside it.
        read_in: The scope in which each name that is read is looked up.
        name: Its dotted name.
        is_package: Whether it is the `__init__.py` of a package.
        identifiers: Every name that it binds anywhere.
        follow: Resolves a full name further, through other modules of the project.
        synonyms: Full names of the same thing, and the one to use.
        homes: Old full names and new ones. A name that is imported from both is the new one.
        stars: Its `from ... import *` statements.
        star_gives: Whether one of these may bind a name.
        star_target: The full name of what one of these binds a name to; None if that is not certain.
    """

    tree: ast.Module
    scope: Scope
    scopes: dict[ast.stmt, Scope]
    parents: dict[ast.stmt, ast.stmt]
    inner: dict[ast.AST, Scope]
    calls: dict[ast.stmt, list[ast.Call]]
    name: str
    is_package: bool
    identifiers: set[str]
    follow: Callable[[str], str] = field(default=lambda qualified: qualified)
    synonyms: Mapping[str, str] = field(default_factory=lambda: SYNONYMS)
    homes: Mapping[str, str] = field(default_factory=dict)
    stars: list[ast.ImportFrom] = field(default_factory=list)
    read_in: dict[ast.AST, Scope] = field(default_factory=dict)
    star_gives: Callable[[ast.ImportFrom, str], bool] = field(default=lambda star, name: True)
    star_target: Callable[[ast.ImportFrom, str], str | None] = field(default=lambda star, name: None)
    generic: dict[ast.stmt, Scope] = field(default_factory=dict)
    _resolved: dict[tuple[Scope, str], str | None] = field(default_factory=dict, init=False, repr=False)
    _named: dict[Scope | None, dict[str, list[str]]] = field(default_factory=dict, init=False, repr=False)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, and forget what names resolved to by the one that it had."""
        super().__setattr__(name, value)
        if name not in ("_resolved", "_named"):
            super().__setattr__("_resolved", {})
            super().__setattr__("_named", {})

    @property
    def star(self) -> ast.ImportFrom | None:
        """The last `from ... import *`, None if there is none."""
        return self.stars[-1] if self.stars else None

    @property
    def unclear_star(self) -> ast.ImportFrom | None:
        """The last of them that may bind any name, None if there is none."""
        # No statement binds the empty name.
        return next((star for star in reversed(self.stars) if star in self.parents or self.star_gives(star, "")), None)

    def top_level(self, statement: ast.stmt) -> ast.stmt:
        """The statement of the module's body that holds `statement`."""
        while statement in self.parents:
            statement = self.parents[statement]
        return statement

    def is_only(self, statement: ast.stmt) -> bool:
        """Whether `statement` is alone in its block: Python needs a `pass` in its place when it goes."""
        return [statement] in blocks_of(self.parents.get(statement))

    def around(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """The statements that hold `statement`, innermost first."""
        while statement in self.parents:
            statement = self.parents[statement]
            yield statement

    def is_repeated(self, statement: ast.stmt) -> bool:
        """Whether a loop of the same function or class may run a statement again."""
        for holder in self.around(statement):
            if isinstance(holder, ast.For | ast.AsyncFor | ast.While):
                return True
            if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                return False
        return False

    def resolve(self, node: ast.expr, scope: Scope) -> str | None:
        """The full name that an expression resolves to, such as `jax.numpy.mean`; None where it is unclear."""
        dotted = dotted_name(node)
        if dotted is None:
            return None
        # Analyses ask again and again.
        key = (scope, dotted)
        if key not in self._resolved:
            self._resolved[key] = self.resolve_dotted(dotted, scope)
        return self._resolved[key]

    def resolve_dotted(self, dotted: str, scope: Scope) -> str | None:
        """The full name of a dotted name that is given as text; None if it is not known."""
        first, _, rest = dotted.partition(".")
        found = self.first_of(first, scope)
        return None if found is None else self.full_name(found, rest)

    def first_of(self, name: str, scope: Scope) -> str | None:
        """What the first part of a dotted name stands for: `full_name` makes the full name of the whole of it."""
        return self._resolve_name(name, scope, frozenset())

    def full_name(self, first: str, rest: str) -> str | None:
        """The full name of a dotted name: its first part as `first_of` resolved it, and the text behind it."""
        full = self._canonical(f"{first}.{rest}" if rest else first)
        # A relative import that leaves its package has a full name only where it re-exports one.
        return None if full.startswith(".") else full

    def other_names(self, full: str, scope: Scope) -> Iterator[Binding]:
        """The first bindings of the names that mean a full name in `scope`, by an import or another name for it."""
        for holder in scope.chain():
            if holder not in self._named:
                firsts = (bindings[0] for bindings in holder.bindings.values())
                self._named[holder] = self._by_meaning((each.name for each in firsts if _renames(each)), holder)
            for name in self._named[holder].get(full, ()):
                if scope.owner(name) is holder:
                    yield holder.bindings[name][0]

    def read_by_star(self, full: str, scope: Scope) -> Iterator[str]:
        """The names that the module reads, and that mean a full name in `scope` by a `from ... import *`."""
        if None not in self._named:
            unbound = (name for name in self.read if self.scope.owner(name) is None)
            self._named[None] = self._by_meaning(unbound, self.scope)
        return (name for name in self._named[None].get(full, ()) if scope.owner(name) is None)

    def _by_meaning(self, names: Iterable[str], scope: Scope) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in names:
            full = self.resolve_dotted(name, scope)
            if full is not None:
                found.setdefault(full, []).append(name)
        return found

    def binding(self, name: str, scope: Scope) -> Binding | None:
        """The only binding of `name` that code in `scope` sees, else None."""
        owner = scope.owner(name)
        found = owner.bindings[name] if owner else []
        return found[0] if len(found) == 1 else None

    def _outside_class(self, name: str, owner: Scope) -> Scope | None:
        """The module's scope if code of a class may read a name there, as `owner`, the class, may not bind it above."""
        outside = owner.module_with(name)
        if outside is None:
            return None
        binding = owner.bindings[name][0]
        first = binding.statement
        is_sure = isinstance(first, _BINDS_SURELY) and not isinstance(binding.node, ast.NamedExpr)
        if first is not None and is_sure and self.parents.get(first) is owner.node:
            end = (first.end_lineno or first.lineno, first.end_col_offset or 0)
            if not any((node.lineno, node.col_offset) < end for node, _ in self.reads_of(name, owner)):
                return None
        return outside

    def reads_of(self, name: str, owner: Scope) -> Iterator[tuple[ast.Name, Scope]]:
        """Where the name that `owner` binds is read, and the scope that reads it there."""
        return ((node, scope) for node, scope in self._reads.get(name, ()) if scope.owner(name) is owner)

    @property
    def read(self) -> Collection[str]:
        """The names that are read, whatever they mean."""
        return self._reads.keys()

    @cached_property
    def _reads(self) -> dict[str, list[tuple[ast.Name, Scope]]]:
        """Where each name is read, whatever it means there."""
        found: dict[str, list[tuple[ast.Name, Scope]]] = {}
        for node, scope in self.read_in.items():
            if isinstance(node, ast.Name):
                found.setdefault(node.id, []).append((node, scope))
        return found

    def _canonical(self, qualified: str) -> str:
        qualified = self.follow(qualified)
        return self.synonyms.get(qualified, qualified)

    def _resolve_name(self, name: str, scope: Scope, seen: frozenset[tuple[int, str]]) -> str | None:
        owner = scope.owner(name)
        if owner is None:
            stars = [star for star in self.stars if self.star_gives(star, name)]
            if stars:
                meanings = {self._of_star(star, name) for star in self._read_stars(stars)}
                return meanings.pop() if len(meanings) == 1 else None
            return f"builtins.{name}" if name in _BUILTINS else None
        key = (id(owner), name)
        if key in seen:
            return None
        found = {self._resolve_binding(binding, owner, seen | {key}) for binding in owner.bindings[name]}
        outside = self._outside_class(name, owner) if owner.kind == "class" else None
        if outside is not None:
            found.add(self._resolve_name(name, outside, seen))
        if owner is self.scope:
            found |= {self._of_star(star, name) for star in self.stars if self.is_bound_by(star, name)}
        if len(found) > 1:
            found = {self.homes.get(name or "", name) for name in found}
        return found.pop() if len(found) == 1 else None

    def _read_stars(self, stars: list[ast.ImportFrom]) -> list[ast.ImportFrom]:
        """Of star imports of one name, those whose binding can be read: the last, and any with code before it."""
        # Each rebinds the names of those above, which nothing reads where only imports stand between.
        last = stars[-1].lineno
        above = [each.lineno for each in self.tree.body if each.lineno < last and not _only_imports(each)]
        begin = max(above, default=0)
        return [star for star in stars if star is stars[-1] or star.lineno < begin]

    def _of_star(self, star: ast.ImportFrom, name: str) -> str | None:
        """What `from ... import *` binds a name to, None where that is unclear: it may not even run."""
        target = None if star in self.parents else self.star_target(star, name)
        return None if target is None else self._canonical(target)

    def home_of(self, statement: ast.ImportFrom) -> str | None:
        """The absolute name of the module that a statement imports from, None if it cannot be known.

        An import that leaves the package (the outermost folder with `__init__.py`) keeps leading dots: `.name` lies in
        the folder from which this module is imported, `..name` in the one above.
        """
        name = statement.module
        if statement.level == 0:
            return name
        parts = self.name.split(".") if self.name else []
        drop = statement.level - 1 if self.is_package else statement.level
        if not parts:
            return None
        if drop >= len(parts):
            return "." * (drop - len(parts) + 1) + (name or "")
        base = parts[: len(parts) - drop]
        return ".".join([*base, name] if name else base)

    def given_by_star(self, name: str) -> str | None:
        """The full name that the last `from ... import *` which may bind a name gives it, before that is followed."""
        star = next((each for each in reversed(self.stars) if self.star_gives(each, name)), None)
        home = self.home_of(star) if star is not None else None
        return member_of(home, name) if home is not None else None

    def is_bound_by(self, star: ast.ImportFrom, name: str) -> bool:
        """Whether code may read what `from ... import *` binds a name of the module to.

        A binding below it takes its place; a decorator in between has run by then.
        """
        statements = [binding.statement for binding in self.scope.bindings[name]]
        begin = (star.lineno, star.col_offset)
        places = [(node.lineno, node.col_offset) for node in statements if node is not None]
        below = min((place for place in places if place >= begin), default=None)
        if below is not None and not any(begin < place < below for place in self._reads_at_import.get(name, ())):
            return False
        return self.star_gives(star, name)

    @cached_property
    def _reads_at_import(self) -> dict[str, list[tuple[int, int]]]:
        """Where each name is read by code that runs when the module is imported."""
        found: dict[str, list[tuple[int, int]]] = {}
        for node, scope in self.read_in.items():
            outer: Scope | None = scope
            while outer is not None and outer.kind in ("class", "comprehension", TYPE_PARAMETERS):
                outer = outer.parent
            if outer is self.scope and isinstance(node, ast.Name):
                found.setdefault(node.id, []).append((node.lineno, node.col_offset))
        return found

    def _resolve_binding(self, binding: Binding, scope: Scope, seen: frozenset[tuple[int, str]]) -> str | None:
        if binding.target is not None:
            return self._canonical(binding.target)
        if binding.kind in ("function", "class"):
            return f"{self.name}.{binding.name}" if scope.kind == "module" else None
        dotted = dotted_name(binding.value) if binding.value is not None else None
        if dotted is None:
            return None
        first, _, rest = dotted.partition(".")
        found = self._resolve_name(first, self.evaluates(binding, scope), seen)
        return None if found is None else self._canonical(f"{found}.{rest}" if rest else found)

    def evaluates(self, binding: Binding, owner: Scope) -> Scope:
        """The scope that reads the dotted name which a binding assigns: that of a function for a `global` of it."""
        return owner if binding.value is None else self.read_in.get(root_of(binding.value), owner)


def _renames(binding: Binding) -> bool:
    return binding.kind == "import" or (binding.kind == "value" and dotted_name(binding.value) is not None)


def _only_imports(statement: ast.stmt) -> bool:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or isinstance(statement, ast.Import | ast.ImportFrom)


def root_of(node: ast.AST) -> ast.AST:
    """The root of an expression under all its attributes, `a` of `a.b.c`, or the expression itself."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def dotted_name(node: ast.expr | None) -> str | None:
    """`a.b.c` for names and attributes of names, None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return f"{node.id}.{parts[0]}" if len(parts) == 1 else ".".join((node.id, *reversed(parts)))


def last_name(node: ast.AST | None) -> str | None:
    """`c` for `c` and for `x.b.c`, None for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def member_of(module: str, name: str) -> str:
    """The full name that `from module import name` binds."""
    return f"{module}{name}" if module.endswith(".") else f"{module}.{name}"


def read_names(tree: ast.Module, name: str, is_package: bool) -> Module:
    """Collect the scopes of a parsed module whose dotted name is `name`."""
    return _ScopeBuilder(tree, name, is_package).module


class _ScopeBuilder:
    def __init__(self, tree: ast.Module, name: str, is_package: bool) -> None:
        scope = Scope("module", tree, None)
        self.module = Module(tree, scope, {}, {}, {tree: scope}, {}, name, is_package, set())
        self.statement: ast.stmt | None = None
        self._handlers: dict[type[ast.AST], Callable[[Any, Scope], None]] = {}
        # What functions bind by `nonlocal` before the function around them does.
        self._unplaced: list[tuple[Scope, Binding]] = []
        for statement in tree.body:
            self.visit(statement, scope)
        for inner, binding in self._unplaced:
            (self._outer_scope(inner, binding.name) or scope).bindings.setdefault(binding.name, []).append(binding)

    def bind(self, scope: Scope, name: str, kind: str, node: ast.AST, **details: ast.expr | str | None) -> None:
        self.module.identifiers.add(name)
        value, target = details.get("value"), details.get("target")
        binding = Binding(
            name,
            kind,
            node,
            self.statement,
            value if isinstance(value, ast.expr) else None,
            target if isinstance(target, str) else None,
        )
        holder = self._outer_scope(scope, name) if name in scope.outer else scope
        if holder is None:
            self._unplaced.append((scope, binding))
        else:
            holder.bindings.setdefault(name, []).append(binding)

    def _outer_scope(self, scope: Scope, name: str) -> Scope | None:
        """The scope that holds a name which `scope` declares `global` or `nonlocal`; None if none binds it yet."""
        if name in scope.globals:
            return self.module.scope
        return next((outer for outer in scope.chain() if outer is not scope and name in outer.bindings), None)

    def enter(self, kind: str, node: ast.AST, parent: Scope) -> Scope:
        scope = Scope(kind, node, parent)
        parent.children.append(scope)
        self.module.inner[node] = scope
        return scope

    def visit(self, node: ast.AST, scope: Scope) -> None:
        kind = type(node)
        handler = self._handlers.get(kind)
        if handler is None:
            handler = self._handlers[kind] = getattr(self, f"visit_{kind.__name__}", self.children)
        if isinstance(node, ast.stmt):
            self.module.scopes[node] = scope
            if self.statement is not None:
                self.module.parents[node] = self.statement
            previous, self.statement = self.statement, node
            handler(node, scope)
            self.statement = previous
        else:
            handler(node, scope)

    def children(self, node: ast.AST, scope: Scope) -> None:
        for child in children(node):
            self.visit(child, scope)

    def visit_Name(self, node: ast.Name, scope: Scope) -> None:
        self.module.identifiers.add(node.id)
        if isinstance(node.ctx, ast.Load):
            scope.loads.add(node.id)
            self.module.read_in[node] = scope
        else:
            self.bind(scope, node.id, "other", node)

    def visit_Constant(self, node: ast.Constant, scope: Scope) -> None:
        pass

    def visit_Call(self, node: ast.Call, scope: Scope) -> None:
        assert self.statement is not None
        self.module.calls.setdefault(self.statement, []).append(node)
        self.children(node, scope)

    def visit_Attribute(self, node: ast.Attribute, scope: Scope) -> None:
        self.visit(node.value, scope)

    def visit_Import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.bind(scope, name, "import", node, target=alias.name if alias.asname else name)

    def visit_ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        module = self.module.home_of(node)
        for alias in node.names:
            if alias.name == "*":
                # A star import of the standard library hides no name of JAX.
                if (node.module or "").partition(".")[0] not in sys.stdlib_module_names or node.level:
                    self.module.stars.append(node)
            else:
                target = member_of(module, alias.name) if module else None
                self.bind(scope, alias.asname or alias.name, "import", node, target=target)

    def visit_Assign(self, node: ast.Assign, scope: Scope) -> None:
        self.visit(node.value, scope)
        for target in node.targets:
            self._bind_target(target, node.value, node, scope)

    def visit_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        self.visit(node.annotation, scope)
        if node.value is not None:
            self.visit(node.value, scope)
            self._bind_target(node.target, node.value, node, scope)
        else:
            self.visit(node.target, scope)

    def _bind_target(self, target: ast.expr, value: ast.expr | None, node: ast.stmt, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            self.bind(scope, target.id, "value", node, value=value)
        elif isinstance(target, ast.Tuple | ast.List):
            pairs = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            exact = len(pairs) == len(target.elts) and not any(
                isinstance(item, ast.Starred) for item in (*pairs, *target.elts)
            )
            for index, item in enumerate(target.elts):
                self._bind_target(item, pairs[index] if exact else None, node, scope)
        else:
            self.visit(target, scope)

    def visit_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> None:
        self.visit(node.value, scope)
        # PEP 572: in a comprehension it binds a name of the scope around that.
        holder = scope
        while holder.kind == "comprehension" and holder.parent is not None:
            holder = holder.parent
        self.bind(holder, node.target.id, "value", node, value=node.value)

    def visit_Global(self, node: ast.Global, scope: Scope) -> None:
        scope.outer.update(node.names)
        scope.globals.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        scope.outer.update(node.names)

    def visit_ExceptHandler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        if node.name:
            self.bind(scope, node.name, "other", node)
        self.children(node, scope)

    def visit_MatchAs(self, node: ast.MatchAs, scope: Scope) -> None:
        if node.name:
            self.bind(scope, node.name, "other", node)
        self.children(node, scope)

    def visit_MatchStar(self, node: ast.MatchStar, scope: Scope) -> None:
        if node.name:
            self.bind(scope, node.name, "other", node)

    def visit_MatchMapping(self, node: ast.MatchMapping, scope: Scope) -> None:
        if node.rest:
            self.bind(scope, node.rest, "other", node)
        self.children(node, scope)

    def visit_FunctionDef(self, node: Function, scope: Scope) -> None:
        self.bind(scope, node.name, "function", node)
        for decorator in node.decorator_list:
            self.visit(decorator, scope)
        around = self._type_parameters(node, scope)
        if node.returns is not None:
            self.visit(node.returns, around)
        inner = self.enter("function", node, around)
        self._arguments(node.args, scope, around, inner)
        for statement in node.body:
            self.visit(statement, inner)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda, scope: Scope) -> None:
        inner = self.enter("function", node, scope)
        self._arguments(node.args, scope, scope, inner)
        self.visit(node.body, inner)

    def _type_parameters(self, node: ast.stmt, scope: Scope) -> Scope:
        """The scope of a statement's type parameters, which see each other; `scope` if it has none."""
        parameters: list[ast.AST] = getattr(node, "type_params", [])
        if not parameters:
            return scope
        around = Scope(TYPE_PARAMETERS, node, scope)
        scope.children.append(around)
        self.module.generic[node] = around
        for parameter in parameters:
            self.bind(around, getattr(parameter, "name", ""), "other", parameter)
            self.children(parameter, around)
        return around

    def visit_TypeAlias(self, node: Any, scope: Scope) -> None:
        """A `type` statement (PEP 695): what it binds is no other name for its value."""
        around = self._type_parameters(node, scope)
        for child in children(node):
            if child not in node.type_params:
                self.visit(child, scope if child is node.name else around)

    def _arguments(self, arguments: ast.arguments, outer: Scope, annotations: Scope, inner: Scope) -> None:
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                self.visit(default, outer)
        for argument in all_arguments(arguments):
            if argument.annotation is not None:
                self.visit(argument.annotation, annotations)
            self.bind(inner, argument.arg, "parameter", argument)

    def visit_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        self.bind(scope, node.name, "class", node)
        for decorator in node.decorator_list:
            self.visit(decorator, scope)
        around = self._type_parameters(node, scope)
        for outside in (*node.bases, *node.keywords):
            self.visit(outside, around)
        inner = self.enter("class", node, around)
        for statement in node.body:
            self.visit(statement, inner)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope) -> None:
        inner = self.enter("comprehension", node, scope)
        for index, generator in enumerate(node.generators):
            # The first iterable is evaluated outside: https://docs.python.org/3/reference/expressions.html#comprehensions
            self.visit(generator.iter, inner if index else scope)
            self.visit(generator.target, inner)
            for condition in generator.ifs:
                self.visit(condition, inner)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(part, inner)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension


def all_arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    """Every parameter of a signature, in order of appearance."""
    yield from arguments.posonlyargs
    yield from arguments.args
    if arguments.vararg:
        yield arguments.vararg
    yield from arguments.kwonlyargs
    if arguments.kwarg:
        yield arguments.kwarg


def relative_import(package: Sequence[str], module: str) -> str:
    """The name by which a module of a package, given in parts, imports another module, relatively."""
    target = module.split(".")
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(package, target, strict=False)))
    return "." * (len(package) - common + 1) + ".".join(target[common:])


def numbered(name: str, first: int = 0) -> Iterator[str]:
    """`name`, `name_1`, `name_2` and so on, from that with the number `first` on."""
    return (f"{name}_{number}" if number else name for number in count(first))
