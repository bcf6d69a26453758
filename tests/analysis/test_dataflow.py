"""Which names statements read before they assign them."""

from __future__ import annotations

import pytest
from hinted_sites import facts_of, loop_in, statement_on

from mmrewrite.analysis.loops.dataflow import Flow

pytestmark = pytest.mark.quick


def case(sentence: str, text: str, *expected: object) -> object:
    return pytest.param(text, *expected, id=sentence)


EXPOSED = [
    case("a name that is read and then assigned", "for i in y:\n    x = x + i\n", {"x"}),
    case("a name that is assigned first", "for i in y:\n    h = i\n    x = h\n", set()),
    case("an augmented assignment reads its target", "for i in y:\n    x += i\n", {"x"}),
    case("a branch may leave a name unassigned", "for i in y:\n    if i:\n        h = 1\n    x = h\n", {"h"}),
    case("both branches assign", "for i in y:\n    if i:\n        h = 1\n    else:\n        h = 2\n    x = h\n", set()),
    case(
        "a branch that leaves does not count",
        "for i in y:\n    if i:\n        continue\n    else:\n        h = 2\n    x = h\n",
        set(),
    ),
    case("an inner loop may run not once", "for i in y:\n    for j in i:\n        h = j\n    x = h\n", {"h"}),
    case("a `while` may run not once", "for i in y:\n    while i:\n        h = 1\n    x = h\n", {"h"}),
    case("a `with` block always runs", "for i in y:\n    with i as f:\n        h = f\n    x = h\n", set()),
    case(
        "a `try` may stop before the assignment",
        "for i in y:\n    try:\n        h = i\n    except E:\n        pass\n    x = h\n",
        {"E", "h"},
    ),
    case(
        "a handler that assigns too",
        "for i in y:\n    try:\n        h = i\n    except ValueError as e:\n        h = e\n    x = h\n",
        {"ValueError"},
    ),
    case(
        "`finally` always runs", "for i in y:\n    try:\n        pass\n    finally:\n        h = 1\n    x = h\n", set()
    ),
    case("`del` takes the value away", "for i in y:\n    h = 1\n    del h\n    x = h\n", {"h"}),
    case("a deletion reads", "for i in y:\n    del h\n", {"h"}),
    case(
        "`match` with a case for all the rest",
        "for i in y:\n    match i:\n        case 1:\n            h = 1\n        case _:\n            h = 2\n"
        "    x = h\n",
        set(),
    ),
    case(
        "`match` that may match nothing",
        "for i in y:\n    match i:\n        case 1:\n            h = 1\n    x = h\n",
        {"h"},
    ),
    case("a pattern binds", "for i in y:\n    match i:\n        case [h, *t]:\n            x = h, t\n", set()),
    case("a walrus in a condition binds", "for i in y:\n    if (h := i):\n        x = h\n", set()),
    case("what `and` may skip", "for i in y:\n    i and (h := i)\n    x = h\n", {"h"}),
    case("what `or` may skip", "for i in y:\n    if i or (h := i):\n        x = h\n", {"h"}),
    case("what a true `and` has assigned", "for i in y:\n    if i and (h := i):\n        x = h\n", set()),
    case("what a false `or` has assigned", "for i in y:\n    while not (i or (h := i)):\n        x = h\n", set()),
    case(
        "not what a false `and` may have skipped", "for i in y:\n    if not (i and (h := i)):\n        x = h\n", {"h"}
    ),
    case("one side of a conditional expression", "for i in y:\n    x = (h := i) if i else i\n    x = h\n", {"h"}),
    case("both sides of one", "for i in y:\n    x = (h := i) if i else (h := 2)\n    x = h\n", set()),
    case("the end of a chain of comparisons", "for i in y:\n    i < i < (h := i)\n    x = h\n", {"h"}),
    case("what a comprehension assigns", "for i in y:\n    [h := j for j in i]\n    x = h\n", {"h"}),
    case(
        "a block that `suppress` may end",
        "from contextlib import suppress\nfor i in y:\n    with suppress(ValueError):\n        h = i\n    x = h\n",
        {"ValueError", "h", "suppress"},
    ),
    case("a function reads when it is made", "for i in y:\n    def f():\n        return h\n    h = f\n", {"h"}),
    case("parameters of a function are its own", "for i in y:\n    f = lambda h: h\n    h = f\n", set()),
    case("a default is evaluated outside", "for i in y:\n    f = lambda h=h: h\n    h = f\n", {"h"}),
    case("a comprehension has names of its own", "for i in y:\n    x = [h for h in i]\n    h = x\n", set()),
    case("the first iterable of a comprehension is outside", "for i in y:\n    x = [k for k in h]\n    h = x\n", {"h"}),
    case("an import binds", "for i in y:\n    import numpy.linalg as h\n    x = h\n", set()),
]


@pytest.mark.parametrize(("text", "expected"), EXPOSED)
def test_names_that_an_iteration_reads_from_the_one_before(text: str, expected: set[str]) -> None:
    facts = facts_of(text)
    loop = loop_in(facts.tree)
    assert Flow(facts, facts.scope_of(loop)).exposed_in(loop) == expected


@pytest.mark.parametrize(
    ("text", "exposed", "assigned"),
    [
        case("the target counts as read", "for i in y:\n    x = x + i\n", {"i", "x"}, {"x"}),
        case("only what is assigned in any case", "for i in y:\n    if i:\n        h = 1\n    x = 1\n", {"i"}, {"x"}),
    ],
)
def test_names_through_a_body(text: str, exposed: set[str], assigned: set[str]) -> None:
    facts = facts_of(text)
    loop = loop_in(facts.tree)
    assert Flow(facts, facts.scope_of(loop)).through(loop) == (exposed, assigned)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        case("parameters have a value", "def f(a, *b, c=1, **d):\n    pass  # here\n", {"a", "b", "c", "d"}),
        case("what stands above", "def f():\n    a = 1\n    pass  # here\n    b = 2\n", {"a"}),
        case("not what one branch assigns", "def f(c):\n    if c:\n        a = 1\n    pass  # here\n", {"c"}),
        case(
            "inside a branch, what it assigned",
            "def f(c):\n    if c:\n        a = 1\n        pass  # here\n",
            {"a", "c"},
        ),
        case("inside a loop, its target", "def f(c):\n    for i in c:\n        pass  # here\n", {"c", "i"}),
        case("inside a `with`, its name", "def f(c):\n    with c as g:\n        pass  # here\n", {"c", "g"}),
        case(
            "after `else` of a `try`, its body",
            "def f():\n    try:\n        a = 1\n    except E:\n        pass\n    else:\n        pass  # here\n",
            {"a"},
        ),
        case(
            "in a handler, nothing of the body",
            "def f():\n    try:\n        a = 1\n    except E:\n        pass  # here\n",
            set(),
        ),
    ],
)
def test_names_with_a_value_before_a_statement(text: str, expected: set[str]) -> None:
    facts = facts_of(text)
    statement = statement_on(facts, "here")
    assert Flow(facts, facts.scope_of(statement)).defined_before(statement) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        case("what stands below", "def f():\n    pass  # here\n    return a\n", {"a"}),
        case("not what is assigned in between", "def f():\n    pass  # here\n    a = 1\n    return a\n", set()),
        case(
            "the next iteration reads above",
            "def f(c):\n    for i in c:\n        g(a)\n        pass  # here\n",
            {"a", "g"},
        ),
        case(
            "the target of the loop is new each time",
            "def f(c):\n    for i in c:\n        i.x\n        pass  # here\n",
            set(),
        ),
        case("the condition of a `while` is next", "def f():\n    while a:\n        pass  # here\n", {"a"}),
        case("a handler may be next", "def f():\n    try:\n        pass  # here\n    except E:\n        b()\n", {"b"}),
        case("`finally` is next", "def f():\n    try:\n        pass  # here\n    finally:\n        b()\n", {"b"}),
        case("not the other branch", "def f(c):\n    if c:\n        pass  # here\n    else:\n        b()\n", set()),
    ],
)
def test_names_that_may_be_read_after_a_statement(text: str, expected: set[str]) -> None:
    facts = facts_of(text)
    statement = statement_on(facts, "here")
    assert Flow(facts, facts.scope_of(statement)).read_after(statement) == expected
