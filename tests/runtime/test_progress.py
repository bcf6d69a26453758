"""What the first call of a step says where it takes long."""

import io
import os
import re
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import mmruntime as mm
from mmruntime._core import progress


@pytest.fixture
def stream(monkeypatch):
    """Standard error, with a line from the beginning on."""
    found = io.StringIO()
    # Not sys.stderr itself, which pytest puts back before the test begins.
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=found))
    monkeypatch.setattr(progress, "_AFTER", 0.001)
    monkeypatch.setattr(progress, "_EVERY", 0.01)
    monkeypatch.delenv(progress.VARIABLE)
    yield found
    progress.show_progress(None)


def step_of_two(name="pipeline"):
    """A step of two stages, of which the trace takes a while."""
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))

    def step(x):
        time.sleep(0.1)
        for index in range(2):
            x = mm.task(jnp.sin, task=mm.stage(index, 2, axis="stage"))(x)
        return x

    step.__name__ = name
    return mm.mjit(step, mesh=mesh)


def call(name="pipeline"):
    return step_of_two(name)(jnp.ones(3))


def test_a_long_first_call_says_what_it_does(stream):
    call()
    lines = stream.getvalue().splitlines()
    assert lines and all(re.fullmatch(r"mmruntime: pipeline: .+ \(\d+ s\)", line) for line in lines)
    assert "mmruntime: pipeline: tracing (0 s)" in lines


def test_a_later_call_that_compiles_again_says_why(stream):
    step = step_of_two()
    step(jnp.ones(3))
    stream.truncate(0)
    step(jnp.ones(4))
    assert "mmruntime: pipeline: tracing (0 s), again as x is float32[4], and was float32[3]\n" in stream.getvalue()


def test_a_terminal_has_one_line_that_is_gone_at_the_end(stream, monkeypatch):
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_REDRAW", 0.01)
    call()
    assert "\n" not in stream.getvalue() and stream.getvalue().endswith("\r\x1b[K")


def test_nothing_is_said_of_a_short_one_or_where_that_is_switched_off(stream, monkeypatch):
    monkeypatch.setenv(progress.VARIABLE, "0")
    call()
    monkeypatch.delenv(progress.VARIABLE)
    mm.init(progress=False)
    call()
    mm.init(progress=None)
    monkeypatch.setattr(progress, "_AFTER", 100)
    call()
    assert stream.getvalue() == ""
    with pytest.raises(ValueError, match="MMRUNTIME_PROGRESS must be 0 or 1, got 'yes'"):
        progress.show_progress(None, {progress.VARIABLE: "yes"})
    with pytest.raises(TypeError, match="progress"):
        mm.init(progress="no")


def test_the_tool_hears_each_part_with_its_count(stream):
    reader, writer = os.pipe()
    try:
        progress.write_to(writer)
        call()
    finally:
        progress._Audience.listener = None
        os.close(writer)
    with os.fdopen(reader) as lines:
        said = lines.read().splitlines()
    assert said[0] == "tracing" and said[-1] == "compiling, 2 of 2 programs done"
    assert stream.getvalue() == ""


def test_what_fails_leaves_no_line_behind(stream):
    with pytest.raises(ZeroDivisionError), progress.long_call("step"):
        time.sleep(0.05)
        1 / 0  # noqa: B018
    seen = stream.getvalue()
    time.sleep(0.05)
    assert seen and stream.getvalue() == seen and progress._CALL.get() is None


def test_a_step_that_was_compiled_says_nothing(stream, monkeypatch):
    step = mm.mjit(lambda x: x * 2, mesh=mm.MultiMesh(axis_sizes=(1,), axis_names=("stage",)))
    step(jax.numpy.ones(3))
    stream.truncate(0)
    step(jax.numpy.ones(3))
    assert stream.getvalue().strip("\0") == ""
