"""What of a running function outlasts it.

Lists, objects and names that a function makes end with it. What it closes over, what its module has and what it is
given by code that goes on lasts longer, by whatever name it is known inside.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from mmrewrite.analysis.objects.object_classes import ObjectClasses
from mmrewrite.analysis.running_functions import Definition, Outlasting, RunningFunction, positional_names, results_of
from mmrewrite.analysis.stored_values import StoredPart, binds, gone_through, stored_values, unpacked
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
# They give something new with the same parts.
_SHALLOW = frozenset(
    (
        "builtins.dict", "builtins.frozenset", "builtins.list", "builtins.map", "builtins.set", "builtins.sorted",
        "builtins.tuple", "collections.ChainMap", "collections.OrderedDict", "collections.defaultdict",
        "collections.deque", "copy.copy", "itertools.chain", "types.MappingProxyType", "types.SimpleNamespace",
    )
)  # fmt: skip
# They give a new object its attributes; `setup` does so for linen.
_MAKING = frozenset(("__init__", "__post_init__", "setup"))
# What a class has that another name stands for, or that a call has made.
_NAMED = ast.Attribute | ast.Call | ast.Name
# Names of parts become no longer where a function calls itself with a part of what it was given.
_MOST_PARTS = 3

# Stands for any object that a function may be given. Its parts are not told apart either: the text grows no further.
ANY_OBJECT = Outlasting("." * _MOST_PARTS)

# The functions of the project that a call runs, as they run.
Called = Callable[[ast.Call, RunningFunction], Iterable[tuple[Definition, RunningFunction]]]


class Origins:
    """Finds what expressions are parts of, through the functions that `called` sees in a call."""

    def __init__(self, project: Project, classes: ObjectClasses, called: Called) -> None:
        self._project = project
        self._classes = classes
        self._called = called
        self._origins: dict[tuple[ast.expr, RunningFunction], Outlasting | None] = {}
        self._parts: dict[tuple[ast.expr, RunningFunction], Outlasting | None] = {}
        self._holds: dict[tuple[ast.expr, RunningFunction], bool] = {}
        self._stored: dict[tuple[ast.AST, str, RunningFunction], Sequence[tuple[StoredPart, RunningFunction]]] = {}
        self._values: dict[
            tuple[ast.expr, str | None, RunningFunction], Sequence[tuple[ast.expr, RunningFunction]]
        ] = {}

    def results(self, node: Definition) -> Sequence[ast.expr]:
        """What a function may return: looked for once."""
        return self._project.once(("results", node), lambda: results_of(node))

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
                    return self._of_new_object(value, attribute, frame)
                if origin.is_object:
                    is_long = origin.text.count(".") >= _MOST_PARTS
                    text = origin.text if is_long else f"{origin.text}.{attribute}"
                    return replace(origin, text=text, values=())
                found = frame.facts.names.resolve(node, frame.scope) or dotted_name(node)
                return self._of_module(found, origin, frame.facts)
            case ast.Subscript(value=value) | ast.Starred(value=value):
                return self._part_of(value, frame)
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
            return next(filter(None, (self._held(each, frame) for each in call.args)), None)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS_FOR_PARTS:
            origin = self._part_of(call.func.value, frame)
            if origin is not None:
                return origin if origin.is_object else None
        for node, inner in self._called(call, frame):
            for result in self.results(node):
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
        if isinstance(binding.statement, ast.Assign) and owner.kind != "comprehension":
            found = [self._unpacked(target, binding, frame) for target in binding.statement.targets]
            return next(filter(None, found), None)
        sources = self._gone_through(binding, owner, frame)
        return next(filter(None, (self._part_of(each, frame) for each in sources)), None)

    def _unpacked(self, target: ast.expr, binding: Binding, frame: RunningFunction) -> Outlasting | None:
        """What an assignment to a target gives one of the names in it."""
        assert isinstance(binding.statement, ast.Assign)
        source = binding.statement.value
        if not binds(target, binding.name):
            return None
        results = [(source, frame)]
        if isinstance(source, ast.Call):
            # A function may return a tuple of its own with something of others in it.
            returned = [(each, inner) for node, inner in self._called(source, frame) for each in self.results(node)]
            results = returned or results
        items = [(unpacked(target, binding.name, result), inner) for result, inner in results]
        if all(item is not None for item, _ in items):
            return next(filter(None, (self.of(item, inner) for item, inner in items if item is not None)), None)
        return self._part_of(source, frame)

    def _gone_through(self, binding: Binding, owner: Scope, frame: RunningFunction) -> Sequence[ast.expr]:
        """What a name is a part of that a loop, a `with` statement or a `case` binds."""
        if owner.kind == "comprehension":
            loops = [(each.target, each.iter) for each in getattr(owner.node, "generators", ())]
        elif isinstance(binding.statement, ast.For | ast.AsyncFor):
            loops = [(binding.statement.target, binding.statement.iter)]
        elif isinstance(binding.statement, ast.Match):
            return [binding.statement.subject]
        elif isinstance(binding.statement, ast.With | ast.AsyncWith):
            return _entered(binding)
        else:
            return ()
        sources: list[ast.expr] = []
        for target, source in loops:
            if not binds(target, binding.name):
                continue
            called = frame.facts.names.resolve(source.func, frame.scope) if isinstance(source, ast.Call) else None
            found = gone_through(target, binding.name, source, called)
            sources += [source] if found is None else found
        return sources

    def _part_of(self, node: ast.expr, frame: RunningFunction) -> Outlasting | None:
        """What a part of an expression is, or is a part of, that lasts longer."""
        origin = self.of(node, frame)
        return self.parts(node, frame) if origin is None else replace(origin, values=())

    def _held(self, node: ast.expr, frame: RunningFunction) -> Outlasting | None:
        """What an expression is, or has in it, that lasts longer."""
        return self.of(node, frame) or self.parts(node, frame)

    def parts(self, node: ast.expr, frame: RunningFunction) -> Outlasting | None:
        """What a part of an expression is that lasts longer, where the whole is new: `seen`, of `[seen]`."""
        key = (node, frame)
        if key not in self._parts:
            # As in `of`.
            self._parts[key] = None
            self._parts[key] = next(filter(None, self._find_parts(node, frame)), None)
        return self._parts[key]

    def _find_parts(self, node: ast.expr, frame: RunningFunction) -> Iterator[Outlasting | None]:
        match node:
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                yield from (self._held(each, frame) for each in items)
            case ast.Dict(values=values):
                yield from (self._held(each, frame) for each in values)
            case ast.ListComp(elt=item) | ast.SetComp(elt=item) | ast.GeneratorExp(elt=item) | ast.DictComp(value=item):
                yield self._held(item, frame)
            case ast.Starred(value=value) | ast.NamedExpr(value=value):
                yield self.parts(value, frame)
            case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, op=ast.Add() | ast.BitOr(), right=other):
                yield from (self.parts(each, frame) for each in (one, other))
            case ast.BoolOp(values=values):
                yield from (self.parts(each, frame) for each in values)
            case ast.Name(id=name):
                scope = frame.facts.names.read_in.get(node, frame.scope)
                owner = scope.owner(name)
                if owner is None or not frame.is_own(owner):
                    return
                for binding in _reaching(owner.bindings[name], owner, node.lineno):
                    if binding.value is not None:
                        yield self.parts(binding.value, frame)
                holder = frame.holders.get((owner, name))
                if holder is not None:
                    yield self.parts(holder.node, holder.frame)
                for stored in self._stored_by(owner.node):
                    if stored.name == name:
                        yield self._held(stored.value, frame)
            case ast.Attribute(value=value, attr=attribute):
                yield from (self.parts(*each) for each in self._values_of_attribute(value, attribute, frame))
            case ast.Call():
                yield from self._parts_of_call(node, frame)
            case _:
                return

    def _parts_of_call(self, call: ast.Call, frame: RunningFunction) -> Iterator[Outlasting | None]:
        name = frame.facts.names.resolve(call.func, frame.scope)
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if name in _SHALLOW or name in _PARTS_OF:
            yield from (self._held(each, frame) for each in arguments)
            return
        if name is None and isinstance(call.func, ast.Attribute) and call.func.attr == "copy" and not arguments:
            yield self._part_of(call.func.value, frame)
            return
        for node, inner in self._called(call, frame):
            yield from (self.parts(each, inner) for each in self.results(node))

    def holds(self, node: ast.expr, frame: RunningFunction) -> bool:
        """Whether something new, such as an object, has something in it that lasts longer."""
        key = (node, frame)
        if key not in self._holds:
            self._holds[key] = False
            self._holds[key] = self.parts(node, frame) is not None or any(
                self.of(*each) is not None or self.holds(*each) for each in self._values_of_attribute(node, None, frame)
            )
        return self._holds[key]

    def _of_new_object(self, node: ast.expr, attribute: str, frame: RunningFunction) -> Outlasting | None:
        """What an attribute of an object is that lasts longer, where the object is new."""
        values = self._values_of_attribute(node, attribute, frame)
        return next(filter(None, (self.of(*each) for each in values)), None) or self._of_class(node, attribute, frame)

    def _values_of_attribute(
        self, node: ast.expr, attribute: str | None, frame: RunningFunction
    ) -> Sequence[tuple[ast.expr, RunningFunction]]:
        """What is put into an attribute of a new object, or into any if `attribute` is None."""
        key = (node, attribute, frame)
        if key not in self._values:
            # Functions may call each other in a circle, which adds nothing.
            self._values[key] = ()
            self._values[key] = tuple(self._find_values(node, attribute, frame))
        return self._values[key]

    def _find_values(
        self, node: ast.expr, attribute: str | None, frame: RunningFunction
    ) -> Iterator[tuple[ast.expr, RunningFunction]]:
        match node:
            case ast.Attribute(value=value, attr=name):
                for each, inner in self._values_of_attribute(value, name, frame):
                    yield from self._values_of_attribute(each, attribute, inner)
            case ast.Call():
                yield from self._given_by(node, attribute, frame)
            case ast.Name(id=name):
                owner = frame.facts.names.read_in.get(node, frame.scope).owner(name)
                if owner is None or not frame.is_own(owner):
                    return
                yield from self._stored_in(owner.node, name, attribute, frame)
                for binding in owner.bindings[name]:
                    if binding.value is not None:
                        yield from self._values_of_attribute(binding.value, attribute, frame)
                holder = frame.holders.get((owner, name))
                if holder is not None:
                    yield from self._values_of_attribute(holder.node, attribute, holder.frame)
            case _:
                for choice in self._classes.choices(node, frame.facts, frame.scope):
                    if choice is not node:
                        yield from self._values_of_attribute(choice, attribute, frame)

    def _stored_in(
        self, function: ast.AST, name: str, attribute: str | None, frame: RunningFunction
    ) -> Iterator[tuple[ast.expr, RunningFunction]]:
        """What a function puts into an attribute of what a name is, also by methods that it calls on that."""
        key = (function, name, frame)
        if key not in self._stored:
            self._stored[key] = tuple(self._find_stored(function, name, frame))
        return ((each.value, inner) for each, inner in self._stored[key] if attribute in (None, each.attribute))

    def _find_stored(
        self, function: ast.AST, name: str, frame: RunningFunction
    ) -> Iterator[tuple[StoredPart, RunningFunction]]:
        # Methods may call each other in a circle, which adds nothing.
        seen = {(function, frame)}
        reached = [(function, name, frame)]
        while reached:
            function, name, frame = reached.pop()
            for stored in self._stored_by(function):
                if stored.name == name and stored.attribute is not None:
                    yield stored, frame
            for call in self._calls_on(function, name):
                for method, inner in self._called(call, frame):
                    first = positional_names(method)[:1]
                    if first and isinstance(method, ast.FunctionDef) and (method, inner) not in seen:
                        seen.add((method, inner))
                        reached.append((method, first[0], inner))

    def _given_by(
        self, maker: ast.Call, attribute: str | None, frame: RunningFunction
    ) -> Iterator[tuple[ast.expr, RunningFunction]]:
        """What the call that makes an object puts into an attribute, or into any."""
        for node, inner in self._called(maker, frame):
            if isinstance(node, ast.FunctionDef) and node.name in _MAKING and positional_names(node):
                yield from self._stored_in(node, positional_names(node)[0], attribute, inner)
            else:
                for result in self.results(node):
                    yield from self._values_of_attribute(result, attribute, inner)
        found = self._classes.named(maker.func, frame.facts, frame.scope)
        fields = _fields([owner for _, owner in self._classes.with_bases(*found)]) if found is not None else []
        is_by_name = bool(fields) or frame.facts.names.resolve(maker.func, frame.scope) in _SHALLOW
        for keyword in maker.keywords if is_by_name else ():
            if attribute in (None, keyword.arg):
                yield keyword.value, frame
        for name, value in zip(fields, maker.args, strict=False):
            if attribute in (None, name):
                yield value, frame

    def _of_class(self, node: ast.expr, attribute: str, frame: RunningFunction) -> Outlasting | None:
        """A list or the like that a class has, and each new object of it, unless they have one of their own."""
        found = self._classes.of(node, frame.facts, frame.scope) or self._class_of_self(node, frame)
        owners = list(self._classes.with_bases(*found)) if found is not None else []
        if any(attribute in self._made_attributes(owner) for _, owner in owners):
            return None
        for facts, owner in owners:
            for part in owner.body:
                match part:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == attribute:
                        pass
                    case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name == attribute:
                        pass
                    case _:
                        continue
                if frame.is_own(facts.names.scopes[owner]):
                    # The class is made anew as well.
                    return self.of(value, frame)
                if is_collection(facts, value) or (isinstance(part, ast.Assign) and isinstance(value, _NAMED)):
                    return Outlasting(f"{owner.name}.{attribute}", values=((facts, value),))
                return None
        return None

    def _made_attributes(self, owner: ast.ClassDef) -> set[str | None]:
        """The attributes that each object of a class gets when it is made."""
        methods = [part for part in owner.body if isinstance(part, ast.FunctionDef) and part.name in _MAKING]
        return {
            stored.attribute
            for method in methods
            for stored in self._stored_by(method)
            if [stored.name] == positional_names(method)[:1]
        }

    def _class_of_self(self, node: ast.expr, frame: RunningFunction) -> tuple[Facts, ast.ClassDef] | None:
        """The class of a method, where a name is its first parameter."""
        if not isinstance(node, ast.Name):
            return None
        owner = frame.facts.names.read_in.get(node, frame.scope).owner(node.id)
        if owner is None or owner.parent is None or not isinstance(owner.parent.node, ast.ClassDef):
            return None
        is_first = isinstance(owner.node, ast.FunctionDef) and positional_names(owner.node)[:1] == [node.id]
        return (frame.facts, owner.parent.node) if is_first else None

    def _calls_on(self, function: ast.AST, name: str) -> Sequence[ast.Call]:
        """The calls of methods of what a name is in a function, those by `super()` among them."""
        first = positional_names(function)[:1] if isinstance(function, ast.FunctionDef) else []

        def is_on(call: ast.Call) -> bool:
            match call.func:
                case ast.Attribute(value=ast.Name(id=holder)):
                    return holder == name
                case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                    return first == [name]
                case _:
                    return False

        def find() -> tuple[ast.Call, ...]:
            return tuple(node for node in ast.walk(function) if isinstance(node, ast.Call) and is_on(node))

        return self._project.once(("calls on", function, name), find)

    def _stored_by(self, node: ast.AST) -> Sequence[StoredPart]:
        """What the code of a function, a class or a module puts into what its names stand for."""
        body = getattr(node, "body", ())
        nodes: Sequence[ast.AST] = body if isinstance(body, list) else (body,) if isinstance(body, ast.AST) else ()

        def find() -> tuple[StoredPart, ...]:
            return stored_values(nodes)

        return self._project.once(("stored", node), find)


def _fields(owners: Sequence[ast.ClassDef]) -> list[str]:
    """The fields of a data class or a named tuple, in order; `owners` are the class and its bases."""
    parts = [part for owner in reversed(owners) for part in owner.body]
    if any(isinstance(part, ast.FunctionDef) and part.name == "__init__" for part in parts):
        return []
    annotated = [part for part in parts if isinstance(part, ast.AnnAssign)]
    return [part.target.id for part in annotated if isinstance(part.target, ast.Name)]


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
    always = set(body) if isinstance(body, list) else ()
    above = [
        each
        for each in bindings
        if each.statement is not None
        and each.statement in always
        and line is not None
        and (each.statement.end_lineno or each.statement.lineno) < line
        and isinstance(each.statement, ast.Assign | ast.AnnAssign)
    ]
    if not above:
        return bindings
    last = max(above, key=lambda each: each.statement.lineno if each.statement is not None else 0)
    begin = last.statement.lineno if last.statement is not None else 0
    return [each for each in bindings if each.statement is not None and each.statement.lineno >= begin]
