"""What statements that are to become a function assign, read and must not contain; liveness of their names.

Where paths cannot be told apart, more names count as read and fewer as assigned. That is the safe side: a function made
of the statements then gets a parameter too many, never one too few.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from mmrewrite.codemod.site import Site
from mmrewrite.project.facts import Facts
from mmrewrite.source.names import Scope, all_arguments
from mmrewrite.source.spans import begins_its_line, block_around

_Names = frozenset[str]


class Flow:
    """The flow of the names of one scope through its statements, in the order in which they run."""

    def __init__(self, facts: Facts, scope: Scope) -> None:
        self._names, self._scope = facts.names, scope

    def exposed_in(self, loop: ast.For) -> set[str]:
        """Names that an iteration may read before it assigns them: upward exposed, in the field's words."""
        exposed, _ = self._run(loop.body, self._stored(loop.target))
        return exposed

    def through(self, loop: ast.For) -> tuple[set[str], _Names]:
        """Names that a loop's body may read before it assigns them, and names that every path assigns."""
        return self._run(loop.body, frozenset())

    def defined_before(self, statement: ast.stmt) -> _Names:
        """Names that have a value on every path to a statement."""
        node = self._scope.node
        defined: _Names = frozenset()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            defined = frozenset(argument.arg for argument in all_arguments(node.args))
        held = list(self._names.around(statement))
        path = [*reversed(held[: held.index(node)] if isinstance(node, ast.stmt) else held), statement]
        for holder, inner in zip((node, *path), path, strict=False):
            if isinstance(holder, ast.stmt) and holder is not node:
                defined = self._entering(holder, inner, defined)
            block = block_around(holder, inner)
            _, defined = self._run(block[: block.index(inner)], defined)
        return defined

    def _entering(self, holder: ast.stmt, inner: ast.stmt, defined: _Names) -> _Names:
        """Names assigned on every path to the beginning of the block of `holder` with `inner` in it."""
        match holder:
            case ast.For() | ast.AsyncFor() if inner in holder.body:
                return defined | self._stored(holder.target)
            case ast.With() | ast.AsyncWith():
                return defined.union(*(self._stored(item) for item in holder.items))
            case ast.If() | ast.While():
                return defined | self._stored(holder.test, inner in holder.body)
            case ast.Try() | ast.TryStar() if inner in holder.orelse:
                return self._run(holder.body, defined)[1]
        return defined

    def read_after(self, statement: ast.stmt) -> set[str]:
        """Names that are live after a statement: some path reads them before it assigns them."""
        exposed: set[str] = set()
        defined: _Names = frozenset()
        while True:
            holder = self._names.parents.get(statement)
            outermost = holder is None or holder is self._scope.node
            block = block_around(self._names.tree if holder is None else holder, statement)
            more, defined = self._run(block[block.index(statement) + 1 :], defined)
            exposed |= more
            if isinstance(holder, ast.Try | ast.TryStar):
                for handler in holder.handlers:
                    exposed |= self._run(handler.body, defined)[0]
                for rest in (holder.orelse, holder.finalbody):
                    exposed |= self._run(rest, defined)[0]
            elif isinstance(holder, ast.For | ast.AsyncFor | ast.While):
                # The next iteration may follow.
                if isinstance(holder, ast.While):
                    exposed |= self._read(holder.test, defined)
                else:
                    defined |= self._stored(holder.target)
                exposed |= self._run(holder.body, defined)[0]
            if outermost or holder is None:
                return exposed
            statement = holder

    def _run(self, statements: Iterable[ast.stmt], defined: _Names) -> tuple[set[str], _Names]:
        """Names that `statements` read before they assign them, and those assigned on every path through them."""
        exposed: set[str] = set()
        for statement in statements:
            more, defined = self._step(statement, defined)
            exposed |= more
        return exposed, defined

    def _step(self, statement: ast.stmt, defined: _Names) -> tuple[set[str], _Names]:
        match statement:
            case ast.If():
                exposed = self._read(statement.test, defined)
                first, one = self._run(statement.body, defined | self._stored(statement.test, True))
                second, other = self._run(statement.orelse, defined | self._stored(statement.test, False))
                return exposed | first | second, _either(one, statement.body, other, statement.orelse)
            case ast.For() | ast.AsyncFor():
                # The body may run not once, so nothing that it assigns counts after the loop.
                exposed = self._read(statement.iter, defined)
                first, _ = self._run(statement.body, defined | self._stored(statement.target))
                second, _ = self._run(statement.orelse, defined)
                return exposed | first | second, defined - self._deleted(statement)
            case ast.While():
                exposed = self._read(statement.test, defined)
                first, _ = self._run(statement.body, defined | self._stored(statement.test, True))
                second, _ = self._run(statement.orelse, defined | self._stored(statement.test, False))
                return exposed | first | second, defined - self._deleted(statement)
            case ast.With() | ast.AsyncWith():
                exposed = set()
                for item in statement.items:
                    exposed |= self._read(item, defined)
                    defined |= self._stored(item)
                more, after = self._run(statement.body, defined)
                if any(self._suppresses(item.context_expr) for item in statement.items):
                    # The block may end before any of its statements has run.
                    after = defined - self._deleted(statement)
                return exposed | more, after
            case ast.Try() | ast.TryStar():
                tried = [*statement.body, *statement.orelse]
                exposed, after = self._run(tried, defined)
                # A handler may begin before any statement of the body has run.
                defined -= self._deleted(statement)
                for handler in statement.handlers:
                    exposed |= self._read(handler.type, defined) if handler.type is not None else set()
                    # Python deletes the name of an exception at the end of its handler.
                    more, other = self._run(handler.body, defined | {handler.name or ""})
                    exposed, after = exposed | more, _either(after, tried, other - {handler.name or ""}, handler.body)
                more, last = self._run(statement.finalbody, defined)
                return exposed | more, after | last
            case ast.Match():
                return self._match(statement, defined)
            case ast.AugAssign():
                exposed = self._read(statement, defined)
                if isinstance(statement.target, ast.Name):
                    exposed |= {statement.target.id} - defined
                return exposed, defined | self._stored(statement)
            case ast.Delete():
                gone = self._deleted(statement)
                return self._read(statement, defined) | (gone - defined), defined - gone
        return self._read(statement, defined), defined | self._stored(statement)

    def _match(self, statement: ast.Match, defined: _Names) -> tuple[set[str], _Names]:
        exposed = self._read(statement.subject, defined)
        defined |= self._stored(statement.subject)
        ends = []
        for case in statement.cases:
            taken = (getattr(part, name, None) for part in ast.walk(case.pattern) for name in ("name", "rest"))
            inner = defined.union(name for name in taken if name is not None)
            if case.guard is not None:
                exposed |= self._read(case.guard, inner)
            more, end = self._run(case.body, inner)
            exposed |= more
            ends += [] if _leaves(case.body) else [end]
        last = statement.cases[-1]
        if not (isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None):
            ends.append(defined)
        return exposed, frozenset.intersection(*ends) if ends else defined

    def _read(self, node: ast.AST, defined: _Names) -> set[str]:
        return {name for name in self._loaded(node) if name not in defined}

    def _loaded(self, node: ast.AST) -> Iterator[str]:
        """Names of this scope that a node reads, also in the functions that it defines, which may run at any time."""
        yield from self._names_in(node, ast.Load, self._scope)

    def _deleted(self, node: ast.AST) -> _Names:
        return frozenset(self._names_in(node, ast.Del, self._scope))

    def _suppresses(self, manager: ast.expr) -> bool:
        """Whether a context manager ends its block at an exception and has the code below it run."""
        return isinstance(manager, ast.Call) and self._names.resolve(manager.func, self._scope) == "contextlib.suppress"

    def _stored(self, node: ast.AST, truth: bool | None = None) -> _Names:
        """Names that a node assigns whenever it is evaluated; with `truth`, whenever its value is true or false."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return frozenset((node.name,))
            case ast.Import() | ast.ImportFrom():
                return frozenset(alias.asname or alias.name.partition(".")[0] for alias in node.names)
            case ast.BoolOp():
                # The others are evaluated if those before them are true (`and`) or false (`or`), and not always.
                whole = isinstance(node.op, ast.And)
                if truth is whole:
                    return frozenset[str]().union(*(self._stored(value, truth) for value in node.values))
                return self._stored(node.values[0])
            case ast.UnaryOp(op=ast.Not()):
                return self._stored(node.operand, None if truth is None else not truth)
            case ast.Compare() if truth is not True:
                return self._stored(node.left) | self._stored(node.comparators[0])
            case ast.IfExp():
                one = self._stored(node.test, True) | self._stored(node.body, truth)
                return one & (self._stored(node.test, False) | self._stored(node.orelse, truth))
            case ast.NamedExpr():
                return self._stored(node.target) | self._stored(node.value, truth)
            case ast.Name():
                return frozenset(self._names_in(node, ast.Store, self._scope))
        parts = _outside(node) if self._names.inner.get(node) is not None else ast.iter_child_nodes(node)
        return frozenset[str]().union(*(self._stored(part) for part in parts))

    def _names_in(self, node: ast.AST, context: type[ast.expr_context], scope: Scope) -> Iterator[str]:
        if isinstance(node, ast.Name):
            owner = scope.owner(node.id)
            if isinstance(node.ctx, context) and (owner is self._scope or owner is None):
                yield node.id
            return
        inner = self._names.inner.get(node)
        outside = {id(part) for part in _outside(node)} if inner is not None else set[int]()
        for child in _children(node):
            yield from self._names_in(child, context, scope if inner is None or id(child) in outside else inner)


def _either(one: _Names, first: Sequence[ast.stmt], other: _Names, second: Sequence[ast.stmt]) -> _Names:
    """Names assigned on every path after one of two blocks; a block that leaves does not count."""
    if _leaves(first) != _leaves(second):
        return other if _leaves(first) else one
    return one & other


def _leaves(block: Sequence[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], ast.Return | ast.Raise | ast.Break | ast.Continue)


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a node with a scope of its own that are evaluated in the surrounding scope."""
    yield from getattr(node, "decorator_list", ())
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            yield from (default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None)
        case ast.ClassDef():
            yield from (*node.bases, *node.keywords)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            yield node.generators[0].iter


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node, with parameters and generators replaced by their own children."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.arguments | ast.comprehension):
            yield from ast.iter_child_nodes(child)
        else:
            yield child


def direct_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statements in the blocks of a compound statement."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from child.body


def all_statements(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements and those in their blocks, at any depth, in the order of the text."""
    for statement in statements:
        yield statement
        yield from all_statements(direct_statements(statement))


def targets(statement: ast.stmt) -> Iterator[ast.expr]:
    """The names, attributes and items that a statement itself assigns or deletes; tuples in parts."""
    found: Sequence[ast.expr] = ()
    if isinstance(statement, ast.Assign | ast.Delete):
        found = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        found = [statement.target]
    elif isinstance(statement, ast.With | ast.AsyncWith):
        found = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    for target in found:
        yield from _parts(target)


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _parts(item)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def root(node: ast.expr) -> ast.expr:
    """`a` for `a.b[0].c`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


def first_place(loop: ast.For, name: str) -> tuple[int, int]:
    """Line and column where a loop first assigns a name."""
    stored = (node for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return min(((node.lineno, node.col_offset) for node in stored if node.id == name), default=(0, 0))


def assigned_in(scope: Scope, statements: Iterable[ast.stmt]) -> set[str]:
    """Names of a scope that some statements bind in any way."""
    inside = set(statements)
    return {name for name, found in scope.bindings.items() if any(each.statement in inside for each in found)}


def late_readers(site: Site, loop: ast.For) -> Iterator[Scope]:
    """Closures beside a loop that may run during it, and so see the values that the loop assigns."""
    repeats = site.facts.names.is_repeated(loop)
    for child in site.scope.children:
        # A generator expression runs when it is consumed, other comprehensions where they stand.
        is_late = child.kind != "comprehension" or isinstance(child.node, ast.GeneratorExp)
        line = getattr(child.node, "lineno", 0)
        if is_late and (line < loop.lineno or (repeats and line > (loop.end_lineno or loop.lineno))):
            yield child


def refuse_unclear_reader(site: Site, loop: ast.For, assigned: Iterable[str]) -> None:
    """Refuses names that the loop assigns and a closure beside it reads.

    As locals of a function of their own they would be other variables than the closure's.
    """
    readers = list(late_readers(site, loop))
    for name in sorted(assigned):
        for child in readers:
            if name not in child.bindings and not child.is_unused(name):
                where = "above" if getattr(child.node, "lineno", 0) < loop.lineno else "below"
                site.refuse(
                    f"a function {where} the loop reads `{name}`, which the loop assigns; give it that as an argument",
                    loop,
                )


def leaving(statements: Iterable[ast.stmt]) -> Iterator[ast.Break | ast.Continue]:
    """The `break`s and `continue`s of a loop, without those of loops inside it."""
    for statement in statements:
        if isinstance(statement, ast.Break | ast.Continue):
            yield statement
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            yield from leaving(statement.orelse)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from leaving(direct_statements(statement))


def refuse_shape(site: Site, loop: ast.For, what: str) -> None:
    """Refuses a loop whose lines cannot become the body of a function; `what` is a clause about the loop."""
    if site.scope.kind not in ("function", "module"):
        site.refuse("a loop in the body of a class; move it into a function", loop)
    if loop.orelse:
        site.refuse(f"`else` after a loop {what}; put its lines below the loop", loop)
    if not begins_its_line(site.facts.source, loop.body[0]) or loop.body[0].lineno == loop.lineno:
        site.refuse("the loop and what it does share a line; give each a line of its own", loop)
