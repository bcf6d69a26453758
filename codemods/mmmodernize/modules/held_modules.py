"""Which modules of JAX and its libraries a value may be or hold, where no chain of names leads to them.

Values are followed backwards through assignments, loops, contexts, containers, attributes, parameters and results, from
the place where something is read of them. A container is taken as one value, and an attribute as one by its name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import ClassVar, NamedTuple

from mmmodernize.calls.given_arguments import GivenArguments, GivenParameter, last_name
from mmmodernize.modules.passed_modules import ASK_ONLY, PassedModules, module_by_name, text_of
from mmmodernize.sites.site import ModernizeContext
from mmmodernize.sites.version_guards import guard_of
from mmrewrite.project.facts import Facts
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding, Scope, absolute_import
from mmrewrite.source.walk import walk

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_PUT_IN = frozenset(("add", "append", "appendleft", "extend", "insert", "put", "setdefault", "update", "__setitem__"))
# What else than the first argument may name a module that is to be imported.
_IMPORTED_BY = frozenset(("name", "module", "module_name", "modname"))
# Calls of which a result or an attribute is what their first argument gives.
_KEEP_IT = frozenset(
    (
        "builtins.property",
        "contextlib.contextmanager",
        *(f"functools.{name}" for name in ("cache", "cached_property", "lru_cache", "partial")),
    )
)
_PACKAGES = ("jax", "flax", "optax", "chex", "orbax")
_LOOKS_UP = "__getattr__"


class Stored(NamedTuple):
    """All that is stored as an attribute of that name."""

    name: str


class ResultOf(NamedTuple):
    """What a value gives where it is called, for those who tell it from the value."""

    called: ast.expr | Binding | Stored | GivenParameter


class NamedByText(NamedTuple):
    """One of several full names that an expression may look up."""

    name: str
    at: ast.expr


Held = ast.expr | Binding | Stored | GivenParameter | ResultOf | NamedByText
Value = tuple[ModuleUses | None, Held]


class _PassedOn:
    """Where the modules of a project keep and pass on values: the same however these are followed."""

    def __init__(self, context: ModernizeContext) -> None:
        self._context = context
        self._loaded: dict[str, ModuleUses] = {}
        self._puts: dict[ModuleUses, Mapping[tuple[Scope | None, str], Sequence[ast.expr]]] = {}

    def uses(self, facts: Facts) -> ModuleUses:
        """What a module of the project uses, also one that stays as it is."""
        known = self._context.modules.get(facts.path) or self._loaded.get(facts.path)
        if known is None:
            known = self._loaded[facts.path] = ModuleUses(facts)
        return known

    @cached_property
    def modules(self) -> Collection[ModuleUses]:
        """The modules that may change, and those that they import and that name one of the packages."""
        found = dict(self._context.modules)
        for module in self._context.modules.values():
            for facts in self._context.project.imported(module.facts):
                if facts.path not in found and any(word in facts.source.text for word in _PACKAGES):
                    found[facts.path] = self.uses(facts)
        return found.values()

    @cached_property
    def given(self) -> GivenArguments:
        return GivenArguments(self.modules)

    @cached_property
    def stored(self) -> Mapping[str, Sequence[Value]]:
        """What is stored as an attribute of classes and objects, by the name of the attribute."""
        found: dict[str, list[Value]] = defaultdict(list)
        for module in self.modules:
            for node in module.nodes_of(ast.Attribute):
                if isinstance(node.ctx, ast.Store):
                    found[node.attr] += ((module, each) for each in _assigned(module, node))
            for call in module.nodes_of(ast.Call):
                for keyword in call.keywords:
                    found[keyword.arg or ""].append((module, keyword.value))
                if last_name(call.func) == "setattr" and len(call.args) == 3 and isinstance(call.args[1], ast.Constant):
                    found[str(call.args[1].value)].append((module, call.args[2]))
            for scope in dict.fromkeys(module.facts.names.inner.values()):
                for name, bindings in scope.bindings.items() if scope.kind == "class" else ():
                    found[name] += ((module, each) for each in bindings)
        return found

    def put_into(self, module: ModuleUses) -> Mapping[tuple[Scope | None, str], Sequence[ast.expr]]:
        """What is put into the containers of a module, by their names."""
        if module not in self._puts:
            found: dict[tuple[Scope | None, str], list[ast.expr]] = defaultdict(list)
            for call in module.nodes_of(ast.Call):
                match call.func:
                    case ast.Attribute(value=ast.Name(id=name) as held, attr=method) if method in _PUT_IN:
                        owner = module.scope_of(held).owner(name)
                        found[owner, name] += (*call.args, *(keyword.value for keyword in call.keywords))
            for node in module.nodes_of(ast.Subscript):
                if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
                    found[module.scope_of(node).owner(node.value.id), node.value.id] += _assigned(module, node)
            self._puts[module] = found
        return self._puts[module]


class HeldModules:
    """Follows values backwards, on demand; what is behind each value is looked for once.

    A call of what is not in view may give what it is given.
    """

    may_give_what_is_given: ClassVar = True
    # So many values, the nearest, are looked at for each question. Where a program passes modules on they are named a
    # few values away; to look at all values of a project of 300,000 lines takes longer than everything else.
    most: ClassVar[int] = 2000

    def __init__(self, context: ModernizeContext) -> None:
        self._context = context
        passed = context.analysis(PassedModules)
        self._homes, self._of_stars = self._asked_for(passed), passed.of_stars
        self._passed_on = context.analysis(_PassedOn)
        self._steps: dict[Value, str | Sequence[Value]] = {}
        self._found: dict[Value, Mapping[str, str]] = {}

    def _asked_for(self, passed: PassedModules) -> Set[str]:
        """The full names to which values are followed."""
        return passed.homes

    def of(self, module: ModuleUses, node: ast.expr) -> Mapping[str, str]:
        """The modules that an expression may be or hold, each with the nearest file and line where it is named.

        The nearest values are looked at, as many as `most`: what was asked for before has no say in the answer, as
        each process asks for other values.
        """
        start: Value = (module, node)
        if start not in self._found:
            found: dict[str, str] = {}
            queue: list[Value] = [start]
            seen = set(queue)
            for value in queue:
                step = self._step(value)
                if isinstance(step, str):
                    found.setdefault(step, _place(*value))
                elif len(queue) < self.most:
                    queue += [each for each in dict.fromkeys(step) if each not in seen]
                    seen.update(step)
            self._found[start] = found
        return self._found[start]

    def look_ahead(self) -> None:
        """Find what every process would find for itself otherwise, if anything is to be asked."""
        if self._context.analysis(PassedModules).loose:
            _ = self._passed_on.stored
            self._passed_on.given.look_ahead()

    def looked_up(self, facts: Facts) -> Collection[str]:
        """The modules in which the `__getattr__` of a module of the project looks names up."""
        uses = self._passed_on.uses(facts)
        return {name for value in _looked_up_in(facts.names.tree.body) for name in self.of(uses, value)}

    def _step(self, value: Value) -> str | Sequence[Value]:
        """The module that a value names; else the values behind it that may be one."""
        step = self._steps.get(value)
        if step is None:
            name = self._name_of(*value)
            if name is not None and name in self._homes:
                step = name
            else:
                step = [each for each in self._behind(*value, name) if self._may_hold(each[1])]
            self._steps[value] = step
        return step

    def _may_hold(self, value: Held) -> bool:
        """Whether a value is no number, no other text than that of a module, and no answer to a question."""
        if isinstance(value, ast.Constant):
            return value.value in self._homes if isinstance(value.value, str) else False
        return not isinstance(value, ast.Compare | ast.UnaryOp)

    def _behind(self, module: ModuleUses | None, value: Held, name: str | None) -> Iterable[Value]:
        """The values of which one that names no module may be one, or that it may hold."""
        if isinstance(value, Stored):
            return [
                *self._passed_on.stored.get(value.name, ()),
                *((None, each) for each in self._passed_on.given.fields(value.name)),
            ]
        if isinstance(value, GivenParameter):
            return self._passed_on.given.of(value, may_be_handed=self.may_give_what_is_given)
        assert module is not None
        assert not isinstance(value, ResultOf | NamedByText)
        if isinstance(value, Binding):
            return self._of_binding(module, value, name)
        return self._of_expression(module, value, name)

    def _name_of(self, module: ModuleUses | None, value: Held) -> str | None:
        """The full name that a value stands for."""
        if module is None or isinstance(value, Stored | GivenParameter | ResultOf):
            return None
        if isinstance(value, NamedByText):
            return value.name
        if isinstance(value, Binding):
            return module.facts.names.follow(value.target) if value.target is not None else None
        if isinstance(value, ast.Name | ast.Attribute):
            scope = module.scope_of(value)
            found = module.facts.names.resolve(value, scope)
            if found is None and isinstance(value, ast.Name) and scope.owner(value.id) is None:
                given = (f"{origin}.{value.id}" for origin in self._of_stars.get(module, ()))
                return next((name for name in given if name in self._homes), None)
            return found
        # A module may be imported by its name, here or in a function that is given it.
        return module_by_name(module, value) or text_of(module, value)

    def _of_expression(self, module: ModuleUses, node: ast.expr, name: str | None) -> Iterator[Value]:
        match node:
            case ast.Name():
                owner = module.scope_of(node).owner(node.id)
                if owner is not None and owner.kind == "class":
                    # A name is that of the module until the class binds it, whatever functions around the class bind.
                    outer = owner.module_with(node.id)
                    yield from ((module, each) for each in (outer.bindings[node.id] if outer is not None else ()))
                for star in module.facts.names.stars if owner is None or owner.kind == "module" else ():
                    names = module.facts.names
                    origin = absolute_import(names.name, names.is_package, star.module, star.level)
                    yield from self._of_project(module, f"{origin}.{node.id}") if origin is not None else ()
                if owner is not None:
                    yield from ((module, each) for each in owner.bindings[node.id])
                yield from ((module, each) for each in self._passed_on.put_into(module).get((owner, node.id), ()))
            case ast.Attribute():
                yield from self._of_attribute(module, node, name)
            case ast.Call():
                yield from self._of_call(module, node)
            case ast.Lambda(body=value) | ast.DictComp(value=value):
                yield module, value
            case ast.ListComp(elt=value) | ast.SetComp(elt=value) | ast.GeneratorExp(elt=value):
                yield module, value
            case ast.Subscript(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                yield module, value
            case ast.NamedExpr(value=value) | ast.YieldFrom(value=value):
                yield module, value
            case ast.IfExp(body=first, orelse=second) | ast.BinOp(left=first, right=second):
                yield from ((module, first), (module, second))
            case ast.Dict(values=values) | ast.BoolOp(values=values):
                yield from ((module, each) for each in values)
            case ast.Tuple(elts=values) | ast.List(elts=values) | ast.Set(elts=values):
                yield from ((module, each) for each in values)
            case _:
                pass

    def _of_binding(self, module: ModuleUses, binding: Binding, name: str | None) -> Iterator[Value]:
        if guard_of(module, binding.node) is not None:
            return
        node = binding.node
        if name is not None:
            yield from self._of_project(module, name)
        elif binding.value is not None:
            yield module, binding.value
        elif isinstance(node, ast.arg):
            yield from self._of_parameter(module, node)
        elif isinstance(node, _Function):
            yield from ((module, each) for each in results_of(node))
        elif isinstance(node, ast.ClassDef):
            yield from ((module, each) for each in _looked_up_in(node.body))
        else:
            yield from ((module, each) for each in _bound_from(module, binding))
            yield from ((None, Stored(name)) for name in _asked_by(module.parents.get(node)))

    def _of_project(self, module: ModuleUses, name: str) -> Iterator[Value]:
        """What a full name in a module of the project is bound to there."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            home = ".".join(parts[:length])
            is_own = home == module.facts.names.name
            facts = module.facts if is_own else self._context.project.module(home, module.facts)
            if facts is not None:
                other, bindings = self._passed_on.uses(facts), facts.names.scope.bindings
                own = parts[length] if length < len(parts) else _LOOKS_UP
                if own not in bindings or own == _LOOKS_UP:
                    yield from ((other, each) for each in _looked_up_in(facts.names.tree.body))
                    for star in facts.names.stars if own != _LOOKS_UP else ():
                        origin = absolute_import(facts.names.name, facts.names.is_package, star.module, star.level)
                        if origin is not None and origin != home:
                            yield from self._of_project(other, f"{origin}.{own}")
                else:
                    yield from ((other, each) for each in bindings[own])
                return

    def _of_attribute(self, module: ModuleUses, node: ast.Attribute, name: str | None) -> Iterator[Value]:
        yield None, Stored(node.attr)
        if name is not None:
            yield from self._of_project(module, name)
        if node.attr not in self._passed_on.stored:
            # A field of a tuple or the value of an enumeration; an object of which nothing of that name is known.
            binding = self._binding(module, node.value)
            if not isinstance(node.value, ast.Name) or (binding is not None and isinstance(binding.value, ast.Call)):
                yield module, node.value

    def _of_call(self, module: ModuleUses, call: ast.Call) -> Iterator[Value]:
        function = self._name_of(module, call.func) if isinstance(call.func, ast.Name | ast.Attribute) else None
        if function == "builtins.getattr" and len(call.args) > 1:
            name = call.args[1]
            yield module, call.args[0]
            if isinstance(name, ast.Constant):
                yield None, Stored(str(name.value))
        if function in ASK_ONLY:
            return
        binding = self._binding(module, call.func)
        if binding is not None and isinstance(binding.node, ast.ClassDef):
            # Attributes of other classes are known by their names.
            is_given = next(_looked_up_in(binding.node.body), None) is not None
        else:
            is_given = self.may_give_what_is_given
        if is_given or function in _KEEP_IT:
            yield from ((module, each) for each in call.args)
            for keyword in call.keywords:
                if not isinstance(keyword.value, ast.Constant) or keyword.arg in _IMPORTED_BY:
                    yield module, keyword.value
        if isinstance(call.func, ast.Attribute) and function is None:
            yield module, call.func.value
        yield module, call.func

    def _binding(self, module: ModuleUses, node: ast.expr) -> Binding | None:
        return module.facts.names.binding(node.id, module.scope_of(node)) if isinstance(node, ast.Name) else None

    def _of_parameter(self, module: ModuleUses, parameter: ast.arg) -> Iterator[Value]:
        """The default of a parameter, and what calls of functions of that name pass for it."""
        arguments = module.parents[parameter]
        assert isinstance(arguments, ast.arguments)
        yield from ((module, each) for each in _defaults(arguments, parameter))
        yield from ((None, each) for each in self._passed_on.given.parameters(module, parameter))


class HeldModulesInView(HeldModules):
    """The modules a value may be, without what calls may give that are not in view."""

    may_give_what_is_given = False


def _place(module: ModuleUses | None, value: Held) -> str:
    """The file and the line of a value that names a module."""
    assert module is not None
    if isinstance(value, ResultOf):
        return _place(module, value.called)
    node = value.node if isinstance(value, Binding) else value.at if isinstance(value, NamedByText) else value
    return f"{module.facts.path}:{getattr(node, 'lineno', 1)}"


def _assigned(module: ModuleUses, target: ast.expr) -> Iterator[ast.expr]:
    """What a target may get, the whole of what is unpacked there."""
    holder: ast.AST = target
    while isinstance(holder, ast.expr):
        holder = module.parents[holder]
    match holder:
        case ast.Assign(value=value) | ast.AugAssign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            yield value
        case ast.For(iter=value) | ast.AsyncFor(iter=value) | ast.comprehension(iter=value):
            yield value
        case ast.withitem(context_expr=value):
            yield value
        case _:
            pass


def _bound_from(module: ModuleUses, binding: Binding) -> Iterator[ast.expr]:
    """What a loop, a context, a pattern, or a target that is unpacked binds a name to a part of."""
    node = binding.node
    if isinstance(node, ast.pattern):
        match = next((each for each in module.above(node) if isinstance(each, ast.Match)), None)
        if match is not None:
            yield match.subject
    elif isinstance(node, ast.expr):
        yield from _assigned(module, node)
    elif isinstance(node, ast.Assign):
        yield node.value


def _asked_by(holder: ast.AST | None) -> Sequence[str]:
    """The methods that a loop or a context calls for what it binds."""
    if isinstance(holder, ast.withitem):
        return ("__enter__", "__aenter__")
    if isinstance(holder, ast.For | ast.AsyncFor | ast.comprehension):
        return ("__getitem__", "__iter__", "__next__", "__aiter__", "__anext__")
    return ()


def results_of(function: _Function) -> Iterator[ast.expr]:
    """What a function returns or yields."""
    queue: list[ast.AST] = [*function.body]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
            yield node.value
        if not isinstance(node, _Function | ast.ClassDef | ast.Lambda):
            queue += ast.iter_child_nodes(node)


def _looked_up_in(body: Iterable[ast.stmt]) -> Iterator[ast.expr]:
    """Where the `__getattr__` of a class or a module looks names up."""
    for statement in body:
        if isinstance(statement, _Function) and statement.name in (_LOOKS_UP, "__getattribute__"):
            for node in walk(statement):
                if isinstance(node, ast.Call) and last_name(node.func) == "getattr" and node.args:
                    yield node.args[0]


def _defaults(arguments: ast.arguments, parameter: ast.arg) -> Iterator[ast.expr]:
    in_order = [*arguments.posonlyargs, *arguments.args]
    last = in_order[len(in_order) - len(arguments.defaults) :]
    pairs = [
        *zip(last, arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    yield from (value for each, value in pairs if each is parameter and value is not None)
