"""State of Python that a function reaches, to refuse changes of it when it is traced once more than on one device.

JAX sees none of it: a list that a loss appends to, a counter, a random generator of Python. A function reaches what it
closes over, the globals that it reads, its defaults and the object of a method, and what is in these. What belongs to
libraries is left out, but for what the function itself names: they keep caches, and other threads change some of it.

What is changed is found by comparing what is there before the trace and after it. Only then the line is looked for: the
function is traced once more, and what has changed is compared after each line of the program.
"""

from __future__ import annotations

import array
import contextlib
import contextvars
import functools
import logging
import mmap
import os
import queue
import random
import re
import sys
import threading
import time
import types
import weakref
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from gc import get_referents
from itertools import count, islice
from operator import length_hint
from typing import Any, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from mmruntime import _compat
from mmruntime._core.switches import LOOKED_FOR
from mmruntime._frontend.labels import innermost, label_of

R = TypeVar("R")

# Of a larger program it is what is nearest to the function.
_MOST_OBJECTS = 20_000
_MOST_BYTES = 1 << 24
# Objects that no part of the program is in, or that other threads change. Of these, queues and containers of weak
# references are compared, and a change counts if this thread has called a method that makes one.
_NOT_FOLLOWED = frozenset(
    ("_thread", "asyncio", "concurrent", "jaxlib", "mmruntime", "multiprocessing", "queue", "threading", "weakref")
)
# What they make of a function of the program is a function of theirs; another installed package may be the program.
_FRAMEWORKS = frozenset(("equinox", "flax", "haiku", "jax", "optax"))
_SHARED = (queue.Queue, weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_CHANGING = frozenset(
    (
        "__delitem__",
        "__setitem__",
        "add",
        "clear",
        "discard",
        "get",
        "pop",
        "popitem",
        "put",
        "remove",
        "setdefault",
        "update",
    )
)
_PLAIN = frozenset((bool, bytes, complex, float, int, str, types.NoneType))
# What they are called with is an attribute that no method computes.
_CALLING = frozenset((property, staticmethod, classmethod, functools.cached_property, functools.partialmethod))
_CALLED = ("__func__", "fdel", "fget", "fset", "func")
# What Python keeps in a class. Linen takes fields out and puts them back when it derives one, as for `nn.remat`.
_OF_PYTHON = frozenset(("__annotations__", "__annotations_cache__", "__dataclass_fields__"))
_NAMES = re.compile(r"[^\W\d]\w*")
_MOST_NAMED = 100
_MOST_SHOWN = 4
_MOST_SECONDS = 20.0
_MISSING = object()
_BUFFERS = frozenset((array.array, bytearray, memoryview, mmap.mmap))
# What a program may change of a library by its name.
_CONTAINERS = (dict, list, set)


@dataclass(frozen=True, eq=False)
class _StateObject:
    """An object that a function reaches.

    Attributes:
        value: The object.
        name: What messages call it: the name in the function, with attributes.
        reader: The function that has the name, and its line.
        is_private: Whether it is a part of a library's object, which is followed and not compared.
        is_given: Whether it is an argument, or in one.
    """

    value: Any
    name: str
    reader: str = ""
    is_private: bool = False
    is_given: bool = False


@dataclass(frozen=True, eq=False)
class _View:
    """What an object holds: its parts by their paths, and what else may have changed afterwards.

    `followed` leads to parts that a library may exchange.
    """

    parts: Sequence[tuple[str, Any]] = ()
    content: object = None
    followed: Sequence[tuple[str, Any]] = ()

    def changed(self, later: _View) -> Iterator[str]:
        """What leads to the parts that are others later: `.count`, a name; an empty text for the object itself."""
        before, after = ([name for name, _ in view.parts] for view in (self, later))
        changed = [*({*before} ^ {*after})] or [""]
        if before == after:
            pairs = zip(self.parts, later.parts, strict=True)
            changed = [name for (name, one), (_, other) in pairs if not _is_same(one, other)]
        if self.content != later.content:
            changed.append("")
        yield from sorted({"" if name.startswith("[") else name for name in changed})

    def is_start_of(self, later: _View) -> bool:
        """Whether all that is here is there, and before what else is there."""
        pairs = zip(self.parts, later.parts, strict=False)
        return len(self.parts) < len(later.parts) and all(
            name == other and _is_same(one, value) for (name, one), (other, value) in pairs if name.startswith("[")
        )


def traced_again(
    what: str,
    fun: Callable[..., Any],
    given: Mapping[str, Any],
    trace: Callable[[], R],
    others: Sequence[Callable[[], object]] = (),
    instead: str = "Return what is kept there from {} instead, with has_aux=True.",
) -> R:
    """What `trace` gives, which traces a function once more than one device does.

    Args:
        what: The function of ours that traces it.
        fun: The function.
        given: Arguments of it that it may change, by their names.
        trace: Traces it.
        others: Trace it for other numbers of examples, each of which may change what `trace` has left as it is.
        instead: What to write, with a place for the function's name.

    Raises:
        ValueError: If the function changes state of Python meanwhile, with the line and what to write.
    """
    state = PythonState(fun, given)

    def check() -> None:
        changes = state.changes()
        places = state.located(changes, (trace, *others)) if changes else ()
        if places:
            label = label_of(fun)
            raise ValueError(
                f"{what}: {label} changes {_listed(places)}, and is traced more than once, for the whole batch and for "
                "a part of it, so that what is there afterwards is not what one device leaves. "
                f"{_advice(changes, label, instead)}"
            )

    try:
        result = trace()
    except Exception:
        # It may fail as it reads what the trace before has left.
        check()
        raise
    check()
    return result


def _listed(places: Sequence[str]) -> str:
    shown = [*places[:_MOST_SHOWN], *([f"{len(places) - _MOST_SHOWN} more"] if len(places) > _MOST_SHOWN else [])]
    return " and ".join((", ".join(shown[:-1]), shown[-1]) if len(shown) > 1 else shown)


def _advice(changes: Sequence[_StateChange], label: str, instead: str) -> str:
    """What to write, by what has changed."""
    drawn = [each for each in changes if _is_drawn_from(each.holder.value)]
    is_set = [each for each in changes if each.holder.value is os.environ]
    advice = []
    if drawn:
        advice.append(f"Draw from it in front of {label}, and pass what it gives to it.")
    if is_set:
        advice.append(f"Set it outside of {label}.")
    if len(drawn) + len(is_set) < len(changes):
        advice.append(instead.format(label))
    if any(each.is_added for each in changes):
        advice.append("What is only kept so as not to be computed again, functools.cache may keep.")
    return " ".join(advice)


def _is_drawn_from(value: Any) -> bool:
    generators = random.Random | np.random.Generator | np.random.RandomState
    return issubclass(type(value), generators) or hasattr(type(value), "__next__")


@dataclass(frozen=True, eq=False)
class _StateChange:
    """A part of an object that is another than before: what leads to it, and the object.

    Attributes:
        holder: The object.
        part: What leads to the part from there; an empty text for the object itself.
        is_added: Whether it is a dictionary that has more items, and else what it had.
    """

    holder: _StateObject
    part: str
    is_added: bool

    @property
    def name(self) -> str:
        """What messages call it."""
        name = _joined(self.holder.name, self.part)
        shown = name if " " in name else f"`{name}`"
        return f"its argument {shown}" if self.holder.is_given else shown

    @property
    def reader(self) -> str:
        """The function that has it, and its line; an empty text for an argument."""
        return _reader(self.holder.value) or self.holder.reader


class PythonState:
    """The state that functions and their arguments reach, as it is when this is made."""

    def __init__(self, fun: Callable[..., Any], given: Mapping[str, Any]) -> None:
        home = _package_of(getattr(innermost(fun), "__module__", None))
        self._home = home if home not in _FRAMEWORKS else None
        self._views: list[tuple[_StateObject, _View]] = []
        queue = deque([_StateObject(fun, "")])
        queue.extend(_StateObject(value, name, is_given=True) for name, value in given.items())
        # The generators behind their functions.
        for module, method in (("random", random.getstate), ("numpy.random", np.random.get_state)):
            queue.append(_StateObject(getattr(method, "__self__", None), f"the state of `{module}`"))
        queue.append(_StateObject(os.environ, "os.environ"))
        seen: dict[int, Any] = {}
        followed = 0
        while queue and followed < _MOST_OBJECTS:
            each = queue.popleft()
            if id(each.value) in seen:
                continue
            # Kept, so that no other object has its number meanwhile.
            seen[id(each.value)] = each.value
            view = self._view(each.value)
            if view is not None:
                followed += 1
                if not each.is_private or self._is_function_of_the_program(each.value):
                    self._views.append((each, view))
                queue.extend(self._reached_by(each, view))

    def changes(self) -> list[_StateChange]:
        """What has changed since."""
        return [
            _StateChange(each, part, issubclass(type(each.value), dict) and before.is_start_of(after))
            for each, before in self._views
            if (after := self._view(each.value)) is not None
            for part in before.changed(after)
        ]

    def located(self, changes: Sequence[_StateChange], traces: Iterable[Callable[[], object]]) -> list[str]:
        """The names of changes, each with the line that makes it when one of `traces` runs; else the function's line.

        What changes no more, as there is no further number to draw, has no such line.
        """
        lines = _ChangingLines({each.holder for each in changes}, self._view, self._is_of_a_library)
        for trace in traces:
            if not all(map(lines.of, changes)):
                with contextlib.suppress(Exception), LOOKED_FOR(object()), lines.watched():
                    trace()
        sure = [each for each in changes if not _is_shared(each.holder.value) or lines.of(each)]
        found = ((each, lines.of(each) or (each.reader and f"of {each.reader}")) for each in sure)
        return list(dict.fromkeys(" ".join(filter(None, (each.name, place))) for each, place in found))

    def _reached_by(self, each: _StateObject, view: _View) -> Iterator[_StateObject]:
        module = _module_of(each.value)
        is_library = self._is_of_a_library(module)
        # Objects of the standard library hold what the program gives them, and its functions keep caches.
        is_cache = is_library and (type(each.value) is types.FunctionType or not _is_standard(_package_of(module)))
        # What is in them is followed for the functions and objects of the program.
        is_private = is_cache or (each.is_private and issubclass(type(each.value), dict | list | tuple))
        reader = each.reader if is_library else _reader(each.value) or each.reader
        parts = (part for part in (*view.followed, *view.parts) if type(part[1]) not in _PLAIN)
        for name, value in islice(parts, _MOST_OBJECTS):
            # What functions among the arguments read is not the argument's.
            is_given = each.is_given and type(each.value) is not types.FunctionType
            yield _StateObject(value, _joined(each.name, name), reader, is_private, is_given)

    def _view(self, value: Any) -> _View | None:
        # The class that an object says to have may be computed by its methods.
        kind = type(value)
        if kind is types.FunctionType:
            # `functools.wraps` gives a library's function the user's module, but its variables are the library's.
            is_wrapper = self._is_of_a_library(value.__globals__.get("__name__"))
            cells, parts = tuple(self._cells_of(value)), tuple(self._of_function(value))
            return _View(parts, followed=cells) if is_wrapper else _View((*cells, *parts))
        if issubclass(kind, type):
            attributes = () if self._is_of_a_library(value.__module__) else tuple(vars(value).items())
            names = ((f".{name}", each) for name, each in attributes if name not in _OF_PYTHON)
            return _View((*names, *(("", each) for each in (kind, *value.__bases__))))
        if issubclass(kind, types.ModuleType | jax.Array | jax.sharding.Mesh | Tracer):
            return None
        is_followed = callable(value) or issubclass(kind, threading.local)
        if _is_shared(value):
            held = value.queue if issubclass(kind, queue.Queue) else value.data
            values = held.values() if issubclass(kind, weakref.WeakKeyDictionary) else ()
            return _View(tuple(("[...]", each) for each in tuple(values)), len(held))
        if _package_of(kind.__module__) in _NOT_FOLLOWED and not is_followed:
            return None
        return _View(tuple(_parts_of(value)), _content_of(value), tuple(_cached_by(value)))

    def _cells_of(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        is_library = self._is_of_a_library(function.__module__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = _in_cell(cell)
            yield (_held_name(value, name) if is_library else name), value

    def _of_function(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        is_library = self._is_of_a_library(function.__module__)
        parameters, defaults = _parameters(function), function.__defaults__ or ()
        yield from zip(parameters[len(parameters) - len(defaults) :], defaults, strict=False)
        yield from (function.__kwdefaults__ or {}).items()
        yield from ((_held_name(value, f"{function.__name__}.{name}"), value) for name, value in vars(function).items())
        if is_library:
            return
        names = tuple(dict.fromkeys(_names_in(function.__code__)))
        spaces, seen = [("", function.__globals__, False)], set()
        # A module may be imported in the function, or in the one around.
        cells = zip(function.__code__.co_freevars, map(_in_cell, function.__closure__ or ()), strict=True)
        imported = {name: value for name, value in cells if type(value) is types.ModuleType}
        for prefix, space, is_library in spaces:
            for name in names if prefix else (*imported, *names):
                value = space.get(name, _MISSING)
                if value is _MISSING and not prefix:
                    value = imported.get(name, sys.modules.get(name, _MISSING))
                if type(value) is types.ModuleType:
                    if value.__name__ not in seen and not is_library:
                        # `state.LOG`
                        seen.add(value.__name__)
                        spaces.append((f"{prefix}{name}.", vars(value), self._is_of_a_library(value.__name__)))
                elif value is not _MISSING and (not is_library or type(value) in _CONTAINERS):
                    # `sys.path`
                    yield f"{prefix}{name}", value

    def _is_function_of_the_program(self, value: Any) -> bool:
        return type(value) is types.FunctionType and not self._is_of_a_library(value.__module__)

    def _is_of_a_library(self, module: str | None) -> bool:
        package = _package_of(module)
        return package != self._home and is_library(package)


class _ChangingLines:
    """The lines of the program that change some objects, as Python runs them.

    Args:
        objects: The objects.
        view: What an object holds.
        is_of_a_library: Whether a module is no part of the program.
    """

    def __init__(
        self,
        objects: Iterable[_StateObject],
        view: Callable[[Any], _View | None],
        is_of_a_library: Callable[[str | None], bool],
    ) -> None:
        self._found: dict[tuple[_StateObject, str], str] = {}
        self._view, self._is_of_a_library = view, is_of_a_library
        objects = tuple(objects)
        self._shared = {id(each.value): each for each in objects if _is_shared(each.value)}
        self._views = {each: view(each.value) for each in objects if id(each.value) not in self._shared}
        self._line = ""
        self._end = time.monotonic() + _MOST_SECONDS

    def of(self, change: _StateChange) -> str:
        """The line of a change; an empty text if there was none."""
        return self._found.get((change.holder, change.part), "")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Have Python tell each line that it runs, unless that takes too long."""
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            yield
        finally:
            sys.settrace(before)
            self._compare()

    def _entered(self, frame: types.FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if time.monotonic() > self._end:
            sys.settrace(None)
            return None
        if self._is_of_the_program(frame):
            return self._ran(frame, event, arg)
        if self._shared and frame.f_code.co_name in _CHANGING:
            holder = self._shared.get(id(frame.f_locals.get("self")))
            if holder is not None:
                self._found.setdefault((holder, ""), self._line)
        return None

    def _ran(self, frame: types.FrameType, event: str, _: Any) -> Callable[..., Any]:
        self._compare()
        running: types.FrameType | None = frame
        if event == "return":
            # The line that has made the call goes on.
            running = frame.f_back
            while running is not None and not self._is_of_the_program(running):
                running = running.f_back
        if running is not None:
            self._line = f"at {running.f_code.co_filename}:{running.f_lineno}"
        return self._ran

    def _compare(self) -> None:
        for each, before in self._views.items():
            after = self._views[each] = self._view(each.value)
            if before is not None and after is not None:
                for part in before.changed(after):
                    self._found.setdefault((each, part), self._line)

    def _is_of_the_program(self, frame: types.FrameType) -> bool:
        return not self._is_of_a_library(frame.f_globals.get("__name__"))


def _joined(name: str, part: str) -> str:
    return f"{name}{part}" if part[:1] in ("", ".", "[") else part


def _reader(value: Any) -> str:
    if type(value) is not types.FunctionType:
        return ""
    return f"{value.__name__} at {value.__code__.co_filename}:{value.__code__.co_firstlineno}"


def _parameters(function: Any) -> tuple[str, ...]:
    """The names of the positional parameters of a plain function."""
    if type(function) is not types.FunctionType:
        return ()
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def _is_shared(value: Any) -> bool:
    return issubclass(type(value), _SHARED)


def _held_name(value: Any, name: str) -> str:
    """What to call the function that a transformation holds, whose name for it means nothing to who reads it."""
    if type(value) is types.MethodType:
        return "self"
    return type(value).__name__ if callable(value) else name


def _module_of(value: Any) -> str | None:
    owner = value if issubclass(type(value), type | types.FunctionType) else type(value)
    return owner.__module__


def _package_of(module: Any) -> str:
    # Types of extension modules may have something else there.
    return module.partition(".")[0] if isinstance(module, str) else ""


def _is_standard(package: str) -> bool:
    return package in sys.stdlib_module_names and package != "__main__"


@functools.cache
def is_library(package: str) -> bool:
    """Whether a package is Python's, our own or installed."""
    if _is_standard(package) or package == "mmruntime":
        return True
    module = sys.modules.get(package)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(place is not None and _compat.is_of_a_library(place) for place in places)


def _names_in(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes that a function and its inner functions read, in texts too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str):
            # `globals()["count"]`, `exec("count += 1")`
            yield from _NAMES.findall(constant)


def _in_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an object by their paths, found without running methods of the program."""
    kind = type(value)
    if value is os.environ:
        # It keeps bytes.
        yield from _items_of(value.values(), value.keys())
        return
    if issubclass(kind, dict):
        # It has an order of its own.
        table = OrderedDict if issubclass(kind, OrderedDict) else dict
        yield from _items_of(table.values(value), table.keys(value))
        yield from (("[a key]", key) for key in table.keys(value) if type(key) not in _PLAIN)
    for container in (list, tuple, set, frozenset, deque):
        if issubclass(kind, container):
            yield from _items_of(container.__iter__(value))
    if kind is functools.partial:
        yield "", value.func
        names = _parameters(value.func)
        yield from ((names[i] if i < len(names) else f"[{i}]", each) for i, each in enumerate(value.args))
        yield from value.keywords.items()
    elif kind is types.MethodType:
        yield from (("", value.__self__), ("", value.__func__))
    elif kind in (types.BuiltinMethodType, types.MethodWrapperType):
        yield "", value.__self__
    elif kind is types.GeneratorType:
        yield from ((f".{name}", each) for name, each in (value.gi_frame.f_locals if value.gi_frame else {}).items())
        yield "", value.gi_yieldfrom
    elif kind is contextvars.ContextVar:
        yield "", value.get(None)
    elif kind is np.ndarray and value.dtype == object:
        yield from _items_of(value.flat)
    elif kind in _CALLING:
        yield from ((f".{name}", getattr(value, name, None)) for name in _CALLED)
    elif hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools"):
        # `zip` and the like have other iterators.
        yield from _items_of(get_referents(value))
    yield "", kind
    yield from _attributes_of(value, kind)


def _cached_by(value: Any) -> Iterator[tuple[str, Any]]:
    """What a function of `functools.lru_cache` has given so far: the program may change it, and the cache may grow."""
    if type(value) is type(functools.cache(_cached_by)):
        # A cache of limited size refers to what it keeps itself, one without has a dictionary.
        for each in get_referents(value):
            yield from (("", part) for part in (tuple(each.values()) if type(each) is dict else (each,)))


def _items_of(values: Iterable[Any], keys: Iterable[Any] | None = None) -> Iterator[tuple[str, Any]]:
    """Items, which have names of their own where they are few."""
    items = tuple(values)
    if len(items) > _MOST_NAMED:
        return (("[...]", each) for each in items)
    return (
        (f"[{key!r}]" if type(key) in (int, str) else "[...]", each)
        for key, each in zip(keys or count(), items, strict=False)
    )


def _attributes_of(value: Any, kind: type) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, logging.Logger):
        # Parents of a logger have the messages of other code too.
        yield ".handlers", value.handlers
        return
    attributes = _own_attributes(value)
    # A compiled function or a cache has what it calls there.
    yield from ((f".{name}", each) for name, each in attributes.items())
    for owner in kind.__mro__:
        for name, slot in vars(owner).items():
            if type(slot) is types.MemberDescriptorType and owner.__module__ != "builtins":
                with contextlib.suppress(AttributeError):
                    yield f".{name}", slot.__get__(value)


def _own_attributes(value: Any) -> dict[str, Any]:
    # Of those of a thread it is the thread's.
    owner = threading.local if issubclass(type(value), threading.local) else object
    try:
        found = owner.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return dict(found) if type(found) is dict else {}


def _content_of(value: Any) -> object:
    """What an object has that is no object of Python."""
    kind = type(value)
    if issubclass(kind, np.ndarray) and value.dtype != object:
        # Of a large one, as many numbers as take that many bytes.
        step = 1 + value.nbytes // _MOST_BYTES
        return zlib.crc32((value if step == 1 else np.asarray(value).flat[::step]).tobytes())
    if kind in _BUFFERS or any(owner.__module__ == "_ctypes" for owner in kind.__mro__):
        with contextlib.suppress(TypeError, ValueError):
            return zlib.crc32(memoryview(value).cast("B"))
    if kind is random.Random:
        return value.getstate()
    if kind is np.random.Generator:
        return repr(value.bit_generator.state)
    if kind is np.random.RandomState:
        return repr(value.get_state(legacy=False))
    if kind.__module__ in ("_io", "io") and hasattr(kind, "tell"):
        # A file may be closed, or have no position.
        with contextlib.suppress(OSError, ValueError):
            return value.tell()
    if kind is count:
        return repr(value)
    if kind is types.GeneratorType:
        return value.gi_frame.f_lasti if value.gi_frame else None
    if kind.__module__ == "builtins" and hasattr(kind, "__next__"):
        return length_hint(value)
    return None


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_is_same, one, other))
    is_plain = type(one) in _PLAIN or issubclass(type(one), np.dtype | np.generic)
    return is_plain and bool(one == other or one != one)
