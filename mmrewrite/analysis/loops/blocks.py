"""The statements of a block, the names that they assign, and what a block that becomes a function must not have."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from mmrewrite.codemod.site import Site
from mmrewrite.source.names import Scope
from mmrewrite.source.spans import begins_its_line


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
    repeats = any(isinstance(holder, ast.For | ast.AsyncFor | ast.While) for holder in _around_in_scope(site, loop))
    for child in site.scope.children:
        # A generator expression runs when it is consumed, other comprehensions where they stand.
        is_late = child.kind != "comprehension" or isinstance(child.node, ast.GeneratorExp)
        line = getattr(child.node, "lineno", 0)
        if is_late and (line < loop.lineno or (repeats and line > (loop.end_lineno or loop.lineno))):
            yield child


def _around_in_scope(site: Site, statement: ast.stmt) -> Iterator[ast.stmt]:
    for holder in site.facts.names.around(statement):
        if site.facts.names.scopes[holder] is not site.scope:
            return
        yield holder


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
