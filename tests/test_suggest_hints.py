"""Programs without hints: where `suggest` puts them, what the rewritten program computes, and what it refuses."""

from __future__ import annotations

import ast
import itertools
import json
import re
import tomllib
from pathlib import Path

import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.source.file import SourceFile
from mmrewrite.source.text import SourceText
from mmrewrite.suggest.candidates import (
    LineOperations,
    imported_as,
    layer_candidates,
    mapped_sites,
    parameter_hints,
    row_hints,
    step_sites,
)
from mmrewrite.suggest.devices import find_device, read_cluster
from mmrewrite.suggest.hint_texts import microbatch_arguments, stages_hint
from mmrewrite.suggest.hint_trials import HintedProject, NewHint, with_hints
from mmrewrite.suggest.model import PlanChoice
from mmrewrite.suggest.search import named
from mmrewrite.suggest.shard_places import ShardPlace, shard_places
from mmruntime import schedules
from tests.command import put, run
from tests.fixture_files import hint_cases
from tests.test_formats import SCHEMAS, validate

ROOT = Path(__file__).resolve().parents[1]
HINT = re.compile(r"(?m)^ *# mm: .*\n|  # mm: .*$")
ON = ("--devices", "4", "--device", "h100", "--stages", "2", "--no-cache")

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The programs of the tutorial are written for JAX's own settings.
    monkeypatch.setenv("JAX_NUMPY_RANK_PROMOTION", "allow")
    monkeypatch.setenv("JAX_NUMPY_DTYPE_PROMOTION", "standard")


# Evaluation above the step, so that the mesh is made above both.
EVALUATED = """\
@jax.jit
def evaluate(p, x):
    return layers(p, x).mean()

"""
HEAD = """\
import jax, jax.numpy as jnp

def layers(p, x):
    for w in p:
        x = x + jnp.tanh(x @ w)
    return x

"""
STEP = """\
def loss_fn(p, x, y):
    return jnp.mean((layers(p, x) - y) ** 2)

@jax.jit
def step(p, x, y):
    loss, g = jax.value_and_grad(loss_fn)(p, x, y)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), loss

"""
EXAMPLE = """\
def example():
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (16, 8))
    return [0.1 * jax.random.normal(key, (8, 8)) for key in keys], x, jnp.sin(x)
"""
SCAN = """\
import jax, jax.numpy as jnp

def layer(x, w):
    return x + jnp.tanh(x @ w), None

def loss_fn(p, x, y):
    x, _ = jax.lax.scan(layer, x, p)
    return jnp.mean((x - y) ** 2)

def train(p, x, y):
    loss, g = jax.value_and_grad(loss_fn)(p, x, y)
    return p - 0.1 * g, loss

step = jax.jit(train, donate_argnums=0)

def example():
    x = jax.random.normal(jax.random.key(0), (16, 8))
    return 0.1 * jax.random.normal(jax.random.key(1), (4, 8, 8)), x, jnp.sin(x)
"""
# The first parameter of the layer is its weights, of which no dimension is that of the rows.
WEIGHTS_FIRST = SCAN.replace(
    "def layer(x, w):\n    return x + jnp.tanh(x @ w), None", "def layer(w, x):\n    return x + jnp.tanh(x @ w)"
)
WEIGHTS_FIRST = WEIGHTS_FIRST.replace("scan(layer, x, p)", "scan(lambda x, w: (layer(w, x), None), x, p)")
CLOSURE = (
    HEAD
    + """\
@jax.jit
def step(p, x, y):
    def loss_fn(p):
        return jnp.mean((layers(p, x) - y) ** 2)

    return jax.tree.map(lambda a, b: a - 0.1 * b, p, jax.grad(loss_fn)(p))

"""
    + EXAMPLE
)
# A model that draws its own random numbers; the runtime says which argument that is.
DRAWING = """\
import jax.numpy as jnp
from flax import nnx

class Model(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(4)])
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return self.drop(x)

@nnx.jit
def step(model, x):
    def loss_fn(model, x):
        return jnp.mean(model(x) ** 2)

    loss, g = nnx.value_and_grad(loss_fn)(model, x)
    return loss

def example():
    return Model(nnx.Rngs(0)), jnp.ones((16, 8))
"""
# No comment can stand above these statements alone.
ONE_LINERS = """\
\"""Layers as arrays.\"""
from __future__ import annotations
import jax, jax.numpy as jnp

def layer(x, w): return x + jnp.tanh(x @ w), None
def layers(p, x): return jax.lax.scan(layer, x, p)[0]
def loss(p, x, y): return jnp.mean((layers(p, x) - y) ** 2)
def train(p, x, y): g = jax.grad(loss)(p, x, y); return p - g
if True: step = jax.jit(train)

def example():
    x = jax.random.normal(jax.random.key(0), (16, 8))
    return 0.1 * jax.random.normal(jax.random.key(1), (4, 8, 8)), x, jnp.sin(x)
"""
CALLED = """\
from mmrewrite import hints
import jax, jax.numpy as jnp

def layer(x, w): return x + jnp.tanh(x @ w), None
def layers(p, x): return hints.shard(hints.stages(jax.lax.scan(layer, x, p))[0], "batch")
def loss(p, x, y): return jnp.mean((layers(p, x) - y) ** 2)
def train(p, x, y): g = hints.microbatch(jax.grad(loss), count=2, argnum=(1, 2), schedule="1f1b")(p, x, y); return p - g
# mm: mesh(stage=2, data=2); axes(batch="data")
if True: step = hints.mjit(jax.jit(train))
"""
# Programs, with the lines above which hints belong, without those of a data axis, and what is cut.
PROGRAMS = {
    "loop": (HEAD + STEP + EXAMPLE, {4: "stages", 11: "mjit", 13: "argnum=(1, 2)"}),
    "evaluation": (HEAD + EVALUATED + STEP + EXAMPLE, {4: "stages", 8: "mjit", 15: "mjit", 17: "argnum=(1, 2)"}),
    "scan": (SCAN, {7: "stages", 14: "mjit", 11: "argnum=(1, 2)"}),
    "weights first": (WEIGHTS_FIRST, {7: "stages", 14: "mjit", 11: "argnum=(1, 2)", 6: "x="}),
    "drawing": (DRAWING, {10: "stages", 14: "mjit", 19: "rng=0"}),
    "closure": (CLOSURE, {4: "stages", 8: "mjit", 13: 'argnum=("x", "y")'}),
}
CONTRASTIVE = STEP.replace(
    "jnp.mean((layers(p, x) - y) ** 2)", "-jnp.mean(jnp.diag(jax.nn.log_softmax(layers(p, x) @ y.T)))"
)
ACCUMULATED = STEP.replace(
    "    loss, g = jax.value_and_grad(loss_fn)(p, x, y)\n",
    "    g, loss = p, 0\n    for i in range(2):\n        g = jax.grad(loss_fn)(p, x[8 * i :], y[8 * i :])\n",
)
# What cannot be a pipeline, with the reason and its line.
REFUSED = {
    "no layers": (
        HEAD.replace("    for w in p:\n        x = x +", "    x = x +").replace("@ w", "@ p[0]") + STEP + EXAMPLE,
        "nothing that this step computes can be cut into stages",
        "train.py:",
    ),
    "contrastive": (HEAD + CONTRASTIVE + EXAMPLE, "multiplies examples with each other", "train.py:9"),
    "accumulated": (HEAD + ACCUMULATED + EXAMPLE, "a loop of the step takes this gradient again", "train.py:15"),
    "no gradient": (
        HEAD + "@jax.jit\ndef step(p, x, y):\n    return layers(p, x)\n\n" + EXAMPLE,
        "the step takes no gradient",
        "train.py:8",
    ),
    "made elsewhere": (
        f"{HEAD}{STEP}step = id(step)\n{EXAMPLE}".replace("@jax.jit\n", ""),
        "no statement compiles `step`",
        "train.py",
    ),
    "not compiled": (HEAD + STEP.replace("@jax.jit\n", "") + EXAMPLE, "no statement compiles `step`", "train.py"),
}


def suggested(*arguments: str, entry: str = "train:step", args: str = "train:example") -> str:
    result = run("suggest", ".", "--entry", entry, "--args", args, *ON, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.family
@pytest.mark.parametrize("name", PROGRAMS)
def test_hints_stand_where_they_belong_and_can_be_taken_away(name: str) -> None:
    text, places = PROGRAMS[name]
    file = put("train.py", text)
    options = ("--format", "json", "--data", "2", "--microbatches", "2")
    printed = suggested(*options)
    document = json.loads(printed)
    assert suggested(*options, "--apply") == printed
    validate(document, SCHEMAS / "suggest.json")
    found = [(each["line"], each["hint"]) for each in document["places"]]
    for line, part in places.items():
        assert any(at == line and part in hint for at, hint in found), (line, part, found)
    is_rows_told = any("shard" in hint for at, hint in found if at in places)
    assert len(found) == len(places) + (1 if is_rows_told else 2), "a mesh and the rows of a data axis besides"
    assert HINT.sub("", file.read_text()) == text
    assert run("diff", "--strict").exit_code == 0
    again = run("suggest", ".", "--entry", "train:step", "--args", "train:example", *ON)
    assert again.exit_code == 2
    assert "has hints already" in again.output


@pytest.mark.slow
def test_a_program_with_hints_is_compared_with_what_it_has_today() -> None:
    put("train.py", HEAD + STEP + EXAMPLE)
    suggested("--data", "2", "--microbatches", "2", "--apply")
    asked = ("plan", ".", "--entry", "train:step", "--args", "train:example", "--suggest", "h100", "--no-cache")
    printed = run(*asked, "--format", "json")
    assert printed.exit_code == 0, printed.output
    document = json.loads(printed.stdout)
    validate(document, SCHEMAS / "suggest.json")
    choice = document["today"]["choice"]
    assert (choice["stages"], choice["data"], choice["count"]) == (2, 2, 2)
    text = run(*asked).stdout
    assert "  today, 4 devices: stage=2, data=2, 2 microbatches" in text
    assert "What to change in its hints" in text


@pytest.mark.family(2)
def test_hints_are_calls_where_no_comment_can_stand() -> None:
    file = put("train.py", ONE_LINERS)
    suggested("--data", "2", "--microbatches", "2", "--apply")
    head, _, rest = ONE_LINERS.partition("import jax,")
    assert file.read_text() == head + CALLED + rest[rest.index("\ndef example") :]
    assert run("diff", "--strict").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("library", ["equinox", "linen", "nnx"])
def test_the_programs_of_the_tutorial_get_their_hints_back_and_compute_the_same(library: str) -> None:
    hinted = (ROOT / "examples" / "tutorial" / library / "train.py").read_text()
    text = HINT.sub("", hinted)
    put("train.py", text)
    step = {"entry": "train:train_step", "args": "train:example_arguments"}
    first = suggested("--check", "--microbatches", "4", **step)
    assert "computes the same on 4 virtual devices; fits" in first
    assert "+        # mm: stages\n         for block in self.blocks:\n" in first
    alone = run("suggest", ".", "--entry", step["entry"], "--args", step["args"], "--devices", "8", "--device", "h100")
    assert alone.stdout.startswith("One device will do")


@pytest.mark.slow
def test_a_script_runs_until_it_calls_its_step() -> None:
    inner = "".join(f"    {line}\n" for line in STEP.splitlines())
    put("train.py", f"{HEAD}{EXAMPLE}\ndef main():\n{inner}    step(*example())\n\nmain()\n")
    result = run("suggest", ".", "--entry", "train:step", "--run", *ON)
    assert result.exit_code == 0, result.output
    assert "+    # mm: mjit\n     @jax.jit\n" in result.stdout


# A step that the script does not compile itself, or a gradient that is compiled where it is made; the program has one
# device, of which it makes its mesh.
TRAINER = """\
import functools

class Trainer:
    @functools.partial(jax.jit, static_argnums=0)
    def update(self, p, x, y):
        loss, g = jax.value_and_grad(loss_fn)(p, x, y)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), loss

"""
LOSS, _, _ = STEP.partition("@jax.jit")
SCRIPTS = {
    "a trainer": (
        {"model.py": HEAD + LOSS + TRAINER},
        "from model import Trainer\njax.set_mesh(jax.make_mesh((jax.device_count(),), (len(jax.devices()) * 'x',)))\n",
        "Trainer().update(*example())\n",
        "update",
        "+    # mm: mjit\n     @functools.partial",
    ),
    "one of two by that name": (
        {"model.py": HEAD + LOSS + TRAINER, "a.py": f"{HEAD}def f(x):\n    return jax.grad(x)\nupdate = jax.jit(f)\n"},
        "from model import Trainer\n",
        "Trainer().update(*example())\n",
        "update",
        "+    # mm: mjit\n     @functools.partial",
    ),
    "a gradient": (
        {"model.py": HEAD + LOSS},
        "from model import loss_fn\n\ncompiled = jax.jit(loss_fn)\ngradient = jax.grad(loss_fn)\n",
        "step = jax.jit(gradient)\nprint(compiled(*example()), step(*example()))\n",
        "step",
        "gradient = jax.grad(loss_fn)\n",
    ),
}


@pytest.mark.family(2)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_may_run_what_it_imports(name: str) -> None:
    files, head, calls, step, expected = SCRIPTS[name]
    for path, text in files.items():
        put(path, text)
    put("train.py", f"import jax, jax.numpy as jnp\n{head}\n{EXAMPLE}\n{calls}")
    result = run("suggest", ".", "--entry", f"train:{step}", "--run", *ON)
    assert result.exit_code == 0, result.output
    assert expected in result.stdout
    assert "microbatch(count=" in result.stdout
    assert ("  besides  the program sets a mesh of its own" in result.stdout) == ("set_mesh" in head)


@pytest.mark.family(5)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_a_pipeline_is_refused_with_its_line(name: str) -> None:
    text, reason, place = REFUSED[name]
    put("train.py", text)
    result = run("suggest", ".", "--entry", "train:step", "--args", "train:example", *ON)
    assert result.exit_code == 1
    assert reason in result.output
    assert place in result.output


def test_a_file_that_was_left_out_is_named() -> None:
    put("model.py", HEAD)
    put("train.py", f"import jax, jax.numpy as jnp\nfrom model import layers\n\n{STEP}{EXAMPLE}")
    result = run("suggest", "train.py", "--entry", "train:step", "--args", "train:example", *ON)
    assert result.exit_code == 1
    assert re.search(r"\nmodel\.py: \d+% of the operations, and not among the files given; give it too", result.output)


@pytest.mark.parametrize("name", schedules.names())
def test_the_codemods_take_every_plan(name: str) -> None:
    text = HEAD + STEP
    stages, gradient, step = 4, 13, 11
    for count, chunks in itertools.product((4, 8), (1, 2, 4)):
        if named(name, 2, count, chunks) is None:
            continue
        choice = PlanChoice(2, 1, 1, count, name, chunks)
        project = HintedProject(
            {"train.py": SourceFile("train.py", text.encode(), "train")},
            lambda files: rewrite_project(files, Registry()),
        )
        hints = (
            NewHint("train.py", step, "mesh(stage=2); mjit"),
            NewHint("train.py", gradient, f"microbatch({', '.join(microbatch_arguments(choice))}, argnum=(1, 2))"),
            NewHint("train.py", stages, stages_hint(choice)),
        )
        assert not project.tried(hints).refused, choice


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", "8", "--device", "H100"), "did you mean h100"),
        (("--devices", "8"), "Give --device"),
        (("--device", "h100"), "How many accelerators"),
        (("--devices", "8", "--device", "h100", "--flops", "many"), "no number of operations"),
        (("--devices", "8", "--device", "h100", "--launch", "60"), "is no time"),
        (("--devices", "8", "--device", "h100", "--run"), "or --run"),
    ],
)
def test_options_that_cannot_be_read_are_told(arguments: tuple[str, ...], message: str) -> None:
    result = run("suggest", "--entry", "a:b", "--args", "a:c", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_cluster_stands_in_place_of_a_record() -> None:
    page = (ROOT / "docs" / "suggest.md").read_text()
    (text,) = re.findall(r"```toml\n(devices.*?)```", page, re.DOTALL)
    record, devices = read_cluster(tomllib.loads(text))
    assert devices == tomllib.loads(text)["devices"]
    assert [each.latency for each in record.links] == pytest.approx([10e-6, 20e-6])
    assert (record.link(8).bandwidth, record.link(64).bandwidth) == (450e9, 50e9)
    assert record.speed("bfloat16") == find_device("h100").speed("bfloat16")
    for wrong in ("[device]\nnam = 1", "cluster = 1", '[device]\nname = "h100"\nmemory = "much"'):
        with pytest.raises(ValueError, match=r"name|cluster|no size"):
            read_cluster(tomllib.loads(wrong))


@pytest.mark.slow
def test_a_layer_is_timed_beside_what_the_model_predicts() -> None:
    put("train.py", HEAD + STEP + EXAMPLE)
    printed = suggested("--calibrate", "--device", "cpu", "--format", "json")
    validate(json.loads(printed), SCHEMAS / "suggest.json")
    found = json.loads(printed)["calibration"]
    assert found["is_used"]
    assert [each["rows"] for each in found["sizes"]] == [1, 16]
    assert min(each["measured"] for each in found["sizes"]) > 0
    text = suggested("--calibrate")
    assert "Not used: this machine has no accelerator, so that says nothing of h100" in text
    assert "989 bf16" in text, "published figures stay"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for b in bs:\n    x = b(x)\n", [(2, 'shard("batch")')]),
        ("for b in bs:\n    x, y = b(x)\n", []),
        ("y = self.blocks(x)\n", [(1, 'shard("batch")')]),
        (
            "def body(h, w):\n    return h, None\ny, _ = scan(body, x, p)\n",
            [(3, 'shard("batch")'), (1, 'shard(h=("batch",))')],
        ),
    ],
)
def test_rows_are_named_on_what_layers_hand_on(text: str, expected: list[tuple[int, str]]) -> None:
    layers = ast.parse(text).body[-1]
    found = row_hints(SourceText(text, "utf-8", has_bom=False), layers, "batch")
    assert [(site.line, hint) for site, hint in found] == expected


def test_rows_are_named_where_all_examples_are() -> None:
    text = "def loss(p, x, y):\n    z = jax.vmap(f)(x)\n    return vmap(f)(z)\ng = grad(loss)(p, a, b)\n"
    source = SourceText(text, "utf-8", has_bom=False)
    assert [site.line for site in mapped_sites(source)] == [2, 3]
    gradient = ast.parse(text).body[-1]
    ((site, hint),) = parameter_hints(source, gradient, {1, 2}, "batch")
    assert (site.line, hint) == (1, 'shard(x=("batch",), y=("batch",))')


# A text, an expression of it, its dimensions, how many `jax.vmap` are around, what becomes of the text, and what the
# hint may be where that is wrong.
ROWS = "rows", "", "cut"
SHARD = 'shard("batch", None, "hidden")'
CALL = 'hints.shard({}, "batch", None, "hidden")'
SHARDED = {
    "assigned": ("h = f(x)\ny = h\n", "f(x)", ROWS, 0, [f"# mm: {SHARD}\nh = f(x)\ny = h\n"]),
    "returned": ("def g(x):\n    return f(x)\n", "f(x)", ROWS, 0, [f"    # mm: {SHARD}\n    return f(x)\n"]),
    "inside": ("y = g(f(x))\n", "f(x)", ROWS, 0, [f"y = g({CALL.format('f(x)')})\n"]),
    "a product": ("y = g(x @ w, 0)\n", "x @ w", ROWS, 0, [f"y = g({CALL.format('x @ w')}, 0)\n"]),
    "one line": ("if a: h = f(x)\n", "f(x)", ROWS, 0, [f"if a: h = {CALL.format('f(x)')}\n"]),
    "of an example": ("h = f(x)\n", "f(x)", ROWS, 1, ['# mm: shard(None, "hidden")\nh = f(x)\n', SHARD]),
    "of a token": ("h = f(x)\n", "f(x)", ROWS, 2, ['# mm: shard("hidden")\n', 'shard(None, "hidden")', SHARD]),
    "of all tokens": (
        "h = vmap(f)(x)\n",
        "vmap(f)(x)",
        ROWS,
        2,
        ['# mm: shard(None, "hidden")\n', SHARD, 'shard("hidden")'],
    ),
    "around all tokens": (
        "h = gelu(vmap(f)(x))\n",
        "vmap(f)(x)",
        ROWS,
        2,
        ['# mm: shard(None, "hidden")\nh = gelu(', SHARD, 'shard("hidden")'],
    ),
    "examples last": ("h = f(x)\n", "f(x)", ("cut", "rows"), 1, ['# mm: shard("hidden")\n', 'shard("hidden")']),
    "heads": ("h = f(x)\n", "f(x)", ("rows", "", "cut", ""), 0, [f"# mm: {SHARD}\n"]),
}


@pytest.mark.parametrize("name", SHARDED)
def test_a_layer_is_cut_where_the_trace_shows_its_dimension(name: str) -> None:
    text, expression, dims, mapped, (expected, *others) = SHARDED[name]
    start = text.index(expression)
    place = {"path": "m.py", "around": (start, start + len(expression)), "dims": dims, "mapped": mapped}
    around = {**place, "around": (text.index("gelu"), len(text) - 1)} if "gelu" in text else None
    made = [place] if around is None else [place, around]
    cuts = [{"products": 0.5, "places": [made]}, {"products": 0.01, "places": [made]}]
    project = HintedProject({"m.py": SourceFile("m.py", text.encode(), "m")}, lambda _: [])
    found: list[ShardPlace] = []
    for _ in range(2 * len(others) + 2):
        found.extend(shard_places(project, cuts, lambda each: each not in found))
    assert expected in with_hints("m.py", text.encode(), [found[0].hint("hidden", "batch")]).result.decode()
    texts = [each.hint("hidden", "batch").text for each in found if each.site.around is not None]
    assert texts[1:] == others, "the call forms of the same"
    assert "batch" not in found[0].hint("hidden", None).text
    without_rows = [{**cuts[0], "places": [[{**place, "dims": ("", "", "cut")}]]}]
    assert not shard_places(project, without_rows, lambda _: True)


def test_a_step_of_another_file_is_told_to_need_the_mesh() -> None:
    texts = {
        "train.py": HEAD + STEP,
        "evaluate.py": f"import jax\nfrom train import layers\n\n{EVALUATED}# run from what `mmrewrite build` wrote\n",
    }
    files = {path: SourceFile(path, text.encode(), path.removesuffix(".py")) for path, text in texts.items()}
    project = HintedProject(files, lambda sources: rewrite_project(sources, Registry()))
    hints = [
        NewHint("train.py", 11, "mesh(stage=1); mjit"),
        NewHint("train.py", 13, "microbatch(count=1, argnum=(1, 2))"),
    ]
    trial = project.tried([*hints, NewHint("train.py", 4, "stages")])
    assert trial.accepted
    assert [(each.path, each.line) for each in trial.remarks] == [("evaluate.py", 5)]


# The step of a program with hints: what the hint `mjit` stands at.
STEP_OF = re.compile(r"# mm:[^\n]*\bmjit\b[^\n]*\n(?:\s*@[^\n]*\n)*\s*(?:def (\w+)|([\w.]+) = )")
STEP_BESIDE = re.compile(
    r"(?:def (\w+)|([\w.]+) =|@)[^\n]*# mm:[^\n]*\bmjit\b[^\n]*(?:\n(?:\s*@[^\n]*\n)*\s*def (\w+))?"
)
HINTED_STEPS = {
    f"{folder.parent.name}/{folder.name}": (text, next(filter(None, (step[1], step[2], *step.groups()[2:]))))
    for folder in hint_cases("before.py")
    if folder.parents[1].name == "hints"
    and (step := STEP_OF.search(text := (folder / "before.py").read_text()) or STEP_BESIDE.search(text)) is not None
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HINTED_STEPS)
def test_a_program_whose_hints_are_deleted_gets_a_patch_that_is_taken_or_a_reason(name: str) -> None:
    text, step = HINTED_STEPS[name]
    bare = HINT.sub("", text)
    file = put("program.py", bare)
    asked = ("--entry", f"program:{step}", "--run", "--devices", "8", "--device", "h100", "--stages", "2", "--no-cache")
    result = run("suggest", "program.py", *asked, "--format", "patch", "--apply")
    if result.exit_code == 0:
        assert HINT.sub("", file.read_text()) == bare
        strict = run("diff", "--strict")
        assert strict.exit_code == 0, strict.output
    else:
        assert re.search(r"^No pipeline\b.+|ended without calling `", result.stderr), result.output
        assert result.exit_code == (2 if "ended without" in result.stderr else 1), result.output
        assert file.read_text() == bare


@pytest.mark.slow
@pytest.mark.parametrize("library", ["equinox", "linen", "nnx"])
def test_both_parameters_of_a_pair_are_cut(library: str) -> None:
    put("train.py", HINT.sub("", (ROOT / "examples" / "tutorial" / library / "train.py").read_text()))
    step = {"entry": "train:train_step", "args": "train:example_arguments"}
    sizes = ("--model", "2", "--data", "1", "--microbatches", "4")
    assert "model=2" in suggested(*sizes, "--check", "--apply", **step)
    assert run("diff", "--strict").exit_code == 0
    options = ("--entry", step["entry"], "--args", step["args"], "--format", "json", "--no-cache")
    inputs = json.loads(run("plan", ".", *options).stdout)["traced"]["inputs"]
    pairs = [each for each in inputs if sorted(each["shape"]) == [32, 128]]
    assert pairs
    assert {"'model'" in each["spec"] for each in pairs} == {True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@jit\ndef step(x):\n    return x\n", [1]),
        ("@a\n@jit\ndef step(x):\n    return x\n", [1]),
        ("def f(x):\n    return x\nstep = jit(f)\n", [3]),
        ("def step(x):\n    return x\ncompiled = jit(step)\n", [3]),
        ("class T:\n    def f(self):\n        self.g = jit(self.step)\n", [3]),
        ("def step(x):\n    return x\n", []),
        ("if x: step = jit(f)\n", ["jit(f)"]),
    ],
)
def test_what_may_compile_a_step_is_found(text: str, expected: list[int | str]) -> None:
    found = step_sites(SourceText(text, "utf-8", has_bom=False), "step")
    assert [each.line if each.around is None else text[slice(*each.around)] for each in found] == expected


@pytest.mark.parametrize(
    ("imports", "name", "expected"),
    [
        ("from a.b import step", "step", [("a.b", "step")]),
        ("from .b import f as step", "step", [("b", "f")]),
        ("from a import Trainer as T", "T.step", [("a.Trainer", "step"), ("a", "Trainer.step")]),
        ("from . import train", "train.step", [("train", "step")]),
        ("import a.b", "a.b.step", [("a.b", "step")]),
        ("import a.b as t", "t.step", [("a.b", "step")]),
        ("import step", "step", []),
        ("import a", "step", []),
    ],
)
def test_a_step_is_looked_for_where_it_is_imported_from(
    imports: str, name: str, expected: list[tuple[str, str]]
) -> None:
    assert list(imported_as(SourceText(imports, "utf-8", has_bom=False), name)) == expected


def test_loops_are_ranked_by_their_operations() -> None:
    text = "for a in x:\n    f(a)\nfor b in y:\n    g(b)\nz = h(x)\n"
    operations = [
        LineOperations(frozenset({("m.py", 2)}), 1.0, 30, 1, False),
        LineOperations(frozenset({("m.py", 4)}), 10.0, 6, 1, False),
        LineOperations(frozenset({("m.py", 5)}), 40.0, 1, 4, False),
    ]
    loops, others = layer_candidates({"m.py": SourceText(text, "utf-8", has_bom=False)}, operations)
    assert [(each.line, each.iterations) for each in loops] == [(3, 6), (1, 30)]
    assert [(each.line, each.iterations) for each in others][:1] == [(4, 1)]
