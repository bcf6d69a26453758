"""Whether code reads an object once a statement has run: by its name, an alias, a part, or in a caller."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from mmrewrite.analysis.objects.function_uses import FunctionUse, FunctionUses
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.source.functions import own_nodes
from mmrewrite.source.names import Scope

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_PARTS = ast.Attribute | ast.Subscript | ast.Starred
_KEEPING = frozenset(("add", "append", "appendleft", "extend", "insert", "put", "register", "setdefault", "update"))


@dataclass(frozen=True, eq=False)
class LaterRead:
    """A line that reads the object; None if code that is not in sight may."""

    facts: Facts
    line: int | None


@dataclass(frozen=True, eq=False)
class CallsRun:
    """When calls have run: their statements, in a module, and functions that they alone run."""

    facts: Facts
    statements: Sequence[ast.stmt]
    calls: Sequence[ast.Call]
    inside: Collection[ast.AST] = ()


class LaterReads:
    """Looks for reads of an object in the function that has it, and in those that call this one."""

    def __init__(self, project: Project) -> None:
        self._uses = FunctionUses(project)

    def of(
        self, name: str, owner: Scope, moment: CallsRun, seen: frozenset[tuple[ast.AST, str]] = frozenset()
    ) -> LaterRead | None:
        """The first read of what a name of a scope stands for, after a moment; `seen` are parameters asked about."""
        facts = moment.facts
        names = _NamesOfParts(owner).of(name) if isinstance(owner.node, _FUNCTIONS) else {name: False}
        lines = [line for each in names if owner.owner(each) is owner for line in _lines(each, owner, moment)]
        if lines:
            return LaterRead(facts, min(lines))
        for each, is_part in names.items():
            if owner.owner(each) is not owner:
                return LaterRead(facts, None)
            if any(binding.kind == "parameter" for binding in owner.bindings[each]):
                found = self._in_callers(each, is_part, owner, facts, seen)
                if found is not None:
                    return found
        return None

    def _in_callers(
        self, name: str, is_part: bool, owner: Scope, facts: Facts, seen: frozenset[tuple[ast.AST, str]]
    ) -> LaterRead | None:
        function = owner.node
        if not isinstance(function, _FUNCTIONS) or (function, name) in seen:
            return None
        first = [*function.args.posonlyargs, *function.args.args][:1]
        is_method = owner.parent is not None and owner.parent.kind == "class"
        if is_part and is_method and first and first[0].arg == name:
            # What an object has is read by whoever has the object.
            return LaterRead(facts, None)
        if self._uses.is_compiled(facts, function):
            return None
        for use in self._uses.of(facts, function):
            found = self._in_caller(name, is_method, function, use, seen | {(function, name)})
            if found is not None:
                return found
        return None

    def _in_caller(
        self,
        name: str,
        is_method: bool,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        use: FunctionUse,
        seen: frozenset[tuple[ast.AST, str]],
    ) -> LaterRead | None:
        facts, unseen = use.facts, LaterRead(use.facts, None)
        if self._uses.compiles(use):
            return None
        if not use.is_call or use.call is None:
            return unseen
        argument = _argument(name, is_method and isinstance(use.node, ast.Attribute), function, use.call)
        if argument is None:
            return unseen
        roots = dict(roots_of(argument))
        statement = self._uses.statement(facts, use.node)
        scope = facts.names.scopes[statement]
        if isinstance(argument, ast.Dict | ast.List | ast.Set | ast.Tuple | ast.Constant) or not roots:
            # It is made for the call.
            return None
        moment = CallsRun(facts, (statement,), (use.call,))
        for root in roots:
            holder = scope.owner(root)
            if holder is None or isinstance(argument, ast.Attribute):
                return unseen
            found = self.of(root, holder, moment, seen)
            if found is not None:
                return found
        return None


class _NamesOfParts:
    """The names of a function that stand for the same object, or for one that it is a part of."""

    def __init__(self, owner: Scope) -> None:
        self._pairs = tuple(_pairs(owner.node)) if isinstance(owner.node, _FUNCTIONS) else ()

    def of(self, name: str) -> dict[str, bool]:
        """The names that read what one stands for, each with whether that is a part of what it stands for."""
        found = {name: False}
        queue = [name]
        while queue:
            each = queue.pop()
            for target, source, is_part in self._pairs:
                # An object is in what it was taken from or put into; other parts of that are others.
                if target == each and found.get(source) is None:
                    found[source] = found[each] or is_part
                    queue.append(source)
                elif source == each and not found[each] and target not in found:
                    found[target] = False
                    queue.append(target)
        return found


def _pairs(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str, bool]]:
    """Each name that statements bind to an object, the name that this comes from, and whether it is a part of that."""
    taken: dict[str, str] = {}
    for node in own_nodes(function):
        for target, value in _assigned(node):
            held = target
            while isinstance(held, _PARTS):
                held = held.value
            for root, is_part in roots_of(value):
                for each in ast.walk(held):
                    if isinstance(each, ast.Name) and each.id != root:
                        if held is target:
                            is_whole = isinstance(target, ast.Name) and not isinstance(node, ast.For | ast.AsyncFor)
                            yield each.id, root, is_part or not is_whole
                        else:
                            # `self.log = log`, `logs["a"] = log`
                            yield root, each.id, True
            if isinstance(target, ast.Name) and isinstance(value, ast.Attribute | ast.Subscript):
                before = taken.setdefault(ast.unparse(value), target.id)
                if before != target.id:
                    yield before, target.id, False


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _unpacked(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            yield target, value
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            yield target, value
        case ast.Call(func=ast.Attribute(value=target, attr=method), args=arguments) if method in _KEEPING:
            for value in arguments:
                yield ast.Subscript(target, ast.Constant(None), ast.Store()), value


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    items = target.elts if isinstance(target, ast.Tuple | ast.List) else []
    values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    if items and len(items) == len(values) and not any(isinstance(each, ast.Starred) for each in (*items, *values)):
        for one, other in zip(items, values, strict=True):
            yield from _unpacked(one, other)
    else:
        yield target, value


def roots_of(value: ast.expr) -> Iterator[tuple[str, bool]]:
    """The names of which an expression may be the object, or a part, or that are in it; and whether it is a part."""
    match value:
        case ast.Name(id=name):
            yield name, False
        case ast.Attribute(value=holder) | ast.Subscript(value=holder) | ast.Starred(value=holder):
            yield from ((name, True) for name, _ in roots_of(holder))
        case ast.NamedExpr(value=inner):
            yield from roots_of(inner)
        case ast.IfExp(body=one, orelse=other):
            yield from roots_of(one)
            yield from roots_of(other)
        case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            for part in parts:
                yield from roots_of(part)
        case ast.Dict(values=parts):
            for part in parts:
                yield from roots_of(part)
        case ast.Call(func=ast.Attribute(value=holder, attr="get" | "items" | "values" | "setdefault")):
            yield from ((name, True) for name, _ in roots_of(holder))
        case ast.Call(func=ast.Name(id="enumerate" | "getattr" | "iter" | "next" | "reversed" | "zip"), args=parts):
            for part in parts:
                yield from ((name, True) for name, _ in roots_of(part))


def _argument(
    name: str, is_bound: bool, function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call
) -> ast.expr | None:
    """What a call passes for a parameter; None if that is not seen, or is a default, which is one for all calls."""
    if any(isinstance(each, ast.Starred) for each in call.args) or not all(each.arg for each in call.keywords):
        return None
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][1 if is_bound else 0 :]
    if is_bound and name not in names and isinstance(call.func, ast.Attribute):
        return call.func.value
    place = names.index(name) if name in names else len(call.args)
    return call.args[place] if place < len(call.args) else None


def _lines(name: str, owner: Scope, moment: CallsRun) -> Iterator[int]:
    """The lines that read a name after a moment. Functions that read a name of their module may run then."""
    names = moment.facts.names
    own = {node for call in moment.calls for node in ast.walk(call)}
    beside = {node for each in moment.statements for node in ast.walk(each)} - own
    begin = min(_end_or_loop(each, name, moment.facts) for each in moment.statements)
    for node, scope in names.reads_of(name, owner):
        if node in own or any(_is_within(scope, each) for each in moment.inside):
            continue
        is_of_module = scope.function is not owner is names.scope
        if node.lineno > begin or node in beside or is_of_module or _runs_later(scope, owner, begin, moment):
            yield node.lineno


def _runs_later(scope: Scope, owner: Scope, begin: int, moment: CallsRun, seen: frozenset[Scope] = frozenset()) -> bool:
    """Whether a function in another one, in which a scope is, may run after a line of that."""
    inner = scope
    while inner.parent is not None and inner.parent is not owner:
        inner = inner.parent
    if inner is owner or inner in seen or inner.kind != "function":
        return False
    for name, bindings in owner.bindings.items():
        if any(inner.node in (each.node, each.value) for each in bindings):
            for node, reader in moment.facts.names.reads_of(name, owner):
                if not any(_is_within(reader, each) for each in moment.inside) and (
                    node.lineno > begin or _runs_later(reader, owner, begin, moment, seen | {inner})
                ):
                    return True
    return False


def _end_or_loop(use: ast.stmt, name: str, facts: Facts) -> int:
    """The line below which code runs after a statement: all of a loop around it, unless each round sets `name` anew."""
    begin = use.end_lineno or use.lineno
    for loop in facts.names.around(use):
        if _is_loop(loop) and not _sets_anew(loop, name, use):
            begin = min(begin, loop.lineno)
    return begin


def _is_loop(node: ast.stmt) -> TypeGuard[ast.For | ast.AsyncFor | ast.While]:
    return isinstance(node, ast.For | ast.AsyncFor | ast.While)


def _sets_anew(loop: ast.For | ast.AsyncFor | ast.While, name: str, use: ast.stmt) -> bool:
    """Whether a loop binds a name in each round, before a statement of its body."""
    if not isinstance(loop, ast.While) and _binds(loop.target, name):
        return True
    above = (each for each in loop.body if each.lineno < use.lineno)
    return any(
        isinstance(each, ast.Assign | ast.AnnAssign | ast.With) and any(_binds(node, name) for node in ast.walk(each))
        for each in above
    )


def _binds(tree: ast.AST, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in ast.walk(tree)
    )


def _is_within(scope: Scope, function: ast.AST) -> bool:
    outer: Scope | None = scope
    while outer is not None and outer.node is not function:
        outer = outer.parent
    return outer is not None
