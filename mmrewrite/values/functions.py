"""One step back through functions: what a call gives, what a parameter gets, and what decorators make of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from mmrewrite.source.functions import with_defaults
from mmrewrite.values.arguments import default_of, of_parameter
from mmrewrite.values.containers import put_into
from mmrewrite.values.value import (
    ANY_ITEM,
    AWAITED,
    ELEMENT,
    Access,
    By,
    CallArguments,
    CallFrame,
    Decorated,
    Function,
    GivenValue,
    Key,
    Own,
    Passed,
    Unknown,
    Value,
    attribute,
)

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow

_Found = Iterator[Value | Unknown]
_PARTS = frozenset(("__code__", "__defaults__", "__globals__", "__kwdefaults__", "cell_contents"))
_HOLD_ANYTHING = frozenset(("__annotations__", "__closure__", "__code__", "__dict__"))
# A function that a known call entered knows that call; so many calls deep, all calls are looked for.
_DEEPEST_FRAME = 2


class FunctionResults(NamedTuple):
    """What a function returns and yields; `parts` are what it yields all elements of."""

    returned: Sequence[ast.expr]
    yielded: Sequence[ast.expr]
    parts: Sequence[ast.expr]
    is_generator: bool
    is_stub: bool


@lru_cache(maxsize=4096)
def results_of(function: Function | ast.Lambda) -> FunctionResults:
    """The results of a function, but for those of functions in it."""
    if isinstance(function, ast.Lambda):
        return FunctionResults([function.body], (), (), is_generator=False, is_stub=False)
    returned, yielded, parts = [], [], []
    is_generator = False
    queue: list[ast.AST] = [*reversed(function.body)]
    while queue:
        node = queue.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
                continue
            case ast.Return(value=ast.expr() as value):
                returned.append(value)
            case ast.Yield(value=value):
                is_generator = True
                yielded += [value] if value is not None else []
            case ast.YieldFrom(value=value):
                is_generator = True
                parts.append(value)
            case _:
                pass
        queue += reversed([*ast.iter_child_nodes(node)])
    is_stub = not returned and all(map(_says_nothing, function.body))
    return FunctionResults(returned, yielded, parts, is_generator, is_stub)


def _says_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass | ast.Raise) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def of_function(flow: ValueFlow, value: Value) -> _Found:
    """What is made of a function without its decorators: a call of it, mostly."""
    function, path = value.head, value.path
    assert isinstance(function, Function | ast.Lambda)
    match path:
        case [Access(By.BOUND, owner), Access(By.CALL, call), *rest]:
            yield Value(value.module, function, (Access(By.CALL, flow.merged(owner, call)), *rest), value.frame)
        case [Access(By.BOUND, owner), Access(By.ATTRIBUTE, "__self__"), *rest]:
            yield owner.done(*rest)
        case [Access(By.BOUND), *rest] if rest:
            yield Value(value.module, function, tuple(rest), value.frame)
        case [Access(By.ATTRIBUTE, "__call__" | "__func__" | "__wrapped__"), *rest]:
            yield Value(value.module, function, tuple(rest), value.frame)
        case [Access(By.ATTRIBUTE, "__get__"), Access(By.CALL, call), *rest] if call.first() is not None:
            yield Value(value.module, function, (Access(By.BOUND, call.first()), *rest), value.frame)
        case [Access(By.ATTRIBUTE, "__globals__"), Access(By.ITEM, Key(text=str(name))), *rest]:
            yield Value(value.module, value.module.facts.tree, (attribute(name), *rest))
        case [Access(By.ATTRIBUTE, "__defaults__" | "__kwdefaults__"), Access(By.ITEM | By.ELEMENT), *rest]:
            defaults = (default for _, default in with_defaults(function.args) if default is not None)
            yield from (Value(value.module, each, tuple(rest)) for each in defaults)
        case [Access(By.ATTRIBUTE, str(name)), *rest]:
            if rest and name in _HOLD_ANYTHING:
                yield Unknown(f"what `{name}` of a function holds is not seen", value)
            stores = [each for each in flow.stores.of(name) if flow.may_be(each, function)]
            for store in stores:
                yield from flow.stored(store, tuple(rest), None)
            values = [(store.module, flow.source_of(store)) for store in stores]
            yield from put_into(flow, values, flow.stores.reads(name) if stores else (), tuple(rest))
        case [Access(By.CALL, call), *rest]:
            yield from _called(flow, value, function, call, tuple(rest))
        case _:
            pass


def _called(
    flow: ValueFlow, value: Value, function: Function | ast.Lambda, call: CallArguments, rest: tuple[Access, ...]
) -> _Found:
    results = results_of(function)
    for word, store in flow.stores.remade:
        if word in _PARTS and flow.may_be(store, function):
            yield Unknown(f"line {store.node.lineno} of {store.module.facts.path} sets its `{word}`", value)
            yield from flow.stored(store, (ANY_ITEM, *rest), None)
    outer = value.frame
    depth = 1 + max(call.depth, outer.depth if outer is not None else 0)
    frame = CallFrame(function, call, outer, depth) if depth <= _DEEPEST_FRAME else None
    if results.is_generator:
        senders, steps = (("send", "throw"), 2) if isinstance(function, ast.FunctionDef) else (("asend", "athrow"), 3)
        if len(rest) >= steps and rest[0].kind is By.ATTRIBUTE and rest[0].what in senders:
            yield Unknown("a generator is sent values", value)
            yield from (Value(value.module, each, rest[steps:], frame) for each in results.yielded)
        if rest and rest[0].kind in (By.ELEMENT, By.ITEM, By.REST):
            yield from (Value(value.module, each, rest[1:], frame) for each in results.yielded)
            yield from (Value(value.module, each, (ELEMENT, *rest[1:]), frame) for each in results.parts)
        elif rest[:1] == (attribute("__next__"),):
            yield from (Value(value.module, each, rest[2:], frame) for each in results.yielded)
        elif rest[:1] == (AWAITED,) and isinstance(function, ast.FunctionDef):
            # `yield from` of it.
            yield from (Value(value.module, each, rest[1:], frame) for each in results.returned)
        return
    if isinstance(function, ast.AsyncFunctionDef):
        if rest[:1] != (AWAITED,):
            return
        rest = rest[1:]
    if results.is_stub:
        yield Unknown(f"`{getattr(function, 'name', '')}` has no body in view", value)
    yield from (Value(value.module, each, rest, frame) for each in results.returned)


def of_sent(flow: ValueFlow, value: Value) -> _Found:
    """What `yield` gives in a generator."""
    for module, call in (*flow.stores.calls("send"), *flow.stores.calls("asend")):
        yield from (Value(module, sent, value.path) for sent in call.args)
    yield Unknown("a generator is sent values", value)


def of_decorated(flow: ValueFlow, value: Value) -> _Found:
    """A function or class as its outermost decorator gives it."""
    decorated = value.head
    assert isinstance(decorated, Decorated)
    node, place = decorated
    inner: Decorated | Function | ast.ClassDef = Decorated(node, place + 1)
    if place + 1 == len(node.decorator_list):
        inner = node
    decorator = node.decorator_list[place]
    name = flow.full_name(value.module, decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
    if name in _KEEP_IT or (isinstance(node, ast.ClassDef) and name.rpartition(".")[2] in _KEEP_CLASSES):
        yield Value(value.module, inner, value.path, value.frame)
        return
    given = flow.call_with(Value(value.module, inner, (), value.frame))
    yield Value(value.module, decorator, (Access(By.CALL, given), *value.path), value.frame)


# Decorators that give what they are given.
_KEEP_IT = frozenset(
    (
        *("attr.attrs", "attr.s"),
        "abc.abstractmethod",
        "atexit.register",
        "functools.total_ordering",
        "typing.final",
        "typing.no_type_check",
        "typing.override",
        "typing.runtime_checkable",
        "typing_extensions.override",
        "typing_extensions.final",
        "flax.linen.compact",
        "flax.linen.compact_name_scope",
        "flax.linen.nowrap",
    )
)
# Decorators of classes that are called so add methods alone.
_KEEP_CLASSES = frozenset(("dataclass", "dataclass_transform", "define", "frozen", "mutable", "register_dataclass",
    "register_dataclass_with_keys", "register_pytree_node_class", "register_pytree_with_keys_class", "total_ordering",
    "register_static", "register_data_type",
    "runtime_checkable", "final"))  # fmt: skip


def of_argument(flow: ValueFlow, value: Value) -> _Found:
    """What a parameter gets."""
    module, parameter, path, frame = value
    assert isinstance(parameter, ast.arg)
    arguments = module.parents[parameter]
    assert isinstance(arguments, ast.arguments)
    function = module.parents[arguments]
    assert isinstance(function, Function | ast.Lambda)
    holder = module.parents.get(function)
    if frame is not None and frame.function is function:
        for each in of_parameter(module, function, parameter, frame.call, frame.outer):
            yield each.done(*path) if isinstance(each, Value) else each
            is_by_syntax = getattr(function, "name", "").startswith("__") and frame.call.node is None
            if isinstance(each, Unknown) and is_by_syntax and isinstance(holder, ast.ClassDef):
                # Python calls the method for an item, say, and the key is not at hand.
                yield Value(module, Passed(parameter), path)
        return
    first = [*arguments.posonlyargs, *arguments.args][:1]
    if isinstance(holder, ast.ClassDef) and first == [parameter]:
        marks = (
            {flow.full_name(module, each) for each in function.decorator_list} if isinstance(function, Function) else ()
        )
        if "builtins.staticmethod" not in marks:
            is_class = "builtins.classmethod" in marks or getattr(function, "name", "") in _OF_CLASSES
            yield Value(module, Own(holder, is_class), path)
            if parameter.arg not in ("self", "cls"):
                # It may be called through its class.
                yield Value(module, Passed(parameter), path)
            return
    if isinstance(function, Function) and module.facts.names.scopes[function].kind != "function":
        yield Unknown(f"`{parameter.arg}` may be passed by other code", value, is_open=True)
    default = default_of(function, parameter)
    if default is not None:
        yield Value(module, default, path)
    yield Value(module, Passed(parameter), path)


def of_passed(flow: ValueFlow, value: Value) -> _Found:
    """What calls in view pass for a parameter."""
    module, passed, path, _ = value
    assert isinstance(passed, Passed)
    function = module.parents[module.parents[passed.parameter]]
    assert isinstance(function, Function | ast.Lambda)
    calls, reason = flow.calls_of(module, function)
    default = default_of(function, passed.parameter)
    if reason is not None or not calls:
        name = getattr(function, "name", "a lambda")
        why = reason or "no call is in view"
        told = f"`{passed.parameter.arg}` of `{name}` may be passed by code out of view: {why}"
        yield Unknown(told, Value(module, passed.parameter, path))
        if isinstance(function, Function):
            from mmrewrite.values.fixtures import of_tests

            yield from of_tests(flow, module, function, passed.parameter, path)
    if default is not None:
        # Where nothing else is passed.
        yield Value(module, default, path)
    for each in flow.passed(module, function, passed.parameter, calls):
        yield each.done(*path) if isinstance(each, Value) else each


_OF_CLASSES = ("__new__", "__init_subclass__", "__class_getitem__")


def call_of(values: Sequence[Value]) -> CallArguments:
    """A call with some arguments by position."""
    return CallArguments([GivenValue(value) for value in values])
