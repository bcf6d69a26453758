"""What is said of a function that changes state of Python while microbatches trace it once more; and what is not."""

import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import itertools
import logging
import random
import threading
import types
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import mmruntime as mm

X, W = np.ones((4, 3), np.float32), np.ones(3, np.float32)
SEEN: list[int] = []
COUNTS = types.SimpleNamespace(steps=0)
NEW = itertools.count()


class Meter:
    rows: ClassVar[list[int]] = []

    def __init__(self, values=None):
        self.values = [] if values is None else values
        self.total = 0

    def __enter__(self):
        self.values.append(1)

    def __exit__(self, *_):
        pass

    def __mul__(self, other):
        self.values.append(1)
        return other

    @property
    def mean(self):
        self.values.append(1)
        return 1.0

    def record(self):
        self.values.append(1)

    def add_row(self):
        self.rows.append(1)

    @classmethod
    def of(cls, values):
        return cls(values)


class Extended(Meter):
    pass


class Layer(nn.Module):
    def __call__(self, x):
        return x


class Counting:
    """A descriptor."""

    def __get__(self, instance, owner):
        SEEN.append(1)
        return 1


class Counted:
    value = Counting()


@dataclasses.dataclass
class Holder:
    store: list

    def add(self):
        self.store.append(1)


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


def numbers():
    yield from range(100)


def append(values):
    values.append(1)


@functools.singledispatch
def dispatched(value):
    pass


@dispatched.register
def _(value: int):
    SEEN.append(1)


@contextlib.contextmanager
def around(values):
    yield
    values.append(1)


def last_first(table):
    table.move_to_end(next(iter(table)))


def count_step():
    COUNTS.steps += 1


def rebind():
    global NEW
    NEW = itertools.count()


# What a loss has around it, and what it does with that, with what is named.
CHANGES = {
    "list": (list, append, "`it`"),
    "dictionary": (dict, lambda it: it.update({len(it): 1}), "`it`"),
    "item of a dictionary": (lambda: {"n": 0}, lambda it: it.update(n=it["n"] + 1), "`it`"),
    "list in a dictionary": (lambda: {"a": []}, lambda it: it["a"].append(1), "`it['a']`"),
    "order of a dictionary": (lambda: collections.OrderedDict.fromkeys("ab"), last_first, "`it`"),
    "missing item": (lambda: collections.defaultdict(NEW.__next__), lambda it: it[next(NEW)], "`it`"),
    "set": (set, lambda it: it.add(len(it)), "`it`"),
    "deque": (lambda: collections.deque(range(3)), lambda it: it.rotate(), "`it`"),
    "bytes": (bytearray, lambda it: it.append(1), "`it`"),
    "array": (lambda: np.zeros(2), lambda it: it.reshape(1, 2).__iadd__(1), "`it`"),
    "attribute": (Meter, lambda it: setattr(it, "total", it.total + 1), "`it.total`"),
    "attribute in a slot": (Slotted, lambda it: setattr(it, "count", it.count + 1), "`it.count`"),
    "attribute of a thread": (threading.local, lambda it: it.__dict__.update(n=len(SEEN)) or append(SEEN), "`it.n`"),
    "method": (Meter, lambda it: it.record(), "`it.values`"),
    "method of a base": (Extended, lambda it: it.record(), "`it.values`"),
    "bound method": (lambda: Meter().record, lambda it: it(), "`it.values`"),
    "bound method of a list": (lambda: [].append, lambda it: it(1), "`it`"),
    "partial": (lambda: functools.partial(append, []), lambda it: it(), "`it[1]`"),
    "iterator": (lambda: iter([1] * 9), next, "`it`"),
    "iterator of an iterator": (lambda: zip(itertools.count(), itertools.count(), strict=False), next, "`it"),
    "generator": (numbers, next, "`it`"),
    "random": (lambda: random.Random(0), lambda it: it.random(), "`it`"),
    "random of the module": (lambda: None, lambda it: random.random(), "the state of `random`"),
    "random of NumPy": (lambda: np.random.default_rng(0), lambda it: it.normal(), "`it`"),
    "random of NumPy's module": (lambda: None, lambda it: np.random.rand(), "the state of `numpy.random`"),
    "variable of a context": (
        lambda: contextvars.ContextVar("it", default=0), lambda it: it.set(it.get() + 1), "`it`"
    ),
    "list of the module": (list, lambda it: SEEN.append(1), "`SEEN`"),
    "list of a class": (Meter, lambda it: it.add_row(), "`it.rows`"),
    "attribute of an object of the module": (list, lambda it: count_step(), "`COUNTS.steps`"),
    "name of the module": (list, lambda it: rebind(), "`NEW`"),
    "new object that holds it": (list, lambda it: Holder(it).add(), "`it`"),
    "copied object that holds it": (lambda: Holder([]), lambda it: copy.copy(it).add(), "`it.store`"),
    "new object of a class method": (list, lambda it: Meter.of(it).record(), "`it`"),
    "new object that multiplies": (list, lambda it: Meter(it) * 1, "`it`"),
    "new object with a property": (list, lambda it: Meter(it).mean, "`it`"),
    "descriptor": (Counted, lambda it: it.value, "`SEEN`"),
    "dispatch": (list, lambda it: dispatched(1), "`SEEN`"),
    "method by a name": (Meter, lambda it: getattr(it, "re" + "cord")(), "`it.values`"),
}  # fmt: skip

# What a loss may do.
UNCHANGED = {
    "nothing": (list, lambda it: None),
    "own list": (list, lambda it: append([])),
    "read": (lambda: [1], lambda it: sum(it)),
    "cache": (lambda: functools.cache(lambda n: [n]), lambda it: it(3)),
    "made once": (dict, lambda it: it.setdefault("table", np.tri(3))),
    "same value": (Meter, lambda it: setattr(it, "total", 5)),
    "logger": (lambda: logging.getLogger("a.logger"), lambda it: it.debug("a message")),
    "class of linen that another is derived from": (lambda: Layer, nn.remat),
    "lock": (threading.Lock, lambda it: it.acquire(blocking=False) and it.release()),
}


def told(change, make, caplog, count=2):
    it = make()

    def loss(w, x):
        change(it)
        return ((x @ w) ** 2).mean()

    with caplog.at_level(logging.WARNING, "mmruntime"):
        jax.make_jaxpr(mm.microbatch(jax.value_and_grad(loss), count=count, argnum=1, reduce="exact"))(W, X)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("what", CHANGES)
def test_changes_are_said(what, caplog) -> None:
    make, change, name = CHANGES[what]
    (message,) = told(change, make, caplog)
    assert message.startswith("microbatch: loss changes ")
    assert name in message


@pytest.mark.parametrize("what", UNCHANGED)
def test_what_is_the_same_afterwards_is_not_said(what, caplog) -> None:
    make, change = UNCHANGED[what]
    assert told(change, make, caplog) == []


def test_one_microbatch_is_traced_once(caplog) -> None:
    assert told(append, list, caplog, count=1) == []


def test_the_message_has_the_function_that_reads_it(caplog) -> None:
    def helper():
        SEEN.append(1)

    (message,) = told(lambda it: helper(), list, caplog)
    line = f"{__file__}:{helper.__code__.co_firstlineno}"
    assert message == (
        f"microbatch: loss changes `SEEN` of helper at {line} while it is traced, and is traced once more than "
        "on one device, for another number of examples. What is there afterwards is not what one device leaves: return "
        "it from the function instead, with has_aux=True."
    )


def test_an_argument(caplog) -> None:
    def loss(w, x, log):
        log.append(1)
        return ((x @ w) ** 2).mean()

    grad = mm.microbatch(jax.grad(loss), count=2, argnum=1, reduce="exact")
    log: list[int] = []
    jax.make_jaxpr(lambda w, x: grad(w, x, log))(W, X)
    assert len(log) == 2
    (record,) = caplog.records
    assert "loss changes an argument" in record.getMessage()


def test_state_of_a_library_is_its_own(caplog, monkeypatch) -> None:
    library = types.ModuleType("a_library")
    library.__file__ = "/usr/lib/site-packages/a_library.py"
    monkeypatch.setitem(__import__("sys").modules, "a_library", library)
    exec("calls = []\ndef scaled(x):\n    calls.append(1)\n    return x", vars(library))

    assert told(lambda it: library.scaled(1), list, caplog) == []
    assert len(library.calls) == 2


def test_objects_whose_methods_fail_are_only_looked_at(caplog) -> None:
    class Closed:
        def __getattribute__(self, name):
            raise RuntimeError(name)

        def __eq__(self, other):
            raise RuntimeError

        __hash__ = None

    closed = Closed()
    assert told(lambda it: closed, list, caplog) == []


def test_a_large_program_is_looked_at_in_part(caplog) -> None:
    rows = [[i] for i in range(30_000)]
    (message,) = told(lambda it: rows.append([1]), list, caplog)
    assert "`rows`" in message


class TestScan:
    def step(self, change):
        def body(total, x):
            return total + jax.grad(lambda w: ((x @ w) ** 2).mean() * change())(jnp.asarray(W)), None

        return lambda wrap: jax.jit(lambda: wrap(jax.lax.scan)(body, jnp.zeros_like(W), X.reshape(2, 2, 3))[0])()

    def test_the_body_takes_the_first_number_of_a_generator(self) -> None:
        def result(wrap):
            return self.step(random.Random(0).random)(wrap)

        expected = result(lambda scan: scan)
        assert np.array_equal(result(lambda scan: mm.microbatch_scan(scan, count=2)), expected)

    def test_what_it_changes_is_said(self, caplog) -> None:
        seen: list[int] = []
        self.step(lambda: seen.append(1) or 1.0)(lambda scan: mm.microbatch_scan(scan, count=2))
        (record,) = caplog.records
        assert record.getMessage().startswith("microbatch_scan: body changes `seen`")
