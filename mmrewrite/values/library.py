"""One step back through functions of libraries that give what they are given: those of Python's, and which others may.

What is not listed here is where a value ends: the full name, with what is done to it. Packages that are known give
something of their own; what others are given they may give, which readers are told after all that is seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import PARTIALS
from mmrewrite.source.names import last_name
from mmrewrite.values import array_libraries
from mmrewrite.values.arguments import given, joined, without_first
from mmrewrite.values.array_libraries import CONTAINERS, MAKE_TREES, MAY_GIVE_GIVEN, Form, of_first
from mmrewrite.values.callbacks import CALL_BACK, of_called_back
from mmrewrite.values.classes import Definition, definition_of, fields_of, of_field, of_record_method
from mmrewrite.values.containers import paths_of_items
from mmrewrite.values.names import of_bound
from mmrewrite.values.operators import WORDS, of_operands
from mmrewrite.values.texts import ANYTHING, Texts
from mmrewrite.values.value import (
    ANY_ITEM,
    AWAITED,
    ELEMENT,
    ENTERED,
    Access,
    By,
    CallArguments,
    Display,
    Function,
    GivenValue,
    Key,
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
# Packages whose functions give something of their own, but for those that are listed.
KNOWN_PACKAGES = frozenset(("equinox", "flax", "haiku", "jax", "jaxlib", "numpy", "optax", "orbax", "scipy"))
_GIVE_OWN_NAMES = """
    all any ascii bin bool bytes callable chr complex dir float format hasattr hash hex id input int isinstance
    issubclass len oct open ord print range repr round str
"""
GIVE_OWN = frozenset(f"builtins.{name}" for name in _GIVE_OWN_NAMES.split())
# Functions of Python's library that may give anything, such as what was put elsewhere.
_GIVE_ANYTHING = frozenset(
    (
        *(f"builtins.{name}" for name in ("locals", "globals", "vars", "__import__")),
        *("copyreg", "ctypes", "dill", "functools", "gc", "importlib", "inspect", "marshal", "operator", "pickle"),
        *("contextvars", "queue", "shelve", "threading.local", "weakref", "concurrent", "asyncio", "multiprocessing"),
        *("types", "unittest.mock"),
    )
)
# What they are given first they call with elements of the others.
MAPS = frozenset(("builtins.filter", "builtins.map"))
# Calls that give their first argument, or a copy of it.
_GIVE_FIRST = frozenset(
    (
        *("copy.copy", "copy.deepcopy", "weakref.proxy"),
        *("builtins.staticmethod", "builtins.classmethod", "functools.cache", "functools.total_ordering"),
        *(
            "atexit.register",
            "enum.member",
            "enum.nonmember",
            "sys.intern",
            "types.coroutine",
            "types.MappingProxyType",
        ),
        *("typing.assert_type", "typing.reveal_type", "typing_extensions.assert_type"),
    )
)
_COPY = frozenset(("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__"))
_REPLACE = frozenset(("dataclasses.replace", "copy.replace", "attrs.evolve", "attr.evolve"))
_GIVE_SECOND = frozenset(("typing.cast", "typing_extensions.cast"))
# What they are called with first is gone through, and comes out in the same order, or in another one.
_GO_THROUGH = frozenset(
    (
        *(f"builtins.{name}" for name in ("iter", "list", "tuple")),
        *("collections.deque", "collections.UserList"),
        *("tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm", "tqdm.rich.tqdm", "rich.progress.track"),
        "flax.jax_utils.prefetch_to_device",
    )
)
_MIX_UP = frozenset(
    (
        *(f"builtins.{name}" for name in ("frozenset", "reversed", "set", "sorted")),
        *("itertools.compress", "itertools.cycle", "itertools.islice", "heapq.merge"),
        *("random.sample", "random.choices", "concurrent.futures.as_completed", "asyncio.as_completed"),
    )
)
_GIVE_ELEMENT = frozenset(
    (
        *("random.choice", "builtins.max", "builtins.min", "builtins.next", "builtins.anext"),
        *("heapq.heappop", "heapq.heappushpop", "heapq.heapreplace"),
    )
)
_DICTIONARIES = frozenset(
    (
        "builtins.dict",
        "collections.OrderedDict",
        "collections.ChainMap",
        "collections.UserDict",
        "types.MappingProxyType",
        "weakref.WeakValueDictionary",
        "flax.core.FrozenDict",
        "flax.core.frozen_dict.FrozenDict",
    )
)
# Dictionaries of which items are attributes, too.
ATTRIBUTE_DICTIONARIES = frozenset(
    (
        *(
            f"ml_collections.{home}{name}"
            for home in ("", "config_dict.")
            for name in ("ConfigDict", "FrozenConfigDict", "config_dict.create", "create")
        ),
        *("addict.Dict", "box.Box", "easydict.EasyDict", "munch.Munch", "omegaconf.OmegaConf.create"),
        *("flax.nnx.Dict", "flax.nnx.State"),
    )
)
# Their methods that give what is in them in other ways, or themselves.
_OF_DICTIONARIES = frozenset(("copy", "get", "items", "keys", "pop", "setdefault", "values"))
_EXECUTORS = (
    *(f"concurrent.futures.{name}PoolExecutor" for name in ("Thread", "Process")),
    *(
        "multiprocessing.Pool",
        "multiprocessing.dummy.Pool",
        "multiprocessing.pool.Pool",
        "multiprocessing.pool.ThreadPool",
    ),
)
_CONTEXTS = frozenset(("contextlib.contextmanager", "contextlib.asynccontextmanager"))
# What is called with the arguments of the function that it is given, and gives what that gives, as far as this is no
# array: `jax.jit(f)` itself is where a value ends.
_WRAP = frozenset(("functools.lru_cache", "functools.cache"))
# Functions that run code of JAX besides.
RUN_MORE = MAKE_TREES | (CALL_BACK - {"functools.reduce"})
# Those of the functions here that call what they are given, or make what does.
_CALL_GIVEN = (
    MAKE_TREES
    | MAPS
    | CALL_BACK
    | frozenset(f"itertools.{name}" for name in ("accumulate", "dropwhile", "filterfalse", "starmap", "takewhile"))
    | frozenset(("asyncio.to_thread", "builtins.max", "builtins.min", "builtins.sorted", "operator.call"))
)
_OPERATORS = frozenset((*WORDS.values(), "concat"))
_PROPERTIES = frozenset(
    ("builtins.property", "cached_property.cached_property", "functools.cached_property", "types.DynamicClassAttribute")
)


def is_followed(name: str) -> bool:
    """Whether values are followed through a call of something of a library."""
    return name in _FORMS


def may_give_what_it_is_given(value: Value) -> bool:
    """Whether a value ends at a call of a function out of view that may give an argument, or something in one."""
    head = value.head
    if not isinstance(head, str) or head in _FORMS or head in GIVE_OWN:
        return False
    if head.partition(".")[0] in KNOWN_PACKAGES and head not in MAY_GIVE_GIVEN:
        return False
    return any(step.kind is By.CALL for step in value.path)


def may_call_what_it_is_given(name: str) -> bool:
    """Whether a function of a library may call what it is given, rather than keep it, or give it back."""
    return name in _CALL_GIVEN or not (name in _FORMS or name in GIVE_OWN)


def given_to(value: Value) -> Iterator[Value]:
    """What a call of a function out of view may return of its arguments, with what is done to it.

    That is an argument itself, or what a keyword names (`holder(mesh=x).mesh`): another attribute is one of that.
    """
    for place, step in enumerate(value.path):
        if step.kind is not By.CALL:
            continue
        rest = value.path[place + 1 :]
        arguments = [(None, each.value, each.is_starred) for each in step.what.positional]
        arguments += [(word, each, word is None) for word, each in step.what.keywords]
        for word, argument, is_spread in arguments:
            each = argument.done(ANY_ITEM) if is_spread else argument
            yield each.done(*rest)
            if word is not None and rest and rest[0] in (attribute(word), item(word)):
                yield each.done(*rest[1:])
            if rest and rest[0].kind is By.ATTRIBUTE and isinstance(each.head, ast.Dict) and not each.path:
                # Its items may be attributes.
                yield each.done(item(rest[0].what), *rest[1:])


def inside(flow: ValueFlow, value: Value) -> Iterator[Value]:
    """What a function out of view may get out of its arguments: what a container holds, a function or class returns.

    What a function does not have itself is asked of what it returns.
    """
    if value.path and (value.path[0].kind is not By.ATTRIBUTE or not isinstance(value.head, Function)):
        return
    if isinstance(value.head, CONTAINERS):
        yield value.done(ANY_ITEM)
    elif isinstance(value.head, Function | ast.Lambda | ast.ClassDef):
        yield value._replace(path=(Access(By.CALL, flow.no_arguments), *value.path))


def of_outside(flow: ValueFlow, value: Value) -> _Found:
    """What is behind something of a library; nothing where the value ends."""
    name, path = value.head, value.path
    assert isinstance(name, str)
    if not path or path[0].kind is not By.CALL:
        if path and path[0].kind in (By.ITEM, By.ELEMENT) and name == "sys.modules":
            yield from _of_modules_by_name(flow, value)
        elif path and path[0].kind is By.BOUND and name.startswith("builtins.dict."):
            # `__getattr__ = dict.__getitem__` in a class that derives from `dict`
            method = (attribute(name.rpartition(".")[2]), *path[1:])
            yield Value(value.module, "builtins.dict", (*path[0].what.path[-1:], *method))
        return
    call, rest = path[0].what, path[1:]
    assert isinstance(call, CallArguments)
    form = _FORMS.get(name)
    bound = next((place for place, step in enumerate(path) if step.kind is not By.CALL), len(path))
    is_bound = path[bound : bound + 1] and path[bound].kind is By.BOUND
    if is_bound and (form in _MAKE_OBJECTS or name in _NEVER_BOUND):
        # What a class holds is given the object only if it is a function.
        yield value._replace(path=(*path[:bound], *path[bound + 1 :]))
    elif form is not None:
        yield from form(flow, value, call, rest)
    elif By.BOUND in (step.kind for step in path):
        yield value._replace(path=tuple(step for step in path if step.kind is not By.BOUND))
    elif any(name == each or name.startswith(f"{each}.") for each in _GIVE_ANYTHING):
        yield Unknown(f"`{name}` may give anything", value)


def _partial(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first = call.first()
    if first is None:
        yield Unknown("what `partial` is given is not seen", value)
        return
    match rest:
        case [Access(By.BOUND, owner), Access(By.CALL, later), *more]:
            # `functools.partialmethod`
            own = joined(without_first(call), later)
            yield first.done(Access(By.CALL, flow.merged(owner, own)), *more)
        case [Access(By.CALL, later), *more]:
            yield first.done(Access(By.CALL, flow.joined(call, later)), *more)
        case [Access(By.ATTRIBUTE, "func" | "__wrapped__"), *more]:
            yield first.done(*more)
        case [Access(By.ATTRIBUTE, "args"), *more]:
            places = [(None, each.value, each.is_starred) for each in without_first(call).positional]
            yield Value(value.module, Display(places, is_mapping=False), (*more,))
        case [Access(By.ATTRIBUTE, "keywords"), *more]:
            words = [(word, each, word is None) for word, each in call.keywords]
            yield Value(value.module, Display(words, is_mapping=True), (*more,))
            yield Unknown("a container may be changed where it is kept", value)
        case [Access(By.ATTRIBUTE, str()), *_]:
            yield Unknown("an attribute of a `partial`", value)
        case _:
            pass


def _first(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    yield from of_first(flow, value, call, rest)
    if f"{value.head}".startswith("copy.") and any(not _COPY.isdisjoint(each.methods) for each in flow.modules):
        yield Unknown("a class says itself how its objects are copied", value)
    if value.head in _REPLACE and rest:
        name = rest[0].what if rest[0].kind is By.ATTRIBUTE else None
        for word, given_value in call.keywords:
            if name is None or word in (None, name):
                yield given_value.done(*(() if word is not None else (item(name),)), *rest[1:])


def _second(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    second = call.at(1, "val")
    yield second.done(*rest) if second is not None else Unknown("an argument is not seen", value)


def _new_type(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`NewType("Name", kind)`, which gives what it is called with."""
    if rest and rest[0].kind is By.CALL:
        yield from _first(flow, value, rest[0].what, rest[1:])


def _field_names(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`[each.name for each in dataclasses.fields(x)]`."""
    first = call.first()
    match rest:
        case [Access(By.ITEM | By.ELEMENT), Access(By.ATTRIBUTE, "name")] if first is not None:
            for each in flow.may(first, definition_of).answers:
                yield from (Value(each[0], ast.Constant(name)) for name in fields_of(flow, *each) or ())
        case [Access(By.ITEM | By.ELEMENT), Access(By.ATTRIBUTE, str(name)), *_]:
            yield Unknown(f"`{name}` of a field is not followed", value)
        case _:
            pass


def _reference(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`weakref.ref(x)()`."""
    if rest and rest[0].kind is By.CALL:
        yield from _first(flow, value, call, rest[1:])


def _as_dictionary(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`dataclasses.asdict(x)`: its items are the fields."""
    first = call.first()
    if call.at(1 << 30, "dict_factory") is not None:
        yield Unknown("another function makes the dictionary", value)
    for (step, *more), _ in paths_of_items(rest):
        key = step.what.text if step.kind is By.ITEM and step.what is not None else None
        if first is not None and step.kind is By.ITEM:
            yield first.done(attribute(key) if isinstance(key, str) else step, *more)


def _cached(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`lru_cache(f)`, and `lru_cache(maxsize=None)(f)`."""
    first = call.first()
    is_function = first is not None and not (isinstance(first.head, ast.Constant) and not first.path)
    called = any(each.kind is By.CALL and _has_arguments(each.what) for each in rest[0 if is_function else 1 :][:1])
    if called and any("__eq__" in each.methods for each in flow.modules):
        yield Unknown("a class says itself which of its objects are equal", value, is_open=True)
    if is_function and first is not None:
        yield first.done(*rest)
    elif rest and rest[0].kind is By.CALL:
        yield from _first(flow, value, rest[0].what, rest[1:])


def _has_arguments(call: CallArguments) -> bool:
    return bool(call.positional or call.keywords)


def _property(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    match rest:
        case [Access(By.BOUND, owner), *more]:
            first = call.at(0, "fget")
            if first is not None:
                yield first.done(Access(By.CALL, flow.merged(owner, flow.no_arguments)), *more)
            else:
                yield Unknown("what a property gives is not seen", value)
        case [Access(By.ATTRIBUTE, "fget" | "func"), *more]:
            yield from _first(flow, value, call, (*more,))
        case [
            Access(By.ATTRIBUTE, "setter" | "deleter" | "getter" as word),
            Access(By.CALL, later),
            *more,
        ]:
            if word == "getter":
                yield Value(value.module, value.head, (Access(By.CALL, later), *more))
            else:
                yield Value(value.module, value.head, (Access(By.CALL, call), *more))
        case _:
            pass


def _classmethod(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first = call.first()
    if first is None:
        return
    if rest[:1] and rest[0].kind is By.BOUND:
        owner = rest[0].what
        definition = owner.head.definition if isinstance(owner.head, Own) else owner.head
        if isinstance(definition, ast.ClassDef):
            owner = Value(owner.module, Own(definition, True))
        yield first.done(Access(By.BOUND, owner), *rest[1:])
    else:
        yield first.done(*rest)


def _staticmethod(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first = call.first()
    if first is not None:
        yield first.done(*(rest[1:] if rest[:1] and rest[0].kind is By.BOUND else rest))


def _wraps(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    match rest:
        case [Access(By.CALL, later), Access(By.ATTRIBUTE, "__wrapped__"), *more] if call.first() is not None:
            first = call.first()
            assert first is not None and isinstance(later, CallArguments)
            yield first.done(*more)
        case [Access(By.CALL, later), *more]:
            yield from _first(flow, value, later, tuple(more))
        case _:
            pass


def _getattr(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first, name, default = call.at(0), call.at(1), call.at(2)
    if first is None or name is None:
        yield Unknown("an argument of `getattr` is not seen", value)
        return
    texts = flow.texts(name)
    yield from (first.done(attribute(each), *rest) for each in _names_in(flow, first, texts))
    if not texts.is_whole:
        yield Unknown("an attribute is looked up by a computed name", value)
    for store in flow.stores.computed if not texts.is_whole or any(ANYTHING in each for each in texts.texts) else ():
        # What is set by such a name beside it.
        if store.module is value.module and store.value is not None:
            yield from flow.stored(store, rest, None)
    if default is not None:
        yield default.done(*rest)


def _names_in(flow: ValueFlow, owner: Value, texts: Texts) -> Iterator[str]:
    """The names that texts may be: of a module that is seen all, where nothing is known of them."""
    yield from texts.names(flow.stores.names)
    if ANYTHING in texts.texts:
        name = flow.full_name(owner.module, owner.expression) if owner.expression is not None else None
        facts = flow.project.module(name, owner.module.facts) if name is not None else None
        if isinstance(owner.head, ast.Module):
            facts = owner.module.facts
        yield from facts.names.scope.bindings if facts is not None else ()


def _elements(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`next(x)`, `max(x)` and `random.choice(x)`, with what they give for an empty one."""
    if value.head == "builtins.anext" and rest[:1] == (AWAITED,):
        rest = rest[1:]
    if len(call.positional) > 1 and value.head in ("builtins.max", "builtins.min"):
        yield from (each.done(*rest) for each in given(call))
        return
    for index, each in enumerate(call.positional):
        yield each.value.done(ELEMENT, *rest) if not index else each.value.done(*rest)
    for word, default in call.keywords:
        if word == "default":
            yield default.done(*rest)


def _gone_through(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first = call.first()
    rest = rest[1:] if rest[:1] == (attribute("data"),) else rest
    for path, default in paths_of_items(rest):
        if value.head == "builtins.iter" and call.at(1) is not None and first is not None:
            # It calls the first until that gives the second.
            yield first.done(Access(By.CALL, flow.no_arguments), *path[1:])
            continue
        if default is not None:
            yield default
        if value.head == "builtins.reversed" and first is not None and flow.stores.in_classes("__reversed__"):
            yield first.done(attribute("__reversed__"), Access(By.CALL, flow.no_arguments), ELEMENT, *path[1:])
        step = path[0]
        if first is None:
            empty = Value(value.module, Display((), is_mapping=False), path)
            yield Unknown("an argument is not seen", value) if call.positional else empty
        elif value.head in _MIX_UP or step.kind is not By.ITEM:
            more = path[2:] if step.kind is By.REST and path[1:] else path[1:]
            yield first.done(ELEMENT, *more)
        elif _is_keyed(flow, first):
            yield first.done(ELEMENT, *path[1:])
        else:
            yield first.done(*path)


def _is_keyed(flow: ValueFlow, value: Value) -> bool:
    """Whether items of a value may go by keys, or by no place: `list(table)[0]` is a key."""
    return not isinstance(value.head, ast.Tuple | ast.List | ast.ListComp) or bool(value.path)


def _dictionary(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    rest = rest[1:] if rest[:1] == (attribute("data"),) else rest
    match rest:
        case [Access(By.ATTRIBUTE, "new_child"), Access(By.CALL, child), *more] if value.head == "collections.ChainMap":
            below = CallArguments([*child.positional, *call.positional])
            yield value._replace(path=(Access(By.CALL, flow.same(below, call, rest)), *more))
            return
        case _:
            pass
    if value.head == "collections.defaultdict":
        for path, _ in paths_of_items(rest):
            factory = call.at(0)
            if factory is not None and path[0].kind is By.ITEM:
                yield factory.done(Access(By.CALL, flow.no_arguments), *path[1:])
        call = without_first(call) if call.positional else call
    entries: list[tuple[ast.expr | str | None, Value, bool]] = [
        (word, each, word is None) for word, each in call.keywords
    ]
    entries += [(None, each.value, True) for each in call.positional if not _gives_pairs(flow, each.value)]
    yield Value(value.module, Display(entries, is_mapping=True), rest)
    for path, _ in paths_of_items(rest):
        # `dict([(key, value)])` and `dict(zip(keys, values))`
        for each in call.positional:
            if path[0].kind is By.ITEM and not isinstance(each.value.head, ast.Dict):
                yield each.value.done(ELEMENT, item(1), *path[1:])


def _gives_pairs(flow: ValueFlow, value: Value) -> bool:
    """Whether the elements of a value are seen to be pairs, rather than keys."""
    head = value.expression
    return isinstance(head, ast.Call) and flow.full_name(value.module, head.func) in (
        "builtins.enumerate",
        "builtins.zip",
    )


def _enumerate(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first = call.at(0, "iterable")
    match rest:
        case [Access(By.ELEMENT), Access(By.ITEM, key), *more] if first is not None:
            if key is None or key.text != 0:
                yield first.done(ELEMENT, *more)
        case _:
            pass


def _grouped(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`pairwise(x)`, `batched(x, 2)`, `tee(x)`, and `groupby(x)`, which has the elements of `x` in second place."""
    first = call.first()
    match rest:
        case [Access(By.ELEMENT | By.ITEM), Access(By.ITEM, Key(text=0)), *more] if (
            first is not None and value.head == "itertools.groupby"
        ):
            key, element = call.at(1, "key"), first.done(ELEMENT)
            made = element if key is None else key.done(Access(By.CALL, flow.call_with(element)))
            yield made.done(*more)
        case [Access(By.ELEMENT | By.ITEM), Access(By.ITEM | By.ELEMENT), *more] if first is not None:
            yield first.done(ELEMENT, *(more[1:] if value.head == "itertools.groupby" else more))
        case _:
            pass


def _accumulated(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first, function, start = call.first(), call.at(1, "func"), call.at(1 << 30, "initial")
    for path, _ in paths_of_items(rest):
        if first is None or function is None:
            yield Unknown("elements are added up", value)
            continue
        pair = flow.same(flow.call_of([first.done(ELEMENT), first.done(ELEMENT)]), call, ELEMENT)
        yield from (each.done(*path[1:]) for each in (first.done(ELEMENT), start) if each is not None)
        yield function.done(Access(By.CALL, pair), *path[1:])


def _zip(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    match rest:
        case [Access(By.ELEMENT | By.ITEM), Access(By.ITEM, key), *more]:
            if call.positional[:1] and call.positional[0].is_starred:
                # `zip(*rows)` has columns.
                yield call.positional[0].value.done(ELEMENT, rest[0], *more)
                return
            found = call.at(key.text) if key is not None and isinstance(key.text, int) and key.text >= 0 else None
            values = [found] if found is not None else [*given(call)]
            yield from (each.done(ELEMENT, *more) for each in values)
            filled = call.at(1 << 30, "fillvalue")
            yield from [filled.done(*more)] if filled is not None else []
        case [Access(By.ELEMENT | By.ITEM), Access(By.ELEMENT), *more]:
            yield from (each.done(ELEMENT, *more) for each in given(call))
        case _:
            pass


def _map(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first = call.first()
    for path, _ in paths_of_items(rest):
        if first is None:
            yield Unknown("an argument is not seen", value)
            continue
        elements = [
            # `map(f, *rows)` gives it an element of each.
            GivenValue(
                Value(
                    value.module,
                    Display([(None, each.value.done(ELEMENT, ELEMENT), False)], is_mapping=False, is_loose=True),
                ),
                is_starred=True,
            )
            if each.is_starred
            else GivenValue(each.value.done(ELEMENT))
            for each in call.positional[1:]
        ]
        if value.head == "itertools.starmap":
            given_call = CallArguments(
                [each._replace(value=each.value.done(ELEMENT), is_starred=True) for each in call.positional[1:]]
            )
            yield first.done(Access(By.CALL, flow.same(given_call, call, path[0])), *path[1:])
        else:
            yield first.done(Access(By.CALL, flow.same(CallArguments(elements), call, path[0])), *path[1:])


def _filter(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    for path, _ in paths_of_items(rest):
        second = call.at(1)
        if second is not None:
            yield second.done(ELEMENT, *path[1:])


def _chain(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    for path, _ in paths_of_items(rest):
        inner = (ELEMENT,) if value.head == "itertools.chain" else (ELEMENT, ELEMENT)
        yield from (each.done(*inner, *path[1:]) for each in given(call))


def _repeat(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first = call.at(0, "object")
    for path, _ in paths_of_items(rest):
        if first is not None:
            yield first.done(*path[1:])


def _awaited(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first = call.first() or call.at(1 << 30, "main")
    match rest:
        case _ if first is None:
            pass
        case [Access(By.AWAITED), *more] | [Access(By.ATTRIBUTE, "result"), Access(By.CALL), *more]:
            yield first.done(AWAITED, *more)
        case _ if value.head == "asyncio.run":
            yield first.done(AWAITED, *rest)
        case _:
            pass


def _event_loop(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`get_event_loop().run_until_complete(x)`, and `create_task` of a loop and of a group."""
    rest = rest[1:] if rest[:1] == (ENTERED,) else rest
    match rest:
        case [
            Access(By.ATTRIBUTE, "create_task" | "run_until_complete" | "run" as word),
            Access(By.CALL) as later,
            *more,
        ]:
            name = "create_task" if word == "create_task" else "run"
            yield flow.outside(value.module, f"asyncio.{name}", (later, *more))
        case [Access(By.ATTRIBUTE, "run_in_executor"), Access(By.CALL, later), Access(By.AWAITED), *more]:
            yield from _operator_call(flow, value, flow.rest_of(later), tuple(more))
        case [Access(By.ATTRIBUTE, "create_future"), Access(By.CALL), *more]:
            yield from _future(flow, value, call, tuple(more))
        case [Access(By.ATTRIBUTE), *_]:
            yield Unknown("an event loop may give anything", value)
        case _:
            pass


def _gathered(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    match rest:
        case [Access(By.AWAITED), Access(By.ITEM | By.ELEMENT, key), *more]:
            place = key.text if isinstance(key, Key) and isinstance(key.text, int) and key.text >= 0 else None
            found = call.at(place) if place is not None else None
            for each in [found] if found is not None else given(call):
                yield each.done(AWAITED, *more)
        case _:
            pass


def _in_thread(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    if rest[:1] == (AWAITED,):
        yield from _operator_call(flow, value, call, rest[1:])


def _waited(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`done, pending = wait(futures)`, which asyncio awaits."""
    first = call.first()
    rest = rest[1:] if rest[:1] == (AWAITED,) else rest
    if first is not None and rest:
        yield from (first.done(ELEMENT, *path[1:]) for path, _ in paths_of_items(rest[1:]))


def _method_type(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`MethodType(f, x)(y)`, which is `f(x, y)`."""
    function, owner = call.at(0), call.at(1)
    if function is not None and owner is not None:
        yield function.done(Access(By.BOUND, owner), *rest)


def _executor(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`submit(f, x).result()`, `run(f, x)`, `apply(f, (x,))`, and the elements of `map(f, xs)`."""
    match rest:
        case [Access(By.ENTERED), *more]:
            yield Value(value.module, value.head, (Access(By.CALL, call), *more))
        case [
            Access(By.ATTRIBUTE, "submit"),
            Access(By.CALL, later),
            Access(By.ATTRIBUTE, "result"),
            Access(By.CALL),
            *more,
        ]:
            yield from _operator_call(flow, value, later, tuple(more))
        case [Access(By.ATTRIBUTE, "run"), Access(By.CALL, later), *more]:
            yield from _operator_call(flow, value, later, tuple(more))
        case [
            Access(By.ATTRIBUTE, "apply_async" | "map_async" | "starmap_async" as word),
            Access(By.CALL) as later,
            Access(By.ATTRIBUTE, "get"),
            Access(By.CALL),
            *more,
        ]:
            yield value._replace(path=(value.path[0], attribute(word.removesuffix("_async")), later, *more))
        case [Access(By.ATTRIBUTE, "apply"), Access(By.CALL, later), *more] if later.first() is not None:
            args = later.at(1, "args")
            parts = flow.call_with(args, is_starred=True) if args is not None else flow.no_arguments
            yield later.first().done(Access(By.CALL, parts), *more)
        case [
            Access(By.ATTRIBUTE, "map" | "imap" | "imap_unordered" | "starmap" as word),
            Access(By.CALL, later),
            *more,
        ]:
            name = "itertools.starmap" if word == "starmap" else "builtins.map"
            yield flow.outside(value.module, name, (Access(By.CALL, later), *more))
        case _:
            pass


def _singledispatch(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    if rest[:1] == (attribute("dispatch"),):
        rest = rest[2:]
    yield from _first(flow, value, call, rest)
    first = call.first()
    function = first.head if first is not None else None
    for module, read in flow.stores.reads("register"):
        if isinstance(read, ast.Attribute) and last_name(read.value) == getattr(function, "name", ""):
            holder = module.parents[read]
            holder = module.parents[holder] if isinstance(holder, ast.Call) and holder.func is read else holder
            if isinstance(holder, Function):
                yield Value(module, holder, rest)
            elif isinstance(holder := module.parents[read], ast.Call) and len(holder.args) > 1:
                yield Value(module, holder.args[1], rest)
    yield Unknown("which function is called depends on the type of its argument", value)


def _future(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """What `set_result` puts into some future."""
    match rest:
        case [Access(By.AWAITED), *more] | [Access(By.ATTRIBUTE, "result"), Access(By.CALL), *more]:
            yield from (Value(module, each.args[0], tuple(more)) for module, each in flow.stores.calls("set_result"))
            yield Unknown("a future may be given its result out of view", value)
        case _:
            pass


def _context_variable(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """What `get()` gives: a default, or what is set by the name of the variable."""
    match rest:
        case [Access(By.ATTRIBUTE, "get"), Access(By.CALL, later), *more]:
            yield from (each.done(*more) for each in (later.first(), call.at(1, "default")) if each is not None)
            holder = value.module.parents.get(call.node) if call.node is not None else None
            targets = holder.targets if isinstance(holder, ast.Assign) else [getattr(holder, "target", None)]
            names = set(map(last_name, targets)) - {None}
            for module, read in flow.stores.reads("set"):
                match read, module.parents[read]:
                    case ast.Attribute(value=variable), ast.Call(func=function, args=[given_value, *_]):
                        if function is read and last_name(variable) in names:
                            yield Value(module, given_value, tuple(more))
                    case _:
                        pass
            yield Unknown("a context may hold another value", value)
        case _:
            pass


def _fromkeys(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    for path, _ in paths_of_items(rest):
        found = call.at(0 if path[0].kind is By.ELEMENT else 1)
        if found is not None:
            yield found.done(*((ELEMENT,) if path[0].kind is By.ELEMENT else ()), *path[1:])
        if path[1:] and path[0].kind is not By.ELEMENT:
            yield Unknown("what all keys share may be changed by another one", value, is_open=True)


def _getter(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`attrgetter("a.b")(x)` and `itemgetter(0)(x)`, which give a tuple where they are made of several."""
    match rest:
        case [Access(By.CALL, later), *more] if (first := later.first()) is not None:
            wanted = [*given(call)]
            if len(wanted) > 1 and more and more[0].kind is By.ITEM:
                place = more[0].what.text if more[0].what is not None else None
                wanted = [wanted[place]] if isinstance(place, int) and place < len(wanted) else wanted
                more = more[1:]
            for each in wanted:
                text = flow.text(each) if value.head == "operator.attrgetter" else None
                if value.head == "operator.itemgetter":
                    yield first.done(flow.key(each), *more)
                elif text is None:
                    yield Unknown("an attribute is looked up by a computed name", value)
                else:
                    yield first.done(*map(attribute, text.split(".")), *more)
        case [Access(By.CALL), *_]:
            yield Unknown("an argument is not seen", value)
        case _:
            pass


def _methodcaller(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    match rest:
        case [Access(By.CALL, later), *more] if later.first() is not None:
            first = call.first()
            name = flow.text(first) if first is not None else None
            if name is None:
                yield Unknown("a method is looked up by a computed name", value)
            else:
                yield later.first().done(attribute(name), Access(By.CALL, flow.rest_of(call)), *more)
        case _:
            pass


def _operator(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`operator.add(x, y)`."""
    word = f"{value.head}".rpartition(".")[2].strip("_")
    found = [*given(call)]
    if len(found) in (1, 2):
        yield from of_operands(flow, word if word in _OPERATORS else word.removeprefix("i"), found, rest)


def _operator_call(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first = call.first()
    if first is not None:
        yield first.done(Access(By.CALL, flow.rest_of(call)), *rest)


def _getitem(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first, key = call.at(0), call.at(1)
    if first is not None and key is not None:
        yield first.done(flow.key(key), *rest)


def _context(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`contextmanager(f)(x)`: what a `with` of it gets is what `f` yields."""
    first = call.first()
    match rest:
        case [Access(By.CALL) as later, Access(By.ENTERED), *more] if first is not None:
            yield first.done(later, ELEMENT, *more)
        case [Access(By.CALL), Access(By.CALL, decorating), *more] if first is not None:
            yield from _first(flow, value, decorating, (*more,))
        case [
            Access(By.BOUND) as owner,
            Access(By.CALL) as later,
            Access(By.ENTERED),
            *more,
        ] if first is not None:
            yield first.done(owner, later, ELEMENT, *more)
        case _:
            pass


def _nullcontext(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    found = call.first() or call.at(1 << 30, "enter_result")
    if rest[:1] == (ENTERED,) and found is not None:
        yield found.done(*rest[1:])


def _stack(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    match rest:
        case [Access(By.ENTERED), *more]:
            yield Value(value.module, value.head, (Access(By.CALL, call), *more))
        case [
            Access(By.ATTRIBUTE, "enter_context" | "enter_async_context"),
            Access(By.CALL, later),
            *more,
        ]:
            first = later.first()
            if first is not None:
                yield first.done(ENTERED, *more)
        case _:
            pass


def _namespace(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    if rest and rest[0].kind is By.ATTRIBUTE:
        is_found = False
        for word, each in call.keywords:
            if word == rest[0].what:
                is_found = True
                yield each.done(*rest[1:])
            elif word is None:
                is_found = True
                yield each.done(item(rest[0].what), *rest[1:])
        for stored in _set_anywhere(flow, rest[0].what, rest[1:]):
            is_found = True
            yield stored
        if not is_found:
            yield Unknown(f"nothing in view sets `{rest[0].what}`", value)


def _namedtuple(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    names: list[str] = []
    fields = call.at(1, "field_names")
    if fields is not None and isinstance(fields.head, ast.Constant) and isinstance(fields.head.value, str):
        names = fields.head.value.replace(",", " ").split()
    elif fields is not None and isinstance(fields.head, ast.Tuple | ast.List) and not fields.path:
        # `["a"]`, or `[("a", int)]`
        parts = [each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each for each in fields.head.elts]
        names = [str(each.value) for each in parts if isinstance(each, ast.Constant)]
    if value.head == "dataclasses.make_dataclass" and len(rest) > 1:
        yield Unknown("fields may be set later", value)
    match rest:
        case [Access(By.CALL), Access(By.ATTRIBUTE, "_replace" | "_asdict"), *_]:
            yield from of_record_method(flow, value._replace(path=value.path[:2]), rest[1:])
        case [Access(By.ATTRIBUTE, "_make"), *_]:
            yield from of_record_method(flow, value._replace(path=value.path[:1]), rest)
        case [Access(By.CALL, later), Access(By.ATTRIBUTE, str(name)), *more] if name in names:
            seen = [*of_field(later, names.index(name), name, (*more,))]
            defaults = call.at(1 << 30, "defaults")
            if defaults is not None:
                # They are those of the last fields.
                seen.append(defaults.done(item(names.index(name) - len(names)), *more))
            yield from seen or [Unknown("a field is not seen", value)]
        case [Access(By.CALL, later), Access(By.ITEM | By.ELEMENT, key), *more]:
            place = key.text if isinstance(key, Key) and isinstance(key.text, int) else None
            if place is not None and 0 <= place < len(names):
                found = later.at(place, names[place])
                yield found.done(*more) if found is not None else Unknown("a field is not seen", value)
            else:
                yield from (each.done(*more) for each in given(later))
        case [Access(By.CALL), Access(By.ATTRIBUTE, str()), *_]:
            yield Unknown("a field is not seen", value)
        case _:
            pass


def _super(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    node = call.node
    holder = next((each for each in value.module.above(node) if isinstance(each, ast.ClassDef)), None) if node else None
    if holder is None or not rest:
        yield Unknown("what `super()` is of is not seen", value)
        return
    bases = flow.bases(value.module, holder)
    name = rest[0].what if rest[0].kind is By.ATTRIBUTE else None
    for module, each in (*_between(flow, value.module, holder), *bases.classes[1:]):
        bindings = module.facts.names.inner[each].bindings.get(name, ()) if isinstance(name, str) else ()
        for binding in bindings:
            steps = (Access(By.BOUND, Value(module, Own(holder, False))), *rest[1:])
            yield from of_bound(flow, module, binding, steps, None)
        if bindings and (module, each) in bases.classes:
            return
    is_called = rest[1:2] and rest[1].kind is By.CALL
    if name in ("__new__", "__call__") and is_called and "builtins.type" in bases.outside:
        # A metaclass makes the classes that name it, and their objects.
        for module in flow.modules:
            for each in module.nodes_of(ast.ClassDef):
                if (value.module, holder) in flow.bases(module, each).metaclasses:
                    yield Value(module, each, rest[2:] if name == "__new__" else rest[1:])
    elif name == "__new__" and is_called:
        yield Value(value.module, Own(holder, is_class=False), rest[2:])
        if bases.is_whole and not bases.outside:
            return
    yield from (flow.outside(value.module, each, (Access(By.CALL, flow.no_arguments), *rest)) for each in bases.outside)
    if name == "__getattribute__" and is_called:
        asked = flow.merged(Value(value.module, Own(holder, is_class=False)), rest[1].what)
        yield flow.outside(value.module, "builtins.getattr", (Access(By.CALL, asked), *rest[2:]))
    if not bases.outside:
        yield Unknown(f"no base of `{holder.name}` in view has this", value)


def _between(flow: ValueFlow, module: ModuleUses, definition: ast.ClassDef) -> Iterator[Definition]:
    """The classes that come between a class and its bases where another class derives from them as well."""
    own = flow.bases(module, definition).classes
    for below in flow.below(definition):
        classes = flow.bases(*below).classes
        yield from (each for each in classes[classes.index((module, definition)) :] if each not in own)


def _type(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first = call.first()
    if len(call.positional) == 1 and first is not None and rest:
        yield first.done(attribute("__class__"), *rest)
    elif len(call.positional) > 1:
        bases, attributes = call.at(1), call.at(2)
        if bases is not None and rest:
            yield bases.done(ELEMENT, *rest)
        of_class = rest[1:] if rest[:1] and rest[0].kind is By.CALL else rest
        if attributes is not None and of_class and of_class[0].kind is By.ATTRIBUTE:
            yield attributes.done(item(of_class[0].what), *of_class[1:])
        yield Unknown("a class is made by `type`", value, is_open=bases is not None)


def _names_by_text(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`vars(x)["a"]`, `globals()["a"]` and `locals()["a"]`."""
    owner = Value(value.module, value.module.facts.tree) if value.head == "builtins.globals" else call.first()
    scope = value.module.scope_of(call.node) if call.node is not None and value.head == "builtins.locals" else None
    for path, default in paths_of_items(rest):
        if default is not None:
            yield default
        key = path[0].what
        text = key.text if path[0].kind is By.ITEM and isinstance(key, Key) and isinstance(key.text, str) else ANYTHING
        if scope is not None:
            every = [each for found in scope.bindings.values() for each in found]
            for each in every if text == ANYTHING else scope.bindings.get(text, ()):
                yield from of_bound(flow, value.module, each, path[1:], None)
        elif owner is not None:
            names = _names_in(flow, owner, Texts([text], is_whole=True))
            yield from (owner.done(attribute(name), *path[1:]) for name in names)
        if ANYTHING in text:
            yield Unknown("names are looked up by computed texts", value)


def _evaluated(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`eval("model.mesh")`, and of a text that is computed what it may name."""
    first = call.first()
    texts = flow.texts(first) if first is not None else Texts([ANYTHING], is_whole=False)
    scope = value.module.scope_of(call.node) if call.node is not None else value.module.facts.names.scope
    is_seen = texts.is_whole
    for text in texts.texts:
        name, *attributes = text.split(".")
        owner = scope.owner(name)
        is_seen &= owner is not None and all(map(str.isidentifier, attributes))
        for binding in owner.bindings[name] if owner is not None else ():
            yield from of_bound(flow, value.module, binding, (*map(attribute, attributes), *rest), None)
    for name in _names_in(flow, Value(value.module, value.module.facts.tree), texts) if not texts.is_whole else ():
        yield Value(value.module, value.module.facts.tree, (attribute(name), *rest))
    # Of names that are seen there, it only may be another value.
    yield Unknown("code is read out of a text", value, is_open=is_seen)


def _imported(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    first, package = call.at(0, "name"), call.at(1, "package")
    texts = flow.texts(first) if first is not None else Texts([ANYTHING], is_whole=False)
    home = flow.text(package) if package is not None else None
    is_whole = texts.is_whole
    if home is not None:
        texts = texts._replace(texts=[f"{home}{each}" if each.startswith(".") else each for each in texts.texts])
    for text in texts.names([module.facts.names.name for module in flow.modules]):
        if value.head == "builtins.__import__" and call.at(3, "fromlist") is None:
            text = text.partition(".")[0]
        is_whole &= not text.startswith(".")
        if ANYTHING not in text and not text.startswith("."):
            yield from flow.of_full_name(value.module, text.replace(":", "."), rest)
    if not is_whole:
        yield Unknown("a module is imported by a computed name", value)


def _of_modules_by_name(flow: ValueFlow, value: Value) -> _Found:
    key = value.path[0].what
    if isinstance(key, Key) and isinstance(key.text, str):
        yield from flow.of_full_name(value.module, key.text, value.path[1:])
    else:
        yield Unknown("a module is looked up by a computed name", value)


def _attribute_dictionary(flow: ValueFlow, value: Value, call: CallArguments, rest: Path) -> _Found:
    """`ConfigDict(a=x)["a"]` and `.a`, also as it is set later."""
    match rest:
        case [Access(By.ATTRIBUTE, str(name)), *more] if name not in _OF_DICTIONARIES:
            steps = [item(name), *more]
            yield from _dictionary(flow, value, call, (*steps,))
            yield from _set_anywhere(flow, name, tuple(more))
            for place, step in enumerate(more):
                # A dictionary in it becomes one of its kind.
                if step.kind is not By.ATTRIBUTE or step.what in _OF_DICTIONARIES:
                    break
                steps[place + 1] = item(step.what)
                yield from _dictionary(flow, value, call, (*steps,))
        case [Access(By.ITEM, Key(text=str(name))), *more]:
            yield from _dictionary(flow, value, call, rest)
            yield from _set_anywhere(flow, name, tuple(more))
        case _:
            yield from _dictionary(flow, value, call, rest)


def _set_anywhere(flow: ValueFlow, name: str, rest: Path) -> _Found:
    """What is stored in an attribute of a name of an object that is not `self`."""
    for store in flow.stores.of(name):
        if store.holder is None:
            yield from flow.stored(store, rest, None)


# Forms of what makes objects that are no functions.
_MAKE_OBJECTS = frozenset(
    (
        *(_accumulated, _as_dictionary, _attribute_dictionary, _chain, _context_variable, _dictionary),
        *(_enumerate, _event_loop, _executor, _field_names, _filter, _fromkeys, _getter),
        *(_gone_through, _grouped, _map, _methodcaller, _namedtuple, _namespace, _reference, _repeat, _stack),
        _zip,
        *array_libraries.MAKE_OBJECTS,
    )
)
_NEVER_BOUND = PARTIALS - {"functools.partialmethod"}
_FORMS: dict[str, Form] = {
    **array_libraries.FORMS,
    **dict.fromkeys(PARTIALS, _partial),
    **dict.fromkeys((*_GIVE_FIRST, *_REPLACE), _first),
    **dict.fromkeys(_GIVE_SECOND, _second),
    "typing.NewType": _new_type,
    "dataclasses.fields": _field_names,
    **dict.fromkeys(("weakref.ref", "weakref.WeakMethod"), _reference),
    **dict.fromkeys(("asyncio.wait", "concurrent.futures.wait"), _waited),
    "types.MethodType": _method_type,
    **dict.fromkeys(("dataclasses.asdict", "attrs.asdict", "attr.asdict"), _as_dictionary),
    **dict.fromkeys(("dataclasses.astuple", "attrs.astuple", "attr.astuple"), _first),
    **dict.fromkeys(_WRAP, _cached),
    **dict.fromkeys(_PROPERTIES, _property),
    "builtins.classmethod": _classmethod,
    "builtins.staticmethod": _staticmethod,
    "functools.wraps": _wraps,
    **dict.fromkeys(("builtins.getattr", "builtins.object.__getattribute__", "inspect.getattr_static"), _getattr),
    **dict.fromkeys(_GIVE_ELEMENT, _elements),
    **dict.fromkeys((*_GO_THROUGH, *_MIX_UP), _gone_through),
    **dict.fromkeys((*_DICTIONARIES, "collections.defaultdict"), _dictionary),
    "builtins.dict.fromkeys": _fromkeys,
    "builtins.enumerate": _enumerate,
    **dict.fromkeys(("builtins.zip", "itertools.product", "itertools.zip_longest"), _zip),
    **dict.fromkeys(
        (f"itertools.{name}" for name in ("batched", "combinations", "groupby", "pairwise", "permutations", "tee")),
        _grouped,
    ),
    "itertools.accumulate": _accumulated,
    **dict.fromkeys(("builtins.map", "itertools.starmap"), _map),
    **dict.fromkeys(
        ("builtins.filter", "itertools.filterfalse", "itertools.takewhile", "itertools.dropwhile"), _filter
    ),
    **dict.fromkeys(("itertools.chain", "itertools.chain.from_iterable", "builtins.sum"), _chain),
    "itertools.repeat": _repeat,
    **dict.fromkeys(
        (f"asyncio.{name}" for name in ("run", "create_task", "ensure_future", "shield", "wait_for")), _awaited
    ),
    **dict.fromkeys(
        (f"asyncio.{name}" for name in ("TaskGroup", "get_event_loop", "get_running_loop", "new_event_loop", "Runner")),
        _event_loop,
    ),
    "asyncio.gather": _gathered,
    "asyncio.to_thread": _in_thread,
    **dict.fromkeys(_EXECUTORS, _executor),
    **dict.fromkeys(("functools.singledispatch", "functools.singledispatchmethod"), _singledispatch),
    **dict.fromkeys(("operator.attrgetter", "operator.itemgetter"), _getter),
    "operator.methodcaller": _methodcaller,
    **{f"operator.{form}": _operator for word in _OPERATORS for form in (word, f"i{word}", f"__{word}__", f"{word}_")},
    "operator.call": _operator_call,
    "operator.getitem": _getitem,
    **dict.fromkeys(_CONTEXTS, _context),
    **dict.fromkeys((f"contextlib.{name}" for name in ("nullcontext", "closing", "aclosing")), _nullcontext),
    **dict.fromkeys(("contextlib.ExitStack", "contextlib.AsyncExitStack"), _stack),
    **dict.fromkeys(("types.SimpleNamespace", "types.ModuleType", "argparse.Namespace", "threading.local"), _namespace),
    **dict.fromkeys(("concurrent.futures.Future", "asyncio.Future"), _future),
    "contextvars.copy_context": _executor,
    "contextvars.ContextVar": _context_variable,
    **dict.fromkeys(("collections.namedtuple", "typing.NamedTuple", "dataclasses.make_dataclass"), _namedtuple),
    "builtins.super": _super,
    "builtins.type": _type,
    **dict.fromkeys(("builtins.vars", "builtins.globals", "builtins.locals"), _names_by_text),
    "builtins.eval": _evaluated,
    **dict.fromkeys(("importlib.import_module", "builtins.__import__", "pkgutil.resolve_name"), _imported),
    **dict.fromkeys(CALL_BACK, of_called_back),
    **dict.fromkeys(ATTRIBUTE_DICTIONARIES, _attribute_dictionary),
}
