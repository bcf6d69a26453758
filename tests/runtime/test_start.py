"""What the first call of a step costs beside XLA: what Python collects for it."""

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import mmruntime as mm
from tests.runtime.helpers import on, stages

X = jax.ShapeDtypeStruct((4,), jnp.float32)


class Node:
    """An object that may be part of a cycle."""


def planned(node=None):
    """A step that was planned; while it is traced, a cycle is made that nothing else holds."""

    def fun(x):
        if node is not None:
            made = Node()
            made.itself = made
            node.append(weakref.ref(made))
        return mm.task(jnp.sin, task=on(1))(mm.task(jnp.cos, task=on(0))(x))

    step = mm.mjit(fun, mesh=stages(2))
    step.plan(X)
    return step


@pytest.fixture(autouse=True)
def collecting():
    """Garbage is collected, and nothing is frozen after the test."""
    assert gc.isenabled()
    yield
    gc.enable()
    gc.unfreeze()


def is_old(value):
    return any(each is value for each in gc.get_objects(generation=2))


def test_a_plan_is_old_as_soon_as_it_is_made():
    gc.unfreeze()
    assert is_old(planned().latest_plan)


def test_cycles_of_a_trace_are_collected_with_the_plan():
    node = []
    planned(node)
    assert node
    assert all(made() is None for made in node)


def test_nothing_is_collected_where_the_program_does_not_collect():
    gc.disable()
    node = []
    step = planned(node)
    assert not gc.isenabled()
    assert all(made() is not None for made in node)
    assert not is_old(step.latest_plan)


def test_what_the_program_has_frozen_stays_frozen():
    gc.freeze()
    count = gc.get_freeze_count()
    planned()
    # Objects may still be freed by their counts.
    assert gc.get_freeze_count() > count / 2
