"""What is nested too deeply for LibCST's parser, which would end the process, does not get there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from command import HINTED, put

from mmrewrite.source.libcst_parser import deepest, parse_expression, parse_module, parse_statement

pytestmark = pytest.mark.text

ROOT = Path(__file__).parent.parent
# What comes first, again and again, in the middle, again and again, and last.
FORMS: dict[str, tuple[str, str, str, str, str]] = {
    "parentheses": ("x = ", "(", "1", ")", "\n"),
    "unclosed": ("x = ", "(", "1", "", "\n"),
    "lists": ("x = ", "[", "1", "]", "\n"),
    "dictionaries": ("x = ", "{1:", "1", "}", "\n"),
    "later elements": ("x = ", "[1, 2, ", "1", ", 3]", "\n"),
    "calls": ("x = ", "f(", "1", ")", "\n"),
    "over lines": ("x = ", "(\n", "1", ")\n", "\n"),
    "signs": ("x = ", "-", "1", "", "\n"),
    "nots": ("x = ", "not ", "1", "", "\n"),
    "lambdas": ("x = ", "lambda: ", "1", "", "\n"),
    "conditions": ("x = ", "1 if 1 else ", "1", "", "\n"),
    "sums": ("x = ", "1 + ", "1", "", "\n"),
    "sums with comments": ("x = (1", " +  # )\n 1", "", "", ")\n"),
    "sums over lines": ("x = 1", " + \\\n 1", "", "", "\n"),
    "ands": ("x = ", "1 and ", "1", "", "\n"),
    "attributes": ("x = a", ".a", "", "", "\n"),
    "calls of calls": ("x = a", "(0, 1)", "", "", "\n"),
    "strings beside each other": ("x = ", '"a" ', "", "", "\n"),
    "fields in fields": ('x = f"', "{1:", "1", "}", '"\n'),
    "strings in strings": ("x = ", 'f"{', "1", '}"', "\n"),
    "elifs": ("if 1:\n    pass\n", "elif 1:\n    pass\n", "", "", "\n"),
    "elifs with more in them": ("if 1:\n  1\n", "elif 1:\n  if 1:\n    1\n  else:\n    1\n", "", "", "\n"),
    "patterns": ("match x:\n    case ", "[", "1", "]", ":\n        pass\n"),
    "imports": ("import a", ".a", "", "", "\n"),
}


def repeated(name: str, count: int) -> str:
    """A form, so many levels deep."""
    if name == "blocks":
        return "".join(f"{' ' * depth}if 1:\n" for depth in range(count)) + f"{' ' * count}pass\n"
    before, first, middle, second, after = FORMS[name]
    return f"{before}{first * count}{middle}{second * count}{after}"


FLAT = {
    "statements": "a = b(1, c.d)\n" * 5000,
    "elements": f"x = [{'-a.b(1), ' * 5000}]\n",
    "semicolons": "a = 1; " * 5000,
    "keywords": f"x = dict({'a=1, ' * 5000})\n",
    "text": f'x = """{"( [ {" * 5000}"""\n',
    "comments": "# ((((((((\n" * 5000,
    "blocks": "def f():\n    if 1:\n        if 2:\n            return 3\n    elif 4:\n        pass\n" * 1000,
}


@pytest.mark.parametrize("name", [*FORMS, "blocks"])
def test_what_is_deep_is_found(name: str) -> None:
    deep = repeated(name, 700)
    assert deepest(deep) >= 700
    assert deepest(repeated(name, 20)) < 200
    long = deep + "y = 1\n" * 1000
    for parse in (parse_module, parse_expression, parse_statement):
        with pytest.raises(RecursionError):
            parse(long)


@pytest.mark.parametrize("name", FLAT)
def test_what_is_flat_is_read(name: str) -> None:
    assert deepest(FLAT[name]) < 50
    assert parse_module(FLAT[name]).code == FLAT[name]


@pytest.mark.usefixtures("folder")
def test_one_file_costs_one_file() -> None:
    """Brackets that Python itself refuses to read, and LibCST, which is asked next, would not survive."""
    put("deep.py", HINTED + repeated("parentheses", 3000))
    put("good.py", HINTED)
    done = subprocess.run(
        [sys.executable, "-m", "mmrewrite", "diff", "--no-cache"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "+++ b/good.py" in done.stdout
    assert "deep.py: Python" in done.stderr and "too many nested parentheses" in done.stderr


def test_nobody_else_asks_libcst() -> None:
    """LibCST's own command gets what LibCST has parsed before."""
    found = {
        str(path.relative_to(ROOT))
        for folder in ("mmrewrite", "codemods")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith("parse_") and ast.unparse(node.value) == "cst"
    }
    assert found == {"mmrewrite/source/libcst_parser.py", "mmrewrite/cli/libcst_tool.py"}
