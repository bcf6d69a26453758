"""Arguments that a loss changes and that later code reads: microbatches are given parts, in containers of their own.

What else a loss changes around it the runtime sees when it traces the loss. This alone it cannot see: whether anything
reads the batch, changed as it would be on one device, after the gradient.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from mmrewrite.analysis.steps.gradients import Gradient
from mmrewrite.analysis.steps.losses import find_function
from mmrewrite.codemod.site import Site
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.source.functions import COMPILERS, is_jit_decorator
from mmrewrite.source.names import dotted_name
from mmrewrite.values.flow import values_of
from mmrewrite.values.value import By, Value

# Methods of containers that change these, and those that other objects have too, which then give a new value.
_CHANGING = frozenset(
    (
        *("__delitem__", "__setitem__", "append", "appendleft", "difference_update", "discard", "extend", "extendleft"),
        *("intersection_update", "pop", "popitem", "popleft", "setdefault", "symmetric_difference_update"),
    )
)
_CHANGING_WITHOUT_RESULT = frozenset(["add", "clear", "insert", "remove", "reverse", "rotate", "sort", "update"])
_CHANGING_FUNCTIONS = frozenset(
    ["builtins.delattr", "builtins.setattr", "operator.delitem", "operator.iadd", "operator.ior", "operator.setitem"]
)
_COLLECTIONS = frozenset(("builtins.dict", "builtins.list", "builtins.set", "collections.deque"))
# Calls that give parts of what they are given, or of whose method they are; and those that copy, but not the parts.
_GIVE_PARTS = frozenset(
    ("enumerate", "get", "getattr", "items", "iter", "next", "reversed", "setdefault", "values", "zip")
)
_COPY = frozenset(("copy", "dict", "list", "tuple", "replace", "_replace"))
_NEW = ast.BinOp | ast.Compare | ast.Constant | ast.JoinedStr | ast.Lambda | ast.UnaryOp
_DISPLAYS = ast.Dict | ast.DictComp | ast.List | ast.ListComp | ast.Set | ast.SetComp
_OF_LISTS = frozenset(("append", "extend", "insert", "remove", "reverse", "sort"))
_COPY_OF_ALL = "jax.tree.map(lambda leaf: leaf, {})"
_DEPTH = 4


@dataclass(frozen=True)
class ChangedArgument:
    """The line on which a loss, or a function that it calls, changes its argument, and the line that reads it later.

    `copy` is an expression that copies as much of it as is changed. `read_on` is None where code that is not in sight
    may read it.
    """

    name: str
    path: str
    line: int
    copy: str
    read_on: int | None

    def described(self, near: Facts) -> str:
        """What is changed where, in words for a message about a statement of `near`."""
        where = f"line {self.line}" + (f" of {PurePath(self.path).name}" if self.path != near.path else "")
        reader = "code around may read" if self.read_on is None else f"line {self.read_on} reads"
        return f"changes its argument `{self.name}` on {where}, which {reader}"


def changed_argument(site: Site, gradient: Gradient, appended: Collection[str]) -> ChangedArgument | None:
    """The first argument that the function which is differentiated changes, and that is read after the gradient.

    Args:
        site: The site of the hint.
        gradient: The gradient and its calls.
        appended: Names that the loss closes over and that become parameters of it.
    """
    if gradient.makers[0].name.startswith("flax."):
        # These have containers of their own on one device, too.
        return None
    losses = [loss for maker in gradient.makers if (loss := _function(site, maker.loss)) is not None]
    return next(filter(None, (_changed_by(site, gradient, appended, loss) for loss in losses)), None)


def _changed_by(site: Site, gradient: Gradient, appended: Collection[str], loss: _Called) -> ChangedArgument | None:
    facts = site.facts
    given: dict[str, tuple[ast.stmt, ast.expr]] = {}
    for name in appended:
        given[name] = (site.statement, ast.copy_location(ast.Name(name, ast.Load()), site.statement))
    for use in gradient.uses:
        passed = {place: value for place, value in enumerate(use.call.args) if place not in gradient.argnums}
        named = [(loss.parameters[at], value) for at, value in passed.items() if at < len(loss.parameters)]
        named += [(each.arg, each.value) for each in use.call.keywords if each.arg is not None]
        given |= {name: (use.statement, value) for name, value in named}
    inside = {*ast.walk(loss.node), *(node for call in gradient.calls for node in ast.walk(call))}
    for name, (statement, value) in given.items():
        change = next(_changes(site, loss, {name: 0}, _DEPTH), None)
        read = _read_later(site.project, facts, statement, value, inside, _DEPTH) if change is not None else None
        if change is not None and read is not None:
            path, line, copy = change
            return ChangedArgument(name, path, line, copy.format(name), read or None)
    return None


@dataclass(frozen=True, eq=False)
class _Called:
    """A function, its module, its positional parameters that are not bound, and that for its object."""

    facts: Facts
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    parameters: list[str]
    own: str | None = None


def _function(site: Site, value: Value) -> _Called | None:
    """The function that a value is, wraps or binds arguments of; for a method of an unknown object, any of its name."""
    loss = find_function(site, value, in_any_call=True)
    if loss is not None:
        names, outer = _positional(loss.node), loss.scope.parent
        own = names[0] if loss.num_bound and outer is not None and outer.kind == "class" else None
        return _Called(loss.facts, loss.node, [*loss.before, *names[loss.num_bound :]], own)
    for each in values_of(site.project).may(value, _is_function, by_name=True, also=_given_first).answers:
        assert isinstance(each.head, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        own, *parameters = _positional(each.head) if each.path else ["", *_positional(each.head)]
        return _Called(each.module.facts, each.head, parameters, own or None)
    return None


def _is_function(value: Value) -> Value | None:
    steps = [step.kind for step in value.path]
    is_function = isinstance(value.head, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    return value if is_function and steps in ([], [By.BOUND]) else None


def _given_first(value: Value) -> list[Value]:
    """What a function of a library is given first."""
    is_call = isinstance(value.head, str) and [step.kind for step in value.path] == [By.CALL]
    first = value.path[0].what.first() if is_call else None
    return [first] if first is not None else []


def _positional(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[str]:
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]


def _held(node: ast.AST, names: Mapping[str, int]) -> int | None:
    """Whether an expression may give what one of some names stands for, or a part of it: 1 for a shallow copy."""
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=holder) | ast.Subscript(value=holder):
            return None if _held(holder, names) is None else 0
        case ast.Call(func=function, args=arguments):
            called = function.attr if isinstance(function, ast.Attribute) else dotted_name(function) or ""
            parts = [*arguments, *([function.value] if isinstance(function, ast.Attribute) else [])]
            if called not in _GIVE_PARTS | _COPY or all(_held(each, names) is None for each in parts):
                return None
            return 1 if called in _COPY else 0
        case ast.Dict(keys=keys, values=values) if None in keys:
            return None if all(_held(each, names) is None for each in values) else 1
        case _ if isinstance(node, _NEW):
            return None
        case _:
            held = [level for each in ast.iter_child_nodes(node) if (level := _held(each, names)) is not None]
            return min(held) if held else None


def _changes(site: Site, function: _Called, names: Mapping[str, int], depth: int) -> Iterator[tuple[str, int, str]]:
    """Where a function, or one that it calls, changes what some of its parameters stand for: file, line, and a copy."""
    node, facts, level = function.node, function.facts, dict(names)
    located = [each for each in ast.walk(node) if isinstance(each, ast.expr | ast.stmt)]
    dropped = {each.value for each in located if isinstance(each, ast.Expr)}
    if isinstance(node, ast.Lambda):
        dropped.add(node.body)
    for each in sorted(located, key=lambda each: (each.lineno, each.col_offset)):
        for targets, value in _bindings(each):
            held = _held(value, level)
            for name in _names(targets, ast.Store):
                is_sure = not isinstance(node, ast.Lambda) and each in node.body
                if held is not None:
                    level[name] = held if is_sure else min(held, level.get(name, held))
                elif is_sure:
                    # `batch = dict(batch)` is a copy from here on.
                    level.pop(name, None)
        if _is_change(facts, each, level, each in dropped):
            yield facts.path, each.lineno, _copy_for(each)
        elif isinstance(each, ast.Call) and depth:
            values = [*each.args, *(keyword.value for keyword in each.keywords), *_receiver(each)]
            held_values = {value: held for value in values if (held := _held(value, level)) is not None}
            inner = None
            if held_values:
                inner = _function(site, values_of(site.project).value_in(facts, each.func))
            if inner is not None and inner.node is not node:
                pairs = [*zip(inner.parameters, each.args, strict=False), *((k.arg, k.value) for k in each.keywords)]
                pairs += [(inner.own, value) for value in _receiver(each)]
                given = {name: held_values[value] for name, value in pairs if name and value in held_values}
                are_whole = all(isinstance(value, ast.Name) for value in held_values)
                for path, line, copy in _changes(site, inner, given, depth - 1):
                    yield path, line, copy if are_whole else _COPY_OF_ALL


def _copy_for(change: ast.AST) -> str:
    """An expression for a copy that may be changed so."""
    match change:
        case ast.Subscript(value=ast.Name(), slice=ast.Slice() | ast.Constant(value=int())):
            return "list({})"
        case ast.Call(func=ast.Attribute(value=ast.Name(), attr=method)) if method in _OF_LISTS:
            return "list({})"
        case ast.Subscript(value=ast.Name()) | ast.Call(func=ast.Attribute(value=ast.Name(), attr="pop" | "update")):
            return "dict({})"
        case _:
            return _COPY_OF_ALL


def _receiver(call: ast.Call) -> list[ast.expr]:
    return [call.func.value] if isinstance(call.func, ast.Attribute) else []


def _names(nodes: Iterable[ast.AST], kind: type[ast.expr_context] = ast.expr_context) -> set[str]:
    names = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in names if isinstance(each.ctx, kind)}


def _bindings(node: ast.AST) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield targets, value
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            yield [target], value
        case ast.For(target=target, iter=value):
            yield [target], value
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            yield from (([each.target], each.iter) for each in node.generators)
        case ast.With(items=items):
            yield from (([item.optional_vars], item.context_expr) for item in items if item.optional_vars is not None)


def _is_change(facts: Facts, node: ast.AST, names: Mapping[str, int], is_dropped: bool) -> bool:
    def is_held(value: ast.expr) -> bool:
        # Of a shallow copy, only parts are those of the argument.
        return _held(value, names) == 0

    match node:
        case (
            ast.Subscript(ctx=ast.Store() | ast.Del(), value=value)
            | ast.Attribute(ctx=ast.Store() | ast.Del(), value=value)
        ):
            return is_held(value)
        case ast.AugAssign(target=ast.Name() as target, value=value):
            # Of an array it makes a new one.
            return isinstance(value, _DISPLAYS) and is_held(ast.Name(target.id, ast.Load()))
        case ast.Call(func=ast.Attribute(value=value, attr=method) as function, args=arguments):
            scope = facts.names.read_in.get(value)
            name = facts.names.resolve(function, scope) if scope is not None else None
            owner = facts.names.resolve(value, scope) if scope is not None else None
            is_changing = method in _CHANGING or (method in _CHANGING_WITHOUT_RESULT and is_dropped)
            if name in _CHANGING_FUNCTIONS or (owner in _COLLECTIONS and is_changing):
                return bool(arguments) and is_held(arguments[0])
            return is_changing and is_held(value)
        case ast.Call(func=ast.Name() as function, args=[first, *_]):
            scope = facts.names.read_in.get(function)
            return scope is not None and facts.names.resolve(function, scope) in _CHANGING_FUNCTIONS and is_held(first)
        case _:
            return False


def _read_later(
    project: Project, facts: Facts, statement: ast.stmt, value: ast.expr, inside: Collection[ast.AST], depth: int
) -> int | None:
    """The line that reads an argument's container after a statement, 0 if it is not in sight; None if nothing does."""
    scope, names = facts.names.scopes[statement], _names([value])
    if _held(value, dict.fromkeys(names, 0)) != 0:
        # It is made for the call.
        return None
    owners = {owner for name in names if (owner := scope.owner(name)) is not None}
    function = next(iter(owners)).node if len(owners) == 1 else None
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    (owner,) = owners
    for targets, source in (each for node in ast.walk(function) for each in _bindings(node)):
        for one, other in ((_names(targets), _names([source])), (_names([source]), _names(targets))):
            if one & names and _held(source, dict.fromkeys(_names([source]), 0)) is not None:
                names |= other & {*owner.bindings}
    first, beside = _end_or_loop(facts, statement, names), set(ast.walk(statement))
    reads = [
        (node, reader) for name in names for node, reader in facts.names.reads_of(name, owner) if node not in inside
    ]
    lines = [
        node.lineno for node, by in reads if node.lineno > first or node in beside or by.function is not scope.function
    ]
    is_method = owner.parent is not None and owner.parent.kind == "class"
    parameters = _positional(function)
    if lines or (is_method and names.intersection(parameters[:1])):
        return min(lines, default=0)
    if depth == 0 or _is_compiled(facts, function):
        return None
    for where in project.facts.values():
        for caller in where.names.scopes:
            for call in where.names.calls.get(caller, ()):
                # In another module, a name may be that of another function.
                if where is not facts and isinstance(call.func, ast.Name):
                    named = where.names.resolve(call.func, where.names.scopes[caller])
                    home = project.definition(named, where) if named is not None else None
                    if home is None or home[0] is not facts:
                        continue
                if (dotted_name(call.func) or "").rpartition(".")[2] == function.name:
                    pairs = [*zip(parameters[is_method:], call.args, strict=False)]
                    pairs += [(each.arg or "", each.value) for each in call.keywords]
                    for _, given in (pair for pair in pairs if pair[0] in names):
                        if _read_later(project, where, caller, given, set(ast.walk(call)), depth - 1) is not None:
                            return 0
    return None


def _is_compiled(facts: Facts, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator compiles a function, or a call such as `step = jax.jit(step)`: it has new containers then."""
    scope = facts.names.scopes[function]
    calls = (call for each in facts.names.scopes for call in facts.names.calls.get(each, ()) if call.args)
    return any(is_jit_decorator(facts.names, each, scope) for each in function.decorator_list) or any(
        facts.names.resolve(call.func, scope) in COMPILERS and dotted_name(call.args[0]) == function.name
        for call in calls
    )


def _end_or_loop(facts: Facts, statement: ast.stmt, names: set[str]) -> int:
    """The line below which code runs after a statement: all of a loop around it, unless each round sets a name anew."""
    first = statement.end_lineno or statement.lineno
    for loop in facts.names.around(statement):
        if isinstance(loop, ast.FunctionDef | ast.AsyncFunctionDef):
            break
        if isinstance(loop, ast.For | ast.AsyncFor | ast.While):
            above = [each for each in loop.body if each.lineno < statement.lineno and isinstance(each, ast.Assign)]
            targets = [target for each in above for target in each.targets]
            if not names & _names([*targets, *([] if isinstance(loop, ast.While) else [loop.target])]):
                first = min(first, loop.lineno)
    return first
