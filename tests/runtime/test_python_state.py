"""Functions that change state of Python while microbatches trace them once more are refused, and no others."""

import collections
import contextlib
import contextvars
import copy
import ctypes
import dataclasses
import functools
import itertools
import logging
import operator
import os
import queue
import random
import sys
import threading
import types
import weakref
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import mmruntime as mm
from mmruntime._frontend.python_state import traced_again

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


@functools.lru_cache
def kept():
    return []


@functools.cache
def kept_for_ever():
    return []


kept()
kept_for_ever()


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
    "partial": (lambda: functools.partial(append, []), lambda it: it(), "`values`"),
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
    "environment": (list, lambda it: os.environ.update(A_NAME=os.environ.get("A_NAME", "") + "1"), "`os.environ`"),
    "iterator by its method": (lambda: itertools.count().__next__, lambda it: it(), "`it`"),
    "method by a name": (Meter, lambda it: getattr(it, "re" + "cord")(), "`it.values`"),
    "name in a text": (list, lambda it: globals()["SEEN"].append(1), "`SEEN`"),
    "object that a cache keeps": (list, lambda it: kept().append(1), "`kept`"),
    "object that a cache without end keeps": (list, lambda it: kept_for_ever().append(1), "`kept_for_ever`"),
    "masked array": (lambda: np.ma.zeros(3), lambda it: it.__iadd__(1), "`it`"),
    "memory": (lambda: memoryview(bytearray(2)), lambda it: it.__setitem__(0, it[0] + 1), "`it`"),
    "array of C": (lambda: (ctypes.c_int * 2)(), lambda it: it.__setitem__(0, it[0] + 1), "`it`"),
    "value by a weak key": (
        lambda: weakref.WeakKeyDictionary({Meter: 0}), lambda it: it.__setitem__(Meter, it[Meter] + 1), "`it`"
    ),
}  # fmt: skip

# What a loss may do.
UNCHANGED = {
    "nothing": (list, lambda it: None),
    "own list": (list, lambda it: append([])),
    "read": (lambda: [1], lambda it: sum(it)),
    "cache": (lambda: functools.cache(lambda n: [n]), lambda it: it(3)),
    "made once": (dict, lambda it: it.setdefault("table", np.tri(3))),
    "set to what it is": (lambda: {"n": 0}, lambda it: it.update(n=1)),
    "added to a set again": (set, lambda it: it.add(1)),
    "same value": (Meter, lambda it: setattr(it, "total", 5)),
    "logger": (lambda: logging.getLogger("a.logger"), lambda it: it.debug("a message")),
    "class of linen that another is derived from": (lambda: Layer, nn.remat),
    "lock": (threading.Lock, lambda it: it.acquire(blocking=False) and it.release()),
}


def refused(change, make, count=2, **options):
    it = make()

    def loss(w, x):
        change(it)
        return ((x @ w) ** 2).mean()

    options = {"reduce": "exact"} | options
    grad = mm.microbatch(jax.value_and_grad(loss), count=count, argnum=1, **options)
    try:
        jax.make_jaxpr(grad)(W, X)
    except ValueError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def environment(monkeypatch) -> None:
    monkeypatch.setenv("A_NAME", "")


@pytest.mark.parametrize("what", CHANGES)
def test_changes_are_refused(what) -> None:
    make, change, name = CHANGES[what]
    message = refused(change, make)
    assert message.startswith("microbatch: loss changes ")
    assert name in message
    assert f" at {__file__}:" in message


@pytest.mark.parametrize("what", UNCHANGED)
def test_what_is_the_same_afterwards_is_not_refused(what) -> None:
    make, change = UNCHANGED[what]
    assert refused(change, make) == ""


def test_one_microbatch_is_traced_once() -> None:
    assert refused(append, list, count=1) == ""


@pytest.mark.parametrize("options", [{"reduce": "mean", "check": False}, {"reduce": None}])
def test_results_that_are_not_proved(options) -> None:
    assert "changes `it`" in refused(append, list, **options)


# What a loss does that is given a batch of 4 examples, then of 2, what is named, and the line that does it if that is
# not the last of these.
FORMS = [
    ("nonlocal total\ntotal = total + 1", "total"),
    ("nonlocal total\ntotal += len(batch)", "total"),
    ("def add():\n    nonlocal total\n    total += 1\nadd()", "total", "total += 1"),
    ("nonlocal total\nfor total in batch:\n    pass", "total", "for total in batch:"),
    ("global SEEN\nSEEN = SEEN + [1]", "SEEN"),
    ("global np\nnp = len(batch)", "np"),
    ("seen.append(1)", "seen"),
    ("_ = seen.append(1)", "seen"),
    ("[seen.append(v) for v in range(3)]", "seen"),
    ("seen.append(1) if batch is not None else None", "seen"),
    ("batch is None or seen.append(1)", "seen"),
    ("record = seen.append\nrecord(1)", "seen"),
    ("remember(1)", "remember"),
    ("list(map(seen.append, [1, 2]))", "seen"),
    ("min([2, 1], key=lambda v: seen.append(v) or v)", "seen"),
    ("with contextlib.nullcontext(seen) as own:\n    own.append(1)", "seen"),
    ("match stats:\n    case {'parts': own}:\n        own.append(1)", "stats['parts']"),
    ("noted_helper(1)", "SEEN", "SEEN.append(f.__name__)"),
    ("counted_helper(1)", "calls", "calls += 1"),
    ("x = ROWS[0]", "ROWS.reads", "self.reads += 1"),
    ("note = lambda v: seen.append(v)\nnote(1)", "seen", "note = lambda v: seen.append(v)"),
    ("def make(store):\n    return store.append\nmake(seen)(1)", "seen"),
    ("meter.recorder()(1)", "meter.values"),
    ('getattr(seen, "append")(1)', "seen"),
    ("note_there(1)", "note_there"),
    ("state.LOG.append(1)", "state.LOG"),
    ("import state as mine\nmine.LOG.append(1)", "state.LOG"),
    ("from state import LOG\nLOG.append(1)", "state.LOG"),
    ("state.COUNT = len(batch)", "state.COUNT"),
    ("state.helper(1)", "LOG", "LOG.append(value)"),
    ("functools.partial(seen.append, 1)()", "seen"),
    ("(seen.append if batch is not None else print)(1)", "seen"),
    ("{'a': seen.append}['a'](1)", "seen"),
    ("get = lambda: seen\nget().append(1)", "seen"),
    ("a, b = seen, stats\na.append(1)", "seen"),
    ("a, *b = 1, seen\nb[0].append(1)", "seen"),
    ("for s in (seen, batch):\n    getattr(s, 'append', print)(1)", "seen"),
    ("for i, s in enumerate([seen]):\n    s.append(i)", "seen"),
    ("[s.append(1) for s in [seen]]", "seen"),
    ("d = {'a': seen}\nd.get('a').append(1)", "seen"),
    ("d = []\nd.append(seen)\nd[0].append(1)", "seen"),
    ("mine = dict(stats)\nmine['parts'].append(1)", "stats['parts']"),
    ("mine = copy.copy(stats)\nmine['parts'].append(1)", "stats['parts']"),
    ("mine = {**stats}\nmine['parts'].append(1)", "stats['parts']"),
    ("o = Meter()\no.values = seen\no.values.append(1)", "seen"),
    ("Sink(seen).write(1)", "seen", "self.store.append(value)"),
    ("with Sink(seen):\n    pass", "seen", "self.store.append(1)"),
    ("x = Sink(seen) ^ 2", "seen", "self.store.append(value)"),
    ("x = Sink(seen).size", "seen", "self.store.append(1)"),
    ("Open().write()", "Open.shared", "self.shared.append(1)"),
    ("write_into(seen)", "seen", "store.append(1)"),
    ("write_into(a=seen)", "seen", "store.append(1)"),
    ("o = types.SimpleNamespace(a=seen)\no.a.append(1)", "seen"),
    ("list.append(seen, 1)", "seen"),
    ("seen.extend([1])", "seen"),
    ("seen.insert(0, 1)", "seen"),
    ("last = full.pop()", "full"),
    ("full.sort(reverse=len(batch) < 4)", "full"),
    ("full.reverse()", "full"),
    ("own = seen\nown += [1]", "seen"),
    ("own = seen\nown *= 1\nown[:] = [len(batch)]", "seen"),
    ("meter.values.append(1)", "meter.values"),
    ('stats.setdefault("parts", []).append(1)', "stats['parts']"),
    ("for part in stats.values():\n    part and part.append(1) or part == [] and part.append(1)", "stats['parts']"),
    ("queue.appendleft(1)", "queue"),
    ("steps.add(len(batch))", "steps"),
    ("steps |= {len(batch)}", "steps"),
    ("stats.update(n=len(batch))", "stats"),
    ("stats.setdefault(len(batch), 1)", "stats"),
    ('stats["n"] = len(batch)', "stats"),
    ('stats["n"] += 1', "stats"),
    ('stats["n"], b = len(batch), 2', "stats"),
    ('del full[len(batch) - 2]', "full"),
    ('STATS["n"] += 1', "STATS"),
    ("BUFFER[0] += 1", "BUFFER"),
    ("np.add(BUFFER, 1, out=BUFFER)", "BUFFER"),
    ("np.add.at(BUFFER, 0, 1)", "BUFFER"),
    ("meter.total = len(batch)", "meter.total"),
    ("meter.total += 1", "meter.total"),
    ("Meter.total += 1", "Meter.total"),
    ("type(meter).total += 1", "meter.total"),
    ("write_into.calls = len(batch)", "write_into.calls"),
    ("METER.total = len(batch)", "METER.total"),
    ('setattr(meter, "total", len(batch))', "meter.total"),
    ('object.__setattr__(meter, "total", len(batch))', "meter.total"),
    ('vars(meter)["total"] = len(batch)', "meter.total"),
    ('globals()["TOTAL"] = len(batch)\nTOTAL', "TOTAL", 'globals()["TOTAL"] = len(batch)'),
    ('operator.setitem(stats, "n", len(batch))', "stats"),
    ("heapq.heappush(seen, 1)", "seen"),
    ("n = next(numbers)", "numbers"),
    ("n = next(zip(numbers, batch))", "numbers"),
    ("meter.record(1)", "meter.values", "self.values.append(value)"),
    ("meter(1)", "meter.total", "self.total += value"),
    ("count()", "count", "count += 1"),
    ("grow()", "values", "values.append(1)"),
    ("module_stats()['n'] = len(batch)", "STATS"),
    ("sys.path.append(len(batch))", "sys.path"),
    ('os.environ["A_NAME"] += "1"', "os.environ"),
    ('import os as mine\nmine.environ["A_NAME"] = str(len(batch))', "os.environ"),
    ("kept_by_size(len(batch))", "CACHE", "CACHE[n] = np.tri(n)"),
]  # fmt: skip

# What a loss does to what is its own, or does again without a change.
OWN = [
    "def outer():\n    inner = 0\n    def add():\n        nonlocal inner\n        inner += 1\n    add()\nouter()",
    "nonlocal total\nx = total",
    "def add():\n    nonlocal total\n    total += 1",
    "seen = []\nseen.append(1)",
    "a, b = [], seen\na.append(1)",
    "Sink([]).write(1)",
    "Sink().write(1)",
    "mine = [seen]\nmine.append(1)",
    "mine = stats.copy()\nmine['n'] = len(batch)",
    "mine = copy.deepcopy(stats)\nmine['parts'].append(1)",
    "mine = collections.defaultdict(list)\nmine['n'].append(1)",
    "mine = Meter()\nmine.total = 1\nmine.record(1)",
    "stats['n'] = 3",
    "meter.total = 5",
    "steps.add(1)",
    "full.sort()",
    "x = kept_by_size(3)",
    "x = cached(3)",
    "x = cached(len(batch))",
    "x = table()",
    "(seen.append if batch is None else print)(1)",
    "print(seen)",
    "x = {k: v for k, v in stats.items()}",
    "os.environ['A_NAME'] = 'same'",
]

PROGRAM = """\
import collections, contextlib, copy, functools, heapq, operator, os, sys, types
import numpy as np
import state
from state import note_there
SEEN, STATS, BUFFER, CACHE, TABLE, TOTAL = [], {"n": 0}, np.zeros(3), {}, None, 0
class Meter:
    total = 0
    def __init__(self):
        self.values = []
    def record(self, value):
        self.values.append(value)
    def recorder(self):
        return self.values.append
    def __call__(self, value):
        self.total += value
class Sink:
    def __init__(self, store=None):
        self.store = [] if store is None else store
    def write(self, value):
        self.store.append(value)
    __xor__ = write
    def __enter__(self):
        self.store.append(1)
    def __exit__(self, *args):
        pass
    @property
    def size(self):
        self.store.append(1)
        return 1
class Open:
    shared = SEEN
    def write(self):
        self.shared.append(1)
class Rows:
    reads = 0
    def __getitem__(self, index):
        self.reads += 1
METER, ROWS = Meter(), Rows()
def write_into(*stores, **named):
    for store in (*stores, *named.values()):
        store.append(1)
def make_counter():
    count = 0
    def add():
        nonlocal count
        count += 1
    return add
def grow(values=[]):
    values.append(1)
def module_stats():
    return STATS
def noted(f):
    @functools.wraps(f)
    def wrapped(*args):
        SEEN.append(f.__name__)
    return wrapped
def counted(calls):
    def around(f):
        def wrapped(*args):
            nonlocal calls
            calls += 1
        return wrapped
    return around
@noted
def noted_helper(value):
    pass
@counted(0)
def counted_helper(value):
    pass
def kept_by_size(n):
    if n not in CACHE:
        CACHE[n] = np.tri(n)
    return CACHE[n]
@functools.lru_cache
def cached(n):
    return np.tri(n)
def table():
    global TABLE
    if TABLE is None:
        TABLE = np.tri(4)
    return TABLE
def step(run):
    seen, full, stats, meter, queue, steps = [], [*range(9)], {"n": 0, "parts": []}, Meter(), collections.deque(), set()
    total, numbers, count, remember = 0, iter(range(99)), make_counter(), seen.append
    meter.total = 0
    def loss(batch):
        nonlocal steps
"""
STATE = "LOG, COUNT = [], 0\ndef helper(value):\n    LOG.append(value)\nnote_there = LOG.append\n"


def told(body, monkeypatch):
    """The message about a loss with this body, and the line that it names."""
    text = PROGRAM + "".join(f"        {line}\n" for line in body.split("\n")) + "    run(loss)\n"
    texts = {"state.py": STATE, "program.py": text}
    state, program = types.ModuleType("state"), types.ModuleType("program")
    monkeypatch.setitem(sys.modules, "state", state)
    exec(compile(STATE, "state.py", "exec"), vars(state))
    exec(compile(text, "program.py", "exec"), vars(program))

    def run(loss):
        loss(range(4))
        traced_again("microbatch", loss, {}, lambda: loss(range(2)), [lambda: loss(range(4)), lambda: loss(range(8))])

    try:
        program.step(run)
    except ValueError as error:
        message = str(error)
        file, _, line = message.partition(" at ")[2].partition(",")[0].partition(":")
        return message, texts[file].splitlines()[int(line) - 1].strip()
    return "", ""


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[0])
def test_forms_that_change_something(form, monkeypatch) -> None:
    body, name, *expected = form
    monkeypatch.setattr("sys.path", [*sys.path])
    message, line = told(body, monkeypatch)
    assert message.startswith(f"microbatch: loss changes `{name}` at ")
    assert line == (expected or [body.split("\n")[-1].strip()])[0]


@pytest.mark.parametrize("body", OWN)
def test_forms_that_change_nothing(body, monkeypatch) -> None:
    assert told(body, monkeypatch)[0] == ""


# Methods that Python runs where no call is written.
METHODS = {
    **{f"__{name}__": getattr(operator, name) for name in ("neg", "pos", "invert", "abs", "index")},
    **{
        f"__{name.strip('_')}__": functools.partial(lambda use, it: use(it, 1), getattr(operator, name))
        for name in (
            *("add", "and_", "floordiv", "lshift", "matmul", "mod", "mul", "or_", "pow", "rshift", "sub", "xor", "eq"),
            *("truediv", "ne", "lt", "le", "gt", "ge", "contains", "getitem", "iadd", "imatmul", "delitem"),
        )
    },
    **{
        f"__r{name}__": functools.partial(lambda use, it: use(1, it), getattr(operator, name))
        for name in ("add", "matmul", "mul", "sub")
    },
    "__hash__": hash, "__bool__": bool, "__len__": len, "__iter__": list, "__next__": next, "__str__": str,
    "__repr__": repr, "__format__": format, "__call__": lambda it: it(1), "__enter__": lambda it: it.__enter__(),
    "__getattr__": lambda it: it.other, "__setattr__": lambda it: setattr(it, "other", 1), "__copy__": copy.copy,
    "__deepcopy__": copy.deepcopy, "__array__": np.asarray, "__fspath__": os.fspath, "__reversed__": reversed,
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_methods_that_no_call_names(method) -> None:
    seen: list[int] = []
    result = {"__iter__": zip(), "__str__": "", "__repr__": "", "__format__": "", "__fspath__": "", "__bool__": True,
              "__array__": np.zeros(1), "__hash__": 1, "__len__": 1, "__index__": 1}.get(method)  # fmt: skip
    it = type("It", (), {method: lambda self, *_, **__: seen.append(1) or result})()
    use = METHODS[method]

    def loss():
        use(it)

    with pytest.raises(ValueError, match="`seen` at"):
        traced_again("microbatch", loss, {}, loss)


def test_the_whole_message() -> None:
    def helper():
        SEEN.append(1)

    message = refused(lambda it: helper(), list)
    assert message.partition("\n")[0] == (
        f"microbatch: loss changes `SEEN` at {__file__}:{helper.__code__.co_firstlineno + 1}, and is traced more than "
        "once, for the whole batch and for a part of it, so that what is there afterwards is not what one device "
        "leaves. Return what is kept there from loss instead, with has_aux=True."
    )


def test_its_advice_may_be_followed() -> None:
    def loss(w, x, scale):
        return ((x @ w) ** 2).mean() * scale, len(x)

    grad = jax.value_and_grad(loss, has_aux=True)
    expected = grad(W, X, 0.5)
    scale = random.Random(0).random()
    (_, size), _ = mm.microbatch(grad, count=2, argnum=1, reduce="exact")(W, X, scale)
    assert size == expected[0][1] == 4


def test_a_loss_that_fails_as_it_reads_what_the_trace_before_has_left() -> None:
    rows = []

    def loss(w, x):
        rows.append(x @ w)
        return (jnp.concatenate(rows) ** 2).mean()

    with pytest.raises(ValueError, match=rf"loss changes `rows` at {__file__}:{loss.__code__.co_firstlineno + 1}, and"):
        jax.make_jaxpr(mm.microbatch(jax.grad(loss), count=2, argnum=1, reduce="exact"))(W, X)


def test_what_changes_no_more_has_the_function_that_has_it() -> None:
    rest = [1, 2]

    def loss(w, x):
        return ((x @ w) ** 2).mean() * rest.pop()

    with pytest.raises(ValueError, match=rf"changes `rest` of loss at {__file__}:{loss.__code__.co_firstlineno}, and"):
        jax.make_jaxpr(mm.microbatch(jax.grad(loss), count=2, argnum=1, reduce="exact"))(W, X)


@pytest.mark.parametrize("by_name", [False, True])
def test_an_argument(by_name) -> None:
    def loss(w, x, log):
        log["seen"].append(1)
        return ((x @ w) ** 2).mean()

    grad = mm.microbatch(jax.grad(loss), count=2, argnum=1, reduce="exact")
    log: dict[str, list[int]] = {"seen": []}
    with pytest.raises(ValueError, match=r"loss changes its argument `log\['seen'\]` at .*:\d+, and is traced"):
        jax.make_jaxpr(lambda w, x: grad(w, x, log=log) if by_name else grad(w, x, log))(W, X)


def test_the_object_of_a_method() -> None:
    class Trainer:
        calls = 0

        def loss(self, w, x):
            self.calls += 1
            return ((x @ w) ** 2).mean()

    for grad in (jax.grad(Trainer().loss), jax.grad(functools.partial(Trainer.loss, Trainer()))):
        with pytest.raises(ValueError, match=r"loss changes `self.calls` at "):
            jax.make_jaxpr(mm.microbatch(grad, count=2, argnum=1, reduce="exact"))(W, X)


def test_a_loss_that_only_a_library_holds() -> None:
    total = 0

    def loss(model, x):
        nonlocal total
        total += 1
        return (model(x) ** 2).mean()

    with pytest.raises(ValueError, match="loss changes `total` at "):
        mm.microbatch(nnx.grad(loss), count=2, argnum=1, reduce="exact")(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), X)


def test_counts_of_objects_are_traced_once_more_even_for_one_microbatch() -> None:
    class Drop(nnx.Module):
        def __init__(self):
            self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

        def __call__(self, x):
            SEEN.append(1)
            return self.drop(x)

    grad = mm.microbatch(nnx.grad(lambda m, x: (m(x) ** 2).mean()), count=1, argnum=1, rng=0, reduce="exact")
    with pytest.raises(ValueError, match="changes `SEEN` at "):
        grad(Drop(), X)


def test_queues_count_if_this_thread_changes_them() -> None:
    """Threads that fetch batches change theirs at any time."""
    own, others, weak = queue.Queue(), queue.Queue(), weakref.WeakSet()
    keys = []

    def fetched(size):
        thread = threading.Thread(target=others.put, args=(1,))
        thread.start()
        thread.join()
        return others.qsize()

    def loss(size):
        own.put_nowait(fetched(size))

    def weakly(size):
        weak.add(Meter(size))

    def kept(size):
        weak.add(keys[-1])

    traced_again("microbatch", fetched, {}, lambda: fetched(2))
    with pytest.raises(ValueError, match=rf"^microbatch: loss changes `own` at {__file__}:\d+, and"):
        traced_again("microbatch", loss, {}, lambda: loss(2))
    traced_again("microbatch", weakly, {}, lambda: weakly(2))
    keys.append(Meter())
    with pytest.raises(ValueError, match=rf"^microbatch: kept changes `weak` at {__file__}:\d+, and"):
        traced_again("microbatch", kept, {}, lambda: kept(2))


def test_functions_that_jax_keeps_are_not_run_again() -> None:
    @jax.jit
    def inner(w):
        SEEN.append(1)
        return 2 * w

    assert refused(lambda it: inner(W), list) == ""


def test_the_tracer_of_a_debugger_is_there_afterwards() -> None:
    def tracer(frame, event, arg):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        assert "changes `it` at" in refused(append, list)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def test_state_of_a_library_is_its_own(monkeypatch) -> None:
    library = types.ModuleType("a_library")
    library.__file__ = "/usr/lib/site-packages/a_library.py"
    monkeypatch.setitem(sys.modules, "a_library", library)
    exec("calls = []\ndef scaled(x):\n    calls.append(1)\n    return x", vars(library))

    assert refused(lambda it: library.scaled(1), list) == ""
    assert len(library.calls) == 2
    assert "`library.calls`" in refused(lambda it: library.calls.append(1), list)


WRAPPER = """
import functools
def wrapped(fun, axes=()):
    @functools.wraps(fun)
    def wrapper(*args):
        nonlocal axes
        axes = (*axes, "data")
        return fun(*args)
    return wrapper
"""


@pytest.mark.parametrize("is_of_library", [True, False])
def test_variables_of_a_wrapper_are_those_of_who_wrote_it(is_of_library, monkeypatch) -> None:
    """`jax.shard_map` of JAX 0.12 fills in its axes, and looks like a function of the user by its name and module."""
    home = types.ModuleType("a_library" if is_of_library else __name__)
    if is_of_library:
        home.__file__ = "/usr/lib/site-packages/a_library.py"
        monkeypatch.setitem(sys.modules, "a_library", home)
    exec(WRAPPER, vars(home))
    meter = Meter()
    scaled, counted = home.wrapped(lambda x: x), home.wrapped(lambda x: meter.values.append(x))

    assert ("`axes`" in refused(lambda it: scaled(1), list)) is not is_of_library
    # What a wrapper calls is followed.
    assert "`meter.values`" in refused(lambda it: counted(1), list)


def test_objects_whose_methods_fail_are_only_looked_at() -> None:
    class Closed:
        def __getattribute__(self, name):
            raise RuntimeError(name)

        def __eq__(self, other):
            raise RuntimeError

        __hash__ = None

    closed = Closed()
    assert refused(lambda it: closed, list) == ""


def test_a_large_program_is_looked_at_in_part() -> None:
    rows = [[i] for i in range(30_000)]
    assert "`rows`" in refused(lambda it: rows.append([1]), list)


class TestScan:
    def step(self, change, loop=jax.lax.scan):
        def body(total, x):
            return total + jax.grad(lambda w: ((x @ w) ** 2).mean() * change())(jnp.asarray(W)), None

        return lambda wrap: jax.jit(lambda: wrap(loop)(body, jnp.zeros_like(W), X.reshape(2, 2, 3))[0])()

    def test_what_the_body_changes_is_refused(self) -> None:
        seen: list[int] = []
        step = self.step(lambda: seen.append(1) or 1.0)
        with pytest.raises(ValueError, match=r"^microbatch_scan: body changes `seen` at .* or return it\."):
            step(lambda scan: mm.microbatch_scan(scan, count=2))

    def test_the_body_of_a_loop_that_is_traced_once_may(self) -> None:
        seen: list[int] = []

        def body(index, total):
            seen.append(1)
            return total + jax.lax.dynamic_slice_in_dim(jnp.asarray(X), 2 * index, 2).sum()

        jax.jit(lambda: mm.microbatch_scan(jax.lax.fori_loop, count=2)(0, 2, body, jnp.zeros(())))()
        assert seen == [1]


def test_a_loop_of_python_is_traced_as_often_as_on_one_device() -> None:
    seen: list[int] = []

    def body(item, total):
        seen.append(item)
        return total + jax.grad(lambda w: ((X[2 * item : 2 * item + 2] @ w) ** 2).mean())(jnp.asarray(W))

    jax.jit(lambda: mm.microbatch_loop(body, count=2)(range(2), jnp.zeros_like(W)))()
    assert seen == [0, 1]
