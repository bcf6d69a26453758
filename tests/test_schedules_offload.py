"""Offload on paper: what would lie on the host while its links have time."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmruntime.schedules import Schedule, auto, auto_offload, make, offload, simulate


def test_copies_by_hand():
    """Three forwards and three backwards of one and two units, and copies of half a unit."""
    plan = offload(simulate(make("gpipe", 1, 3)), activation_bytes=1, host_bandwidth=2)
    assert [(copy.kind, copy.microbatch, copy.start, copy.end) for copy in plan.copies[0]] == [
        ("O", 0, 1, 1.5),
        ("O", 1, 2, 2.5),
        ("L", 0, 2.5, 3),
        ("O", 2, 3, 3.5),
        ("L", 1, 4.5, 5),
        ("L", 2, 6.5, 7),
    ]
    assert plan.peak_bytes == (2,)
    assert plan.share == 1


def test_nothing_goes_that_is_not_back_in_time():
    plan = offload(simulate(make("gpipe", 1, 1)), activation_bytes=1, host_bandwidth=100)
    assert plan.copies == ((),)
    assert plan.peak_bytes == (1,)
    assert plan.share == 0


def test_what_is_made_once_more_stays():
    again = Schedule.from_csv("0F0,0F1,0R0,0B0,0B1\n1F0,1B0,1F1,1B1")
    plan = offload(simulate(again), activation_bytes=(1, 1), host_bandwidth=100)
    assert {(copy.stage, copy.microbatch) for copy in plan.copies[0]} == {(0, 1)}


@given(
    st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved-1f1b"]),
    st.integers(2, 4),
    st.integers(1, 3),
    st.floats(0.05, 5),
    st.floats(0, 1),
)
@settings(max_examples=30, deadline=None)
def test_copies_lie_between_the_passes_and_one_after_the_other(name, stages, rounds, last, kept):
    chunks = 2 if name in ("zb-v", "interleaved-1f1b") else None
    simulation = simulate(
        make(name, stages, stages * rounds, chunks), activation_bytes=1.0, weight_activation_bytes=kept
    )
    plan = offload(simulation, activation_bytes=1.0, weight_activation_bytes=kept, host_bandwidth=1 / last)
    for submesh, copies in enumerate(plan.copies):
        made, used = {}, {}
        for event in simulation.timeline:
            if event.submesh == submesh:
                ends = {"F": (made, event.end), "B": (used, event.start), "I": (used, event.start)}
                if event.action.kind in ends:
                    where, at = ends[event.action.kind]
                    where[event.action.stage, event.action.microbatch] = at
        for kind in "OL":
            mine = [copy for copy in copies if copy.kind == kind]
            assert all(one.end <= other.start + 1e-9 for one, other in itertools.pairwise(mine))
        there = {(copy.stage, copy.microbatch): copy for copy in copies if copy.kind == "O"}
        back = {(copy.stage, copy.microbatch): copy for copy in copies if copy.kind == "L"}
        assert there.keys() == back.keys()
        for key, copy in there.items():
            assert made[key] <= copy.start < copy.end <= back[key].start + 1e-9
            assert back[key].end <= used[key] + 1e-9
    assert all(less <= most + 1e-9 for less, most in zip(plan.peak_bytes, simulation.peak_bytes, strict=True))


@pytest.mark.slow
def test_a_search_with_the_host_finds_shorter_steps_in_the_same_memory():
    options = {"memory": 2, "activation_bytes": 1, "effort": 0.05, "split": False}
    plan = auto_offload(4, 8, host_bandwidth=4, **options)
    assert max(plan.peak_bytes) <= 2
    assert plan.simulation.step_time < auto(4, 8, **options).simulation.step_time
    # No bandwidth, no help.
    assert auto_offload(4, 8, host_bandwidth=1e-9, **options).share == 0


def test_wrong_numbers():
    with pytest.raises(ValueError, match="host_bandwidth must be a number above 0; got 0"):
        offload(simulate(make("1f1b", 2, 2)), activation_bytes=1, host_bandwidth=0)
    with pytest.raises(ValueError, match="auto_offload needs memory= and activation_bytes=: without a bound"):
        auto_offload(2, 2, host_bandwidth=1)
