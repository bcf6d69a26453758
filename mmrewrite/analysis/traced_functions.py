"""The functions that run with another one: those that it calls, makes or hands to others, and what they are given."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeGuard

from mmrewrite.analysis.objects.object_classes import FoundClass, ObjectClasses
from mmrewrite.analysis.objects.special_methods import Methods, may_be_called_unseen, operands
from mmrewrite.analysis.origins import Origins, is_collection
from mmrewrite.analysis.running_functions import (
    Callee,
    Definition,
    Holder,
    Outlasting,
    RunningFunction,
    defaults_of,
    positional_names,
    run_nodes,
)
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.source.names import Binding, Scope

# They call the function that they are given, or give one that does.
_CALLING = ("equinox.", "flax.", "functools.", "haiku.", "jax.", "optax.")
PARTIAL = "functools.partial"

# What runs when an object is made.
_MAKING = ("__init__", "__new__", "__post_init__")
_ENTERING = frozenset(("__enter__", "__exit__", "__aenter__", "__aexit__"))
# A function may call itself with what it makes of what it was given.
_MOST_HOLDERS = 3
# With more functions that run, or more ways in which one does, what new objects hold is not followed from one to the
# next: the ways are as many as the paths through a program, and not as its lines.
_MOST_RUNNING = 100
# Expressions that may stand for an object of any class.
_UNSEEN = ast.Attribute | ast.Await | ast.BoolOp | ast.Call | ast.IfExp | ast.Name | ast.NamedExpr | ast.Subscript


@dataclass(frozen=True)
class _Question:
    """Which functions an expression may stand for: see `TracedFunctions.callees`."""

    node: ast.expr
    frame: RunningFunction
    calls: bool
    wrapped: bool


_Answers = dict[_Question, tuple[Callee, ...]]
# The methods, by name, and the objects that a search has been given them for, in the modules that name them.
Told = set[tuple[Facts, str, Outlasting | None]]


class TracedFunctions:
    """Follows a function, which code in a scope calls, through those that it calls.

    Without a scope, any code may call it: whatever is a parameter may be an object.
    """

    def __init__(self, project: Project, scope: Scope | None) -> None:
        self.project = project
        self._around = frozenset(scope.chain()) if scope is not None else None
        self.classes = ObjectClasses(project)
        self.origins = Origins(project, self.classes, self.called)
        self._running: dict[object, RunningFunction] = {}
        self._called: dict[tuple[ast.Call, RunningFunction], Sequence[tuple[Definition, RunningFunction]]] = {}

    def running(
        self,
        facts: Facts,
        scope: Scope,
        given: Mapping[tuple[Scope, str], Outlasting | None] = MappingProxyType({}),
        active: frozenset[Scope] = frozenset(),
        holders: Mapping[tuple[Scope, str], Holder] = MappingProxyType({}),
    ) -> RunningFunction:
        """The function of a scope; the same object for the same arguments."""
        key = (scope, frozenset(given.items()), active, frozenset(holders.items()))
        if key not in self._running:
            self._running[key] = RunningFunction(facts, scope, given, active, holders)
        return self._running[key]

    def entered(self, callee: Callee, frame: RunningFunction) -> RunningFunction:
        """A function that is called in another: what it can see of that one, and its own parameters."""
        scope = callee.facts.names.inner[callee.node]
        around: set[Scope] = set()
        outer: Scope | None = scope
        while outer is not None:
            around.add(outer)
            outer = outer.parent
        given = {key: origin for key, origin in frame.given.items() if key[0] in around}
        given.update(callee.kept)
        given.update({(scope, name): origin for name, origin in callee.given})
        active = (frame.active & around) | {scope} | ({callee.around} if callee.around is not None else set())
        holders = {key: holder for key, holder in frame.holders.items() if key[0] in around}
        holders.update({(scope, name): holder for name, holder in callee.holders})
        return self.running(callee.facts, scope, given, frozenset(active), holders)

    def called(self, call: ast.Call, frame: RunningFunction) -> Sequence[tuple[Definition, RunningFunction]]:
        """The functions of the project that a call runs, as they run."""
        key = (call, frame)
        if key not in self._called:
            callees = self.callees(call.func, frame, wrapped=False)
            found = tuple((each.node, self.entered(self._with_arguments(each, call, frame), frame)) for each in callees)
            self._called[key] = found
        return self._called[key]

    def body(self, callee: Callee) -> Sequence[ast.AST]:
        """The nodes that run with a function, in order: walked once for all searches that come upon it."""
        body: Sequence[ast.AST] = [callee.node.body] if isinstance(callee.node, ast.Lambda) else callee.node.body
        scope = callee.facts.names.inner[callee.node]
        return self.project.once(("body", callee.node), lambda: tuple(run_nodes(callee.facts, body, scope)))

    def mentioned(self, nodes: Iterable[ast.AST], frame: RunningFunction, told: Told) -> Iterator[Callee]:
        """The functions that some nodes call, hand to others that may, or run by an operator, a loop or the like.

        Methods of objects whose class is not seen are those of many classes: `told`, which grows, has those that one
        search has been given.
        """
        called: set[ast.AST] = set()
        for node in nodes:
            name = frame.facts.names.resolve(node.func, frame.scope) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call):
                called.add(node.func)
                found = (*self.callees(node.func, frame), *self._call_of_new_object(node.func, frame))
                for callee in found:
                    yield self._with_arguments(callee, node, frame)
                if found:
                    # What it does with its arguments is seen there.
                    continue
                if name is None and self._may_be_object(node.func, frame):
                    yield from self._unseen(node.func, "__call__", frame, told)
            for operand, methods in operands(node, name):
                yield from self._special(operand, methods, name, frame, told)
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and node not in called:
                yield from self.callees(node, frame, calls=False)

    def _call_of_new_object(self, function: ast.expr, frame: RunningFunction) -> Iterator[Callee]:
        """What `Scale(2.0)(x)` calls besides what makes the object."""
        made = self.classes.of(function, frame.facts, frame.scope) if isinstance(function, ast.Call) else None
        if made is not None:
            yield from self._methods(*made, "__call__", *self._receiver(function, frame))

    def _special(
        self, operand: ast.expr, methods: Methods, called: str | None, frame: RunningFunction, told: Told
    ) -> Iterator[Callee]:
        """The special methods that run on an operand, of a function that is `called` or of another node."""
        if isinstance(methods, tuple):
            for method in methods:
                if self.classes.defining(frame.facts, method):
                    yield from self._method(operand, method, frame, told)
            return
        for choice in self.classes.choices(operand, frame.facts, frame.scope):
            found = self.classes.of(choice, frame.facts, frame.scope)
            if found is None:
                for method in self.classes.methods(frame.facts):
                    if may_be_called_unseen(method, called):
                        yield from self._unseen(operand, method, frame, told)
            elif not self.classes.is_of_a_library(*found):
                parts = [part for _, owner in self.classes.with_bases(*found) for part in owner.body]
                for method in sorted(filter(methods, {part.name for part in parts if _is_function(part)})):
                    yield from self._methods(*found, method, *self._receiver(operand, frame))

    def callees(
        self, node: ast.expr, frame: RunningFunction, *, calls: bool = True, wrapped: bool = True
    ) -> tuple[Callee, ...]:
        """The functions of the project that an expression may stand for.

        Args:
            node: The expression.
            frame: Where it stands.
            calls: Whether it is called, or only handed on.
            wrapped: Whether functions that other functions are made of count.
        """
        return self._callees(_Question(node, frame, calls, wrapped), {})

    def _callees(self, question: _Question, answers: _Answers) -> tuple[Callee, ...]:
        if question not in answers:
            # Aliases may form a circle, across modules too, which adds nothing.
            answers[question] = ()
            answers[question] = tuple(dict.fromkeys(self._find_callees(question, answers)))
        return answers[question]

    def _find_callees(self, question: _Question, answers: _Answers) -> Iterator[Callee]:
        frame, calls = question.frame, question.calls
        names = frame.facts.names
        match question.node:
            case ast.Lambda() as node:
                yield Callee(frame.facts, node)
            case ast.Name() as node:
                scope = names.read_in.get(node, frame.scope)
                owner = scope.owner(node.id)
                for binding in owner.bindings[node.id] if owner is not None else ():
                    yield from self._bound(binding, owner, question, answers)
                if owner is None:
                    yield from self._defined(names.resolve(node, scope), frame.facts, calls, answers)
            case ast.Attribute(value=value, attr=attribute) as node:
                found = list(self._defined(names.resolve(node, frame.scope), frame.facts, calls, answers))
                yield from found or self._method(value, attribute, frame)
                if attribute == "apply" and calls:
                    # `hk.transform(f).apply`
                    yield from self._transformed(value, frame, answers)
            case ast.Call(func=function, args=[first, *_]) as node if names.resolve(function, frame.scope) == PARTIAL:
                for callee in self._callees(replace(question, node=first), answers):
                    yield self._with_arguments(callee, node, frame, skip=1)
            case ast.Call() as node if calls:
                yield from self._made(node, frame, question.wrapped, answers)
            case ast.IfExp(body=one, orelse=other):
                for each in (one, other):
                    yield from self._callees(replace(question, node=each), answers)
            case ast.BoolOp(values=values):
                for each in values:
                    yield from self._callees(replace(question, node=each), answers)
            case ast.NamedExpr(value=value):
                yield from self._callees(replace(question, node=value), answers)
            case ast.Subscript(value=value):
                # `LOSSES["mean"]`
                for each in items_of(value, frame):
                    yield from self._callees(replace(question, node=each), answers)
            case _:
                return

    def _transformed(self, node: ast.expr, frame: RunningFunction, answers: _Answers) -> Iterator[Callee]:
        node = _value_of(node, frame)
        if isinstance(node, ast.Call) and (frame.facts.names.resolve(node.func, frame.scope) or "").startswith(
            "haiku."
        ):
            yield from self._made(node, frame, wrapped=True, answers=answers)

    def _bound(self, binding: Binding, owner: Scope | None, question: _Question, answers: _Answers) -> Iterator[Callee]:
        frame, calls = question.frame, question.calls
        if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Callee(frame.facts, binding.node)
            if question.wrapped:
                yield from self._decorated(binding.node, frame, answers)
        elif isinstance(binding.node, ast.ClassDef):
            yield from self._made_object(frame.facts, binding.node, calls)
        elif binding.value is not None:
            if calls and not isinstance(binding.value, ast.Lambda | ast.Name | ast.Attribute):
                found = self.classes.of_value(frame.facts, binding.value, owner or frame.scope)
                if found is not None:
                    origin = self.origins.of_name(binding.name, owner or frame.scope, frame)
                    holder = self._holder(question.node, frame) if origin is None else None
                    yield from self._methods(*found, "__call__", origin, holder)
                    return
            yield from self._callees(replace(question, node=binding.value), answers)
        elif binding.target is not None:
            yield from self._defined(frame.facts.names.follow(binding.target), frame.facts, calls, answers)
        elif binding.kind == "parameter" and calls:
            yield from self._method_of_parameter(binding, "__call__", owner, frame)

    def _defined(self, name: str | None, near: Facts, calls: bool, answers: _Answers) -> Iterator[Callee]:
        """The function of a full name: one of a module, or of a class in it."""
        if name is None:
            return
        found = self.project.definition(name, near)
        if found is None and "." in name:
            holder, _, method = name.rpartition(".")
            of_class = self.project.definition(holder, near)
            if of_class is not None and isinstance(of_class[1].node, ast.ClassDef):
                yield from self.method_of(of_class[0], of_class[1].node, method, None, bound=False, answers=answers)
            return
        if found is None:
            return
        facts, binding = found
        if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Callee(facts, binding.node)
            yield from self._decorated(binding.node, self.running(facts, facts.names.scope), answers)
        elif isinstance(binding.node, ast.ClassDef):
            yield from self._made_object(facts, binding.node, calls)
        elif binding.value is not None and facts.names.resolve_dotted(binding.name, facts.names.scope) != name:
            frame = self.running(facts, facts.names.scope)
            yield from self._callees(_Question(binding.value, frame, calls, wrapped=True), answers)

    def _decorated(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: RunningFunction, answers: _Answers
    ) -> Iterator[Callee]:
        """The functions that the decorators of a function, of the project, put in its place."""
        for decorator in node.decorator_list:
            yield from self._made(ast.Call(decorator, [], []), frame, wrapped=False, answers=answers)
            found = self.classes.named(decorator, frame.facts, frame.scope)
            if found is not None:
                yield from self._methods(*found, "__call__", Outlasting(node.name))

    def _made_object(self, facts: Facts, definition: ast.ClassDef, calls: bool) -> Iterator[Callee]:
        """What runs when an object of a class is made, whose `self` is new."""
        if not calls:
            return
        for method in _MAKING if not self.classes.is_of_a_library(facts, definition) else _MAKING[:1]:
            yield from self._methods(facts, definition, method, None, is_exact=True)

    def _made(self, call: ast.Call, frame: RunningFunction, wrapped: bool, answers: _Answers) -> Iterator[Callee]:
        """The functions that the result of a call is, or calls: `jax.checkpoint(f)`, `make_counter()`."""
        name = frame.facts.names.resolve(call.func, frame.scope) or ""
        if wrapped and name.startswith(_CALLING):
            for argument in call.args:
                # Transformations build their arguments anew.
                for callee in self._callees(_Question(argument, frame, calls=False, wrapped=True), answers):
                    yield replace(callee, given=())
            return
        if wrapped and isinstance(call.func, ast.Call):
            # `functools.partial(jax.checkpoint, static_argnums=1)(f)`
            for argument in call.args:
                yield from self._callees(_Question(argument, frame, calls=False, wrapped=True), answers)
        for callee in self._callees(_Question(call.func, frame, calls=True, wrapped=False), answers):
            node = callee.node
            if not isinstance(node, ast.FunctionDef):
                continue
            scope = callee.facts.names.inner[node]
            # What it keeps is the loss's own if the loss makes it.
            is_own = frame.is_own(_scope_of(call, frame))
            callee = self._with_arguments(callee, call, frame)
            inner = self.entered(callee, frame)
            kept = tuple(((scope, parameter), origin) for parameter, origin in callee.given)
            for result in self.origins.results(node):
                question = _Question(result, inner, calls=False, wrapped=True)
                for made in self._callees(question, answers):
                    around = (callee.around or scope) if is_own else None
                    yield replace(made, around=around, kept=(*made.kept, *kept) if is_own else made.kept)

    def _method(
        self, holder: ast.expr, method: str, frame: RunningFunction, told: Told | None = None
    ) -> Iterator[Callee]:
        if _is_super(holder):
            yield from self._method_of_bases(method, frame)
            return
        choices = tuple(self.classes.choices(holder, frame.facts, frame.scope))
        for choice in choices:
            found = self.classes.of(choice, frame.facts, frame.scope) or self._class_of_holder(choice, frame)
            if found is None:
                yield from self._unseen(holder if len(choices) == 1 else choice, method, frame, told)
            else:
                is_exact = isinstance(choice, ast.Call)
                yield from self._methods(*found, method, *self._receiver(holder, frame), is_exact=is_exact)

    def _class_of_holder(self, node: ast.expr, frame: RunningFunction) -> FoundClass | None:
        """The class of a parameter that is given a new object."""
        owner = frame.facts.names.read_in.get(node, frame.scope).owner(node.id) if isinstance(node, ast.Name) else None
        holder = frame.holders.get((owner, node.id)) if isinstance(node, ast.Name) and owner is not None else None
        if holder is None:
            return None
        found = self.classes.of(holder.node, holder.frame.facts, holder.frame.scope)
        return found or self._class_of_holder(holder.node, holder.frame)

    def _may_be_object(self, node: ast.expr, frame: RunningFunction) -> bool:
        """Whether what is called may be an object of a class, and is not seen to be a function or a method."""
        match node:
            case ast.Attribute(value=holder):
                # Of an object whose class is not seen it is taken for a method.
                return self.classes.of(holder, frame.facts, frame.scope) is not None
            case ast.Name(id=name):
                scope = frame.facts.names.read_in.get(node, frame.scope)
                owner = scope.owner(name)
                is_parameter = owner is not None and any(each.kind == "parameter" for each in owner.bindings[name])
                # A decorator's is a function.
                return not is_parameter or self._around is None or owner in self._around or (owner, name) in frame.given
            case _:
                return True

    def _unseen(
        self, holder: ast.expr, method: str, frame: RunningFunction, told: Told | None = None
    ) -> Iterator[Callee]:
        """A method of an object whose class is not seen: that of any class which has it.

        The names of ordinary methods are those of arrays too, so that these count for objects of the code around.
        """
        if not isinstance(holder, _UNSEEN):
            return
        if isinstance(holder, ast.Call) and method.startswith("__") and method not in _ENTERING:
            # Functions give arrays, or tuples of them to unpack.
            return
        candidates = self.classes.defining(frame.facts, method)
        if not candidates or not self.classes.may_be_of_the_project(holder, frame.facts, frame.scope):
            return
        origin = self.origins.of(holder, frame)
        if (origin is None and not method.startswith("__")) or (origin is not None and not origin.is_object):
            return
        passed = origin.values if origin is not None else ()
        if passed and not any(
            self.classes.may_be_of_the_project(node, facts, facts.names.scope) for facts, node in passed
        ):
            return
        if told is not None:
            if (frame.facts, method, origin) in told:
                return
            # What is defined in a function depends on what runs around it.
            if all(facts.names.scopes[definition] is facts.names.scope for facts, definition in candidates):
                told.add((frame.facts, method, origin))
        for facts, definition in candidates:
            yield from self.method_of(facts, definition, method, origin)

    def _method_of_bases(self, method: str, frame: RunningFunction) -> Iterator[Callee]:
        """The method that `super()` has, in the class around a function."""
        function: Scope = frame.scope
        scope: Scope | None = function
        while scope is not None and not isinstance(scope.node, ast.ClassDef):
            function, scope = scope, scope.parent
        if scope is None or not isinstance(scope.node, ast.ClassDef):
            return
        names = positional_names(function.node) if isinstance(function.node, ast.FunctionDef) else []
        receiver = self.origins.of_name(names[0], function, frame) if names else None
        holder = frame.holders.get((function, names[0])) if names else None
        for facts, base in tuple(self.classes.with_bases(frame.facts, scope.node))[1:]:
            if any(_is_function(part) and part.name == method for part in base.body):
                yield from self.method_of(facts, base, method, receiver, holder)
                return

    def _methods(
        self,
        facts: Facts,
        definition: ast.ClassDef,
        method: str,
        receiver: Outlasting | None,
        holder: Holder | None = None,
        *,
        is_exact: bool = False,
    ) -> Iterator[Callee]:
        """A method, which classes that extend this one may have instead.

        Of modules of Flax and the like it is every method, which `apply` may call, with a `self` of their own.
        """
        if not self.classes.is_of_a_library(facts, definition):
            yield from self.method_of(facts, definition, method, receiver, holder)
            for where, other in () if is_exact else self.classes.extended(facts, definition, method):
                yield from self.method_of(where, other, method, receiver, holder)
            return
        for _, owner in self.classes.with_bases(facts, definition):
            for part in owner.body:
                if isinstance(part, ast.FunctionDef):
                    yield from self.method_of(facts, definition, part.name, None)

    def method_of(
        self,
        facts: Facts,
        definition: ast.ClassDef,
        method: str,
        receiver: Outlasting | None,
        holder: Holder | None = None,
        *,
        bound: bool = True,
        answers: _Answers | None = None,
    ) -> Iterator[Callee]:
        """A method of a class, or of its bases, with its first parameter if it is `bound`.

        A property is several functions of one name.
        """
        answers = {} if answers is None else answers
        for where, owner in self.classes.with_bases(facts, definition):
            parts = [part for part in owner.body if _is_function(part) and part.name == method]
            for part in parts:
                decorators = {each.id for each in part.decorator_list if isinstance(each, ast.Name)}
                names = positional_names(part)
                if "staticmethod" in decorators or not bound or not names:
                    yield Callee(where, part)
                else:
                    is_of_class = "classmethod" in decorators
                    given = Outlasting(definition.name) if is_of_class else receiver
                    holders = () if is_of_class or holder is None else ((names[0], holder),)
                    yield Callee(where, part, ((names[0], given),), 1, holders=holders)
                yield from self._decorated(part, self.running(where, where.names.scope), answers)
            if parts:
                return

    def _method_of_parameter(
        self, binding: Binding, method: str, owner: Scope | None, frame: RunningFunction
    ) -> Iterator[Callee]:
        found = self.classes.of_parameter(binding, owner, frame.facts)
        if found is not None and owner is not None:
            receiver = self.origins.of_name(binding.name, owner, frame)
            yield from self._methods(*found, method, receiver, frame.holders.get((owner, binding.name)))

    def _receiver(self, node: ast.expr, frame: RunningFunction) -> tuple[Outlasting | None, Holder | None]:
        """What an object is a part of that lasts longer; or how a new one is made that holds such a thing."""
        origin = self.origins.of(node, frame)
        return origin, self._holder(node, frame) if origin is None else None

    def _holder(self, node: ast.expr, frame: RunningFunction) -> Holder | None:
        most = _MOST_HOLDERS if len(self._running) < _MOST_RUNNING else 1
        if frame.depth >= most or not self.origins.holds(node, frame):
            return None
        return Holder(node, frame)

    def _with_arguments(self, callee: Callee, call: ast.Call, frame: RunningFunction, skip: int = 0) -> Callee:
        """A function with the origins of what a call passes."""
        names = positional_names(callee.node)[callee.positional :]
        given, count = list(callee.given), 0
        passed_on: list[tuple[str, ast.expr]] = []
        for name, argument in zip(names, call.args[skip:], strict=False):
            if isinstance(argument, ast.Starred):
                break
            passed_on.append((name, argument))
            count += 1
        named = {*names, *(each.arg for each in callee.node.args.kwonlyargs)}
        passed_on += [(each.arg, each.value) for each in call.keywords if each.arg in named]
        passed_on += _collected(callee.node, call, skip + count, named)
        given += [(name, self.origins.of(argument, frame)) for name, argument in passed_on]
        holders = list(callee.holders)
        for name, argument in passed_on:
            holder = self._receiver(argument, frame)[1]
            if holder is not None:
                holders.append((name, holder))
        passed = {name for name, _ in given}
        outside = self.running(
            callee.facts, callee.facts.names.inner[callee.node].parent or frame.scope, frame.given, frame.active
        )
        if not any(isinstance(each, ast.Starred) for each in call.args) and all(each.arg for each in call.keywords):
            for name, default in defaults_of(callee.node):
                if name not in passed:
                    origin = self.origins.of(default, outside)
                    if origin is None and is_collection(callee.facts, default) and not frame.is_own(outside.scope):
                        origin = Outlasting(name, values=((callee.facts, default),))
                    given.append((name, origin))
        return replace(
            callee, given=tuple(given), positional=callee.positional + count, holders=tuple(dict(holders).items())
        )


def _collected(node: Definition, call: ast.Call, count: int, named: Collection[str]) -> Iterator[tuple[str, ast.expr]]:
    """What `*args` and `**kwargs` of a function are in a call, behind the first arguments."""
    rest = [each for each in call.args[count:] if not isinstance(each, ast.Starred)]
    if node.args.vararg is not None and rest:
        yield node.args.vararg.arg, ast.Tuple(rest, ast.Load())
    others = [each.value for each in call.keywords if each.arg is not None and each.arg not in named]
    if node.args.kwarg is not None and others:
        yield node.args.kwarg.arg, ast.Dict([None] * len(others), others)


def items_of(node: ast.expr, frame: RunningFunction) -> list[ast.expr]:
    """What a table that is written out has in it."""
    node = _value_of(node, frame)
    if isinstance(node, ast.Dict):
        return node.values
    return node.elts if isinstance(node, ast.List | ast.Tuple) else []


def _value_of(node: ast.expr, frame: RunningFunction) -> ast.expr:
    """What a name was assigned, or the expression itself."""
    if not isinstance(node, ast.Name):
        return node
    binding = frame.facts.names.binding(node.id, frame.facts.names.read_in.get(node, frame.scope))
    return binding.value if binding is not None and binding.value is not None else node


def _is_function(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _scope_of(node: ast.expr, frame: RunningFunction) -> Scope:
    """The scope in which an expression stands."""
    read_in = frame.facts.names.read_in
    return next((read_in[each] for each in ast.walk(node) if each in read_in), frame.scope)
