"""The schedule value, the named schedules, validation, custom schedules and the text picture."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmruntime.schedules
from mmruntime.schedules import Action, Auto, Schedule, custom, draw, html, make, names, simulate, svg

pytestmark = pytest.mark.quick

PATTERNS = [(0,), (0, 0), (0, 1, 0), (1, 0), (0, 1, 2, 1, 0), (0, 0, 1), (0, 1, 0, 1, 1, 0, 2)]
ANY_PLACEMENT = ["gpipe", "1f1b", "wavefront", "looped-bfs", "zb-h1", "zb-h2", "zero-bubble-h2"]
V_SHAPED = ["zb-v", "v-half", "v-min", "dualpipe-v"]


def error_text(call, *args, kind=ValueError, **kwargs) -> str:
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def assert_in_order(schedule: Schedule) -> None:
    """Microbatches of one stage and kind run in order, and so do all that add to one gradient.

    Where they come from both ends, each half of them is in order.
    """
    order, count = defaultdict(list), Counter()
    halfway = -(-schedule.num_microbatches // 2) if schedule.replicas else schedule.num_microbatches
    for row in schedule.rows:
        for action in row:
            for kind in (action.kind, "gradient") if action.kind in "BW" else (action.kind,):
                order[action.stage, kind, action.microbatch < halfway].append(action.microbatch)
                count[action.stage, kind] += 1
    assert all(each == sorted(each) for each in order.values())
    assert all(number == schedule.num_microbatches for key, number in count.items() if key[1] in ("F", "gradient"))


def without_jax(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter where importing JAX or NumPy fails."""
    root = Path(mmruntime.schedules.__file__).parents[2]
    block = "import sys; sys.modules['jax'] = sys.modules['numpy'] = None; "
    return subprocess.run(
        [sys.executable, "-c", f"{block}sys.path.insert(0, {str(root)!r}); {code}"], capture_output=True, text=True
    )


def test_needs_no_jax():
    run = without_jax("from mmruntime.schedules import make; print(make('1f1b', 2, 4).num_stages)")
    assert (run.stdout, run.stderr) == ("2\n", "")


def test_the_jax_guard_can_fail():
    assert "ModuleNotFoundError" in without_jax("import jax").stderr


class TestAction:
    def test_text(self):
        assert str(Action("F", 2, 0)) == "2F0"
        assert Action.parse(" 12W3 ") == Action("W", 12, 3)

    def test_bad_text_shows_the_form(self):
        assert "'F0' is not an action. Write stage, kind and microbatch, as in 2F0" in error_text(Action.parse, "F0")

    def test_is_frozen(self):
        with pytest.raises(AttributeError):
            Action("F", 0, 0).stage = 1


class TestSchedule:
    def test_prints_as_a_grid(self):
        assert str(make("1f1b", 2, 3)) == (
            "<Schedule '1f1b': 2 submeshes, 2 stages, 3 microbatches, 12 actions>\n"
            "submesh 0: 0F0 0F1 0B0 0F2 0B1 0B2\n"
            "submesh 1: 1F0 1B0 1F1 1B1 1F2 1B2"
        )

    def test_long_rows_are_cut(self):
        assert str(make("gpipe", 1, 50)).endswith("0F23 ...")

    def test_equal_values_are_equal(self):
        assert make("1f1b", 2, 3) == make("1f1b", 2, 3)
        assert hash(make("1f1b", 2, 3)) == hash(make("1f1b", 2, 3))
        assert make("1f1b", 2, 3) != make("gpipe", 2, 3)

    def test_csv_text(self):
        text = make("1f1b", 2, 3).to_csv()
        assert text == "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"

    @pytest.mark.parametrize("name", names())
    def test_csv_round_trip(self, name):
        schedule = make(name, 3, 7)
        assert Schedule.from_csv(schedule.to_csv(), name) == schedule

    def test_csv_skips_empty_cells(self):
        assert Schedule.from_csv("0F0,,\n,1F0,1B0\n").rows[1] == (Action("F", 1, 0), Action("B", 1, 0))

    def test_csv_marks_fused_pairs_as_pytorch_does(self):
        schedule = make("dualpipe-v", 2, 4)
        assert "(1F3;2B1)OVERLAP_F_B" in schedule.to_csv()
        assert "1F3+ 2B1" in str(schedule)

    def test_csv_error_names_line_and_cell(self):
        assert "line 2, cell 1: 'nonsense' is not an action" in error_text(Schedule.from_csv, "0F0\nnonsense\n")

    def test_stage_on_two_rows(self):
        text = error_text(Schedule.from_csv, "0F0,1F0\n1B0,0B0")
        assert (
            "Stage 1 appears in rows 0 and 1 for microbatch 0: its backward pass needs what its forward pass left on "
            "its submesh. Move 1B0 to row 0."
        ) in text
        assert "submesh 1: [1B0] 0B0" in text

    def test_missing_stage(self):
        assert "Stages must be numbered 0 to 2 without gaps, but [1] appear nowhere." in error_text(
            Schedule.from_csv, "0F0,2F0"
        )

    def test_nothing(self):
        assert "The schedule has no actions" in error_text(Schedule.from_csv, "\n")

    def test_splits_backward(self):
        assert make("zb-h1", 2, 4).splits_backward
        assert make("dualpipe-v", 2, 4).splits_backward
        assert not make("1f1b", 2, 4).splits_backward

    def test_forward_only(self):
        forward = make("zb-v", 2, 4).forward_only()
        forward.validate()
        assert not forward.has_backward
        assert simulate(forward).makespan == 5


class TestMake:
    def test_names(self):
        assert names() == (
            "gpipe",
            "1f1b",
            "wavefront",
            "interleaved-1f1b",
            "looped-bfs",
            "zb-h1",
            "zb-h2",
            "zb-v",
            "v-half",
            "v-min",
            "dualpipe-v",
            "dualpipe",
            "zero-bubble-h2",
        )

    @pytest.mark.parametrize(
        ("alias", "name"),
        [("fill-drain", "gpipe"), ("breadth-first", "gpipe"), ("prefetch-wavefront", "wavefront")],
    )
    def test_aliases(self, alias, name):
        assert make(alias, 2, 4) == make(name, 2, 4)

    def test_unknown_name_lists_the_valid_ones_and_the_nearest(self):
        text = error_text(make, "1F1", 2, 4)
        assert text.startswith(
            "Unknown schedule '1F1'. Did you mean '1f1b'? Known schedules: 1f1b, auto, breadth-first,"
        )
        assert "Did you mean" not in error_text(make, "qqqq", 2, 4)

    @pytest.mark.parametrize("what", ["num_stages", "num_microbatches", "chunks"])
    def test_sizes_start_at_one(self, what):
        sizes = {"num_stages": 2, "num_microbatches": 4, "chunks": 2} | {what: -1}
        assert f"{what} must be a whole number of at least 1; got -1." in error_text(make, "gpipe", **sizes)

    @pytest.mark.parametrize("name", names())
    @pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
    @pytest.mark.parametrize("num_microbatches", [1, 2, 3, 4, 7, 10])
    def test_every_size_is_valid(self, name, num_stages, num_microbatches):
        for chunks in {"dualpipe": (1,)}.get(name, (None,) if name in V_SHAPED else (1, 2, 3)):
            schedule = make(name, num_stages, num_microbatches, chunks)
            schedule.validate()
            assert_in_order(schedule)
            assert schedule.num_stages == len(schedule.placement) == num_stages * (chunks or 2)

    @pytest.mark.parametrize("name", ANY_PLACEMENT)
    @pytest.mark.parametrize("placement", PATTERNS)
    @pytest.mark.parametrize("num_microbatches", [1, 3, 8])
    def test_any_placement(self, name, placement, num_microbatches):
        schedule = make(name, max(placement) + 1, num_microbatches, placement=placement)
        schedule.validate()
        assert_in_order(schedule)
        assert schedule.placement == placement

    def test_unused_submesh_has_an_empty_row(self):
        schedule = make("interleaved-1f1b", 4, 4, placement=(2, 1, 2, 1))
        schedule.validate()
        assert schedule.rows[0] == schedule.rows[3] == ()

    def test_patterns_may_number_submeshes_otherwise(self):
        make("zb-v", 3, 6, placement=(2, 0, 1, 1, 0, 2)).validate()
        make("interleaved-1f1b", 2, 6, placement=(1, 0, 1, 0)).validate()

    def test_pattern_that_does_not_suit(self):
        text = error_text(make, "zb-v", 2, 4, placement=(0, 1))
        assert "zb-v needs the V placement, such as (0, 1, 1, 0); got (0, 1)." in text
        assert "choose one of gpipe, 1f1b" in text
        assert "interleaved-1f1b needs the round-robin placement, such as (0, 1, 0, 1); got (0, 1, 0)." in error_text(
            make, "interleaved-1f1b", 2, 4, placement=(0, 1, 0)
        )

    def test_dualpipe_has_one_stage_on_each_submesh(self):
        assert "dualpipe needs one stage on each submesh, such as (0, 1); got (0, 1, 0, 1)." in error_text(
            make, "dualpipe", 2, 4, 2
        )

    def test_dualpipe_sends_microbatches_both_ways(self):
        schedule = make("dualpipe", 4, 8, placement=(2, 0, 1, 3))
        schedule.validate()
        assert (schedule.placement, schedule.replicas) == ((2, 0, 1, 3), ((3,), (1,), (0,), (2,)))
        assert [schedule.homes[stage * 8] for stage in range(4)] == [2, 0, 1, 3]
        assert [schedule.homes[stage * 8 + 7] for stage in range(4)] == [3, 1, 0, 2]
        assert schedule.stages_of(2) == (0, 3)
        assert schedule.forward_only().homes == schedule.homes
        odd = make("dualpipe", 3, 8)
        assert odd.replicas == ((2,), (), (0,))
        assert make("dualpipe", 2, 1).replicas == make("dualpipe", 1, 8).replicas == ()

    def test_v_schedules_have_two_chunks(self):
        assert "zb-v has two chunks on every submesh; got chunks=3." in error_text(make, "zb-v", 2, 4, 3)

    def test_placement_outside_of_the_submeshes(self):
        text = error_text(make, "gpipe", 2, 4, placement=(0, 2))
        assert "placement must give each stage a submesh from 0 to 1" in text
        assert "got (0, 2)" in text

    def test_delay(self):
        make("wavefront", 2, 5, delay=3).validate()
        assert make("wavefront", 2, 5, delay=3) != make("wavefront", 2, 5)
        assert "delay=1 must be at least the number of submeshes in use, 2." in error_text(
            make, "wavefront", 2, 4, delay=1
        )
        assert "delay is for wavefront and zero-bubble-h2 only" in error_text(make, "gpipe", 2, 4, delay=2)
        assert "got delay=2 for auto" in error_text(make, "auto", 2, 4, delay=2)

    def test_costs_are_for_auto(self):
        assert "forward, memory are for auto only: gpipe is the same order whatever the costs." in error_text(
            make, "gpipe", 2, 4, forward=2, memory=3
        )

    def test_one_chunk_of_interleaving_is_1f1b(self):
        assert make("interleaved-1f1b", 4, 8).rows == make("1f1b", 4, 8).rows

    def test_consecutive_stages_of_a_submesh_are_as_one(self):
        merged = simulate(make("1f1b", 3, 9, placement=(0, 0, 1, 1, 2, 2)))
        assert merged.live == (3, 2, 1)

    def test_classic_1f1b(self):
        schedule = make("1f1b", 4, 8)
        for submesh, row in enumerate(schedule.rows):
            warm_up = 4 - submesh
            kinds = "F" * warm_up + "BF" * (8 - warm_up) + "B" * warm_up
            assert "".join(action.kind for action in row) == kinds


class TestValidate:
    def check(self, text: str, **kwargs) -> str:
        return error_text(Schedule.from_csv(text).validate, **kwargs)

    def test_order_within_a_row(self):
        text = self.check("0F0,0B0\n1B0,1F0")
        assert "on submesh 1, 1B0 comes before 1F0, which it needs. Move 1F0 before 1B0." in text
        assert text.endswith("submesh 0: 0F0   0B0\nsubmesh 1: [1B0] [1F0]")

    def test_order_between_stages_of_a_row(self):
        assert "1F0 comes before 0F0" in self.check("1F0,0F0,1B0,0B0")

    def test_weight_half_before_input_half(self):
        assert "0W0 comes before 0I0" in self.check("0F0,0W0,0I0")

    def test_missing_action(self):
        text = self.check("0F0,0F1,0B0,0B1\n1F0,1F1,1B1")
        assert "1B0 is missing. Add 1B0, or the halves 1I0 and 1W0, to row 1." in text
        assert "1F0 1F1 1B1 [end]" in text
        assert "0F1 is missing. Add it to row 0." in self.check("0F0,0B0\n1F0,1F1,1B0,1B1")
        assert "0W0 is missing. Add 0W0 to row 0." in self.check("0F0,0I0")
        assert "0I0 is missing. Add 0I0 to row 0." in self.check("0F0,0W0")

    def test_repeated_action(self):
        text = self.check("0F0,0B0,0F0")
        assert "0F0 appears twice. Keep one." in text
        assert "[0F0] 0B0 [0F0]" in text

    def test_both_kinds_of_backward(self):
        text = self.check("0F0,0B0,0W0")
        assert "0W0 repeats work of 0B0: B is both halves of the backward pass. Keep 0B0, or 0I0 and 0W0." in text

    def test_deadlock_names_the_circle(self):
        text = self.check("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1")
        assert (
            "deadlock: submesh 0 waits at 0B0 for 1B0 of submesh 1; submesh 1 waits at 1F1 for 0F1 of submesh 0. "
            "Move 1B0 before 1F1 on submesh 1, or 0B0 later on submesh 0." in text
        )
        assert "[0B0] 0F1" in text
        assert "[1F1] 1B0" in text

    def test_deadlock_of_fused_pairs(self):
        rows = make("gpipe", 2, 2).rows
        order = Schedule.from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1")
        order.validate()
        pair = Schedule("x", order.rows, (0, 1), 2, 2, frozenset({Action("F", 0, 1)}))
        pair.validate()
        circle = Schedule.from_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1")
        assert "deadlock" in error_text(circle.validate)
        assert rows != order.rows

    def test_fused_pairs(self):
        def fuse(*actions: Action) -> Schedule:
            return Schedule("x", make("gpipe", 1, 2).rows, (0,), 1, 2, frozenset(actions))

        text = error_text(fuse(Action("F", 0, 0)).validate)
        assert "0F0 is fused with 0F1. Fuse a forward with a backward (B or I) right beside it." in text
        fuse(Action("F", 0, 1)).validate()
        assert "0B1 is fused with the end of its row." in error_text(fuse(Action("B", 0, 1)).validate)
        same = Schedule("x", make("1f1b", 1, 1).rows, (0,), 1, 1, frozenset({Action("F", 0, 0)}))
        assert "0F0 and 0B0 are fused, but one needs the other." in error_text(same.validate)
        assert "The fused actions ['3F3'] are not in any row." in error_text(fuse(Action("F", 3, 3)).validate)
        chain = Schedule.from_csv("(0F0;1B1)OVERLAP_F_B")
        three = Schedule("x", Schedule.from_csv("0F0,0F1,0B0,0F2,0B1,0B2").rows, (0,), 1, 3)
        both = Schedule("x", three.rows, (0,), 1, 3, frozenset({Action("F", 0, 1), Action("B", 0, 0)}))
        assert "0B0 is in two fused pairs. Leave 0F1 unfused." in error_text(both.validate)
        assert chain.fused == {Action("F", 0, 0)}

    def test_live_bound(self):
        make("1f1b", 4, 8).validate(live_bound=(4, 3, 2, 1))
        text = error_text(make("gpipe", 2, 3).validate, 2)
        assert "with 0F2 there are 3 live activations on submesh 0, 2 allowed." in text
        assert "Run a backward (B or W) before it, or allow 3, the peak of the row." in text
        assert "0F0 0F1 [0F2]" in text
        assert "live_bound gives 3 numbers for 2 submeshes." in error_text(make("gpipe", 2, 3).validate, (1, 2, 3))

    def test_wrong_row_stage_and_microbatch(self):
        rows = make("gpipe", 2, 2).rows
        swapped = Schedule("x", rows, (1, 0), 2, 2)
        assert "0F0 is in the row of submesh 0, but stage 0 lives on submesh 1. Move it to row 1." in error_text(
            swapped.validate
        )
        assert "1F0 names stage 1, but there are 1 stages. Use stages 0 to 0." in error_text(
            Schedule("x", (rows[1],), (0,), 1, 2).validate
        )
        assert "0F1 names microbatch 1, but there are 1. Use microbatches 0 to 0." in error_text(
            Schedule("x", rows, (0, 1), 2, 1).validate
        )
        bad = Schedule("x", ((Action("X", 0, 0),),), (0,), 1, 1)
        assert "0X0 has kind 'X'. Use F, B, I, W or R." in error_text(bad.validate)

    def test_replicas(self):
        def rows(first, second):
            return tuple(tuple(map(Action.parse, row.split())) for row in (first, second))

        good = Schedule("mine", rows("0F0 0B0 1F1 1B1", "1F0 1B0 0F1 0B1"), (0, 1), 2, 2, replicas=((1,), (0,)))
        good.validate()
        assert simulate(good).makespan == 11
        assert custom(good.to_csv()) == replace(good, name="custom")
        text = error_text(replace(good, rows=rows("0F0 0B0 1F1", "1F0 1B0 0F1 0B1 1B1")).validate)
        assert (
            "1B1 is in the row of submesh 1, but 1F1 in that of submesh 0: the activations of a microbatch stay "
            "on one submesh. Move it to row 0.\nsubmesh 0: 0F0 0B0 [1F1]\nsubmesh 1: 1F0 1B0 0F1   0B1 [1B1]"
        ) in text
        text = error_text(replace(good, replicas=((), (0,))).validate)
        assert "0F1 is in the row of submesh 1, but stage 0 lives on submeshes 0. Move it to one of these rows." in text
        text = error_text(replace(good, rows=rows("0F0 1F1 1B1", "1F0 1B0 0F1 0B1")).validate)
        assert "0B0, or the halves 0I0 and 0W0, to row 0." in text
        text = error_text(replace(good, rows=rows("0F0 0B0 1F1 1B1", "0B1 0F1 1F0 1B0")).validate)
        assert "on submesh 1, 0B1 comes before 0F1, which it needs." in text
        assert "Give one tuple of submeshes for each stage" in error_text(replace(good, replicas=((1,),)).validate)
        text = error_text(replace(good, replicas=((0,), ())).validate)
        assert "Stage 0 lives on submesh 0 and its replicas on (0,). Give different submeshes from 0 to 1." in text

    def test_shape(self):
        rows = make("gpipe", 2, 2).rows
        assert "at least one stage and one microbatch; got 0 stages" in error_text(Schedule("x", (), (), 0, 1).validate)
        assert "names the submesh of 1 stages, but there are 2 stages." in error_text(
            Schedule("x", rows, (0,), 2, 2).validate
        )
        assert "The placement puts stage 1 on submesh 2, but there are 2 rows" in error_text(
            Schedule("x", rows, (0, 2), 2, 2).validate
        )

    def test_last_in_first_out_is_allowed(self):
        Schedule.from_csv("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0").validate()

    @settings(deadline=None)
    @given(st.sampled_from(names()), st.integers(1, 4), st.integers(1, 6), st.data())
    def test_any_lost_action_is_noticed(self, name, num_stages, num_microbatches, data):
        schedule = make(name, num_stages, num_microbatches)
        submesh = data.draw(st.integers(0, num_stages - 1))
        position = data.draw(st.integers(0, len(schedule.rows[submesh]) - 1))
        row = schedule.rows[submesh]
        rows = (*schedule.rows[:submesh], row[:position] + row[position + 1 :], *schedule.rows[submesh + 1 :])
        damaged = Schedule(name, rows, schedule.placement, schedule.num_stages, num_microbatches)
        if num_stages == num_microbatches == 1 and schedule.num_stages == 1 and not damaged.has_backward:
            damaged.validate()  # what is left is a forward-only schedule
        else:
            assert "cannot run" in error_text(damaged.validate)


TASKS = {"up": ("F", 0), "down": ("B", 0)}


class TestCustom:
    def test_cells(self):
        expected = make("1f1b", 2, 2).rows
        assert custom([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]).rows == expected
        assert custom(expected).rows == expected

    def test_names_are_numbered_in_order(self):
        assert custom([["up", "up", "down", "down"]], tasks=TASKS).rows == make("gpipe", 1, 2).rows

    def test_names_with_microbatches(self):
        rows = [[(1, "up"), (1, "down"), (0, "up"), (0, "down")]]
        assert custom(rows, tasks=TASKS).to_csv() == "0F1,0B1,0F0,0B0\n"

    def test_object_and_function(self):
        class Mine:
            def rows(self, num_stages, num_microbatches):
                return make("gpipe", num_stages, num_microbatches).rows

        assert custom(Mine(), num_stages=2, num_microbatches=3).rows == make("gpipe", 2, 3).rows
        assert custom(Mine().rows, num_stages=2, num_microbatches=3).rows == make("gpipe", 2, 3).rows

    def test_text_and_file(self, tmp_path):
        text = make("zb-h1", 2, 3).to_csv()
        (tmp_path / "order.csv").write_text(text, encoding="utf-8")
        assert custom(text) == custom(tmp_path / "order.csv")
        assert custom(text).rows == make("zb-h1", 2, 3).rows

    def test_an_object_needs_sizes(self):
        text = error_text(custom, lambda p, m: [], kind=TypeError, num_stages=2)
        assert "say which with num_stages= and num_microbatches=; got num_stages=2 and num_microbatches=None." in text

    def test_name_that_is_not_there(self):
        text = error_text(custom, [["up", "dwn"]], tasks=TASKS)
        assert "There is no task 'dwn'. Did you mean 'down'? The tasks are down, up." in text
        assert text.endswith("submesh 0: up [dwn]")
        assert "There is no task 'qq'. The tasks are not given: pass tasks=." in error_text(custom, [[(0, "qq")]])

    def test_names_match_exactly(self):
        tasks = {"layer_1": ("F", 0), "layer_10": ("B", 0)}
        assert custom([["layer_1", "layer_10"]], tasks=tasks).to_csv() == "0F0,0B0\n"

    def test_counts(self):
        text = error_text(custom, [["up", "down", "down"]], tasks=TASKS)
        assert "Task 'up' has 1 microbatches, but there are 2. Name it once for each." in text
        assert "[up] down down" in text

    def test_not_an_action(self):
        text = error_text(custom, [["0F0", "x"]])
        assert "'x' is not an action." in text
        assert "0F0 [x]" in text
        assert "3 is not a cell of a schedule." in error_text(custom, [[3]], kind=TypeError)

    def test_is_validated(self):
        assert "0B0 is missing" in error_text(custom, "0F0,0F1,0B1")
        assert "with 0F1 there are 2 live activations" in error_text(custom, "0F0,0F1,0B0,0B1", live_bound=1)
        assert "0F2 is missing" in error_text(custom, "0F0,0F1,0B0,0B1", num_microbatches=3)
        assert "stage 0 lives on submesh 1" in error_text(custom, "0F0,0B0\n1F0,1B0", placement=(1, 0))


class TestDraw:
    def test_picture(self):
        assert draw(make("1f1b", 2, 3)) == (
            "1f1b: 2 submeshes, 2 stages, 3 microbatches; time 12, idle 25.0%\n"
            "submesh 0 |F0 F1 ......B0    F2 B1    ...B2    |\n"
            "submesh 1 |...F0 B0    F1 B1    F2 B2    ......|\n"
            "           0                                 12\n"
            "live 0    |111222222222222222222222222111111111| peak 2\n"
            "live 1    |000111111111111111111111111111000000| peak 1"
        )

    def test_chunks_differ_in_case(self):
        first = draw(make("zb-v", 2, 4)).splitlines()[1]
        assert first == "submesh 0 |F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 I2 w3 I3 W2 W3 ...|"

    def test_long_steps_fit_the_width(self):
        lines = draw(simulate(make("zb-h2", 8, 200), latency=0.3), width=100).splitlines()
        assert max(map(len, lines[1:9])) == 112
        assert lines[10].startswith("live 0    |4aff")
        assert lines[10].endswith("| peak 15")


class TestPictures:
    SVG = "{http://www.w3.org/2000/svg}"

    def test_svg_has_every_action_at_its_time(self):
        simulation = simulate(make("zb-v", 2, 4), latency=0.5)
        root = ElementTree.fromstring(svg(simulation, width=1000))
        titles = [each.text for each in root.iter(f"{self.SVG}title")]
        assert len(titles) == 48
        assert "0F0: forward, stage 0, microbatch 0, 0 to 0.5" in titles
        cells = [group.find(f"{self.SVG}rect") for group in root.iter(f"{self.SVG}g")]
        right = [float(cell.get("x")) + float(cell.get("width")) for cell in cells]
        assert max(right) == pytest.approx(1000 - 64, abs=0.02)

    def test_svg_labels_are_left_out_where_they_do_not_fit(self):
        assert ">F3</text>" in svg(simulate(make("1f1b", 2, 8)))
        assert ">F3</text>" not in svg(simulate(make("1f1b", 2, 200)))

    def test_svg_names_the_kinds_that_occur(self):
        text = svg(simulate(make("1f1b", 2, 3)))
        assert "whole backward" in text
        assert "input half" not in text
        assert "every other stage" not in text
        assert "every other stage" in svg(simulate(make("zb-v", 2, 3)))

    def test_html_needs_nothing_else(self):
        page = html(simulate(make("zb-h2", 2, 4), activation_bytes=1000))
        assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
        assert "One step behind a barrier takes <b>13</b>" in page
        assert ">peak bytes</th>" in page
        assert "<td>3,000</td>" in page
        assert make("zb-h2", 2, 4).to_csv() in page

    def test_names_are_escaped(self):
        page = html(simulate(custom("0F0,0B0", name="<b> & more")))
        assert "<h1>Schedule &lt;b&gt; &amp; more</h1>" in page

    def test_no_time_at_all(self):
        ElementTree.fromstring(svg(simulate(make("1f1b", 2, 2), 0, 0, 0)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate("1f1b"), "simulate: expected a Schedule, such as make(\"1f1b\", 4, 8); got '1f1b'"),
        (lambda: simulate(make("1f1b", 2, 2), forward="fast"), "forward must be a number, or a sequence of them"),
        (lambda: simulate(make("1f1b", 2, 2), forward=["a", 1]), "forward must be a number, or a sequence of them"),
        (
            lambda: simulate(make("1f1b", 2, 2), latency="low"),
            "latency and bandwidth must be numbers; got latency='low'",
        ),
        (lambda: draw("1f1b"), "draw: expected a Schedule, or a Simulation as simulate() returns it; got '1f1b'"),
        (
            lambda: svg(make("1f1b", 2, 2)),
            "svg: expected a Simulation, as simulate(schedule) returns it; got <Schedule",
        ),
        (lambda: html(3), "html: expected a Simulation, as simulate(schedule) returns it; got 3"),
        (lambda: Auto(memory=len), "Auto: memory must be a number, or one for each of them; got <built-in"),
        (lambda: custom(3), "custom: expected rows of cells, one row for each submesh; got 3"),
        (lambda: custom(["0F0"]), "custom: expected rows of cells, one row for each submesh; got ['0F0']"),
        (lambda: custom([["0F0"]], tasks=["up"]), "custom: tasks must map names to (kind, stage)"),
        (lambda: custom([["0F0"]], num_microbatches="1"), "custom: num_microbatches must be an integer; got '1'"),
        (lambda: custom([["0F0"]], placement="0"), "custom: placement must give each stage a submesh"),
    ],
    ids=lambda value: value.split()[0].rstrip(":") if isinstance(value, str) else "",
)
def test_wrong_types_are_told(call, message):
    assert message in error_text(call, kind=TypeError)


AGAIN = "0F0,0F1,0R0,0B0,0R1,0B1\n1F0,1B0,1F1,1B1\n"


def test_a_forward_that_runs_once_more():
    schedule = Schedule.from_csv(AGAIN)
    schedule.validate(live_bound=(1, 1))
    assert schedule.to_csv() == AGAIN
    assert schedule.recomputed == {(0, 0), (0, 1)}
    simulation = simulate(schedule, activation_bytes=(10, 10), input_bytes=(3, 3))
    # Both inputs, and the rest of one activation.
    assert simulation.peak_bytes == (13, 10)
    assert simulation.live == (1, 1)
    assert simulate(schedule, activation_bytes=10).peak_bytes == (20, 10)
    assert simulation.makespan == 9
    assert simulation.busy == (8, 6)
    assert draw(simulation).splitlines()[1] == "submesh 0 |F0 F1 R0 ...B0    R1 B1    |"
    assert draw(simulation).splitlines()[4] == "live 0    |000000111111111111111111111| peak 1"
    assert "forward once more" in html(simulation)
    assert not schedule.forward_only().recomputed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0,0R0", "0B0 comes before 0R0, which it needs"),
        ("0R0,0F0,0B0", "0R0 comes before 0F0, which it needs"),
        ("0F0,0R0,0R0,0B0", "0R0 appears twice"),
        ("0F0,0R0", "0R0 runs a forward once more, but no backward pass follows"),
        ("0F0,0R0,0I0", "0W0 is missing"),
    ],
)
def test_forwards_once_more_in_the_wrong_place(text, message):
    assert message in error_text(Schedule.from_csv(text).validate)


def test_a_forward_once_more_that_holds_too_much():
    assert "with 0R1 there are 2 live activations" in error_text(
        Schedule.from_csv("0F0,0F1,0R0,0R1,0B0,0B1").validate, 1
    )


def test_parts_of_activations_that_are_too_large():
    schedule = make("1f1b", 2, 2)
    assert "input_bytes of stage 0 is 3, more than its activation_bytes 2" in error_text(
        simulate, schedule, activation_bytes=(2, 2), input_bytes=(3, 3)
    )
    assert "input_bytes is a part of activation_bytes, which is missing" in error_text(
        simulate, schedule, input_bytes=3
    )


def test_a_placement_that_is_none():
    assert "placement must give each stage a submesh from 0 to 1" in error_text(make, "1f1b", 2, 2, placement=3)
