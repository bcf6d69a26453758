"""Which files differ from a revision, as git says, and what they are there."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from mmrewrite.files.walk import folders_above

# Variables that tie git to one repository, as in hooks: `git rev-parse --local-env-vars`.
_OF_ONE_REPOSITORY = frozenset(
    (
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_PREFIX",
        "GIT_COMMON_DIR",
        "GIT_OBJECT_DIRECTORY",
        "GIT_GRAFT_FILE",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_INTERNAL_SUPER_PREFIX",
    )
)


class NoRevision(Exception):
    """Why git does not say which files differ, as a sentence."""


def changed_since(revision: str, paths: Collection[str]) -> frozenset[str]:
    """The real paths of those of `paths` that differ from a revision, or are not in it.

    A file of a submodule is compared with the commit of the submodule that the revision has. Where a path leads out of
    the repository of the current folder, the revision is looked up in the repository that holds the file.

    Raises:
        NoRevision: If git is missing, a repository has no such revision, or none of the files is in a repository.
    """
    real = {os.path.realpath(path) for path in paths}
    here = None
    try:
        here = _top(os.curdir)
    except NoRevision:
        if not any(_repository_of(path) for path in real):
            raise
    inside = {path for path in real if here is not None and _is_below(path, here)}
    found = set(_differing(here, revision, inside)) if here is not None else set()
    others: dict[str, set[str]] = defaultdict(set)
    for path in real - inside:
        top = _repository_of(path)
        if top is None:
            # No revision has it.
            found.add(path)
        else:
            others[top].add(path)
    for top, below in others.items():
        found.update(_differing(top, revision, below, is_here=False))
    return frozenset(found)


def checked_out(revision: str, paths: Collection[str], folder: str) -> dict[str, str]:
    """Write what a revision has of each repository that holds one of `paths`, as a checkout does.

    Of a submodule that is the commit which the revision has. The working tree and git's index stay as they are.

    Args:
        revision: The revision, in the repository of the current folder, or else in that of the file.
        paths: Real paths of files.
        folder: An empty folder.

    Returns:
        For the top of each repository, innermost first, the folder below `folder` that holds its files.

    Raises:
        NoRevision: If a path is in no repository, there is no such revision, or git cannot write it.
    """
    here = None
    with contextlib.suppress(NoRevision):
        here = _top(os.curdir)
    tops: dict[str, str] = {}
    for path in sorted(paths):
        top = _repository_of(path)
        if top is None:
            raise NoRevision(f"--since {revision}: {path} is in no repository of git")
        if top not in tops:
            tops[top] = os.path.join(folder, str(len(tops)))
            commit = _commit_of(top, revision, here)
            index = {"GIT_INDEX_FILE": f"{tops[top]}.index"}
            _git(["read-tree", commit], top, top == here, index)
            _git(["checkout-index", "--all", f"--prefix={os.path.join(tops[top], '')}"], top, top == here, index)
    return dict(sorted(tops.items(), key=lambda item: -len(item[0])))


def content_of(revision: str, path: str, top: str) -> bytes | None:
    """What a revision of the repository at the real path `top` has of a file; None if it has no such file."""
    folder, name = os.path.split(os.path.realpath(path))
    if _repository_of(os.path.join(folder, name)) != top:
        return None
    with contextlib.suppress(NoRevision):
        return _git(["cat-file", "blob", f"{revision}:./{name}"], folder, is_here=False)
    return None


def revisions_of(path: str, most: int) -> Iterator[tuple[str, bytes]]:
    """The last revisions that changed a file, each with its content there; none for a file that git does not know."""
    folder, name = os.path.split(os.path.realpath(path))
    listed = b""
    with contextlib.suppress(NoRevision):
        listed = _git(["log", "--format=%H", "-n", str(most), "--", name], folder, is_here=False)
    for revision in listed.decode().split():
        with contextlib.suppress(NoRevision):
            yield revision, _git(["cat-file", "blob", f"{revision}:./{name}"], folder, is_here=False)


def _commit_of(top: str, revision: str, here: str | None) -> str:
    """The commit of a repository that a revision means; that of a submodule is what the one around it has."""
    if top == here or here is None or not _is_below(top, here):
        return _commit(top, revision, top == here)
    outer = _repository_of(top)
    assert outer is not None
    place = os.path.relpath(top, outer).replace(os.sep, "/")
    recorded = _recorded(outer, _commit_of(outer, revision, here), place, outer == here)
    if recorded is None:
        raise NoRevision(f"--since {revision}: it has no submodule {place}")
    return recorded


def _differing(top: str, revision: str, paths: Collection[str], *, is_here: bool = True) -> Iterator[str]:
    """The files among `paths`, of one repository, that differ from a revision or are not in it."""
    commit = _commit(top, revision, is_here)
    listed = _git(["diff", "--name-only", "-z", "--no-ext-diff", "--no-renames", commit, "--"], top, is_here)
    tracked = set(_names(_git(["ls-files", "-z", "--full-name"], top, is_here)))
    changed = set(_names(listed))
    nested: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        below = _repository_of(path)
        if below is not None and below != top and _is_below(below, top):
            nested[below].add(path)
        elif (name := os.path.relpath(path, top).replace(os.sep, "/")) in changed or name not in tracked:
            yield path
    for below, files in nested.items():
        recorded = _recorded(top, commit, os.path.relpath(below, top).replace(os.sep, "/"), is_here)
        yield from files if recorded is None else _differing(below, recorded, files, is_here=False)


def _commit(top: str, revision: str, is_here: bool) -> str:
    def verified(name: str) -> str | None:
        arguments = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
        done = _run(arguments, top, is_here)
        return done.stdout.decode().strip() if done.returncode == 0 else None

    commit = verified(revision)
    if commit is not None:
        return commit
    shown = revision if revision.strip() else repr(revision)
    where = "here" if is_here else f"in {top}"
    if verified("HEAD") is None:
        raise NoRevision(f"--since {shown}: there is no commit {where} yet; leave out --since")
    raise NoRevision(f"--since {shown}: git knows no such revision {where}; `git fetch` may bring it")


def _recorded(top: str, commit: str, folder: str, is_here: bool) -> str | None:
    """The commit of a submodule that a commit has; None if there is no submodule in that place."""
    entry = _git(["ls-tree", "-z", commit, "--", folder], top, is_here).partition(b"\t")[0].split()
    return entry[2].decode() if entry[1:2] == [b"commit"] else None


def _repository_of(path: str) -> str | None:
    """The nearest folder above a file that is a repository or a submodule."""
    above = folders_above(os.path.dirname(path))
    return next((folder for folder in above if os.path.lexists(os.path.join(folder, ".git"))), None)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def _names(listed: bytes) -> Iterator[str]:
    return (os.fsdecode(name) for name in listed.split(b"\0") if name)


def _top(folder: str) -> str:
    top = _git(["rev-parse", "--show-toplevel"], folder, True)
    return os.path.realpath(os.fsdecode(top.removesuffix(b"\n")))


def _git(
    arguments: list[str], folder: str, is_here: bool, variables: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    done = _run(arguments, folder, is_here, variables)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise NoRevision(f"--since: git says: {said[0] if said else f'exit status {done.returncode}'}")
    return done.stdout


def _run(
    arguments: list[str], folder: str, is_here: bool, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[bytes]:
    own = {name: value for name, value in os.environ.items() if is_here or name not in _OF_ONE_REPOSITORY} | {
        **variables
    }
    try:
        return subprocess.run(["git", *arguments], cwd=folder, env=own, capture_output=True, check=False)
    except OSError as error:
        raise NoRevision(f"--since needs git, which does not start: {error.strerror or error}") from None
