"""`--format`: every command has it, a format is one file, and nothing outside the command line prints or writes."""

from __future__ import annotations

import ast
import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import PIPELINE, run

from mmrewrite.cli import reports
from mmrewrite.cli.commands import cli

ROOT = Path(__file__).parents[1]
HINTED = "# mm: mesh(stage=2)\ndef f(x):\n    return x\n\n\ny = f(1)  # mm: task(stage=0)\n"

REVIEWS = ["github", "github-review", "html", "json", "markdown", "sarif"]
FORMATS = {
    "diff": ["text", *REVIEWS],
    "apply": ["text", "json"],
    "check": ["text", *REVIEWS],
    "build": ["text", "json"],
    "plan": ["text", "html", "json", "svg"],
    "modernize": ["text", *REVIEWS],
    "verify": ["text", "html", "json", "markdown"],
    "codemods": ["text", "json", "markdown"],
    "explain": ["text", "json", "markdown"],
    "init": ["text", "json"],
    "run": ["text", "json"],
    "suggest": ["text", "json", "markdown", "patch"],
}
# What commands need besides.
NEEDED = {"explain": ["place_task"], "run": ["--processes", "2"], "suggest": ["--entry", "train:step"]}

# It speaks with an editor.
WITHOUT_FORMAT = {"completion", "lsp"}

SHOUT = """
RENDERERS = {
    "diff": lambda report: f"{len(report.results)} FILES!",
    "plan": lambda planned: b"PLANNED!",
    "codemods": lambda summaries: "CODEMODS!",
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text(HINTED)
    return tmp_path


@pytest.fixture
def shout(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A format that is one more file among the others."""
    folder = tmp_path_factory.mktemp("formats")
    (folder / "shout.py").write_text(SHOUT)
    monkeypatch.setattr(reports, "__path__", [*reports.__path__, str(folder)])
    yield
    sys.modules.pop("mmrewrite.cli.reports.shout", None)


def test_every_command_has_the_option_and_its_formats() -> None:
    assert set(cli.commands) - WITHOUT_FORMAT == set(FORMATS)
    assert {command: list(reports.formats_of(command)) for command in FORMATS} == FORMATS


@pytest.mark.parametrize("command", FORMATS)
def test_an_unknown_format_is_a_usage_error_that_lists_those_of_the_command(command: str) -> None:
    result = run(command, *NEEDED.get(command, []), "--format", "jsno")
    assert result.exit_code == 2
    choices = ", ".join(map(repr, FORMATS[command]))
    assert f"Error: Invalid value for '--format': 'jsno' is not one of {choices}.\n" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", FORMATS)
def test_help_lists_the_formats(command: str) -> None:
    shown = "".join(run(command, "--help").stdout.split())
    assert f"--format[{'|'.join(FORMATS[command])}]" in shown


def test_a_format_of_another_command_is_unknown() -> None:
    assert "'svg' is not one of 'text', 'html', 'json', 'markdown'." in run("verify", "--format", "svg").stderr


def test_a_format_is_one_file(shout: None) -> None:
    assert run("diff", "--format", "shout").stdout == "1 FILES!"
    assert run("plan", "--format", "shout").stdout == "PLANNED!"
    assert run("codemods", "--format", "shout").stdout == "CODEMODS!"
    assert "'shout' is not one of 'text', 'html', 'json', 'markdown'." in run("verify", "--format", "shout").stderr
    assert "|shout]" in "".join(run("diff", "--help").stdout.split())


def test_text_is_the_default() -> None:
    for command in (["diff"], ["check"], ["plan"], ["modernize", "--diff"], ["codemods"], ["explain", "place_task"]):
        plain, named = run(*command), run(*command, "--format", "text")
        assert (plain.exit_code, plain.stdout_bytes, plain.stderr) == (
            named.exit_code,
            named.stdout_bytes,
            named.stderr,
        )


def test_options_that_write_a_file_are_spellings_of_the_same_formats() -> None:
    Path("a.py").write_text(PIPELINE)
    text = run("plan").stdout
    assert run("plan", "--html", "plan.html", "--svg", "plan.svg").stdout == text
    assert run("plan", "--format", "html").stdout == Path("plan.html").read_text()
    assert run("plan", "--format", "svg").stdout == Path("plan.svg").read_text()
    assert ET.fromstring(Path("plan.svg").read_text()).tag.endswith("svg")
    assert json.loads(run("plan", "--format", "json").stdout)["version"] == 1


def test_a_result_that_a_format_cannot_show() -> None:
    result = run("plan", "--format", "svg")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-2:] == [
        "1 file would change, 1 refusal",
        "Error: SVG shows one timeline, and there is no timeline to draw",
    ]


def test_the_text_of_every_status_is_known() -> None:
    from typing import get_args

    from mmrewrite.cli.reports import _evidence
    from mmrewrite.verify.verify import Status

    assert set(_evidence.VERDICTS) == set(get_args(Status))


# Modules that may print or write: the command line, and those that it has files written by.
PRINTING = ("mmrewrite/cli/", "mmrewrite/__main__.py")
WRITING = (
    *PRINTING,
    *(f"mmrewrite/files/{name}.py" for name in ("write", "cache_folder")),
    "mmrewrite/mirror/build.py",
    # Removes temporary folders of killed runs.
    "mmrewrite/launch/guard.py",
)

# Worker processes end themselves where the run that has started them is gone, and the language server at Ctrl-C.
ENDING = {(f"mmrewrite/{name}.py", "os._exit") for name in ("engine/workers", "lsp/server", "lsp/worker")}

_PRINTS = {"print", "echo", "secho", "exit", "_exit", "input"}
_WRITES = {
    *("write_text", "write_bytes", "touch", "mkdir", "makedirs", "rename", "replace", "unlink", "remove", "rmdir"),
    *("rmtree", "move", "copy", "copyfile", "copytree", "symlink", "link", "chmod", "fchmod"),
}
_MODULES = {"os", "shutil", "sys", "click", "builtins"}


def outside_effects(source: str) -> list[str]:
    """Calls that print, end the process or change files, as `line: name`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            names = {alias.name for alias in node.names}
            found += [f"{node.lineno}: {name}" for name in sorted(names & (_PRINTS | _WRITES))]
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in ("print", "input", "exit", "quit"):
            found.append(f"{node.lineno}: {function.id}")
        elif isinstance(function, ast.Name) and function.id == "open" and _mode(node, 1) is not None:
            found.append(f"{node.lineno}: open")
        elif isinstance(function, ast.Attribute):
            name = function.attr
            of_module = isinstance(function.value, ast.Name) and function.value.id in _MODULES
            stream = ast.unparse(function.value) in ("sys.stdout", "sys.stderr", "sys.stdout.buffer")
            if (
                (of_module and name in _PRINTS | _WRITES)
                or name in ("write_text", "write_bytes")
                or (stream and name in ("write", "writelines"))
                or (name == "open" and _mode(node, 0) is not None and not of_module)
            ):
                found.append(f"{node.lineno}: {ast.unparse(function)}")
    return found


def _mode(call: ast.Call, position: int) -> str | None:
    """The mode of a call of `open` if it may write, None if it only reads."""
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"] or call.args[position : position + 1]
    if not modes:
        return None
    mode = ast.literal_eval(modes[0]) if isinstance(modes[0], ast.Constant) else "unknown"
    return mode if set(mode) & set("wax+u") else None


def test_only_the_command_line_prints_and_writes() -> None:
    checked = 0
    for package in ("mmrewrite", "codemods/mmcodemods", "codemods/mmmodernize"):
        for path in sorted((ROOT / package).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if not place.startswith(WRITING):
                checked += 1
                effects = outside_effects(path.read_text(encoding="utf-8"))
                assert [effect for effect in effects if (place, effect.split()[-1]) not in ENDING] == [], place
    assert checked > 50
    for place in WRITING[len(PRINTING) :]:
        effects = outside_effects((ROOT / place).read_text(encoding="utf-8"))
        assert not [effect for effect in effects if effect.split(".")[-1].split()[-1] in _PRINTS], place


@pytest.mark.parametrize(
    "planted",
    [
        "print(1)",
        "import click\nclick.echo('x')",
        "from click import echo",
        "import sys\nsys.exit(1)",
        "import sys\nsys.stdout.write('x')",
        "open('x', 'w')",
        "open('x', mode='ab')",
        "open('x', mode)",
        "import os\ndef f(): os.unlink('x')",
        "import os\nos.replace('a', 'b')",
        "from pathlib import Path\nPath('x').write_text('y')",
        "from pathlib import Path\nPath('x').open('w')",
        "import shutil\nshutil.rmtree('x')",
    ],
)
def test_the_check_can_fail(planted: str) -> None:
    assert outside_effects(planted)


@pytest.mark.parametrize(
    "harmless", ["open('x')", "open('x', 'rb')", "'a'.replace('b', 'c')", "path.open()", "import sys\nsys.path"]
)
def test_reading_is_no_effect(harmless: str) -> None:
    assert outside_effects(harmless) == []
