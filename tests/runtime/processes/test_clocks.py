"""Clocks of processes, compared by threads that stand for these."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import pytest

from mmruntime._processes import clocks


class Texts:
    """Texts under keys, for all threads."""

    def __init__(self):
        self.found, self.changed = {}, threading.Condition()

    def put(self, key, value):
        with self.changed:
            assert key not in self.found
            self.found[key] = value
            self.changed.notify_all()

    def get(self, key, timeout):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.found, 20), key
            return self.found[key]


def compared(monkeypatch, names):
    """What each process finds whose clock has one of these names, and the keys that were used."""
    texts, me = Texts(), threading.local()
    group = SimpleNamespace(members=tuple(range(len(names))), key="all", token="")
    monkeypatch.setattr(jax, "process_index", lambda: me.index)
    monkeypatch.setattr(clocks, "Exchange", lambda: texts)
    monkeypatch.setattr(clocks, "_own_clock", lambda: names[me.index])

    def run(index):
        me.index = index
        return clocks.compare_clocks(group, "once")

    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(run, range(len(names)))), texts.found


def test_processes_with_one_clock_have_no_offset(monkeypatch):
    found, _ = compared(monkeypatch, ["a", "a", "b", ""])
    assert found[:2] == [(0.0, 0.0)] * 2
    # The clocks of these threads are one all the same.
    assert all(each.error > 0 and abs(each.seconds) <= each.error for each in found[2:])


def test_clocks_that_differ_under_one_name_are_compared(monkeypatch):
    """As those of copies of one virtual machine, which went on at different times."""
    own, first = time.perf_counter, threading.get_ident()

    def late():
        return own() + (1000 if threading.get_ident() == first else 0)

    texts = Texts()
    group = SimpleNamespace(members=(0, 1), key="all", token="")
    monkeypatch.setattr(jax, "process_index", lambda: 0 if threading.get_ident() == first else 1)
    monkeypatch.setattr(clocks, "Exchange", lambda: texts)
    monkeypatch.setattr(clocks, "_own_clock", lambda: "a")
    monkeypatch.setattr(clocks.time, "perf_counter", late)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(clocks.compare_clocks, group, "once")
        assert clocks.compare_clocks(group, "once") == (0.0, 0.0)
        offset = other.result()
    assert offset.error > 0 and abs(offset.seconds - 1000) <= offset.error


@pytest.mark.parametrize("names", [["", ""], ["", "a"], ["a", ""]])
def test_clocks_without_a_name_are_compared(monkeypatch, names):
    found, keys = compared(monkeypatch, names)
    assert found[0] == (0.0, 0.0) and found[1].error > 0
    assert sum(key.endswith("answer") for key in keys) == clocks._ROUNDS


def test_the_name_of_a_clock_says_on_which_machine_it_runs(monkeypatch):
    monkeypatch.setattr(clocks, "own_host", lambda: "10.0.0.1")
    own = clocks._own_clock()
    monkeypatch.setattr(clocks, "own_host", lambda: "10.0.0.2")
    assert own != clocks._own_clock() or not own
    # A clock that counts from elsewhere has no name.
    monkeypatch.setattr(time, "get_clock_info", lambda name: SimpleNamespace(implementation="mach_absolute_time()"))
    assert clocks._own_clock() == ""
