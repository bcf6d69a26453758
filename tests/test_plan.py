"""`mmrewrite plan` from the source alone: what is read, what is said to be unknown, pictures, and messages."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from mmrewrite.cli.commands import cli
from mmrewrite.cli.reports import render
from mmrewrite.cli.terminal.style import visible
from mmrewrite.plan.plan import Planned
from mmrewrite.plan.sections import PlanSection, PlanTable

ROOT = Path(__file__).resolve().parents[1]

STEP = """\
import jax
import jax.numpy as jnp

# mm: mesh({mesh})


def layer(w, x):
    return jnp.tanh(x @ w)


def model(params, x):
    for i, w in enumerate(params):  # mm: {task}
        x = layer(w, x)
    return jnp.mean(x * x)


@jax.jit  # mm: mjit
def step(params, x):
    loss, grads = jax.value_and_grad(model)(params, x)  # mm: microbatch({loop})
    return jax.tree.map(lambda w, g: w - g, params, grads), loss
"""

APPLIED = """\
import jax
import mmruntime as mm

mesh = mm.MultiMesh(axis_sizes=(2, 2), axis_names=("stage", "data"), logical_axes=(("batch", "data"), ("embed", None)))


@mm.task
def unplaced(x):
    return x


def model(params, x):
    x = mm.task(encode, task=mm.Task(name="encode", mesh_slice={"stage": 0}))(params, x)
    return mm.task(decode, task=mm.Task(name="decode", mesh_slice={"stage": 1}))(params, x).mean()


def train(params, x):
    return mm.microbatch(jax.grad(model), count=3, argnum=1, schedule="gpipe")(params, x)


step = mm.mjit(train, mesh=mesh)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(mesh: str = "stage=4, model=2", task: str = "stages", loop: str = 'count=8, schedule="1f1b"') -> None:
    Path("train.py").write_text(STEP.format(mesh=mesh, task=task, loop=loop))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments], catch_exceptions=False)


def planned(*arguments: str) -> dict[str, Any]:
    result = run("--format", "json", *arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def section(*arguments: str) -> dict[str, Any]:
    (found,) = planned(*arguments)["sections"]
    assert isinstance(found, dict)
    return found


def table(found: dict[str, Any], title: str) -> list[list[str]]:
    (rows,) = [table["rows"] for table in found["tables"] if table["title"] == title]
    return [list(row) for row in rows]


class TestSource:
    def test_a_pipeline_whose_numbers_are_all_written_out(self) -> None:
        put()
        found = section()
        assert found["title"] == "train.py:4: mesh `mesh` of 8 devices, stage=4 x model=2"
        assert found["notes"] == []
        assert found["mesh"]["axes"] == {"stage": 4, "model": 2}
        assert [cell["submeshes"] for cell in found["mesh"]["devices"]] == [[k // 2] for k in range(8)]
        assert table(found, "Steps") == [["train.py:17", "step"]]
        assert table(found, "Microbatches") == [["train.py:19", "-", "8", "1f1b"]]
        assert table(found, "Submeshes")[3] == ["3", "stage=3", "6, 7"]
        (timeline,) = found["timelines"]
        # p=4, m=8, forward 1, backward 2: (m + p - 1) * 3 and (p - 1) * 3.
        assert (timeline["makespan"], timeline["bubbles"], timeline["live"]) == (33, [9] * 4, [4, 3, 2, 1])
        assert timeline["notes"] == []
        assert timeline["order"][3][:4] == ["3F0", "3B0", "3F1", "3B1"]

    def test_text(self) -> None:
        put(loop='count=2, schedule="gpipe"', mesh="stage=2")
        result = run()
        assert result.exit_code == 0
        assert "submesh 0 |F0 F1 .........B0    B1    |\nsubmesh 1 |...F0 F1 B0    B1    ......|" in result.stdout
        where = "`len(params)` layers (an expression), dealt out to the 2 slices of `stage`, in order"
        assert where in " ".join(result.stdout.split())
        assert max(map(len, result.stdout.splitlines())) <= 80
        assert "makespan of a step: 9\n" in result.stdout
        assert result.stderr == "1 file would change\n"

    @pytest.mark.parametrize(
        ("arguments", "placement", "rounds"),
        [
            ("chunks=2", [0, 1, 0, 1], "in 2 rounds"),
            ('placement="v"', [0, 1, 1, 0], "in 2 rounds to and fro"),
            ('chunks=3, placement="v"', [0, 1, 1, 0, 0, 1], "in 3 rounds to and fro"),
        ],
    )
    def test_layers_in_rounds(self, arguments: str, placement: list[int], rounds: str) -> None:
        put(loop='count=2, schedule="gpipe"', mesh="stage=2", task=f"stages({arguments})")
        found = section()
        (timeline,) = found["timelines"]
        assert timeline["placement"] == placement
        assert table(found, "Tasks")[0][-1].endswith(rounds)

    def test_a_second_loop_over_layers_is_another_pass(self) -> None:
        """As in a model of an encoder and a decoder, whose step has twice the stages."""
        loop = "    for i, w in enumerate(params):  # mm: {task}\n        x = layer(w, x)\n"
        assert loop in STEP
        Path("train.py").write_text(
            STEP.replace(loop, loop * 2).format(mesh="stage=2", loop="count=2", task="stages"), encoding="utf-8"
        )
        found = section()
        (timeline,) = found["timelines"]
        assert timeline["placement"] == [0, 1, 0, 1]
        assert found["notes"] == [
            "assumed: a microbatch passes through the loops over layers at train.py:12 and train.py:14, one after the "
            "other"
        ]

    def test_the_number_of_microbatches_is_taken_from_the_command_line_or_the_stages(self) -> None:
        put(loop="size=4")
        (timeline,) = section()["timelines"]
        assert (timeline["schedule"], timeline["microbatches"]) == ("gpipe", 8)
        assert timeline["notes"] == [
            "the number of microbatches depends on size=4 and on the batch; assumed: 8 (2 x 4 stages; --microbatches "
            "sets another number)"
        ]
        (timeline,) = section("--microbatches", "5")["timelines"]
        assert timeline["microbatches"] == 5
        assert timeline["notes"][0].endswith("assumed: 5 (--microbatches)")

    def test_expressions_are_said_to_be_expressions(self) -> None:
        put(mesh="stage=STAGES", loop='count=COUNT, schedule="1f1b"')
        found = section()
        assert found["title"] == "train.py:4: mesh `mesh`"
        assert found["notes"] == ["its size is unknown from the source: stage=`STAGES` (an expression)"]
        assert found["mesh"] is None
        (timeline,) = found["timelines"]
        assert timeline["schedule"] is None
        assert timeline["notes"] == ["not drawn: the number of stages is unknown from the source"]

    def test_the_count_is_an_expression(self) -> None:
        put(loop="count=COUNT")
        (note,) = section()["timelines"][0]["notes"]
        assert note.startswith("the number of microbatches depends on count=`COUNT` (an expression); assumed: 8 (")

    def test_the_schedule_is_an_expression(self) -> None:
        put(loop="count=4, schedule=order")
        (timeline,) = section()["timelines"]
        assert timeline["title"] == "train.py:19: schedule `order` (an expression)"
        assert timeline["notes"] == ["not drawn: its order is made when the program runs; use --entry"]

    def test_slices_that_are_expressions(self) -> None:
        put(mesh="stage=2", task="task(stage=min(i, 3 - i))", loop='count=4, schedule="zb-v"')
        found = section()
        assert found["notes"] == [
            "where `layer` of train.py:12 runs is an expression; assumed: every slice of `stage` is used"
        ]
        (timeline,) = found["timelines"]
        assert timeline["placement"] == [0, 1, 1, 0]
        assert timeline["notes"] == ["assumed: 4 stages, as this schedule places them"]

    def test_a_schedule_that_does_not_fit(self) -> None:
        Path("train.py").write_text(APPLIED.replace('"gpipe"', '"zb-v"'))
        (timeline,) = section()["timelines"]
        assert timeline["notes"][-1].startswith("this does not run: zb-v needs the V placement")

    def test_a_schedule_that_does_not_fit_the_hints_is_an_error_of_its_hint(self) -> None:
        put(loop='count=4, schedule="zb-v"')
        result = run("--format", "json")
        assert result.exit_code == 2
        (problem,) = json.loads(result.stdout)["problems"]
        assert "`zb-v` needs stages in a V, and `stages` on line 12 makes others" in problem

    def test_a_schedule_that_does_not_exist_is_an_error_of_the_hint(self) -> None:
        put(loop='count=4, schedule="1f2b"')
        result = run("--format", "json")
        assert result.exit_code == 2
        (problem,) = json.loads(result.stdout)["problems"]
        assert "there is no schedule '1f2b'; did you mean `1f1b`?" in problem

    def test_auto_is_searched_with_unit_costs(self) -> None:
        put(mesh="stage=2", loop='count=4, schedule="auto"')
        (timeline,) = section()["timelines"]
        assert timeline["makespan"] <= 15
        assert "unit costs" in timeline["notes"][0]

    def test_a_program_that_was_rewritten_before(self) -> None:
        Path("train.py").write_text(APPLIED)
        found = section()
        assert found["title"] == "train.py:4: mesh `mesh` of 4 devices, stage=2 x data=2"
        assert table(found, "Logical axes") == [["batch", "data"], ["embed", "replicated"]]
        assert table(found, "Steps") == [["train.py:21", "train"]]
        assert table(found, "Tasks") == [
            ["train.py:13", "encode", "encode", "stage=0"],
            ["train.py:14", "decode", "decode", "stage=1"],
        ]
        (timeline,) = found["timelines"]
        assert (timeline["schedule"], timeline["microbatches"], timeline["placement"]) == ("gpipe", 3, [0, 1])

    def test_a_slice_that_the_mesh_does_not_have(self) -> None:
        Path("train.py").write_text(APPLIED.replace('{"stage": 1}', '{"stage": 2}'))
        assert section()["notes"] == ["train.py:14: stage=2 is not a slice of the mesh, which has stage=2"]

    def test_each_mesh_has_its_own_steps_and_tasks(self) -> None:
        put(mesh="stage=2")
        Path("other.py").write_text(APPLIED)
        one, two = planned()["sections"]
        assert [one["title"][:10], two["title"][:10]] == ["other.py:4", "train.py:4"]
        assert [len(table(found, "Tasks")) for found in (one, two)] == [2, 1]

    def test_tasks_on_one_submesh_twice(self) -> None:
        again = '    x = mm.task(encode, task=mm.Task(mesh_slice={"stage": 0}))(params, x)\n    return'
        Path("train.py").write_text(APPLIED.replace("    return mm.task(decode", f"{again} mm.task(decode", 1))
        assert section()["timelines"][0]["placement"] == [0, 1]
        Path("train.py").write_text(APPLIED.replace(".mean()", ".mean()\n    " + again.strip().removesuffix("return")))
        (timeline,) = section()["timelines"]
        assert timeline["notes"] == ["assumed: one stage on each submesh, in order"]

    def test_nothing_to_plan(self) -> None:
        Path("a.py").write_text("x = 1\n")
        result = run()
        assert (result.exit_code, result.stdout) == (0, "Nothing in these files runs on a mesh.\n")
        assert planned() == {
            "version": 1,
            "command": "plan",
            "sections": [],
            "traced": None,
            "fit": None,
            "problems": [],
        }

    def test_what_is_refused_is_not_planned_and_said(self) -> None:
        put(loop="count=4")
        text = Path("train.py").read_text().replace("(model)(params, x)", "(model)(*(params, x))")
        Path("train.py").write_text(text)
        result = run("--format", "json", "--html", "plan.html")
        found = json.loads(result.stdout)
        assert found["sections"] == []
        assert any("star-args hide which argument is the batch" in problem for problem in found["problems"])
        assert "star-args hide" in result.stderr
        assert "star-args hide" in Path("plan.html").read_text()

    def test_an_error_in_a_hint_is_the_exit_status(self) -> None:
        put(task="stagse")
        result = run()
        assert result.exit_code == 2
        assert "unknown directive `stagse`" in result.stderr

    def test_sources_are_left_alone(self) -> None:
        put()
        before = Path("train.py").read_bytes()
        run("--html", "plan.html")
        assert Path("train.py").read_bytes() == before


class TestPictures:
    def test_the_page_needs_nothing_else(self) -> None:
        put()
        assert run("--html", "plan.html").exit_code == 0
        page = Path("plan.html").read_text()
        assert re.findall(r"src=|href=\"(?!#)|@import|url\((?!#)|<script", page) == []
        assert page.count("<svg") == 1
        assert page.count('<td class="submesh-') == 8
        assert "submesh 3" in page
        tree = ET.fromstring(re.sub(r"<!doctype html>|<meta[^>]*>", "", page))
        assert [element.text for element in tree.iter("h1")] == ["What runs where"]

    def test_a_long_step_is_drawn_whole_and_large(self) -> None:
        put(loop="count=64")
        run("--html", "plan.html")
        widths = [int(width) for width in re.findall(r'<svg [^>]*?width="(\d+)"', Path("plan.html").read_text())]
        assert len(widths) == 2
        assert widths[0] < 1400 < widths[1]

    def test_what_the_source_says_is_escaped(self) -> None:
        put(mesh="stage=2", task="task(stage=i if i<2 else 1)")
        run("--html", "plan.html")
        assert "i if i &lt; 2 else 1" in Path("plan.html").read_text()

    def test_svg(self) -> None:
        put()
        assert run("--svg", "plan.svg").exit_code == 0
        assert ET.fromstring(Path("plan.svg").read_text()).tag.endswith("svg")

    def test_a_file_is_replaced(self) -> None:
        put()
        Path("plan.html").write_text("<!DOCTYPE html>old")
        assert run("--html", "plan.html").exit_code == 0
        assert "What runs where" in Path("plan.html").read_text()

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("missing/plan.html", "missing/plan.html: there is no folder "),
            ("folder", "folder is a folder; name a file in it"),
            ("", "--html has an empty name; name a file"),
            ("train.py", "train.py is there already, and holds no HTML; give another name, or move it away"),
            ("linked.html", "linked.html is there already, and holds no HTML"),
        ],
    )
    def test_where_nothing_can_be_written(self, path: str, message: str) -> None:
        put()
        Path("folder").mkdir()
        Path("linked.html").symlink_to("train.py")
        before = Path("train.py").read_text()
        # Said before the work, which takes long with --entry.
        for options in ((), ("--entry", "train:step", "--args", "train:nothing")):
            result = run("--html", path, *options)
            assert result.exit_code == 2
            assert f"Error: {message}" in result.stderr
        assert Path("train.py").read_text() == before

    def test_a_report_takes_the_place_of_a_report_only(self) -> None:
        put()
        Path("plan.svg").touch()
        assert run("--html", "plan.html", "--svg", "plan.svg").exit_code == 0
        assert run("--html", "plan.html", "--svg", "plan.svg").exit_code == 0
        result = run("--html", "plan.svg")
        assert result.exit_code == 2 and "plan.svg is there already, and holds no HTML" in result.stderr
        assert Path("plan.svg").read_text().startswith("<svg")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with a name")
    def test_a_pipe_or_a_device_is_written_to_and_not_replaced(self) -> None:
        put()
        os.mkfifo("pipe")
        # Open at both ends, so that the reader does not take its start for the end.
        both = os.open("pipe", os.O_RDWR)
        end = os.open("pipe", os.O_RDONLY)
        with subprocess.Popen(["cat"], stdin=end, stdout=subprocess.PIPE) as reader:
            os.close(end)
            assert run("--html", "pipe").exit_code == 0
            os.close(both)
            assert reader.communicate()[0].startswith(b"<!doctype html")
        result = run("--html", "pipe")
        assert (result.exit_code, "pipe: not written: No such device" in result.stderr) == (2, True)
        assert stat.S_ISFIFO(os.stat("pipe").st_mode)

    def test_no_timeline_to_draw(self) -> None:
        put(loop="count=4, schedule=order")
        result = run("--svg", "plan.svg")
        assert result.exit_code == 2
        assert "there is no timeline to draw: not drawn: its order is made when the program runs" in result.stderr
        assert not Path("plan.svg").exists()

    def test_several_timelines(self) -> None:
        put()
        Path("other.py").write_text(APPLIED)
        assert "2 timelines; name the files of one of them" in run("--svg", "plan.svg").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--entry", "train:step"], "--entry and --args go together"),
        (["--args", "train:step"], "--entry and --args go together"),
        (["--measure"], "--measure, --memory and --devices are about the step of --entry"),
        (["--memory", "1GB"], "--measure, --memory and --devices are about the step of --entry"),
        (
            ["--entry", "train:step", "--args", "train:args", "--memory", "80"],
            "--memory: '80' is no size; write a number and a unit, such as 80GiB or 512MB.",
        ),
        (["--microbatches", "0"], "Invalid value for '--microbatches'"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], message: str) -> None:
    put()
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_source_is_planned_without_jax(folder: Path) -> None:
    put()
    code = (
        "import sys\n"
        "sys.modules['jax'] = sys.modules['numpy'] = None\n"
        "sys.argv = ['mmrewrite', 'plan', '--html', 'plan.html']\n"
        "from mmrewrite.__main__ import main\n"
        "main()\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "1f1b: 4 submeshes" in finished.stdout


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_tables_fit_the_terminal_and_lose_nothing(monkeypatch: pytest.MonkeyPatch, width: int, rows: int) -> None:
    """The widest is that of the inputs of a step: names, figures, and why they are where they are."""
    monkeypatch.setenv("COLUMNS", str(width))
    reason = "task stage_0 at examples/train.py as rewritten:31"
    cells = [
        (f"state.params['b{row}']['kernel']", str(row), "float32[128,32]", "P()", f"{row} KiB", reason if row else "-")
        for row in range(rows)
    ]
    head = ("input", "submesh", "type", "layout", "bytes per device", "on its submesh because of")
    planned = Planned((PlanSection("step", (), None, (PlanTable("Inputs", head, tuple(cells)),), ()),), None, ())
    text = click.unstyle(visible(str(render("plan", "text", planned))))
    longest = max(len(word) for word in text.split())
    assert max(map(len, text.splitlines())) <= max(width, longest + 8)
    flat = " ".join(text.split())
    assert all(cell in flat for row in cells for cell in row)
    # Rows that agree on what does not fit stand under it.
    assert (width, rows) != (80, 7) or flat.count(reason) == 1


def test_the_documentation_shows_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    # As in a pipe, whatever has said how wide a terminal is.
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback: os.terminal_size(fallback))
    text = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert run("examples/gpt").stdout == shown


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("count", [4, 8, 32, 400])
def test_timelines_fit_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int, count: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    put(loop='size=2, schedule="1f1b"')
    text = click.unstyle(run("--microbatches", str(count)).stdout)
    drawn = [line for line in text.splitlines() if "|" in line]
    assert len(drawn) == 8
    assert max(map(len, text.splitlines())) <= width
    # Where a unit of time gets a whole number of characters, some of the line may be left.
    assert max(map(len, drawn)) > width // 2 or count == 4
