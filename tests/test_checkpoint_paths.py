"""Paths of checkpoints that Orbax refuses: those that the source shows to be relative are told, and no others."""

from __future__ import annotations

import pytest
from fixture_files import source_files
from test_old_parts import REGISTRY

from mmrewrite.modernize.rewrite import modernize_project

pytestmark = pytest.mark.text

HEAD = (
    "import os\nfrom pathlib import Path\nimport orbax.checkpoint as ocp\nfrom flax.training import checkpoints\n"
    'folder = "runs"\nsaver = ocp.PyTreeCheckpointer()\n'
)
CALLS = (
    "ocp.PyTreeCheckpointer().save({}, state)",
    "saver.save(directory={}, item=state)",
    "saver.restore({})",
    "ocp.StandardCheckpointer().save({}, state)",
    "ocp.CheckpointManager({}, options=options)",
    "checkpoints.save_checkpoint({}, state, 0)",
    "checkpoints.save_checkpoint(ckpt_dir={}, target=state, step=0)",
    "checkpoints.save_checkpoint_multiprocess({}, state, 0)",
)
RELATIVE = ('"ckpt"', '"./ckpt"', 'f"ckpt/{n}"', '"ckpt/" + name', "folder", 'f"{folder}/{n}"', 'Path("ckpt") / "a"')
OTHERS = (
    *('"/tmp/ckpt"', '"gs://bucket/ckpt"', "name", 'f"{name}/ckpt"', 'name + "ckpt"', 'os.path.abspath("ckpt")'),
    *('os.path.join("ckpt", name)', 'Path("ckpt") / "/tmp"', 'Path("ckpt").absolute()', 'Path("ckpt") / name'),
)


def refused(calls: list[str], head: str = HEAD) -> list[str]:
    text = head + "\n".join(calls) + "\n"
    (result,) = modernize_project(source_files({"a.py": text.encode()}), REGISTRY)
    assert result.failure is None
    lines = text.splitlines()
    return [lines[item.line - 1] for item in result.refusals if "since Orbax 0.4.8" in item.reason]


@pytest.mark.parametrize("call", CALLS)
def test_a_relative_path_is_told(call: str) -> None:
    calls = [call.format(path) for path in RELATIVE]
    assert refused(calls) == calls
    assert refused([call.format(path) for path in OTHERS]) == []


def test_what_writes_by_itself_takes_any_path() -> None:
    calls = [
        'ocp.Checkpointer(ocp.JsonCheckpointHandler()).save("ckpt", state)',
        'checkpoints.restore_checkpoint("ckpt", state)',
        'file.save("ckpt", state)',
    ]
    assert refused(calls) == []
    flag = HEAD + 'import flax\nflax.config.update("flax_use_orbax_checkpointing", False)\n'
    assert refused(['checkpoints.save_checkpoint("ckpt", state, 0)'], flag) == []
