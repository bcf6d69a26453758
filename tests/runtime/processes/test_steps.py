"""Steps over several processes: real ones, on this machine, against one process bit for bit.

A job takes seconds of CPU to start, so each holds several checks (see checks.py).
"""

import pytest

from tests.runtime.processes import checks
from tests.runtime.processes.jobs import run_all


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What one process computes."""
    path = str(tmp_path_factory.mktemp("saved") / "steps.npz")
    checks.save_trained(path)
    return path


def test_two_processes(saved, tmp_path):
    outputs = run_all(
        "checks:several",
        2,
        2,
        "kinds",
        f"same_as_saved={saved}==1f1b,interleaved-1f1b",
        "inspected",
        "gathered",
        "held_back",
        "given_away",
        "alone",
        "followed",
        "captured",
        "other_entries",
        f"checkpointed={tmp_path}",
        "eager_tasks",
        "invalid",
        "disagreements",
    )
    assert all(output.rstrip().endswith("done") for output in outputs)


@pytest.mark.slow
def test_stages_over_several_processes_in_any_order(saved, tmp_path):
    # Several processes send something to one, for one transfer.
    calls = (
        "four_stages",
        f"same_as_saved={saved}=1,3,2,0=zb-h1,1f1b",
        "crossings=20=sockets",
        "gathered",
        "other_entries",
    )
    run_all("checks:several", 4, 1, *calls, f"checkpointed={tmp_path}")


@pytest.mark.slow
def test_forward_passes_that_run_once_more(tmp_path):
    path = str(tmp_path / "steps.npz")
    checks.once_more(path)
    run_all("checks:once_more", 2, 2, path)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["", "0,2,1,3"])
def test_slices_of_sequences_and_tasks_of_other_kinds(tmp_path, order):
    calls = [f"{name}={tmp_path / name}.npz" for name in ("sliced", "other_tasks")]
    run_all("checks:several", 1, 4, *calls)
    run_all("checks:several", 2, 2, *(f"{call}={order}" for call in calls))


@pytest.mark.slow
def test_every_transport(saved):
    calls = [f"with_transport={name}=kinds" for name in ("sockets", "collectives")]
    calls += ["with_transport=sockets=held_back"]
    calls += [f"with_transport={name}=same_as_saved={saved}==1f1b" for name in ("sockets", "collectives")]
    run_all("checks:several", 2, 2, "crossings", *calls)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["transfer", "sockets", "collectives"])
@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (4, 2), (8, 1)])
def test_arrays_between_any_layouts(processes, devices, transport, saved):
    training = f"with_transport={transport}=same_as_saved={saved}=5,0,7,2"
    run_all("checks:several", processes, devices, "crossings=150", "given_away", training, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "devices", "order"),
    [(1, 4, ""), (2, 2, ""), (2, 2, "0,2,1,3"), (4, 1, ""), (4, 1, "1,3,2,0"), (2, 4, "6,1,4,0"), (8, 1, "7,0,3,2")],
)
def test_all_schedules_on_all_layouts_of_processes(saved, processes, devices, order):
    run_all("checks:several", processes, devices, f"same_as_saved={saved}={order}")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["0,2,1,3", "3,0,2,1"])
def test_values_of_all_kinds_with_stages_over_both_processes(order):
    run_all("checks:several", 2, 2, f"kinds={order}")
