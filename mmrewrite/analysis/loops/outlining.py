"""The body of a loop over layers as a function of one layer: its parameters, its results, or why it cannot be one."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mmrewrite.analysis.loops.dataflow import (
    Flow,
    all_statements,
    assigned_in,
    first_place,
    leaving,
    refuse_shape,
    refuse_unclear_reader,
    root,
    targets,
)
from mmrewrite.analysis.loops.layer_calls import CONTAINER_METHODS, changed_arguments
from mmrewrite.codemod.site import Site
from mmrewrite.source.functions import own_expressions

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_DISPLAYS = ast.List | ast.Tuple | ast.Set | ast.Dict | ast.ListComp | ast.SetComp | ast.DictComp

# Methods that change what they belong to, where nothing is done with their result.
_CHANGING_METHODS = frozenset(("update", "add", "remove", "discard", "clear", "sort", "reverse"))

# The results of these depend on the frame of the caller.
_FRAME = frozenset(f"builtins.{name}" for name in ("locals", "vars", "dir", "eval", "exec"))

# These keep functions among their arguments and call them later, as what binds arguments does.
_LAZY = frozenset(("builtins.map", "builtins.filter", "builtins.iter"))


@dataclass(frozen=True, eq=False)
class KeptValue:
    """A statement that keeps a value in a list or dictionary, `seen.append(x)` or `seen[i] = x`.

    The function only computes the value, and the loop keeps it: `keep` is the text around it there.
    """

    statement: ast.Expr | ast.Assign
    keep: tuple[str, str]


@dataclass(frozen=True)
class Outline:
    """A function of one layer: `carried` from the layer before, `items` of the loop's target, and its `results`.

    What the loop keeps in `collected` are further results.
    """

    carried: tuple[str, ...]
    items: tuple[str, ...]
    results: tuple[str, ...]
    collected: tuple[KeptValue, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the function, in order."""
        return (*self.carried, *self.items)


def outline_of(site: Site, loop: ast.For) -> Outline:
    """The function that the body of a loop becomes, by liveness of its names.

    Refuses a body that cannot become one exactly: it leaves the loop, changes what outlives an iteration, or carries a
    name that may have no value before the loop.
    """
    refuse_shape(site, loop, "over layers")
    for jump in leaving(loop.body):
        word = type(jump).__name__.lower()
        site.refuse(f"`{word}` in the body of a loop over layers: every layer must run; write it without", jump)
    assigned = assigned_in(site.scope, all_statements(loop.body))
    for statement in _own_statements(loop.body):
        _check(site, statement)
    flow = Flow(site.facts, site.scope)
    exposed, defined = flow.through(loop)
    names = [node for node in ast.walk(loop.target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    items = list(dict.fromkeys(node.id for node in sorted(names, key=lambda node: (node.lineno, node.col_offset))))
    results = assigned & ((exposed - set(items)) | flow.read_after(loop))
    needed = exposed | (results - defined)
    carried = (needed & assigned) - set(items)
    refuse_unclear_reader(site, loop, assigned)
    for statement in all_statements(loop.body):
        for target in targets(statement) if isinstance(statement, ast.Delete) else ():
            if isinstance(target, ast.Name) and target.id in carried:
                site.refuse(f"`del {target.id}` in the body of a loop over layers; move it below the loop", statement)
    collected = _collected(site, loop, assigned)
    _check_changes(site, loop, _made_anew(loop, assigned - exposed), carried, {each.statement for each in collected})
    _check_functions(site, loop, assigned | set(items), results)
    for name in sorted(carried - flow.defined_before(loop)):
        site.refuse(f"`{name}` may have no value before the loop; write `{name} = None` above it", loop)
    if not results and not collected:
        site.refuse(
            "no call in this loop is the layer, and the loop carries no value to the next iteration or to later code; "
            "hint the loop that computes `x = layer(x)`",
            loop,
        )

    def in_order(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=lambda name: first_place(loop, name)))

    return Outline(in_order(carried), tuple(name for name in items if name in needed), in_order(results), collected)


def _collected(site: Site, loop: ast.For, assigned: set[str]) -> tuple[KeptValue, ...]:
    """The statements of a body that keep values in a local container which nothing else in the body can see."""
    found: list[tuple[str, KeptValue]] = []
    for statement in loop.body:
        is_plain = True
        match statement:
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id=name)), args=[value], keywords=[])
            ):
                keep = (f"{name}.append(", ")")
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=key) as target], value=value):
                keep = (f"{site.text(target)} = ", "")
                is_plain = _is_plain_key(key, assigned)
            case _:
                continue
        if is_plain and not isinstance(value, ast.Starred | ast.GeneratorExp) and _is_private(site, loop, name):
            found.append((name, KeptValue(statement, keep)))
    mentioned = [node.id for node in ast.walk(loop) if isinstance(node, ast.Name)]
    kept = [name for name, _ in found]
    return tuple(each for name, each in found if mentioned.count(name) == kept.count(name))


def _is_private(site: Site, loop: ast.For, name: str) -> bool:
    """Whether a container is made in front of the loop, and nothing but the function reads it, behind the loop."""
    names, binding = site.facts.names, site.facts.names.binding(name, site.scope)
    if site.scope.kind != "function" or binding is None or name not in site.scope.bindings:
        return False
    made, value = binding.statement, binding.value
    if made is None or value is None or names.parents.get(made) is not names.parents.get(loop):
        return False
    if isinstance(value, ast.BinOp):
        value = value.left
    if isinstance(value, ast.Call) and (site.resolve(value.func) or "") not in ("builtins.list", "builtins.dict"):
        return False
    between = (
        node
        for statement, scope in names.scopes.items()
        if scope is site.scope and made.lineno < statement.lineno < loop.lineno
        for node in ast.walk(statement)
    )
    return (
        made.lineno < loop.lineno
        and isinstance(value, _DISPLAYS | ast.Call)
        and all(child.is_unused(name) for child in site.scope.children)
        and not any(isinstance(node, ast.Name) and node.id == name for node in between)
    )


def _is_plain_key(key: ast.expr, assigned: set[str]) -> bool:
    """Whether a key is the same in front of a layer and behind it, and computing it does nothing else."""
    parts = [part for part in ast.walk(key) if not isinstance(part, ast.operator | ast.expr_context)]
    plain = ast.Name | ast.Constant | ast.BinOp | ast.JoinedStr | ast.FormattedValue
    return all(isinstance(part, plain) and getattr(part, "id", None) not in assigned for part in parts)


def _own_statements(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements in blocks at any depth, but not those of functions and classes."""
    inside: set[ast.stmt] = set()
    for statement in all_statements(statements):
        if statement not in inside:
            yield statement
        if isinstance(statement, _FUNCTIONS):
            inside.update(all_statements(statement.body))


def _check(site: Site, statement: ast.stmt) -> None:
    """Refuses a statement that would have another meaning in a function of its own."""
    where = "in the body of a loop over layers, which becomes a function"
    match statement:
        case ast.Return():
            site.refuse(f"`return` {where}: every layer must run; move it below the loop", statement)
        case ast.Global() | ast.Nonlocal():
            site.refuse(
                f"`{type(statement).__name__.lower()}` {where}; use a name of the function around it", statement
            )
        case ast.AsyncFor() | ast.AsyncWith():
            site.refuse(f"`async` {where}; write it without", statement)
    for node in _own_nodes(statement):
        match node:
            case ast.Yield() | ast.YieldFrom() | ast.Await():
                site.refuse(f"`yield` or `await` {where}; write it without", statement)
            case ast.comprehension(is_async=1):
                site.refuse(f"`async` {where}; write it without", statement)
            case ast.Call(func=ast.Name(id="super"), args=[]) if site.resolve(node.func) == "builtins.super":
                site.refuse(f"`super()` {where}; assign what it gives to a name above the loop", statement)
            case ast.Call() if site.resolve(node.func) in _FRAME:
                site.refuse(f"`{site.text(node)}` {where}; write it without", statement)
            case ast.Name(ctx=ast.Store() | ast.Del()) if node.id in site.scope.outer:
                site.refuse(
                    f"`{node.id}` is `global` or `nonlocal`; use a name of the function in the loop, and assign "
                    f"`{node.id}` below it",
                    statement,
                )


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement outside of the statements, functions and lambdas in it."""
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        yield node
        if node is statement and isinstance(statement, _FUNCTIONS):
            stack.extend(statement.decorator_list)
            continue
        children = ast.iter_child_nodes(node)
        stack.extend(child for child in children if not isinstance(child, ast.stmt | ast.Lambda))


def _made_anew(loop: ast.For, own: set[str]) -> set[str]:
    """The names in `own` that are no alias of a value from outside the layer, or of a part of one (a fixed point)."""
    bound = list(_bound_to(loop))
    while True:
        holders = ((name, root(value)) for name, value in bound)
        other = {name for name, holder in holders if not (isinstance(holder, ast.Name) and holder.id in own)}
        if not own & other:
            return own
        own = own - other


def _bound_to(loop: ast.For) -> Iterator[tuple[str, ast.expr]]:
    """(alias, aliased expression) for the aliases that a loop binds: `c` and `cache[i]` for `c = cache[i]`."""
    for statement in all_statements(loop.body):
        value = None
        if isinstance(statement, ast.For):
            value = statement.iter
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            value = statement.value if isinstance(statement.value, ast.Name | ast.Attribute | ast.Subscript) else None
        if value is not None:
            for target in targets(statement):
                if isinstance(target, ast.Name):
                    yield target.id, value


def _check_changes(
    site: Site, loop: ast.For, own: set[str], carried: set[str], collected: Collection[ast.stmt]
) -> None:
    """Refuses layers that change something which outlives them: a cache, or skip connections."""
    for statement in (each for each in all_statements(loop.body) if each not in collected):
        changed = [target.value for target in targets(statement) if isinstance(target, ast.Attribute | ast.Subscript)]
        for node in own_expressions(statement):
            if isinstance(node, ast.Call):
                changed += changed_arguments(site, node)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and site.resolve(node.func) is None:
                dropped = isinstance(statement, ast.Expr) and statement.value is node
                if node.func.attr in CONTAINER_METHODS or (dropped and node.func.attr in _CHANGING_METHODS):
                    changed.append(node.func.value)
        for expression in changed:
            _refuse_shared(site, loop, expression, own)
        for name in _grown(statement):
            if name.id in carried:
                _refuse_shared(site, loop, name, own)


def _refuse_shared(site: Site, loop: ast.For, changed: ast.expr, own: set[str]) -> None:
    holder = root(changed)
    if isinstance(holder, _DISPLAYS) or (isinstance(holder, ast.Name) and holder.id in own):
        return
    if isinstance(holder, ast.Call) and (site.resolve(holder.func) or "").startswith("builtins."):
        return
    site.refuse(
        f"the layers share `{site.text(changed)}`, which this loop changes: it would travel between all stages; put "
        "the layer's work into a function that returns what is collected, call that in the loop, and say where each "
        "layer runs with `task(stage=...)` on the loop",
        loop,
    )


def _grown(statement: ast.stmt) -> Iterator[ast.Name]:
    """Names that a statement extends by rebinding them, such as `h` in `h = [*h, x]`."""
    if isinstance(statement, ast.AugAssign):
        if isinstance(statement.target, ast.Name) and isinstance(statement.value, _DISPLAYS):
            yield statement.target
    elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        value = statement.value
        parts: list[ast.expr | None] = []
        if isinstance(value, ast.List | ast.Tuple | ast.Set):
            parts = [item.value for item in value.elts if isinstance(item, ast.Starred)]
        elif isinstance(value, ast.Dict):
            parts = [item for key, item in zip(value.keys, value.values, strict=True) if key is None]
        elif isinstance(value, ast.BinOp) and isinstance(value.right, _DISPLAYS):
            parts = [value.left]
        stored = {target.id for target in targets(statement) if isinstance(target, ast.Name)}
        yield from (part for part in parts if isinstance(part, ast.Name) and part.id in stored)


def _check_functions(site: Site, loop: ast.For, changing: set[str], results: set[str]) -> None:
    """Refuses closures that one layer makes and a later one calls.

    Python binds their names late, to the loop's current values; in a function of one layer they would keep the values
    of the layer that made them.
    """
    local = {statement.name: statement for statement in _own_statements(loop.body) if isinstance(statement, _FUNCTIONS)}
    for name, function in local.items():
        if name in results:
            _refuse_late(site, function, name)
    for statement in _own_statements(loop.body):
        stored = {target.id for target in targets(statement) if isinstance(target, ast.Name)} & results
        value = getattr(statement, "value", None)
        if stored and isinstance(value, ast.expr):
            for node in _kept(site, value):
                reads = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                made = isinstance(node, ast.Name) and node.id in local
                if made or (not isinstance(node, ast.Name) and reads & changing):
                    _refuse_late(site, statement, min(stored))


def _refuse_late(site: Site, statement: ast.stmt, name: str) -> None:
    site.refuse(
        f"`{name}` is a closure that one layer makes and a later one calls, when its names have other values; make it "
        "where it is called",
        statement,
    )


def _kept(site: Site, value: ast.expr) -> Iterator[ast.expr]:
    """Functions, and names that may be functions, that a value keeps rather than calls."""
    if isinstance(value, ast.Lambda | ast.GeneratorExp | ast.Name):
        yield value
    elif isinstance(value, ast.Call):
        if site.resolve(value.func) in _LAZY or not site.call_form(value).is_called:
            for argument in (*value.args, *(keyword.value for keyword in value.keywords)):
                yield from _kept(site, argument)
    else:
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.expr):
                yield from _kept(site, child)
