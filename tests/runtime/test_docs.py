"""The runtime's page: its blocks run, in order, and it shows every public name."""

import dataclasses
import re
from pathlib import Path

import pytest

import mmruntime as mm
import mmruntime.flax
from mmruntime import compat

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runtime.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in BLOCKS:
        line = TEXT[: TEXT.index(block)].count("\n")
        exec(compile("\n" * line + block, str(PAGE), "exec"), names)
    assert (tmp_path / "trace.json").exists()


@pytest.mark.parametrize("name", mm.__all__)
def test_every_public_name_is_shown(name):
    assert any(f"mm.{name}(" in block for block in BLOCKS) or any(f"@mm.{name}" in block for block in BLOCKS)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(mm.Task)])
def test_every_field_of_a_task_is_shown(name):
    assert any("mm.Task(" in block and f"{name}=" in block for block in BLOCKS)


@pytest.mark.parametrize("name", mmruntime.flax.__all__)
def test_every_name_of_the_flax_side_is_shown(name):
    assert any(f"mm.flax.{name}(" in block for block in BLOCKS)


@pytest.mark.parametrize("name", compat.__all__)
def test_every_name_for_older_programs_is_shown(name):
    assert any(f"mm.compat.{name}(" in block for block in BLOCKS)
