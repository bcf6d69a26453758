"""Simulated numbers against published ones: worked tables, closed forms, golden orders."""

import itertools

import pytest

from mmruntime.schedules import make, names, simulate
from mmruntime.schedules._costs import stage_costs
from mmruntime.schedules._timing import TimedSchedule

COSTS = [(1, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1.2, 0.8)]
SIZES = [(p, m) for p in (1, 2, 3, 4, 6, 8) for m in (2 * p, 3 * p + 1, 8 * p)]

# name, chunks; then makespan, bubble, steady time per step and peak activations for p=4, m=8 and for p=8, m=32.
TABLE = [
    ("gpipe", 1, (33, 9, 33, 8), (117, 21, 117, 32)),
    ("1f1b", 1, (33, 9, 33, 4), (117, 21, 117, 8)),
    ("wavefront", 1, (33, 9, 33, 7), (117, 21, 117, 15)),
    ("interleaved-1f1b", 2, (28.5, 4.5, 28.5, 5.5), (106.5, 10.5, 106.5, 11.5)),
    ("interleaved-1f1b", 4, (26.25, 2.25, 26.25, 4.75), (101.25, 5.25, 101.25, 9.75)),
    ("looped-bfs", 2, (28.5, 4.5, 28.5, 8), (106.5, 10.5, 106.5, 32)),
    ("looped-bfs", 4, (26.25, 2.25, 26.25, 8), (101.25, 5.25, 101.25, 32)),
    ("zb-h1", 1, (27, 3, 27, 4), (103, 7, 103, 8)),
    ("zb-h2", 1, (27, 3, 24, 7), (103, 7, 96, 15)),
    ("zb-v", None, (25.5, 1.5, 24, 4), (99.5, 3.5, 96, 8)),
    ("dualpipe-v", None, (27, 3, 27, 4.5), (103, 7, 103, 8.5)),
    ("dualpipe", 1, (26, 2, 26, 5), (102, 6, 102, 9)),
    # MultiMesh's own ZB-H2 keeps every microbatch up to 2p from F to W.
    ("zero-bubble-h2", 1, (27, 3, 24, 8), (103, 7, 96, 16)),
]


@pytest.mark.parametrize(
    ("name", "chunks", "size", "row"),
    [
        (name, chunks, size, row)
        for name, chunks, *rows in TABLE
        for size, row in zip([(4, 8), (8, 32)], rows, strict=True)
    ],
)
def test_worked_table(name, chunks, size, row):
    simulation = simulate(make(name, *size, chunks))
    assert (simulation.makespan, simulation.bubble, simulation.steady, max(simulation.live)) == row
    ideal = 3 * size[1]
    assert simulation.bubble_fraction == pytest.approx((row[0] - ideal) / row[0])
    assert simulate(make(name, *size, chunks), barrier=False).bubble == pytest.approx(row[2] - ideal)


@pytest.mark.parametrize(
    ("costs", "zb_h1", "zb_h2", "zb_v"),
    [((1, 2, 1), 142, 135, 135), ((2, 2, 1), 181, 174, 167), ((1, 1.2, 0.8), 105.8, 103, 100.2)],
)
def test_makespans_with_other_costs(costs, zb_h1, zb_h2, zb_v):
    spans = [simulate(make(name, 8, 32), *costs).makespan for name in ("zb-h1", "zb-h2", "zb-v")]
    assert spans == pytest.approx([zb_h1, zb_h2, zb_v])


@pytest.mark.parametrize(
    ("name", "chunks", "makespan"),
    [
        ("1f1b", 1, 134),
        ("wavefront", 1, 120.5),
        ("interleaved-1f1b", 2, 114),
        ("interleaved-1f1b", 4, 116.75),
        ("zb-h1", 1, 110),
        ("zb-h2", 1, 104.75),
        ("zb-v", None, 108.25),
    ],
)
def test_latency(name, chunks, makespan):
    assert simulate(make(name, 8, 32, chunks), latency=0.25).makespan == makespan


@pytest.mark.parametrize(
    ("name", "chunks", "rate"),
    [("1f1b", 1, 0.2431), ("interleaved-1f1b", 3, 0.1090), ("zb-h1", 1, 0.1585), ("zb-h2", 1, 0.1083)],
)
def test_bubble_rates_of_the_zero_bubble_paper(name, chunks, rate):
    """arXiv:2401.10241, table 5: the 1.5B model on 8 stages, its measured costs in milliseconds."""
    simulation = simulate(make(name, 8, 24, chunks), 18.522, 18.086, 9.337, latency=0.601)
    assert simulation.bubble_fraction == pytest.approx(rate, abs=5e-5)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_bubble_and_memory_of_gpipe_1f1b_and_eager_1f1b(p, m, costs):
    for name, live in (
        ("gpipe", [m] * p),
        ("1f1b", [p - s for s in range(p)]),
        ("wavefront", [2 * (p - s) - 1 for s in range(p)]),
    ):
        simulation = simulate(make(name, p, m), *costs)
        assert simulation.bubbles == pytest.approx([(p - 1) * sum(costs)] * p)
        assert simulation.bubble_fraction == pytest.approx((p - 1) / (m + p - 1))
        assert simulation.live == tuple(min(m, most) for most in live)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_bubble_and_memory_of_interleaving(p, m, chunks, costs):
    """arXiv:2104.04473 for m divisible by p; groups of p or more keep the bubble for any m >= p."""
    for name in ("interleaved-1f1b", "looped-bfs"):
        simulation = simulate(make(name, p, m, chunks), *costs)
        assert simulation.bubble == pytest.approx((p - 1) * sum(costs) / chunks)
        assert simulation.bubble_fraction == pytest.approx((p - 1) / (chunks * m + p - 1))
    if m % p == 0:
        assert max(simulate(make("interleaved-1f1b", p, m, chunks)).live) == pytest.approx(p + (p - 1) / chunks)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_bubble_and_memory_of_the_zero_bubble_family(p, m, costs):
    """arXiv:2401.10241, table 2; M_B is what a microbatch keeps until its input half, M_W until its weight half."""
    forward, inputs, weights = costs
    sizes = {"activation_bytes": 34, "weight_activation_bytes": 32}
    first = simulate(make("zb-h1", p, m), *costs, **sizes)
    assert first.bubble == pytest.approx((p - 1) * (forward + inputs - weights))
    assert first.live == (p,) * p
    assert first.peak_bytes == pytest.approx([(p - s) * 34 + s * 32 for s in range(p)])
    second = simulate(make("zb-h2", p, m), *costs, barrier=False, **sizes)
    assert second.makespan == pytest.approx(m * sum(costs) + (p - 1) * max(forward, forward + inputs - 2 * weights))
    assert second.bubble == pytest.approx((p - 1) * max(0, forward + inputs - 2 * weights))
    if m > 2 * p:
        assert second.live == (2 * p - 1,) * p
        assert second.peak_bytes == pytest.approx([(2 * (p - s) - 1) * 34 + 2 * s * 32 for s in range(p)])


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_bubble_and_memory_in_the_v_placement(p, m):
    zb_v = simulate(make("zb-v", p, m))
    assert (zb_v.steady, max(zb_v.live)) == (3 * m, p)
    dual = simulate(make("dualpipe-v", p, m))
    assert (dual.bubble, max(dual.live)) == (p - 1, p + 0.5)
    # Half and two thirds of the bubble of 1F1B in the paper, arXiv:2405.15362.
    half, least = simulate(make("v-half", p, m)), simulate(make("v-min", p, m))
    assert half.bubble <= (p - 1) * 3 / 2
    assert max(half.live) <= (p + 2) / 2
    assert least.bubble <= (p - 1) * 2
    assert max(least.live) <= (p + 4) / 3


@pytest.mark.parametrize("costs", [(1, 1, 1), (2, 2, 2)])
@pytest.mark.parametrize("fused", [None, 2.5])
def test_bubble_of_dualpipe_v(costs, fused):
    """(p-1)(F&B + tB - 3tW)/2 of the DualPipe repository, rescaled; tF = tI = tW, where it is exact."""
    forward, inputs, weights = costs
    pair = sum(costs) if fused is None else fused * forward
    simulation = simulate(make("dualpipe-v", 4, 16), *costs, fused=pair)
    expected = 3 * (pair + inputs + weights - 3 * weights) / 2
    if fused is None:
        assert simulation.bubble == expected
        assert simulate(make("dualpipe-v", 4, 16), *costs, fused_release="computed").bubble == expected / 2
    else:
        assert simulation.makespan < simulate(make("dualpipe-v", 4, 16), *costs).makespan


@pytest.mark.parametrize(("p", "m"), [(p, m) for p in (2, 4, 6, 8) for m in (2 * p, 3 * p, 8 * p)])
def test_bubble_and_memory_of_dualpipe(p, m):
    """(p/2-1)(F&B + tB - 3tW) and p+1 activations of the DualPipe repository, where tF = tI = tW."""
    simulation = simulate(make("dualpipe", p, m))
    assert simulation.bubbles == ((p / 2 - 1) * (3 + 2 - 3),) * p
    assert simulation.live == (p + 1,) * p
    assert simulate(make("dualpipe", p, m), fused_release="computed").bubble == (p - 2) / 2


def test_dualpipe_is_the_published_figure():
    """Figure 5 of arXiv:2412.19437, read cell by cell: 8 ranks, 20 microbatches, 66 units of time, 6 of them idle."""
    simulation = simulate(make("dualpipe", 8, 20))
    assert (simulation.makespan, simulation.bubbles) == (66, (6,) * 8)


def test_dualpipe_of_an_odd_number_of_submeshes_has_the_bubble_of_one_more():
    for p, m in ((3, 12), (5, 20)):
        assert simulate(make("dualpipe", p, m)).makespan <= simulate(make("dualpipe", p + 1, m)).makespan


def per_stage(name: str, p: int, m: int, chunks: int = 1):
    """Every stage costs F=1, B=2 and counts one live microbatch, however many share a submesh."""
    return simulate(make(name, p, m, chunks), [1] * p * chunks, [1] * p * chunks, [1] * p * chunks)


@pytest.mark.parametrize(
    ("name", "p", "m", "chunks", "makespan", "live"),
    [
        ("gpipe", 2, 4, 1, 15, (4, 4)),
        ("wavefront", 2, 4, 1, 15, (3, 1)),
        ("1f1b", 2, 4, 1, 15, (2, 1)),
        ("gpipe", 4, 8, 1, 33, (8, 8, 8, 8)),
        ("wavefront", 4, 8, 1, 33, (7, 5, 3, 1)),
        ("1f1b", 4, 8, 1, 33, (4, 3, 2, 1)),
        ("gpipe", 4, 8, 2, 57, (16, 16, 16, 16)),
        ("wavefront", 4, 8, 2, 57, (11, 9, 7, 5)),
        ("wavefront", 4, 6, 1, 27, (6, 5, 3, 1)),
        ("wavefront", 8, 32, 1, 117, (15, 13, 11, 9, 7, 5, 3, 1)),
        ("1f1b", 8, 32, 1, 117, (8, 7, 6, 5, 4, 3, 2, 1)),
        ("zero-bubble-h2", 4, 8, 1, 27, (8, 8, 8, 8)),
        ("zero-bubble-h2", 4, 12, 1, 39, (8, 8, 8, 8)),
        ("zero-bubble-h2", 4, 6, 1, 21, (6, 6, 6, 6)),
    ],
)
def test_what_multimesh_orders_cost(name, p, m, chunks, makespan, live):
    simulation = per_stage(name, p, m, chunks)
    assert simulation.makespan == makespan
    assert tuple(most * chunks for most in simulation.live) == live


GOLDEN = {
    ("wavefront", 2, 4): """
        F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3
        F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3
    """,
    ("wavefront", 4, 8): """
        F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 F0.6 B0.0 F0.7 B0.1 B0.2 B0.3 B0.4 B0.5 B0.6 B0.7
        F1.0 F1.1 F1.2 F1.3 F1.4 B1.0 F1.5 B1.1 F1.6 B1.2 F1.7 B1.3 B1.4 B1.5 B1.6 B1.7
        F2.0 F2.1 F2.2 B2.0 F2.3 B2.1 F2.4 B2.2 F2.5 B2.3 F2.6 B2.4 F2.7 B2.5 B2.6 B2.7
        F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 F3.3 B3.3 F3.4 B3.4 F3.5 B3.5 F3.6 B3.6 F3.7 B3.7
    """,
    ("gpipe", 2, 4): """
        F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3
        F1.0 F1.1 F1.2 F1.3 B1.0 B1.1 B1.2 B1.3
    """,
    ("zero-bubble-h2", 2, 4): """
        F0.0 F0.1 F0.2 B0.0 F0.3 W0.0 B0.1 W0.1 B0.2 W0.2 B0.3 W0.3
        F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 W1.0 B1.3 W1.1 W1.2 W1.3
    """,
    ("zero-bubble-h2", 4, 8): """
        F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 F0.6 B0.0 F0.7 W0.0 B0.1 W0.1 B0.2 W0.2 B0.3 W0.3 B0.4 W0.4 B0.5 W0.5 B0.6 W0.6 B0.7 W0.7
        F1.0 F1.1 F1.2 F1.3 F1.4 B1.0 F1.5 B1.1 F1.6 B1.2 F1.7 W1.0 B1.3 W1.1 B1.4 W1.2 B1.5 W1.3 B1.6 W1.4 B1.7 W1.5 W1.6 W1.7
        F2.0 F2.1 F2.2 B2.0 F2.3 B2.1 F2.4 B2.2 F2.5 B2.3 F2.6 B2.4 F2.7 W2.0 B2.5 W2.1 B2.6 W2.2 B2.7 W2.3 W2.4 W2.5 W2.6 W2.7
        F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 F3.3 B3.3 F3.4 B3.4 F3.5 B3.5 F3.6 B3.6 F3.7 W3.0 B3.7 W3.1 W3.2 W3.3 W3.4 W3.5 W3.6 W3.7
    """,  # noqa: E501
}


@pytest.mark.parametrize(("name", "p", "m"), GOLDEN)
def test_golden_orders_of_multimesh(name, p, m):
    """There the input half is called B as well."""
    schedule = make(name, p, m)
    rows = [
        " ".join(f"{'B' if a.kind == 'I' else a.kind}{a.stage}.{a.microbatch}" for a in row) for row in schedule.rows
    ]
    assert rows == [line.strip() for line in GOLDEN[name, p, m].strip().splitlines()]


class TestSimulate:
    def test_timeline(self):
        events = simulate(make("1f1b", 2, 1)).timeline
        assert [(str(each.action), each.submesh, each.start, each.end) for each in events] == [
            ("0F0", 0, 0, 1),
            ("1F0", 1, 1, 2),
            ("1B0", 1, 2, 4),
            ("0B0", 0, 4, 6),
        ]

    def test_one_number_is_the_cost_of_a_submesh_sized_stage(self):
        for chunks in (1, 2, 4):
            assert simulate(make("gpipe", 2, 6, chunks), 1, 2, 3).busy == pytest.approx((36, 36))
        three = simulate(make("gpipe", 2, 6, placement=(0, 1, 0)), 3)
        assert three.busy == pytest.approx((2 * 6 * 2 * (3 + 2) / 3, 6 * 2 * (3 + 2) / 3))

    def test_a_sequence_is_the_cost_of_each_stage(self):
        simulation = simulate(make("1f1b", 2, 1), [1, 2], [3, 4], [5, 6])
        assert simulation.makespan == 1 + 2 + 4 + 6 + 3 + 5
        assert simulation.busy == (9, 12)

    def test_whole_backward_may_cost_less_than_its_halves(self):
        assert simulate(make("1f1b", 2, 4), backward=1.5).busy == (10, 10)
        assert simulate(make("zb-h1", 2, 4), backward=1.5).busy == (12, 12)

    def test_live_counts_three_stages_on_two_submeshes(self):
        assert simulate(make("gpipe", 2, 3, placement=(0, 1, 0))).live == (4, 2)

    def test_links_carry_one_output_at_a_time(self):
        schedule = make("gpipe", 2, 3)
        free = simulate(schedule, transfer_bytes=8, bandwidth=8)
        assert free.makespan == simulate(schedule, latency=1).makespan
        busy = simulate(schedule, transfer_bytes=16, bandwidth=8)
        # Forwards end at 1, 2, 3; their outputs arrive at 3, 5, 7.
        assert busy.starts[1][:3] == (3, 5, 7)
        assert simulate(schedule, latency=2).starts[1][:3] == (3, 4, 5)

    def test_fused_pairs_release_at_the_end(self):
        schedule = make("dualpipe-v", 2, 4)
        starts = dict(zip(schedule.rows[1], simulate(schedule).starts[1], strict=True))
        ends = dict(zip(schedule.rows[1], simulate(schedule).ends[1], strict=True))
        for first in schedule.fused & set(schedule.rows[1]):
            second = schedule.rows[1][schedule.rows[1].index(first) + 1]
            assert ends[first] == starts[second]

    def test_empty_row(self):
        simulation = simulate(make("gpipe", 2, 2, placement=(1, 1)))
        assert simulation.busy == (0, 24 / 2)
        assert simulation.steady == 12

    def test_no_cost_at_all(self):
        simulation = simulate(make("zb-v", 2, 4), 0, 0, 0)
        assert (simulation.makespan, simulation.steady, simulation.bubble_fraction) == (0, 0, 0)

    def test_invalid_schedule(self):
        schedule = make("gpipe", 2, 2)
        rows = (schedule.rows[0][::-1], schedule.rows[1])
        with pytest.raises(ValueError, match=r"0B1 comes before 0F1, which it needs"):
            simulate(type(schedule)("mine", rows, (0, 1), 2, 2))

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"forward": -1}, r"forward must be finite and at least 0; got -1"),
            ({"forward": [1, 2, 3]}, r"forward gives 3 costs for 2 stages. Give one for each \(virtual\) stage"),
            ({"backward_weight": float("nan")}, r"backward_weight must be finite"),
            ({"latency": -1}, r"latency must be at least 0 and bandwidth above 0; got latency=-1"),
            ({"bandwidth": 0}, r"bandwidth=0"),
            ({"fused_release": "soon"}, r"fused_release must be 'end' or 'computed'; got 'soon'"),
            ({"weight_activation_bytes": 1}, r"a part of activation_bytes, which is missing. Give both"),
            (
                {"activation_bytes": 1, "weight_activation_bytes": [1, 2]},
                r"weight_activation_bytes of stage 1 is 2, more than its activation_bytes 1",
            ),
        ],
    )
    def test_bad_options(self, options, text):
        with pytest.raises(ValueError, match=text):
            simulate(make("gpipe", 2, 2), **options)

    @pytest.mark.parametrize("name", names())
    def test_nothing_overlaps_and_inputs_come_first(self, name):
        simulation = simulate(make(name, 3, 7), 1, 1.5, 0.5, latency=0.25)
        for starts, ends in zip(simulation.starts, simulation.ends, strict=True):
            assert all(end <= start + 1e-9 for end, start in zip(ends, starts[1:], strict=False))
        ends = {event.action: event.end for event in simulation.timeline}
        for event in simulation.timeline:
            action, last = event.action, simulation.schedule.num_stages - 1
            for other in ends:
                needed = other.microbatch == action.microbatch and (
                    (action.kind == other.kind == "F" and other.stage == action.stage - 1)
                    or (action.kind in "BI" and other.kind in "BI" and other.stage == action.stage + 1 <= last)
                )
                if needed:
                    hop = simulation.schedule.placement[other.stage] != event.submesh
                    assert ends[other] + 0.25 * hop <= event.start + 1e-9

    def test_steady_is_the_limit_of_many_steps(self):
        for name, costs in itertools.product(("zb-h2", "zb-v", "v-half"), COSTS):
            schedule = make(name, 3, 8)
            simulation = simulate(schedule, *costs)
            forward, inputs, weights = costs
            all_costs = stage_costs(schedule.num_stages, 3, forward, inputs, weights, None)
            timed = TimedSchedule(schedule.rows, schedule.homes, 8, all_costs)
            finish = [row[-1] for row in simulation.ends]
            for _ in range(400):
                before, finish = finish, timed.run(finish).finish
            assert max(finish) - max(before) == pytest.approx(simulation.steady)
