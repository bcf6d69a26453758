"""The state of Python that a function reaches, to say what changes when it is traced once more than on one device.

JAX sees none of it: a list that a loss appends to, a counter, a random generator of Python. A function reaches what it
closes over, the globals that it reads, its defaults and the object of a method, and what is in these. What belongs to
libraries is left out: they keep caches, and other threads change some of it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import logging
import random
import sys
import threading
import types
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from gc import get_referents
from itertools import count, islice
from operator import length_hint
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from mmruntime import _compat

log = logging.getLogger("mmruntime")

# Of a larger program it is what is nearest to the function.
_MOST_OBJECTS = 5_000
_MOST_BYTES = 1 << 24
# Objects that no part of the program is in, or that other threads change.
_NOT_FOLLOWED = frozenset(
    ("_thread", "asyncio", "concurrent", "jaxlib", "mmruntime", "multiprocessing", "queue", "threading", "weakref")
)
_PLAIN = frozenset((bool, bytes, complex, float, int, str, types.NoneType))
# What they are called with is an attribute that no method computes.
_CALLING = frozenset((property, staticmethod, classmethod, functools.cached_property, functools.partialmethod))
_CALLED = ("__func__", "fdel", "fget", "fset", "func")
# What Python keeps in a class. Linen takes fields out and puts them back when it derives one, as for `nn.remat`.
_OF_PYTHON = frozenset(("__annotations__", "__annotations_cache__", "__dataclass_fields__"))
_MOST_NAMED = 100
_MISSING = object()


@dataclass(frozen=True, eq=False)
class _StateObject:
    """An object that a function reaches.

    Attributes:
        value: The object.
        name: What messages call it: the name in the function, with attributes.
        reader: The function that has the name, and its line.
        is_private: Whether it is a part of a library's object, which is followed and not compared.
    """

    value: Any
    name: str
    reader: str = ""
    is_private: bool = False


@dataclass(frozen=True, eq=False)
class _View:
    """What an object holds: its parts with what leads to them, and what else may be different afterwards."""

    parts: Sequence[tuple[str, Any]] = ()
    content: object = None

    def changed(self, later: _View) -> Iterator[str]:
        """What leads to the parts that are others later: `.count`, a name; an empty text for the object itself."""
        before, after = ([name for name, _ in view.parts] for view in (self, later))
        changed = [*({*before} ^ {*after})] or [""]
        if before == after:
            pairs = zip(self.parts, later.parts, strict=True)
            changed = [name for (name, one), (_, other) in pairs if not _is_same(one, other)]
        if self.content != later.content or len(before) != len(after):
            changed.append("")
        yield from sorted({"" if name.startswith("[") else name for name in changed})


@contextlib.contextmanager
def watched(what: str, label: str, *reached: Any) -> Iterator[None]:
    """Say what a function changes of the state of Python while it is traced once more.

    Args:
        what: The function of ours that traces it.
        label: What messages call the function.
        reached: The function, and objects that it is given.
    """
    state = PythonState(*reached)
    yield
    changed = state.changed()
    if changed:
        log.warning(
            "%s: %s changes %s while it is traced, and is traced once more than on one device, for another number of "
            "examples. What is there afterwards is not what one device leaves: return it from the function instead, "
            "with has_aux=True.",
            what,
            label,
            ", ".join(changed),
        )


class PythonState:
    """The state that functions and their arguments reach, as it is when this is made."""

    def __init__(self, *roots: Any) -> None:
        self._homes = {
            _package_of(getattr(inspect.unwrap(each), "__module__", None)) for each in roots if callable(each)
        }
        self._views: list[tuple[_StateObject, _View]] = []
        queue = deque(_StateObject(each, "an argument") for each in roots)
        # The generators behind their functions.
        for module, method in (("random", random.getstate), ("numpy.random", np.random.get_state)):
            queue.append(_StateObject(getattr(method, "__self__", None), f"the state of `{module}`"))
        seen: dict[int, Any] = {}
        while queue and len(seen) < _MOST_OBJECTS:
            each = queue.popleft()
            if id(each.value) in seen:
                continue
            # Kept, so that no other object has its number meanwhile.
            seen[id(each.value)] = each.value
            view = self._view(each.value)
            if view is not None:
                if not each.is_private:
                    self._views.append((each, view))
                queue.extend(self._reached_by(each, view))

    def changed(self) -> list[str]:
        """The names of what has changed since, with the functions that read it."""
        found: dict[str, None] = {}
        for each, before in self._views:
            after = self._view(each.value)
            for part in before.changed(after) if after is not None else ():
                name = _joined(each.name, part)
                reader = _reader(each.value) or each.reader
                found[f"{name if ' ' in name else f'`{name}`'}{reader and f' of {reader}'}"] = None
        return list(found)

    def _reached_by(self, each: _StateObject, view: _View) -> Iterator[_StateObject]:
        module = _module_of(each.value)
        is_library = self._is_of_a_library(module)
        # Objects of the standard library hold what the program gives them, and its functions keep caches.
        is_cache = is_library and (type(each.value) is types.FunctionType or not _is_standard(_package_of(module)))
        # What is in them is followed for the functions and objects of the program.
        is_private = is_cache or (each.is_private and issubclass(type(each.value), dict | list | tuple))
        reader = each.reader if is_library else _reader(each.value) or each.reader
        parts = (part for part in view.parts if type(part[1]) not in _PLAIN)
        for name, value in islice(parts, _MOST_OBJECTS):
            yield _StateObject(value, _joined(each.name, name), reader, is_private)

    def _view(self, value: Any) -> _View | None:
        # The class that an object says to have may be computed by its methods.
        kind = type(value)
        if kind is types.FunctionType:
            return _View(tuple(self._of_function(value)))
        if issubclass(kind, type):
            attributes = () if self._is_of_a_library(value.__module__) else tuple(vars(value).items())
            names = ((f".{name}", each) for name, each in attributes if name not in _OF_PYTHON)
            return _View((*names, *(("", each) for each in (kind, *value.__bases__))))
        if issubclass(kind, types.ModuleType | jax.Array | jax.sharding.Mesh | Tracer):
            return None
        is_followed = callable(value) or issubclass(kind, threading.local)
        if _package_of(kind.__module__) in _NOT_FOLLOWED and not is_followed:
            return None
        return _View(tuple(_parts_of(value)), _content_of(value))

    def _of_function(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield name, _in_cell(cell)
        yield "a default", function.__defaults__
        yield "a default by keyword", function.__kwdefaults__
        yield function.__name__, function.__dict__
        if self._is_of_a_library(function.__module__):
            return
        names = tuple(dict.fromkeys(_names_in(function.__code__)))
        spaces, seen = [("", function.__globals__)], set()
        for prefix, space in spaces:
            for name in names:
                value = space.get(name, _MISSING)
                if type(value) is types.ModuleType:
                    if not self._is_of_a_library(value.__name__) and value.__name__ not in seen:
                        # `state.LOG`
                        seen.add(value.__name__)
                        spaces.append((f"{prefix}{name}.", vars(value)))
                elif value is not _MISSING:
                    yield f"{prefix}{name}", value

    def _is_of_a_library(self, module: str | None) -> bool:
        package = _package_of(module)
        return package not in self._homes and _is_library(package)


def _joined(name: str, part: str) -> str:
    return f"{name}{part}" if part[:1] in ("", ".", "[") else part


def _reader(value: Any) -> str:
    if type(value) is not types.FunctionType:
        return ""
    return f"{value.__name__} at {value.__code__.co_filename}:{value.__code__.co_firstlineno}"


def _module_of(value: Any) -> str | None:
    owner = value if issubclass(type(value), type | types.FunctionType) else type(value)
    return owner.__module__


def _package_of(module: Any) -> str:
    # Types of extension modules may have something else there.
    return module.partition(".")[0] if isinstance(module, str) else ""


def _is_standard(package: str) -> bool:
    return package in sys.stdlib_module_names and package != "__main__"


@functools.cache
def _is_library(package: str) -> bool:
    """Whether a package is Python's, our own or installed."""
    if _is_standard(package) or package == "mmruntime":
        return True
    module = sys.modules.get(package)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(place is not None and _compat.is_of_a_library(place) for place in places)


def _names_in(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes that a function and those in it read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _in_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What is in an object, with what leads to it from there; found without running methods of the program."""
    kind = type(value)
    if issubclass(kind, dict):
        # It has an order of its own.
        table = OrderedDict if issubclass(kind, OrderedDict) else dict
        yield from _items_of(table.values(value), table.keys(value))
        yield from (("[a key]", key) for key in table.keys(value) if type(key) not in _PLAIN)
    for container in (list, tuple, set, frozenset, deque):
        if issubclass(kind, container):
            yield from _items_of(container.__iter__(value))
    if kind is functools.partial:
        yield from _items_of((value.func, *value.args, *value.keywords.values()))
    elif kind is types.MethodType:
        yield from (("", value.__self__), ("", value.__func__))
    elif kind is types.BuiltinMethodType:
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
    if kind is bytearray:
        return bytes(value)
    if kind is np.ndarray and value.dtype != object and value.nbytes <= _MOST_BYTES:
        return zlib.crc32(value.tobytes())
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
    if kind.__module__ == "array":
        return bytes(value)
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
