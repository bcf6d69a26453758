"""The legs of `.ci/run` run every test between them, and no test that it has to run is only ever left out."""

from __future__ import annotations

import collections
import re
from pathlib import Path

import conftest
import pytest

pytestmark = pytest.mark.both_versions("what is collected")

RUN_FILE = Path(__file__).resolve().parents[1] / ".ci" / "run"
RUN = RUN_FILE.read_text(encoding="utf-8")
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


def test_both_halves_run() -> None:
    halves = {
        leg: re.findall(r"MMREWRITE_TESTS_HALF=(\S+)|without_jax (\S+)", command) for leg, command in LEGS.items()
    }
    assert halves == {
        "tests without JAX, Python $default": [("", '"$first"')],
        "tests, Python $other": [("$second", "")],
        "tests, Python $default": [("$first", "")],
        # Bits are held for both halves: the other version runs one without optimization.
        "tests that hang on code generation, optimized, Python $default": [("${first:+both}", "")],
    }
    # Where there is one version only, or every test is asked for, both run.
    assert re.findall(r"^ *first=(\S*) second=(\S*)", RUN, re.MULTILINE) == [("first", "second"), ("", "")]
    rest = re.sub(r"^ *check .*$|^ *#.*$|^unset .*$", "", RUN, flags=re.MULTILINE)
    assert re.findall(r"^.*MMREWRITE_TESTS_HALF.*$", rest, re.MULTILINE) == [
        '        MMREWRITE_TESTS_HALF=$1 "$env/bin/pytest" -n auto --dist loadfile'
    ]


def test_each_half_has_every_value_of_every_parameter_and_every_other_case(request: pytest.FixtureRequest) -> None:
    # The one that pytest has loaded is not the one that is imported here.
    loaded = request.config.pluginmanager.get_plugin(conftest.__file__)
    halves = request.config.stash[loaded.ALL_HALVES]
    cases = collections.defaultdict(list)
    for item in halves:
        if item.get_closest_marker("nightly") is not None:
            assert halves[item] == conftest.NIGHT
            continue
        cases[item.nodeid.partition("[")[0]].append(item)
    grids = {name: items for name, items in cases.items() if conftest.values_of(items[0])}
    for name, items in grids.items():
        numbers = collections.Counter(halves[item] for item in items)
        if items[0].get_closest_marker("family") is not None:
            assert len(items) < 3 or set(numbers) >= set(conftest.HALVES), name
            assert numbers["first"] + numbers["second"] >= len(items) / 6, name
            continue
        assert conftest.NIGHT not in numbers, name
        assert len(items) == 1 or set(numbers) == set(conftest.HALVES), name
        places = [(axis, value, halves[item]) for item in items for axis, value in conftest.values_of(item).items()]
        values = collections.Counter((axis, value) for axis, value, _ in places)
        if min(values.values()) > 1:
            missing = {(axis, value, half) for axis, value in values for half in conftest.HALVES} - set(places)
            assert not missing, name
        else:
            assert abs(numbers["first"] - numbers["second"]) <= 1 + len(items) // 4, name
    alone = collections.Counter((items[0].path, halves[items[0]]) for name, items in cases.items() if name not in grids)
    for path, _ in alone:
        assert alone[path, "first"] - alone[path, "second"] in (0, 1), path


def test_what_runs_on_both_versions_says_why(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        for mark in item.iter_markers("both_versions"):
            assert mark.args and all(mark.args), item.nodeid


def test_the_night_runs_every_test() -> None:
    nightly = RUN_FILE.with_name("nightly").read_text(encoding="utf-8")
    assert re.findall(r"^exec .*", nightly, re.MULTILINE) == ['exec "$(dirname "${BASH_SOURCE[0]}")/run" --all']


def test_a_kind_is_left_out_only_where_it_is_asked_for() -> None:
    assert set(conftest.KINDS) == {"text", "python", "optimized", "jax"}
    assert set(conftest.CHOSEN) <= set(conftest.KINDS)


def test_files_left_out_hold_no_test_that_is_chosen(request: pytest.FixtureRequest) -> None:
    kinds_of = {path: conftest.kinds_in(path.read_text("utf-8")) for path in {i.path for i in request.session.items}}
    for item in request.session.items:
        assert conftest.kind_of(item) in kinds_of[item.path], item.nodeid
    assert conftest.kinds_in("pytestmark = pytest.mark.text\n@pytest.mark.slow\n") == {"text"}
    assert conftest.kinds_in("pytestmark = [pytest.mark.text, pytest.mark.skipif(True)]\n") == {"text"}
    assert conftest.kinds_in("pytestmark = [\n    pytest.mark.python,\n]\n") == {"python"}
    assert conftest.kinds_in("pytestmark = [pytest.mark.slow, pytest.mark.text]\n") == {"jax", "text"}
    assert conftest.kinds_in("@pytest.mark.optimized\n") == {"jax", "optimized"}
