"""Comments, line breaks and parentheses between any two tokens: the rewritten program is the same, and has them all."""

from __future__ import annotations

import ast
import functools
import random
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import test_fixtures
import test_modernize
from program_gaps import IN_BRACKETS, KINDS, Place, apart, comments, gaps, inserted

from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceText

pytestmark = pytest.mark.family

# A hint that is a call has no place for comments of its own, which the user is told.
INSIDE_A_HINT = "a comment inside a hint would be lost"
FOLDERS = [
    *((folder, "hints") for folder in test_fixtures.CASES),
    *((each, "modernize") for each in test_modernize.CASES),
]


def is_readable(data: bytes) -> bool:
    """Whether a program is plain UTF-8 that this Python can parse."""
    try:
        ast.parse(data.decode())
    except (UnicodeDecodeError, SyntaxError, ValueError):
        return False
    return not data.startswith("\N{BYTE ORDER MARK}".encode())


class Program:
    """The modules of a fixture, and what becomes of them."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.case: Any = (test_fixtures if engine == "hints" else test_modernize).read_case(folder)
        self.is_modernized = engine == "modernize"
        self.before: dict[str, bytes] = self.case.before
        self.paths = [path for path, data in self.before.items() if path.endswith(".py") and is_readable(data)]

    @functools.cached_property
    def plain(self) -> tuple[dict[str, Rewrite], float]:
        """What becomes of the program as it is, and how long that takes."""
        return self.timed(self.before)

    def timed(self, files: dict[str, bytes]) -> tuple[dict[str, Rewrite], float]:
        """What becomes of some modules, and how many seconds of this process that takes."""
        start = time.process_time()
        return self.rewrite(files), time.process_time() - start

    def rewrite(self, files: dict[str, bytes]) -> dict[str, Rewrite]:
        if self.is_modernized:
            return test_modernize.modernize(files, self.case.settings)
        return test_fixtures.rewrite(files)

    def check(self, path: str, insertions: list[tuple[int, str]]) -> bool:
        """Compare the result with that of the program as it was. Returns whether that can be done."""
        text = self.before[path].decode()
        made = inserted(text, insertions)
        if made is None:
            return False
        plain, seconds = self.plain
        results, taken = self.timed({**self.before, path: made.encode()})
        if taken > 20 * seconds + 2:
            # The garbage of many programs may have been collected meanwhile.
            results, taken = self.timed({**self.before, path: made.encode()})
        assert taken < 20 * seconds + 2
        assert [each.failure for each in results.values()] == [each.failure for each in plain.values()]
        told = [error.message for each in results.values() for error in each.errors]
        is_compared = not any(message.startswith(INSIDE_A_HINT) for message in told)
        if is_compared:
            for name, result in results.items():
                if name.endswith(".py"):
                    # An import that goes because nothing reads it stays where a comment tells what it is for.
                    gone = imports(self.before[name]) - imports(plain[name].result)
                    assert meaning(result.result, gone) == meaning(plain[name].result)
        gone = lost(text, plain[path]) if not plain[path].failed else Counter[str]()
        assert lost(made, results[path]) - gone == Counter()
        return is_compared

    def check_together(self, path: str, places: Sequence[Place]) -> None:
        """Compare with something at all of some places, and at each alone where that fails or says nothing."""
        failure = None
        try:
            if self.check(path, [each for place in places for each in place]):
                return
        except AssertionError as error:
            failure = error
        middle = len(places) // 2
        for part in (places[:middle], places[middle:]) if middle else ():
            self.check_together(path, part)
        if failure is not None:
            raise failure


def lost(text: str, result: Rewrite) -> Counter[str]:
    """The comments that are neither in the result nor named by an edit."""
    after = comments(SourceText.decode(result.result).text)
    told = "\n".join([*after, *(hint.text for edit in result.edits for hint in edit.hints)])
    return Counter({each: n for each, n in (Counter(comments(text)) - Counter(after)).items() if each not in told})


def meaning(data: bytes, gone: Collection[str] = ()) -> str:
    """A program as a tree without some imports: each takes one name, and those that stand together are sorted."""
    tree = ast.parse(SourceText.decode(data).text)
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(getattr(node, name, None), list):
                setattr(node, name, list(sorted_imports(getattr(node, name), gone)))
    return ast.dump(tree)


def imports(data: bytes) -> set[str]:
    """The imports of a program but for those of hints, each of one name."""
    found = {ast.dump(each) for node in ast.walk(ast.parse(SourceText.decode(data).text)) for each in taken_apart(node)}
    return {each for each in found if "mmrewrite" not in each}


def taken_apart(node: ast.AST) -> list[ast.stmt]:
    if isinstance(node, ast.Import):
        return [ast.Import([alias]) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
    return []


def sorted_imports(block: list[ast.stmt], gone: Collection[str]) -> Iterator[ast.stmt]:
    run: list[ast.stmt] = []
    for statement in block:
        found = taken_apart(statement)
        run += [each for each in found if ast.dump(each) not in gone]
        # A statement that goes leaves `pass` behind where a comment stays on its line.
        if not found and not isinstance(statement, ast.Pass):
            yield from sorted(run, key=ast.dump)
            run = []
            yield statement
    yield from sorted(run, key=ast.dump)


def sample(places: list[Place], seed: str, count: int) -> list[Place]:
    return random.Random(seed).sample(places, min(count, len(places)))


def name_of(value: object) -> str:
    return f"{value.parent.name}/{value.name}" if isinstance(value, Path) else str(value)


@pytest.mark.parametrize(("folder", "engine"), FOLDERS, ids=name_of)
def test_a_comment_at_every_place_at_once(folder: Path, engine: str) -> None:
    program = Program(folder, engine)
    for path in program.paths:
        places = gaps(program.before[path].decode(), "comment")
        program.check(path, [each for place in places for each in place])


@pytest.mark.parametrize(("folder", "engine"), FOLDERS, ids=name_of)
def test_something_at_one_place(folder: Path, engine: str) -> None:
    """Of the places that can have something of each kind, one; another kind in each program."""
    program = Program(folder, engine)
    kinds = [*KINDS]
    for number, path in enumerate(program.paths):
        kind = kinds[(len(name_of(folder)) + number) % len(kinds)]
        for place in sample(gaps(program.before[path].decode(), kind), name_of(folder), 1):
            program.check(path, place)


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "engine"), FOLDERS, ids=name_of)
def test_something_at_every_place(folder: Path, engine: str) -> None:
    """With as many places at once as are far from each other, then with all at once."""
    program = Program(folder, engine)
    for path, kind in product(program.paths, KINDS):
        text = program.before[path].decode()
        places = gaps(text, kind)
        for group in apart(text, places):
            program.check_together(path, group)
        if kind in IN_BRACKETS and kind not in ("backslash", "banner"):
            program.check(path, [each for place in places for each in place])
