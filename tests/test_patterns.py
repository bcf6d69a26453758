"""Every pattern of the tool takes linear time, on the worst texts of a generator of such texts."""

from __future__ import annotations

import ast
import importlib
import itertools
import pkgutil
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pathspec import GitIgnoreSpec

import mmcodemods
import mmmodernize
import mmrewrite
from mmmodernize.text.text_patterns import says_part
from mmrewrite.files.select import patterns as ignore_patterns

# The parser of `re`, which names what a pattern is made of.
_parser: Any = importlib.import_module("re._parser")
_constants: Any = importlib.import_module("re._constants")

LENGTH = 2000
# A quadratic pattern takes some ten milliseconds on a text of that length, and sixteen times that on one four times as
# long; a linear one takes a tenth of a millisecond, and four times that.
LONGER, MOST_SECONDS, MOST_RATIO = 4, 0.002, 9
# What of a text a class of characters stands for.
OF_CLASS = {"DIGIT": "0", "WORD": "a_", "SPACE": " \n", "NOT_DIGIT": "a", "NOT_WORD": ".", "NOT_SPACE": "a"}
SEARCHING = frozenset(("search", "finditer", "findall", "sub", "split", "subn"))


def modules() -> Iterator[Any]:
    for package in (mmrewrite, mmcodemods, mmmodernize):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)


def patterns(module: Any) -> dict[str, tuple[re.Pattern[Any], bool]]:
    """The patterns of a module, those in functions too, each with whether it is looked for anywhere in a text."""
    named: dict[re.Pattern[Any], str] = {}
    searched: set[re.Pattern[Any]] = set()
    values = [value for value in vars(module).values() if value is re or isinstance(value, re.Pattern)]
    if not values or not module.__spec__.origin.endswith(".py"):
        return {}
    with open(module.__spec__.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for name, value in vars(module).items():
        if isinstance(value, re.Pattern):
            named.setdefault(value, f"{module.__name__}.{name}")
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=method) if method in SEARCHING:
                value = vars(module).get(name)
                searched |= {value} if isinstance(value, re.Pattern) else set()
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[first, *_]):
                flags = [ast.unparse(each) for each in (*node.args[1:], *(k.value for k in node.keywords))]
                if isinstance(first, ast.Constant):
                    flag = re.DOTALL if any("DOTALL" in each for each in flags) else 0
                    value = re.compile(first.value, flag)
                    named.setdefault(value, f"{module.__name__}:{node.lineno}")
                    searched |= {value} if method in SEARCHING else set()
            case _:
                pass
    return {name: (pattern, pattern in searched) for pattern, name in named.items()}


def pieces(pattern: re.Pattern[Any]) -> list[str]:
    """Characters that a pattern tells apart, and words in it."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    letters: list[str] = []
    words: list[str] = []

    def visit(parts: Any) -> None:
        run = ""
        for operation, value in [*parts, (None, None)]:
            kind = str(operation)
            if kind == "LITERAL":
                run += chr(value)
                letters.append(chr(value))
                continue
            words.append(run)
            run = ""
            if kind == "IN":
                for inner, each in value:
                    if str(inner) == "LITERAL":
                        letters.append(chr(each))
                    elif str(inner) == "RANGE":
                        letters.append(chr(each[0]))
                    elif str(inner) == "CATEGORY":
                        letters.extend(OF_CLASS[str(each).removeprefix("CATEGORY_")])
            elif kind == "BRANCH":
                for each in value[1]:
                    visit(each)
            elif kind == "ATOMIC_GROUP":
                visit(value)
            elif isinstance(value, tuple):
                for each in value:
                    if type(each).__name__ == "SubPattern":
                        visit(each)

    visit(_parser.parse(text, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags))
    long = [word for word in dict.fromkeys(words) if len(word) > 1]
    return [*dict.fromkeys([*list(dict.fromkeys(letters))[:8], "a", " ", "\n"]), *long[:2]]


def worst_texts(pattern: re.Pattern[Any], length: int) -> Iterator[str]:
    """Long texts of few pieces: what begins to match at each place, and goes on for long before it does not."""
    found = pieces(pattern)
    words = [each for each in found if len(each) > 1] or [""]
    for one in found:
        yield one * length
        for other in found:
            if one != other:
                yield one + other * length
                yield (one + other) * (length // 2)
                for word in words:
                    yield (word + one) * (length // 4) + other * (length // 2)


def seconds(pattern: re.Pattern[Any], text: str, *, searches: bool) -> float:
    data: Any = text if isinstance(pattern.pattern, str) else text.encode()
    begin = time.process_time()
    if searches:
        for _ in pattern.finditer(data):
            pass
    else:
        pattern.match(data)
        pattern.fullmatch(data)
    return time.process_time() - begin


def is_slow(pattern: re.Pattern[Any], searches: bool) -> str | None:
    """The beginning of a text on which a pattern takes longer than its length warrants; None if there is none."""
    for number, text in enumerate(worst_texts(pattern, LENGTH)):
        if seconds(pattern, text, searches=searches) > MOST_SECONDS:
            short = min(seconds(pattern, text, searches=searches) for _ in range(2))
            longer = next(itertools.islice(worst_texts(pattern, LENGTH * LONGER), number, None))
            if short > MOST_SECONDS and seconds(pattern, longer, searches=searches) > short * MOST_RATIO:
                return text[:40]
    return None


def test_all_take_linear_time() -> None:
    found = {name: each for module in modules() for name, each in patterns(module).items()}
    assert len(found) > 100
    slow = {name: is_slow(pattern, searches) for name, (pattern, searches) in found.items()}
    assert not {name: text for name, text in slow.items() if text is not None}


@pytest.mark.family(3)
@pytest.mark.parametrize("pattern", [r"#[#:]*[ ]*x", r"\d+\.x", r"a.*b.*c"])
def test_slow_patterns_are_found(pattern: str) -> None:
    assert is_slow(re.compile(pattern), True) is not None


def test_patterns_of_a_program_take_linear_time_too() -> None:
    pattern = says_part("a" + ".*" * 30 + ".*b.*" * 30 + "z")
    assert pattern is not None
    assert seconds(pattern, "ab" * LENGTH, searches=False) < 1
    assert pattern.fullmatch("a" + "b" * 30 + "z") and not pattern.fullmatch("a" + "b" * 29 + "z")


@pytest.mark.parametrize(
    "line", ["*a" * 100 + "b", "*" * 300, "**/a/" * 50 + "b", "a/**/" * 50 + "b", "*a/" * 40 + "b*"]
)
def test_patterns_of_ignore_files_take_linear_time_too(line: str) -> None:
    spec = ignore_patterns([line], "x")
    begin = time.process_time()
    for path in ("a" * 250, "a/" * 120 + "x", "/".join(["a" * 24] * 40)):
        spec.match_file(path)
    assert time.process_time() - begin < 0.5


def test_patterns_of_ignore_files_mean_what_they_meant() -> None:
    chance = random.Random(0)
    for _ in range(400):
        line = "".join(chance.choice(["a", "b", "*", "*", "**", "/", "?", "[ab]", "."]) for _ in range(7))
        ours, plain = ignore_patterns([line], "x"), GitIgnoreSpec.from_lines([line])
        for _ in range(20):
            path = "/".join("".join(chance.choices("aab.", k=4)) for _ in range(chance.randint(1, 5)))
            assert ours.check_file(path).include == plain.check_file(path).include, (line, path)
