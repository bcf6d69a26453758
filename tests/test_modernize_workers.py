"""`mmrewrite modernize` in several processes: the same results as in one, and a killed process is noticed."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from fixture_files import source_files, tree

from mmmodernize import decide
from mmmodernize.codemod import Codemods, ModernizeCodemod
from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmmodernize.settings import ModernizeSettings
from mmrewrite.engine import workers
from mmrewrite.project.facts import Facts, SourceFile, Unreadable, read_facts
from mmrewrite.results import Rewrite

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")

FIXTURES = Path(__file__).parents[1] / "fixtures" / "modernize"
REGISTRY = ModernizeRegistry()

REGION = {
    "step.py": b"from jax.experimental.pjit import pjit\nfrom jax.sharding import PartitionSpec as P\nimport jax\n\n"
    b"step = pjit(lambda x: x, in_axis_resources=P('x'), out_axis_resources=None)\n"
    b"tree = jax.tree_map(len, [])\n",
    "main.py": b"import jax\nimport numpy as np\nfrom jax.sharding import Mesh\nfrom step import step\n\n"
    b"with Mesh(np.array(jax.devices()), ('x',)) as mesh:\n    print(step(np.ones(8)), jax.tree_multimap(len, []))\n",
    "files.py": b"import jax\n\nwith open('a') as file:\n    print(jax.tree_leaves(file), 'jax.tree_map')\n",
    "plain.py": b"import jax\n\nprint(jax.tree_map(len, []), 'jax.xla')\n",
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Fork however little there is to do; the numbers of processes that were started together."""
    # Where other tests have imported JAX, nothing would be forked.
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.setattr(workers, "ENOUGH", 0)
    found: list[int] = []
    start = workers.Workers.__enter__

    def counted(self: workers.Workers[object, object]) -> workers.Workers[object, object]:
        found.append(self._count)
        return start(self)

    monkeypatch.setattr(workers.Workers, "__enter__", counted)
    with warnings.catch_warnings():
        # JAX, which other tests import, warns about every fork.
        warnings.simplefilter("ignore")
        yield found


def modernized(files: Mapping[str, bytes], jobs: int, codemods: Codemods = REGISTRY) -> tuple[Rewrite, ...]:
    load = {f"./{path}": data for path, data in files.items()}
    settings = replace(ModernizeSettings(), jobs=jobs)
    return modernize_project(source_files(dict(files)), codemods, load=load.get, settings=settings)


def fixtures_in_one() -> dict[str, bytes]:
    """All fixtures of one file as one project, but for those with an `xmap`, whose call chain may be all of it."""
    paths = (path for path in sorted(FIXTURES.glob("*/*/before.py")) if b"xmap" not in path.read_bytes())
    return {f"{path.parent.parent.name}_{path.parent.name}.py": path.read_bytes() for path in paths}


@pytest.mark.family(4)
@pytest.mark.parametrize("jobs", [2, 4])
@pytest.mark.parametrize("files", [REGION, fixtures_in_one()], ids=["region", "fixtures"])
def test_results_are_those_of_one_process(started: list[int], files: dict[str, bytes], jobs: int) -> None:
    alone = modernized(files, 1)
    assert started == []
    assert modernized(files, jobs) == alone
    # This process is one of those that work.
    assert started[0] == jobs - 1
    assert any(result.changed for result in alone)


@pytest.mark.parametrize("folder", sorted(FIXTURES.glob("*/*/before")), ids=lambda path: path.parent.name)
def test_projects_of_the_fixtures(started: list[int], folder: Path) -> None:
    files = tree(folder)
    assert modernized(files, 2) == modernized(files, 1)


class Crash(ModernizeCodemod):
    names = ("jax.old",)

    def rewrite(self) -> None:
        if self.site.location.path == "bad.py":
            raise KeyError("odd")
        self.site.replace(self.use.node, self.site.spell("jax.new"))


class CrashInRegion(Crash):
    regional = True


@pytest.mark.parametrize("codemod", [Crash, CrashInRegion])
def test_a_crash_costs_one_file(started: list[int], codemod: type[ModernizeCodemod]) -> None:
    old = b"import jax\n\nx = jax.old(1)\n"
    files = {"bad.py": old, "good.py": old, "other.py": old}
    bad, good, other = modernized(files, 2, {"a_codemod": codemod})
    assert started
    assert (bad, good, other) == modernized(files, 1, {"a_codemod": codemod})
    assert (bad.failure or "").startswith("this is a bug in mmrewrite (KeyError: 'odd', at test_modernize_workers.py:")
    assert (good.changed, other.changed) == (True, True)


def test_a_result_is_read_again_once(started: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[SourceFile] = []

    def counted(file: SourceFile) -> Facts | Unreadable:
        read.append(file)
        return read_facts(file, ())

    monkeypatch.setattr(decide, "read_as_written", counted)
    changed = [result for result in modernized(REGION, 2) if result.changed]
    assert started
    assert len(changed) == 4
    assert [sum(file.data == result.result for file in read) for result in changed] == [1] * 4


def test_a_process_helps_with_the_last_items_while_it_waits(started: list[int]) -> None:
    def work(item: int) -> tuple[int, int]:
        time.sleep(0 if item else 1)
        return item, os.getpid()

    with workers.Workers(work, range(40), 1) as others:
        found = list(others.results_with_help())
    assert [item for item, _ in found] == list(range(40))
    helped = [item for item, process in found if process == os.getpid()]
    assert helped
    assert helped == list(range(helped[0], 40))


def test_a_process_does_not_begin_for_a_few_items(started: list[int]) -> None:
    def work(item: int) -> int:
        time.sleep(1 if item == 13 else 0)
        return os.getpid()

    with workers.Workers(work, range(16), 1) as others:
        others._futures[12].result()
        assert os.getpid() not in others.results_with_help()


def test_a_killed_process_is_noticed(started: list[int]) -> None:
    here = os.getpid()

    class Kill(Crash):
        def rewrite(self) -> None:
            if os.getpid() != here:
                os.kill(os.getpid(), signal.SIGKILL)
            super().rewrite()

    old = b"import jax\n\nx = jax.old(1)\n"
    files = {f"m{number}.py": old for number in range(8)}
    with pytest.raises(workers.WorkerDied, match="a worker process was killed"):
        for _ in range(20):
            # This process may be done before the other has begun.
            modernized(files, 2, {"a_codemod": Kill})
    assert started
