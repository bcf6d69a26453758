"""The legs of `.ci/run` run every test between them, and no test that it has to run is only ever left out."""

from __future__ import annotations

import re
from pathlib import Path

import conftest
import pytest

RUN = (Path(__file__).resolve().parents[1] / ".ci" / "run").read_text(encoding="utf-8")
LEGS = dict(re.findall(r'^ *check "(tests[^"]*)" (.*)$', RUN, re.MULTILINE))


def kinds(leg: str) -> set[str]:
    found = re.search(r"MMREWRITE_TESTS=(\S+)", LEGS[leg])
    return set(found[1].split(",")) if found else set(conftest.KINDS)


def test_the_legs_are_these() -> None:
    assert list(LEGS) == [
        "tests without JAX, Python $default",
        "tests, Python $other",
        "tests, Python $default",
        "tests that hang on code generation, optimized, Python $default",
    ]


def test_every_kind_runs_wherever_its_result_can_differ() -> None:
    assert kinds("tests without JAX, Python $default") == {"text", "python", "optimized", "jax"}
    assert kinds("tests, Python $other") == {"python", "optimized", "jax"}
    # Between them, these two run on one Python what the one before runs on the other.
    assert kinds("tests, Python $default") == {"jax"}
    assert kinds("tests that hang on code generation, optimized, Python $default") == {"optimized"}
    assert "MMREWRITE_TESTS=" not in re.sub(r"^ *check .*$|^ *#.*$", "", RUN, flags=re.MULTILINE)
    assert "unset PYTHONPATH" in RUN and "unset MMREWRITE_TESTS" in RUN


def test_what_hangs_on_code_generation_is_compiled_as_users_do_on_one_python() -> None:
    quick = {leg for leg, command in LEGS.items() if "MMREWRITE_TESTS_QUICK=1" in command}
    assert quick == {"tests, Python $other", "tests, Python $default"}
    assert "QUICK" not in re.sub(r"^ *check .*$|^ *#.*$|^unset .*$", "", RUN, flags=re.MULTILINE)


def test_a_kind_is_left_out_only_where_it_is_asked_for() -> None:
    assert set(conftest.KINDS) == {"text", "python", "optimized", "jax"}
    assert set(conftest.CHOSEN) <= set(conftest.KINDS)


def test_files_left_out_hold_no_test_that_is_chosen(request: pytest.FixtureRequest) -> None:
    kinds_of = {path: conftest.kinds_in(path.read_text("utf-8")) for path in {i.path for i in request.session.items}}
    for item in request.session.items:
        assert conftest.kind_of(item) in kinds_of[item.path], item.nodeid
    assert conftest.kinds_in("pytestmark = pytest.mark.text\n@pytest.mark.slow\n") == {"text"}
    assert conftest.kinds_in("pytestmark = [pytest.mark.text]\n") == {"jax", "text"}
    assert conftest.kinds_in("@pytest.mark.optimized\n") == {"jax", "optimized"}
