"""What of a running function outlasts it.

Lists, objects and names that a function makes end with it. What it closes over, what its module has and what it is
given by code that goes on lasts longer, by whatever name it is known inside.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mmrewrite.analysis.running_functions import Definition, Outlasting, RunningFunction, positional_names, results_of
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.source.names import Binding, Scope, dotted_name

# `list.append(seen, x)` is a call of the method.
COLLECTION_TYPES = frozenset(
    f"{module}.{name}"
    for module, names in (
        ("builtins", ("dict", "list", "object", "set", "super")),
        ("collections", ("Counter", "OrderedDict", "defaultdict", "deque")),
    )
    for name in names
)
_COLLECTIONS = frozenset((*COLLECTION_TYPES, "queue.Queue", "queue.SimpleQueue", "types.SimpleNamespace"))
# They give a part of what they are given, or what it is kept in.
_PARTS_OF = frozenset(
    (
        "builtins.enumerate", "builtins.filter", "builtins.getattr", "builtins.iter", "builtins.next",
        "builtins.reversed", "builtins.type", "builtins.vars", "builtins.zip", "contextlib.closing",
        "contextlib.nullcontext",
    )
)  # fmt: skip
_METHODS_FOR_PARTS = frozenset(("__getitem__", "get", "items", "pop", "popleft", "setdefault", "values"))
# Names of parts become no longer where a function calls itself with a part of what it was given.
_MOST_PARTS = 3

# Stands for any object that a function may be given. Its parts are not told apart either: the text grows no further.
ANY_OBJECT = Outlasting("." * _MOST_PARTS)

# The functions of the project that a call runs, as they run.
Called = Callable[[ast.Call, RunningFunction], Iterable[tuple[Definition, RunningFunction]]]


class Origins:
    """Finds what expressions are parts of, through the functions that `called` sees in a call."""

    def __init__(self, project: Project, called: Called) -> None:
        self._project = project
        self._called = called
        self._origins: dict[tuple[ast.expr, RunningFunction], Outlasting | None] = {}

    def of(self, node: ast.expr, frame: RunningFunction) -> Outlasting | None:
        """What an expression is, or is a part of, that lasts longer; None if it ends with the function."""
        key = (node, frame)
        if key not in self._origins:
            # Names may stand for each other in a circle, which adds nothing.
            self._origins[key] = None
            self._origins[key] = self._find(node, frame)
        return self._origins[key]

    def _find(self, node: ast.expr, frame: RunningFunction) -> Outlasting | None:
        match node:
            case ast.Name():
                scope = frame.facts.names.read_in.get(node, frame.scope)
                return self.of_name(node.id, scope, frame, node.lineno)
            case ast.Attribute(attr="at"):
                # `x.at[0].add(1)` of an array makes a new one.
                return None
            case ast.Attribute(value=value, attr=attribute):
                origin = self.of(value, frame)
                if origin is None:
                    return None
                if origin.is_object:
                    is_long = origin.text.count(".") >= _MOST_PARTS
                    text = origin.text if is_long else f"{origin.text}.{attribute}"
                    return replace(origin, text=text, values=())
                found = frame.facts.names.resolve(node, frame.scope) or dotted_name(node)
                return self._of_module(found, origin, frame.facts)
            case ast.Subscript(value=value) | ast.Starred(value=value):
                origin = self.of(value, frame)
                return origin if origin is None else replace(origin, values=())
            case ast.NamedExpr(value=value):
                return self.of(value, frame)
            case ast.IfExp(body=one, orelse=other):
                return self.of(one, frame) or self.of(other, frame)
            case ast.BoolOp(values=values):
                return next(filter(None, (self.of(each, frame) for each in values)), None)
            case ast.Call():
                return self._of_call(node, frame)
            case _:
                return None

    def _of_module(self, found: str | None, origin: Outlasting, near: Facts) -> Outlasting:
        definition = self._project.definition(found, near) if found is not None else None
        if definition is None:
            return origin
        facts, binding = definition
        values = ((facts, binding.value),) if binding.value is not None else ()
        return Outlasting(binding.name, binding.kind != "import", values, facts.names.scope)

    def _of_call(self, call: ast.Call, frame: RunningFunction) -> Outlasting | None:
        name = frame.facts.names.resolve(call.func, frame.scope)
        if name == "builtins.globals":
            return Outlasting("globals()")
        if name == "builtins.super":
            scope = frame.scope.function
            first = positional_names(scope.node)[:1] if isinstance(scope.node, ast.FunctionDef) else []
            return self.of_name(first[0], scope, frame) if first else None
        if name in _PARTS_OF:
            return next(filter(None, (self.of(each, frame) for each in call.args)), None)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS_FOR_PARTS:
            origin = self.of(call.func.value, frame)
            return None if origin is None or not origin.is_object else replace(origin, values=())
        for node, inner in self._called(call, frame):
            for result in results_of(node):
                origin = self.of(result, inner)
                if origin is not None:
                    return origin
        return None

    def of_name(self, name: str, scope: Scope, frame: RunningFunction, line: int | None = None) -> Outlasting | None:
        """The same of a name that code in a scope reads on a line."""
        owner = scope.owner(name)
        if owner is None:
            resolved = frame.facts.names.resolve_dotted(name, scope) or ""
            definition = self._project.definition(resolved, frame.facts)
            return self._of_module(resolved, Outlasting(name), frame.facts) if definition is not None else None
        bindings = owner.bindings[name]
        if not frame.is_own(owner) and (owner, name) in frame.given:
            return frame.given[owner, name]
        if frame.is_own(owner) and not any(each.kind == "import" for each in bindings):
            reaching = _reaching(bindings, owner, line)
            found = (self._of_binding(each, owner, frame) for each in reaching)
            return next(filter(None, found), None)
        for binding in bindings:
            if binding.kind == "import":
                if frame.facts.names.resolve_dotted(name, scope) is None and binding.target is None:
                    return None
                return self._of_module(binding.target, Outlasting(name, is_object=False), frame.facts)
        values = tuple((frame.facts, each.value) for each in bindings if each.value is not None)
        return Outlasting(name, True, values, owner)

    def _of_binding(self, binding: Binding, owner: Scope, frame: RunningFunction) -> Outlasting | None:
        """What a local name stands for."""
        if binding.kind == "parameter":
            return frame.given.get((owner, binding.name))
        if binding.kind in ("function", "class"):
            return None
        if binding.value is not None:
            return self.of(binding.value, frame)
        if owner.kind == "comprehension":
            sources = [generator.iter for generator in getattr(owner.node, "generators", ())]
        elif isinstance(binding.statement, ast.For | ast.AsyncFor):
            sources = [binding.statement.iter]
        elif isinstance(binding.statement, ast.Assign):
            sources = [binding.statement.value]
        elif isinstance(binding.statement, ast.Match):
            sources = [binding.statement.subject]
        elif isinstance(binding.statement, ast.With | ast.AsyncWith):
            sources = _entered(binding)
        else:
            sources = []
        return next(filter(None, (self.of(each, frame) for each in sources)), None)


def is_collection(facts: Facts, value: ast.expr) -> bool:
    """Whether an expression is seen to make a list, a dictionary, a set or the like."""
    displays = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    return isinstance(value, displays) or is_made_by(facts, value, _COLLECTIONS)


def is_made_by(facts: Facts, value: ast.expr, makers: frozenset[str]) -> bool:
    """Whether an expression is a call of one of some functions."""
    if not isinstance(value, ast.Call):
        return False
    name = next((node for node in ast.walk(value.func) if isinstance(node, ast.Name)), None)
    scope = facts.names.read_in.get(name, facts.names.scope) if name is not None else facts.names.scope
    return facts.names.resolve(value.func, scope) in makers


def _entered(binding: Binding) -> list[ast.expr]:
    """What a `with` statement enters to bind a name."""
    items = binding.statement.items if isinstance(binding.statement, ast.With | ast.AsyncWith) else []
    return [
        item.context_expr
        for item in items
        if item.optional_vars is not None and any(node is binding.node for node in ast.walk(item.optional_vars))
    ]


def _reaching(bindings: Sequence[Binding], owner: Scope, line: int | None) -> Sequence[Binding]:
    """The bindings of a local name that may hold on a line: not those above one that is always run before it."""
    body = getattr(owner.node, "body", ())
    above = [
        each
        for each in bindings
        if each.statement is not None
        and isinstance(body, list)
        and each.statement in body
        and line is not None
        and (each.statement.end_lineno or each.statement.lineno) < line
        and isinstance(each.statement, ast.Assign | ast.AnnAssign)
    ]
    if not above:
        return bindings
    last = max(above, key=lambda each: each.statement.lineno if each.statement is not None else 0)
    begin = last.statement.lineno if last.statement is not None else 0
    return [each for each in bindings if each.statement is not None and each.statement.lineno >= begin]
