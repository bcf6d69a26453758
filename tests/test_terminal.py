"""At a terminal: completion, `--watch`, and Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import click
import pytest
from command import HINTED, PIPELINE, put, run

from mmrewrite.cli.session import Session
from mmrewrite.files import write

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One in which `mmrewrite` is this checkout's."""
    tools = tmp_path_factory.mktemp("tools")
    command = put(str(tools / "mmrewrite"), f'#!/bin/sh\nexec {sys.executable} -m mmrewrite "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    return os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["mod"], "modernize"),
        (["diff", "--form"], "--format"),
        (["diff", "--format", "sa"], "sarif"),
        (["diff", "--select", "place_task,stage_l"], "place_task,stage_loop"),
        (["explain", "declare_"], "declare_mesh"),
    ],
)
def test_bash_completes(words: list[str], completed: str, environment: dict[str, str]) -> None:
    script = run("completion", "bash").stdout
    typed = " ".join(["mmrewrite", *words])
    asked = f"{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words)}\n_mmrewrite_completion mmrewrite\n"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", f'{asked}printf "%s\\n" "${{COMPREPLY[@]}}"'],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [completed]


def test_explain_completes_files_as_well(environment: dict[str, str]) -> None:
    """By the shell, which knows them, where no codemod begins so."""
    asked = environment | {"_MMREWRITE_COMPLETE": "fish_complete", "COMP_WORDS": "mmrewrite explain src/mod"}
    done = subprocess.run(
        ["mmrewrite"], env=asked | {"COMP_CWORD": "src/mod"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["file,src/mod"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not there")
def test_fish_completes(environment: dict[str, str]) -> None:
    asked = 'mmrewrite completion fish | source; complete -C "mmrewrite diff --format sa"; complete -C "mmrewrite mod"'
    done = subprocess.run(["fish", "-N", "-c", asked], env=environment, capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["sarif", "modernize"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    script = run("completion", shell).stdout
    assert f"_MMREWRITE_COMPLETE={shell}_complete" in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n", "-c", script] if shell != "fish" else ["fish", "-nc", script], check=True)


HIDING = "\x1b[2J\x1b[8m\x9b1A\u202e"


@pytest.mark.skipif(os.name != "posix", reason="no such names of files")
@pytest.mark.parametrize("color", [False, True])
def test_a_terminal_obeys_nothing_of_a_file(color: bool) -> None:
    """Neither its name nor its hints hide a message, or pass for one."""
    put(f"wrong{HIDING}.py", HINTED.replace("stage=0", f"stage='{HIDING}'"))
    put("x\nmodel.py:1:1: all is well\n.py", HINTED.replace("task", "tsak"))
    put(f"refused{HIDING}.py", HINTED.replace("f(1)", "f(1) + f(2)"))
    put(f"good{HIDING}.py", PIPELINE)
    for command in (("diff", "--no-cache"), ("diff", "-v"), ("plan",), ("explain", f"good{HIDING}.py:3")):
        result = run(*command, color=color)
        shown = click.unstyle(result.stderr + (result.stdout if color or command[0] != "diff" else ""))
        assert not set(shown) & set("\x1b\x9b\u202e")
        assert r"\x1b[2J" in shown
        assert not [line for line in shown.splitlines() if line.startswith("model.py")]
    # A patch is what git gets, byte for byte.
    assert (
        HIDING.encode()
        in subprocess.run(
            [sys.executable, "-m", "mmrewrite", "diff", "--format", "text", f"good{HIDING}.py"],
            input=put(f"good{HIDING}.py", f"{PIPELINE}# {HIDING}\n").read_bytes(),
            capture_output=True,
            check=True,
        ).stdout
    )


@pytest.mark.parametrize("before", [0, 79, 80, 81, 500])
@pytest.mark.parametrize("after", [0, 300])
def test_of_a_long_line_what_is_around_the_mistake_is_shown(before: int, after: int) -> None:
    mistake = "tsak" * (1 + after // 4)
    put("a.py", f"y = '{'a' * before}'  # mm: {mistake}(stage=0)\n")
    head, line, carets, *_ = run("diff").stderr.splitlines()
    assert head.startswith(f"a.py:1:{before + 15}: unknown directive")
    assert len(line) < 180 and len(carets) < 180
    start = len(carets) - len(carets.lstrip())
    assert line[start:].startswith("tsak") and set(carets.strip()) == {"^"}


def test_ctrl_c_while_files_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        put(f"{name}.py", HINTED)
    written = []

    def replace_file(path: str, *rest: object) -> None:
        written.append(path)
        if len(written) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        original(path, *rest)  # type: ignore[arg-type]

    original = write.replace_file
    monkeypatch.setattr(write, "replace_file", replace_file)
    handler = signal.getsignal(signal.SIGINT)
    result = run("apply", "--no-cache")
    assert result.exit_code == 130
    assert "Interrupted: 2 of 3 files written, each of them whole; run again for the others." in result.stderr
    assert [("mm.task(" in Path(f"{name}.py").read_text()) for name in "abc"] == [True, True, False]
    assert sorted(os.listdir()) == ["a.py", "b.py", "c.py"]
    assert signal.getsignal(signal.SIGINT) is handler
    assert run("apply", "--no-cache").exit_code == 0
    assert "mm.task(" in Path("c.py").read_text()


def test_ctrl_c_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    put("a.py", HINTED)

    def interrupted(self: Session) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "rewrite", interrupted)
    result = run("apply", "--no-cache")
    assert result.exit_code == 130 and "Interrupted: nothing was written." in result.stderr


def test_watch_runs_again_after_a_change(environment: dict[str, str]) -> None:
    file = put("a.py", HINTED)
    command = [sys.executable, "-m", "mmrewrite", "diff", "--watch"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        kill = threading.Timer(60, process.kill)
        kill.start()
        read_until("stage", process.stdout)
        file.write_text(HINTED.replace("stage=0", "stage=7"))
        read_until('"stage": 7', process.stdout)
        # A mistake does not end it.
        file.write_text(HINTED.replace("task(", "tsk("))
        read_until("did you mean `task`?", process.stdout)
        put("mmrewrite.toml", "ignroe = []\n")
        read_until("did you mean `ignore`?", process.stdout)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(30) == 130
        kill.cancel()
        assert "Traceback" not in rest and "Interrupted: nothing was written." in rest
    assert run("diff", "--watch", "--stdin-filename", "a.py", "-").exit_code == 2


def read_until(text: str, output: IO[str]) -> None:
    """Read whole runs, up to the first that printed the text.

    On a busy machine a file may be seen between its truncation and its writing: one run more, of an empty file.
    """
    found = False
    for line in output:
        found = found or text in line
        if found and line.startswith("Status "):
            return
    pytest.fail(f"the command ended without printing {text!r}")


CODES = "\x1b[8m\x1b[31m\x1b[0m\x9b2J\x7f\u202e"


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals")
@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_terminal_obeys_nothing_of_a_patch(environment: dict[str, str]) -> None:
    put("good.py", PIPELINE.replace("x @ w", f"x @ w  # {CODES}"))
    keeper, end = os.openpty()
    command = [sys.executable, "-m", "mmrewrite", "diff", "good.py"]
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=os.environ | environment) as process:
        os.close(end)
        printed = b""
        with contextlib.suppress(OSError):
            while data := os.read(keeper, 4096):
                printed += data
    os.close(keeper)
    assert process.returncode == 0
    text = click.unstyle(printed.decode())
    assert rf"{CODES}".encode("unicode_escape").decode() in text
    assert b"\x1b[8m" not in printed and not set(text) & set("\x1b\x9b\x7f\u202e")
    assert (b"\x1b[32m" in printed) == (not environment)


@pytest.mark.parametrize("output_format", ["markdown", "github", "github-review", "sarif", "json", "html"])
def test_no_format_holds_what_a_terminal_obeys(output_format: str) -> None:
    put("good.py", PIPELINE.replace("x @ w", f"x @ w  # {CODES}").replace("@jax.jit", f"# {CODES}\n@jax.jit"))
    put("wrong.py", f"y = f(1)  # mm: tsak('{CODES}')  # {CODES}\n")
    result = run("diff", "--format", output_format)
    assert "good.py" in result.stdout
    assert not set(result.output) & set(CODES) - set("[8m31m0m2J")
    if output_format in ("github-review", "sarif", "json"):
        json.loads(result.stdout)


def test_of_many_errors_the_first_are_shown() -> None:
    for name in "abcd":
        put(f"{name}.py", "y = f(1)  # mm: tsak(stage=0)\n" * 60)
    put(
        "y.py",
        "x = f(1)  # mm: task(stage=0); task(stage=0); task(stage=0)\n" + "y = f(1)  # mm: tsak(stage=0)\n" * 100,
    )
    put("z.py", "x = 1  # mm: " + "stages(x=1); " * 20_000 + "\n")
    put("good.py", HINTED)
    result = run("diff", "--no-cache")
    assert result.exit_code == 2 and "+++ b/good.py" in result.stdout
    assert result.stderr.count("unknown directive `tsak`") == 100
    assert "and 20242 more errors in hints; correct the first ones" in result.stderr
    assert result.stderr.endswith("1 file would change, 20342 errors\n")
    assert len(result.stderr) < 100_000
    assert "and 20 more errors in hints; the JSON has them" in run("diff", "a.py", "b.py").stderr
    files = json.loads(run("diff", "--format", "json").stdout)["files"]
    told = {each["path"]: each["errors"][-1]["message"] for each in files if len(each["errors"]) > 100}
    assert {path: message.partition(" in ")[0] for path, message in told.items()} == {
        "y.py": "and 2 more errors",
        "z.py": "and 19900 more errors",
    }


@pytest.mark.parametrize(("number", "rest"), [(101, "1 more error in hints"), (150, "50 more errors in hints")])
@pytest.mark.parametrize("mistake", ["tsak(stage=0)", "task(model=0)"], ids=["read", "decided"])
def test_of_many_mistakes_of_any_kind_the_number_is_told(number: int, rest: str, mistake: str) -> None:
    lines = f"    x = f(x)  # mm: {mistake}\n" * number
    put("a.py", f"import jax\n# mm: mesh(stage=2)\n@jax.jit  # mm: mjit\ndef step(x):\n{lines}    return x\n")
    told = run("check").stderr
    assert f"and {rest}; " in told and told.endswith(f"0 files would change, {number} errors\n")
    (file,) = json.loads(run("check", "--format", "json").stdout)["files"]
    assert len(file["errors"]) == 101
