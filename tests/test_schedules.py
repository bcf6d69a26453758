"""The schedule value, the named schedules and the simulator."""

import pytest

from mmruntime.schedules import Action, Schedule, make, names, simulate

PATTERNS = [(0,), (0, 0), (0, 1, 0), (1, 0), (0, 1, 2, 1, 0), (0, 0, 1), (0, 1, 0, 1, 1, 0, 2)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "wavefront"])
@pytest.mark.parametrize("placement", PATTERNS)
@pytest.mark.parametrize("num_microbatches", [1, 2, 3, 5, 8])
def test_any_placement_gives_a_valid_schedule(name, placement, num_microbatches):
    schedule = make(name, max(placement) + 1, num_microbatches, placement=placement)
    schedule.validate()
    assert schedule.placement == placement
    for stage in range(len(placement)):
        for kind in "FB":
            order = [a.microbatch for row in schedule.rows for a in row if (a.stage, a.kind) == (stage, kind)]
            assert order == list(range(num_microbatches))


def test_csv_round_trip():
    schedule = make("1f1b", 2, 3)
    assert schedule.to_csv() == "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"
    assert Schedule.from_csv(schedule.to_csv(), "1f1b") == schedule


def test_unknown_name_lists_the_valid_ones():
    with pytest.raises(ValueError, match=r"Unknown schedule '1f1'. Did you mean '1f1b'\? Known schedules: .*gpipe"):
        make("1f1", 2, 4)


def test_names_are_canonical():
    assert set(names()) >= {"gpipe", "1f1b", "wavefront"}
    assert make("fill-drain", 2, 4) == make("gpipe", 2, 4)


def test_action_text():
    assert str(Action("F", 2, 0)) == "2F0"
    assert Action.parse("12W3") == Action("W", 12, 3)
    with pytest.raises(ValueError, match="'F0' is not an action. Write stage, kind and microbatch, as in 2F0"):
        Action.parse("F0")


def test_simulation_of_1f1b():
    simulation = simulate(make("1f1b", 4, 8))
    assert simulation.makespan == simulation.steady == 33
    assert simulation.bubble == 9
    assert simulation.live == (4, 3, 2, 1)
