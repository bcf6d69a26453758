"""Nothing is lost and nothing believed: hostile manifests, patterns and files, killed runs, and other writers."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command import HINTED, OLD, put, run

from mmrewrite.cli.commands import cli
from mmrewrite.engine import workers
from mmrewrite.files import cache_folder, exchange, write
from mmrewrite.files.walk import MANIFEST
from mmrewrite.files.write import remove_left_behind, temporary_name

pytestmark = pytest.mark.usefixtures("folder")

ROOT_USER = os.name == "posix" and os.geteuid() == 0
on_posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(folder: str = ".") -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if not path.is_dir())


class TestManifest:
    def build(self, *entries: tuple[str, Path]) -> Result:
        put("pkg/__init__.py", "")
        content = {"format": 2, "files": {place: {"sha256": sha256(path)} for place, path in entries}}
        put(f"gen/{MANIFEST}", json.dumps(content))
        return run("build", "pkg", "--out", "gen")

    @pytest.mark.parametrize(
        "place", ["../precious.txt", "{0}/precious.txt", "a/../../precious.txt", "./x", "", "a//b"]
    )
    def test_places_are_confined(self, folder: Path, place: str) -> None:
        precious = put("precious.txt", "precious")
        result = self.build((place.format(folder), precious))
        assert precious.read_text() == "precious"
        assert "is no place inside of gen, and is not believed" in result.stderr
        assert Path("gen/pkg/__init__.py").exists()

    @on_posix
    def test_links_below_the_mirror_are_not_followed(self, folder: Path) -> None:
        precious = put("precious/file.txt", "precious")
        Path("gen").mkdir()
        Path("gen/link").symlink_to(precious.parent)
        self.build(("link/file.txt", precious))
        assert precious.read_text() == "precious"
        Path("gen/pkg/__init__.py").unlink()
        Path("gen/pkg").rmdir()
        Path("gen/pkg").symlink_to(precious.parent)
        result = run("build", "pkg", "--out", "gen")
        assert (result.exit_code, files("precious")) == (2, ["file.txt"])
        assert result.stderr.count("gen/pkg: a link, which `build` does not follow") == 1
        assert run("check", "pkg", "--out", "gen").stderr.count("gen/pkg: a link, which `build` does not follow") == 1

    @pytest.mark.parametrize(
        "text", ["[]", "1", '{"format": 2}', '{"format": 9, "files": {}}', '{"format": 2, "files": 3}', "[" * 10**5]
    )
    def test_one_that_cannot_be_read_is_one_sentence(self, text: str) -> None:
        put("pkg/__init__.py", "")
        put(f"gen/{MANIFEST}", text)
        result = run("build", "pkg", "--out", "gen")
        assert result.exit_code == 2
        assert result.stderr.startswith("Error: gen/") or "\nError: gen/" in result.stderr

    def test_what_is_not_proved_to_be_ours_stays(self) -> None:
        mine = put("gen/mine.txt", "mine")
        self.build(("mine.txt", mine))
        assert not mine.exists()
        put("gen/mine.txt", "mine")
        run("build", "pkg", "--out", "gen")
        assert mine.read_text() == "mine"


class TestBuild:
    def test_never_into_its_source(self) -> None:
        put("pkg/__init__.py", "")
        put("pkg/a.py", HINTED)
        before = files()
        for out in ("pkg", "pkg/gen", "./pkg/../pkg", "pkg/deep/er"):
            for command in ("build", "check"):
                result = run(command, "pkg", "--out", out)
                assert result.exit_code == 2
                assert "the source pkg; give a folder outside of it" in result.stderr
        assert files() == before
        assert run("check").exit_code == 1

    def test_never_over_a_source(self) -> None:
        put("src/pkg/__init__.py", "")
        put("src/pkg/a.py", HINTED)
        result = run("build", "src/pkg", "--out", "src")
        assert result.exit_code == 2
        assert "--out src holds the source src/pkg; give a folder of its own" in result.stderr
        assert files() == ["src/pkg/__init__.py", "src/pkg/a.py"]

    @pytest.mark.parametrize("writes", [0, 1, 2, 3, 4])
    @pytest.mark.parametrize("again", [HINTED, HINTED + "\nx = 1\n"], ids=["the-same", "changed"])
    def test_goes_on_where_a_killed_run_stopped(self, writes: int, again: str, monkeypatch: pytest.MonkeyPatch) -> None:
        put("pkg/__init__.py", "")
        for name in "abc":
            put(f"pkg/{name}.py", HINTED)
        run("build", "pkg", "--out", "gen")
        for name in "abd":
            put(f"pkg/{name}.py", HINTED.replace("(1)", "(2)"))
        Path("pkg/c.py").unlink()
        done = 0

        class Killed(BaseException):
            pass

        def replace(first: str, second: str, real: object = os.replace) -> None:
            nonlocal done
            if done == writes:
                raise Killed
            done += 1
            assert callable(real)
            real(first, second)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            with pytest.raises(Killed):
                run("build", "pkg", "--out", "gen")
        put("pkg/a.py", again)
        assert run("build", "pkg", "--out", "gen").exit_code == 0
        assert run("check", "pkg", "--out", "gen").exit_code == 0
        assert files("gen") == [MANIFEST, "pkg/__init__.py", "pkg/a.py", "pkg/b.py", "pkg/d.py"]

    def test_one_file_that_cannot_be_written_costs_one_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        put("pkg/__init__.py", "")
        put("pkg/a.py", HINTED)

        def replace(first: str, second: str, real: object = os.replace) -> None:
            if second.endswith("a.py"):
                raise OSError(28, "No space left on device")
            assert callable(real)
            real(first, second)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            result = run("build", "pkg", "--out", "gen")
        assert result.exit_code == 2
        assert "gen/pkg/a.py: not written: No space left on device" in result.stderr
        assert "0 files of 2 in gen changed, 1 error" in result.stderr
        assert files("gen") == [MANIFEST, "pkg/__init__.py"]
        assert run("build", "pkg", "--out", "gen").exit_code == 0
        assert run("check", "pkg", "--out", "gen").exit_code == 0

    @on_posix
    @pytest.mark.parametrize("folder_name", ["a\nraise SystemExit(7)\n#", "a\rb", "a\x0cb\u2028c", "\udcff"])
    def test_a_name_of_a_folder_is_no_code(self, folder: Path, folder_name: str) -> None:
        put(f"{folder_name}/pkg/__init__.py", "")
        put(f"{folder_name}/pkg/a.py", "# coding: latin-1\n" + HINTED)
        put("elsewhere/x", "")
        os.chdir("elsewhere")
        result = run("build", f"../{folder_name}", "--out", "../gen")
        assert result.exit_code == 0, result.stderr
        _, first, second, *_ = Path("../gen/pkg/a.py").read_text(encoding="latin-1").split("\n")
        assert first.startswith("# Written by mmrewrite from ") and first.endswith("pkg/a.py")
        assert second.startswith("import mmruntime")
        assert run("check", f"../{folder_name}", "--out", "../gen").exit_code == 0

    @pytest.mark.parametrize("name", ["pkg/a.py", "pkg/data.txt"])
    def test_a_source_that_cannot_be_read_is_said_once(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        put("pkg/a.py", HINTED)
        put("pkg/b.py", HINTED)
        put("pkg/data.txt", "x")

        opened = os.open

        def refuse(path: str, *rest: Any, **words: Any) -> Any:
            if str(path).endswith(name):
                raise PermissionError(13, "Permission denied", path)
            return opened(path, *rest, **words)

        monkeypatch.setattr(os, "open", refuse)
        result = run("build", "pkg", "--out", "out", "--no-cache")
        assert result.exit_code == 2 and result.stderr.count("Permission denied") == 1
        assert f"{name}: Permission denied\n" in result.stderr and ", 1 error" in result.stderr
        assert "mm.task(" in Path("out/b.py").read_text()
        result = run("check", "pkg", "--out", "out", "--no-cache")
        assert result.exit_code == 2 and result.stderr.count("Permission denied") == 1

    def test_a_place_that_cannot_be_a_folder(self) -> None:
        put("pkg/__init__.py", "")
        put("gen", "a file")
        result = CliRunner().invoke(cli, ["build", "pkg", "--out", "gen"])
        assert result.exit_code == 2
        put("made/pkg", "a file in the way of a folder")
        result = run("build", "pkg", "--out", "made")
        assert result.exit_code == 2
        assert "made/pkg" in result.stderr

    def test_folders_that_become_empty_go(self) -> None:
        put("pkg/__init__.py", "")
        put("pkg/sub/__init__.py", "")
        run("build", "pkg", "--out", "gen")
        Path("pkg/sub/__init__.py").unlink()
        run("build", "pkg", "--out", "gen")
        assert not Path("gen/pkg/sub").exists()


class TestHiding:
    @pytest.mark.parametrize("marker", [MANIFEST, "pyvenv.cfg"])
    def test_a_marker_hides_from_walking_only_and_is_said(self, marker: str) -> None:
        put("a.py", HINTED)
        put("pkg/a.py", HINTED)
        put(f"pkg/{marker}", "")
        result = run("check", ".")
        assert "b/pkg/a.py" not in result.stdout
        assert f"1 folder passed over: pkg ({marker}); name one to read it" in result.stderr
        assert "b/pkg/a.py" in run("diff", "pkg").stdout
        put(marker, "")
        assert run("check", ".").exit_code == 1

    @pytest.mark.skipif(ROOT_USER, reason="root reads everything")
    @on_posix
    def test_a_folder_that_cannot_be_read_is_an_error(self) -> None:
        put("pkg/a.py", HINTED)
        Path("pkg").chmod(0)
        try:
            result = run("diff")
        finally:
            Path("pkg").chmod(0o755)
        assert (result.exit_code, "pkg: Permission denied" in result.stderr) == (2, True)

    @on_posix
    def test_folders_may_be_deeper_than_calls(self, folder: Path) -> None:
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
        put("a.py", HINTED)
        os.chdir(folder)
        for command in (["diff"], ["modernize", "--diff"], ["plan"], ["init"], ["apply"]):
            done = subprocess.run(
                [sys.executable, "-m", "mmrewrite", *command], capture_output=True, text=True, check=False
            )
            assert (done.returncode, "Traceback" in done.stderr) == (0, False)
        os.chdir("d/" * 1200)
        assert "mm.task(" in Path("a.py").read_text()
        os.unlink("a.py")
        # Python and pytest cannot remove so many folders either.
        for _ in range(1200):
            os.chdir("..")
            os.rmdir("d")

    def test_reported_by_the_walk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        put("pkg/a.py", HINTED)

        def scandir(path: str, real: object = os.scandir) -> object:
            if path.endswith("pkg"):
                raise PermissionError(13, "Permission denied")
            assert callable(real)
            return real(path)

        monkeypatch.setattr(os, "scandir", scandir)
        result = run("diff")
        assert (result.exit_code, "pkg: Permission denied" in result.stderr) == (2, True)

    @on_posix
    def test_a_pipe_named_outright_is_no_file(self) -> None:
        os.mkfifo("pipe.py")
        result = run("diff", "pipe.py")
        assert (result.exit_code, "pipe.py: neither a file nor a folder" in result.stderr) == (2, True)


def lay_pipe(name: str) -> None:
    os.mkfifo(name)


def lay_socket(name: str) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(name)


def lay_device(name: str) -> None:
    Path(name).symlink_to("/dev/zero")


@on_posix
@pytest.mark.parametrize("lay", [lay_pipe, lay_socket, lay_device])
class TestNoFiles:
    """What is no file is never opened: whoever opens it may wait for ever, or read for ever."""

    @pytest.mark.parametrize(
        ("name", "arguments", "said"),
        [
            ("x.py", ["diff", "a.py"], ""),
            ("x.py", ["diff", "a.py", "x.py"], "x.py: neither a file nor a folder"),
            ("x.ipynb", ["modernize", "--diff", "a.py", "x.ipynb"], "x.ipynb: neither a file nor a folder"),
            ("x.py", ["diff"], ""),
            ("x.py", ["modernize", "--diff", "a.py"], ""),
            ("x.py", ["build", "a.py", "--out", "gen"], ""),
            (".gitignore", ["diff"], ""),
            ("pyproject.toml", ["diff"], ""),
            ("pyproject.toml", ["init"], "pyproject.toml: "),
            ("mmrewrite.toml", ["diff"], ""),
            ("c.toml", ["diff", "--config", "c.toml"], "c.toml: neither a file nor a folder"),
            ("e.json", ["diff", "--format", "html", "--evidence", "e.json"], "e.json: not the output of"),
            (f"gen/{MANIFEST}", ["build", "a.py", "--out", "gen"], f"{MANIFEST}"),
            ("x.py", ["explain", "x.py:1"], "x.py: neither a file nor a folder"),
            ("x.py", ["plan"], ""),
        ],
    )
    def test_it_is_never_opened(self, lay: Any, name: str, arguments: list[str], said: str) -> None:
        put("a.py", f"from x import y\nimport x\n\n\n{HINTED}z = x.y(1)\n")
        Path(name).parent.mkdir(exist_ok=True)
        lay(name)
        command = [sys.executable, "-m", "mmrewrite", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert "Traceback" not in done.stderr
        assert said in done.stderr
        assert done.returncode == (2 if said else 0), done.stderr


class TestPatterns:
    @pytest.mark.parametrize("line", ["!", "\\", "[z-a]"])
    def test_a_bad_line_of_gitignore_ignores_nothing_and_is_said(self, line: str) -> None:
        put(".gitignore", f"{line}\nignored.py\n")
        put("a.py", HINTED)
        put("ignored.py", HINTED)
        result = run("diff")
        assert result.exit_code == 0
        assert f".gitignore:1: `{line}` is no pattern, and ignores nothing" in result.stderr
        assert "b/a.py" in result.stdout
        assert "b/ignored.py" not in result.stdout

    @pytest.mark.parametrize("line", ["!", "\\\\", "[z-a]"])
    def test_a_bad_pattern_of_the_configuration_stops_the_run(self, line: str) -> None:
        put("pyproject.toml", f'[tool.mmrewrite]\nexclude = ["a", "{line}"]\n')
        file = put("a.py", HINTED)
        result = run("apply")
        assert result.exit_code == 2
        assert "is no pattern; write one as in `.gitignore`" in result.stderr
        assert file.read_text() == HINTED

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("tool = 1", "`tool` must be a table, not 1"),
            ("[tool]\nmmrewrite = 1", "[tool.mmrewrite] must be a table, not 1"),
            ("[tool]\nruff = 1\n[tool.mmrewrite]\nselect = 1", "`select` must be a list of strings, not 1"),
            ("[tool.mmrewite]\n", "[tool.mmrewite] is not read; did you mean [tool.mmrewrite]?"),
            ("[tool.mmrewrite]\nper-file-ignores = 1", "`per-file-ignores` must be a table of patterns"),
            (
                '[tool.mmrewrite.per-file-ignores]\n"a" = "b"',
                "per-file-ignores.\"a\" must be a list of strings, not 'b'",
            ),
            ("\ufffe = ", "pyproject.toml: "),
        ],
    )
    def test_a_wrong_configuration_is_one_sentence(self, text: str, message: str) -> None:
        put("pyproject.toml", text)
        result = run("diff")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert message in result.stderr

    def test_formatters_may_have_any_shape(self) -> None:
        put("pyproject.toml", "[tool]\nruff = 1\nblack = {line-length = true}\n")
        assert run("diff").exit_code == 0


class TestFiles:
    def test_the_summary_counts_what_was_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        put("a.py", HINTED)
        put("b.py", HINTED).chmod(0o444)
        result = run("apply")
        assert result.exit_code == 2
        assert "b.py: not written: it is read-only; make it writable first" in result.stderr
        assert result.stderr.rstrip().endswith("1 file changed, 1 error")
        assert Path("b.py").read_text() == HINTED

    @on_posix
    def test_the_new_file_is_on_the_disk_before_it_takes_the_old_ones_place(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put("pkg/a.py", HINTED)
        done = []
        flush, swap = os.fsync, exchange.exchange

        def fsync(descriptor: int) -> None:
            done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
            flush(descriptor)

        def exchanged(first: str, second: str) -> bool:
            done.append("exchange" if os.path.dirname(first) == os.path.dirname(second) else "elsewhere")
            return swap(first, second)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(exchange, "exchange", exchanged)
        assert run("apply").exit_code == 0
        assert done == ["file", "exchange", "folder"]

    @on_posix
    def test_hard_links_are_not_split(self) -> None:
        file = put("a.py", HINTED)
        os.link("a.py", "other.txt")
        result = run("apply")
        assert result.exit_code == 2
        assert "a.py: not written: it has 2 hard links, which would be split" in result.stderr
        assert os.path.samefile(file, "other.txt")

    @pytest.mark.skipif(not hasattr(os, "setxattr"), reason="needs extended attributes")
    def test_attributes_and_mode_are_kept(self) -> None:
        file = put("a.py", HINTED)
        try:
            os.setxattr(file, "user.kept", b"value")
        except OSError:
            pytest.skip("this file system has none")
        file.chmod(0o711)
        assert run("apply").exit_code == 0
        assert os.getxattr(file, "user.kept") == b"value"
        assert stat.S_IMODE(file.stat().st_mode) == 0o711
        assert "mm.task" in file.read_text()

    @pytest.mark.skipif(not hasattr(os, "setxattr"), reason="needs extended attributes")
    def test_attributes_that_cannot_be_kept_are_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        file = put("a.py", HINTED)
        monkeypatch.setattr(os, "listxattr", lambda path: ["user.odd"] if str(path).endswith("a.py") else [])
        monkeypatch.setattr(os, "getxattr", lambda path, name: b"value")

        def setxattr(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "setxattr", setxattr)
        result = run("apply")
        assert "it has the extended attribute user.odd, which the new file cannot be given" in result.stderr
        assert (file.read_text(), files()) == (HINTED, ["a.py"])

    @pytest.mark.skipif(not ROOT_USER, reason="only root can give files away")
    def test_the_owner_is_kept(self) -> None:
        file = put("a.py", HINTED)
        os.chown(file, 12345, 23456)
        assert run("apply").exit_code == 0
        assert (file.stat().st_uid, file.stat().st_gid) == (12345, 23456)

    @on_posix
    def test_an_owner_that_cannot_be_kept_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        file = put("a.py", HINTED)

        def chown(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        real = os.stat

        def of_another(path: str, **options: bool) -> os.stat_result:
            status = real(path, **options)
            if str(path).endswith("/a.py"):
                status = os.stat_result((*status[:4], 12345, *status[5:]))
            return status

        with monkeypatch.context() as patch:
            patch.setattr(os, "chown", chown)
            patch.setattr(os, "stat", of_another)
            result = run("apply")
        assert "a.py: not written: it belongs to user 12345 and group " in result.stderr
        assert file.read_text() == HINTED

    def test_a_file_called_like_a_module_of_python_is_not_imported(self) -> None:
        put("ast.py", "raise SystemExit('imported')\n" + OLD)
        for command in (["modernize", "--diff"], ["diff"], ["--help"]):
            done = subprocess.run(
                [sys.executable, "-m", "mmrewrite", *command], capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stderr.count("imported")) == (0, 0), done.stderr


class TestOtherWriters:
    """Another program writes the file while it is being replaced."""

    needs_exchange = pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="no exchange here")

    @needs_exchange
    @pytest.mark.parametrize("by_rename", [True, False])
    def test_an_update_right_before_the_exchange_is_kept(
        self, by_rename: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = put("a.py", HINTED)
        real = exchange.exchange
        calls = []

        def slow(first: str, second: str) -> bool:
            if not calls:
                if by_rename:
                    os.replace(put("theirs.txt", "theirs"), second)
                else:
                    Path(second).write_text("theirs")
            calls.append(first)
            return real(first, second)

        monkeypatch.setattr(exchange, "exchange", slow)
        result = run("apply")
        if len(calls) == 1:
            pytest.skip("this file system has no exchange")
        assert "a.py: not written: it changed while mmrewrite was reading; run again" in result.stderr
        assert (file.read_text(), files()) == ("theirs", ["a.py"])

    @needs_exchange
    def test_a_second_update_meanwhile_is_kept_and_the_first_set_aside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        file = put("a.py", HINTED)
        real = exchange.exchange
        calls = []

        def slow(first: str, second: str) -> bool:
            if len(calls) < 2:
                os.replace(put("theirs.txt", f"theirs {len(calls)}"), second)
            calls.append(first)
            return real(first, second)

        monkeypatch.setattr(exchange, "exchange", slow)
        run("apply")
        if len(calls) == 1:
            pytest.skip("this file system has no exchange")
        assert file.read_text() == "theirs 1"
        assert sorted(Path(name).read_text() for name in files()) == ["theirs 0", "theirs 1"]

    def test_without_an_exchange(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exchange, "_call", lambda: None)
        file = put("a.py", HINTED)
        assert run("apply").exit_code == 0
        assert ("mm.task" in file.read_text(), files()) == (True, ["a.py"])

        def late(first: str, second: str) -> bool:
            Path(second).write_text("theirs")
            return False

        put("a.py", HINTED)
        monkeypatch.setattr(exchange, "exchange", late)
        assert "it changed while" in run("apply").stderr
        assert (file.read_text(), files()) == ("theirs", ["a.py"])


def dead_process() -> int:
    return (
        subprocess.Popen([sys.executable, "-c", ""]).wait()
        or subprocess.run(
            [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )  # type: ignore[return-value]


@on_posix
def test_what_killed_runs_leave_is_removed_by_the_next() -> None:
    pid = dead_process()
    name = temporary_name(b"old", b"new").replace(f"-{os.getpid()}-", f"-{pid}-")
    cases = {
        f"{name}.tmp": ("half of the n", False),
        f"{name[:-8]}00000001.new": ("old", False),
        f"{name[:-8]}00000002.new": ("new", False),
        f"{name[:-8]}00000003.new": ("what another program wrote", True),
        f"{temporary_name(b'old', b'new')}.tmp": ("of a run that goes on", True),
        ".mmrewrite-notes.tmp": ("of the user", True),
    }
    for path, (text, _) in cases.items():
        put(f"pkg/{path}", text)
    put("pkg/a.py", "x = 1\n")
    assert run("diff").exit_code == 0
    assert len(files()) == 7
    result = run("apply")
    assert {path for path, (_, stays) in cases.items() if stays} | {"a.py"} == set(files("pkg"))
    assert result.stderr.count("a run that was killed has set aside what another program wrote") == 1
    assert list(remove_left_behind("nowhere")) == []


# Where the four packages remove or replace files. Each place is one that the tests of `TestOnlyItsOwn` clean, or names
# nothing but what it has just made.
REMOVALS = {
    "mmrewrite/files/cache_folder.py": "unlink",
    "mmrewrite/files/write.py": "unlink replace rename",
    "mmrewrite/launch/guard.py": "rmtree",
    "mmrewrite/launch/watchman.py": "TemporaryDirectory",
    "mmrewrite/mirror/build.py": "unlink rmdir",
    "runtime/mmruntime/_core/whole_file.py": "unlink replace",
}
REMOVING = ("unlink", "rmdir", "rmtree", "removedirs", "renames", "TemporaryDirectory", "NamedTemporaryFile")
REPLACING = ("os.remove", "os.replace", "os.rename", "shutil.move")


class TestOnlyItsOwn:
    """Whatever folder is cleaned: what others wrote stays, under whatever name."""

    FOREIGN = (
        "notes.txt",
        "results.csv",
        f"{'0' * 64}.json",
        f"{'1' * 64}.out",
        f"mmrewrite-{'2' * 64}",
        f"mmrewrite-{'3' * 64}.json",
        ".mmrewrite-notes.tmp",
        ".mmrewrite-1-2-3-4.new",
        "tmpabcdefgh.tmp",
        "jit_step-0123-cache",
        "model.program",
        "below/model.py",
    )

    def lay(self, folder: str) -> dict[str, bytes]:
        """Foreign files, older than all of ours."""
        for name in self.FOREIGN:
            os.utime(put(f"{folder}/{name}", f"precious {name}\n"), (0, 0))
        (Path(folder) / f"mmrewrite-{'4' * 64}").mkdir()
        (Path(folder) / f"mmrewrite-{'5' * 64}").symlink_to(Path(folder).resolve() / "notes.txt")
        # Of a process that is none, about a content that is there, and a link.
        linked = f".mmrewrite-99999999-{sha256(Path(folder) / 'notes.txt')[:12]}-{'0' * 12}-{'0' * 8}.new"
        (Path(folder) / linked).symlink_to("notes.txt")
        names = (*self.FOREIGN, f"mmrewrite-{'5' * 64}", linked)
        return {name: (Path(folder) / name).read_bytes() for name in names}

    def holds(self, folder: str, foreign: dict[str, bytes]) -> bool:
        return {name: (Path(folder) / name).read_bytes() for name in files(folder) if name in foreign} == foreign

    @on_posix
    def test_in_the_folder_of_the_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(cache_folder.VARIABLE, str(Path("mine").resolve()))
        monkeypatch.setattr(cache_folder, "_MOST_FILES", 1)
        monkeypatch.setattr(cache_folder, "_MOST_BYTES", 1)
        foreign = {kind: self.lay(f"mine/{kind}") for kind in ("results", "outputs", "traces", ".")}
        for number in range(3):
            put("src/a.py", HINTED + f"y = {number}\n")
            assert run("diff", "src").exit_code == 0
            cache_folder.keep_in("mine/traces", cache_folder.kept_name(b"%d" % number), b"{}")
            cache_folder.keep_in("mine/outputs", cache_folder.kept_name(b"%d" % number), b"")
        for kind, known in foreign.items():
            assert self.holds(f"mine/{kind}", known), kind
            assert kind == "." or len(files(f"mine/{kind}")) <= len(known) + 1

    def test_in_a_mirror_and_beside_sources(self) -> None:
        for name in ("a", "b", "below/c"):
            put(f"pkg/{name}.py", HINTED)
        assert run("build", "pkg", "--out", "gen").exit_code == 0
        foreign = {folder: self.lay(folder) for folder in ("gen", "gen/pkg", "gen/pkg/below")}
        for name in ("a", "below/c"):
            Path(f"pkg/{name}.py").unlink()
        assert run("build", "pkg", "--out", "gen").exit_code == 0
        assert not Path("gen/pkg/a.py").exists()
        foreign["pkg"] = self.lay("pkg")
        assert run("apply", "pkg").exit_code == 0
        assert HINTED not in Path("pkg/b.py").read_text()
        for folder, known in foreign.items():
            assert self.holds(folder, known), folder

    def test_each_removal_is_known(self) -> None:
        found: dict[str, set[str]] = {}
        top = Path(__file__).parents[1]
        for package in ("mmrewrite", "codemods/mmcodemods", "codemods/mmmodernize", "runtime/mmruntime"):
            for path in sorted((top / package).rglob("*.py")):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.Attribute) and (
                        node.attr in REMOVING or f"{ast.unparse(node.value)}.{node.attr}" in REPLACING
                    ):
                        found.setdefault(path.relative_to(top).as_posix(), set()).add(node.attr)
        assert found == {path: set(names.split()) for path, names in REMOVALS.items()}


class TestWorkers:
    @on_posix
    def test_a_killed_worker_is_noticed(self) -> None:
        # In a process of its own: other tests may have started threads here, with which one does not fork.
        program = (
            "import os, signal\n"
            "from mmrewrite.engine import workers\n"
            "def work(item):\n"
            "    if item == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
            "    return item\n"
            "workers.ENOUGH = 0\n"
            "try: workers.in_workers(work, range(8), work=1, jobs=2)\n"
            "except workers.WorkerDied as died: print(died)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.startswith("a worker process was killed, perhaps for want of memory")

    @on_posix
    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
    def test_workers_end_with_a_run_that_is_killed(self, how: signal.Signals) -> None:
        program = (
            "import os, sys, time\n"
            "from mmrewrite.engine import workers\n"
            "def work(item):\n"
            "    os.write(1, b'%d\\n' % os.getpid())\n"
            "    time.sleep(1000 * (item < 3))\n"
            "workers.ENOUGH = 0\n"
            "workers.in_workers(work, range(8), work=1, jobs=3)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            pids = [int(parent.stdout.readline()) for _ in range(3)]
            parent.send_signal(how)
            try:
                # At an end once no process is left that could write.
                assert select.select([parent.stdout], [], [], 20)[0]
                assert parent.stdout.read() == b""
            finally:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    @on_posix
    def test_the_command_says_so_and_writes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in "ab":
            put(f"{name}.py", HINTED)

        def died(*_: object) -> None:
            raise workers.WorkerDied

        monkeypatch.setattr(workers, "in_workers", died)
        result = run("apply", "--jobs", "2")
        assert result.exit_code == 2
        assert result.stderr.startswith("Error: a worker process was killed, perhaps for want of memory")
        assert Path("a.py").read_text() == HINTED


def test_replace_file_says_what_is_wrong(folder: Path) -> None:
    put("a.py", HINTED)
    with pytest.raises(write.NotWritten, match="it changed while"):
        write.replace_file("a.py", b"x", b"y", ["."])
    with pytest.raises(write.NotWritten, match="No such file"):
        write.replace_file("gone.py", b"x", b"y", ["."])
