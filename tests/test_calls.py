"""Calls in normal form: `partial(f, 1)(2)` is `f(1, 2)`, in whatever way it is written."""

from __future__ import annotations

import ast

import pytest

from mmrewrite.project.facts import Facts, SourceFile, read_facts
from mmrewrite.source.calls import call_form

pytestmark = pytest.mark.quick

HEAD = "import functools\nfrom functools import partial as bind\nfrom jax.tree_util import Partial\n"
# Each with its normal form, after a bar where it is not called.
FORMS = {
    "f(1, a=2)": "f(1, a=2)",
    "functools.partial(f, 1)(2)": "f(1, 2)",
    "bind(f, a=1)(2, b=3)": "f(2, a=1, b=3)",
    "bind(bind(f, 1), 2)(3)": "f(1, 2, 3)",
    "Partial(bind(f, 1), b=2)": "| f(1, b=2)",
    "bind(f)": "| f()",
    "bind(f, *x)(1)": "f(*x, 1)",
    "bind(f, **x)": "| f(**x)",
    "bind(make(1), 2)": "| make(1)(2)",
    "make(1)(2)": "make(1)(2)",
    # Which function it is given is not seen.
    "bind(*x)": "bind(*x)",
    "bind()": "bind()",
}


@pytest.mark.parametrize(("text", "form"), FORMS.items(), ids=FORMS)
def test_the_normal_form(text: str, form: str) -> None:
    facts = read_facts(SourceFile("a.py", f"{HEAD}{text}\n".encode(), "a"), ())
    assert isinstance(facts, Facts)
    statement = facts.tree.body[-1]
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    found = call_form(facts.names, statement.value, facts.names.scope)
    written = ast.unparse(ast.Call(found.function, list(found.positional), list(found.keywords)))
    assert f"{'' if found.is_called else '| '}{written}" == form
    assert found.is_whole is (found.is_called and "*" not in form)
