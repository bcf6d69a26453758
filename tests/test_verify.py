"""`mmrewrite verify` but for the programs that it runs: what it calls, what it says was covered, and messages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mmrewrite import verify
from mmrewrite.cli.commands import cli
from mmrewrite.mirror.limits import ProgramLimits

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
    ) -> tuple[dict[str, Any], str]:
        made.append((module, tuple(arguments), tuple(roots), dict(given)))
        row = {"name": "result", "role": "result", "shape": [2, 3], "type": "float32", "absolute": 1e-7}
        row |= {"relative": None, "where": "devices 0-1", "original_where": "device 0", "problem": None}
        found = {"compiled_for_a_mesh": True, "devices": 16, "platform": "cpu", "like_arguments": {"result": "x"}}
        return {**found, "rows": [row]}, ""

    monkeypatch.setattr(verify, "run_module", run_module)
    monkeypatch.setattr(verify, "check_runtime", lambda command: None)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["verify", *arguments], catch_exceptions=False)


def test_both_programs_are_run_apart_and_seeded_alike(calls: list[Call], folder: Path) -> None:
    assert run("--rtol", "0.5").exit_code == 0
    (module, first, originals, one), (_, second, roots, many) = calls
    assert module == "_commands.verify"
    assert first[:2] == second[:2] == ("train:step", "train:example")
    assert "--against" not in first
    assert second[second.index("--against") + 1] == first[first.index("--save") + 1]
    assert second[-2:] == ("--rtol", "0.5")
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
    assert [given["JAX_PLATFORMS"] for *_, given in calls] == ["tpu", "tpu"]
    assert all("XLA_FLAGS" not in given for *_, given in calls)
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
        "train.py:12: `task(stage=1)` is rewritten, and no function proved equal reaches it",
        "other arguments: each function was called once, with one set of arguments",
        "time and memory, and side effects",
        "real devices, and several processes",
    ]


def test_text(calls: list[Call]) -> None:
    result = run()
    assert result.stdout.startswith(
        "train:step with train:example (train.py:6): equal\n"
        "  the original on 1 device, the rewritten program on 16 virtual devices\n"
        "  result has the paths, shapes and types of x: its gradients, or its new value\n\n"
        "Results\n"
        "  result  shape  type     largest difference  relative  ends up on\n"
        "  result  2 x 3  float32               1e-07         -  devices 0-1\n"
    )
    assert result.stderr == "3 files would change\n"


def test_an_entry_of_another_module_leads_through_its_imports(calls: list[Call]) -> None:
    Path("main.py").write_text("from train import other as chosen\n")
    found = json.loads(run("--format", "json", "--entry", "main:chosen", "--args", "train:example").stdout)
    (check,) = found["checks"]
    assert check["status"] == "equal"
    assert [line.partition(" is rewritten")[0] for line in found["not_covered"][:3]] == [
        "model.py:6: `task(stage=0)`",
        "train.py:6: `mjit`",
        "other arguments: each function was called once, with one set of arguments",
    ]


def test_what_was_refused_is_not_proved(calls: list[Call]) -> None:
    Path("train.py").write_text(STEP.replace("x = layer(x)  # mm", "x = layer(x) + layer(x)  # mm"))
    result = run("--entry", "train:other", "--args", "train:example")
    assert result.exit_code == 1
    assert (
        "train:other with train:example (--entry): NOT proved: it reaches no rewritten hint; see the refusals"
        in result.stdout
    )
    assert "hints that are not rewritten: 1 refused, 0 left alone on purpose" in result.stdout
    assert calls == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--entry", "train:step"), "--entry and --args go together"),
        (("--real-devices", "--devices", "4"), "--devices counts virtual devices"),
        (("--entry", "train", "--args", "train:example"), "--entry train: write module:function"),
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
    assert "none of these files would change" in result.stderr
    assert "`nobody` is no name of this module" in result.stderr
