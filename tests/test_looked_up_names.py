"""Old names that code looks up by texts, as they are put together of parts or set by patches: each is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixture_files import modernize_text

# The file has another old name, as files without any are not read.
HEAD = """\
import importlib, operator, pkgutil, string
from unittest import mock
from unittest.mock import patch
import jax
x = jax.tree_leaves(1)
PERCENT, BRACES, DOLLAR = "tree_%s", "tree_{}", "tree_$kind"
"""

PUT_TOGETHER = (
    "getattr(jax, 'tree_' + kind)",
    "getattr(jax, kind + '_map')",
    "getattr(jax, 'tree' + '_' + kind)",
    "getattr(jax, f'tree_{kind}')",
    "getattr(jax, f'{kind}_map')",
    "getattr(jax, f'{\"tree\"}_{kind}')",
    "getattr(jax, 'tree_%s' % kind)",
    "getattr(jax, '%s_map' % kind)",
    "getattr(jax, '%s_%s' % ('tree', kind))",
    "getattr(jax, 'tree_%(kind)s' % {'kind': kind})",
    "getattr(jax, 'tree_%-3s' % kind)",
    "getattr(jax, 'tree_{}'.format(kind))",
    "getattr(jax, '{}_map'.format(kind))",
    "getattr(jax, '{0}_{1}'.format('tree', kind))",
    "getattr(jax, 'tree_{kind}'.format(kind=kind))",
    "getattr(jax, 'tree_{kind}'.format_map({'kind': kind}))",
    "getattr(jax, str.format('tree_{}', kind))",
    "getattr(jax, '_'.join(['tree', kind]))",
    "getattr(jax, '_'.join((kind, 'map')))",
    "getattr(jax, ''.join(('tree_', kind)))",
    "getattr(jax, 'tree_'.__add__(kind))",
    "getattr(jax, string.Template('tree_$kind').substitute(kind=kind))",
    "getattr(jax, PERCENT % kind)",
    "getattr(jax, BRACES.format('map'))",
    "getattr(jax, str.format(BRACES, kind))",
    "getattr(jax, string.Template(DOLLAR).substitute(kind=kind))",
    "getattr(jax, 'tree_map' if kind else 'jit')",
    "getattr(jax, kind or 'tree_map')",
    "getattr(jax, (name := 'tree_' + kind))",
    "getattr(jax, str('tree_' + kind))",
    "setattr(jax, 'tree_' + kind, None)",
    "delattr(jax, 'tree_' + kind)",
    "jax.__dict__['tree_' + kind]",
    "vars(jax)['tree_%s' % kind]",
    "vars(jax).get('tree_{}'.format(kind))",
    "jax.__getattribute__('tree_' + kind)",
    "operator.attrgetter('tree_' + kind)(use(jax))",
    "mock.patch.object(jax, 'tree_' + kind)",
    "patch.object(target=jax, attribute='tree_' + kind)",
    "monkeypatch.setattr(jax, f'tree_{kind}', None)",
    "monkeypatch.setattr(f'jax.tree_{kind}', None)",
    "mocker.patch('jax.tree_%s' % kind)",
    "patch(f'jax.tree_{kind}')",
    "importlib.import_module('jax.experimental.' + kind)",
    "pkgutil.resolve_name('jax:tree_' + kind)",
)
PATCHED = (
    "patch.multiple(jax, tree_map=None)",
    "patch.multiple('jax', tree_map=None)",
    "mock.patch.multiple('jax', tree_map=None)",
    "mock.patch.multiple(target=jax, tree_map=None)",
    "mock.patch.multiple(target='jax', tree_map=None)",
    "mock.patch.multiple('jax', spec=None, jit=None, tree_map=None)",
    "mock.patch.multiple('jax', **{'tree_map': None})",
    "mock.patch.multiple('jax', **dict(tree_map=None))",
    "mock.patch.multiple('ja' + 'x', tree_map=None)",
    "mock.patch.multiple(importlib.import_module('jax'), tree_map=None)",
    "mocker.patch.multiple(jax, tree_map=None)",
    "mocker.patch.multiple('jax', tree_map=None)",
    "mock.patch.dict(jax.__dict__, tree_map=None)",
    "mock.patch.dict(jax.__dict__, {'tree_map': None})",
    "mock.patch.dict('jax.__dict__', {'tree_map': None})",
    "mock.patch.dict(in_dict=vars(jax), values={'tree_map': None})",
    "mock.patch.dict(jax.__dict__, [('tree_map', None)])",
    "jax.__dict__.update(tree_map=None)",
    "vars(jax).update({'tree_map': None})",
    "vars(jax).update({'jit': None} | {'tree_map': None})",
    "mock.patch.object(jax, 'tree_map')",
    "mock.patch.object(target=jax, attribute='tree_map')",
    "mock.patch.object(jax, attribute='tree_map')",
    "monkeypatch.setattr(jax, name='tree_map', value=None)",
    "monkeypatch.setattr(target=jax, name='tree_map', value=None)",
    "monkeypatch.delattr(jax, 'tree_map')",
    "mock.patch('jax.tree_map')",
    "mock.patch(target='jax.tree_map')",
)
OF_TODAY = (
    "getattr(jax, 'named_' + kind)",
    "getattr(jax, '%s' % kind)",
    "getattr(kind, 'tree_' + kind)",
    "getattr(jax.random, 'tree_%s' % kind)",
    "{'a': 1}['tree_' + kind]",
    "print('tree_' + kind, jax)",
    "patch.multiple('jax', jit=None)",
    "patch.multiple('mylib', tree_map=None)",
    "patch.multiple(mylib, tree_map=None)",
    "{}.update(tree_map=None)",
    "mock.patch.dict('os.environ', {'tree_map': ''})",
    "importlib.import_module('mylib.' + kind)",
)


def reports(text: str) -> list[tuple[int, str]]:
    result = modernize_text(text)
    return [(item.line, item.reason) for item in result.left]


def is_told(statement: str) -> bool:
    text = f"{HEAD}def f(kind, use, mocker, monkeypatch, mylib):\n    {statement}\n"
    return any(line == text.count("\n") for line, _ in reports(text))


@pytest.mark.parametrize("statement", PUT_TOGETHER)
def test_a_name_that_is_put_together_of_parts(statement: str) -> None:
    assert is_told(statement)


@pytest.mark.parametrize("statement", PATCHED)
def test_a_name_that_a_patch_sets(statement: str) -> None:
    assert is_told(statement)


@pytest.mark.parametrize("statement", OF_TODAY)
def test_what_is_of_today_or_of_others_is_not_told(statement: str) -> None:
    assert not is_told(statement)


COMPUTED = (
    "getattr(jax, name)",
    "lookup(jax, name)",
    "getattr(importlib.import_module('jax'), name)",
    "setattr(jax, name, None)",
    "vars(jax)[name]",
    "jax.__dict__[name]",
    "jax.__dict__.get(name)",
    "jax.__getattribute__(name)",
    "mock.patch.object(jax, name)",
    "mock.patch.object(target=jax, attribute=name)",
    "monkeypatch.delattr(jax, name)",
)
OF_OTHERS = ("getattr(use, name)", "getattr(jax.random, name)", "use[name]", "vars(use)[name]", "use.get(name)")


def told_in_a_loop(statement: str) -> bool:
    loop = f"    for name in (\n        'tree_map', 'jit'\n    ):\n        {statement}\n"
    told = reports(f"{HEAD}lookup = getattr\ndef f(use, monkeypatch):\n{loop}")
    return any("it may be `jax.tree_map`" in reason for _, reason in told)


@pytest.mark.parametrize("statement", COMPUTED)
def test_strings_where_a_module_is_asked_for_one_of_them(statement: str) -> None:
    assert told_in_a_loop(statement)


@pytest.mark.parametrize("statement", OF_OTHERS)
def test_strings_where_others_are_asked_for_one_of_them(statement: str) -> None:
    assert not told_in_a_loop(statement)


@pytest.mark.parametrize("text", ["'tree_map'", "log('there is no tree_map: use another')"])
def test_prose_is_not_asked_for(text: str) -> None:
    assert not reports(f"{HEAD}def f(name, log):\n    {text}\n    return getattr(jax, name)\n")


def test_a_text_that_is_put_together_before_a_table_is_asked() -> None:
    text = f"{HEAD}def f(kind):\n    name = 'tree_%s' % kind\n    return vars(jax)[name]\n"
    assert any(line == text.count("\n") for line, _ in reports(text))


def test_a_text_that_is_made_in_a_statement_before() -> None:
    text = f"{HEAD}def f(kind):\n    name = 'tree_%s' % kind\n    return getattr(jax, name)\n"
    assert any(line == text.count("\n") for line, _ in reports(text))


# Names that several modules had, passed on in ways that leave open which of them is asked.
SEVERAL = """\
import jax, operator
import jax.numpy as jnp
from jax import core, interpreters, lax, tree_util
from jax.interpreters import ad, batching, mlir, partial_eval, pxla, xla
use(jax, core, lax, tree_util, ad, batching, mlir, partial_eval, pxla, xla, jnp)
a = operator.attrgetter("Tracer")
b = map(getattr, things, ["tree_map", "Jaxpr", "ShapedArray", "abstract_arrays"])
c = use(a).Tracer, use(b).tree_map, use(c).Jaxpr
eval("tree_map(Jaxpr, Tracer)")
globals().update(vars(use()))
d = Tracer, Jaxpr, tree_map, Token, Literal
e = getattr(use(), "Literal"), getattr(lax, kind), "tree_map clip_by_value"
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_reports_do_not_hang_on_the_order_of_sets(seed: int) -> None:
    """A process of another hash seed says the same as this one."""
    text = SEVERAL
    here = reports(text)
    assert len({line for line, _ in here}) > 4
    code = f"import test_looked_up_names as t; print(t.reports({text!r}))"
    root = Path(__file__).parents[1]
    paths = os.pathsep.join([str(Path(__file__).parent), str(root), str(root / "codemods"), str(root / "runtime")])
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == str(here)
