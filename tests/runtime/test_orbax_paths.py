"""What functions of Flax and Orbax do with a relative path, and what `modernize` says of the call.

It tells those that raise, and no others; with what it advises they run, and nothing is told any more.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("orbax.checkpoint")
from fixture_files import modernize_text

# Flax says that it will leave checkpoints to Orbax, and Orbax warns of what it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore")

HEAD = """import os
from pathlib import Path

import flax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as v1
from etils import epath
from flax.training import checkpoints
from orbax.checkpoint import checkpoint_utils, utils

state = {"w": jnp.ones(2)}
here = os.path.abspath(".")
"""
CHECKPOINT = 'checkpoints.save_checkpoint(here + "/ckpt", state, 0)\n'
ONE = 'ocp.PyTreeCheckpointer().save(here + "/ckpt", state)\n'
MANAGED = (
    'first = ocp.CheckpointManager(here + "/ckpt")\nfirst.save(0, args=ocp.args.StandardSave(state))\nfirst.close()\n'
)
NEW = 'v1.save(here + "/ckpt", state)\n'
MANY = "ocp.Checkpointer(ocp.CompositeCheckpointHandler())"
OPTION = "import argparse\nparser = argparse.ArgumentParser()\n"
OF_OPTION = "args = parser.parse_args([])\nocp.PyTreeCheckpointer().save(args.out, state)"
RAISE = [
    'checkpoints.save_checkpoint("ckpt", state, 0)',
    'checkpoints.save_checkpoint(Path("ckpt"), state, 0)',
    'checkpoints.save_checkpoint("ckpt", state, 0, orbax_checkpointer=ocp.PyTreeCheckpointer())',
    'checkpoints.save_checkpoint_multiprocess("ckpt", state, 0)',
    CHECKPOINT + 'checkpoints.restore_checkpoint("ckpt", state)',
    CHECKPOINT + 'checkpoints.restore_checkpoint("ckpt", None, prefix="checkpoint_")',
    'ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).save("ckpt", state)',
    f'{MANY}.save("ckpt", ocp.args.Composite(a=ocp.args.StandardSave(state)))',
    'one = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())\none.save("ckpt", state)\none.wait_until_finished()',
    'ocp.PyTreeCheckpointer().save("ckpt", state)',
    ONE + 'ocp.PyTreeCheckpointer().restore("ckpt")',
    'one = ocp.StandardCheckpointer()\none.save(epath.Path("ckpt"), state)\none.wait_until_finished()',
    'm = ocp.CheckpointManager("ckpt")\nm.save(0, args=ocp.args.StandardSave(state))\nm.wait_until_finished()',
    'm = ocp.CheckpointManager(directory=Path("ckpt"))\nm.save(0, args=ocp.args.StandardSave(state))\nm.close()',
    MANAGED + 'first.restore(0, args=ocp.args.StandardRestore(state), directory="ckpt")',
    MANAGED + 'next(iter(checkpoint_utils.checkpoints_iterator("ckpt", timeout=1)))',
    'v1.save("ckpt", state)',
    'ocp.v1.save_async(Path("ckpt"), state).result()',
    'v1.save_checkpointables("ckpt", {"a": state})',
    NEW + 'v1.load("ckpt")',
    'v1.training.Checkpointer("ckpt").save(0, state)',
    'def save(where="ckpt"):\n    ocp.PyTreeCheckpointer().save(where, state)\nsave()',
    OPTION + 'parser.add_argument("--out", default="ckpt")\n' + OF_OPTION,
    OPTION + 'parser.add_argument("--out", type=Path, default=Path("ckpt"))\n' + OF_OPTION,
]
RUN = [
    CHECKPOINT + 'checkpoints.latest_checkpoint("ckpt")',
    'flax.config.update("flax_use_orbax_checkpointing", False)\ncheckpoints.save_checkpoint("ckpt", state, 0)',
    'ocp.Checkpointer(ocp.JsonCheckpointHandler()).save("ckpt", {"a": 1})',
    'ocp.Checkpointer(ocp.ArrayCheckpointHandler()).save("ckpt", state["w"])',
    MANY + '.save("ckpt", ocp.args.Composite(a=ocp.args.JsonSave({"b": 1})))',
    'ocp.PyTreeCheckpointer(use_ocdbt=False).save("ckpt", state)',
    'ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)).save("ckpt", state)',
    'm = ocp.CheckpointManager("ckpt")\nm.save(0, args=ocp.args.JsonSave({"b": 1}))\nm.close()',
    'ocp.CheckpointManager("ckpt", {"a": ocp.Checkpointer(ocp.JsonCheckpointHandler())}).save(0, {"a": {"b": 1}})',
    ONE + 'ocp.PyTreeCheckpointer().metadata("ckpt")',
    MANAGED + 'utils.checkpoint_steps("ckpt")',
    NEW + 'v1.metadata("ckpt")\nv1.is_orbax_checkpoint("ckpt")\nv1.delete("ckpt")',
]


def told(text: str) -> list[str]:
    result = modernize_text(text)
    reasons = [item.reason for item in (*result.refusals, *result.left)]
    return [reason for reason in reasons if "checkpoints have absolute paths alone" in reason]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("program", RAISE)
def test_what_raises_is_told_and_runs_as_advised(program: str) -> None:
    (reason,) = told(HEAD + program)
    with pytest.raises(ValueError, match="absolute"):
        exec(HEAD + program, {})
    path = next(each for each in ('epath.Path("ckpt")', 'Path("ckpt")', '"ckpt"') if each in program)
    advised = f"{path}.absolute()" if "`.absolute()`" in reason else f"os.path.abspath({path})"
    assert "`.absolute()`" in reason or "`os.path.abspath(...)`" in reason
    mended = HEAD + program.replace(path, advised)
    # A thread of the save that failed may be at work in the folder still.
    exec(mended.replace('ckpt"', 'other"'), {})
    assert told(mended) == []


@pytest.mark.parametrize("program", RUN)
def test_what_runs_is_not_told(program: str) -> None:
    import flax

    is_on = flax.config.flax_use_orbax_checkpointing
    try:
        exec(HEAD + program, {})
    finally:
        flax.config.update("flax_use_orbax_checkpointing", is_on)
    assert told(HEAD + program) == []
    assert os.listdir() or "delete" in program
