"""A project whose mesh, model and step are in modules of their own: the mirror runs beside it, and from its script."""

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest
from click.testing import CliRunner

from mmrewrite.cli.commands import cli

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "pipe/__init__.py": """
        from .model import forward as forward
        from pipe.training.step import step
    """,
    "pipe/layers/__init__.py": "from .dense import dense as layer\n",
    "pipe/layers/dense.py": """
        import jax.numpy as jnp


        def dense(w, x):
            return jnp.tanh(x @ w)
    """,
    "pipe/model.py": """
        import jax.numpy as jnp
        from pipe.layers import layer


        def forward(params, x):
            for w in params:  # mm: stages
                x = layer(w, x)
            return x


        def loss_fn(params, batch):
            return jnp.mean((forward(params, batch["x"]) - batch["y"]) ** 2)
    """,
    "pipe/devices.py": """
        # mm: mesh(stage=2, data=2)
        STAGES = 2
    """,
    "pipe/training/__init__.py": "",
    "pipe/training/step.py": """
        import jax

        import pipe.devices
        from .. import model as m
        from ..model import loss_fn


        @jax.jit  # mm: mjit
        def step(params, batch):
            loss, grads = jax.value_and_grad(loss_fn)(params, batch)  # mm: microbatch(size=4, schedule="1f1b")
            return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), m.forward(params, batch["x"])


        def places():
            return pipe.devices.STAGES
    """,
    "train.py": """
        import jax
        from pipe import step
        from pipe.training.step import places


        def arguments():
            keys = jax.random.split(jax.random.key(0), places() + 2)
            batch = {"x": jax.random.normal(keys[-1], (8, 3)), "y": jax.random.normal(keys[-2], (8, 3))}
            return [jax.random.normal(key, (3, 3)) / 2 for key in keys[:-2]], batch


        if __name__ == "__main__":
            print(type(step).__module__, places())
    """,
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    for place, text in FILES.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(textwrap.dedent(text).lstrip())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("pipe", "mirror", "train")]:
        del sys.modules[name]


def test_a_mirror_runs_beside_its_project(project):
    built = CliRunner().invoke(cli, ["build", "pipe", "train.py", "--out", "mirror"])
    assert (built.exit_code, built.stderr) == (0, "3 files of 8 in mirror changed\n")
    arguments = importlib.import_module("train").arguments()
    loss, params, y = importlib.import_module("pipe").step(*arguments)
    mirrored = importlib.import_module("mirror.pipe").step(*arguments)
    for one, other in zip(jax.tree.leaves((loss, params, y)), jax.tree.leaves(mirrored), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    stages = [[0, 1], [2, 3]]
    assert [sorted(device.id for device in w.devices()) for w in mirrored[1]] == stages
    names = {name for name in sys.modules if name.startswith("mirror.pipe")}
    assert names == {f"mirror.{name}" for name in sys.modules if name.split(".")[0] == "pipe"}

    # The script of the mirror imports the package of the mirror.
    path = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "codemods", ROOT / "runtime"))
    run = subprocess.run(
        [sys.executable, "mirror/train.py"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.stdout == "mmruntime._step.mesh_function 2\n"
