"""What a keystroke costs the language server, in a hinted file of 1,000 lines. Needs the extra `lsp`.

    python benchmarks/lsp_speed.py

Prints each figure with its goal, and exits with 1 if one is missed. A keystroke is a change of one character; the first
figure is the time until the server has taken it and has answered a question asked right behind it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from lsprotocol import types
from pygls.lsp.client import LanguageClient
from tool_speed import hinted_module

from mmrewrite.lsp.server import PAUSE

GOAL = 0.050
KEYSTROKES = 60
# Seconds from one to the next; fast typing.
INTERVAL = 0.1


class Client:
    def __init__(self, folder: Path, text: str) -> None:
        self.client = LanguageClient("benchmark", "1")
        self.folder, self.uri, self.version = folder, (folder / "module.py").as_uri(), 1
        self.news: asyncio.Queue[int | None] = asyncio.Queue()
        self.lines = text.split("\n")

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: types.PublishDiagnosticsParams) -> None:
            self.news.put_nowait(params.version if params.uri == self.uri else None)

    async def start(self) -> None:
        await self.client.start_io(sys.executable, "-m", "mmrewrite", "lsp", cwd=str(self.folder))
        folder = types.WorkspaceFolder(uri=self.folder.as_uri(), name="benchmark")
        await self.client.initialize_async(
            types.InitializeParams(capabilities=types.ClientCapabilities(), workspace_folders=[folder])
        )
        self.client.initialized(types.InitializedParams())
        document = types.TextDocumentItem(self.uri, "python", self.version, "\n".join(self.lines))
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(document))
        await self.shown()

    async def shown(self) -> None:
        while await self.news.get() != self.version:
            pass

    def press(self, letter: str) -> None:
        self.version += 1
        end = types.Position(len(self.lines) - 1, len(self.lines[-1]))
        self.lines[-1] += letter
        change = types.TextDocumentContentChangePartial(range=types.Range(end, end), text=letter)
        document = types.VersionedTextDocumentIdentifier(version=self.version, uri=self.uri)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    async def ask(self) -> None:
        other = types.TextDocumentIdentifier((self.folder / "other.py").as_uri())
        await self.client.text_document_hover_async(types.HoverParams(other, types.Position(0, 0)))

    def cpu(self) -> float:
        """CPU seconds of the server and of its worker."""
        assert self.client._server is not None
        server = self.client._server.pid
        found = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True)
        rows = [[int(cell) for cell in line.split()] for line in found.stdout.splitlines()[1:]]
        pids = [pid for pid, parent in rows if server in (pid, parent)]
        return sum(map(_ticks, pids)) / os.sysconf("SC_CLK_TCK")

    def server_cpu(self) -> float:
        """The same of the server alone, to the nanosecond: what waiting for a processor adds is not in it."""
        assert self.client._server is not None
        tasks = Path(f"/proc/{self.client._server.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def row(what: str, seconds: float, goal: float | None) -> bool:
    ratio = "" if goal is None else f"{seconds / goal:7.2f} of the goal, {1000 * goal:.0f} ms"
    print(f"{what:<66} {1000 * seconds:8.1f} ms{ratio}")
    return goal is None or seconds <= goal


async def typed(client: Client, count: int, interval: float) -> tuple[list[float], float, float, float]:
    """Seconds of each keystroke, the most of them on a processor in the server, the mean of server and worker there,
    and seconds from the last keystroke to its diagnostics."""
    before, times, most = client.cpu(), [], 0.0
    for _ in range(count):
        start, computed = time.perf_counter(), client.server_cpu()
        client.press("x")
        await client.ask()
        times.append(time.perf_counter() - start)
        most = max(most, client.server_cpu() - computed)
        if len(times) < count:
            await asyncio.sleep(max(0.0, interval - times[-1]))
    last = time.perf_counter()
    await client.shown()
    return times, most, (client.cpu() - before) / count, time.perf_counter() - last


async def measure(folder: Path) -> bool:
    text = hinted_module(4, 40)
    (folder / "module.py").write_text(text)
    client = Client(folder, text + "\n# ")
    await client.start()
    print(f"{len(client.lines)} lines, 12 hints")
    times, most, cpu, checked = await typed(client, KEYSTROKES, INTERVAL)
    _, _, slow, _ = await typed(client, KEYSTROKES // 6, 2 * PAUSE)
    held = [
        row("a keystroke, until the server answers again: median", median(times), GOAL),
        row("the slowest of them", max(times), GOAL),
        row("the most that the server computed for one of them", most, GOAL),
        row("CPU of a keystroke, server and worker, at ten a second", cpu, GOAL),
        row("the same, typed so slowly that each is checked", slow, None),
        row(f"from the last keystroke to its diagnostics, less {1000 * PAUSE:.0f} ms of pause", checked - PAUSE, None),
    ]
    await client.client.shutdown_async(None)
    client.client.exit(None)
    await client.client.stop()
    return all(held)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(not asyncio.run(measure(Path(folder))))
