"""Whether the value of an expression is a mesh, as far as the source shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from mmmodernize.names.shared_names import ENVIRONMENTS, MESHES
from mmmodernize.types.libraries import ARRAY_LIBRARIES, gives_no_mesh, is_known, is_none, library_name
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import Scope, dotted_name
from mmrewrite.values.annotations import classes_in, declared, parsed_annotation
from mmrewrite.values.flow import ValueFlow
from mmrewrite.values.value import By, Function, Unknown, Value

_MESH_CLASSES = frozenset(name for name in MESHES if name.endswith(".Mesh"))
# A mesh gives itself to `as`.
_MADE = frozenset(f"{name}(){entered}" for name in MESHES for entered in ("", ".__enter__()"))
_IN_CONTEXT = frozenset(f"{name}.env.physical_mesh" for name in ENVIRONMENTS)
# What the attributes of a mesh are called, in old and new versions of JAX.
# https://docs.jax.dev/en/latest/jax.sharding.html#jax.sharding.Mesh
_MESH_ATTRIBUTES = frozenset(
    (
        *("abstract_mesh", "axis_names", "axis_sizes", "axis_types", "device_ids", "devices", "empty", "shape", "size"),
        *("is_multi_process", "local_devices", "local_mesh", "shape_tuple", "__enter__", "__exit__"),
    )
)
# Modules of Python's library whose names as an annotation say too little.
_VAGUE = ("builtins.object", "collections.", "contextlib.Abstract", "typing.")
# What these make is entered itself, whatever it is given.
_OBJECTS = ("concurrent.futures.", "contextlib.closing", "multiprocessing.", "unittest.mock.patch")
_MANAGERS = frozenset(("contextlib.AbstractContextManager", "typing.ContextManager"))
# What classes may be called that are another name of a mesh, or put one in context.
_OF_MESHES = ("mesh", "context", "ctx", "partition", "shard", "spmd", "manager")
# Their contexts are no meshes of JAX, and `compat.mesh_context` is one already.
_RUNTIMES = frozenset(("mmruntime", "multimesh", "legate"))
# What `self` has in a class of tests: https://docs.python.org/3/library/unittest.html#unittest.TestCase
_OF_TESTS = re.compile(r"assert[A-Z]\w*|subTest")
# What locks are called, where no value is in view: https://docs.python.org/3/library/threading.html#lock-objects
_LOCKS = ("lock", "mutex", "semaphore")
# Functions of which an argument is an open file, and its position.
_TAKE_FILES = {
    **dict.fromkeys(("json.load", "pickle.load", "csv.reader", "csv.writer", "csv.DictReader", "csv.DictWriter"), 0),
    **dict.fromkeys(("json.dump", "pickle.dump"), 1),
}
# Where values end that may be one.
_MAY_BE_ONE = (ast.BinOp, ast.Subscript, ast.Await, ast.Starred, ast.AugAssign)


class MeshValues:
    """Asks for meshes where the values of a project come from."""

    def __init__(self, flow: ValueFlow) -> None:
        self._flow = flow

    @property
    def flow(self) -> ValueFlow:
        """The values of the project."""
        return self._flow

    def is_mesh(self, module: ModuleUses, node: ast.expr, *, is_sure: bool = False) -> bool | None:
        """Whether an expression is a mesh; None if it may be one.

        What is not in view (a parameter, an attribute) is one if its name ends with "mesh", and none if it ends with
        "lock". With `is_sure`, None may also be said of what is none, which is seen sooner.
        """
        kinds: set[bool | None] = set()
        open_kinds: set[bool | None] = set()
        of_meshes = {True, None} if _by_name(Value(module, node)) else {True}
        for is_mesh, found in self._flow.walk(Value(module, node), self._test, by_name=True):
            if isinstance(found, Unknown):
                (open_kinds if found.is_open else kinds).add(_by_name(found.value))
            elif is_mesh is not None:
                kinds.add(is_mesh)
            elif not is_none(found.expression):
                # Nothing can enter `None`.
                kinds.add(self._of_end(found))
            if {True, False} <= kinds or (is_sure and not kinds <= of_meshes):
                return None
        if kinds != {False}:
            # What only may be something else makes nothing certain, but it makes nothing a mesh.
            kinds |= open_kinds
        return _with_name(Value(module, node), kinds or {None})

    def is_certain(self, module: ModuleUses, node: ast.expr) -> bool:
        """Whether an expression certainly is a mesh; a name like `make_mesh` proves nothing."""
        return not self._is_another(module, node) and self._flow.must(Value(module, node), _is_made) is True

    def _is_another(self, module: ModuleUses, node: ast.expr) -> bool:
        """Whether something is seen to be no certain mesh by its name alone, as most that is called is."""
        name = self._flow.full_name(module, node)
        if name is not None and not self._flow.project.holds(name, module.facts):
            return True
        owner = module.scope_of(node).owner(node.id) if isinstance(node, ast.Name) else None
        bindings = [*owner.bindings[node.id]] if owner is not None and isinstance(node, ast.Name) else []
        found = self._flow.binding_at(module, node) if name is not None else None
        if found is not None:
            bindings.append(found[1])
        if any(each.kind in ("class", "function", "parameter") for each in bindings):
            return True
        if isinstance(node, ast.Attribute) and name is None:
            stores = self._flow.stores
            methods = (isinstance(each.node, Function) for _, _, each in stores.in_classes(node.attr))
            return not stores.of(node.attr) and all(methods)
        return False

    def _test(self, value: Value) -> bool | None:
        """Whether a value is a mesh, None where the values behind it say so."""
        head = value.head
        if isinstance(head, str):
            text = value.outside or ""
            if text in _MADE or text in _IN_CONTEXT:
                return True
            if head.startswith(_OBJECTS) and [step.kind for step in value.path] == [By.CALL]:
                return False
            if self._flow.behind(value):
                return None
            root = head.partition(".")[0]
            if root in _RUNTIMES or gives_no_mesh(head):
                return False
            # Objects of these libraries may have attributes that the program gave them.
            return False if is_known(head) and (root not in ARRAY_LIBRARIES or len(value.path) < 2) else None
        said = [*declared(self._flow, value)]
        if said and not any(found.path for found in said):
            kinds = {self._of_annotation(found.module, found.node) for found in said}
            return kinds.pop() if len(kinds) == 1 else None
        if value.path and value.path[0].kind is By.ATTRIBUTE and _OF_TESTS.fullmatch(value.path[0].what):
            return False
        return None

    def _of_end(self, value: Value) -> bool | None:
        """Whether a value is a mesh that has no others behind it."""
        if isinstance(value.head, str):
            return None
        if value.is_made and isinstance(value.head, ast.ClassDef):
            return self._of_class(value.module, value.head)
        if isinstance(value.head, Function | ast.ClassDef):
            return False
        return None if isinstance(value.head, _MAY_BE_ONE) else False

    def _of_class(self, module: ModuleUses, definition: ast.ClassDef) -> bool | None:
        """Whether an object of a class of the project is a mesh."""
        bases = self._flow.bases(module, definition)
        is_other = bases.is_whole and all(
            (is_known(name) or gives_no_mesh(name)) and name not in _MESH_CLASSES for name in bases.outside
        )
        return False if is_other else None

    def _of_annotation(self, module: ModuleUses, annotation: ast.expr) -> bool | None:
        scope, parsed = module.scope_of(annotation), parsed_annotation(annotation)
        if isinstance(parsed, ast.Subscript) and library_name(module, parsed.value, scope) in _MANAGERS:
            # What a mesh gives `as` is itself.
            first = parsed.slice.elts[0] if isinstance(parsed.slice, ast.Tuple) else parsed.slice
            return False if is_none(first) else None
        kinds = {self._of_class_name(module, each, scope) for each in classes_in(annotation)}
        return kinds.pop() if len(kinds) == 1 else None

    def _of_class_name(self, module: ModuleUses, node: ast.expr, scope: Scope) -> bool | None:
        found = self._flow.class_at(module, node, scope)
        if found is not None:
            return self._of_class(*found)
        name = library_name(module, node, scope)
        if name is None or name.startswith(_VAGUE):
            return None
        if name in _MESH_CLASSES:
            return True
        # A class of any other library is what it is called.
        is_class = name.rpartition(".")[2][:1].isupper() and not self._flow.project.holds(name, module.facts)
        is_other = is_class and not any(word in name.lower() for word in _OF_MESHES)
        return False if is_known(name) or is_other else None


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


def _is_made(value: Value) -> bool | None:
    """Whether a value is what makes a mesh gives."""
    return value.outside in _MADE or None


def _by_name(value: Value | None) -> bool | None:
    """Whether something that is not in view is a mesh, by the name that it is read by."""
    return _with_name(value, {None}) if value is not None else None


def _with_name(value: Value, kinds: set[bool | None]) -> bool | None:
    """What the values of something say, and its name where they say nothing."""
    head, last = value.head, value.path[-1] if value.path else None
    name = ""
    if last is not None:
        name = last.what if last.kind is By.ATTRIBUTE else ""
    elif isinstance(head, ast.Call):
        # What `get_lock(path)` gives is a lock; what `make_mesh(devices)` gives is seen in its definition.
        called = (dotted_name(head.func) or "").rpartition(".")[2]
        name = called if called.lower().endswith(_LOCKS) else ""
    elif isinstance(head, ast.Name | ast.Attribute | ast.arg):
        name = next(str(getattr(head, each)) for each in ("id", "attr", "arg") if hasattr(head, each))
    own = name.lower().strip("_")
    if own.endswith("mesh") and False not in kinds:
        return True
    if own.endswith(_LOCKS) and True not in kinds:
        return False
    return kinds.pop() if len(kinds) == 1 else None
