"""What the functions and classes of a project are given where they are called.

A call is found by the name of what is called: its own, one that is assigned to it, that of a class and of those below
it for what makes their objects, `f()` for what `f` returns, and that of what a decorator or another call makes of it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.branches import branches

Function = ast.FunctionDef | ast.AsyncFunctionDef
Argument = tuple[ModuleUses, ast.expr]
_Takes = Literal["no object", "an object", "its object if read of one"]
_DEEPEST = 8
# Calls that give what stands beside a function to it.
_RUN_IT = frozenset(
    (
        *(f"builtins.{name}" for name in ("filter", "map", "max", "min", "sorted")),
        *(f"functools.{name}" for name in ("partial", "partialmethod", "reduce")),
        "itertools.starmap",
    )
)


class GivenParameter(NamedTuple):
    """A parameter of whatever is called by a name.

    Attributes:
        name: The name; of a lambda without one, itself.
        at: Its place, with the object of a method counted, or its own name; None for any argument.
        takes: Whether the first place is that of an object that stands before the arguments of a call.
        owner: The class of a method, if it is known.
    """

    name: str | ast.Lambda
    at: int | str | None
    takes: _Takes
    owner: ast.ClassDef | None = None


class _CallOfName(NamedTuple):
    """A call of `part`, or one that is given it."""

    module: ModuleUses
    call: ast.Call
    part: ast.expr
    is_called: bool


class GivenArguments:
    """Finds the arguments that may be a parameter; calls and names are looked for once, when the first is asked for."""

    def __init__(self, modules: Collection[ModuleUses]) -> None:
        self._modules = modules
        self._known_below: dict[str, Mapping[str, None]] = {}

    def look_ahead(self) -> None:
        """Find the names and the calls that every process would find for itself otherwise."""
        _ = self._aliases, self._calls, self._calls_of_parameters, self._decorators

    def parameters(self, module: ModuleUses, parameter: ast.arg) -> Iterator[GivenParameter]:
        """A parameter by each name by which its function is called."""
        arguments = module.parents[parameter]
        assert isinstance(arguments, ast.arguments)
        in_order = [*arguments.posonlyargs, *arguments.args]
        places: list[int | str | None] = [parameter.arg]
        if parameter in in_order:
            places.append(in_order.index(parameter))
        elif parameter in (arguments.vararg, arguments.kwarg):
            places = [None]
        function = module.parents[arguments]
        holder = module.parents.get(function)
        owner = holder if isinstance(holder, ast.ClassDef) else None
        for name, takes in self._names_of(module, function):
            yield from (GivenParameter(name, at, takes, owner) for at in places)

    def fields(self, name: str) -> Iterator[GivenParameter]:
        """The fields of a name as parameters of their classes, by position; keywords are known by the name."""
        for owner, field in self._fields.get(name, ()):
            fields = [part for part in owner.body if isinstance(part, ast.AnnAssign)]
            is_first = all(last_name(base) not in self._classes for base in owner.bases)
            for each in self._and_below(owner.name):
                yield GivenParameter(each, fields.index(field) if is_first else None, "no object")

    def of(self, parameter: GivenParameter, *, may_be_handed: bool) -> Iterator[Argument]:
        """What may be passed for a parameter; if it may be handed on, also by what is out of view."""
        for found in self._calls.get(parameter.name, ()):
            at = self._at(parameter, found)
            if at == -1:
                continue
            if found.is_called:
                yield from _arguments(found.module, found.call, at)
                continue
            if found.part in found.call.args:
                place = found.call.args.index(found.part)
                for module, call in self._calls_of_parameters.get((last_name(found.call.func), place), ()):
                    yield from _arguments(module, call, at)
            if may_be_handed or isinstance(found.part, ast.Lambda) or self._runs(found):
                others = (*found.call.args, *(keyword.value for keyword in found.call.keywords))
                yield from ((found.module, each) for each in others if each is not found.part)
        for decorator in self._decorators.get(parameter.name, ()):
            for module, call in self._calls_of_parameters.get((decorator, 0), ()):
                yield from _arguments(module, call, parameter.at)

    def _at(self, parameter: GivenParameter, found: _CallOfName) -> int | str | None:
        """The place of a parameter among the arguments of a call; -1 if it is the object, which is not there."""
        if not isinstance(parameter.at, int) or parameter.takes == "no object":
            return parameter.at
        is_there = parameter.takes != "an object" and self._is_of_class(found.module, found.part, parameter.owner)
        return parameter.at - (not is_there)

    def _runs(self, found: _CallOfName) -> bool:
        return found.module.facts.names.resolve(found.call.func, found.module.scope_of(found.call)) in _RUN_IT

    # By which names something is called

    def _names_of(self, module: ModuleUses, function: ast.AST) -> Iterator[tuple[str | ast.Lambda, _Takes]]:
        holder = module.parents.get(function)
        if isinstance(function, ast.Lambda):
            yield function, "no object"
            for name, is_of_class in self._names_with(module, function):
                yield name, "its object if read of one" if is_of_class else "no object"
        elif isinstance(function, Function) and not isinstance(holder, ast.ClassDef):
            yield from self._known_as([(function.name, False)])
        elif isinstance(function, Function) and isinstance(holder, ast.ClassDef):
            if function.name in ("__init__", "__new__"):
                for made in self._and_below(holder.name):
                    yield made, "an object"
            if function.name == "__call__":
                objects = [(f"{each}()", False) for each in self._and_below(holder.name)]
                for called, _ in self._known_as(objects):
                    yield called, "an object"
            marks = {last_name(each) for each in function.decorator_list}
            takes: _Takes = "an object" if "classmethod" in marks else "its object if read of one"
            if is_static(function):
                takes = "no object"
            for own, _ in self._known_as([(function.name, False)]):
                yield own, takes

    def _known_as(self, names: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, _Takes]]:
        """Names and those that are assigned to them; functions that classes hold are given the object."""
        for name in names:
            for each, is_of_class in (name, *self._aliases.get(name[0], ())):
                yield each, "its object if read of one" if is_of_class else "no object"

    def _and_below(self, name: str) -> Mapping[str, None]:
        """The names of a class and of those that are made of it, and `cls`, which may be any."""
        if name not in self._known_below:
            queue = [name]
            for each in queue:
                queue += [below for below in self._classes.get(each, ()) if below not in queue]
            known = self._known_as((each, False) for each in queue)
            self._known_below[name] = dict.fromkeys((*(each for each, _ in known), "cls"))
        return self._known_below[name]

    def _names_with(self, module: ModuleUses, function: ast.Lambda) -> Iterator[tuple[str, bool]]:
        """The names that a lambda is assigned to, by itself or in a container or a call."""
        part: ast.AST = function
        while isinstance(part, ast.expr) and not isinstance(part, ast.NamedExpr):
            part = module.parents[part]
        for _, target in _assignments(part):
            yield from self._stored(module, target)

    @cached_property
    def _class_names(self) -> frozenset[str]:
        return frozenset(known for name in self._classes for known in self._and_below(name))

    def _is_of_class(self, module: ModuleUses, function: ast.expr, owner: ast.ClassDef | None, depth: int = 0) -> bool:
        """Whether a function may be read of its class, or in the body of that, so that its object is an argument."""
        if isinstance(function, ast.Attribute):
            return self._is_class(function.value, owner)
        if not isinstance(function, ast.Name) or depth > _DEEPEST:
            return False
        scope = module.scope_of(function).owner(function.id)
        if scope is None or scope.kind == "class":
            return scope is not None and owner in (None, scope.node)
        values = (each.value for each in scope.bindings[function.id] if each.value is not None)
        return any(self._is_of_class(module, each, owner, depth + 1) for each in values)

    def _is_class(self, node: ast.expr, owner: ast.ClassDef | None) -> bool:
        """Whether an expression may be a class, and that of a method."""
        name = last_name(node)
        if name in ("cls", "__class__", "type()"):
            return True
        return name in (self._class_names if owner is None else self._and_below(owner.name))

    # What there is

    @cached_property
    def _aliases(self) -> Mapping[str, Collection[tuple[str, bool]]]:
        """The names that are assigned a function, a class or an object of it, and whether a class holds them."""
        found: dict[str, set[tuple[str, bool]]] = defaultdict(set)
        for module in self._modules:
            for item in module.imported:
                if item.alias.asname is not None:
                    found[item.alias.name.rpartition(".")[2]].add((item.alias.asname, False))
            for node in module.nodes_of(*_GIVE_NAMES):
                for value, target in _assignments(node):
                    for name in self._defined_in(module, value):
                        found[name].update(self._stored(module, target))
            for node in module.nodes_of(ast.Return):
                names = [*self._defined_in(module, node.value)] if node.value is not None else []
                function = next((each for each in module.above(node) if isinstance(each, Function)), None)
                for name in names:
                    found[name].add((f"{getattr(function, 'name', '')}()", False))
        return found

    def _defined_in(self, module: ModuleUses, value: ast.expr) -> Iterator[str]:
        """The names of functions, classes and their objects that a value is, holds, or is made of."""
        if isinstance(value, ast.Name):
            # The most frequent by far, and with numbers the rest.
            is_one = value.id in self._functions or value.id in self._classes
            yield from [value.id] if is_one and _is_defined(module, value) else []
            return
        for each in branches(value) if not isinstance(value, ast.Constant) else ():
            held: Sequence[ast.expr] = ()
            match each:
                case ast.Tuple(elts=held) | ast.List(elts=held) | ast.Set(elts=held) | ast.Dict(values=held):
                    pass
                case ast.Call(args=args) if len(args) == 1 or last_name(each.func) in _PARTIALS:
                    held = args
                case ast.Name() if each is not value:
                    held = [each]
                case _:
                    pass
            for part in held:
                yield from self._defined_in(module, part)
            name = last_name(each) if not isinstance(each, ast.Name) else None
            own = name.removesuffix("()") if name is not None else None
            if name is not None and (own in self._functions or own in self._classes):
                yield name

    def _stored(self, module: ModuleUses, target: ast.expr | str) -> Iterator[tuple[str, bool]]:
        if isinstance(target, str):
            yield target, False
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                yield from self._stored(module, each)
        else:
            name = last_name(target)
            is_of_class = isinstance(target, ast.Attribute) and last_name(target.value) in self._classes
            is_in_body = isinstance(target, ast.Name) and module.scope_of(target).kind == "class"
            if name is not None:
                yield name, is_of_class or is_in_body

    @cached_property
    def _calls(self) -> Mapping[str | ast.Lambda, Sequence[_CallOfName]]:
        """Calls by the name of what is called, and of what they are given."""
        found: dict[str | ast.Lambda, list[_CallOfName]] = defaultdict(list)
        for module in self._modules:
            for call in module.nodes_of(ast.Call):
                made = call.func.args if isinstance(call.func, ast.Call) else ()
                for part in (call.func, *made, *call.args):
                    is_called = part is call.func
                    if isinstance(part, ast.Name | ast.Attribute | ast.Lambda) or is_called:
                        name = part if isinstance(part, ast.Lambda) else last_name(part)
                        if name is not None:
                            found[name].append(_CallOfName(module, call, part, is_called or part in made))
        return found

    @cached_property
    def _classes(self) -> Mapping[str, Collection[str]]:
        """The names of classes, and of those that are made of each."""
        found: dict[str, set[str]] = defaultdict(set)
        for module in self._modules:
            for node in module.nodes_of(ast.ClassDef):
                found[node.name].update(())
                for base in node.bases:
                    name = last_name(base)
                    if name is not None:
                        found[name].add(node.name)
        return found

    @cached_property
    def _fields(self) -> Mapping[str, Sequence[tuple[ast.ClassDef, ast.AnnAssign]]]:
        """The annotated names in the bodies of classes."""
        found: dict[str, list[tuple[ast.ClassDef, ast.AnnAssign]]] = defaultdict(list)
        for module in self._modules:
            for field in module.nodes_of(ast.AnnAssign):
                owner = module.parents[field]
                if isinstance(owner, ast.ClassDef) and isinstance(field.target, ast.Name):
                    found[field.target.id].append((owner, field))
        return found

    @cached_property
    def _functions(self) -> Mapping[str, Sequence[tuple[ModuleUses, Function]]]:
        found: dict[str, list[tuple[ModuleUses, Function]]] = defaultdict(list)
        for module in self._modules:
            for node in module.nodes_of(ast.FunctionDef, ast.AsyncFunctionDef):
                found[node.name].append((module, node))
        return found

    @cached_property
    def _calls_of_parameters(self) -> Mapping[tuple[str | None, int], Sequence[tuple[ModuleUses, ast.Call]]]:
        """The calls of what functions are given, by the name of the function and its place among the arguments."""
        found: dict[tuple[str | None, int], list[tuple[ModuleUses, ast.Call]]] = defaultdict(list)
        for module in self._modules:
            for call in module.nodes_of(ast.Call):
                owner = module.scope_of(call).owner(call.func.id) if isinstance(call.func, ast.Name) else None
                function = owner.node if owner is not None else None
                if isinstance(function, Function) and isinstance(call.func, ast.Name):
                    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
                    if call.func.id in names:
                        is_method = isinstance(module.parents.get(function), ast.ClassDef) and not is_static(function)
                        found[function.name, names.index(call.func.id) - is_method].append((module, call))
        return found

    @cached_property
    def _decorators(self) -> Mapping[str | ast.Lambda, Collection[str]]:
        """The names of decorators, by those of what they decorate."""
        found: dict[str | ast.Lambda, set[str]] = defaultdict(set)
        for name, functions in self._functions.items():
            marks = (last_name(each) for _, function in functions for each in function.decorator_list)
            found[name].update(mark for mark in marks if mark is not None)
        return found


def last_name(node: ast.AST) -> str | None:
    """The last part of a name or an attribute, also of one that is looked up in a container or by its text.

    Of a call it is that of what is called, with `()`.
    """
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    match node:
        case ast.Subscript(value=value):
            return last_name(value)
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
            return name
        case ast.Call(func=function):
            called = last_name(function)
            return f"{called}()" if called is not None else None
        case _:
            return None


def is_static(function: ast.AST) -> bool:
    """Whether a function of a class is given no object."""
    marks = getattr(function, "decorator_list", ())
    return getattr(function, "name", "") == "__new__" or any(last_name(each) == "staticmethod" for each in marks)


_PARTIALS = ("partial", "partialmethod")
_GIVE_NAMES = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension, ast.withitem, ast.keyword)


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | str]]:
    """What is assigned, and to what."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((value, target) for target in targets)
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            yield value, target
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield value, target
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            yield value, target
        case ast.keyword(arg=str(name), value=value):
            yield value, name
        case _:
            pass


def _is_defined(module: ModuleUses, name: ast.Name) -> bool:
    """Whether a name is that of a definition or an import, and no variable of the same name."""
    owner = module.scope_of(name).owner(name.id)
    kinds = {each.kind for each in owner.bindings[name.id]} if owner is not None else {"import"}
    return not kinds.isdisjoint(("class", "function", "import"))


def _arguments(module: ModuleUses, call: ast.Call, at: int | str | None) -> Iterator[Argument]:
    """The arguments of a call at a place or of a name, all of them at None."""
    for index, value in enumerate(call.args):
        if at in (None, index) or isinstance(value, ast.Starred):
            yield module, value
    for keyword in call.keywords:
        if at in (None, keyword.arg) or keyword.arg is None:
            yield module, keyword.value
