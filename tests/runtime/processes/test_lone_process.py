"""A program that several processes run, and that forgot to say so."""

import re
import warnings

import jax
import pytest

import mmruntime as mm
from mmruntime._processes.start import said

SLURM = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "node[1-4]", "SLURM_PROCID": "2", "SLURM_JOB_ID": "7"}
RUN = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1234", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}


def make():
    return mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch):
    jax.devices()
    monkeypatch.setattr(said, "alone", False)


@pytest.mark.parametrize(
    ("variables", "who"),
    [
        pytest.param(RUN, "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID", id="variables"),
        pytest.param(RUN | {"MMREWRITE_RESTART": "0"}, "mmrewrite run", id="mmrewrite run"),
    ],
)
def test_a_program_that_did_not_join_its_processes_is_stopped(monkeypatch, variables, who):
    """Else every process would train all of the model by itself, and say nothing."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=re.escape(f"one of 2 processes by {who}")) as error:
        make()
    assert "Call mm.init() before JAX is used" in str(error.value)
    # Its other advice, followed.
    mm.init(distributed=False)
    assert make().devices.size == 2


def test_a_task_of_a_scheduler_is_warned(monkeypatch):
    """Tasks that belong to nothing are no mistake there: trials of a search, for example."""
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match=r"one of 4 processes by Slurm.*mm\.init\(distributed=False\)") as found:
        make()
    assert found[0].filename == __file__
    mm.init(distributed=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()


def test_variables_that_cannot_be_read_are_not_passed_over(monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "many")
    with pytest.raises(
        RuntimeError, match=r"may be one of several processes \(JAX_NUM_PROCESSES .* got 'many'\), and JAX"
    ):
        make()


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, id="pod of an indexed job"),
        pytest.param({"JAX_COORDINATOR_ADDRESS": "node1:1234"}, id="an address alone"),
    ],
)
def test_processes_of_an_unknown_number_are_warned(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match=r"may be one of several processes by .*mm\.init\(distributed=False\)"):
        make()


@pytest.mark.parametrize("variables", [{}, {"JAX_NUM_PROCESSES": "1"}, SLURM | {"SLURM_STEP_NUM_TASKS": "1"}])
def test_a_program_that_runs_alone_hears_nothing(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make().devices.size == 2
