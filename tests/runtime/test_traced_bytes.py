"""Bytes in hovers of the language server: from the last trace of the program, as long as its sources stay the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mmrewrite.files import source_records
from mmrewrite.files.cache_folder import VARIABLE
from mmrewrite.lsp.answers import Request
from mmrewrite.lsp.workspace import Workspace
from mmrewrite.plan import traced_bytes
from tests.command import put, run

MODEL = """\
def first(w, x):
    return x @ w


def second(w, x):
    return x @ w


def model(params, x):
    x = first(params[0], x)  # mm: task(stage=0)
    x = second(params[1], x)  # mm: task(stage=1)
    return x.mean()
"""
TRAIN = """\
import jax
import numpy as np

from model import model

# mm: mesh(stage=2)


@jax.jit  # mm: mjit
def step(params, x):
    return jax.grad(model)(params, x)  # mm: microbatch(count=2)


def example():
    w = np.ones((8, 8), np.float32)
    return (w, w), w
"""
FIRST, SECOND, STEP = ("model.py", 10), ("model.py", 11), ("train.py", 9)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a program that was traced, and of a cache that knows it."""
    folder = tmp_path_factory.mktemp("program")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder / "cache"))
        patch.chdir(folder)
        put("model.py", MODEL)
        put("train.py", TRAIN)
        result = run("plan", "--entry", "train:step", "--args", "train:example", "-q")
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def _there(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(program / "cache"))
    monkeypatch.chdir(program)


def hover(place: tuple[str, int], **buffers: str) -> str:
    path, line = place
    open_files = {os.path.abspath(f"{name}.py"): text for name, text in buffers.items()}
    request = Request("describe", os.getcwd(), True, open_files, path=os.path.abspath(path), line=line)
    return str(Workspace().describe(request))


@pytest.mark.usefixtures("_there")
class TestHovers:
    def test_a_task_has_the_bytes_of_what_it_places(self) -> None:
        first, second = hover(FIRST), hover(SECOND)
        assert "`train:step`, traced for `train:example`:" in first
        assert "places 1 array of the step's inputs on submesh 0, 256 B on each device" in first
        assert "places 1 array of the step's inputs on submesh 1, 256 B on each device" in second
        assert "submesh 1, devices 1: on each device 256 B of parameters and other state, and at most" in second
        assert "submesh 1, devices" not in first and "Not known" not in first

    def test_a_step_has_those_of_all_submeshes(self) -> None:
        text = hover(STEP)
        assert "submesh 0, devices 0:" in text and "submesh 1, devices 1:" in text
        assert "transfers between submeshes in a step: 4, " in text

    @pytest.mark.parametrize("name", ["model", "train"])
    def test_other_sources_are_other_bytes(self, name: str) -> None:
        changed = Path(f"{name}.py").read_text() + "# more\n"
        text = hover(FIRST, **{name: changed})
        assert "places" not in text
        assert f"was of other sources: {name}.py has changed since. Trace it again for bytes." in text

    def test_a_damaged_or_foreign_file_tells_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "places 1 array" in hover(FIRST)
        for data in (b"", b"[]", b'{"step": 1}', b"[" * 100_000):
            put("cache2/traces/x.json", data)
            monkeypatch.setenv(VARIABLE, os.path.abspath("cache2"))
            assert "Not known without tracing the program: bytes" in hover(FIRST)

    def test_no_cache_no_trace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, "")
        assert "Not known without tracing the program: bytes" in hover(FIRST)


def test_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_records, "_MOST", 3)
    for number in range(5):
        traced = traced_bytes.TracedBytes(f"a:f{number}", "a:g", {"/a.py": "0"}, (), (), 0, 0)
        traced_bytes.keep(str(tmp_path), traced)
        os.utime(max(tmp_path.iterdir(), key=os.path.getmtime), (number, number))
    assert len(os.listdir(tmp_path)) == 3
