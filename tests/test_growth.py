"""What a file costs grows as the file does: the calls that the tool makes are counted, for files of three lengths.

Seconds would depend on the machine. What differs between two files is held against their difference in lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmmodernize.settings import ModernizeSettings
from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source
from mmrewrite.project.facts import SourceFile

pytestmark = pytest.mark.family(3)

# Lines of the small file, and by how much more the large one may cost than as many times the small one.
LINES, TIMES, MOST = 40, 4, 1.25
STEP = "import jax\n# mm: mesh(stage=2)\n@jax.jit  # mm: mjit\ndef step(x):\n{}    return x\n"


def each(text: str) -> Callable[[int], str]:
    return lambda lines: "import jax\n" + "".join(text.format(n) for n in range(lines))


OLD: dict[str, Callable[[int], str]] = {
    "lines": each("x = jax.tree_map(f, x)\n"),
    "names": each("x{} = jax.tree_map(f, x)\n"),
    "functions": each("def g{}(x):\n    return jax.tree_map(f, x)\n"),
    "classes": each("class A{}:\n    def g(self, x):\n        return jax.tree_map(f, x)\n"),
    "aliases": each("a{0} = jax.tree_map\ny = a{0}(f, x)\n"),
    "imports": lambda lines: (
        each("from jax import tree_map as a{0}\n")(lines) + "".join(f"y = a{n}(f, x)\n" for n in range(lines))
    ),
    "star": lambda lines: "from jax.numpy import *\n" + each("x = jax.tree_map(f, x)\n")(lines),
}
HINTED: dict[str, Callable[[int], str]] = {
    "one step": lambda lines: STEP.format("    x = f(x)  # mm: task(stage=0)\n" * lines),
    "one name each": lambda lines: STEP.format(
        "".join(f"    x = f{n}(x)  # mm: task(stage=0)\n" for n in range(lines))
    ),
    "mistakes": lambda lines: STEP.format("    x = f(x)  # mm: task(model=0)\n" * lines),
    "refusals": lambda lines: STEP.format("    x = 1  # mm: task(stage=0)\n" * lines),
    "one name": lambda lines: "import jax\nz = 1\n" + "z = f(z)  # mm: task(stage=0)\n" * lines,
    "no step": lambda lines: "import jax\n" + "z = f(1)  # mm: task(stage=0)\n" * lines,
    "steps": lambda lines: (
        "import jax\n# mm: mesh(stage=2)\n"
        + "".join(f"@jax.jit  # mm: mjit\ndef g{n}(x):\n    return f(x)  # mm: task(stage=0)\n" for n in range(lines))
    ),
}


def calls(run: Callable[[], object]) -> int:
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def grows_as_its_file(run: Callable[[int], object]) -> None:
    run(2)
    costs = [calls(lambda lines=lines: run(lines)) for lines in (LINES, 2 * LINES, 2 * TIMES * LINES)]  # type: ignore[misc]
    first, second = costs[1] - costs[0], costs[2] - costs[1]
    assert second / (2 * (TIMES - 1)) < MOST * first, costs


@pytest.mark.parametrize("name", OLD)
def test_old_names(name: str) -> None:
    def run(lines: int) -> None:
        files = [SourceFile("module.py", OLD[name](lines).encode(), "module")]
        (result,) = modernize_project(files, ModernizeRegistry(), settings=ModernizeSettings())
        assert result.changed and result.failure is None

    grows_as_its_file(run)


@pytest.mark.parametrize("name", HINTED)
def test_hints(name: str) -> None:
    def run(lines: int) -> None:
        result = rewrite_source(HINTED[name](lines), Registry())
        assert result.failure is None and (result.edits or result.refusals or result.errors)

    grows_as_its_file(run)
