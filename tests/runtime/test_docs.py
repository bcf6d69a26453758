"""The pages of the runtime: their blocks run, in order, as one program, and they show every public name."""

import dataclasses
import re
from pathlib import Path

import pytest

import mmruntime as mm
import mmruntime.flax
from mmruntime import compat

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Each continues the program of those before it.
PAGES = [DOCS / f"{name}.md" for name in ("runtime", "microbatches", "schedules", "settings", "compat", "cluster")]
PROGRAM = [
    (page, match)
    for page in PAGES
    for match in re.finditer(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
]
BLOCKS = [match[1] for _, match in PROGRAM]


@pytest.mark.slow
def test_the_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for page, match in PROGRAM:
        line = match.string[: match.start(1)].count("\n")
        exec(compile("\n" * line + match[1], str(page), "exec"), names)
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
