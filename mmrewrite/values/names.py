"""One step back from a name: the bindings that it may have where it is read, in other modules too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmrewrite.project.facts import Facts
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding, Scope
from mmrewrite.source.spans import blocks_of
from mmrewrite.source.walk import walk
from mmrewrite.values.containers import is_container, put_into
from mmrewrite.values.targets import of_binding
from mmrewrite.values.value import (
    AWAITED,
    Access,
    By,
    CallArguments,
    CallFrame,
    Decorated,
    Display,
    Function,
    Key,
    Own,
    Path,
    Unknown,
    Value,
    attribute,
    item,
)

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow

_Found = Iterator[Value | Unknown]
_SURE = (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def of_name(flow: ValueFlow, value: Value) -> _Found:
    """The values of a name where it is read."""
    module, node, path, frame = value
    assert isinstance(node, ast.Name)
    scope = module.scope_of(node)
    owner = scope.owner(node.id)
    if owner is None:
        yield from _unbound(flow, value, node.id)
        return
    bindings = reaching(module, node, scope, owner)
    if owner.kind == "class":
        # A name is that of the module until the class binds it.
        outer = owner.module_with(node.id)
        bindings = [*bindings, *(outer.bindings[node.id] if outer is not None else ())]
        for star in module.facts.names.stars if outer is None else ():
            if module.facts.names.star_gives(star, node.id):
                yield from _of_star(flow, module, star, node.id, path, is_bound=True)
    frame = frame_in(frame, owner)
    for binding in bindings:
        yield from of_bound(flow, module, binding, path, frame)
    if owner.kind == "module":
        for star in module.facts.names.stars:
            if module.facts.names.is_bound_by(star, node.id):
                yield from _of_star(flow, module, star, node.id, path, is_bound=bool(bindings))
        yield from _from_elsewhere(flow, module, node.id, path)
    if path and path[0].kind in (By.ITEM, By.ELEMENT, By.ATTRIBUTE, By.REST):
        values = [(module, binding.value) for binding in bindings]
        yield from put_into(flow, values, _places(flow, module, owner, node.id), path)


def _places(flow: ValueFlow, module: ModuleUses, scope: Scope, name: str) -> Iterator[tuple[ModuleUses, ast.expr]]:
    """The places that name what a scope binds, in other modules too where that is a container."""
    yield from ((module, head) for head in module.heads_of(name, scope))
    made = (binding.value for binding in scope.bindings[name]) if scope.kind == "module" else ()
    if any(each is not None and is_container(flow, module, each) for each in made):
        yield from flow.stores.named_elsewhere(module, name)


def frame_in(frame: CallFrame | None, owner: Scope) -> CallFrame | None:
    """The frame of the function that binds a name, if it is known where the name is read."""
    node = owner.function.node
    while frame is not None and frame.function is not node:
        frame = frame.outer
    return frame


def of_bound(flow: ValueFlow, module: ModuleUses, binding: Binding, path: Path, frame: CallFrame | None) -> _Found:
    """The values that one binding gives a name."""
    node = binding.node
    if binding.target is not None:
        yield from of_full_name(flow, module, binding.target, path)
    elif binding.kind == "import":
        yield Unknown(f"`{binding.name}` is imported from out of the project", Value(module, node, path))
    elif isinstance(node, Function | ast.ClassDef):
        if not any(flow.full_name(module, each) in _OVERLOADS for each in node.decorator_list):
            yield Value(module, Decorated(node, 0) if node.decorator_list else node, path, frame)
    elif isinstance(node, ast.arg):
        yield Value(module, node, path, frame)
    elif (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)) or (
        isinstance(node, ast.Name) and isinstance(module.parents.get(node), ast.AnnAssign)
    ):
        return
    elif isinstance(node, ast.ExceptHandler):
        yield Value(module, node, path, frame)
    else:
        taken = of_binding(module, binding)
        if taken is None:
            yield Unknown(f"what `{binding.name}` is cannot be seen", Value(module, node, path, frame))
        else:
            yield Value(module, taken.source, (*taken.path, *path), frame)


def of_caught(flow: ValueFlow, value: Value) -> _Found:
    """What an exception that is caught may be: an object of a class of the project."""
    handler = value.head
    assert isinstance(handler, ast.ExceptHandler)
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    yield from _of_generator(flow, value, handler)
    for found in (flow.class_at(value.module, each) if each is not None else None for each in kinds):
        if found is None or isinstance(value.module.parents[handler], getattr(ast, "TryStar", ())):
            yield Unknown(f"what `{handler.name}` is cannot be seen", value)
        else:
            yield Value(found[0], Own(found[1], is_class=False), value.path)
    for module in flow.modules if value.path[:1] == (attribute("args"),) else ():
        for node in module.nodes_of(ast.Raise):
            if isinstance(node.exc, ast.Call):
                made = [(None, each.value, each.is_starred) for each in flow.call_at(module, node.exc, None).positional]
                yield Value(module, Display(made, is_mapping=False), value.path[1:])


def _of_generator(flow: ValueFlow, value: Value, handler: ast.ExceptHandler) -> _Found:
    """`e.value` of a `StopIteration`: the result of a generator that the block advances."""
    holder = value.module.parents[handler]
    if value.path[:1] != (attribute("value"),) or not isinstance(holder, ast.Try):
        return
    for node in (each for statement in holder.body for each in walk(statement)):
        match node:
            case (
                ast.Call(func=ast.Name(id="next"), args=[source, *_])
                | ast.Call(func=ast.Attribute(value=source, attr="send" | "throw" | "__next__"))
            ):
                yield Value(value.module, source, (AWAITED, *value.path[1:]), value.frame)
            case _:
                pass


_OVERLOADS = frozenset(("typing.overload", "typing_extensions.overload"))


def reaching(module: ModuleUses, node: ast.Name, scope: Scope, owner: Scope) -> list[Binding]:
    """The bindings of a name that may hold where it is read. For a function's own names they come before it.

    One that surely runs in between hides those above it. Code of another function may run at any time.
    """
    bindings = owner.bindings[node.id]
    if len(bindings) == 1 or _own_scope(module, scope) is not owner:
        return bindings
    statement = module.statement_of(node)
    around = [statement, *(each for each in module.above(statement) if isinstance(each, ast.stmt))]
    if any(isinstance(each, Function) and module.facts.names.inner.get(each) is owner for each in around):
        cut = next(index for index, each in enumerate(around) if module.facts.names.inner.get(each) is owner)
        around = around[:cut]
    above = [each for each in bindings if _is_before(each, node, statement, around)]
    sure = [each for each in above if _is_sure(module, each, around)]
    last = sure[-1] if sure else None
    start = above.index(last) if last is not None else 0
    loops = [each for each in around if isinstance(each, _LOOPS)]
    if last is not None:
        # What the loop binds later comes round only if nothing in the loop hides it.
        hidden = [loop for loop in loops if last.statement is loop or _is_in(module, last.statement, loop)]
        loops = [loop for loop in loops if loop not in hidden]
    later = [
        each
        for each in bindings
        if each not in above and any(each.statement is loop or _is_in(module, each.statement, loop) for loop in loops)
    ]
    return [*above[start:], *later]


def _own_scope(module: ModuleUses, scope: Scope) -> Scope:
    """The scope that code runs with: that around a comprehension, but for a generator that is not taken at once."""
    while scope.kind == "comprehension" and scope.parent is not None:
        if isinstance(scope.node, ast.GeneratorExp) and not isinstance(module.parents[scope.node], ast.Call):
            break
        scope = scope.parent
    return scope


def _is_before(binding: Binding, node: ast.Name, statement: ast.stmt, around: list[ast.stmt]) -> bool:
    if isinstance(binding.node, ast.arg):
        return True
    if binding.statement is statement:
        inner = binding.node if isinstance(binding.node, ast.NamedExpr) else None
        return inner is not None and (inner.lineno, inner.col_offset) < (node.lineno, node.col_offset)
    if binding.statement in around:
        return True
    assert binding.statement is not None
    return (binding.statement.lineno, binding.statement.col_offset) < (statement.lineno, statement.col_offset)


def _is_sure(module: ModuleUses, binding: Binding, around: list[ast.stmt]) -> bool:
    """Whether a binding above some code runs whenever that does."""
    statement = binding.statement
    if isinstance(binding.node, ast.arg):
        return True
    if statement in around:
        return isinstance(statement, ast.For | ast.AsyncFor | ast.With | ast.AsyncWith) and isinstance(
            binding.node, ast.Name
        )
    if not isinstance(binding.node, _SURE):
        return False
    holder = module.parents.get(statement) if statement is not None else None
    block = next((block for block in blocks_of(holder) if statement in block), ())
    return any(each in block for each in around)


def _is_in(module: ModuleUses, statement: ast.stmt | None, loop: ast.stmt) -> bool:
    return statement is not None and loop in module.above(statement)


def _unbound(flow: ValueFlow, value: Value, name: str) -> _Found:
    """What no scope binds: of a star import, or of Python."""
    module, path, names = value.module, value.path, value.module.facts.names
    stars = [star for star in names.stars if names.star_gives(star, name)]
    for star in stars:
        yield from _of_star(flow, module, star, name, path)
    found = names.resolve_dotted(name, names.scope)
    if name in ("__name__", "__package__"):
        is_whole = name == "__name__" or names.is_package
        yield Value(module, ast.Constant(names.name if is_whole else names.name.rpartition(".")[0]), path)
    elif found is not None and not stars:
        yield flow.outside(module, found, path)
    elif name == "__class__":
        assert isinstance(value.head, ast.AST)
        holder = next((each for each in module.above(value.head) if isinstance(each, ast.ClassDef)), None)
        yield Value(module, holder, path) if holder is not None else Unknown("no class is around", value)
    elif not stars:
        yield from _from_elsewhere(flow, module, name, path)
        yield Unknown(f"`{name}` is not bound in view", value)


def _of_star(
    flow: ValueFlow, module: ModuleUses, star: ast.ImportFrom, name: str, path: Path, *, is_bound: bool = False
) -> _Found:
    """What `from ... import *` binds a name to, if it does: nothing else is unknown where other statements bind it."""
    facts = flow.project.star_module(star, module.facts)
    if facts is not None:
        yield from of_member(flow, facts, name, path)
        return
    origin = module.facts.names.home_of(star)
    if origin is not None and not origin.startswith("."):
        yield flow.outside(module, f"{origin}.{name}", path)
        if is_bound:
            return
    yield Unknown(f"`{name}` may come by `import *` of `{origin}`")


def of_full_name(flow: ValueFlow, module: ModuleUses, name: str, path: Path) -> _Found:
    """The values of a full name as code in a module imports it."""
    parts = name.split(".")
    lead = 1 + len(name) - len(name.lstrip(".")) if name.startswith(".") else 1
    for length in range(len(parts), lead - 1, -1):
        home = ".".join(parts[:length])
        facts = module.facts if home == module.facts.names.name else flow.project.module(home, module.facts)
        if facts is not None:
            steps = (*(attribute(part) for part in parts[length:]), *path)
            if _has_member(flow, facts, steps):
                yield Value(flow.uses_of(facts), facts.tree, steps)
                return
            # Another module of that name is meant, such as one of Python's library.
            break
    if name.startswith("."):
        yield Unknown(f"`{name}` is not among the files in view")
    else:
        yield flow.outside(module, name, path)


def _has_member(flow: ValueFlow, facts: Facts, path: Path) -> bool:
    """Whether a module may have what is read of it."""
    if not path or path[0].kind is not By.ATTRIBUTE:
        return True
    name, names = path[0].what, facts.names
    is_bound = name in names.scope.bindings or "__getattr__" in names.scope.bindings or name.startswith("__")
    is_given = (
        is_bound or bool(names.stars) or bool(flow.stores.of(name)) or any(_replaced(flow, flow.uses_of(facts), ()))
    )
    return is_given or (names.is_package and flow.project.module(f"{names.name}.{name}", facts) is not None)


def of_module(flow: ValueFlow, value: Value) -> _Found:
    """What an attribute of a module of the project is."""
    if value.path and value.path[0].kind is By.ATTRIBUTE:
        yield from of_member(flow, value.module.facts, value.path[0].what, value.path[1:])


def of_member(flow: ValueFlow, facts: Facts, name: str, path: Path) -> _Found:
    """What a name of a module is to code that reads it from outside."""
    module, names = flow.uses_of(facts), facts.names
    if name == "__dict__":
        match path:
            case [Access(By.ITEM, Key(text=str(key))), *rest]:
                yield from of_member(flow, facts, key, (*rest,))
            case _:
                yield Unknown("names are looked up in the dictionary of a module")
        return
    bindings = names.scope.bindings.get(name, ())
    inner = flow.project.module(f"{names.name}.{name}", facts) if names.is_package else None
    if inner is not None and not any(f"{each.target}.".startswith(f"{names.name}.{name}.") for each in bindings):
        # The first import of a module within a package binds its name there.
        yield Value(flow.uses_of(inner), inner.tree, path)
    for binding in _at_the_end(module, bindings):
        yield from of_bound(flow, module, binding, path, None)
    yield from _from_elsewhere(flow, module, name, path)
    yield from _replaced(flow, module, (attribute(name), *path))
    if bindings:
        values = [(module, binding.value) for binding in bindings]
        yield from put_into(flow, values, _places(flow, module, names.scope, name), path)
        return
    if inner is not None:
        return
    stars = [star for star in names.stars if names.star_gives(star, name)]
    looked = names.scope.bindings.get("__getattr__", ())
    for star in stars:
        yield from _of_star(flow, module, star, name, path)
    for binding in looked:
        given = CallArguments([flow.argument(module, ast.Constant(name))])
        yield from of_bound(flow, module, binding, (Access(By.CALL, given), *path), None)
    if not stars and not looked:
        yield Unknown(f"`{names.name}` has no `{name}` in view")


def _at_the_end(module: ModuleUses, bindings: list[Binding] | tuple[Binding, ...]) -> list[Binding]:
    """The bindings that may hold once a module has run, and those that its functions make."""
    top = [
        place
        for place, each in enumerate(bindings)
        if isinstance(each.node, _SURE)
        and each.statement is not None
        and each.statement not in module.facts.names.parents
    ]
    last = top[-1] if top else 0
    return [
        each
        for place, each in enumerate(bindings)
        if place >= last or any(isinstance(above, Function) for above in module.above(each.node))
    ]


def _replaced(flow: ValueFlow, module: ModuleUses, path: Path) -> _Found:
    """What stands in the place of a module: `sys.modules[__name__] = x`, and `sys.modules[__name__].__class__ = A`."""
    holder, _, last = module.facts.names.name.rpartition(".")
    for store in flow.stores.of_modules(last):
        if isinstance(store.target, ast.Constant) and store.owner() == holder:
            yield from flow.stored(store, path, None)
    for store in flow.stores.set_in(module, "__class__"):
        yield from flow.stored(store, (Access(By.CALL, flow.no_arguments), *path), None)


def _from_elsewhere(flow: ValueFlow, module: ModuleUses, name: str, path: Path) -> _Found:
    """What other code assigns to a name of a module: `settings.mesh = mesh`."""
    for store in flow.stores.set_in(module, name):
        yield from flow.stored(store, path, None)
    for place in flow.stores.written_by_text.get(module, ()):
        binds = flow.binds(place, name)
        if binds is not False:
            told = f"names of `{module.facts.names.name}` are bound by their text"
            yield Unknown(told, is_open=binds is None)
            call = module.parents[place.node]
            if isinstance(call, ast.Call):
                yield from put_into(flow, [(module, None)], [(module, call)], (item(name), *path))
