"""`mmrewrite verify`: both programs run and compared, from packages and scripts, and what goes wrong is told whole."""

import hashlib
import json
import os
import re
import subprocess
import sys
import types
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import mmruntime as mm
from mmrewrite.cli.commands import cli
from mmrewrite.verify.before import own_of_calls
from mmruntime._commands.compare import Leaf, Tolerance, compare, load
from mmruntime._commands.disturb import disturbed
from mmruntime._commands.disturb import run as disturb
from mmruntime._commands.entry_point import BadEntryPoint, FunctionName, failure
from mmruntime._commands.verify import RunSettings, _drawing, step_and_arguments, with_bits
from mmruntime._commands.verify import run as run_step

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


ROUNDING = """\
import jax
import jax.numpy as jnp

# mm: mesh(stage=2)


def attend(w, x, key):
    x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)
    # A bias of the keys cancels in the softmax: its gradient is rounding, and Adam makes a step of it.
    q, k = x @ w["q"], x @ w["q"] + jnp.broadcast_to(w["bias"], x.shape)
    return jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2)) @ x


def loss_fn(params, batch, key):
    x = batch
    for w in params:  # mm: stages
        x = attend(w, x, key)
    return jnp.mean(x**2)


@jax.jit  # mm: mjit; verify(args=example)
def step(params, batch, key):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch, key)  # mm: microbatch(size=2, argnum=1, rng=2)
    return jax.tree.map(lambda w, g: w - 0.1 * g / (jnp.abs(g) + 1e-8), params, grads), loss


def example():
    keys = jax.random.split(jax.random.key(0), 2)
    params = [{"q": jax.random.normal(key, (8, 8)), "bias": jnp.zeros(8)} for key in keys]
    return params, jax.random.normal(keys[0], (4, 6, 8)), keys[1]
"""


WARNING = """\
import logging
import warnings

import jax
import jax.numpy as jnp

# mm: mesh(stage=2, data=2); axes(batch="data")


def model(params, x):
    for w in params:  # mm: stages
        x = jnp.tanh(x @ w)
    return jnp.mean(x * x)


@jax.jit  # mm: mjit; verify(args=arguments)
def step(params, x):
    warnings.warn("deprecated", FutureWarning)
    logging.getLogger("mmruntime").warning("a word of the log")
    return jax.grad(model)(params, x)  # mm: microbatch(size=4)


def arguments():
    return [jnp.eye(4)] * 2, jnp.ones((8, 4))
"""

MIXED = """\
import jax
import jax.numpy as jnp

# mm: mesh(stage=2)


def layer(w, x):
    return jnp.tanh(x @ w.astype(jnp.bfloat16).astype("bfloat16"))


def loss_fn(params, batch):
    x = batch.astype(jnp.bfloat16)
    for w in params:  # mm: stages
        x = layer(w, x)
    return jnp.mean(x.astype(jnp.float32) ** 2)


@jax.jit  # mm: mjit; verify(args=example)
def step(params, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)  # mm: microbatch(size=2, argnum=1)
    return grads, loss * SCALE


def example():
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (8, 8)) for key in keys[:2]], jax.random.normal(keys[2], (8, 8))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli, ["verify", *arguments], catch_exceptions=False)


def put_package():
    Path("src/tiny").mkdir(parents=True)
    Path("src/tiny/__init__.py").write_text("")
    Path("src/tiny/train.py").write_text(TINY)
    Path("src/tiny/layers.py").write_text("import jax.numpy as jnp\n\n\ndef layer(w, x):\n    return jnp.tanh(x @ w)\n")


def commit():
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], check=True)


@pytest.mark.slow
def test_after_apply_the_original_is_a_revision(monkeypatch):
    """Also of a package that is installed from the working tree, from a script that did not change."""
    put_package()
    Path("start.py").write_text("from tiny.train import arguments, step\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.path.abspath("src"), os.environ["PYTHONPATH"]]))
    commit()
    assert CliRunner().invoke(cli, ["apply"]).exit_code == 0
    named = ("--entry", "start:step", "--args", "start:arguments")
    result = run("--since", "HEAD", "--format", "json", *named)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (check,) = found["checks"]
    assert check["status"] == "equal" and check["where"].startswith(
        "the original as of HEAD on 1 device, the rewritten"
    )
    assert found["since"] == "HEAD" and [file["path"] for file in found["files"]] == ["src/tiny/train.py"]
    # What the program computes otherwise is found, and so is an original that is none.
    path = Path("src/tiny/train.py")
    now = path.read_text()
    path.write_text(now.replace("jnp.mean(x * x)", "jnp.mean(x * x * 1.1)"))
    result = run("--since", "HEAD", "--format", "json")
    (check,) = json.loads(result.stdout)["checks"]
    assert result.exit_code == 1 and (check["status"], check["named_by"]) == ("different", "HEAD:src/tiny/train.py:16")
    path.write_text(now)
    Path("start.py").write_text(
        f"import sys\nsys.path.insert(0, {os.path.abspath('src')!r})\nfrom tiny.train import *\n"
    )
    commit()
    path.write_text(now + "\n")
    result = run("--since", "HEAD", *named)
    assert result.exit_code == 2
    assert "has imported src/tiny/train.py as it is now, not as of HEAD" in " ".join(result.stdout.split())


def test_a_revision_with_which_nothing_is_compared():
    put_package()
    Path("other.py").write_text("def step():\n    return 1.0\n\n\ndef arguments():\n    return ()\n")
    commit()
    result = run("--since", "HEAD")
    assert result.exit_code == 2 and "--since HEAD: none of these files differs from it" in result.stderr
    result = run("--since", "HEAD~1")
    assert result.exit_code == 2 and "git knows no such revision here" in result.stderr
    Path("src/tiny/layers.py").write_text("")
    result = run("--since", "HEAD", "--entry", "other:step", "--args", "other:arguments")
    assert result.exit_code == 2
    assert "the original imports no file that differs from HEAD" in " ".join(result.stdout.split())


def test_what_microbatches_have_of_their_own_is_read_from_calls():
    texts = (
        b"mm.microbatch(f, size=2, rng=2)(x)",
        b"microbatch_loop(f, batch_stats='microbatch')",
        b"mm.microbatch(f, rng=None, batch_stats=())",
        b"microbatch(",
        b"other(rng=1)",
    )
    assert [[*own_of_calls([text])] for text in texts] == [["size", "rng"], ["batch_stats"], [], [], []]


@pytest.mark.slow
def test_a_package_in_a_source_folder():
    put_package()
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


@pytest.mark.slow
def test_what_the_rewritten_program_warns_of_is_told():
    Path("train.py").write_text(WARNING)
    (check,) = json.loads(run("--format", "json").stdout)["checks"]
    assert check["status"] == "equal"
    line, log, idle = check["warnings"]
    assert re.fullmatch(r"train\.py:\d+ \(line \d+ as rewritten\): FutureWarning: deprecated", line)
    assert log == "a word of the log"
    assert idle.startswith("mjit: step cuts no value over the mesh axis 'data', so its 2 devices compute the same.")
    # Plans say the same.
    named = ("--entry", "train:step", "--args", "train:arguments", "--format", "json")
    planned = CliRunner().invoke(cli, ["plan", *named], catch_exceptions=False).stdout
    assert all(json.dumps(f"WARNING: {text}") in planned for text in (line, log, idle))


@pytest.mark.slow
def test_a_script_whose_results_depend_on_where_it_runs():
    Path("train-it.py").write_text(SCRIPT)
    Path("beside.py").write_text("COUNT = 4\n")
    result = run("train-it.py")
    assert result.exit_code == 1
    said = " ".join(result.stdout.split())
    assert "train-it:depends the original 7 7 NOT equal" in said
    assert (
        "result[0]: 3 of 3 elements differ by more than 7.62e-06 + 0.0001 * |original|, the first at [0]: 0.76159"
        in said
    )
    assert "in float64 the largest difference is 5.3" in said
    assert "result[1]: 4 of 4 elements differ and must be equal, the first at [0]: 1.0 became 8.0" in said
    assert "train-it:refuses the original - - the rewritten program FAILS" in said
    assert "Traceback (most recent call last):\n" in result.stdout
    assert re.search(r'File "train-it.py", line \d+ \(line \d+ as rewritten\)', result.stdout)
    assert "NotImplementedError: one device only" in result.stdout


@pytest.mark.slow
def test_mixed_precision_is_judged_in_float64_throughout():
    Path("train.py").write_text(MIXED.replace("SCALE", "1"))
    result = run("train.py")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("equal but for rounding\n")


@pytest.mark.slow
def test_a_mistake_in_mixed_precision_is_one():
    Path("train.py").write_text(MIXED.replace("SCALE", "(1 + 1e-3 * (jax.device_count() > 1))"))
    result = run("train.py")
    assert result.exit_code == 1
    assert "in float64 throughout the largest difference is 0.0" in " ".join(result.stdout.split())


# The gradient of a bias of keys is zero in exact arithmetic.
ATTENTION = """\
import jax
import jax.numpy as jnp
from mmruntime._commands.verify import prepare

prepare(None, bits=64, throughout=True)
query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 8, 2, 4), jnp.float32)
attend = lambda bias: jax.nn.dot_product_attention(query, key + bias[None, None], value, is_causal=True)
gradient = jax.grad(lambda bias: (attend(bias) ** 2).sum())(jnp.zeros((2, 4)))
assert gradient.dtype == "float64" and abs(gradient).max() < 1e-13, gradient
"""


@pytest.mark.slow
def test_attention_of_jax_is_float64_throughout():
    wide = os.environ | {"JAX_ENABLE_X64": "1"}
    subprocess.run([sys.executable, "-c", ATTENTION], env=wide, check=True)


# What is right, and mistakes that the rewritten program makes, one by one: elsewhere than on one device, and some only
# in types of less than 32 bits.
PLANTED = """\
import jax
import jax.numpy as jnp

# mm: mesh(stage=2)
PARTS = 64
TYPES = ("bfloat16", "float16", "float8_e4m3fn", "float32")
MISTAKES = ("right", "kept in its type", "5 % off", "a slice off", "count", "1 % off everywhere")


def loss_fn(w, x):
    return jnp.tanh((x @ w.astype(x.dtype)).astype(jnp.float32)).sum() / 16


def gradients(w, x):
    if jax.device_count() == 1:
        return dict.fromkeys(MISTAKES, jax.grad(loss_fn)(w, x))
    parts = jax.vmap(jax.grad(loss_fn), (None, 0))(w, x.reshape(PARTS, -1, 16))
    total = jnp.sum(parts[::-1].astype(jnp.float32), 0)
    off = 1.05 if w.dtype.itemsize == 2 else 1.0
    found = (
        total,
        jax.lax.scan(lambda total, part: (total + part, None), jnp.zeros_like(w), parts)[0],
        total * off,
        total.at[:4].multiply(off),
        total * PARTS / (PARTS - 1),
        total * 1.01,
    )
    return {name: each.astype(w.dtype) for name, each in zip(MISTAKES, found)}


@jax.jit  # mm: mjit; verify(args=example)
def step(ws, xs):
    found = {}
    for name in TYPES:
        found[name] = gradients(ws[name], xs[name])  # mm: task(stage=0)
    return found


def example():
    keys = iter(jax.random.split(jax.random.key(0), 8))
    ws = {name: (jax.random.normal(next(keys), (16, 16)) / 4).astype(name) for name in TYPES}
    xs = {name: jax.random.normal(next(keys), (1024, 16)) + 1 for name in TYPES}
    return ws, {name: x.astype(name if "8" not in name else "bfloat16") for name, x in xs.items()}
"""


def test_mistakes_in_short_types_are_found():
    Path("train.py").write_text(PLANTED)
    result = run("train.py", "--format", "json")
    assert result.exit_code == 1, result.output
    (check,) = json.loads(result.stdout)["checks"]
    rows = {row["name"].removeprefix("result"): row for row in check["arrays"] if row["role"] == "result"}
    everywhere = ("count", "1 % off everywhere")
    short = ("kept in its type", "5 % off", "a slice off", *everywhere)
    mistakes = {"bfloat16": short, "float16": short, "float8_e4m3fn": (short[0], *everywhere), "float32": everywhere}
    wrong = {f"['{name}']['{mistake}']" for name, kinds in mistakes.items() for mistake in kinds}
    assert {name for name, row in rows.items() if row["problem"]} == wrong
    for name, kinds in mistakes.items():
        right = rows[f"['{name}']['right']"]
        assert right.get("rounding", False) == (name != "float32")
        for mistake in set(kinds) - set(everywhere):
            row = rows[f"['{name}']['{mistake}']"]
            assert row["rewritten_error"] > 1.6 * row["original_error"]
            assert "both agree in float64, and the rewritten program rounds more: " in row["problem"]


# Without random numbers, so that it is compared with the original. The sum of the batch is rounding alone, and
# another number in each order.
SIGNS = (
    ROUNDING.replace("0.1 * g / (jnp.abs(g) + 1e-8)", "0.1 * jnp.sign(g)")
    .replace("    x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)\n", "")
    .replace("rng=2", "rng=None")
    .replace("jnp.mean(x**2)", 'jnp.mean(x**2) + jnp.mean(jnp.tanh(batch @ params[0]["q"]) @ params[0]["bias"])')
    .replace("jax.random.normal(keys[0], (4, 6, 8))", "jnp.concatenate([half, -half[::-1]]).reshape(4, 6, 8)")
    .replace("    params = [", "    half = jax.random.normal(keys[0], (12, 8))\n    params = [")
)


@pytest.mark.slow
def test_signs_of_gradients_that_are_rounding_are_no_mistake():
    Path("train.py").write_text(SIGNS)
    result = run("train.py")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("equal but for rounding\n")
    # Some may be the same in float64, where signs are as much by chance.
    assert "Rounding alone, as " in result.stdout


@pytest.mark.slow
def test_a_mistake_beside_such_signs_is_one():
    Path("train.py").write_text(SIGNS.replace("0.1 * jnp", "0.1 * (1 + (jax.device_count() > 1)) * jnp"))
    result = run("train.py")
    assert result.exit_code == 1
    wrong = result.stdout.partition("Not equal:")[2].partition("\n\n")[0]
    assert "result[0][0]['q']" in wrong and "result[0][1]['q']" in wrong


def test_a_program_that_fails_by_itself():
    Path("train.py").write_text(BROKEN.replace("from beside import COUNT", "COUNT = 4"))
    result = run("--entry", "train:depends", "--args", "train:arguments")
    assert result.exit_code == 2
    said = " ".join(result.stdout.split())
    assert "the original program fails by itself: --args train:arguments: failed: KeyError: 'weights' at" in said
    assert 'raise KeyError("weights")' in result.stdout


def test_an_error_in_a_library_is_told_at_the_line_that_called_it():
    with pytest.raises(np.linalg.LinAlgError) as found:
        np.linalg.inv(np.zeros((2, 3)))
    assert f" at {__file__}:" in failure(FunctionName("--entry", "a:b"), "failed", found.value, "look there")


def test_a_process_that_ends_without_a_word():
    Path("train.py").write_text(SCRIPT.replace("from beside import COUNT", "import os\n\nCOUNT = os._exit(3)"))
    result = run("--entry", "train:depends", "--args", "train:arguments")
    assert result.exit_code == 2
    assert "train:depends: the original program ended with status 3: it wrote nothing" in result.stdout


@pytest.mark.slow
def test_dropout_and_rounding_are_verified():
    Path("train.py").write_text(ROUNDING)
    result = run("--format", "json")
    assert result.exit_code == 0, result.output
    (check,) = json.loads(result.stdout)["checks"]
    assert (check["status"], check["reference"]) == ("equal", "microbatched")
    # One program on one device may round as those of the stages do.
    rounded = {row["name"] for row in check["arrays"] if row.get("rounding")}
    assert rounded <= {"result[0][0]['bias']", "result[0][1]['bias']"}


def test_a_step_runs_on_one_device_with_its_microbatches(folder):
    mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",))

    def loss(w, x, key):
        x = mm.task(lambda w, x: x @ w, task=mm.stage(0, 2, axis="stage"))(w, x)
        x = mm.task(lambda w, x: jnp.tanh(x @ w), task=mm.stage(1, 2, axis="stage"))(w, x)
        return jnp.mean(jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0))

    def step(w, x, key):
        return mm.microbatch(jax.grad(loss), size=2, argnum=1, rng=2, reduce="mean")(w, x, key)

    module = types.ModuleType("module_of_steps")
    module.step = mm.mjit(step, mesh=mesh)
    module.example = lambda: (jnp.eye(4) / 3, jnp.arange(16.0).reshape(4, 4) / 16, jax.random.key(0))
    sys.modules[module.__name__] = module
    found = {}
    try:
        for name, on_one_device in (("mesh", False), ("plain", True)):
            Path(name).mkdir()
            names = [FunctionName(option, f"{module.__name__}:{text}") for option, text in NAMED.items()]
            document = run_step(*names, name, RunSettings(on_one_device=on_one_device))
            assert bool(document["homes"]) != on_one_device
            found[name] = load(name)
    finally:
        del sys.modules[module.__name__]
    rows = compare(found["plain"], found["mesh"], Tolerance())
    assert [row.problem for row in rows] == [None] * len(rows)
    # The keys are those of microbatches: the whole batch draws others.
    whole = jax.jit(jax.grad(loss))(*module.example())
    assert not np.allclose(whole, found["plain"][-1].array)


NAMED = {"--entry": "step", "--args": "example"}


def test_a_function_that_makes_a_step_shows_as_much_as_the_step():
    """A step that a function of the program makes has no name at the top level: one that calls it is verified."""

    def made(x):
        task = mm.Task(name="first", mesh_slice={"stage": 0})
        step = mm.mjit(mm.task(jnp.tanh, task=task), mesh=mm.MultiMesh(axis_sizes=(2,), axis_names=("stage",)))
        return step(x)

    module = types.ModuleType("made_inside")
    module.step, module.plain, module.example = made, jnp.tanh, lambda: (jnp.ones(3),)
    sys.modules[module.__name__] = module
    names = [FunctionName(option, f"{module.__name__}:{text}") for option, text in NAMED.items()]
    plain = FunctionName("--entry", f"{module.__name__}:plain")
    inside = FunctionName("--entry", f"{module.__name__}:train_step")
    try:
        for folder in ("made", "plain"):
            Path(folder).mkdir()
        assert run_step(*names, "made")["compiled_for_a_mesh"]
        assert not run_step(plain, names[1], "plain")["compiled_for_a_mesh"]
        with pytest.raises(
            BadEntryPoint, match=r"has no `train_step`; name .*it makes the step, calls it, and returns"
        ):
            run_step(inside, names[1], "none")
        module.train_step = lambda model, optimizer, /, batch, scale=1.0, *, rate=1: None
        for step, parameters in (("train_step", "model, optimizer, batch"), ("step", "x"), ("example", "")):
            entry, missing = (
                FunctionName(*named) for named in zip(NAMED, (f"made_inside:{step}", "made_inside:new"), strict=True)
            )
            returned = {"": "...", "x": "x,"}.get(parameters, parameters)
            with pytest.raises(BadEntryPoint) as found:
                run_step(entry, missing, "none")
            assert str(found.value) == (
                "--args made_inside:new: `made_inside` has no `new`; write in made_inside.py: `def new(): return "
                f"{returned}`, what `{step}({parameters or '...'})` takes"
            )
    finally:
        del sys.modules[module.__name__]


@pytest.mark.parametrize(
    ("leaf", "wide"),
    [
        (jnp.ones(2, "bfloat16"), "float64"),
        (np.ones(2, "complex64"), "complex128"),
        (np.float32(1), "float64"),
        (jnp.ones(2, "int32"), "int32"),
        (jax.random.key(0), "key<fry>"),
    ],
)
def test_arguments_of_the_float64_run(leaf, wide):
    with jax.enable_x64(True):
        assert str(with_bits(leaf, 64).dtype) == wide
    assert with_bits("text", 64) == "text"


DRAWS = {
    "normal": lambda draw, key: draw(key, (3,)),
    "uniform": lambda draw, key: draw(key, (3,), jnp.float64, minval=0.5),
    "bernoulli": lambda draw, key: draw(key, jnp.asarray(0.9), (8,)),
    "categorical": lambda draw, key: draw(key, jnp.arange(6.0), shape=(4,)),
    "randint": lambda draw, key: draw(key, (4,), 0, 100),
    "choice": lambda draw, key: draw(key, 7, (3,)),
    "gamma": lambda draw, key: draw(key, 2.0, (2,)),
    "permutation": lambda draw, key: draw(key, jnp.arange(5)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_of_the_float64_run(name):
    call, draw, key = DRAWS[name], getattr(jax.random, name), jax.random.key(3)
    with jax.numpy_dtype_promotion("standard"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype")
        expected = np.asarray(call(draw, key))
        with jax.enable_x64(True):
            drawn = _drawing(draw)
            for found in (call(drawn, key), jax.jit(lambda key: call(drawn, key))(key)):
                np.testing.assert_array_equal(np.asarray(found), expected)
                assert found.dtype == (jnp.float64 if jnp.issubdtype(expected.dtype, jnp.floating) else expected.dtype)


def test_arguments_of_the_float64_run_are_those_of_the_first(monkeypatch):
    """What makes them makes others in float64: rounded otherwise, or other integers."""
    module = types.ModuleType("makes")
    module.make = lambda: ({"w": jnp.ones(2) / 3, "n": np.zeros(2)}, jax.random.key(0), 2.5, jnp.ones(3))
    module.step = lambda state, key, rate, x: None
    monkeypatch.setitem(sys.modules, "makes", module)
    saved = {"state['w']": np.ones(2, jnp.bfloat16), "state['n']": np.arange(2), "key": np.zeros(2), "x": np.ones(4)}
    _, (state, key, rate, x), names = step_and_arguments(
        FunctionName("--entry", "makes:step"), FunctionName("--args", "makes:make"), saved
    )
    assert names == ["state", "key", "rate", "x"]
    assert state["w"].dtype == jnp.bfloat16 and isinstance(state["w"], jax.Array)
    assert state["n"].tolist() == [0, 1] and state["n"].flags.writeable
    # Keys are the same by themselves, and another shape is another program.
    assert key == jax.random.key(0) and rate == 2.5 and x.shape == (3,)


class Accumulator(NamedTuple):
    gradients: jax.Array
    inner: jax.Array


def accumulated(state, x):
    """As `optax.MultiSteps`, which names the type of the gradients that it adds up."""

    def added(state):
        return type(state)((state.gradients + x).astype(jnp.float32), state.inner * x.sum())

    return jax.lax.cond(x[0] > 0, added, lambda state: state, state)


@pytest.mark.parametrize("bits", [64, 32])
def test_a_part_of_the_state_that_takes_one_type_only_keeps_it(folder, bits):
    module = types.ModuleType("accumulates")
    module.step, module.refuses = accumulated, lambda state, x: None + 1
    module.example = lambda: (Accumulator(jnp.ones(2, "float32"), jnp.ones((), "float32")), np.ones(2))
    sys.modules[module.__name__] = module
    step, example, refuses = (
        FunctionName("--entry", f"{module.__name__}:{name}") for name in ("step", "example", "refuses")
    )
    try:
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            found = {}
            for name, kept in (("found", None), ("given", "gradients")):
                Path(name).mkdir()
                document = run_step(step, example, name, RunSettings(bits, kept))
                assert document["kept"] == ("gradients" if bits == 64 or kept else None)
                found[name] = [(leaf.name, leaf.kind) for leaf in load(name)]
            assert found["found"] == found["given"]
            own = f"float{bits}"
            assert dict(found["found"]) == {
                "state.gradients": "float32", "state.inner": own, "x": own, "result.gradients": "float32",
                "result.inner": own,
            }  # fmt: skip
            # What no choice helps fails with the error of the first try.
            Path("none").mkdir()
            with pytest.raises(BadEntryPoint, match="failed: TypeError"):
                run_step(refuses, example, "none", RunSettings(bits))
    finally:
        del sys.modules[module.__name__]


def test_how_far_results_move_when_arguments_are_disturbed(tmp_path, monkeypatch):
    module = types.ModuleType("moving")
    module.make = lambda: (jnp.linspace(1.0, 2.0, 64), np.ones(2, np.int32))
    module.step = jax.jit(lambda x, n: (jnp.sign(x - x[::-1][::-1] + (x.sum() - x[::-1].sum())), 2 * x, n))
    monkeypatch.setitem(sys.modules, "moving", module)
    (tmp_path / "spread").mkdir()
    names = FunctionName("--entry", "moving:step"), FunctionName("--args", "moving:make")
    disturb(*names, str(tmp_path / "spread"), 4)
    found = {(leaf.role, leaf.name): leaf.array for leaf in load(str(tmp_path / "spread"))}
    assert list(found) == [(role, f"result[{number}]") for number in (0, 1) for role in ("result", "farthest")]
    # Twice a number moves by at most twice its last place.
    assert 0 < found["result", "result[1]"].max() <= 4 * 2.0**-22
    assert 0 < np.abs(found["farthest", "result[1]"] - 2 * module.make()[0]).max() <= 4 * 2.0**-22


def test_a_difference_is_rounding_only_where_the_original_moves():
    def leaf(values):
        return Leaf("result", "result", np.array(values, np.float32), "float32", "device 0")

    before, after, spread = leaf([1.0, -1.0]), leaf([1.0, 1.0]), np.array([0.0, 2.0])
    (row,) = compare([before], [after], Tolerance())
    assert row.problem is not None and row.spread is None
    (row,) = compare([before], [after], Tolerance(), [replace(before, array=spread)])
    assert (row.problem, row.spread) == (None, 2.0)
    for moved in ([2.0, 0.0], [2.0, 0.1]):
        (row,) = compare([before], [after], Tolerance(), [replace(before, array=np.array(moved))])
        assert row.problem is not None and row.spread is None


def test_a_disturbed_float_changes_in_its_last_place():
    generator = np.random.default_rng(0)
    for dtype in (jnp.float32, jnp.bfloat16, jnp.complex64):
        x = jnp.linspace(-2, 3, 40).astype(dtype)
        moved = disturbed(x, generator)
        assert moved.dtype == dtype and 0 < jnp.sum(moved != x) < 40
        assert jnp.all(jnp.abs(moved - x) <= 2 * jnp.finfo(dtype).eps * jnp.abs(x))
    for kept in (jnp.arange(3), jax.random.key(0), 1.5, "text"):
        assert disturbed(kept, generator) is kept
