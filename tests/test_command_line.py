"""The command line as it is specified: commands, common options, configuration, files and exit statuses, row by row."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import Result
from command import OLD, PIPELINE, REFUSED, put, run

from mmrewrite.cli.commands import cli
from mmrewrite.cli.config import KEYS
from mmrewrite.files.revisions import NoRevision, checked_out

pytestmark = pytest.mark.usefixtures("folder")

TASK = "def f(x):\n    return x\n\n\ny = f(1)  # mm: task(stage=0)\n"
DONE = 'y = mm.task(f, task=mm.Task(name="f", mesh_slice={"stage": 0}))(1)\n'
WRONG = "y = f(1)  # mm: tsak(stage=0)\n"
NEW = "import jax\nx = jax.tree.map(len, [])\n"


def shown(result: Result) -> list[str]:
    """The files of a patch."""
    return [line.split(" b/")[-1] for line in result.stdout.splitlines() if line.startswith("diff ")]


@pytest.fixture
def repository(folder: Path) -> Iterator[Path]:
    if shutil.which("git") is None:
        pytest.skip("git is not there")
    git("init", "-q", ".")
    yield folder


def git(*arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


class TestSince:
    def test_only_files_that_differ(self, repository: Path) -> None:
        for name in ("same", "edited", "pkg/moved"):
            put(f"{name}.py", TASK)
        git("add", ".")
        git("commit", "-qm", "first")
        put("edited.py", TASK + "z = 1\n")
        put("pkg/new.py", TASK)
        put("pkg/ignored.py", TASK)
        put(".gitignore", "ignored.py\n")
        os.rename("pkg/moved.py", "pkg/other.py")
        assert shown(run("diff")) == ["edited.py", "pkg/new.py", "pkg/other.py", "same.py"]
        result = run("diff", "--since", "HEAD")
        assert shown(result) == ["edited.py", "pkg/new.py", "pkg/other.py"]
        assert "1 other file would change, and is as in HEAD" in result.stderr
        os.chdir("pkg")
        assert shown(run("diff", "--since", "HEAD", "..")) == ["edited.py", "pkg/new.py", "pkg/other.py"]
        assert run("check", "--since", "HEAD", "../same.py").exit_code == 0

    def test_mesh_and_step_of_files_that_are_left_out_are_told(self, repository: Path) -> None:
        put("model.py", "def block(w, x):\n    return x @ w\n\n\ndef model(params, x):\n    return x.mean()\n")
        put(
            "train.py",
            "import jax\nfrom model import model\n\n# mm: mesh(stage=2)\n\n\n"
            "@jax.jit  # mm: mjit\ndef step(params, x):\n"
            "    return jax.grad(model)(params, x)  # mm: microbatch(count=4)\n",
        )
        put("other.py", PIPELINE)
        git("add", ".")
        git("commit", "-qm", "first")
        loop = "    for w in params:  # mm: stages\n        x = block(w, x)\n    return x.mean()\n"
        put("model.py", f"def block(w, x):\n    return x @ w\n\n\ndef model(params, x):\n{loop}")
        result = run("diff", "--since", "HEAD")
        assert shown(result) == ["model.py"]
        assert (
            "model.py: runs on train.py:4: mesh `mesh` of 2 devices, stage=2, in the step `step` of train.py:7\n"
        ) in result.stderr
        assert "other.py" not in result.stderr
        for output_format in ("markdown", "html"):
            page = run("diff", "--since", "HEAD", "--format", output_format).stdout
            assert "train.py" in page and "other.py" not in page
            assert "no step of these files reaches" not in page and "2 devices" in page.replace("&nbsp;", " ")

    def test_what_keeps_a_changed_file_back_is_said_where_it_stands(self, repository: Path) -> None:
        layers = "def forward(w, x):\n    for a in w:  # mm: stages\n        x = x @ a\n    return x\n"
        step = "import jax\nfrom layers import forward\n\nstep = jax.jit(forward)  # mm: mjit\n"
        put("layers.py", layers)
        put("step.py", step)
        git("add", ".")
        git("commit", "-qm", "first")
        put("layers.py", f"{layers}# more\n")
        refused = run("diff", "--since", "HEAD").stderr
        assert "step.py:4:1: no mesh for this step" in refused and "stays as well: layers.py:2 (" in refused
        put("step.py", step.replace("mjit", "task(2)"))
        git("commit", "-qm", "second", "step.py")
        assert "step.py:4:37: " in run("diff", "--since", "HEAD").stderr

    def test_files_that_no_revision_has(self, repository: Path) -> None:
        """Ignored by git, and named outright; in a repository of their own; in none."""
        put("a.py", TASK)
        put(".gitignore", "ignored.py\n")
        git("add", ".")
        git("commit", "-qm", "first")
        put("ignored.py", TASK)
        put("nested/b.py", TASK)
        git("init", "-q", "nested")
        outside = put(str(repository.parent / f"{repository.name}_outside.py"), TASK)
        assert shown(run("diff", "--since", "HEAD", ".", "ignored.py")) == ["ignored.py", "nested/b.py"]
        result = run("check", "--since", "HEAD", "a.py", str(outside))
        assert result.exit_code == 1 and "1 other file would change, and is as in HEAD" in result.stderr

    def test_submodules(self, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        """Their files are compared with the commit that the revision has of them."""
        part = tmp_path_factory.mktemp("part")
        git("init", "-q", str(part))
        put(str(part / "b.py"), TASK)
        put(str(part / "c.py"), TASK)
        git("-C", str(part), "add", ".")
        git("-C", str(part), "commit", "-qm", "first")
        put("a.py", TASK)
        git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(part), "part")
        assert shown(run("diff", "part")) == ["part/b.py", "part/c.py"]
        git("add", ".")
        git("commit", "-qm", "first")
        assert shown(run("diff", "--since", "HEAD")) == []
        put("part/b.py", TASK + "z = 1\n")
        assert shown(run("diff", "--since", "HEAD")) == ["part/b.py"]
        git("-C", "part", "commit", "-qam", "second")
        assert shown(run("diff", "--since", "HEAD")) == ["part/b.py"]
        git("commit", "-qam", "second")
        assert shown(run("diff", "--since", "HEAD")) == []
        assert shown(run("diff", "--since", "HEAD~1")) == ["part/b.py"]
        git("commit", "-q", "--allow-empty", "-m", "third")
        git("rm", "-qf", "--cached", "part")
        git("commit", "-qm", "fourth")
        assert shown(run("diff", "--since", "HEAD")) == ["part/b.py", "part/c.py"]

    def test_a_revision_is_checked_out_beside_what_is_there_now(
        self, repository: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        part, out = tmp_path_factory.mktemp("part"), tmp_path_factory.mktemp("out")
        put(str(part / "b.py"), "old part")
        for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
            git("-C", str(part), *arguments)
        put("pkg/a.py", "old")
        put(".gitattributes", "pkg export-ignore\n")
        git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(part), "part")
        git("add", ".")
        git("commit", "-qm", "one")
        for path in ("pkg/a.py", "part/b.py", "new.py"):
            put(path, "new")
        git("-C", "part", "commit", "-qam", "two")
        git("add", "pkg/a.py")
        status = subprocess.run(["git", "status", "--short"], capture_output=True, check=True).stdout
        paths = [os.path.realpath(path) for path in ("pkg/a.py", "part/b.py", "new.py")]
        found = checked_out("HEAD", paths, str(out))
        assert [os.path.basename(top) for top in found] == ["part", os.path.basename(os.path.realpath("."))]
        inner, outer = map(Path, found.values())
        assert (inner / "b.py").read_text() == "old part" and (outer / "pkg" / "a.py").read_text() == "old"
        assert not (outer / "new.py").exists()
        assert subprocess.run(["git", "status", "--short"], capture_output=True, check=True).stdout == status
        with pytest.raises(NoRevision, match="git knows no such revision here"):
            checked_out("nowhere", paths, str(out))

    def test_from_outside(self, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The repository is that of the files, also where a hook of another one runs the command."""
        put("one/a.py", TASK)
        put("two/b.py", TASK)
        for name in ("one", "two"):
            git("init", "-q", name)
            git("-C", name, "add", ".")
            git("-C", name, "commit", "-qm", "first")
        put("two/b.py", TASK + "z = 1\n")
        os.chdir("one")
        assert shown(run("diff", "--since", "HEAD", ".", "../two")) == ["../two/b.py"]
        monkeypatch.setenv("GIT_DIR", str(repository / "one" / ".git"))
        monkeypatch.setenv("GIT_INDEX_FILE", str(repository / "one" / ".git" / "index"))
        assert shown(run("diff", "--since", "HEAD", ".", "../two")) == ["../two/b.py"]
        monkeypatch.delenv("GIT_DIR")
        monkeypatch.delenv("GIT_INDEX_FILE")
        git("tag", "mine")
        result = run("diff", "--since", "mine", "../two")
        assert result.exit_code == 2
        assert f"--since mine: git knows no such revision in {repository / 'two'}" in result.stderr
        shutil.rmtree("../.git")
        os.chdir("..")
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(repository.parent))
        assert shown(run("diff", "--since", "HEAD", "one", "two")) == ["two/b.py"]

    def test_old_names_as_well(self, repository: Path) -> None:
        put("a.py", OLD)
        git("add", ".")
        git("commit", "-qm", "first")
        put("b.py", OLD)
        assert shown(run("modernize", "--diff", "--since", "HEAD")) == ["b.py"]
        assert "give --diff or --check as well" in run("modernize", "--since", "HEAD").stderr

    def test_what_git_does_not_know(self, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put("a.py", TASK)
        result = run("diff", "--since", "HEAD")
        assert result.exit_code == 2 and "--since HEAD: there is no commit here yet; leave out" in result.stderr
        git("add", ".")
        git("commit", "-qm", "first")
        for revision, shown in (("nowhere", "nowhere"), ("--output=stolen", "--output=stolen"), ("", "''")):
            result = run("diff", f"--since={revision}")
            assert result.exit_code == 2
            assert f"--since {shown}: git knows no such revision here" in result.stderr
        assert not Path("stolen").exists()
        shutil.rmtree(".git")
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(repository.parent))
        assert "git says: fatal: not a git repository" in run("diff", "--since", "HEAD").stderr
        monkeypatch.setenv("PATH", "")
        assert "--since needs git, which does not start" in run("diff", "--since", "HEAD").stderr


STEP = """\
import jax

# mm: mesh(stage=2)


@jax.jit  # mm: mjit; verify(args=example)
def step(x):
    return abs(x)  # mm: task(stage=0)
"""
EXAMPLE = "\n\ndef example():\n    return (1.0,)\n"


class TestWhatToRunNext:
    VERIFY = "next: mmrewrite verify src --since HEAD --entry train:step --args train:example"
    COPY = "after a step parameters are on several devices; code outside of steps reads a copy: mm.gather(params)"
    ONE_DEVICE = "with fewer devices than the mesh has, MMRUNTIME_ONE_DEVICE_FALLBACK=1 runs it on one"

    @pytest.mark.parametrize(
        ("committed", "said"),
        [
            (
                STEP.partition("# mm: mjit")[0] + "\ndef step(x):\n    return x\n" + EXAMPLE,
                ["next: git diff", VERIFY, COPY, ONE_DEVICE],
            ),
            (STEP, ["next: git diff", COPY, ONE_DEVICE]),
            (None, [COPY, ONE_DEVICE]),
        ],
    )
    def test_of_what_git_has(self, repository: Path, committed: str | None, said: list[str]) -> None:
        if committed is not None:
            put("src/train.py", committed)
            git("add", ".")
            git("commit", "-qm", "one")
        put("src/train.py", STEP + EXAMPLE)
        assert run("apply", "src").stderr.splitlines() == ["1 file changed", *said]

    def test_nothing_where_nothing_was_written_or_no_person_reads(self, repository: Path) -> None:
        for arguments in ([], ["--format", "json"], ["-q"]):
            put("train.py", STEP + EXAMPLE if arguments else "x = 1\n")
            assert "next" not in run("apply", *arguments).stderr
        put("train.py", NEW.replace("jax.tree.map", "jax.tree_map"))
        git("add", ".")
        git("commit", "-qm", "one")
        assert run("modernize").stderr == "1 file changed\nnext: git diff\n"


class TestStandardInput:
    def test_apply_gives_the_result(self) -> None:
        put("pkg/a.py", "what is on disk does not count\n")
        result = run("apply", "-", "--stdin-filename", "pkg/a.py", stdin=TASK)
        assert (result.exit_code, result.stdout.endswith(DONE)) == (0, True)
        assert Path("pkg/a.py").read_text() == "what is on disk does not count\n"
        assert run("modernize", "-", "--stdin-filename", "b.py", stdin=OLD).stdout == NEW

    def test_what_stays_comes_back_byte_for_byte(self) -> None:
        data = "# coding: latin-1\r\nx = 'ü'".encode("latin-1")
        assert run("apply", "-", "--stdin-filename", "a.py", stdin=data).stdout_bytes == data

    def test_nothing_where_there_are_errors(self) -> None:
        result = run("apply", "-", "--stdin-filename", "a.py", stdin=WRONG)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "a.py:1:17: unknown directive `tsak`" in result.stderr

    def test_other_modules_are_read(self) -> None:
        put("devices.py", "import mmruntime as mm\n\nmesh = mm.MultiMesh(axis_sizes=(2,), axis_names=('stage',))\n")
        text = "import jax\nfrom devices import mesh\n\n\n@jax.jit  # mm: mjit\ndef step(x):\n    return x\n"
        assert "mm.mjit, mesh=mesh" in run("apply", "-", "--stdin-filename", "train.py", stdin=text).stdout

    def test_diff_and_check(self) -> None:
        result = run("diff", "-", "--stdin-filename", "a.py", stdin=TASK)
        assert shown(result) == ["a.py"]
        assert run("check", "-", "--stdin-filename", "a.py", stdin=TASK).exit_code == 1

    @pytest.mark.parametrize(
        "arguments", [["-"], ["--stdin-filename", "a.py"], ["a.py", "--stdin-filename", "a.py"], ["-", "b.py"]]
    )
    def test_usage(self, arguments: list[str]) -> None:
        result = run("diff", *arguments)
        assert (result.exit_code, "`-` and --stdin-filename go together" in result.stderr) == (2, True)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["diff", "-", "--stdin-filename", ""], "--stdin-filename has an empty name; give the file whose content"),
            (["diff", "-", "--stdin-filename", "folder"], "folder is a folder; give the file whose content `-` is"),
            (["diff", "-", "--stdin-filename", "a.py", "--since", "HEAD"], "--since compares files on the disk"),
            (["apply", "-", "--stdin-filename", "a.py", "--format", "json"], "leave out --format, or use diff"),
            (["plan", "-"], "`-` is for diff, check, apply and modernize; a file of that name is ./-"),
            (["verify", "-"], "`-` is for diff, check, apply and modernize; a file of that name is ./-"),
            (["build", "-", "--out", "out"], "`-` is for diff, check, apply and modernize; a file of that name is ./-"),
        ],
    )
    def test_what_does_not_go_with_a_buffer(self, arguments: list[str], said: str) -> None:
        os.mkdir("folder")
        result = run(*arguments, stdin=TASK)
        assert (result.exit_code, result.stdout) == (2, "") and said in result.stderr

    def test_a_file_that_is_called_so(self) -> None:
        put("-", TASK)
        assert shown(run("diff", "./-")) == ["-"]

    def test_one_buffer_at_a_time(self) -> None:
        result = run("diff", "-", "b.py", "--stdin-filename", "a.py")
        assert (result.exit_code, "`-` stands alone" in result.stderr) == (2, True)


class TestConfiguration:
    def test_mmrewrite_toml_counts_and_pyproject_beside_it_has_the_line_length(self) -> None:
        put("pyproject.toml", "[tool.mmrewrite]\ninclude = ['b.py']\n[tool.ruff]\nline-length = 60\n")
        put("mmrewrite.toml", "include = ['a.py']\n[axes]\nbatch = 'stage'\n")
        put("a.py", "# mm: mesh(stage=2)\nx = 1\n")
        put("b.py", TASK)
        result = run("diff")
        assert shown(result) == ["a.py"]
        assert '+    logical_axes=(("batch", "stage"),),\n' in result.stdout
        put("mmrewrite.toml", "inclde = ['a.py']\n")
        assert "the file has no key `inclde`; did you mean `include`?" in run("diff").stderr

    def test_the_nearest_file_counts(self) -> None:
        put("mmrewrite.toml", "include = ['nowhere']\n")
        put("deep/pyproject.toml", "")
        put("deep/er/a.py", TASK)
        os.chdir("deep/er")
        assert shown(run("diff")) == ["a.py"]

    @pytest.mark.parametrize(("name", "head"), [("own.toml", ""), ("other.toml", "[tool.mmrewrite]\n")])
    def test_a_named_file(self, name: str, head: str) -> None:
        put("pyproject.toml", "[tool.mmrewrite]\nselect = ['stage_loop']\n")
        put(f"conf/{name}", f"{head}exclude = ['x']\n")
        put("a.py", TASK)
        assert shown(run("diff")) == []
        assert shown(run("diff", "--config", f"conf/{name}")) == ["a.py"]

    def test_per_file_ignores(self) -> None:
        put("pyproject.toml", "[tool.mmrewrite.per-file-ignores]\n'tests/' = ['all']\n'*_b.py' = ['place_task']\n")
        for name in ("a", "a_b", "tests/c"):
            put(f"{name}.py", TASK)
            put(f"{name}_old.py", OLD)
        result = run("diff", "-v")
        assert shown(result) == ["a.py"]
        assert "tests/c.py:5:17: `task(stage=0)` left alone: place_task is ignored in this file" in result.stderr
        assert shown(run("modernize", "--diff")) == ["a_b_old.py", "a_old.py"]
        put("pyproject.toml", "[tool.mmrewrite.per-file-ignores]\n'a.py' = ['place_taks']\n")
        message = f"Error: {Path.cwd()}/pyproject.toml: There is no codemod `place_taks`; did you mean `place_task`?\n"
        assert run("diff").stderr == message
        put("pyproject.toml", "[tool.mmrewrite]\nignore = ['place_taks']\n")
        assert run("diff").stderr == message
        put("pyproject.toml", "[tool.mmrewrite.per-file-ignores]\n'[z-a]' = ['all']\n")
        assert "'[z-a]' is no pattern" in run("diff").stderr


class TestCommonOptions:
    @pytest.mark.parametrize("option", ["--select", "--ignore"])
    @pytest.mark.parametrize("value", ["", ",", " , "])
    def test_a_list_without_a_name(self, option: str, value: str) -> None:
        """As of a variable of a shell that is not set."""
        put("a.py", TASK)
        result = run("diff", option, value)
        assert result.exit_code == 2 and f"{option} names no codemod; leave it out, or name one." in result.stderr

    @pytest.mark.parametrize("command", ["diff", "check", "apply", "modernize", "plan", "verify", "build --out out"])
    @pytest.mark.parametrize("paths", [[""], ["a.py", ""]])
    def test_an_empty_path(self, command: str, paths: list[str]) -> None:
        put("a.py", TASK)
        done = subprocess.run(
            [sys.executable, "-m", "mmrewrite", *command.split(), *paths], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith("Error: A PATH is empty; leave it out, or name a file or folder.\n")
        result = run("check", "--out", "")
        assert result.exit_code == 2 and "--out has an empty name; name the folder of the mirror." in result.stderr

    def test_names_that_no_file_has(self) -> None:
        put("a.py", TASK)
        for text, said in (
            ('include = ["a\\u0000.py"]', r"'a\x00.py' is no name of a file or folder"),
            ('include = [""]', "'' is no name of a file or folder"),
            ('out = "a\\u0000"', r"'a\x00' is no name of a file or folder"),
            ('axes = {batch = ""}', "axes.batch must be a device axis, or false for replicated, not ''"),
        ):
            put("mmrewrite.toml", text)
            result = run("diff")
            assert result.exit_code == 2 and said in result.stderr
        put("pyproject.toml", '[tool.mmrewrite]\ninclude = ["a.py", "missing"]\n')
        os.unlink("mmrewrite.toml")
        result = run("diff")
        assert result.exit_code == 2 and shown(result) == ["a.py"]
        assert "missing: no such file or folder; `include` in pyproject.toml names it" in result.stderr
        assert "missing: no such file or folder\n" in run("diff", "missing").stderr

    def test_a_byte_order_mark(self) -> None:
        put("a.py", TASK)
        put("pyproject.toml", b"\xef\xbb\xbf[tool.mmrewrite]\nignore = ['place_task']\n")
        assert "left alone on purpose" in run("diff").stderr
        put("pyproject.toml", b"\xef\xbb\xbf[project]\nname = 'x'\n")
        assert run("init").exit_code == 0
        assert Path("pyproject.toml").read_bytes().startswith(b"\xef\xbb\xbf[project]")
        assert run("diff").exit_code == 0

    def test_lists_with_commas(self) -> None:
        put("a.py", TASK + "\n\nxs = []\nfor x in xs:  # mm: stages\n    y = f(y)\n")
        assert run("diff", "--select", "stage_loop, place_task").stdout == run("diff").stdout
        assert run("diff", "--ignore=stage_loop,place_task").stdout == ""
        assert "There is no codemod `b`" in run("diff", "--select", "place_task,b").stderr

    def test_the_result_is_the_same_whatever_the_number_of_workers(self) -> None:
        # In processes of their own: other tests may have started threads here, with which one does not fork.
        program = (
            "import sys; from mmrewrite.engine import workers; workers.ENOUGH = 0; "
            "from mmrewrite.cli.commands import cli; cli(sys.argv[1:])"
        )

        def done(*arguments: str) -> tuple[int, bytes, bytes]:
            found = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, check=False)
            return found.returncode, found.stdout, found.stderr

        for number in range(6):
            put(f"m{number}.py", TASK)
            put(f"old{number}.py", OLD)
        for command in (["diff"], ["modernize", "--diff"], ["check"]):
            one = done(*command, "--jobs", "1")
            assert one == done(*command, "--jobs", "3")
            assert one[1]

    def test_the_patch_is_the_same_bytes_in_every_run(self) -> None:
        put("deep/new.py", TASK)
        put("old.py", TASK)
        command = [sys.executable, "-m", "mmrewrite", "diff", "--no-cache"]
        runs = [
            subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
            for seed in ("1", "2")
        ]
        assert runs[0] == runs[1] and runs[0].count(b"diff --git") == 2

    def test_color_is_for_terminals_unless_told_otherwise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        put("a.py", WRONG)
        put("b.py", TASK)
        always = run("diff", "--color", "always", color=True)
        assert "\x1b[1ma.py:1:17\x1b[0m: \x1b[31munknown directive" in always.stderr
        assert "\x1b[31m                  ^^^^\x1b[0m" in always.stderr
        assert "\x1b[32m+import mmruntime" in always.stdout
        assert "\x1b" not in run("diff").output
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in run("diff", color=True).output
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.setenv("TERM", "dumb")
        assert "\x1b" not in run("diff", color=True).output
        assert "\x1b" not in run("dif", color=True).output
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" in run("diff", "--color", "always", color=True).output
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.setenv("FORCE_COLOR", "1")
        forced = run("diff")
        assert "\x1b[1ma.py:1:17" in forced.stderr and "\x1b" not in run("diff", "--color", "never").output
        # Many CI systems set it, and `git apply` reads no colors.
        assert "+import mmruntime" in forced.stdout and "\x1b" not in forced.stdout
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in run("diff").output

    @pytest.mark.parametrize(
        ("arguments", "colored"),
        [
            (("plan", "a.py"), ["\x1b[36mline     step\x1b[0m", "\x1b[34mF0 \x1b[0m", "\x1b[32mB", "\x1b[2m..."]),
            (("codemods",), ["\x1b[1mFor hints:\x1b[0m", "\x1b[36mplace_task\x1b[0m"]),
            (("explain", "place_task"), ["\x1b[1mRun one call", "\x1b[36mTo check:\x1b[0m"]),
            (("explain", "a.py:7"), ["\x1b[1ma.py:7"]),
            (("init", "--print"), ["\x1b[2m#"]),
            (
                ("check", "b.py"),
                ["\x1b[33mmore than one call", "\x1b[36m[place_task]\x1b[0m", "\x1b[33m2 refusals\x1b[0m"],
            ),
            (("--help",), ["\x1b[36mCommands\x1b[0m:"]),
            (("--bogus",), ["\x1b[31mError\x1b[0m: No such option '--bogus'."]),
            (("diff", "--bogus"), ["\x1b[31mError\x1b[0m: No such option '--bogus'."]),
            (("dif",), ["\x1b[31mError\x1b[0m: No such command 'dif'."]),
            (("diff", "--select", "x"), ["\x1b[31mError\x1b[0m: There is no codemod `x`"]),
            (("diff", "--config", "nowhere"), ["\x1b[31mError\x1b[0m: Invalid value for '--config'"]),
            (("diff", "--help"), ["\x1b[36mOptions\x1b[0m:"]),
            (("modernize", "--check", "--upgrade-to", "0.10.0", "c.py"), ["\x1b[1mc.py:2:5\x1b[0m"]),
        ],
    )
    def test_everything_has_color(
        self, arguments: tuple[str, ...], colored: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put("a.py", PIPELINE)
        put("b.py", REFUSED)
        put("c.py", OLD)
        plain = run(*arguments).output
        assert "\x1b" not in plain
        monkeypatch.setenv("FORCE_COLOR", "1")
        output = run(*arguments).output
        assert not [part for part in colored if part not in output]
        assert click.unstyle(output) == plain

    def test_quiet_and_verbose(self) -> None:
        put("a.py", REFUSED)
        put("b.py", WRONG)
        assert [line[:6] for line in run("diff", "-q").stderr.splitlines()] == ["b.py:1", "  y = ", "      "]
        assert "a.py:5:1: more than one call" in run("diff", "-v").stderr


# Which argument is the batch cannot be seen.
HIDDEN = PIPELINE.replace("(params, x)  # mm: microbatch", "(*params, x)  # mm: microbatch")


class TestRefusals:
    def test_the_cause_first_and_the_rest_in_one_line(self) -> None:
        put("a.py", HIDDEN)
        lines = run("diff").stderr.splitlines()
        assert lines[0].startswith("a.py:14:12: star-args hide which argument is the batch")
        assert lines[1] == "because of this, 3 hints stay as well: a.py:3, a.py:7, a.py:12 (-v says why each does)"
        assert lines[2] == "0 files changed, 4 refusals".replace("changed", "would change")
        assert len(run("diff", "-v").stderr.splitlines()) == 5

    def test_all_causes_come_together(self) -> None:
        put("a.py", HIDDEN.replace("    for w in params:", "    while params:"))
        lines = run("diff").stderr.splitlines()
        assert [line.split(": ")[0] for line in lines[:2]] == ["a.py:7:5", "a.py:14:12"]

    def test_also_those_of_one_statement(self) -> None:
        put("a.py", PIPELINE.replace("x = x @ w", 'a, b = f(x), g(w)  # mm: task(stage=0); shard("batch")'))
        found = run("check").stderr
        assert "a.py:8:9: more than one call could be the task" in found
        assert "a.py:8:9: `f(x), g(w)` is not one array" in found


class TestExitStatus:
    @pytest.mark.parametrize(
        ("text", "arguments", "status"),
        [
            ("x = 1\n", ["check"], 0),
            ("x = 1\n", ["diff", "--exit-code", "--strict"], 0),
            (TASK, ["diff"], 0),
            (TASK, ["diff", "--exit-code"], 1),
            (TASK, ["check"], 1),
            (TASK, ["apply"], 0),
            (REFUSED, ["diff"], 0),
            (REFUSED, ["check"], 1),
            (REFUSED, ["check", "--since", "HEAD"], 1),
            (REFUSED, ["diff", "--strict"], 1),
            (REFUSED, ["apply", "--strict"], 1),
            (OLD, ["modernize", "--check"], 1),
            (OLD, ["modernize"], 0),
            (WRONG, ["diff"], 2),
            (WRONG, ["check"], 2),
            ("x = (  # mm: off\n", ["apply"], 2),
            (TASK, ["diff", "nowhere.py"], 2),
            (TASK, ["diff", "--frobnicate"], 2),
        ],
    )
    def test_of_every_kind(self, repository: Path, text: str, arguments: list[str], status: int) -> None:
        git("commit", "-qm", "empty", "--allow-empty")
        put("a.py", text)
        assert run(*arguments).exit_code == status

    def test_check_of_a_mirror_fails_for_refusals(self) -> None:
        put("a.py", REFUSED)
        assert run("build", "a.py", "--out", "out").exit_code == 0
        assert run("check", "a.py", "--out", "out").exit_code == 1


class TestInit:
    def test_what_it_finds(self) -> None:
        put("pyproject.toml", '[project]\nname = "x"\ndependencies = ["jax[cuda]>=0.6.2", "numpy"]\n')
        put("src/pkg/model.py", 'import jax\ny = nn.with_logical_constraint(x, ("batch", "mlp"))\n')
        put("tests/test_a.py", "import jax\n")
        put("docs/conf.py", "import sphinx\n")
        result = run("init")
        assert (result.exit_code, result.stderr) == (
            0,
            "pyproject.toml: [tool.mmrewrite] added; every key is explained there\n",
        )
        text = Path("pyproject.toml").read_text()
        assert text.startswith('[project]\nname = "x"\n')
        section = tomllib.loads(text)["tool"]["mmrewrite"]
        assert section == {"include": ["src"], "exclude": ["/tests/"], "target-jax": "0.6.2"}
        assert '# batch = "data"\n# mlp = false\n' in text
        assert run("check").exit_code == 0
        again = run("init")
        assert (again.exit_code, "has a section [tool.mmrewrite] already" in again.stderr) == (2, True)
        assert Path("pyproject.toml").read_text() == text

    def test_every_key_is_there_and_valid_when_uncommented(self) -> None:
        put("a.py", "import jax\n")
        assert "mmrewrite.toml: written" in run("init").stderr
        lines = Path("mmrewrite.toml").read_text().splitlines()
        settings = [line.removeprefix("# ") for line in lines if " = " in line or line.startswith("# [")]
        put("mmrewrite.toml", "\n".join(line for line in settings if not line.startswith(("The ", "Where "))) + "\n")
        assert set(tomllib.loads(Path("mmrewrite.toml").read_text())) == set(KEYS)
        assert run("diff").exit_code == 0
        assert "mmrewrite.toml is there already" in run("init").stderr
        assert 'include = ["a.py"]' in run("init", "--print").stdout
        os.unlink("mmrewrite.toml")
        put("pyproject.toml", "[tool.mmrewrite]\n")
        assert "has a section [tool.mmrewrite] already" in run("init").stderr
        assert run("init", "--print").stdout.startswith("[tool.mmrewrite]\n")

    def test_it_can_be_looked_at_first(self) -> None:
        put("a.py", "import jax\n")
        assert 'include = ["a.py"]' in run("init", "--print").stdout
        assert sorted(os.listdir()) == ["a.py"]

    @pytest.mark.parametrize("end", ["", "\n", "\r\n"])
    def test_the_rest_of_the_file_stays(self, end: str) -> None:
        head = f"[project]\r\nname = 'x'{end}" if "\r" in end else f"[project]\nname = 'x'{end}"
        Path("pyproject.toml").write_bytes(head.encode())
        run("init")
        data = Path("pyproject.toml").read_bytes()
        assert data.startswith(head.encode())
        assert (b"\r\n" in data) == (data.count(b"\n") == data.count(b"\r\n"))
        assert "mmrewrite" in tomllib.loads(data.decode())["tool"]

    @pytest.mark.skipif(os.name != "posix", reason="no such names of files")
    def test_names_are_quoted_as_toml_quotes_them(self) -> None:
        name = "a\n\t\x7f\x01\\ü'\".py"
        put(name, "import jax\n")
        assert run("init").exit_code == 0
        assert tomllib.loads(Path("mmrewrite.toml").read_text(encoding="utf-8"))["include"] == [name]
        os.unlink("mmrewrite.toml")
        put("bad\udcff.py", "import jax\n")
        result = run("init")
        assert result.exit_code == 2 and r"'bad\udcff.py' uses JAX, and its name is no UTF-8" in result.stderr

    def test_a_file_that_takes_no_section_stays_as_it_is(self) -> None:
        put("pyproject.toml", "tool = {ruff = {}}\n")
        result = run("init")
        assert result.exit_code == 2
        assert "takes no section at its end" in result.stderr
        assert "write `mmrewrite init --print > mmrewrite.toml`" in result.stderr
        assert Path("pyproject.toml").read_text() == "tool = {ruff = {}}\n"
        # As the shell does it, the file is there before the command runs.
        put("mmrewrite.toml", "")
        put("mmrewrite.toml", run("init", "--print").stdout)
        assert run("diff").exit_code == 0


class TestExplain:
    def explain(self, place: str, *options: str) -> list[str]:
        result = run("explain", place, *options)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    def test_a_line_of_a_source(self) -> None:
        put("a.py", PIPELINE)
        lines = self.explain("a.py:7")
        assert lines[:2] == [
            "a.py:7: for w in params:  # mm: stages",
            "Changed by `stage_loop`, because of line 7: `stages`.",
        ]
        assert lines[2].startswith("To check: the call in the loop is one layer")
        # The body of the loop stays where it is.
        assert lines[3:6] == [
            "In its place, line 10 of the result:",
            "        def layer(x, w):",
            "Of the same hint, lines 12 to 15 of the result:",
        ]
        assert self.explain("a.py:9")[-1] == "It stays as it is, and is line 16 of the result."
        assert run("diff").stdout.count("\n") > 5
        made = run("apply", "-", "--stdin-filename", "a.py", stdin=PIPELINE).stdout.splitlines()
        assert made[15] == "    return x.mean()"

    def test_refused_wrong_and_left(self) -> None:
        put("a.py", HIDDEN)
        assert any(line.startswith("Refused by `microbatch_grad`: star-args") for line in self.explain("a.py:14"))
        assert any("left as it is, because a step" in line for line in self.explain("a.py:7"))
        put("b.py", WRONG)
        assert self.explain("b.py:1")[1] == "An error: unknown directive `tsak`; did you mean `task`?"
        # Lines are those of Python, which no form feed and no separator of Unicode ends.
        put("odd.py", "y = f(1)  # mm: tsak(stage=0)  # \x0b\x0c\u2028\nz = 1\n")
        assert "has 2 lines, and no line 3" in run("explain", "odd.py:3").stderr
        put("c.py", "# mm: off\n" + TASK)
        assert self.explain("c.py:6")[1] == "`task(stage=0)` is left alone: `# mm: off`."
        put("d.py", "x = 1\n")
        assert self.explain("d.py:1") == ["d.py:1: x = 1", "It stays as it is."]

    def test_a_line_of_a_notebook(self) -> None:
        """By the line of the file, or by the cell, as messages name it."""
        off = "# mm: off\n" + TASK
        two = "# one string\ndef g(x):\n    return x\n\n\ny = g(1) + g(2)  # mm: task(stage=0)\n"
        sources = [
            ["x = 1\n", "y = 2\n", "# mm: mesh(stage=2)\n", "z = 3"],
            [WRONG],
            two,
            off.splitlines(keepends=True),
        ]
        content = {
            "cells": [
                {"cell_type": "code", "metadata": {}, "source": text, "outputs": [], "execution_count": None}
                for text in sources
            ],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        put("a.ipynb", json.dumps(content, indent=1))
        lines = Path("a.ipynb").read_text().splitlines()
        wrong = next(number for number, line in enumerate(lines, start=1) if "tsak" in line)
        error = "An error: unknown directive `tsak`; did you mean `task`?"
        assert self.explain(f"a.ipynb:{wrong}")[1:] == [error]
        assert self.explain("a.ipynb, cell 2:1")[1:] == [error]
        assert self.explain("a.ipynb, cell 2:1:20")[1:] == [error]
        assert self.explain("a.ipynb, cell 4:6")[1:] == ["`task(stage=0)` is left alone: `# mm: off`."]
        assert self.explain("a.ipynb, cell 3:6")[1].startswith("Refused by `place_task`: more than one call")
        # Of lines with the numbers that those have in their cells.
        for number in (1, 3, 6):
            assert self.explain(f"a.ipynb:{number}")[1:] == ["It stays as it is."]
        assert self.explain("a.ipynb, cell 1:1")[1:] == ["It stays as it is."]
        for place in ("cell 1:5", "cell 0:1", "cell 5:1"):
            result = run("explain", f"a.ipynb, {place}")
            assert result.exit_code == 2 and "a.ipynb has no line" in result.stderr

    def test_a_line_of_a_mirror(self) -> None:
        put("pkg/__init__.py", "")
        put("pkg/a.py", PIPELINE)
        put("pkg/b.py", "from pkg import a\n")
        run("build", "pkg", "--out", "out")
        text = Path("out/pkg/a.py").read_text().splitlines()
        number = next(index for index, line in enumerate(text, start=1) if "mm.stage(" in line)
        lines = self.explain(f"out/pkg/a.py:{number}")
        assert "Written by `stage_loop`, because of line 7: `stages`; in pkg/a.py." in lines
        number = text.index("    return x.mean()") + 1
        assert self.explain(f"out/pkg/a.py:{number}")[-1] == "It is line 9 of pkg/a.py, as it was."
        assert "`build` writes a comment that names the source" in self.explain("out/pkg/a.py:1")[-1]
        assert "makes imports of the package relative" in self.explain("out/pkg/b.py:2")[-1]

    def test_a_line_that_was_applied_in_place(self, repository: Path) -> None:
        put("a.py", PIPELINE)
        git("add", ".")
        git("commit", "-qm", "hints")
        run("apply")
        put("a.py", Path("a.py").read_text() + "x = 1\n")
        git("commit", "-qam", "applied")
        text = Path("a.py").read_text().splitlines()
        number = next(index for index, line in enumerate(text, start=1) if "mm.stage(" in line)
        lines = self.explain(f"a.py:{number}")
        assert lines[1].startswith("Written by `stage_loop`, because of line 7: `stages`; in a.py at revision ")
        assert self.explain(f"a.py:{len(text)}")[-1] == "It stays as it is."

    def test_codemods_that_do_not_run(self) -> None:
        put("a.py", TASK)
        (line,) = [number for number, text in enumerate(TASK.splitlines(), start=1) if "mm:" in text]
        changed = "Changed by `place_task`"
        assert self.explain(f"a.py:{line}", "--select", "place_task")[1].startswith(changed)
        assert not any(changed in text for text in self.explain(f"a.py:{line}", "--select", "stage_loop"))
        assert not any(changed in text for text in self.explain(f"a.py:{line}", "--ignore", "place_task"))
        result = run("explain", f"a.py:{line}", "--select", "place_tsak")
        assert (result.exit_code, "did you mean `place_task`?" in result.stderr) == (2, True)

    def test_another_configuration(self, repository: Path) -> None:
        put("a.py", PIPELINE)
        put("other.toml", '[axes]\nbatch = "stage"\n')
        (line,) = [number for number, text in enumerate(PIPELINE.splitlines(), start=1) if "mm: mesh" in text]
        mesh = 'logical_axes=(("batch", "stage"),)'
        assert not any(mesh in text for text in self.explain(f"a.py:{line}"))
        assert any(mesh in text for text in self.explain(f"a.py:{line}", "--config", "other.toml"))
        # In place as well, where the rewrite of a revision must be that of the file.
        git("add", ".")
        git("commit", "-qm", "hints")
        run("apply", "--config", "other.toml")
        (line,) = [n for n, text in enumerate(Path("a.py").read_text().splitlines(), start=1) if mesh in text]
        assert self.explain(f"a.py:{line}", "--config", "other.toml")[1].startswith("Written by `declare_mesh`")
        assert self.explain(f"a.py:{line}")[-1] == "It stays as it is."
        assert run("explain", f"a.py:{line}", "--config", "none.toml").exit_code == 2

    def test_what_else_it_says(self) -> None:
        put("a.py", PIPELINE)
        put("b.py", HIDDEN)
        assert run("explain", "a.py:7").stderr == ""
        said = run("explain", "a.py:7", "-v").stderr.splitlines()
        assert any(text.startswith("a.py: stage_loop, because of line 7: stages") for text in said)
        assert not any("b.py" in text for text in said)
        said = run("explain", "b.py:14", "-v").stderr.splitlines()
        # As `diff -v` says it, consequences with their reasons.
        assert said == [text for text in run("diff", "-v").stderr.splitlines() if text.startswith("b.py:")]
        assert len(said) > 1
        assert run("explain", "b.py:14", "-v", "-q").stderr == ""

    def test_strict(self) -> None:
        put("a.py", HIDDEN)
        assert run("explain", "a.py:14").exit_code == 0
        assert run("explain", "a.py:14", "--strict").exit_code == 1
        put("a.py", PIPELINE)
        assert run("explain", "a.py:7", "--strict", "--no-cache", "--jobs", "2").exit_code == 0

    def test_a_source_that_is_gone(self) -> None:
        put("pkg/a.py", PIPELINE)
        run("build", "pkg", "--out", "out")
        os.unlink("pkg/a.py")
        (line,) = self.explain("out/a.py:2")
        assert line.endswith("which is not there; run this where `build` was run.")
        put("pkg/__init__.py", "")
        put("pkg/a.py", PIPELINE)
        run("build", "pkg", "--out", "other")
        # There the source has the name of the file itself.
        os.chdir("other")
        (line,) = self.explain("pkg/a.py:2")
        assert line.endswith("which is not there; run this where `build` was run.")

    def test_usage(self) -> None:
        put("a.py", "x = 1\n")
        os.mkdir("folder")
        for place, message in (
            ("a.py:0", "a.py has 1 line, and no line 0."),
            ("a.py:2", "a.py has 1 line, and no line 2."),
            ("b.py:1", "b.py: no such file; write FILE:LINE"),
            ("a.py:one", "a.py:one: write FILE:LINE, with a number for the line"),
            ("folder:1", "folder is a folder; name a file in it, and a line"),
            ("folder", "folder is a folder; name a file in it, and a line"),
            ("stage_lop", "did you mean `stage_loop`?"),
        ):
            result = run("explain", place)
            assert (result.exit_code, message in result.stderr) == (2, True)


class TestFiles:
    def test_encodings_and_line_endings_are_kept(self) -> None:
        texts = {
            "bom.py": b"\xef\xbb\xbf" + TASK.encode(),
            "latin.py": f"# coding: latin-1\nname = 'ü'\n{TASK}".encode("latin-1"),
            "crlf.py": TASK.replace("\n", "\r\n").encode(),
            "open.py": TASK.rstrip("\n").encode(),
        }
        for name, data in texts.items():
            Path(name).write_bytes(data)
        assert run("apply").exit_code == 0
        assert Path("bom.py").read_bytes().startswith(b"\xef\xbb\xbfimport mmruntime")
        assert "ü".encode("latin-1") in Path("latin.py").read_bytes()
        assert Path("crlf.py").read_bytes().count(b"\n") == Path("crlf.py").read_bytes().count(b"\r\n")
        assert not Path("open.py").read_bytes().endswith(b"\n")

    def test_binary_files_are_not_written(self) -> None:
        file = put("a.py", TASK + "\0")
        assert run("apply").exit_code == 2
        assert file.read_text() == TASK + "\0"

    def test_notebooks_keep_outputs_and_metadata(self) -> None:
        cell = {
            "cell_type": "code",
            "metadata": {"a": 1},
            "source": TASK,
            "outputs": [{"x": 1.0}],
            "execution_count": 7,
        }
        put("a.ipynb", json.dumps({"cells": [cell], "metadata": {"k": 2.50}, "nbformat": 4, "nbformat_minor": 5}))
        assert run("apply").exit_code == 0
        after = json.loads(Path("a.ipynb").read_text())
        assert DONE in after["cells"][0]["source"] + "\n"
        assert {**after["cells"][0], "source": TASK} == cell


def test_help_cuts_no_sentence_short() -> None:
    assert "..." not in run("--help").stdout.partition("Commands:")[2]


def test_every_command_of_the_specification_is_there() -> None:
    assert set(cli.commands) >= {
        *("diff", "apply", "build", "check", "verify", "plan", "run", "modernize", "codemods", "explain", "init")
    }
    common = ("--select", "--ignore", "--jobs", "--config", "--strict", "--no-cache", "--quiet", "--verbose", "--color")
    for command in ("diff", "apply", "build", "check", "verify", "plan", "modernize", "explain"):
        text = run(command, "--help").stdout
        assert [option for option in common if option not in text] == [], command
