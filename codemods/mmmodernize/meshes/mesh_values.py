"""Whether the value of an expression is a mesh, as far as the source shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mmmodernize.names.old_names import ENVIRONMENTS, MESHES, PARTIALS
from mmmodernize.types.libraries import is_known, is_none, library_name
from mmmodernize.types.plain_objects import PlainObjects
from mmrewrite.project.facts import Facts
from mmrewrite.project.project import Project
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Binding

_MESH_CLASSES = frozenset(name for name in MESHES if name.endswith(".Mesh"))
# What the attributes of a mesh are called, in old and new versions of JAX.
# https://docs.jax.dev/en/latest/jax.sharding.html#jax.sharding.Mesh
_MESH_ATTRIBUTES = frozenset(
    (
        *("abstract_mesh", "axis_names", "axis_sizes", "axis_types", "device_ids", "devices", "empty", "shape", "size"),
        *("is_multi_process", "local_devices", "local_mesh", "shape_tuple", "__enter__", "__exit__"),
    )
)
# Functions of Python's library that may return what they are given, or what they find.
_PASS_ON = ("builtins.getattr", "builtins.next", "builtins.eval", "copy.", "functools.", "operator.", "pickle.")
# Modules of Python's library whose names as an annotation say too little.
_VAGUE = ("builtins.object", "collections.", "contextlib.Abstract", "typing.")
# Their contexts are no meshes of JAX, and `compat.mesh_context` is one already.
_RUNTIMES = frozenset(("mmruntime", "multimesh", "legate"))
_GENERATORS = frozenset(("contextlib.contextmanager", "contextlib.asynccontextmanager"))
# What `self` has in a class of tests: https://docs.python.org/3/library/unittest.html#unittest.TestCase
_OF_TESTS = re.compile(r"assert[A-Z]\w*|subTest")
# What locks are called, where no value is in view: https://docs.python.org/3/library/threading.html#lock-objects
_LOCKS = ("lock", "mutex", "semaphore")
# Functions of which an argument is an open file, and its position.
_TAKE_FILES = {
    **dict.fromkeys(("json.load", "pickle.load", "csv.reader", "csv.writer", "csv.DictReader", "csv.DictWriter"), 0),
    **dict.fromkeys(("json.dump", "pickle.dump"), 1),
}
_CACHES = frozenset(("functools.cache", "functools.lru_cache"))
_DEEPEST = 12


@dataclass(frozen=True, eq=False)
class MeshValues:
    """Follows values through names, functions and classes of a project. `modules` are its uses of names, by path."""

    project: Project
    modules: Mapping[str, ModuleUses]
    # Modules that an import leads to and that are not among those that may change.
    _others: dict[str, ModuleUses] = field(default_factory=dict)

    @cached_property
    def _plain_objects(self) -> PlainObjects:
        return PlainObjects(self.project, self._uses_of)

    def is_mesh(self, module: ModuleUses, node: ast.expr) -> bool | None:
        """Whether an expression is a mesh; None if it may be one.

        A name without a value in view (a parameter, an attribute) is one if it ends with "mesh", and none if it
        ends with "lock".
        """
        return self._of(module, node, 0)

    def is_certain(self, module: ModuleUses, node: ast.expr) -> bool:
        """Whether an expression certainly is a mesh; a name like `make_mesh` proves nothing."""
        if isinstance(node, ast.Call):
            return library_name(module, node.func) in MESHES
        if isinstance(node, ast.Attribute):
            values = _values_of_own(module, node)
            return bool(values) and all(value is not None and self.is_certain(module, value) for value in values)
        owner = module.scope_of(node).owner(node.id) if isinstance(node, ast.Name) else None
        bindings = owner.bindings[node.id] if owner is not None and isinstance(node, ast.Name) else []
        return bool(bindings) and all(
            isinstance(binding.value, ast.Call) and library_name(module, binding.value.func) in MESHES
            for binding in bindings
        )

    def _of(self, module: ModuleUses, node: ast.expr | None, depth: int) -> bool | None:
        if depth > _DEEPEST or node is None:
            return None
        if isinstance(node, ast.Call):
            return self._of_call(module, node, depth + 1)
        if isinstance(node, ast.BoolOp):
            return _all_of(self._of(module, value, depth + 1) for value in node.values)
        if isinstance(node, ast.IfExp):
            return _all_of(self._of(module, value, depth + 1) for value in (node.body, node.orelse))
        if isinstance(node, ast.NamedExpr):
            return self._of(module, node.value, depth + 1)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(module, node, depth + 1)
        if isinstance(node, ast.Name):
            return self._of_name(module, node, depth + 1)
        return None if isinstance(node, ast.Subscript | ast.BinOp | ast.Await | ast.Starred) else False

    # Names and attributes

    def _of_name(self, module: ModuleUses, node: ast.Name, depth: int) -> bool | None:
        owner = module.scope_of(node).owner(node.id)
        if owner is None:
            return None
        kinds = {
            # Nothing can enter `None`.
            self._of_binding(module, binding, depth)
            for binding in owner.bindings[node.id]
            if not is_none(binding.value)
        }
        return _with_name(node.id, kinds or {None})

    def _of_attribute(self, module: ModuleUses, node: ast.Attribute, depth: int) -> bool | None:
        found = library_name(module, node)
        if found is not None:
            if any(found == f"{name}.env.physical_mesh" for name in ENVIRONMENTS):
                return True
            if is_known(found):
                return False
            place = self.project.definition(found, module.facts)
            if place is not None:
                return _with_name(node.attr, {self._of_binding(self._uses_of(place[0], module), place[1], depth)})
        values = _values_of_own(module, node)
        kinds = {self._of(module, value, depth) for value in values if not is_none(value)}
        return _with_name(node.attr, kinds or {None})

    def _of_binding(self, module: ModuleUses, binding: Binding, depth: int) -> bool | None:
        if binding.kind in ("function", "class"):
            return False
        if binding.kind == "import":
            return self._of_import(module, binding, depth)
        if isinstance(binding.node, ast.arg):
            return self._of_annotation(module, binding.node.annotation)
        if binding.value is not None:
            return self._of(module, binding.value, depth)
        if isinstance(binding.statement, ast.With):
            for item in binding.statement.items:
                # A mesh gives itself to `as`. What something else gives is unknown.
                if item.optional_vars is binding.node and self._of(module, item.context_expr, depth):
                    return True
        statement = binding.statement
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple | ast.List):
            # A part of what a library returns: `left, right = library.columns(2)`.
            return False if self._plain_objects.is_plain(module, statement.value) else None
        return None

    def _of_import(self, module: ModuleUses, binding: Binding, depth: int) -> bool | None:
        found = module.facts.names.follow(binding.target) if binding.target is not None else None
        if found is None:
            return None
        place = self.project.definition(found, module.facts)
        if place is not None and place[1] is not binding:
            return self._of_binding(self._uses_of(place[0], module), place[1], depth + 1)
        return False if is_known(found) else None

    def _of_annotation(self, module: ModuleUses, annotation: ast.expr | None) -> bool | None:
        found = library_name(module, annotation) if annotation is not None else None
        if found is None or found.startswith(_VAGUE):
            return None
        return True if found in _MESH_CLASSES else False if is_known(found) else None

    # Calls

    def _of_call(self, module: ModuleUses, call: ast.Call, depth: int) -> bool | None:
        function = call.func
        found = library_name(module, function)
        if found in MESHES:
            return True
        if isinstance(function, ast.Call):
            # `contextmanager(function)()`
            return False if library_name(module, function.func) in _GENERATORS else None
        if isinstance(function, ast.Lambda):
            return self._of(module, function.body, depth)
        if found is not None:
            if found.partition(".")[0] in _RUNTIMES:
                return False
            place = self.project.definition(found, module.facts)
            if place is not None:
                return self._of_called(self._uses_of(place[0], module), place[1], depth)
            if is_known(found):
                return None if found.startswith(_PASS_ON) else False
            method = self._method_of_class(module, found)
            if method is not None:
                return self._of_returns(*method, depth)
        if isinstance(function, ast.Name):
            owner = module.scope_of(function).owner(function.id)
            if owner is not None:
                return _all_of(self._of_called(module, binding, depth) for binding in owner.bindings[function.id])
        if isinstance(function, ast.Attribute) and found is None:
            methods = list(self._methods(module, function))
            if not methods and (_is_of_tests(function) or self._plain_objects.is_plain(module, function.value)):
                return False
            return _all_of(self._of_returns(other, method, depth) for other, method in methods) if methods else None
        return None

    def _of_called(self, module: ModuleUses, binding: Binding, depth: int) -> bool | None:
        """Whether a call of what a name is bound to makes a mesh."""
        node, value = binding.node, binding.value
        if isinstance(node, ast.AsyncFunctionDef):
            return False
        if isinstance(node, ast.FunctionDef):
            return self._of_returns(module, node, depth)
        if isinstance(node, ast.ClassDef):
            return None if any(self._may_be_mesh_class(module, base) for base in node.bases) else False
        if binding.kind == "import":
            return self._of_imported_call(module, binding, depth)
        if isinstance(value, ast.Lambda):
            return self._of(module, value.body, depth)
        if isinstance(value, ast.Call) and value.args and library_name(module, value.func) in PARTIALS:
            return True if library_name(module, value.args[0]) in MESHES else None
        return None

    def _of_imported_call(self, module: ModuleUses, binding: Binding, depth: int) -> bool | None:
        """Whether a call of a name gives a mesh that several imports bind, as after `except ImportError`."""
        found = module.facts.names.follow(binding.target) if binding.target is not None else None
        if found is None or depth > _DEEPEST:
            return None
        place = self.project.definition(found, module.facts)
        if place is not None and place[1] is not binding:
            return self._of_called(self._uses_of(place[0], module), place[1], depth + 1)
        if found in MESHES:
            return True
        is_other = found.partition(".")[0] in _RUNTIMES or (is_known(found) and not found.startswith(_PASS_ON))
        return False if is_other else None

    def _may_be_mesh_class(self, module: ModuleUses, base: ast.expr) -> bool:
        found = library_name(module, base)
        return found is None or found in _MESH_CLASSES or not is_known(found)

    def _of_returns(self, module: ModuleUses, function: ast.FunctionDef, depth: int) -> bool | None:
        """Whether a call of a function of the project returns a mesh."""
        for decorator in function.decorator_list:
            named = decorator.func if isinstance(decorator, ast.Call) else decorator
            found = library_name(module, named)
            if found in _GENERATORS:
                return False
            if found not in _CACHES and found not in ("builtins.staticmethod", "builtins.classmethod"):
                return None
        body = list(_own_nodes(function))
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in body):
            return False
        returned = [node.value for node in body if isinstance(node, ast.Return)]
        kinds = {self._of(module, value, depth + 1) for value in returned if not is_none(value)}
        return _all_of(kinds) if kinds else False

    def _method_of_class(self, module: ModuleUses, name: str) -> tuple[ModuleUses, ast.FunctionDef] | None:
        """The method that a full name such as `package.Class.method` stands for, if the class itself defines it."""
        owner, _, own = name.rpartition(".")
        place = self.project.definition(owner, module.facts) if owner else None
        if place is None or not isinstance(place[1].node, ast.ClassDef):
            return None
        found = [part for part in place[1].node.body if isinstance(part, ast.FunctionDef) and part.name == own]
        return (self._uses_of(place[0], module), found[0]) if len(found) == 1 else None

    def _methods(self, module: ModuleUses, function: ast.Attribute) -> Iterator[tuple[ModuleUses, ast.FunctionDef]]:
        """The methods that a call by attribute may run: those of its own class, else all of this name."""
        found = [(other, node) for other in self.modules.values() for node in other.methods.get(function.attr, ())]
        owner = next((holder for holder in module.above(function) if isinstance(holder, ast.ClassDef)), None)
        if isinstance(function.value, ast.Name) and function.value.id in ("self", "cls"):
            own = [(other, node) for other, node in found if other.parents[node] is owner]
            found = own or found
        yield from found

    def _uses_of(self, facts: Facts, near: ModuleUses) -> ModuleUses:
        if facts is near.facts:
            return near
        found = self.modules.get(facts.path) or self._others.get(facts.path)
        if found is None:
            found = self._others[facts.path] = ModuleUses(facts)
        return found


def _is_of_tests(function: ast.Attribute) -> bool:
    """Whether this is a method of `unittest.TestCase`, which gives contexts that are no meshes."""
    return _OF_TESTS.fullmatch(function.attr) is not None


def is_used_as_another(module: ModuleUses, item: ast.withitem, body: Iterable[ast.stmt]) -> bool:
    """Whether the name that `as` gives is used as no mesh can be: `with f() as x: x.write()`."""
    target = item.optional_vars
    if target is None:
        return False
    if not isinstance(target, ast.Name):
        return isinstance(target, ast.Tuple | ast.List)
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Name) and node.id == target.id and isinstance(node.ctx, ast.Load):
            holder = module.parents[node]
            if isinstance(holder, ast.Attribute) and holder.attr not in _MESH_ATTRIBUTES:
                return True
            if isinstance(holder, ast.Subscript) and holder.value is node:
                return True
            if isinstance(holder, ast.Call) and _takes_a_file(module, holder, node):
                return True
    return False


def _takes_a_file(module: ModuleUses, call: ast.Call, argument: ast.expr) -> bool:
    """Whether an argument of a call must be a file."""
    place = _TAKE_FILES.get(library_name(module, call.func) or "")
    return place is not None and call.args[place : place + 1] == [argument]


def _all_of(kinds: Iterable[bool | None]) -> bool | None:
    """What all kinds say, None where they differ."""
    found = set(kinds)
    return found.pop() if len(found) == 1 else None


def _with_name(name: str, kinds: set[bool | None]) -> bool | None:
    """What the values of a name say, and the name itself where they say nothing."""
    own = name.lower().strip("_")
    if own.endswith("mesh") and False not in kinds:
        return True
    return False if own.endswith(_LOCKS) and True not in kinds else _all_of(kinds)


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function's body, but for those of functions and classes that it defines."""
    queue: list[ast.AST] = list(function.body)
    while queue:
        node = queue.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            queue += ast.iter_child_nodes(node)


def _values_of_own(module: ModuleUses, node: ast.Attribute) -> Sequence[ast.expr | None]:
    """The values that a class assigns to its attribute `self.name`; None for one that cannot be seen."""
    if not isinstance(node.value, ast.Name) or node.value.id != "self":
        return ()
    holder = next((holder for holder in module.above(node) if isinstance(holder, ast.ClassDef)), None)
    return module.own_values.get((holder, node.attr), ()) if holder is not None else ()
