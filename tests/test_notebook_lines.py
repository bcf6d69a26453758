"""Lines of notebooks that are not Python alone: an old name in them is replaced or told, and what they use stays."""

from __future__ import annotations

import json

import pytest
from fixture_files import source_files

from mmmodernize.registry import ModernizeRegistry
from mmmodernize.rewrite import modernize_project
from mmrewrite.engine.notebook import masked
from mmrewrite.results import Rewrite

REGISTRY = ModernizeRegistry()
USE = "jax.tree_map(abs, 1)"
# Forms of a line, or of lines, that run Python; the use is replaced there.
RUN = (
    "%time {}",
    "%time y = {}",
    "%timeit -n 10 -r3 {}",
    "if 1:\n  %timeit {}",
    "r = %timeit -o {}",
    "%prun {}",
    "%%time\n{}",
    "%%timeit {}\npass",
    "%%timeit -n 3\n{}",
    "%%capture out\n{}",
    "!ls\n{}",
    "files = !ls\n{}",
    "%matplotlib inline\n{};",
    "x = ('%s'\n     % {})",
    "assert (1\n  != {})",
    "x = 7 \\\n  % {}",
    "%time 1\nx = (7\n  % {})",
    "s = '''\n%time\n''' + str({})",
)
# And of others, in which it is told.
TOLD = (
    "!echo {{{}}}",
    "!python -c 'import jax; {}'",
    "files = !echo {{{}}}",
    "%lprun -f jax.tree_map f(1)",
    "%prun -s cumulative {}",
    "%time x = {} + \\\n  1",
    "jax.tree_map?",
    "?jax.tree_map",
    "jax.tree_map??",
    ",jax.tree_map abs x",
    "/jax.tree_map abs 1",
    "%%bash\npython -c 'import jax; {}'",
    "%%writefile new.py\nimport jax\n{}",
    "%%writefile new.py\nfrom jax import tree_map\ntree_map(abs, 1)",
    "%%px\nimport jax as j\nj.tree_map(abs, 1)",
    "%%script python\nfrom jax import tree_map as t\nt(abs, 1)",
    "print 'Python 2', {}",
    "def f(:\n    {}",
)


def notebook(*cells: str) -> str:
    code = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    found = [{**code, "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": found, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def modernized(*cells: str) -> Rewrite:
    (result,) = modernize_project(source_files({"a.ipynb": notebook(*cells).encode()}), REGISTRY)
    assert result.failure is None
    return result


def sources(result: Rewrite) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(result.result)["cells"]]


@pytest.mark.parametrize("form", RUN)
def test_python_that_a_magic_runs_is_rewritten(form: str) -> None:
    text = form.format(USE)
    assert len(masked(text)) == len(text)
    assert sources(modernized("import jax", text)) == ["import jax", text.replace("tree_map", "tree.map")]


@pytest.mark.parametrize("form", TOLD)
def test_what_is_not_read_as_python_is_told(form: str) -> None:
    text = form.format(USE)
    result = modernized("import jax", text)
    assert not result.changed
    lines = {number for number, line in enumerate(text.split("\n"), 1) if "tree_map" in line or "t(abs" in line}
    assert {item.line for item in result.left} >= lines
    assert all(item.path == "a.ipynb, cell 2" for item in result.left)


@pytest.mark.parametrize("other", ["core", "shaped"])
@pytest.mark.parametrize("form", TOLD)
def test_an_import_that_such_a_line_uses_stays(form: str, other: str) -> None:
    imports = "from jax import core" + (" as shaped" if other == "shaped" else "")
    used = f"{other}.ShapedArray((), int)"
    text = form.replace("jax.tree_map", used).replace("tree_map", used).format(used)
    result = modernized(imports, f"{other}.get_aval(1)", text)
    assert any(imports in cell for cell in sources(result))
    assert any("jax.typeof(1)" in cell for cell in sources(result))


def test_comments_and_text_are_no_such_lines() -> None:
    result = modernized("import jax", f"# {USE}\n%time 1\nx = 'a'  # {USE}", f"%%html\n<b>tree_map</b>{'x' * 9}")
    assert (result.changed, result.left) == (False, ())
