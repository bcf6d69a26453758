"""Arguments that a loss changes and that later code reads: microbatches are given parts, in containers of their own.

What else a loss changes around it the runtime sees when it traces the loss. This alone it cannot see: whether anything
reads the batch, changed as it would be on one device, after the gradient.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from mmrewrite.analysis.steps.gradients import Gradient
from mmrewrite.analysis.steps.losses import Definition, Loss, find_function
from mmrewrite.codemod.site import Site
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.jit_kinds import JIT_KINDS, is_jit_decorator
from mmrewrite.source.names import all_arguments, dotted_name
from mmrewrite.values.arguments import of_parameter
from mmrewrite.values.flow import ValueFlow, values_of
from mmrewrite.values.library import MAKE_TREES
from mmrewrite.values.value import ANY_ITEM, ELEMENT, By, Own, Path, Value

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
# Calls that give parts of what they are given, or of whose method they are; and those that copy it, but not the parts.
_GIVE_PARTS = frozenset(
    ("enumerate", "get", "getattr", "items", "iter", "next", "reversed", "setdefault", "values", "zip")
)
_COPY = frozenset(("copy", "_replace"))
_COPIES = frozenset(("copy.copy", "copy.deepcopy", "dataclasses.replace"))
_DISPLAYS = ast.Dict | ast.DictComp | ast.List | ast.ListComp | ast.Set | ast.SetComp
_OF_LISTS = frozenset(("append", "extend", "insert", "remove", "reverse", "sort"))
_COPY_OF_ALL = "jax.tree.map(lambda leaf: leaf, {})"
_DEPTH = 4


class ChangedArgument(NamedTuple):
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


def _changed_by(site: Site, gradient: Gradient, appended: Collection[str], loss: Loss) -> ChangedArgument | None:
    given: dict[str, tuple[ast.stmt, ast.expr]] = {}
    for node in ast.walk(loss.node):
        if isinstance(node, ast.Name) and node.id in appended:
            given.setdefault(node.id, (site.statement, node))
    for use in gradient.uses:
        passed = {place: value for place, value in enumerate(use.call.args) if place not in gradient.argnums}
        named = [(loss.parameters[at], value) for at, value in passed.items() if at < loss.num_positional]
        named += [(each.arg, each.value) for each in use.call.keywords if each.arg is not None]
        given |= {name: (use.statement, value) for name, value in named}
    inside = {*ast.walk(loss.node), *(node for call in gradient.calls for node in ast.walk(call))}
    changes = {change.name: change for change in reversed([*_ArgumentChanges(site, loss, given).found()])}
    for name, (statement, value) in given.items():
        change = changes.get(name)
        read = _read_later(site.project, site.facts, statement, value, inside, _DEPTH) if change is not None else None
        if change is not None and read is not None:
            return change._replace(read_on=read or None)
    return None


def _function(site: Site, value: Value) -> Loss | None:
    """The function that a value is, wraps or binds arguments of; for a method of an unknown object, any of its name."""
    loss = find_function(site, value, in_any_call=True)
    if loss is not None:
        return loss
    found = values_of(site.project).may(value, _definition, by_name=True, also=_given_first).answers
    return next((Loss(module.facts, node, num_bound=len(path)) for module, node, path in found), None)


def _definition(value: Value) -> tuple[ModuleUses, Definition, Path] | None:
    """A function, and by `BOUND` whether it was read of an object."""
    is_named = [step.kind for step in value.path] in ([], [By.BOUND])
    return (value.module, value.head, value.path) if is_named and isinstance(value.head, Definition) else None


def _given_first(value: Value) -> list[Value]:
    """What a function of a library is given first."""
    is_call = isinstance(value.head, str) and [step.kind for step in value.path] == [By.CALL]
    first = value.path[0].what.first() if is_call else None
    return [first] if first is not None else []


class _ArgumentChanges:
    """Where a loss, or a function that it calls, changes parameters of some names, or what it closes over by them."""

    def __init__(self, site: Site, loss: Loss, names: Collection[str]) -> None:
        self._flow, self._loss, self._names = values_of(site.project), loss, names
        self._module = self._flow.uses_of(loss.facts)
        # The objects of which methods are called, by the classes that these may be of.
        self._objects: dict[ast.AST, list[Value]] = {}

    def found(self) -> Iterator[ChangedArgument]:
        """The changes in the loss in order, then those in what it calls."""
        queue: list[tuple[ModuleUses, ast.AST]] = [(self._module, self._loss.node)]
        seen: set[ast.AST] = {self._loss.node}
        for module, function in queue:
            nodes = [each for each in ast.walk(function) if isinstance(each, ast.expr | ast.stmt)]
            dropped = {each.value for each in nodes if isinstance(each, ast.Expr)}
            dropped |= {each.body for each in nodes if isinstance(each, ast.Lambda)}
            for each in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
                changed = _changed_by_node(module.facts, each, each in dropped)
                for name, is_whole in self._arguments(module, changed):
                    copy = _copy_for(each) if is_whole else _COPY_OF_ALL
                    yield ChangedArgument(name, module.facts.path, each.lineno, copy.format(name), None)
                for found in self._called(module, each) if isinstance(each, ast.Call) else ():
                    if found[1] not in seen:
                        seen.add(found[1])
                        queue.append(found)

    def _called(self, module: ModuleUses, call: ast.Call) -> Iterator[tuple[ModuleUses, ast.AST]]:
        """The functions that a call may run with one of the arguments, or a part of it."""
        owners = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        given = (*owners, *call.args, *(keyword.value for keyword in call.keywords))
        if not any(self._arguments(module, node) for node in given):
            return
        for home, node, path in self._flow.may(
            Value(module, call.func), _definition, by_name=True, also=_given_first
        ).answers:
            holder = home.parents.get(node)
            if path and holder is not None:
                self._objects.setdefault(holder, []).extend(Value(module, owner) for owner in owners)
            yield home, node

    def _arguments(self, module: ModuleUses, node: ast.expr | None) -> list[tuple[str, bool]]:
        """The names of which an expression may give the value or a part of it, each with whether it is all of it."""
        if node is None:
            return []
        found = self._flow.may(Value(module, node), self._argument, also=self._of_object).answers
        return [each for each in found if each[0]]

    def _argument(self, value: Value) -> tuple[str, bool] | None:
        """The name that a value is a part of, and whether it is all of it; "" for what is made anew."""
        head, path, outer = value.head, value.path, self._loss.scope.parent
        if (head in _COPIES and len(path) == 1) or (head in MAKE_TREES and path):
            return "", True
        name = ""
        if isinstance(head, ast.arg) and head in self._module.parents:
            function = self._module.parents[self._module.parents[head]]
            name = head.arg if function is self._loss.node else ""
        elif isinstance(head, ast.Name) and value.module is self._module and outer is not None:
            owner = self._module.scope_of(head).owner(head.id)
            name = head.id if owner is not None and owner is outer.owner(head.id) else ""
        if name not in self._names:
            return None
        return (name, not path) if _is_part(path) else ("", True)

    def _of_object(self, value: Value) -> list[Value]:
        held = self._objects.get(value.head.definition, []) if isinstance(value.head, Own) else []
        return [each.done(*value.path) for each in held]


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


def _names(nodes: Iterable[ast.AST], kind: type[ast.expr_context] = ast.expr_context) -> set[str]:
    names = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in names if isinstance(each.ctx, kind)}


def _changed_by_node(facts: Facts, node: ast.AST, is_dropped: bool) -> ast.expr | None:
    """The expression whose value a node changes in place."""
    match node:
        case (
            ast.Subscript(ctx=ast.Store() | ast.Del(), value=value)
            | ast.Attribute(ctx=ast.Store() | ast.Del(), value=value)
        ):
            return value
        case ast.AugAssign(target=ast.Name() as target, value=value) if isinstance(value, _DISPLAYS):
            # Of an array it makes a new one.
            return target
        case ast.Call(func=ast.Attribute(value=value, attr=method) as function, args=arguments):
            scope = facts.names.read_in.get(value)
            name = facts.names.resolve(function, scope) if scope is not None else None
            owner = facts.names.resolve(value, scope) if scope is not None else None
            is_changing = method in _CHANGING or (method in _CHANGING_WITHOUT_RESULT and is_dropped)
            if name in _CHANGING_FUNCTIONS or (owner in _COLLECTIONS and is_changing):
                return arguments[0] if arguments else None
            return value if is_changing else None
        case ast.Call(func=ast.Name() as function, args=[first, *_]):
            scope = facts.names.read_in.get(function)
            return first if scope is not None and facts.names.resolve(function, scope) in _CHANGING_FUNCTIONS else None
        case _:
            return None


def _read_later(
    project: Project, facts: Facts, statement: ast.stmt, value: ast.expr, inside: Collection[ast.AST], depth: int
) -> int | None:
    """The line that reads an argument's container after a statement, 0 if it is not in sight; None if nothing does."""
    flow, scope = values_of(project), facts.names.scopes[statement]
    module = flow.uses_of(facts)
    origins = _origins(flow, Value(module, value))
    names = {each.id for each in origins if isinstance(each, ast.Name)}
    if not names:
        # It is made for the call.
        return None
    owners = {owner for name in names if (owner := scope.owner(name)) is not None}
    function = next(iter(owners)).node if len(owners) == 1 else None
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return 0

    def may_hold(node: ast.expr) -> bool:
        return any(origins & _origins(flow, Value(module, node, path)) for path in ((), (ELEMENT,), (ANY_ITEM,)))

    first, beside = _end_or_loop(facts, statement, names), set(ast.walk(statement))
    # What an object keeps, code around may read.
    is_method = isinstance(module.parents[function], ast.ClassDef)
    reads = [0] if is_method and not origins.isdisjoint([*function.args.posonlyargs, *function.args.args][:1]) else []
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in inside:
            is_later = node.lineno > first or node in beside
            if (is_later or module.scope_of(node).function is not scope.function) and may_hold(node):
                reads.append(node.lineno)
        elif isinstance(node, ast.Assign) and node not in inside:
            is_kept = any(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets)
            reads += [0] if is_kept and may_hold(node.value) else []
    if reads:
        return min(reads)
    if depth == 0 or _is_compiled(facts, function):
        return None
    for call in flow.calls_of(module, function)[0]:
        for parameter in (each for each in all_arguments(function.args) if each in origins):
            for passed in of_parameter(module, function, parameter, call, None):
                given = passed.expression if isinstance(passed, Value) else None
                # A default is not of the call.
                own = {*ast.walk(call.node)} if call.node is not None else set()
                if isinstance(passed, Value) and given is not None and call.node is not None and given in own:
                    home = passed.module
                    around = home.statement_of(call.node)
                    if _read_later(project, home.facts, around, given, own, depth - 1) is not None:
                        return 0
    return None


def _origins(flow: ValueFlow, value: Value) -> set[ast.AST]:
    """What a value is, or is a part of, on the way back: names, parameters, and where it is made."""
    came: dict[Value, Value] = {}
    # What is computed is an array, and no container of it.
    for _ in flow.walk(value, lambda each: True if isinstance(each.head, ast.BinOp) else None, came=came):
        pass
    return {each.head for each in came if isinstance(each.head, ast.AST) and _is_part(each.path)}


def _is_part(path: Path) -> bool:
    """Whether what is done to a value gives it or a part of it, and no copy or something else."""
    calls = [before.what for before, step in pairwise((ELEMENT, *path)) if step.kind is By.CALL]
    is_copied = bool(calls) and path[-1].kind is By.CALL and calls[-1] in _COPY
    return _GIVE_PARTS.union(_COPY).issuperset(calls) and not is_copied


def _is_compiled(facts: Facts, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator compiles a function, or a call such as `step = jax.jit(step)`: it has new containers then."""
    scope = facts.names.scopes[function]
    calls = (call for each in facts.names.scopes for call in facts.names.calls.get(each, ()) if call.args)
    return any(is_jit_decorator(facts.names, each, scope) for each in function.decorator_list) or any(
        facts.names.resolve(call.func, scope) in JIT_KINDS and dotted_name(call.args[0]) == function.name
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
