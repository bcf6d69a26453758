"""The hint language: every directive, what it may say and on what statement it may stand."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable
from dataclasses import dataclass

STATEMENT, DEF, CLASS, FOR, WITH, OTHER = "statement", "def", "class", "for", "with", "other"

# A call inside a statement that is a hint by itself, which a comment cannot point at.
CALL = "call"

KIND_WORDS = {
    STATEMENT: "a simple statement",
    DEF: "a `def`",
    CLASS: "a `class`",
    FOR: "a `for` loop",
    WITH: "a `with` block",
    OTHER: "a compound statement",
}

ANYWHERE = frozenset(KIND_WORDS)


@dataclass(frozen=True)
class Parameter:
    """An argument that a directive knows by name; `literals` are the constants it may be."""

    name: str
    literals: tuple[type, ...]
    words: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Directive:
    """One word of the hint language.

    `more` describes keywords beyond `parameters`, None when there are none. `positional` counts arguments without a
    name, None for any number. `part_of` is the directive without which this one means nothing. `repeated` is whether it
    may be said more than once about one statement. `rare` are kinds of statement that it may stand on, but that
    messages do not offer.
    """

    name: str
    kinds: frozenset[str]
    example: str
    parameters: tuple[Parameter, ...] = ()
    more: Parameter | None = None
    positional: int | None = 0
    part_of: str | None = None
    repeated: bool = False
    rare: frozenset[str] = frozenset()

    @property
    def places(self) -> str:
        """Where it belongs, in words; kinds in `rare` are left out."""
        return " or ".join(KIND_WORDS[kind] for kind in KIND_WORDS if kind in self.kinds - self.rare)

    def parameter(self, name: str) -> Parameter | None:
        """What `name=` must be, None where there is no such argument."""
        return next((parameter for parameter in self.parameters if parameter.name == name), self.more)


def _whole(name: str) -> Parameter:
    return Parameter(name, (int,), "a whole number")


def _text(name: str, *choices: str) -> Parameter:
    return Parameter(name, (str,), "a string", choices)


_TASK_SLICE = Parameter("axis", (int,), "the index of a slice, a whole number")
_AXIS_SIZE = Parameter("axis", (int,), "the size of the axis, a whole number")
_DEVICE_AXIS = Parameter("name", (str, type(None)), "a device axis in quotes, or None for replicated")
_LAYOUT = Parameter("name", (str, type(None)), 'logical names, such as `("batch", None)`')

DIRECTIVES = {
    directive.name: directive
    for directive in (
        Directive("mesh", ANYWHERE, "mesh(stage=4, data=2)", more=_AXIS_SIZE),
        Directive(
            "axes", ANYWHERE, 'axes(batch="data", mlp="model")', more=_DEVICE_AXIS, positional=None, part_of="mesh"
        ),
        Directive(
            "task",
            frozenset((STATEMENT, DEF, CLASS, FOR, WITH, CALL)),
            "task(stage=0)",
            (_text("name"),),
            more=_TASK_SLICE,
            positional=1,
        ),
        Directive(
            "stages",
            frozenset((FOR, STATEMENT, OTHER)),
            'stages(axis="stage")',
            (_text("axis"), Parameter("weights", (str,), 'a sequence of numbers, or "flops"', ("flops",))),
            positional=1,
            rare=frozenset((STATEMENT, OTHER)),
        ),
        Directive(
            "microbatch",
            frozenset((STATEMENT, FOR)),
            'microbatch(size=8, schedule="1f1b")',
            (
                _whole("size"),
                _whole("count"),
                _whole("dim"),
                Parameter("argnum", (int, str), "a whole number, or the name of a parameter in quotes"),
                _text("schedule"),
                _text("reduce", "mean", "sum"),
                Parameter(
                    "rng",
                    (int, str, type(None)),
                    "a whole number, the name of a parameter in quotes, or None to use one key for every microbatch",
                ),
            ),
            positional=1,
        ),
        Directive(
            "shard",
            frozenset((STATEMENT, DEF, CALL)),
            'shard("batch", None)',
            (Parameter("from_annotations", (bool,), "True or False"),),
            more=_LAYOUT,
            positional=None,
        ),
        Directive("mjit", frozenset((STATEMENT, DEF)), "mjit"),
        Directive(
            "parallelize",
            frozenset((STATEMENT, DEF)),
            "parallelize(init_params=init, get_input_batch=load)",
            tuple(Parameter(name, (), "a name") for name in ("init_params", "get_input_batch", "initial_batch")),
        ),
        Directive(
            "register",
            ANYWHERE,
            'register(r"h_(\\d+)", stage="int({0}) // 3")',
            (_text("regex"),),
            more=Parameter("axis", (int, str), 'a whole number, or an expression in quotes, such as "int({0}) // 3"'),
            positional=1,
            repeated=True,
        ),
        Directive(
            "verify",
            frozenset((STATEMENT, DEF)),
            "verify(args=make_example_args)",
            (Parameter("args", (), "the name of a function"),),
        ),
    )
}

# Directives that are about no part of the program: as a call they are a statement of their own.
ALONE = frozenset(("mesh", "axes", "register"))

COMPILE_DIRECTIVES = frozenset(("mjit", "parallelize"))
# About the module, wherever they stand: they are no part of the statement below them.
MESH_DIRECTIVES = frozenset(("mesh", "axes", "register"))

# Bytes without one of which a file holds no hint.
MARKERS = (b"mm:", b"mmrewrite")

SWITCHES = ("off", "on")
IGNORE = "ignore"


def kind_of(statement: ast.stmt) -> str:
    """Which of the statement kinds above `statement` is."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return DEF
        case ast.ClassDef():
            return CLASS
        case ast.For() | ast.AsyncFor():
            return FOR
        case ast.With() | ast.AsyncWith():
            return WITH
        case ast.If() | ast.While() | ast.Try() | ast.TryStar() | ast.Match():
            return OTHER
    return STATEMENT


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` when one of the `known` words is near, else the list of them."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; known: {', '.join(words)}" if words else ""


def may_have_hints(data: bytes) -> bool:
    """The first gate: whether a file can hold a hint at all."""
    return any(marker in data for marker in MARKERS)
