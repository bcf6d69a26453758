"""Find the calls of `mmrewrite.hints` in a module, under any name, and the statement that each is about.

A call is a decorator, the context of a `with` block, a statement of its own, or is written around its subject. Calls
that do not become another call are removed from the syntax tree, so that the tree is the program's own; their
`Removal` values say which text goes.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mmrewrite.directives.carrier import PACKAGE
from mmrewrite.directives.vocabulary import CALL, DIRECTIVES, FOR, IGNORE, OTHER, STATEMENT, SWITCHES, WITH, kind_of
from mmrewrite.source.brackets import call_brackets, tokens_between
from mmrewrite.source.functions import own_expressions, placed_expressions
from mmrewrite.source.names import Binding, Module, Scope, member_of
from mmrewrite.source.spans import first_line, sign_before, span
from mmrewrite.source.text import SourceText, has_lines, parse_quietly

MODULE = f"{PACKAGE}.hints"

# No operator binds tighter than these, so that they need no parentheses anywhere.
_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Dict, ast.Set, ast.ListComp)


@dataclass(frozen=True)
class Removal:
    """Text that goes, or becomes `text`, when a hint is consumed.

    With `spacing` it is blank lines, which stay if a new statement takes the place of one beside them.
    """

    start: int
    end: int
    text: str = ""
    spacing: bool = False


@dataclass(frozen=True, eq=False)
class HintCall:
    """One call of a hint function.

    Attributes:
        name: The directive or switch.
        node: The call, or a decorator without one.
        statement: The statement that it is in or on.
        kind: The kind of hint, as in the vocabulary.
        start: Offset of the last part of the function's name.
        end: Offset of its end.
        function: Offsets of the function's name.
        arguments: Positional arguments without the subject.
        keywords: Keyword arguments.
        alone: Whether it is a statement of its own.
        removals: Text that goes when the hint is consumed.
        extent: Text to which an `off` or `ignore` applies.
    """

    name: str
    node: ast.expr
    statement: ast.stmt
    kind: str
    start: int
    end: int
    function: tuple[int, int]
    arguments: tuple[ast.expr, ...]
    keywords: tuple[ast.keyword, ...]
    alone: bool
    removals: tuple[Removal, ...]
    extent: tuple[int, int] | None = None

    @property
    def call(self) -> ast.Call | None:
        """The call, if it stays in the tree and becomes another one."""
        in_place = self.kind in (CALL, WITH) and isinstance(self.node, ast.Call)
        return self.node if in_place and isinstance(self.node, ast.Call) else None


@dataclass(frozen=True)
class Misused:
    """A use of a hint function where it cannot be a hint, and why."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, eq=False)
class HintImport:
    """One imported name that means hints: all names of the same import, and the offsets of its uses."""

    statement: ast.Import | ast.ImportFrom
    alias: ast.alias
    together: tuple[ast.alias, ...]
    uses: tuple[int, ...]


@dataclass(eq=False)
class HintCalls:
    """All calls, misuses and imports of `mmrewrite.hints` in one module."""

    calls: list[HintCall] = field(default_factory=list)
    misused: list[Misused] = field(default_factory=list)
    imports: list[HintImport] = field(default_factory=list)


@dataclass(frozen=True)
class Reexports:
    """Hint functions that the project's own modules re-export.

    `names` maps the full name there, such as `pkg.compat.hints`, to ours. `ambiguous` names may also mean something
    else, as after an import in `try` and `except`.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    ambiguous: frozenset[str] = frozenset()

    @property
    def every(self) -> frozenset[str]:
        """All re-exported names, the ambiguous ones too."""
        return self.ambiguous.union(self.names)

    @property
    def modules(self) -> frozenset[str]:
        """The modules that re-export hints."""
        return frozenset(full.rpartition(".")[0] for full in self.every)

    def meaning(self, target: str) -> str:
        """`target` with a re-exported prefix replaced by its name in `mmrewrite.hints`."""
        for full, meaning in self.names.items():
            if target == full or target.startswith(f"{full}."):
                return meaning + target.removeprefix(full)
        return target

    def is_hints(self, target: str | None) -> bool:
        """Whether an imported name means hints, perhaps ambiguously."""
        return target is not None and (means_hints(self.meaning(target)) or target in self.ambiguous)


def find_calls(source: SourceText, names: Module, reexports: Reexports | None = None) -> HintCalls:
    """Every use of a hint function, in the order of the file; changes nothing."""
    return _Finder(source, names, reexports or Reexports()).run()


def strip_calls(tree: ast.Module, calls: Collection[HintCall], imports: Collection[HintImport]) -> None:
    """Remove hint calls from a tree in place, so that it is the tree of the program without them.

    An imported name that only declares a mesh goes as well, so that the mesh can be called `mesh`.
    """
    if any(call.call is None for call in calls):
        _Stripper(calls).visit(tree)
    starts = {call.function[0] for call in calls if call.name in DIRECTIVES and DIRECTIVES[call.name].declares}
    for imported in imports:
        if len(imported.uses) == 1 and imported.uses[0] in starts and len(imported.statement.names) > 1:
            imported.statement.names.remove(imported.alias)
        elif len(imported.uses) == 1 and imported.uses[0] in starts:
            # An import needs a name; no program can use this one.
            imported.alias.asname = f"<{imported.alias.name}>"


class _Stripper(ast.NodeTransformer):
    def __init__(self, calls: Collection[HintCall]) -> None:
        self._nodes = {call.node: call for call in calls if call.call is None}

    def visit(self, node: ast.AST) -> ast.AST:
        decorators = getattr(node, "decorator_list", None)
        if decorators:
            decorators[:] = [decorator for decorator in decorators if decorator not in self._nodes]
        self.generic_visit(node)
        found = self._nodes.get(node) if isinstance(node, ast.expr) else None
        if found is None:
            return node
        if found.alone:
            return ast.copy_location(ast.Constant(None), node)
        assert isinstance(node, ast.Call)
        return node.args[0]


class _Finder:
    def __init__(self, source: SourceText, names: Module, reexports: Reexports) -> None:
        self.source, self.names, self.reexports = source, names, reexports
        self.found = HintCalls()
        self.handled: set[ast.expr] = set()

    def run(self) -> HintCalls:
        for statement, scope in self.names.scopes.items():
            self.read(statement, scope)
        self.check_imports()
        self.found.calls.sort(key=lambda call: (call.start, call.end))
        return self.found

    def name(self, node: ast.expr, scope: Scope) -> str | None:
        """The name in `mmrewrite.hints` that an expression resolves to, else None."""
        found = self.names.resolve(node, scope)
        return found.removeprefix(f"{MODULE}.") if found and found.startswith(f"{MODULE}.") else None

    def read(self, statement: ast.stmt, scope: Scope) -> None:
        for decorator in getattr(statement, "decorator_list", ()):
            self.decorator(statement, decorator, scope)
        if isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                self.item(statement, item, scope)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self.alone(statement, statement.value, scope)
        nodes = list(placed_expressions(statement))
        for node, in_text in nodes:
            if isinstance(node, ast.Call) and node not in self.handled:
                name = self.name(node.func, scope)
                if name is not None:
                    self.around(statement, node, name, in_text)
        for node, _ in nodes:
            self.reference(statement, node, scope)

    def misused(self, node: ast.expr, reason: str) -> None:
        start, end = span(self.source, node)
        self.found.misused.append(Misused(start, end, reason))

    def add(
        self,
        name: str,
        node: ast.expr,
        statement: ast.stmt,
        kind: str,
        removals: tuple[Removal, ...],
        subject: bool = False,
        alone: bool = False,
        extent: tuple[int, int] | None = None,
    ) -> None:
        function = node.func if isinstance(node, ast.Call) else node
        self.handled.update((node, function))
        arguments = tuple(node.args[subject:]) if isinstance(node, ast.Call) else ()
        keywords = tuple(node.keywords) if isinstance(node, ast.Call) else ()
        _, end = span(self.source, node)
        place = span(self.source, function)
        last = function.attr if isinstance(function, ast.Attribute) else self.source.text[slice(*place)]
        start = place[1] - len(last)
        self.found.calls.append(
            HintCall(name, node, statement, kind, start, end, place, arguments, keywords, alone, removals, extent)
        )

    def decorator(self, statement: ast.stmt, node: ast.expr, scope: Scope) -> None:
        name = self.name(node.func if isinstance(node, ast.Call) else node, scope)
        if name is None:
            return
        if _stands_alone(name):
            self.handled.update((node, getattr(node, "func", node)))
            self.misused(node, f"`{name}` is a statement of its own: `hints.{DIRECTIVES[name].example}`")
            return
        extent = self.extent(statement) if name in (*SWITCHES, IGNORE) else None
        removal = self.line_removal(*self.decorator_place(statement, node))
        self.add(name, node, statement, kind_of(statement), (removal,), extent=extent)

    def decorator_place(self, statement: ast.stmt, node: ast.expr) -> tuple[int, int]:
        """Offsets of a decorator, with its sign and the parentheses around it."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        following = decorators[decorators.index(node) + 1 :][:1]
        begin = sign_before(self.source, node)
        end = sign_before(self.source, following[0]) if following else span(self.source, statement)[0]
        found = tokens_between(self.source, begin + 1, end)
        return begin, [token for token in found if token.is_code][-1].end

    def extent(self, statement: ast.stmt) -> tuple[int, int]:
        """All lines of a statement, decorators included."""
        end = statement.end_lineno or statement.lineno
        return self.source.line_starts[first_line(statement) - 1], self.source.line_end(end)

    def item(self, statement: ast.With | ast.AsyncWith, item: ast.withitem, scope: Scope) -> None:
        node = item.context_expr
        name = self.name(node.func, scope) if isinstance(node, ast.Call) else None
        if name is None or not isinstance(node, ast.Call):
            return
        extent = self.extent(statement) if name in (*SWITCHES, IGNORE) else None
        if item.optional_vars is not None:
            self.handled.update((node, node.func))
            self.misused(node, "a hint has no value; remove `as` and the name after it")
            return
        self.add(name, node, statement, WITH, (), extent=extent)

    def alone(self, statement: ast.Expr, node: ast.Call, scope: Scope) -> None:
        name = self.name(node.func, scope)
        if name is None or not (_stands_alone(name) or name in SWITCHES):
            return
        start, end = span(self.source, statement)
        line, _ = self.source.position(start)
        before = self.source.text[self.source.line_starts[line - 1] : start]
        last, _ = self.source.position(end)
        after = self.source.text[end : self.source.line_end(last)].strip()
        if before.strip() or not (not after or after.startswith("#")):
            self.handled.update((node, node.func))
            self.misused(node, "a hint on a line with other statements; give it a line of its own")
            return
        kind = STATEMENT
        self.add(name, node, statement, kind, (self.line_removal(start, end),), alone=True)

    def around(self, statement: ast.stmt, node: ast.Call, name: str, in_text: bool) -> None:
        """Read a call that is written around its subject, the first argument."""
        self.handled.update((node, node.func))
        example = DIRECTIVES[name].example if name in DIRECTIVES else f"{name}(...)"
        if name in (*SWITCHES, IGNORE):
            self.misused(node, f"`{name}` is a decorator or a `with` block: `with hints.{name}(...):`")
            return
        if _stands_alone(name):
            self.misused(node, f"`{name}` is a statement of its own: `hints.{example}`")
            return
        if in_text:
            self.misused(node, "a hint inside an f-string; give its value a name first")
            return
        if not node.args or isinstance(node.args[0], ast.Starred):
            self.misused(node, f"`{name}` is about its first argument; write that out: `hints.{name}(x, ...)`")
            return
        kind = kind_of(statement)
        subject = self.subject(node)
        if subject is None:
            self.misused(node, "a comment inside a hint would be lost; move it above the statement")
        elif kind == STATEMENT and name in DIRECTIVES and CALL in DIRECTIVES[name].kinds:
            self.add(name, node, statement, CALL, (), subject=True)
        elif kind in (STATEMENT, FOR, OTHER):
            removals = self.removals_around(statement, node, *subject)
            self.add(name, node, statement, kind, removals, subject=True)
        else:
            self.misused(node, "a hint in the head of a definition or a block; give its value a name above")

    def subject(self, node: ast.Call) -> tuple[int, int] | None:
        """Offsets of a call's first argument with its parentheses, None if a comment beside it would be lost."""
        brackets = call_brackets(self.source, node)
        first, last = brackets.items[0]
        is_beside = any(not first <= start < last for start, _ in brackets.comments)
        return None if is_beside else (first, last)

    def removals_around(self, statement: ast.stmt, node: ast.Call, first: int, last: int) -> tuple[Removal, ...]:
        """The text before and after the subject."""
        text, subject = self.source.text, node.args[0]
        start, end = span(self.source, node)
        enclosed = span(self.source, subject) != (first, last)
        # The node of a generator or a tuple begins at its own parenthesis, if it has one.
        if isinstance(subject, ast.GeneratorExp | ast.Tuple):
            enclosed = text[first] == "("
        elif isinstance(subject, _ATOMS):
            enclosed = True
        elif not isinstance(subject, ast.NamedExpr):
            enclosed = enclosed or _holds_directly(statement, node)
        if enclosed and _needs_no_brackets(text[first:last]):
            return Removal(start, first), Removal(last, end)
        return Removal(start, first, "("), Removal(last, end, ")")

    def line_removal(self, start: int, end: int) -> Removal:
        """The whole lines from `start` to `end`, without a comment after `end`."""
        source = self.source
        first, _ = source.position(start)
        last, _ = source.position(end)
        rest = source.text[end : source.line_end(last)]
        if rest.strip():
            return Removal(start, end + len(rest) - len(rest.lstrip()))
        return Removal(source.line_starts[first - 1], source.line_end(last))

    def reference(self, statement: ast.stmt, node: ast.AST, scope: Scope) -> None:
        """Report a hint function that is used without a call, unless an alias is assigned."""
        if not isinstance(node, ast.Name | ast.Attribute) or node in self.handled:
            return
        if not isinstance(node.ctx, ast.Load):
            return
        name = self.name(node, scope)
        if name is None or (isinstance(statement, ast.Assign) and statement.value is node):
            return
        self.misused(node, f"`{name}` is a hint only where it is called or decorates; write the call itself")

    def check_imports(self) -> None:
        """Collect the imports of hints and their uses, and report ambiguous ones."""
        uses: dict[int, list[int]] = {}
        aliases: dict[int, tuple[ast.Import | ast.ImportFrom, ast.alias]] = {}
        reported: set[int] = set()
        for statement, scope in self.names.scopes.items():
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for alias in statement.names:
                    if self.is_hints(statement, alias):
                        aliases[id(alias)] = (statement, alias)
                    elif isinstance(statement, ast.ImportFrom) and alias.name == "*" and self.hides_hints(statement):
                        start, end = span(self.source, statement)
                        reason = "`*` hides which names are hints; write `from mmrewrite import hints`"
                        self.found.misused.append(Misused(start, end, reason))
            for node in own_expressions(statement):
                if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                    continue
                owner = scope.owner(node.id)
                bindings = owner.bindings[node.id] if owner else []
                mine = [binding for binding in bindings if self.reexports.is_hints(binding.target)]
                if mine and self.is_ambiguous(bindings, node, scope):
                    if id(mine[0].node) not in reported:
                        reported.add(id(mine[0].node))
                        start, end = span(self.source, node)
                        reason = f"`{node.id}` is imported for hints and is something else as well; import it once"
                        self.found.misused.append(Misused(start, end, reason))
                    continue
                for binding in mine:
                    assert isinstance(binding.node, ast.Import | ast.ImportFrom)
                    for alias in binding.node.names:
                        if (alias.asname or alias.name.partition(".")[0]) == node.id:
                            uses.setdefault(id(alias), []).append(span(self.source, node)[0])
        for key, (statement, alias) in aliases.items():
            self.found.imports.append(
                HintImport(statement, alias, tuple(statement.names), tuple(sorted(uses.get(key, ()))))
            )

    def hides_hints(self, star: ast.ImportFrom) -> bool:
        """Whether `from ... import *` imports hints that are used here."""
        names = self.names
        module = names.home_of(star)
        reexported = [full.rpartition(".")[2] for full in self.reexports.every if full.rpartition(".")[0] == module]
        return module == MODULE or any(
            name not in names.scope.bindings and not names.scope.is_unused(name) for name in reexported
        )

    def is_ambiguous(self, bindings: Sequence[Binding], node: ast.Name, scope: Scope) -> bool:
        """Whether a name that means hints also means something else, here or in the module that re-exports it."""
        if any(binding.target in self.reexports.ambiguous for binding in bindings):
            return True
        return len(bindings) > 1 and self.names.resolve(node, scope) is None

    def is_hints(self, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
        """Whether an import imports hints under this name."""
        if isinstance(statement, ast.Import):
            return self.reexports.is_hints(alias.name)
        names = self.names
        module = names.home_of(statement)
        return module is not None and alias.name != "*" and self.reexports.is_hints(member_of(module, alias.name))


def _stands_alone(name: str) -> bool:
    """Whether the call of a hint function is a statement of its own."""
    return name in DIRECTIVES and DIRECTIVES[name].whole_module


def means_hints(qualified: str) -> bool:
    """Whether a full name is `mmrewrite`, its module of hints, or a function in it."""
    return qualified in (PACKAGE, MODULE) or qualified.startswith(f"{MODULE}.")


def _holds_directly(statement: ast.stmt, node: ast.expr) -> bool:
    """Whether an expression is the whole value of its statement, so that it needs no parentheses."""
    values = [getattr(statement, name, None) for name in ("value", "iter", "test")]
    return any(value is node for value in values)


def _needs_no_brackets(text: str) -> bool:
    """Whether the lines of an expression hold together without brackets around it."""
    if not has_lines(text):
        return True
    try:
        (statement,) = parse_quietly(text.lstrip()).body
    except (SyntaxError, ValueError):
        return False
    return isinstance(statement, ast.Expr)
