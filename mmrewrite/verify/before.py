"""The original of a program that was rewritten in place: what a revision of git has, in a folder of its own."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmrewrite.files.revisions import NoRevision, changed_since, checked_out
from mmrewrite.files.select import source_file
from mmrewrite.files.walk import load_file
from mmrewrite.launch.watchman import temporary_folder
from mmrewrite.mirror.child_process import NotRun
from mmrewrite.project.facts import Facts, read_facts
from mmrewrite.project.verify_entries import Entry, hinted_entries
from mmrewrite.results import Rewrite
from mmrewrite.source.names import last_name


@dataclass(frozen=True)
class Before:
    """A checked-out revision, beside the files that came of it.

    Attributes:
        revision: What `--since` names.
        folders: For the top of each repository, the folder that holds what the revision has of it.
        changed: The real paths of the files that differ from it, or are new.
    """

    revision: str
    folders: Mapping[str, str]
    changed: tuple[str, ...]

    def place(self, path: str) -> str:
        """Where the revision's file or folder of a real path lies, whether or not it has one."""
        for top, folder in self.folders.items():
            if f"{path}{os.sep}".startswith(os.path.join(top, "")):
                return os.path.normpath(os.path.join(folder, os.path.relpath(path, top)))
        raise AssertionError(f"{path} is in no repository that was checked out")

    def name(self, path: str) -> str:
        """The name of a real path in its repository."""
        return next(os.path.relpath(path, top).replace(os.sep, "/") for top in self.folders if _is_in(path, top))

    def data(self, path: str) -> bytes:
        """The content of the revision's file of a real path; nothing where it has none."""
        return load_file(self.place(path)) or b""

    def roots(self, own: Iterable[str]) -> list[str]:
        """The folders from which the original imports, for those of the program, and for all files that differ.

        The latter go before what is installed from the working tree (`pip install -e`), which is not the original.
        """
        roots = [os.path.realpath(root) for root in own]
        roots += [os.path.realpath(source_file(path, b"").root) for path in self.changed]
        return [self.place(root) for root in dict.fromkeys(roots) if any(_is_in(root, top) for top in self.folders)]

    def named(self, text: str) -> str:
        """`text` with paths of checked-out files as git writes them: `REV:train.py`."""
        for folder in self.folders.values():
            text = text.replace(os.path.join(folder, ""), f"{self.revision}:")
        return text

    def entries(self, codemods: Collection[str]) -> list[Entry]:
        """The functions that `verify` hints name in the revision's files."""
        modules = []
        for path in self.changed:
            facts = read_facts(source_file(self.place(path), self.data(path)), tuple(codemods))
            modules += [facts] if isinstance(facts, Facts) else []
        return [dataclasses.replace(entry, place=self.named(entry.place)) for entry in hinted_entries(modules)]

    def loaded_now(self, imported: Iterable[str]) -> str | None:
        """A file that differs, and that the original has imported as it is now; None if there is none."""
        return next((path for path in self.changed if path in set(imported)), None)

    def reaches(self, imported: Collection[str]) -> bool:
        """Whether the original has imported any file that differs."""
        return any(os.path.realpath(self.place(path)) in imported for path in self.changed)


def committed_entries(written: Iterable[tuple[Rewrite, bytes | None]], codemods: Collection[str]) -> Iterator[Entry]:
    """The functions that `verify` hints named in files that were written, where a commit has them and their arguments.

    Args:
        written: Each file, and what the commit has of it.
        codemods: The names of codemods, which hints may mention.
    """
    for result, committed in written:
        now, before = (
            read_facts(source_file(result.path, data or b""), codemods) for data in (result.original, committed)
        )
        if isinstance(now, Facts) and isinstance(before, Facts):
            known = before.names.scope.bindings
            yield from (
                entry
                for entry in hinted_entries([now])
                if all(name.rpartition(":")[2].partition(".")[0] in known for name in (entry.step, entry.arguments))
            )


def _is_in(path: str, folder: str) -> bool:
    return f"{path}{os.sep}".startswith(os.path.join(folder, ""))


@contextlib.contextmanager
def original_of(revision: str, files: Sequence[str]) -> Iterator[Before]:
    """The program of some files as a revision has it, in a folder that is removed afterwards.

    Raises:
        NotRun: If git has no such revision of them, or none of them differs from it.
    """
    with temporary_folder("mmrewrite-since-") as folder:
        real = [os.path.realpath(path) for path in files]
        try:
            changed = changed_since(revision, real)
            if not changed:
                raise NotRun(f"--since {revision}: none of these files differs from it, so there is nothing to compare")
            folders = checked_out(revision, real, os.path.realpath(folder))
        except NoRevision as problem:
            raise NotRun(str(problem)) from None
        yield Before(revision, folders, tuple(sorted(changed)))


def own_of_calls(files: Iterable[bytes]) -> Iterator[str]:
    """The keywords in calls of the runtime's microbatch functions, without those that change nothing."""
    for data in files:
        if b"microbatch" not in data:
            continue
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(data)):
                if isinstance(node, ast.Call) and (last_name(node.func) or "").startswith("microbatch"):
                    yield from (str(each.arg) for each in node.keywords if _says_something(each.value))


def _says_something(value: ast.expr) -> bool:
    return ast.unparse(value) not in ("None", "()")
