"""Modules that Flax lifts into a scan."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hinted_sites import site_of

from mmrewrite.analysis.loops.scans import is_lifted_scan

pytestmark = pytest.mark.quick

HEAD = "import functools\nfrom flax import linen as nn\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("y = nn.scan(Block, length=4)(cfg)(x)  # mm: stages", True, id="made and called at once"),
        pytest.param(
            "Stack = nn.scan(Block, length=4)\nstack = Stack(cfg)\ny = stack(x)  # mm: stages", True, id="by its name"
        ),
        pytest.param("y = nn.scan(nn.remat(Block), length=4)(cfg)(x)  # mm: stages", True, id="of a remat"),
        pytest.param("y = nn.remat(nn.scan(Block, length=4))(cfg)(x)  # mm: stages", True, id="in a remat"),
        pytest.param(
            "@functools.partial(nn.scan, length=4)\nclass Stack(nn.Module): ...\ny = Stack()(x)  # mm: stages",
            True,
            id="a decorated class",
        ),
        pytest.param("y = Block(cfg)(x)  # mm: stages", False, id="a plain module"),
        pytest.param("y = nn.vmap(Block)(cfg)(x)  # mm: stages", False, id="another lift"),
        pytest.param(
            "Stack = nn.scan(Block)\nStack = Block\nstack = Stack(cfg)\ny = stack(x)  # mm: stages",
            False,
            id="a name with two meanings",
        ),
    ],
)
def test_what_is_called(text: str, expected: bool) -> None:
    site = site_of(HEAD + text + "\n")
    call = next(site.calls(site.statement))
    assert is_lifted_scan(site, call.func) == expected


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param("", True, id="every assignment is one"),
        pytest.param("self.stack = Block()", False, id="one assignment is not"),
    ],
)
def test_an_attribute_of_self(other: str, expected: bool) -> None:
    text = f"""
    class Model(nn.Module):
        def setup(self):
            self.stack = nn.scan(Block, length=4)(cfg)
            {other}

        def __call__(self, x):
            return self.stack(x)  # mm: stages
    """
    site = site_of(HEAD + textwrap.dedent(text))
    call = next(site.calls(site.statement))
    assert isinstance(call.func, ast.Attribute)
    assert is_lifted_scan(site, call.func) == expected
