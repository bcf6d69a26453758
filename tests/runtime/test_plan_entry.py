"""`mmrewrite plan --entry`: a rewritten step traced in a process of its own, and messages when that goes wrong."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mmrewrite.cli.commands import cli

pytestmark = pytest.mark.family

TINY = """\
import jax
import jax.numpy as jnp

print("printed while importing")
# mm: mesh(stage=2, data=2)


def layer(w, x):
    return jnp.tanh(x @ w)


def model(params, x):
    for w in params:  # mm: stages
        x = layer(w, x)
    return jnp.mean(x * x)


@jax.jit  # mm: mjit
def step(params, x):
    loss, grads = jax.value_and_grad(model)(params, x)  # mm: microbatch(size=2, schedule="1f1b")
    return jax.tree.map(lambda w, g: w - g, params, grads), loss


def arguments():
    return [jnp.eye(4)] * 4, jnp.ones((8, 4))


def shapes():
    return [jax.ShapeDtypeStruct((4, 4), jnp.float32)] * 4, jax.ShapeDtypeStruct((8, 4), jnp.float32)


def not_a_tuple():
    return 3


def too_few():
    return ([jnp.eye(4)] * 4,)


def broken():
    raise KeyError("weights")


number = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("src/tiny").mkdir(parents=True)
    Path("src/tiny/__init__.py").write_text("")
    Path("src/tiny/train.py").write_text(TINY)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli, ["plan", *arguments], catch_exceptions=False)


def entry(step="tiny.train:step", arguments="tiny.train:arguments", *more):
    return run("--entry", step, "--args", arguments, *more)


def test_a_traced_step_adds_what_only_running_the_trace_tells():
    result = entry("tiny.train:step", "tiny.train:shapes", "--format", "json", "--html", "plan.html")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    traced = found["traced"]
    assert traced["mesh"] == {"axes": {"stage": 2, "data": 2}, "devices": [0, 1, 2, 3]}
    assert [row["devices"] for row in traced["submeshes"]] == [[0, 1], [2, 3]]
    # Two of the four weights of 4 x 4 float32 numbers on each submesh.
    assert [(row["state_elements"], row["state_bytes"]) for row in traced["submeshes"]] == [(32, 128), (32, 128)]
    assert [row["tasks"] for row in traced["tasks"]] == [["stage_0"], ["stage_1"]]
    # Forward: two products of (2, 4) by (4, 4), each 2 * 2 * 4 * 4 operations, for each of four microbatches.
    assert all(row["flops"] >= 4 * 2 * 64 for row in traced["tasks"])
    assert [(row["source"], row["target"], row["size"], row["runs"]) for row in traced["transfers"]] == [
        (0, 1, 32, 4),
        (1, 0, 32, 4),
    ]
    (loop,) = traced["loops"]
    assert (loop["schedule"], loop["microbatches"], loop["stages"], loop["costs"]) == ("1f1b", 4, [0, 1], None)
    source, section = found["sections"]
    assert source["timelines"] == []
    (timeline,) = section["timelines"]
    assert (timeline["microbatches"], timeline["makespan"], timeline["live"]) == (4, 15, [2, 1])
    titles = [table["title"] for table in section["tables"]]
    assert titles == ["Submeshes", "Memory per device, when it holds most", "Tasks", "Programs", "Inputs", "Transfers"]
    inputs = section["tables"][4]
    assert inputs["head"][-2:] == ["on its submesh because of", "laid out because of"]
    assert all("as rewritten:" in row[-2] for row in inputs["rows"] if row[1] != "all")
    page = Path("plan.html").read_text()
    assert "tiny.train:step, traced for tiny.train:shapes on 8 virtual devices" in page
    assert page.count("<svg") == 1


def test_measured_costs_are_simulated():
    result = entry("tiny.train:step", "tiny.train:arguments", "--measure", "--memory", "300B", "--format", "json")
    # Two weights of 64 bytes, their gradients, and what microbatches keep.
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert (found["fit"]["limit"], found["fit"]["fits"]) == (300, False)
    assert found["fit"]["sentences"][0] == found["sections"][1]["notes"][0]
    (loop,) = found["traced"]["loops"]
    assert all(seconds > 0 for seconds in loop["costs"]["forward"])
    (timeline,) = found["sections"][1]["timelines"]
    assert timeline["costs"] == "measured"
    # In milliseconds: four microbatches forward and backward on the first submesh take at least so long.
    assert timeline["makespan"] >= 4e3 * (loop["costs"]["forward"][0] + loop["costs"]["backward_input"][0])
    assert {"Measured, each program alone, one microbatch", "Measured, the slowest transfer"} <= {
        table["title"] for table in found["sections"][1]["tables"]
    }


@pytest.mark.parametrize(
    ("step", "arguments", "more", "message"),
    [
        ("tiny.train", "tiny.train:arguments", (), "--entry tiny.train: write module:function, such as train:train"),
        ("tiny.trian:step", "tiny.train:arguments", (), "none of the files given is the module `tiny.trian`"),
        (
            "tiny.train:stpe",
            "tiny.train:arguments",
            (),
            "--entry tiny.train:stpe: `tiny.train` has no `stpe`; did you mean `step`?",
        ),
        (
            "tiny.train:model",
            "tiny.train:arguments",
            (),
            "--entry tiny.train:model: `model` is of type function, not a step that mmruntime.mjit compiled; name",
        ),
        (
            "tiny.train:step",
            "elsewhere:arguments",
            (),
            "--args elsewhere:arguments: there is no module `elsewhere`; give the folder",
        ),
        ("tiny.train:step", "tiny.train:number", (), "`number` is of type int; name a function without arguments"),
        (
            "tiny.train:step",
            "tiny.train:not_a_tuple",
            (),
            "`not_a_tuple()` returned a value of type int; it must return the tuple",
        ),
        (
            "tiny.train:step",
            "tiny.train:broken",
            (),
            "--args tiny.train:broken: failed: KeyError: 'weights' at src/tiny/train.py:",
        ),
        ("tiny.train:step", "tiny.train:too_few", (), "--entry tiny.train:step: cannot be planned: TypeError: "),
        ("tiny.train:step", "tiny.train:shapes", ("--measure",), "returned shapes; --measure runs the step"),
        ("tiny.train:step", "tiny.train:arguments", ("--devices", "2"), "--devices 2: the mesh needs 4; give as many"),
    ],
)
def test_what_goes_wrong_is_one_sentence(step, arguments, more, message):
    result = entry(step, arguments, *more)
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert message in line
    assert "Traceback" not in result.stderr
    assert "mmrewrite-plan-" not in result.stderr


SHARDED = """\
import jax
import jax.numpy as jnp

# mm: mesh(stage=2, model=2); axes(hidden="model")


def layer(w, x):
    h = jnp.tanh(x @ w["up"])  # mm: shard(None, "hidden")
    return h @ w["down"]


@jax.jit  # mm: mjit
def step(params, x):
    for w in params:  # mm: stages
        x = layer(w, x)
    return x


def arguments():
    return [{"up": jnp.ones((4, 8)), "down": jnp.ones((8, 4))}] * 2, jnp.ones((8, 4))
"""


@pytest.mark.slow
def test_a_review_of_a_traced_step_has_its_placement_and_its_collectives():
    Path("src/tiny/train.py").write_text(SHARDED)
    entry = ["--entry", "tiny.train:step", "--args", "tiny.train:arguments"]
    result = CliRunner().invoke(cli, ["diff", "--format", "markdown", *entry], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("### mmrewrite: 5 hints: 5 rewritten, 0 left on purpose, 0 refused")
    tables = {line: lines[number + 2] for number, line in enumerate(lines[:-2]) if line.endswith(":")}
    assert tables["Inputs:"] == (
        "| input | submesh | type | logical axes | layout | bytes per device | carried | on its submesh because of "
        "| laid out because of |"
    )
    assert any("| P(None, 'model') | 64 B |" in line and "the constraint at" in line for line in lines)
    (head,) = (title for title in tables if title.startswith("Collectives"))
    assert tables[head] == ("| submesh | tasks | collective | how many | bytes of each | runs per step | line | why |")
    assert any("| all-reduce | 1 | 128 B |" in line and "train.py as rewritten:" in line for line in lines)


def test_a_review_of_a_step_that_no_file_has():
    entry = ["--entry", "elsewhere:step", "--args", "elsewhere:arguments"]
    result = CliRunner().invoke(cli, ["diff", "--format", "html", *entry])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "none of the files given is the module `elsewhere`" in result.stderr


def test_a_module_that_cannot_be_imported():
    Path("src/tiny/train.py").write_text(TINY.replace("import jax\n", "import jax\nimport no_such_package\n", 1))
    result = entry()
    assert result.exit_code == 2
    line = "No module named 'no_such_package' at src/tiny/train.py:2 (line 4 as rewritten); install what is missing"
    assert f"cannot be imported: ModuleNotFoundError: {line}" in result.stderr


def test_a_module_that_ends_the_process():
    Path("src/tiny/train.py").write_text(TINY + "\nimport os\nos._exit(7)\n")
    result = entry()
    assert result.exit_code == 2
    assert "the process that plans it ended with status 7: printed while importing" in result.stderr


def test_verbose_shows_where_it_happened():
    result = entry("tiny.train:step", "tiny.train:broken", "--verbose")
    assert "Traceback" in result.stderr
    assert "in broken" in result.stderr
