"""Whatever others wrote becomes a value or one sentence: valid files with everything changed that can be changed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from command import HINTED, OLD, PIPELINE, put, run

from mmrewrite.files import cache_folder
from mmrewrite.files.walk import MANIFEST

pytestmark = pytest.mark.usefixtures("folder")

CELL = {"cell_type": "code", "source": ["import jax\n", OLD], "outputs": [], "metadata": {}, "execution_count": 1}
NOTEBOOK = {
    "cells": [CELL, CELL | {"source": f"%time x = 1\n{PIPELINE}"}, CELL | {"cell_type": "markdown"}],
    "metadata": {"kernelspec": {"name": "python3", "language": "python"}, "language_info": {"name": "python"}},
    "nbformat": 4,
    "nbformat_minor": 4,
}
CONFIGURATION = """\
[tool.mmrewrite]
include = ["good.py", "a.py"]
exclude = ["build/**"]
select = []
ignore = ["place_task"]
target-jax = "0.10"
jaxtyping = false
[tool.mmrewrite.axes]
batch = "data"
[tool.mmrewrite.per-file-ignores]
"tests/**" = ["all"]
[tool.ruff]
line-length = 100
"""
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**30, "", "x", "\0", "\ud800", "\N{GRINNING FACE}", "a\rb\x0cc\u2028d\n"),
    *([], {}, [None], [[]], {"": None}, [0, "x"], "x = (" * 300, "%" * 50 + "\n", "%%time\n", "\\\n", "?", "'''"),
)


def changed_values(document: Any) -> Iterator[Any]:
    """A document with each of its values in turn replaced, left out, or twice there."""

    def places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        yield path
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, each in items:
            yield from places(each, (*path, key))

    for path in places(document, ()):
        for new in VALUES:
            if not path:
                yield new
                continue
            changed = copy.deepcopy(document)
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = new
            yield changed
        if path:
            changed = copy.deepcopy(document)
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            del holder[path[-1]]
            yield changed


def changed_bytes(data: bytes, chance: random.Random, count: int) -> Iterator[bytes]:
    """A text with bytes changed, left out, put in, cut off and repeated."""
    pieces = [
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n",
        b"\x0c",
        b"\xe2\x80\xa8",
        b"'''",
        b"(",
        b"\\",
    ]
    pieces += [
        b"# mm: ",
        b"# -*- coding: ",
        b"latin-1",
        b"utf-16",
        b"[[",
        b"]]",
        b"{{",
        b'"',
        b"#",
        b"\xe9",
        b"=",
        b"*",
    ]
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 5))):
            start = chance.randrange(len(changed) + 1)
            end = min(len(changed), start + chance.choice((0, 0, 1, 3, 40)))
            changed[start:end] = chance.choice(pieces) * chance.choice((1, 1, 1, 3, 300))
        yield bytes(changed)
    for coding in (
        b"latin-1",
        b"utf-16",
        b"hex",
        b"idna",
        b"punycode",
        b"unicode_escape",
        b"undefined",
        b"utf-7",
        b"\xff",
    ):
        yield b"# coding: " + coding + b"\n" + data
    yield from (
        b"",
        b"\n",
        data.decode(errors="replace").encode("utf-16"),
        b"\xef\xbb\xbf" + data,
        data + data[:17],
        b"[" * 100_000,
    )


def json_texts(document: Any) -> list[bytes]:
    return [json.dumps(each).encode() for each in changed_values(document)]


def ended(*arguments: str, stdin: bytes | None = None) -> Result:
    """A run that ended as it should."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code in (0, 1, 2), result.output
    assert "Traceback" not in result.stderr
    assert "this is a bug" not in result.stderr, result.stderr
    if result.exit_code == 2:
        assert result.stderr
    return result


def read(*arguments: str, stdin: bytes | None = None) -> str:
    """What a run that ended as it should says."""
    return ended(*arguments, stdin=stdin).stdout


def texts(data: str | bytes, seed: int, count: int = 120) -> list[bytes]:
    return list(changed_bytes(data if isinstance(data, bytes) else data.encode(), random.Random(seed), count))


def as_file(name: str, *commands: list[str]) -> Callable[[bytes], None]:
    """Write a file, and run commands that find it; the good one beside it is rewritten all the same."""

    def use(data: bytes) -> None:
        put(name, data)
        for command in commands:
            assert "+++ b/good.py" in read(*command)

    return use


# One of so many is tried; all of them in the slow tests.
parts = pytest.mark.parametrize("part", [12, pytest.param(1, marks=pytest.mark.slow)])
DIFFS = (["diff", "--no-cache"], ["modernize", "--diff", "--no-cache"])


@parts
def test_sources(part: int) -> None:
    put("good.py", PIPELINE.replace("import jax\n", OLD))
    use = as_file("a.py", *DIFFS)
    for data in texts(f"# é\nfrom other import step as other\n{PIPELINE}x = jax.tree_map(len, [])\n", part, 240)[
        ::part
    ]:
        use(data)


@parts
def test_notebooks(part: int) -> None:
    put("good.py", PIPELINE.replace("import jax\n", OLD))
    use = as_file("a.ipynb", *DIFFS)
    documents = json_texts(NOTEBOOK)
    for data in (*documents, *texts(json.dumps(NOTEBOOK, indent=1), part))[::part]:
        use(data)


@parts
def test_imported_modules(part: int) -> None:
    put("good.py", "from x import y\nimport x\n" + PIPELINE.replace("import jax\n", OLD))
    for data in texts(f"def y(x):\n    return x\n{HINTED}", part)[::part]:
        put("x.py", data)
        for command in DIFFS:
            # What imports a module that cannot be parsed is rewritten by a Python that can, if there is one.
            result = ended(*command, "good.py")
            assert "+++ b/good.py" in result.stdout or "good.py: it imports `x`: " in result.stderr


@parts
def test_ignore_files(part: int) -> None:
    put("good.py", PIPELINE)
    for data in texts("build/\n!keep\n*.tmp\n[a-z]/**/x\n", part)[::part]:
        put(".gitignore", data)
        read("diff", "--no-cache")


@pytest.mark.parametrize("name", ["pyproject.toml", "mmrewrite.toml"])
def test_configurations(name: str) -> None:
    put("good.py", PIPELINE)
    values = ("1", "-1", "''", "'\\u0000'", "[]", "[1]", "[['a']]", "{}", "{a=1}", "true", "1979-05-27", "nan", "'!'")
    lines = CONFIGURATION.splitlines()
    documents = [
        "\n".join([*lines[:number], f"{line.partition('=')[0]}= {value}", *lines[number + 1 :]]).encode()
        for number, line in enumerate(lines)
        if "=" in line
        for value in values
    ]
    for data in (*documents[::3], *texts(CONFIGURATION, 0, 20)):
        put(name, data)
        for command in (["diff", "--no-cache"], ["init", "--print"]):
            read(*command)


@parts
def test_manifests(part: int) -> None:
    put("pkg/good.py", PIPELINE)
    read("build", "pkg", "--out", "gen")
    document = json.loads(Path(f"gen/{MANIFEST}").read_bytes())
    kept = {path: path.read_bytes() for path in Path("gen").rglob("*.py")}
    for data in (*json_texts(document), *texts(json.dumps(document), part))[::part]:
        put(f"gen/{MANIFEST}", data)
        read("check", "pkg", "--out", "gen", "--no-cache")
        read("build", "pkg", "--out", "gen", "--no-cache")
        read("explain", "gen/pkg/good.py:1", "--no-cache")
        assert {path: path.read_bytes() for path in Path("gen").rglob("*.py")} == kept


def test_kept_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "kept"))
    put("good.py", PIPELINE)
    first = read("diff")
    (file,) = (tmp_path / "kept" / "results").iterdir()
    whole = file.read_bytes()
    for data in texts(whole, 0, 20):
        file.write_bytes(data)
        assert read("diff") == first


@parts
def test_evidence(part: int) -> None:
    put("good.py", PIPELINE)
    document = {"command": "verify", "entries": [{"entry": "a:b", "verdict": "same"}], "files": {"good.py": "0"}}
    for data in (*json_texts(document), *texts(json.dumps(document), part, 30))[::part]:
        put("evidence.json", data)
        for output_format in ("html", "markdown"):
            read("diff", "--no-cache", "--format", output_format, "--evidence", "evidence.json")


def test_standard_input() -> None:
    for data in texts(f"# é\n{PIPELINE}", 0, 20):
        read("diff", "-", "--stdin-filename", "a.py", stdin=data)
    for data in json_texts(NOTEBOOK)[::20]:
        read("apply", "-", "--stdin-filename", "a.ipynb", stdin=data)
