"""The cache: a second run reads its results, and none is ever stale."""

from __future__ import annotations

import gc
import importlib
import io
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mmrewrite.__main__ import main
from mmrewrite.cli import cache, replay, session
from mmrewrite.cli.commands import cli
from mmrewrite.cli.replay import code_states
from mmrewrite.codemod.products import HINTS, OLD_NAMES
from mmrewrite.files import cache_folder

MODEL = "import jax.numpy as jnp\n\n\n# mm: task(stage=0)\ndef encode(x):\n    return jnp.tanh(x)\n"
TRAIN = (
    "import jax\nfrom model import encode\nfrom devices import mesh\n\n\n@jax.jit  # mm: mjit\ndef step(x):\n"
    "    return encode(x)\n"
)
DEVICES = "# mm: mesh(stage=2)\nx = 1\n"
TEXTS = {
    "model.py": (
        MODEL,
        MODEL.replace("stage=0", "stage=1"),
        MODEL.replace("task", "tsak"),
        "def encode(x): ...\n",
        None,
    ),
    "train.py": (TRAIN, TRAIN.replace("# mm: mjit", ""), TRAIN.replace("model", "other"), None),
    "devices.py": (DEVICES, DEVICES.replace("2", "4"), "import other\nmesh = other.mesh\n", None),
    "other.py": (MODEL, DEVICES, "from mmrewrite import hints as mm\n", None),
    "uses.py": ("from other import mm\n\n\n@mm.task(stage=0)\ndef f(x):\n    return x\n", "x = 1\n", None),
    "pyproject.toml": (
        "",
        "[tool.mmrewrite]\nexclude = ['model.py']\n",
        "[tool.mmrewrite]\nignore = ['declare_mesh']\n",
        "[tool.mmrewrite.axes]\nbatch = 'stage'\n",
        "[tool.mmrewrite.per-file-ignores]\n'model.py' = ['all']\n",
        "[tool.ruff]\nline-length = 60\n",
        None,
    ),
    ".gitignore": ("other.py\n", "", None),
}


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, beside the folder with the sources."""
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "sources").mkdir()
    monkeypatch.chdir(tmp_path / "sources")
    return tmp_path / "cache" / "results"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False)


def put(name: str, text: str | None) -> None:
    if text is None:
        Path(name).unlink(missing_ok=True)
    else:
        Path(name).write_text(text)


def test_a_second_run_does_not_compute(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    put("devices.py", DEVICES)
    put("old.py", "import jax\nx = jax.tree_map(len, [])\n")
    commands = (["diff"], ["diff", "-v"], ["modernize", "--diff"], ["diff", "--format", "json"])
    first = [run(*command) for command in commands]
    assert len(list(kept.iterdir())) == 2

    def computed(*_: object, **__: object) -> None:
        raise AssertionError("computed")

    monkeypatch.setattr(session, "rewrite_project", computed)
    monkeypatch.setattr("mmmodernize.command.modernize_project", computed)
    for command, result in zip(commands, first, strict=True):
        again = run(*command)
        assert (again.exit_code, again.stdout, again.stderr) == (result.exit_code, result.stdout, result.stderr)
    for option in (["--no-cache"], ["--ignore", "place_task"]):
        with pytest.raises(AssertionError, match="computed"):
            run("diff", *option)


def test_an_edit_of_a_codemod_is_another_tool() -> None:
    states = "\n".join(code_states())
    for package in ("mmrewrite", HINTS, OLD_NAMES):
        for path in Path(importlib.import_module(package).__path__[0]).rglob("*.py"):
            assert f"{path} " in states


@pytest.mark.parametrize("seed", range(3))
def test_no_result_is_stale(seed: int, kept: Path) -> None:
    """Files and configuration change at random; what is read from the cache is what a run without it computes."""
    chance = random.Random(seed)
    for name, texts in TEXTS.items():
        put(name, texts[0])
    states = []
    for _ in range(25):
        # Back and forth, so that there is much to find.
        for name in chance.sample(sorted(TEXTS), chance.choice((1, 1, 2))):
            put(name, chance.choice(TEXTS[name][:2] if chance.random() < 0.5 else TEXTS[name]))
        arguments = chance.choice((["diff"], ["diff", "train.py"], ["modernize", "--diff"], ["check", "-v"]))
        cached, computed = run(*arguments), run(*arguments, "--no-cache")
        assert (cached.exit_code, cached.stdout, cached.stderr) == (
            computed.exit_code,
            computed.stdout,
            computed.stderr,
        )
        states.append(len(list(kept.iterdir())))
    assert states[-1] < 25


def test_the_code_of_the_tool_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    put("devices.py", DEVICES)
    run("diff")
    monkeypatch.setattr(cache, "_code", lambda: iter(["edited"]))
    run("diff")
    assert len(list(kept.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"x", b"0" * 64 + b"\n{}"])
def test_what_is_damaged_is_computed_again(damage: bytes, kept: Path) -> None:
    put("devices.py", DEVICES)
    first = run("diff").stdout
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage)
    assert run("diff").stdout == first
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put("devices.py", DEVICES)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "file"))
    assert run("diff").exit_code == 0
    assert "mesh = " in run("diff").stdout


def test_it_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    monkeypatch.setattr(cache_folder, "_MOST_FILES", 3)
    for number in range(6):
        put("devices.py", DEVICES + f"y = {number}\n")
        run("diff")
    assert len(list(kept.iterdir())) == 3


def test_buffers_and_repositories_without_hints_leave_nothing(kept: Path) -> None:
    put("plain.py", "x = 1\n")
    run("diff")
    CliRunner().invoke(cli, ["apply", "-", "--stdin-filename", "a.py"], input=DEVICES)
    assert not kept.exists()


def test_the_second_run_leaves_libcst_alone() -> None:
    put("devices.py", DEVICES)
    run("apply", "--help")
    program = (
        "import sys; from mmrewrite.cli.commands import cli; cli(['diff'], standalone_mode=False) if 0 else None\n"
        "from click.testing import CliRunner; r = CliRunner().invoke(cli, ['diff']); assert 'mesh = ' in r.output\n"
        "print('libcst' in sys.modules)"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
        ).stdout
        for _ in range(2)
    ]
    assert found == ["True\n", "False\n"]


def test_the_folder_is_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    monkeypatch.delenv(cache_folder.VARIABLE)
    assert cache_folder.cache_folder("results") == os.path.join(
        platformdirs.user_cache_dir("mmrewrite", appauthor=False), "results"
    )
    monkeypatch.setenv(cache_folder.VARIABLE, "")
    assert cache_folder.cache_folder("results") is None


def printed(*arguments: str) -> tuple[int, bytes, bytes]:
    """The exit status and the output of the whole program, run in this process."""
    # As Python opens them.
    modes = ("strict", "backslashreplace")
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors, write_through=True) for errors in modes]
    before, thresholds = (sys.argv, sys.stdout, sys.stderr), gc.get_threshold()
    sys.argv, sys.stdout, sys.stderr = ["mmrewrite", *arguments], *streams
    try:
        main()
        status: object = 0
    except SystemExit as end:
        status = end.code
    finally:
        sys.argv, sys.stdout, sys.stderr = before
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    assert isinstance(status, int)
    return status, *(stream.buffer.getvalue() for stream in streams)  # type: ignore[attr-defined]


def test_an_equal_run_prints_the_same_before_slow_imports(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    put("devices.py", DEVICES)
    put("old.py", "import jax\nx = jax.tree_map(len, [])\n")
    commands = (["diff"], ["check", "devices.py"], ["modernize", "--diff"], ["modernize", "--check", "old.py"])
    first = [printed(*command) for command in commands]
    assert [status for status, _, _ in first] == [0, 1, 0, 1]
    assert all(out for _, out, _ in first)
    monkeypatch.setattr("mmrewrite.cli.commands.cli", None)
    assert [printed(*command) for command in commands] == first
    for option in ("--no-cache", "-v", "--color=always"):
        assert printed("diff", option)[0] == 2
    monkeypatch.setenv(cache_folder.VARIABLE, "")
    assert printed("diff")[0] == 2


@pytest.mark.parametrize("seed", range(3))
def test_no_output_is_stale(seed: int, kept: Path) -> None:
    """As above, for what is printed, with repositories and packages that come and go."""
    chance = random.Random(seed)
    folders = ("sub/.git", ".git", "venv")
    texts = {
        **TEXTS,
        "sub/part.py": (MODEL, "x = 1\n", None),
        "sub/.gitignore": ("*.py", None),
        "__init__.py": ("", None),
    }
    Path("sub").mkdir()
    for name, values in texts.items():
        put(name, values[0])
    found = 0
    for _ in range(25):
        for name in chance.sample(sorted(texts), chance.choice((1, 1, 2))):
            put(name, chance.choice(texts[name]))
        for folder in folders:
            if chance.random() < 0.2 and Path(folder).is_dir():
                Path(folder).rmdir()
            elif chance.random() < 0.2:
                Path(folder).mkdir(exist_ok=True)
        arguments = chance.choice(
            (["diff"], ["diff", "train.py"], ["modernize", "--diff"], ["check", "sub", "model.py"])
        )
        computed = run(*arguments, "--no-cache")
        for _ in range(2):
            assert printed(*arguments) == (computed.exit_code, computed.stdout_bytes, computed.stderr_bytes)
        found = len(list((kept.parent / "outputs").glob("*")))
    assert 3 < found < 25


@pytest.mark.parametrize("end", [KeyboardInterrupt, BrokenPipeError, OSError])
def test_output_that_was_cut_short_is_not_kept(
    end: type[BaseException], monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    """Else an equal run would print as much, and end in the same way."""
    put("devices.py", DEVICES)

    def cut_short(*_: object) -> None:
        raise end

    with monkeypatch.context() as patched:
        patched.setattr(session.Session, "print_messages", cut_short)
        assert printed("diff")[0] == (130 if end is KeyboardInterrupt else 2)
    assert not list((kept.parent / "outputs").glob("*"))
    assert printed("diff")[0] == 0


@pytest.mark.parametrize("damage", [b"", b"x", b"0" * 64 + b"\n{}"])
def test_damaged_output_is_made_again(damage: bytes, kept: Path) -> None:
    put("devices.py", DEVICES)
    first = printed("diff")
    (file,) = (kept.parent / "outputs").iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage)
    assert printed("diff") == first
    assert file.read_bytes() == whole


def test_output_of_other_code_is_made_again(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    put("devices.py", DEVICES)
    printed("diff")
    monkeypatch.setattr(replay, "code_states", lambda: iter(["edited"]))
    printed("diff")
    assert len(list((kept.parent / "outputs").iterdir())) == 2


def test_output_is_not_kept_when_files_change_meanwhile(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    put("devices.py", DEVICES)
    whole = session.Session.show_rewrites

    def and_edit(self: session.Session, *arguments: object, **words: object) -> None:
        put("devices.py", DEVICES.replace("2", "4"))
        whole(self, *arguments, **words)  # type: ignore[arg-type]

    monkeypatch.setattr(session.Session, "show_rewrites", and_edit)
    printed("diff")
    assert not (kept.parent / "outputs").exists()
