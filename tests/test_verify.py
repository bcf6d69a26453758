"""`mmrewrite verify` but for the programs that it runs: what it calls, what it says was covered, and messages."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mmrewrite.cli.commands import cli
from mmrewrite.cli.reports._evidence import differences, shown_evidence
from mmrewrite.cli.reports._verify_text import _arrays, _cut, _told_apart
from mmrewrite.mirror.child_process import Mirror
from mmrewrite.mirror.limits import ProgramLimits
from mmrewrite.project.verify_entries import Entry
from mmrewrite.results import Rewrite
from mmrewrite.tracking import Tell, untold
from mmrewrite.verify import programs, verify
from mmrewrite.verify.coverage import _OWN, Coverage
from mmrewrite.verify.judge import Judged

MESH = "# mm: mesh(stage=16)\nSIZE = 3\n"
MODEL = "def layer(x):\n    return x\n\n\ndef model(x):\n    x = layer(x)  # mm: task(stage=0)\n    return x\n"
STEP = """\
import jax
from config import SIZE
from model import layer, model


@jax.jit  # mm: mjit; verify(args=example)
def step(x):
    return model(x)


def other(x):
    x = layer(x)  # mm: task(stage=1)
    return x


def example():
    return (SIZE,)
"""

# What both programs of the fixture `calls` warn of.
WARNINGS: list[str] = []
Call = tuple[str, tuple[str, ...], tuple[str, ...], dict[str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("config", MESH), ("model", MODEL), ("train", STEP)):
        Path(f"{name}.py").write_text(text)
    return tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Both programs find what a test wants; what would have been run is kept."""
    made: list[Call] = []

    def run_module(
        module: str,
        arguments: Sequence[str],
        roots: Sequence[str],
        given: Mapping[str, str],
        what: str,
        limits: ProgramLimits,
        tell: Tell = untold,
    ) -> tuple[dict[str, Any], str]:
        made.append((module, tuple(arguments), tuple(roots), dict(given)))
        if module == "_commands.verify":
            found = {"compiled_for_a_mesh": True, "devices": 16, "platform": "cpu", "like_arguments": {"result": "x"}}
            return {**found, "homes": {}, "warnings": WARNINGS}, ""
        row = {"name": "result", "role": "result", "shape": [2, 3], "type": "float32", "absolute": 1e-7}
        row |= {"relative": None, "where": "devices 0-1", "original_where": "device 0", "problem": None}
        return {"rows": [row | {"comparable": True}], "epsilon": 1e-7}, ""

    monkeypatch.setattr(programs, "run_module", run_module)
    monkeypatch.setattr(verify, "check_runtime", lambda command: None)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["verify", *arguments], catch_exceptions=False)


def test_both_programs_are_run_apart_and_seeded_alike(calls: list[Call], folder: Path) -> None:
    assert run("--rtol", "0.5").exit_code == 0
    (module, first, originals, one), (_, second, roots, many), (comparison, compared, nothing, _) = calls
    assert module == "_commands.verify"
    assert first[:2] == second[:2] == ("train:step", "train:example")
    # Neither program is told where the other one saves, and the comparison imports nothing of theirs.
    assert first[-1] not in second
    assert (comparison, nothing) == ("_commands.compare", ())
    assert compared == (first[-1], second[-1], "--rtol", "0.5")
    assert set(originals) == {f"{folder}/"}
    assert roots[0] != originals[0]
    assert roots[-1] == originals[0]
    assert one["XLA_FLAGS"].endswith("device_count=1")
    # As many as the mesh needs.
    assert many["XLA_FLAGS"].endswith("device_count=16")
    assert one["PYTHONHASHSEED"] == many["PYTHONHASHSEED"] == "0"
    assert one["JAX_PLATFORMS"] == "cpu"


def test_real_devices_are_left_as_they_are_set_up(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    result = run("--real-devices")
    assert [given["JAX_PLATFORMS"] for *_, given in calls] == ["tpu", "tpu", "cpu"]
    assert all("XLA_FLAGS" not in given for *_, given in calls[:2])
    assert "the original on the first device, the rewritten program on 16 cpu devices" in result.stdout


def test_evidence_is_tied_to_the_patch_and_says_what_it_leaves_out(calls: list[Call]) -> None:
    patch = CliRunner().invoke(cli, ["diff"]).stdout_bytes
    result = run("--format", "json")
    found = json.loads(result.stdout)
    assert found["passed"]
    assert found["patch_sha256"] == hashlib.sha256(patch).hexdigest()
    assert [file["path"] for file in found["files"]] == ["config.py", "model.py", "train.py"]
    assert found["files"][0]["before"] == hashlib.sha256(MESH.encode()).hexdigest()
    (check,) = found["checks"]
    assert (check["entry"], check["status"], check["named_by"]) == ("train:step", "equal", "train.py:6")
    assert found["not_covered"] == [
        "train.py:12: `task(stage=1)` is rewritten, and no function found equal uses it",
        "to have that compared too, name a step that uses it: by --entry, or by a hint `verify(args=FUNCTION)`",
        "other arguments: each function was called once, with one set of arguments",
        "time and memory, and side effects",
        "real devices, and several processes",
    ]


def test_text(calls: list[Call]) -> None:
    result = run()
    assert result.stdout.startswith(
        "train:step with train:example (train.py:6)\n"
        "  the original on 1 device, the rewritten program on 16 virtual devices\n"
        "  result has the paths, shapes and types of x: its gradients, or its new value\n\n"
        "  array   differs by  relative  verdict\n"
        "  result       1e-07         -  equal\n\n"
        "  where they are:\n"
        "    devices 0-1: 1 result\n"
    )
    assert result.stdout.endswith(
        "\n\nfunction    compared with  differs by  relative  verdict\n"
        "train:step  the original        1e-07         -  equal\n"
    )
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stderr == "3 files would change\n"


def test_warnings_of_the_rewritten_program_stand_by_the_verdict(
    calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the evidence in a report of changes, too."""
    warning = "train.py:9: DeprecationWarning: `old` goes"
    monkeypatch.setattr("tests.test_verify.WARNINGS", [warning, "mjit: step cuts no value over 'data'"])
    text = run().stdout
    said = f"Warnings of the rewritten program:\n  {warning}\n  mjit: step cuts no value over 'data'\n\nfunction "
    assert said in text and text.rindex("verdict") > text.index(said)
    evidence = run("--format", "json").stdout
    (check,) = json.loads(evidence)["checks"]
    assert check["warnings"] == [warning, "mjit: step cuts no value over 'data'"]
    Path("evidence.json").write_text(evidence)
    for format_, verdict in (("markdown", "| verdict |"), ("html", "verdict</th>")):
        review = CliRunner().invoke(cli, ["diff", "--format", format_, "--evidence", "evidence.json"]).stdout
        for page in (run("--format", format_).stdout, review):
            assert (
                page.index("Warnings of the rewritten program") < page.index("DeprecationWarning") < page.index(verdict)
            )
    assert run("--format", "markdown").stdout.startswith(
        "### mmrewrite verify: equal; 1 rewritten hint not reached; 2 warn"
    )
    assert run("--format", "html").stdout.index("2 warnings</a>") < run("--format", "html").stdout.index("<h2")


@pytest.mark.parametrize("form", ["{}:{}; look there", 'File "{}", line {}, in model'])
def test_a_failure_of_the_rewritten_program_is_told_at_the_lines_of_the_source(
    form: str, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the hint, where it made the line; and nothing is said to hold."""
    Path("same.py").write_text("X = 1\n")
    answer = programs.run_module

    def run_module(module: str, arguments: Sequence[str], roots: Sequence[str], *rest: Any) -> tuple[Any, str]:
        if not calls:
            return answer(module, arguments, roots, *rest)
        lines = (Path(roots[0], "model.py").read_text()).count("\n")
        told = [form.format(Path(roots[0], "model.py"), number + 1) for number in range(lines)]
        told.append(form.format(Path(roots[0], "same.py"), 1))
        return {"error": "it fails", "traceback": "\n".join(told), "warnings": []}, ""

    monkeypatch.setattr(programs, "run_module", run_module)
    result = run()
    assert result.exit_code == 1 and "SHA-256" not in result.stdout
    # Two lines are imported for the hint of line 6, with an empty one.
    before = [6, 6, 6, 1, 2, 3, 4, 5, 6, 7]
    told = [form.format("model.py", f"{line} (line {at} as rewritten)") for at, line in enumerate(before, start=1)]
    assert "\n".join([*told, form.format("same.py", 1)]) in result.stdout
    assert "SHA-256" not in run("--format", "html").stdout + run("--format", "markdown").stdout


def test_an_entry_of_another_module_leads_through_its_imports(calls: list[Call]) -> None:
    Path("main.py").write_text("from train import other as chosen\n")
    found = json.loads(run("--format", "json", "--entry", "main:chosen", "--args", "train:example").stdout)
    (check,) = found["checks"]
    assert check["status"] == "equal"
    assert [line.partition(" is rewritten")[0] for line in found["not_covered"][:2]] == [
        "model.py:6: `task(stage=0)`",
        "train.py:6: `mjit`",
    ]


def test_a_step_that_is_given_its_model_does_not_cover_other_steps(calls: list[Call]) -> None:
    step = STEP.replace("def step(x):\n    return model(x)", "def step(model, x):\n    return model(x)").replace(
        "(SIZE,)", "model, SIZE"
    )
    Path("train.py").write_text(f"{step}\n\n@jax.jit  # mm: mjit\ndef evaluate(x):\n    return model(x)\n")
    found = json.loads(run("--format", "json").stdout)
    assert found["not_covered"][:2] == [
        "train.py:20: `mjit` is rewritten, and no function found equal uses it",
        "to have that compared too, name a step that uses it: by --entry, or by a hint `verify(args=FUNCTION)`",
    ]


EVALUATE = """

@jax.jit  # mm: mjit
def evaluate(x):
    with jax.named_scope("evaluate"):  # mm: task(stage=2)
        return model(x)


class Head:
    def __call__(self, x):
        return layer(x)  # mm: task(stage=3)
"""


def test_after_apply_what_no_function_reaches_is_found_in_the_calls(calls: list[Call]) -> None:
    """By what differs from a revision, with hints in it or not: those in the files are gone."""
    Path("train.py").write_text(STEP + EVALUATE)
    before = {name: Path(f"{name}.py").read_bytes() for name in ("config", "model", "train")}
    hinted = json.loads(run("--format", "json").stdout)["unreached"]
    assert hinted == ["train.py:12", "train.py:20", "train.py:22", "train.py:28"]
    assert CliRunner().invoke(cli, ["apply"]).exit_code == 0
    entry = Entry("train:step", "train:example", "--entry")
    lines = Path("train.py").read_text().splitlines()
    is_call = re.compile(r"mm\.(task|mjit|register_task)\b").search
    written = [f"train.py:{at}" for at, text in enumerate(lines, start=1) if is_call(text)]
    assert len(written) == 5
    for without_hints in (False, True):
        changed = []
        for name, data in before.items():
            data = re.sub(rb"  # mm: .*|(?m:^# mm: .*\n)", b"", data) if without_hints else data
            changed.append(Rewrite(f"{name}.py", data, Path(f"{name}.py").read_bytes()))
        found = Coverage.of_calls(changed, [], ())
        reached = found.of(entry)
        unreached = sorted(found.rewritten - reached)
        assert [f"{path}:{place.line}" for path, place in unreached] == written[1:]
        assert {path for path, _ in reached} == {"model.py", "train.py"} and len(reached) == 2
        evaluated = found.of(Entry("train:evaluate", "train:example", "--entry"))
        assert {"mm.register_task", "mm.mjit"} == {place.text for path, place in evaluated if path == "train.py"}
    # What the revision has already, rewritten, is not of this change.
    rewritten = [Rewrite(each.path, each.result, each.result + b"\nX = 1\n") for each in changed]
    assert not Coverage.of_calls(rewritten, [], ()).rewritten


def test_what_was_refused_is_not_proved(calls: list[Call]) -> None:
    Path("train.py").write_text(STEP.replace("x = layer(x)  # mm", "x = layer(x) + layer(x)  # mm"))
    result = run("--entry", "train:other", "--args", "train:example")
    assert result.exit_code == 1
    assert (
        "train:other  the original            -         -  NOT proved: it reaches no rewritten hint\n" in result.stdout
    )
    assert "hints that are not rewritten: 1 refused, 0 left alone on purpose" in result.stdout
    assert "without a hint" not in result.stdout
    assert calls == []


def test_reports_without_a_hint_are_no_hints(calls: list[Call]) -> None:
    Path("train.py").write_text(f"{STEP}\n\n@jax.jit\ndef evaluate(x):\n    return model(x)\n")
    found = json.loads(run("--format", "json").stdout)
    assert "refusals besides those of hints, which `mmrewrite diff` lists: 1" in found["not_covered"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--entry", "train:step"), "--entry and --args go together"),
        (("--real-devices", "--devices", "4"), "--devices counts virtual devices"),
        (("--entry", "train", "--args", "train:example"), "--entry train: write module:function"),
        # Nothing is further away than NaN, so everything would be equal.
        (("--rtol", "nan"), "'--rtol': nan is no finite number"),
        (("--atol", "NaN"), "'--atol': NaN is no finite number"),
        (("--atol", "inf"), "'--atol': inf is no finite number"),
        (("--time-limit", "nan"), "'--time-limit': nan is no finite number"),
        (("--time-limit", "inf"), "'--time-limit': inf is no finite number"),
        (("--memory-limit", "nan"), "'--memory-limit': nan is no finite number"),
        (("--memory-limit", "0"), "'--memory-limit': 0.0 is not in the range x>0"),
    ],
)
def test_wrong_usage(calls: list[Call], arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_module_that_is_not_there(calls: list[Call]) -> None:
    result = run("--entry", "trian:step", "--args", "train:example")
    assert result.exit_code == 2
    assert "none of the files given is the module `trian`; give its file or folder as PATH" in result.stdout


def test_fewer_devices_than_a_mesh_has(calls: list[Call]) -> None:
    for command in ("verify", "plan"):
        words = [command, "--entry", "train:step", "--args", "train:example", "--devices"]
        result = CliRunner().invoke(cli, [*words, "8"], catch_exceptions=False)
        assert result.exit_code == 2 and not calls
        assert "Error: --devices 8: the mesh needs 16; give as many, or leave --devices out" in result.stderr
    assert run("--devices", "16").exit_code == 0
    # With another mesh, the step may be one of that.
    Path("other.py").write_text("import jax\n# mm: mesh(stage=2)\n\n\n@jax.jit  # mm: mjit\ndef g(x):\n    return x\n")
    result = run("--devices", "1")
    assert "--devices 1: the smallest mesh needs 2" in result.stderr


def test_no_function_is_named(calls: list[Call]) -> None:
    Path("train.py").write_text(STEP.replace("; verify(args=example)", ""))
    result = run()
    assert result.exit_code == 2
    assert "Error: no function to call: write `# mm: verify(args=make_example_args)` on the step" in result.stderr


def test_nothing_would_change(calls: list[Call]) -> None:
    Path("model.py").write_text(MODEL.replace("  # mm: task(stage=0)", ""))
    Path("config.py").write_text("SIZE = 3\n")
    Path("train.py").write_text("def step(x):  # mm: verify(args=nobody)\n    return x\n")
    result = run("--entry", "train:step", "--args", "train:example")
    assert result.exit_code == 2
    # The messages come first.
    first, _, last = result.stderr.partition("Error: ")
    assert "`nobody` is no name of this module" in first
    assert last.startswith("none of these files would change") and "write what the messages above ask for" in last
    Path("train.py").write_text("def step(x):\n    return x\n")
    result = run("--entry", "train:step", "--args", "train:example")
    assert "; after `apply`, give the revision before it: --since HEAD~1" in result.stderr


FLOATS = {"role": "result", "name": "result", "shape": [3], "where": "device 0", "original_where": "device 0"}


def without_folders(options: Sequence[str]) -> list[str]:
    """The options of a run, and not the folder of another."""
    return [word for before, word in zip(["", *options], options, strict=False) if "--saved" not in (before, word)]


def judged(
    monkeypatch: pytest.MonkeyPatch,
    *,
    wide: Mapping[str, Any],
    throughout: Mapping[str, Any] | None = None,
    narrow: Mapping[str, Any] | None = None,
    first: Mapping[str, Any] | None = None,
    kept: str | None = None,
    own: tuple[str, ...] = (),
    plain: float | None = None,
    same: Mapping[str, Any] | None = None,
    spread: float | None = None,
    epsilon: float = 1e-7,
    wide_epsilon: float = 1e-16,
    near: Sequence[bool] = (True,),
    ran: list[str] | None = None,
    phases: list[str] | None = None,
) -> programs.Checked:
    """The judgement on a result that differs by 0.1, and in float64 as `wide` says; or on one that is the `same`.

    Where arguments are disturbed, the original's moves by `spread`, if that is enough to call the difference rounding.
    In float64 throughout it differs as `throughout` says, else likewise. With `first` it differs as that says, and in
    float32 as `narrow` says. The programs compute in types with `epsilon`, and in float64 throughout with
    `wide_epsilon`. Whether the rewritten one is about as near to float64 as the original says `near`, first by itself
    and then with disturbed arguments. What is run is put into `ran`, and by
    what name it is shown into `phases`.
    """
    saved: dict[str, tuple[str, ...]] = {}
    ran = [] if ran is None else ran
    judgements = iter(near)

    def run_module(module: str, arguments: Sequence[str], *rest: Any) -> tuple[dict[str, Any], str]:
        if module == "_commands.disturb":
            saved[arguments[3]] = ("disturbed", *arguments[4:])
            ran.append(" ".join(["disturbed", *without_folders(arguments[6:])]))
            return {"count": 16}, ""
        if module == "_commands.verify":
            saved[arguments[3]] = tuple(arguments[4:])
            ran.append(" ".join(without_folders(arguments[4:])))
            said = {"compiled_for_a_mesh": True, "devices": 2, "platform": "cpu", "like_arguments": {}, "homes": {}}
            said["epsilon"] = wide_epsilon if "--throughout" in arguments else epsilon
            return {**said, "kept": kept if "--bits" in arguments else None}, ""
        original, rewritten = (saved[folder] for folder in arguments[:2])
        given = dict(zip(arguments[2::2], arguments[3::2], strict=True))
        row: dict[str, Any] = {"type": "float32", "absolute": 0.1, "problem": "they differ", "comparable": True}
        if "--reference" in given:
            assert "64" in saved[given["--reference"]] and "64" not in (*original, *rewritten)
            row |= {"near": next(judgements), "error_measure": "norm", "original_error": 0.1, "rewritten_error": 0.2}
        elif "--spread" in given:
            moved = saved[given["--spread"]]
            assert moved[:3] == ("disturbed", "--count", "16")
            assert sorted(moved[3:]) == sorted(original)
            row |= {} if spread is None else {"problem": None, "spread": spread}
        elif same is not None:
            row |= {"absolute": 0.0, "problem": None, **same}
        elif "--bits" in original:
            # Each takes the arguments that it made in its own types.
            assert saved[original[original.index("--saved") + 1]] == saved[rewritten[rewritten.index("--saved") + 1]]
            options, others = map(without_folders, (original, rewritten))
            assert [text for text in options if text != "--on-one-device"] == [
                *others,
                *(() if kept is None else ("--kept", kept)),
            ]
            widest = throughout if throughout is not None and "--throughout" in original else wide
            row |= {"type": "float64", **widest} if "64" in original else {"type": "float32", **(narrow or {})}
        elif "--on-one-device" in original and plain is not None:
            row |= {"absolute": plain, "problem": "they differ" if plain else None}
        elif first is not None:
            row |= first
        return {"rows": [FLOATS | {"relative": None} | row], "epsilon": epsilon}, ""

    monkeypatch.setattr(programs, "run_module", run_module)
    entry = Entry("train:step", "train:example", "--entry")
    settings = programs.ProgramSettings(2, None, None, ProgramLimits(), own)
    shown = [] if phases is None else phases

    def phase(text: str) -> contextlib.nullcontext[Tell]:
        shown.append(text)
        return contextlib.nullcontext(untold)

    return programs.check_programs(entry, Mirror("mirror", {}, {}), settings, phase)


@pytest.mark.parametrize("devices", [None, 2])
def test_runs_compile_in_little_time_and_share_what_they_compile(devices: int | None) -> None:
    settings = programs.ProgramSettings(devices, None, None, ProgramLimits(), ())
    entry = Entry("train:step", "train:example", "--entry")
    runs = programs.ProgramRuns(
        entry, Mirror("mirror", {}, {}), settings, lambda _: contextlib.nullcontext(untold), "a"
    )
    compiled = runs._compiled_quickly({})
    # On real devices it is the programs that users run.
    assert compiled.get("JAX_DISABLE_MOST_OPTIMIZATIONS") == (None if devices is None else "1")
    assert compiled["JAX_COMPILATION_CACHE_DIR"] == "a/compiled"
    own = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "JAX_COMPILATION_CACHE_DIR": "mine"}
    assert runs._compiled_quickly(own) == own


def test_rounding_shrinks_with_the_precision_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, wide={"absolute": 1e-11})
    assert (found.status, found.rows[0]["rounding"], found.rows[0]["float64"]) == ("equal", True, 1e-11)
    found = judged(monkeypatch, wide={"absolute": 0.0, "problem": None})
    assert found.rows[0]["rounding"]


NOTHING = [
    f"the run in {precision} makes it float32 as well, so it tells nothing"
    for precision in ("float64", "float64 throughout")
]


@pytest.mark.parametrize(
    ("wide", "problem"),
    [
        ({"absolute": 0.1}, "they differ; in float64 the largest difference is 0.1"),
        # A mistake that is small in float64 as well, and even within its tolerance, is one.
        ({"absolute": 1e-5, "problem": None}, "they differ; in float64 the largest difference is 1e-05"),
        ({"absolute": None}, "they differ; in float64 the largest difference is infinity or NaN"),
        ({"type": "float32"}, f"they differ; {'; '.join(NOTHING)}"),
        ({"comparable": False}, "they differ"),
        ({"name": "other"}, "they differ"),
    ],
)
def test_a_mistake_stays_one(monkeypatch: pytest.MonkeyPatch, wide: Mapping[str, Any], problem: str) -> None:
    found = judged(monkeypatch, wide=wide)
    assert (found.status, found.rows[0]["problem"]) == ("different", problem)


def test_types_that_a_program_names_are_widened_before_a_difference_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A model that computes in bfloat16 does so whatever its arguments are.
    mixed = {"absolute": 0.1, "type": "float64"}
    found = judged(monkeypatch, wide=mixed, throughout={"absolute": 1e-12})
    assert (found.status, found.rows[0]["rounding"], found.rows[0]["float64"]) == ("equal", True, 1e-12)
    found = judged(monkeypatch, wide={"type": "float32"}, throughout={"absolute": 1e-12})
    assert found.status == "equal"
    found = judged(monkeypatch, wide={"type": "float32"}, throughout={"absolute": 0.1})
    assert found.rows[0]["problem"] == (
        f"they differ; {NOTHING[0]}; in float64 throughout the largest difference is 0.1"
    )


def test_a_result_of_float32_that_comes_of_float64_is_told_by_how_it_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, wide={"absolute": 1e-11, "type": "float32"}, kept="acc_grads")
    assert (found.status, found.rows[0]["rounding"], found.rows[0]["float64"]) == ("equal", True, 1e-11)
    assert found.notes[-1] == "`acc_grads` is as given in the run in float64 too: the step takes no other type there"


@pytest.mark.parametrize("own", [(), ("random numbers",)])
def test_what_the_original_moves_as_far_alone_is_rounding(
    monkeypatch: pytest.MonkeyPatch, own: tuple[str, ...]
) -> None:
    # An update by the sign of a gradient that is zero in exact arithmetic is as large in every precision.
    found = judged(monkeypatch, wide={"absolute": 0.1}, own=own, plain=0.1, spread=0.2)
    assert (found.status, found.rows[0]["rounding"], found.rows[0]["spread"]) == ("equal", True, 0.2)
    assert "ran 16 times with arguments changed in their last place" in found.notes[-1]
    assert judged(monkeypatch, wide={"absolute": 0.1}, own=own, plain=0.1).status == "different"


SHORT = {"type": "bfloat16", "absolute": 0.1, "problem": "they differ", "tolerable": True}
AGREE = {"absolute": 0.0, "relative": 0.0, "problem": None}
ERROR = "error against float64: original 0.1, rewritten 0.2"


@pytest.mark.parametrize(
    ("near", "problem"),
    [
        ((True,), None),
        # By luck, the original may be nearer than it would be with other arguments.
        ((False, True), None),
        # A sum that stops growing in bfloat16 is right in float64.
        ((False, False), f"they differ; both agree in float64, and the rewritten program rounds more: {ERROR}"),
    ],
)
def test_short_types_are_held_to_float64(
    monkeypatch: pytest.MonkeyPatch, near: Sequence[bool], problem: str | None
) -> None:
    ran: list[str] = []
    found = judged(monkeypatch, wide=AGREE, first=SHORT, epsilon=2**-7, near=near, ran=ran)
    (row,) = found.rows
    assert (found.status, row["problem"]) == ("different" if problem else "equal", problem)
    assert (row["rounding"], row["original_error"], row["rewritten_error"]) == (problem is None, 0.1, 0.2)
    assert {"near", "tolerable", "tolerated"}.isdisjoint(row)
    asked = [note for note in found.notes if note.startswith("result is farther from float64 than in the original (")]
    how = "its error is not as large" if problem else "its error is as large"
    assert [note.rpartition("once more, ")[2] for note in asked] == [how] * (len(near) > 1)
    # One run of each in float64: types that programs name, as models in mixed precision do, are wider in the first.
    assert ran == ["", "", *["--bits 64 --throughout"] * 2, *["disturbed --epsilon 0.0078125"] * (len(near) - 1)]


@pytest.mark.parametrize("near", [(True,), (False, False, False)])
def test_equal_in_float64_is_not_equal_with_random_numbers(
    monkeypatch: pytest.MonkeyPatch, near: Sequence[bool]
) -> None:
    """The same microbatches on one device may have the same mistake, so that the original has the say."""
    ran: list[str] = []
    phases: list[str] = []
    own = ("random numbers",)
    short = {"wide": AGREE, "first": SHORT, "plain": 0.0, "own": own, "epsilon": 2**-7}
    found = judged(monkeypatch, **short, near=near, ran=ran, phases=phases)
    # Which run it is of how many at most, by names that leave room for what is done of it.
    shown = [text for text in phases if text != "comparison"]
    assert [text.partition(" ")[0] for text in shown] == [f"{number + 1}/9" for number in range(len(ran))]
    assert max(map(len, shown)) <= 44 and shown[:2] == ["1/9 original", "2/9 rewritten"]
    assert (found.status, found.reference) == ("equal" if all(near) else "different", "microbatched")
    assert ran[2:6] == [
        "--on-one-device",
        "--bits 64 --throughout",
        "--on-one-device --bits 64 --throughout",
        "--bits 64 --throughout",
    ]
    # The original's errors, and what moves in the same microbatches.
    assert (
        ran[6:] == ["disturbed --epsilon 0.0078125", "disturbed --on-one-device --epsilon 0.0078125"][: len(near) - 1]
    )


def test_a_mistake_in_a_short_type_is_one_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    wide = {"absolute": 0.1, "relative": 1e-3}
    found = judged(monkeypatch, wide=wide, first=SHORT, epsilon=2**-7, ran=ran)
    assert found.rows[0]["problem"] == "they differ; in float64 throughout the largest difference is 0.1"
    # The last place of a short type may be as large as a mistake.
    assert ran[4:] == ["disturbed --bits 64 --throughout"]
    found = judged(monkeypatch, wide=wide, first=SHORT, epsilon=2**-7, spread=0.2)
    assert (found.status, found.rows[0]["spread"]) == ("equal", 0.2)
    assert "the original ran 16 times in float64 with arguments changed in their last place" in found.notes[-1]
    # A part that stays float32 need not shrink as far.
    assert judged(monkeypatch, wide={**wide, "relative": 1e-6}, first=SHORT, epsilon=2**-7).status == "equal"


@pytest.mark.parametrize(("tolerable", "status"), [(True, "equal"), (False, "different")])
def test_without_a_run_in_float64_a_tolerance_is_all_there_is(
    monkeypatch: pytest.MonkeyPatch, tolerable: bool, status: str
) -> None:
    first = {**SHORT, "tolerable": tolerable}
    found = judged(monkeypatch, wide={"name": "none"}, first=first, epsilon=2**-7, wide_epsilon=2**-7)
    (row,) = found.rows
    assert (found.status, row.get("tolerated", False)) == (status, tolerable)
    assert any("how far the two programs are from it is not known" in note for note in found.notes) == tolerable
    assert any("nothing but the tolerance says" in note for note in found.notes) == tolerable
    values = {"entry": "train:step", "args": "train:example", "status": status, "problem": None, "arrays": found.rows}
    verdict = "equal within tolerance" if tolerable else "NOT equal"
    assert shown_evidence([values], [], "", 0).rows[0].cells[-1] == verdict


DOUBLE = {"type": "float64", "absolute": 1e-12}


@pytest.mark.parametrize(
    ("narrow", "problem"),
    [
        ({"absolute": 1e-4}, None),
        ({"absolute": 2e-12}, "they differ; in float32 the largest difference is 2e-12"),
        ({"absolute": 0.0, "problem": None}, "they differ; in float32 the largest difference is 0"),
        (
            {"absolute": 2e-12, "type": "float64"},
            "they differ; the run in float32 makes it float64 as well, so it tells nothing",
        ),
    ],
)
def test_a_program_in_float64_is_held_against_its_run_in_float32(
    monkeypatch: pytest.MonkeyPatch, narrow: Mapping[str, Any], problem: str | None
) -> None:
    found = judged(monkeypatch, wide={"name": "no run in float64"}, first=DOUBLE, narrow=narrow)
    assert (found.status, found.rows[0]["problem"]) == ("different" if problem else "equal", problem)
    if problem is None:
        assert (found.rows[0]["rounding"], found.rows[0]["float32"]) == (True, 1e-4)


@pytest.mark.parametrize("change", [{"role": "argument"}, {"comparable": False}])
def test_a_step_without_results_is_not_equal_to_anything(
    monkeypatch: pytest.MonkeyPatch, change: Mapping[str, Any]
) -> None:
    check = judged(monkeypatch, wide={}, same=change)
    assert (check.status, check.rows) == ("not run", ())
    assert check.problem is not None and "nothing to compare" in check.problem


def test_microbatches_that_draw_are_compared_with_the_same_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, wide={"absolute": 0.1}, own=("random numbers",), plain=0.0)
    assert (found.status, found.reference) == ("equal", "microbatched")
    assert "microbatches have random numbers of their own" in found.notes[-1]
    found = judged(monkeypatch, wide={"absolute": 0.1}, own=("random numbers",), plain=0.1)
    assert (found.status, found.reference) == ("different", "microbatched")
    found = judged(monkeypatch, wide={"absolute": 1e-12}, own=("random numbers", "batch statistics"), plain=0.1)
    assert (found.status, found.rows[0]["rounding"]) == ("equal", True)
    assert "microbatches have random numbers and batch statistics of their own" in found.notes[0]


@pytest.mark.parametrize(
    ("hint", "own"),
    [
        ("microbatch(size=2, rng=1)", ["random numbers"]),
        ('microbatch(size=2, rng = "key", reduce="exact")', ["random numbers"]),
        ('microbatch(size=2, batch_stats="microbatch")', ["batch statistics"]),
        ('microbatch(rng=1, size=2, batch_stats="microbatch")', ["random numbers", "batch statistics"]),
        ("microbatch(size=2, rng=None)", []),
        ("microbatch(size=2, rng=())", []),
        ("microbatch(size=2)", []),
        ("task(stage=0)", []),
    ],
)
def test_hints_with_which_microbatches_give_other_values(hint: str, own: list[str]) -> None:
    assert [what for what, pattern in _OWN.items() if pattern.search(hint)] == own


def test_long_names_of_arrays_are_told_apart() -> None:
    layer = "['MultiHeadDotProductAttention_0']['key']['bias']"
    names = [f"result[0].opt_state[1][0].{part}['block_{number}']{layer}" for part in ("mu", "nu") for number in (0, 1)]
    short = _told_apart([*names, "result[1]"])
    assert short == [f"....{part}['block_{number}']..." for part in ("mu", "nu") for number in (0, 1)] + ["result[1]"]
    assert _told_apart(names[:1]) == [_cut(names[0], 43)]


def test_rounding_shares_a_line_where_there_are_many_arrays() -> None:
    equal = {"role": "result", "absolute": 0.0, "relative": 0.0, "problem": None, "rounding": False}
    rows = [{**equal, "name": f"result[{number}]"} for number in range(16)]
    rows += [{**equal, "name": f"result[{number}]", "absolute": 1e-11, "rounding": True} for number in (16, 17)]
    assert [(line[0], line[-1]) for line in _arrays(rows)] == [("16 results", "equal"), ("2 results", "rounding")]
    assert len(list(_arrays(rows[2:]))) == 16


def test_the_verdict_stands_beside_the_largest_difference_of_all_arrays(
    monkeypatch: pytest.MonkeyPatch, calls: list[Call]
) -> None:
    """In the last line of the text, and in every other format: the table above it must not say more."""
    equal = {"name": "result[0]", "absolute": 0.0, "relative": 0.0, "problem": None}
    rounding = {"name": "result[1]", "absolute": 0.00042, "relative": 0.026, "problem": None, "rounding": True}
    rows = [FLOATS | {"type": "bfloat16", "comparable": True} | row for row in (equal, rounding)]
    assert differences(rows) == differences(rows[1:]) == ("0.00042", "0.026")
    monkeypatch.setattr(programs, "judged", lambda *runs: Judged(tuple(rows), (), "original"))
    # However many arrays: the other formats have each of them.
    more = {"float64": 1e-12, "error_measure": "norm", "original_error": 0.021}
    rows += [rows[1] | more | {"name": f"result[{at}]", "rewritten_error": 0.023 - at / 1e4} for at in range(2, 91)]
    said = run().stdout
    assert (
        " Rounding alone, as it shrinks with the precision: 90 arrays; at most by 0.00042, in float64 by 1e-12. The "
        "farthest from float64 beside the original is result[2]: error against float64: original 0.021, rewritten "
        "0.023. --format html lists each array. "
    ) in " ".join(said.split()) and max(map(len, said.splitlines())) <= 80
    verdict = "0.00042 0.026 equal but for rounding"
    assert " ".join(run().stdout.splitlines()[-1].split()[-6:]) == verdict
    for output_format in ("markdown", "html"):
        cells = [text.strip() for text in re.split(r"[|]|<[^>]*>", run("--format", output_format).stdout)]
        (place,) = (number for number, text in enumerate(cells) if text == "equal but for rounding")
        assert {"0.00042", "0.026"} <= set(cells[place - 12 : place])


def test_the_evidence_says_why_a_difference_is_rounding() -> None:
    row = {**FLOATS, "type": "float32", "absolute": 0.1, "relative": 2.0, "problem": None, "rounding": True}
    check = {"entry": "train:step", "args": "train:example", "status": "equal", "problem": None}

    def said(**shown: Any) -> str:
        (sentence,) = shown_evidence([{**check, "arrays": [row | shown]}], [], "", 0).rounding
        return sentence.partition(" differs by ")[2]

    assert said(float64=1e-9) == "0.1 in float32 and by 1e-09 in float64: rounding, which shrinks with the precision"
    errors = {"error_measure": "norm", "original_error": 0.002, "rewritten_error": None}
    assert said(float64=1e-9, **errors).endswith("; error against float64: original 0.002, rewritten infinity or NaN")
    assert said(float64=1e-9, **(errors | {"error_measure": "largest", "rewritten_error": 0.003})).endswith(
        "; largest error against float64: original 0.002, rewritten 0.003"
    )
    assert said(float64=0.1, spread=0.2) == (
        "0.1 in float32, and the original alone by 0.2 if its arguments change in their last place: rounding, which "
        "the step makes large"
    )
