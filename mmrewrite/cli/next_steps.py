"""What to run once files were written, as lines that say so: each command runs as it is printed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmrewrite.codemod.registry import Registry
from mmrewrite.files.revisions import content_of
from mmrewrite.mirror.child_process import ONE_DEVICE_FALLBACK
from mmrewrite.results import Rewrite
from mmrewrite.verify.before import committed_entries

if TYPE_CHECKING:
    from mmrewrite.cli.session import Session

_HEAD = "HEAD"


def after_apply(session: Session) -> Iterator[str]:
    """After `apply`: what shows the change, what compares it with the program before, and where it runs."""
    if not session.written or session.unwritten:
        return
    yield from after_writing(session)
    hinted = [result for result in session.changed if b"verify" in result.original]
    committed = [_committed(session, result) for result in hinted]
    for entry in committed_entries(zip(hinted, committed, strict=True), tuple(Registry())):
        config = ("--config", session.options.config) if session.options.config else ()
        command = ["mmrewrite", "verify", *session.options.paths, *config, "--since", _HEAD]
        yield f"next: {shlex.join([*command, '--entry', entry.step, '--args', entry.arguments])}"
    if any(b"MultiMesh(" in result.result for result in session.changed):
        yield "after a step parameters are on several devices; code outside of steps reads a copy: mm.gather(params)"
        yield f"with fewer devices than the mesh has, {ONE_DEVICE_FALLBACK}=1 runs it on one"


def after_writing(session: Session) -> Iterator[str]:
    """After files were rewritten in place: what shows the change, where git knows them."""
    if session.written and any(_committed(session, result) is not None for result in session.changed):
        yield "next: git diff"


def _committed(session: Session, result: Rewrite) -> bytes | None:
    """What the last commit of the repository of this folder has of a file."""
    return content_of(_HEAD, result.path, os.path.realpath(session.top))
