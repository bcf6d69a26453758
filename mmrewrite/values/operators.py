"""One step back through operators: parts of containers that are put together, and what methods of classes give.

And which methods Python calls where a program names none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mmrewrite.values.containers import paths_of_items
from mmrewrite.values.value import ELEMENT, Access, By, Path, Unknown, Value, attribute

if TYPE_CHECKING:
    from mmrewrite.values.flow import ValueFlow

# The middle of the names of the methods that an operator calls, and the name of its function in `operator`. What
# comparisons give is a truth value.
WORDS: Mapping[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.MatMult: "matmul",
    ast.Div: "truediv",
    ast.Mod: "mod",
    ast.FloorDiv: "floordiv",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.BitAnd: "and",
    ast.USub: "neg",
    ast.UAdd: "pos",
    ast.Invert: "invert",
}
# Methods that Python calls where a program compares, looks up, reads, tests and prints.
_COMPARED = (*(f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge")), "__contains__", "__hash__")
_ITEMS = ("__getitem__", "__missing__", "__setitem__", "__delitem__")
_ATTRIBUTES = ("__getattr__", "__getattribute__", "__setattr__", "__delattr__")
_TRUTH = ("__bool__", "__len__")
_TEXTS = ("__format__", "__str__", "__repr__")


def of_operator(flow: ValueFlow, value: Value) -> Iterator[Value | Unknown]:
    """What an operator in the program gives."""

    def operand(node: ast.expr) -> Value:
        return Value(value.module, node, (), value.frame)

    path = value.path
    match value.head:
        case ast.BinOp(left=first, op=op, right=second):
            yield from of_operands(flow, WORDS[type(op)], [operand(first), operand(second)], path)
        case ast.AugAssign(target=first, op=op, value=second):
            # What the target was before is seen by its other bindings.
            yield from _parts(WORDS[type(op)], [operand(second)], path)
            yield from _by_methods(flow, WORDS[type(op)], [operand(first), operand(second)], path, is_in_place=True)
        case ast.UnaryOp(op=op, operand=first) if type(op) in WORDS:
            yield from of_operands(flow, WORDS[type(op)], [operand(first)], path)
        case _:
            pass


def of_operands(flow: ValueFlow, word: str, operands: Sequence[Value], path: Path) -> Iterator[Value | Unknown]:
    """What an operator gives for some values."""
    yield from _parts(word, operands, path)
    yield from _by_methods(flow, word, operands, path)


def _parts(word: str, operands: Sequence[Value], path: Path) -> Iterator[Value]:
    for inner, _ in paths_of_items(path):
        step = inner[0] if word == "or" else ELEMENT
        # A list is multiplied by a number.
        yield from (each.done(step, *inner[1:]) for each in operands if not isinstance(each.head, ast.Constant))


def _by_methods(
    flow: ValueFlow, word: str, operands: Sequence[Value], path: Path, *, is_in_place: bool = False
) -> Iterator[Value]:
    """What methods give for an operator, if a class of the project has one: which of them runs, the operands say."""
    own, other = [f"__{word}__", *([f"__i{word}__"] if is_in_place else [])], [f"__r{word}__"]
    if any(map(flow.stores.in_classes, (*own, *other))):
        for each, names, given in zip(operands, (own, other), reversed(operands), strict=False):
            if isinstance(each.head, ast.Constant) and word != "mod":
                # Its methods know nothing of objects of the project.
                continue
            call = flow.call_with(given) if len(operands) > 1 else flow.no_arguments
            yield from (each.done(attribute(name), Access(By.CALL, call), *path) for name in names)


def special_methods(node: ast.AST) -> Iterator[tuple[ast.expr, Sequence[str]]]:
    """The values whose special methods Python calls at a node, with the names of these methods."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            yield left, (f"__{WORDS[type(op)]}__",)
            yield right, (f"__r{WORDS[type(op)]}__",)
        case ast.AugAssign(target=target, op=op, value=value):
            yield target, (f"__{WORDS[type(op)]}__", f"__i{WORDS[type(op)]}__")
            yield value, (f"__r{WORDS[type(op)]}__",)
        case ast.UnaryOp(op=op, operand=operand):
            yield operand, _TRUTH if isinstance(op, ast.Not) else (f"__{WORDS[type(op)]}__",)
        case ast.Compare(left=left, comparators=others):
            yield from ((each, _COMPARED) for each in (left, *others))
        case ast.Subscript(value=value):
            yield value, _ITEMS
        case ast.Attribute(value=value, attr=name):
            yield value, (name, *_ATTRIBUTES)
        case ast.If(test=value) | ast.While(test=value) | ast.IfExp(test=value) | ast.Assert(test=value):
            yield value, _TRUTH
        case ast.BoolOp(values=values):
            yield from ((each, _TRUTH) for each in values)
        case ast.FormattedValue(value=value):
            yield value, _TEXTS
        case ast.Dict(keys=keys):
            yield from ((each, _COMPARED) for each in keys if each is not None)
        case ast.Set(elts=values):
            yield from ((each, _COMPARED) for each in values)
        case ast.Call(func=ast.Name(id=name), args=values):
            yield from ((each, (f"__{name}__", *_TEXTS, *_TRUTH)) for each in values)
        case ast.ClassDef(bases=values):
            yield from ((each, ("__init_subclass__",)) for each in values)
        case _:
            pass
