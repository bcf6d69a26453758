"""What the code of a project stores in attributes, by the name of the attribute, and where attributes are read."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding, last_name
from mmrewrite.values.targets import written
from mmrewrite.values.value import Function

_OF_TESTS = frozenset(("conftest", "test", "testing", "tests"))
_SETTERS = ("__setattr__", "object", "patch", "setattr")


class Store(NamedTuple):
    """One place that sets an attribute: `node` is the target, or the call of `setattr`.

    Attributes:
        module: The module of the place.
        node: The attribute that is assigned to, or the call.
        target: The expression of the object; the text in `mock.patch("jax.jit")` and `sys.modules["jax"]`, with the
            attribute.
        value: What is assigned, None for a target of an assignment.
        holder: The class of whose object this is, if that is `self`.
        words: The mapping that has the values by the names of attributes, in `self.__dict__.update(words)`.
        key: The name of the attribute, where it is computed.
    """

    module: ModuleUses
    node: ast.Attribute | ast.Call | ast.Subscript
    target: ast.expr
    value: ast.expr | None
    holder: ast.ClassDef | None
    words: ast.expr | None = None
    key: ast.expr | None = None

    def owner(self) -> str | None:
        """The full name of the object, None if it has none; "" where a whole package is set."""
        names = self.module.facts.names
        match self.target:
            case ast.Constant(value=text):
                return str(text).rpartition(".")[0]
            case ast.Name(id="__builtins__"):
                return "builtins"
            case ast.Name() | ast.Attribute() as target:
                return names.resolve(target, self.module.scope_of(target))
            case ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Name(id="__name__")):
                return names.name
            case ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Constant(value=str(name))):
                return name
        return None


class TextWrite(NamedTuple):
    """A place that binds names of its module by their text: an `exec`, or what is written to `globals()`.

    Attributes:
        module: The module.
        node: The `exec` or `globals` that is called there.
        names: The names that it binds as they are written, None where they are not.
        text: What is a name there, or the code of an `exec`, where that says more.
    """

    module: ModuleUses
    node: ast.Name
    names: frozenset[str] | None = None
    text: ast.expr | None = None


class TextRead(NamedTuple):
    """A place that reads names of a module by their text.

    Attributes:
        module: The module that has it.
        node: What it gives, or the dictionary of all names.
        owner: The full name of the module whose names are read, None where only a run knows it.
        key: The text, None of a dictionary.
    """

    module: ModuleUses
    node: ast.expr
    owner: str | None
    key: ast.expr | None = None


class Stores:
    """The stores of some modules, looked for once, when the first is asked for."""

    def __init__(self, modules: Callable[[], Collection[ModuleUses]]) -> None:
        self._modules = modules
        self._reads: dict[str, Sequence[tuple[ModuleUses, ast.expr]]] = {}

    def of(self, name: str) -> Sequence[Store]:
        """The places that set an attribute of a name."""
        return self._found[0].get(name, ())

    def look_ahead(self) -> None:
        """Find what every process would find for itself otherwise."""
        _ = self._found, self._named, self._in_classes, self._importing

    def naming(self, name: str) -> Collection[ModuleUses]:
        """The modules that may name something of another module: they import it, or read an attribute of its name."""
        return dict.fromkeys((*self._importing.get(name, ()), *(module for module, _ in self.reads(name))))

    def named_elsewhere(self, module: ModuleUses, name: str) -> Iterator[tuple[ModuleUses, ast.expr]]:
        """The places that name something of a module by its full name, or by an import, which may be its own."""
        full = f"{module.facts.names.name}.{name}"
        for other in self.naming(name):
            if other is not module:
                yield from ((other, use.node) for use in other.uses((full,)))
            for item in other.imported if name in other.facts.names.identifiers else ():
                # A name that is bound to something else as well.
                if item.name == full:
                    owner = other.facts.names.scopes[item.statement]
                    yield from ((other, head) for head in other.heads_of(item.local, owner))

    def calls(self, method: str) -> Iterator[tuple[ModuleUses, ast.Call]]:
        """The calls of methods of a name, with arguments."""
        for module, read in self.reads(method):
            call = module.parents[read]
            if isinstance(call, ast.Call) and call.func is read and (call.args or call.keywords):
                yield module, call

    @cached_property
    def _importing(self) -> Mapping[str, Sequence[ModuleUses]]:
        found: dict[str, list[ModuleUses]] = defaultdict(list)
        for module in self._modules():
            names = {item.name.rpartition(".")[2] for item in module.imported}
            for name in names | (module.heads.keys() if module.facts.names.stars else set()):
                found[name].append(module)
        return found

    def in_module(self, module: ModuleUses) -> Sequence[tuple[str, Store]]:
        """The places of a module that set an attribute, each with its name."""
        return self._by_module.get(module, ())

    @cached_property
    def _by_module(self) -> Mapping[ModuleUses, Sequence[tuple[str, Store]]]:
        found: dict[ModuleUses, list[tuple[str, Store]]] = defaultdict(list)
        for name, stores in self._found[0].items():
            for store in stores:
                found[store.module].append((name, store))
        return found

    @property
    def computed(self) -> Sequence[Store]:
        """The places that set attributes whose names only a run knows."""
        return self._found[1]

    def of_modules(self, name: str) -> Sequence[Store]:
        """The places that may set a name of a module from outside."""
        return [each for each in self.of(name) if each.holder is None]

    @cached_property
    def remade(self) -> Sequence[tuple[str, Store]]:
        """The places that make another function, or an object of another class, of one, each with what they set."""
        words = ("__code__", "__defaults__", "__kwdefaults__", "cell_contents", "__class__", "__bases__")
        found = [(word, store) for word in words for store in self.of(word)]
        for module, read in (*self.reads("__kwdefaults__"), *self.reads("__globals__")):
            node = module.parents[read]
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(read, ast.Attribute):
                found.append((read.attr, Store(module, node, read.value, None, None)))
        return found

    def reads(self, name: str) -> Sequence[tuple[ModuleUses, ast.expr]]:
        """The places that read an attribute of a name, also by `getattr`."""
        if name not in self._reads:
            self._reads[name] = [
                (module, node)
                for module, nodes in self._named.get(name, ())
                for node in nodes
                if isinstance(node, ast.Call) or isinstance(node.ctx, ast.Load)
            ]
        return self._reads[name]

    @cached_property
    def names(self) -> Collection[str]:
        """The names of all attributes that are stored, or that classes and modules have."""
        modules = (name for module in self._modules() for name in module.facts.names.scope.bindings)
        return sorted({*self._found[0], *self._in_classes, *modules})

    def in_classes(self, name: str) -> Sequence[tuple[ModuleUses, ast.ClassDef, Binding]]:
        """What the bodies of classes bind a name to."""
        return self._in_classes.get(name, ())

    @cached_property
    def _in_classes(self) -> Mapping[str, Sequence[tuple[ModuleUses, ast.ClassDef, Binding]]]:
        found: dict[str, list[tuple[ModuleUses, ast.ClassDef, Binding]]] = defaultdict(list)
        for module in self._modules():
            for definition in module.nodes_of(ast.ClassDef):
                for name, bindings in module.facts.names.inner[definition].bindings.items():
                    found[name] += ((module, definition, binding) for binding in bindings)
        return found

    def read_by_text(self, module: ModuleUses) -> Iterator[TextRead]:
        """The places that may read any name of a module by its text."""
        name = module.facts.names.name
        return (each for each in self._read_by_text if each.owner in (name, None))

    @cached_property
    def _read_by_text(self) -> Sequence[TextRead]:
        return [each for module in self._modules() for each in _read_by_text(module)]

    def set_in(self, module: ModuleUses, name: str) -> Iterator[Store]:
        """The places that set a name of a module as an attribute of that."""
        return (store for store in self.of(name) if store.holder is None and store.owner() == module.facts.names.name)

    @cached_property
    def written_by_text(self) -> Mapping[ModuleUses, Sequence[TextWrite]]:
        """The modules in which names may be bound by their text, with the places."""
        found = {module: [*_written_by_text(module)] for module in self._modules()}
        return {module: places for module, places in found.items() if places}

    @cached_property
    def _named(self) -> Mapping[str, Sequence[tuple[ModuleUses, Sequence[ast.Attribute | ast.Call]]]]:
        """The attributes of each name, and the calls of `getattr` with it, by module."""
        found: dict[str, list[tuple[ModuleUses, Sequence[ast.Attribute | ast.Call]]]] = defaultdict(list)
        for module in self._modules():
            for name, nodes in module.attributes.items():
                found[name].append((module, nodes))
            for head in module.heads.get("getattr", ()):
                match module.parents[head]:
                    case ast.Call(args=[_, ast.Constant(value=str(name)), *_]) as call if call.func is head:
                        found[name].append((module, [call]))
        return found

    @cached_property
    def _found(self) -> tuple[Mapping[str, Sequence[Store]], Sequence[Store]]:
        named: dict[str, list[Store]] = defaultdict(list)
        computed: list[Store] = []
        for module in self._modules():
            for node in module.attributes_set:
                named[node.attr].append(Store(module, node, node.value, None, holder_of(module, node.value)))
            for node in module.attributes.get("__dict__", ()):
                if not isinstance(node.ctx, ast.Store):
                    self._by_dictionary(module, node, node.value, named, computed)
            tables = [*module.attributes.get("modules", ()), *module.heads.get("modules", ())]
            for name, store in _set_in_sys_modules(module, tables):
                named[name].append(store)
            for head in (*module.heads.get("setattr", ()), *module.heads.get("vars", ())):
                call = module.parents[head]
                if isinstance(call, ast.Call) and call.func is head:
                    if head.id == "vars" and call.args:
                        self._by_dictionary(module, call, call.args[0], named, computed)
                    elif head.id == "setattr" and call.args:
                        self._set(module, call, call.args, named, computed)
                elif head.id == "setattr" and isinstance(call, ast.Call) and head in call.args[:-1]:
                    # `partial(setattr, x, "a")`
                    self._set(module, call, call.args[call.args.index(head) + 1 :], named, computed)
                elif head.id == "setattr" and isinstance(call, ast.Assign) and isinstance(call.targets[0], ast.Name):
                    for other in module.heads.get(call.targets[0].id, ()):
                        made = module.call_at(other)
                        if made is not None and made.args:
                            self._set(module, made, made.args, named, computed)
            # What a test patches is so while the test runs.
            words = ("__setattr__",) if _is_of_tests(module) else _SETTERS
            setters: list[ast.Attribute | ast.Name] = [*module.heads.get("patch", ())] if "patch" in words else []
            setters += (node for word in words for node in module.attributes.get(word, ()))
            for setter in setters:
                call = module.parents[setter]
                if isinstance(call, ast.Call) and call.func is setter and call.args:
                    self._replace(module, call, setter, named, computed)
        return named, computed

    def _replace(
        self,
        module: ModuleUses,
        call: ast.Call,
        setter: ast.Attribute | ast.Name,
        named: dict[str, list[Store]],
        computed: list[Store],
    ) -> None:
        """What `x.__setattr__`, `monkeypatch.setattr` of pytest, or `mock.patch` sets, perhaps by its full name."""
        args, word = call.args, last_name(setter)
        if word != "__setattr__" and isinstance(args[0], ast.Constant) and "." in str(args[0].value):
            name = str(args[0].value).rpartition(".")[2]
            named[name].append(Store(module, call, args[0], args[1] if len(args) > 1 else None, None))
        elif isinstance(setter, ast.Attribute) and word in ("__setattr__", "setattr") and len(args) == 2:
            self._set(module, call, [setter.value, *args], named, computed)
        elif (
            word != "patch"
            and len(args) > 1
            and (word != "object" or last_name(getattr(setter, "value", None)) == "patch")
        ):
            self._set(module, call, args[:3], named, computed)

    def _set(
        self,
        module: ModuleUses,
        call: ast.Call,
        args: Sequence[ast.expr],
        named: dict[str, list[Store]],
        computed: list[Store],
    ) -> None:
        holder = holder_of(module, args[0])
        name = written(module, args[1]) if len(args) > 1 else None
        if isinstance(name, ast.Constant):
            named[str(name.value)].append(Store(module, call, args[0], args[2] if len(args) == 3 else None, holder))
        if name is None or not isinstance(args[1], ast.Constant):
            # The name of a constant may be bound to something else.
            key = args[1] if len(args) > 1 else None
            computed.append(Store(module, call, args[0], args[2] if len(args) == 3 else None, holder, key=key))

    def _by_dictionary(
        self,
        module: ModuleUses,
        dictionary: ast.expr,
        target: ast.expr,
        named: dict[str, list[Store]],
        computed: list[Store],
    ) -> None:
        """What is set by way of `vars(target)` and `target.__dict__`."""
        holder, node = holder_of(module, target), module.parents[dictionary]
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            key = written(module, node.slice)
            if isinstance(key, ast.Constant):
                named[str(key.value)].append(Store(module, node, target, None, holder))
            else:
                computed.append(Store(module, node, target, None, holder))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            # Another name of it.
            for head in module.heads.get(node.targets[0].id, ()):
                if isinstance(module.parents[head], ast.Subscript | ast.Attribute):
                    self._by_dictionary(module, head, target, named, computed)
        elif isinstance(node, ast.Attribute) and node.attr in ("update", "setdefault", "__setitem__"):
            call = module.parents[node]
            if isinstance(call, ast.Call):
                is_update = node.attr == "update"
                for words in call.args if is_update else call.args[:1]:
                    computed.append(Store(module, call, target, None, holder, words if is_update else None))
                for keyword in call.keywords:
                    if keyword.arg is None:
                        computed.append(Store(module, call, target, None, holder, keyword.value))
                    else:
                        named[keyword.arg].append(Store(module, call, target, keyword.value, holder))
        else:
            call = module.parents[node] if isinstance(node, ast.keyword) and node.arg is not None else node
            if isinstance(call, ast.Call) and self._is_in_view(module, call.func):
                # The function that it is passed to may set what it likes.
                computed.append(Store(module, call, target, None, holder))

    def _is_in_view(self, module: ModuleUses, function: ast.expr) -> bool:
        home = (module.full_name(function) or "").rpartition(".")[0]
        return any(home == each.facts.names.name for each in self._modules())


def _set_in_sys_modules(module: ModuleUses, tables: Iterable[ast.expr]) -> Iterator[tuple[str, Store]]:
    """The modules that a program puts into `sys.modules`, by their own names."""
    for table in tables:
        holder = module.parents[table]
        match holder, module.parents.get(holder):
            case ast.Subscript(slice=ast.Constant(value=str(name)) as key, ctx=ast.Store()) as node, _:
                store = Store(module, node, key, None, None)
            case ast.Subscript(slice=ast.Name(id="__name__"), ctx=ast.Store()) as node, _:
                name = module.facts.names.name
                store = Store(module, node, ast.Constant(name), None, None)
            case ast.Attribute(attr="setdefault" | "__setitem__"), ast.Call(
                args=[ast.Constant(value=str(name)) as key, value]
            ) as node:
                store = Store(module, node, key, value, None)
            case _:
                continue
        if module.full_name(table) == "sys.modules":
            yield name.rpartition(".")[2], store


def _read_by_text(module: ModuleUses) -> Iterator[TextRead]:
    for word in ("globals", "vars", "getattr"):
        for head in module.heads.get(word, ()):
            match module.parents[head]:
                case ast.Call(func=function, args=[]) as call if function is head and word == "globals":
                    yield TextRead(module, call, module.facts.names.name)
                case ast.Call(func=function, args=[target]) as call if function is head and word == "vars":
                    yield from (TextRead(module, call, owner) for owner in _modules_of(module, target))
                case ast.Call(func=function, args=[target, key, *_]) as call if function is head:
                    if word == "getattr" and not isinstance(key, ast.Constant):
                        yield from (TextRead(module, call, owner, key) for owner in _modules_of(module, target))
                case _:
                    pass
    for node in module.attributes.get("__dict__", ()):
        yield from (TextRead(module, node, owner) for owner in _modules_of(module, node.value))


def _modules_of(module: ModuleUses, target: ast.expr) -> Iterator[str | None]:
    """The full name of the module that an expression is seen to be, None for one whose name is computed."""
    if isinstance(target, ast.Name):
        binding = module.facts.names.binding(target.id, module.scope_of(target))
        target = binding.value if binding is not None and binding.value is not None else target
    match target:
        case ast.Call(func=function, args=[key, *_]):
            made_by = module.full_name(function)
            if made_by in ("importlib.import_module", "builtins.__import__"):
                yield str(key.value) if isinstance(key, ast.Constant) else None
        case ast.Subscript(value=ast.Attribute(attr="modules"), slice=key):
            is_own = isinstance(key, ast.Name) and key.id == "__name__"
            written_name = str(key.value) if isinstance(key, ast.Constant) else None
            yield module.facts.names.name if is_own else written_name
        case ast.Name() | ast.Attribute() if (name := module.full_name(target)) is not None:
            yield name
        case _:
            pass


def _written_by_text(module: ModuleUses) -> Iterator[TextWrite]:
    heads = [each for name in ("exec", "globals", "vars", "locals") for each in module.heads.get(name, ())]
    for head in (each for each in heads if module.scope_of(each).owner(each.id) is None):
        call = module.parents[head]
        if isinstance(call, ast.Assign) and head.id == "globals":
            # Another name of it.
            yield TextWrite(module, head)
        if not isinstance(call, ast.Call) or call.func is not head:
            continue
        if head.id == "exec":
            yield TextWrite(module, head, text=call.args[0] if call.args else None)
        elif not call.args and (head.id == "globals" or module.scope_of(head) is module.facts.names.scope):
            for holder in _holders(module, call):
                match holder, module.parents[holder]:
                    case ast.Subscript(slice=ast.Constant(value=str(name)), ctx=ast.Store() | ast.Del()), _:
                        yield TextWrite(module, head, frozenset((name,)))
                    case ast.Subscript(slice=key, ctx=ast.Store() | ast.Del()), _:
                        yield TextWrite(module, head, text=key)
                    case ast.Attribute(attr="update"), ast.Call(args=[], keywords=words) if all(
                        each.arg for each in words
                    ):
                        yield TextWrite(module, head, frozenset(str(each.arg) for each in words))
                    case ast.Attribute(attr="update" | "setdefault" | "__setitem__" | "pop" | "clear"), _:
                        yield TextWrite(module, head)
                    case _:
                        pass


def _holders(module: ModuleUses, call: ast.Call) -> Iterator[ast.AST]:
    """What takes the result of a call, also by a name that it is assigned to."""
    holder = module.parents[call]
    yield holder
    for target in holder.targets if isinstance(holder, ast.Assign) else [getattr(holder, "target", None)]:
        if isinstance(target, ast.Name):
            yield from (module.parents[each] for each in module.heads.get(target.id, ()))


def _is_of_tests(module: ModuleUses) -> bool:
    """Whether a module is of tests by a word of its full name: `train_test`, `tests.helpers`."""
    return not _OF_TESTS.isdisjoint(re.split(r"[._]", module.facts.names.name))


def holder_of(module: ModuleUses, node: ast.expr) -> ast.ClassDef | None:
    """The class of which an expression is `self` or `cls`, or what a method of it has made with `cls`."""
    binding = module.facts.names.binding(node.id, module.scope_of(node)) if isinstance(node, ast.Name) else None
    match binding.value if binding is not None else None:
        case ast.Call(func=ast.Name() as maker) | ast.Call(func=ast.Attribute(attr="__new__"), args=[maker, *_]):
            return own_class(module, maker)
        case _:
            return own_class(module, node)


def own_class(module: ModuleUses, node: ast.expr | None) -> ast.ClassDef | None:
    """The class whose `self` or `cls` an expression is: the first parameter of the method around it."""
    if not isinstance(node, ast.Name):
        return None
    owner = module.scope_of(node).owner(node.id)
    function = owner.node if owner is not None else None
    if not isinstance(function, Function):
        return None
    holder = module.parents.get(function)
    first = [*function.args.posonlyargs, *function.args.args][:1]
    is_own = isinstance(holder, ast.ClassDef) and [each.arg for each in first] == [node.id]
    return holder if is_own and isinstance(holder, ast.ClassDef) else None
