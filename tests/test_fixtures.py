"""Every fixture: exact text, exact messages, stable, parses, and, where it can run, the same numbers."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from accounting import without_outcome
from fixture_files import FIXTURES, hint_cases, run, source_files, tree
from hint_calls_of import with_calls

from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.vocabulary import CALL, DIRECTIVES
from mmrewrite.engine.rewrite import rewrite_project
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceText

pytestmark = pytest.mark.quick

CASES = sorted([*hint_cases("before"), *hint_cases("before.py")])
NAMES = hint_cases("before_names.py")
REGISTRY = Registry()
HINT = re.compile(r"(?<!`)# mm: [^\r\n]*")
LIBRARY = re.compile(r"^(?:import|from) (equinox|flax|haiku|jaxtyping)\b", re.MULTILINE)
PLACE = re.compile(r"^\d+:\d+: |\b(lines? |\w+\.py:|\(line )\d+(?::\d+)?")


@dataclass(frozen=True)
class Case:
    """A fixture. With `calls = false` in its case.toml, its hints have no form as calls that means the same."""

    before: dict[str, bytes]
    after: dict[str, bytes]
    refusals: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    numbers: bool = True
    calls: bool = True
    raises: list[str] = field(default_factory=list)

    @property
    def is_single(self) -> bool:
        return list(self.before) == ["before.py"]

    @functools.cached_property
    def results(self) -> dict[str, Rewrite]:
        """What becomes of the modules, made once for all tests of the case."""
        return rewrite(self.before)


@functools.cache
def read_case(folder: Path) -> Case:
    settings = folder / "case.toml"
    told: dict[str, Any] = tomllib.loads(settings.read_text()) if settings.exists() else {}
    if (folder / "before").is_dir():
        before = tree(folder / "before")
        return Case(before, {**before, **tree(folder / "after")}, **told)
    before = {"before.py": (folder / "before.py").read_bytes()}
    after = folder / "after.py"
    return Case(before, {"before.py": after.read_bytes()} if after.exists() else before, **told)


def name_of(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def has_calls(folder: Path) -> bool:
    """Whether the program is tested with calls in the place of its comments as well."""
    is_about_hints = folder.parent.name == "formats" or folder.parents[1].name == "hints"
    return is_about_hints and read_case(folder).calls and b"# mm: " in (folder / "before.py").read_bytes()


def called(folder: Path) -> bytes:
    """The program with calls of `mmrewrite.hints` for comments: generated, or written by hand where that is odd."""
    by_hand = folder / "before_hints.py"
    return by_hand.read_bytes() if by_hand.exists() else with_calls((folder / "before.py").read_bytes())


CALLS = [folder for folder in hint_cases("before.py") if has_calls(folder)]


def rewrite(files: dict[str, bytes]) -> dict[str, Rewrite]:
    load = {f"./{path}": data for path, data in files.items()}
    return {result.path: result for result in rewrite_project(source_files(files), REGISTRY, load=load.get)}


def shown(case: Case, results: dict[str, Rewrite], kind: str) -> list[str]:
    lines = []
    for result in results.values():
        for item in getattr(result, kind):
            message = {"refusals": "reason", "errors": "message", "left": "reason"}[kind]
            where = "" if case.is_single else f"{item.path}:"
            lines.append(f"{where}{item.line}:{item.column}: {getattr(item, message)}")
    return lines


# Of several files, each is as the others have left it.
SEVERAL = {folder for folder in CASES if (folder / "before").is_dir()}


@pytest.fixture(
    params=[
        pytest.param(folder, id=name_of(folder), marks=[pytest.mark.sample] if folder in SEVERAL else [])
        for folder in CASES
    ]
)
def case(request: pytest.FixtureRequest) -> Case:
    return read_case(request.param)


def test_there_are_fixtures_of_every_codemod() -> None:
    assert {folder.parent.name for folder in CASES if folder.parents[1] == FIXTURES / "hints"} == set(REGISTRY)


def test_text_and_messages(case: Case) -> None:
    results = case.results
    for path, result in results.items():
        assert result.failure is None
        assert result.result.decode("latin-1") == case.after[path].decode("latin-1")
    for kind in ("refusals", "errors", "left"):
        assert shown(case, results, kind) == getattr(case, kind)


@pytest.mark.parametrize("folder", CALLS, ids=name_of)
def test_calls_give_what_comments_give(folder: Path) -> None:
    """The same program with calls of `mmrewrite.hints` becomes the same program, for the same reasons."""
    case = read_case(folder)
    before = called(folder)
    assert not HINT.search(before.decode("latin-1"))
    after = before if case.after == case.before else case.after["before.py"]
    (result,) = rewrite({"before.py": before}).values()
    assert result.result.decode("latin-1") == after.decode("latin-1")
    assert result.failure is None
    for found, told in ((reasons(result), case.refusals), (messages(result), case.errors)):
        assert sorted(PLACE.sub("", line) for line in found) == sorted(PLACE.sub("", line) for line in told)


@pytest.mark.parametrize("folder", NAMES, ids=name_of)
def test_names_give_what_comments_give(folder: Path) -> None:
    """The same program with logical names in the place of `shard` hints becomes the same program."""
    case = read_case(folder)
    before = (folder / "before_names.py").read_bytes()
    assert not re.search(rb"(# mm: |hints\.)shard\((?!from_annotations)", before)
    (result,) = rewrite({"before.py": before}).values()
    assert (result.failure, result.errors, reasons(result)) == (None, (), case.refusals)
    assert result.result.decode("latin-1") == case.after["before.py"].decode("latin-1")


def reasons(result: Rewrite) -> list[str]:
    return [refusal.reason for refusal in result.refusals]


def messages(result: Rewrite) -> list[str]:
    return [error.message for error in result.errors]


def test_every_directive_and_codemod_has_fixtures_with_calls() -> None:
    words = {word for folder in CALLS for word in re.findall(r"\bhints\.(\w+)", called(folder).decode("latin-1"))}
    assert set(DIRECTIVES) <= words
    of_comments = {name for name, codemod in REGISTRY.items() if set(codemod.kinds) != {CALL}}
    assert of_comments <= {folder.parent.name for folder in CALLS}


def test_every_result_keeps_what_is_promised(case: Case) -> None:
    for path, result in case.results.items():
        assert without_outcome(result) == []
        _keeps_the_rest(result, SourceText.decode(case.before[path]).text, SourceText.decode(result.result).text)
        for edit in result.edits:
            assert edit.hints
            assert set(edit.codemods) <= set(REGISTRY)
            assert edit.codemods
    for data in case.after.values():
        ast.parse(SourceText.decode(data).text)


def _keeps_the_rest(result: Rewrite, old: str, new: str) -> None:
    position = 0
    for start, end in _gaps(result, len(old)):
        part = old[start:end]
        assert new.startswith(part, new.index(part, position))
        position = new.index(part, position) + len(part)


def _gaps(result: Rewrite, length: int) -> Iterator[tuple[int, int]]:
    position = 0
    for edit in result.edits:
        yield position, edit.start
        position = edit.end
    yield position, length


@pytest.mark.family
def test_second_run_changes_nothing(case: Case) -> None:
    """From the text alone. The run itself looks for that as well, and would have told of a failure."""
    results = rewrite(case.after)
    assert [result.path for result in results.values() if result.changed] == []


def test_without_its_hints_a_program_is_the_same_program(case: Case) -> None:
    if case.errors:
        pytest.skip("a hint that cannot be read")
    for path, data in case.before.items():
        if b"import hints" in data or b"mmrewrite.hints" in data:
            pytest.skip("hints that are calls")
        text = SourceText.decode(data).text
        plain = HINT.sub("", text) if "marker" not in path else text
        if '"""' not in text and "'''" not in text and not re.search(r'"[^"\n]*# mm:', text):
            assert ast.dump(ast.parse(plain)) == ast.dump(ast.parse(text))
            assert not any(result.changed for result in rewrite({path: plain.encode()}).values())


RUNNABLE = [folder for folder in CASES if (folder / "after.py").exists()]


def marks_of(folder: Path) -> list[pytest.MarkDecorator]:
    """What cuts a step into tasks runs as users compile, and the only program of a codemod by default."""
    same = [other for other in RUNNABLE if other.parent == folder.parent and read_case(other).numbers]
    return [
        *([pytest.mark.optimized] if folder.parent.name == "place_task" else []),
        *([pytest.mark.sample] if same == [folder] else []),
    ]


NUMBERS = [pytest.param(folder, marks=marks_of(folder)) for folder in RUNNABLE]


@pytest.mark.family
@pytest.mark.parametrize("folder", NUMBERS, ids=name_of)
def test_numbers_are_equal(folder: Path) -> None:
    """Both versions end in `out = ...`, and their results are equal, also where hints are calls without effect.

    Where `case.toml` says what the rewritten program raises, `out` are functions: each runs as written, and raises
    the message of its position when it is rewritten.
    """
    jax, np = pytest.importorskip("jax"), pytest.importorskip("numpy")
    case = read_case(folder)
    if not case.numbers:
        pytest.skip("case.toml says that this one cannot run")
    if importlib.util.find_spec("mmruntime") is None or not hasattr(importlib.import_module("mmruntime"), "mjit"):
        pytest.skip("the runtime is not there")
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")
    for library in set(LIBRARY.findall(case.before["before.py"].decode("latin-1"))):
        pytest.importorskip(library)
    before = run(called(folder) if folder in CALLS else case.before["before.py"], jax)
    after = run(case.after["before.py"], jax)
    if case.raises:
        assert all(np.isfinite(leaf).all() for function in before for leaf in jax.tree.leaves(function()))
        assert [message_of(function) for function in after] == case.raises
        return
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)


def message_of(function: Callable[[], object]) -> str:
    """What a function raises because results would not be those of the whole batch."""
    with pytest.raises(ValueError) as raised:
        function()
    return str(raised.value)
