"""Real processes of which one comes to grief: all others end in time, and say why."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmrewrite.launch.environment import environments, free_port

FAULTY = Path(__file__).with_name("faulty.py")
FAULTY_STEPS = Path(__file__).with_name("faulty_steps.py")
FAULTY_START = Path(__file__).with_name("faulty_start.py")
TIMEOUT = 6
# What the others say of the process with each fault.
SAID = {
    "kill": r"has died",
    "abort": r"has died",
    "fork": r"has died",
    "leave": r"has died",
    "stop": r"is stopped \(by SIGSTOP or a debugger\), and has said nothing for 4 s",
    "raise": r"has ended with ValueError: a bad batch",
    "exit": r"has ended its program",
    "loop": r"has been in a loop at .*faulty\.py:\d+ in bring_about for \d+ s",
    "pipe": r"cannot write its output, which nobody reads, at .*faulty\.py:\d+ in bring_about",
}
LAST = 6
AT_EXIT = 7


class Processes:
    """A program in several processes."""

    def __init__(self, folder, program, count, *arguments, devices=1):
        told = environments({**os.environ, "MMRUNTIME_FAULT_TIMEOUT": str(TIMEOUT)}, count, devices, free_port(), 0)
        self.outputs = [folder / f"{index}" for index in range(count)]
        self.running = []
        for environment, path in zip(told, self.outputs, strict=True):
            with path.open("w") as output:
                command = [sys.executable, str(program), *map(str, arguments)]
                self.running.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))

    def text(self, index):
        return self.outputs[index].read_text(errors="replace")

    def ended(self, index, within):
        return self.running[index].wait(timeout=within)

    def kill(self):
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def start(tmp_path):
    """Starts the program; nothing of it is left afterwards."""
    jobs = []

    def begin(fault, victim, step, count, program=FAULTY):
        arguments = (fault, victim, step) if program == FAULTY else (fault, victim, *step)
        jobs.append(Processes(tmp_path, program, count, *arguments))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()


def bring_about(job, victim, within=TIMEOUT):
    """Wait until the fault has happened, and until all others have ended."""
    deadline = time.monotonic() + 120
    while "fault" not in job.text(victim):
        assert time.monotonic() < deadline, job.text(victim)
        time.sleep(0.02)
    began = time.monotonic()
    others = [index for index in range(len(job.running)) if index != victim]
    statuses = [job.ended(index, within=60) for index in others]
    took = time.monotonic() - began
    assert statuses == [75] * len(others), "\n".join(map(job.text, others))
    # A second for messages, and the rest for a busy machine.
    assert took < within + 20, took
    return others


def check(job, fault, victim, step):
    # An abort takes six seconds, so that the watch of that process could still say why.
    for index in bring_about(job, victim, TIMEOUT + 6 if fault == "abort" else TIMEOUT):
        text = job.text(index)
        assert re.search(rf"mmruntime: process {index} of \d cannot go on: process {victim} {SAID[fault]}", text), text
        assert text.count("cannot go on") == 1
        if step < LAST:
            # A process may not have heard yet that all had come to the call before.
            call = f"call (?:{step}|{step + 1}) of step"
            waited = rf"It has waited for process \d for \d+\.\d s: {call}, task layer{index} forward, "
            assert re.search(waited + r"microbatch 2: float32\[16,16\] from submesh 1 to submesh 0\.", text), text
            assert re.search(rf"Who waits for whom: {index} -> \d", text), text
    if fault == "stop":
        job.running[victim].kill()
    status = job.ended(victim, within=20)
    assert status == {"kill": -9, "fork": -9, "stop": -9, "abort": -6, "raise": 1, "leave": 7}.get(fault, 75)


@pytest.mark.parametrize(
    ("fault", "victim", "step"),
    [
        ("kill", 1, 3),
        ("kill", 0, 3),
        ("stop", 1, 3),
        ("kill", 1, AT_EXIT),
        *(pytest.param(fault, 0, AT_EXIT, marks=pytest.mark.slow) for fault in ("kill", "stop", "leave")),
        pytest.param("exit", 0, 3, marks=pytest.mark.slow),
        pytest.param("loop", 2, 3, marks=pytest.mark.slow),
    ],
)
def test_the_others_end_and_say_why(start, fault, victim, step):
    check(start(fault, victim, step, 3), fault, victim, step)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raise", "exit"])
def test_an_exit_handler_that_fails_ends_nobody(start, fault):
    """Python shows the exception and goes on."""
    job = start(fault, 1, AT_EXIT, 3)
    assert [job.ended(index, within=60) for index in range(3)] == [0, 0, 0]
    assert "fault" in job.text(1)
    assert "cannot go on" not in "".join(map(job.text, range(3)))


@pytest.mark.parametrize("fault", ["kill", "fork", "stop"])
def test_a_fault_before_the_first_message_is_seen(tmp_path, fault):
    """Process 0 has left its address and ends or stops; only then process 1 connects."""
    commands = [[sys.executable, FAULTY_START, str(index), tmp_path / "address", fault] for index in range(2)]
    with subprocess.Popen(commands[0], start_new_session=True) as victim:
        try:
            os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            other = subprocess.run(commands[1], capture_output=True, text=True, timeout=120, check=False)
        finally:
            os.killpg(victim.pid, signal.SIGKILL)
    assert other.returncode == 75, other.stderr
    said = {"stop": "is stopped (by SIGSTOP or a debugger), and has said nothing for 1 s."}.get(fault, "has died.")
    assert f"process 1 of 2 cannot go on: process 0 {said}\n" in other.stderr, other.stderr


def test_the_program_starts_when_all_are_connected(tmp_path):
    commands = [[sys.executable, FAULTY_START, str(index), tmp_path / "address", "late"] for index in range(2)]
    with subprocess.Popen(commands[0], stdout=subprocess.PIPE, text=True) as first:
        other = subprocess.run(commands[1], capture_output=True, text=True, timeout=120, check=False)
        assert first.communicate(timeout=120)[0] == "connected to 1\n"
    assert other.returncode == 75, other.stderr
    assert "process 1 of 2 cannot go on: process 0 has died" in other.stderr, other.stderr


DEVICES = """
import os, signal
import mmruntime as mm
mm.init()
if os.environ["JAX_PROCESS_ID"] == "1":
    print("fault", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
import jax
jax.devices()
"""


FAILING = """
import os
import mmruntime as mm
mm.init(transport=os.environ["TRANSPORT"])
import jax
import jax.numpy as jnp
import numpy as np

def checked(x):
    if os.environ["JAX_PROCESS_ID"] == "1":
        raise ValueError("a bad batch")
    return x

def layer(x):
    return x + jax.pure_callback(checked, jax.typeof(x), x)

def step(x):
    x = mm.task(layer, task=mm.stage(1, 2))(x)
    x = mm.task(jnp.negative, task=mm.stage(0, 2))(x)
    return mm.task(jnp.sin, task=mm.stage(1, 2))(x)

mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"))
batch = np.ones((4, 4), np.float32)
if os.environ["BEFORE"]:
    layout = jax.sharding.NamedSharding(mesh.slice(stage=1), jax.P())
    batch = jax.make_array_from_callback((4, 4), layout, lambda i: batch[i], dtype=np.float32)
    second = mm.MultiMesh(axis_sizes=(2,), axis_names=("data",), devices=jax.devices()[2:])
    batch = mm.mjit(layer, mesh=second)(batch)

    def step(batch):
        x = mm.task(jnp.negative, task=mm.stage(0, 2))(batch)
        return mm.task(jnp.sin, task=mm.stage(1, 2))(x)

step = mm.mjit(step, mesh=mesh)
results = step(batch)
jax.block_until_ready(results)
"""


@pytest.mark.parametrize(
    ("transport", "before"),
    [
        ("transfer", ""),
        ("transfer", "1"),
        *(
            pytest.param(name, before, marks=pytest.mark.slow)
            for name in ("sockets", "collectives")
            for before in ("", "1")
        ),
    ],
)
def test_a_program_that_fails_while_others_wait_for_its_results_is_named(tmp_path, monkeypatch, transport, before):
    """Its process waits for them in turn, and would never hear of it. It may have run before the step."""
    monkeypatch.setenv("TRANSPORT", transport)
    monkeypatch.setenv("BEFORE", before)
    program = tmp_path / "program.py"
    program.write_text(FAILING)
    job = Processes(tmp_path, program, 2, devices=2)
    try:
        statuses = [job.ended(index, within=60) for index in range(2)]
        text = job.text(0)
        assert statuses == [75, 1], text
        what = r"batch of step, float32\[4,4\]" if before else r"\S+ from submesh \d to submesh \d"
        said = r"process 0 of 2 cannot go on: process 1 has a program that failed, in call 1 of step, and with it "
        assert re.search(f"{said}{what}: ", text), text
        assert "ValueError: a bad batch" in text, text
        # And nothing else.
        assert text.startswith("mmruntime: process 0") and text.count("cannot go on") == 1, text
    finally:
        job.kill()


@pytest.mark.slow
def test_a_fault_while_devices_are_looked_for_is_seen(tmp_path):
    """There the main thread waits in JAX for the devices of all processes, and holds a lock of JAX."""
    program = tmp_path / "program.py"
    program.write_text(DEVICES)
    job = Processes(tmp_path, program, 2)
    try:
        (other,) = bring_about(job, 1)
        assert "cannot go on: process 1 is stopped (by SIGSTOP or a debugger)" in job.text(other)
    finally:
        job.kill()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["slow", "busy"])
def test_slow_is_not_dead(start, fault):
    job = start(fault, 1, 3, 3)
    assert [job.ended(index, within=60) for index in range(3)] == [0, 0, 0]
    assert re.search(
        r"mmruntime: process [02] has waited for \d+ s, for call 4 of step, .*: process 1 is after call 3 of step, at "
        r".*faulty\.py:\d+ in bring_about\. That may just take its time\.",
        job.text(0),
    ), job.text(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "victim", "step"),
    [
        *itertools.product(SAID, (0, 1), (0, 3)),
        # After the last step the others are at the end of their programs, and wait for no data.
        *itertools.product(("kill", "abort", "fork", "stop", "raise"), (0, 1), (LAST,)),
    ],
)
def test_each_fault_at_each_time(start, fault, victim, step):
    for count in (2, 3):
        check(start(fault, victim, step, count), fault, victim, step)


@pytest.mark.slow
def test_python_that_is_held_up_is_not_dead(start):
    job = start("held", 1, 3, 3)
    assert [job.ended(index, within=120) for index in range(3)] == [0, 0, 0]
    assert "process 1 has said nothing for 4 s, but lives: native code keeps Python's lock there" in job.text(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "when", "read", "victim"),
    [
        *itertools.product(("kill", "stop", "raise", "exit", "loop"), ("trace", "step"), (1, 50, 0), (0, 1)),
        *itertools.product(("kill", "stop"), ("within",), (1, 50, 0), (0, 1)),
        *itertools.product(("kill", "stop"), ("compile",), (0,), (0, 1)),
        *itertools.product(("kill", "stop", "raise"), ("end",), (0,), (0, 1)),
        *itertools.product(("kill", "stop"), ("saving",), (1, 0), (0, 1)),
        *itertools.product(("kill", "stop", "raise", "exit", "loop"), ("saved",), (0,), (0, 1)),
    ],
)
def test_each_fault_in_steps(start, fault, when, read, victim, tmp_path):
    job = start(fault, victim, (when, read, tmp_path / "checkpoints"), 2, FAULTY_STEPS)
    (other,) = bring_about(job, victim)
    text = job.text(other)
    said = SAID[fault].replace("faulty", "faulty_steps")
    assert re.search(rf"mmruntime: process {other} of 2 cannot go on: process {victim} {said}", text), text
    if when == "step" and fault != "raise":
        waited = rf"It has waited for process {victim} for \d+\.\d s: call \d+ of train, "
        assert re.search(waited, text), text


@pytest.mark.slow
@pytest.mark.parametrize("when", ["step", "placed"])
@pytest.mark.parametrize(("fault", "call"), [("skip", 21), ("repeat", 22)])
def test_a_call_too_many_or_too_few_is_named(start, fault, call, when):
    job = start(fault, 1, (when, 0), 2, FAULTY_STEPS)
    assert [job.ended(index, within=60) for index in range(2)] == [75, 75]
    for index in range(2):
        said = (
            rf"processes 0, 1 have made different calls: call {call} of steps that they run together is train in both"
        )
        assert re.search(said, job.text(index)), job.text(index)


@pytest.mark.slow
@pytest.mark.parametrize("read", [0, 50, 1])
@pytest.mark.parametrize(("fault", "made"), [("skip", 59), ("repeat", 61)])
def test_an_equal_call_too_many_or_too_few_is_told_at_the_end(start, fault, made, read):
    """No process can know of it before: its own calls look as they should."""
    job = start(fault, 1, ("equal", read), 2, FAULTY_STEPS)
    assert [job.ended(index, within=60) for index in range(2)] == [75, 75]
    few, many = sorted([60, made])
    early = int(made == few)
    ended = rf"process {early} has ended its program after {few} calls .*, and process {1 - early} has made {many}"
    ended = ended.replace(f"process {early} has ended", f"(?:process {early}|it) has ended")
    unequal = (
        rf"have made different numbers of calls .*process 0 made 60, .*, and process 1 made {made}, the last of train"
    )
    for index in range(2):
        assert re.search(f"{ended}|{unequal}", job.text(index)), job.text(index)


def test_ctrl_c_ends_all(start):
    job = start("slow", 1, 3, 2)
    deadline = time.monotonic() + 60
    while "fault" not in job.text(1):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    job.running[1].send_signal(signal.SIGINT)
    assert job.ended(0, within=15) == 75
    assert job.ended(1, within=15) == 130
    assert "process 1 has ended with KeyboardInterrupt" in job.text(0)
