"""Whatever the program: no crash, no output that does not parse, no change outside of edits, none in a second run.

Thirty programs run with the rest of the tests, others on each version of Python; with
`pytest -m slow -n auto -rP tests/test_fuzzing.py`, ten thousand in ten parts, the same in each run; each part prints
what became of its programs.
"""

from __future__ import annotations

import collections
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
@settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_programs(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assume(parses(source))
    check(source)


def outcome(rewrite: Rewrite) -> str:
    """What became of a program, in a word or two."""
    if rewrite.errors:
        return "wrong hints"
    if rewrite.changed:
        return "rewritten, with refusals" if rewrite.refusals else "rewritten"
    return "refused" if rewrite.refusals else "left as it was"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_programs(part: int) -> None:
    outcomes: collections.Counter[str] = collections.Counter()

    @seed(part)
    @settings(max_examples=1_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(programs())
    def thousand(source: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assume(parses(source))
        outcomes[outcome(check(source))] += 1

    thousand()
    print(dict(sorted(outcomes.items())))
