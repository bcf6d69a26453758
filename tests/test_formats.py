"""What machines read: SARIF, JSON, GitHub's annotations and suggestions, Markdown, HTML."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from command import PIPELINE, REFUSED, run
from fixture_files import hint_cases

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "docs" / "schemas"

WRONG = "y = f(1)  # mm: tsak(stage=0)\n"
OFF = "# mm: off\ny = f(1)  # mm: task(stage=0)\n"
TASK = "def f(x):\n    return x\n\n\n{0} = f(1)  # mm: task(stage=0)\n"
NOTEBOOK = {
    "cells": [{"cell_type": "code", "metadata": {}, "source": [WRONG], "outputs": [], "execution_count": None}],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "step.py": PIPELINE,
        "refused.py": REFUSED,
        "wrong.py": WRONG,
        "off.py": OFF,
        "wider/a b%,:ü.py": TASK.format("größe"),
        "broken.py": "x = (  # mm: off\n",
        "old.py": "import jax\nfrom jax.experimental.maps import xmap\n\nx = jax.tree_map(len, [])\nxmap(len)\n",
        "cells.ipynb": json.dumps(NOTEBOOK),
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(text.encode())
    return tmp_path


@pytest.mark.family(4)
@pytest.mark.skipif(sys.platform != "linux", reason="no such names of files")
@pytest.mark.parametrize("name", ["text", "json", "sarif", "github", "github-review", "markdown", "html"])
def test_a_name_that_is_in_no_encoding(name: str) -> None:
    Path("a\udcff.py").write_text(PIPELINE, encoding="utf-8")
    Path("a\udcff_refused.py").write_text(REFUSED, encoding="utf-8")
    # As Python sets its streams up where the locale is one of people's.
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    for command in (["diff", "--format", name], ["plan", "--html", "plan.html"], ["explain", "a\udcff.py:3"]):
        done = subprocess.run(
            [sys.executable, "-m", "mmrewrite", *command], env=strict, capture_output=True, check=False
        )
        assert done.returncode in (0, 2) and b"Traceback" not in done.stderr
        assert done.stdout.decode()
    assert Path("plan.html").read_bytes().decode()


def validate(document: Any, schema: Path) -> None:
    from jsonschema.validators import validator_for

    content = json.loads(schema.read_text(encoding="utf-8"))
    kind = validator_for(content)
    kind.check_schema(content)
    kind(content).validate(document)


COMMANDS = (["diff"], ["check"], ["modernize", "--diff"], ["diff", "nowhere.py"], ["diff", "off.py"])


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_sarif_is_valid(arguments: list[str]) -> None:
    log = json.loads(run(*arguments, "--format", "sarif").stdout)
    validate(log, ROOT / "tests" / "schemas" / "sarif-2.1.0.json")
    (one,) = log["runs"]
    for result in one["results"]:
        assert one["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        for place in result.get("locations", []):
            location = place["physicalLocation"]["artifactLocation"]
            assert arguments[-1] == "nowhere.py" or Path(unquote(location["uri"])).is_file()


def test_sarif_levels_and_places() -> None:
    results = json.loads(run("diff", "--format", "sarif").stdout)["runs"][0]["results"]
    found = {}
    for result in results:
        physical = result["locations"][0]["physicalLocation"]
        found[physical["artifactLocation"]["uri"]] = (
            result["level"],
            physical.get("region"),
            result["message"]["text"],
        )
    assert found["wrong.py"][:2] == ("error", {"startLine": 1, "startColumn": 17, "endColumn": 21})
    assert found["refused.py"][:2] == ("warning", {"startLine": 5, "startColumn": 1})
    assert found["broken.py"][:2] == ("error", None)
    assert found["cells.ipynb"][2].startswith("cell 1, line 1: unknown directive `tsak`")
    assert found["wider/a%20b%25%2C%3A%C3%BC.py"][0] == "note"


def test_fixes_of_sarif_give_what_apply_writes() -> None:
    log = json.loads(run("diff", "step.py", "--format", "sarif").stdout)
    text = Path("step.py").read_text()
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    edits = [
        (
            starts[region["startLine"] - 1] + region["startColumn"] - 1,
            starts[region["endLine"] - 1] + region["endColumn"] - 1,
            replacement.get("insertedContent", {"text": ""})["text"],
        )
        for result in log["runs"][0]["results"]
        for fix in result.get("fixes", [])
        for replacement in fix["artifactChanges"][0]["replacements"]
        for region in [replacement["deletedRegion"]]
    ]
    # Insertions at one place are in their order.
    for start, end, new in reversed(edits):
        text = text[:start] + new + text[end:]
    run("apply", "step.py")
    assert text == Path("step.py").read_text()


@pytest.mark.parametrize("arguments", [*COMMANDS, ["apply"], ["build", "wider", "--out", "out"]], ids=" ".join)
def test_json_fits_its_schema(arguments: list[str]) -> None:
    document = json.loads(run(*arguments, "--format", "json").stdout)
    validate(document, SCHEMAS / "rewrites.json")
    assert document["command"] == arguments[0]


def test_json_of_the_other_commands_fits_its_schema() -> None:
    validate(json.loads(run("plan", "step.py", "--format", "json").stdout), SCHEMAS / "plan.json")
    validate(json.loads(run("codemods", "--format", "json").stdout), SCHEMAS / "codemods.json")


@pytest.mark.parametrize("what", ["stage_loop", "replace_tree_functions", "step.py:3", "wrong.py:1"])
def test_explanations_fit_their_schema(what: str) -> None:
    document = json.loads(run("explain", what, "--format", "json").stdout)
    validate(document, SCHEMAS / "explain.json")
    text = run("explain", what).stdout
    assert "\n".join(document["text"]) + "\n" == text
    assert run("explain", what, "--format", "markdown").stdout.startswith(f"### `{what}`\n")
    if ":" in what:
        assert f"{document['path']}:{document['line']}" == what
    else:
        assert text.startswith(document["summary"])


def test_codemods_as_a_table() -> None:
    text = run("codemods", "--format", "markdown").stdout
    assert "#### For hints\n\n| codemod | what it does |\n| --- | --- |\n" in text
    assert "| `stage_loop` | " in text


@pytest.mark.parametrize("name", ["pyproject.toml", "mmrewrite.toml"])
def test_a_configuration_fits_its_schema(name: str) -> None:
    if name == "pyproject.toml":
        Path(name).write_text('[project]\nname = "x"\n')
    printed = json.loads(run("init", "--print", "--format", "json").stdout)
    validate(printed, SCHEMAS / "init.json")
    assert (printed["file"], printed["written"]) == (name, False)
    written = json.loads(run("init", "--format", "json").stdout)
    validate(written, SCHEMAS / "init.json")
    assert written == printed | {"written": True}
    assert Path(name).read_text().endswith(written["content"])


def test_events_of_a_run_fit_their_schema(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from mmrewrite.cli.run import RunOptions, run_job

    program = "import os, sys; print('out'); sys.exit(3)"
    assert run_job([sys.executable, "-c", program], RunOptions(1, None, 1, None, "json")) == 3
    events = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    for event in events:
        validate(event, SCHEMAS / "run.json")
    kinds = [event["event"] for event in events]
    assert kinds[0] == "line"
    assert {"last_line", "message"} <= set(kinds)
    assert [(event["status"], event["blamed"]) for event in events if event["event"] == "end"] == [(3, 0)]
    assert kinds[-1] == "end"


def test_json_of_verify_fits_its_schema() -> None:
    from mmrewrite.cli.reports import render
    from mmrewrite.cli.terminal.style import visible
    from mmrewrite.project.verify_entries import Entry
    from mmrewrite.verify.verify import Checked, Verified

    row = {
        "role": "result",
        "name": "out",
        "shape": [2, 3],
        "type": "float32",
        "absolute": 1e-7,
        "relative": None,
        "where": "all",
        "problem": None,
    }
    checked = Checked(Entry("a:f", "a:g", "a.py:3"), "equal", "8 virtual devices", (row,))
    hashes = {"path": "a.py", "before": "0" * 64, "after": "1" * 64}
    verified = Verified((checked,), "2" * 64, (hashes,), ("Only the one call.",))
    document = json.loads(render("verify", "json", verified))
    validate(document, SCHEMAS / "verify.json")
    text = render("verify", "markdown", verified)
    assert "| `a:f` | `a:g` | 1 | 1e-07 | - | the original | equal |" in str(text)
    page = str(render("verify", "html", verified))
    assert "everything that was run is equal" in page
    close, other = row | {"rounding": True, "float64": 1e-16}, row | {"problem": "other values"}
    verdicts = visible(
        str(render("verify", "text", Verified((replace(checked, rows=(row, close, other)),), "", (), ())))
    )
    for shown in ("\x1b[32mequal", "\x1b[33mrounding", "\x1b[31m\x1b[1mNOT equal", "\x1b[36marray"):
        assert shown in verdicts
    for broken in (document | {"version": 2}, {**document, "passed": "yes"}):
        with pytest.raises(Exception, match=r"was expected|is not of type"):
            validate(broken, SCHEMAS / "verify.json")


def test_json_counts_every_hint() -> None:
    document = json.loads(run("diff", "--format", "json").stdout)
    assert document["summary"] == {"of": "hint", "rewritten": 5, "left": 1, "refused": 1, "files_with_errors": 3}


def commands(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """GitHub's workflow commands, read as its runner does."""
    for line in text.splitlines():
        match = re.fullmatch(r"::(error|warning|notice) (.*?)::(.*)", line)
        assert match is not None, line
        pairs = dict(pair.split("=", 1) for pair in match[2].split(","))
        yield match[1], {name: unescaped(value) for name, value in pairs.items()}, unescaped(match[3])


def unescaped(value: str) -> str:
    return re.sub("%(0D|0A|3A|2C|25)", lambda found: chr(int(found[1], 16)), value)


def test_annotations() -> None:
    found = list(commands(run("diff", "--format", "github").stdout))
    by_file = {properties.get("file"): (level, properties, text) for level, properties, text in found}
    assert by_file["wrong.py"][0] == "error"
    assert by_file["wrong.py"][1] | {"title": ""} == {"file": "wrong.py", "line": "1", "col": "17", "title": ""}
    assert by_file["refused.py"][0] == "warning"
    level, properties, text = by_file["wider/a b%,:ü.py"]
    assert (level, properties["line"], properties["endLine"]) == ("notice", "5", "5")
    assert text.splitlines()[1].startswith("größe = mm.task(f, ")
    assert by_file[None][2].startswith("7 hints: 5 rewritten, 1 left on purpose, 1 refused; and 3 files with errors")


def suggested(text: str, comments: list[dict[str, Any]]) -> str:
    """The file after a reader has accepted all suggestions."""
    lines = text.split("\n")
    for comment in sorted(comments, key=lambda comment: -comment["line"]):
        match = re.search(r"^(`{3,})suggestion\n(?:(.*)\n)?\1$", comment["body"], re.DOTALL | re.MULTILINE)
        assert match is not None
        first = comment.get("start_line", comment["line"])
        lines[first - 1 : comment["line"]] = match[2].split("\n") if match[2] is not None else []
    return "\n".join(lines)


@pytest.mark.slow
def test_suggestions_give_what_apply_writes() -> None:
    texts = {}
    for case in hint_cases("after.py"):
        data = (case / "before.py").read_bytes()
        if data.isascii() and b"\r" not in data:
            texts[f"{case.parent.name}/{case.name}.py"] = data.decode()
    texts |= {"end.py": "x = 1\n# mm: mesh(stage=2)\n", "step.py": PIPELINE}
    for path, text in texts.items():
        Path("many", path).parent.mkdir(parents=True, exist_ok=True)
        Path("many", path).write_text(text)
    comments = json.loads(run("diff", "many", "--format", "github-review").stdout)["comments"]
    assert all(comment["side"] == "RIGHT" for comment in comments)
    run("apply", "many")
    for path, text in texts.items():
        mine = [comment for comment in comments if comment["path"] == f"many/{path}"]
        assert suggested(text, mine) == Path("many", path).read_text(), path


def test_markdown() -> None:
    text = run("diff", "--format", "markdown").stdout
    lines = text.splitlines()
    assert lines[0].startswith("### mmrewrite: 7 hints: 5 rewritten, 1 left on purpose, 1 refused; and 3 files")
    assert "- `refused.py:5:1`: more than one call could be the task: `f(1)`, `f(2)`;" in text
    assert "- `stage_loop`, because of line 7: `stages`" in lines
    assert any(line.startswith("- To check: the call in the loop is one layer") for line in lines)
    assert "```diff\n@@ -" in text
    assert "#### What runs where" in lines
    assert "makespan of a step: " in text


def test_markdown_takes_no_html_and_calls_nobody() -> None:
    from mmrewrite.cli.reports import markdown

    assert markdown._text("<b> @someone `@code <b>` a_b*") == "&lt;b&gt; &#64;someone `@code <b>` a\\_b\\*"
    assert markdown.code("a`b``c") == "``` a`b``c ```"


def test_a_comment_stays_below_the_limit() -> None:
    for number in range(200):
        Path(f"wider/file{number}.py").write_text(TASK.format("x" * 400))
    text = run("diff", "--format", "markdown").stdout
    assert len(text) < 65_536
    assert "and others. `mmrewrite diff` prints them." in text
    for number in range(2000):
        Path(f"wider/file{number}.py").write_text(f"y = f(1) + f(2)  # mm: task{number}(stage=0)\n")
    text = run("diff", "--format", "markdown").stdout
    assert len(text) < 65_536
    assert text.endswith("**The rest is too long for a comment.** `mmrewrite diff` prints it.\n")


def test_evidence_is_shown_for_these_bytes_only() -> None:
    patch = json.loads(run("diff", "step.py", "--format", "json").stdout)["patch_sha256"]
    check = {"entry": "a:f", "args": "a:g", "status": "equal", "arrays": [], "problem": None}
    evidence = {
        "version": 1,
        "command": "verify",
        "patch_sha256": patch,
        "files": [],
        "checks": [check],
        "not_covered": ["The rest."],
    }
    for output_format in ("markdown", "html"):
        arguments = ["diff", "step.py", "--format", output_format, "--evidence", "evidence.json"]
        Path("evidence.json").write_text(json.dumps(evidence))
        assert patch in run(*arguments).stdout
        Path("evidence.json").write_text(json.dumps(evidence | {"patch_sha256": "0" * 64}))
        assert "Nothing is proved about this patch" in run(*arguments).stdout
        Path("evidence.json").write_text(json.dumps(evidence | {"checks": [{}]}))
        result = run(*arguments)
        assert (result.exit_code, "is not what `mmrewrite verify" in result.stderr) == (2, True)
        Path("evidence.json").write_text("[]")
        assert "not the output of `mmrewrite verify --format json`" in run(*arguments).stderr


def test_evidence_about_a_larger_patch_holds_for_files_with_the_same_bytes() -> None:
    (file,) = json.loads(run("diff", "step.py", "--format", "json").stdout)["files"]
    check = {"entry": "a:f", "args": "a:g", "status": "equal", "arrays": [], "problem": None}
    proved = {"path": "step.py", "before": file["sha256"], "after": file["result_sha256"]}
    evidence = {"command": "verify", "patch_sha256": "1" * 64, "files": [proved], "checks": [check], "not_covered": []}
    for after, expected in ((proved["after"], "about a larger patch"), ("0" * 64, "Nothing is proved")):
        proved["after"] = after
        Path("evidence.json").write_text(json.dumps(evidence))
        for output_format in ("markdown", "html"):
            assert expected in run("diff", "step.py", "--format", output_format, "--evidence", "evidence.json").stdout


def test_what_a_review_does_not_show_is_said() -> None:
    page = run("diff", "step.py", "--format", "html").stdout
    assert "Not verified:" in page
    assert "--entry module:function --args module:function" in page
    comment = run("diff", "step.py", "--format", "markdown").stdout
    assert "Not verified: no evidence was given" in comment
    assert "`--entry module:function --args module:function`" in comment


def test_a_traced_step_is_for_formats_that_show_it() -> None:
    result = run("diff", "step.py", "--entry", "step:step", "--args", "step:arguments")
    assert result.exit_code == 2
    assert "--entry is for --format markdown and html" in result.stderr
    result = run("diff", "step.py", "--format", "html", "--entry", "step:step")
    assert "--entry and --args go together" in result.stderr


@pytest.mark.parametrize("name", ["text", "json", "sarif", "github"])
def test_evidence_is_for_formats_that_show_it(name: str) -> None:
    Path("evidence.json").write_text("{}")
    result = run("check", "step.py", "--format", name, "--evidence", "evidence.json")
    assert result.exit_code == 2
    assert "--evidence is for --format markdown and html, which show it." in result.stderr


class Page(HTMLParser):
    """The tags of a page, held to be closed in order, and its headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[int] = []
        self.loads: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "wbr", "input", "rect", "line", "path", "circle"):
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line", "path", "circle"):
            assert self.open.pop() == tag


@pytest.mark.parametrize("command", [["diff"], ["modernize", "--diff"], ["plan", "step.py"]], ids=" ".join)
def test_html_is_one_page(command: list[str]) -> None:
    text = run(*command, "--format", "html").stdout
    page = Page(text)
    assert page.headings[0] == 1
    assert all(link.startswith("#") for link in page.loads)
    assert "prefers-color-scheme: dark" in text
    if command == ["diff"]:
        assert "7 hints: 5 rewritten, 1 left on purpose, 1 refused" in text
        assert "größe" in text


def test_the_bar_is_only_without_red_where_all_went_well() -> None:
    def bar() -> list[str]:
        page = run("diff", "bars", "--format", "html").stdout
        (picture,) = re.findall(r'<svg class="bar".*?</svg>', page)
        return re.findall(r'class="(\w+)" x="[\d.]+%" width="([\d.]+)%"', picture)

    Path("bars").mkdir()
    Path("bars/good.py").write_text(TASK.format("y"))
    assert bar() == [("good", "100.000")]
    Path("bars/wrong.py").write_text(WRONG)
    assert bar() == [("good", "50.000"), ("alarm", "50.000")]


def test_html_escapes_what_files_hold() -> None:
    Path("evil").mkdir()
    Path("evil/<img src=x>.py").write_text(TASK.format("x") + "s = '<script>'\n")
    text = run("diff", "evil", "--format", "html").stdout
    assert "<script>" not in text
    assert "<img" not in text
