"""What becomes of a value: the mirror of `flow.py`.

From a definition, or an expression that gives it, to all places that it comes to: its calls, and the places where it
leaves what is in view.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import PARTIALS
from mmrewrite.source.names import Scope, last_name
from mmrewrite.values.arguments import parameter_of
from mmrewrite.values.array_libraries import MAKE_TREES, PASS_ARGUMENTS_ON
from mmrewrite.values.callbacks import CALL_BACK, CALL_IT, CALL_WITH_ELEMENTS, CALL_WITH_PARTS, called_back
from mmrewrite.values.classes import Definition, fields_of
from mmrewrite.values.containers import PUT_ONE
from mmrewrite.values.library import MAPS
from mmrewrite.values.operators import WORDS
from mmrewrite.values.stores import Store, own_class
from mmrewrite.values.targets import of_target
from mmrewrite.values.value import (
    ANY_ITEM,
    ELEMENT,
    Access,
    By,
    CallArguments,
    Decorated,
    Function,
    GivenValue,
    Own,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow

_MOST_PLACES = 400
# In so many containers, one in another, it is looked for.
_DEEPEST = 3
# Methods that a call of their class runs.
_MAKE = ("__init__", "__new__", "__post_init__")
_OF_METACLASSES = ("__init__", "__new__", "__prepare__")
# What is called with the arguments of the function that it is given first.
WRAPPERS = PASS_ARGUMENTS_ON | frozenset(
    (
        *(f"jax.{name}" for name in ("hessian", "jacfwd", "jacrev", "make_jaxpr", "remat")),
        *("jax.experimental.pjit.pjit", "mmruntime.compat.pjit", "mmruntime.compat.pmap"),
        *("builtins.staticmethod", "builtins.classmethod", "contextlib.contextmanager"),
        *("functools.cache", "functools.lru_cache"),
    )
)


class UsePlace(NamedTuple):
    """An expression that may be the value.

    Attributes:
        module: The module that has it.
        node: The expression.
        before: What calls of `partial` gave it, outermost first.
        read: The object or the class that it was read of, None if it was not; perhaps in another module.
        held: In how many containers of the expression it lies.
    """

    module: ModuleUses
    node: ast.expr
    before: tuple[CallArguments, ...] = ()
    read: Value | None = None
    held: int = 0

    def put(self, node: ast.expr | None = None) -> UsePlace:
        """The place of a container that it is put into."""
        return self._replace(node=node or self.node, held=self.held + 1)

    def taken(self, node: ast.expr | None = None) -> UsePlace:
        """The place of what is taken out of the container."""
        return self._replace(node=node or self.node, held=self.held - 1)


class Used(NamedTuple):
    """What becomes of a value.

    Attributes:
        calls: The arguments of its calls, with what `partial` gave it before and the object that it was read of.
        escapes: Where it leaves what is in view, with the reason.
        takes_object: Whether it is called with what it is read of, None if that depends on where it is read.
    """

    calls: list[CallArguments]
    escapes: list[tuple[UsePlace, str]]
    takes_object: bool | None = None


def calls_of(flow: ValueFlow, module: ModuleUses, definition: ast.AST) -> tuple[Sequence[CallArguments], str | None]:
    """The calls of a definition, in one form, and why there may be others than in code that imports it."""
    used = uses_of(flow, module, definition)
    if not used.escapes:
        return used.calls, None
    place, reason = used.escapes[0]
    return used.calls, f"{reason} on line {place.node.lineno} of {place.module.facts.path}"


def uses_of(flow: ValueFlow, module: ModuleUses, definition: ast.AST) -> Used:
    """The uses of a function, a class, or the value of an expression."""
    marks = {flow.full_name(module, each) for each in getattr(definition, "decorator_list", ())}
    takes = True if "builtins.classmethod" in marks else False if "builtins.staticmethod" in marks else None
    used = Used([], [], takes)
    holder = module.parents.get(definition)
    if isinstance(holder, ast.ClassDef) and getattr(definition, "name", "") in _MAKE:
        made = Value(module, Own(holder, is_class=False))
        for home, definition_below in ((module, holder), *flow.below(holder)):
            inner = uses_of(flow, home, definition_below)
            used.calls.extend(flow.merged(made, call) for call in inner.calls)
            used.escapes.extend(inner.escapes)
    if isinstance(holder, ast.ClassDef):
        used.calls.extend(_by_syntax(flow, (module, holder), getattr(definition, "name", "")))
    queue = [*_places_of(flow, module, definition)]
    seen = {place.node for place in queue}
    for place in queue:
        if len(queue) > _MOST_PLACES:
            used.escapes.append((place, "it is used in too many places"))
            break
        for each in _after(flow, place, used):
            if each.node not in seen:
                seen.add(each.node)
                queue.append(each)
    return used


def _by_syntax(flow: ValueFlow, holder: Definition, name: str) -> Iterator[CallArguments]:
    """The calls of a method of a class that Python makes where none is written."""
    own = Value(*holder)
    if name == "__init_subclass__":
        for home, below in flow.below(holder[1]):
            yield CallArguments([GivenValue(Value(home, Own(below, is_class=True)))], _named_in(home, below))
    elif name in _OF_METACLASSES and "builtins.type" in flow.bases(*holder).outside:
        for module in flow.modules:
            for made in module.nodes_of(ast.ClassDef):
                if holder in flow.bases(module, made).metaclasses:
                    parts = [ast.Constant(made.name), ast.Tuple([], ast.Load()), ast.Dict([], [])]
                    given = [own, *(Value(module, each) for each in parts)]
                    yield CallArguments([*map(GivenValue, given)], _named_in(module, made))
    elif name in _OF_NODES or name.strip("_").removeprefix("i") in WORDS.values():
        for module in flow.modules:
            for operands in _operands(module, name):
                target = operands[0].head
                assert isinstance(target, ast.expr)
                if flow.may_be(Store(module, ast.Attribute(target, name), target, None, None), holder[1]):
                    yield flow.call_of(operands)


def _named_in(module: ModuleUses, definition: ast.ClassDef) -> list[tuple[str | None, Value]]:
    """The keywords of a class statement that methods of others get."""
    return [(each.arg, Value(module, each.value)) for each in definition.keywords if each.arg != "metaclass"]


# What Python calls these methods for.
_OF_NODES: Mapping[str, Sequence[type[ast.AST]]] = {
    "__setattr__": (ast.Attribute,),
    **dict.fromkeys(("__setitem__", "__getitem__", "__class_getitem__", "__missing__"), (ast.Subscript,)),
    "__contains__": (ast.Compare,),
}


def _operands(module: ModuleUses, name: str) -> Iterator[list[Value]]:
    """What a method for attributes, items or an operator is given where it may be called, its object first."""
    words = (name.strip("_"), name.strip("_").removeprefix("i"))
    kinds = _OF_NODES.get(name, (ast.BinOp, ast.AugAssign))
    for node in (each for kind in kinds for each in module.nodes_of(kind)):
        match node:
            case ast.BinOp(left=left, op=op, right=right) | ast.AugAssign(target=left, op=op, value=right):
                if WORDS[type(op)] in words:
                    yield [Value(module, left), Value(module, right)]
            case ast.Subscript(value=owner, slice=key, ctx=ast.Load()) if name != "__setitem__":
                yield [Value(module, owner), Value(module, key)]
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[owner]):
                yield [Value(module, owner), Value(module, left)]
            case ast.Attribute(value=owner, ctx=ast.Store()) | ast.Subscript(value=owner, ctx=ast.Store()) if (
                name.startswith("__set")
            ):
                taken = of_target(module, node)
                key = node.slice if isinstance(node, ast.Subscript) else ast.Constant(node.attr)
                if taken is not None:
                    yield [Value(module, owner), Value(module, key), Value(module, *taken)]
            case _:
                pass


def _called(flow: ValueFlow, place: UsePlace, found: CallArguments, takes: bool | None) -> Iterator[CallArguments]:
    """The arguments of a call: with the object if the function was read of one, without if of a class or a module."""
    for partial in place.before:
        found = flow.joined(partial, found)
    if place.read is None:
        yield found
        return
    assert isinstance(place.read.head, ast.expr)
    is_class = _is_class(flow, place.read.module, place.read.head) if takes is None else not takes
    if is_class is not True:
        yield flow.merged(place.read, found)
    if is_class is not False:
        yield found


def _is_of_each_object(
    flow: ValueFlow, module: ModuleUses, definition: ast.ClassDef, name: str, value: ast.expr
) -> bool:
    """Whether what a class body binds is given no object where it is read: a field, or a `staticmethod(...)`."""
    made_by = flow.full_name(module, value.func) if isinstance(value, ast.Call) else None
    return made_by == "builtins.staticmethod" or name in (fields_of(flow, module, definition) or ())


def _is_class(flow: ValueFlow, module: ModuleUses, node: ast.expr) -> bool | None:
    """Whether something is seen to be a class or a module, rather than an object; None if it may be either."""
    match node:
        case ast.Call(func=ast.Name(id="type"), args=[_]) | ast.Attribute(attr="__class__"):
            return True
        case ast.Call(func=ast.Name(id="super")):
            return False
        case ast.Call(func=function) if flow.class_at(module, function) is not None:
            return False
        case ast.Name(id="self"):
            return False
        case ast.Name(id="cls"):
            return True
        case _ if flow.full_name(module, node) is not None or flow.class_at(module, node) is not None:
            return True
        case _:
            kinds = set[str]()
            for kind, each in flow.walk(Value(module, node), _kind):
                if kind is not None:
                    kinds.add(kind)
                elif not (isinstance(each, Unknown) and each.is_open):
                    return None
            return "class" in kinds if len(kinds - {"none"}) == 1 else None


def _kind(value: Value) -> str | None:
    head, is_itself = value.head, not value.path
    match head:
        case ast.Constant(value=None) if is_itself:
            return "none"
        case ast.ClassDef() | ast.Module() if is_itself:
            return "class"
        case Own(is_class=is_class) if is_itself:
            return "class" if is_class else "object"
        case _:
            return "object" if value.is_made else None


def _places_of(flow: ValueFlow, module: ModuleUses, definition: ast.AST) -> Iterator[UsePlace]:
    """The places that name a definition."""
    if isinstance(definition, ast.expr):
        yield UsePlace(module, definition)
        return
    if not isinstance(definition, Function | ast.ClassDef):
        return
    scope = module.facts.names.scopes[definition]
    name = definition.name
    for decorator in definition.decorator_list:
        yield from _decorating(flow, module, definition, decorator)
    if scope.kind == "class" and isinstance(scope.node, ast.ClassDef):
        for home, each in ((module, scope.node), *flow.below(scope.node)) if name == "__call__" else ():
            for place in _places_of(flow, home, each):
                call = place.module.parents.get(place.node)
                if isinstance(call, ast.Call) and call.func is place.node:
                    yield UsePlace(place.module, call, read=Value(place.module, call))
        for home, node in flow.stores.reads(name):
            yield _read(home, node)
    for head in module.heads.get("cls", ()) if isinstance(definition, ast.ClassDef) else ():
        if own_class(module, head) is definition:
            yield UsePlace(module, head)
    yield from reads_of(flow, module, scope, name)


def _decorating(flow: ValueFlow, module: ModuleUses, definition: ast.AST, decorator: ast.expr) -> Iterator[UsePlace]:
    """The places that name what a decorator is given."""
    name = flow.full_name(module, decorator.func if isinstance(decorator, ast.Call) else decorator)
    if name is not None and name not in PARTIALS and not flow.project.holds(name, module.facts):
        return
    given = flow.call_with(Value(module, definition))
    value = flow.at(module, decorator).done(Access(By.CALL, given))
    found = flow.may(value, lambda each: each if _takes(each, given) else None).answers
    for home, function, path, _ in found:
        assert isinstance(function, Function | ast.Lambda)
        place = path[-1].what.positional.index(given.positional[0])
        parameters = [*function.args.posonlyargs, *function.args.args][len(path) - 1 + place :]
        if parameters:
            yield from reads_of(flow, home, home.facts.names.inner[function], parameters[0].arg)


def _takes(value: Value, given: CallArguments) -> bool:
    """Whether a value is a function, perhaps one of an object, that is about to be entered with what a call is given.

    A `partial` gives it more.
    """
    is_function = isinstance(value.head, Function | ast.Lambda) and [step.kind for step in value.path] in (
        [By.CALL],
        [By.BOUND, By.CALL],
    )
    return is_function and given.positional[0] in value.path[-1].what.positional


def _read(module: ModuleUses, node: ast.expr) -> UsePlace:
    """The place of something that is read of an object, as an attribute or by its text."""
    owner = node.value if isinstance(node, ast.Attribute) else node.args[0] if isinstance(node, ast.Call) else None
    return UsePlace(module, node, read=Value(module, owner) if owner is not None else None)


def reads_of(flow: ValueFlow, module: ModuleUses, scope: Scope, name: str) -> Iterator[UsePlace]:
    """The places that read a name that a scope binds, or may read it by its text."""
    yield from (UsePlace(module, head) for head in module.heads_of(name, scope))
    if scope.kind == "module":
        home = module.facts.names.name
        for read in flow.stores.read_by_text(module):
            if read.owner is None and not flow.is_beside(read.module, "jax"):
                # It documents or installs programs, say.
                continue
            if read.key is None:
                yield from _in_dictionary(UsePlace(read.module, read.node, held=1), name)
            elif flow.texts(Value(read.module, read.key)).may_be(name):
                yield UsePlace(read.module, read.node)
        for other, node in flow.stores.reads(name):
            if isinstance(node, ast.Call) and flow.full_name(other, node.args[0]) == home:
                yield UsePlace(other, node)
        yield from (UsePlace(other, node) for other, node in flow.stores.named_elsewhere(module, name))


def _in_dictionary(place: UsePlace, name: str) -> Iterator[UsePlace]:
    """The dictionary of all names of a module, where it may be asked for one of a text, or is kept."""
    holder = place.module.parents[place.node]
    match holder, place.module.parents.get(holder):
        case (ast.Subscript(slice=ast.Constant(value=key)), _) | (
            ast.Attribute(attr="get" | "pop" | "setdefault"),
            ast.Call(args=[ast.Constant(value=key), *_]),
        ) if key != name:
            pass
        case (ast.Attribute(attr="update"), _) | (ast.Subscript(ctx=ast.Store() | ast.Del()), _):
            pass
        case _:
            yield place


def _after(flow: ValueFlow, place: UsePlace, used: Used) -> Iterator[UsePlace]:
    """Where a value comes to from one place."""
    module, node = place.module, place.node
    if module.in_annotation(node):
        return
    holder = module.parents[node]
    match holder:
        case ast.Call(func=function) if function is node and not place.held:
            used.calls.extend(_called(flow, place, flow.call_at(module, holder, None), used.takes_object))
        case ast.Call(args=[first, *others]) if first is node and not place.held:
            name = flow.full_name(module, holder.func)
            if name in PARTIALS:
                yield place._replace(node=holder, before=(flow.call_at(module, holder, None), *place.before))
            elif _wraps(flow, module, holder):
                yield place._replace(node=holder)
            elif name in MAPS:
                values = [Value(module, each, (ELEMENT,)) for each in others]
                used.calls.extend(_called(flow, place, flow.call_of(values), used.takes_object))
            else:
                yield from _handed_on(flow, place, holder, used)
        case ast.Call() if holder.func is not node:
            yield from _handed_on(flow, place, holder, used)
        case ast.keyword():
            call = module.parents[holder]
            if isinstance(call, ast.Call) and holder.arg == "fun" and not place.held and _wraps(flow, module, call):
                yield place._replace(node=call)
            elif isinstance(call, ast.Call):
                yield from _handed_on(flow, place, call, used)
        case ast.Assign(targets=targets):
            for target in targets:
                yield from _named(flow, place, target, used)
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            yield from _named(flow, place, target, used)
            if isinstance(holder, ast.NamedExpr):
                yield place._replace(node=holder)
        case ast.IfExp() | ast.BoolOp():
            yield place._replace(node=holder)
        case ast.Tuple() | ast.List() | ast.Set() | ast.Dict() if place.held < _DEEPEST and _is_loaded(holder):
            yield place.put(holder)
        case ast.Subscript(value=value, ctx=ast.Load()) if value is node and place.held:
            yield place.taken(holder)
        case ast.Attribute(attr="get" | "pop" | "setdefault") if place.held:
            call = module.parents[holder]
            if isinstance(call, ast.Call):
                yield place.taken(call)
        case ast.For(iter=iterated, target=target) | ast.comprehension(iter=iterated, target=target) if (
            iterated is node and place.held
        ):
            yield from _named(flow, place.taken(), target, used)
        case ast.Attribute(attr="lower" | "trace" | "eval_shape"):
            yield place._replace(node=holder)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node in holder.decorator_list:
            # It is called with what stands below it.
            below = holder.decorator_list.index(node) + 1
            is_last = below == len(holder.decorator_list)
            found = flow.call_with(Value(module, holder if is_last else Decorated(holder, below)))
            used.calls.extend(_called(flow, place, found, used.takes_object))
        case ast.Attribute() | ast.Compare() | ast.Expr() | ast.ClassDef() | ast.Subscript():
            if place.held and isinstance(holder, ast.Attribute):
                used.escapes.append((place, "it is kept where it cannot be followed"))
        case ast.Return():
            around = next((each for each in module.above(node) if isinstance(each, Function)), None)
            if around is not None:
                inner, reason = _given_by(flow, module, around)
                if reason is not None:
                    used.escapes.append((place, reason))
                yield from (
                    place._replace(module=each.module, node=each.node, read=each.read or place.read) for each in inner
                )
        case _:
            used.escapes.append((place, "it is kept where it cannot be followed"))


def _wraps(flow: ValueFlow, module: ModuleUses, call: ast.Call) -> bool:
    """Whether a call gives a function that passes its arguments on, also where one of several makes it."""
    name = flow.full_name(module, call.func)
    if name is not None:
        return name in WRAPPERS
    return bool(flow.must(flow.at(module, call.func), lambda value: value.outside in WRAPPERS or None))


def _is_loaded(display: ast.expr) -> bool:
    return isinstance(getattr(display, "ctx", ast.Load()), ast.Load)


def _given_by(
    flow: ValueFlow, module: ModuleUses, function: ast.AST, depth: int = 0
) -> tuple[list[UsePlace], str | None]:
    """The places of what a function gives: its calls by its name alone, and what it decorates."""
    found: list[UsePlace] = []
    for place in _places_of(flow, module, function):
        holder = place.module.parents.get(place.node)
        if isinstance(holder, ast.Call) and holder.func is place.node:
            found.append(UsePlace(place.module, holder))
        elif isinstance(holder, Function | ast.ClassDef):
            found += _places_of(flow, place.module, holder)
        elif isinstance(holder, ast.Return) and depth < _DEEPEST:
            # What it gives is given by calls of what another function gives.
            outer = next(each for each in place.module.above(holder) if isinstance(each, Function))
            inner, reason = _given_by(flow, place.module, outer, depth + 1)
            for each in inner:
                call = each.module.parents.get(each.node)
                if isinstance(call, ast.Call) and call.func is each.node:
                    found.append(UsePlace(each.module, call))
                elif isinstance(call, Function | ast.ClassDef):
                    found += _places_of(flow, each.module, call)
            if reason is not None:
                return found, reason
        elif not place.module.in_annotation(place.node):
            return found, "the function that returns it is passed on"
    return found, None


def _named(flow: ValueFlow, place: UsePlace, target: ast.expr, used: Used) -> Iterator[UsePlace]:
    module = place.module
    match target:
        case ast.Name(id=name):
            owner = module.scope_of(target)
            owner = owner.owner(name) or owner
            found = [*reads_of(flow, module, owner, name)]
            if owner.kind == "class" and isinstance(owner.node, ast.ClassDef):
                reads = [_read(home, node) for home, node in flow.stores.reads(name)]
                is_own = _is_of_each_object(flow, module, owner.node, name, place.node)
                found += [each._replace(read=None) for each in reads] if is_own else reads
        case ast.Attribute(value=owner_of, attr=name):
            found = [_read(home, node) for home, node in flow.stores.reads(name)]
            full = flow.full_name(module, owner_of)
            if full is not None and not flow.project.holds(full, module.facts):
                used.escapes.append((place, f"`{full}` is given it"))
            if _is_class(flow, module, owner_of) is False:
                # What an object has itself, other than what its class has, is called without it.
                found = [each._replace(read=None) for each in found]
        case ast.Subscript(value=container):
            used.escapes.append((place, "it is kept where it cannot be followed"))
            if place.held < _DEEPEST:
                yield from _named(flow, place.put(), container, used)
            return
        case ast.Call(func=ast.Attribute(value=container, attr="get" | "setdefault")) if place.held < _DEEPEST:
            # Another container is in it.
            yield from _named(flow, place.put(), container, used)
            return
        case ast.Tuple(elts=targets) | ast.List(elts=targets) if place.held:
            for part in targets:
                if isinstance(part, ast.Starred):
                    yield from _named(flow, place, part.value, used)
                else:
                    yield from _named(flow, place.taken(), part, used)
            return
        case _:
            used.escapes.append((place, "it is kept where it cannot be followed"))
            return
    for each in found:
        held = place.held + each.held
        yield place._replace(module=each.module, node=each.node, read=each.read or place.read, held=held)


def _handed_on(flow: ValueFlow, place: UsePlace, call: ast.Call, used: Used) -> Iterator[UsePlace]:
    """Where a value comes to that a call is given."""
    name = flow.full_name(place.module, call.func)
    function = flow.function_at(place.module, call.func)
    if function is None:
        told = f"it is passed to `{ast.unparse(call.func)}`" if name is None else f"`{name}` is given it"
        used.escapes.append((place, told))
        yield from _out_of_view(flow, place, call, name or "", used)
        return
    home, definition = function
    parameter = parameter_of(definition, call, place.node)
    if parameter is None:
        used.escapes.append((place, "it is passed among other arguments"))
        return
    scope = home.facts.names.inner[definition]
    for each in reads_of(flow, home, scope, parameter):
        yield place._replace(module=each.module, node=each.node)


def _out_of_view(flow: ValueFlow, place: UsePlace, call: ast.Call, name: str, used: Used) -> Iterator[UsePlace]:
    """Where a value may come to that a method is given, or a function of a library; its calls there."""
    module, node, method = place.module, place.node, last_name(call.func) or ""
    index = call.args.index(node) if node in call.args else -1
    after = [flow.argument(module, each) for each in call.args[index + 1 :] if not isinstance(each, ast.Starred)]
    words = {each.arg: Value(module, each.value) for each in call.keywords}
    found: CallArguments | None = None
    if name in CALL_BACK:
        called = called_back(flow, name, flow.call_at(module, call, None))
        used.calls.extend(
            each
            for function, given in called
            if function.head is node
            for each in _called(flow, place, given, used.takes_object)
        )
    elif name in CALL_IT or method in CALL_IT:
        found = CallArguments(after, [(word, each) for word, each in words.items() if each.head is not node])
    elif method in CALL_WITH_PARTS:
        given = [each.value for each in after] if index >= 0 else []
        args, kwargs = (
            words.get(word, given[place] if len(given) > place else None)
            for place, word in enumerate(("args", "kwargs"))
        )
        found = CallArguments(
            [GivenValue(args, is_starred=True)] if args is not None else [],
            [(None, kwargs)] if kwargs is not None else [],
        )
    elif method in CALL_WITH_ELEMENTS:
        is_starred, step = "starmap" in method, ANY_ITEM if name in MAKE_TREES else ELEMENT
        found = CallArguments([GivenValue(each.value.done(step), is_starred) for each in after])
    elif method == "add_done_callback" and isinstance(call.func, ast.Attribute):
        found = CallArguments([flow.argument(module, call.func.value)])
    elif method == "defvjp" and index == 0 and isinstance(call.func, ast.Attribute):
        # The forward pass gets what the function gets.
        owner = flow.binding_at(module, call.func.value)
        used.calls.extend(flow.calls_of(owner[0], owner[1].node)[0] if owner is not None else ())
    elif method in PUT_ONE and isinstance(call.func, ast.Attribute) and place.held < _DEEPEST:
        yield from _named(flow, place.put(), call.func.value, used)
    elif isinstance(call.func, ast.Attribute) and flow.stores.in_classes(method):
        yield from _in_methods(flow, place, call)
    if found is not None and not place.held:
        used.calls.extend(_called(flow, place, found, used.takes_object))


def _in_methods(flow: ValueFlow, place: UsePlace, call: ast.Call) -> Iterator[UsePlace]:
    """The parameter of a method of the project that gets an argument."""
    methods = flow.may(flow.at(place.module, call.func), lambda value: value if _is_method(value) else None)
    for value in methods.answers:
        definition = value.head
        assert isinstance(definition, Function)
        parameter = parameter_of(definition, call, place.node, is_bound=True)
        if parameter is not None:
            home = value.module
            for each in reads_of(flow, home, home.facts.names.inner[definition], parameter):
                yield place._replace(module=each.module, node=each.node)


def _is_method(value: Value) -> bool:
    return isinstance(value.head, Function) and [each.kind for each in value.path] == [By.BOUND]
