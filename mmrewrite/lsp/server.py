"""The protocol: open files, diagnostics, code actions and hovers, over standard input and output.

See https://microsoft.github.io/language-server-protocol/specifications/lsp/3.17/specification/.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from lsprotocol import types
from pygls import uris
from pygls.lsp.server import LanguageServer

from mmrewrite import __version__
from mmrewrite.codemod.registry import Registry
from mmrewrite.files.walk import load_file
from mmrewrite.lsp.answers import (
    LARGEST,
    Answer,
    CheckedWorkspace,
    Failed,
    RegionRewrite,
    Request,
    ShownProblem,
    StepOnLine,
)
from mmrewrite.lsp.completion import AxisNames, offers
from mmrewrite.lsp.connection import Connection
from mmrewrite.lsp.positions import Position, Units, offset_at, position_at, replace_range
from mmrewrite.lsp.protocol import AnsweringProtocol, answer_unreadable
from mmrewrite.lsp.suggestion import NotSuggested, SuggestionProcess, suggested_hints
from mmrewrite.results import counted
from mmrewrite.source.text import SourceText, encode_buffer

SOURCE = "mmrewrite"
# Seconds without a keystroke after which the sources are read.
PAUSE = 0.15
# Seconds after which to look again which files there are, if the client reports no changes of files.
STALE = 2.0

# The command that looks for a pipeline, and what it is called.
SUGGEST, SUGGEST_TITLE = "mmrewrite.suggest", "Suggest a pipeline"
# What may come before something to complete in a hint.
_TRIGGERS = [" ", ":", ";", "(", "[", ",", "=", '"', "'"]
# Characters of a line before the cursor that completion looks at.
_LONGEST_LINE = 2000

_WATCHED = ("**/*.py", "**/*.ipynb", "**/pyproject.toml", "**/mmrewrite.toml", "**/.gitignore")


class _Buffer:
    """An open file."""

    def __init__(self, uri: str, path: str, version: int, text: str) -> None:
        self.uri, self.path, self.version = uri, path, version
        self.source = SourceText(text, "utf-8", False)


class Server:
    """What the server knows: the open files, and the answer about them that is shown."""

    def __init__(self, protocol: LanguageServer) -> None:
        self._protocol = protocol
        self._worker = Connection()
        self._buffers: dict[str, _Buffer] = {}
        self._shown: dict[str, tuple[types.Diagnostic, ...]] = {}
        self._hints: dict[str, frozenset[int]] = {}
        self._axes = AxisNames()
        self._due = 0.0
        # When the files of each folder were looked for; none are known that may have changed since.
        self._looked: dict[str, float] = {}
        self._watches = False
        self._task: asyncio.Task[None] | None = None
        self._said: set[str] = set()
        self._suggestion = SuggestionProcess()

    # Open files

    def open(self, params: types.DidOpenTextDocumentParams) -> None:
        """A file was opened."""
        document = params.text_document
        path = uris.to_fs_path(document.uri)
        if path is None or not path.endswith(".py") or not _is_name(path):
            return
        self._buffers[document.uri] = _Buffer(document.uri, os.path.abspath(path), document.version, document.text)
        self._check_soon(files_changed=True)

    def change(self, params: types.DidChangeTextDocumentParams) -> None:
        """A file was edited: only what changed is sent."""
        buffer = self._buffers.get(params.text_document.uri)
        if buffer is None:
            return
        for change in params.content_changes:
            if isinstance(change, types.TextDocumentContentChangePartial):
                start, end = _position(change.range.start), _position(change.range.end)
                buffer.source = replace_range(buffer.source, start, end, change.text, self._units)
            else:
                buffer.source = SourceText(change.text, "utf-8", False)
        buffer.version = params.text_document.version
        self._check_soon()

    def save(self, params: types.DidSaveTextDocumentParams) -> None:
        """A file was saved."""
        if params.text_document.uri in self._buffers:
            self._check_soon(files_changed=True)

    def close(self, params: types.DidCloseTextDocumentParams) -> None:
        """A file was closed; from now on it is what is on disk."""
        if self._buffers.pop(params.text_document.uri, None) is not None:
            self._check_soon(files_changed=True)

    def files_changed(self, params: types.DidChangeWatchedFilesParams) -> None:
        """Files changed on disk, or the configuration did."""
        self._check_soon(files_changed=True)

    def folders_changed(self, params: types.DidChangeWorkspaceFoldersParams) -> None:
        """A folder was added to the workspace, or taken from it."""
        self._check_soon(files_changed=True)

    def watch(self, params: types.InitializedParams) -> None:
        """Ask the client to report changes of files."""
        capabilities = self._protocol.client_capabilities.workspace
        watched = None if capabilities is None else capabilities.did_change_watched_files
        self._watches = watched is not None and bool(watched.dynamic_registration)
        if self._watches:
            watchers = [types.FileSystemWatcher(glob_pattern=pattern) for pattern in _WATCHED]
            options = types.DidChangeWatchedFilesRegistrationOptions(watchers=watchers)
            method = types.WORKSPACE_DID_CHANGE_WATCHED_FILES
            registration = types.Registration(id="watched-files", method=method, register_options=options)
            self._protocol.client_register_capability(types.RegistrationParams(registrations=[registration]))
        self._check_soon(files_changed=True)

    def end(self, params: None) -> None:
        """The client is done."""
        if self._task is not None:
            self._task.cancel()
        self._worker.close()
        self._suggestion.close()

    # Diagnostics

    def _check_soon(self, *, files_changed: bool = False) -> None:
        if files_changed:
            self._looked.clear()
        self._due = time.monotonic() + PAUSE
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._check_after_pause())

    async def _check_after_pause(self) -> None:
        """Check once nobody types; what was typed meanwhile is checked again."""
        while self._due:
            while (left := self._due - time.monotonic()) > 0:
                await asyncio.sleep(left)
            self._due = 0.0
            versions = self._versions()
            answers = {folder: await self._worker.ask(self._request("check", folder)) for folder in self._folders()}
            for answer in answers.values():
                if isinstance(answer, Failed):
                    self._say(answer.message)
            checked = {folder: each for folder, each in answers.items() if isinstance(each, CheckedWorkspace)}
            if checked and versions == self._versions():
                self._publish(self._together(checked))

    async def _checked(self) -> None:
        """Wait until what is shown is about the text as it is."""
        if self._due:
            self._due = time.monotonic()
        if self._task is not None:
            # A request that is cancelled must not take the check with it.
            await asyncio.shield(self._task)

    def _together(self, checked: dict[str, CheckedWorkspace]) -> CheckedWorkspace:
        """One answer of those about each folder. About a file of another folder, only the answer for that counts."""
        problems: dict[str, tuple[ShownProblem, ...]] = {}
        hints: dict[str, frozenset[int]] = {}
        for folder, answer in checked.items():
            others = set(checked) - {folder}
            problems |= {path: each for path, each in answer.problems.items() if self._folder_of(path) not in others}
            hints |= {path: each for path, each in answer.hints.items() if self._folder_of(path) not in others}
        axes = AxisNames(
            tuple(dict.fromkeys(name for answer in checked.values() for name in answer.axes.mesh)),
            tuple(dict.fromkeys(name for answer in checked.values() for name in answer.axes.logical)),
        )
        return CheckedWorkspace(problems, hints, axes)

    def _publish(self, checked: CheckedWorkspace) -> None:
        self._hints, self._axes = dict(checked.hints), checked.axes
        found = {
            self._uri(path): tuple(map(self._diagnostic, problems))
            for path, problems in checked.problems.items()
            if problems
        }
        versions = {buffer.uri: buffer.version for buffer in self._buffers.values()}
        for uri in sorted({*found, *self._shown, *versions}):
            diagnostics = found.get(uri, ())
            if diagnostics != self._shown.get(uri, ()) or uri in versions:
                self._protocol.text_document_publish_diagnostics(
                    types.PublishDiagnosticsParams(uri=uri, diagnostics=list(diagnostics), version=versions.get(uri))
                )
        self._shown = {uri: found.get(uri, ()) for uri in {*found, *versions}}

    def _diagnostic(self, problem: ShownProblem) -> types.Diagnostic:
        severity = {
            "error": types.DiagnosticSeverity.Error,
            "warning": types.DiagnosticSeverity.Warning,
            "information": types.DiagnosticSeverity.Information,
        }[problem.severity]
        return types.Diagnostic(
            range=self._range(problem.start, problem.end),
            message=problem.message,
            severity=severity,
            code=problem.code,
            code_description=None if problem.link is None else types.CodeDescription(href=problem.link),
            source=SOURCE,
            data=None if problem.fix is None else {"fix": problem.fix},
        )

    # Requests

    async def hover(self, params: types.HoverParams) -> types.Hover | None:
        """What is known about the hints of a line."""
        buffer = self._buffers.get(params.text_document.uri)
        if buffer is None:
            return None
        answer = await self._ask("describe", buffer, params.position.line + 1)
        if not isinstance(answer, str):
            return None
        markdown = types.MarkupContent(kind=types.MarkupKind.Markdown, value=answer)
        return types.Hover(contents=markdown)

    def complete(self, params: types.CompletionParams) -> types.CompletionList:
        """What may be written next in a hint comment."""
        buffer = self._buffers.get(params.text_document.uri)
        line = params.position.line
        items: list[types.CompletionItem] = []
        if buffer is not None and line < len(buffer.source.line_starts):
            end = offset_at(buffer.source, _position(params.position), self._units)
            before = buffer.source.text[max(buffer.source.line_starts[line], end - _LONGEST_LINE) : end]
            kinds = {
                "directive": types.CompletionItemKind.Function,
                "argument": types.CompletionItemKind.Field,
                "value": types.CompletionItemKind.Value,
            }
            for number, offer in enumerate(offers(before, self._axes, list(Registry()))):
                start = position_at(buffer.source, end - offer.replaced, self._units)
                edit = types.TextEdit(range=types.Range(types.Position(*start), params.position), new_text=offer.text)
                items.append(
                    types.CompletionItem(
                        label=offer.text,
                        kind=kinds[offer.kind],
                        detail=offer.about,
                        sort_text=f"{number:03}",
                        filter_text=offer.text,
                        text_edit=edit,
                    )
                )
        return types.CompletionList(is_incomplete=False, items=items)

    async def actions(self, params: types.CodeActionParams) -> list[types.CodeAction | types.Command]:
        """Spellings to fix, and the rewrites of hints, in a range."""
        buffer = self._buffers.get(params.text_document.uri)
        if buffer is None:
            return []
        await self._checked()
        wanted = params.context.only
        found: list[types.CodeAction | types.Command] = []
        if _is_wanted(types.CodeActionKind.QuickFix, wanted):
            found += self._fixes(buffer, params.range)
        if _is_wanted(types.CodeActionKind.RefactorRewrite, wanted):
            # A client may ask about more lines than there are.
            lines = range(params.range.start.line + 1, params.range.end.line + 2)
            seen: list[RegionRewrite] = []
            for line in sorted(each for each in self._hints.get(os.path.realpath(buffer.path), ()) if each in lines):
                version = buffer.version
                answer = await self._ask("rewrite", buffer, line)
                if isinstance(answer, RegionRewrite) and buffer.version == version and answer not in seen:
                    seen.append(answer)
                    found += self._rewrite(answer)
            answer = await self._ask("step", buffer, params.range.start.line + 1)
            if isinstance(answer, StepOnLine):
                found += self._suggest(answer, buffer)
        return found

    def _fixes(self, buffer: _Buffer, wanted: types.Range) -> Iterator[types.CodeAction]:
        for diagnostic in self._shown.get(buffer.uri, ()):
            fix = diagnostic.data.get("fix") if isinstance(diagnostic.data, dict) else None
            if fix is None or not _overlap(diagnostic.range, wanted):
                continue
            edit = types.TextEdit(range=diagnostic.range, new_text=fix)
            yield types.CodeAction(
                title=f"Write `{fix.strip()}`",
                kind=types.CodeActionKind.QuickFix,
                diagnostics=[diagnostic],
                is_preferred=True,
                edit=self._edit({buffer.path: [edit]}),
            )

    def _refused(self, title: str, reason: str) -> Iterator[types.CodeAction]:
        """An action that is there and cannot be chosen, for clients that can say why."""
        capabilities = self._protocol.client_capabilities.text_document
        if capabilities and capabilities.code_action and capabilities.code_action.disabled_support:
            disabled = types.CodeActionDisabled(reason=reason)
            yield types.CodeAction(title=title, kind=types.CodeActionKind.RefactorRewrite, disabled=disabled)

    def _suggest(self, step: StepOnLine, buffer: _Buffer) -> Iterator[types.CodeAction]:
        if step.why_not is not None:
            yield from self._refused(SUGGEST_TITLE, step.why_not)
            return
        command = types.Command(SUGGEST_TITLE, SUGGEST, arguments=[self._folder_of(buffer.path)])
        yield types.CodeAction(title=SUGGEST_TITLE, kind=types.CodeActionKind.RefactorRewrite, command=command)

    async def suggest(self, folder: str = "") -> None:
        """Look for a pipeline in a process of its own, and have the client write its hints.

        `folder` is that of the program, by default the first of the workspace.
        """
        folder = folder or self._folders()[0]
        unsaved = [
            buffer.path
            for buffer in self._buffers.values()
            if encode_buffer(buffer.source.text) != load_file(buffer.path)
        ]
        if unsaved:
            self._show(f"{unsaved[0]}: save it first; the program is traced from the disk")
            return
        self._show("looking for a pipeline: the step is traced, which takes from seconds to minutes")
        try:
            document = await self._suggestion.run(folder)
            files = {each["path"]: load_file(os.path.join(folder, each["path"])) for each in document["places"]}
            hinted = suggested_hints(document, {path: data for path, data in files.items() if data is not None})
        except NotSuggested as problem:
            self._show(str(problem))
            return
        edits = {}
        for result in hinted:
            source = SourceText.decode(result.original)
            edits[os.path.join(folder, result.path)] = [
                types.TextEdit(
                    range=self._range(*(position_at(source, at, self._units) for at in (edit.start, edit.end))),
                    new_text=edit.text,
                )
                for edit in result.edits
            ]
        label = types.ApplyWorkspaceEditParams(edit=self._edit(edits), label=SUGGEST_TITLE)
        await self._protocol.workspace_apply_edit_async(label)
        self._show(document["summary"])

    def _rewrite(self, answer: RegionRewrite) -> Iterator[types.CodeAction]:
        kind = types.CodeActionKind.RefactorRewrite
        if answer.refused is not None:
            yield from self._refused("Rewrite this hint", answer.refused)
            return
        edits = {
            path: [types.TextEdit(range=self._range(start, end), new_text=text) for start, end, text in changes]
            for path, changes in answer.edits.items()
        }
        others = "" if answer.count == 1 else f" with the {counted(answer.count - 1, 'other')} of its program"
        files = "" if len(edits) == 1 else f", in {len(edits)} files"
        yield types.CodeAction(title=f"Rewrite this hint{others}{files}", kind=kind, edit=self._edit(edits))

    def _edit(self, edits: dict[str, list[types.TextEdit]]) -> types.WorkspaceEdit:
        """Changes of files, which a client applies only to the versions that they are for, if it can tell."""
        workspace = self._protocol.client_capabilities.workspace
        versioned = workspace and workspace.workspace_edit and workspace.workspace_edit.document_changes
        changes: dict[str, list[types.TextEdit]] = {}
        documents = []
        for path, own in edits.items():
            uri = self._uri(path)
            version = self._buffers[uri].version if uri in self._buffers else None
            changes[uri] = own
            identifier = types.OptionalVersionedTextDocumentIdentifier(uri=uri, version=version)
            documents.append(types.TextDocumentEdit(text_document=identifier, edits=list(own)))
        if versioned:
            return types.WorkspaceEdit(document_changes=list(documents))
        return types.WorkspaceEdit(changes=changes)

    # The worker

    async def _ask(self, kind: Any, buffer: _Buffer, line: int) -> Answer:
        answer = await self._worker.ask(self._request(kind, self._folder_of(buffer.path), buffer.path, line))
        if isinstance(answer, Failed):
            self._say(answer.message)
        return answer

    def _request(self, kind: Any, folder: str, path: str = "", line: int = 0) -> Request:
        opened = {buffer.path: buffer.source.text for buffer in self._buffers.values()}
        buffers = {path: text for path, text in opened.items() if len(text) <= LARGEST}
        others = frozenset(each for each in buffers if self._folder_of(each) != folder)
        looked = self._looked.get(folder)
        fresh = looked is None or (not self._watches and time.monotonic() - looked > STALE)
        if fresh:
            self._looked[folder] = time.monotonic()
        walks = bool(self._roots())
        large = frozenset(each for each in opened if each not in buffers and self._folder_of(each) == folder)
        return Request(kind, folder, walks, buffers, self._units, fresh, path, line, others, large)

    def _roots(self) -> list[str]:
        """The folders of the workspace, as the client spells them."""
        folders = [uris.to_fs_path(folder.uri) for folder in self._protocol.workspace.folders.values()]
        # One may be gone, or have a name that no folder can have.
        return [
            folder for folder in folders or [self._protocol.workspace.root_path] if folder and os.path.isdir(folder)
        ]

    def _folders(self) -> list[str]:
        """The folders to check: those of the workspace, else that of the first open file."""
        return self._roots() or [self._folder_of("")]

    def _folder_of(self, path: str) -> str:
        """The folder in whose run a file is: the innermost that holds it, else the first."""
        real = os.path.realpath(path)
        roots = self._roots()
        if roots:
            whole = {root: os.path.join(os.path.realpath(root), "") for root in roots}
            holding = [root for root in roots if os.path.join(real, "").startswith(whole[root])]
            return max(holding, key=lambda root: len(whole[root]), default=roots[0])
        # Without a workspace all open files are of one run.
        folder = os.path.dirname(next((buffer.path for buffer in self._buffers.values()), ""))
        return folder if os.path.isdir(folder) else str(Path.home())

    def _uri(self, path: str) -> str:
        """The address of a file, given without links, as the client knows it."""
        real = os.path.realpath(path)
        for buffer in self._buffers.values():
            if os.path.realpath(buffer.path) == real:
                return buffer.uri
        root = self._folder_of(real) if self._roots() else None
        inside = os.path.relpath(real, os.path.realpath(root)) if root is not None else os.pardir
        place = real if root is None or inside.startswith(os.pardir) else os.path.join(root, inside)
        return str(uris.from_fs_path(place))

    def _versions(self) -> dict[str, int]:
        return {uri: buffer.version for uri, buffer in self._buffers.items()}

    @property
    def _units(self) -> Units:
        # What the client has named first of those that pygls knows; an enumeration if pygls has chosen, else a text.
        agreed = self._protocol.workspace.position_encoding
        return cast(Units, str(getattr(agreed, "value", agreed) or "utf-16"))

    def _range(self, start: Position, end: Position) -> types.Range:
        return types.Range(start=types.Position(*start), end=types.Position(*end))

    def _say(self, message: str) -> None:
        """Show an error, once."""
        if message not in self._said:
            self._said.add(message)
            self._show(message, is_error=True)

    def _show(self, message: str, *, is_error: bool = False) -> None:
        """Show a message to the user."""
        kind = types.MessageType.Error if is_error else types.MessageType.Info
        self._protocol.window_show_message(types.ShowMessageParams(type=kind, message=f"mmrewrite: {message}"))


class _AnsweringServer(LanguageServer):
    def report_server_error(self, error: Exception, source: Any) -> None:
        """Say what went wrong; of a message that cannot be read, as an answer to whoever sent it."""
        if not answer_unreadable(self.protocol, error):
            super().report_server_error(error, source)


def make_server() -> LanguageServer:
    """A server that knows the requests above."""
    protocol = _AnsweringServer(SOURCE, __version__, protocol_cls=AnsweringProtocol)
    server = Server(protocol)
    kinds = [types.CodeActionKind.QuickFix, types.CodeActionKind.RefactorRewrite]
    for method, handler, options in (
        (types.INITIALIZED, server.watch, None),
        (types.TEXT_DOCUMENT_DID_OPEN, server.open, None),
        (types.TEXT_DOCUMENT_DID_CHANGE, server.change, None),
        (types.TEXT_DOCUMENT_DID_SAVE, server.save, None),
        (types.TEXT_DOCUMENT_DID_CLOSE, server.close, None),
        (types.WORKSPACE_DID_CHANGE_WATCHED_FILES, server.files_changed, None),
        (types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS, server.folders_changed, None),
        (types.TEXT_DOCUMENT_HOVER, server.hover, None),
        (types.TEXT_DOCUMENT_COMPLETION, server.complete, types.CompletionOptions(trigger_characters=_TRIGGERS)),
        (types.TEXT_DOCUMENT_CODE_ACTION, server.actions, types.CodeActionOptions(code_action_kinds=kinds)),
        (types.SHUTDOWN, server.end, None),
    ):
        # pygls marks what it is given, and a bound method cannot be marked.
        protocol.feature(method, options)(partial(handler))
    protocol.command(SUGGEST)(partial(server.suggest))
    return protocol


def serve() -> None:
    """Serve on standard input and output until the client, or Ctrl-C, ends it."""
    # By itself asyncio would wait for the thread that reads standard input, which nothing but more input wakes. Nothing
    # is left half-done: the server writes no files, and its worker ends with it.
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    make_server().start_io()


def _is_name(path: str) -> bool:
    """Whether a file can be called so."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeError:
        return False


def _position(position: types.Position) -> Position:
    return position.line, position.character


def _is_wanted(kind: str, wanted: Any) -> bool:
    """Whether a client that asks for some kinds of actions, such as `refactor`, takes one of this kind."""
    return not wanted or any(kind == each or kind.startswith(f"{each}.") for each in wanted)


def _overlap(first: types.Range, second: types.Range) -> bool:
    return _position(first.start) <= _position(second.end) and _position(second.start) <= _position(first.end)
