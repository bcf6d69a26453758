"""Where the value of an expression comes from, as far as it may be an array of JAX that lies somewhere already."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from mmmodernize.calls.called_back import OF_THE_HOST, TO_THE_HOST, TOLD
from mmmodernize.types.array_annotations import ArrayAnnotations
from mmmodernize.types.attribute_values import AttributeValue, AttributeValues, class_around
from mmmodernize.types.libraries import ARRAY_LIBRARIES, is_known, library_name
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.reach import Reached
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding, Scope

OWN = ("self", "cls")
# Functions of NumPy that call the method of this name of what they are given, so that JAX computes.
OF_NUMPY = frozenset(
    f"numpy.{name}"
    for name in (
        "all", "amax", "amin", "any", "argmax", "argmin", "argpartition", "argsort", "around", "choose", "clip",
        "compress", "cumprod", "cumsum", "diagonal", "imag", "max", "mean", "min", "nonzero", "prod", "product", "ptp",
        "ravel", "real", "repeat", "reshape", "resize", "round", "round_", "searchsorted", "squeeze", "std", "sum",
        "swapaxes", "take", "trace", "transpose", "var",
    )
)  # fmt: skip
# Functions that go through what they are given.
GO_THROUGH = frozenset(
    f"builtins.{name}"
    for name in (
        "all", "any", "dict", "enumerate", "filter", "frozenset", "iter", "list", "map", "reversed", "set", "sorted",
        "tuple", "zip",
    )
)  # fmt: skip
# These give none of what they are given, or of what was put into them.
_GIVE_NOTHING = frozenset(
    f"builtins.{name}" for name in ("all", "any", "ascii", "bin", "bytes", "chr", "dir", "hex", "input", "oct", "open",
    "ord", "slice")
)  # fmt: skip
# Modules of Python whose functions and objects give what they were given.
_HAND_ON = frozenset(
    (
        "asyncio", "builtins", "collections", "concurrent", "contextlib", "contextvars", "copy", "dataclasses",
        "functools", "heapq", "itertools", "multiprocessing", "operator", "pickle", "queue", "random", "shelve",
        "threading", "types", "typing", "weakref",
    )
)  # fmt: skip
# Plain libraries whose objects go through what they are given, or compute with it.
_HAND_ON_PLAIN = frozenset(("einops", "tqdm"))
# Names of JAX and its kin that give no array, or one that is on the host.
_GIVE_NO_ARRAY = (
    "flax.linen.axis_rules",
    "flax.linen.logical_",
    "flax.linen.partitioning.",
    "flax.linen.spmd.",
    "jax.Device",
    "jax.ShapeDtypeStruct",
    "jax.checkpoint",
    "jax.config",
    "jax.core.ShapedArray",
    "jax.debug",
    "jax.default_backend",
    "jax.device_count",
    "jax.device_get",
    "jax.devices",
    "jax.distributed",
    "jax.eval_shape",
    "jax.experimental.maps",
    "jax.experimental.mesh_utils",
    "jax.experimental.pjit",
    "jax.grad",
    "jax.host_",
    "jax.interpreters.pxla",
    "jax.jit",
    "jax.lib.xla_bridge",
    "jax.local_device",
    "jax.make_mesh",
    "jax.named_scope",
    "jax.pmap",
    "jax.process_",
    "jax.profiler",
    "jax.sharding",
    "jax.value_and_grad",
    "jax.vmap",
    "mmruntime.compat",
)
# What these give was given to them.
_GIVE_LEAVES = (
    "flax.core.",
    "flax.jax_utils.prefetch_to_device",
    "flax.jax_utils.unreplicate",
    "flax.serialization.",
    "flax.traverse_util.",
    "jax.block_until_ready",
    "jax.tree.",
    "jax.tree_",
)
# Methods that texts and files have, and arrays do not.
_OF_TEXTS = frozenset(
    (
        "as_text", "close", "count", "decode", "encode", "endswith", "find", "format", "index", "isdigit", "join",
        "keys", "lower", "lstrip", "readline", "readlines", "rsplit", "rstrip", "split", "splitlines", "startswith",
        "strip", "title", "upper",
    )
)  # fmt: skip
# Methods that look something up by their first argument.
_LOOK_UP = frozenset(("get", "pop", "setdefault"))
# Methods that put what they are given into an object.
_PUT = frozenset(
    (
        "add", "append", "appendleft", "extend", "extendleft", "insert", "put", "put_nowait", "setdefault", "update",
        "__setitem__",
    )
)  # fmt: skip
_CONTAINERS = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp)


class Source(NamedTuple):
    """An expression of which is asked whether it may be an array, or with `itself` false have one in it."""

    module: ModuleUses
    node: ast.expr
    itself: bool


# True where a value may be an array whatever else is known.
Found = Iterator[Source | bool]


class ArraySources:
    """Follows values backwards, one step at a time.

    Args:
        project: The project.
        annotations: Reads annotations.
        attributes: The values of attributes.
        uses_of: Gives the uses of names in a module.
        definitions: The definitions of the project that a function may be.
        is_compiled: Whether what is called is compiled with shardings, so that its results lie on the mesh.
    """

    def __init__(
        self,
        project: Project,
        annotations: ArrayAnnotations,
        attributes: AttributeValues,
        uses_of: Callable[[Facts], ModuleUses],
        definitions: Callable[[ModuleUses, ast.expr], Iterable[Reached]],
        is_compiled: Callable[[Reached], bool],
    ) -> None:
        self._project, self._annotations, self._attributes = project, annotations, attributes
        self._uses_of, self._definitions, self._is_compiled = uses_of, definitions, is_compiled
        self._bases: dict[ast.ClassDef, tuple[frozenset[str], bool]] = {}

    def of(self, source: Source) -> Found:
        """Where a value comes from: any of these may be an array if it is one."""
        module, node, itself = source
        match node:
            case ast.Name():
                yield from self._of_name(module, node, itself)
            case ast.Attribute():
                yield from self._of_attribute(module, node, itself)
            case ast.Subscript(value=value) | ast.Starred(value=value) | ast.Await(value=value):
                yield Source(module, value, False)
            case ast.Call():
                yield from self._of_call(module, node, itself)
            case ast.NamedExpr(value=value):
                yield Source(module, value, itself)
            case ast.IfExp(body=body, orelse=orelse):
                yield from _all(module, (body, orelse), itself)
            case ast.BoolOp(values=values):
                yield from _all(module, values, itself)
            case ast.BinOp(left=left, right=right):
                yield from _all(module, (left, right), itself)
            case ast.UnaryOp(op=op, operand=operand):
                if not isinstance(op, ast.Not):
                    yield Source(module, operand, itself)
            case ast.Compare(ops=ops, left=left, comparators=others):
                if not all(isinstance(each, ast.Is | ast.IsNot | ast.In | ast.NotIn) for each in ops):
                    yield from _all(module, (left, *others), True)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                if not itself:
                    yield from _all(module, parts, False)
            case ast.Dict(keys=keys, values=parts):
                if not itself:
                    yield from _all(module, (*(key for key in keys if key is not None), *parts), False)
            case ast.ListComp(elt=part) | ast.SetComp(elt=part) | ast.GeneratorExp(elt=part) | ast.DictComp(value=part):
                if not itself:
                    yield Source(module, part, False)
            case ast.Constant() | ast.JoinedStr() | ast.Lambda() | ast.Slice():
                pass
            case _:
                yield True

    # Names

    def _of_name(self, module: ModuleUses, name: ast.Name, itself: bool) -> Found:
        owner = module.scope_of(name).owner(name.id)
        if owner is None:
            yield from self._of_full_name(module, module.facts.names.resolve(name, module.scope_of(name)), itself)
            return
        for binding in owner.bindings[name.id]:
            yield from self._of_binding(module, owner, binding, itself)
        if not itself and any(_is_container(module, each.value) for each in owner.bindings[name.id]):
            yield from self._put_into(module, owner, name.id)

    def _of_full_name(self, module: ModuleUses, found: str | None, itself: bool) -> Found:
        """What a name means that no scope binds, or that an import does."""
        if found is None:
            yield True
        elif not is_known(found):
            definition = self._project.definition(found, module.facts)
            if definition is not None:
                home = self._uses_of(definition[0])
                yield from self._of_binding(home, home.facts.names.scope, definition[1], itself)
                if not itself and _is_container(home, definition[1].value):
                    yield from self._put_into(home, home.facts.names.scope, definition[1].name)
            elif self._project.module(found, module.facts) is None:
                yield True

    def _of_binding(self, module: ModuleUses, owner: Scope, binding: Binding, itself: bool) -> Found:
        node, statement = binding.node, binding.statement
        generators = getattr(owner.node, "generators", None)
        if isinstance(node, ast.arg):
            yield self._may_be_given(module, owner, node, itself)
        elif binding.kind == "import":
            target = binding.target
            yield from self._of_full_name(module, target and module.facts.names.follow(target), itself)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        elif binding.value is not None:
            yield Source(module, binding.value, itself)
        elif generators is not None:
            # A part of what a comprehension goes through.
            for generator in generators:
                if any(isinstance(part, ast.Name) and part.id == binding.name for part in ast.walk(generator.target)):
                    yield Source(module, generator.iter, False)
        elif isinstance(node, ast.ExceptHandler):
            if node.type is not None:
                yield from self._of_exception(module, node.type, itself)
        else:
            yield from self._of_statement(module, statement, itself)

    def _of_statement(self, module: ModuleUses, statement: ast.stmt | None, itself: bool) -> Found:
        """What a statement gives a name of which it does not write the value."""
        match statement:
            case ast.Assign(value=value) | ast.For(iter=value) | ast.AsyncFor(iter=value) | ast.Match(subject=value):
                yield Source(module, value, False)
            case ast.AugAssign(value=value):
                yield Source(module, value, itself)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if item.optional_vars is not None:
                        yield from self._entered(module, item.context_expr)
            case ast.AnnAssign() | ast.Delete():
                pass
            case _:
                yield True

    def _entered(self, module: ModuleUses, manager: ast.expr) -> Found:
        """What `as` gives: something of the manager, but for those of libraries that know no arrays."""
        found = library_name(module, manager.func) if isinstance(manager, ast.Call) else None
        if found is None or not is_known(found) or found.partition(".")[0] in ARRAY_LIBRARIES:
            yield Source(module, manager, False)

    def _of_exception(self, module: ModuleUses, kinds: ast.expr, itself: bool) -> Found:
        """What an exception has in it: those of the project may have anything."""
        for kind in kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]:
            found = library_name(module, kind)
            if not itself and (found is None or not is_known(found)):
                yield True

    def _may_be_given(self, module: ModuleUses, owner: Scope, parameter: ast.arg, itself: bool) -> bool:
        arguments = getattr(owner.node, "args", None)
        if isinstance(arguments, ast.arguments) and parameter in (arguments.vararg, arguments.kwarg):
            return not itself and self._annotations.allow(module, parameter.annotation, itself=False)
        if parameter.arg in OWN:
            return not itself
        return self._annotations.allow(module, parameter.annotation, itself=itself)

    def _put_into(self, module: ModuleUses, owner: Scope, name: str) -> Found:
        """What the module puts into a container after it is made, by its name."""
        for head in module.heads.get(name, ()):
            if module.scope_of(head).owner(name) is owner:
                yield from self._put_at(module, head)

    def _put_at(self, module: ModuleUses, container: ast.expr) -> Found:
        """What is put into a container at one of its places."""
        holder = module.parents[container]
        match holder:
            case ast.Subscript(ctx=ast.Store()) if holder.value is container:
                yield from _assigned(module, holder)
            case ast.Attribute(attr=method):
                call = module.parents.get(holder)
                if isinstance(call, ast.Call) and call.func is holder and method in _PUT:
                    yield from _all(module, _arguments(call), False)
            case ast.Call() if container is not holder.func:
                found = library_name(module, holder.func)
                if found is None or not is_known(found):
                    # The function may put something into it.
                    definitions = list(self._definitions(module, holder.func))
                    yield not definitions or not all(map(self._is_compiled, definitions))
            case ast.Assign() | ast.Tuple() | ast.List() | ast.Dict() | ast.keyword() | ast.NamedExpr():
                # Another name of it.
                yield True
            case _:
                pass

    # Attributes

    def _of_attribute(self, module: ModuleUses, node: ast.Attribute, itself: bool) -> Found:
        if node.attr in TOLD:
            return
        value = node.value
        found = module.facts.names.resolve(node, module.scope_of(node))
        if found is not None and self._is_of_a_module(module, value):
            yield from self._of_full_name(module, found, itself)
            return
        holder = self._class_of(module, value)
        if holder is not None or _is_own(module, value):
            yield from self._kept(node.attr, holder, itself)
        else:
            yield Source(module, value, False)

    def _is_of_a_module(self, module: ModuleUses, node: ast.expr) -> bool:
        """Whether a dotted name is a module, or something in a library."""
        found = module.facts.names.resolve(node, module.scope_of(node))
        return found is not None and (is_known(found) or self._project.module(found, module.facts) is not None)

    def _class_of(self, module: ModuleUses, node: ast.expr) -> tuple[ModuleUses, ast.ClassDef] | None:
        """The class of the project that an object is of, where one is seen."""
        match node:
            case ast.Name(id=name) if name in OWN:
                holder = class_around(module, node)
                return (module, holder) if holder is not None else None
            case ast.Call(func=ast.Name(id="super" | "type")) | ast.Attribute(attr="__class__"):
                holder = class_around(module, node) if _is_own(module, node) else None
                return (module, holder) if holder is not None else None
            case ast.Call(func=function):
                return self._defined_class(module, function)
            case ast.Name():
                owner = module.scope_of(node).owner(node.id)
                bindings = owner.bindings[node.id] if owner is not None else []
                if len(bindings) != 1:
                    return None
                (binding,) = bindings
                if isinstance(binding.node, ast.ClassDef):
                    return module, binding.node
                if isinstance(binding.node, ast.arg):
                    annotation = binding.node.annotation
                    return self._annotations.class_of(module, annotation) if annotation is not None else None
                value = binding.value
                return self._defined_class(module, value.func) if isinstance(value, ast.Call) else None
            case _:
                return None

    def _defined_class(self, module: ModuleUses, function: ast.expr) -> tuple[ModuleUses, ast.ClassDef] | None:
        found = {reached.node: reached.facts for reached in self._definitions(module, function)}
        for node, facts in found.items():
            if len(found) == 1 and isinstance(node, ast.ClassDef):
                return self._uses_of(facts), node
        return None

    def _kept(self, name: str, of_class: tuple[ModuleUses, ast.ClassDef] | None, itself: bool) -> Found:
        """The values that the project gives an attribute of this name, in objects of a class if it is known."""
        values = [each for each in self._attributes.of(name) if self._may_be_of(each, of_class)]
        names, is_hidden = self._names_of_bases(*of_class) if of_class is not None else (frozenset[str](), False)
        is_own = any(each.holder is not None and each.holder.name in names for each in values)
        if not values or (is_hidden and not is_own):
            # Code out of view sets it, such as a class of a library that this one derives from.
            yield True
        for value in values:
            yield from self._of_value(value, itself)
        if not itself and any(_is_container(each.module, each.value) for each in values):
            for module, place in self._attributes.read(name):
                yield from self._put_at(module, place)
        for value in self._attributes.of_computed_names:
            if self._may_be_of(value, of_class):
                yield from self._of_value(value, itself)

    def _may_be_of(self, value: AttributeValue, of_class: tuple[ModuleUses, ast.ClassDef] | None) -> bool:
        """Whether what an attribute of some object gets may be that of an object of a class."""
        if value.holder is None or of_class is None:
            return True
        both = {value.holder.name, of_class[1].name}
        # An object of the class may be one of a class that derives from it, and from another one.
        return len(both) == 1 or any(both <= names for names in self._families)

    @cached_property
    def _families(self) -> Sequence[frozenset[str]]:
        """The names of each class and of all that it derives from, where there are several."""
        found = [
            self._names_of_bases(module, definition)[0]
            for module in self._attributes.modules
            for definition in module.nodes_of(ast.ClassDef)
        ]
        return [*{names for names in found if len(names) > 1}]

    def _of_value(self, value: AttributeValue, itself: bool) -> Found:
        if value.declared is not None:
            yield self._annotations.allow(value.module, value.declared, itself=itself)
        elif isinstance(value.value, ast.FunctionDef):
            yield from self._returned(value.module, value.value, itself)
        elif value.value is None:
            yield True
        else:
            yield Source(value.module, value.value, itself and not value.is_part)

    def _names_of_bases(self, home: ModuleUses, of_class: ast.ClassDef) -> tuple[frozenset[str], bool]:
        """The names of a class and of all that it derives from, and whether some of these are not in view."""
        if of_class in self._bases:
            return self._bases[of_class]
        names: set[str] = set()
        is_hidden = False
        queue = [(home, of_class)]
        for module, definition in queue:
            if definition.name in names:
                continue
            names.add(definition.name)
            for base in definition.bases:
                found = self._defined_class(module, base.value if isinstance(base, ast.Subscript) else base)
                if found is not None:
                    queue.append(found)
                else:
                    known = library_name(module, base.value if isinstance(base, ast.Subscript) else base)
                    is_hidden |= known is None or not is_known(known) or known.partition(".")[0] in ARRAY_LIBRARIES
        self._bases[of_class] = frozenset(names), is_hidden
        return self._bases[of_class]

    # Calls

    def _of_call(self, module: ModuleUses, call: ast.Call, itself: bool) -> Found:
        function, arguments = call.func, _arguments(call)
        found = library_name(module, function)
        if isinstance(function, ast.Lambda):
            yield Source(module, function.body, itself)
        elif found == "builtins.getattr" and len(call.args) >= 2:
            yield from self._looked_up(module, call, itself)
        elif found is not None and is_known(found):
            yield from self._of_library(module, found, arguments, itself)
        else:
            definitions = list(self._definitions(module, function))
            for reached in definitions:
                yield from self._of_definition(reached, itself)
            if not definitions:
                yield from self._of_method(module, function, call, itself)

    def _looked_up(self, module: ModuleUses, call: ast.Call, itself: bool) -> Found:
        target, name, *default = call.args
        yield from _all(module, default, itself)
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            if name.value not in TOLD:
                holder = self._class_of(module, target)
                if holder is not None:
                    yield from self._kept(name.value, holder, itself)
                    return
                yield Source(module, target, False)
        else:
            yield Source(module, target, False)

    def _of_library(self, module: ModuleUses, found: str, arguments: Sequence[ast.expr], itself: bool) -> Found:
        root = found.partition(".")[0]
        if found in OF_THE_HOST or found in _GIVE_NOTHING or found.startswith(_GIVE_NO_ARRAY):
            return
        if root in ARRAY_LIBRARIES:
            if not found.startswith(_GIVE_LEAVES):
                yield True
                return
        elif found in GO_THROUGH:
            if itself:
                return
        elif root not in (*_HAND_ON, *_HAND_ON_PLAIN) and found not in OF_NUMPY:
            return
        for argument in arguments:
            yield Source(module, argument, itself and found in OF_NUMPY)
            for reached in (
                self._definitions(module, argument) if isinstance(argument, ast.Name | ast.Attribute) else ()
            ):
                # A function that is called there, and gives more than it is given.
                if isinstance(reached.node, ast.FunctionDef):
                    yield from self._of_definition(reached, itself=False)
            if isinstance(argument, ast.Lambda):
                yield Source(module, argument.body, False)

    def _of_definition(self, reached: Reached, itself: bool) -> Found:
        """What a call of a definition of the project gives."""
        node, module = reached.node, self._uses_of(reached.facts)
        if self._is_compiled(reached):
            return
        match node:
            case ast.FunctionDef():
                yield from self._returned(module, node, itself)
            case ast.ClassDef():
                yield not itself
            case ast.Assign(value=ast.Name() | ast.Attribute() as other):
                for each in self._definitions(module, other):
                    if each.node is not node:
                        yield from self._of_definition(each, itself)
            case ast.Assign(value=ast.Lambda(body=body)):
                yield Source(module, body, itself)
            case _:
                yield True

    def _returned(self, module: ModuleUses, function: ast.FunctionDef, itself: bool) -> Found:
        """What a function returns or yields."""
        if function.returns is not None and not self._annotations.allow(module, function.returns, itself=itself):
            return
        queue: list[ast.AST] = [*function.body]
        while queue:
            node = queue.pop()
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
                    continue
                case ast.Return(value=value) if value is not None:
                    yield Source(module, value, itself)
                case ast.Yield(value=value) | ast.YieldFrom(value=value) if value is not None:
                    if not itself:
                        yield Source(module, value, False)
            queue += ast.iter_child_nodes(node)

    def _of_method(self, module: ModuleUses, function: ast.expr, call: ast.Call, itself: bool) -> Found:
        """What a method gives that the project does not define."""
        if not isinstance(function, ast.Attribute):
            yield True
            return
        if function.attr in TO_THE_HOST or function.attr in _OF_TEXTS:
            return
        if itself and function.attr in ("items", "values"):
            return
        if _is_own(module, function.value):
            yield True
        yield Source(module, function.value, False)
        given = call.args[1:] if function.attr in _LOOK_UP else call.args
        yield from _all(module, (*given, *(keyword.value for keyword in call.keywords)), False)


def _all(module: ModuleUses, nodes: Iterable[ast.expr], itself: bool) -> Iterator[Source]:
    return (Source(module, node, itself) for node in nodes)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _assigned(module: ModuleUses, target: ast.expr) -> Found:
    """What is assigned to an entry."""
    statement = module.statement_of(target)
    if isinstance(statement, ast.Assign | ast.AugAssign):
        yield Source(module, statement.value, False)
    else:
        yield True


def _is_own(module: ModuleUses, node: ast.expr) -> bool:
    """Whether this is `self`, its class, or what it derives from."""
    match node:
        case ast.Name(id=name):
            return name in OWN
        case ast.Call(func=ast.Name(id="super"), args=[]):
            return True
        case (
            ast.Call(func=ast.Name(id="type"), args=[ast.Name(id=name)])
            | ast.Attribute(value=ast.Name(id=name), attr="__class__")
        ):
            return name in OWN
        case _:
            return False


def _is_container(module: ModuleUses, value: ast.AST | None) -> bool:
    """Whether a value is a container that more may be put into."""
    if isinstance(value, ast.Call):
        found = library_name(module, value.func) or ""
        return found.startswith(("builtins.", "collections.", "queue."))
    return isinstance(value, _CONTAINERS)
