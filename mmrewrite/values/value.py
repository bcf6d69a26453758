"""Values of a program: where one begins, and what is done to it from there.

`trainer.make(x)["mesh"]` is the value of `trainer` with a path of four steps: an attribute, a call, and an item. Steps
that come before stand first. A value in a function may know the call that entered it, its frame.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.calls import PARTIALS

Function = ast.FunctionDef | ast.AsyncFunctionDef


class By(Enum):
    """How one value is got from another.

    With ATTRIBUTE comes a name, with ITEM a key, with CALL the arguments, with BOUND the object of which a method was
    read. ELEMENT is some element, as a loop takes it, REST a slice, ENTERED what `as` of a `with` gets.
    """

    ATTRIBUTE = "attribute"
    ITEM = "item"
    ELEMENT = "element"
    REST = "rest"
    CALL = "call"
    ENTERED = "entered"
    AWAITED = "awaited"
    BOUND = "bound"

    # Paths are looked up often, and that of an enumeration is code of Python.
    __hash__ = object.__hash__


class Access(NamedTuple):
    """One step of a path; `what` is described at `By`."""

    kind: By
    what: Any = None


class Key(NamedTuple):
    """A key that is written: 1 and True are one key, 1 and "1" are two."""

    kind: type
    text: object


Path = tuple[Access, ...]
ELEMENT, REST, ENTERED, AWAITED = (Access(kind) for kind in (By.ELEMENT, By.REST, By.ENTERED, By.AWAITED))
ANY_ITEM = Access(By.ITEM)


def attribute(name: str) -> Access:
    """The step to an attribute."""
    return Access(By.ATTRIBUTE, name)


def item(key: object) -> Access:
    """The step to the item of a key that is written."""
    return Access(By.ITEM, Key(int if isinstance(key, bool) else type(key), key))


class GivenValue(NamedTuple):
    """An argument by position; all elements of it if it is starred."""

    value: Value
    is_starred: bool = False


class CallArguments:
    """The arguments of a call, in one form however they are given; calls are equal if they are the same."""

    __slots__ = ("depth", "keywords", "node", "positional")

    def __init__(
        self,
        positional: Sequence[GivenValue],
        keywords: Sequence[tuple[str | None, Value]] = (),
        node: ast.Call | None = None,
    ) -> None:
        self.positional, self.keywords, self.node = tuple(positional), tuple(keywords), node
        frames = [each.value.frame for each in self.positional] + [value.frame for _, value in self.keywords]
        self.depth = max((frame.depth for frame in frames if frame is not None), default=0)

    def first(self) -> Value | None:
        """The first argument, None if it is not seen."""
        return self.at(0)

    def at(self, place: int, name: str | None = None) -> Value | None:
        """The argument at a place or of a name, None if it is not given or not seen."""
        given = self.positional[: place + 1]
        if len(given) > place and not any(each.is_starred for each in given):
            return given[place].value
        return next((value for word, value in self.keywords if word == name and word is not None), None)


class CallFrame(NamedTuple):
    """A call that entered a function, and the frame in which the function was made."""

    function: ast.AST
    call: CallArguments
    outer: CallFrame | None
    depth: int


class Decorated(NamedTuple):
    """A function or class with its decorators from a place on, as a name for it has it."""

    definition: Function | ast.ClassDef
    place: int


class Passed(NamedTuple):
    """What calls in view pass for a parameter. Only readers that go on behind it look for them."""

    parameter: ast.arg


class Own(NamedTuple):
    """An object of a class or of one below it, as `self` is; or such a class, as `cls` is."""

    definition: ast.ClassDef
    is_class: bool


class Display:
    """Values side by side: of a display, or of `*args` and `**kwargs`.

    Each has a key: a text in `**kwargs`, an expression in a display, None in a sequence. If its elements, not itself,
    stand there, it is spread. A display is loose if the places of its values are not seen.
    """

    __slots__ = ("entries", "is_loose", "is_mapping")

    def __init__(
        self,
        entries: Sequence[tuple[ast.expr | str | None, Value, bool]],
        *,
        is_mapping: bool,
        is_loose: bool = False,
    ) -> None:
        self.entries, self.is_mapping, self.is_loose = tuple(entries), is_mapping, is_loose


Head = ast.AST | str | Decorated | Passed | Own | Display


class Value(NamedTuple):
    """What is done to something: an expression, a definition, or by its full name what is out of the project.

    Attributes:
        module: The module that has the head, or that names it.
        head: Where the value begins.
        path: What is done to it.
        frame: The call that entered the function of the head, if it is known.
    """

    module: ModuleUses
    head: Head
    path: Path = ()
    frame: CallFrame | None = None

    def done(self, *steps: Access) -> Value:
        """What more steps make of it."""
        return Value(self.module, self.head, (*self.path, *steps), self.frame)

    @property
    def outside(self) -> str | None:
        """The full name of something out of the project with what is done to it: `jax.jit().lower()`."""
        return f"{self.head}{''.join(map(_text, self.path))}" if isinstance(self.head, str) else None

    @property
    def is_made(self) -> bool:
        """Whether this is an object that a class of the project makes."""
        # What a class holds is bound to an object only if it is a function.
        steps = [step.kind for step in self.path if step.kind is not By.BOUND]
        return isinstance(self.head, ast.ClassDef) and steps == [By.CALL]

    @property
    def own_class(self) -> ast.ClassDef | None:
        """The class of the project that this is an object of, as the class makes it or as `self`."""
        if self.is_made:
            return self.head if isinstance(self.head, ast.ClassDef) else None
        is_self = isinstance(self.head, Own) and not self.head.is_class and not self.path
        return self.head.definition if is_self and isinstance(self.head, Own) else None

    @property
    def bound(self) -> CallArguments | None:
        """The arguments of the `partial` that made this, its function first; None of anything else."""
        is_partial = self.head in PARTIALS if isinstance(self.head, str) else False
        return self.path[0].what if is_partial and self.path[:1] and self.path[0].kind is By.CALL else None

    @property
    def partial(self) -> CallArguments | None:
        """The same of what is a `partial` itself, and not what one gives when it is called."""
        return self.bound if len(self.path) == 1 else None

    @property
    def expression(self) -> ast.expr | None:
        """The expression that this is, if nothing is done to it."""
        return self.head if isinstance(self.head, ast.expr) and not self.path else None

    @property
    def line(self) -> int:
        """The line of the head."""
        head = self.head
        if isinstance(head, Decorated | Own):
            head = head.definition
        elif isinstance(head, Passed):
            head = head.parameter
        return getattr(head, "lineno", 1)


class Unknown(NamedTuple):
    """A value that may be anything, why, and the last that was known of it.

    It is open if it only may be another value than those which are seen, such as what other code passes.
    """

    reason: str
    value: Value | None = None
    is_open: bool = False


Behind = Sequence[Value | Unknown]


def _text(step: Access) -> str:
    if step.kind is By.ATTRIBUTE:
        return f".{step.what}"
    return {
        By.CALL: "()",
        By.ENTERED: ".__enter__()",
        By.AWAITED: ".__await__()",
        By.BOUND: "",
    }.get(step.kind, "[]")
