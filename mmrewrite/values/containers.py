"""One step back through containers: the entries of displays, and what is put into a container after it is made."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import PARTIALS
from mmrewrite.source.functions import with_defaults
from mmrewrite.values.arguments import parameter_of
from mmrewrite.values.targets import of_target
from mmrewrite.values.texts import ANYTHING, Texts
from mmrewrite.values.value import (
    ANY_ITEM,
    ELEMENT,
    REST,
    Access,
    By,
    Display,
    Key,
    Path,
    Unknown,
    Value,
    item,
)

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow

_Found = Iterator[Value | Unknown]
_MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
# What keeps a container, or gives it to others, but for names and attributes.
_KEEP_IT = (ast.Tuple, ast.List, ast.Dict, ast.Return, ast.Yield)
_MAKE_CONTAINERS = (
    *("builtins.list", "builtins.dict", "builtins.set", "collections.", "copy."),
    *("queue.", "asyncio.Queue", "multiprocessing.Queue", "weakref."),
)
_COPIES = frozenset(("copy", "_asdict"))
# What they make changes the container that it is made of.
_SHARE = frozenset(("collections.ChainMap", "typing.cast", "weakref.proxy"))
# Methods that put their last argument, or the elements of it, into a container.
PUT_ONE = frozenset(("add", "append", "appendleft", "insert", "setdefault", "__setitem__", "put", "put_nowait"))
# Functions that put their last argument into the first.
_PUT_LAST = frozenset(("heapq.heappush", "heapq.heappushpop", "heapq.heapreplace", "bisect.insort", "operator.setitem"))
_GIVE_PART = frozenset(("get", "setdefault"))
_PUT_ALL = frozenset(("extend", "extendleft", "update"))
_TAKE_OUT = frozenset(("pop", "popleft", "popitem"))
_REORDERED = "a container is changed, so that its items may stand elsewhere"
_REORDER = frozenset(("reverse", "rotate", "sort", "remove", "clear", *_TAKE_OUT))


def display_of(value: Value) -> Display:
    """The entries of a display that is written."""
    node = value.head

    def entry(key: ast.expr | None, part: ast.expr) -> tuple[ast.expr | None, Value, bool]:
        is_spread = isinstance(part, ast.Starred)
        return (
            key,
            Value(value.module, part.value if isinstance(part, ast.Starred) else part, (), value.frame),
            is_spread,
        )

    if isinstance(node, ast.Dict):
        pairs = [entry(key, part) for key, part in zip(node.keys, node.values, strict=True)]
        return Display([(key, part, key is None) for key, part, _ in pairs], is_mapping=True)
    assert isinstance(node, ast.Tuple | ast.List | ast.Set)
    return Display([entry(None, part) for part in node.elts], is_mapping=False, is_loose=isinstance(node, ast.Set))


def parts_of(value: Value) -> Iterator[Value]:
    """What a container may hold besides its keys: what is written in it, and what is put into it later."""
    head = value.head
    if value.path:
        return
    if isinstance(head, ast.Tuple | ast.List | ast.Set | ast.Dict | Display):
        yield from (part for _, part, _ in (head if isinstance(head, Display) else display_of(value)).entries)
    elif isinstance(head, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        yield value._replace(head=head.elt)
    elif isinstance(head, ast.DictComp):
        yield value._replace(head=head.value)
    elif isinstance(head, ast.Name | ast.Attribute):
        yield value.done(ANY_ITEM)


def of_display(flow: ValueFlow, value: Value, display: Display) -> _Found:
    """What is taken of values side by side."""
    holder = value.module.parents.get(value.head) if isinstance(value.head, _MUTABLE) else None
    if isinstance(holder, _KEEP_IT) or (isinstance(holder, ast.Assign) and len(holder.targets) > 1):
        yield Unknown("a container may be changed where it is kept", value)
    for path, default in paths_of_items(value.path):
        if default is not None:
            yield default
        step, rest = path[0], path[1:]
        if display.is_mapping:
            yield from _of_mapping(flow, value, display, step, rest)
        else:
            yield from _of_sequence(display, step, rest)


def _of_sequence(display: Display, step: Access, rest: Path) -> _Found:
    entries = display.entries
    if step.kind is By.REST:
        if rest and rest[0].kind in (By.ITEM, By.ELEMENT):
            step, rest = ELEMENT, rest[1:]
        else:
            return
    key = step.what.text if step.kind is By.ITEM and isinstance(step.what, Key) else None
    is_placed = isinstance(key, int) and not display.is_loose and not any(spread for _, _, spread in entries)
    if is_placed and isinstance(key, int):
        yield from [entries[key][1].done(*rest)] if -len(entries) <= key < len(entries) else []
        return
    if (
        isinstance(key, int)
        and key >= 0
        and not display.is_loose
        and not any(spread for _, _, spread in entries[: key + 1])
    ):
        yield entries[key][1].done(*rest)
        return
    for _, part, is_spread in entries:
        yield part.done(ELEMENT, *rest) if is_spread else part.done(*rest)


def _of_mapping(flow: ValueFlow, value: Value, display: Display, step: Access, rest: Path) -> _Found:
    key = step.what if step.kind is By.ITEM else None
    for word, part, is_spread in display.entries:
        if step.kind is By.ELEMENT:
            if is_spread:
                yield part.done(ELEMENT, *rest)
            elif isinstance(word, ast.expr):
                yield Value(value.module, word, rest, value.frame)
            continue
        if is_spread:
            yield part.done(step, *rest)
            continue
        text = word.value if isinstance(word, ast.Constant) else word
        if key is None or isinstance(text, ast.expr) or item(text).what == key:
            yield part.done(*rest)


def paths_of_items(path: Path) -> Iterator[tuple[Path, Value | None]]:
    """A path into a container in terms of items and elements, where a method was called; with a default."""
    if not path:
        return
    match path:
        case [Access(By.ITEM | By.ELEMENT | By.REST), *_]:
            yield path, None
        case [Access(By.ATTRIBUTE, "get"), Access(By.CALL, call), Access(By.AWAITED), *rest] if call.at(0) is None:
            # Of an `asyncio.Queue`.
            yield (ANY_ITEM, *rest), None
        case [
            Access(By.ATTRIBUTE, "get" | "get_nowait" | "pop" | "setdefault" | "__getitem__" as name),
            Access(By.CALL, call),
            *rest,
        ]:
            key = call.at(0)
            default = call.at(1, "default") if name != "__getitem__" else None
            yield (key_step(key), *rest), default.done(*rest) if default is not None else None
        case [Access(By.ATTRIBUTE, "popleft"), Access(By.CALL), *rest]:
            yield (ELEMENT, *rest), None
        case [
            Access(By.ATTRIBUTE, "values"),
            Access(By.CALL),
            Access(By.ELEMENT | By.ITEM),
            *rest,
        ]:
            yield (ANY_ITEM, *rest), None
        case [Access(By.ATTRIBUTE, "keys"), Access(By.CALL), Access(By.ELEMENT), *rest]:
            yield (ELEMENT, *rest), None
        case [
            Access(By.ATTRIBUTE, "items"),
            Access(By.CALL),
            Access(By.ELEMENT | By.ITEM),
            Access(By.ITEM, key),
            *rest,
        ]:
            yield (ELEMENT if key is not None and key.text == 0 else ANY_ITEM, *rest), None
        case [Access(By.ATTRIBUTE, "popitem"), Access(By.CALL), Access(By.ITEM, key), *rest]:
            yield (ELEMENT if key is not None and key.text == 0 else ANY_ITEM, *rest), None
        case [Access(By.ATTRIBUTE, "union" | "difference" | "intersection"), Access(By.CALL, call), step, *rest]:
            other = call.first()
            yield (step, *rest), other.done(step, *rest) if other is not None else None
        case [Access(By.ATTRIBUTE, "copy" | "__iter__"), Access(By.CALL), *rest]:
            yield from paths_of_items(tuple(rest))
        case _:
            pass


def key_step(key: Value | None) -> Access:
    """The step to an item by its key, any item if the key is not written."""
    if key is not None and isinstance(key.head, ast.Constant) and not key.path:
        return item(key.head.value)
    return ANY_ITEM


def subscript_step(node: ast.expr) -> Access:
    """What `[...]` takes."""
    match node:
        case ast.Slice() | ast.Call(func=ast.Name(id="slice")):
            return REST
        case ast.Constant(value=value):
            return item(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return item(-value)
        case _:
            return ANY_ITEM


def put_into(
    flow: ValueFlow,
    values: Iterable[tuple[ModuleUses, ast.expr | None]],
    places: Iterable[tuple[ModuleUses, ast.expr]],
    path: Path,
) -> _Found:
    """What is put into a container of some values at the places that name it, as far as a path asks for it."""
    asked = [each for each, _ in paths_of_items(path)]
    if not asked:
        return
    step, rest = asked[0][0], asked[0][1:]
    found = [each for home, place in places for each in _put_at(flow, home, place, step, rest)]
    values = [*values] if found else ()
    # What a library gives may be no container at all.
    is_seen = any(is_container(flow, *each) for each in values)
    for each in found:
        if isinstance(each, Unknown) and each.reason == _REORDERED:
            yield from (Value(module, value, (ANY_ITEM, *rest)) for module, value in values if value is not None)
        if is_seen or isinstance(each, Value):
            yield each


def is_container(flow: ValueFlow, module: ModuleUses, value: ast.expr | None) -> bool:
    """Whether an expression may make a container."""
    if value is None:
        # A parameter, or a part of something.
        return True
    if isinstance(value, ast.Call):
        name = flow.full_name(module, value.func)
        if name is None:
            return isinstance(value.func, ast.Attribute) and value.func.attr in _COPIES
        return name.startswith(_MAKE_CONTAINERS) or flow.project.holds(name, module.facts)
    is_slice = isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice)
    return is_slice or isinstance(value, (*_MUTABLE, ast.BinOp, ast.IfExp, ast.BoolOp))


def _put_at(
    flow: ValueFlow, module: ModuleUses, place: ast.expr, step: Access, rest: Path, *, is_other: bool = False
) -> _Found:
    """What is put into a container at a place that names it; `is_other` is true where another name does."""
    holder = module.parents[place]
    is_handed_on = not is_other and isinstance(holder, ast.Assign | ast.Call | ast.keyword | ast.arguments)
    for home, other in _other_names(flow, module, place) if is_handed_on else ():
        yield from _put_at(flow, home, other, step, rest, is_other=True)
    match holder:
        case ast.Subscript(value=value, ctx=ast.Store()) if value is place:
            key = subscript_step(flow.written(module, holder.slice))
            if _may_be_same(key, step):
                taken = of_target(module, holder)
                if taken is None:
                    yield Unknown("what is put into a container cannot be seen", Value(module, holder))
                else:
                    inner = (ELEMENT,) if key.kind is By.REST else ()
                    yield Value(module, taken.source, (*taken.path, *inner, *rest))
        case ast.Subscript(value=value, slice=key, ctx=ast.Load()) if value is place:
            # Something is put into what is in it.
            if _may_be_same(subscript_step(flow.written(module, key)), step):
                yield from _put_inside(flow, module, holder, rest)
        case ast.Subscript(value=value, ctx=ast.Del()) if value is place:
            yield Unknown("a container loses some of its items", Value(module, holder))
        case ast.Attribute(attr=method):
            call = module.parents.get(holder)
            if isinstance(call, ast.Call) and call.func is holder:
                yield from _by_method(flow, module, call, method, step, rest)
                if method in _GIVE_PART:
                    yield from _put_inside(flow, module, call, rest)
            elif method in PUT_ONE or method in _PUT_ALL:
                yield Unknown("a method that changes a container is passed on", Value(module, holder))
                inner = () if method in PUT_ONE else (step,) if method == "update" else (ELEMENT,)
                for found in flow.calls_of(module, holder)[0]:
                    yield from (each.value.done(*inner, *rest) for each in found.positional[-1:])
        case ast.AugAssign(target=target, value=value) if target is place:
            yield Value(module, value, (ELEMENT if step.kind is not By.ITEM else step, *rest))
        case ast.Call() if holder.func is not place:
            name = flow.full_name(module, holder.func) if holder.args[0] is place else None
            if name in _PUT_LAST:
                yield Value(module, holder.args[-1], rest)
            elif name == "unittest.mock.patch.dict":
                yield from (Value(module, each, (step, *rest)) for each in holder.args[1:])
            yield from _handed_on(flow, module, holder)
        case ast.keyword():
            call = module.parents[holder]
            if isinstance(call, ast.Call):
                yield from _handed_on(flow, module, call)
        case ast.Assign() | ast.NamedExpr() | ast.Tuple() | ast.List() | ast.Dict():
            # Another name of it.
            yield Unknown("a container has another name, by which it may be changed", Value(module, holder))
        case _:
            pass


def _other_names(flow: ValueFlow, module: ModuleUses, place: ast.expr) -> Sequence[tuple[ModuleUses, ast.expr]]:
    """Where a container is named that a place gives another name, or passes to a function.

    Places are come to for each part of a container that is asked for.
    """
    return flow.project.once(("other names", place), lambda: tuple(_find_other_names(flow, module, place)))


def _find_other_names(flow: ValueFlow, module: ModuleUses, place: ast.expr) -> Iterator[tuple[ModuleUses, ast.expr]]:
    holder = module.parents[place]
    if isinstance(holder, ast.Assign) and holder.value is place:
        for target in holder.targets:
            if isinstance(target, ast.Name):
                owner = module.scope_of(target).owner(target.id)
                yield from ((module, head) for head in module.heads_of(target.id, owner))
        return
    if isinstance(holder, ast.arguments):
        # It is the default of a parameter.
        names = [parameter.arg for parameter, default in with_defaults(holder) if default is place]
        scope = module.facts.names.inner[module.parents[holder]]
        yield from ((module, head) for name in names for head in module.heads_of(name, scope))
        return
    call = module.parents[holder] if isinstance(holder, ast.keyword) else holder
    if isinstance(call, ast.Call) and flow.full_name(module, call.func) in _SHARE:
        yield module, call
        yield from _find_other_names(flow, module, call)
        return
    if isinstance(call, ast.Call) and flow.full_name(module, call.func) in PARTIALS and call.args[:1] != [place]:
        call = ast.Call(call.args[0], call.args[1:], call.keywords)
    function = flow.function_at(module, call.func) if isinstance(call, ast.Call) and call.func is not place else None
    name = parameter_of(function[1], call, place) if function is not None and isinstance(call, ast.Call) else None
    if function is not None and name is not None:
        home, scope = function[0], function[0].facts.names.inner[function[1]]
        yield from ((home, head) for head in home.heads_of(name, scope))


def _put_inside(flow: ValueFlow, module: ModuleUses, place: ast.expr, path: Path) -> _Found:
    for (step, *rest), _ in paths_of_items(path):
        yield from _put_at(flow, module, place, step, (*rest,))


def _by_method(flow: ValueFlow, module: ModuleUses, call: ast.Call, method: str, step: Access, rest: Path) -> _Found:
    if method in PUT_ONE and call.args:
        key = subscript_step(call.args[0]) if method in ("setdefault", "__setitem__") else ANY_ITEM
        if _may_be_same(key, step):
            yield Value(module, call.args[-1], rest)
    elif method in _PUT_ALL:
        for each in call.args:
            yield Value(module, each, (step if method == "update" else ELEMENT, *rest))
            if method == "update" and isinstance(each, ast.List | ast.Tuple | ast.ListComp | ast.GeneratorExp):
                # Pairs of keys and values.
                yield Value(module, each, (ELEMENT, item(1), *rest))
        for keyword in call.keywords:
            if keyword.arg is None or _may_be_same(item(keyword.arg), step):
                yield Value(module, keyword.value, rest if keyword.arg is not None else (step, *rest))
    elif method in _REORDER and step.kind is By.ITEM:
        yield Unknown(_REORDERED, Value(module, call))


def _handed_on(flow: ValueFlow, module: ModuleUses, call: ast.Call) -> Sequence[Unknown]:
    return flow.project.once(("handed on", call), lambda: tuple(_find_handed_on(flow, module, call)))


def _find_handed_on(flow: ValueFlow, module: ModuleUses, call: ast.Call) -> Iterator[Unknown]:
    name = flow.full_name(module, call.func)
    if name is None or flow.project.holds(name, module.facts):
        yield Unknown(f"`{ast.unparse(call.func)}` may change a container that it is passed", Value(module, call))


def _may_be_same(one: Access, other: Access) -> bool:
    return one.kind is not By.ITEM or other.kind is not By.ITEM or None in (one.what, other.what) or one == other


def of_comprehension(value: Value) -> _Found:
    """What is taken of a comprehension."""
    node = value.head
    for path, default in paths_of_items(value.path):
        if default is not None:
            yield default
        if path[0].kind is By.REST:
            path = path[1:]
        if isinstance(node, ast.DictComp):
            if path[0].kind is By.ITEM and not _may_be_key(node.key, path[0].what):
                continue
            yield Value(value.module, node.key if path[0].kind is By.ELEMENT else node.value, path[1:], value.frame)
        elif path:
            assert isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp)
            yield Value(value.module, node.elt, path[1:], value.frame)


def _may_be_key(node: ast.expr, key: Key | None) -> bool:
    """Whether the key of a comprehension may be one that is asked for, by what is written of it."""
    if not isinstance(node, ast.JoinedStr) or key is None:
        return True
    parts = (str(each.value) if isinstance(each, ast.Constant) else ANYTHING for each in node.values)
    return Texts(["".join(parts)], is_whole=False).may_be(f"{key.text}")
