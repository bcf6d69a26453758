"""Every fixture of `mmrewrite modernize`: exact text and messages, stable, and, where it can run, the old results."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixture_files import run, source_files, tree

from mmmodernize.codemod import ModernizeCodemod
from mmmodernize.command import parse_target
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmmodernize.settings import ModernizeSettings
from mmmodernize.sites.site import Location, ModernizeContext
from mmrewrite.project.uses import ModuleUses
from mmrewrite.results import LeftAlone, Rewrite
from mmrewrite.source.text import SourceText

pytestmark = pytest.mark.quick

FIXTURES = Path(__file__).parents[1] / "fixtures" / "modernize"
CASES = sorted(path.parent for path in FIXTURES.glob("*/*/before*"))
REGISTRY = ModernizeRegistry()

# Folders that are not named after a codemod.
GENERAL = {"formats", "notebooks"}


@dataclass(frozen=True)
class Case:
    before: dict[str, bytes]
    after: dict[str, bytes]
    refusals: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    target: str | None = None
    out: str | None = None
    jax: str = "old"

    @property
    def is_single(self) -> bool:
        return len(self.before) == 1

    @functools.cached_property
    def results(self) -> dict[str, Rewrite]:
        """What becomes of the modules, made once for all tests of the case."""
        return modernize(self.before, self.settings)

    @property
    def settings(self) -> ModernizeSettings:
        return ModernizeSettings(selected=frozenset(self.select) or None, target=parse_target(self.target))


@functools.cache
def read_case(folder: Path) -> Case:
    path = folder / "case.toml"
    found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    if (folder / "before").is_dir():
        before = tree(folder / "before")
        return Case(before, {**before, **tree(folder / "after")}, **fields)
    (source,) = folder.glob("before.*")
    before = {source.name: source.read_bytes()}
    after = folder / f"after{source.suffix}"
    return Case(before, {source.name: after.read_bytes()} if after.exists() else before, **fields)


def modernize(files: dict[str, bytes], settings: ModernizeSettings) -> dict[str, Rewrite]:
    load = {f"./{path}": data for path, data in files.items()}
    results = modernize_project(source_files(files), REGISTRY, load=load.get, settings=settings)
    return {result.path: result for result in results}


def shown(case: Case, results: dict[str, Rewrite], kind: str, message: str) -> list[str]:
    return [
        f"{'' if case.is_single else item.path + ':'}{item.line}:{item.column}: {getattr(item, message)}"
        for result in results.values()
        for item in getattr(result, kind)
    ]


@pytest.fixture(
    params=[
        # Of several files, each is as the others have left it.
        pytest.param(
            folder,
            id=f"{folder.parent.name}/{folder.name}",
            marks=[pytest.mark.sample] if (folder / "before").is_dir() else [],
        )
        for folder in CASES
    ]
)
def case(request: pytest.FixtureRequest) -> Case:
    return read_case(request.param)


def test_there_are_fixtures_of_every_codemod() -> None:
    folders = {folder.parent.name for folder in CASES}
    assert folders - GENERAL == set(REGISTRY)


def test_text_and_messages(case: Case) -> None:
    results = case.results
    for path, result in results.items():
        assert result.failure is None
        assert result.result.decode("latin-1") == case.after[path].decode("latin-1")
    assert shown(case, results, "refusals", "reason") == list(case.refusals)
    assert shown(case, results, "left", "reason") == list(case.left)


def test_every_result_keeps_what_is_promised(case: Case) -> None:
    for path, result in case.results.items():
        before, after = case.before[path], case.after[path]
        _gives_reasons_for_compat(result, before, after)
        _keeps_the_rest(result, SourceText.decode(before).text, SourceText.decode(after).text)
        for edit in result.edits:
            assert edit.hints
            assert edit.codemods
            assert set(edit.codemods) <= set(REGISTRY)
        if path.endswith(".py"):
            ast.parse(SourceText.decode(after).text)


def _gives_reasons_for_compat(result: Rewrite, before: bytes, after: bytes) -> None:
    old, new = (set(re.findall(rb"\bcompat\.(\w+)", text)) for text in (before, after))
    assert {use.function.encode() for use in result.compat} >= new - old
    assert {use.function.encode() for use in result.compat} <= new or b"mm_compat" in after
    for use in result.compat:
        assert use.text and use.reason and use.reason != "None", use


def _keeps_the_rest(result: Rewrite, old: str, new: str) -> None:
    position = shift = 0
    for edit in result.edits:
        assert old[position : edit.start] == new[position + shift : edit.start + shift]
        position = edit.end
        shift += len(edit.text) - (edit.end - edit.start)
    assert old[position:] == new[position + shift :]


@pytest.mark.family
def test_second_run_changes_nothing(case: Case) -> None:
    """From the text alone. The run itself looks for that as well, and would have told of a failure."""
    assert [path for path, result in modernize(case.after, case.settings).items() if result.changed] == []


@pytest.mark.family
@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_line_endings_change_nothing_else(case: Case, ending: str) -> None:
    """Not even a carriage return alone, which Python reads as the end of a line wherever it stands."""
    if not all(path.endswith(".py") for path in case.before) or any(b"\r" in data for data in case.before.values()):
        pytest.skip("notebooks, and files with such endings")
    before = {path: data.replace(b"\n", ending.encode()) for path, data in case.before.items()}
    results = modernize(before, case.settings)
    assert {path: result.result.replace(ending.encode(), b"\n") for path, result in results.items()} == case.after
    assert [item.replace(ending, "\n") for item in shown(case, results, "refusals", "reason")] == list(case.refusals)
    assert shown(case, results, "left", "reason") == list(case.left)


AFTER_A_BACKSLASH = """\
from jax.experimental.maps import Mesh; import\\
  jax\\
   # why

x = jax.tree_map(f, y)
"""
INNER_MESH = """\
import jax
from jax.sharding import Mesh, PartitionSpec as P

def constrain(x):
    return jax.lax.with_sharding_constraint(x + 1, P("d"))

def run(x):
    with open(x) as (a, b), y:
        with Mesh(jax.devices(), ("d",)):
            return constrain(x)
"""
POSSIBLE_MESH = """\
import jax
from jax.experimental.pjit import pjit, with_sharding_constraint
from jax.sharding import Mesh, PartitionSpec as P

def constrain(x):
    with x:
        return with_sharding_constraint(x + 1, P("z"))

f = pjit(constrain, in_axis_resources=None)
with Mesh(jax.devices(), ("x",)):
    y = f(jax.numpy.arange(8.0))
"""
CONTINUED = """\
import jax
def f(x, rows, y):
    x = jax.ops \\
  .index_min(x=x + 1, idx=# why
(rows, 1), y=y)
    return jax.ops.index_update(x, rows, y)
"""


TWICE = """\
import jax_plugins.legate
from jax_plugins import multimesh
import jax_plugins.legate

multimesh.init(cpus=8)
jax_plugins.legate.init()
"""
IN_A_BLOCK = """\
import jax
import numpy as np
from jax.experimental import pjit
from jax.sharding import Mesh, PartitionSpec

with Mesh(np.array(jax.devices()), ("d",)) as mesh:
    z = (
        # why
        pjit
    ).pjit(fun=lambda x: x + 1, in_shardings=(PartitionSpec("d"),), out_shardings=PartitionSpec("d"))(np.arange(8.0))
"""
BEHIND_A_CALL = """\
y = f(
   1.5); from jax.numpy import fix
print(fix(2.5))
"""
FOUND = {
    "backslash": AFTER_A_BACKSLASH,
    "inner mesh": INNER_MESH,
    "possible mesh": POSSIBLE_MESH,
    "continued": CONTINUED,
    "twice": TWICE,
    "in a block": IN_A_BLOCK,
    "behind a call": BEHIND_A_CALL,
}


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("source", FOUND.values(), ids=FOUND)
def test_found_by_generated_programs(source: str, ending: str) -> None:
    (result,) = modernize({"a.py": source.replace("\n", ending).encode()}, ModernizeSettings()).values()
    assert result.failure is None


class BreakSyntax(ModernizeCodemod):
    names = ("jax.old",)

    def rewrite(self) -> None:
        self.site.replace(self.use.node, "no Python")


class NeverDone(ModernizeCodemod):
    names = ("jax.old",)

    def rewrite(self) -> None:
        self.site.wrap(self.use.node, "(", ")")


class WithoutMeaning(ModernizeCodemod):
    """An edit that does not say what it means, as one that goes to another place than it should."""

    names = ("jax.old",)

    def rewrite(self) -> None:
        self.site.edit(*self.site.span(self.use.node), "jax.new")


class WithoutText(ModernizeCodemod):
    """An edit of another place than that which is meant."""

    names = ("jax.old",)

    def rewrite(self) -> None:
        assert self.site.call is not None
        self.site.replace(self.use.node, "jax.new")
        self.site.meant.append_argument(self.site.call, "check=False")


class Overlap(ModernizeCodemod):
    names = ("jax.old",)

    def rewrite(self) -> None:
        start, end = self.site.span(self.use.node)
        self.site.edit(start, end, "jax.new")
        self.site.edit(start + 1, end, "ax.new")


@pytest.mark.parametrize(
    ("codemod", "problem"),
    [
        (BreakSyntax, "the result does not parse: "),
        (WithoutMeaning, "the edit at line 3 says something else than it means"),
        (WithoutText, "the edit at line 3 says something else than it means"),
        (NeverDone, "a second run would change the file again"),
        (Overlap, "AssertionError: edits overlap at line 3, at edits.py:"),
    ],
)
def test_a_result_that_breaks_a_promise_is_our_bug(codemod: type[ModernizeCodemod], problem: str) -> None:
    files = {"bad.py": b"import jax\n\nx = jax.old(1)\n", "good.py": b"import jax\n\nx = 1  # no jax.old\n"}
    bad, good = modernize_project(source_files(files), {"a_codemod": codemod})
    assert not bad.changed
    assert (bad.failure or "").startswith(f"this is a bug in mmrewrite ({problem}")
    assert good.failure is None


class CrashInRewrite(ModernizeCodemod):
    names = ("jax.old",)

    def rewrite(self) -> None:
        if self.site.location.path == "bad.py":
            raise KeyError("odd")
        self.site.replace(self.use.node, self.site.spell("jax.new"))


class CrashInFind(CrashInRewrite):
    @classmethod
    def find(cls, module: ModuleUses, context: ModernizeContext) -> Iterator[Location]:
        yield from super().find(module, context)
        if module.facts.path == "bad.py":
            raise KeyError("odd")


class CrashInDraft(CrashInRewrite):
    def rewrite(self) -> None:
        if self.site.location.path == "bad.py":
            self.site.edit(-1, 5, "")
        super().rewrite()


@pytest.mark.parametrize("codemod", [CrashInRewrite, CrashInFind, CrashInDraft])
def test_a_crash_costs_one_file(codemod: type[ModernizeCodemod]) -> None:
    old = b"import jax\n\nx = jax.old(1)\n"
    files = {"bad.py": old, "good.py": old, "other.py": b"from bad import x\n\ny = x  # jax.old\n"}
    bad, good, other = modernize_project(source_files(files), {"a_codemod": codemod})
    assert not bad.changed
    assert (bad.failure or "").startswith("this is a bug in mmrewrite (KeyError: 'odd', at test_modernize.py:")
    assert good.result == old.replace(b"old", b"new")
    assert (good.failure, other.failure) == (None, None)


def test_a_crash_in_a_report_costs_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(module: ModuleUses, context: ModernizeContext) -> Iterator[LeftAlone]:
        if module.facts.path == "bad.py":
            raise KeyError("odd")
        yield from ()

    monkeypatch.setattr("mmmodernize.decide.mentions", crash)
    old = b"import jax\n\nx = jax.tree_map(abs, 1)\n"
    bad, good = modernize_project(source_files({"bad.py": old, "good.py": old}), ModernizeRegistry())
    assert (bad.failure or "").startswith("this is a bug in mmrewrite (KeyError: 'odd', at test_modernize.py:")
    assert (good.failure, good.changed) == (None, True)


@pytest.mark.parametrize("shared", ["shape", "SIZES"])
def test_modules_may_import_a_name_from_each_other(shared: str) -> None:
    files = {
        "one.py": f"from two import {shared}\n",
        "two.py": f"from one import {shared}\n",
        "main.py": (
            f"import jax\nimport one\nfrom two import {shared}\n"
            f"def enter(f):\n    with f:\n        print({shared}, one.{shared})\n"
            "enter(open('a'))\nenter(lambda: jax.tree_map(len, []))\n"
            "from jax.experimental.pjit import pjit\npjit(print, in_axis_resources=None)\n"
        ),
    }
    results = modernize({path: text.encode() for path, text in files.items()}, ModernizeSettings())
    assert not any(result.failure for result in results.values())
    assert b"jax.tree.map(len, [])" in results["main.py"].result


def test_an_analysis_that_fails_for_every_file_ends() -> None:
    class Always(CrashInRewrite):
        def rewrite(self) -> None:
            raise RecursionError

    files = {f"m{index:02}.py": b"import jax\n\nx = jax.old(1)\n" for index in range(40)}
    results = modernize_project(source_files(files), {"a_codemod": Always})
    (failure,) = {result.failure for result in results}
    assert (failure or "").startswith("this is a bug in mmrewrite (RecursionError")


def test_what_depends_on_a_file_with_a_crash_does_not_count_on_it() -> None:
    """Its mesh context stays as it is, and another file's function must not count on a change."""
    codemods = dict(REGISTRY)

    class Crash(codemods["replace_mesh_context"]):  # type: ignore[misc]
        def rewrite(self) -> None:
            if self.site.location.path == "main.py":
                raise KeyError("odd")
            super().rewrite()

    files = {
        "step.py": b"from jax.experimental.pjit import pjit\nfrom jax.sharding import PartitionSpec as P\n\n"
        b"step = pjit(lambda x: x, in_axis_resources=P('x'), out_axis_resources=None)\n",
        "main.py": b"import jax\nimport numpy as np\nfrom jax.sharding import Mesh\nfrom step import step\n\n"
        b"with Mesh(np.array(jax.devices()), ('x',)) as mesh:\n    print(step(np.ones(8)))\n",
        "apart.py": b"from jax.experimental import PartitionSpec as P\n\nspec = P('x')\n",
    }
    load = {f"./{path}": data for path, data in files.items()} | files
    step, main, apart = modernize_project(
        source_files(files), codemods | {"replace_mesh_context": Crash}, load=load.get
    )
    assert main.failure is not None
    assert main.result == files["main.py"]
    # Exact in any context.
    assert b"\nstep = compat.pjit(" in step.result
    assert apart.changed


RUNNABLE = [folder for folder in CASES if read_case(folder).out is not None]


@pytest.mark.parametrize("folder", RUNNABLE, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_out_is_that_of_the_old_jax(folder: Path) -> None:
    """`out` of what was written, where warnings are errors, is what the old program made on the old JAX."""
    jax = pytest.importorskip("jax")
    case = read_case(folder)
    if jax.device_count() < 8:
        pytest.skip("needs eight devices")
    assert repr(run(case.after["before.py"], jax)) == case.out
