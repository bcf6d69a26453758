"""What code sees of a list that a loss changed; each program is run in plain Python, to see whether it does."""

from __future__ import annotations

import textwrap
import types

import pytest
from hinted_sites import site_of

from mmrewrite.analysis.outside_writes import writes_outside
from mmrewrite.analysis.steps.gradients import find_gradient

HEAD = """\
import jax
def loss(params, batch, log):
    log.append(1)
    return 0.0
"""
# Programs whose `main` is given the list; GRAD(x) stands for the gradient with the hint.
READ = {
    "below": "def main(log):\n    GRAD(log)\n    return len(log)",
    "in the same statement": "def main(log):\n    return GRAD(log), len(log)",
    "by the caller": "def step(log):\n    GRAD(log)\ndef main(log):\n    step(log)\n    return len(log)",
    "by the caller's caller": (
        "def inner(own):\n    GRAD(own)\ndef step(log):\n    inner(log)\n"
        "def main(log):\n    step(log)\n    return len(log)"
    ),
    "by the caller, as a keyword": (
        "def step(*, log):\n    GRAD(log)\ndef main(log):\n    step(log=log)\n    return len(log)"
    ),
    "by the caller of a method": (
        "class Trainer:\n    def step(self, log):\n        GRAD(log)\n"
        "def main(log):\n    Trainer().step(log)\n    return len(log)"
    ),
    "by the caller of a function in it": (
        "def main(log):\n    def step(own):\n        GRAD(own)\n    step(log)\n    return len(log)"
    ),
    "by the caller, from a table": (
        "def step(log):\n    GRAD(log)\nTABLE = {'step': step}\n"
        "def main(log):\n    TABLE['step'](log)\n    return len(log)"
    ),
    "by the caller, in stars": "def step(log):\n    GRAD(log)\ndef main(log):\n    step(*[log])\n    return len(log)",
    "by the caller, as a default": (
        "def main(log):\n    def step(own=log):\n        GRAD(own)\n    step()\n    return len(log)"
    ),
    "by the caller, in a loop": (
        "def step(log):\n    GRAD(log)\n"
        "def main(log):\n    for _ in range(2):\n        n = len(log)\n        step(log)\n    return n"
    ),
    "of an object": (
        "class Trainer:\n    def step(self):\n        log = self.log\n        GRAD(log)\n"
        "def main(log):\n    trainer = Trainer()\n    trainer.log = log\n    trainer.step()\n    return len(log)"
    ),
    "of an object, directly": (
        "class Trainer:\n    def step(self):\n        GRAD(self.log)\n"
        "def main(log):\n    trainer = Trainer()\n    trainer.log = log\n    trainer.step()\n    return len(log)"
    ),
    "kept by an object": (
        "class Trainer:\n    def step(self, log):\n        own = Log(log)\n        self.log = own\n        GRAD(own)\n"
        "def main(log):\n    trainer = Trainer()\n    trainer.step(log)\n    return len(trainer.log)"
    ),
    "kept in a list of the caller": (
        "def step(kept, log):\n    own = Log(log)\n    kept.append(own)\n    GRAD(own)\n"
        "def main(log):\n    kept = []\n    step(kept, log)\n    return len(kept[0])"
    ),
    "of the module": "LOG = Log()\ndef main(log):\n    own = LOG\n    GRAD(own)\n    return len(LOG)",
    "in a tuple": "def main(log):\n    pair = (log, 1)\n    GRAD(pair[0])\n    return len(log)",
    "in a tuple that is made there": "def main(log):\n    GRAD((log, 1)[0])\n    return len(log)",
    "from a tuple": "def main(log):\n    own, one = log, 1\n    GRAD(own)\n    return len(log)",
    "from a table": "def main(log):\n    logs = {'a': log}\n    GRAD(logs['a'])\n    return len(logs['a'])",
    "from a table, both times": (
        "def main(log):\n    logs = {'a': log}\n    own = logs['a']\n    other = logs['a']\n"
        "    GRAD(own)\n    return len(other)"
    ),
    "by another name": "def main(log):\n    own = log\n    GRAD(own)\n    return len(log)",
    "by many names": (
        "def main(log):\n    a = log\n    b = a\n    c = b\n    d = c\n    e = d\n"
        "    f = e\n    g = f\n    GRAD(g)\n    return len(log)"
    ),
    "by a name below": "def main(log):\n    GRAD(log)\n    own = log\n    return len(own)",
    "by a choice": "def main(log):\n    own = log if log is not None else []\n    GRAD(own)\n    return len(log)",
    "by `or`": "def main(log):\n    own = None or log\n    GRAD(own)\n    return len(log)",
    "by a name in an expression": "def main(log):\n    (own := log)\n    GRAD(own)\n    return len(log)",
    "in a loop over lists": (
        "def main(log):\n    logs = [log]\n    for own in logs:\n        GRAD(own)\n    return len(logs[0])"
    ),
    "by a function above": (
        "def main(log):\n    own = Log(log)\n    def seen():\n        return len(own)\n    GRAD(own)\n    return seen()"
    ),
    "by a lambda above": (
        "def main(log):\n    own = Log(log)\n    seen = lambda: len(own)\n    GRAD(own)\n    return seen()"
    ),
    "in the next round": (
        "def main(log):\n    own = Log(log)\n    for _ in range(2):\n"
        "        n = len(own)\n        GRAD(own)\n    return n"
    ),
    "in the next round, set perhaps": (
        "def main(log):\n    own = Log(log)\n    for k in range(2):\n        n = len(own)\n        if k > 3:\n"
        "            own = Log(log)\n        GRAD(own)\n    return n"
    ),
}  # fmt: skip
UNREAD = {
    "made there": "def main(log):\n    own = Log(log)\n    GRAD(own)\n    return 1",
    "read above": "def main(log):\n    own = Log(log)\n    n = len(own)\n    GRAD(own)\n    return n",
    "made by the caller": (
        "def step(log):\n    GRAD(log)\n"
        "def main(log):\n    own = Log(log)\n    n = len(own)\n    step(own)\n    return n"
    ),
    "made for the call": "def step(log):\n    GRAD(log)\ndef main(log):\n    step([*log])\n    return 1",
    "made for the call of a method": (
        "class Trainer:\n    def step(self, log):\n        GRAD(log)\n"
        "def main(log):\n    Trainer().step(Log(log))\n    return 1"
    ),
    "another one of the same table": (
        "def main(log):\n    own, other = Log(log), Log(log)\n    GRAD(own)\n    return len(other)"
    ),
    "set in each round": (
        "def main(log):\n    for _ in range(2):\n"
        "        own = Log(log)\n        n = len(own)\n        GRAD(own)\n    return n"
    ),
    "of a compiled step": (
        "def step(log):\n    GRAD(log)\n    return 1\nstep = jax.jit(step)\ndef main(log):\n    return step(log)"
    ),
}  # fmt: skip


class Log(list[int]):
    """A list that knows whether its length was asked for once it was changed."""

    changed = was_read = False

    def append(self, value: int) -> None:
        Log.changed = True
        super().append(value)

    def __len__(self) -> int:
        Log.was_read |= Log.changed and list.__len__(self) > 0
        return list.__len__(self)


def is_read(program: str) -> bool:
    """Whether a program sees what its loss did."""
    Log.changed = Log.was_read = False

    def grad(loss):  # type: ignore[no-untyped-def]
        return lambda *args: loss(*args)

    jax = types.SimpleNamespace(grad=grad, jit=lambda f: lambda *args: f(*map(Log, args)))
    space: dict[str, object] = {"jax": jax, "Log": Log, "params": 1, "batch": 2}
    exec(texts(program).replace("import jax\n", ""), space)
    log = Log()
    main = space["main"]
    assert callable(main)
    main(log)
    return Log.was_read


def texts(program: str) -> str:
    head, *rest = program.split("GRAD(")
    text = head
    for part in rest:
        depth, end = 1, 0
        while depth:
            depth += {"(": 1, ")": -1}.get(part[end], 0)
            end += 1
        text += f"jax.grad(loss)(params, batch, {part[: end - 1]}){part[end:]}"
    lines = [
        f"{line}  # mm: microbatch(size=2, argnum=1)" if "jax.grad(" in line else line for line in text.split("\n")
    ]
    return HEAD + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("program", "seen"),
    [*((each, True) for each in READ.values()), *((each, False) for each in UNREAD.values())],
    ids=[*READ, *UNREAD],
)
def test_lists_that_are_read_later(program: str, seen: bool) -> None:
    assert is_read(program) == seen, "the program does otherwise"
    site = site_of(texts(textwrap.dedent(program)))
    assert (writes_outside(site, find_gradient(site), ()) is not None) == seen
