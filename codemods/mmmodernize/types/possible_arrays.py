"""What may be an array of JAX that came from elsewhere, and what computes with it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from mmmodernize.calls.called_back import COMPUTE, COMPUTED_FIELDS
from mmmodernize.types.array_sources import GO_THROUGH, OF_NUMPY, ArraySources, Source
from mmmodernize.types.libraries import library_name
from mmrewrite.project.uses import ModuleUses

# They copy what they are given, and an array is copied to where it is made.
_COPY = frozenset(("copy.copy", "copy.deepcopy", "copy.replace"))
# Modules of Python whose functions go through what they are given, or take something out of it.
_GO_THROUGH = ("bisect.", "collections.", "heapq.", "itertools.", "math.fsum", "math.sumprod", "random.", "statistics.")
_SEVERAL = (ast.Tuple, ast.List)


class PossibleArrays:
    """Says of operands whether they may be arrays. `sources` tells where values come from."""

    def __init__(self, sources: ArraySources) -> None:
        self._sources = sources
        self._known: dict[tuple[ast.expr, bool], bool] = {}

    def computes(self, module: ModuleUses, node: ast.expr | ast.stmt) -> bool:
        """Whether an operator, an index, a field such as `x.T` or a loop over it may compute with an array."""
        if isinstance(node, ast.expr) and _is_iterated(module, node) and self.may_be(module, node):
            return True
        if isinstance(node, ast.expr) and _is_taken_apart(module, node) and self.may_have(module, node):
            return True
        match node:
            case ast.BinOp(left=left, right=right):
                operands = [left, right]
            case ast.AugAssign(target=target, value=value):
                operands = [target, value]
            case ast.Compare(left=left, ops=ops, comparators=others):
                if all(isinstance(each, ast.Is | ast.IsNot) for each in ops):
                    return False
                operands = [left, *others]
                # What is in a container is compared with what is looked for.
                searched = [each for op, each in zip(ops, others, strict=True) if isinstance(op, ast.In | ast.NotIn)]
                if not _is_text(left) and any(self.may_have(module, each) for each in searched):
                    return True
            case ast.UnaryOp(op=op, operand=operand) if not isinstance(op, ast.Not):
                operands = [operand]
            case ast.Subscript(value=value, slice=index, ctx=ast.Load()):
                return not _is_text(index) and self.may_be(module, value)
            case ast.Attribute(value=value, attr=attribute) if attribute in COMPUTED_FIELDS:
                return self.may_be(module, value)
            case ast.Match(subject=value, cases=cases):
                has_values = any(isinstance(part, ast.MatchValue) for each in cases for part in ast.walk(each.pattern))
                return has_values and self.may_be(module, value)
            case _:
                return False
        # Arrays and texts have no operation in common.
        return not any(map(_is_text, operands)) and any(self.may_be(module, each) for each in operands)

    def call_computes(self, module: ModuleUses, function: ast.expr, arguments: Sequence[ast.expr]) -> bool:
        """Whether a function of Python or NumPy may compute with an array among its arguments, or a method copy one."""
        if isinstance(function, ast.Attribute) and function.attr == "copy" and not arguments:
            return self.may_be(module, function.value)
        found = library_name(module, function) or ""
        if found in COMPUTE or found in _COPY or found.startswith("einops."):
            return any(self.may_have(module, each) for each in arguments)
        goes_through = found in GO_THROUGH or found in OF_NUMPY or found.startswith(_GO_THROUGH)
        # `values.extend(x)`
        goes_through |= isinstance(function, ast.Attribute) and function.attr in ("extend", "extendleft")
        return goes_through and any(self.may_be(module, each) for each in arguments)

    def may_be(self, module: ModuleUses, node: ast.expr) -> bool:
        """Whether a value may be an array that came from elsewhere, or is one that a function of JAX made."""
        return self._is_found(Source(module, node, itself=True))

    def may_have(self, module: ModuleUses, node: ast.expr) -> bool:
        """Whether a value may be one, or have one in it."""
        return self._is_found(Source(module, node, itself=False))

    def _is_found(self, source: Source) -> bool:
        key = (source.node, source.itself)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._search(source)
        return found

    def _search(self, source: Source) -> bool:
        queue, seen = [source], {(source.node, source.itself)}
        for each in queue:
            for found in self._sources.of(each):
                if found is True:
                    return True
                if isinstance(found, Source) and (found.node, found.itself) not in seen:
                    seen.add((found.node, found.itself))
                    queue.append(found)
        return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_iterated(module: ModuleUses, node: ast.expr) -> bool:
    """Whether a value is iterated over: by a loop, by a star, or by several targets."""
    holder = module.parents.get(node)
    match holder:
        case ast.For(iter=value) | ast.comprehension(iter=value):
            return value is node
        case ast.Starred(ctx=ast.Load()):
            return True
        case ast.Assign(targets=targets) if holder.value is node:
            return any(isinstance(each, _SEVERAL) for each in targets)
        case ast.Tuple(elts=values) | ast.List(elts=values):
            # `(a, b), c = x, y`
            statement = module.parents.get(holder)
            if not isinstance(statement, ast.Assign) or statement.value is not holder:
                return False
            return any(
                isinstance(part, _SEVERAL)
                for each in statement.targets
                if isinstance(each, _SEVERAL)
                for part in (each.elts if len(each.elts) != len(values) else [each.elts[values.index(node)]])
            )
        case _:
            return False


def _is_taken_apart(module: ModuleUses, node: ast.expr) -> bool:
    """Whether what is in a value is iterated over, as in `for a, b in values`, where it may be no tuple."""
    match module.parents.get(node):
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value) if value is node:
            pass
        case _:
            return False
    if not isinstance(target, _SEVERAL):
        return False
    if isinstance(node, ast.Call):
        found = library_name(module, node.func) or ""
        gives_tuples = found in ("builtins.enumerate", "builtins.zip", "builtins.sorted", "builtins.list")
        is_of_items = isinstance(node.func, ast.Attribute) and node.func.attr == "items"
        return not gives_tuples and not is_of_items and not found.startswith("itertools.")
    return not (isinstance(node, ast.Tuple | ast.List) and all(isinstance(each, ast.Tuple) for each in node.elts))
