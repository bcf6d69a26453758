"""Comments that look like hints: an error where the rest reads as a directive, prose where it does not."""

from __future__ import annotations

import pytest

from mmrewrite.codemod.registry import Registry
from mmrewrite.directives.vocabulary import DIRECTIVES
from mmrewrite.engine.rewrite import rewrite_source
from mmrewrite.results import Rewrite

REGISTRY = Registry()
RULE = "a hint begins with `# mm:` and a space; "


def rewrite(comment: str) -> Rewrite:
    """The rewrite of a program that has the comment at the end of a line, and no other."""
    result = rewrite_source(f"def f(x):\n    for b in blocks:  {comment}\n        x = b(x)\n    return x\n", REGISTRY)
    assert result.failure is None
    return result


@pytest.mark.parametrize(
    ("carrier", "text"),
    [
        ("# MM:", " stages"),
        ("# Mm:", "stages"),
        ("# mm", " stages"),
        ("# MM", " task(stage=0)"),
        ("# mm :", " stages"),
        ("#mm:", "stages"),
        ("#mm:", " stages"),
        ("#  mm:", " stages"),
        ("#\tmm:", " stages"),
        ("# mm:", "stages"),
        ("# mm::", " stages"),
        ("# mm;", " stages"),
        ("# mm.", "task(stage=0)"),
        ("# mm,", " stages"),
        ("# mm |", " stages"),
        ("# mm >", " stages"),
        ("# mm -", " stages"),
        ("# mm -->", " stages"),
        ("# mm =>", " stages"),
        ("# mm \N{RIGHTWARDS ARROW}", " task(stage=0)"),
        ("# mm \N{EM DASH}", " stages"),
        ("# [mm]", " task(stage=0)"),
        ("# (MM)", " stages"),
        ("# <mm>:", " stages"),
        ("# @mm", " stages"),
        ("# mm!", " stages"),
        ("# mm\N{FULLWIDTH COLON}", "stages"),
        ("#: mm:", " stages"),
        ("#! mm:", " stages"),
        ("## mm:", " stages"),
        ("# m:", " stages"),
        ("# mn:", " stages"),
        ("# nm:", " task(stage=0)"),
        ("# mmm:", " stages"),
        ("# mmr:", " stages"),
        ("# mmrewrite:", " stages"),
        ("# MMRewrite :", " stages"),
        ("# hint:", " task(stage=0)"),
        ("# Hints:", " stages"),
        ("# mm", " stages; task(stage=0)"),
        ("# mm", ' mesh(stage=2); axes(batch="data")'),
        ("# mm", " stages  # the layers"),
        ("# mm", " ignore[stage_loop]"),
        ("# mm", " off"),
        ("# MM:", " on"),
    ],
)
def test_a_directive_after_a_misspelt_beginning(carrier: str, text: str) -> None:
    for before in ("", "# noqa  "):
        result = rewrite(f"{before}{carrier}{text}")
        (error,) = result.errors
        assert not result.changed
        assert (error.line, error.column) == (2, 23 + len(before))
        assert error.source_line[error.column - 1 :][: error.length] == carrier
        assert error.message == f"{RULE}write `# mm: {text.strip()}`"


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("# MM: stagse", "unknown directive `stagse`; did you mean `stages`?"),
        ("# mm tsk(stage=0)", "unknown directive `tsk`; did you mean `task`?"),
        (
            "# MM: task(stage=0",
            "cannot read this hint: '(' was never closed; a directive looks like a Python call, `task(stage=0)`",
        ),
    ],
)
def test_a_misspelt_directive_after_a_misspelt_beginning(comment: str, message: str) -> None:
    (error,) = rewrite(comment).errors
    assert error.message == RULE + message


def test_the_advice_works_when_followed() -> None:
    (error,) = rewrite("# MM : stages").errors
    advice = error.message.rpartition("write `")[2].rstrip("`")
    result = rewrite(advice)
    assert (result.changed, result.errors) == (True, ())


@pytest.mark.parametrize("name", DIRECTIVES)
def test_of_every_directive(name: str) -> None:
    for carrier in ("# MM:", "# mm", "#mm:"):
        assert rewrite(f"{carrier} {DIRECTIVES[name].example}").errors[0].message.startswith(RULE)


@pytest.mark.parametrize(
    "comment",
    [
        "# mm is for millimetres",
        "# mm",
        "# MM",
        "# mm:",
        "# 5 mm: stages",
        "# 3 mm stages",
        "# mm on the axis",
        "# mm off by one",
        "# mm wide",
        "# mm register",
        "# mm task",
        "# mm task(s) are many",
        "# mm mask(x)",
        "# MM: the stages of it",
        "# MM: sizes",
        "# MM: 25.4 per inch",
        "# MM-DD",
        "# MMA stages",
        "# mmap: stages",
        "# comm: stages",
        "# mm.task(f, task=mm.Task(mesh_slice={}))(x)",
        "# mm.stage(i, n)",
        "# mm = mesh(2)",
        "# mm[task]",
        "# [mm] task",
        "# (mm) stage",
        "# size [mm] stages",
        "# mm \N{RIGHTWARDS ARROW} inches",
        "# hints.get(x)",
        "# hints.task(f, stage=0)",
        "# m: number of stages",
        "# n: on",
        "# m: off",
        "# hints: off",
        "# hint: register",
        "# hint: use task(stage=0)",
        "# see `# MM: stages`",
        "# see `mm: task(stage=0)` below",
        "# see `# mm: task(stage=0)` below",
        "# of some mm: stages",
        "# 'mm: stages' and others",
        "# a comm: task(stage=0)",
        "# nn: Module",
    ],
)
def test_prose(comment: str) -> None:
    result = rewrite(comment)
    if comment == "# mm:":
        assert [error.message for error in result.errors] == ["a hint without a directive"]
        return
    assert (result.changed, result.errors, result.left) == (False, (), ())


def test_a_second_carrier_in_a_comment() -> None:
    for second in ("# mm: stages", "# MM: stages", "#mm:stages"):
        (error,) = rewrite(f"# mm: stages  {second}").errors
        assert error.message.startswith("a second `# mm:` in one comment")
        assert error.source_line[error.column - 1 :][: error.length] == second.partition(" s")[0].removesuffix("stages")
    assert rewrite("# mm: stages  # MM is for millimetres").changed


def test_off_holds_for_near_misses_and_is_one_too() -> None:
    assert rewrite_source("# mm: off\nx = f(1)  # MM: task(stage=0)\n# mm: on\n", REGISTRY).left[0].line == 2
    lines = [error.line for error in rewrite_source("# MM off\nx = f(1)  # mm: task(stage=0)\n", REGISTRY).errors]
    assert lines == [1]


def test_a_hint_in_commented_out_code_is_counted() -> None:
    carriers = ("# x = f(1)  # mm: ", "# # mm: ", "# # MM: ", "# hints.")
    for text in (f"{each}task(stage=0)" for each in carriers):
        result = rewrite_source(f"{text}\nx = 1\n", REGISTRY)
        assert [(left.line, left.text, left.reason) for left in result.left] == [(1, "task(stage=0)", "commented out")]
        assert not result.changed
    for text in ("# see `# mm: stages`", '# "# mm: stages"', "# about # mm: and others"):
        assert rewrite_source(f"{text}\nx = 1\n", REGISTRY).left == ()


@pytest.mark.parametrize(
    "before",
    ["# noqa: E501 ", "# type: ignore[x]; ", "# pragma: no cover ", "# fmt: skip ", "# TODO: ", "# first - ", "#\xa0"],
)
@pytest.mark.parametrize("text", ["mm: stages", "mm:task(stage=0)"])
def test_a_hint_in_another_comment(before: str, text: str) -> None:
    (error,) = rewrite(before + text).errors
    directive = text.removeprefix("mm:").strip()
    assert error.message == f"{RULE}write `# mm: {directive}`"
    (error,) = rewrite_source(f"{before}{text}\nx = f(1)\n", REGISTRY).errors
    assert error.message == f"{RULE}write `# mm: {directive}` on a line of its own"
    assert rewrite(f"{before} # mm: {directive}").errors == ()


def test_a_hint_in_a_sentence_is_counted() -> None:
    for text in ("# see mm: task(stage=0) below", "# in time (mm: task(stage=0)) this moves"):
        result = rewrite(text)
        assert [(left.line, left.reason) for left in result.left] == [(2, "in a sentence")]
        assert (result.changed, result.errors) == (False, ())


def test_strings_hold_none() -> None:
    for text in (
        'x = "mm: stages"\n',
        'x = {"a": 1, mm: task(1)}  # b\n',
        '"""\nsee mm: task(1)\n"""\n',
        'x = "# MM: stages"\n',
        '"""\n# MM: stages\n"""\n',
        'x = f"{1}# mm stages"\n',
    ):
        assert rewrite_source(text, REGISTRY).errors == ()
