"""A `for` loop that adds up over microbatches: which names it carries on, and why it cannot become a function."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from mmrewrite.flow import Flow
from mmrewrite.losses import looks_like_key
from mmrewrite.names import Scope
from mmrewrite.piece import begins_its_line
from mmrewrite.site import Site

_HARMLESS = ("jax.debug.", "logging.", "absl.logging.")


def refuse_cutting(site: Site, loop: str) -> None:
    """Refuses arguments of a `microbatch` hint that say how to cut a batch, which `loop` does itself."""
    for argument in site.hint.arguments:
        if argument.name not in ("count", "schedule"):
            site.refuse(
                f"{loop} cuts the batch itself, so `{argument.name}=` has no meaning; write `count=` with the number "
                "of its iterations, and `schedule=`"
            )


def carried_names(site: Site, loop: ast.For) -> list[str]:
    """Names that an iteration reads from the one before it, in the order of the loop.

    Refuses a loop that a function of one iteration cannot stand for: it leaves early, changes something else than its
    own names, or leaves a value of its last iteration behind.
    """
    scope = site.scope
    if scope.kind not in ("function", "module"):
        site.refuse("a loop in the body of a class; move it into a function", loop)
    if loop.orelse:
        site.refuse("`else` after a loop that accumulates gradients; put its lines below the loop", loop)
    if not begins_its_line(site.facts.source, loop.body[0]) or loop.body[0].lineno == loop.lineno:
        site.refuse("the loop and what it does share a line; give each a line of its own", loop)
    inside = set(_statements([loop]))
    assigned = {name for name, bindings in scope.bindings.items() if any(each.statement in inside for each in bindings)}
    _check_statements(site, loop.body, assigned)
    flow = Flow(site.facts, scope)
    exposed = flow.exposed_in(loop) & assigned
    carried = sorted(exposed, key=lambda name: _first_place(loop, name))
    for name in carried:
        _check_carried(site, loop, name, inside)
    for name in sorted(assigned):
        if any(name not in child.bindings and not child.is_unused(name) for child in _read_by(scope, loop)):
            site.refuse(
                f"a function above the loop reads `{name}`, which the loop assigns; give it that as an argument", loop
            )
    left = sorted((assigned - exposed) & flow.read_after(loop))
    if left:
        site.refuse(
            f"`{left[0]}` is read after the loop, where it is what the last iteration left; add it up in the loop, or "
            "compute it after the loop",
            loop,
        )
    if not carried:
        site.refuse("the loop adds nothing up; hint the loop that accumulates the gradients", loop)
    return carried


def _check_carried(site: Site, loop: ast.For, name: str, inside: set[ast.stmt]) -> None:
    if looks_like_key(name):
        site.refuse(
            f"each iteration changes the random key `{name}` for the next, and microbatches do not wait for each "
            f"other; write `{name}s = jax.random.split({name}, ...)` above the loop and take one of them in each "
            "iteration, or fold in the number of the iteration",
            loop,
        )
    before = [
        binding
        for binding in site.scope.bindings[name]
        if binding.statement not in inside
        and (binding.kind == "parameter" or (binding.statement is not None and binding.statement.lineno < loop.lineno))
    ]
    if not before:
        site.refuse(f"`{name}` has no value before the loop; write `{name} = None` above it", loop)


def _check_statements(site: Site, statements: Iterable[ast.stmt], assigned: set[str], nested: bool = False) -> None:
    """Refuses what a function of one iteration cannot do, or would do in another order."""
    for statement in statements:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.Return() | ast.Delete() | ast.Global() | ast.Nonlocal():
                word = type(statement).__name__.lower().removesuffix("ete")
                site.refuse(f"`{word}` in a loop that accumulates gradients; move it out of the loop", statement)
            case ast.Break() | ast.Continue() if not nested:
                word = type(statement).__name__.lower()
                site.refuse(
                    f"`{word}` in a loop that accumulates gradients: every microbatch must be computed, by the same "
                    "code; write it without",
                    statement,
                )
            case ast.Expr(value=ast.Call() as call):
                _check_call(site, call, statement)
        for target in _targets(statement):
            root = _root(target)
            if isinstance(root, ast.Name) and root.id in site.scope.outer:
                site.refuse(f"`{root.id}` is `global` or `nonlocal`; add up in a name of the function", statement)
            if target is not root and not (isinstance(root, ast.Name) and root.id in assigned):
                site.refuse(
                    f"`{site.text(target)}` is changed in the loop and made outside of it, and microbatches do not run "
                    "one after the other; add up in a name of its own, and store that after the loop",
                    statement,
                )
        if any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Await) for node in ast.walk(statement)):
            site.refuse("`yield` or `await` in a loop that accumulates gradients; write it without", statement)
        loops = isinstance(statement, ast.For | ast.AsyncFor | ast.While)
        _check_statements(site, _inner(statement), assigned, nested or loops)


def _check_call(site: Site, call: ast.Call, statement: ast.stmt) -> None:
    name = site.resolve(call.func) or ""
    if name != "builtins.print" and not name.startswith(_HARMLESS):
        site.refuse(
            f"`{site.text(call.func)}(...)` is called for what it changes, and microbatches do not run one after the "
            "other; add up in a name (`total = total + loss`), or do it after the loop",
            statement,
        )


def _targets(statement: ast.stmt) -> Iterator[ast.expr]:
    targets: Sequence[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        targets = [statement.target]
    elif isinstance(statement, ast.With | ast.AsyncWith):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    for target in targets:
        yield from _parts(target)


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _parts(item)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


def _inner(statement: ast.stmt) -> Iterator[ast.stmt]:
    for part in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        for name in ("body", "orelse", "finalbody"):
            yield from getattr(part, name, ())


def _statements(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        yield statement
        yield from _statements(_inner(statement))


def _first_place(loop: ast.For, name: str) -> tuple[int, int]:
    """Where the loop first assigns a name."""
    stored = (node for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return min(((node.lineno, node.col_offset) for node in stored if node.id == name), default=(0, 0))


def _read_by(scope: Scope, loop: ast.For) -> Iterator[Scope]:
    """Functions made above the loop, which see the names of `scope` as the loop assigns them."""
    for child in scope.children:
        is_late = child.kind != "comprehension" or isinstance(child.node, ast.GeneratorExp)
        if is_late and getattr(child.node, "lineno", 0) < loop.lineno:
            yield child
