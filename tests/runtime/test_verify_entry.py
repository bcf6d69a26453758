"""`mmrewrite verify`: both programs run and compared, from packages and scripts, and what goes wrong is told whole."""

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mmrewrite.cli.commands import cli

pytestmark = pytest.mark.either

TINY = """\
import jax
import jax.numpy as jnp

from tiny.layers import layer

print("printed while importing")
# mm: mesh(stage=2, data=2)


def model(params, x):
    for w in params:  # mm: stages
        x = layer(w, x)
    return jnp.mean(x * x)


@jax.jit  # mm: mjit; verify(args=arguments)
def step(params, x):
    loss, grads = jax.value_and_grad(model)(params["w"], x)  # mm: microbatch(size=2, schedule="1f1b")
    return {"w": jax.tree.map(lambda w, g: w - g, params["w"], grads), "key": params["key"]}, loss


def arguments():
    weights = [jax.random.normal(jax.random.key(i), (4, 4)) for i in range(4)]
    return {"w": weights, "key": jax.random.key(1)}, jnp.ones((8, 4))
"""

SCRIPT = """\
import jax
import jax.numpy as jnp
from beside import COUNT

# mm: mesh(stage=2)


def layer(x):
    return jnp.tanh(x)


@jax.jit  # mm: mjit; verify(args=arguments)
def depends(x):
    x = layer(x)  # mm: task(stage=0)
    return x * jax.device_count(), jnp.arange(COUNT) + jax.device_count()


@jax.jit  # mm: mjit; verify(args=arguments)
def refuses(x):
    x = layer(x)  # mm: task(stage=1)
    if jax.device_count() > 1:
        raise NotImplementedError("one device only")
    return x


def arguments():
    return (jnp.ones(3),)
"""

BROKEN = SCRIPT.replace("def arguments():\n", 'def arguments():\n    raise KeyError("weights")\n')


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli, ["verify", *arguments], catch_exceptions=False)


def test_a_package_in_a_source_folder():
    Path("src/tiny").mkdir(parents=True)
    Path("src/tiny/__init__.py").write_text("")
    Path("src/tiny/train.py").write_text(TINY)
    Path("src/tiny/layers.py").write_text("import jax.numpy as jnp\n\n\ndef layer(w, x):\n    return jnp.tanh(x @ w)\n")
    result = run("--format", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    patch = CliRunner().invoke(cli, ["diff"]).stdout_bytes
    assert found["patch_sha256"] == hashlib.sha256(patch).hexdigest()
    (check,) = found["checks"]
    assert check["status"] == "equal"
    rows = {row["name"]: row for row in check["arrays"]}
    assert [rows[f"params['w'][{i}]"]["where"] for i in (0, 3)] == [
        "devices 0-1, replicated",
        "devices 2-3, replicated",
    ]
    assert rows["params['w'][0]"]["original_where"] == "device 0"
    assert rows["params['w'][0]"]["absolute"] == 0
    assert rows["params['key']"]["type"] == "key<fry>"
    assert rows["result[0]['w'][2]"]["where"] == "devices 2-3, replicated"
    # Rounded otherwise, as microbatches are summed, and yet within the tolerance.
    assert 0 < max(rows[f"result[0]['w'][{i}]"]["absolute"] for i in range(4)) < 1e-6
    assert "result[0] has the paths, shapes and types of params: its gradients, or its new value" in check["notes"]


def test_a_script_whose_results_depend_on_where_it_runs():
    Path("train-it.py").write_text(SCRIPT)
    Path("beside.py").write_text("COUNT = 4\n")
    result = run("train-it.py")
    assert result.exit_code == 1
    assert "train-it:depends with train-it:arguments (train-it.py:12): NOT equal" in result.stdout
    assert (
        "result[0]: 3 of 3 elements differ by more than 1e-06 + 0.0001 * |original|, the first at [0]: "
        "0.76159" in result.stdout
    )
    assert "result[1]: 4 of 4 elements differ and must be equal, the first at [0]: 1.0 became 8.0" in result.stdout
    assert "train-it:refuses with train-it:arguments (train-it.py:18): the rewritten program FAILS" in result.stdout
    assert "Traceback (most recent call last):\n" in result.stdout
    assert 'File "train-it.py as rewritten", line' in result.stdout
    assert "NotImplementedError: one device only" in result.stdout


def test_a_program_that_fails_by_itself():
    Path("train.py").write_text(BROKEN.replace("from beside import COUNT", "COUNT = 4"))
    result = run("--entry", "train:depends", "--args", "train:arguments")
    assert result.exit_code == 2
    assert (
        "the original program fails by itself: --args train:arguments: failed: KeyError: 'weights' at" in result.stdout
    )
    assert 'raise KeyError("weights")' in result.stdout


def test_a_process_that_ends_without_a_word():
    Path("train.py").write_text(SCRIPT.replace("from beside import COUNT", "import os\n\nCOUNT = os._exit(3)"))
    result = run("--entry", "train:depends", "--args", "train:arguments")
    assert result.exit_code == 2
    assert "train:depends: the original program ended with status 3: it wrote nothing" in result.stdout
