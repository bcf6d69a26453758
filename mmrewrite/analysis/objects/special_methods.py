"""The special methods that Python may call where no call is written: operators, loops, subscripts, texts."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.Div: "truediv", ast.FloorDiv: "floordiv",
    ast.LShift: "lshift", ast.MatMult: "matmul", ast.Mod: "mod", ast.Mult: "mul", ast.Pow: "pow", ast.RShift: "rshift",
    ast.Sub: "sub",
}  # fmt: skip
_UNARY: dict[type[ast.AST], str] = {ast.Invert: "__invert__", ast.UAdd: "__pos__", ast.USub: "__neg__"}
_COMPARISONS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Eq: ("__eq__",), ast.NotEq: ("__ne__", "__eq__"), ast.Lt: ("__lt__", "__gt__"), ast.LtE: ("__le__", "__ge__"),
    ast.Gt: ("__gt__", "__lt__"), ast.GtE: ("__ge__", "__le__"),
}  # fmt: skip
_TRUTH = ("__bool__", "__len__")
_ITERATION = ("__iter__", "__next__", "__getitem__", "__len__", "__length_hint__")
_TEXT = ("__format__", "__str__", "__repr__")
_LOOKUP = ("__getattribute__", "__getattr__")
# A key, and what is kept in a table by it.
_KEY = ("__hash__", "__eq__", "__index__")
# Nothing but their definition, or Python's own end of an object, calls these.
_NOT_OF_OBJECTS = frozenset(
    ("__class_getitem__", "__init__", "__init_subclass__", "__new__", "__post_init__", "__set_name__", "__del__")
)
_OF_BUILTINS = {
    "abs": ("__abs__",),
    "bool": _TRUTH,
    "complex": ("__complex__", "__float__", "__index__"),
    "dir": ("__dir__",),
    "divmod": ("__divmod__", "__rdivmod__"),
    "float": ("__float__", "__index__"),
    "getattr": _LOOKUP,
    "hasattr": _LOOKUP,
    "hash": ("__hash__",),
    "id": (),
    "int": ("__int__", "__index__", "__trunc__"),
    "isinstance": ("__class__", "__instancecheck__"),
    "issubclass": ("__subclasscheck__",),
    "iter": _ITERATION,
    "len": ("__len__",),
    "next": ("__next__",),
    "map": ("__call__", *_ITERATION),
    "filter": ("__call__", *_ITERATION, *_TRUTH),
    "format": _TEXT,
    "bytes": ("__bytes__", "__index__", *_ITERATION),
    "dict": ("keys", *_ITERATION, *_KEY),
    "max": (*_ITERATION, "__gt__", "__lt__", "__call__"),
    "min": (*_ITERATION, "__gt__", "__lt__", "__call__"),
    "pow": ("__pow__", "__rpow__", "__mod__"),
    "range": ("__index__",),
    "slice": (),
    "sorted": (*_ITERATION, "__gt__", "__lt__", "__call__"),
    "sum": (*_ITERATION, "__add__", "__radd__"),
    **dict.fromkeys(("all", "any"), (*_ITERATION, *_TRUTH)),
    **dict.fromkeys(("enumerate", "frozenset", "list", "set", "tuple", "zip"), (*_ITERATION, *_KEY)),
    "print": _TEXT,
    "repr": ("__repr__",),
    "reversed": ("__reversed__", "__len__", "__getitem__"),
    "round": ("__round__",),
    "setattr": ("__setattr__",),
    "str": _TEXT,
    "super": (),
    "type": (),
    "vars": (),
}

# Methods of collections and texts that go through their argument.
_EXTENDING = frozenset(("extend", "extendleft", "join"))

# What runs with an operand: the names of methods, or a test of a name.
Methods = tuple[str, ...] | Callable[[str], bool]


def _may_be_called_on(name: str) -> bool:
    """Whether code that is handed an object may call its method of this name without naming it."""
    return name.startswith("__") and name.endswith("__") and name not in _NOT_OF_OBJECTS


def operands(node: ast.AST, called: str | None) -> Iterator[tuple[ast.expr, Methods]]:
    """The operands of a node, with the special methods that it runs on each.

    Args:
        node: The node.
        called: The full name of what it calls, if it is a call of something known.
    """
    match node:
        case ast.BinOp(left=left, op=operator, right=right):
            name = _OPERATORS[type(operator)]
            yield left, (f"__{name}__",)
            yield right, (f"__r{name}__",)
        case ast.AugAssign(target=target, op=operator, value=value):
            name = _OPERATORS[type(operator)]
            if isinstance(target, ast.Subscript):
                yield target.value, ("__getitem__", "__missing__")
            elif isinstance(target, ast.Attribute):
                yield target.value, (*_LOOKUP, target.attr)
            yield target, (f"__i{name}__", f"__{name}__")
            yield value, (f"__r{name}__",)
        case ast.UnaryOp(op=operator, operand=operand):
            yield operand, _TRUTH if isinstance(operator, ast.Not) else (_UNARY[type(operator)],)
        case ast.Compare(left=left, ops=ops, comparators=others):
            yield from _compared(left, ops, others)
        case ast.BoolOp(values=values):
            yield from ((value, _TRUTH) for value in values[:-1])
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            yield test, _TRUTH
        case ast.match_case(guard=ast.expr() as guard):
            yield guard, _TRUTH
        case ast.comprehension(iter=iterable, ifs=tests):
            yield iterable, (*_ITERATION, "__aiter__", "__anext__")
            yield from ((test, _TRUTH) for test in tests)
        case ast.For(iter=iterable) | ast.AsyncFor(iter=iterable):
            yield iterable, (*_ITERATION, "__aiter__", "__anext__")
        case ast.Starred(value=value) | ast.YieldFrom(value=value):
            yield value, _ITERATION
        case ast.Await(value=value):
            yield value, ("__await__",)
        case ast.Assign(targets=targets, value=value) if any(
            isinstance(each, ast.Tuple | ast.List) for each in targets
        ):
            yield value, _ITERATION
        case ast.Set(elts=items):
            yield from ((item, _KEY) for item in items)
        case ast.DictComp(key=item) | ast.SetComp(elt=item):
            yield item, _KEY
        case ast.Dict(keys=keys, values=values):
            yield from ((value, ("keys", *_ITERATION)) for key, value in zip(keys, values, strict=True) if key is None)
            yield from ((key, _KEY) for key in keys if key is not None)
        case ast.Match(subject=subject):
            yield subject, ("__eq__", "__getitem__", "__len__", "get", *_LOOKUP)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            for entered in items:
                yield entered.context_expr, ("__enter__", "__exit__", "__aenter__", "__aexit__")
        case ast.FormattedValue(value=value):
            yield value, _TEXT
        case ast.Subscript(value=value, slice=key, ctx=context):
            kind = "get" if isinstance(context, ast.Load) else "set" if isinstance(context, ast.Store) else "del"
            yield value, (f"__{kind}item__", "__missing__", "__class_getitem__")
            yield key, _KEY
        case ast.Attribute(value=value, attr=attribute, ctx=ast.Load()):
            yield value, _LOOKUP
        case ast.Attribute(value=value, attr=attribute, ctx=context):
            yield value, ("__setattr__" if isinstance(context, ast.Store) else "__delattr__", attribute)
        case ast.Call():
            yield from _of_call(node, called)


def _compared(left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr]) -> Iterator[tuple[ast.expr, Methods]]:
    before = left
    for operator, other in zip(ops, others, strict=True):
        if isinstance(operator, ast.In | ast.NotIn):
            yield other, ("__contains__", *_ITERATION)
            yield before, _KEY
        elif not isinstance(operator, ast.Is | ast.IsNot):
            for operand in (before, other):
                yield operand, _COMPARISONS[type(operator)]
        if len(ops) > 1:
            for operand in (before, other):
                yield operand, _TRUTH
        before = other


def _of_call(call: ast.Call, called: str | None) -> Iterator[tuple[ast.expr, Methods]]:
    """What a function that is no function of the project may run on its arguments."""
    for keyword in call.keywords:
        if keyword.arg is None:
            yield keyword.value, ("keys", "__getitem__", "__iter__", "__next__")
    module, _, name = (called or "").rpartition(".")
    if isinstance(call.func, ast.Attribute) and call.func.attr in _EXTENDING and called is None:
        for argument in call.args:
            yield argument, _ITERATION
    methods: Methods = _OF_BUILTINS.get(name, _may_be_called_on) if module == "builtins" else _may_be_called_on
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        if not isinstance(argument, ast.Starred):
            yield argument, methods
