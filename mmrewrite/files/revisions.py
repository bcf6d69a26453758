"""Which files differ from a revision, as git says."""

from __future__ import annotations

import os
import subprocess


class NoRevision(Exception):
    """Why git does not say which files differ, as a sentence."""


def changed_since(revision: str) -> frozenset[str]:
    """The real paths of the files that differ from a revision, and of new files that git does not ignore.

    Raises:
        NoRevision: If git is missing, this is no repository, or it has no such revision.
    """
    top = _git(["rev-parse", "--show-toplevel"], os.curdir).decode(errors="surrogateescape").removesuffix("\n")
    commit = _git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"], top, revision)
    names = _git(
        ["diff", "--name-only", "-z", "--no-ext-diff", "--no-renames", commit.decode().strip(), "--"], top, revision
    )
    names += _git(["ls-files", "-z", "--others", "--exclude-standard", "--full-name"], top)
    found = (os.fsdecode(name) for name in names.split(b"\0") if name)
    return frozenset(os.path.realpath(os.path.join(top, name)) for name in found)


def _git(arguments: list[str], folder: str, revision: str | None = None) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    except OSError as error:
        raise NoRevision(f"--since needs git, which does not start: {error.strerror or error}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        if revision is not None and not said:
            raise NoRevision(f"--since {revision}: git knows no such revision here; `git fetch` may bring it")
        raise NoRevision(f"--since: git says: {said[0] if said else f'exit status {done.returncode}'}")
    return done.stdout
