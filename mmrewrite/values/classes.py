"""One step back through objects: what their attributes are, and what they give where something is done to them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding
from mmrewrite.values.containers import paths_of_items, put_into
from mmrewrite.values.names import of_bound
from mmrewrite.values.stores import Store, own_class
from mmrewrite.values.value import (
    AWAITED,
    ELEMENT,
    Access,
    By,
    CallArguments,
    CallFrame,
    Function,
    Own,
    Path,
    Unknown,
    Value,
    attribute,
    item,
)

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow

_Found = Iterator[Value | Unknown]
Definition = tuple[ModuleUses, ast.ClassDef]
# The methods that Python calls for what is done to an object, and what is done to what they give.
_METHODS = {
    By.ITEM: ("__getitem__", "__missing__", "__iter__"),
    By.REST: ("__getitem__",),
    By.ELEMENT: ("__iter__", "__next__", "__getitem__", "__anext__"),
    By.ENTERED: ("__enter__", "__aenter__"),
    By.AWAITED: ("__await__",),
}
# What is done to what they give.
_INNER = {"__iter__": ELEMENT, "__aenter__": AWAITED, "__anext__": AWAITED, "__await__": AWAITED}


class Bases(NamedTuple):
    """A class and its bases: classes of the project, full names of others, and whether all are seen.

    `metaclasses` are those of the project, `made` bases that a call makes, such as `namedtuple("Pair", "a b")`.
    """

    classes: Sequence[Definition]
    outside: Sequence[str]
    is_whole: bool
    metaclasses: Sequence[Definition]
    made: Sequence[Value]


def bases_of(flow: ValueFlow, module: ModuleUses, definition: ast.ClassDef) -> Bases:
    """The bases of a class, nearest first."""
    classes: list[Definition] = [(module, definition)]
    outside: list[str] = []
    is_whole = True
    metaclasses: list[Definition] = []
    made: list[Value] = []
    for home, each in classes:
        made_by = [keyword.value for keyword in each.keywords if keyword.arg in ("metaclass", None)]
        metaclasses += filter(None, (flow.class_at(home, made) for made in made_by))
        is_whole &= all(flow.full_name(home, made) in _PLAIN_METACLASSES for made in made_by)
        for base in each.bases:
            node = base.value if isinstance(base, ast.Subscript) else base
            found = flow.class_at(home, node)
            if found is not None:
                classes += [found] if found not in classes else []
                continue
            name = flow.full_name(home, node)
            if name is not None:
                outside.append(name)
            else:
                is_whole = False
                made += [Value(home, node)] if isinstance(node, ast.Call) else []
    return Bases(classes, [name for name in outside if name not in _PLAIN_BASES], is_whole, metaclasses, made)


_ENUMS = frozenset(f"enum.{name}" for name in ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"))
_PLAIN_METACLASSES = frozenset(("abc.ABCMeta", "enum.EnumMeta", "builtins.type"))
_PLAIN_BASES = frozenset(
    ("builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol", "typing.NamedTuple", "builtins.Exception")
)


def of_class(flow: ValueFlow, value: Value) -> _Found:
    """What is done to a class, or to an object that a call of it makes."""
    module, definition, path, frame = value
    assert isinstance(definition, ast.ClassDef)
    match path:
        case [Access(By.ATTRIBUTE, "__new__"), Access(By.CALL), *rest] if not any(
            _own_methods(flow, module, definition, "__new__")
        ):
            yield Value(module, definition, (Access(By.CALL, flow.no_arguments), *rest), frame)
        case [Access(By.ATTRIBUTE, "__class__" | "__new__" | "__init__"), *_]:
            return
        case [Access(By.ATTRIBUTE, "__subclasses__"), Access(By.CALL), Access(By.ITEM | By.ELEMENT), *rest]:
            yield from (Value(*below, tuple(rest)) for below in flow.below(definition))
        case [Access(By.ATTRIBUTE, str(name)), *rest]:
            yield from _attribute(
                flow, value, (module, definition), None, name, tuple(rest), is_class=True, is_exact=True
            )
        case [Access(By.ITEM | By.ELEMENT) as step, *rest]:
            yield from _taken_of_class(flow, value, definition, step, tuple(rest))
        case [Access(By.BOUND), *rest]:
            yield Value(module, definition, tuple(rest), frame)
        case [Access(By.CALL), Access(By.ATTRIBUTE, "__class__"), *rest]:
            yield Value(module, definition, tuple(rest), frame)
        case [Access(By.CALL) as made, Access(By.BOUND, owner), *rest]:
            # What a class holds is given the object only if it is a descriptor.
            is_descriptor = any(_own_methods(flow, module, definition, "__get__"))
            steps = _got(flow, owner, owner.done(attribute("__class__"))) if is_descriptor else ()
            yield Value(module, definition, (made, *steps, *rest), frame)
        case [Access(By.CALL, call), step, *rest]:
            yield from _by_makers(flow, value, definition, call, (step, *rest))
            if step.kind is By.ATTRIBUTE:
                yield from _attribute(
                    flow, value, (module, definition), call, step.what, tuple(rest), is_class=False, is_exact=True
                )
            else:
                yield from _by_method(
                    flow, Value(module, definition, (Access(By.CALL, call),), frame), step, tuple(rest)
                )
        case [Access(By.CALL, call)]:
            yield from _by_makers(flow, value, definition, call, ())
        case _:
            pass


def _by_makers(flow: ValueFlow, value: Value, definition: ast.ClassDef, call: CallArguments, rest: Path) -> _Found:
    """What methods give that say themselves what a call of a class makes."""
    of = (value.module, definition)
    makers = [*_own_methods(flow, *of, "__new__")]
    makers += (each for kind in flow.bases(*of).metaclasses for each in _own_methods(flow, *kind, "__call__"))
    for home, method in makers:
        yield Value(home, method, (Access(By.CALL, flow.merged(Value(*of), call)), *rest))


def _got(flow: ValueFlow, instance: Value, owner: Value) -> Path:
    """The steps by which a descriptor is read of an object, or of a class."""
    call = flow.same(flow.call_of([instance, owner]), flow.call_with(owner), attribute("__get__"))
    return attribute("__get__"), Access(By.CALL, call)


def _taken_of_class(flow: ValueFlow, value: Value, definition: ast.ClassDef, step: Access, rest: Path) -> _Found:
    """`Kind["a"]` of an enumeration, `Box[int]`, and what methods for it give."""
    bases = flow.bases(value.module, definition)
    members = _members(bases)
    if members:
        key = step.what.text if step.kind is By.ITEM and step.what is not None else None
        for name in [key] if key in members else members:
            yield value._replace(path=(attribute(name), *rest))
    elif step.kind is By.ITEM and (found := _first_with(bases.classes, "__class_getitem__")):
        called = Access(By.CALL, flow.call_with(Value(*found[0])))
        yield Value(value.module, value.head, (attribute("__class_getitem__"), called, *rest))
    elif bases.metaclasses:
        yield from (_made(flow, each).done(step, *rest) for each in bases.metaclasses)
    elif step.kind is By.ITEM:
        # A generic class with what its parameters stand for.
        yield value._replace(path=rest)


def _members(bases: Bases) -> dict[str, list[Value]]:
    """What the members of an enumeration may be made of, by name; none of another class."""
    found: dict[str, list[Value]] = {}
    for module, each in bases.classes if not _ENUMS.isdisjoint(bases.outside) else ():
        for name, bindings in module.facts.names.inner[each].bindings.items():
            values = [Value(module, binding.value) for binding in bindings if binding.value is not None]
            if values and not name.startswith("_"):
                found.setdefault(name, values)
    return found


def _said_by_new(bases: Bases, definition: ast.ClassDef, value: Value) -> Iterator[Unknown]:
    """Why the value of a member of an enumeration may be another than what is assigned to it."""
    if any(_binds(*each, "__new__") for each in bases.classes):
        yield Unknown(f"`{definition.name}` says itself what the values of its members are", value)


def _made(flow: ValueFlow, definition: Definition) -> Value:
    """An object of a class."""
    return Value(*definition, (Access(By.CALL, flow.no_arguments),))


def of_own(flow: ValueFlow, value: Value) -> _Found:
    """What is done to `self` or `cls`: of a class, or of one below it."""
    module, own, path, _ = value
    assert isinstance(own, Own)
    match path:
        case [Access(By.ATTRIBUTE, "__class__"), *rest]:
            yield Value(module, Own(own.definition, True), tuple(rest))
        case [Access(By.ATTRIBUTE, "__new__"), Access(By.CALL), *rest] if own.is_class and not any(
            _own_methods(flow, module, own.definition, "__new__")
        ):
            yield Value(module, Own(own.definition, False), tuple(rest))
        case [Access(By.ATTRIBUTE, "__subclasses__"), *_] if own.is_class:
            yield Value(module, own.definition, path)
        case [Access(By.CALL, call), *rest] if own.is_class:
            for home, below in ((module, own.definition), *flow.below(own.definition)):
                yield Value(home, below, (Access(By.CALL, call), *rest))
        case [Access(By.ATTRIBUTE, str(name)), *rest]:
            yield from _attribute(
                flow, value, (module, own.definition), None, name, tuple(rest), is_class=own.is_class, is_exact=False
            )
        case [step, *rest]:
            yield from _by_method(flow, Value(module, own), step, tuple(rest))
        case _:
            pass


def _own_methods(
    flow: ValueFlow, module: ModuleUses, definition: ast.ClassDef, name: str
) -> Iterator[tuple[ModuleUses, Function]]:
    for home, each in flow.bases(module, definition).classes:
        for binding in home.facts.names.inner[each].bindings.get(name, ()):
            if isinstance(binding.node, Function):
                yield home, binding.node


def _by_method(flow: ValueFlow, owner: Value, step: Access, rest: Path) -> _Found:
    """What the method gives that Python calls for a step."""
    if step.kind is By.CALL:
        yield owner.done(attribute("__call__"), step, *rest)
        return
    definition = owner.head.definition if isinstance(owner.head, Own) else owner.head
    assert isinstance(definition, ast.ClassDef)
    bases = flow.bases(owner.module, definition)
    is_found = False
    for name in _METHODS.get(step.kind, ()):
        if any(home.facts.names.inner[each].bindings.get(name) for home, each in bases.classes):
            # What a mapping does not have, another method gives.
            is_found |= name != "__missing__"
            inner = (_INNER[name],) if name in _INNER else ()
            yield owner.done(attribute(name), Access(By.CALL, flow.no_arguments), *inner, *rest)
    names = _match_args(bases) or [*(fields_of(flow, owner.module, definition) or ())]
    if step.kind in (By.ITEM, By.ELEMENT) and names and not is_found:
        # A tuple with names, or a pattern.
        key = step.what.text if step.kind is By.ITEM and step.what is not None else None
        chosen = [names[key]] if isinstance(key, int) and -len(names) <= key < len(names) else names
        yield from (owner.done(attribute(name), *rest) for name in chosen)
        is_found = True
    if bases.outside and not is_found:
        # What methods put into themselves.
        heads = [
            (home, head)
            for home, each in bases.classes
            for name in ("self", "cls")
            for head in home.heads.get(name, ())
            if own_class(home, head) is each
        ]
        yield from put_into(flow, [(owner.module, None)], heads, (step, *rest))
    for name in bases.outside if not is_found else ():
        if isinstance(owner.head, Own) or owner.path:
            yield flow.outside(
                owner.module, name, (*(owner.path or (Access(By.CALL, flow.no_arguments),)), step, *rest)
            )
            is_found = True
    if not is_found:
        yield Unknown(f"`{definition.name}` has no method in view for this", owner.done(step, *rest))


def _attribute(
    flow: ValueFlow,
    value: Value,
    of: Definition,
    call: CallArguments | None,
    name: str,
    rest: Path,
    *,
    is_class: bool,
    is_exact: bool,
) -> _Found:
    """What an attribute of a class or of an object may be."""
    module, definition = of
    bases = flow.bases(module, definition)
    owner = Value(module, value.head, value.path[: -1 - len(rest)], value.frame)
    members = _members(bases)
    match name, rest:
        case "__dict__", [_, *_] if not _first_with(bases.classes, "__dict__"):
            yield flow.outside(module, "builtins.vars", (Access(By.CALL, flow.call_with(owner)), *rest))
            return
        case _, [Access(By.ATTRIBUTE, "value" | "_value_" as word), *more] if members and not _first_with(
            bases.classes, word
        ):
            rest = tuple(more)
            yield from _said_by_new(bases, definition, value)
        case _, [Access(By.ATTRIBUTE), *_] if is_class and name in members:
            # A member is made of what is assigned to it.
            for member in members[name]:
                by_parts = flow.call_with(member, is_starred=isinstance(member.head, ast.Tuple))
                yield Value(module, definition, (Access(By.CALL, by_parts), *rest))
            return
        case "value" | "_value_", _ if members and not is_class and not _first_with(bases.classes, name):
            yield from (each.done(*rest) for values in members.values() for each in values)
            yield from _said_by_new(bases, definition, value)
            return
        case "_replace" | "replace" | "_asdict" | "_make", [Access(By.CALL), *_] if (
            not _first_with(bases.classes, name) and fields_of(flow, module, definition) is not None
        ):
            yield from of_record_method(flow, owner, (attribute(name), *rest))
            if bases.outside or not bases.is_whole:
                yield Unknown(f"a base of `{definition.name}` may have `{name}`", value)
            return
        case _, [Access(By.CALL), *_] if not _first_with(bases.classes, name) and (
            found := [*_of_library_method(flow, owner, bases.outside, (attribute(name), *rest))]
        ):
            yield from found
            return
        case _:
            pass
    below = () if is_exact else flow.below(definition)
    family = [*bases.classes, *below]
    is_found = False
    stores, computed = stores_of(flow, of, name, is_exact=is_exact)
    frame = _frame_of_init(flow, owner, of, call)
    for store in stores:
        is_found = True
        yield from flow.stored(store, rest, frame)
    for home, each in (
        *_first_with(bases.classes, name),
        *((home, each) for home, each in below if _binds(home, each, name)),
    ):
        is_found = True
        for binding in home.facts.names.inner[each].bindings[name]:
            yield from _of_class_level(flow, home, each, binding, owner, call, rest, is_class=is_class)
    if is_found and rest and rest[0].kind in (By.ITEM, By.ELEMENT, By.ATTRIBUTE, By.REST):
        values = ((store.module, flow.source_of(store)) for store in stores)
        bound = (
            (home, binding.value)
            for home, each in bases.classes
            for binding in home.facts.names.inner[each].bindings.get(name, ())
        )
        inside = (
            (home, head) for home, each in bases.classes for head in home.heads_of(name, home.facts.names.inner[each])
        )
        yield from put_into(flow, chain(values, bound), chain(flow.stores.reads(name), inside), rest)
    for word in ("__setattr__", "__getattribute__"):
        if any(_binds(home, each, word) for home, each in family):
            yield Unknown(f"`{definition.name}` has `{word}`", value, is_open=is_found)
    # `setattr(self, name, value)` and the like; of what other code sets, most is of another object.
    given = [
        store
        for store in computed
        if (store.words or store.value)
        and (
            store.holder is not None
            or (store.key and flow.texts(Value(store.module, store.key)).is_whole)
            or flow.may_set(store, definition)
        )
    ]
    for store in given:
        if store.words is not None:
            yield Value(store.module, store.words, (item(name), *rest), frame)
        else:
            yield from flow.stored(store, rest, frame)
    for word, store in flow.stores.remade:
        if word in ("__class__", "__bases__") and store in stores_of(flow, of, word, is_exact=is_exact)[0]:
            yield Unknown(f"line {store.node.lineno} of {store.module.facts.path} sets its `{word}`", value)
            steps = (attribute(name),) if word == "__class__" else (ELEMENT, attribute(name))
            yield from flow.stored(store, (*steps, *rest), None)
    whole = stores_of(flow, of, "__dict__", is_exact=is_exact)[0] if flow.stores.of("__dict__") else ()
    for store in whole:
        # `self.__dict__ = self` of a dictionary knows what the dictionary was made of.
        is_itself = own_class(store.module, flow.source_of(store)) is not None
        yield from [owner.done(item(name), *rest)] if is_itself else flow.stored(store, (item(name), *rest), frame)
    is_given = is_found or bool(given) or bool(whole)
    looked = [(home, each) for home, each in bases.classes if _binds(home, each, "__getattr__")]
    for store in computed[:1]:
        line = getattr(store.node, "lineno", 1)
        told = f"line {line} of {store.module.facts.path} sets attributes by computed names"
        yield Unknown(told, value, is_open=is_given)
    if not bases.is_whole:
        yield Unknown(f"a base of `{definition.name}` is not in view", value)
    # What other code sets may be of another object.
    is_of_class = any(each.holder is not None for each in stores) or bool(_first_with(family, name))
    asking = [("__getattr__", *each) for each in looked[:1] if not is_of_class]
    asking += (("__getattribute__", *each) for each in _first_with(bases.classes, "__getattribute__"))
    for word, home, each in asking:
        asked = flow.same(
            CallArguments([flow.argument(module, ast.Constant(name))]), flow.no_arguments, attribute(name)
        )
        for binding in home.facts.names.inner[each].bindings[word]:
            yield from of_bound(flow, home, binding, (Access(By.BOUND, owner), Access(By.CALL, asked), *rest), None)
    for metaclass in bases.metaclasses if is_class and not is_of_class else ():
        yield _made(flow, metaclass).done(attribute(name), *rest)
    for metaclass in bases.metaclasses:
        for home, method in (each for word in ("__new__", "__init__") for each in _own_methods(flow, *metaclass, word)):
            # It is given the names of the class in the fourth place.
            for space in method.args.args[3:4]:
                heads = [(home, head) for head in home.heads.get(space.arg, ()) if home.scope_of(head).node is method]
                yield from put_into(flow, [(home, None)], heads, (item(name), *rest))
    if is_found:
        return
    made_by = () if is_class else (Access(By.CALL, call or flow.no_arguments),)
    yield from (each.done(*made_by, attribute(name), *rest) for each in bases.made)
    for outside in bases.outside if not looked else filter(lambda base: _may_have(base, name), bases.outside):
        yield flow.outside(module, outside, (*made_by, attribute(name), *rest))
    if not looked and not bases.outside and not is_given:
        yield Unknown(f"nothing in view sets `{name}` of `{definition.name}`", value)


def stores_of(
    flow: ValueFlow, of: Definition, name: str, *, is_exact: bool = False
) -> tuple[Sequence[Store], Sequence[Store]]:
    """The places that may set an attribute of a class or of its objects, by its name or by a computed one."""

    def find() -> tuple[Sequence[Store], Sequence[Store]]:
        below = () if is_exact else flow.below(of[1])
        # An object of a class may be of one that derives from it, and from others.
        holders = {each for home in (of, *below) for _, each in flow.bases(*home).classes}

        def may_set(store: Store) -> bool:
            return store.holder in holders or (store.holder is None and flow.may_be(store, of[1]))

        return [*filter(may_set, flow.stores.of(name))], [*filter(may_set, flow.stores.computed)]

    stores, computed = flow.project.once(("stores", of[1], name, is_exact), find)
    may_name = (each for each in computed if each.key is None or flow.texts(Value(each.module, each.key)).may_be(name))
    return stores, [*may_name]


def _may_have(base: str, name: str) -> bool:
    """Whether a class of a library may have an attribute: of one of Python's own that is known."""
    return not base.startswith("builtins.") or hasattr(getattr(builtins, base.removeprefix("builtins."), None), name)


def of_record_method(flow: ValueFlow, owner: Value, path: Path) -> _Found:
    """What methods give that classes with fields have of the library that makes them."""
    match path:
        case [Access(By.ATTRIBUTE, "_replace" | "replace"), Access(By.CALL, call), *rest]:
            yield flow.outside(owner.module, "dataclasses.replace", (Access(By.CALL, flow.merged(owner, call)), *rest))
        case [Access(By.ATTRIBUTE, "_asdict"), Access(By.CALL), *rest]:
            yield flow.outside(owner.module, "dataclasses.asdict", (Access(By.CALL, flow.call_with(owner)), *rest))
        case [Access(By.ATTRIBUTE, "_make"), Access(By.CALL, call), *rest] if (first := call.first()) is not None:
            yield owner.done(Access(By.CALL, flow.call_with(first, is_starred=True)), *rest)
        case _:
            pass


def _of_library_method(flow: ValueFlow, owner: Value, outside: Sequence[str], path: Path) -> _Found:
    """What methods give of an object that its class has of a base in a library."""
    homes = {name.partition(".")[0] for name in outside}
    match path:
        case [Access(By.ATTRIBUTE, "clone" | "copy"), *rest] if "flax" in homes:
            yield from of_record_method(flow, owner, (attribute("replace"), *rest))
        case [Access(By.ATTRIBUTE, "bind" | "merge"), Access(By.CALL), *rest] if "flax" in homes:
            yield owner.done(*rest)
        case [Access(By.ATTRIBUTE, "create"), *rest] if _TRAIN_STATE in outside:
            yield owner.done(*rest)
        case [Access(By.ATTRIBUTE, "apply"), Access(By.CALL, call), *rest] if "flax.linen.Module" in outside:
            method, inner = call.at(1 << 30, "method"), flow.rest_of(call)
            text = "__call__" if method is None else flow.text(method)
            steps = rest[1:] if call.at(1 << 30, "mutable") is not None else rest
            if text is not None:
                yield owner.done(attribute(text), Access(By.CALL, inner), *steps)
            elif method is not None:
                yield method.done(Access(By.CALL, flow.merged(owner, inner)), *steps)
        case [Access(By.ATTRIBUTE, "get" | "items" | "keys" | "pop" | "setdefault" | "values"), *_] if not (
            _MAPPINGS.isdisjoint(outside)
        ):
            yield from (owner.done(*steps) for steps, _ in paths_of_items(path))
            yield from (default for _, default in paths_of_items(path) if default is not None)
        case _:
            pass


_TRAIN_STATE = "flax.training.train_state.TrainState"
_MAPPINGS = frozenset(
    f"{home}.{name}" for home in ("collections.abc", "typing") for name in ("Mapping", "MutableMapping")
)


def _match_args(bases: Bases) -> list[str]:
    """The attributes that patterns of a class name by place, where it says so itself."""
    for module, each in _first_with(bases.classes, "__match_args__"):
        for binding in module.facts.names.inner[each].bindings["__match_args__"]:
            if isinstance(binding.value, ast.Tuple):
                return [str(part.value) for part in binding.value.elts if isinstance(part, ast.Constant)]
    return []


def _binds(module: ModuleUses, definition: ast.ClassDef, name: str) -> bool:
    return name in module.facts.names.inner[definition].bindings


def _first_with(classes: Sequence[Definition], name: str) -> Sequence[Definition]:
    return [(home, each) for home, each in classes if _binds(home, each, name)][:1]


def _frame_of_init(flow: ValueFlow, owner: Value, of: Definition, call: CallArguments | None) -> CallFrame | None:
    """The frame of the `__init__` that a call of a class runs."""
    if call is None or call.depth > 1:
        return None
    found = next(_own_methods(flow, *of, "__init__"), None)
    return CallFrame(found[1], flow.merged(owner, call), None, call.depth + 1) if found is not None else None


def _of_class_level(
    flow: ValueFlow,
    module: ModuleUses,
    definition: ast.ClassDef,
    binding: Binding,
    owner: Value,
    call: CallArguments | None,
    rest: Path,
    *,
    is_class: bool,
) -> _Found:
    """What a name that the body of a class binds is for an object of it."""
    node = binding.node
    if isinstance(node, Function):
        marks = {flow.full_name(module, each) for each in node.decorator_list}
        is_alone = "builtins.staticmethod" in marks or (is_class and "builtins.classmethod" not in marks)
        steps: Path = () if is_alone else (Access(By.BOUND, owner),)
        if is_class and node.decorator_list and _is_descriptor(flow, module, node.decorator_list[0]):
            steps = _got(flow, Value(module, ast.Constant(None)), owner)
        yield from of_bound(flow, module, binding, (*steps, *rest), None)
        return
    is_declared = isinstance(binding.statement, ast.AnnAssign) or (
        binding.value is not None and _makes_field(flow, module, binding.value)
    )
    if is_declared and not is_class and fields_of(flow, module, definition) is not None:
        name, value = binding.name, binding.value
        if any(_is_constant(each, "init", False) for each in getattr(value, "keywords", ())):
            # No call gives it.
            pass
        elif call is not None:
            made = owner.head if isinstance(owner.head, ast.ClassDef) else definition
            yield from of_field(call, _place_of(flow, owner.module, made, name), name, rest)
        else:
            seen = owner.done(attribute(name), *rest)
            yield Unknown(f"`{name}` of `{definition.name}` may be given by other code", seen, is_open=True)
            family = [(module, definition), *flow.below(definition)]
            calls = {each: flow.calls_of(*each) for each in family}
            reason = calls[module, definition][1]
            if reason is not None or not any(found for found, _ in calls.values()):
                yield Unknown(f"not all calls of `{definition.name}` are in view: {reason}", seen)
            for (home, kind), (found, _) in calls.items():
                place = _place_of(flow, home, kind, name) if found else None
                for each in found:
                    yield from of_field(each, place, name, rest)
        if value is not None:
            yield from _default(flow, module, value, rest)
        for part in definition.body:
            # `@name.default`, of attrs
            decorators = part.decorator_list if isinstance(part, Function) else ()
            if f"{name}.default" in map(ast.unparse, decorators):
                yield Value(module, part, (Access(By.CALL, flow.call_with(owner)), *rest))
        return
    if binding.value is not None:
        may_bind = not is_class and isinstance(binding.value, ast.Name | ast.Attribute | ast.Lambda | ast.Call)
        how: Path = (Access(By.BOUND, owner),) if may_bind else ()
        if is_class and isinstance(binding.value, ast.Call) and _is_descriptor(flow, module, binding.value.func):
            how = _got(flow, Value(module, ast.Constant(None)), owner)
        yield Value(module, binding.value, (*how, *rest))
        return
    yield from of_bound(flow, module, binding, rest, None)


def _is_descriptor(flow: ValueFlow, module: ModuleUses, maker: ast.expr) -> bool:
    """Whether something is a class of the project whose objects say what a class gives for them."""
    found = flow.class_at(module, maker)
    return found is not None and any(_own_methods(flow, *found, "__get__"))


def _place_of(flow: ValueFlow, module: ModuleUses, definition: ast.ClassDef, name: str) -> int | None:
    """The place of a field among the arguments of a class, None if it has none."""
    fields = [*(fields_of(flow, module, definition) or ())]
    return fields.index(name) if name in fields else None


def of_field(call: CallArguments, place: int | None, name: str, rest: Path) -> _Found:
    """What a call of a class gives for a field."""
    found = call.at(place, name) if place is not None else call.at(1 << 30, name)
    if found is not None:
        yield found.done(*rest)
        return
    for word, value in call.keywords:
        if word is None:
            yield value.done(item(name), *rest)
    for index, each in enumerate(call.positional):
        if each.is_starred and place is not None and index <= place:
            yield each.value.done(item(place - index), *rest)


def _default(flow: ValueFlow, module: ModuleUses, value: ast.expr, rest: Path) -> _Found:
    """The default of a field: as it is written, or of `field(default=..., default_factory=...)`."""
    if isinstance(value, ast.Call) and _makes_field(flow, module, value, ("Field", "field", "variable")):
        for keyword in value.keywords:
            if keyword.arg == "default":
                yield Value(module, keyword.value, rest)
            elif keyword.arg in ("default_factory", "factory"):
                yield Value(module, keyword.value, (Access(By.CALL, flow.no_arguments), *rest))
        return
    yield Value(module, value, rest)


def _makes_field(flow: ValueFlow, module: ModuleUses, value: ast.expr, words: Sequence[str] = ()) -> bool:
    """Whether an expression is `attr.ib()`, which needs no annotation, or a call of one of some words."""
    name = (flow.full_name(module, value.func) if isinstance(value, ast.Call) else None) or ""
    return name in ("attr.attrib", "attr.ib", "attrs.field") or name.rpartition(".")[2] in words


def definition_of(value: Value) -> Definition | None:
    """The class of an object, or a class."""
    is_made = value.is_made or not value.path
    head = value.head.definition if isinstance(value.head, Own) else value.head
    return (value.module, head) if is_made and isinstance(head, ast.ClassDef) else None


def fields_of(flow: ValueFlow, module: ModuleUses, definition: ast.ClassDef) -> dict[str, None] | None:
    """The fields of a class by place, those without one last; None if its objects take none: it has an `__init__`."""
    classes = flow.bases(module, definition).classes
    if any(_binds(home, each, "__init__") for home, each in classes):
        return None
    found: dict[str, None] = {}
    unplaced: dict[str, None] = {}
    for home, each in reversed(classes):
        says = [*each.keywords, *(word for made in each.decorator_list for word in getattr(made, "keywords", ()))]
        is_placed = not any(map(_takes_place_away, says))
        for part in each.body:
            names: list[str] = []
            if isinstance(part, ast.Assign) and _makes_field(flow, home, part.value):
                names = [each.id for each in part.targets if isinstance(each, ast.Name)]
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                annotation = flow.full_name(
                    home, part.annotation.value if isinstance(part.annotation, ast.Subscript) else part.annotation
                )
                is_placed &= annotation != "dataclasses.KW_ONLY"
                if annotation not in _NO_FIELDS:
                    names = [part.target.id]
            words = getattr(getattr(part, "value", None), "keywords", ())
            has_place = is_placed and not any(map(_takes_place_away, words))
            for name in names:
                # A field of a base keeps its place.
                (found if has_place or name in found else unplaced)[name] = None
    return {**found, **unplaced} or None


_NO_FIELDS = ("dataclasses.KW_ONLY", "typing.ClassVar", "typing_extensions.ClassVar")


def _takes_place_away(word: ast.keyword) -> bool:
    """Whether a keyword says that a field is given by its name alone, or not at all."""
    return _is_constant(word, "kw_only", True) or _is_constant(word, "init", False)


def _is_constant(word: ast.keyword, name: str, value: object) -> bool:
    return word.arg == name and isinstance(word.value, ast.Constant) and word.value.value is value
