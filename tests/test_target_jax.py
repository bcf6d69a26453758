"""What is written for an older JAX: no name that this JAX does not have."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest
from fixture_files import source_files
from test_modernize import CASES, modernize, read_case
from test_old_names import program

from mmmodernize.command import parse_target
from mmmodernize.names.name_index import numbers, old_names
from mmmodernize.names.newer_index import newer_names
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmmodernize.settings import ModernizeSettings
from mmrewrite.project.facts import Facts, SourceFile, read_facts
from mmrewrite.project.uses import ModuleUses

TARGETS = ("0.4.30", "0.6.0", "0.8.0", "0.12")
# The names of JAX that came after the first release that `tools/index_names.py` reads, with the release in which each
# came for the last time ...
SINCE: Mapping[str, str] = {
    "mmruntime.compat": "0.10.0",
    **{
        name: next(release for release, change in reversed(row.changes) if change == "came")
        for name, row in newer_names().items()
        if row.package == "jax"
    },
}
# ... and names that modernize writes and that are older.
# fmt: off
OLDER = frozenset(
    f"jax.{name}"
    for name in (
        "Array", "checkpoint", "core.ShapedArray", "debug", "debug.callback", "debug.print",
        "effects_barrier", "experimental.io_callback", "experimental.layout.Layout.AUTO", "jit",
        "lax", "lax.with_sharding_constraint", "nn.standardize", "numpy.prod", "numpy.round",
        "numpy.trunc", "numpy.vstack", "numpy.zeros", "numpy.zeros_like", "process_count",
        "process_index", "remat", "sharding", "sharding.Mesh", "sharding.NamedSharding",
        "sharding.PartitionSpec", "sharding.Sharding", "tree.flatten", "tree.leaves", "tree.map",
        "tree.structure", "tree.unflatten", "tree_util.tree_leaves", "tree_util.tree_map",
    )
)
# fmt: on


def names_in(text: bytes) -> set[str]:
    facts = read_facts(SourceFile("a.py", text), ())
    if not isinstance(facts, Facts):
        return set()
    facts.names.synonyms = {}
    return set(ModuleUses(facts).names_below(("jax", "mmruntime.compat"))) | {
        item.name for item in ModuleUses(facts).imported if f"{item.name}.".startswith(("jax.", "mmruntime.compat."))
    }


@functools.cache
def written(target: str) -> dict[str, set[str]]:
    """The names that are in results and not in what was rewritten, and the fixtures of each."""
    found: dict[str, set[str]] = {}
    for folder in CASES:
        if "multimesh" in folder.parent.name:
            # Programs for MultiMesh need the runtime in any case.
            continue
        case = read_case(folder)
        settings = ModernizeSettings(selected=frozenset(case.select) or None, target=parse_target(target))
        for path, result in modernize(case.before, settings).items():
            if path.endswith(".py") and result.changed:
                for name in names_in(result.result) - names_in(case.before[path]):
                    found.setdefault(name, set()).add(f"{folder.parent.name}/{folder.name}")
    return found


def since(name: str) -> str | None:
    """The release since which a name is there, None if it is not known."""
    while name:
        if name in SINCE:
            return SINCE[name]
        if name in OLDER or name == "jax":
            return "0.4.30"
        name = name.rpartition(".")[0]
    return None


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_target_has_what_is_written(target: str) -> None:
    names = written(target)
    assert "jax.tree.map" in names
    unknown = {name: cases for name, cases in names.items() if since(name) is None}
    assert unknown == {}, "say since when JAX has these"
    too_new = {
        name: (since(name), cases)
        for name, cases in names.items()
        if numbers(since(name) or "") > (*numbers(target), 99)
    }
    assert too_new == {}


@pytest.mark.family
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_written_is_not_gone(target: str) -> None:
    assert {name for name in written(target) if name in old_names() and old_names()[name].is_gone} == set()


def test_the_names_that_are_older_are_not_among_the_newer() -> None:
    assert OLDER.isdisjoint(SINCE)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_no_name_of_the_index_gets_a_name_that_the_target_lacks(target: str) -> None:
    """Every name that a codemod of its own moves, one by one: what takes its place is there, or it is refused."""
    names = {name for codemod in ModernizeRegistry().values() for name in codemod.moved if name.startswith("jax.")}
    text, _ = program("attribute", sorted(names))
    settings = ModernizeSettings(target=parse_target(target))
    (result,) = modernize_project(source_files({"a.py": text.encode()}), ModernizeRegistry(), settings=settings)
    assert result.failure is None
    assert len(names) > 100
    written_here = names_in(result.result) - names_in(text.encode())
    assert "jax.tree.map" in written_here
    assert {name for name in written_here if numbers(SINCE.get(name, "0")) > (*numbers(target), 99)} == set()
