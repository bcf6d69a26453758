"""One step back from a value, remembered, and the two readers: `may`, to report by, and `must`, to edit by."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding, Scope
from mmrewrite.values import arguments, classes, containers, functions, library, names, operators
from mmrewrite.values.kept import TakenOut, kept_by, taken_out, takes_out
from mmrewrite.values.stores import Store, Stores, TextWrite
from mmrewrite.values.targets import Taken, of_target, written
from mmrewrite.values.texts import ANYTHING, Texts, texts_of
from mmrewrite.values.value import (
    AWAITED,
    Access,
    Behind,
    By,
    CallArguments,
    CallFrame,
    Decorated,
    Display,
    Function,
    GivenValue,
    Own,
    Passed,
    Path,
    Unknown,
    Value,
    attribute,
    item,
)

Answer = TypeVar("Answer")
# A value that is followed for so many steps, or for so many values, is unknown.
_LONGEST_PATH = 8
MOST_VALUES = 600
# What a class holds is given the object that it is read of only if it is a function.
_NEVER_BOUND = (
    *(ast.Constant, ast.JoinedStr, ast.BinOp, ast.Tuple, ast.List, ast.Set, ast.Dict, Display),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
# What a step back asks of other values may ask of others again, so deep.
_MOST_QUESTIONS = 20
# Values that are but other ways to write one are passed over, so many of them.
_LONGEST_WAY = 20


class FoundValues(NamedTuple, Generic[Answer]):
    """What a value may be.

    Attributes:
        answers: What the test of leaves said, each with the nearest value of which it did.
        others: Where values end that the test knew nothing of.
        unknown: What may be anything.
        places: The file and the line where each answer is written.
    """

    answers: Mapping[Answer, Value]
    others: Sequence[Value]
    unknown: Sequence[Unknown]
    places: Mapping[Answer, str]


class ValueFlow:
    """The values of a project.

    Args:
        project: Its modules.
        modules: The uses of names of those that may change, by path.
    """

    def __init__(self, project: Project, modules: Mapping[str, ModuleUses]) -> None:
        self.project, self._modules = project, modules
        self._loaded: dict[str, ModuleUses] = {}
        self.stores = Stores(lambda: self.modules)
        self.no_arguments = CallArguments(())
        self._behind: dict[Value, Behind] = {}
        self._asked: dict[tuple[object, ...], Any] = {}
        self._named: dict[Value, Sequence[Value]] = {}
        self._depth = 0
        self._calls: dict[tuple[ast.AST, CallFrame | None], CallArguments] = {}
        self._merged: dict[tuple[object, ...], CallArguments] = {}
        self._bases: dict[ast.ClassDef, classes.Bases] = {}
        self._given: dict[ast.AST, tuple[Sequence[CallArguments], str | None]] = {}
        self._passed: dict[ast.arg, tuple[Sequence[CallArguments], Sequence[Value | Unknown]]] = {}
        self._replacing: dict[str, Sequence[tuple[Store, Path]]] = {}
        self._targets: dict[ast.AST, Taken | None] = {}
        self._owning: dict[Store, Collection[str]] = {}
        self._setting: dict[Store, Collection[ast.ClassDef] | None] = {}
        self._texts: dict[Value, Texts] = {}
        self._kept: dict[str, Mapping[str, Sequence[Value]]] = {}

    # Modules and names

    @property
    def modules(self) -> Collection[ModuleUses]:
        """The modules that may change."""
        return self._modules.values()

    def uses_of(self, facts: Facts) -> ModuleUses:
        """The uses of names of a module."""
        known = self._modules.get(facts.path) or self._loaded.get(facts.path)
        if known is None:
            known = self._loaded[facts.path] = ModuleUses(facts, project=self.project)
        return known

    def is_beside(self, module: ModuleUses, *packages: str) -> bool:
        """Whether a module, what it imports or what imports it names a package, so that objects of it may come."""
        if not module.roots.isdisjoint(packages):
            return True

        def find() -> bool:
            facts = module.facts
            tied = (*self.project.connected(facts), *self.project.imported_by([facts]).values())
            return any(not self.uses_of(each).roots.isdisjoint(packages) for each in tied)

        return self.project.once(("beside", packages, module), find)

    def full_name(self, module: ModuleUses, node: ast.expr) -> str | None:
        """The full name that an expression resolves to where one binding decides."""
        return module.full_name(node)

    def outside(self, module: ModuleUses, name: str, path: Path = ()) -> Value:
        """Something out of the project, with the attributes of it as part of its name."""
        count = 0
        while count < len(path) and path[count].kind is By.ATTRIBUTE:
            count += 1
        dotted = ".".join((name, *(step.what for step in path[:count])))
        return Value(module, module.facts.names.full_name(dotted, "") or dotted, path[count:])

    def of_full_name(self, module: ModuleUses, name: str, path: Path) -> Iterator[Value | Unknown]:
        """The values of a full name."""
        return names.of_full_name(self, module, name, path)

    def class_at(self, module: ModuleUses, node: ast.expr, scope: Scope | None = None) -> classes.Definition | None:
        """The class of the project that a name stands for, where one binding decides.

        An expression that is read out of a text has the scope of the text.
        """
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        scope = module.scope_of(node) if scope is None else scope
        binding = module.facts.names.binding(node.id, scope) if isinstance(node, ast.Name) else None
        if binding is not None and isinstance(binding.node, ast.ClassDef):
            return module, binding.node
        name = module.facts.names.resolve(node, scope)
        place = self.project.definition(name, module.facts) if name is not None else None
        if place is not None and isinstance(place[1].node, ast.ClassDef):
            return self.uses_of(place[0]), place[1].node
        return None

    def function_at(self, module: ModuleUses, node: ast.expr) -> tuple[ModuleUses, Function] | None:
        """The function of the project that a name stands for, where one binding decides and nothing decorates it."""
        found = self.binding_at(module, node)
        function = found[1].node if found is not None else None
        if found is None or not isinstance(function, Function) or function.decorator_list:
            return None
        return found[0], function

    def binding_at(self, module: ModuleUses, node: ast.expr) -> tuple[ModuleUses, Binding] | None:
        """The only binding of a name in the project, with its module."""
        binding = module.facts.names.binding(node.id, module.scope_of(node)) if isinstance(node, ast.Name) else None
        if binding is not None and binding.kind != "import":
            return module, binding
        name = binding.target if binding is not None else self.full_name(module, node)
        place = self.project.definition(name, module.facts) if name is not None else None
        return (self.uses_of(place[0]), place[1]) if place is not None else None

    def bases(self, module: ModuleUses, definition: ast.ClassDef) -> classes.Bases:
        """A class and all that it derives from."""
        if definition not in self._bases:
            self._bases[definition] = classes.bases_of(self, module, definition)
        return self._bases[definition]

    def below(self, definition: ast.ClassDef) -> Sequence[classes.Definition]:
        """The classes that derive from a class."""
        return self._below.get(definition, ())

    @cached_property
    def _below(self) -> Mapping[ast.ClassDef, Sequence[classes.Definition]]:
        found: dict[ast.ClassDef, list[classes.Definition]] = {}
        for module in self.modules:
            for definition in module.nodes_of(ast.ClassDef):
                for _, base in self.bases(module, definition).classes[1:] if definition.bases else ():
                    found.setdefault(base, []).append((module, definition))
        return found

    # Calls

    def call_at(self, module: ModuleUses, node: ast.Call, frame: CallFrame | None) -> CallArguments:
        """The arguments of a call that is written."""
        # Without arguments it is one call wherever it stands: else recursion would have frames without end.
        key = (node, frame if node.args or node.keywords else None)
        if key not in self._calls:
            positional = [
                GivenValue(
                    Value(module, each.value if isinstance(each, ast.Starred) else each, (), frame),
                    isinstance(each, ast.Starred),
                )
                for each in node.args
            ]
            self._calls[key] = CallArguments(
                positional, [(each.arg, Value(module, each.value, (), frame)) for each in node.keywords], node
            )
        return self._calls[key]

    def call_with(self, value: Value, *, is_starred: bool = False) -> CallArguments:
        """A call with one argument, or with the elements of one, the same for the same one."""
        return self._once(("with", value, is_starred), lambda: CallArguments([GivenValue(value, is_starred)]))

    def call_of(self, values: Sequence[Value]) -> CallArguments:
        """A call with some arguments."""
        return functions.call_of(values)

    def merged(self, owner: Value, call: CallArguments) -> CallArguments:
        """The call of a method with its object."""
        return self._once(("bound", owner, call), lambda: arguments.with_first(owner, call))

    def joined(self, partial: CallArguments, call: CallArguments) -> CallArguments:
        """The call of what `partial` gives."""
        return self._once(("joined", partial, call), lambda: arguments.joined(arguments.without_first(partial), call))

    def rest_of(self, call: CallArguments) -> CallArguments:
        """A call without its first argument."""
        return self._once(("rest", call), lambda: arguments.without_first(call))

    def same(self, made: CallArguments, call: CallArguments, step: Access | Path) -> CallArguments:
        """A call that is made of another one, the first of its kind."""
        return self._once(("of", call, step), lambda: made)

    def _once(self, key: tuple[object, ...], make: Callable[[], CallArguments]) -> CallArguments:
        if key not in self._merged:
            self._merged[key] = make()
        return self._merged[key]

    def at(self, module: ModuleUses, node: ast.expr) -> Value:
        """The value of an expression of a module."""
        return Value(module, node)

    def value_in(self, facts: Facts, node: ast.expr) -> Value:
        """The value of an expression of a module."""
        return Value(self.uses_of(facts), node)

    def argument(self, module: ModuleUses, node: ast.expr) -> GivenValue:
        """An expression as an argument."""
        return GivenValue(Value(module, node))

    def calls_of(self, module: ModuleUses, definition: ast.AST) -> tuple[Sequence[CallArguments], str | None]:
        """The calls of a definition in view, and why there may be others."""
        if definition not in self._given:
            from mmrewrite.values.uses import calls_of

            # What it is passed to may lead here again.
            self._given[definition] = (), "functions are passed around in a circle"
            self._given[definition] = calls_of(self, module, definition)
        return self._given[definition]

    def passed(
        self, module: ModuleUses, function: Function | ast.Lambda, parameter: ast.arg, calls: Sequence[CallArguments]
    ) -> Sequence[Value | Unknown]:
        """What calls of a function pass for a parameter."""
        known = self._passed.get(parameter)
        if known is None or known[0] is not calls:
            # The calls of what is passed around in a circle are found later.
            given = (arguments.of_parameter(module, function, parameter, each, None) for each in calls)
            known = self._passed[parameter] = calls, tuple(dict.fromkeys(chain.from_iterable(given)))
        return known[1]

    # Stores

    def source_of(self, store: Store) -> ast.expr | None:
        """What a place assigns to an attribute, if it is that alone."""
        if store.value is not None:
            return store.value
        taken = self._taken(store)
        if taken is None or not isinstance(taken.source, ast.expr):
            return None
        source, path = taken.source, taken.path
        while path and isinstance(source, ast.Tuple | ast.List):
            # `self.a, self.b = 1, x`
            place = path[0].what.text if path[0].kind is By.ITEM else None
            if not isinstance(place, int) or not 0 <= place < len(source.elts):
                return None
            if any(isinstance(each, ast.Starred) for each in source.elts):
                return None
            source, path = source.elts[place], path[1:]
        return source if not path else None

    def _taken(self, store: Store) -> Taken | None:
        # What many objects may have is asked for with each.
        if store.node not in self._targets:
            self._targets[store.node] = of_target(store.module, store.node)
        return self._targets[store.node]

    def stored(self, store: Store, path: Path, frame: CallFrame | None) -> Iterator[Value | Unknown]:
        """What a place stores."""
        source = store.value or store.node
        inside = frame if frame is not None and frame.function in store.module.above(store.node) else None
        if store.value is not None:
            yield Value(store.module, source, path, inside)
            return
        parent = store.module.parents[store.node]
        if isinstance(parent, ast.AnnAssign) and parent.value is None:
            return
        taken = self._taken(store)
        if taken is None:
            for call in self.calls_of(store.module, store.node)[0] if isinstance(store.node, ast.Call) else ():
                # `partial(setattr, x, "a")`
                yield from (each.value.done(*path) for each in call.positional[-1:])
            if not isinstance(parent, ast.Delete):
                yield Unknown("what is stored cannot be seen", Value(store.module, store.node, path))
        else:
            yield Value(store.module, taken.source, (*taken.path, *path), inside)

    def may_be(self, store: Store, definition: ast.AST) -> bool:
        """Whether a store's target may be a definition or an object that it makes, by what its name is bound to."""
        target = store.target
        if isinstance(target, ast.Constant):
            return f"{store.owner()}".endswith(getattr(definition, "name", ""))
        if not isinstance(target, ast.Name):
            return True
        owner = store.module.scope_of(target).owner(target.id)
        bindings = owner.bindings[target.id] if owner is not None else []
        return not bindings or any(self._may_give(store.module, each, definition) for each in bindings)

    def _may_give(self, module: ModuleUses, binding: Binding, definition: ast.AST) -> bool:
        value = binding.value
        if binding.kind in ("function", "class"):
            return binding.node is definition
        if binding.kind == "import":
            place = self.project.definition(binding.target, module.facts) if binding.target is not None else None
            if place is not None and isinstance(place[1].node, Function | ast.ClassDef):
                return place[1].node is definition
            # An object of another module.
            is_open = place is not None or not isinstance(definition, ast.ClassDef)
            return is_open or f"{binding.target}".endswith(getattr(definition, "name", ""))
        if isinstance(value, ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.Set | ast.JoinedStr):
            return False
        if isinstance(value, ast.Call):
            made = self.class_at(module, value.func)
            if made is not None:
                is_one = isinstance(definition, ast.ClassDef)
                return is_one and any(each is definition for _, each in self.bases(*made).classes)
            name = self.full_name(module, value.func)
            return name is None or name == "builtins.object.__new__" or self.project.holds(name, module.facts)
        if isinstance(value, ast.Name):
            found = self.class_at(module, value)
            return found is None or found[1] is definition
        return True

    def may_set(self, store: Store, definition: ast.ClassDef) -> bool:
        """Whether a place sets an attribute of a class or its objects, by where its target comes from."""
        if store not in self._setting:
            # What the target is may lead here again.
            self._setting[store] = None
            found = self.may(Value(store.module, store.target), classes.definition_of).answers
            self._setting[store] = {each for _, each in found}
        known = self._setting[store]
        return known is None or definition in known

    def _replaced(self, value: Value, name: str) -> Iterator[Value | Unknown]:
        """What the project puts in the place of something of a library, or of an object that it makes.

        `jax.sharding.Mesh = lock`, `args = parser.parse_args()` and `args.mesh = mesh`.
        """
        for store, rest in self.replacing(name):
            yield from self.stored(store, (*rest, *value.path), None)
        for place, step in enumerate(value.path):
            if place and step.kind is By.ATTRIBUTE:
                owner = value._replace(path=value.path[:place]).outside
                for store in self.stores.of_modules(step.what):
                    if owner in self._owners(store):
                        yield from self.stored(store, value.path[place + 1 :], None)

    def set_elsewhere(
        self, module: ModuleUses, own: str, name: str | None = None, *, by_any_text: bool = False
    ) -> Iterator[Store | TextWrite]:
        """Where a name of a module is set but by its bindings, or what it leads to out of the project is replaced.

        With `by_any_text` also where names are bound that only a run knows.
        """
        yield from self.stores.set_in(module, own)
        if name is not None and not self.project.holds(name, module.facts):
            yield from (store for store, _ in self.replacing(name))
        for each in self.stores.written_by_text.get(module, ()):
            binds = self.binds(each, own)
            if by_any_text if binds is None else binds:
                yield each

    def binds(self, write: TextWrite, name: str) -> bool | None:
        """Whether a place binds a name by its text, None if only a run knows."""
        if write.names is not None:
            return name in write.names
        found = self.texts(Value(write.module, write.text)).texts if write.text is not None else (ANYTHING,)
        is_code = write.node.id == "exec"
        unseen = [text for text in found if (ANYTHING in text if is_code else text == ANYTHING)]
        seen = Texts([text for text in found if text not in unseen], is_whole=not unseen)
        # Code may read code out of a text in turn.
        binds = any(name in re.findall(r"\w+", text) for text in seen.texts) if is_code else seen.may_be(name)
        return binds or (None if unseen else False)

    def replacing(self, name: str) -> Sequence[tuple[Store, Path]]:
        """The places that set what has a full name out of the project, each with the attributes that follow."""
        if name not in self._replacing:
            # What the targets are may lead here again.
            self._replacing[name] = ()
            self._replacing[name] = [*self._stores_over(name)]
        return self._replacing[name]

    def _stores_over(self, name: str) -> Iterator[tuple[Store, Path]]:
        """The places that set a full name, or a module or class above it, each with the attributes that follow."""
        parts = name.split(".")
        for count in range(len(parts)):
            owner, rest = ".".join(parts[:count]), tuple(map(attribute, parts[count + 1 :]))
            for store in (*self.stores.of_modules(parts[count]), *(self.stores.computed if count else ())):
                if store.holder is None and owner in self._owners(store):
                    yield store, rest

    def _owners(self, store: Store) -> Collection[str]:
        """The full names out of the project of what the target of a store may be."""
        if store not in self._owning:
            # What the target is may lead here again.
            self._owning[store] = ()
            found = store.owner()
            if found is not None and not self.project.holds(found, store.module.facts):
                self._owning[store] = (found,)
            else:
                target = Value(store.module, store.target)
                named = self.may(target, _made_outside)
                self._owning[store] = frozenset(named.answers)
        return self._owning[store]

    def kept_by(self, home: str) -> Sequence[Value]:
        """What code in view gives a module out of view to keep."""
        package = home.partition(".")[0]
        if package not in self._kept:
            self._kept[package] = kept_by(self, package)
        return self._kept[package].get(home, ())

    # Texts

    def text(self, value: Value) -> str | None:
        """The text that a value is, as written or by a name."""
        return self.must(value, _text)

    def texts(self, value: Value) -> Texts:
        """The texts that a value may be, for names that are computed."""
        if value not in self._texts:
            # What it is may lead here again.
            self._texts[value] = Texts([ANYTHING], is_whole=False)
            self._texts[value] = texts_of(self, value)
        return self._texts[value]

    def key(self, value: Value) -> Access:
        """The step to the item of a key."""
        return containers.key_step(value)

    # One step back

    def behind(self, value: Value) -> Behind:
        """The values that this value may be, one step back; none where there is nothing to go back to."""
        found = self._behind.get(value)
        if found is None:
            if len(value.path) > _LONGEST_PATH:
                found = (Unknown("too much is done to it to be followed", value),)
            elif self._depth >= _MOST_QUESTIONS:
                # Asked by itself, it may be seen.
                return (Unknown("too many questions lead to one another", value),)
            else:
                # What a step asks may lead here again.
                self._behind[value] = (Unknown("what it is depends on itself", value),)
                self._depth += 1
                try:
                    found = tuple(self._step(value))
                finally:
                    self._depth -= 1
                if len(found) > 1:
                    found = tuple(dict.fromkeys(found))
            self._behind[value] = found
        return found

    def _step(self, value: Value) -> Iterator[Value | Unknown]:
        module, head, path, frame = value
        if path and path[0].kind is By.BOUND and isinstance(head, _NEVER_BOUND):
            yield Value(module, head, path[1:], frame)
            return
        match head:
            case str():
                yield from library.of_outside(self, value)
            case Own():
                yield from classes.of_own(self, value)
            case Decorated():
                yield from functions.of_decorated(self, value)
            case Passed():
                yield from functions.of_passed(self, value)
            case Display():
                yield from containers.of_display(self, value, head)
            case ast.Name():
                yield from names.of_name(self, value)
            case ast.Attribute(value=inner, attr=name):
                yield Value(module, inner, (attribute(name), *path), frame)
            case ast.Call(func=function):
                yield Value(module, function, (Access(By.CALL, self.call_at(module, head, frame)), *path), frame)
            case ast.Subscript(value=ast.Call(func=ast.Name(id="globals" | "vars")) as inner, slice=key):
                for text in self.texts(Value(module, key, (), frame)).texts:
                    yield Value(module, inner, (item(text), *path), frame)
            case ast.Subscript(value=inner, slice=key):
                yield Value(module, inner, (self._subscript(module, key), *path), frame)
            case ast.IfExp(body=first, orelse=second):
                yield Value(module, first, path, frame)
                yield Value(module, second, path, frame)
            case ast.BoolOp(values=parts):
                yield from (Value(module, each, path, frame) for each in parts)
            case ast.NamedExpr(value=inner) | ast.Starred(value=inner) | ast.FormattedValue(value=inner):
                if not isinstance(head, ast.FormattedValue):
                    yield Value(module, inner, path, frame)
            case ast.Await(value=inner):
                yield Value(module, inner, (AWAITED, *path), frame)
            case ast.Yield():
                yield from functions.of_sent(self, value)
            case ast.YieldFrom(value=inner):
                # As `await` does, this gives what a generator returns.
                yield Value(module, inner, (AWAITED, *path), frame)
            case ast.ExceptHandler():
                yield from names.of_caught(self, value)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from functions.of_function(self, value)
            case ast.ClassDef():
                yield from classes.of_class(self, value)
            case ast.Module():
                yield from names.of_module(self, value)
            case ast.arg():
                yield from functions.of_argument(self, value)
            case ast.Tuple() | ast.List() | ast.Set() | ast.Dict():
                if path:
                    yield from containers.of_display(self, value, containers.display_of(value))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                yield from containers.of_comprehension(value)
            case ast.BinOp() | ast.AugAssign() | ast.UnaryOp():
                yield from operators.of_operator(self, value)
            case ast.Constant():
                if path and head.value is None:
                    return
            case ast.Import() | ast.ImportFrom():
                yield Unknown("an import leads out of the project", value)
            case _:
                pass

    def _subscript(self, module: ModuleUses, key: ast.expr) -> Access:
        return containers.subscript_step(self.written(module, key))

    def written(self, module: ModuleUses, node: ast.expr) -> ast.expr:
        """An expression, or the constant for which its name stands, if no other module sets the name."""
        if isinstance(node, ast.Name) and node.id == "__name__" and module.scope_of(node).owner(node.id) is None:
            return ast.Constant(module.facts.names.name)
        found = written(module, node)
        stores = self.stores.set_in(module, node.id) if isinstance(node, ast.Name) and found is not node else ()
        return node if any(True for _ in stores) else found

    # Readers

    def walk(
        self,
        value: Value,
        test: Callable[[Value], Answer | None],
        *,
        by_name: bool = False,
        also: Callable[[Value], Iterable[Value]] | None = None,
        came: dict[Value, Value] | None = None,
    ) -> Iterator[tuple[Answer | None, Value | Unknown]]:
        """Where a value may come from, nearest first: what a test says, None where a value ends or is unknown.

        With `by_name`, an attribute of something unknown may be any of its name in the project. It is unknown as well
        only if there is none. `also` says what else a value may be. `came` is given, for each value, that before it.
        """
        queue: list[Value] = [value]
        seen = {} if came is None else came
        seen[value] = value
        is_told = False
        ends: list[Value] = []
        for each in queue:
            answer = test(each)
            behind = self.behind(each) if answer is None else ()
            if not behind:
                is_told = True
                yield answer, each
                if answer is None and library.may_give_what_it_is_given(each):
                    ends.append(each)
            if also is not None and answer is None:
                behind = [*behind, *also(each)]
            if isinstance(each.head, str):
                behind = [*behind, *self._replaced(each, each.head)]
            for other in behind:
                named: Sequence[Value] = ()
                if isinstance(other, Unknown):
                    named = self._of_name(other.value) if by_name else ()
                    if not named:
                        is_told = True
                        yield None, other
                        continue
                for found in named or (other,):
                    if isinstance(found, Unknown) or found in seen:
                        continue
                    if len(queue) >= MOST_VALUES:
                        yield None, Unknown("too many values may be it", each)
                        return
                    seen[found] = each
                    queue.append(found)
        if not is_told:
            yield None, Unknown("what it is depends on itself", value)
        for each in ends:
            for given_answer, found in self._given_away(each, test):
                if isinstance(found, Value):
                    seen.setdefault(found, each)
                yield given_answer, found

    def _given_away(
        self, end: Value, test: Callable[[Value], Answer | None]
    ) -> Sequence[tuple[Answer | None, Value | Unknown]]:
        """What functions out of view are given and may give, as far as a test has an answer for it."""
        found: Sequence[tuple[Answer | None, Value | Unknown]] = self._remembered(
            ("given away", end, test), lambda: tuple(self._find_given_away(end, test))
        )
        return found

    def _find_given_away(
        self, end: Value, test: Callable[[Value], Answer | None]
    ) -> Iterator[tuple[Answer | None, Value | Unknown]]:
        found, asked = self._walk_given_away((end,), test)
        yield from found
        for each in asked:
            # Many values end in one package.
            found, more = self._remembered(("kept", each, test), partial(self._walk_taken_out, each, test))
            yield from found
            asked += [other for other in more if other not in asked]

    def _walk_taken_out(
        self, taken: TakenOut, test: Callable[[Value], Answer | None]
    ) -> tuple[list[tuple[Answer | None, Value | Unknown]], list[TakenOut]]:
        found, asked = self._walk_given_away(taken_out(self, taken), test)
        # Packages that are given very much, such as those that log, are not asked for it.
        return [(answer, each) for answer, each in found if answer is not None], asked

    def _walk_given_away(
        self, start: Sequence[Value], test: Callable[[Value], Answer | None]
    ) -> tuple[list[tuple[Answer | None, Value | Unknown]], list[TakenOut]]:
        """What values and those that they lead to out of view are, and what is taken out of packages on the way."""
        queue = [*start]
        seen = {*queue}
        found: list[tuple[Answer | None, Value | Unknown]] = []
        asked: dict[TakenOut, None] = {}
        for each in queue:
            answer = test(each)
            if answer is not None:
                found.append((answer, each))
                continue
            behind: list[Value | Unknown] = [*self.behind(each), *library.inside(self, each)]
            if library.may_give_what_it_is_given(each):
                behind += library.given_to(each)
                asked |= dict.fromkeys(takes_out(self, each))
            for other in behind:
                if isinstance(other, Unknown) or isinstance(other.head, ast.Constant | ast.JoinedStr) or other in seen:
                    continue
                if len(queue) >= MOST_VALUES:
                    found.append((None, Unknown("too many values may be it", start[0])))
                    return found, []
                seen.add(other)
                queue.append(other)
        return found, [*asked]

    def _of_name(self, value: Value | None) -> Sequence[Value]:
        """What an attribute of something that is not known may be, by its name."""
        if value is None or not value.path or value.path[0].kind is not By.ATTRIBUTE:
            return ()
        if value not in self._named:
            self._named[value] = tuple(dict.fromkeys(self._find_by_name(value)))
        return self._named[value]

    def _find_by_name(self, value: Value) -> Iterator[Value]:
        name, rest = value.path[0].what, value.path[1:]
        owner = value._replace(path=())
        for store in self.stores.of(name):
            yield from (each for each in self.stored(store, rest, None) if isinstance(each, Value))
        for module, _, binding in self.stores.in_classes(name):
            steps = (Access(By.BOUND, owner),) if isinstance(binding.node, Function) else ()
            yield from (
                each for each in names.of_bound(self, module, binding, (*steps, *rest), None) if isinstance(each, Value)
            )

    def may(
        self,
        value: Value,
        test: Callable[[Value], Answer | None],
        *,
        by_name: bool = False,
        also: Callable[[Value], Iterable[Value]] | None = None,
    ) -> FoundValues[Answer]:
        """All that a value may be: to report by."""
        way = self._beginning(value, test, also)
        start = way[-1]
        key = (start, test, by_name, also)
        found: FoundValues[Answer] = self._remembered(key, lambda: self._find(start, test, by_name, also))
        if all(found.places.values()):
            return found
        line = _line(next((each for each in reversed(way) if _has_line(each)), value))
        return found._replace(places={answer: place or line for answer, place in found.places.items()})

    def _find(
        self,
        value: Value,
        test: Callable[[Value], Answer | None],
        by_name: bool,
        also: Callable[[Value], Iterable[Value]] | None,
    ) -> FoundValues[Answer]:
        """The same, with "" for the place of an answer that nothing from the value on names."""
        answers: dict[Answer, Value] = {}
        others: list[Value] = []
        unknown: list[Unknown] = []
        came: dict[Value, Value] = {}
        for answer, each in self.walk(value, test, by_name=by_name, also=also, came=came):
            if isinstance(each, Unknown):
                unknown.append(each)
            elif answer is None:
                others.append(each)
            else:
                answers.setdefault(answer, each)
        return FoundValues(answers, others, unknown, {answer: _place(each, came) for answer, each in answers.items()})

    def must(self, value: Value, test: Callable[[Value], Answer | None]) -> Answer | None:
        """What a value certainly is, None if the test has no answer or several, or anything is unknown: to edit by."""
        start = self._beginning(value, test, None)[-1]
        found: Answer | None = self._remembered((start, test), lambda: self._find_one(start, test))
        return found

    def _find_one(self, value: Value, test: Callable[[Value], Answer | None]) -> Answer | None:
        found: Answer | None = None
        for answer, _ in self.walk(value, test):
            if answer is None or found not in (None, answer):
                return None
            found = answer
        return found

    def _remembered(self, key: tuple[object, ...], ask: Callable[[], Any]) -> Any:
        """What is asked, once; but within a step back, which may lead here again."""
        if key in self._asked:
            return self._asked[key]
        found = ask()
        if not self._depth:
            self._asked[key] = found
        return found

    def _beginning(
        self,
        value: Value,
        test: Callable[[Value], object],
        also: Callable[[Value], Iterable[Value]] | None,
    ) -> Sequence[Value]:
        """A value and those behind it that are but other ways to write it, up to the first that is more than that.

        Each use of `self.mesh` in a method leads to one of these.
        """
        way = [value]
        for _ in range(_LONGEST_WAY):
            if (
                isinstance(value.head, str)
                or test(value) is not None
                or (also is not None and any(True for _ in also(value)))
            ):
                break
            behind = self.behind(value)
            if len(behind) != 1 or isinstance(behind[0], Unknown):
                break
            value = behind[0]
            way.append(value)
        return way


def values_of(project: Project) -> ValueFlow:
    """The value flow over a run's modules, the modules that they import, and callers; one for all calls."""

    def build() -> ValueFlow:
        every = project.imported_by((*project.facts.values(), *project.callers)).values()
        return ValueFlow(project, {facts.path: ModuleUses(facts, project=project) for facts in every})

    return project.once("values", build)


def _has_line(value: Value) -> bool:
    return isinstance(value.head, ast.AST) and hasattr(value.head, "lineno")


def _line(value: Value) -> str:
    return f"{value.module.facts.path}:{value.line}"


def _place(value: Value, came: Mapping[Value, Value]) -> str:
    """The file and the line where something is named: of what is out of the project that of the name for it, or ""."""
    while not _has_line(value):
        if came[value] is value:
            return ""
        value = came[value]
    return _line(value)


def _made_outside(value: Value) -> str | None:
    """The full name of something out of the project, or of what it makes, if that is where a value ends."""
    return value.outside if not value.path or not library.is_followed(f"{value.head}") else None


def _text(value: Value) -> str | None:
    text = value.head.value if isinstance(value.head, ast.Constant) and not value.path else None
    return text if isinstance(text, str) else None
