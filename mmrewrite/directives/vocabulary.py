"""The hint language: one record for each directive, which holds all that the tool knows about it.

The collectors, the engine, `plan` and `verify` read the fields of the record and name no directive. So a new directive
is its record here, a codemod, and its no-op function in `mmrewrite/hints.py`.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from mmrewrite.directives.schedule_names import SCHEDULES
from mmrewrite.directives.sizes import parse_size

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


class Role(Enum):
    """What a directive is for. The folders above ask for the role, so that they need to know no directive by name."""

    MESH = "declares a mesh"
    AXES = "maps logical axis names to those of the mesh"
    PLACE = "puts a part of the program on a submesh"
    LAYOUT = "shards a value over the devices of its submesh"
    MICROBATCH = "splits the batch of a step"
    COMPILE = "compiles a step for the mesh"
    GATHER = "copies a value from the submeshes to one place"
    PROOF = "names a function for `mmrewrite verify`, and changes nothing"


@dataclass(frozen=True)
class Parameter:
    """An argument of a directive.

    `literals` are the types that a literal may have, and `words` says so in messages; an expression may be anything.
    `choices` are the strings allowed, all if empty; where `is_tree`, a tuple, list or dict may hold them too. A
    literal number below `minimum` gets the message `too_small`. `reads` takes a literal string, and raises a ValueError
    that says what is wrong with it.
    """

    name: str
    literals: tuple[type, ...]
    words: str
    choices: tuple[str, ...] = ()
    is_tree: bool = False
    minimum: int | None = None
    too_small: str = ""
    reads: Callable[[str], object] | None = None


@dataclass(frozen=True)
class Requirement:
    """A condition on the names of a directive's arguments together, and the message where it does not hold.

    The name of a positional argument without a parameter is None. The message is a format string over the directive.
    """

    holds: Callable[[frozenset[str | None]], bool]
    message: str


@dataclass(frozen=True)
class Directive:
    """One word of the hint language: everything that the tool knows about it, apart from its codemods.

    Attributes:
        name: The word itself, in comments and as a function of `mmrewrite.hints`.
        role: What it is for.
        kinds: The kinds of statement on which it may stand. With `CALL` among them, a hint around a call is rewritten
            in place: its subject stays where it is.
        example: A correct use, for messages.
        parameters: The arguments that it has by name; positional arguments fill them in order.
        more: What further keywords must be, None if there are none.
        positional: The largest number of positional arguments, None for any number.
        requirements: What must hold for its arguments together; the first that fails is reported.
        part_of: The directive without which this one means nothing. As a call directly below that one, it is about the
            same statement.
        distinct: The parameter that names what it defines, so that two with one name must agree; None if there is none.
        excludes: Directives that contradict it on the same statement, each with the message; they exclude it as well.
        excludes_on_loops: The same for `for` loops alone, each of which becomes one call.
        supersedes: The directive whose work it does too, which its codemod does not accept on the same statement.
        repeated: Whether one statement may have it more than once.
        rare: Kinds of statement on which it may stand, but which messages do not offer.
        whole_module: Whether it is about the module wherever it stands, and not about the statement below it. As a call
            it is then a statement of its own.
        declares: The variable that its rewrite binds to a mesh, None if it declares none.
        runtime: Functions of the runtime that its rewrite calls; by these `mmrewrite plan` finds the line of the hint.
    """

    name: str
    role: Role
    kinds: frozenset[str]
    example: str
    parameters: tuple[Parameter, ...] = ()
    more: Parameter | None = None
    positional: int | None = 0
    requirements: tuple[Requirement, ...] = ()
    part_of: str | None = None
    distinct: str | None = None
    excludes: Mapping[str, str] = field(default_factory=dict)
    excludes_on_loops: Mapping[str, str] = field(default_factory=dict)
    supersedes: str | None = None
    repeated: bool = False
    rare: frozenset[str] = frozenset()
    whole_module: bool = False
    declares: str | None = None
    runtime: tuple[str, ...] = ()

    @property
    def places(self) -> str:
        """Where it belongs, in words; kinds in `rare` are left out."""
        return " or ".join(KIND_WORDS[kind] for kind in KIND_WORDS if kind in self.kinds - self.rare)

    @property
    def is_step(self) -> bool:
        """Whether it stands on a training step or a part of one, which leads to all that the step runs."""
        return self.role in (Role.COMPILE, Role.MICROBATCH)

    @property
    def stands_in_models(self) -> bool:
        """Whether it may stand in the code of a model, which a step may be given as an argument."""
        return self.role in (Role.PLACE, Role.LAYOUT)

    @property
    def changes_statement(self) -> bool:
        """Whether its rewrite changes what the statement that it stands on does."""
        return self.role is not Role.PROOF and not self.whole_module

    @property
    def deals_layers(self) -> bool:
        """Whether it deals the layers of a loop out over stages."""
        return self.role is Role.PLACE and "stage" in self.runtime

    @property
    def places_code(self) -> bool:
        """Whether the statement that it stands on runs on a submesh."""
        return self.role is Role.PLACE and not self.whole_module

    @property
    def places_scopes(self) -> bool:
        """Whether it puts code on submeshes by the names of scopes, wherever that code is."""
        return self.role is Role.PLACE and self.whole_module

    @property
    def needs_no_arguments(self) -> bool:
        """Whether it may stand as a bare name."""
        return all(requirement.holds(frozenset()) for requirement in self.requirements)

    def parameter(self, name: str) -> Parameter | None:
        """What `name=` must be, None if there is no such argument."""
        return next((parameter for parameter in self.parameters if parameter.name == name), self.more)


def _whole(name: str, minimum: int | None = None, too_small: str = "") -> Parameter:
    return Parameter(name, (int,), "a whole number", minimum=minimum, too_small=too_small)


def _text(name: str, *choices: str) -> Parameter:
    return Parameter(name, (str,), "a string", choices)


def _callable(name: str) -> Parameter:
    return Parameter(name, (), "a name")


def _one_of(*names: str, message: str) -> Requirement:
    return Requirement(lambda present: not present.isdisjoint(names), message)


def _beyond(*names: str, message: str) -> Requirement:
    return Requirement(lambda present: not present <= set(names), message)


def _at_most_one_of(*names: str, message: str) -> Requirement:
    return Requirement(lambda present: len(present.intersection(names)) <= 1, message)


_TASK_SLICE = Parameter("axis", (int,), "the index of a slice, a whole number")
_AXIS_SIZE = Parameter(
    "axis",
    (int,),
    "the size of the axis, a whole number",
    minimum=1,
    too_small="axis `{name}` has {value} slices; it needs one or more",
)
_DEVICE_AXIS = Parameter("name", (str, type(None)), "a device axis in quotes, or None for replicated")
_LAYOUT = Parameter("name", (str, type(None)), 'logical names, such as `("batch", None)`')

_NOT_EMPTY = _beyond(message="`{0.name}` says nothing; write `{0.example}`")
_WHERE = _beyond(
    "name", "regex", message="`{0.name}` does not say where; write an axis and a slice of it: `{0.example}`"
)
# Ways to put results of microbatches together, as the runtime knows them.
_REDUCTIONS = ("exact", "mean", "sum", "concat", "max", "min")
_CONTRADICT = "`{}` and `{}` about one loop contradict each other; keep one"
_TASK_OR_STAGES = _CONTRADICT.format("task", "stages")

# Programs say the layout of a value without a hint too, by constraints and annotations: they count as this directive.
IMPLIED_LAYOUT = "shard"

DIRECTIVES = {
    directive.name: directive
    for directive in (
        Directive(
            "mesh",
            Role.MESH,
            ANYWHERE,
            "mesh(stage=4, data=2)",
            more=_AXIS_SIZE,
            requirements=(_NOT_EMPTY,),
            whole_module=True,
            declares="mesh",
            runtime=("MultiMesh",),
        ),
        Directive(
            "axes",
            Role.AXES,
            ANYWHERE,
            'axes(batch="data", mlp="model")',
            more=_DEVICE_AXIS,
            positional=None,
            requirements=(_NOT_EMPTY,),
            part_of="mesh",
            whole_module=True,
        ),
        Directive(
            "task",
            Role.PLACE,
            frozenset((STATEMENT, DEF, CLASS, FOR, WITH, CALL)),
            "task(stage=0)",
            (_text("name"),),
            more=_TASK_SLICE,
            positional=1,
            requirements=(_WHERE,),
            distinct="name",
            excludes={"stages": _TASK_OR_STAGES},
            excludes_on_loops={"microbatch": _CONTRADICT.format("microbatch", "task")},
            runtime=("Task",),
        ),
        Directive(
            "stages",
            Role.PLACE,
            frozenset((FOR, STATEMENT, OTHER)),
            'stages(axis="stage")',
            (
                _text("axis"),
                Parameter("weights", (str,), 'a sequence of numbers, "flops" or "auto"', ("flops", "auto")),
                _whole("chunks", 1, "{value} rounds of stages are none; `{name}` must be 1 or more"),
                _text("placement", "v"),
            ),
            positional=1,
            excludes={"task": _TASK_OR_STAGES, "microbatch": _CONTRADICT.format("microbatch", "stages")},
            rare=frozenset((STATEMENT, OTHER)),
            runtime=("stage", "stage_scan", "stage_sequential"),
        ),
        Directive(
            "microbatch",
            Role.MICROBATCH,
            frozenset((STATEMENT, FOR)),
            'microbatch(size=8, schedule="1f1b")',
            (
                _whole("size", 1, "a microbatch of {value} examples is none; `{name}` must be 1 or more"),
                _whole("count", 1, "{value} microbatches are none; `{name}` must be 1 or more"),
                Parameter("dim", (int,), "a whole number, or one for each argument that is cut", is_tree=True),
                Parameter("argnum", (int, str), "a whole number, or the name of a parameter in quotes", is_tree=True),
                _text("schedule", *SCHEDULES),
                Parameter(
                    "memory_bytes",
                    (str, int),
                    'a size in quotes, such as "40GiB", or a whole number of bytes',
                    minimum=1,
                    too_small="{value} bytes hold nothing; `{name}` must be 1 or more",
                    reads=parse_size,
                ),
                Parameter("reduce", (str,), "a string, or a tree of strings", _REDUCTIONS, is_tree=True),
                Parameter("check", (bool,), "True or False"),
                _text("batch_stats", "microbatch"),
                _text("sync", "step", "microbatch"),
                _text("all_gather"),
                _text("accumulate", "float32", "parameter"),
                _whole("slices", 1, "{value} slices of a sequence are none; `{name}` must be 1 or more"),
                Parameter(
                    "rng",
                    (int, str, type(None)),
                    "a whole number, the name of a parameter in quotes, or None to use one key for every microbatch",
                ),
            ),
            positional=1,
            requirements=(
                _at_most_one_of("size", "count", message="`size=` and `count=` contradict each other; keep one"),
                Requirement(
                    lambda present: "memory_bytes" not in present or "schedule" in present,
                    '`memory_bytes=` bounds the search for a schedule; write schedule="auto" beside it',
                ),
                Requirement(
                    lambda present: "check" not in present or "reduce" in present,
                    '`check=` is about a `reduce=` that is not proved; write that too, such as reduce="mean"',
                ),
                _at_most_one_of(
                    "sync",
                    "all_gather",
                    message='`all_gather=` adds gradients up once per step, as sync="step" does; leave `sync=` out',
                ),
                Requirement(
                    lambda present: not {"batch_stats", "check"} <= present,
                    "`batch_stats=` is for results that are proved, and `check=` for those that are not; keep one",
                ),
                _one_of("size", "count", message="`microbatch` needs `size=` (examples in one) or `count=` (how many)"),
            ),
            excludes={"stages": _CONTRADICT.format("microbatch", "stages")},
            excludes_on_loops={"task": _CONTRADICT.format("microbatch", "task")},
            runtime=("microbatch", "microbatch_loop", "microbatch_scan"),
        ),
        Directive(
            "shard",
            Role.LAYOUT,
            frozenset((STATEMENT, DEF, CALL)),
            'shard("batch", None)',
            (Parameter("from_annotations", (bool,), "True or False"),),
            more=_LAYOUT,
            positional=None,
            requirements=(_NOT_EMPTY,),
            runtime=("with_sharding_constraint", "reshard"),
        ),
        Directive("mjit", Role.COMPILE, frozenset((STATEMENT, DEF)), "mjit", runtime=("mjit",)),
        Directive(
            "parallelize",
            Role.COMPILE,
            frozenset((STATEMENT, DEF)),
            "parallelize(init_params=init, get_input_batch=load)",
            (_callable("init_params"), _callable("get_input_batch"), _callable("initial_batch")),
            requirements=(
                _one_of("init_params", message="`parallelize` needs `init_params=`; write `{0.example}`"),
                _one_of(
                    "get_input_batch",
                    "initial_batch",
                    message="`parallelize` needs `get_input_batch=` or `initial_batch=`; write `{0.example}`",
                ),
            ),
            supersedes="mjit",
            runtime=("parallelize",),
        ),
        Directive(
            "gather",
            Role.GATHER,
            frozenset((STATEMENT, CALL)),
            "gather(model)",
            positional=None,
            runtime=("gather",),
        ),
        Directive(
            "register",
            Role.PLACE,
            ANYWHERE,
            'register(r"h_(\\d+)", stage="int({0}) // 3")',
            (_text("regex"),),
            more=Parameter("axis", (int, str), 'a whole number, or an expression in quotes, such as "int({0}) // 3"'),
            positional=1,
            requirements=(
                _WHERE,
                _one_of("regex", message="`register` does not say which scopes; write `{0.example}`"),
            ),
            repeated=True,
            distinct="regex",
            whole_module=True,
            runtime=("Task", "register_task"),
        ),
        Directive(
            "verify",
            Role.PROOF,
            frozenset((STATEMENT, DEF)),
            "verify(args=make_example_args)",
            (_callable("args"),),
            requirements=(_one_of("args", message="`verify` does not say with which arguments; write `{0.example}`"),),
        ),
    )
}

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
    close = closest(word, words)
    if close is not None:
        return f"; did you mean `{close}`?"
    return f"; known: {', '.join(words)}" if words else ""


def closest(word: str, known: Iterable[str]) -> str | None:
    """The one of the `known` words that `nearest` suggests, None if none is near."""
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)), None)
