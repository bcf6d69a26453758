"""The language server, at the other end of a real client."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import PIPELINE, put
from hypothesis import given
from hypothesis import strategies as st

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.files.select import source_file
from mmrewrite.lsp import workspace
from mmrewrite.lsp.answers import Request
from mmrewrite.lsp.completion import axis_names, offers
from mmrewrite.lsp.positions import Units, offset_at, position_at, replace_range
from mmrewrite.lsp.worker import LENGTH
from mmrewrite.source.text import SourceText

pytest.importorskip("pygls")

from editor import CODECS, Editor, applied, range_of
from lsprotocol import types
from pygls.exceptions import JsonRpcException

MODEL = """\
def block(w, x):
    return x @ w


def model(params, x):
    for w in params:  # mm: stages
        x = block(w, x)
    return x.mean()
"""
TRAIN = """\
import jax

from model import model

# mm: mesh(stage=2)


@jax.jit  # mm: mjit
def step(params, x):
    return jax.grad(model)(params, x)  # mm: microbatch(count=4)
"""

PLACED = """\
import jax

# mm: mesh(stage=2, data=2)


@jax.jit  # mm: mjit
def step(x):
    x = f(x)  # mm: task("a", stage=1)
    return x
"""


WRONG = "y = f(1) + f(2)  # mm: task(stage=0)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that the editor knows by a link to it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    return tmp_path / "link"


@pytest.fixture
def editor(folder: Path) -> Iterator[Editor]:
    with asyncio.Runner() as loop:
        editor = Editor(folder, loop)
        yield editor
        editor.run(editor.stop())


def rewritten(folder: Path, *names: str) -> dict[str, str]:
    """What `apply` makes of files, by name."""
    files = [source_file(str(folder / name), (folder / name).read_bytes()) for name in names]
    results = rewrite_project(files, Registry())
    return {name: result.result.decode() for name, result in zip(names, results, strict=True) if result.changed}


def of_code(diagnostics: list[types.Diagnostic], code: str) -> types.Diagnostic:
    (found,) = [each for each in diagnostics if each.code == code]
    return found


def test_problems_and_what_to_do_about_them(editor: Editor, folder: Path) -> None:
    put(str(folder / "unopened.py"), "y = f(1) + f(2)  # mm: task(stage=0)\n")
    run = editor.run

    # A misspelt directive: an error under the word, and one action that mends it.
    text = "# größe 🎉\ny = f('🎉')  # mm: tsk(stage=0)\n"
    error = of_code(run(editor.open("a.py", text)), "hint")
    assert error.severity == types.DiagnosticSeverity.Error
    assert "did you mean `task`?" in error.message
    assert error.range == range_of((1, 19), (1, 22))
    (action,) = run(editor.actions("a.py", 1, ["quickfix"]))
    assert action.title == "Write `task`" and action.is_preferred
    assert editor.after(action) == {"a.py": text.replace("tsk", "task")}
    # Typed letter by letter, it is the same text to the server.
    editor.type("a.py", (1, 19), (1, 22), "")
    for column, letter in enumerate("task"):
        editor.type("a.py", (1, 19 + column), (1, 19 + column), letter)
    assert run(editor.diagnostics("a.py")) == []

    # A beginning that is only near, and an axis that the mesh does not have.
    near = "# mm: mesh(stage=2)\ny = f(1)  # MM: task(stage=0)\n"
    run(editor.open("near.py", near))
    (action,) = run(editor.actions("near.py", 1, ["quickfix"]))
    assert editor.after(action) == {"near.py": near.replace("# MM:", "# mm:")}
    axis = "# mm: mesh(stage=2)\ny = f(1)  # mm: task(stagee=0)\n"
    run(editor.open("axis.py", axis))
    (action,) = run(editor.actions("axis.py", 1, ["quickfix"]))
    assert editor.after(action) == {"axis.py": axis.replace("stagee", "stage")}

    # A refusal: a warning with the codemod and a page, in an open file and in one that is not.
    refusal = of_code(run(editor.open("refused.py", "y = f(1) + f(2)  # mm: task(stage=0)\n")), "place_task")
    assert refusal.severity == types.DiagnosticSeverity.Warning
    assert refusal.code_description is not None and refusal.code_description.href.startswith("https://")
    unopened = editor.published[editor.uri("unopened.py")]
    assert of_code(list(unopened.diagnostics), "place_task").message == refusal.message
    (action,) = run(editor.actions("refused.py", 0))
    assert action.edit is None and action.disabled is not None and refusal.message in action.disabled.reason

    # Python that does not parse.
    (broken,) = run(editor.open("broken.py", "# mm: mesh(stage=2)\nx = (\n"))
    assert broken.code == "unreadable" and broken.range.start.line == 1
    assert not editor.messages


def test_a_hint_is_rewritten_with_its_program_and_no_other(editor: Editor, folder: Path) -> None:
    run = editor.run
    put(str(folder / "model.py"), MODEL)
    put(str(folder / "other.py"), PIPELINE)
    assert run(editor.open("train.py", TRAIN)) == []
    (action,) = run(editor.actions("train.py", 9))
    assert action.title == "Rewrite this hint with the 3 others of its program, in 2 files"
    both = rewritten(folder, "train.py", "model.py")
    assert set(both) == {"train.py", "model.py"}
    assert editor.after(action) == both
    # From any of its lines, the mesh's included, and from the other file, before it is saved.
    assert editor.after(run(editor.actions("train.py", 4))[0]) == both
    run(editor.open_unsaved("model.py", f"# new\n\n\n{MODEL}"))
    (action,) = run(editor.actions("model.py", 8, ["refactor"]))
    assert editor.after(action) == both | {"model.py": f"# new\n\n\n{both['model.py']}"}
    assert run(editor.actions("model.py", 8, ["quickfix"])) == []
    assert run(editor.actions("model.py", 7)) == []


LAYERS = """\
import jax, jax.numpy as jnp

def loss_fn(p, x):
    for w in p:
        x = jnp.tanh(x @ w)
    return jnp.mean(x ** 2)

@jax.jit
def step(p, x):
    g = jax.grad(loss_fn)(p, x)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g)

def example():
    return [jax.ShapeDtypeStruct((8192, 8192), jnp.float32)] * 16, jax.ShapeDtypeStruct((65536, 8192), jnp.float32)
"""
SETTINGS = """\
[tool.mmrewrite.suggest]
entry = "train:step"
args = "train:example"
cluster = "cluster.toml"
"""
# Hosts with a slow network between them.
CLUSTER = """\
devices = 16
[device]
name = "h100"
[[links]]
devices = 8
bandwidth = "450GB/s"
latency = "10us"
[[links]]
devices = 4096
bandwidth = "1GB/s"
latency = "20us"
"""


@pytest.mark.family(3)
def test_a_pipeline_is_suggested_for_a_step(editor: Editor, folder: Path) -> None:
    run = editor.run
    run(editor.open("train.py", LAYERS))
    refactorings = [types.CodeActionKind.RefactorRewrite.value]
    assert run(editor.actions("train.py", 3, refactorings)) == []
    found = run(editor.actions("train.py", 8, refactorings))
    assert [each.title for each in found] == ["Suggest a pipeline"], editor.messages
    (action,) = found
    assert action.disabled is not None
    assert 'entry = "MODULE:step"' in action.disabled.reason
    put(str(folder / "pyproject.toml"), SETTINGS)
    put(str(folder / "cluster.toml"), CLUSTER)
    run(editor.open("train.py", LAYERS))
    assert run(editor.actions("train.py", 8, refactorings)) == []
    assert [each["title"] for each in editor.commands] == ["Suggest a pipeline"]
    # Other questions are answered meanwhile.
    task = editor.start(editor.command(0))
    assert run(editor.hover("train.py", 3)) is None
    editor.end(task)
    text = editor.edited["train.py"]
    assert "# mm: stages\n    for w in p:\n" in text and "# mm: microbatch(" in text, editor.messages
    assert "".join(line for line in text.splitlines(True) if "# mm: " not in line) == LAYERS


def test_a_hover_says_what_is_known_and_what_is_not(editor: Editor, folder: Path) -> None:
    run = editor.run
    run(editor.open("train.py", PIPELINE))
    assert run(editor.hover("train.py", 0)) is None
    mesh = run(editor.hover("train.py", 2))
    assert mesh is not None and "\n- mesh `mesh` of 2 devices, stage=2\n" in mesh
    assert "- Steps: `step`\n" in str(run(editor.hover("train.py", 11)))
    layers = run(editor.hover("train.py", 6))
    assert layers is not None and "dealt out to the 2 slices of `stage`, in order" in layers
    batch = run(editor.hover("train.py", 13))
    assert batch is not None
    assert "2 stages on 2 submeshes, 4 microbatches\n" in batch
    assert "\n  - makespan of a step: " in batch and "\n  - most live activations" in batch
    assert "Not known without tracing the program: bytes" in batch
    # One that is placed by hand: its submesh and devices.
    run(editor.open("placed.py", PLACED))
    placed = run(editor.hover("placed.py", 7))
    assert placed is not None
    # One cell of the table to a line.
    assert "\n  - task: a\n  - where: stage=1\n  - submesh 0, devices 2, 3\n" in placed
    assert "- **Runs on** placed.py:3: mesh `mesh` of 4 devices, stage=2 x data=2" in placed
    run(editor.open("alone.py", "y = f(1)  # mm: task('a', stage=1)\n"))
    assert "No step of these files reaches this line" in str(run(editor.hover("alone.py", 0)))
    run(editor.open("refused.py", "y = f(1) + f(2)  # mm: task(stage=0)\n"))
    refused = run(editor.hover("refused.py", 0))
    assert refused is not None and "Refused: " in refused


def test_the_configuration_counts_and_its_mistakes_are_shown(editor: Editor, folder: Path) -> None:
    run = editor.run
    assert len(run(editor.open("a.py", WRONG))) == 1
    config = put(str(folder / "mmrewrite.toml"), 'ignore = ["place_task"]\n')

    async def notify() -> None:
        event = types.FileEvent(uri=config.as_uri(), type=types.FileChangeType.Changed)
        editor.client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams(changes=[event]))
        # Actions are about what is on disk now, so the answer comes behind the problems.
        await editor.actions("a.py", 0, ["quickfix"])

    run(notify())
    assert run(editor.diagnostics("a.py")) == []
    config.write_text('ignroe = ["place_task"]\n')
    run(notify())
    assert run(editor.diagnostics("a.py")) == []
    (wrong,) = editor.published[config.as_uri()].diagnostics
    assert "did you mean `ignore`?" in wrong.message
    config.write_text('exclude = ["a.py"]\n')
    run(notify())
    assert run(editor.diagnostics("a.py")) == []
    assert list(editor.published[config.as_uri()].diagnostics) == []
    config.unlink()
    run(notify())
    assert len(run(editor.diagnostics("a.py"))) == 1


def test_each_folder_of_a_workspace_is_a_run_of_its_own(editor: Editor, folder: Path) -> None:
    run = editor.run
    second = folder.parent / "second"
    run(editor.open("wrong.py", WRONG))
    put(str(second / "model.py"), MODEL)
    put(str(second / "mmrewrite.toml"), 'exclude = ["wrong.py"]\n')
    name = "../second/train.py"
    (found,) = run(editor.open(name, TRAIN))
    assert "is not among the files to rewrite" in found.message
    change = types.WorkspaceFoldersChangeEvent(added=[types.WorkspaceFolder(second.as_uri(), "second")], removed=[])

    async def add() -> list[types.CodeAction]:
        editor.client.workspace_did_change_workspace_folders(types.DidChangeWorkspaceFoldersParams(change))
        # Actions are about the folders as they are now, so the answer comes behind the problems.
        return await editor.actions(name, 7)

    (action,) = run(add())
    assert run(editor.diagnostics(name)) == []
    assert action.title == "Rewrite this hint with the 3 others of its program, in 2 files"
    assert action.edit is not None
    edited = [each.text_document.uri for each in action.edit.document_changes or () if hasattr(each, "text_document")]
    assert sorted(edited) == sorted([(second / "model.py").as_uri(), editor.uri(name)])
    # The settings of one folder are not those of the other.
    assert len(run(editor.diagnostics("wrong.py"))) == 1
    assert run(editor.open("../second/wrong.py", WRONG)) == []
    removed = types.WorkspaceFoldersChangeEvent(added=[], removed=[types.WorkspaceFolder(second.as_uri(), "second")])

    async def remove() -> None:
        editor.client.workspace_did_change_workspace_folders(types.DidChangeWorkspaceFoldersParams(removed))
        await editor.actions(name, 7)

    run(remove())
    assert len(run(editor.diagnostics(name))) == 1


def test_requests_without_a_keystroke_between_share_one_rewrite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    rewrites = []

    def counted(*args: Any, **more: Any) -> Any:
        rewrites.append(args)
        return rewrite_project(*args, **more)

    monkeypatch.setattr(workspace, "rewrite_project", counted)
    opened, path = workspace.Workspace(), str(folder / "train.py")
    asked = Request("check", str(folder), True, {path: PIPELINE}, path=path, line=3)
    opened.check(asked)
    for line in (3, 7, 12):
        assert opened.describe(replace(asked, fresh=False, line=line)) is not None
    assert len(rewrites) == 1
    assert opened.describe(replace(asked, fresh=False, buffers={path: f"\n{PIPELINE}"})) is None
    assert len(rewrites) == 2
    # A file of the project that is not open may have changed.
    opened.describe(asked)
    assert len(rewrites) == 3


# The encodings of positions that clients offer, in their order, and the first of them that is known.
CLIENTS = {
    "Neovim": ["utf-8", "utf-16", "utf-32"],
    "Helix": ["utf-8", "utf-32", "utf-16"],
    "eglot": ["utf-32", "utf-8", "utf-16"],
    "VS Code": ["utf-16"],
    "unknown": ["ebcdic", "utf-16"],
    "older": None,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_positions_are_in_the_encoding_that_was_agreed(client: str, folder: Path) -> None:
    encodings = CLIENTS[client]
    with asyncio.Runner() as loop:
        editor = Editor(folder, loop, encodings)
        run, codec, width = editor.run, *CODECS[editor.units]
        assert editor.units == (encodings or ["utf-16"])[0 if client != "unknown" else 1]

        def place(text: str, word: str, end: bool = False) -> tuple[int, int]:
            before = text[: text.index(word) + (len(word) if end else 0)]
            return before.count("\n"), len(before.rpartition("\n")[2].encode(codec)) // width

        # A fix, typing, a mistake, completion, a rewrite: each behind what has other columns in each encoding.
        text = 'x = f("é🎉")  # mm: tsak(stage=0)\n'
        error = of_code(run(editor.open("a.py", text)), "hint")
        assert (error.range.start.line, error.range.start.character) == place(text, "tsak")
        assert (error.range.end.line, error.range.end.character) == place(text, "tsak", end=True)
        (action,) = run(editor.actions("a.py", 0, ["quickfix"]))
        assert editor.after(action) == {"a.py": text.replace("tsak", "task")}
        editor.type("a.py", place(text, "tsak"), place(text, "tsak", end=True), "🎉task")
        editor.type("a.py", place(text, "tsak"), (0, place(text, "tsak")[1] + len("🎉".encode(codec)) // width), "")
        assert run(editor.diagnostics("a.py")) == []
        refused = 'if "é🎉": y = f(1) + f(2)\n# mm: mesh(stage=2)\n\n\n@jax.jit  # é🎉  # mm: mjit\nclass C: ...\n'
        (refusal,) = run(editor.open("refused.py", refused))
        assert (refusal.range.start.line, refusal.range.start.character) == place(refused, "mjit")
        asked = 'x = "é🎉"  # mm: ta\n'
        run(editor.open("asked.py", asked))
        assert run(editor.complete("asked.py", *place(asked, "ta", end=True)))["task"] == asked.replace("ta", "task")
        program = PIPELINE.replace("x @ w", "x @ w  # é🎉").replace("# mm: mjit", "# é🎉  # mm: mjit")
        run(editor.open("train.py", program))
        (rewrite,) = run(editor.actions("train.py", 11))
        assert editor.after(rewrite) == rewritten(folder, "train.py")
        editor.run(editor.stop())


class TestCompletion:
    @pytest.mark.parametrize(
        ("line", "offered"),
        [
            ("x = f(x)  # mm:|", {"task": "x = f(x)  # mm:task", "mesh": "x = f(x)  # mm:mesh"}),
            ("x = f(x)  # mm: |", {"task": "x = f(x)  # mm: task", "off": "x = f(x)  # mm: off"}),
            ("x = f(x)  # mm: ta|", {"task": "x = f(x)  # mm: task"}),
            ("x = f(x)  # mm: task(stage=0); sh|", {"shard": "x = f(x)  # mm: task(stage=0); shard"}),
            (
                "x = f(x)  # mm: task(|",
                {"stage=": "x = f(x)  # mm: task(stage=", "name=": "x = f(x)  # mm: task(name="},
            ),
            ("x = f(x)  # mm: task(st|)", {"stage=": "x = f(x)  # mm: task(stage=)"}),
            ("x = f(x)  # mm: shard(ba|", {'"batch"': 'x = f(x)  # mm: shard("batch"'}),
            ('x = f(x)  # mm: shard("ba|', {'"batch"': 'x = f(x)  # mm: shard("batch"'}),
            ("x = f(x)  # mm: shard(None, 'mo|", {"'model'": "x = f(x)  # mm: shard(None, 'model'"}),
            ("for w in ws:  # mm: stages(axis=|", {'"stage"': 'for w in ws:  # mm: stages(axis="stage"'}),
            (
                "g = h(x)  # mm: microbatch(count=4, sch|",
                {"schedule=": "g = h(x)  # mm: microbatch(count=4, schedule="},
            ),
            (
                'g = h(x)  # mm: microbatch(count=4, schedule="zb-|',
                {'"zb-h1"': 'g = h(x)  # mm: microbatch(count=4, schedule="zb-h1"'},
            ),
            ("# mm: axes(hidden=|", {'"model"': '# mm: axes(hidden="model"'}),
            ("x = f(x)  # mm: ignore[place|", {"place_task": "x = f(x)  # mm: ignore[place_task"}),
        ],
    )
    def test_what_may_come_next(self, line: str, offered: dict[str, str]) -> None:
        axes = axis_names(["# mm: mesh(stage=2, model=2); axes(hidden='model', batch=None)\n"])
        assert (axes.mesh, axes.logical) == (("stage", "model"), ("hidden", "batch"))
        before, _, after = line.partition("|")
        found = offers(before, axes, list(Registry()))
        written = {each.text: before[: len(before) - each.replaced] + each.text + after for each in found}
        assert {text: written.get(text) for text in offered} == offered

    @pytest.mark.parametrize(
        "before",
        ["x = ta", "# about tas", "x = f(x)  # mm: task(stage=0)", "x = f(x)  # mm: nothing(a", "y = 'mm: ta", "# mm"],
    )
    def test_nothing_elsewhere(self, before: str) -> None:
        assert offers(before, axis_names([]), ()) == ()

    def test_axes_of_the_program_are_offered(self, editor: Editor, folder: Path) -> None:
        put(str(folder / "devices.py"), "# mm: mesh(pipe=2)\nx = 1\n")
        put(str(folder / "pyproject.toml"), "[tool.mmrewrite.axes]\nembed = 'pipe'\n")
        put(
            str(folder / "made.py"),
            "import mmruntime as mm\nmesh = mm.MultiMesh(axis_sizes=(2,), axis_names=('data',))\n",
        )
        text = "x = f(1)  # mm: task(\ny = f(1)  # mm: shard(\n"
        editor.run(editor.open("a.py", text))
        assert {"name=", "pipe=", "data="} <= set(editor.run(editor.complete("a.py", 0, 21)))
        assert {'"pipe"', '"data"', '"embed"'} <= set(editor.run(editor.complete("a.py", 1, 22)))
        assert editor.run(editor.complete("a.py", 7, 0)) == {}


def test_a_large_document_blocks_no_other(editor: Editor, folder: Path) -> None:
    large = "y = f(1) + f(2)  # mm: task(stage=0)\n" * 250_000
    put(str(folder / "on_disk.py"), large)
    (found,) = editor.run(editor.open_unsaved("large.py", large))
    assert found.severity == types.DiagnosticSeverity.Information and "`mmrewrite check` reads it" in found.message
    before = time.monotonic()
    editor.type("large.py", (100_000, 0), (100_000, 0), "z")
    assert of_code(editor.run(editor.open("small.py", WRONG)), "place_task")
    assert editor.run(editor.hover("small.py", 0)) is not None
    assert editor.run(editor.hover("large.py", 0)) is None and editor.run(editor.actions("large.py", 0)) == []
    assert time.monotonic() - before < 20
    assert "on_disk.py" in str(sorted(editor.published))
    # What was cut to a size that people write is looked at again.
    editor.type("large.py", (1, 0), (250_000, 0), "")
    assert len(editor.run(editor.diagnostics("large.py"))) == 1


def test_wrong_requests_are_answered(folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "mmrewrite", "lsp"]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, env=environment
    )
    assert server.stdin is not None and server.stdout is not None

    def send(body: bytes) -> None:
        server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))  # type: ignore[union-attr]
        server.stdin.flush()  # type: ignore[union-attr]

    def answer(number: int | None) -> dict[str, Any]:
        while True:
            length = 0
            while line := server.stdout.readline().strip():  # type: ignore[union-attr]
                if line.lower().startswith(b"content-length"):
                    length = int(line.partition(b":")[2])
            message: dict[str, Any] = json.loads(server.stdout.read(length))  # type: ignore[union-attr]
            if message.get("id") == number and "method" not in message:
                return message

    def ask(number: int, method: str, params: object) -> dict[str, Any]:
        send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
        return answer(number)

    def code(number: int, method: str, params: object) -> int:
        return int(ask(number, method, params)["error"]["code"])

    hover, document = "textDocument/hover", {"textDocument": {"uri": (folder / "a.py").as_uri()}}
    good = document | {"position": {"line": 0, "character": 0}}
    assert code(1, hover, good) == -32002
    assert "result" in ask(2, "initialize", {"processId": None, "rootUri": folder.as_uri(), "capabilities": {}})
    opened = document["textDocument"] | {
        "languageId": "python",
        "version": 1,
        "text": "y = f(1)  # mm: task(stage=0)\n",
    }
    send(json.dumps({"jsonrpc": "2.0", "method": "initialized", "params": {}}).encode())
    for uri in (opened["uri"], "file:///%00.py", "file:///%ED%A0%80.py", "untitled:1", "file://"):
        note = {"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {"textDocument": opened | {"uri": uri}}}
        send(json.dumps(note).encode())
    for number, params in enumerate(({}, [], 5, None, document, good | {"position": {"line": -1, "character": 0}}), 10):
        assert code(number, hover, params) == -32602
    assert code(20, "nobody/knows", {}) == -32601
    # Folders that are none are left out, whatever a client adds.
    added = [{"uri": uri, "name": "x"} for uri in ("file:///%00", "file:///nowhere/at/all", folder.as_uri())]
    change = {"event": {"added": added, "removed": []}}
    send(json.dumps({"jsonrpc": "2.0", "method": "workspace/didChangeWorkspaceFolders", "params": change}).encode())
    everywhere = {"start": {"line": 0, "character": 0}, "end": {"line": 2**31 - 1, "character": 0}}
    assert ask(21, "textDocument/codeAction", document | {"range": everywhere, "context": {"diagnostics": []}})[
        "result"
    ]
    for body in (b"{", b"\xff", b"[" * 100_000):
        send(body)
        assert answer(None)["error"]["code"] == -32700
    for body in (b"[]", b"5", b"{}"):
        send(body)
        assert answer(None)["error"]["code"] == -32600
    assert "task" in str(ask(22, hover, good)["result"])
    assert ask(23, "shutdown", None)["result"] is None
    assert code(24, hover, good) == -32600
    send(json.dumps({"jsonrpc": "2.0", "method": "exit"}).encode())
    assert server.wait(20) == 0
    server.stdin.close()
    server.stdout.close()


def test_a_request_can_be_cancelled_and_the_next_is_answered(editor: Editor) -> None:
    async def scenario() -> None:
        await editor.open("train.py", PIPELINE)
        params = types.HoverParams(types.TextDocumentIdentifier(uri=editor.uri("train.py")), types.Position(2, 0))
        requests = [
            editor.client.protocol.send_request_async(types.TEXT_DOCUMENT_HOVER, params, msg_id=f"hover {number}")
            for number in range(3)
        ]
        tasks = [asyncio.ensure_future(request) for request in requests]
        await asyncio.sleep(0)
        for number in range(2):
            editor.client.cancel_request(types.CancelParams(id=f"hover {number}"))
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
        for each in (first, second):
            assert isinstance(each, JsonRpcException) and each.code == -32800
        assert isinstance(third, types.Hover)

    editor.run(scenario())


def test_a_killed_worker_is_replaced(editor: Editor) -> None:
    async def scenario() -> None:
        await editor.open("train.py", PIPELINE)
        assert await editor.hover("train.py", 2) is not None
        server = editor.client._server
        assert server is not None
        listed = subprocess.run(
            ["ps", "-eww", "-o", "pid,ppid,args"], capture_output=True, text=True, check=True
        ).stdout
        rows = [line.split(None, 2) for line in listed.splitlines()]
        (worker,) = [int(row[0]) for row in rows if row[1] == str(server.pid) and "mmrewrite.lsp.worker" in row[2]]
        os.kill(worker, signal.SIGKILL)
        # A question on the way when it dies is lost, and said to be; one after that is not.
        first = await editor.hover("train.py", 2)
        assert first is not None or "killed" in editor.messages[-1]
        assert "mesh `mesh`" in str(await editor.hover("train.py", 2))

    editor.run(scenario())


def test_ctrl_c_ends_the_server_and_its_worker_at_once(folder: Path) -> None:
    def message(method: str, **rest: object) -> bytes:
        data = json.dumps({"jsonrpc": "2.0", "method": method, **rest}).encode()
        return b"Content-Length: %d\r\n\r\n%s" % (len(data), data)

    uri = (folder / "train.py").as_uri()
    document = {"uri": uri, "languageId": "python", "version": 1, "text": PIPELINE}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-m", "mmrewrite", "lsp"],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None and server.stderr is not None
        server.stdin.write(
            message("initialize", id=1, params={"processId": None, "rootUri": None, "capabilities": {}})
            + message("initialized", params={})
            + message("textDocument/didOpen", params={"textDocument": document})
        )
        server.stdin.flush()
        # The worker has answered, so it is there.
        while b"publishDiagnostics" not in server.stdout.read1():
            pass
        # As a terminal does: to both processes.
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait(20) == 130
        assert server.stderr.read() == b""
        with pytest.raises(ProcessLookupError):
            for _ in range(200):
                os.killpg(server.pid, 0)
                time.sleep(0.05)


def test_a_worker_whose_server_has_ended_says_nothing(folder: Path) -> None:
    data = pickle.dumps(Request("check", str(folder), False, {}))
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "mmrewrite.lsp.worker"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        input=LENGTH.pack(len(data)) + data,
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_nothing_is_run_and_nothing_written(folder: Path) -> None:
    trap = "open('ran', 'w')\n"
    for name in ("ast.py", "jax.py", "conftest.py", "sitecustomize.py", "mmcodemods.py"):
        put(str(folder / name), trap)
    text = f"{trap}{PIPELINE}"
    with asyncio.Runner() as loop:
        editor = Editor(folder, loop)
        editor.run(editor.open("train.py", text))
        before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert editor.run(editor.actions("train.py", 14))
        assert editor.run(editor.hover("train.py", 14)) is not None
        editor.run(editor.stop())
    assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


TEXTS = st.text(st.sampled_from("ab \r\n\f\v\x85\u2028é🎉\t"), max_size=30)
PLACES = st.tuples(st.integers(0, 8), st.integers(0, 12))


@given(TEXTS, PLACES, PLACES, TEXTS)
def test_changes_are_those_of_the_protocol(text: str, start: tuple[int, int], end: tuple[int, int], new: str) -> None:
    source = SourceText(text, "utf-8", False)
    ends = [offset_at(source, place, "utf-16") for place in sorted((start, end))]
    first, last = (position_at(source, offset, "utf-16") for offset in ends)
    changed = replace_range(source, first, last, new, "utf-16").text
    edit = types.TextEdit(range=range_of(first, last), new_text=new)
    assert changed == applied(text, [edit]) == text[: ends[0]] + new + text[ends[1] :]


@given(TEXTS, st.integers(0, 30), st.sampled_from(("utf-8", "utf-16", "utf-32")))
def test_positions_lead_back_to_their_offset(text: str, offset: int, units: Units) -> None:
    source = SourceText(text, "utf-8", False)
    offset = min(offset, len(text))
    line, column = position_at(source, offset, units)
    inside = text[source.line_starts[line] : offset]
    width = {"utf-8": 1, "utf-16": 2, "utf-32": 4}[units]
    assert (
        column == len(inside.encode({"utf-8": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}[units])) // width
    )
    back = offset_at(source, (line, column), units)
    # An offset between the characters of a line ending is the end of its line.
    assert back == min(offset, source.line_starts[line] + len(source.line(line + 1)))
