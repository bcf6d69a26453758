"""Python's search for cycles, which a run puts off: what runs before leave does not pile up."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from mmrewrite.engine import garbage


class _Node:
    """Something that only a search for cycles finds."""

    def __init__(self) -> None:
        self.others = [_Node.__new__(_Node) for _ in range(10)]
        self.others[0].others = [self]


@pytest.fixture
def no_search_of_its_own() -> Iterator[None]:
    """Python searches when it is asked to, and not when it sees fit."""
    before = gc.get_threshold()
    gc.set_threshold(0)
    others: list[list[int]] = [[] for _ in range(5000)]
    yield
    others.clear()
    gc.set_threshold(*before)


def _run(count: int) -> weakref.ref[_Node]:
    with garbage.no_collection():
        nodes = [_Node() for _ in range(count)]
    return weakref.ref(nodes[-1])


@pytest.mark.usefixtures("no_search_of_its_own")
def test_what_blocks_leave_is_found_once_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_MOST_LEFT", 1000)
    monkeypatch.setattr(garbage, "_left", 0)
    first = _run(10)
    second = _run(1000)
    assert first() is not None and second() is not None
    _run(1)
    assert first() is None and second() is None


def test_a_block_leaves_the_search_as_it_was() -> None:
    assert gc.isenabled()
    with garbage.no_collection(), garbage.no_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
