"""What a loss changes outside of itself, at which line; and what is its own."""

from __future__ import annotations

import textwrap

import pytest
from hinted_sites import loop_in, site_of

from mmrewrite.analysis.outside_writes import writes_in_calls, writes_outside
from mmrewrite.analysis.steps.gradients import find_gradient

HEAD = """\
import collections, contextlib, copy, functools, heapq, itertools, operator, types, typing
import jax, optax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx
import state
from state import LOG, helper, log_value, note_there
SEEN, STATS, BUFFER, STEPS, CACHE = [], {"n": 0, "parts": []}, np.zeros(3), set(), {}
TABLE = None
class Meter:
    total = 0
    def __init__(self):
        self.values = []
        self.total = 0.0
    def record(self, value):
        self.values.append(value)
    def recorder(self):
        return self.values.append
    def mean(self):
        values = list(self.values)
        values.append(0.0)
        return sum(values)
    def __call__(self, value):
        self.total += value
class Log(list):
    pass
class Holder:
    def __init__(self, store):
        self.store = store
class Sink:
    def __init__(self, store=None, **others):
        self.set(store if store is not None else [])
        self.others = others
        self.parts = []
    def set(self, store):
        self.store = store
    def keep(self, part):
        self.parts.append(part)
    def get(self):
        return self.store
    def write(self, value):
        self.store.append(value)
    def write_all(self):
        for part in self.parts:
            part.append(1)
        self.others["log"].append(1)
    def __call__(self, value):
        self.store.append(value)
        return value
    def __enter__(self):
        self.store.append(1)
    def __exit__(self, *args):
        pass
    def __xor__(self, value):
        self.store.append(value)
        return value
    @property
    def size(self):
        self.store.append(1)
        return 1
class LongSink(Sink):
    def __init__(self, store, length):
        super().__init__(store)
        self.inner = Sink(store)
        self.length = length
    def write(self, value):
        super().write(value)
    def write_inside(self):
        self.inner.write(1)
class Open:
    shared = SEEN
    def write(self):
        self.shared.append(1)
def make_sink(store):
    return Sink(store)
def write_to(sink):
    sink.write(1)
def write_into(*stores, **named):
    for store in stores:
        store.append(1)
    for store in named.values():
        store.append(1)
def own_key(value):
    return value
def grow_own(*stores, **named):
    own = list(stores)
    own.append(1)
    named["b"] = named.pop("a", None)
class Pair(typing.NamedTuple):
    first: list
    second: int
class Shared:
    rows = []
    own = []
    def __init__(self):
        self.own = []
    def add(self, value):
        self.rows.append(value)
    def add_later(self, value):
        def add():
            self.rows.append(value)
        add()
    def lend(self, other):
        other.rows = self.own
class Apart(Shared):
    def __init__(self):
        self.rows = []
class Sharing(Shared):
    pass
class Block(nn.Module):
    def setup(self):
        self.dense = nn.Dense(4)
        self.names = []
    def __call__(self, x):
        self.names.append("x")
        self.last = x
        return self.dense(x)
class Counting(nn.Module):
    def __call__(self, x):
        STATS["n"] += 1
        return x
class Cell(nnx.Module):
    def __init__(self, rngs):
        self.count = nnx.Variable(0)
    def __call__(self, x):
        self.count.value += 1
        self.last = x
        return x
METER = Meter()
def make_counter():
    count = 0
    def add():
        nonlocal count
        count += 1
        return count
    return add
def add_to(store, value):
    store.append(value)
def grow(values=[]):
    values.append(1)
    return values
def module_stats():
    return STATS
def own():
    return {}
def noted(f):
    @functools.wraps(f)
    def wrapped(*args):
        SEEN.append(f.__name__)
        return f(*args)
    return wrapped
def counted(start):
    calls = start
    def around(f):
        def wrapped(*args):
            nonlocal calls
            calls += 1
            return f(*args)
        return wrapped
    return around
def kept(f):
    results = {}
    def wrapped(n):
        if n not in results:
            results[n] = f(n)
        return results[n]
    return wrapped
def registered(f):
    SEEN.append(f)
    return f
@noted
def noted_helper(value):
    return value
@counted(0)
def counted_helper(value):
    return value
@kept
@registered
def kept_helper(n):
    return np.tri(n)
class Rows:
    def __init__(self):
        self.reads = 0
    def __getitem__(self, index):
        self.reads += 1
        return index
    @noted
    def named(self):
        return 1
ROWS = Rows()
def cos(n):
    if n not in CACHE:
        CACHE[n] = np.cos(np.arange(n))
    return CACHE[n]
def cos_of(n, x):
    if n not in CACHE:
        CACHE[n] = np.cos(x)
    return CACHE[n]
def table():
    global TABLE
    if TABLE is None:
        TABLE = np.tri(4)
    return TABLE
model, counting = Block(), Counting()
"""
STATE = """\
LOG = []
COUNT = 0
def helper(value):
    LOG.append(value)
def log_value(value):
    global COUNT
    COUNT += 1
note_there = LOG.append
"""

# The body of a loss in a step with a list, an object and others around it, and the name that it changes.
CHANGED = {
    "nonlocal": ("nonlocal total\ntotal = total + 1", "total"),
    "nonlocal, added to": ("nonlocal total\ntotal += 1", "total"),
    "nonlocal of a function in it": ("def add():\n    nonlocal total\n    total += 1\nadd()", "total"),
    "nonlocal, bound by a loop": ("nonlocal total\nfor total in range(3):\n    pass", "total"),
    "nonlocal, deleted": ("nonlocal total\ndel total", "total"),
    "global": ("global SEEN\nSEEN = SEEN + [1]", "SEEN"),
    "global, imported": ("global np\nimport numpy as np", "np"),
    "append": ("seen.append(1)", "seen"),
    "append whose result is kept": ("_ = seen.append(1)", "seen"),
    "append in a comprehension": ("[seen.append(v) for v in range(3)]", "seen"),
    "append in a condition": ("seen.append(1) if params is not None else None", "seen"),
    "append behind `or`": ("params is None or seen.append(1)", "seen"),
    "append by a name": ("record = seen.append\nrecord(1)", "seen"),
    "append by a name outside": ("remember(1)", "seen"),
    "append that is handed on": ("list(map(seen.append, [1, 2]))", "seen"),
    "append that is handed on by keyword": ("sorted([2, 1], key=seen.append)", "seen"),
    "append to what `with` gives": ("with contextlib.nullcontext(seen) as own:\n    own.append(1)", "seen"),
    "append to what `case` takes out": ("match stats:\n    case {'n': own}:\n        own.append(1)", "stats"),
    "decorator of a helper": ("noted_helper(1)", "SEEN"),
    "decorator with arguments": ("counted_helper(1)", "calls"),
    "decorator of a method": ("ROWS.named()", "SEEN"),
    "item of an object": ("x = ROWS[0]", "ROWS.reads"),
    "append in a lambda": ("note = lambda v: seen.append(v)\nnote(1)", "seen"),
    "append that a helper gives": ("def make(store):\n    return store.append\nmake(seen)(1)", "seen"),
    "append that a method gives": ("meter.recorder()(1)", "meter.values"),
    "append of `getattr`": ('getattr(seen, "append")(1)', "seen"),
    "append by a name of another module": ("note_there(1)", "LOG"),
    "append by a name of another module, by that": ("state.note_there(1)", "LOG"),
    "append under a partial": ("functools.partial(seen.append, 1)()", "seen"),
    "append under a partial by a name": ("note = functools.partial(seen.append)\nnote(1)", "seen"),
    "append of a choice": ("(seen.append if params is None else print)(1)", "seen"),
    "append of a table": ("{'a': seen.append}['a'](1)", "seen"),
    "append by a name that is handed on": ("list(map(remember, [1, 2]))", "seen"),
    "append of a helper that is handed on": (
        "def make(store):\n    return store.append\nlist(map(make(seen), [1, 2]))",
        "seen",
    ),
    "append to what a lambda gives": ("get = lambda: seen\nget().append(1)", "seen"),
    "add that is handed on": ("list(map(steps.add, [1, 2]))", "steps"),
    "list that is unpacked": ("a, b = seen, stats\na.append(1)", "seen"),
    "list that a helper returns with others": ("def both():\n    return {}, seen\n_, a = both()\na.append(1)", "seen"),
    "list behind a star": ("a, *b = 1, seen\nb[0].append(1)", "seen"),
    "list in a loop": ("for s in (seen, queue):\n    s.append(1)", "seen"),
    "list in a loop with its number": ("for i, s in enumerate([seen]):\n    s.append(1)", "seen"),
    "list of a loop over two": ("for v, s in zip([1], [seen]):\n    s.append(v)", "seen"),
    "list in a comprehension": ("[s.append(1) for s in [seen]]", "seen"),
    "list in a table": ("{'a': seen}['a'].append(1)", "seen"),
    "list in a table with a name": ("d = {'a': seen}\nd.get('a').append(1)", "seen"),
    "list in a table of calls": ("d = dict(a=seen)\nfor v in d.values():\n    v.append(1)", "seen"),
    "list that was put into a table": ("d = {}\nd['a'] = seen\nd['a'].append(1)", "seen"),
    "list that was put into a list": ("d = []\nd.append(seen)\nd[0].append(1)", "seen"),
    "list of a shallow copy": ("mine = dict(stats)\nmine['parts'].append(1)", "stats"),
    "list of a shallow copy by a method": ("mine = stats.copy()\nmine['parts'].append(1)", "stats"),
    "list of a shallow copy by `copy`": ("mine = copy.copy(stats)\nmine['parts'].append(1)", "stats"),
    "list of a merged dictionary": ("mine = {**stats}\nmine['parts'].append(1)", "stats"),
    "list of a longer list": ("mine = [seen] + [1]\nmine[0].append(1)", "seen"),
    "list that a new object holds": ("o = Holder(seen)\no.store.append(1)", "seen"),
    "list that a new object was given": ("o = Meter()\no.values = seen\no.values.append(1)", "seen"),
    "list that a new object holds, by its method": ("Sink(seen).write(1)", "seen"),
    "list that a new object with a name holds, by its method": ("o = Sink(seen)\no.write(1)", "seen"),
    "list that a new object holds, by a method of its base": ("LongSink(seen, 1).write(1)", "seen"),
    "list that a new object holds in another": ("LongSink(seen, 1).write_inside()", "seen"),
    "list that a new object holds, by its call": ("Sink(seen)(1)", "seen"),
    "list that a new object holds, by the call of a name": ("o = Sink(seen)\no(1)", "seen"),
    "list that a new object holds, by `with`": ("with Sink(seen):\n    pass", "seen"),
    "list that a new object holds, by an operator": ("x = Sink(seen) ^ 2", "seen"),
    "list that a new object holds, by a property": ("x = Sink(seen).size", "seen"),
    "list that a new object holds, by a name for its method": ("note = Sink(seen).write\nnote(1)", "seen"),
    "list that a new object holds, by a helper": ("write_to(Sink(seen))", "seen"),
    "list that a new object of a helper holds": ("make_sink(seen).write(1)", "seen"),
    "list that a new object gives": ("Sink(seen).get().append(1)", "seen"),
    "list that a new object in a table holds": ("d = {'a': Sink(seen)}\nd['a'].write(1)", "seen"),
    "list that a new object of a choice holds": ("o = Sink(seen) if params is not None else None\no.write(1)", "seen"),
    "list that is set": ("o = Sink()\no.set(seen)\no.write(1)", "seen"),
    "list that is stored": ("o = Sink()\no.store = seen\no.write(1)", "seen"),
    "list that is kept among others": ("o = Sink(log=[])\no.keep(seen)\no.write_all()", "seen"),
    "list by keyword of any name": ("Sink(log=seen).write_all()", "seen"),
    "list of the class under another name": ("Open().write()", "Open.shared"),
    "list among any number of arguments": ("write_into(seen)", "seen"),
    "list among arguments by keyword": ("write_into(a=seen)", "seen"),
    "list in a display that is passed": ("def f(both):\n    both[0].append(1)\nf([seen])", "seen"),
    "list in a field": ("o = Pair(seen, 1)\no.first.append(1)", "seen"),
    "list in a field, by keyword": ("o = Pair(second=1, first=seen)\no.first.append(1)", "seen"),
    "list in a namespace": ("o = types.SimpleNamespace(a=seen)\no.a.append(1)", "seen"),
    "list of the class of a new object": ("Shared().rows.append(1)", "Shared.rows"),
    "list of the class, by its method": ("Shared().add(1)", "Shared.rows"),
    "list of the class, in a function of its method": ("Shared().add_later(1)", "Shared.rows"),
    "list of the class, by one that extends it": ("Sharing().add(1)", "Shared.rows"),
    "append of the class": ("list.append(seen, 1)", "seen"),
    "extend": ("seen.extend([1])", "seen"),
    "insert": ("seen.insert(0, 1)", "seen"),
    "pop": ("last = seen.pop()", "seen"),
    "sort": ("seen.sort()", "seen"),
    "list in place": ("own = seen\nown += [1]", "seen"),
    "list of an object": ("meter.values.append(1)", "meter.values"),
    "list in a dictionary": ('stats["parts"].append(1)', "stats"),
    "list of `setdefault`": ('stats.setdefault("parts", []).append(1)', "stats"),
    "list of `get`": ('stats.get("parts").append(1)', "stats"),
    "lists that a loop goes through": ("for part in stats.values():\n    part.append(1)", "stats"),
    "list by another name": ("mine = seen\nmine.append(1)", "seen"),
    "list that may be another": ("mine = seen if params is None else []\nmine.append(1)", "seen"),
    "appendleft": ("queue.appendleft(1)", "queue"),
    "add to a set": ("steps.add(1)", "steps"),
    "update": ("stats.update(n=1)", "stats"),
    "update of what is not seen": ("given.update(n=1)", "given"),
    "setdefault": ('stats.setdefault("n", len(batch))', "stats"),
    "item": ('stats["n"] = 1', "stats"),
    "item, added to": ('stats["n"] += 1', "stats"),
    "item of an item": ('stats["a"]["b"] = 1', "stats"),
    "slice": ("seen[:] = []", "seen"),
    "item, deleted": ('del stats["n"]', "stats"),
    "item, by a tuple": ('stats["n"], b = 1, 2', "stats"),
    "item of the module": ('STATS["n"] += 1', "STATS"),
    "list of the module": ("SEEN.append(1)", "SEEN"),
    "list of another module": ("LOG.append(1)", "LOG"),
    "list of another module, by its name": ("state.LOG.append(1)", "LOG"),
    "name of another module": ("state.COUNT = 1", "state.COUNT"),
    "array of NumPy": ("BUFFER[0] = 1", "BUFFER"),
    "array of NumPy as `out`": ("np.add(BUFFER, 1, out=BUFFER)", "BUFFER"),
    "array of NumPy, `at`": ("np.add.at(BUFFER, 0, 1)", "BUFFER"),
    "attribute": ("meter.total = 1", "meter.total"),
    "attribute, added to": ("meter.total += 1", "meter.total"),
    "attribute, deleted": ("del meter.total", "meter.total"),
    "attribute of the class": ("Meter.total += 1", "Meter.total"),
    "attribute of the class of an object": ("type(meter).total += 1", "meter.total"),
    "attribute of a function": ("helper.calls = 1", "helper.calls"),
    "attribute of the module": ("METER.total = 1", "METER.total"),
    "setattr": ('setattr(meter, "total", 1)', "meter"),
    "`__setattr__`": ('object.__setattr__(meter, "total", 1)', "meter"),
    "vars": ('vars(meter)["total"] = 1', "meter"),
    "`__dict__`": ('meter.__dict__["total"] = 1', "meter.__dict__"),
    "globals": ('globals()["n"] = 1', "globals()"),
    "operator": ('operator.setitem(stats, "n", 1)', "stats"),
    "heap": ("heapq.heappush(seen, 1)", "seen"),
    "iterator that others read": ("n = next(numbers)", "numbers"),
    "method": ("meter.record(1)", "meter.values"),
    "method of the module's object": ("METER.record(1)", "METER.values"),
    "method that a base has": ("log.append(1)", "log"),
    "call of an object": ("meter(1)", "meter.total"),
    "counter that a function made": ("count()", "count"),
    "helper": ("add_to(seen, 1)", "seen"),
    "helper of a choice": ("(add_to if params is None else helper)(seen, 1)", "seen"),
    "helper of a table": ("table = {'a': helper}\ntable['a'](1)", "LOG"),
    "helper that another one makes": (
        "def make(store):\n    def add(v):\n        store.append(v)\n    return add\nmake(seen)(1)",
        "seen",
    ),
    "helper of another module": ("helper(1)", "LOG"),
    "helper with `global`": ("log_value(1)", "COUNT"),
    "helper beside the loss": ("beside(1)", "seen"),
    "helper under `jax.checkpoint`": ("jax.checkpoint(helper)(1)", "LOG"),
    "helper under a partial": ("functools.partial(add_to, seen)(1)", "seen"),
    "helper that a scan calls": ("jax.lax.scan(helper, 0, batch)", "LOG"),
    "helper with a list as default": ("grow()", "values"),
    "what a helper gives": ('module_stats()["n"] = 1', "STATS"),
    "cache by less than what it is made of": ("cos_of(3, params)", "CACHE"),
    "module of linen that changes a global": ("counting.apply(params, batch)", "STATS"),
}

# The same, of what it may change.
OWN = {
    "nonlocal of a function between": (
        "def outer():\n    inner = 0\n    def add():\n        nonlocal inner\n        inner += 1\n    add()\nouter()"
    ),
    "nonlocal of the loss": "mine = 0\ndef add():\n    nonlocal mine\n    mine += 1\nadd()",
    "nonlocal that is only read": "nonlocal total\nx = total",
    "nonlocal of a function that nothing calls": "def add():\n    nonlocal total\n    total += 1",
    "list": "parts = []\nparts.append(1)",
    "list of a function in it": "def f():\n    parts = []\n    parts.append(1)\n    return parts\nf()",
    "list that hides one": "seen = []\nseen.append(1)",
    "list of a function in it, by its method": "def make():\n    return [].append\nmake()(1)",
    "list, by a name for its method": "parts = []\nnote = parts.append\nnote(1)\nlist(map(note, [1]))",
    "name that stands for itself": "note = print\nnote = note\nnote(1)",
    "list that is unpacked": "a, b = [], seen\na.append(1)",
    "list that a helper returns with others": "def both():\n    return [], seen\na, _ = both()\na.append(1)",
    "lists of a loop over two": "rows = [[] for _ in seen]\nfor v, row in zip(seen, rows):\n    row.append(v)",
    "lists of a loop with their number": "rows = [[]]\nfor i, row in enumerate(rows):\n    row.append(seen)",
    "items of a dictionary of its own": "mine = {'a': []}\nfor k, v in mine.items():\n    v.append(seen)",
    "list that a new object has": "o = Holder([])\no.store.append(1)",
    "list of each object of a class": "Shared().own.append(1)",
    "list of each object of a class that extends one": "Apart().rows.append(1)",
    "list that a new object makes": "Sink().write(1)",
    "list that a new object was given, by its method": "Sink([]).write(1)",
    "list that a new object in another was given": "LongSink([], seen).write_inside()",
    "list beside one that a new object holds": "o = LongSink([], seen)\no.write(1)\no.keep(1)",
    "attribute of a new object that holds one": "o = Sink(seen)\no.store = []\no.last = 1",
    "list of any number of arguments": "grow_own(seen, a=seen)",
    "list of a class of its own": (
        "class Mine:\n    rows = []\n    def add(self):\n        self.rows.append(1)\nMine().add()"
    ),
    "function that is handed on": "x = max([2, 1], key=own_key)",
    "list that holds one": "mine = [seen]\nmine.append(1)",
    "list in another field": "o = Pair([], seen)\no.first.append(1)",
    "copy": "mine = list(seen)\nmine.append(1)",
    "copy by a method": "mine = stats.copy()\nmine['n'] = 1",
    "deep copy": "mine = copy.deepcopy(stats)\nmine['n'] = 1",
    "merged dictionary": "mine = {**stats, 'n': 1}\nmine['n'] = 2",
    "defaultdict": "mine = collections.defaultdict(list)\nmine['n'].append(1)",
    "new object": "mine = Meter()\nmine.total = 1\nmine.record(1)",
    "method that changes nothing": "x = meter.mean()",
    "helper that is given its own": "mine = []\nadd_to(mine, 1)",
    "helper that makes its own": "mine = own()\nmine['n'] = 1",
    "counter of its own": "mine = make_counter()\nmine()",
    "rebuilt argument": "params['w'] = 2 * params['w']",
    "part of a rebuilt argument": "layer = params['layer']\nlayer['w'] = 1",
    "argument that nothing reads below": "labels = batch.pop('labels')",
    "argument that was copied": "read = dict(read)\nread['n'] = 1",
    "update of an optimizer": "updates, rest = tx.update(params, given)",
    "update of a table of arrays": "x = given.at[0].add(1)",
    "add that gives a value": "x = given.add(1)",
    "sorted array": "x = given.sort()",
    "append of NumPy": "x = jnp.append(batch, 1)",
    "frozen dictionary": "rest, p = given.pop('params')",
    "array added to": "x = given\nx += 1",
    "callback": "jax.debug.callback(seen.append, batch)",
    "callback with a lambda": "jax.debug.callback(lambda v: seen.append(v), batch)",
    "callback of a function in it": "def note(v):\n    seen.append(v)\njax.debug.callback(note, batch)",
    "callback of a helper": "jax.debug.callback(helper, batch)",
    "cache by its key": "x = cos(3)",
    "decorator that keeps by key": "x = kept_helper(3)",
    "decorator of the loss's own": "@counted(0)\ndef mine(v):\n    return v\nmine(1)",
    "made once": "x = table()",
    "ref": "ref[...] = 1",
    "module of linen": "x = model.apply(params, batch)",
    "module of linen that is made there": "x = Block().apply(params, batch)",
    "module of nnx": "cell = Cell(nnx.Rngs(0))\nx = cell(batch)",
    "iterator that nothing else reads": "n = next(others)",
    "print": "print(seen)",
    "comprehension": "x = {k: v for k, v in stats.items()}",
    "loop": "for part in seen:\n    x = part",
}


def changed(body: str) -> str | None:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    site = site_of(
        f"""{HEAD}
@jax.jit
def step(params, batch, given, read, tx):
    seen, stats, meter, queue, steps, log = [], dict(STATS), Meter(), collections.deque(), set(), Log()
    total, numbers, others = 0, iter(range(9)), iter(range(9))
    count, remember, ref = make_counter(), seen.append, jax.new_ref(jnp.zeros(3))
    first = next(numbers)
    def beside(value):
        seen.append(value)
    def loss(params, batch, read):
{lines}
        return jnp.mean(batch @ params)
    grads = jax.grad(loss)(params, batch, read)  # mm: microbatch(size=2, argnum=1)
    return grads, read, seen
""",
        state=STATE,
    )
    gradient = find_gradient(site)
    found = writes_outside(site, gradient, ())
    return None if found is None else found.name


@pytest.mark.parametrize(("body", "name"), CHANGED.values(), ids=CHANGED)
def test_what_a_loss_changes_outside_of_itself(body: str, name: str) -> None:
    assert changed(body) == name


@pytest.mark.parametrize("body", OWN.values(), ids=OWN)
def test_what_a_loss_changes_of_its_own(body: str) -> None:
    assert changed(body) is None


# Steps, and what their loss changes on which line, with the line that reads it.
STEPS = {
    "argument that is read below": (
        """
        def step(params, batch, log):
            def loss(params, batch):
                labels = batch.pop("labels")
                return jnp.mean(batch["x"] @ params - labels)
            grads = jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
            return grads, batch["labels"]
        """,
        ("batch", 4, 7),
    ),
    "argument that is read above alone": (
        """
        @jax.jit
        def step(params, batch, log):
            def loss(params, batch):
                return jnp.mean(batch["x"] @ params - batch.pop("labels"))
            count = len(batch["labels"])
            grads = jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
            return grads, count
        """,
        None,
    ),
    "argument that the next round of a loop reads": (
        """
        def step(params, batch, log):
            def loss(params, batch):
                return jnp.mean(batch["x"] @ params - batch.pop("labels"))
            for _ in range(3):
                count = len(batch["labels"])
                params = params - jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
            return params
        """,
        ("batch", 4, 6),
    ),
    "argument that each round of a loop has its own of": (
        """
        @jax.jit
        def step(params, batches, log):
            def loss(params, batch):
                return jnp.mean(batch["x"] @ params - batch.pop("labels"))
            for batch in batches:
                count = len(batch["labels"])
                params = params - jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
            return params
        """,
        None,
    ),
    "argument that nnx builds anew": (
        """
        def step(model, batch, log):
            def loss(model, batch):
                return jnp.mean(model(batch["x"]) - batch.pop("labels"))
            grads = nnx.grad(loss)(model, batch)  # mm: microbatch(size=2)
            return grads, batch["labels"]
        """,
        None,
    ),
    "object that is passed": (
        """
        def step(params, batch, log):
            def loss(params, batch, log):
                log.total = jnp.mean(batch @ params)
                return log.total
            grads = jax.grad(loss)(params, batch, log)  # mm: microbatch(size=2, argnum=1)
            return grads, log
        """,
        ("log.total", 4, 7),
    ),
    "argument by keyword": (
        """
        def step(params, batch, log):
            def loss(params, batch, *, seen):
                seen.append(1)
                return jnp.mean(batch @ params)
            grads = jax.grad(loss)(params, batch, seen=log)  # mm: microbatch(size=2, argnum=1)
            return grads, log
        """,
        ("seen", 4, 7),
    ),
    "argument that an object has": (
        """
        class Trainer:
            def step(self, params, batch):
                def loss(params, batch, log):
                    log.append(1)
                    return jnp.mean(batch @ params)
                return jax.grad(loss)(params, batch, self.log)  # mm: microbatch(size=2, argnum=1)
        """,
        ("self.log", 5, None),
    ),
    "copy of what an object has": (
        """
        class Trainer:
            def step(self, params, batch):
                def loss(params, batch, log):
                    log.append(1)
                    return jnp.mean(batch @ params)
                return jax.grad(loss)(params, batch, list(self.log))  # mm: microbatch(size=2, argnum=1)
        """,
        None,
    ),
    "part of an argument that is read below": (
        """
        def step(params, batch, logs):
            def loss(params, batch, log):
                log.append(1)
                return jnp.mean(batch @ params)
            grads = jax.grad(loss)(params, batch, logs["loss"])  # mm: microbatch(size=2, argnum=1)
            return grads, logs
        """,
        ("log", 4, 7),
    ),
    "part of an argument that nothing reads below": (
        """
        @jax.jit
        def step(params, batch):
            def loss(params, batch):
                labels = batch.pop("labels")
                return jnp.mean(batch["x"] @ params - labels)
            return jax.grad(loss)(params, batch["train"])  # mm: microbatch(size=2, argnum=1)
        """,
        None,
    ),
    "argument that another module has": (
        """
        def step(params, batch):
            def loss(params, batch, log):
                log.append(1)
                return jnp.mean(batch @ params)
            return jax.grad(loss)(params, batch, LOG)  # mm: microbatch(size=2, argnum=1)
        """,
        ("LOG", 4, None),
    ),
    "argument that a function above reads": (
        """
        HISTORY = []
        def report():
            print(HISTORY)
        def step(params, batch):
            def loss(params, batch, log):
                log.append(1)
                return jnp.mean(batch @ params)
            return jax.grad(loss)(params, batch, HISTORY)  # mm: microbatch(size=2, argnum=1)
        """,
        ("log", 7, 4),
    ),
    "default": (
        """
        def step(params, batch, log):
            def loss(params, batch, seen=log):
                seen.append(1)
                return jnp.mean(batch @ params)
            return jax.grad(loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        ("log", 4, None),
    ),
    "default of its own": (
        """
        def step(params, batch, log):
            def loss(params, batch, seen=[]):
                seen.append(1)
                return jnp.mean(batch @ params)
            return jax.grad(loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        ("seen", 4, None),
    ),
    "partial": (
        """
        def loss(seen, params, batch):
            seen.append(1)
            return jnp.mean(batch @ params)
        def step(params, batch, log):
            return jax.grad(functools.partial(loss, log))(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        ("log", 3, None),
    ),
    "loss of the module": (
        """
        def loss(params, batch):
            SEEN.append(1)
            return jnp.mean(batch @ params)
        def step(params, batch, log):
            return jax.grad(loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        ("SEEN", 3, None),
    ),
    "method": (
        """
        class Trainer:
            def loss(self, params, batch):
                self.calls += 1
                return jnp.mean(batch @ params)
            def step(self, params, batch):
                return jax.grad(self.loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        ("self.calls", 4, None),
    ),
    "object of the method around": (
        """
        class Trainer:
            def step(self, params, batch):
                def loss(params, batch):
                    self.calls = self.calls + 1
                    return jnp.mean(batch @ params)
                return jax.grad(loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        ("self.calls", 5, None),
    ),
    "method that a method calls": (
        """
        class Base:
            def note(self, value):
                self.notes.append(value)
        class Trainer(Base):
            def step(self, params, batch):
                def loss(params, batch):
                    self.note(1)
                    return jnp.mean(batch @ params)
                return jax.grad(loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        ("self.notes", 4, None),
    ),
    "method of a base, by `super`": (
        """
        class Base:
            def loss(self, params, batch):
                self.notes.append(1)
                return jnp.mean(batch @ params)
        class Trainer(Base):
            def loss(self, params, batch):
                return super().loss(params, batch)
            def step(self, params, batch):
                return jax.grad(self.loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        ("self.notes", 4, None),
    ),
    "method that a class extends": (
        """
        class Base:
            def scale(self):
                return 1.0
            def step(self, params, batch):
                def loss(params, batch):
                    return self.scale() * jnp.mean(batch @ params)
                return jax.grad(loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        class Trainer(Base):
            def scale(self):
                self.calls += 1
                return 1.0
        """,
        ("self.calls", 11, None),
    ),
    "method of an object that is not seen": (
        """
        class Notes:
            def note(self, value):
                self.notes.append(value)
        def step(params, batch, log):
            def loss(params, batch):
                log.note(1)
                return jnp.mean(batch @ params)
            return jax.grad(loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        ("log.notes", 4, None),
    ),
    "operator of an object that is not seen": (
        """
        class Scale:
            def __mul__(self, other):
                self.calls += 1
                return other
        def step(params, batch, scale):
            def loss(params, batch):
                return jnp.mean(scale * batch @ params)
            return jax.grad(loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        ("scale.calls", 4, None),
    ),
    "operator of what JAX has rebuilt": (
        """
        class Scale:
            def __mul__(self, other):
                self.calls += 1
                return other
        @jax.jit
        def step(params, batch, scale):
            def loss(params, batch):
                return jnp.mean(scale * batch @ params)
            return jax.grad(loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        None,
    ),
    "mask that an object makes once": (
        """
        class Trainer:
            def mask(self):
                if self._mask is None:
                    self._mask = np.tri(4)
                return self._mask
            def step(self, params, batch):
                def loss(params, batch):
                    return jnp.mean(batch @ params * self.mask())
                return jax.grad(loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        None,
    ),
    "Haiku": (
        """
        import haiku as hk
        def forward(batch):
            SEEN.append(1)
            return jnp.mean(batch)
        network = hk.transform(forward)
        def step(params, key, batch):
            return jax.grad(network.apply)(params, key, batch)  # mm: microbatch(size=2, argnum=2)
        """,
        ("SEEN", 4, None),
    ),
    "recursion": (
        """
        def fold(tree, n):
            return fold(tree, n - 1) + twice(tree, n) if n else tree
        def twice(tree, n):
            return fold(tree, n)
        def step(params, batch, log):
            def loss(params, batch):
                return jnp.mean(fold(batch, 3) @ params)
            return jax.grad(loss)(params, batch)  # mm: microbatch(size=2, argnum=1)
        """,
        None,
    ),
}


@pytest.mark.parametrize(("step", "expected"), STEPS.values(), ids=STEPS)
def test_what_the_loss_of_a_step_changes(step: str, expected: tuple[str, int, int | None] | None) -> None:
    before = HEAD + "SEEN_BELOW = 0"
    site = site_of(before + textwrap.dedent(step), state=STATE)
    found = writes_outside(site, find_gradient(site), ())
    above = before.count("\n")
    assert expected == (
        None if found is None else (found.name, found.line - above, found.read_on and found.read_on - above)
    )


CLOSED_OVER = """
import jax
import jax.numpy as jnp
@jax.jit
def step(params, batch):
    def loss(params):
        labels = batch.pop("labels")
        return jnp.mean(batch["x"] @ params - labels)
    grads = jax.grad(loss)(params)  # mm: microbatch(size=2)
    return grads, BELOW
"""


@pytest.mark.parametrize(("below", "read_on"), [("params", None), ("len(batch)", 10)])
def test_a_closed_over_batch_that_becomes_an_argument(below: str, read_on: int | None) -> None:
    site = site_of(CLOSED_OVER.replace("BELOW", below))
    found = writes_outside(site, find_gradient(site), ["batch"])
    assert (found and (found.name, found.line, found.read_on)) == (read_on and ("batch", 7, read_on))
    unchanged = writes_outside(site, find_gradient(site), ())
    assert unchanged is not None
    assert unchanged.described(site.facts) == "changes `batch` of the code around it on line 7"


LOOP = """
import jax
import jax.numpy as jnp
seen = []
def step(params, batches):
    notes = []
    def loss(params, batch, own):
        WRITE
        return jnp.mean(batch @ params)
    grads = 0
    for batch in batches:  # mm: microbatch(count=2)
        parts = []
        grads = grads + jax.grad(loss)(params, batch, parts)
    return grads
"""


@pytest.mark.parametrize(
    ("write", "name"), [("seen.append(1)", "seen"), ("notes.append(1)", "notes"), ("own.append(1)", None), ("", None)]
)
def test_what_a_loop_of_microbatches_changes_in_functions(write: str, name: str | None) -> None:
    site = site_of(LOOP.replace("WRITE", write or "pass"))
    found = writes_in_calls(site, loop_in(site.statement))
    assert (found and found.name) == name


def test_the_line_of_a_helper_in_another_module_names_that() -> None:
    text = """
import jax
import state
def loss(params, batch):
    state.helper(1)
    return batch @ params
def step(params, batch):
    return jax.grad(loss)(params, batch)  # mm: microbatch(size=2)
"""
    site = site_of(text, state=STATE)
    found = writes_outside(site, find_gradient(site), ())
    assert found is not None
    assert found.described(site.facts) == "changes `LOG` of the code around it on line 4 of state.py"
