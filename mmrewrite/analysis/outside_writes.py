"""What a loss changes outside of itself while it is traced, in functions that it calls as well.

One device traces a loss once, microbatches trace it for each of their programs: what it leaves in a list, an object or
a name of the code around it is then there once more, or is of a microbatch. What it makes by itself is its own, and so
is an argument that `jax.grad` rebuilds, or that nothing reads below.

A dictionary that keeps what a function has computed from its keys alone has the same in it after each trace.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import PurePath

from mmrewrite.analysis.kept_values import is_kept_by_key, is_made_once, statement_of
from mmrewrite.analysis.later_reads import CallsRun, LaterRead, LaterReads, roots_of
from mmrewrite.analysis.origins import ANY_OBJECT, COLLECTION_TYPES, is_collection, is_made_by
from mmrewrite.analysis.running_functions import (
    HOST_CALLS,
    Callee,
    Definition,
    Outlasting,
    RunningFunction,
    defaults_of,
    positional_names,
    run_nodes,
)
from mmrewrite.analysis.steps.gradients import Gradient, Use
from mmrewrite.analysis.traced_functions import PARTIAL, Told, TracedFunctions, items_of
from mmrewrite.codemod.site import Site
from mmrewrite.project.facts import Facts
from mmrewrite.source.names import Scope

# Methods of lists, deques, dictionaries and sets that change these, whatever becomes of their result.
_CHANGING = frozenset(
    (
        "__delattr__", "__delitem__", "__iadd__", "__ior__", "__setattr__", "__setitem__", "append", "appendleft",
        "difference_update", "discard", "extend", "extendleft", "intersection_update", "pop", "popitem", "popleft",
        "put_nowait", "setdefault", "symmetric_difference_update",
    )
)  # fmt: skip
# Other objects have methods of these names that give a new value: `tx.update(grads, state)`, `x.sort()` of an array.
_CHANGING_WITHOUT_RESULT = frozenset(
    ("add", "clear", "fill", "insert", "put", "remove", "resize", "reverse", "rotate", "sort", "subtract", "update")
)
# Functions that change an argument, and which; `out=` of NumPy's is another.
_CHANGING_FUNCTIONS = {
    **dict.fromkeys(("builtins.delattr", "builtins.setattr"), 0),
    **{f"operator.{name}": 0 for name in ("delitem", "iadd", "iconcat", "ior", "setitem")},
    **{f"heapq.{name}": 0 for name in ("heapify", "heappop", "heappush", "heappushpop", "heapreplace")},
    **{f"bisect.{name}": 0 for name in ("insort", "insort_left", "insort_right")},
    **{f"numpy.{name}": 0 for name in ("copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask")},
    **{f"numpy.{name}.at": 0 for name in ("add", "divide", "maximum", "minimum", "multiply", "subtract")},
    "random.shuffle": 0,
}
# The state in them is JAX's: writes are equations, and not done when they are traced.
_REFS = frozenset(
    ("jax.array_ref", "jax.experimental.array_ref", "jax.experimental.mutable_array", "jax.new_ref", "jax.ref.new_ref")
)

_DOTTED = ast.Name | ast.Attribute


@dataclass(frozen=True)
class OutsideWrite:
    """The line on which a loss, or a function that it calls, changes `name` of the code around the loss.

    `read_on` is the line that sees it, for an argument of the loss.
    """

    name: str
    path: str
    line: int
    read_on: int | None = None

    def described(self, near: Facts) -> str:
        """What is changed where, in words for a message about a statement of `near`."""
        where = f"line {self.line}" + (f" of {PurePath(self.path).name}" if self.path != near.path else "")
        if self.read_on is not None:
            return f"changes its argument `{self.name}` on {where}, which line {self.read_on} reads"
        return f"changes `{self.name}` of the code around it on {where}"


def writes_outside(site: Site, gradient: Gradient, appended: Sequence[str]) -> OutsideWrite | None:
    """The first place at which the function that is differentiated changes something outside of itself.

    Args:
        site: The site of the hint.
        gradient: The gradient and its calls.
        appended: Names that the loss closes over and that become parameters of it.
    """
    functions = TracedFunctions(site.project, site.scope)
    given: dict[tuple[Scope, str], Outlasting | None] = {}
    for name in appended:
        owner = site.scope.owner(name)
        if owner is not None:
            found = _read_later(site, gradient, owner, name)
            line = found.line if found is not None and found.facts is site.facts else None
            given[owner, name] = None if found is None else Outlasting(name, read_on=line)
    frame = functions.running(site.facts, site.scope, given)
    callees = (
        replace(callee, given=(*_arguments(site, gradient, callee, functions), *callee.given))
        for callee in functions.callees(gradient.function, frame)
    )
    return _LossSearch(functions).first(callees, frame)


def writes_in_calls(site: Site, loop: ast.For) -> OutsideWrite | None:
    """The first place at which a function that a loop calls changes something that outlives an iteration."""
    functions = TracedFunctions(site.project, site.scope)
    nodes = list(run_nodes(site.facts, loop.body, site.scope))
    own = {(site.scope, name): None for node in (*nodes, *ast.walk(loop.target)) for name in _bound_by(node)}
    frame = functions.running(site.facts, site.scope, own)
    return _LossSearch(functions).first(functions.mentioned(nodes, frame, set()), frame)


def writes_of(site: Site, function: ast.expr) -> OutsideWrite | None:
    """The first place at which a function that an expression of the site stands for changes something outside."""
    functions = TracedFunctions(site.project, site.scope)
    frame = functions.running(site.facts, site.scope)
    return _LossSearch(functions).first(functions.callees(function, frame), frame)


def _arguments(
    site: Site, gradient: Gradient, callee: Callee, functions: TracedFunctions
) -> Iterator[tuple[str, Outlasting | None]]:
    """The parameters of a loss that are objects of the code around it."""
    names = positional_names(callee.node)[callee.positional :]
    is_rebuilt = (site.resolve(gradient.wrapped_call.func) or "").startswith(("flax.", "equinox."))
    for use in gradient.uses if not is_rebuilt else ():
        plain = takewhile(lambda each: not isinstance(each, ast.Starred), use.call.args)
        by_position = [(index, *pair) for index, pair in enumerate(zip(names, plain, strict=False))]
        passed = [(name, argument) for index, name, argument in by_position if index not in gradient.argnums]
        passed += [(keyword.arg, keyword.value) for keyword in use.call.keywords if keyword.arg is not None]
        for name, argument in passed:
            origin = _lasting(site, gradient, use, name, argument, functions)
            if origin is not None:
                yield name, origin
    count = max((len(use.call.args) for use in gradient.uses), default=len(names))
    keywords = {keyword.arg for use in gradient.uses for keyword in use.call.keywords}
    around = functions.running(callee.facts, callee.facts.names.inner[callee.node].parent or callee.facts.names.scope)
    for name, default in defaults_of(callee.node):
        is_passed = name in keywords or (name in names and names.index(name) < count)
        if not is_passed and not isinstance(default, ast.Constant):
            # A default is made once, with the function.
            yield name, functions.origins.of(default, around) or Outlasting(name, values=((callee.facts, default),))


def _lasting(
    site: Site, gradient: Gradient, use: Use, name: str, argument: ast.expr, functions: TracedFunctions
) -> Outlasting | None:
    """What an argument of the gradient, for the parameter `name` of the loss, is a part of that is read below."""
    scope = site.facts.scope_of(use.statement)
    roots = [root for root, _ in roots_of(argument)]
    owners = [scope.owner(root) for root in roots]
    whole = argument
    while isinstance(whole, ast.Subscript):
        whole = whole.value
    is_plain = not isinstance(whole, ast.Attribute | ast.Call)
    bindings = [each for root, owner in zip(roots, owners, strict=True) if owner for each in owner.bindings[root]]
    if not is_plain or any(each.kind == "import" for each in bindings):
        # Code that is not in sight may read what an object or another module has.
        return functions.origins.of(argument, functions.running(site.facts, scope))
    for root, owner in zip(roots, owners, strict=True):
        found = _read_later(site, gradient, owner, root) if owner is not None else None
        if found is not None:
            line = found.line if found.facts is site.facts else None
            return Outlasting(name, values=((site.facts, argument),), read_on=line)
    return None


def _read_later(site: Site, gradient: Gradient, owner: Scope, name: str) -> LaterRead | None:
    """The first code that reads a name once the gradient was computed, outside of the loss."""
    statements = [use.statement for use in gradient.uses] or [site.statement]
    named = [node for node in ast.walk(gradient.function) if isinstance(node, ast.Name)]
    bindings = [site.facts.names.binding(node.id, site.scope) for node in named]
    loss = [each.node for each in bindings if each is not None and each.kind == "function"]
    calls = [*gradient.calls, gradient.wrapped_call]
    return LaterReads(site.project).of(name, owner, CallsRun(site.facts, statements, calls, loss))


@dataclass(frozen=True)
class _Asked:
    """What a function writes if the parameters that are `given` are objects that outlast it, and no others are."""

    node: Definition
    given: frozenset[str]


@dataclass(frozen=True)
class _Method:
    """A method of the object that an expression stands for, in a function that runs."""

    holder: ast.expr
    name: str
    frame: RunningFunction


class _LossSearch:
    """Looks for writes in a loss and in the functions that it calls."""

    def __init__(self, functions: TracedFunctions) -> None:
        self._functions = functions
        self._methods: dict[object, Sequence[_Method]] = {}
        self._writes: dict[_Asked, bool] = functions.project.once("functions that write outside", dict)

    def first(self, callees: Iterable[Callee], frame: RunningFunction) -> OutsideWrite | None:
        """The first write of functions that run in `frame`, or of those that they call."""
        queue = deque((callee, frame) for callee in callees)
        seen: set[RunningFunction] = set()
        told: Told = set()
        while queue:
            callee, around = queue.popleft()
            inner = self._functions.entered(callee, around)
            if inner in seen:
                continue
            seen.add(inner)
            asked = self._asked(callee, inner)
            if asked is not None and self._writes_nothing(callee, asked):
                continue
            written = self._written_in(callee, inner)
            if written is not None:
                return written
            nodes = self._functions.body(callee)
            queue.extend((other, inner) for other in self._functions.mentioned(nodes, inner, told))
        return None

    def _written_in(self, callee: Callee, frame: RunningFunction) -> OutsideWrite | None:
        """The first write of a function itself."""
        nodes = self._functions.body(callee)
        dropped = set(_without_use(callee.node, nodes))
        for node in nodes:
            written = self._written(node, frame, dropped)
            if written is not None:
                line = written.line or getattr(node, "lineno", None) or callee.node.lineno
                return OutsideWrite(written.text, callee.facts.path, line, written.read_on)
        return None

    def _writes_nothing(self, callee: Callee, asked: _Asked) -> bool:
        """Whether a function, and what it calls, writes nothing outside, whatever the objects are that it is given.

        The answer is the same for all losses and is looked for once: the model of a loss may be of any class.
        """
        if asked not in self._writes:
            project = self._functions.project
            functions = project.once("functions that any code calls", lambda: TracedFunctions(project, None))
            _LossSearch(functions)._judge(callee, asked)
        return not self._writes[asked]

    def _judge(self, root: Callee, asked: _Asked) -> None:
        """Finds out whether a function writes anything outside, itself or in what it calls.

        Where nothing does, none of those that were met does. The functions on the way to a write do, or may.
        """
        start = Callee(root.facts, root.node, tuple((name, ANY_OBJECT) for name in sorted(asked.given)))
        outside = self._functions.running(root.facts, root.facts.names.scope)
        queue: deque[tuple[Callee, RunningFunction, tuple[_Asked, ...]]] = deque([(start, outside, ())])
        seen: set[RunningFunction] = set()
        met: set[_Asked] = set()
        told: Told = set()
        while queue:
            callee, around, callers = queue.popleft()
            inner = self._functions.entered(callee, around)
            if inner in seen:
                continue
            seen.add(inner)
            question = self._asked(callee, inner)
            known = self._writes.get(question) if question is not None else None
            if known is False:
                continue
            if question is not None:
                callers = (*callers, question)
                if all(origin in (None, ANY_OBJECT) for origin in inner.given.values()):
                    # Of another object more is known here than holds for all.
                    met.add(question)
            if known or self._written_in(callee, inner) is not None:
                self._writes.update(dict.fromkeys((asked, *callers), True))
                return
            nodes = self._functions.body(callee)
            queue.extend((other, inner, callers) for other in self._functions.mentioned(nodes, inner, told))
        self._writes.update(dict.fromkeys((asked, *met), False))

    def _asked(self, callee: Callee, frame: RunningFunction) -> _Asked | None:
        """The question what a function writes, if that depends on nothing but which objects outlast it."""
        scope: Scope | None = frame.scope.parent
        while scope is not None and scope.kind != "function":
            scope = scope.parent
        if scope is not None or frame.active != {frame.scope} or frame.holders:
            return None
        for (owner, _), origin in frame.given.items():
            if owner is not frame.scope or (origin is not None and not self._is_any_object(origin)):
                return None
        return _Asked(callee.node, frozenset(name for (_, name), origin in frame.given.items() if origin is not None))

    def _is_any_object(self, origin: Outlasting) -> bool:
        """Whether no more is known of an object than that it lasts longer."""
        return origin.is_object and not _is_collection(origin)

    def _written(self, node: ast.AST, frame: RunningFunction, dropped: set[ast.AST]) -> Outlasting | None:
        """What a node changes outside of the loss."""
        match node:
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                return self._assigned(node, names, frame)
            case ast.Subscript(ctx=ast.Store() | ast.Del(), value=value):
                origin = self._target(value, frame)
                return None if origin is None or is_kept_by_key(node, frame.facts, frame.scope) else origin
            case ast.Attribute(ctx=ast.Store() | ast.Del(), value=value, attr=attribute):
                origin = self._target(value, frame)
                if origin is None or is_made_once(node, frame.facts, frame.scope):
                    return None
                return replace(origin, text=f"{origin.text}.{attribute}")
            case ast.AugAssign(target=ast.Name() as name):
                # Of an array it makes a new one, of a list it is `extend`.
                origin = self._functions.origins.of_name(name.id, frame.scope, frame)
                is_list = origin is not None and _is_collection(origin)
                return origin if is_list else None
            case ast.Call():
                return self._written_by_call(node, frame, dropped)
            case _:
                return None

    def _target(self, value: ast.expr, frame: RunningFunction) -> Outlasting | None:
        """The origin of what a store changes, but for what JAX or its libraries keep."""
        origin = self._functions.origins.of(value, frame)
        if origin is None or any(is_made_by(*each, _REFS) for each in origin.values):
            return None
        return origin

    def _assigned(
        self, node: ast.Global | ast.Nonlocal, names: Sequence[str], frame: RunningFunction
    ) -> Outlasting | None:
        scope = frame.scope
        for name in names:
            owner = frame.facts.names.scope if isinstance(node, ast.Global) else _nonlocal_owner(scope, name)
            if frame.is_own(owner):
                continue
            body: Sequence[ast.AST] = getattr(scope.node, "body", ())
            stores = [each for each in run_nodes(frame.facts, body, scope) if name in _bound_by(each)]
            again = [each for each in stores if not is_made_once(each, frame.facts, frame.scope, name)]
            if again:
                return Outlasting(name, line=getattr(again[0], "lineno", None))
        return None

    def _written_by_call(self, call: ast.Call, frame: RunningFunction, dropped: set[ast.AST]) -> Outlasting | None:
        name = frame.facts.names.resolve(call.func, frame.scope) or ""
        place = _CHANGING_FUNCTIONS.get(name)
        if place is not None and place < len(call.args):
            return self._functions.origins.of(call.args[place], frame)
        if name.startswith("numpy."):
            out = next((keyword.value for keyword in call.keywords if keyword.arg == "out"), None)
            return self._functions.origins.of(out, frame) if out is not None else None
        if name == "builtins.next" and call.args:
            return self._advanced(call.args[0], frame)
        handed = [*call.args, *(keyword.value for keyword in call.keywords)]
        for argument in handed if name not in HOST_CALLS else ():
            # `map(seen.append, parts)`
            for method in self._bound(argument, frame):
                origin = None if self._is_seen(method) else self._changed(method, is_dropped=False)
                if origin is not None:
                    return origin
        for method in self._bound(call.func, frame):
            if method.frame.facts.names.resolve(method.holder, method.frame.scope) in COLLECTION_TYPES and call.args:
                # `list.append(seen, 1)`
                method = _Method(call.args[0], method.name, frame)
            elif self._is_seen(method):
                continue
            origin = self._changed(method, is_dropped=call in dropped)
            if origin is not None and not (method.name == "pop" and _is_of_frozen(call, origin, frame)):
                return origin
        return None

    def _bound(self, function: ast.expr, frame: RunningFunction) -> Sequence[_Method]:
        """The same as `_bound_methods`, once for all that read a name: functions of a thousand lines do that often."""
        key: object = (function, frame)
        if isinstance(function, ast.Name):
            owner = frame.facts.names.read_in.get(function, frame.scope).owner(function.id)
            key = key if owner is None else (owner, function.id, frame)
        if key not in self._methods:
            self._methods[key] = tuple(self._bound_methods(function, frame, set()))
        return self._methods[key]

    def _bound_methods(self, function: ast.expr, frame: RunningFunction, seen: set[ast.expr]) -> Iterator[_Method]:
        """The methods, with their objects, that a function may be: `seen.append`, or a name that stands for it."""
        if function in seen:
            # Names may stand for each other in a circle.
            return
        seen.add(function)
        others: Sequence[tuple[ast.expr, RunningFunction]] = self._defined_elsewhere(function, frame)
        match function:
            case ast.Attribute(value=holder, attr=name):
                yield _Method(holder, name, frame)
            case ast.Name(id=name):
                owner = frame.facts.names.read_in.get(function, frame.scope).owner(name)
                bindings = owner.bindings[name] if owner is not None else ()
                others = [*others, *((each.value, frame) for each in bindings if each.value is not None)]
            case ast.IfExp(body=one, orelse=other):
                others = [(one, frame), (other, frame)]
            case ast.BoolOp(values=values):
                others = [(each, frame) for each in values]
            case ast.NamedExpr(value=value):
                others = [(value, frame)]
            case ast.Subscript(value=value):
                others = [(each, frame) for each in items_of(value, frame)]
            case ast.Call(args=arguments):
                called = frame.facts.names.resolve(function.func, frame.scope)
                match arguments:
                    case [holder, ast.Constant(value=str(name)), *_] if called == "builtins.getattr":
                        yield _Method(holder, name, frame)
                    case [first, *_] if called == PARTIAL:
                        others = [(first, frame)]
                    case _:
                        results = self._functions.called(function, frame)
                        others = [
                            (each, inner) for node, inner in results for each in self._functions.origins.results(node)
                        ]
            case _:
                pass
        for other, where in others:
            yield from self._bound_methods(other, where, seen)

    def _defined_elsewhere(
        self, function: ast.expr, frame: RunningFunction
    ) -> Sequence[tuple[ast.expr, RunningFunction]]:
        """What a name of another module was assigned there."""
        name = frame.facts.names.resolve(function, frame.scope) if isinstance(function, _DOTTED) else None
        found = self._functions.project.definition(name, frame.facts) if name is not None else None
        if found is None:
            return ()
        facts, binding = found
        return [(binding.value, self._functions.running(facts, facts.names.scope))] if binding.value is not None else ()

    def _changed(self, method: _Method, *, is_dropped: bool) -> Outlasting | None:
        """What a method of no class of the project changes, by its name; `is_dropped` if nothing uses its result."""
        if method.name not in _CHANGING and method.name not in _CHANGING_WITHOUT_RESULT:
            return None
        origin = self._functions.origins.of(method.holder, method.frame)
        if origin is None or not origin.is_object:
            return None
        return origin if method.name in _CHANGING or is_dropped or _is_collection(origin) else None

    def _is_seen(self, method: _Method) -> bool:
        """Whether a method is one of a class of the project, which says by itself what it changes."""
        found = self._functions.classes.of(method.holder, method.frame.facts, method.frame.scope)
        return found is not None and any(True for _ in self._functions.method_of(*found, method.name, None))

    def _advanced(self, argument: ast.expr, frame: RunningFunction) -> Outlasting | None:
        """An iterator of the code around, where other code takes from it as well."""
        origin = self._functions.origins.of(argument, frame) if isinstance(argument, ast.Name) else None
        if origin == ANY_OBJECT:
            return origin
        if origin is None or origin.owner is None:
            return None
        reads = frame.facts.names.reads_of(origin.text, origin.owner)
        return None if all(frame.is_own(scope) for _, scope in reads) else origin


def _without_use(function: Definition, nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The calls whose result nothing uses."""
    queue: list[ast.AST] = [node.value for node in nodes if isinstance(node, ast.Expr)]
    queue += [node.body for node in nodes if isinstance(node, ast.Lambda)]
    if isinstance(function, ast.Lambda):
        queue.append(function.body)
    for node in queue:
        if isinstance(node, ast.Call):
            yield node
        elif isinstance(node, ast.IfExp):
            queue += [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            queue += node.values
        elif isinstance(node, ast.Tuple | ast.List):
            queue += node.elts
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            queue.append(node.elt)


def _nonlocal_owner(scope: Scope, name: str) -> Scope:
    """The function around whose name a `nonlocal` means."""
    outer = scope.parent
    while outer is not None and outer.parent is not None:
        if outer.kind == "function" and name in outer.bindings and name not in outer.outer:
            return outer
        outer = outer.parent
    return scope


def _bound_by(node: ast.AST) -> tuple[str, ...]:
    """The names that a node binds or deletes, but for those of the nodes in it."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return tuple(each.asname or each.name.partition(".")[0] for each in names)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return (name,)
        case _:
            return ()


def _is_collection(origin: Outlasting) -> bool:
    return any(is_collection(*each) for each in origin.values)


def _is_of_frozen(call: ast.Call, origin: Outlasting, frame: RunningFunction) -> bool:
    """Whether a call of `pop` gives two: `rest, params = variables.pop("params")` of a `FrozenDict` makes a new one."""
    if _is_collection(origin):
        return False
    statement = statement_of(call, frame.scope)
    return (
        isinstance(statement, ast.Assign)
        and statement.value is call
        and all(isinstance(each, ast.Tuple) and len(each.elts) == 2 for each in statement.targets)
    )
