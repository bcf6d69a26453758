"""An editor for tests: pygls's client at the other end of `mmrewrite lsp`, over standard input and output."""

from __future__ import annotations

import ast
import asyncio
import os
import sys
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.client import LanguageClient

_Result = TypeVar("_Result")
_LONGEST = 30


class Editor:
    """Open files and what the server says about them. Every method that asks the server is a coroutine for `run`."""

    def __init__(
        self, folder: Path, loop: asyncio.Runner, encodings: Sequence[str] | None = None, **capabilities: Any
    ) -> None:
        self.folder, self._loop, self._encodings = folder, loop, encodings
        self.client = LanguageClient("tests", "1")
        self.published: dict[str, types.PublishDiagnosticsParams] = {}
        self.messages: list[str] = []
        self._news = asyncio.Event()
        self.texts: dict[str, str] = {}
        self.edited: dict[str, str] = {}
        self.commands: list[dict[str, Any]] = []
        self.versions: dict[str, int] = {}
        self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(partial(self._publish))
        self.client.feature(types.WINDOW_SHOW_MESSAGE)(lambda params: self.messages.append(params.message))
        self.client.feature(types.CLIENT_REGISTER_CAPABILITY)(lambda params: None)
        self.client.feature(types.WORKSPACE_APPLY_EDIT)(partial(self._apply))
        self.run(self._start(capabilities))

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        async def limited() -> _Result:
            return await asyncio.wait_for(coroutine, _LONGEST)

        return self._loop.run(limited())

    def _apply(self, params: types.ApplyWorkspaceEditParams) -> types.ApplyWorkspaceEditResult:
        """Take the edit of a command: the files are then as `edited` says."""
        self.edited = self.after(types.CodeAction(title="", edit=params.edit))
        return types.ApplyWorkspaceEditResult(applied=True)

    async def command(self, number: int) -> None:
        """Run one of the commands that the last answer offered to its end."""
        params = types.ExecuteCommandParams(self.commands[number]["command"], self.commands[number]["arguments"])
        await self.client.workspace_execute_command_async(params)

    def start(self, coroutine: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Begin to ask, and go on."""
        return self._loop.get_loop().create_task(coroutine)

    def end(self, task: asyncio.Task[_Result]) -> _Result:
        """The answer to what was asked, however long it takes."""

        async def ended() -> _Result:
            return await task

        return self._loop.run(ended())

    def _publish(self, params: types.PublishDiagnosticsParams) -> None:
        self.published[params.uri] = params
        self._news.set()

    async def _start(self, capabilities: dict[str, Any]) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        await self.client.start_io(sys.executable, "-m", "mmrewrite", "lsp", cwd=str(self.folder), env=environment)
        edits = types.WorkspaceEditClientCapabilities(document_changes=True)
        watched = types.DidChangeWatchedFilesClientCapabilities(dynamic_registration=True)
        workspace = types.WorkspaceClientCapabilities(workspace_edit=edits, did_change_watched_files=watched)
        action = types.CodeActionClientCapabilities(disabled_support=True)
        self.initialized = await self.client.initialize_async(
            types.InitializeParams(
                capabilities=types.ClientCapabilities(
                    general=types.GeneralClientCapabilities(position_encodings=self._encodings),
                    workspace=workspace,
                    text_document=types.TextDocumentClientCapabilities(code_action=action),
                ),
                workspace_folders=[types.WorkspaceFolder(uri=self.folder.as_uri(), name="tests")],
                **capabilities,
            )
        )
        self.client.initialized(types.InitializedParams())
        agreed = self.initialized.capabilities.position_encoding
        self.units = str(getattr(agreed, "value", agreed) or "utf-16")

    async def stop(self) -> None:
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    async def open(self, name: str, text: str) -> list[types.Diagnostic]:
        """Write a file and open it; the diagnostics about this version."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return await self.open_unsaved(name, text)

    async def open_unsaved(self, name: str, text: str) -> list[types.Diagnostic]:
        self.texts[name], self.versions[name] = text, 1
        document = types.TextDocumentItem(uri=self.uri(name), language_id="python", version=1, text=text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(text_document=document))
        return await self.diagnostics(name)

    async def close(self, name: str) -> None:
        identifier = types.TextDocumentIdentifier(uri=self.uri(name))
        self.client.text_document_did_close(types.DidCloseTextDocumentParams(text_document=identifier))
        del self.texts[name], self.versions[name]

    def type(self, name: str, start: tuple[int, int], end: tuple[int, int], text: str) -> None:
        """Replace a range, as one keystroke does."""
        self.versions[name] += 1
        change = types.TextDocumentContentChangePartial(range=range_of(start, end), text=text)
        self.texts[name] = applied(self.texts[name], [types.TextEdit(range=change.range, new_text=text)], self.units)
        document = types.VersionedTextDocumentIdentifier(uri=self.uri(name), version=self.versions[name])
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(text_document=document, content_changes=[change])
        )

    async def diagnostics(self, name: str) -> list[types.Diagnostic]:
        """The diagnostics about the file as it is."""
        while True:
            found = self.published.get(self.uri(name))
            if found is not None and found.version == self.versions[name]:
                return list(found.diagnostics)
            self._news.clear()
            await self._news.wait()

    async def actions(self, name: str, line: int, only: list[str] | None = None) -> list[types.CodeAction]:
        """The actions of a line, counted from 0."""
        params = types.CodeActionParams(
            text_document=types.TextDocumentIdentifier(uri=self.uri(name)),
            range=range_of((line, 0), (line, 0)) if only is None else range_of((line, 0), (line, 1000)),
            context=types.CodeActionContext(diagnostics=[], only=None if only is None else list(only)),
        )
        found = await self.client.text_document_code_action_async(params)
        # This client takes an action that has a command for a command, and makes a text of that.
        self.commands = [ast.literal_eval(each.command) for each in found or [] if isinstance(each, types.Command)]
        return [each for each in found or [] if isinstance(each, types.CodeAction)]

    async def complete(self, name: str, line: int, character: int) -> dict[str, str]:
        """What is offered at a place, with the file as it is once that is taken."""
        params = types.CompletionParams(
            types.TextDocumentIdentifier(uri=self.uri(name)), types.Position(line, character)
        )
        found = await self.client.text_document_completion_async(params)
        assert isinstance(found, types.CompletionList)
        edits = {item.label: item.text_edit for item in found.items}
        assert all(isinstance(edit, types.TextEdit) for edit in edits.values())
        return {label: applied(self.texts[name], [edit], self.units) for label, edit in edits.items()}  # type: ignore[list-item]

    async def hover(self, name: str, line: int) -> str | None:
        position = types.Position(line, 0)
        params = types.HoverParams(types.TextDocumentIdentifier(uri=self.uri(name)), position)
        found = await self.client.text_document_hover_async(params)
        if found is None:
            return None
        assert isinstance(found.contents, types.MarkupContent)
        return found.contents.value

    def after(self, action: types.CodeAction) -> dict[str, str]:
        """The files that an action changes, by name, as they are after it."""
        assert action.edit is not None
        results = {}
        for change in action.edit.document_changes or ():
            assert isinstance(change, types.TextDocumentEdit)
            path = Path(change.text_document.uri.removeprefix("file://"))
            name = path.resolve().relative_to(self.folder.resolve()).as_posix()
            assert change.text_document.version == self.versions.get(name)
            text = self.texts.get(name) or path.read_bytes().decode()
            edits = [edit for edit in change.edits if isinstance(edit, types.TextEdit)]
            results[name] = applied(text, edits, self.units)
        return results


def range_of(start: tuple[int, int], end: tuple[int, int]) -> types.Range:
    return types.Range(start=types.Position(*start), end=types.Position(*end))


CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}


def applied(text: str, edits: list[types.TextEdit], units: str = "utf-16") -> str:
    """A text after edits whose columns count such units, and which do not overlap."""
    codec, width = CODECS[units]
    lines = text.replace("\r\n", "\n\0").replace("\r", "\n\1").split("\n")
    starts, offset = [], 0
    for line in lines:
        # After a line ending of two characters, the mark stands for the second.
        starts.append(offset + (1 if line[:1] == "\0" else 0))
        offset += len(line) + (0 if line[:1] == "\1" else 1)

    def place(position: types.Position) -> int:
        inside = text[starts[position.line] :]
        return starts[position.line] + len(inside.encode(codec)[: position.character * width].decode(codec))

    # What several insert at one place stands there in their order.
    spans = [(place(edit.range.start), place(edit.range.end), number) for number, edit in enumerate(edits)]
    for start, end, new in ((start, end, edits[number].new_text) for start, end, number in sorted(spans, reverse=True)):
        text = text[:start] + new + text[end:]
    return text
