"""The server's end of the worker process: one question at a time, and a new process where one has died."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections import deque

from mmrewrite.lsp.answers import Answer, Failed, Request
from mmrewrite.lsp.worker import LENGTH

# A question that takes longer has run into a bug of ours.
LONGEST = 120.0


class Connection:
    """Questions to the worker, in order. One that is cancelled before its turn is not asked."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Future[Answer], Request]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, request: Request) -> Answer:
        """The worker's answer."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, request))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await future

    def close(self) -> None:
        """End the worker."""
        for future, _ in self._waiting:
            future.cancel()
        if self._running is not None:
            self._running.cancel()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _run(self) -> None:
        while self._waiting:
            future, request = self._waiting.popleft()
            if future.done():
                continue
            try:
                answer = await asyncio.wait_for(self._exchange(request), LONGEST)
            except TimeoutError:
                answer = Failed(f"no answer within {LONGEST:g} seconds; the worker was ended")
                self._end()
            except (OSError, asyncio.IncompleteReadError):
                answer = Failed("the worker process was killed, perhaps for want of memory; the next change starts one")
                self._end()
            if not future.done():
                future.set_result(answer)

    async def _exchange(self, request: Request) -> Answer:
        if self._process is None or self._process.returncode is not None:
            # Without -P the folder of the workspace would be on the import path, where it may hold an `ast.py`.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "mmrewrite.lsp.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        writer, reader = self._process.stdin, self._process.stdout
        assert writer is not None and reader is not None
        data = pickle.dumps(request)
        writer.write(LENGTH.pack(len(data)) + data)
        await writer.drain()
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        answer: Answer = pickle.loads(await reader.readexactly(length))
        return answer

    def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        self._process = None
