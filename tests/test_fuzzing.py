"""Whatever the program: no crash, no output that does not parse, no change outside of edits, none in a second run.

A hundred programs run with the rest of the tests, others on each version of Python; with
`pytest -m slow tests/test_fuzzing.py`, ten thousand.
"""

from __future__ import annotations

import sys
import warnings

import pytest
from accounting import without_outcome
from hypothesis import HealthCheck, assume, given, seed, settings
from programs import parses, programs

from mmrewrite.codemod.registry import Registry
from mmrewrite.engine.rewrite import rewrite_source
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceText

pytestmark = pytest.mark.python

REGISTRY = Registry()


def check(source: str) -> Rewrite:
    """Rewrite a program and hold the result to what is promised of every program."""
    first = rewrite_source(source, REGISTRY)
    assert first.failure is None, first.failure
    assert first.original == source.encode()
    if first.errors:
        assert not first.changed
    assert without_outcome(first) == []
    text = SourceText.decode(first.result).text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert parses(text)
    rest, position = text, 0
    for edit in first.edits:
        kept = source[position : edit.start]
        assert kept + edit.text in rest
        rest = rest[rest.index(kept + edit.text) + len(kept) + len(edit.text) :]
        position = edit.end
    assert rest.endswith(source[position:])
    second = rewrite_source(text, REGISTRY)
    assert not second.changed
    return first


@seed(sys.version_info.minor)
@settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_programs(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assume(parses(source))
    check(source)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_ten_thousand_programs(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assume(parses(source))
    check(source)
