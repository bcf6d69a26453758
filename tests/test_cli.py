"""The command line: patches that git takes, exit statuses, messages, and files written whole or not at all."""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from command import HINTED, PIPELINE, REFUSED, put, run
from fixture_files import hint_cases

from mmrewrite.cli.commands import cli
from mmrewrite.files import write
from mmrewrite.mirror.build import MANIFEST

pytestmark = pytest.mark.usefixtures("folder")

WRONG = "def f(x):\n    return x\n\n\ny = f(1)  # mm: tsak(stage=0)\n"


class TestDiff:
    def test_nothing_to_do(self) -> None:
        put("a.py", "x = 1\n")
        result = run("diff", "--exit-code", "--strict")
        assert (result.exit_code, result.output) == (0, "")

    def test_patch(self) -> None:
        put("pkg/a.py", HINTED)
        result = run("diff")
        assert result.exit_code == 0
        assert result.stdout == (
            "diff --git a/pkg/a.py b/pkg/a.py\n"
            "--- a/pkg/a.py\n"
            "+++ b/pkg/a.py\n"
            "@@ -1,5 +1,8 @@\n"
            "+import mmruntime as mm\n"
            "+\n"
            "+\n"
            " def f(x):\n"
            "     return x\n"
            " \n"
            " \n"
            "-y = f(1)  # mm: task(stage=0)\n"
            '+y = mm.task(f, task=mm.Task(name="f", mesh_slice={"stage": 0}))(1)\n'
        )
        assert result.stderr == "1 file would change\n"

    def test_exit_code(self) -> None:
        put("a.py", HINTED)
        assert run("diff", "--exit-code").exit_code == 1

    def test_it_writes_nothing(self) -> None:
        file = put("a.py", HINTED)
        before = file.stat()
        run("diff")
        assert (file.read_text(), file.stat().st_mtime_ns) == (HINTED, before.st_mtime_ns)
        assert sorted(os.listdir()) == ["a.py"]

    def test_files_are_in_path_order_and_named_relative_to_the_repository(self) -> None:
        for name in ("b", "a", "c/z", "c/y"):
            put(f"{name}.py", HINTED)
        os.mkdir(".git")
        os.chdir("c")
        result = run("diff", "../b.py", "../a.py", ".")
        names = [line.split()[-1] for line in result.stdout.splitlines() if line.startswith("diff ")]
        assert names == ["b/a.py", "b/b.py", "b/c/y.py", "b/c/z.py"] or names == [
            "b/c/y.py",
            "b/c/z.py",
            "b/a.py",
            "b/b.py",
        ]
        assert run("diff", "../b.py", "../a.py", ".").stdout == result.stdout

    def test_color(self) -> None:
        put("a.py", HINTED)
        colored = CliRunner().invoke(cli, ["diff", "--color", "always"], color=True)
        assert "\x1b[32m+import mmruntime" in colored.stdout
        assert "\x1b" not in run("diff", "--color", "never").stdout

    def test_verbose_says_why(self) -> None:
        put("a.py", HINTED + "# mm: off\nz = f(1)  # mm: task(stage=1)\n")
        stderr = run("diff", "-v").stderr
        assert "a.py: place_task, because of line 5: task(stage=0)\n" in stderr
        assert "a.py:7:11: `task(stage=1)` left alone: `# mm: off`\n" in stderr
        assert "1 hint left alone on purpose" in stderr

    def test_verbose_says_each_reason_once(self) -> None:
        put("a.py", PIPELINE)
        said = run("diff", "-v").stderr.splitlines()
        assert [line for line in said if "stage_loop, because" in line] == [
            "a.py: stage_loop, because of line 7: stages"
        ]
        assert len(said) == len({*said})


@pytest.fixture
def repository(folder: Path) -> Iterator[Path]:
    if shutil.which("git") is None:
        pytest.skip("git is not there")
    subprocess.run(["git", "init", "-q", "."], check=True)
    yield folder


def test_a_patch_has_a_function_below_its_decorator_as_what_stays() -> None:
    step = "@jax.jit  # mm: mjit\ndef f(x):\n    return abs(x)  # mm: task(stage=0)\n"
    put("a.py", f"import jax\n\n# mm: mesh(stage=2)\n\n\n{step}")
    assert [line for line in run("diff").stdout.splitlines() if "def f" in line] == [" def f(x):"]


class TestPatchAgainstGit:
    """`git apply` of the patch gives the bytes that `apply` writes."""

    @pytest.mark.parametrize(
        "data",
        [
            HINTED.encode(),
            HINTED.replace("\n", "\r\n").encode(),
            HINTED.rstrip("\n").encode(),
            b"\xef\xbb\xbf" + HINTED.encode(),
            f"# coding: latin-1\nname = 'é'\n{HINTED}".encode("latin-1"),
            (HINTED + "\n" * 20 + "\n".join(f"x{i} = f({i})  # mm: task(stage={i})\n\n" for i in range(5))).encode(),
            b"import jax\n" + b"x = 1\n" * 30 + b"def f(y): return y\n" + b"y = f(1)  # mm: task(stage=0)",
            b"# mm: mesh(stage=2)\nx = 1\n",
        ],
        ids=["plain", "crlf", "no-newline", "bom", "latin-1", "many", "far-apart", "top"],
    )
    @pytest.mark.parametrize("name", ["a.py", "with space.py", 'quote".py', "ü.py"])
    def test_git_takes_it(self, repository: Path, data: bytes, name: str) -> None:
        put(name, data)
        put("patch", run("diff").stdout_bytes)
        assert run("apply").exit_code == 0
        applied = Path(name).read_bytes()
        put(name, data)
        subprocess.run(["git", "apply", "--whitespace=nowarn", "patch"], check=True)
        assert Path(name).read_bytes() == applied != data
        assert run("diff", "--exit-code").exit_code == 0

    def test_fixtures(self, repository: Path) -> None:
        # As files of one project, which share axes: some keep hints that are rewritten where they stand alone.
        programs = {f"{case.parent.name}/{case.name}.py": case for case in hint_cases("before.py")[::4]}
        for path, case in programs.items():
            put(path, (case / "before.py").read_bytes())
        put("patch", run("diff").stdout_bytes)
        run("apply")
        applied = {path: Path(path).read_bytes() for path in programs}
        for path, case in programs.items():
            put(path, (case / "before.py").read_bytes())
        subprocess.run(["git", "apply", "--whitespace=nowarn", "patch"], check=True)
        assert {path: Path(path).read_bytes() for path in programs} == applied
        afters = {path: case / "after.py" for path, case in programs.items() if (case / "after.py").exists()}
        as_alone = [path for path, after in afters.items() if applied[path] == after.read_bytes()]
        assert len(as_alone) > 0.9 * len(afters)


class TestApply:
    def test_apply_twice(self) -> None:
        file = put("a.py", HINTED)
        first = run("apply")
        assert (first.exit_code, first.stderr) == (0, "1 file changed\n")
        written = file.stat().st_mtime_ns
        second = run("apply", "--strict")
        assert (second.exit_code, second.output) == (0, "")
        assert file.stat().st_mtime_ns == written

    def test_an_error_in_one_file_does_not_stop_the_others(self) -> None:
        good, wrong, broken = put("good.py", HINTED), put("wrong.py", WRONG), put("broken.py", "x = (  # mm: off\n")
        result = run("apply")
        assert result.exit_code == 2
        assert "mm.task" in good.read_text()
        assert wrong.read_text() == WRONG
        assert "broken.py: Python " in result.stderr
        assert broken.read_text().startswith("x = (")
        assert (
            "wrong.py:5:17: unknown directive `tsak`; did you mean `task`?\n"
            "  y = f(1)  # mm: tsak(stage=0)\n"
            "                  ^^^^\n"
        ) in result.stderr

    def test_refusals_fail_only_under_strict(self) -> None:
        put("a.py", REFUSED)
        assert run("apply").exit_code == 0
        result = run("apply", "--strict")
        assert result.exit_code == 1
        assert result.stderr.startswith("a.py:5:1: more than one call could be the task: `f(1)`, `f(2)`; ")
        assert result.stderr.rstrip().endswith("0 files changed, 1 refusal")
        assert run("apply", "-q").stderr == ""

    def test_mode_is_kept(self) -> None:
        file = put("a.py", HINTED)
        file.chmod(0o754)
        run("apply")
        assert stat.S_IMODE(file.stat().st_mode) == 0o754

    def test_a_link_is_written_through_inside_the_roots_only(self) -> None:
        target = put("outside/real.py", HINTED)
        os.mkdir("inside")
        link = Path("inside/link.py")
        link.symlink_to(target.resolve())
        assert "mm.task" not in target.read_text()
        assert run("apply", "inside").exit_code == 0
        assert target.read_text() == HINTED
        assert run("apply", "inside/link.py").exit_code == 0
        assert link.is_symlink()
        assert "mm.task" in target.read_text()

    def test_a_file_that_changed_meanwhile_is_left(self) -> None:
        file = put("a.py", HINTED)
        with pytest.raises(write.NotWritten, match="it changed while mmrewrite was reading; run again"):
            write.replace_file("a.py", b"something else", b"new", ["."])
        assert file.read_text() == HINTED

    def test_a_link_out_of_the_roots_is_left(self) -> None:
        target = put("outside/real.py", HINTED)
        os.mkdir("inside")
        Path("inside/link.py").symlink_to(target.resolve())
        with pytest.raises(write.NotWritten, match="outside the folders given; name that file itself"):
            write.replace_file("inside/link.py", HINTED.encode(), b"new", ["inside"])

    def test_a_failed_write_leaves_the_old_file_and_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        file = put("a.py", HINTED)

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "rename", fail)
        result = run("apply")
        assert result.exit_code == 2
        assert "a.py: not written: No space left on device" in result.stderr
        assert file.read_text() == HINTED
        assert os.listdir() == ["a.py"]


class TestSelection:
    def test_ignored_and_excluded_files(self) -> None:
        put("pyproject.toml", '[tool.mmrewrite]\nexclude = ["generated/**"]\n')
        put(".gitignore", "ignored/\n*_tmp.py\n!kept_tmp.py\n")
        put("deep/.gitignore", "/here.py\n")
        for path in ("a", "generated/b", "ignored/c", "d_tmp", "kept_tmp", "deep/here", "deep/below/here", ".hidden/e"):
            put(f"{path}.py", HINTED)
        put("env/pyvenv.cfg", "")
        put("env/f.py", HINTED)
        result = run("diff")
        names = [line.split(" b/")[-1] for line in result.stdout.splitlines() if line.startswith("diff ")]
        assert names == ["a.py", "deep/below/here.py", "kept_tmp.py"]
        for named in ("ignored/c.py", "generated/b.py", ".hidden/e.py", "env/f.py"):
            assert named in run("diff", named).stdout

    @pytest.mark.parametrize(
        "paths", [("ignored.py",), (".", "ignored.py"), ("ignored.py", "."), (".", "ignored.py", ".")]
    )
    def test_a_file_that_is_named_is_read(self, paths: tuple[str, ...]) -> None:
        put(".gitignore", "ignored.py\n")
        put("pyproject.toml", "[tool.mmrewrite]\nexclude = ['ignored.py']\n")
        put("ignored.py", HINTED)
        assert "+++ b/ignored.py" in run("diff", *paths).stdout
        assert run("diff", ".").stdout == ""

    def test_include_is_the_default(self) -> None:
        put("pyproject.toml", '[tool.mmrewrite]\ninclude = ["src"]\n')
        put("src/a.py", HINTED)
        put("b.py", HINTED)
        assert "b.py" not in run("diff").stdout
        assert "b.py" in run("diff", "b.py").stdout

    def test_missing_and_unreadable_paths(self) -> None:
        put("bad.py", b"# coding: utf-8\nx = '\xff'  # mm: off\n")
        result = run("diff", "nowhere.py", "bad.py")
        assert result.exit_code == 2
        assert "nowhere.py: no such file or folder" in result.stderr
        assert "bad.py: not text in utf-8" in result.stderr
        put("worse.py", "# coding: klingon\nx = 1  # mm: off\n")
        assert "worse.py: unknown encoding 'klingon' in the coding comment" in run("diff", "worse.py").stderr

    @pytest.mark.parametrize("encoding", ["hex", "rot13", "zlib", "bz2", "base64", "quopri", "uu"])
    def test_a_codec_that_is_no_encoding_is_the_trouble_of_its_own_file(self, encoding: str) -> None:
        put("bad.py", f"# coding: {encoding}\nx = 1  # mm: off\n")
        put("good.py", HINTED)
        result = run("diff")
        assert result.exit_code == 2
        assert f"bad.py: '{encoding}' in the coding comment is no encoding of text; save the file as" in result.stderr
        assert "+++ b/good.py" in result.stdout

    def test_axis_names_of_the_configuration_are_quoted(self) -> None:
        names = ["a'b", 'a"b', "a\\", "a\n", "{x}", "größe", '", evil(), "']
        lines = [f'{json.dumps(name)} = "data"' for name in names]
        put("pyproject.toml", "\n".join(["[tool.mmrewrite.axes]", *lines, "none = false"]))
        put("a.py", "import jax\n\n# mm: mesh(data=2)\n\n\n@jax.jit  # mm: mjit\ndef step(x):\n    return x\n")
        assert run("apply", "a.py").exit_code == 0
        (mesh,) = (node for node in ast.parse(Path("a.py").read_text()).body if isinstance(node, ast.Assign))
        assert isinstance(mesh.value, ast.Call)
        assert ast.literal_eval(mesh.value.keywords[2].value) == (*((name, "data") for name in names), ("none", None))

    def test_select_and_ignore(self) -> None:
        put("a.py", HINTED)
        assert "1 hint left alone on purpose" in run("diff", "--select", "stage_loop").stderr
        assert run("diff", "--ignore", "place_task").stdout == ""
        result = run("diff", "--select", "place_taks")
        assert result.exit_code == 2
        assert "There is no codemod `place_taks`; did you mean `place_task`?" in result.stderr
        for command in (["diff", "--select", "zzz"], ["explain", "zzz"]):
            assert "There is no codemod `zzz`; `mmrewrite codemods` lists them\n" in run(*command).stderr


class TestConfiguration:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[tool.mmrewrite]\nexlude = []\n", "has no key `exlude`; did you mean `exclude`?"),
            ("[tool.mmrewrite]\nexclude = 'a'\n", "`exclude` must be a list of strings, not 'a'"),
            ("[tool.mmrewrite]\nout = 3\n", "`out` must be a folder's name, not 3"),
            ("[tool.mmrewrite]\naxes = 3\n", "`axes` must be a table"),
            ("[tool.mmrewrite.axes]\nbatch = 3\n", "axes.batch must be a device axis, or false for replicated, not 3"),
            ("[tool.mmrewrite\n", "pyproject.toml: "),
        ],
    )
    def test_mistakes(self, text: str, message: str) -> None:
        put("pyproject.toml", text)
        put("a.py", HINTED)
        result = run("diff")
        assert result.exit_code == 2
        assert message in result.stderr

    def test_hints_that_a_module_of_the_project_hands_on(self) -> None:
        put("pkg/compat.py", "from mmrewrite import hints as marks\n")
        put("pkg/__init__.py", "")
        hinted = put("pkg/model.py", "from .compat import marks\n\n\n@marks.task(stage=0)\ndef f(x):\n    return x\n")
        other = put("other.py", "import marks\n\n\n@marks.task(stage=0)\ndef f(x):\n    return x\n")
        before = other.read_bytes()
        assert run("apply").exit_code == 0
        assert "@functools.partial(mm.task, " in hinted.read_text()
        assert "marks" not in hinted.read_text()
        assert other.read_bytes() == before
        assert run("diff", "--exit-code").exit_code == 0

    def test_axes_and_line_length(self) -> None:
        put("pyproject.toml", "[tool.mmrewrite.axes]\nbatch = 'data'\nembed = false\n[tool.black]\nline-length = 130\n")
        put("a.py", "# mm: mesh(data=2)\nx = 1\n")
        line = (
            'mesh = mm.MultiMesh(axis_sizes=(2,), axis_names=("data",), '
            'logical_axes=(("batch", "data"), ("embed", None)))'
        )
        assert f"+{line}\n" in run("diff").stdout


MODEL = """import jax.numpy as jnp

LAYERS = [jnp.tanh] * 4


def forward(x):
    for layer in LAYERS:  # mm: stages
        x = layer(x)
    return x
"""


class TestBuild:
    def package(self) -> None:
        put("src/pkg/__init__.py", "")
        put("src/pkg/model.py", MODEL)
        put("src/pkg/data.txt", "text")
        put("src/pkg/sub/__init__.py", "from pkg.model import LAYERS\nimport pkg.model as m\n")
        put("src/pkg/main.py", '#!/usr/bin/env python\n# -*- coding: utf-8 -*-\nfrom pkg import model\n\nname = "ü"\n')

    def test_mirror(self) -> None:
        self.package()
        result = run("build", "src/pkg", "--out", "out")
        assert (result.exit_code, result.stderr) == (0, "1 file of 5 in out changed\n")
        assert Path("src/pkg/model.py").read_text() == MODEL
        model = Path("out/pkg/model.py").read_text()
        assert model.startswith("# Written by mmrewrite from src/pkg/model.py\nimport jax.numpy as jnp\n")
        assert "mm.stage(i, len(LAYERS)" in model
        assert Path("out/pkg/data.txt").read_text() == "text"
        assert Path("out/pkg/__init__.py").read_text() == "# Written by mmrewrite from src/pkg/__init__.py\n"
        assert Path("out/pkg/sub/__init__.py").read_text().splitlines()[1:] == [
            "from ..model import LAYERS",
            "from .. import model as m",
        ]
        assert Path("out/pkg/main.py").read_text().splitlines()[:7] == [
            "#!/usr/bin/env python",
            "# -*- coding: utf-8 -*-",
            "# Written by mmrewrite from src/pkg/main.py",
            "if __package__:",
            "    from . import model",
            "else:",
            "    from pkg import model",
        ]

    def test_it_imports_beside_the_original(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put("twice/__init__.py", "")
        put("twice/one.py", "def f(x):\n    return x\n\n\ndef g(x):\n    # mm: off\n    return __name__\n")
        put("twice/two.py", "from twice.one import g\n\nout = g(1)\n")
        assert run("build", "twice", "--out", "mirror").exit_code == 0
        monkeypatch.syspath_prepend(str(folder))
        try:
            assert importlib.import_module("twice.two").out == "twice.one"
            assert importlib.import_module("mirror.twice.two").out == "mirror.twice.one"
        finally:
            for name in [name for name in sys.modules if name.split(".")[0] in ("twice", "mirror")]:
                del sys.modules[name]

    def test_build_again_writes_nothing_and_check_agrees(self) -> None:
        self.package()
        run("build", "src/pkg", "--out", "out")
        before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
        run("build", "src/pkg", "--out", "out")
        assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")} == before
        result = run("check", "src/pkg", "--out", "out")
        assert (result.exit_code, result.stderr) == (0, "0 files of out would change\n")
        put("src/pkg/model.py", MODEL + "# more\n")
        result = run("check", "src/pkg", "--out", "out")
        assert result.exit_code == 1
        assert "out/pkg/model.py: out of date; run `mmrewrite build`" in result.stderr
        assert result.stderr.endswith("1 file of out would change\n")

    def test_check_of_a_mirror_prints_a_patch_to_what_build_writes(self, repository: Path) -> None:
        self.package()
        assert run("build", "src/pkg", "--out", "out").exit_code == 0
        put("src/pkg/model.py", MODEL.replace("* 4", "* 2") + "# no newline")
        put("src/pkg/new file.py", 'x = "ü"\n')
        put("src/pkg/empty.txt", "")
        os.unlink("src/pkg/main.py")
        result = run("check", "src/pkg", "--out", "out")
        assert result.exit_code == 1
        colored = run("check", "src/pkg", "--out", "out", "--color", "always", color=True).stdout
        assert "\x1b[32m+# no newline" in colored and click.unstyle(colored) == result.stdout
        for output_format in ("markdown", "html"):
            page = run("check", "src/pkg", "--out", "out", "--format", output_format).stdout
            assert "1 file would change" in page and "out/pkg/model.py: out of date" in page
        shutil.copytree("out", "built/out")
        put("patch", result.stdout_bytes)
        subprocess.run(["git", "apply", "--directory=built", "patch"], check=True)
        run("build", "src/pkg", "--out", "out")
        made, patched = (
            {path.relative_to(top): path.read_bytes() for path in Path(top).rglob("*.*") if path.name != MANIFEST}
            for top in ("out", "built/out")
        )
        assert patched == made and Path("pkg/new file.py") in made
        put("src/pkg/data.txt", "te\0xt")
        binary = run("check", "src/pkg", "--out", "out").stdout
        assert binary.splitlines()[1:] == ["Binary files a/out/pkg/data.txt and b/out/pkg/data.txt differ"]

    def test_files_edited_by_hand_are_not_overwritten(self) -> None:
        self.package()
        run("build", "src/pkg", "--out", "out")
        put("out/pkg/model.py", "edited\n")
        for command in ("check", "build"):
            result = run(command, "src/pkg", "--out", "out")
            assert result.exit_code == (1 if command == "check" else 2)
            assert "out/pkg/model.py: edited by hand; move the change to src/pkg/model.py" in result.stderr
        assert Path("out/pkg/model.py").read_text() == "edited\n"

    def test_files_of_others_are_not_overwritten(self) -> None:
        self.package()
        put("out/pkg/model.py", "precious\n")
        result = run("build", "src/pkg", "--out", "out")
        assert result.exit_code == 2
        assert "out/pkg/model.py: not written by mmrewrite" in result.stderr
        assert not Path("out/pkg/main.py").exists()

    def test_files_whose_source_is_gone_are_removed(self) -> None:
        self.package()
        run("build", "src/pkg", "--out", "out")
        os.unlink("src/pkg/main.py")
        assert run("check", "src/pkg", "--out", "out").exit_code == 1
        run("build", "src/pkg", "--out", "out")
        assert not Path("out/pkg/main.py").exists()
        assert run("check", "src/pkg", "--out", "out").exit_code == 0

    def test_plain_imports_of_the_package_stay_in_the_mirror(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put("whole/__init__.py", "import whole.sub.deep, json\n\nNAME = __name__\n")
        put("whole/one.py", "def here():\n    return __name__\n")
        put("whole/sub/__init__.py", "")
        put(
            "whole/sub/deep.py",
            "import whole\nimport whole.one, os, whole.one as first\nimport whole as w\n\n"
            "out = [whole.one.here(), first.here(), os.sep]\n\n\ndef name():\n    return w.NAME, whole.NAME\n",
        )
        assert run("build", "whole", "--out", "mirror").exit_code == 0
        monkeypatch.syspath_prepend(str(folder))
        try:
            for prefix in ("", "mirror."):
                module = importlib.import_module(f"{prefix}whole.sub.deep")
                assert module.out == [f"{prefix}whole.one", f"{prefix}whole.one", os.sep]
                assert module.name() == (f"{prefix}whole", f"{prefix}whole")
                assert importlib.import_module(f"{prefix}whole").json is json
        finally:
            for name in [name for name in sys.modules if name.startswith(("whole", "mirror"))]:
                del sys.modules[name]

    @pytest.mark.parametrize("mark", ["guard", "shebang"])
    def test_a_module_of_a_package_is_run_by_path_and_imported(self, folder: Path, mark: str) -> None:
        put("tool/__init__.py", "")
        put("tool/layers.py", "from tool import names\n\nNAME = __name__\nOTHER = names.NAME\n")
        put("tool/names.py", "NAME = __name__\n")
        put("tool/bin/__init__.py", "")
        guard = "\n\nif __name__ == '__main__':\n    print(*main())\n" if mark == "guard" else "\n\nprint(*main())\n"
        put(
            "tool/bin/train.py",
            ("" if mark == "guard" else "#!/usr/bin/env python\n")
            + "import os, tool.names\nfrom tool.layers import (\n    NAME,\n    OTHER,\n)  # ours\n\n\n"
            + "def main():\n    from tool import names as n\n    return NAME, OTHER, tool.names.NAME, n.NAME, os.sep\n"
            + guard,
        )
        assert run("build", "tool", "--out", "made").exit_code == 0
        assert "from tool.layers import" in Path("made/tool/bin/train.py").read_text()
        assert "from . import names" in Path("made/tool/layers.py").read_text()
        for command, prefix, path in (
            (["tool/bin/train.py"], "tool", "."),
            (["made/tool/bin/train.py"], "tool", "made"),
            (["-m", "tool.bin.train"], "tool", "made"),
            (["-c", "import made.tool.bin.train as t; print(*t.main())"], "made.tool", "."),
        ):
            done = subprocess.run(
                [sys.executable, *command],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            )
            names = [f"{prefix}.layers", *[f"{prefix}.names"] * 3, os.sep]
            assert done.stdout.splitlines()[-1] == " ".join(names), (command, done.stdout)

    def test_the_manifest_has_hashes_and_the_mirror_is_no_source(self) -> None:
        self.package()
        run("build", "src/pkg", "--out", "out")
        manifest = json.loads(Path("out", MANIFEST).read_text())
        assert set(manifest["files"]["pkg/model.py"]) == {"sha256", "source", "source_sha256"}
        assert "b/out/" not in run("diff", ".").stdout

    def test_where_to(self) -> None:
        self.package()
        result = run("build", "src/pkg")
        assert result.exit_code == 2
        assert "Where to? Give --out DIR" in result.stderr
        put("pyproject.toml", '[tool.mmrewrite]\nout = "made"\n')
        assert run("build", "src/pkg").exit_code == 0
        assert Path("made/pkg/model.py").exists()

    def test_scripts_in_a_folder_import_each_other_as_before(self) -> None:
        put("scripts/model.py", MODEL)
        put("scripts/train.py", "from model import forward\n")
        run("build", "scripts", "--out", "out")
        assert Path("out/train.py").read_text().endswith("\nfrom model import forward\n")

    def test_a_manifest_that_cannot_be_read(self) -> None:
        self.package()
        put(f"out/{MANIFEST}", "{")
        for command in ("build", "check"):
            result = run(command, "src/pkg", "--out", "out")
            assert result.exit_code == 2
            assert "cannot be read; delete out" in result.stderr


class TestCheck:
    def test_check_prints_the_patch_and_fails(self) -> None:
        put("a.py", HINTED)
        result = run("check")
        assert result.exit_code == 1
        assert result.stdout.startswith("diff --git a/a.py b/a.py\n")
        run("apply")
        assert run("check").exit_code == 0


class TestPages:
    def test_list(self) -> None:
        result = run("codemods")
        assert (
            "stage_loop           Deal the iterations of a loop over layers out to the pipeline stages.\n"
            in result.stdout
        )

    def test_explain(self) -> None:
        result = run("explain", "stage_loop")
        assert "Refused: a loop of unknown length, `while` loops" in result.stdout
        result = run("explain", "stage_lop")
        assert result.exit_code == 2
        assert "There is no codemod `stage_lop`; did you mean `stage_loop`?" in result.stderr
        assert "Error: a.py is a file; name a line of it, as in a.py:1." in run("explain", "a.py").stderr

    def test_usage(self) -> None:
        assert run("frobnicate").exit_code == 2
        assert run("--help").exit_code == 0
        assert run("--version").stdout.startswith("mmrewrite ")


class TestConfiguredAxes:
    def test_a_name_whose_device_axis_the_mesh_lacks_is_reported(self) -> None:
        put("pyproject.toml", "[tool.mmrewrite.axes]\nbatch = 'data'\nmlp = 'model'\nembed = false\n")
        step = "\n\n@jax.jit  # mm: mjit\ndef step(x):\n    return x\n"
        put("train.py", f"import jax\n\n# mm: mesh(model=2)\n{step}")
        result = run("diff")
        assert 'logical_axes=(("mlp", "model"), ("embed", None))' in result.stdout
        assert result.stderr.startswith(
            'train.py:3:7: this mesh has no such axis, so `batch = "data"` of the configuration was left out; give the '
            "mesh the axis, or write `axes(...)` for it, with `axes(batch=None)` for a name that is replicated "
            "[declare_mesh]\n"
        )
        put("train.py", f'import jax\n\n# mm: mesh(model=2); axes(batch=None, mlp="model")\n{step}')
        assert "left out" not in run("diff").stderr


class TestHalfAProgram:
    MODEL = "import jax.numpy as jnp\n\n\n# mm: task(stage=0)\ndef encode(x):\n    return jnp.tanh(x)\n"
    STEP = "# mm: mesh(stage=2)\n\n\n@jax.jit  # mm: mjit\ndef step(x):\n    return encode(x)\n"
    REASON = (
        "this leads to {}, which has hints and is not among the files to rewrite, so its part of the program would "
        "stay on one device; give that file too [compile_for_mesh]"
    )

    def test_a_model_that_is_not_given_is_reported_at_its_import(self) -> None:
        put("model.py", self.MODEL)
        put("train.py", f"import jax\nfrom model import encode\n\n{self.STEP}")
        assert f"train.py:2:1: {self.REASON.format('model.py')}" in run("diff", "train.py").stderr.splitlines()
        assert run("diff", "--strict", "train.py").exit_code == 1
        for paths in (("train.py", "model.py"), (".",)):
            assert "this leads to" not in run("diff", "--strict", *paths).stderr

    def test_a_step_that_is_not_given_is_reported_at_the_first_task(self) -> None:
        put("model.py", self.MODEL)
        put("train.py", f"import jax\nfrom model import encode\n\n{self.STEP}")
        reason = (
            "model.py:4:7: no file of this run has a mesh, so this is half of a program: tasks run where a step that "
            "is compiled for a mesh calls them; give the files with `# mm: mesh(...)` and `# mm: mjit` too "
            "[compile_for_mesh]"
        )
        assert reason in run("diff", "model.py").stderr.splitlines()
        assert run("diff", "--strict", "model.py").exit_code == 1
        for paths in (("model.py", "train.py"), (".",)):
            assert "half of a program" not in run("diff", *paths).stderr
        put(
            "made.py",
            f"import mmruntime as mm\n\nmesh = mm.MultiMesh(axis_sizes=(2,), axis_names=('stage',))\n\n{self.MODEL}",
        )
        assert "half of a program" not in run("diff", "made.py").stderr

    def test_also_through_files_without_hints_and_once_for_each_file(self) -> None:
        put("model.py", self.MODEL)
        put("layers.py", self.MODEL.replace("stage=0", "stgae"))
        put("zoo.py", "import layers\nfrom model import encode\n")
        put("plain.py", "def encode(x):\n    return x\n")
        put("train.py", f"import jax\nimport plain\nfrom zoo import encode\nimport model, zoo\n\n{self.STEP}")
        lines = [line for line in run("diff", "train.py").stderr.splitlines() if "this leads to" in line]
        assert lines == [f"train.py:3:1: {self.REASON.format(path)}" for path in ("layers.py", "model.py")]

    @pytest.mark.parametrize(
        ("text", "advice", "followed"),
        [
            pytest.param(
                "import jax\n\n\n@jax.jit\ndef step(x):\n    return f(x)  # mm: task(stage=0)\n\n\n"
                "# mm: mesh(stage=2)\ny = step(1)\n",
                "above line 4, for the step `step`, and move this hint above that: line 4 runs before the mesh "
                "would be made",
                "import jax\n\n# mm: mesh(stage=2)\n\n# mm: mjit\n@jax.jit\ndef step(x):\n"
                "    return f(x)  # mm: task(stage=0)\n\n\ny = step(1)\n",
                id="below a decorator",
            ),
            pytest.param(
                "import jax\n\n\ndef step(x):\n    return f(x)  # mm: task(stage=0)\n\n\n# mm: mesh(stage=2)\n\n"
                "step = jax.jit(step)\n",
                "above line 10, for the step `step`",
                "import jax\n\n\ndef step(x):\n    return f(x)  # mm: task(stage=0)\n\n\n# mm: mesh(stage=2)\n\n"
                "# mm: mjit\nstep = jax.jit(step)\n",
                id="a call",
            ),
            pytest.param(
                "import jax\n\n\ndef main(x):\n    def step(x):\n        return f(x)  # mm: task(stage=0)\n\n"
                "    return jax.jit(step)(x)\n\n\n# mm: mesh(stage=2)\ny = main(1)\n",
                "above line 8, for the step `step`",
                "import jax\n\n\ndef main(x):\n    def step(x):\n        return f(x)  # mm: task(stage=0)\n\n"
                "    # mm: mjit\n    return jax.jit(step)(x)\n\n\n# mm: mesh(stage=2)\ny = main(1)\n",
                id="in a function, which runs later",
            ),
        ],
    )
    def test_the_step_that_was_meant_is_named(self, text: str, advice: str, followed: str) -> None:
        put("train.py", text)
        (said,) = (line for line in run("diff").stderr.splitlines() if "no step is compiled" in line)
        assert said.endswith(f"nothing would run on it: write `# mm: mjit` {advice} [compile_for_mesh]")
        put("train.py", followed)
        assert run("diff", "--strict").exit_code == 0

    def test_of_two_steps_none_is_named(self) -> None:
        step = "@jax.jit\ndef {}(x):\n    return f(x)  # mm: task(stage=0)\n\n\n"
        put("train.py", f"import jax\n\n# mm: mesh(stage=2)\n{step.format('train')}{step.format('test')}")
        assert "write `# mm: mjit` where `jax.jit` compiles the step" in run("diff").stderr

    def test_a_file_whose_hints_are_off_is_whole(self) -> None:
        put("model.py", f"# mm: off\n{self.MODEL}")
        put("train.py", f"import jax\nfrom model import encode\n\n{self.STEP}")
        assert "this leads to" not in run("diff", "train.py").stderr

    def test_a_mesh_is_told_from_one_whose_step_is_compiled_elsewhere(self) -> None:
        put("devices.py", "# mm: mesh(stage=2)\nx = 1\n")
        put("train.py", f"import jax\nimport devices\nfrom devices import x as encode\n\n{self.STEP.partition('@')[2]}")
        assert "no step is compiled for this mesh" in run("diff", "devices.py").stderr
        step = "import jax\nimport devices\n\n\n@jax.jit  # mm: mjit\ndef step(x):\n    return x\n"
        for text in (step, f"# mm: off\n{step}", step.replace("mjit", "mjti")):
            put("train.py", text)
            assert "no step is compiled for this mesh" not in run("diff").stderr, text
        put("train.py", step.replace("  # mm: mjit", ""))
        assert "devices.py:1:7: no step is compiled for this mesh" in run("diff").stderr
        put("devices.py", "import mmruntime as mm\n# mm: mesh(stage=2)\nstep = mm.mjit(lambda x: x)\n")
        assert "no step is compiled for this mesh" not in run("diff", "devices.py").stderr
