"""Answer runs that have nothing to say, before slow imports: no file that they read may have a hint, or an old name.

The command line proper takes longer to import than a thousand files take to read. Whatever is not as plain as can be
is left to it: options, settings of ours, folders that are passed over, files that cannot be read, and terminals, where
a count is printed.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence

from mmrewrite.directives.carrier import may_have_hints
from mmrewrite.files.walk import OWN_FILE, PYPROJECT, SUFFIXES, folders_above, load_file, read_file, walk

_BATCH = 200_000
# What may begin a command line of paths, and whether it is about old names.
_COMMANDS = {("diff",): False, ("check",): False, ("modernize", "--diff"): True, ("modernize", "--check"): True}


def has_nothing_to_say(arguments: Sequence[str]) -> bool:
    """Whether a command line prints nothing and exits with 0."""
    paths = plain_paths(arguments)
    if paths is None:
        return False
    modernizes = next(is_about for command, is_about in _COMMANDS.items() if command == (*arguments[: len(command)],))
    try:
        return not _is_configured() and not _may_matter(paths, modernizes=modernizes)
    except OSError:
        return False


def plain_paths(arguments: Sequence[str]) -> Sequence[str] | None:
    """The paths of a command line that has nothing else and does not print to a terminal; None for all others."""
    command = next((each for each in _COMMANDS if each == (*arguments[: len(each)],)), None)
    if command is None or sys.stderr is None or sys.stderr.isatty() or "_MMREWRITE_COMPLETE" in os.environ:
        return None
    paths = arguments[len(command) :] or (".",)
    return None if any(not path or path.startswith("-") for path in paths) else paths


def _may_matter(paths: Iterable[str], *, modernizes: bool) -> bool:
    """Whether a file at or below paths may be rewritten, or there is anything else to say of them."""
    if not modernizes:
        return any(_may_be_below(path, may_have_hints) for path in paths)
    from mmrewrite.codemod.plugins import has_plugins
    from mmrewrite.codemod.products import old_names

    read: dict[str, bytes] = {}
    if any(map(has_plugins, sys.path)):
        return True
    product = old_names()
    wanted = product.may_have_old_names
    return any(_may_be_below(path, wanted, read) for path in paths) or product.may_matter_together(read, load_file)


def _may_be_below(path: str, wanted: Callable[[bytes], bool], read: dict[str, bytes] | None = None) -> bool:
    """Whether a file at or below a path is wanted, or there is more to say of it; `read` takes what is read."""
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        return _any_is_wanted((path,), wanted, read)
    unreadable: dict[str, str] = {}
    passed_over: dict[str, str] = {}
    below = (file for file in walk(path, unreadable, passed_over) if file.endswith(SUFFIXES))
    return not stat.S_ISDIR(mode) or _any_is_wanted(below, wanted, read) or bool(unreadable or passed_over)


def _any_is_wanted(paths: Iterable[str], wanted: Callable[[bytes], bool], read: dict[str, bytes] | None) -> bool:
    batch: list[bytes] = []
    size = 0
    for path in paths:
        data = read_file(path)
        batch.append(data)
        if read is not None:
            read[path] = data
        size += len(data)
        if size > _BATCH:
            if _is_in_batch(batch, wanted):
                return True
            batch, size = [], 0
    return _is_in_batch(batch, wanted)


def _is_in_batch(batch: Sequence[bytes], wanted: Callable[[bytes], bool]) -> bool:
    """Whether one of several files is wanted: asked of all of them at once, as files are small and markers many."""
    return wanted(b"\n".join(batch)) and any(map(wanted, batch))


def _is_configured() -> bool:
    """Whether the nearest configuration may be ours, or may be broken and so must be reported."""
    for folder in folders_above(os.getcwd()):
        if os.path.isfile(os.path.join(folder, OWN_FILE)):
            return True
        path = os.path.join(folder, PYPROJECT)
        if os.path.isfile(path):
            return _may_be_for_us(path)
    return False


def _may_be_for_us(path: str) -> bool:
    import tomllib

    try:
        tools = tomllib.loads(read_file(path).decode()).get("tool", {})
    except (ValueError, RecursionError):
        return True
    # Names that share four letters with ours may be misspellings of it.
    return not isinstance(tools, dict) or any(len(set(name) & set("mmrewrite")) > 3 for name in tools)
