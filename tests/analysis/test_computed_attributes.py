"""Whether an item of an object can be read twice, however the object comes to where it is read."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hinted_sites import site_of

from mmrewrite.analysis.objects.computed_attributes import runs_code

pytestmark = pytest.mark.quick

CLASSES = """\
import functools
class Counting:
    def __init__(self):
        self.reads = 0
    def __getitem__(self, key):
        self.reads += 1
        return self.reads
class Reading:
    def __init__(self):
        self.groups = {}
    def __getitem__(self, key):
        return self.groups[key]
class Further(Reading):
    pass
def make(x=None):
    return KIND()
class Holder:
    def __init__(self, groups):
        self.groups = groups
"""
# How an object that `KIND` makes comes to `groups`.
FORMS = {
    "call": "groups = KIND()",
    "name": "other = KIND()\ngroups = other",
    "function": "groups = make()",
    "partial": "groups = functools.partial(make, 1)()",
    "lambda": "groups = (lambda: KIND())()",
    "assignment in an expression": "print(groups := KIND())",
    "choice": "groups = KIND() if x else make()",
    "unpacking": "groups, other = KIND(), 1",
    "item of a display": "groups = [KIND()][0]",
    "item of a table": "groups = {'a': KIND()}['a']",
    "attribute": "groups = Holder(KIND()).groups",
    "context": "import contextlib\nwith contextlib.nullcontext(KIND()) as groups: pass",
    "loop": "for groups in [KIND()]: pass",
}


def runs(body: str, kind: str) -> bool:
    text = (
        CLASSES.replace("KIND", kind) + "def model(x, layers):\n" + textwrap.indent(body.replace("KIND", kind), "    ")
    )
    site = site_of(f"{text}\n    for layer in groups['a']:  # mm: stages\n        x = layer(x)\n    return x\n")
    assert isinstance(site.statement, ast.For)
    return runs_code(site, site.statement.iter)


@pytest.mark.parametrize("form", FORMS)
def test_an_object_is_known_by_what_makes_it(form: str) -> None:
    assert runs(FORMS[form], "Counting")
    assert not runs(FORMS[form], "Reading")
    assert not runs(FORMS[form], "Further")
    assert not runs(FORMS[form], "dict")


def test_an_object_that_is_not_seen_may_be_of_any_class() -> None:
    assert runs("groups = layers", "Reading")
    assert runs("groups = layers.a", "Reading")


@pytest.mark.parametrize("annotation", ["{}", "'{}'", "{} | None", "Optional[{}]", "'Optional[{}]'"])
def test_an_object_is_known_by_its_annotation(annotation: str) -> None:
    def of(kind: str) -> bool:
        head = f"from typing import Optional\n{CLASSES.replace('KIND', kind)}"
        step = f"def model(x, groups: {annotation.format(kind)}):\n    for layer in groups['a']:  # mm: stages\n"
        site = site_of(f"{head}{step}        x = layer(x)\n    return x\n")
        assert isinstance(site.statement, ast.For)
        return runs_code(site, site.statement.iter)

    assert of("Counting")
    assert not of("Reading")
    assert not of("dict")
