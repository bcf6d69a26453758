"""Whether all code is in view that some code runs, or hands on to be run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mmmodernize.meshes.mesh_contexts import run_now
from mmmodernize.types.libraries import is_known
from mmmodernize.types.value_classes import ARRAY_NAMES
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import last_name
from mmrewrite.values.annotations import classes_in
from mmrewrite.values.callbacks import may_be_called
from mmrewrite.values.callees import Callees, callees, given_functions
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.functions import results_of
from mmrewrite.values.operators import special_methods
from mmrewrite.values.value import (
    ELEMENT,
    ENTERED,
    Access,
    By,
    CallArguments,
    CallFrame,
    Decorated,
    Function,
    Own,
    Value,
    attribute,
)

# What goes through what it is given.
_GO_THROUGH = frozenset(
    (
        *(f"builtins.{name}" for name in ("enumerate", "iter", "list", "next", "reversed", "sorted", "tuple", "zip")),
        *(f"itertools.{name}" for name in ("chain", "cycle", "islice", "product", "tee", "zip_longest")),
    )
)
# Their objects call whatever they were made with.
_OBJECTS = frozenset(("equinox", "flax", "haiku", "optax", "transformers"))
# Objects of these classes run nothing of the program, whatever is done to them; and those whose items may be anything.
_PLAIN = ARRAY_NAMES | {
    *(f"builtins.{name}" for name in ("bool", "bytes", "complex", "float", "int", "str")),
    *("logging.Logger", "numpy.ndarray", "pathlib.Path"),
}
_CONTAINERS = frozenset(
    (
        *(f"builtins.{name}" for name in ("dict", "frozenset", "list", "set", "tuple")),
        *(f"typing.{name}" for name in ("Dict", "FrozenSet", "List", "Set", "Tuple")),
    )
)


_RUN_TEXTS = frozenset(("builtins.eval", "builtins.exec"))
_MAKE: Sequence[str] = ("__init__", "__new__", "__post_init__", "setup")
_OF_METACLASSES: Sequence[str] = ("__call__",)


class EnteredCode(NamedTuple):
    """Some code, and the call that entered its function, if that is known."""

    module: ModuleUses
    node: ast.AST
    frame: CallFrame | None = None

    @property
    def parts(self) -> Sequence[EnteredCode]:
        """What runs of a definition, without its own decorators and defaults."""
        node = self.node
        inside = [node.body] if isinstance(node, ast.Lambda) else [*node.body] if isinstance(node, Function) else []
        return [self._replace(node=each) for each in inside]


class OutOfView(Exception):
    """The place that ends a search, in words for a message: what it runs is not in view, say."""


class CodeInView:
    """Follows calls through the project. Unlike the reach of a context, it says what it cannot follow."""

    def __init__(self, flow: ValueFlow) -> None:
        self._flow = flow

    def led_to(self, module: ModuleUses, nodes: Iterable[ast.AST]) -> set[ast.AST] | None:
        """The code itself and all definitions that it runs or hands on, None if it may run others."""
        search = CodeSearch(self._flow, module, hides_in_objects=True)
        return search.seen if search.why_stopped(nodes) is None else None

    def why_not(self, module: ModuleUses, nodes: Iterable[ast.AST]) -> str | None:
        """The first place that may run code out of view, other than that of known libraries, else None."""
        return CodeSearch(self._flow, module, hides_in_objects=False).why_stopped(nodes)


class CodeSearch:
    """Goes through all code that some code runs, or hands on to be run, until something stops it.

    Args:
        flow: The values of the project.
        home: The module of the code.
        hides_in_objects: Whether objects of libraries may run code that is not in view.
    """

    def __init__(self, flow: ValueFlow, home: ModuleUses, *, hides_in_objects: bool) -> None:
        self._flow, self._home, self._hides_in_objects = flow, home, hides_in_objects
        # The code itself, and all that it leads to.
        self.seen: set[ast.AST] = set()

    def why_stopped(self, nodes: Iterable[ast.AST]) -> str | None:
        """The first place that stops the search, in words for a message, else None."""
        try:
            self._run(nodes)
        except OutOfView as error:
            return str(error)
        return None

    def _run(self, nodes: Iterable[ast.AST]) -> None:
        queue = [EnteredCode(self._home, node) for node in nodes]
        for part in run_now(code.node for code in queue):
            if isinstance(part, ast.Yield | ast.YieldFrom):
                raise OutOfView(f"line {part.lineno} lets other code run")
        self._go_through(queue)

    def _go_through(self, queue: list[EnteredCode]) -> None:
        """Look at some code and at all that it leads to."""
        self.seen.update(code.node for code in queue)
        # Another call may give a function something else.
        entered = {*queue}
        for code in queue:
            if self._is_enough(len(entered)):
                return
            for part in run_now([code.node]):
                self._look_at(code, part)
                for each in self._entered_at(code, part):
                    if each not in entered:
                        entered.add(each)
                        self.seen.add(each.node)
                        queue += each.parts

    def _entered_at(self, code: EnteredCode, part: ast.AST) -> Iterator[EnteredCode]:
        for value, text in self._run_at(code, part):
            yield from self._led_to(code, part, value, text)
        for node, names in special_methods(part):
            if any(map(self._flow.stores.in_classes, names)):
                yield from self._methods(Value(code.module, node, (), code.frame), names)

    def _is_named(self, module: ModuleUses, base: ast.expr) -> bool:
        return self._flow.full_name(module, base) is not None or self._flow.class_at(module, base) is not None

    def _methods(self, value: Value, names: Sequence[str]) -> Iterator[EnteredCode]:
        """The methods that Python calls of what is seen to be an object of the project, or a class of it."""
        for found in self._flow.may(value, _object).answers:
            definition = found.head.definition if isinstance(found.head, Own) else found.head
            assert isinstance(definition, ast.ClassDef)
            for home, each in self._flow.bases(found.module, definition).classes:
                for name in names:
                    for binding in home.facts.names.inner[each].bindings.get(name, ()):
                        if isinstance(binding.node, Function) and (name.startswith("__") or _is_property(binding.node)):
                            yield EnteredCode(home, binding.node)
                        elif isinstance(binding.value, ast.Call):
                            made = Value(home, binding.value)
                            yield from self._methods(made, ("__get__", "__set__") if names[0] != "__get__" else ())

    def _is_enough(self, number: int) -> bool:
        """Whether a search can end that has entered so much code."""
        return False

    def _look_at(self, code: EnteredCode, part: ast.AST) -> None:
        """Stop at a node for what it is itself."""

    def _stop_at(self, code: EnteredCode, part: ast.AST, value: Value, *, is_handed_on: bool) -> None:
        """Stop where something of a known library is called, or handed on to be called."""

    def _stop(self, text: str) -> None:
        """Stop where code out of view may run."""
        raise OutOfView(text)

    def _out_of_view(self, code: EnteredCode, part: ast.AST, value: Value, text: str) -> Iterable[EnteredCode]:
        """Stop where what runs may be out of view; a search that goes on says which code in view it may be."""
        self._stop(self._told(code, part, value, text))
        return ()

    def _told(self, code: EnteredCode, part: ast.AST, value: Value, text: str) -> str:
        """That what a place runs is not in view; `text` says what it does with a value."""
        return f"{self._place(code, part, value)} {text}"

    def _place(self, code: EnteredCode, part: ast.AST, value: Value) -> str:
        line = f"line {getattr(part, 'lineno', value.line)}"
        return line if code.module is self._home else f"{line} of {code.module.facts.path}"

    def _run_at(self, code: EnteredCode, part: ast.AST) -> Iterator[tuple[Value, str]]:
        """What runs at a node, with words for it."""
        match part:
            case ast.Call(func=function):
                call = self._flow.call_at(code.module, part, code.frame)
                yield Value(code.module, function, (Access(By.CALL, call),), code.frame), "calls"
                for keyword in part.keywords if isinstance(function, ast.Attribute) and function.attr == "sort" else ():
                    called = Access(By.CALL, self._flow.no_arguments)
                    yield Value(code.module, keyword.value, (called,), code.frame), "sorts by"
            case ast.For(iter=source) | ast.AsyncFor(iter=source) | ast.comprehension(iter=source):
                yield self._gone_through(Value(code.module, source, (), code.frame)), "goes through"
            case ast.withitem(context_expr=source):
                yield Value(code.module, source, (ENTERED,), code.frame), "enters"
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for decorator in part.decorator_list:
                    called = Access(By.CALL, self._flow.call_with(Value(code.module, part)))
                    yield Value(code.module, decorator, (called,), code.frame), "decorates by"
                for base in part.bases if isinstance(part, ast.ClassDef) else ():
                    if isinstance(base, ast.Name | ast.Attribute) and not self._is_named(code.module, base):
                        self._stop(
                            f"{self._place(code, part, Value(code.module, base))} derives from `{ast.unparse(base)}`"
                        )
            case ast.Await():
                self._stop(f"line {part.lineno} of {code.module.facts.path} lets other code run")
            case _:
                pass

    def _led_to(self, code: EnteredCode, part: ast.AST, value: Value, text: str) -> Iterator[EnteredCode]:
        """The code that is run, and of libraries the functions that they are given."""
        found = callees(self._flow, value, self._is_plain)
        self.seen.update(each for each in found.passed if not isinstance(each, Function | ast.Lambda))
        hidden = self._hides_in_objects and any(f"{each.head}".partition(".")[0] in _OBJECTS for each in found.outside)
        are_stubs = [_is_stub(each) for each in found.definitions]
        if hidden or _has_unknown(found) or (are_stubs and all(are_stubs)):
            yield from self._out_of_view(code, part, value, f"{text} `{_shown(value)}`")
        for each in found.outside:
            self._stop_at(code, part, each, is_handed_on=False)
        for each in found.definitions:
            yield from self._code_of(each)
        for each in found.outside:
            yield from self._handed_on(code, part, each)

    def _is_plain(self, value: Value) -> bool:
        """Whether an annotation says that what is done to a parameter runs nothing of the program."""
        module, parameter, path, _ = value
        if not isinstance(parameter, ast.arg) or (path and path[0].kind is By.CALL):
            return False
        arguments = module.parents[parameter]
        assert isinstance(arguments, ast.arguments)
        names = {
            module.facts.names.resolve(each, module.scope_of(parameter.annotation or parameter))
            for each in classes_in(parameter.annotation)
        }
        if parameter in (arguments.vararg, arguments.kwarg):
            names.add("builtins.dict")
        if not names or not names <= _PLAIN | _CONTAINERS:
            return False
        steps = path[:-2] if path[-2:-1] == (attribute("__iter__"),) else path
        return names <= _PLAIN or [step.kind for step in steps] in ([], [By.ATTRIBUTE, By.CALL])

    def _gone_through(self, value: Value) -> Value:
        return value.done(attribute("__iter__"), Access(By.CALL, self._flow.no_arguments))

    def _code_of(self, value: Value) -> Iterator[EnteredCode]:
        """The code of a definition that is called."""
        if not isinstance(value.head, ast.ClassDef):
            frame = None
            call = value.path[0].what
            depth = 1 + max(call.depth, value.frame.depth if value.frame is not None else 0)
            if depth <= 2 and isinstance(value.head, ast.AST):
                frame = CallFrame(value.head, call, value.frame, depth)
            assert isinstance(value.head, ast.AST)
            yield EnteredCode(value.module, value.head, frame)
            return
        bases = self._flow.bases(value.module, value.head)
        made_by = [(each, _OF_METACLASSES) for each in bases.metaclasses]
        made_by += [(each, _MAKE) for each in bases.classes]
        for (home, definition), names in made_by:
            for name in names:
                for binding in home.facts.names.inner[definition].bindings.get(name, ()):
                    if isinstance(binding.node, Function):
                        yield EnteredCode(home, binding.node)

    def _handed_on(self, code: EnteredCode, part: ast.AST, value: Value) -> Iterator[EnteredCode]:
        """The functions that a call of a library may call, and the methods of an object that derives from one."""
        # What is gone through may be the result of such a call elsewhere.
        is_here = [step.kind for step in value.path] == [By.CALL] and value.path[0].what.node is part
        if value.head in _GO_THROUGH and isinstance(part, ast.Call) and is_here:
            for argument in part.args:
                if not isinstance(argument, ast.Lambda):
                    source = self._gone_through(Value(code.module, argument, (), code.frame))
                    yield from self._led_to(code, part, source, "goes through")
        for place, step in enumerate(value.path):
            call = step.what
            if not isinstance(call, CallArguments):
                continue
            before = value.path[place - 1] if place else None
            name = f"{value.head}" if before is None else before.what if before.kind is By.ATTRIBUTE else None
            for each in given_functions(call):
                is_called = name is not None and may_be_called(name, call, each)
                # `jax.lax.switch` is given several.
                is_display = isinstance(each.head, ast.List | ast.Tuple) and not each.path
                function = each.done(ELEMENT) if is_display else each
                found = callees(self._flow, function.done(Access(By.CALL, self._flow.no_arguments)))
                if is_called and _has_unknown(found):
                    yield from self._out_of_view(code, part, each, f"hands `{_shown(each) or name}` on")
                for other in found.outside if is_called else ():
                    self._stop_at(code, part, other, is_handed_on=True)
                for definition in found.definitions:
                    # With which arguments is not seen.
                    yield from (inner._replace(frame=definition.frame) for inner in self._code_of(definition))


def _has_unknown(found: Callees) -> bool:
    """Whether code may run that is in no file of the project and in no known library. What the project passes is."""
    return any(not each.is_open for each in found.unknown) or not all(
        is_known(f"{each.head}") and each.head not in _RUN_TEXTS for each in found.outside
    )


def _shown(value: Value) -> str:
    """What a value is called: a function by its name, an expression as it is written."""
    head = value.head.definition if isinstance(value.head, Decorated) else value.head
    return ast.unparse(head) if isinstance(head, ast.expr) else getattr(head, "name", "")


def _object(value: Value) -> Value | None:
    """An object of the project, or a class of it."""
    is_class = isinstance(value.head, ast.ClassDef | Own) and not value.path
    return value if value.is_made or is_class else None


def _is_property(function: Function) -> bool:
    return any((last_name(each) or "") in ("property", "cached_property", "setter") for each in function.decorator_list)


def _is_stub(value: Value) -> bool:
    """Whether a method says nothing, so that it is for others to override."""
    holder = value.module.parents.get(value.head) if isinstance(value.head, Function) else None
    return isinstance(holder, ast.ClassDef) and isinstance(value.head, Function) and results_of(value.head).is_stub
