"""The process that reads sources for the server: one request after the other, on its standard input and output.

Both directions carry pickled values behind their length. Only the server and this process write them.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
from pathlib import Path
from typing import BinaryIO

from mmrewrite.cli.config import ConfigError, find_config
from mmrewrite.codemod.plugins import BadPlugin
from mmrewrite.files.select import BadPattern
from mmrewrite.lsp.answers import Answer, CheckedWorkspace, Failed, Request, ShownProblem
from mmrewrite.lsp.workspace import Workspace

LENGTH = struct.Struct("!Q")


def serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Answer requests until the server is gone."""
    workspaces: dict[str, Workspace] = {}
    while len(head := incoming.read(LENGTH.size)) == LENGTH.size:
        request: Request = pickle.loads(incoming.read(LENGTH.unpack(head)[0]))
        workspace = workspaces.setdefault(request.folder, Workspace())
        data = pickle.dumps(_answer(workspace, request))
        try:
            outgoing.write(LENGTH.pack(len(data)) + data)
            outgoing.flush()
        except BrokenPipeError:
            # The server has ended meanwhile; what is left to write must not be tried again at exit.
            os._exit(0)


def _answer(workspace: Workspace, request: Request) -> Answer:
    try:
        # It may have been removed since.
        os.chdir(request.folder)
        return getattr(workspace, request.kind)(request)  # type: ignore[no-any-return]
    except (ConfigError, BadPattern) as error:
        path = find_config(Path.cwd())
        if request.kind != "check" or path is None:
            return Failed(str(error))
        return CheckedWorkspace({str(path): (ShownProblem((0, 0), (0, 0), str(error), "error", "configuration"),)})
    except (BadPlugin, OSError) as error:
        return Failed(str(error))
    except Exception as error:
        # One request's trouble is no reason to leave the editor without answers.
        return Failed(f"this is a bug in mmrewrite: {type(error).__name__}: {error}")


def main() -> None:
    """Serve on standard input and output; what codemods print goes to standard error."""
    # Ctrl-C at a terminal reaches both processes; the server ends, and this one then finds its input at the end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    serve(incoming, outgoing)


if __name__ == "__main__":
    main()
