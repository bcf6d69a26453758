"""Functions that others call there and then, as `jax.tree.map` and `map` do, and what they compute of what they get."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence

from mmmodernize.meshes.mesh_contexts import run_now
from mmmodernize.types.libraries import ARRAY_LIBRARIES, is_known, library_name
from mmrewrite.project.uses import ModuleUses
from mmrewrite.source.names import all_arguments

Definition = ast.FunctionDef | ast.Lambda

_TREES = ("jax.tree.", "jax.tree_util.")
# Parts of `jax.tree` and `jax.tree_util` that call their first argument; the path to a leaf comes first with some.
_MAP_TREES = frozenset(
    (
        "map", "map_with_path", "reduce", "reduce_associative", "tree_map", "tree_map_with_path", "tree_multimap",
        "tree_reduce", "tree_reduce_associative",
    )
)  # fmt: skip
_WITH_A_PATH = ("_with_path", "path_aware_map")
# Which argument other functions call, and what it may be called.
_CALL: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "builtins.filter": (0, ()),
    "builtins.map": (0, ()),
    **{f"builtins.{name}": (None, ("key",)) for name in ("max", "min", "sorted")},
    "flax.traverse_util.path_aware_map": (0, ("f",)),
    "functools.reduce": (0, ("function",)),
    "heapq.merge": (None, ("key",)),
    "heapq.nlargest": (2, ("key",)),
    "heapq.nsmallest": (2, ("key",)),
    "itertools.accumulate": (1, ("func",)),
    "itertools.groupby": (1, ("key",)),
    **{f"itertools.{name}": (0, ()) for name in ("dropwhile", "filterfalse", "starmap", "takewhile")},
    "operator.call": (0, ()),
    "timeit.repeat": (0, ("stmt",)),
    "timeit.timeit": (0, ("stmt",)),
}

# What `operator` has that computes nothing.
_COMPUTE_NOTHING = ("attrgetter", "call", "is_", "is_not", "itemgetter", "length_hint", "methodcaller")
# Functions of Python that compute with what they are given.
COMPUTE = frozenset(
    (
        *(f"builtins.{name}" for name in ("abs", "divmod", "max", "min", "pow", "round", "sum")),
        *("functools.reduce", "itertools.accumulate", "math.prod"),
        *(f"operator.{name}" for name in dir(operator) if name not in _COMPUTE_NOTHING),
    )
)
# These give back what they are given, or parts of it.
_HAND_ON = ("builtins.", "collections.", "contextlib.", "copy.", "functools.", "itertools.", "operator.", "typing.")
OF_THE_HOST = frozenset(
    f"builtins.{name}"
    for name in (
        "bool", "callable", "complex", "float", "format", "hasattr", "hash", "id", "int", "isinstance", "issubclass",
        "len", "print", "range", "repr", "str", "type",
    )
)  # fmt: skip

# What arrays tell of themselves, and what they are once they are on the host.
TOLD = frozenset(("dtype", "itemsize", "nbytes", "ndim", "shape", "sharding", "size", "weak_type"))
TO_THE_HOST = frozenset(("item", "tolist"))
# What arrays compute where they are read like a field, and of the methods that other objects have as well.
COMPUTED_FIELDS = frozenset(("T", "imag", "mT", "real"))
_COMPUTING_METHODS = frozenset(("copy",))


def called_back(
    module: ModuleUses, function: ast.expr, args: Sequence[ast.expr], keywords: Sequence[ast.keyword]
) -> list[tuple[ast.expr, int]]:
    """The functions that a call of a library calls there and then; `*args` that may be one stands for it.

    Returns:
        Each function, with how many arguments it gets first that are no arrays: the path to a leaf, or none.
    """
    name = library_name(module, function) or ""
    place, words = _CALL.get(name, (None, ()))
    if name.startswith(_TREES):
        own = name.rpartition(".")[2]
        if own.startswith("register"):
            return []
        words = ("is_leaf", "is_leaf_takes_path")
        if own in _MAP_TREES:
            place, words = 0, ("f", "function", *words)
    elif name not in _CALL:
        return []
    found = [keyword.value for keyword in keywords if keyword.arg in words or (keyword.arg is None and words)]
    before = args[: place + 1] if place is not None else ()
    starred = [each for each in before if isinstance(each, ast.Starred)]
    found += starred[:1] or ([args[place]] if place is not None and place < len(args) else [])
    if name.startswith(_TREES):
        found += [each for each in args if isinstance(each, ast.Lambda) and each not in found]
    asks_for_leaves = {keyword.value for keyword in keywords if keyword.arg == "is_leaf"}
    given_first = int(name.endswith(_WITH_A_PATH))
    return [
        (each, 0 if each in asks_for_leaves else given_first)
        for each in found
        if not (isinstance(each, ast.Constant) and each.value is None)
    ]


class ComputedArguments:
    """What a function computes with what it is given.

    Args:
        module: The module of the function.
        function: The function.
        skip: So many parameters are given no arrays.
    """

    def __init__(self, module: ModuleUses, function: Definition, skip: int = 0) -> None:
        self._module = module
        self._body: Sequence[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else function.body
        arguments = function.args
        first = [each.arg for each in (*arguments.posonlyargs, *arguments.args)][:skip]
        # Their parts are given, and to take a part computes nothing.
        self._tables = {each.arg for each in (arguments.vararg, arguments.kwarg) if each is not None}
        self._given = {each.arg for each in all_arguments(arguments)} - {*first, "self", "cls"}
        self._add_derived()

    def _add_derived(self) -> None:
        """Add the names that get a value with what is given in it."""
        before = -1
        while before < len(self._given):
            before = len(self._given)
            for node in run_now(self._body):
                for targets, value in _bindings(node):
                    if value is not None and self._has_given(value):
                        names = (part for target in targets for part in ast.walk(target))
                        self._given |= {part.id for part in names if isinstance(part, ast.Name)}

    def first(self) -> ast.expr | ast.stmt | None:
        """The first place that computes, None if there is none."""
        found = next((node for node in run_now(self._body) if self._computes(node)), None)
        found = found.iter if isinstance(found, ast.For | ast.comprehension) else found
        return found if isinstance(found, ast.expr | ast.stmt) else None

    def calls(self) -> Iterator[ast.Call]:
        """The calls that are given some of it."""
        for node in run_now(self._body):
            if isinstance(node, ast.Call) and any(map(self._has_given, _arguments(node))):
                yield node

    def _computes(self, node: ast.AST) -> bool:
        match node:
            case ast.Compare(ops=operators) if any(isinstance(each, ast.Is | ast.IsNot) for each in operators):
                return False
            case ast.UnaryOp(op=ast.Not()):
                return False
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.AugAssign():
                return any(map(self._has_given, ast.iter_child_nodes(node)))
            case ast.Subscript(value=value, ctx=ast.Load()):
                return self._has_given(value) and not self._is_table(value)
            case ast.Attribute(value=value, attr=attribute):
                return attribute in COMPUTED_FIELDS and self._has_given(value)
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in _COMPUTING_METHODS:
                return self._has_given(value)
            case ast.Call(func=function):
                return library_name(self._module, function) in COMPUTE and any(map(self._has_given, _arguments(node)))
            case ast.For(iter=value) | ast.comprehension(iter=value) | ast.Starred(value=value):
                return isinstance(value, ast.Name) and self._has_given(value) and not self._is_table(value)
            case _:
                return False

    def _is_table(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._tables

    def _has_given(self, node: ast.AST) -> bool:
        """Whether an expression has what is given in it, but for what is of the host."""
        queue = [node]
        while queue:
            part = queue.pop()
            if isinstance(part, ast.Name) and part.id in self._given:
                return True
            is_told = isinstance(part, ast.Attribute) and part.attr in TOLD
            if not is_told and not isinstance(part, ast.Lambda) and not self._is_of_the_host(part):
                queue += ast.iter_child_nodes(part)
        return False

    def _is_of_the_host(self, node: ast.AST) -> bool:
        """Whether a call gives no array of JAX."""
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in TO_THE_HOST:
            return True
        found = library_name(self._module, node.func)
        if found is None or found in OF_THE_HOST or found == "jax.device_get":
            return found is not None
        return is_known(found) and not found.startswith(_HAND_ON) and found.partition(".")[0] not in ARRAY_LIBRARIES


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _bindings(node: ast.AST) -> Iterator[tuple[Iterable[ast.expr], ast.expr | None]]:
    """What a node binds, and to what."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield targets, value
        case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
            yield [target], value
        case ast.NamedExpr(target=target, value=value):
            yield [target], value
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield [target], value
        case ast.withitem(optional_vars=target, context_expr=value) if target is not None:
            yield [target], value
        case _:
            pass


FindDefinitions = Callable[[ModuleUses, ast.expr], Iterator[tuple[ModuleUses, Definition]]]


def first_computed(
    module: ModuleUses, function: Definition, definitions: FindDefinitions, skip: int = 0
) -> tuple[ModuleUses, ast.expr | ast.stmt] | None:
    """Where a function, or one that it calls with what it is given, computes with that; None if none does."""
    queue, seen = [(module, function, skip)], {function}
    for home, definition, skipped in queue:
        computed = ComputedArguments(home, definition, skipped)
        place = computed.first()
        if place is not None:
            return home, place
        for call in computed.calls():
            for other, inner in definitions(home, call.func):
                if inner not in seen:
                    seen.add(inner)
                    queue.append((other, inner, 0))
    return None
