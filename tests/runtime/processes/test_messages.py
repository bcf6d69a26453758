"""What processes would send each other, planned in one process: devices say that they are of several."""

import random
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mmruntime._execution.transfers.channels import preferred
from mmruntime._execution.transfers.collective_channel import in_rounds
from mmruntime._execution.transfers.parcels import TICKET, Parcel, num_bytes, plan_crossing
from mmruntime._execution.transfers.spread_across import tree_levels
from mmruntime._processes.agreement import changed, disagreement
from mmruntime._processes.group import MESSAGE_BITS, Group
from mmruntime._processes.transports import check_transport, forced
from tests.runtime.processes.simulated import Device, Layout


def layout_on(devices, *, cut=True):
    return Layout(tuple(devices), cut)


EIGHT = [Device(number, number // 2) for number in range(8)]


def plan(source, target, shape=(8, 3), dtype=jnp.float32, *, kept=False, undivided=False):
    return plan_crossing([source], [target], [jax.ShapeDtypeStruct(shape, dtype)], [kept], [undivided])


def test_a_piece_goes_once_to_each_process_and_only_where_it_is_missing():
    found = plan(layout_on(EIGHT[:4]), layout_on(EIGHT[2:], cut=False), (24, 3))
    ends = [(message.source, message.target) for message in found.messages]
    assert ends == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    for message in found.messages:
        *parcels, ticket = message.parcels
        assert ticket.array == TICKET
        assert len(parcels) == 2
        assert {parcel.target for parcel in parcels} == {EIGHT[2 * message.target]}
        assert all(parcel.source.process_index == message.source for parcel in parcels)
        assert sum(map(num_bytes, parcels)) == 12 * 3 * 4
    within = plan(layout_on(EIGHT[:2]), layout_on(EIGHT[:2], cut=False))
    assert within.messages == ()


@pytest.mark.parametrize(
    ("shape", "dtype", "kept", "ticket"),
    [
        ((8, 3), jnp.float32, True, False),
        ((8, 3), jnp.float32, False, True),
        ((8,), jax.random.key(0).dtype, True, True),
        ((1 << 14,), jnp.float32, True, False),
        ((1 << 15,), jnp.float32, True, True),
    ],
)
def test_what_stays_and_is_small_needs_no_ticket(shape, dtype, kept, ticket):
    (message,) = plan(layout_on(EIGHT[:1]), layout_on(EIGHT[6:], cut=False), shape, dtype, kept=kept).messages
    assert (message.parcels[message.witness].array == TICKET) == ticket
    assert len(message.parcels) == 1 + ticket


FOUR = [Device(number, number // 4) for number in range(8)]


def test_an_array_is_one_parcel_where_each_shard_has_a_device_of_its_own():
    target = layout_on(FOUR[4:6])
    (message,) = plan(layout_on(FOUR[:2]), target, kept=True, undivided=True).messages
    (parcel,) = message.parcels
    assert (parcel.source, parcel.target, parcel.box, parcel.layout) == (FOUR[0], FOUR[4], None, target)
    assert (parcel.shape, num_bytes(parcel)) == ((8, 3), 8 * 3 * 4)
    assert (message.source, message.target, message.witness) == (0, 1, 0)


@pytest.mark.parametrize(("size", "tickets"), [(1 << 15, 0), (1 << 16, 1)])
def test_what_it_has_on_a_device_says_whether_it_needs_a_ticket(size, tickets):
    (message,) = plan(layout_on(FOUR[:2]), layout_on(FOUR[4:6]), (size,), kept=True, undivided=True).messages
    assert len(message.parcels) == 1 + tickets


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (layout_on(FOUR[:2]), layout_on(FOUR[4:])),
        (layout_on(FOUR[:2]), layout_on(FOUR[4:6], cut=False)),
        (layout_on(FOUR[:2], cut=False), layout_on(FOUR[4:6], cut=False)),
        (layout_on(FOUR[:1]), layout_on(FOUR[4:6], cut=False)),
        (layout_on(FOUR[3:5]), layout_on(FOUR[5:7])),
        (layout_on(FOUR[:2]), layout_on(FOUR[3:5])),
    ],
    ids=["more", "gathered", "replicas", "copies", "sources of two processes", "targets in two processes"],
)
def test_other_arrays_are_cut_as_before(source, target):
    assert plan(source, target, undivided=True) == plan(source, target)


@pytest.mark.parametrize("seed", range(40))
def test_one_parcel_brings_what_its_shards_would_bring(seed):
    rng = random.Random(seed)
    ends = [
        layout_on(rng.sample(found, rng.choice([1, 2, 4])), cut=rng.random() < 0.7) for found in (FOUR[:4], FOUR[4:])
    ]
    (apart,) = plan(*ends, undivided=False).messages
    (found,) = plan(*ends, undivided=True).messages
    whole, *_ = found.parcels
    if whole.layout is None:
        assert found == apart
        return
    *pieces, ticket = apart.parcels
    assert [(each.source, each.box, each.target) for each in pieces] == [
        (source, None, target) for source, target in zip(ends[0].devices, ends[1].devices, strict=True)
    ]
    assert sum(map(num_bytes, pieces)) == num_bytes(whole)
    assert ticket.array == found.parcels[found.witness].array == TICKET


def test_replicas_are_read_where_they_are_near():
    found = plan(layout_on(EIGHT[:4], cut=False), layout_on(EIGHT[1:3]))
    assert found.messages == ()
    far = plan(layout_on(EIGHT[:4], cut=False), layout_on(EIGHT[4:]))
    senders = {parcel.source for message in far.messages for parcel in message.parcels}
    assert len(senders) == len(far.messages) == 2


def test_what_has_no_elements_is_not_sent():
    assert plan(layout_on(EIGHT[:2], cut=False), layout_on(EIGHT[4:], cut=False), (0, 3)).messages == ()


def test_sizes_count_half_bytes():
    found = plan(layout_on(EIGHT[:1]), layout_on(EIGHT[7:]), (8, 3), jnp.int4)
    assert num_bytes(found.messages[0].parcels[0]) == 12


@pytest.mark.parametrize(("holders", "others"), [(1, 0), (1, 1), (1, 7), (3, 2), (2, 500), (1, 2047)])
def test_scalars_reach_everybody_once_by_few_messages_of_each(holders, others):
    levels = tree_levels(range(holders), range(holders, holders + others))
    have, sends = set(range(holders)), Counter()
    for level in levels:
        assert {source for source, _ in level} <= have
        for source, target in level:
            assert target not in have
            sends[source] += 1
        have |= {target for _, target in level}
    assert have == set(range(holders + others))
    assert max(sends.values(), default=0) <= 4 * len(levels)
    assert max((count for source, count in sends.items() if source >= holders), default=0) <= 4
    assert len(levels) <= 6


def test_collectives_send_one_parcel_of_a_device_in_a_round():
    rng = random.Random(0)
    kinds = [((2,), np.dtype(np.float32)), ((), np.dtype(np.uint32))]
    for _ in range(50):
        parcels = [
            Parcel(0, source, None, target, *rng.choice(kinds))
            for source, target in (rng.sample(EIGHT, 2) for _ in range(rng.randrange(1, 20)))
        ]
        rounds = in_rounds(parcels)
        assert sorted(at for members in rounds for at in members) == list(range(len(parcels)))
        for members in rounds:
            chosen = [parcels[at] for at in members]
            assert len({(each.shape, each.dtype) for each in chosen}) == 1
            assert len({each.source for each in chosen}) == len({each.target for each in chosen}) == len(chosen)


def test_the_transport_follows_the_platform_and_the_environment(monkeypatch):
    assert preferred("cpu", transfer=True) == "transfer"
    assert preferred("cpu", transfer=False) == "sockets"
    assert preferred("gpu", transfer=True) == "collectives"
    monkeypatch.setenv("MMRUNTIME_TRANSPORT", "sockets")
    assert forced() == "sockets"
    monkeypatch.setenv("MMRUNTIME_TRANSPORT", "auto")
    assert forced() is None
    monkeypatch.setenv("MMRUNTIME_TRANSPORT", "pigeons")
    with pytest.raises(
        ValueError, match="MMRUNTIME_TRANSPORT must be auto, transfer, sockets or collectives, got 'pig"
    ):
        forced()
    with pytest.raises(ValueError, match="init: transport must be auto"):
        check_transport("init: transport", "tcp")


def test_messages_of_different_calls_have_different_numbers():
    one, other = Group((0, 1)), Group((0, 1))
    assert one.called(b"train") == other.called(b"train")
    first = one.called(b"train")
    assert first != other.called(b"evaluate")
    assert one.called(b"train") != other.called(b"train"), "and so they stay, whatever follows"
    assert Group((0, 2)).called(b"train") != Group((0, 1)).called(b"train")
    assert first % (1 << MESSAGE_BITS) == 0
    assert first < 1 << 50


def test_differences_are_shown_with_both_values():
    one = {"the equations": "a = b\nc = mul d 0.5", "the schedule": "1f1b", "x": "1", "y": ""}
    other = {"the equations": "a = b\nc = mul d 0.25", "the schedule": "", "x": "2", "y": "3" * 1000}
    text = disagreement("train", (0, 3), list(one), one, other, [4, 5], "Do something.")
    lines = text.splitlines()
    assert lines[0] == "mjit: processes 0 and 3 do not agree on train. They differ in:"
    assert lines[1:4] == ["  the equations:", "    process 0: c = mul d 0.5", "    process 3: c = mul d 0.25"]
    assert "    process 3: (nothing)" in lines
    assert "  and in y" in lines
    assert lines[-2:] == ["  Process 0 differs from 4, 5 as well.", "Do something."]


def test_of_different_calls_only_what_they_are_is_shown():
    one = {"what they have come to": "how train is called", "the settings": ""}
    other = {"what they have come to": "train (not as before in the settings: now b, then a)", "the settings": "b"}
    lines = disagreement("train", (0, 1), list(one), one, other, [], "Do something.").splitlines()
    assert lines[1:4] == [
        "  what they have come to:",
        "    process 0: how train is called",
        "    process 1: train (not as before in the settings: now b, then a)",
    ]
    assert len(lines) == 5
    assert lines[4].startswith("Each process must make the same calls in the same order, with arguments of the same sh")


def test_what_has_changed_since_a_call_is_said_with_both_values():
    before = {"the settings": "x: 1\ny: 2", "the equations": "a"}
    assert changed({}, before) == changed(before, dict(before)) == ""
    now = {"the versions": "3", "the settings": "x: 1\ny: 3", "the equations": "b"}
    assert changed(before, now) == " (not as before in the settings: now y: 3, then y: 2)"
