"""The records of named schedules: complete, true of the schedules that they make, and shown in the documentation."""

import itertools
import pkgutil
import re
from collections import Counter
from dataclasses import replace
from types import ModuleType

import pytest
from scripts import load_script

from mmruntime.schedules import _algorithms, make, simulate
from mmruntime.schedules._catalog import NAMED_SCHEDULES
from mmruntime.schedules._named_schedule import ClosedForms, NamedSchedule

pytestmark = pytest.mark.quick

RECORDS = tuple(NAMED_SCHEDULES.values())
COSTS = [(1, 1, 1), (2, 2, 2), (1, 2, 1), (2, 2, 1), (1, 1.2, 0.8)]
CONDITIONS = {
    "m divisible by p": lambda p, m, **_: m % p == 0,
    "p and m even": lambda p, m, **_: p % 2 == m % 2 == 0,
    "v at least 2": lambda v, **_: v >= 2,
    "tF = tI = tW": lambda tF, tI, tW, **_: tF == tI == tW,
}


def evaluated(formula: str, **variables: float) -> float:
    """The value of a formula in the papers' notation, where `2tW` and `(p-1)(tF+tB)` are products."""
    product = re.sub(r"(?<=[\d)])(?=[a-z(])|(?<=\bp|\bm|\bv)(?=\()", "*", formula)
    return eval(product, {"__builtins__": {}, "max": max}, variables)


def check_closed_forms(record: NamedSchedule) -> int:
    """Compare the formulas with simulated steps where their conditions are met; returns how many that were."""
    forms, compared = record.closed_forms, 0
    chunks = (1, 2, 3) if "v" in forms.idle + forms.live else (record.placements.chunks,)
    for p, v, costs in itertools.product((1, 2, 3, 4, 6), chunks, COSTS):
        for m in (2 * p, 2 * p + 1, 3 * p, 8 * p):
            tF, tI, tW = costs
            at = {"p": p, "m": m, "v": v, "tF": tF, "tI": tI, "tW": tW, "tB": tI + tW}
            if not all(CONDITIONS[condition](**at) for condition in forms.only_if):
                continue
            simulation = simulate(make(record.name, p, m, v), *costs)
            work = m * sum(costs)
            numbers = {
                forms.idle: simulation.makespan - work,
                forms.idle_without_barrier or forms.idle: simulation.steady - work,
                forms.live: max(simulation.live),
            }
            if forms.idle_without_barrier is None:
                assert simulation.steady == pytest.approx(simulation.makespan)
            for formula, number in numbers.items():
                expected = evaluated(formula, **at)
                if forms.are_bounds:
                    assert number <= expected + 1e-9, (formula, at)
                else:
                    assert number == pytest.approx(expected), (formula, at)
            compared += 1
    return compared


def test_formulas_are_read_as_in_the_papers():
    assert evaluated("(p-1)(tF+2tB-3tW)/2", p=3, tF=1, tB=2, tW=1) == 2
    assert evaluated("p+(p-1)/v", p=4, v=2) == 5.5
    assert evaluated("2(p-1)max(0, tF-tW)", p=3, tF=1, tW=3) == 0


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_closed_forms_are_those_of_simulated_steps(record):
    assert check_closed_forms(record) >= 12


@pytest.mark.parametrize(
    "wrong",
    [
        {"idle": "(p-1)(tF+tB)"},
        {"live": "p+1"},
        {"idle_without_barrier": "0"},
        {"only_if": ("p and m even",), "live": "2p-1"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_closed_form_is_noticed(wrong):
    record = NAMED_SCHEDULES["zb-h1"]
    with pytest.raises(AssertionError):
        check_closed_forms(replace(record, closed_forms=replace(record.closed_forms, **wrong)))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_record_says_what_its_order_does(record):
    schedules = [make(record.name, p, m) for p in (2, 3, 4) for m in (4, 9)]
    assert {schedule.splits_backward for schedule in schedules} == {record.splits_backward}
    assert {bool(schedule.replicas) for schedule in schedules} == {record.has_replicas}
    assert re.fullmatch(r"[^\n]+[^\n.]", record.summary)
    assert record.source.startswith("https://")


def test_names_aliases_and_ranks_are_unique():
    taken = Counter(name for record in RECORDS for name in (record.name, *record.aliases, record.rank))
    assert max(taken.values()) == 1
    assert "auto" not in taken


def test_every_module_of_algorithms_has_a_record():
    modules = {module.name for module in pkgutil.iter_modules(_algorithms.__path__)}
    assert modules == {record.order.__module__.rpartition(".")[2] for record in RECORDS}


def maker() -> ModuleType:
    """`tools/make_schedules.py` as a module."""
    return load_script("tools/make_schedules.py")


def test_the_table_in_the_documentation_is_made_from_the_records():
    module = maker()
    text = module.PAGE.read_text(encoding="utf-8")
    assert module.page(text) == text, "run: python tools/make_schedules.py"
    assert module.NAMES.read_text(encoding="utf-8") == module.names(), "run: python tools/make_schedules.py"


def test_the_table_shows_a_new_schedule():
    record = replace(
        NAMED_SCHEDULES["v-half"],
        name="new",
        aliases=("newer",),
        closed_forms=ClosedForms(
            idle="0", idle_without_barrier="1", live="p", are_bounds=True, only_if=("p and m even",)
        ),
    )
    assert maker().table([record]).splitlines()[2:] == [
        f"| [`new`](https://arxiv.org/abs/2405.15362) | {record.summary} | "
        "at most 0 | at most 1 | at most p | p and m even | two on each submesh, in a V |",
        "",
        "Aliases: `newer` for `new`.",
        "Backward passes run in two halves in `new`.",
    ]
